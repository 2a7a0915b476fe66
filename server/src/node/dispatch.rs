//! Dispatch of a clustered node: turns requests into operations for the owners of their keys.
//!
//! Here: which requests become which operations. Not here: performing them (`state_machine`),
//! sending them (`router`).

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use cluster::id::Partition;
use cluster::map::LIMITS_VERSION;
use protocol::{Command, Exptime, Form, Native, Operation, Request, Take, TakeMany};
use tollgate_limits::LimitMatch;

use super::degraded::is_taking;
use super::multi_owner::{
    MultiOwnerRequest, NotMultiOwner, RecordedKeys, give_hold_name, limit_op_of, refuses_id,
};
use super::pending::{NOT_APPLIED, OpAccess, ReplyKind};
use super::reply_queue::ReplyQueue;
use super::router::{Router, lease_of, node_now, operation, router_context};
use super::state_machine::{OpKind, partition_of};
use super::sub_request::RECORDED_VERSION;
use crate::commands::companions::look_over_parents;
use crate::commands::context::ExecContext;
use crate::commands::limit_op::LimitOp;
use crate::commands::limited_keys::write_error;
use crate::commands::lookup::{KeyLookup, counted_key};

/// The reply to a command whose item was too large.
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";

/// The reply to `info` while an owner may not know it.
const NO_INFO_YET: &str = "SERVER_ERROR not applied: the cluster is being updated, and until no \
                           older node is in it, take has no info";

/// The reply to `debit` while an owner may not know it: it could not read the line, or would charge
/// nothing where the units do not fit.
const NO_DEBIT_YET: &str = "SERVER_ERROR not applied: the cluster is being updated, and until no \
                            older node is in it, take has no debit";

/// The deadline of `flush_all`, which drops all items of the cluster on each of their copies.
const FLUSH_NS: u64 = 60_000_000_000;

/// The reply before the node has a place in a cluster.
pub(super) const STARTING: &str = "SERVER_ERROR not applied: the node is starting\r\n";

/// The node's part of one request of a client.
pub(crate) struct Dispatch<'d, 'a> {
    pub(crate) router: &'d mut Router,
    pub(crate) ctx: &'d mut ExecContext<'a>,
    /// The replies that the client waits for.
    pub(crate) replies: &'d mut ReplyQueue,
}

impl Dispatch<'_, '_> {
    /// Refuses a value that is too large to be read: the owner of `key` drops its old value.
    pub(crate) fn refuse_value(
        &mut self,
        key: Option<&[u8]>,
        reply: &'static str,
        out: &mut Vec<u8>,
    ) {
        let is_member = self.router.node().keyspace().is_some();
        let Some(key) = key.filter(|_| is_member) else {
            return self.replies.push_ready(reply.as_bytes(), out);
        };
        let hash = self.ctx.service.shards().hash(key);
        self.refuse_item(Some((key, hash)), reply, out);
    }

    /// Makes the client wait for the node's place in a cluster, shortly after the start. Returns
    /// false later.
    pub(crate) fn wait_for_start(&mut self) -> bool {
        let now = node_now(self.ctx.service.clock(), self.ctx.now);
        let is_starting = self.router.is_starting(now);
        if is_starting {
            let place = self.replies.reserve();
            self.router.wait_for_start(now, place);
        }
        is_starting
    }

    /// Refuses a request that arrives before the node has a place in a cluster.
    pub(crate) fn refuse_start(&mut self, request: &Request<'_>, out: &mut Vec<u8>) {
        let is_silent = is_silent(request);
        let reply = if is_silent { String::new() } else { self.router.node().starting() };
        self.replies.push_ready(reply.as_bytes(), out);
    }

    /// Sends a command to the owner of its key, or to the owners of all keys that it charges.
    pub(crate) fn command(
        &mut self,
        command: &Command<'_>,
        form: &Form<'_>,
        raw_request: &[u8],
        lookup: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) {
        match &lookup.key_limit {
            Err(error) => self.push_error(&error.to_string(), form, out),
            Ok(_) => self.submit_command(command, form, raw_request, lookup, out),
        }
    }

    /// Queues the error text of [`write_error`] as the next reply.
    pub(super) fn push_error(&mut self, why: &str, form: &Form<'_>, out: &mut Vec<u8>) {
        let mut text = Vec::new();
        write_error(why, form, &mut text);
        self.replies.push_ready(&text, out);
    }

    /// Refuses an item that is too large: the owner of the key drops its old value.
    fn refuse_item(
        &mut self,
        dropped: Option<(&[u8], u64)>,
        reply: &'static str,
        out: &mut Vec<u8>,
    ) {
        let Some((key, hash)) = dropped else {
            return self.replies.push_ready(reply.as_bytes(), out);
        };
        let (place, reply_kind) = (self.replies.reserve(), ReplyKind::Fixed(reply));
        let op = operation(OpKind::Drop, key);
        self.submit(hash, OpAccess::Write, &op, place, reply_kind);
    }

    fn submit_command(
        &mut self,
        command: &Command<'_>,
        form: &Form<'_>,
        raw_request: &[u8],
        lookup: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) {
        let own = command.key.as_bytes();
        let shards = self.ctx.service.shards();
        let (_, hash) = counted_key(shards, own, Some(&command.operation), lookup);
        let quiet = form.is_quiet() && !matches!(form, Form::Meta { .. });
        if let Operation::TooLarge { drop } = command.operation {
            let reply = if quiet { "" } else { TOO_LARGE };
            return self.refuse_item(drop.then_some((own, hash)), reply, out);
        }
        if let Some(text) = self.change_own_hold(command, form) {
            return self.replies.push_ready(if quiet { b"" } else { &text }, out);
        }
        if self.is_too_new(&command.operation, |take| take.debit) {
            return self.push_error(NO_DEBIT_YET, form, out);
        }
        if let Ok(Some(found)) = &lookup.key_limit
            && found.has_parents()
        {
            let is_submitted = self.submit_with_parents(command, form, raw_request, found, out);
            if is_submitted {
                return;
            }
        }
        // With parents, and in `takem`, this node adds the pairs itself.
        if self.is_too_new(&command.operation, |take| take.info) {
            return self.push_error(NO_INFO_YET, form, out);
        }
        if !is_taking(self.ctx.active_limits.limits(), command, form, lookup) {
            let (place, reply_kind) = (self.replies.reserve(), ReplyKind::Whole { quiet });
            let op = operation(OpKind::Plain, raw_request);
            return self.submit(hash, OpAccess::Write, &op, place, reply_kind);
        }
        let Self { router, ctx, replies } = self;
        let now = node_now(ctx.service.clock(), ctx.now);
        let is_away =
            router.partition(hash).is_some_and(|partition| router.is_away(now, partition));
        if is_away {
            let text = router.answer_degraded(
                &mut router_context(ctx),
                raw_request,
                if quiet { "" } else { NOT_APPLIED },
            );
            return replies.push_ready(&text, out);
        }
        let place = self.replies.reserve();
        let op = operation(OpKind::Plain, raw_request);
        let reply_kind = ReplyKind::Limited { quiet, raw_request: op.slice(1..) };
        self.submit(hash, OpAccess::Write, &op, place, reply_kind);
    }

    /// Submits a command on a key with parents to the owners of all of them. False: the owner of
    /// the key does it alone.
    fn submit_with_parents(
        &mut self,
        command: &Command<'_>,
        form: &Form<'_>,
        raw_request: &[u8],
        found: &LimitMatch<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        if let Some(lease) = lease_of(found, &command.operation) {
            self.submit_lease(raw_request, found, (lease, form), out);
            return true;
        }
        let quiet = form.is_quiet() && !matches!(form, Form::Meta { .. });
        let look = look_over_parents(found, command.key.as_bytes(), &command.operation);
        match look.map_or_else(|| limit_op_of(found, &command.operation, form), Ok) {
            Ok(op) => {
                let listed = self.ctx.list_charges(found);
                match listed.map(|()| op.refusal(&self.ctx.scratch.charges)) {
                    Ok(Some(error)) => self.push_error(error, form, out),
                    Ok(None) => {
                        let recorded =
                            RecordedKeys::of_command(&command.operation, form, found.base());
                        self.submit_multi_owner(raw_request, &whole(quiet), op, recorded);
                    }
                    Err(error) => self.push_error(&error.to_string(), form, out),
                }
            }
            Err(NotMultiOwner::OneKey) => return false,
            Err(NotMultiOwner::Unsupported(why)) => self.push_error(why, form, out),
        }
        true
    }

    /// Whether a take has an option that the owner of its key may not know, while nodes of an
    /// earlier version are in the cluster.
    fn is_too_new(&self, operation: &Operation<'_>, has_option: fn(&Take<'_>) -> bool) -> bool {
        let Operation::Native(Native::Take(take)) = operation else { return false };
        has_option(take) && !self.router.node().has_features(LIMITS_VERSION)
    }

    /// `takem`: takes from each key and its parents at their owners.
    pub(crate) fn take_many(
        &mut self,
        many: TakeMany<'_>,
        quiet: bool,
        raw_request: &[u8],
        out: &mut Vec<u8>,
    ) {
        let mut counted = Vec::new();
        let listed = self.ctx.list_all_charges(&many, &mut counted);
        let reply = match (refuses_id(many.id), listed) {
            (Some(why), _) => why.to_owned(),
            (None, Ok(true)) => {
                let op = LimitOp::of_many(&many);
                match op.refusal(&self.ctx.scratch.charges) {
                    Some(error) => error.to_owned(),
                    None if self.ctx.scratch.charges.is_empty() => {
                        let reply = self.ctx.unlimited_reply(&op, &many);
                        return self.replies.push_ready(if quiet { b"" } else { &reply }, out);
                    }
                    None => {
                        let recorded = RecordedKeys::of_many(&many);
                        return self.submit_multi_owner(raw_request, &whole(quiet), op, recorded);
                    }
                }
            }
            (None, Ok(false)) => "NOT_FOUND".to_owned(),
            (None, Err(error)) => error.to_string(),
        };
        if !quiet {
            self.replies.push_ready(format!("{reply}\r\n").as_bytes(), out);
        }
    }

    /// Takes from the keys that `scratch.charges` lists, each at its owner.
    fn submit_multi_owner(
        &mut self,
        raw_request: &[u8],
        reply_kind: &ReplyKind,
        mut op: LimitOp,
        mut recorded: RecordedKeys,
    ) {
        let Self { router, ctx, replies } = self;
        let node = Arc::clone(router.node());
        let Some(keyspace) = node.keyspace() else { return };
        if !node.has_features(RECORDED_VERSION) {
            recorded = RecordedKeys::NONE;
        }
        let charges = std::mem::take(&mut ctx.scratch.charges);
        give_hold_name(&mut op, &charges, || node.name_hold());
        let place = replies.reserve();
        let of = |hash| partition_of(keyspace, hash);
        let request = MultiOwnerRequest::new(
            router.client,
            place,
            (raw_request, reply_kind),
            (op, recorded),
            ctx,
            &charges,
            of,
        );
        ctx.scratch.charges = charges;
        router.submit_multi_owner(&mut router_context(ctx), request);
    }

    /// Sends the operation of one key of a retrieval.
    // Not inlined: a server without a cluster must not pay for its code.
    #[inline(never)]
    pub(crate) fn key(
        &mut self,
        command: &Command<'_>,
        lookup: &KeyLookup<'_>,
        (with_cas, touch): (bool, Option<Exptime>),
    ) {
        // A key that no limit can count has no usage to show.
        if lookup.key_limit.is_err() {
            return;
        }
        let own = command.key.as_bytes();
        let (_, hash) = counted_key(self.ctx.service.shards(), own, None, lookup);
        let kind = if touch.is_some() { OpAccess::Write } else { OpAccess::Read };
        let mut op = BytesMut::with_capacity(own.len() + 32);
        op.put_u8(OpKind::Plain as u8);
        op.put_slice(match (touch.is_some(), with_cas) {
            (false, false) => b"get ",
            (false, true) => b"gets ",
            (true, false) => b"gat ",
            (true, true) => b"gats ",
        });
        if let Some(exptime) = touch {
            op.put_slice(format!("{} ", exptime.0).as_bytes());
        }
        op.put_slice(own);
        op.put_slice(b"\r\n");
        let op = op.freeze();
        if let Ok(Some(found)) = &lookup.key_limit
            && let Some(look) = look_over_parents(found, own, &command.operation)
        {
            // A companion whose parents cannot be counted has no figures.
            if self.ctx.list_charges(found).is_ok() {
                self.submit_multi_owner(&op[1..], &ReplyKind::Part, look, RecordedKeys::NONE);
            }
            return;
        }
        let place = self.replies.reserve();
        self.submit(hash, kind, &op, place, ReplyKind::Part);
    }

    /// `flush_all`: flushes each partition by its own operation.
    pub(crate) fn flush_all(&mut self, delay: Exptime, quiet: bool, out: &mut Vec<u8>) {
        if delay.0 > 0 {
            let reply: &[u8] = b"SERVER_ERROR a cluster does not flush later, only at once\r\n";
            return self.replies.push_ready(if quiet { b"" } else { reply }, out);
        }
        let Self { router, ctx, replies } = self;
        ctx.counters.cmd_flush.add(1);
        let partitions = router.node().keyspace().map_or(0, |keyspace| keyspace.replicas.len());
        if partitions == 0 {
            replies.push_ready(b"SERVER_ERROR not applied: no cluster yet\r\n", out);
            return;
        }
        let place = replies.reserve_counted(partitions, if quiet { "" } else { "OK\r\n" });
        let op = operation(OpKind::Flush, b"");
        for index in 0..partitions {
            let partition = Partition(index as u16);
            let (kind, reply_kind) = (OpAccess::Write, ReplyKind::Counted);
            let ctx = &mut router_context(ctx);
            router.submit_until(ctx, FLUSH_NS, partition, kind, &op, place, reply_kind);
        }
    }

    /// Sends an operation on the key with this hash.
    fn submit(&mut self, hash: u64, kind: OpAccess, op: &Bytes, place: u64, reply_kind: ReplyKind) {
        let Self { router, ctx, .. } = self;
        let partition = router.partition(hash).unwrap_or_default();
        router.submit(&mut router_context(ctx), partition, kind, op, place, reply_kind);
    }

    /// Settles or renews a hold that this node granted by itself.
    fn change_own_hold(&mut self, command: &Command<'_>, form: &Form<'_>) -> Option<Bytes> {
        let Operation::Native(Native::Settle { .. } | Native::Renew { .. }) = command.operation
        else {
            return None;
        };
        self.router.change_own_hold(&mut router_context(self.ctx), command, form)
    }
}

/// The kind of a reply that no other part belongs to.
fn whole(quiet: bool) -> ReplyKind {
    ReplyKind::Whole { quiet }
}

/// Whether the client expects no reply: `noreply`. `q` of a meta command does not hide errors.
pub(super) fn is_silent(request: &Request<'_>) -> bool {
    match request {
        Request::Command { form, .. } => form.is_quiet() && !matches!(form, Form::Meta { .. }),
        Request::TakeMany { quiet, .. } | Request::Admin { quiet, .. } => *quiet,
        Request::Retrieve { .. } => false,
    }
}
