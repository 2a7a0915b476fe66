//! Tests of leases: the reply to a client, the effect on the limit, and exact twins.

mod spread;
mod twin;

use std::sync::Arc;

use protocol::{CalendarUnit, Oldest, Phase, Rate, Warm, Window, Zone};

use super::*;
use crate::{EngineOptions, KeyHasher, LimitRecord, MemoryCap, Nanos, SetUsage, TakeParams};

pub(super) const SECOND: u64 = 1_000_000_000;
const KEY: &[u8] = b"key";

/// An engine, its key's hash, and the current time.
pub(super) struct Bench {
    engine: Engine,
    hash: u64,
    pub(super) now_ns: u64,
}

pub(super) fn policy(algorithm: Algorithm) -> Policy {
    Policy { algorithm, over: false, shadow: false }
}

pub(super) fn fixed(count: u64) -> Policy {
    policy(Algorithm::Fixed { count, window: Window::First(60 * SECOND) })
}

pub(super) fn bucket(capacity: u64) -> Policy {
    let rate = Rate { count: capacity, period: 100 * SECOND };
    let (init, debt, warm, interval) = (capacity, 0, None, false);
    policy(Algorithm::Bucket { rate, capacity, init, debt, warm, interval })
}

fn log(count: u64) -> Policy {
    let rate = Rate { count, period: 60 * SECOND };
    policy(Algorithm::Log { rate, entries: count })
}

fn sliding(count: u64, slices: u8) -> Policy {
    let rate = Rate { count, period: 60 * SECOND };
    policy(Algorithm::Sliding { rate, slices, oldest: Oldest::Weighted })
}

fn concurrency(max: u64) -> Policy {
    policy(Algorithm::Concurrency { max, hold: 60 * SECOND })
}

pub(super) fn ask(client: &str, want: u64) -> LeaseParams<'_> {
    let client = client.as_bytes();
    let (max, peek) = (u64::MAX, false);
    LeaseParams { client, want, used: 0, unused: 0, weight: 1, ttl: None, max, peek }
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(EngineOptions::default())
    }

    fn with(options: EngineOptions) -> Self {
        let hasher = KeyHasher::new([1, 2, 3, 4]);
        let memory_cap = Arc::new(MemoryCap::new(64 << 20));
        let engine = Engine::new(hasher.clone(), memory_cap, options);
        Self { engine, hash: hasher.hash(KEY), now_ns: 120 * SECOND }
    }

    pub(super) fn now(&self) -> Now {
        let unix_ms = 1_700_000_000_000 + self.now_ns / NANOS_PER_MS;
        Now { mono: Nanos(self.now_ns), unix_ms }
    }

    fn wait(&mut self, seconds: u64) {
        self.now_ns += seconds * SECOND;
    }

    pub(super) fn ask(&mut self, policy: &Policy, params: &LeaseParams<'_>) -> LeaseResult {
        self.engine.lease(self.now(), self.hash, KEY, Some(PolicyRef::from(policy)), params)
    }

    pub(super) fn lease(&mut self, policy: &Policy, params: &LeaseParams<'_>) -> LeaseLine {
        match self.ask(policy, params) {
            LeaseResult::Decided(line) => line,
            other => panic!("{other:?}"),
        }
    }

    /// Granted, ttl, refresh, remaining and safe.
    fn numbers(&mut self, policy: &Policy, params: &LeaseParams<'_>) -> [u64; 5] {
        let line = self.lease(policy, params);
        [line.granted, line.ttl_ms, line.refresh_ms, line.remaining, line.safe]
    }

    pub(super) fn take(&mut self, policy: &Policy, take: &TakeParams) -> u64 {
        match self.engine.take(self.now(), self.hash, KEY, Some(PolicyRef::from(policy)), take) {
            TakeResult::Decided(facts) => facts.decision.granted,
            other => panic!("{other:?}"),
        }
    }

    /// Takes as many of `cost` units as are available.
    pub(super) fn spend(&mut self, policy: &Policy, cost: u64) -> u64 {
        self.take(policy, &TakeParams { cost, part: true, ..TakeParams::default() })
    }

    pub(super) fn remaining(&mut self, policy: &Policy) -> u64 {
        let take = TakeParams { peek: true, ..TakeParams::default() };
        match self.engine.take(self.now(), self.hash, KEY, Some(PolicyRef::from(policy)), &take) {
            TakeResult::Decided(facts) => facts.decision.left(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn outstanding(&mut self, policy: &Policy) -> u64 {
        let at = self.engine.at(self.now(), self.hash, KEY);
        let mut loaded = self.engine.load(at, Some(PolicyRef::from(policy)));
        let outstanding = loaded.leases.as_ref().map_or(0, |leases| leases.outstanding());
        self.engine.recycle(&mut loaded);
        outstanding
    }

    /// Refunds units that were not lent, and returns the remaining units.
    fn refund(&mut self, policy: &Policy, units: u64) -> Option<u64> {
        match self.engine.refund(self.now(), self.hash, KEY, Some(PolicyRef::from(policy)), units) {
            TakeResult::Decided(facts) => Some(facts.decision.left()),
            _ => None,
        }
    }

    fn has_state(&mut self) -> bool {
        self.engine.sweep(self.now(), 1000);
        !self.engine.is_empty()
    }
}

#[test]
fn a_lease_is_taken_from_the_limit_at_once() {
    for policy in [fixed(100), bucket(100), log(100), sliding(100, 6)] {
        let mut bench = Bench::new();
        assert_eq!(bench.numbers(&policy, &ask("a", 1000)), [50, 10_000, 5000, 50, 50]);
        assert_eq!(bench.numbers(&policy, &ask("b", 1000)), [25, 10_000, 5000, 25, 25]);
        assert_eq!(bench.remaining(&policy), 25);
        assert_eq!(bench.spend(&policy, 1000), 25);
        assert_eq!(bench.outstanding(&policy), 75);
    }
}

#[test]
fn a_client_gets_its_want_and_no_more() {
    for want in [0, 1, 49, 50, 51] {
        let mut bench = Bench::new();
        assert_eq!(bench.lease(&fixed(100), &ask("a", want)).granted, want.min(50));
    }
    let mut bench = Bench::new();
    assert_eq!(bench.numbers(&fixed(100), &ask("a", 0)), [0, 0, 5000, 100, 0]);
    assert!(!bench.has_state());
}

#[test]
fn a_lease_keeps_its_number() {
    let (mut bench, policy) = (Bench::new(), fixed(100));
    let first = bench.lease(&policy, &ask("a", 10)).lease;
    let other = bench.lease(&policy, &ask("b", 10)).lease;
    assert!(first > 0 && other > 0 && first != other);
    bench.wait(2);
    assert_eq!(bench.lease(&policy, &LeaseParams { used: 3, ..ask("a", 10) }).lease, first);
}

#[test]
fn a_top_up_follows_the_clients_spending() {
    for policy in [fixed(100), bucket(100), log(100), sliding(100, 6)] {
        let mut bench = Bench::new();
        bench.lease(&policy, &ask("a", 20));
        bench.wait(4);
        // Eight in four seconds are ten in five, and twelve are in hand; no more are needed.
        let line = bench.lease(&policy, &LeaseParams { used: 8, ..ask("a", 1000) });
        assert_eq!((line.granted, line.safe, line.refresh_ms), (0, 12, 5000));
        bench.wait(4);
        let line = bench.lease(&policy, &LeaseParams { used: 8, ..ask("a", 1000) });
        assert_eq!((line.granted, line.safe), (6, 10));
        assert_eq!(bench.outstanding(&policy), 10);
    }
}

#[test]
fn returned_units_are_available_at_once() {
    for policy in [fixed(100), bucket(100), log(100), sliding(100, 6)] {
        let mut bench = Bench::new();
        bench.lease(&policy, &ask("a", 50));
        let line = bench.lease(&policy, &LeaseParams { used: 10, unused: 40, ..ask("a", 0) });
        assert_eq!((line.granted, line.ttl_ms, line.remaining, line.safe), (0, 0, 90, 0));
        assert_eq!(bench.outstanding(&policy), 0);
        assert_eq!(bench.remaining(&policy), 90);
    }
}

#[test]
fn a_liar_never_raises_the_limit() {
    for policy in [fixed(100), bucket(100), log(100), sliding(100, 6)] {
        let mut bench = Bench::new();
        bench.lease(&policy, &ask("a", 50));
        bench.spend(&policy, 20);
        for (used, unused) in [(0, COUNT_MAX), (COUNT_MAX, COUNT_MAX), (51, 1), (0, u64::MAX)] {
            bench.lease(&policy, &LeaseParams { used, unused, ..ask("a", 0) });
            assert!(bench.remaining(&policy) <= 80, "{policy:?} {used} {unused}");
        }
        // This client has no lease.
        bench.lease(&policy, &LeaseParams { unused: 50, ..ask("b", 0) });
        assert!(bench.remaining(&policy) <= 80);
    }
}

/// Rates of one unit a second.
fn slow_rates() -> [Policy; 5] {
    let Algorithm::Bucket { rate, capacity, init, debt, .. } = bucket(100).algorithm else {
        panic!()
    };
    let rated =
        |warm, interval| policy(Algorithm::Bucket { rate, capacity, init, debt, warm, interval });
    let second = Rate { count: 1, period: SECOND };
    let warm = Some(Warm { duration: 1000 * SECOND, factor: 3 });
    [
        bucket(100),
        policy(Algorithm::Gcra { rate, burst: 99 }),
        policy(Algorithm::Leaky { rate, capacity, wait: None }),
        policy(Algorithm::Bucket {
            rate: second,
            capacity,
            init,
            debt,
            warm: None,
            interval: true,
        }),
        rated(warm, false),
    ]
}

#[test]
fn the_rate_of_a_dead_holder_refills_from_expiry_on() {
    for (index, policy) in slow_rates().into_iter().enumerate() {
        // With and without peeks in the meantime.
        for looks in [true, false] {
            let mut bench = Bench::new();
            let params = LeaseParams { ttl: Some(200 * SECOND), ..ask("a", 40) };
            let granted = bench.lease(&policy, &params).granted;
            assert!(granted == 40 || index == 4);
            for _ in 0..200 {
                if looks {
                    assert!(bench.remaining(&policy) <= 100 - granted);
                }
                bench.wait(1);
            }
            assert_eq!(bench.outstanding(&policy), 0);
            if index == 4 {
                // A cold bucket without debt would grant all units.
                assert!(bench.remaining(&policy) <= 100 - granted);
                bench.now_ns += granted * SECOND - 1;
                assert!(bench.remaining(&policy) < 100 && bench.has_state());
            } else {
                assert_eq!(bench.remaining(&policy), 60);
                bench.now_ns += SECOND - 1;
                assert_eq!(bench.remaining(&policy), 60);
                bench.now_ns += 1;
                assert_eq!(bench.remaining(&policy), 61);
                bench.now_ns += 39 * SECOND - 1;
                assert_eq!((bench.has_state(), bench.remaining(&policy)), (true, 99));
            }
            bench.now_ns += 1;
            assert_eq!(bench.remaining(&policy), 100);
        }
    }
}

#[test]
fn a_holder_that_reports_is_refilled_from_then_on() {
    for (reports, remaining) in [(false, 50), (true, 59)] {
        let (mut bench, policy) = (Bench::new(), bucket(100));
        bench.lease(&policy, &ask("a", 50));
        bench.wait(1);
        if reports {
            bench.lease(&policy, &LeaseParams { used: 50, ..ask("a", 0) });
        }
        bench.wait(9);
        assert_eq!(bench.remaining(&policy), remaining);
    }
}

#[test]
fn leases_end_one_by_one_without_peeks() {
    let (mut bench, policy) = (Bench::new(), bucket(100));
    bench.lease(&policy, &LeaseParams { ttl: Some(100 * SECOND), ..ask("a", 30) });
    bench.lease(&policy, &LeaseParams { ttl: Some(110 * SECOND), ..ask("b", 20) });
    assert_eq!(bench.spend(&policy, 50), 50);
    // After 50 s the taken units are back. After 100 s the first lease ends; ten of its units are
    // back when the second ends, and five more since.
    bench.wait(115);
    assert_eq!(bench.remaining(&policy), 65);
}

/// A larger capacity brings no tokens at once, and includes no earlier refill.
#[test]
fn a_change_of_policy_refills_no_outstanding_units() {
    let (mut bench, small, large) = (Bench::new(), bucket(100), bucket(200));
    bench.lease(&small, &LeaseParams { ttl: Some(200 * SECOND), ..ask("a", 50) });
    bench.wait(100);
    assert_eq!(bench.remaining(&large), 50);
}

#[test]
fn a_dead_holders_count_stays_until_it_leaves_window() {
    // In a sliding window they may have been spent in the lease's last nanosecond.
    for (policy, returns) in [(fixed(100), 60 * SECOND), (log(100), 70 * SECOND - 1)] {
        let mut bench = Bench::new();
        bench.lease(&policy, &ask("a", 50));
        bench.wait(10);
        assert_eq!((bench.outstanding(&policy), bench.remaining(&policy)), (0, 50));
        bench.now_ns += returns - 10 * SECOND - 1;
        assert_eq!(bench.remaining(&policy), 50);
        bench.now_ns += 1;
        assert_eq!(bench.remaining(&policy), 100);
    }
}

#[test]
fn units_spent_late_leave_a_sliding_window_late() {
    let mut bench = Bench::new();
    bench.lease(&log(100), &LeaseParams { ttl: Some(50 * SECOND), ..ask("a", 20) });
    bench.wait(30);
    bench.spend(&log(100), 7);
    bench.wait(10);
    // The units given back are not those that another client took.
    bench.lease(&log(100), &LeaseParams { used: 5, unused: 15, ..ask("a", 0) });
    for (wait, remaining) in [(0, 88), (49, 88), (1, 95), (9, 95), (1, 100)] {
        bench.wait(wait);
        assert_eq!(bench.remaining(&log(100)), remaining);
    }
}

#[test]
fn a_lease_ends_before_its_units_leave_the_window() {
    let (mut bench, policy) = (Bench::new(), fixed(100));
    bench.spend(&policy, 1);
    bench.wait(57);
    let line = bench.lease(&policy, &ask("a", 10));
    assert_eq!((line.granted, line.ttl_ms, line.refresh_ms), (10, 3000, 1500));
    // In the last millisecond there are no units to lend.
    bench.now_ns += 3 * SECOND - 999_999;
    assert_eq!(bench.numbers(&policy, &ask("b", 10)), [0, 0, 1, 89, 0]);
    // Kept units count from their take on, so a log's lease is not extended past that.
    let (mut bench, policy) = (Bench::new(), log(100));
    bench.lease(&policy, &LeaseParams { ttl: Some(40 * SECOND), ..ask("a", 10) });
    bench.wait(30);
    let line = bench.lease(&policy, &LeaseParams { ttl: Some(40 * SECOND), ..ask("a", 10) });
    assert_eq!((line.ttl_ms, line.safe), (30_000, 10));
    let other = LeaseParams { ttl: Some(40 * SECOND), used: 10, ..ask("a", 10) };
    assert_eq!(bench.lease(&policy, &other).ttl_ms, 40_000);
    // A sliding count holds units in full until their slice is the oldest.
    let mut bench = Bench::new();
    bench.wait(55);
    assert_eq!(bench.lease(&sliding(100, 1), &ask("a", 10)).ttl_ms, 5000);
    let mut bench = Bench::new();
    bench.wait(55);
    assert_eq!(
        bench
            .lease(&sliding(100, 6), &LeaseParams { ttl: Some(90 * SECOND), ..ask("a", 10) })
            .ttl_ms,
        55_000
    );
}

#[test]
fn a_ttl_is_within_its_bounds() {
    let policy = bucket(100);
    for (ttl, ttl_ms) in [
        (Some(1), 0),
        (Some(NANOS_PER_MS - 1), 0),
        (Some(NANOS_PER_MS), 1),
        (Some(LEASE_TTL_MAX - 1), 3_599_999),
        (Some(LEASE_TTL_MAX), 3_600_000),
        (Some(LEASE_TTL_MAX + 1), 3_600_000),
        (Some(u64::MAX), 3_600_000),
        (None, 10_000),
    ] {
        let line = Bench::new().lease(&policy, &LeaseParams { ttl, ..ask("a", 10) });
        assert_eq!((line.ttl_ms, line.granted), (ttl_ms, if ttl_ms == 0 { 0 } else { 10 }));
        assert!(line.refresh_ms >= 1);
    }
}

#[test]
fn an_exhausted_limit_returns_a_refresh_time() {
    let (mut bench, policy) = (Bench::new(), fixed(100));
    bench.spend(&policy, 100);
    bench.wait(20);
    assert_eq!(bench.numbers(&policy, &ask("a", 10)), [0, 0, 40_000, 0, 0]);
    let (mut bench, policy) = (Bench::new(), bucket(100));
    bench.spend(&policy, 100);
    assert_eq!(bench.numbers(&policy, &ask("a", 10)), [0, 0, 1000, 0, 0]);
    // All units are lent: some return at the other client's next call, or else from the end of its
    // lease on.
    let mut bench = Bench::new();
    let one = bucket(1);
    assert_eq!(bench.lease(&one, &ask("a", 10)).granted, 1);
    bench.wait(4);
    assert_eq!(bench.numbers(&one, &ask("b", 10)), [0, 0, 1000, 0, 0]);
    bench.wait(2);
    assert_eq!(bench.numbers(&one, &ask("b", 10)), [0, 0, 4000, 0, 0]);
    bench.wait(4);
    assert_eq!(bench.numbers(&one, &ask("b", 10)), [0, 0, 100_000, 0, 0]);
    bench.now_ns += 100 * SECOND - 1;
    assert_eq!(bench.lease(&one, &ask("b", 10)).granted, 0);
    bench.now_ns += 1;
    assert_eq!(bench.lease(&one, &ask("b", 10)).granted, 1);
}

#[test]
fn an_empty_new_bucket_fills_from_the_first_lease() {
    let Algorithm::Bucket { rate, capacity, debt, warm, interval, .. } = bucket(100).algorithm
    else {
        panic!()
    };
    let policy = policy(Algorithm::Bucket { rate, capacity, init: 0, debt, warm, interval });
    let mut bench = Bench::new();
    assert_eq!(bench.numbers(&policy, &ask("a", 10)), [0, 0, 1000, 0, 0]);
    bench.wait(30);
    assert_eq!(bench.lease(&policy, &ask("a", 100)).granted, 30);
}

#[test]
fn a_crowd_shares_the_limit_and_never_exceeds_it() {
    for policy in [fixed(2000), bucket(2000), log(2000), sliding(2000, 3)] {
        let mut bench = Bench::new();
        for client in 0..LEASE_CLIENTS_MAX {
            let line = bench.lease(&policy, &ask(&format!("client-{client}"), 1));
            assert_eq!(line.granted, 1, "{client}");
        }
        assert_eq!(bench.outstanding(&policy), LEASE_CLIENTS_MAX as u64);
        // One client beyond the maximum gets the time until a lease ends; clients with a lease
        // continue.
        bench.wait(1);
        let line = bench.lease(&policy, &ask("late", 1));
        assert_eq!((line.granted, line.refresh_ms, line.lease), (0, 9000, 0));
        assert_eq!(bench.lease(&policy, &LeaseParams { used: 1, ..ask("client-7", 1) }).granted, 1);
        bench.lease(&policy, &LeaseParams { used: 1, ..ask("client-7", 0) });
        assert_eq!(bench.lease(&policy, &ask("late", 1)).granted, 1);
    }
}

#[test]
fn needs_beyond_the_limit_are_divided_fairly() {
    let (mut bench, policy) = (Bench::new(), fixed(120));
    for (client, want) in [("a", 60), ("b", 30), ("c", 10)] {
        bench.lease(&policy, &ask(client, want));
    }
    bench.wait(5);
    // 60, 30 and 10 in five seconds and 20 to spare: b and c may keep their rates, a may not.
    let line = bench.lease(&policy, &LeaseParams { used: 30, ..ask("b", 1000) });
    assert_eq!(line.granted, 20);
    let line = bench.lease(&policy, &LeaseParams { used: 60, ..ask("a", 1000) });
    assert_eq!(line.granted, 0);
}

#[test]
fn block_lends_nothing_and_unlimited_every_want() {
    let mut bench = Bench::new();
    let block = policy(Algorithm::Block);
    assert_eq!(bench.numbers(&block, &ask("a", 10)), [0, 0, 3_600_000, 0, 0]);
    let unlimited = policy(Algorithm::Unlimited);
    assert_eq!(
        bench.numbers(&unlimited, &ask("a", COUNT_MAX)),
        [COUNT_MAX, 10_000, 5000, COUNT_MAX, COUNT_MAX]
    );
    assert!(!bench.has_state());
}

#[test]
fn holders_and_places_in_a_queue_are_not_lent() {
    let rate = Rate { count: 10, period: SECOND };
    let queue = |wait| policy(Algorithm::Leaky { rate, capacity: 10, wait });
    let mut bench = Bench::new();
    assert_eq!(bench.ask(&concurrency(5), &ask("a", 1)), LeaseResult::NotLeasable);
    assert_eq!(bench.ask(&queue(Some(SECOND)), &ask("a", 1)), LeaseResult::NotLeasable);
    assert_eq!(bench.lease(&queue(None), &ask("a", 10)).granted, 5);
}

#[test]
fn a_shadow_policy_lends_every_want() {
    let (mut bench, policy) = (Bench::new(), Policy { shadow: true, ..fixed(100) });
    assert_eq!(bench.numbers(&policy, &ask("a", 1000)), [1000, 10_000, 5000, 50, 1000]);
    assert_eq!(bench.outstanding(&policy), 50);
    bench.spend(&policy, 1000);
    assert_eq!(bench.numbers(&policy, &ask("b", 7)), [7, 10_000, 5000, 0, 7]);
}

#[test]
fn outstanding_units_stay_counted_after_any_change() {
    let (mut bench, policy) = (Bench::new(), fixed(100));
    bench.lease(&policy, &ask("a", 50));
    assert_eq!(bench.refund(&policy, 1000), Some(50));
    assert_eq!(bench.remaining(&policy), 50);
    let set = SetUsage { used: 0, client_flags: 0, compare_cas: None };
    bench.engine.set_used(bench.now(), bench.hash, KEY, Some(PolicyRef::from(&policy)), &set);
    assert_eq!(bench.remaining(&policy), 50);
    // Another algorithm starts from an empty state, plus the outstanding units.
    assert_eq!(bench.remaining(&bucket(80)), 30);
    assert_eq!(bench.spend(&bucket(80), 100), 30);
    assert_eq!(bench.remaining(&fixed(40)), 0);
    // A policy without leases drops them.
    assert_eq!(bench.spend(&concurrency(5), 5), 5);
    assert_eq!(bench.outstanding(&fixed(100)), 0);
}

#[test]
fn a_state_is_kept_until_its_leases_are_refilled() {
    for (policy, kept) in [(bucket(100), 210), (fixed(100), 60)] {
        let mut bench = Bench::new();
        bench.lease(&policy, &LeaseParams { ttl: Some(200 * SECOND), ..ask("a", 10) });
        bench.now_ns += kept * SECOND - 1;
        assert!(bench.has_state());
        assert!(bench.remaining(&policy) < 100);
        bench.now_ns += 1;
        assert!(!bench.has_state());
    }
}

#[test]
fn leases_are_unique_without_cas_and_after_restart() {
    let policy = bucket(100);
    let take = TakeParams { cost: 1, hold: Some(50 * SECOND), ..TakeParams::default() };
    let mut names = std::collections::BTreeSet::new();
    for restart in 0..3 {
        let mut bench = Bench::with(EngineOptions { cas: false, ..EngineOptions::default() });
        bench.wait(restart);
        for client in ["a", "b", "c"] {
            let lease = bench.lease(&policy, &ask(client, 3)).lease;
            assert!(lease > 0 && names.insert(lease), "{client} {lease}");
            match bench.engine.take(
                bench.now(),
                bench.hash,
                KEY,
                Some(PolicyRef::from(&policy)),
                &take,
            ) {
                TakeResult::Decided(facts) => {
                    assert!(names.insert(facts.decision.lease.expect("a hold")));
                }
                other => panic!("{other:?}"),
            }
            let spent = LeaseParams { used: 1, ..ask(client, 3) };
            assert_eq!(bench.lease(&policy, &spent).lease, lease);
        }
    }
}

#[test]
fn holds_and_leases_lie_beside_each_other() {
    let (mut bench, policy) = (Bench::new(), bucket(100));
    bench.take(&policy, &TakeParams { cost: 10, hold: Some(30 * SECOND), ..TakeParams::default() });
    assert_eq!(bench.lease(&policy, &ask("a", 20)).remaining, 70);
    bench.take(&policy, &TakeParams { cost: 10, hold: Some(30 * SECOND), ..TakeParams::default() });
    assert_eq!((bench.outstanding(&policy), bench.remaining(&policy)), (20, 60));
}

#[test]
fn leases_outlive_the_process() {
    for policy in [fixed(100), bucket(100), log(100), sliding(100, 6)] {
        let mut bench = Bench::new();
        bench.take(
            &policy,
            &TakeParams { cost: 5, hold: Some(50 * SECOND), ..TakeParams::default() },
        );
        bench.lease(&policy, &ask("a", 30));
        bench.lease(&policy, &ask("b", 20));
        let mut next = Bench::new();
        next.now_ns = 7 * SECOND;
        let shift = i128::from(next.now_ns) - i128::from(bench.now_ns);
        let records: Vec<LimitRecord<'_>> = bench.engine.limit_records(bench.now()).collect();
        for record in &records {
            assert!(next.engine.restore_limit(next.now(), next.hash, record, shift));
            for cut in 0..record.body.len() {
                let torn = LimitRecord { body: &record.body[..cut], ..*record };
                // Must not panic; the result of a truncated state is irrelevant.
                let mut other = Bench::new();
                other.engine.restore_limit(other.now(), other.hash, &torn, shift);
                other.remaining(&policy);
            }
        }
        assert_eq!((next.outstanding(&policy), next.remaining(&policy)), (50, 45));
        next.wait(5);
        assert_eq!(next.lease(&policy, &LeaseParams { used: 30, ..ask("a", 1000) }).granted, 30);
        next.wait(5);
        assert_eq!(next.outstanding(&policy), 30);
    }
}

#[test]
fn without_memory_nothing_is_lent() {
    let hasher = KeyHasher::new([1, 2, 3, 4]);
    let memory_cap = Arc::new(MemoryCap::new(1));
    let mut engine = Engine::new(hasher.clone(), memory_cap, EngineOptions::default());
    let now = Now::at_ms(1000);
    let leased =
        engine.lease(now, hasher.hash(KEY), KEY, Some(PolicyRef::from(&fixed(10))), &ask("a", 5));
    assert_eq!(leased, LeaseResult::Full);
    assert!(engine.is_empty());
}

#[test]
fn a_key_that_nothing_limits_is_unlimited() {
    let mut bench = Bench::new();
    let leased = bench.engine.lease(bench.now(), bench.hash, KEY, None, &ask("a", 5));
    assert!(matches!(leased, LeaseResult::Decided(LeaseLine { granted: 5, .. })));
    assert!(!bench.has_state());
    // Its state stores its policy.
    bench.lease(&fixed(100), &ask("a", 5));
    let leased = bench.engine.lease(bench.now(), bench.hash, KEY, None, &ask("b", 99));
    assert!(matches!(leased, LeaseResult::Decided(LeaseLine { granted: 25, .. })));
}

#[test]
fn outstanding_units_count_under_another_policy() {
    let unit = CalendarUnit::Nanos(60 * SECOND);
    let calendar = Window::Calendar { unit, zone: Zone::Offset(0), phase: Phase::Auto };
    let calendar = policy(Algorithm::Fixed { count: 10, window: calendar });
    let mut bench = Bench::new();
    bench.lease(&fixed(10), &LeaseParams { ttl: Some(60 * SECOND), ..ask("a", 5) });
    for _ in 0..59 {
        bench.wait(1);
        bench.refund(&calendar, 0);
        assert_eq!((bench.remaining(&calendar), bench.outstanding(&calendar)), (5, 5));
    }
}
