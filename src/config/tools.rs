//! `tools`: which tools of a server there are for clients.

use super::glob::Glob;
use super::section::Section;

/// Longest name of a tool that can be admitted, in bytes; the revisions recommend 128 at most.
const LONGEST_NAME: usize = 1024;

/// Which tools there are for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tools {
    /// These only; empty is all.
    pub allow: Vec<Glob>,
    /// Of those, not these.
    pub deny: Vec<Glob>,
}

impl Tools {
    /// Whether any is hidden.
    #[must_use]
    pub fn hides_some(&self) -> bool {
        !self.allow.is_empty() || !self.deny.is_empty()
    }

    /// Whether the tool of this name is there for clients.
    #[must_use]
    pub fn admits(&self, name: &str) -> bool {
        let is_among = |globs: &[Glob]| globs.iter().any(|glob| glob.matches(name));
        !self.hides_some()
            || (name.len() <= LONGEST_NAME && (self.allow.is_empty() || is_among(&self.allow)) && !is_among(&self.deny))
    }
}

/// Reads `tools`.
pub(super) fn read(mut section: Section<'_>) -> Tools {
    Tools { allow: section.list("allow", Glob::parse), deny: section.list("deny", Glob::parse) }
}

#[cfg(test)]
mod tests {
    use super::{Glob, Tools};

    fn tools(allow: &[&str], deny: &[&str]) -> Tools {
        let globs = |patterns: &[&str]| patterns.iter().map(|text| Glob::parse(text).expect(text)).collect();
        Tools { allow: globs(allow), deny: globs(deny) }
    }

    #[test]
    fn deny_wins_over_allow_and_nothing_said_hides_nothing() {
        assert!(tools(&[], &[]).admits("a") && !tools(&[], &[]).hides_some());
        assert!(tools(&["read_*", "list"], &[]).admits("read_file"));
        assert!(!tools(&["read_*"], &[]).admits("write_file"));
        assert!(tools(&[], &["delete_*"]).admits("read_file"));
        assert!(!tools(&[], &["delete_*"]).admits("delete_file"));
        assert!(!tools(&["*"], &["delete_*"]).admits("delete_file"));
        assert!(!tools(&[], &["x"]).admits(&"a".repeat(1025)), "or a name could keep a processor busy");
    }
}
