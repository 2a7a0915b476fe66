//! The engines behind their locks.
//!
//! Here: the choice of a key's shard, one command, the sweep, metrics. Not here: the contents of a
//! shard (`engine`), making room across shards (`room`), shards locked together (`locked_shards`),
//! copies of partitions (`partition_io`), the shards of a batch (`batch`), snapshots (`snapshot`),
//! replies by id (`idempotency`).

mod batch;
mod idempotency;
mod lock;
mod locked_shards;
mod observed_key;
mod partition_io;
mod room;
mod snapshot;
mod spread;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arrayvec::ArrayVec;
use engine::{
    Engine, EngineOptions, EvictionStats, KeyHasher, MemoryCap, Now, PartitionPrefix,
    prefetch_for_write,
};
use hashbrown::HashMap;
use protocol::{Bounds, Command, Exptime, Outcome};

pub(crate) use self::batch::{BATCH_SHARDS_MAX, ShardBatch};
use self::idempotency::IdempotencyTable;
pub(crate) use self::idempotency::KeyId;
pub use self::lock::SHARD_LOCKS;
use self::lock::ShardLock;
pub(crate) use self::locked_shards::{KEYS_TOGETHER_MAX, LockedShards};
pub(crate) use self::observed_key::{CommandShards, ObservedKey};
pub(crate) use self::room::NoRoom;
pub use self::snapshot::SaveCursor;
use self::spread::Spread;

/// Shards per worker, with several workers. A worker locks up to sixteen shards for a moment, to
/// prefetch from them, and should seldom meet another worker there.
const SHARDS_PER_WORKER: usize = 256;
const SHARDS_MIN: usize = 64;
const SHARDS_MAX: usize = 4096;
/// A smaller shard would consist mostly of half-empty chunks.
const SHARD_BYTES_MIN: usize = 256 << 10;
/// Items evicted per shard in one step of the sweep after the cap was lowered, so that no lock is
/// held for long.
const SHRINK_EVICTIONS: usize = 64;
/// Most items that the sweep visits under one lock.
const SWEEP_ITEMS_MAX: usize = 4096;
/// Items that the sweep visits between two pauses, in about 30 µs: a pause itself costs about 20
/// µs.
const SWEEP_ITEMS: usize = 2048;
/// Most calls of [`Shards::sweep`] to visit all shards.
const SWEEPS_MAX: usize = 32;
/// The layout of the store.
#[derive(Debug, Clone)]
pub struct ShardsOptions {
    /// Memory cap in bytes (`-m`).
    pub memory_bytes: usize,
    /// True: evict to stay below the cap. False: refuse (`-M`).
    pub may_evict: bool,
    /// True if items get cas uniques (off with `-C`).
    pub cas: bool,
    /// Item size bound.
    pub bounds: Bounds,
    /// Number of worker threads that use the store.
    pub workers: usize,
    /// Seeds of the key hash.
    pub seeds: [u64; 4],
    /// In a cluster, puts the number of a key's partition into the high bits of its hash.
    pub partition_prefix: Option<Arc<PartitionPrefix>>,
}

/// All items of the process.
pub struct Shards {
    shards: Box<[Spread]>,
    hasher: KeyHasher,
    memory_cap: Arc<MemoryCap>,
    idempotency: IdempotencyTable,
    /// The right shift that turns a hash into its shard.
    shift: u32,
    may_evict: bool,
    /// The shard where making room starts next.
    next_to_give: AtomicUsize,
    bounds: Bounds,
}

/// Metrics summed over all shards.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Items, including expired ones that are not yet swept.
    pub items: u64,
    /// Bytes of the items themselves.
    pub item_bytes: u64,
    /// Bytes of the hash tables.
    pub index_bytes: u64,
    /// Retrievals that found an expired item.
    pub get_expired: u64,
    /// Commands that found an item removed by `flush_all`.
    pub get_flushed: u64,
    /// Items evicted, expired or swept.
    pub losses: EvictionStats,
}

impl Shards {
    /// Creates an empty store.
    #[must_use]
    pub fn new(options: ShardsOptions) -> Self {
        let wanted = match options.workers {
            0..=1 => SHARDS_MIN,
            workers => (workers * SHARDS_PER_WORKER).next_power_of_two(),
        };
        let max = (options.memory_bytes / SHARD_BYTES_MIN).max(2).next_power_of_two() / 2;
        let count = wanted.clamp(SHARDS_MIN, SHARDS_MAX).min(max).max(2);
        let hasher = match options.partition_prefix {
            Some(partition_prefix) => {
                KeyHasher::prefixed(options.seeds, partition_prefix, count.trailing_zeros())
            }
            None => KeyHasher::new(options.seeds),
        };
        let engine_options = EngineOptions {
            bounds: options.bounds,
            may_evict: options.may_evict,
            cas: options.cas,
            shard: 0,
            shards: count as u32,
        };
        Self::with_hasher(hasher, options.memory_bytes, engine_options)
    }

    /// [`engine::Engine::keep_hold_usage`] of all shards.
    pub(crate) fn keep_hold_usage(&self, keeps_hold_usage: bool) {
        for shard in &self.shards {
            shard.lock().keep_hold_usage(keeps_hold_usage);
        }
    }

    /// Creates an empty store of `memory_bytes` that gives each key the same hash as this store
    /// does, and evicts. A decision may depend on the hash of its key.
    pub(crate) fn empty_like(&self, memory_bytes: usize) -> Self {
        let engine_options = EngineOptions {
            bounds: self.bounds,
            shards: self.shards.len() as u32,
            ..EngineOptions::default()
        };
        Self::with_hasher(self.hasher.clone(), memory_bytes, engine_options)
    }

    fn with_hasher(hasher: KeyHasher, memory_bytes: usize, options: EngineOptions) -> Self {
        let memory_cap = Arc::new(MemoryCap::new(memory_bytes));
        let shards = (0..options.shards)
            .map(|shard| {
                let engine_options = EngineOptions { shard: shard.into(), ..options };
                let engine = Engine::new(hasher.clone(), Arc::clone(&memory_cap), engine_options);
                Spread::new(ShardLock::new(engine))
            })
            .collect();
        Self {
            shards,
            hasher,
            memory_cap,
            idempotency: IdempotencyTable::default(),
            shift: 64 - options.shards.trailing_zeros(),
            may_evict: options.may_evict,
            next_to_give: AtomicUsize::new(0),
            bounds: options.bounds,
        }
    }

    /// Returns the number of shards.
    pub(crate) fn count(&self) -> usize {
        self.shards.len()
    }

    /// Returns the item size bound.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Returns the memory cap with the memory in use.
    #[must_use]
    pub fn memory_cap(&self) -> &MemoryCap {
        &self.memory_cap
    }

    fn shard(&self, hash: u64) -> usize {
        // The high bits: the shard's table uses the low ones, and its tags the middle.
        (hash >> self.shift) as usize
    }

    /// Returns the hash of a key, for the calls below.
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// Returns the hash of a key of a known partition, without computing its placement.
    pub(crate) fn hash_in(&self, partition: u16, key: &[u8]) -> u64 {
        self.hasher.hash_in(partition.into(), key)
    }

    /// Writes the hashes of `keys` to `hashes`, which has the same length.
    #[inline]
    pub(crate) fn hash_all(&self, keys: &[&[u8]], hashes: &mut [u64]) {
        self.hasher.hash_all(keys, hashes);
    }

    /// Writes the first bits of the hashes of `keys` to `fronts`, which has the same length: those
    /// of the partition, and zeros behind them.
    #[inline]
    pub(crate) fn fronts_all(&self, keys: &[&[u8]], fronts: &mut [u64]) {
        self.hasher.fronts_all(keys, fronts);
    }

    /// Prefetches the lock of a key's shard and the fields beside it that most commands change:
    /// another processor may hold their cache lines.
    #[inline]
    pub(crate) fn prefetch_shard(&self, hash: u64) {
        prefetch_for_write(&self.shards[self.shard(hash)]);
    }

    /// Prefetches the memory that the keys of these hashes need.
    pub fn prefetch(&self, mut hashes: impl Iterator<Item = u64>) {
        loop {
            let some: ArrayVec<u64, BATCH_SHARDS_MAX> =
                hashes.by_ref().take(BATCH_SHARDS_MAX).collect();
            let is_last = !some.is_full();
            ShardBatch::new(self, &some, false);
            if is_last {
                return;
            }
        }
    }

    /// Locks the shards of the first [`BATCH_SHARDS_MAX`] hashes and prefetches the memory that
    /// their keys need.
    #[inline]
    pub(crate) fn lock_batch(&self, hashes: &[u64]) -> ShardBatch<'_> {
        ShardBatch::new(self, &hashes[..hashes.len().min(BATCH_SHARDS_MAX)], true)
    }

    /// Returns the length of the value of a plain item.
    pub(crate) fn value_len(&self, hash: u64, key: &[u8]) -> Option<usize> {
        self.shards[self.shard(hash)].lock().value_len(hash, key)
    }

    /// Applies `command`, whose key has `hash`, and passes the outcome to `reply` while the shard
    /// is locked: `reply` must only copy.
    pub fn apply<R>(
        &self,
        now: Now,
        hash: u64,
        command: &Command<'_>,
        reply: impl FnMut(Outcome<'_>) -> R,
    ) -> R {
        CommandShards::new(self, None).apply(now, hash, command, reply)
    }

    /// Executes `flush_all`, at once or after `delay`.
    pub fn flush(&self, now: Now, delay: Exptime) {
        for shard in &self.shards {
            shard.lock().flush(now, delay);
        }
    }

    /// Sweeps the next of `parts` parts of each shard for expired items and evicts down to a
    /// lowered memory cap, from shard `first` on, for some microseconds. Returns the shard to
    /// continue with after a pause for the workers; `None` after the last shard.
    #[must_use]
    pub fn sweep(&self, now: Now, parts: usize, first: usize) -> Option<usize> {
        let shards_min = self.shards.len().div_ceil(SWEEPS_MAX);
        let mut looked_at = 0;
        for (index, shard) in self.shards.iter().enumerate().skip(first) {
            if looked_at >= SWEEP_ITEMS && index - first >= shards_min {
                return Some(index);
            }
            let mut engine = shard.lock();
            let count = (engine.len() / parts + 1).min(SWEEP_ITEMS_MAX);
            engine.sweep(now, count);
            engine.shrink(now, SHRINK_EVICTIONS);
            looked_at += count;
        }
        None
    }

    /// Sums the metrics of all shards.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for shard in &self.shards {
            let engine = shard.lock();
            let losses = engine.losses();
            totals.items += engine.len() as u64;
            totals.item_bytes += engine.item_bytes() as u64;
            totals.index_bytes += engine.index_bytes() as u64;
            totals.get_expired += engine.get_expired();
            totals.get_flushed += engine.get_flushed();
            totals.losses.evicted += losses.evicted;
            totals.losses.evicted_states += losses.evicted_states;
            totals.losses.evicted_unfetched += losses.evicted_unfetched;
            totals.losses.evicted_active += losses.evicted_active;
            totals.losses.expired += losses.expired;
            totals.losses.expired_states += losses.expired_states;
            totals.losses.expired_unfetched += losses.expired_unfetched;
            totals.losses.reclaimed += losses.reclaimed;
            totals.losses.swept += losses.swept;
            totals.losses.sweep_checked += losses.sweep_checked;
        }
        totals
    }

    /// Returns the number of limit states of each limit, by the number of the limit, including
    /// expired ones that are not yet swept.
    #[must_use]
    pub fn active_keys(&self) -> HashMap<u32, u64> {
        let mut keys = HashMap::new();
        for shard in &self.shards {
            shard.lock().active_keys(|limit, count| *keys.entry(limit).or_default() += count);
        }
        keys
    }

    /// Zeroes the metrics that `stats reset` zeroes.
    pub fn reset_counters(&self) {
        for shard in &self.shards {
            shard.lock().reset_counters();
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::ItemRecord;
    use protocol::{Key, Operation, Set, SetMode};

    use super::*;

    /// Creates a store of one worker.
    pub(super) fn shards(
        memory_bytes: usize,
        partition_prefix: Option<Arc<PartitionPrefix>>,
    ) -> Shards {
        Shards::new(ShardsOptions {
            memory_bytes,
            may_evict: true,
            cas: true,
            bounds: Bounds::default(),
            workers: 1,
            seeds: [1, 2, 3, 4],
            partition_prefix,
        })
    }

    /// Whether a `set` or `append` of a value that never expires stores.
    pub(super) fn store(shards: &Shards, mode: SetMode, key: &[u8], value: &[u8]) -> bool {
        let set = Set::plain(mode, 0, Exptime::NEVER, value);
        let hash = shards.hash(key);
        let key = Key::plain(key).expect("a key");
        let command = Command { key, operation: Operation::Set(set) };
        shards.apply(Now::at_ms(1000), hash, &command, |outcome| {
            matches!(outcome, Outcome::Stored(_))
        })
    }

    /// Stores `items` items that expire after a second.
    pub(super) fn fill(shards: &Shards, now: Now, items: u32) {
        for number in 0..items {
            let record = ItemRecord {
                key: &number.to_be_bytes(),
                value: protocol::Value::Number(1),
                client_flags: 0,
                cas: 0,
                left_ms: Some(1000),
                stale: false,
                won: false,
                base64: false,
            };
            assert!(shards.restore(now, &record));
        }
    }

    /// Sweeps in steps and returns the shard that each further step starts with.
    fn sweep(shards: &Shards, now: Now, parts: usize) -> Vec<usize> {
        let next = |first| shards.sweep(now, parts, first);
        std::iter::successors(next(0), |first| next(*first)).collect()
    }

    #[test]
    fn a_sweep_pauses_and_skips_no_item() {
        let shards = shards(64 << 20, None);
        let now = Now::at_ms(0);
        fill(&shards, now, 100);
        assert!(sweep(&shards, now, 1).is_empty());
        fill(&shards, now, 120_000);
        let before = shards.totals().losses.sweep_checked;
        let pauses = sweep(&shards, now, 4);
        assert!((10..14).contains(&pauses.len()), "{pauses:?}");
        let looked_at = shards.totals().losses.sweep_checked - before;
        // One more per shard, so that a small shard is not skipped.
        assert!((30_000..=30_000 + 64).contains(&looked_at), "{looked_at}");
        let pauses = sweep(&shards, now, 1);
        assert_eq!(pauses.len(), SWEEPS_MAX - 1, "{pauses:?}");
        assert!(pauses.is_sorted_by(|one, next| one < next), "{pauses:?}");
        let later = Now::at_ms(1001);
        // A sweep of a shard starts where the last one ended.
        sweep(&shards, later, 1);
        sweep(&shards, later, 1);
        assert_eq!(shards.totals().items, 0);
        assert_eq!(shards.totals().losses.swept, 120_000);
    }
}
