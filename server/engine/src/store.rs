//! One shard's items: found by key, kept within the memory cap, evicted when it is reached.
//!
//! Here: `index` and `arena` combined, memory accounting, eviction, the sweep for items past their
//! deadline. Not here: the effect of commands on items (`commands`).

pub(crate) mod arena;
pub(crate) mod holders;
pub(crate) mod index;
pub(crate) mod item;
mod lookup_cache;
pub(crate) mod memory_cap;
mod past;
mod prefetch;
mod scan;
mod sets;
pub(crate) mod state_bytes;
pub(crate) mod sums;
mod sweep;

use std::cmp::Reverse;
use std::hint::cold_path;
use std::ops::Range;
use std::sync::Arc;

use self::arena::{Arena, FIRST, Slot};
use self::index::Index;
use self::item::{Content, Item, ItemFlag, ItemHeader, ItemLayout, ItemMut};
use self::memory_cap::{EvictionScope, MemoryCap, MemoryUsage};
use crate::hasher::KeyHasher;
use crate::policy_table::{INLINE, LimitState, UnusedPolicies};
use crate::time::{Deadline, Now};

use self::lookup_cache::LookupCache;
use self::past::is_past;
use self::sets::HoldSets;
pub(crate) use self::sets::{HAS_SET, HoldSetId};

/// There is no room, and no item of this shard may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// Counters of items that were removed without a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvictionStats {
    /// Items evicted before their deadline.
    pub evicted: u64,
    /// Evicted items that were never fetched.
    pub evicted_unfetched: u64,
    /// Evicted items that were used within the last minute.
    pub evicted_active: u64,
    /// Items removed past their deadline.
    pub expired: u64,
    /// Expired items that were never fetched.
    pub expired_unfetched: u64,
    /// Expired items removed to make room.
    pub reclaimed: u64,
    /// Expired items removed by the sweep.
    pub swept: u64,
    /// Items that the sweep visited.
    pub sweep_checked: u64,
}

impl EvictionStats {
    /// Counts an item as expired: it is removed, or its slot reused for the same key.
    pub(crate) fn note_expired(&mut self, is_unfetched: bool) {
        self.expired += 1;
        self.expired_unfetched += u64::from(is_unfetched);
    }
}

/// A change of an item in place. A trait instead of a closure, because inlining a closure cannot be
/// forced.
pub(crate) trait ItemChange {
    type Answer;

    fn make(self, slot: Slot, item: ItemMut<'_>) -> Self::Answer;
}

/// Evicted items idle for less than this count as `evicted_active`, in tenths of a second.
const ACTIVE_WITHIN: u32 = 600;

/// Most evictions in one shard before another shard must evict: a large value must not empty its
/// own shard. A chunk of the smallest items is free after some 170 evictions.
pub const EVICTIONS_MAX: usize = 192;

/// Random items among which the victim is chosen: Redis's approximation of LRU is close to exact
/// with ten.
const CANDIDATES: usize = 12;
/// Random items if only items past their deadline may be evicted.
const CANDIDATES_FOR_EXPIRY: usize = 64;

/// The rank of an item in eviction: the greatest is evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionRank {
    /// A limit state: refused ones last, then by the milliseconds until it is idle, the soonest
    /// first.
    State(Reverse<(bool, u64)>),
    /// A plain item, by the tenths of a second since its last use.
    Plain(u32),
    Past,
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
        self.losses.note_expired(is_unfetched);
        self.note_cleared();
        self.remove(hash, slot);
    }

    /// The number of limit states of each policy, by policy id; ids past the end have none.
    pub(crate) fn states_by_policy(&self) -> &[u32] {
        &self.states_by_policy
    }

    /// Those counts, and the policies whose last state was removed since this was emptied.
    pub(crate) fn unused_policies(&mut self) -> (&[u32], &mut UnusedPolicies) {
        (&self.states_by_policy, &mut self.unused)
    }

    /// Counts a state that is added to its policy.
    fn count_in(&mut self, state: LimitState<'_>) {
        if state.policy_id == INLINE {
            cold_path();
            return;
        }
        let index = state.policy_id as usize;
        if index >= self.states_by_policy.len() {
            self.states_by_policy.resize(index + 1, 0);
        }
        self.states_by_policy[index] += 1;
    }

    /// Uncounts the item in `slot`, if it is a limit state, from its policy.
    fn count_out(&mut self, slot: Slot) {
        if let Some(LimitState { policy_id, .. }) = self.item(slot).state()
            && policy_id != INLINE
        {
            let count = &mut self.states_by_policy[policy_id as usize];
            *count -= 1;
            if *count == 0 {
                cold_path();
                self.unused.add(policy_id);
            }
        }
    }

    pub(crate) fn remove(&mut self, hash: u64, slot: Slot) {
        self.release_set(slot, None);
        self.count_out(slot);
        self.item_bytes -= self.item(slot).bytes();
        self.index.remove(hash, slot.raw());
        self.free(slot);
        self.account();
    }

    /// Writes the item of `key`, over the one in `old` if there is one.
    ///
    /// # Errors
    ///
    /// [`Full`]; the old item is then unchanged.
    pub(crate) fn write(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        old: Option<Slot>,
        header: ItemHeader,
        content: Content<'_>,
    ) -> Result<Slot, Full> {
        let bytes = ItemLayout::of(content).item_bytes(key.len(), header.client_flags);
        let is_state = matches!(content, Content::State(_));
        let set = match content {
            Content::State(state) => HoldSetId::of(state),
            Content::Value(_) => None,
        };
        // If there is no room, a smaller item stays in its slot: a refund must not be lost for lack
        // of memory, nor evict another item.
        let fits = |slot: Slot| {
            let arena = self.arena(slot);
            slot.is_limit_state() == is_state
                && (arena.same_class(slot, bytes)
                    || (is_state || !slot.is_large())
                        && arena.get(slot).len() >= bytes
                        && self.lacks_room_for(bytes, is_state, None))
        };
        if let Some(slot) = old.filter(|slot| fits(*slot)) {
            self.release_set(slot, set);
            self.note_cas(self.item(slot).cas(), header.cas);
            if let Content::State(state) = content
                && self.item(slot).state().is_none_or(|former| former.policy_id != state.policy_id)
            {
                self.count_out(slot);
                self.count_in(state);
            }
            self.item_bytes -= self.item(slot).bytes();
            self.item_mut(slot).fill(now, header, key, content);
            self.item_bytes += bytes;
            return Ok(slot);
        }
        let new = old.is_none().then_some(hash);
        // A counter that outgrows 32 bits may exceed the cap: by at most one chunk for each class
        // of the shard, and then by four bytes, rounded, for each counter.
        let widens = ItemLayout::of(content) == ItemLayout::Wide
            && old.is_some_and(|slot| self.item(slot).layout() == ItemLayout::Narrow);
        let room = self.make_room(now, bytes, is_state, new, key);
        if !widens {
            room?;
        }
        let slot = if is_state {
            self.states.allocate(bytes).ok_or(Full)?.in_limit_arena()
        } else {
            self.plain.allocate(bytes).ok_or(Full)?
        };
        self.item_mut(slot).fill(now, header, key, content);
        self.item_bytes += bytes;
        if let Content::State(state) = content {
            self.count_in(state);
        }
        let mut place = slot;
        // Making room may have moved the old item, but never evicts it. A hint could name the new
        // slot.
        if old.is_some()
            && let Some((old, _)) = self.find_in_index(hash, key)
        {
            // The written item may have the same header as the old one.
            self.unseen = self.unseen.wrapping_add(1);
            self.release_set(old, set);
            self.count_out(old);
            self.item_bytes -= self.item(old).bytes();
            self.index.relocate(hash, old.raw(), slot.raw());
            if self.free(old) == Some(slot) {
                place = old;
            }
        } else {
            let (plain, states, hasher) = (&self.plain, &self.states, &self.hasher);
            self.index.insert(hash, slot.raw(), |other| {
                let other = Slot::from_raw(other);
                let arena = if other.is_limit_state() { states } else { plain };
                hasher.hash(Item(arena.get(other)).key())
            });
        }
        self.account();
        Ok(place)
    }

    /// Evicts until an item of `bytes` fits the cap; `new` is its hash if it is not in the index
    /// yet. The item of `keep` is never evicted.
    fn make_room(
        &mut self,
        now: Now,
        bytes: usize,
        is_state: bool,
        new: Option<u64>,
        keep: &[u8],
    ) -> Result<(), Full> {
        if self.memory_cap.refuses(bytes) {
            return Err(Full);
        }
        for _ in 0..EVICTIONS_MAX {
            if !self.lacks_room_for(bytes, is_state, new) {
                return Ok(());
            }
            self.evict(now, keep, self.reach())?;
        }
        Err(Full)
    }

    fn lacks_room_for(&self, bytes: usize, is_state: bool, new: Option<u64>) -> bool {
        let growth = if is_state { self.states.growth(bytes) } else { self.plain.growth(bytes) };
        if !self.memory_cap.exceeds_cap_by(growth + Index::GROWTH_MAX) {
            return false;
        }
        let growth = growth + new.map_or(0, |hash| self.index.growth(hash));
        growth > 0 && self.memory_cap.exceeds_cap_by(growth)
    }

    /// The scope in which this store may evict for itself.
    pub(crate) fn reach(&self) -> EvictionScope {
        self.memory_cap.reach()
    }

    /// Whether the cap is exceeded already.
    pub(crate) fn is_over(&self) -> bool {
        self.memory_cap.exceeds_cap_by(0)
    }

    /// Evicts the best victim of a few random candidates: any item past its deadline, else the
    /// plain item that is longest unused, else, if there are only limit states, the one that is
    /// idle soonest. Keys that were refused are evicted last: a flood of other keys must not free
    /// an offender, even if all are idle at the end of the same window.
    pub(crate) fn evict(
        &mut self,
        now: Now,
        keep: &[u8],
        reach: EvictionScope,
    ) -> Result<(), Full> {
        let mut best: Option<(EvictionRank, Slot)> = None;
        let draws = if self.may_evict { CANDIDATES } else { CANDIDATES_FOR_EXPIRY };
        for draw in 0..draws {
            // Every fourth candidate is a limit state, in case it is idle and not yet swept.
            let states = self.plain.len() == 0 || (draw % 4 == 3 && self.states.len() > 0);
            let arena = if states { &self.states } else { &self.plain };
            if arena.len() == 0 {
                break;
            }
            // xorshift64: any sequence that is independent of the order of insertion suffices.
            self.draw ^= self.draw << 13;
            self.draw ^= self.draw >> 7;
            self.draw ^= self.draw << 17;
            let index = (self.draw % arena.len() as u64) as usize;
            let Some(slot) = arena.nth(index) else { break };
            let item = Item(arena.get(slot));
            if item.key() == keep {
                continue;
            }
            // The ages of items of several partitions are comparable only if each uses its
            // partition's time.
            let own = self.hasher.time_of(item.key(), now);
            let rank = if is_past(item, now, own) {
                EvictionRank::Past
            } else if states {
                let left_ms = item.deadline().left_ms(own.unwrap_or(now)).unwrap_or(u64::MAX);
                EvictionRank::State(Reverse((item.has(ItemFlag::REFUSED), left_ms)))
            } else {
                EvictionRank::Plain(item.idle(own.unwrap_or(now)))
            };
            let slot = if states { slot.in_limit_arena() } else { slot };
            if best.is_none_or(|(other, _)| rank > other) {
                best = Some((rank, slot));
            }
        }
        let Some((rank, victim)) = best else { return Err(Full) };
        let item = self.item(victim);
        let hash = self.hasher.hash(item.key());
        if rank == EvictionRank::Past {
            self.losses.reclaimed += 1;
            self.expire(hash, victim);
            return Ok(());
        }
        let is_out_of_reach =
            reach == EvictionScope::Plain && matches!(rank, EvictionRank::State(_));
        if !self.may_evict || is_out_of_reach {
            return Err(Full);
        }
        let unfetched = !item.has(ItemFlag::FETCHED);
        // A state that is not past its deadline is still in use.
        let own = self.hasher.time_of(item.key(), now).unwrap_or(now);
        let active = item.state().is_some() || item.idle(own) < ACTIVE_WITHIN;
        self.losses.evicted += 1;
        self.losses.evicted_unfetched += u64::from(unfetched);
        self.losses.evicted_active += u64::from(active);
        self.remove(hash, victim);
        Ok(())
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
