//! Five nodes whose links are cut under constant load, by plain clients and ketama's.
//!
//! Plain counters only: they are refused where their owner is out of reach, never guessed. Not here:
//! limits, that have a policy for it. It takes network namespaces (`net`).

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
/// A partition with a copy on the side of the majority serves there again within this time.
const SERVES_WITHIN: Duration = Duration::from_secs(5);
const SOME: u64 = 400;

/// What each of the keys is answered at a node: whether it was counted. What is counted here is
/// counted in `account` as well.
fn counted(cluster: &Cluster, node: u8, account: &mut Account) -> BTreeSet<usize> {
    let mut line = cluster.line(node);
    for key in 0..KEYS {
        line.send(&format!("incr work{key} 1\r\n")).expect("it takes them");
    }
    let mut counted = BTreeSet::new();
    for key in 0..KEYS {
        let answer = line.hear().expect("it answers").expect("it does not hang up");
        let is_refused = answer.starts_with("SERVER_ERROR ");
        if account.note(&format!("work{key}"), answer.clone()) {
            counted.insert(key);
        } else {
            assert!(is_refused, "{answer}");
        }
    }
    counted
}

#[test]
fn when_two_of_five_are_cut_off_no_key_counts_on_both_sides() {
    let Some(net) = Net::or_say_why("two of five cut off") else { return };
    let cluster = &mut Cluster::start_in(Some(net), 5, FLAGS);
    Work::set_up(cluster, KEYS);
    let places = cluster.addresses();
    let (few, most) = places.split_at(2);
    let (few, most) = (Work::on(few.to_vec(), 2, KEYS), Work::on(most.to_vec(), 4, KEYS));
    most.until_answered(SOME);
    cluster.net().part(&[0, 1]);
    let parted = Instant::now();
    let mut asked = Account::default();
    // Served by the majority: all but those whose two copies are both on the other side. Each
    // refusal may take a second, and all keys are asked at once.
    thread::sleep(SERVES_WITHIN.saturating_sub(Duration::from_millis(1500)));
    let at_most = counted(cluster, 3, &mut asked);
    let took = parted.elapsed();
    let at_few = counted(cluster, 1, &mut asked);
    let all: BTreeSet<usize> = (0..KEYS).collect();
    println!("after {took:?} the three count {} keys, the two {}", at_most.len(), at_few.len());
    assert!(at_most.is_disjoint(&at_few), "{:?}", at_most.intersection(&at_few));
    assert_eq!(&at_most | &at_few, all, "every key counts on one side: {}", cluster.logs());
    assert!(!at_most.is_empty());
    thread::sleep(Duration::from_secs(1));
    cluster.net().heal();
    let healed = Instant::now();
    cluster.until_at_rest(5);
    println!("at rest {:?} after healing", healed.elapsed());
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
fn a_node_that_is_cut_off_is_replaced_and_comes_back_empty_handed() {
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
