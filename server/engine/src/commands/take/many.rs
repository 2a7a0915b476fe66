//! Operations on any state, whether its holds lie in its item or beside it, and whether one policy
//! decides or several.
//!
//! Here: the choice between them. Not here: their arithmetic (`algorithms`,
//! `algorithms/concurrency/many`), the storage of holds (`store`).

use protocol::{Algorithm, PolicyList};

use super::{ForeignHold, LoadedState};
use crate::algorithms::{self, Attempt, Decision, Verdict};
use crate::engine::Engine;
use crate::store::arena::Slot;
use crate::store::holders::{HOLDERS_MAX, Holders};
use crate::store::{Full, HoldSetId, Located};
use crate::time::Now;

impl Engine {
    /// Decides, and stores the decision unless it is a peek.
    pub(crate) fn decide(
        &mut self,
        loaded: &mut LoadedState,
        now: Now,
        attempt: &Attempt,
    ) -> Decision {
        if let Some(set) = loaded.set
            && let Some(limit) = algorithms::concurrency(&loaded.policy)
            && let Some(decision) =
                self.store.change_holders(set, |holders| limit.take_of_many(holders, now, attempt))
        {
            return decision;
        }
        if let Algorithm::Several(list) = loaded.policy.algorithm {
            return self.decide_several(list, loaded, now, attempt);
        }
        algorithms::take(&loaded.policy, &mut loaded.state, now, attempt)
    }

    /// [`Engine::decide`] under several policies.
    #[cold]
    fn decide_several(
        &mut self,
        list: PolicyList,
        loaded: &mut LoadedState,
        now: Now,
        attempt: &Attempt,
    ) -> Decision {
        let scratch = &mut self.limits.several;
        let several = algorithms::take_several(list, &mut loaded.state, now, attempt, scratch);
        scratch.release_large();
        loaded.is_several = true;
        self.limits.decided = Some(several);
        several.decision
    }

    /// Peeks at the state.
    pub(super) fn look_at(
        &mut self,
        loaded: &mut LoadedState,
        now: Now,
        attempt: Attempt,
    ) -> Decision {
        self.decide(loaded, now, &Attempt { peek: true, ..attempt })
    }

    /// Gives units back. Returns the number by which usage has fallen, which does not fall below 0.
    pub(super) fn put_back_units(&mut self, loaded: &mut LoadedState, now: Now, units: u64) -> u64 {
        match loaded.set {
            Some(set) => {
                let now = algorithms::instant(now);
                let refunded = |holders: &mut Holders| holders.refund(units, now);
                self.store.change_holders(set, refunded).unwrap_or(0)
            }
            None => algorithms::refund(&loaded.policy, &mut loaded.state, now, units),
        }
    }

    /// Begins a hold of `concurrency` that was granted elsewhere, even if it would not pass here;
    /// false if the policy does not keep holds in its state.
    pub(super) fn give_hold(
        &mut self,
        loaded: &mut LoadedState,
        now: Now,
        hold: &ForeignHold,
    ) -> bool {
        let ForeignHold { lease, units, for_ns } = *hold;
        let Some(set) = loaded.set else {
            return algorithms::give(
                &loaded.policy,
                &mut loaded.state,
                now,
                (lease, units, for_ns),
            );
        };
        let now = algorithms::instant(now);
        let end = now.saturating_add_unsigned(for_ns.max(1));
        self.store.change_holders(set, |holders| {
            holders.forget_ended(now);
            // With the maximum of holds the limit counts as used up anyway.
            if units > 0 && holders.all().len < HOLDERS_MAX {
                holders.begin(units, end, Some(lease));
            }
        });
        true
    }

    /// Ends a hold of `concurrency`; false if there is no such hold.
    pub(super) fn settle_hold(&mut self, loaded: &mut LoadedState, now: Now, lease: u64) -> bool {
        match loaded.set {
            Some(set) => {
                let now = algorithms::instant(now);
                let settled = |holders: &mut Holders| holders.settle(lease, now);
                self.store.change_holders(set, settled).unwrap_or(false)
            }
            None => algorithms::settle(&loaded.policy, &mut loaded.state, now, lease),
        }
    }

    /// Lets a hold of `concurrency` last `for_ns` nanoseconds from now; false if there is no such
    /// hold.
    pub(super) fn renew_hold(
        &mut self,
        loaded: &mut LoadedState,
        now: Now,
        lease: u64,
        for_ns: u64,
    ) -> bool {
        match loaded.set {
            Some(set) => {
                let now = algorithms::instant(now);
                let end = now.saturating_add_unsigned(for_ns);
                let renewed = |holders: &mut Holders| holders.renew(lease, now, end);
                self.store.change_holders(set, renewed).unwrap_or(false)
            }
            None => algorithms::renew(&loaded.policy, &mut loaded.state, now, lease, for_ns),
        }
    }

    /// Makes room for one more hold of a key that has many. Items may move to other slots.
    pub(super) fn room_to_hold<'k>(&mut self, at: Located<'k>) -> Result<Located<'k>, Full> {
        let set = at.slot.filter(|slot| Slot::is_limit_state(*slot)).and_then(|slot| {
            let item = self.store.item(slot);
            HoldSetId::of(item.state()?)
        });
        if set.is_none() {
            return Ok(at);
        }
        self.store.room_for_holders(at.now, 0, at.hash)?;
        Ok(self.at(at.now, at.hash, at.key))
    }

    /// Removes a set that no item names.
    pub(crate) fn drop_unnamed(&mut self, at: Located<'_>, set: HoldSetId) {
        let found = self.store.find(at.hash, at.key);
        let named = found.and_then(|slot| HoldSetId::of(self.store.item(slot).state()?));
        if named != Some(set) {
            self.store.drop_holders(set);
        }
    }

    /// Moves the holds beside the item if they are too many for it.
    pub(super) fn move_holds_to_set(&mut self, loaded: &mut LoadedState) {
        if loaded.set.is_none()
            && algorithms::concurrency(&loaded.policy).is_some()
            && let Some(holders) = algorithms::holders_of(&loaded.state)
            && self.store.has_room_for_holders(holders.bytes())
        {
            loaded.set = Some(self.store.add_holders(holders));
            loaded.state.clear();
        }
    }

    /// Moves the holds into the item if they are few again.
    pub(super) fn join_few(&mut self, loaded: &mut LoadedState, now: Now) {
        if let Some(set) = loaded.set
            && let Some(holders) = self.store.holders(set)
            && algorithms::state_of(holders, now, &mut loaded.state)
        {
            loaded.set = None;
        }
    }
}

/// Refuses an attempt because the key has its maximum of unsettled estimates; the first of them
/// ends `first_end` nanoseconds from now.
pub(super) fn without_hold(seen: Decision, first_end: u64) -> Decision {
    let retry = seen.retry.map(|retry| retry.max(first_end));
    Decision { verdict: Verdict::Deny, granted: 0, retry, ..seen }
}

#[cfg(test)]
mod tests;
