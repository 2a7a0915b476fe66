//! What clients are told, and what for.
//!
//! Here: who waits for an operation, and what its ending is to them. Not here: operations under way
//! (`front`), the order in which clients are answered (`replies`).

use bytes::Bytes;
use cluster::id::Partition;
use cluster::replica::Refusal;

use super::replies::Replies;

pub(super) const NOT_APPLIED: &str = "SERVER_ERROR not applied: owner unavailable\r\n";
const MOVING: &str = "SERVER_ERROR not applied: moving\r\n";
const BUSY: &str = "SERVER_ERROR not applied: busy\r\n";
const UNKNOWN: &str = "SERVER_ERROR outcome unknown\r\n";

/// Which connection of the worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Client {
    /// Its place.
    pub(crate) number: usize,
    /// Never used twice, as places are.
    pub(crate) id: u64,
}

/// What an answer is to its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Use {
    /// The whole answer. Of a quiet request: nothing is said if it fails.
    Whole { quiet: bool },
    /// One of the keys of a retrieval.
    Part,
    /// One of several operations behind one answer.
    Counted,
    /// Whatever it is, the client is told this; nothing, even of a failure, where this is empty.
    Instead(&'static str),
    /// The whole answer to a request of a limit's client, which has another answer if this one fails;
    /// with what the client wrote.
    Limited { quiet: bool, words: Bytes },
    /// What this node owes for a key.
    Debt(usize),
    /// A hold that this node gave by itself.
    Hold(usize),
    /// The whole answers of consecutive requests, in consecutive places.
    Run,
    /// The part of one key in a request on several.
    Step { family: usize, row: usize },
    /// Nobody waits for it.
    Nothing,
}

/// Whether an operation may change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It only looks: doing it twice is doing it once.
    Read,
    /// It may change its key.
    Write,
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It was done once; its reply.
    Done(Bytes),
    /// It was certainly not done.
    NotApplied(Refusal),
    /// It was done once or not at all.
    Unknown,
}

/// Who waits for an operation, or for a run of them.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) client: Client,
    pub(super) place: u64,
    pub(super) used: Use,
    pub(super) partition: Partition,
    /// Operations that have not ended.
    pub(super) left: u32,
}

impl Waiter {
    /// The waiter of one operation of a run.
    pub(super) fn part(&self) -> Self {
        Self { used: Use::Run, left: 1, ..*self }
    }
}

/// The answers to a run of requests, one behind the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) client: Client,
    /// Of the first of them.
    pub(crate) place: u64,
    pub(crate) count: u32,
    /// Bytes of the front's texts.
    pub(crate) text: (usize, usize),
}

/// An answer on its way to a client.
pub(crate) struct Delivery {
    pub(crate) client: Client,
    pub(super) place: u64,
    pub(super) used: Use,
    pub(super) ending: Ending,
}

impl Delivery {
    /// An answer that is there.
    pub(super) fn said(client: Client, place: u64, text: Bytes) -> Self {
        Self { client, place, used: Use::Whole { quiet: false }, ending: Ending::Done(text) }
    }

    /// Puts the answer into its place.
    pub(crate) fn give(self, replies: &mut Replies) {
        let text = text_of(self.ending);
        match (self.used, text) {
            (Use::Whole { .. } | Use::Limited { .. } | Use::Counted, Ok(text)) => {
                replies.give(self.place, text, false);
            }
            (Use::Part, Ok(text)) => replies.give(self.place, text, true),
            (Use::Instead(told), Ok(_)) => {
                replies.give(self.place, Bytes::from_static(told.as_bytes()), false);
            }
            (Use::Whole { quiet: true } | Use::Instead(""), Err(_)) => {
                replies.give(self.place, Bytes::new(), false);
            }
            (Use::Whole { .. } | Use::Instead(_), Err(why)) => {
                replies.give(self.place, Bytes::from_static(why.as_bytes()), false);
            }
            (Use::Part | Use::Counted, Err(why)) => replies.fail(self.place, why),
            // Whoever fails here was answered by the front.
            (Use::Limited { .. }, Err(_))
            | (Use::Step { .. } | Use::Debt(_) | Use::Hold(_) | Use::Run | Use::Nothing, _) => {}
        }
    }
}

/// What is told of an operation that has ended.
pub(super) fn text_of(ending: Ending) -> Result<Bytes, &'static str> {
    match ending {
        Ending::Done(text) => Ok(text),
        Ending::NotApplied(Refusal::Moving) => Err(MOVING),
        Ending::NotApplied(Refusal::Busy) => Err(BUSY),
        Ending::NotApplied(_) => Err(NOT_APPLIED),
        Ending::Unknown => Err(UNKNOWN),
    }
}
