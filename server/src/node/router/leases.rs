//! Leases over several owners that are under way: from a request to its operations, and the ends of
//! the rounds.
//!
//! Not here: the rounds (`multi_owner::lease`).

use std::sync::Arc;

use bytes::Bytes;
use protocol::{Form, Lease, Native, Operation, PolicyArg};
use tollgate_limits::LimitMatch;

use super::{Router, RouterContext};
use crate::node::dispatch::Dispatch;
use crate::node::multi_owner::lease::{LeaseRequest, RoundResult};
use crate::node::pending::{OpAccess, ReplyKind};
use crate::node::router::router_context;
use crate::node::state_machine::partition_of;
use crate::node::sub_request::LEASES_VERSION;

const NO_LEASES: &str =
    "SERVER_ERROR quota of a limit with parents is not leased before all nodes are updated";

/// The lease that a command on a key whose limit has parents takes from all of them.
pub(in crate::node) fn lease_of<'o, 'a>(
    found: &LimitMatch<'_>,
    operation: &'o Operation<'a>,
) -> Option<&'o Lease<'a>> {
    let Operation::Native(Native::Lease(lease)) = operation else { return None };
    let is_own = match lease.policy {
        PolicyArg::Configured => true,
        PolicyArg::Named(name) => name == found.limit().name().as_bytes(),
        PolicyArg::Inline(_) => false,
    };
    (is_own && found.companion().is_none()).then_some(lease)
}

impl Dispatch<'_, '_> {
    /// Leases quota of a key and its parents from their owners.
    pub(in crate::node) fn submit_lease(
        &mut self,
        raw_request: &[u8],
        found: &LimitMatch<'_>,
        (lease, form): (&Lease<'_>, &Form<'_>),
        out: &mut Vec<u8>,
    ) {
        let node = Arc::clone(self.router.node());
        if !node.has_features(LEASES_VERSION) {
            return self.push_error(NO_LEASES, form, out);
        }
        if let Some(error) = self.ctx.list_for_lease(found) {
            return self.push_error(&error, form, out);
        }
        let Some(keyspace) = node.keyspace() else { return };
        let Self { router, ctx, replies } = self;
        let charges = std::mem::take(&mut ctx.scratch.charges);
        let place = replies.reserve();
        let request = LeaseRequest::new(
            (router.client, place),
            (raw_request, form.is_quiet()),
            lease,
            ctx,
            &charges,
            |hash| partition_of(keyspace, hash),
        );
        ctx.scratch.charges = charges;
        router.begin_round_of(&mut router_context(ctx), Box::new(request));
    }
}

impl Router {
    /// Submits the operations of a round.
    fn begin_round_of(&mut self, ctx: &mut RouterContext<'_>, request: Box<LeaseRequest>) {
        let operations = request.operations();
        let lease = self.leases.insert(request);
        for (part, (partition, op)) in operations.into_iter().enumerate() {
            let reply_kind = ReplyKind::LeasePart { lease, part };
            self.submit(ctx, partition, OpAccess::Write, &op, 0, reply_kind);
        }
    }

    pub(super) fn note_lease_part(
        &mut self,
        lease: usize,
        part: usize,
        result: Result<Bytes, &'static str>,
    ) {
        if let Some(request) = self.leases.get_mut(lease)
            && request.note(part, result)
        {
            self.ended_leases.push(lease);
        }
    }

    /// Ends the rounds whose operations are all done.
    pub(super) fn finish_leases(&mut self, ctx: &mut RouterContext<'_>) {
        while let Some(index) = self.ended_leases.pop() {
            let Some(request) = self.leases.try_remove(index) else { continue };
            let (result, back) = request.finish(ctx);
            for (partition, op) in back {
                self.submit(ctx, partition, OpAccess::Write, &op, 0, ReplyKind::Nothing);
            }
            match result {
                RoundResult::Next(request) => self.begin_round_of(ctx, request),
                RoundResult::Completed(completion) => self.completions.push(completion),
            }
        }
    }
}
