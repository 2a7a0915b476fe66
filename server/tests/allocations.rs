//! No request on an existing key allocates.
//!
//! Here: the allocator of the process counts, around a session without a socket and around a live
//! server. One test, because the count includes all threads of the process. Not here: the replies.

use std::alloc::System;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use engine::Now;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tollgate::Server;
use tollgate::commands::scratch::Scratch;
use tollgate::config::{Config, ListenAddr};
use tollgate::runtime::service::Service;
use tollgate::session::{Pause, Session, SessionContext};
use tollgate_limits::Limits;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const KEYS: usize = 1600;
/// Requests per read: one takes a path of its own, sixty-four make several batches.
const PIPELINES: [usize; 3] = [1, 16, 64];
/// Measured requests per key, after one unmeasured request.
const TURNS: usize = 3;
const REQUESTS: usize = TURNS * KEYS;
/// Requests of a measured run at a live server, and such runs of each request.
const LIVE_RUN: usize = 250;
const LIVE_RUNS: usize = 4;
/// More bytes than the replies to one read.
const ANSWER_BYTES: usize = 64 << 10;

const NUMBER: &str = "set {} 0 0 2\r\n10\r\n";
const VALUE: &str = "set {} 0 0 32\r\n01234567890123456789012345678901\r\n";
const BUCKET: &str = "take {} 1 bucket:1000/60s,capacity=2000\r\n";
const WINDOW: &str = "take {} 1 sliding:1000/60s\r\n";

/// Two limits, one with a parent.
const LIMITS: &str = "\
    [[limit]]\nname = 'user'\nmatch = 'user:{id}'\npolicy = 'sliding:1000/60s'\n\
    [[limit]]\nname = 'tenant'\nmatch = 'tenant:{x}'\npolicy = 'bucket:1M/d'\n\
    [[limit]]\nname = 'member'\nmatch = 'member:{id}'\npolicy = 'bucket:1000/60s'\n\
    parents = ['tenant:1']\n";

/// The request to prepare each key, and the measured request.
const PLAIN: [(&str, &str); 29] = [
    (NUMBER, "incr {} 1\r\n"),
    (NUMBER, "incr {} 1 noreply\r\n"),
    (NUMBER, "add {} 0 0 2\r\n11\r\n"),
    (NUMBER, "cas {} 0 0 2 1\r\n11\r\n"),
    ("", "delete {}\r\n"),
    ("", "md {}\r\n"),
    ("", "take {} 1 leaky:1000/60s\r\n"),
    (NUMBER, "decr {} 1\r\n"),
    (NUMBER, "get {}\r\n"),
    (VALUE, "gets {}\r\n"),
    (VALUE, VALUE),
    (NUMBER, "touch {} 60\r\n"),
    (NUMBER, "gat 60 {}\r\n"),
    ("", "get {}\r\n"),
    ("", "incr {} 1\r\n"),
    (NUMBER, "mg {} t v\r\n"),
    (VALUE, "ms {} 32 T60\r\n01234567890123456789012345678901\r\n"),
    (NUMBER, "ma {} N60 v\r\n"),
    ("", "ma {} v Pbucket:1000/60s\r\n"),
    ("", BUCKET),
    ("", "take {} 2001 bucket:1000/60s,capacity=2000\r\n"),
    (BUCKET, "refund {} 0\r\n"),
    ("", WINDOW),
    ("", "take {} 1 sliding:1000/60s,slices=6\r\n"),
    ("", "take {} 1 log:1/60s\r\n"),
    ("", "take {} 1 gcra:1000/60s\r\n"),
    ("", "take {} 1 fixed:1000/60s\r\n"),
    ("", "incrx {} 1 60\r\n"),
    ("", "slide {} 1 60s\r\n"),
];

/// The same for keys of these limits, by prefix.
const BOUND: [(&str, &str, &str); 9] = [
    ("user", "", "incr {} 1\r\n"),
    ("user", "incr {} 1\r\n", "get {}\r\n"),
    ("user", "", "take {} 1 -\r\n"),
    ("user", "", "ma {} v\r\n"),
    ("member", "", "incr {} 1\r\n"),
    ("member", "", "take {} 1 -\r\n"),
    ("user", "", "takem 1 {}\r\n"),
    ("member", "", "takem 1 {}\r\n"),
    ("other", NUMBER, "incr {} 1\r\n"),
];

/// Requests that allocate, and their most allocations.
const ALLOCATING: [(&str, usize); 3] = [
    // Holders are a list, copied to be changed and again to be sorted by time.
    ("take {} 1 concurrency:20\r\n", 3),
    // A negative number is stored as text.
    ("incrx {} -1 60 signed\r\n", 1),
    // The error message is formatted.
    ("incr {} x\r\n", 1),
];

#[test]
fn nothing_is_allocated_for_a_request() {
    let mut wrong = Vec::new();
    let mut check = |what: &str, count: usize, max: usize| {
        if count > max {
            wrong.push(format!("{what:?}: {count} allocations, at most {max}"));
        }
    };
    for pipeline in PIPELINES {
        let mut check = |what: &str, count: usize, max: usize| {
            check(&format!("{what} at {pipeline}"), count, max);
        };
        for (before, request) in PLAIN {
            check(request, in_a_session("", "user", before, request, (1, pipeline)), 0);
        }
        check("get of 100", in_a_session("", "user", NUMBER, "get {}\r\n", (100, pipeline)), 0);
        for (prefix, before, request) in BOUND {
            let what = format!("{prefix} {request}");
            check(&what, in_a_session(LIMITS, prefix, before, request, (1, pipeline)), 0);
        }
        for (request, max) in ALLOCATING {
            let count = in_a_session("", "user", "", request, (1, pipeline));
            check(request, count, max * REQUESTS);
        }
    }
    for (what, count) in at_a_live_server() {
        check(what, count, 0);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the bytes of each read: one request per group of `keys` keys, `pipeline` requests at
/// once.
fn wires(prefix: &str, request: &str, (keys, pipeline): (usize, usize)) -> Vec<Vec<u8>> {
    let names: Vec<String> = (0..KEYS).map(|index| format!("{prefix}:{index:015}")).collect();
    let requests: Vec<String> =
        names.chunks(keys).map(|group| request.replace("{}", &group.join(" "))).collect();
    requests.chunks(pipeline).map(|group| group.concat().into_bytes()).collect()
}

/// Returns the allocator calls during `work`: the lesser of two runs, because the threads of the
/// test harness allocate at any time.
fn allocations(mut work: impl FnMut()) -> usize {
    let mut count = || {
        let region = Region::new(ALLOCATOR);
        work();
        let change = region.change();
        change.allocations + change.reallocations
    };
    count().min(count())
}

/// Returns the allocations of a session that executes `request` repeatedly.
fn in_a_session(
    limits: &str,
    prefix: &str,
    before: &str,
    request: &str,
    (keys, pipeline): (usize, usize),
) -> usize {
    let config = Config { threads: 1, ..Config::default() };
    let limits = Limits::parse("limits", limits.as_bytes()).expect("good limits");
    let service = Service::new(config, None, limits, [1, 2, 3, 4], Box::new(|_| ()));
    let (mut session, mut scratch) = (Session::default(), Scratch::default());
    let active_limits = service.limits().load();
    let mut out = Vec::with_capacity(ANSWER_BYTES);
    let mut asked = 0;
    let mut send = |wires: &[Vec<u8>]| {
        for wire in wires {
            // The time per request is the same at every pipeline, so that states age alike.
            asked += pipeline as u64;
            let now = Now::at_ms(1000 + asked / 16);
            let mut ctx = SessionContext::new(
                &service,
                service.counters(0),
                now,
                &active_limits,
                &mut scratch,
            );
            out.clear();
            let end = session.run(&mut ctx, wire, &mut out);
            assert_eq!(end, (wire.len(), Pause::Input(1)), "{request}");
            let is_error =
                |line: &[u8]| line.starts_with(b"ERROR") || line.starts_with(b"CLIENT_ERROR");
            let refused = out.split(|byte| *byte == b'\n').any(is_error);
            assert_eq!(refused, wire.ends_with(b" x\r\n"), "{request}");
        }
    };
    send(&wires(prefix, before, (1, 16)));
    let wires = wires(prefix, request, (keys, pipeline));
    send(&wires);
    allocations(|| (0..TURNS).for_each(|_| send(&wires)))
}

/// Returns the allocations of a live server, for single and pipelined requests.
fn at_a_live_server() -> Vec<(&'static str, usize)> {
    let listen = vec![ListenAddr { host: "127.0.0.1".to_owned(), port: 0, label: None }];
    let config = Config { threads: 1, listen, ..Config::default() };
    let server = Server::bind(config, |_| ()).expect("a port of the system's choice");
    let (address, service) = (server.addresses()[0], server.service());
    let running = thread::spawn(move || server.run());
    let counts = live(address);
    service.stop();
    running.join().expect("it has not panicked").expect("it has ended well");
    counts
}

fn live(address: SocketAddr) -> Vec<(&'static str, usize)> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("a TCP stream");
    let mut answer = vec![0; ANSWER_BYTES];
    let mut ask = |request: &[u8], end: &[u8]| {
        stream.write_all(request).expect("it reads");
        let mut filled = 0;
        while !answer[..filled].ends_with(end) {
            let read = stream.read(&mut answer[filled..]).expect("it answers");
            assert!(read > 0, "it has hung up");
            filled += read;
        }
    };
    for key in 0..100 {
        ask(format!("set k{key} 0 0 2\r\n10\r\n").as_bytes(), b"STORED\r\n");
    }
    let all = (0..100).map(|key| format!("k{key}")).collect::<Vec<_>>().join(" ");
    let many = |request: &str, count: usize| [&request.repeat(count), "mn\r\n"].concat();
    let take = "take t 1 bucket:1M/d\r\n";
    let requests = [
        ("live, get", "get k1\r\n".to_owned(), "END\r\n"),
        ("live, get of 100", format!("get {all}\r\n"), "END\r\n"),
        ("live, set", "set k1 0 0 2\r\n10\r\n".to_owned(), "STORED\r\n"),
        ("live, incr", many("incr k1 1\r\n", 1), "MN\r\n"),
        ("live, incr at 64", many("incr k1 1\r\n", 64), "MN\r\n"),
        ("live, take", many(take, 1), "MN\r\n"),
        ("live, take at 16", many(take, 16), "MN\r\n"),
    ];
    requests
        .map(|(what, request, end)| {
            let mut ask_often = || {
                for _ in 0..LIVE_RUN {
                    ask(request.as_bytes(), end.as_bytes());
                }
            };
            ask_often();
            // Once a second the observer's thread allocates too, so a run must end sooner.
            let mut least = || [(); 3].map(|()| allocations(&mut ask_often)).into_iter().min();
            let count = (0..LIVE_RUNS).filter_map(|_| least()).sum();
            (what, count)
        })
        .into()
}
