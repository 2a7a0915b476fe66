//! The operations of one worker for one owner: the unanswered ones, and their lines.

use std::collections::VecDeque;

use super::{LINES_BYTES_MAX, NUMBERS_MAX, UNANSWERED_MAX};
use crate::id::{NodeId, OpStreamId, Partition, Term};
use crate::route::Destination;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpState {
    /// The operation is answered.
    Over,
    /// This node has done the operation, and a parked batch holds its reply.
    Parked,
    /// The operation was never sent.
    New,
    /// The operation was sent.
    Sent,
    /// The operation is scheduled to be sent again.
    Waits,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) token: u64,
    /// The `Forward` with its newest sending.
    pub(super) sending: u64,
    pub(super) since_ns: u64,
    pub(super) for_ns: u64,
    pub(super) line_at: u32,
    pub(super) line_bytes: u32,
    /// The node that got its newest sending.
    pub(super) node: NodeId,
    pub(super) term: Term,
    pub(super) index: u32,
    pub(super) partition: Partition,
    pub(super) sendings: Sendings,
    pub(super) op_flags: u8,
    pub(super) state: OpState,
}

impl Pending {
    pub(super) fn mark_sent(&mut self, route: Destination, sending: u64) {
        self.state = OpState::Sent;
        self.sending = sending;
        self.term = route.term;
        self.node = route.node;
        self.sendings.add();
    }
}

/// The knowledge of an operation's sendings. An operation that is done here counts as sent.
///
/// Flags, not counts: an operation may be sent for an hour, a hundred times a second.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Sendings {
    is_any: bool,
    /// The newest sending was not refused.
    may_newest_be_done: bool,
    /// Some earlier sending was not refused.
    may_earlier_be_done: bool,
}

impl Sendings {
    /// The only sending of an operation that this node does itself.
    pub(super) fn of_this_node() -> Self {
        Self { is_any: true, may_newest_be_done: true, may_earlier_be_done: false }
    }

    fn add(&mut self) {
        self.may_earlier_be_done |= self.may_newest_be_done;
        (self.is_any, self.may_newest_be_done) = (true, true);
    }

    /// Records that the newest sending was refused.
    pub(super) fn refuse_newest(&mut self) {
        self.may_newest_be_done = false;
    }

    /// Whether the operation was sent or done.
    pub(super) fn is_any(self) -> bool {
        self.is_any
    }

    /// Whether the operation is certainly not done.
    pub(super) fn are_refused(self) -> bool {
        !self.may_newest_be_done && !self.may_earlier_be_done
    }
}

/// The operations of one worker for one owner.
#[derive(Debug)]
pub(super) struct OpStream {
    pub(super) id: OpStreamId,
    /// The number of the first of `pending`: all below are answered.
    pub(super) first: u64,
    pub(super) pending: VecDeque<Pending>,
    pub(super) lines: Vec<u8>,
    /// The bytes of `lines` that are in use.
    pub(super) lines_used: usize,
    pub(super) unanswered: usize,
    /// The first number that was never sent.
    pub(super) new_from: u64,
}

impl OpStream {
    pub(super) fn new(id: OpStreamId) -> Self {
        Self {
            id,
            first: 1,
            pending: VecDeque::new(),
            lines: Vec::new(),
            lines_used: 0,
            unanswered: 0,
            new_from: 1,
        }
    }

    pub(super) fn place(&self, number: u64) -> Option<usize> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        (place < self.pending.len()).then_some(place)
    }

    pub(super) fn next(&self) -> u64 {
        self.first + self.pending.len() as u64
    }

    pub(super) fn is_full(&self, count: usize, bytes: usize) -> bool {
        self.unanswered + count > UNANSWERED_MAX
            || self.pending.len() + count > NUMBERS_MAX
            || self.lines_used + bytes > LINES_BYTES_MAX
    }

    /// Stores a line. Returns its offset and length.
    pub(super) fn keep(&mut self, line: &[u8]) -> (u32, u32) {
        if self.lines.len() >= 4096 && self.lines.len() >= 2 * self.lines_used {
            let room = Vec::with_capacity(self.lines.len());
            let old = std::mem::replace(&mut self.lines, room);
            for pending in self.pending.iter_mut().filter(|pending| pending.line_bytes > 0) {
                let from = pending.line_at as usize;
                pending.line_at = self.lines.len() as u32;
                self.lines.extend_from_slice(&old[from..from + pending.line_bytes as usize]);
            }
        }
        let at = self.lines.len() as u32;
        self.lines.extend_from_slice(line);
        self.lines_used += line.len();
        (at, line.len() as u32)
    }

    pub(super) fn end(&mut self, place: usize, waiting: &mut WaitingCounts) {
        let pending = &mut self.pending[place];
        if pending.state == OpState::Over {
            return;
        }
        pending.state = OpState::Over;
        if pending.line_bytes > 0 {
            waiting.remove(pending.partition);
        }
        self.lines_used -= pending.line_bytes as usize;
        pending.line_bytes = 0;
        self.unanswered -= 1;
        while self.pending.front().is_some_and(|pending| pending.state == OpState::Over) {
            self.pending.pop_front();
            self.first += 1;
        }
        if self.pending.is_empty() {
            self.lines.clear();
        }
    }
}

/// For each partition, the number of unanswered operations with a line.
#[derive(Debug, Default)]
pub(super) struct WaitingCounts(Vec<u16>);

impl WaitingCounts {
    #[inline]
    pub(super) fn add(&mut self, partition: Partition) {
        if self.0.len() <= partition.index() {
            self.0.resize((partition.index() + 1).next_power_of_two(), 0);
        }
        let count = &mut self.0[partition.index()];
        *count = count.saturating_add(1);
    }

    #[inline]
    fn remove(&mut self, partition: Partition) {
        if let Some(count) = self.0.get_mut(partition.index()) {
            *count = count.saturating_sub(1);
        }
    }

    #[inline]
    pub(super) fn is_any(&self, partition: Partition) -> bool {
        self.0.get(partition.index()).is_some_and(|count| *count > 0)
    }
}
