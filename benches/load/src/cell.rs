//! One cell: one operation, one shape of load, one server, measured once.
//!
//! Here: warm-up, the two CPU readings around the measured part, settling and reading back. Not
//! here: rounds and turns (`compare`), the loop that sends (`worker`).
//!
//! Both readings are taken while no request is outstanding: the server's CPU time then belongs to
//! exactly the replies counted, and the kernel's clocks are up to date.

use std::fmt;
use std::thread;
use std::time::Duration;

use crate::cpu::{CpuUse, own_cpu_ns};
use crate::dialect::Request;
use crate::disturbance::{Sifted, Undisturbed};
use crate::error::LoadError;
use crate::exchange::Tally;
use crate::keys::Space;
use crate::latency::percentiles;
use crate::ledger::{Books, Ledger};
use crate::op::{Kind, Op};
use crate::server::Server;
use crate::spread::{Picker, Spread};
use crate::worker::{Arrivals, Stop, Worker};
use kit::progress::Progress;
use kit::rng::Rng;

/// The time in which a server goes back to sleep after its last reply.
const SETTLE: Duration = Duration::from_millis(3);
/// Keys read back after a cell that writes.
const SAMPLE_KEYS: u64 = 10_000;
/// Keys read back in one request.
const READ_BACK_KEYS: u32 = 100;

/// The shape of the load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// Every connection sends a batch of requests, waits for their replies, and repeats.
    Closed {
        /// Requests in a batch.
        pipeline: u32,
    },
    /// Requests fall due at this rate over all connections, whether or not earlier ones are
    /// answered.
    Open {
        /// Requests a second.
        rate: f64,
    },
}

/// An operation with a shape of load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// The operation and its keys.
    pub kind: Kind,
    /// Connections over all threads.
    pub connections: u32,
    /// The shape of the load.
    pub load: Load,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.load {
            Load::Closed { pipeline } => write!(f, "{}×{pipeline}", self.connections),
            Load::Open { rate } => write!(f, "{} @ {:.0}k/s", self.connections, rate / 1e3),
        }
    }
}

/// The duration of a cell, and options of the generator.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Time under load before the measured part.
    pub warm_up: Duration,
    /// The length of the measured part.
    pub measure: Duration,
    /// Whether the generator spins instead of sleeping.
    pub busy_poll: bool,
    /// The seed of the choice of keys.
    pub seed: u64,
}

/// The result of a cell.
#[derive(Debug, Clone, Default)]
pub struct Measurement {
    /// Requests answered in the measured part.
    pub replies: u64,
    /// The time from the start of the measured part to its last reply.
    pub elapsed: Duration,
    /// The latencies in nanoseconds below which 50 %, 99 % and 99.9 % of the requests lie.
    pub latency_ns: [u64; 3],
    /// The open loop's replies that came while no thread [waited for a core](crate::disturbance);
    /// `None` if there were too few.
    pub undisturbed: Option<Undisturbed>,
    /// The server's CPU in the measured part.
    pub server: CpuUse,
    /// The generator's CPU time in the measured part, in nanoseconds.
    pub generator_ns: u64,
    /// Wrong replies, including those of warm-up and reading back.
    pub wrong: u64,
    /// The first few wrong replies.
    pub samples: Vec<String>,
}

impl Measurement {
    /// Replies a second.
    #[must_use]
    pub fn ops_per_second(&self) -> f64 {
        self.replies as f64 / self.elapsed.as_secs_f64()
    }

    /// CPU of the server for a reply, in nanoseconds.
    #[must_use]
    pub fn server_ns_per_op(&self) -> f64 {
        self.server.ran_ns as f64 / self.replies as f64
    }

    /// CPU of the generator for a reply, in nanoseconds.
    #[must_use]
    pub fn generator_ns_per_op(&self) -> f64 {
        self.generator_ns as f64 / self.replies as f64
    }

    /// The latency at index `n` of [`Self::latency_ns`] while no thread waited for a core.
    #[must_use]
    pub fn undisturbed_ns(&self, n: usize) -> Option<f64> {
        self.undisturbed.map(|undisturbed| undisturbed.latency_ns[n] as f64)
    }

    /// The share of an open loop's replies that came while a thread waited for a core, or queued
    /// behind such a reply.
    #[must_use]
    pub fn disturbed(&self) -> f64 {
        1.0 - self.undisturbed.map_or(0.0, |kept| kept.replies as f64 / self.replies as f64)
    }

    /// The share of the time that the server ran on a core; above 1 with several threads.
    #[must_use]
    pub fn busy(&self) -> f64 {
        self.server.ran_ns as f64 / self.elapsed.as_nanos() as f64
    }

    /// The share of the time that the server's threads waited for a core, added up. Another process
    /// ran there, or, on a pinned core, another thread of the server; `busy` distinguishes the two.
    #[must_use]
    pub fn waited(&self) -> f64 {
        self.server.waited_ns as f64 / self.elapsed.as_nanos() as f64
    }
}

/// Measures `cell` against `server` once.
///
/// # Errors
///
/// A lost connection, a stalled server, a process that has ended.
pub fn measure(
    server: &Server,
    books: &mut Books,
    cell: &Cell,
    pace: &Pace,
) -> Result<Measurement, LoadError> {
    let Kind { op, spread, .. } = cell.kind;
    let mut crew = Crew::open(server, &CrewPlan::new(books, op, spread, cell.connections), pace)?;
    books.next_version();
    let (warm, _) = crew.run(cell.load, Stop::After(pace.warm_up), books)?;
    thread::sleep(SETTLE);
    let (server_before, own_before) = (server.cpu()?, own_cpu_ns()?);
    let (mut tally, elapsed) = crew.run(cell.load, Stop::After(pace.measure), books)?;
    let own_after = own_cpu_ns()?;
    thread::sleep(SETTLE);
    let server_after = server.cpu()?;
    drop(crew);

    let replies = tally.replies;
    let latency_ns = percentiles(&tally.latency);
    let undisturbed = tally.sifted.as_ref().and_then(Sifted::summary);
    tally.add(warm);
    if let Some(space) = op.writes() {
        let mixed_up = books.settle(space);
        if mixed_up > 0 {
            tally.wrong += mixed_up;
            tally.samples.push(format!("{mixed_up} keys answered with other numbers than 1 to n"));
        }
        tally.add(sample(server, books, space, spread, pace)?);
    }
    Ok(Measurement {
        replies,
        elapsed,
        latency_ns,
        undisturbed,
        server: server_after.since(&server_before),
        generator_ns: own_after - own_before,
        wrong: tally.wrong,
        samples: tally.samples,
    })
}

/// Reads back keys, chosen as the cell chose them, and compares each with the books. Reads none of
/// a space that the server cannot read.
fn sample(
    server: &Server,
    books: &mut Books,
    space: Space,
    spread: Spread,
    pace: &Pace,
) -> Result<Tally, LoadError> {
    let op = Op::Get { space, keys: READ_BACK_KEYS };
    if !server.dialect.speaks(op) {
        return Ok(Tally::default());
    }
    let pace = Pace { seed: pace.seed.wrapping_add(1), ..*pace };
    let mut crew = Crew::open(server, &CrewPlan::new(books, op, spread, 1), &pace)?;
    let requests = SAMPLE_KEYS / u64::from(READ_BACK_KEYS);
    Ok(crew.run(Load::Closed { pipeline: 4 }, Stop::Count(requests), books)?.0)
}

/// Sends `op` once for every key of the books, in order, and reports progress.
///
/// # Errors
///
/// The errors of [`measure`].
pub fn for_all_keys(
    server: &Server,
    books: &mut Books,
    op: Op,
    what: &str,
    progress: &Progress,
) -> Result<Tally, LoadError> {
    const STEPS: u64 = 20;
    let pace = Pace { warm_up: Duration::ZERO, measure: Duration::ZERO, busy_poll: false, seed: 0 };
    let keys = u64::from(books.keys());
    // One worker: two would share the connections, but each would wrap within its half of the keys.
    let plan = CrewPlan { threads: 1, ..CrewPlan::new(books, op, Spread::Sequential, 4) };
    let mut crew = Crew::open(server, &plan, &pace)?;
    let requests = keys.div_ceil(u64::from(op.keys().max(1)));
    let mut tally = Tally::default();
    for step in 0..STEPS {
        progress.part(&format!("{}: {what}", server.name), step * keys / STEPS, keys);
        let count = requests * (step + 1) / STEPS - requests * step / STEPS;
        if count > 0 {
            let load = Load::Closed { pipeline: server.dialect.filling_pipeline() };
            tally.add(crew.run(load, Stop::Count(count), books)?.0);
        }
    }
    progress.part(&format!("{}: {what}", server.name), keys, keys);
    if let Some(space) = op.writes() {
        tally.wrong += books.settle(space);
    }
    Ok(tally)
}

/// Reads back every key of `space` and compares each with the books.
///
/// # Errors
///
/// The errors of [`measure`].
pub fn read_all_back(
    server: &Server,
    books: &mut Books,
    space: Space,
    progress: &Progress,
) -> Result<Tally, LoadError> {
    let op = Op::Get { space, keys: READ_BACK_KEYS };
    for_all_keys(server, books, op, "reading back", progress)
}

/// The threads and connections of a cell, and their requests.
struct CrewPlan {
    threads: u32,
    connections: u32,
    op: Op,
    spread: Spread,
    keys: u32,
}

impl CrewPlan {
    /// A plan with a thread for each ledger, as long as there are connections for it.
    fn new(books: &Books, op: Op, spread: Spread, connections: u32) -> Self {
        let threads = (books.ledgers.len() as u32).min(connections);
        Self { threads, connections, op, spread, keys: books.keys() }
    }
}

/// The workers of a cell; each gets a thread while it runs.
struct Crew {
    /// The process id of the server.
    server: u32,
    workers: Vec<Worker>,
}

impl Crew {
    fn open(server: &Server, plan: &CrewPlan, pace: &Pace) -> Result<Self, LoadError> {
        let CrewPlan { threads, connections, op, spread, keys } = *plan;
        let mut workers = Vec::new();
        for n in 0..threads {
            let share = connections * (n + 1) / threads - connections * n / threads;
            let picker = Picker::new(spread, keys, n, threads);
            let rng = Rng::new(pace.seed.wrapping_add(u64::from(n) << 32));
            let (address, share) = (server.address, share as usize);
            let request = Request { op, dialect: server.dialect };
            workers.push(Worker::open(address, share, request, picker, rng, pace.busy_poll)?);
        }
        Ok(Self { server: server.pid(), workers })
    }

    fn run(
        &mut self,
        load: Load,
        stop: Stop,
        books: &mut Books,
    ) -> Result<(Tally, Duration), LoadError> {
        let workers = self.workers.len();
        let arrivals = match load {
            Load::Closed { pipeline } => Arrivals::Closed { pipeline },
            Load::Open { rate } => {
                Arrivals::Open { rate: rate / workers as f64, server: &[self.server] }
            }
        };
        let stop = |n: usize| match stop {
            Stop::Count(count) => {
                let (n, workers) = (n as u64, workers as u64);
                Stop::Count(count * (n + 1) / workers - count * n / workers)
            }
            after @ Stop::After(_) => after,
        };
        let run = |(n, (worker, ledger)): (usize, (&mut Worker, &mut Ledger))| {
            worker.run(arrivals, stop(n), ledger)
        };
        let pairs = self.workers.iter_mut().zip(&mut books.ledgers).enumerate();
        let results: Vec<_> = thread::scope(|scope| {
            let started: Vec<_> = pairs.map(|pair| scope.spawn(move || run(pair))).collect();
            started.into_iter().map(|t| t.join().expect("a worker does not panic")).collect()
        });
        let mut tally = Tally::default();
        let mut elapsed = Duration::ZERO;
        for result in results {
            let (part, took) = result?;
            tally.add(part);
            elapsed = elapsed.max(took);
        }
        Ok((tally, elapsed))
    }
}
