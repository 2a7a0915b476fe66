//! A batch of nothing but the commonest requests in a cluster, without limits: on open headers it is done here, else it is asked of the
//! owners of its keys.
//!
//! Not here: the same of a server by itself (`short`), batches of anything else (`session`), which answer the same.

use arrayvec::ArrayVec;
use cluster::id::Partition;
use engine::Engine;
use protocol::Quick;

use super::short::{Short, read_batch};
use super::{Asked, LookedUp, Pause, Round, Session, answer_at, pause_before};
use crate::node::batch::Ran;
use crate::node::front::{Front, lent, touches};
use crate::node::machine::Sort;
use crate::node::serving::Serving;
use crate::shards::HELD_MAX;

/// Batches that skip this path after one that had to go the long way.
const BATCHES_APART: u8 = 1;

/// How many requests of a batch were answered or asked of others, and why no more were.
#[derive(Default)]
struct Stretch {
    count: usize,
    pause: Option<Pause>,
    /// The next one has to go the long way.
    is_apart: bool,
}

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
        if !round.in_force.limits().is_empty() || self.replies.is_full() {
            return None;
        }
        let serving = self.serving(round)?;
        let shards = round.service.shards();
        let mut keys: ArrayVec<&[u8], HELD_MAX> = ArrayVec::new();
        let batch = read_batch(round, input, |key| keys.push(key))?;
        let mut hashes = [0; HELD_MAX];
        let hashes = &mut hashes[..keys.len()];
        shards.hash_all(&keys, hashes);
        for hash in hashes.iter() {
            shards.prefetch_shard(*hash);
            serving.prefetch(*hash);
        }
        let front = round.front.take()?;
        let ran = if serving.may_serve(hashes[0]) {
            self.run_here(front, round, &serving, (&batch, hashes), input, out)
        } else {
            self.ask_owners(front, round, &serving, (&batch, hashes), input)
        };
        round.front = Some(front);
        let Stretch { count, pause, is_apart } = ran;
        let done = count.checked_sub(1).map_or(0, |last| batch[last].end);
        round.requests -= count;
        if count > 0 {
            self.scanned = 0;
        }
        if done == 0 && pause.is_none() {
            return None;
        }
        if is_apart {
            self.batches_apart = BATCHES_APART;
        }
        Some((done, pause))
    }

    /// Does the requests in front whose headers are open; how many, and why it paused.
    fn run_here(
        &mut self,
        front: &mut Front,
        round: &mut Round<'_>,
        serving: &Serving<'_>,
        (batch, hashes): (&[Short<'_>], &[u64]),
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Stretch {
        let shards = round.service.shards();
        let mut most = 0;
        for hash in hashes {
            if !serving.may_serve(*hash) || front.is_waiting(serving.partition(*hash)) {
                break;
            }
            most += 1;
        }
        let (now, start) = (round.now, out.len());
        let Some(mut direct) = front.begin_batch() else { return Stretch::default() };
        let mut held = shards.hold(&hashes[..most]);
        let (mut done, mut pause) = (0, None);
        for (position, (Short { quick, end }, hash)) in batch.iter().zip(hashes).take(most).enumerate() {
            pause = pause_before_of(round, out, position);
            if pause.is_some() {
                break;
            }
            let is_read = matches!(quick, Quick::Get { .. });
            let Some(placed) = serving.next(*hash, is_read) else { break };
            if !direct.has_room(&placed, is_read) {
                break;
            }
            let Some(engine) = held.engine_beside(position, *hash) else { break };
            round.now = serving.time(placed.at);
            let key = quick.key();
            let ran = direct.recorder().run(
                serving,
                engine,
                (key, *hash),
                (placed, touches(quick)),
                out,
                |engine, out| round.answer_unbound(engine, quick, *hash, out),
            );
            let read = if is_read { cluster::plane::frames::sort::READ } else { 0 };
            let sort = Sort::of_quick(quick) as u8 | read;
            match ran {
                Ran::Done => direct.push((out.len(), *end), None, sort),
                Ran::Changed => {
                    let name = direct.name(&placed, serving.partition(*hash), serving.now());
                    direct.recorder().record(serving, key, name.map(|(_, name)| name), out);
                    direct.push((out.len(), *end), name, sort);
                }
                Ran::ChangedApart => {
                    direct.recorder().record(serving, key, None, out);
                    break;
                }
                Ran::Apart => break,
            }
            done += 1;
        }
        round.now = now;
        direct.append(serving, out);
        drop(held);
        direct.reply(serving, &mut self.replies, (input, start), out);
        front.note_served(done as u64);
        let is_apart = done < most && pause.is_none();
        Stretch { count: done, pause, is_apart }
    }

    /// Asks other nodes to do the requests in front; how many, and why it paused.
    fn ask_owners(
        &mut self,
        front: &mut Front,
        round: &mut Round<'_>,
        serving: &Serving<'_>,
        (batch, hashes): (&[Short<'_>], &[u64]),
        input: &[u8],
    ) -> Stretch {
        if front.is_full() {
            return Stretch::default();
        }
        let mut run: ArrayVec<(Partition, Sort, &[u8]), HELD_MAX> = ArrayVec::new();
        let (mut from, mut is_apart) = (0, false);
        for (Short { quick, end }, hash) in batch.iter().zip(hashes) {
            let partition = serving.partition(*hash);
            // A take has another answer if its owner has none.
            is_apart = matches!(quick, Quick::Take { .. }) || !front.may_ask(partition);
            if is_apart || serving.may_serve(*hash) {
                break;
            }
            run.push((partition, Sort::of_quick(quick), &input[from..*end]));
            from = *end;
        }
        let count = run.len();
        if count > 0 {
            let place = self.replies.wait_for(count);
            front.submit_run(&lent(round), run.into_iter(), place);
        }
        Stretch { count, pause: None, is_apart }
    }

    /// The headers to serve requests from; `None` if they may not be used.
    pub(super) fn serving<'a>(&self, round: &Round<'a>) -> Option<Serving<'a>> {
        let may = self.authenticated && round.front.is_some() && !round.service.notes_prefixes();
        if may { Serving::of(round) } else { None }
    }
}

/// As [`pause_before`], of a request behind `count` others that the round has not counted yet.
fn pause_before_of(round: &Round<'_>, out: &[u8], count: usize) -> Option<Pause> {
    if count > 0 && count == round.requests {
        round.counters.conn_yields.add(1);
        return Some(Pause::Turn);
    }
    pause_before(round, out)
}

/// As [`answer_at`], in a cluster, on a key that has no other copy; false: it is not served here.
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
    let partition = serving.partition(key.hash);
    if round.front.as_ref().is_some_and(|front| front.is_waiting(partition)) {
        return false;
    }
    let Some(placed) = serving.next(key.hash, false).filter(|placed| placed.set.is_empty()) else {
        return false;
    };
    let now = std::mem::replace(&mut round.now, serving.time(placed.at));
    let is_answered = engine
        .with_unique(placed.unique(), |engine| answer_at(round, engine, asked, key, out));
    round.now = now;
    if is_answered {
        serving.header(key.hash).take(placed.at);
    }
    if let Some(front) = &mut round.front {
        front.note_served(u64::from(is_answered));
    }
    is_answered
}
