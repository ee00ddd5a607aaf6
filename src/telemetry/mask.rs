//! Secrets taken out of text that a child wrote.
//!
//! This is a net, not a wall: it knows the shapes secrets commonly have and the values that the child was given, and a
//! child that prints another one, or one of these in other words, still prints it. It prefers to mask too much.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::escape::cut;

/// What stands in a secret's place.
const MASK: &str = "***";

/// Shortest rest of a word, in bytes, that makes a known prefix a secret.
const SHORTEST_SECRET: usize = 12;

/// What every API key of a gateway begins with.
const OWN_PREFIX: &str = "gangway_";

/// Beginnings of words that are secrets by their issuer's convention.
const PREFIXES: [&str; 17] = [
    OWN_PREFIX,
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "pk_live_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "AKIA",
    "AIza",
    "eyJ",
];

/// Ends of names whose assigned values are secrets, in lower case.
const NAMES: [&str; 8] = ["token", "secret", "password", "passwd", "api_key", "apikey", "api-key", "private_key"];

/// Shortest value that is looked for as it stands: a shorter one could be any word.
const SHORTEST_KNOWN: usize = 6;

/// Values that are known to be secrets, whatever their shape. Cheap to clone, and not shown.
#[derive(Clone, Default)]
pub struct KnownSecrets(Option<Arc<[Box<str>]>>);

impl KnownSecrets {
    /// These values. Of one with several lines each line counts; what is shorter than six bytes does not.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> KnownSecrets {
        let lines = values.into_iter().flat_map(str::lines).map(str::trim);
        let mut known: Vec<Box<str>> = lines.filter(|line| line.len() >= SHORTEST_KNOWN).map(Box::from).collect();
        // A value that is the beginning of another one must not leave the other's rest behind.
        known.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        known.dedup();
        KnownSecrets((!known.is_empty()).then(|| known.into()))
    }

    /// These values and those of `other`.
    #[must_use]
    pub fn and<'a>(&'a self, other: impl IntoIterator<Item = &'a str>) -> KnownSecrets {
        KnownSecrets::new(self.iter().chain(other))
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|known| known.iter()).map(|value| &**value)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Replaces each of them by `***`.
    pub(super) fn mask<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        self.iter().fold(
            text,
            |text, known| {
                if text.contains(known) { Cow::Owned(text.replace(known, MASK)) } else { text }
            },
        )
    }
}

impl fmt::Debug for KnownSecrets {
    /// How many there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KnownSecrets").field(&self.iter().count()).finish()
    }
}

/// One line that a child wrote for the log: made UTF-8, secrets masked, `known` ones first, cut to so many
/// characters. Control characters are still in it; the log escapes them, and for a terminal
/// [`Escaped`](super::Escaped) does.
#[must_use]
pub fn child_text(line: &[u8], characters: usize, known: &KnownSecrets) -> String {
    // Masking looks at no more than can be shown, with room for what it shortens. A word the
    // bound splits is left out, since half a secret may no longer look like one.
    let bound = characters.saturating_mul(4).saturating_add(4096);
    let part = match line.get(..bound) {
        Some(head) => &head[..head.iter().rposition(u8::is_ascii_whitespace).unwrap_or(bound)],
        None => line,
    };
    let text = known.mask(String::from_utf8_lossy(part));
    cut(&mask_secrets(&text), characters).to_owned()
}

/// Replaces by `***`: what follows `Bearer`; words with the prefix of an API key (`gangway_`,
/// `sk-` and other issuers' own); values assigned to names like `password`; passwords in URLs.
#[must_use]
pub fn mask_secrets(text: &str) -> Cow<'_, str> {
    let mut masked = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some((start, end)) = next_word(text, at) {
        at = end;
        let Some((from, to)) = secret_near(text, start, end) else {
            continue;
        };
        masked.push_str(&text[copied..from]);
        masked.push_str(MASK);
        (copied, at) = (to, to);
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    masked.push_str(&text[copied..]);
    Cow::Owned(masked)
}

/// The next run of characters that names and keys are made of.
fn next_word(text: &str, from: usize) -> Option<(usize, usize)> {
    let start = from + text[from..].bytes().position(is_word)?;
    Some((start, start + run(&text[start..], is_word)))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// RFC 6750's token68 alphabet, which is also that of JSON Web Tokens with their dots.
fn is_token(byte: u8) -> bool {
    is_word(byte) || matches!(byte, b'.' | b'~' | b'+' | b'/' | b'=')
}

/// Length of the run of accepted bytes at the beginning; all accepted bytes are ASCII or whole
/// characters are accepted, so it ends between characters.
fn run(text: &str, accepted: fn(u8) -> bool) -> usize {
    text.bytes().take_while(|byte| accepted(*byte)).count()
}

/// The range of the secret that the word at `start..end` is or announces.
fn secret_near(text: &str, start: usize, end: usize) -> Option<(usize, usize)> {
    let word = &text[start..end];
    let after = &text[end..];
    let value = if ends_with_ignoring_case(word, "bearer") {
        let gap = run(after, |byte| byte == b' ' || byte == b'\t');
        (gap > 0).then_some(end + gap)
    } else if NAMES.iter().any(|name| ends_with_ignoring_case(word, name)) {
        assigned_value(after).map(|offset| end + offset)
    } else {
        None
    };
    let announced = value.and_then(|from| {
        let length = run(&text[from..], if after.starts_with([' ', '\t']) { is_token } else { is_value });
        (length > 0).then_some((from, from + length))
    });
    announced.or_else(|| known_key(text, start, word)).or_else(|| url_password(after, end))
}

fn ends_with_ignoring_case(word: &str, end: &str) -> bool {
    word.len() >= end.len() && word.as_bytes()[word.len() - end.len()..].eq_ignore_ascii_case(end.as_bytes())
}

/// Where the value begins after `NAME=`, `NAME="`, or `NAME": "`. A bare `NAME: ` is prose
/// ("unexpected token: }") and announces nothing.
fn assigned_value(after: &str) -> Option<usize> {
    let value = match after.strip_prefix('=') {
        Some(value) => value,
        None => after.strip_prefix(['"', '\''])?.trim_start().strip_prefix(':')?.trim_start(),
    };
    Some(after.len() - value.strip_prefix(['"', '\'']).unwrap_or(value).len())
}

fn is_value(byte: u8) -> bool {
    !(byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'&' | b',' | b';' | b'}'))
}

/// A word that begins like an API key and is long enough to be one; its prefix stays to be seen.
/// Our own keys count wherever they stand in the word: in a JSON string `\ngangway_…` is one.
fn known_key(text: &str, start: usize, word: &str) -> Option<(usize, usize)> {
    let key = word.find(OWN_PREFIX).unwrap_or_else(|| run(word, |byte| byte == b'-'));
    let rest = &text[start + key..];
    let prefix = PREFIXES.into_iter().find(|prefix| rest.starts_with(prefix))?;
    let secret = &rest[prefix.len()..];
    let length = run(secret, if prefix == "eyJ" { is_token } else { is_word });
    let from = start + key + prefix.len();
    (length >= SHORTEST_SECRET).then_some((from, from + length))
}

/// The password of `scheme://user:password@host`, where the word is the scheme.
fn url_password(after: &str, end: usize) -> Option<(usize, usize)> {
    let authority = after.strip_prefix("://")?;
    let authority = &authority[..authority
        .find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\''))
        .unwrap_or(authority.len())];
    let (user_info, _) = authority.rsplit_once('@')?;
    let (user, password) = user_info.split_once(':')?;
    let from = end + "://".len() + user.len() + 1;
    (!password.is_empty()).then_some((from, from + password.len()))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::{KnownSecrets, child_text, mask_secrets};
    use crate::telemetry::escape::tests::hostile_text;

    #[test]
    fn secrets_of_every_known_shape_go() {
        let key = format!("gangway_{}", "aB3-_".repeat(9));
        for (line, shown) in [
            ("Authorization: Bearer eyJhbGciOi.J9.x-y_z= end", "Authorization: Bearer *** end"),
            ("{\"authorization\":\"bearer SECRET1\"}", "{\"authorization\":\"bearer ***\"}"),
            (&format!("key {key}, next"), "key gangway_***, next"),
            ("OPENAI_API_KEY=sk-proj-0123456789abcdef ok", "OPENAI_API_KEY=*** ok"),
            ("using sk-ant-0123456789abcdef.", "using sk-***."),
            ("(ghp_0123456789abcdefABCD)", "(ghp_***)"),
            ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "jwt eyJ***"),
            ("DB_PASSWORD='hunter2' USER=me", "DB_PASSWORD='***' USER=me"),
            ("{\"client_secret\": \"s3\", \"id\": 1}", "{\"client_secret\": \"***\", \"id\": 1}"),
            ("GET /?access_token=SECRET4&x=1", "GET /?access_token=***&x=1"),
            ("at postgres://me:p@ss:w@db.local:5432/x", "at postgres://me:***@db.local:5432/x"),
            ("Bearer abcdefg Bearer hijklm", "Bearer *** Bearer ***"),
            (&format!(r#"{{"m":"a\n{key}"}}"#), r#"{"m":"a\ngangway_***"}"#),
            ("--key=sk-0123456789abcdef0123", "--key=sk-***"),
        ] {
            assert_eq!(mask_secrets(line), shown, "{line}");
        }
    }

    #[test]
    fn ordinary_lines_pass_untouched() {
        for line in [
            "Server v1 ready",
            "SyntaxError: Unexpected token: } in JSON at position 3",
            "task-1234567890123456789 done; disk-0 ok",
            "max_tokens=512 sk-short https://example.com:8080/a@b",
            "naïve café – 漢字",
            "",
        ] {
            assert!(matches!(mask_secrets(line), Cow::Borrowed(same) if same == line), "{line}");
        }
    }

    #[test]
    fn stderr_is_decoded_masked_and_cut() {
        assert_eq!(stderr_text(b"ok \xff\x1b[31m", 100), "ok \u{fffd}\u{1b}[31m");
        assert_eq!(stderr_text("ééééé".as_bytes(), 3), "ééé");
        assert_eq!(stderr_text(b"password=hunter2", 11), "password=**");
        let flood = vec![b'x'; 2 << 20];
        assert_eq!(stderr_text(&flood, 10), "xxxxxxxxxx");
    }

    fn stderr_text(line: &[u8], characters: usize) -> String {
        child_text(line, characters, &KnownSecrets::default())
    }

    #[test]
    fn known_values_go_whatever_their_shape() {
        let known = KnownSecrets::new(["hunter2", "hunter2 and more", "short", "first line\nsecond line\n"]);
        for (line, shown) in [
            ("cannot log in with hunter2!", "cannot log in with ***!"),
            ("\"hunter2 and more\"", "\"***\""),
            ("a short line", "a short line"),
            ("second line", "***"),
            ("xhunter2hunter2x", "x******x"),
        ] {
            assert_eq!(child_text(line.as_bytes(), 100, &known), shown);
        }
        let more = known.and(["another"]);
        assert_eq!(child_text(b"another hunter2", 100, &more), "*** ***");
        assert_eq!(format!("{more:?}"), "KnownSecrets(5)");
    }

    #[test]
    fn a_secret_split_by_the_bound_is_left_out() {
        // The first word shrinks to its mask, so that what the bound splits would come into view.
        let long = format!("password={} sk-{}", "x".repeat(4096 + 4 * 40 - 20), "0123456789abcdef");
        assert_eq!(stderr_text(long.as_bytes(), 40), "password=***");
    }

    proptest! {
        #[test]
        fn a_key_never_survives(before in hostile_text(), after in hostile_text()) {
            let secret = "Zq9".repeat(14);
            let line = format!("{before} gangway_{secret} {after} Bearer {secret}");
            let masked = mask_secrets(&line);
            prop_assert!(!masked.contains(&secret), "{masked:?}");
        }

        #[test]
        fn any_bytes_come_out_within_the_limit(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300), limit in 0usize..50) {
            let text = stderr_text(&bytes, limit);
            prop_assert!(text.chars().count() <= limit);
            prop_assert_eq!(mask_secrets(&text).contains("Bearer ."), false);
        }
    }
}
