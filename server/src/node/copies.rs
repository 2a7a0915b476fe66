//! The copies that this node holds, and the threads' way to them.
//!
//! Here: a place for each partition behind a lock of its own, what any thread does there, carrying
//! out what a copy asks for. Not here: what a copy does (`cluster::replica`), what its keys are
//! (`machine`), lanes (`peers`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use cluster::id::{CopyId, Incarnation, NodeId, Partition, Term};
use cluster::map::Entry;
use cluster::map::command::Change;
use cluster::message::Frame;
use cluster::partition_header::PartitionHeader;
use cluster::replica::{
    Action, At, Kind, Message, Now, Op, Options, Outcome, Part, PartitionTime, Refusal, Replica,
    Reply, Route, SessionId, Turn, Write,
};
use crossbeam::queue::SegQueue;
use engine::{Nanos, prefetch};
use parking_lot::{Mutex, MutexGuard};

use super::Node;
use super::links::Touched;
use super::machine::{Buffers, Keys, ORIGIN_NS, items_time, range_of};
use crate::counters::Counters;
use crate::limits::InForce;
use crate::scratch::Scratch;
use crate::service::Service;

/// What a node knows of one partition.
#[derive(Default)]
struct Slot {
    route: Option<Route>,
    /// None: this node never held a copy of it.
    replica: Option<Box<Replica>>,
    /// The partition's time, as the replica knows it.
    time: PartitionTime,
}

/// All partitions.
pub(crate) struct Copies {
    slots: Box<[Mutex<Slot>]>,
    /// The header of each. It is closed while a thread works on the replica.
    headers: Box<[PartitionHeader]>,
    /// When the last beat was sent that the controller answered, once what the map said then has reached all
    /// copies; on the monotonic clock. 0: there was none.
    contact_ns: AtomicU64,
    /// See [`Options::serves_for_ns`].
    serves_for_ns: AtomicU64,
    /// Those that somebody waits for: ticked often.
    busy: SegQueue<Partition>,
    is_busy: Box<[AtomicBool]>,
    /// What copies ask of the controller.
    asks: Mutex<BTreeMap<Partition, Change>>,
    options: Mutex<Options>,
    pub(crate) figures: CopyFigures,
}

/// What copies did, since the start.
#[derive(Debug, Default)]
pub(crate) struct CopyFigures {
    /// Operations that other nodes sent here.
    pub(crate) received: AtomicU64,
}

/// How many copies a node holds, by their part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) primaries: usize,
    pub(crate) backups: usize,
    pub(crate) learners: usize,
    /// Operations that wait for a handover.
    pub(crate) held: usize,
    /// Records that some copy may lack.
    pub(crate) unacked: usize,
}

/// What a thread brings along to work on copies.
pub(crate) struct Hands<'a> {
    pub(crate) service: &'a Service,
    pub(crate) node: &'a Node,
    pub(crate) now: Now,
    pub(crate) counters: &'a Counters,
    pub(crate) in_force: &'a InForce,
    pub(crate) worker: usize,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) work: &'a mut Work,
    /// The thread's own session: what is answered to it lands in `own`.
    pub(crate) core: Option<u16>,
}

/// Memory that a thread's work uses again and again.
#[derive(Default)]
pub(crate) struct Work {
    buffers: Buffers,
    actions: Vec<Action>,
    pub(crate) own: Vec<(Partition, Reply)>,
    /// Links that frames were appended to.
    pub(crate) touched: Touched,
}

impl Copies {
    pub(crate) fn new(partitions: usize, options: Options) -> Self {
        Self {
            slots: (0..partitions).map(|_| Mutex::default()).collect(),
            headers: (0..partitions).map(|_| PartitionHeader::default()).collect(),
            contact_ns: AtomicU64::new(0),
            serves_for_ns: AtomicU64::new(options.serves_for_ns()),
            busy: SegQueue::new(),
            is_busy: (0..partitions).map(|_| AtomicBool::new(false)).collect(),
            asks: Mutex::default(),
            options: Mutex::new(options),
            figures: CopyFigures::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The headers of all partitions; `None` if the last contact with the controller is too old to serve a
    /// batch from them.
    pub(crate) fn headers(&self, now_ns: u64) -> Option<&[PartitionHeader]> {
        let contact_ns = self.contact_ns.load(Ordering::Acquire);
        let silence_ns = now_ns.saturating_sub(contact_ns);
        let may = contact_ns > 0 && silence_ns <= self.serves_for_ns.load(Ordering::Relaxed);
        may.then_some(&self.headers)
    }

    /// Notes a contact: the controller answered a beat sent at `sent_ns`, and all copies know its map.
    pub(crate) fn contact(&self, sent_ns: u64) {
        self.contact_ns.fetch_max(sent_ns, Ordering::Release);
    }

    /// Locks a partition's slot and closes its header until [`Copies::after`].
    fn enter(&self, hands: &Hands<'_>, partition: Partition) -> Option<MutexGuard<'_, Slot>> {
        let mut slot = self.slots.get(partition.index())?.lock();
        if let Some(replica) = &mut slot.replica {
            replica.contact(self.contact_ns.load(Ordering::Acquire));
            let range = range_of(partition, hands.node.bits());
            replica.close(&self.headers[partition.index()], || {
                hands.service.shards().pass_through(range);
            });
        }
        Some(slot)
    }

    /// Where operations for a partition go, as far as is known here.
    pub(crate) fn route(&self, partition: Partition) -> Option<Route> {
        self.slots.get(partition.index())?.lock().route
    }

    /// What copies ask for: the newest wish of each, of partitions from `from` on first, up to `most`.
    pub(crate) fn asks(&self, from: Partition, most: usize) -> Vec<Change> {
        let mut asks = self.asks.lock();
        let later = asks.range(from..).map(|(partition, _)| *partition);
        let earlier = asks.range(..from).map(|(partition, _)| *partition);
        let chosen: Vec<Partition> = later.chain(earlier).take(most).collect();
        chosen.iter().filter_map(|partition| asks.remove(partition)).collect()
    }

    /// Whether there are such changes.
    pub(crate) fn has_asks(&self) -> bool {
        !self.asks.lock().is_empty()
    }

    /// Applies a map entry. Returns the node that it makes primary of a newer term, if it does.
    pub(crate) fn learn(
        &self,
        hands: &mut Hands<'_>,
        partition: Partition,
        entry: &Entry,
    ) -> Option<NodeId> {
        let mut slot = self.enter(hands, partition)?;
        let (node, incarnation) = hands.node.me();
        let route = entry.route();
        let before = slot.route;
        if route.is_some_and(|new| before.is_none_or(|old| new.term > old.term)) {
            slot.route = route;
        }
        let promoted = slot.route.filter(|new| before.is_some_and(|old| new.term > old.term));
        if slot.replica.is_none() && entry.copy_on(node, incarnation).is_some() {
            let replica =
                Replica::new(partition, node, incarnation, *self.options.lock(), hands.now);
            slot.replica = Some(Box::new(replica));
        }
        if let Some(replica) = &mut slot.replica {
            hands.with(partition, |turn| replica.learn(turn, entry));
            self.after(hands, partition, &mut slot);
        }
        promoted.map(|route| route.primary.node)
    }

    /// An operation, of this node's or another's session.
    pub(crate) fn operate(&self, hands: &mut Hands<'_>, partition: Partition, op: Op) {
        let Some(mut slot) = self.enter(hands, partition) else { return };
        let outcome = match &mut slot.replica {
            // It would wait for a copy in vain, and could not be taken back.
            Some(replica) if lacks_copy(hands.node, replica) => {
                Outcome::Refused(Refusal::Unreachable)
            }
            Some(replica) => {
                hands.with(partition, |turn| replica.operate(turn, op));
                self.after(hands, partition, &mut slot);
                return;
            }
            None => Outcome::NotOwner(slot.route),
        };
        let reply = Reply { term: op.term, seq: op.seq, outcome };
        drop(slot);
        hands.answer(partition, op.session, reply);
    }

    /// An operation of this thread's own session, if it can be answered at once; see
    /// [`Replica::at_once`].
    pub(crate) fn at_once(
        &self,
        hands: &mut Hands<'_>,
        partition: Partition,
        kind: Kind,
        work: impl FnOnce(&mut Keys<'_>, At, bool) -> Option<Write>,
    ) -> bool {
        let Some(mut slot) = self.enter(hands, partition) else { return false };
        let Some(replica) = &mut slot.replica else { return false };
        let (ack, mut is_done) = (hands.node.options.ack, false);
        hands.with(partition, |turn| is_done = replica.at_once(turn, kind, ack, work));
        self.after(hands, partition, &mut slot);
        is_done
    }

    /// Fetches the memory that operations on these partitions need, as [`crate::shards::Shards`] does
    /// that of keys.
    pub(crate) fn prefetch(&self, partitions: impl Iterator<Item = Partition> + Clone) {
        let slots = partitions.filter_map(|partition| self.slots.get(partition.index()));
        for slot in slots.clone() {
            prefetch(slot);
        }
        for slot in slots {
            if let Some(slot) = slot.try_lock()
                && let Some(replica) = &slot.replica
            {
                replica.lines().into_iter().for_each(prefetch);
            }
        }
    }

    /// A session has all its answers up to a number.
    pub(crate) fn settle(
        &self,
        hands: &mut Hands<'_>,
        partition: Partition,
        term: Term,
        session: SessionId,
        first_unacked: u64,
    ) {
        self.on(hands, partition, |replica, turn| {
            replica.settle(turn, term, session, first_unacked);
        });
    }

    /// What another copy says.
    pub(crate) fn receive(
        &self,
        hands: &mut Hands<'_>,
        partition: Partition,
        from: CopyId,
        to: CopyId,
        term: Term,
        message: Message,
    ) {
        self.on(hands, partition, |replica, turn| {
            replica.receive(turn, from, to, term, message);
        });
    }

    /// Whether somebody waits for a copy.
    pub(crate) fn is_any_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Ticks the copies that somebody waits for.
    pub(crate) fn tick_busy(&self, hands: &mut Hands<'_>) {
        for _ in 0..self.busy.len() {
            let Some(partition) = self.busy.pop() else { break };
            self.is_busy[partition.index()].store(false, Ordering::Release);
            #[expect(clippy::redundant_closure_for_method_calls, reason = "lifetimes want it")]
            self.on(hands, partition, |replica, turn| replica.tick(turn));
        }
    }

    /// Ticks the primaries of slice `part` of `parts` whose header is closed. `tick_busy` ticks those with waiting
    /// operations sooner.
    pub(crate) fn tick_slice(&self, hands: &mut Hands<'_>, part: usize, parts: usize) {
        for number in (part..self.slots.len()).step_by(parts) {
            if self.headers[number].is_open() {
                continue;
            }
            // Another thread may have opened the header since; `enter` closes it.
            let partition = Partition(number as u16);
            let Some(mut slot) = self.enter(hands, partition) else { continue };
            if let Some(replica) = &mut slot.replica
                && replica.part() == Part::Primary
            {
                hands.with(partition, |turn| replica.tick(turn));
                self.after(hands, partition, &mut slot);
            }
        }
    }

    /// The cluster's setting: see [`Options::lost_after_ns`].
    pub(crate) fn set_lost_after(&self, lost_after_ns: Option<u64>) {
        let mut options = self.options.lock();
        options.lost_after_ns = lost_after_ns;
        self.serves_for_ns.store(options.serves_for_ns(), Ordering::Relaxed);
        drop(options);
        for slot in &self.slots {
            if let Some(replica) = &mut slot.lock().replica {
                replica.set_lost_after(lost_after_ns);
            }
        }
    }

    /// Forgets the sessions of nodes that are no more.
    pub(crate) fn retain_sessions(&self, is_known: impl Fn(NodeId) -> bool) {
        for slot in &self.slots {
            if let Some(replica) = &mut slot.lock().replica {
                replica.retain_sessions(&is_known);
            }
        }
    }

    /// How many copies are here.
    pub(crate) fn held(&self) -> Held {
        let mut held = Held::default();
        for slot in &self.slots {
            let slot = slot.lock();
            let Some(replica) = &slot.replica else { continue };
            match replica.part() {
                Part::None => {}
                Part::Learner => held.learners += 1,
                Part::Backup => held.backups += 1,
                Part::Primary => held.primaries += 1,
            }
            let load = replica.load();
            held.held += load.held;
            held.unacked += load.unacked;
        }
        held
    }

    /// What the copies are.
    #[cfg(feature = "simulation")]
    pub(crate) fn sights(&self) -> Vec<Option<crate::simulation::CopySight>> {
        let sight = |(slot, header): (&Mutex<Slot>, &PartitionHeader)| {
            let slot = slot.lock();
            let replica = slot.replica.as_ref()?;
            Some(crate::simulation::CopySight {
                part: replica.part(),
                term: replica.term().0,
                position: replica.position(header),
                load: replica.load(),
            })
        };
        self.slots.iter().zip(&self.headers).map(sight).collect()
    }

    fn on(
        &self,
        hands: &mut Hands<'_>,
        partition: Partition,
        work: impl FnOnce(&mut Replica, &mut Turn<'_, Keys<'_>>),
    ) {
        let Some(mut slot) = self.enter(hands, partition) else { return };
        if let Some(replica) = &mut slot.replica {
            hands.with(partition, |turn| work(replica, turn));
            self.after(hands, partition, &mut slot);
        }
    }

    /// Carries out what a copy asked for, while it is locked: what copies say to each other must leave
    /// in order. Opens the header again if it may be.
    fn after(&self, hands: &mut Hands<'_>, partition: Partition, slot: &mut Slot) {
        let Some(replica) = &slot.replica else { return };
        let mut actions = std::mem::take(&mut hands.work.actions);
        for action in actions.drain(..) {
            match action {
                Action::Send { to, from, term, message } => {
                    hands.send(to.node, Frame::Copy { partition, to, from, term, message });
                }
                Action::Reply { to, reply } => hands.answer(partition, to, reply),
                Action::Ask(change) => {
                    self.asks.lock().insert(partition, change);
                    hands.node.wake_asks();
                }
            }
        }
        hands.work.actions = actions;
        if replica.is_busy() && !self.is_busy[partition.index()].swap(true, Ordering::AcqRel) {
            self.busy.push(partition);
            hands.node.want_ticks();
        }
        replica.open(&self.headers[partition.index()]);
        let time = replica.time(hands.now);
        if time != slot.time {
            slot.time = time;
            hands.tell_time(partition, time);
        }
    }
}

impl Hands<'_> {
    fn with(&mut self, partition: Partition, work: impl FnOnce(&mut Turn<'_, Keys<'_>>)) {
        let mut machine = Keys {
            service: self.service,
            counters: self.counters,
            in_force: self.in_force,
            worker: self.worker,
            scratch: self.scratch,
            buffers: &mut self.work.buffers,
            partition,
            bits: self.node.bits(),
            unix_ms: self.now.wall_ns / 1_000_000,
        };
        work(&mut Turn { now: self.now, machine: &mut machine, actions: &mut self.work.actions });
    }

    /// Tells the store what time it is in a partition, for the sweep and evictions. It is told while the slot is
    /// locked, so that no item of a partition that begins anew is looked at by its old time.
    fn tell_time(&self, partition: Partition, time: PartitionTime) {
        let (placer, number) = (&self.node.placer, u64::from(partition.0));
        match time {
            PartitionTime::Unknown => placer.set_time(number, Nanos(0)),
            PartitionTime::Told(pt_ns) => placer.set_time(number, items_time(pt_ns)),
            PartitionTime::Ahead(ahead_ns) => {
                placer.set_ahead(number, ahead_ns.wrapping_sub(ORIGIN_NS));
            }
        }
    }

    /// Sends a frame; [`Touched::flush`] of the thread's work brings it to the socket.
    fn send(&mut self, to: NodeId, frame: Frame) {
        self.node.send(to, frame, self.now.mono_ns, &mut self.work.touched);
    }

    /// Brings an answer to the session that waits for it.
    pub(super) fn answer(&mut self, partition: Partition, to: SessionId, reply: Reply) {
        let (node, incarnation) = self.node.me();
        if to.node != node {
            self.send(to.node, Frame::Reply { partition, to, reply });
        } else if to.incarnation != incarnation {
            // Of an earlier life of this node: nobody waits.
        } else if self.core == Some(to.core) {
            self.work.own.push((partition, reply));
        } else {
            self.node.tell(to.core, partition, reply);
        }
    }
}

/// Whether a primary is cut off from a copy that has to hold every change, and from most voters, who
/// alone could remove that copy.
fn lacks_copy(node: &Node, replica: &Replica) -> bool {
    node.ways.is_cut_off()
        && replica.part() == Part::Primary
        && replica.entry().in_sync.iter().any(|copy| node.ways.is_away(copy.node))
}

/// A copy of bytes of its own: what lies in a block that was read from a lane would keep all of it.
pub(crate) fn own_bytes(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// The life of a node that a copy is on.
pub(crate) fn is_on(copy: CopyId, me: (NodeId, Incarnation)) -> bool {
    (copy.node, copy.incarnation) == me
}
