//! Eviction: the choice of a victim when the memory cap is reached.
//!
//! Here: making room for an item, and the counters of removed items. Not here: the cap
//! (`memory_cap`), eviction in other shards (the server).

use std::cmp::Reverse;

use super::arena::Slot;
use super::index::Index;
use super::item::{Item, ItemFlag};
use super::memory_cap::EvictionScope;
use super::past::is_past;
use super::{Full, Located, Store};
use crate::time::Now;

/// Counters of items that were removed without a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvictionStats {
    /// Items evicted before their deadline.
    pub evicted: u64,
    /// Limit states among them.
    pub evicted_states: u64,
    /// Evicted items that were never fetched.
    pub evicted_unfetched: u64,
    /// Evicted items that were used within the last minute.
    pub evicted_active: u64,
    /// Items removed past their deadline.
    pub expired: u64,
    /// Limit states among them.
    pub expired_states: u64,
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
    pub(crate) fn note_expired(&mut self, is_unfetched: bool, is_state: bool) {
        self.expired += 1;
        self.expired_states += u64::from(is_state);
        self.expired_unfetched += u64::from(is_unfetched);
    }
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

impl Store {
    /// Evicts until an item of `bytes` fits the cap, but never the item that it replaces.
    pub(super) fn make_room(
        &mut self,
        at: Located<'_>,
        bytes: usize,
        is_state: bool,
    ) -> Result<(), Full> {
        let added = at.slot.is_none().then_some(at.hash);
        if self.memory_cap.refuses(bytes) {
            return Err(Full);
        }
        for _ in 0..EVICTIONS_MAX {
            if !self.lacks_room_for(bytes, is_state, added) {
                return Ok(());
            }
            self.evict(at.now, &[at.hash], self.reach())?;
        }
        Err(Full)
    }

    pub(super) fn lacks_room_for(&self, bytes: usize, is_state: bool, new: Option<u64>) -> bool {
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
    /// an offender, even if all are idle at the end of the same window. Items whose keys have a
    /// hash of `keep` are never evicted.
    pub(crate) fn evict(
        &mut self,
        now: Now,
        keep: &[u64],
        reach: EvictionScope,
    ) -> Result<(), Full> {
        let mut best: Option<(EvictionRank, Slot, u64)> = None;
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
            if best.is_none_or(|(other, ..)| rank > other) {
                let hash = self.hasher.hash(item.key());
                if !keep.contains(&hash) {
                    best = Some((rank, slot, hash));
                }
            }
        }
        let Some((rank, victim, hash)) = best else { return Err(Full) };
        let item = self.item(victim);
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
        self.losses.evicted_states += u64::from(victim.is_limit_state());
        self.losses.evicted_unfetched += u64::from(unfetched);
        self.losses.evicted_active += u64::from(active);
        self.remove(hash, victim);
        Ok(())
    }
}
