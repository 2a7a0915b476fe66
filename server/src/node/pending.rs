//! What clients are told, and what for.
//!
//! Here: who waits for an operation, and what its ending is to them. Not here: operations under way
//! (`router`), the order in which clients are answered (`reply_queue`).

use bytes::Bytes;
use cluster::id::Partition;
use cluster::replica::Refusal;

use super::reply_queue::ReplyQueue;

pub(super) const NOT_APPLIED: &str = "SERVER_ERROR not applied: owner unavailable\r\n";
const MOVING: &str = "SERVER_ERROR not applied: moving\r\n";
const BUSY: &str = "SERVER_ERROR not applied: busy\r\n";
const UNKNOWN: &str = "SERVER_ERROR outcome unknown\r\n";

/// Which connection of the worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Client {
    /// Its place.
    pub(crate) index: usize,
    /// Never used twice, as places are.
    pub(crate) id: u64,
}

/// What an answer is to its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    /// The whole answer. Of a quiet request: nothing is said if it fails.
    Whole { quiet: bool },
    /// One of the keys of a retrieval.
    Part,
    /// One of several operations behind one answer.
    Counted,
    /// Whatever it is, the client is told this; nothing, even of a failure, where this is empty.
    Fixed(&'static str),
    /// The whole answer to a request of a limit's client, which has another answer if this one fails;
    /// with what the client wrote.
    Limited { quiet: bool, raw_request: Bytes },
    /// What this node owes for a key.
    Debt(usize),
    /// A hold that this node gave by itself.
    Hold(usize),
    /// The whole answers of consecutive requests, in consecutive places.
    Run,
    /// The part of one key in a request on several.
    SubRequest { request: usize, row: usize },
    /// Nobody waits for it.
    Nothing,
}

/// Whether an operation may change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpAccess {
    /// It only looks: doing it twice is doing it once.
    Read,
    /// It may change its key.
    Write,
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OpResult {
    /// It was done once; its reply.
    Done(Bytes),
    /// It was certainly not done.
    NotApplied(Refusal),
    /// It was done once or not at all.
    Unknown,
}

/// Who waits for an operation, or for a run of them.
#[derive(Debug)]
pub(super) struct PendingOp {
    pub(super) client: Client,
    pub(super) place: u64,
    pub(super) reply_kind: ReplyKind,
    pub(super) partition: Partition,
    /// Operations that have not ended.
    pub(super) left: u32,
}

impl PendingOp {
    /// The waiter of one operation of a run.
    pub(super) fn for_one(&self) -> Self {
        Self { reply_kind: ReplyKind::Run, left: 1, ..*self }
    }
}

/// The answers to a run of requests, one behind the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyRun {
    pub(crate) client: Client,
    /// Of the first of them.
    pub(crate) place: u64,
    pub(crate) count: u32,
    /// Bytes of the front's texts.
    pub(crate) text: (usize, usize),
}

/// An answer on its way to a client.
pub(crate) struct Completion {
    pub(crate) client: Client,
    pub(super) place: u64,
    pub(super) kind: ReplyKind,
    pub(super) result: OpResult,
}

impl Completion {
    /// An answer that is there.
    pub(super) fn ready(client: Client, place: u64, text: Bytes) -> Self {
        Self {
            client,
            place,
            kind: ReplyKind::Whole { quiet: false },
            result: OpResult::Done(text),
        }
    }

    /// Puts the answer into its place.
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
            (ReplyKind::Part | ReplyKind::Counted, Err(why)) => replies.fail(self.place, why),
            // Whoever fails here was answered by the front.
            (ReplyKind::Limited { .. }, Err(_))
            | (
                ReplyKind::SubRequest { .. }
                | ReplyKind::Debt(_)
                | ReplyKind::Hold(_)
                | ReplyKind::Run
                | ReplyKind::Nothing,
                _,
            ) => {}
        }
    }
}

/// What is told of an operation that has ended.
pub(super) fn text_of(result: OpResult) -> Result<Bytes, &'static str> {
    match result {
        OpResult::Done(text) => Ok(text),
        OpResult::NotApplied(Refusal::Moving) => Err(MOVING),
        OpResult::NotApplied(Refusal::Busy) => Err(BUSY),
        OpResult::NotApplied(_) => Err(NOT_APPLIED),
        OpResult::Unknown => Err(UNKNOWN),
    }
}
