//! Text from outside, made harmless for terminals and log readers.
//!
//! Escaped are: C0 and C1 controls and DEL (so no ANSI or OSC sequence survives in either its
//! 7-bit or its 8-bit form), the line separators U+2028 and U+2029, and the characters that
//! reorder text for the eye (Unicode Standard Annex 9, Bidi_Control).

use std::fmt::{self, Write as _};

/// Whether a character must not reach a log or a terminal as it is.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether `text` holds a character that [`push_escaped`] would not pass.
pub(super) fn has_control(text: &str) -> bool {
    text.chars().any(is_unsafe)
}

/// At most the first `characters` of `text`.
pub(super) fn cut(text: &str, characters: usize) -> &str {
    if text.len() <= characters {
        return text;
    }
    text.char_indices().nth(characters).map_or(text, |(end, _)| &text[..end])
}

/// Shows text on a terminal with every unsafe character as `\uXXXX`. Quotes and backslashes stay,
/// so this is for eyes and cannot be read back; the log escapes by itself and must not be handed
/// text that went through here.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if is_unsafe(character) {
                write!(f, "\\u{:04x}", u32::from(character))?;
            } else {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

/// What a byte of valid UTF-8 may be the beginning of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Passes.
    Plain,
    /// An ASCII character to escape.
    Escape,
    /// The first byte of a sequence that may be an unsafe character.
    Lead,
}

const CLASSES: [Class; 256] = classes();

const fn classes() -> [Class; 256] {
    let mut table = [Class::Plain; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = Class::Escape;
        byte += 1;
    }
    table[0x7f] = Class::Escape;
    table[b'"' as usize] = Class::Escape;
    table[b'\\' as usize] = Class::Escape;
    table[0xc2] = Class::Lead;
    table[0xd8] = Class::Lead;
    table[0xe2] = Class::Lead;
    table
}

/// Appends `text` as the inside of a JSON string (RFC 8259 section 7), unsafe characters escaped.
pub(super) fn push_escaped(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let mut copied = 0;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let (length, code) = match CLASSES[usize::from(byte)] {
            Class::Plain => (1, None),
            Class::Escape => (1, Some(u16::from(byte))),
            Class::Lead => unsafe_sequence(&bytes[at..]),
        };
        if let Some(code) = code {
            out.extend_from_slice(&bytes[copied..at]);
            push_escape(out, code);
            copied = at + length;
        }
        at += length;
    }
    out.extend_from_slice(&bytes[copied..]);
}

/// The length and code point of the unsafe character that begins here, if one does. The bytes
/// after another lead byte are continuations and therefore plain.
fn unsafe_sequence(bytes: &[u8]) -> (usize, Option<u16>) {
    match *bytes {
        [0xc2, last @ 0x80..=0x9f, ..] => (2, Some(u16::from(last))),
        [0xd8, 0x9c, ..] => (2, Some(0x061c)),
        [0xe2, 0x80, last @ (0x8e | 0x8f | 0xa8..=0xae), ..] => (3, Some(0x2000 | u16::from(last & 0x3f))),
        [0xe2, 0x81, last @ 0xa6..=0xa9, ..] => (3, Some(0x2040 | u16::from(last & 0x3f))),
        _ => (1, None),
    }
}

fn push_escape(out: &mut Vec<u8>, code: u16) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let short = match code {
        0x22 => b'"',
        0x5c => b'\\',
        0x0a => b'n',
        0x0d => b'r',
        0x09 => b't',
        _ => {
            let digit = |shift: u16| HEX[usize::from(code >> shift & 0xf)];
            out.extend_from_slice(&[b'\\', b'u', digit(12), digit(8), digit(4), digit(0)]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::{Strategy, any, prop};
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::{Escaped, cut, has_control, push_escaped};

    /// Random text in which the characters that matter are common.
    pub(in crate::telemetry) fn hostile_text() -> impl Strategy<Value = String> {
        let nasty = prop::sample::select(
            "\0\u{7}\u{8}\t\n\r\u{1b}\u{7f}\u{80}\u{9b}\u{9f}\u{a0}\u{61b}\u{61c}\u{61d}\u{200d}\u{200e}\u{200f}\u{2010}\
             \u{2027}\u{2028}\u{2029}\u{202a}\u{202e}\u{202f}\u{2065}\u{2066}\u{2069}\u{206a}\"\\/é漢😀"
                .chars()
                .collect::<Vec<char>>(),
        );
        prop::collection::vec(proptest::prop_oneof![nasty, any::<char>()], 0..80).prop_map(String::from_iter)
    }

    fn escaped(text: &str) -> String {
        let mut out = Vec::new();
        push_escaped(&mut out, text);
        String::from_utf8(out).expect("escaping keeps UTF-8")
    }

    proptest! {
        #[test]
        fn nothing_unsafe_passes_and_nothing_is_lost(text in hostile_text()) {
            let escaped = escaped(&text);
            prop_assert!(!has_control(&escaped), "{escaped:?}");
            let back: String = serde_json::from_str(&format!("\"{escaped}\"")).expect("a JSON string");
            prop_assert_eq!(back, text);
        }

        #[test]
        fn a_terminal_sees_nothing_unsafe(text in hostile_text()) {
            prop_assert!(!has_control(&Escaped(&text).to_string()));
        }

        #[test]
        fn a_cut_is_a_prefix_of_whole_characters(text in hostile_text(), limit in 0usize..100) {
            let short = cut(&text, limit);
            prop_assert!(text.starts_with(short));
            prop_assert_eq!(short.chars().count(), text.chars().count().min(limit));
        }
    }

    #[test]
    fn every_character_is_judged_the_same_by_both_scans() {
        for character in '\0'..=char::MAX {
            let mut buffer = [0; 4];
            let text: &str = character.encode_utf8(&mut buffer);
            let changes = escaped(text) != text;
            assert_eq!(changes, has_control(text) || matches!(character, '"' | '\\'), "{character:?}");
        }
    }

    #[test]
    fn the_forms_are_those_of_json() {
        assert_eq!(escaped("a\n\"\\\u{1b}[0m\u{9b}\u{202e}\u{2066}é"), "a\\n\\\"\\\\\\u001b[0m\\u009b\\u202e\\u2066é");
    }

    #[test]
    fn what_the_specification_names_is_unsafe() {
        for text in [
            "\u{1b}", "\u{7f}", "\u{85}", "\u{9b}", "\u{2028}", "\u{2029}", "\u{202a}", "\u{202e}", "\u{2066}",
            "\u{2069}", "\u{200f}", "\u{61c}",
        ] {
            assert!(has_control(text), "{text:?}");
        }
        assert!(!has_control("plain text, ünïcode, 漢字, 😀, \"quotes\" and \\"));
    }
}
