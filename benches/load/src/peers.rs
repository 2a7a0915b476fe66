//! A run beside the peers: memcached, Redis and the limiters, written as a page with pictures.
//!
//! Here: the order of the cells. Not here: the servers and their requests (`lineup`), how a cell is
//! measured (`compare`). In this folder:
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

use self::targets::is_decided_by;
use crate::compare::Schedule;
use crate::cpu::Cores;
use crate::error::LoadError;
use crate::lineup::{CONNECTIONS, OPEN, servers};
use crate::op::Kind;
use crate::options::Options;
use crate::rate::{Rate, RateOf, shape_of_share};
use crate::report::Report;
use kit::progress::Progress;

/// The percentiles of a measurement.
const LATENCIES: [&str; 3] = ["p50", "p99", "p99.9"];
/// The pipeline of the closed loop whose throughput is the reference of the open one.
const OPEN_PIPELINE: u32 = 1;

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
