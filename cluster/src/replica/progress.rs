//! The primary's view of the other copies: which of them follow, and which an answer waits for.
//!
//! Not here: the changes of the map that follow from it (`proposal`).

use super::Core;
use super::event::{CallContext, Environment, OpenCause, Opening, ReplicaEvent, StateMachine};
use super::export_cursor::ExportCursor;
use super::primary::Primary;
use crate::frames::{self, Adopt, Chunk, ChunkWriter, Pull, Restart, StreamRefusal};
use crate::id::{CopyId, LinkIndex};
use crate::position::ApplyPosition;
use crate::replica_set::{LINKS_MAX, ReplicaSet};
use crate::rules::Bug;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgressState {
    /// The copy got no frame in this term: it has not pulled, or is unreachable.
    Waits,
    /// The copy was asked to follow, and has not answered.
    Asked,
    /// The copy follows, or gets chunks.
    Joined,
    /// The copy refused a frame that a mandatory copy must take.
    Refused,
}

/// Another copy of the partition, and its progress.
#[derive(Debug, Clone)]
pub(super) struct PeerProgress {
    pub(super) copy: CopyId,
    pub(super) link: Option<LinkIndex>,
    pub(super) in_sync: bool,
    /// Whether every answer waits for this copy.
    pub(super) mandatory: bool,
    pub(super) state: ProgressState,
    /// The position where its `Adopt` or first `Chunk` ends. Earlier refusals belong to another
    /// copy.
    origin: u64,
    pub(super) since_ns: u64,
    /// None for a copy that is in sync.
    learner: Option<LearnerProgress>,
}

/// The progress of a copy that is being made.
#[derive(Debug, Clone, Default)]
struct LearnerProgress {
    /// The present start.
    start: u32,
    /// The cursor of the chunk that the copy requested.
    pull: Option<ExportCursor>,
    /// The position where its last chunk ends.
    whole_at: Option<u64>,
    /// The position of the last record that was answered without this copy.
    needed: u64,
}

impl PeerProgress {
    fn new(copy: CopyId, in_sync: bool, now_ns: u64) -> Self {
        Self {
            copy,
            link: None,
            in_sync,
            mandatory: in_sync,
            state: ProgressState::Waits,
            origin: 0,
            since_ns: now_ns,
            learner: None,
        }
    }

    /// The progress of a copy in sync that follows, and took its `Adopt` before position `origin`.
    pub(super) fn at_rest(copy: CopyId, link: Option<LinkIndex>, origin: u64, now_ns: u64) -> Self {
        Self { link, origin, state: ProgressState::Joined, ..Self::new(copy, true, now_ns) }
    }

    pub(super) fn is_joined(&self) -> bool {
        self.state == ProgressState::Joined
    }

    /// The position where a learner's last chunk ends.
    pub(super) fn whole_at(&self) -> Option<u64> {
        self.learner.as_ref()?.whole_at
    }

    /// The position of the last record that was answered without this learner.
    pub(super) fn needed(&self) -> u64 {
        self.learner.as_ref().map_or(0, |learner| learner.needed)
    }

    fn start(&self) -> u32 {
        self.learner.as_ref().map_or(0, |learner| learner.start)
    }

    fn is_pulling(&self) -> bool {
        self.learner.as_ref().is_some_and(|learner| learner.pull.is_some())
    }
}

/// More than the bytes of a chunk without keys and results.
const FIELDS_BYTES: usize = 128;

impl<O> Primary<O> {
    /// The copies that every answer waits for.
    pub(super) fn mandatory(&self) -> impl Iterator<Item = &PeerProgress> {
        self.peers.iter().filter(|peer| peer.mandatory)
    }

    /// Updates the list of copies from the map, and keeps the progress of copies that stay.
    pub(super) fn sync_peers<M, N: Environment>(
        &mut self,
        core: &Core,
        ctx: &mut CallContext<'_, M, N, O>,
    ) {
        let now_ns = ctx.now.mono_ns;
        let in_sync = core.entry.in_sync.iter().map(|copy| (*copy, true));
        let learner = core.entry.learner.iter().map(|copy| (*copy, false));
        // Exactly the room for all: a vector that grows begins with room for four.
        let copies = core.entry.copies().filter(|copy| *copy != core.me).count();
        let mut old = std::mem::replace(&mut self.peers, Vec::with_capacity(copies));
        for (copy, in_sync) in in_sync.chain(learner).filter(|(copy, _)| *copy != core.me) {
            let known = old.iter().position(|peer| peer.copy == copy);
            let mut peer = known.map_or_else(
                || PeerProgress::new(copy, in_sync, now_ns),
                |place| old.swap_remove(place),
            );
            peer.in_sync = in_sync;
            peer.mandatory |= in_sync;
            peer.learner.take_if(|_| in_sync);
            self.peers.push(peer);
        }
        for peer in old {
            if let Some(link) = peer.link.filter(|_| peer.mandatory) {
                removed(core, ctx, link);
            }
        }
        self.set_changed(core, ctx);
    }

    /// Updates the header's set of links, and the positions on them.
    pub(super) fn set_changed<M, N: Environment>(
        &self,
        core: &Core,
        ctx: &mut CallContext<'_, M, N, O>,
    ) {
        let is_in = |peer: &&PeerProgress| {
            matches!(peer.state, ProgressState::Asked | ProgressState::Joined)
        };
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
        let old_index = ctx.header.set();
        let old = ctx.node.set(old_index);
        if old == set {
            return;
        }
        // If the table is full, the old set stays and its links carry the records. The partition is
        // not served then, so no answer is given without the other copies.
        let Some(index) = ctx.node.acquire_set(set) else { return };
        let mut positions = [0; LINKS_MAX];
        for (slot, (link, origin)) in mandatory.iter().enumerate().take(LINKS_MAX) {
            let known = old.links().iter().position(|old| old == link);
            let position = known.map_or(0, |slot| ctx.record_ends.get(core.partition, slot));
            positions[slot] = position.max(*origin);
        }
        ctx.record_ends.set_all(core.partition, positions);
        ctx.header.set_set(index);
        ctx.node.release_set(old_index);
    }

    /// Does the steps that acknowledgements and connections make possible.
    pub(super) fn advance<M: StateMachine, N: Environment>(
        &mut self,
        core: &mut Core,
        ctx: &mut CallContext<'_, M, N, O>,
    ) {
        for place in 0..self.peers.len() {
            self.advance_peer(core, ctx, place);
        }
        self.propose(core, ctx);
    }

    fn advance_peer<M: StateMachine, N: Environment>(
        &mut self,
        core: &mut Core,
        ctx: &mut CallContext<'_, M, N, O>,
        place: usize,
    ) {
        let peer = &mut self.peers[place];
        if peer.link.is_none() {
            peer.link = ctx.node.link_to(peer.copy, core.partition);
        }
        let Some(link) = peer.link else { return };
        if peer.in_sync && peer.state == ProgressState::Waits {
            let adopt = Adopt {
                partition: core.partition,
                to: peer.copy,
                from: core.me,
                term: ctx.header.term(),
                last: core.last(ctx.header),
                ahead_ns: ctx.header.ahead_ns(),
                time_ns: ctx.now.mono_ns,
            };
            peer.origin = ctx.node.append(link, ctx.now, &mut |out| adopt.encode(out));
            peer.state = ProgressState::Asked;
            self.set_changed(core, ctx);
            return;
        }
        let acked = ctx.node.acked(link);
        if peer.state == ProgressState::Asked && acked >= peer.origin {
            peer.state = ProgressState::Joined;
        }
        let is_whole = peer.whole_at().is_some_and(|end| acked >= end);
        let is_near = ctx.node.quarters(link) == 0;
        if is_whole && is_near && !peer.mandatory && !core.options.rules.lack(Bug::LateMandatory) {
            // First every answer needs the learner's acknowledgement. Then it must hold the records
            // that were answered without it. Only then may the map make it in-sync.
            peer.mandatory = true;
            let set = ctx.node.set(ctx.header.set());
            let slot = set.links().iter().position(|known| *known == link);
            let end = |slot| ctx.record_ends.get(core.partition, slot);
            let needed = slot.map_or(peer.origin, end);
            peer.learner.get_or_insert_default().needed = needed;
            self.set_changed(core, ctx);
        }
        if self.peers[place].is_pulling() && ctx.node.quarters(link) == 0 {
            self.send_chunk(core, ctx, place, link);
        }
    }

    /// Handles a learner's request for a chunk.
    pub(super) fn pulled<M: StateMachine, N: Environment>(
        &mut self,
        core: &mut Core,
        ctx: &mut CallContext<'_, M, N, O>,
        pull: &Pull<'_>,
    ) {
        let now_ns = ctx.now.mono_ns;
        let Some(place) = self.peers.iter().position(|peer| peer.copy == pull.from) else { return };
        let peer = &mut self.peers[place];
        if peer.in_sync || peer.mandatory {
            return;
        }
        if pull.cursor.is_none() && pull.start > peer.start() {
            *peer = PeerProgress::new(pull.from, false, now_ns);
            peer.learner = Some(LearnerProgress {
                start: pull.start,
                pull: Some(ExportCursor::Keys(None)),
                ..LearnerProgress::default()
            });
            self.set_changed(core, ctx);
        } else if pull.start == peer.start() && peer.is_joined() {
            let next = pull.cursor.and_then(ExportCursor::decode);
            peer.learner.get_or_insert_default().pull = next;
        }
        self.advance_peer(core, ctx, place);
        self.propose(core, ctx);
    }

    fn send_chunk<M: StateMachine, N: Environment>(
        &mut self,
        core: &Core,
        ctx: &mut CallContext<'_, M, N, O>,
        place: usize,
        link: LinkIndex,
    ) {
        let peer = &mut self.peers[place];
        let Some(begin) = peer.learner.as_mut().and_then(|learner| learner.pull.take()) else {
            return;
        };
        let is_first = matches!(begin, ExportCursor::Keys(None));
        let last = core.last(ctx.header);
        let at = ApplyPosition { pt_ns: ctx.header.pt_ns(), term: last.term, lsn: last.lsn };
        let bytes_max = core.options.chunk_bytes;
        let (now, header) = (ctx.now, ctx.header);
        let chunk = Chunk {
            partition: core.partition,
            to: peer.copy,
            from: core.me,
            term: header.term(),
            start: peer.start(),
            is_first,
            last,
            ahead_ns: header.ahead_ns(),
            time_ns: now.mono_ns,
            pt_ns: header.pt_ns(),
        };
        let mut frame = Vec::new();
        let mut writer = ChunkWriter::new(&chunk, &mut frame);
        let mut next = match begin {
            ExportCursor::Keys(from) => {
                let each = &mut |key: &[u8], state: &frames::KeyState<'_>| writer.key(key, state);
                let next = ctx.state_machine.export(at, from.as_deref(), bytes_max, each);
                Some(
                    next.map_or(ExportCursor::Results(None), |next| ExportCursor::Keys(Some(next))),
                )
            }
            results @ ExportCursor::Results(_) => Some(results),
        };
        if let Some(ExportCursor::Results(from)) = next
            && writer.bytes() < bytes_max + FIELDS_BYTES
        {
            let copy = core.copy_generation(header);
            let left = if core.options.rules.lack(Bug::ChunkWithoutLog) {
                None
            } else {
                ctx.node.export_results(copy, from, bytes_max, &mut writer)
            };
            next = left.map(|from| ExportCursor::Results(Some(from)));
        }
        let is_last = next.is_none();
        writer.finish(next.map(|next| next.encode()).as_deref());
        let end = ctx.node.append(link, now, &mut |out| out.extend_from_slice(&frame));
        if is_first {
            peer.origin = end;
            peer.state = ProgressState::Joined;
        }
        if is_last {
            peer.learner.get_or_insert_default().whole_at = Some(end);
        }
        if is_first {
            self.set_changed(core, ctx);
        }
    }

    /// Handles a copy's refusal.
    pub(super) fn refused<M: StateMachine, N: Environment>(
        &mut self,
        core: &mut Core,
        ctx: &mut CallContext<'_, M, N, O>,
        link: LinkIndex,
        refused: &StreamRefusal,
    ) {
        let is_meant =
            |peer: &&mut PeerProgress| peer.link == Some(link) && refused.end >= peer.origin;
        if refused.term != ctx.header.term() {
            return;
        }
        let Some(peer) = self.peers.iter_mut().find(is_meant) else { return };
        if !matches!(peer.state, ProgressState::Asked | ProgressState::Joined) {
            return;
        }
        if peer.mandatory {
            peer.state = ProgressState::Refused;
            let cause = OpenCause::Refused { term: refused.term, link, from: refused.end };
            ctx.events.push(ReplicaEvent::Open(Opening { partition: core.partition, cause }));
        } else {
            peer.state = ProgressState::Waits;
            if let Some(learner) = &mut peer.learner {
                (learner.whole_at, learner.pull) = (None, None);
            }
            let restart = Restart {
                partition: core.partition,
                to: peer.copy,
                term: ctx.header.term(),
                start: peer.start(),
            };
            ctx.node.append(link, ctx.now, &mut |out| restart.encode(out));
        }
        self.set_changed(core, ctx);
        self.advance(core, ctx);
    }
}

/// Opens the batches that wait for a copy which is no longer mandatory.
pub(super) fn removed<M, N: Environment, O>(
    core: &Core,
    ctx: &mut CallContext<'_, M, N, O>,
    link: LinkIndex,
) {
    let cause = OpenCause::Removed { link, up_to: ctx.node.end(link) };
    ctx.events.push(ReplicaEvent::Open(Opening { partition: core.partition, cause }));
}
