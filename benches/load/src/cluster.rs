//! A run that measures clusters: the CPU of an operation on the nodes, direct, copied and
//! forwarded, and its latency; the same for Redis and Valkey, a primary with a replica; and for the
//! floor, the cheapest nodes with the promises of a cluster (`bin/cluster_floor`).
//!
//! Here: rounds, cells, the table. Not here: one server (`compare`). `benches/cluster.sh` installs
//! the others.
//!
//! Each shape of cluster is started, measured and ended in each round, so that idle processes of
//! other shapes cost it nothing. In the closed loop the generator has one thread per node, which
//! sends to it only keys that the node owns (direct), or only keys of others (forwarded). In the
//! open loop one thread sends to one node, keys that this node owns. Every reply is checked, as in
//! the other runs.

mod nodes;
mod shapes;

use std::thread;
use std::time::Duration;

use nodes::Nodes;
use shapes::{Route, SHAPES, Shape};

use crate::bare::BareTable;
use crate::cpu::{Cores, own_cpu_ns};
use crate::dialect::Request;
use crate::error::LoadError;
use crate::exchange::Tally;
use crate::keys::Space;
use crate::ledger::Books;
use crate::op::{Kind, Op};
use crate::options::Options;
use crate::rate::Rate;
use crate::report::Report;
use crate::spread::{Picker, Spread};
use crate::worker::{Arrivals, Stop, Worker};
use kit::progress::Progress;
use kit::rng::Rng;
use kit::table::{Table, cell, median, micros, percent, whole};

/// One cell of a shape.
#[derive(Debug, Clone, Copy)]
struct Cell {
    kind: Kind,
    route: Route,
    connections: u32,
    load: Load,
}

#[derive(Debug, Clone, Copy)]
enum Load {
    /// Closed loop, with this number of requests in one write.
    Closed(u32),
    /// Open loop, with this number of operations a second.
    Open(f64),
}

/// The result of one cell in one round.
struct RoundMetrics {
    ops_per_second: f64,
    nodes_ns_per_op: f64,
    generator_ns_per_op: f64,
    /// The share of a core that each node used.
    busy: Vec<f64>,
    /// p50 and p99; in the open loop, of the undisturbed time, and `None` if that has too few
    /// replies.
    latency_ns: Option<[u64; 2]>,
}

/// All rounds of one cell.
struct Row {
    name: String,
    rounds: Vec<RoundMetrics>,
}

/// Refuses unknown names of shapes, and cells that this run cannot measure.
///
/// # Errors
///
/// [`LoadError::Options`].
pub fn check(options: &Options) -> Result<(), LoadError> {
    let names = shapes::names();
    let refuse = |what: String| Err(LoadError::Options(what));
    if let Some(name) = options.shape.iter().find(|name| !names.contains(&name.as_str())) {
        return refuse(format!("no shape is called {name}; there are: {}", names.join("; ")));
    }
    let has_floor = wanted_shapes(options).any(|shape| shape.kind.is_floor());
    if has_floor && options.keys() as usize > BareTable::KEYS_MAX {
        let max = BareTable::KEYS_MAX;
        return refuse(format!("the floor holds {max} keys: fewer --keys, or other shapes"));
    }
    let fits = |kind: &Kind| matches!(kind.spread, Spread::Uniform | Spread::Hot);
    match options.kinds()?.iter().find(|kind| !fits(kind) || kind.op.keys() != 1) {
        Some(kind) => refuse(format!("--cluster does not measure {}", kind.name)),
        None if options.rate.iter().any(|rate| matches!(rate, Rate::Share(_))) => {
            refuse("--cluster takes a --rate in operations a second".to_owned())
        }
        None => Ok(()),
    }
}

/// The shapes that the options name, or all; without those whose program is not installed.
fn wanted_shapes(options: &Options) -> impl Iterator<Item = &'static Shape> {
    SHAPES.iter().filter(|shape| shape.kind.is_installed()).filter(|shape| {
        options.shape.is_empty() || options.shape.iter().any(|name| name == shape.name)
    })
}

/// Measures all shapes and writes the results into `report`.
///
/// # Errors
///
/// A node that does not start, ends or stalls.
pub fn run(
    options: &Options,
    cores: Option<&Cores>,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), LoadError> {
    check(options)?;
    let kinds = options.kinds()?;
    let has_limits = kinds.iter().any(|kind| kind.op.needs_limits());
    let shapes: Vec<&Shape> = wanted_shapes(options).collect();
    let mut rows: Vec<Row> = Vec::new();
    for round in 0..options.rounds() {
        let mut row = 0;
        for shape in &shapes {
            progress.say(&format!("round {}: {}", round + 1, shape.name));
            let dialect = shape.kind.dialect();
            let spoken: Vec<Kind> =
                kinds.iter().copied().filter(|kind| dialect.speaks(kind.op)).collect();
            let takes_limits = !shape.kind.is_redis() && !shape.kind.is_floor();
            let nodes = Nodes::start(shape, has_limits && takes_limits, cores)?;
            let spaces = spaces_of(&spoken);
            let mut books = Books::new(options.keys(), shape.nodes, &spaces);
            for space in spaces {
                fill(&nodes, &mut books, Request { op: Op::filling(space), dialect })?;
            }
            for cell in cells(shape, &spoken, options) {
                let (metrics, tally) = measure(&nodes, &mut books, options, (cell, shape))?;
                report.add_wrong(shape.name, tally.wrong, tally.samples);
                if round == 0 {
                    rows.push(Row { name: cell.name(shape), rounds: Vec::new() });
                }
                rows[row].rounds.push(metrics);
                row += 1;
            }
            if !nodes.have_all(shape, books.total())? {
                let sample = "the counters of the nodes are not those of the replies".to_owned();
                report.add_wrong(shape.name, 1, vec![sample]);
            }
        }
    }
    report.notes.push(render(&rows));
    Ok(())
}

/// The key spaces of these kinds.
fn spaces_of(kinds: &[Kind]) -> Vec<Space> {
    let mut spaces = Vec::new();
    for space in kinds.iter().filter_map(|kind| kind.op.space()) {
        if !spaces.contains(&space) {
            spaces.push(space);
        }
    }
    spaces
}

/// All cells of a shape, in the order of the table.
fn cells(shape: &Shape, kinds: &[Kind], options: &Options) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &kind in kinds {
        for &route in shape.routes {
            for &connections in &options.connections {
                let closed = options.pipelines.iter().map(|pipeline| Load::Closed(*pipeline));
                let open = options.rate.iter().filter_map(|rate| match rate {
                    Rate::PerSecond(rate) if route == Route::Owner => Some(Load::Open(*rate)),
                    _ => None,
                });
                let cell = |load| Cell { kind, route, connections, load };
                cells.extend(closed.chain(open).map(cell));
            }
        }
    }
    cells
}

impl Cell {
    fn name(self, shape: &Shape) -> String {
        let Self { kind, route, connections, load } = self;
        let kind = if kind.name == "incr" { String::new() } else { format!(", {}", kind.name) };
        let how = if route == Route::Owner { "direct" } else { "forwarded" };
        match load {
            Load::Closed(pipeline) => {
                format!("{}{kind}, {how}, {connections}×{pipeline}", shape.name)
            }
            Load::Open(rate) => format!("{}{kind}, {how}, {} ops/s", shape.name, whole(rate)),
        }
    }
}

fn fill(nodes: &Nodes, books: &mut Books, request: Request) -> Result<(), LoadError> {
    let keys = books.keys();
    let picker = Picker::Sequential { next: 0, start: 0, end: keys };
    let mut worker = Worker::open(nodes.addresses[0], 4, request, picker, Rng::new(0), false)?;
    let (arrivals, stop) = (Arrivals::Closed { pipeline: 32 }, Stop::Count(keys.into()));
    worker.run(arrivals, stop, &mut books.ledgers[0])?;
    if let Some(space) = request.op.writes() {
        books.settle(space);
    }
    Ok(())
}

/// One thread of the generator for each node that receives requests in this cell.
fn open_workers(
    nodes: &Nodes,
    keys: u32,
    options: &Options,
    (cell, shape): (Cell, &Shape),
) -> Result<Vec<Worker>, LoadError> {
    let Some(space) = cell.kind.op.space() else { return Ok(Vec::new()) };
    let keys = if cell.kind.spread == Spread::Hot { 1 } else { keys };
    let list = |number| (number, nodes.keys(number, cell.route, space, keys));
    let mut lists: Vec<_> =
        (0..nodes.addresses.len()).map(list).filter(|(_, list)| !list.is_empty()).collect();
    if matches!(cell.load, Load::Open(_)) {
        lists.truncate(1);
    }
    let connections = (cell.connections as usize).div_ceil(lists.len().max(1));
    let request = Request { op: cell.kind.op, dialect: shape.kind.dialect() };
    let pace = options.pace();
    let mut workers = Vec::new();
    for (number, list) in lists {
        let rng = Rng::new(pace.seed.wrapping_add((number as u64) << 32));
        let (address, picker) = (nodes.addresses[number], Picker::Listed(list));
        workers.push(Worker::open(address, connections, request, picker, rng, pace.busy_poll)?);
    }
    Ok(workers)
}

fn measure(
    nodes: &Nodes,
    books: &mut Books,
    options: &Options,
    (cell, shape): (Cell, &Shape),
) -> Result<(RoundMetrics, Tally), LoadError> {
    let pace = options.pace();
    let mut workers = open_workers(nodes, books.keys(), options, (cell, shape))?;
    let processes = nodes.processes();
    let arrivals = match cell.load {
        Load::Closed(pipeline) => Arrivals::Closed { pipeline },
        Load::Open(rate) => Arrivals::Open { rate, server: &processes },
    };
    let mut run = |time: Duration| -> Result<(Tally, Duration), LoadError> {
        let results: Vec<_> = thread::scope(|scope| {
            let started: Vec<_> = workers
                .iter_mut()
                .zip(&mut books.ledgers)
                .map(|(worker, ledger)| {
                    scope.spawn(move || worker.run(arrivals, Stop::After(time), ledger))
                })
                .collect();
            started.into_iter().map(|t| t.join().expect("a worker does not panic")).collect()
        });
        let (mut tally, mut elapsed) = (Tally::default(), Duration::ZERO);
        for result in results {
            let (part, took) = result?;
            tally.add(part);
            elapsed = elapsed.max(took);
        }
        Ok((tally, elapsed))
    };
    let (warm, _) = run(pace.warm_up)?;
    thread::sleep(Duration::from_millis(3));
    let (before, own_before) = (nodes.readings()?, own_cpu_ns()?);
    let (mut tally, elapsed) = run(pace.measure)?;
    let own_after = own_cpu_ns()?;
    thread::sleep(Duration::from_millis(3));
    let after = nodes.readings()?;
    let ran: Vec<f64> = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after.since(before).ran_ns as f64)
        .collect();
    let replies = tally.replies as f64;
    let [p50, p99] = [0.5, 0.99].map(|q| tally.latency.value_at_quantile(q));
    let metrics = RoundMetrics {
        ops_per_second: replies / elapsed.as_secs_f64(),
        nodes_ns_per_op: ran.iter().sum::<f64>() / replies,
        generator_ns_per_op: (own_after - own_before) as f64 / replies,
        busy: ran.iter().map(|ran| ran / elapsed.as_nanos() as f64).collect(),
        latency_ns: match &tally.sifted {
            None => Some([p50, p99]),
            Some(sifted) => sifted.summary().map(|kept| [kept.latency_ns[0], kept.latency_ns[1]]),
        },
    };
    tally.add(warm);
    if let Some(space) = cell.kind.op.writes() {
        tally.wrong += books.settle(space);
    }
    Ok((metrics, tally))
}

fn render(rows: &[Row]) -> String {
    let head = [
        "cell",
        "ops/s",
        "nodes' CPU ns/op",
        "generator ns/op",
        "cores of each node",
        "p50 µs",
        "p99 µs",
    ];
    let mut table = Table::new(head, 1);
    for Row { name, rounds } in rows {
        let of = |value: &dyn Fn(&RoundMetrics) -> f64| median(rounds.iter().map(value));
        let latency_ns =
            |n: usize| median(rounds.iter().filter_map(|f| Some(f.latency_ns?[n] as f64)));
        let count = rounds.first().map_or(0, |metrics| metrics.busy.len());
        let busy: Vec<String> =
            (0..count).map(|node| cell(of(&|f| f.busy[node]), percent)).collect();
        table.row(vec![
            name.clone(),
            cell(of(&|f| f.ops_per_second), whole),
            cell(of(&|f| f.nodes_ns_per_op), whole),
            cell(of(&|f| f.generator_ns_per_op), whole),
            busy.join(" "),
            cell(latency_ns(0), micros),
            cell(latency_ns(1), micros),
        ]);
    }
    format!(
        "Medians of the rounds. With `--rate` the latencies are those of the undisturbed time; – if it \
         has too few replies.\n\n{}",
        table.render()
    )
}
