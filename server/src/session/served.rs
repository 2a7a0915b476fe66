//! A batch of nothing but the commonest requests, on keys that this node of a cluster owns alone, without limits.
//!
//! Not here: the same of a server by itself (`short`), batches of anything else (`session`), which answer the same.

use arrayvec::ArrayVec;
use engine::Engine;

use super::short::{Short, read_batch};
use super::{Asked, LookedUp, Pause, Round, Session, answer_at, pause_before};
use crate::node::serving::Serving;
use crate::shards::HELD_MAX;

/// Batches that skip this path after one whose first key was not served here.
const BATCHES_APART: u8 = 16;

impl Session {
    /// As [`Session::run_short`], in a cluster.
    // On its own: a server by itself must not pay for what it needs.
    #[inline(never)]
    pub(super) fn run_served(
        &mut self,
        round: &mut Round<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<(usize, Option<Pause>)> {
        if self.batches_apart > 0 {
            self.batches_apart -= 1;
            return None;
        }
        if !round.in_force.limits().is_empty() {
            return None;
        }
        let serving = self.serving(round)?;
        let shards = round.service.shards();
        let mut keys: ArrayVec<&[u8], HELD_MAX> = ArrayVec::new();
        let batch = read_batch(round, input, |key| keys.push(key))?;
        let mut hashes = [0; HELD_MAX];
        let hashes = &mut hashes[..keys.len()];
        shards.hash_all(&keys, hashes);
        if !serving.may_serve(hashes[0]) {
            self.batches_apart = BATCHES_APART;
            return None;
        }
        for hash in &*hashes {
            shards.prefetch_shard(*hash);
            serving.prefetch(*hash);
        }
        let mut held = shards.hold(hashes);
        let (now, mut done, mut count, mut pause) = (round.now, 0, 0, None);
        for (position, (Short { quick, end }, hash)) in batch.iter().zip(&*hashes).enumerate() {
            pause = pause_before(round, out);
            if pause.is_some() {
                break;
            }
            let engine = held.engine(position, *hash);
            let next = serving.next(*hash);
            let is_answered = next.is_some_and(|(unique, at)| {
                round.now = at;
                engine.with_unique(unique, |engine| round.answer_unbound(engine, quick, *hash, out))
            });
            held.done(position);
            if !is_answered {
                self.batches_apart = 1;
                break;
            }
            round.requests -= 1;
            self.scanned = 0;
            count += 1;
            done = *end;
        }
        round.now = now;
        if let Some(front) = &mut round.front {
            front.note_served(count);
        }
        if done == 0 && pause.is_none() {
            self.batches_apart = 0;
            return None;
        }
        Some((done, pause))
    }

    /// The headers to serve requests from; `None` if they may not be used, as while an earlier answer is owed.
    pub(super) fn serving<'a>(&self, round: &Round<'a>) -> Option<Serving<'a>> {
        let may = self.authenticated
            && round.front.is_some()
            && self.replies.is_empty()
            && !round.service.notes_prefixes();
        if may { Serving::of(round) } else { None }
    }
}

/// As [`answer_at`], in a cluster.
// On its own: a server by itself must not pay for what it needs.
#[inline(never)]
pub(super) fn answer_served(
    round: &mut Round<'_>,
    serving: &Serving<'_>,
    engine: &mut Engine,
    asked: &Asked<'_>,
    key: &LookedUp<'_>,
    out: &mut Vec<u8>,
) -> bool {
    let Some((unique, at)) = serving.next(key.hash) else { return false };
    let now = std::mem::replace(&mut round.now, at);
    let is_answered =
        engine.with_unique(unique, |engine| answer_at(round, engine, asked, key, out));
    round.now = now;
    if let Some(front) = &mut round.front {
        front.note_served(u64::from(is_answered));
    }
    is_answered
}
