//! Tollgate's goals beside its peers, and the distance of a run from them.
//!
//! Here: the ratios of one run, taken within its rounds. Not here: their table (`page`).

use crate::cell::Measurement;
use crate::lineup::{CONNECTIONS, MEMCACHED};
use crate::rate::{RateOf, shape_of_share};
use crate::report::Report;
use kit::table::Ratio;

/// A compared figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figure {
    /// CPU of an operation at this pipeline.
    Cpu(u32),
    /// The 99th percentile of latency at this share of the throughput that the [`RateOf`] names.
    P99(f64, RateOf, Stretches),
}

/// The stretches of an open loop that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stretches {
    /// Those in which no thread [waited for a core](crate::disturbance).
    Undisturbed,
    /// All.
    All,
}

/// The maximum of the ratio of our figure to a peer's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// The compared figure.
    pub figure: Figure,
    /// Our kind of cell.
    pub kind: &'static str,
    /// The peer.
    pub peer: &'static str,
    /// The kind of cell of the peer.
    pub peer_kind: &'static str,
    /// The maximum of the ratio.
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

/// All targets.
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

/// Whether a target refers to cells of this kind and shape.
#[must_use]
pub fn is_decided_by(kind: &str, shape: &str) -> bool {
    TARGETS.iter().any(|target| target.kind == kind && target.figure.shape() == shape)
}

impl Figure {
    /// The name of the figure.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu(_) => "CPU",
            Self::P99(.., Stretches::Undisturbed) => "p99, undisturbed",
            Self::P99(.., Stretches::All) => "p99 of all",
        }
    }

    /// The shape of the cells that have the figure.
    #[must_use]
    pub fn shape(self) -> String {
        match self {
            Self::Cpu(pipeline) => format!("{CONNECTIONS}×{pipeline}"),
            Self::P99(share, of, _) => shape_of_share(CONNECTIONS, share, of),
        }
    }

    /// Its value in a measurement, in nanoseconds; `None` for a latency if all was disturbed.
    #[must_use]
    pub fn of(self, measurement: &Measurement) -> Option<f64> {
        match self {
            Self::Cpu(_) => Some(measurement.server_ns_per_op()),
            Self::P99(.., Stretches::Undisturbed) => measurement.undisturbed_ns(1),
            Self::P99(.., Stretches::All) => Some(measurement.latency_ns[1] as f64),
        }
    }
}

/// The ratio of a figure of one kind and server to that of another within each round; `None` if the
/// run does not have both.
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
    /// The ratio in a run, with this server in place of ours.
    #[must_use]
    pub fn ratio(&self, report: &Report, server: &str) -> Option<Ratio> {
        let (own, other) = ((self.kind, server), (self.peer_kind, self.peer));
        let figure = |measurement: &Measurement| self.figure.of(measurement);
        ratio(report, &self.figure.shape(), own, other, figure)
    }
}
