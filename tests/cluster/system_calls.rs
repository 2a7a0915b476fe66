//! System calls of a round, counted: two nodes make four more than a lone server, a `send` and a
//! `recv` each.
//!
//! Here: `strace` on live nodes under one client's batches. Not here: allocations and threads
//! (`server/tests/cluster_costs.rs`), time (`benches`).

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use super::nodes::{Cluster, LONG, Line};
use super::overload::owned;
use crate::live::Server;

/// Requests of a batch.
const PIPELINE: usize = 16;
/// Batches that are counted; periodic calls are spread over them.
const ROUNDS: usize = 400;
/// The system calls of a worker that move bytes or wait for them.
const COUNTED: [&str; 8] =
    ["read", "write", "recvfrom", "recvmsg", "sendto", "sendmsg", "writev", "readv"];
/// Calls of links and the control plane by the clock: per batch, and per second of a measurement.
const SPARE: f64 = 0.3;
const SPARE_PER_SECOND: f64 = 400.0;

/// A running `strace` that counts the calls of a process.
struct Tracer {
    child: Child,
    path: std::path::PathBuf,
}

impl Tracer {
    fn start(process: i32, folder: &std::path::Path) -> Self {
        let path = folder.join(format!("calls-{process}"));
        let child = Command::new("strace")
            .args(["-f", "-c", "-o"])
            .arg(&path)
            .args(["-p", &process.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("tests/setup.sh installs strace");
        let status = format!("/proc/{process}/status");
        let start = Instant::now();
        let is_traced = || {
            let text = fs::read_to_string(&status).expect("the process runs");
            text.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
        };
        while !is_traced() {
            assert!(start.elapsed() < LONG, "strace does not attach");
            thread::sleep(Duration::from_millis(5));
        }
        // `strace` attaches to one thread after the other.
        thread::sleep(Duration::from_millis(200));
        Self { child, path }
    }

    /// The counted calls since the start.
    fn end(mut self) -> u64 {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid fits"));
        signal::kill(pid, Signal::SIGINT).expect("strace runs");
        self.child.wait().expect("strace is a child");
        let text = fs::read_to_string(&self.path).expect("strace has written");
        let calls = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let name = words.last().filter(|name| COUNTED.contains(name));
            name.and_then(|_| words.get(3)?.parse::<u64>().ok())
        };
        text.lines().filter_map(calls).sum()
    }
}

/// Sends batches of increments and waits for the replies to each.
fn count(line: &mut Line, keys: &[String], rounds: usize) {
    let lines: Vec<String> = keys.iter().map(|key| format!("incr {key} 1\r\n")).collect();
    let batch = lines.concat();
    for _ in 0..rounds {
        line.send(&batch).expect("it reads");
        for key in keys {
            let reply = line.receive().expect("it answers").expect("a line");
            assert!(reply.parse::<u64>().is_ok(), "{key}: {reply}");
        }
    }
}

/// The system calls of all these processes per batch of `line`.
fn calls_of_a_round(processes: &[i32], line: &mut Line, keys: &[String]) -> (f64, f64) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    count(line, keys, ROUNDS);
    let start = Instant::now();
    let tracers: Vec<Tracer> =
        processes.iter().map(|process| Tracer::start(*process, folder.path())).collect();
    count(line, keys, ROUNDS);
    let calls: u64 = tracers.into_iter().map(Tracer::end).sum();
    let rounds = f64::from(ROUNDS as u32);
    let calls = f64::from(u32::try_from(calls).expect("few calls"));
    (calls / rounds, start.elapsed().as_secs_f64() / rounds)
}

fn set_all(line: &mut Line, keys: &[String]) {
    for key in keys {
        let reply = line.ask(&format!("set {key} 0 0 1\r\n0\r\n")).expect("it answers");
        assert_eq!(reply.as_deref(), Some("STORED"));
    }
}

#[test]
fn a_round_of_two_nodes_makes_four_more_system_calls() {
    let server = Server::start(&["-t", "1"]);
    let mut client = Line::connect(server.address()).expect("it listens");
    let keys: Vec<String> = (0..PIPELINE).map(|n| format!("call{n}")).collect();
    set_all(&mut client, &keys);
    let (calls_alone, _) =
        calls_of_a_round(&[i32::try_from(server.pid()).expect("a pid fits")], &mut client, &keys);
    drop(client);
    drop(server);
    let mut wrong = Vec::new();
    for (replicas, owner) in [("2", 0), ("1", 1)] {
        let cluster = Cluster::start(2, &["-t", "1", "--replicas", replicas]);
        let keys = owned(&cluster, owner, "call", PIPELINE);
        let mut line = cluster.line(0);
        set_all(&mut line, &keys);
        let processes = [cluster.process(0), cluster.process(1)];
        let (calls, seconds) = calls_of_a_round(&processes, &mut line, &keys);
        println!("{replicas} copies: {calls:.2} calls a round, alone {calls_alone:.2}");
        if calls > calls_alone + 4.0 + SPARE + SPARE_PER_SECOND * seconds {
            wrong.push(format!("{replicas} copies: {calls:.2} for {calls_alone:.2} and 4"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
