//! After all faults, every partition is served within five seconds and soon has all its copies.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use tollgate::simulation::{Role, SimulatedNode};

/// The wanted copies of each partition.
const COPIES: usize = 2;

/// The time limits of a cluster.
pub(crate) struct Patience {
    /// Until every partition has an active primary.
    pub(crate) served: Duration,
    /// From then on until all copies exist.
    pub(crate) rest: Duration,
}

/// A partition without any copy starts empty after `lost_after` seconds, and is not served before.
/// New processes need two more seconds, as do those that detect the loss.
pub(crate) fn patience(lost_after: u64) -> Patience {
    Patience { served: Duration::from_secs(5 + lost_after + 2), rest: Duration::from_secs(20) }
}

fn is_served_by(sights: &[(IpAddr, SimulatedNode)], partition: usize) -> bool {
    sights.iter().any(|(_, sight)| {
        let copy = sight.replicas.get(partition);
        let Some(entry) = sight.map.partitions().get(partition) else { return false };
        copy.is_some_and(|copy| copy.role == Role::Primary && copy.term == entry.term.0)
    })
}

/// Whether all nodes agree on a map in which every partition is served.
pub(crate) fn is_served(sights: &[(IpAddr, SimulatedNode)], nodes: usize) -> bool {
    let Some((_, first)) = sights.first() else { return false };
    let partitions = first.map.partitions().len();
    sights.len() == nodes
        && partitions > 0
        && sights.iter().all(|(_, sight)| sight.map.ver() == first.map.ver())
        && (0..partitions).all(|partition| is_served_by(sights, partition))
}

/// Whether all copies exist too, and none is being made.
pub(crate) fn is_at_rest(sights: &[(IpAddr, SimulatedNode)], nodes: usize) -> bool {
    let Some((_, first)) = sights.first() else { return false };
    is_served(sights, nodes)
        && first.map.members().len() == nodes
        && first.map.partitions().iter().all(|entry| {
            entry.in_sync.len() == COPIES
                && entry.learner.is_none()
                && entry.transfer_to.is_none()
                && entry.in_sync.iter().all(|copy| first.map.is_living(*copy))
        })
}

/// A description of all that keeps the cluster from rest.
pub(crate) fn what_is_missing(sights: &[(IpAddr, SimulatedNode)]) -> String {
    let mut text = "not at rest in time:".to_owned();
    for (address, sight) in sights {
        let ver = sight.map.ver();
        let status = &sight.status;
        let _ = write!(text, " {address} {:?} map {ver}", status.membership_state);
        let _ = write!(text, " led by {:?} of {:?};", status.leader, status.voters);
    }
    let Some((_, newest)) = sights.iter().max_by_key(|(_, sight)| sight.map.ver()) else {
        return text;
    };
    for (id, node) in newest.map.nodes() {
        let name = &node.description.ring_name;
        let _ = write!(text, " {id} at {name} {:?} {};", node.state, node.incarnation.0);
    }
    let rows = newest.map.partitions().iter().enumerate();
    let odd = rows.filter(|(partition, entry)| {
        entry.in_sync.len() != COPIES || !is_served_by(sights, *partition)
    });
    for (partition, entry) in odd.take(5) {
        let _ = write!(text, " p{partition} {entry:?};");
    }
    text
}
