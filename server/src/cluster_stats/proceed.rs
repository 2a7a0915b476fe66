//! The rule of a rolling restart: whether an operator may go on with the next node.
//!
//! Here: the rule, on one node's view. Not here: the sentence that `tollgate cluster status` makes
//! of it (`server/cli`).

use cluster::map::NodeState;
use control::DiskState;

use super::{ClusterView, HEARING_MAX, NodeRow, disk_word, millis};

/// Returns the reason why no node should be restarted or updated now; `None` if one may be. After
/// the restart of a node the answer is `None` again once the node has its copies.
///
/// The rule: the asked node is ready and knows a leader, every node is active and, as far as the
/// asked node knows, heard, ready and without a faulty disk, no link is broken, there are as many
/// nodes as `replicas` asks for, and every key has all of its copies, at least two, none of them on
/// its way. A node that restarts leaves the map for a while: it would not be missed otherwise.
#[must_use]
pub fn not_safe_to_proceed(view: &ClusterView<'_>) -> Option<String> {
    if let Some(reason) = view.not_ready() {
        return Some(format!("the asked node is not ready: {reason}"));
    }
    if view.status.leader.is_none() {
        return Some("there is no leader".to_owned());
    }
    // The worst first.
    let totals = view.partitions;
    for (count, state) in [
        (totals.without_primary, "without a primary"),
        (totals.under_replicated, "with too few copies"),
    ] {
        if count > 0 {
            return Some(format!("{} {state}", partitions(count)));
        }
    }
    if let Some(reason) = view.nodes.iter().find_map(not_fit) {
        return Some(reason);
    }
    for (count, state) in [(totals.moving, "moving"), (totals.learners, "being copied")] {
        if count > 0 {
            return Some(format!("{} {state}", partitions(count)));
        }
    }
    if view.traffic.links_broken > 0 {
        let count = view.traffic.links_broken;
        return Some(format!("links from the asked node to other nodes that are broken: {count}"));
    }
    if view.wanted() < 2 {
        let remedy = "drain the node, or set replicas to 2 or more with two nodes or more";
        return Some(format!("a key has one copy, which a restart loses: {remedy}"));
    }
    let replicas = view.map.settings().replicas;
    if usize::from(replicas) > view.wanted() {
        let nodes = view.wanted();
        return Some(format!(
            "replicas is {replicas}, and {nodes} nodes hold keys: start the missing node, or set \
             replicas to {nodes}"
        ));
    }
    None
}

fn partitions(count: usize) -> String {
    if count == 1 { "1 partition is".to_owned() } else { format!("{count} partitions are") }
}

/// Returns the reason why the cluster lacks a node at present.
fn not_fit(row: &NodeRow<'_>) -> Option<String> {
    let id = row.id;
    match row.node.state {
        NodeState::Joining => return Some(format!("{id} is joining")),
        NodeState::Draining => return Some(format!("{id} is draining")),
        NodeState::Dead => {
            return Some(format!("{id} is dead: start it again, or forget it"));
        }
        NodeState::Active => {}
    }
    if let Some(heard_ms) = row.heard_ms_ago.filter(|heard| *heard >= millis(HEARING_MAX)) {
        return Some(format!("{id} was not heard for {heard_ms} ms"));
    }
    if let Some(disk @ (DiskState::Full | DiskState::Failed)) = row.disk {
        return Some(format!("the disk of {id} is {}", disk_word(disk)));
    }
    if row.is_ready == Some(false) {
        return Some(format!("{id} is not ready"));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cluster::id::NodeId;
    use cluster::map::command::Setting;
    use cluster::map::{Map, MapCommand, Transition};
    use control::{MembershipState, Status};

    use super::super::Traffic;
    use super::super::tests::{LIFE, apply, joined, placement, status as status_of, step};
    use super::*;

    /// Two active nodes with two copies of each of four partitions.
    fn healthy() -> Map {
        let mut map = Map::default();
        apply(&mut map, &MapCommand::Create { cluster: 1, placement: placement(2) });
        for at in 0..2 {
            joined(&mut map, at, &format!("10.0.0.{at}"));
        }
        for partition in 0..4 {
            let reset = Transition::Reset { node: NodeId(1), incarnation: LIFE, waited: false };
            step(&mut map, partition, reset);
            step(&mut map, partition, Transition::SetLearner(NodeId(2), LIFE));
            let entry = map.entry(cluster::id::Partition(partition));
            let learner = entry.and_then(|entry| entry.learner).expect("it was just set");
            step(&mut map, partition, Transition::AddInSync(learner));
        }
        for node in [1, 2] {
            apply(&mut map, &MapCommand::Activate(NodeId(node), LIFE));
        }
        map
    }

    fn status(map: &Map) -> Status {
        let mut status = status_of(map);
        status.lease = Some(Duration::from_millis(200));
        status.reports.retain(|report| report.node == NodeId(2));
        status
    }

    fn reason(
        change_map: impl FnOnce(&mut Map),
        change: impl FnOnce(&mut Status),
        traffic: Traffic,
    ) -> Option<String> {
        let mut map = healthy();
        change_map(&mut map);
        let mut status = status(&map);
        change(&mut status);
        let links = std::collections::BTreeMap::new();
        not_safe_to_proceed(&ClusterView::of(&status, &map, &links, traffic))
    }

    fn by_status(change: impl FnOnce(&mut Status)) -> Option<String> {
        reason(|_| {}, change, Traffic::default())
    }

    fn by_map(change: impl FnOnce(&mut Map)) -> Option<String> {
        reason(change, |_| {}, Traffic::default())
    }

    #[test]
    fn healthy_cluster_is_safe_to_proceed() {
        assert_eq!(by_status(|_| {}), None);
    }

    #[test]
    fn state_of_the_asked_node_is_a_reason() {
        let draining = MembershipState::Member(NodeState::Draining);
        for (why, expected) in [
            (by_status(|status| status.lease = None), "not ready: it does not hear"),
            (by_status(|status| status.membership_state = draining), "not ready: it is draining"),
            (by_status(|status| status.leader = None), "there is no leader"),
            (by_status(|status| status.reports[0].is_ready = false), "n2 is not ready"),
            (by_status(|status| status.reports[0].disk = DiskState::Full), "disk of n2 is full"),
            (
                by_status(|status| status.reports[0].ago = Duration::from_secs(3)),
                "n2 was not heard for 3000 ms",
            ),
            (
                reason(|_| {}, |_| {}, Traffic { links_broken: 2, ..Traffic::default() }),
                "broken: 2",
            ),
        ] {
            assert!(why.as_ref().is_some_and(|why| why.contains(expected)), "{why:?} {expected}");
        }
    }

    #[test]
    fn state_of_nodes_and_copies_is_a_reason() {
        let drained = |map: &mut Map| drop(apply(map, &MapCommand::Drain(NodeId(2), LIFE)));
        let dead = |map: &mut Map| {
            apply(map, &MapCommand::Bury(NodeId(2), LIFE));
        };
        let joins = |map: &mut Map| joined(map, 2, "10.0.0.3");
        let learns = |map: &mut Map| {
            joins(map);
            apply(map, &MapCommand::Activate(NodeId(3), LIFE));
            step(map, 3, Transition::SetLearner(NodeId(3), LIFE));
        };
        let moves = |map: &mut Map| {
            let backup = map.entry(cluster::id::Partition(1)).and_then(|e| e.in_sync_on(NodeId(2)));
            step(map, 1, Transition::SetTransfer(backup));
        };
        for (why, expected) in [
            (by_map(drained), "n2 is draining"),
            (by_map(dead), "n2 is dead: start it again, or forget it"),
            (by_map(joins), "n3 is joining"),
            (by_map(learns), "1 partition is being copied"),
            (by_map(moves), "1 partition is moving"),
            (
                by_map(|map| drop(apply(map, &MapCommand::Set(Setting::Replicas(1))))),
                "a key has one copy, which a restart loses: drain the node, or set replicas to 2 \
                 or more with two nodes or more",
            ),
            (
                by_map(|map| {
                    joins(map);
                    apply(map, &MapCommand::Activate(NodeId(3), LIFE));
                    apply(map, &MapCommand::Set(Setting::Replicas(3)));
                }),
                "4 partitions are with too few copies",
            ),
            (
                by_map(|map| drop(apply(map, &MapCommand::Set(Setting::Replicas(3))))),
                "replicas is 3, and 2 nodes hold keys: start the missing node, or set replicas to \
                 2",
            ),
            (
                by_map(|map| drop(apply(map, &MapCommand::Bury(NodeId(1), LIFE)))),
                "4 partitions are without a primary",
            ),
        ] {
            assert_eq!(why.as_deref(), Some(expected));
        }
    }
}
