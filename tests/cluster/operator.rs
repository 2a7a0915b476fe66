//! An operator's commands and their replies: `tollgate cluster` with real nodes.

use std::{
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use super::nodes::{Cluster, LONG};
use crate::live::Program;

/// Runs `tollgate cluster` on a node.
fn tool(cluster: &Cluster, node: u8, words: &str) -> Output {
    let address = cluster.address(node).to_string();
    let mut command = Command::new(Program::Tollgate.path());
    command.arg("cluster").args(words.split(' ')).args(["--server", &address]);
    command.env_clear().output().expect("the program is built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until `cluster ready` ends with this code and output.
#[track_caller]
fn until_ready_is(cluster: &Cluster, node: u8, code: i32, reason: &str) {
    until(cluster, node, "ready", code, reason);
}

/// Waits until `tollgate cluster` ends with this code and output.
#[track_caller]
fn until(cluster: &Cluster, node: u8, words: &str, code: i32, reason: &str) {
    let start = Instant::now();
    loop {
        let output = tool(cluster, node, words);
        let reply = text(&output.stdout) + &text(&output.stderr);
        if output.status.code() == Some(code) && reply.contains(reason) {
            return;
        }
        assert!(start.elapsed() < LONG, "{reply}: {}", cluster.logs());
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn settings_that_do_not_exist_are_refused() {
    let cluster = Cluster::start(1, &["-A"]);
    let known = "there are replicas (copies of each key, 1 to 3) and lost_after (seconds from 1 to \
                 4294967295, or never)";
    for (name, value) in [
        ("foo", "3"),
        ("ack", "bogus"),
        ("memory_limit", "512"),
        ("founded", "no"),
        ("version", "9"),
    ] {
        let reply = cluster.ask(0, &format!("cluster set {name} {value}\r\n"));
        let reason = format!("there is no setting {name}; {known}");
        assert_eq!(reply, format!("CLIENT_ERROR cluster: {reason}"));
        let output = tool(&cluster, 0, &format!("set {name} {value}"));
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        assert_eq!(text(&output.stderr), format!("tollgate: {reason}\n"));
    }
    for (name, value) in [("replicas", "0"), ("replicas", "4"), ("lost_after", "0")] {
        let reply = cluster.ask(0, &format!("cluster set {name} {value}\r\n"));
        assert!(reply.starts_with(&format!("CLIENT_ERROR cluster: {name} is a number")), "{reply}");
        assert_eq!(tool(&cluster, 0, &format!("set {name} {value}")).status.code(), Some(64));
    }
    let stats = cluster.line(0).lines("stats cluster\r\n").expect("it answers");
    for name in ["foo", "ack", "memory_limit"] {
        assert!(!stats.iter().any(|line| line.contains(name)), "{stats:?}");
    }
    let output = tool(&cluster, 0, "set replicas 3");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(cluster.stat(0, "replicas").as_deref(), Some("3"));
    let log = cluster.log(0);
    let line =
        log.lines().find(|line| line.contains("cluster set replicas 3")).expect("it is logged");
    for part in ["tollgate::audit", "by=\"127.", "via=\"client-port\"", "result=\"OK\""] {
        assert!(line.contains(part), "{part} in {line}");
    }
}

#[test]
fn readiness_follows_the_cluster() {
    let mut cluster = Cluster::start(0, &["-A"]);
    let seeds = format!("{}:21211,{}:21211", cluster.host(0), cluster.host(1));
    let flags = ["--expect", "2", "--seeds", &seeds];
    assert_eq!(cluster.join_with(&flags), 0);
    until_ready_is(&cluster, 0, 1, "not ready: it seeks a cluster");
    assert_eq!(cluster.join_with(&flags), 1);
    for node in [0, 1] {
        until_ready_is(&cluster, node, 0, "ready");
    }
    cluster.until_at_rest(2);
    for node in [0, 1] {
        let start = Instant::now();
        loop {
            let stats = cluster.line(node).lines("stats cluster nodes\r\n").expect("it answers");
            let own = stats.iter().find_map(|line| line.strip_suffix(":self yes"));
            let own = format!("{}:ready yes", own.expect("a node knows itself"));
            // The node that does not vote has no knowledge of the other, and does not report `no`.
            if stats.contains(&own) && !stats.iter().any(|line| line.ends_with(":ready no")) {
                break;
            }
            assert!(start.elapsed() < LONG, "{stats:?}");
            thread::sleep(Duration::from_millis(50));
        }
        let table = text(&tool(&cluster, node, "nodes").stdout);
        assert!(table.lines().count() == 3, "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    }
    // The voter is stopped, and the other node reaches no one else.
    let voter = cluster.stat(0, "voters");
    let voter = u8::from(cluster.stat(0, "node") != voter);
    cluster.signal(voter, Signal::SIGSTOP);
    until_ready_is(&cluster, 1 - voter, 1, "not ready: it does not hear the control plane");
    cluster.signal(voter, Signal::SIGCONT);
    until_ready_is(&cluster, 1 - voter, 0, "ready");
}

#[test]
fn the_rest_may_proceed_after_a_node_is_forgotten() {
    let mut cluster = Cluster::start(3, &["-A"]);
    cluster.until_at_rest(3);
    let dead = cluster.stat(2, "node").expect("it has joined");
    cluster.kill(2);
    until(&cluster, 0, &format!("forget {dead}"), 0, "");
    for node in [0, 1] {
        until(&cluster, node, "status", 0, "Safe to proceed with the next node.");
    }
    // One of them has lost its vote, and hears no heartbeats since. After 3 s a node is unheard.
    thread::sleep(Duration::from_secs(4));
    for node in [0, 1] {
        let output = tool(&cluster, node, "status");
        assert!(output.status.success(), "{}", text(&output.stdout));
    }
}
