//! Links between two nodes that lose packets, in both directions or in one, while both nodes reach
//! a third one; and a node that loses all of its links.
//!
//! Here: all keys are answered through all nodes, and a node without any link answers at once. Not
//! here: nodes that are cut off in groups (`cut`). Requires network namespaces (`net`), so that
//! packets are lost without an error.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    net::Net,
    nodes::Cluster,
    work::{Account, Work},
};

const FLAGS: &[&str] = &["--partition-bits", "8"];
const KEYS: usize = 60;
/// The time after a cut within which all keys are answered everywhere.
const HEALS_WITHIN: Duration = Duration::from_secs(3);
/// The time after which a node without links answers at once.
const ALONE_AFTER: Duration = Duration::from_secs(2);

/// One reply: its arrival, its latency, and its content.
struct Answer {
    key: usize,
    at: Instant,
    took: Duration,
    text: String,
}

/// A client at one node that requests one key after the other.
struct Asking {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Answer>>,
}

impl Asking {
    fn start(
        cluster: &Cluster,
        node: u8,
        line_of: impl Fn(usize) -> String + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut line = cluster.line(node);
        let is_over = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut answers = Vec::new();
            for key in (0..KEYS).cycle() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let begun = Instant::now();
                let text = line.ask(&line_of(key)).expect("it answers");
                let text = text.expect("it does not hang up");
                if text.starts_with("VALUE ") {
                    let rest = [line.receive(), line.receive()];
                    assert!(rest.iter().all(Result::is_ok), "{rest:?}");
                }
                answers.push(Answer { key, at: Instant::now(), took: begun.elapsed(), text });
                thread::sleep(Duration::from_millis(1));
            }
            answers
        });
        Self { stop, thread }
    }

    fn end(self) -> Vec<Answer> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a client does not panic")
    }
}

/// The duration of faults: some seconds, or the value in the environment.
fn length() -> Duration {
    let seconds = env::var("CUT_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

/// Drops the packets of these directions for a while, and meanwhile requests all keys at all nodes.
fn cut_and_ask(cluster: &Cluster, ways: &[(u8, u8)], account: &mut Account) {
    let nodes = cluster.addresses().len() as u8;
    let asking: Vec<Asking> = (0..nodes)
        .map(|node| Asking::start(cluster, node, |key| format!("incr work{key} 1\r\n")))
        .collect();
    thread::sleep(Duration::from_millis(500));
    for (from, to) in ways {
        cluster.net().lose(*from, *to);
    }
    let cut = Instant::now();
    thread::sleep(length());
    for (from, to) in ways {
        cluster.net().find(*from, *to);
    }
    thread::sleep(Duration::from_millis(500));
    let (mut longest, mut refused, mut last, mut late) = (Duration::ZERO, 0, Duration::ZERO, 0);
    for (node, asking) in asking.into_iter().enumerate() {
        let answers = asking.end();
        assert!(answers.len() > KEYS, "node {node} was asked for each key: {}", cluster.logs());
        for Answer { key, at, took, text } in answers {
            longest = longest.max(took);
            if !account.note(&format!("work{key}"), text) {
                let after = at.saturating_duration_since(cut);
                (refused, last) = (refused + 1, last.max(after));
                late += usize::from(after > HEALS_WITHIN);
            }
        }
    }
    println!("{ways:?}: longest answer {longest:?}, {refused} refused, the last after {last:?}");
    assert_eq!(late, 0, "refused after {HEALS_WITHIN:?}: {:?}{}", account.kinds(), cluster.logs());
}

/// Cuts each link in each direction.
fn cut_each(count: u8, links: impl Fn(u8) -> Vec<(u8, u8)>) {
    let Some(net) = Net::or_say_why("cut links") else { return };
    let cluster = &mut Cluster::start_in(Some(net), count, FLAGS);
    Work::set_up(cluster, KEYS);
    let stat = |number, name| cluster.stat(number, name).expect("the node answers");
    let leader = stat(0, "leader");
    let leader = (0..count).find(|number| stat(*number, "node") == leader).expect("one leads");
    let mut account = Account::default();
    for (one, other) in links(leader) {
        cut_and_ask(cluster, &[(one, other), (other, one)], &mut account);
        cut_and_ask(cluster, &[(one, other)], &mut account);
        cut_and_ask(cluster, &[(other, one)], &mut account);
    }
    account.settle(cluster, 0);
    println!("{} counts, refused {:?}", account.answered, account.kinds());
    cluster.until_at_rest(usize::from(count));
}

/// All links between `count` nodes.
fn all_links(count: u8) -> Vec<(u8, u8)> {
    (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other))).collect()
}

fn is_long() -> bool {
    env::var_os("CUT_SECONDS").is_some()
}

#[test]
fn cut_link_of_three_nodes_is_gone_around() {
    cut_each(3, |leader| if is_long() { all_links(3) } else { vec![(leader, (leader + 1) % 3)] });
}

#[test]
fn cut_link_of_five_nodes_is_gone_around() {
    cut_each(
        5,
        |leader| {
            if is_long() { all_links(5) } else { vec![((leader + 1) % 5, (leader + 2) % 5)] }
        },
    );
}

#[test]
fn isolated_node_answers_at_once() {
    let Some(net) = Net::or_say_why("a node that reaches nobody") else { return };
    let mut cluster = Cluster::start_in(Some(net), 3, FLAGS);
    Work::set_up(&cluster, KEYS);
    cluster.net().isolate(2);
    let cut = Instant::now();
    let limited = Asking::start(&cluster, 2, |key| format!("take login{key} 1 log:90/600s\r\n"));
    let counted = Asking::start(&cluster, 2, |key| format!("incr work{key} 1\r\n"));
    let read = Asking::start(&cluster, 2, |key| format!("get work{key}\r\n"));
    thread::sleep(ALONE_AFTER + length());
    let mut account = Account::default();
    for (what, asking) in [("take", limited), ("incr", counted), ("get", read)] {
        let answers = asking.end();
        let mut took: Vec<Duration> = Vec::new();
        for answer in &answers {
            if what == "incr" {
                account.note(&format!("work{}", answer.key), answer.text.clone());
            }
            if answer.at < cut + ALONE_AFTER + answer.took {
                continue;
            }
            took.push(answer.took);
            let text = &answer.text;
            let is_right = match what {
                "take" => text.starts_with("ALLOW ") || text.starts_with("DENY "),
                _ => text == "SERVER_ERROR not applied: owner unavailable",
            };
            assert!(is_right, "{what}: {text}");
        }
        took.sort_unstable();
        let p99 = took[took.len() * 99 / 100];
        println!("{what}: {} answers, p99 {p99:?}, longest {:?}", took.len(), took.last());
        assert!(took.len() > 200, "{what}: {} answers", took.len());
        assert!(p99 < Duration::from_millis(if is_long() { 5 } else { 50 }), "{what}: {p99:?}");
    }
    cluster.net().heal();
    cluster.until_at_rest(3);
    let healed = Instant::now();
    while !cluster
        .ask(2, "incr work0 1\r\n")
        .parse::<u64>()
        .is_ok_and(|value| account.note("work0", value.to_string()))
    {
        assert!(healed.elapsed() < Duration::from_secs(10), "{}", cluster.logs());
        thread::sleep(Duration::from_millis(20));
    }
    cluster.until_settled();
    account.settle(&cluster, 0);
}
