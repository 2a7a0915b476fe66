//! The context of a router's call, and its parts for replicas and commands.
//!
//! Not here: the router's own state (`router`).

use bytes::{BufMut as _, Bytes, BytesMut};
use cluster::contact::LastContact;
use cluster::replica::NodeTime;

use crate::commands::context::ExecContext;
use crate::commands::scratch::Scratch;
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::net::clock::Clock;
use crate::node::Node;
use crate::node::replicas::{ReplicaContext, ReplicaScratch};
use crate::node::state_machine::OpKind;
use crate::runtime::service::Service;

/// The context that a worker lends its router for one call.
pub(crate) struct RouterContext<'a> {
    pub(crate) service: &'a Service,
    pub(crate) counters: &'a Counters,
    pub(crate) now: NodeTime,
    pub(crate) active_limits: &'a ActiveLimits,
    pub(crate) worker: usize,
    pub(crate) scratch: &'a mut Scratch,
}

impl RouterContext<'_> {
    /// The context for work on replicas.
    pub(super) fn replica_context<'h>(
        &'h mut self,
        node: &'h Node,
        contact: LastContact,
        replica_scratch: &'h mut ReplicaScratch,
    ) -> ReplicaContext<'h> {
        ReplicaContext {
            service: self.service,
            node,
            now: self.now,
            contact,
            counters: self.counters,
            active_limits: self.active_limits,
            worker: self.worker,
            scratch: self.scratch,
            replica_scratch,
        }
    }

    /// A context without a router, for replies and counts of this node, on its monotonic clock.
    pub(in crate::node) fn exec_context(&mut self) -> ExecContext<'_> {
        let mono = engine::Nanos(self.now.mono_ns);
        let now = engine::Now { mono, unix_ms: self.now.wall_ns / 1_000_000 };
        let counters = self.counters;
        ExecContext::of_key(
            self.service,
            counters,
            now,
            self.active_limits,
            self.scratch,
            self.worker,
        )
    }
}

/// The time of a round, as replicas use it.
pub(crate) fn node_now(clock: &Clock, now: engine::Now) -> NodeTime {
    NodeTime { mono_ns: now.mono.0, wall_ns: clock.calendar_ns(now.mono) }
}

pub(in crate::node) fn operation(op_kind: OpKind, raw_request: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(1 + raw_request.len());
    bytes.put_u8(op_kind as u8);
    bytes.put_slice(raw_request);
    bytes.freeze()
}

/// The router's context for a client's request.
pub(crate) fn router_context<'r>(ctx: &'r mut ExecContext<'_>) -> RouterContext<'r> {
    RouterContext {
        service: ctx.service,
        counters: ctx.counters,
        now: node_now(ctx.service.clock(), ctx.now),
        active_limits: ctx.active_limits,
        worker: ctx.worker,
        scratch: ctx.scratch,
    }
}
