//! Refused callers that come back: the number of their attempts, by their way of waiting.
//!
//! Here: a crowd that meets a limit at one instant, on simulated time, and the table of
//! `docs/start/clients.md`, which is generated from it. Not here: limits themselves (`engine`).

use std::{cmp::Reverse, collections::BinaryHeap, fmt::Write as _, fs, path::Path};

use engine::Now;
use tests::{Core, CoreClient};
use tollgate::config::Config;

/// When the crowd arrives.
const START_MS: u64 = 1_000;
/// Above this number of attempts the run ends.
const ATTEMPTS_MAX: u64 = 1_000_000;
/// Attempts of the first moment are the same for every way of waiting and are not counted.
const FIRST_MS: u64 = 10;

/// Milliseconds to wait after `refusals` refusals in a row, the last one with this `retry`.
type Wait = fn(refusals: u32, retry_ms: u64, random: &mut Random) -> u64;

/// xorshift64: any sequence serves, provided that it is the same each time.
struct Random(u64);

impl Random {
    /// A number in `0..=most`.
    fn up_to(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (most + 1)
    }
}

/// Waits exactly the time in the reply.
fn exactly(_: u32, retry_ms: u64, _: &mut Random) -> u64 {
    retry_ms
}

/// Doubles the time in the reply with each refusal, without randomness.
fn doubled(refusals: u32, retry_ms: u64, _: &mut Random) -> u64 {
    retry_ms << refusals.min(12)
}

/// The advice of the page: at least `retry`, plus a random part of a time that doubles.
fn spread(refusals: u32, retry_ms: u64, random: &mut Random) -> u64 {
    let base = retry_ms.max(50);
    retry_ms + random.up_to((base << refusals.min(12)).min(30_000))
}

/// The result of a crowd.
#[derive(Debug)]
struct Outcome {
    callers: u64,
    attempts: u64,
    refusals: u64,
    /// The milliseconds from the start until the last caller passed.
    last_ms: u64,
    /// The most attempts in one span of 10 ms after the first moment.
    burst: u64,
    /// All attempts after the first moment.
    later: u64,
}

impl Outcome {
    fn row(&self, what: &str) -> String {
        let tenths = self.attempts * 10 / self.callers;
        format!(
            "| {what} | {} | {}.{} | {}.{} s | {} |",
            self.refusals,
            tenths / 10,
            tenths % 10,
            self.last_ms / 1000,
            self.last_ms % 1000 / 100,
            self.burst,
        )
    }
}

/// Lets `callers` callers request one unit each until all have passed.
fn crowd(callers: u64, policy: &str, wait: Wait) -> Outcome {
    let mut core = Core::new(Config { threads: 1, ..Config::default() });
    let mut client = CoreClient::default();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut queue: BinaryHeap<_> =
        (0..callers).map(|who| Reverse((START_MS, who, 0_u32))).collect();
    let (mut attempts, mut refusals, mut last_ms, mut later) = (0, 0, 0, Vec::new());
    while let Some(Reverse((at_ms, who, refused))) = queue.pop() {
        assert!(attempts < ATTEMPTS_MAX, "they never get through");
        attempts += 1;
        core.now = Now::at_ms(at_ms);
        let mut answer = Vec::new();
        client.send(&core, format!("take k 1 {policy}\r\n").as_bytes(), &mut answer);
        let answer = String::from_utf8(answer).expect("a verdict is text");
        let words: Vec<&str> = answer.split_whitespace().collect();
        let retry_ms: u64 = words[3].parse().expect("a time that comes");
        if at_ms >= START_MS + FIRST_MS {
            later.push(at_ms);
        }
        match words[0] {
            "ALLOW" => last_ms = last_ms.max(at_ms - START_MS),
            // The caller has its unit and may proceed after that time, without another request.
            "WAIT" => last_ms = last_ms.max(at_ms + retry_ms - START_MS),
            "DENY" => {
                refusals += 1;
                let next = at_ms + wait(refused + 1, retry_ms, &mut random);
                queue.push(Reverse((next, who, refused + 1)));
            }
            _ => panic!("{answer}"),
        }
    }
    // The instants are in order.
    let spans = later
        .iter()
        .enumerate()
        .map(|(first, at_ms)| later[first..].partition_point(|other| *other < at_ms + 10) as u64);
    let burst = spans.max().unwrap_or(0);
    Outcome { callers, attempts, refusals, last_ms, burst, later: later.len() as u64 }
}

#[test]
fn a_crowd_that_spreads_asks_seldom_and_passes() {
    let bucket = "bucket:100/s,capacity=100";
    let spread_out = crowd(1000, bucket, spread);
    assert!(spread_out.attempts <= 9 * 1000, "{spread_out:?}");
    // 900 callers need 9 s at least.
    assert!((9_000..=36_000).contains(&spread_out.last_ms), "{spread_out:?}");
    assert!(spread_out.burst * 100 <= spread_out.later * 6, "{spread_out:?}");
    // The ways of waiting that the page warns of.
    let obedient = crowd(1000, bucket, exactly);
    assert!(obedient.attempts > 40 * spread_out.attempts, "{obedient:?}");
    let in_step = crowd(1000, bucket, doubled);
    assert!(in_step.last_ms > 3 * spread_out.last_ms, "{in_step:?}");
    // A place in the queue is better than each of them.
    let queued = crowd(1000, "leaky:100/s,capacity=1000,wait=10s", exactly);
    assert_eq!((queued.attempts, queued.refusals), (1000, 0));
    assert!(queued.last_ms <= 10_000, "{queued:?}");
}

#[test]
fn the_page_for_clients_has_these_figures() {
    let (few, many) = ("bucket:10/s,capacity=1", "bucket:100/s,capacity=100");
    let mut table = String::new();
    for (callers, policy, queue) in [
        (50, few, "leaky:10/s,capacity=50,wait=10s"),
        (1000, many, "leaky:100/s,capacity=1000,wait=10s"),
    ] {
        let ways: [(&str, &str, Wait); 4] = [
            ("come back at `retry`", policy, exactly),
            ("come back at `retry` · 2ⁿ", policy, doubled),
            ("**come back at `retry` + chance**", policy, spread),
            ("wait in a queue", queue, exactly),
        ];
        for (what, policy, wait) in ways {
            let outcome = crowd(callers, policy, wait);
            let row = outcome.row(&format!("{callers} callers, `{policy}`: {what}"));
            writeln!(table, "{row}").expect("a String");
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/start/clients.md");
    let page = fs::read_to_string(&path).expect("the page is there");
    assert!(page.contains(&table), "{} should say:\n{table}", path.display());
}
