//! The end of the last node of a cluster, and the log lines of nodes when others die.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    nodes::{Cluster, LONG},
    pairs::leader,
};

/// A node takes up to 90 s to leave by default; this is far less, also on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(20);

#[test]
fn the_last_living_node_ends_at_once() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.kill_all(&[0, 1]);
    let start = Instant::now();
    let ended = cluster.end(2);
    assert!(start.elapsed() < AT_ONCE, "{:?} {}", start.elapsed(), cluster.log(2));
    assert!(ended.success(), "{ended} {}", cluster.log(2));
    let log = cluster.log(2);
    assert!(log.contains("a second signal ends the process at once"), "{log}");
    assert!(log.contains("no other node answers to take over"), "{log}");
}

#[test]
fn nodes_that_end_together_do_not_wait_for_each_other() {
    let mut cluster = Cluster::start(3, &[]);
    let start = Instant::now();
    for number in 0..3 {
        cluster.signal(number, nix::sys::signal::Signal::SIGTERM);
    }
    for number in 0..3 {
        cluster.until_ended(number);
    }
    assert!(start.elapsed() < AT_ONCE, "{:?} {}", start.elapsed(), cluster.logs());
}

#[test]
fn a_dead_node_is_one_line_with_its_name() {
    let mut cluster = Cluster::start_quietly(3);
    let led = leader(&cluster, 3);
    let dying = (led + 1) % 3;
    let name = format!("{} at {}:21211", cluster.host(dying), cluster.host(dying));
    let before = cluster.log(led).lines().count();
    cluster.kill(dying);
    let says = |cluster: &Cluster, what: &str| {
        let start = Instant::now();
        let wanted = format!("({name}) {what}");
        while !cluster.log(led).contains(&wanted) {
            assert!(start.elapsed() < LONG, "{wanted}: {}", cluster.log(led));
            thread::sleep(Duration::from_millis(20));
        }
    };
    says(&cluster, "is dead");
    thread::sleep(Duration::from_secs(3));
    let log = cluster.log(led);
    let since: Vec<&str> = log.lines().skip(before).collect();
    assert_eq!(since.iter().filter(|line| line.contains("is dead")).count(), 1, "{log}");
    assert!(since.len() <= 4, "{since:?}");
    assert!(since.iter().all(|line| !line.contains("ERROR")), "{since:?}");
    cluster.restart(dying);
    says(&cluster, "is back");
    // The start is logged too.
    let founded = (0..3).any(|number| cluster.log(number).contains("founds a cluster"));
    assert!(founded, "{}", cluster.logs());
}
