//! Thousands of holders of one key: their cost, and the copies' knowledge of them after a death.

use std::time::{Duration, Instant};

use super::nodes::{Cluster, Line};

const POLICY: &str = "concurrency:50000,hold=1h";
const HOLDERS: usize = 20_000;

/// Takes one unit `count` times, and returns the leases.
fn hold(line: &mut Line, key: &str, count: usize) -> Vec<String> {
    let mut leases = Vec::new();
    while leases.len() < count {
        let asked = (count - leases.len()).min(200);
        line.send(&format!("take {key} 1 {POLICY}\r\n").repeat(asked)).expect("it listens");
        for _ in 0..asked {
            let reply = line.receive().expect("it answers").expect("it does not hang up");
            assert!(reply.starts_with("ALLOW 50000 ") && !reply.contains("degraded"), "{reply}");
            let lease = reply.rsplit_once("lease=").expect("a hold has a name").1;
            leases.push(lease.to_owned());
        }
    }
    leases
}

/// The time that `count` takes need, one after the other.
fn time(line: &mut Line, key: &str, count: usize) -> Duration {
    let start = Instant::now();
    for _ in 0..count {
        let reply = line.ask(&format!("take {key} 1 {POLICY}\r\n")).expect("it answers");
        assert!(reply.is_some_and(|reply| reply.starts_with("ALLOW 50000 ")));
    }
    start.elapsed()
}

fn used(cluster: &Cluster, number: u8) -> u64 {
    50_000 - cluster.left(number, "gpu", POLICY)
}

#[test]
fn many_holders_cost_as_few_and_survive_a_death() {
    let mut cluster = Cluster::start(2, &[]);
    cluster.until_at_rest(2);
    let mut lines = [cluster.line(0), cluster.line(1)];
    let leases = hold(&mut lines[0], "gpu", HOLDERS);
    let (mut few, mut many) = (Duration::ZERO, Duration::ZERO);
    for round in 0..20 {
        for line in &mut lines {
            few += time(line, &format!("few{round}"), 10);
            many += time(line, "gpu", 10);
        }
    }
    assert!(many < 5 * few, "{many:?} for what few holders take {few:?}");
    let mut held = HOLDERS as u64 + 400;
    for lease in &leases[..500] {
        let reply = lines[1].ask(&format!("settle gpu {lease} 0\r\n")).expect("it answers");
        assert!(reply.is_some_and(|reply| reply.starts_with("SETTLED 50000 ")));
    }
    held -= 500;
    let renewed = lines[1].ask(&format!("renew gpu {} 2h\r\n", leases[600])).expect("it answers");
    assert_eq!(renewed.as_deref(), Some("RENEWED 7200000"));
    // A new node receives them in chunks, while they change.
    cluster.join();
    held += hold(&mut lines[0], "gpu", 1_000).len() as u64;
    cluster.until_at_rest(3);
    assert_eq!([0, 1, 2].map(|number| used(&cluster, number)), [held; 3]);
    cluster.kill(0);
    cluster.until_at_rest(2);
    assert_eq!([1, 2].map(|number| used(&cluster, number)), [held; 2]);
    // The copy that a node receives from the new primary is complete too.
    let fourth = cluster.join();
    cluster.until_at_rest(3);
    assert!(cluster.end(1).success(), "{}", cluster.log(1));
    cluster.until_at_rest(2);
    assert_eq!([2, fourth].map(|number| used(&cluster, number)), [held; 2]);
    let reply = cluster.ask(2, &format!("settle gpu {} 0\r\n", leases[600]));
    assert!(reply.starts_with("SETTLED 50000 "), "{reply}");
    assert!(cluster.ask(2, &format!("settle gpu {} 0\r\n", leases[7])).starts_with("NOT_FOUND"));
}
