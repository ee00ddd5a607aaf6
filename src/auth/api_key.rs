//! API keys: `gangway_` and 43 base64url characters, shown as `Authorization: Bearer KEY` (RFC 6750, 2.1).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rand::TryRng;
use rand::rngs::SysRng;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::caller::Principal;
use crate::config::{Auth, Key};
use crate::telemetry::label::AuthResult;

/// What every key starts with, so that scanners and people recognise one.
const PREFIX: &str = "gangway_";

/// Characters after the prefix: 32 bytes in base64url without padding.
const BODY: usize = 43;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A caller that was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Who it is.
    pub principal: Principal,
    /// How many sessions it may have, where its key says so; `usize::MAX` is no limit.
    pub sessions: Option<usize>,
}

/// Why a caller was not let in. What it is told must not tell keys apart: everything but
/// [`Rejection::Repeated`] is a 401 with the same challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// No `Authorization`, or one of another scheme.
    Missing,
    /// No key of this gateway, or one that is malformed.
    Invalid,
    /// A key whose last day is over.
    Expired,
    /// A key that opens other servers.
    OtherServer,
    /// Several `Authorization` fields, of which any could be meant: a 400.
    Repeated,
}

impl Rejection {
    /// How it counts in metrics and logs.
    #[must_use]
    pub fn label(self) -> AuthResult {
        match self {
            Rejection::Missing => AuthResult::Missing,
            Rejection::Invalid | Rejection::Repeated => AuthResult::Invalid,
            Rejection::Expired => AuthResult::Expired,
            Rejection::OtherServer => AuthResult::Forbidden,
        }
    }

    /// Whether the request is malformed (400) rather than unauthenticated (401).
    #[must_use]
    pub fn is_malformed(self) -> bool {
        self == Rejection::Repeated
    }
}

impl fmt::Display for Rejection {
    /// For the log; the client is not told which it was.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rejection::Missing => "no API key was shown",
            Rejection::Invalid => "the API key is unknown",
            Rejection::Expired => "the API key has expired",
            Rejection::OtherServer => "the API key does not open this server",
            Rejection::Repeated => "there are several Authorization fields",
        })
    }
}

/// One key in the form it is looked for.
#[derive(Clone)]
struct Entry {
    hash: [u8; 32],
    principal: Principal,
    key: Key,
}

/// Every key of the gateway. Requests read it, and reading the keys file again replaces it as a whole.
pub struct Keys {
    /// The keys that stand in the configuration itself.
    configured: BTreeMap<Arc<str>, Key>,
    /// An `RwLock` around an `Arc`: readers clone the `Arc` out and never hold the lock while they work.
    entries: RwLock<Arc<[Entry]>>,
}

impl fmt::Debug for Keys {
    /// How many there are, and none of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("count", &self.current().len())
            .finish_non_exhaustive()
    }
}

impl Keys {
    /// Takes over the keys of `[auth]`, those of its keys file included.
    #[must_use]
    pub fn new(auth: &Auth) -> Self {
        let configured = auth
            .keys
            .iter()
            .filter(|(name, _)| !auth.filed.contains(*name));
        Self {
            configured: configured
                .map(|(name, key)| (name.clone(), key.clone()))
                .collect(),
            entries: RwLock::new(entries(&auth.keys)),
        }
    }

    /// Puts the keys of a keys file that was read again in the place of those it held before. Keys that stand in the
    /// configuration stay, and win over a line with their name.
    pub fn replace_filed(&self, filed: BTreeMap<Arc<str>, Key>) {
        let mut all = filed;
        all.extend(
            self.configured
                .iter()
                .map(|(name, key)| (name.clone(), key.clone())),
        );
        let fresh = entries(&all);
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    fn current(&self) -> Arc<[Entry]> {
        self.entries
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Finds the key a request shows and checks that it opens `server` at `now_unix`, in seconds since the Unix epoch.
    ///
    /// # Errors
    /// No key is shown, several could be meant, or the one shown does not open this server now.
    pub fn verify<'a>(
        &self,
        authorization: impl IntoIterator<Item = &'a [u8]>,
        server: &str,
        now_unix: u64,
    ) -> Result<Admitted, Rejection> {
        let mut values = authorization.into_iter();
        let value = values.next().ok_or(Rejection::Missing)?;
        if values.next().is_some() {
            return Err(Rejection::Repeated);
        }
        let shown = bearer(value).ok_or(Rejection::Missing)?;
        if !is_api_key(shown) {
            return Err(Rejection::Invalid);
        }
        let entries = self.current();
        let Entry { key, principal, .. } =
            find(&entries, &digest(shown)).ok_or(Rejection::Invalid)?;
        if key
            .servers
            .as_ref()
            .is_some_and(|opened| !opened.iter().any(|name| name == server))
        {
            return Err(Rejection::OtherServer);
        }
        if key.expires.is_some_and(|end| now_unix >= end) {
            return Err(Rejection::Expired);
        }
        Ok(Admitted {
            principal: principal.clone(),
            sessions: key.sessions,
        })
    }
}

fn entries(keys: &BTreeMap<Arc<str>, Key>) -> Arc<[Entry]> {
    let entry = |(name, key): (&Arc<str>, &Key)| Entry {
        hash: key.hash,
        principal: Principal::Key(name.clone()),
        key: key.clone(),
    };
    keys.iter().map(entry).collect()
}

/// The entry with this digest. Every entry is compared whole, so the time says nothing about which one it was.
fn find<'a>(entries: &'a [Entry], digest: &[u8; 32]) -> Option<&'a Entry> {
    let mut found = u32::MAX;
    for (at, entry) in (0u32..).zip(entries) {
        found.conditional_assign(&at, entry.hash.ct_eq(digest));
    }
    entries.get(found as usize)
}

/// The token of a `Bearer` credential; the scheme's case does not count (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked("Bearer".len())?;
    let token = rest.strip_prefix(b" ")?.trim_ascii();
    scheme.eq_ignore_ascii_case(b"Bearer").then_some(token)
}

/// Whether this has the form of a key: `gangway_` and 43 base64url characters.
#[must_use]
pub fn is_api_key(text: &[u8]) -> bool {
    let body = text.strip_prefix(PREFIX.as_bytes());
    body.is_some_and(|body| body.len() == BODY && body.iter().all(|c| ALPHABET.contains(c)))
}

/// SHA-256 of a whole key.
pub(super) fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// A key that was just made. Its text exists here and wherever it is shown, and is stored nowhere.
pub struct NewKey {
    text: String,
}

impl NewKey {
    /// Makes a key from 32 bytes of the system's random numbers.
    ///
    /// # Errors
    /// The system has no random numbers to give.
    pub fn generate() -> std::io::Result<Self> {
        let mut bytes = [0; 32];
        SysRng
            .try_fill_bytes(&mut bytes)
            .map_err(std::io::Error::other)?;
        Ok(Self::from_bytes(&bytes))
    }

    fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut text = String::with_capacity(PREFIX.len() + BODY);
        text.push_str(PREFIX);
        for chunk in bytes.chunks(3) {
            let group = chunk
                .iter()
                .fold(0u32, |group, byte| group << 8 | u32::from(*byte))
                << (8 * (3 - chunk.len()));
            for place in 0..=chunk.len() {
                let index = group >> (18 - 6 * place) & 63;
                text.push(char::from(ALPHABET[index as usize]));
            }
        }
        Self { text }
    }

    /// Takes over a key that exists already; `None` if it has not the form of one.
    #[must_use]
    pub fn from_text(text: String) -> Option<Self> {
        is_api_key(text.as_bytes()).then_some(Self { text })
    }

    /// The key itself, to be shown once.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// SHA-256 of the key, which is all that is stored.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        digest(self.text.as_bytes())
    }

    /// The hash as a configuration writes it: `sha256:` and 64 hexadecimal digits.
    #[must_use]
    pub fn hash_text(&self) -> String {
        let digits: String = self
            .hash()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("sha256:{digits}")
    }
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::{Keys, NewKey, Rejection, is_api_key};
    use crate::caller::Principal;
    use crate::config::{Auth, Key};

    fn key(new: &NewKey) -> Key {
        Key {
            hash: new.hash(),
            expires: None,
            servers: None,
            sessions: None,
        }
    }

    fn auth(keys: Vec<(&str, Key)>) -> Auth {
        Auth {
            keys: keys
                .into_iter()
                .map(|(name, key)| (Arc::from(name), key))
                .collect(),
            ..Auth::default()
        }
    }

    fn verify(keys: &Keys, value: &str) -> Result<Principal, Rejection> {
        keys.verify([value.as_bytes()], "files", 1_000)
            .map(|admitted| admitted.principal)
    }

    #[test]
    fn keys_have_their_form_and_are_all_different() {
        let zero = NewKey::from_bytes(&[0; 32]);
        assert_eq!(zero.reveal(), format!("gangway_{}", "A".repeat(43)));
        // Checked against RFC 4648, section 10, at the front and by the two bits left at the end.
        let mut bytes = [0xff; 32];
        bytes[..6].copy_from_slice(b"foobar");
        assert_eq!(
            NewKey::from_bytes(&bytes).reveal(),
            format!("gangway_Zm9vYmFy{}8", "_".repeat(34))
        );
        let made: Vec<NewKey> = (0..50)
            .map(|_| NewKey::generate().expect("random numbers"))
            .collect();
        let texts: std::collections::HashSet<&str> = made.iter().map(NewKey::reveal).collect();
        assert_eq!(texts.len(), made.len());
        assert!(texts.iter().all(|text| is_api_key(text.as_bytes())));
        assert!(!format!("{:?}", made[0]).contains(&made[0].reveal()[8..]));
    }

    #[test]
    fn the_hash_is_sha_256_of_the_whole_key() {
        let zero = NewKey::from_bytes(&[0; 32]);
        let expected = "sha256:9b17f7836afe175c52bb00bcba7f1b2bdd32f6e78c062270868a5e4ed1eadb7c";
        assert_eq!(zero.hash_text(), expected);
    }

    #[test]
    fn each_key_is_its_own_caller() {
        let made: Vec<NewKey> = (0..3)
            .map(|_| NewKey::generate().expect("random numbers"))
            .collect();
        let names = ["alice", "bob", "carol"];
        let keys = Keys::new(&auth(
            names
                .into_iter()
                .zip(&made)
                .map(|(name, new)| (name, key(new)))
                .collect(),
        ));
        for (name, new) in names.into_iter().zip(&made) {
            let value = format!("Bearer {}", new.reveal());
            assert_eq!(verify(&keys, &value), Ok(Principal::Key(Arc::from(name))));
            assert_eq!(
                verify(&keys, &value.replace("Bearer", "bearer")),
                Ok(Principal::Key(Arc::from(name)))
            );
        }
        let stranger = NewKey::generate().expect("random numbers");
        assert_eq!(
            verify(&keys, &format!("Bearer {}", stranger.reveal())),
            Err(Rejection::Invalid)
        );
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
            (
                format!("Bearer {}", &text[..text.len() - 1]),
                Rejection::Invalid,
            ),
            (
                format!("Bearer {}", text.to_uppercase()),
                Rejection::Invalid,
            ),
            (format!("Bearer {text}, Bearer {text}"), Rejection::Invalid),
        ] {
            assert_eq!(verify(&keys, &value), Err(expected), "{value}");
        }
        assert_eq!(keys.verify([], "files", 0), Err(Rejection::Missing));
        let value = format!("Bearer {text}");
        assert_eq!(
            keys.verify([value.as_bytes(), value.as_bytes()], "files", 0),
            Err(Rejection::Repeated)
        );
        assert_eq!(
            keys.verify([b"Bearer \xff".as_slice()], "files", 0),
            Err(Rejection::Invalid)
        );
    }

    #[test]
    fn a_key_opens_its_servers_until_its_last_day_is_over() {
        let new = NewKey::generate().expect("random numbers");
        let limited = Key {
            expires: Some(2_000),
            servers: Some(vec!["files".to_owned()]),
            sessions: Some(3),
            ..key(&new)
        };
        let keys = Keys::new(&auth(vec![("alice", limited)]));
        let value = format!("Bearer {}", new.reveal());
        let verify = |server: &str, now: u64| keys.verify([value.as_bytes()], server, now);
        assert_eq!(
            verify("files", 1_999).map(|admitted| admitted.sessions),
            Ok(Some(3))
        );
        assert_eq!(verify("files", 2_000), Err(Rejection::Expired));
        assert_eq!(verify("mail", 1_999), Err(Rejection::OtherServer));
    }

    #[test]
    fn filed_keys_are_replaced_and_configured_ones_stay() {
        let [configured, old, fresh] =
            [0, 1, 2].map(|_| NewKey::generate().expect("random numbers"));
        let mut start = auth(vec![("admin", key(&configured)), ("old", key(&old))]);
        start.filed.insert(Arc::from("old"));
        let keys = Keys::new(&start);
        let opens = |new: &NewKey| verify(&keys, &format!("Bearer {}", new.reveal())).is_ok();
        assert_eq!([&configured, &old, &fresh].map(opens), [true, true, false]);
        keys.replace_filed(BTreeMap::from([(Arc::from("fresh"), key(&fresh))]));
        assert_eq!([&configured, &old, &fresh].map(opens), [true, false, true]);
        assert_eq!(format!("{keys:?}"), "Keys { count: 2, .. }");
    }
}
