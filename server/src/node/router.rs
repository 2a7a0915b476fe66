//! A worker's way from clients to the owners of keys, and from other nodes to the replicas here.
//!
//! Here: the pending operations of the worker, the order of a round. In `data_plane` operations
//! under way, in `owner` operations that this node performs, in `backup` frames of links, in `away`
//! owners out of reach, in `replies` replies on their way. Not here: the requests of clients
//! (`dispatch`), the order of a client's replies (`reply_queue`).

mod away;
mod backup;
mod context;
mod data_plane;
mod fast_op;
mod leases;
mod local_batch;
mod owner;
mod replies;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cluster::contact::LastContact;
use cluster::frames::{ExceptionKind, ForwardOp, op_flags};
use cluster::id::Partition;
use cluster::op_stream::NewOp;
use cluster::replica::{AckMode, Refusal};
use hashbrown::HashMap;
use slab::Slab;

pub(super) use self::context::operation;
pub(crate) use self::context::{RouterContext, node_now, router_context};
use self::data_plane::{DataPlane, EndedOp};
pub(crate) use self::fast_op::FastOp;
pub(super) use self::leases::lease_of;
use self::owner::line_of;
use super::debts::Debts;
use super::links::LinkArrival;
use super::multi_owner::MultiOwnerRequest;
use super::multi_owner::lease::LeaseRequest;
use super::pending::{Client, Completion, OpAccess, OpResult, PendingOp, ReplyKind, ReplyRun};
use super::replicas::ReplicaScratch;
use super::state_machine::{OpKind, partition_of};
use super::{Node, WorkerEvent};

/// An operation is retried for this long while its owner's link makes no progress, and then fails.
const DEADLINE_NS: u64 = 1_000_000_000;
/// Most unanswered operations of a worker.
const WAITING_MAX: usize = 65_536;

/// The operations of one worker.
pub(crate) struct Router {
    node: Arc<Node>,
    core: u16,
    /// The contact by which the round is judged.
    contact: LastContact,
    plane: Option<Box<DataPlane>>,
    /// Operations that batches performed here since the last round.
    at_once: u64,
    pending_ops: Slab<PendingOp>,
    /// Operations that ended in one call; empty between calls.
    ended_ops: Vec<EndedOp>,
    results: Vec<(PendingOp, OpResult)>,
    /// The text of the replies in `runs`.
    texts: Vec<u8>,
    pub(crate) runs: Vec<ReplyRun>,
    scratch: ReplicaScratch,
    /// The requests of the frame that is being served.
    requests: Vec<ForwardOp>,
    /// The client whose requests are being processed.
    pub(crate) client: Client,
    /// The file descriptor of that client, if it may change the cluster.
    pub(crate) operator_fd: Option<i32>,
    /// Completed operations whose clients have not yet received them.
    pub(crate) completions: Vec<Completion>,
    pub(super) debts: Debts,
    /// The partitions whose owner did not answer, and until when it counts as out of reach.
    away_until_ns: HashMap<Partition, u64>,
    /// The latest time in `away_until_ns`.
    last_away_ns: u64,
    is_delivering: bool,
    /// Clients that wait for the node's place in a cluster, their places, and their deadlines.
    starting: Vec<(Client, u64, u64)>,
    started_ns: Option<u64>,
    multi_owner: Slab<MultiOwnerRequest>,
    /// Those whose sub-requests have all ended.
    ended_multi_owner: Vec<usize>,
    /// Leases over several owners that are under way.
    leases: Slab<Box<LeaseRequest>>,
    ended_leases: Vec<usize>,
    /// Connections to other nodes that this worker is about to take over.
    pub(crate) arrivals: Vec<LinkArrival>,
    generation: u64,
    ticks: u64,
}

/// A fast request for its owner.
pub(crate) struct OwnerRequest<'l> {
    pub(crate) partition: Partition,
    /// See `frames::op_flags`.
    pub(crate) op_flags: u8,
    pub(crate) line: &'l [u8],
}

impl Router {
    pub(crate) fn new(node: Arc<Node>, core: u16) -> Self {
        Self {
            node,
            core,
            contact: LastContact::default(),
            plane: None,
            at_once: 0,
            pending_ops: Slab::new(),
            ended_ops: Vec::new(),
            results: Vec::new(),
            texts: Vec::new(),
            runs: Vec::new(),
            scratch: ReplicaScratch::default(),
            requests: Vec::new(),
            client: Client::default(),
            operator_fd: None,
            completions: Vec::new(),
            debts: Debts::default(),
            away_until_ns: HashMap::new(),
            last_away_ns: 0,
            is_delivering: false,
            starting: Vec::new(),
            started_ns: None,
            multi_owner: Slab::new(),
            ended_multi_owner: Vec::new(),
            leases: Slab::new(),
            ended_leases: Vec::new(),
            arrivals: Vec::new(),
            generation: 0,
            ticks: 0,
        }
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(super) fn core(&self) -> u16 {
        self.core
    }

    /// Begins a round, before anything is read.
    pub(crate) fn begin_round(&mut self) {
        self.contact = self.node.last_contact();
    }

    /// When this node last had contact with the controller, as of the beginning of the round.
    pub(crate) fn contact(&self) -> LastContact {
        self.contact
    }

    /// Whether no further operations may be submitted for now.
    pub(crate) fn is_full(&self) -> bool {
        self.pending_ops.len() >= WAITING_MAX
    }

    /// Whether a copy is so far behind that clients with pending operations should not be read.
    pub(crate) fn is_held_back(&self) -> bool {
        self.plane.as_ref().is_some_and(|plane| plane.is_held_back)
    }

    /// Returns a token for a task's reply, which arrives through the worker's inbox.
    pub(crate) fn wait_for_task(&mut self, place: u64, reply_kind: ReplyKind) -> u64 {
        let (client, partition) = (self.client, Partition::default());
        let pending = PendingOp { client, place, reply_kind, partition, left: 1 };
        self.pending_ops.insert(pending) as u64
    }

    /// The partition of keys with this hash, once there is a cluster.
    pub(super) fn partition(&self, hash: u64) -> Option<Partition> {
        self.node.keyspace().map(|keyspace| partition_of(keyspace, hash))
    }

    /// Sends an operation to the primary. Its result arrives as a completion.
    pub(crate) fn submit(
        &mut self,
        ctx: &mut RouterContext<'_>,
        partition: Partition,
        kind: OpAccess,
        op: &Bytes,
        place: u64,
        reply_kind: ReplyKind,
    ) {
        self.submit_until(ctx, DEADLINE_NS, partition, kind, op, place, reply_kind);
    }

    /// Does the work of [`Router::submit`] with a deadline of `for_ns`.
    #[expect(clippy::too_many_arguments, reason = "the parts of an operation")]
    pub(super) fn submit_until(
        &mut self,
        ctx: &mut RouterContext<'_>,
        for_ns: u64,
        partition: Partition,
        kind: OpAccess,
        op: &Bytes,
        place: u64,
        reply_kind: ReplyKind,
    ) {
        let client = self.client;
        let pending = PendingOp { client, place, reply_kind, partition, left: 1 };
        // While the node starts, its links may still open, so the operation waits.
        let fails_at_once = for_ns <= DEADLINE_NS && !self.is_starting(ctx.now);
        let refusal = if fails_at_once && self.is_out_of_reach(partition) {
            // The operation was certainly not done.
            Refusal::Unreachable
        } else if self.submit_to_owner(ctx, for_ns, partition, kind, op) {
            self.pending_ops.insert(pending);
            return;
        } else {
            Refusal::Busy
        };
        self.results.push((pending, OpResult::NotApplied(refusal)));
        self.deliver(ctx);
    }

    /// Adds an operation for the next pending operation; false if too many are unanswered.
    fn submit_to_owner(
        &mut self,
        ctx: &RouterContext<'_>,
        for_ns: u64,
        partition: Partition,
        kind: OpAccess,
        op: &Bytes,
    ) -> bool {
        if !self.begin_plane() {
            return false;
        }
        let Some((flags_byte, raw_request)) = op.split_first() else { return false };
        let Some(op_kind) = OpKind::of_bits(*flags_byte) else { return false };
        let owner = self.owner_of(partition);
        let token = self.pending_ops.vacant_key() as u64;
        let line = line_of(op_kind, raw_request);
        let op_flags = *flags_byte | self.op_flags(kind);
        let submitted = NewOp { partition, op_flags, token, index: 0, for_ns };
        let Some(plane) = self.plane.as_deref_mut() else { return false };
        if !plane.submit(owner, &submitted, &line, ctx.now) {
            return false;
        }
        true
    }

    fn op_flags(&self, kind: OpAccess) -> u8 {
        let read = if kind == OpAccess::Read { op_flags::READ } else { 0 };
        read | self.early_bit()
    }

    fn early_bit(&self) -> u8 {
        if self.node.options.ack == AckMode::Owner { op_flags::OWNER } else { 0 }
    }

    /// The node that is primary of a partition, as far as this node knows; this node if unknown.
    fn owner_of(&self, partition: Partition) -> cluster::id::NodeId {
        let keyspace = self.node.keyspace();
        let owner = keyspace.and_then(|keyspace| keyspace.replicas.destination(partition));
        owner.map_or(self.node.me().0, |owner| owner.node)
    }

    /// Sends the client's fast requests to their owners. The replies have places from `at` on.
    pub(crate) fn submit_run<'l>(
        &mut self,
        ctx: &RouterContext<'_>,
        requests: impl ExactSizeIterator<Item = OwnerRequest<'l>>,
        at: u64,
    ) {
        let count = requests.len() as u32;
        if count == 0 || !self.begin_plane() {
            return;
        }
        let (client, partition) = (self.client, Partition::default());
        let pending =
            PendingOp { client, place: at, reply_kind: ReplyKind::Run, partition, left: count };
        let token = self.pending_ops.insert(pending) as u64;
        for (index, OwnerRequest { partition, op_flags, line }) in requests.enumerate() {
            let owner = self.owner_of(partition);
            let op_flags = op_flags | self.early_bit();
            let index = index as u32;
            let submitted = NewOp { partition, op_flags, token, index, for_ns: 0 };
            let Some(plane) = self.plane.as_deref_mut() else { return };
            if !plane.submit(owner, &submitted, line, ctx.now) {
                self.refuse_run(token, index, (partition, line));
            }
        }
    }

    /// Whether the worker has unanswered operations on a partition, which others must not overtake.
    #[inline]
    pub(crate) fn is_waiting(&self, partition: Partition) -> bool {
        self.plane.as_ref().is_some_and(|plane| plane.ops.is_waiting(partition))
    }

    /// Counts requests that were served from headers.
    pub(crate) fn note_served(&mut self, count: u64) {
        self.at_once += count;
    }

    /// Charges several keys, each by its owner.
    pub(super) fn submit_multi_owner(
        &mut self,
        ctx: &mut RouterContext<'_>,
        request: MultiOwnerRequest,
    ) {
        let operations = request.operations();
        let index = self.multi_owner.insert(request);
        for (row, (partition, op)) in operations.into_iter().enumerate() {
            let reply_kind = ReplyKind::SubRequest { request: index, row };
            self.submit(ctx, partition, OpAccess::Write, &op, 0, reply_kind);
        }
    }

    /// Begins a round after links were read: handles events, and releases acknowledged replies.
    pub(crate) fn on_events(&mut self, ctx: &mut RouterContext<'_>) {
        let node = Arc::clone(&self.node);
        node.partition_prefix.set_now(engine::Nanos(ctx.now.mono_ns));
        let Some(inbox) = node.inbox(self.core) else { return };
        inbox.clear_woken();
        // The positions are read first: an acknowledgement behind a refusal counts only after the
        // opening that the refusal caused was taken out of the inbox.
        let acked = self.read_acked();
        while let Some(inbound) = inbox.pop() {
            self.on_event(ctx, inbound);
        }
        self.release_replies(ctx, &acked);
        self.end_start(ctx.now);
        let generation = node.generation();
        if generation != self.generation {
            self.generation = generation;
            if let (Some(plane), Some(keyspace)) = (self.plane.as_deref_mut(), node.keyspace()) {
                plane
                    .ops
                    .routes_changed(ctx.now, |partition| keyspace.replicas.destination(partition));
            }
        }
        let ticks = node.ticks();
        if ticks != self.ticks {
            self.ticks = ticks;
            self.tick_operations(ctx);
            self.send_debts(ctx);
        }
        self.on_own_answers(ctx);
        self.deliver(ctx);
    }

    fn on_event(&mut self, ctx: &mut RouterContext<'_>, inbound: WorkerEvent) {
        match inbound {
            WorkerEvent::Open(opening) => self.open_replies(ctx, &opening),
            WorkerEvent::Perform(op) => self.perform_waiting(ctx, &op),
            WorkerEvent::Refer(op, route) => self.end_waiting(&op, ExceptionKind::NotOwner(route)),
            WorkerEvent::Refuse(op, refusal) => {
                self.end_waiting(&op, ExceptionKind::Refused(refusal));
            }
            WorkerEvent::LinkUp(node) => {
                if let Some(plane) = self.plane.as_deref_mut() {
                    plane.ops.link_up(node, ctx.now);
                }
            }
            WorkerEvent::DataLink(arrival) => self.arrivals.push(*arrival),
            WorkerEvent::Reply(token, text) => {
                if let Some(pending) = self.pending_ops.try_remove(token as usize) {
                    self.results.push((pending, OpResult::Done(text)));
                }
            }
        }
    }

    fn refuse_run(&mut self, token: u64, index: u32, (partition, line): (Partition, &[u8])) {
        let Some(pending) = self.pending_ops.get_mut(token as usize) else { return };
        pending.left = pending.left.saturating_sub(1);
        let one = PendingOp { place: pending.place + u64::from(index), ..pending.for_one() };
        let raw_request = Bytes::copy_from_slice(line);
        let one = PendingOp {
            reply_kind: ReplyKind::Limited { quiet: false, raw_request },
            partition,
            ..one
        };
        if pending.left == 0 {
            self.pending_ops.remove(token as usize);
        }
        self.results.push((one, OpResult::NotApplied(Refusal::Busy)));
    }

    /// Ends a round: sends the submitted operations to their owners, this node included.
    pub(crate) fn send_bursts(&mut self, ctx: &mut RouterContext<'_>) {
        let node = Arc::clone(&self.node);
        loop {
            self.send_operations(ctx);
            let has_served = self.serve_itself(ctx);
            self.deliver(ctx);
            let is_quiet = self.plane.as_ref().is_none_or(|plane| plane.new_in.is_empty());
            if !has_served && is_quiet {
                break;
            }
        }
        self.scratch.touched.flush(ctx.now.mono_ns);
        if let Some(plane) = self.plane.as_deref_mut() {
            plane.cache.flush(node.links(), ctx.now.mono_ns);
        }
        let mut direct = std::mem::take(&mut self.at_once);
        if let Some(plane) = self.plane.as_deref_mut() {
            direct += std::mem::take(&mut plane.direct);
            let forwarded = std::mem::take(&mut plane.forwarded);
            node.metrics.forwarded.fetch_add(forwarded, Ordering::Relaxed);
        }
        node.metrics.direct.fetch_add(direct, Ordering::Relaxed);
        let Some(inbox) = node.inbox(self.core) else { return };
        let awaits_copies = self.plane.as_ref().is_some_and(|plane| !plane.parked.is_empty());
        inbox.set_awaits_copies(awaits_copies);
        if awaits_copies && node.inboxes.len() > 1 {
            // Another worker may have stored an acknowledgement before it saw that this one waits.
            let acked = self.read_acked();
            let plane = self.plane.as_ref();
            if plane
                .is_some_and(|plane| acked.iter().any(|(link, at)| plane.parked.is_due(*link, *at)))
            {
                inbox.wake();
            }
        }
        let is_waiting = !self.starting.is_empty()
            || !self.pending_ops.is_empty()
            || self.plane.as_ref().is_some_and(|plane| plane.ops.unanswered() > 0)
            || !self.debts.is_empty();
        if inbox.is_waiting.load(Ordering::Relaxed) != is_waiting {
            inbox.is_waiting.store(is_waiting, Ordering::SeqCst);
            node.want_ticks();
        }
    }
}
