//! The fast path of a plain `get`, `incr` and `decr`, and of the copies of a count: an existing
//! item is read or changed in place.
//!
//! Here: the common cases. Not here: all other cases, which take the general path (`items`,
//! `counters`) with the same result; the property test of the engine compares both with one naive
//! twin. The copies of all other items (`item_codec`).

use std::hint::cold_path;

use protocol::Value;

use crate::engine::{Engine, Uniques};
use crate::store::ItemChange;
use crate::store::arena::Slot;
use crate::store::item::{Content, Item, ItemFlag, ItemHeader, ItemMut};
use crate::time::{Deadline, Now};

/// The result of the fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastResult<T> {
    /// The command is done.
    Done(T),
    /// The key has no item.
    Missing,
    /// Nothing is done: take the general path.
    General,
}

impl Engine {
    /// Adds to a counter, or subtracts down to 0; returns the new count.
    #[inline]
    pub fn count_in_place(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        delta: u64,
        decrement: bool,
    ) -> FastResult<u64> {
        self.flush_if_due(now);
        let (uniques, changed_at) = (&mut self.uniques, &mut self.changed_at);
        let counting = CountInPlace { now, delta, decrement, uniques, changed_at };
        let changed = self.store.change(hash, key, counting);
        match changed {
            Some(Some((number, former_cas, cas))) => {
                self.store.note_cas(former_cas, cas);
                FastResult::Done(number)
            }
            Some(None) => FastResult::General,
            None => {
                self.note_missing(hash);
                FastResult::Missing
            }
        }
    }

    /// Passes the value and the client flags of an item to `read`, and returns its result.
    #[inline]
    pub fn get_in_place<R>(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        read: impl FnOnce(Value<'_>, u32) -> R,
    ) -> FastResult<R> {
        self.flush_if_due(now);
        match self.store.change(hash, key, ReadInPlace { now, read }) {
            Some(Some(result)) => FastResult::Done(result),
            Some(None) => FastResult::General,
            None => {
                self.note_missing(hash);
                FastResult::Missing
            }
        }
    }

    /// The count of a key, if its item is a bare count with this cas unique: without client flags,
    /// deadline, and marks that other nodes need. Its key, its cas unique and this number are then
    /// the whole item.
    #[must_use]
    #[inline]
    pub fn bare_count(&self, hash: u64, key: &[u8], cas: u64) -> Option<u64> {
        let (_, item) = self.store.find_item(hash, key)?;
        bare_count(item).filter(|_| item.cas() == cas)
    }

    /// Like [`Engine::bare_count`], of the item that the last [`Engine::with_unique`] changed in
    /// place. Call it before the next command.
    #[must_use]
    #[inline]
    pub fn bare_count_changed(&self) -> Option<u64> {
        bare_count(self.store.item(self.changed_at?))
    }

    /// Makes the item of a key a bare count, as [`Engine::put_copy`] does with the copy of one.
    /// Returns false if there is no room; the item is then unchanged.
    #[inline]
    pub fn put_bare_count(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        count: u64,
        cas: u64,
    ) -> bool {
        let putting = PutCountInPlace { now, count, cas };
        if let Some(Some(former_cas)) = self.store.change(hash, key, putting) {
            self.store.note_cas(former_cas, cas);
            self.uniques.raise(cas);
            return true;
        }
        self.put_new_count(now, hash, key, count, cas)
    }

    #[cold]
    fn put_new_count(&mut self, now: Now, hash: u64, key: &[u8], count: u64, cas: u64) -> bool {
        let at = self.found(now, hash, key);
        self.uniques.raise(cas);
        let header = ItemHeader::new(cas, 0, Deadline::NEVER);
        let content = Content::Value(Value::Number(count));
        self.store.write(at, header, content).is_ok()
    }
}

/// The count after an increment or decrement.
pub(super) fn counted(number: u64, delta: u64, decrement: bool) -> u64 {
    if decrement { number.saturating_sub(delta) } else { number.wrapping_add(delta) }
}

/// Changes a counter. Returns the new count, and the cas unique before and after; `None` if nothing
/// was changed.
struct CountInPlace<'a> {
    now: Now,
    delta: u64,
    decrement: bool,
    uniques: &'a mut Uniques,
    changed_at: &'a mut Option<Slot>,
}

impl ItemChange for CountInPlace<'_> {
    type Answer = Option<(u64, u64, u64)>;

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is the whole of `count_in_place`")]
    fn make(self, slot: Slot, mut item: ItemMut<'_>) -> Self::Answer {
        let former = item.as_item();
        let Value::Number(number) = former.value() else {
            cold_path();
            return None;
        };
        let former_cas = former.cas();
        let number = counted(number, self.delta, self.decrement);
        let is_past = former.deadline().is_past(self.now);
        if slot.is_limit_state() || is_past || !item.set_number(number) {
            cold_path();
            return None;
        }
        let cas = self.uniques.next_in_place(slot, self.changed_at);
        item.set_cas(cas);
        item.touch(self.now);
        Some((number, former_cas, cas))
    }
}

/// Reads an item and marks it as fetched. Returns `None` if nothing was read.
struct ReadInPlace<F> {
    now: Now,
    read: F,
}

impl<R, F: FnOnce(Value<'_>, u32) -> R> ItemChange for ReadInPlace<F> {
    type Answer = Option<R>;

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is the whole of `get_in_place`")]
    fn make(self, slot: Slot, mut item: ItemMut<'_>) -> Self::Answer {
        if slot.is_limit_state() || item.as_item().deadline().is_past(self.now) {
            cold_path();
            return None;
        }
        item.set_mark(ItemFlag::FETCHED);
        item.touch(self.now);
        let item = item.into_item();
        Some((self.read)(item.value(), item.client_flags()))
    }
}

fn bare_count(item: Item<'_>) -> Option<u64> {
    let Value::Number(number) = item.value() else { return None };
    let header = item.header();
    let is_bare = header.client_flags == 0
        && header.deadline == Deadline::NEVER
        && header.marks & ItemFlag::COPIED == 0;
    is_bare.then_some(number)
}

/// Changes a bare count to another. Returns the former cas unique; `None` if nothing was changed.
struct PutCountInPlace {
    now: Now,
    count: u64,
    cas: u64,
}

impl ItemChange for PutCountInPlace {
    type Answer = Option<u64>;

    #[inline]
    fn make(self, slot: Slot, mut item: ItemMut<'_>) -> Self::Answer {
        let former_cas = item.as_item().cas();
        if slot.is_limit_state()
            || bare_count(item.as_item()).is_none()
            || !item.set_number(self.count)
        {
            return None;
        }
        item.set_cas(self.cas);
        item.touch(self.now);
        Some(former_cas)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use protocol::{Command, Exptime, Key, Operation, Outcome, Set, SetMode};

    use super::*;
    use crate::{EngineOptions, KeyHasher, MemoryCap};

    #[test]
    fn an_item_used_by_a_younger_batch_is_not_idle() {
        let memory_cap = Arc::new(MemoryCap::new(64 << 20));
        let mut engine =
            Engine::new(KeyHasher::new([1, 2, 3, 4]), memory_cap, EngineOptions::default());
        let key = Key::plain(b"hot").expect("a key");
        let set = Operation::Set(Set::plain(SetMode::Set, 0, Exptime(0), b"1"));
        let inspect = Command { key: key.clone(), operation: Operation::Inspect };
        engine.apply(Now::at_ms(1000), 7, &Command { key, operation: set });
        assert_eq!(
            engine.count_in_place(Now::at_ms(9000), 7, b"hot", 1, false),
            FastResult::Done(2)
        );
        for (ms, idle) in [(8950, 0), (9000, 0), (12_000, 3)] {
            let Outcome::Hit(item) = engine.apply(Now::at_ms(ms), 7, &inspect) else {
                panic!("it is there")
            };
            assert_eq!(item.idle_seconds, idle, "{ms}");
        }
    }
}
