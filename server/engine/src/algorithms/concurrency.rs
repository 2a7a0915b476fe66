//! Concurrency: at most `max` units held at once.
//!
//! Here: holds in the item's state. Not here: the holds that lie beside it (`many`, `holders`).
//!
//! Every take is a hold, named by its lease; it ends when it is settled, or by itself. Refunds that
//! name no lease (`decr`) end the newest holds. `over` has no effect: a refused attempt holds
//! nothing.
//!
//! There are at most [`HOLDERS_MAX`] holds. With that number the decision is as if all units were
//! held.
//!
//! The caller names a hold with a lease that is free everywhere. If it names none, the leases of a
//! new state count up from the milliseconds of the clock: a lease granted before an idle state was
//! dropped must not end the hold of another client.
//!
//! The state: the next lease, then for each hold its lease, units and end; about 15 bytes a hold.
//! If it is longer than [`LARGE_BYTES`], the holds lie beside the item (`many`).

use super::count::{CountDecision, StateReader, between, instant, put_count, put_instant, shifted};
use super::{Attempt, Decision};
use crate::store::holders::HOLDERS_MAX;
use crate::time::Now;

mod many;

pub(crate) use self::many::{holders_of, state_of};

/// Longest state in bytes that stays in its item.
const LARGE_BYTES: usize = 1024;

/// The parameters of `concurrency:`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Concurrency {
    /// Most units held at once.
    pub(crate) max: u64,
    /// Nanoseconds after which a hold ends by itself.
    pub(crate) hold: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ConcurrencyHold {
    lease: u64,
    units: u64,
    /// The instant at which the hold ends.
    end: i64,
}

/// The holds that have not ended, in the order in which they began.
#[derive(Debug)]
struct ConcurrencyHolds {
    next_lease: u64,
    list: Vec<ConcurrencyHold>,
}

impl Concurrency {
    /// Decides an attempt, and begins a hold unless it is a peek or for no units.
    pub(crate) fn take(&self, state: &mut Vec<u8>, now: Now, attempt: &Attempt) -> Decision {
        let mut holds = ConcurrencyHolds::read(state, now);
        let used_before = self.used_of(&holds);
        let reset_before = holds.reset(now);
        let judged =
            CountDecision::new(self.max, used_before, &Attempt { over: false, ..*attempt });
        let mut lease = None;
        if judged.charge > 0 {
            let nanos = attempt.hold.unwrap_or(self.hold);
            lease = Some(holds.begin(judged.charge, now, nanos, attempt.lease));
            if !attempt.peek {
                holds.write(state);
            }
        }
        let retry = judged.retry(attempt, |cost| self.wait(&holds, now, cost));
        let (used, reset) = if attempt.peek {
            (used_before, reset_before)
        } else {
            (self.used_of(&holds), holds.reset(now))
        };
        let decision = judged.decision(self.max, used, retry, reset, attempt);
        Decision { lease: lease.filter(|_| !attempt.peek), ..decision }
    }

    /// Gives units back, those of the newest holds first.
    #[expect(clippy::unused_self, reason = "all algorithms give back alike")]
    pub(crate) fn refund(&self, state: &mut Vec<u8>, now: Now, units: u64) -> u64 {
        let mut holds = ConcurrencyHolds::read(state, now);
        let mut left = units;
        for hold in holds.list.iter_mut().rev() {
            let given = left.min(hold.units);
            hold.units -= given;
            left -= given;
        }
        holds.write(state);
        units - left
    }

    /// Sets the units held to `used`, at most the limit, all of them in one hold that begins now.
    pub(crate) fn set_used(&self, state: &mut Vec<u8>, now: Now, used: u64) {
        let mut holds = ConcurrencyHolds::read(state, now);
        holds.list.clear();
        holds.begin(used.min(self.max), now, self.hold, None);
        holds.write(state);
    }

    /// Converts a state written under `old`: each hold keeps its end.
    #[expect(clippy::unused_self, reason = "all algorithms are adopted alike")]
    pub(crate) fn adopt(&self, _old: &Self, state: &mut Vec<u8>, now: Now) {
        ConcurrencyHolds::read(state, now).write(state);
    }

    /// Moves the stored ends by `by` nanoseconds.
    pub(crate) fn shift(state: &mut Vec<u8>, by: i128) {
        if let Some(mut holds) = ConcurrencyHolds::decode(state) {
            for hold in &mut holds.list {
                hold.end = shifted(hold.end, by);
            }
            holds.write(state);
        }
    }

    /// Begins a hold that was granted elsewhere, even if it would not pass here.
    #[expect(clippy::unused_self, reason = "as the other functions of the algorithm")]
    pub(crate) fn give(&self, state: &mut Vec<u8>, now: Now, lease: u64, units: u64, for_ns: u64) {
        let mut holds = ConcurrencyHolds::read(state, now);
        // With the maximum of holds the limit counts as used up anyway.
        if units > 0 && holds.list.len() < HOLDERS_MAX {
            holds.begin(units, now, for_ns, Some(lease));
            holds.write(state);
        }
    }

    /// Ends a hold; false if there is no hold with this lease.
    #[expect(clippy::unused_self, reason = "as the other functions of the algorithm")]
    pub(crate) fn settle(&self, state: &mut Vec<u8>, now: Now, lease: u64) -> bool {
        let mut holds = ConcurrencyHolds::read(state, now);
        let Some(place) = holds.place(lease) else { return false };
        holds.list.remove(place);
        holds.write(state);
        true
    }

    /// Lets a hold end `until_after` nanoseconds from now; false if there is no hold with this
    /// lease.
    #[expect(clippy::unused_self, reason = "as the other functions of the algorithm")]
    pub(crate) fn renew(
        &self,
        state: &mut Vec<u8>,
        now: Now,
        lease: u64,
        until_after: u64,
    ) -> bool {
        let mut holds = ConcurrencyHolds::read(state, now);
        let Some(place) = holds.place(lease) else { return false };
        holds.list[place].end = instant(now).saturating_add_unsigned(until_after);
        holds.list.retain(|hold| hold.end > instant(now));
        holds.write(state);
        true
    }

    fn used_of(&self, holds: &ConcurrencyHolds) -> u64 {
        let units = holds.units();
        if holds.list.len() >= HOLDERS_MAX { units.max(self.max) } else { units }
    }

    /// Nanoseconds until `cost` passes; `None` for never.
    fn wait(&self, holds: &ConcurrencyHolds, now: Now, cost: u64) -> Option<u64> {
        let room = self.max.checked_sub(cost)?;
        let mut by_end = holds.list.clone();
        by_end.sort_unstable_by_key(|hold| hold.end);
        let (mut units, mut left) = (holds.units(), by_end.len());
        for hold in by_end {
            units = units.saturating_sub(hold.units);
            left -= 1;
            if units <= room && (cost == 0 || left < HOLDERS_MAX) {
                return Some(between(instant(now), hold.end));
            }
        }
        Some(0)
    }
}

impl ConcurrencyHolds {
    fn read(state: &[u8], now: Now) -> Self {
        let mut holds = Self::decode(state)
            .unwrap_or_else(|| Self { next_lease: now.mono.millis() + 1, list: Vec::new() });
        holds.list.retain(|hold| hold.end > instant(now));
        holds
    }

    fn decode(state: &[u8]) -> Option<Self> {
        let mut reader = StateReader(state);
        let next_lease = reader.count()?;
        let mut list = Vec::with_capacity(reader.0.len() / 10);
        while !reader.0.is_empty() {
            let (lease, units) = (reader.count()?, reader.count()?);
            list.push(ConcurrencyHold { lease, units, end: reader.instant()? });
        }
        Some(Self { next_lease, list })
    }

    fn write(&self, state: &mut Vec<u8>) {
        state.clear();
        put_count(state, self.next_lease);
        let header_bytes = state.len();
        for hold in self.list.iter().filter(|hold| hold.units > 0) {
            put_count(state, hold.lease);
            put_count(state, hold.units);
            put_instant(state, hold.end);
        }
        if state.len() == header_bytes {
            state.clear();
        }
    }

    /// Begins a hold of at least a nanosecond and returns its lease: `named`, or the next.
    fn begin(&mut self, units: u64, now: Now, nanos: u64, named: Option<u64>) -> u64 {
        let lease = named.unwrap_or(self.next_lease);
        if named.is_none() {
            self.next_lease = lease.saturating_add(1);
        }
        let end = instant(now).saturating_add_unsigned(nanos.max(1));
        self.list.push(ConcurrencyHold { lease, units, end });
        lease
    }

    fn place(&self, lease: u64) -> Option<usize> {
        self.list.iter().position(|hold| hold.lease == lease)
    }

    fn units(&self) -> u64 {
        self.list.iter().fold(0, |units, hold| units.saturating_add(hold.units))
    }

    /// Nanoseconds until all holds have ended.
    fn reset(&self, now: Now) -> u64 {
        let last = self.list.iter().map(|hold| hold.end).max();
        last.map_or(0, |end| between(instant(now), end))
    }
}

#[cfg(test)]
mod tests;
