//! Shared code of the limiters that count: the verdict over a count, and the bytes of their states.
//!
//! Here: windows, logs and holds all compare a count with a limit, and all store instants and
//! counts. Not here: how each of them counts (`fixed`, `sliding`, `log`, `concurrency`).

use super::{Attempt, Decision, Verdict, left};
use crate::time::Now;
use protocol::COUNT_MAX;

/// The verdict on an [`Attempt`], given the usage before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct CountDecision {
    pub(super) verdict: Verdict,
    /// Units granted; for a peek, the units that a take would be granted.
    pub(super) granted: u64,
    /// Units to add to the count.
    pub(super) charge: u64,
}

impl CountDecision {
    pub(super) fn new(limit: u64, used: u64, attempt: &Attempt) -> Self {
        let room = limit.saturating_sub(used);
        if used.saturating_add(attempt.cost) <= limit {
            return Self { verdict: Verdict::Allow, granted: attempt.cost, charge: attempt.cost };
        }
        if attempt.part && room > 0 {
            return Self { verdict: Verdict::Part, granted: room, charge: room };
        }
        let charge = if attempt.over && !attempt.peek { attempt.cost } else { 0 };
        Self { verdict: Verdict::Deny, granted: 0, charge }
    }

    /// The time until the units that were not granted pass; `wait` returns it for a cost.
    pub(super) fn retry(
        &self,
        attempt: &Attempt,
        wait: impl FnOnce(u64) -> Option<u64>,
    ) -> Option<u64> {
        match self.verdict {
            Verdict::Allow | Verdict::Wait => Some(0),
            Verdict::Part | Verdict::Deny => wait(attempt.cost - self.granted),
        }
    }

    pub(super) fn decision(
        &self,
        limit: u64,
        used: u64,
        retry: Option<u64>,
        reset: u64,
        attempt: &Attempt,
    ) -> Decision {
        Decision {
            verdict: self.verdict,
            limit,
            remaining: left(limit, used.min(COUNT_MAX)),
            used: used.min(COUNT_MAX),
            granted: self.granted,
            retry,
            reset,
            changed: self.charge > 0 && !attempt.peek,
            counted: self.verdict == Verdict::Deny && self.charge > 0,
            lease: None,
        }
    }
}

/// The instant of `now` in a state: nanoseconds on the monotonic clock, cut at 292 years. Signed,
/// because a restored state may have begun before this process did.
pub(crate) fn instant(now: Now) -> i64 {
    i64::try_from(now.mono.0).unwrap_or(i64::MAX)
}

/// Nanoseconds from `from` to `to`, 0 if `to` is not later.
pub(super) fn between(from: i64, to: i64) -> u64 {
    if to > from { to.abs_diff(from) } else { 0 }
}

/// Moves `instant` by `by` nanoseconds, saturating.
pub(crate) fn shifted(instant: i64, by: i128) -> i64 {
    let moved = i128::from(instant).saturating_add(by);
    i64::try_from(moved).unwrap_or(if by < 0 { i64::MIN } else { i64::MAX })
}

/// Appends a count in seven bits a byte, low ones first; at most eight bytes up to [`COUNT_MAX`].
pub(super) fn put_count(state: &mut Vec<u8>, mut count: u64) {
    while count >= 0x80 {
        state.push(count as u8 | 0x80);
        count >>= 7;
    }
    state.push(count as u8);
}

pub(super) fn put_instant(state: &mut Vec<u8>, instant: i64) {
    state.extend_from_slice(&instant.to_le_bytes());
}

/// Reads a state from its front; `None` past its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateReader<'a>(pub(super) &'a [u8]);

impl StateReader<'_> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    #[inline]
    pub(super) fn count(&mut self) -> Option<u64> {
        // Most counts are small.
        if let [count @ ..0x80, rest @ ..] = self.0 {
            self.0 = rest;
            return Some(u64::from(*count));
        }
        self.long_count()
    }

    fn long_count(&mut self) -> Option<u64> {
        let mut count = 0;
        for place in 0..10 {
            let byte = self.byte()?;
            count |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Some(count);
            }
        }
        None
    }

    pub(super) fn instant(&mut self) -> Option<i64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i64::from_le_bytes(*first))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A plain take, for tests to vary.
    pub(in crate::algorithms) const TAKE: Attempt = Attempt {
        cost: 1,
        part: false,
        peek: false,
        over: false,
        wait: None,
        hold: None,
        lease: None,
        hash: 0,
    };

    pub(in crate::algorithms) const SECOND: u64 = 1_000_000_000;

    pub(in crate::algorithms) fn take(cost: u64) -> Attempt {
        Attempt { cost, ..TAKE }
    }

    pub(in crate::algorithms) fn peek(cost: u64) -> Attempt {
        Attempt { cost, peek: true, ..TAKE }
    }

    /// The time `nanos` nanoseconds after the origin.
    pub(in crate::algorithms) fn at(nanos: u64) -> Now {
        Now { mono: crate::Nanos(nanos), unix_ms: 1_700_000_000_000 + nanos / 1_000_000 }
    }

    #[test]
    fn counts_and_instants_survive_encoding() {
        let counts = [0, 1, 127, 128, 16_383, 16_384, COUNT_MAX, u64::MAX];
        let mut state = Vec::new();
        for count in counts {
            put_count(&mut state, count);
            put_instant(&mut state, -5);
        }
        let mut reader = StateReader(&state);
        for count in counts {
            assert_eq!(reader.count(), Some(count));
            assert_eq!(reader.instant(), Some(-5));
        }
        assert_eq!((reader.byte(), reader.count(), reader.instant()), (None, None, None));
    }

    #[test]
    fn a_count_takes_at_most_eight_bytes() {
        let mut state = Vec::new();
        put_count(&mut state, COUNT_MAX);
        assert_eq!(state.len(), 8);
    }

    #[test]
    fn shifting_saturates() {
        assert_eq!(shifted(5, -7), -2);
        assert_eq!(shifted(5, i128::MAX), i64::MAX);
        assert_eq!(shifted(-5, i128::MIN), i64::MIN);
        assert_eq!(between(i64::MIN, i64::MAX), u64::MAX);
        assert_eq!(between(7, 5), 0);
    }
}
