//! Storing and deleting: the effect of `set` and its kin, `delete`, `ms` and `md` on an item.
//!
//! Here: memcached's rules. Not here: an item that is too large or left over from a failed store
//! (`apply`), the same commands on a limited key (`limited_keys`). Source: memcached's
//! `do_store_item` and `process_mdelete_cmd`, as measured.

use protocol::{Delete, Outcome, Set, SetMode, Value, canonical_u64};

use super::{Engine, Located};
use crate::store::arena::Slot;
use crate::store::item::{ItemFlag, ItemHeader};
use crate::time::Deadline;

/// The result of comparing a store with the existing item.
enum StoreCondition {
    Holds,
    /// The cas unique is older than the item's, and the store accepts that: the item stays stale.
    HoldsForStale(Slot),
    /// The store fails with this outcome.
    Fails(Outcome<'static>),
}

impl Engine {
    pub(super) fn set(&mut self, at: Located<'_>, set: &Set<'_>) -> Outcome<'_> {
        let old = at.slot;
        let stale = match self.condition(at, set) {
            StoreCondition::Holds => None,
            StoreCondition::HoldsForStale(slot) => {
                let item = self.store.item(slot);
                Some((item.deadline(), item.has(ItemFlag::WON)))
            }
            StoreCondition::Fails(outcome) => return outcome,
        };
        let extends = matches!(set.mode, SetMode::Append | SetMode::Prepend);
        if let (true, Some(slot)) = (extends, old) {
            return self.extend(at, set, slot);
        }
        let exptime = set.vivify.filter(|_| extends).unwrap_or(set.exptime);
        // A stale value does not renew the item: it keeps the former deadline.
        let (deadline, won) = stale.unwrap_or((Deadline::resolve(at.now, exptime), false));
        let cas = self.uniques.next(set.new_cas);
        let header = ItemHeader::new(cas, set.client_flags, deadline)
            .mark(ItemFlag::STALE, stale.is_some())
            .mark(ItemFlag::WON, won)
            .mark(ItemFlag::BASE64, set.base64);
        let value = canonical_u64(set.value).map_or(Value::Bytes(set.value), Value::Number);
        self.write(at, old, header, value)
    }

    /// Compares the mode and the cas unique of a store with the existing item. `add` ignores a
    /// unique; for `append` and `prepend` 0 means none, and an older unique never matches.
    fn condition(&mut self, at: Located<'_>, set: &Set<'_>) -> StoreCondition {
        use SetMode::{Add, Append, Prepend, Replace, Set as Whole};
        let Some(slot) = at.slot else {
            return match set.mode {
                Whole | Replace if set.compare_cas.is_some() => {
                    StoreCondition::Fails(Outcome::NotFound)
                }
                Replace => StoreCondition::Fails(Outcome::NotStored),
                Append | Prepend if set.vivify.is_none() => {
                    StoreCondition::Fails(Outcome::NotStored)
                }
                _ => StoreCondition::Holds,
            };
        };
        if set.mode == Add {
            self.store.item_mut(slot).touch(at.now);
            return StoreCondition::Fails(Outcome::NotStored);
        }
        let item_cas = self.store.item(slot).cas();
        let extends = matches!(set.mode, Append | Prepend);
        match set.compare_cas {
            Some(0) if extends => StoreCondition::Holds,
            Some(unique) if unique != item_cas => {
                let accepts_older = set.invalidate && !extends && unique != 0;
                if accepts_older && unique < item_cas {
                    StoreCondition::HoldsForStale(slot)
                } else {
                    StoreCondition::Fails(Outcome::Exists)
                }
            }
            _ => StoreCondition::Holds,
        }
    }

    /// Appends or prepends: client flags and exptime stay.
    fn extend(&mut self, at: Located<'_>, set: &Set<'_>, slot: Slot) -> Outcome<'_> {
        let item = self.store.item(slot);
        let mut header = item.header();
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
        header.cas = self.uniques.next(set.new_cas);
        header = header.mark(ItemFlag::WON, false).mark(ItemFlag::STALE, false);
        let value = canonical_u64(&value).map_or(Value::Bytes(&value), Value::Number);
        self.write(at, Some(slot), header, value)
    }

    pub(super) fn delete(&mut self, at: Located<'_>, delete: &Delete) -> Outcome<'_> {
        let Some(slot) = at.slot else { return Outcome::NotFound };
        let item = self.store.item(slot);
        if delete.compare_cas.is_some_and(|unique| unique != item.cas()) {
            return Outcome::Exists;
        }
        if !delete.stale && !delete.drop_value {
            self.store.remove(at.hash, slot);
            return Outcome::Deleted;
        }
        let mut header = item.header();
        if delete.drop_value {
            // A new item that keeps only the key of the old one.
            let deadline = delete
                .exptime
                .map_or(Deadline::NEVER, |exptime| Deadline::resolve(at.now, exptime));
            header = ItemHeader::new(0, delete.client_flags, deadline)
                .mark(ItemFlag::BASE64, item.has(ItemFlag::BASE64));
        }
        if delete.stale {
            header = header.mark(ItemFlag::STALE, true).mark(ItemFlag::WON, false);
            if let Some(exptime) = delete.exptime {
                header.deadline = Deadline::resolve(at.now, exptime);
            }
        }
        header.cas = self.uniques.next(delete.new_cas);
        if !delete.drop_value {
            self.store.set_header(slot, header);
            return Outcome::Deleted;
        }
        match self.write(at, Some(slot), header, Value::Bytes(b"")) {
            Outcome::Stored(_) => Outcome::Deleted,
            refused => refused,
        }
    }
}
