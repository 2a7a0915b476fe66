//! The policies under comparison, and the bound that each promises for any 60 seconds.
//!
//! Here: names, policy tokens, bounds. Not here: how they are driven (`subject`).

use protocol::{Algorithm, COUNT_MAX, Policy, Rate};

/// Units a window that every contender grants.
pub const LIMIT: u64 = 100;
/// The window, in milliseconds.
pub const WINDOW_MS: u64 = 60_000;

/// An algorithm with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// The name in tables and plots.
    pub name: &'static str,
    /// The policy token.
    pub token: &'static str,
    /// The most calls of one unit that may ever pass in any 60 seconds.
    pub bound: u64,
    /// The reason for `bound`.
    pub because: &'static str,
}

/// The span may hold all P calls of the oldest slice where the policy counts P·(1 − e/S) of them:
/// that is P·e/S too many, with e less than S and P at most the limit.
const GUESS: &str = "the limit, and less than all of the oldest slice";
const TOKENS: &str = "C + R·t, t below 60 s";

/// All contenders, in the order of the tables.
pub const CONTENDERS: [Contender; 11] = [
    Contender {
        name: "fixed, calendar",
        token: "fixed:100/60s,align=calendar",
        bound: 2 * LIMIT,
        because: "two whole windows around a minute's end",
    },
    Contender {
        name: "fixed, first call",
        token: "fixed:100/60s",
        bound: 2 * LIMIT - 1,
        because: "two windows, less the call that opened the first",
    },
    Contender {
        name: "two-window",
        token: "sliding:100/60s",
        bound: 2 * LIMIT - 1,
        because: GUESS,
    },
    Contender {
        name: "4+1 slices",
        token: "sliding:100/60s,slices=4",
        bound: 2 * LIMIT - 1,
        because: GUESS,
    },
    Contender {
        name: "6+1 slices",
        token: "sliding:100/60s,slices=6",
        bound: 2 * LIMIT - 1,
        because: GUESS,
    },
    Contender {
        name: "60+1 slices",
        token: "sliding:100/60s,slices=60",
        bound: 2 * LIMIT - 1,
        because: GUESS,
    },
    Contender {
        name: "6+1 strict",
        token: "sliding:100/60s,slices=6,strict",
        bound: LIMIT,
        because: "the oldest slice counts whole",
    },
    Contender {
        name: "60+1 strict",
        token: "sliding:100/60s,slices=60,strict",
        bound: LIMIT,
        because: "the oldest slice counts whole",
    },
    Contender { name: "bucket", token: "bucket:100/60s", bound: 2 * LIMIT - 1, because: TOKENS },
    Contender { name: "gcra", token: "gcra:100/60s", bound: 2 * LIMIT - 1, because: TOKENS },
    Contender { name: "log", token: "log:100/60s", bound: LIMIT, because: "it is exact" },
];

impl Contender {
    /// The policy that `token` names.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy::parse(self.token.as_bytes()).expect("the tokens above are policies")
    }

    /// The same way of counting without a limit, as `slide` does it. `None` for buckets: they count
    /// nothing that a window's count could be compared with.
    #[must_use]
    pub fn meter(&self) -> Option<Policy> {
        let policy = self.policy();
        let algorithm = match policy.algorithm {
            Algorithm::Fixed { window, .. } => Algorithm::Fixed { count: COUNT_MAX, window },
            Algorithm::Sliding { rate, slices, oldest } => {
                let rate = Rate { count: COUNT_MAX, ..rate };
                Algorithm::Sliding { rate, slices, oldest }
            }
            Algorithm::Log { rate, .. } => {
                Algorithm::Log { rate: Rate { count: COUNT_MAX, ..rate }, entries: COUNT_MAX }
            }
            _ => return None,
        };
        Some(Policy { algorithm, ..policy })
    }
}

/// The contender with this name.
#[must_use]
pub fn named(name: &str) -> &'static Contender {
    CONTENDERS.iter().find(|contender| contender.name == name).expect("a name of the list above")
}
