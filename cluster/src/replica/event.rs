//! What goes into a copy and what comes out of it.
//!
//! Here: operations and their replies, records, what copies say to each other, what a copy asks of
//! the controller. Not here: how it lies on a lane (`message`), the table it comes from (`map`).

use bytes::Bytes;

use super::results::SessionResults;
use crate::id::{CopyId, Incarnation, NodeId, Term};
use crate::map::Entry;
use crate::map::command::Change;

/// The clocks of a node, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Since some origin; never goes back. For timers and deadlines.
    pub mono_ns: u64,
    /// Since 1970, as the node believes; may be wrong, and may jump.
    pub wall_ns: u64,
}

/// Who sends operations: one core of one life of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// The node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Which of its cores; each has a session of its own.
    pub core: u16,
}

/// A place in the history of a partition. Two copies at the same place hold the same state, for a
/// term has one primary, which numbers its records one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The term in which the record was made.
    pub term: Term,
    /// Counts the records of the partition, from 1; 0 before the first.
    pub lsn: u64,
}

/// Where operations for a partition go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The term that an operation sent there is stamped with.
    pub term: Term,
    /// The primary in that term.
    pub primary: CopyId,
}

impl Entry {
    /// Where operations go.
    #[must_use]
    pub fn route(&self) -> Option<Route> {
        self.primary.map(|primary| Route { term: self.term, primary })
    }

    /// The copy on this life of a node, if it holds one.
    #[must_use]
    pub fn copy_on(&self, node: NodeId, incarnation: Incarnation) -> Option<CopyId> {
        self.copies().find(|copy| copy.node == node && copy.incarnation == incarnation)
    }
}

/// Whether an operation may change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only looks: doing it twice is doing it once, so its result is not kept.
    Read,
    /// It may change its key: a resend is answered, not done again.
    Write,
}

/// When an operation is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckMode {
    /// When every mandatory copy holds it.
    Replica,
    /// At once, while the backups are no more than `owner_lag_ns` behind.
    Owner,
}

/// An operation on its way to a primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// The term it was sent in: only that term's primary may do it.
    pub term: Term,
    /// Who sends.
    pub session: SessionId,
    /// Counts the operations of this session on this partition, from 1.
    pub seq: u64,
    /// No operation below this number will ever be sent again; at least 1.
    pub first_unacked: u64,
    /// Whether it may change something.
    pub kind: Kind,
    /// When it is answered.
    pub ack: AckMode,
    /// On the receiver's monotonic clock: not applied after it.
    pub deadline_ns: u64,
    /// What to do; only the machine reads it.
    pub op: Bytes,
}

/// The answer to an [`Op`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The term that the operation was stamped with.
    pub term: Term,
    /// Its number.
    pub seq: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done, here or in an earlier attempt; the machine's result.
    Done(Bytes),
    /// Not primary in that term; who is, as far as is known here. This attempt was not applied.
    NotOwner(Option<Route>),
    /// Primary no more; who is. The attempt may have been applied: it is to be sent again.
    Deposed(Option<Route>),
    /// This attempt was not applied and will not be.
    Refused(Refusal),
}

/// Why an attempt was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its deadline had passed.
    Expired,
    /// The partition is changing its primary and this takes long.
    Moving,
    /// A queue is full.
    Busy,
    /// No contact to the controller for so long that the partition may have been given up.
    Stopped,
    /// The number is below one the session declared done: a late copy of an old attempt.
    Stale,
    /// The primary, or a copy that has to hold the change, is out of reach.
    Unreachable,
}

/// The new state of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: Bytes,
    /// Its state, or what changed of it, for a copy that has all writes before it; none: it is gone.
    pub state: Option<Bytes>,
}

/// Which operation made a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// Who sent it.
    pub session: SessionId,
    /// Results below this number may go; at least 1.
    pub first_unacked: u64,
    /// Its number and its result; none where the session only says what is done.
    pub result: Option<(u64, Bytes)>,
}

/// One step in the history of a partition. It carries the state, not the operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place.
    pub position: Position,
    /// Every copy may forget how it got to here: all mandatory ones hold it.
    pub commit: u64,
    /// The partition's time at which it was made.
    pub pt_ns: u64,
    /// What it changes, if anything.
    pub write: Option<Write>,
    /// Whose operation it was, if anyone's.
    pub stamp: Option<Stamp>,
}

/// A piece of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Which pull it answers.
    pub pull: u32,
    /// The primary's last record when it was made.
    pub position: Position,
    /// The partition's time.
    pub pt_ns: u64,
    /// Keys and states.
    pub states: Vec<(Bytes, Bytes)>,
    /// Where the next piece begins; none after the last.
    pub cursor: Option<Bytes>,
    /// After the last key: the results that are kept.
    pub results: Vec<SessionResults>,
}

/// Why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nak {
    /// Its term is over.
    Stale,
    /// Not the history of the new primary.
    Diverged(Position),
    /// Something before it is missing: this is the last that is here.
    Gap(Position),
}

/// What copies say to each other. Each message is addressed to a copy, names its sender, and is
/// stamped with the sender's term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A new primary to an in-sync copy: join my term if this is the last record you hold.
    Adopt {
        /// The record.
        position: Position,
        /// The partition's time.
        pt_ns: u64,
    },
    /// A primary to a backup or learner: the next record.
    Record(Record),
    /// A primary to a backup: this is my last record and my time; answer with this round.
    Beat {
        /// The last record.
        lsn: u64,
        /// All up to here is held by every mandatory copy.
        commit: u64,
        /// The partition's time.
        pt_ns: u64,
        /// Counts the rounds of a term.
        round: u64,
    },
    /// To a primary: everything up to here is held. Of several that wait to be sent to the same primary
    /// only the last is needed.
    Ack {
        /// The last record held.
        lsn: u64,
        /// The last round seen.
        round: u64,
        /// For a learner, which of its starts this copy grew from; 0 for a copy that adopted.
        base: u32,
        /// All keys are here, not only those of the records.
        complete: bool,
    },
    /// To a primary: not accepted.
    Nak(Nak),
    /// A learner to the primary: the next piece.
    Pull {
        /// Which start of the copy this belongs to: the number of its first pull.
        base: u32,
        /// Counts the pulls.
        pull: u32,
        /// Where the piece begins; none: at the start.
        cursor: Option<Bytes>,
    },
    /// A primary to a learner.
    Chunk(Chunk),
    /// A primary to a learner: what you have grown from this start cannot be completed, begin anew.
    Restart {
        /// Which start.
        base: u32,
    },
}

/// What is to be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send to a copy of the same partition.
    Send {
        /// Which.
        to: CopyId,
        /// Which copy says it.
        from: CopyId,
        /// In which term.
        term: Term,
        /// What.
        message: Message,
    },
    /// Answer an operation.
    Reply {
        /// Whose.
        to: SessionId,
        /// The answer.
        reply: Reply,
    },
    /// Ask for a change of the map.
    Ask(Change),
}
