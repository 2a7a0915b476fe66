//! A run that measures clusters: what an operation costs its nodes, direct, copied and forwarded; and what it
//! costs Redis and Valkey, a primary with a replica.
//!
//! Here: clusters of real processes on this machine, who owns which key, CPU of each node. Not here:
//! one server (`compare`). `benches/cluster.sh` installs the others.
//!
//! Each shape of cluster is started, measured and ended in each round, so that none pays for another's
//! idle processes. The generator has one thread for each node, that asks it for keys of its own only
//! (direct), or for keys of others only (forwarded). Every reply is checked, as in the other runs.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cluster::placement::ketama::{Circle, hash, ring_name};

use crate::cpu::{CpuReading, own_cpu_ns};
use crate::dialect::{Dialect, Request};
use crate::error::LoadError;
use crate::exchange::Tally;
use crate::keys::{Space, key};
use crate::ledger::Books;
use crate::op::Op;
use crate::options::Options;
use crate::progress::Progress;
use crate::report::Report;
use crate::rng::Rng;
use crate::spread::Picker;
use crate::table::{Table, cell, median, micros, percent, whole};
use crate::worker::{Arrivals, Stop, Worker};

const PROGRAM: &str = "target/release/tollgate";
/// For a cluster to come to rest.
const PATIENCE: Duration = Duration::from_mins(1);
const INCR: Op = Op::Incr { space: Space::Counter };

/// A cluster to be measured.
struct Shape {
    name: &'static str,
    nodes: usize,
    kind: Kind,
    routes: &'static [Route],
}

/// The program that the nodes of a shape run.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Ours, without a cluster.
    Lone,
    /// Ours, with these flags.
    Cluster(&'static str),
    /// This program of the Redis family: the first node is primary, the others are its replicas.
    Redis(&'static str, Dialect),
}

impl Kind {
    fn dialect(self) -> Dialect {
        match self {
            Self::Lone | Self::Cluster(_) => Dialect::Tollgate,
            Self::Redis(_, dialect) => dialect,
        }
    }

    /// Whether the program is installed.
    fn is_installed(self) -> bool {
        !matches!(self, Self::Redis(program, _) if !Path::new(program).exists())
    }
}

/// Whom the generator asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Owner,
    Another,
}

const DIRECT: &[Route] = &[Route::Owner];
const BOTH: &[Route] = &[Route::Owner, Route::Another];
const ONE: Kind = Kind::Cluster("--replicas 1");
const REPLICA: Kind = Kind::Cluster("--replicas 2 --ack replica");
const OWNER: Kind = Kind::Cluster("--replicas 2 --ack owner");
const REDIS: &str = "/usr/bin/redis-server";
const VALKEY: &str = "/usr/bin/valkey-server";

const SHAPES: &[Shape] = &[
    Shape { name: "no cluster", nodes: 1, kind: Kind::Lone, routes: DIRECT },
    Shape { name: "1 node", nodes: 1, kind: ONE, routes: DIRECT },
    Shape { name: "2 nodes, R=1", nodes: 2, kind: ONE, routes: BOTH },
    Shape { name: "2 nodes, R=2 replica", nodes: 2, kind: REPLICA, routes: BOTH },
    Shape { name: "2 nodes, R=2 owner", nodes: 2, kind: OWNER, routes: DIRECT },
    Shape { name: "3 nodes, R=1", nodes: 3, kind: ONE, routes: BOTH },
    Shape { name: "3 nodes, R=2 replica", nodes: 3, kind: REPLICA, routes: BOTH },
    Shape { name: "3 nodes, R=2 owner", nodes: 3, kind: OWNER, routes: DIRECT },
    Shape { name: "Redis", nodes: 1, kind: Kind::Redis(REDIS, Dialect::Redis), routes: DIRECT },
    Shape {
        name: "Redis and a replica",
        nodes: 2,
        kind: Kind::Redis(REDIS, Dialect::Redis),
        routes: DIRECT,
    },
    Shape {
        name: "Redis and a replica, WAIT 1",
        nodes: 2,
        kind: Kind::Redis(REDIS, Dialect::RedisWait),
        routes: DIRECT,
    },
    Shape {
        name: "Valkey and a replica",
        nodes: 2,
        kind: Kind::Redis(VALKEY, Dialect::Redis),
        routes: DIRECT,
    },
    Shape {
        name: "Valkey and a replica, WAIT 1",
        nodes: 2,
        kind: Kind::Redis(VALKEY, Dialect::RedisWait),
        routes: DIRECT,
    },
];

/// What one cell came to in one round.
struct Figures {
    ops_per_second: f64,
    nodes_ns_per_op: f64,
    generator_ns_per_op: f64,
    /// The share of a core that each node had.
    busy: Vec<f64>,
    latency_ns: [u64; 2],
}

/// The nodes of a shape. Dropping it ends them.
struct Nodes {
    children: Vec<Child>,
    addresses: Vec<SocketAddr>,
    folder: PathBuf,
}

impl Nodes {
    fn start(shape: &Shape) -> Result<Self, LoadError> {
        let failed = |what: String| LoadError::Server { server: shape.name.to_owned(), what };
        let folder = std::env::temp_dir().join(format!("load-cluster-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        // All at once, so that no port is given twice.
        let free = |_| TcpListener::bind(("127.0.0.1", 0));
        let doors: Vec<TcpListener> = (0..2 * shape.nodes).map(free).collect::<io::Result<_>>()?;
        let places: Vec<SocketAddr> =
            doors.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        drop(doors);
        let (clients, peers) = places.split_at(shape.nodes);
        let seeds: Vec<String> = peers.iter().map(SocketAddr::to_string).collect();
        let addresses = match shape.kind {
            // The replicas are asked nothing.
            Kind::Redis(..) => clients[..1].to_vec(),
            Kind::Lone | Kind::Cluster(_) => clients.to_vec(),
        };
        let mut nodes = Self { children: Vec::new(), addresses, folder };
        for (number, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let mut starter = match shape.kind {
                Kind::Redis(program, _) => redis(program, *client, clients[0], &nodes.folder),
                Kind::Lone | Kind::Cluster(_) => {
                    let mut starter = Command::new(PROGRAM);
                    starter.args(["-t", "1", "-U", "0", "-l", "127.0.0.1", "-p"]);
                    starter.arg(client.port().to_string());
                    starter
                }
            };
            if let Kind::Cluster(flags) = shape.kind {
                starter
                    .args(["--seeds", &seeds.join(","), "--expect", &shape.nodes.to_string()])
                    .args(["--peer-listen", &peer.to_string(), "--data-dir"])
                    .arg(nodes.folder.join(number.to_string()))
                    .args(flags.split_whitespace());
            }
            starter.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let child =
                starter.spawn().map_err(|error| failed(format!("{}: {error}", shape.name)))?;
            nodes.children.push(child);
        }
        let start = Instant::now();
        while !nodes.are_at_rest(shape) {
            if start.elapsed() > PATIENCE {
                return Err(failed("it does not come to rest".to_owned()));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(nodes)
    }

    fn are_at_rest(&self, shape: &Shape) -> bool {
        match shape.kind {
            Kind::Lone => ask(self.addresses[0], "stats cluster\r\n").is_ok(),
            Kind::Redis(..) => {
                // A replica is online once it has all there is.
                let stats = ask(self.addresses[0], "INFO replication\r\nQUIT\r\n");
                let online = |line: &&String| line.contains("state=online");
                stats.is_ok_and(|lines| lines.iter().filter(online).count() == shape.nodes - 1)
            }
            Kind::Cluster(_) => self.is_cluster_at_rest(shape.nodes),
        }
    }

    fn is_cluster_at_rest(&self, count: usize) -> bool {
        let active = format!("STAT nodes_active {count}");
        self.addresses.iter().all(|address| {
            let Ok(stats) = ask(*address, "stats cluster\r\n") else { return false };
            let has = |wanted: &str| stats.iter().any(|line| line == wanted);
            has(&active)
                && has("STAT partitions_moving 0")
                && has("STAT partitions_learners 0")
                && has("STAT partitions_under_replicated 0")
                && has("STAT partitions_without_primary 0")
                && stats.iter().any(|line| line.starts_with("STAT setting:founded"))
        })
    }

    /// The keys that a thread which talks to node `number` asks for.
    fn keys(&self, number: usize, route: Route, keys: u32) -> Arc<[u32]> {
        let names: Vec<String> = (self.addresses.iter())
            .map(|address| ring_name(&address.ip().to_string(), address.port()))
            .collect();
        let circle = Circle::new(names.iter().map(|name| (name.as_str(), 1)));
        let is_owned = |index: &u32| {
            let owner = circle.owner(hash(&key(Space::Counter, *index)));
            (owner.map(usize::from) == Some(number)) == (route == Route::Owner)
        };
        (0..keys).filter(is_owned).collect()
    }

    fn readings(&self) -> io::Result<Vec<CpuReading>> {
        self.children.iter().map(|child| CpuReading::take(child.id())).collect()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Nobody is to hand over to another that ends as well.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A server of the Redis family that keeps nothing on a disk. A primary that sends its data to a replica may
/// write them into `folder` first.
fn redis(program: &str, at: SocketAddr, primary: SocketAddr, folder: &Path) -> Command {
    let mut starter = Command::new(program);
    starter.args(["--port", &at.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
    starter
        .args(["--appendonly", "no", "--repl-diskless-sync-delay", "0"])
        .arg("--dir")
        .arg(folder);
    if at != primary {
        starter.args(["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    }
    starter
}

/// The lines of an answer that ends with `END`, or of one to a last request.
fn ask(address: SocketAddr, request: &str) -> io::Result<Vec<String>> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(request.as_bytes())?;
    let mut lines = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line == "END" || line == "RESET" || line == "+OK" || line.contains("ERROR") {
            return Ok(lines);
        }
        lines.push(line);
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// Measures all shapes and writes them into `report`.
///
/// # Errors
///
/// A node that does not start, goes away or stalls.
pub fn run(options: &Options, progress: &Progress, report: &mut Report) -> Result<(), LoadError> {
    let mut rows: Vec<(String, Vec<Figures>)> = Vec::new();
    for round in 0..options.rounds() {
        let mut row = 0;
        let is_wanted = |shape: &&Shape| {
            options.shape.is_empty() || options.shape.iter().any(|name| name == shape.name)
        };
        let installed = SHAPES.iter().filter(|shape| shape.kind.is_installed());
        for shape in installed.filter(is_wanted) {
            progress.say(&format!("round {}: {}", round + 1, shape.name));
            let nodes = Nodes::start(shape)?;
            let mut books = Books::new(options.keys(), shape.nodes, &[Space::Counter]);
            let dialect = shape.kind.dialect();
            fill(&nodes, &mut books, dialect)?;
            for &route in shape.routes {
                for &connections in &options.connections {
                    for &pipeline in &options.pipelines {
                        let how = if route == Route::Owner { "direct" } else { "forwarded" };
                        let name = format!("{}, {how}, {connections}×{pipeline}", shape.name);
                        let work = (route, connections, pipeline, dialect);
                        let (figures, tally) = measure(&nodes, &mut books, options, work)?;
                        report.add_wrong(shape.name, tally.wrong, tally.samples);
                        if round == 0 {
                            rows.push((name, Vec::new()));
                        }
                        rows[row].1.push(figures);
                        row += 1;
                    }
                }
            }
        }
    }
    report.notes.push(render(&rows));
    Ok(())
}

fn fill(nodes: &Nodes, books: &mut Books, dialect: Dialect) -> Result<(), LoadError> {
    let fill = Request { op: Op::Fill { space: Space::Counter, exptime: 0 }, dialect };
    let keys = books.keys();
    let picker = Picker::Sequential { next: 0, start: 0, end: keys };
    let mut worker = Worker::open(nodes.addresses[0], 4, fill, picker, Rng::new(0), false)?;
    let (arrivals, stop) = (Arrivals::Closed { pipeline: 32 }, Stop::Count(keys.into()));
    worker.run(arrivals, stop, &mut books.ledgers[0])?;
    Ok(())
}

fn measure(
    nodes: &Nodes,
    books: &mut Books,
    options: &Options,
    (route, connections, pipeline, dialect): (Route, u32, u32, Dialect),
) -> Result<(Figures, Tally), LoadError> {
    let count = nodes.addresses.len();
    let pace = options.pace();
    let mut workers = Vec::new();
    for (number, address) in nodes.addresses.iter().enumerate() {
        let share = (connections as usize).div_ceil(count);
        let picker = Picker::Listed(nodes.keys(number, route, books.keys()));
        let rng = Rng::new(pace.seed.wrapping_add((number as u64) << 32));
        let asked = Request { op: INCR, dialect };
        workers.push(Worker::open(*address, share, asked, picker, rng, pace.busy_poll)?);
    }
    let mut run = |time: Duration| -> Result<(Tally, Duration), LoadError> {
        let results: Vec<_> = thread::scope(|scope| {
            let arrivals = Arrivals::Closed { pipeline };
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
    let figures = Figures {
        ops_per_second: replies / elapsed.as_secs_f64(),
        nodes_ns_per_op: ran.iter().sum::<f64>() / replies,
        generator_ns_per_op: (own_after - own_before) as f64 / replies,
        busy: ran.iter().map(|ran| ran / elapsed.as_nanos() as f64).collect(),
        latency_ns: [0.5, 0.99].map(|q| tally.latency.value_at_quantile(q)),
    };
    tally.add(warm);
    tally.wrong += books.settle(Space::Counter);
    Ok((figures, tally))
}

fn render(rows: &[(String, Vec<Figures>)]) -> String {
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
    for (name, rounds) in rows {
        let of = |value: &dyn Fn(&Figures) -> f64| median(rounds.iter().map(value));
        let count = rounds.first().map_or(0, |figures| figures.busy.len());
        let busy: Vec<String> =
            (0..count).map(|node| cell(of(&|f| f.busy[node]), percent)).collect();
        table.row(vec![
            name.clone(),
            cell(of(&|f| f.ops_per_second), whole),
            cell(of(&|f| f.nodes_ns_per_op), whole),
            cell(of(&|f| f.generator_ns_per_op), whole),
            busy.join(" "),
            cell(of(&|f| f.latency_ns[0] as f64), micros),
            cell(of(&|f| f.latency_ns[1] as f64), micros),
        ]);
    }
    format!("Medians of the rounds.\n\n{}", table.render())
}
