//! Frames between a worker and other nodes, over data links and lanes.
//!
//! Here: what a worker sends at the end of a round, what it carries out for others. Not here: sockets
//! (`crate::node::links`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cluster::id::NodeId;
use cluster::message::Frame;
use cluster::replica::{Now, Outcome, Refusal, Reply, Send};

use super::{Front, Lent};
use crate::node::peers::carry_all;

impl Front {
    /// Carries out frames about partitions that a node said over a data link. What that brings about for this
    /// worker's own operations is left to [`Front::carry_out`].
    pub(crate) fn carry(&mut self, lent: &mut Lent<'_>, from: NodeId, frames: &mut Vec<Frame>) {
        let node = Arc::clone(&self.node);
        carry_all(&mut lent.hands(&node, &mut self.work, self.core), from, frames);
        self.take_own_answers(lent.now);
    }

    /// Takes the answers to this worker's operations that its work on copies brought about.
    pub(super) fn take_own_answers(&mut self, now: Now) {
        let mut own = std::mem::take(&mut self.work.own);
        for (partition, reply) in own.drain(..) {
            self.answered(now, partition, reply);
        }
        self.work.own = own;
    }

    pub(super) fn burst(&mut self, to: NodeId, send: Send) {
        let frame = match send {
            Send::Op { partition, op, .. } => {
                self.node.figures.forwarded.fetch_add(1, Ordering::Relaxed);
                Frame::Op { partition, op }
            }
            Send::Settle { partition, term, first_unacked, .. } => {
                Frame::Settle { partition, session: self.session.id(), term, first_unacked }
            }
        };
        self.bursts.entry(to).or_default().push(frame);
    }

    /// The end of a round: what is for other nodes leaves, in one burst each.
    pub(crate) fn send_bursts(&mut self, lent: &mut Lent<'_>) {
        while let Some(partition) = self.gathers.next() {
            self.let_go(lent, partition);
        }
        let node = Arc::clone(&self.node);
        let mut bursts = std::mem::take(&mut self.bursts);
        for (to, frames) in &mut bursts {
            if frames.is_empty() {
                continue;
            }
            node.send_all(*to, frames, lent.now.mono_ns, &mut self.work.touched);
            // As much waits for that node as may: what was not taken was certainly not done.
            for frame in frames.drain(..) {
                if let Frame::Op { partition, op } = frame {
                    let outcome = Outcome::Refused(Refusal::Busy);
                    let reply = Reply { term: op.term, seq: op.seq, outcome };
                    self.answered(lent.now, partition, reply);
                }
            }
        }
        self.bursts = bursts;
        if !self.endings.is_empty() || !self.sends.is_empty() {
            self.carry_out(lent);
        }
        self.work.touched.flush();
        node.figures.direct.fetch_add(std::mem::take(&mut self.at_once), Ordering::Relaxed);
        if let Some(inbox) = node.inbox(self.core) {
            let is_waiting = !self.starting.is_empty()
                || !self.waiters.is_empty()
                || self.session.is_active()
                || !self.debts.is_empty();
            if inbox.is_waiting.load(Ordering::Relaxed) != is_waiting {
                inbox.is_waiting.store(is_waiting, Ordering::SeqCst);
                node.want_ticks();
            }
        }
    }
}
