//! The effect of each command on the items of one shard.
//!
//! Here: memcached's rules for reading, counting and touching, and for items that a reader should
//! recache. Not here: storing and deleting (`apply/store`), the storage of items and eviction
//! (`store`), exptimes (`time`), the fast path (`fast`).

mod fast;
mod store;

use std::num::NonZeroU64;
use std::sync::Arc;

use protocol::{
    Arithmetic, Bounds, Command, Exptime, Get, ItemView, Operation, Outcome, SetMode, Value,
    lenient_u64,
};

use crate::commands::take::LimitParts;
use crate::flushed::Flushed;
use crate::hasher::KeyHasher;
use crate::prefetch::CACHE_LINE_BYTES;
use crate::snapshot::ItemRecord;
use crate::store::arena::Slot;
use crate::store::item::{Content, Item, ItemFlag, ItemHeader};
use crate::store::memory_cap::{EvictionScope, MemoryCap};
use crate::store::{EvictionStats, Store};
use crate::time::{Deadline, Now};

pub use self::fast::FastResult;

/// The options of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Bound on the size of an item (memcached's `-I`).
    pub bounds: Bounds,
    /// Whether items may be evicted when memory is exhausted (memcached without `-M`).
    pub may_evict: bool,
    /// Whether items get cas uniques (memcached without `-C`); otherwise each is 0.
    pub cas: bool,
    /// The index of this shard: with `shards` it keeps cas uniques distinct between shards.
    pub shard: u64,
    /// The number of shards; at least 1.
    pub shards: u32,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { bounds: Bounds::default(), may_evict: true, cas: true, shard: 0, shards: 1 }
    }
}

/// A greater cas unique was chosen by a client (`E` of a meta command): the engine's own never
/// reach it.
const OWN_CAS_MAX: u64 = u64::MAX / 2;

/// One shard: a store and the rules for changing it.
///
/// The order of the fields is their order in memory. The fields that most commands change come
/// first, and fit one cache line together with the lock in front of them: processors that share a
/// shard transfer only that line, and all other lines stay shared for reading. The fields that a
/// lookup reads fit one more line: a batch needs both lines of each of its shards, and there are
/// hundreds of shards.
#[repr(C)]
pub struct Engine {
    pub(crate) uniques: Uniques,
    pub(crate) store: Store,
    pub(crate) limits: LimitParts,
    options: EngineOptions,
    get_expired: u64,
    flushed: Flushed,
}

/// Bytes of the lock in front of the engine.
const LOCK_BYTES: usize = 8;

#[cfg(target_pointer_width = "64")]
const _: () = {
    /// Whether these bytes of an engine behind its lock lie in one cache line.
    const fn is_one_line(from: usize, to: usize) -> bool {
        (LOCK_BYTES + from) / CACHE_LINE_BYTES == (LOCK_BYTES + to - 1) / CACHE_LINE_BYTES
    }
    let store = std::mem::offset_of!(Engine, store);
    let limits = std::mem::offset_of!(Engine, limits);
    assert!(is_one_line(0, store + Store::CHANGED_END), "what most commands change");
    assert!(
        is_one_line(store + Store::LOOKUP.start, store + Store::LOOKUP.end),
        "what a lookup reads"
    );
    assert!(
        is_one_line(store + Store::STATES_LOOKUP_AT, limits + LimitParts::LOOKUP_END),
        "what a lookup of a state reads beside that"
    );
};

impl Engine {
    /// Returns an empty shard that allocates from `memory_cap`.
    #[must_use]
    pub fn new(hasher: KeyHasher, memory_cap: Arc<MemoryCap>, options: EngineOptions) -> Self {
        Self {
            uniques: Uniques {
                last: options.shard,
                given: None,
                step: options.shards,
                are_kept: options.cas,
                is_flushed: false,
            },
            store: Store::new(hasher, memory_cap, options.may_evict),
            limits: LimitParts::default(),
            options,
            get_expired: 0,
            flushed: Flushed::default(),
        }
    }

    /// Applies `command` at `now`; `hash` is the hash of its key, by the engine's hasher.
    ///
    /// [`Outcome::OutOfMemory`] changes nothing: the caller may make room in other shards and
    /// retry, or call [`Engine::drop_replaced`].
    pub fn apply(&mut self, now: Now, hash: u64, command: &Command<'_>) -> Outcome<'_> {
        let key = command.key.as_bytes();
        let (at, expired) = self.live(now, hash, key);
        if expired {
            self.get_expired += u64::from(matches!(command.operation, Operation::Get(_)));
        }
        if at.slot.is_some_and(Slot::is_limit_state) {
            // A limit state stores its policy, and the plain verbs act on it.
            return self.apply_limited(now, hash, key, None, &command.operation).0;
        }
        match &command.operation {
            Operation::Arithmetic(arithmetic) => self.count(at, arithmetic),
            Operation::Get(get) => self.get(at, get),
            Operation::Set(set) => self.set(at, set),
            Operation::Delete(delete) => self.delete(at, delete),
            Operation::Touch(exptime) => self.touch(at, *exptime),
            Operation::Inspect => match at.slot {
                Some(slot) => Outcome::Hit(view(self.store.item(slot), now)),
                None => Outcome::Miss,
            },
            Operation::TooLarge { .. } => {
                self.drop_replaced(hash, command);
                Outcome::TooLarge
            }
            // Native verbs have their own methods.
            Operation::Native(_) => Outcome::NotAllowed,
        }
    }

    /// Prefetches the index line of a key that will be applied soon: the first of two steps that
    /// overlap the cache misses of a batch.
    pub fn prefetch_line(&self, hash: u64) {
        self.store.prefetch_line(hash);
    }

    /// Prefetches the item of a key: the second step. The item's slot is recorded for a while.
    /// Returns false if a third step is needed, because not every key fits its first index line.
    #[inline]
    pub fn prefetch_item(&self, hash: u64) -> bool {
        self.store.prefetch_item(hash)
    }

    /// Prefetches an item that is not in its first index line: the third step.
    pub fn prefetch_item_behind(&self, hash: u64) {
        self.store.prefetch_item_behind(hash);
    }

    /// Drops the item that a failed store was meant to replace, as memcached does: a client that
    /// got "not stored" must not go on reading the old value. Append and prepend keep the item, and
    /// every store keeps a limit state, because used units stay used.
    pub fn drop_replaced(&mut self, hash: u64, command: &Command<'_>) {
        let replaces = match &command.operation {
            Operation::TooLarge { drop } => *drop,
            Operation::Set(set) => !matches!(set.mode, SetMode::Append | SetMode::Prepend),
            _ => false,
        };
        if replaces
            && let Some(slot) = self.store.find(hash, command.key.as_bytes())
            && !slot.is_limit_state()
        {
            self.store.remove(hash, slot);
        }
    }

    /// Removes every item, at once or after `delay`; the last call holds.
    pub fn flush(&mut self, now: Now, delay: Exptime) {
        self.flush_if_due(now);
        self.store.flush = Deadline::NEVER;
        if delay.0 > 0 {
            self.store.flush = Deadline::resolve(now, delay);
        } else {
            self.clear(now);
        }
    }

    fn clear(&mut self, now: Now) {
        self.flushed.remember(self.store.hashes(now));
        self.uniques.is_flushed = self.flushed.has_some();
        self.store.clear();
    }

    /// Records that a command found no item with this hash.
    #[inline]
    pub(crate) fn note_missing(&mut self, hash: u64) {
        if self.uniques.is_flushed {
            self.uniques.is_flushed = self.flushed.miss(hash);
        }
    }

    pub(crate) fn flush_if_due(&mut self, now: Now) {
        if self.store.flush.is_past(now) {
            self.store.flush = Deadline::NEVER;
            self.clear(now);
        }
    }

    /// Removes items past their deadline among the next `count`; true at the end of a round.
    pub fn sweep(&mut self, now: Now, count: usize) -> bool {
        self.flush_if_due(now);
        let is_round = self.store.sweep(now, count);
        self.drop_unused_policies();
        is_round
    }

    /// Evicts one item to make room for another shard; false if no item may be evicted.
    pub fn evict(&mut self, now: Now, reach: EvictionScope) -> bool {
        self.store.evict(now, b"", reach).is_ok()
    }

    /// Evicts at most `count` items while the memory cap, lowered since, is exceeded.
    pub fn shrink(&mut self, now: Now, count: usize) {
        for _ in 0..count {
            if !self.store.is_over() || !self.evict(now, self.store.reach()) {
                return;
            }
        }
    }

    /// The length of a plain item's value, even past its deadline.
    #[must_use]
    pub fn value_len(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let slot = self.store.find(hash, key).filter(|slot| !slot.is_limit_state())?;
        Some(self.store.item(slot).value().len())
    }

    /// The number of items, including those past their deadline that are not yet swept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether there are no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sum of the items' own bytes: headers, keys and values.
    #[must_use]
    pub fn item_bytes(&self) -> usize {
        self.store.item_bytes()
    }

    /// Bytes of the index.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.store.index_bytes()
    }

    /// Counters of items that were removed without a command.
    #[must_use]
    pub fn losses(&self) -> EvictionStats {
        self.store.losses
    }

    /// Retrievals that found an item past its deadline.
    #[must_use]
    pub fn get_expired(&self) -> u64 {
        self.get_expired
    }

    /// Commands that named the key of a flushed item, each key once. Of a large flush each shard
    /// remembers only some keys.
    #[must_use]
    pub fn get_flushed(&self) -> u64 {
        self.flushed.met()
    }

    /// Resets the counters [`Engine::losses`], [`Engine::get_expired`] and [`Engine::get_flushed`].
    pub fn reset_counters(&mut self) {
        self.store.losses = EvictionStats::default();
        self.get_expired = 0;
        self.flushed.reset();
    }

    /// Each live plain item, with all fields that must outlive the process.
    pub fn records(&self, now: Now) -> impl Iterator<Item = ItemRecord<'_>> {
        self.store
            .items()
            .filter(move |item| !item.deadline().is_past(now) && item.state().is_none())
            .map(move |item| ItemRecord::of(item, now))
    }

    /// Restores a record; false if there is no room. An item of the same key is overwritten.
    pub fn restore(&mut self, now: Now, hash: u64, record: &ItemRecord<'_>) -> bool {
        let old = self.store.find(hash, record.key);
        self.uniques.raise(record.cas);
        let header = record.header(now);
        let content = Content::Value(record.value);
        self.store.write(now, hash, record.key, old, header, content).is_ok()
    }

    /// Most bytes that the policies of this shard's states take beside the store.
    pub(crate) fn policy_bytes_max(&self) -> usize {
        let share = self.store.limit_bytes() / 8;
        share / usize::try_from(self.options.shards).unwrap_or(usize::MAX).max(1)
    }

    /// Locates a command: finds the item, and removes it if it is past its deadline.
    pub(crate) fn at<'k>(&mut self, now: Now, hash: u64, key: &'k [u8]) -> Located<'k> {
        self.live(now, hash, key).0
    }

    /// Like [`Engine::at`]; also returns whether there was an item past its deadline.
    fn live<'k>(&mut self, now: Now, hash: u64, key: &'k [u8]) -> (Located<'k>, bool) {
        self.flush_if_due(now);
        let found = self.store.find_item(hash, key);
        match found.map(|(slot, item)| (slot, item.deadline().is_past(now))) {
            Some((past, true)) => {
                self.store.expire(hash, past);
                (Located { now, hash, key, slot: None }, true)
            }
            Some((slot, false)) => (Located { now, hash, key, slot: Some(slot) }, false),
            None => {
                self.note_missing(hash);
                (Located { now, hash, key, slot: None }, false)
            }
        }
    }

    /// Like [`Engine::at`], but the item may be past its deadline.
    pub(crate) fn found<'k>(&mut self, now: Now, hash: u64, key: &'k [u8]) -> Located<'k> {
        self.flush_if_due(now);
        Located { now, hash, key, slot: self.store.find(hash, key) }
    }

    /// Whether a value of this length is within the bound.
    pub(crate) fn fits(&self, key_bytes: usize, value_bytes: usize) -> bool {
        self.options.bounds.fits(key_bytes, value_bytes)
    }

    /// The index of this shard, and the number of shards.
    pub(crate) fn shard(&self) -> (u64, u64) {
        (self.options.shard, self.options.shards.into())
    }

    fn get(&mut self, at: Located<'_>, get: &Get) -> Outcome<'_> {
        let Some(slot) = at.slot else { return self.vivify(at, get) };
        let mut item = self.store.item_mut(slot);
        let former = item.as_item();
        let former_ttl_seconds = former.deadline().left_seconds(at.now);
        let recache = get.recache.is_some_and(|seconds| {
            former_ttl_seconds.is_some_and(|left| i64::from(left) < i64::from(seconds))
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
        match self.write(at, None, header, Value::Bytes(b"")) {
            Outcome::Stored(item) => {
                Outcome::Vivified(ItemView { won: true, is_new: true, ..item })
            }
            refused => refused,
        }
    }

    fn write(
        &mut self,
        at: Located<'_>,
        old: Option<Slot>,
        header: ItemHeader,
        value: Value<'_>,
    ) -> Outcome<'_> {
        match self.store.write(at.now, at.hash, at.key, old, header, Content::Value(value)) {
            Ok(slot) => Outcome::Stored(view(self.store.item(slot), at.now)),
            Err(_) => Outcome::OutOfMemory,
        }
    }

    fn count(&mut self, at: Located<'_>, arithmetic: &Arithmetic) -> Outcome<'_> {
        let Some(slot) = at.slot else {
            let Some(exptime) = arithmetic.vivify else { return Outcome::NotFound };
            let cas = self.uniques.next(arithmetic.new_cas);
            let header = ItemHeader::new(cas, 0, Deadline::resolve(at.now, exptime))
                .mark(ItemFlag::BASE64, arithmetic.base64);
            let written = self.write(at, None, header, Value::Number(arithmetic.initial));
            return counted(written, |item| ItemView { is_new: true, ..item });
        };
        let mut item = self.store.item_mut(slot);
        let former_cas = item.as_item().cas();
        if arithmetic.compare_cas.is_some_and(|unique| unique != former_cas) {
            return Outcome::Exists;
        }
        let number = match item.as_item().value() {
            Value::Number(number) => number,
            Value::Bytes(bytes) => match lenient_u64(bytes) {
                Some(number) => number,
                None => return Outcome::NonNumeric,
            },
        };
        let number = fast::counted(number, arithmetic.delta, arithmetic.decrement);
        let cas = self.uniques.next(arithmetic.new_cas);
        let former_ttl_seconds = item.as_item().deadline().left_seconds(at.now);
        let deadline = arithmetic.exptime.map(|exptime| Deadline::resolve(at.now, exptime));
        if item.set_number(number) {
            item.set_cas(cas);
            if let Some(deadline) = deadline {
                item.set_deadline(deadline);
            }
            item.touch(at.now);
            let value = Value::Number(number);
            let view = view_without_value(item.as_item(), at.now);
            self.store.note_cas(former_cas, cas);
            return Outcome::Number(ItemView { value, former_ttl_seconds, ..view });
        }
        // A number in text, or a count that outgrows 32 bits, needs another layout.
        let mut header = item.as_item().header();
        header.cas = cas;
        header.deadline = deadline.unwrap_or(header.deadline);
        let written = self.write(at, Some(slot), header, Value::Number(number));
        counted(written, |item| ItemView { former_ttl_seconds, ..item })
    }

    fn touch(&mut self, at: Located<'_>, exptime: Exptime) -> Outcome<'_> {
        let Some(slot) = at.slot else { return Outcome::NotFound };
        let mut item = self.store.item_mut(slot);
        item.set_deadline(Deadline::resolve(at.now, exptime));
        item.touch(at.now);
        Outcome::Touched
    }
}

/// The cas uniques of a shard.
pub(crate) struct Uniques {
    last: u64,
    /// The cas unique and lease of the current command, if the caller sets it.
    pub(crate) given: Option<NonZeroU64>,
    /// The distance from one unique to the next.
    step: u32,
    /// Whether uniques are in use; otherwise all are 0.
    are_kept: bool,
    /// Whether [`Engine::flushed`] has keys. The flag is here because every command reads this
    /// line.
    is_flushed: bool,
}

impl Uniques {
    /// The next unique, or the `explicit` one of the client.
    pub(crate) fn next(&mut self, explicit: Option<u64>) -> u64 {
        if !self.are_kept {
            return 0;
        }
        explicit.or(self.given.map(NonZeroU64::get)).unwrap_or_else(|| {
            self.last += u64::from(self.step);
            self.last
        })
    }

    /// Raises the counter past a unique of another process, which with another number of shards may
    /// be any shard's.
    pub(crate) fn raise(&mut self, cas: u64) {
        if self.last < cas && cas <= OWN_CAS_MAX {
            let step = u64::from(self.step);
            self.last += (cas - self.last).div_ceil(step) * step;
        }
    }
}

/// The key of a command with its time and item.
#[derive(Clone, Copy)]
pub(crate) struct Located<'a> {
    pub(crate) now: Now,
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
    /// The item of the key, if there is one that is not past its deadline.
    pub(crate) slot: Option<Slot>,
}

fn counted<'a>(
    outcome: Outcome<'a>,
    adjust: impl FnOnce(ItemView<'a>) -> ItemView<'a>,
) -> Outcome<'a> {
    match outcome {
        Outcome::Stored(item) => Outcome::Number(adjust(item)),
        refused => refused,
    }
}

fn view(item: Item<'_>, now: Now) -> ItemView<'_> {
    ItemView { value: item.value(), ..view_without_value(item, now) }
}

fn view_without_value(item: Item<'_>, now: Now) -> ItemView<'static> {
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
