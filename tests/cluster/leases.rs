//! Quota leases of keys whose parents have other owners, at any node, and after the death of one.

use std::thread;
use std::time::{Duration, Instant};

use super::nodes::{Cluster, LONG, start_limited};
use super::overload::owned;

const LIMITS: &str = r#"
[[limit]]
name    = "call"
match   = "call:{tenant}:{phone}"
policy  = "fixed:100/1h"
parents = ["line:{tenant}"]

[[limit]]
name   = "line"
match  = "line:{tenant}"
policy = "fixed:60/1h"
"#;

/// Such quota is leased once all nodes are known to understand it.
const BEING_UPDATED: &str =
    "SERVER_ERROR quota of a limit with parents is not leased before all nodes are updated";

/// The numbers of a lease line: granted, and `safe=`.
fn leased(cluster: &Cluster, node: u8, rest: &str) -> (u64, u64) {
    let start = Instant::now();
    let reply = loop {
        let reply = cluster.ask(node, &format!("lease {rest}\r\n"));
        if reply != BEING_UPDATED || start.elapsed() > LONG {
            break reply;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let words: Vec<&str> = reply.split(' ').collect();
    let safe = words.iter().find_map(|word| word.strip_prefix("safe="));
    let number = |word: &str| word.parse().ok();
    match (words.get(1).copied().and_then(number), safe.and_then(number)) {
        (Some(granted), Some(safe)) => (granted, safe),
        _ => panic!("{rest} → {reply}: {}", cluster.logs()),
    }
}

#[test]
fn leases_are_charged_to_parents_on_other_nodes() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut cluster = start_limited(folder.path(), LIMITS);
    let line = owned(&cluster, 1, "line:", 1).remove(0);
    let tenant = line.trim_start_matches("line:");
    let keys: Vec<String> =
        (0..3).map(|node| owned(&cluster, node, &format!("call:{tenant}:"), 1).remove(0)).collect();
    let left = |cluster: &Cluster, node: u8| {
        let look = cluster.ask(node, &format!("take {line} 0 - peek\r\n"));
        look.split(' ').nth(2).and_then(|word| word.parse::<u64>().ok()).expect("a verdict line")
    };
    // A first grant is half of the limit, and no more than the parent has left.
    assert_eq!(leased(&cluster, 2, &format!("{} c0 1000 - ttl=10m", keys[0])), (50, 50));
    assert_eq!(left(&cluster, 0), 10);
    assert_eq!(leased(&cluster, 0, &format!("{} c1 1000 - ttl=10m", keys[1])), (10, 10));
    assert_eq!(left(&cluster, 1), 0);
    assert_eq!(leased(&cluster, 1, &format!("{} c2 1000 - ttl=10m", keys[2])), (0, 0));
    let refused = cluster.ask(2, &format!("take {} 1 -\r\n", keys[2]));
    assert!(refused.starts_with("DENY 60 0 ") && refused.ends_with(" by=line"), "{refused}");

    cluster.kill(1);
    cluster.until_at_rest(2);
    for node in [0, 2] {
        assert_eq!(left(&cluster, node), 0);
    }
    // The client has its units still, and reports them at another node.
    let report = format!("{} c0 0 - used=20 ttl=10m", keys[0]);
    assert_eq!(leased(&cluster, 0, &report), (0, 30));
    let report = format!("{} c0 1000 - unused=30 ttl=10m", keys[0]);
    assert_eq!(leased(&cluster, 2, &report), (0, 0));
}
