//! The answers of the server to its admin listener.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::sleep;
use tollgate_http::{AdminHost, Check, LivenessFuture, MetricFamily};

use super::running::RunningChanges;
use super::{memcached, metrics};
use crate::io::worker_handle::WorkerProbe;
use crate::node::Node;
use crate::runtime::service::{Service, Stage};

/// A part of the server that does not answer within this time is not alive.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// The server, as the admin listener asks it.
pub(crate) struct ServerHost {
    pub(super) service: Arc<Service>,
    pub(super) node: Option<Arc<Node>>,
    pub(super) running: RunningChanges,
    /// The start of the server, in seconds since the Unix epoch.
    start_seconds: f64,
    /// Empty until the workers run.
    workers: OnceLock<Vec<WorkerProbe>>,
}

impl ServerHost {
    /// Creates the host of a server whose workers do not run yet.
    pub(crate) fn new(service: Arc<Service>, node: Option<Arc<Node>>) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds need 41 bits")]
        let start_seconds = service.clock().now().unix_ms as f64 / 1e3;
        let (running, workers) = (RunningChanges::default(), OnceLock::new());
        Self { service, node, running, start_seconds, workers }
    }

    /// Returns the workers; none before they run.
    pub(super) fn workers(&self) -> &[WorkerProbe] {
        self.workers.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the state that all threads share.
    pub(super) fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Sets the workers, once.
    pub(crate) fn set_workers(&self, workers: Vec<WorkerProbe>) {
        let _ = self.workers.set(workers);
    }
}

impl AdminHost for ServerHost {
    fn liveness(&self) -> LivenessFuture<'_> {
        Box::pin(async {
            let pings: Vec<_> = self.workers().iter().map(WorkerProbe::ping).collect();
            let mut checks = Vec::with_capacity(pings.len() + 1);
            // One time for all: they answer side by side.
            let mut time_over = pin!(sleep(ANSWER_MAX));
            for (index, ping) in pings.into_iter().enumerate() {
                // A worker that has ended, as all do at last, is not a worker that hangs.
                let fault = tokio::select! {
                    biased;
                    _ = ping => None,
                    () = &mut time_over => Some("no answer within a second".to_owned()),
                };
                checks.push(Check::new(format!("worker-{index}"), fault));
            }
            if self.service.stage() == Stage::Serving {
                let age_ms = self.service.housekeeping_age_ms();
                let is_late = u128::from(age_ms) > ANSWER_MAX.as_millis();
                let fault = is_late.then(|| format!("did not run for {age_ms} ms"));
                checks.push(Check::new("housekeeping", fault));
            }
            checks
        })
    }

    fn readiness(&self) -> Vec<Check> {
        let fault = match self.service.stage() {
            Stage::Starting => Some("the server is starting"),
            Stage::Serving => None,
            Stage::Draining => Some("the server is stopping"),
        };
        let mut checks = vec![Check::new("serving", fault.map(str::to_owned))];
        if let Some(node) = &self.node {
            let now = self.service.clock().now();
            let fault = node.with_view(now, |view| view.not_ready().map(str::to_owned));
            let fault = fault.unwrap_or_else(|| Some("it seeks a cluster".to_owned()));
            checks.push(Check::new("cluster", fault));
        }
        checks
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        let is_ready = self.readiness().iter().all(Check::holds);
        metrics::all(&self.service, self.node.as_deref(), self.start_seconds, is_ready)
    }

    fn memcached_metrics(&self) -> Vec<MetricFamily> {
        memcached::all(&self.service)
    }
}
