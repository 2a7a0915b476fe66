//! A worker's way from its clients to whoever owns a key.
//!
//! Here: the worker's session, who waits for which answer. In `exchange` frames to and from other nodes. Not here:
//! what clients ask (`talk`), the order in which they are told (`replies`).

mod away;
mod exchange;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cluster::id::{Incarnation, NodeId, Partition, Term};
use cluster::message::Frame;
use cluster::replica::{
    Ending, Kind, Now, Refusal, Reply, Send, Session, SessionId, SessionOptions,
};
use slab::Slab;

use super::copies::{Hands, Work, is_on};
use super::degraded::Debts;
use super::delivery::{Client, Delivery, Use, Waiter, text_of};
use super::family::{Ended, Family};
use super::gather::{Gathers, take_part};
use super::links::Arrival;
use super::machine::partition_of;
use super::replies::Replies;
use super::{Inbound, Node};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::limits::InForce;
use crate::scratch::Scratch;
use crate::service::Service;
use crate::session::Round;

/// An operation is tried for so long. Then the client hears that it was not done, or may not have
/// been.
const DEADLINE_NS: u64 = 1_000_000_000;
/// Most operations of a worker that are not answered.
const WAITING_MAX: usize = 65_536;

/// What a session was told of a partition.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    /// The term of the newest route.
    term: Term,
    /// The generation of the map in which that was looked at last.
    generation: Option<u64>,
}

/// The operations of one worker.
pub(crate) struct Front {
    node: Arc<Node>,
    core: u16,
    session: Session,
    is_identified: bool,
    /// What the session was told of each partition.
    told: Vec<Told>,
    /// Operations done here at once since the last round.
    at_once: u64,
    waiters: Slab<Waiter>,
    gathers: Gathers,
    sends: VecDeque<Send>,
    /// What the session said in one call; empty between calls.
    said: Vec<Send>,
    endings: Vec<(u64, Ending)>,
    /// What leaves for each node at the end of the round.
    bursts: BTreeMap<NodeId, Vec<Frame>>,
    work: Work,
    /// Data links that the worker is to take over.
    pub(crate) arrivals: Vec<Arrival>,
    /// Whose turn it is.
    pub(crate) client: Client,
    /// That client may change the cluster.
    pub(crate) is_operator: bool,
    /// What clients are to be told.
    pub(crate) deliveries: Vec<Delivery>,
    pub(super) debts: Debts,
    /// Until when an owner is taken to be out of reach, by partition.
    away_until_ns: Vec<u64>,
    is_carrying: bool,
    /// Clients that wait for the node to have a place in a cluster, their places, and until when.
    starting: Vec<(Client, u64, u64)>,
    started_ns: Option<u64>,
    families: Slab<Family>,
    /// Those of which all parts are there.
    ended: Vec<usize>,
    generation: u64,
    ticks: u64,
}

/// What a worker lends its front for the time of a call.
pub(crate) struct Lent<'a> {
    pub(crate) service: &'a Service,
    pub(crate) counters: &'a Counters,
    pub(crate) now: Now,
    pub(crate) in_force: &'a InForce,
    pub(crate) worker: usize,
    pub(crate) scratch: &'a mut Scratch,
}

impl Lent<'_> {
    /// What a worker works on copies with.
    fn hands<'h>(&'h mut self, node: &'h Node, work: &'h mut Work, core: u16) -> Hands<'h> {
        Hands {
            service: self.service,
            node,
            now: self.now,
            counters: self.counters,
            in_force: self.in_force,
            worker: self.worker,
            scratch: self.scratch,
            work,
            core: Some(core),
        }
    }

    /// A round in which a client is told something, and nothing is asked of any node. Counts that are
    /// this node's alone run with its monotonic clock.
    pub(super) fn round(&mut self) -> Round<'_> {
        let mono = engine::Nanos(self.now.mono_ns);
        let now = engine::Now { mono, unix_ms: self.now.wall_ns / 1_000_000 };
        let counters = self.counters;
        Round::of_key(self.service, counters, now, self.in_force, self.scratch, self.worker)
    }
}

/// The time of a round as copies take it.
pub(crate) fn node_now(clock: &Clock, now: engine::Now) -> Now {
    Now { mono_ns: now.mono.0, wall_ns: clock.calendar_ns(now.mono) }
}

impl Front {
    pub(crate) fn new(node: Arc<Node>, core: u16) -> Self {
        let id = SessionId { node: NodeId::default(), incarnation: Incarnation::default(), core };
        Self {
            node,
            core,
            session: Session::new(id, SessionOptions::default()),
            is_identified: false,
            told: Vec::new(),
            at_once: 0,
            waiters: Slab::new(),
            gathers: Gathers::default(),
            sends: VecDeque::new(),
            said: Vec::new(),
            endings: Vec::new(),
            bursts: BTreeMap::new(),
            work: Work::default(),
            arrivals: Vec::new(),
            client: Client::default(),
            is_operator: false,
            deliveries: Vec::new(),
            debts: Debts::default(),
            away_until_ns: Vec::new(),
            is_carrying: false,
            starting: Vec::new(),
            started_ns: None,
            families: Slab::new(),
            ended: Vec::new(),
            generation: 0,
            ticks: 0,
        }
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Which of the node's workers this is of.
    pub(super) fn core(&self) -> u16 {
        self.core
    }

    /// Whether no more operations may be made for now.
    pub(crate) fn is_full(&self) -> bool {
        self.waiters.len() >= WAITING_MAX
    }

    /// A token that a task answers by, through the worker's inbox.
    pub(crate) fn wait_for_task(&mut self, place: u64, used: Use) -> u64 {
        self.wait_for(Partition::default(), place, used)
    }

    /// Notes that the client whose turn it is waits; the token by which it is told.
    fn wait_for(&mut self, partition: Partition, place: u64, used: Use) -> u64 {
        self.waiters.insert(Waiter { client: self.client, place, used, partition }) as u64
    }

    /// The partition of keys of this hash, once there is a cluster.
    pub(super) fn partition(&self, hash: u64) -> Option<Partition> {
        self.node.space().map(|space| partition_of(space, hash))
    }

    /// Sends an operation to whoever is primary. Its answer comes as a delivery, maybe before this
    /// returns.
    pub(crate) fn submit(
        &mut self,
        lent: &mut Lent<'_>,
        partition: Partition,
        kind: Kind,
        op: Bytes,
        place: u64,
        used: Use,
    ) {
        self.submit_until(lent, DEADLINE_NS, partition, kind, op, place, used);
    }

    /// As [`Front::submit`], tried for `for_ns`.
    #[expect(clippy::too_many_arguments, reason = "the parts of an operation")]
    pub(super) fn submit_until(
        &mut self,
        lent: &mut Lent<'_>,
        for_ns: u64,
        partition: Partition,
        kind: Kind,
        op: Bytes,
        place: u64,
        used: Use,
    ) {
        self.let_go(lent, partition);
        let token = self.wait_for(partition, place, used);
        self.submit_for(lent, for_ns, partition, kind, op, token);
    }

    /// As [`Front::submit`], of a request that may share an operation with others on the key of this
    /// hash: it leaves at the end of the round at the latest.
    pub(super) fn gather(
        &mut self,
        lent: &mut Lent<'_>,
        hash: u64,
        words: &[u8],
        place: u64,
        used: Use,
    ) {
        let partition = self.partition(hash).unwrap_or_default();
        if self.gathers.is_full(partition, hash, words) {
            self.let_go(lent, partition);
        }
        let token = self.wait_for(partition, place, used);
        self.gathers.add(partition, hash, token, words);
    }

    /// What was gathered for a partition leaves before anything else does.
    fn let_go(&mut self, lent: &mut Lent<'_>, partition: Partition) {
        let Some(gather) = self.gathers.take(partition) else { return };
        let token = gather.waiting().unwrap_or_else(|tokens| {
            let used = Use::Together(tokens);
            let waiter = Waiter { client: Client::default(), place: 0, used, partition };
            self.waiters.insert(waiter) as u64
        });
        self.submit_for(lent, DEADLINE_NS, partition, Kind::Write, gather.operation(), token);
    }

    fn submit_for(
        &mut self,
        lent: &mut Lent<'_>,
        for_ns: u64,
        partition: Partition,
        kind: Kind,
        op: Bytes,
        token: u64,
    ) {
        self.learn(lent.now, partition);
        if for_ns <= DEADLINE_NS && self.is_out_of_reach(partition) {
            // Nobody waits for it: this was certainly not done.
            self.endings.push((token, Ending::NotApplied(Refusal::Unreachable)));
            return self.carry_out(lent);
        }
        let deadline_ns = lent.now.mono_ns + for_ns;
        let ack = self.node.options.ack;
        let is_taken = self.session.submit(
            lent.now,
            partition,
            kind,
            ack,
            deadline_ns,
            op,
            token,
            &mut self.said,
        );
        self.sends.extend(self.said.drain(..));
        if !is_taken {
            self.endings.push((token, Ending::NotApplied(Refusal::Busy)));
        }
        self.carry_out(lent);
    }

    /// Runs `work` on a key of which this node is primary, if it can be answered at once.
    pub(crate) fn at_once(
        &mut self,
        lent: &mut Lent<'_>,
        kind: Kind,
        key: &[u8],
        hash: u64,
        work: impl FnOnce(&mut Round<'_>),
    ) -> bool {
        let Some(space) = self.node.space() else { return false };
        let partition = partition_of(space, hash);
        // What this worker asked before comes first.
        if self.session.is_waiting(partition) || self.gathers.contains(partition) {
            return false;
        }
        let mut hands = lent.hands(&self.node, &mut self.work, self.core);
        let is_done = space.copies.at_once(&mut hands, partition, kind, |keys, at, is_copied| {
            keys.at_once(at, is_copied, key, hash, work)
        });
        self.at_once += u64::from(is_done);
        is_done
    }

    /// Counts requests that were served from headers.
    pub(crate) fn note_served(&mut self, count: u64) {
        self.at_once += count;
    }

    /// Fetches the memory that operations on keys of these hashes need.
    pub(crate) fn prefetch(&self, hashes: impl Iterator<Item = u64> + Clone) {
        if let Some(space) = self.node.space() {
            space.copies.prefetch(hashes.map(|hash| partition_of(space, hash)));
        }
    }

    /// Charges several keys, each by its owner.
    pub(super) fn submit_family(&mut self, lent: &mut Lent<'_>, family: Family) {
        let operations = family.operations();
        let number = self.families.insert(family);
        for (row, (partition, op)) in operations.into_iter().enumerate() {
            let used = Use::Step { family: number, row };
            self.submit(lent, partition, Kind::Write, op, 0, used);
        }
    }

    /// Tells the session where a partition is, if that is news.
    fn learn(&mut self, now: Now, partition: Partition) {
        let Some(space) = self.node.space() else { return };
        if !self.is_identified {
            let (node, incarnation) = self.node.me();
            self.session.identify(SessionId { node, incarnation, core: self.core });
            self.is_identified = true;
            self.told = vec![Told::default(); space.copies.len()];
            self.away_until_ns = vec![0; space.copies.len()];
        }
        // Read before the route: what is newer than that has a newer generation.
        let generation = Some(self.node.generation());
        let Some(told) = self.told.get_mut(partition.index()) else { return };
        if told.generation == generation {
            return;
        }
        let Some(route) = space.copies.route(partition) else { return };
        told.generation = generation;
        if route.term > told.term {
            told.term = route.term;
            self.session.learn(now, partition, route, &mut self.said);
            self.sends.extend(self.said.drain(..));
        }
    }

    /// Takes note of all that came for this worker since the last round.
    pub(crate) fn hear(&mut self, lent: &mut Lent<'_>) {
        let node = Arc::clone(&self.node);
        node.placer.set_now(engine::Nanos(lent.now.mono_ns));
        let Some(inbox) = node.inbox(self.core) else { return };
        inbox.look();
        while let Some(inbound) = inbox.pop() {
            match inbound {
                Inbound::Reply(partition, reply) => self.answered(lent.now, partition, reply),
                Inbound::Lost(lost) => {
                    self.session.resend(lent.now, lost, &mut self.said);
                    self.resend(&node);
                }
                Inbound::DataLink(arrival) => self.arrivals.push(*arrival),
                Inbound::Told(token, text) => self.endings.push((token, Ending::Done(text))),
            }
        }
        self.end_start(lent.now);
        let generation = node.generation();
        if generation != self.generation {
            self.generation = generation;
            let waiting: Vec<Partition> = self.session.waiting().collect();
            for partition in waiting {
                self.learn(lent.now, partition);
            }
        }
        let ticks = node.ticks();
        if ticks != self.ticks {
            self.ticks = ticks;
            self.session.tick(lent.now, &mut self.said, &mut self.endings);
            self.resend(&node);
            self.tell_debts(lent);
        }
        self.carry_out(lent);
    }

    fn resend(&mut self, node: &Node) {
        node.figures.resent.fetch_add(self.said.len() as u64, Ordering::Relaxed);
        self.sends.extend(self.said.drain(..));
    }

    fn answered(&mut self, now: Now, partition: Partition, reply: Reply) {
        self.session.answered(now, partition, reply, &mut self.said, &mut self.endings);
        self.sends.extend(self.said.drain(..));
    }

    /// Does what the session asks: here where this node is primary, else at the end of the round.
    ///
    /// What this brings about is done by the same call, however long that goes on: one call within
    /// another for each of many requests would go deeper than a thread's stack.
    pub(crate) fn carry_out(&mut self, lent: &mut Lent<'_>) {
        if self.is_carrying {
            return;
        }
        self.is_carrying = true;
        loop {
            self.carry_out_sends(lent);
            self.deliver(lent);
            self.end_families(lent);
            if self.endings.is_empty() && (self.sends.is_empty() || self.node.space().is_none()) {
                break;
            }
        }
        self.is_carrying = false;
    }

    fn carry_out_sends(&mut self, lent: &mut Lent<'_>) {
        let node = Arc::clone(&self.node);
        let Some(space) = node.space() else { return };
        let me = node.me();
        while let Some(send) = self.sends.pop_front() {
            let to = match &send {
                Send::Op { to, .. } | Send::Settle { to, .. } => *to,
            };
            if !is_on(to, me) {
                self.burst(to.node, send);
                continue;
            }
            let mut hands = lent.hands(&node, &mut self.work, self.core);
            match send {
                Send::Op { partition, op, .. } => {
                    node.figures.direct.fetch_add(1, Ordering::Relaxed);
                    space.copies.operate(&mut hands, partition, op);
                }
                Send::Settle { partition, term, first_unacked, .. } => {
                    let id = self.session.id();
                    space.copies.settle(&mut hands, partition, term, id, first_unacked);
                }
            }
            self.take_own_answers(lent.now);
        }
    }

    fn end_families(&mut self, lent: &mut Lent<'_>) {
        while let Some(number) = self.ended.pop() {
            let Some(family) = self.families.try_remove(number) else { continue };
            let (ended, back) = family.end(lent);
            let delivery = match ended {
                Ended::Told(delivery) => delivery,
                Ended::Failed { client, place, words, quiet, error } => {
                    let error = if quiet { "" } else { error };
                    let text = self.answer_degraded(lent, &words, error);
                    Delivery::said(client, place, text)
                }
            };
            self.deliveries.push(delivery);
            for (partition, op) in back {
                self.submit(lent, partition, Kind::Write, op, 0, Use::Nothing);
            }
        }
    }

    fn deliver(&mut self, lent: &mut Lent<'_>) {
        let mut endings = std::mem::take(&mut self.endings);
        for (token, ending) in endings.drain(..) {
            let Some(waiter) = self.waiters.try_remove(token as usize) else { continue };
            if let Use::Together(tokens) = waiter.used {
                self.note_reach(lent.now, waiter.partition, &ending);
                self.part(&tokens, ending);
                continue;
            }
            match &ending {
                Ending::Done(_) => {}
                Ending::NotApplied(_) => {
                    self.node.figures.not_applied.fetch_add(1, Ordering::Relaxed);
                }
                Ending::Unknown => {
                    self.node.figures.unknown.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.note_reach(lent.now, waiter.partition, &ending);
            match waiter.used {
                Use::Debt(number) => {
                    self.debt_ended(lent, number, &ending);
                    continue;
                }
                Use::Hold(number) => {
                    self.hold_told(number, &ending);
                    continue;
                }
                _ => {}
            }
            if let Use::Limited { quiet, words } = &waiter.used
                && !matches!(ending, Ending::Done(_))
            {
                let (quiet, words) = (*quiet, words.clone());
                let Err(error) = text_of(ending) else { continue };
                self.answer_failed(lent, &waiter, &words, quiet, error);
                continue;
            }
            let Waiter { client, place, used, .. } = waiter;
            if let Use::Step { family, row } = used {
                if let Some(kept) = self.families.get_mut(family)
                    && kept.note(row, text_of(ending))
                {
                    self.ended.push(family);
                }
                continue;
            }
            self.deliveries.push(Delivery { client, place, used, ending });
        }
        if self.endings.is_empty() {
            self.endings = endings;
        }
    }

    /// Tells each of several requests how it ended.
    fn part(&mut self, tokens: &[u64], ending: Ending) {
        let Ending::Done(mut rest) = ending else {
            self.endings.extend(tokens.iter().map(|token| (*token, ending.clone())));
            return;
        };
        for token in tokens {
            let ending = take_part(&mut rest).map_or(Ending::Unknown, Ending::Done);
            self.endings.push((*token, ending));
        }
    }

    /// Gives a client what came for it while it had its turn.
    pub(crate) fn give_to(&mut self, client: Client, replies: &mut Replies) {
        if self.deliveries.is_empty() {
            return;
        }
        for delivery in self.deliveries.extract_if(.., |delivery| delivery.client == client) {
            delivery.give(replies);
        }
    }
}
