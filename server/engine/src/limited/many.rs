//! Decisions on any state, whether it lies in its item or its holds lie beside it.
//!
//! Not here: the arithmetic of both (`limit`, `limit/concurrency/many`), where holds lie (`store`).

use super::{GivenHold, Loaded};
use crate::PutError;
use crate::apply::{At, Engine};
use crate::arena::Slot;
use crate::holders::{HOLDERS_MAX, Holders, read_piece};
use crate::item::{Content, Figures, State};
use crate::limit::{self, Ask, Decision, Verdict};
use crate::store::{Full, SetId};
use crate::time::Now;

/// What a hold takes in memory, in nodes that are three quarters full.
const HOLD_BYTES_HERE: usize = 64;

impl Engine {
    /// Decides, and keeps the decision unless it is a peek.
    pub(crate) fn decide(&mut self, loaded: &mut Loaded, now: Now, ask: &Ask) -> Decision {
        if let (Some(set), Some(limit)) = (loaded.set, limit::concurrency(&loaded.policy)) {
            let take = |holders: &mut Holders| limit.take_of_many(holders, now, ask);
            if let Some(decision) = self.store.change_holders(set, take) {
                return decision;
            }
        }
        limit::take(&loaded.policy, &mut loaded.state, now, ask)
    }

    /// The state as it stands, unchanged.
    pub(super) fn look_at(&mut self, loaded: &mut Loaded, now: Now, ask: Ask) -> Decision {
        self.decide(loaded, now, &Ask { peek: true, ..ask })
    }

    /// Gives units back; usage ends at 0.
    pub(super) fn put_back_units(&mut self, loaded: &mut Loaded, now: Now, units: u64) {
        match loaded.set {
            Some(set) => {
                let now = limit::instant(now);
                self.store.change_holders(set, |holders| holders.put_back(units, now));
            }
            None => limit::put_back(&loaded.policy, &mut loaded.state, now, units),
        }
    }

    /// Begins a hold of `concurrency` that was given elsewhere, whether it would pass or not; false where
    /// the policy has no holds of its own.
    pub(super) fn give_hold(&mut self, loaded: &mut Loaded, now: Now, hold: &GivenHold) -> bool {
        let GivenHold { lease, units, for_ns } = *hold;
        let Some(set) = loaded.set else {
            return limit::give(&loaded.policy, &mut loaded.state, now, (lease, units, for_ns));
        };
        let now = limit::instant(now);
        let end = now.saturating_add_unsigned(for_ns.max(1));
        self.store.change_holders(set, |holders| {
            holders.forget_ended(now);
            // With so many holds the limit counts as used up anyway.
            if units > 0 && holders.all().len < HOLDERS_MAX {
                holders.begin(units, end, Some(lease));
            }
        });
        true
    }

    /// Ends a hold of `concurrency`; whether there is such a hold.
    pub(super) fn settle_hold(&mut self, loaded: &mut Loaded, now: Now, lease: u64) -> bool {
        match loaded.set {
            Some(set) => {
                let now = limit::instant(now);
                let settled = |holders: &mut Holders| holders.settle(lease, now);
                self.store.change_holders(set, settled).unwrap_or(false)
            }
            None => limit::settle(&loaded.policy, &mut loaded.state, now, lease),
        }
    }

    /// Lets a hold of `concurrency` last for so many nanoseconds from now; whether there is such a hold.
    pub(super) fn renew_hold(
        &mut self,
        loaded: &mut Loaded,
        now: Now,
        lease: u64,
        for_ns: u64,
    ) -> bool {
        match loaded.set {
            Some(set) => {
                let now = limit::instant(now);
                let end = now.saturating_add_unsigned(for_ns);
                let renewed = |holders: &mut Holders| holders.renew(lease, now, end);
                self.store.change_holders(set, renewed).unwrap_or(false)
            }
            None => limit::renew(&loaded.policy, &mut loaded.state, now, lease, for_ns),
        }
    }

    /// Makes room for one more hold of a key that has many. Items may lie elsewhere then.
    pub(super) fn room_to_hold<'k>(&mut self, at: At<'k>) -> Result<At<'k>, Full> {
        let set = at.slot.filter(|slot| Slot::is_second(*slot)).and_then(|slot| {
            let item = self.store.item(slot);
            SetId::of(item.state()?)
        });
        if set.is_none() {
            return Ok(at);
        }
        self.store.room_for_holders(at.now, 0, at.key)?;
        Ok(self.at(at.now, at.hash, at.key))
    }

    /// Removes a set that no item came to name.
    pub(super) fn drop_unnamed(&mut self, at: At<'_>, set: SetId) {
        let found = self.store.find(at.hash, at.key);
        let named = found.and_then(|slot| SetId::of(self.store.item(slot).state()?));
        if named != Some(set) {
            self.store.drop_holders(set);
        }
    }

    /// Puts the holds beside the item where they are many.
    pub(super) fn part_from_many(&mut self, loaded: &mut Loaded) {
        if loaded.set.is_none()
            && limit::concurrency(&loaded.policy).is_some()
            && let Some(holders) = limit::holders_of(&loaded.state)
            && self.store.has_room_for_holders(holders.bytes())
        {
            loaded.set = Some(self.store.add_holders(holders));
            loaded.state.clear();
        }
    }

    /// Takes the holds into the item where they are few again.
    pub(super) fn join_few(&mut self, loaded: &mut Loaded, now: Now) {
        if let Some(set) = loaded.set
            && let Some(holders) = self.store.holders(set)
            && limit::state_of(holders, now, &mut loaded.state)
        {
            loaded.set = None;
        }
    }

    /// Applies a piece of the holds of another node or process, or changes of them, to those of a key.
    /// `front` is the policy as it lies before a state's own bytes, where `rule` is
    /// [`INLINE`](crate::policies::INLINE).
    pub(crate) fn absorb_holders(
        &mut self,
        (now, hash, key): (Now, u64, &[u8]),
        figures: Figures,
        (rule, front): (u32, &[u8]),
        piece: &[u8],
        shift: i128,
    ) -> Result<(), PutError> {
        let (is_anew, puts) = read_piece(piece).ok_or(PutError::NotACopy)?;
        let room = self.store.room_for_holders(now, puts * HOLD_BYTES_HERE, key);
        room.map_err(|Full| PutError::NoRoom)?;
        let at = self.found(now, hash, key);
        let known = at.slot.and_then(|slot| SetId::of(self.store.item(slot).state()?));
        let set = match known.filter(|_| !is_anew) {
            Some(set) => set,
            None => self.store.add_holders(Holders::default()),
        };
        self.store.change_holders(set, |holders| holders.absorb(piece, shift));
        let mut body = Vec::with_capacity(front.len() + set.body().len());
        body.extend_from_slice(front);
        body.extend_from_slice(&set.body());
        let content = Content::State(State { rule, body: &body });
        let written = self.store.write(now, hash, key, at.slot, figures, content);
        if written.is_err() {
            self.drop_unnamed(at, set);
        }
        written.map(|_| ()).map_err(|Full| PutError::NoRoom)
    }
}

/// Refuses what would pass, for the key has as many estimates to be settled as it can have; the first of
/// them ends so many nanoseconds from now.
pub(super) fn without_a_hold(seen: Decision, first_end: u64) -> Decision {
    let retry = seen.retry.map(|retry| retry.max(first_end));
    Decision { verdict: Verdict::Deny, granted: 0, retry, ..seen }
}

#[cfg(test)]
mod tests;
