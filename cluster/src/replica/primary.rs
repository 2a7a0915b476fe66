//! The copy that serves: it does operations, sends records, and answers when they are safe.
//!
//! Here: doing operations and answering them. Not here: bringing other copies up to it (`peers`).

mod peers;

use std::collections::VecDeque;

use super::clock::PartitionClock;
use super::event::{
    AckMode, Action, Kind, Op, Outcome, Position, Record, Refusal, Reply, SessionId, Stamp, Write,
};
use super::machine::{At, Machine};
use super::options::Bug;
use super::results::Known;
use super::{Core, Load, Turn};
use crate::id::{CopyId, NodeId};
use crate::map::command::Change;

use self::peers::Peer;
pub(super) use self::peers::Said;

/// An answer that waits until every mandatory copy holds `lsn`.
struct Waiting {
    lsn: u64,
    to: SessionId,
    reply: Reply,
}

/// An answer that changed nothing: it waits for what it saw, and for proof that nobody else was
/// primary when it looked.
struct Reading {
    lsn: u64,
    round: u64,
    to: SessionId,
    reply: Reply,
}

/// The primary of one term.
pub(super) struct Primary {
    peers: Vec<Peer>,
    /// By ascending lsn.
    waiting: VecDeque<Waiting>,
    /// By ascending lsn and round.
    reads: VecDeque<Reading>,
    /// The last round that was sent.
    round: u64,
    /// To whom it hands over: operations are held until that is decided.
    heir: Option<CopyId>,
    /// Operations, and until when they are held.
    held: VecDeque<(Op, u64)>,
    asked: Option<(Change, u64)>,
    /// When the time was last sent to all, be it with a record.
    told_ns: u64,
    /// When a round was last sent to all.
    round_ns: u64,
}

impl Primary {
    /// Takes over: the other in-sync copies are asked to join the new term.
    pub(super) fn begin<M: Machine>(core: &mut Core, turn: &mut Turn<'_, M>) -> Self {
        let mut primary = Self {
            peers: Vec::new(),
            waiting: VecDeque::new(),
            reads: VecDeque::new(),
            round: 0,
            heir: None,
            held: VecDeque::new(),
            asked: None,
            told_ns: turn.now.mono_ns,
            round_ns: turn.now.mono_ns,
        };
        if core.options.has(Bug::ClockOfNode) {
            core.clock = PartitionClock::new(turn.now, &core.options);
        }
        primary.update(core, turn);
        primary
    }

    /// The map has changed, but neither primary nor term.
    pub(super) fn update<M: Machine>(&mut self, core: &mut Core, turn: &mut Turn<'_, M>) {
        self.meet(core, turn);
        self.heir = core.entry.transfer_to.filter(|heir| *heir != core.me);
        self.advance(core, turn);
        if self.heir.is_none() {
            for (op, _) in std::mem::take(&mut self.held) {
                self.perform(core, turn, &op);
            }
        }
    }

    pub(super) fn load(&self) -> Load {
        Load {
            held: self.held.len(),
            waiting: self.waiting.len(),
            reads: self.reads.len(),
            ..Load::default()
        }
    }

    /// Drops operations of nodes that are no more: it is not known any longer whether they were done.
    pub(super) fn retain_held(&mut self, is_known: impl Fn(NodeId) -> bool) {
        self.held.retain(|(op, _)| is_known(op.session.node));
    }

    /// Whether somebody waits, some copy owes an answer, or is not in its place yet.
    pub(super) fn is_busy(&self, core: &Core) -> bool {
        !self.held.is_empty()
            || !self.waiting.is_empty()
            || !self.reads.is_empty()
            || self.heir.is_some()
            || self.peers.iter().any(|peer| peer.owes(core, self.round) || peer.is_on_its_way())
    }

    /// Whoever waits is to ask the new primary.
    pub(super) fn step_down<M>(&mut self, core: &Core, turn: &mut Turn<'_, M>) {
        let outcome = Outcome::Deposed(core.entry.route());
        let mut refer = |to: SessionId, reply: Reply| {
            let reply = Reply { outcome: outcome.clone(), ..reply };
            turn.actions.push(Action::Reply { to, reply });
        };
        self.waiting.drain(..).for_each(|waiting| refer(waiting.to, waiting.reply));
        self.reads.drain(..).for_each(|reading| refer(reading.to, reading.reply));
        for (op, _) in self.held.drain(..) {
            let outcome = Outcome::NotOwner(core.entry.route());
            let reply = Reply { term: op.term, seq: op.seq, outcome };
            turn.actions.push(Action::Reply { to: op.session, reply });
        }
    }

    /// An operation of this term.
    pub(super) fn operate<M: Machine>(&mut self, core: &mut Core, turn: &mut Turn<'_, M>, op: Op) {
        if core.is_stopped(turn.now) {
            refuse(turn, &op, Refusal::Stopped);
        } else if self.heir.is_none() || core.options.has(Bug::ServeInTransfer) {
            self.perform(core, turn, &op);
        } else if self.held.len() >= core.options.held_max {
            refuse(turn, &op, Refusal::Busy);
        } else {
            let until_ns = op.deadline_ns.min(turn.now.mono_ns + core.options.hold_ns);
            self.held.push_back((op, until_ns));
        }
    }

    fn perform<M: Machine>(&mut self, core: &mut Core, turn: &mut Turn<'_, M>, op: &Op) {
        let options = core.options;
        if op.kind == Kind::Write && !options.has(Bug::NoDedupe) {
            let (session, results_max) = (op.session, options.results_max);
            match core.results.look_up(session, op.seq, op.first_unacked, results_max) {
                Known::New => {}
                Known::Done { lsn, result } => {
                    let outcome = Outcome::Done(result.clone());
                    let reply = Reply { term: op.term, seq: op.seq, outcome };
                    match lsn {
                        Some(lsn) => self.answer_at(core, turn, lsn, session, reply),
                        None => self.confirm(core, turn, core.last.lsn, session, reply),
                    }
                    return;
                }
                Known::Stale => return refuse(turn, op, Refusal::Stale),
                Known::TooMany => return refuse(turn, op, Refusal::Busy),
            }
        }
        if op.deadline_ns < turn.now.mono_ns {
            return refuse(turn, op, Refusal::Expired);
        }
        let is_full = core.tail.len().max(self.waiting.len()) >= options.unacked_max
            || self.reads.len() >= options.reads_max;
        if is_full {
            return refuse(turn, op, Refusal::Busy);
        }
        self.apply(core, turn, op);
    }

    fn apply<M: Machine>(&mut self, core: &mut Core, turn: &mut Turn<'_, M>, op: &Op) {
        let pt_ns = core.clock.read(turn.now);
        let at = At { pt_ns, term: core.term, lsn: core.last.lsn + 1 };
        turn.machine.apply(at, &op.op, &mut core.effect);
        let (write, result) = core.effect.take();
        let outcome = Outcome::Done(result.clone());
        let reply = Reply { term: op.term, seq: op.seq, outcome };
        if write.is_none() {
            if op.kind == Kind::Write {
                core.results.keep_unchanged(op.session, op.seq, result);
            }
            let seen = if op.ack == AckMode::Owner { 0 } else { core.last.lsn };
            self.confirm(core, turn, seen, op.session, reply);
            return;
        }
        let result = Some((op.seq, result));
        let stamp = Stamp { session: op.session, first_unacked: op.first_unacked, result };
        self.append(core, turn, pt_ns, write, Some(stamp));
        let at_once = (op.ack == AckMode::Owner && self.is_near(core, pt_ns))
            || core.options.has(Bug::AnswerEarly);
        if at_once {
            turn.actions.push(Action::Reply { to: op.session, reply });
        } else {
            self.answer_at(core, turn, core.last.lsn, op.session, reply);
        }
    }

    /// See [`super::Replica::at_once`].
    pub(super) fn at_once<M: Machine>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        kind: Kind,
        ack: AckMode,
        work: impl FnOnce(&mut M, At, bool) -> Option<Write>,
    ) -> bool {
        let pt_ns = core.clock.read(turn.now);
        let is_copied = !self.peers.is_empty();
        // What it saw must be safe, and what it changes may be answered before a copy holds it.
        let is_safe = match (kind, ack) {
            _ if !is_copied => true,
            (_, AckMode::Owner) => self.is_near(core, pt_ns),
            (Kind::Read, AckMode::Replica) => core.last.lsn <= core.commit && self.is_joined(),
            (Kind::Write, AckMode::Replica) => false,
        };
        let may = is_safe
            && self.is_alone_primary(core, turn)
            && (self.heir.is_none() || core.options.has(Bug::ServeInTransfer))
            && self.reads.is_empty()
            && core.tail.len() < core.options.unacked_max
            && !core.is_stopped(turn.now);
        if !may {
            return false;
        }
        let at = At { pt_ns, term: core.term, lsn: core.last.lsn + 1 };
        let write = work(turn.machine, at, is_copied);
        if write.is_some() || (kind == Kind::Write && !is_copied) {
            self.append(core, turn, pt_ns, write, None);
        }
        true
    }

    /// Whether there is no other copy, and nobody waits for anything.
    pub(super) fn is_alone_and_idle(&self, core: &Core) -> bool {
        self.peers.is_empty()
            && self.heir.is_none()
            && self.held.is_empty()
            && self.waiting.is_empty()
            && self.reads.is_empty()
            && core.tail.is_empty()
            && core.commit == core.last.lsn
    }

    /// A session is done with everything below `first_unacked`.
    pub(super) fn settle<M: Machine>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        session: SessionId,
        first_unacked: u64,
    ) {
        core.results.hear(session, first_unacked);
        let has_room = core.tail.len() < core.options.unacked_max;
        if has_room && self.heir.is_none() && core.results.can_prune(session, first_unacked) {
            let pt_ns = core.clock.read(turn.now);
            let stamp = Stamp { session, first_unacked, result: None };
            self.append(core, turn, pt_ns, None, Some(stamp));
        }
    }

    /// The machine's owner has changed a key.
    pub(super) fn change<M: Machine>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        write: Write,
    ) -> bool {
        if core.tail.len() >= core.options.unacked_max || self.heir.is_some() {
            return false;
        }
        let pt_ns = core.clock.read(turn.now);
        self.append(core, turn, pt_ns, Some(write), None);
        true
    }

    /// The next record: kept here, and sent to all.
    fn append<M: Machine>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        pt_ns: u64,
        write: Option<Write>,
        stamp: Option<Stamp>,
    ) {
        let position = Position { term: core.term, lsn: core.last.lsn + 1 };
        if let Some(stamp) = &stamp {
            core.results.absorb(position.lsn, stamp);
        }
        core.last = position;
        core.clock.used(pt_ns);
        if self.peers.is_empty() {
            core.base = position;
            core.commit = position.lsn;
            return;
        }
        core.tail.push_back(Record { position, commit: core.commit, pt_ns, write, stamp });
        self.send_new(core, turn);
        self.advance(core, turn);
    }

    /// Whether no mandatory copy lacks a record that is older than operations may run ahead.
    fn is_near(&self, core: &Core, pt_ns: u64) -> bool {
        if core.options.has(Bug::OwnerUnbounded) {
            return true;
        }
        let lacking = usize::try_from(core.commit.saturating_sub(core.base.lsn)).unwrap_or(0);
        let oldest_ns = core.tail.get(lacking).map_or(pt_ns, |record| record.pt_ns);
        self.is_joined() && pt_ns.saturating_sub(oldest_ns) <= core.options.owner_lag_ns
    }

    /// Answers when every mandatory copy holds `lsn`.
    fn answer_at<M>(
        &mut self,
        core: &Core,
        turn: &mut Turn<'_, M>,
        lsn: u64,
        to: SessionId,
        reply: Reply,
    ) {
        if lsn <= core.commit && self.is_joined() {
            turn.actions.push(Action::Reply { to, reply });
        } else if self.waiting.len() < 2 * core.options.unacked_max {
            // Beyond that a resend is not answered, and will be sent again.
            let place = self.waiting.partition_point(|waiting| waiting.lsn <= lsn);
            self.waiting.insert(place, Waiting { lsn, to, reply });
        }
    }

    /// Answers what changed nothing, when `lsn` is safe and nobody else can be primary.
    fn confirm<M>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        lsn: u64,
        to: SessionId,
        reply: Reply,
    ) {
        let needs_round = !self.is_alone_primary(core, turn);
        if lsn <= core.commit && self.reads.is_empty() && !needs_round {
            turn.actions.push(Action::Reply { to, reply });
            return;
        }
        if self.reads.len() >= 2 * core.options.reads_max {
            return;
        }
        // A round proves it only if it is sent after the look: one under way came before.
        let is_idle = self.confirmed() >= self.round;
        let round = self.round + 1;
        self.reads.push_back(Reading { lsn, round, to, reply });
        if needs_round && is_idle {
            self.begin_round(turn, round);
            let pt_ns = core.clock.read(turn.now);
            self.beat(core, turn, pt_ns);
        }
    }

    /// Whether it is certain without a round that nobody else is primary.
    fn is_alone_primary<M>(&self, core: &Core, turn: &Turn<'_, M>) -> bool {
        let silence = turn.now.mono_ns.saturating_sub(core.contact_ns);
        // Nobody can be promoted where nobody else is in-sync. The lease says that nobody is promoted
        // over this copy, but not that it has not handed over.
        self.mandatory().next().is_none()
            || (silence < core.options.read_lease_ns && self.heir.is_none())
            || core.options.has(Bug::ReadsUnconfirmed)
    }

    /// Answers what can be answered.
    fn flush<M>(&mut self, core: &mut Core, turn: &mut Turn<'_, M>) {
        if core.is_stopped(turn.now) {
            return;
        }
        if self.is_joined() {
            while self.waiting.front().is_some_and(|waiting| waiting.lsn <= core.commit) {
                let Waiting { to, reply, .. } = self.waiting.pop_front().expect("it has a front");
                turn.actions.push(Action::Reply { to, reply });
            }
        }
        let confirmed = self.confirmed();
        let is_alone = self.is_alone_primary(core, turn);
        while self.reads.front().is_some_and(|reading| {
            reading.lsn <= core.commit && (is_alone || reading.round <= confirmed)
        }) {
            let Reading { to, reply, .. } = self.reads.pop_front().expect("it has a front");
            turn.actions.push(Action::Reply { to, reply });
        }
        let wanted = self.reads.back().map_or(0, |reading| reading.round);
        if wanted > self.round && confirmed >= self.round {
            self.begin_round(turn, wanted);
            let pt_ns = core.clock.read(turn.now);
            self.beat(core, turn, pt_ns);
        }
    }

    /// Time passes.
    pub(super) fn tick<M: Machine>(&mut self, core: &mut Core, turn: &mut Turn<'_, M>) {
        let now_ns = turn.now.mono_ns;
        let is_over = |(_, until_ns): &(Op, u64)| *until_ns < now_ns;
        while let Some((op, _)) = self.held.pop_front_if(|held| is_over(held)) {
            let moving = op.deadline_ns >= now_ns;
            refuse(turn, &op, if moving { Refusal::Moving } else { Refusal::Expired });
        }
        self.tend(core, turn);
        self.advance(core, turn);
    }
}

fn refuse<M>(turn: &mut Turn<'_, M>, op: &Op, refusal: Refusal) {
    let reply = Reply { term: op.term, seq: op.seq, outcome: Outcome::Refused(refusal) };
    turn.actions.push(Action::Reply { to: op.session, reply });
}
