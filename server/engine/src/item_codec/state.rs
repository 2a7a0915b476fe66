//! The state of a limit in a copy.
//!
//! Here: checking a copied state, its policy on this node, and writing it in place. Not here: the
//! rest of a copy (`item_codec`), many holders (`holders`).

use std::hint::cold_path;

use protocol::{Algorithm, Policy};

use crate::commands::lease::Leases;
use crate::commands::take::{HOLDS_MAX, HoldList, has_own_state};
use crate::engine::Engine;
use crate::policy_table::{INLINE, LimitState, PolicyTable, inline};
use crate::store::ItemChange;
use crate::store::arena::Slot;
use crate::store::item::{ItemHeader, ItemMut};
use crate::time::Now;

impl Engine {
    /// Writes a copied state, without client flags, over a state of the same policy and length,
    /// neither with holds nor leases: the commonest case. Returns false, and changes nothing, in
    /// all others.
    #[inline]
    pub(super) fn put_state_in_place(
        &mut self,
        now: Now,
        (hash, key): (u64, &[u8]),
        header: ItemHeader,
        value: &[u8],
    ) -> bool {
        self.flush_if_due(now);
        let Some((token, body)) = inline(value) else { return false };
        let policies = &self.limits.policies;
        let putting = PutStateInPlace { header, token, body, policies };
        let Some(Some(former_cas)) = self.store.change(hash, key, putting) else { return false };
        self.store.note_cas(former_cas, header.cas);
        self.uniques.raise(header.cas);
        true
    }

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
        self.limits.policies.is_of_copy(state, token).then_some(state.policy_id)
    }

    /// The id of the policy under which a copy was made, or [`INLINE`]; `None` for an invalid
    /// policy.
    pub(super) fn policy_id_of_copy(&mut self, token: &[u8]) -> Option<u32> {
        let rules_max = self.policies_max();
        let (states, unused) = self.store.unused_policies();
        self.limits.policies.number_of_copy(token, rules_max, states, unused)
    }
}

/// Changes a state to another. Returns the former cas unique; `None` if nothing was changed.
struct PutStateInPlace<'a> {
    header: ItemHeader,
    token: &'a [u8],
    body: &'a [u8],
    policies: &'a PolicyTable,
}

impl ItemChange for PutStateInPlace<'_> {
    type Answer = Option<u64>;

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is the whole of `put_state_in_place`")]
    fn make(self, _: Slot, mut item: ItemMut<'_>) -> Self::Answer {
        let Self { header, token, body, policies } = self;
        let former = item.as_item();
        let (former_cas, behind_state) = (former.cas(), former.bytes_to_flags());
        let state = former.state()?;
        // The parts of a state of several policies must be checked. Two zeros at the front stand
        // for no holds and no leases.
        let is_alike = policies.is_of_copy(state, token)
            && !matches!(policies.get(state.policy_id)?.policy.algorithm, Algorithm::Several(_))
            && state.body.len() == body.len()
            && [state.body, body].iter().all(|body| body.starts_with(&[0, 0]))
            && header.client_flags == 0
            && !former.is_flagged();
        if !is_alike {
            cold_path();
            return None;
        }
        item.set_state_end(behind_state, body);
        item.set_header(header);
        Some(former_cas)
    }
}

/// Whether the holds and leases at the front of these bytes are complete.
fn is_body(body: &[u8]) -> bool {
    let Some((holds, rest)) = HoldList::split(body) else { return false };
    let are_leases_sound = || Leases::decode(rest).is_some_and(|(leases, _)| leases.is_sound());
    !holds.has_set && holds.len() <= HOLDS_MAX && (!holds.has_leases || are_leases_sound())
}
