//! The clusters that a run measures: the program, the number of nodes, the flags.
//!
//! Here: the table of shapes. Not here: their processes (`nodes`), the measured requests
//! (`cluster`).

use std::path::Path;

use crate::dialect::Dialect;

/// A cluster to measure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) nodes: usize,
    /// Worker threads of a node.
    pub(super) workers: usize,
    pub(super) kind: Kind,
    pub(super) routes: &'static [Route],
}

/// The program that the nodes of a shape run.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Tollgate without a cluster.
    Lone,
    /// A Tollgate cluster with these flags.
    Cluster(&'static str),
    /// A Tollgate cluster with these flags, and TLS between the nodes.
    Secured(&'static str),
    /// The floor of a cluster (`bin/cluster_floor`) with this number of copies.
    Floor(u8),
    /// This program of the Redis family: the first node is primary, the others are its replicas.
    Redis(&'static str, Dialect),
}

/// The node to which the generator sends a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Owner,
    Another,
}

impl Kind {
    pub(super) fn dialect(self) -> Dialect {
        match self {
            Self::Redis(_, dialect) => dialect,
            Self::Floor(_) => Dialect::Floor,
            _ => Dialect::Tollgate,
        }
    }

    pub(super) fn is_redis(self) -> bool {
        matches!(self, Self::Redis(..))
    }

    pub(super) fn is_floor(self) -> bool {
        matches!(self, Self::Floor(_))
    }

    /// Whether the program is installed.
    pub(super) fn is_installed(self) -> bool {
        match self {
            Self::Redis(program, _) => Path::new(program).exists(),
            Self::Floor(_) => Path::new(FLOOR).exists(),
            _ => true,
        }
    }
}

const DIRECT: &[Route] = &[Route::Owner];
const BOTH: &[Route] = &[Route::Owner, Route::Another];
const ONE: Kind = Kind::Cluster("--replicas 1");
const REPLICA: Kind = Kind::Cluster(TWO_COPIES);
const TWO_COPIES: &str = "--replicas 2 --ack replica";
const OWNER: Kind = Kind::Cluster("--replicas 2 --ack owner");
const THREE: Kind = Kind::Cluster("--replicas 3 --ack replica");
/// The program of the floor.
pub(super) const FLOOR: &str = "target/release/cluster_floor";
const REDIS: &str = "/usr/bin/redis-server";
const VALKEY: &str = "/usr/bin/valkey-server";

const fn shape(name: &'static str, nodes: usize, kind: Kind, routes: &'static [Route]) -> Shape {
    Shape { name, nodes, workers: 1, kind, routes }
}

const fn with_two_workers(shape: Shape) -> Shape {
    Shape { workers: 2, ..shape }
}

/// All shapes, which a run measures unless it names some.
pub(super) const SHAPES: &[Shape] = &[
    shape("no cluster", 1, Kind::Lone, DIRECT),
    shape("1 node", 1, ONE, DIRECT),
    shape("2 nodes, R=1", 2, ONE, BOTH),
    shape("2 nodes, R=2 replica", 2, REPLICA, BOTH),
    shape("2 nodes, R=2 replica, TLS", 2, Kind::Secured(TWO_COPIES), BOTH),
    shape("2 nodes, R=2 owner", 2, OWNER, DIRECT),
    shape("3 nodes, R=1", 3, ONE, BOTH),
    shape("3 nodes, R=2 replica", 3, REPLICA, BOTH),
    shape("3 nodes, R=2 owner", 3, OWNER, DIRECT),
    shape("3 nodes, R=3 replica", 3, THREE, BOTH),
    with_two_workers(shape("no cluster, 2 workers", 1, Kind::Lone, DIRECT)),
    with_two_workers(shape("2 nodes, R=2 replica, 2 workers", 2, REPLICA, BOTH)),
    shape("the floor: 2 nodes, R=1", 2, Kind::Floor(1), BOTH),
    shape("the floor: 2 nodes, R=2 replica", 2, Kind::Floor(2), BOTH),
    shape("Redis", 1, Kind::Redis(REDIS, Dialect::Redis), DIRECT),
    shape("Redis and a replica", 2, Kind::Redis(REDIS, Dialect::Redis), DIRECT),
    shape("Redis and a replica, WAIT 1", 2, Kind::Redis(REDIS, Dialect::RedisWait), DIRECT),
    shape("Valkey and a replica", 2, Kind::Redis(VALKEY, Dialect::Redis), DIRECT),
    shape("Valkey and a replica, WAIT 1", 2, Kind::Redis(VALKEY, Dialect::RedisWait), DIRECT),
];

/// The names of all shapes.
pub(super) fn names() -> Vec<&'static str> {
    SHAPES.iter().map(|shape| shape.name).collect()
}
