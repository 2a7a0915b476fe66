//! Dispatch of a clustered node: turns requests into operations for the owners of their keys.
//!
//! Here: which requests become which operations. Not here: performing them (`state_machine`),
//! sending them (`router`).

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use cluster::id::Partition;
use engine::TakeParams;
use protocol::{Admin, Command, Exptime, Form, Native, Operation, Request};

use super::degraded::is_taking;
use super::multi_owner::{LimitOp, MultiOwnerRequest, NotMultiOwner, limit_op_of, refuses_id};
use super::pending::{NOT_APPLIED, OpAccess, ReplyKind};
use super::router::{Router, operation};
use super::router::{node_now, router_context};
use super::state_machine::{OpKind, partition_of};
use crate::commands::limited_keys::{inline_policy, write_error};
use crate::commands::native::NEVER_WAITS;
use crate::session::{
    ExecContext, KeyLookup, RequestOutcome, Retrieval, Session, TakeMany, counted_key,
};

/// The reply to a command whose item was too large.
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";

/// The deadline of `flush_all`, which drops all items of the cluster on each of their copies.
const FLUSH_NS: u64 = 60_000_000_000;

/// The reply before the node has a place in a cluster.
pub(super) const STARTING: &str = "SERVER_ERROR not applied: the node is starting\r\n";

impl Session {
    /// Moves completed replies into the queue and flushes the ready prefix to `out`. Returns true
    /// while too many requests are outstanding.
    pub(crate) fn is_throttled(&mut self, ctx: &mut ExecContext<'_>, out: &mut Vec<u8>) -> bool {
        let Some(router) = &mut ctx.router else { return false };
        router.deliver_to(router.client, &mut self.replies);
        self.replies.collect(out);
        self.must_wait(router)
    }

    /// Whether this client, or the other nodes, owe too many replies for further requests to be
    /// read.
    #[inline]
    pub(crate) fn must_wait(&self, router: &Router) -> bool {
        let is_behind = router.is_full() || router.is_held_back();
        self.replies.is_full() || (is_behind && !self.replies.is_empty())
    }

    /// The clustered form of [`Session::refuse_value`]: the owner of `key` drops its old value.
    pub(crate) fn refuse_clustered_value(
        &mut self,
        ctx: &mut ExecContext<'_>,
        key: Option<&[u8]>,
        reply: &'static str,
        out: &mut Vec<u8>,
    ) {
        let is_member =
            ctx.router.as_ref().is_some_and(|router| router.node().keyspace().is_some());
        let Some(key) = key.filter(|_| is_member) else {
            return self.replies.push_ready(reply.as_bytes(), out);
        };
        let place = self.replies.reserve();
        let hash = ctx.service.shards().hash(key);
        submit(
            ctx,
            hash,
            OpAccess::Write,
            &operation(OpKind::Drop, key),
            place,
            ReplyKind::Fixed(reply),
        );
    }

    /// The clustered form of `answer`. `raw_request` is the request as the client wrote it.
    // Not inlined: a server without a cluster must not pay for its code.
    #[inline(never)]
    pub(crate) fn dispatch(
        &mut self,
        ctx: &mut ExecContext<'_>,
        request: &Request<'_>,
        raw_request: &[u8],
        lookup: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome {
        if self.is_throttled(ctx, out) {
            return RequestOutcome::NotYet;
        }
        if !self.authenticated {
            return self.authenticate(ctx, request, out);
        }
        let is_on_keys = !matches!(request, Request::Admin { .. });
        if is_on_keys && ctx.router.as_ref().is_none_or(|router| router.node().keyspace().is_none())
        {
            return self.refuse_start(ctx, request, out);
        }
        self.waited_for_start = false;
        match request {
            Request::Command { command, form } => {
                self.dispatch_command(ctx, command, form, raw_request, lookup, out);
                RequestOutcome::Given
            }
            Request::Retrieve { keys, with_cas, touch } => {
                let retrieval = Retrieval { keys: *keys, with_cas: *with_cas, touch: *touch };
                self.retrieve(ctx, retrieval, lookup, out)
            }
            Request::TakeMany { cost, keys, peek, id, quiet } => {
                let many = TakeMany { cost: *cost, keys: *keys, peek: *peek, id: *id };
                self.dispatch_take_many(ctx, many, *quiet, raw_request, out);
                RequestOutcome::Given
            }
            _ if !self.replies.is_empty() => RequestOutcome::NotYet,
            Request::Admin { admin: Admin::Quit, .. } => RequestOutcome::Close,
            Request::Admin { admin: Admin::FlushAll(delay), quiet }
                if ctx.service.config().flush_all =>
            {
                if delay.0 > 0 {
                    let reply: &[u8] =
                        b"SERVER_ERROR a cluster does not flush later, only at once\r\n";
                    self.replies.push_ready(if *quiet { b"" } else { reply }, out);
                } else {
                    self.flush(ctx, *quiet, out);
                }
                RequestOutcome::Given
            }
            Request::Admin { admin: Admin::Cluster(verb), .. } => {
                self.command_cluster(ctx, *verb, out);
                RequestOutcome::Given
            }
            Request::Admin { admin, quiet } => ctx.admin(*admin, *quiet, out),
        }
    }

    /// Handles a request that arrives before the node has a place in a cluster: the request waits
    /// once, shortly after the start, and is refused later.
    fn refuse_start(
        &mut self,
        ctx: &mut ExecContext<'_>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome {
        let now = node_now(ctx.service.clock(), ctx.now);
        let Some(router) = &mut ctx.router else { return RequestOutcome::Close };
        if !self.waited_for_start && router.is_starting(now) {
            self.waited_for_start = true;
            let place = self.replies.reserve();
            router.wait_for_start(now, place);
            return RequestOutcome::NotYet;
        }
        self.waited_for_start = false;
        let reply = if is_silent(request) { String::new() } else { router.node().starting() };
        self.replies.push_ready(reply.as_bytes(), out);
        RequestOutcome::Given
    }

    fn dispatch_command(
        &mut self,
        ctx: &mut ExecContext<'_>,
        command: &Command<'_>,
        form: &Form<'_>,
        raw_request: &[u8],
        lookup: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) {
        match &lookup.key_limit {
            Err(error) => self.push_error(&error.to_string(), form, out),
            Ok(_) => self.submit_command(ctx, command, form, raw_request, lookup, out),
        }
    }

    /// Queues the error text of [`write_error`] as the next reply.
    fn push_error(&mut self, why: &str, form: &Form<'_>, out: &mut Vec<u8>) {
        let mut text = Vec::new();
        write_error(why, form, &mut text);
        self.replies.push_ready(&text, out);
    }

    fn submit_command(
        &mut self,
        ctx: &mut ExecContext<'_>,
        command: &Command<'_>,
        form: &Form<'_>,
        raw_request: &[u8],
        lookup: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) {
        let own = command.key.as_bytes();
        let shards = ctx.service.shards();
        let (_, hash) = counted_key(shards, own, Some(&command.operation), lookup);
        let quiet = form.is_quiet() && !matches!(form, Form::Meta { .. });
        if let Operation::TooLarge { drop } = command.operation {
            if !drop {
                let reply = if quiet { "" } else { TOO_LARGE };
                return self.replies.push_ready(reply.as_bytes(), out);
            }
            let place = self.replies.reserve();
            let reply_kind = ReplyKind::Fixed(if quiet { "" } else { TOO_LARGE });
            return submit(
                ctx,
                hash,
                OpAccess::Write,
                &operation(OpKind::Drop, own),
                place,
                reply_kind,
            );
        }
        if let Some(text) = change_own_hold(ctx, command, form) {
            return self.replies.push_ready(if quiet { b"" } else { &text }, out);
        }
        if let Ok(Some(found)) = &lookup.key_limit
            && found.has_parents()
            && inline_policy(&command.operation, form).is_none()
        {
            match limit_op_of(found, &command.operation) {
                Ok(op) => {
                    let listed = ctx.list_charges(found);
                    return match listed {
                        Ok(()) if op.waits_in_vain(&ctx.scratch.charges) => {
                            self.push_error(NEVER_WAITS, form, out);
                        }
                        Ok(()) => self.submit_multi_owner(ctx, (raw_request, quiet), op),
                        Err(error) => self.push_error(&error.to_string(), form, out),
                    };
                }
                Err(NotMultiOwner::OneKey) => {}
                Err(NotMultiOwner::Unsupported(why)) => return self.push_error(why, form, out),
            }
        }
        let kind = OpAccess::Write;
        if !is_taking(command, form, lookup) {
            let (place, reply_kind) = (self.replies.reserve(), ReplyKind::Whole { quiet });
            return submit(
                ctx,
                hash,
                kind,
                &operation(OpKind::Plain, raw_request),
                place,
                reply_kind,
            );
        }
        let Some(router) = ctx.router.take() else { return };
        let now = node_now(ctx.service.clock(), ctx.now);
        let is_away =
            router.partition(hash).is_some_and(|partition| router.is_away(now, partition));
        if is_away {
            let text = router.answer_degraded(
                &mut router_context(ctx),
                raw_request,
                if quiet { "" } else { NOT_APPLIED },
            );
            ctx.router = Some(router);
            return self.replies.push_ready(&text, out);
        }
        ctx.router = Some(router);
        let place = self.replies.reserve();
        let op = operation(OpKind::Plain, raw_request);
        let reply_kind = ReplyKind::Limited { quiet, raw_request: op.slice(1..) };
        submit(ctx, hash, kind, &op, place, reply_kind);
    }

    /// `takem`: takes from each key and its parents at their owners.
    fn dispatch_take_many(
        &mut self,
        ctx: &mut ExecContext<'_>,
        many: TakeMany<'_>,
        quiet: bool,
        raw_request: &[u8],
        out: &mut Vec<u8>,
    ) {
        let mut counted = Vec::new();
        let reply = match (refuses_id(many.id), ctx.list_all_charges(many.keys, &mut counted)) {
            (Some(why), _) => why.to_owned(),
            (None, Ok(true)) => {
                let units =
                    TakeParams { cost: many.cost, peek: many.peek, ..TakeParams::default() };
                return self.submit_multi_owner(ctx, (raw_request, quiet), LimitOp::Take(units));
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
        ctx: &mut ExecContext<'_>,
        (raw_request, quiet): (&[u8], bool),
        mut op: LimitOp,
    ) {
        let Some(router) = ctx.router.take() else { return };
        let node = Arc::clone(router.node());
        if let Some(keyspace) = node.keyspace() {
            let charges = std::mem::take(&mut ctx.scratch.charges);
            if let LimitOp::Take(take) = &mut op
                && !take.peek
                && (take.hold.is_some() || charges.rows().any(|row| row.holds))
            {
                take.lease = Some(node.name_hold());
                // A hold is never returned in part: either all of it is held, or nothing.
                take.part = false;
            }
            let place = self.replies.reserve();
            let of = |hash| partition_of(keyspace, hash);
            let request = MultiOwnerRequest::new(
                router.client,
                place,
                (raw_request, quiet),
                op,
                ctx,
                &charges,
                of,
            );
            ctx.scratch.charges = charges;
            router.submit_multi_owner(&mut router_context(ctx), request);
        }
        ctx.router = Some(router);
    }

    /// Sends the operation of one key of a retrieval.
    // Not inlined, for the reason given at `dispatch`.
    #[inline(never)]
    pub(crate) fn dispatch_key(
        &mut self,
        ctx: &mut ExecContext<'_>,
        command: &Command<'_>,
        lookup: &KeyLookup<'_>,
        (with_cas, touch): (bool, Option<Exptime>),
    ) {
        // A key that no limit can count has no usage to show.
        if lookup.key_limit.is_err() {
            return;
        }
        let own = command.key.as_bytes();
        let (_, hash) = counted_key(ctx.service.shards(), own, None, lookup);
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
        let place = self.replies.reserve();
        submit(ctx, hash, kind, &op.freeze(), place, ReplyKind::Part);
    }

    /// `flush_all`: flushes each partition by its own operation.
    fn flush(&mut self, ctx: &mut ExecContext<'_>, quiet: bool, out: &mut Vec<u8>) {
        ctx.counters.cmd_flush.add(1);
        let partitions = ctx
            .router
            .as_ref()
            .and_then(|router| Some(router.node().keyspace()?.replicas.len()))
            .unwrap_or(0);
        if partitions == 0 {
            self.replies.push_ready(b"SERVER_ERROR not applied: no cluster yet\r\n", out);
            return;
        }
        let place = self.replies.reserve_counted(partitions, if quiet { "" } else { "OK\r\n" });
        for index in 0..partitions {
            let op = operation(OpKind::Flush, b"");
            let partition = Partition(index as u16);
            submit_flush(ctx, partition, &op, place);
        }
    }
}

/// Sends an operation on the key with this hash.
fn submit(
    ctx: &mut ExecContext<'_>,
    hash: u64,
    kind: OpAccess,
    op: &Bytes,
    place: u64,
    reply_kind: ReplyKind,
) {
    let Some(router) = ctx.router.take() else { return };
    let partition = router.partition(hash).unwrap_or_default();
    router.submit(&mut router_context(ctx), partition, kind, op, place, reply_kind);
    ctx.router = Some(router);
}

/// Settles or renews a hold that this node granted by itself.
fn change_own_hold(
    ctx: &mut ExecContext<'_>,
    command: &Command<'_>,
    form: &Form<'_>,
) -> Option<Bytes> {
    if !matches!(command.operation, Operation::Native(Native::Settle { .. } | Native::Renew { .. }))
    {
        return None;
    }
    let router = ctx.router.take()?;
    let text = router.change_own_hold(&mut router_context(ctx), command, form);
    ctx.router = Some(router);
    text
}

/// Sends the operation of `flush_all` for one partition.
fn submit_flush(ctx: &mut ExecContext<'_>, partition: Partition, op: &Bytes, place: u64) {
    let Some(router) = ctx.router.take() else { return };
    let (kind, reply_kind) = (OpAccess::Write, ReplyKind::Counted);
    router.submit_until(&mut router_context(ctx), FLUSH_NS, partition, kind, op, place, reply_kind);
    ctx.router = Some(router);
}

/// Whether the client expects no reply: `noreply`. `q` of a meta command does not hide errors.
pub(super) fn is_silent(request: &Request<'_>) -> bool {
    match request {
        Request::Command { form, .. } => form.is_quiet() && !matches!(form, Form::Meta { .. }),
        Request::TakeMany { quiet, .. } | Request::Admin { quiet, .. } => *quiet,
        Request::Retrieve { .. } => false,
    }
}
