//! The way out of the cluster: the reasons for which a node leaves, the conditions it waits for,
//! and its log lines.
//!
//! Not here: handing partitions over (`cluster::map::controller`, `replicas`), signals (`server`).

use std::time::Duration;

use cluster::id::{CopyId, NodeId};
use cluster::map::{Map, MapCommand, NodeState};
use control::{Control, MembershipState};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Node;
use super::lifecycle::{COMMAND_TTL, POLL};
use crate::LIFE;

/// Time between two log lines about the conditions that the node waits for.
const REPORT_AGAIN: Duration = Duration::from_secs(10);
/// Period of looks at this node's place in the cluster.
const REMOVED_PERIOD: Duration = Duration::from_millis(256);
/// Time between two rounds of pings to the other nodes.
const PING_PERIOD: Duration = Duration::from_millis(500);
/// After this many rounds without an answer, the other nodes count as gone.
const SILENT_ROUNDS: u32 = 3;

/// The way in which a node left its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaveOutcome {
    /// The node handed everything over, or holds nothing of value.
    Everything,
    /// No other node could take anything.
    Alone,
    /// The deadline passed. The number of partitions whose only copy is on this node.
    Late(usize),
}

/// Waits until this node has lost its place in the cluster or is asked to leave it, and returns the
/// reason. Never returns without a cluster.
pub(crate) async fn until_removed(node: Option<&Node>) -> &'static str {
    let Some(node) = node else { return std::future::pending().await };
    loop {
        if node.limits_file.failure().is_some() {
            return "no limits can be put in force";
        }
        if let Some(control) = node.control() {
            match control.membership_state() {
                MembershipState::Gone => return "the cluster let this node go",
                MembershipState::Member(NodeState::Draining) => return "this node is drained",
                _ if control.ended().is_some() => return "another process is this node",
                _ => {}
            }
        }
        node.options.grid.wait(REMOVED_PERIOD).await;
    }
}

/// Logs the conditions that a leaving node waits for, if there are any.
pub(crate) fn announce(node: &Node) {
    let Some(control) = node.control() else { return };
    let (id, _) = node.me();
    if id != NodeId::default() && !members_but(&control.map(), id).is_empty() {
        tracing::info!(
            target: LIFE,
            "leaving the cluster: {}; a second signal ends the process at once",
            waits_for(control, id)
        );
    }
}

/// Leaves the cluster within `deadline`. A node whose control log cannot be written continues
/// beyond the deadline while it has the only copy of any partition; a second signal ends it.
pub(super) async fn leave(node: &Node, deadline: Duration) -> LeaveOutcome {
    let Some(control) = node.control() else { return LeaveOutcome::Everything };
    let (id, incarnation) = node.me();
    if id == NodeId::default() || control.ended().is_some() {
        return LeaveOutcome::Everything;
    }
    if node.keyspace().is_none() && node.limits_file.failure().is_some() {
        // The founder has served nobody. It founds its cluster again once its file is corrected.
        return LeaveOutcome::Everything;
    }
    let others = members_but(&control.map(), id);
    if others.is_empty() {
        return alone(control, id, "there is no other node");
    }
    let (rounds, heard) = watch::channel(0);
    let (seconds, passed) = watch::channel(0);
    let mut beside = JoinSet::new();
    beside.spawn(ping_others(control.clone(), id, rounds));
    beside.spawn(count_seconds(seconds));
    let mut is_late = false;
    let mut said = 0;
    loop {
        let map = control.map();
        match control.membership_state() {
            MembershipState::Gone => return LeaveOutcome::Everything,
            // All nodes leave at once: none is left to take over.
            _ if members_but(&map, id).is_empty() => {
                return alone(control, id, "no other node stays");
            }
            _ if *heard.borrow() >= SILENT_ROUNDS => {
                return alone(control, id, "no other node answers");
            }
            MembershipState::Member(NodeState::Draining) => {}
            _ => {
                let drain = MapCommand::Drain(id, incarnation);
                let _ = control.propose(drain, COMMAND_TTL).await;
            }
        }
        sleep(POLL).await;
        let waited = Duration::from_secs(*passed.borrow());
        if waited >= deadline {
            let only_here = only_here(&map, id);
            if only_here == 0 || control.fault().is_none() {
                tracing::warn!(
                    target: LIFE,
                    "the time to leave is up, the process ends now: {}",
                    waits_for(control, id)
                );
                return LeaveOutcome::Late(only_here);
            }
            if !std::mem::replace(&mut is_late, true) {
                tracing::warn!(
                    target: LIFE,
                    "the time to leave is up, and this node has the only copy of \
                     some partitions: {}; a second signal ends the process",
                    waits_for(control, id)
                );
            }
        }
        if waited.as_secs() >= said + REPORT_AGAIN.as_secs() {
            said = waited.as_secs();
            tracing::info!(target: LIFE, "still leaving: {}", waits_for(control, id));
        }
    }
}

fn alone(control: &Control, id: NodeId, why: &str) -> LeaveOutcome {
    let count = only_here(&control.map(), id);
    tracing::warn!(target: LIFE, "{why} to take over: {count} partitions are lost with this node");
    LeaveOutcome::Alone
}

/// The other nodes that should hold partitions.
fn members_but(map: &Map, me: NodeId) -> Vec<NodeId> {
    map.members().into_iter().map(|member| member.node).filter(|node| *node != me).collect()
}

/// Partitions whose only living in-sync copy is this node's.
fn only_here(map: &Map, me: NodeId) -> usize {
    let is_only_here = |in_sync: &[CopyId]| {
        let mut living = in_sync.iter().filter(|copy| map.is_living(**copy)).peekable();
        living.peek().is_some() && living.all(|copy| copy.node == me)
    };
    map.partitions().iter().filter(|entry| is_only_here(&entry.in_sync)).count()
}

/// The conditions that a leaving node waits for, for the log.
fn waits_for(control: &Control, me: NodeId) -> String {
    let map = control.map();
    let led =
        |entry: &&cluster::map::SharedEntry| entry.primary.is_some_and(|copy| copy.node == me);
    let led = map.partitions().iter().filter(led).count();
    let only_here = only_here(&map, me);
    let leader = match control.leader() {
        Some(leader) => format!("node {leader} leads"),
        None => "no control leader is in reach".to_owned(),
    };
    format!("{led} partitions to hand over, {only_here} of which have no other copy yet; {leader}")
}

async fn count_seconds(seconds: watch::Sender<u64>) {
    loop {
        sleep(Duration::from_secs(1)).await;
        seconds.send_modify(|count| *count += 1);
    }
}

/// Pings the other nodes in rounds, and counts the rounds since one answered.
async fn ping_others(control: Control, me: NodeId, rounds: watch::Sender<u32>) {
    loop {
        let mut asked = JoinSet::new();
        for other in members_but(&control.map(), me) {
            let control = control.clone();
            asked.spawn(async move { control.ping(other).await });
        }
        let mut is_there = false;
        while let Some(answered) = asked.join_next().await {
            is_there |= matches!(answered, Ok(Ok(())));
        }
        rounds.send_modify(|count| *count = if is_there { 0 } else { *count + 1 });
        sleep(PING_PERIOD).await;
    }
}
