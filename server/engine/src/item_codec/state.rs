//! The state of a limit in a copy.
//!
//! Here: checking a copied state, its policy on this node, and writing it in place; the short form
//! of a copy, which most takes have. Not here: the rest of a copy (`item_codec`), many holders
//! (`holders`).
//!
//! ```text
//! short form: policy token | marks u8 | deadline 40 bits | the state behind its holds and leases
//! ```
//!
//! The short form is that of a state without client flags, holds and leases, whose policy has an
//! id. The receiver knows the cas unique.

use std::hint::cold_path;

use protocol::{Algorithm, Policy};

use super::{PutError, STATE, encode_head};
use crate::commands::lease::Leases;
use crate::commands::take::{HOLDS_MAX, HoldList, has_own_state};
use crate::engine::Engine;
use crate::policy_table::{INLINE, LimitState, PolicyTable, inline, put_token};
use crate::store::ItemChange;
use crate::store::arena::Slot;
use crate::store::item::{ItemFlag, ItemHeader, ItemMut};
use crate::time::{Deadline, Now};

/// Bytes before the state in the second part of a [`LimitCopy`].
const HEAD_BYTES: usize = 6;
/// The front of a state without holds and leases.
const NO_HOLDS: [u8; 2] = [0, 0];

/// The short form of the copy of a limit state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitCopy<'a> {
    /// The token of its policy.
    pub policy: &'a [u8],
    /// Marks, deadline and state.
    pub state: &'a [u8],
}

impl<'a> LimitCopy<'a> {
    /// Splits `bytes`, as [`Engine::copy_of_limit`] has appended them. `state_bytes` is its result.
    #[must_use]
    #[inline]
    pub fn of(bytes: &'a [u8], state_bytes: usize) -> Self {
        let (state, policy) = bytes.split_at(state_bytes);
        Self { policy, state }
    }

    /// Appends the bytes that [`Engine::copy_of`] appends for the same item.
    pub fn write_item(self, cas: u64, out: &mut Vec<u8>) {
        let Some((header, own)) = self.split(cas) else { return };
        encode_head(STATE, header, out);
        put_token(self.policy, out);
        out.extend_from_slice(&NO_HOLDS);
        out.extend_from_slice(own);
    }

    /// The header, and the state behind its holds and leases.
    #[inline]
    fn split(self, cas: u64) -> Option<(ItemHeader, &'a [u8])> {
        let ([marks, deadline @ ..], own) = self.state.split_first_chunk::<HEAD_BYTES>()?;
        let header = ItemHeader::new(cas, 0, Deadline::from_bytes(*deadline));
        let marks = marks & ItemFlag::COPIED;
        Some((ItemHeader { marks, ..header }, own))
    }
}

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
        let Some((token, [0, 0, own @ ..])) = inline(value) else { return false };
        self.put_own_in_place(now, (hash, key), header, (token, own))
    }

    /// Like [`Engine::put_state_in_place`], of the state behind its holds and leases.
    #[inline]
    fn put_own_in_place(
        &mut self,
        now: Now,
        (hash, key): (u64, &[u8]),
        header: ItemHeader,
        (token, own): (&[u8], &[u8]),
    ) -> bool {
        self.flush_if_due(now);
        let policies = &self.limits.policies;
        let putting = PutStateInPlace { header, token, own, policies };
        let Some(Some(former_cas)) = self.store.change(hash, key, putting) else { return false };
        self.store.note_cas(former_cas, header.cas);
        self.uniques.raise(header.cas);
        true
    }

    /// Like [`Engine::copy_of_changed`], in the short form: appends its state, then its policy, and
    /// returns the bytes of the state. Returns `None`, and appends nothing, if the item has no
    /// short form with parts of at most `part_bytes_max` bytes.
    #[inline]
    pub fn copy_of_limit(&self, part_bytes_max: usize, out: &mut Vec<u8>) -> Option<usize> {
        let item = self.store.item(self.changed_at?);
        let LimitState { policy_id, body: [0, 0, own @ ..] } = item.state()? else { return None };
        let token = self.limits.policies.token(policy_id)?;
        let state_bytes = HEAD_BYTES + own.len();
        if item.is_flagged() || token.len().max(state_bytes) > part_bytes_max {
            cold_path();
            return None;
        }
        let ItemHeader { marks, deadline, .. } = item.header();
        let mut head = [marks & ItemFlag::COPIED; HEAD_BYTES];
        head[1..].copy_from_slice(&deadline.to_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(own);
        out.extend_from_slice(token);
        Some(state_bytes)
    }

    /// Stores a copy in the short form, as [`Engine::put_copy`] stores others.
    ///
    /// # Errors
    ///
    /// A [`PutError`]; the item is then unchanged.
    #[inline]
    pub fn put_limit(
        &mut self,
        now: Now,
        (hash, key): (u64, &[u8]),
        copy: LimitCopy<'_>,
        cas: u64,
    ) -> Result<(), PutError> {
        let Some((header, own)) = copy.split(cas) else { return Err(PutError::NotACopy) };
        if self.put_own_in_place(now, (hash, key), header, (copy.policy, own)) {
            return Ok(());
        }
        cold_path();
        let mut item = std::mem::take(&mut self.limits.encoded);
        item.clear();
        copy.write_item(cas, &mut item);
        let done = self.put_copy(now, hash, key, &item);
        self.limits.encoded = item;
        done
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
        self.limits.policies.is_of_copy(state.policy_id, token, |_| true).then_some(state.policy_id)
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
    /// The state behind its holds and leases.
    own: &'a [u8],
    policies: &'a PolicyTable,
}

impl ItemChange for PutStateInPlace<'_> {
    type Answer = Option<u64>;

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is the whole of `put_state_in_place`")]
    fn make(self, _: Slot, mut item: ItemMut<'_>) -> Self::Answer {
        let Self { header, token, own, policies } = self;
        let former = item.as_item();
        let (former_cas, behind_state) = (former.cas(), former.bytes_to_flags());
        let LimitState { policy_id, body: [0, 0, former_own @ ..] } = former.state()? else {
            cold_path();
            return None;
        };
        // The parts of a state of several policies must be checked.
        let is_alike = policies.is_of_copy(policy_id, token, |policy| {
            !matches!(policy.algorithm, Algorithm::Several(_))
        }) && former_own.len() == own.len()
            && header.client_flags == 0
            && !former.is_flagged();
        if !is_alike {
            cold_path();
            return None;
        }
        item.set_state_end(behind_state, own);
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
