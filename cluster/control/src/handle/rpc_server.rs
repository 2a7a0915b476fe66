//! Answers to the calls of other nodes.
//!
//! Here: one request in, one reply out. Not here: the encoding (`rpc`), the handling of commands by
//! the leader (`leader`).

use std::sync::Arc;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use openraft::Snapshot;
use tokio::time::{Instant, timeout};

use super::state::NodeCondition;
use super::{ControlNode, StartMode, leader, step_down};
use crate::failure_detector::SILENCE;
use crate::raft_network::CHUNK_BYTES;
use crate::rpc::{
    self, Declined, Envelope, GreetReply, Heartbeat, HeartbeatReply, Install, RpcReply, RpcRequest,
    Sender,
};

/// The longest snapshot that is accepted. The bodies of all limits take up to 64 MiB of it.
const SNAPSHOT_BYTES_MAX: usize = 256 << 20;

pub(super) async fn answer(node: &Arc<ControlNode>, bytes: &[u8]) -> bytes::Bytes {
    let reply = match rpc::decode::<Envelope>(bytes) {
        Some(envelope) => reply(node, envelope).await.unwrap_or_else(RpcReply::Declined),
        None => RpcReply::Declined(Declined::Malformed),
    };
    rpc::encode(&reply)
}

async fn reply(node: &Arc<ControlNode>, envelope: Envelope) -> Result<RpcReply, Declined> {
    let Envelope { from, to, call } = envelope;
    if node.is_stopped() {
        return Err(Declined::Stopped);
    }
    match call {
        RpcRequest::Greet { bootstrap_vote, founds } => {
            return Ok(RpcReply::Greeting(greeting(node, &from, bootstrap_vote, founds)));
        }
        RpcRequest::Ping if node.id() == to => return Ok(RpcReply::Done),
        _ => {}
    }
    let membership = node.membership().ok_or(Declined::NotMember)?;
    if to.is_some_and(|to| to != membership.node) {
        return Err(Declined::OtherNode);
    }
    if from.membership.is_some_and(|(cluster, _)| cluster != membership.cluster) {
        return Err(Declined::OtherCluster);
    }
    // A node without a membership may only ask for one.
    let sender = from.membership.map(|(_, id)| id);
    if let RpcRequest::Ask { command, ttl_ms } = call {
        let ttl = Duration::from_millis(ttl_ms.into());
        return Ok(RpcReply::Propose(leader::decide(node, command, sender, ttl).await));
    }
    let sender = sender.ok_or(Declined::NotMember)?;
    if runs_elsewhere(node, sender, from.incarnation, &from.address) {
        return Err(Declined::OtherNode);
    }
    node.rpc.learn(sender, from.incarnation, &from.address);
    match call {
        RpcRequest::Heartbeat(heartbeat) => {
            if sets_pace(node, membership.node, sender) {
                node.options.grid.follow(membership.node);
            }
            Ok(RpcReply::News(news(node, sender, &from, heartbeat)))
        }
        RpcRequest::Fetch { ver, offset } => map_chunk(node, ver, offset),
        RpcRequest::Suspect { node: suspect, incarnation } => {
            leader::probe(node, suspect, incarnation).await;
            Ok(RpcReply::Done)
        }
        RpcRequest::Stand => step_down::stand(node, sender).await,
        RpcRequest::Append(_) | RpcRequest::Vote(_) | RpcRequest::Install(_) => {
            for_raft(node, call).await
        }
        RpcRequest::Greet { .. } | RpcRequest::Ping | RpcRequest::Ask { .. } => {
            Err(Declined::OtherNode)
        }
    }
}

/// Whether the sender runs from a copy of the node's data directory: it reports a later incarnation
/// of a node, at another address, just after a heartbeat of the present incarnation.
pub(super) fn runs_elsewhere(
    node: &ControlNode,
    id: NodeId,
    incarnation: Incarnation,
    address: &str,
) -> bool {
    let map = node.published.map();
    let Some(known) = map.nodes().get(&id) else { return false };
    if incarnation <= known.incarnation || known.description.peer_address == address {
        return false;
    }
    let state = node.state.lock();
    if state.identity.membership.is_some_and(|membership| membership.node == id) {
        // This process may have been restarted at another address, and receive its own
        // registration.
        return state.identity.incarnation != incarnation;
    }
    let heard = state.incarnations.get(&id);
    heard.is_some_and(|(incarnation, at)| {
        *incarnation == known.incarnation && at.elapsed() < SILENCE
    })
}

/// Whether this node's periodic work goes with the heartbeats of `sender`: the leader, or, at the
/// only voter, the first other node.
fn sets_pace(node: &ControlNode, me: NodeId, sender: NodeId) -> bool {
    if node.published.voters().1 != [me].into() {
        return node.leader() == Some(sender);
    }
    let map = node.published.map();
    map.nodes().keys().find(|id| **id != me) == Some(&sender)
}

fn greeting(
    node: &Arc<ControlNode>,
    from: &Sender,
    bootstrap_vote: Option<u128>,
    founds: bool,
) -> GreetReply {
    let membership = node.membership();
    if let (Some(membership), Some((cluster, id))) = (membership, from.membership)
        && cluster == membership.cluster
    {
        node.rpc.learn(id, from.incarnation, &from.address);
    }
    let now = node.now();
    let (index, voters) = node.published.voters();
    let mut state = node.state.lock();
    // A node's seeds may include its own address.
    if founds && from.membership.is_none() && from.node_uuid != state.identity.node_uuid {
        state.seekers.saw(from, bootstrap_vote, None, now);
    }
    let bootstrap_vote = if membership.is_none() { state.seekers.bootstrap_vote() } else { None };
    drop(state);
    let place = |id: NodeId| node.rpc.address(id).map(|address| (id, address));
    GreetReply {
        from: node.rpc.sender(),
        bootstrap_vote,
        founds: node.options.begin != StartMode::Join,
        voters: (index, voters.into_iter().filter_map(place).collect()),
    }
}

fn news(
    node: &Arc<ControlNode>,
    id: NodeId,
    from: &Sender,
    heartbeat: Heartbeat,
) -> HeartbeatReply {
    let now = node.now();
    let contact = node.contact_age();
    let leader = node.leader();
    let leader = leader.and_then(|id| node.rpc.address(id).map(|address| (id, address)));
    {
        let mut state = node.state.lock();
        state.liveness.record(id, from.incarnation, now);
        if node
            .published
            .map()
            .nodes()
            .get(&id)
            .is_some_and(|it| it.incarnation == from.incarnation)
        {
            state.incarnations.insert(id, (from.incarnation, Instant::now()));
        }
        let Heartbeat { is_ready, load, disk, .. } = heartbeat;
        state.conditions.insert(id, NodeCondition { is_ready, load, disk });
        if !heartbeat.heard.is_empty() {
            state.liveness.take_report(id, heartbeat.heard, now);
        }
    }
    let (index, voters) = node.published.voters();
    HeartbeatReply {
        leader,
        voters: (index, voters.into_iter().collect()),
        contact_ms: contact.and_then(|age| u32::try_from(age.as_millis()).ok()),
        deltas: node.published.since(heartbeat.map_ver),
        map_ver: node.published.ver(),
    }
}

fn map_chunk(node: &Arc<ControlNode>, ver: u64, offset: u64) -> Result<RpcReply, Declined> {
    let (ver, whole) = node.published.whole(ver);
    let start = usize::try_from(offset).map_err(|_| Declined::OutOfPlace)?;
    if start > whole.len() {
        return Err(Declined::OutOfPlace);
    }
    let bytes = whole.slice(start..whole.len().min(start + CHUNK_BYTES));
    Ok(RpcReply::Chunk { ver, total: whole.len() as u64, bytes })
}

/// Hands a call to Raft, and waits at most as long as the longest of its calls.
async fn for_raft(node: &Arc<ControlNode>, call: RpcRequest) -> Result<RpcReply, Declined> {
    let raft = node.raft().ok_or(Declined::NotMember)?;
    let answered = async {
        match call {
            RpcRequest::Append(rpc) => raft.append_entries(rpc).await.ok().map(RpcReply::Append),
            RpcRequest::Vote(rpc) => raft.vote(rpc).await.ok().map(RpcReply::Vote),
            RpcRequest::Install(install) => {
                let Install { vote, meta, bytes, .. } = match collect(node, *install) {
                    Ok(Some(whole)) => whole,
                    Ok(None) => return Ok(RpcReply::Done),
                    Err(why) => return Err(why),
                };
                let snapshot = Snapshot { meta, snapshot: Box::new(bytes) };
                raft.install_full_snapshot(vote, snapshot).await.ok().map(RpcReply::Installed)
            }
            _ => None,
        }
        .ok_or(Declined::Stopped)
    };
    timeout(Duration::from_secs(10), answered).await.unwrap_or(Err(Declined::Stopped))
}

/// Collects the chunks of a snapshot. Returns the whole snapshot with the last chunk.
fn collect(node: &Arc<ControlNode>, install: Install) -> Result<Option<Install>, Declined> {
    let mut state = node.state.lock();
    let id = install.meta.snapshot_id.clone();
    if install.offset == 0 {
        state.incoming = Some((id.clone(), Vec::new()));
    }
    let incoming = state.incoming.as_mut().filter(|(other, bytes)| {
        *other == id
            && bytes.len() as u64 == install.offset
            && bytes.len() + install.bytes.len() <= SNAPSHOT_BYTES_MAX
    });
    let (_, whole) = incoming.ok_or(Declined::OutOfPlace)?;
    whole.extend_from_slice(&install.bytes);
    if !install.is_last {
        return Ok(None);
    }
    let whole = state.incoming.take().map(|(_, whole)| whole).unwrap_or_default();
    Ok(Some(Install { bytes: whole.into(), ..install }))
}
