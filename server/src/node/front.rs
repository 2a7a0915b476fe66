//! A worker's way from its clients to whoever owns a key, and from other nodes to the copies here.
//!
//! Here: who waits for which answer, the order of a round. In `plane` what was asked of owners and what waits for copies, in
//! `owner` operations that are done here, in `backup` what comes over links, in `away` owners in no reach. Not here: what
//! clients ask (`talk`), the order in which they are told (`replies`).

mod away;
mod backup;
mod common;
mod direct;
mod owner;
mod plane;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{BufMut as _, Bytes, BytesMut};
use cluster::contact::LastContact;
use cluster::frames::{ExceptionKind, Request, sort};
use cluster::id::Partition;
use cluster::op_stream::Submitted;
use cluster::replica::{AckMode, Now, Refusal};
use slab::Slab;

pub(crate) use self::common::Common;
use self::owner::line_of;
use self::plane::{EndedOp, Plane};
use super::copies::{Hands, Work};
use super::degraded::Debts;
use super::delivery::{Client, Delivery, Ending, Kind, Run, Use, Waiter, text_of};
use super::family::{Ended, Family};
use super::links::Arrival;
use super::machine::{Sort, partition_of};
use super::replies::Replies;
use super::{Inbound, Node};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::limits::InForce;
use crate::scratch::Scratch;
use crate::service::Service;
use crate::session::Round;

/// An operation is tried for so long while its owner's link makes no progress. Then the client hears that it was not done, or may
/// not have been.
const DEADLINE_NS: u64 = 1_000_000_000;
/// Most operations of a worker that are not answered.
const WAITING_MAX: usize = 65_536;
/// Texts longer than this are not kept.
const TEXTS_KEPT_BYTES: usize = 1 << 20;

/// The operations of one worker.
pub(crate) struct Front {
    node: Arc<Node>,
    core: u16,
    /// What the round is judged by.
    contact: LastContact,
    plane: Option<Box<Plane>>,
    /// Operations done here by batches since the last round.
    at_once: u64,
    waiters: Slab<Waiter>,
    /// What ended in one call; empty between calls.
    ended_ops: Vec<EndedOp>,
    endings: Vec<(Waiter, Ending)>,
    /// The answers that `runs` are bytes of.
    texts: Vec<u8>,
    pub(crate) runs: Vec<Run>,
    work: Work,
    /// Those of the frame that is being served.
    requests: Vec<Request>,
    /// Whose turn it is.
    pub(crate) client: Client,
    /// That client may change the cluster.
    pub(crate) is_operator: bool,
    /// What clients are to be told.
    pub(crate) deliveries: Vec<Delivery>,
    pub(super) debts: Debts,
    /// Until when an owner is taken to be out of reach, by partition.
    away_until_ns: Vec<u64>,
    is_delivering: bool,
    /// Clients that wait for the node to have a place in a cluster, their places, and until when.
    starting: Vec<(Client, u64, u64)>,
    started_ns: Option<u64>,
    families: Slab<Family>,
    /// Those of which all parts are there.
    ended: Vec<usize>,
    /// Connections to other nodes that this worker is to take over.
    pub(crate) arrivals: Vec<Arrival>,
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
    fn hands<'h>(
        &'h mut self,
        node: &'h Node,
        contact: LastContact,
        work: &'h mut Work,
    ) -> Hands<'h> {
        Hands {
            service: self.service,
            node,
            now: self.now,
            contact,
            counters: self.counters,
            in_force: self.in_force,
            worker: self.worker,
            scratch: self.scratch,
            work,
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

/// An operation of these words.
pub(super) fn operation(sort: Sort, words: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(1 + words.len());
    bytes.put_u8(sort as u8);
    bytes.put_slice(words);
    bytes.freeze()
}

/// What a front works with in a client's turn.
pub(crate) fn lent<'r>(round: &'r mut Round<'_>) -> Lent<'r> {
    Lent {
        service: round.service,
        counters: round.counters,
        now: node_now(round.service.clock(), round.now),
        in_force: round.in_force,
        worker: round.worker,
        scratch: round.scratch,
    }
}

/// A common request for its owner.
pub(crate) struct Asking<'l> {
    pub(crate) partition: Partition,
    /// See `frames::sort`.
    pub(crate) sort: u8,
    pub(crate) line: &'l [u8],
}

impl Front {
    pub(crate) fn new(node: Arc<Node>, core: u16) -> Self {
        Self {
            node,
            core,
            contact: LastContact::default(),
            plane: None,
            at_once: 0,
            waiters: Slab::new(),
            ended_ops: Vec::new(),
            endings: Vec::new(),
            texts: Vec::new(),
            runs: Vec::new(),
            work: Work::default(),
            requests: Vec::new(),
            client: Client::default(),
            is_operator: false,
            deliveries: Vec::new(),
            debts: Debts::default(),
            away_until_ns: Vec::new(),
            is_delivering: false,
            starting: Vec::new(),
            started_ns: None,
            families: Slab::new(),
            ended: Vec::new(),
            arrivals: Vec::new(),
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

    /// A round begins: before anything is read.
    pub(crate) fn begin_round(&mut self) {
        self.contact = self.node.last_contact();
    }

    /// When the controller was last heard, at the beginning of the round.
    pub(crate) fn contact(&self) -> LastContact {
        self.contact
    }

    /// Whether no more operations may be made for now.
    pub(crate) fn is_full(&self) -> bool {
        self.waiters.len() >= WAITING_MAX
    }

    /// Whether a copy is so far behind that clients who wait for it are not to be read on.
    #[inline]
    pub(crate) fn is_held_back(&self) -> bool {
        self.plane.as_ref().is_some_and(|plane| plane.is_held_back)
    }

    /// A token that a task answers by, through the worker's inbox.
    pub(crate) fn wait_for_task(&mut self, place: u64, used: Use) -> u64 {
        let partition = Partition::default();
        let client = self.client;
        let waiter = Waiter { client, place, used, partition, left: 1 };
        self.waiters.insert(waiter) as u64
    }

    /// The partition of keys of this hash, once there is a cluster.
    pub(super) fn partition(&self, hash: u64) -> Option<Partition> {
        self.node.space().map(|space| partition_of(space, hash))
    }

    /// Sends an operation to whoever is primary. Its answer comes as a delivery.
    pub(crate) fn submit(
        &mut self,
        lent: &mut Lent<'_>,
        partition: Partition,
        kind: Kind,
        op: &Bytes,
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
        op: &Bytes,
        place: u64,
        used: Use,
    ) {
        let client = self.client;
        let waiter = Waiter { client, place, used, partition, left: 1 };
        let refusal = if for_ns <= DEADLINE_NS && self.is_out_of_reach(partition) {
            // Nobody waits for it: this was certainly not done.
            Refusal::Unreachable
        } else if self.ask_owner(lent, for_ns, partition, kind, op) {
            self.waiters.insert(waiter);
            return;
        } else {
            Refusal::Busy
        };
        self.endings.push((waiter, Ending::NotApplied(refusal)));
        self.deliver(lent);
    }

    /// Gives an operation to the lane of its owner, for the waiter that is inserted next; false: too many are not answered.
    fn ask_owner(
        &mut self,
        lent: &Lent<'_>,
        for_ns: u64,
        partition: Partition,
        kind: Kind,
        op: &Bytes,
    ) -> bool {
        if !self.begin_plane() {
            return false;
        }
        let Some((sort_byte, words)) = op.split_first() else { return false };
        let Some(sort) = Sort::of_bits(*sort_byte) else { return false };
        let owner = self.owner_of(partition);
        let token = self.waiters.vacant_key() as u64;
        let line = line_of(sort, words);
        let sort = *sort_byte | self.sort_bits(kind);
        let submitted = Submitted { partition, sort, token, index: 0, for_ns };
        let Some(plane) = self.plane.as_deref_mut() else { return false };
        if !plane.submit(owner, &submitted, &line, lent.now) {
            return false;
        }
        true
    }

    fn sort_bits(&self, kind: Kind) -> u8 {
        let read = if kind == Kind::Read { sort::READ } else { 0 };
        read | self.early_bit()
    }

    fn early_bit(&self) -> u8 {
        if self.node.options.ack == AckMode::Owner { sort::OWNER } else { 0 }
    }

    /// The node that is primary of a partition as far as is known here; this one if nothing is.
    fn owner_of(&self, partition: Partition) -> cluster::id::NodeId {
        let route = self.node.space().and_then(|space| space.copies.route(partition));
        route.map_or(self.node.me().0, |route| route.primary.node)
    }

    /// Asks the owners of common requests of the client whose turn it is, whose answers take places from `at` on.
    pub(crate) fn submit_run<'l>(
        &mut self,
        lent: &Lent<'_>,
        requests: impl ExactSizeIterator<Item = Asking<'l>>,
        at: u64,
    ) {
        let count = requests.len() as u32;
        if count == 0 || !self.begin_plane() {
            return;
        }
        let (client, partition) = (self.client, Partition::default());
        let waiter = Waiter { client, place: at, used: Use::Run, partition, left: count };
        let token = self.waiters.insert(waiter) as u64;
        for (index, Asking { partition, sort, line }) in requests.enumerate() {
            let owner = self.owner_of(partition);
            let sort = sort | self.early_bit();
            let index = index as u32;
            let submitted = Submitted { partition, sort, token, index, for_ns: 0 };
            let Some(plane) = self.plane.as_deref_mut() else { return };
            if !plane.submit(owner, &submitted, line, lent.now) {
                self.refuse_run(token, index, (partition, line));
            }
        }
    }

    /// Whether operations of this worker on a partition are not answered: others on it do not overtake them.
    #[inline]
    pub(crate) fn is_waiting(&self, partition: Partition) -> bool {
        self.plane.as_ref().is_some_and(|plane| plane.ops.is_waiting(partition))
    }

    /// Counts requests that were served from headers.
    pub(crate) fn note_served(&mut self, count: u64) {
        self.at_once += count;
    }

    /// Charges several keys, each by its owner.
    pub(super) fn submit_family(&mut self, lent: &mut Lent<'_>, family: Family) {
        let operations = family.operations();
        let number = self.families.insert(family);
        for (row, (partition, op)) in operations.into_iter().enumerate() {
            let used = Use::Step { family: number, row };
            self.submit(lent, partition, Kind::Write, &op, 0, used);
        }
    }

    /// The beginning of a round, after links were read: what copies hold by now is released, what came for this worker is taken note of.
    pub(crate) fn hear(&mut self, lent: &mut Lent<'_>) {
        let node = Arc::clone(&self.node);
        node.placer.set_now(engine::Nanos(lent.now.mono_ns));
        let Some(inbox) = node.inbox(self.core) else { return };
        inbox.look();
        // In this order: what a link acknowledges behind a refusal counts only once the refusal was taken out of the inbox.
        let acked = self.read_acked();
        while let Some(inbound) = inbox.pop() {
            self.hear_one(lent, inbound);
        }
        self.release_replies(lent, &acked);
        self.end_start(lent.now);
        let generation = node.generation();
        if generation != self.generation {
            self.generation = generation;
            if let (Some(plane), Some(space)) = (self.plane.as_deref_mut(), node.space()) {
                plane.ops.routes_changed(lent.now, |partition| space.copies.route(partition));
            }
        }
        let ticks = node.ticks();
        if ticks != self.ticks {
            self.ticks = ticks;
            self.tick_operations(lent);
            self.tell_debts(lent);
        }
        self.hear_itself(lent);
        self.deliver(lent);
    }

    fn hear_one(&mut self, lent: &mut Lent<'_>, inbound: Inbound) {
        match inbound {
            Inbound::Open(opening) => self.open_replies(lent, &opening),
            Inbound::Perform(op) => self.perform_held(lent, &op),
            Inbound::Refer(op, route) => self.end_held(&op, ExceptionKind::NotOwner(route)),
            Inbound::Refuse(op, refusal) => self.end_held(&op, ExceptionKind::Refused(refusal)),
            Inbound::LinkUp(node) => {
                if let Some(plane) = self.plane.as_deref_mut() {
                    plane.ops.link_up(node, lent.now);
                }
            }
            Inbound::DataLink(arrival) => self.arrivals.push(*arrival),
            Inbound::Told(token, text) => {
                if let Some(waiter) = self.waiters.try_remove(token as usize) {
                    self.endings.push((waiter, Ending::Done(text)));
                }
            }
        }
    }

    fn refuse_run(&mut self, token: u64, index: u32, (partition, line): (Partition, &[u8])) {
        let Some(waiter) = self.waiters.get_mut(token as usize) else { return };
        waiter.left = waiter.left.saturating_sub(1);
        let one = Waiter { place: waiter.place + u64::from(index), ..waiter.part() };
        let words = Bytes::copy_from_slice(line);
        let one = Waiter { used: Use::Limited { quiet: false, words }, partition, ..one };
        if waiter.left == 0 {
            self.waiters.remove(token as usize);
        }
        self.endings.push((one, Ending::NotApplied(Refusal::Busy)));
    }

    /// Tells whoever waits how operations ended.
    ///
    /// What this brings about is done by the same call, however long that goes on: one call within
    /// another for each of many requests would go deeper than a thread's stack.
    fn deliver(&mut self, lent: &mut Lent<'_>) {
        if self.is_delivering {
            return;
        }
        self.is_delivering = true;
        while !self.endings.is_empty() || !self.ended.is_empty() {
            let mut endings = std::mem::take(&mut self.endings);
            for (waiter, ending) in endings.drain(..) {
                self.deliver_one(lent, waiter, ending);
            }
            if self.endings.is_empty() {
                self.endings = endings;
            }
            self.end_families(lent);
        }
        self.is_delivering = false;
    }

    fn deliver_one(&mut self, lent: &mut Lent<'_>, waiter: Waiter, ending: Ending) {
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
            Use::Debt(number) => return self.debt_ended(lent, number, &ending),
            Use::Hold(number) => return self.hold_told(number, &ending),
            _ => {}
        }
        if let Use::Limited { quiet, words } = &waiter.used
            && !matches!(ending, Ending::Done(_))
        {
            let (quiet, words) = (*quiet, words.clone());
            let Err(error) = text_of(ending) else { return };
            return self.answer_failed(lent, &waiter, &words, quiet, error);
        }
        let Waiter { client, place, used, .. } = waiter;
        if let Use::Step { family, row } = used {
            if let Some(kept) = self.families.get_mut(family)
                && kept.note(row, text_of(ending))
            {
                self.ended.push(family);
            }
            return;
        }
        self.deliveries.push(Delivery { client, place, used, ending });
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
                self.submit(lent, partition, Kind::Write, &op, 0, Use::Nothing);
            }
        }
    }

    /// The end of a round: what was asked of owners leaves, this node among them.
    pub(crate) fn send_bursts(&mut self, lent: &mut Lent<'_>) {
        let node = Arc::clone(&self.node);
        loop {
            self.send_operations(lent);
            let has_served = self.serve_itself(lent);
            self.deliver(lent);
            let is_quiet = self.plane.as_ref().is_none_or(|plane| plane.new_in.is_empty());
            if !has_served && is_quiet {
                break;
            }
        }
        self.work.touched.flush(lent.now.mono_ns);
        if let Some(plane) = self.plane.as_deref_mut() {
            plane.cache.flush(node.links(), lent.now.mono_ns);
        }
        let mut direct = std::mem::take(&mut self.at_once);
        if let Some(plane) = self.plane.as_deref_mut() {
            direct += std::mem::take(&mut plane.direct);
            let forwarded = std::mem::take(&mut plane.forwarded);
            node.figures.forwarded.fetch_add(forwarded, Ordering::Relaxed);
        }
        node.figures.direct.fetch_add(direct, Ordering::Relaxed);
        let Some(inbox) = node.inbox(self.core) else { return };
        let awaits_copies = self.plane.as_ref().is_some_and(|plane| !plane.parked.is_empty());
        inbox.set_awaits_copies(awaits_copies);
        if awaits_copies && node.inboxes.len() > 1 {
            // What another worker has heard before it could see that this one waits.
            let acked = self.read_acked();
            let plane = self.plane.as_ref();
            if plane
                .is_some_and(|plane| acked.iter().any(|(link, at)| plane.parked.is_due(*link, *at)))
            {
                inbox.wake();
            }
        }
        let is_waiting = !self.starting.is_empty()
            || !self.waiters.is_empty()
            || self.plane.as_ref().is_some_and(|plane| plane.ops.unanswered() > 0)
            || !self.debts.is_empty();
        if inbox.is_waiting.load(Ordering::Relaxed) != is_waiting {
            inbox.is_waiting.store(is_waiting, Ordering::SeqCst);
            node.want_ticks();
        }
    }

    /// The bytes of a run of answers.
    pub(crate) fn text_of(&self, run: &Run) -> &[u8] {
        self.texts.get(run.text.0..run.text.1).unwrap_or_default()
    }

    /// All runs were given to their clients.
    pub(crate) fn forget_texts(&mut self) {
        if self.runs.is_empty() {
            self.texts.clear();
            if self.texts.capacity() > TEXTS_KEPT_BYTES {
                self.texts = Vec::new();
            }
        }
    }

    /// Gives a client what came for it while it had its turn.
    pub(crate) fn give_to(&mut self, client: Client, replies: &mut Replies) {
        if !self.runs.is_empty() {
            for run in self.runs.extract_if(.., |run| run.client == client) {
                let text = self.texts.get(run.text.0..run.text.1).unwrap_or_default();
                replies.give_run(run.place, run.count as usize, text);
            }
        }
        if self.deliveries.is_empty() {
            return;
        }
        for delivery in self.deliveries.extract_if(.., |delivery| delivery.client == client) {
            delivery.give(replies);
        }
    }
}
