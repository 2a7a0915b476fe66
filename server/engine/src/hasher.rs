//! The hash of a key, which chooses its shard and its line, and in a cluster its partition.
//!
//! Here: the seeded hash, the number of the partition in it, the hash of ids, and the access to the
//! times of partitions. Not here: how a key gets its partition, and a partition its time
//! (`cluster`).
//!
//! ```text
//! hash of a placed key, high bits first:
//!
//!     partition | of the key | the partition's last bits, reversed
//!     `-- shard                `------------- line --------------'
//! ```
//!
//! A partition therefore lies in one shard, or in whole shards, and there in lines of its own:
//! hashes in the order of their *reversed* bits (their spread) run through the lines one after the
//! other, and a partition is a span of spreads, whatever the number of lines.

use std::fmt::{self, Debug, Formatter};
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use crate::time::{Nanos, Now};

/// Most bits of a partition's number: the lines and their tags need the others.
const BITS_MAX: u32 = 16;

/// Returns the partition of a key.
pub trait Partitioner: Send + Sync {
    /// Returns the number of a key's partition.
    fn partition(&self, key: &[u8]) -> u64;

    /// Writes the numbers of the partitions of `keys` to `numbers`, which has the same length.
    fn partitions(&self, keys: &[&[u8]], numbers: &mut [u64]) {
        for (key, number) in keys.iter().zip(numbers) {
            *number = self.partition(key);
        }
    }
}

impl<F: Fn(&[u8]) -> u64 + Send + Sync> Partitioner for F {
    fn partition(&self, key: &[u8]) -> u64 {
        self(key)
    }
}

/// The times by which the items of partitions expire.
pub trait PartitionTimes: Send + Sync {
    /// The time of the partition with this number, a shard of which is held. Items with a later
    /// deadline are neither swept nor evicted as expired; with 0 none of its items are. `now.mono`
    /// is the last reading of the node's monotonic clock.
    fn time(&self, partition: u64, now: Now) -> Nanos;

    /// The latest time of any partition at about `now`; 0 for none. No shard is held.
    fn latest(&self, now: Now) -> Nanos;
}

/// The partition of each key, once it is set, and the times of partitions.
#[derive(Default)]
pub struct PartitionPrefix(OnceLock<PrefixLayout>);

/// The partitions.
struct PrefixLayout {
    /// The length of a partition's number in bits.
    bits: u32,
    state: ahash::RandomState,
    id_key: IdKey,
    place: Box<dyn Partitioner>,
    times: OnceLock<Box<dyn PartitionTimes>>,
    /// The last reading of the node's monotonic clock in nanoseconds.
    now: AtomicU64,
}

impl PrefixLayout {
    /// `now` with the last reading of the node's clock.
    fn node_now(&self, now: Now) -> Now {
        Now { mono: Nanos(self.now.load(Ordering::Relaxed)), ..now }
    }
}

/// The secret key of the hash of ids. That hash is a pseudorandom function of 128 bits, unlike the
/// hash of keys: an id that collides with another would get the other's reply.
#[derive(Debug, Clone, Copy)]
struct IdKey([u64; 2]);

impl IdKey {
    /// Derives the key from the same secret seeds, separated by a name.
    fn of_seeds([a, b, c, d]: [u64; 4]) -> Self {
        let mut hasher = SipHasher24::new_with_keys(a, b);
        hasher.write(b"ids");
        hasher.write_u64(c);
        hasher.write_u64(d);
        let hash = hasher.finish128();
        Self([hash.h1, hash.h2])
    }

    fn hash(self, key: &[u8], id: &[u8]) -> IdHash {
        let mut hasher = SipHasher24::new_with_keys(self.0[0], self.0[1]);
        // The length separates key and id, so that no other pair has the same bytes.
        hasher.write(&[key.len() as u8]);
        hasher.write(key);
        hasher.write(id);
        IdHash(hasher.finish128().as_u128())
    }
}

impl PartitionPrefix {
    /// Sets the partitions: `place` returns the number of a key's partition, which has `bits` bits,
    /// 1 to 16. Returns false and changes nothing if the partitions are already set or `bits` is
    /// out of range.
    ///
    /// `seeds` replace the hasher's own. They must be equal on all nodes, because `phase=auto`
    /// depends on the hash, and must stay secret.
    ///
    /// The hash of every key differs afterwards, so no item may be stored before.
    pub fn set(&self, bits: u32, seeds: [u64; 4], place: impl Partitioner + 'static) -> bool {
        let [a, b, c, d] = seeds;
        let state = ahash::RandomState::with_seeds(a, b, c, d);
        if !(1..=BITS_MAX).contains(&bits) {
            return false;
        }
        let (id_key, place) = (IdKey::of_seeds(seeds), Box::new(place));
        let (times, now) = (OnceLock::new(), AtomicU64::new(0));
        self.0.set(PrefixLayout { bits, state, id_key, place, times, now }).is_ok()
    }

    /// Sets the source of the partitions' times, once they are set themselves. Until then the time
    /// of each is 0.
    pub fn set_times(&self, times: impl PartitionTimes + 'static) {
        if let Some(layout) = self.0.get() {
            let _ = layout.times.set(Box::new(times));
        }
    }

    /// Sets the reading of the node's monotonic clock.
    pub fn set_now(&self, now: Nanos) {
        if let Some(layout) = self.0.get() {
            layout.now.store(now.0, Ordering::Relaxed);
        }
    }

    /// The latest time of any partition; 0 if there is none.
    #[must_use]
    pub fn latest_time(&self, now: Now) -> Nanos {
        let latest = |layout: &PrefixLayout| Some(layout.times.get()?.latest(layout.node_now(now)));
        self.0.get().and_then(latest).unwrap_or(Nanos(0))
    }
}

impl Debug for PartitionPrefix {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Placer").field(&self.0.get().map(|layout| layout.bits)).finish()
    }
}

/// Hashes keys with secret seeds, so that a client cannot choose keys that collide.
#[derive(Debug, Clone)]
pub struct KeyHasher {
    state: ahash::RandomState,
    id_key: IdKey,
    prefixed: Option<PrefixedHash>,
}

#[derive(Debug, Clone)]
struct PrefixedHash {
    partition_prefix: Arc<PartitionPrefix>,
    /// The number of a hash's first bits that choose the shard.
    shard_bits: u32,
}

impl KeyHasher {
    /// Returns a hasher with these seeds; the server draws them at random, tests fix them.
    #[must_use]
    pub fn new(seeds: [u64; 4]) -> Self {
        let [a, b, c, d] = seeds;
        let state = ahash::RandomState::with_seeds(a, b, c, d);
        Self { state, id_key: IdKey::of_seeds(seeds), prefixed: None }
    }

    /// Returns a hasher that puts the number of a key's partition first, as soon as
    /// `partition_prefix` is set; the first `shard_bits` of a hash choose the shard.
    #[must_use]
    pub fn prefixed(
        seeds: [u64; 4],
        partition_prefix: Arc<PartitionPrefix>,
        shard_bits: u32,
    ) -> Self {
        Self { prefixed: Some(PrefixedHash { partition_prefix, shard_bits }), ..Self::new(seeds) }
    }

    /// The hash of a key: the low bits choose a line, the high ones may choose a shard.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> u64 {
        match &self.prefixed {
            None => hash_of(&self.state, key),
            Some(placed) => placed.hash(key, &self.state),
        }
    }

    /// The hash of a key that belongs to this partition.
    #[must_use]
    pub fn hash_in(&self, partition: u64, key: &[u8]) -> u64 {
        match &self.prefixed {
            None => hash_of(&self.state, key),
            Some(placed) => match placed.partition_prefix.0.get() {
                None => hash_of(&self.state, key),
                Some(layout) => placed.hash_in(layout, partition, key),
            },
        }
    }

    /// Writes the hashes of `keys` to `hashes`, which has the same length. In a cluster that is
    /// cheaper than one call per key.
    #[inline]
    pub fn hash_all(&self, keys: &[&[u8]], hashes: &mut [u64]) {
        match &self.prefixed {
            None => {
                for (key, hash) in keys.iter().zip(hashes) {
                    *hash = hash_of(&self.state, key);
                }
            }
            Some(placed) => placed.hash_all(keys, &self.state, hashes),
        }
    }

    /// Writes the first bits of the hashes of `keys` to `fronts`, which has the same length: those
    /// of the partition, and zeros behind them. Without partitions these are whole hashes.
    #[inline]
    pub fn fronts_all(&self, keys: &[&[u8]], fronts: &mut [u64]) {
        let Some(layout) = self.layout() else { return self.hash_all(keys, fronts) };
        layout.place.partitions(keys, fronts);
        for front in fronts {
            *front <<= u64::BITS - layout.bits;
        }
    }

    /// The time of a key's partition; `None` without partitions, when one time holds for all keys.
    pub(crate) fn time_of(&self, key: &[u8], now: Now) -> Option<Now> {
        let placed = self.prefixed.as_ref()?;
        let layout = placed.partition_prefix.0.get()?;
        let partition = placed.hash(key, &self.state) >> (u64::BITS - layout.bits);
        let times = layout.times.get();
        let mono = times.map_or(Nanos(0), |times| times.time(partition, layout.node_now(now)));
        Some(Now { mono, ..now })
    }

    fn layout(&self) -> Option<&PrefixLayout> {
        self.prefixed.as_ref()?.partition_prefix.0.get()
    }

    /// The hash of a key and an id that a client chose: the same on all nodes of a cluster.
    #[must_use]
    pub fn id_hash(&self, key: &[u8], id: &[u8]) -> IdHash {
        self.layout().map_or(self.id_key, |layout| layout.id_key).hash(key, id)
    }

    /// The number of bits of a hash that are the number of its partition; 0 outside a cluster.
    #[must_use]
    pub fn partition_bits(&self) -> u32 {
        self.layout().map_or(0, |layout| layout.bits)
    }

    /// The first and the last possible spread of a hash of `range` in a shard.
    pub(crate) fn spreads(&self, range: HashRange) -> (u64, u64) {
        let bits = self.prefixed.as_ref().and_then(|placed| placed.line_bits(range.bits));
        match bits {
            Some(bits @ 1..) => {
                let first = range.prefix << (u64::BITS - bits);
                (first, first | u64::MAX >> bits)
            }
            _ => (0, u64::MAX),
        }
    }
}

/// A hash with its bits reversed: in this order hashes run through the lines of an index.
pub(crate) fn spread_of(hash: u64) -> u64 {
    hash.reverse_bits()
}

#[inline]
fn hash_of(state: &ahash::RandomState, key: &[u8]) -> u64 {
    let mut hasher = state.build_hasher();
    hasher.write(key);
    hasher.finish()
}

impl PrefixedHash {
    fn hash(&self, key: &[u8], own: &ahash::RandomState) -> u64 {
        let Some(layout) = self.partition_prefix.0.get() else { return hash_of(own, key) };
        self.hash_in(layout, layout.place.partition(key), key)
    }

    fn hash_all(&self, keys: &[&[u8]], own: &ahash::RandomState, hashes: &mut [u64]) {
        let Some(layout) = self.partition_prefix.0.get() else {
            for (key, hash) in keys.iter().zip(hashes) {
                *hash = hash_of(own, key);
            }
            return;
        };
        layout.place.partitions(keys, hashes);
        for (key, hash) in keys.iter().zip(hashes) {
            *hash = self.hash_in(layout, *hash, key);
        }
    }

    /// The hash of a key that belongs to this partition.
    #[inline]
    fn hash_in(&self, layout: &PrefixLayout, partition: u64, key: &[u8]) -> u64 {
        let bits = layout.bits;
        let front = partition << (u64::BITS - bits);
        let rest = hash_of(&layout.state, key) >> bits;
        match bits.saturating_sub(self.shard_bits) {
            0 => front | rest,
            low => {
                let last = (partition << (u64::BITS - low)).reverse_bits();
                front | rest >> low << low | last
            }
        }
    }

    /// The number of bits of a partition's number that choose the line, if partitions have `bits`.
    fn line_bits(&self, bits: u32) -> Option<u32> {
        let layout = self.partition_prefix.0.get()?;
        (layout.bits == bits).then(|| bits.saturating_sub(self.shard_bits))
    }
}

/// The hash of a key and an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdHash(pub u128);

impl IdHash {
    /// The half that chooses a line of the index.
    pub(crate) fn low(self) -> u64 {
        self.0 as u64
    }

    /// The first bits of the other half, which may choose one of several caches
    /// ([`IdempotencyCache`](crate::IdempotencyCache)).
    #[must_use]
    pub fn front(self, bits: u32) -> usize {
        (self.0 >> (u128::BITS - bits)) as usize
    }
}

/// The hashes that begin with these bits: those of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashRange {
    /// The first bits, as a number.
    pub prefix: u64,
    /// The number of bits, at most 32; 0 for all hashes.
    pub bits: u32,
}

impl HashRange {
    /// Whether `hash` begins with the prefix.
    #[must_use]
    pub fn contains(&self, hash: u64) -> bool {
        self.bits == 0 || hash >> (64 - self.bits) == self.prefix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: [u64; 4] = [1, 2, 3, 4];

    #[test]
    fn a_partition_is_in_front_once_it_is_known() {
        let partition_prefix = Arc::new(PartitionPrefix::default());
        let plain = KeyHasher::new(SEEDS);
        let hasher = KeyHasher::prefixed(SEEDS, Arc::clone(&partition_prefix), 14);
        assert_eq!(hasher.hash(b"key"), plain.hash(b"key"));
        assert!(
            !partition_prefix.set(0, SEEDS, |_: &[u8]| 0)
                && !partition_prefix.set(17, SEEDS, |_: &[u8]| 0)
        );
        assert!(partition_prefix.set(14, SEEDS, |key: &[u8]| key.len() as u64));
        assert!(!partition_prefix.set(14, [9; 4], |_: &[u8]| 9));
        assert_eq!(hasher.clone().hash(b"key"), 3 << 50 | plain.hash(b"key") >> 14);
        assert!(HashRange { prefix: 3, bits: 14 }.contains(hasher.hash(b"key")));
        assert!(!HashRange { prefix: 4, bits: 14 }.contains(hasher.hash(b"key")));
        assert!(HashRange { prefix: 0, bits: 0 }.contains(hasher.hash(b"key")));
        assert_eq!(format!("{partition_prefix:?}"), "Placer(Some(14))");
    }

    #[test]
    fn keys_hash_together_as_each_by_itself() {
        let partition_prefix = Arc::new(PartitionPrefix::default());
        let both =
            [KeyHasher::new(SEEDS), KeyHasher::prefixed(SEEDS, Arc::clone(&partition_prefix), 6)];
        let keys: [&[u8]; 5] = [b"a", b"key", b"another key", b"", b"key"];
        let agree = || {
            for hasher in &both {
                let mut hashes = [7; 5];
                hasher.hash_all(&keys, &mut hashes);
                assert_eq!(hashes, keys.map(|key| hasher.hash(key)));
                let in_its_own = |key: &[u8]| hasher.hash_in(key.len() as u64, key);
                assert_eq!(hashes, keys.map(in_its_own));
            }
        };
        agree();
        assert!(partition_prefix.set(14, SEEDS, |key: &[u8]| key.len() as u64));
        agree();
    }

    /// Each partition is ahead of the node's clock by its number.
    struct Numbered;

    impl PartitionTimes for Numbered {
        fn time(&self, partition: u64, now: Now) -> Nanos {
            Nanos(now.mono.0 + partition)
        }

        fn latest(&self, now: Now) -> Nanos {
            Nanos(now.mono.0 + 15)
        }
    }

    #[test]
    fn each_partition_has_a_time_of_its_own() {
        let partition_prefix = Arc::new(PartitionPrefix::default());
        let hasher = KeyHasher::prefixed(SEEDS, Arc::clone(&partition_prefix), 0);
        let now = Now::at_ms(5);
        partition_prefix.set_times(Numbered);
        let latest = || partition_prefix.latest_time(now);
        assert_eq!((hasher.time_of(b"key", now), latest()), (None, Nanos(0)));
        assert!(partition_prefix.set(4, SEEDS, |key: &[u8]| key.len() as u64));
        let time = |key: &[u8]| hasher.time_of(key, now).map(|now| now.mono.0);
        assert_eq!((time(b"key"), latest()), (Some(0), Nanos(0)));
        partition_prefix.set_times(Numbered);
        for node_now in [0, 100] {
            partition_prefix.set_now(Nanos(node_now));
            assert_eq!((time(b"key"), time(b"k")), (Some(node_now + 3), Some(node_now + 1)));
            assert_eq!(latest(), Nanos(node_now + 15));
        }
        assert_eq!(hasher.time_of(b"key", now).map(|time| time.unix_ms), Some(now.unix_ms));
        assert_eq!(KeyHasher::new(SEEDS).time_of(b"key", now), None);
    }

    #[test]
    fn ids_hash_alike_wherever_the_seeds_are_the_same() {
        let partition_prefix = Arc::new(PartitionPrefix::default());
        let in_cluster = KeyHasher::prefixed([9; 4], Arc::clone(&partition_prefix), 14);
        let plain = KeyHasher::new(SEEDS);
        assert_ne!(in_cluster.id_hash(b"key", b"id"), plain.id_hash(b"key", b"id"));
        assert!(partition_prefix.set(14, SEEDS, |_: &[u8]| 0));
        assert_eq!((in_cluster.partition_bits(), plain.partition_bits()), (14, 0));
        assert_eq!(in_cluster.id_hash(b"key", b"id"), plain.id_hash(b"key", b"id"));
        // Another split of the same bytes has another hash.
        assert_ne!(plain.id_hash(b"key", b"id"), plain.id_hash(b"keyi", b"d"));
        assert_ne!(
            plain.id_hash(b"key", b"id"),
            KeyHasher::new([1, 2, 3, 5]).id_hash(b"key", b"id")
        );
    }

    #[test]
    fn the_hashes_of_a_partition_are_a_span_of_spreads() {
        for (bits, shard_bits) in [(14, 6), (8, 6), (6, 6), (4, 6), (16, 0)] {
            let partition_prefix = Arc::new(PartitionPrefix::default());
            let hasher = KeyHasher::prefixed(SEEDS, Arc::clone(&partition_prefix), shard_bits);
            assert!(
                partition_prefix.set(bits, SEEDS, move |key: &[u8]| key.len() as u64 % (1 << bits))
            );
            for length in 0..40 {
                let key = vec![b'k'; length];
                let hash = hasher.hash(&key);
                let range = HashRange { prefix: length as u64 % (1 << bits), bits };
                let (first, last) = hasher.spreads(range);
                assert!(range.contains(hash));
                assert!((first..=last).contains(&spread_of(hash)));
                assert_eq!(last - first, u64::MAX >> bits.saturating_sub(shard_bits));
            }
        }
    }
}
