//! Token bucket: holds at most its capacity, refills at its rate, gives what it holds.
//!
//! Four options change it:
//!
//! - `init`: a key never seen holds so many tokens. With fewer than the capacity a full bucket is not
//!   the same as one never seen; its state is then kept, and forgetting it costs tokens.
//! - `debt`: one take may overdraw while nothing is owed. `part` never overdraws: it takes what there
//!   is.
//! - `interval`: refills in whole periods, counted from the take that found it full.
//! - `warm`: a cold bucket's tokens cost more (`warmup`, with the rounding). What the whole price does
//!   not fit into is refused, but a bucket that owes nothing gives any cost up to its capacity and is
//!   shut until that is paid, as Guava's does: else a cold bucket could be smaller than one unit.
//!   `interval` means nothing beside `warm`.
//!
//! With `over` a refused attempt costs what it asked, at the usual price. What is owed is counted up to
//! 2^53 − 1 missing tokens.
//!
//! State, by option: the TAT, here the instant of being full (`tat`), 8 or 16 bytes; `interval`: tokens
//! missing and the instant of the next refill, together as many; `warm`: the TAT and what has been
//! stored while idle, 16 bytes each. Idle, and empty, when full (and cold).

mod plain;

use protocol::{Rate, Warm};

pub(crate) use self::plain::PlainBucket;

use super::warmup::WarmupLine;
use super::{Attempt, Decision, Verdict, left, tat};
use crate::time::Now;

/// The parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    /// Refill.
    pub(crate) rate: Rate,
    /// Most tokens held.
    pub(crate) capacity: u64,
    /// Tokens of a key never seen.
    pub(crate) init: u64,
    /// How far below zero one take may go.
    pub(crate) debt: u64,
    /// Warm-up, if any.
    pub(crate) warm: Option<Warm>,
    /// Refill in whole periods only.
    pub(crate) interval: bool,
}

/// What a state says at an instant, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BucketLevel {
    /// The tick it is for this key: now, or with `interval` the next refill, up to which it is still
    /// the last one.
    clock: u128,
    /// The tick at which the bucket is full; never before `clock`.
    full_at: u128,
    /// What a warm-up has stored; 0 without one.
    stored: u128,
}

impl BucketLevel {
    /// Ticks that are missing to a full bucket.
    fn missing(self) -> u128 {
        self.full_at - self.clock
    }
}

impl Bucket {
    /// A full bucket in ticks.
    fn full(&self) -> u128 {
        self.cost(self.capacity)
    }

    fn cost(&self, units: u64) -> u128 {
        tat::cost(self.rate, units)
    }

    fn line(&self) -> Option<WarmupLine> {
        self.warm.and_then(|warm| WarmupLine::new(self.rate, warm))
    }

    /// What a cold bucket has stored.
    fn cold(&self) -> u128 {
        self.line().map_or(0, |line| line.max)
    }

    /// Whether it refills in whole periods.
    fn steps(&self) -> bool {
        self.interval && self.line().is_none()
    }

    /// Whether a key never seen is a full bucket.
    fn begins_full(&self) -> bool {
        self.init >= self.capacity
    }

    pub(crate) fn take(&self, state: &mut Vec<u8>, now: Now, attempt: &Attempt) -> Decision {
        let known = self.see(state, now);
        let before = known.unwrap_or_else(|| self.unseen(now));
        let passes = self.passes(before, attempt.cost);
        let granted = match (passes, attempt.part) {
            (true, _) => attempt.cost,
            (false, true) => self.remaining(before),
            (false, false) => 0,
        };
        let verdict = match (passes, granted) {
            (true, _) => Verdict::Allow,
            (false, 0) => Verdict::Deny,
            (false, _) => Verdict::Part,
        };
        let after = match verdict {
            Verdict::Deny if attempt.over => self.overdrawn(before, attempt.cost),
            _ => self.spent(before, granted),
        };

        // A bucket that does not begin full begins to fill when it is first seen, refused or not.
        let begins = known.is_none() && !self.begins_full();
        let changed = !attempt.peek && (after != before || begins);
        if changed {
            self.keep(after, state);
        }
        let level = if attempt.peek { before } else { after };
        let retry = match verdict {
            Verdict::Deny => self.retry(now, level, attempt.cost),
            Verdict::Part => self.retry(now, after, attempt.cost - granted),
            _ => Some(0),
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

    /// Most ticks that may be missing for so many units to pass; `None` if they never do.
    fn room(&self, seen: BucketLevel, units: u64) -> Option<u128> {
        let max = self.capacity.saturating_add(self.debt);
        (units <= max).then(|| {
            let left = self.cost(max).saturating_sub(self.price(seen, units));
            left.min(self.full())
        })
    }

    fn passes(&self, seen: BucketLevel, units: u64) -> bool {
        // Asking for nothing is refused only where something is owed, not where a price is.
        if units == 0 && self.line().is_some() {
            return true;
        }
        self.room(seen, units).is_some_and(|room| seen.missing() <= room)
    }

    /// What so many units cost in ticks.
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

    /// After a refusal that counts.
    fn overdrawn(&self, seen: BucketLevel, units: u64) -> BucketLevel {
        let full_at = seen.full_at.saturating_add(self.cost(units));
        let max = seen.clock.saturating_add(tat::owed_max(self.rate));
        BucketLevel { full_at: seen.full_at.max(full_at.min(max)), ..seen }
    }

    /// Units that are owed.
    fn owed(&self, seen: BucketLevel) -> u64 {
        tat::units_of(self.rate, seen.missing().saturating_sub(self.full()))
    }

    /// The most units that would pass without debt; below 0 those that are owed.
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
        // The price rises with the units: halve what is between one that fits and one that does not.
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

    /// Nanoseconds until so many units pass; `None` for never.
    fn retry(&self, now: Now, seen: BucketLevel, units: u64) -> Option<u64> {
        // No permits are stored while anything is missing, so the price stays what it is until then.
        let room = self.room(seen, units)?;
        Some(self.nanos_until(now, seen, seen.full_at.saturating_sub(room)))
    }

    /// Nanoseconds until full, and cold if there is a warm-up.
    fn reset(&self, now: Now, seen: BucketLevel) -> u64 {
        let cooling = self.line().map_or(0, |line| line.ticks_to_cold(seen.stored));
        self.nanos_until(now, seen, seen.full_at.saturating_add(cooling))
    }

    /// Nanoseconds until the clock of a key has come to a tick.
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

    /// Gives units back at their usual price: what a warm-up added for heat stays paid, and what it has
    /// stored stays as it is. Heat may have changed since they were taken, and giving back at another
    /// price would let more through than was ever paid for.
    pub(crate) fn put_back(&self, state: &mut Vec<u8>, now: Now, units: u64) {
        let Some(mut seen) = self.see(state, now) else { return };
        seen.full_at = seen.full_at.saturating_sub(self.cost(units)).max(seen.clock);
        self.keep(seen, state);
    }

    /// Sees to it that at least so many tokens are missing, as if they had been all the time: the
    /// bucket was not idle, so nothing was stored and its periods went on.
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

    /// Leaves what a warm-up has stored: usage is set, not heat.
    pub(crate) fn set_used(&self, state: &mut Vec<u8>, now: Now, used: u64) {
        let mut seen = self.see(state, now).unwrap_or_else(|| self.unseen(now));
        seen.full_at = seen.clock.saturating_add(self.cost(used.min(self.capacity)));
        self.keep(seen, state);
    }

    /// Tokens stay, up to the new capacity; what is owed stays owed. A new warm-up begins cold, as
    /// Guava's does, a changed one as warm as it was. A change to or from whole periods rounds the
    /// tokens down.
    pub(crate) fn adopt(&self, old: &Self, state: &mut Vec<u8>, now: Now) {
        let Some(was) = old.see(state, now) else { return state.clear() };
        if old.is_idle(was) {
            return state.clear();
        }
        let missing =
            tat::missing_after((old.rate, old.full()), was.missing(), (self.rate, self.full()));
        let clock = if self.steps() && old.steps() {
            // A period after the last refill, as long as periods are now.
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
        // What is cut off at the origin was idle time.
        let (full_at, idle) = tat::shift(self.rate, full_at, by);
        let stored = self.line().map_or(0, |line| line.after_idling(stored, idle));
        self.encode(full_at, stored, state);
    }

    fn shift_steps(&self, state: &mut Vec<u8>, by: i128) {
        let Some((mut missing, next)) = decode_steps(state) else { return };
        let distance = by.unsigned_abs();
        let mut moved = if by < 0 { next.saturating_sub(distance) } else { next + distance };
        if by < 0 && distance > next {
            // Refills that lie before the origin are done.
            let before = distance - next;
            let periods = before.div_ceil(self.rate.period.into());
            let refilled = periods.saturating_mul(self.rate.count.into());
            missing = missing.saturating_sub(refilled.try_into().unwrap_or(u64::MAX));
            moved = periods * u128::from(self.rate.period) - before;
        }
        encode_steps(missing, moved, state);
    }

    /// The clock of a key whose periods begin now.
    fn fresh_clock(&self, now: Now) -> u128 {
        let ticks = tat::ticks(self.rate, now);
        if self.steps() { ticks + self.cost(self.rate.count) } else { ticks }
    }

    /// A key never seen.
    fn unseen(&self, now: Now) -> BucketLevel {
        let clock = self.fresh_clock(now);
        let missing = self.cost(self.capacity.saturating_sub(self.init));
        BucketLevel { clock, full_at: clock.saturating_add(missing), stored: self.cold() }
    }

    /// What a state says now; `None` for a key never seen.
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

    /// What is missing after the refills up to now, and the instant of the next.
    fn refilled(&self, missing: u64, next: u128, now: Now) -> (u64, u128) {
        let period = u128::from(self.rate.period);
        let since = u128::from(now.mono.0).checked_sub(next);
        let refills = since.map_or(0, |since| since / period + 1);
        let missing = u128::from(missing).saturating_sub(refills * self.count());
        (missing as u64, next + refills * period)
    }

    fn see_steps(&self, missing: u64, next: u128, now: Now) -> BucketLevel {
        let (missing, next) = self.refilled(missing, next, now);
        if missing == 0 {
            // Periods count from the take that finds the bucket full.
            let clock = self.fresh_clock(now);
            return BucketLevel { clock, full_at: clock, stored: 0 };
        }
        let clock = next * self.count();
        BucketLevel { clock, full_at: clock.saturating_add(self.cost(missing)), stored: 0 }
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

    /// The TAT, and what a warm-up has stored.
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

/// Bits of the instant of the next refill, which is at most a period after the last instant there
/// is; the tokens missing have the others.
const NEXT_BITS: u32 = 72;

/// Tokens missing, and the instant of the next refill.
fn decode_steps(state: &[u8]) -> Option<(u64, u128)> {
    let both = tat::decode(state)?;
    Some(((both >> NEXT_BITS) as u64, both & ((1 << NEXT_BITS) - 1)))
}

fn encode_steps(missing: u64, next: u128, state: &mut Vec<u8>) {
    let next = next.min((1 << NEXT_BITS) - 1);
    tat::encode(u128::from(missing) << NEXT_BITS | next, state);
}

#[cfg(test)]
mod tests;
