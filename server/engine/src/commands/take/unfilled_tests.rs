//! Tests of buckets that do not begin full: a full one keeps its state, by each way.

use std::sync::Arc;

use protocol::Policy;

use super::*;
use crate::algorithms::Verdict::{Allow, Deny};
use crate::{EngineOptions, KeyHasher, MemoryCap, PutError, SetUsage};

pub(super) const KEY: &[u8] = b"k";
const LIST: &str = "bucket:10/60s,init=0;fixed:100/30s";
const POLICIES: [&str; 4] =
    ["bucket:10/60s,init=0", "bucket:10/60s,init=3,debt=2", "bucket:10/60s,init=0,interval", LIST];

pub(super) fn engine() -> Engine {
    let memory_cap = Arc::new(MemoryCap::new(64 << 20));
    Engine::new(KeyHasher::new([1, 2, 3, 4]), memory_cap, EngineOptions::default())
}

pub(super) fn hash() -> u64 {
    KeyHasher::new([1, 2, 3, 4]).hash(KEY)
}

pub(super) fn policy(text: &str) -> Policy {
    Policy::parse_list(text.as_bytes()).expect(text)
}

/// A take by the way with all options.
fn take(engine: &mut Engine, ms: u64, policy: &Policy, cost: u64) -> Decision {
    let take = TakeParams { cost, ..TakeParams::default() };
    match engine.take(Now::at_ms(ms), hash(), KEY, Some(policy.into()), &take) {
        TakeResult::Decided(facts) => facts.decision,
        other => panic!("{other:?}"),
    }
}

/// A take by the way of plain requests.
fn take_units(engine: &mut Engine, ms: u64, policy: &Policy, cost: u64) -> Decision {
    let mut decision = None;
    let (now, at) = (Now::at_ms(ms), (hash(), KEY));
    let report = |facts: &TakeInfo| decision = Some(facts.decision);
    assert!(engine.take_units::<true>(now, at, policy.into(), cost, &mut Vec::new(), report));
    decision.expect("it is decided")
}

fn copy(engine: &Engine) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(engine.copy_of(hash(), KEY, &mut bytes));
    bytes
}

#[test]
fn full_bucket_keeps_its_state_by_both_ways() {
    for text in POLICIES {
        let policy = policy(text);
        for way in [take, take_units] {
            let mut engine = engine();
            let first = way(&mut engine, 1_000, &policy, 10);
            assert_eq!(first.verdict, Deny, "{text}");
            let full_in = first.reset / 1_000_000;
            assert!((42_000..=60_000).contains(&full_in), "{text}: {full_in}");
            // A second refusal changes nothing.
            assert_eq!(way(&mut engine, 2_000, &policy, 10).verdict, Deny, "{text}");
            for round in 1..4 {
                let ms = 1_001 + round * 600_000;
                engine.sweep(Now::at_ms(ms), 1 << 20);
                let decision = way(&mut engine, ms, &policy, 10);
                let figures = (decision.verdict, decision.remaining, decision.retry);
                assert_eq!(figures, (Allow, 0, Some(0)), "{text}");
                assert_eq!(decision.reset, 60_000_000_000, "{text}");
            }
        }
    }
}

#[test]
fn bucket_filled_by_a_change_keeps_its_state() {
    type Change = fn(&mut Engine, Now);
    let refund: Change = |engine, now| {
        engine.refund(now, hash(), KEY, None, 1_000);
    };
    let set: Change = |engine, now| {
        let set = SetUsage { used: 0, client_flags: 0, compare_cas: None };
        engine.set_used(now, hash(), KEY, None, &set);
    };
    for text in POLICIES {
        let policy = policy(text);
        for change in [refund, set] {
            let mut engine = engine();
            take(&mut engine, 1_000, &policy, 10);
            change(&mut engine, Now::at_ms(2_000));
            let decision = take(&mut engine, 2_001, &policy, 10);
            assert_eq!((decision.verdict, decision.remaining), (Allow, 0), "{text}");
        }
    }
}

#[test]
fn settled_hold_that_fills_the_bucket_keeps_it() {
    let policy = policy("bucket:10/60s,init=9");
    let mut engine = engine();
    let hold = TakeParams { cost: 9, hold: Some(1 << 40), ..TakeParams::default() };
    let now = Now::at_ms(1_000);
    let taken = engine.take(now, hash(), KEY, Some((&policy).into()), &hold);
    let TakeResult::Decided(facts) = taken else { panic!("{taken:?}") };
    let lease = facts.decision.lease.expect("it is a hold");
    engine.settle(Now::at_ms(9_000), hash(), KEY, lease, 0);
    assert_eq!(take(&mut engine, 9_001, &policy, 10).verdict, Allow);
}

#[test]
fn copy_of_a_full_bucket_carries_its_deadline() {
    for text in POLICIES {
        let policy = policy(text);
        let (mut primary, mut backup) = (engine(), engine());
        take(&mut primary, 1_000, &policy, 10);
        assert_eq!(
            backup.put_copy(Now::at_ms(1_000), hash(), KEY, &copy(&primary)),
            Ok::<_, PutError>(())
        );
        assert_eq!(copy(&primary), copy(&backup), "{text}");
        assert_eq!(take_units(&mut backup, 700_000, &policy, 10).verdict, Allow, "{text}");
        // The same for a process that restores a snapshot.
        let records: Vec<_> = primary.limit_records(Now::at_ms(700_000)).collect();
        assert_eq!(records.len(), 1, "{text}");
        let mut restored = engine();
        assert!(restored.restore_limit(Now::at_ms(5), hash(), &records[0], -699_995_000_000));
        assert_eq!(take(&mut restored, 600_000, &policy, 10).verdict, Allow, "{text}");
    }
}

#[test]
fn other_states_end_when_they_are_idle() {
    for text in ["bucket:10/60s", "bucket:10/60s,init=10,debt=2", "gcra:10/60s", "fixed:10/60s"] {
        let policy = policy(text);
        let mut engine = engine();
        take(&mut engine, 1_000, &policy, 1);
        take_units(&mut engine, 1_001, &policy, 1);
        assert_eq!(engine.limit_records(Now::at_ms(1_002)).count(), 1, "{text}");
        assert_eq!(engine.limit_records(Now::at_ms(200_000)).count(), 0, "{text}");
    }
}

#[test]
fn refund_reports_the_units_by_which_usage_fell() {
    for text in ["fixed:10/60s", "bucket:10/60s", "concurrency:9", "fixed:9/60s;bucket:10/60s"] {
        let policy = policy(text);
        let mut engine = engine();
        take(&mut engine, 1_000, &policy, 3);
        for (units, given_back) in [(2, 2), (5, 1)] {
            let result = engine.refund(Now::at_ms(1_000), hash(), KEY, None, units);
            let TakeResult::Decided(facts) = result else { panic!("{result:?}") };
            assert_eq!(facts.decision.granted, given_back, "{text}");
        }
    }
}
