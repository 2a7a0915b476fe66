//! Handling of a disk under the control log that fails, fills up or is slow.
//!
//! Here: the task that watches the store and Raft. It starts an ended Raft again as soon as the
//! disk can be written, and it transfers the leadership away from a slow or full disk. Not here:
//! the durations of writes (`store::health`), the replacement of voters (`leader`).
//!
//! A node whose Raft has ended goes on as an observer: it sends heartbeats, receives changes, and
//! its copies serve. Only its vote and its log depend on the disk.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::id::NodeId;
use tokio::time::{Instant, timeout};

use super::state::RaftFault;
use super::{ControlNode, step_down};
use crate::failure_detector::SILENCE;
use crate::rpc::DiskState;
use crate::store::StoreError;
use crate::store::health::DiskCondition;
use crate::wake_grid::GRID_STEP;

/// The period of the checks.
const PACE: Duration = GRID_STEP;
/// A disk without a write for this time is probed by a write. A write that hangs is reported within
/// 2 s: after this time, `PENDING_MAX` of the store, and a period of the checks.
pub(super) const PROBE_AFTER: Duration = Duration::from_secs(1);
/// The time between two attempts to open a store that failed.
const RETRY: Duration = Duration::from_secs(1);
/// The time between two log lines about the same fault.
const REPORT_AGAIN: Duration = Duration::from_mins(1);
/// The longest wait for Raft's shutdown.
const END_MAX: Duration = Duration::from_secs(2);
/// The time between two attempts to transfer the leadership.
const STEP_DOWN_AGAIN: Duration = Duration::from_secs(5);
/// After this time without contact a leader with a slow disk is better than none.
const NO_LEADER_MAX: Duration = Duration::from_secs(5);

/// The state of the disk.
pub(super) fn state(node: &ControlNode) -> DiskState {
    if node.state.lock().fault.is_some() {
        return DiskState::Failed;
    }
    match node.store.health().condition() {
        DiskCondition::Failed(_) => DiskState::Failed,
        DiskCondition::Slow(_) => DiskState::Slow,
        DiskCondition::Full(_) => DiskState::Full,
        DiskCondition::Fine => DiskState::Fine,
    }
}

/// The reason why the disk cannot be written, from the first failed write on.
pub(super) fn failure(node: &ControlNode) -> Option<String> {
    let fault = node.state.lock().fault.as_ref().map(|fault| fault.why.clone());
    fault.or_else(|| match node.store.health().condition() {
        DiskCondition::Failed(why) => Some(cannot_be_written(node, &why)),
        DiskCondition::Slow(_) | DiskCondition::Full(_) | DiskCondition::Fine => None,
    })
}

/// The fault or the slowness, as text for operators.
pub(super) fn fault(node: &ControlNode) -> Option<String> {
    if let Some(fault) = &node.state.lock().fault {
        let still = fault.still.as_ref().filter(|still| !fault.why.contains(*still));
        let still = still.map(|still| format!("; still: {still}")).unwrap_or_default();
        let since = fault.since.elapsed().as_secs();
        return Some(format!("{} ({since} s ago{still})", fault.why));
    }
    match node.store.health().condition() {
        DiskCondition::Failed(why) => Some(cannot_be_written(node, &why)),
        trouble => trouble_of(node, &trouble),
    }
}

/// The trouble of a disk that can be written, as text for operators.
fn trouble_of(node: &ControlNode, condition: &DiskCondition) -> Option<String> {
    let trouble = match condition {
        DiskCondition::Slow(took) => format!("is slow: a write takes {} ms", took.as_millis()),
        DiskCondition::Full(why) => format!("has no room to grow: {why}"),
        DiskCondition::Failed(_) | DiskCondition::Fine => return None,
    };
    Some(format!("control log {} {trouble}", node.store.name()))
}

fn cannot_be_written(node: &ControlNode, why: &str) -> String {
    format!("control log {} cannot be written: {why}", node.store.name())
}

/// Nodes that cannot write their control log. They should not vote if others can.
pub(super) fn unfit(node: &ControlNode) -> BTreeSet<NodeId> {
    let me = node.id().filter(|_| state(node) == DiskState::Failed);
    let state = node.state.lock();
    let has_failed = state.conditions.iter().filter(|(_, it)| it.disk == DiskState::Failed);
    has_failed.map(|(id, _)| *id).chain(me).collect()
}

/// Whether this node's disk is slow or full while a reachable voter has a better one, which should
/// lead.
pub(super) fn is_outdone(node: &ControlNode) -> bool {
    if !node.store.health().is_sick() {
        return false;
    }
    if node.contact_age().is_none_or(|age| age > NO_LEADER_MAX) {
        return false;
    }
    let (_, voters) = node.published.voters();
    let (me, now) = (node.id(), node.now());
    let state = node.state.lock();
    let mut others = state
        .liveness
        .ages(now)
        .filter(|(id, age)| Some(*id) != me && voters.contains(id) && *age < SILENCE);
    others
        .any(|(id, _)| state.conditions.get(&id).is_some_and(|other| other.disk == DiskState::Fine))
}

/// When each condition was last logged or acted on.
#[derive(Default)]
struct LoggedConditions {
    fault: Option<Instant>,
    trouble: Option<Instant>,
    stepped_down: Option<Instant>,
    tried: Option<Instant>,
}

pub(super) async fn run(node: Arc<ControlNode>) {
    let mut logged = LoggedConditions::default();
    loop {
        node.options.grid.wait(PACE).await;
        if node.state.lock().fault.is_some() {
            recover(&node, &mut logged).await;
            continue;
        }
        let ended = node.with_metrics(|metrics| metrics.running_state.clone().err()).flatten();
        // If the disk is the reason for the end of Raft, its error is the better one.
        if let Some(why) = failure(&node).or(ended.map(|why| format!("Raft has ended: {why}"))) {
            fail(&node, why, &mut logged);
            continue;
        }
        report_fault(&node, &mut logged);
        transfer_lead(&node, &mut logged).await;
        if !node.store.is_on_disk() && node.store.health().until_probe(PROBE_AFTER).is_none() {
            let store = node.store.clone();
            tokio::spawn(async move { store.probe().await });
        }
    }
}

/// Ends Raft on this node until the disk works again.
fn fail(node: &Arc<ControlNode>, why: String, logged: &mut LoggedConditions) {
    tracing::error!(
        "{why}. This node keeps serving its copies, but does not vote. Free space or repair the \
         disk: the node tries again every second"
    );
    let now = Instant::now();
    (logged.fault, logged.tried) = (Some(now), Some(now));
    let raft = {
        let mut state = node.state.lock();
        state.fault = Some(RaftFault { since: now, why, still: None });
        state.raft.take()
    };
    if let Some(raft) = raft {
        tokio::spawn(async move { timeout(END_MAX, raft.shutdown()).await });
    }
    // Reports the fault to the voters at once.
    node.heartbeat_now.notify_one();
}

async fn recover(node: &Arc<ControlNode>, logged: &mut LoggedConditions) {
    if logged.tried.is_some_and(|at| at.elapsed() < RETRY) {
        return;
    }
    let again = start_again(node).await;
    logged.tried = Some(Instant::now());
    let fault = {
        let mut state = node.state.lock();
        match &again {
            Ok(()) => state.fault.take(),
            Err(error) => {
                if let Some(fault) = &mut state.fault {
                    fault.still = Some(error.to_string());
                }
                state.fault.clone()
            }
        }
    };
    let Some(fault) = fault else { return };
    let since = fault.since.elapsed().as_secs();
    match again {
        Ok(()) => {
            tracing::warn!(
                "control log {} can be written again, after {since} s",
                node.store.name()
            );
            node.heartbeat_now.notify_one();
        }
        Err(error) if logged.fault.is_none_or(|at| at.elapsed() > REPORT_AGAIN) => {
            logged.fault = Some(Instant::now());
            tracing::error!(
                "{}. This node has tried for {since} s to recover: {error}. Free space or repair \
                 the disk",
                fault.why
            );
        }
        Err(_) => {}
    }
}

async fn start_again(node: &Arc<ControlNode>) -> Result<(), StoreError> {
    node.store.reopen().await?;
    // Opening succeeded; the probe checks that the disk can be written.
    node.store.probe().await?;
    node.start_raft().await
}

fn report_fault(node: &ControlNode, logged: &mut LoggedConditions) {
    let health = node.store.health();
    let is_due = logged.trouble.is_none_or(|at| at.elapsed() > REPORT_AGAIN);
    if let Some(trouble) = trouble_of(node, &health.condition())
        && health.is_sick()
        && is_due
    {
        logged.trouble = Some(Instant::now());
        tracing::warn!(
            "{trouble}. This node keeps serving, and another voter leads if one can. Check the disk"
        );
    }
}

/// Transfers the leadership if this node leads with a slow or full disk.
async fn transfer_lead(node: &Arc<ControlNode>, logged: &mut LoggedConditions) {
    let is_early = logged.stepped_down.is_some_and(|at| at.elapsed() < STEP_DOWN_AGAIN);
    if !is_early && node.is_leader() && is_outdone(node) {
        logged.stepped_down = Some(Instant::now());
        step_down::step_down(node).await;
    }
}
