//! The server behind the admin listener.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;

use crate::metrics::MetricFamily;

/// One condition of the server's health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The condition's name, such as `worker-0`. Stable: scripts read it.
    pub name: Cow<'static, str>,
    /// The reason why it does not hold; `None` while it holds.
    pub fault: Option<String>,
}

impl Check {
    /// Returns a condition that holds if `fault` is `None`.
    #[must_use]
    pub fn new(name: impl Into<Cow<'static, str>>, fault: Option<String>) -> Self {
        Self { name: name.into(), fault }
    }

    /// Returns whether the condition holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.fault.is_none()
    }
}

/// The checks of a liveness probe, which take up to a second.
pub type LivenessFuture<'a> = Pin<Box<dyn Future<Output = Vec<Check>> + Send + 'a>>;

/// Answers the requests of the admin listener. All methods run on the listener's thread.
pub trait AdminHost: Send + Sync + 'static {
    /// Checks that every worker and the housekeeping task run. Ends within about a second.
    fn liveness(&self) -> LivenessFuture<'_>;

    /// Returns the conditions under which clients should be sent here.
    fn readiness(&self) -> Vec<Check>;

    /// Returns all metrics at this moment.
    fn metrics(&self) -> Vec<MetricFamily>;

    /// Returns the metrics of Prometheus's exporter for memcached, under its names.
    fn memcached_metrics(&self) -> Vec<MetricFamily>;
}
