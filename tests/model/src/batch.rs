//! A worker: its rounds, step by step, and the batches that it executes as an owner.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cluster::contact::LastContact;
use cluster::dedup_log::{CopyGeneration, DedupLookup};
use cluster::frames::{
    Answers, AnswersWriter, ExceptionKind, Forward, Record, RecordResult, RecordsWriter, TermCheck,
    cut, op_flags,
};
use cluster::op_stream::{NewOp, OpStreams};
use cluster::parked_reply::{Need, ParkedBatch, ParkedOp, ParkedReplies, Released};
use cluster::partition_header::HeaderState;
use cluster::replica::{
    Admission, ApplyPosition, Destination, Environment as _, GROUP_PARTITIONS, NodeTime, Refusal,
    ReplicaGroup, Route,
};
use cluster::{Bug, LinkIndex, OpStreamId};
use cluster::{NodeId, Partition, Term};

use super::node::{BODY_BYTES_MAX, Env, Node, Note, Output};
use super::payload::{KeyKind, LINE_BYTES, Verb, encode, flags_of, with_record};
use super::world::Ended;

/// One call of this many is kept as long as a debt.
const KEPT_OF: u32 = 16;
/// A reply waits this long for a silent copy.
const GIVES_UP_NS: u64 = 3_000_000_000;
/// The time for which it is tried: longer than a run.
const KEPT_NS: u64 = 600_000_000_000;

/// The destination of a forwarded operation's result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reply {
    /// `None`: the worker itself.
    link: Option<LinkIndex>,
    sending: u64,
    place: u16,
    /// The end position of the records that the answer follows, or 0; see
    /// [`Answers::records_end`].
    records_end: u64,
}

/// An operation that waits at its owner.
#[derive(Debug, Clone)]
pub(super) struct HeldOp {
    pub(super) worker: usize,
    pub(super) reply: Reply,
    item: Box<Item>,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    Direct { call: u32 },
    Forward { stream: OpStreamId, number: u64, reply: Reply, is_looked_up: bool },
}

/// An operation in a batch.
#[derive(Debug, Clone)]
pub(super) struct Item {
    partition: Partition,
    term: Term,
    flags: u8,
    line: [u8; LINE_BYTES],
    source: Source,
}

impl Item {
    pub(super) fn of_held(op: HeldOp) -> Self {
        *op.item
    }
}

/// The result of an operation, before it may leave.
#[derive(Debug)]
struct Outcome {
    item: Item,
    /// The op stream and the number, if the operation is this node's own and has a number.
    own: Option<(u16, u64)>,
    at: ApplyPosition,
    text: Vec<u8>,
    changed: Option<(u8, u32)>,
    /// The dedup log already has its result.
    is_found: bool,
}

/// A batch between two steps.
#[derive(Debug, Default)]
struct Batch {
    now: NodeTime,
    had_lease: bool,
    shards: BTreeSet<usize>,
    outcomes: Vec<Outcome>,
    /// Results that wait for nothing.
    results: Vec<(Option<u32>, Option<Reply>, ForwardResult)>,
    parked: Vec<(Outcome, Vec<Need>)>,
}

type ForwardResult = Result<Vec<u8>, ExceptionKind>;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Read,
    Apply,
    Append,
    Release,
    Send,
    Acked,
    Inbox,
    Reply,
}

pub(super) struct Worker {
    pub(super) streams: OpStreams,
    pub(super) parked: ParkedReplies,
    pub(super) inbox: Vec<Note>,
    pub(super) todo: VecDeque<Vec<Item>>,
    /// Operations of clients: number, partition, verb, key.
    pub(super) clients: VecDeque<(u32, Partition, Verb, u8)>,
    /// Results of forwards that leave at the end of the round; the last field: whether they rest on
    /// a lease.
    pub(super) forward_results: Vec<(Reply, ForwardResult, bool)>,
    /// Results for clients, with the same last field.
    ended: Vec<(u32, Vec<u8>, bool)>,
    batch: Batch,
    phase: Phase,
    /// The contact, read at the beginning of the round.
    contact: LastContact,
    acked: Vec<u64>,
    /// For each parked batch, the destinations of its operations' replies.
    origins: BTreeMap<u64, Vec<Origin>>,
    tokens: u64,
    /// The writers of records, which are reused.
    writers: BTreeMap<LinkIndex, RecordsWriter>,
}

#[derive(Debug, Clone, Copy)]
enum Origin {
    Direct { call: u32 },
    Forward { reply: Reply },
}

impl Worker {
    /// Gives up replies that wait for copies whose links make no progress: a caller here learns
    /// that the outcome is unknown, another node gets no answer. Returns their number.
    pub(super) fn give_up_replies(
        &mut self,
        now: NodeTime,
        progress_ns: impl Fn(LinkIndex) -> u64,
        ended: &mut Vec<(u32, Ended)>,
    ) -> u64 {
        let Self { parked, streams, origins, .. } = self;
        let is_late = |since_ns: u64, link| {
            now.mono_ns.saturating_sub(since_ns.max(progress_ns(link))) >= GIVES_UP_NS
        };
        let mut count = 0;
        parked.expire(is_late, |batch, place| {
            count += 1;
            if let Origin::Direct { call } = origins[&batch.token][place] {
                let op = &batch.ops()[place];
                streams.answered(op.stream, op.number);
                ended.push((call, Ended::Unknown));
            }
        });
        count
    }
}

/// The destination of a partition's operations.
fn destination(groups: &[ReplicaGroup<HeldOp>], partition: Partition) -> Option<Destination> {
    groups[partition.index() / GROUP_PARTITIONS].entry(partition).route().map(Route::destination)
}

impl Node {
    /// One step of a worker's round.
    pub(super) fn step(&mut self, at: usize, env: &mut Env<'_>) {
        let swaps = self.profile.lacks(Bug::AckedBeforeInbox);
        let has_more = !self.workers[at].todo.is_empty();
        self.workers[at].phase = match self.workers[at].phase {
            Phase::Read => {
                self.workers[at].contact = self.contact.last();
                // A worker with a long queue leaves bytes in its sockets, where a lost connection
                // drops them.
                if self.workers[at].todo.len() < self.profile.todo_max {
                    self.read_links(at, env);
                    self.take_clients(at, env);
                }
                Phase::Apply
            }
            Phase::Apply if !has_more => Phase::Send,
            Phase::Apply => {
                if self.apply(at, env) {
                    Phase::Append
                } else {
                    Phase::Apply
                }
            }
            Phase::Append => {
                self.append(at, env);
                Phase::Release
            }
            Phase::Release => {
                self.release_shards(at, env);
                if has_more && env.rng.chance(3, 4) { Phase::Apply } else { Phase::Send }
            }
            Phase::Send => {
                self.send(at, env);
                if swaps { Phase::Inbox } else { Phase::Acked }
            }
            Phase::Acked => {
                let links = &self.shared.links;
                let acked = links.iter().map(|link| link.sender.stream.acked().get()).collect();
                self.workers[at].acked = acked;
                if swaps { Phase::Reply } else { Phase::Inbox }
            }
            Phase::Inbox => {
                self.empty_inbox(at, env);
                if swaps { Phase::Acked } else { Phase::Reply }
            }
            Phase::Reply => {
                self.send_replies(at, env);
                Phase::Read
            }
        };
    }

    /// Whether a round has ended.
    pub(super) fn is_between_rounds(&self, at: usize) -> bool {
        self.workers[at].phase == Phase::Read
    }

    /// Puts operations of clients into a batch, or sends them to the owners of their keys.
    fn take_clients(&mut self, at: usize, env: &mut Env<'_>) {
        let now = self.now(env.true_ns);
        let mut batch = Vec::new();
        for _ in 0..16 {
            let Some((call, partition, verb, key)) = self.workers[at].clients.pop_front() else {
                break;
            };
            let header = &self.headers[partition.index()];
            let line = encode(call, verb, key);
            let flags = flags_of(verb, key);
            if header.state() == HeaderState::Serves && self.is_free(partition) {
                let term = header.term();
                batch.push(Item { partition, term, flags, line, source: Source::Direct { call } });
                continue;
            }
            self.submit(at, call, partition, flags, &line, now, env);
        }
        if !batch.is_empty() {
            self.workers[at].todo.push_back(batch);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of an operation")]
    fn submit(
        &mut self,
        at: usize,
        call: u32,
        partition: Partition,
        flags: u8,
        raw: &[u8],
        now: NodeTime,
        env: &mut Env<'_>,
    ) {
        let owner = self.route(partition).map_or(self.id, |route| route.primary.node);
        let worker = &mut self.workers[at];
        let stream = worker.streams.stream_for(owner);
        // Debts are kept for longer than a run lasts.
        let for_ns = if call.is_multiple_of(KEPT_OF) { KEPT_NS } else { 0 };
        let submitted =
            NewOp { partition, op_flags: flags, token: u64::from(call), index: 0, for_ns };
        if !worker.streams.submit(stream, &submitted, raw, now) {
            env.out.push(Output::Ended(call, Ended::NotApplied, false));
        }
    }

    /// Queues operations that were forwarded to this node as their owner.
    pub(super) fn forward(&mut self, at: usize, link: Option<LinkIndex>, body: &[u8]) {
        let forward = Forward::decode(body).expect("frames are right");
        let mut batch = Vec::new();
        if self.shared.logs.admit(forward.stream).is_ok() {
            self.shared.logs.log(forward.stream).advance_done(forward.done);
        }
        for (place, request) in forward.requests().enumerate() {
            let sending = forward.sending;
            let reply = Reply { link, sending, place: place as u16, records_end: 0 };
            let raw = &forward.lines[place * LINE_BYTES..(place + 1) * LINE_BYTES];
            batch.push(Item {
                partition: request.partition,
                term: request.term,
                flags: request.op_flags,
                line: raw.try_into().expect("a line has its length"),
                source: Source::Forward {
                    stream: forward.stream,
                    number: forward.first + place as u64,
                    reply,
                    is_looked_up: request.op_flags & op_flags::AGAIN != 0,
                },
            });
        }
        for some in batch.chunks(16) {
            self.workers[at].todo.push_back(some.to_vec());
        }
    }

    /// Handles answers of this node itself, or from a link.
    pub(super) fn answers(
        &mut self,
        at: usize,
        link: Option<LinkIndex>,
        answers: &Answers<'_>,
        env: &mut Env<'_>,
    ) {
        let now = self.now(env.true_ns);
        let stream = link.map(|link| &self.shared.link(link).receiver.stream);
        let stream = stream.filter(|_| answers.records_end > 0);
        if let Some(stream) = stream {
            env.counters.answers_behind_records += 1;
            if stream.held() < answers.records_end
                && !self.profile.lacks(Bug::AnswersOvertakeRecords)
            {
                env.out.push(Output::Broken("answers overtook their records".to_owned()));
            }
        }
        let refused = Cell::new(0);
        let headers = &self.headers;
        let counts = |partition: Partition, term| {
            let header_term = headers[partition.index()].term();
            let counts =
                stream.is_none_or(|stream| stream.has_installed(partition, term, header_term));
            refused.set(refused.get() + u64::from(!counts));
            counts
        };
        let out = &mut *env.out;
        self.workers[at].streams.on_answers(answers, counts, now, |one| {
            out.push(Output::Ended(one.token as u32, Ended::of(&one.outcome), false));
        });
        env.counters.answers_refused += refused.get();
    }

    /// Locks the shards and executes the operations; returns false if another worker holds a shard.
    fn apply(&mut self, at: usize, env: &mut Env<'_>) -> bool {
        let Some(items) = self.workers[at].todo.pop_front() else { return true };
        let shards: BTreeSet<usize> =
            items.iter().map(|item| self.shared.shard(item.partition)).collect();
        if shards.iter().any(|shard| self.held[*shard].is_some()) {
            self.workers[at].todo.push_front(items);
            return false;
        }
        for &shard in &shards {
            self.held[shard] = Some(at);
        }
        // The round's clock was read before the shards were locked.
        let now = self.now(env.true_ns - env.rng.below(50_000).min(env.true_ns));
        let contact = self.workers[at].contact;
        let had_lease = contact.has_lease(now, &self.profile.options);
        self.workers[at].batch = Batch { now, had_lease, shards, ..Batch::default() };
        let is_stopped = contact.is_stopped(now, &self.profile.options);
        for item in items {
            self.apply_one(at, item, is_stopped, env);
        }
        true
    }

    fn refuse(&mut self, at: usize, item: &Item, kind: ExceptionKind) {
        let result = match item.source {
            Source::Direct { call } => (Some(call), None, Err(kind)),
            Source::Forward { reply, .. } => (None, Some(reply), Err(kind)),
        };
        self.workers[at].batch.results.push(result);
    }

    fn apply_one(&mut self, at: usize, mut item: Item, is_stopped: bool, env: &mut Env<'_>) {
        let place = item.partition.index();
        let now = self.workers[at].batch.now;
        if is_stopped {
            env.counters.stopped += 1;
            self.refuse(at, &item, ExceptionKind::Refused(Refusal::Stopped));
            return;
        }
        // The op stream may have ended since the operation arrived: then its log is gone.
        if let Source::Forward { stream, .. } = item.source
            && let Err(reason) = self.shared.logs.admit(stream)
        {
            self.refuse(at, &item, reason.into());
            return;
        }
        let on_arrival = self.profile.lacks(Bug::LookedUpOnArrival);
        if on_arrival && self.look_up(at, &mut item, env) {
            return;
        }
        let header = &self.headers[place];
        let is_other_term = item.term != header.term();
        let accepts_old = self.profile.lacks(Bug::AcceptOldAttempts);
        if header.state() != HeaderState::Serves || (is_other_term && !accepts_old) {
            self.admit(at, item, env);
            return;
        }
        if !on_arrival && self.look_up(at, &mut item, env) {
            return;
        }
        let header = &self.headers[place];
        let set = self.shared.sets.get(header.set());
        let is_full =
            set.links().iter().any(|link| self.shared.link(*link).sender.stream.is_full());
        if is_full {
            self.refuse(at, &item, ExceptionKind::Refused(Refusal::Busy));
            return;
        }
        let mut own = None;
        if let Source::Direct { call } = item.source
            && let Some(&link) = set.links().first()
        {
            let owner = self.shared.link(link).peer;
            let streams = &mut self.workers[at].streams;
            let stream = streams.stream_for(owner);
            let (partition, flags) = (item.partition, item.flags);
            let submitted =
                NewOp { partition, op_flags: flags, token: u64::from(call), index: 0, for_ns: 0 };
            let Some(number) = streams.number(stream, &submitted, now) else {
                self.refuse(at, &item, ExceptionKind::Refused(Refusal::Busy));
                return;
            };
            own = Some((stream, number));
        }
        let header = &self.headers[place];
        let Some(position) = header.next(now) else { unreachable!("it serves") };
        let (changed, answer) = self.payloads[place].apply(position, &item.line, env.journal);
        if changed.is_some() {
            header.take(position);
        }
        env.counters.performed += 1;
        let text = answer.encode().to_vec();
        let outcome = Outcome { item, own, at: position, text, changed, is_found: false };
        self.workers[at].batch.outcomes.push(outcome);
    }

    /// Handles an operation of a partition that is not served in the operation's term.
    fn admit(&mut self, at: usize, item: Item, env: &mut Env<'_>) {
        let place = item.partition.index();
        let now = self.workers[at].batch.now;
        let Source::Forward { reply, .. } = item.source else {
            let Source::Direct { call } = item.source else { return };
            self.submit(at, call, item.partition, item.flags, &item.line, now, env);
            return;
        };
        let admission =
            self.view(item.partition, |replica, header| replica.admit(header, item.term));
        match admission {
            Admission::Refer(route) => {
                env.counters.not_owner += 1;
                self.refuse(at, &item, ExceptionKind::NotOwner(route));
            }
            Admission::Refuse(refusal) => {
                self.refuse(at, &item, ExceptionKind::Refused(refusal));
            }
            Admission::Hold | Admission::Perform => {
                env.counters.held += 1;
                let mut item = item;
                if let Source::Forward { is_looked_up, .. } = &mut item.source
                    && !self.profile.lacks(Bug::LookedUpOnArrival)
                {
                    *is_looked_up = true;
                }
                let deadline_ns = now.mono_ns + 1_000_000_000;
                let op = HeldOp { worker: at, reply, item: Box::new(item) };
                let partition = op.item.partition;
                self.groups[place / GROUP_PARTITIONS].hold(partition, now, op, deadline_ns);
            }
        }
    }

    /// Looks up an operation that may have been sent before; returns true if it is dealt with.
    fn look_up(&mut self, at: usize, item: &mut Item, env: &mut Env<'_>) -> bool {
        let place = item.partition.index();
        let Source::Forward { stream, number, is_looked_up, .. } = &mut item.source else {
            return false;
        };
        let (stream, number) = (*stream, *number);
        let header = &self.headers[place];
        let copy = CopyGeneration {
            partition: item.partition,
            generation: header.generation(),
            term: header.term(),
        };
        let is_new = !*is_looked_up;
        if self.profile.lacks(Bug::LookedUpOnArrival) {
            *is_looked_up = false;
        }
        let log = self.shared.logs.log(stream);
        if is_new {
            if number >= log.done() {
                return false;
            }
            if self.profile.lacks(Bug::DoneNotRefused) {
                return false;
            }
            self.refuse(at, item, ExceptionKind::Refused(Refusal::Stale));
            return true;
        }
        let text = match log.look_up(number, copy) {
            DedupLookup::New => return false,
            DedupLookup::Stale => {
                self.refuse(at, item, ExceptionKind::Refused(Refusal::Stale));
                return true;
            }
            DedupLookup::Done(result) => Self::text_of(result),
        };
        if header.state() != HeaderState::Serves || header.term() != item.term {
            // Reached only with `Bug::LookedUpOnArrival`: later lookups follow this check.
            return false;
        }
        env.counters.found += 1;
        let position = ApplyPosition { pt_ns: 0, term: header.term(), lsn: header.lsn() };
        let item = item.clone();
        let outcome =
            Outcome { item, own: None, at: position, text, changed: None, is_found: true };
        self.workers[at].batch.outcomes.push(outcome);
        true
    }

    /// The positions that a reply about a partition needs now.
    fn needs(&self, partition: Partition) -> Vec<Need> {
        let header = &self.headers[partition.index()];
        let set = self.shared.sets.get(header.set());
        let needs = set.mandatory().iter().enumerate();
        let position = |slot| self.record_ends.get(partition, slot);
        needs.map(|(slot, &link)| Need { link, position: position(slot) }).collect()
    }

    /// Appends the batch's records, records their ends, and stores the results.
    fn append(&mut self, at: usize, env: &mut Env<'_>) {
        let mut batch = std::mem::take(&mut self.workers[at].batch);
        let now = batch.now;
        let (rules, mut begun) = (self.profile.rules(), BTreeSet::new());
        let mut writers = std::mem::take(&mut self.workers[at].writers);
        for outcome in &batch.outcomes {
            let Some((key, step)) = outcome.changed else { continue };
            let (stream, number, done) = self.name(at, outcome);
            let header = &self.headers[outcome.item.partition.index()];
            let set = self.shared.sets.get(header.set());
            for &link in set.links() {
                let writer = writers.entry(link).or_insert_with(|| RecordsWriter::new(rules));
                if begun.insert(link) {
                    writer.begin(now.mono_ns);
                }
                writer.section(stream, number, done);
                with_record(key, step, |state| {
                    let result = match KeyKind::of(key) {
                        KeyKind::Counter | KeyKind::Early => RecordResult::Number(u64::from(step)),
                        KeyKind::Item | KeyKind::Plain => RecordResult::Bytes(&outcome.text),
                    };
                    writer.record(&Record {
                        partition: outcome.item.partition,
                        place: 0,
                        term: outcome.at.term,
                        lsn: outcome.at.lsn,
                        pt_ns: header.time_beside(now.mono_ns, outcome.at),
                        key: &[key],
                        state: *state,
                        result,
                    });
                });
            }
        }
        let mut ends = BTreeMap::new();
        for link in begun {
            let sender = &mut self.shared.link_mut(link).sender;
            let frame = writers.get_mut(&link).map_or(&[][..], RecordsWriter::finish);
            ends.insert(link, sender.stream.append(frame, now.mono_ns));
        }
        self.workers[at].writers = writers;
        for outcome in &batch.outcomes {
            self.note_positions(outcome, &ends);
            self.keep_result(at, outcome);
        }
        let mut rounds = BTreeMap::new();
        for outcome in std::mem::take(&mut batch.outcomes) {
            self.sort_out(at, outcome, &mut batch, &mut rounds, env);
        }
        self.workers[at].batch = batch;
    }

    /// The op stream, number and done number of an operation.
    fn name(&self, at: usize, outcome: &Outcome) -> (OpStreamId, u64, u64) {
        match (outcome.own, outcome.item.source) {
            (_, Source::Forward { stream, number, .. }) => {
                (stream, number, self.shared.logs.done(stream))
            }
            (Some((stream, number)), _) => {
                let streams = &self.workers[at].streams;
                (streams.id(stream), number, streams.done(stream))
            }
            (None, Source::Direct { .. }) => (OpStreamId::default(), 0, 0),
        }
    }

    fn note_positions(&self, outcome: &Outcome, ends: &BTreeMap<LinkIndex, u64>) {
        if outcome.changed.is_none() {
            return;
        }
        let partition = outcome.item.partition;
        let set = self.shared.sets.get(self.headers[partition.index()].set());
        for (slot, link) in set.links().iter().enumerate() {
            self.record_ends.set(partition, slot, ends[link]);
        }
    }

    fn keep_result(&mut self, at: usize, outcome: &Outcome) {
        let (stream, number, done) = self.name(at, outcome);
        if stream == OpStreamId::default()
            || outcome.is_found
            || outcome.item.flags & op_flags::READ != 0
        {
            return;
        }
        let header = &self.headers[outcome.item.partition.index()];
        let partition = outcome.item.partition;
        let copy =
            CopyGeneration { partition, generation: header.generation(), term: outcome.at.term };
        let log = self.shared.logs.log(stream);
        log.advance_done(done);
        match outcome.changed {
            Some((key, step)) if matches!(KeyKind::of(key), KeyKind::Counter | KeyKind::Early) => {
                log.add(number, copy, RecordResult::Number(u64::from(step)));
            }
            Some(_) => log.add(number, copy, RecordResult::Bytes(&outcome.text)),
            None => log.add_unchanged(number, copy, &outcome.text),
        }
    }

    /// Decides whether a reply waits, and for which positions.
    fn sort_out(
        &mut self,
        at: usize,
        outcome: Outcome,
        batch: &mut Batch,
        rounds: &mut BTreeMap<Partition, Vec<Need>>,
        env: &mut Env<'_>,
    ) {
        let partition = outcome.item.partition;
        let mut needs = self.needs(partition);
        let fresh = self.now(env.true_ns);
        let is_early = outcome.item.flags & op_flags::OWNER != 0 && {
            let lag_ns = self.profile.options.owner_lag_ns;
            let age_ns =
                |need: &Need| self.shared.link(need.link).sender.stream.age_ns(fresh.mono_ns);
            needs.iter().all(|need| age_ns(need) < lag_ns)
                || self.profile.lacks(Bug::OwnerUnbounded)
        };
        let is_look = outcome.changed.is_none();
        // The clock is read after the look, because a parked reply outlives the round.
        let contact = self.workers[at].contact;
        let has_lease = batch.had_lease && contact.has_lease(fresh, &self.profile.options);
        if is_look && !needs.is_empty() && !has_lease {
            env.counters.rounds_asked += 1;
            if let Some(known) = rounds.get(&partition) {
                needs.clone_from(known);
            } else {
                self.ask_round(partition, &needs, fresh);
                for need in &mut needs {
                    need.position = self.shared.end(need.link);
                }
                rounds.insert(partition, needs.clone());
            }
        }
        let is_met = |need: &Need| self.shared.acked(need.link) >= need.position;
        let is_free = needs.iter().all(is_met)
            || (is_early && (has_lease || !is_look))
            || (outcome.is_found && self.profile.lacks(Bug::FoundAnsweredAtOnce))
            || (is_look && has_lease && self.profile.lacks(Bug::ReadNotParked))
            || self.profile.lacks(Bug::AnswerEarly);
        if !is_free {
            match self.records_end(&outcome, &needs) {
                None => batch.parked.push((outcome, needs)),
                Some((reply, records_end)) => {
                    let reply = Reply { records_end, ..reply };
                    batch.results.push((None, Some(reply), Ok(outcome.text)));
                }
            }
            return;
        }
        env.counters.at_once += 1;
        if let Some((stream, number)) = outcome.own {
            self.workers[at].streams.answered(stream, number);
        }
        let result = match outcome.item.source {
            Source::Direct { call } => (Some(call), None, Ok(outcome.text)),
            Source::Forward { reply, .. } => (None, Some(reply), Ok(outcome.text)),
        };
        batch.results.push(result);
    }

    /// The reply to a forwarded operation, and the end position of the records that it may follow.
    /// `None`, so that it is parked, if a copy of another node than the forwarding one is waited
    /// for.
    fn records_end(&self, outcome: &Outcome, needs: &[Need]) -> Option<(Reply, u64)> {
        let Source::Forward { reply, is_looked_up: false, .. } = outcome.item.source else {
            return None;
        };
        if self.profile.has_old_peers {
            return None;
        }
        let mut others = needs.iter().filter(|need| Some(need.link) != reply.link);
        let is_alone = others.next().is_none();
        let own = needs.iter().find(|need| Some(need.link) == reply.link)?;
        let may_follow = is_alone || self.profile.lacks(Bug::AnswersBehindOneCopy);
        may_follow.then_some((reply, own.position))
    }

    fn ask_round(&mut self, partition: Partition, needs: &[Need], now: NodeTime) {
        let term = self.headers[partition.index()].term();
        let round = TermCheck { partition, term };
        for need in needs {
            let stream = &mut self.shared.link_mut(need.link).sender.stream;
            stream.append_with(now.mono_ns, |out| round.encode(out));
        }
    }

    /// Releases the shards; waiting replies become parked batches.
    fn release_shards(&mut self, at: usize, env: &mut Env<'_>) {
        let batch = std::mem::take(&mut self.workers[at].batch);
        for shard in &batch.shards {
            self.held[*shard] = None;
        }
        let worker = &mut self.workers[at];
        for (call, reply, result) in batch.results {
            match (call, reply, result) {
                (Some(call), _, Ok(text)) => worker.ended.push((call, text, batch.had_lease)),
                (Some(call), _, Err(_)) => {
                    env.out.push(Output::Ended(call, Ended::NotApplied, false));
                }
                // As the server does, in the write of the records.
                (None, Some(reply), Ok(text)) if reply.records_end > 0 => {
                    let link =
                        reply.link.and_then(|link| self.shared.link_mut(link).sender.loose());
                    if let Some(out) = link {
                        reply.write(&Ok(text), out);
                    }
                }
                (None, Some(reply), result) => {
                    worker.forward_results.push((reply, result, batch.had_lease));
                }
                (None, None, _) => {}
            }
        }
        let mut parked_batch: Option<(ParkedBatch, Vec<Origin>)> = None;
        for (outcome, needs) in batch.parked {
            if parked_batch.as_ref().is_some_and(|(parked_batch, _)| !parked_batch.has_room()) {
                worker.park(parked_batch.take());
            }
            let (parked_batch, origins) = parked_batch.get_or_insert_with(|| {
                worker.tokens += 1;
                (worker.parked.begin(worker.tokens, 0), Vec::new())
            });
            let Outcome { item, own, at, text, .. } = outcome;
            let mut op = ParkedOp::new(item.partition, at.term, item.flags);
            if let Some((stream, number)) = own {
                (op.stream, op.number) = (stream, number);
            }
            for need in needs {
                op.needs |= parked_batch.need(need);
            }
            parked_batch.push(op, &text, &item.line);
            origins.push(match item.source {
                Source::Direct { call } => Origin::Direct { call },
                Source::Forward { reply, .. } => Origin::Forward { reply },
            });
        }
        worker.park(parked_batch);
    }

    /// Forwards operations to other owners, and writes all links.
    fn send(&mut self, at: usize, env: &mut Env<'_>) {
        let now = self.now(env.true_ns);
        for stream in 0..self.workers[at].streams.all_done().count() as u16 {
            let owner = self.workers[at].streams.id(stream).owner;
            let groups = &self.groups;
            let route = |partition| destination(groups, partition);
            if owner == self.id {
                self.workers[at].streams.send_new(stream, now, route, None);
                continue;
            }
            let link = self.shared.lane_link(owner, at);
            let out = link.and_then(|link| self.shared.link_mut(link).sender.loose());
            self.workers[at].streams.send_new(stream, now, route, out);
        }
        self.send_again(at, now);
        self.flush(now, env);
    }

    fn send_again(&mut self, at: usize, now: NodeTime) {
        let mut own = Vec::new();
        let (me, shared, groups) = (self.id, &mut self.shared, &self.groups);
        let route = |partition| destination(groups, partition);
        self.workers[at].streams.send_again(now, route, |node: NodeId, frame: &[u8]| {
            if node == me {
                own.push(frame.to_vec());
                return true;
            }
            let link = shared.lane_link(node, at);
            let Some(link) = link else { return false };
            let Some(out) = shared.link_mut(link).sender.loose() else { return false };
            out.extend_from_slice(frame);
            true
        });
        for frame in own {
            let frame = cut(&frame, BODY_BYTES_MAX).expect("it is right").expect("it is whole");
            self.forward(at, None, frame.body);
        }
    }

    fn empty_inbox(&mut self, at: usize, env: &mut Env<'_>) {
        let now = self.now(env.true_ns);
        for note in std::mem::take(&mut self.workers[at].inbox) {
            match note {
                Note::LinkUp(peer) => self.workers[at].streams.link_up(peer, now),
                Note::Routes => {
                    let groups = &self.groups;
                    let route = |partition| destination(groups, partition);
                    self.workers[at].streams.routes_changed(now, route);
                }
                Note::Open(opening) => {
                    let mut parked = std::mem::take(&mut self.workers[at].parked);
                    let mut released = Vec::new();
                    parked.open(&opening, |one| released.push(Outcomes::of(&one)));
                    self.workers[at].parked = parked;
                    self.carry_out(at, released, env);
                }
            }
        }
    }

    /// Sends the replies of released batches, or sends their operations again.
    fn carry_out(&mut self, at: usize, released: Vec<Outcomes>, env: &mut Env<'_>) {
        let now = self.now(env.true_ns);
        for one in released {
            let route = self.route(one.op.partition);
            let worker = &mut self.workers[at];
            let origin = worker.origins[&one.token][one.place];
            match origin {
                Origin::Direct { call } if one.is_again => {
                    env.counters.reopened += 1;
                    let is_open =
                        worker.streams.reopen(one.op.stream, one.op.number, &one.line, now);
                    if !is_open {
                        let what = format!("call {call} is answered and opened");
                        env.out.push(Output::Broken(what));
                    }
                }
                Origin::Direct { call } => {
                    worker.streams.answered(one.op.stream, one.op.number);
                    worker.ended.push((call, one.text, false));
                }
                Origin::Forward { reply } if one.is_again => {
                    worker.forward_results.push((reply, Err(ExceptionKind::Deposed(route)), false));
                }
                Origin::Forward { reply } => {
                    worker.forward_results.push((reply, Ok(one.text), false));
                }
            }
        }
    }

    /// Releases acknowledged batches, and lets the round's replies leave.
    fn send_replies(&mut self, at: usize, env: &mut Env<'_>) {
        let now = self.now(env.true_ns);
        let options = self.profile.options;
        let contact = self.workers[at].contact;
        let (is_stopped, has_lease) =
            (contact.is_stopped(now, &options), contact.has_lease(now, &options));
        if !is_stopped {
            let mut parked = std::mem::take(&mut self.workers[at].parked);
            let mut released = Vec::new();
            for (place, acked) in self.workers[at].acked.iter().enumerate() {
                parked.release(LinkIndex(place as u16), *acked, |one| match one {
                    Released::Whole(parked_batch) => {
                        env.counters.batches_released += 1;
                        released.extend(
                            (0..parked_batch.ops().len())
                                .map(|place| Outcomes::of_op(parked_batch, place)),
                        );
                    }
                    one => released.push(Outcomes::of(&one)),
                });
            }
            parked.release_opened(|one| released.push(Outcomes::of(&one)));
            self.workers[at].parked = parked;
            self.carry_out(at, released, env);
        }
        let may_reply = |had_lease: bool| !is_stopped && (!had_lease || has_lease);
        for (call, text, had_lease) in std::mem::take(&mut self.workers[at].ended) {
            let ended = if may_reply(had_lease) { Ended::of_text(&text) } else { Ended::Unknown };
            env.out.push(Output::Ended(call, ended, true));
        }
        let forward_results = std::mem::take(&mut self.workers[at].forward_results);
        for (reply, result, had_lease) in forward_results {
            let result = match result {
                Ok(_) if !may_reply(had_lease) => Err(ExceptionKind::Deposed(None)),
                result => result,
            };
            let mut out = Vec::new();
            reply.write(&result, &mut out);
            match reply.link {
                None => {
                    let frame = cut(&out, BODY_BYTES_MAX).expect("it is right");
                    let frame = frame.expect("it is whole");
                    let answers = Answers::decode(frame.kind, frame.body);
                    self.answers(at, None, &answers.expect("frames are right"), env);
                }
                Some(link) => {
                    if let Some(loose) = self.shared.link_mut(link).sender.loose() {
                        loose.extend_from_slice(&out);
                    }
                }
            }
        }
        self.send_again(at, now);
        self.flush(now, env);
    }
}

impl Reply {
    /// Appends the frame of the answer to `out`.
    fn write(self, result: &ForwardResult, out: &mut Vec<u8>) {
        let mut writer = AnswersWriter::default();
        match result {
            Ok(text) => writer.text(text),
            Err(kind) => writer.exception(self.place, *kind),
        }
        writer.finish(self.sending, self.place, self.records_end, out);
    }
}

/// A released reply of a parked batch.
struct Outcomes {
    token: u64,
    place: usize,
    op: ParkedOp,
    text: Vec<u8>,
    line: Vec<u8>,
    is_again: bool,
}

impl Outcomes {
    fn of_op(parked_batch: &ParkedBatch, place: usize) -> Self {
        let (text, line) =
            (parked_batch.text_of(place).to_vec(), parked_batch.line_of(place).to_vec());
        let (token, op) = (parked_batch.token, parked_batch.ops()[place]);
        Self { token, place, op, text, line, is_again: false }
    }

    fn of(released: &Released<'_>) -> Self {
        match *released {
            Released::Whole(parked_batch) => Self::of_op(parked_batch, 0),
            Released::One(parked_batch, place) => Self::of_op(parked_batch, place),
            Released::Again(parked_batch, place) => {
                Self { is_again: true, ..Self::of_op(parked_batch, place) }
            }
        }
    }
}

impl Worker {
    pub(super) fn new(streams: OpStreams, parked: ParkedReplies) -> Self {
        Self {
            streams,
            parked,
            inbox: Vec::new(),
            todo: VecDeque::new(),
            clients: VecDeque::new(),
            forward_results: Vec::new(),
            ended: Vec::new(),
            batch: Batch::default(),
            phase: Phase::Read,
            contact: LastContact::default(),
            acked: Vec::new(),
            origins: BTreeMap::new(),
            tokens: 0,
            writers: BTreeMap::new(),
        }
    }

    fn park(&mut self, parked_batch: Option<(ParkedBatch, Vec<Origin>)>) {
        if let Some((parked_batch, origins)) = parked_batch {
            self.origins.insert(parked_batch.token, origins);
            self.parked.park(parked_batch);
        }
    }
}
