//! Tests of settlements against a slow exact twin, which counts every take at its true cost from
//! the beginning.

use proptest::prelude::*;
use protocol::{Algorithm, CalendarUnit, Oldest, Policy, Window};

use super::unfilled_tests::{KEY, engine, hash, policy};
use super::*;
use crate::algorithms::Verdict;
use crate::commands::lease::{LeaseParams, LeaseResult};

/// The first instant, at which the slices of all windows below begin.
const BEGIN_MS: u64 = 3_600_000;

const POLICIES: [&str; 14] = [
    "bucket:60/60s",
    "bucket:7/9s,debt=20",
    "bucket:40/60s,init=10",
    "gcra:50/60s,burst=40",
    "leaky:70/60s",
    "fixed:30/10s,align=calendar",
    "sliding:40/10s",
    "sliding:40/10s,strict",
    "sliding:60/12s,slices=3",
    "sliding:60/12s,slices=3,flat",
    "log:50/9s",
    "bucket:70/60s;fixed:200/30s,align=calendar",
    "fixed:50/7s,align=calendar;sliding:90/20s;log:70/15s;bucket:100/10s",
    "log:50/9s;gcra:120/70s,burst=30",
];

/// A step of a run: the milliseconds before it, an act, and two numbers.
#[derive(Debug, Clone, Copy)]
struct Step {
    pause_ms: u64,
    act: u8,
    cost: u64,
    pick: usize,
}

fn any_step() -> impl Strategy<Value = Step> {
    let pause_ms = prop_oneof![4 => Just(0_u64), 4 => 1..4000_u64, 2 => 4000..12_000_u64, 1 => 12_000..90_000_u64];
    (pause_ms, 0..10_u8, 0..30_u64, 0..8_usize).prop_map(|(pause_ms, act, cost, pick)| Step {
        pause_ms,
        act,
        cost,
        pick,
    })
}

/// Units that were taken at an instant.
#[derive(Debug, Clone, Copy)]
struct Taken {
    ms: u64,
    units: u64,
    lease: u64,
}

/// The usage under one policy at `now_ms`, by all takes in their order. The first attempt was at
/// `first_ms`.
fn used(policy: &Policy, takes: &[Taken], (first_ms, now_ms): (u64, u64)) -> u64 {
    let units_since = |from_ms: u64| -> u64 {
        takes.iter().filter(|take| take.ms >= from_ms).map(|take| take.units).sum()
    };
    match policy.algorithm {
        Algorithm::Bucket { .. } | Algorithm::Gcra { .. } | Algorithm::Leaky { .. } => {
            let (rate, first) = match policy.algorithm {
                Algorithm::Bucket { rate, capacity, init, .. } => (rate, capacity - init),
                Algorithm::Gcra { rate, .. } | Algorithm::Leaky { rate, .. } => (rate, 0),
                _ => unreachable!(),
            };
            // In ticks: the nanoseconds that refill a unit, times the units of a period.
            let (cost, refilled) = (
                |units: u64| u128::from(units) * u128::from(rate.period),
                |ms: u64| u128::from(ms) * 1_000_000 * u128::from(rate.count),
            );
            let (mut used, mut at_ms) = (cost(first), first_ms);
            for take in takes {
                used = used.saturating_sub(refilled(take.ms - at_ms)) + cost(take.units);
                at_ms = take.ms;
            }
            let ticks = used.saturating_sub(refilled(now_ms - at_ms));
            ticks.div_ceil(rate.period.into()) as u64
        }
        Algorithm::Fixed {
            window: Window::Calendar { unit: CalendarUnit::Nanos(nanos), .. },
            ..
        } => {
            let since_begin_ms = Now::at_ms(now_ms).unix_ms % (nanos / 1_000_000);
            units_since(now_ms - since_begin_ms)
        }
        Algorithm::Sliding { rate, slices, oldest } => {
            let slice_ms = rate.period / 1_000_000 / u64::from(slices);
            let newest_ms = now_ms / slice_ms * slice_ms;
            let whole_ms = newest_ms - (u64::from(slices) - 1) * slice_ms;
            let whole = units_since(whole_ms);
            let before = units_since(whole_ms - slice_ms) - whole;
            let weighted = match oldest {
                Oldest::Whole => before,
                Oldest::Dropped => 0,
                Oldest::Weighted => (before * (newest_ms + slice_ms - now_ms)).div_ceil(slice_ms),
            };
            whole + weighted
        }
        Algorithm::Log { rate, .. } => units_since(now_ms + 1 - rate.period / 1_000_000),
        ref other => panic!("no twin of {other:?}"),
    }
}

fn usage(engine: &mut Engine, now: Now, policy: &Policy) -> Vec<u64> {
    let at = engine.at(now, hash(), KEY);
    let loaded = engine.load(at, Some(policy.into()));
    let used = policy.each().enumerate().map(|(place, one)| {
        let state = match policy.algorithm {
            Algorithm::Several(list) => {
                algorithms::part_of_several(list, &loaded.state, place).to_vec()
            }
            _ => loaded.state.clone(),
        };
        let peek = Attempt { peek: true, hash: hash(), ..Attempt::default() };
        algorithms::take(&one, &mut state.clone(), now, &peek).used
    });
    used.collect()
}

fn run(text: &str, steps: &[Step]) -> Result<(), TestCaseError> {
    let policy = policy(text);
    let mut engine = engine();
    let mut takes: Vec<Taken> = Vec::new();
    let first_ms = BEGIN_MS + steps.first().map_or(0, |step| step.pause_ms);
    let mut open: Vec<(u64, u64)> = Vec::new();
    let mut now_ms = BEGIN_MS;
    for step in steps {
        now_ms += step.pause_ms;
        let now = Now::at_ms(now_ms);
        if step.act < 7 || open.is_empty() {
            let hold = (step.act % 2 == 0).then_some(3_600_000_000_000);
            let take = TakeParams { cost: step.cost, hold, ..TakeParams::default() };
            let result = engine.take(now, hash(), KEY, Some((&policy).into()), &take);
            let TakeResult::Decided(facts) = result else { panic!("{result:?}") };
            if facts.decision.verdict == Verdict::Allow && step.cost > 0 {
                let lease = facts.decision.lease.unwrap_or(0);
                takes.push(Taken { ms: now_ms, units: step.cost, lease });
                if hold.is_some() {
                    open.push((lease, step.cost));
                }
            }
        } else {
            let (lease, units) = open.remove(step.pick % open.len());
            let actual = step.cost;
            let result = engine.settle(now, hash(), KEY, lease, actual);
            prop_assert!(matches!(result, TakeResult::Decided(_)), "{:?}", result);
            let take = takes.iter_mut().find(|take| take.lease == lease).expect("it was taken");
            take.units = take.units.min(actual);
            if actual > units {
                takes.push(Taken { ms: now_ms, units: actual - units, lease: 0 });
            }
        }
        let expected: Vec<u64> =
            policy.each().map(|policy| used(&policy, &takes, (first_ms, now_ms))).collect();
        prop_assert_eq!(usage(&mut engine, now, &policy), expected, "{} at {}", text, now_ms);
    }
    Ok(())
}

/// Takes `cost` as a hold of an hour at `ms`, and returns its lease.
fn hold(engine: &mut Engine, ms: u64, policy: &Policy, cost: u64) -> u64 {
    let take = TakeParams { cost, hold: Some(3_600_000_000_000), ..TakeParams::default() };
    match engine.take(Now::at_ms(ms), hash(), KEY, Some(policy.into()), &take) {
        TakeResult::Decided(facts) => facts.decision.lease.expect("it is a hold"),
        other => panic!("{other:?}"),
    }
}

fn settle(engine: &mut Engine, ms: u64, lease: u64, actual: u64) {
    let result = engine.settle(Now::at_ms(ms), hash(), KEY, lease, actual);
    assert!(matches!(result, TakeResult::Decided(_)), "{result:?}");
}

#[test]
fn window_that_is_over_gives_nothing_back() {
    for text in ["fixed:10/10s", "fixed:10/10s,align=calendar", "sliding:10/10s,flat"] {
        let (policy, mut engine) = (policy(text), engine());
        let lease = hold(&mut engine, BEGIN_MS, &policy, 10);
        hold(&mut engine, BEGIN_MS + 10_000, &policy, 10);
        settle(&mut engine, BEGIN_MS + 11_000, lease, 0);
        assert_eq!(usage(&mut engine, Now::at_ms(BEGIN_MS + 11_000), &policy), [10], "{text}");
    }
}

#[test]
fn copy_and_snapshot_keep_what_may_be_given_back() {
    // A process that started an hour earlier, and one that starts after the takes.
    let others = [3_600_000, -i64::try_from(BEGIN_MS + 7_000).expect("it is small")];
    for (text, later_ms) in POLICIES.iter().flat_map(|text| others.map(|other| (text, other))) {
        let (policy, mut primary) = (policy(text), engine());
        let leases: Vec<u64> =
            (0..3).map(|at| hold(&mut primary, BEGIN_MS + at * 900, &policy, 3)).collect();
        let now = Now::at_ms(BEGIN_MS + 8_000);
        let (mut copied, mut restored) = (engine(), engine());
        let mut bytes = Vec::new();
        assert!(primary.copy_of(hash(), KEY, &mut bytes));
        assert_eq!(copied.put_copy(now, hash(), KEY, &bytes), Ok(()));
        let shift = i128::from(later_ms) * 1_000_000;
        let records: Vec<_> = primary.limit_records(now).collect();
        let at_restore = Now {
            mono: Now::at_ms((BEGIN_MS + 8_000).saturating_add_signed(later_ms)).mono,
            ..now
        };
        assert!(restored.restore_limit(at_restore, hash(), &records[0], shift), "{text}");
        for lease in leases.into_iter().rev() {
            settle(&mut primary, BEGIN_MS + 8_000, lease, 1);
            settle(&mut copied, BEGIN_MS + 8_000, lease, 1);
            let result = restored.settle(at_restore, hash(), KEY, lease, 1);
            assert!(matches!(result, TakeResult::Decided(_)), "{text}: {result:?}");
            let expected = usage(&mut primary, now, &policy);
            assert_eq!(usage(&mut copied, now, &policy), expected, "{text}");
            assert_eq!(usage(&mut restored, at_restore, &policy), expected, "{text}");
        }
    }
}

#[test]
fn hold_of_an_older_version_gives_back_at_once() {
    for text in POLICIES {
        let (policy, mut older, mut newer) = (policy(text), engine(), engine());
        older.keep_hold_usage(false);
        let lease = hold(&mut older, BEGIN_MS, &policy, 9);
        let mut bytes = Vec::new();
        assert!(older.copy_of(hash(), KEY, &mut bytes));
        let now = Now::at_ms(BEGIN_MS);
        assert_eq!(newer.put_copy(now, hash(), KEY, &bytes), Ok(()));
        let before = usage(&mut newer, now, &policy);
        settle(&mut newer, BEGIN_MS, lease, 4);
        let after: Vec<u64> = before.iter().map(|used| used - 5).collect();
        assert_eq!(usage(&mut newer, now, &policy), after, "{text}");
    }
}

#[test]
fn changed_policy_gives_back_no_more_than_was_taken() {
    for (at, old) in POLICIES.iter().enumerate() {
        let (old, new) = (policy(old), policy(POLICIES[(at + 1) % POLICIES.len()]));
        let mut engine = engine();
        let lease = hold(&mut engine, BEGIN_MS, &old, 9);
        let now = Now::at_ms(BEGIN_MS + 1000);
        let take = TakeParams { cost: 6, ..TakeParams::default() };
        let result = engine.take(now, hash(), KEY, Some((&new).into()), &take);
        assert!(matches!(result, TakeResult::Decided(_)), "{result:?}");
        settle(&mut engine, BEGIN_MS + 1000, lease, 0);
        let used = usage(&mut engine, now, &new);
        assert!(used.iter().all(|used| *used >= 6), "{old:?} {new:?}: {used:?}");
    }
}

#[test]
fn former_sliding_window_gives_nothing_back() {
    for (old, new) in [("sliding:10/10s", "fixed:20/10s"), ("log:10/10s", "bucket:20/10s")] {
        let (old, new, mut engine) = (policy(old), policy(new), engine());
        let lease = hold(&mut engine, BEGIN_MS, &old, 10);
        hold(&mut engine, BEGIN_MS + 20_000, &old, 7);
        hold(&mut engine, BEGIN_MS + 20_001, &new, 2);
        let now = Now::at_ms(BEGIN_MS + 20_001);
        let before = usage(&mut engine, now, &new);
        settle(&mut engine, BEGIN_MS + 20_001, lease, 0);
        assert_eq!(usage(&mut engine, now, &new), before, "{old:?}");
    }
}

#[test]
fn edited_list_gives_back_what_counts_under_each_policy() {
    let old = policy("fixed:100/10s,align=calendar;fixed:1000/1h,align=calendar");
    // The first policy has another bound, the second is the same.
    let new = policy("fixed:200/10s,align=calendar;fixed:1000/1h,align=calendar");
    let mut engine = engine();
    let lease = hold(&mut engine, BEGIN_MS, &old, 50);
    hold(&mut engine, BEGIN_MS + 10_000, &old, 30);
    hold(&mut engine, BEGIN_MS + 10_001, &new, 7);
    settle(&mut engine, BEGIN_MS + 10_002, lease, 10);
    assert_eq!(usage(&mut engine, Now::at_ms(BEGIN_MS + 10_002), &new), [37, 47]);
}

#[test]
fn usage_that_was_set_stays() {
    for text in POLICIES {
        let (policy, mut engine) = (policy(text), engine());
        let leases =
            [hold(&mut engine, BEGIN_MS, &policy, 3), hold(&mut engine, BEGIN_MS, &policy, 2)];
        let now = Now::at_ms(BEGIN_MS + 1);
        let set = SetUsage { used: 7, client_flags: 0, compare_cas: None };
        let result = engine.set_used(now, hash(), KEY, Some((&policy).into()), &set);
        assert!(matches!(result, TakeResult::Decided(_)), "{result:?}");
        let before = usage(&mut engine, now, &policy);
        for lease in leases {
            settle(&mut engine, BEGIN_MS + 1, lease, 0);
        }
        assert_eq!(usage(&mut engine, now, &policy), before, "{text}");
    }
}

#[test]
fn leased_units_count_beside_a_settled_hold() {
    let (policy, mut engine) = (policy("bucket:20/20s"), engine());
    let lease = hold(&mut engine, BEGIN_MS, &policy, 10);
    let now = Now::at_ms(BEGIN_MS);
    let params = LeaseParams {
        client: b"client",
        want: 10,
        used: 0,
        unused: 0,
        weight: 1,
        ttl: Some(3_600_000_000_000),
        max: u64::MAX,
        peek: false,
    };
    let lent = engine.lease(now, hash(), KEY, Some((&policy).into()), &params);
    let LeaseResult::Decided(line) = lent else { panic!("{lent:?}") };
    assert!(line.granted > 0);
    let later_ms = BEGIN_MS + 30_000;
    let take = TakeParams { cost: 8, ..TakeParams::default() };
    engine.take(Now::at_ms(later_ms), hash(), KEY, Some((&policy).into()), &take);
    // The units of the hold were refilled, those of the lease are outstanding.
    settle(&mut engine, later_ms, lease, 0);
    assert_eq!(usage(&mut engine, Now::at_ms(later_ms), &policy), [line.granted + 8]);
}

proptest! {
    /// After a settlement the usage is as if the take had had its true cost.
    #[test]
    fn settled_takes_count_at_their_true_cost(
        text in prop::sample::select(POLICIES.to_vec()),
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        run(text, &steps)?;
    }
}
