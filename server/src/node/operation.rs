//! An operation at its owner: its source and its outcome.
//!
//! Not here: performing it (`replicas`, `state_machine`), delivering it and its answer (`router`).

use arrayvec::ArrayVec;
use bytes::Bytes;
use cluster::id::{Partition, Term};
use cluster::parked_reply::Need;
use cluster::replica::{Refusal, Route};
use cluster::replica_set::LINKS_MAX;
use cluster::{LinkIndex, OpStreamId};

/// The destination of an operation's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpSource {
    /// This worker: the operation came from this node.
    Own,
    /// The node at the other end of this link.
    Link(LinkIndex),
}

/// An operation at its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpRef<'a> {
    /// The worker that answers it.
    pub(crate) worker: u16,
    pub(crate) source: OpSource,
    /// The number of the `Forward` frame that delivered it.
    pub(crate) sending: u64,
    /// Its place in the `Forward` frame.
    pub(crate) place: u16,
    pub(crate) stream: OpStreamId,
    /// Its number in the stream.
    pub(crate) number: u64,
    pub(crate) partition: Partition,
    /// The operation may be performed in this term only.
    pub(crate) term: Term,
    /// The bits of `frames::op_flags`; the others are a [`OpKind`](super::state_machine::OpKind).
    pub(crate) op_flags: u8,
    /// The deadline on this node's monotonic clock; after it the operation is not performed.
    pub(crate) deadline_ns: u64,
    /// The request as the client wrote it, or its encoding.
    pub(crate) line: &'a [u8],
}

/// An operation that is held until its partition is served: an [`OpRef`] that owns its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldOp {
    pub(crate) worker: u16,
    pub(crate) source: OpSource,
    pub(crate) sending: u64,
    pub(crate) place: u16,
    pub(crate) stream: OpStreamId,
    pub(crate) number: u64,
    pub(crate) partition: Partition,
    pub(crate) term: Term,
    pub(crate) op_flags: u8,
    pub(crate) deadline_ns: u64,
    pub(crate) line: Bytes,
}

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Performed {
    /// The operation was performed, now or before, and its reply was appended to the output.
    Done {
        /// The reply is sent once these are met; at once if there are none.
        needs: ArrayVec<Need, LINKS_MAX>,
        /// The term in which the operation was performed.
        term: Term,
    },
    /// The operation is held: it returns as `WorkerEvent::Perform`, `Refer` or `Refuse`.
    Held,
    /// This node is not primary in that term; contains the primary, if known. This sending was not
    /// performed.
    Refer(Option<Route>),
    /// This sending was not performed and will not be.
    Refused(Refusal),
}

impl HeldOp {
    /// The operation with its line borrowed.
    pub(crate) fn as_ref(&self) -> OpRef<'_> {
        let Self { worker, source, sending, place, stream, number, .. } = *self;
        let Self { partition, term, op_flags, deadline_ns, .. } = *self;
        OpRef {
            worker,
            source,
            sending,
            place,
            stream,
            number,
            partition,
            term,
            op_flags,
            deadline_ns,
            line: &self.line,
        }
    }
}

impl OpRef<'_> {
    /// The operation with a copy of its line.
    pub(crate) fn to_held(self) -> HeldOp {
        let Self { worker, source, sending, place, stream, number, .. } = self;
        let Self { partition, term, op_flags, deadline_ns, line, .. } = self;
        let line = Bytes::copy_from_slice(line);
        HeldOp {
            worker,
            source,
            sending,
            place,
            stream,
            number,
            partition,
            term,
            op_flags,
            deadline_ns,
            line,
        }
    }
}
