//! A copy that follows: as an in-sync backup, or as a learner that is still being made.

use bytes::Bytes;

use super::event::{Chunk, Message, Nak, Position, Record};
use super::machine::Machine;
use super::options::Bug;
use super::results::Results;
use super::{Core, Turn};
use crate::id::{CopyId, Term};

impl Core {
    /// Makes a record part of this copy.
    fn install<M: Machine>(&mut self, turn: &mut Turn<'_, M>, record: &Record) {
        if let Some(write) = &record.write {
            turn.machine.install(record.pt_ns, &write.key, write.state.as_deref());
        }
        if let Some(stamp) = &record.stamp {
            self.results.absorb(record.position.lsn, stamp);
        }
        self.clock.used(record.pt_ns);
        self.clock.observe(turn.now, record.pt_ns);
        self.last = record.position;
    }

    /// Keeps a record until every mandatory copy is known to hold it, so that a primary made of this
    /// copy can bring the others up to it.
    fn keep(&mut self, record: Record) {
        let commit = record.commit;
        self.tail.push_back(record);
        self.note_commit(commit);
    }

    fn note_commit(&mut self, commit: u64) {
        self.commit = self.commit.max(commit.min(self.last.lsn));
        self.trim(self.commit);
        while self.tail.len() > self.options.unacked_max {
            let oldest = self.tail.pop_front().expect("it is longer than its bound");
            self.base = oldest.position;
        }
    }
}

/// An in-sync copy.
#[derive(Debug, Default)]
pub(super) struct Backup {
    /// The term whose primary has the same history; records of it are accepted.
    adopted: Term,
    /// As in [`Message::Ack`].
    base: u32,
    /// The last round seen in that term.
    round: u64,
}

impl Backup {
    /// The learner has become in-sync. If its term is over by now, it waits for the new primary.
    pub(super) fn of_learner(learner: &Learner, core: &Core) -> Self {
        let adopted = if learner.term == core.term { learner.term } else { Term::default() };
        Self { adopted, base: learner.base, round: learner.round }
    }

    fn ack<M>(&self, core: &Core, turn: &mut Turn<'_, M>, to: CopyId) {
        let (lsn, round, base) = (core.last.lsn, self.round, self.base);
        core.send(turn, to, Message::Ack { lsn, round, base, complete: true });
    }

    /// The primary of a new term asks for this copy.
    pub(super) fn adopt<M>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        from: CopyId,
        term: Term,
        position: Position,
        pt_ns: u64,
    ) {
        if self.adopted != term {
            let is_same = if core.options.has(Bug::AdoptByLength) {
                position.lsn == core.last.lsn
            } else {
                position == core.last
            };
            if !is_same {
                core.send(turn, from, Message::Nak(Nak::Diverged(core.last)));
                return;
            }
            *self = Self { adopted: term, base: 0, round: 0 };
            core.clock.observe(turn.now, pt_ns);
        }
        self.ack(core, turn, from);
    }

    /// The next record, if it is the next.
    pub(super) fn record<M: Machine>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        from: CopyId,
        term: Term,
        record: Record,
    ) {
        let accepts_old = core.options.has(Bug::AcceptOldTerms);
        let next = core.last.lsn + 1;
        if (self.adopted != term && !accepts_old) || record.position.lsn > next {
            core.send(turn, from, Message::Nak(Nak::Gap(core.last)));
            return;
        }
        if record.position.lsn == next {
            core.install(turn, &record);
            core.keep(record);
        }
        if accepts_old {
            let (lsn, round, base) = (core.last.lsn, self.round, self.base);
            let message = Message::Ack { lsn, round, base, complete: true };
            turn.actions.push(super::Action::Send { to: from, from: core.me, term, message });
            return;
        }
        self.ack(core, turn, from);
    }

    /// A sign of life, or a round.
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn beat<M>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        from: CopyId,
        lsn: u64,
        commit: u64,
        pt_ns: u64,
        round: u64,
    ) {
        if self.adopted != core.term || lsn > core.last.lsn {
            core.send(turn, from, Message::Nak(Nak::Gap(core.last)));
            if self.adopted != core.term {
                return;
            }
        }
        core.clock.observe(turn.now, pt_ns);
        core.note_commit(commit);
        self.round = self.round.max(round);
        self.ack(core, turn, from);
    }
}

/// A copy that is being made: it pulls pieces, while the primary sends every new record.
///
/// Records carry states, so a piece and the records around it may be taken in any order that never
/// puts a piece over a record made after it. Once every piece is here, and every record up to the
/// last piece's, the copy is complete.
#[derive(Debug)]
pub(super) struct Learner {
    /// The term it is made in; it begins anew in each.
    term: Term,
    /// The number of the pull that it began with.
    base: u32,
    /// The last pull that was sent.
    pull: u32,
    /// Where that one begins.
    cursor: Option<Bytes>,
    pulled_ns: u64,
    /// The first piece is here, so `last` counts.
    is_begun: bool,
    /// Every piece is here.
    is_whole: bool,
    /// The newest record that some piece may hold something of.
    copied_to: u64,
    round: u64,
}

impl Learner {
    /// An empty copy asks for its first piece.
    pub(super) fn begin<M>(core: &mut Core, turn: &mut Turn<'_, M>) -> Self {
        let mut learner = Self {
            term: core.term,
            base: 0,
            pull: 0,
            cursor: None,
            pulled_ns: 0,
            is_begun: false,
            is_whole: false,
            copied_to: 0,
            round: 0,
        };
        learner.begin_anew(core, turn);
        learner
    }

    fn begin_anew<M>(&mut self, core: &mut Core, turn: &mut Turn<'_, M>) {
        *self = Self {
            base: self.pull + 1,
            cursor: None,
            is_begun: false,
            is_whole: false,
            copied_to: 0,
            round: 0,
            ..*self
        };
        self.pull(core, turn);
    }

    /// The primary no longer has what is missing here.
    pub(super) fn restart<M: Machine>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        base: u32,
    ) {
        if base == self.base {
            turn.machine.clear();
            core.results = Results::default();
            core.last = Position::default();
            self.begin_anew(core, turn);
        }
    }

    /// Whether anything of the copy is here, the partition's time among it.
    pub(super) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Whether it is made in this term.
    pub(super) fn is_of(&self, term: Term) -> bool {
        self.term == term
    }

    fn is_complete(&self, core: &Core) -> bool {
        self.is_whole && core.last.lsn >= self.copied_to
    }

    fn pull<M>(&mut self, core: &Core, turn: &mut Turn<'_, M>) {
        self.pull += 1;
        self.pulled_ns = turn.now.mono_ns;
        if self.cursor.is_none() {
            // A start that is asked for again is another start: the primary sends it records from
            // another place on.
            self.base = self.pull;
        }
        if let Some(primary) = core.entry.primary {
            let cursor = self.cursor.clone();
            let message = Message::Pull { base: self.base, pull: self.pull, cursor };
            core.send(turn, primary, message);
        }
    }

    fn ack<M>(&self, core: &Core, turn: &mut Turn<'_, M>, to: CopyId) {
        let complete = self.is_complete(core);
        let (lsn, round, base) = (core.last.lsn, self.round, self.base);
        core.send(turn, to, Message::Ack { lsn, round, base, complete });
    }

    /// A piece, if it is the one that was asked for.
    pub(super) fn chunk<M: Machine>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        chunk: &Chunk,
    ) {
        if chunk.pull != self.pull || self.is_whole {
            return;
        }
        if !self.is_begun {
            self.is_begun = true;
            core.last = chunk.position;
            core.base = chunk.position;
            core.tail.clear();
        }
        if core.last.lsn > chunk.position.lsn {
            // Records have overtaken it, and it may hold what they replaced.
            self.pull(core, turn);
            return;
        }
        for (key, state) in &chunk.states {
            turn.machine.install(chunk.pt_ns, key, Some(state));
        }
        core.clock.used(chunk.pt_ns);
        core.clock.observe(turn.now, chunk.pt_ns);
        if !core.options.has(Bug::CopyWithoutResults) {
            core.results.import(&chunk.results);
        }
        self.copied_to = self.copied_to.max(chunk.position.lsn);
        self.cursor.clone_from(&chunk.cursor);
        if self.cursor.is_some() {
            self.pull(core, turn);
            return;
        }
        self.is_whole = true;
        if let Some(primary) = core.entry.primary {
            self.ack(core, turn, primary);
        }
    }

    /// A record made since the first piece.
    pub(super) fn record<M: Machine>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        from: CopyId,
        record: Record,
    ) {
        if !self.is_begun {
            return;
        }
        if record.position.lsn > core.last.lsn + 1 {
            core.send(turn, from, Message::Nak(Nak::Gap(core.last)));
            return;
        }
        if record.position.lsn == core.last.lsn + 1 {
            core.install(turn, &record);
            core.keep(record);
        }
        self.ack(core, turn, from);
    }

    /// A sign of life, or a round.
    pub(super) fn beat<M>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        from: CopyId,
        lsn: u64,
        pt_ns: u64,
        round: u64,
    ) {
        if !self.is_begun {
            return;
        }
        if lsn > core.last.lsn {
            core.send(turn, from, Message::Nak(Nak::Gap(core.last)));
        }
        core.clock.observe(turn.now, pt_ns);
        self.round = self.round.max(round);
        self.ack(core, turn, from);
    }

    /// Asks again for a piece that does not come.
    pub(super) fn tick<M>(&mut self, core: &mut Core, turn: &mut Turn<'_, M>) {
        let waited = turn.now.mono_ns.saturating_sub(self.pulled_ns);
        if !self.is_whole && waited >= core.options.resend_ns {
            self.pull(core, turn);
        }
    }
}
