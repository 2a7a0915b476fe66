//! Real nodes whose wall clocks step and differ: no key is lost, and no limit admits more.
//!
//! Each process has a wall clock of its own by libfaketime, and the machine's monotonic clock.
//! `CLOCKS_SECONDS` lets the tests continue for that time, with steps at every node; without it
//! they make a few steps. Not here: clocks of many seeds (`tests/sim`), the arithmetic
//! (`cluster::replica`).

use std::{
    env, thread,
    time::{Duration, Instant},
};

use super::nodes::{Cluster, LONG, Line};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
const TEN_YEARS: i64 = 3653 * DAY;
/// The steps of clocks in seconds; the right time comes between any two.
const STEPS: [i64; 8] = [HOUR, -HOUR, DAY, -DAY, TEN_YEARS, -TEN_YEARS, 120, -120];

/// Keys of each kind.
const KEYS: usize = 60;
/// Policies that admit two and then none for ten minutes; a key contains its policy's index.
const POLICIES: [&str; 8] = [
    "fixed:2/600s",
    "log:2/600s",
    "sliding:2/600s",
    "sliding:2/600s,strict",
    "sliding:2/600s,slices=10",
    "bucket:2/1200s",
    "gcra:2/1200s",
    "concurrency:2,hold=600s",
];

/// The time that a test continues after its few steps.
fn longer() -> Duration {
    let seconds = env::var("CLOCKS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

/// Keys that live for ten minutes, and limits that are used up for the same time.
struct Stock<'a> {
    cluster: &'a mut Cluster,
    running: Vec<u8>,
}

impl<'a> Stock<'a> {
    fn new(cluster: &'a mut Cluster, nodes: u8) -> Self {
        let stock = Self { cluster, running: (0..nodes).collect() };
        let mut line = stock.cluster.line(0);
        for key in 0..KEYS {
            ask(&mut line, &format!("set item{key} 0 600 1\r\n7\r\n"), "STORED");
            // One key in three has an absolute end, a day from now.
            let end = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let end = end.expect("it is after 1970").as_secs() + 86_400;
            ask(&mut line, &format!("set until{key} 0 {end} 1\r\n7\r\n"), "STORED");
            ask(&mut line, &format!("ma count{key} N600 J7\r\n"), "HD");
            for (number, policy) in POLICIES.iter().enumerate() {
                for _ in 0..2 {
                    let taken = format!("take limit{key}-{number} 1 {policy}\r\n");
                    ask(&mut line, &taken, "ALLOW");
                }
            }
        }
        stock
    }

    /// Waits until every node has swept all its items twice.
    fn until_swept(&self) {
        let checked = |node| -> u64 {
            let mut line = self.cluster.line(node);
            let stats = line.lines("stats\r\n").expect("it answers");
            let find = |name: &str| {
                let stat = stats.iter().find_map(|stat| stat.strip_prefix(name));
                stat.and_then(|word| word.trim().parse().ok()).expect("a figure")
            };
            let items: u64 = find("STAT curr_items ");
            find("STAT crawler_items_checked ") / items.max(1)
        };
        let before: Vec<u64> = self.running.iter().map(|node| checked(*node)).collect();
        let start = Instant::now();
        for (node, before) in self.running.iter().zip(before) {
            while checked(*node) < before + 3 {
                assert!(start.elapsed() < LONG, "no sweep: {}", self.cluster.logs());
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Checks through this node that every key is there, and that no limit admits more.
    #[track_caller]
    fn check(&self, node: u8, what: &str) {
        let mut line = self.cluster.line(node);
        for key in 0..KEYS {
            for name in ["item", "until", "count"] {
                let asked = format!("mg {name}{key} v\r\n");
                let reply = settled(&mut line, &asked);
                assert_eq!(reply.as_deref(), Some("VA 1"), "{what}: {name}{key}");
                assert_eq!(line.receive().expect("it answers").as_deref(), Some("7"));
            }
            for (number, policy) in POLICIES.iter().enumerate() {
                let asked = format!("take limit{key}-{number} 1 {policy}\r\n");
                let reply = settled(&mut line, &asked).unwrap_or_default();
                assert!(reply.starts_with("DENY"), "{what}: {policy} of key {key}: {reply}");
            }
        }
    }

    /// Sets a node's clock, and checks after a sweep, through another node too.
    #[track_caller]
    fn step(&self, node: u8, seconds: i64) {
        self.cluster.set_clock(node, seconds);
        // The node notices it within a tenth of a second, and so do its copies.
        thread::sleep(Duration::from_millis(300));
        self.until_swept();
        let what = format!("the clock of node {node} was set {seconds:+} s ahead");
        let asked = self.running[usize::from(node) % self.running.len()];
        self.check(asked, &what);
    }
}

/// Sends a request that must be answered at once.
#[track_caller]
fn ask(line: &mut Line, text: &str, expected: &str) {
    let reply = settled(line, text).unwrap_or_default();
    assert!(reply.starts_with(expected), "{text}: {reply}");
}

/// The reply, repeating the request while it fails for a moment.
#[track_caller]
fn settled(line: &mut Line, text: &str) -> Option<String> {
    let start = Instant::now();
    loop {
        let reply = line.ask(text).expect("it answers")?;
        let is_error = reply.starts_with("SERVER_ERROR") || reply.contains("degraded=1");
        if !is_error || start.elapsed() > LONG {
            return Some(reply);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_clock_that_steps_loses_nothing_on_one_node() {
    let mut cluster = Cluster::start_with_clocks(&[0], &[]);
    let stock = Stock::new(&mut cluster, 1);
    let start = Instant::now();
    loop {
        for seconds in STEPS {
            stock.step(0, seconds);
        }
        stock.step(0, 0);
        if start.elapsed() >= longer() {
            return;
        }
    }
}

/// Steps the clock of each node; another node joins with a wrong clock; one with a wrong clock
/// dies.
fn steps_at_each_of(nodes: u8, steps: &[i64]) {
    let mut cluster = Cluster::start_with_clocks(&vec![0; usize::from(nodes)], &[]);
    let stock = Stock::new(&mut cluster, nodes);
    for (node, seconds) in (0..nodes).cycle().zip(steps) {
        stock.step(node, *seconds);
        stock.cluster.set_clock(node, 0);
    }
    let Stock { cluster, mut running } = stock;
    let skew = *steps.last().expect("there are some");
    cluster.set_clock(nodes, skew);
    let joined = cluster.join();
    // While it receives its copies, another clock steps.
    cluster.set_clock(0, -skew);
    running.push(joined);
    let stock = Stock { cluster, running };
    stock.cluster.until_at_rest(usize::from(nodes) + 1);
    stock.step(joined, skew);
    let Stock { cluster, mut running } = stock;
    // The first node dies with a wrong clock, and others take over; one of them is wrong too.
    cluster.kill(0);
    running.remove(0);
    let stock = Stock { cluster, running };
    stock.step(1, HOUR);
    stock.step(1, 0);
}

#[test]
fn clocks_that_step_lose_nothing_on_three_nodes() {
    steps_at_each_of(3, &[HOUR, -TEN_YEARS, 120]);
    let start = Instant::now();
    while start.elapsed() < longer() {
        for nodes in [3, 5] {
            for first in 0..STEPS.len() {
                let mut steps = STEPS.repeat(usize::from(nodes));
                steps.rotate_left(first);
                steps_at_each_of(nodes, &steps);
                if start.elapsed() >= longer() {
                    return;
                }
            }
        }
    }
}

/// Waits until a topic of `stats cluster`, read through `node`, is as expected.
#[track_caller]
fn until_reported(cluster: &Cluster, node: u8, topic: &str, is_right: impl Fn(&[String]) -> bool) {
    let start = Instant::now();
    loop {
        let stats = cluster.line(node).lines(topic).expect("it answers");
        if is_right(&stats) {
            return;
        }
        assert!(start.elapsed() < LONG, "{stats:?} {}", cluster.logs());
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_node_with_a_wrong_clock_says_so_and_serves_last() {
    let mut cluster = Cluster::start_with_clocks(&[0, 0, 0], &[]);
    cluster.set_clock(3, 120);
    let joined = cluster.join();
    cluster.until_at_rest(4);
    let has = |stats: &[String], wanted: &str| stats.iter().any(|stat| stat == wanted);
    until_reported(&cluster, joined, "stats cluster\r\n", |stats| has(stats, "STAT clock_off yes"));
    until_reported(&cluster, 0, "stats cluster\r\n", |stats| has(stats, "STAT clock_off no"));
    let id = cluster.stat(joined, "node").expect("it answers");
    let off = format!("STAT {id}:clock_off yes");
    let primaries = format!("STAT {id}:primaries 0");
    until_reported(&cluster, joined, "stats cluster nodes\r\n", |stats| has(stats, &off));
    let nodes = cluster.line(0).lines("stats cluster nodes\r\n").expect("it answers");
    let offset = format!("STAT {id}:clock_offset_ms ");
    let is_measured = |stats: &[String]| {
        let reply = stats.iter().find_map(|stat| stat.strip_prefix(&offset)?.parse::<i64>().ok());
        reply.is_some_and(|ahead| (119_000..121_000).contains(&ahead))
    };
    until_reported(&cluster, joined, "stats cluster nodes\r\n", is_measured);
    assert!(has(&nodes, &primaries), "{nodes:?}");
    let start = Instant::now();
    while !cluster.log(joined).contains("this node's clock is off") {
        assert!(start.elapsed() < LONG, "{}", cluster.log(joined));
        thread::sleep(Duration::from_millis(20));
    }
    // Its clock is set right, and it receives its share of partitions.
    cluster.set_clock(joined, 0);
    until_reported(&cluster, 0, "stats cluster nodes\r\n", |stats| !has(stats, &primaries));
    until_reported(&cluster, joined, "stats cluster\r\n", |stats| has(stats, "STAT clock_off no"));
    cluster.until_at_rest(4);
}

/// Takes from one node as fast as it replies: no window of 300 ms has more than its 30, and after
/// the time that a refusal names, the next request passes.
#[test]
fn a_log_is_exact_where_time_is_a_partitions() {
    const LIMIT: usize = 30;
    const WINDOW: Duration = Duration::from_millis(300);
    let cluster = Cluster::start_with_clocks(&[0], &[]);
    let mut line = cluster.line(0);
    let start = Instant::now();
    let mut passed: Vec<(Instant, Instant)> = Vec::new();
    let mut waits = 0;
    let most = Duration::from_secs(3).max(longer());
    while start.elapsed() < most {
        // The client alternates: half a second as fast as possible, half a second as the reply
        // says.
        let obeys = (start.elapsed().as_millis() / 500) % 2 == 1;
        let sent = Instant::now();
        let reply = line.ask("take exact 1 log:30/300ms\r\n").expect("it answers");
        let (reply, heard) = (reply.expect("it does not hang up"), Instant::now());
        if reply.starts_with("ALLOW") {
            passed.push((sent, heard));
        } else if obeys {
            let retry = reply.split(' ').nth(3).and_then(|word| word.parse().ok()).expect("a time");
            thread::sleep(Duration::from_millis(retry).saturating_sub(heard.elapsed()));
            let sent = Instant::now();
            let reply = line.ask("take exact 1 log:30/300ms\r\n").expect("it answers");
            let reply = reply.expect("it does not hang up");
            assert!(reply.starts_with("ALLOW"), "{reply} after {retry} ms, wait {waits}");
            passed.push((sent, Instant::now()));
            waits += 1;
        }
    }
    for (first, last) in passed.iter().zip(&passed[LIMIT..]) {
        let span = last.1.saturating_duration_since(first.0);
        assert!(span >= WINDOW, "{} within {span:?}", LIMIT + 1);
    }
    assert!(waits > 3 && passed.len() > 100, "{waits} {}", passed.len());
}
