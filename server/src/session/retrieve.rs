//! Answering a `get` of one key or many.
//!
//! Not here: one key of it (`plain`, `bound`, `quick`).

use arrayvec::ArrayVec;
use protocol::{Command, Exptime, Get, Key, Keys, Operation};

use super::{Answer, BATCH_REQUESTS, LookedUp, REPLY_BYTES_HIGH, Round, Session, look_up};

/// A `get` of one key or many.
#[derive(Clone, Copy)]
pub(crate) struct Retrieval<'a> {
    pub(crate) keys: Keys<'a>,
    pub(crate) with_cas: bool,
    pub(crate) touch: Option<Exptime>,
}

impl Session {
    /// Each key that is there, then `END`. A long answer is given in parts. The `first` key is looked
    /// up already.
    pub(crate) fn retrieve(
        &mut self,
        round: &mut Round<'_>,
        retrieval: Retrieval<'_>,
        first: &LookedUp<'_>,
        out: &mut Vec<u8>,
    ) -> Answer {
        if let Some(key) = retrieval.keys.only() {
            self.retrieve_key(round, retrieval, key, first, out);
            self.replies.end("END\r\n", out);
            return Answer::Given;
        }
        let mut counted = std::mem::take(&mut round.scratch.more_keys);
        counted.resize_with(BATCH_REQUESTS, Vec::new);
        let answer = self.retrieve_with(round, &mut counted, retrieval, out);
        round.scratch.more_keys = counted;
        answer
    }

    // On its own: its batches need much of the stack, for which a request of one key must not pay.
    #[inline(never)]
    fn retrieve_with(
        &mut self,
        round: &mut Round<'_>,
        counted: &mut [Vec<u8>],
        retrieval: Retrieval<'_>,
        out: &mut Vec<u8>,
    ) -> Answer {
        let start = self.answered;
        let mut last = start;
        let mut keys = retrieval.keys.skip(start).iter();
        loop {
            let group: ArrayVec<(Key<'_>, usize), BATCH_REQUESTS> =
                keys.by_ref().take(BATCH_REQUESTS).collect();
            let looked: ArrayVec<LookedUp<'_>, BATCH_REQUESTS> = group
                .iter()
                .zip(counted.iter_mut())
                .map(|((key, _), counted)| look_up(round, key.as_bytes(), counted))
                .collect();
            let hashes: ArrayVec<u64, BATCH_REQUESTS> = looked.iter().map(|key| key.hash).collect();
            let mut held = None;
            let may_be_quick =
                !retrieval.with_cas && retrieval.touch.is_none() && self.may_be_quick(round);
            if may_be_quick && looked.iter().any(LookedUp::is_unbound) {
                held = Some(round.service.shards().hold(&hashes));
            } else if group.len() > 1 {
                round.prefetch(hashes.iter().copied());
            }
            for (position, ((key, offset), looked)) in group.iter().zip(&looked).enumerate() {
                let is_held_up = self.is_held_up(round, out);
                if round.large_left == 0
                    && let Some(held) = &mut held
                {
                    // It looks at a shard by itself.
                    held.release();
                }
                let must_wait = round.must_wait(looked.hash, key.as_bytes());
                if is_held_up || must_wait || out.len() >= REPLY_BYTES_HIGH {
                    // The same line again, from here on.
                    self.answered = last;
                    let waits = !self.replies.is_empty();
                    return if waits { Answer::NotYet } else { Answer::Partly };
                }
                last = start + offset;
                if let Some(held) = &mut held
                    && looked.is_unbound()
                {
                    let engine = held.engine(position, looked.hash);
                    if round.get_quickly(engine, key.as_bytes(), looked.hash, out) {
                        held.done(position);
                        continue;
                    }
                }
                // It may wait for other locks.
                if let Some(held) = &mut held {
                    held.release();
                }
                self.retrieve_key(round, retrieval, key.clone(), looked, out);
            }
            if group.len() < BATCH_REQUESTS {
                break;
            }
        }
        self.answered = 0;
        self.replies.end("END\r\n", out);
        Answer::Given
    }

    fn retrieve_key(
        &mut self,
        round: &mut Round<'_>,
        Retrieval { with_cas, touch, .. }: Retrieval<'_>,
        key: Key<'_>,
        looked: &LookedUp<'_>,
        out: &mut Vec<u8>,
    ) {
        let command = Command { key, operation: Operation::Get(Get { touch, ..Get::default() }) };
        if round.front.is_some() {
            self.take_key(round, &command, looked, (with_cas, touch));
        } else {
            round.retrieve_one(&command, looked, with_cas, out);
        }
    }
}
