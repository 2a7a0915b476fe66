//! One atomic step for a call of a language model, over the owners of three nodes, one of which
//! dies.
//!
//! Not here: the clients and their account (`crate::llm`).

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use super::nodes::{Cluster, LONG};
use crate::llm::{LIMITS, Ledger};

#[test]
fn a_call_is_one_atomic_step_though_a_node_dies() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("limits.toml");
    fs::write(&path, LIMITS).expect("the folder is ours");
    let mut cluster = Cluster::start(3, &["--limits", path.to_str().expect("it is UTF-8")]);
    cluster.until_at_rest(3);
    let nodes = cluster.addresses();
    let victim = nodes[0];
    // Weights and rules wait until all nodes know that no older one is there.
    let start = Instant::now();
    while (0..3)
        .any(|node| !cluster.ask(node, "take llm:probe:u 0 - peek\r\n").starts_with("ALLOW"))
    {
        assert!(start.elapsed() < LONG, "{}", cluster.logs());
        thread::sleep(Duration::from_millis(50));
    }
    let ledger = Ledger::default();
    let mut died = None;
    ledger.run(&nodes, || {
        while ledger.attempts() < 4_000 {
            thread::sleep(Duration::from_millis(1));
        }
        died = Some((victim, Instant::now()));
        cluster.kill(0);
    });
    cluster.until_at_rest(2);
    ledger.check(nodes[1], died);
}
