//! Constant load, and the account of it.
//!
//! Here: clients that count on any node and go to another when theirs is gone. Not here: what happens
//! to the nodes meanwhile.
//!
//! `incr` answers with a value, so every count shows: the answers to one key must all differ, and
//! what the key holds at the end is what was acknowledged, and at most what has an unknown outcome
//! besides.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::nodes::{Cluster, Line};

/// What one key's clients were told.
#[derive(Debug, Default, Clone)]
struct Told {
    values: Vec<u64>,
    /// Requests whose answer never came, or was "outcome unknown".
    unknown: u64,
}

/// What clients of all keys saw.
#[derive(Debug, Default)]
pub(super) struct Account {
    keys: BTreeMap<String, Told>,
    /// Answers that are no count.
    pub(super) errors: Vec<String>,
    /// Connections that ended in the middle of a request.
    pub(super) broken: u64,
    /// The longest time between two answers to one client.
    pub(super) longest: Duration,
    pub(super) answered: u64,
}

/// Clients at work.
pub(super) struct Work {
    stop: Arc<AtomicBool>,
    places: Arc<Mutex<Vec<SocketAddr>>>,
    done: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Account>>,
}

impl Work {
    /// `count` clients, each with its own connection, on `keys` keys that are at 0.
    pub(super) fn start(cluster: &Cluster, count: usize, keys: usize) -> Self {
        let mut line = cluster.line(0);
        for key in 0..keys {
            let told = line.ask(&format!("set work{key} 0 0 1\r\n0\r\n")).expect("it answers");
            assert_eq!(told.as_deref(), Some("STORED"));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicU64::new(0));
        let places = Arc::new(Mutex::new(cluster.addresses()));
        let clients = (0..count)
            .map(|number| {
                let (stop, places, done) =
                    (Arc::clone(&stop), Arc::clone(&places), Arc::clone(&done));
                thread::spawn(move || client(number, keys, &stop, &places, &done))
            })
            .collect();
        Self { stop, places, done, clients }
    }

    /// From now on clients are at these nodes.
    pub(super) fn use_nodes(&self, places: Vec<SocketAddr>) {
        *self.places.lock().expect("nobody panics with it") = places;
    }

    /// Lets `count` more requests be answered.
    #[track_caller]
    pub(super) fn until_answered(&self, count: u64) {
        let (from, start) = (self.done.load(Ordering::Relaxed), Instant::now());
        while self.done.load(Ordering::Relaxed) < from + count {
            assert!(start.elapsed() < Duration::from_secs(30), "no answers");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the clients, and settles their account with what the keys hold.
    #[track_caller]
    pub(super) fn settle(self, cluster: &Cluster, node: u8) -> Account {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Account::default();
        for client in self.clients {
            let account = client.join().expect("a client does not panic");
            all.errors.extend(account.errors);
            all.broken += account.broken;
            all.answered += account.answered;
            all.longest = all.longest.max(account.longest);
            for (key, told) in account.keys {
                let kept = all.keys.entry(key).or_default();
                kept.values.extend(told.values);
                kept.unknown += told.unknown;
            }
        }
        let mut line = cluster.line(node);
        for (key, told) in &mut all.keys {
            let answer = line.lines(&format!("get {key}\r\n")).expect("it answers");
            let [_, value] = answer.as_slice() else { panic!("{key}: {answer:?}") };
            let value: u64 = value.trim().parse().expect("a count");
            let acknowledged = told.values.len() as u64;
            told.values.sort_unstable();
            told.values.dedup();
            assert_eq!(told.values.len() as u64, acknowledged, "{key}: a value was told twice");
            assert!(value >= acknowledged, "{key}: {acknowledged} acknowledged, {value} kept");
            let most = acknowledged + told.unknown;
            assert!(value <= most, "{key}: {most} asked at most, {value} kept");
            assert!(told.values.last().is_none_or(|last| *last <= value), "{key}: beyond {value}");
        }
        all
    }
}

/// A place to start from that differs from client to client.
fn place(places: &Mutex<Vec<SocketAddr>>, turn: usize) -> SocketAddr {
    let places = places.lock().expect("nobody panics with it");
    places[turn % places.len()]
}

/// Whether a client may go on where it is.
fn is_listed(places: &Mutex<Vec<SocketAddr>>, place: SocketAddr) -> bool {
    places.lock().expect("nobody panics with it").contains(&place)
}

fn client(
    number: usize,
    keys: usize,
    stop: &AtomicBool,
    places: &Mutex<Vec<SocketAddr>>,
    done: &AtomicU64,
) -> Account {
    let mut account = Account::default();
    let mut turn = number;
    let mut line = None;
    let mut last = Instant::now();
    let mut asked = 0_usize;
    let mut at = place(places, turn);
    while !stop.load(Ordering::Relaxed) {
        if line.is_some() && !is_listed(places, at) {
            // Between two requests, as clients do that follow a list of nodes.
            line = None;
        }
        let Some(open) = &mut line else {
            at = place(places, turn);
            line = Line::connect(at).ok();
            if line.is_none() {
                turn += 1;
                thread::sleep(Duration::from_millis(5));
            }
            continue;
        };
        let key = format!("work{}", (number + asked) % keys);
        asked += 1;
        if open.send(&format!("incr {key} 1\r\n")).is_err() {
            // It may have been heard before the connection broke.
            account.keys.entry(key).or_default().unknown += 1;
            account.broken += 1;
            (line, turn) = (None, turn + 1);
            continue;
        }
        let told = account.keys.entry(key).or_default();
        let Ok(Some(answer)) = open.hear() else {
            told.unknown += 1;
            account.broken += 1;
            (line, turn) = (None, turn + 1);
            continue;
        };
        if let Ok(value) = answer.parse() {
            told.values.push(value);
            account.longest = account.longest.max(last.elapsed());
            last = Instant::now();
            account.answered += 1;
            done.fetch_add(1, Ordering::Relaxed);
        } else {
            told.unknown += u64::from(answer.contains("unknown"));
            account.errors.push(answer);
        }
    }
    account
}
