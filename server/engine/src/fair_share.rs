//! The division of a capacity among clients that want more than there is.
//!
//! Here: max-min fairness, exact, for one client at a time. Not here: the units to divide
//! (`lease`). Source: the rule `FairShare` of the doorman design (a client-side rate limiter), from
//! its description.
//!
//! Every want is granted if all fit. If they do not, no client gains by wanting more than it needs:
//!
//! ```text
//! capacity 120, wants 1000 / 50 / 10      fair 60 / 50 / 10
//! ```

/// The request of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareRequest {
    /// Units wanted, at most [`COUNT_MAX`](protocol::COUNT_MAX); a greater number counts as that.
    pub units: u64,
    /// The weight of the client; 0 counts as 1.
    pub weight: u32,
}

/// An exact number of units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Above the line.
    pub numerator: u128,
    /// Below the line, at least 1.
    pub denominator: u128,
}

/// Most clients in a division, so that no product overflows; the others are ignored.
pub const CLIENTS_MAX: usize = 1024;

impl Share {
    fn whole(units: u64) -> Self {
        Self { numerator: units.into(), denominator: 1 }
    }

    /// Whole units, rounded down.
    #[must_use]
    pub fn floor(self) -> u64 {
        u64::try_from(self.numerator / self.denominator.max(1)).unwrap_or(u64::MAX)
    }
}

impl ShareRequest {
    fn bounded(self) -> Self {
        Self { units: self.units.min(protocol::COUNT_MAX), weight: self.weight.max(1) }
    }

    /// Whether the want is granted in full if each unit of weight gets `capacity ÷ weights`.
    fn fits(self, capacity: u64, weights: u64) -> bool {
        u128::from(self.units) * u128::from(weights)
            <= u128::from(capacity) * u128::from(self.weight)
    }
}

/// Max-min fairness: the share of the client `of`, counted from 0. A client that wants less than
/// its weighted part gets its want, and the rest of its part is divided among the others alike.
#[must_use]
pub fn fair(capacity: u64, wants: &[ShareRequest], of: usize) -> Share {
    let wants: Vec<ShareRequest> =
        wants.iter().take(CLIENTS_MAX).map(|want| want.bounded()).collect();
    let Some(own) = wants.get(of).copied() else { return Share::whole(0) };
    let mut left = capacity.min(protocol::COUNT_MAX);
    let mut weights: u64 = wants.iter().map(|want| u64::from(want.weight)).sum();
    let mut modest_first = wants;
    modest_first.sort_unstable_by(|a, b| {
        let (a, b) = (
            u128::from(a.units) * u128::from(b.weight),
            u128::from(b.units) * u128::from(a.weight),
        );
        a.cmp(&b)
    });
    for want in modest_first {
        if own.fits(left, weights) {
            return Share::whole(own.units);
        }
        if !want.fits(left, weights) {
            break;
        }
        left -= want.units;
        weights -= u64::from(want.weight);
    }
    let numerator = u128::from(left) * u128::from(own.weight);
    Share { numerator, denominator: weights.max(1).into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::COUNT_MAX;

    use super::*;

    fn wants(units: &[u64]) -> Vec<ShareRequest> {
        units.iter().map(|units| ShareRequest { units: *units, weight: 1 }).collect()
    }

    fn shares(capacity: u64, units: &[u64]) -> Vec<u64> {
        let wants = wants(units);
        (0..wants.len()).map(|of| fair(capacity, &wants, of).floor()).collect()
    }

    /// The example of the module doc.
    #[test]
    fn golden_lease_shares_of_120_among_1000_50_and_10() {
        assert_eq!(shares(120, &[1000, 50, 10]), [60, 50, 10]);
    }

    #[test]
    fn every_want_is_granted_if_all_fit() {
        assert_eq!(shares(60, &[30, 20, 10]), [30, 20, 10]);
        assert_eq!(shares(61, &[30, 20, 10]), [30, 20, 10]);
        assert_eq!(shares(0, &[0, 0]), [0, 0]);
        assert_eq!(shares(0, &[5, 1]), [0, 0]);
        assert_eq!(fair(10, &wants(&[5]), 1).floor(), 0);
        assert_eq!(shares(59, &[30, 20, 10]), [29, 20, 10]);
    }

    #[test]
    fn a_heavier_client_gets_more_when_it_wants_it() {
        let wants =
            [(100, 3), (100, 1), (5, 1)].map(|(units, weight)| ShareRequest { units, weight });
        let shares = [0, 1, 2].map(|of| fair(85, &wants, of).floor());
        assert_eq!(shares, [60, 20, 5]);
    }

    #[test]
    fn the_largest_wants_do_not_overflow() {
        let wants = vec![ShareRequest { units: u64::MAX, weight: u32::MAX }; CLIENTS_MAX + 5];
        assert_eq!(fair(u64::MAX, &wants, 0).floor(), COUNT_MAX / CLIENTS_MAX as u64);
        assert_eq!(fair(u64::MAX, &wants, CLIENTS_MAX).floor(), 0);
    }

    /// A slow fair division: unit after unit to the client that has least for its weight and wants
    /// more.
    fn poured(capacity: u64, wants: &[ShareRequest]) -> Vec<u64> {
        let mut has = vec![0_u64; wants.len()];
        for _ in 0..capacity {
            let hungry = (0..wants.len()).filter(|of| has[*of] < wants[*of].units);
            let Some(next) = hungry.min_by(|a, b| {
                let of = |of: usize, by: usize| (has[of] + 1) * u64::from(wants[by].weight);
                of(*a, *b).cmp(&of(*b, *a))
            }) else {
                break;
            };
            has[next] += 1;
        }
        has
    }

    proptest! {
        #[test]
        fn a_fair_share_agrees_with_unit_by_unit_division(
            capacity in 0..200_u64,
            wants in prop::collection::vec((0..100_u64, 1..5_u32), 1..8),
        ) {
            let wants: Vec<ShareRequest> =
                wants.into_iter().map(|(units, weight)| ShareRequest { units, weight }).collect();
            for (of, poured) in poured(capacity, &wants).into_iter().enumerate() {
                let share = fair(capacity, &wants, of).floor();
                prop_assert!(poured.abs_diff(share) <= 1 + u64::from(wants[of].weight), "{} {}", poured, share);
            }
        }

        #[test]
        fn shares_never_exceed_the_capacity_nor_the_wants(
            capacity in 0..=COUNT_MAX,
            small in any::<bool>(),
            wants in prop::collection::vec((0..=COUNT_MAX, any::<u32>()), 1..20),
        ) {
            let cut = if small { 1000 } else { u64::MAX };
            let wants: Vec<ShareRequest> =
                wants.into_iter().map(|(units, weight)| ShareRequest { units: units % cut, weight }).collect();
            let capacity = capacity % cut;
            let wanted: u64 = wants.iter().map(|want| want.units).sum();
            let shares: Vec<u64> =
                (0..wants.len()).map(|of| fair(capacity, &wants, of).floor()).collect();
            let sum: u64 = shares.iter().sum();
            prop_assert!(sum <= capacity);
            // Rounding down loses less than a unit for each client.
            prop_assert!(sum + wants.len() as u64 > capacity.min(wanted));
            for (share, want) in shares.iter().zip(&wants) {
                prop_assert!(*share <= want.units);
            }
        }
    }
}
