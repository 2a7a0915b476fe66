//! The other copies as their primary sees them: who holds what, who must, who is sent what again.

use bytes::Bytes;

use super::Primary;
use crate::id::{CopyId, NodeId};
use crate::map::command::{Change, Step};
use crate::replica::event::{Action, Chunk, Message, Nak};
use crate::replica::machine::Machine;
use crate::replica::options::Bug;
use crate::replica::{Core, Turn};

/// What an acknowledgement says; see [`Message::Ack`].
#[derive(Debug, Clone, Copy)]
pub(in crate::replica) struct Said {
    pub(in crate::replica) lsn: u64,
    pub(in crate::replica) round: u64,
    pub(in crate::replica) base: u32,
    pub(in crate::replica) complete: bool,
}

/// Another copy.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    copy: CopyId,
    in_sync: bool,
    /// Nothing is answered without it.
    mandatory: bool,
    /// It has adopted this term, or has begun to be copied in it: records can be sent.
    joined: bool,
    /// For a learner: which of its starts counts.
    base: u32,
    /// It holds everything up to here.
    acked: u64,
    /// It was sent everything up to here.
    sent: u64,
    round: u64,
    complete: bool,
    /// A learner has to hold this before it may be in-sync: it was answered without it.
    needed: u64,
    diverged: bool,
    /// When it last said something, or was last owed nothing.
    heard_ns: u64,
    /// When it was last sent something again.
    resent_ns: u64,
    /// To where it was last gone back, and when.
    rewound: Option<(u64, u64)>,
}

impl Peer {
    fn new(copy: CopyId, in_sync: bool, now_ns: u64) -> Self {
        Self {
            copy,
            in_sync,
            mandatory: in_sync,
            joined: false,
            base: 0,
            acked: 0,
            sent: 0,
            round: 0,
            complete: false,
            needed: 0,
            diverged: false,
            heard_ns: now_ns,
            resent_ns: now_ns,
            rewound: None,
        }
    }

    /// Whether something is expected of it.
    pub(super) fn owes(&self, core: &Core, round: u64) -> bool {
        if self.joined {
            self.acked < core.last.lsn || self.round < round
        } else {
            self.in_sync || self.base > 0
        }
    }

    /// Whether it is to become an in-sync copy, or to join this term.
    pub(super) fn is_on_its_way(&self) -> bool {
        !self.in_sync || !self.joined
    }

    /// Sends what it was not sent yet, so much of it as may be under way.
    fn feed<M>(&mut self, core: &Core, turn: &mut Turn<'_, M>) {
        if !self.joined {
            return;
        }
        let limit = self.acked.saturating_add(core.options.unacked_max as u64);
        while self.sent < core.last.lsn.min(limit) {
            let Some(record) = core.record_at(self.sent + 1) else { return };
            core.send(turn, self.copy, Message::Record(record.clone()));
            self.sent += 1;
        }
    }

    /// Goes back to `lsn` and sends a part of what follows again.
    fn rewind<M>(&mut self, core: &Core, turn: &mut Turn<'_, M>, lsn: u64) {
        self.sent = lsn.max(core.base.lsn);
        self.resent_ns = turn.now.mono_ns;
        self.rewound = Some((lsn, turn.now.mono_ns));
        let end = self.sent + core.options.resend_records as u64;
        while self.sent < core.last.lsn.min(end) {
            let Some(record) = core.record_at(self.sent + 1) else { return };
            core.send(turn, self.copy, Message::Record(record.clone()));
            self.sent += 1;
        }
    }
}

/// Where a piece of a copy begins: first come the keys, then the results.
enum Cursor {
    /// Where the machine says; none: at the start.
    Keys(Option<Bytes>),
    Results((NodeId, u16)),
}

/// The first session there can be.
const FIRST: (NodeId, u16) = (NodeId(0), 0);

impl Cursor {
    fn encode(&self) -> Bytes {
        match self {
            Self::Keys(cursor) => [&[0], cursor.as_deref().unwrap_or_default()].concat().into(),
            Self::Results((node, core)) => {
                [&[1][..], &node.0.to_be_bytes(), &core.to_be_bytes()].concat().into()
            }
        }
    }

    /// None: not one of ours.
    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0, cursor @ ..] => Some(Self::Keys(Some(Bytes::copy_from_slice(cursor)))),
            [1, rest @ ..] => {
                let (node, core) = rest.split_first_chunk()?;
                let core = u16::from_be_bytes(core.try_into().ok()?);
                Some(Self::Results((NodeId(u32::from_be_bytes(*node)), core)))
            }
            _ => None,
        }
    }
}

impl Primary {
    /// The copies that nothing is answered without.
    pub(super) fn mandatory(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(|peer| peer.mandatory)
    }

    /// Whether all of them have joined this term.
    pub(super) fn is_joined(&self) -> bool {
        self.mandatory().all(|peer| peer.joined)
    }

    /// The round that all of them have seen.
    pub(super) fn confirmed(&self) -> u64 {
        self.mandatory().map(|peer| peer.round).min().unwrap_or(self.round)
    }

    /// Makes the list of copies that of the map; what is known of one stays.
    pub(super) fn meet<M>(&mut self, core: &mut Core, turn: &mut Turn<'_, M>) {
        let now_ns = turn.now.mono_ns;
        let pt_ns = core.clock.read(turn.now);
        let in_sync = core.entry.in_sync.iter().map(|copy| (*copy, true));
        let learner = core.entry.learner.iter().map(|copy| (*copy, false));
        let old = std::mem::take(&mut self.peers);
        for (copy, in_sync) in in_sync.chain(learner).filter(|(copy, _)| *copy != core.me) {
            let known = old.iter().find(|peer| peer.copy == copy).cloned();
            let mut peer = known.unwrap_or_else(|| {
                if in_sync {
                    core.send(turn, copy, Message::Adopt { position: core.last, pt_ns });
                }
                Peer::new(copy, in_sync, now_ns)
            });
            peer.in_sync = in_sync;
            peer.mandatory |= in_sync;
            self.peers.push(peer);
        }
    }

    /// Sends the newest record to all.
    pub(super) fn send_new<M>(&mut self, core: &Core, turn: &mut Turn<'_, M>) {
        self.told_ns = turn.now.mono_ns;
        for peer in &mut self.peers {
            if peer.acked == peer.sent {
                peer.heard_ns = turn.now.mono_ns;
                peer.resent_ns = turn.now.mono_ns;
            }
            peer.feed(core, turn);
        }
    }

    /// From now on copies owe an answer to a newer round.
    pub(super) fn begin_round<M>(&mut self, turn: &Turn<'_, M>, round: u64) {
        for peer in &mut self.peers {
            if peer.acked == peer.sent && peer.round == self.round {
                // It owed nothing, and ticks are rare where nobody does.
                peer.heard_ns = turn.now.mono_ns;
            }
        }
        self.round = round;
    }

    /// Tells all the time, and which round it is.
    pub(super) fn beat<M>(&mut self, core: &Core, turn: &mut Turn<'_, M>, pt_ns: u64) {
        self.told_ns = turn.now.mono_ns;
        self.round_ns = turn.now.mono_ns;
        let (lsn, commit, round) = (core.last.lsn, core.commit, self.round);
        for peer in self.peers.iter().filter(|peer| peer.joined) {
            core.send(turn, peer.copy, Message::Beat { lsn, commit, pt_ns, round });
        }
    }

    /// A copy holds more.
    pub(in crate::replica) fn acked<M: Machine>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        from: CopyId,
        said: Said,
    ) {
        let old_counts = core.options.has(Bug::OldStartsCount);
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.copy == from) else { return };
        if (said.base != peer.base && !old_counts) || said.lsn > core.last.lsn {
            return;
        }
        let was_heard = peer.joined && peer.mandatory;
        if !peer.joined {
            if !peer.in_sync {
                return;
            }
            peer.joined = true;
            peer.diverged = false;
            peer.acked = said.lsn;
            peer.sent = said.lsn;
        }
        peer.heard_ns = turn.now.mono_ns;
        if said.lsn > peer.acked {
            peer.acked = said.lsn;
            peer.resent_ns = turn.now.mono_ns;
        }
        peer.sent = peer.sent.max(peer.acked);
        peer.round = peer.round.max(said.round);
        peer.complete |= said.complete;
        if !peer.mandatory
            && peer.complete
            && core.last.lsn - peer.acked <= core.options.caught_up
            && !core.options.has(Bug::LateMandatory)
        {
            // First its acknowledgement is needed for every answer; then it has to hold what was
            // answered without it; then the map may call it in-sync.
            peer.mandatory = true;
            peer.needed = core.commit;
        }
        if !was_heard && peer.mandatory && peer.round < self.round {
            // Reads wait for it from now on, and it was not asked yet.
            let (lsn, commit, round) = (core.last.lsn, core.commit, self.round);
            let pt_ns = core.clock.read(turn.now);
            core.send(turn, from, Message::Beat { lsn, commit, pt_ns, round });
        }
        peer.feed(core, turn);
        self.advance(core, turn);
    }

    /// A copy did not accept something.
    pub(in crate::replica) fn refused<M: Machine>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        from: CopyId,
        nak: Nak,
    ) {
        let now_ns = turn.now.mono_ns;
        let pt_ns = core.clock.read(turn.now);
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.copy == from) else { return };
        match nak {
            Nak::Diverged(position) if !peer.joined && peer.in_sync => {
                // A copy that only lacks the newest records joins where it is, and gets them.
                let same_length = core.options.has(Bug::AdoptByLength);
                let known = core.position_of(position.lsn);
                if known == Some(position) || (same_length && known.is_some()) {
                    core.send(turn, from, Message::Adopt { position, pt_ns });
                } else {
                    peer.diverged = true;
                }
                self.ask(core, turn);
            }
            Nak::Gap(_) if !peer.joined && peer.in_sync => {
                core.send(turn, from, Message::Adopt { position: core.last, pt_ns });
            }
            // The fence has seen to the stale: a newer term came with it.
            Nak::Stale | Nak::Diverged(_) => {}
            Nak::Gap(_) if !peer.joined => {}
            Nak::Gap(position) if position.lsn < core.base.lsn => {
                if !peer.mandatory {
                    peer.joined = false;
                    core.send(turn, from, Message::Restart { base: peer.base });
                }
            }
            Nak::Gap(position) => {
                // Everything after a gap is refused: one answer is enough for all of it.
                let is_repeated = peer.rewound.is_some_and(|(lsn, at_ns)| {
                    lsn == position.lsn && now_ns - at_ns < core.options.resend_ns / 4
                });
                if !is_repeated {
                    peer.rewind(core, turn, position.lsn);
                }
            }
        }
    }

    /// A learner asks for a piece.
    pub(in crate::replica) fn pulled<M: Machine>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M>,
        from: CopyId,
        base: u32,
        pull: u32,
        cursor: Option<&[u8]>,
    ) {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.copy == from) else { return };
        if peer.in_sync || peer.mandatory {
            return;
        }
        if cursor.is_none() && base > peer.base {
            *peer = Peer::new(from, false, turn.now.mono_ns);
            peer.base = base;
            peer.joined = true;
            peer.acked = core.last.lsn;
            peer.sent = core.last.lsn;
        }
        if !peer.joined || base != peer.base {
            return;
        }
        peer.heard_ns = turn.now.mono_ns;
        let pt_ns = core.clock.read(turn.now);
        let bytes_max = core.options.chunk_bytes;
        let (mut states, mut results) = (Vec::new(), Vec::new());
        let begin = cursor.map_or(Some(Cursor::Keys(None)), Cursor::decode);
        let Some(mut begin) = begin else { return };
        if let Cursor::Keys(from) = begin {
            let next = turn.machine.export(pt_ns, from.as_deref(), bytes_max, &mut states);
            begin = next.map_or(Cursor::Results(FIRST), |next| Cursor::Keys(Some(next)));
        }
        let next = match begin {
            Cursor::Results(from) => {
                let sent: usize = states.iter().map(|(key, state)| key.len() + state.len()).sum();
                let left = bytes_max.saturating_sub(sent);
                core.results.export(from, left, &mut results).map(Cursor::Results)
            }
            keys @ Cursor::Keys(_) => Some(keys),
        };
        let cursor = next.map(|next| next.encode());
        let chunk = Chunk { pull, position: core.last, pt_ns, states, cursor, results };
        core.send(turn, from, Message::Chunk(chunk));
    }

    /// Finds out what every mandatory copy holds now, and does what follows from it.
    pub(super) fn advance<M>(&mut self, core: &mut Core, turn: &mut Turn<'_, M>) {
        if self.is_joined() {
            let held = self.mandatory().map(|peer| peer.acked).min().unwrap_or(core.last.lsn);
            core.commit = core.commit.max(held);
        }
        if core.tail.len() >= core.options.unacked_max {
            for peer in self.peers.iter_mut().filter(|peer| peer.joined && !peer.mandatory) {
                // A learner that cannot keep up must not stop the others: it begins anew.
                if peer.acked < core.commit {
                    peer.joined = false;
                    core.send(turn, peer.copy, Message::Restart { base: peer.base });
                }
            }
        }
        let lacking = self.peers.iter().filter(|peer| peer.joined).map(|peer| peer.acked).min();
        let unneeded = core.commit.min(lacking.unwrap_or(core.commit));
        core.trim(unneeded);
        self.flush(core, turn);
        self.ask(core, turn);
    }

    /// Resends, beats, and copies that are silent.
    pub(super) fn tend<M>(&mut self, core: &mut Core, turn: &mut Turn<'_, M>) {
        let pt_ns = core.clock.read(turn.now);
        let now_ns = turn.now.mono_ns;
        let options = core.options;
        let round = self.round;
        for peer in &mut self.peers {
            let is_joining = !peer.joined && peer.in_sync;
            let owes = peer.owes(core, round);
            if !owes {
                peer.heard_ns = now_ns;
            }
            if peer.mandatory
                && owes
                && now_ns.saturating_sub(peer.heard_ns) >= options.silent_ns
                && options.has(Bug::DropSilentBackup)
            {
                peer.mandatory = false;
                peer.joined = false;
            }
            if now_ns.saturating_sub(peer.resent_ns) < options.resend_ns {
                continue;
            }
            peer.resent_ns = now_ns;
            if is_joining {
                core.send(turn, peer.copy, Message::Adopt { position: core.last, pt_ns });
            } else if !peer.joined && peer.base > 0 {
                core.send(turn, peer.copy, Message::Restart { base: peer.base });
            } else if peer.joined && peer.acked < core.last.lsn {
                peer.rewind(core, turn, peer.acked);
            }
        }
        let is_silent = now_ns.saturating_sub(self.told_ns) >= options.beat_ns;
        let is_late = now_ns.saturating_sub(self.round_ns) >= options.resend_ns;
        if is_silent || (is_late && self.confirmed() < self.round) {
            self.beat(core, turn, pt_ns);
        }
    }

    /// Asks the controller for what is due, again after a while.
    pub(super) fn ask<M>(&mut self, core: &Core, turn: &mut Turn<'_, M>) {
        let Some(step) = self.wish(core, turn.now.mono_ns) else { return };
        let request = Change { partition: core.partition, ver: core.entry.ver, step };
        let now_ns = turn.now.mono_ns;
        let is_due = self.asked.is_none_or(|(asked, at_ns)| {
            asked != request || now_ns.saturating_sub(at_ns) >= core.options.ask_ns
        });
        if is_due {
            self.asked = Some((request, now_ns));
            turn.actions.push(Action::Ask(request));
        }
    }

    fn wish(&self, core: &Core, now_ns: u64) -> Option<Step> {
        let options = &core.options;
        let is_gone = |peer: &&Peer| {
            let owes = peer.owes(core, self.round);
            let silence = now_ns.saturating_sub(peer.heard_ns);
            peer.diverged || (owes && silence >= options.silent_ns)
        };
        if let Some(peer) = self.mandatory().find(is_gone) {
            let copy = peer.copy;
            let step = if peer.in_sync { Step::RemoveInSync } else { Step::DropLearner };
            return Some(step(copy));
        }
        if let Some(heir) = self.heir {
            let is_drained = self.is_joined() && core.commit == core.last.lsn;
            let is_in_sync = self.peers.iter().any(|peer| peer.copy == heir && peer.in_sync);
            let undrained = options.has(Bug::TransferUndrained);
            return (is_in_sync && (is_drained || undrained)).then_some(Step::Transfer(heir));
        }
        let is_ready = |peer: &&Peer| {
            let behind = core.last.lsn - peer.acked.min(core.last.lsn);
            let is_late = options.has(Bug::LateMandatory) && behind <= options.caught_up;
            let is_behind = options.has(Bug::LearnerBehind);
            !peer.in_sync
                && peer.complete
                && (is_late || (peer.mandatory && (is_behind || peer.acked >= peer.needed)))
        };
        self.peers.iter().find(is_ready).map(|peer| Step::AddInSync(peer.copy))
    }
}
