//! Checks API keys, which a request shows as `Authorization: Bearer KEY` (RFC 6750, 2.1) and nowhere else.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde_json::{Map, Value};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::new_key::{digest, is_api_key};
use super::rejection::Rejection;
use super::scopes::Scopes;
use crate::caller::{Principal, Proof};
use crate::config::{Auth, Key};

/// A caller that was let in.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Who it is.
    pub principal: Principal,
    /// How many sessions it may have, where its key says so; `usize::MAX` is no limit.
    pub sessions: Option<usize>,
    /// How long what it showed counts.
    pub proof: Proof,
    /// What its token grants; empty for a caller that showed none.
    pub scopes: Scopes,
    /// Every claim of its token, verified.
    pub claims: Option<Arc<Map<String, Value>>>,
}

impl Admitted {
    /// A caller of whom nothing but who it is counts.
    pub(super) fn bare(principal: Principal) -> Admitted {
        Admitted { principal, sessions: None, proof: Proof::default(), scopes: Scopes::default(), claims: None }
    }
}

/// One key in the form it is looked for.
#[derive(Clone)]
struct Entry {
    hash: [u8; 32],
    principal: Principal,
    scopes: Scopes,
    key: Key,
}

/// Every key of the gateway. Requests read it, and reading the keys file again replaces it as a whole.
pub struct Keys {
    /// The keys that stand in the configuration itself. Taken only when keys are replaced.
    configured: Mutex<BTreeMap<Arc<str>, Key>>,
    /// An `RwLock` around an `Arc`: readers clone the `Arc` out and never hold the lock while they work.
    entries: RwLock<Arc<[Entry]>>,
}

impl fmt::Debug for Keys {
    /// How many there are, and none of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("count", &self.current().len()).finish_non_exhaustive()
    }
}

impl Keys {
    /// Takes over the keys of `[auth]`, those of its keys file included.
    #[must_use]
    pub fn new(auth: &Auth) -> Self {
        Self { configured: Mutex::new(configured(auth)), entries: RwLock::new(entries(&auth.keys)) }
    }

    /// Puts the keys of a keys file that was read again in the place of those it held before. Keys that stand in the
    /// configuration stay, and win over a line with their name. Gives the callers whose name has another key now.
    #[must_use]
    pub fn replace_filed(&self, filed: BTreeMap<Arc<str>, Key>) -> Vec<Principal> {
        let configured = self.configured.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = filed;
        all.extend(configured.iter().map(|(name, key)| (name.clone(), key.clone())));
        self.put(&all)
    }

    /// Puts the keys of `[auth]` in the place of all there were, those of its keys file included. Gives the callers
    /// whose name has another key now, or one that opens less.
    #[must_use]
    pub fn replace(&self, auth: &Auth) -> Vec<Principal> {
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = configured(auth);
        self.put(&auth.keys)
    }

    fn put(&self, keys: &BTreeMap<Arc<str>, Key>) -> Vec<Principal> {
        let fresh = entries(keys);
        let old = {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *entries, Arc::clone(&fresh))
        };
        let is_replaced = |old: &&Entry| {
            named(&fresh, &old.principal).is_some_and(|now| now.hash != old.hash || opens_less(&now.key, &old.key))
        };
        old.iter().filter(is_replaced).map(|entry| entry.principal.clone()).collect()
    }

    /// Whether what was opened by this caller may stay open at `now_unix`, in seconds since the Unix epoch: its key
    /// is there and has not expired. Who needed none, or came by something else, stays.
    #[must_use]
    pub fn stands(&self, principal: &Principal, now_unix: u64) -> bool {
        !matches!(principal, Principal::Key(_))
            || named(&self.current(), principal).is_some_and(|entry| !entry.key.has_expired(now_unix))
    }

    fn current(&self) -> Arc<[Entry]> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Finds the key a request shows and checks that it opens `server` at `now_unix`, in seconds since the Unix epoch.
    ///
    /// # Errors
    /// It is no key, or does not open this server now.
    pub fn verify(&self, shown: &[u8], server: &str, now_unix: u64) -> Result<Admitted, Rejection> {
        if !is_api_key(shown) {
            return Err(Rejection::Invalid);
        }
        let entries = self.current();
        let Entry { key, principal, scopes, .. } = find(&entries, &digest(shown)).ok_or(Rejection::Invalid)?;
        if key.servers.as_ref().is_some_and(|opened| !opened.iter().any(|name| name == server)) {
            return Err(Rejection::OtherServer);
        }
        if key.has_expired(now_unix) {
            return Err(Rejection::Expired);
        }
        Ok(Admitted { sessions: key.sessions, scopes: scopes.clone(), ..Admitted::bare(principal.clone()) })
    }
}

/// The keys that stand in no keys file.
fn configured(auth: &Auth) -> BTreeMap<Arc<str>, Key> {
    let keys = auth.keys.iter().filter(|(name, _)| !auth.filed.contains(*name));
    keys.map(|(name, key)| (name.clone(), key.clone())).collect()
}

/// Whether there is a server that `old` opens and `now` does not, or a scope it grants.
fn opens_less(now: &Key, old: &Key) -> bool {
    if old.scopes.iter().any(|scope| !now.scopes.contains(scope)) {
        return true;
    }
    match (&now.servers, &old.servers) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(now), Some(old)) => old.iter().any(|server| !now.contains(server)),
    }
}

fn entries(keys: &BTreeMap<Arc<str>, Key>) -> Arc<[Entry]> {
    let entry = |(name, key): (&Arc<str>, &Key)| Entry {
        hash: key.hash,
        principal: Principal::Key(name.clone()),
        scopes: key.scopes.iter().map(String::as_str).collect(),
        key: key.clone(),
    };
    keys.iter().map(entry).collect()
}

/// The entry of this caller.
fn named<'a>(entries: &'a [Entry], principal: &Principal) -> Option<&'a Entry> {
    // They come from a map, in the order of their names.
    let at = entries.binary_search_by(|entry| entry.principal.cmp(principal)).ok()?;
    entries.get(at)
}

/// The entry with this digest. Every entry is compared whole, so the time says nothing about which one it was.
fn find<'a>(entries: &'a [Entry], digest: &[u8; 32]) -> Option<&'a Entry> {
    let mut found = u32::MAX;
    for (at, entry) in (0u32..).zip(entries) {
        found.conditional_assign(&at, entry.hash.ct_eq(digest));
    }
    entries.get(found as usize)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::super::new_key::NewKey;
    use super::{Keys, Rejection};
    use crate::caller::Principal;
    use crate::config::{Auth, Key};

    fn key(new: &NewKey) -> Key {
        Key { hash: new.hash(), expires: None, servers: None, sessions: None, scopes: vec!["read".to_owned()] }
    }

    fn auth(keys: Vec<(&str, Key)>) -> Auth {
        Auth { keys: keys.into_iter().map(|(name, key)| (Arc::from(name), key)).collect(), ..Auth::default() }
    }

    fn verify(keys: &Keys, value: &str) -> Result<Principal, Rejection> {
        let shown = super::super::bearer::shown([value.as_bytes()])?;
        keys.verify(shown, "files", 1_000).map(|admitted| admitted.principal)
    }

    #[test]
    fn each_key_is_its_own_caller() {
        let made: Vec<NewKey> = (0..3).map(|_| NewKey::generate().expect("random numbers")).collect();
        let names = ["alice", "bob", "carol"];
        let keys = Keys::new(&auth(names.into_iter().zip(&made).map(|(name, new)| (name, key(new))).collect()));
        for (name, new) in names.into_iter().zip(&made) {
            let value = format!("Bearer {}", new.reveal());
            assert_eq!(verify(&keys, &value), Ok(Principal::Key(Arc::from(name))));
            assert_eq!(verify(&keys, &value.replace("Bearer", "bearer")), Ok(Principal::Key(Arc::from(name))));
        }
        let stranger = NewKey::generate().expect("random numbers");
        assert_eq!(verify(&keys, &format!("Bearer {}", stranger.reveal())), Err(Rejection::Invalid));
    }

    #[test]
    fn what_is_no_bearer_key_is_refused() {
        let new = NewKey::generate().expect("random numbers");
        let keys = Keys::new(&auth(vec![("alice", key(&new))]));
        let text = new.reveal();
        for (value, expected) in [
            (String::new(), Rejection::Missing),
            ("Bearer".to_owned(), Rejection::Missing),
            (format!("Basic {text}"), Rejection::Missing),
            (text.to_owned(), Rejection::Missing),
            (format!("Bearer{text}"), Rejection::Missing),
            ("Bearer ".to_owned(), Rejection::Invalid),
            (format!("Bearer {text}x"), Rejection::Invalid),
            (format!("Bearer {}", &text[..text.len() - 1]), Rejection::Invalid),
            (format!("Bearer {}", text.to_uppercase()), Rejection::Invalid),
            (format!("Bearer {text}, Bearer {text}"), Rejection::Invalid),
        ] {
            assert_eq!(verify(&keys, &value), Err(expected), "{value}");
        }
        assert_eq!(keys.verify(b"\xff", "files", 0).err(), Some(Rejection::Invalid));
    }

    #[test]
    fn a_key_opens_its_servers_until_its_last_day_is_over() {
        let new = NewKey::generate().expect("random numbers");
        let limited =
            Key { expires: Some(2_000), servers: Some(vec!["files".to_owned()]), sessions: Some(3), ..key(&new) };
        let keys = Keys::new(&auth(vec![("alice", limited)]));
        let verify = |server: &str, now: u64| keys.verify(new.reveal().as_bytes(), server, now);
        assert_eq!(verify("files", 1_999).map(|admitted| admitted.sessions), Ok(Some(3)));
        assert_eq!(verify("files", 2_000).err(), Some(Rejection::Expired));
        assert_eq!(verify("mail", 1_999).err(), Some(Rejection::OtherServer));
    }

    #[test]
    fn what_is_open_stands_as_long_as_its_key() {
        let [ends, stays] = [0, 1].map(|_| NewKey::generate().expect("random numbers"));
        let keys = Keys::new(&auth(vec![("ends", Key { expires: Some(2_000), ..key(&ends) }), ("stays", key(&stays))]));
        let stands = |name: &str, now| keys.stands(&Principal::Key(name.into()), now);
        assert!(stands("ends", 1_999) && !stands("ends", 2_000));
        assert!(stands("stays", u64::MAX) && !stands("nobody", 0));
        assert!(keys.stands(&Principal::Anonymous, u64::MAX));
    }

    #[test]
    fn filed_keys_are_replaced_and_configured_ones_stay() {
        let [configured, old, fresh] = [0, 1, 2].map(|_| NewKey::generate().expect("random numbers"));
        let mut start = auth(vec![("admin", key(&configured)), ("old", key(&old))]);
        start.filed.insert(Arc::from("old"));
        let keys = Keys::new(&start);
        let opens = |new: &NewKey| verify(&keys, &format!("Bearer {}", new.reveal())).is_ok();
        assert_eq!([&configured, &old, &fresh].map(opens), [true, true, false]);
        let replaced = keys.replace_filed(BTreeMap::from([(Arc::from("fresh"), key(&fresh))]));
        assert_eq!([&configured, &old, &fresh].map(opens), [true, false, true]);
        assert!(replaced.is_empty(), "{replaced:?}");
        let filed = ["admin", "fresh"].map(|name| (Arc::from(name), key(&old)));
        let replaced = keys.replace_filed(BTreeMap::from(filed));
        assert_eq!(replaced, [Principal::Key("fresh".into())], "the configured one is the same");
        assert_eq!(format!("{keys:?}"), "Keys { count: 2, .. }");
    }

    #[test]
    fn all_keys_are_replaced_and_who_opens_less_is_told() {
        let [one, two] = [0, 1].map(|_| NewKey::generate().expect("random numbers"));
        let opening =
            |names: &[&str]| Key { servers: Some(names.iter().map(ToString::to_string).collect()), ..key(&one) };
        let keys = Keys::new(&auth(vec![("a", key(&one)), ("b", key(&two))]));
        let replace = |found: Key| keys.replace(&auth(vec![("a", found)]));
        assert!(replace(key(&one)).is_empty(), "nothing changed for it");
        assert_eq!(verify(&keys, &format!("Bearer {}", two.reveal())), Err(Rejection::Invalid));
        assert_eq!(replace(opening(&["files", "mail"])), [Principal::Key("a".into())]);
        assert_eq!(replace(opening(&["files"])), [Principal::Key("a".into())]);
        assert!(replace(opening(&["files", "mail"])).is_empty() && replace(key(&one)).is_empty(), "it opens more");
        let granting = |scopes: &[&str]| Key { scopes: scopes.iter().map(ToString::to_string).collect(), ..key(&one) };
        assert!(replace(granting(&["read", "write"])).is_empty(), "it grants more");
        assert_eq!(replace(granting(&["write"])), [Principal::Key("a".into())]);
        assert!(replace(key(&one)) == [Principal::Key("a".into())]);
        assert_eq!(replace(key(&two)), [Principal::Key("a".into())]);
        assert!(keys.replace_filed(BTreeMap::new()).is_empty());
        assert!(verify(&keys, &format!("Bearer {}", two.reveal())).is_ok(), "it stands in the configuration now");
    }
}
