//! A node: its clocks, its copies, its links, and its work outside of rounds.

use std::collections::{BTreeMap, VecDeque};

use cluster::contact::Contact;
use cluster::dedup_log::{CopyGeneration, DedupLogs};
use cluster::frames::{
    Adopt, Answers, ChunkReader, ChunkWriter, ExceptionKind, Forward, FrameError, FrameKind,
    KeepAlive, Pull, RecordResult, RecordsReader, Restart, StreamAck, TermCheck,
};
use cluster::link::{LinkReceiver, LinkSender, connect};
use cluster::map::SharedEntry;
use cluster::map::command::MapChange;
use cluster::op_stream::{OpStreams, OwnerContact};
use cluster::parked_reply::ParkedReplies;
use cluster::partition_header::{HeaderState, PartitionHeader};
use cluster::receive_stream::ReceiveStream;
use cluster::record_ends::RecordEnds;
use cluster::replica::{
    ApplyPosition, CallContext, Environment, GROUP_PARTITIONS, NodeTime, Opening, Position,
    Replica, ReplicaEvent, ReplicaGroup, ReplicaHost, Role, Route, StateMachine as _,
};
use cluster::replica_set::{ReplicaSet, ReplicaSets, SetIndex};
use cluster::send_stream::SendStream;
use cluster::{Bug, LinkIndex, OpStreamId};
use cluster::{CopyId, Incarnation, NodeId, Partition};

use super::batch::{HeldOp, Item, Worker};
use super::payload::{Answer, Payload};
use super::profile::Profile;
use super::world::{Counters, Ended};
use crate::journal::Journal;
use crate::rng::Rng;

/// The simulated time since 1970 at which wall clocks begin.
const ORIGIN_NS: i128 = 378_000_000_000_000_000;
pub(super) const BODY_BYTES_MAX: usize = 16 << 20;

/// Both halves of one connection, and its peer.
pub(super) struct Link {
    pub(super) peer: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) k: u16,
    /// The number of links between the two nodes.
    pub(super) links: u16,
    pub(super) sender: LinkSender,
    pub(super) receiver: LinkReceiver,
}

/// The state that all workers share, and the environment of copies.
pub(super) struct Shared {
    pub(super) links: Vec<Link>,
    pub(super) sets: ReplicaSets,
    pub(super) logs: DedupLogs,
    pub(super) shards: usize,
    pub(super) stream_bytes: usize,
}

/// A request of a node to the world.
pub(super) enum Output {
    Ask(MapChange),
    /// Bytes for the connection with this number.
    Bytes {
        link: LinkIndex,
        number: u64,
        bytes: Vec<u8>,
    },
    Ended(u32, Ended, bool),
    /// A copy here refused a frame that arrived on this link. The last field: the frame's term is
    /// over.
    Refused(LinkIndex, Partition, bool),
    /// Parked batches of a partition are opened.
    Opened(Opening),
    /// A state that is impossible, unless a rule is left out.
    Broken(String),
}

/// The world as a node's work needs it.
pub(super) struct Env<'a> {
    pub(super) true_ns: u64,
    pub(super) rng: &'a mut Rng,
    pub(super) journal: &'a mut Journal,
    pub(super) counters: &'a mut Counters,
    pub(super) out: &'a mut Vec<Output>,
}

/// Changes of the map.
#[derive(Debug, Clone)]
pub(super) struct News {
    /// The version of the map.
    pub(super) ver: u64,
    pub(super) sent_ns: Option<u64>,
    pub(super) lives: BTreeMap<NodeId, Incarnation>,
    pub(super) last_node: u32,
    pub(super) entries: VecDeque<(Partition, SharedEntry)>,
}

/// A message for a worker's inbox.
#[derive(Debug, Clone, Copy)]
pub(super) enum Note {
    Open(Opening),
    LinkUp(NodeId),
    Routes,
}

pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) node_uuid: u128,
    pub(super) incarnation: Incarnation,
    pub(super) is_up: bool,
    pub(super) rate_ppm: i64,
    pub(super) skew_ns: i64,
    pub(super) profile: Profile,
    pub(super) headers: Vec<PartitionHeader>,
    pub(super) record_ends: RecordEnds,
    pub(super) groups: Vec<ReplicaGroup<HeldOp>>,
    pub(super) host: ReplicaHost,
    pub(super) payloads: Vec<Payload>,
    pub(super) shared: Shared,
    /// The worker that holds each shard.
    pub(super) held: Vec<Option<usize>>,
    pub(super) contact: Contact,
    pub(super) workers: Vec<Worker>,
    pub(super) news: VecDeque<News>,
    /// The newest version of the map whose incarnations are known.
    map_ver: u64,
    /// The highest term seen of each partition.
    pub(super) terms: Vec<u32>,
    /// The position of each copy at its last comparison with others, and its state then.
    pub(super) compared: Vec<(Position, u64)>,
    /// The newest term in which the node was seen as each partition's primary, with the copy that
    /// this term has as its primary.
    pub(super) led: Vec<(u32, CopyId)>,
}

impl Shared {
    pub(super) fn shard(&self, partition: Partition) -> usize {
        partition.index() % self.shards
    }

    pub(super) fn link(&self, index: LinkIndex) -> &Link {
        &self.links[usize::from(index.0)]
    }

    pub(super) fn link_mut(&mut self, index: LinkIndex) -> &mut Link {
        &mut self.links[usize::from(index.0)]
    }

    /// The link of worker `worker` to the newest incarnation of a node, if it is connected.
    pub(super) fn lane_link(&self, node: NodeId, worker: usize) -> Option<LinkIndex> {
        let place = self.links.iter().rposition(|link| {
            link.peer == node && usize::from(link.k) == worker % usize::from(link.links)
        })?;
        Some(LinkIndex(place as u16))
    }
}

impl Environment for Shared {
    fn link_to(&self, copy: CopyId, partition: Partition) -> Option<LinkIndex> {
        let shard = self.shard(partition);
        let place = self.links.iter().position(|link| {
            (link.peer, link.incarnation) == (copy.node, copy.incarnation)
                && usize::from(link.k) == shard % usize::from(link.links)
        })?;
        Some(LinkIndex(place as u16))
    }

    fn append(
        &mut self,
        link: LinkIndex,
        now: NodeTime,
        write: &mut dyn FnMut(&mut Vec<u8>),
    ) -> u64 {
        self.link_mut(link).sender.stream.append_with(now.mono_ns, write)
    }

    fn acked(&self, link: LinkIndex) -> u64 {
        self.link(link).sender.stream.acked().get()
    }

    fn end(&self, link: LinkIndex) -> u64 {
        self.link(link).sender.stream.end()
    }

    fn quarters(&self, link: LinkIndex) -> usize {
        self.link(link).sender.stream.unacked() * 4 / self.stream_bytes
    }

    fn silence_ns(&self, link: LinkIndex, now: NodeTime) -> u64 {
        self.link(link).sender.stream.silence_ns(now.mono_ns)
    }

    fn peer_time_ns(&self, copy: CopyId) -> u64 {
        let links = self
            .links
            .iter()
            .filter(|link| (link.peer, link.incarnation) == (copy.node, copy.incarnation));
        links.map(|link| link.receiver.stream.time_ns()).max().unwrap_or(0)
    }

    fn acquire_set(&mut self, set: ReplicaSet) -> Option<SetIndex> {
        self.sets.acquire(set)
    }

    fn release_set(&mut self, index: SetIndex) {
        self.sets.release(index);
    }

    fn set(&self, index: SetIndex) -> ReplicaSet {
        self.sets.get(index)
    }

    fn export_results(
        &mut self,
        copy: CopyGeneration,
        from: Option<(OpStreamId, u64)>,
        bytes_max: usize,
        chunk: &mut ChunkWriter<'_>,
    ) -> Option<(OpStreamId, u64)> {
        self.logs.export(copy, from, bytes_max, chunk)
    }

    fn import_result(
        &mut self,
        stream: OpStreamId,
        done: u64,
        result: Option<(u64, CopyGeneration, RecordResult<'_>)>,
    ) {
        let log = self.logs.log(stream);
        log.advance_done(done);
        if let Some((number, copy, result)) = result {
            log.add(number, copy, result);
        }
    }
}

/// Reports an ack that does not fit its stream.
fn broken(env: &mut Env<'_>, fault: FrameError) -> bool {
    env.out.push(Output::Broken(format!("a word is wrong: {fault}")));
    false
}

/// Checks the fields of a frame.
fn is_right(kind: FrameKind, body: &[u8]) -> Result<(), FrameError> {
    match kind {
        FrameKind::Records => {
            let mut reader = RecordsReader::new(body)?;
            while reader.next_record()?.is_some() {}
        }
        FrameKind::Chunk => {
            let mut reader = ChunkReader::new(body)?;
            while reader.next_key()?.is_some() {}
            while reader.next_stream()?.is_some() {
                while reader.next_result()?.is_some() {}
            }
            reader.finish()?;
        }
        FrameKind::Adopt => Adopt::decode(body).map(|_| ())?,
        FrameKind::Restart => Restart::decode(body).map(|_| ())?,
        FrameKind::TermCheck => TermCheck::decode(body).map(|_| ())?,
        FrameKind::Pull => Pull::decode(body).map(|_| ())?,
        FrameKind::Forward => Forward::decode(body).map(|_| ())?,
        FrameKind::Answers | FrameKind::AnswersBehindRecords => {
            Answers::decode(kind, body).map(|_| ())?;
        }
        FrameKind::Ack => StreamAck::decode(body).map(|_| ())?,
        FrameKind::KeepAlive => KeepAlive::decode(body).map(|_| ())?,
        // Round-trip times are not measured here.
        FrameKind::Ping | FrameKind::Pong => {}
    }
    Ok(())
}

/// The result of handling a frame.
enum Read {
    Done,
    /// Another worker holds a shard that the frame needs.
    Blocked,
}

impl Node {
    #[expect(clippy::too_many_arguments, reason = "what a life of a node begins with")]
    pub(super) fn new(
        id: NodeId,
        node_uuid: u128,
        incarnation: Incarnation,
        clocks: (i64, i64),
        workers: usize,
        partitions: usize,
        profile: &Profile,
        true_ns: u64,
    ) -> Self {
        let rules = profile.rules();
        let options = std::sync::Arc::new(profile.options);
        let worker = |at| {
            let streams = OpStreams::new(id, incarnation, at as u16, profile.ops);
            Worker::new(streams, ParkedReplies::new(rules))
        };
        let node = Self {
            id,
            node_uuid,
            incarnation,
            is_up: true,
            rate_ppm: clocks.0,
            skew_ns: clocks.1,
            profile: profile.clone(),
            headers: (0..partitions).map(|_| PartitionHeader::default()).collect(),
            record_ends: RecordEnds::new(partitions),
            groups: (0..partitions.div_ceil(GROUP_PARTITIONS))
                .map(|_| ReplicaGroup::default())
                .collect(),
            host: ReplicaHost { node: id, incarnation, options },
            payloads: (0..partitions).map(|_| Payload::default()).collect(),
            shared: Shared {
                links: Vec::new(),
                sets: ReplicaSets::new(512),
                logs: DedupLogs::new(rules),
                shards: profile.shards,
                stream_bytes: profile.stream_bytes,
            },
            held: vec![None; profile.shards],
            contact: Contact::default(),
            workers: (0..workers).map(worker).collect(),
            news: VecDeque::new(),
            map_ver: 0,
            terms: vec![0; partitions],
            compared: vec![(Position::default(), 0); partitions],
            led: vec![(0, CopyId::default()); partitions],
        };
        node.contact.record(node.now(true_ns).mono_ns);
        node
    }

    pub(super) fn now(&self, true_ns: u64) -> NodeTime {
        let true_ns = i128::from(true_ns);
        let mono_ns = true_ns + true_ns * i128::from(self.rate_ppm) / 1_000_000;
        let mono_ns = u64::try_from(mono_ns).unwrap_or(0) + 1;
        let wall_ns = ORIGIN_NS + i128::from(mono_ns) + i128::from(self.skew_ns);
        NodeTime { mono_ns, wall_ns: u64::try_from(wall_ns).unwrap_or(0) }
    }

    /// The group of a partition.
    pub(super) fn group(&self, partition: Partition) -> &ReplicaGroup<HeldOp> {
        &self.groups[partition.index() / GROUP_PARTITIONS]
    }

    /// The newest entry that the replica of a partition has learnt.
    pub(super) fn entry(&self, partition: Partition) -> &SharedEntry {
        self.group(partition).entry(partition)
    }

    pub(super) fn route(&self, partition: Partition) -> Option<Route> {
        self.entry(partition).route()
    }

    pub(super) fn role(&self, partition: Partition) -> Role {
        self.group(partition).role(&self.host, partition)
    }

    /// Looks at the replica of a partition.
    pub(super) fn view<T>(
        &self,
        partition: Partition,
        look: impl FnOnce(&Replica<HeldOp>, &PartitionHeader) -> T,
    ) -> T {
        let header = &self.headers[partition.index()];
        let group = self.group(partition);
        group.view(&self.host, partition, header, |replica| look(replica, header))
    }

    pub(super) fn is_free(&self, partition: Partition) -> bool {
        self.held[self.shared.shard(partition)].is_none()
    }

    pub(super) fn position(&self, partition: Partition) -> Position {
        self.view(partition, Replica::position)
    }

    /// Calls a function on a copy whose shard is free or held by the caller.
    pub(super) fn cold<T>(
        &mut self,
        partition: Partition,
        env: &mut Env<'_>,
        work: impl FnOnce(&mut Replica<HeldOp>, &mut CallContext<'_, Payload, Shared, HeldOp>) -> T,
    ) -> T {
        let now = self.now(env.true_ns);
        let at = partition.index();
        let (header, mut events) = (&self.headers[at], Vec::new());
        header.close(|| ());
        let machine = &mut self.payloads[at];
        let mut turn = CallContext {
            now,
            header,
            record_ends: &self.record_ends,
            state_machine: machine,
            node: &mut self.shared,
            events: &mut events,
        };
        let group = &mut self.groups[at / GROUP_PARTITIONS];
        let before = group.active();
        let result = group.call(&self.host, partition, &mut turn, work);
        env.counters.rested += u64::from(group.active() < before);
        for event in events {
            match event {
                ReplicaEvent::Ask(change) => env.out.push(Output::Ask(change)),
                ReplicaEvent::Open(opening) => {
                    env.counters.openings += 1;
                    env.out.push(Output::Opened(opening));
                    self.workers.iter_mut().for_each(|one| one.inbox.push(Note::Open(opening)));
                }
                ReplicaEvent::Perform(op) => {
                    let worker = op.worker;
                    self.workers[worker].todo.push_back(vec![Item::of_held(op)]);
                }
                ReplicaEvent::Refer(op, route) => {
                    env.counters.not_owner += 1;
                    self.workers[op.worker].forward_results.push((
                        op.reply,
                        Err(ExceptionKind::NotOwner(route)),
                        false,
                    ));
                }
                ReplicaEvent::Refuse(op, refusal) => {
                    self.workers[op.worker].forward_results.push((
                        op.reply,
                        Err(ExceptionKind::Refused(refusal)),
                        false,
                    ));
                }
            }
        }
        result
    }

    /// Handles a connection whose peer is authenticated.
    pub(super) fn connected(
        &mut self,
        peer: (NodeId, Incarnation),
        (k, links): (u16, u16),
        number: u64,
    ) -> Option<LinkIndex> {
        let rules = self.profile.rules();
        let known = self
            .shared
            .links
            .iter()
            .position(|link| (link.peer, link.incarnation, link.k) == (peer.0, peer.1, k));
        let place = known.unwrap_or_else(|| {
            let stream = SendStream::new(self.profile.stream_bytes, rules);
            let receiver =
                LinkReceiver { stream: ReceiveStream::new(rules), ..LinkReceiver::default() };
            self.shared.links.push(Link {
                peer: peer.0,
                incarnation: peer.1,
                k,
                links,
                sender: LinkSender::new(stream, rules),
                receiver,
            });
            self.shared.links.len() - 1
        });
        let link = &mut self.shared.links[place];
        if !connect(number, &mut link.sender, &mut link.receiver) {
            return None;
        }
        if self.profile.lacks(Bug::LogDiesWithStream) {
            self.shared.logs.retain(|stream| stream.node != peer.0);
        }
        Some(LinkIndex(place as u16))
    }

    /// Writes the pending bytes of all links.
    pub(super) fn flush(&mut self, now: NodeTime, env: &mut Env<'_>) {
        for (place, link) in self.shared.links.iter_mut().enumerate() {
            loop {
                let bytes = link.sender.fill(now.mono_ns).to_vec();
                if bytes.is_empty() {
                    break;
                }
                link.sender.wrote(bytes.len());
                let number = link.sender.number();
                env.out.push(Output::Bytes { link: LinkIndex(place as u16), number, bytes });
            }
        }
    }

    /// Reads the received frames of this worker's links.
    pub(super) fn read_links(&mut self, worker: usize, env: &mut Env<'_>) {
        for place in 0..self.shared.links.len() {
            if usize::from(self.shared.links[place].k) % self.workers.len() != worker {
                continue;
            }
            let index = LinkIndex(place as u16);
            let mut goes_on = true;
            while goes_on {
                let link = &self.shared.links[place];
                let frame = match link.receiver.inbound.frame(BODY_BYTES_MAX) {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(fault) => {
                        env.out.push(Output::Broken(format!("a frame is broken: {fault}")));
                        break;
                    }
                };
                if let Err(fault) = is_right(frame.kind, frame.body) {
                    env.out.push(Output::Broken(format!("a frame is broken: {fault}")));
                    break;
                }
                let (kind, body, bytes) = (frame.kind, frame.body.to_vec(), frame.bytes());
                if matches!(self.frame(worker, index, kind, &body, bytes, env), Read::Blocked) {
                    env.counters.blocked += 1;
                    break;
                }
                let receiver = &mut self.shared.links[place].receiver;
                if kind.is_numbered() {
                    receiver.stream.advance(bytes);
                }
                receiver.inbound.consume(bytes);
                // A read ends at some frame; the next ones are read in the next round.
                goes_on = !env.rng.chance(1, self.profile.pause_in);
            }
            let done: Vec<_> = self.workers[worker].streams.all_done().collect();
            let link = &mut self.shared.links[place];
            if link.receiver.stream.owes_ack()
                && let Some(out) = link.sender.loose()
            {
                link.receiver.stream.ack(&done, out);
                env.counters.acks += 1;
            }
        }
    }

    fn frame(
        &mut self,
        worker: usize,
        index: LinkIndex,
        kind: FrameKind,
        body: &[u8],
        bytes: usize,
        env: &mut Env<'_>,
    ) -> Read {
        match kind {
            FrameKind::Records => return self.records(index, body, bytes, env),
            FrameKind::Ack => return self.receive_ack(index, body, env),
            FrameKind::Forward => self.forward(worker, Some(index), body),
            FrameKind::Answers | FrameKind::AnswersBehindRecords => {
                let now = self.now(env.true_ns);
                self.shared.link_mut(index).receiver.progress_ns = now.mono_ns;
                let answers = Answers::decode(kind, body).expect("frames are right");
                self.answers(worker, Some(index), &answers, env);
            }
            FrameKind::KeepAlive => {
                let keep_alive = KeepAlive::decode(body).expect("frames are right");
                self.shared.link_mut(index).receiver.stream.record_time(keep_alive.time_ns);
                keep_alive
                    .done()
                    .for_each(|one| self.shared.logs.log(one.stream).advance_done(one.done));
            }
            FrameKind::Ping | FrameKind::Pong => {}
            FrameKind::Adopt
            | FrameKind::Chunk
            | FrameKind::Restart
            | FrameKind::TermCheck
            | FrameKind::Pull => {
                return self.of_copy(index, kind, body, bytes, env);
            }
        }
        Read::Done
    }

    fn of_copy(
        &mut self,
        index: LinkIndex,
        kind: FrameKind,
        body: &[u8],
        bytes: usize,
        env: &mut Env<'_>,
    ) -> Read {
        let partition = Partition(u16::from_le_bytes([body[0], body[1]]));
        if !self.is_free(partition) {
            return Read::Blocked;
        }
        // The stream is taken out, because the copy may append to links meanwhile.
        let mut stream = std::mem::take(&mut self.shared.link_mut(index).receiver.stream);
        let before = stream.refusals();
        let mut clears_all = false;
        match kind {
            FrameKind::Adopt => {
                let adopt = Adopt::decode(body).expect("frames are right");
                stream.record_time(adopt.time_ns);
                env.counters.adopts += 1;
                let last = self.position(partition);
                self.cold(partition, env, |replica, turn| {
                    replica.adopt(turn, &adopt, &mut stream, bytes);
                });
                clears_all = self.headers[partition.index()].state() == HeaderState::Follows;
                let is_other = adopt.last != last && stream.refusals() > before;
                env.counters.checked_lengths += u64::from(is_other);
                if is_other && adopt.last.lsn == last.lsn {
                    let what = format!("{partition} at {:?} is to adopt {:?}", last, adopt.last);
                    env.out.push(Output::Broken(what));
                }
            }
            FrameKind::Chunk => {
                let reader = ChunkReader::new(body).expect("frames are right");
                stream.record_time(reader.chunk().time_ns);
                env.counters.chunks += 1;
                self.cold(partition, env, |replica, turn| {
                    replica.chunk(turn, reader, &mut stream, bytes).expect("frames are right");
                });
            }
            FrameKind::TermCheck => {
                let round = TermCheck::decode(body).expect("frames are right");
                env.counters.rounds += 1;
                self.cold(partition, env, |replica, turn| {
                    replica.check_term(turn, &round, &mut stream, bytes);
                });
            }
            FrameKind::Restart => {
                let restart = Restart::decode(body).expect("frames are right");
                env.counters.restarts += 1;
                self.cold(partition, env, |replica, turn| replica.restart(turn, &restart));
            }
            _ => {
                let pull = Pull::decode(body).expect("frames are right");
                self.cold(partition, env, |replica, turn| replica.pulled(turn, &pull));
            }
        }
        if stream.refusals() > before {
            env.counters.refused += 1;
            let of_round = matches!(kind, FrameKind::TermCheck);
            env.out.push(Output::Refused(index, partition, of_round));
        }
        self.shared.link_mut(index).receiver.stream = stream;
        if clears_all && self.profile.lacks(Bug::AdoptInAnyStreamClears) {
            for link in &mut self.shared.links {
                link.receiver.stream.taken(partition);
            }
        }
        Read::Done
    }

    fn records(&mut self, index: LinkIndex, body: &[u8], bytes: usize, env: &mut Env<'_>) -> Read {
        let mut look = RecordsReader::new(body).expect("frames are right");
        while let Some(record) = look.next_record().expect("frames are right") {
            if !self.is_free(record.partition) {
                return Read::Blocked;
            }
        }
        let mut reader = RecordsReader::new(body).expect("frames are right");
        let time_ns = reader.time_ns();
        self.shared.link_mut(index).receiver.stream.record_time(time_ns);
        while let Some(record) = reader.next_record().expect("frames are right") {
            let section = *reader.section();
            let at = record.partition.index();
            let header = &self.headers[at];
            let is_old = self.profile.lacks(Bug::AcceptOldTerms)
                && header.state() == HeaderState::Follows
                && record.term < header.term()
                && record.lsn == header.lsn() + 1;
            if header.accepts(record.term, record.lsn) || is_old {
                let pt_ns = header.time_of(time_ns, record.pt_ns);
                let place = ApplyPosition { pt_ns, term: record.term, lsn: record.lsn };
                self.payloads[at].install(place, record.key, &record.state);
                header.installed(record.lsn, pt_ns);
                env.counters.installed += 1;
                if section.stream.node != NodeId(0) {
                    let copy = CopyGeneration {
                        partition: record.partition,
                        generation: header.generation(),
                        term: record.term,
                    };
                    let log = self.shared.logs.log(section.stream);
                    log.add(section.first + u64::from(record.place), copy, record.result);
                    log.advance_done(section.done);
                }
            } else {
                let link = &mut self.shared.links[usize::from(index.0)];
                let end = link.receiver.stream.end_of(bytes);
                let group = &self.groups[at / GROUP_PARTITIONS];
                let refused = group.view(&self.host, record.partition, header, |replica| {
                    replica.refusal(header, record.term, end)
                });
                let before = link.receiver.stream.refusals();
                link.receiver.stream.refuse(refused, false);
                if link.receiver.stream.refusals() > before {
                    env.counters.refused += 1;
                    let is_over = record.term < header.term();
                    env.out.push(Output::Refused(index, record.partition, is_over));
                }
            }
        }
        Read::Done
    }

    fn receive_ack(&mut self, index: LinkIndex, body: &[u8], env: &mut Env<'_>) -> Read {
        let ack = StreamAck::decode(body).expect("frames are right");
        if ack.refused().any(|refused| !self.is_free(refused.partition)) {
            return Read::Blocked;
        }
        let now = self.now(env.true_ns);
        let link = self.shared.link_mut(index);
        link.receiver.progress_ns = now.mono_ns;
        let is_first = link.sender.on_ack(&ack).unwrap_or_else(|fault| broken(env, fault));
        for refused in ack.refused() {
            env.counters.refusals_heard += 1;
            self.cold(refused.partition, env, |replica, turn| {
                replica.refused(turn, index, &refused);
            });
        }
        for done in ack.done() {
            self.shared.logs.log(done.stream).advance_done(done.done);
        }
        let link = self.shared.link_mut(index);
        if let Err(fault) = link.sender.stream.acknowledge(ack.held, now.mono_ns) {
            broken(env, fault);
        }
        if is_first {
            env.counters.resumed += u64::from(!link.sender.stream.unsent().is_empty());
            let (peer, k) = (link.peer, usize::from(link.k));
            if let Some(worker) = self.workers.get_mut(k) {
                worker.inbox.push(Note::LinkUp(peer));
            }
        }
        self.advance_busy(env);
        Read::Done
    }

    /// Lets busy copies advance after an ack.
    pub(super) fn advance_busy(&mut self, env: &mut Env<'_>) {
        for at in 0..self.headers.len() {
            let partition = Partition(at as u16);
            if self.group(partition).is_busy(partition) && self.is_free(partition) {
                self.cold(partition, env, Replica::advance);
            }
        }
    }

    /// Applies changes of the map while shards are free; returns false if some are left.
    pub(super) fn read_news(&mut self, env: &mut Env<'_>) -> bool {
        while let Some(mut news) = self.news.pop_front() {
            while let Some((partition, entry)) = news.entries.pop_front() {
                if !self.is_free(partition) {
                    news.entries.push_front((partition, entry));
                    self.news.push_front(news);
                    return false;
                }
                self.cold(partition, env, |replica, turn| replica.learn(turn, &entry));
            }
            if news.ver >= self.map_ver {
                self.map_ver = news.ver;
                self.shared.logs.set_incarnations(news.lives, news.last_node);
            }
            if let Some(sent_ns) = news.sent_ns {
                self.contact.record(sent_ns);
            }
            self.workers.iter_mut().for_each(|worker| worker.inbox.push(Note::Routes));
        }
        true
    }

    /// Runs the periodic work, every 20 ms.
    pub(super) fn tick(&mut self, env: &mut Env<'_>, evicts: bool) {
        let now = self.now(env.true_ns);
        let silent_ns = self.profile.options.silent_ns;
        let has_patience = self.profile.has_patience;
        for at in 0..self.headers.len() {
            let partition = Partition(at as u16);
            if !self.is_free(partition) {
                continue;
            }
            let set = self.shared.sets.get(self.headers[at].set());
            let is_silent =
                set.links().iter().any(|link| self.shared.silence_ns(*link, now) >= silent_ns);
            if self.group(partition).is_busy(partition) || is_silent {
                self.cold(partition, env, Replica::tick);
            }
            if evicts && env.rng.chance(1, 50) {
                self.evict(partition, now);
            }
        }
        let shared = &self.shared;
        for (at, worker) in self.workers.iter_mut().enumerate() {
            let mut ended = Vec::new();
            let contact = |node| OwnerContact {
                progress_ns: shared
                    .lane_link(node, at)
                    .map_or(0, |link| shared.link(link).receiver.progress_ns),
                is_replaced_soon: has_patience && (now.mono_ns / 1_000_000_000).is_multiple_of(2),
            };
            worker.streams.tick(now, contact, |one| {
                ended.push((one.token as u32, Ended::of(&one.outcome)));
            });
            let progress_ns = |link| shared.link(link).receiver.progress_ns;
            env.counters.given_up += worker.give_up_replies(now, progress_ns, &mut ended);
            for (call, ending) in ended {
                env.out.push(Output::Ended(call, ending, false));
            }
        }
        for link in &mut self.shared.links {
            let done: Vec<_> = self
                .workers
                .get(usize::from(link.k))
                .map(|worker| worker.streams.all_done().collect())
                .unwrap_or_default();
            link.sender.keep_alive(now.mono_ns, 200_000_000, &done);
        }
        self.flush(now, env);
    }

    /// Evicts an item of a partition, if this node serves it.
    fn evict(&mut self, partition: Partition, now: NodeTime) {
        let at = partition.index();
        let header = &self.headers[at];
        let Some(place) = header.next(now) else { return };
        let set = self.shared.sets.get(header.set());
        if set.links().iter().any(|link| self.shared.link(*link).sender.stream.is_full()) {
            return;
        }
        let Some(key) = self.payloads[at].evict() else { return };
        header.take(place);
        for (slot, &link) in set.links().iter().enumerate() {
            let end = self.append_eviction(link, partition, place, key, now);
            self.record_ends.set(partition, slot, end);
        }
    }

    fn append_eviction(
        &mut self,
        link: LinkIndex,
        partition: Partition,
        at: ApplyPosition,
        key: u8,
        now: NodeTime,
    ) -> u64 {
        let mut writer = cluster::frames::RecordsWriter::default();
        writer.begin(now.mono_ns);
        writer.section(OpStreamId::default(), 0, 0);
        writer.record(&cluster::frames::Record {
            partition,
            place: 0,
            term: at.term,
            lsn: at.lsn,
            pt_ns: self.headers[partition.index()].time_beside(now.mono_ns, at),
            key: &[key],
            state: cluster::frames::KeyState::Deleted,
            result: RecordResult::None,
        });
        self.shared.link_mut(link).sender.stream.append(writer.finish(), now.mono_ns)
    }

    /// Whether this node has no pending work.
    pub(super) fn is_quiet(&self) -> bool {
        let is_idle = |worker: &Worker| {
            worker.streams.unanswered() == 0
                && worker.parked.is_empty()
                && worker.todo.is_empty()
                && worker.clients.is_empty()
        };
        self.workers.iter().all(is_idle) && self.groups.iter().all(|group| group.held() == 0)
    }

    /// Whether a copy is complete, and so must equal others at its position.
    pub(super) fn is_whole(&self, partition: Partition) -> bool {
        matches!(self.role(partition), Role::Primary | Role::Backup)
    }

    /// The reply text of a result.
    pub(super) fn text_of(result: RecordResult<'_>) -> Vec<u8> {
        match result {
            RecordResult::Number(value) => Answer::of_value(value).encode().to_vec(),
            RecordResult::Bytes(bytes) => bytes.to_vec(),
            RecordResult::None => Answer { changed: true, head: 0 }.encode().to_vec(),
        }
    }
}
