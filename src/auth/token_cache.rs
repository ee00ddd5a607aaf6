//! What is known of tokens that were judged before, by their SHA-256: the tokens themselves are not kept.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Parts with a lock each, so that those who look do not wait for one another.
const PARTS: usize = 16;

/// What is known of at most so many tokens, with so many bytes in all.
pub(super) struct TokenCache<T> {
    parts: [RwLock<Part<T>>; PARTS],
    /// Most entries of a part.
    entries: usize,
    /// Most bytes of a part.
    bytes: usize,
}

struct Part<T> {
    known: HashMap<[u8; 32], Known<T>>,
    bytes: usize,
}

struct Known<T> {
    value: Arc<T>,
    bytes: usize,
    /// When it counts no longer, in seconds since the Unix epoch.
    end: u64,
}

impl<T> TokenCache<T> {
    /// An empty cache with room for so much.
    pub(super) fn new(entries: usize, bytes: usize) -> TokenCache<T> {
        let part = |_| RwLock::new(Part { known: HashMap::new(), bytes: 0 });
        TokenCache { parts: std::array::from_fn(part), entries: entries.div_ceil(PARTS), bytes: bytes / PARTS }
    }

    fn part(&self, digest: &[u8; 32]) -> &RwLock<Part<T>> {
        // Whoever chooses tokens cannot choose where their digests fall.
        &self.parts[usize::from(digest[0]) % PARTS]
    }

    /// What is known of a token at `now`, in seconds since the Unix epoch.
    pub(super) fn get(&self, digest: &[u8; 32], now: u64) -> Option<Arc<T>> {
        let part = self.part(digest).read().unwrap_or_else(PoisonError::into_inner);
        part.known.get(digest).filter(|known| now < known.end).map(|known| Arc::clone(&known.value))
    }

    /// Keeps what is known of a token until `end`, in seconds since the Unix epoch. What ends first makes room.
    pub(super) fn put(&self, digest: [u8; 32], value: Arc<T>, bytes: usize, end: u64) {
        if bytes > self.bytes {
            return;
        }
        let mut part = self.part(&digest).write().unwrap_or_else(PoisonError::into_inner);
        part.remove(&digest);
        while part.known.len() >= self.entries || part.bytes + bytes > self.bytes {
            let Some(first) = part.known.iter().min_by_key(|(_, known)| known.end).map(|(digest, _)| *digest) else {
                break;
            };
            part.remove(&first);
        }
        part.bytes += bytes;
        part.known.insert(digest, Known { value, bytes, end });
    }

    /// Keeps nothing of a token any more.
    pub(super) fn forget(&self, digest: &[u8; 32]) {
        self.part(digest).write().unwrap_or_else(PoisonError::into_inner).remove(digest);
    }
}

impl<T> Part<T> {
    fn remove(&mut self, digest: &[u8; 32]) {
        if let Some(known) = self.known.remove(digest) {
            self.bytes -= known.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{PARTS, TokenCache};

    fn digest(number: usize) -> [u8; 32] {
        let mut digest = [0; 32];
        digest[0] = (number % PARTS) as u8;
        digest[1..9].copy_from_slice(&(number as u64).to_be_bytes());
        digest
    }

    #[test]
    fn what_is_known_ends_at_its_time() {
        let cache = TokenCache::new(100, 1 << 20);
        cache.put(digest(1), Arc::new("one"), 10, 1_000);
        assert_eq!(cache.get(&digest(1), 999).as_deref(), Some(&"one"));
        assert_eq!(cache.get(&digest(1), 1_000), None);
        assert_eq!(cache.get(&digest(2), 0), None);
    }

    #[test]
    fn room_is_made_by_what_ends_first() {
        let cache = TokenCache::new(2 * PARTS, 1 << 20);
        // All in one part.
        let [a, b, c] = [PARTS, 2 * PARTS, 3 * PARTS].map(digest);
        cache.put(a, Arc::new('a'), 10, 3_000);
        cache.put(b, Arc::new('b'), 10, 2_000);
        cache.put(c, Arc::new('c'), 10, 1_000);
        assert_eq!([a, b, c].map(|digest| cache.get(&digest, 0).is_some()), [true, false, true]);
    }

    #[test]
    fn a_million_tokens_take_bounded_room() {
        let cache = TokenCache::new(160, 16_000);
        for number in 0..100_000 {
            cache.put(digest(number), Arc::new(()), 150, 10_000 + number as u64);
        }
        let held: Vec<(usize, usize)> = cache
            .parts
            .iter()
            .map(|part| part.read().expect("no panic"))
            .map(|part| (part.known.len(), part.bytes))
            .collect();
        assert!(held.iter().all(|(entries, bytes)| *entries <= 10 && *bytes <= 1_000 && *entries > 0), "{held:?}");
        cache.put(digest(7), Arc::new(()), 2_000, u64::MAX);
        assert!(cache.get(&digest(7), 0).is_none(), "it is larger than a part");
    }
}
