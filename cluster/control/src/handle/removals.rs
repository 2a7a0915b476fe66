//! The leader's side of removals that wait until another copy is made.
//!
//! Not here: which of them wait (`cluster::map::removals`), the copy (`cluster::map::controller`).

use cluster::map::{Map, command::MapChange};

use super::ControlNode;
use super::leader::FALLING_SILENT;

/// Takes the removals that have to wait out of the changes that a node proposed, and requests a
/// round of the leader for them. Returns whether no change is left.
pub(super) fn withhold(node: &ControlNode, map: &Map, changes: &mut Vec<MapChange>) -> bool {
    let (me, now, asked) = (node.id(), node.now(), changes.len());
    let mut state = node.state.lock();
    let mut silent = state.liveness.unheard(now, FALLING_SILENT);
    silent.retain(|id| Some(*id) != me);
    state.removals.withhold(map, changes, &silent, now);
    drop(state);
    if changes.len() < asked {
        node.leader_now.notify_one();
    }
    changes.is_empty()
}
