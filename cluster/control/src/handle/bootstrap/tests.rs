//! No two nodes found a cluster.

use cluster::id::Incarnation;

use super::super::state::Rng;
use super::*;

fn sender(node_uuid: u128) -> Sender {
    Sender {
        node_uuid,
        incarnation: Incarnation(1),
        membership: None,
        address: format!("at {node_uuid}"),
    }
}

/// Simulates greetings of `nodes` nodes that see each other at random. Returns the founders.
fn run(nodes: usize, wanted: usize, seed: u128) -> Vec<usize> {
    let mut rng = Rng(seed);
    let mut seekers: Vec<BootstrapPeers> = (0..nodes).map(|_| BootstrapPeers::default()).collect();
    let mut founders = Vec::new();
    let mut blocked = vec![vec![false; nodes]; nodes];
    let mut late: Vec<(Duration, usize, u128, Option<u128>, Duration)> = Vec::new();
    for round in 0..400_u64 {
        let now = Duration::from_millis(round * 50);
        if rng.below(10) == 0 {
            let (from, to) = (rng.below(nodes as u64) as usize, rng.below(nodes as u64) as usize);
            blocked[from][to] = rng.below(2) == 0;
        }
        let (due, rest) = late.drain(..).partition::<Vec<_>, _>(|answer| answer.0 <= now);
        late = rest;
        for (_, at, node_uuid, bootstrap_vote, asked) in due {
            seekers[at].saw(&sender(node_uuid), bootstrap_vote, Some(asked), now);
        }
        let one = rng.below(nodes as u64) as usize;
        if founders.contains(&one) {
            continue;
        }
        for other in (0..nodes).filter(|other| *other != one && !founders.contains(other)) {
            if blocked[one][other] {
                continue;
            }
            let bootstrap_vote = seekers[one].bootstrap_vote();
            seekers[other].saw(&sender(one as u128), bootstrap_vote, None, now);
            if !blocked[other][one] {
                let arrives = now + Duration::from_millis(rng.below(10) * 50);
                late.push((arrives, one, other as u128, seekers[other].bootstrap_vote(), now));
            }
        }
        if seekers[one].decide(one as u128, wanted, now) {
            founders.push(one);
        }
    }
    founders
}

#[test]
fn no_two_of_fewer_than_twice_the_wanted_found() {
    let mut founded = 0;
    for seed in 0..3000 {
        for (nodes, wanted) in [(3, 3), (3, 2), (4, 3), (5, 3)] {
            let founders = run(nodes, wanted, seed);
            assert!(founders.len() < 2, "seed {seed}: {founders:?} of {nodes}, {wanted} expected");
            founded += founders.len();
        }
    }
    println!("{founded} of 12000 founded");
    assert!(founded > 6000, "{founded}");
}

#[test]
fn emptied_node_does_not_block_the_bootstrap_vote() {
    let now = Duration::from_secs(1);
    let mut seekers = BootstrapPeers::default();
    seekers.saw(&sender(1), None, Some(now), now);
    assert!(!seekers.decide(2, 2, now));
    assert_eq!(seekers.bootstrap_vote(), Some(1));
    // The holder is silent and may have founded: no other node gets the vote.
    let later = now + SEEN * 2;
    seekers.saw(&sender(3), Some(3), Some(later), later);
    assert!(!seekers.decide(2, 2, later));
    assert_eq!(seekers.bootstrap_vote(), Some(1));
    let reborn = Sender { address: sender(1).address, ..sender(9) };
    seekers.saw(&reborn, None, Some(later), later);
    assert!(!seekers.decide(2, 2, later));
    assert_eq!(seekers.bootstrap_vote(), Some(2));
}
