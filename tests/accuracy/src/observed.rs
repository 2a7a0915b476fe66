//! The error of a count: a meter without a limit sees every call, and its estimate is compared with
//! the perfect count.
//!
//! Here: the open loop, in which no decision changes later calls. Not here: the calls that a limit
//! admits (`enforced`), many keys (`sources`).

use crate::contender::{Contender, LIMIT};
use crate::subject::{ONLY_KEY, Subject};
use crate::truth::Trailing;

/// The distance of some estimates from the truth.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Observed {
    /// Estimates, one per call.
    pub calls: u64,
    /// The sum of |estimate − truth| / truth.
    pub error_sum: f64,
    /// Estimates up to the limit where the truth is above it.
    pub wrong_allow: u64,
    /// Estimates above the limit where the truth is not.
    pub wrong_deny: u64,
}

impl Observed {
    /// Feeds all arrivals to the contender's meter; `None` if it has none.
    #[must_use]
    pub fn run(contender: &Contender, arrivals: &[u64]) -> Option<Self> {
        let mut meter = Subject::new(contender.meter()?);
        let mut truth = Trailing::default();
        let mut observed = Self::default();
        for &at_ms in arrivals {
            observed.note(meter.take(at_ms, ONLY_KEY).used, truth.add(at_ms));
        }
        Some(observed)
    }

    /// Records an estimate. Both numbers include the call at hand, so neither is 0.
    pub fn note(&mut self, estimate: u64, truth: u64) {
        self.calls += 1;
        self.error_sum += estimate.abs_diff(truth) as f64 / truth as f64;
        self.wrong_allow += u64::from(estimate <= LIMIT && truth > LIMIT);
        self.wrong_deny += u64::from(estimate > LIMIT && truth <= LIMIT);
    }

    /// The mean of |estimate − truth| / truth.
    #[must_use]
    pub fn mean_error(&self) -> f64 {
        self.error_sum / self.calls as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Observed;
    use crate::contender::{CONTENDERS, named};
    use crate::traffic::Traffic;

    #[test]
    fn a_log_sees_the_truth() {
        let observed = Observed::run(named("log"), &Traffic::Bursts.arrivals(5)[..5_000]);
        let truth = Observed { calls: 5_000, ..Observed::default() };
        assert_eq!(observed, Some(truth));
    }

    #[test]
    fn strict_never_underestimates() {
        for contender in CONTENDERS.iter().filter(|contender| contender.token.contains("strict")) {
            let observed = Observed::run(contender, &Traffic::Poisson.arrivals(5)[..5_000]);
            let observed = observed.expect("a sliding count has a meter");
            assert_eq!(observed.wrong_allow, 0, "{}", contender.name);
            assert!(observed.wrong_deny > 0, "{}", contender.name);
        }
    }

    #[test]
    fn two_windows_estimate_the_golden_number() {
        // 88 calls in the window before, 12 in this one, 15 s of it elapsed: 88 · 45/60 + 12 = 78.
        let mut meter = named("two-window").meter().map(super::Subject::new).expect("a meter");
        for n in 0..88 {
            meter.take(n * 100, b"key");
        }
        let estimates: Vec<u64> = (0..12).map(|_| meter.take(75_000, b"key").used).collect();
        assert_eq!(estimates, (67..=78).collect::<Vec<_>>());
    }
}
