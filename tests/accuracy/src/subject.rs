//! One policy in the real engine, under a simulated clock.
//!
//! Here: the engine, its time, its keys. Not here: when calls come (`traffic`) and how their
//! results are judged (`enforced`, `observed`).

use std::sync::Arc;

use engine::algorithms::{Decision, Verdict};
use engine::{Engine, EngineOptions, KeyHasher, MemoryCap, Nanos, Now, TakeParams, TakeResult};
use protocol::Policy;

/// Where the simulated day begins on the wall clock: a whole minute of November 2023.
const UNIX_ORIGIN_MS: u64 = 1_699_999_980_000;
/// Far more than all states of a run take.
const MEMORY_BYTES: usize = 256 << 20;
/// The key of runs that need only one.
pub const ONLY_KEY: &[u8] = b"key";

/// An engine in which all keys have one policy.
pub struct Subject {
    engine: Engine,
    hasher: KeyHasher,
    policy: Policy,
}

/// The simulated instant `at_ms` milliseconds after the origin. At the origin, slices of all
/// lengths and calendar minutes begin together.
#[must_use]
pub fn instant(at_ms: u64) -> Now {
    Now { mono: Nanos(at_ms * 1_000_000), unix_ms: UNIX_ORIGIN_MS + at_ms }
}

impl Subject {
    /// An engine without states.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        let hasher = KeyHasher::new([1, 2, 3, 4]);
        let budget = Arc::new(MemoryCap::new(MEMORY_BYTES));
        let engine = Engine::new(hasher.clone(), budget, EngineOptions::default());
        Self { engine, hasher, policy }
    }

    /// Takes one unit of `key`.
    pub fn take(&mut self, at_ms: u64, key: &[u8]) -> Decision {
        self.ask(at_ms, key, &TakeParams { cost: 1, ..TakeParams::default() })
    }

    /// The current usage of the only key.
    pub fn used(&mut self, at_ms: u64) -> u64 {
        self.ask(at_ms, ONLY_KEY, &TakeParams { peek: true, ..TakeParams::default() }).used
    }

    /// Takes one unit of the only key; returns whether it passed.
    pub fn admits(&mut self, at_ms: u64) -> bool {
        self.take(at_ms, ONLY_KEY).verdict == Verdict::Allow
    }

    fn ask(&mut self, at_ms: u64, key: &[u8], take: &TakeParams) -> Decision {
        let hash = self.hasher.hash(key);
        match self.engine.take(instant(at_ms), hash, key, Some((&self.policy).into()), take) {
            TakeResult::Decided(facts) => facts.decision,
            refused => unreachable!("a plain take is decided, not {refused:?}"),
        }
    }
}
