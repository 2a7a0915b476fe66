//! The counted costs of an operation in a cluster: no allocation and no wake-up of another thread;
//! one place of the key, one lookup at each node, one lock of a shard and of a link for each batch.
//!
//! Here: two nodes of one worker each in this process; its allocator counts allocations, the system
//! wake-ups, the server its own steps. One test, because the counts include all threads of the
//! process. Not here: a server outside a cluster (`allocations`), system calls and bytes (`tests`,
//! `cluster`).

use std::alloc::System;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirEntry};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cluster::placement::ketama::{Circle, hash, ring_name};
use engine::{LOOKUPS, StepCount};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tollgate::config::{Config, Startup};
use tollgate::runtime::service::Service;
use tollgate::shards::SHARD_LOCKS;
use tollgate::{LINK_APPENDS, PLACED_KEYS, Server, ServerError};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const KEYS: usize = 1600;
const PIPELINE: usize = 16;
/// Batches per measurement.
const BATCHES: usize = 2000;
/// Tolerance per operation. The control plane takes each of these steps at all times: its cost at
/// rest is measured and subtracted, and may vary by this much.
const SPARE: f64 = 0.02;
/// The share of requests that are samples (`probe::gaps`).
const SAMPLED: f64 = 1.0 / 64.0;
const PATIENCE: Duration = Duration::from_secs(30);

/// The counted steps, in the order of [`Costs`].
const STEPS: [&str; 6] =
    ["allocations", "wake-ups", "placed keys", "lookups", "locks of shards", "appends to links"];

/// The counts of the whole process, by [`STEPS`].
type Costs = [f64; STEPS.len()];

/// Returns the costs and the duration of `work`.
fn costs_of(work: impl FnOnce()) -> (Costs, Duration) {
    let counts = [&PLACED_KEYS, &LOOKUPS, &SHARD_LOCKS, &LINK_APPENDS];
    let before = counts.map(StepCount::get);
    let (region, slept, begun) = (Region::new(ALLOCATOR), wakeups(), Instant::now());
    work();
    let (change, elapsed) = (region.change(), begun.elapsed());
    let [placed, lookups, locks, appends]: [u64; 4] =
        std::array::from_fn(|index| counts[index].get() - before[index]);
    // The threads that end meanwhile rested until then.
    let since =
        |(task, count): (OsString, u64)| count.saturating_sub(*slept.get(&task).unwrap_or(&0));
    let woken = wakeups().into_iter().map(since).sum();
    let allocations = (change.allocations + change.reallocations) as u64;
    ([allocations, woken, placed, lookups, locks, appends].map(real), elapsed)
}

/// Converts a count; none is near 2^32.
fn real(count: u64) -> f64 {
    u32::try_from(count).unwrap_or(u32::MAX).into()
}

/// Returns the wake-ups of each thread except the workers and this test's.
fn wakeups() -> BTreeMap<OsString, u64> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux tells").flatten();
    let of_task = |task: DirEntry| {
        let path = task.path();
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let status = fs::read_to_string(path.join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:"))?;
        let count: u64 = line.rsplit('\t').next()?.parse().ok()?;
        let is_other = !name.starts_with("worker-") && !name.starts_with("an_operation");
        is_other.then_some((task.file_name(), count))
    };
    tasks.filter_map(of_task).collect()
}

struct Client(TcpStream);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("a TCP stream");
        stream.set_read_timeout(Some(PATIENCE)).expect("it is open");
        Self(stream)
    }

    /// Sends requests and waits for `lines` lines.
    fn ask(&mut self, requests: &[u8], lines: usize, answer: &mut [u8]) -> usize {
        self.0.write_all(requests).expect("it reads");
        let (mut filled, mut received) = (0, 0);
        while received < lines {
            let count = self.0.read(&mut answer[filled..]).expect("it answers");
            assert!(count > 0, "it has hung up");
            let read = &answer[filled..filled + count];
            received += read.split(|byte| *byte == b'\n').count() - 1;
            filled += count;
        }
        filled
    }
}

#[test]
fn an_operation_costs_its_counted_steps() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let acceptor: Vec<TcpListener> =
        (0..4).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    let ports: Vec<SocketAddr> =
        acceptor.iter().map(|listener| listener.local_addr().expect("bound")).collect();
    drop(acceptor);
    let (clients, peers) = ports.split_at(2);
    let servers = start(folder.path(), clients, peers);
    until_at_rest(clients[0]);
    let mut wrong = Vec::new();
    let batch = 1.0 / real(PIPELINE as u64);
    // The key of a sample is placed once more.
    let placed = 1.0 + SAMPLED;
    // A node locks each shard of a batch once: up to one for each operation, or one for one key.
    for (what, asked, owner, keys, locks, appends) in [
        ("direct", 0, 0, KEYS, 2.0, batch),
        ("direct, one key", 0, 0, 1, 2.0 * batch, batch),
        ("forwarded", 0, 1, KEYS, 2.0, 2.0 * batch),
        ("forwarded, one key", 0, 1, 1, 2.0 * batch, 2.0 * batch),
    ] {
        let most: Costs = [0.0, 0.0, placed, 2.0, locks, appends];
        let wires = wires(clients, owner, keys);
        let mut client = Client::connect(clients[asked]);
        let mut answer = vec![0; 64 << 10];
        let mut send = |batches: usize| {
            for wire in wires.iter().cycle().take(batches) {
                let count = client.ask(wire, PIPELINE, &mut answer);
                assert!(
                    !answer[..count].contains(&b'E'),
                    "{}",
                    String::from_utf8_lossy(&answer[..count])
                );
            }
        };
        send(4 * BATCHES);
        let least = least_costs(|| send(BATCHES));
        for (step, (least, most)) in STEPS.into_iter().zip(least.into_iter().zip(most)) {
            println!("{what}: {least:.3} {step} an operation");
            // A step that is not counted would show 0.
            let is_counted = most == 0.0 || least > most / 2.0 - SPARE;
            if least > most + SPARE || !is_counted {
                wrong.push(format!("{what}: {least:.3} {step} an operation, at most {most:.3}"));
            }
        }
    }
    for (running, service) in servers {
        service.stop();
        running.join().expect("it has not panicked").expect("it has ended well");
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A node's thread, and its service.
type RunningNode = (JoinHandle<Result<(), ServerError>>, Arc<Service>);

/// Starts two nodes with two copies of each partition, a thread each.
fn start(folder: &Path, clients: &[SocketAddr], peers: &[SocketAddr]) -> [RunningNode; 2] {
    let seeds = format!("--seeds={},{}", peers[0], peers[1]);
    [0, 1].map(|index| {
        let data = folder.join(index.to_string());
        let args = [
            "tollgate".to_owned(),
            "--threads=1".to_owned(),
            "--listen=127.0.0.1".to_owned(),
            format!("--port={}", clients[index].port()),
            format!("--peer-listen={}", peers[index]),
            seeds.clone(),
            "--expect=2".to_owned(),
            "--replicas=2".to_owned(),
            format!("--data-dir={}", data.display()),
        ];
        let startup = Config::from_sources(args.map(Into::into), []).expect("it is right");
        let Startup::Serve(config) = startup else { panic!("it serves") };
        let server = Server::bind(*config, |_| ()).expect("the ports are free");
        let service = server.service();
        (thread::spawn(move || server.run()), service)
    })
}

/// Returns the costs of an operation: the least of three measurements of `work`, which does
/// [`BATCHES`] batches.
fn least_costs(mut work: impl FnMut()) -> Costs {
    let (at_rest, rest) = costs_of(|| thread::sleep(Duration::from_secs(2)));
    let mut least = [f64::INFINITY; STEPS.len()];
    for _ in 0..3 {
        let (busy, elapsed) = costs_of(&mut work);
        let share = elapsed.as_secs_f64() / rest.as_secs_f64();
        let operations = real((BATCHES * PIPELINE) as u64);
        for (least, (busy, at_rest)) in least.iter_mut().zip(busy.into_iter().zip(at_rest)) {
            *least = least.min((busy - at_rest * share) / operations);
        }
    }
    least
}

/// Returns batches of increments of `count` keys that `owner` owns.
fn wires(nodes: &[SocketAddr], owner: usize, count: usize) -> Vec<Vec<u8>> {
    let names: Vec<String> =
        nodes.iter().map(|node| ring_name(&node.ip().to_string(), node.port())).collect();
    let circle = Circle::new(names.iter().map(|name| (name.as_str(), 1)));
    let is_owned =
        |key: &String| circle.owner(hash(key.as_bytes())).map(usize::from) == Some(owner);
    let keys: Vec<String> =
        (0..).map(|number| format!("key:{number}")).filter(is_owned).take(count).collect();
    let mut client = Client::connect(nodes[owner]);
    let mut answer = [0; 4096];
    for key in &keys {
        client.ask(format!("set {key} 0 0 1\r\n0\r\n").as_bytes(), 1, &mut answer);
    }
    let requests: Vec<String> =
        keys.iter().cycle().take(KEYS).map(|key| format!("incr {key} 1\r\n")).collect();
    requests.chunks(PIPELINE).map(|batch| batch.concat().into_bytes()).collect()
}

fn until_at_rest(address: SocketAddr) {
    let begun = Instant::now();
    let wanted = ["nodes_active 2", "partitions_learners 0", "partitions_under_replicated 0"];
    loop {
        let mut client = Client::connect(address);
        client.0.write_all(b"stats cluster\r\nquit\r\n").expect("it reads");
        let mut text = String::new();
        let _ = client.0.read_to_string(&mut text);
        if wanted.iter().all(|wanted| text.contains(&format!("STAT {wanted}\r\n"))) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "not at rest: {text}");
        thread::sleep(Duration::from_millis(50));
    }
}
