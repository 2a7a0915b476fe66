//! What happened: every request with its answer, and everything else worth a line.
//!
//! Here: the record and its sum. Not here: what must be true of it (`invariants`).

use std::time::Duration;

/// What a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    /// One more on a counter that begins at 1.
    Incr,
    /// Stores a value that nobody else stores.
    Set(u64),
    /// What is stored.
    Get,
    /// A unit of a limit.
    Take,
    /// A place among holders.
    Hold,
    /// Gives a place back.
    Settle,
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Of a counter, a register or a hold: its value, its name.
    Value(u64),
    /// No such key, or no such hold.
    Missing,
    /// Done, allowed.
    Yes,
    /// Refused by the limit.
    No,
    /// Certainly not done.
    NotApplied,
    /// Nobody knows.
    Unknown,
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) client: usize,
    pub(crate) key: String,
    pub(crate) verb: Verb,
    /// True time since the start of the run.
    pub(crate) began: Duration,
    /// The order of beginnings and ends: clients share one thread.
    pub(crate) began_at: u64,
    pub(crate) ended: Duration,
    pub(crate) ended_at: u64,
    pub(crate) answer: Answer,
}

impl Request {
    /// It ended before the other began.
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        self.ended_at < other.began_at
    }

    /// It may have been done, as far as its client knows.
    pub(crate) fn is_unknown(&self) -> bool {
        self.answer == Answer::Unknown
    }
}

/// A run so far.
#[derive(Debug, Default)]
pub(crate) struct History {
    moments: u64,
    pub(crate) requests: Vec<Request>,
    pub(crate) lines: Vec<String>,
    pub(crate) violations: Vec<String>,
    keeps_lines: bool,
    sum: u64,
}

impl History {
    pub(crate) fn new(keeps_lines: bool) -> Self {
        Self { keeps_lines, sum: 0xcbf2_9ce4_8422_2325, ..Self::default() }
    }

    /// The next place in the order of all moments.
    pub(crate) fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    /// Notes a request that has ended.
    pub(crate) fn add(&mut self, request: Request) {
        let Request { client, key, verb, began, answer, .. } = &request;
        let line = format!("client {client}: {verb:?} {key} at {began:?}: {answer:?}");
        self.note(request.ended, &line);
        self.requests.push(request);
    }

    /// Notes anything: it is part of the trace.
    pub(crate) fn note(&mut self, at: Duration, what: &str) {
        let line = format!("{at:?} {what}");
        // FNV-1a: short, and the same everywhere.
        for byte in line.bytes() {
            self.sum = (self.sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.keeps_lines {
            self.lines.push(line);
        }
    }

    /// Notes what must not be.
    pub(crate) fn violation(&mut self, at: Duration, what: impl Into<String>) {
        let what = what.into();
        self.note(at, &what);
        self.violations.push(format!("at {at:?}: {what}"));
    }

    /// The sum of the trace.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    /// The requests on keys that begin so, by key.
    pub(crate) fn by_key(&self, front: &str) -> std::collections::BTreeMap<&str, Vec<&Request>> {
        let mut keys = std::collections::BTreeMap::<&str, Vec<&Request>>::new();
        for request in self.requests.iter().filter(|request| request.key.starts_with(front)) {
            keys.entry(&request.key).or_default().push(request);
        }
        keys
    }
}
