//! The first part of a node's way out: the node hands over the partitions that it leads while it
//! still serves clients.
//!
//! Not here: giving away its copies and leaving, once clients are no longer served (`lifecycle`).
//!
//! The cluster forgets a draining node once it holds nothing and reports that it serves no client.
//! All of its clients' requests are then answered, and no node forwards operations without being in
//! the map.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cluster::map::{MapCommand, NodeState};
use control::MembershipState;
use tokio::time::{sleep, timeout};

use super::Node;

/// The time to live of this node's commands.
const COMMAND_TTL: Duration = Duration::from_secs(2);
/// Time between two looks at the map.
const POLL: Duration = Duration::from_millis(20);
/// Without contact to most voters for this long, no hand-over is possible.
const ALONE: Duration = Duration::from_secs(2);

/// Hands over the partitions that this node leads. Returns when it leads none, when no node can
/// take them, or after `longest`.
pub(crate) async fn hand_over(node: &Node, longest: Duration) {
    let _ = timeout(longest, until_nothing_is_led(node)).await;
}

/// Records that clients are no longer served; the next heartbeats report it.
pub(crate) fn stop_serving(node: &Node) {
    node.has_stopped.store(true, Ordering::Relaxed);
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
