//! Many overrides through the APIs of three nodes.
//!
//! Not here: a server by itself (`api::overrides`), changes under faults (`tests/sim`).

use std::time::Instant;

use super::steered::steered;
use crate::api::overrides::{IN_FORCE_MAX, check, overrides, put_all};

#[test]
fn many_overrides_bind_on_three_nodes() {
    let (cluster, apis) = steered();
    put_all(&apis);
    let start = Instant::now();
    let last = format!("take many:{} 1 - peek\r\n", overrides() - 1);
    for node in 0..3 {
        while !cluster.ask(node, &last).starts_with("ALLOW 2 ") {
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
