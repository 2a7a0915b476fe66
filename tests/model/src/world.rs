//! Nodes, connections and time: runs a seed from the first event to the last.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use cluster::LinkIndex;
use cluster::map::NodeState;
use cluster::op_stream::OpOutcome;
use cluster::partition_header::HeaderState;
use cluster::replica::{Environment as _, Position, Role};
use cluster::{CopyId, Incarnation, NodeId, Partition};

use super::check;
use super::faults::Trouble;
use super::node::{Env, News, Node, Output};
use super::payload::{Answer, KEYS, Verb};
use super::profile::Profile;
use crate::base::CONTROL;
use crate::control::{Control, End};
use crate::journal::Journal;
use crate::network::Network;
use crate::rng::Rng;

pub(super) const MS: u64 = 1_000_000;
const TICK_NS: u64 = 20 * MS;
const HEARTBEAT_NS: u64 = 250 * MS;
const CONTROL_TICK_NS: u64 = 50 * MS;
const DIAL_NS: u64 = 10 * MS;
/// The time after the last fault during which clients continue.
const CALM_NS: u64 = 1500 * MS;
/// The time after the last fault within which all properties must hold.
const PATIENCE_NS: u64 = 40_000 * MS;

/// The result of a run.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The violations; empty if there were none.
    pub violations: Vec<String>,
    /// The hash of the trace: equal for equal seeds.
    pub hash: u64,
    /// The counters.
    pub counters: Counters,
}

/// The group of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Work.
    Work,
    /// Faults.
    Fault,
    /// Tests of invariants and their findings.
    Invariant,
}

impl Group {
    /// The heading of the group.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Work => "what was done",
            Self::Fault => "faults",
            Self::Invariant => "invariants, and how often they were tested",
        }
    }
}

macro_rules! counters {
    ($($group:ident: { $($(#[doc = $doc:literal])* $name:ident,)* })*) => {
        /// The counters of a run, or of many.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $($($(#[doc = $doc])* pub $name: u64,)*)*
        }

        impl Counters {
            /// Adds the counters of another run.
            pub fn add(&mut self, other: &Self) {
                $($(self.$name += other.$name;)*)*
            }

            /// All counters, with their groups and names.
            #[must_use]
            pub fn all(&self) -> Vec<(Group, &'static str, u64)> {
                vec![$($((Group::$group, stringify!($name), self.$name),)*)*]
            }
        }
    };
}

counters! {
    Work: {
        /// Operations of clients.
        calls,
        /// Operations that were answered as done.
        done,
        /// Operations that were answered as done at the node that received them.
        done_direct,
        /// Operations that were certainly not done.
        not_applied,
        /// Operations with an unknown outcome.
        unknown,
        /// Operations that owners executed.
        performed,
        /// Replies that waited for nothing.
        at_once,
        /// Replies to forwarded operations that followed their records on the link.
        answers_behind_records,
        /// Those of them that did not count, because their records were refused.
        answers_refused,
        /// Parked batches that were released as a whole.
        batches_released,
        /// Records that copies installed.
        installed,
        /// Acks.
        acks,
        /// Refusals by copies.
        refused,
        /// Refusals that reached their senders.
        refusals_heard,
        /// Connections on which a stream was resumed.
        resumed,
        /// Connections.
        connections,
        /// Frames that waited for a shard.
        blocked,
        /// Events that opened parked batches.
        openings,
        /// Operations of parked batches that were sent again.
        reopened,
        /// Operations of parked batches that were given up.
        given_up,
        /// Results found in a dedup log.
        found,
        /// Operations that waited at their owner.
        held,
        /// Operations that reached a node that was not their owner.
        not_owner,
        /// `Adopt`s.
        adopts,
        /// Chunks of copies.
        chunks,
        /// Learners that had to restart their copy.
        restarts,
        /// Reads that needed a round.
        rounds_asked,
        /// Rounds of copies.
        rounds,
        /// Primaries that were declared dead.
        failovers,
        /// Primaries that handed over.
        handoffs,
        /// Copies that became in-sync.
        copies,
        /// Replicas that were dropped, because nothing was under way.
        rested,
        /// Partitions that started empty because all copies were lost.
        resets,
        /// Operations refused because the controller was silent for too long.
        stopped,
        /// Steps in the histories that survived.
        steps,
        /// Operations answered early and lost with a primary, within the lag.
        early_lost,
        /// Simulated milliseconds.
        simulated_ms,
    }
    Fault: {
        /// Long pauses within a round.
        stalls_in_rounds,
        /// Processes killed.
        crashes,
        /// Processes killed because of an event.
        crashes_aimed,
        /// Directions that were cut for a while.
        cuts,
        /// Connections lost.
        losses,
        /// Connections lost just after a refusal.
        refusals_cut,
        /// Connections that were cut with bytes in flight.
        cut_under_way,
        /// Bytes of older connections that arrived after newer ones.
        overtaken,
        /// Connections that stalled.
        stalls,
        /// Primaries that lost the controller, though alive.
        fences,
        /// Partitions whose copies all lost the controller for long.
        abandons,
        /// Changes of a partition's target.
        moves,
        /// Nodes that joined or left.
        members,
        /// Changes of the wanted number of copies.
        resizes,
        /// Steps of wall clocks.
        clock_steps,
    }
    Invariant: {
        /// Invariant: a copy has the state that others had at its position.
        checked_states,
        /// Invariant: a term has one primary.
        checked_primaries,
        /// Invariant: no reply belongs to a term that was given up.
        checked_ends,
        /// Invariant: a copy's time is between its newest record's and its primary's.
        checked_times,
        /// Invariant: a copy that refuses to follow has another length.
        checked_lengths,
        /// Invariant: replies are in the history that survives.
        checked_answers,
        /// Invariant: replies are in the order of real time.
        checked_order,
        /// Invariant: a later read sees no less.
        checked_reads,
        /// Invariant: no operation is in the history twice.
        checked_once,
        /// Invariant: an operation that was not applied is not in the history.
        checked_refused,
        /// Invariant: a history's time does not run back.
        checked_clock,
        /// Invariant: copies at rest are equal.
        checked_copies,
        /// Invariant: early replies that are lost lie within the lag.
        checked_early,
        /// Invariant: the second of two deaths leaves a copy of each partition that had three.
        checked_deaths,
        /// Lost operations.
        lost,
        /// Operations that were executed twice.
        double,
    }
}

/// The outcome of a client's operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Done(Answer),
    NotApplied,
    Unknown,
    Pending,
}

impl Ended {
    pub(super) fn of(ending: &OpOutcome<'_>) -> Self {
        match ending {
            OpOutcome::Done(text) => Self::of_text(text),
            OpOutcome::NotApplied(_) => Self::NotApplied,
            OpOutcome::Unknown => Self::Unknown,
        }
    }

    pub(super) fn of_text(text: &[u8]) -> Self {
        Self::Done(Answer::decode(text))
    }
}

/// A client's operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) partition: Partition,
    pub(super) key: u8,
    pub(super) invoked_ns: u64,
    /// `u64::MAX` until the operation ends, and if its outcome stays unknown.
    pub(super) ended_ns: u64,
    pub(super) ended: Ended,
}

/// Both nodes with their incarnations, the lower node first, and the index of the link.
pub(super) type LinkKey = (NodeId, Incarnation, NodeId, Incarnation, u16);

/// The connections of one link; `number` is that of the newest.
#[derive(Debug, Default)]
pub(super) struct Conn {
    pub(super) number: u64,
    pub(super) is_open: bool,
    links: u16,
    /// By direction: to the first node, to the second.
    pub(super) stall_until: [u64; 2],
    last_ns: [u64; 2],
    under_way: [usize; 2],
    /// For each cut connection, the bytes that still arrive.
    cuts: BTreeMap<u64, [usize; 2]>,
}

#[derive(Debug)]
enum Event {
    Connected { key: LinkKey, number: u64, side: usize },
    Closed { key: LinkKey, number: u64, side: usize },
    Bytes { key: LinkKey, number: u64, side: usize, bytes: Vec<u8> },
    Step(NodeId, Incarnation, usize),
    Tick(NodeId, Incarnation),
    Heartbeat(NodeId, Incarnation),
    Beat { node: NodeId, incarnation: Incarnation, sent_ns: u64 },
    Ask(cluster::map::command::MapChange),
    News(NodeId, Incarnation, Box<News>),
    ReadNews(NodeId, Incarnation),
    Dial,
    Control,
    Call,
    Trouble(Trouble),
}

/// Events that are to come, by time and then by the order of their insertion.
///
/// The heap moves small entries; the events stay in their slots.
#[derive(Default)]
struct EventQueue {
    /// Time in nanoseconds, number of the insertion, slot.
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    inserted: u64,
    slots: Vec<Option<Event>>,
    free: Vec<u32>,
}

impl EventQueue {
    fn push(&mut self, at_ns: u64, event: Event) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(event);
        self.inserted += 1;
        self.heap.push(Reverse((at_ns, self.inserted, slot)));
    }

    fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((at_ns, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        Some((at_ns, self.slots[slot as usize].take()?))
    }
}

pub(super) struct World {
    pub(super) profile: Profile,
    pub(super) control: Control,
    pub(super) journal: Journal,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) calls: Vec<Call>,
    pub(super) report: Report,
    pub(super) rng: Rng,
    pub(super) network: Network,
    pub(super) conns: BTreeMap<LinkKey, Conn>,
    /// The end of each direction's cut.
    pub(super) cut_until: BTreeMap<(NodeId, NodeId), u64>,
    queue: EventQueue,
    pub(super) now_ns: u64,
    pub(super) is_healed: bool,
    /// Whether the first of two nodes has crashed, and the second will.
    pub(super) is_second_due: bool,
    pub(super) node_uuids: u128,
    last_node: u32,
    /// The digest of the copies at a position.
    digests: BTreeMap<(Partition, Position), u64>,
    primaries: BTreeMap<(Partition, u32), CopyId>,
    /// Partitions that were without an in-sync copy at some moment.
    pub(super) lost: BTreeSet<Partition>,
    traces: bool,
}

/// Runs a seed; with `traces` it prints the events.
#[must_use]
pub fn run(seed: u64, profile: &Profile, traces: bool) -> Report {
    let mut world = World {
        profile: profile.clone(),
        control: Control::new(&profile.base, profile.rules()),
        journal: Journal::default(),
        nodes: BTreeMap::new(),
        calls: Vec::new(),
        report: Report::default(),
        rng: Rng::new(seed),
        network: Network::default(),
        conns: BTreeMap::new(),
        cut_until: BTreeMap::new(),
        queue: EventQueue::default(),
        now_ns: 1_000 * MS,
        is_healed: false,
        is_second_due: false,
        node_uuids: 0,
        last_node: 0,
        digests: BTreeMap::new(),
        primaries: BTreeMap::new(),
        lost: BTreeSet::new(),
        traces,
    };
    world.run();
    check::check(&mut world);
    let mut report = world.report;
    report.counters.simulated_ms = world.now_ns / MS;
    report.counters.copies = world.control.copies;
    report.counters.handoffs = world.control.handoffs;
    let ends = world.control.ends.values();
    report.counters.failovers = ends.clone().filter(|(end, _)| *end == End::Promote).count() as u64;
    report.counters.resets = ends.filter(|(end, _)| *end == End::Reset).count() as u64;
    report
}

impl World {
    fn run(&mut self) {
        for _ in 0..self.profile.base.nodes {
            self.join();
        }
        self.at(0, Event::Control);
        self.at(0, Event::Dial);
        self.at(300 * MS, Event::Call);
        self.plan_troubles();
        let begin_ns = self.now_ns;
        let heal_ns = begin_ns + self.profile.base.chaos_ns;
        while let Some((at_ns, event)) = self.queue.pop() {
            self.now_ns = at_ns;
            self.journal.now_ns = at_ns;
            if !self.is_healed && at_ns >= heal_ns {
                self.heal();
            }
            if !self.report.violations.is_empty() {
                return;
            }
            let is_control = matches!(event, Event::Control);
            self.happen(event);
            let is_calm = at_ns >= heal_ns + CALM_NS;
            if is_calm && is_control && self.is_quiet() {
                return;
            }
            if at_ns >= heal_ns + PATIENCE_NS {
                let what = self.describe();
                self.violation(format!("no rest after {} s{what}", PATIENCE_NS / 1000 / MS));
                return;
            }
        }
    }

    fn at(&mut self, delay_ns: u64, event: Event) {
        self.queue.push(self.now_ns + delay_ns, event);
    }

    pub(super) fn trouble_at(&mut self, delay_ns: u64, trouble: Trouble) {
        self.at(delay_ns, Event::Trouble(trouble));
    }

    pub(super) fn violation(&mut self, what: String) {
        if self.traces {
            println!("{:>10} VIOLATION {what}", self.now_ns / 1000);
        }
        self.report.violations.push(what);
    }

    pub(super) fn note(&mut self, facts: [u64; 3], text: impl FnOnce() -> String) {
        for fact in facts.into_iter().chain([self.now_ns]) {
            let mixed = (self.report.hash ^ fact).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.report.hash = mixed.rotate_left(23) ^ mixed;
        }
        if self.traces {
            println!("{:>10} {}", self.now_ns / 1000, text());
        }
    }

    pub(super) fn begin_node(
        &mut self,
        id: NodeId,
        node_uuid: u128,
        incarnation: Incarnation,
        clocks: (i64, i64),
    ) {
        let workers = self.rng.between(1, self.profile.workers_max) as usize;
        let partitions = 1 << self.profile.base.partition_bits;
        let profile = &self.profile;
        let node = Node::new(
            id,
            node_uuid,
            incarnation,
            clocks,
            workers,
            partitions,
            profile,
            self.now_ns,
        );
        self.note([1, u64::from(id.0), incarnation.0], || {
            format!("{id} begins life {} with {workers} workers", incarnation.0)
        });
        self.last_node = self.last_node.max(id.0);
        self.nodes.insert(id, node);
        for worker in 0..workers {
            let pause = self.rng.below(MS);
            self.at(pause, Event::Step(id, incarnation, worker));
        }
        let pause = self.rng.below(TICK_NS);
        self.at(pause, Event::Tick(id, incarnation));
        let pause = self.rng.below(HEARTBEAT_NS / 10);
        self.at(pause, Event::Heartbeat(id, incarnation));
    }

    /// Lets a node work, and carries out its outputs.
    fn with_node<T>(
        &mut self,
        id: NodeId,
        work: impl FnOnce(&mut Node, &mut Env<'_>) -> T,
    ) -> Option<T> {
        let node = self.nodes.get_mut(&id).filter(|node| node.is_up)?;
        let mut out = Vec::new();
        let mut env = Env {
            true_ns: self.now_ns,
            rng: &mut self.rng,
            journal: &mut self.journal,
            counters: &mut self.report.counters,
            out: &mut out,
        };
        let result = work(node, &mut env);
        for output in out {
            self.carry_out(id, output);
        }
        self.watch(id);
        Some(result)
    }

    fn carry_out(&mut self, id: NodeId, output: Output) {
        match output {
            Output::Ask(change) => self.send_control((id, CONTROL), Event::Ask(change)),
            Output::Ended(call, ended, is_direct) => self.end(id, call, ended, is_direct),
            Output::Broken(what) => self.violation(format!("{id}: {what}")),
            Output::Refused(link, partition, is_over) => self.refused(id, link, partition, is_over),
            Output::Opened(opening) => self.opened(id, &opening),
            Output::Bytes { link, number, bytes } => self.write(id, link, number, bytes),
        }
    }

    fn send_control(&mut self, link: (NodeId, NodeId), event: Event) {
        let (rng, mut profile) = (&mut self.rng, self.profile.base.clone());
        if self.is_healed {
            (profile.drop, profile.spike) = (0, 0);
        }
        let at_ns = self.network.arrival(rng, &profile, self.now_ns, link);
        if let Some(at_ns) = at_ns {
            self.at(at_ns - self.now_ns, event);
        }
    }

    pub(super) fn key(&self, id: NodeId, link: LinkIndex) -> (LinkKey, usize) {
        let node = &self.nodes[&id];
        let link = node.shared.link(link);
        let (me, peer) = ((id, node.incarnation), (link.peer, link.incarnation));
        if id < link.peer {
            ((me.0, me.1, peer.0, peer.1, link.k), 1)
        } else {
            ((peer.0, peer.1, me.0, me.1, link.k), 0)
        }
    }

    fn write(&mut self, id: NodeId, link: LinkIndex, number: u64, mut bytes: Vec<u8>) {
        let (key, side) = self.key(id, link);
        if !self.is_healed && self.rng.chance(self.profile.splits, 100) {
            let rest = bytes.split_off(self.rng.below(bytes.len() as u64) as usize);
            self.write_part(key, side, number, bytes);
            self.write_part(key, side, number, rest);
        } else {
            self.write_part(key, side, number, bytes);
        }
    }

    fn write_part(&mut self, key: LinkKey, side: usize, number: u64, bytes: Vec<u8>) {
        let mut delay_ns = self.rng.between(MS / 20, MS / 2);
        if !self.is_healed && self.rng.chance(self.profile.spike, 10_000) {
            delay_ns = self.rng.between(2 * MS, 100 * MS);
        }
        let Some(conn) = self.conns.get_mut(&key) else { return };
        if conn.number != number || !conn.is_open {
            return;
        }
        let at_ns =
            (self.now_ns + delay_ns).max(conn.last_ns[side] + 1).max(conn.stall_until[side]);
        conn.last_ns[side] = at_ns;
        conn.under_way[side] += bytes.len();
        self.at(at_ns - self.now_ns, Event::Bytes { key, number, side, bytes });
    }

    /// Opens the missing connections.
    fn dial(&mut self) {
        let up: Vec<_> = self.nodes.values().filter(|node| node.is_up).collect();
        let mut wanted = Vec::new();
        for (at, low) in up.iter().enumerate() {
            for high in &up[at + 1..] {
                if self.network.is_cut((low.id, high.id)) || self.network.is_cut((high.id, low.id))
                {
                    continue;
                }
                let links = low.workers.len().max(high.workers.len()) as u16;
                for k in 0..links {
                    wanted.push(((low.id, low.incarnation, high.id, high.incarnation, k), links));
                }
            }
        }
        for (key, links) in wanted {
            if !self.conns.get(&key).is_some_and(|conn| conn.is_open) && self.rng.chance(1, 3) {
                self.open(key, links);
            }
        }
    }

    /// Opens a connection; it replaces one that may still be open.
    pub(super) fn open(&mut self, key: LinkKey, links: u16) {
        let delays = [self.rng.between(MS / 5, 3 * MS), self.rng.between(MS / 5, 3 * MS)];
        let now_ns = self.now_ns;
        let conn = self.conns.entry(key).or_default();
        conn.number += 1;
        conn.is_open = true;
        conn.links = links;
        conn.stall_until = [0; 2];
        conn.under_way = [0; 2];
        conn.last_ns = delays.map(|delay| now_ns + delay);
        let number = conn.number;
        self.report.counters.connections += 1;
        for (side, delay_ns) in delays.into_iter().enumerate() {
            self.at(delay_ns, Event::Connected { key, number, side });
        }
    }

    /// Opens a connection beside one that stalls.
    pub(super) fn reopen(&mut self, key: LinkKey) {
        if let Some(links) = self.conns.get(&key).filter(|conn| conn.is_open).map(|conn| conn.links)
        {
            self.open(key, links);
        }
    }

    /// Cuts a connection: no byte in flight arrives.
    pub(super) fn break_conn(&mut self, key: LinkKey) {
        let number = self.conns.get(&key).filter(|conn| conn.is_open).map(|conn| conn.number);
        self.cut_conn(key);
        if let Some(number) = number
            && let Some(conn) = self.conns.get_mut(&key)
        {
            conn.cuts.insert(number, [0; 2]);
        }
    }

    /// Cuts a connection: a part of the bytes in flight still arrives.
    pub(super) fn cut_conn(&mut self, key: LinkKey) {
        let now_ns = self.now_ns;
        let Some(conn) = self.conns.get_mut(&key).filter(|conn| conn.is_open) else { return };
        conn.is_open = false;
        self.report.counters.cut_under_way += u64::from(conn.under_way != [0; 2]);
        let left = conn.under_way.map(|bytes| self.rng.below(bytes as u64 + 1) as usize);
        conn.cuts.insert(conn.number, left);
        let number = conn.number;
        for side in 0..2 {
            let last_ns = conn.last_ns[side].max(now_ns);
            let event = Event::Closed { key, number, side };
            self.queue.push(last_ns + MS, event);
        }
    }

    /// Cuts all connections between two nodes.
    pub(super) fn cut_pair(&mut self, one: NodeId, other: NodeId) {
        let keys: Vec<_> = self.conns.keys().copied().collect();
        for key in keys {
            if [(key.0, key.2), (key.2, key.0)].contains(&(one, other)) {
                self.cut_conn(key);
            }
        }
    }

    /// The node at this end of a link, if it has that incarnation.
    fn at_side(&self, key: LinkKey, side: usize) -> Option<(NodeId, (NodeId, Incarnation))> {
        let ends = [(key.0, key.1), (key.2, key.3)];
        let (me, peer) = (ends[side], ends[1 - side]);
        let node = self.nodes.get(&me.0)?;
        (node.is_up && node.incarnation == me.1).then_some((me.0, peer))
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Connected { key, number, side } => self.connected(key, number, side),
            Event::Closed { key, number, side } => {
                let Some((id, peer)) = self.at_side(key, side) else { return };
                self.with_node(id, |node, _| {
                    let link = node.shared.links.iter_mut().find(|link| {
                        (link.peer, link.incarnation, link.k) == (peer.0, peer.1, key.4)
                    });
                    if let Some(link) = link.filter(|link| link.sender.number() == number) {
                        link.sender.disconnect();
                    }
                });
            }
            Event::Bytes { key, number, side, bytes } => self.arrive(key, number, side, bytes),
            Event::Step(id, incarnation, worker) => self.step(id, incarnation, worker),
            Event::Tick(id, incarnation) => self.tick(id, incarnation),
            Event::Heartbeat(id, incarnation) => self.heartbeat(id, incarnation),
            Event::Beat { node, incarnation, sent_ns } => self.beat(node, incarnation, sent_ns),
            Event::Ask(change) => {
                let copies = self.control.copies;
                self.control.ask(self.now_ns, change);
                if self.control.copies > copies {
                    self.joined(change.partition);
                }
                self.publish();
            }
            Event::News(id, incarnation, news) => {
                let is_life = |node: &&mut Node| node.is_up && node.incarnation == incarnation;
                if let Some(node) = self.nodes.get_mut(&id).filter(is_life) {
                    node.news.push_back(*news);
                    self.read_news(id, incarnation);
                }
            }
            Event::ReadNews(id, incarnation) => self.read_news(id, incarnation),
            Event::Dial => {
                self.dial();
                self.at(DIAL_NS, Event::Dial);
            }
            Event::Control => {
                self.control.tick(self.now_ns);
                self.publish();
                self.retire();
                self.at(CONTROL_TICK_NS, Event::Control);
            }
            Event::Call => self.call(),
            Event::Trouble(trouble) => self.trouble(trouble),
        }
    }

    fn connected(&mut self, key: LinkKey, number: u64, side: usize) {
        let Some((id, peer)) = self.at_side(key, side) else { return };
        let links = self.conns[&key].links;
        self.note([2, number, side as u64], || {
            format!("{id} connected to {peer:?} {key:?} {number}")
        });
        self.with_node(id, |node, env| {
            if node.connected(peer, (key.4, links), number).is_some() {
                node.advance_busy(env);
                let now = node.now(env.true_ns);
                node.flush(now, env);
            }
        });
    }

    fn arrive(&mut self, key: LinkKey, number: u64, side: usize, mut bytes: Vec<u8>) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        if conn.number == number {
            conn.under_way[side] = conn.under_way[side].saturating_sub(bytes.len());
        }
        if let Some(left) = conn.cuts.get_mut(&number) {
            bytes.truncate(left[side]);
            left[side] -= bytes.len();
        }
        let Some((id, peer)) = self.at_side(key, side) else { return };
        let reads_on = self.profile.lacks(cluster::Bug::OlderLinkReadOn);
        let counters = &mut self.report.counters;
        let node = self.nodes.get_mut(&id).expect("it is there");
        let link = node
            .shared
            .links
            .iter_mut()
            .find(|link| (link.peer, link.incarnation, link.k) == (peer.0, peer.1, key.4));
        let Some(link) = link else { return };
        let is_current = link.sender.number() == number;
        counters.overtaken += u64::from(!is_current);
        if is_current || reads_on {
            link.receiver.inbound.push(&bytes);
        }
    }

    fn step(&mut self, id: NodeId, incarnation: Incarnation, worker: usize) {
        let is_life = |node: &&Node| node.is_up && node.incarnation == incarnation;
        let Some(node) = self.nodes.get(&id).filter(is_life) else { return };
        let is_between = node.is_between_rounds(worker);
        self.with_node(id, |node, env| node.step(worker, env));
        let stalls = !self.is_healed && self.rng.chance(1, self.profile.stall_in * 10);
        let pause = if stalls {
            self.report.counters.stalls_in_rounds += u64::from(!is_between);
            self.rng.between(MS, 600 * MS)
        } else if is_between {
            self.rng.between(MS / 10, MS)
        } else {
            self.rng.between(1000, MS / 10)
        };
        self.at(pause, Event::Step(id, incarnation, worker));
    }

    fn tick(&mut self, id: NodeId, incarnation: Incarnation) {
        let is_life = |node: &&Node| node.is_up && node.incarnation == incarnation;
        if !self.nodes.get(&id).as_ref().is_some_and(is_life) {
            return;
        }
        let evicts = !self.is_healed;
        self.with_node(id, |node, env| node.tick(env, evicts));
        self.look_at_times(id);
        self.at(TICK_NS, Event::Tick(id, incarnation));
    }

    fn heartbeat(&mut self, id: NodeId, incarnation: Incarnation) {
        let is_life = |node: &&Node| node.is_up && node.incarnation == incarnation;
        let Some(node) = self.nodes.get(&id).filter(is_life) else { return };
        let sent_ns = node.now(self.now_ns).mono_ns;
        self.send_control((id, CONTROL), Event::Beat { node: id, incarnation, sent_ns });
        self.at(HEARTBEAT_NS, Event::Heartbeat(id, incarnation));
    }

    fn beat(&mut self, id: NodeId, incarnation: Incarnation, sent_ns: u64) {
        let Some(node_uuid) = self.nodes.get(&id).map(|node| node.node_uuid) else { return };
        let counts = self.control.heartbeat(self.now_ns, id, node_uuid, incarnation);
        self.publish();
        let all = (0..self.control.entries().len()).map(|at| Partition(at as u16));
        let news = self.news(counts.then_some(sent_ns), all.collect());
        self.send_control((CONTROL, id), Event::News(id, incarnation, Box::new(news)));
    }

    fn news(&self, sent_ns: Option<u64>, partitions: Vec<Partition>) -> News {
        let states = [NodeState::Joining, NodeState::Active, NodeState::Draining, NodeState::Dead];
        let nodes = states.into_iter().flat_map(|state| self.control.nodes(state));
        let lives = nodes.filter_map(|id| Some((id, self.control.incarnation(id)?))).collect();
        let entries = partitions.into_iter().map(|at| (at, self.control.entry(at))).collect();
        News { ver: self.control.ver(), sent_ns, lives, last_node: self.last_node, entries }
    }

    /// Sends the changes of the map to all nodes.
    fn publish(&mut self) {
        let changed: Vec<_> = std::mem::take(&mut self.control.changed).into_iter().collect();
        if changed.is_empty() {
            return;
        }
        self.note_lost();
        for &at in &changed {
            let entry = self.control.entry(at);
            self.note([3, u64::from(at.0), u64::from(entry.ver)], || format!("map {at} {entry:?}"));
        }
        let nodes: Vec<_> = self.nodes.values().map(|node| (node.id, node.incarnation)).collect();
        let news = self.news(None, changed);
        for (id, incarnation) in nodes {
            let event = Event::News(id, incarnation, Box::new(news.clone()));
            self.send_control((CONTROL, id), event);
        }
    }

    fn read_news(&mut self, id: NodeId, incarnation: Incarnation) {
        let is_life = |node: &&Node| node.is_up && node.incarnation == incarnation;
        if !self.nodes.get(&id).as_ref().is_some_and(is_life) {
            return;
        }
        if self.with_node(id, Node::read_news) == Some(false) {
            self.at(MS / 10, Event::ReadNews(id, incarnation));
        }
    }

    fn call(&mut self) {
        let heal_ns = 1_000 * MS + self.profile.base.chaos_ns;
        if self.now_ns < heal_ns + CALM_NS {
            // The mean gap between calls is the profile's; several calls may be outstanding.
            let pause = self.rng.between(1, self.profile.base.call_ns);
            self.at(pause, Event::Call);
        }
        let up: Vec<_> =
            self.nodes.values().filter(|node| node.is_up).map(|node| node.id).collect();
        let Some(id) = self.rng.pick(&up) else { return };
        let node = self.nodes.get_mut(&id).expect("it is up");
        let worker = self.rng.below(node.workers.len() as u64) as usize;
        // Phases of some seconds, different at each node.
        let phase = (self.now_ns / MS + u64::from(id.0) * 1700) / 1500;
        let only_reads = self.profile.has_readers && !phase.is_multiple_of(3) && !self.is_healed;
        for _ in 0..self.rng.between(1, 6) {
            let partition = Partition(self.rng.below(node.headers.len() as u64) as u16);
            let key = self.rng.below(u64::from(KEYS)) as u8;
            let verbs = [Verb::Add, Verb::Add, Verb::Look, Verb::Maybe];
            let mut verb = self.rng.pick(&verbs).unwrap_or(Verb::Add);
            if only_reads {
                verb = Verb::Look;
            }
            let number = self.calls.len() as u32;
            self.calls.push(Call {
                partition,
                key,
                invoked_ns: self.now_ns,
                ended_ns: u64::MAX,
                ended: Ended::Pending,
            });
            self.report.counters.calls += 1;
            node.workers[worker].clients.push_back((number, partition, verb, key));
        }
    }

    fn end(&mut self, id: NodeId, number: u32, ended: Ended, is_direct: bool) {
        let call = &mut self.calls[number as usize];
        if call.ended != Ended::Pending {
            self.violation(format!("{id}: call {number} ends again"));
            return;
        }
        call.ended = ended;
        // An operation with an unknown outcome may still be executed later, so it has no end.
        if ended != Ended::Unknown {
            call.ended_ns = self.now_ns;
        }
        let counters = &mut self.report.counters;
        match ended {
            Ended::Done(_) => {
                counters.done += 1;
                counters.done_direct += u64::from(is_direct);
            }
            Ended::NotApplied => counters.not_applied += 1,
            Ended::Unknown | Ended::Pending => counters.unknown += 1,
        }
        let call = *call;
        self.note([4, u64::from(number), u64::from(id.0)], || {
            format!("{id} call {number} {} k{} ends {ended:?}", call.partition, call.key)
        });
        if let Ended::Done(answer) = ended {
            let term = self.journal.step(answer.head).term;
            let reset = self.control.ends.get(&(call.partition, term)).copied();
            let can_reset = self.profile.options.lost_after_ns.is_some();
            self.report.counters.checked_ends +=
                u64::from(can_reset && answer.changed && is_direct);
            if let Some((End::Reset, end_ns)) = reset
                && answer.changed
                && is_direct
            {
                let now_ns = self.now_ns;
                self.violation(format!(
                    "{id} answers at {now_ns} what it did at {} for {} in term {term}, given up at {end_ns}",
                    self.journal.step(answer.head).true_ns,
                    call.partition
                ));
            }
        }
    }

    /// Checks the time by which a store judges a copy's items: not before the newest record's, and
    /// not after its primary's.
    fn look_at_times(&mut self, id: NodeId) {
        let node = &self.nodes[&id];
        let mut found = Vec::new();
        for (at, header) in node.headers.iter().enumerate() {
            let partition = Partition(at as u16);
            if header.state() != HeaderState::Follows {
                continue;
            }
            // The map that the node knows may be of another term than its copy.
            let leads = |other: &&Node| {
                other.headers[at].term() == header.term() && other.role(partition) == Role::Primary
            };
            let Some(primary) = self.nodes.values().find(leads) else { continue };
            let there = &primary.headers[at];
            let now = node.now(self.now_ns);
            let known = node.entry(partition).primary.unwrap_or_default();
            let clock_ns = || node.shared.peer_time_ns(known);
            let (term, rules) = (node.entry(partition).term, node.host.options.rules);
            let time_ns = header.items_ns(now, rules, Some(term), clock_ns);
            let most = primary.now(self.now_ns).mono_ns.wrapping_add(there.ahead_ns());
            self.report.counters.checked_times += 1;
            if time_ns < header.pt_ns() || time_ns > most.max(header.pt_ns()) {
                found.push(format!(
                    "{id} {partition}: its items are looked at by another clock: at {time_ns}, its newest record is of {}, its primary {} at {}",
                    header.pt_ns(), primary.id,
                    most.max(there.pt_ns()),
                ));
            }
        }
        for what in found {
            self.violation(what);
        }
    }

    /// Checks the properties that must hold at every moment.
    fn watch(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let counters = &mut self.report.counters;
        let mut found = Vec::new();
        for at in 0..node.headers.len() {
            let partition = Partition(at as u16);
            let header = &node.headers[at];
            let term = header.term();
            if term.0 < node.terms[at] {
                found.push(format!("{id} {partition}: the term went back to {}", term.0));
            }
            node.terms[at] = term.0;
            if node.is_whole(partition) && node.is_free(partition) {
                let position = node.position(partition);
                let digest = node.payloads[at].digest();
                if node.compared[at] != (position, digest) {
                    node.compared[at] = (position, digest);
                    let known = self.digests.insert((partition, position), digest);
                    counters.checked_states += u64::from(known.is_some());
                    if known.is_some_and(|known| known != digest) {
                        found.push(format!("{id} {partition}: another state at {position:?}"));
                    }
                }
            }
            if header.state() == HeaderState::Serves && node.role(partition) == Role::Primary {
                let me = node.entry(partition).primary.unwrap_or_default();
                counters.checked_primaries += 1;
                let mut known = me;
                if node.led[at] != (term.0, me) {
                    known = *self.primaries.entry((partition, term.0)).or_insert(me);
                    node.led[at] = (term.0, known);
                }
                if known != me || me.node != id {
                    found.push(format!("{partition} has two primaries in term {}", term.0));
                }
            }
        }
        for what in found {
            self.violation(what);
        }
    }
}
