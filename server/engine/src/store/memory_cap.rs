//! The memory cap, which all shards share, and the scope of eviction.
//!
//! Here: the shared counters. Not here: the choice of a victim (`eviction`), eviction in several
//! shards (the server).

use std::sync::atomic::{AtomicUsize, Ordering};

/// If plain items take less than this fraction of the cap, a shard evicts its own limit states
/// instead of plain items in other shards.
const PLAIN_SHARE: usize = 16;

/// The memory cap of a process, shared by its shards, which add their usage.
#[derive(Debug)]
pub struct MemoryCap {
    used: AtomicUsize,
    /// Bytes used by plain items, included in `used`.
    plain: AtomicUsize,
    limit: AtomicUsize,
}

/// The memory usage of one store, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MemoryUsage {
    pub(crate) all: usize,
    /// Bytes used by plain items, included in `all`.
    pub(crate) plain: usize,
}

/// The items that may be evicted. Items past their deadline always may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionScope {
    /// Values and counters.
    Plain,
    /// Limit states too.
    All,
}

impl MemoryCap {
    /// Returns a cap of `limit_bytes` (memcached's `-m`).
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        let (used, plain) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { used, plain, limit: AtomicUsize::new(limit_bytes) }
    }

    /// The cap in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the cap; shards shrink to a lower one when they store.
    pub fn set_limit_bytes(&self, limit_bytes: usize) {
        self.limit.store(limit_bytes, Ordering::Relaxed);
    }

    /// Bytes allocated by all shards.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether `more_bytes` would pass the cap.
    #[must_use]
    pub fn exceeds_cap_by(&self, more_bytes: usize) -> bool {
        self.used_bytes().saturating_add(more_bytes) > self.limit_bytes()
    }

    /// Whether at least three quarters of the cap are free. A store then never lacks room: no item
    /// takes more than half of the cap, rounded up.
    #[must_use]
    pub fn is_mostly_free(&self) -> bool {
        !self.exceeds_cap_by(self.limit_bytes() / 4 * 3)
    }

    /// Whether one item of `item_bytes` is too large: it would evict most other items.
    pub(crate) fn refuses(&self, item_bytes: usize) -> bool {
        item_bytes > self.limit_bytes() / 2
    }

    /// The scope in which a shard may evict for a store of its own. While the plain items of all
    /// shards use some memory, a shard without plain items leaves eviction to others.
    pub(crate) fn reach(&self) -> EvictionScope {
        let plain = self.plain.load(Ordering::Relaxed);
        if plain > self.limit_bytes() / PLAIN_SHARE {
            EvictionScope::Plain
        } else {
            EvictionScope::All
        }
    }

    /// Records that the usage of a store changed from `former` to `now`.
    pub(crate) fn change(&self, former: MemoryUsage, now: MemoryUsage) {
        // Both additions wrap if the usage decreases.
        self.used.fetch_add(now.all.wrapping_sub(former.all), Ordering::Relaxed);
        self.plain.fetch_add(now.plain.wrapping_sub(former.plain), Ordering::Relaxed);
    }
}
