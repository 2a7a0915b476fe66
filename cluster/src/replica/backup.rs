//! A copy that follows: an in-sync backup, or a learner that is being made.

use bytes::Bytes;

use super::event::{CallContext, Environment, StateMachine};
use super::{Core, Replica, RoleState};
use crate::frames::{
    Adopt, ChunkReader, FrameError, Pull, RecordResult, Restart, StreamRefusal, TermCheck,
};
use crate::id::Term;
use crate::partition_header::{HeaderState, PartitionHeader};
use crate::position::{ApplyPosition, Position};
use crate::receive_stream::ReceiveStream;

/// A copy that is being made. It pulls chunks, which arrive in one order with the records around
/// them. Records before the first chunk are not for this copy; those after it are.
#[derive(Debug)]
pub(super) struct Learner {
    /// The term in which the copy is made; it begins anew in each term.
    term: Term,
    /// Counts the starts of the copy.
    start: u32,
    /// The cursor of the next chunk.
    cursor: Option<Bytes>,
    /// Whether the next chunk was requested and has not arrived.
    is_pulling: bool,
    pulled_ns: u64,
    is_begun: bool,
    /// Whether every chunk has arrived.
    is_whole: bool,
}

impl Learner {
    /// Starts an empty copy, and requests its first chunk.
    pub(super) fn begin<M, N: Environment, O>(
        core: &mut Core,
        ctx: &mut CallContext<'_, M, N, O>,
    ) -> Self {
        let mut learner = Self {
            term: ctx.header.term(),
            start: 0,
            cursor: None,
            is_pulling: false,
            pulled_ns: 0,
            is_begun: false,
            is_whole: false,
        };
        learner.restart(core, ctx);
        learner
    }

    fn restart<M, N: Environment, O>(&mut self, core: &Core, ctx: &mut CallContext<'_, M, N, O>) {
        *self = Self {
            term: self.term,
            start: self.start + 1,
            cursor: None,
            is_pulling: false,
            pulled_ns: ctx.now.mono_ns,
            is_begun: false,
            is_whole: false,
        };
        self.retry(core, ctx);
    }

    /// Whether the learner waits for its primary.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_begun && (self.is_whole || self.is_pulling)
    }

    pub(super) fn is_of(&self, term: Term) -> bool {
        self.term == term
    }

    /// Whether the next record of `term` is installed.
    pub(super) fn follows(&self, term: Term) -> bool {
        self.is_begun && self.term == term
    }

    /// Requests the next chunk, unless it was requested already or the primary is unreachable.
    pub(super) fn retry<M, N: Environment, O>(
        &mut self,
        core: &Core,
        ctx: &mut CallContext<'_, M, N, O>,
    ) {
        if self.is_pulling || self.is_whole {
            return;
        }
        let Some(to) = core.entry.primary else { return };
        let Some(link) = ctx.node.link_to(to, core.partition) else { return };
        let pull = Pull {
            partition: core.partition,
            from: core.me,
            to,
            term: self.term,
            start: self.start,
            cursor: self.cursor.as_deref(),
        };
        ctx.node.append(link, ctx.now, &mut |out| pull.encode(out));
        self.is_pulling = true;
        self.pulled_ns = ctx.now.mono_ns;
    }

    /// Pulls again as a new start if no chunk arrives: a primary that did not know this copy yet
    /// ignored the first pull.
    pub(super) fn tick<M, N: Environment, O>(
        &mut self,
        core: &mut Core,
        ctx: &mut CallContext<'_, M, N, O>,
    ) {
        let waited_ns = ctx.now.mono_ns.saturating_sub(self.pulled_ns);
        if !self.is_begun && self.is_pulling && waited_ns >= core.options.resend_ns {
            self.restart(core, ctx);
        }
        self.retry(core, ctx);
    }
}

impl<O> Replica<O> {
    /// A refusal of a frame of `term` that ends at `end`.
    #[must_use]
    pub fn refusal(&self, header: &PartitionHeader, term: Term, end: u64) -> StreamRefusal {
        StreamRefusal {
            partition: self.core.partition,
            term,
            copy_term: header.term(),
            end,
            last: self.core.last(header),
        }
    }

    /// Handles a primary's `Adopt`. The frame has `bytes` bytes and is the next of `stream`, which
    /// records the result.
    pub fn adopt<M: StateMachine, N: Environment>(
        &mut self,
        ctx: &mut CallContext<'_, M, N, O>,
        adopt: &Adopt,
        stream: &mut ReceiveStream,
        bytes: usize,
    ) {
        let is_meant = !matches!(self.role, RoleState::None) && adopt.to == self.core.me;
        if is_meant && adopt.term > ctx.header.term() {
            self.see_term(ctx, adopt.term);
        }
        let is_same = self.core.last(ctx.header) == adopt.last;
        let is_whole = match &self.role {
            RoleState::Backup { .. } => true,
            RoleState::Learner(learner) => learner.is_whole,
            RoleState::None | RoleState::Primary(_) => false,
        };
        if is_meant && adopt.term == ctx.header.term() && is_same && is_whole {
            self.role = RoleState::Backup { is_adopted: true };
            ctx.header.set_time(ctx.header.pt_ns(), adopt.ahead_ns);
            self.core.clock_of = adopt.from;
            stream.taken(adopt.partition);
        } else {
            let end = stream.end_of(bytes);
            stream.refuse(self.refusal(ctx.header, adopt.term, end), true);
        }
        self.finish(ctx);
    }

    /// Handles a primary's check that this copy still follows its term.
    pub fn check_term<M: StateMachine, N: Environment>(
        &mut self,
        ctx: &mut CallContext<'_, M, N, O>,
        check: &TermCheck,
        stream: &mut ReceiveStream,
        bytes: usize,
    ) {
        let follows = self.state(ctx.header) == HeaderState::Follows;
        if !follows || check.term != ctx.header.term() {
            let end = stream.end_of(bytes);
            stream.refuse(self.refusal(ctx.header, check.term, end), false);
        }
        self.finish(ctx);
    }

    /// Handles a `Restart`: the primary cannot complete this copy.
    pub fn restart<M: StateMachine, N: Environment>(
        &mut self,
        ctx: &mut CallContext<'_, M, N, O>,
        restart: &Restart,
    ) {
        let is_meant = matches!(&self.role, RoleState::Learner(learner)
            if restart.to == self.core.me
                && restart.term == learner.term
                && restart.start == learner.start);
        if is_meant {
            self.wipe(ctx);
            if let RoleState::Learner(learner) = &mut self.role {
                learner.restart(&self.core, ctx);
            }
        }
        self.finish(ctx);
    }

    /// Handles a chunk of this copy. The frame has `bytes` bytes and is the next of `stream`.
    ///
    /// # Errors
    ///
    /// If the frame is malformed.
    pub fn chunk<M: StateMachine, N: Environment>(
        &mut self,
        ctx: &mut CallContext<'_, M, N, O>,
        mut reader: ChunkReader<'_>,
        stream: &mut ReceiveStream,
        bytes: usize,
    ) -> Result<(), FrameError> {
        let chunk = *reader.chunk();
        let is_next = matches!(&self.role, RoleState::Learner(learner)
            if chunk.to == self.core.me
                && chunk.term == learner.term
                && chunk.term == ctx.header.term()
                && chunk.start == learner.start
                && chunk.is_first != learner.is_begun
                && !learner.is_whole
                && (chunk.is_first || chunk.last == self.core.last(ctx.header)));
        if !is_next {
            let end = stream.end_of(bytes);
            stream.refuse(self.refusal(ctx.header, chunk.term, end), chunk.is_first);
            self.finish(ctx);
            return Ok(());
        }
        let Position { term, lsn } = chunk.last;
        if chunk.is_first {
            ctx.header.set_lsn(lsn);
            self.core.last_term = term;
            self.core.began = lsn;
            self.core.clock_of = chunk.from;
            stream.taken(chunk.partition);
        }
        ctx.header.set_time(ctx.header.pt_ns().max(chunk.pt_ns), chunk.ahead_ns);
        let at = ApplyPosition { pt_ns: ctx.header.pt_ns(), term, lsn };
        while let Some((key, state)) = reader.next_key()? {
            ctx.state_machine.install(at, key, &state);
        }
        let copy = self.core.copy_generation(ctx.header);
        while let Some(stream) = reader.next_stream()? {
            ctx.node.import_result(stream.stream, stream.done, None);
            while let Some(result) = reader.next_result()? {
                let result: (u64, _, RecordResult<'_>) = (result.number, copy, result.result);
                ctx.node.import_result(stream.stream, stream.done, Some(result));
            }
        }
        let cursor = reader.finish()?;
        if let RoleState::Learner(learner) = &mut self.role {
            learner.is_begun = true;
            learner.is_pulling = false;
            learner.cursor = cursor.map(Bytes::copy_from_slice);
            learner.is_whole = learner.cursor.is_none();
            learner.retry(&self.core, ctx);
        }
        self.finish(ctx);
        Ok(())
    }
}
