//! The memory cap, which all shards share, and which items may go for it.
//!
//! Not here: who goes (`store`), going round the shards (the server).

use std::sync::atomic::{AtomicUsize, Ordering};

/// With less than this part of the memory in plain items a shard need not look for them in others.
const PLAIN_SHARE: usize = 16;

/// The memory cap of a process: shared by its shards, which each add what they take.
#[derive(Debug)]
pub struct MemoryCap {
    used: AtomicUsize,
    /// Of those, by plain items.
    plain: AtomicUsize,
    limit: AtomicUsize,
}

/// What one store takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MemoryUsage {
    pub(crate) all: usize,
    /// Of those, by plain items.
    pub(crate) plain: usize,
}

/// What may be evicted. Items past their deadline always may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionScope {
    /// Values and counters.
    Plain,
    /// The states of limits, too.
    All,
}

impl MemoryCap {
    /// A cap of `limit_bytes` (memcached's `-m`).
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

    /// Changes the cap; shards shrink to a lower one as they store.
    pub fn set_limit_bytes(&self, limit_bytes: usize) {
        self.limit.store(limit_bytes, Ordering::Relaxed);
    }

    /// Bytes taken from the allocator by all shards.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether `more_bytes` would pass the cap.
    #[must_use]
    pub fn exceeds_cap_by(&self, more_bytes: usize) -> bool {
        self.used_bytes().saturating_add(more_bytes) > self.limit_bytes()
    }

    /// Whether so much is free that it is not room that a store lacks: no item takes more than half,
    /// rounded.
    #[must_use]
    pub fn is_mostly_free(&self) -> bool {
        !self.exceeds_cap_by(self.limit_bytes() / 4 * 3)
    }

    /// Whether one item of so many bytes is too much: most others would have to go for it.
    pub(crate) fn refuses(&self, item_bytes: usize) -> bool {
        item_bytes > self.limit_bytes() / 2
    }

    /// Which items a shard may give for a store of its own: while the plain items of all shards take some
    /// memory, others have them if it has none.
    pub(crate) fn reach(&self) -> EvictionScope {
        let plain = self.plain.load(Ordering::Relaxed);
        if plain > self.limit_bytes() / PLAIN_SHARE {
            EvictionScope::Plain
        } else {
            EvictionScope::All
        }
    }

    /// Notes that a store which took `former` takes `now`.
    pub(crate) fn change(&self, former: MemoryUsage, now: MemoryUsage) {
        // Both wrap where less is taken than before.
        self.used.fetch_add(now.all.wrapping_sub(former.all), Ordering::Relaxed);
        self.plain.fetch_add(now.plain.wrapping_sub(former.plain), Ordering::Relaxed);
    }
}
