//! Heartbeats: a node sends every voter a sign of life, and receives map changes in the answers.
//!
//! Here: the task that sends heartbeats, the handling of the answers, the registration of the
//! present incarnation. Not here: the voter's answer (`rpc_server`).

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cluster::id::NodeId;
use cluster::map::delta::DeltaItem;
use cluster::map::{Delta, Map, MapAnswer, MapCommand, MapRefusal, NodeState};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{ControlNode, MembershipState, bootstrap, disk, proposals};
use crate::failure_detector::SILENCE;
use crate::raft_network::{CallError, Unreachable};
use crate::rpc::{self, RpcReply, RpcRequest};
use crate::store::Membership;
use crate::wake_grid::GRID_STEP;

/// The period of heartbeats.
pub(crate) const PERIOD: Duration = GRID_STEP;
/// The same for a node that receives or gives away partitions: each step of a move waits until the
/// node has the map.
const PERIOD_MOVING: Duration = Duration::from_millis(25);
/// A move counts as under way for this time after a change of one of the node's partitions.
const MOVING: Duration = Duration::from_millis(500);
/// The least time between two heartbeats, even on request.
const PERIOD_MIN: Duration = Duration::from_millis(10);
/// A later answer is of no use.
const TTL: Duration = Duration::from_secs(1);
/// If the process did not run for this much longer than a period, it could not receive messages.
const GAP: Duration = Duration::from_millis(500);
/// Older answers do not count for a lease.
const LEASE_MAX: Duration = SILENCE;
/// After this time without contact a node asks its seeds for the voters.
const LOST: Duration = Duration::from_secs(1);
/// A process that is refused as a duplicate of a running node ends after this time. Until then the
/// other process may be its own previous incarnation, seen a moment ago at another address.
const DOUBLED_MAX: Duration = Duration::from_secs(4);
/// The longest wait of a node that returns for the answers of its seeds.
const GREET_TIME: Duration = Duration::from_millis(50);
/// The time between two attempts to store a membership on a disk that fails.
const SEEK_AGAIN: Duration = Duration::from_secs(5);
/// The timeout of a registration, and the time between two of them.
const REGISTER_TTL: Duration = Duration::from_secs(2);
const REGISTER_PERIOD: Duration = Duration::from_millis(500);

pub(super) async fn run(node: Arc<ControlNode>) {
    let had_membership = node.membership().is_some();
    while let Err(error) = bootstrap::seek(&node).await {
        tracing::error!(
            %error,
            "this node cannot store its membership, and tries again every 5 s. Free space or \
             repair the disk of the data directory"
        );
        sleep(SEEK_AGAIN).await;
    }
    let mut flights = JoinSet::new();
    if had_membership {
        // Seeds of another cluster than the data directory's are a mistake. A node that reaches its
        // own cluster would not notice it otherwise.
        let (seeds, identity) = {
            let state = node.state.lock();
            (state.seeds.clone(), state.identity)
        };
        for seed in seeds {
            flights.spawn(greet_node(node.clone(), seed));
        }
        let greeted = async { while flights.join_next().await.is_some() {} };
        let _ = timeout(GREET_TIME, greeted).await;
        node.rpc.identify(identity);
    }
    let mut last = Instant::now();
    loop {
        let gap = last.elapsed().saturating_sub(PERIOD);
        if gap > GAP {
            tracing::warn!(
                ?gap,
                "this process did not run: check for overload or a paused machine"
            );
            node.state.lock().liveness.slept(gap, node.now());
        }
        last = Instant::now();
        round(&node, &mut flights);
        rest(&node.heartbeat_now, PERIOD_MIN, until_next(&node)).await;
        while flights.try_join_next().is_some() {}
    }
}

/// Waits for `end`, or until `asked` is notified, but then at least for `least`.
pub(super) async fn rest(asked: &Notify, least: Duration, end: impl Future<Output = ()>) {
    let begun = Instant::now();
    tokio::select! {
        biased;
        () = asked.notified() => sleep(least.saturating_sub(begun.elapsed())).await,
        () = end => {}
    }
}

/// Waits for the next heartbeat.
async fn until_next(node: &ControlNode) {
    let moved = node.state.lock().moved_at;
    if moved.is_some_and(|at| at.elapsed() < MOVING) {
        sleep(PERIOD_MOVING).await;
    } else {
        node.options.grid.wait_least(PERIOD, PERIOD_MIN).await;
    }
}

fn round(node: &Arc<ControlNode>, flights: &mut JoinSet<()>) {
    let Some(me) = node.id() else { return };
    node.published.release_whole();
    let map = node.published.map();
    let (index, voters) = node.published.voters();
    let now = node.now();
    let heard = {
        let mut state = node.state.lock();
        let incarnation = state.identity.incarnation;
        state.liveness.see(&map, &voters, me, now);
        state.conditions.retain(|id, _| map.nodes().contains_key(id));
        state.liveness.record(me, incarnation, now);
        if voters.contains(&me) { state.liveness.report(now) } else { Vec::new() }
    };
    let ours = node.with_metrics(|metrics| *metrics.membership_config.log_id());
    if let (Some(raft), Some(ours)) = (node.raft(), ours) {
        // A voter that was replaced while it was away has not received that change, and would stand
        // for election for ever.
        let ours = ours.map_or(0, |id| id.index + 1);
        let may_vote = voters.contains(&me) || index <= ours;
        raft.runtime_config().elect(may_vote && !disk::is_outdone(node));
    }
    let (is_ready, load) = {
        let state = node.state.lock();
        (state.is_ready, state.load)
    };
    let disk = disk::state(node);
    for voter in voters.iter().copied().filter(|voter| *voter != me) {
        let heartbeat =
            rpc::Heartbeat { map_ver: map.ver(), is_ready, load, disk, heard: heard.clone() };
        flights.spawn(send_heartbeat(node.clone(), voter, heartbeat));
    }
    if node.contact_age().is_none_or(|age| age > LOST) {
        let seeds = node.state.lock().seeds.clone();
        for seed in seeds {
            flights.spawn(greet_node(node.clone(), seed));
        }
    }
    check_registration(node, &map, flights);
}

async fn send_heartbeat(node: Arc<ControlNode>, voter: NodeId, heartbeat: rpc::Heartbeat) {
    let sent = Instant::now();
    match node.rpc.call_node(voter, RpcRequest::Heartbeat(heartbeat), TTL).await {
        Ok(RpcReply::News(news)) => take_reply(&node, voter, sent, news).await,
        Err(CallError::Unreachable(Unreachable::Refused)) => proposals::suspect(&node, voter).await,
        Ok(_) | Err(_) => {}
    }
}

async fn greet_node(node: Arc<ControlNode>, seed: String) {
    let greeted = node
        .rpc
        .call(None, &seed, RpcRequest::Greet { bootstrap_vote: None, founds: false }, TTL)
        .await;
    let Ok(RpcReply::Greeting(greeting)) = greeted else { return };
    let ours = node.membership().map(|membership| membership.cluster);
    let Some((cluster, id)) = greeting.from.membership else { return };
    if Some(cluster) != ours {
        if node.state.lock().strange_seeds.insert(seed.clone()) {
            let front = |cluster: u128| format!("{:08x}", (cluster >> 96) as u32);
            tracing::warn!(
                "seed {seed} is ignored: it belongs to cluster {}, the data directory of this node \
                 to cluster {}. To join the other cluster, start with an empty data directory",
                front(cluster),
                front(ours.unwrap_or_default())
            );
        }
        return;
    }
    node.rpc.learn(id, greeting.from.incarnation, &greeting.from.address);
    let (index, voters) = greeting.voters;
    for (id, address) in &voters {
        node.rpc.learn(*id, cluster::Incarnation(0), address);
    }
    let had_voters = !node.published.voters().1.is_empty();
    node.published.set_voters(index, voters.into_iter().map(|(id, _)| id).collect());
    if !had_voters {
        // A node that has just joined: its first heartbeat brings the map.
        node.heartbeat_now.notify_one();
    }
}

async fn take_reply(
    node: &Arc<ControlNode>,
    voter: NodeId,
    sent: Instant,
    news: rpc::HeartbeatReply,
) {
    let (index, voters) = news.voters;
    node.published.set_voters(index, voters.into_iter().collect());
    if let Some((leader, address)) = news.leader {
        node.rpc.learn(leader, cluster::Incarnation(0), &address);
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
                // Ends the present pause, which was chosen before the move.
                node.heartbeat_now.notify_one();
            }
        }
        None => fetch(node, voter).await,
    }
    if node.published.ver() < news.map_ver {
        // The rest of the deltas did not fit into one answer.
        node.heartbeat_now.notify_one();
        return;
    }
    if matches!(node.membership_state(), MembershipState::Member(_)) {
        let mut state = node.state.lock();
        let answered = state.answered.entry(voter).or_insert(sent);
        *answered = sent.max(*answered);
        state.answered.retain(|_, sent| sent.elapsed() < LEASE_MAX);
    }
    // Set the contact only after the deltas: contact means that this node has the decisions of the
    // majority.
    let age = news.contact_ms.map(|ms| Duration::from_millis(ms.into()));
    if let Some(contact) = age.and_then(|age| sent.checked_sub(age)) {
        let mut state = node.state.lock();
        state.contact = Some(state.contact.map_or(contact, |before| before.max(contact)));
    }
}

/// Whether a partition with a copy on node `me` changed.
fn is_about(delta: &Delta, me: NodeId) -> bool {
    delta.items.iter().any(|item| match item {
        DeltaItem::Partition(_, entry) => entry.copies().any(|copy| copy.node == me),
        _ => false,
    })
}

/// Fetches the whole map in chunks. At most one fetch runs at a time.
async fn fetch(node: &Arc<ControlNode>, voter: NodeId) {
    if std::mem::replace(&mut node.state.lock().is_fetching, true) {
        return;
    }
    if let Some(map) = fetch_whole(node, voter).await {
        node.published.replace(map);
    }
    node.state.lock().is_fetching = false;
}

async fn fetch_whole(node: &Arc<ControlNode>, voter: NodeId) -> Option<Map> {
    let mut whole = BytesMut::new();
    let mut wanted = 0;
    loop {
        let call = RpcRequest::Fetch { ver: wanted, offset: whole.len() as u64 };
        let reply = node.rpc.call_node(voter, call, TTL).await.ok()?;
        let RpcReply::Chunk { ver, total, bytes } = reply else { return None };
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

/// Registers the present incarnation and description of this node if the map lacks them.
fn check_registration(node: &Arc<ControlNode>, map: &Map, flights: &mut JoinSet<()>) {
    let mut state = node.state.lock();
    let Some(membership) = state.identity.membership else { return };
    let known = map.nodes().get(&membership.node);
    let is_known = known.is_some_and(|known| {
        known.incarnation == state.identity.incarnation && known.state != NodeState::Dead
    });
    if !is_known {
        state.answered.clear();
    }
    if is_known && !state.was_member {
        state.was_member = true;
        tracing::info!(node = %membership.node, "this node is registered in the map");
    }
    let is_gone = known.is_none() && state.was_member;
    let is_same = known.is_some_and(|known| known.description == node.options.description);
    let is_soon = state.registered_at.is_some_and(|at| at.elapsed() < REGISTER_PERIOD);
    if is_known && is_same || is_gone || is_soon || state.is_registering {
        return;
    }
    state.is_registering = true;
    state.registered_at = Some(Instant::now());
    flights.spawn(register(node.clone(), membership));
}

async fn register(node: Arc<ControlNode>, membership: Membership) {
    let command = registration(&node);
    match proposals::propose(&node, command, REGISTER_TTL).await.map(|outcome| outcome.answer) {
        Ok(Ok(MapAnswer::Registered(id))) if id != membership.node => {
            // The cluster has forgotten the old id, so this directory is a new node.
            tracing::warn!(
                old = %membership.node,
                new = %id,
                "the cluster had forgotten this node, which gets a new id and new copies"
            );
            let membership = Membership { node: id, is_founder: false, ..membership };
            if let Err(error) = node.set_membership(membership).await {
                tracing::error!(
                    %error,
                    "this node cannot store its new id. Free space or repair the disk of the data \
                     directory"
                );
            }
        }
        Ok(Ok(_)) => node.state.lock().doubled = None,
        Err(_) => {}
        Ok(Err(refused @ (MapRefusal::OtherIncarnation | MapRefusal::RunsElsewhere))) => {
            note_duplicate(&node, membership, refused);
        }
        Ok(Err(refused)) => {
            let is_new = node.state.lock().refused.replace(refused) != Some(refused);
            if is_new {
                tracing::warn!(%refused, "the cluster refuses to register this node: trying again");
            }
        }
    }
    node.state.lock().is_registering = false;
    node.progress.send_modify(|count| *count += 1);
}

/// Handles the refusal of a registration because another process runs as this node. If the refusal
/// lasts, one of the two has a copy of the other's data directory, and this process must end.
fn note_duplicate(node: &ControlNode, membership: Membership, refused: MapRefusal) {
    let now = Instant::now();
    let mut state = node.state.lock();
    let since = *state.doubled.get_or_insert(now);
    let is_final = refused == MapRefusal::OtherIncarnation || since.elapsed() > DOUBLED_MAX;
    if !is_final || state.ended.is_some() {
        return;
    }
    let map = node.published.map();
    let place = map.nodes().get(&membership.node).map(|node| node.description.peer_address.clone());
    let place = place.map_or_else(String::new, |place| format!(" at {place}"));
    state.ended = Some(format!(
        "another process runs as node {}{place}: the data directory of this one, or of that one, was \
         copied. Start one of them with an empty directory",
        membership.node
    ));
}

/// The command that registers this node.
pub(super) fn registration(node: &ControlNode) -> MapCommand {
    let identity = node.state.lock().identity;
    MapCommand::Register {
        node_uuid: identity.node_uuid,
        incarnation: identity.incarnation,
        description: node.options.description.clone(),
    }
}
