//! Enforcement: arrivals go through a policy, and the admitted calls are compared with the truth.
//!
//! Here: the closed loop, in which a refused call leaves no trace. Not here: the accuracy of the
//! count itself (`observed`).

use crate::contender::{Contender, LIMIT};
use crate::subject::Subject;
use crate::truth::Trailing;

/// The decisions of a policy on some arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enforced {
    /// Calls that came.
    pub offered: u64,
    /// Calls that passed.
    pub admitted: u64,
    /// The most calls that passed in any 60 seconds.
    pub worst: u64,
    /// Calls that passed although the limit had passed in the 60 seconds up to them.
    pub wrong_allow: u64,
    /// Calls that were refused although less than the limit had passed.
    pub wrong_deny: u64,
}

impl Enforced {
    /// Sends the arrivals through the policy; calls `admit` with each that passes.
    pub fn run(contender: &Contender, arrivals: &[u64], mut admit: impl FnMut(u64)) -> Self {
        let mut subject = Subject::new(contender.policy());
        let mut passed = Trailing::default();
        let mut enforced = Self { offered: arrivals.len() as u64, ..Self::default() };
        for &at_ms in arrivals {
            let has_room = passed.count(at_ms) < LIMIT;
            if subject.admits(at_ms) {
                enforced.admitted += 1;
                enforced.worst = enforced.worst.max(passed.add(at_ms));
                enforced.wrong_allow += u64::from(!has_room);
                admit(at_ms);
            } else {
                enforced.wrong_deny += u64::from(has_room);
            }
        }
        enforced
    }
}

#[cfg(test)]
mod tests {
    use super::Enforced;
    use crate::contender::{CONTENDERS, named};
    use crate::traffic::TRAFFICS;
    use crate::truth::worst;

    /// Enough arrivals for some hundred minutes of each traffic.
    const ARRIVALS: usize = 10_000;

    #[test]
    fn no_traffic_passes_more_than_a_policy_promises() {
        for traffic in TRAFFICS {
            let mut arrivals = traffic.arrivals(3);
            arrivals.truncate(ARRIVALS);
            for contender in &CONTENDERS {
                let mut passed = Vec::new();
                let enforced = Enforced::run(contender, &arrivals, |at_ms| passed.push(at_ms));
                assert!(enforced.worst <= contender.bound, "{}: {enforced:?}", contender.name);
                assert_eq!(enforced.worst, worst(&passed));
                assert_eq!(enforced.admitted, passed.len() as u64);
            }
        }
    }

    #[test]
    fn a_log_is_never_wrong() {
        for traffic in TRAFFICS {
            let enforced = Enforced::run(named("log"), &traffic.arrivals(4)[..ARRIVALS], |_| ());
            assert_eq!((enforced.wrong_allow, enforced.wrong_deny), (0, 0));
        }
    }
}
