//! Tests of the replay: against an engine that ran the same stream.

use std::cell::Cell;
use std::sync::Arc;

use engine::{Engine, EngineOptions, KeyHasher, MemoryCap};
use proptest::prelude::*;
use protocol::{Bounds, Policy};
use tollgate_limits::Limits;

use super::*;
use crate::limits::LimitsHandle;
use crate::observe::recorder::FlightRecorder;
use crate::observe::sample::{KeySample, RecordedSample, record_mask};
use crate::shards::ShardsOptions;

const SEEDS: [u64; 4] = [1, 2, 3, 4];
/// The Unix time at the origin of the monotonic clock of [`Now::at_ms`].
const ORIGIN_MS: u64 = 1_700_000_000_000;
const HOUR_MS: u64 = 3_600_000;

/// Every algorithm, with limits that a stream of some requests a minute meets.
const POLICIES: [&str; 20] = [
    "unlimited",
    "block",
    "bucket:20/m,capacity=30",
    "bucket:3/10s,debt=4",
    "bucket:100/h,init=5",
    "bucket:30/m,warm=2m",
    "bucket:6/30s,interval",
    "gcra:20/m,burst=5",
    "gcra:1/7s",
    "leaky:20/m,capacity=6",
    "leaky:20/m,capacity=6,wait=1s",
    "fixed:40/m",
    "fixed:300/h,align=calendar",
    "fixed:40/m,align=calendar,phase=auto",
    "sliding:40/m,slices=12",
    "sliding:40/m,slices=6,strict",
    "sliding:100/5m",
    "log:30/m",
    "concurrency:5,hold=20s",
    "fixed:40/m,over",
];

fn shards() -> Shards {
    Shards::new(ShardsOptions {
        memory_bytes: 64 << 20,
        may_evict: true,
        cas: true,
        bounds: Bounds::default(),
        workers: 1,
        seeds: SEEDS,
        partition_prefix: None,
    })
}

fn limit(policy: &str) -> String {
    format!("[[limit]]\nname = \"api\"\nmatch = \"api:{{user}}\"\npolicy = \"{policy}\"\n")
}

fn active(text: &str) -> Arc<ActiveLimits> {
    let limits = Limits::parse("limits.toml", text.as_bytes()).expect(text);
    LimitsHandle::new(limits, 1).load()
}

/// An attempt of a stream.
#[derive(Debug, Clone, Copy)]
struct Attempted {
    at_ms: u64,
    user: u64,
    cost: u64,
    verb: SampledVerb,
}

/// The server whose decisions are recorded: an engine under one policy.
struct Twin {
    engine: Engine,
    hasher: KeyHasher,
    policy: Option<Policy>,
}

impl Twin {
    fn new(policy: Option<&str>) -> Self {
        let hasher = KeyHasher::new(SEEDS);
        let memory_cap = Arc::new(MemoryCap::new(256 << 20));
        let engine = Engine::new(hasher.clone(), memory_cap, EngineOptions::default());
        let policy = policy.map(|text| Policy::parse(text.as_bytes()).expect(text));
        Self { engine, hasher, policy }
    }

    fn decide(&mut self, attempt: &Attempted, key: &[u8]) -> SampledVerdict {
        let Some(policy) = &self.policy else { return SampledVerdict::Allowed };
        let is_plain = matches!(attempt.verb, SampledVerb::Incr | SampledVerb::MetaArithmetic);
        let take =
            TakeParams { cost: attempt.cost, wait: is_plain.then_some(0), ..TakeParams::default() };
        let now = Now::at_ms(attempt.at_ms - ORIGIN_MS);
        let hash = self.hasher.hash(key);
        match self.engine.take(now, hash, key, Some(policy.into()), &take) {
            TakeResult::Decided(facts) if facts.refuses() => SampledVerdict::Denied,
            TakeResult::Decided(facts) if facts.shadow => SampledVerdict::ShadowDenied,
            TakeResult::Decided(_) => SampledVerdict::Allowed,
            other => panic!("{other:?}"),
        }
    }
}

/// Runs a stream on a server under `policy` and records it. Returns the denials of each hash too.
fn recorded(policy: Option<&str>, stream: &[Attempted]) -> (Recording, HashMap<u64, (u64, u64)>) {
    let mut twin = Twin::new(policy);
    let mut recorder = FlightRecorder::new(8 << 20);
    let mut denials = HashMap::new();
    for attempt in stream {
        let key = format!("api:{}", attempt.user);
        let verdict = twin.decide(attempt, key.as_bytes());
        let hash = twin.hasher.hash(key.as_bytes());
        let row: &mut (u64, u64) = denials.entry(hash).or_default();
        row.0 += 1;
        row.1 += u64::from(verdict == SampledVerdict::Denied);
        recorder.record(&RecordedSample {
            at_ms: attempt.at_ms,
            hash,
            key: KeySample::new(key.as_bytes()),
            cost: attempt.cost,
            verdict,
            verb: attempt.verb,
        });
    }
    (recorder.recording(), denials)
}

/// Returns whether a key with this hash is in the first sample.
fn is_sampled(hash: u64) -> bool {
    hash & record_mask(6) == 0
}

/// Users whose keys are in the sample, and some whose keys are not.
fn users() -> Vec<u64> {
    let hasher = KeyHasher::new(SEEDS);
    let is_in = |user: &u64| is_sampled(hasher.hash(format!("api:{user}").as_bytes()));
    (0..).filter(is_in).take(40).chain(0..20).collect()
}

fn verb(number: u64) -> SampledVerb {
    [SampledVerb::Incr, SampledVerb::MetaArithmetic, SampledVerb::Take, SampledVerb::TakeMany]
        [number as usize % 4]
}

/// Returns an hour of some attempts a minute and user, in bursts.
fn hour(seed: u64) -> Vec<Attempted> {
    let users = users();
    let mut state = seed;
    let mut draw = |end: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let mut at_ms = ORIGIN_MS + 5000;
    let mut stream = Vec::new();
    loop {
        at_ms += draw(200) * draw(3);
        if at_ms > ORIGIN_MS + HOUR_MS {
            return stream;
        }
        let user = users[(draw(60) * draw(60) / 60) as usize];
        stream.push(Attempted { at_ms, user, cost: 1 + draw(3), verb: verb(draw(4)) });
    }
}

fn never() -> bool {
    false
}

struct Tried {
    counts: TryCounts,
    rows: Vec<KeyTally>,
}

fn tried(recording: &Recording, now: &ActiveLimits, then: &str, span_ms: (u64, u64)) -> Tried {
    let then = now.limits().with_trial("api", then).expect(then);
    let then = LimitsHandle::new(then, 1).load();
    let shards = shards();
    let trial = Trial {
        name: "api",
        now,
        then: &then,
        shards: &shards,
        origin_unix_ns: ORIGIN_MS * 1_000_000,
        span_ms,
    };
    let show = |_: u64, key: &[u8], _: &str| String::from_utf8_lossy(key).into_owned();
    let counts = trial.replay(recording, &never, &show).expect("it is short");
    let subjects = trial.subjects(recording);
    let tallies = trial.tally(recording, &subjects, &never, &mut TryCounts::default());
    let (rows, _) = tallies.expect("it is short");
    assert_eq!(shards.totals().items, 0, "the store itself is not touched");
    Tried { counts, rows }
}

/// Checks a trial of `then` on a server under `now` against servers that ran each of them.
fn check(now: Option<&str>, then: &str, stream: &[Attempted]) {
    let (recording, denied_now) = recorded(now, stream);
    let (_, denied_then) = recorded(Some(then), stream);
    let limits = active(&now.map(limit).unwrap_or_default());
    let span_ms = (ORIGIN_MS, ORIGIN_MS + 2 * HOUR_MS);
    let Tried { counts, rows } = tried(&recording, &limits, &limit(then), span_ms);
    assert!((counts.fidelity() - 1.0).abs() < f64::EPSILON, "{now:?}: {}", counts.fidelity());
    assert_eq!(rows.len(), denied_now.keys().filter(|hash| is_sampled(**hash)).count());
    for row in rows {
        let (requests, denied) = denied_now[&row.hash];
        assert_eq!((row.requests, row.denied_now), (requests, denied), "{now:?}");
        assert_eq!(row.denied_then, denied_then[&row.hash].1, "{now:?}, then {then}");
    }
}

#[test]
fn same_limit_repeats_every_verdict() {
    let stream = hour(1);
    for policy in POLICIES {
        check(Some(policy), policy, &stream);
    }
}

#[test]
fn other_limit_equals_a_server_that_ran_it() {
    let stream = hour(2);
    for (index, now) in POLICIES.iter().enumerate() {
        let then = POLICIES[(index * 7 + 3) % POLICIES.len()];
        check(Some(now), then, &stream);
    }
    for then in ["bucket:3/m", "sliding:5/m,slices=6", "log:3/m"] {
        check(None, then, &stream);
    }
}

fn any_stream() -> impl Strategy<Value = Vec<Attempted>> {
    let users = users();
    let step = (0..5000_u64, prop::sample::select(users), 0..40_u64, 0..4_u64);
    prop::collection::vec(step, 1..400).prop_map(|steps| {
        let mut at_ms = ORIGIN_MS + 1000;
        let each = steps.into_iter().map(|(gap_ms, user, cost, number)| {
            at_ms += gap_ms;
            // Peeks are no attempts, so a cost of 0 is not recorded.
            Attempted { at_ms, user, cost: 1 + cost / 10, verb: verb(number) }
        });
        each.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_stream_equals_servers_that_ran_it(
        stream in any_stream(),
        now in prop::sample::select(POLICIES.to_vec()),
        then in prop::sample::select(POLICIES.to_vec()),
    ) {
        check(Some(now), then, &stream);
    }
}

#[test]
fn shadow_limit_counts_its_denials_then_and_not_now() {
    let (recording, _) = recorded(Some("fixed:40/m,shadow"), &hour(3));
    let span_ms = (ORIGIN_MS, ORIGIN_MS + HOUR_MS);
    let text = limit("fixed:40/m,shadow");
    let tried = tried(&recording, &active(&text), &text, span_ms);
    assert!((tried.counts.fidelity() - 1.0).abs() < f64::EPSILON);
    assert!(tried.rows.iter().all(|row| row.denied_now == 0));
    assert!(tried.rows.iter().any(|row| row.denied_then > 0));
    assert!(!tried.counts.newly_denied().is_empty());
}

#[test]
fn patterns_counted_keys_and_overrides_are_those_of_the_text() {
    let stream = hour(4);
    let (recording, _) = recorded(Some("unlimited"), &stream);
    let blocked = users()[0];
    let text = limit("fixed:100000/h")
        + "key = \"all\"\noverrides = [{ key = \"all\", policy = \"fixed:7/366d\" }]\n";
    let span_ms = (ORIGIN_MS, ORIGIN_MS + HOUR_MS);
    let limits = active(&limit("unlimited"));
    let tally = tried(&recording, &limits, &text, span_ms);
    let allowed: u64 = tally.rows.iter().map(|row| row.requests - row.denied_then).sum();
    assert!((1..=7).contains(&allowed), "all keys share seven units, not {allowed}");
    assert!(tally.counts.newly_denied().iter().all(|key| key == "all"));

    let text = format!(
        "[[limit]]\nname = \"api\"\nmatch = \"api:{{user}}\"\npolicy = \"unlimited\"\n\
         overrides = [{{ key = \"api:{blocked}\", policy = \"block\" }}]\n"
    );
    let tally = tried(&recording, &limits, &text, span_ms);
    assert_eq!(tally.counts.newly_denied(), [format!("api:{blocked}")]);
    assert!(tally.counts.newly_allowed().is_empty());

    // The text gives the keys up, so they are plain.
    let (recording, _) = recorded(Some("block"), &stream);
    let text = limit("block").replace("api:{user}", "other:{user}");
    let tally = tried(&recording, &active(&limit("block")), &text, span_ms);
    assert!(tally.rows.iter().all(|row| row.denied_then == 0 && row.denied_now > 0));
    assert_eq!(tally.counts.newly_allowed().len(), 20);
}

#[test]
fn parents_are_charged_and_the_answer_is_partial() {
    let (recording, _) = recorded(Some("unlimited"), &hour(5));
    let parent = "[[limit]]\nname = \"all\"\nmatch = \"all\"\npolicy = \"fixed:9/366d\"\n";
    let limits = active(&(limit("unlimited") + parent));
    let text = limit("unlimited") + "parents = [\"all\"]\n";
    let span_ms = (ORIGIN_MS, ORIGIN_MS + HOUR_MS);
    let tally = tried(&recording, &limits, &text, span_ms);
    let allowed: u64 = tally.rows.iter().map(|row| row.requests - row.denied_then).sum();
    assert!((1..=9).contains(&allowed), "{allowed}");
    assert!(tally.counts.has_parents);
    let metrics = limits.metrics(0).expect("two limits").sums();
    assert_eq!(metrics, crate::limits::LimitTotals::default(), "a replay is no traffic");
    let tally = tried(&recording, &limits, &limit("unlimited"), span_ms);
    assert!(!tally.counts.has_parents);
}

/// Keys that a text counts as one are recorded one by one, so the answer says that some lack.
#[test]
fn a_text_that_counts_more_coarsely_is_partial() {
    let mut recorder = FlightRecorder::new(1 << 20);
    let hasher = KeyHasher::new(SEEDS);
    for user in 0..400_u64 {
        let key = format!("api:{}:{user}", if user % 2 == 0 { "acme" } else { "globex" });
        let hash = hasher.hash(key.as_bytes());
        let (at_ms, cost, sample) = (ORIGIN_MS + user, 1, KeySample::new(key.as_bytes()));
        let (verb, verdict) = (SampledVerb::Incr, SampledVerdict::Allowed);
        recorder.record(&RecordedSample { at_ms, hash, key: sample, cost, verb, verdict });
    }
    let recording = recorder.recording();
    let span_ms = (ORIGIN_MS, ORIGIN_MS + HOUR_MS);
    let limit = |pattern: &str, key: &str, count: u64| {
        let key = if key.is_empty() { String::new() } else { format!("key = \"{key}\"\n") };
        format!(
            "[[limit]]\nname = \"api\"\nmatch = \"{pattern}\"\n{key}policy = \"fixed:{count}/h\"\n"
        )
    };
    let of_users = limit("api:{tenant}:{user}", "", 9);
    let partial =
        |now: &str, then: &str| tried(&recording, &active(now), then, span_ms).counts.is_coarser;
    let by_tenant = limit("api:{tenant}:{user}", "{tenant}", 1);
    for now in ["", &of_users] {
        assert!(partial(now, &by_tenant), "{now}");
        assert!(partial(now, &limit("api:*:{user}", "u:{user}", 9)), "{now}");
        assert!(!partial(now, &limit("api:{tenant}:{user}", "", 1)), "{now}");
        assert!(!partial(now, &limit("api:{tenant}:{user}", "{user}@{tenant}", 1)), "{now}");
    }
    assert!(!partial(&by_tenant, &by_tenant));
    assert!(!partial(&by_tenant, &of_users));
    let of_plans = limit("api:{tenant}:{user:alnum}:*", "{tenant}:{user}", 9);
    let counts = tried(&recording, &active(&of_users), &by_tenant, span_ms).counts;
    let mut denied = counts.newly_denied();
    denied.sort();
    assert_eq!(denied, ["acme", "globex"], "each counted key once");
    assert!(!partial(&of_users, &of_plans), "it binds no recorded key");
}

#[test]
fn earlier_events_warm_the_states_and_are_not_counted() {
    let stream = hour(6);
    let policy = "fixed:200/2h";
    let (recording, _) = recorded(Some(policy), &stream);
    let limits = active(&limit(policy));
    let span_ms = (ORIGIN_MS + HOUR_MS / 2, ORIGIN_MS + HOUR_MS);
    let tally = tried(&recording, &limits, &limit(policy), span_ms);
    assert!((tally.counts.fidelity() - 1.0).abs() < f64::EPSILON);
    let wanted = recording.events().filter(|event| event.at_ms >= span_ms.0).count() as u64;
    assert_eq!(tally.counts.requests(), wanted);
    assert_eq!(tally.counts.span_ms, HOUR_MS / 2);
}

#[test]
fn replay_that_takes_too_long_says_so() {
    let (recording, _) = recorded(Some("unlimited"), &hour(7));
    let limits = active(&limit("unlimited"));
    let shards = shards();
    let trial = Trial {
        name: "api",
        now: &limits,
        then: &limits,
        shards: &shards,
        origin_unix_ns: ORIGIN_MS * 1_000_000,
        span_ms: (ORIGIN_MS, ORIGIN_MS + HOUR_MS),
    };
    let looks = Cell::new(0);
    let is_over = || {
        looks.set(looks.get() + 1);
        looks.get() > 3
    };
    let result = trial.replay(&recording, &is_over, &|_, _, _| String::new());
    let all = 2 * recording.events().count();
    assert_eq!(result, Err(ReplayError::TooLong { done: 3 * EVENTS_PER_LOOK, all }));
}

#[test]
fn full_recorder_is_replayed_within_the_time() {
    let hasher = KeyHasher::new(SEEDS);
    let keys: Vec<(u64, String)> = (0..)
        .map(|user| format!("api:{user}"))
        .map(|key| (hasher.hash(key.as_bytes()), key))
        .filter(|(hash, _)| is_sampled(*hash))
        .take(5000)
        .collect();
    let mut recorder = FlightRecorder::new(8 << 20);
    for number in 0..349_000_u64 {
        let (hash, key) = &keys[(number * number % 4999) as usize];
        recorder.record(&RecordedSample {
            at_ms: ORIGIN_MS + 1000 + number * 10,
            hash: *hash,
            key: KeySample::new(key.as_bytes()),
            cost: 1,
            verdict: SampledVerdict::Allowed,
            verb: SampledVerb::Take,
        });
    }
    let recording = recorder.recording();
    assert_eq!(recording.events().count(), 349_000);
    let limits = active(&limit("bucket:1000/h"));
    let text = limit("sliding:30/m,slices=12");
    let start_ns = processor_ns();
    let tally = tried(&recording, &limits, &text, (ORIGIN_MS, ORIGIN_MS + HOUR_MS));
    // It is replayed a second time for its rows.
    let spent_ms = (processor_ns() - start_ns) / 2 / 1_000_000;
    println!("{} events under both limits: {spent_ms} ms", tally.counts.requests());
    assert!(spent_ms < 5000, "{spent_ms}");
}

/// Returns the time that this thread has spent on a processor, whatever else runs.
fn processor_ns() -> u64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells");
    let first = times.split(' ').next().expect("three numbers");
    first.parse().expect("a number")
}

#[test]
fn empty_recording_has_too_few_keys() {
    let recording = FlightRecorder::new(1 << 20).recording();
    let tally = tried(&recording, &active(""), &limit("fixed:1/s"), (ORIGIN_MS, ORIGIN_MS + 1));
    assert!(tally.counts.is_too_few() && tally.rows.is_empty());
    assert_eq!(tally.counts.span_ms, 0);
}
