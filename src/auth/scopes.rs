//! What a token grants (RFC 6749, 3.3).

use std::sync::Arc;

/// A set of scope tokens, cheap to hand on: sorted, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scopes(Arc<[Box<str>]>);

impl Scopes {
    /// The scope tokens of a list that is separated by spaces.
    #[must_use]
    pub fn listed(list: &str) -> Scopes {
        list.split_ascii_whitespace().collect()
    }

    /// Whether this one is among them.
    #[must_use]
    pub fn contains(&self, scope: &str) -> bool {
        self.0.binary_search_by(|one| (**one).cmp(scope)).is_ok()
    }

    /// Each of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|scope| &**scope)
    }
}

impl<'a> FromIterator<&'a str> for Scopes {
    fn from_iter<I: IntoIterator<Item = &'a str>>(scopes: I) -> Scopes {
        let mut scopes: Vec<Box<str>> = scopes.into_iter().map(Box::from).collect();
        scopes.sort_unstable();
        scopes.dedup();
        Scopes(scopes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::Scopes;

    #[test]
    fn a_list_is_cut_at_spaces_only() {
        let scopes = Scopes::listed("read  files:write read");
        assert_eq!(scopes.iter().collect::<Vec<_>>(), ["files:write", "read"]);
        assert!(scopes.contains("read") && !scopes.contains("files"));
    }
}
