//! A run beside the peers: memcached, Redis and the limiters, written as a page with pictures.
//!
//! Here: the servers, their requests and the order of the cells. Not here: how a request is written
//! (`dialect`), how a cell is measured (`compare`). In this folder:
//!
//! - Tollgate's goals: [`targets`]
//! - the output: [`page`], [`plots`]
//!
//! All kinds of cells take turns within a round, so that a verdict of one server can be compared
//! with another verb of another server. `benches/peers.sh` installs the servers.

pub mod page;
pub mod plots;
pub mod targets;

use std::path::Path;
use std::{fs, io};

use self::targets::{CONNECTIONS, is_decided_by};
use crate::compare::{Schedule, shape_of_share};
use crate::cpu::Cores;
use crate::error::LoadError;
use crate::op::Kind;
use crate::options::{Options, Rate, RateOf};
use crate::report::Report;
use crate::server::Recipe;
use kit::progress::Progress;

/// The name of Tollgate on the page.
pub const OURS: &str = "tollgate";
/// The server that memcached's verbs are compared with.
pub const MEMCACHED: &str = "memcached";
/// The bare server, a lower bound for counting over TCP.
pub const FLOOR: &str = "floor";

/// Each server has one thread where it can choose, the same memory, and writes nothing to a disk.
const SERVERS: [&str; 6] = [
    "memcached=memcached:/usr/bin/memcached -u root -t 1 -m {memory} -c 20000 -l 127.0.0.1 -p {port} -U 0",
    "redis=redis:/usr/bin/redis-server --port {port} --bind 127.0.0.1 --save --appendonly no \
     --maxmemory {memory}mb --maxmemory-policy allkeys-lru",
    "redis-cell=redis-cell:/usr/bin/redis-server --port {port} --bind 127.0.0.1 --save --appendonly no \
     --maxmemory {memory}mb --maxmemory-policy allkeys-lru \
     --loadmodule target/peers/redis-cell-0.2.2/libredis_cell.so",
    "throttlecrab=throttlecrab:target/peers/bin/throttlecrab-server --redis --redis-host 127.0.0.1 \
     --redis-port {port} --store-capacity 2000000 --log-level error",
    "floor=floor:target/release/floor {port}",
    "tollgate=target/release/tollgate -t 1 -m {memory} -c 20000 -l 127.0.0.1 -p {port}",
];

/// Verbs that memcached and Redis have.
pub const PLAIN: [&str; 5] = ["incr", "incr-hot", "get", "set", "get100"];
/// Cells of limits; a peer has the first, or both.
pub const LIMITS: [&str; 2] = ["take-bucket", "take-window"];
/// The open-loop cells, and the closed loop whose throughput their load refers to.
pub const OPEN: [(&str, RateOf); 3] =
    [("incr", RateOf::Slowest), ("incr", RateOf::Own), ("take-bucket", RateOf::Own)];
/// The open loop's load as a share of the closed loop's throughput.
pub const SHARES: [f64; 3] = [0.5, 0.7, 0.9];
/// The percentiles of a measurement.
const LATENCIES: [&str; 3] = ["p50", "p99", "p99.9"];
/// The pipeline of the closed loop whose throughput is the reference of the open one.
const OPEN_PIPELINE: u32 = 1;

/// The installed servers, and sentences about the others.
#[must_use]
pub fn servers() -> (Vec<Recipe>, Vec<String>) {
    let recipes = SERVERS.iter().filter_map(|recipe| recipe.parse::<Recipe>().ok());
    let (there, absent): (Vec<_>, Vec<_>) = recipes.partition(|recipe| recipe.missing().is_none());
    let sentence = |recipe: &Recipe| {
        let missing = recipe.missing().unwrap_or_default();
        format!("absent: {}, for there is no `{missing}`", recipe.name)
    };
    let sentences = absent.iter().map(sentence).collect();
    (there, sentences)
}

/// The kinds of cells.
#[must_use]
pub fn cells() -> Vec<String> {
    PLAIN.iter().chain(&LIMITS).map(ToString::to_string).collect()
}

/// Makes the run and writes it into `report`, which keeps finished measurements even after an
/// error.
///
/// # Errors
///
/// A server that does not start, ends or stalls.
pub fn run(
    options: &Options,
    cores: Option<&Cores>,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), LoadError> {
    report.notes.extend(servers().1);
    let kinds = options.kinds()?;
    let opened: Vec<(Kind, RateOf)> = OPEN
        .iter()
        .filter_map(|&(name, of)| {
            kinds.iter().find(|kind| kind.name == name).map(|&kind| (kind, of))
        })
        .collect();
    let mut schedule = Schedule::start(options, cores, progress, report)?;
    let shapes = options.connections.len() * options.pipelines.len();
    let count = |kind: Kind, of, rate| match rate {
        Rate::Share(share) if is_decided_by(kind.name, &shape_of_share(CONNECTIONS, share, of)) => {
            options.open_rounds()
        }
        _ => options.rounds(),
    };
    let open = opened.iter().map(|&(kind, of)| {
        let rounds = options.rate.iter().map(|&rate| count(kind, of, rate)).sum::<u32>();
        schedule.turns(&[kind]) * rounds as usize
    });
    schedule.planned =
        schedule.turns(&kinds) * shapes * options.rounds() as usize + open.sum::<usize>();
    for &connections in &options.connections {
        for &pipeline in &options.pipelines {
            schedule.side_by_side(&kinds, connections, pipeline)?;
        }
        for &(kind, of) in &opened {
            let count = |rate| count(kind, of, rate);
            schedule.open(kind, connections, OPEN_PIPELINE, of, count)?;
        }
    }
    schedule.read_back()
}

/// Writes the page and its pictures into `folder`.
///
/// # Errors
///
/// The errors of the files.
pub fn write(folder: &Path, report: &Report) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, svg) in plots::all(report).map_err(io::Error::other)? {
        fs::write(folder.join(name), svg)?;
    }
    fs::write(folder.join("peers.md"), page::render(report))
}
