//! Bans in a cluster: they begin at one node, are in force at all, survive the death of the key's
//! owner, and end in time.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::nodes::{Cluster, LONG, start_limited};
use super::overload::owned;

/// The window is over long before the ban: after that only the ban refuses.
const LIMITS: &str = r#"
[[limit]]
name   = "login"
match  = "login:{user}"
policy = "fixed:3/1s"
on_unavailable = "error"

[limit.ban]
refusals = 4
within   = "10m"
for      = "25s"
max      = "50s"
"#;

const BAN_MS: u64 = 25_000;

/// Takes until the key is banned, at one node after the other. Returns the moment of the first
/// reply with `ban=1`.
fn ban(cluster: &Cluster, key: &str) -> Instant {
    let start = Instant::now();
    let mut allowed = 0;
    for node in (0..3).cycle() {
        assert!(start.elapsed() < LONG, "no ban: {}", cluster.logs());
        let reply = cluster.ask(node, &format!("take {key} 1 -\r\n"));
        if reply.contains(" ban=1") {
            break;
        }
        allowed += u64::from(reply.starts_with("ALLOW"));
    }
    assert!(allowed >= 3, "{allowed}");
    Instant::now()
}

/// The milliseconds until the ban of a key ends, as `node` says.
fn left(cluster: &Cluster, node: u8, key: &str) -> u64 {
    let reply = cluster.ask(node, &format!("take {key} 1 - peek\r\n"));
    assert!(reply.starts_with("DENY 3 ") && reply.contains(" ban=1"), "{reply}");
    reply.split(' ').nth(3).and_then(|word| word.parse().ok()).expect("a verdict line")
}

#[test]
fn ban_is_in_force_at_all_nodes_and_survives_its_owner() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut cluster = start_limited(folder.path(), LIMITS);
    let keys = owned(&cluster, 1, "login:", 2);
    let (banned, lifted) = (&keys[0], &keys[1]);

    // An operator at any node lifts a ban.
    ban(&cluster, lifted);
    assert_eq!(cluster.ask(2, &format!("delete {lifted}\r\n")), "DELETED");
    for node in 0..3 {
        let reply = cluster.ask(node, &format!("take {lifted} 1 - peek\r\n"));
        assert!(reply.starts_with("ALLOW 3 3 "), "{reply}");
    }

    let begun = ban(&cluster, banned);
    for node in 0..3 {
        let left = left(&cluster, node, banned);
        assert!((1..=BAN_MS).contains(&left), "{left}");
        let count: u64 =
            cluster.ask(node, &format!("incr {banned} 1\r\n")).parse().expect("a number");
        assert!(count > 3, "{count}");
    }
    cluster.kill(1);
    cluster.until_at_rest(2);
    assert!(
        begun.elapsed() < Duration::from_millis(BAN_MS),
        "the takeover took too long to see it"
    );
    for node in [0, 2] {
        let left = left(&cluster, node, banned);
        let passed = begun.elapsed().as_millis() as u64;
        // The ban began before the reply that showed it. The new owner's time may be a little off.
        assert!(left <= BAN_MS && left + passed + 2000 >= BAN_MS, "{left} ms left after {passed}");
    }
    thread::sleep(Duration::from_millis(left(&cluster, 0, banned) + 100));
    let reply = cluster.ask(2, &format!("take {banned} 1 -\r\n"));
    assert!(reply.starts_with("ALLOW 3 "), "{reply}");
}
