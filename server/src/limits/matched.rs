//! What is found for a key: its limit, its policy, the key to count under, and its parents.
//!
//! Not here: how it is found (`limits`, `index`).

use arrayvec::ArrayVec;
use protocol::Policy;

use super::companion::Companion;
use super::error::LimitedKeyError;
use super::pattern::Captures;
use super::{Limit, PARENTS_MAX};

/// What a key is bound to.
#[derive(Debug, Clone, Copy)]
pub struct LimitMatch<'a> {
    pub(super) limit: &'a Limit,
    pub(super) policy: &'a Policy,
    pub(super) key: &'a [u8],
    pub(super) base: &'a [u8],
    pub(super) companion: Option<Companion>,
    pub(super) overridden: Option<usize>,
    pub(super) captures: Captures,
}

impl<'a> LimitMatch<'a> {
    /// The limit.
    #[must_use]
    pub fn limit(&self) -> &'a Limit {
        self.limit
    }

    /// The policy in force: the override's, if there is one.
    #[must_use]
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// The key to count under.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The bound key as the client writes it; of a companion, the key that it is beside.
    #[must_use]
    pub fn base(&self) -> &'a [u8] {
        self.base
    }

    /// Which figure is asked for, when the key is a companion: it is read-only.
    #[must_use]
    pub fn companion(&self) -> Option<Companion> {
        self.companion
    }

    /// Which override of the limit holds, from 0.
    #[must_use]
    pub fn overridden(&self) -> Option<usize> {
        self.overridden
    }

    /// Whether others are charged with it: whether to ask [`Limits::parents`](super::Limits::parents).
    #[must_use]
    pub fn has_parents(&self) -> bool {
        !self.limit.parents.is_empty()
    }
}

/// Parents of a key, and the memory they are made in: keep one and use it again.
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
}

/// One parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent<'p> {
    /// The index of its limit.
    pub limit: usize,
    /// The policy in force.
    pub policy: &'p Policy,
    /// The key to count under.
    pub key: &'p [u8],
}

impl Parents {
    /// The parents, nearest first within each line of descent.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Parent<'_>> {
        self.rows.iter().map(|ParentRow { limit, policy, key }| Parent {
            limit: *limit,
            policy,
            key,
        })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
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

    /// Takes buffers to be used again.
    pub(super) fn give_back(&mut self, buffers: [Vec<u8>; 2]) {
        self.spare.extend(buffers);
    }

    /// Adds a parent; `false` if it is there already.
    pub(super) fn push(&mut self, parent: &LimitMatch<'_>) -> Result<bool, LimitedKeyError> {
        let limit = parent.limit.index();
        if self.rows.iter().any(|row| row.limit == limit && row.key == parent.key) {
            return Ok(false);
        }
        let mut key = self.buffer();
        key.extend_from_slice(parent.key);
        let row = ParentRow { limit, policy: *parent.policy, key };
        self.rows.try_push(row).map_err(|_| LimitedKeyError::TooManyParents)?;
        Ok(true)
    }
}
