//! The engines behind their locks.
//!
//! Here: the choice of a key's shard, and making room across shards. Not here: the contents of a
//! shard (`engine`), copies of partitions (`partition_io`), the shards of a batch (`batch`),
//! replies by id (`idempotency`).

mod batch;
mod idempotency;
mod lock;
mod partition_io;
mod spread;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use engine::{
    EVICTIONS_MAX, Engine, EngineOptions, EvictionScope, EvictionStats, ItemRecord, KeyHasher,
    LimitRecord, MemoryCap, Now, PartitionCursor, PartitionPrefix, SnapshotRecord,
    prefetch_for_write,
};
use hashbrown::HashMap;
use parking_lot::Mutex;
use protocol::{Bounds, Command, Exptime, Operation, Outcome};

pub(crate) use self::batch::{BATCH_SHARDS_MAX, ShardBatch};
use self::idempotency::IdempotencyTable;
pub(crate) use self::idempotency::KeyId;
use self::lock::{ShardGuard, ShardLock};
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
/// Eviction makes room for at least this many bytes: a chunk, and the growth of an index.
const ROOM_BYTES_MIN: usize = 16 << 10;

/// The error of a change that finds no room in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

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
    /// One mutex per shard; see [`Shards::turn`].
    turns: Box<[Mutex<()>]>,
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
        let memory_cap = Arc::new(MemoryCap::new(options.memory_bytes));
        let shards = (0..count as u64)
            .map(|shard| {
                let engine_options = EngineOptions {
                    bounds: options.bounds,
                    may_evict: options.may_evict,
                    cas: options.cas,
                    shard,
                    shards: count as u32,
                };
                let engine = Engine::new(hasher.clone(), Arc::clone(&memory_cap), engine_options);
                Spread::new(ShardLock::new(engine))
            })
            .collect();
        let turns = (0..count).map(|_| Mutex::default()).collect();
        let shift = 64 - count.trailing_zeros();
        let (may_evict, bounds) = (options.may_evict, options.bounds);
        Self {
            shards,
            turns,
            hasher,
            memory_cap,
            idempotency: IdempotencyTable::default(),
            shift,
            may_evict,
            next_to_give: AtomicUsize::new(0),
            bounds,
        }
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
        reply: impl FnOnce(Outcome<'_>) -> R,
    ) -> R {
        match self.shards[self.shard(hash)].lock().apply(now, hash, command) {
            Outcome::OutOfMemory => {}
            outcome => return reply(outcome),
        }
        self.apply_making_room(now, hash, command, reply)
    }

    /// Evicts a few items from each of the other shards, because the command's own shard has none
    /// to evict.
    #[cold]
    fn apply_making_room<R>(
        &self,
        now: Now,
        hash: u64,
        command: &Command<'_>,
        reply: impl FnOnce(Outcome<'_>) -> R,
    ) -> R {
        let home = self.shard(hash);
        let bytes = match &command.operation {
            Operation::Set(set) => set.value.len() + protocol::ITEM_OVERHEAD_BYTES,
            _ => 0,
        };
        while self.make_room(now, bytes) {
            match self.shards[home].lock().apply(now, hash, command) {
                Outcome::OutOfMemory => {}
                outcome => return reply(outcome),
            }
        }
        self.shards[home].lock().drop_replaced(hash, command);
        reply(Outcome::OutOfMemory)
    }

    /// Runs `change` on the locked shard of `hash`. If it returns `None` for lack of room, other
    /// shards make room and it runs again. Returns `None` if no more room can be made.
    pub fn with_room<T>(
        &self,
        now: Now,
        hash: u64,
        change: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Option<T> {
        self.with_room_for(now, hash, 0, change)
    }

    /// [`Shards::with_room`] for a change that stores about `bytes` bytes.
    fn with_room_for<T>(
        &self,
        now: Now,
        hash: u64,
        bytes: usize,
        mut change: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Option<T> {
        let home = self.shard(hash);
        loop {
            if let Some(done) = change(&mut self.shards[home].lock()) {
                return Some(done);
            }
            if !self.make_room(now, bytes) {
                return None;
            }
        }
    }

    /// [`Shards::with_room`] on all shards of `hashes` at once. If `change` finds no room in one of
    /// them, it must have changed nothing.
    pub(crate) fn with_locked<T>(
        &self,
        now: Now,
        hashes: &(impl Iterator<Item = u64> + Clone),
        mut change: impl FnMut(&mut LockedShards<'_>) -> Result<T, NoRoom>,
    ) -> Option<T> {
        loop {
            if let Ok(done) = change(&mut self.lock_all(hashes.clone())) {
                return Some(done);
            }
            if !self.make_room(now, 0) {
                return None;
            }
        }
    }

    /// Locks the shards in ascending order, so that two callers cannot deadlock. All other code
    /// waits for a shard only while it holds none, or for a bounded time (`batch`).
    fn lock_all(&self, hashes: impl Iterator<Item = u64>) -> LockedShards<'_> {
        let mut numbers: ArrayVec<usize, KEYS_TOGETHER_MAX> =
            hashes.map(|hash| self.shard(hash)).take(KEYS_TOGETHER_MAX).collect();
        numbers.sort_unstable();
        let mut engines = ArrayVec::<(usize, ShardGuard<'_>), KEYS_TOGETHER_MAX>::new();
        for index in numbers {
            if engines.last().is_none_or(|(last, _)| *last != index) {
                engines.push((index, self.shards[index].lock()));
            }
        }
        LockedShards { shards: self, engines }
    }

    /// Evicts from all shards in turn until `bytes` fit; evicts limit states only when no plain
    /// item is left. Returns false if nothing may be evicted, or eviction would not help.
    fn make_room(&self, now: Now, bytes: usize) -> bool {
        if !self.may_evict || self.memory_cap.is_mostly_free() {
            return false;
        }
        self.evict_by_turns(now, bytes, EvictionScope::Plain)
            || self.evict_by_turns(now, bytes, EvictionScope::All)
    }

    fn evict_by_turns(&self, now: Now, bytes: usize, reach: EvictionScope) -> bool {
        let mut freed = false;
        // Start at a different shard each time.
        let first = self.next_to_give.fetch_add(1, Ordering::Relaxed);
        for step in 0..self.shards.len() {
            let mut engine = self.shards[first.wrapping_add(step) % self.shards.len()].lock();
            for _ in 0..EVICTIONS_MAX {
                if !engine.evict(now, reach) {
                    break;
                }
                freed = true;
                if !self.memory_cap.exceeds_cap_by(bytes.max(ROOM_BYTES_MIN)) {
                    return freed;
                }
            }
        }
        freed
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
            totals.losses.evicted_unfetched += losses.evicted_unfetched;
            totals.losses.evicted_active += losses.evicted_active;
            totals.losses.expired += losses.expired;
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

    /// Passes every live item to `visit`, shard by shard, until it returns false.
    pub fn visit(&self, now: Now, mut visit: impl FnMut(&ItemRecord<'_>) -> bool) {
        for shard in &self.shards {
            let engine = shard.lock();
            if !engine.records(now).all(|record| visit(&record)) {
                return;
            }
        }
    }

    /// Passes the next records of a snapshot to `visit`, about `SAVE_BYTES`, under one lock of one
    /// shard. Returns the cursor to continue from, `None` at the end. An item that exists from the
    /// first call to the last is passed once.
    #[must_use]
    pub fn save_slice(
        &self,
        now: Now,
        from: SaveCursor,
        visit: impl FnMut(SnapshotRecord<'_>),
    ) -> Option<SaveCursor> {
        let SaveCursor { shard, cursor } = from;
        let engine = self.shards.get(shard)?.lock();
        match engine.save_slice(now, cursor, (SAVE_LINES, SAVE_BYTES), visit) {
            Some(cursor) => Some(SaveCursor { shard, cursor: Some(cursor) }),
            None if shard + 1 < self.shards.len() => {
                Some(SaveCursor { shard: shard + 1, cursor: None })
            }
            None => None,
        }
    }

    /// Restores a saved limit state with its instants `shift` nanoseconds later. Returns false if
    /// there is no room.
    #[must_use]
    pub fn restore_limit(&self, now: Now, record: &LimitRecord<'_>, shift: i128) -> bool {
        let hash = self.hasher.hash(record.key);
        self.shards[self.shard(hash)].lock().restore_limit(now, hash, record, shift)
    }

    /// Restores a saved item. Returns false if there is no room.
    #[must_use]
    pub fn restore(&self, now: Now, record: &ItemRecord<'_>) -> bool {
        let hash = self.hasher.hash(record.key);
        self.shards[self.shard(hash)].lock().restore(now, hash, record)
    }
}

/// Lines of an index read under one lock for a snapshot: some hundred keys, which must be hashed.
const SAVE_LINES: usize = 64;
/// Bytes passed under one lock for a snapshot; the last item may exceed them.
const SAVE_BYTES: usize = 32 << 10;

/// A position in the store while it is saved; the default is the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct SaveCursor {
    shard: usize,
    cursor: Option<PartitionCursor>,
}

/// Most keys that one request changes at once: those of a `takem`, each with its parents.
pub(crate) const KEYS_TOGETHER_MAX: usize =
    protocol::TAKE_KEYS_MAX * (1 + crate::limits::PARENTS_MAX);

/// Several shards, locked at once.
pub(crate) struct LockedShards<'a> {
    shards: &'a Shards,
    engines: ArrayVec<(usize, ShardGuard<'a>), KEYS_TOGETHER_MAX>,
}

impl LockedShards<'_> {
    /// Returns the engine of a key whose shard is locked.
    pub(crate) fn engine(&mut self, hash: u64) -> &mut Engine {
        let index = self.shards.shard(hash);
        let place = self.engines.binary_search_by_key(&index, |(index, _)| *index);
        &mut self.engines[place.expect("the shard of every key is locked")].1
    }
}

#[cfg(test)]
mod tests {
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

    /// Stores `items` items that expire after a second.
    fn fill(shards: &Shards, now: Now, items: u32) {
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

    #[test]
    fn saving_locks_for_few_items_and_meets_each_once() {
        const KEPT: u32 = 20_000;
        let shards = shards(64 << 20, None);
        let now = Now::at_ms(0);
        fill(&shards, now, KEPT);
        let mut seen = std::collections::BTreeMap::new();
        let (mut next, mut slices) = (Some(SaveCursor::default()), 0);
        while let Some(place) = next {
            let mut shown = 0;
            next = shards.save_slice(now, place, |record| {
                let SnapshotRecord::Item(record) = record else { panic!("no limit is there") };
                *seen.entry(record.key.to_vec()).or_insert(0) += 1;
                shown += 1;
            });
            assert!(shown <= 2_000, "{shown} under one lock");
            // Items come and go meanwhile, and the tables grow.
            slices += 1;
            for number in 0..50 {
                let key = format!("new{slices}-{number}");
                let record = ItemRecord {
                    key: key.as_bytes(),
                    value: protocol::Value::Number(1),
                    client_flags: 0,
                    cas: 0,
                    left_ms: None,
                    stale: false,
                    won: false,
                    base64: false,
                };
                assert!(shards.restore(now, &record));
                shards.remove_copy(shards.hash(key.as_bytes()), key.as_bytes());
            }
        }
        assert!(slices >= 64, "{slices}");
        for number in 0..KEPT {
            assert_eq!(seen.get(number.to_be_bytes().as_slice()), Some(&1), "{number}");
        }
        assert!(seen.values().all(|times| *times == 1));
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
