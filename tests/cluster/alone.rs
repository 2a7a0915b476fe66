//! Keys that a node owns alone: batches of common requests on them take the fast path of a lone
//! server, and other requests, at the same moment, go through their partitions' replicas.
//!
//! Here: both paths count as one. Not here: partitions that come and go under load (`promises`).

use std::{collections::BTreeSet, thread};

use super::nodes::Cluster;

const CLIENTS: u8 = 6;
const BATCHES: usize = 150;
const KEYS: usize = 4;

/// The counts of one client, and the cas uniques it received, by key.
fn count(cluster: &Cluster) -> [(Vec<u64>, Vec<u64>); KEYS] {
    let mut line = cluster.line(0);
    let mut seen: [(Vec<u64>, Vec<u64>); KEYS] = Default::default();
    for batch in 0..BATCHES {
        let request = |number: usize| {
            let key = (number + batch) % KEYS;
            // Some batches contain a request that takes the other path.
            match (batch % 3, number) {
                (1, 9 | 20) => format!("ma n{key} c v\r\n"),
                (2, 17) => format!("gets n{key} no\r\n"),
                _ => format!("incr n{key} 1\r\n"),
            }
        };
        let text: Vec<String> = (0..32).map(request).collect();
        line.send(&text.concat()).expect("it listens");
        let mut receive = || line.receive().expect("it answers").expect("it does not hang up");
        for number in 0..32 {
            let (counts, uniques) = &mut seen[(number + batch) % KEYS];
            let answer = receive();
            match (batch % 3, number) {
                (1, 9 | 20) => {
                    let unique = answer.split(" c").nth(1).expect(&answer);
                    uniques.push(unique.parse().expect(&answer));
                    counts.push(receive().parse().expect("a count"));
                }
                (2, 17) => {
                    assert!(answer.starts_with("VALUE "), "{answer}");
                    assert!(receive().parse::<u64>().is_ok());
                    assert_eq!(receive(), "END");
                }
                _ => counts.push(answer.parse().expect(&answer)),
            }
        }
    }
    seen
}

#[test]
fn both_ways_to_a_key_count_as_one() {
    // Partitions of several shards each, and shards of several partitions.
    for bits in ["4", "14"] {
        let flags = ["--partition-bits", bits, "--replicas", "1", "-t", "2"];
        let cluster = Cluster::start_in(None, 1, &flags);
        let mut line = cluster.line(0);
        for key in 0..KEYS {
            let set = format!("set n{key} 0 0 1\r\n0\r\n");
            assert_eq!(line.ask(&set).expect("it answers").as_deref(), Some("STORED"));
        }
        let seen: Vec<_> = thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| count(&cluster))).collect();
            clients.into_iter().map(|client| client.join().expect("it counts")).collect()
        });
        for key in 0..KEYS {
            let mut counts: Vec<u64> = Vec::new();
            let mut uniques: Vec<u64> = Vec::new();
            for client in &seen {
                assert!(client[key].0.is_sorted(), "a client's own counts grow");
                counts.extend(&client[key].0);
                uniques.extend(&client[key].1);
            }
            counts.sort_unstable();
            assert!(counts.iter().copied().eq(1..=counts.len() as u64), "every count once");
            let distinct: BTreeSet<&u64> = uniques.iter().collect();
            assert_eq!(distinct.len(), uniques.len(), "no unique is given twice");
        }
    }
}
