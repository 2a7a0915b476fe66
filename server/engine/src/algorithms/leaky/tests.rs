//! Tests of the leaky bucket as meter and as queue: known results, nginx's, and the exact twin.

use proptest::prelude::*;

use super::*;
use crate::algorithms::count::tests::{SECOND, at, peek, take};
use crate::algorithms::tests::twin::Twin;
use crate::algorithms::tests::{any_capacity, any_rate, any_steps, line};

const EACH_SECOND: Rate = Rate { count: 1, period: SECOND };
const QUEUE: Leaky = Leaky { rate: EACH_SECOND, capacity: 60, wait: Some(60 * SECOND) };

#[test]
fn sixty_at_once_wait_0_to_59_seconds() {
    let mut state = Vec::new();
    for second in 0..60 {
        let decision = QUEUE.take(&mut state, at(SECOND), &take(1));
        let verdict = if second == 0 { Verdict::Allow } else { Verdict::Wait };
        assert_eq!((decision.verdict, decision.retry), (verdict, Some(second * SECOND)));
        assert_eq!(decision.used, second + 1);
    }
    assert_eq!(line(&QUEUE.take(&mut state, at(SECOND), &take(1))), "DENY 60 0 1000 60000");
    assert_eq!(state.len(), 8);
}

#[test]
fn three_takers_get_the_documented_replies() {
    let mut state = Vec::new();
    let lines = [(); 3].map(|()| line(&QUEUE.take(&mut state, at(7), &take(1))));
    assert_eq!(lines, ["ALLOW 60 59 0 1000", "WAIT 60 58 1000 2000", "WAIT 60 57 2000 3000"]);
}

#[test]
fn a_place_beyond_the_policys_wait_is_refused() {
    let queue = Leaky { wait: Some(2 * SECOND), ..QUEUE };
    let mut state = Vec::new();
    for _ in 0..3 {
        assert_ne!(queue.take(&mut state, at(0), &take(1)).verdict, Verdict::Deny);
    }
    for _ in 0..100 {
        assert_eq!(line(&queue.take(&mut state, at(0), &take(1))), "DENY 60 0 1000 3000");
    }
    assert_eq!(queue.take(&mut state, at(SECOND - 1), &take(1)).verdict, Verdict::Deny);
    let decision = queue.take(&mut state, at(SECOND), &take(1));
    assert_eq!((decision.verdict, decision.retry), (Verdict::Wait, Some(2 * SECOND)));
}

#[test]
fn the_shorter_of_caller_and_policy_wait_holds() {
    let mut state = Vec::new();
    QUEUE.take(&mut state, at(0), &take(5));
    let waiting = |wait| Attempt { wait: Some(wait), ..take(1) };
    let refused = QUEUE.take(&mut state, at(0), &waiting(5 * SECOND - 1));
    assert_eq!((refused.verdict, refused.retry, refused.changed), (Verdict::Deny, Some(1), false));
    assert_eq!(QUEUE.take(&mut state, at(0), &waiting(5 * SECOND)).verdict, Verdict::Wait);
    let queue = Leaky { wait: Some(SECOND), ..QUEUE };
    assert_eq!(queue.take(&mut state, at(0), &waiting(u64::MAX)).verdict, Verdict::Deny);
    // A meter does not become a queue because the caller accepts a wait.
    let meter = Leaky { wait: None, capacity: 6, ..QUEUE };
    assert_eq!(meter.take(&mut state, at(0), &waiting(u64::MAX)).verdict, Verdict::Deny);
}

#[test]
fn a_refund_brings_the_queue_forward() {
    let mut state = Vec::new();
    QUEUE.take(&mut state, at(0), &take(5));
    QUEUE.refund(&mut state, at(0), 3);
    assert_eq!(QUEUE.take(&mut state, at(0), &take(1)).retry, Some(2 * SECOND));
    QUEUE.refund(&mut state, at(0), 100);
    assert!(state.is_empty());
}

#[test]
fn nginx_with_a_burst_of_five_holds_six() {
    // `rate=1r/s`, `burst=5 nodelay`: six pass at once; `burst=5`: the last waits five seconds.
    let meter = Leaky { rate: EACH_SECOND, capacity: 6, wait: None };
    let queue = Leaky { wait: Some(5 * SECOND), ..meter };
    let (mut metered, mut queued) = (Vec::new(), Vec::new());
    for place in 0..6 {
        assert_eq!(meter.take(&mut metered, at(0), &take(1)).verdict, Verdict::Allow);
        assert_eq!(queue.take(&mut queued, at(0), &take(1)).retry, Some(place * SECOND));
    }
    assert_eq!(line(&meter.take(&mut metered, at(0), &take(1))), "DENY 6 0 1000 6000");
    assert_eq!(line(&queue.take(&mut queued, at(0), &take(1))), "DENY 6 0 1000 6000");
}

#[test]
fn a_queue_grants_a_part_only_if_it_is_empty() {
    let part = Attempt { part: true, ..take(70) };
    let meter = Leaky { wait: None, ..QUEUE };
    let mut state = Vec::new();
    meter.take(&mut state, at(0), &take(50));
    let decision = meter.take(&mut state, at(0), &part);
    assert_eq!((decision.verdict, decision.granted), (Verdict::Part, 10));
    assert_eq!(decision.retry, Some(60 * SECOND));

    let mut state = Vec::new();
    let decision = QUEUE.take(&mut state, at(0), &part);
    assert_eq!((decision.verdict, decision.granted), (Verdict::Part, 60));
    assert_eq!(QUEUE.take(&mut state, at(SECOND), &part).verdict, Verdict::Deny);
}

#[test]
fn the_level_stays_when_the_limit_changes() {
    let mut state = Vec::new();
    QUEUE.take(&mut state, at(0), &take(50));
    let fast = Leaky { rate: Rate { count: 10, period: SECOND }, capacity: 20, wait: None };
    fast.adopt(&QUEUE, &mut state, at(0));
    assert_eq!(line(&fast.take(&mut state, at(0), &peek(0))), "ALLOW 20 0 0 2000");
    QUEUE.adopt(&fast, &mut state, at(0));
    assert_eq!(QUEUE.take(&mut state, at(0), &peek(0)).used, 20);
}

#[test]
fn a_restored_queue_goes_on_where_it_was() {
    let mut state = Vec::new();
    QUEUE.take(&mut state, at(100 * SECOND), &take(9));
    QUEUE.shift(&mut state, -100 * i128::from(SECOND));
    assert_eq!(QUEUE.take(&mut state, at(4 * SECOND), &peek(0)).used, 5);
    QUEUE.shift(&mut state, i128::MIN);
    assert_eq!(QUEUE.take(&mut state, at(0), &peek(0)).used, 0);
}

proptest! {
    #[test]
    fn a_leaky_bucket_agrees_with_the_exact_twin(
        rate in any_rate(),
        capacity in any_capacity(),
        (wait, over) in (prop::option::of(prop_oneof![0..100_u64, any::<u64>()]), any::<bool>()),
        start in prop_oneof![0..SECOND, any::<u64>()],
        steps in any_steps(40),
    ) {
        let leaky = Leaky { rate, capacity, wait };
        let mut twin = Twin::new(rate, capacity);
        twin.queue = wait;
        let (mut state, mut clock, mut has) = (Vec::new(), start, capacity);
        for step in steps {
            clock = clock.saturating_add(step.gap(rate));
            let attempt = step.ask(has, capacity, over);
            match step.act {
                0 => {
                    leaky.refund(&mut state, at(clock), attempt.cost);
                    twin.refund(clock, attempt.cost);
                }
                1 => {
                    leaky.set_used(&mut state, at(clock), attempt.cost);
                    twin.set_used(clock, attempt.cost);
                }
                _ => {
                    let decision = leaky.take(&mut state, at(clock), &attempt);
                    twin.check(clock, &attempt, &decision);
                    has = decision.left();
                    // An idle state can be dropped.
                    if decision.reset == 0 {
                        state.clear();
                    }
                }
            }
            prop_assert!(state.len() <= 16);
        }
    }

    /// If each take waits as decided, the units leave the queue at the rate.
    #[test]
    fn a_queue_shapes(
        rate in any_rate(),
        capacity in 1..=40_u64,
        steps in any_steps(40),
    ) {
        let queue = Leaky { rate, capacity, wait: Some(u64::MAX) };
        let (mut state, mut clock) = (Vec::new(), 0_u64);
        let mut before: Option<(u64, u64)> = None;
        for step in steps {
            clock = clock.saturating_add(step.gap(rate));
            let decision = queue.take(&mut state, at(clock), &take(step.cost(1, 3).clamp(1, 3)));
            if decision.granted == 0 {
                continue;
            }
            let goes = u128::from(clock) + u128::from(decision.retry.expect("a wait"));
            let goes = u64::try_from(goes).unwrap_or(u64::MAX);
            if let Some((went, units)) = before
                && goes < u64::MAX
            {
                let apart = u128::from(units) * u128::from(rate.period);
                // Each wait is rounded up to a nanosecond by itself.
                prop_assert!(u128::from(goes - went + 1) * u128::from(rate.count) > apart);
            }
            before = Some((goes, decision.granted));
        }
    }
}
