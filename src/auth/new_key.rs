//! What an API key is made of: `gangway_` and 43 base64url characters.

use std::fmt;

use rand::TryRng;
use rand::rngs::SysRng;
use sha2::{Digest, Sha256};

/// What every key starts with, so that scanners and people recognise one.
pub(super) const PREFIX: &str = "gangway_";

/// Characters after the prefix: 32 bytes in base64url without padding.
const BODY: usize = 43;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

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
        SysRng.try_fill_bytes(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Self::from_bytes(&bytes))
    }

    fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut text = String::with_capacity(PREFIX.len() + BODY);
        text.push_str(PREFIX);
        for chunk in bytes.chunks(3) {
            let group = chunk.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
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
        let digits: String = self.hash().iter().map(|byte| format!("{byte:02x}")).collect();
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
    use super::{NewKey, is_api_key};

    #[test]
    fn keys_have_their_form_and_are_all_different() {
        let zero = NewKey::from_bytes(&[0; 32]);
        assert_eq!(zero.reveal(), format!("gangway_{}", "A".repeat(43)));
        // Checked against RFC 4648, section 10, at the front and by the two bits left at the end.
        let mut bytes = [0xff; 32];
        bytes[..6].copy_from_slice(b"foobar");
        assert_eq!(NewKey::from_bytes(&bytes).reveal(), format!("gangway_Zm9vYmFy{}8", "_".repeat(34)));
        let made: Vec<NewKey> = (0..50).map(|_| NewKey::generate().expect("random numbers")).collect();
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
}
