//! Plain items: the effect of `get`, `set` and its kin, `delete`, `touch` and their meta forms.
//!
//! Here: memcached's rules, and those for items that a reader should recache. Not here: counting
//! (`counters`), an item that is too large or left over from a failed store (`commands`), the same
//! commands on a limited key (`limited_keys`), the fast path (`fast`). Source: memcached's
//! `do_store_item` and `process_mdelete_cmd`, as measured.

use protocol::{Delete, Exptime, Get, ItemView, Outcome, Set, SetMode, Value, canonical_u64};

use crate::engine::Engine;
use crate::store::Located;
use crate::store::arena::Slot;
use crate::store::item::{Content, Item, ItemFlag, ItemHeader};
use crate::time::{Deadline, Now};

/// The result of comparing a store with the existing item.
enum StoreCondition {
    Holds,
    /// The cas unique is older than the item's, and the store accepts that: the item stays stale.
    HoldsForStale(Slot),
    /// The store fails with this outcome.
    Fails(Outcome<'static>),
}

impl Engine {
    pub(super) fn get(&mut self, at: Located<'_>, get: &Get) -> Outcome<'_> {
        let Some(slot) = at.slot else { return self.vivify(at, get) };
        let mut item = self.store.item_mut(slot);
        let former = item.as_item();
        let former_ttl_seconds = former.deadline().left_seconds(at.now);
        let recache = get.recache.is_some_and(|seconds| {
            let new = get.touch.filter(|_| get.touch_is_first);
            let left = new.map_or(former_ttl_seconds, |exptime| {
                Deadline::resolve(at.now, exptime).left_seconds(at.now)
            });
            left.is_some_and(|left| i64::from(left) < i64::from(seconds))
        });
        let already_won = former.has(ItemFlag::WON);
        // A classic reply cannot report the right to recache, so the right stays for a client that
        // can receive it.
        let won = get.may_win && !already_won && (former.has(ItemFlag::STALE) || recache);
        let (idle_seconds, fetched) = (former.idle_seconds(at.now), former.has(ItemFlag::FETCHED));
        if won {
            item.set_mark(ItemFlag::WON);
        }
        let mut ttl_seconds = former_ttl_seconds;
        if let Some(exptime) = get.touch {
            let deadline = Deadline::resolve(at.now, exptime);
            item.set_deadline(deadline);
            ttl_seconds = deadline.left_seconds(at.now);
        }
        if !get.no_bump {
            item.set_mark(ItemFlag::FETCHED);
            item.touch(at.now);
        }
        let item = item.into_item();
        Outcome::Hit(ItemView {
            value: item.value(),
            client_flags: item.client_flags(),
            cas: item.cas(),
            ttl_seconds,
            former_ttl_seconds,
            idle_seconds,
            fetched,
            stale: item.has(ItemFlag::STALE),
            won,
            already_won,
            base64: item.has(ItemFlag::BASE64),
            is_new: false,
            value_unwanted: get.unless_cas == Some(item.cas()),
        })
    }

    /// Handles a miss; with `N` it leaves an empty item, which this client should fill.
    fn vivify(&mut self, at: Located<'_>, get: &Get) -> Outcome<'_> {
        let Some(exptime) = get.vivify else { return Outcome::Miss };
        let cas = self.uniques.next(get.new_cas);
        let header = ItemHeader::new(cas, 0, Deadline::resolve(at.now, exptime))
            .mark(ItemFlag::WON, true)
            .mark(ItemFlag::BASE64, get.base64);
        match self.write(at, header, Value::Bytes(b"")) {
            Outcome::Stored(item) => {
                Outcome::Vivified(ItemView { won: true, is_new: true, ..item })
            }
            refused => refused,
        }
    }

    pub(super) fn write(
        &mut self,
        at: Located<'_>,
        header: ItemHeader,
        value: Value<'_>,
    ) -> Outcome<'_> {
        match self.store.write(at, header, Content::Value(value)) {
            Ok(slot) => Outcome::Stored(view(self.store.item(slot), at.now)),
            Err(_) => Outcome::OutOfMemory,
        }
    }

    pub(super) fn set(&mut self, at: Located<'_>, set: &Set<'_>) -> Outcome<'_> {
        let stale = match self.condition(at, set) {
            StoreCondition::Holds => None,
            StoreCondition::HoldsForStale(slot) => {
                let item = self.store.item(slot);
                Some((item.deadline(), item.has(ItemFlag::WON)))
            }
            StoreCondition::Fails(outcome) => return outcome,
        };
        let extends = matches!(set.mode, SetMode::Append | SetMode::Prepend);
        if let (true, Some(slot)) = (extends, at.slot) {
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
        self.write(at, header, value)
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
        if !self.fits(at.key.len(), bytes) {
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
        self.write(at, header, value)
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
        match self.write(at, header, Value::Bytes(b"")) {
            Outcome::Stored(_) => Outcome::Deleted,
            refused => refused,
        }
    }

    pub(super) fn touch(&mut self, at: Located<'_>, exptime: Exptime) -> Outcome<'_> {
        let Some(slot) = at.slot else { return Outcome::NotFound };
        let mut item = self.store.item_mut(slot);
        item.set_deadline(Deadline::resolve(at.now, exptime));
        item.touch(at.now);
        Outcome::Touched
    }
}

pub(super) fn view(item: Item<'_>, now: Now) -> ItemView<'_> {
    ItemView { value: item.value(), ..view_without_value(item, now) }
}

pub(super) fn view_without_value(item: Item<'_>, now: Now) -> ItemView<'static> {
    let ttl_seconds = item.deadline().left_seconds(now);
    ItemView {
        value: Value::Bytes(b""),
        client_flags: item.client_flags(),
        cas: item.cas(),
        ttl_seconds,
        former_ttl_seconds: ttl_seconds,
        idle_seconds: item.idle_seconds(now),
        fetched: item.has(ItemFlag::FETCHED),
        stale: item.has(ItemFlag::STALE),
        won: false,
        already_won: false,
        base64: item.has(ItemFlag::BASE64),
        is_new: false,
        value_unwanted: false,
    }
}
