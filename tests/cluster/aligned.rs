//! Standard ketama clients on three nodes: nearly every key is sent to its owner, so that nothing
//! is forwarded.
//!
//! The cluster has the default number of partitions, because the share of keys in partitions with
//! two owners depends on it. Not here: the continuum itself (`ketama.rs`).

use super::nodes::Cluster;
use crate::clients::command;

const NODES: u8 = 3;
const KEYS: u64 = 3000;
/// Percentage of all requests.
const DIRECT_PERCENT_MIN: u64 = 99;

/// The numbers of operations executed at the receiving node, and of forwarded ones, so far.
fn traffic(cluster: &Cluster) -> [u64; 2] {
    ["ops_direct", "ops_forwarded"].map(|name| {
        let of_node = |number| cluster.stat(number, name).expect("it answers");
        (0..NODES).map(|number| of_node(number).parse::<u64>().expect("a number")).sum()
    })
}

#[test]
fn clients_of_ketama_ask_the_owners() {
    let cluster = Cluster::start_in(None, NODES, &["--partition-bits", "14"]);
    let hosts: Vec<String> = (0..NODES).map(|number| cluster.host(number).to_string()).collect();
    for client in [["python", "with_nodes.py"], ["node", "with_nodes.js"]] {
        let before = traffic(&cluster);
        let output = command(&client)
            .args(&hosts)
            .arg(KEYS.to_string())
            .output()
            .expect("it is installed: run tests/setup.sh");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{client:?}: {said} {}", cluster.logs());
        let after = traffic(&cluster);
        let [direct, forwarded] = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(direct + forwarded, 3 * KEYS, "three requests a key");
        let percent = 100 * direct / (direct + forwarded);
        println!("{client:?}: {direct} of {} requests were direct", direct + forwarded);
        assert!(percent >= DIRECT_PERCENT_MIN, "{client:?}: {percent} % direct");
    }
}
