//! JSON-RPC ids and progress tokens: raw spelling kept, compared by type and value.

use std::fmt;
use std::hash::{Hash, Hasher};

use bytes::{BufMut, Bytes};

/// Characters a string id may have, quotes not counted, and digits an integer may have.
pub const MAX_ID: usize = 256;

/// An id or a progress token exactly as its owner wrote it.
///
/// Two are equal when type and value are: `1` is not `"1"`, and `"\u0061"` is `"a"` (JSON-RPC 2.0
/// section 4; MCP base protocol, Requests).
#[derive(Clone)]
pub struct Id {
    raw: Raw,
}

/// The spelling, of its own: an id outlives the buffer its message was read into. The short ones, which are nearly all,
/// take no allocation.
#[derive(Clone)]
enum Raw {
    Short { length: u8, bytes: [u8; SHORT] },
    Long(Bytes),
}

/// Bytes kept in place: a UUID in quotes, and a `Raw` is as large as a pointer allows.
const SHORT: usize = 38;

impl Id {
    /// Takes a raw JSON value; `None` unless it is a string of up to 256 bytes or an integer
    /// literal of up to 256 digits.
    #[must_use]
    pub fn parse(raw: &[u8]) -> Option<Id> {
        Id::fits(raw).then(|| Id { raw: Raw::copy(raw) })
    }

    /// Whether a raw JSON value is an id.
    #[must_use]
    pub fn fits(raw: &[u8]) -> bool {
        match raw {
            [] => false,
            [b'"', ..] => raw.len() <= MAX_ID + 2,
            [b'-', digits @ ..] => digits.len() <= MAX_ID && digits.iter().all(u8::is_ascii_digit),
            digits => digits.len() <= MAX_ID && digits.iter().all(u8::is_ascii_digit),
        }
    }

    /// The bytes to echo.
    #[must_use]
    pub fn raw(&self) -> &[u8] {
        match &self.raw {
            Raw::Short { length, bytes } => &bytes[..usize::from(*length)],
            Raw::Long(bytes) => bytes,
        }
    }

    /// The value as a number of this process, where it is one.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        parse_u64(self.raw())
    }

    fn text(&self) -> Option<String> {
        if self.raw().first() == Some(&b'"') { serde_json::from_slice(self.raw()).ok() } else { None }
    }
}

impl Raw {
    fn copy(raw: &[u8]) -> Raw {
        let mut bytes = [0; SHORT];
        match (bytes.get_mut(..raw.len()), u8::try_from(raw.len())) {
            (Some(place), Ok(length)) => {
                place.copy_from_slice(raw);
                Raw::Short { length, bytes }
            }
            _ => Raw::Long(Bytes::copy_from_slice(raw)),
        }
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({})", String::from_utf8_lossy(self.raw()))
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Id) -> bool {
        let (own, others) = (self.raw(), other.raw());
        if own == others {
            return true;
        }
        // Only an escape can spell one string in two ways; integers have one spelling but for -0.
        let escaped = own.contains(&b'\\') || others.contains(&b'\\');
        let zero = |raw: &[u8]| raw == b"0" || raw == b"-0";
        (escaped && self.text().is_some() && self.text() == other.text()) || (zero(own) && zero(others))
    }
}

impl Eq for Id {}

impl Hash for Id {
    /// Equal ids hash equally, however they are spelled.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let raw: &[u8] = if self.raw() == b"-0" { b"0" } else { self.raw() };
        match (raw.contains(&b'\\').then(|| self.text()).flatten(), raw) {
            (Some(text), _) => text.as_bytes().hash(state),
            (None, [b'"', text @ .., b'"']) => text.hash(state),
            (None, raw) => raw.hash(state),
        }
    }
}

/// Reads a plain decimal number; `None` for anything else, also for one with leading zeros.
#[must_use]
pub fn parse_u64(raw: &[u8]) -> Option<u64> {
    if raw.is_empty() || raw.len() > 20 || (raw.len() > 1 && raw[0] == b'0') {
        return None;
    }
    raw.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// Appends a decimal number.
pub fn put_u64(out: &mut impl BufMut, value: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = value;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.put_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::{Id, parse_u64, put_u64};
    use std::hash::{BuildHasher, RandomState};

    fn id(raw: &str) -> Option<Id> {
        Id::parse(raw.as_bytes())
    }

    #[test]
    fn takes_strings_and_integers_only() {
        for raw in [
            "1",
            "0",
            "-7",
            "9007199254740993",
            "\"\"",
            "\"x-é\"",
            &"9".repeat(256),
            &format!("\"{}\"", "a".repeat(256)),
        ] {
            assert_eq!(id(raw).expect(raw).raw(), raw.as_bytes());
        }
        for raw in
            ["null", "1.0", "1e2", "{}", "[1]", "true", &"9".repeat(257), &format!("\"{}\"", "a".repeat(257)), ""]
        {
            assert!(id(raw).is_none(), "{raw}");
        }
    }

    #[test]
    fn equal_ids_hash_equally() {
        let hasher = RandomState::new();
        let hash = |raw| hasher.hash_one(id(raw).expect(raw));
        assert_eq!(hash("\"a\""), hash("\"\\u0061\""));
        assert_eq!(hash("0"), hash("-0"));
        assert_ne!(hash("\"a\""), hash("\"b\""));
        assert_ne!(hash("\"\\ud800\""), hash("\"\\ud801\""));
    }

    #[test]
    fn compares_type_and_value() {
        assert_eq!(id("\"a\""), id("\"\\u0061\""));
        assert_ne!(id("1"), id("\"1\""));
        assert_ne!(id("\"a\""), id("\"b\\u0061\""));
        assert_eq!(id("0"), id("-0"));
        assert_ne!(id("\"\\ud800\""), id("\"\\ud801\""));
    }

    #[test]
    fn numbers_round_trip() {
        for value in [0, 7, 10, 999, u64::MAX] {
            let mut out = Vec::new();
            put_u64(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
            assert_eq!(parse_u64(&out), Some(value));
        }
        for raw in ["", "01", "-1", "1.0", "18446744073709551616", "\"1\""] {
            assert_eq!(parse_u64(raw.as_bytes()), None, "{raw}");
        }
    }
}
