//! All items of a shard, one after the other: to read them, and to remove those past their
//! deadline.
//!
//! Here: the walk over slots. Not here: the items of a partition (`scan`), making room
//! (`eviction`).

use super::past::is_past;
use super::{FIRST, Item, Slot, Store};
use crate::time::Now;

impl Store {
    /// Visits up to `count` more items and removes those past their deadline. Returns true at the
    /// end; the next call starts over.
    pub(crate) fn sweep(&mut self, now: Now, count: usize) -> bool {
        for _ in 0..count {
            let Some(slot) = self.at_or_after(self.sweep) else {
                self.sweep = FIRST;
                return true;
            };
            self.losses.sweep_checked += 1;
            let item = self.item(slot);
            // `now` is no earlier than the time of any partition: most items need no further check.
            if item.deadline().is_past(now)
                && is_past(item, now, self.hasher.time_of(item.key(), now))
            {
                let hash = self.hasher.hash(item.key());
                self.losses.swept += 1;
                // Another item moves into `slot`: visit the same slot again.
                self.expire(hash, slot);
                self.sweep = slot;
            } else {
                self.sweep = slot.next();
            }
        }
        false
    }

    /// The item at or after a slot: first the plain ones, then the limit states.
    fn at_or_after(&self, slot: Slot) -> Option<Slot> {
        if !slot.is_limit_state() {
            if let Some(found) = self.plain.at_or_after(slot) {
                return Some(found);
            }
            return self.states.at_or_after(FIRST).map(Slot::in_limit_arena);
        }
        self.states.at_or_after(slot).map(Slot::in_limit_arena)
    }

    /// The hashes of all keys that are not past their deadline, in no order.
    pub(crate) fn hashes(&self, now: Now) -> impl Iterator<Item = u64> {
        let live = self.items().filter(move |item| !item.deadline().is_past(now));
        live.map(|item| self.hasher.hash(item.key()))
    }

    /// All items, in no order.
    pub(crate) fn items(&self) -> impl Iterator<Item = Item<'_>> {
        let mut next = FIRST;
        std::iter::from_fn(move || {
            let slot = self.at_or_after(next)?;
            next = slot.next();
            Some(self.item(slot))
        })
    }
}
