//! Constant load, and the account of it.
//!
//! Here: plain clients, which count on any node and change to another when theirs is gone, and
//! ketama clients, which send to each key's owner and to the next on the continuum when that is
//! gone. Not here: the faults of the nodes meanwhile.
//!
//! `incr` answers with a value, so every count shows: the replies to one key must all differ, and
//! the key's final value is at least the number of acknowledged counts, and at most that plus the
//! number of unknown outcomes.

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

use cluster::placement::ketama::{Circle, hash, ring_name};

use super::nodes::{Cluster, LONG, Line};

/// Without a reply for this time, a ketama client sends to other nodes for a while.
const EJECTED: Duration = Duration::from_millis(500);

/// The shortest time between two replies to one client that is recorded as a pause.
const PAUSE: Duration = Duration::from_millis(250);

/// The replies to one key's clients.
#[derive(Debug, Default, Clone)]
struct KeyReplies {
    values: Vec<u64>,
    /// Requests without a reply, or with the reply "outcome unknown".
    unknown: u64,
}

/// The replies to clients, of all keys.
#[derive(Debug, Default)]
pub(super) struct Account {
    keys: BTreeMap<String, KeyReplies>,
    /// Replies that are no count.
    pub(super) errors: Vec<String>,
    /// Connections that ended during a request.
    pub(super) broken: u64,
    /// The longest time between two replies to one client.
    pub(super) longest: Duration,
    pub(super) answered: u64,
}

/// Clients at work.
pub(super) struct Work {
    places: Arc<Mutex<Vec<SocketAddr>>>,
    progress: Arc<Progress>,
    clients: Vec<JoinHandle<Account>>,
}

/// The state that clients share.
#[derive(Debug, Default)]
struct Progress {
    /// Set when clients must end.
    stop: AtomicBool,
    answered: AtomicU64,
    /// The pauses between two replies to one client: their ends and their lengths.
    pauses: Mutex<Vec<(Instant, Duration)>>,
    /// The moment of the last error, or of the end of the last pause.
    last_trouble: Mutex<Option<Instant>>,
}

impl Progress {
    fn note_trouble(&self) {
        *self.last_trouble.lock().expect("nobody panics with it") = Some(Instant::now());
    }

    /// Records a reply that came `pause` after the one before it.
    fn note_answer(&self, pause: Duration) {
        if pause >= PAUSE {
            self.note_trouble();
            let mut pauses = self.pauses.lock().expect("nobody panics with it");
            pauses.push((Instant::now(), pause));
        }
        self.answered.fetch_add(1, Ordering::Relaxed);
    }
}

impl Work {
    /// Starts `count` clients, every other one of ketama's kind, on `keys` keys that are at 0.
    pub(super) fn start(cluster: &Cluster, count: usize, keys: usize) -> Self {
        Self::set_up(cluster, keys);
        Self::on(cluster.addresses(), count, keys)
    }

    /// Sets `keys` keys to 0.
    pub(super) fn set_up(cluster: &Cluster, keys: usize) {
        Self::set_up_at(cluster, 0, keys);
    }

    /// Like [`set_up`](Self::set_up), through another node.
    pub(super) fn set_up_at(cluster: &Cluster, node: u8, keys: usize) {
        let mut line = cluster.line(node);
        for key in 0..keys {
            let reply = line.ask(&format!("set work{key} 0 0 1\r\n0\r\n")).expect("it answers");
            assert_eq!(reply.as_deref(), Some("STORED"));
        }
    }

    /// Starts such clients at these nodes, on keys that were set up.
    pub(super) fn on(places: Vec<SocketAddr>, count: usize, keys: usize) -> Self {
        let places = Arc::new(Mutex::new(places));
        let progress = Arc::new(Progress::default());
        let clients = (0..count)
            .map(|number| {
                let (places, progress) = (Arc::clone(&places), Arc::clone(&progress));
                thread::spawn(move || {
                    Client::new(number, number % 2 == 1, keys, &places).run(&progress)
                })
            })
            .collect();
        Self { places, progress, clients }
    }

    /// Moves the clients to these nodes.
    pub(super) fn use_nodes(&self, places: Vec<SocketAddr>) {
        *self.places.lock().expect("nobody panics with it") = places;
    }

    /// The pauses of clients, with the moment of each reply.
    pub(super) fn pauses(&self) -> Vec<(Instant, Duration)> {
        self.progress.pauses.lock().expect("nobody panics with it").clone()
    }

    /// The moment of the last error, or of the end of the last pause.
    pub(super) fn last_trouble(&self) -> Option<Instant> {
        *self.progress.last_trouble.lock().expect("nobody panics with it")
    }

    /// Waits until `count` more requests were answered.
    #[track_caller]
    pub(super) fn until_answered(&self, count: u64) {
        let answered = || self.progress.answered.load(Ordering::Relaxed);
        let (from, start) = (answered(), Instant::now());
        while answered() < from + count {
            assert!(start.elapsed() < Duration::from_secs(30), "no answers");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the clients.
    pub(super) fn end(self) -> Account {
        self.progress.stop.store(true, Ordering::Relaxed);
        let mut all = Account::default();
        for client in self.clients {
            all.add(client.join().expect("a client does not panic"));
        }
        all
    }

    /// Stops the clients, and compares their account with the values of the keys.
    #[track_caller]
    pub(super) fn settle(self, cluster: &Cluster, node: u8) -> Account {
        let mut account = self.end();
        account.settle(cluster, node);
        account
    }
}

impl Account {
    /// Records a reply; returns whether it is a count.
    pub(super) fn note(&mut self, key: &str, answer: String) -> bool {
        let replies = self.keys.entry(key.to_owned()).or_default();
        if let Ok(value) = answer.parse() {
            replies.values.push(value);
            self.answered += 1;
            return true;
        }
        replies.unknown += u64::from(answer.contains("unknown"));
        self.errors.push(answer);
        false
    }

    /// Adds the account of other clients of the same keys.
    pub(super) fn add(&mut self, other: Self) {
        self.errors.extend(other.errors);
        self.broken += other.broken;
        self.answered += other.answered;
        self.longest = self.longest.max(other.longest);
        for (key, replies) in other.keys {
            let kept = self.keys.entry(key).or_default();
            kept.values.extend(replies.values);
            kept.unknown += replies.unknown;
        }
    }

    /// Compares the account with the values of the keys.
    #[track_caller]
    pub(super) fn settle(&mut self, cluster: &Cluster, node: u8) {
        let mut line = cluster.line(node);
        for (key, replies) in &mut self.keys {
            let answer = line.lines(&format!("get {key}\r\n"));
            let Ok([_, value]) = answer.as_deref() else {
                let (told, unknown) = (&replies.values, replies.unknown);
                panic!(
                    "{key} through {node}: {answer:?}, {} told, the last {:?}, {unknown} unknown, \
                     {:?}\n{}",
                    told.len(),
                    told.iter().max(),
                    kinds(&self.errors),
                    cluster.accounts_of(key)
                )
            };
            let value: u64 = value.trim().parse().expect("a count");
            let acknowledged = replies.values.len() as u64;
            replies.values.sort_unstable();
            replies.values.dedup();
            assert_eq!(replies.values.len() as u64, acknowledged, "{key}: a value was told twice");
            assert!(value >= acknowledged, "{key}: {acknowledged} acknowledged, {value} kept");
            let most = acknowledged + replies.unknown;
            assert!(value <= most, "{key}: {most} asked at most, {value} kept");
            assert!(
                replies.values.last().is_none_or(|last| *last <= value),
                "{key}: beyond {value}"
            );
        }
    }

    /// The acknowledged counts of each key that are missing from its value. No key may count more
    /// than was requested.
    #[track_caller]
    pub(super) fn losses(&self, cluster: &Cluster, node: u8) -> Vec<u64> {
        let mut losses = Vec::new();
        for (key, replies) in &self.keys {
            let value = kept(cluster, node, key);
            let acknowledged = replies.values.len() as u64;
            let most = acknowledged + replies.unknown;
            assert!(value <= most, "{key}: {most} asked at most, {value} kept");
            losses.push(acknowledged.saturating_sub(value));
        }
        losses
    }

    /// The number of replies that are no count, by their text.
    pub(super) fn kinds(&self) -> BTreeMap<&str, usize> {
        kinds(&self.errors)
    }
}

fn kinds(errors: &[String]) -> BTreeMap<&str, usize> {
    let mut kinds = BTreeMap::new();
    for error in errors {
        *kinds.entry(error.as_str()).or_default() += 1;
    }
    kinds
}

/// One client.
struct Client<'a> {
    number: usize,
    /// Whether it sends to each key's owner.
    is_aware: bool,
    keys: usize,
    places: &'a Mutex<Vec<SocketAddr>>,
    /// A plain client's index among the nodes.
    turn: usize,
    lines: BTreeMap<SocketAddr, Line>,
    /// Nodes that did not reply, with the time until which they are avoided.
    ejected: BTreeMap<SocketAddr, Instant>,
    account: Account,
}

impl<'a> Client<'a> {
    fn new(number: usize, is_aware: bool, keys: usize, places: &'a Mutex<Vec<SocketAddr>>) -> Self {
        Self {
            number,
            is_aware,
            keys,
            places,
            turn: number,
            lines: BTreeMap::new(),
            ejected: BTreeMap::new(),
            account: Account::default(),
        }
    }

    fn run(mut self, progress: &Progress) -> Account {
        let mut last = Instant::now();
        let mut asked = 0_usize;
        let mut known = Vec::new();
        let mut circle = circle(&known);
        while !progress.stop.load(Ordering::Relaxed) {
            let places = self.places.lock().expect("nobody panics with it").clone();
            if places != known {
                // Changes happen between two requests, as in clients that follow a list of nodes.
                self.lines.retain(|place, _| places.contains(place));
                circle = self::circle(&places);
                known = places;
            }
            let key = format!("work{}", (self.number + asked) % self.keys);
            let place = self.place(&key, &known, &circle);
            let Some(line) = self.line(place) else { continue };
            asked += 1;
            let Ok(Some(answer)) = line.ask(&format!("incr {key} 1\r\n")) else {
                // The node may have executed it before the connection broke.
                self.account.keys.entry(key).or_default().unknown += 1;
                self.account.broken += 1;
                progress.note_trouble();
                self.leave(place);
                continue;
            };
            // A missing key counts as answered.
            let is_answered = answer == "NOT_FOUND";
            if self.account.note(&key, answer) {
                let pause = last.elapsed();
                progress.note_answer(pause);
                self.account.longest = self.account.longest.max(pause);
                last = Instant::now();
            } else if is_answered {
                last = Instant::now();
            } else {
                progress.note_trouble();
            }
        }
        self.account
    }

    /// The node that receives the next request.
    fn place(&self, key: &str, places: &[SocketAddr], circle: &Circle) -> SocketAddr {
        if !self.is_aware {
            return places[self.turn % places.len()];
        }
        let now = Instant::now();
        let may = |node: u16| {
            self.ejected.get(&places[usize::from(node)]).is_none_or(|until| *until < now)
        };
        let owner = circle.next(hash(key.as_bytes()), &[], &may);
        places[usize::from(owner.unwrap_or(0))]
    }

    /// The connection to a node; `None` if it refuses.
    fn line(&mut self, place: SocketAddr) -> Option<&mut Line> {
        if !self.lines.contains_key(&place) {
            let Ok(line) = Line::connect(place) else {
                self.leave(place);
                thread::sleep(Duration::from_millis(5));
                return None;
            };
            self.lines.insert(place, line);
        }
        self.lines.get_mut(&place)
    }

    fn leave(&mut self, place: SocketAddr) {
        self.lines.remove(&place);
        self.turn += 1;
        self.ejected.insert(place, Instant::now() + EJECTED);
    }
}

/// The count of a key, 0 if there is no such key.
#[track_caller]
fn kept(cluster: &Cluster, node: u8, key: &str) -> u64 {
    let start = Instant::now();
    loop {
        let answer = cluster.ask(node, &format!("incr {key} 0\r\n"));
        match answer.parse() {
            Ok(value) => return value,
            Err(_) if answer == "NOT_FOUND" => return 0,
            // Its owner was out of reach a moment ago.
            Err(_) => assert!(start.elapsed() < LONG, "{key}: {answer} {}", cluster.logs()),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The continuum that a ketama client computes from its list.
pub(super) fn circle(places: &[SocketAddr]) -> Circle {
    let names: Vec<String> =
        places.iter().map(|place| ring_name(&place.ip().to_string(), place.port())).collect();
    Circle::new(names.iter().map(|name| (name.as_str(), 1)))
}
