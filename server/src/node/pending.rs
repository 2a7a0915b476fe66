//! Pending operations and their results, as replies to clients.
//!
//! Here: the client of an operation, and the reply that its result becomes. Not here: operations
//! under way (`router`), the order of a client's replies (`reply_queue`).

use bytes::Bytes;
use cluster::id::Partition;
use cluster::replica::Refusal;

use super::reply_queue::ReplyQueue;

pub(super) const NOT_APPLIED: &str = "SERVER_ERROR not applied: owner unavailable\r\n";
const MOVING: &str = "SERVER_ERROR not applied: moving\r\n";
const BUSY: &str = "SERVER_ERROR not applied: busy\r\n";
pub(super) const UNKNOWN: &str = "SERVER_ERROR outcome unknown\r\n";

/// A connection of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Client {
    /// Its index.
    pub(crate) index: usize,
    /// A number that is never reused, as indices are.
    pub(crate) id: u64,
}

/// The part that an operation's result has in its client's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    /// The whole reply. `quiet`: a failure has no reply.
    Whole { quiet: bool },
    /// The part of one key of a retrieval.
    Part,
    /// The error of one key of a retrieval.
    FailedPart(&'static str),
    /// One of several operations behind one reply.
    Counted,
    /// A fixed text replaces the reply and any error; an empty text suppresses both.
    Fixed(&'static str),
    /// The whole reply to a request on a limit. `raw_request` is the request as the client wrote
    /// it: a failure is answered by a degraded decision.
    Limited { quiet: bool, raw_request: Bytes },
    /// A debt of this node for a key.
    Debt(usize),
    /// A hold that this node granted by itself.
    Hold(usize),
    /// The whole replies of consecutive requests, in consecutive places.
    Run,
    /// The part of one key in a request over several owners.
    SubRequest { request: usize, row: usize },
    /// One operation in a round of a lease over several owners.
    LeasePart { lease: usize, part: usize },
    /// No client waits for it.
    Nothing,
}

/// Whether an operation may change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpAccess {
    /// The operation only reads, so performing it twice is harmless.
    Read,
    /// The operation may change its key.
    Write,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OpResult {
    /// The operation was performed exactly once; contains its reply.
    Done(Bytes),
    /// The operation was certainly not performed.
    NotApplied(Refusal),
    /// The operation was performed once or not at all.
    Unknown,
}

/// An operation, or a run of them, whose result a client waits for.
#[derive(Debug)]
pub(super) struct PendingOp {
    pub(super) client: Client,
    pub(super) place: u64,
    pub(super) reply_kind: ReplyKind,
    pub(super) partition: Partition,
    /// Operations without a result yet.
    pub(super) left: u32,
}

impl PendingOp {
    /// The pending operation of one request of a run.
    pub(super) fn for_one(&self) -> Self {
        Self { reply_kind: ReplyKind::Run, left: 1, ..*self }
    }
}

/// The replies to a run of requests, in one text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyRun {
    pub(crate) client: Client,
    /// The place of the first reply.
    pub(crate) place: u64,
    pub(crate) count: u32,
    /// The range of the text in the router's buffer.
    pub(crate) text: (usize, usize),
}

/// A result on its way to its client.
pub(crate) struct Completion {
    pub(crate) client: Client,
    pub(super) place: u64,
    pub(super) kind: ReplyKind,
    pub(super) result: OpResult,
}

impl Completion {
    /// A completion whose reply is `text`.
    pub(super) fn ready(client: Client, place: u64, text: Bytes) -> Self {
        Self {
            client,
            place,
            kind: ReplyKind::Whole { quiet: false },
            result: OpResult::Done(text),
        }
    }

    /// Puts the reply into its place.
    pub(crate) fn complete(self, replies: &mut ReplyQueue) {
        let text = text_of(self.result);
        match (self.kind, text) {
            (
                ReplyKind::Whole { .. } | ReplyKind::Limited { .. } | ReplyKind::Counted,
                Ok(text),
            ) => {
                replies.complete(self.place, text, false);
            }
            (ReplyKind::Part, Ok(text)) => replies.complete(self.place, text, true),
            (ReplyKind::Fixed(reply), Ok(_)) => {
                replies.complete(self.place, Bytes::from_static(reply.as_bytes()), false);
            }
            (ReplyKind::Whole { quiet: true } | ReplyKind::Fixed(""), Err(_)) => {
                replies.complete(self.place, Bytes::new(), false);
            }
            (ReplyKind::Whole { .. } | ReplyKind::Fixed(_), Err(why)) => {
                replies.complete(self.place, Bytes::from_static(why.as_bytes()), false);
            }
            (ReplyKind::Part | ReplyKind::Counted, Err(why)) | (ReplyKind::FailedPart(why), _) => {
                replies.fail(self.place, why);
            }
            // The router has answered these failures.
            (ReplyKind::Limited { .. }, Err(_))
            | (
                ReplyKind::SubRequest { .. }
                | ReplyKind::LeasePart { .. }
                | ReplyKind::Debt(_)
                | ReplyKind::Hold(_)
                | ReplyKind::Run
                | ReplyKind::Nothing,
                _,
            ) => {}
        }
    }
}

/// The reply to an operation, or its error line.
pub(super) fn text_of(result: OpResult) -> Result<Bytes, &'static str> {
    match result {
        OpResult::Done(text) => Ok(text),
        OpResult::NotApplied(Refusal::Moving) => Err(MOVING),
        OpResult::NotApplied(Refusal::Busy) => Err(BUSY),
        OpResult::NotApplied(_) => Err(NOT_APPLIED),
        OpResult::Unknown => Err(UNKNOWN),
    }
}
