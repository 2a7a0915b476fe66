//! The fast path of the commonest requests and the general path of all others: a client cannot
//! distinguish them.
//!
//! A server with `stats detail` always uses the general path; another one uses the fast path where
//! it can. Both get the same requests at the same time. Not here: the content of the replies
//! (`transcript`).

use engine::Now;
use proptest::prelude::*;
use tests::{Core, CoreClient};
use tollgate::config::Config;

const POLICIES: [&str; 8] = [
    "bucket:5/1s",
    "bucket:4/3s,capacity=9,debt=2",
    "gcra:3/1s,burst=4",
    "fixed:6/2s",
    "sliding:7/2s",
    "log:5/1s",
    "concurrency:3,hold=1s",
    "bucket:2/1s,shadow",
];

const PLAIN_KEYS: [&str; 6] = ["a", "b2", "c33", "d444", "e5555", "f66666"];

/// Keys that the limits of the file below match, and keys beside them.
const BOUND_KEYS: [&str; 18] = [
    "login:192.0.2.1",
    "login:192.0.2.200",
    "login:203.0.113.9",
    "login:10.1.1.1",
    "login:nowhere",
    "rack::attack:12:req/ip:192.0.2.1",
    "api:a",
    "api:a#remaining",
    "api:a#info",
    "quiet:a",
    "watched:a",
    "counted:a",
    "tenant:t",
    "user:t:u",
    "seat:t:u",
    "queue:t:u",
    "tokens:t:u",
    "plain",
];
const LIMITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/limits/bound.toml");

/// Requests for counters and limits, in all spellings with a fast path of their own.
fn request(keys: &'static [&'static str]) -> impl Strategy<Value = String> {
    let key = || prop::sample::select(keys);
    let exptime = prop::sample::select(vec!["0", "0", "0", "1", "2", "-1"]);
    let value = prop_oneof![
        4 => (0..300_u64).prop_map(|number| number.to_string()),
        1 => prop::sample::select(vec![
            "", "word", "007", " 5", "4294967295", "18446744073709551615", "99999999999999999999",
        ]).prop_map(str::to_owned),
        1 => (1000..6000_usize).prop_map(|length| "v".repeat(length)),
    ];
    let verb =
        prop::sample::select(vec!["set", "set", "set", "add", "replace", "append", "prepend"]);
    let store = (verb, key(), prop::sample::select(vec![0, 0, 0, 7, u32::MAX]), exptime, value)
        .prop_map(|(verb, key, flags, exptime, value)| {
            format!("{verb} {key} {flags} {exptime} {}\r\n{value}\r\n", value.len())
        });
    let delta = prop::sample::select(vec!["1", "1", "1", "0", "5", "300", "4294967295", "x"]);
    let count = (prop::sample::select(vec!["incr", "decr"]), key(), delta, any::<bool>()).prop_map(
        |(verb, key, delta, quiet)| {
            format!("{verb} {key} {delta}{}\r\n", if quiet { " noreply" } else { "" })
        },
    );
    let get = (prop::sample::select(vec!["get", "get", "gets", "gat 2"]), key(), key(), 1..4_u8)
        .prop_map(|(verb, one, other, count)| match count {
            1 | 2 => format!("{verb} {one}\r\n"),
            _ => format!("{verb} {one} {other} {one}\r\n"),
        });
    let options = ["", "", "", "", " peek", " part", " hold=300ms", " wait=200ms", " cas"];
    let take = (
        key(),
        0..7_u64,
        prop::sample::select(POLICIES.to_vec()),
        prop::sample::select(options.to_vec()),
    )
        .prop_map(|(key, cost, policy, option)| {
            // Each key mostly has one policy.
            let own = POLICIES[key.len() % POLICIES.len()];
            let policy = if cost < 6 { own } else { policy };
            format!("take {key}-limit {cost} {policy}{option}\r\n")
        });
    let other = (
        prop::sample::select(vec![
            "delete {}",
            "touch {} 1",
            "mg {} v c t h l s f",
            "mg {} v N1 R2",
            "ma {} N0 J7 v t c",
            "ma {} MD D3 q",
            "md {} I T2",
            "me {}",
            "take {} 1 fixed:3/1s",
            "take {} 1 -",
            "take {} 2 -",
            "refund {}-limit 1",
            "get {}-limit",
            "incr {}-limit 1",
            "delete {}-limit",
            "incrx {} 2 5s",
            "mn",
            "version",
            "flush_all 1",
            "bogus {}",
        ]),
        key(),
    )
        .prop_map(|(line, key)| format!("{}\r\n", line.replace("{}", key)));
    prop_oneof![4 => count, 3 => store, 3 => get, 4 => take, 2 => other]
}

type Batches = Vec<(u64, Vec<String>)>;

/// Batches of requests, each with its delay in milliseconds after the one before.
fn batches(keys: &'static [&'static str]) -> impl Strategy<Value = Batches> {
    let later = prop::sample::select(vec![0, 1, 90, 400, 1100, 21_000]);
    prop::collection::vec((later, prop::collection::vec(request(keys), 1..40)), 1..12)
}

fn ask(core: &Core, client: &mut CoreClient, wire: &str) -> String {
    let mut out = Vec::new();
    client.send(core, wire.as_bytes(), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// All statistics except those of the process.
fn stats(core: &Core, client: &mut CoreClient) -> String {
    let stats = ask(core, client, "stats\r\nstats limits\r\n");
    let lines = stats.lines().filter(|line| !line.starts_with("STAT rusage_"));
    lines.collect::<Vec<_>>().join("\n")
}

fn check(limits: Option<&str>, batches: Batches) -> Result<(), TestCaseError> {
    let [mut short, mut long] = [false, true].map(|detail_enabled| {
        let limits_file = limits.map(Into::into);
        let memory_bytes = 8 << 20;
        let config = Config { memory_bytes, limits_file, detail_enabled, ..Config::default() };
        Core::new(config)
    });
    let (mut one, mut other) = (CoreClient::default(), CoreClient::default());
    let mut ms = 1_000;
    for (later, batch) in batches {
        ms += later;
        (short.now, long.now) = (Now::at_ms(ms), Now::at_ms(ms));
        let wire = batch.concat();
        let answers = ask(&short, &mut one, &wire);
        prop_assert_eq!(answers, ask(&long, &mut other, &wire), "{}", wire.escape_debug());
    }
    prop_assert_eq!(stats(&short, &mut one), stats(&long, &mut other));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn both_ways_answer_and_count_the_same(batches in batches(&PLAIN_KEYS)) {
        check(None, batches)?;
    }

    #[test]
    fn both_ways_answer_and_count_the_same_under_limits(batches in batches(&BOUND_KEYS)) {
        check(Some(LIMITS), batches)?;
    }
}
