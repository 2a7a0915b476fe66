//! Five nodes under constant load: faults of one node at a time, and actions of an operator.
//!
//! Not here: links that are cut (`cut`), three nodes (`faults`). `NODES_SECONDS` lets each test
//! continue for that time; without it each runs through everything once.

use std::{
    env, thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use super::{
    nodes::Cluster,
    work::{Account, Work},
};

/// Replies that clients receive between two events.
const SOME: u64 = 400;
const NODES: u8 = 5;

/// The time that a test continues after it ran through everything once.
fn longer() -> Duration {
    let seconds = env::var("NODES_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

fn all_but(cluster: &Cluster, number: u8) -> Vec<std::net::SocketAddr> {
    let gone = cluster.address(number);
    cluster.addresses().into_iter().filter(|place| *place != gone).collect()
}

fn print_account(what: &str, account: &Account, start: Instant) {
    println!(
        "{what}: {} answers in {:?}, {} broken connections, longest pause {:?}, errors {:?}",
        account.answered,
        start.elapsed(),
        account.broken,
        account.longest,
        account.kinds()
    );
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The node restarts with its data directory.
    Kill,
    /// A new node takes its place.
    Replace,
    /// The node is stopped until the others declare it dead, and then continues.
    Stop,
}

#[test]
fn acknowledged_counts_survive_any_fault_of_one() {
    let mut cluster = Cluster::start(NODES, &[]);
    let start = Instant::now();
    for round in 0.. {
        for (at, fault) in [Fault::Kill, Fault::Replace, Fault::Stop].into_iter().enumerate() {
            // Every node suffers every fault in turn.
            let number = ((round + at) % usize::from(NODES)) as u8;
            let work = Work::start(&cluster, 6, 60);
            work.until_answered(SOME);
            match fault {
                Fault::Kill | Fault::Replace => cluster.kill(number),
                Fault::Stop => cluster.signal(number, Signal::SIGSTOP),
            }
            // Clients with an outstanding request to it still wait for the reply.
            work.use_nodes(all_but(&cluster, number));
            work.until_answered(SOME);
            match fault {
                Fault::Kill => cluster.restart(number),
                Fault::Replace => cluster.replace(number),
                Fault::Stop => {
                    thread::sleep(Duration::from_millis(2500));
                    work.until_answered(SOME);
                    cluster.signal(number, Signal::SIGCONT);
                }
            }
            cluster.until_at_rest(NODES.into());
            work.use_nodes(cluster.addresses());
            work.until_answered(SOME);
            let account = work.settle(&cluster, (number + 1) % NODES);
            print_account(&format!("{fault:?} of node {number}"), &account, start);
        }
        if start.elapsed() >= longer() {
            break;
        }
    }
}

#[test]
fn five_nodes_join_drain_and_restart_without_an_error() {
    let mut cluster = Cluster::start(NODES, &[]);
    let start = Instant::now();
    let work = Work::start(&cluster, 6, 60);
    loop {
        for number in 0..NODES {
            work.use_nodes(all_but(&cluster, number));
            work.until_answered(SOME);
            // The first is drained, and joins as a new node; the others restart.
            assert!(cluster.end(number).success(), "{}", cluster.log(number));
            if number == 0 {
                cluster.until_at_rest((NODES - 1).into());
                cluster.replace(number);
            } else {
                cluster.restart(number);
            }
            cluster.until_at_rest(NODES.into());
            work.use_nodes(cluster.addresses());
            work.until_answered(SOME);
        }
        if start.elapsed() >= longer() {
            break;
        }
    }
    let account = work.settle(&cluster, 0);
    print_account("joined, drained, restarted", &account, start);
    assert!(account.errors.is_empty(), "{:?} {}", account.kinds(), cluster.logs());
    assert_eq!(account.broken, 0, "{}", cluster.logs());
}
