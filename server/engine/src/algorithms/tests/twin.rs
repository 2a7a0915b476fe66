//! The exact twin of a bucket: a level in big integers, brought up to date before each event.
//!
//! Here: a level and its instant, written from the definition of the algorithms and not from the
//! code, which stores one instant. The units are `1 ÷ period` tokens.

use num_bigint::BigInt;
use protocol::Rate;

use crate::algorithms::{Attempt, Decision, Verdict};

/// The parameters and the state.
#[derive(Debug, Clone)]
pub(in crate::algorithms) struct Twin {
    pub(in crate::algorithms) rate: Rate,
    pub(in crate::algorithms) capacity: u64,
    pub(in crate::algorithms) init: u64,
    pub(in crate::algorithms) debt: u64,
    pub(in crate::algorithms) interval: bool,
    /// Longest wait in nanoseconds, for a leaky bucket with a queue.
    pub(in crate::algorithms) queue: Option<u64>,
    /// The level and its instant; `None` for a new key.
    level: Option<(BigInt, u64)>,
}

impl Twin {
    pub(in crate::algorithms) fn new(rate: Rate, capacity: u64) -> Self {
        let (interval, queue) = (false, None);
        Self { rate, capacity, init: capacity, debt: 0, interval, queue, level: None }
    }

    fn units(&self, units: u64) -> BigInt {
        BigInt::from(units) * self.rate.period
    }

    fn full(&self) -> BigInt {
        self.units(self.capacity)
    }

    /// The level at an instant, and the instant from which it counts.
    fn level_at(&self, now: u64) -> (BigInt, u64) {
        let Some((level, last)) = &self.level else { return (self.units(self.init), now) };
        let elapsed = now - last;
        let (refill, since) = if self.interval {
            let periods = elapsed / self.rate.period;
            (self.units(self.rate.count) * periods, last + periods * self.rate.period)
        } else {
            (BigInt::from(self.rate.count) * elapsed, now)
        };
        let level = level + refill;
        if level >= self.full() { (self.full(), now) } else { (level, since) }
    }

    fn owed_is_nothing(level: &BigInt) -> bool {
        *level >= BigInt::ZERO
    }

    /// The length of the queue in nanoseconds, rounded up.
    fn ahead(&self, level: &BigInt) -> BigInt {
        (self.full() - level + self.rate.count - 1) / self.rate.count
    }

    /// Whether a cost passes at `now` if there is no attempt before.
    pub(in crate::algorithms) fn passes(&self, now: u64, cost: u64) -> bool {
        let (level, _) = self.level_at(now);
        let near = self.queue.is_none_or(|queue| cost == 0 || self.ahead(&level) <= queue.into());
        near && Self::owed_is_nothing(&level) && level + self.units(self.debt) >= self.units(cost)
    }

    /// Nanoseconds from `now` until a cost passes by itself; `None` for never.
    fn needed(&self, now: u64, cost: u64) -> Option<BigInt> {
        if cost > self.capacity + self.debt {
            return None;
        }
        let (level, since) = self.level_at(now);
        let missing = (self.units(cost) - self.units(self.debt)).max(BigInt::ZERO) - level;
        if missing <= BigInt::ZERO {
            return Some(BigInt::ZERO);
        }
        let up = |number: BigInt, by: BigInt| (number + &by - 1) / by;
        Some(if self.interval {
            let periods = up(missing, self.units(self.rate.count));
            periods * self.rate.period + since - now
        } else {
            up(missing, self.rate.count.into())
        })
    }

    /// Whether a cost passes at `now` for a caller that waits: by itself, or within the wait
    /// without owing more than all units that a count can hold.
    fn passes_waiting(&self, now: u64, cost: u64, wait: u64) -> bool {
        let (level, _) = self.level_at(now);
        let waits = wait > 0 && cost > 0 && self.queue.is_none();
        let lowest = self.full() - self.units(protocol::COUNT_MAX);
        self.passes(now, cost)
            || (waits
                && level - self.units(cost) >= lowest
                && self.needed(now, cost).is_some_and(|needed| needed <= wait.into()))
    }

    pub(in crate::algorithms) fn is_full(&self, now: u64) -> bool {
        self.level_at(now).0 == self.full()
    }

    /// Takes, and checks `decision` against the expected one.
    pub(in crate::algorithms) fn check(
        &mut self,
        now: u64,
        attempt: &Attempt,
        decision: &Decision,
    ) {
        let (mut level, since) = self.level_at(now);
        // A caller that peeks and attempts later is treated as if its bucket had begun at the peek.
        let looked = Self { level: Some((level.clone(), since)), ..self.clone() };
        let zero = BigInt::ZERO;
        let queued = self.queue.is_some() && level < self.full();
        let there = u64::try_from(level.clone().max(zero.clone()) / self.rate.period).expect("64");
        let patience = if self.queue.is_some() { 0 } else { attempt.wait.unwrap_or(0) };
        let (verdict, granted) = if self.passes_waiting(now, attempt.cost, patience) {
            let waits = queued && attempt.cost > 0 || !self.passes(now, attempt.cost);
            (if waits { Verdict::Wait } else { Verdict::Allow }, attempt.cost)
        } else if attempt.part && !queued && there > 0 {
            (Verdict::Part, there)
        } else {
            (Verdict::Deny, 0)
        };
        assert_eq!((decision.verdict, decision.granted), (verdict, granted));
        assert_eq!(decision.limit, self.capacity);
        let wait = match self.queue {
            Some(_) => self.ahead(&level),
            None => self.needed(now, attempt.cost).unwrap_or_default(),
        };
        let before = level.clone();
        if !attempt.peek {
            level -= self.units(granted);
            if verdict == Verdict::Deny && attempt.over {
                let lowest = level.clone().min(self.full() - self.units(protocol::COUNT_MAX));
                level = (level - self.units(attempt.cost)).max(lowest);
            }
            self.level = Some((level.clone(), since));
        }
        let counted = verdict == Verdict::Deny && level != before;
        let used = (self.full() - &level + self.rate.period - 1) / self.rate.period;
        assert_eq!(BigInt::from(decision.used), used);
        let too_long = self.queue.is_some_and(|queue| self.ahead(&level) > queue.into());
        let there = BigInt::from(self.capacity) - &used;
        let there = if too_long { there.min(zero) } else { there };
        assert_eq!(BigInt::from(decision.remaining), there);
        assert_eq!(decision.counted, counted);

        let then = if attempt.peek { &looked } else { self };
        match verdict {
            Verdict::Allow => assert_eq!(decision.retry, Some(0)),
            Verdict::Wait => assert_eq!(decision.retry.map(BigInt::from), Some(wait)),
            Verdict::Deny => then.check_retry(now, attempt.cost, decision.retry, patience),
            Verdict::Part if attempt.peek => {}
            Verdict::Part => {
                then.check_retry(now, attempt.cost - granted, decision.retry, patience);
            }
        }
        if let Some(full_at) = now.checked_add(decision.reset)
            && decision.reset < u64::MAX
        {
            assert!(then.is_full(full_at));
            assert!(decision.reset == 0 || !then.is_full(full_at - 1));
        }
    }

    /// Checks that the cost passes after exactly `retry`, and a nanosecond earlier does not;
    /// likewise for milliseconds, rounded up.
    fn check_retry(&self, now: u64, cost: u64, retry: Option<u64>, patience: u64) {
        let Some(retry) = retry else {
            assert!(cost > self.capacity + self.debt);
            return;
        };
        if retry == u64::MAX {
            // Longer than `u64` can represent.
            return;
        }
        let retry_ms = retry.div_ceil(MILLI);
        for (unit, wait) in [(1, retry), (MILLI, retry_ms)] {
            let Some(then) = wait.checked_mul(unit).and_then(|wait| now.checked_add(wait)) else {
                continue;
            };
            assert!(self.passes_waiting(then, cost, patience), "waiting suffices");
            let early = wait > 0 && self.passes_waiting(then - unit, cost, patience);
            assert!(!early, "waiting less does not");
        }
    }

    pub(in crate::algorithms) fn refund(&mut self, now: u64, units: u64) {
        if self.level.is_some() {
            let (level, since) = self.level_at(now);
            self.level = Some(((level + self.units(units)).min(self.full()), since));
        }
    }

    pub(in crate::algorithms) fn set_used(&mut self, now: u64, used: u64) {
        let (_, since) = self.level_at(now);
        self.level = Some((self.full() - self.units(used.min(self.capacity)), since));
    }
}

const MILLI: u64 = 1_000_000;
