//! A run that compares speed: every cell, every server in turn, round after round.
//!
//! Here: the order of measurements. Not here: one measurement (`cell`), the tables (`report`).
//!
//! All servers run during the whole run. Within a cell they take turns, and each round begins with
//! another server, so that a machine that slows down or is disturbed affects all servers alike.

use crate::cell::{Cell, Load, Measurement, for_all_keys, measure, read_all_back};
use crate::cpu::Cores;
use crate::dialect::Dialect;
use crate::error::LoadError;
use crate::exchange::Tally;
use crate::keys::Space;
use crate::ledger::Books;
use crate::op::{Kind, Op};
use crate::options::Options;
use crate::rate::{Rate, RateOf, shape_of_share};
use crate::report::{Report, Row};
use crate::server::Server;
use kit::progress::Progress;
use kit::table::{median, micros, thousands, whole};

/// A server and its expected contents.
struct Entrant {
    server: Server,
    books: Books,
    spaces: Vec<Space>,
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
    let kinds = options.kinds()?;
    let mut schedule = Schedule::start(options, cores, progress, report)?;
    let shapes = options.connections.len() * options.pipelines.len();
    let open = schedule.turns(&kinds) * options.open_rounds() as usize * options.rate.len();
    schedule.planned = (schedule.turns(&kinds) * options.rounds() as usize + open) * shapes;
    if options.beside.is_some() {
        for &connections in &options.connections {
            for &pipeline in &options.pipelines {
                schedule.side_by_side(&kinds, connections, pipeline)?;
            }
        }
        return schedule.read_back();
    }
    for &kind in &kinds {
        for &connections in &options.connections {
            for &pipeline in &options.pipelines {
                schedule.side_by_side(&[kind], connections, pipeline)?;
                let count = |_| options.open_rounds();
                schedule.open(kind, connections, pipeline, options.rate_of, count)?;
            }
        }
    }
    schedule.read_back()
}

/// Megabytes for a server with `keys` keys of each kind, so that none is evicted.
fn memory_mb(keys: u32) -> u32 {
    (keys / 1_000_000 * 192).max(1024)
}

/// The key spaces that cells of these kinds need; the counters too, if the dialect has them.
fn spaces_of(dialect: Dialect, kinds: &[Kind]) -> Vec<Space> {
    let counters = Op::Get { space: Space::Counter, keys: 1 };
    let ops = std::iter::once(counters).chain(kinds.iter().map(|kind| kind.op));
    let mut spaces = Vec::new();
    for space in ops.filter(|op| dialect.speaks(*op)).filter_map(Op::space) {
        if !spaces.contains(&space) {
            spaces.push(space);
        }
    }
    spaces
}

/// The servers of a run and its progress.
pub struct Schedule<'a> {
    options: &'a Options,
    progress: &'a Progress,
    entrants: Vec<Entrant>,
    report: &'a mut Report,
    done: usize,
    /// The number of planned measurements, for progress reports.
    pub planned: usize,
}

impl<'a> Schedule<'a> {
    /// Starts all servers and fills them with the keys that the kinds of cells need. In a run
    /// beside the peers, a server that does not start is left out and named.
    ///
    /// # Errors
    ///
    /// A server that does not start, ends or stalls.
    pub fn start(
        options: &'a Options,
        cores: Option<&Cores>,
        progress: &'a Progress,
        report: &'a mut Report,
    ) -> Result<Self, LoadError> {
        let kinds = options.kinds()?;
        let mut entrants = Vec::new();
        for recipe in &options.servers {
            let memory = memory_mb(options.keys());
            let server = match Server::start(recipe, memory, cores, options.workers_cpu) {
                Err(error) if options.peers.is_some() => {
                    report.notes.push(format!("absent, for it did not start: {error}"));
                    continue;
                }
                started => started?,
            };
            progress.say(&format!("{} {}: {}", server.name, server.version, server.command));
            report.server(&server);
            let spaces = spaces_of(server.dialect, &kinds);
            let books = Books::new(options.keys(), options.threads as usize, &spaces);
            entrants.push(Entrant { server, books, spaces });
        }
        for Entrant { server, books, spaces } in &mut entrants {
            for &space in &*spaces {
                let what = format!("filling {space:?}");
                let tally = for_all_keys(server, books, Op::filling(space), &what, progress)?;
                report.add_wrong(&server.name, tally.wrong, tally.samples);
            }
        }
        Ok(Self { options, progress, entrants, report, done: 0, planned: 0 })
    }

    /// The number of measurements in a round of one shape of load, for these kinds.
    #[must_use]
    pub fn turns(&self, kinds: &[Kind]) -> usize {
        let spoken = |entrant: &Entrant| {
            kinds.iter().filter(|kind| entrant.server.dialect.speaks(kind.op)).count()
        };
        self.entrants.iter().map(spoken).sum()
    }

    /// Measures all kinds in every round, so that they can be compared with each other too.
    ///
    /// # Errors
    ///
    /// A server that ends or stalls.
    pub fn side_by_side(
        &mut self,
        kinds: &[Kind],
        connections: u32,
        pipeline: u32,
    ) -> Result<(), LoadError> {
        let load = Load::Closed { pipeline };
        let cells: Vec<_> =
            kinds.iter().map(|&kind| move |_| Cell { kind, connections, load }).collect();
        let shape = cells.first().map_or(String::new(), |cell| cell(0).to_string());
        self.rounds(self.options.rounds(), &shape, &cells)
    }

    /// Measures a kind in the open loop at each rate, in `count` rounds each. A share refers to the
    /// throughput of the closed loop with these connections and this pipeline.
    ///
    /// # Errors
    ///
    /// A server that ends or stalls.
    pub fn open(
        &mut self,
        kind: Kind,
        connections: u32,
        pipeline: u32,
        rate_of: RateOf,
        count: impl Fn(Rate) -> u32,
    ) -> Result<(), LoadError> {
        let closed = Cell { kind, connections, load: Load::Closed { pipeline } }.to_string();
        let throughput = |rounds: &Vec<Measurement>| {
            median(rounds.iter().map(Measurement::ops_per_second)).unwrap_or(f64::INFINITY)
        };
        let rounds = self.report.row(kind.name, &closed).map_or(&[][..], |row| &row.rounds);
        let own: Vec<f64> = rounds.iter().map(throughput).collect();
        let slowest = own.iter().copied().fold(f64::INFINITY, f64::min);
        for &rate in &self.options.rate {
            let cell = |entrant: usize| {
                let rate = match (rate, rate_of) {
                    (Rate::PerSecond(rate), _) => rate,
                    (Rate::Share(share), RateOf::Slowest) => share * slowest,
                    (Rate::Share(share), RateOf::Own) => share * own[entrant],
                };
                Cell { kind, connections, load: Load::Open { rate } }
            };
            let shape = match rate {
                Rate::Share(share) => shape_of_share(connections, share, rate_of),
                Rate::PerSecond(_) => cell(0).to_string(),
            };
            self.rounds(count(rate), &shape, &[cell])?;
        }
        Ok(())
    }

    /// Measures each of `cells` with each server that has its verb, in `count` rounds.
    fn rounds(
        &mut self,
        count: u32,
        shape: &str,
        cells: &[impl Fn(usize) -> Cell],
    ) -> Result<(), LoadError> {
        let entrants = self.entrants.len();
        let row = |cell: &dyn Fn(usize) -> Cell| {
            let rounds = vec![Vec::new(); entrants];
            Row { kind: cell(0).kind.name, shape: shape.to_owned(), rounds }
        };
        let mut rows: Vec<Row> = cells.iter().map(|cell| row(cell)).collect();
        for round in 0..count as usize {
            for turn in 0..cells.len() * entrants {
                // Each round begins with another cell and another server.
                let number = (round + turn / entrants) % cells.len();
                let (cell, row) = (&cells[number], &mut rows[number]);
                let n = (round + turn) % entrants;
                let Entrant { server, books, .. } = &mut self.entrants[n];
                let cell = cell(n);
                if !server.dialect.speaks(cell.kind.op) {
                    continue;
                }
                self.done += 1;
                let mut pace = self.options.pace();
                // Within a round every server gets the same keys; each round has other keys.
                pace.seed = pace.seed.wrapping_add((round as u64) << 16);
                let measured = measure(server, books, &cell, &pace)?;
                self.progress.say(&format!(
                    "{}/{} {} {} round {} {}: {} ops/s, {} ns CPU, p99 {} µs{}{}",
                    self.done,
                    self.planned,
                    cell.kind.name,
                    row.shape,
                    round + 1,
                    server.name,
                    whole(measured.ops_per_second()),
                    whole(measured.server_ns_per_op()),
                    micros(measured.latency_ns[1] as f64),
                    measured.undisturbed_ns(1).map_or(String::new(), |p99| {
                        format!(", undisturbed {} µs", micros(p99))
                    }),
                    if measured.wrong > 0 { ", WRONG REPLIES" } else { "" },
                ));
                self.report.add_wrong(&server.name, measured.wrong, measured.samples.clone());
                row.rounds[n].push(measured);
            }
        }
        self.report.rows.extend(rows);
        Ok(())
    }

    /// Reads back every readable key of every server and compares it with the books.
    ///
    /// # Errors
    ///
    /// A server that ends or stalls.
    pub fn read_back(&mut self) -> Result<(), LoadError> {
        for Entrant { server, books, spaces } in &mut self.entrants {
            spaces.retain(|&space| {
                let has_value = space.is_counted() || space == Space::Value;
                has_value && server.dialect.speaks(Op::Get { space, keys: 1 })
            });
            let mut tally = Tally::default();
            for &space in &*spaces {
                tally.add(read_all_back(server, books, space, self.progress)?);
            }
            let verdict =
                if tally.wrong == 0 { "each as it must be" } else { "NOT as they must be" };
            let (name, keys) = (&server.name, thousands(u64::from(books.keys())));
            let counted = format!("{} units were counted", thousands(books.total()));
            self.report.notes.push(if spaces.is_empty() {
                format!("{name}: {counted}; it has no way to read them back")
            } else {
                format!(
                    "{name}: {keys} keys of each kind ({spaces:?}) read back at the end, {verdict}; {counted}"
                )
            });
            if let Some(bytes) = server.watched_bytes() {
                let note = format!("{name}: watchers read {} bytes", thousands(bytes));
                self.report.notes.push(note);
            }
            self.report.add_wrong(&server.name, tally.wrong, tally.samples);
        }
        Ok(())
    }
}
