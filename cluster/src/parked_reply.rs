//! Parked replies: they wait until other copies hold the changes behind them.
//!
//! The replies of a batch wait together as a parked batch, in the order of the positions that they
//! need on each link. Normally a parked batch is released as a whole. An event of one of its
//! partitions *opens* it: then each of its operations waits for its own needs, and some are sent
//! again. There is one [`ParkedReplies`] for each worker.

mod batch;

use std::collections::VecDeque;

pub use self::batch::{NEEDS_MAX, Need, ParkedBatch, ParkedOp};
use self::batch::{open_batch, release_ready};
use crate::id::LinkIndex;
use crate::replica::{OpenCause, Opening};
use crate::rules::{Bug, Rules};

/// A released batch or operation.
#[derive(Debug, Clone, Copy)]
pub enum Released<'a> {
    /// All replies may be sent.
    Whole(&'a ParkedBatch),
    /// The reply of the operation at this index may be sent; its batch was opened.
    One(&'a ParkedBatch, usize),
    /// The operation at this index must be sent again, under its number, to the newest route. Its
    /// reply here must not be sent. A read may be repeated instead.
    Again(&'a ParkedBatch, usize),
}

#[derive(Debug, Clone, Copy)]
struct ParkedWaiter {
    position: u64,
    place: u32,
    id: u64,
}

/// All parked batches of a worker.
#[derive(Debug, Default)]
pub struct ParkedReplies {
    batches: Vec<ParkedBatch>,
    free: Vec<u32>,
    /// The parked batches that wait for each link, in order.
    queues: Vec<(LinkIndex, VecDeque<ParkedWaiter>)>,
    waiting: usize,
    /// Batches that were opened since the last release.
    opened: Vec<u32>,
    /// Counts the batches parked.
    parked: u64,
    rules: Rules,
}

impl ParkedReplies {
    /// An empty collection.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// The number of waiting batches.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether no batch waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether a batch waits for a link's stream up to `acked`.
    #[must_use]
    pub fn is_due(&self, link: LinkIndex, acked: u64) -> bool {
        let queue = self.queues.iter().find(|(known, _)| *known == link);
        queue.and_then(|(_, queue)| queue.front()).is_some_and(|first| first.position <= acked)
    }

    /// The links that batches wait for.
    pub fn links(&self) -> impl Iterator<Item = LinkIndex> + '_ {
        self.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(link, _)| *link)
    }

    /// An empty batch for operations done at `now_ns`, to be filled and then [parked](Self::park).
    pub fn begin(&mut self, token: u64, now_ns: u64) -> ParkedBatch {
        let place = self.free.last().map(|&place| place as usize);
        let mut batch =
            place.map_or(ParkedBatch::default(), |place| std::mem::take(&mut self.batches[place]));
        batch.clear();
        (batch.token, batch.since_ns) = (token, now_ns);
        batch
    }

    /// Parks a batch until its needs are met. The batch has at least one need, and the `needs` of
    /// each operation are set.
    pub fn park(&mut self, mut batch: ParkedBatch) {
        debug_assert!(batch.needs_count > 0, "what needs nothing is told at once");
        if self.rules.lack(Bug::PieceNeedsOneLink) {
            batch.needs_count = 1;
            batch.ops.iter_mut().for_each(|op| op.needs &= 1);
        }
        batch.left = ((1_u16 << batch.needs_count) - 1) as u8;
        batch.ops_left = batch.ops.len() as u32;
        let place = self.free.pop().unwrap_or_else(|| {
            self.batches.push(ParkedBatch::default());
            self.batches.len() as u32 - 1
        });
        self.parked += 1;
        let id = self.parked;
        batch.id = id;
        for need in &batch.needs[..usize::from(batch.needs_count)] {
            let queue = queue_of(&mut self.queues, need.link);
            // A batch never waits for less than the one before it, so the queue is in order without
            // a search.
            let position = queue.back().map_or(0, |last| last.position).max(need.position);
            queue.push_back(ParkedWaiter { position, place, id });
        }
        self.batches[place as usize] = batch;
        self.waiting += 1;
    }

    /// Calls `each` for everything that only waited for the stream of `link` up to `acked`. The
    /// caller must have emptied its inbox after it read `acked`.
    #[inline]
    pub fn release(&mut self, link: LinkIndex, acked: u64, mut each: impl FnMut(Released<'_>)) {
        let Some(at) = self.queues.iter().position(|(known, _)| *known == link) else { return };
        while let Some(waiting) = self.queues[at].1.pop_front_if(|first| first.position <= acked) {
            let batch = &mut self.batches[waiting.place as usize];
            if batch.id != waiting.id || batch.ops_left == 0 {
                continue;
            }
            let Some((bit, _)) = batch.position_on(link) else { continue };
            batch.left &= !bit;
            if batch.is_opened {
                release_ready(batch, &mut each);
            } else if batch.left == 0 {
                batch.ops_left = 0;
                each(Released::Whole(batch));
            }
            self.recycle(waiting.place);
        }
    }

    /// Opens the batches that have operations of a partition. Calls `each` for the operations that
    /// must be sent again. Releases nothing, because another opening may follow in the inbox: see
    /// [`ParkedReplies::release_opened`].
    pub fn open(&mut self, opening: &Opening, mut each: impl FnMut(Released<'_>)) {
        let is_deposal = matches!(opening.cause, OpenCause::Deposed { .. });
        if is_deposal && self.rules.lack(Bug::DeposalOpensNothing) {
            return;
        }
        for place in 0..self.batches.len() {
            let batch = &mut self.batches[place];
            if batch.ops_left == 0 {
                continue;
            }
            open_batch(batch, opening, self.rules, &mut each);
            if batch.is_opened {
                self.opened.push(place as u32);
            }
            self.recycle(place as u32);
        }
    }

    /// Releases the operations that need nothing more since their batches were opened. Called once
    /// the inbox is empty.
    pub fn release_opened(&mut self, mut each: impl FnMut(Released<'_>)) {
        while let Some(place) = self.opened.pop() {
            let batch = &mut self.batches[place as usize];
            if batch.is_opened && batch.ops_left > 0 {
                release_ready(batch, &mut each);
                self.recycle(place);
            }
        }
    }

    /// Gives up batches that wait too long. `is_late` decides from the time at which the operations
    /// were done and a link that the batch waits for. Calls `each` for each of their operations,
    /// which have an unknown outcome then.
    pub fn expire(
        &mut self,
        mut is_late: impl FnMut(u64, LinkIndex) -> bool,
        mut each: impl FnMut(&ParkedBatch, usize),
    ) {
        for place in 0..self.batches.len() {
            let batch = &mut self.batches[place];
            let needs = &batch.needs[..usize::from(batch.needs_count)];
            let mut waits = needs.iter().enumerate().filter(|(bit, _)| batch.left >> bit & 1 == 1);
            if batch.ops_left > 0 && waits.any(|(_, need)| is_late(batch.since_ns, need.link)) {
                batch.abandon(&mut each);
                self.recycle(place as u32);
            }
        }
    }

    /// Drops the queue of a link that no set contains any more.
    pub fn forget(&mut self, link: LinkIndex) {
        self.queues.retain(|(known, _)| *known != link);
    }

    /// Gives up all parked batches, and calls `each` for each operation. Used when the node has
    /// lost its contact, and drops its clients.
    pub fn drain(&mut self, mut each: impl FnMut(&ParkedBatch, usize)) {
        for batch in &mut self.batches {
            if batch.ops_left == 0 {
                continue;
            }
            batch.abandon(&mut each);
        }
        self.queues.iter_mut().for_each(|(_, queue)| queue.clear());
        self.opened.clear();
        self.free = (0..self.batches.len() as u32).collect();
        self.batches.iter_mut().for_each(ParkedBatch::clear);
        self.waiting = 0;
    }

    fn recycle(&mut self, place: u32) {
        let batch = &mut self.batches[place as usize];
        if batch.ops_left == 0 && !batch.ops.is_empty() {
            batch.clear();
            self.free.push(place);
            self.waiting -= 1;
        }
    }
}

fn queue_of(
    queues: &mut Vec<(LinkIndex, VecDeque<ParkedWaiter>)>,
    link: LinkIndex,
) -> &mut VecDeque<ParkedWaiter> {
    let place = queues.iter().position(|(known, _)| *known == link).unwrap_or_else(|| {
        queues.push((link, VecDeque::new()));
        queues.len() - 1
    });
    &mut queues[place].1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Partition, Term};

    const ONE: LinkIndex = LinkIndex(1);
    const TWO: LinkIndex = LinkIndex(2);

    #[derive(Debug, PartialEq, Eq)]
    enum Seen {
        Whole(u64),
        One(u64, usize),
        Again(u64, usize),
    }

    fn note(seen: &mut Vec<Seen>) -> impl FnMut(Released<'_>) + '_ {
        |released| {
            seen.push(match released {
                Released::Whole(batch) => Seen::Whole(batch.token),
                Released::One(batch, place) => Seen::One(batch.token, place),
                Released::Again(batch, place) => Seen::Again(batch.token, place),
            });
        }
    }

    /// Parks a batch of operations: each of a partition, and each needs the given links at
    /// `position`.
    fn park(parked: &mut ParkedReplies, token: u64, position: u64, ops: &[(u16, &[LinkIndex])]) {
        let mut batch = parked.begin(token, 0);
        for (partition, links) in ops {
            let mut op = ParkedOp::new(Partition(*partition), Term(3), 0);
            for &link in *links {
                op.needs |= batch.need(Need { link, position });
            }
            batch.push(op, b"text", b"line");
        }
        parked.park(batch);
    }

    #[test]
    fn batch_is_released_when_each_link_has_its_position() {
        let (mut parked, mut seen) = (ParkedReplies::default(), Vec::new());
        park(&mut parked, 1, 10, &[(0, &[ONE]), (1, &[TWO])]);
        park(&mut parked, 2, 20, &[(0, &[ONE])]);
        parked.release(ONE, 9, note(&mut seen));
        assert_eq!(seen, []);
        parked.release(ONE, 20, note(&mut seen));
        assert_eq!(seen, [Seen::Whole(2)]);
        parked.release(TWO, 10, note(&mut seen));
        assert_eq!(seen, [Seen::Whole(2), Seen::Whole(1)]);
        assert!(parked.is_empty());
        park(&mut parked, 3, 30, &[(0, &[ONE])]);
        assert_eq!(parked.batches.len(), 2, "places are used again");
    }

    #[test]
    fn refusal_sends_operations_of_its_partition_again() {
        let (mut parked, mut seen) = (ParkedReplies::default(), Vec::new());
        park(&mut parked, 1, 10, &[(0, &[ONE])]);
        park(&mut parked, 2, 20, &[(0, &[ONE]), (1, &[ONE])]);
        let cause = OpenCause::Refused { term: Term(3), link: ONE, from: 20 };
        parked.open(&Opening { partition: Partition(0), cause }, note(&mut seen));
        assert_eq!(seen, [Seen::Again(2, 0)]);
        parked.release(ONE, 20, note(&mut seen));
        assert_eq!(seen, [Seen::Again(2, 0), Seen::Whole(1), Seen::One(2, 1)]);
        assert!(parked.is_empty());
    }

    #[test]
    fn removal_frees_operations_of_its_partition_only() {
        let (mut parked, mut seen) = (ParkedReplies::default(), Vec::new());
        park(&mut parked, 1, 10, &[(0, &[ONE]), (1, &[ONE]), (0, &[ONE, TWO])]);
        let cause = OpenCause::Removed { link: ONE, up_to: 10 };
        parked.open(&Opening { partition: Partition(0), cause }, note(&mut seen));
        assert_eq!(seen, [], "another opening may follow");
        parked.release_opened(note(&mut seen));
        assert_eq!(seen, [Seen::One(1, 0)]);
        parked.release(TWO, 10, note(&mut seen));
        parked.release(ONE, 10, note(&mut seen));
        assert_eq!(seen, [Seen::One(1, 0), Seen::One(1, 2), Seen::One(1, 1)]);
    }

    #[test]
    fn deposal_releases_nothing() {
        let (mut parked, mut seen) = (ParkedReplies::default(), Vec::new());
        park(&mut parked, 1, 10, &[(0, &[ONE]), (1, &[ONE])]);
        let cause = OpenCause::Deposed { below: Term(4) };
        parked.open(&Opening { partition: Partition(0), cause }, note(&mut seen));
        parked.release(ONE, 10, note(&mut seen));
        assert_eq!(seen, [Seen::Again(1, 0), Seen::One(1, 1)]);
    }
}
