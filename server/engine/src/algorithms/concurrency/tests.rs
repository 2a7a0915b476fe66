//! Tests of holders: known results, exact waits, and a list of holds as twin.

use proptest::prelude::*;
use protocol::COUNT_MAX;

use super::*;
use crate::algorithms::Verdict;
use crate::algorithms::count::tests::{SECOND, TAKE, at, peek, take};

const MINUTE: u64 = 60 * SECOND;

fn at_most(max: u64) -> Concurrency {
    Concurrency { max, hold: MINUTE }
}

/// The units held.
fn used(state: &[u8], now: Now) -> u64 {
    ConcurrencyHolds::read(state, now).units()
}

/// Begins a hold and returns its lease.
fn hold(limit: &Concurrency, state: &mut Vec<u8>, now: Now, units: u64) -> u64 {
    limit.take(state, now, &take(units)).lease.expect("there is room")
}

#[test]
fn a_third_holder_waits_until_the_first_settles() {
    let limit = at_most(2);
    let mut state = Vec::new();
    let first = hold(&limit, &mut state, at(0), 1);
    let second = hold(&limit, &mut state, at(SECOND), 1);
    assert_ne!(first, second);
    let refused = limit.take(&mut state, at(2 * SECOND), &take(1));
    assert_eq!((refused.verdict, refused.used, refused.lease), (Verdict::Deny, 2, None));
    assert_eq!((refused.retry, refused.reset), (Some(58 * SECOND), 59 * SECOND));
    assert!(limit.settle(&mut state, at(2 * SECOND), first));
    assert!(!limit.settle(&mut state, at(2 * SECOND), first));
    assert!(!limit.renew(&mut state, at(2 * SECOND), first, MINUTE));
    let third = limit.take(&mut state, at(2 * SECOND), &take(1));
    assert_eq!((third.verdict, third.used), (Verdict::Allow, 2));
    assert!(third.lease > Some(second));
}

#[test]
fn given_hold_counts_beyond_the_limit_and_ends() {
    let limit = at_most(2);
    let mut state = Vec::new();
    hold(&limit, &mut state, at(0), 2);
    limit.give(&mut state, at(0), 77, 3, 5 * SECOND);
    assert_eq!(used(&state, at(SECOND)), 5);
    let refused = limit.take(&mut state, at(SECOND), &take(1));
    assert_eq!((refused.verdict, refused.used), (Verdict::Deny, 5));
    assert_eq!(used(&state, at(5 * SECOND)), 2, "its own time is over");
    limit.give(&mut state, at(6 * SECOND), 78, 1, MINUTE);
    assert!(limit.settle(&mut state, at(7 * SECOND), 78));
    assert_eq!(used(&state, at(7 * SECOND)), 2);
}

#[test]
fn a_crashed_holder_frees_itself() {
    let limit = at_most(1);
    let mut state = Vec::new();
    let lease = hold(&limit, &mut state, at(0), 1);
    assert_eq!(used(&state, at(MINUTE - 1)), 1);
    assert_eq!(used(&state, at(MINUTE)), 0);
    assert!(!limit.settle(&mut state, at(MINUTE), lease));
    assert_eq!(limit.take(&mut state, at(MINUTE), &take(1)).verdict, Verdict::Allow);
}

#[test]
fn a_late_settle_does_not_end_the_hold_of_another() {
    let limit = at_most(1);
    let mut state = Vec::new();
    let late = hold(&limit, &mut state, at(0), 1);
    state.clear();
    hold(&limit, &mut state, at(MINUTE), 1);
    assert!(!limit.settle(&mut state, at(MINUTE), late));
    assert_eq!(used(&state, at(MINUTE)), 1);
}

#[test]
fn a_hold_lasts_as_long_as_asked_and_renewed() {
    let limit = at_most(1);
    let mut state = Vec::new();
    let attempt = Attempt { hold: Some(5), ..take(1) };
    let lease = limit.take(&mut state, at(0), &attempt).lease.expect("there is room");
    assert!(limit.renew(&mut state, at(4), lease, 10));
    assert_eq!(limit.take(&mut state, at(4), &take(1)).retry, Some(10));
    assert!(limit.renew(&mut state, at(13), lease, 0));
    assert!(state.is_empty());
}

#[test]
fn the_wait_is_for_the_earliest_ends_that_free_enough() {
    let limit = at_most(10);
    let mut state = Vec::new();
    for (nanos, units) in [(30, 5), (10, 2), (20, 3)] {
        limit.take(&mut state, at(0), &Attempt { hold: Some(nanos), ..take(units) });
    }
    for (cost, retry) in [(1, 10), (2, 10), (3, 20), (5, 20), (6, 30), (10, 30)] {
        assert_eq!(limit.take(&mut state, at(0), &take(cost)).retry, Some(retry));
    }
    assert_eq!(limit.take(&mut state, at(0), &take(11)).retry, None);
}

#[test]
fn units_given_back_end_the_newest_holds() {
    let limit = at_most(5);
    let mut state = Vec::new();
    let old = hold(&limit, &mut state, at(0), 3);
    let new = hold(&limit, &mut state, at(1), 2);
    limit.refund(&mut state, at(2), 3);
    assert_eq!(used(&state, at(2)), 2);
    assert!(!limit.settle(&mut state, at(2), new));
    assert!(limit.settle(&mut state, at(2), old));
    assert!(state.is_empty());
    limit.set_used(&mut state, at(3), 9);
    let refused = limit.take(&mut state, at(3), &take(1));
    assert_eq!((refused.used, refused.retry), (5, Some(MINUTE)));
    limit.set_used(&mut state, at(3), 0);
    assert!(state.is_empty());
}

#[test]
fn a_cost_of_zero_and_a_peek_hold_nothing() {
    let limit = at_most(5);
    let mut state = Vec::new();
    let decision = limit.take(&mut state, at(0), &take(0));
    assert_eq!((decision.verdict, decision.lease), (Verdict::Allow, None));
    let decision = limit.take(&mut state, at(0), &peek(2));
    assert_eq!((decision.verdict, decision.lease, decision.used), (Verdict::Allow, None, 0));
    let refused = Attempt { over: true, ..take(6) };
    assert!(!limit.take(&mut state, at(0), &refused).changed);
    assert!(state.is_empty());
    let decision = limit.take(&mut state, at(0), &Attempt { part: true, ..take(6) });
    assert_eq!((decision.verdict, decision.granted), (Verdict::Part, 5));
    assert!(decision.lease.is_some());
}

#[test]
fn a_smaller_limit_waits_a_larger_one_holds_at_once() {
    let mut state = Vec::new();
    hold(&at_most(2), &mut state, at(0), 1);
    hold(&at_most(2), &mut state, at(5), 1);
    at_most(1).adopt(&at_most(2), &mut state, at(5));
    let refused = at_most(1).take(&mut state, at(5), &take(1));
    assert_eq!((refused.used, refused.retry), (2, Some(MINUTE)));
    at_most(3).adopt(&at_most(1), &mut state, at(5));
    assert_eq!(at_most(3).take(&mut state, at(5), &take(1)).verdict, Verdict::Allow);
}

#[test]
fn a_restored_hold_ends_when_it_would_have() {
    let limit = at_most(1);
    let mut state = Vec::new();
    hold(&limit, &mut state, at(100 * SECOND), 1);
    Concurrency::shift(&mut state, -i128::from(120 * SECOND));
    assert_eq!(limit.take(&mut state, at(0), &take(1)).retry, Some(40 * SECOND));
}

#[test]
fn no_policy_makes_the_holds_explode() {
    let limit = at_most(COUNT_MAX);
    let mut holds = ConcurrencyHolds { next_lease: 1, list: Vec::new() };
    for _ in 0..HOLDERS_MAX {
        holds.begin(1, at(0), MINUTE, None);
    }
    let mut state = Vec::new();
    holds.write(&mut state);
    let refused = limit.take(&mut state, at(1), &take(1));
    assert_eq!((refused.verdict, refused.used), (Verdict::Deny, COUNT_MAX));
    assert_eq!(refused.retry, Some(MINUTE - 1));
    limit.refund(&mut state, at(1), 1);
    assert_eq!(limit.take(&mut state, at(1), &take(1)).verdict, Verdict::Allow);
}

proptest! {
    #[test]
    fn decides_as_its_twin(
        max in 1..12_u64,
        steps in prop::collection::vec(
            (0..40_u64, 0..8_u64, 0..60_u64, any::<(bool, bool)>(), 0..9_u8), 1..60),
    ) {
        let limit = at_most(max);
        // Lease, units and end of each hold.
        let mut twin = Vec::<(u64, u64, u64)>::new();
        let (mut state, mut now) = (Vec::new(), 0);
        for (gap, cost, nanos, (part, looks), other) in steps {
            now += gap;
            twin.retain(|hold| hold.2 > now && hold.1 > 0);
            let held: u64 = twin.iter().map(|hold| hold.1).sum();
            prop_assert_eq!(used(&state, at(now)), held);
            let some = twin.get(nanos as usize % (twin.len() + 1)).copied();
            match (other, some) {
                (0, _) => {
                    limit.refund(&mut state, at(now), cost);
                    let mut left = cost;
                    for hold in twin.iter_mut().rev() {
                        let given = left.min(hold.1);
                        hold.1 -= given;
                        left -= given;
                    }
                }
                (1, Some((lease, ..))) => {
                    prop_assert!(limit.settle(&mut state, at(now), lease));
                    twin.retain(|hold| hold.0 != lease);
                }
                (2, Some((lease, ..))) => {
                    prop_assert!(limit.renew(&mut state, at(now), lease, nanos));
                    for hold in twin.iter_mut().filter(|hold| hold.0 == lease) {
                        hold.2 = now + nanos;
                    }
                }
                _ => {
                    let attempt = Attempt { cost, part, peek: looks, hold: Some(nanos + 1), ..TAKE };
                    let decision = limit.take(&mut state, at(now), &attempt);
                    let room = max.saturating_sub(held);
                    let expected = if held + cost <= max {
                        (Verdict::Allow, cost)
                    } else if part && room > 0 {
                        (Verdict::Part, room)
                    } else {
                        (Verdict::Deny, 0)
                    };
                    prop_assert_eq!((decision.verdict, decision.granted), expected);
                    let taken = if looks { 0 } else { decision.granted };
                    prop_assert_eq!(decision.lease.is_some(), taken > 0);
                    if let Some(lease) = decision.lease {
                        prop_assert!(twin.iter().all(|hold| hold.0 != lease));
                        twin.push((lease, taken, now + nanos + 1));
                    }
                    let used: u64 = twin.iter().map(|hold| hold.1).sum();
                    prop_assert!(used <= max);
                    prop_assert_eq!((decision.used, decision.left()), (used, max - used));
                    let idle = twin.iter().map(|hold| hold.2).max().unwrap_or(now);
                    prop_assert_eq!(decision.reset, idle - now);
                    if let (Verdict::Deny, Some(retry)) = (decision.verdict, decision.retry) {
                        let passes = |nanos: u64| {
                            let verdict =
                                limit.take(&mut state.clone(), at(nanos), &peek(cost)).verdict;
                            verdict == Verdict::Allow
                        };
                        prop_assert!(passes(now + retry) && !passes(now + retry - 1));
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_panics_where_a_twin_could_not_follow(
        max in 1..=COUNT_MAX,
        calls in prop::collection::vec(
            (any::<u64>(), 0..=COUNT_MAX, any::<(bool, bool, bool)>(), any::<i128>()), 1..20),
        garbage in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let limit = Concurrency { max, hold: u64::MAX };
        let mut state = garbage;
        for (instant, cost, (part, peek, over), by) in calls {
            let now = at(instant);
            let hold = over.then_some(cost);
            let attempt = Attempt { cost, part, peek, over, hold, ..TAKE };
            let lease = limit.take(&mut state, now, &attempt).lease;
            if peek {
                Concurrency::shift(&mut state, by);
                limit.refund(&mut state, now, cost / 2);
            }
            limit.renew(&mut state, now, lease.unwrap_or(cost), u64::MAX);
            if part {
                limit.set_used(&mut state, at(cost), cost);
                limit.settle(&mut state, now, lease.unwrap_or(cost));
            }
        }
    }
}
