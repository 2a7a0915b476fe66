//! Single keys, nodes and settings as an operator asks for and changes them.

use serde::Serialize;

use super::{Actor, Answer, MatchView};

/// The state of the server.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ServerStatus {
    /// The version.
    pub version: String,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// `alone` or `node`.
    pub role: &'static str,
    /// The node's id, in a cluster that it has joined.
    pub node: Option<String>,
    /// The addresses for clients.
    pub listeners: Vec<String>,
    /// Memory that counts towards the cap, in bytes.
    pub memory_used_bytes: u64,
    /// The memory cap, in bytes.
    pub memory_limit_bytes: u64,
    /// Items and states of limits.
    pub items: u64,
    /// Open connections of clients.
    pub connections: u64,
    /// The limit of connections.
    pub connections_max: u64,
    /// Requests a second, over the last second.
    pub requests_per_s: f64,
    /// Requests a second, over the last minute.
    pub requests_per_s_minute: f64,
    /// Denials a second, over the last minute.
    pub denied_per_s_minute: f64,
    /// Faults, each a sentence for an operator.
    pub faults: Vec<String>,
    /// Whether keys are shown as hashes.
    pub keys_hashed: bool,
}

/// The verdict on a key, by peek: nothing is charged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KeyVerdict {
    /// Whether an attempt of the cost would pass. In a shadow it always does.
    pub allowed: bool,
    /// Whether the policy refuses the attempt, or would if its limit were not in shadow.
    pub would_refuse: bool,
    /// Units left.
    pub remaining: u64,
    /// Units of the whole limit.
    pub limit: u64,
    /// The time after which the attempt would pass, in milliseconds; `None`: it passes now, or
    /// never.
    pub retry_ms: Option<u64>,
    /// The time until the key is as good as new, in milliseconds.
    pub reset_ms: u64,
}

/// A counted key with its limit and its verdict.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KeyStanding {
    /// The name of the limit.
    pub limit: String,
    /// The counted key.
    pub key: String,
    /// The policy in force.
    pub policy: String,
    /// Whether the limit is in shadow: its policy only watches.
    pub shadow: bool,
    /// The units that the attempt would be charged on this key.
    pub cost: u64,
    /// Milliseconds for which they would be held, if a rule says so.
    pub hold_ms: Option<u64>,
    /// The verdict; `None` with the reason in `fault`.
    pub verdict: Option<KeyVerdict>,
    /// The reason why there is no verdict.
    pub fault: Option<String>,
    /// The node that owns the key, in a cluster.
    pub owner: Option<String>,
    /// The nodes that hold copies, in a cluster.
    pub copies: Vec<String>,
}

/// A ban of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KeyBan {
    /// The name of the limit whose ban it is.
    pub limit: String,
    /// The time until an attempt may pass again, in milliseconds; `None`: the ban only shows, as
    /// the limit is a shadow.
    pub ends_ms: Option<u64>,
}

/// The reasons behind a verdict.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ExplainView {
    /// The cost of the attempt.
    pub cost: u64,
    /// The limit of the key.
    pub matched: MatchView,
    /// The key itself first, then its parents; empty if it is not limited.
    pub standings: Vec<KeyStanding>,
    /// Whether an attempt would pass: no standing refuses it. `None`: some cannot be told.
    pub allowed: Option<bool>,
    /// The names of the limits that refuse it; never one in shadow.
    pub refused_by: Vec<String>,
    /// The names of the limits in shadow that would refuse it.
    pub shadow_refused_by: Vec<String>,
    /// The time after which it would pass, in milliseconds; `None`: now, or never.
    pub retry_ms: Option<u64>,
    /// The ban of the key or of a parent; of several the one that refuses for longest.
    pub ban: Option<KeyBan>,
    /// The plain value of a key that is not limited.
    pub value: Option<String>,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NodeView {
    /// Its id, such as `n1`.
    pub id: String,
    /// Its name in clients' server lists.
    pub ring_name: String,
    /// Its address for clients.
    pub client_address: String,
    /// Its zone.
    pub zone: String,
    /// Its weight.
    pub weight: u32,
    /// `joining`, `active`, `draining` or `dead`.
    pub state: String,
    /// Partitions that it owns.
    pub primaries: u64,
    /// Other copies in sync.
    pub backups: u64,
    /// Copies that it receives.
    pub learners: u64,
    /// Time since its last heartbeat, in milliseconds, if this node knows.
    pub heard_ms_ago: Option<u64>,
    /// Milliseconds by which its clock is ahead of most nodes', if known.
    pub clock_offset_ms: Option<i64>,
    /// Its operations a second, if this node knows.
    pub ops_per_second: Option<u64>,
    /// Whether the link to it is up; `None` for the node itself.
    pub is_up: Option<bool>,
    /// Whether it is the node that answers.
    pub is_self: bool,
    /// Whether it leads the control plane.
    pub is_leader: bool,
    /// The incarnation, which drain and forget compare.
    pub incarnation: u64,
}

/// The nodes and settings of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NodesView {
    /// The nodes, by id.
    pub nodes: Vec<NodeView>,
    /// Partitions in all.
    pub partitions: u64,
    /// Partitions with fewer copies than wanted.
    pub below_replicas: u64,
    /// Partitions without a living primary.
    pub unavailable: u64,
    /// Partitions that move.
    pub moving: u64,
    /// Settings: names and values.
    pub settings: Vec<(String, String)>,
    /// Whether the next node may be restarted; the reason why not.
    pub not_safe: Option<String>,
}

/// Asks about single keys, nodes and settings, and changes them.
pub trait Operator {
    /// Returns the state of the server.
    fn status(&self) -> ServerStatus;

    /// Returns the reasons behind the verdict on a key. The owner answers.
    fn explain(&self, key: Vec<u8>, cost: u64) -> Answer<'_, ExplainView>;

    /// Forgets the state of a key, so that it is as good as new. False: there was none.
    fn reset_key(&self, key: Vec<u8>, actor: Actor) -> Answer<'_, bool>;

    /// Gives units back to a limited key.
    fn refund_key(&self, key: Vec<u8>, units: u64, actor: Actor) -> Answer<'_, ()>;

    /// Returns the nodes; `None` without a cluster.
    fn nodes(&self) -> Option<NodesView>;

    /// Asks a node to give its copies away.
    fn drain_node(&self, node: String, actor: Actor) -> Answer<'_, ()>;

    /// Removes a node that will not come back.
    fn forget_node(&self, node: String, actor: Actor) -> Answer<'_, ()>;

    /// Changes a setting of the cluster.
    fn put_setting(&self, name: String, value: String, actor: Actor) -> Answer<'_, ()>;

    /// Changes the level of the log, as `verbosity` does.
    fn set_log_level(&self, level: u32, actor: Actor) -> Answer<'_, ()>;

    /// Returns the configuration as a file, secrets masked.
    fn configuration(&self) -> String;
}
