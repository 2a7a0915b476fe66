//! Token bucket: starts with `init` tokens, refills at its rate up to its capacity.
//!
//! Here: the general path, with four options. Not here: the fast path without options (`plain`).
//!
//! - `init`: the tokens of a new key. If it is below the capacity, a full bucket differs from a new
//!   one: its state is then kept, and forgetting it costs tokens.
//! - `debt`: one take may overdraw the bucket if there is no debt yet. `part` never overdraws: it
//!   takes the available tokens.
//! - `interval`: refills in whole periods, counted from the take that found the bucket full.
//! - `warm`: the tokens of a cold bucket cost more (`warmup`, with the rounding). A cost whose
//!   whole price does not fit is refused, but a bucket without debt grants any cost up to its
//!   capacity and then refuses until the price is paid, as Guava's does: otherwise a cold bucket
//!   could hold less than one unit. `interval` has no effect beside `warm`.
//!
//! With `over` a refused attempt costs its units at the usual price. Debt counts up to 2^53 − 1
//! missing tokens.
//!
//! State, by option: the TAT, here the instant at which the bucket is full (`tat`), in 8 or 16
//! bytes; with `interval` the missing tokens and the instant of the next refill, in 8 or 16 bytes
//! together; with `warm` the TAT and the permits stored while idle, 16 bytes each. A full (and
//! cold) bucket is idle and its state empty.

mod plain;
mod steps;
mod waiting;

use protocol::{Rate, Warm};

pub(crate) use self::plain::PlainBucket;

use self::steps::{decode_steps, encode_steps};
use super::warmup::WarmupLine;
use super::{Attempt, Decision, Verdict, left, tat};
use crate::time::Now;

/// The parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    /// The refill.
    pub(crate) rate: Rate,
    /// Most tokens in the bucket.
    pub(crate) capacity: u64,
    /// Tokens of a new key.
    pub(crate) init: u64,
    /// The debt in tokens that one take may leave.
    pub(crate) debt: u64,
    /// Warm-up, if any.
    pub(crate) warm: Option<Warm>,
    /// Whether tokens are refilled in whole periods only.
    pub(crate) interval: bool,
}

/// The level of a bucket at an instant, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BucketLevel {
    /// The current tick of this key. With `interval` it is the tick of the next refill, until which
    /// the level of the last one holds.
    clock: u128,
    /// The tick at which the bucket is full; never before `clock`.
    full_at: u128,
    /// The permits stored by a warm-up; 0 without one.
    stored: u128,
}

impl BucketLevel {
    /// Ticks missing to a full bucket.
    fn missing(self) -> u128 {
        self.full_at - self.clock
    }

    fn give_back(&mut self, ticks: u128) {
        self.full_at = self.full_at.saturating_sub(ticks).max(self.clock);
    }
}

impl Bucket {
    /// The capacity in ticks.
    fn full(&self) -> u128 {
        self.cost(self.capacity)
    }

    fn cost(&self, units: u64) -> u128 {
        tat::cost(self.rate, units)
    }

    fn line(&self) -> Option<WarmupLine> {
        self.warm.and_then(|warm| WarmupLine::new(self.rate, warm))
    }

    /// The permits stored in a cold bucket.
    fn cold(&self) -> u128 {
        self.line().map_or(0, |line| line.max)
    }

    /// Whether the bucket refills in whole periods.
    fn steps(&self) -> bool {
        self.interval && self.line().is_none()
    }

    /// Whether the bucket of a new key is full.
    fn begins_full(&self) -> bool {
        self.init >= self.capacity
    }

    pub(crate) fn take(&self, state: &mut Vec<u8>, now: Now, attempt: &Attempt) -> Decision {
        let known = self.see(state, now);
        let before = known.unwrap_or_else(|| self.unseen(now));
        let passes = self.passes(before, attempt.cost);
        let wait = if passes { None } else { self.wait(now, before, attempt) };
        let granted = match (passes || wait.is_some(), attempt.part) {
            (true, _) => attempt.cost,
            (false, true) => self.remaining(before),
            (false, false) => 0,
        };
        let verdict = match (passes, granted) {
            (true, _) => Verdict::Allow,
            _ if wait.is_some() => Verdict::Wait,
            (false, 0) => Verdict::Deny,
            (false, _) => Verdict::Part,
        };
        let after = match verdict {
            Verdict::Deny if attempt.over => self.overdrawn(before, attempt.cost),
            _ => self.spent(before, granted),
        };

        // A bucket that does not begin full begins to fill at its first attempt, even a refused
        // one.
        let begins = known.is_none() && !self.begins_full();
        let changed = !attempt.peek && (after != before || begins);
        if changed {
            self.keep(after, state);
        }
        let level = if attempt.peek { before } else { after };
        let retry = match verdict {
            Verdict::Deny => self.retry_waiting(now, level, attempt.cost, attempt),
            Verdict::Part => self.retry_waiting(now, after, attempt.cost - granted, attempt),
            Verdict::Wait => wait,
            Verdict::Allow => Some(0),
        };
        Decision {
            verdict,
            limit: self.capacity,
            remaining: self.left(level),
            used: self.used(level),
            granted,
            retry,
            reset: self.reset(now, level),
            changed,
            counted: verdict == Verdict::Deny && level.full_at != before.full_at,
            lease: None,
        }
    }

    /// The most ticks that may be missing for `units` to pass; `None` if they never pass.
    fn room(&self, seen: BucketLevel, units: u64) -> Option<u128> {
        let max = self.capacity.saturating_add(self.debt);
        (units <= max).then(|| {
            let left = self.cost(max).saturating_sub(self.price(seen, units));
            left.min(self.full())
        })
    }

    fn passes(&self, seen: BucketLevel, units: u64) -> bool {
        // A cost of 0 is refused only for a debt, not for an unpaid price.
        if units == 0 && self.line().is_some() {
            return true;
        }
        self.room(seen, units).is_some_and(|room| seen.missing() <= room)
    }

    /// The price of `units` in ticks.
    fn price(&self, seen: BucketLevel, units: u64) -> u128 {
        let surcharge = self.line().map_or(0, |line| {
            let rest = line.after_taking(seen.stored, units);
            line.surcharge(seen.stored) - line.surcharge(rest)
        });
        self.cost(units).saturating_add(surcharge)
    }

    fn spent(&self, seen: BucketLevel, units: u64) -> BucketLevel {
        let full_at = seen.full_at.saturating_add(self.price(seen, units));
        let stored = self.line().map_or(0, |line| line.after_taking(seen.stored, units));
        BucketLevel { full_at, stored, ..seen }
    }

    /// The level after a refused attempt that counts.
    fn overdrawn(&self, seen: BucketLevel, units: u64) -> BucketLevel {
        let full_at = seen.full_at.saturating_add(self.cost(units));
        let max = seen.clock.saturating_add(tat::owed_max(self.rate));
        BucketLevel { full_at: seen.full_at.max(full_at.min(max)), ..seen }
    }

    /// The debt in units.
    fn owed(&self, seen: BucketLevel) -> u64 {
        tat::units_of(self.rate, seen.missing().saturating_sub(self.full()))
    }

    /// The most units that would pass without debt; negative by the debt.
    fn left(&self, seen: BucketLevel) -> i64 {
        left(self.remaining(seen), self.owed(seen))
    }

    /// The most units that would pass without debt.
    fn remaining(&self, seen: BucketLevel) -> u64 {
        if seen.missing() == 0 {
            return self.capacity;
        }
        let left = self.full().saturating_sub(seen.missing());
        let at_most = tat::units_within(self.rate, left);
        if self.price(seen, at_most) <= left {
            return at_most;
        }
        // The price rises with the units: halve the range between a count that fits and one that
        // exceeds.
        let (mut fits, mut exceeds) = (0, at_most);
        while exceeds - fits > 1 {
            let middle = fits + (exceeds - fits) / 2;
            if self.price(seen, middle) <= left {
                fits = middle;
            } else {
                exceeds = middle;
            }
        }
        fits
    }

    fn used(&self, seen: BucketLevel) -> u64 {
        if self.line().is_some() {
            return (self.capacity - self.remaining(seen)).saturating_add(self.owed(seen));
        }
        tat::units_of(self.rate, seen.missing())
    }

    /// Nanoseconds until `units` pass; `None` for never.
    fn retry(&self, now: Now, seen: BucketLevel, units: u64) -> Option<u64> {
        // No permits are stored while tokens are missing, so the price is constant until then.
        let room = self.room(seen, units)?;
        Some(self.nanos_until(now, seen, seen.full_at.saturating_sub(room)))
    }

    /// Nanoseconds until the bucket is full, and cold if it has a warm-up.
    fn reset(&self, now: Now, seen: BucketLevel) -> u64 {
        let cooling = self.line().map_or(0, |line| line.ticks_to_cold(seen.stored));
        self.nanos_until(now, seen, seen.full_at.saturating_add(cooling))
    }

    /// Nanoseconds until the key's clock reaches `tick`.
    fn nanos_until(&self, now: Now, seen: BucketLevel, tick: u128) -> u64 {
        if !self.steps() {
            return tat::nanos(self.rate, tick.saturating_sub(tat::ticks(self.rate, now)));
        }
        if tick <= seen.clock {
            return 0;
        }
        let further = (tick - seen.clock - 1) / self.cost(self.rate.count);
        let next = seen.clock / u128::from(self.rate.count);
        let at = next.saturating_add(further.saturating_mul(self.rate.period.into()));
        at.saturating_sub(now.mono.0.into()).try_into().unwrap_or(u64::MAX)
    }

    /// Gives units back at their usual price: the surcharge of a warm-up stays paid, and the stored
    /// permits stay. The warmth may have changed since the take, and a refund at another price
    /// could let more pass than was ever paid for. A cold bucket that becomes full grants its whole
    /// capacity again, so its usage may fall by more than `units`; the rest was not given back.
    pub(crate) fn refund(&self, state: &mut Vec<u8>, now: Now, units: u64) -> u64 {
        let Some(mut seen) = self.see(state, now) else { return 0 };
        let used = self.used(seen);
        seen.give_back(self.cost(units));
        self.keep(seen, state);
        (used - self.used(seen)).min(units)
    }

    /// Gives ticks back, as [`Bucket::refund`] gives units.
    pub(crate) fn give_back(&self, state: &mut Vec<u8>, now: Now, ticks: u128) {
        if let Some(mut seen) = self.see(state, now) {
            seen.give_back(ticks);
            self.keep(seen, state);
        }
    }

    /// The ticks of the missing tokens at their usual price.
    pub(crate) fn amount_used(&self, state: &[u8], now: Now) -> u128 {
        self.see(state, now).unwrap_or_else(|| self.unseen(now)).missing()
    }

    /// Raises the missing tokens to at least `units`, as if they had been missing all the time: the
    /// bucket was not idle, so no permits were stored and its periods continued.
    pub(crate) fn cover(&self, state: &mut Vec<u8>, now: Now, units: u64) {
        let units = units.min(self.capacity);
        let unseen = self.unseen(now);
        if self.steps() {
            let (missing, next) = decode_steps(state).map_or_else(
                || (self.capacity.saturating_sub(self.init), unseen.clock / self.count()),
                |(missing, next)| self.refilled(missing, next, now),
            );
            if missing < units {
                encode_steps(units, next, state);
            }
            return;
        }
        let clock = self.see(state, now).map_or(unseen.clock, |seen| seen.clock);
        let (full_at, stored) = self.decode(state).unwrap_or((unseen.full_at, unseen.stored));
        let covered = clock.saturating_add(self.cost(units));
        if full_at < covered {
            self.encode(covered, stored, state);
        }
    }

    /// Sets the usage and keeps the permits stored by a warm-up.
    pub(crate) fn set_used(&self, state: &mut Vec<u8>, now: Now, used: u64) {
        let mut seen = self.see(state, now).unwrap_or_else(|| self.unseen(now));
        seen.full_at = seen.clock.saturating_add(self.cost(used.min(self.capacity)));
        self.keep(seen, state);
    }

    /// Keeps the tokens, up to the new capacity, and the debt. A new warm-up begins cold, as in
    /// Guava; a changed one keeps its warmth. A change to or from whole periods rounds the tokens
    /// down.
    pub(crate) fn adopt(&self, old: &Self, state: &mut Vec<u8>, now: Now) {
        let Some(was) = old.see(state, now) else { return state.clear() };
        if old.is_idle(was) {
            return state.clear();
        }
        let missing =
            tat::missing_after((old.rate, old.full()), was.missing(), (self.rate, self.full()));
        let clock = if self.steps() && old.steps() {
            // One period, at its new length, after the last refill.
            let next = was.clock / u128::from(old.rate.count) + u128::from(self.rate.period);
            next.saturating_sub(old.rate.period.into()) * u128::from(self.rate.count)
        } else {
            self.fresh_clock(now)
        };
        let stored = match (self.line(), old.line()) {
            (Some(line), Some(old_line)) => line.adopt(&old_line, was.stored),
            _ => self.cold(),
        };
        self.keep(BucketLevel { clock, full_at: clock.saturating_add(missing), stored }, state);
    }

    pub(crate) fn shift(&self, state: &mut Vec<u8>, by: i128) {
        if self.steps() {
            return self.shift_steps(state, by);
        }
        let Some((full_at, stored)) = self.decode(state) else { return };
        // The part cut off at the origin was idle time.
        let (full_at, idle) = tat::shift(self.rate, full_at, by);
        let stored = self.line().map_or(0, |line| line.after_idling(stored, idle));
        self.encode(full_at, stored, state);
    }

    /// The clock of a key if its periods begin now.
    fn fresh_clock(&self, now: Now) -> u128 {
        let ticks = tat::ticks(self.rate, now);
        if self.steps() { ticks + self.cost(self.rate.count) } else { ticks }
    }

    /// The level of a new key.
    fn unseen(&self, now: Now) -> BucketLevel {
        let clock = self.fresh_clock(now);
        let missing = self.cost(self.capacity.saturating_sub(self.init));
        BucketLevel { clock, full_at: clock.saturating_add(missing), stored: self.cold() }
    }

    /// The level of a state now; `None` for a new key.
    fn see(&self, state: &[u8], now: Now) -> Option<BucketLevel> {
        if self.steps() {
            let (missing, next) = decode_steps(state)?;
            return Some(self.see_steps(missing, next, now));
        }
        let (full_at, stored) = self.decode(state)?;
        let line = self.line();
        let clock = tat::ticks(self.rate, now);
        let max = tat::owed_max(self.rate);
        let dearest = line.map_or(0, |line| line.surcharge(line.max));
        let clock = tat::standing(full_at, clock, max.saturating_add(dearest));
        let idle = clock.saturating_sub(full_at);
        let stored = line.map_or(0, |line| line.after_idling(stored, idle));
        Some(BucketLevel { clock, full_at: full_at.max(clock), stored })
    }

    fn count(&self) -> u128 {
        self.rate.count.into()
    }

    fn is_idle(&self, seen: BucketLevel) -> bool {
        seen.missing() == 0 && seen.stored == self.cold() && self.begins_full()
    }

    fn keep(&self, seen: BucketLevel, state: &mut Vec<u8>) {
        if self.is_idle(seen) {
            state.clear();
        } else if self.steps() {
            let missing = tat::units_of(self.rate, seen.missing());
            encode_steps(missing, seen.clock / u128::from(self.rate.count), state);
        } else {
            self.encode(seen.full_at, seen.stored, state);
        }
    }

    /// The TAT, and the permits stored by a warm-up.
    fn decode(&self, state: &[u8]) -> Option<(u128, u128)> {
        let Some(line) = self.line() else { return tat::decode(state).map(|tat| (tat, 0)) };
        let (full_at, stored) = state.split_at_checked(tat::BYTES)?;
        Some((tat::decode(full_at)?, tat::decode(stored)?.min(line.max)))
    }

    fn encode(&self, full_at: u128, stored: u128, state: &mut Vec<u8>) {
        if self.line().is_none() {
            return tat::encode(full_at, state);
        }
        state.clear();
        state.extend_from_slice(&full_at.to_le_bytes());
        state.extend_from_slice(&stored.to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
