//! The costs of an operation in a cluster beside the work itself: no allocation, and no wake-up of
//! another thread.
//!
//! Here: two nodes of one worker each in this process; its allocator counts allocations, and the
//! system counts wake-ups. One test, because the counts include all threads of the process. Not
//! here: a server outside a cluster (`allocations`).

use std::alloc::System;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirEntry};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use cluster::placement::ketama::{Circle, hash, ring_name};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tollgate::Server;
use tollgate::config::{Config, Startup};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const KEYS: usize = 1600;
const PIPELINE: usize = 16;
/// Batches per measurement.
const BATCHES: usize = 2000;
/// Tolerance per operation. The control plane allocates and wakes threads at all times: its cost at
/// rest is measured and subtracted, and may vary by this much.
const SPARE: f64 = 0.02;
const PATIENCE: Duration = Duration::from_secs(30);

/// The costs of the whole process.
#[derive(Debug, Clone, Copy)]
struct Costs {
    allocations: f64,
    wakeups: f64,
}

impl Costs {
    /// Returns the costs and the duration of `work`.
    fn of(work: impl FnOnce()) -> (Self, Duration) {
        let (region, before, begun) = (Region::new(ALLOCATOR), wakeups(), Instant::now());
        work();
        let (change, elapsed) = (region.change(), begun.elapsed());
        let allocations = real((change.allocations + change.reallocations) as u64);
        // The threads that end meanwhile rested until then.
        let since =
            |(task, count): (OsString, u64)| count.saturating_sub(*before.get(&task).unwrap_or(&0));
        let wakeups = real(wakeups().into_iter().map(since).sum());
        (Self { allocations, wakeups }, elapsed)
    }
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
fn an_operation_allocates_and_wakes_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let acceptor: Vec<TcpListener> =
        (0..4).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    let ports: Vec<SocketAddr> =
        acceptor.iter().map(|listener| listener.local_addr().expect("bound")).collect();
    drop(acceptor);
    let (clients, peers) = ports.split_at(2);
    let seeds = format!("--seeds={},{}", peers[0], peers[1]);
    let servers = [0, 1].map(|index| {
        let data = folder.path().join(index.to_string());
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
    });
    until_at_rest(clients[0]);
    let mut wrong = Vec::new();
    for (what, asked, owner) in [("direct", 0, 0), ("forwarded", 0, 1)] {
        let wires = wires(clients, owner);
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
        let (at_rest, rest) = Costs::of(|| thread::sleep(Duration::from_secs(2)));
        let costs = (0..3).map(|_| {
            let (busy, elapsed) = Costs::of(|| send(BATCHES));
            let share = elapsed.as_secs_f64() / rest.as_secs_f64();
            let operations = real((BATCHES * PIPELINE) as u64);
            Costs {
                allocations: (busy.allocations - at_rest.allocations * share) / operations,
                wakeups: (busy.wakeups - at_rest.wakeups * share) / operations,
            }
        });
        let best = costs
            .reduce(|one, other| Costs {
                allocations: one.allocations.min(other.allocations),
                wakeups: one.wakeups.min(other.wakeups),
            })
            .expect("there are some");
        println!("{what}: {best:?} an operation");
        if best.allocations > SPARE || best.wakeups > SPARE {
            wrong.push(format!("{what}: {best:?}"));
        }
    }
    for (running, service) in servers {
        service.stop();
        running.join().expect("it has not panicked").expect("it has ended well");
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Returns batches of increments of keys that `owner` owns.
fn wires(nodes: &[SocketAddr], owner: usize) -> Vec<Vec<u8>> {
    let names: Vec<String> =
        nodes.iter().map(|node| ring_name(&node.ip().to_string(), node.port())).collect();
    let circle = Circle::new(names.iter().map(|name| (name.as_str(), 1)));
    let is_owned =
        |key: &String| circle.owner(hash(key.as_bytes())).map(usize::from) == Some(owner);
    let keys: Vec<String> =
        (0..).map(|number| format!("key:{number}")).filter(is_owned).take(KEYS).collect();
    let mut client = Client::connect(nodes[owner]);
    let mut answer = [0; 4096];
    for key in &keys {
        client.ask(format!("set {key} 0 0 1\r\n0\r\n").as_bytes(), 1, &mut answer);
    }
    let requests: Vec<String> = keys.iter().map(|key| format!("incr {key} 1\r\n")).collect();
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
