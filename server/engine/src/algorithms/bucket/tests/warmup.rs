//! Tests of the warm-up: known results, and Guava's formulas in exact fractions.

use std::cmp::Ordering;

use num_bigint::BigInt;

use super::*;

/// 100 units a second, a warm-up of ten seconds, three times as slow when cold.
const WARMING: Bucket = Bucket {
    rate: Rate { count: 100, period: SECOND },
    capacity: 1,
    init: 1,
    debt: 0,
    warm: Some(Warm { duration: 10 * SECOND, factor: 3 }),
    interval: false,
};

const HUNDRED: Bucket = Bucket { capacity: 100, init: 100, ..WARMING };

/// Units that pass from `from` to `to` if each is attempted as soon as it can pass.
fn greedy(key: &mut Key, from: u64, to: u64) -> u64 {
    let (mut clock, mut admitted) = (from, 0);
    while clock < to {
        let decision = key.take(clock, 1);
        admitted += decision.granted;
        clock += decision.retry.expect("one unit is not too much");
    }
    admitted
}

#[test]
fn a_cold_bucket_gives_33_a_second_a_warm_one_100() {
    let mut key = Key::new(WARMING);
    // The first unit passes at once, the second 29.98 ms later: 33.3 a second.
    assert!(key.passes(SECOND, 1));
    assert_eq!(key.take(SECOND, 1).retry, Some(29_980_000));
    // Ten seconds take the stored permits from 1000 to 500, where the slope ends.
    assert_eq!(greedy(&mut key, SECOND, 11 * SECOND), 499);
    assert_eq!(greedy(&mut key, 11 * SECOND, 12 * SECOND), 100);
    assert_eq!(greedy(&mut key, 12 * SECOND, 22 * SECOND), 1000);
    assert_eq!(key.1.len(), 32);
}

#[test]
fn ten_idle_seconds_make_it_cold_again() {
    let mut key = Key::new(WARMING);
    greedy(&mut key, 0, 30 * SECOND);
    let reset = key.take(30 * SECOND, 0).reset;
    assert!((9 * SECOND..=10 * SECOND + SECOND / 10).contains(&reset), "{reset}");
    let idle_at = 30 * SECOND + reset;
    assert_eq!(key.take(idle_at, 0).reset, 0);
    assert_ne!(key.take(idle_at - 1, 0).reset, 0);
    let mut forgotten = Key::new(WARMING);
    assert_eq!(key.take(idle_at, 1), forgotten.take(idle_at, 1));
    assert_eq!(key.take(idle_at, 1), forgotten.take(idle_at, 1));
}

#[test]
fn three_units_cost_three_times_one_unit() {
    let (mut once, mut thrice) = (Key::new(HUNDRED), Key::new(HUNDRED));
    for round in 0..30 {
        let now = round * 97_777_777;
        assert!(once.passes(now, 3));
        assert!((0..3).all(|_| thrice.passes(now, 1)));
        assert_eq!(once.1, thrice.1);
    }
}

#[test]
fn a_cold_bucket_gives_34_singly_or_100_into_debt() {
    let mut key = Key::new(HUNDRED);
    // 34 units cost 997 ms of the bucket's one second, a 35th costs 28.6 ms more.
    assert_eq!((0..50).filter(|_| key.passes(0, 1)).count(), 34);

    let mut key = Key::new(HUNDRED);
    let decision = key.take(0, 100);
    assert_eq!((decision.verdict, decision.granted), (Verdict::Allow, 100));
    // The missing units, at the usual price.
    assert_eq!((decision.used, decision.remaining), (280, -180));
    // Each unit costs 30 ms falling to 26 ms, 2.8 s in all; the bucket holds one second of them.
    assert_eq!(key.take(0, 0).retry, Some(0));
    let retry = key.take(0, 1).retry.expect("in time");
    assert_eq!(retry, 2_800_000_000 - SECOND + 25_980_000);
    assert!(key.passes(retry, 1));
    assert_eq!(key.take(retry, 101).retry, None);
}

#[test]
fn a_refund_keeps_only_the_surcharge() {
    let mut key = Key::new(HUNDRED);
    key.take(0, 20);
    let heated = key.take(0, 0).reset;
    HUNDRED.refund(&mut key.1, at(0), 20);
    // Twenty units cost 10 ms each, and their surcharge stays paid.
    let (_, stored) = HUNDRED.decode(&key.1).expect("the surcharge is owed");
    let line = HUNDRED.line().expect("a line");
    assert_eq!(stored, line.after_taking(line.max, 20));
    assert!(key.take(0, 0).reset < heated);
    // Endless takes and refunds warm the bucket and grant nothing for free.
    let mut paid = 0;
    for _ in 0..100 {
        paid += u64::from(key.passes(0, 1));
        HUNDRED.refund(&mut key.1, at(0), 1);
    }
    assert!(paid <= 100);
    assert!((0..200).filter(|_| key.passes(0, 1)).count() <= 100);
}

#[test]
fn a_refund_that_fills_a_cold_bucket_counts_only_its_units() {
    let mut key = Key::new(HUNDRED);
    HUNDRED.set_used(&mut key.1, at(0), 1);
    // The 99 tokens that are left pay for 33 units, each at nearly three times the usual price.
    assert_eq!(key.remaining(0), 33);
    assert_eq!(HUNDRED.refund(&mut key.1, at(0), 1), 1);
    assert_eq!(key.remaining(0), 100);
}

#[test]
fn a_changed_warm_up_stays_as_warm_as_it_was() {
    let mut key = Key::new(WARMING);
    greedy(&mut key, 0, 10 * SECOND);
    let longer = Bucket { warm: Some(Warm { duration: 20 * SECOND, factor: 3 }), ..WARMING };
    longer.adopt(&WARMING, &mut key.1, at(10 * SECOND));
    let (_, stored) = longer.decode(&key.1).expect("a state");
    let line = longer.line().expect("a line");
    // Half of the stored permits: the threshold of either line.
    assert_eq!((stored * 1000 / line.max, key.1.len()), (500, 32));
    let plain = Bucket { warm: None, ..WARMING };
    plain.adopt(&longer, &mut key.1, at(10 * SECOND));
    assert!(key.1.len() <= 16);
}

/// A fraction with a positive denominator.
#[derive(Debug, Clone)]
struct Fraction(BigInt, BigInt);

impl Fraction {
    fn new(numerator: impl Into<BigInt>, denominator: impl Into<BigInt>) -> Self {
        Self(numerator.into(), denominator.into())
    }

    fn plus(&self, other: &Self) -> Self {
        Self(&self.0 * &other.1 + &other.0 * &self.1, &self.1 * &other.1)
    }

    fn minus(&self, other: &Self) -> Self {
        Self(&self.0 * &other.1 - &other.0 * &self.1, &self.1 * &other.1)
    }

    fn times(&self, other: &Self) -> Self {
        Self(&self.0 * &other.0, &self.1 * &other.1)
    }

    fn over(&self, other: &Self) -> Self {
        Self(&self.0 * &other.1, &self.1 * &other.0)
    }

    fn order(&self, other: &Self) -> Ordering {
        (&self.0 * &other.1).cmp(&(&other.0 * &self.1))
    }

    fn least(self, other: Self) -> Self {
        if self.order(&other) == Ordering::Greater { other } else { self }
    }

    fn most(self, other: Self) -> Self {
        if self.order(&other) == Ordering::Less { other } else { self }
    }
}

/// Guava's `SmoothWarmingUp`, its doubles replaced by fractions; times in nanoseconds.
struct Guava {
    stable: Fraction,
    threshold: Fraction,
    max: Fraction,
    slope: Fraction,
    cool_down: Fraction,
}

impl Guava {
    fn new(rate: Rate, warm: Warm) -> Self {
        let whole = |number: u64| Fraction::new(number, 1);
        let (duration, factor) = (whole(warm.duration), whole(warm.factor.into()));
        let stable = Fraction::new(rate.period, rate.count);
        let cold = stable.times(&factor);
        let threshold = duration.over(&stable).over(&factor.minus(&whole(1)));
        let max = threshold.plus(&whole(2).times(&duration).over(&stable.plus(&cold)));
        let slope = cold.minus(&stable).over(&max.minus(&threshold));
        let cool_down = duration.over(&max);
        Self { stable, threshold, max, slope, cool_down }
    }

    /// Guava's `permitsToTime`.
    fn interval(&self, above: &Fraction) -> Fraction {
        self.stable.plus(&above.times(&self.slope))
    }

    /// Guava's `storedPermitsToWaitTime` plus the fresh permits; also returns the permits stored
    /// afterwards.
    fn cost(&self, stored: &Fraction, units: u64) -> (Fraction, Fraction) {
        let zero = Fraction::new(0, 1);
        let units = Fraction::new(units, 1);
        let rest = stored.minus(&stored.clone().least(units.clone()));
        let above = stored.minus(&self.threshold).most(zero.clone());
        let above_after = rest.minus(&self.threshold).most(zero);
        let width = above.minus(&above_after);
        let ends = self.interval(&above).plus(&self.interval(&above_after));
        let slope = width.times(&ends).over(&Fraction::new(2, 1));
        let usual = units.minus(&width).times(&self.stable);
        (slope.plus(&usual), rest)
    }
}

proptest! {
    /// Each call starts from the actual state, so that a deviation of less than a tick does not
    /// grow.
    #[test]
    fn a_warm_bucket_agrees_with_guavas_formulas(
        rate in any_rate(),
        capacity in any_capacity(),
        debt in prop_oneof![Just(0), any_capacity()],
        warm in any_warm(),
        start in prop_oneof![0..SECOND, any::<u64>()],
        steps in any_steps(24),
    ) {
        let Some(warm) = warm else { return Ok(()) };
        let bucket =
            Bucket { rate, capacity, init: capacity, debt, warm: Some(warm), interval: false };
        let guava = Guava::new(rate, warm);
        let line = bucket.line().expect("it takes time");
        let ticks = |ticks: i64| Fraction::new(ticks, rate.count);
        let zero = Fraction::new(0, 1);
        let (mut state, mut clock, mut has) = (Vec::new(), start, capacity);
        for step in steps {
            clock = clock.saturating_add(step.gap(rate));
            let now = Fraction::new(clock, 1);
            let (free_at, stored) = match bucket.decode(&state) {
                Some((full_at, stored)) => {
                    (Fraction::new(full_at, rate.count), Fraction::new(stored, line.permit()))
                }
                None => (now.clone(), guava.max.clone()),
            };
            // Guava's `resync`.
            let cooled = now.minus(&free_at).most(zero.clone()).over(&guava.cool_down);
            let stored = stored.plus(&cooled).least(guava.max.clone());
            let missing = free_at.minus(&now).most(zero.clone());
            let held = guava.stable.times(&Fraction::new(capacity, 1));
            let lent = guava.stable.times(&Fraction::new(capacity + debt, 1));

            let attempt = Attempt { part: false, ..step.ask(has, capacity + debt, false) };
            let (cost, rest) = guava.cost(&stored, attempt.cost);
            let slack = lent.minus(&cost).least(held).most(zero.clone()).minus(&missing);
            let decision = bucket.take(&mut state, at(clock), &attempt);
            has = decision.left();
            let near = slack.order(&ticks(2)) == Ordering::Less
                && slack.order(&ticks(-2)) == Ordering::Greater;
            if attempt.cost > 0 && (!near || missing.0 == BigInt::ZERO) {
                let passes = attempt.cost <= capacity + debt && slack.order(&zero) != Ordering::Less;
                prop_assert_eq!(decision.verdict == Verdict::Allow, passes);
            }
            if decision.verdict == Verdict::Allow && decision.changed {
                let (full_at, stored) = bucket.decode(&state).expect("a state");
                let due = now.plus(&missing).plus(&cost);
                let off = Fraction::new(full_at, rate.count).minus(&due);
                prop_assert!(off.order(&ticks(1)) == Ordering::Less);
                prop_assert!(off.order(&ticks(-1)) == Ordering::Greater);
                prop_assert!(Fraction::new(stored, line.permit()).order(&rest) == Ordering::Equal);
            }
        }
    }

    /// A cost passes after exactly `retry` and not earlier, and `remaining` units pass.
    #[test]
    fn a_warm_buckets_retry_and_remaining_are_exact(
        rate in any_rate(),
        capacity in any_capacity(),
        debt in prop_oneof![Just(0), any_capacity()],
        warm in any_warm(),
        over in any::<bool>(),
        steps in any_steps(30),
    ) {
        let bucket = Bucket { rate, capacity, init: capacity, debt, warm, interval: false };
        let (mut state, mut clock, mut has) = (Vec::new(), 0_u64, capacity);
        for step in steps {
            clock = clock.saturating_add(step.gap(rate));
            let attempt = step.ask(has, capacity + debt, over);
            if step.act == 0 {
                bucket.refund(&mut state, at(clock), attempt.cost);
                continue;
            }
            let decision = bucket.take(&mut state, at(clock), &attempt);
            has = decision.left();
            let mut passes = |clock, cost| {
                let attempt = Attempt { over, ..peek(cost) };
                bucket.take(&mut state, at(clock), &attempt).verdict == Verdict::Allow
            };
            prop_assert!(has == 0 || passes(clock, has));
            prop_assert!(debt > 0 || has == capacity || !passes(clock, has + 1));
            prop_assert_eq!(decision.remaining, left(capacity, decision.used));
            if decision.verdict == Verdict::Deny {
                let Some(retry) = decision.retry else {
                    prop_assert!(attempt.cost > capacity + debt);
                    continue;
                };
                for unit in [1, 1_000_000] {
                    let then = retry.div_ceil(unit).checked_mul(unit);
                    if let Some(then) = then.and_then(|wait| clock.checked_add(wait))
                        && retry < u64::MAX
                    {
                        prop_assert!(passes(then, attempt.cost));
                        prop_assert!(!passes(then - unit, attempt.cost));
                    }
                }
            }
        }
    }

    /// The state of an idle bucket can be dropped.
    #[test]
    fn forgetting_a_cold_full_bucket_changes_nothing(
        rate in any_rate(),
        capacity in any_capacity(),
        warm in any_warm(),
        steps in any_steps(40),
    ) {
        let bucket = Bucket { rate, capacity, init: capacity, debt: 0, warm, interval: false };
        let (mut kept, mut dropped, mut clock) = (Vec::new(), Vec::new(), 0_u64);
        for step in steps {
            clock = clock.saturating_add(step.gap(rate));
            let attempt = step.ask(capacity, capacity, false);
            let decision = bucket.take(&mut kept, at(clock), &attempt);
            prop_assert_eq!(decision, bucket.take(&mut dropped, at(clock), &attempt));
            if decision.reset == 0 {
                dropped.clear();
            }
            prop_assert!(kept.len() <= 32);
        }
    }
}
