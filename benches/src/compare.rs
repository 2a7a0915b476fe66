//! A run that compares speed: every cell, every server in turn, round after round.
//!
//! Here: the order of measurements. Not here: one measurement (`cell`), the tables (`report`).
//!
//! All servers live through the whole run. Within a cell they take turns, and each round begins with
//! another of them, so that a machine that slows down or is disturbed wrongs nobody in particular.

use crate::cell::{Cell, Load, Measurement, for_all_keys, measure, read_all_back};
use crate::cpu::Cores;
use crate::error::LoadError;
use crate::exchange::Tally;
use crate::keys::Space;
use crate::ledger::Books;
use crate::op::{Kind, Op};
use crate::options::{Options, Rate, RateOf};
use crate::progress::Progress;
use crate::report::{Report, Row};
use crate::server::Server;
use crate::table::{median, micros, thousands, whole};

/// A server and what it must hold.
struct Entrant {
    server: Server,
    books: Books,
}

/// Makes the run and writes it into `report`, which holds what was finished even after an error.
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
    let kinds = options.kinds()?;
    let spaces = spaces_of(&kinds);
    let mut entrants = Vec::new();
    for recipe in &options.servers {
        let server = Server::start(recipe, 1024, cores)?;
        progress.say(&format!("{} {}: {}", server.name, server.version, server.command));
        report.server(&server);
        let books = Books::new(options.keys(), options.threads as usize, &spaces);
        entrants.push(Entrant { server, books });
    }
    for Entrant { server, books } in &mut entrants {
        for &space in &spaces {
            let what = format!("filling {space:?}");
            let tally = for_all_keys(server, books, Op::filling(space), &what, progress)?;
            report.add_wrong(&server.name, tally.wrong, tally.samples);
        }
    }
    let mut schedule = Schedule { options, progress, entrants, report, done: 0 };
    if options.beside.is_some() {
        for &connections in &options.connections {
            for &pipeline in &options.pipelines {
                schedule.side_by_side(&kinds, connections, pipeline)?;
            }
        }
        return schedule.read_back(&spaces);
    }
    for &kind in &kinds {
        for &connections in &options.connections {
            for &pipeline in &options.pipelines {
                schedule.closed_then_open(kind, connections, pipeline)?;
            }
        }
    }
    schedule.read_back(&spaces)
}

/// The families of keys that cells of these kinds need, counters always.
fn spaces_of(kinds: &[Kind]) -> Vec<Space> {
    let mut spaces = vec![Space::Counter];
    for space in kinds.iter().filter_map(|kind| kind.op.space()) {
        if !spaces.contains(&space) {
            spaces.push(space);
        }
    }
    spaces
}

struct Schedule<'a> {
    options: &'a Options,
    progress: &'a Progress,
    entrants: Vec<Entrant>,
    report: &'a mut Report,
    done: u64,
}

impl Schedule<'_> {
    fn closed_then_open(
        &mut self,
        kind: Kind,
        connections: u32,
        pipeline: u32,
    ) -> Result<(), LoadError> {
        let closed = Cell { kind, connections, load: Load::Closed { pipeline } };
        let row = self.rounds(&closed.to_string(), &[|_| closed])?.remove(0);
        if self.options.rate.is_empty() {
            self.report.rows.push(row);
            return Ok(());
        }
        let own: Vec<f64> = row
            .rounds
            .iter()
            .map(|rounds| median(rounds.iter().map(Measurement::ops_per_second)).unwrap_or(1.0))
            .collect();
        self.report.rows.push(row);
        let slowest = own.iter().copied().fold(f64::INFINITY, f64::min);
        for &rate in &self.options.rate {
            let rate_of = |entrant: usize| match (rate, self.options.rate_of) {
                (Rate::PerSecond(rate), _) => rate,
                (Rate::Share(share), RateOf::Slowest) => share * slowest,
                (Rate::Share(share), RateOf::Own) => share * own[entrant],
            };
            let cell =
                |entrant| Cell { kind, connections, load: Load::Open { rate: rate_of(entrant) } };
            let shape = match (rate, self.options.rate_of) {
                (Rate::Share(share), RateOf::Own) => {
                    format!("{connections} @ {:.0} % of own", share * 100.0)
                }
                (Rate::Share(share), RateOf::Slowest) => {
                    format!("{} = {:.0} %", cell(0), share * 100.0)
                }
                (Rate::PerSecond(_), _) => cell(0).to_string(),
            };
            let rows = self.rounds(&shape, &[cell])?;
            self.report.rows.extend(rows);
        }
        Ok(())
    }

    /// Measures all kinds in every round, so that they can be compared with each other too.
    fn side_by_side(
        &mut self,
        kinds: &[Kind],
        connections: u32,
        pipeline: u32,
    ) -> Result<(), LoadError> {
        let load = Load::Closed { pipeline };
        let cells: Vec<_> =
            kinds.iter().map(|&kind| move |_| Cell { kind, connections, load }).collect();
        let shape = cells.first().map_or(String::new(), |cell| cell(0).to_string());
        let rows = self.rounds(&shape, &cells)?;
        self.report.rows.extend(rows);
        Ok(())
    }

    /// Measures each of `cells` with each server in all rounds.
    fn rounds(
        &mut self,
        shape: &str,
        cells: &[impl Fn(usize) -> Cell],
    ) -> Result<Vec<Row>, LoadError> {
        let planned = self.planned();
        let entrants = self.entrants.len();
        let row = |cell: &dyn Fn(usize) -> Cell| {
            let rounds = vec![Vec::new(); entrants];
            Row { kind: cell(0).kind.name, shape: shape.to_owned(), rounds }
        };
        let mut rows: Vec<Row> = cells.iter().map(|cell| row(cell)).collect();
        for round in 0..self.options.rounds() as usize {
            for turn in 0..cells.len() * entrants {
                // Each round begins with another cell and another server.
                let number = (round + turn / entrants) % cells.len();
                let (cell, row) = (&cells[number], &mut rows[number]);
                let n = (round + turn) % entrants;
                let Entrant { server, books } = &mut self.entrants[n];
                self.done += 1;
                let mut pace = self.options.pace();
                // Every server gets the same keys in a round, every round others.
                pace.seed = pace.seed.wrapping_add((round as u64) << 16);
                let cell = cell(n);
                let measured = measure(server, books, &cell, &pace)?;
                self.progress.say(&format!(
                    "{}/{} {} {} round {} {}: {} ops/s, {} ns CPU, p99 {} µs{}",
                    self.done,
                    planned,
                    cell.kind.name,
                    row.shape,
                    round + 1,
                    server.name,
                    whole(measured.ops_per_second()),
                    whole(measured.server_ns_per_op()),
                    micros(measured.latency_ns[1] as f64),
                    if measured.wrong > 0 { ", WRONG REPLIES" } else { "" },
                ));
                self.report.add_wrong(&server.name, measured.wrong, measured.samples.clone());
                row.rounds[n].push(measured);
            }
        }
        Ok(rows)
    }

    fn planned(&self) -> usize {
        let options = self.options;
        let shapes = options.connections.len() * options.pipelines.len();
        let kinds = options.kinds().map_or(0, |kinds| kinds.len());
        let turns = options.rounds() as usize * self.entrants.len();
        kinds * shapes * (1 + options.rate.len()) * turns
    }

    /// Reads every key of every server back: the grand total.
    fn read_back(&mut self, spaces: &[Space]) -> Result<(), LoadError> {
        let told = |space: &&Space| space.is_counted() || **space == Space::Value;
        let spaces: Vec<Space> = spaces.iter().filter(told).copied().collect();
        for Entrant { server, books } in &mut self.entrants {
            let mut tally = Tally::default();
            for &space in &spaces {
                tally.add(read_all_back(server, books, space, self.progress)?);
            }
            let verdict =
                if tally.wrong == 0 { "each as it must be" } else { "NOT as they must be" };
            self.report.notes.push(format!(
                "{}: {} keys of each kind ({spaces:?}) read back at the end, {verdict}; {} units were \
                 counted",
                server.name,
                thousands(u64::from(books.keys())),
                thousands(books.total()),
            ));
            self.report.add_wrong(&server.name, tally.wrong, tally.samples);
        }
        Ok(())
    }
}
