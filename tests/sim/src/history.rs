//! The history: every request with its reply, and all other events of the trace.
//!
//! Here: the record and its sum. Not here: the properties that must hold (`invariants`).

use std::time::Duration;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    /// Increments a counter that begins at 1.
    Incr,
    /// Stores a value that no other request stores.
    Set(u64),
    /// Reads a value.
    Get,
    /// Takes a unit of a limit.
    Take,
    /// Takes a unit with a hold.
    Hold,
    /// Ends a hold.
    Settle,
}

/// The reply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The value of a counter or a register, or the name of a hold.
    Value(u64),
    /// No such key, or no such hold.
    Missing,
    /// Done, allowed.
    Yes,
    /// Refused by the limit.
    No,
    /// Certainly not done.
    NotApplied,
    /// The outcome is unknown.
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
    /// The order of beginnings and ends; it is total, because clients share one thread.
    pub(crate) began_at: u64,
    pub(crate) ended: Duration,
    pub(crate) ended_at: u64,
    pub(crate) answer: Answer,
}

impl Request {
    /// Whether this request ended before the other began.
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        self.ended_at < other.began_at
    }

    /// Whether the request may or may not have been executed.
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

    /// The next index in the order of all moments.
    pub(crate) fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    /// Records a request that has ended.
    pub(crate) fn add(&mut self, request: Request) {
        let Request { client, key, verb, began, answer, .. } = &request;
        let line = format!("client {client}: {verb:?} {key} at {began:?}: {answer:?}");
        self.note(request.ended, &line);
        self.requests.push(request);
    }

    /// Adds an event to the trace.
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

    /// Records a violation.
    pub(crate) fn violation(&mut self, at: Duration, what: impl Into<String>) {
        let what = what.into();
        self.note(at, &what);
        self.violations.push(format!("at {at:?}: {what}"));
    }

    /// The sum of the trace.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    /// The requests on keys with the prefix `front`, by key.
    pub(crate) fn by_key(&self, front: &str) -> std::collections::BTreeMap<&str, Vec<&Request>> {
        let mut keys = std::collections::BTreeMap::<&str, Vec<&Request>>::new();
        for request in self.requests.iter().filter(|request| request.key.starts_with(front)) {
            keys.entry(&request.key).or_default().push(request);
        }
        keys
    }
}
