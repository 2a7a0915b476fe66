//! What other nodes are answered.
//!
//! Here: one call in, one reply out. Not here: the bytes (`rpc`), what a leader does with a command
//! (`lead`).

use std::sync::Arc;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use openraft::Snapshot;
use tokio::time::{Instant, timeout};

use super::node::NodeCondition;
use super::{Begin, Node, lead, step_aside};
use crate::liveness::SILENCE;
use crate::network::PIECE_BYTES;
use crate::rpc::{self, Beat, Call, Declined, Greeting, Install, Letter, News, Reply, Sender};

/// Longest snapshot that is taken. All limits there may be have 43 MB.
const SNAPSHOT_BYTES_MAX: usize = 256 << 20;

pub(super) async fn answer(node: &Arc<Node>, bytes: &[u8]) -> bytes::Bytes {
    let reply = match rpc::decode::<Letter>(bytes) {
        Some(letter) => reply(node, letter).await.unwrap_or_else(Reply::Declined),
        None => Reply::Declined(Declined::Malformed),
    };
    rpc::encode(&reply)
}

async fn reply(node: &Arc<Node>, letter: Letter) -> Result<Reply, Declined> {
    let Letter { from, to, call } = letter;
    if node.is_stopped() {
        return Err(Declined::Stopped);
    }
    match call {
        Call::Greet { pledge, founds } => {
            return Ok(Reply::Greeting(greeting(node, &from, pledge, founds)));
        }
        Call::Ping if node.id() == to => return Ok(Reply::Done),
        _ => {}
    }
    let seat = node.seat().ok_or(Declined::NoSeat)?;
    if to.is_some_and(|to| to != seat.node) {
        return Err(Declined::OtherNode);
    }
    if from.seat.is_some_and(|(cluster, _)| cluster != seat.cluster) {
        return Err(Declined::OtherCluster);
    }
    // Without a seat one can only ask for it.
    let sender = from.seat.map(|(_, id)| id);
    if let Call::Ask { command, ttl_ms } = call {
        let ttl = Duration::from_millis(ttl_ms.into());
        return Ok(Reply::Told(lead::decide(node, command, sender, ttl).await));
    }
    let sender = sender.ok_or(Declined::NoSeat)?;
    if runs_elsewhere(node, sender, from.incarnation, &from.address) {
        return Err(Declined::OtherNode);
    }
    node.post.learn(sender, from.incarnation, &from.address);
    match call {
        Call::Beat(beat) => Ok(Reply::News(news(node, sender, &from, beat))),
        Call::Fetch { ver, offset } => piece(node, ver, offset),
        Call::Suspect { node: suspect, incarnation } => {
            lead::probe(node, suspect, incarnation).await;
            Ok(Reply::Done)
        }
        Call::Stand => step_aside::stand(node, sender).await,
        Call::Append(_) | Call::Vote(_) | Call::Install(_) => for_raft(node, call).await,
        Call::Greet { .. } | Call::Ping | Call::Ask { .. } => Err(Declined::OtherNode),
    }
}

/// A node that the map knows was heard in its present life just now, so whoever says to be its next
/// life, at another address, has a copy of its data directory.
pub(super) fn runs_elsewhere(
    node: &Node,
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
    if state.identity.seat.is_some_and(|seat| seat.node == id) {
        // This process may be restarted at another address, and take note of itself.
        return state.identity.incarnation != incarnation;
    }
    let heard = state.lives.get(&id);
    heard.is_some_and(|(life, at)| *life == known.incarnation && at.elapsed() < SILENCE)
}

fn greeting(node: &Arc<Node>, from: &Sender, pledge: Option<u128>, founds: bool) -> Greeting {
    let seat = node.seat();
    if let (Some(seat), Some((cluster, id))) = (seat, from.seat)
        && cluster == seat.cluster
    {
        node.post.learn(id, from.incarnation, &from.address);
    }
    let now = node.now();
    let (index, voters) = node.published.voters();
    let mut state = node.state.lock();
    // A node's seeds may have its own address.
    if founds && from.seat.is_none() && from.birth != state.identity.birth {
        state.seekers.saw(from, pledge, None, now);
    }
    let pledge = if seat.is_none() { state.seekers.pledge() } else { None };
    drop(state);
    let place = |id: NodeId| node.post.address(id).map(|address| (id, address));
    Greeting {
        from: node.post.sender(),
        pledge,
        founds: node.options.begin != Begin::Join,
        voters: (index, voters.into_iter().filter_map(place).collect()),
    }
}

fn news(node: &Arc<Node>, id: NodeId, from: &Sender, beat: Beat) -> News {
    let now = node.now();
    let contact = node.contact_age();
    let leader = node.leader();
    let leader = leader.and_then(|id| node.post.address(id).map(|address| (id, address)));
    {
        let mut state = node.state.lock();
        state.liveness.hear(id, from.incarnation, now);
        if node
            .published
            .map()
            .nodes()
            .get(&id)
            .is_some_and(|it| it.incarnation == from.incarnation)
        {
            state.lives.insert(id, (from.incarnation, Instant::now()));
        }
        let Beat { is_ready, load, disk, .. } = beat;
        state.conditions.insert(id, NodeCondition { is_ready, load, disk });
        if !beat.heard.is_empty() {
            state.liveness.take_word(id, beat.heard, now);
        }
    }
    let (index, voters) = node.published.voters();
    News {
        leader,
        voters: (index, voters.into_iter().collect()),
        contact_ms: contact.and_then(|age| u32::try_from(age.as_millis()).ok()),
        deltas: node.published.since(beat.map_ver),
        map_ver: node.published.ver(),
    }
}

fn piece(node: &Arc<Node>, ver: u64, offset: u64) -> Result<Reply, Declined> {
    let (ver, whole) = node.published.whole(ver);
    let start = usize::try_from(offset).map_err(|_| Declined::OutOfPlace)?;
    if start > whole.len() {
        return Err(Declined::OutOfPlace);
    }
    let bytes = whole.slice(start..whole.len().min(start + PIECE_BYTES));
    Ok(Reply::Piece { ver, total: whole.len() as u64, bytes })
}

/// What is for Raft waits for it no longer than the longest of its calls.
async fn for_raft(node: &Arc<Node>, call: Call) -> Result<Reply, Declined> {
    let raft = node.raft().ok_or(Declined::NoSeat)?;
    let answered = async {
        match call {
            Call::Append(rpc) => raft.append_entries(rpc).await.ok().map(Reply::Append),
            Call::Vote(rpc) => raft.vote(rpc).await.ok().map(Reply::Vote),
            Call::Install(install) => {
                let Install { vote, meta, bytes, .. } = match collect(node, *install) {
                    Ok(Some(whole)) => whole,
                    Ok(None) => return Ok(Reply::Done),
                    Err(why) => return Err(why),
                };
                let snapshot = Snapshot { meta, snapshot: Box::new(bytes) };
                raft.install_full_snapshot(vote, snapshot).await.ok().map(Reply::Installed)
            }
            _ => None,
        }
        .ok_or(Declined::Stopped)
    };
    timeout(Duration::from_secs(10), answered).await.unwrap_or(Err(Declined::Stopped))
}

/// Puts the pieces of a snapshot together; the whole, when the last one came.
fn collect(node: &Arc<Node>, install: Install) -> Result<Option<Install>, Declined> {
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
