//! Clients: they send memcached requests to any node, and record the replies.
//!
//! Here: the loop of one client, the requests on the wire. Not here: the properties of the history
//! (`invariants`).

use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use model::rng::Rng;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tollgate::net::Stream;

use crate::history::{Answer, History, Request, Verb};
use crate::nodes::PORTS;

/// The time limit for a reply. A server replies within a second; a dead one does not.
const PATIENCE: Duration = Duration::from_secs(3);

/// The state that clients share.
pub(crate) struct Work {
    pub(crate) history: Rc<RefCell<History>>,
    pub(crate) nodes: Vec<IpAddr>,
    /// Notified when clients may begin.
    pub(crate) begun: Notify,
    pub(crate) is_over: Cell<bool>,
    /// The next value for a register; no value is used twice.
    values: Cell<u64>,
    pub(crate) running: Cell<usize>,
    /// The longest pause between two requests, in milliseconds.
    pause_ms: u64,
}

/// The limits that clients take from, with their policies.
pub(crate) const LIMITS: [(&str, &str); 4] = [
    ("log:long", "log:40/10m"),
    ("log:short", "log:8/1s"),
    ("fixed:short", "fixed:8/2s"),
    ("bucket", "bucket:10/s"),
];
/// The time to live of keys in seconds: longer than any run, so that none expires.
const TTL_S: u32 = 600;
/// The most holders of `hold` at once, and the duration of a hold.
pub(crate) const HOLDERS: usize = 3;
pub(crate) const HOLD: Duration = Duration::from_secs(2);

impl Work {
    pub(crate) fn new(history: &Rc<RefCell<History>>, nodes: Vec<IpAddr>, pause_ms: u64) -> Self {
        Self {
            history: Rc::clone(history),
            nodes,
            begun: Notify::new(),
            is_over: Cell::new(false),
            values: Cell::new(0),
            running: Cell::new(0),
            pause_ms,
        }
    }

    fn now() -> Duration {
        turmoil::sim_elapsed().unwrap_or_default()
    }

    /// Runs one client until the end of the run.
    pub(crate) async fn client(self: Rc<Self>, number: usize, mut rng: Rng) {
        self.running.set(self.running.get() + 1);
        let mut line = None;
        let mut hold = None;
        while !self.is_over.get() {
            if rng.chance(1, 30) {
                line = None;
            }
            let Some(open) = &mut line else {
                let node = rng.pick(&self.nodes).unwrap_or(IpAddr::from([10, 0, 0, 1]));
                line = Line::open(node).await.ok();
                sleep(Duration::from_millis(rng.between(1, 20))).await;
                continue;
            };
            let (key, verb) = self.wish(&mut rng, hold);
            let words = words(&key, verb, hold);
            let (began, began_at) = (Self::now(), self.history.borrow_mut().moment());
            let received = timeout(PATIENCE, open.ask(&words)).await;
            let answer = if let Ok(Ok(text)) = received {
                self.understand(verb, &text)
            } else {
                line = None;
                Answer::Unknown
            };
            match (verb, answer) {
                (Verb::Hold, Answer::Value(name)) => hold = Some(name),
                (Verb::Settle, _) => hold = None,
                _ => {}
            }
            let (ended, ended_at) = (Self::now(), self.history.borrow_mut().moment());
            self.history.borrow_mut().add(Request {
                client: number,
                key,
                verb,
                began,
                began_at,
                ended,
                ended_at,
                answer,
            });
            sleep(Duration::from_millis(rng.below(self.pause_ms + 1))).await;
        }
        self.running.set(self.running.get() - 1);
    }

    fn wish(&self, rng: &mut Rng, hold: Option<u64>) -> (String, Verb) {
        match rng.below(20) {
            0..=8 => (format!("count:{}", rng.below(12)), Verb::Incr),
            9..=11 => (format!("register:{}", rng.below(4)), Verb::Get),
            12..=13 => {
                self.values.set(self.values.get() + 1);
                (format!("register:{}", rng.below(4)), Verb::Set(self.values.get()))
            }
            14..=17 => {
                let (key, _) = LIMITS[usize::try_from(rng.below(4)).unwrap_or(0)];
                (key.to_owned(), Verb::Take)
            }
            _ if hold.is_some() => ("hold".to_owned(), Verb::Settle),
            _ => ("hold".to_owned(), Verb::Hold),
        }
    }

    /// Parses a reply. A reply that no server should send is a violation.
    fn understand(&self, verb: Verb, text: &str) -> Answer {
        if text.starts_with("SERVER_ERROR not applied") {
            return Answer::NotApplied;
        }
        if text.starts_with("SERVER_ERROR outcome unknown") {
            return Answer::Unknown;
        }
        let mut words = text.split_whitespace();
        let answer = match (verb, words.next()) {
            (Verb::Incr, Some("VA")) => words.nth(1).and_then(|word| word.parse().ok()),
            (Verb::Get, Some("VALUE")) => words.nth(3).and_then(|word| word.parse().ok()),
            (Verb::Get, Some("END")) | (Verb::Settle, Some("NOT_FOUND")) => {
                return Answer::Missing;
            }
            (Verb::Set(_), Some("STORED"))
            | (Verb::Take, Some("ALLOW"))
            | (Verb::Settle, Some("SETTLED")) => return Answer::Yes,
            (Verb::Take | Verb::Hold, Some("DENY")) => return Answer::No,
            (Verb::Hold, Some("ALLOW")) => {
                words.find_map(|word| word.strip_prefix("lease=")?.parse().ok())
            }
            _ => None,
        };
        answer.map_or_else(
            || {
                let what = format!("{verb:?} was answered {text:?}");
                self.history.borrow_mut().violation(Self::now(), what);
                Answer::Unknown
            },
            Answer::Value,
        )
    }
}

/// The text of a request.
fn words(key: &str, verb: Verb, hold: Option<u64>) -> String {
    match verb {
        Verb::Incr => format!("ma {key} N{TTL_S} J1 v\r\n"),
        Verb::Set(value) => {
            let value = value.to_string();
            format!("set {key} 0 {TTL_S} {}\r\n{value}\r\n", value.len())
        }
        Verb::Get => format!("get {key}\r\n"),
        Verb::Take => {
            let policy = LIMITS.iter().find(|(name, _)| *name == key).map_or("", |(_, it)| it);
            format!("take {key} 1 {policy}\r\n")
        }
        Verb::Hold => {
            format!("take {key} 1 concurrency:{HOLDERS},hold={}s\r\n", HOLD.as_secs())
        }
        Verb::Settle => format!("settle {key} {} 0\r\n", hold.unwrap_or(0)),
    }
}

/// A connection.
pub(crate) struct Line(BufReader<Stream>);

impl Line {
    pub(crate) async fn open(node: IpAddr) -> io::Result<Self> {
        let address = format!("{node}:{}", PORTS.0);
        let stream = timeout(PATIENCE, Stream::connect(&address)).await??;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request; returns all lines of the reply, separated by blanks.
    pub(crate) async fn ask(&mut self, words: &str) -> io::Result<String> {
        self.0.get_mut().write_all(words.as_bytes()).await?;
        let mut text = self.line().await?;
        let more = match text.split(' ').next() {
            Some("VA") => 1,
            Some("VALUE") => 2,
            _ => 0,
        };
        for _ in 0..more {
            let line = self.line().await?;
            text.push(' ');
            text.push_str(&line);
        }
        Ok(text)
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await? == 0 || !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}
