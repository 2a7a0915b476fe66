//! Several policies of one limit in a cluster: forwarded, over several owners, after a takeover,
//! and without the owner.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use super::nodes::{Cluster, Line, ask};
use super::overload::owned;

/// A limit with two windows, and one whose parent has two.
const LIMITS: &str = r#"
[[limit]]
name   = "sms"
match  = "sms:{phone}"
policy = ["log:30/1h", "fixed:40/2h", "sliding:60/30d"]

[[limit]]
name    = "call"
match   = "call:{tenant}:{phone}"
policy  = "log:50/1h"
parents = ["line:{tenant}"]

[[limit]]
name   = "line"
match  = "line:{tenant}"
policy = ["log:20/1h", "fixed:9/2h"]
"#;

fn start(folder: &Path) -> Cluster {
    let path = folder.join("limits.toml");
    fs::write(&path, LIMITS).expect("the folder is ours");
    let cluster = Cluster::start(3, &["--limits", &path.display().to_string()]);
    // The limits come into force once every node is known to understand lists.
    let start = Instant::now();
    for number in 0..3 {
        while !cluster.ask(number, "take sms:probe 1 - peek\r\n").starts_with("ALLOW") {
            assert!(start.elapsed() < Duration::from_secs(30), "{}", cluster.logs());
            thread::sleep(Duration::from_millis(20));
        }
    }
    println!("in force after {:?}", start.elapsed());
    cluster
}

#[test]
fn several_policies_hold_over_nodes_owners_and_a_death() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut cluster = start(folder.path());
    let mut lines: Vec<Line> = (0..3).map(|number| cluster.line(number)).collect();
    let key = owned(&cluster, 1, "sms:", 1).remove(0);
    let mut passed = 0;
    for turn in 0..45 {
        let line = &mut lines[turn % 3];
        passed += match turn % 2 {
            0 => u64::from(ask(line, &format!("take {key} 1 -\r\n")).starts_with("ALLOW 30 ")),
            _ => u64::from(
                ask(line, &format!("incr {key} 1\r\n")).parse::<u64>().expect("a number") <= 30,
            ),
        };
    }
    assert_eq!(passed, 30);
    assert_eq!(ask(&mut lines[2], &format!("decr {key} 5\r\n")), "25");
    let refused = ask(&mut lines[0], &format!("take {key} 16 -\r\n"));
    assert!(refused.starts_with("DENY 40 15 ") && refused.ends_with(" at=1 by=sms"), "{refused}");

    // A parent with two windows, whose owner is another node than the key's.
    let mut called = 0;
    for turn in 0..15 {
        let request = format!("take call:t:{turn} 1 -\r\n");
        called += u64::from(ask(&mut lines[turn % 3], &request).starts_with("ALLOW"));
    }
    assert_eq!(called, 9);
    let refused = ask(&mut lines[1], "take call:t:x 1 -\r\n");
    assert!(refused.starts_with("DENY 9 0 ") && refused.ends_with(" at=1 by=line"), "{refused}");
    assert_eq!(ask(&mut lines[1], "incr call:t:x 1\r\n"), "51");

    // A takeover keeps the counts of all policies.
    drop(lines);
    cluster.kill(1);
    cluster.until_at_rest(2);
    let look = cluster.ask(0, &format!("take {key} 6 - peek\r\n"));
    assert!(look.starts_with("DENY 30 5 ") && look.ends_with(" at=0 by=sms"), "{look}");
    let look = cluster.ask(2, &format!("take {key} 16 - peek\r\n"));
    assert!(look.starts_with("DENY ") && look.ends_with(" by=sms"), "{look}");
}

#[test]
fn node_alone_lets_its_share_of_every_policy_pass() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let cluster = start(folder.path());
    let key = owned(&cluster, 1, "sms:", 1).remove(0);
    assert!(cluster.ask(0, &format!("take {key} 1 - peek\r\n")).starts_with("ALLOW 30 30 "));
    for number in [1, 2] {
        cluster.signal(number, Signal::SIGSTOP);
    }
    let (mut line, mut passed) = (cluster.line(0), 0);
    for _ in 0..30 {
        let reply = ask(&mut line, &format!("incr {key} 1\r\n"));
        passed += u64::from(reply.parse::<u64>().expect("a number") <= 30);
        thread::sleep(Duration::from_millis(30));
    }
    for number in [1, 2] {
        cluster.signal(number, Signal::SIGCONT);
    }
    // A request in flight when the others fell silent may have passed at its owner.
    assert!((10..=11).contains(&passed), "{passed}");
    cluster.until_settled();
    let look = cluster.ask(1, &format!("take {key} 0 - peek\r\n"));
    let left = look.split(' ').nth(2).and_then(|word| word.parse::<u64>().ok());
    assert!(left.is_some_and(|left| left <= 30 - passed), "{passed} passed: {look}");
}
