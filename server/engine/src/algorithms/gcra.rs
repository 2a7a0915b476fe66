//! GCRA: spaces a key's units evenly and lets a burst through early, as redis-cell does.
//!
//! Here: the arithmetic on one stored instant, the TAT (in ticks, so that no emission interval is
//! rounded). `tat' = max(now, tat) + n·T`, allowed from `tat' − tau` on, `tau = T·(burst + 1)`. Not
//! here: ticks and the encoding of a TAT (`tat`). Source: ITU-T I.371, virtual scheduling form;
//! redis-cell's `CL.THROTTLE` for the numbers of a decision.
//!
//! An attempt with a wait may take units before they are available. The decision says how long the
//! caller must wait for them.
//!
//! With `over` a refused attempt costs its units, up to 2^53 − 1 units of usage.
//!
//! State: the TAT, 8 or 16 bytes. Idle, and empty, once the TAT has passed.

use protocol::Rate;

use super::{Attempt, Decision, Verdict, left, tat};
use crate::time::Now;

/// The parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gcra {
    pub(crate) rate: Rate,
    /// Most units that pass at once, beyond the first.
    pub(crate) burst: u64,
}

impl Gcra {
    /// The most units at once.
    fn limit(&self) -> u64 {
        self.burst.saturating_add(1)
    }

    /// The burst span plus one emission interval, tau, in ticks.
    fn tolerance(&self) -> u128 {
        tat::cost(self.rate, self.limit())
    }

    pub(crate) fn take(&self, state: &mut Vec<u8>, now: Now, attempt: &Attempt) -> Decision {
        let tolerance = self.tolerance();
        let ticks = tat::ticks(self.rate, now);
        let stored = tat::decode(state).unwrap_or(0);
        let ticks = tat::standing(stored, ticks, tat::owed_max(self.rate));
        // An idle key must not bank credit: bring its TAT up to now before charging it.
        let before = stored.max(ticks);
        let with = |units| before.saturating_add(tat::cost(self.rate, units));

        let whole = with(attempt.cost);
        let passes = attempt.cost <= self.limit() && whole <= ticks + tolerance;
        let wait = if passes { None } else { self.wait(now, before, attempt) };
        let granted = match (passes || wait.is_some(), attempt.part) {
            (true, _) => attempt.cost,
            (false, true) => {
                tat::units_within(self.rate, (ticks + tolerance).saturating_sub(before))
            }
            (false, false) => 0,
        };
        let verdict = match (passes, granted) {
            (true, _) => Verdict::Allow,
            _ if wait.is_some() => Verdict::Wait,
            (false, 0) => Verdict::Deny,
            (false, _) => Verdict::Part,
        };
        let after = match verdict {
            Verdict::Allow | Verdict::Wait => whole,
            Verdict::Part => with(granted),
            Verdict::Deny if attempt.over => whole.min(ticks + tat::owed_max(self.rate)),
            Verdict::Deny => before,
        };

        let changed = !attempt.peek && after != before;
        if changed {
            tat::encode(after, state);
        }
        let reported = if attempt.peek { before } else { after };
        let retry = match verdict {
            Verdict::Deny => self.retry_waiting(now, reported, attempt.cost, attempt),
            Verdict::Part => self.retry_waiting(now, after, attempt.cost - granted, attempt),
            Verdict::Wait => wait,
            Verdict::Allow => Some(0),
        };
        let used = tat::units_of(self.rate, reported - ticks);
        Decision {
            verdict,
            limit: self.limit(),
            remaining: left(self.limit(), used),
            used,
            granted,
            retry,
            reset: self.nanos_until(now, reported),
            changed,
            counted: changed && verdict == Verdict::Deny,
            lease: None,
        }
    }

    /// Nanoseconds that an attempt which does not pass now waits, if the caller accepts that. Its
    /// units are taken at once, so that later attempts wait behind it.
    fn wait(&self, now: Now, tat: u128, attempt: &Attempt) -> Option<u64> {
        let waits = attempt.wait.is_some_and(|wait| wait > 0) && attempt.cost > 0;
        if !waits || self.retry_waiting(now, tat, attempt.cost, attempt) != Some(0) {
            return None;
        }
        self.retry(now, tat, attempt.cost)
    }

    /// Nanoseconds until `units` pass, at once or with the wait that the caller accepts; `None` for
    /// never. Nobody owes more than [`tat::owed_max`].
    fn retry_waiting(&self, now: Now, tat: u128, units: u64, attempt: &Attempt) -> Option<u64> {
        let retry = self.retry(now, tat, units)?;
        let wait = attempt.wait.unwrap_or(0);
        // The greatest number may stand for a longer time.
        if wait == 0 || units == 0 || retry == u64::MAX {
            return Some(retry);
        }
        let owed_before = tat::owed_max(self.rate).saturating_sub(tat::cost(self.rate, units));
        let bearable = self.nanos_until(now, tat.saturating_sub(owed_before));
        Some(retry.saturating_sub(wait).max(bearable.min(retry)))
    }

    /// Nanoseconds until `units` pass; `None` for never.
    fn retry(&self, now: Now, tat: u128, units: u64) -> Option<u64> {
        let charged = tat.saturating_add(tat::cost(self.rate, units));
        let allow_at = charged.saturating_sub(self.tolerance());
        (units <= self.limit()).then(|| self.nanos_until(now, allow_at))
    }

    fn nanos_until(&self, now: Now, tick: u128) -> u64 {
        tat::nanos(self.rate, tick.saturating_sub(tat::ticks(self.rate, now)))
    }

    pub(crate) fn refund(&self, state: &mut Vec<u8>, now: Now, units: u64) -> u64 {
        let Some(stored) = tat::decode(state) else { return 0 };
        let ticks = tat::standing(stored, tat::ticks(self.rate, now), tat::owed_max(self.rate));
        let used = tat::units_of(self.rate, stored.saturating_sub(ticks));
        self.give_back(state, now, tat::cost(self.rate, units));
        units.min(used)
    }

    /// Gives ticks back.
    pub(crate) fn give_back(&self, state: &mut Vec<u8>, now: Now, ticks: u128) {
        if let Some(stored) = tat::decode(state) {
            self.keep(stored.saturating_sub(ticks), state, now);
        }
    }

    /// The usage in ticks.
    pub(crate) fn amount_used(&self, state: &[u8], now: Now) -> u128 {
        let stored = tat::decode(state).unwrap_or(0);
        let ticks = tat::standing(stored, tat::ticks(self.rate, now), tat::owed_max(self.rate));
        stored.saturating_sub(ticks)
    }

    /// Raises the usage to at least `units`.
    pub(crate) fn cover(&self, state: &mut Vec<u8>, now: Now, units: u64) {
        let stored = tat::decode(state).unwrap_or(0);
        let ticks = tat::standing(stored, tat::ticks(self.rate, now), tat::owed_max(self.rate));
        let covered = ticks.saturating_add(tat::cost(self.rate, units.min(self.limit())));
        if stored < covered {
            tat::encode(covered, state);
        }
    }

    pub(crate) fn set_used(&self, state: &mut Vec<u8>, now: Now, used: u64) {
        let stored = tat::decode(state).unwrap_or(0);
        let ticks = tat::standing(stored, tat::ticks(self.rate, now), tat::owed_max(self.rate));
        let owed = tat::cost(self.rate, used.min(self.limit()));
        self.keep(ticks.saturating_add(owed), state, now);
    }

    /// Keeps the units left, up to the new limit, and the debt.
    pub(crate) fn adopt(&self, old: &Self, state: &mut Vec<u8>, now: Now) {
        let Some(stored) = tat::decode(state) else { return state.clear() };
        let ticks = tat::standing(stored, tat::ticks(old.rate, now), tat::owed_max(old.rate));
        let owed = stored.saturating_sub(ticks);
        if owed == 0 {
            return state.clear();
        }
        let (from, to) = ((old.rate, old.tolerance()), (self.rate, self.tolerance()));
        let owed = tat::missing_after(from, owed, to);
        self.keep(tat::ticks(self.rate, now).saturating_add(owed), state, now);
    }

    pub(crate) fn shift(&self, state: &mut Vec<u8>, by: i128) {
        if let Some(stored) = tat::decode(state) {
            tat::encode(tat::shift(self.rate, stored, by).0, state);
        }
    }

    fn keep(&self, stored: u128, state: &mut Vec<u8>, now: Now) {
        if stored > tat::ticks(self.rate, now) {
            tat::encode(stored, state);
        } else {
            state.clear();
        }
    }
}

#[cfg(test)]
mod tests;
