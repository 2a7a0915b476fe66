//! Shared code of the tests of limiters, and the tests of the match over algorithms.

pub(super) mod twin;

use proptest::prelude::*;
use protocol::{
    Algorithm, COUNT_MAX, CalendarUnit, Oldest, PERIOD_NANOS_MAX, Phase, Policy, Rate, Warm,
    Window, Zone,
};

use super::count::tests::{SECOND, at, peek, take as asking};
use super::*;

/// Returns the verdict line that a client would receive.
pub(super) fn line(decision: &Decision) -> String {
    let Decision { verdict, limit, remaining, retry, reset, .. } = decision;
    let verdict = format!("{verdict:?}").to_uppercase();
    let millis = |nanos: u64| nanos.div_ceil(1_000_000).cast_signed();
    let (retry, reset) = (retry.map_or(-1, millis), millis(*reset));
    format!("{verdict} {limit} {remaining} {retry} {reset}")
}

/// Takes on the fast path too, if there is one, and checks that the results are equal.
pub(super) fn take_both(
    policy: &Policy,
    state: &mut Vec<u8>,
    now: Now,
    attempt: &Attempt,
) -> Decision {
    let mut short = state.clone();
    let decision = take_general(policy, state, now, attempt);
    assert_eq!(take(policy, &mut short, now, attempt), decision);
    assert_eq!(short, *state);
    decision
}

/// Rates from one unit a year to all units in a nanosecond.
pub(super) fn any_rate() -> impl Strategy<Value = Rate> {
    let small = (1..=10_u64, 1..=50_u64);
    let usual = (1..=1000_u64, prop::sample::select(vec![1_000_000, SECOND, 60 * SECOND]));
    let any = (1..=COUNT_MAX, 1..=PERIOD_NANOS_MAX);
    let ends =
        (prop::sample::select(vec![1, COUNT_MAX]), prop::sample::select(vec![1, PERIOD_NANOS_MAX]));
    prop_oneof![3 => small, 4 => usual, 2 => any, 1 => ends]
        .prop_map(|(count, period)| Rate { count, period })
}

/// Capacities for a rate; with a debt of the same size they stay within the bounds.
pub(super) fn any_capacity() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..=5_u64, 4 => 1..=2000_u64, 1 => 1..=COUNT_MAX / 2, 1 => Just(COUNT_MAX / 2)]
}

/// One operation, drawn without the parameters; the meaning of its numbers depends on them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    gap: (u8, u64),
    cost: (u8, u64),
    pub(super) act: u8,
    flags: u8,
}

pub(super) fn any_steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = ((0..8_u8, any::<u64>()), (0..6_u8, any::<u64>()), 0..16_u8, any::<u8>())
        .prop_map(|(gap, cost, act, flags)| Step { gap, cost, act, flags });
    prop::collection::vec(step, 1..most)
}

impl Step {
    /// Time since the last operation: none, around some emission intervals, around some periods,
    /// years.
    pub(super) fn gap(&self, rate: Rate) -> u64 {
        let (kind, number) = self.gap;
        let emission = (rate.period / rate.count).max(1);
        let around =
            |span: u64| span.saturating_add(number >> 32 & 1).saturating_sub(number >> 33 & 1);
        match kind {
            0..=2 => 0,
            3 | 4 => around(emission.saturating_mul(number % 8)),
            5 => number % rate.period,
            6 => around(rate.period.saturating_mul(number % 4)),
            _ => number >> 8 >> (number % 48),
        }
    }

    /// A cost, often around the units left (`has`) or the most that can ever pass (`max`).
    pub(super) fn cost(&self, has: u64, max: u64) -> u64 {
        let (kind, number) = self.cost;
        let around = |units: u64| (units + number % 3).saturating_sub(1);
        match kind {
            0 | 1 => number % 4,
            2 => around(has),
            3 => around(max),
            4 => number % max.max(1),
            _ => number >> 11 >> (number % 48),
        }
        .min(COUNT_MAX)
    }

    /// The longest wait of the caller: none, one that goes with any policy, or around some emission
    /// intervals or periods.
    pub(super) fn wait(&self, rate: Rate) -> Option<u64> {
        let (_, number) = self.gap;
        let emission = (rate.period / rate.count).max(1);
        match self.flags / 16 {
            0..=5 => None,
            6 => Some(0),
            7..=10 => Some(emission.saturating_mul(number % 9)),
            11..=13 => Some(rate.period.saturating_mul(number % 4)),
            _ => Some(number >> (number % 48)),
        }
    }

    pub(super) fn ask(&self, has: u64, max: u64, over: bool) -> Attempt {
        let cost = self.cost(has, max);
        let (part, peek) = (self.flags.is_multiple_of(4), (self.flags / 4).is_multiple_of(4));
        Attempt { part, peek, over, ..asking(cost) }
    }
}

/// Every algorithm, with parameters anywhere in their bounds.
fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let bucket =
        (any_rate(), any_capacity(), any::<u64>(), any_capacity(), any_warm(), any::<bool>())
            .prop_map(|(rate, capacity, init, debt, warm, interval)| Algorithm::Bucket {
                rate,
                capacity,
                init: if init % 2 == 0 { capacity } else { init % (capacity + 1) },
                debt: if init % 3 == 0 { 0 } else { debt },
                warm,
                interval,
            });
    let unit = prop_oneof![
        (1..=PERIOD_NANOS_MAX).prop_map(CalendarUnit::Nanos),
        (1..=12_u32).prop_map(CalendarUnit::Months),
        (1..=10_u32).prop_map(CalendarUnit::Years),
    ];
    let phase = prop_oneof![any::<u64>().prop_map(Phase::Nanos), Just(Phase::Auto)];
    let window = prop_oneof![
        (1..=PERIOD_NANOS_MAX).prop_map(Window::First),
        (unit, -50_400..=50_400_i32, phase).prop_map(|(unit, offset, phase)| {
            Window::Calendar { unit, zone: Zone::Offset(offset), phase }
        }),
    ];
    let oldest = prop::sample::select(vec![Oldest::Weighted, Oldest::Whole, Oldest::Dropped]);
    prop_oneof![
        4 => bucket,
        1 => (any_rate(), 0..COUNT_MAX).prop_map(|(rate, burst)| Algorithm::Gcra { rate, burst }),
        2 => (any_rate(), any_capacity(), any::<Option<u64>>())
            .prop_map(|(rate, capacity, wait)| Algorithm::Leaky { rate, capacity, wait }),
        1 => (any_capacity(), window)
            .prop_map(|(count, window)| Algorithm::Fixed { count, window }),
        1 => (any_rate(), 1..=120_u8, oldest)
            .prop_map(|(rate, slices, oldest)| Algorithm::Sliding { rate, slices, oldest }),
        1 => (any_rate(), 1..=40_u64).prop_map(|(rate, entries)| Algorithm::Log { rate, entries }),
        1 => (any_capacity(), 1..=PERIOD_NANOS_MAX)
            .prop_map(|(max, hold)| Algorithm::Concurrency { max, hold }),
        1 => Just(Algorithm::Unlimited),
        1 => Just(Algorithm::Block),
    ]
}

pub(super) fn any_warm() -> impl Strategy<Value = Option<Warm>> {
    let duration = prop_oneof![1..=1000_u64, Just(10 * SECOND), 1..=PERIOD_NANOS_MAX];
    let factor = prop_oneof![2..=5_u32, 2..=1000_u32];
    prop::option::of((duration, factor).prop_map(|(duration, factor)| Warm { duration, factor }))
}

fn policy(algorithm: Algorithm) -> Policy {
    Policy { algorithm, over: false, shadow: false }
}

/// A small limit of each window algorithm and of a bucket.
fn some_policies(count: u64) -> [Policy; 4] {
    let rate = Rate { count, period: 60 * SECOND };
    [
        Algorithm::Fixed { count, window: Window::First(60 * SECOND) },
        Algorithm::Sliding { rate, slices: 6, oldest: Oldest::Weighted },
        Algorithm::Log { rate, entries: count },
        Algorithm::Gcra { rate, burst: count - 1 },
    ]
    .map(policy)
}

#[test]
fn unlimited_passes_and_keeps_nothing() {
    let mut state = Vec::new();
    let decision = take(&policy(Algorithm::Unlimited), &mut state, at(5), &asking(COUNT_MAX));
    assert_eq!(line(&decision), format!("ALLOW {COUNT_MAX} {COUNT_MAX} 0 0"));
    assert_eq!((decision.granted, decision.changed), (COUNT_MAX, false));
    assert!(state.is_empty());
}

#[test]
fn block_never_passes_and_keeps_nothing() {
    let mut state = Vec::new();
    for cost in [0, 1] {
        let decision = take(&policy(Algorithm::Block), &mut state, at(5), &asking(cost));
        assert_eq!(line(&decision), "DENY 0 0 -1 0");
    }
    assert!(state.is_empty());
}

#[test]
fn usage_moves_only_between_window_algorithms() {
    let now = at(100 * SECOND);
    for (from, old) in some_policies(10).iter().enumerate() {
        for (to, new) in some_policies(100).iter().enumerate() {
            let mut state = Vec::new();
            assert_eq!(take(old, &mut state, now, &asking(7)).verdict, Verdict::Allow);
            adopt(old, new, &mut state, now);
            let used = take(new, &mut state, now, &peek(0)).used;
            let expected = match (from, to) {
                (3, 3) => 97, // Tokens stay: three of a hundred.
                (3, _) | (_, 3) => 0,
                _ => 7,
            };
            assert_eq!(used, expected, "from {old:?} to {new:?}");
        }
    }
}

#[test]
fn a_limit_that_becomes_block_or_unlimited_forgets() {
    for old in some_policies(10) {
        let mut state = Vec::new();
        take(&old, &mut state, at(5), &asking(7));
        adopt(&old, &policy(Algorithm::Block), &mut state, at(5));
        assert!(state.is_empty());
    }
}

proptest! {
    /// Holds for any state, clock and policy.
    #[test]
    fn nothing_panics_or_overflows(
        algorithm in any_algorithm(),
        other in any_algorithm(),
        garbage in prop::collection::vec(any::<u8>(), 0..48),
        length in prop::option::of(prop::sample::select(vec![0, 16, 32])),
        steps in any_steps(16),
        clocks in prop::collection::vec(prop_oneof![
            any::<u64>(), 0..=10_u64, u64::MAX - 10..=u64::MAX, 0..=SECOND
        ], 16),
        by in any::<i128>(),
        over in any::<bool>(),
    ) {
        let (mut old, mut new) = (policy(algorithm), policy(other));
        let mut state = garbage;
        if let Some(length) = length {
            state.resize(length, 0xff);
        }
        for (step, clock) in steps.iter().zip(clocks) {
            let now = at(clock);
            let attempt = step.ask(COUNT_MAX, COUNT_MAX, over);
            match step.act {
                0 => {
                    prop_assert!(refund(&old, &mut state, now, attempt.cost) <= attempt.cost);
                    let amounts = amounts_of(&old, attempt.cost);
                    used_of_each(&old, &state, now, attempt.hash);
                    give_back(&old, &mut state, now, &amounts, by as i64);
                }
                1 => set_used(&old, &mut state, now, attempt.cost),
                2 => shift(&old, &mut state, by >> (clock % 128)),
                3 => {
                    adopt(&old, &new, &mut state, now);
                    std::mem::swap(&mut old, &mut new);
                }
                _ => {
                    let decision = take(&old, &mut state, now, &attempt);
                    prop_assert!(decision.granted <= attempt.cost);
                    prop_assert!(decision.remaining <= decision.limit.cast_signed());
                    match decision.verdict {
                        Verdict::Allow | Verdict::Wait => prop_assert_eq!(decision.granted, attempt.cost),
                        Verdict::Deny => prop_assert_eq!(decision.granted, 0),
                        Verdict::Part => prop_assert!((1..attempt.cost).contains(&decision.granted)),
                    }
                }
            }
            if matches!(old.algorithm, Algorithm::Bucket { .. } | Algorithm::Gcra { .. } | Algorithm::Leaky { .. })
                && step.act > 3
            {
                prop_assert!(state.len() <= 48);
            }
        }
    }

    /// A refund returns the number of units that no longer count. A full log reports its whole
    /// limit as used, so its units are counted instead. The usage of a cold bucket may fall by more
    /// than the units that are given back.
    #[test]
    fn refund_counts_what_it_gives_back(
        algorithm in any_algorithm(),
        over in any::<bool>(),
        steps in any_steps(24),
    ) {
        let policy = policy(algorithm);
        let (mut state, mut clock) = (Vec::new(), SECOND);
        for step in steps {
            clock += step.gap(Rate { count: 3, period: SECOND }) % (1 << 56);
            let attempt = step.ask(5, 10, over);
            let counted = |state: &mut Vec<u8>| match Limiter::of(&policy) {
                Some(Limiter::Log(log)) => log.used(state, at(clock)),
                _ => take(&policy, state, at(clock), &Attempt { peek: true, ..asking(0) }).used,
            };
            if step.act == 0 && !state.is_empty() {
                let before = counted(&mut state);
                let given = refund(&policy, &mut state, at(clock), attempt.cost);
                let fallen = before - counted(&mut state);
                prop_assert_eq!(given, fallen.min(attempt.cost));
            } else {
                take(&policy, &mut state, at(clock), &attempt);
            }
        }
    }

    /// A peek leaves the state unchanged, and decides as a take does.
    #[test]
    fn a_peek_changes_nothing_and_decides_alike(
        algorithm in any_algorithm(),
        over in any::<bool>(),
        steps in any_steps(24),
    ) {
        let policy = policy(algorithm);
        let (mut state, mut clock) = (Vec::new(), SECOND);
        for step in steps {
            clock += step.gap(Rate { count: 3, period: SECOND }) % (1 << 56);
            let attempt = Attempt { peek: false, ..step.ask(5, 10, over) };
            let before = state.clone();
            let peeked = take(&policy, &mut state, at(clock), &Attempt { peek: true, ..attempt });
            prop_assert_eq!(&state, &before);
            prop_assert!(!peeked.changed);
            let taken = take(&policy, &mut state, at(clock), &attempt);
            prop_assert_eq!((peeked.verdict, peeked.granted), (taken.verdict, taken.granted));
            prop_assert!(taken.changed || state == before);
        }
    }
}
