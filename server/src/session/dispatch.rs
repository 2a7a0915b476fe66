//! The requests of a client in a cluster: which of them the node dispatches to the owners of keys,
//! and when the client must wait for other nodes.
//!
//! Not here: the operations of a request (`node::dispatch`), batches of fast-path requests
//! (`cluster_batch`).

use protocol::{Admin, Request};

use super::retrieve::Retrieval;
use super::{ClusterContext, Session, SessionContext};
use crate::commands::context::RequestOutcome;
use crate::commands::lookup::KeyLookup;
use crate::node::dispatch::Dispatch;
use crate::node::router::Router;

impl Session {
    /// Returns the node's part of this client's request; `None` outside a cluster.
    #[inline]
    pub(super) fn dispatch_in<'d, 'a>(
        &'d mut self,
        ctx: &'d mut SessionContext<'a>,
    ) -> Option<Dispatch<'d, 'a>> {
        let SessionContext { exec, cluster, .. } = ctx;
        let ClusterContext { router, .. } = cluster.as_mut()?;
        Some(Dispatch { router, ctx: exec, replies: &mut self.replies })
    }

    /// Moves completed replies into the queue and flushes the ready prefix to `out`. Returns true
    /// while too many requests are outstanding.
    pub(super) fn is_throttled(&mut self, ctx: &mut SessionContext<'_>, out: &mut Vec<u8>) -> bool {
        let Some(ClusterContext { router, .. }) = &mut ctx.cluster else { return false };
        router.deliver_to(router.client, &mut self.replies);
        self.replies.collect(out);
        self.must_wait(router)
    }

    /// Whether this client, or the other nodes, owe too many replies for further requests to be
    /// read.
    #[inline]
    pub(super) fn must_wait(&self, router: &Router) -> bool {
        let is_behind = router.is_full() || router.is_held_back();
        self.replies.is_full() || (is_behind && !self.replies.is_empty())
    }

    /// The clustered form of `answer`. `raw_request` is the request as the client wrote it.
    // Not inlined: a server without a cluster must not pay for its code.
    #[inline(never)]
    pub(super) fn answer_in_cluster(
        &mut self,
        ctx: &mut SessionContext<'_>,
        request: &Request<'_>,
        raw_request: &[u8],
        lookup: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome {
        if self.is_throttled(ctx, out) {
            return RequestOutcome::NotYet;
        }
        if !self.authenticated {
            return self.authenticate(&ctx.exec, request, out);
        }
        let is_on_keys = !matches!(request, Request::Admin { .. });
        if is_on_keys
            && ctx.cluster.as_ref().is_none_or(|cluster| cluster.node.keyspace().is_none())
        {
            return self.refuse_start(ctx, request, out);
        }
        self.waited_for_start = false;
        let Some(mut dispatch) = self.dispatch_in(ctx) else { return RequestOutcome::Close };
        match request {
            Request::Retrieve { keys, with_cas, touch } => {
                let retrieval = Retrieval { keys: *keys, with_cas: *with_cas, touch: *touch };
                self.retrieve(ctx, retrieval, lookup, out)
            }
            Request::Command { command, form } => {
                dispatch.command(command, form, raw_request, lookup, out);
                RequestOutcome::Given
            }
            Request::TakeMany { many, quiet } => {
                dispatch.take_many(*many, *quiet, raw_request, out);
                RequestOutcome::Given
            }
            _ if !dispatch.replies.is_empty() => RequestOutcome::NotYet,
            Request::Admin { admin: Admin::Quit, .. } => RequestOutcome::Close,
            Request::Admin { admin: Admin::FlushAll(delay), quiet }
                if dispatch.ctx.service.config().flush_all =>
            {
                dispatch.flush_all(*delay, *quiet, out);
                RequestOutcome::Given
            }
            Request::Admin { admin: Admin::Cluster(verb), .. } => {
                dispatch.cluster_verb(*verb, out);
                RequestOutcome::Given
            }
            Request::Admin { admin, quiet } => dispatch.ctx.admin(*admin, *quiet, out),
        }
    }

    /// Handles a request that arrives before the node has a place in a cluster: the request waits
    /// once, shortly after the start, and is refused later.
    fn refuse_start(
        &mut self,
        ctx: &mut SessionContext<'_>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome {
        let may_wait = !std::mem::take(&mut self.waited_for_start);
        let Some(mut dispatch) = self.dispatch_in(ctx) else { return RequestOutcome::Close };
        if may_wait && dispatch.wait_for_start() {
            self.waited_for_start = true;
            return RequestOutcome::NotYet;
        }
        dispatch.refuse_start(request, out);
        RequestOutcome::Given
    }
}
