//! Tests of GCRA against redis-cell's results, a bucket and the exact twin.

use proptest::prelude::*;

use super::*;
use crate::algorithms::bucket::Bucket;
use crate::algorithms::count::tests::{SECOND, at, peek, take};
use crate::algorithms::tests::twin::Twin;
use crate::algorithms::tests::{any_capacity, any_rate, any_steps, line};

#[test]
fn redis_cells_example_has_limit_16_and_15_left() {
    let gcra = Gcra { rate: Rate { count: 30, period: 60 * SECOND }, burst: 15 };
    let mut state = Vec::new();
    assert_eq!(line(&gcra.take(&mut state, at(SECOND), &take(1))), "ALLOW 16 15 0 2000");
    assert_eq!(state.len(), 8);
}

#[test]
fn no_burst_spaces_attempts_an_interval_apart() {
    let gcra = Gcra { rate: Rate { count: 3, period: 60 * SECOND }, burst: 0 };
    let mut state = Vec::new();
    assert_eq!(line(&gcra.take(&mut state, at(5 * SECOND), &take(1))), "ALLOW 1 0 0 20000");
    assert_eq!(line(&gcra.take(&mut state, at(6 * SECOND), &take(1))), "DENY 1 0 19000 19000");
    assert_eq!(gcra.take(&mut state, at(25 * SECOND - 1), &take(1)).verdict, Verdict::Deny);
    assert_eq!(gcra.take(&mut state, at(25 * SECOND), &take(1)).verdict, Verdict::Allow);
}

#[test]
fn an_emission_interval_need_not_be_whole() {
    // No whole number of nanoseconds is a seventh of a second: after seven periods exactly 49 units
    // pass.
    let gcra = Gcra { rate: Rate { count: 7, period: SECOND }, burst: 0 };
    let mut state = Vec::new();
    let admitted = (0..7 * 1000)
        .filter(|ms| gcra.take(&mut state, at(ms * 1_000_000), &take(1)).verdict == Verdict::Allow);
    // One every 143 ms: the first millisecond after 1/7 s.
    assert_eq!(admitted.count(), 49);
}

#[test]
fn tokens_stay_when_the_limit_changes() {
    let old = Gcra { rate: Rate { count: 10, period: 10 * SECOND }, burst: 9 };
    let new = Gcra { rate: Rate { count: 4, period: SECOND }, burst: 3 };
    let mut state = Vec::new();
    old.take(&mut state, at(SECOND), &take(8));
    new.adopt(&old, &mut state, at(SECOND));
    assert_eq!(line(&new.take(&mut state, at(SECOND), &peek(1))), "ALLOW 4 2 0 500");
    old.adopt(&new, &mut state, at(SECOND));
    assert_eq!(line(&old.take(&mut state, at(SECOND), &peek(1))), "ALLOW 10 2 0 8000");
}

proptest! {
    #[test]
    fn gcra_equals_a_bucket_of_one_more_than_its_burst(
        rate in any_rate(),
        capacity in any_capacity(),
        over in any::<bool>(),
        steps in any_steps(40),
    ) {
        let gcra = Gcra { rate, burst: capacity - 1 };
        let bucket =
            Bucket { rate, capacity, init: capacity, debt: 0, warm: None, interval: false };
        let (mut state, mut tokens) = (Vec::new(), Vec::new());
        let (mut clock, mut has) = (0_u64, capacity);
        for step in steps {
            clock = clock.saturating_add(step.gap(rate));
            let attempt =
                Attempt { wait: step.wait(rate), ..step.ask(has, capacity, over) };
            match step.act {
                0 => {
                    gcra.refund(&mut state, at(clock), attempt.cost);
                    bucket.refund(&mut tokens, at(clock), attempt.cost);
                }
                1 => {
                    gcra.set_used(&mut state, at(clock), attempt.cost);
                    bucket.set_used(&mut tokens, at(clock), attempt.cost);
                }
                _ => {
                    let decision = gcra.take(&mut state, at(clock), &attempt);
                    prop_assert_eq!(decision, bucket.take(&mut tokens, at(clock), &attempt));
                    has = decision.left();
                }
            }
        }
    }

    #[test]
    fn gcra_agrees_with_the_exact_twin(
        rate in any_rate(),
        capacity in any_capacity(),
        over in any::<bool>(),
        start in prop_oneof![0..SECOND, any::<u64>()],
        steps in any_steps(40),
    ) {
        let gcra = Gcra { rate, burst: capacity - 1 };
        let mut twin = Twin::new(rate, capacity);
        let (mut state, mut clock, mut has) = (Vec::new(), start, capacity);
        for step in steps {
            clock = clock.saturating_add(step.gap(rate));
            let attempt =
                Attempt { wait: step.wait(rate), ..step.ask(has, capacity, over) };
            if step.act == 0 {
                gcra.refund(&mut state, at(clock), attempt.cost);
                twin.refund(clock, attempt.cost);
                continue;
            }
            let decision = gcra.take(&mut state, at(clock), &attempt);
            twin.check(clock, &attempt, &decision);
            prop_assert!(state.len() <= 16);
            has = decision.left();
            if decision.reset == 0 {
                state.clear();
            }
        }
    }
}
