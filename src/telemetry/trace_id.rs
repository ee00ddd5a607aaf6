//! The trace a request belongs to, as its client or a proxy says.

use std::fmt;

/// `trace-id` of a `traceparent` header (W3C Trace Context, section 3.2.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

impl TraceId {
    /// Takes it out of the header's value; `None` if that is not well-formed, as the specification asks.
    #[must_use]
    pub fn from_traceparent(value: &[u8]) -> Option<TraceId> {
        // `00-` 32 hex `-` 16 hex `-` 2 hex. A later version may have more behind another dash.
        let (known, more) = value.split_at_checked(55)?;
        let fields: [&[u8]; 4] = [&known[..2], &known[3..35], &known[36..52], &known[53..]];
        let is_lower_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_nothing = |field: &[u8]| field.iter().all(|byte| *byte == b'0');
        let is_sound = [2, 35, 52].iter().all(|place| known[*place] == b'-')
            && fields.iter().all(|field| field.iter().all(is_lower_hex))
            && match fields[0] {
                b"ff" => false,
                b"00" => more.is_empty(),
                _ => more.first().is_none_or(|next| *next == b'-'),
            };
        if !is_sound || is_nothing(fields[1]) || is_nothing(fields[2]) {
            return None;
        }
        let digit = |byte: u8| if byte.is_ascii_digit() { byte - b'0' } else { byte - b'a' + 10 };
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(fields[1].chunks_exact(2)) {
            *byte = digit(pair[0]) << 4 | digit(pair[1]);
        }
        Some(TraceId(id))
    }
}

impl fmt::Display for TraceId {
    /// The 32 hex digits it came as.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::TraceId;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn only_what_is_well_formed_names_a_trace() {
        let read = |value: &str| TraceId::from_traceparent(value.as_bytes()).map(|id| id.to_string());
        for good in [
            format!("00-{TRACE}-00f067aa0ba902b7-01"),
            format!("cc-{TRACE}-00f067aa0ba902b7-00"),
            format!("cc-{TRACE}-00f067aa0ba902b7-01-what-comes-later"),
        ] {
            assert_eq!(read(&good).as_deref(), Some(TRACE), "{good}");
        }
        for bad in [
            String::new(),
            TRACE.to_owned(),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("cc-{TRACE}-00f067aa0ba902b7-01.more"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00_{TRACE}-00f067aa0ba902b7-01"),
            "é".repeat(40),
        ] {
            assert_eq!(read(&bad), None, "{bad}");
        }
    }
}
