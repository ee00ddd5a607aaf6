//! A map from child-side ids to whatever waits for them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Ids are counted up by the gateway itself, so nobody can choose them to collide, and mixing their
/// bits is all the hashing they need.
pub type CallMap<T> = HashMap<u64, T, BuildHasherDefault<IdHasher>>;

/// Mixes one number.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

/// The golden ratio in 64 bits: neighbouring numbers end up far apart.
const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = number.wrapping_mul(MIX);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CallMap;

    #[test]
    fn finds_what_was_put_in() {
        let mut map = CallMap::default();
        for number in 0..10_000u64 {
            map.insert(number, number * 2);
        }
        assert!((0..10_000).all(|number| map.get(&number) == Some(&(number * 2))));
        assert_eq!(map.get(&10_000), None);
    }
}
