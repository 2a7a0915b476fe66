//! Log lines about the other nodes: when one joins, dies, returns or leaves, and when the control
//! plane has no leader.
//!
//! Here: comparing one map with the next. Not here: links between nodes (`transport`), this node's
//! disk (`control`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use cluster::map::{Map, NodeState};
use control::{Control, MembershipState};
use tollgate_http::TailEvent;

use crate::LIFE;
use crate::runtime::service::Service;

/// Time between two checks of the leader.
const PERIOD: Duration = Duration::from_millis(1024);
/// A lasting condition is logged again after this many periods.
const REPORT_AGAIN: u32 = 60;
/// Without contact for this long, the control plane has no leader as far as this node knows.
const CONTACT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownNode {
    state: NodeState,
    incarnation: Incarnation,
    /// Name and address, for the log.
    name: String,
}

/// Logs changes for as long as the node runs.
pub(super) async fn log_events(service: Arc<Service>, control: Control) {
    control.registered().await;
    let mut watch = control.watch();
    let mut tick = service.grid().ticks(PERIOD);
    let mut known: Option<BTreeMap<NodeId, KnownNode>> = None;
    let mut leader = None;
    let mut ticks = 0_u32;
    let mut is_lost = false;
    loop {
        tokio::select! {
            biased;
            news = watch.changed() => {
                let now = all(&news.map);
                drop(news);
                if known.as_ref() != Some(&now) {
                    log_changes(&service, known.as_ref(), &now);
                    known = Some(now);
                }
            }
            () = tick.tick() => {
                ticks = ticks.wrapping_add(1);
                let status = control.status();
                let contact = status.contact.unwrap_or(Duration::MAX);
                let is_member = matches!(status.membership_state, MembershipState::Member(_));
                let was_lost = std::mem::replace(&mut is_lost, is_member && contact > CONTACT_MAX);
                if is_lost && (!was_lost || ticks.is_multiple_of(REPORT_AGAIN)) {
                    tracing::warn!(
                        target: LIFE,
                        "no control leader in reach: keys are still served, but no node can join, leave or \
                         be replaced; check that most voters run and reach each other"
                    );
                } else if was_lost && !is_lost {
                    tracing::info!(
                        target: LIFE,
                        "a control leader is in reach again: nodes can join, leave and be replaced"
                    );
                }
                let Some(known) = &known else { continue };
                if status.leader.is_some() && status.leader != leader {
                    leader = status.leader;
                    if let Some((id, node)) = leader.and_then(|id| known.get_key_value(&id)) {
                        tracing::info!(
                            target: LIFE,
                            "node {id} ({}) leads the control plane",
                            node.name
                        );
                    }
                }
                let me = status.identity.membership.map(|membership| membership.node);
                if ticks.is_multiple_of(REPORT_AGAIN) && status.leader.is_some() && status.leader == me {
                    for (id, node) in known.iter().filter(|(_, node)| node.state == NodeState::Dead) {
                        tracing::warn!(
                            target: LIFE,
                            "node {id} ({}) is still dead: restart it or forget it",
                            node.name
                        );
                    }
                }
            }
        }
    }
}

fn all(map: &Map) -> BTreeMap<NodeId, KnownNode> {
    let one = |(id, node): (&NodeId, &cluster::map::MapNode)| {
        let described = &node.description;
        let name = format!("{} at {}", described.ring_name, described.peer_address);
        let name = name.replace(char::is_control, "?");
        (*id, KnownNode { state: node.state, incarnation: node.incarnation, name })
    };
    map.nodes().iter().map(one).collect()
}

/// Logs one line for each node that has changed. At the start it logs only dead nodes.
fn log_changes(
    service: &Service,
    before: Option<&BTreeMap<NodeId, KnownNode>>,
    now: &BTreeMap<NodeId, KnownNode>,
) {
    for (id, node) in now {
        let was = before.and_then(|before| before.get(id));
        let Some((warns, what)) = line(before.is_none(), was, node) else { continue };
        if warns {
            tracing::warn!(target: LIFE, "node {id} ({}) {what}", node.name);
        } else {
            tracing::info!(target: LIFE, "node {id} ({}) {what}", node.name);
        }
        tell(service, format!("{id} ({}) {what}", node.name));
    }
    for (id, node) in before.into_iter().flatten().filter(|(id, _)| !now.contains_key(id)) {
        let how = if node.state == NodeState::Draining { "has left" } else { "was forgotten" };
        tracing::info!(target: LIFE, "node {id} ({}) {how}", node.name);
        tell(service, format!("{id} ({}) {how}", node.name));
    }
}

/// Tells those who follow the tail of a change; `text` begins with the name of the node.
fn tell(service: &Service, text: String) {
    service.observatory().tell(TailEvent {
        kind: "node",
        at_ms: service.clock().now().unix_ms,
        key: text,
        limit: None,
        cost: 0,
        retry_ms: None,
        weight: 1,
    });
}

/// The log text about a node, and whether to warn.
fn line(is_start: bool, was: Option<&KnownNode>, now: &KnownNode) -> Option<(bool, &'static str)> {
    const DEAD: (bool, &str) = (true, "is dead: most voters receive no heartbeat from it");
    let Some(was) = was else {
        return match now.state {
            NodeState::Dead => Some(DEAD),
            _ if is_start => None,
            _ => Some((false, "joins")),
        };
    };
    let is_new_life = was.incarnation != now.incarnation;
    match (was.state, now.state) {
        (NodeState::Dead, NodeState::Dead) => None,
        (_, NodeState::Dead) => Some(DEAD),
        (NodeState::Dead, _) => Some((false, "is back")),
        _ if is_new_life => Some((false, "has restarted")),
        (NodeState::Joining, NodeState::Active) => Some((false, "has all its copies")),
        (NodeState::Joining | NodeState::Active, NodeState::Draining) => Some((false, "leaves")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(state: NodeState, incarnation: u64) -> KnownNode {
        KnownNode { state, incarnation: Incarnation(incarnation), name: "a at a:1".to_owned() }
    }

    #[test]
    fn each_change_of_a_node_is_one_line() {
        use NodeState::{Active, Dead, Draining, Joining};
        let changes = [
            (None, known(Joining, 1), Some("joins")),
            (Some(known(Joining, 1)), known(Active, 1), Some("has all its copies")),
            (Some(known(Active, 1)), known(Active, 1), None),
            (
                Some(known(Active, 1)),
                known(Dead, 1),
                Some("is dead: most voters receive no heartbeat from it"),
            ),
            (Some(known(Dead, 1)), known(Dead, 1), None),
            (Some(known(Dead, 1)), known(Joining, 2), Some("is back")),
            (Some(known(Active, 1)), known(Joining, 2), Some("has restarted")),
            (Some(known(Active, 1)), known(Draining, 1), Some("leaves")),
        ];
        for (was, now, said) in changes {
            let reply = line(false, was.as_ref(), &now).map(|(_, what)| what);
            assert_eq!(reply, said, "{was:?} {now:?}");
        }
        assert_eq!(line(true, None, &known(Active, 1)), None);
        assert!(line(true, None, &known(Dead, 1)).is_some());
    }
}
