//! Prefetching the memory of keys, in three steps: each step finds its address in the memory that
//! the step before it has fetched.
//!
//! Here: the steps. Not here: the batches that take each step together (the server's `shards`).

use super::{Slot, Store};
use crate::prefetch::{CACHE_LINE_BYTES, prefetch};

impl Store {
    /// Prefetches the index line of a key.
    pub(crate) fn prefetch_line(&self, hash: u64) {
        // An item in the lookup cache was used a moment ago and needs no prefetch.
        if self.hints.get(hash).is_none() {
            self.index.prefetch(hash);
        }
    }

    /// Prefetches the item of a key; its index line must be in cache already. The item is mostly
    /// the first with the key's tag, and its slot is recorded. Returns false if the item may be
    /// behind that line: then [`Store::prefetch_item_behind`] prefetches it.
    pub(crate) fn prefetch_item(&self, hash: u64) -> bool {
        if self.hints.get(hash).is_some() {
            return true;
        }
        let Some(slot) = self.index.find_first(hash).map(Slot::from_raw) else {
            return !self.index.prefetch_behind(hash);
        };
        self.prefetch_slot(hash, slot);
        true
    }

    /// Like [`Store::prefetch_item`], for an item behind the first line.
    #[cold]
    pub(crate) fn prefetch_item_behind(&self, hash: u64) {
        if let Some(slot) = self.index.find(hash, |_| true).map(Slot::from_raw) {
            self.prefetch_slot(hash, slot);
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is most of what fetching an item is")]
    fn prefetch_slot(&self, hash: u64, slot: Slot) {
        self.hints.note(hash, slot);
        let bytes = self.arena(slot).get(slot);
        prefetch(&bytes[0]);
        // The slot of a counter often spans two cache lines, and the end of a limit state is the
        // part that changes.
        prefetch(&bytes[bytes.len().min(CACHE_LINE_BYTES) - 1]);
        if bytes.len() > CACHE_LINE_BYTES {
            prefetch(&bytes[bytes.len().min(2 * CACHE_LINE_BYTES) - 1]);
        }
    }
}
