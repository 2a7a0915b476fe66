//! The holds of keys that have many, by the number in their items.
//!
//! Here: their storage, and its memory usage. Not here: the holds themselves (`holders`).
//!
//! The body of such an item is a mark and a number:
//!
//! ```text
//! 0x4000 u16 | number u32
//! ```

use super::arena::Slot;
use super::holders::Holders;
use super::sums::GROWTH_MAX;
use super::{EVICTIONS_MAX, Full, Store};
use crate::policy_table::LimitState;
use crate::time::Now;

/// In the first two bytes of a state: the holds lie beside the item.
pub(crate) const HAS_SET: u16 = 1 << 14;

/// Most bytes that one more hold allocates if no branch is split. A split occurs once in thousands
/// of inserts, and may exceed the cap.
const SET_GROWTH_MAX: usize = 2 * GROWTH_MAX;

const BODY_BYTES: usize = 6;

/// The number of a set of holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoldSetId(u32);

impl HoldSetId {
    /// The set that a state names, if any.
    pub(crate) fn of(state: LimitState<'_>) -> Option<Self> {
        Self::of_body(state.own())
    }

    /// The set that a state's own bytes name, if any.
    pub(crate) fn of_body(body: &[u8]) -> Option<Self> {
        let (mark, number) = body.split_first_chunk()?;
        let number = u32::from_le_bytes(*<&[u8; 4]>::try_from(number).ok()?);
        (u16::from_le_bytes(*mark) == HAS_SET).then_some(Self(number))
    }

    /// The body that names the set.
    pub(crate) fn body(self) -> [u8; BODY_BYTES] {
        let mut body = [0; BODY_BYTES];
        let (mark, number) = body.split_at_mut(size_of_val(&HAS_SET));
        mark.copy_from_slice(&HAS_SET.to_le_bytes());
        number.copy_from_slice(&self.0.to_le_bytes());
        body
    }
}

/// All sets of a shard.
#[derive(Debug, Default)]
pub(super) struct HoldSets {
    list: Vec<Option<Box<Holders>>>,
    free: Vec<u32>,
    bytes: usize,
}

impl HoldSets {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn add(&mut self, holders: Holders) -> HoldSetId {
        self.bytes += holders.bytes();
        let holders = Some(Box::new(holders));
        if let Some(number) = self.free.pop() {
            self.list[number as usize] = holders;
            return HoldSetId(number);
        }
        self.list.push(holders);
        // There are fewer sets than items.
        HoldSetId(self.list.len() as u32 - 1)
    }

    pub(super) fn get(&self, HoldSetId(number): HoldSetId) -> Option<&Holders> {
        self.list.get(number as usize)?.as_deref()
    }

    pub(super) fn change<T>(
        &mut self,
        HoldSetId(number): HoldSetId,
        change: impl FnOnce(&mut Holders) -> T,
    ) -> Option<T> {
        let holders = self.list.get_mut(number as usize)?.as_deref_mut()?;
        let before = holders.bytes();
        let done = change(holders);
        self.bytes = self.bytes - before + holders.bytes();
        Some(done)
    }

    pub(super) fn remove(&mut self, HoldSetId(number): HoldSetId) {
        if let Some(holders) = self.list.get_mut(number as usize).and_then(Option::take) {
            self.bytes -= holders.bytes();
            self.free.push(number);
        }
    }
}

impl Store {
    /// The set of holds that the item in `slot` names.
    fn set_in(&self, slot: Slot) -> Option<HoldSetId> {
        HoldSetId::of(self.item(slot).state()?)
    }

    /// Removes the set of an item that is removed or replaced by one that names the set `new`.
    pub(super) fn release_set(&mut self, slot: Slot, new: Option<HoldSetId>) {
        if slot.is_limit_state()
            && let Some(set) = self.set_in(slot)
            && new != Some(set)
        {
            self.sets.remove(set);
        }
    }

    /// The holds of a key that has many.
    pub(crate) fn holders(&self, set: HoldSetId) -> Option<&Holders> {
        self.sets.get(set)
    }

    /// Changes the holds of a key that has many.
    pub(crate) fn change_holders<T>(
        &mut self,
        set: HoldSetId,
        change: impl FnOnce(&mut Holders) -> T,
    ) -> Option<T> {
        let done = self.sets.change(set, change);
        self.account();
        done
    }

    /// Stores holds, for an item that will name them.
    pub(crate) fn add_holders(&mut self, holders: Holders) -> HoldSetId {
        let set = self.sets.add(holders);
        self.account();
        set
    }

    /// Removes holds that no item names.
    pub(crate) fn drop_holders(&mut self, set: HoldSetId) {
        self.sets.remove(set);
        self.account();
    }

    /// Whether `bytes` more bytes of holds fit the cap without eviction.
    pub(crate) fn has_room_for_holders(&self, bytes: usize) -> bool {
        !self.memory_cap.exceeds_cap_by(bytes.saturating_add(SET_GROWTH_MAX))
    }

    /// Evicts until `bytes` more bytes of holds fit the cap. The item whose key has the hash `keep`
    /// is never evicted.
    ///
    /// # Errors
    ///
    /// [`Full`], if there is no room.
    pub(crate) fn room_for_holders(
        &mut self,
        now: Now,
        bytes: usize,
        keep: u64,
    ) -> Result<(), Full> {
        for _ in 0..EVICTIONS_MAX {
            if !self.memory_cap.exceeds_cap_by(bytes.saturating_add(SET_GROWTH_MAX)) {
                return Ok(());
            }
            self.evict(now, &[keep], self.reach())?;
        }
        Err(Full)
    }
}
