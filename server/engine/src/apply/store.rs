//! Storing and deleting: what `set` and its kin, `delete`, `ms` and `md` do to an item.
//!
//! Not here: an item too large for the server or left in a store that fails (`apply`), what the
//! commands do on the key of a limit (`bound`).
//! Source: memcached's `do_store_item` and `process_mdelete_cmd`, as measured.

use protocol::{Delete, Outcome, Set, SetMode, Value, canonical_u64};

use super::{At, Engine};
use crate::arena::Slot;
use crate::item::{Figures, Mark};
use crate::time::Deadline;

/// Whether a store goes on past its mode and cas unique.
enum Condition {
    Holds,
    /// The cas unique is an older one, and the store accepts that: the item stays stale.
    HoldsForStale(Slot),
    /// Answer with this.
    Fails(Outcome<'static>),
}

impl Engine {
    pub(super) fn set(&mut self, at: At<'_>, set: &Set<'_>) -> Outcome<'_> {
        let old = at.slot;
        let stale = match self.condition(at, set) {
            Condition::Holds => None,
            Condition::HoldsForStale(slot) => {
                let item = self.store.item(slot);
                Some((item.deadline(), item.has(Mark::WON)))
            }
            Condition::Fails(outcome) => return outcome,
        };
        let extends = matches!(set.mode, SetMode::Append | SetMode::Prepend);
        if let (true, Some(slot)) = (extends, old) {
            return self.extend(at, set, slot);
        }
        let exptime = set.vivify.filter(|_| extends).unwrap_or(set.exptime);
        // A stale value is no renewal: it ends when the one before it would have ended.
        let (deadline, won) = stale.unwrap_or((Deadline::resolve(at.now, exptime), false));
        let cas = self.uniques.next(set.new_cas);
        let figures = Figures::new(cas, set.client_flags, deadline)
            .mark(Mark::STALE, stale.is_some())
            .mark(Mark::WON, won)
            .mark(Mark::BASE64, set.base64);
        let value = canonical_u64(set.value).map_or(Value::Bytes(set.value), Value::Number);
        self.write(at, old, figures, value)
    }

    /// Compares the mode and the cas unique of a store with the item that is there. `add` has no
    /// use for a unique; `append` and `prepend` take 0 for none, and none is too old for them.
    fn condition(&mut self, at: At<'_>, set: &Set<'_>) -> Condition {
        use SetMode::{Add, Append, Prepend, Replace, Set as Whole};
        let Some(slot) = at.slot else {
            return match set.mode {
                Whole | Replace if set.compare_cas.is_some() => Condition::Fails(Outcome::NotFound),
                Replace => Condition::Fails(Outcome::NotStored),
                Append | Prepend if set.vivify.is_none() => Condition::Fails(Outcome::NotStored),
                _ => Condition::Holds,
            };
        };
        if set.mode == Add {
            self.store.item_mut(slot).touch(at.now);
            return Condition::Fails(Outcome::NotStored);
        }
        let item_cas = self.store.item(slot).cas();
        let extends = matches!(set.mode, Append | Prepend);
        match set.compare_cas {
            Some(0) if extends => Condition::Holds,
            Some(unique) if unique != item_cas => {
                let accepts_older = set.invalidate && !extends && unique != 0;
                if accepts_older && unique < item_cas {
                    Condition::HoldsForStale(slot)
                } else {
                    Condition::Fails(Outcome::Exists)
                }
            }
            _ => Condition::Holds,
        }
    }

    /// Append or prepend: client flags and exptime stay.
    fn extend(&mut self, at: At<'_>, set: &Set<'_>, slot: Slot) -> Outcome<'_> {
        let item = self.store.item(slot);
        let mut figures = item.figures();
        let old = item.value();
        let bytes = old.len() + set.value.len();
        if !self.options.bounds.fits(at.key.len(), bytes) {
            return Outcome::NotStored;
        }
        let mut value = Vec::with_capacity(bytes);
        if set.mode == SetMode::Append {
            old.write(&mut value);
            value.extend_from_slice(set.value);
        } else {
            value.extend_from_slice(set.value);
            old.write(&mut value);
        }
        figures.cas = self.uniques.next(set.new_cas);
        figures = figures.mark(Mark::WON, false).mark(Mark::STALE, false);
        let value = canonical_u64(&value).map_or(Value::Bytes(&value), Value::Number);
        self.write(at, Some(slot), figures, value)
    }

    pub(super) fn delete(&mut self, at: At<'_>, delete: &Delete) -> Outcome<'_> {
        let Some(slot) = at.slot else { return Outcome::NotFound };
        let item = self.store.item(slot);
        if delete.compare_cas.is_some_and(|unique| unique != item.cas()) {
            return Outcome::Exists;
        }
        if !delete.stale && !delete.drop_value {
            self.store.remove(at.hash, slot);
            return Outcome::Deleted;
        }
        let mut figures = item.figures();
        if delete.drop_value {
            // A new item, of which nothing but the key is the old one's.
            let deadline = delete
                .exptime
                .map_or(Deadline::NEVER, |exptime| Deadline::resolve(at.now, exptime));
            figures = Figures::new(0, delete.client_flags, deadline)
                .mark(Mark::BASE64, item.has(Mark::BASE64));
        }
        if delete.stale {
            figures = figures.mark(Mark::STALE, true).mark(Mark::WON, false);
            if let Some(exptime) = delete.exptime {
                figures.deadline = Deadline::resolve(at.now, exptime);
            }
        }
        figures.cas = self.uniques.next(delete.new_cas);
        if !delete.drop_value {
            self.store.set_figures(slot, figures);
            return Outcome::Deleted;
        }
        match self.write(at, Some(slot), figures, Value::Bytes(b"")) {
            Outcome::Stored(_) => Outcome::Deleted,
            refused => refused,
        }
    }
}
