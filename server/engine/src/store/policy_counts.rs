//! The number of limit states of each policy.
//!
//! Here: counting states that are added and removed. Not here: the policies (`policy_table`).

use std::hint::cold_path;

use super::Store;
use super::arena::Slot;
use crate::policy_table::{INLINE, LimitState, UnusedPolicies};

impl Store {
    /// The number of limit states of each policy, by policy id; ids past the end have none.
    pub(crate) fn states_by_policy(&self) -> &[u32] {
        &self.states_by_policy
    }

    /// Those counts, and the policies whose last state was removed since this was emptied.
    pub(crate) fn unused_policies(&mut self) -> (&[u32], &mut UnusedPolicies) {
        (&self.states_by_policy, &mut self.unused)
    }

    /// Counts a state that is added to its policy.
    pub(super) fn count_in(&mut self, state: LimitState<'_>) {
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
    pub(super) fn count_out(&mut self, slot: Slot) {
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
}
