//! Refunds, and usage set by a caller.
//!
//! Here: usage as a whole. Not here: holds (`holds`), the arithmetic (`algorithms`).

use super::{TakeResult, hold_list, is_state};
use crate::algorithms::{self, Attempt};
use crate::engine::Engine;
use crate::policy_table::PolicyRef;
use crate::time::Now;

/// Usage set by a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetUsage {
    /// Units; more than the limit counts as the limit.
    pub used: u64,
    /// The client's 32 bits, stored beside the state.
    pub client_flags: u32,
    /// Set only if the state has this cas unique.
    pub compare_cas: Option<u64>,
}

impl Engine {
    /// Gives `units` back. `granted` of the decision is the number of units by which the usage has
    /// fallen, which does not fall below 0.
    pub fn refund(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: Option<PolicyRef<'_>>,
        units: u64,
    ) -> TakeResult {
        let at = self.at(now, hash, key);
        if !is_state(at) {
            return TakeResult::NotFound;
        }
        let mut loaded = self.load(at, policy_ref);
        let given_back = self.put_back_units(&mut loaded, now, units);
        let mut result = self.store_and_look(at, &mut loaded);
        if let TakeResult::Decided(facts) = &mut result {
            facts.decision.granted = given_back;
        }
        result
    }

    /// Compares the cas unique of a key's state. Returns the result of a change that it refuses;
    /// `None` if the state has this unique.
    pub fn refused_by_cas(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: Option<PolicyRef<'_>>,
        unique: u64,
    ) -> Option<TakeResult> {
        match self.look(now, hash, key, policy_ref).filter(|facts| facts.has_state) {
            None => Some(TakeResult::NotFound),
            Some(facts) if facts.cas != unique => Some(TakeResult::Exists(facts)),
            Some(_) => None,
        }
    }

    /// Sets the usage. `compare_cas` works as in a take.
    pub fn set_used(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: Option<PolicyRef<'_>>,
        set: &SetUsage,
    ) -> TakeResult {
        let at = self.at(now, hash, key);
        if policy_ref.is_none() && !is_state(at) {
            return TakeResult::NotFound;
        }
        let mut loaded = self.load(at, policy_ref);
        if let Some(unique) = set.compare_cas {
            if loaded.slot.is_none() {
                self.recycle(&mut loaded);
                return TakeResult::NotFound;
            }
            if unique != loaded.header.cas {
                let decision =
                    self.look_at(&mut loaded, now, Attempt { hash, ..Attempt::default() });
                return TakeResult::Exists(self.facts(&mut loaded, decision, false));
            }
        }
        loaded.set = None;
        // From here on usage does not depend on the takes before.
        hold_list::forget_usage(&mut loaded.holds);
        algorithms::set_used(&loaded.policy, &mut loaded.state, now, set.used);
        loaded.header.client_flags = set.client_flags;
        self.store_and_look(at, &mut loaded)
    }
}
