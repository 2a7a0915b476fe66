//! One atomic step for a call of a language model: requests, tokens and running calls are charged
//! together by one `take`, and settled together.
//!
//! Here: the limits, the clients with their account, and a lone server. Not here: nodes that die
//! (`cluster/llm`), the charges one by one (`node/limit_op_tests` of the server).

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    api::write_limits,
    live::{PATIENCE, Server},
};

/// The limits of one organisation: calls, tokens, calls at once; and tokens of each of its users.
pub(crate) const LIMITS: &str = r#"
[[limit]]
name    = "llm"
match   = "llm:{org}:{user}"
policy  = "fixed:1G/1d"
parents = ["tok:{org}", { key = "req:{org}", cost = 1 }, { key = "run:{org}", cost = 1, hold = "1s" }]
on_unavailable = "error"

[[limit]]
name   = "tok"
match  = "tok:{org}"
policy = "fixed:900k/1d"

[[limit]]
name   = "req"
match  = "req:{org}"
policy = "fixed:4000/1d"

[[limit]]
name   = "run"
match  = "run:{org}"
policy = "concurrency:40"
"#;

const TOKENS_MAX: u64 = 900_000;
const CALLS_MAX: u64 = 4_000;
const RUNNING_MAX: i64 = 40;

const CLIENTS: usize = 64;
const ATTEMPTS: usize = 10_000;

/// A refusal by a node that dies within this time may leave units spent: their refund dies with it.
const LOST_WITHIN: Duration = Duration::from_secs(3);

/// The bounds of what is spent: what the replies say, and what may have happened without one.
#[derive(Debug, Default, Clone, Copy)]
struct Spent {
    tokens: (u64, u64),
    calls: (u64, u64),
}

/// The account of all clients.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    attempts: AtomicUsize,
    running: AtomicI64,
    most_running: AtomicI64,
    allowed: AtomicUsize,
    settled: AtomicUsize,
    spent: Mutex<Spent>,
    /// Refusals: the node, the time, and the tokens.
    refused: Mutex<Vec<(SocketAddr, Instant, u64)>>,
    faults: Mutex<Vec<String>>,
}

/// A client's connection, which is renewed at another node if it ends.
struct Caller<'a> {
    nodes: &'a [SocketAddr],
    at: usize,
    stream: Option<BufReader<TcpStream>>,
    random: u64,
}

impl Caller<'_> {
    fn node(&self) -> SocketAddr {
        self.nodes[self.at % self.nodes.len()]
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn connect(&self) -> std::io::Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect_timeout(&self.node(), Duration::from_secs(1))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(BufReader::new(stream))
    }

    /// The reply; `None` if the connection ended, and it is not known whether the node has acted.
    fn ask(&mut self, text: &str) -> Option<String> {
        while self.stream.is_none() {
            if let Ok(stream) = self.connect() {
                self.stream = Some(stream);
            } else {
                self.at += 1;
                thread::sleep(Duration::from_millis(5));
            }
        }
        let stream = self.stream.as_mut()?;
        let mut line = String::new();
        let sent = stream.get_mut().write_all(text.as_bytes());
        let read = sent.and_then(|()| stream.read_line(&mut line));
        if read.is_ok() && line.ends_with("\r\n") {
            return Some(line);
        }
        self.stream = None;
        self.at += 1;
        None
    }
}

/// The value of a pair of a verdict line.
fn pair<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

impl Ledger {
    pub(crate) fn attempts(&self) -> usize {
        self.attempts.load(Ordering::Relaxed)
    }

    fn spend(&self, tokens: (u64, u64), calls: (u64, u64)) {
        let mut spent = self.spent.lock().expect("no thread panics with it");
        spent.tokens = (spent.tokens.0 + tokens.0, spent.tokens.1 + tokens.1);
        spent.calls = (spent.calls.0 + calls.0, spent.calls.1 + calls.1);
    }

    fn fault(&self, text: &str) {
        self.faults.lock().expect("no thread panics with it").push(text.trim_end().to_owned());
    }

    /// One call: an estimate, and for most the true cost after it.
    fn call(&self, client: usize, caller: &mut Caller<'_>) {
        let estimate = 1 + caller.below(500);
        let node = caller.node();
        let take = format!("take llm:acme:u{client} {estimate} - hold=2s\r\n");
        let Some(line) = caller.ask(&take) else {
            return self.spend((0, estimate), (0, 1));
        };
        if line.starts_with("DENY ") {
            let refusal = (node, Instant::now(), estimate);
            self.refused.lock().expect("no thread panics with it").push(refusal);
            return thread::sleep(Duration::from_millis(1));
        }
        if !line.starts_with("ALLOW ") {
            if !line.starts_with("SERVER_ERROR ") {
                self.fault(&line);
            }
            return self.spend((0, estimate), (0, 1));
        }
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        self.allowed.fetch_add(1, Ordering::Relaxed);
        let id = pair(&line, "lease").unwrap_or_default().to_owned();
        if pair(&line, "hold") != Some(&format!("run:{id}")) {
            self.fault(&line);
        }
        thread::sleep(Duration::from_micros(caller.below(1500)));
        // The count of this test is never above that of the server.
        self.running.fetch_sub(1, Ordering::SeqCst);
        if caller.below(200) == 0 {
            // The client dies: the estimate stays spent, and the running call ends with its hold.
            return self.spend((estimate, estimate), (1, 1));
        }
        let actual = 1 + caller.below(estimate);
        let line = caller.ask(&format!("settle llm:acme:u{client} {id} {actual}\r\n"));
        if line.as_ref().is_some_and(|line| line.starts_with("SETTLED ")) {
            self.settled.fetch_add(1, Ordering::Relaxed);
            return self.spend((actual, actual), (1, 1));
        }
        if let Some(line) = &line
            && !line.starts_with("SERVER_ERROR ")
            && !line.starts_with("NOT_FOUND")
        {
            self.fault(line);
        }
        self.spend((actual, estimate), (1, 1));
    }

    /// Makes all calls, from as many clients at once. `meanwhile` runs beside them.
    pub(crate) fn run(&self, nodes: &[SocketAddr], meanwhile: impl FnOnce()) {
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(client as u64 + 1);
                    let mut caller = Caller { nodes, at: client, stream: None, random };
                    while self.attempts.fetch_add(1, Ordering::Relaxed) < ATTEMPTS {
                        self.call(client, &mut caller);
                    }
                });
            }
            meanwhile();
        });
    }

    /// Checks the limits and the account at a node, at the end. `died`: the node that was killed,
    /// and when.
    #[track_caller]
    pub(crate) fn check(&self, node: SocketAddr, died: Option<(SocketAddr, Instant)>) {
        let nodes = [node];
        let mut caller = Caller { nodes: &nodes, at: 0, stream: None, random: 1 };
        let Spent { mut tokens, mut calls } = *self.spent.lock().expect("all threads have ended");
        for (node, at, estimate) in self.refused.lock().expect("all have ended").iter() {
            if died.is_some_and(|(dead, when)| dead == *node && when < *at + LOST_WITHIN) {
                (tokens.1, calls.1) = (tokens.1 + estimate, calls.1 + 1);
            }
        }
        let (allowed, settled) = (&self.allowed, &self.settled);
        println!(
            "{allowed:?} allowed, {settled:?} settled, {:?} at once, tokens {tokens:?}, calls \
             {calls:?}",
            self.most_running
        );
        assert_eq!(*self.faults.lock().expect("all have ended"), Vec::<String>::new());
        assert!(self.most_running.load(Ordering::SeqCst) <= RUNNING_MAX);
        // Whoever fell silent is forgotten after the duration of the hold.
        let start = Instant::now();
        let mut used = |key: &str| -> Option<u64> {
            caller.ask(&format!("incr {key} 0\r\n"))?.trim_end().parse().ok()
        };
        while used("run:acme") != Some(0) {
            assert!(start.elapsed() < PATIENCE, "{:?} calls leaked", used("run:acme"));
            thread::sleep(Duration::from_millis(50));
        }
        let mut within = |key: &str, (least, most): (u64, u64), max: u64| {
            let used = used(key).expect("a number");
            assert!((least..=most).contains(&used) && used <= max, "{key} {used} {least} {most}");
        };
        within("tok:acme", tokens, TOKENS_MAX);
        within("req:acme", calls, CALLS_MAX);
    }
}

#[test]
fn a_call_is_one_atomic_step_on_one_node() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let server = Server::start(&["-t", "2", "--limits", &write_limits(folder.path(), LIMITS)]);
    let ledger = Ledger::default();
    ledger.run(&[server.address()], || ());
    ledger.check(server.address(), None);
    assert!(ledger.allowed.load(Ordering::Relaxed) > 1000, "it is busy");
}

/// A window in which a test makes all of its requests, on a busy machine too.
const WINDOW: Duration = Duration::from_secs(3);

#[test]
fn call_that_ends_in_a_later_window_frees_nothing() {
    let limits = LIMITS.replace("fixed:900k/1d", "fixed:100/3s");
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let server = Server::start(&["--limits", &write_limits(folder.path(), &limits)]);
    let mut client = server.connect();
    let mut ask = |line: &str| client.ask_until(format!("{line}\r\n"), "\r\n");
    let long = ask("take llm:acme:ann 100 - hold=1m");
    assert!(long.starts_with("ALLOW "), "{long}");
    let lease = pair(&long, "lease").expect("it is a hold").to_owned();
    assert!(ask("take llm:acme:bob 1 -").starts_with("DENY "), "the window is full");
    thread::sleep(WINDOW);
    assert!(ask("take llm:acme:bob 100 -").starts_with("ALLOW "), "a new window");
    assert!(ask(&format!("settle llm:acme:ann {lease} 10")).starts_with("SETTLED "));
    let after = ask("take llm:acme:bob 1 -");
    assert!(after.starts_with("DENY 100 0 ") && after.contains(" by=tok"), "{after}");
}
