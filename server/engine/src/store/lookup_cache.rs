//! The recent slots of a few items of a shard.
//!
//! Here: the cache. Not here: whether an item is still in its slot (`store`).

use std::cell::Cell;

use super::arena::{FIRST, Slot};

/// About as many as a batch has keys of one shard.
const HINTS: usize = 4;

/// The slots of keys that were prefetched or used last.
pub(super) struct LookupCache([Cell<CachedLookup>; HINTS]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CachedLookup {
    /// The low half of the key's hash.
    hash: u32,
    slot: Slot,
}

impl LookupCache {
    pub(super) fn new() -> Self {
        Self([const { Cell::new(CachedLookup { hash: 0, slot: FIRST }) }; HINTS])
    }

    fn of(&self, hash: u64) -> &Cell<CachedLookup> {
        // The low bits choose the line and the next ones the tag: neither distinguishes keys of one
        // line.
        &self.0[(hash >> 32) as usize % HINTS]
    }

    /// The slot in which the item of a key with this hash may be.
    #[inline]
    pub(super) fn get(&self, hash: u64) -> Option<Slot> {
        let hint = self.of(hash).get();
        (hint.hash == hash as u32).then_some(hint.slot)
    }

    /// Records the slot of an item.
    #[inline]
    pub(super) fn note(&self, hash: u64, slot: Slot) {
        self.of(hash).set(CachedLookup { hash: hash as u32, slot });
    }
}
