//! The other copies as their primary sees them: which follow, which an answer waits for, which are to be removed.

use bytes::Bytes;

use super::Core;
use super::event::{Cause, Event, Machine, Opening, Outside, Turn};
use super::primary::Primary;
use crate::frames::{self, Adopt, Chunk, ChunkWriter, Pull, Refused, Restart};
use crate::id::{CopyId, Incarnation, NodeId};
use crate::id::{LaneId, LinkIndex};
use crate::map::command::{Change, Step};
use crate::replica::At;
use crate::replica_set::{LINKS_MAX, ReplicaSet};
use crate::rules::Bug;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing was said to it: it has not asked, or cannot be reached.
    Waits,
    /// It was asked to follow, and has not answered.
    Asked,
    /// It follows, or gets pieces.
    Joined,
    /// It refused something that it may not refuse.
    Refused,
}

/// Another copy.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    copy: CopyId,
    link: Option<LinkIndex>,
    pub(super) in_sync: bool,
    /// Nothing is answered without it.
    mandatory: bool,
    state: State,
    /// Where its `Adopt` or first `Chunk` ends: what it refused before was said to another copy.
    origin: u64,
    /// Of a learner, which start counts.
    start: u32,
    /// Where a piece begins that it asked for.
    pull: Option<Cursor>,
    /// Where its last piece ends.
    whole_at: Option<u64>,
    /// Where the last record ends that was answered without it.
    needed: u64,
    since_ns: u64,
}

impl Peer {
    fn new(copy: CopyId, in_sync: bool, now_ns: u64) -> Self {
        Self {
            copy,
            link: None,
            in_sync,
            mandatory: in_sync,
            state: State::Waits,
            origin: 0,
            start: 0,
            pull: None,
            whole_at: None,
            needed: 0,
            since_ns: now_ns,
        }
    }

    pub(super) fn is_joined(&self) -> bool {
        self.state == State::Joined
    }
}

/// More than the bytes of a piece without keys and results.
const FIELDS_BYTES: usize = 128;

/// Where a piece of a copy begins: first come the keys, then the results.
#[derive(Debug, Clone)]
enum Cursor {
    /// Where the machine says; none: at the start.
    Keys(Option<Bytes>),
    Results(Option<(LaneId, u64)>),
}

impl Cursor {
    fn encode(&self) -> Bytes {
        match self {
            Self::Keys(cursor) => [&[0], cursor.as_deref().unwrap_or_default()].concat().into(),
            Self::Results(None) => Bytes::from_static(&[1]),
            Self::Results(Some((lane, number))) => [
                &[1][..],
                &lane.node.0.to_be_bytes(),
                &lane.incarnation.0.to_be_bytes(),
                &lane.worker.to_be_bytes(),
                &lane.owner.0.to_be_bytes(),
                &number.to_be_bytes(),
            ]
            .concat()
            .into(),
        }
    }

    /// None: not one of ours.
    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0, cursor @ ..] => Some(Self::Keys(Some(Bytes::copy_from_slice(cursor)))),
            [1] => Some(Self::Results(None)),
            [1, rest @ ..] => {
                let (node, rest) = rest.split_first_chunk()?;
                let (incarnation, rest) = rest.split_first_chunk()?;
                let (worker, rest) = rest.split_first_chunk()?;
                let (owner, rest) = rest.split_first_chunk()?;
                let number = u64::from_be_bytes(rest.try_into().ok()?);
                let lane = LaneId {
                    node: NodeId(u32::from_be_bytes(*node)),
                    incarnation: Incarnation(u64::from_be_bytes(*incarnation)),
                    worker: u16::from_be_bytes(*worker),
                    owner: NodeId(u32::from_be_bytes(*owner)),
                };
                Some(Self::Results(Some((lane, number))))
            }
            _ => None,
        }
    }
}

impl<O> Primary<O> {
    /// The copies that nothing is answered without.
    pub(super) fn mandatory(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(|peer| peer.mandatory)
    }

    /// Makes the list of copies that of the map; what is known of one stays.
    pub(super) fn meet<M, N: Outside>(&mut self, core: &Core, turn: &mut Turn<'_, M, N, O>) {
        let now_ns = turn.now.mono_ns;
        let in_sync = core.entry.in_sync.iter().map(|copy| (*copy, true));
        let learner = core.entry.learner.iter().map(|copy| (*copy, false));
        let mut old = std::mem::take(&mut self.peers);
        for (copy, in_sync) in in_sync.chain(learner).filter(|(copy, _)| *copy != core.me) {
            let known = old.iter().position(|peer| peer.copy == copy);
            let mut peer = known
                .map_or_else(|| Peer::new(copy, in_sync, now_ns), |place| old.swap_remove(place));
            peer.in_sync = in_sync;
            peer.mandatory |= in_sync;
            self.peers.push(peer);
        }
        for peer in old {
            if let Some(link) = peer.link.filter(|_| peer.mandatory) {
                removed(core, turn, link);
            }
        }
        self.set_changed(core, turn);
    }

    /// Gives the header the set of links, and the positions on them.
    fn set_changed<M, N: Outside>(&self, core: &Core, turn: &mut Turn<'_, M, N, O>) {
        let is_in = |peer: &&Peer| matches!(peer.state, State::Asked | State::Joined);
        let links = |mandatory: bool| -> Vec<(LinkIndex, u64)> {
            let peers = self.peers.iter().filter(is_in);
            let peers = peers.filter(|peer| peer.mandatory == mandatory);
            peers.filter_map(|peer| Some((peer.link?, peer.origin))).collect()
        };
        let (mut mandatory, mut others) = (links(true), links(false));
        if core.options.rules.lack(Bug::SetAfterMandatory) {
            others.clear();
        }
        let only_links =
            |all: &[(LinkIndex, u64)]| all.iter().map(|(link, _)| *link).collect::<Vec<_>>();
        let set = ReplicaSet::new(&only_links(&mandatory), &only_links(&others));
        mandatory.append(&mut others);
        let old_index = turn.header.set();
        let old = turn.node.set(old_index);
        if old == set {
            return;
        }
        // If the table is full the old set stays, and records go over its links; no answer is given without the others,
        // for the partition is not served then.
        let Some(index) = turn.node.acquire_set(set) else { return };
        let mut positions = [0; LINKS_MAX];
        for (slot, (link, origin)) in mandatory.iter().enumerate().take(LINKS_MAX) {
            let known = old.links().iter().position(|old| old == link);
            let position = known.map_or(0, |slot| turn.header.position(slot));
            positions[slot] = position.max(*origin);
        }
        for (slot, position) in positions.into_iter().enumerate() {
            turn.header.set_position(slot, position);
        }
        turn.header.set_set(index);
        turn.node.release_set(old_index);
    }

    /// Does what follows from what is acknowledged and connected now.
    pub(super) fn advance<M: Machine, N: Outside>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M, N, O>,
    ) {
        for place in 0..self.peers.len() {
            self.advance_peer(core, turn, place);
        }
        self.ask(core, turn);
    }

    fn advance_peer<M: Machine, N: Outside>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M, N, O>,
        place: usize,
    ) {
        let peer = &mut self.peers[place];
        if peer.link.is_none() {
            peer.link = turn.node.link_to(peer.copy, core.partition);
        }
        let Some(link) = peer.link else { return };
        if peer.in_sync && peer.state == State::Waits {
            let adopt = Adopt {
                partition: core.partition,
                to: peer.copy,
                from: core.me,
                term: turn.header.term(),
                last: core.last(turn.header),
                ahead_ns: turn.header.ahead_ns(),
                time_ns: turn.now.mono_ns,
            };
            peer.origin = turn.node.append(link, turn.now, &mut |out| adopt.encode(out));
            peer.state = State::Asked;
            self.set_changed(core, turn);
            return;
        }
        let acked = turn.node.acked(link);
        if peer.state == State::Asked && acked >= peer.origin {
            peer.state = State::Joined;
        }
        let is_whole = peer.whole_at.is_some_and(|end| acked >= end);
        let is_near = turn.node.quarters(link) == 0;
        if is_whole && is_near && !peer.mandatory && !core.options.rules.lack(Bug::LateMandatory) {
            // First its acknowledgement is needed for every answer; then it has to hold what was answered without it; then the
            // map may call it in-sync.
            peer.mandatory = true;
            let set = turn.node.set(turn.header.set());
            let slot = set.links().iter().position(|known| *known == link);
            peer.needed = slot.map_or(peer.origin, |slot| turn.header.position(slot));
            self.set_changed(core, turn);
        }
        if self.peers[place].pull.is_some() && turn.node.quarters(link) == 0 {
            self.send_piece(core, turn, place, link);
        }
    }

    /// A learner asks for a piece.
    pub(super) fn pulled<M: Machine, N: Outside>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M, N, O>,
        pull: &Pull<'_>,
    ) {
        let now_ns = turn.now.mono_ns;
        let Some(place) = self.peers.iter().position(|peer| peer.copy == pull.from) else { return };
        let peer = &mut self.peers[place];
        if peer.in_sync || peer.mandatory {
            return;
        }
        if pull.cursor.is_none() && pull.start > peer.start {
            *peer = Peer { start: pull.start, ..Peer::new(pull.from, false, now_ns) };
            peer.pull = Some(Cursor::Keys(None));
            self.set_changed(core, turn);
        } else if pull.start == peer.start && peer.is_joined() {
            peer.pull = pull.cursor.and_then(Cursor::decode);
        }
        self.advance_peer(core, turn, place);
        self.ask(core, turn);
    }

    fn send_piece<M: Machine, N: Outside>(
        &mut self,
        core: &Core,
        turn: &mut Turn<'_, M, N, O>,
        place: usize,
        link: LinkIndex,
    ) {
        let peer = &mut self.peers[place];
        let Some(begin) = peer.pull.take() else { return };
        let is_first = matches!(begin, Cursor::Keys(None));
        let last = core.last(turn.header);
        let at = At { pt_ns: turn.header.pt_ns(), term: last.term, lsn: last.lsn };
        let bytes_max = core.options.chunk_bytes;
        let (now, header) = (turn.now, turn.header);
        let chunk = Chunk {
            partition: core.partition,
            to: peer.copy,
            from: core.me,
            term: header.term(),
            start: peer.start,
            is_first,
            last,
            ahead_ns: header.ahead_ns(),
            time_ns: now.mono_ns,
            pt_ns: header.pt_ns(),
        };
        let mut frame = Vec::new();
        let mut writer = ChunkWriter::new(&chunk, &mut frame);
        let mut next = match begin {
            Cursor::Keys(from) => {
                let each = &mut |key: &[u8], state: &frames::State<'_>| writer.key(key, state);
                let next = turn.machine.export(at, from.as_deref(), bytes_max, each);
                Some(next.map_or(Cursor::Results(None), |next| Cursor::Keys(Some(next))))
            }
            results @ Cursor::Results(_) => Some(results),
        };
        if let Some(Cursor::Results(from)) = next
            && writer.bytes() < bytes_max + FIELDS_BYTES
        {
            let copy = core.copy_life(header);
            let left = if core.options.rules.lack(Bug::ChunkWithoutLog) {
                None
            } else {
                turn.node.export_results(copy, from, bytes_max, &mut writer)
            };
            next = left.map(|from| Cursor::Results(Some(from)));
        }
        let is_last = next.is_none();
        writer.finish(next.map(|next| next.encode()).as_deref());
        let end = turn.node.append(link, now, &mut |out| out.extend_from_slice(&frame));
        if is_first {
            peer.origin = end;
            peer.state = State::Joined;
        }
        if is_last {
            peer.whole_at = Some(end);
        }
        if is_first {
            self.set_changed(core, turn);
        }
    }

    /// A copy did not take something.
    pub(super) fn refused<M: Machine, N: Outside>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M, N, O>,
        link: LinkIndex,
        refused: &Refused,
    ) {
        let is_meant = |peer: &&mut Peer| peer.link == Some(link) && refused.end >= peer.origin;
        if refused.term != turn.header.term() {
            return;
        }
        let Some(peer) = self.peers.iter_mut().find(is_meant) else { return };
        if !matches!(peer.state, State::Asked | State::Joined) {
            return;
        }
        if peer.mandatory {
            peer.state = State::Refused;
            let cause = Cause::Refused { term: refused.term, link, from: refused.end };
            turn.events.push(Event::Open(Opening { partition: core.partition, cause }));
        } else {
            peer.state = State::Waits;
            peer.whole_at = None;
            peer.pull = None;
            let restart = Restart {
                partition: core.partition,
                to: peer.copy,
                term: turn.header.term(),
                start: peer.start,
            };
            turn.node.append(link, turn.now, &mut |out| restart.encode(out));
        }
        self.set_changed(core, turn);
        self.advance(core, turn);
    }

    /// Asks the controller for what is due, again after a while.
    pub(super) fn ask<M, N: Outside>(&mut self, core: &Core, turn: &mut Turn<'_, M, N, O>) {
        if core.options.rules.lack(Bug::DropSilentBackup) {
            self.drop_silent(core, turn);
        }
        let Some(step) = self.wish(core, turn) else { return };
        let change = Change { partition: core.partition, ver: core.entry.ver, step };
        let now_ns = turn.now.mono_ns;
        let is_due = self.asked.is_none_or(|(asked, at_ns)| {
            asked != change || now_ns.saturating_sub(at_ns) >= core.options.ask_ns
        });
        if is_due {
            self.asked = Some((change, now_ns));
            turn.events.push(Event::Ask(change));
        }
    }

    /// Only where a rule is left out.
    fn drop_silent<M, N: Outside>(&mut self, core: &Core, turn: &mut Turn<'_, M, N, O>) {
        for place in 0..self.peers.len() {
            let peer = &self.peers[place];
            if peer.mandatory && silence_ns(peer, turn) >= core.options.silent_ns {
                let link = peer.link;
                self.peers[place].mandatory = false;
                self.set_changed(core, turn);
                if let Some(link) = link {
                    removed(core, turn, link);
                }
            }
        }
    }

    fn wish<M, N: Outside>(&self, core: &Core, turn: &Turn<'_, M, N, O>) -> Option<Step> {
        let rules = core.options.rules;
        let is_gone = |peer: &&Peer| {
            let is_slow_learner = !peer.in_sync
                && peer.link.is_some_and(|link| {
                    peer.state == State::Joined && turn.node.quarters(link) >= 2
                });
            let is_silent = peer.mandatory && silence_ns(peer, turn) >= core.options.silent_ns;
            peer.state == State::Refused || is_slow_learner || is_silent
        };
        if let Some(peer) = self.peers.iter().find(is_gone) {
            let step = if peer.in_sync { Step::RemoveInSync } else { Step::DropLearner };
            return Some(step(peer.copy));
        }
        if let Some(to) = self.transfer_to {
            let set = turn.node.set(turn.header.set());
            let is_drained = set
                .mandatory()
                .iter()
                .enumerate()
                .all(|(slot, &link)| turn.node.acked(link) >= turn.header.position(slot));
            let is_joined = self.mandatory().all(Peer::is_joined);
            let is_in_sync = self.peers.iter().any(|peer| peer.copy == to && peer.in_sync);
            let may = (is_drained && is_joined) || rules.lack(Bug::TransferUndrained);
            return (is_in_sync && may).then_some(Step::Transfer(to));
        }
        let is_ready = |peer: &&Peer| {
            let acked = peer.link.map_or(0, |link| turn.node.acked(link));
            let is_whole = peer.whole_at.is_some_and(|end| acked >= end);
            let holds_all = acked >= peer.needed || rules.lack(Bug::LearnerBehind);
            let is_mandatory = peer.mandatory || rules.lack(Bug::LateMandatory);
            !peer.in_sync && peer.is_joined() && is_whole && is_mandatory && holds_all
        };
        self.peers.iter().find(is_ready).map(|peer| Step::AddInSync(peer.copy))
    }
}

/// For how long a copy has said nothing though it should have.
fn silence_ns<M, N: Outside, O>(peer: &Peer, turn: &Turn<'_, M, N, O>) -> u64 {
    match peer.link {
        Some(link) => turn.node.silence_ns(link, turn.now),
        None => turn.now.mono_ns.saturating_sub(peer.since_ns),
    }
}

/// Pieces wait no more for a copy that was mandatory.
fn removed<M, N: Outside, O>(core: &Core, turn: &mut Turn<'_, M, N, O>, link: LinkIndex) {
    let cause = Cause::Removed { link, up_to: turn.node.end(link) };
    turn.events.push(Event::Open(Opening { partition: core.partition, cause }));
}
