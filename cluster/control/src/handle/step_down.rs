//! Leadership transfer: a leader hands over to another voter before it leaves, so that the cluster
//! need not wait for an election.
//!
//! Here: both sides of the transfer. Not here: the choice of voters (`cluster::map::controller`),
//! elections after a leader's death (`leader::succeed`).
//!
//! openraft 0.9 cannot transfer the leadership, and no voter grants a vote while it believes in a
//! leader. So the leader sends no heartbeats until the others no longer believe in it, then asks
//! one of them to stand for election. It does so before partitions move: they are served meanwhile,
//! and no change of the map waits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::id::NodeId;
use cluster::map::{Map, NodeState};
use openraft::RaftMetrics;
use tokio::time::{Instant, sleep};

use super::state::LEASE_MAX;
use super::{ControlNode, Raft};
use crate::raft_types::node_id;
use crate::rpc::{Declined, DiskState, RpcReply, RpcRequest};

/// A voter that was asked to stand must lead within this time, else the next one is asked.
const STAND_TTL: Duration = Duration::from_millis(300);
/// The number of voters that are asked to stand, one after the other.
const CANDIDATES_MAX: usize = 3;
/// The time between two checks for a new leader.
const POLL: Duration = Duration::from_millis(10);

/// Transfers the leadership to another voter. Returns true if this node no longer leads, false if
/// no other voter could take over.
pub(super) async fn step_down(node: &Arc<ControlNode>) -> bool {
    let Some(raft) = node.raft().filter(|_| node.is_leader()) else { return true };
    let Some(metrics) = node.metrics() else { return false };
    let candidates = candidates(node, &metrics);
    if candidates.is_empty() || std::mem::replace(&mut node.state.lock().steps_down, true) {
        return false;
    }
    raft.runtime_config().heartbeat(false);
    let transfer = Transfer { node, raft: &raft };
    sleep(LEASE_MAX).await;
    for transfer_target in candidates {
        if !node.is_leader() {
            break;
        }
        tracing::info!(%transfer_target, "transferring the leadership to another voter");
        let asked = Instant::now();
        let _ = node.rpc.call_node(transfer_target, RpcRequest::Stand, STAND_TTL).await;
        while node.is_leader() && asked.elapsed() < STAND_TTL {
            sleep(POLL).await;
        }
    }
    drop(transfer);
    !node.is_leader()
}

/// A transfer under way. Its end also ends the silence of the leader, even if the caller no longer
/// waits for the transfer.
struct Transfer<'a> {
    node: &'a ControlNode,
    raft: &'a Raft,
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.raft.runtime_config().heartbeat(true);
        self.node.state.lock().steps_down = false;
        // The task of the leader goes on if no other node took over.
        self.node.leader_now.notify_one();
    }
}

/// The voters that can lead at once: active and joining nodes, those with the longest log first.
fn candidates(node: &ControlNode, metrics: &RaftMetrics<u64, openraft::BasicNode>) -> Vec<NodeId> {
    let map = node.published.map();
    let has = |id: &NodeId| {
        let matching = metrics.replication.as_ref()?.get(&u64::from(id.0))?.as_ref()?;
        Some(matching.index)
    };
    let me = node.id();
    let voters = metrics.membership_config.membership().voter_ids().map(node_id);
    let mut candidates: Vec<NodeId> =
        voters.filter(|id| Some(*id) != me && stays(&map, *id) && has(id).is_some()).collect();
    // Voters with a slow, full or failed disk come last.
    let state = node.state.lock();
    let disk = |id: &NodeId| state.conditions.get(id).map(|other| other.disk).unwrap_or_default();
    candidates.sort_by_key(|id| (disk(id) != DiskState::Fine, std::cmp::Reverse(has(id))));
    candidates.truncate(CANDIDATES_MAX);
    candidates
}

fn stays(map: &Map, id: NodeId) -> bool {
    let node = map.nodes().get(&id);
    node.is_some_and(|node| matches!(node.state, NodeState::Active | NodeState::Joining))
}

/// Stands for election at the leader's request, if this node votes by its newest membership,
/// committed or not.
pub(super) async fn stand(node: &Arc<ControlNode>, sender: NodeId) -> Result<RpcReply, Declined> {
    let (Some(me), Some(metrics)) = (node.id(), node.metrics()) else {
        return Err(Declined::NotMember);
    };
    let is_voter = metrics.membership_config.membership().voter_ids().any(|id| node_id(id) == me);
    let raft = node.raft().filter(|_| is_voter && node.leader() == Some(sender));
    let raft = raft.ok_or(Declined::OutOfPlace)?;
    raft.trigger().elect().await.map_err(|_| Declined::Stopped)?;
    Ok(RpcReply::Done)
}

/// Asks one of the voters to stand at once, for a leader that is no longer a voter.
pub(super) async fn stand_instead(node: &Arc<ControlNode>, voters: &BTreeSet<NodeId>) {
    for voter in voters.iter().take(CANDIDATES_MAX) {
        if node.rpc.call_node(*voter, RpcRequest::Stand, STAND_TTL).await.is_ok() {
            return;
        }
    }
}
