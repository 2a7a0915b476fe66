//! Tests of the sliding log: known results, exact waits, and a list of attempts as twin.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::algorithms::count::tests::{SECOND, TAKE, at, peek, take};
use crate::algorithms::left;

const MINUTE: u64 = 60 * SECOND;

fn log(count: u64, period: u64) -> Log {
    Log { rate: Rate { count, period }, entries: count }
}

mod traps {
    use super::*;

    #[test]
    fn two_attempts_at_one_instant_share_an_entry() {
        let limit = log(2, MINUTE);
        let mut state = Vec::new();
        for verdict in [Verdict::Allow, Verdict::Allow, Verdict::Deny] {
            assert_eq!(limit.take(&mut state, at(7), &take(1)).verdict, verdict);
        }
        assert_eq!(state.len(), HEADER_BYTES + 2);
        assert_eq!(limit.take(&mut state, at(8), &take(1)).retry, Some(MINUTE - 1));
    }

    #[test]
    fn refused_attempts_are_not_stored() {
        let limit = log(3, MINUTE);
        let mut state = Vec::new();
        for instant in 0..3 {
            let decision = limit.take(&mut state, at(instant), &take(1));
            assert_eq!((decision.verdict, decision.used), (Verdict::Allow, instant + 1));
        }
        let kept = state.clone();
        for instant in 3..100 {
            let decision = limit.take(&mut state, at(instant), &take(1));
            assert_eq!((decision.verdict, decision.changed), (Verdict::Deny, false));
        }
        assert_eq!(state, kept);
        assert_eq!(limit.take(&mut state, at(MINUTE), &take(1)).verdict, Verdict::Allow);
        assert_eq!(limit.take(&mut state, at(MINUTE), &take(1)).verdict, Verdict::Deny);
    }

    #[test]
    fn refused_attempts_are_kept_with_over_only() {
        let limit = log(3, MINUTE);
        let mut state = Vec::new();
        let over = Attempt { over: true, ..take(2) };
        assert_eq!(limit.take(&mut state, at(0), &over).verdict, Verdict::Allow);
        let refused = limit.take(&mut state, at(SECOND), &over);
        assert_eq!((refused.verdict, refused.used), (Verdict::Deny, 4));
        assert_eq!(refused.retry, Some(MINUTE));
        // The first attempt has expired, the refused one has not.
        assert_eq!(limit.take(&mut state, at(MINUTE), &peek(2)).verdict, Verdict::Deny);
        assert_eq!(limit.take(&mut state, at(MINUTE + SECOND), &peek(2)).verdict, Verdict::Allow);
        for instant in 0..10 {
            let attempt = Attempt { cost: COUNT_MAX, ..over };
            assert_eq!(limit.take(&mut state, at(instant), &attempt).used, COUNT_MAX);
        }
    }

    #[test]
    fn a_log_without_room_for_an_entry_is_used_up() {
        let limit = Log { entries: 2, ..log(100, MINUTE) };
        let mut state = Vec::new();
        limit.take(&mut state, at(0), &take(10));
        // The last entry is used up, so nothing is left, even for an attempt at the same instant.
        let last = limit.take(&mut state, at(SECOND), &take(10));
        assert_eq!((last.verdict, last.used, last.remaining), (Verdict::Allow, 100, 0));
        assert_eq!(limit.take(&mut state, at(SECOND), &take(1)).verdict, Verdict::Deny);
        let refused = limit.take(&mut state, at(2 * SECOND), &take(1));
        assert_eq!((refused.verdict, refused.used, refused.remaining), (Verdict::Deny, 100, 0));
        assert_eq!(refused.retry, Some(58 * SECOND));
        assert_eq!(limit.take(&mut state, at(2 * SECOND), &take(0)).verdict, Verdict::Allow);
        let decision = limit.take(&mut state, at(MINUTE), &take(80));
        assert_eq!((decision.verdict, decision.used), (Verdict::Allow, 100));
    }

    #[test]
    fn no_policy_makes_a_log_explode() {
        let limit = log(COUNT_MAX, MINUTE);
        let mut state = Vec::new();
        let mut live = LiveEntries::default();
        for instant in 0..i64::try_from(LOG_ENTRIES_MAX).expect("it is small") {
            limit.push(&mut state, &mut live, instant, 1);
        }
        let now = at(LOG_ENTRIES_MAX);
        let refused = limit.take(&mut state, now, &take(1));
        assert_eq!((refused.verdict, refused.remaining), (Verdict::Deny, 0));
        assert_eq!(limit.used(&state, now), LOG_ENTRIES_MAX);
        assert!(state.len() < 200_000);
        limit.take(&mut state, now, &Attempt { over: true, ..take(COUNT_MAX) });
        assert!(state.len() < 200_000);
    }

    #[test]
    fn a_clock_that_goes_back_stands_still() {
        let limit = log(2, MINUTE);
        let mut state = Vec::new();
        limit.take(&mut state, at(90 * SECOND), &take(1));
        limit.take(&mut state, at(10 * SECOND), &take(1));
        let decision = limit.take(&mut state, at(10 * SECOND), &take(1));
        assert_eq!((decision.verdict, decision.retry), (Verdict::Deny, Some(140 * SECOND)));
        assert_eq!(limit.take(&mut state, at(150 * SECOND), &take(2)).verdict, Verdict::Allow);
    }

    #[test]
    fn a_new_limit_holds_at_once() {
        let old = log(3, MINUTE);
        let mut state = Vec::new();
        for instant in 0..3 {
            old.take(&mut state, at(instant * 10 * SECOND), &take(1));
        }
        let now = at(65 * SECOND);
        let longer = log(4, 60 * MINUTE);
        let mut adopted = state.clone();
        longer.adopt(&old, &mut adopted, now);
        assert_eq!(longer.take(&mut adopted, now, &take(1)).used, 3);
        let shorter = log(1, 46 * SECOND);
        shorter.adopt(&old, &mut state, now);
        let refused = shorter.take(&mut state, now, &take(1));
        assert_eq!((refused.verdict, refused.retry), (Verdict::Deny, Some(SECOND)));
    }

    #[test]
    fn a_restored_log_goes_on_where_it_was() {
        let limit = log(5, MINUTE);
        let mut state = Vec::new();
        for instant in 100..105 {
            limit.take(&mut state, at(instant * SECOND), &take(1));
        }
        Log::shift(&mut state, -i128::from(104 * SECOND));
        assert_eq!(limit.take(&mut state, at(0), &take(2)).retry, Some(57 * SECOND));
        assert_eq!(limit.take(&mut state, at(58 * SECOND), &take(3)).verdict, Verdict::Allow);
    }
}

/// The exact twin: a list of all attempts that were stored.
struct Twin {
    limit: Log,
    /// Instant in nanoseconds, units.
    calls: Vec<(u64, u64)>,
}

impl Twin {
    fn within(&self, now: u64) -> impl Iterator<Item = &(u64, u64)> {
        let period = self.limit.rate.period;
        self.calls.iter().filter(move |call| call.1 > 0 && call.0 <= now && now - call.0 < period)
    }

    fn units(&self, now: u64) -> u64 {
        self.within(now).map(|call| call.1).sum()
    }

    /// The reported usage: the whole limit if there is no room for another instant.
    fn used(&self, now: u64) -> u64 {
        let instants: BTreeSet<u64> = self.within(now).map(|call| call.0).collect();
        let full = instants.len() as u64 >= self.limit.entries.min(self.limit.rate.count);
        let units = self.units(now);
        if full { units.max(self.limit.rate.count) } else { units }
    }

    /// Gives units back, the newest first, and returns how many.
    fn refund(&mut self, now: u64, units: u64) -> u64 {
        let all = units.min(self.units(now));
        let mut left = all;
        for (_, call) in self.calls.iter_mut().rev() {
            let given = left.min(*call);
            *call -= given;
            left -= given;
        }
        all
    }
}

proptest! {
    #[test]
    fn decides_as_its_twin(
        count in 1..20_u64,
        period in prop_oneof![1..50_u64, Just(MINUTE), 1..=MINUTE],
        entries in 1..25_u64,
        over in any::<bool>(),
        steps in prop::collection::vec(
            (prop_oneof![Just(0), 0..500_u64], 0..10_u64, any::<(bool, bool, bool)>(), 0..12_u8), 1..60),
    ) {
        // Attempts for which a full log has no room are not in the list; the next test covers them.
        let limit = Log { entries: if over { u64::MAX } else { entries }, ..log(count, period) };
        let mut twin = Twin { limit, calls: Vec::new() };
        let (mut state, mut now) = (Vec::new(), 7);
        for (gap, cost, (part, peek, retries), other) in steps {
            now += period * gap / 1000;
            if other == 0 {
                prop_assert_eq!(limit.refund(&mut state, at(now), cost), twin.refund(now, cost));
                prop_assert_eq!(limit.used(&state, at(now)), twin.units(now));
                continue;
            }
            if other == 1 {
                limit.set_used(&mut state, at(now), 3 * cost);
                twin.calls = vec![(now, count.min(3 * cost))];
                prop_assert_eq!(limit.used(&state, at(now)), twin.units(now));
                continue;
            }
            let over = over && cost <= 1;
            let attempt = Attempt { cost, part, peek, over, ..TAKE };
            let used = twin.used(now);
            let room = count.saturating_sub(used);
            let before = state.clone();
            let decision = limit.take(&mut state, at(now), &attempt);
            let expected = if used + cost <= count {
                (Verdict::Allow, cost)
            } else if part && room > 0 {
                (Verdict::Part, room)
            } else {
                (Verdict::Deny, 0)
            };
            prop_assert_eq!((decision.verdict, decision.granted), expected);
            let counted = match expected {
                _ if peek => 0,
                (Verdict::Deny, _) if over => cost,
                (_, granted) => granted,
            };
            prop_assert_eq!(state == before, counted == 0);
            twin.calls.push((now, counted));
            // A full log keeps the newest attempts: as many as are needed to refuse.
            if decision.verdict == Verdict::Deny && over {
                let instants: BTreeSet<u64> = twin.within(now).map(|call| call.0).collect();
                if instants.len() as u64 > count {
                    twin.calls.retain(|call| Some(&call.0) != instants.first());
                }
            }
            prop_assert_eq!(decision.used, twin.used(now));
            prop_assert_eq!(decision.remaining, left(count, decision.used));
            let idle = twin.within(now).map(|call| call.0 + period).max().unwrap_or(now);
            prop_assert_eq!(decision.reset, idle - now);
            if let (true, Some(retry)) = (decision.verdict == Verdict::Deny, decision.retry) {
                let passes = |nanos: u64| {
                    let attempt = Attempt { peek: true, part: false, ..attempt };
                    limit.take(&mut state.clone(), at(nanos), &attempt).verdict == Verdict::Allow
                };
                prop_assert!(passes(now + retry));
                prop_assert!(!passes(now + retry - 1));
                if retries {
                    now += retry;
                }
            } else if decision.verdict == Verdict::Deny {
                prop_assert!(cost > count);
            }
        }
    }

    #[test]
    fn a_full_log_with_over_refuses_as_its_unbounded_twin(
        count in 1..6_u64,
        calls in prop::collection::vec((0..300_u64, 1..4_u64), 1..80),
    ) {
        let limit = log(count, MINUTE);
        let mut twin = Twin { limit, calls: Vec::new() };
        let (mut state, mut now) = (Vec::new(), 0);
        for (gap, cost) in calls {
            now += MINUTE * gap / 1000;
            let passes = twin.units(now) + cost <= count;
            let decision = limit.take(&mut state, at(now), &Attempt { over: true, ..take(cost) });
            prop_assert_eq!(decision.verdict == Verdict::Allow, passes);
            twin.calls.push((now, cost));
        }
    }

    #[test]
    fn no_window_of_the_twin_exceeds_the_limit(
        count in 1..20_u64,
        calls in prop::collection::vec((0..200_u64, 1..5_u64), 1..100),
    ) {
        let limit = log(count, MINUTE);
        let mut twin = Twin { limit, calls: Vec::new() };
        let (mut state, mut now) = (Vec::new(), 0);
        for (gap, cost) in calls {
            now += MINUTE * gap / 1000;
            let granted = limit.take(&mut state, at(now), &Attempt { part: true, ..take(cost) }).granted;
            twin.calls.push((now, granted));
            prop_assert!(twin.units(now) <= count);
        }
    }

    #[test]
    fn nothing_panics_where_a_twin_could_not_follow(
        count in 1..=COUNT_MAX,
        period in 1..=protocol::PERIOD_NANOS_MAX,
        entries in 1..=COUNT_MAX,
        calls in prop::collection::vec(
            (any::<u64>(), 0..=COUNT_MAX, any::<(bool, bool, bool)>(), any::<i128>()), 1..20),
        garbage in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let limit = Log { entries, ..log(count, period) };
        let mut state = garbage;
        for (instant, cost, (part, peek, over), by) in calls {
            let now = at(instant);
            let decision = limit.take(&mut state, now, &Attempt { cost, part, peek, over, ..TAKE });
            prop_assert!(decision.used <= COUNT_MAX);
            if over {
                log(cost + 1, period).adopt(&limit, &mut state, now);
            }
            if peek {
                Log::shift(&mut state, by);
                limit.refund(&mut state, now, cost / 2);
            }
            if part {
                limit.set_used(&mut state, at(cost), cost);
            }
        }
    }
}
