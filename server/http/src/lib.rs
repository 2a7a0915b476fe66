//! The admin listener: health, metrics, the API and access control over HTTP/1.1.
//!
//! Here: routes, the text of metrics, tokens, sessions, and the listener with its bounds. Not here:
//! what the server knows about itself. It answers through one trait, [`AdminHost`], and no shard,
//! client session or consensus is visible here.

mod access;
mod api;
mod app;
mod body;
mod caller;
mod diff;
#[cfg(test)]
mod fake_host;
mod health;
mod host;
mod listener;
mod metrics;
mod problem;
mod routes;
mod scope;
mod sessions;
mod streams;
mod tls;
mod tokens;
mod traffic;
mod ui;

pub use access::{AUDIT, Access};
pub use host::{
    Actor, AdminHost, Answer, ChangeView, ChangedLimit, Check, ExplainView, HotKey, HotKeys,
    HotKind, ImportMode, ImportPlan, KeyBan, KeyStanding, KeyVerdict, LatencyView, LimitActivity,
    LimitChange, LimitReport, LimitView, LimitsService, LivenessFuture, MatchView, NodeView,
    NodesView, Observer, Operator, OverrideChange, OverrideView, ParentView, Scope, SeriesPoint,
    ServerRates, ServerStatus, ServiceError, TailEvent, TailStream, TryResult, TryShare, Via,
};
pub use listener::{AdminListener, CONNECTIONS_MAX, serve};
pub use metrics::{Labels, MetricFamily, MetricKind, Sample, SampleSource, SampleValue};
pub use routes::router;
pub use tls::{TlsError, TlsSettings, chain_expiry_s, tls_settings};
pub use tokens::{TokenLine, TokenRole, Tokens, TokensError, new_token};
pub use traffic::TlsFigures;
