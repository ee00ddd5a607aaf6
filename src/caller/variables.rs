//! What a caller brings for a child of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

/// Variables of a caller's own child: the operator chose the names, the caller brought the values.
///
/// Cheap to clone. The values are credentials, mostly: nothing shows them, and a child gets them with its start only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OwnVariables(Option<Arc<BTreeMap<String, String>>>);

impl OwnVariables {
    /// These variables.
    #[must_use]
    pub fn new(variables: BTreeMap<String, String>) -> OwnVariables {
        OwnVariables((!variables.is_empty()).then(|| Arc::new(variables)))
    }

    /// Whether the caller brought none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Each with its value, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|variables| variables.iter()).map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// What tells two sets apart without holding either: SHA-256 over names and values, each behind its length. `None`
    /// where there is nothing to tell apart.
    #[must_use]
    pub fn digest(&self) -> Option<[u8; 32]> {
        let variables = self.0.as_ref()?;
        let mut hash = Sha256::new();
        for part in variables.iter().flat_map(|(name, value)| [name, value]) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Some(hash.finalize().into())
    }
}

impl fmt::Debug for OwnVariables {
    /// The names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::OwnVariables;

    fn of(pairs: &[(&str, &str)]) -> OwnVariables {
        OwnVariables::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn sets_are_told_apart_and_values_not_shown() {
        assert_eq!(of(&[]).digest(), None);
        let one = of(&[("A", "x"), ("B", "y")]);
        assert_eq!(one.digest(), of(&[("B", "y"), ("A", "x")]).digest());
        for other in [&[("A", "xB"), ("By", "")][..], &[("A", "x")], &[("A", "y"), ("B", "x")], &[("A", "xBy")]] {
            assert_ne!(one.digest(), of(other).digest(), "{other:?}");
        }
        assert_eq!(format!("{:?}", of(&[("TOKEN", "hunter2")])), "{\"TOKEN\"}");
    }
}
