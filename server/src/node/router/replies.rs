//! Replies on their way to clients and to the nodes that forwarded the operations.
//!
//! Here: releasing, repeating and abandoning replies that wait until the copies of their keys have
//! acknowledged; delivering results to clients. Not here: parking replies (`owner`, `local_batch`,
//! `fast_op`), the order of acknowledgements (`cluster::parked_reply`), the reply that a result
//! becomes (`pending`), the order of replies (`reply_queue`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use cluster::LinkIndex;
use cluster::frames::{ExceptionKind, op_flags};
use cluster::id::Partition;
use cluster::op_stream::{NewOp, OpEnd, OpOutcome as PlaneEnding};
use cluster::parked_reply::{ParkedBatch, Released};
use cluster::replica::{Opening, Refusal};

use super::data_plane::{DataPlane, FORWARDED, ForwardedOps, NO_STREAM, note_ended};
use super::{DEADLINE_NS, Router, RouterContext};
use crate::node::multi_owner::MultiOwnerResult;
use crate::node::pending::{
    Client, Completion, OpAccess, OpResult, PendingOp, ReplyKind, ReplyRun, text_of,
};
use crate::node::reply_queue::ReplyQueue;

/// A reply waits this long for a silent copy, which the controller should remove meanwhile.
const REMOVAL_NS: u64 = 3_000_000_000;

/// Longer text buffers are released.
const TEXTS_KEPT_BYTES: usize = 1 << 20;

/// The outcome of a parked operation: its reply, or the need to send it again.
enum LocalOutcome<'a> {
    Reply(&'a [u8]),
    Again,
}

impl Router {
    /// Releases the replies whose copies have acknowledged. `acked` was read before the inbox was
    /// emptied.
    pub(super) fn release_replies(
        &mut self,
        ctx: &mut RouterContext<'_>,
        acked: &[(LinkIndex, u64)],
    ) {
        let Some(plane) = self.plane.as_deref_mut() else { return };
        if plane.parked.is_empty() {
            return;
        }
        let copies = self.node.keyspace().map(|keyspace| &keyspace.replicas);
        let is_stopped = copies.is_some_and(|copies| copies.is_stopped(self.contact, ctx.now));
        let mut parked = std::mem::take(&mut plane.parked);
        if is_stopped {
            // A newer primary may have answered differently since.
            parked.drain(|batch, place| self.abandon(batch, place));
        } else {
            for &(link, position) in acked {
                parked.release(link, position, |released| self.released(ctx, released));
            }
            parked.release_opened(|released| self.released(ctx, released));
        }
        if let Some(plane) = self.plane.as_deref_mut() {
            plane.parked = parked;
        }
        self.end_operations();
    }

    /// Handles a change of a partition that replies may wait for.
    pub(super) fn open_replies(&mut self, ctx: &mut RouterContext<'_>, opening: &Opening) {
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let mut parked = std::mem::take(&mut plane.parked);
        parked.open(opening, |released| self.released(ctx, released));
        if let Some(plane) = self.plane.as_deref_mut() {
            plane.parked = parked;
        }
        self.end_operations();
    }

    /// Returns the links that replies wait for, with their acknowledged positions. Updates
    /// `is_held_back`.
    pub(super) fn read_acked(&mut self) -> ArrayVec<(LinkIndex, u64), 64> {
        let mut acked = ArrayVec::new();
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return acked };
        plane.cache.refresh(node.links());
        plane.is_held_back = plane.cache.is_any_over_half();
        if plane.parked.is_empty() {
            return acked;
        }
        for index in plane.parked.links().take(acked.capacity()) {
            if let Some(link) = plane.cache.get(node.links(), index) {
                acked.push((index, link.acked.get()));
            }
        }
        acked
    }

    fn released(&mut self, ctx: &mut RouterContext<'_>, released: Released<'_>) {
        match released {
            Released::Whole(batch) if batch.token & FORWARDED != 0 => self.answer_parked(batch),
            Released::Whole(batch) => {
                self.end_numbers(batch, 0..batch.ops().len());
                self.reply_run(batch.token, 0, batch.ops().len(), batch.text());
            }
            Released::One(batch, place) => {
                self.released_one(ctx, batch, place, &LocalOutcome::Reply(batch.text_of(place)));
            }
            Released::Again(batch, place) => {
                self.released_one(ctx, batch, place, &LocalOutcome::Again);
            }
        }
    }

    /// Gives up replies that wait for copies whose links make no progress.
    pub(super) fn expire_replies(&mut self, ctx: &RouterContext<'_>) {
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        if plane.parked.is_empty() {
            return;
        }
        let mut parked = std::mem::take(&mut plane.parked);
        let now_ns = ctx.now.mono_ns;
        // With most voters in reach, the controller removes an unreachable copy.
        let patience_ns = if node.paths.is_cut_off() { DEADLINE_NS } else { REMOVAL_NS };
        let is_late = |since_ns: u64, link: LinkIndex| {
            let progress_ns = node.links().get(link).map_or(0, |link| link.progress_ns());
            now_ns.saturating_sub(since_ns.max(progress_ns)) >= patience_ns
        };
        parked.expire(is_late, |batch, place| self.abandon(batch, place));
        if let Some(plane) = self.plane.as_deref_mut() {
            plane.parked = parked;
        }
    }

    /// Gives up an operation whose reply must not be sent any more. The sender of a forwarded one
    /// gets no answer, and asks the next owner.
    fn abandon(&mut self, batch: &ParkedBatch, at: usize) {
        let Some(plane) = self.plane.as_deref_mut() else { return };
        if batch.token & FORWARDED != 0 {
            plane.forwarded_ops.try_remove((batch.token & !FORWARDED) as usize);
            return;
        }
        self.end_numbers(batch, at..at + 1);
        let is_read = batch.ops()[at].op_flags & op_flags::READ != 0;
        let result = if is_read {
            PlaneEnding::NotApplied(Refusal::Unreachable)
        } else {
            PlaneEnding::Unknown
        };
        self.end_parked(batch, at, result);
    }

    fn end_parked(&mut self, batch: &ParkedBatch, at: usize, result: PlaneEnding<'_>) {
        let (token, index) = (batch.token, at as u32);
        let (partition, line) = (batch.ops()[at].partition, batch.line_of(at));
        let ended = OpEnd { token, index, count: 1, partition, line, outcome: result };
        note_ended(&mut self.pending_ops, &mut self.ended_ops, &mut self.texts, ended);
    }

    /// Answers a run of forwarded operations.
    fn answer_parked(&mut self, batch: &ParkedBatch) {
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let key = (batch.token & !FORWARDED) as usize;
        let Some(forwarded) = plane.forwarded_ops.try_remove(key) else { return };
        plane.answer_batch(&node, forwarded, batch);
    }

    fn released_one(
        &mut self,
        ctx: &mut RouterContext<'_>,
        batch: &ParkedBatch,
        at: usize,
        outcome: &LocalOutcome<'_>,
    ) {
        if batch.token & FORWARDED != 0 {
            return self.answer_one(batch, at, outcome);
        }
        match outcome {
            LocalOutcome::Reply(text) => {
                self.end_numbers(batch, at..at + 1);
                self.reply_run(batch.token, at, 1, text);
            }
            LocalOutcome::Again => self.resend(ctx, batch, at),
        }
    }

    fn answer_one(&mut self, batch: &ParkedBatch, at: usize, outcome: &LocalOutcome<'_>) {
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let key = (batch.token & !FORWARDED) as usize;
        let Some(forwarded) = plane.forwarded_ops.get_mut(key) else { return };
        forwarded.left = forwarded.left.saturating_sub(1);
        let one = ForwardedOps { first: forwarded.first + at as u16, ..*forwarded };
        if forwarded.left == 0 {
            plane.forwarded_ops.remove(key);
        }
        match outcome {
            LocalOutcome::Reply(text) => {
                plane.answers.text(text);
                plane.send_answers(&node, one);
            }
            LocalOutcome::Again => {
                let partition = batch.ops()[at].partition;
                let route = node.keyspace().and_then(|keyspace| keyspace.replicas.route(partition));
                plane.send_exception(&node, one, ExceptionKind::Deposed(route));
            }
        }
    }

    /// Sends an operation of this worker, which was performed here without a reply, to the newest
    /// owner.
    fn resend(&mut self, ctx: &mut RouterContext<'_>, batch: &ParkedBatch, at: usize) {
        let op = &batch.ops()[at];
        let owner = self.owner_of(op.partition);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let line = batch.line_of(at);
        let is_asked = if op.stream == NO_STREAM {
            let (token, index) = (batch.token, at as u32);
            let (partition, op_flags) = (op.partition, op.op_flags & !op_flags::AGAIN);
            let submitted = NewOp { partition, op_flags, token, index, for_ns: 0 };
            plane.submit(owner, &submitted, line, ctx.now)
        } else {
            plane.ops.reopen(op.stream, op.number, line, ctx.now)
        };
        if !is_asked {
            self.end_parked(batch, at, PlaneEnding::Unknown);
        }
    }

    fn end_numbers(&mut self, batch: &ParkedBatch, places: std::ops::Range<usize>) {
        let Some(plane) = self.plane.as_deref_mut() else { return };
        for op in batch.ops()[places].iter().filter(|op| op.stream != NO_STREAM) {
            plane.ops.answered(op.stream, op.number);
        }
    }

    /// Completes `count` requests of a client, from index `index` of the pending operation on.
    fn reply_run(&mut self, token: u64, index: usize, count: usize, text: &[u8]) {
        let (index, count) = (index as u32, count as u32);
        let (partition, result) = (Partition::default(), PlaneEnding::Done(text));
        let ended = OpEnd { token, index, count, partition, line: &[], outcome: result };
        note_ended(&mut self.pending_ops, &mut self.ended_ops, &mut self.texts, ended);
    }

    /// Records a run of forwarded operations whose replies wait for copies, and returns its token.
    pub(super) fn wait_for_copies(plane: &mut DataPlane, forwarded: ForwardedOps) -> u64 {
        plane.forwarded_ops.insert(forwarded) as u64 | FORWARDED
    }

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
