//! Many overrides through the APIs of three nodes.
//!
//! Not here: a server by itself (`api::overrides`), changes under faults (`tests/sim`).

use super::steered::steered;
use crate::api::overrides::{check, put_all};

#[test]
fn many_overrides_bind_on_three_nodes() {
    let (cluster, apis) = steered();
    put_all(&apis);
    // In turn, so that most requests are forwarded.
    let mut node = 0;
    check(|request| {
        node = (node + 1) % 3;
        cluster.ask(node, request).trim_end().to_owned()
    });
}
