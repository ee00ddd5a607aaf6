//! How many of something each caller has, and that it is given back.

use std::sync::Arc;

use dashmap::DashMap;

use crate::caller::{Account, Principal};

/// The counts of one kind of thing.
#[derive(Debug, Default)]
pub(super) struct Places(DashMap<Account, usize>);

/// One of them, the caller's until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    account: Account,
}

impl Places {
    /// Gives this caller one more, unless it has `most` already. Nobody asks for callers who cannot be told apart.
    pub(super) fn take(self: &Arc<Self>, principal: &Principal, most: usize) -> Option<Place> {
        if most == 0 {
            return None;
        }
        let account = principal.account();
        let mut count = self.0.entry(account.clone()).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        drop(count);
        Some(Place { places: Arc::clone(self), account })
    }

    /// Whether any of those who have some is such a caller; which client acts for it does not count.
    pub(super) fn has(&self, is_such: impl Fn(&Principal) -> bool) -> bool {
        self.0.iter().any(|entry| is_such(entry.key().principal()))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.0.remove_if_mut(&self.account, |_, count| {
            *count -= 1;
            *count == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Places;
    use crate::caller::{Principal, TokenHolder};

    #[test]
    fn a_user_has_the_same_places_whichever_client_acts() {
        let of = |issuer: &str, subject: &str, client: Option<&str>| {
            let client = client.map(Arc::from);
            Principal::Token(Arc::new(TokenHolder { issuer: issuer.into(), subject: subject.into(), client }))
        };
        let places: Arc<Places> = Arc::default();
        let first = places.take(&of("i", "a", Some("x")), 2).expect("none is taken");
        let second = places.take(&of("i", "a", None), 2).expect("one is left");
        assert!(places.take(&of("i", "a", Some("y")), 2).is_none());
        let others = [of("i", "b", Some("x")), of("j", "a", Some("x")), Principal::Key("a".into())];
        let others: Vec<_> = others.iter().map(|other| places.take(other, 1).expect("its own")).collect();
        drop(first);
        let third = places.take(&of("i", "a", Some("y")), 2).expect("one is free again");
        assert!(places.has(|principal| matches!(principal, Principal::Token(holder) if &*holder.subject == "a")));
        assert!(places.take(&of("i", "c", None), 0).is_none());
        drop((second, third, others));
        assert!(places.is_empty(), "who has none leaves nothing");
    }
}
