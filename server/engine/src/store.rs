//! One shard's items: found by key, kept within the memory cap, evicted when it is reached.
//!
//! Here: `index` and `arena` put together, memory accounting, eviction, the sweep for items past
//! their deadline. Not here: what commands do to items (`apply`).

use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::Value;

use crate::arena::{Arena, FIRST, Slot};
use crate::index::Index;
use crate::item::{Figures, Item, ItemMut, Layout, Mark};
use crate::prefetch::prefetch;
use crate::time::Now;

/// Hashes keys with secret seeds, so that nobody can choose keys that collide.
#[derive(Debug, Clone)]
pub struct KeyHasher(ahash::RandomState);

impl KeyHasher {
    /// A hasher of these seeds; the server draws them at random, tests fix them.
    #[must_use]
    pub fn new(seeds: [u64; 4]) -> Self {
        let [a, b, c, d] = seeds;
        Self(ahash::RandomState::with_seeds(a, b, c, d))
    }

    /// The hash of a key: the low bits choose a line, the high ones may choose a shard.
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
}

/// The memory cap of a process: shared by its shards, which each add what they take.
#[derive(Debug)]
pub struct Budget {
    used: AtomicUsize,
    limit: AtomicUsize,
}

impl Budget {
    /// A cap of `limit_bytes` (memcached's `-m`).
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self { used: AtomicUsize::new(0), limit: AtomicUsize::new(limit_bytes) }
    }

    /// The cap in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the cap; shards shrink to a lower one as they store.
    pub fn set_limit_bytes(&self, limit_bytes: usize) {
        self.limit.store(limit_bytes, Ordering::Relaxed);
    }

    /// Bytes taken from the allocator by all shards.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether `more_bytes` would pass the cap.
    #[must_use]
    pub fn lacks(&self, more_bytes: usize) -> bool {
        self.used_bytes().saturating_add(more_bytes) > self.limit_bytes()
    }
}

/// There is no room, and nothing in this shard may or can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// What became of items that nobody deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// Removed for room before their deadline.
    pub evicted: u64,
    /// Of those, never fetched.
    pub evicted_unfetched: u64,
    /// Of those, used within the last minute.
    pub evicted_active: u64,
    /// Removed past their deadline.
    pub expired: u64,
    /// Of those, never fetched.
    pub expired_unfetched: u64,
    /// Of those, when room was needed.
    pub reclaimed: u64,
    /// Of those, by the sweep.
    pub swept: u64,
    /// Items that the sweep looked at.
    pub sweep_checked: u64,
}

const CACHE_LINE_BYTES: usize = 64;

/// Idle for less than this counts as `evicted_active`, in tenths of a second.
const ACTIVE_WITHIN: u32 = 600;

/// Victims of one store before the caller is asked to make room in other shards too: a large value
/// must not empty the one shard it falls into. A chunk of slots is free after 64.
const EVICTIONS_MAX: usize = 128;

/// Lines looked at in search of a victim before giving up on a nearly empty shard.
const EVICTION_LINES_MAX: usize = 64;

pub(crate) struct Store {
    index: Index,
    arena: Arena,
    hasher: KeyHasher,
    budget: Arc<Budget>,
    /// What `budget` was last told.
    accounted_bytes: usize,
    /// Sum of the items' own bytes, without rounding.
    item_bytes: usize,
    /// The line whose items are the next candidates for eviction.
    hand: usize,
    /// Where the sweep goes on.
    sweep: Slot,
    may_evict: bool,
    pub(crate) losses: Losses,
}

impl Drop for Store {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.accounted_bytes, Ordering::Relaxed);
    }
}

impl Store {
    pub(crate) fn new(hasher: KeyHasher, budget: Arc<Budget>, may_evict: bool) -> Self {
        let mut store = Self {
            index: Index::new(),
            arena: Arena::new(),
            hasher,
            budget,
            accounted_bytes: 0,
            item_bytes: 0,
            hand: 0,
            sweep: FIRST,
            may_evict,
            losses: Losses::default(),
        };
        store.account();
        store
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn item_bytes(&self) -> usize {
        self.item_bytes
    }

    pub(crate) fn index_bytes(&self) -> usize {
        self.index.allocated_bytes()
    }

    /// Tells the budget what changed. Chunks come and go once in many items: only then is the
    /// shared figure touched.
    fn account(&mut self) {
        let allocated = self.arena.allocated_bytes() + self.index.allocated_bytes();
        if allocated == self.accounted_bytes {
            return;
        }
        if allocated >= self.accounted_bytes {
            self.budget.used.fetch_add(allocated - self.accounted_bytes, Ordering::Relaxed);
        } else {
            self.budget.used.fetch_sub(self.accounted_bytes - allocated, Ordering::Relaxed);
        }
        self.accounted_bytes = allocated;
    }

    pub(crate) fn item(&self, slot: Slot) -> Item<'_> {
        Item(self.arena.get(slot))
    }

    pub(crate) fn item_mut(&mut self, slot: Slot) -> ItemMut<'_> {
        ItemMut(self.arena.get_mut(slot))
    }

    /// The item of `key`, past its deadline or not.
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<Slot> {
        self.index
            .find(hash, |slot| self.item(Slot::from_raw(slot)).key() == key)
            .map(Slot::from_raw)
    }

    /// Asks for the index line of a key ahead of its use.
    pub(crate) fn prefetch_line(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Asks for the item of a key ahead of its use; the line must be here already.
    pub(crate) fn prefetch_item(&self, hash: u64) {
        self.index.find(hash, |slot| {
            let bytes = self.arena.get(Slot::from_raw(slot));
            prefetch(&bytes[0]);
            // A slot of a counter lies across two cache lines as often as not.
            prefetch(&bytes[bytes.len().min(CACHE_LINE_BYTES) - 1]);
            false
        });
    }

    /// The item of `key`; one past its deadline is removed instead.
    pub(crate) fn find_live(&mut self, now: Now, hash: u64, key: &[u8]) -> Option<Slot> {
        let slot = self.find(hash, key)?;
        if self.item(slot).deadline().is_past(now) {
            self.expire(hash, slot);
            return None;
        }
        Some(slot)
    }

    fn expire(&mut self, hash: u64, slot: Slot) {
        self.losses.expired += 1;
        self.losses.expired_unfetched += u64::from(!self.item(slot).has(Mark::FETCHED));
        self.remove(hash, slot);
    }

    pub(crate) fn remove(&mut self, hash: u64, slot: Slot) {
        self.item_bytes -= self.item(slot).bytes();
        self.index.remove(hash, slot.raw());
        if let Some(moved) = self.arena.free(slot) {
            // The class's last item lies in `slot` now; its entry must say so.
            let hash = self.hasher.hash(self.item(slot).key());
            self.index.relocate(hash, moved.raw(), slot.raw());
        }
        self.account();
    }

    /// Writes the item of `key`, over the one in `old` where there is one.
    ///
    /// # Errors
    ///
    /// [`Full`], and then the old item is as it was.
    pub(crate) fn write(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        old: Option<Slot>,
        figures: Figures,
        value: Value<'_>,
    ) -> Result<Slot, Full> {
        let bytes = Layout::of(value).item_bytes(key.len());
        let slot = match old {
            Some(slot) if self.arena.same_class(slot, bytes) => {
                self.item_bytes -= self.item(slot).bytes();
                slot
            }
            _ => {
                self.make_room(now, bytes, key)?;
                let slot = self.arena.allocate(bytes).ok_or(Full)?;
                // Making room may have moved the old item, but never removes it.
                if old.is_some()
                    && let Some(old) = self.find(hash, key)
                {
                    self.item_bytes -= self.item(old).bytes();
                    self.index.relocate(hash, old.raw(), slot.raw());
                    return Ok(self.replace(now, old, slot, figures, key, value));
                }
                let (arena, hasher) = (&self.arena, &self.hasher);
                self.index.insert(hash, slot.raw(), |other| {
                    // The new item is not written yet, but its hash is known.
                    if other == slot.raw() {
                        return hash;
                    }
                    hasher.hash(Item(arena.get(Slot::from_raw(other))).key())
                });
                slot
            }
        };
        self.item_mut(slot).fill(now, figures, key, value);
        self.item_bytes += bytes;
        self.account();
        Ok(slot)
    }

    /// Fills `slot`, which the index names already, and frees `old`.
    fn replace(
        &mut self,
        now: Now,
        old: Slot,
        slot: Slot,
        figures: Figures,
        key: &[u8],
        value: Value<'_>,
    ) -> Slot {
        self.item_mut(slot).fill(now, figures, key, value);
        self.item_bytes += self.item(slot).bytes();
        let mut place = slot;
        if let Some(moved) = self.arena.free(old) {
            let hash = self.hasher.hash(self.item(old).key());
            self.index.relocate(hash, moved.raw(), old.raw());
            if moved == slot {
                place = old;
            }
        }
        self.account();
        place
    }

    /// Evicts until an item of `bytes` fits the cap. The item of `keep` is never the victim.
    fn make_room(&mut self, now: Now, bytes: usize, keep: &[u8]) -> Result<(), Full> {
        for _ in 0..EVICTIONS_MAX {
            if !self.lacks_room_for(bytes) {
                return Ok(());
            }
            self.evict(now, keep)?;
        }
        Err(Full)
    }

    fn lacks_room_for(&self, bytes: usize) -> bool {
        let growth = self.arena.growth(bytes);
        growth > 0 && self.budget.lacks(growth)
    }

    /// Whether the cap is exceeded as it stands.
    pub(crate) fn is_over(&self) -> bool {
        self.budget.lacks(0)
    }

    /// Removes the best victim of a handful: one past its deadline, else the longest unused.
    pub(crate) fn evict(&mut self, now: Now, keep: &[u8]) -> Result<(), Full> {
        for _ in 0..self.index.lines().min(EVICTION_LINES_MAX) {
            self.hand = (self.hand + 1) % self.index.lines();
            let victim = self
                .index
                .candidates(self.hand)
                .map(Slot::from_raw)
                .filter(|slot| self.item(*slot).key() != keep)
                .max_by_key(|slot| {
                    let item = self.item(*slot);
                    (item.deadline().is_past(now), item.idle(now))
                });
            let Some(victim) = victim else { continue };
            let item = self.item(victim);
            let is_past = item.deadline().is_past(now);
            if !is_past && !self.may_evict {
                continue;
            }
            let hash = self.hasher.hash(item.key());
            if is_past {
                self.losses.reclaimed += 1;
                self.expire(hash, victim);
            } else {
                let unfetched = !item.has(Mark::FETCHED);
                let active = item.idle(now) < ACTIVE_WITHIN;
                self.losses.evicted += 1;
                self.losses.evicted_unfetched += u64::from(unfetched);
                self.losses.evicted_active += u64::from(active);
                self.remove(hash, victim);
            }
            return Ok(());
        }
        Err(Full)
    }

    /// Looks at up to `count` more items and removes those past their deadline. True when the end
    /// was reached: the next call begins anew.
    pub(crate) fn sweep(&mut self, now: Now, count: usize) -> bool {
        for _ in 0..count {
            let Some(slot) = self.arena.at_or_after(self.sweep) else {
                self.sweep = FIRST;
                return true;
            };
            self.losses.sweep_checked += 1;
            let item = self.item(slot);
            if item.deadline().is_past(now) {
                let hash = self.hasher.hash(item.key());
                self.losses.swept += 1;
                // Another item lies in `slot` afterwards: look there again.
                self.expire(hash, slot);
                self.sweep = slot;
            } else {
                self.sweep = slot.next();
            }
        }
        false
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.index = Index::new();
        self.arena = Arena::new();
        self.item_bytes = 0;
        self.hand = 0;
        self.sweep = FIRST;
        self.account();
    }

    /// All items, in no order.
    pub(crate) fn items(&self) -> impl Iterator<Item = Item<'_>> {
        let mut next = FIRST;
        std::iter::from_fn(move || {
            let slot = self.arena.at_or_after(next)?;
            next = slot.next();
            Some(self.item(slot))
        })
    }
}
