//! The hash of counted keys in all tables of overrides.
//!
//! Here: one hasher for the process. A lone server's shards have the same one, so that a key is
//! hashed once. In a cluster the hash of a shard begins with the partition, so keys are hashed
//! twice. Not here: the tables (`exact_index`).

use std::array;
use std::hash::BuildHasher as _;
use std::sync::OnceLock;

use engine::KeyHasher;
use hashbrown::DefaultHashBuilder;

/// Secret, so that a client can choose no keys that share a line.
static HASHER: OnceLock<SeededHasher> = OnceLock::new();

struct SeededHasher {
    seeds: [u64; 4],
    hasher: KeyHasher,
}

impl SeededHasher {
    fn new(seeds: [u64; 4]) -> Self {
        Self { seeds, hasher: KeyHasher::new(seeds) }
    }

    /// Draws the seeds, for tables that exist before any server.
    fn random() -> Self {
        let random = DefaultHashBuilder::default();
        Self::new(array::from_fn(|index| random.hash_one(index)))
    }
}

/// The hash of a key in all tables of overrides.
#[inline]
pub(super) fn key_hash(key: &[u8]) -> u64 {
    HASHER.get_or_init(SeededHasher::random).hasher.hash(key)
}

/// Uses these seeds, unless a table or an earlier call has fixed others. Returns whether the hash
/// of every key is that of a [`KeyHasher`] with these seeds.
pub fn share_seeds(seeds: [u64; 4]) -> bool {
    HASHER.get_or_init(|| SeededHasher::new(seeds)).seeds == seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_seeds_stay() {
        let before = key_hash(b"key");
        assert!(!share_seeds([7; 4]), "a table may have been built with other seeds");
        assert_eq!(key_hash(b"key"), before);
        let seeds = HASHER.get().expect("it was used").seeds;
        assert!(share_seeds(seeds));
        assert_eq!(KeyHasher::new(seeds).hash(b"key"), before);
    }
}
