//! The results of operations on their way to clients.
//!
//! Not here: the reply that a result becomes (`pending`), the order of replies (`reply_queue`).

use std::sync::atomic::Ordering;

use super::{Router, RouterContext};
use crate::node::multi_owner::MultiOwnerResult;
use crate::node::pending::{
    Client, Completion, OpAccess, OpResult, PendingOp, ReplyKind, ReplyRun, text_of,
};
use crate::node::reply_queue::ReplyQueue;

/// Longer text buffers are released.
const TEXTS_KEPT_BYTES: usize = 1 << 20;

impl Router {
    /// Delivers the results of operations to their clients.
    ///
    /// The consequences of a result are handled by the same call: nested calls for each of many
    /// requests could exceed a thread's stack.
    pub(super) fn deliver(&mut self, ctx: &mut RouterContext<'_>) {
        if self.is_delivering {
            return;
        }
        self.is_delivering = true;
        while !self.results.is_empty()
            || !self.ended_multi_owner.is_empty()
            || !self.ended_leases.is_empty()
        {
            let mut results = std::mem::take(&mut self.results);
            for (pending, result) in results.drain(..) {
                self.deliver_one(ctx, pending, result);
            }
            if self.results.is_empty() {
                self.results = results;
            }
            self.finish_multi_owner(ctx);
            self.finish_leases(ctx);
        }
        self.is_delivering = false;
    }

    fn deliver_one(&mut self, ctx: &mut RouterContext<'_>, pending: PendingOp, result: OpResult) {
        match &result {
            OpResult::Done(_) => {}
            OpResult::NotApplied(_) => {
                self.node.metrics.not_applied.fetch_add(1, Ordering::Relaxed);
            }
            OpResult::Unknown => {
                self.node.metrics.unknown.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.note_reach(ctx.now, pending.partition, &result);
        match pending.reply_kind {
            ReplyKind::Debt(index) => return self.debt_ended(ctx, index, &result),
            ReplyKind::Hold(index) => return self.on_hold_sent(index, &result),
            _ => {}
        }
        if let ReplyKind::Limited { quiet, raw_request } = &pending.reply_kind
            && !matches!(result, OpResult::Done(_))
        {
            let (quiet, raw_request) = (*quiet, raw_request.clone());
            let Err(error) = text_of(result) else { return };
            return self.answer_failed(ctx, &pending, &raw_request, quiet, error);
        }
        let PendingOp { client, place, reply_kind, .. } = pending;
        if let ReplyKind::SubRequest { request, row } = reply_kind {
            if let Some(kept) = self.multi_owner.get_mut(request)
                && kept.note(row, text_of(result))
            {
                self.ended_multi_owner.push(request);
            }
            return;
        }
        if let ReplyKind::LeasePart { lease, part } = reply_kind {
            return self.note_lease_part(lease, part, text_of(result));
        }
        self.completions.push(Completion { client, place, kind: reply_kind, result });
    }

    fn finish_multi_owner(&mut self, ctx: &mut RouterContext<'_>) {
        while let Some(index) = self.ended_multi_owner.pop() {
            let Some(request) = self.multi_owner.try_remove(index) else { continue };
            let (ended, back) = request.finish(ctx);
            let completion = match ended {
                MultiOwnerResult::Completed(completion) => completion,
                MultiOwnerResult::Failed { client, place, raw_request, quiet, error } => {
                    let error = if quiet { "" } else { error };
                    let text = self.answer_degraded(ctx, &raw_request, error);
                    Completion::ready(client, place, text)
                }
            };
            self.completions.push(completion);
            for (partition, op) in back {
                self.submit(ctx, partition, OpAccess::Write, &op, 0, ReplyKind::Nothing);
            }
        }
    }

    pub(crate) fn text_of(&self, run: &ReplyRun) -> &[u8] {
        self.texts.get(run.text.0..run.text.1).unwrap_or_default()
    }

    /// Clears the texts once all runs were delivered to their clients.
    pub(crate) fn forget_texts(&mut self) {
        if self.runs.is_empty() {
            self.texts.clear();
            if self.texts.capacity() > TEXTS_KEPT_BYTES {
                self.texts = Vec::new();
            }
        }
    }

    /// Delivers the completed replies of the current client.
    pub(crate) fn deliver_to(&mut self, client: Client, replies: &mut ReplyQueue) {
        if !self.runs.is_empty() {
            for run in self.runs.extract_if(.., |run| run.client == client) {
                let text = self.texts.get(run.text.0..run.text.1).unwrap_or_default();
                replies.complete_run(run.place, run.count as usize, text);
            }
        }
        if self.completions.is_empty() {
            return;
        }
        for completion in self.completions.extract_if(.., |completion| completion.client == client)
        {
            completion.complete(replies);
        }
    }
}
