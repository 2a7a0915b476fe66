//! Sending of operations that are due again: after a new link, a new map, or an answer that asks
//! for it.
//!
//! Not here: the first sending (`op_stream`), the end of operations (`ending`).

use super::OpStreams;
use super::stream::{OpState, Pending, Sendings};
use crate::frames::{ForwardOp, op_flags};
use crate::id::{NodeId, Partition};
use crate::position::NodeTime;
use crate::route::Destination;
use crate::rules::Bug;

impl OpStreams {
    /// Sends the due operations again: each in a frame of its own, by ascending numbers, to the
    /// newest route. `emit` gets the node and the frame. It returns false if the node is
    /// unreachable; the next link to it sends the operation again. An operation without a route
    /// waits.
    pub fn send_again(
        &mut self,
        now: NodeTime,
        mut route: impl FnMut(Partition) -> Option<Destination>,
        mut emit: impl FnMut(NodeId, &[u8]) -> bool,
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
            let is_first = !pending.sendings.is_any();
            if !is_first && self.options.rules.lack(Bug::NumberNotKeptOnResend) {
                let (old, next) = (*pending, ops.next());
                ops.pending.push_back(Pending {
                    sendings: Sendings::default(),
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
            pending.mark_sent(route, sending);
            let op_flags = pending.op_flags | again;
            let request = ForwardOp { partition: pending.partition, term: route.term, op_flags };
            let (from, bytes) = (pending.line_at as usize, pending.line_bytes as usize);
            self.writer.request(request, &ops.lines[from..from + bytes]);
            frame.clear();
            self.finish(stream, number, Some(&mut frame));
            if !emit(route.node, &frame) && is_first {
                // The first sending never left this node, so no other node has seen the operation.
                self.unsent(stream, number);
            }
        }
    }

    fn unsent(&mut self, stream: u16, number: u64) {
        let ops = &mut self.streams[usize::from(stream)];
        if let Some(place) = ops.place(number) {
            ops.pending[place].sendings = Sendings::default();
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
        mut route: impl FnMut(Partition) -> Option<Destination>,
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
