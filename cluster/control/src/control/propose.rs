//! Commands on their way to the leader, from any node.
//!
//! Here: finding the leader, and what is known when it does not answer. Not here: what the leader
//! does with a command (`lead`).

use std::sync::Arc;
use std::time::Duration;

use cluster::id::NodeId;
use cluster::map::{Answer, Command, NodeState, Refused};
use tokio::time::{Instant, sleep, timeout};

use super::{Node, beat, lead};
use crate::network::{NoAnswer, Unreachable};
use crate::rpc::{Call, Reply, Told};

/// Longest time for one try; an election is over by then.
const TRY: Duration = Duration::from_secs(2);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// What the map said to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The version of the map that said it.
    pub map_ver: u64,
    /// What.
    pub answer: Result<Answer, Refused>,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoOutcome {
    /// No leader was found. Nothing was done.
    #[error("no control leader in reach: nothing was done")]
    NoLeader,
    /// It may or may not have been done: look at the map.
    #[error("the control leader did not answer: the change may come yet")]
    Unknown,
}

pub(super) async fn propose(
    node: &Arc<Node>,
    command: Command,
    ttl: Duration,
) -> Result<Outcome, NoOutcome> {
    let deadline = Instant::now() + ttl;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NoOutcome::NoLeader);
        }
        match one_try(node, command.clone(), left.min(TRY)).await {
            Told::Answered(map_ver, answer) => {
                let left = deadline.saturating_duration_since(Instant::now());
                catch_up(node, map_ver, left.min(beat::PERIOD * 2)).await;
                return Ok(Outcome { map_ver, answer });
            }
            Told::Unknown => return Err(NoOutcome::Unknown),
            Told::NotLeader(Some((leader, address))) => {
                node.state.lock().leader = Some(leader);
                node.post.learn(leader, cluster::Incarnation(0), &address);
            }
            Told::NotLeader(None) | Told::NotYet => {}
        }
        sleep(PAUSE.min(left)).await;
    }
}

/// Asks whoever leads. `NotLeader` and `NotYet`: nothing was done.
async fn one_try(node: &Arc<Node>, command: Command, ttl: Duration) -> Told {
    let Some(leader) = node.leader() else { return Told::NotLeader(None) };
    if Some(leader) == node.id() {
        return lead::decide(node, command, Some(leader), ttl).await;
    }
    let ttl_ms = u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX);
    match node.post.call_node(leader, Call::Ask { command, ttl_ms }, ttl).await {
        Ok(Reply::Told(told)) => told,
        Ok(_) | Err(NoAnswer::Declined(_) | NoAnswer::Unreachable(Unreachable::Refused)) => {
            // Whoever is there does not lead. The next news will tell who does.
            let mut state = node.state.lock();
            if state.leader == Some(leader) {
                state.leader = None;
            }
            node.beat_now.notify_one();
            Told::NotLeader(None)
        }
        Err(NoAnswer::Unreachable(_)) => Told::Unknown,
    }
}

/// Waits until the map of this node has what was just answered.
async fn catch_up(node: &Arc<Node>, ver: u64, longest: Duration) {
    if node.published.ver() >= ver {
        return;
    }
    node.beat_now.notify_one();
    let mut waiting = node.published.subscribe();
    let _ = timeout(longest, waiting.wait_for(|&now| now >= ver)).await;
}

/// Tells the leader that a node may be gone.
pub(super) async fn suspect(node: &Arc<Node>, suspect: NodeId) {
    let map = node.published.map();
    let known = map.nodes().get(&suspect).filter(|known| known.state != NodeState::Dead);
    let Some(incarnation) = known.map(|known| known.incarnation) else { return };
    match node.leader() {
        Some(leader) if Some(leader) == node.id() => lead::probe(node, suspect, incarnation).await,
        Some(leader) if leader == suspect => lead::succeed(node, suspect, incarnation).await,
        Some(leader) => {
            let call = Call::Suspect { node: suspect, incarnation };
            let told = node.post.call_node(leader, call, beat::PERIOD * 2);
            tokio::join!(told, lead::probe(node, suspect, incarnation)).0.ok();
        }
        None => lead::probe(node, suspect, incarnation).await,
    }
}
