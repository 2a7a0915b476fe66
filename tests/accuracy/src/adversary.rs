//! A caller that knows the algorithm and takes as much as it can get.
//!
//! An attack may open with one call, waits for the phase that suits it, and from then on tries at
//! each millisecond until it is refused. The worst phase depends on the policy, so all are tried.

use crate::contender::{Contender, WINDOW_MS};
use crate::subject::Subject;
use crate::truth::worst;

/// One strategy of the adversary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attack {
    /// The name in the table.
    pub name: &'static str,
    /// Sends one call at the origin.
    pub opens: bool,
    /// Tries at each millisecond from here on.
    pub from_ms: u64,
}

/// The attacks tried on every contender. Slices and calendar minutes begin at the origin.
pub const ATTACKS: [Attack; 5] = [
    Attack { name: "from a window's first millisecond", opens: false, from_ms: 0 },
    Attack { name: "from its middle", opens: false, from_ms: WINDOW_MS / 2 },
    Attack {
        name: "one call at its first, the rest from its middle",
        opens: true,
        from_ms: WINDOW_MS / 2,
    },
    Attack { name: "from its last millisecond", opens: false, from_ms: WINDOW_MS - 1 },
    Attack {
        name: "one call at its first millisecond, the rest from its last",
        opens: true,
        from_ms: WINDOW_MS - 1,
    },
];

/// The result of an attack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Haul {
    /// The attack that was run.
    pub attack: Attack,
    /// The calls that passed, in milliseconds from the origin.
    pub admitted: Vec<u64>,
    /// The most calls that passed in any 60 seconds.
    pub worst: u64,
}

impl Attack {
    /// Runs the attack up to `until_ms`.
    #[must_use]
    pub fn run(self, contender: &Contender, until_ms: u64) -> Haul {
        let mut subject = Subject::new(contender.policy());
        let mut admitted = Vec::new();
        if self.opens && subject.admits(0) {
            admitted.push(0);
        }
        for at_ms in self.from_ms..=until_ms {
            while subject.admits(at_ms) {
                admitted.push(at_ms);
            }
        }
        let worst = worst(&admitted);
        Haul { attack: self, admitted, worst }
    }
}

/// The attack that got most in any 60 seconds; the first of equals.
#[must_use]
pub fn best(hauls: Vec<Haul>) -> Option<Haul> {
    hauls.into_iter().reduce(|best, haul| if haul.worst > best.worst { haul } else { best })
}

#[cfg(test)]
mod tests {
    use super::{ATTACKS, best};
    use crate::contender::{CONTENDERS, LIMIT, WINDOW_MS};

    /// The worst comes within two windows of the first call.
    const UNTIL_MS: u64 = 2 * WINDOW_MS + 1_000;

    #[test]
    fn every_bound_holds_and_is_reached() {
        for contender in &CONTENDERS {
            // An attack from the middle gets nothing that the other attacks do not get.
            let attacks = [ATTACKS[0], ATTACKS[3], ATTACKS[4]];
            let hauls = attacks.iter().map(|attack| attack.run(contender, UNTIL_MS)).collect();
            let haul = best(hauls).expect("there are attacks");
            assert_eq!(haul.worst, contender.bound, "{}: {:?}", contender.name, haul.attack);
        }
    }

    #[test]
    fn a_strict_policy_and_a_log_never_exceed_the_limit() {
        let exact = ["6+1 strict", "60+1 strict", "log"];
        for contender in &CONTENDERS {
            assert_eq!(contender.bound == LIMIT, exact.contains(&contender.name));
        }
    }
}
