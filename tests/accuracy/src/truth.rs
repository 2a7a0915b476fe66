//! The perfect count: every instant is kept.
//!
//! A span of 60 seconds includes its end but not its beginning, `(t − 60 s, t]`, as in the engine's
//! log: a call expires when it is a window old. The worst of all spans ends with a call, so only
//! those are checked.

use std::collections::VecDeque;

use crate::contender::WINDOW_MS;

/// The calls of the last 60 seconds.
#[derive(Debug, Clone, Default)]
pub struct Trailing {
    /// Instants in milliseconds, oldest first.
    instants: VecDeque<u64>,
}

impl Trailing {
    /// The number of calls in the 60 seconds up to `at_ms`, which never decreases.
    pub fn count(&mut self, at_ms: u64) -> u64 {
        while self.instants.front().is_some_and(|first| first + WINDOW_MS <= at_ms) {
            self.instants.pop_front();
        }
        self.instants.len() as u64
    }

    /// Adds a call and returns the number of calls including it.
    pub fn add(&mut self, at_ms: u64) -> u64 {
        let before = self.count(at_ms);
        self.instants.push_back(at_ms);
        before + 1
    }
}

/// The most calls in any 60 seconds.
#[must_use]
pub fn worst(instants: &[u64]) -> u64 {
    let mut trailing = Trailing::default();
    instants.iter().map(|at_ms| trailing.add(*at_ms)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Trailing, worst};
    use crate::contender::WINDOW_MS;
    use kit::rng::Rng;

    /// Counts every span that begins or ends at a millisecond of interest, by a scan of all calls.
    fn naive(instants: &[u64]) -> u64 {
        let in_span = |end: u64| {
            instants.iter().filter(|at| **at <= end && **at + WINDOW_MS > end).count() as u64
        };
        let ends = instants.iter().flat_map(|at| [*at, at + WINDOW_MS - 1, at + WINDOW_MS]);
        ends.map(in_span).max().unwrap_or(0)
    }

    #[test]
    fn a_call_is_gone_when_it_is_a_window_old() {
        let mut trailing = Trailing::default();
        assert_eq!((trailing.add(5), trailing.add(5)), (1, 2));
        assert_eq!(trailing.count(5 + WINDOW_MS - 1), 2);
        assert_eq!(trailing.count(5 + WINDOW_MS), 0);
        assert_eq!(worst(&[]), 0);
        assert_eq!(worst(&[0, WINDOW_MS]), 1);
        assert_eq!(worst(&[1, WINDOW_MS]), 2);
    }

    #[test]
    fn the_worst_span_is_the_naive_one_s() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let most_gap = [1, 500, 5_000, 30_000, 70_000][seed as usize % 5];
            let mut at_ms = 0;
            let mut instants = Vec::new();
            for _ in 0..120 {
                // Some gaps include a whole window, so that spans end where others begin.
                let whole = u64::from(rng.below(20) == 0) * WINDOW_MS;
                at_ms += whole + u64::from(rng.below(most_gap));
                instants.push(at_ms);
            }
            assert_eq!(worst(&instants), naive(&instants), "seed {seed}");
        }
    }
}
