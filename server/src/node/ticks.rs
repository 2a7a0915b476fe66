//! The passage of time in a node: ticks of replicas and workers, and periodic reports to the
//! control plane.
//!
//! Not here: the effect of a tick on a replica (`replicas`), starting the task (`lifecycle`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use cluster::map::{Map, SharedEntry, clocks};
use control::{Control, GRID_STEP};
use engine::Nanos;
use tokio::time::sleep;

use super::Node;
use super::inbound::PeerHandler;
use super::lifecycle::incarnations_of;
use super::replicas::Replicas;
use crate::cluster_stats::hears_control;
use crate::transport::FrameHandler as _;

/// Time between ticks while an operation or a copy waits.
const TICK: Duration = Duration::from_millis(20);
/// Period of ticks at rest.
const TICK_AT_REST: Duration = GRID_STEP;
/// Time between checks of the last contact to the controller.
const CONTACT_PERIOD: Duration = Duration::from_millis(100);
/// Period of `tick_silent`.
const REST_PERIOD: Duration = Duration::from_millis(200);
/// Time between two reports of this node's state to the control plane.
const CONDITION_PERIOD: Duration = Duration::from_millis(200);
/// Time between two clean-ups after incarnations that are over.
const INCARNATIONS_PERIOD: Duration = Duration::from_secs(5);
/// Without contact to most voters for this long, a node is cut off.
const ALONE: Duration = Duration::from_secs(1);

/// Whether an incarnation of a node is over by the map, and no copy of it is in the map.
fn is_over(map: &Map, id: NodeId, incarnation: Incarnation) -> bool {
    let is_past = match map.nodes().get(&id) {
        Some(node) => incarnation < node.incarnation,
        None => map.head().is_some_and(|head| id.0 <= head.last_node),
    };
    let is_named = |entry: &SharedEntry| entry.copy_on(id, incarnation).is_some();
    is_past && !map.partitions().iter().any(is_named)
}

/// Drops remains of incarnations that are over in the map, which all replicas have learnt: dedup
/// logs, and links that no replica set names.
fn end_incarnations(node: &Node, copies: &Replicas, map: &Map, reception: &PeerHandler) {
    let Some(head) = map.head() else { return };
    // Records that were under way may have brought back some logs.
    copies.logs().set_incarnations(incarnations_of(map), head.last_node);
    node.links().retain_incarnations(
        |id, incarnation| is_over(map, id, incarnation),
        |link| copies.names(link),
    );
    reception.with_replica_context(|replica_ctx| copies.forget_links(replica_ctx));
}

/// A task that runs once per period.
struct Periodic {
    period_ns: u64,
    next_ns: u64,
}

impl Periodic {
    fn every(period: Duration) -> Self {
        Self { period_ns: period.as_nanos() as u64, next_ns: 0 }
    }

    fn is_now(&mut self, now_ns: u64) -> bool {
        let is_now = now_ns >= self.next_ns;
        if is_now {
            self.next_ns = now_ns + self.period_ns;
        }
        is_now
    }
}

impl Node {
    /// Waits until the next tick is due.
    async fn rest_until_tick(&self) {
        // Stored before the checks below: `want_ticks` reads it after an operation is queued.
        self.is_at_rest.store(true, Ordering::SeqCst);
        let does_anybody_wait = self.paths.is_unsettled()
            || self.keyspace().is_none_or(|keyspace| keyspace.replicas.is_any_busy())
            || self.inboxes.iter().any(|inbox| inbox.is_waiting.load(Ordering::SeqCst));
        if !does_anybody_wait {
            tokio::select! {
                biased;
                () = self.tick_wanted.notified() => {}
                () = self.options.grid.wait(TICK_AT_REST) => {}
            }
            if !self.is_at_rest.swap(false, Ordering::SeqCst) {
                sleep(TICK).await;
            }
            return;
        }
        self.is_at_rest.store(false, Ordering::SeqCst);
        sleep(TICK).await;
    }
}

/// Advances the time of replicas and workers.
pub(super) async fn tick(node: Arc<Node>, control: Control, reception: Arc<PeerHandler>) {
    let mut contact = Periodic::every(CONTACT_PERIOD);
    let mut rest = Periodic::every(REST_PERIOD);
    let mut condition = Periodic::every(CONDITION_PERIOD);
    let mut lives = Periodic::every(INCARNATIONS_PERIOD);
    let mut operations = 0;
    let mut looked_ns = reception.now_ns();
    let mut is_off = false;
    loop {
        node.rest_until_tick().await;
        let now_ns = reception.now_ns();
        node.partition_prefix.set_now(Nanos(now_ns));
        if let Some(keyspace) = node.keyspace() {
            // `now_ns` precedes the lease's age: a pause makes the contact older, never newer.
            if contact.is_now(now_ns)
                && let Some(age) = control.lease()
                && node.learned_ver.load(Ordering::Acquire) >= control.map().ver()
            {
                keyspace.replicas.contact(now_ns.saturating_sub(age.as_nanos() as u64));
            }
            reception.with_replica_context(|replica_ctx| {
                keyspace.replicas.tick_busy(replica_ctx);
                if rest.is_now(now_ns) {
                    keyspace.replicas.tick_silent(replica_ctx);
                }
            });
        }
        if condition.is_now(now_ns) {
            let all = node.metrics.direct.load(Ordering::Relaxed)
                + node
                    .keyspace()
                    .map_or(0, |s| s.replicas.metrics.received.load(Ordering::Relaxed));
            let elapsed_ms = (now_ns - looked_ns) / 1_000_000;
            let load = (all - operations).saturating_mul(1000) / elapsed_ms.max(1);
            let load = u32::try_from(load).unwrap_or(u32::MAX);
            (operations, looked_ns) = (all, now_ns);
            // Other nodes learn this besides the map's state of the node and its copies.
            let is_ready = node.keyspace().is_some()
                && hears_control(control.lease())
                && !node.has_stopped.load(Ordering::Relaxed);
            control.set_condition(is_ready, load);
            send_clocks(&node, &control, now_ns, &mut is_off);
        }
        if lives.is_now(now_ns)
            && let Some(keyspace) = node.keyspace()
        {
            let map = control.map();
            if node.learned_ver.load(Ordering::Acquire) >= map.ver() {
                end_incarnations(&node, &keyspace.replicas, &map, &reception);
            }
        }
        node.tick_data_links(reception.now_ns());
        if node.paths.is_unsettled() {
            let is_alone = control.contact().is_none_or(|age| age >= ALONE);
            node.update_reachability(reception.now_ns(), Some(is_alone), |_| {});
        }
        node.ticks.fetch_add(1, Ordering::AcqRel);
        for inbox in &node.inboxes {
            if inbox.is_waiting.load(Ordering::Acquire) {
                inbox.wake();
            }
        }
    }
}

/// Reports the offsets of clocks, and logs when this node's clock is off, or right again.
fn send_clocks(node: &Node, control: &Control, now_ns: u64, was_off: &mut bool) {
    let (me, _) = node.me();
    let mut clocks = node.clocks.lock().all(now_ns);
    clocks.insert(me, 0);
    let leader = control.leader();
    let before = was_off.then_some(me).into_iter().collect();
    let is_off = clocks::off(&clocks, leader, &before).contains(&me);
    if is_off != *was_off {
        *was_off = is_off;
        let ahead_ms = clocks::common_ms(&clocks, leader).map_or(0, i64::saturating_neg);
        if is_off {
            tracing::warn!(
                ahead_ms,
                "this node's clock is off, so it becomes primary last: correct its time"
            );
        } else {
            tracing::info!(ahead_ms, "this node's clock is right again");
        }
    }
    control.set_clocks(clocks);
}
