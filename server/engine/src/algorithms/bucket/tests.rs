//! Tests of the token bucket: known results, edge cases, and properties against exact twins.

mod warmup;

use proptest::prelude::*;
use protocol::{Algorithm, COUNT_MAX, Policy};

use super::*;
use crate::algorithms::FastPath;
use crate::algorithms::count::tests::{SECOND, at, peek, take};
use crate::algorithms::tests::twin::Twin;
use crate::algorithms::tests::{any_capacity, any_rate, any_steps, any_warm, line, take_both};

const MINUTE: u64 = 60 * SECOND;

fn bucket(count: u64, period: u64) -> Bucket {
    let rate = Rate { count, period };
    Bucket { rate, capacity: count, init: count, debt: 0, warm: None, interval: false }
}

fn policy(bucket: &Bucket) -> Policy {
    let Bucket { rate, capacity, init, debt, warm, interval } = *bucket;
    let algorithm = Algorithm::Bucket { rate, capacity, init, debt, warm, interval };
    Policy { algorithm, over: false, shadow: false }
}

/// A bucket and the state of one of its keys.
struct Key(Bucket, Vec<u8>);

impl Key {
    fn new(bucket: Bucket) -> Self {
        Self(bucket, Vec::new())
    }

    fn take(&mut self, nanos: u64, cost: u64) -> Decision {
        self.ask(nanos, &take(cost))
    }

    fn ask(&mut self, nanos: u64, attempt: &Attempt) -> Decision {
        take_both(&policy(&self.0), &mut self.1, at(nanos), attempt)
    }

    fn line(&mut self, nanos: u64, cost: u64) -> String {
        line(&self.take(nanos, cost))
    }

    fn passes(&mut self, nanos: u64, cost: u64) -> bool {
        self.take(nanos, cost).verdict == Verdict::Allow
    }

    fn remaining(&mut self, nanos: u64) -> i64 {
        self.ask(nanos, &peek(0)).remaining
    }
}

#[test]
fn idle_time_refills_up_to_the_capacity() {
    let mut key = Key::new(bucket(100, MINUTE));
    assert!(key.passes(SECOND, 100));
    assert_eq!(key.remaining(SECOND), 0);
    assert_eq!(key.remaining(SECOND + MINUTE / 2), 50);
    assert_eq!(key.remaining(SECOND + MINUTE), 100);
    assert_eq!(key.remaining(SECOND + 60 * MINUTE), 100);
    assert!(key.passes(SECOND + 60 * MINUTE, 100));
    assert!(!key.passes(SECOND + 60 * MINUTE, 1));
}

#[test]
fn a_debt_of_eight_shuts_for_exactly_two_seconds() {
    let mut key = Key::new(Bucket { debt: 8, ..bucket(4, SECOND) });
    let decision = key.take(0, 12);
    assert_eq!((decision.verdict, decision.used, decision.remaining), (Verdict::Allow, 12, -8));
    assert_eq!(line(&key.take(0, 1)), "DENY 4 -8 2000 3000");
    assert!(!key.passes(2 * SECOND - 1, 0));
    assert!(!key.passes(2 * SECOND - 1, 1));
    assert!(key.passes(2 * SECOND, 1));
    // Thirteen exceed capacity and debt together, twelve do not.
    assert_eq!(key.take(2 * SECOND, 13).retry, None);
    assert_ne!(key.take(2 * SECOND, 12).retry, None);
}

#[test]
fn a_part_is_granted_from_tokens_never_from_debt() {
    let mut key = Key::new(Bucket { debt: 8, ..bucket(4, SECOND) });
    let decision = key.ask(0, &Attempt { part: true, ..take(13) });
    assert_eq!((decision.verdict, decision.granted), (Verdict::Part, 4));
}

#[test]
fn the_last_token_is_given_and_not_one_more() {
    let mut key = Key::new(bucket(3, MINUTE));
    assert!(key.passes(0, 2));
    assert_eq!(key.line(0, 1), "ALLOW 3 0 0 60000");
    assert_eq!(key.line(0, 1), "DENY 3 0 20000 60000");
}

#[test]
fn of_64_clients_one_gets_the_one_token() {
    let mut key = Key::new(bucket(1, MINUTE));
    assert_eq!((0..64).filter(|_| key.passes(SECOND, 1)).count(), 1);
}

#[test]
fn after_150_kibibytes_at_once_not_a_byte_more() {
    let mut key =
        Key::new(Bucket { capacity: 150 << 10, init: 150 << 10, ..bucket(50 << 10, SECOND) });
    assert!(key.passes(0, 150 << 10));
    assert!(!key.passes(0, 1));
}

#[test]
fn sixty_in_sixty_seconds_pass_at_once() {
    let mut key = Key::new(bucket(60, MINUTE));
    assert!((0..60).all(|_| key.passes(0, 1)));
    assert!(!key.passes(0, 1));
}

#[test]
fn seven_a_minute_admit_exactly_10087_in_a_day() {
    let mut key = Key::new(bucket(7, MINUTE));
    let admitted = (0..=86_400 * 4).filter(|quarter| key.passes(quarter * SECOND / 4, 1)).count();
    assert_eq!(admitted, 7 + 7 * 1440);
}

#[test]
fn the_protocols_lines_come_out() {
    let wide = Bucket { capacity: 200, init: 200, ..bucket(100, MINUTE) };
    let mut key = Key::new(wide);
    assert_eq!(key.line(SECOND, 1), "ALLOW 200 199 0 600");
    assert_eq!(key.line(SECOND, 500), "DENY 200 199 -1 600");
    let decision = key.ask(SECOND, &Attempt { part: true, ..take(250) });
    assert_eq!(line(&decision), "PART 200 0 30600 120000");
    assert_eq!(decision.granted, 199);

    let mut key = Key::new(bucket(100, MINUTE));
    let looked = key.take(SECOND, 0);
    assert_eq!((line(&looked).as_str(), looked.changed), ("ALLOW 100 100 0 0", false));
    let taken = key.take(SECOND, 3);
    assert_eq!((line(&taken).as_str(), taken.changed), ("ALLOW 100 97 0 1800", true));
}

#[test]
fn hammering_a_refused_key_does_not_refill_it() {
    let mut key = Key::new(bucket(1, SECOND));
    assert!(key.passes(0, 1));
    for nanos in (1..SECOND).step_by(1_000_003) {
        let decision = key.take(nanos, 1);
        assert_eq!((decision.verdict, decision.changed), (Verdict::Deny, false));
    }
    assert!(key.passes(SECOND, 1));
}

#[test]
fn the_wall_clock_does_not_matter() {
    let mut key = Key::new(bucket(1, SECOND));
    key.take(0, 1);
    for unix_ms in [0, 1, u64::MAX] {
        let now = Now { unix_ms, ..at(SECOND - 1) };
        assert_eq!(key.0.take(&mut key.1, now, &take(1)).verdict, Verdict::Deny);
    }
}

#[test]
fn a_clock_that_goes_back_gives_nothing_twice() {
    let mut key = Key::new(bucket(10, 10 * SECOND));
    assert!(key.passes(100 * SECOND, 10));
    assert!(key.passes(105 * SECOND, 5));
    for back in [0, 1, 50 * SECOND, 104 * SECOND] {
        // The time by which the clock went back counts as owed until it has passed again.
        assert!(key.remaining(back) <= 0);
        assert!(!key.passes(back, 1));
    }
    assert!(!key.passes(106 * SECOND - 1, 1));
    assert!(key.passes(106 * SECOND, 1));
}

#[test]
fn an_empty_new_bucket_fills_from_the_first_attempt() {
    for interval in [false, true] {
        let mut key = Key::new(Bucket { init: 0, interval, ..bucket(5, SECOND) });
        assert_eq!(
            line(&key.ask(0, &peek(1))),
            if interval { "DENY 5 0 1000 1000" } else { "DENY 5 0 200 1000" }
        );
        assert!(key.1.is_empty());
        let decision = key.take(0, 1);
        assert_eq!((decision.verdict, decision.changed), (Verdict::Deny, true));
        assert!(key.passes(SECOND, 5));
        assert_eq!(key.1.len(), if interval { 16 } else { 8 });
    }
}

#[test]
fn periods_count_from_the_take_that_found_it_full() {
    let mut key = Key::new(Bucket { interval: true, ..bucket(10, MINUTE) });
    assert_eq!(key.line(SECOND, 10), "ALLOW 10 0 0 60000");
    assert_eq!(key.line(31 * SECOND, 1), "DENY 10 0 30000 30000");
    assert!(!key.passes(61 * SECOND - 1, 1));
    assert_eq!(key.line(61 * SECOND, 4), "ALLOW 10 6 0 60000");
    // Full since 121 s: the next period begins with this take.
    assert_eq!(key.line(150 * SECOND, 10), "ALLOW 10 0 0 60000");
    assert_eq!(key.1.len(), 16);
}

#[test]
fn debt_of_over_is_counted_to_the_last_unit() {
    for interval in [false, true] {
        let mut key = Key::new(Bucket { interval, ..bucket(10, 10 * SECOND) });
        let over = |cost| Attempt { over: true, ..take(cost) };
        assert_eq!(key.ask(0, &over(10)).used, 10);
        let decision = key.ask(0, &over(3));
        assert_eq!((decision.verdict, decision.used, decision.remaining), (Verdict::Deny, 13, -3));
        assert!(decision.counted);
        assert_eq!(key.ask(0, &over(17)).used, 30);
        let retry = if interval { 30 } else { 21 };
        assert_eq!(key.take(0, 1).retry, Some(retry * SECOND));
        for _ in 0..100 {
            key.ask(0, &over(u64::MAX));
        }
        assert_eq!(key.ask(0, &over(1)).used, COUNT_MAX);
        assert!(!key.ask(0, &over(1)).changed);
    }
}

#[test]
fn a_refund_stops_at_zero_and_empties_the_state() {
    for interval in [false, true] {
        let mut key = Key::new(Bucket { interval, ..bucket(10, MINUTE) });
        key.take(SECOND, 7);
        key.0.refund(&mut key.1, at(SECOND), 3);
        assert_eq!(key.remaining(SECOND), 6);
        key.0.refund(&mut key.1, at(SECOND), u64::MAX);
        assert!(key.1.is_empty());
    }
}

#[test]
fn usage_set_is_usage_read() {
    for interval in [false, true] {
        let mut key = Key::new(Bucket { interval, ..bucket(10, MINUTE) });
        for used in [4, 10, 9, 0] {
            key.0.set_used(&mut key.1, at(SECOND), used);
            assert_eq!(key.ask(SECOND, &peek(0)).used, used);
        }
        assert!(key.1.is_empty());
        key.0.set_used(&mut key.1, at(SECOND), u64::MAX);
        assert_eq!(key.ask(SECOND, &peek(0)).used, 10);
    }
}

#[test]
fn tokens_stay_up_to_a_new_capacity_and_debt_stays() {
    let (small, large) = (bucket(5, MINUTE), bucket(100, SECOND));
    let mut key = Key::new(large);
    key.take(SECOND, 1);
    small.adopt(&large, &mut key.1, at(SECOND));
    key.0 = small;
    // A full bucket has the empty state of a new key.
    assert!(key.1.is_empty());
    key.take(SECOND, 3);
    large.adopt(&small, &mut key.1, at(SECOND));
    key.0 = large;
    assert_eq!(key.line(SECOND, 0), "ALLOW 100 2 0 980");

    let lending = Bucket { debt: 8, ..bucket(4, SECOND) };
    let mut key = Key::new(lending);
    key.take(SECOND, 12);
    let slow = bucket(2, SECOND);
    slow.adopt(&lending, &mut key.1, at(SECOND));
    key.0 = slow;
    assert_eq!(key.line(SECOND, 1), "DENY 2 -8 4500 5000");
}

#[test]
fn tokens_stay_when_interval_is_added_or_removed() {
    let steady = bucket(10, MINUTE);
    let stepping = Bucket { interval: true, ..steady };
    let mut key = Key::new(steady);
    key.take(0, 10);
    // Two and a half tokens are rounded down to two.
    stepping.adopt(&steady, &mut key.1, at(15 * SECOND));
    key.0 = stepping;
    assert_eq!(key.line(15 * SECOND, 0), "ALLOW 10 2 0 60000");
    steady.adopt(&stepping, &mut key.1, at(15 * SECOND));
    key.0 = steady;
    assert_eq!(key.line(15 * SECOND, 0), "ALLOW 10 2 0 48000");
}

#[test]
fn a_state_of_another_length_is_a_key_never_seen() {
    for length in [1, 7, 9, 15, 17, 31, 32] {
        let mut key = Key::new(bucket(10, MINUTE));
        key.1 = vec![0xff; length];
        assert_eq!(key.line(SECOND, 1), "ALLOW 10 9 0 6000");
        assert_eq!(key.1.len(), 8);
    }
}

#[test]
fn a_tat_goes_on_where_it_no_longer_fits_eight_bytes() {
    // Ten units a minute tick ten times a nanosecond.
    let end = u64::MAX / 10;
    let mut key = Key::new(bucket(10, MINUTE));
    assert_eq!(key.line(end - 30 * SECOND, 5), "ALLOW 10 5 0 30000");
    assert_eq!(key.1.len(), 8);
    assert_eq!(key.line(end - 30 * SECOND, 1), "ALLOW 10 4 0 36000");
    assert_eq!(key.1.len(), 16);
    assert_eq!(key.line(end + 6 * SECOND, 4), "ALLOW 10 6 0 24000");
    assert_eq!(key.line(end + 6 * SECOND, 7), "DENY 10 6 6000 24000");
}

#[test]
fn a_restored_state_goes_on_where_it_was() {
    for interval in [false, true] {
        for origin in [3 * MINUTE, 200 * MINUTE] {
            let mut key =
                Key::new(Bucket { capacity: 90, init: 90, interval, ..bucket(10, MINUTE) });
            key.take(origin, 90);
            // Stopped two and a half minutes later; that instant is the new origin.
            key.0.shift(&mut key.1, -i128::from(origin + 5 * MINUTE / 2));
            assert_eq!(key.remaining(0), if interval { 20 } else { 25 });
            assert_eq!(key.remaining(MINUTE / 2), 30);
            key.0.shift(&mut key.1, i128::from(MINUTE));
            assert_eq!(key.remaining(3 * MINUTE / 2), 30);
        }
    }
}

fn any_bucket() -> impl Strategy<Value = Bucket> {
    (any_rate(), any_capacity(), any::<u64>(), prop_oneof![Just(0), any_capacity()], any::<bool>())
        .prop_map(|(rate, capacity, init, debt, interval)| {
            let init = if init % 2 == 0 { capacity } else { init % (capacity + 1) };
            Bucket { rate, capacity, init, debt, warm: None, interval }
        })
}

proptest! {
    /// A cost passes after exactly `retry` and not earlier, idle state can be dropped, a cost is
    /// allowed exactly if the usage stays within the limit, and every other field of a decision
    /// agrees.
    #[test]
    fn a_bucket_agrees_with_the_exact_twin(
        bucket in any_bucket(),
        over in any::<bool>(),
        start in prop_oneof![0..SECOND, any::<u64>()],
        steps in any_steps(40),
    ) {
        let mut twin = Twin::new(bucket.rate, bucket.capacity);
        (twin.init, twin.debt, twin.interval) = (bucket.init, bucket.debt, bucket.interval);
        let (mut state, mut clock, mut has) = (Vec::new(), start, bucket.init);
        for step in steps {
            clock = clock.saturating_add(step.gap(bucket.rate));
            let attempt = Attempt {
                wait: step.wait(bucket.rate),
                ..step.ask(has, bucket.capacity + bucket.debt, over)
            };
            match step.act {
                0 => {
                    bucket.refund(&mut state, at(clock), attempt.cost);
                    twin.refund(clock, attempt.cost);
                }
                1 => {
                    bucket.set_used(&mut state, at(clock), attempt.cost);
                    twin.set_used(clock, attempt.cost);
                }
                _ => {
                    let decision = bucket.take(&mut state, at(clock), &attempt);
                    twin.check(clock, &attempt, &decision);
                    has = decision.left();
                    let within = decision.used <= bucket.capacity;
                    match decision.verdict {
                        Verdict::Allow => prop_assert!(within || bucket.debt > 0),
                        Verdict::Wait => prop_assert!(attempt.wait > Some(0)),
                        _ => prop_assert!(attempt.peek || decision.used + attempt.cost > bucket.capacity),
                    }
                    if decision.reset == 0 && bucket.begins_full() {
                        state.clear();
                    }
                }
            }
            prop_assert!(state.len() <= 16);
        }
    }

    /// The bound also holds if the clock goes back, attempts are refused, and idle states are
    /// dropped.
    #[test]
    fn no_span_admits_more_than_capacity_and_refill(
        bucket in any_bucket(),
        over in any::<bool>(),
        start in any::<u64>(),
        steps in any_steps(60),
        backwards in any::<bool>(),
    ) {
        let (mut state, mut clock, mut has) = (Vec::new(), start, bucket.init);
        let mut admitted: Vec<(u64, u128)> = Vec::new();
        for step in steps {
            let gap = step.gap(bucket.rate);
            clock = if backwards && step.act < 4 {
                clock.saturating_sub(gap)
            } else {
                clock.saturating_add(gap)
            };
            let attempt = step.ask(has, bucket.capacity + bucket.debt, over);
            let decision = bucket.take(&mut state, at(clock), &attempt);
            has = decision.left();
            // Until units are taken no state stores the time.
            if !attempt.peek && (decision.granted > 0 || !admitted.is_empty()) {
                admitted.push((clock, decision.granted.into()));
            }
            if decision.reset == 0 && bucket.begins_full() && !backwards {
                state.clear();
            }
        }
        let Rate { count, period } = bucket.rate;
        for from in 0..admitted.len() {
            // With a clock that goes back and forth only the span from the first take on has the
            // bound.
            if backwards && from > 0 {
                break;
            }
            let (began, mut latest, mut sum) = (admitted[from].0, admitted[from].0, 0);
            for &(instant, units) in &admitted[from..] {
                latest = latest.max(instant);
                sum += units;
                let span = u128::from(latest - began);
                let max = u128::from(bucket.capacity + bucket.debt);
                if bucket.interval {
                    let periods = span / u128::from(period) + 1;
                    prop_assert!(sum <= max + u128::from(count) * periods);
                } else {
                    let refilled = u128::from(count) * span;
                    prop_assert!(sum * u128::from(period) <= max * u128::from(period) + refilled);
                }
            }
        }
    }

    /// A restore changes nothing: the bucket behaves as if the clock had always had the new origin.
    #[test]
    fn a_shift_of_state_and_clock_changes_no_decision(
        mut bucket in any_bucket(),
        warm in any_warm(),
        steps in any_steps(20),
        by in 0..u64::MAX / 4,
    ) {
        bucket.warm = warm;
        let (mut state, mut clock) = (Vec::new(), u64::MAX / 4);
        let mut shifted = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            clock += step.gap(bucket.rate) % (u64::MAX / 128);
            if index == steps.len() / 2 {
                shifted.clone_from(&state);
                bucket.shift(&mut shifted, -i128::from(by.min(clock)));
            }
            let attempt = step.ask(bucket.capacity, bucket.capacity, false);
            let decision = bucket.take(&mut state, at(clock), &attempt);
            if index >= steps.len() / 2 {
                let moved = clock - by.min(clock);
                prop_assert_eq!(decision, bucket.take(&mut shifted, at(moved), &attempt));
            }
        }
    }
}

proptest! {
    #[test]
    fn the_fast_path_agrees_with_the_general_path(
        rate in any_rate(),
        capacity in any_capacity(),
        debt in prop_oneof![Just(0), any_capacity()],
        steps in prop::collection::vec(
            (0_u64..1 << 62, 0_u64..20, any::<[bool; 5]>(), any::<u128>()), 1..40,
        ),
    ) {
        let bucket = Bucket { rate, capacity, init: capacity, debt, warm: None, interval: false };
        let policy = policy(&bucket);
        let plain = PlainBucket::of(&policy).expect("a plain one");
        let (mut state, mut nanos) = (Vec::new(), 1);
        for (jump, cost, [part, peek, over, odd, waits], garbage) in steps {
            nanos = if jump % 5 == 0 { jump } else { nanos + jump % 3_000_000_000 };
            let cost = if jump % 7 == 0 { jump % (COUNT_MAX + 1) } else { cost };
            if odd && jump % 11 == 0 {
                // A state that is full before now, soon, or in an age.
                let bytes = if jump % 2 == 0 { 16 } else { 8 };
                state = (garbage >> (jump % 75)).to_le_bytes()[..bytes].to_vec();
            }
            let wait = waits.then_some(jump % 2_000_000_000);
            let attempt = Attempt { part, peek, over, wait, ..take(cost) };
            if plain.take(&state, at(nanos), &attempt).is_none() {
                // No common case takes the general path.
                let full_at = tat::decode(&state).unwrap_or(0);
                let ticks = tat::ticks(rate, at(nanos));
                let span = tat::cost(rate, cost.max(capacity + debt));
                let is_large = full_at.max(ticks) + span > u64::MAX.into();
                let owed = tat::owed_max(rate);
                let is_odd = state.len() == 16 || full_at > ticks + owed;
                let general = bucket.take(&mut state.clone(), at(nanos), &attempt);
                let may_wait = waits && general.verdict != Verdict::Allow;
                prop_assert!(is_large || is_odd || may_wait);
            }
            take_both(&policy, &mut state, at(nanos), &attempt);
        }
    }
}
