//! One shard's items: found by key, kept within the memory cap, evicted when it is reached.
//!
//! Here: `index` and `arena` combined, memory accounting, finding, removing. Not here: writing an
//! item (`write`), eviction (`eviction`), the sweep for items past their deadline (`sweep`), the
//! effect of commands on items (`commands`).

pub(crate) mod arena;
mod eviction;
pub(crate) mod holders;
pub(crate) mod index;
pub(crate) mod item;
mod lookup_cache;
pub(crate) mod memory_cap;
mod past;
mod policy_counts;
mod prefetch;
mod scan;
mod sets;
pub(crate) mod state_bytes;
pub(crate) mod sums;
mod sweep;
mod write;

use std::hint::cold_path;
use std::ops::Range;
use std::sync::Arc;

use self::arena::{Arena, FIRST, Slot};
use self::index::Index;
use self::item::{Item, ItemFlag, ItemHeader, ItemMut};
use self::memory_cap::{MemoryCap, MemoryUsage};
use crate::hasher::KeyHasher;
use crate::policy_table::UnusedPolicies;
use crate::step_count::LOOKUPS;
use crate::time::{Deadline, Now};

pub use self::eviction::{EVICTIONS_MAX, EvictionStats};
use self::lookup_cache::LookupCache;
use self::sets::HoldSets;
pub(crate) use self::sets::{HAS_SET, HoldSetId};

/// There is no room, and no item of this shard may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// The key of a command with its time and item.
#[derive(Clone, Copy)]
pub(crate) struct Located<'a> {
    pub(crate) now: Now,
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
    /// The item of the key, if there is one that is not past its deadline.
    pub(crate) slot: Option<Slot>,
}

/// A change of an item in place. A trait instead of a closure, because inlining a closure cannot be
/// forced.
pub(crate) trait ItemChange {
    type Answer;

    fn make(self, slot: Slot, item: ItemMut<'_>) -> Self::Answer;
}

/// The items of a shard.
///
/// The order of the fields is their order in memory ([`Engine`](crate::Engine)): fields that most
/// commands change come first, and the fields that a lookup reads share one line, with `flush` in
/// its middle.
#[repr(C)]
pub(crate) struct Store {
    /// The slots of keys that were prefetched or used last.
    hints: LookupCache,
    /// Sum of the items' own bytes, without rounding.
    item_bytes: usize,
    /// The usage last reported to `memory_cap`.
    accounted: MemoryUsage,
    /// The state of the random draw of candidates for eviction.
    draw: u64,
    /// The slot at which the sweep continues.
    sweep: Slot,
    /// Counts changes that may leave the item header equal or move the item: a comparison of an
    /// item with its former header must compare this counter too.
    unseen: u32,
    plain: Arena,
    /// The deadline of a pending `flush_all`.
    pub(crate) flush: Deadline,
    index: Index,
    hasher: KeyHasher,
    memory_cap: Arc<MemoryCap>,
    /// The number of limit states of each policy, by policy id.
    states_by_policy: Vec<u32>,
    may_evict: bool,
    pub(crate) losses: EvictionStats,
    unused: UnusedPolicies,
    /// The holds of keys that have many.
    sets: HoldSets,
    /// Puts the fields that a lookup of a limit state reads on one line.
    _gap: [u64; GAP],
    /// Limit states, in their own arena: none may be evicted while there is a plain item.
    states: Arena,
}

/// Words between the rarely changed fields and the limit states.
const GAP: usize = 6;

impl Drop for Store {
    fn drop(&mut self) {
        self.memory_cap.change(self.accounted, MemoryUsage::default());
    }
}

impl Store {
    /// The end of the bytes that most commands change.
    pub(crate) const CHANGED_END: usize =
        std::mem::offset_of!(Self, hints) + size_of::<LookupCache>();
    /// The bytes that a lookup reads of the shard.
    pub(crate) const LOOKUP: Range<usize> = std::mem::offset_of!(Self, plain) + Arena::LOOKUP_AT
        ..std::mem::offset_of!(Self, index) + Index::LOOKUP_END;
    /// The start of the further bytes that a lookup of a limit state reads.
    pub(crate) const STATES_LOOKUP_AT: usize =
        std::mem::offset_of!(Self, states) + Arena::LOOKUP_AT;

    pub(crate) fn new(hasher: KeyHasher, memory_cap: Arc<MemoryCap>, may_evict: bool) -> Self {
        let mut store = Self {
            hints: LookupCache::new(),
            item_bytes: 0,
            accounted: MemoryUsage::default(),
            draw: 1,
            sweep: FIRST,
            unseen: 0,
            plain: Arena::new(),
            flush: Deadline::NEVER,
            index: Index::new(),
            hasher,
            memory_cap,
            states_by_policy: Vec::new(),
            may_evict,
            losses: EvictionStats::default(),
            unused: UnusedPolicies::default(),
            sets: HoldSets::default(),
            _gap: [0; GAP],
            states: Arena::new(),
        };
        store.account();
        store
    }

    pub(crate) fn hash_of(&self, item: Item<'_>) -> u64 {
        self.hasher.hash(item.key())
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn limit_bytes(&self) -> usize {
        self.memory_cap.limit_bytes()
    }

    pub(crate) fn item_bytes(&self) -> usize {
        self.item_bytes
    }

    pub(crate) fn index_bytes(&self) -> usize {
        self.index.allocated_bytes()
    }

    /// Reports a change of memory usage to `memory_cap`. Chunks are allocated and freed once in
    /// many items, and only then is the shared counter touched.
    fn account(&mut self) {
        let plain = self.plain.allocated_bytes();
        let beside = self.states.allocated_bytes() + self.sets.bytes();
        let all = plain + beside + self.index.allocated_bytes();
        let taken = MemoryUsage { all, plain };
        if taken != self.accounted {
            self.memory_cap.change(self.accounted, taken);
            self.accounted = taken;
        }
    }

    #[inline]
    fn arena(&self, slot: Slot) -> &Arena {
        if slot.is_limit_state() { &self.states } else { &self.plain }
    }

    #[inline]
    fn arena_mut(&mut self, slot: Slot) -> &mut Arena {
        if slot.is_limit_state() { &mut self.states } else { &mut self.plain }
    }

    #[inline]
    pub(crate) fn item(&self, slot: Slot) -> Item<'_> {
        Item(self.arena(slot).get(slot))
    }

    #[inline]
    pub(crate) fn item_mut(&mut self, slot: Slot) -> ItemMut<'_> {
        ItemMut(self.arena_mut(slot).get_mut(slot))
    }

    /// Writes the header of an item after a change of its content in place.
    pub(crate) fn set_header(&mut self, slot: Slot, header: ItemHeader) {
        self.note_cas(self.item(slot).cas(), header.cas);
        self.item_mut(slot).set_header(header);
    }

    /// Records a change from one cas unique to another. They may be equal: a client may set any
    /// value, and without uniques all are 0.
    pub(crate) fn note_cas(&mut self, former: u64, cas: u64) {
        if former == cas {
            self.unseen = self.unseen.wrapping_add(1);
        }
    }

    /// Records that items are removed before a command, which may then write one with the same
    /// header.
    fn note_cleared(&mut self) {
        self.unseen = self.unseen.wrapping_add(1);
    }

    /// The number of changes so far that headers may not show.
    pub(crate) fn unseen(&self) -> u32 {
        self.unseen
    }

    /// Frees a slot whose index entry is removed or names another slot. The item that moves into
    /// the slot gets its entry updated; returns that item's former slot.
    fn free(&mut self, slot: Slot) -> Option<Slot> {
        let moved = self.arena_mut(slot).free(slot)?;
        let moved = if slot.is_limit_state() { moved.in_limit_arena() } else { moved };
        let hash = self.hasher.hash(self.item(slot).key());
        self.index.relocate(hash, moved.raw(), slot.raw());
        Some(moved)
    }

    /// The item of `key`, past its deadline or not.
    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<Slot> {
        self.find_item(hash, key).map(|(slot, _)| slot)
    }

    /// Like [`Store::find`], with the item.
    #[inline]
    pub(crate) fn find_item(&self, hash: u64, key: &[u8]) -> Option<(Slot, Item<'_>)> {
        LOOKUPS.add(1);
        // The slot may contain another item by now, but an item with this key is the key's only
        // item.
        if let Some(slot) = self.hints.get(hash)
            && let Some(bytes) = self.arena(slot).get_if_used(slot)
            && Item(bytes).has_key(key)
        {
            return Some((slot, Item(bytes)));
        }
        cold_path();
        self.find_in_index(hash, key)
    }

    /// Changes the item of `key`, past its deadline or not, if there is one.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "so is what it calls: a tenth fewer instructions for `incr`"
    )]
    pub(crate) fn change<C: ItemChange>(
        &mut self,
        hash: u64,
        key: &[u8],
        change: C,
    ) -> Option<C::Answer> {
        LOOKUPS.add(1);
        loop {
            // As in `find_item`.
            if let Some(slot) = self.hints.get(hash)
                && let Some(bytes) = self.arena_mut(slot).get_mut_if_used(slot)
                && Item(bytes).has_key(key)
            {
                return Some(change.make(slot, ItemMut(bytes)));
            }
            cold_path();
            // This call stores the slot in `hints`, which the next pass finds.
            self.find_in_index(hash, key)?;
        }
    }

    fn find_in_index(&self, hash: u64, key: &[u8]) -> Option<(Slot, Item<'_>)> {
        let mut found = None;
        self.index.find(hash, |slot| {
            let slot = Slot::from_raw(slot);
            let item = self.item(slot);
            found = item.has_key(key).then_some((slot, item));
            found.is_some()
        });
        if let Some((slot, _)) = found {
            self.hints.note(hash, slot);
        }
        found
    }

    /// Removes the item in `slot`, which is past its deadline.
    pub(crate) fn expire(&mut self, hash: u64, slot: Slot) {
        let is_unfetched = !self.item(slot).has(ItemFlag::FETCHED);
        self.losses.note_expired(is_unfetched, slot.is_limit_state());
        self.note_cleared();
        self.remove(hash, slot);
    }

    pub(crate) fn remove(&mut self, hash: u64, slot: Slot) {
        self.release_set(slot, None);
        self.count_out(slot);
        self.item_bytes -= self.item(slot).bytes();
        self.index.remove(hash, slot.raw());
        self.free(slot);
        self.account();
    }

    pub(crate) fn clear(&mut self) {
        self.note_cleared();
        self.index = Index::new();
        self.plain = Arena::new();
        self.states = Arena::new();
        self.sets = HoldSets::default();
        self.item_bytes = 0;
        self.states_by_policy.clear();
        self.unused.add_all();
        self.sweep = FIRST;
        self.account();
    }
}
