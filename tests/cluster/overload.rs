//! An overloaded cluster, seen by clients: a backup that reads nothing, and nodes with hardly any
//! processor time.
//!
//! Not here: nodes that stop for long or die (`five`, `cut`).

use std::fs;
use std::process::{self, Command};
use std::thread;
use std::time::{Duration, Instant};

use cluster::placement::{Placement, Scheme};
use nix::sys::signal::Signal;

use super::mixed::Busy;
use super::nodes::{Cluster, Line};
use super::work::{Work, circle};

/// The time limit for a reply that needs no other node.
const AT_ONCE: Duration = Duration::from_millis(200);
/// Most requests until one is answered within the time limit; a busy machine may delay some.
const ATTEMPTS: usize = 5;
/// The time in which the values arrive at the node; shorter than the silence that a peer tolerates.
const ARRIVAL: Duration = Duration::from_millis(150);
/// Bytes of one value. Twenty-one of them exceed the 4 MiB of an op stream, and of a send stream.
const VALUE_BYTES: usize = 200_000;
/// Clients that count in batches, and requests of a batch: 460 KB of records.
const CLIENTS: usize = 10;
const BATCH: usize = 1000;

/// `count` keys with the prefix `front` that `node` owns in a cluster of 256 partitions.
pub(super) fn owned(cluster: &Cluster, node: u8, front: &str, count: usize) -> Vec<String> {
    let circle = circle(&cluster.addresses());
    let placement = Placement::new(Scheme::Ketama, 8).expect("few bits");
    let middle = |key: &String| placement.middle(placement.partition(key.as_bytes()));
    let is_owned = |key: &String| circle.owner(middle(key)) == Some(node.into());
    (0..).map(|n| format!("{front}{n}")).filter(is_owned).take(count).collect()
}

#[test]
fn a_backup_that_stands_still_fills_no_memory() {
    // One worker, so one data link.
    let cluster = Cluster::start(2, &["-t", "1", "--replicas", "2"]);
    let value = "v".repeat(VALUE_BYTES);
    let large = owned(&cluster, 0, "large", 30);
    let counters = owned(&cluster, 0, "counter", CLIENTS);
    for key in &counters {
        assert_eq!(cluster.ask(0, &format!("set {key} 0 0 1\r\n0\r\n")), "STORED");
    }
    let mut writers: Vec<Line> = large.iter().map(|_| cluster.line(0)).collect();
    let mut clients: Vec<Line> = counters.iter().map(|_| cluster.line(0)).collect();
    cluster.signal(1, Signal::SIGSTOP);
    for (line, key) in writers.iter_mut().zip(&large) {
        line.send(&format!("set {key} 0 0 {VALUE_BYTES}\r\n{value}\r\n")).expect("it is read");
    }
    thread::sleep(ARRIVAL);
    // A connection with an outstanding request is not read further, so these wait and add nothing
    // to the stream.
    for (line, key) in clients.iter_mut().zip(&counters) {
        line.send(&format!("incr {key} 1\r\n").repeat(BATCH)).expect("it is read");
    }
    let refused = format!("set {} 0 0 {VALUE_BYTES}\r\n{value}\r\n", large[0]);
    let ask = || {
        let asked = Instant::now();
        assert_eq!(cluster.ask(0, &refused), "SERVER_ERROR not applied: busy");
        asked.elapsed()
    };
    assert!((0..ATTEMPTS).any(|_| ask() < AT_ONCE), "no refusal came within {AT_ONCE:?}");
    cluster.signal(1, Signal::SIGCONT);
    // A refused request was not executed, and all others were.
    let mut stored = 0;
    for (line, key) in writers.iter_mut().zip(&large) {
        let reply = line.receive().expect("it answers").expect("a line");
        assert!(["STORED", "SERVER_ERROR not applied: busy"].contains(&reply.as_str()), "{reply}");
        stored += usize::from(reply == "STORED");
        let held = cluster.ask(0, &format!("get {key}\r\n"));
        assert_eq!(held.starts_with("VALUE"), reply == "STORED", "{key}: {reply}");
    }
    assert!(stored > 0 && stored < large.len(), "{stored} values stored");
    for (line, key) in clients.iter_mut().zip(&counters) {
        for expected in 1..=BATCH {
            let reply = line.receive().expect("it answers").expect("a line");
            assert_eq!(reply, expected.to_string(), "{key}");
        }
    }
}

/// Gives all threads of a node this nice value.
fn renice(cluster: &Cluster, node: u8, nice: i32) {
    let tasks = fs::read_dir(format!("/proc/{}/task", cluster.process(node)));
    for task in tasks.expect("the node runs").flatten() {
        let status = Command::new("renice")
            .args(["-n", &nice.to_string(), "-p", &task.file_name().to_string_lossy()])
            .stdout(process::Stdio::null())
            .status();
        assert!(status.expect("renice is there").success());
    }
}

#[test]
fn starved_nodes_answer_late_but_answer() {
    let cluster = Cluster::start(2, &["--replicas", "2"]);
    let work = Work::start(&cluster, 24, 100);
    work.until_answered(1000);
    (0..2).for_each(|node| renice(&cluster, node, 10));
    let cores = thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let spinners = Busy::start(2 * cores);
    thread::sleep(Duration::from_secs(6));
    work.until_answered(100);
    drop(spinners);
    work.until_answered(1000);
    let account = work.settle(&cluster, 0);
    assert!(account.errors.is_empty(), "{:?}", account.errors);
    assert_eq!(account.broken, 0);
}

/// The memory of a node beside the items that `-m` bounds, samples of requests included.
const BESIDE_ITEMS_BYTES: u64 = 60_000_000;
const NODES: u8 = 3;

#[test]
fn a_full_node_takes_60_mb_more_than_its_cap() {
    let cap_mib = 16_u64;
    let flags = ["-m", &cap_mib.to_string(), "--replicas", "2"];
    let mut cluster = Cluster::start_in(None, NODES, &flags);
    cluster.until_at_rest(NODES.into());
    let mut line = cluster.line(0);
    for batch in 0..1000 {
        let set = |n| format!("set key-{batch}-{n} 0 0 10\r\n0123456789\r\n");
        let sets: Vec<String> = (0..500).map(set).collect();
        line.send(&sets.concat()).expect("it reads");
        for _ in 0..500 {
            assert_eq!(line.receive().expect("it answers").as_deref(), Some("STORED"));
        }
    }
    let evictions = |node| {
        let stats = cluster.line(node).lines("stats\r\n").expect("it answers");
        let line = stats.iter().find_map(|line| line.strip_prefix("STAT evictions "));
        line.expect("there is one").parse::<u64>().expect("a number")
    };
    assert!((0..NODES).any(|node| evictions(node) > 0), "the nodes are not full");
    for node in 0..NODES {
        let status = fs::read_to_string(format!("/proc/{}/status", cluster.process(node)));
        let status = status.expect("the node runs");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let words = resident.expect("Linux says so").split_whitespace().next();
        let bytes = words.expect("a figure").parse::<u64>().expect("a number") * 1024;
        assert!(bytes <= (cap_mib << 20) + BESIDE_ITEMS_BYTES, "node {node} has {bytes} bytes");
    }
}
