//! Many clients, crashes, early returns and lies, against slow exact twins.
//!
//! The twin of a bucket counts parts of a token, the twin of a window single units; both have every
//! client's units. They use the engine's size of a grant (`size` has tests of its own) and check
//! that the units were available. Further checks for every policy: the remaining and the
//! outstanding units never exceed the limit, whatever the clients do, and however the policy
//! changes; and the units that clients spend locally and all takes together never exceed, in any
//! span, the units that the policy admits.

use std::collections::BTreeMap;

use proptest::prelude::*;
use protocol::{CalendarUnit, Phase, Zone};

use super::*;

const CLIENTS: [&str; 5] = ["a", "b", "c", "d", "e"];

const KINDS: usize = 12;

/// Every kind of policy that lends, and two of them with a third of the limit.
fn any_kind(count: u64) -> [Algorithm; KINDS] {
    let rate = Rate { count, period: 60 * SECOND };
    let third = Rate { count: count.div_ceil(3), ..rate };
    let window = |count| Algorithm::Fixed { count, window: Window::First(60 * SECOND) };
    let calendar = Window::Calendar {
        unit: CalendarUnit::Nanos(60 * SECOND),
        zone: Zone::Offset(0),
        phase: Phase::Auto,
    };
    let bucket = |init, debt, warm, interval| Algorithm::Bucket {
        rate,
        capacity: count,
        init,
        debt,
        warm,
        interval,
    };
    let sliding = |slices, oldest| Algorithm::Sliding { rate, slices, oldest };
    [
        window(count),
        bucket(count, 0, None, false),
        bucket(count / 2, count, None, false),
        bucket(count, 0, Some(Warm { duration: 20 * SECOND, factor: 3 }), false),
        bucket(count, 0, None, true),
        Algorithm::Leaky { rate, capacity: count, wait: None },
        sliding(1, Oldest::Weighted),
        sliding(6, Oldest::Whole),
        Algorithm::Log { rate, entries: count.min(9) },
        Algorithm::Fixed { count, window: calendar },
        Algorithm::Gcra { rate: third, burst: third.count - 1 },
        window(third.count),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A client calls: the spent and the returned part of its units, in eighths; its want, its ttl.
    Call { client: usize, used: u64, unused: u64, want: u64, weight: u32, ttl: Option<u64> },
    /// A plain take of up to this many units.
    Take(u64),
    /// A refund of units that were not taken. Only in tests without a twin.
    Refund(u64),
    /// Another policy. Only in tests without a twin.
    Policy(usize),
}

fn any_step() -> impl Strategy<Value = (u64, Step)> {
    let ttl = prop::option::of(prop_oneof![
        0..=3_u64,
        1..=SECOND,
        (1..=120_u64).prop_map(|s| s * SECOND)
    ]);
    let call = (0..CLIENTS.len(), 0..=9_u64, 0..=9_u64, 0..=150_u64, 0..=4_u32, ttl).prop_map(
        |(client, used, unused, want, weight, ttl)| Step::Call {
            client,
            used,
            unused,
            want,
            weight,
            ttl,
        },
    );
    let step = prop_oneof![
        6 => call,
        2 => (0..40_u64).prop_map(Step::Take),
        1 => (0..200_u64).prop_map(Step::Refund),
        1 => (0..KINDS).prop_map(Step::Policy),
    ];
    let gap = prop_oneof![
        2 => Just(0),
        2 => 0..=SECOND,
        3 => (0..=12_u64).prop_map(|s| s * SECOND),
        1 => (0..=120_u64).prop_map(|s| s * SECOND),
    ];
    (gap, step)
}

/// The units of one client, as the server has recorded them.
#[derive(Debug, Clone, Copy, Default)]
struct Balance {
    units: u64,
    end: u64,
}

/// The part of `units` that a report of `eighths` claims; nine are a lie.
fn eighths(units: u64, eighths: u64) -> u64 {
    if eighths == 9 { units + 7 } else { units * eighths / 8 }
}

/// A bucket of `capacity` tokens that refills in 100 s, in parts of `1 ÷ 100 s` in nanoseconds.
struct BucketTwin {
    capacity: u64,
    missing: u128,
    at: u64,
}

impl BucketTwin {
    const TOKEN: u128 = 100 * SECOND as u128;

    fn refill(&mut self, to: u64, out: u64) {
        let refill = u128::from(to - self.at) * u128::from(self.capacity);
        self.missing = self.missing.saturating_sub(refill);
        self.at = to;
        self.missing = self.missing.max(u128::from(out) * Self::TOKEN);
    }

    /// Brings the bucket to `now`; lent units refill from the end of their lease on.
    fn advance(&mut self, now: u64, balances: &mut BTreeMap<usize, Balance>) {
        while let Some((client, balance)) = balances
            .iter()
            .map(|(client, balance)| (*client, *balance))
            .filter(|(_, balance)| balance.end <= now)
            .min_by_key(|(_, balance)| balance.end)
        {
            self.refill(balance.end, balances.values().map(|balance| balance.units).sum());
            balances.remove(&client);
        }
        self.refill(now, balances.values().map(|balance| balance.units).sum());
    }

    fn remaining(&self) -> u64 {
        let full = u128::from(self.capacity) * Self::TOKEN;
        (full.saturating_sub(self.missing) / Self::TOKEN) as u64
    }
}

/// A client that spends its lent units locally: a part at each call, the rest at the end or never.
#[derive(Debug, Clone, Copy, Default)]
struct Spender {
    left: u64,
    /// The end of its lease, from which on it spends nothing.
    end: u64,
}

/// All spent units, with the time of their use.
#[derive(Debug, Default)]
struct Ledger(Vec<(u64, u64)>);

impl Ledger {
    fn spend(&mut self, at: u64, units: u64) {
        if units > 0 {
            self.0.push((at, units));
        }
    }

    /// A span with more units than the policy admits: its beginning, its end, the units.
    fn excess(&mut self, algorithm: &Algorithm) -> Option<(u64, u64, u64)> {
        self.0.sort_unstable();
        for (first, (from, _)) in self.0.iter().enumerate() {
            let mut spent = 0;
            for (to, units) in &self.0[first..] {
                spent += units;
                if !lets_through(algorithm, spent, to - from) {
                    return Some((*from, *to, spent));
                }
            }
        }
        None
    }
}

/// Whether the policy admits `units` within `span` nanoseconds.
fn lets_through(algorithm: &Algorithm, units: u64, span: u64) -> bool {
    let (max, rate) = match *algorithm {
        Algorithm::Bucket { rate, capacity, debt, interval, .. } => {
            // The span may begin just before a refill.
            (capacity + debt + if interval { rate.count } else { 0 }, rate)
        }
        Algorithm::Gcra { rate, burst } => (burst + 1, rate),
        Algorithm::Leaky { rate, capacity, .. } => (capacity, rate),
        Algorithm::Sliding { rate, oldest: Oldest::Whole, .. } | Algorithm::Log { rate, .. } => {
            return span >= rate.period || units <= rate.count;
        }
        Algorithm::Fixed { count, window: Window::First(nanos) } => {
            // Two windows: the end of the first and the beginning of the second.
            return span >= nanos || units <= 2 * count;
        }
        // An estimate, or calendar windows.
        _ => return true,
    };
    let period = u128::from(rate.period);
    u128::from(units) * period
        <= u128::from(max) * period + u128::from(rate.count) * u128::from(span)
}

/// Records the result of a call in the client's units.
fn record_line(
    balances: &mut BTreeMap<usize, Balance>,
    client: usize,
    now: u64,
    line: &LeaseLine,
    given: u64,
    used: u64,
) {
    let balance = balances.entry(client).or_default();
    balance.units = balance.units - used - given + line.granted;
    balance.end = now + line.ttl_ms * NANOS_PER_MS;
    assert_eq!(line.safe, balance.units);
    if balance.units == 0 {
        balances.remove(&client);
    }
}

/// A report of a client: spent, given back, and the two numbers that it claims.
fn reported(
    balances: &BTreeMap<usize, Balance>,
    client: usize,
    used: u64,
    unused: u64,
) -> [u64; 4] {
    let units = balances.get(&client).map_or(0, |balance| balance.units);
    let (says_used, says_unused) = (eighths(units, used), eighths(units, unused));
    let spent = says_used.min(units);
    [spent, says_unused.min(units - spent), says_used, says_unused]
}

proptest! {
    #[test]
    fn a_bucket_and_its_leases_never_exceed_capacity(
        capacity in 1..=200_u64,
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let (mut bench, policy) = (Bench::new(), bucket(capacity));
        let mut twin = BucketTwin { capacity, missing: 0, at: bench.now_ns };
        let mut balances = BTreeMap::new();
        for (gap, step) in steps {
            // Clients get ends in whole milliseconds, and so are the times of all calls here.
            bench.now_ns += gap / NANOS_PER_MS * NANOS_PER_MS;
            twin.advance(bench.now_ns, &mut balances);
            prop_assert_eq!(bench.remaining(&policy), twin.remaining());
            match step {
                Step::Call { client, used, unused, want, weight, ttl } => {
                    let [spent, given, used, unused] = reported(&balances, client, used, unused);
                    let ttl = ttl.map(|ttl| ttl / NANOS_PER_MS * NANOS_PER_MS);
                    let params = LeaseParams { used, unused, weight, ttl, ..ask(CLIENTS[client], want) };
                    let there = twin.remaining() + given;
                    let line = bench.lease(&policy, &params);
                    prop_assert!(line.granted <= want.min(there));
                    twin.missing = twin.missing.saturating_sub(u128::from(given) * BucketTwin::TOKEN);
                    twin.missing += u128::from(line.granted) * BucketTwin::TOKEN;
                    record_line(&mut balances, client, bench.now_ns, &line, given, spent);
                    twin.advance(bench.now_ns, &mut balances);
                    prop_assert_eq!(line.remaining, twin.remaining());
                }
                Step::Take(units) => {
                    let taken = bench.spend(&policy, units);
                    prop_assert_eq!(taken, units.min(twin.remaining()));
                    twin.missing += u128::from(taken) * BucketTwin::TOKEN;
                }
                Step::Refund(_) | Step::Policy(_) => {}
            }
            let out: u64 = balances.values().map(|balance| balance.units).sum();
            prop_assert_eq!(bench.outstanding(&policy), out);
            prop_assert!(out + bench.remaining(&policy) <= capacity);
        }
    }

    /// The count of a window includes all units ever taken or lent in it, except those given back:
    /// whatever its holders do, and whether or not they report, no more than the limit is spent.
    #[test]
    fn no_window_ever_spends_more_than_its_limit(
        count in 1..=200_u64,
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let (mut bench, policy) = (Bench::new(), fixed(count));
        let (mut opened, mut used_up) = (0, 0_u64);
        let mut balances: BTreeMap<usize, Balance> = BTreeMap::new();
        for (gap, step) in steps {
            bench.now_ns += gap / NANOS_PER_MS * NANOS_PER_MS;
            let now = bench.now_ns;
            balances.retain(|_, balance| balance.end > now);
            if used_up > 0 && now >= opened + 60 * SECOND {
                prop_assert!(balances.is_empty(), "a lease outlived its window");
                used_up = 0;
            }
            let before = used_up;
            match step {
                Step::Call { client, used, unused, want, weight, ttl } => {
                    let [spent, given, used, unused] = reported(&balances, client, used, unused);
                    let ttl = ttl.map(|ttl| ttl / NANOS_PER_MS * NANOS_PER_MS);
                    let params = LeaseParams { used, unused, weight, ttl, ..ask(CLIENTS[client], want) };
                    let line = bench.lease(&policy, &params);
                    used_up -= given;
                    if used_up == 0 && line.granted > 0 {
                        opened = now;
                    }
                    used_up += line.granted;
                    record_line(&mut balances, client, now, &line, given, spent);
                    prop_assert_eq!(line.remaining, count - used_up);
                }
                Step::Take(units) => used_up += bench.spend(&policy, units),
                Step::Refund(_) | Step::Policy(_) => {}
            }
            if before == 0 && used_up > 0 {
                opened = now;
            }
            prop_assert!(used_up <= count);
            prop_assert_eq!(bench.remaining(&policy), count - used_up);
            let out: u64 = balances.values().map(|balance| balance.units).sum();
            prop_assert_eq!(bench.outstanding(&policy), out);
        }
    }

    /// The promise to the operator. Clients spend their units and report any number or none: more
    /// or less than they spent, or they die after spending nothing, or all units in the last
    /// nanosecond. Spent units are never given back, because the server could not detect that.
    #[test]
    fn no_span_spends_more_than_the_policy_lets_through(
        count in 1..=200_u64,
        kind in 0..KINDS,
        steps in prop::collection::vec((any_step(), 0..=8_u64, any::<bool>()), 1..60),
        idle in prop_oneof![Just(0), 0..=100 * SECOND],
    ) {
        let policy = policy(any_kind(count)[kind]);
        let (mut bench, mut ledger) = (Bench::new(), Ledger::default());
        let mut spenders = [Spender::default(); CLIENTS.len()];
        for ((gap, step), spends, dies) in steps {
            bench.now_ns += gap / NANOS_PER_MS * NANOS_PER_MS;
            let now = bench.now_ns;
            for spender in spenders.iter_mut().filter(|spender| spender.end <= now) {
                if !dies {
                    ledger.spend(spender.end.saturating_sub(1), spender.left);
                }
                spender.left = 0;
            }
            match step {
                Step::Call { client, used, unused, want, weight, ttl } => {
                    let spender = &mut spenders[client];
                    let spent = spender.left * spends / 8;
                    ledger.spend(now, spent);
                    spender.left -= spent;
                    let used = if dies { eighths(spender.left + spent, used) } else { spent };
                    let unused = eighths(spender.left, unused).min(spender.left);
                    let ttl = ttl.map(|ttl| ttl / NANOS_PER_MS * NANOS_PER_MS);
                    let params = LeaseParams { used, unused, weight, ttl, ..ask(CLIENTS[client], want) };
                    let line = bench.lease(&policy, &params);
                    spender.left = (spender.left - unused + line.granted).min(line.safe);
                    spender.end = now + line.ttl_ms * NANOS_PER_MS;
                }
                Step::Take(units) => ledger.spend(now, bench.spend(&policy, units)),
                Step::Refund(_) => ledger.spend(now, bench.spend(&policy, count)),
                Step::Policy(_) => {}
            }
        }
        // All outstanding units are spent without a report, then other clients take all available
        // units, twice.
        let last = spenders.iter().map(|spender| spender.end).max().unwrap_or(0);
        for spender in spenders {
            ledger.spend(spender.end.saturating_sub(1), spender.left);
        }
        for wait in [0, idle, idle, 1] {
            bench.now_ns = bench.now_ns.max(last) + wait;
            bench.engine.sweep(bench.now(), 1000);
            ledger.spend(bench.now_ns, bench.spend(&policy, count));
        }
        prop_assert_eq!(ledger.excess(&policy.algorithm), None);
    }

    #[test]
    fn used_and_outstanding_never_exceed_the_limit(
        count in 1..=200_u64,
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let policies = any_kind(count).map(policy);
        let (mut bench, mut policy) = (Bench::new(), policies[0]);
        let mut balances: BTreeMap<usize, Balance> = BTreeMap::new();
        for (gap, step) in steps {
            bench.now_ns += gap;
            match step {
                Step::Call { client, used, unused, want, weight, ttl } => {
                    let [_, _, used, unused] = reported(&balances, client, used, unused);
                    let params = LeaseParams { used, unused, weight, ttl, ..ask(CLIENTS[client], want) };
                    let line = bench.lease(&policy, &params);
                    prop_assert!(line.granted <= want && line.granted <= line.safe);
                    prop_assert!(line.safe == 0 || line.refresh_ms <= line.ttl_ms.max(1));
                    balances.insert(client, Balance { units: line.safe, end: 0 });
                }
                Step::Take(units) => {
                    bench.spend(&policy, units);
                }
                Step::Refund(units) => {
                    bench.refund(&policy, units);
                }
                Step::Policy(index) => policy = policies[index],
            }
            let out = bench.outstanding(&policy);
            prop_assert!(out <= count);
            // The last two policies are smaller: more units may be outstanding than they allow.
            let limit = if policies[KINDS - 2..].contains(&policy) { count.div_ceil(3) } else { count };
            prop_assert!(bench.remaining(&policy) <= limit.saturating_sub(out), "{:?}", step);
        }
    }

    /// Holds for any numbers, clock and restored state.
    #[test]
    fn nothing_panics_or_overflows(
        count in prop_oneof![1..=5_u64, 1..=COUNT_MAX, Just(COUNT_MAX)],
        garbage in prop::collection::vec(any::<u8>(), 0..200),
        leases in 0..3_u16,
        by in any::<i128>(),
        calls in prop::collection::vec((
            any::<u64>(), 0..64_u32, 0..KINDS, 0..CLIENTS.len(), any::<[u64; 4]>(), any::<u32>()
        ), 1..20),
    ) {
        let policies = any_kind(count).map(policy);
        let mut bench = Bench::new();
        let mut body = (leases & 1 | leases << 14).to_le_bytes().to_vec();
        body.extend_from_slice(&garbage);
        let policy = policies[count as usize % KINDS];
        let (key, client_flags, cas, left_ms) = (KEY, 0, 1, u64::MAX);
        let record = LimitRecord { key, client_flags, cas, left_ms, policy, body: &body };
        bench.engine.restore_limit(bench.now(), bench.hash, &record, by);
        for (at, cut, kind, client, [want, used, unused, ttl], weight) in calls {
            bench.now_ns = at >> cut;
            let (want, ttl) = (want >> cut, Some(ttl >> cut));
            let client = CLIENTS[client].as_bytes();
            let (max, peek) = (u64::MAX, false);
            let params = LeaseParams { client, want, used, unused, weight, ttl, max, peek };
            let line = bench.lease(&policies[kind], &params);
            prop_assert!(line.granted <= want);
            bench.spend(&policies[kind], used >> cut >> 11);
        }
    }
}
