//! A batch of nothing but the commonest requests, of a server without limits: most batches there are such.
//!
//! Not here: what is done for each (`quick`), batches of anything else (`session`), which answer the same.

use std::hint::cold_path;

use arrayvec::ArrayVec;
use protocol::{Quick, quick};

use super::{Answer, LookedUp, Pause, Round, Session, pause_before};
use crate::quick::may_be_held;
use crate::shards::HELD_MAX;

/// With fewer requests in front of another it is not worth a batch of its own.
const APART_MIN: usize = 8;

/// A request of a batch.
pub(super) struct Short<'a> {
    pub(super) quick: Quick<'a>,
    /// Where it ends in the input.
    pub(super) end: usize,
}

/// Reads the requests in front of `input` that may be answered here, and passes the key of each to `note`; `None` if
/// they are better answered elsewhere.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as a call it moves the batch")]
pub(super) fn read_batch<'a>(
    round: &Round<'_>,
    input: &'a [u8],
    may_be_held: impl Fn(&Quick<'_>) -> bool,
    mut note: impl FnMut(&'a [u8]),
) -> Option<ArrayVec<Short<'a>, HELD_MAX>> {
    let bounds = round.service.shards().bounds();
    let most = round.requests.min(HELD_MAX);
    let mut batch: ArrayVec<Short<'a>, HELD_MAX> = ArrayVec::new();
    let mut end = 0;
    while batch.len() < most
        && let Some((quick, consumed)) = quick(&input[end..], bounds)
        && may_be_held(&quick)
    {
        end += consumed;
        note(quick.key());
        batch.push(Short { quick, end });
    }
    let is_worth_it = end == input.len() || batch.len() >= most.min(APART_MIN);
    (is_worth_it && !batch.is_empty()).then_some(batch)
}

impl Session {
    /// Answers the requests in front of `input`, as [`Session::run_batch`] does; `None` if there is nothing that
    /// is better answered here.
    pub(super) fn run_short(
        &mut self,
        round: &mut Round<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<(usize, Option<Pause>)> {
        if !self.may_be_quick(round) || !round.in_force.limits().is_empty() {
            return None;
        }
        let shards = round.service.shards();
        let mut hashes: ArrayVec<u64, HELD_MAX> = ArrayVec::new();
        let batch = read_batch(round, input, may_be_held, |key| {
            let hash = shards.hash(key);
            shards.prefetch_shard(hash);
            hashes.push(hash);
        })?;
        let mut held = shards.hold(&hashes);
        let mut done = 0;
        for (position, (Short { quick, end }, hash)) in batch.iter().zip(&hashes).enumerate() {
            if let Some(pause) = pause_before(round, out) {
                cold_path();
                return Some((done, Some(pause)));
            }
            let engine = held.engine(position, *hash);
            let is_answered = round.answer_unbound(engine, quick, *hash, out);
            held.done(position);
            if !is_answered {
                cold_path();
                // It may wait for other locks.
                held.release();
                let looked = LookedUp { hash: *hash, bound: Ok(None) };
                let words = &input[done..*end];
                match self.answer(round, &quick.request(), words, &looked, out) {
                    Answer::Given => {}
                    answer => return Some(answer.ends_at(done, *end)),
                }
            }
            round.requests -= 1;
            self.scanned = 0;
            done = *end;
        }
        Some((done, None))
    }
}
