//! The result of a lookup: the limit of a key, its policy, the counted key, and the parents.
//!
//! Here: the types. Not here: the lookup (`search`, `index`).

use arrayvec::ArrayVec;
use protocol::Policy;

use super::charge_cost::ChargeCost;
use super::companion::Companion;
use super::error::LimitedKeyError;
use super::override_id::OverrideId;
use super::pattern::Captures;
use super::{Limit, PARENTS_MAX};

/// The limit that a key matches, with the policy and the counted key.
#[derive(Debug, Clone, Copy)]
pub struct LimitMatch<'a> {
    pub(super) limit: &'a Limit,
    pub(super) policy: &'a Policy,
    pub(super) key: &'a [u8],
    pub(super) base: &'a [u8],
    pub(super) companion: Option<Companion>,
    pub(super) overridden: Option<OverrideId>,
    pub(super) captures: Captures,
}

impl<'a> LimitMatch<'a> {
    /// The limit.
    #[must_use]
    pub fn limit(&self) -> &'a Limit {
        self.limit
    }

    /// The policy in force: that of the override, or the limit's.
    #[must_use]
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// The counted key.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The limited key as the client wrote it; for a companion, the key that it belongs to.
    #[must_use]
    pub fn base(&self) -> &'a [u8] {
        self.base
    }

    /// The companion, if the client's key is one. Companions are read-only.
    #[must_use]
    pub fn companion(&self) -> Option<Companion> {
        self.companion
    }

    /// Whether all keys that are counted as one here are counted as one by `other` too, the match
    /// of the same key under other limits; without `other` each key is counted for itself. False
    /// also if the two patterns do not tell.
    #[must_use]
    pub fn counts_within(&self, other: Option<&LimitMatch<'_>>) -> bool {
        let Some(key) = &self.limit.key else { return true };
        key.tells_all(&self.limit.pattern)
            || other.is_some_and(|other| {
                let is_told = || other.limit.key.as_ref().is_some_and(|theirs| key.tells(theirs));
                self.key == other.key || (self.limit.text == other.limit.text && is_told())
            })
    }

    /// The override in force.
    #[must_use]
    pub fn overridden(&self) -> Option<OverrideId> {
        self.overridden
    }

    /// Adds the override in force, if there is one.
    #[inline]
    pub(super) fn set_override(&mut self, found: Option<(OverrideId, &'a Policy)>) {
        if let Some((id, policy)) = found {
            (self.overridden, self.policy) = (Some(id), policy);
        }
    }

    /// The factor of the cost of a request: that of the override, or the limit's.
    #[must_use]
    pub fn weight(&self) -> u64 {
        let of_override = self.overridden.and_then(|id| self.limit.overrides.as_ref()?.weight(id));
        of_override.unwrap_or(self.limit.weight())
    }

    /// The cost of the key itself.
    #[must_use]
    pub fn cost(&self) -> ChargeCost {
        ChargeCost::times(self.weight())
    }

    /// Whether a request may be charged otherwise than with its cost on its own key alone: it has
    /// parents or a weight.
    #[inline]
    #[must_use]
    pub fn charges_more(&self) -> bool {
        self.limit.charges_more
    }

    /// Whether every key of the limit has one policy, and is charged the cost of a request alone.
    #[must_use]
    pub fn is_simple(&self) -> bool {
        self.limit.is_simple
    }

    /// Whether other keys are charged too, so that [`Limits::parents`](super::Limits::parents) must
    /// be called.
    #[must_use]
    pub fn has_parents(&self) -> bool {
        !self.limit.parents.is_empty()
    }
}

/// The parents of a key, with reusable buffers: keep one value and use it again.
#[derive(Debug, Default)]
pub struct Parents {
    rows: ArrayVec<ParentRow, PARENTS_MAX>,
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct ParentRow {
    limit: usize,
    policy: Policy,
    key: Vec<u8>,
    cost: ChargeCost,
    hold: Option<u64>,
}

/// One parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent<'p> {
    /// The index of its limit.
    pub limit: usize,
    /// The policy in force.
    pub policy: &'p Policy,
    /// The counted key.
    pub key: &'p [u8],
    /// The cost, made of that of a request on the child.
    pub cost: ChargeCost,
    /// Nanoseconds for which the cost is held, if its child's limit says so.
    pub hold: Option<u64>,
}

impl Parents {
    /// The parents, depth first: each is followed by its own parents that were not added before.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Parent<'_>> {
        self.rows.iter().map(|ParentRow { limit, policy, key, cost, hold }| Parent {
            limit: *limit,
            policy,
            key,
            cost: *cost,
            hold: *hold,
        })
    }

    /// The number of parents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no parents.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.spare.extend(self.rows.drain(..).map(|row| row.key));
    }

    pub(super) fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Keeps buffers for reuse.
    pub(super) fn give_back(&mut self, buffers: [Vec<u8>; 2]) {
        self.spare.extend(buffers);
    }

    /// Adds a parent. Returns `false` if it was added before.
    pub(super) fn push(
        &mut self,
        parent: &LimitMatch<'_>,
        cost: ChargeCost,
        hold: Option<u64>,
    ) -> Result<bool, LimitedKeyError> {
        let limit = parent.limit.index();
        if self.rows.iter().any(|row| row.limit == limit && row.key == parent.key) {
            return Ok(false);
        }
        let mut key = self.buffer();
        key.extend_from_slice(parent.key);
        let row = ParentRow { limit, policy: *parent.policy, key, cost, hold };
        self.rows.try_push(row).map_err(|_| LimitedKeyError::TooManyParents)?;
        Ok(true)
    }
}
