//! Sending of operations: new ones, and those that are due again.
//!
//! Not here: the end of operations (`ending`), their storage (`stream`).

use super::stream::{OpState, Pending};
use super::{MS, OpStreams, Sending};
use crate::frames::{ForwardHead, ForwardOp, op_flags};
use crate::id::{CopyId, NodeId, Partition};
use crate::position::NodeTime;
use crate::route::Route;
use crate::rules::Bug;

impl OpStreams {
    /// Sends the operations of an op stream that were submitted and never sent. Runs that `route`
    /// sends to the op stream's owner are appended to `out`, if given; all others wait for
    /// [`send_again`](Self::send_again).
    pub fn send_new(
        &mut self,
        stream: u16,
        now: NodeTime,
        mut route: impl FnMut(Partition) -> Option<Route>,
        mut out: Option<&mut Vec<u8>>,
    ) {
        let ops = &self.streams[usize::from(stream)];
        let (owner, end) = (ops.id.owner, ops.next());
        let mut number = ops.new_from.max(ops.first);
        let mut run: Option<u64> = None;
        while number < end {
            let ops = &mut self.streams[usize::from(stream)];
            let Some(place) = ops.place(number) else { break };
            let pending = &mut ops.pending[place];
            let is_new = pending.state == OpState::New;
            if is_new
                && out.is_some()
                && let Some(route) = route(pending.partition)
                && route.primary.node == owner
            {
                let first = *run.get_or_insert(number);
                let sending = self.first_sending + self.sendings.len() as u64;
                mark_sent(pending, route, sending);
                let (from, bytes) = (pending.line_at as usize, pending.line_bytes as usize);
                let request = ForwardOp {
                    partition: pending.partition,
                    term: route.term,
                    op_flags: pending.op_flags,
                };
                self.writer.request(request, &ops.lines[from..from + bytes]);
                if self.writer.count() >= self.options.frame_requests_max {
                    self.finish(stream, first, now, out.as_deref_mut());
                    run = None;
                }
            } else {
                if let Some(first) = run.take() {
                    self.finish(stream, first, now, out.as_deref_mut());
                }
                if is_new {
                    self.streams[usize::from(stream)].pending[place].state = OpState::Waits;
                    self.again.push((now.mono_ns, stream, number));
                }
            }
            number += 1;
        }
        if let Some(first) = run {
            self.finish(stream, first, now, out);
        }
        self.streams[usize::from(stream)].new_from = end;
    }

    /// Finishes the frame in the writer.
    fn finish(&mut self, stream: u16, first: u64, _now: NodeTime, out: Option<&mut Vec<u8>>) {
        let ops = &self.streams[usize::from(stream)];
        let sending = self.first_sending + self.sendings.len() as u64;
        let count = self.writer.count() as u16;
        self.sendings.push_back(Sending { stream, count, first });
        let left_ms = u16::try_from(self.options.deadline_ns / MS).unwrap_or(u16::MAX);
        let head = ForwardHead { sending, stream: ops.id, first, done: ops.first, left_ms };
        let mut nowhere = Vec::new();
        self.writer.finish(&head, out.unwrap_or(&mut nowhere));
    }

    /// Sends the due operations again: each in a frame of its own, by ascending numbers, to the
    /// newest route. `emit` gets the primary and the frame. It returns false if the primary is
    /// unreachable; the next link to it sends the operation again. An operation without a route
    /// waits.
    pub fn send_again(
        &mut self,
        now: NodeTime,
        mut route: impl FnMut(Partition) -> Option<Route>,
        mut emit: impl FnMut(CopyId, &[u8]) -> bool,
    ) {
        if self.again.is_empty() {
            return;
        }
        let mut due = std::mem::take(&mut self.again);
        due.sort_unstable_by_key(|&(_, stream, number)| (stream, number));
        due.dedup_by_key(|&mut (_, stream, number)| (stream, number));
        let mut frame = Vec::new();
        for (due_ns, stream, number) in due {
            let ops = &mut self.streams[usize::from(stream)];
            let Some(place) = ops.place(number) else { continue };
            let pending = &mut ops.pending[place];
            if pending.state != OpState::Waits {
                continue;
            }
            if due_ns > now.mono_ns {
                self.again.push((due_ns, stream, number));
                continue;
            }
            let Some(route) = route(pending.partition) else {
                self.again.push((now.mono_ns + self.options.retry_ns, stream, number));
                continue;
            };
            let is_first = pending.sendings == 0;
            if !is_first && self.options.rules.lack(Bug::NumberNotKeptOnResend) {
                let (old, next) = (*pending, ops.next());
                ops.pending.push_back(Pending {
                    sendings: 0,
                    refused: 0,
                    op_flags: old.op_flags,
                    ..old
                });
                ops.pending[place].line_bytes = 0;
                ops.unanswered += 1;
                ops.end(place, &mut self.waiting);
                self.again.push((now.mono_ns, stream, next));
                continue;
            }
            let again = if is_first { 0 } else { op_flags::AGAIN };
            let sending = self.first_sending + self.sendings.len() as u64;
            mark_sent(pending, route, sending);
            let op_flags = pending.op_flags | again;
            let request = ForwardOp { partition: pending.partition, term: route.term, op_flags };
            let (from, bytes) = (pending.line_at as usize, pending.line_bytes as usize);
            self.writer.request(request, &ops.lines[from..from + bytes]);
            frame.clear();
            self.finish(stream, number, now, Some(&mut frame));
            if !emit(route.primary, &frame) && is_first {
                // The first sending never left this node, so no other node has seen the operation.
                self.unsent(stream, number);
            }
        }
    }

    fn unsent(&mut self, stream: u16, number: u64) {
        let ops = &mut self.streams[usize::from(stream)];
        if let Some(place) = ops.place(number) {
            ops.pending[place].sendings = 0;
        }
    }

    /// Handles a new link to a node: schedules every unanswered operation sent to the node for the
    /// next [`send_again`](Self::send_again).
    pub fn link_up(&mut self, node: NodeId, now: NodeTime) {
        self.wait_again(now, |pending| pending.node == node);
    }

    /// Handles a change of the map: schedules operations that were sent in an older term than
    /// `route` returns for the next [`send_again`](Self::send_again).
    pub fn routes_changed(
        &mut self,
        now: NodeTime,
        mut route: impl FnMut(Partition) -> Option<Route>,
    ) {
        self.wait_again(now, |pending| {
            route(pending.partition).is_some_and(|route| route.term > pending.term)
        });
    }

    fn wait_again(&mut self, now: NodeTime, mut is_due: impl FnMut(&Pending) -> bool) {
        for (at, ops) in self.streams.iter_mut().enumerate() {
            for (place, pending) in ops.pending.iter_mut().enumerate() {
                if pending.state == OpState::Sent && is_due(pending) {
                    pending.state = OpState::Waits;
                    self.again.push((now.mono_ns, at as u16, ops.first + place as u64));
                }
            }
        }
    }
}

fn mark_sent(pending: &mut Pending, route: Route, sending: u64) {
    pending.state = OpState::Sent;
    pending.sending = sending;
    pending.term = route.term;
    pending.node = route.primary.node;
    pending.sendings = pending.sendings.saturating_add(1);
}
