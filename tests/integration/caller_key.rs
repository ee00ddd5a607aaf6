//! API keys, for tests that need callers who can be told apart.

use sha2::{Digest, Sha256};

/// A caller's key.
#[derive(Clone, Debug)]
pub struct Key {
    name: String,
    /// `Authorization` as the caller sends it.
    pub authorization: String,
    hash: String,
}

impl Key {
    /// A key for the caller of this name; the same name is the same key.
    pub fn of(name: &str) -> Self {
        // 43 characters of the alphabet, the last of which ends the 256 bits.
        let key = format!("gangway_{}A", name.repeat(42).get(..42).expect("a name is ASCII"));
        let hash = Sha256::digest(&key).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { name: name.to_owned(), authorization: format!("Bearer {key}"), hash }
    }

    /// The field to send, as the session of the harness takes it.
    pub fn header(&self) -> (&str, &str) {
        ("Authorization", &self.authorization)
    }

    /// Its line in a keys file.
    pub fn line(&self) -> String {
        format!("{} sha256:{}\n", self.name, self.hash)
    }

    /// Its table; `more` are further lines, such as `sessions = 2`.
    pub fn toml(&self, more: &str) -> String {
        format!("[auth.keys.{}]\nhash = \"sha256:{}\"\n{more}\n", self.name, self.hash)
    }
}

/// `[auth]` that admits these keys, and nobody else.
pub fn only(keys: &[&Key]) -> String {
    let tables: String = keys.iter().map(|key| key.toml("")).collect();
    format!("[auth]\nmethods = [\"api_key\"]\n{tables}")
}
