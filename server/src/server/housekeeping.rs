//! Housekeeping: the sweep of items, the end of idle connections, the clock.
//!
//! Not here: signals (`signals`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use control::GRID_STEP;
use engine::{Nanos, Now};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::observer::ObserverBell;
use crate::node;
#[cfg(feature = "simulation")]
use crate::node::{Node, leave};
use crate::runtime::connections::HangUp;
use crate::runtime::service::Service;

/// Period of the sweep and the idle check.
const HOUSEKEEPING_PERIOD: Duration = GRID_STEP;
/// Pause between two steps of a sweep, of which a period has at most 32, so that a worker on the
/// same processor can run.
const SWEEP_PAUSE: Duration = Duration::from_millis(2);
/// Some work is done once in this many periods: once a second.
const RARE_PERIODS: u32 = 4;
/// The number of periods between two looks at the times of all partitions: 4 s.
const SWEEP_TIME_PERIODS: u32 = 16;
/// The sweep visits every item once in this many periods: half a minute.
const SWEEP_PARTS: usize = 117;

/// Runs housekeeping until the stop request, for a node without signals and files.
#[cfg(feature = "simulation")]
pub(crate) async fn run_housekeeping_until_stopped(service: &Service, node: Option<&Node>) {
    tokio::select! {
        biased;
        () = service.stopped() => {}
        why = leave::until_removed(node) => tracing::info!(why, "stopping"),
        never = run_housekeeping(service, None) => match never {},
    }
}

/// Sweeps items, ends idle connections and rings the observer's bell, forever.
pub(super) async fn run_housekeeping(service: &Service, bell: Option<&ObserverBell>) -> Infallible {
    let (mut expiry, mut periods): (Option<JoinHandle<()>>, u32) = (None, 0);
    let mut ahead_ns = 0;
    let mut tick = service.grid().ticks(HOUSEKEEPING_PERIOD);
    loop {
        tick.tick().await;
        service.clock().follow_unix_time();
        service.note_housekeeping();
        end_idle(service);
        // In a cluster the leader does it.
        let is_due = periods.is_multiple_of(RARE_PERIODS) && service.node().is_none();
        if is_due && expiry.as_ref().is_none_or(JoinHandle::is_finished) {
            let (store, now_ms) = (service.limits_store(), service.clock().now().unix_ms);
            expiry = store.has_expired(now_ms).then(|| {
                let store = Arc::clone(store);
                tokio::spawn(async move { store.expire(now_ms).await })
            });
        }
        service.delays().wake(service.clock().now().mono.millis());
        service.shards().sweep_ids(service.clock().now());
        // Only items before the latest time of any partition can have expired. Meanwhile that time
        // runs no faster than the clock, unless a partition with a later time comes: its items
        // wait for the next look.
        let now = service.clock().now();
        if periods.is_multiple_of(SWEEP_TIME_PERIODS) {
            ahead_ns = node::sweep_ahead_ns(service, now);
        }
        periods = periods.wrapping_add(1);
        let sweep_now = Now { mono: Nanos(now.mono.0.wrapping_add(ahead_ns)), ..now };
        let mut first = 0;
        loop {
            // In each step: a sweep may last longer than the rings have room for.
            if let Some(bell) = bell {
                bell.ring_if_due();
            }
            let Some(next) = service.shards().sweep(sweep_now, SWEEP_PARTS, first) else { break };
            first = next;
            sleep(SWEEP_PAUSE).await;
        }
    }
}

/// Disconnects clients that have been idle for too long.
fn end_idle(service: &Service) {
    let Some(timeout) = service.config().idle_timeout else { return };
    let now = service.clock().now();
    for connection in service.connections().list() {
        let idle = connection.idle_seconds(now.mono.millis());
        if idle >= timeout.as_secs() && connection.ending() == HangUp::Never {
            service.connections().note_idle_kick();
            connection.end(HangUp::Now);
        }
    }
}
