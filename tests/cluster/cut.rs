//! Five nodes whose links are cut under constant load, from plain clients and ketama clients.
//!
//! Plain counters are refused while their owner is out of reach, never guessed; a limit admits each
//! node's share there. Not here: the other policies of limits (`degraded`). Requires network
//! namespaces (`net`).

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use super::{
    net::Net,
    nodes::Cluster,
    work::{Account, Work},
};

const FLAGS: &[&str] = &["--partition-bits", "8"];
const KEYS: usize = 60;
/// The time limit for a partition with a copy on the majority's side to serve there again.
const SERVES_WITHIN: Duration = Duration::from_secs(5);
const SOME: u64 = 400;

/// Increments each key at a node; returns the keys that were counted. `account` receives the
/// replies too.
fn counted(cluster: &Cluster, node: u8, account: &mut Account) -> BTreeSet<usize> {
    let mut line = cluster.line(node);
    for key in 0..KEYS {
        line.send(&format!("incr work{key} 1\r\n")).expect("it takes them");
    }
    let mut counted = BTreeSet::new();
    for key in 0..KEYS {
        let answer = line.receive().expect("it answers").expect("it does not hang up");
        let is_refused = answer.starts_with("SERVER_ERROR ");
        if account.note(&format!("work{key}"), answer.clone()) {
            counted.insert(key);
        } else {
            assert!(is_refused, "{answer}");
        }
    }
    counted
}

const LIMITS: usize = 16;
const LIMIT: u64 = 50;

/// The units that a node admits of each limit when more are requested: by the owner's decision, and
/// by its own.
fn admitted(cluster: &Cluster, node: u8) -> Vec<(u64, u64)> {
    let mut line = cluster.line(node);
    (0..LIMITS).for_each(|number| {
        let asked = format!("take limit{number} 1 log:{LIMIT}/600s\r\n").repeat(LIMIT as usize + 5);
        line.send(&asked).expect("it takes them");
    });
    let mut of_limit = || {
        let mut passed = (0, 0);
        for _ in 0..LIMIT + 5 {
            let answer = line.receive().expect("it answers").expect("it does not hang up");
            let by = if answer.contains("degraded=1") { &mut passed.1 } else { &mut passed.0 };
            *by += u64::from(answer.starts_with("ALLOW "));
        }
        passed
    };
    (0..LIMITS).map(|_| of_limit()).collect()
}

/// Prints the admissions of each side, and checks that no side admitted more than it may.
fn compare(at_most: &[(u64, u64)], at_few: &[(u64, u64)]) {
    for (side, passed) in [("three", at_most), ("two", at_few)] {
        let by_owner: u64 = passed.iter().map(|(by_owner, _)| by_owner).sum();
        let alone: u64 = passed.iter().map(|(_, alone)| alone).sum();
        println!(
            "of {LIMITS} limits of {LIMIT} one node of the {side} admitted {by_owner} by the owner's \
             word and {alone} by its own"
        );
    }
    for (most, few) in at_most.iter().zip(at_few) {
        assert!(most.0 + few.0 <= LIMIT, "{most:?} {few:?}: the owner's word alone");
        // A node's share is an equal part among the nodes that are alive in its map: the three have
        // learned that the two are gone, but the two have not learned of any change.
        assert!(most.1 <= LIMIT / 3 && few.1 <= LIMIT / 5, "{most:?} {few:?}: a node's part");
    }
}

/// Waits until no node has a debt, and checks the remaining units of each limit.
fn settled(cluster: &Cluster, at_most: &[(u64, u64)], at_few: &[(u64, u64)]) {
    let start = Instant::now();
    cluster.until_settled();
    println!("debts settled {:?} after all were at rest", start.elapsed());
    for (number, (most, few)) in at_most.iter().zip(at_few).enumerate() {
        let passed = most.0 + most.1 + few.0 + few.1;
        let left = cluster.left(2, &format!("limit{number}"), &format!("log:{LIMIT}/600s"));
        assert!(left <= LIMIT.saturating_sub(passed), "{passed} passed, and {left} are left");
    }
}

#[test]
fn two_of_five_cut_off_count_no_key_on_both_sides() {
    let Some(net) = Net::or_say_why("two of five cut off") else { return };
    let cluster = &mut Cluster::start_in(Some(net), 5, FLAGS);
    Work::set_up(cluster, KEYS);
    // All five vote, so the side with three nodes continues.
    let (two, three) = (vec![0_u8, 1], vec![2_u8, 3, 4]);
    let addresses = |side: &[u8]| side.iter().map(|number| cluster.address(*number)).collect();
    let (few, most) = (Work::on(addresses(&two), 2, KEYS), Work::on(addresses(&three), 4, KEYS));
    most.until_answered(SOME);
    cluster.net().part(&two);
    let parted = Instant::now();
    let mut asked = Account::default();
    // The majority serves all keys except those with both copies on the other side. Each refusal
    // may take a second, and all keys are requested at once.
    thread::sleep(SERVES_WITHIN.saturating_sub(Duration::from_millis(1500)));
    let at_most = counted(cluster, three[0], &mut asked);
    let took = parted.elapsed();
    let at_few = counted(cluster, two[0], &mut asked);
    let all: BTreeSet<usize> = (0..KEYS).collect();
    println!("after {took:?} the three count {} keys, the two {}", at_most.len(), at_few.len());
    assert!(at_most.is_disjoint(&at_few), "{:?}", at_most.intersection(&at_few));
    assert_eq!(&at_most | &at_few, all, "every key counts on one side: {}", cluster.logs());
    // One of the ten pairs of nodes is the two: about a tenth of the keys.
    assert!(at_most.len() > KEYS / 2, "the three serve all that they have a copy of: {at_most:?}");
    let (limits_at_most, limits_at_few) = (admitted(cluster, three[0]), admitted(cluster, two[0]));
    compare(&limits_at_most, &limits_at_few);
    thread::sleep(Duration::from_secs(1));
    cluster.net().heal();
    let healed = Instant::now();
    cluster.until_at_rest(5);
    println!("at rest {:?} after healing", healed.elapsed());
    settled(cluster, &limits_at_most, &limits_at_few);
    let (few, mut most) = (few.end(), most.end());
    for (side, account) in [("two", &few), ("three", &most)] {
        println!(
            "the {side} acknowledged {} counts; longest pause {:?}; refused {:?}",
            account.answered,
            account.longest,
            account.kinds()
        );
    }
    most.add(few);
    most.add(asked);
    most.settle(cluster, 0);
}

#[test]
fn a_node_that_was_cut_off_returns_without_copies() {
    let Some(net) = Net::or_say_why("one of five cut off") else { return };
    let mut cluster = Cluster::start_in(Some(net), 5, FLAGS);
    let work = Work::start(&cluster, 6, KEYS);
    work.until_answered(SOME);
    cluster.net().cut(4);
    work.use_nodes(cluster.addresses()[..4].to_vec());
    thread::sleep(Duration::from_secs(3));
    work.until_answered(SOME);
    cluster.net().heal();
    cluster.until_at_rest(5);
    work.use_nodes(cluster.addresses());
    work.until_answered(SOME);
    let account = work.settle(&cluster, 4);
    println!(
        "{} answers, {} broken, longest pause {:?}, refused {:?}",
        account.answered,
        account.broken,
        account.longest,
        account.kinds()
    );
}

/// A cluster at rest refuses nothing, also over links on which nothing was sent since the outage.
#[test]
fn idle_nodes_reach_one_that_was_cut_off() {
    const NODES: u8 = 7;
    let Some(net) = Net::or_say_why("an idle node cut off") else { return };
    let mut cluster =
        Cluster::start_in(Some(net), NODES, &["--partition-bits", "8", "--replicas", "1"]);
    Work::set_up(&cluster, KEYS);
    for node in 0..NODES {
        cluster.net().isolate(node);
        thread::sleep(Duration::from_secs(3));
        cluster.net().heal();
        cluster.until_at_rest(NODES.into());
        let mut account = Account::default();
        let all: BTreeSet<usize> = (0..KEYS).collect();
        for asked in 0..NODES {
            let refused = &all - &counted(&cluster, asked, &mut account);
            assert_eq!(refused, BTreeSet::new(), "{node} was cut off, {asked} was asked");
        }
        println!("after node {node} returned: {:?}", account.kinds());
    }
}
