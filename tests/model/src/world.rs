//! Nodes, links and time: runs a seed from the first event to the last.

mod faults;
mod node;
mod relay;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;

use cluster::replica::{
    AckMode, Action, Ending, Kind, Message, Nak, Outcome, Part, Position, Send, SessionId,
};
use cluster::{CopyId, Incarnation, NodeId, Partition, Term};

use self::faults::Trouble;
use self::node::Node;
use crate::check;
use crate::control::{Control, End};
use crate::journal::Journal;
use crate::network::{Network, Parcel};
use crate::payload::{Answer, Borrower, Deed, SORTS, Sort, Verb};
use crate::profile::{CONTROL, Profile};
use crate::rng::Rng;

const MS: u64 = 1_000_000;
/// Between two ticks of a node.
const TICK_NS: u64 = 20 * MS;
const HEARTBEAT_NS: u64 = 250 * MS;
const CONTROL_TICK_NS: u64 = 50 * MS;
/// How long a client waits.
const DEADLINE_NS: u64 = 1000 * MS;
/// Clients go on for so long after the last fault.
const CALM_NS: u64 = 1500 * MS;
/// So long after the last fault all must be well.
const PATIENCE_NS: u64 = 40_000 * MS;
/// Keys of each sort.
const KEYS_PER_SORT: u64 = 1;

/// What a run came to.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// What was wrong; empty if nothing was.
    pub violations: Vec<String>,
    /// The same for the same seed.
    pub hash: u64,
    /// What happened.
    pub figures: Figures,
}

/// What happened in a run, or in many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations of clients.
    pub calls: u64,
    /// Those that were answered as done.
    pub done: u64,
    /// Those that were answered at once, where they were asked.
    pub at_once: u64,
    /// Those that certainly were not.
    pub not_applied: u64,
    /// Those of which a client does not know.
    pub unknown: u64,
    /// Unknown ones that were applied.
    pub unknown_applied: u64,
    /// Answered early, and lost with a primary.
    pub early_lost: u64,
    /// Steps in histories: changes that survived.
    pub steps: u64,
    /// Primaries that were held dead.
    pub failovers: u64,
    /// Primaries that handed over.
    pub handoffs: u64,
    /// Copies that became in-sync.
    pub copies: u64,
    /// Partitions that began anew since all copies were lost.
    pub resets: u64,
    /// Processes killed.
    pub crashes: u64,
    /// Messages delivered.
    pub messages: u64,
    /// Messages that came through a third node.
    pub relayed: u64,
    /// Messages that filled or found a gap: something was lost or overtaken.
    pub gaps: u64,
    /// Copies whose history was not the new primary's.
    pub diverged: u64,
    /// Learners that had to begin anew.
    pub restarts: u64,
    /// Pieces of copies.
    pub pieces: u64,
    /// Attempts that a primary refused: it was handing over, or busy, or out of contact.
    pub refused: u64,
    /// Settled holds that were taken from a primary before the one that settled them.
    pub holds_moved: u64,
    /// Leases of quota gone on with at another primary.
    pub leases_moved: u64,
    /// Requests that were answered and had an id that another had before.
    pub ids_repeated: u64,
    /// Operations found lost, and done twice.
    pub lost: u64,
    /// See `lost`.
    pub double: u64,
    /// Simulated time.
    pub simulated_ns: u64,
    /// Longest that it took from the end of all faults until every partition had all its copies where
    /// they belong.
    pub rest_ns: u64,
}

impl Figures {
    /// The sum.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.done += other.done;
        self.at_once += other.at_once;
        self.not_applied += other.not_applied;
        self.unknown += other.unknown;
        self.unknown_applied += other.unknown_applied;
        self.early_lost += other.early_lost;
        self.steps += other.steps;
        self.failovers += other.failovers;
        self.handoffs += other.handoffs;
        self.copies += other.copies;
        self.resets += other.resets;
        self.crashes += other.crashes;
        self.messages += other.messages;
        self.relayed += other.relayed;
        self.gaps += other.gaps;
        self.diverged += other.diverged;
        self.restarts += other.restarts;
        self.pieces += other.pieces;
        self.refused += other.refused;
        self.holds_moved += other.holds_moved;
        self.leases_moved += other.leases_moved;
        self.ids_repeated += other.ids_repeated;
        self.lost += other.lost;
        self.double += other.double;
        self.simulated_ns += other.simulated_ns;
        self.rest_ns = self.rest_ns.max(other.rest_ns);
    }
}

/// What became of a client's operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Done(Answer),
    NotApplied,
    /// Its client gave up.
    Unknown,
    /// Its client is no more.
    Pending,
}

/// A client's operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) partition: Partition,
    pub(crate) key: u8,
    pub(crate) verb: Verb,
    pub(crate) invoked_ns: u64,
    /// Never, where nobody waits for it any more.
    pub(crate) ended_ns: u64,
    pub(crate) ended: Ended,
}

#[derive(Debug)]
enum Event {
    Deliver(NodeId, Box<Parcel>),
    Tick(NodeId, Incarnation),
    Heartbeat(NodeId, Incarnation),
    Control,
    Call,
    Trouble(Trouble),
}

struct Queued(u64, u64, Event);

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

pub(crate) struct World {
    pub(crate) profile: Profile,
    pub(crate) control: Control,
    pub(crate) journal: Rc<RefCell<Journal>>,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) calls: Vec<Call>,
    pub(crate) report: Report,
    rng: Rng,
    network: Network,
    queue: BinaryHeap<Reverse<Queued>>,
    queued: u64,
    now_ns: u64,
    is_healed: bool,
    births: u128,
    /// What copies at a place of a partition's history hold: the last step of each key.
    held: BTreeMap<(Partition, Position), u64>,
    /// Who served a term.
    primaries: BTreeMap<(Partition, u32), CopyId>,
    /// Partitions of which at some moment no in-sync copy was up: what they held may be gone. A
    /// primary can have its backups removed and die, and this is what one copy is worth.
    pub(crate) lost: BTreeSet<Partition>,
    traces: bool,
}

/// Runs a seed; with `traces` it prints every event.
#[must_use]
pub fn run(seed: u64, profile: &Profile, traces: bool) -> Report {
    let mut world = World::new(seed, profile.clone(), traces);
    world.run();
    check::check(&mut world);
    let World { mut report, control, calls, now_ns, .. } = world;
    let figures = &mut report.figures;
    figures.calls = calls.len() as u64;
    figures.handoffs = control.handoffs;
    figures.copies = control.copies;
    for ((_, term), (end, _)) in &control.ends {
        figures.failovers += u64::from(*end == End::Promote);
        // Before the first term nothing could be lost.
        figures.resets += u64::from(*end == End::Reset && *term > 0);
    }
    figures.simulated_ns = now_ns;
    report
}

impl World {
    fn new(seed: u64, profile: Profile, traces: bool) -> Self {
        let control = Control::new(&profile);
        let mut world = Self {
            control,
            profile,
            journal: Rc::default(),
            nodes: BTreeMap::new(),
            calls: Vec::new(),
            report: Report::default(),
            rng: Rng::new(seed),
            network: Network::default(),
            queue: BinaryHeap::new(),
            queued: 0,
            now_ns: 1000 * MS,
            is_healed: false,
            births: 0,
            held: BTreeMap::new(),
            primaries: BTreeMap::new(),
            lost: BTreeSet::new(),
            traces,
        };
        for _ in 0..world.profile.nodes {
            world.join();
        }
        world.control.tick(world.now_ns);
        world.at(0, Event::Control);
        world.at(10 * MS, Event::Call);
        world.plan_troubles();
        world
    }

    fn run(&mut self) {
        let heal_ns = self.now_ns + self.profile.chaos_ns;
        while let Some(Reverse(Queued(at_ns, _, event))) = self.queue.pop() {
            self.now_ns = at_ns;
            self.journal.borrow_mut().now_ns = at_ns;
            if !self.is_healed && at_ns >= heal_ns {
                self.heal();
            }
            match event {
                Event::Deliver(to, parcel) => self.deliver(to, *parcel),
                Event::Tick(node, incarnation) => self.tick(node, incarnation),
                Event::Heartbeat(node, incarnation) => self.heartbeat(node, incarnation),
                Event::Control => {
                    self.at(CONTROL_TICK_NS, Event::Control);
                    self.control.tick(at_ns);
                    self.publish();
                    self.retire();
                    if self.is_healed
                        && self.report.figures.rest_ns == 0
                        && self.control.is_settled()
                    {
                        self.report.figures.rest_ns = at_ns - heal_ns;
                    }
                    if self.is_healed && at_ns >= heal_ns + CALM_NS + DEADLINE_NS && self.is_quiet()
                    {
                        return;
                    }
                }
                Event::Call => {
                    if at_ns < heal_ns + CALM_NS {
                        let pause = self.rng.between(1, 2 * self.profile.call_ns);
                        self.at(pause, Event::Call);
                        self.call();
                    }
                }
                Event::Trouble(trouble) => self.trouble(trouble),
            }
            if self.report.violations.len() > 10 {
                return;
            }
            if at_ns > heal_ns + PATIENCE_NS {
                let state = self.describe();
                self.violation(format!(
                    "not well {} s after all faults: {state}",
                    PATIENCE_NS / 1_000_000_000
                ));
                return;
            }
        }
    }

    fn at(&mut self, after_ns: u64, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse(Queued(self.now_ns + after_ns, self.queued, event)));
    }

    pub(crate) fn violation(&mut self, what: String) {
        if self.traces {
            println!("{} VIOLATION {what}", self.time());
        }
        self.report.violations.push(what);
    }

    /// The time for a trace: seconds, to the microsecond.
    fn time(&self) -> String {
        format!("{:>5}.{:06}", self.now_ns / 1_000_000_000, self.now_ns / 1000 % 1_000_000)
    }

    /// Makes the event part of the hash, and prints it if asked to.
    fn note(&mut self, parts: [u64; 4], text: impl FnOnce() -> String) {
        for part in [self.now_ns].into_iter().chain(parts) {
            // FNV-1a on whole words.
            self.report.hash = (self.report.hash ^ part).wrapping_mul(0x0100_0000_01b3);
            self.report.hash ^= self.report.hash >> 29;
        }
        if self.traces {
            println!("{} {}", self.time(), text());
        }
    }

    /// A client on some node does something.
    fn call(&mut self) {
        let up: Vec<NodeId> =
            self.nodes.values().filter(|node| node.is_up).map(|node| node.id).collect();
        let Some(at) = self.rng.pick(&up) else { return };
        let partition = Partition(self.rng.below(self.control.entries().len() as u64) as u16);
        let key = self.rng.below(SORTS.len() as u64 * KEYS_PER_SORT) as u8;
        let sort = Sort::of(key);
        let rng = &mut self.rng;
        let looks = rng.chance(1, 4);
        let verb = match sort {
            _ if looks => Verb::Look,
            Sort::Counter | Sort::Early => Verb::Add,
            Sort::Bucket | Sort::Windows | Sort::EarlyBucket => Verb::Take(rng.between(1, 3)),
            Sort::Holds => {
                let node = self.nodes.get_mut(&at).expect("it is up");
                let lease = (!rng.chance(1, 2)).then(|| node.lease(partition, key)).flatten();
                match lease {
                    Some((lease, units)) => Verb::Settle(lease, rng.below(units + 1)),
                    None => Verb::Hold(rng.between(1, 3)),
                }
            }
            Sort::Leases => {
                let borrower = Borrower { client: at.0, used: rng.below(5) as u32 };
                Verb::Lease(borrower, rng.between(1, 8))
            }
            Sort::Ids => {
                let is_once = |call: &&Call| (call.partition, call.key) == (partition, key);
                let before = self.calls.iter().rev().filter(is_once).map(|call| call.verb);
                let mut before = before.filter(|verb| matches!(verb, Verb::Once(..)));
                let place = rng.below(8) as usize;
                // A repeat: of a request that was answered, is under way or was given up.
                let again = before.nth(place);
                let id = self.calls.len() as u32;
                again.unwrap_or_else(|| Verb::Once(rng.between(1, 3), id))
            }
            Sort::Plain if rng.chance(1, 3) => Verb::Delete,
            Sort::Plain => Verb::Put(rng.below(60)),
        };
        let number = self.calls.len();
        self.calls.push(Call {
            partition,
            key,
            verb,
            invoked_ns: self.now_ns,
            ended_ns: u64::MAX,
            ended: Ended::Pending,
        });
        let deed = Deed { call: number as u32, key, verb };
        let kind = if verb == Verb::Look { Kind::Read } else { Kind::Write };
        let ack = if sort.is_early() { AckMode::Owner } else { AckMode::Replica };
        self.note([1, u64::from(at.0), u64::from(partition.0), number as u64], || {
            format!("{at} call {number}: {partition} k{key} {verb:?}")
        });
        let node = self.nodes.get_mut(&at).expect("it is up");
        let now = node.now(self.now_ns);
        let op = deed.encode();
        // Else it goes the way of others', although it need not.
        if self.rng.chance(1, 2)
            && let Some((result, actions)) = node.at_once(self.now_ns, partition, kind, ack, &op)
        {
            self.report.figures.at_once += 1;
            let term = node.replicas[partition.index()].term();
            self.note_answer(at, partition, term);
            self.end(at, vec![(number as u64, Ending::Done(result))]);
            self.carry_out(at, partition, actions);
            self.watch(at, partition);
            return;
        }
        let mut sends = Vec::new();
        let deadline_ns = now.mono_ns + DEADLINE_NS;
        let taken = node.session.submit(
            now,
            partition,
            kind,
            ack,
            deadline_ns,
            op,
            number as u64,
            &mut sends,
        );
        if !taken {
            self.calls[number].ended_ns = self.now_ns;
            self.calls[number].ended = Ended::NotApplied;
        }
        self.send_ops(at, sends);
    }

    /// Sends something to a node, or through another one.
    fn post(&mut self, from: NodeId, to: NodeId, partition: Partition, parcel: Parcel) {
        match self.relay(from, to) {
            Some(relay) => {
                let parcel = Parcel::Relay { from, to, partition, parcel: Box::new(parcel) };
                self.post_over((from, relay), partition, parcel);
            }
            None => self.post_over((from, to), partition, parcel),
        }
    }

    fn post_over(&mut self, link: (NodeId, NodeId), partition: Partition, parcel: Parcel) {
        let to = link.1;
        let (rng, profile) = (&mut self.rng, &self.profile);
        let calm;
        let profile = if self.is_healed {
            calm = Profile { drop: 0, spike: 0, ..profile.clone() };
            &calm
        } else {
            profile
        };
        if let Some(at_ns) = self.network.arrival(rng, profile, self.now_ns, link, partition) {
            self.at(at_ns - self.now_ns, Event::Deliver(to, Box::new(parcel)));
        }
    }

    fn send_ops(&mut self, from: NodeId, sends: Vec<Send>) {
        for send in sends {
            let node = &self.nodes[&from];
            let session = node.session.id();
            let now = node.now(self.now_ns);
            match send {
                Send::Op { partition, to, op } => {
                    let parcel = Parcel::Op {
                        partition,
                        term: op.term,
                        session,
                        seq: op.seq,
                        first_unacked: op.first_unacked,
                        kind: op.kind,
                        ack: op.ack,
                        left_ns: op.deadline_ns.saturating_sub(now.mono_ns),
                        op: op.op,
                    };
                    self.post(from, to.node, partition, parcel);
                }
                Send::Settle { partition, to, term, first_unacked } => {
                    let parcel = Parcel::Settle { partition, term, session, first_unacked };
                    self.post(from, to.node, partition, parcel);
                }
            }
        }
    }

    /// A copy answers: it must not have been given up.
    fn note_answer(&mut self, at: NodeId, partition: Partition, term: Term) {
        if let Some((End::Reset, end_ns)) = self.control.ends.get(&(partition, term.0)).copied() {
            let (now_ns, term) = (self.now_ns, term.0);
            self.violation(format!(
                "{at} answers for {partition} in term {term} at {now_ns}, given up at {end_ns}"
            ));
        }
    }

    /// Carries out what a copy wants.
    fn carry_out(&mut self, at: NodeId, partition: Partition, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, from, term, message } => {
                    let parcel = Parcel::Copy { partition, from, to, term, message };
                    self.post(at, to.node, partition, parcel);
                }
                Action::Reply { to, reply } => {
                    if let Outcome::Done(_) = &reply.outcome {
                        self.note_answer(at, partition, reply.term);
                    }
                    self.post(
                        at,
                        to.node,
                        partition,
                        Parcel::Reply { partition, session: to, reply },
                    );
                }
                Action::Ask(change) => self.post(at, CONTROL, partition, Parcel::Ask(change)),
            }
        }
    }

    fn deliver(&mut self, to: NodeId, parcel: Parcel) {
        self.count(&parcel);
        let queued = self.queued;
        self.note([2, u64::from(to.0), parcel.kind(), queued], || format!("-> {to} {parcel:?}"));
        if to == CONTROL {
            let parcel = match parcel {
                Parcel::Relayed(parcel) => *parcel,
                parcel => parcel,
            };
            self.deliver_to_control(&parcel);
            return;
        }
        let now_ns = self.now_ns;
        let parcel = match parcel {
            Parcel::Relay { from, to: receiver, partition, parcel } => {
                self.pass_on(to, (from, receiver), partition, *parcel);
                return;
            }
            Parcel::Relayed(parcel) => self.relayed(*parcel),
            parcel => parcel,
        };
        // A node that the map has forgotten has no lanes to anyone.
        if matches!(&parcel, Parcel::Op { session, .. } | Parcel::Settle { session, .. }
            if !self.nodes.contains_key(&session.node))
        {
            return;
        }
        let Some(node) = self.nodes.get_mut(&to).filter(|node| node.is_up) else { return };
        match parcel {
            Parcel::Reply { partition, session, reply } => {
                // Only a primary that takes what was relayed for new gives it another core.
                if (SessionId { core: 0, ..session }) == node.session.id() {
                    let (mut sends, mut endings) = (Vec::new(), Vec::new());
                    let now = node.now(now_ns);
                    node.session.answered(now, partition, reply, &mut sends, &mut endings);
                    self.send_ops(to, sends);
                    self.end(to, endings);
                }
            }
            Parcel::Map { incarnation, sent_ns, entries } => {
                if incarnation == node.incarnation {
                    self.learn(to, sent_ns, entries);
                }
            }
            parcel => {
                if let Some((partition, actions)) = node.take(now_ns, parcel) {
                    self.carry_out(to, partition, actions);
                    self.watch(to, partition);
                }
            }
        }
    }

    fn count(&mut self, parcel: &Parcel) {
        let relays = u64::from(matches!(parcel, Parcel::Relayed(_)));
        self.report.figures.relayed += relays;
        let figures = &mut self.report.figures;
        figures.messages += 1;
        match parcel {
            Parcel::Copy { message: Message::Nak(Nak::Gap(_)), .. } => figures.gaps += 1,
            Parcel::Copy { message: Message::Nak(Nak::Diverged(_)), .. } => figures.diverged += 1,
            Parcel::Copy { message: Message::Restart { .. }, .. } => figures.restarts += 1,
            Parcel::Copy { message: Message::Chunk(_), .. } => figures.pieces += 1,
            Parcel::Reply { reply, .. } if matches!(reply.outcome, Outcome::Refused(_)) => {
                figures.refused += 1;
            }
            _ => {}
        }
    }

    fn deliver_to_control(&mut self, parcel: &Parcel) {
        match *parcel {
            Parcel::Heartbeat { node, incarnation, sent_ns } => {
                let Some(birth) = self.nodes.get(&node).map(|node| node.birth) else { return };
                let counts = self.control.heartbeat(self.now_ns, node, birth, incarnation);
                self.publish();
                let count = self.control.entries().len();
                let partitions = (0..count).map(|at| Partition(at as u16));
                let entries = partitions.map(|at| (at, self.control.entry(at))).collect();
                let sent_ns = counts.then_some(sent_ns);
                let parcel = Parcel::Map { incarnation, sent_ns, entries };
                self.post(CONTROL, node, Partition(0), parcel);
            }
            Parcel::Ask(change) => {
                self.control.ask(self.now_ns, change);
                self.publish();
            }
            _ => {}
        }
    }

    /// Tells all nodes what has changed in the map.
    fn publish(&mut self) {
        let changed = std::mem::take(&mut self.control.changed);
        if changed.is_empty() {
            return;
        }
        self.note_lost();
        let entries: Vec<_> = changed.into_iter().map(|at| (at, self.control.entry(at))).collect();
        for (at, entry) in &entries {
            self.note([3, u64::from(at.0), u64::from(entry.ver), u64::from(entry.term.0)], || {
                format!("map {at} {}", node::describe(entry))
            });
        }
        let nodes: Vec<_> = self.nodes.values().map(|node| (node.id, node.incarnation)).collect();
        for (node, incarnation) in nodes {
            let parcel = Parcel::Map { incarnation, sent_ns: None, entries: entries.clone() };
            self.post(CONTROL, node, Partition(0), parcel);
        }
    }

    fn learn(
        &mut self,
        at: NodeId,
        sent_ns: Option<u64>,
        entries: Vec<(Partition, cluster::map::Entry)>,
    ) {
        for (partition, entry) in entries {
            let node = self.nodes.get_mut(&at).expect("it is up");
            let (actions, sends) = node.learn(self.now_ns, partition, &entry, sent_ns);
            self.carry_out(at, partition, actions);
            self.send_ops(at, sends);
            self.watch(at, partition);
        }
    }

    fn tick(&mut self, at: NodeId, incarnation: Incarnation) {
        let now_ns = self.now_ns;
        let Some(node) = self.nodes.get_mut(&at) else { return };
        if !node.is_up || node.incarnation != incarnation {
            return;
        }
        let count = node.replicas.len();
        let (mut sends, mut endings) = (Vec::new(), Vec::new());
        let now = node.now(now_ns);
        node.session.tick(now, &mut sends, &mut endings);
        for place in 0..count {
            let partition = Partition(place as u16);
            let evicts = !self.is_healed && self.rng.chance(1, 500);
            let node = self.nodes.get_mut(&at).expect("it is up");
            let mut actions = node.tick(now_ns, partition);
            if evicts {
                actions.extend(node.evict(now_ns, partition));
            }
            self.carry_out(at, partition, actions);
            self.watch(at, partition);
        }
        self.send_ops(at, sends);
        self.end(at, endings);
        self.at(TICK_NS, Event::Tick(at, incarnation));
    }

    fn heartbeat(&mut self, at: NodeId, incarnation: Incarnation) {
        let Some(node) = self.nodes.get(&at) else { return };
        if !node.is_up || node.incarnation != incarnation {
            return;
        }
        let sent_ns = node.now(self.now_ns).mono_ns;
        let parcel = Parcel::Heartbeat { node: at, incarnation, sent_ns };
        self.post(at, CONTROL, Partition(0), parcel);
        self.at(HEARTBEAT_NS, Event::Heartbeat(at, incarnation));
    }

    fn end(&mut self, at: NodeId, endings: Vec<(u64, Ending)>) {
        for (token, ending) in endings {
            let number = token as usize;
            let call = &mut self.calls[number];
            call.ended = match ending {
                Ending::Done(result) => Ended::Done(Answer::decode(&result)),
                Ending::NotApplied(_) => Ended::NotApplied,
                Ending::Unknown => Ended::Unknown,
            };
            // What may still be done at any time has not ended.
            if call.ended != Ended::Unknown {
                call.ended_ns = self.now_ns;
            }
            let call = *call;
            if let (Verb::Hold(_), Ended::Done(answer)) = (call.verb, call.ended)
                && answer.lease != 0
            {
                let node = self.nodes.get_mut(&at).expect("its session ended it");
                node.leases.push((call.partition, call.key, answer.lease, answer.value));
            }
            let kind = match call.ended {
                Ended::Done(answer) => u64::from(answer.head) << 2,
                Ended::NotApplied => 1,
                Ended::Unknown | Ended::Pending => 2,
            };
            self.note([4, u64::from(at.0), token, kind], || {
                format!("{at} call {number} ends: {:?}", call.ended)
            });
        }
    }

    /// What must be true at every moment.
    fn watch(&mut self, at: NodeId, partition: Partition) {
        let node = &self.nodes[&at];
        let replica = &node.replicas[partition.index()];
        let load = replica.load();
        let options = &self.profile.options;
        let sessions = self.births as usize + 1;
        let bounds = [
            ("unacked", load.unacked, options.unacked_max + 1),
            ("held", load.held, options.held_max),
            ("waiting", load.waiting, 2 * options.unacked_max),
            ("reads", load.reads, 2 * options.reads_max),
            ("results", load.results, sessions * 2 * options.results_max),
        ];
        let over = bounds.iter().find(|(_, count, bound)| count > bound).copied();
        let is_primary = replica.part() == Part::Primary;
        let is_whole = is_primary || replica.part() == Part::Backup;
        let held =
            is_whole.then(|| (node.position(partition), node.payloads[partition.index()].digest()));
        let term = replica.term();
        let route = replica.entry().route();
        let is_older = node.terms.get(partition.index()).is_some_and(|seen| *seen > term);
        if let Some((what, count, bound)) = over {
            self.violation(format!(
                "{at} {partition}: {count} {what}, at most {bound} are allowed"
            ));
        }
        if is_older {
            self.violation(format!("{at} {partition}: the term went back to {}", term.0));
        }
        if let Some(seen) =
            self.nodes.get_mut(&at).and_then(|node| node.terms.get_mut(partition.index()))
        {
            *seen = term;
        }
        if let Some((position, digest)) = held {
            let known = *self.held.entry((partition, position)).or_insert(digest);
            if known != digest {
                self.violation(format!("{at} {partition}: another state at {position:?}"));
            }
        }
        if let (true, Some(route)) = (is_primary, route)
            && route.term == term
        {
            let known = *self.primaries.entry((partition, term.0)).or_insert(route.primary);
            if known != route.primary || known.node != at {
                self.violation(format!("{partition} has two primaries in term {}", term.0));
            }
        }
    }
}
