//! Runs the cases, in a process that callgrind watches.
//!
//! Callgrind counts only the calls of [`measured`]: it resets its counter on entry and writes it on
//! exit. Each line on standard output names a counted case and the number of its operations. Not
//! here: starting callgrind (`callgrind`).

use std::hint::black_box;

use engine::{Now, PolicyRef, TakeParams as Units};
use protocol::{
    Bounds, Command, CountLine, Decoded, Get, ItemView, Key, Native, Operation, Outcome, Policy,
    PolicyArg, Request, Value, VerdictLine, VerdictWord, decode, encode, encode_hit,
};
use tollgate::config::Config;
use tollgate::runtime::service::Service;
use tollgate::session::Pause;
use tollgate_limits::{Limits, OverrideSource};

use crate::case::{CASES, Case};
use crate::link;
use crate::local::Local;

/// Keys of a case, 20 bytes each.
pub(crate) const KEYS: usize = 1600;
/// Requests that a client sends at once.
pub(crate) const PIPELINE: usize = 16;
/// More bytes than the replies to `PIPELINE` requests of 100 keys each.
const ANSWER_BYTES: usize = 64 << 10;

/// Runs a part of a case; returns false if the case has no such part.
type Run = fn(&Case) -> bool;

const PARTS: [(&str, Run); 3] =
    [("decode", decode_all), ("apply", apply_all), ("whole", answer_all)];

/// The function whose instructions are counted.
#[inline(never)]
pub(crate) fn measured(work: &mut dyn FnMut()) {
    work();
}

/// Runs every case whose name, `part.case`, contains `only`.
pub(crate) fn all(only: &str) {
    println!("{}", cpu());
    for (part, run) in PARTS {
        for case in &CASES {
            let name = format!("{part}.{}", case.name);
            if name.contains(only) && run(case) {
                println!("{name} {}", KEYS / case.keys);
            }
        }
    }
    for (name, run) in link::PARTS {
        run_named(&format!("link.{name}"), only, run);
    }
    for (name, line, outcome) in answers() {
        run_named(&format!("encode.{name}"), only, || encode_all(line, &outcome));
    }
}

/// Runs a case of [`KEYS`] operations if its name contains `only`.
fn run_named(name: &str, only: &str, run: impl FnOnce()) {
    if name.contains(only) {
        run();
        println!("{name} {KEYS}");
    }
}

/// The processor features by which the libraries choose their code paths.
fn cpu() -> String {
    let arch = std::env::consts::ARCH;
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        return format!("{arch} avx2");
    }
    arch.to_owned()
}

pub(crate) fn key(number: usize) -> String {
    format!("user:{number:015}")
}

/// Batches of requests on these keys, one request for each group of `keys` keys.
fn wires(request: &str, keys: usize) -> Vec<Vec<u8>> {
    let numbers: Vec<usize> = (0..KEYS).collect();
    let requests: Vec<String> = numbers
        .chunks(keys)
        .map(|group| {
            let words: Vec<String> = group.iter().map(|number| key(*number)).collect();
            request.replace("{}", &words.join(" "))
        })
        .collect();
    requests.chunks(PIPELINE).map(|group| group.concat().into_bytes()).collect()
}

/// The requests of a batch.
fn requests(wire: &[u8]) -> impl Iterator<Item = Request<'_>> {
    let mut rest = wire;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        match decode(rest, 0, Bounds::default()) {
            Ok(Decoded::Request { request, consumed }) => {
                rest = &rest[consumed..];
                Some(request)
            }
            other => panic!("{other:?}"),
        }
    })
}

fn decode_all(case: &Case) -> bool {
    let wires = wires(case.request, case.keys);
    measured(&mut || {
        for request in wires.iter().flat_map(|wire| requests(wire)) {
            black_box(&request);
        }
    });
    true
}

/// A server without sockets, and a client of it.
struct Client {
    service: Service,
    local: Local,
    now_ms: u64,
}

impl Client {
    /// A client and a server in the state that the case requires.
    fn ready_for(case: &Case) -> Self {
        let config = Config { threads: 1, ..Config::default() };
        // As in a server, the seeds come before the limits.
        let none = Limits::default();
        let service = Service::new(config, None, none, [1, 2, 3, 4], Box::new(|_| ()));
        let mut limits = Limits::parse("limits", case.limits.as_bytes()).expect("good limits");
        if !case.overrides.is_empty() {
            // So many that the keys of a batch are looked up together.
            let keys: Vec<String> = (0..KEYS).map(key).collect();
            let policy = Policy::parse(case.overrides.as_bytes()).expect("a policy");
            let rows = keys.iter().map(|key| (key.as_str(), (policy, None)));
            assert_eq!(limits.set_overrides("user", OverrideSource::Api, rows), []);
        }
        service.limits().replace(limits);
        // A server takes samples.
        service.open_probes([1, 2, 3, 4]);
        let local = Local::new(&service, 0);
        let mut client = Self { service, local, now_ms: 1000 };
        if !case.before.is_empty() {
            client.send(&wires(case.before, 1));
        }
        for _ in 0..case.repeated {
            client.send(&wires(case.request, case.keys));
        }
        client.now_ms += 1000;
        client
    }

    /// Sends all batches, one second later than the previous call.
    fn send(&mut self, wires: &[Vec<u8>]) {
        self.now_ms += 1000;
        self.answer(wires, &mut room_for_answers(wires));
    }

    /// Executes the batches; the replies to each go into the entry of `answers` with its index.
    fn answer(&mut self, wires: &[Vec<u8>], answers: &mut [Vec<u8>]) {
        let now = Now::at_ms(self.now_ms);
        for (wire, out) in wires.iter().zip(answers) {
            let end = self.local.answer(&self.service, now, wire, out);
            assert_eq!(end, (wire.len(), Pause::Input(1)));
        }
    }
}

fn room_for_answers(wires: &[Vec<u8>]) -> Vec<Vec<u8>> {
    wires.iter().map(|_| Vec::with_capacity(ANSWER_BYTES)).collect()
}

/// Runs whole requests: bytes in, bytes out.
fn answer_all(case: &Case) -> bool {
    let mut client = Client::ready_for(case);
    let wires = wires(case.request, case.keys);
    let mut answers = room_for_answers(&wires);
    measured(&mut || client.answer(&wires, &mut answers));
    let text = String::from_utf8(answers.concat()).expect("all is text here");
    assert_eq!(text.matches(case.answer).count(), KEYS, "{}: {text:.200}", case.name);
    true
}

/// A call to the engine.
enum Ask<'a> {
    Plain(Command<'a>),
    Take(Key<'a>, Policy, Units),
}

/// Applies decoded requests that need only the engine; returns false for other requests.
fn apply_all(case: &Case) -> bool {
    let wires = wires(case.request, case.keys);
    let asks: Vec<Ask<'_>> = wires.iter().flat_map(|wire| requests(wire)).flat_map(asks).collect();
    if asks.is_empty() || !case.limits.is_empty() {
        return false;
    }
    let client = Client::ready_for(case);
    let (shards, now) = (client.service.shards(), Now::at_ms(client.now_ms));
    measured(&mut || {
        for ask in &asks {
            match ask {
                Ask::Plain(command) => {
                    let hash = shards.hash(command.key.as_bytes());
                    shards.apply(now, hash, command, |outcome| {
                        black_box(&outcome);
                    });
                }
                Ask::Take(key, policy, units) => {
                    let key = key.as_bytes();
                    let (hash, rule) = (shards.hash(key), Some(PolicyRef::from(policy)));
                    black_box(shards.with_room(now, hash, |engine| {
                        Some(engine.take(now, hash, key, rule, units))
                    }));
                }
            }
        }
    });
    true
}

/// The engine calls of a request; empty if it needs more than the engine.
fn asks(request: Request<'_>) -> Vec<Ask<'_>> {
    match request {
        Request::Retrieve { keys, .. } => {
            let get = Operation::Get(Get::default());
            keys.iter()
                .map(|(key, _)| Ask::Plain(Command { key, operation: get.clone() }))
                .collect()
        }
        Request::Command { command, .. } => match &command.operation {
            Operation::Native(Native::Take(take)) => {
                let PolicyArg::Inline(token) = take.policy else { return Vec::new() };
                let policy = Policy::parse(token).expect("a good policy");
                let units = Units { cost: take.cost, ..Units::default() };
                vec![Ask::Take(command.key, policy, units)]
            }
            Operation::Native(_) => Vec::new(),
            _ => vec![Ask::Plain(command)],
        },
        _ => Vec::new(),
    }
}

/// Outcomes to encode: a name, the request, its outcome.
fn answers() -> [(&'static str, &'static [u8], Outcome<'static>); 6] {
    let item =
        ItemView { value: Value::Number(1234), ttl_seconds: Some(60), ..ItemView::default() };
    let verdict = VerdictLine {
        word: VerdictWord::Allow,
        limit: 200,
        remaining: 199,
        retry_ms: Some(0),
        reset_ms: 600,
        cas: None,
        lease: None,
        granted: None,
        at: None,
        shadow: false,
        degraded: false,
        ban: false,
    };
    let ttl_ms = Some(60_000);
    let count = CountLine { exists: false, value: 2, applied: 1, ttl_ms, cas: None };
    [
        ("incr", b"incr user:000000000000001 1\r\n", Outcome::Number(item)),
        ("get", b"get user:000000000000001\r\n", Outcome::Hit(item)),
        ("set", b"set user:000000000000001 0 0 1\r\n1\r\n", Outcome::Stored(item)),
        ("mg", b"mg user:000000000000001 v t f c k\r\n", Outcome::Hit(item)),
        ("incrx", b"incrx user:000000000000001 1 60\r\n", Outcome::Counted(count)),
        ("take", b"take user:000000000000001 1 bucket:5/s\r\n", Outcome::Verdict(verdict)),
    ]
}

fn encode_all(wire: &[u8], outcome: &Outcome<'_>) {
    let request = requests(wire).next().expect("one request");
    let mut out = Vec::with_capacity(ANSWER_BYTES);
    measured(&mut || {
        for _ in 0..KEYS {
            out.clear();
            match (black_box(&request), black_box(outcome)) {
                (Request::Command { command, form }, outcome) => {
                    encode(&mut out, command, form, outcome);
                }
                (Request::Retrieve { keys, .. }, Outcome::Hit(item)) => {
                    encode_hit(&mut out, keys.first().expect("a key"), item, false);
                }
                other => unreachable!("{other:?}"),
            }
            black_box(&out);
        }
    });
}
