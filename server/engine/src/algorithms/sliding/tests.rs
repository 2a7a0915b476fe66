//! Tests of sliding windows: known results, exact waits, and exact fractions as twin.

use proptest::prelude::*;
use protocol::{Algorithm, PERIOD_NANOS_MAX, Policy};

use super::*;
use crate::algorithms::FastPath;
use crate::algorithms::Verdict;
use crate::algorithms::count::tests::{SECOND, TAKE, at, peek, take};
use crate::algorithms::tests::take_both;

const MINUTE: u64 = 60 * SECOND;

fn sliding(count: u64, period: u64, slices: u8, oldest: Oldest) -> Sliding {
    Sliding { rate: Rate { count, period }, slices, oldest }
}

fn policy(limit: Sliding) -> Policy {
    let Sliding { rate, slices, oldest } = limit;
    Policy { algorithm: Algorithm::Sliding { rate, slices, oldest }, over: false, shadow: false }
}

fn per_minute(count: u64, slices: u8, oldest: Oldest) -> Sliding {
    sliding(count, MINUTE, slices, oldest)
}

/// Takes `units` one by one, `gap` apart from `from` on, and returns the number that passed.
fn drip(limit: &Sliding, state: &mut Vec<u8>, from: u64, gap: u64, units: u64) -> u64 {
    (0..units)
        .filter(|unit| limit.take(state, at(from + unit * gap), &take(1)).verdict == Verdict::Allow)
        .count() as u64
}

/// A state of two windows: `previous` units in the minute before, `current` in this one.
fn two_windows(limit: &Sliding, previous: u64, current: u64) -> Vec<u8> {
    let mut state = Vec::new();
    for (instant, cost) in [(0, previous), (MINUTE, current)] {
        let room = Sliding { rate: Rate { count: COUNT_MAX, ..limit.rate }, ..*limit };
        assert_eq!(room.take(&mut state, at(instant), &take(cost)).verdict, Verdict::Allow);
    }
    state
}

mod golden {
    use super::*;

    #[test]
    fn the_previous_window_is_weighted_by_its_rest() {
        let limit = per_minute(100, 1, Oldest::Weighted);
        let mut state = two_windows(&limit, 88, 12);
        let now = at(MINUTE + 15 * SECOND);
        assert_eq!(limit.used(&state, now), 78);
        let decision = limit.take(&mut state, now, &take(1));
        assert_eq!((decision.verdict, decision.used), (Verdict::Allow, 79));
    }

    #[test]
    fn the_example_of_the_protocol_leaves_twenty_two() {
        let limit = per_minute(100, 1, Oldest::Weighted);
        let mut state = two_windows(&limit, 88, 11);
        let decision = limit.take(&mut state, at(MINUTE + 15 * SECOND), &take(1));
        assert_eq!((decision.limit, decision.remaining), (100, 22));
        assert_eq!(decision.reset, 105 * SECOND);
    }

    #[test]
    fn halves_are_rounded_up_and_decided_alike() {
        for (previous, current, into, twice) in [(42, 18, 15, 99), (90, 40, 43, 131)] {
            let now = at(MINUTE + into * SECOND);
            let rounded = u64::div_ceil(twice, 2);
            for limit in rounded - 3..rounded + 3 {
                let limit = per_minute(limit, 1, Oldest::Weighted);
                let state = two_windows(&limit, previous, current);
                assert_eq!(limit.used(&state, now), rounded);
                for cost in 0..4 {
                    let allowed =
                        limit.take(&mut state.clone(), now, &take(cost)).verdict == Verdict::Allow;
                    assert_eq!(allowed, twice + 2 * cost <= 2 * limit.rate.count);
                    assert_eq!(allowed, rounded + cost <= limit.rate.count);
                }
            }
        }
    }

    #[test]
    fn six_slices_refuse_a_second_hundred_at_the_minute() {
        let limit = per_minute(100, 6, Oldest::Weighted);
        let mut state = Vec::new();
        assert_eq!(drip(&limit, &mut state, 50 * SECOND, SECOND / 10, 100), 100);
        assert_eq!(drip(&limit, &mut state, 60 * SECOND, SECOND / 10, 100), 0);
    }

    #[test]
    fn four_slices_are_whole_and_the_oldest_is_weighted() {
        let limit = per_minute(1000, 4, Oldest::Weighted);
        let mut state = Vec::new();
        for (slice, units) in [(0, 100), (1, 1), (2, 2), (3, 4), (4, 8)] {
            limit.take(&mut state, at(slice * 15 * SECOND), &take(units));
        }
        for (into, oldest) in [(0, 100), (3, 80), (14, 7), (15, 0)] {
            let expected = if into == 15 { 14 + 1 } else { 15 + oldest };
            assert_eq!(limit.used(&state, at(60 * SECOND + into * SECOND)), expected);
        }
    }

    #[test]
    fn flat_admits_twice_the_limit_strict_does_not() {
        for (oldest, second_hundred) in [(Oldest::Dropped, 100), (Oldest::Whole, 0)] {
            let limit = per_minute(100, 6, oldest);
            let mut state = Vec::new();
            assert_eq!(drip(&limit, &mut state, 5 * SECOND, SECOND / 20, 100), 100);
            assert_eq!(drip(&limit, &mut state, 10 * SECOND, SECOND / 20, 1000), 0);
            assert_eq!(drip(&limit, &mut state, 60 * SECOND, SECOND / 20, 100), second_hundred);
        }
    }
}

mod traps {
    use super::*;

    #[test]
    fn a_refused_call_leaves_the_state_alone() {
        let limit = per_minute(3, 1, Oldest::Weighted);
        let mut state = Vec::new();
        limit.take(&mut state, at(0), &take(3));
        let kept = state.clone();
        for instant in 1..100 {
            let decision = limit.take(&mut state, at(instant * SECOND / 10), &take(1));
            assert_eq!((decision.verdict, decision.changed), (Verdict::Deny, false));
        }
        assert_eq!(state, kept);
    }

    #[test]
    fn the_last_unit_can_be_taken_and_no_more() {
        let limit = per_minute(5, 1, Oldest::Weighted);
        let mut state = Vec::new();
        assert_eq!(drip(&limit, &mut state, 0, 0, 100), 5);
    }

    #[test]
    fn a_peek_changes_nothing_and_decides_as_a_take() {
        let limit = per_minute(5, 1, Oldest::Weighted);
        let mut state = Vec::new();
        limit.take(&mut state, at(0), &take(3));
        let kept = state.clone();
        let seen = limit.take(&mut state, at(1), &peek(2));
        assert_eq!((seen.verdict, seen.used, seen.changed), (Verdict::Allow, 3, false));
        let seen = limit.take(&mut state, at(1), &Attempt { part: true, ..peek(4) });
        assert_eq!((seen.verdict, seen.granted, seen.used), (Verdict::Part, 2, 3));
        assert_eq!(state, kept);
        let taken = limit.take(&mut state, at(1), &Attempt { part: true, ..take(4) });
        assert_eq!((taken.verdict, taken.granted, taken.used), (Verdict::Part, 2, 5));
        assert_eq!(taken.retry, seen.retry);
    }

    #[test]
    fn more_than_the_limit_never_passes() {
        let limit = per_minute(5, 1, Oldest::Weighted);
        let decision = limit.take(&mut Vec::new(), at(0), &take(6));
        assert_eq!((decision.verdict, decision.retry), (Verdict::Deny, None));
    }

    #[test]
    fn refused_attempts_count_with_over_and_stay_bounded() {
        let limit = per_minute(5, 1, Oldest::Weighted);
        let mut state = Vec::new();
        let over = |cost| Attempt { over: true, ..take(cost) };
        limit.take(&mut state, at(0), &over(5));
        let decision = limit.take(&mut state, at(0), &over(2));
        assert_eq!((decision.verdict, decision.used), (Verdict::Deny, 7));
        for _ in 0..10 {
            let decision = limit.take(&mut state, at(0), &over(COUNT_MAX));
            assert_eq!((decision.used, decision.changed), (COUNT_MAX, true));
        }
    }

    #[test]
    fn a_clock_that_goes_back_stands_still() {
        let limit = per_minute(5, 1, Oldest::Weighted);
        let mut state = Vec::new();
        limit.take(&mut state, at(10 * MINUTE), &take(5));
        for instant in [0, MINUTE, 10 * MINUTE - 1] {
            let decision = limit.take(&mut state, at(instant), &take(1));
            assert_eq!(decision.verdict, Verdict::Deny);
            let retry = decision.retry.expect("one unit is within the limit");
            assert_eq!(instant + retry, 10 * MINUTE + 72 * SECOND);
        }
    }

    #[test]
    fn a_larger_limit_holds_at_once() {
        let old = per_minute(5, 1, Oldest::Weighted);
        let mut state = Vec::new();
        assert_eq!(drip(&old, &mut state, 0, 0, 6), 5);
        let new = per_minute(10, 6, Oldest::Whole);
        new.adopt(&old, &mut state, at(0));
        assert_eq!(drip(&new, &mut state, 0, 0, 10), 5);
    }

    #[test]
    fn a_restored_state_goes_on_where_it_was() {
        let limit = sliding(10, 7 * SECOND, 3, Oldest::Weighted);
        let mut state = Vec::new();
        for instant in [0, 3, 6] {
            limit.take(&mut state, at((1000 + instant) * SECOND), &take(2));
        }
        let mut moved = state.clone();
        Sliding::shift(&mut moved, -i128::from(1006 * SECOND - 5));
        for later in 0..20 {
            let there = limit.take(&mut state.clone(), at((1006 + later) * SECOND), &peek(9));
            let here = limit.take(&mut moved.clone(), at(later * SECOND + 5), &peek(9));
            assert_eq!(here, there);
        }
        Sliding::shift(&mut moved, i128::MAX);
        Sliding::shift(&mut moved, i128::MIN);
        assert_eq!(limit.used(&moved, at(0)), 0);
    }

    #[test]
    fn states_are_small() {
        for (slices, bytes) in [(1, 25), (6, 65), (120, 977)] {
            let limit = sliding(COUNT_MAX, 120 * SECOND, slices, Oldest::Whole);
            let mut state = Vec::new();
            for slice in 0..=u64::from(slices) {
                let instant = slice * 120 * SECOND / u64::from(slices) + 1;
                let attempt = Attempt { over: true, ..take(COUNT_MAX) };
                limit.take(&mut state, at(instant), &attempt);
            }
            assert_eq!(state.len(), bytes);
        }
    }
}

/// The exact twin: all admitted attempts in a list, weighted one by one.
struct Twin {
    limit: Sliding,
    /// Instant in nanoseconds, units.
    calls: Vec<(u64, u64)>,
}

impl Twin {
    /// The numerator of the estimate, over the ticks of a slice.
    fn estimate(&self, now: u64) -> u128 {
        let slices = u128::from(self.limit.slices);
        let ticks = u128::from(self.limit.rate.period);
        let slice_of = |instant: u64| u128::from(instant) * slices / ticks;
        let newest = slice_of(now);
        let into = u128::from(now) * slices - newest * ticks;
        let weight = |instant: u64| match newest - slice_of(instant) {
            age if age < slices => ticks,
            age if age > slices => 0,
            _ => match self.limit.oldest {
                Oldest::Weighted => ticks - into,
                Oldest::Whole => ticks,
                Oldest::Dropped => 0,
            },
        };
        self.calls.iter().map(|(instant, units)| u128::from(*units) * weight(*instant)).sum()
    }

    fn passes(&self, now: u64, cost: u64) -> bool {
        let ticks = u128::from(self.limit.rate.period);
        self.estimate(now) + u128::from(cost) * ticks <= u128::from(self.limit.rate.count) * ticks
    }

    fn used(&self, now: u64) -> u64 {
        let used = self.estimate(now).div_ceil(u128::from(self.limit.rate.period));
        u64::try_from(used).expect("the cases are small")
    }

    fn refund(&mut self, units: u64) {
        let mut left = units;
        for (_, call) in self.calls.iter_mut().rev() {
            let given = left.min(*call);
            *call -= given;
            left -= given;
        }
    }

    /// The most units of admitted calls in any span of a window.
    fn worst(&self) -> u64 {
        let in_window_to = |end: u64| {
            let within = |instant: u64| instant <= end && end - instant < self.limit.rate.period;
            self.calls.iter().filter(|call| within(call.0)).map(|call| call.1).sum::<u64>()
        };
        self.calls.iter().map(|call| in_window_to(call.0)).max().unwrap_or(0)
    }
}

fn any_oldest() -> impl Strategy<Value = Oldest> {
    prop_oneof![Just(Oldest::Weighted), Just(Oldest::Whole), Just(Oldest::Dropped)]
}

/// Small limits with windows that are mostly not divisible by the slices.
fn any_sliding() -> impl Strategy<Value = Sliding> {
    let slices = prop_oneof![Just(1_u8), 1..=7_u8, Just(120)];
    let period = prop_oneof![1..50_u64, 50..5000_u64, Just(MINUTE), 1..=MINUTE];
    (1..30_u64, period, slices, any_oldest())
        .prop_map(|(count, period, slices, oldest)| sliding(count, period, slices, oldest))
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Milliwindows to wait, plus nanoseconds.
    Pass(u64, u64),
    /// Waits until the last refused attempt passes.
    Retry,
    Take {
        cost: u64,
        part: bool,
        over: bool,
        peek: bool,
    },
    PutBack(u64),
    Set(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..400_u64, 0..3_u64).prop_map(|(part, nanos)| Step::Pass(part, nanos)),
        1 => (0..3000_u64, 0..3_u64).prop_map(|(part, nanos)| Step::Pass(part, nanos)),
        2 => Just(Step::Retry),
        8 => (0..12_u64, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(cost, part, over, peek)| Step::Take { cost, part, over, peek }
        ),
        1 => (0..12_u64).prop_map(Step::PutBack),
        1 => (0..40_u64).prop_map(Step::Set),
    ]
}

/// Checks that `cost` passes from `at(now + retry)` on, and not before.
fn retry_is_exact(limit: &Sliding, state: &[u8], now: u64, attempt: &Attempt, retry: u64) {
    let passes = |instant: u64| {
        let attempt = Attempt { peek: true, part: false, ..*attempt };
        limit.take(&mut state.to_vec(), at(instant), &attempt).verdict == Verdict::Allow
    };
    let instant = now + retry;
    assert!(passes(instant), "{attempt:?} is refused after {retry}");
    assert!(!passes(instant - 1), "{attempt:?} passes before {retry}");
    assert!(passes(now + retry.next_multiple_of(1_000_000)));
}

proptest! {
    #[test]
    fn decides_as_its_twin(
        limit in any_sliding(),
        begin in 0..3_000_000_u64,
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let (mut now, mut waits_for) = (begin, 0);
        let mut state = Vec::new();
        let mut twin = Twin { limit, calls: Vec::new() };
        for step in steps {
            match step {
                Step::Pass(part, nanos) => {
                    now += u64::try_from(u128::from(limit.rate.period) * u128::from(part) / 1000)
                        .expect("a few windows") + nanos;
                }
                Step::Retry => now += std::mem::take(&mut waits_for),
                Step::PutBack(units) => {
                    limit.refund(&mut state, at(now), units);
                    // Units that no longer count cannot be given back.
                    let alive = Twin { limit: Sliding { oldest: Oldest::Whole, ..limit }, calls: vec![] };
                    twin.calls.retain(|call| Twin { calls: vec![*call], ..alive }.estimate(now) > 0);
                    twin.refund(units);
                }
                Step::Set(used) => {
                    limit.set_used(&mut state, at(now), used);
                    twin.calls = vec![(now, used.min(limit.rate.count))];
                }
                Step::Take { cost, part, over, peek: looks } => {
                    let attempt = Attempt { cost, part, over, peek: looks, ..TAKE };
                    let before = state.clone();
                    let used = twin.used(now);
                    let decision = take_both(&policy(limit), &mut state, at(now), &attempt);
                    let room = limit.rate.count.saturating_sub(used);
                    let expected = if twin.passes(now, cost) {
                        (Verdict::Allow, cost)
                    } else if part && room > 0 {
                        (Verdict::Part, room)
                    } else {
                        (Verdict::Deny, 0)
                    };
                    prop_assert_eq!((decision.verdict, decision.granted), expected);
                    let counted = match expected {
                        _ if looks => 0,
                        (Verdict::Deny, _) if over => cost,
                        (_, granted) => granted,
                    };
                    twin.calls.push((now, counted));
                    prop_assert_eq!(decision.used, twin.used(now));
                    prop_assert_eq!(
                        decision.remaining,
                        crate::algorithms::left(limit.rate.count, decision.used)
                    );
                    prop_assert_eq!(decision.changed, counted > 0);
                    prop_assert_eq!(state == before, counted == 0);
                    match (decision.verdict, decision.retry) {
                        (Verdict::Deny, Some(retry)) => {
                            retry_is_exact(&limit, &state, now, &attempt, retry);
                            waits_for = retry;
                        }
                        (Verdict::Deny, None) => prop_assert!(cost > limit.rate.count),
                        (Verdict::Part, Some(retry)) if !looks => {
                            let rest = Attempt { cost: cost - decision.granted, ..attempt };
                            retry_is_exact(&limit, &state, now, &rest, retry);
                        }
                        (Verdict::Allow, retry) => prop_assert_eq!(retry, Some(0)),
                        _ => {}
                    }
                    if decision.reset > 0 {
                        let idle = at(now + decision.reset);
                        let still = at(now + decision.reset - 1);
                        prop_assert_eq!(limit.take(&mut state.clone(), idle, &peek(0)).reset, 0);
                        prop_assert_eq!(limit.take(&mut state.clone(), still, &peek(0)).reset, 1);
                    }
                }
            }
            prop_assert_eq!(limit.used(&state, at(now)), twin.used(now));
            // An idle state can be dropped at any time.
            if limit.take(&mut state.clone(), at(now), &peek(0)).reset == 0 {
                state.clear();
            }
        }
    }

    #[test]
    fn strict_keeps_the_limit_in_every_window_of_its_twin(
        limit in any_sliding(),
        calls in prop::collection::vec((0..1500_u64, 1..6_u64), 1..100),
    ) {
        let limit = Sliding { oldest: Oldest::Whole, ..limit };
        let mut twin = Twin { limit, calls: Vec::new() };
        let (mut state, mut now) = (Vec::new(), 0);
        for (gap, cost) in calls {
            now += limit.rate.period * gap / 10_000;
            let granted = limit.take(&mut state, at(now), &Attempt { part: true, ..take(cost) }).granted;
            twin.calls.push((now, granted));
        }
        prop_assert!(twin.worst() <= limit.rate.count);
    }

    #[test]
    fn two_windows_wait_as_the_formula_requires(
        count in 1..=500_u64,
        previous in 0..=1000_u64,
        current in 0..=1000_u64,
        into in 0..MINUTE,
        cost in 0..=501_u64,
    ) {
        let limit = per_minute(count, 1, Oldest::Weighted);
        let mut state = two_windows(&limit, previous, current);
        let decision = limit.take(&mut state, at(MINUTE + into), &take(cost));
        let expected = if decision.verdict == Verdict::Allow {
            Some(0)
        } else if cost > count {
            None
        } else if current + cost <= count {
            let passes = MINUTE - (count - current - cost) * MINUTE / previous;
            Some(passes.saturating_sub(into))
        } else {
            let passes = MINUTE.saturating_sub((count - cost) * MINUTE / current);
            Some(MINUTE - into + passes)
        };
        prop_assert_eq!(decision.retry, expected);
    }

    #[test]
    fn adopting_never_counts_less_than_a_strict_twin(
        old in any_sliding(),
        new in any_sliding(),
        begin in 0..1_000_000_u64,
        calls in prop::collection::vec((0..400_u64, 1..5_u64), 1..20),
        later in 0..3000_u64,
    ) {
        // Units in the old window must leave the new window only after they have really expired.
        let old = Sliding { oldest: Oldest::Whole, rate: Rate { count: 1000, ..old.rate }, ..old };
        let new = Sliding { oldest: Oldest::Whole, rate: Rate { count: 1000, ..new.rate }, ..new };
        let (mut state, mut now) = (Vec::new(), begin);
        let mut list = Vec::new();
        for (gap, cost) in calls {
            now += old.rate.period * gap / 1000;
            old.take(&mut state, at(now), &take(cost));
            list.push((now, cost));
        }
        new.adopt(&old, &mut state, at(now));
        let later = now + new.rate.period * later / 1000;
        let within = |instant: u64, from: u64, period: u64| from - instant < period;
        let truth: u64 = list.iter()
            .filter(|call| within(call.0, now, old.rate.period))
            .filter(|call| within(call.0, later, new.rate.period))
            .map(|call| call.1)
            .sum();
        let total: u64 = list.iter().map(|call| call.1).sum();
        prop_assert!((truth..=total).contains(&new.used(&state, at(later))));
        // No unit stays longer than its new slice and the whole window.
        let gone = now + 2 * new.rate.period + 1;
        prop_assert_eq!(new.used(&state, at(gone)), 0);
    }

    #[test]
    fn nothing_panics_where_a_twin_could_not_follow(
        count in prop_oneof![1..=COUNT_MAX, Just(COUNT_MAX)],
        period in 1..=protocol::PERIOD_NANOS_MAX,
        slices in 1..=120_u8,
        oldest in any_oldest(),
        calls in prop::collection::vec(
            (any::<u64>(), 0..=COUNT_MAX, any::<(bool, bool, bool)>(), any::<i128>()), 1..20),
        garbage in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let limit = sliding(count, period, slices, oldest);
        let other = sliding(COUNT_MAX, period / 2 + 1, 121 - slices, Oldest::Whole);
        let mut state = garbage;
        for (instant, cost, (part, peek, over), by) in calls {
            let now = at(instant);
            let decision = limit.take(&mut state, now, &Attempt { cost, part, peek, over, ..TAKE });
            prop_assert!(decision.used <= COUNT_MAX);
            prop_assert!(state.len() <= 8 * usize::from(slices) + 17 || !decision.changed);
            if over {
                other.adopt(&limit, &mut state, now);
                limit.adopt(&other, &mut state, now);
            }
            if peek {
                Sliding::shift(&mut state, by);
                limit.refund(&mut state, now, cost / 2);
            }
            if part {
                limit.set_used(&mut state, at(cost), cost);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_fast_path_agrees_with_the_general_path(
        (count, period) in (any_large(), any_large()),
        oldest in prop::sample::select(vec![Oldest::Weighted, Oldest::Whole, Oldest::Dropped]),
        steps in prop::collection::vec(
            (any::<u64>(), 0_u64..20, any::<[bool; 4]>(), any::<[u8; 16]>()), 1..40,
        ),
    ) {
        let period = period.min(PERIOD_NANOS_MAX);
        let policy = policy(sliding(count, period, 1, oldest));
        let windows = TwoWindows::of(&policy).expect("of one slice");
        let (mut state, mut nanos) = (Vec::new(), 0_u64);
        for (jump, cost, [part, peek, over, odd], mut garbage) in steps {
            nanos = match jump % 16 {
                0 => jump >> (jump >> 8 & 63),
                1 => nanos.saturating_sub(jump >> 20),
                2 => nanos.saturating_add((jump >> 60) * period),
                _ => nanos.saturating_add((jump >> 8) % (period / 3 + 2)),
            };
            let cost = if (jump >> 40) % 7 == 0 { jump % (COUNT_MAX + 1) } else { cost };
            if odd && (jump >> 50) % 11 == 0 {
                // The window began a while before or after now, and its counts have any length.
                let start = nanos.cast_signed().wrapping_sub((jump % (4 * period)).cast_signed());
                garbage[..8].copy_from_slice(&start.to_le_bytes());
                if jump & 1 << 60 != 0 {
                    garbage[8] = 0;
                }
                state = garbage[..8 + (jump >> 55) as usize % 9].to_vec();
            }
            let attempt = Attempt { part, peek, over, ..take(cost) };
            let is_usual = !peek && cost < 1 << 20 && state.is_empty() && nanos < 1 << 62;
            let short = windows.take(&state, at(nanos), &attempt);
            prop_assert!(short.is_some() || !is_usual);
            take_both(&policy, &mut state, at(nanos), &attempt);
        }
    }
}

/// Numbers of any length.
fn any_large() -> impl Strategy<Value = u64> {
    (any::<u64>(), 11_u32..64).prop_map(|(number, shift)| (number >> shift).max(1))
}
