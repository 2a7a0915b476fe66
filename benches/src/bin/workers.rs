//! The gain of a second worker: threads execute requests of their own clients on one store, without
//! sockets.
//!
//! With two cores, a load generator needs one of them, so over TCP two workers cannot run at full
//! speed. Here each thread does the work of a worker between reading and writing, sixteen requests
//! at a time, and no generator runs. The kernel's share is left out; threads do not wait for each
//! other in it. Threads with a store each show how much the machine gives to a second thread. Not
//! here: the server over TCP (`load`).

#![allow(
    clippy::cast_precision_loss,
    reason = "counts become floats only to be compared and printed"
)]

use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use benches::keys::{Space, key};
use benches::local::Local;
use benches::rng::Rng;
use benches::table::{Table, median, times, whole};
use clap::Parser;
use engine::Now;
use tollgate::config::Config;
use tollgate::limits::Limits;
use tollgate::runtime::service::Service;
use tollgate::session::Pause;

/// The allocator of the server.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Requests that a client sends at once.
const PIPELINE: usize = 16;
/// Batches of requests of each thread, which sends them cyclically.
const BATCHES: usize = 4096;

/// The kinds of requests: a name, the line, and whether all of them name one key.
const KINDS: [(&str, &str, bool); 4] = [
    ("incr", "incr {} 1\r\n", false),
    ("incr-hot", "incr {} 1\r\n", true),
    ("get", "get {}\r\n", false),
    ("take-bucket", "take {} 1 bucket:9000000/d\r\n", false),
];

/// Executes requests on one store with one thread and with several, and compares the speeds.
#[derive(Debug, Parser)]
#[command(name = "workers", version)]
struct Options {
    /// Threads to compare with one
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    threads: u32,
    /// Keys in each store
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    keys: u32,
    /// Rounds, in each of which one thread and several take a turn
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Milliseconds of a turn
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    millis: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let threads = options.threads as usize;
    let head = [
        "op".to_owned(),
        "1 thread ops/s".to_owned(),
        format!("{threads} threads ops/s"),
        "ratio".to_owned(),
        "a store each ops/s".to_owned(),
        "ratio".to_owned(),
    ];
    let mut table = Table::new(head, 1);
    for (name, line, is_hot) in KINDS {
        let stores: Vec<Store> =
            (0..threads).map(|_| Store::new(threads, options.keys, line, is_hot)).collect();
        let sides = [(1, 1), (threads, 1), (threads, threads)];
        let mut rates = [const { Vec::new() }; 3];
        for round in 0..options.rounds as usize {
            // Each round begins with another side.
            for turn in 0..sides.len() {
                let side = (round + turn) % sides.len();
                let (threads, own) = sides[side];
                let time = Duration::from_millis(options.millis);
                rates[side].push(ops_per_second(&stores[..own], threads, time));
            }
        }
        let [alone, together, apart] = rates;
        let ratio = |others: &[f64]| {
            median(others.iter().zip(&alone).map(|(other, one)| other / one)).unwrap_or(0.0)
        };
        let of = |numbers: &[f64]| whole(median(numbers.iter().copied()).unwrap_or(0.0));
        table.row(vec![
            name.to_owned(),
            of(&alone),
            of(&together),
            times(ratio(&together)),
            of(&apart),
            times(ratio(&apart)),
        ]);
    }
    print!("{}", table.render());
    ExitCode::SUCCESS
}

/// Operations a second of `threads` threads that share `stores`.
fn ops_per_second(stores: &[Store], threads: usize, time: Duration) -> f64 {
    let (begin, is_over) = (Barrier::new(threads + 1), AtomicBool::new(false));
    let work = |number: usize| {
        let store = &stores[number % stores.len()];
        let mut worker = Local::new(&store.service, number);
        let mut out = Vec::new();
        begin.wait();
        let mut batches = 0;
        while !is_over.load(Ordering::Relaxed) {
            answer(&mut worker, &store.service, &store.wires[number][batches % BATCHES], &mut out);
            batches += 1;
        }
        batches * PIPELINE
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                scope.spawn({
                    let work = &work;
                    move || work(number)
                })
            })
            .collect();
        begin.wait();
        let started = Instant::now();
        thread::sleep(time);
        is_over.store(true, Ordering::Relaxed);
        let answered = workers.into_iter().map(|worker| worker.join().expect("it does not panic"));
        answered.sum::<usize>() as f64 / started.elapsed().as_secs_f64()
    })
}

/// Executes the requests in `wire`; returns the number of bytes consumed.
fn answer(worker: &mut Local, service: &Service, wire: &[u8], out: &mut Vec<u8>) -> usize {
    out.clear();
    let (done, pause) = worker.answer(service, Now::at_ms(1000), wire, out);
    assert!(done > 0 && !matches!(pause, Pause::Close), "a good request is answered");
    done
}

/// A filled store, and the requests of each thread's client.
struct Store {
    service: Service,
    wires: Vec<Vec<Vec<u8>>>,
}

impl Store {
    fn new(threads: usize, keys: u32, line: &str, is_hot: bool) -> Self {
        let memory_bytes = (u64::from(keys) * 192).max(1 << 30);
        let config = Config { threads, memory_bytes, ..Config::default() };
        let limits = Limits::parse("limits", b"").expect("no limits are good limits");
        let service = Service::new(config, None, limits, [1, 2, 3, 4], Box::new(|_| ()));
        let name = |index| String::from_utf8_lossy(&key(Space::Counter, index)).into_owned();
        let fill: Vec<u8> = if line.starts_with("take") {
            (0..keys).flat_map(|index| line.replace("{}", &name(index)).into_bytes()).collect()
        } else {
            (0..keys).flat_map(|n| format!("set {} 0 0 1\r\n0\r\n", name(n)).into_bytes()).collect()
        };
        let wires = (0..threads)
            .map(|thread| {
                let mut rng = Rng::new(thread as u64 + 1);
                let mut pick = || if is_hot { 0 } else { rng.below(keys) };
                let mut batch = || {
                    (0..PIPELINE)
                        .map(|_| line.replace("{}", &name(pick())))
                        .collect::<String>()
                        .into_bytes()
                };
                (0..BATCHES).map(|_| batch()).collect()
            })
            .collect();
        let mut worker = Local::new(&service, 0);
        let mut rest = &fill[..];
        while !rest.is_empty() {
            rest = &rest[answer(&mut worker, &service, rest, &mut Vec::new())..];
        }
        Self { service, wires }
    }
}
