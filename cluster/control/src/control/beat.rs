//! Beats: a node says to every voter that it is there, and hears what is new.
//!
//! Here: the task that beats, what becomes of the answers, registering the present life. Not here:
//! what a voter answers (`answer`).

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cluster::id::NodeId;
use cluster::map::delta::Item;
use cluster::map::{Answer, Command, Delta, Map, NodeState, Refused};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Node, Place, propose, seek};
use crate::liveness::SILENCE;
use crate::network::{NoAnswer, Unreachable};
use crate::rpc::{self, Call, Reply};
use crate::store::Seat;

/// Between two beats.
pub(crate) const PERIOD: Duration = Duration::from_millis(250);
/// Between two beats of a node that gets or gives partitions: each step waits until it has the map.
const PERIOD_MOVING: Duration = Duration::from_millis(25);
/// A partition of a node's moves on, or has come to rest, within so long.
const MOVING: Duration = Duration::from_millis(500);
/// No two are closer than this, whoever asks for one.
const PERIOD_MIN: Duration = Duration::from_millis(10);
/// An answer that takes longer is of no use.
const TTL: Duration = Duration::from_secs(1);
/// Whoever did not run for so much longer than a period could hear nobody.
const GAP: Duration = Duration::from_millis(500);
/// An answer older than this makes no lease.
const LEASE_MAX: Duration = SILENCE;
/// Without contact for so long a node looks for voters at its seeds.
const LOST: Duration = Duration::from_secs(1);
/// A registration may take so long, and is tried so often.
const REGISTER_TTL: Duration = Duration::from_secs(2);
const REGISTER_PERIOD: Duration = Duration::from_millis(500);

pub(super) async fn run(node: Arc<Node>) {
    if let Err(error) = seek::seek(&node).await {
        tracing::error!(%error, "the node cannot take its place");
        return;
    }
    let mut flights = JoinSet::new();
    let mut last = Instant::now();
    loop {
        let gap = last.elapsed().saturating_sub(PERIOD);
        if gap > GAP {
            tracing::warn!(?gap, "did not run");
            node.state.lock().liveness.slept(gap, node.now());
        }
        last = Instant::now();
        round(&node, &mut flights);
        sleep(PERIOD_MIN).await;
        tokio::select! {
            biased;
            () = node.beat_now.notified() => {}
            () = sleep(period(&node).saturating_sub(PERIOD_MIN)) => {}
        }
        while flights.try_join_next().is_some() {}
    }
}

fn period(node: &Node) -> Duration {
    let moved = node.state.lock().moved_at;
    if moved.is_some_and(|at| at.elapsed() < MOVING) { PERIOD_MOVING } else { PERIOD }
}

fn round(node: &Arc<Node>, flights: &mut JoinSet<()>) {
    let Some(me) = node.id() else { return };
    let map = node.published.map();
    let (index, voters) = node.published.voters();
    let now = node.now();
    let heard = {
        let mut state = node.state.lock();
        let incarnation = state.identity.incarnation;
        state.liveness.see(&map, &voters, me, now);
        state.conditions.retain(|id, _| map.nodes().contains_key(id));
        state.liveness.hear(me, incarnation, now);
        if voters.contains(&me) { state.liveness.word(now) } else { Vec::new() }
    };
    let metrics = node.metrics();
    if let (Some(raft), Some(metrics)) = (node.raft(), &metrics) {
        // Who was replaced while it was away does not know it, and would stand for ever.
        let ours = metrics.membership_config.log_id().map_or(0, |id| id.index + 1);
        raft.runtime_config().elect(voters.contains(&me) || index <= ours);
    }
    let (is_ready, load) = {
        let state = node.state.lock();
        (state.is_ready, state.load)
    };
    for voter in voters.iter().copied().filter(|voter| *voter != me) {
        let beat = rpc::Beat { map_ver: map.ver(), is_ready, load, heard: heard.clone() };
        flights.spawn(beat_one(node.clone(), voter, beat));
    }
    if node.contact_age().is_none_or(|age| age > LOST) {
        let seeds = node.state.lock().seeds.clone();
        for seed in seeds {
            flights.spawn(greet_one(node.clone(), seed));
        }
    }
    check_registration(node, &map, flights);
}

async fn beat_one(node: Arc<Node>, voter: NodeId, beat: rpc::Beat) {
    let sent = Instant::now();
    match node.post.call_node(voter, Call::Beat(beat), TTL).await {
        Ok(Reply::News(news)) => take_news(&node, voter, sent, news).await,
        Err(NoAnswer::Unreachable(Unreachable::Refused)) => propose::suspect(&node, voter).await,
        Ok(_) | Err(_) => {}
    }
}

async fn greet_one(node: Arc<Node>, seed: String) {
    let greeted =
        node.post.call(None, &seed, Call::Greet { pledge: None, founds: false }, TTL).await;
    let Ok(Reply::Greeting(greeting)) = greeted else { return };
    let ours = node.seat().map(|seat| seat.cluster);
    let Some((cluster, id)) = greeting.from.seat else { return };
    if Some(cluster) != ours {
        tracing::warn!(seed, "a seed is in another cluster");
        return;
    }
    node.post.learn(id, greeting.from.incarnation, &greeting.from.address);
    let (index, voters) = greeting.voters;
    for (id, address) in &voters {
        node.post.learn(*id, cluster::Incarnation(0), address);
    }
    node.published.set_voters(index, voters.into_iter().map(|(id, _)| id).collect());
}

async fn take_news(node: &Arc<Node>, voter: NodeId, sent: Instant, news: rpc::News) {
    let (index, voters) = news.voters;
    node.published.set_voters(index, voters.into_iter().collect());
    if let Some((leader, address)) = news.leader {
        node.post.learn(leader, cluster::Incarnation(0), &address);
        node.state.lock().leader = Some(leader);
    }
    match news.deltas {
        Some(deltas) => {
            let me = node.id();
            let mut has_moved = false;
            for delta in deltas.iter().map_while(|bytes| Delta::decode(bytes).ok()) {
                has_moved |= me.is_some_and(|me| is_about(&delta, me));
                node.published.follow(delta);
            }
            if has_moved {
                node.state.lock().moved_at = Some(Instant::now());
                // In time for the beat that is waited for.
                node.beat_now.notify_one();
            }
        }
        None => fetch(node, voter).await,
    }
    if node.published.ver() < news.map_ver {
        // There is more than goes into one answer.
        node.beat_now.notify_one();
        return;
    }
    if matches!(node.place(), Place::Member(_)) {
        let mut state = node.state.lock();
        let answered = state.answered.entry(voter).or_insert(sent);
        *answered = sent.max(*answered);
        state.answered.retain(|_, sent| sent.elapsed() < LEASE_MAX);
    }
    // Only now: contact means to know what the majority has decided.
    let age = news.contact_ms.map(|ms| Duration::from_millis(ms.into()));
    if let Some(contact) = age.and_then(|age| sent.checked_sub(age)) {
        let mut state = node.state.lock();
        state.contact = Some(state.contact.map_or(contact, |before| before.max(contact)));
    }
}

/// Whether a partition of this node's changed.
fn is_about(delta: &Delta, me: NodeId) -> bool {
    delta.items.iter().any(|item| match item {
        Item::Partition(_, entry) => entry.copies().any(|copy| copy.node == me),
        _ => false,
    })
}

/// Gets the whole map, piece by piece, once at a time.
async fn fetch(node: &Arc<Node>, voter: NodeId) {
    if std::mem::replace(&mut node.state.lock().is_fetching, true) {
        return;
    }
    if let Some(map) = fetch_whole(node, voter).await {
        node.published.replace(map);
    }
    node.state.lock().is_fetching = false;
}

async fn fetch_whole(node: &Arc<Node>, voter: NodeId) -> Option<Map> {
    let mut whole = BytesMut::new();
    let mut wanted = 0;
    loop {
        let call = Call::Fetch { ver: wanted, offset: whole.len() as u64 };
        let reply = node.post.call_node(voter, call, TTL).await.ok()?;
        let Reply::Piece { ver, total, bytes } = reply else { return None };
        if !whole.is_empty() && ver != wanted || bytes.is_empty() {
            return None;
        }
        wanted = ver;
        whole.extend_from_slice(&bytes);
        if whole.len() as u64 >= total {
            return Map::decode(&Bytes::from(whole)).ok();
        }
    }
}

/// Sees to it that the map has the present life of this node, as it is.
fn check_registration(node: &Arc<Node>, map: &Map, flights: &mut JoinSet<()>) {
    let mut state = node.state.lock();
    let Some(seat) = state.identity.seat else { return };
    let known = map.nodes().get(&seat.node);
    let is_known = known.is_some_and(|known| {
        known.incarnation == state.identity.incarnation && known.state != NodeState::Dead
    });
    if !is_known {
        state.answered.clear();
    }
    if is_known && !state.was_member {
        state.was_member = true;
        tracing::info!(node = %seat.node, "is in the map");
    }
    let is_gone = known.is_none() && state.was_member;
    let is_same = known.is_some_and(|known| known.description == node.options.description);
    let is_soon = state.registered_at.is_some_and(|at| at.elapsed() < REGISTER_PERIOD);
    if is_known && is_same || is_gone || is_soon || state.is_registering {
        return;
    }
    state.is_registering = true;
    state.registered_at = Some(Instant::now());
    flights.spawn(register(node.clone(), seat));
}

async fn register(node: Arc<Node>, seat: Seat) {
    let incarnation = node.state.lock().identity.incarnation;
    let command = registration(&node);
    match propose::propose(&node, command, REGISTER_TTL).await.map(|outcome| outcome.answer) {
        Ok(Ok(Answer::Registered(id))) if id != seat.node => {
            // The cluster forgot the old one, so this directory is another node now.
            tracing::warn!(old = %seat.node, new = %id, "was forgotten and is another node now");
            let seat = Seat { node: id, is_founder: false, ..seat };
            if let Err(error) = node.sit(seat).await {
                tracing::error!(%error, "the node cannot take its place");
            }
        }
        Ok(Ok(_)) | Err(_) => {}
        Ok(Err(Refused::OtherIncarnation)) => {
            tracing::error!(?incarnation, "a later life of this node is in the cluster already");
        }
        Ok(Err(refused)) => tracing::warn!(%refused, "the cluster does not take the node"),
    }
    node.state.lock().is_registering = false;
    node.progress.send_modify(|count| *count += 1);
}

/// What a node says of itself to be in the map.
pub(super) fn registration(node: &Node) -> Command {
    let identity = node.state.lock().identity;
    Command::Register {
        birth: identity.birth,
        incarnation: identity.incarnation,
        description: node.options.description.clone(),
    }
}
