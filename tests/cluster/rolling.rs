//! A rolling restart of five nodes under constant load: every node drains at SIGTERM, ends, and
//! comes back with its data directory, one after the other.
//!
//! No client is connected to the node that restarts, so none may see an error or a long pause. Not
//! here: nodes that die (`five`, `faults`). `ROLLING_RESTARTS` sets the number of restarts.

use std::{
    env,
    time::{Duration, Instant},
};

use super::{
    nodes::Cluster,
    work::{Account, Work},
};

const NODES: u8 = 5;
/// The number of restarts without `ROLLING_RESTARTS`: one per node.
const RESTARTS: usize = 5;
/// Replies that clients receive between two restarts.
const SOME: u64 = 400;
/// The longest time between two replies to one client, on an idle machine.
const PAUSE_MAX: Duration = Duration::from_millis(500);

fn restarts() -> Option<usize> {
    env::var("ROLLING_RESTARTS").ok().and_then(|text| text.parse().ok())
}

fn roll(cluster: &mut Cluster, restarts: usize) -> Account {
    let work = Work::start(cluster, 6, 60);
    let start = Instant::now();
    for restart in 0..restarts {
        let number = (restart % usize::from(NODES)) as u8;
        let restarting = cluster.address(number);
        let others = cluster.addresses().into_iter().filter(|place| *place != restarting);
        work.use_nodes(others.collect());
        work.until_answered(SOME);
        assert!(cluster.end(number).success(), "{}", cluster.log(number));
        cluster.restart(number);
        cluster.until_at_rest(NODES.into());
        work.use_nodes(cluster.addresses());
        work.until_answered(SOME);
    }
    for (at, pause) in work.pauses() {
        println!("a client waited {pause:?}, until {:?} after the start", at.duration_since(start));
    }
    work.settle(cluster, 0)
}

#[test]
fn a_rolling_restart_of_five_nodes_costs_no_answer() {
    let mut cluster = Cluster::start_in(None, NODES, &[]);
    let account = roll(&mut cluster, restarts().unwrap_or(RESTARTS));
    println!(
        "{} answers, longest pause {:?}, errors {:?}",
        account.answered,
        account.longest,
        account.kinds()
    );
    assert!(account.errors.is_empty(), "{:?} {}", account.kinds(), cluster.logs());
    assert_eq!(account.broken, 0, "{}", cluster.logs());
    // Other tests run beside this one, unless the environment requests it alone.
    if restarts().is_some() {
        assert!(account.longest < PAUSE_MAX, "{:?} {}", account.longest, cluster.logs());
    }
}
