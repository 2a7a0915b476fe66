//! A run that measures memory: the resident bytes of a counter with a time to live, of a token
//! bucket and of an idle connection, and how many are freed on deletion.
//!
//! Here: filling, and resident memory before and after. Not here: speed (`compare`).
//!
//! A counter is made as clients make one, `set k 0 3600 1` and then `incr`. One server runs at a
//! time. Resident memory is the kernel's `VmRSS`, so the slack of tables and arenas counts as far
//! as its pages were touched; `VmHWM` is the peak, which growing determines. The kernel's own
//! memory for connections belongs to no server and is not included.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::cell::{for_all_keys, read_all_back};
use crate::cpu::Cores;
use crate::dialect::Request;
use crate::error::LoadError;
use crate::exchange::Tally;
use crate::keys::Space;
use crate::ledger::Books;
use crate::op::Op;
use crate::options::Options;
use crate::report::{Report, Weight};
use crate::server::{Recipe, Server};
use kit::progress::Progress;

/// The megabytes that replace `{memory}` in a server's command: more than any fill needs.
const MEMORY_MB: u32 = 4096;
/// Time to live of the counters, in seconds: longer than any run.
const EXPTIME: u32 = 3600;

/// Connections that are opened, send one request, and stay idle.
const IDLE_CONNECTIONS: u32 = 10_000;
/// The time that a server gets for background work after its last reply.
const SETTLE: Duration = Duration::from_secs(2);
/// The time that an allocator gets to free memory; some allocators delay it by ten seconds.
const GIVE_BACK: Duration = Duration::from_secs(20);
const COUNTER: Space = Space::Counter;

/// Measures the memory of every server and writes it into `report`.
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
    for recipe in &options.servers {
        let server = Server::start(recipe, MEMORY_MB, cores, false)?;
        report.server(&server);
        let mut books = Books::new(options.keys(), 1, &[COUNTER]);
        let mut tally = Tally::default();
        let (empty, _) = server.resident_bytes()?;
        let fill = Op::Fill { space: COUNTER, exptime: EXPTIME };
        tally.add(for_all_keys(&server, &mut books, fill, "set", progress)?);
        let (set, _) = server.resident_bytes()?;
        let incr = Op::Incr { space: COUNTER };
        tally.add(for_all_keys(&server, &mut books, incr, "incr", progress)?);
        let (counted, highest) = server.resident_bytes()?;
        tally.add(read_all_back(&server, &mut books, COUNTER, progress)?);
        let idle = idle_bytes(&server, &mut books)?;
        let delete = Op::Delete { space: COUNTER };
        tally.add(for_all_keys(&server, &mut books, delete, "delete", progress)?);
        thread::sleep(GIVE_BACK);
        let (deleted, _) = server.resident_bytes()?;
        drop(server);
        let bucket = bucket_bytes(options, recipe, cores, progress, &mut tally)?;
        report.add_wrong(&recipe.name, tally.wrong, tally.samples);
        let counters = options.keys();
        let (connections, idle) = (IDLE_CONNECTIONS, idle as f64 / f64::from(IDLE_CONNECTIONS));
        progress.say(&format!(
            "{}: {idle:.0} bytes for each of {connections} idle connections",
            recipe.name
        ));
        report.weights.push(Weight {
            counters,
            empty,
            set,
            counted,
            highest,
            idle,
            deleted,
            bucket,
        });
    }
    Ok(())
}

/// The resident bytes of idle connections that have sent one request each.
fn idle_bytes(server: &Server, books: &mut Books) -> Result<u64, LoadError> {
    let (before, _) = server.resident_bytes()?;
    let request = Request { op: Op::Get { space: COUNTER, keys: 1 }, dialect: server.dialect };
    let (mut wire, mut named) = (Vec::new(), std::collections::VecDeque::new());
    request.write(&mut wire, &mut named, &mut books.ledgers[0], || 0);
    let mut connections = Vec::new();
    for _ in 0..IDLE_CONNECTIONS {
        let mut stream = TcpStream::connect(server.address)?;
        stream.write_all(&wire)?;
        let read = stream.read(&mut [0; 256])?;
        if read == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        connections.push(stream);
    }
    thread::sleep(SETTLE);
    Ok(server.resident_bytes()?.0.saturating_sub(before))
}

/// The resident bytes of a token bucket; `None` if the server has none.
fn bucket_bytes(
    options: &Options,
    recipe: &Recipe,
    cores: Option<&Cores>,
    progress: &Progress,
    tally: &mut Tally,
) -> Result<Option<f64>, LoadError> {
    let take = Op::Take { space: Space::Bucket };
    if !recipe.dialect.speaks(take) {
        return Ok(None);
    }
    let server = Server::start(recipe, MEMORY_MB, cores, false)?;
    let mut books = Books::new(options.keys(), 1, &[Space::Bucket]);
    let (empty, _) = server.resident_bytes()?;
    tally.add(for_all_keys(&server, &mut books, take, "take", progress)?);
    let (taken, _) = server.resident_bytes()?;
    Ok(Some(taken.saturating_sub(empty) as f64 / f64::from(options.keys())))
}
