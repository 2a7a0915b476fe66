//! The wake-ups of nodes at rest, counted.
//!
//! Not here: those of a server without a cluster (`idle`), CPU time (docs/performance/cluster.md).

use std::thread;
use std::time::Duration;

use super::nodes::Cluster;
use crate::idle::{WATCHED, wake_ups};

/// The time after which new nodes are at rest.
const REST: Duration = Duration::from_secs(3);
/// The name of a node's main thread.
const MAIN: &str = "tollgate";

/// The wake-ups of each node's main thread in [`WATCHED`] while nothing happens, in ascending
/// order.
fn wake_ups_at_rest(count: u8) -> Vec<u64> {
    let cluster = Cluster::start(count, &[]);
    thread::sleep(REST);
    let mut counts: Vec<u64> = thread::scope(|scope| {
        let watch = |number| {
            let process = u32::try_from(cluster.process(number)).expect("an id is positive");
            scope.spawn(move || wake_ups(process))
        };
        let watched: Vec<_> = (0..count).map(watch).collect();
        let watched = watched.into_iter().map(|watch| watch.join().expect("it counts"));
        watched.map(|by_thread| by_thread[MAIN]).collect()
    });
    counts.sort_unstable();
    println!("wake-ups of {count} nodes in {WATCHED:?}: {counts:?}");
    counts
}

/// Four heartbeats of the other node a second, with which its own ticks come.
#[test]
fn the_only_voter_wakes_with_the_heartbeats_of_the_other_node() {
    assert!(wake_ups_at_rest(2)[0] <= 60);
}

/// Ticks of its own would add four wake-ups a second, and heartbeats of the voters to each other
/// at other times four each.
#[test]
fn followers_wake_with_the_heartbeats_of_their_leader() {
    assert!(wake_ups_at_rest(3)[1] <= 130);
}
