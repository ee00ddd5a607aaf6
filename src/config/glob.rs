//! Patterns for the names of tools: `*` stands for any text, none included, `?` for one character, all else for itself.

use std::fmt;

use super::convert::Refused;

/// Longest pattern, in bytes.
const LONGEST: usize = 256;

/// What other programs give a meaning that is none here.
const FOREIGN: [char; 5] = ['[', ']', '{', '}', '\\'];

/// One pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Box<str>);

impl Glob {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Glob, Refused> {
        if text.is_empty() || text.len() > LONGEST || text.chars().any(char::is_control) {
            return Err(Refused::new("has a pattern no tool's name can match", "write a name, such as \"delete_*\""));
        }
        if text.contains(FOREIGN) {
            let remedy = "only * and ? have a meaning: write one pattern for each alternative";
            return Err(Refused::new("has a pattern with brackets, braces or a backslash", remedy));
        }
        Ok(Glob(text.into()))
    }

    /// Whether `name` is one of those it stands for. Takes time up to the product of both lengths.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (mut pattern, mut rest) = (self.0.chars(), name.chars());
        // Behind the last star: what is left of the pattern, and of the name from where the star ends for now.
        let mut retry = None;
        loop {
            let here = (pattern.clone(), rest.clone());
            match (pattern.next(), rest.next()) {
                (None, None) => return true,
                (Some('*'), _) => {
                    rest = here.1;
                    retry = Some((pattern.clone(), rest.clone()));
                    continue;
                }
                (Some(wanted), Some(found)) if wanted == '?' || wanted == found => continue,
                _ => {}
            }
            // The star takes one character more.
            let Some((behind, from)) = &mut retry else { return false };
            if from.next().is_none() {
                return false;
            }
            (pattern, rest) = (behind.clone(), from.clone());
        }
    }
}

impl fmt::Display for Glob {
    /// As it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::proptest;

    use super::Glob;

    fn matches(pattern: &str, name: &str) -> bool {
        Glob::parse(pattern).expect(pattern).matches(name)
    }

    #[test]
    fn stars_and_question_marks_stand_for_others() {
        for (pattern, name) in [
            ("echo", "echo"),
            ("*", ""),
            ("*", "anything at all"),
            ("delete_*", "delete_"),
            ("delete_*", "delete_file"),
            ("*_file", "delete_file_file"),
            ("a*b*c", "aXbXbXc"),
            ("a**c", "ac"),
            ("?et", "get"),
            ("??", "éß"),
            ("*.*", "files.read"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("echo", "Echo"),
            ("echo", "echo2"),
            ("echo", "an echo"),
            ("delete_*", "delete"),
            ("delete_*", "undelete_file"),
            ("*_file", "delete_files"),
            ("a*b*c", "aXcXb"),
            ("?", ""),
            ("?", "ab"),
            ("a.b", "axb"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn what_has_a_meaning_elsewhere_is_refused() {
        for wrong in ["", "[ab]", "{a,b}", "a\\*", "a\nb", &"a".repeat(257)] {
            assert!(Glob::parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        /// As a matcher that tries everything says.
        #[test]
        fn every_name_is_judged_as_by_trying_everything(pattern in "[ab*?]{1,8}", name in "[ab]{0,10}") {
            fn all(pattern: &[u8], name: &[u8]) -> bool {
                match (pattern.split_first(), name.split_first()) {
                    (None, None) => true,
                    (Some((b'*', rest)), _) => (0..=name.len()).any(|taken| all(rest, &name[taken..])),
                    (Some((b'?', rest)), Some((_, others))) => all(rest, others),
                    (Some((wanted, rest)), Some((found, others))) => wanted == found && all(rest, others),
                    _ => false,
                }
            }
            assert_eq!(matches(&pattern, &name), all(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
