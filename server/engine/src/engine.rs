//! One shard: a store, the policies of its limits, and the numbers that it gives out.
//!
//! Here: the parts of a shard and their order in memory, locating the item of a key, `flush_all`,
//! the sweep, metrics. Not here: the effect of a command (`commands`), the storage of items and
//! eviction (`store`), exptimes (`time`).

mod limit_parts;
mod uniques;

use std::sync::Arc;

use protocol::{Bounds, Exptime};

pub(crate) use self::limit_parts::{Hold, LimitParts};
pub(crate) use self::uniques::Uniques;
use crate::flushed::Flushed;
use crate::hasher::KeyHasher;
use crate::item_mark::ItemMark;
use crate::prefetch::CACHE_LINE_BYTES;
use crate::store::arena::Slot;
use crate::store::memory_cap::{EvictionScope, MemoryCap};
use crate::store::{EvictionStats, Located, Store};
use crate::time::{Deadline, Now};

/// The options of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Bound on the size of an item (memcached's `-I`).
    pub bounds: Bounds,
    /// Whether items may be evicted when memory is exhausted (memcached without `-M`).
    pub may_evict: bool,
    /// Whether items get cas uniques (memcached without `-C`); otherwise each is 0.
    pub cas: bool,
    /// The index of this shard: with `shards` it keeps cas uniques distinct between shards.
    pub shard: u64,
    /// The number of shards; at least 1.
    pub shards: u32,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { bounds: Bounds::default(), may_evict: true, cas: true, shard: 0, shards: 1 }
    }
}

/// One shard: a store and the rules for changing it.
///
/// The order of the fields is their order in memory. The fields that most commands change come
/// first, and fit one cache line together with the lock in front of them: processors that share a
/// shard transfer only that line, and all other lines stay shared for reading. The fields that a
/// lookup reads fit one more line: a batch needs both lines of each of its shards, and there are
/// hundreds of shards.
#[repr(C)]
pub struct Engine {
    pub(crate) uniques: Uniques,
    pub(crate) store: Store,
    pub(crate) limits: LimitParts,
    options: EngineOptions,
    pub(crate) get_expired: u64,
    flushed: Flushed,
    /// The slot of the item that a command changed in place under a given cas unique.
    pub(crate) changed_at: Option<Slot>,
    /// The mark of the key's item when a take under a given cas unique left the fast path.
    #[expect(clippy::option_option, reason = "there may be no such take, and no item before it")]
    pub(crate) mark_before_general: Option<Option<ItemMark>>,
}

/// Bytes of the lock in front of the engine.
const LOCK_BYTES: usize = 8;

#[cfg(target_pointer_width = "64")]
const _: () = {
    /// Returns whether the bytes `from..to` of an engine, behind its lock, lie in one cache line.
    const fn is_one_line(from: usize, to: usize) -> bool {
        (LOCK_BYTES + from) / CACHE_LINE_BYTES == (LOCK_BYTES + to - 1) / CACHE_LINE_BYTES
    }
    let store = std::mem::offset_of!(Engine, store);
    let limits = std::mem::offset_of!(Engine, limits);
    assert!(is_one_line(0, store + Store::CHANGED_END), "what most commands change");
    assert!(
        is_one_line(store + Store::LOOKUP.start, store + Store::LOOKUP.end),
        "what a lookup reads"
    );
    assert!(
        is_one_line(store + Store::STATES_LOOKUP_AT, limits + LimitParts::LOOKUP_END),
        "what a lookup of a state reads beside that"
    );
};

impl Engine {
    /// Returns an empty shard that allocates from `memory_cap`.
    #[must_use]
    pub fn new(hasher: KeyHasher, memory_cap: Arc<MemoryCap>, options: EngineOptions) -> Self {
        Self {
            uniques: Uniques {
                last: options.shard,
                given: None,
                step: options.shards,
                are_kept: options.cas,
                is_flushed: false,
                is_change_unplaced: false,
            },
            store: Store::new(hasher, memory_cap, options.may_evict),
            limits: LimitParts::default(),
            options,
            get_expired: 0,
            flushed: Flushed::default(),
            changed_at: None,
            mark_before_general: None,
        }
    }

    /// Prefetches the index line of a key that will be applied soon: the first of two steps that
    /// overlap the cache misses of a batch.
    pub fn prefetch_line(&self, hash: u64) {
        self.store.prefetch_line(hash);
    }

    /// Prefetches the item of a key: the second step. The item's slot is recorded for a while.
    /// Returns false if a third step is needed, because not every key fits its first index line.
    #[inline]
    pub fn prefetch_item(&self, hash: u64) -> bool {
        self.store.prefetch_item(hash)
    }

    /// Prefetches an item that is not in its first index line: the third step.
    pub fn prefetch_item_behind(&self, hash: u64) {
        self.store.prefetch_item_behind(hash);
    }

    /// Removes every item, at once or after `delay`; the last call holds.
    pub fn flush(&mut self, now: Now, delay: Exptime) {
        self.flush_if_due(now);
        self.store.flush = Deadline::NEVER;
        if delay.0 > 0 {
            self.store.flush = Deadline::resolve(now, delay);
        } else {
            self.clear(now);
        }
    }

    fn clear(&mut self, now: Now) {
        self.flushed.remember(self.store.hashes(now));
        self.uniques.is_flushed = self.flushed.has_some();
        self.store.clear();
    }

    /// Records that a command found no item with this hash.
    #[inline]
    pub(crate) fn note_missing(&mut self, hash: u64) {
        if self.uniques.is_flushed {
            self.uniques.is_flushed = self.flushed.miss(hash);
        }
    }

    pub(crate) fn flush_if_due(&mut self, now: Now) {
        if self.store.flush.is_past(now) {
            self.store.flush = Deadline::NEVER;
            self.clear(now);
        }
    }

    /// Removes items past their deadline among the next `count`; true at the end of a round.
    pub fn sweep(&mut self, now: Now, count: usize) -> bool {
        self.flush_if_due(now);
        let is_round = self.store.sweep(now, count);
        self.drop_unused_policies();
        is_round
    }

    /// Evicts one item, to make room for changes of keys with the hashes `keep`, whose own items it
    /// keeps. Returns false if no item may be evicted.
    pub fn evict(&mut self, now: Now, keep: &[u64], reach: EvictionScope) -> bool {
        self.store.evict(now, keep, reach).is_ok()
    }

    /// Evicts at most `count` items while the memory cap, lowered since, is exceeded.
    pub fn shrink(&mut self, now: Now, count: usize) {
        for _ in 0..count {
            if !self.store.is_over() || !self.evict(now, &[], self.store.reach()) {
                return;
            }
        }
    }

    /// The length of a plain item's value, even past its deadline.
    #[must_use]
    pub fn value_len(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let slot = self.store.find(hash, key).filter(|slot| !slot.is_limit_state())?;
        Some(self.store.item(slot).value().len())
    }

    /// The number of items, including those past their deadline that are not yet swept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether there are no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sum of the items' own bytes: headers, keys and values.
    #[must_use]
    pub fn item_bytes(&self) -> usize {
        self.store.item_bytes()
    }

    /// Bytes of the index.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.store.index_bytes()
    }

    /// Counters of items that were removed without a command.
    #[must_use]
    pub fn losses(&self) -> EvictionStats {
        self.store.losses
    }

    /// Retrievals that found an item past its deadline.
    #[must_use]
    pub fn get_expired(&self) -> u64 {
        self.get_expired
    }

    /// Commands that named the key of a flushed item, each key once. Of a large flush each shard
    /// remembers only some keys.
    #[must_use]
    pub fn get_flushed(&self) -> u64 {
        self.flushed.met()
    }

    /// Resets the counters [`Engine::losses`], [`Engine::get_expired`] and [`Engine::get_flushed`].
    pub fn reset_counters(&mut self) {
        self.store.losses = EvictionStats::default();
        self.get_expired = 0;
        self.flushed.reset();
    }

    /// Locates a command: finds the item, and removes it if it is past its deadline.
    pub(crate) fn at<'k>(&mut self, now: Now, hash: u64, key: &'k [u8]) -> Located<'k> {
        self.live(now, hash, key).0
    }

    /// Like [`Engine::at`]; also returns whether there was an item past its deadline.
    pub(crate) fn live<'k>(&mut self, now: Now, hash: u64, key: &'k [u8]) -> (Located<'k>, bool) {
        self.flush_if_due(now);
        let found = self.store.find_item(hash, key);
        match found.map(|(slot, item)| (slot, item.deadline().is_past(now))) {
            Some((past, true)) => {
                self.store.expire(hash, past);
                (Located { now, hash, key, slot: None }, true)
            }
            Some((slot, false)) => (Located { now, hash, key, slot: Some(slot) }, false),
            None => {
                self.note_missing(hash);
                (Located { now, hash, key, slot: None }, false)
            }
        }
    }

    /// Like [`Engine::at`], but the item may be past its deadline.
    pub(crate) fn found<'k>(&mut self, now: Now, hash: u64, key: &'k [u8]) -> Located<'k> {
        self.flush_if_due(now);
        Located { now, hash, key, slot: self.store.find(hash, key) }
    }

    /// Whether a value of this length is within the bound.
    pub(crate) fn fits(&self, key_bytes: usize, value_bytes: usize) -> bool {
        self.options.bounds.fits(key_bytes, value_bytes)
    }

    /// The index of this shard, and the number of shards.
    pub(crate) fn shard(&self) -> (u64, u64) {
        (self.options.shard, self.options.shards.into())
    }
}
