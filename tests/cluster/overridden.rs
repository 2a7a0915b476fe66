//! Ten thousand overrides through the APIs of three nodes, the most that a cluster keeps.
//!
//! Not here: a server by itself (`api::overrides`), changes under faults (`tests/sim`).

use std::time::Instant;

use super::steered::steered;
use crate::api::overrides::{IN_FORCE_MAX, check, put_all};

#[test]
fn ten_thousand_overrides_bind_on_three_nodes() {
    let (cluster, apis) = steered();
    put_all(&apis);
    let start = Instant::now();
    for node in 0..3 {
        while !cluster.ask(node, "take many:9999 1 - peek\r\n").starts_with("ALLOW 2 ") {
            assert!(start.elapsed() < IN_FORCE_MAX, "{node}: {}", cluster.logs());
        }
    }
    // In turn, so that most requests are forwarded.
    let mut node = 0;
    check(|request| {
        node = (node + 1) % 3;
        cluster.ask(node, request).trim_end().to_owned()
    });
}
