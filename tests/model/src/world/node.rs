//! A node: its clocks, its copies, its session.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use cluster::map::Entry;
use cluster::partition_header::PartitionHeader;
use cluster::replica::{
    AckMode, Action, Effect, Kind, Machine as _, Now, Op, Options, Position, Replica, Send,
    Session, SessionId, SessionOptions, Turn,
};
use cluster::{Incarnation, NodeId, Partition, Term};

use crate::journal::Journal;
use crate::network::Parcel;
use crate::payload::Payload;

/// Where wall clocks begin: twelve years after the origin that all share, for some are ten years back.
const ORIGIN_NS: i128 = 378_000_000_000_000_000;
/// Wall clocks are read to so many nanoseconds, some finely and some as a timer ticks.
const GRAINS_NS: [i128; 4] = [1, 1_000_000, 4_000_000, 15_625_000];
/// Each reading of a wall clock is off by chance, by less than this.
const JITTER_NS: u64 = 2_000_000;

pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) birth: u128,
    pub(crate) incarnation: Incarnation,
    pub(crate) is_up: bool,
    /// How much faster than true time its clocks run, in millionths.
    pub(super) rate_ppm: i64,
    /// How far its wall clock is ahead.
    pub(super) skew_ns: i64,
    pub(crate) replicas: Vec<Replica>,
    headers: Vec<PartitionHeader>,
    /// The last contact to the controller that its copies know, each.
    contacts_ns: Vec<u64>,
    pub(crate) payloads: Vec<Payload>,
    pub(super) session: Session,
    serves_for_ns: u64,
    /// The highest term seen by each copy.
    pub(super) terms: Vec<Term>,
    /// Holds to settle: partition, key, lease, units.
    pub(super) leases: Vec<(Partition, u8, u64, u64)>,
}

impl Node {
    #[expect(clippy::too_many_arguments, reason = "what a life of a node begins with")]
    pub(super) fn new(
        id: NodeId,
        birth: u128,
        incarnation: Incarnation,
        clocks: (i64, i64),
        partitions: usize,
        options: Options,
        journal: &Rc<RefCell<Journal>>,
        true_ns: u64,
    ) -> Self {
        let session = SessionId { node: id, incarnation, core: 0 };
        let mut node = Self {
            id,
            birth,
            incarnation,
            is_up: true,
            rate_ppm: clocks.0,
            skew_ns: clocks.1,
            replicas: Vec::new(),
            headers: Vec::new(),
            contacts_ns: Vec::new(),
            payloads: Vec::new(),
            session: Session::new(session, SessionOptions::default()),
            serves_for_ns: options.serves_for_ns(),
            terms: vec![Term(0); partitions],
            leases: Vec::new(),
        };
        let now = node.now(true_ns);
        for at in 0..partitions {
            let partition = Partition(at as u16);
            node.replicas.push(Replica::new(partition, id, incarnation, options, now));
            node.headers.push(PartitionHeader::default());
            node.contacts_ns.push(now.mono_ns);
            node.payloads.push(Payload::new(Rc::clone(journal), options.bug));
        }
        node
    }

    /// What its clocks show.
    pub(crate) fn now(&self, true_ns: u64) -> Now {
        let run = i128::from(true_ns) * (1_000_000 + i128::from(self.rate_ppm)) / 1_000_000;
        let grain = GRAINS_NS[self.id.0 as usize % GRAINS_NS.len()];
        // Any number will do that looks as if drawn, and is the same for the same time.
        let jitter = true_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let wall = ORIGIN_NS + run + i128::from(self.skew_ns) + i128::from(jitter % JITTER_NS);
        let wall = wall / grain * grain;
        let ns = |time: i128| u64::try_from(time).expect("a run is short");
        Now { mono_ns: ns(run), wall_ns: ns(wall) }
    }

    /// The last record of a copy.
    pub(crate) fn position(&self, partition: Partition) -> Position {
        self.replicas[partition.index()].position(&self.headers[partition.index()])
    }

    /// A hold of this node's clients that is not settled.
    pub(super) fn lease(&mut self, partition: Partition, key: u8) -> Option<(u64, u64)> {
        let place = self.leases.iter().position(|lease| (lease.0, lease.1) == (partition, key))?;
        let (_, _, lease, units) = self.leases.swap_remove(place);
        Some((lease, units))
    }

    fn turn<R>(
        &mut self,
        true_ns: u64,
        partition: Partition,
        act: impl FnOnce(&mut Replica, &mut Turn<'_, Payload>) -> R,
    ) -> Vec<Action> {
        let now = self.now(true_ns);
        let mut actions = Vec::new();
        let machine = &mut self.payloads[partition.index()];
        let mut turn = Turn { now, machine, actions: &mut actions };
        let replica = &mut self.replicas[partition.index()];
        let header = &self.headers[partition.index()];
        replica.close(header, || ());
        act(replica, &mut turn);
        replica.open(header);
        actions
    }

    /// Gives a message to the copy it is for.
    pub(super) fn take(
        &mut self,
        true_ns: u64,
        parcel: Parcel,
    ) -> Option<(Partition, Vec<Action>)> {
        let mono_ns = self.now(true_ns).mono_ns;
        match parcel {
            Parcel::Copy { partition, from, to, term, message } => {
                let actions = self.turn(true_ns, partition, |replica, turn| {
                    replica.receive(turn, from, to, term, message);
                });
                Some((partition, actions))
            }
            Parcel::Op { partition, term, session, seq, first_unacked, kind, ack, left_ns, op } => {
                let deadline_ns = mono_ns + left_ns;
                let op = Op { term, session, seq, first_unacked, kind, ack, deadline_ns, op };
                let actions =
                    self.turn(true_ns, partition, |replica, turn| replica.operate(turn, op));
                Some((partition, actions))
            }
            Parcel::Settle { partition, term, session, first_unacked } => {
                let actions = self.turn(true_ns, partition, |replica, turn| {
                    replica.settle(turn, term, session, first_unacked);
                });
                Some((partition, actions))
            }
            _ => None,
        }
    }

    /// Does an operation of its own if that can be answered at once: its result.
    pub(super) fn at_once(
        &mut self,
        true_ns: u64,
        partition: Partition,
        kind: Kind,
        ack: AckMode,
        op: &[u8],
    ) -> Option<(Bytes, Vec<Action>)> {
        if self.session.is_waiting(partition) {
            return None;
        }
        let now = self.now(true_ns);
        let silence = now.mono_ns.saturating_sub(self.contacts_ns[partition.index()]);
        if silence <= self.serves_for_ns
            && let Some(at) = self.headers[partition.index()].next(now, false)
        {
            let mut effect = Effect::default();
            self.payloads[partition.index()].apply(at, op, &mut effect);
            return Some((effect.take().1, Vec::new()));
        }
        let mut result = None;
        let actions = self.turn(true_ns, partition, |replica, turn| {
            replica.at_once(turn, kind, ack, |payload, at, is_copied| {
                let mut effect = Effect::default();
                payload.apply(at, op, &mut effect);
                let (write, bytes) = effect.take();
                result = Some(bytes);
                write.filter(|_| is_copied)
            });
        });
        Some((result?, actions))
    }

    pub(super) fn tick(&mut self, true_ns: u64, partition: Partition) -> Vec<Action> {
        self.turn(true_ns, partition, Replica::tick)
    }

    /// Room is needed: the plain item goes.
    pub(super) fn evict(&mut self, true_ns: u64, partition: Partition) -> Vec<Action> {
        let name = Payload::plain_name();
        let mut may = false;
        let actions = self.turn(true_ns, partition, |replica, turn| {
            may = replica.change(turn, Bytes::copy_from_slice(&name), None);
        });
        if may {
            self.payloads[partition.index()].install(0, &name, None);
        }
        actions
    }

    /// News of the map.
    pub(super) fn learn(
        &mut self,
        true_ns: u64,
        partition: Partition,
        entry: &Entry,
        sent_ns: Option<u64>,
    ) -> (Vec<Action>, Vec<Send>) {
        let mut sends = Vec::new();
        let now = self.now(true_ns);
        let actions = self.turn(true_ns, partition, |replica, turn| {
            if let Some(sent_ns) = sent_ns {
                replica.contact(sent_ns);
            }
            replica.learn(turn, entry);
        });
        let contact_ns = &mut self.contacts_ns[partition.index()];
        *contact_ns = sent_ns.unwrap_or(0).max(*contact_ns);
        if let Some(route) = entry.route() {
            self.session.learn(now, partition, route, &mut sends);
        }
        (actions, sends)
    }
}

/// An entry in one line.
pub(super) fn describe(entry: &Entry) -> String {
    let copies = |copies: &[cluster::CopyId]| {
        copies.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    };
    format!(
        "term {} ver {} primary {} in-sync {} learner {} transfer {}",
        entry.term.0,
        entry.ver,
        copies(entry.primary.as_slice()),
        copies(&entry.in_sync),
        copies(entry.learner.as_slice()),
        copies(entry.transfer_to.as_slice()),
    )
}
