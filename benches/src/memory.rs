//! A run that weighs: what a counter with a time to live takes of a server's memory.
//!
//! Here: filling, and resident memory before and after. Not here: speed (`compare`).
//!
//! A counter is made as clients make one, `set k 0 3600 1` and then `incr`. One server runs at a
//! time. Resident memory is the kernel's `VmRSS`, so slack of tables and arenas counts as far as
//! its pages were touched; `VmHWM` shows what growing took at its worst.

use crate::cell::{for_all_keys, read_all_back};
use crate::cpu::Cores;
use crate::error::LoadError;
use crate::exchange::Tally;
use crate::keys::Space;
use crate::ledger::Books;
use crate::op::Op;
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Report, Weight};
use crate::server::Server;

/// Megabytes that `{memory}` in a server's command stands for: more than any fill needs.
const MEMORY_MB: u32 = 4096;
/// Time to live of the counters, in seconds: longer than any run.
const EXPTIME: u32 = 3600;

/// Weighs every server and writes it into `report`.
///
/// # Errors
///
/// A server that does not start, goes away or stalls.
pub fn run(
    options: &Options,
    cores: Option<&Cores>,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), LoadError> {
    for recipe in &options.servers {
        let server = Server::start(recipe, MEMORY_MB, cores)?;
        report.server(&server);
        let mut books = Books::new(options.keys(), 1, &[Space::Counter]);
        let mut tally = Tally::default();
        let (empty, _) = server.resident_bytes()?;
        let fill = Op::Fill { space: Space::Counter, exptime: EXPTIME };
        tally.add(for_all_keys(&server, &mut books, fill, "set", progress)?);
        let (set, _) = server.resident_bytes()?;
        let incr = Op::Incr { space: Space::Counter };
        tally.add(for_all_keys(&server, &mut books, incr, "incr", progress)?);
        let (counted, highest) = server.resident_bytes()?;
        tally.add(read_all_back(&server, &mut books, Space::Counter, progress)?);
        report.add_wrong(&server.name, tally.wrong, tally.samples);
        report.weights.push(Weight { counters: options.keys(), empty, set, counted, highest });
    }
    Ok(())
}
