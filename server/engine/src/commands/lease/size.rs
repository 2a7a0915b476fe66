//! The size of a grant, as pure arithmetic.
//!
//! With limit L, remaining R, time left t, weight w, own rate d, refresh f, all units whole:
//!
//! | client | grant |
//! | --- | --- |
//! | without a lease | `floor(½·L·w/Σw)`, at least 1; scarce: at most half of R |
//! | with a lease | up to `clamp(ceil(d·f), 1, R)` in hand |
//! | with a lease, scarce (R < 0.1·L) | up to `clamp(floor(R·f/t·d/Σd), 1, floor(R/2))` in hand |
//!
//! Never more than the client wants, never more than R. The last unit has no half, so it is
//! granted. "In hand" counts the units that the client has left of earlier grants: otherwise a
//! client that spends nothing would accumulate a unit with every call. If the clients' needs `d·f`
//! together exceed R plus all outstanding units, no client gets more than its fair share
//! (`fair_share`) of these, so that the first one cannot take all.
//!
//! Here: the formulas. Not here: the values of R, t and d for each policy (`lease`).

use super::records::LeaseRecord;
use crate::algorithms::wide::mul_div;
use crate::fair_share::{ShareRequest, fair};

/// Rates are in millionths of a unit per second.
const RATE_UNIT: u128 = 1_000_000 * 1_000_000_000;

/// Shortest time in nanoseconds over which a rate is measured: 100 ms.
pub(super) const SPAN_MIN: u64 = 100_000_000;

/// The inputs of a client's grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GrantInputs {
    /// L.
    pub(super) limit: u64,
    /// R.
    pub(super) remaining: u64,
    /// t in nanoseconds, at least 1.
    pub(super) left: u64,
    /// f in nanoseconds.
    pub(super) refresh: u64,
    /// Units that the client wants.
    pub(super) want: u64,
    /// w.
    pub(super) weight: u32,
    /// The units that the client has already, and d; `None` for a client without a lease.
    pub(super) has: Option<(u64, u64)>,
}

impl GrantInputs {
    /// Units to grant, given the leases of all other clients.
    pub(super) fn grant(&self, others: impl Iterator<Item = LeaseRecord>) -> u64 {
        let units = match self.has {
            None => self.first(others),
            Some((in_hand, rate)) if self.is_scarce() => {
                self.scarce(rate, others).saturating_sub(in_hand)
            }
            Some((in_hand, rate)) => self.top_up(in_hand, rate, others).saturating_sub(in_hand),
        };
        units.min(self.want).min(self.remaining)
    }

    fn is_scarce(&self) -> bool {
        u128::from(self.remaining) * 10 < u128::from(self.limit)
    }

    /// Half of the remaining units; the last unit has no half.
    fn half(&self) -> u64 {
        (self.remaining / 2).max(1)
    }

    fn first(&self, others: impl Iterator<Item = LeaseRecord>) -> u64 {
        let own = u128::from(self.weight.max(1));
        let weights = own + others.map(|record| u128::from(record.weight.max(1))).sum::<u128>();
        let share = (u128::from(self.limit) * own / (2 * weights)) as u64;
        let max = if self.is_scarce() { self.half() } else { u64::MAX };
        share.max(1).min(max)
    }

    fn scarce(&self, rate: u64, others: impl Iterator<Item = LeaseRecord>) -> u64 {
        let rates = u128::from(rate) + others.map(|record| u128::from(record.rate)).sum::<u128>();
        if rates == 0 {
            return 1;
        }
        // Rounding down twice equals rounding down once, because both divisors are whole.
        let due = u128::from(self.remaining) * u128::from(self.refresh);
        let units = mul_div(due, rate.into(), rates).0 / u128::from(self.left.max(1));
        u64::try_from(units).unwrap_or(u64::MAX).clamp(1, self.half())
    }

    fn top_up(&self, in_hand: u64, rate: u64, others: impl Iterator<Item = LeaseRecord>) -> u64 {
        let need = |rate| needed(rate, self.refresh);
        let mut wants = vec![ShareRequest { units: need(rate), weight: self.weight }];
        let mut there = self.remaining.saturating_add(in_hand);
        for record in others {
            there = there.saturating_add(record.units);
            wants.push(ShareRequest { units: need(record.rate), weight: record.weight });
        }
        fair(there, &wants, 0).floor().max(1)
    }
}

/// `ceil(d·f)`.
pub(super) fn needed(rate: u64, refresh: u64) -> u64 {
    let units = (u128::from(rate) * u128::from(refresh)).div_ceil(RATE_UNIT);
    u64::try_from(units).unwrap_or(u64::MAX)
}

/// The rate of `units` in `span` nanoseconds, rounded up: a client that spends any unit has a rate
/// above 0. A shorter span than [`SPAN_MIN`] is filled up with the rate before, so that calls in
/// quick succession keep their mean.
pub(super) fn rate(units: u64, span: u64, before: u64) -> u64 {
    let filled = u128::from(before) * u128::from(SPAN_MIN.saturating_sub(span));
    let spent = u128::from(units) * RATE_UNIT;
    let rate = spent.saturating_add(filled).div_ceil(span.max(SPAN_MIN).into());
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn size(limit: u64, remaining: u64, has: Option<(u64, u64)>) -> GrantInputs {
        let (left, refresh) = (60 * SECOND, 5 * SECOND);
        GrantInputs { limit, remaining, left, refresh, want: u64::MAX, weight: 1, has }
    }

    fn other(weight: u32, units: u64, rate: u64) -> LeaseRecord {
        LeaseRecord { lease: 1, units, end: 0, until: 0, since: 0, rate, weight }
    }

    fn grant(size: GrantInputs, others: &[LeaseRecord]) -> u64 {
        size.grant(others.iter().copied())
    }

    #[test]
    fn a_first_grant_is_half_the_limit_by_weight() {
        assert_eq!(grant(size(100, 100, None), &[]), 50);
        assert_eq!(grant(size(101, 100, None), &[]), 50);
        assert_eq!(grant(size(100, 50, None), &[other(1, 50, 0)]), 25);
        assert_eq!(grant(GrantInputs { weight: 3, ..size(100, 50, None) }, &[other(1, 50, 0)]), 37);
        assert_eq!(grant(size(100, 20, None), &[other(1, 80, 0)]), 20);
        assert_eq!(grant(GrantInputs { want: 7, ..size(100, 100, None) }, &[]), 7);
        assert_eq!(grant(GrantInputs { want: 0, ..size(100, 100, None) }, &[]), 0);
        // A limit of one can be leased too.
        assert_eq!(grant(size(1, 1, None), &[]), 1);
        assert_eq!(grant(size(1, 0, None), &[]), 0);
    }

    #[test]
    fn a_top_up_covers_spending_until_the_next_call() {
        let rate = rate(10, 4 * SECOND, 0);
        assert_eq!(grant(size(100, 80, Some((0, rate))), &[]), 13);
        // The units in hand count.
        assert_eq!(grant(size(100, 80, Some((5, rate))), &[]), 8);
        assert_eq!(grant(size(100, 80, Some((20, rate))), &[]), 0);
        // Nothing spent: one unit to continue with, and no second one.
        assert_eq!(grant(size(100, 80, Some((0, 0))), &[]), 1);
        assert_eq!(grant(size(100, 80, Some((1, 0))), &[]), 0);
        // R is the bound.
        assert_eq!(grant(size(100, 12, Some((0, rate))), &[]), 12);
    }

    #[test]
    fn needs_that_do_not_fit_are_divided_fairly() {
        let rate = |units| rate(units, 5 * SECOND, 0);
        // 120 for needs of 1000, 50 and 10, with nothing outstanding.
        let ask = |own: u64| size(120, 120, Some((0, rate(own))));
        let others = |a: u64, b: u64| [other(1, 0, rate(a)), other(1, 0, rate(b))];
        assert_eq!(grant(ask(1000), &others(50, 10)), 60);
        assert_eq!(grant(ask(50), &others(1000, 10)), 50);
        assert_eq!(grant(ask(10), &others(1000, 50)), 10);
        // Outstanding units count as available, but only the remaining ones can be granted.
        let record = [other(1, 70, rate(50)), other(1, 10, rate(10))];
        assert_eq!(grant(size(120, 40, Some((0, rate(1000)))), &record), 40);
    }

    #[test]
    fn scarce_units_go_by_rate_and_at_most_half() {
        let (slow, fast) = (rate(1, SECOND, 0), rate(3, SECOND, 0));
        let others = [other(1, 0, slow)];
        // R = 99 of 1000, f/t = 1/12, d/Σd = 3/4: floor(6.18).
        assert_eq!(grant(size(1000, 99, Some((0, fast))), &others), 6);
        // With one more unit R is not scarce.
        assert_eq!(grant(size(1000, 100, Some((0, fast))), &others), 15);
        let soon =
            |remaining| GrantInputs { left: SECOND, ..size(1000, remaining, Some((0, fast))) };
        assert_eq!(grant(soon(99), &others), 49);
        assert_eq!([3, 2, 1, 0].map(|remaining| grant(soon(remaining), &others)), [1, 1, 1, 0]);
        // A rate of 0, and a new client while R is scarce.
        assert_eq!(grant(size(1000, 99, Some((0, 0))), &[]), 1);
        assert_eq!(grant(size(1000, 99, None), &[]), 49);
        assert_eq!(grant(size(1000, 1, None), &[]), 1);
    }

    #[test]
    fn the_largest_figures_do_not_overflow() {
        for has in [None, Some((0, u64::MAX)), Some((u64::MAX, u64::MAX))] {
            for remaining in [0, 1, protocol::COUNT_MAX] {
                let size = GrantInputs {
                    left: 1,
                    refresh: u64::MAX,
                    weight: u32::MAX,
                    ..size(protocol::COUNT_MAX, remaining, has)
                };
                let others = vec![other(u32::MAX, u64::MAX, u64::MAX); 1500];
                assert!(grant(size, &others) <= remaining);
            }
        }
        assert_eq!(rate(u64::MAX, 0, 0), u64::MAX);
        assert_eq!(needed(u64::MAX, u64::MAX), u64::MAX);
    }
}
