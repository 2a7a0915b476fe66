//! Decisions for a key with too many holds for its item, which lie beside it.
//!
//! Here: the counterpart of each operation. Not here: the store of holds (`holders`).

use super::{Concurrency, ConcurrencyHolds, LARGE_BYTES};
use crate::algorithms::count::{CountDecision, between, instant};
use crate::algorithms::{Attempt, Decision, Verdict};
use crate::store::holders::{HOLDERS_MAX, Holders};
use crate::store::sums::Sum;
use crate::time::Now;

/// The most holds that move back into the item.
const FEW: usize = 16;

impl Concurrency {
    /// Like [`Concurrency::take`], on `holders`.
    pub(crate) fn take_of_many(
        &self,
        holders: &mut Holders,
        now: Now,
        attempt: &Attempt,
    ) -> Decision {
        let at = instant(now);
        let used_before = self.used_of_many(holders.live(at));
        let reset_before = holders.last_end().map_or(0, |end| between(at, end));
        let judged =
            CountDecision::new(self.max, used_before, &Attempt { over: false, ..*attempt });
        let nanos = attempt.hold.unwrap_or(self.hold).max(1);
        let end = at.saturating_add_unsigned(nanos);
        if judged.charge == 0 || attempt.peek {
            let retry = judged.retry(attempt, |cost| {
                let begun = (judged.verdict == Verdict::Part).then_some((judged.charge, end));
                self.wait_of_many(holders, at, cost, begun)
            });
            return judged.decision(self.max, used_before, retry, reset_before, attempt);
        }
        holders.forget_ended(at);
        let lease = holders.begin(judged.charge, end, attempt.lease);
        let retry = judged.retry(attempt, |cost| self.wait_of_many(holders, at, cost, None));
        let used = self.used_of_many(holders.live(at));
        let reset = holders.last_end().map_or(0, |end| between(at, end));
        let decision = judged.decision(self.max, used, retry, reset, attempt);
        Decision { lease: Some(lease), ..decision }
    }

    fn used_of_many(&self, live: Sum) -> u64 {
        let units = u64::try_from(live.units).unwrap_or(u64::MAX);
        if live.len >= HOLDERS_MAX { units.max(self.max) } else { units }
    }

    /// Nanoseconds until `cost` passes, `None` for never; `begun` is a hold not yet in `holders`.
    fn wait_of_many(
        &self,
        holders: &Holders,
        now: i64,
        cost: u64,
        begun: Option<(u64, i64)>,
    ) -> Option<u64> {
        let room = self.max.checked_sub(cost)?;
        let mut all = holders.all();
        if let Some((units, _)) = begun {
            all.units += u128::from(units);
            all.len += 1;
        }
        let least = |all: Sum| Sum {
            units: all.units.saturating_sub(room.into()),
            len: if cost == 0 { 0 } else { (all.len + 1).saturating_sub(HOLDERS_MAX) },
        };
        let end = holders.end_of(least(all));
        // If the new hold has ended too, fewer of the others need to end.
        let with_begun = begun.map(|(_, end)| {
            let least = least(holders.all());
            let others = if least == Sum::default() { None } else { holders.end_of(least) };
            others.map_or(end, |others| others.max(end))
        });
        let end = match (end, with_begun) {
            (Some(one), Some(other)) => one.min(other),
            (one, other) => one.or(other).unwrap_or(now),
        };
        Some(between(now, end))
    }
}

/// The holds of a state, if the state is too long for its item.
pub(crate) fn holders_of(state: &[u8]) -> Option<Holders> {
    if state.len() <= LARGE_BYTES {
        return None;
    }
    let holds = ConcurrencyHolds::decode(state)?;
    let mut holders = Holders::new(holds.next_lease);
    for hold in holds.list {
        holders.begin(hold.units, hold.end, Some(hold.lease));
    }
    Some(holders)
}

/// Writes `holders` as a state; false if there are too many holds.
pub(crate) fn state_of(holders: &Holders, now: Now, state: &mut Vec<u8>) -> bool {
    if holders.all().len > FEW {
        return false;
    }
    let mut holds = ConcurrencyHolds { next_lease: holders.next_lease(), list: Vec::new() };
    holders.each(instant(now), |lease, units, end| {
        holds.list.push(super::ConcurrencyHold { lease, units, end });
    });
    holds.write(state);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithms::count::tests::{SECOND, TAKE, at};

    proptest! {
        /// The list of holds is the twin: every decision and every hold is equal.
        #[test]
        fn many_decides_as_the_list_of_holds(
            max in 1..300_u64,
            steps in prop::collection::vec(
                (0..40_u64, 0..8_u64, 0..3000_u64, any::<(bool, bool)>(), 0..12_u8), 1..300),
        ) {
            let limit = Concurrency { max, hold: 60 * SECOND };
            let (mut holders, mut state, mut now) = (Holders::new(1), Vec::new(), 0);
            let mut backup = Holders::default();
            let mut list = ConcurrencyHolds { next_lease: 1, list: Vec::new() };
            for (lease, (gap, cost, nanos, (part, peek), other)) in (5_u64..).zip(steps) {
                now += gap;
                let time = at(now);
                let some = list.list.get(nanos as usize % (list.list.len() + 1)).copied();
                list.list.retain(|hold| hold.end > instant(time));
                list.write(&mut state);
                holders.note_changes();
                match (other, some) {
                    (0, _) => {
                        limit.refund(&mut state, time, 3 * cost);
                        holders.refund(3 * cost, instant(time));
                    }
                    (1..=3, Some(hold)) => {
                        let settled = !state.is_empty() && limit.settle(&mut state, time, hold.lease);
                        prop_assert_eq!(holders.settle(hold.lease, instant(time)), settled);
                    }
                    (4, Some(hold)) => {
                        let end = instant(time) + nanos.cast_signed();
                        let renewed =
                            !state.is_empty() && limit.renew(&mut state, time, hold.lease, nanos);
                        prop_assert_eq!(holders.renew(hold.lease, instant(time), end), renewed);
                    }
                    (5, _) => {
                        let newest = holders.newest();
                        limit.take_of_many(&mut holders, time, &Attempt { lease: Some(lease), ..TAKE });
                        if holders.newest().map(|key| key.0) > newest.map(|key| key.0) {
                            holders.roll_back(newest);
                        }
                    }
                    _ => {
                        let (hold, lease) = (Some(nanos), Some(lease));
                        let attempt = Attempt { cost, part, peek, hold, lease, ..TAKE };
                        let decision = limit.take_of_many(&mut holders, time, &attempt);
                        prop_assert_eq!(decision, limit.take(&mut state, time, &attempt));
                    }
                }
                list = ConcurrencyHolds::decode(&state).unwrap_or(ConcurrencyHolds { next_lease: 1, list: Vec::new() });
                let mut seen = Vec::new();
                holders.each(instant(time), |lease, units, end| {
                    seen.push(super::super::ConcurrencyHold { lease, units, end });
                });
                prop_assert_eq!(&seen, &list.list);
                // The changes encoded for another node lead to the same holds there.
                let mut changes = Vec::new();
                holders.encode_changes(&mut changes);
                prop_assert!(crate::store::holders::read_chunk(&changes).is_some());
                backup.absorb(&changes, 0);
                let (mut one, mut other) = (Vec::new(), Vec::new());
                holders.encode_chunk(None, usize::MAX, &mut one);
                backup.encode_chunk(None, usize::MAX, &mut other);
                prop_assert_eq!(one, other);
            }
        }
    }
}
