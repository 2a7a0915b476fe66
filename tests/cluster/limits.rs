//! Limits in a cluster of several nodes.

use std::{
    fmt::Write as _,
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::nodes::{Cluster, LONG, Line};

#[test]
fn a_limit_is_one_limit_whoever_dies() {
    // With `deny` no node admits by itself. By default each admits its share, marked `degraded=1`,
    // while the owner is out of reach: on a busy machine that may be longer than a request waits.
    let mut cluster = Cluster::start(3, &["--on-unavailable", "deny"]);
    let stop = AtomicBool::new(false);
    let places = cluster.addresses();
    let admitted: u64 = thread::scope(|scope| {
        let clients: Vec<_> = (0..6_usize)
            .map(|number| {
                let (stop, places) = (&stop, &places);
                scope.spawn(move || {
                    let (mut admitted, mut turn, mut line) = (0_u64, number, None);
                    while !stop.load(Ordering::Relaxed) {
                        let Some(open) = &mut line else {
                            line = Line::connect(places[turn % places.len()]).ok();
                            turn += 1;
                            thread::sleep(Duration::from_millis(2));
                            continue;
                        };
                        match open.ask("take login 1 log:100/60s\r\n") {
                            Ok(Some(reply)) => admitted += u64::from(reply.starts_with("ALLOW")),
                            _ => line = None,
                        }
                    }
                    admitted
                })
            })
            .collect();
        let start = Instant::now();
        thread::sleep(Duration::from_millis(300));
        cluster.join();
        cluster.until_at_rest(4);
        cluster.kill(1);
        thread::sleep(Duration::from_millis(500));
        cluster.until_at_rest(3);
        assert!(cluster.end(2).success(), "{}", cluster.log(2));
        cluster.until_at_rest(2);
        assert!(start.elapsed() < Duration::from_secs(55), "the window has moved on");
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("it asks")).sum()
    });
    assert!(admitted <= 100, "{admitted} admitted");
    // A request without a reply may have been charged; no other request was.
    assert!(admitted >= 90, "{admitted} admitted");
}

/// The limit of `login` is the last of many: a founder needs a moment to store them all.
#[test]
fn new_cluster_serves_no_key_without_its_limit() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("limits.toml");
    let mut text = String::new();
    let others = (0..300).map(|number| format!("l{number}"));
    for name in others.chain(["login".to_owned()]) {
        writeln!(
            text,
            "[[limit]]\nname = '{name}'\nmatch = '{name}:{{user}}'\npolicy = 'fixed:1000/1h'"
        )
        .expect("a String takes every write");
    }
    fs::write(&path, text).expect("the folder is ours");
    let limits = ["--limits", path.to_str().expect("a plain name")];
    let mut cluster = Cluster::start_each(0, &limits, |_, _| Vec::new());
    let mut reasons = Vec::new();
    for (expect, expected) in [("1", "1"), ("2", "2"), ("3", "3")] {
        let node = cluster.join_with(&["--expect", expect]);
        let start = Instant::now();
        let mut line = loop {
            assert!(start.elapsed() < LONG, "{}", cluster.log(node));
            match Line::connect(cluster.address(node)) {
                Ok(line) => break line,
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        };
        // The reply to an `incr` of a plain key would be NOT_FOUND.
        line.send("incr login:ann 1\r\n").expect("it is open");
        while reasons.last().map(String::as_str) != Some("-") && start.elapsed() < LONG {
            reasons.extend(cluster.stat(node, "not_ready"));
            reasons.dedup();
        }
        reasons.pop();
        let mut reply = line.receive().expect("it answers").expect("it does not hang up");
        while reply.starts_with("SERVER_ERROR not applied: ") && start.elapsed() < LONG {
            reply = line.ask("incr login:ann 1\r\n").expect("it answers").expect("it is open");
        }
        assert_eq!(reply, expected, "node {node}: {}", cluster.log(node));
    }
    let wait = "it waits for the first limits of the cluster".to_owned();
    assert!(reasons.contains(&wait), "{reasons:?}: {}", cluster.log(0));
}
