//! The server behind the admin listener.
//!
//! Here: health and metrics, and the form of every answer. Not here: limits (`limits`), hot keys
//! and other observations (`observer`), single keys and nodes (`operator`).

mod limits;
mod observer;
mod operator;

use std::borrow::Cow;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use serde::Serialize;

pub use self::limits::{
    ChangeView, ChangedLimit, ImportMode, ImportPlan, LimitChange, LimitView, LimitsService,
    MatchView, OverrideChange, OverrideView, ParentView,
};
pub use self::observer::{
    HotKey, HotKeys, HotKind, LatencyView, LimitActivity, LimitReport, Observer, Scope,
    SeriesPoint, ServerRates, TailEvent, TailStream, TryResult, TryShare,
};
pub use self::operator::{
    ExplainView, KeyBan, KeyStanding, KeyVerdict, NodeView, NodesView, Operator, ServerStatus,
};
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

/// The result of a request, later.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, ServiceError>> + Send + 'a>>;

/// The surface through which a change came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// A page of the web UI.
    Ui,
    /// The HTTP API.
    Api,
    /// `tollgate limits` and its like, over the HTTP API.
    Cli,
    /// The limits file.
    File,
    /// `cluster limit` on the client port.
    ClientPort,
    /// The end of a time that was set.
    Expiry,
}

impl Via {
    /// Returns the word that history, logs and metrics show.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ui => "ui",
            Self::Api => "api",
            Self::Cli => "cli",
            Self::File => "file",
            Self::ClientPort => "client-port",
            Self::Expiry => "expiry",
        }
    }
}

/// The sender of a change, for history and audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The name of the token; `-` without tokens.
    pub name: String,
    /// The surface.
    pub via: Via,
    /// The address of the sender, if there is one.
    pub address: Option<IpAddr>,
    /// Whether the sender may change everything, such as adopt a limit of a file.
    pub is_admin: bool,
}

/// The reason why a request of the API was not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The thing is not there: 404.
    #[error("{0}")]
    NotFound(String),
    /// The request is wrong: 400; for a limit, 422 with the line of the first mistake.
    #[error("{detail}")]
    Invalid {
        /// The mistake.
        detail: String,
        /// The line of the limit's text, from 1.
        line: Option<usize>,
    },
    /// The request is right and not possible now: 409.
    #[error("{0}")]
    Conflict(String),
    /// The thing has changed since the sender read it: 412.
    #[error("it has version {0} now: read it again")]
    Changed(u64),
    /// A bound is reached: 507.
    #[error("{0}")]
    Full(String),
    /// The server cannot tell or change this at present: 503.
    #[error("{0}")]
    Unavailable(String),
}

/// Answers the requests of the admin listener. All methods run on the listener's thread, so none
/// may block; long work belongs on the blocking thread, behind an [`Answer`].
pub trait AdminHost: LimitsService + Observer + Operator + Send + Sync + 'static {
    /// Checks that every worker and the housekeeping task run. Ends within about a second.
    fn liveness(&self) -> LivenessFuture<'_>;

    /// Returns the conditions under which clients should be sent here.
    fn readiness(&self) -> Vec<Check>;

    /// Returns all metrics at this moment.
    fn metrics(&self) -> Vec<MetricFamily>;

    /// Returns the metrics of Prometheus's exporter for memcached, under its names.
    fn memcached_metrics(&self) -> Vec<MetricFamily>;
}
