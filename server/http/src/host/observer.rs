//! Observations: hot keys, series, the tail of denials, and what another limit would have done.

use serde::Serialize;
use tokio::sync::mpsc;

use super::Answer;

/// The requests that a list of hot keys counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HotKind {
    /// Requests on any key.
    Taken,
    /// Denied attempts.
    Denied,
    /// Attempts that passed and that a shadow limit would have denied.
    Shadow,
}

/// The nodes that are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// This node.
    Node,
    /// All nodes; the same as `Node` without a cluster.
    Cluster,
}

/// A hot key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HotKey {
    /// The key as shown: hashed if the server hides keys, and marked if it was cut.
    pub key: String,
    /// The name of the limit of the last sample; none for a plain key.
    pub limit: Option<String>,
    /// Requests a second over the last one to two minutes: an upper bound of what the samples say.
    pub rate: f64,
    /// A lower bound of the same. Of requests at most one of 64 is a sample, so both are
    /// estimates.
    pub rate_at_least: f64,
}

/// The hottest keys, hottest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HotKeys {
    /// The keys.
    pub keys: Vec<HotKey>,
    /// The time that the rates cover, in milliseconds.
    pub span_ms: u64,
    /// Samples that were dropped in this time, because a ring was full.
    pub dropped: u64,
    /// Nodes that did not answer within a second.
    pub missing: Vec<String>,
}

/// A minute or an hour of a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SeriesPoint {
    /// Its start, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Attempts that were allowed, without shadow denials.
    pub allowed: u64,
    /// Attempts that were denied.
    pub denied: u64,
    /// Attempts that passed and that a shadow limit would have denied.
    pub shadow_denied: u64,
    /// Units of the attempts that passed, those of shadow denials included.
    pub units: u64,
}

/// The figures of a limit over some time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LimitReport {
    /// The name of the limit.
    pub limit: String,
    /// The time that the figures cover, in minutes.
    pub minutes: u64,
    /// Attempts that were allowed, without shadow denials.
    pub allowed: u64,
    /// Attempts that were denied.
    pub denied: u64,
    /// Attempts that passed and that a shadow limit would have denied.
    pub shadow_denied: u64,
    /// Allowed attempts after which at least 80 % was used, since the start.
    pub near: u64,
    /// Units of the attempts that passed, those of shadow denials included.
    pub units: u64,
    /// Keys of which the limit holds a state.
    pub active_keys: u64,
    /// The keys with the most denials now.
    pub top_denied: Vec<HotKey>,
    /// The keys with the most shadow denials now.
    pub top_shadow: Vec<HotKey>,
    /// The keys with the most requests now.
    pub top_taken: Vec<HotKey>,
    /// Minutes, oldest first; hours if `minutes` is above 60.
    pub series: Vec<SeriesPoint>,
}

/// The recent decisions of a limit, for a row of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitActivity {
    /// The last 60 s, as far as whole minutes tell: the present one, and the part of the one
    /// before that lies within the 60 s, as if its decisions were spread evenly.
    pub last_minute: SeriesPoint,
    /// The minutes of the last hour, oldest first.
    pub minutes: Vec<SeriesPoint>,
    /// Allowed attempts after which at least 80 % was used, since the start.
    pub near: u64,
}

/// Rates of the server over the last minutes, for the overview.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ServerRates {
    /// Requests a second, every ten seconds, oldest first.
    pub requests: Vec<f64>,
    /// Decisions a second that passed, shadow denials included.
    pub allowed: Vec<f64>,
    /// Denied decisions a second.
    pub denied: Vec<f64>,
}

/// The time from a request's arrival to its reply, in microseconds, over the last one to two
/// minutes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LatencyView {
    /// Requests that were timed.
    pub count: u64,
    /// Half of them took at most this long.
    pub p50_us: u64,
    /// 99 of 100.
    pub p99_us: u64,
    /// 999 of 1,000.
    pub p999_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// An event of the tail.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TailEvent {
    /// `denied`, `shadow`, `limit-changed` or `node`.
    pub kind: &'static str,
    /// Its time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The key as shown, or the name of the node.
    pub key: String,
    /// The name of the limit.
    pub limit: Option<String>,
    /// The cost of the attempt.
    pub cost: u64,
    /// The time after which the attempt would pass, in milliseconds, if known.
    pub retry_ms: Option<u64>,
    /// The number of like events that this one stands for.
    pub weight: u64,
}

/// Events as they come. A slow reader loses events; `lost` of the message says how many.
pub struct TailStream {
    /// Events since the last message, with the number of events lost before them.
    pub events: mpsc::Receiver<(u64, Vec<TailEvent>)>,
}

/// The share of denied attempts under one limit, with its standard error over keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TryShare {
    /// From 0 to 1.
    pub denied: f64,
    /// The standard error; absent below 30 keys.
    pub standard_error: Option<f64>,
}

/// The effect that a limit would have had on recorded traffic.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TryResult {
    /// The time that the recording covers, in milliseconds.
    pub span_ms: u64,
    /// Recorded keys that the present or the new limit binds.
    pub keys: u64,
    /// Recorded requests of these keys.
    pub requests: u64,
    /// All traffic is about this many times the recorded traffic.
    pub scale: f64,
    /// Under the limit in force.
    pub now: TryShare,
    /// Under the text that was given.
    pub then: TryShare,
    /// Keys that only the new limit denies, at most 20.
    pub newly_denied: Vec<String>,
    /// Keys that only the present limit denies, at most 20.
    pub newly_allowed: Vec<String>,
    /// The share of recorded verdicts that the replay of the present limit repeats; from 0 to 1.
    pub fidelity: f64,
    /// `partial` if a limit has parents, which are replayed with the share of the recorded keys.
    pub parents: Option<&'static str>,
    /// `partial` if the text may count keys as one that are counted apart today: only the recorded
    /// ones of them are replayed.
    pub counted_keys: Option<&'static str>,
    /// True if there are fewer than 30 keys, so that shares say little.
    pub too_few: bool,
    /// Nodes that did not answer.
    pub missing: Vec<String>,
}

/// Tells what the server has seen.
pub trait Observer {
    /// Returns the `count` hottest keys; of one limit, if named.
    fn hot_keys(
        &self,
        kind: HotKind,
        limit: Option<String>,
        count: usize,
        scope: Scope,
    ) -> Answer<'_, HotKeys>;

    /// Returns the figures of a limit over `minutes`, at most 2,880; `None`: there is no such
    /// limit, or it is not in force.
    fn report(&self, limit: &str, minutes: u64) -> Option<LimitReport>;

    /// Returns the recent decisions of a limit, without its keys: cheap enough for each row of a
    /// list, as a report is not. `None`: there is no such limit, or it is not in force.
    fn activity(&self, limit: &str) -> Option<LimitActivity>;

    /// Returns the rates of the last ten minutes.
    fn rates(&self) -> ServerRates;

    /// Returns the times of requests.
    fn latency(&self) -> LatencyView;

    /// Subscribes to the tail: the last events first, then new ones as they come.
    fn tail(&self) -> TailStream;

    /// Replays the recorded traffic of the last `minutes` under the text of a limit.
    fn try_limit(
        &self,
        name: String,
        toml: String,
        minutes: u64,
        scope: Scope,
    ) -> Answer<'_, TryResult>;
}
