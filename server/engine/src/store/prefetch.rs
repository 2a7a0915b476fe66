//! Memory that keys need, asked for ahead of its use: in three steps, for each finds its place in what the one
//! before it has brought.
//!
//! Not here: the batches whose steps are taken together (the server's `shards`).

use super::{Slot, Store};
use crate::prefetch::{CACHE_LINE_BYTES, prefetch};

impl Store {
    /// Asks for the index line of a key ahead of its use.
    pub(crate) fn prefetch_line(&self, hash: u64) {
        // Where it is remembered the item was used a moment ago, and need not be fetched.
        if self.hints.get(hash).is_none() {
            self.index.prefetch(hash);
        }
    }

    /// Asks for the item of a key ahead of its use; the line must be here already. It is the first with
    /// the tag of the key, mostly, and where it lies is remembered. False if it may lie behind that line:
    /// then more is asked for with [`Store::prefetch_item_behind`].
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

    /// As [`Store::prefetch_item`], for an item that lies behind the first line.
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
        // A slot of a counter lies across two cache lines as often as not, and the end of a state
        // is what is changed.
        prefetch(&bytes[bytes.len().min(CACHE_LINE_BYTES) - 1]);
        if bytes.len() > CACHE_LINE_BYTES {
            prefetch(&bytes[bytes.len().min(2 * CACHE_LINE_BYTES) - 1]);
        }
    }
}
