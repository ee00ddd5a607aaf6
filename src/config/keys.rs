//! `[auth.keys.NAME]`: who may come in, by the SHA-256 of what they show.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::convert::{Refused, mismatch, text, whole};
use super::document::{Place, Value};
use super::meaning::Key;
use super::report::{Report, shown};
use super::scope_rules::parse_scope;
use super::section::Section;

/// A key and where it was said.
pub(super) struct Said {
    pub(super) key: Key,
    pub(super) place: Place,
    /// Where `servers` stands, or would.
    pub(super) servers_place: Place,
}

/// Reads every `[auth.keys.NAME]`, and tells whether there is one, be it one that cannot be used.
pub(super) fn read(section: &mut Section<'_>) -> (BTreeMap<Arc<str>, Said>, bool) {
    let mut keys = BTreeMap::new();
    let mut is_any = false;
    for (name, section) in section.tables("keys") {
        is_any = true;
        let place = section.header().unwrap_or(Place::File(0..0));
        if !is_key_name(name) {
            let message = format!("`{}` is no name for a key", name.escape_debug());
            section.report.problem(Some(&place), message, NAME_REMEDY);
        }
        let servers_place = section.place("servers").unwrap_or_else(|| place.clone());
        if let Some(key) = read_key(section) {
            keys.insert(Arc::from(name), Said { key, place, servers_place });
        }
    }
    (keys, is_any)
}

pub(super) const NAME_REMEDY: &str = "a name is up to 64 letters, digits and . _ @ -, the first a letter or a digit";

/// Whether a key may have this name. It stands in logs, so it is one plain word.
pub(crate) fn is_key_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '@' | '-'))
}

fn read_key(mut section: Section<'_>) -> Option<Key> {
    let node = section.take("hash");
    section.record("hash", node, node.map_or_else(String::new, |node| shown_hash(&node.value)));
    let hash = match node {
        None => {
            let refused = Refused::new("is missing", "`gangway key new NAME` prints the table to paste");
            section.refuse("hash", section.place("hash").as_ref(), refused);
            None
        }
        Some(node) if matches!(node.value, Value::Unfilled) => None,
        Some(node) => match text(&node.value).and_then(parse_hash) {
            Ok(hash) => Some(hash),
            Err(refused) => {
                section.refuse("hash", Some(&node.place), refused);
                None
            }
        },
    };
    let expires = optional(&mut section, "expires", |value| match value {
        Value::Date(year, month, day) => Ok(end_of_day(*year, *month, *day)),
        other => Err(mismatch(other, "write a date without quotes, such as 2027-01-31")),
    });
    let servers = section.place("servers").filter(|_| section.has("servers")).map(|place| {
        let servers = section.list("servers", |name| Ok(name.to_owned()));
        if servers.is_empty() {
            section.refuse(
                "servers",
                Some(&place),
                Refused::new("opens no server", "name servers, or leave it out for all"),
            );
        }
        servers
    });
    section.declare("servers");
    let sessions = optional(&mut section, "sessions", |value| match whole(value, 0)? {
        0 => Ok(usize::MAX),
        count => Ok(count as usize),
    });
    let scopes = if section.has("scopes") { section.list("scopes", parse_scope) } else { Vec::new() };
    section.declare("scopes");
    hash.map(|hash| Key { hash, expires, servers, sessions, scopes })
}

/// Reads a key that has no default.
fn optional<T>(
    section: &mut Section<'_>,
    key: &'static str,
    convert: impl Fn(&Value) -> Result<T, Refused>,
) -> Option<T> {
    let node = section.take(key).filter(|node| !matches!(node.value, Value::Unfilled))?;
    section.record(key, Some(node), shown(&node.value));
    convert(&node.value).map_err(|refused| section.refuse(key, Some(&node.place), refused)).ok()
}

/// Enough of a hash to tell keys apart.
fn shown_hash(value: &Value) -> String {
    match text(value) {
        Ok(text) if text.starts_with("sha256:") && text.is_ascii() => {
            format!("\"{}…\"", &text[..text.len().min(15)])
        }
        _ => super::secret::HIDDEN.to_owned(),
    }
}

/// Parses `sha256:` and 64 hexadecimal digits.
///
/// # Errors
/// What is wrong; the text never stands in it.
pub(super) fn parse_hash(text: &str) -> Result<[u8; 32], Refused> {
    if text.starts_with("gangway_") {
        let remedy =
            "a file holds only its hash: make a new key with `gangway key new NAME`, this one was written down";
        return Err(Refused::new("holds the key itself", remedy));
    }
    let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64 && digits.is_ascii());
    let refused = || Refused::new("is not sha256: and 64 hexadecimal digits", "`gangway key new NAME` prints one");
    let digits = digits.ok_or_else(refused)?;
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let digit = |c: u8| char::from(c).to_digit(16);
        let (high, low) = digit(pair[0]).zip(digit(pair[1])).ok_or_else(refused)?;
        *byte = (high * 16 + low) as u8;
    }
    Ok(hash)
}

/// The first second, since the Unix epoch, after a day in UTC. A day before 1970 has ended at 0.
fn end_of_day(year: u16, month: u8, day: u8) -> u64 {
    // Days since 1970-01-01 in the Gregorian calendar, with years that start in March so that the leap day comes last.
    let (year, month, day) = (i64::from(year), i64::from(month), i64::from(day));
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days =
        year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (153 * month + 2) / 5 + day - 1;
    u64::try_from((days - 719_468 + 1) * 86_400).unwrap_or(0)
}

/// Puts the keys of the file beside those of the keys file and refuses names and keys that stand twice.
pub(super) fn join(
    report: &Report<'_>,
    said: BTreeMap<Arc<str>, Said>,
    filed: BTreeMap<Arc<str>, Key>,
) -> BTreeMap<Arc<str>, Key> {
    let mut keys = filed;
    for (name, said) in said {
        let same = keys.iter().find(|(_, other)| other.hash == said.key.hash).map(|(name, _)| name.clone());
        if let Some(other) = same.filter(|other| *other != name) {
            let message = format!("the keys `{name}` and `{other}` are one key");
            report.problem(Some(&said.place), message, "make a key for each name: a caller has one name");
        }
        if keys.contains_key(&name) {
            let message = format!("the key `{name}` stands in the keys file too");
            report.problem(Some(&said.place), message, "leave one of them out");
        }
        keys.insert(name, said.key);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::{end_of_day, is_key_name, parse_hash};

    #[test]
    fn a_key_ends_with_its_day() {
        for ((year, month, day), end) in [
            ((1970, 1, 1), 86_400),
            ((2000, 2, 29), 951_868_800),
            ((2026, 12, 31), 1_798_761_600),
            ((2024, 2, 28), 1_709_164_800),
            ((1969, 12, 31), 0),
            ((1900, 1, 1), 0),
        ] {
            assert_eq!(end_of_day(year, month, day), end, "{year}-{month}-{day}");
        }
    }

    #[test]
    fn hashes_are_read_whole_or_not_at_all() {
        let text = format!("sha256:{}", "0aF1".repeat(16));
        let hash = parse_hash(&text).expect("a hash");
        assert_eq!(hash[..2], [0x0a, 0xf1]);
        for wrong in [
            String::new(),
            "0a".repeat(32),
            "sha256:".to_owned(),
            text[..70].to_owned(),
            text.replace('F', "g"),
            format!("{text}0"),
            text.replace("0aF1", "+aF1"),
        ] {
            assert!(parse_hash(&wrong).is_err(), "{wrong}");
        }
        let refused = parse_hash("gangway_SECRETSECRET").expect_err("a key");
        assert!(!format!("{refused:?}").contains("SECRET"));
    }

    #[test]
    fn key_names_are_one_plain_word() {
        for name in ["laptop", "ci-2", "alice@example.com", "0"] {
            assert!(is_key_name(name), "{name}");
        }
        for name in ["", "-a", "a b", "a\n", "é", &"a".repeat(65)] {
            assert!(!is_key_name(name), "{name}");
        }
    }
}
