//! The first part of a node's way out: it gives away what it leads while it still serves clients.
//!
//! Not here: giving away its copies and leaving, when no client is served any more (`lifecycle`).
//!
//! The cluster forgets a draining node once it holds nothing and says that it serves nobody: what a
//! client asked of it is then answered, and nothing is forwarded by a node that the others do not know.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cluster::map::{MapCommand, NodeState};
use control::MembershipState;
use tokio::time::{sleep, timeout};

use super::Node;
use crate::runtime::service::Service;

/// For a command of ours.
const COMMAND_TTL: Duration = Duration::from_secs(2);
/// How often the map is looked at.
const POLL: Duration = Duration::from_millis(20);
/// Without contact to most voters for this long nothing can be handed over.
const ALONE: Duration = Duration::from_secs(2);

/// Drains what this node leads; returns when that is nothing, when nobody can take it, or after
/// `longest`.
pub(crate) async fn hand_over(service: &Service, longest: Duration) {
    if let Some(node) = service.node() {
        let _ = timeout(longest, until_nothing_is_led(node)).await;
    }
}

/// No client is served any more: the next beats say so.
pub(crate) fn stop_serving(service: &Service) {
    if let Some(node) = service.node() {
        node.has_stopped.store(true, Ordering::Relaxed);
    }
}

async fn until_nothing_is_led(node: &Node) {
    let Some(control) = node.control() else { return };
    let (id, incarnation) = node.me();
    loop {
        if control.contact().is_none_or(|age| age >= ALONE) {
            return;
        }
        let map = control.map();
        let others = map.members().iter().filter(|member| member.node != id).count();
        match control.membership_state() {
            MembershipState::Member(_) if others == 0 => return,
            MembershipState::Member(NodeState::Draining) => {
                let leads = |primary: &cluster::CopyId| primary.node == id;
                if !map.partitions().iter().any(|entry| entry.primary.as_ref().is_some_and(leads)) {
                    return;
                }
            }
            MembershipState::Member(_) => {
                drop(map);
                let _ = control.propose(MapCommand::Drain(id, incarnation), COMMAND_TTL).await;
            }
            MembershipState::Seeking | MembershipState::Registering | MembershipState::Gone => {
                return;
            }
        }
        sleep(POLL).await;
    }
}
