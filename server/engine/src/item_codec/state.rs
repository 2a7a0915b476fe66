//! The state of a limit in a copy.
//!
//! Here: checking a copied state, and its policy on this node. Not here: the rest of a copy
//! (`item_codec`), many holders (`holders`).

use protocol::Policy;

use crate::commands::lease::Leases;
use crate::commands::take::{HAS_LEASES, HOLD_BYTES, HOLDS_MAX, has_own_state};
use crate::engine::Engine;
use crate::policy_table::{INLINE, LimitState, inline};
use crate::store::arena::Slot;

impl Engine {
    /// Converts a copied state to the form in an item; `None` if it is invalid. `former` is the
    /// slot of the key's item.
    pub(super) fn state_of_copy<'v>(
        &mut self,
        former: Option<Slot>,
        value: &'v [u8],
    ) -> Option<LimitState<'v>> {
        let (token, body) = inline(value)?;
        if !is_body(body) {
            return None;
        }
        let policy_id = match self.policy_id_in(former, token) {
            Some(number) => number,
            None => self.policy_id_of_copy(token)?,
        };
        let is_own = match policy_id {
            INLINE => has_own_state(&Policy::parse_list(token).ok()?, body),
            number => has_own_state(&self.limits.policies.get(number)?.policy, body),
        };
        if !is_own {
            return None;
        }
        // A state with an inline policy begins as its copy does.
        Some(LimitState { policy_id, body: if policy_id == INLINE { value } else { body } })
    }

    /// The id of the policy of the state in `slot`, if [`Engine::policy_id_of_copy`] would find the
    /// same one: the commonest case, in fewer steps.
    fn policy_id_in(&self, slot: Option<Slot>, token: &[u8]) -> Option<u32> {
        let state = self.store.item(slot?).state()?;
        let is_of_copies = self.limits.policies.get(state.policy_id)?.limit == 0;
        let is_same = || self.limits.policies.token_of(state) == Some(token);
        (is_of_copies && is_same()).then_some(state.policy_id)
    }

    /// The id of the policy under which a copy was made, or [`INLINE`]; `None` for an invalid
    /// policy.
    pub(super) fn policy_id_of_copy(&mut self, token: &[u8]) -> Option<u32> {
        let rules_max = self.policies_max();
        let (states, unused) = self.store.unused_policies();
        self.limits.policies.number_of_copy(token, rules_max, states, unused)
    }
}

/// Whether the holds and leases at the front of these bytes are complete.
fn is_body(body: &[u8]) -> bool {
    let Some((marked, rest)) = body.split_first_chunk() else { return false };
    let marked = u16::from_le_bytes(*marked);
    let holds = usize::from(marked & !HAS_LEASES);
    let Some(rest) = rest.get(holds * HOLD_BYTES..) else { return false };
    let has_leases = marked & HAS_LEASES != 0;
    holds <= HOLDS_MAX
        && (!has_leases || Leases::decode(rest).is_some_and(|(leases, _)| leases.is_sound()))
}
