//! Where a few items of a shard lay a moment ago.
//!
//! Not here: whether they still lie there (`store`).

use std::cell::Cell;

use crate::arena::{FIRST, Slot};

/// As many as a batch has keys of one shard, mostly.
const HINTS: usize = 4;

/// The places of keys that were asked for ahead of their use, or used last.
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
        // The low bits choose the line, the next ones the tag: neither tells keys of one line apart.
        &self.0[(hash >> 32) as usize % HINTS]
    }

    /// Where the item of a key with this hash may lie.
    #[inline]
    pub(super) fn get(&self, hash: u64) -> Option<Slot> {
        let hint = self.of(hash).get();
        (hint.hash == hash as u32).then_some(hint.slot)
    }

    /// Notes where it lies.
    #[inline]
    pub(super) fn note(&self, hash: u64, slot: Slot) {
        self.of(hash).set(CachedLookup { hash: hash as u32, slot });
    }
}
