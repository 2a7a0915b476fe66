//! Leaky bucket: taken units fill it, and it leaks at the rate.
//!
//! Here: the meter and the queue. Not here: ticks and the encoding of a TAT (`tat`).
//!
//! A meter polices: an attempt that would overflow it is refused. A queue (`wait`) shapes: each
//! take gets a place in a first-in, first-out line and the time to wait for it, until all units
//! before it have leaked; its own units delay only later takes. A place that would come later than
//! the wait allows, or overflow, is refused and not taken. nginx's `limit_req` with `rate` and
//! `burst` is a capacity of `burst + 1`: with `nodelay` the meter, otherwise the queue.
//!
//! A queue grants a part only if it is empty: one reply cannot contain both a part and a wait.
//!
//! With `over` a refused attempt fills the bucket too, up to 2^53 − 1 units.
//!
//! State: the instant at which the bucket is empty, as a TAT (`tat`), 8 or 16 bytes. Idle, and
//! empty, once that instant has passed.

use protocol::Rate;

use super::{Attempt, Decision, Verdict, left, tat};
use crate::time::Now;

/// The parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaky {
    /// The leak.
    pub(crate) rate: Rate,
    /// Most units in the bucket.
    pub(crate) capacity: u64,
    /// Longest wait for a place in nanoseconds; `None` for a meter.
    pub(crate) wait: Option<u64>,
}

/// The level of a bucket at an instant, in ticks.
#[derive(Debug, Clone, Copy)]
struct LeakyLevel {
    /// The current tick of this key.
    clock: u128,
    /// The tick at which the bucket is empty; never before `clock`.
    empty: u128,
}

impl Leaky {
    /// The capacity in ticks.
    fn full(&self) -> u128 {
        tat::cost(self.rate, self.capacity)
    }

    /// Longest wait of a queue in ticks: the shorter of the policy's and the caller's.
    fn patience(&self, attempt: &Attempt) -> Option<u128> {
        let wait = self.wait?.min(attempt.wait.unwrap_or(u64::MAX));
        Some(u128::from(self.rate.count) * u128::from(wait))
    }

    pub(crate) fn take(&self, state: &mut Vec<u8>, now: Now, attempt: &Attempt) -> Decision {
        let patience = self.patience(attempt);
        let before = self.see(state, now);
        let ahead = before.empty.saturating_sub(tat::ticks(self.rate, now));
        let may_wait = patience.is_none_or(|patience| attempt.cost == 0 || ahead <= patience);
        let passes = may_wait && self.fits(before, attempt.cost);
        let queued = patience.is_some() && ahead > 0;
        let granted = match (passes, attempt.part && !queued) {
            (true, _) => attempt.cost,
            (false, true) => self.room(before),
            (false, false) => 0,
        };
        let verdict = match (passes, granted) {
            (true, 1..) if queued => Verdict::Wait,
            (true, _) => Verdict::Allow,
            (false, 0) => Verdict::Deny,
            (false, _) => Verdict::Part,
        };
        let after = match verdict {
            Verdict::Deny if attempt.over => self.overfilled(before, attempt.cost),
            _ => LeakyLevel { empty: before.empty.saturating_add(self.cost(granted)), ..before },
        };

        let changed = !attempt.peek && after.empty != before.empty;
        if changed {
            tat::encode(after.empty, state);
        }
        let level = if attempt.peek { before } else { after };
        let retry = match verdict {
            Verdict::Allow => Some(0),
            Verdict::Wait => Some(tat::nanos(self.rate, ahead)),
            Verdict::Deny => self.retry(now, level, attempt.cost, patience),
            Verdict::Part => self.retry(now, after, attempt.cost - granted, patience),
        };
        let too_long = patience.is_some_and(|patience| {
            level.empty.saturating_sub(tat::ticks(self.rate, now)) > patience
        });
        let used = tat::units_of(self.rate, level.empty - level.clock);
        let remaining = left(self.capacity, used);
        Decision {
            verdict,
            limit: self.capacity,
            remaining: if too_long { remaining.min(0) } else { remaining },
            used,
            granted,
            retry,
            reset: self.nanos_until(now, level.empty),
            changed,
            counted: changed && verdict == Verdict::Deny,
            lease: None,
        }
    }

    fn cost(&self, units: u64) -> u128 {
        tat::cost(self.rate, units)
    }

    fn see(&self, state: &[u8], now: Now) -> LeakyLevel {
        let stored = tat::decode(state).unwrap_or(0);
        let max = tat::owed_max(self.rate);
        let clock = tat::standing(stored, tat::ticks(self.rate, now), max);
        LeakyLevel { clock, empty: stored.max(clock) }
    }

    fn fits(&self, seen: LeakyLevel, units: u64) -> bool {
        units <= self.capacity
            && (seen.empty - seen.clock).saturating_add(self.cost(units)) <= self.full()
    }

    /// Whole units that fit.
    fn room(&self, seen: LeakyLevel) -> u64 {
        tat::units_within(self.rate, self.full().saturating_sub(seen.empty - seen.clock))
    }

    /// The level after a refused attempt that counts.
    fn overfilled(&self, seen: LeakyLevel, units: u64) -> LeakyLevel {
        let empty = seen.empty.saturating_add(self.cost(units));
        LeakyLevel { empty: empty.min(seen.clock.saturating_add(tat::owed_max(self.rate))), ..seen }
    }

    /// Nanoseconds until `units` pass, at once or with a wait; `None` for never.
    fn retry(&self, now: Now, seen: LeakyLevel, units: u64, patience: Option<u128>) -> Option<u64> {
        if units > self.capacity {
            return None;
        }
        let fits_at = seen.empty.saturating_add(self.cost(units)).saturating_sub(self.full());
        let near_at = match patience {
            Some(patience) if units > 0 => seen.empty.saturating_sub(patience),
            _ => 0,
        };
        Some(self.nanos_until(now, fits_at.max(near_at)))
    }

    fn nanos_until(&self, now: Now, tick: u128) -> u64 {
        tat::nanos(self.rate, tick.saturating_sub(tat::ticks(self.rate, now)))
    }

    pub(crate) fn refund(&self, state: &mut Vec<u8>, now: Now, units: u64) -> u64 {
        let used = tat::units_of(self.rate, self.amount_used(state, now));
        self.give_back(state, now, self.cost(units));
        units.min(used)
    }

    /// Gives ticks back.
    pub(crate) fn give_back(&self, state: &mut Vec<u8>, now: Now, ticks: u128) {
        if let Some(stored) = tat::decode(state) {
            self.keep(stored.saturating_sub(ticks), state, now);
        }
    }

    /// The level in ticks.
    pub(crate) fn amount_used(&self, state: &[u8], now: Now) -> u128 {
        let seen = self.see(state, now);
        seen.empty - seen.clock
    }

    /// Raises the level to at least `units`.
    pub(crate) fn cover(&self, state: &mut Vec<u8>, now: Now, units: u64) {
        let seen = self.see(state, now);
        let covered = seen.clock.saturating_add(self.cost(units.min(self.capacity)));
        if seen.empty < covered {
            tat::encode(covered, state);
        }
    }

    pub(crate) fn set_used(&self, state: &mut Vec<u8>, now: Now, used: u64) {
        let clock = self.see(state, now).clock;
        self.keep(clock.saturating_add(self.cost(used.min(self.capacity))), state, now);
    }

    /// Keeps the level, up to the new capacity, and the units beyond the old capacity.
    pub(crate) fn adopt(&self, old: &Self, state: &mut Vec<u8>, now: Now) {
        let seen = old.see(state, now);
        let held = seen.empty - seen.clock;
        let beyond = held.saturating_sub(old.full());
        let (_, within) = tat::reprice(held - beyond, old.rate, self.rate);
        let (_, beyond) = tat::reprice(beyond, old.rate, self.rate);
        let held = within.min(self.full()).saturating_add(beyond);
        self.keep(tat::ticks(self.rate, now).saturating_add(held), state, now);
    }

    pub(crate) fn shift(&self, state: &mut Vec<u8>, by: i128) {
        if let Some(stored) = tat::decode(state) {
            tat::encode(tat::shift(self.rate, stored, by).0, state);
        }
    }

    fn keep(&self, empty: u128, state: &mut Vec<u8>, now: Now) {
        if empty > tat::ticks(self.rate, now) {
            tat::encode(empty, state);
        } else {
            state.clear();
        }
    }
}

#[cfg(test)]
mod tests;
