//! Bootstrap: finding a cluster, or founding one with others.
//!
//! Here: greeting the seeds, the bootstrap votes, joining. Not here: a node that has its membership
//! (`heartbeat`).
//!
//! The founder of a cluster is its first voter, alone; all others join. So one node initialises
//! Raft, once, and only the choice of the founder must be agreed before. Every seeking node gives
//! its bootstrap vote to one node, the lowest node uuid that it sees. A node founds a cluster of
//! `n` only with `n` votes, its own included. A vote moves only if its holder has voted for a third
//! node, or if another process answers at the holder's address. So of fewer than 2n nodes no two
//! can found a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::id::NodeId;
use cluster::map::{MapAnswer, MapCommand};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{ControlNode, StartMode, heartbeat};
use crate::rpc::{ProposeReply, RpcReply, RpcRequest, Sender};
use crate::store::{Membership, StoreError};

/// The time between two rounds of greetings.
const PERIOD: Duration = Duration::from_millis(250);
/// The timeouts of a greeting, and of a registration.
const GREET_TTL: Duration = Duration::from_millis(500);
const JOIN_TTL: Duration = Duration::from_secs(2);
/// Another seeking node counts for this time after it was last seen.
const SEEN: Duration = Duration::from_secs(2);
/// The most seeking nodes that are recorded.
const SEEKERS_MAX: usize = 1024;

/// The other nodes without a cluster.
#[derive(Debug, Default)]
pub(super) struct BootstrapPeers {
    seen: BTreeMap<u128, BootstrapPeer>,
    /// This node's own vote, and since when.
    bootstrap_vote: Option<(u128, Duration)>,
}

#[derive(Debug)]
struct BootstrapPeer {
    address: String,
    at: Duration,
    /// The vote that the node reported, and when this node had asked.
    bootstrap_vote: Option<(u128, Duration)>,
}

impl BootstrapPeers {
    pub(super) fn bootstrap_vote(&self) -> Option<u128> {
        self.bootstrap_vote.map(|(node_uuid, _)| node_uuid)
    }

    /// Records a node without a cluster. Its vote counts only if it was the answer to a request
    /// that this node sent at `asked`.
    pub(super) fn saw(
        &mut self,
        from: &Sender,
        bootstrap_vote: Option<u128>,
        asked: Option<Duration>,
        now: Duration,
    ) {
        // An address belongs to one process: the last one seen there.
        self.seen.retain(|node_uuid, other| {
            *node_uuid == from.node_uuid || other.address != from.address
        });
        if self.seen.len() >= SEEKERS_MAX && !self.seen.contains_key(&from.node_uuid) {
            return;
        }
        let seeker = self.seen.entry(from.node_uuid).or_insert_with(|| BootstrapPeer {
            address: from.address.clone(),
            at: now,
            bootstrap_vote: None,
        });
        seeker.at = now;
        seeker.address.clone_from(&from.address);
        if let Some(asked) = asked {
            seeker.bootstrap_vote = bootstrap_vote.map(|node_uuid| (node_uuid, asked));
        } else if bootstrap_vote != seeker.bootstrap_vote.map(|(node_uuid, _)| node_uuid) {
            seeker.bootstrap_vote = None;
        }
    }

    /// Updates this node's vote after a round of greetings. Returns whether node `me` must found a
    /// cluster of `wanted` nodes.
    fn decide(&mut self, me: u128, wanted: usize, now: Duration) -> bool {
        let fresh = |seeker: &BootstrapPeer| now.saturating_sub(seeker.at) <= SEEN;
        let lowest = self
            .seen
            .iter()
            .filter(|(_, seeker)| fresh(seeker))
            .map(|(node_uuid, _)| *node_uuid)
            .chain([me])
            .min()
            .unwrap_or(me);
        let visible = 1 + self.seen.values().filter(|seeker| fresh(seeker)).count();
        let may_move = match self.bootstrap_vote {
            None => visible >= wanted,
            Some((to, _)) if to == me => lowest != me,
            Some((to, _)) => match self.seen.get(&to) {
                // The holder left its address: `saw` found another process there.
                None => true,
                Some(seeker) => seeker.bootstrap_vote.is_some_and(|(third, _)| third != to),
            },
        };
        if may_move && self.bootstrap_vote() != Some(lowest) {
            self.bootstrap_vote = Some((lowest, now));
        }
        let Some((to, since)) = self.bootstrap_vote else { return false };
        let given = |seeker: &&BootstrapPeer| {
            fresh(seeker)
                && seeker.bootstrap_vote.is_some_and(|(to, asked)| to == me && asked >= since)
        };
        to == me && self.seen.values().filter(given).count() + 1 >= wanted
    }
}

/// Returns once the node has a membership.
pub(super) async fn seek(node: &Arc<ControlNode>) -> Result<(), StoreError> {
    loop {
        if node.membership().is_some() {
            return Ok(());
        }
        let wanted = match node.options.begin {
            StartMode::Found => return found(node).await,
            StartMode::Expect(wanted) => Some(wanted),
            StartMode::Join => None,
        };
        if let Some(membership) = greet_all(node).await {
            return node.set_membership(membership).await;
        }
        let now = node.now();
        let is_founder = {
            let mut state = node.state.lock();
            let node_uuid = state.identity.node_uuid;
            wanted.is_some_and(|wanted| state.seekers.decide(node_uuid, wanted, now))
        };
        if is_founder {
            return found(node).await;
        }
        sleep(PERIOD).await;
    }
}

/// Checks that the node of this directory does not already run at the address of its last
/// incarnation: a copy of the directory would vote under the same id.
///
/// # Errors
///
/// [`StoreError::Copied`], and errors of the disk.
pub(super) async fn is_the_only_one(node: &Arc<ControlNode>) -> Result<(), StoreError> {
    let here = node.options.description.peer_address.clone();
    if node.membership().is_some()
        && let Some(before) = node.store.last_address()?
        && before != here
    {
        let call = RpcRequest::Greet { bootstrap_vote: None, founds: false };
        let reply = node.rpc.call(None, &before, call, GREET_TTL).await;
        let node_uuid = node.state.lock().identity.node_uuid;
        if let Ok(RpcReply::Greeting(greeting)) = reply
            && greeting.from.node_uuid == node_uuid
            && greeting.from.address == before
        {
            return Err(StoreError::Copied { address: before });
        }
    }
    node.store.moves_to(&here).await
}

/// Founds a cluster. Its first node gets the first id of the map.
async fn found(node: &Arc<ControlNode>) -> Result<(), StoreError> {
    let cluster = node.state.lock().rng.wide();
    // Only the front of the id is logged, because key hashes are seeded with the id.
    let cluster_front = format!("{:08x}", (cluster >> 96) as u32);
    tracing::info!(target: "tollgate::life", cluster = cluster_front, "this node founds a cluster");
    node.set_membership(Membership { cluster, node: NodeId(1), is_founder: true }).await
}

/// Greets all seeds. Returns a membership if one of them belongs to a cluster that admits this
/// node.
async fn greet_all(node: &Arc<ControlNode>) -> Option<Membership> {
    let seeds = node.state.lock().seeds.clone();
    let mut greetings = JoinSet::new();
    for seed in seeds {
        let node = node.clone();
        greetings.spawn(async move {
            let asked = node.now();
            let bootstrap_vote = node.state.lock().seekers.bootstrap_vote();
            let founds = node.options.begin != StartMode::Join;
            let call = RpcRequest::Greet { bootstrap_vote, founds };
            let reply = node.rpc.call(None, &seed, call, GREET_TTL).await;
            (seed, asked, reply)
        });
    }
    let mut clusters = Vec::new();
    while let Some(Ok((seed, asked, reply))) = greetings.join_next().await {
        let Ok(RpcReply::Greeting(greeting)) = reply else { continue };
        let me = node.state.lock().identity.node_uuid;
        if greeting.from.node_uuid == me {
            continue;
        }
        if let Some((cluster, _)) = greeting.from.membership {
            clusters.push((seed, cluster));
        } else if greeting.founds {
            let now = node.now();
            node.state.lock().seekers.saw(
                &greeting.from,
                greeting.bootstrap_vote,
                Some(asked),
                now,
            );
        }
    }
    for (seed, cluster) in clusters {
        if let Some(id) = join(node, seed).await {
            return Some(Membership { cluster, node: id, is_founder: false });
        }
    }
    None
}

/// Registers this node at an address, following redirects to the leader.
async fn join(node: &Arc<ControlNode>, seed: String) -> Option<NodeId> {
    let mut address = seed;
    for _ in 0..3 {
        let command: MapCommand = heartbeat::registration(node);
        let ttl_ms = u32::try_from(JOIN_TTL.as_millis()).unwrap_or(u32::MAX);
        let call = RpcRequest::Ask { command, ttl_ms };
        let reply = node.rpc.call(None, &address, call, JOIN_TTL).await.ok()?;
        match reply {
            RpcReply::Propose(ProposeReply::Answered(_, Ok(MapAnswer::Registered(id)))) => {
                return Some(id);
            }
            RpcReply::Propose(ProposeReply::Answered(_, Err(refused))) => {
                tracing::warn!(%refused, "the cluster of a seed refuses to register this node");
                return None;
            }
            RpcReply::Propose(ProposeReply::NotLeader(Some((_, leader)))) => address = leader,
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests;
