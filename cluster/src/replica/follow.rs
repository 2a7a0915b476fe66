//! A copy that follows: as an in-sync backup, or as a learner that is still being made.

use bytes::Bytes;

use super::event::{Machine, Outside, Position, Turn};
use super::{Core, Replica, Role};
use crate::frames::{Adopt, ChunkReader, Fault, Pull, RecordResult, Refused, Restart, Round};
use crate::id::Term;
use crate::partition_header::{HeaderState, PartitionHeader};
use crate::receive_stream::ReceiveStream;
use crate::replica::At;

/// A copy that is being made: it pulls pieces, which come in one order with the records around them. A record before the first
/// piece is not for this copy, one behind it is.
#[derive(Debug)]
pub(super) struct Learner {
    /// The term it is made in; it begins anew in each.
    term: Term,
    /// Counts the times that it began.
    start: u32,
    /// Where the next piece begins.
    cursor: Option<Bytes>,
    /// The last piece that was taken was asked for.
    is_asked: bool,
    asked_ns: u64,
    is_begun: bool,
    /// Every piece is here.
    is_whole: bool,
}

impl Learner {
    /// An empty copy asks for its first piece.
    pub(super) fn begin<M, N: Outside, O>(core: &mut Core, turn: &mut Turn<'_, M, N, O>) -> Self {
        let mut learner = Self {
            term: turn.header.term(),
            start: 0,
            cursor: None,
            is_asked: false,
            asked_ns: 0,
            is_begun: false,
            is_whole: false,
        };
        learner.begin_anew(core, turn);
        learner
    }

    fn begin_anew<M, N: Outside, O>(&mut self, core: &Core, turn: &mut Turn<'_, M, N, O>) {
        *self = Self {
            term: self.term,
            start: self.start + 1,
            cursor: None,
            is_asked: false,
            asked_ns: turn.now.mono_ns,
            is_begun: false,
            is_whole: false,
        };
        self.retry(core, turn);
    }

    /// Whether nothing is to be done until its primary says something.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_begun && (self.is_whole || self.is_asked)
    }

    pub(super) fn is_of(&self, term: Term) -> bool {
        self.term == term
    }

    /// Whether the next record of this term is installed.
    pub(super) fn follows(&self, term: Term) -> bool {
        self.is_begun && self.term == term
    }

    /// Asks for the next piece, if that was not done yet and the primary can be reached.
    pub(super) fn retry<M, N: Outside, O>(&mut self, core: &Core, turn: &mut Turn<'_, M, N, O>) {
        if self.is_asked || self.is_whole {
            return;
        }
        let Some(to) = core.entry.primary else { return };
        let Some(link) = turn.node.link_to(to, core.partition) else { return };
        let pull = Pull {
            partition: core.partition,
            from: core.me,
            to,
            term: self.term,
            start: self.start,
            cursor: self.cursor.as_deref(),
        };
        turn.node.append(link, turn.now, &mut |out| pull.encode(out));
        self.is_asked = true;
        self.asked_ns = turn.now.mono_ns;
    }

    /// A primary that did not know this copy yet could not use the first pull: it is said again, as a new start.
    pub(super) fn tick<M, N: Outside, O>(&mut self, core: &mut Core, turn: &mut Turn<'_, M, N, O>) {
        let waited_ns = turn.now.mono_ns.saturating_sub(self.asked_ns);
        if !self.is_begun && self.is_asked && waited_ns >= core.options.resend_ns {
            self.begin_anew(core, turn);
        }
        self.retry(core, turn);
    }
}

impl<O> Replica<O> {
    /// A refusal of something of `term` that ends at `end`.
    #[must_use]
    pub fn refusal(&self, header: &PartitionHeader, term: Term, end: u64) -> Refused {
        Refused {
            partition: self.core.partition,
            term,
            copy_term: header.term(),
            end,
            last: self.core.last(header),
        }
    }

    /// A primary asks this copy to follow. The frame has `bytes` bytes and is the next of `stream`, which takes note of
    /// what became of it.
    pub fn adopt<M: Machine, N: Outside>(
        &mut self,
        turn: &mut Turn<'_, M, N, O>,
        adopt: &Adopt,
        stream: &mut ReceiveStream,
        bytes: usize,
    ) {
        let is_meant = !matches!(self.role, Role::None) && adopt.to == self.core.me;
        if is_meant && adopt.term > turn.header.term() {
            self.see_term(turn, adopt.term);
        }
        let is_same = self.core.last(turn.header) == adopt.last;
        let is_whole = match &self.role {
            Role::Backup { .. } => true,
            Role::Learner(learner) => learner.is_whole,
            Role::None | Role::Primary(_) => false,
        };
        if is_meant && adopt.term == turn.header.term() && is_same && is_whole {
            self.role = Role::Backup { is_adopted: true };
            turn.header.set_time(turn.header.pt_ns(), adopt.ahead_ns);
            self.core.clock_of = Some(adopt.from);
            stream.taken(adopt.partition);
        } else {
            let end = stream.end_of(bytes);
            stream.refuse(self.refusal(turn.header, adopt.term, end), true);
        }
        self.finish(turn);
    }

    /// A primary asks whether this copy still follows its term.
    pub fn round<M: Machine, N: Outside>(
        &mut self,
        turn: &mut Turn<'_, M, N, O>,
        round: &Round,
        stream: &mut ReceiveStream,
        bytes: usize,
    ) {
        let follows = self.state(turn.header) == HeaderState::Follows;
        if !follows || round.term != turn.header.term() {
            let end = stream.end_of(bytes);
            stream.refuse(self.refusal(turn.header, round.term, end), false);
        }
        self.finish(turn);
    }

    /// The primary cannot complete this copy.
    pub fn restart<M: Machine, N: Outside>(
        &mut self,
        turn: &mut Turn<'_, M, N, O>,
        restart: &Restart,
    ) {
        let is_meant = matches!(&self.role, Role::Learner(learner)
            if restart.to == self.core.me
                && restart.term == learner.term
                && restart.start == learner.start);
        if is_meant {
            self.wipe(turn);
            if let Role::Learner(learner) = &mut self.role {
                learner.begin_anew(&self.core, turn);
            }
        }
        self.finish(turn);
    }

    /// A piece of this copy. The frame has `bytes` bytes and is the next of `stream`.
    ///
    /// # Errors
    ///
    /// If the frame is broken.
    pub fn chunk<M: Machine, N: Outside>(
        &mut self,
        turn: &mut Turn<'_, M, N, O>,
        mut reader: ChunkReader<'_>,
        stream: &mut ReceiveStream,
        bytes: usize,
    ) -> Result<(), Fault> {
        let chunk = *reader.chunk();
        let is_next = matches!(&self.role, Role::Learner(learner)
            if chunk.to == self.core.me
                && chunk.term == learner.term
                && chunk.term == turn.header.term()
                && chunk.start == learner.start
                && chunk.is_first != learner.is_begun
                && !learner.is_whole
                && (chunk.is_first || chunk.last == self.core.last(turn.header)));
        if !is_next {
            let end = stream.end_of(bytes);
            stream.refuse(self.refusal(turn.header, chunk.term, end), chunk.is_first);
            self.finish(turn);
            return Ok(());
        }
        let Position { term, lsn } = chunk.last;
        if chunk.is_first {
            turn.header.set_lsn(lsn);
            self.core.last_term = term;
            self.core.began = lsn;
            self.core.clock_of = Some(chunk.from);
            stream.taken(chunk.partition);
        }
        turn.header.set_time(turn.header.pt_ns().max(chunk.pt_ns), chunk.ahead_ns);
        let at = At { pt_ns: turn.header.pt_ns(), term, lsn };
        while let Some((key, state)) = reader.next_key()? {
            turn.machine.install(at, key, &state);
        }
        let copy = self.core.copy_life(turn.header);
        while let Some(lane) = reader.next_lane()? {
            turn.node.import_result(lane.lane, lane.done, None);
            while let Some(result) = reader.next_result()? {
                let result: (u64, _, RecordResult<'_>) = (result.number, copy, result.result);
                turn.node.import_result(lane.lane, lane.done, Some(result));
            }
        }
        let cursor = reader.finish()?;
        if let Role::Learner(learner) = &mut self.role {
            learner.is_begun = true;
            learner.is_asked = false;
            learner.cursor = cursor.map(Bytes::copy_from_slice);
            learner.is_whole = learner.cursor.is_none();
            learner.retry(&self.core, turn);
        }
        self.finish(turn);
        Ok(())
    }
}
