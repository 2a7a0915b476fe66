//! What Tollgate shall reach beside its peers, and how far a run is from it.
//!
//! Here: the ratios of one run, taken within its rounds. Not here: how they are set as a table (`page`).

use super::MEMCACHED;
use crate::cell::Measurement;
use crate::compare::shape_of_share;
use crate::options::RateOf;
use crate::report::Report;
use crate::table::Ratio;

/// The connections of every cell.
pub const CONNECTIONS: u32 = 50;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figure {
    /// CPU of an operation at this pipeline.
    Cpu(u32),
    /// The 99th percentile of latency at this share of the load that a server can bear.
    P99(f64, RateOf, Stretches),
}

/// Which stretches of an open loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stretches {
    /// Those in which no thread [waited for a core](crate::disturbance).
    Undisturbed,
    /// All.
    All,
}

/// The most that a figure of ours may be of a peer's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// What is compared.
    pub figure: Figure,
    /// The kind of cell of ours.
    pub kind: &'static str,
    /// The server beside it.
    pub peer: &'static str,
    /// The kind of cell of the peer.
    pub peer_kind: &'static str,
    /// The ratio.
    pub most: f64,
}

const fn plain(kind: &'static str, pipeline: u32, most: f64) -> Target {
    Target { figure: Figure::Cpu(pipeline), kind, peer: MEMCACHED, peer_kind: kind, most }
}

const fn limit(kind: &'static str, pipeline: u32, peer: &'static str, most: f64) -> Target {
    Target { figure: Figure::Cpu(pipeline), kind, peer, peer_kind: "take-bucket", most }
}

const fn p99(of: RateOf, stretches: Stretches) -> Target {
    let figure = Figure::P99(0.7, of, stretches);
    Target { figure, kind: "incr", peer: MEMCACHED, peer_kind: "incr", most: 1.0 }
}

/// All of them.
pub const TARGETS: [Target; 21] = [
    plain("incr", 1, 0.72),
    plain("incr", 16, 0.30),
    plain("incr", 64, 0.20),
    plain("incr-hot", 16, 0.65),
    plain("get", 1, 0.78),
    plain("get", 16, 0.30),
    plain("get", 64, 0.25),
    plain("get100", 1, 0.25),
    plain("set", 1, 0.80),
    plain("set", 16, 0.40),
    plain("set", 64, 0.35),
    limit("take-bucket", 1, "redis-cell", 0.65),
    limit("take-bucket", 16, "redis-cell", 0.15),
    limit("take-bucket", 16, "redis", 0.06),
    limit("take-window", 1, "redis-cell", 0.65),
    limit("take-window", 16, "redis-cell", 0.15),
    limit("take-window", 16, "redis", 0.06),
    p99(RateOf::Slowest, Stretches::Undisturbed),
    p99(RateOf::Slowest, Stretches::All),
    p99(RateOf::Own, Stretches::Undisturbed),
    p99(RateOf::Own, Stretches::All),
];

/// Whether a target is about cells of this kind and shape.
#[must_use]
pub fn is_decided_by(kind: &str, shape: &str) -> bool {
    TARGETS.iter().any(|target| target.kind == kind && target.figure.shape() == shape)
}

impl Figure {
    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu(_) => "CPU",
            Self::P99(.., Stretches::Undisturbed) => "p99, undisturbed",
            Self::P99(.., Stretches::All) => "p99 of all",
        }
    }

    /// The shape of the cells that have it.
    #[must_use]
    pub fn shape(self) -> String {
        match self {
            Self::Cpu(pipeline) => format!("{CONNECTIONS}×{pipeline}"),
            Self::P99(share, of, _) => shape_of_share(CONNECTIONS, share, of),
        }
    }

    /// Its value in a measurement, in nanoseconds; `None` of a latency where all was disturbed.
    #[must_use]
    pub fn of(self, measurement: &Measurement) -> Option<f64> {
        match self {
            Self::Cpu(_) => Some(measurement.server_ns_per_op()),
            Self::P99(.., Stretches::Undisturbed) => measurement.undisturbed_ns(1),
            Self::P99(.., Stretches::All) => Some(measurement.latency_ns[1] as f64),
        }
    }
}

/// The ratio of a figure of one kind and server to that of another within each round; `None` when the run
/// has not both.
#[must_use]
pub fn ratio(
    report: &Report,
    shape: &str,
    (kind, server): (&str, &str),
    (peer_kind, peer): (&str, &str),
    figure: impl Fn(&Measurement) -> Option<f64>,
) -> Option<Ratio> {
    let own = report.rounds(kind, shape, server)?;
    let other = report.rounds(peer_kind, shape, peer)?;
    let pairs = own.iter().zip(other);
    Ratio::of(pairs.filter_map(|(own, other)| Some(figure(own)? / figure(other)?)))
}

impl Target {
    /// What a run came to with this server in our place.
    #[must_use]
    pub fn ratio(&self, report: &Report, server: &str) -> Option<Ratio> {
        let (own, other) = ((self.kind, server), (self.peer_kind, self.peer));
        let figure = |measurement: &Measurement| self.figure.of(measurement);
        ratio(report, &self.figure.shape(), own, other, figure)
    }
}
