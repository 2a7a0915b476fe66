//! The cost of one key of a charge, made of the cost of the request.
//!
//! Here: the arithmetic, within the bounds of a count, and the rule of a parent. Not here: the keys
//! (`template`), charging them (`server`).

use protocol::COUNT_MAX;

use super::Limit;

/// The cost of one key: some times the units of the request, and some units whatever it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChargeCost {
    times: u64,
    fixed: u64,
}

impl ChargeCost {
    /// The units of the request, as they are.
    pub const SAME: Self = Self::times(1);

    /// Creates the cost that is `times` times the units of the request.
    #[must_use]
    pub const fn times(times: u64) -> Self {
        Self { times, fixed: 0 }
    }

    /// Creates the cost that is `units` whatever the request asks for.
    #[must_use]
    pub const fn fixed(units: u64) -> Self {
        Self { times: 0, fixed: units }
    }

    /// Adds the cost of a second charge of the same key.
    pub fn add(&mut self, other: Self) {
        self.times = self.times.saturating_add(other.times);
        self.fixed = self.fixed.saturating_add(other.fixed);
    }

    /// Returns the cost with a weight.
    pub(super) fn weighted(self, weight: u64) -> Self {
        Self { times: self.times.saturating_mul(weight), fixed: self.fixed.saturating_mul(weight) }
    }

    /// Returns the cost for a request whose units are `units`.
    #[must_use]
    pub fn for_units(self, units: Self) -> Self {
        let Self { times, fixed } = units.weighted(self.times);
        Self { times, fixed: fixed.saturating_add(self.fixed) }
    }

    /// Returns the units of the key for `units` of the request; `None` if they are more than
    /// [`COUNT_MAX`], which no limit ever allows.
    #[must_use]
    pub fn of(self, units: u64) -> Option<u64> {
        let scaled = self.times.checked_mul(units)?;
        scaled.checked_add(self.fixed).filter(|cost| *cost <= COUNT_MAX)
    }

    /// Returns [`Self::of`], at most [`COUNT_MAX`].
    #[must_use]
    pub fn capped(self, units: u64) -> u64 {
        self.of(units).unwrap_or(COUNT_MAX)
    }

    /// Returns the units of the key that `units` of the request give back: none of those that are
    /// charged whatever it asks for.
    #[must_use]
    pub fn refund(self, units: u64) -> u64 {
        self.times.saturating_mul(units).min(COUNT_MAX)
    }

    /// Returns the true cost of the key if that of the request is `actual`: 0 for a request that is
    /// cancelled.
    #[must_use]
    pub fn settled(self, actual: u64) -> u64 {
        if actual == 0 { 0 } else { self.capped(actual) }
    }

    /// Returns whether the cost is in proportion to the units of the request.
    #[must_use]
    pub fn is_scaled(self) -> bool {
        self.fixed == 0 && self.times > 0
    }

    /// Returns the units of the request that `granted` units of the key pay for, at most `units`.
    #[must_use]
    pub fn paid_by(self, granted: u64, units: u64) -> u64 {
        let spare = granted.saturating_sub(self.fixed);
        spare.checked_div(self.times).map_or(units, |paid| paid.min(units))
    }
}

/// The rule by which a parent is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParentRule {
    /// The cost in place of the request's, 0 to [`COUNT_MAX`].
    pub cost: Option<u64>,
    /// Nanoseconds for which the cost is held, at least 1.
    pub hold: Option<u64>,
}

impl ParentRule {
    /// Returns the cost of a parent whose child has `cost`, without the parent's weight.
    pub(super) fn cost_of(self, cost: ChargeCost) -> ChargeCost {
        self.cost.map_or(cost, ChargeCost::fixed)
    }
}

/// The charge of a request by a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Charging {
    /// Multiplies the cost of a request, at least 1.
    pub(super) weight: u64,
    /// The rule of each parent.
    pub(super) rules: Vec<ParentRule>,
}

impl Limit {
    /// The factor of the cost of a request, for keys whose override has none; at least 1.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.charging.weight
    }

    /// The rule of each parent.
    pub(super) fn parent_rules(&self) -> &[ParentRule] {
        &self.charging.rules
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn costs_are_those_of_wide_numbers(
            charges in proptest::collection::vec((any::<bool>(), any::<u64>()), 1..5),
            units in 0..=COUNT_MAX,
        ) {
            let mut cost = ChargeCost::default();
            let mut exact = 0_u128;
            for (is_fixed, number) in charges {
                let number = number >> (number % 64);
                cost.add(if is_fixed { ChargeCost::fixed(number) } else { ChargeCost::times(number) });
                let units = if is_fixed { 1 } else { units };
                exact += u128::from(number) * u128::from(units);
            }
            let expected = u64::try_from(exact).ok().filter(|cost| *cost <= COUNT_MAX);
            prop_assert_eq!(cost.of(units), expected);
            prop_assert_eq!(cost.capped(units), expected.unwrap_or(COUNT_MAX));
        }

        #[test]
        fn weights_multiply_along_the_parents(
            weights in proptest::collection::vec(1..=COUNT_MAX, 1..5),
            units in 0..=COUNT_MAX,
        ) {
            let (mut cost, mut exact) = (ChargeCost::SAME, u128::from(units));
            for weight in weights {
                let weight = weight >> (weight % 53);
                cost = cost.weighted(weight.max(1));
                exact = exact.saturating_mul(u128::from(weight.max(1)));
            }
            let expected = u64::try_from(exact).ok().filter(|cost| *cost <= COUNT_MAX);
            prop_assert_eq!(cost.of(units), expected);
            prop_assert_eq!(cost.for_units(ChargeCost::fixed(units)).of(7), expected);
            prop_assert_eq!(cost.for_units(ChargeCost::SAME), cost);
        }

        #[test]
        fn a_part_is_the_most_that_was_paid(
            times in 1_u64..100,
            fixed in 0_u64..100,
            granted in 0_u64..10_000,
            units in 0_u64..200,
        ) {
            let cost = ChargeCost { times, fixed };
            let is_paid = |paid: &u64| cost.of(*paid).is_some_and(|cost| cost <= granted);
            let slow = (0..=units).rev().find(is_paid);
            prop_assert_eq!(cost.paid_by(granted, units), slow.unwrap_or(0));
        }
    }

    #[test]
    fn a_constant_is_kept_unless_the_request_is_cancelled() {
        let constant = ParentRule { cost: Some(3), hold: None }.cost_of(ChargeCost::SAME);
        assert_eq!(constant.weighted(2), ChargeCost::fixed(6));
        assert_eq!((constant.refund(500), constant.settled(500), constant.settled(0)), (0, 3, 0));
        let double = ParentRule::default().cost_of(ChargeCost::times(2));
        assert_eq!((double.refund(5), double.settled(5), double.settled(0)), (10, 10, 0));
    }
}
