//! Large values: copied to other nodes, set through any node, and read many at once.

use std::{
    thread,
    time::{Duration, Instant},
};

use cluster::placement::{Placement, Scheme};

use super::nodes::{Cluster, LONG};

/// Keys whose primary is a node, which must not change.
fn keys_of(cluster: &Cluster, node: u8, count: usize) -> Vec<String> {
    let placement = Placement::new(Scheme::Ketama, 8).expect("few bits");
    let id = cluster.stat(node, "node").expect("it answers");
    let partitions =
        cluster.line(node).lines("stats cluster partitions all\r\n").expect("it answers");
    let is_here = |key: &String| {
        let name = format!("STAT p{} ", placement.partition(key.as_bytes()).0);
        let line = partitions.iter().find(|line| line.starts_with(&name));
        line.is_some_and(|line| line.contains(&format!("primary={id},")))
    };
    (0..).map(|number| format!("large{number}")).filter(is_here).take(count).collect()
}

fn set(key: &str, value: &str) -> String {
    format!("set {key} 0 0 {}\r\n{value}\r\n", value.len())
}

/// Waits until a node answers `get` with this value.
#[track_caller]
fn until_read(cluster: &Cluster, node: u8, key: &str, value: &str) {
    let start = Instant::now();
    loop {
        let reply = cluster.line(node).lines(&format!("get {key}\r\n")).unwrap_or_default();
        if reply.get(1).is_some_and(|read| read == value) {
            return;
        }
        let head: Vec<_> = reply.iter().map(|line| line.get(..80).unwrap_or(line)).collect();
        assert!(start.elapsed() < LONG, "{key}: {head:?}: {}", cluster.logs());
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn large_values_are_copied_and_set_through_any_node() {
    let mut cluster = Cluster::start(2, &["--replicas", "1", "-m", "256"]);
    // The only voter stays.
    let is_voter = |node| cluster.stat(node, "voters") == cluster.stat(node, "node");
    let (owner, other) = if is_voter(1) { (0, 1) } else { (1, 0) };
    let keys = keys_of(&cluster, owner, 6);
    let values = ["a", "b", "c"].map(|letter| letter.repeat(900_000));
    for (key, value) in keys.iter().zip(&values) {
        assert_eq!(cluster.ask(owner, &set(key, value)), "STORED");
    }
    let large = "e".repeat(1_000_000);
    assert_eq!(cluster.ask(other, &set(&keys[3], &large)), "STORED");
    assert_eq!(cluster.ask(other, "cluster set replicas 2\r\n"), "OK");
    let start = Instant::now();
    while (0..2).any(|node| cluster.stat(node, "replicas").as_deref() != Some("2")) {
        assert!(start.elapsed() < LONG, "{}", cluster.logs());
        thread::sleep(Duration::from_millis(20));
    }
    cluster.until_at_rest(2);
    let largest = "f".repeat((1 << 20) - 200);
    assert_eq!(cluster.ask(other, &set(&keys[4], &largest)), "STORED");
    assert_eq!(cluster.ask(owner, &set(&keys[5], &largest)), "STORED");
    cluster.kill(owner);
    let all = values.iter().chain([&large, &largest, &largest]);
    for (key, value) in keys.iter().zip(all) {
        until_read(&cluster, other, key, value);
    }
}

#[test]
fn many_values_of_one_owner_are_read_at_once() {
    const VALUE_BYTES: usize = 1_000_000;
    let cluster = Cluster::start(2, &["--replicas", "1", "-m", "256"]);
    let keys = keys_of(&cluster, 0, 80);
    let mut line = cluster.line(0);
    for key in &keys {
        let reply = line.ask(&set(key, &"v".repeat(VALUE_BYTES))).expect("it answers");
        assert_eq!(reply.as_deref(), Some("STORED"));
    }
    let lost = || (0..2).map(|node| cluster.log(node).matches("data link down").count()).sum();
    let lost_before: usize = lost();
    let request = format!("get {}\r\n", keys.join(" "));
    let reply = cluster.line(1).lines(&request).expect("it answers");
    let read: Vec<_> = reply.chunks(2).filter(|item| item[1].len() == VALUE_BYTES).collect();
    assert_eq!(read.len(), keys.len(), "{}", cluster.logs());
    assert_eq!(lost(), lost_before, "{}", cluster.logs());
}
