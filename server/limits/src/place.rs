//! The place of a limit among the others: its order, the fallback behind all of them, and keys
//! that no limit applies to.
//!
//! Not here: exemptions (`exempt`), sorting the limits (`rules`), finding the limit of a key
//! (`index`).

use protocol::{Algorithm, Policy};

use super::pattern::Pattern;
use super::{Limit, Limits};

/// The policy of requests that no limit applies to.
pub const UNLIMITED: Policy =
    Policy { algorithm: Algorithm::Unlimited, over: false, shadow: false };

/// The reason why requests on a key without a limit pass.
#[derive(Debug, Clone, Copy)]
pub enum Unlimited<'l> {
    /// The key is exempt.
    Exempt,
    /// The limits have a fallback, which is this one.
    Fallback(&'l Limit),
}

impl Limits {
    /// Returns why a `take` of a key without a limit passes; `None`: there is nothing to take from.
    pub fn unlimited(&self, key: &[u8]) -> Option<Unlimited<'_>> {
        if self.exemption(key).is_some() {
            return Some(Unlimited::Exempt);
        }
        self.fallback().map(Unlimited::Fallback)
    }

    /// Whether there may be such keys.
    #[must_use]
    pub fn may_pass_unlimited(&self) -> bool {
        self.fallback.is_some() || self.exemptions.is_some()
    }

    /// The limit with `match = "*"` and `unlimited`, for native verbs on keys without a limit. No
    /// key finds it, so these keys are plain items.
    #[must_use]
    pub fn fallback(&self) -> Option<&Limit> {
        self.get(self.fallback? as usize)
    }
}

impl Limit {
    /// The number by which limits are tried: lower ones first.
    #[must_use]
    pub fn order(&self) -> i32 {
        self.order
    }

    /// The pattern by which keys find the limit.
    pub(super) fn indexed_pattern(&self) -> Option<&Pattern> {
        (!self.is_fallback).then_some(&self.pattern)
    }
}
