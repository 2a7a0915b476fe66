//! The leader's work: takes commands, marks silent nodes dead, follows the controller, changes
//! voters.
//!
//! Here: the task that runs while this node leads, and the checks of a command before the log. Not
//! here: the choice of changes (`cluster::map::controller`), the silent nodes (`failure_detector`).
//!
//! The leader acts only on a map that a majority has just confirmed. If another node leads
//! meanwhile, its commands are refused by version or by Raft.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use cluster::map::controller::{self, ControllerInput};
use cluster::map::{Map, MapAnswer, MapCommand, MapRefusal, NodeState, clocks};
use cluster::placement::{Member, PartitionOwners};
use openraft::error::{ClientWriteError, RaftError};
use openraft::{BasicNode, ChangeMembers};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::rpc_server::runs_elsewhere;
use super::state::LEASE_MAX;
use super::{ControlNode, Raft, disk, heartbeat, removals, step_down};
use crate::raft_network::{CallError, Unreachable};
use crate::raft_types::node_id;
use crate::rpc::{ProposeReply, RpcRequest};
use crate::store::encode;
use crate::wake_grid::GRID_STEP;

/// The time between two rounds, unless nothing is left to do and every node was heard recently.
const PACE: Duration = Duration::from_millis(100);
/// The period of looks whether this node leads. The beginning of a lead ends the wait.
const PACE_LED: Duration = Duration::from_millis(1024);
/// The least time between two rounds, even on request.
const PACE_MIN: Duration = Duration::from_millis(10);
/// A commit, or a confirmation by the majority, that takes longer is given up for this round.
const COMMIT_TTL: Duration = Duration::from_secs(2);
/// The time between the candidacies of voters after the leader's process is gone.
const STAND_GAP: Duration = Duration::from_millis(100);
/// The timeout for a probe of a suspected node.
const PROBE_TTL: Duration = Duration::from_millis(300);
/// Voters are not changed while the last message of one of them is this old: it may be dying
/// together with the one to replace. After a change of voters no node counts as silent for a while,
/// so a change now would delay its removal. [Removals](removals) do not count such a node's copy.
pub(super) const FALLING_SILENT: Duration = Duration::from_millis(600);
/// The change waits no longer than this: one bad link between the leader and a voter must not
/// prevent replacements.
const FALLING_SILENT_MAX: Duration = Duration::from_secs(3);
/// If more than a third of the nodes die within this time, no third copies are made for as long.
const HOLD: Duration = Duration::from_secs(10);
/// A new voter votes once it lacks at most this number of entries.
const CAUGHT_UP: u64 = 64;
/// The longest command. 256 partitions take some 8 KB, the longest limit some 33 KB.
const COMMAND_BYTES_MAX: usize = 64 << 10;

/// The state of one leadership, from its beginning to its end.
#[derive(Default)]
struct Leader {
    dead_since: BTreeMap<(NodeId, Incarnation), Duration>,
    marked_dead: Vec<Duration>,
    /// The targets of all partitions, and the input that gives them, until nothing changes.
    targets: Option<(Vec<Member>, u8, Vec<PartitionOwners>)>,
    /// The nodes with a wrong wall clock.
    off: BTreeSet<NodeId>,
    /// The map version and the input with which nothing was left to do.
    at_rest: Option<(u64, ControllerInput)>,
}

pub(super) async fn run(node: Arc<ControlNode>) {
    let mut lead: Option<Leader> = None;
    loop {
        heartbeat::rest(&node.leader_now, PACE_MIN, until_next(&node, lead.as_ref())).await;
        let raft = node.raft().filter(|_| node.is_leader() && !node.state.lock().steps_down);
        let (Some(raft), Some(me)) = (raft, node.id()) else {
            lead = None;
            continue;
        };
        let lead = lead.get_or_insert_with(Leader::default);
        if lead.round(&node, &raft, me).await.is_some() {
            lead.set_voters(&node, &raft).await;
        }
    }
}

/// Waits for the next round, or for the next look whether this node leads.
async fn until_next(node: &ControlNode, lead: Option<&Leader>) {
    let period = match lead {
        None => PACE_LED,
        Some(lead) if lead.at_rest.is_some() && node.hears_all() => GRID_STEP,
        Some(_) => return sleep(PACE).await,
    };
    node.options.grid.wait_least(period, PACE_MIN).await;
}

impl Leader {
    /// Runs the controller and commits its commands. Returns none without a majority, or if the map
    /// has changed meanwhile.
    async fn round(&mut self, node: &Arc<ControlNode>, raft: &Raft, me: NodeId) -> Option<()> {
        if node.published.map().head().is_none() {
            let membership = node.membership().filter(|membership| membership.is_founder)?;
            confirm(raft).await?;
            if node.published.map().head().is_some() {
                return None;
            }
            let placement = node.options.placement;
            let create = MapCommand::Create { cluster: membership.cluster, placement };
            return write_all(raft, vec![create]).await;
        }
        // The second pass handles the partitions of nodes that the first pass marked dead.
        for _ in 0..2 {
            let map = node.published.map();
            let facts = self.facts(node, &map, me);
            let is_known = |(ver, before): &(u64, _)| *ver == map.ver() && *before == facts;
            if self.at_rest.as_ref().is_some_and(is_known) {
                self.targets = None;
                return Some(());
            }
            let commands = controller::next(&map, &facts, self.targets(&map));
            if commands.is_empty() {
                self.at_rest = Some((map.ver(), facts));
                return Some(());
            }
            self.at_rest = None;
            confirm(raft).await?;
            if node.published.ver() != map.ver() {
                node.leader_now.notify_one();
                return None;
            }
            let now = node.now();
            let dead = commands.iter().filter(|one| matches!(one, MapCommand::Bury(..)));
            self.marked_dead.extend(dead.map(|_| now));
            write_all(raft, commands).await?;
        }
        Some(())
    }

    fn targets(&mut self, map: &Map) -> &[PartitionOwners] {
        let members = map.members();
        let replicas = map.settings().replicas;
        let kept = self.targets.take().filter(|(before, copies, targets)| {
            *before == members && *copies == replicas && targets.len() == map.partitions().len()
        });
        &self.targets.insert(kept.unwrap_or_else(|| (members, replicas, map.targets()))).2
    }

    fn facts(&mut self, node: &Arc<ControlNode>, map: &Map, me: NodeId) -> ControllerInput {
        let now = node.now();
        let (_, voters) = node.published.voters();
        let silent = {
            let mut state = node.state.lock();
            state.liveness.see(map, &voters, me, now);
            state.liveness.silent(map, me, now)
        };
        let dead = |(&id, known): (&NodeId, &cluster::map::MapNode)| {
            (known.state == NodeState::Dead).then_some((id, known.incarnation))
        };
        let dead: BTreeSet<_> = map.nodes().iter().filter_map(dead).collect();
        self.dead_since.retain(|incarnation, _| dead.contains(incarnation));
        for &incarnation in &dead {
            self.dead_since.entry(incarnation).or_insert(now);
        }
        let lost_after = map.settings().lost_after_ms.map(Duration::from_millis);
        let lost = lost_after.map_or_else(BTreeSet::new, |after| self.dead_for(after, now));
        self.marked_dead.retain(|at| now.saturating_sub(*at) < HOLD);
        let hold_copies = self.marked_dead.len() * 3 > map.nodes().len();
        let (off, unmeasured) = self.judge_clocks(node, map, me);
        let serving = {
            let state = node.state.lock();
            let serves =
                |id: &NodeId| state.conditions.get(id).is_some_and(|condition| condition.is_ready);
            let draining =
                map.nodes().iter().filter(|(_, known)| known.state == NodeState::Draining);
            draining.map(|(id, _)| *id).filter(serves).collect()
        };
        let removals = node.state.lock().removals.waiting(map, now);
        ControllerInput { silent, lost, serving, hold_copies, off, unmeasured, removals }
    }

    /// The living nodes with a wrong wall clock, and the joining ones without a measured clock.
    /// Both are empty if clocks are not measured at all.
    fn judge_clocks(
        &mut self,
        node: &ControlNode,
        map: &Map,
        me: NodeId,
    ) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
        let mut clocks = node.state.lock().clocks.clone();
        let is_living =
            |id: &NodeId| map.nodes().get(id).is_some_and(|known| known.state != NodeState::Dead);
        clocks.retain(|id, _| is_living(id));
        let off = clocks::off(&clocks, Some(me), &self.off);
        for node in off.difference(&self.off) {
            tracing::warn!(
                %node,
                ahead_ms = clocks[node],
                "the node's wall clock is off, so it becomes primary last: set its clock"
            );
        }
        for node in self.off.difference(&off) {
            tracing::info!(%node, "the node's wall clock is right again, or the node is gone");
        }
        self.off.clone_from(&off);
        let is_unmeasured = |(id, known): &(&NodeId, &cluster::map::MapNode)| {
            known.state == NodeState::Joining && !clocks.is_empty() && !clocks.contains_key(id)
        };
        let unmeasured = map.nodes().iter().filter(is_unmeasured).map(|(id, _)| *id).collect();
        (off, unmeasured)
    }

    fn dead_for(&self, longest: Duration, now: Duration) -> BTreeSet<NodeId> {
        let is_long = |(_, since): &(_, &Duration)| now.saturating_sub(**since) >= longest;
        self.dead_since.iter().filter(is_long).map(|((id, _), _)| *id).collect()
    }

    /// Makes a step towards the wanted voters. New voters are learners first, and vote once they
    /// have the log.
    ///
    /// A dead voter is replaced at once. Membership changes are joint, so they are safe at any
    /// time, and after a quick replacement a second voter may die soon after the first. A replaced
    /// voter that comes back goes on as an observer.
    async fn set_voters(&mut self, node: &Arc<ControlNode>, raft: &Raft) -> Option<()> {
        let map = node.published.map();
        let membership_config = Arc::clone(&raft.metrics().borrow().membership_config);
        let membership = membership_config.membership();
        let current: BTreeSet<NodeId> = membership.voter_ids().map(node_id).collect();
        let wanted = controller::voters(&map, &current, &disk::unfit(node));
        let learners: BTreeSet<u64> = membership.learner_ids().collect();
        if wanted.is_empty() {
            return None;
        }
        if wanted == current && membership.get_joint_config().len() == 1 {
            if learners.is_empty() {
                return Some(());
            }
            let retired = ChangeMembers::RemoveNodes(learners);
            timeout(COMMIT_TTL, raft.change_membership(retired, false)).await.ok()?.ok()?;
            return Some(());
        }
        let metrics = raft.metrics().borrow().clone();
        let leaves = node.id().is_some_and(|me| !wanted.contains(&me));
        if leaves && step_down::step_down(node).await {
            // The new leader removes this node from the voters.
            return None;
        }
        let falling = FALLING_SILENT..FALLING_SILENT_MAX;
        let is_falling_silent = |(id, ago): (NodeId, Duration)| {
            let is_up = map.nodes().get(&id).is_some_and(|node| node.state != NodeState::Dead);
            is_up && current.contains(&id) && falling.contains(&ago)
        };
        if node.state.lock().liveness.ages(node.now()).any(is_falling_silent) {
            return None;
        }
        let mut is_ready = true;
        for newcomer in wanted.difference(&current) {
            let id = u64::from(newcomer.0);
            if !learners.contains(&id) {
                let member = BasicNode::new(node.rpc.address(*newcomer)?);
                timeout(COMMIT_TTL, raft.add_learner(id, member, false)).await.ok()?.ok()?;
            }
            let matching = metrics.replication.as_ref().and_then(|all| all.get(&id)).copied();
            let has = matching.flatten().map_or(0, |log_id| log_id.index);
            is_ready &= has > 0 && has + CAUGHT_UP >= metrics.last_log_index.unwrap_or(0);
        }
        if is_ready {
            tracing::info!(?current, ?wanted, "changing the voters");
            let ids: BTreeSet<u64> = wanted.iter().map(|id| u64::from(id.0)).collect();
            timeout(COMMIT_TTL, raft.change_membership(ids, true)).await.ok()?.ok()?;
            if leaves {
                step_down::stand_instead(node, &wanted).await;
            }
        }
        Some(())
    }
}

/// Waits until a majority confirms that this node leads, and until its map has every earlier
/// decision.
async fn confirm(raft: &Raft) -> Option<()> {
    timeout(COMMIT_TTL, raft.ensure_linearizable()).await.ok()?.ok().map(|_| ())
}

/// Appends commands to the log in one batch. A refused command is no failure: another one was
/// first.
async fn write_all(raft: &Raft, commands: Vec<MapCommand>) -> Option<()> {
    let mut written = Vec::with_capacity(commands.len());
    for command in commands {
        written.push(raft.client_write_ff(command).await.ok()?);
    }
    let all = async {
        for one in written {
            one.await.ok()?.ok()?;
        }
        Some(())
    };
    timeout(COMMIT_TTL, all).await.ok()?
}

/// Handles a command that a node proposed, within `ttl`.
pub(super) async fn decide(
    node: &Arc<ControlNode>,
    mut command: MapCommand,
    sender: Option<NodeId>,
    ttl: Duration,
) -> ProposeReply {
    let deadline = Instant::now() + ttl;
    let (Some(raft), true) = (node.raft(), node.is_leader()) else {
        return not_leader(node, node.leader());
    };
    if node.state.lock().steps_down {
        return ProposeReply::NotYet;
    }
    let map = node.published.map();
    if matches!(command, MapCommand::Drain(id, _) if Some(id) == node.id())
        && map.nodes().len() > 1
        && step_down::step_down(node).await
    {
        // Step down before partitions move, because moves wait for the leader.
        return not_leader(node, node.leader());
    }
    if encode(&command).len() > COMMAND_BYTES_MAX {
        return ProposeReply::Answered(map.ver(), Err(MapRefusal::OutOfBounds));
    }
    // The founder registers first, because it already has the first id.
    if map.head().is_none() || map.nodes().is_empty() && sender != node.id() {
        return ProposeReply::NotYet;
    }
    if let Some(reply) = check_register(node, &raft, &map, &command, sender).await {
        return reply;
    }
    if let MapCommand::Partitions(changes) = &mut command
        && removals::withhold(node, &map, changes)
    {
        return ProposeReply::Answered(map.ver(), Ok(MapAnswer::Changes(Vec::new())));
    }
    match timeout_at(deadline, raft.client_write(command)).await {
        Ok(Ok(response)) => {
            node.leader_now.notify_one();
            let applied = response.data;
            applied
                .answer
                .map_or(ProposeReply::Unknown, |answer| ProposeReply::Answered(applied.ver, answer))
        }
        Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to)))) => {
            not_leader(node, to.leader_id.map(node_id))
        }
        Ok(Err(_)) | Err(_) => ProposeReply::Unknown,
    }
}

/// Checks a node that registers, and removes the node whose address it took over. Returns the
/// reply, if the command must not be written.
async fn check_register(
    node: &Arc<ControlNode>,
    raft: &Raft,
    map: &Map,
    command: &MapCommand,
    sender: Option<NodeId>,
) -> Option<ProposeReply> {
    let MapCommand::Register { node_uuid, incarnation, description } = command else {
        return None;
    };
    let me = node.id().unwrap_or_default();
    let (_, voters) = node.published.voters();
    let now = node.now();
    let silent = {
        let mut state = node.state.lock();
        state.liveness.see(map, &voters, me, now);
        state.liveness.silent(map, me, now)
    };
    for (&id, known) in map.nodes() {
        let is_dead = known.state == NodeState::Dead;
        if known.node_uuid == *node_uuid {
            if runs_elsewhere(node, id, *incarnation, &description.peer_address) {
                return Some(ProposeReply::Answered(map.ver(), Err(MapRefusal::RunsElsewhere)));
            }
            // A dead node that reaches few voters would be marked dead again at once, so it waits.
            // A sender without a membership sends no heartbeats, because the reply with its id was
            // lost; it was marked dead for that, so it is registered.
            let sits = sender == Some(id);
            if sits && is_dead && known.incarnation == *incarnation && silent.contains(&id) {
                return Some(ProposeReply::NotYet);
            }
        } else if known.description.ring_name == description.ring_name
            && known.description.peer_address == description.peer_address
            && (is_dead || silent.contains(&id))
        {
            // The new process has the address of the old one, which has lost its data directory and
            // cannot come back.
            let forget = MapCommand::Forget(id, known.incarnation);
            let commands = vec![MapCommand::Bury(id, known.incarnation), forget];
            if write_all(raft, commands).await.is_none() {
                return Some(ProposeReply::NotYet);
            }
        }
    }
    None
}

fn not_leader(node: &ControlNode, leader: Option<NodeId>) -> ProposeReply {
    let place = |id: NodeId| node.rpc.address(id).map(|address| (id, address));
    ProposeReply::NotLeader(leader.filter(|leader| Some(*leader) != node.id()).and_then(place))
}

/// Checks a report that the leader's process is gone. If so, a voter stands for election as soon as
/// no other voter believes in that leader any more, which is sooner than for a silent leader.
/// Voters do so one after the other.
pub(super) async fn succeed(node: &Arc<ControlNode>, gone: NodeId, incarnation: Incarnation) {
    let (_, voters) = node.published.voters();
    let others = voters.iter().filter(|voter| **voter != gone);
    let Some(rank) = node.id().and_then(|me| others.clone().position(|voter| *voter == me)) else {
        return;
    };
    let probed = node.rpc.call_node(gone, RpcRequest::Ping, PROBE_TTL).await;
    if !matches!(probed, Err(CallError::Unreachable(Unreachable::Refused))) {
        return;
    }
    let now = node.now();
    node.state.lock().liveness.refuse(gone, incarnation, now);
    sleep(LEASE_MAX + STAND_GAP * u32::try_from(rank).unwrap_or(u32::MAX)).await;
    if node.leader() == Some(gone)
        && let Some(raft) = node.raft()
    {
        tracing::info!(%gone, "the leader's process is gone: this node stands for election");
        let _ = raft.trigger().elect().await;
    }
}

/// Probes a suspected process once. A host that refuses the connection has lost the process.
///
/// Every voter probes, not only the leader: the leader may have died in the same moment, and the
/// next one needs the result.
pub(super) async fn probe(node: &Arc<ControlNode>, suspect: NodeId, incarnation: Incarnation) {
    let (_, voters) = node.published.voters();
    let is_voter = node.id().is_some_and(|me| voters.contains(&me));
    if !is_voter || Some(suspect) == node.id() {
        return;
    }
    let known = node.published.map().nodes().get(&suspect).map(|known| known.incarnation);
    if known != Some(incarnation) {
        return;
    }
    let probed = node.rpc.call_node(suspect, RpcRequest::Ping, PROBE_TTL).await;
    if matches!(probed, Err(CallError::Unreachable(Unreachable::Refused))) {
        let now = node.now();
        node.state.lock().liveness.refuse(suspect, incarnation, now);
        node.leader_now.notify_one();
    }
}
