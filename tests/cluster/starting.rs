//! A node before it has a place in its cluster, and one that is leaving, as seen by clients.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use super::nodes::{Cluster, Line, ask};

/// The least time for which a request waits at a node that starts.
const WAIT_MIN: Duration = Duration::from_millis(900);

#[test]
fn starting_node_lets_requests_wait() {
    let mut cluster = Cluster::start(3, &[]);
    assert_eq!(cluster.ask(0, "set early 0 0 1\r\n0\r\n"), "STORED");
    let mut counted = 0;
    for _ in 0..4 {
        cluster.kill(2);
        cluster.restart(2);
        // This is the first connection that the node accepts, with a request at once.
        let start = Instant::now();
        let reply = cluster.ask(2, "incr early 1\r\n");
        if reply.starts_with("SERVER_ERROR not applied: ") {
            // On a busy machine the node may take longer than a request waits.
            let took = start.elapsed();
            assert!(took > WAIT_MIN, "{reply} after {took:?} {}", cluster.logs());
        } else {
            counted += 1;
            assert_eq!(reply, counted.to_string());
        }
        cluster.until_at_rest(3);
    }
    assert!(counted > 0, "a request waits until the node has its place: {}", cluster.logs());
    assert_eq!(cluster.ask(2, "get early\r\n"), "VALUE early 0 1");
}

#[test]
fn node_with_a_wrong_peer_key_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let key = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("the folder is ours");
        path.to_str().expect("a plain name").to_owned()
    };
    let right = key("right", "0123456789abcdef0123456789abcdef0123456789abcdef");
    let wrong = key("wrong", "f123456789abcdef0123456789abcdef0123456789abcdef");
    let mut cluster = Cluster::start(2, &["--peer-key-file", &right]);
    let stranger = cluster.join_with(&["--peer-key-file", &wrong]);
    let start = Instant::now();
    let mut answer = String::new();
    while !answer.contains("wrong key") {
        assert!(start.elapsed() < Duration::from_secs(30), "{answer} {}", cluster.log(stranger));
        thread::sleep(Duration::from_millis(50));
        answer = cluster.ask(stranger, "get k\r\n");
    }
    assert!(answer.starts_with("SERVER_ERROR not applied: no place in a cluster: "), "{answer}");
    let fault = cluster.stat(stranger, "fault").expect("it answers");
    assert!(fault.contains("wrong key"), "{fault}");
    let log = cluster.log(stranger);
    assert!(log.contains("check the peer key"), "{log}");
}

#[test]
fn draining_node_serves_until_it_leads_nothing() {
    let mut cluster = Cluster::start(3, &[]);
    assert_eq!(cluster.ask(0, "set late 0 0 1\r\n0\r\n"), "STORED");
    cluster.signal(2, Signal::SIGTERM);
    let mut counted = 0;
    // New connections continue; the first that is refused ends the loop, shortly before the node
    // ends.
    while let Ok(mut line) = Line::connect(cluster.address(2)) {
        match line.ask("incr late 1\r\n") {
            Ok(Some(answer)) => {
                counted += 1;
                assert_eq!(answer, counted.to_string());
            }
            // The node closed the connection between two requests.
            Ok(None) | Err(_) => break,
        }
    }
    assert!(cluster.until_ended(2).success());
    let kept: u64 = cluster.ask(1, "incr late 0\r\n").parse().expect("a count");
    assert!((counted..=counted + 1).contains(&kept), "{counted} counted, {kept} kept");
    println!("{counted} requests over new connections while it drained");
}

#[test]
fn first_signal_after_a_drain_by_command_ends_no_node_early() {
    const KEYS: usize = 3000;
    let mut cluster = Cluster::start(3, &["--replicas", "1"]);
    let mut line = cluster.line(0);
    for key in 0..KEYS {
        assert_eq!(ask(&mut line, &format!("set key{key} 0 0 1\r\n7\r\n")), "STORED");
    }
    assert_eq!(cluster.ask(2, "cluster drain self\r\n"), "OK");
    let start = Instant::now();
    while !cluster.log(2).contains("stopping") {
        assert!(start.elapsed() < Duration::from_secs(10), "{}", cluster.log(2));
        thread::sleep(Duration::from_millis(1));
    }
    cluster.signal(2, Signal::SIGTERM);
    assert!(cluster.until_ended(2).success(), "{}", cluster.log(2));
    for key in 0..KEYS {
        assert_eq!(ask(&mut line, &format!("incr key{key} 0\r\n")), "7", "{}", cluster.log(2));
    }
}

#[test]
fn three_copies_stay_while_one_moves_to_a_node_that_joins() {
    let mut cluster = Cluster::start(4, &["--replicas", "3"]);
    let start = Instant::now();
    while !(0..4).any(|number| cluster.log(number).contains("all nodes are updated")) {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", cluster.logs());
        thread::sleep(Duration::from_millis(20));
    }
    cluster.join();
    let count = |name: &str| -> u64 {
        let text = cluster.stat(0, name).expect("it answers");
        text.parse().expect("a number")
    };
    let mut most = 0;
    loop {
        let is_active = count("nodes_active") == 5;
        let learners = count("partitions_learners");
        most = most.max(learners);
        assert_eq!(count("partitions_under_replicated"), 0, "{}", cluster.logs());
        if is_active && learners == 0 && most > 0 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(40), "{}", cluster.logs());
        thread::sleep(Duration::from_millis(1));
    }
    println!("{most} copies were made at a time");
}
