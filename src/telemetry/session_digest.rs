//! What stands in logs for a session's id.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// The first 8 hex digits of the SHA-256 of a session id: enough to follow a session through the
/// log, useless for entering it. Made once per session and copied from then on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionDigest([u8; 8]);

/// The digest of a session id.
#[must_use]
pub fn session_digest(id: &str) -> SessionDigest {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let hash = Sha256::digest(id.as_bytes());
    let mut text = [0; 8];
    for (pair, byte) in text.chunks_exact_mut(2).zip(hash) {
        pair.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0xf)]]);
    }
    SessionDigest(text)
}

impl SessionDigest {
    /// The 8 hex digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hex digits are ASCII")
    }
}

impl fmt::Display for SessionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for SessionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::session_digest;

    #[test]
    fn it_is_the_head_of_the_hash() {
        // FIPS 180-4's example message "abc" hashes to ba7816bf 8f01cfea …
        assert_eq!(session_digest("abc").to_string(), "ba7816bf");
        assert_eq!(session_digest("").as_str(), "e3b0c442");
    }
}
