//! Commands on their way to the leader, from any node.
//!
//! Here: finding the leader, and the result if it does not answer. Not here: the leader's handling
//! of a command (`leader`).

use std::sync::Arc;
use std::time::Duration;

use cluster::id::NodeId;
use cluster::map::{MapAnswer, MapCommand, MapRefusal, NodeState};
use tokio::time::{Instant, sleep, timeout};

use super::{ControlNode, heartbeat, leader};
use crate::raft_network::{CallError, Unreachable};
use crate::rpc::{ProposeReply, RpcReply, RpcRequest};

/// The longest time for an attempt at another node that is not the last one; an election is over by
/// then.
const TRY: Duration = Duration::from_secs(2);
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// The map's answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutcome {
    /// The version of the map that answered.
    pub map_ver: u64,
    /// The answer.
    pub answer: Result<MapAnswer, MapRefusal>,
}

/// The reason for the lack of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ProposeError {
    /// No leader was found. Nothing was done.
    #[error("no control leader in reach: nothing was done")]
    NoLeader,
    /// The change may or may not have been made: check the map.
    #[error("the control leader did not answer: the change may come yet")]
    Unknown,
}

pub(super) async fn propose(
    node: &Arc<ControlNode>,
    command: MapCommand,
    ttl: Duration,
) -> Result<CommandOutcome, ProposeError> {
    let deadline = Instant::now() + ttl;
    // An earlier attempt may have made the change.
    let mut is_unknown = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(if is_unknown { ProposeError::Unknown } else { ProposeError::NoLeader });
        }
        match one_try(node, command.clone(), left).await {
            ProposeReply::Answered(map_ver, answer) => {
                let left = deadline.saturating_duration_since(Instant::now());
                catch_up(node, map_ver, left.min(heartbeat::PERIOD * 2)).await;
                let answer = if is_unknown { of_repetition(&command, answer) } else { answer };
                return Ok(CommandOutcome { map_ver, answer });
            }
            ProposeReply::Unknown if is_repeatable(&command) => is_unknown = true,
            ProposeReply::Unknown => return Err(ProposeError::Unknown),
            ProposeReply::NotLeader(Some((leader, address))) => {
                node.state.lock().leader = Some(leader);
                node.rpc.learn(leader, cluster::Incarnation(0), &address);
            }
            ProposeReply::NotLeader(None) | ProposeReply::NotYet => {}
        }
        sleep(PAUSE.min(left)).await;
    }
}

/// Whether a command that was perhaps done may be done again: it then changes nothing, and its
/// answer is the same but for [`of_repetition`].
///
/// A limit or a record would be refused by its version. A node that came back in the same
/// incarnation would be marked dead, or active, for a second time.
fn is_repeatable(command: &MapCommand) -> bool {
    match command {
        MapCommand::Register { .. }
        | MapCommand::Drain(..)
        | MapCommand::Forget(..)
        | MapCommand::Partitions(_)
        | MapCommand::Set(_) => true,
        MapCommand::Create { .. }
        | MapCommand::Activate(..)
        | MapCommand::Bury(..)
        | MapCommand::PutLimit { .. }
        | MapCommand::Change(_) => false,
    }
}

/// The answer to a command of which an earlier attempt may have been done: a node that is gone has
/// left, or was forgotten, by that attempt.
fn of_repetition(
    command: &MapCommand,
    answer: Result<MapAnswer, MapRefusal>,
) -> Result<MapAnswer, MapRefusal> {
    match (command, answer) {
        (MapCommand::Drain(..) | MapCommand::Forget(..), Err(MapRefusal::UnknownNode)) => {
            Ok(MapAnswer::Done)
        }
        (_, answer) => answer,
    }
}

/// Sends the command to the leader once, and waits for at most `left`. `NotLeader` and `NotYet`
/// mean that nothing was done.
async fn one_try(node: &Arc<ControlNode>, command: MapCommand, left: Duration) -> ProposeReply {
    let Some(leader) = node.leader() else { return ProposeReply::NotLeader(None) };
    if Some(leader) == node.id() {
        return leader::decide(node, command, Some(leader), left).await;
    }
    let ttl = if is_repeatable(&command) { left.min(TRY) } else { left };
    let ttl_ms = u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX);
    match node.rpc.call_node(leader, RpcRequest::Ask { command, ttl_ms }, ttl).await {
        Ok(RpcReply::Propose(reply)) => reply,
        Ok(_) | Err(CallError::Declined(_) | CallError::Unreachable(Unreachable::Refused)) => {
            // The node answers but does not lead. The next heartbeat's answer carries the present
            // leader.
            let mut state = node.state.lock();
            if state.leader == Some(leader) {
                state.leader = None;
            }
            node.heartbeat_now.notify_one();
            ProposeReply::NotLeader(None)
        }
        Err(CallError::Unreachable(Unreachable::NotSent)) => ProposeReply::NotYet,
        Err(CallError::Unreachable(Unreachable::Lost | Unreachable::Late)) => ProposeReply::Unknown,
    }
}

/// Waits until this node's map has version `ver`.
async fn catch_up(node: &Arc<ControlNode>, ver: u64, longest: Duration) {
    if node.published.ver() >= ver {
        return;
    }
    node.heartbeat_now.notify_one();
    let mut waiting = node.published.subscribe();
    let _ = timeout(longest, waiting.wait_for(|&now| now >= ver)).await;
}

/// Reports to the leader that a node may be gone.
pub(super) async fn suspect(node: &Arc<ControlNode>, suspect: NodeId) {
    let map = node.published.map();
    let known = map.nodes().get(&suspect).filter(|known| known.state != NodeState::Dead);
    let Some(incarnation) = known.map(|known| known.incarnation) else { return };
    match node.leader() {
        Some(leader) if Some(leader) == node.id() => {
            leader::probe(node, suspect, incarnation).await;
        }
        Some(leader) if leader == suspect => leader::succeed(node, suspect, incarnation).await,
        Some(leader) => {
            let call = RpcRequest::Suspect { node: suspect, incarnation };
            let answer = node.rpc.call_node(leader, call, heartbeat::PERIOD * 2);
            tokio::join!(answer, leader::probe(node, suspect, incarnation)).0.ok();
        }
        None => leader::probe(node, suspect, incarnation).await,
    }
}
