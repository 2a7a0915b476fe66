//! A batch of nothing but the commonest requests in a cluster: on open headers it is done here, else it is asked of the
//! owners of its keys.
//!
//! Not here: the same of a server by itself (`short`), batches of anything else (`session`), which answer the same.

use arrayvec::ArrayVec;
use cluster::frames::sort;
use engine::Engine;
use protocol::{BOUND_POLICY, Quick};

use super::looked_up::look_up_in;
use super::short::{Short, read_batch};
use super::{Asked, LookedUp, Pause, Round, Session, answer_at, pause_before};
use crate::node::batch::Ran;
use crate::node::front::{Asking, Common, Front, lent};
use crate::node::machine::{COUNTED_ELSEWHERE, Sort};
use crate::node::serving::Serving;
use crate::quick::may_be_held;
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

/// A batch, and what was found out about its keys.
struct Batch<'b> {
    requests: &'b [Short<'b>],
    hashes: &'b [u64],
    /// The limits of the keys; empty where there are no limits at all.
    looked: &'b [LookedUp<'b>],
    input: &'b [u8],
}

impl<'b> Batch<'b> {
    #[inline]
    fn common(&self, position: usize) -> Common<'b> {
        let (requests, looked) = (self.requests, self.looked);
        let quick = &requests[position].quick;
        Common { quick, hash: self.hashes[position], looked: looked.get(position) }
    }

    /// Where the line of a request begins.
    fn start(&self, position: usize) -> usize {
        position.checked_sub(1).map_or(0, |before| self.requests[before].end)
    }

    /// What the owner of a request's key is asked.
    fn asking(&self, position: usize, serving: &Serving<'_>) -> Asking<'_> {
        let from = self.start(position);
        let common = self.common(position);
        let elsewhere = if common.is_elsewhere() { COUNTED_ELSEWHERE } else { 0 };
        Asking {
            partition: serving.partition(common.hash),
            sort: sort_of(common.quick) | elsewhere,
            line: &self.input[from..self.requests[position].end],
        }
    }
}

/// The bits that tell what a request is.
fn sort_of(quick: &Quick<'_>) -> u8 {
    let read = if matches!(quick, Quick::Get { .. }) { sort::READ } else { 0 };
    Sort::of_quick(quick) as u8 | read
}

/// As [`may_be_held`], where there are limits.
fn may_be_quick(quick: &Quick<'_>) -> bool {
    may_be_held(quick) || matches!(quick, Quick::Take { policy: BOUND_POLICY, .. })
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
        if self.must_wait(round.front.as_deref()?) {
            return None;
        }
        let serving = self.serving(round)?;
        let shards = round.service.shards();
        if !round.in_force.limits().is_empty() {
            return self.run_limited(round, &serving, input, out);
        }
        let mut keys: ArrayVec<&[u8], HELD_MAX> = ArrayVec::new();
        let requests = read_batch(round, input, may_be_held, |key| keys.push(key))?;
        let mut hashes = [0; HELD_MAX];
        let hashes = &mut hashes[..keys.len()];
        shards.hash_all(&keys, hashes);
        for hash in hashes.iter() {
            shards.prefetch_shard(*hash);
        }
        let batch = Batch { requests: &requests, hashes, looked: &[], input };
        self.run_read(round, &serving, &batch, out)
    }

    /// As [`Session::run_served`], where there are limits.
    fn run_limited(
        &mut self,
        round: &mut Round<'_>,
        serving: &Serving<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<(usize, Option<Pause>)> {
        let requests = read_batch(round, input, may_be_quick, |_| ())?;
        let (shards, in_force) = (round.service.shards(), round.in_force);
        let mut counted = std::mem::take(&mut round.scratch.keys);
        counted.resize_with(HELD_MAX, Vec::new);
        let each = requests.iter().zip(&mut counted);
        let looked: ArrayVec<LookedUp<'_>, HELD_MAX> = each
            .map(|(request, counted)| look_up_in(shards, in_force, request.quick.key(), counted))
            .collect();
        let hashes: ArrayVec<u64, HELD_MAX> = looked.iter().map(|looked| looked.hash).collect();
        let batch = Batch { requests: &requests, hashes: &hashes, looked: &looked, input };
        let ran = self.run_read(round, serving, &batch, out);
        drop(looked);
        round.scratch.keys = counted;
        ran
    }

    fn run_read(
        &mut self,
        round: &mut Round<'_>,
        serving: &Serving<'_>,
        batch: &Batch<'_>,
        out: &mut Vec<u8>,
    ) -> Option<(usize, Option<Pause>)> {
        for hash in batch.hashes {
            serving.prefetch(*hash);
        }
        let front = round.front.take()?;
        let (mut count, mut pause) = (0, None);
        // Requests of others among one's own are no reason to read the batch again.
        while count < batch.requests.len() && pause.is_none() && !self.replies.is_full() {
            let stretch = if serving.may_serve(batch.hashes[count]) {
                self.run_here(front, round, serving, (batch, count), out)
            } else {
                self.ask_owners(front, round, serving, (batch, count))
            };
            count += stretch.count;
            pause = stretch.pause;
            if stretch.is_apart {
                self.batches_apart = BATCHES_APART;
            }
            if stretch.is_apart || stretch.count == 0 {
                break;
            }
        }
        round.front = Some(front);
        if count > 0 {
            self.scanned = 0;
        }
        let done = count.checked_sub(1).map_or(0, |last| batch.requests[last].end);
        (done > 0 || pause.is_some()).then_some((done, pause))
    }

    /// Does the requests from a place of the batch on whose headers are open; how many, and why it paused.
    fn run_here(
        &mut self,
        front: &mut Front,
        round: &mut Round<'_>,
        serving: &Serving<'_>,
        (batch, from): (&Batch<'_>, usize),
        out: &mut Vec<u8>,
    ) -> Stretch {
        let may_be_done = |position: &usize| {
            let hash = batch.hashes[*position];
            batch.common(*position).is_quick()
                && serving.may_serve(hash)
                && !front.is_waiting(serving.partition(hash))
        };
        let most = (from..batch.requests.len()).take_while(may_be_done).count();
        let hashes = &batch.hashes[from..from + most];
        let input_from = batch.start(from);
        let (now, start) = (round.now, out.len());
        let Some(mut direct) = front.begin_batch() else { return Stretch::default() };
        let mut held = round.service.shards().hold(hashes);
        let (mut done, mut pause) = (0, None);
        for (place, hash) in hashes.iter().enumerate() {
            pause = pause_before(round, out);
            if pause.is_some() {
                break;
            }
            let position = from + place;
            let (common, end) = (batch.common(position), batch.requests[position].end - input_from);
            let is_read = matches!(common.quick, Quick::Get { .. });
            // The header is looked at while the shard is held.
            let Some(engine) = held.engine_beside(place, *hash) else { break };
            let Some(placed) = serving.next(*hash, is_read) else { break };
            let Some(lane) = direct.lane_for(placed.set, is_read) else { break };
            round.now = serving.time(placed.at);
            let key = common.key();
            let ran = direct.recorder().run(
                serving,
                engine,
                (key, *hash),
                (placed, common.touches()),
                out,
                |engine, out| common.answer(round, engine, out),
            );
            let sort = sort_of(common.quick);
            match ran {
                Ran::Done => direct.push((out.len(), end), None, sort),
                Ran::Changed => {
                    let name = direct.name(lane, serving.partition(*hash), serving.now());
                    direct.recorder().record(serving, key, name.map(|(_, name)| name), out);
                    direct.push((out.len(), end), name, sort);
                }
                Ran::ChangedApart => {
                    direct.recorder().record(serving, key, None, out);
                    break;
                }
                Ran::Apart => break,
            }
            done += 1;
            round.requests -= 1;
        }
        round.now = now;
        direct.append(serving, out);
        drop(held);
        let input = &batch.input[input_from..];
        direct.reply(serving, &mut self.replies, (input, start), out);
        front.note_served(done as u64);
        let is_apart = done < most && pause.is_none();
        Stretch { count: done, pause, is_apart }
    }

    /// Asks other nodes to do the requests from a place of the batch on; how many.
    fn ask_owners(
        &mut self,
        front: &mut Front,
        round: &mut Round<'_>,
        serving: &Serving<'_>,
        (batch, from): (&Batch<'_>, usize),
    ) -> Stretch {
        if front.is_full() {
            return Stretch::default();
        }
        let now = serving.now();
        let mut run: ArrayVec<Asking<'_>, HELD_MAX> = ArrayVec::new();
        let mut is_apart = false;
        for (position, hash) in batch.hashes.iter().enumerate().skip(from) {
            // What a limit answers without an owner is told at once there.
            is_apart = !batch.common(position).is_quick()
                || front.is_resting(now, serving.partition(*hash));
            if is_apart || serving.may_serve(*hash) {
                break;
            }
            run.push(batch.asking(position, serving));
        }
        let count = run.len();
        if count > 0 {
            let place = self.replies.wait_for(count);
            front.submit_run(&lent(round), run.into_iter(), place);
            round.requests -= count;
        }
        Stretch { count, pause: None, is_apart }
    }

    /// The headers to serve requests from; `None` if they may not be used.
    pub(super) fn serving<'a>(&self, round: &Round<'a>) -> Option<Serving<'a>> {
        let may = self.authenticated && round.front.is_some() && !round.service.notes_prefixes();
        if may { Serving::of(round) } else { None }
    }
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
    let is_answered =
        engine.with_unique(placed.unique(), |engine| answer_at(round, engine, asked, key, out));
    round.now = now;
    if is_answered {
        serving.header(key.hash).take(placed.at);
    }
    if let Some(front) = &mut round.front {
        front.note_served(u64::from(is_answered));
    }
    is_answered
}
