//! The cas uniques of a shard.
//!
//! Here: the next unique. Not here: uniques that another node assigns (`item_codec`).

use std::num::NonZeroU64;

use crate::store::arena::Slot;

/// A greater cas unique was chosen by a client (`E` of a meta command): the engine's own never
/// reach it.
const OWN_CAS_MAX: u64 = u64::MAX / 2;

/// The cas uniques of a shard.
pub(crate) struct Uniques {
    pub(super) last: u64,
    /// The cas unique and lease of the current command, if the caller sets it.
    pub(crate) given: Option<NonZeroU64>,
    /// The distance from one unique to the next.
    pub(super) step: u32,
    /// Whether uniques are in use; otherwise all are 0.
    pub(super) are_kept: bool,
    /// Whether [`Engine::flushed`](super::Engine) has keys. The flag is here because every command
    /// reads this line.
    pub(super) is_flushed: bool,
    /// Whether the last refusal, or the last state of another length, changed an item without a
    /// note in [`Engine::changed_at`](super::Engine). The flag is here because most commands write
    /// this line.
    pub(crate) is_change_unplaced: bool,
}

impl Uniques {
    /// The next unique, or the `explicit` one of the client.
    pub(crate) fn next(&mut self, explicit: Option<u64>) -> u64 {
        if !self.are_kept {
            return 0;
        }
        explicit.or(self.given.map(NonZeroU64::get)).unwrap_or_else(|| self.next_own())
    }

    /// The next unique of the shard's own.
    #[inline]
    fn next_own(&mut self) -> u64 {
        self.last += u64::from(self.step);
        self.last
    }

    /// The next unique, for the item in `slot`, which is changed in place. Notes the slot in
    /// `changed_at` if the caller set the unique.
    #[inline]
    pub(crate) fn next_in_place(&mut self, slot: Slot, changed_at: &mut Option<Slot>) -> u64 {
        if !self.are_kept {
            return 0;
        }
        let Some(given) = self.given else { return self.next_own() };
        *changed_at = Some(slot);
        given.get()
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
