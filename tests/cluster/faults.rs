//! Nodes that join, leave, stop and die under constant load.

use std::{thread, time::Duration};

use nix::sys::signal::Signal;

use super::{
    nodes::Cluster,
    work::{Account, Work},
};

/// Replies that a client receives while all is well.
const SOME: u64 = 400;

#[track_caller]
fn nothing_went_wrong(account: &Account, cluster: &Cluster) {
    assert!(account.errors.is_empty(), "{:?} {}", account.errors, cluster.logs());
    assert_eq!(account.broken, 0, "{}", cluster.logs());
}

#[test]
fn a_join_and_a_drain_cost_no_reply() {
    let mut cluster = Cluster::start(3, &[]);
    let work = Work::start(&cluster, 6, 40);
    work.until_answered(SOME);
    let fourth = cluster.join();
    cluster.until_at_rest(4);
    work.use_nodes(cluster.addresses());
    work.until_answered(SOME);
    let rest: Vec<_> = cluster.addresses().into_iter().skip(1).collect();
    work.use_nodes(rest);
    work.until_answered(SOME);
    assert!(cluster.end(0).success(), "{}", cluster.log(0));
    work.until_answered(SOME);
    cluster.until_at_rest(3);
    let account = work.settle(&cluster, fourth);
    nothing_went_wrong(&account, &cluster);
}

#[test]
fn a_rolling_restart_of_all_costs_no_answer() {
    let mut cluster = Cluster::start(3, &[]);
    let work = Work::start(&cluster, 6, 40);
    for number in 0..3 {
        let all = cluster.addresses();
        let others = all.iter().copied().filter(|place| *place != cluster.address(number));
        work.use_nodes(others.collect());
        work.until_answered(SOME);
        assert!(cluster.end(number).success(), "{}", cluster.log(number));
        cluster.restart(number);
        cluster.until_at_rest(3);
        work.use_nodes(all);
        work.until_answered(SOME);
    }
    let account = work.settle(&cluster, 0);
    nothing_went_wrong(&account, &cluster);
}

#[test]
fn acknowledged_counts_survive_the_loss_of_one_node() {
    let mut cluster = Cluster::start(3, &[]);
    for number in 0..3 {
        let work = Work::start(&cluster, 6, 40);
        work.until_answered(SOME);
        let others: Vec<_> = cluster
            .addresses()
            .into_iter()
            .filter(|place| *place != cluster.address(number))
            .collect();
        cluster.kill(number);
        work.use_nodes(others);
        thread::sleep(Duration::from_millis(200));
        work.until_answered(SOME);
        cluster.until_at_rest(2);
        let account = work.settle(&cluster, (number + 1) % 3);
        println!(
            "killed {number}: {} answers, {} errors, longest pause {:?}",
            account.answered,
            account.errors.len(),
            account.longest
        );
        assert!(
            account.longest < Duration::from_secs(2),
            "{:?} {}",
            account.longest,
            cluster.logs()
        );
        cluster.restart(number);
        cluster.until_at_rest(3);
    }
}

#[test]
fn a_stopped_node_is_replaced_and_returns_empty() {
    let mut cluster = Cluster::start(3, &[]);
    let work = Work::start(&cluster, 6, 40);
    work.until_answered(SOME);
    let others: Vec<_> = cluster.addresses().into_iter().take(2).collect();
    work.use_nodes(others);
    cluster.signal(2, Signal::SIGSTOP);
    thread::sleep(Duration::from_secs(4));
    work.until_answered(SOME);
    cluster.signal(2, Signal::SIGCONT);
    work.until_answered(SOME);
    cluster.until_at_rest(3);
    work.settle(&cluster, 2);
}
