//! The place of a limit among the others: its order, and the fallback behind all of them.
//!
//! Not here: sorting the limits (`rules`), finding the limit of a key (`index`).

use super::pattern::Pattern;
use super::{Limit, Limits};

impl Limits {
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
