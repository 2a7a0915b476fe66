//! The period of a policy, for callers that tell a client how long a window is.
//!
//! Not here: the arithmetic of windows (`engine`).

use super::{Algorithm, CalendarUnit, Policy, Window};

/// Nanoseconds of a day.
const DAY: u64 = 24 * 3600 * 1_000_000_000;
/// Days of a month and of a year that are not measured: those that HTTP headers and other programs
/// expect.
const MONTH_DAYS: u64 = 30;
const YEAR_DAYS: u64 = 365;

impl Policy {
    /// The nanoseconds of the period in which the policy gives its units: of the policy at position
    /// `at` of a list, and of the first one without a position. A calendar month counts as 30 days,
    /// a year as 365. 0 for holders, `unlimited` and `block`, which have no period.
    #[must_use]
    pub fn period_nanos(&self, at: Option<usize>) -> u64 {
        match &self.algorithm {
            Algorithm::Bucket { rate, .. }
            | Algorithm::Gcra { rate, .. }
            | Algorithm::Leaky { rate, .. }
            | Algorithm::Sliding { rate, .. }
            | Algorithm::Log { rate, .. } => rate.period,
            Algorithm::Fixed { window, .. } => match window {
                Window::First(nanos) => *nanos,
                Window::Calendar { unit, .. } => unit.nanos(),
            },
            Algorithm::Concurrency { .. } | Algorithm::Unlimited | Algorithm::Block => 0,
            Algorithm::Several(list) => {
                let policies = list.policies();
                let decider = at.and_then(|at| policies.get(at)).or(policies.first());
                decider.map_or(0, |policy| policy.period_nanos(None))
            }
        }
    }
}

impl CalendarUnit {
    fn nanos(self) -> u64 {
        match self {
            Self::Nanos(nanos) => nanos,
            Self::Months(months) => u64::from(months) * MONTH_DAYS * DAY,
            Self::Years(years) => u64::from(years) * YEAR_DAYS * DAY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_has_its_period() {
        for (text, seconds) in [
            ("bucket:5/60s,capacity=9", 60),
            ("gcra:5/2s", 2),
            ("leaky:5/s,wait=3s", 1),
            ("sliding:5/h", 3600),
            ("log:5/m", 60),
            ("fixed:5/10s", 10),
            ("fixed:5/d,align=calendar,tz=Europe/Berlin", 86_400),
            ("fixed:5/2mo,align=calendar", 60 * 86_400),
            ("fixed:5/y,align=calendar", 365 * 86_400),
            ("concurrency:5", 0),
            ("unlimited", 0),
            ("block", 0),
        ] {
            let policy = Policy::parse(text.as_bytes()).expect(text);
            assert_eq!(policy.period_nanos(Some(3)), seconds * 1_000_000_000, "{text}");
        }
        let longest = Policy::parse(b"fixed:5/100y,align=calendar").expect("it is the longest");
        assert_eq!(longest.period_nanos(None), 36_500 * DAY);
    }

    #[test]
    fn a_list_has_that_of_the_policy_that_decided() {
        let all = ["fixed:1/m", "fixed:9/h"];
        let all = all.map(|text| Policy::parse(text.as_bytes()).expect(text));
        let list = Policy::several(&all).expect("they go together");
        for (at, seconds) in [(None, 60), (Some(0), 60), (Some(1), 3600), (Some(2), 60)] {
            assert_eq!(list.period_nanos(at), seconds * 1_000_000_000, "{at:?}");
        }
    }
}
