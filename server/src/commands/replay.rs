//! Recorded traffic under other limits: the shares of denied attempts, now and then.
//!
//! Here: replaying a recording twice, under the limits in force and under a trial, on states of its
//! own, by the same calls as a request. Not here: the recording (`observe::recorder`), the limits
//! of a trial (`server/limits`), the sums and the statistics (`counts`), the bounds of a trial
//! (`request`).
//!
//! Events of the hour before the wanted time are replayed too but not counted, so that states are
//! warm. Parents see the recorded children only, and a counted key the recorded ones of its keys.

mod counts;
mod request;

use engine::{Nanos, Now, TakeParams, TakeResult};
use hashbrown::HashMap;
use tollgate_limits::{ChargeCost, LimitMatch};

use self::counts::KeyTally;
pub(crate) use self::counts::{ShareEstimate, TryCounts};
pub(crate) use self::request::TryRequest;
use crate::commands::multi_key::{ChargeContext, ChargeScratch, ChargeSet};
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::observe::recorder::{RECORDED_SPAN_MS, RecordedEvent, Recording};
use crate::observe::sample::{SampledVerb, SampledVerdict};
use crate::shards::{CommandShards, Shards};

/// Memory for the states of a replay, in bytes, and for each shard: half-empty chunks.
const STATE_BYTES: usize = 64 << 20;
const SHARD_BYTES: usize = 16 << 10;
/// Events between two looks at the clock.
const EVENTS_PER_LOOK: usize = 256;
/// The index of no worker, so that a replay changes no metrics.
const NO_WORKER: usize = usize::MAX;

/// The reason why a replay has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReplayError {
    /// The time is up.
    #[error(
        "the replay took longer than 5 s: it got through {done} of {all} steps; try fewer minutes, \
         or give --recorder less memory"
    )]
    TooLong {
        /// Replayed events of both runs.
        done: usize,
        /// All events of both runs.
        all: usize,
    },
    /// The states need too much memory.
    #[error("the states of the recorded keys need more memory than a replay may use")]
    NoRoom,
}

/// A trial of a limit on a recording.
#[derive(Clone, Copy)]
pub(crate) struct Trial<'a> {
    /// The name of the limit.
    pub(crate) name: &'a str,
    /// The limits in force.
    pub(crate) now: &'a ActiveLimits,
    /// The limits with the new text.
    pub(crate) then: &'a ActiveLimits,
    /// The store whose hashes are used; nothing in it is read or changed.
    pub(crate) shards: &'a Shards,
    /// Unix nanoseconds at the origin of the monotonic clock.
    pub(crate) origin_unix_ns: u64,
    /// The wanted time, in milliseconds since the Unix epoch.
    pub(crate) span_ms: (u64, u64),
}

impl Trial<'_> {
    /// Replays a recording. `is_over` is asked between events. `show` returns the form in which a
    /// counted key is shown, of its hash, its text and the name of its limit.
    ///
    /// # Errors
    ///
    /// [`ReplayError`].
    pub(crate) fn replay(
        &self,
        recording: &Recording,
        is_over: &dyn Fn() -> bool,
        show: &dyn Fn(u64, &[u8], &str) -> String,
    ) -> Result<TryCounts, ReplayError> {
        let (start_ms, end_ms) = self.span_ms;
        let mut counts = TryCounts::default();
        let subjects = self.subjects(recording);
        counts.has_parents = subjects.have_parents;
        counts.is_coarser = subjects.are_coarser && recording.bits_since(start_ms) > 0;
        let (rows, named) = self.tally(recording, &subjects, is_over, &mut counts)?;
        let oldest_ms = recording.events().next().map_or(end_ms, |event| event.at_ms);
        counts.span_ms = end_ms.saturating_sub(oldest_ms.max(start_ms));
        counts.add_keys(recording.bits_since(start_ms), &rows);
        counts.name_keys(&named, |tally| self.shown(recording, tally, show));
        Ok(counts)
    }

    /// Returns the events to replay, oldest first, with those that only warm the states.
    fn events(&self, recording: &Recording) -> Vec<RecordedEvent> {
        let (start_ms, end_ms) = self.span_ms;
        let bits = recording.bits_since(start_ms);
        let mut events: Vec<RecordedEvent> = recording
            .events()
            .filter(|event| event.at_ms.saturating_add(RECORDED_SPAN_MS) >= start_ms)
            .filter(|event| event.at_ms <= end_ms && recording.has(event.key, bits))
            .copied()
            .collect();
        events.sort_by_key(|event| event.at_ms);
        events
    }

    /// Replays the events under both limits and returns the counts of each sampled hash, and of
    /// each key by which the changes are named. Compares the verdicts under the present limits with
    /// the recorded ones in `counts`.
    fn tally(
        &self,
        recording: &Recording,
        subjects: &Subjects,
        is_over: &dyn Fn() -> bool,
        counts: &mut TryCounts,
    ) -> Result<(Vec<KeyTally>, Vec<KeyTally>), ReplayError> {
        let mut events = self.events(recording);
        if !subjects.have_parents {
            // Only a parent may count other keys too.
            events.retain(|event| subjects.named_by[event.key as usize].is_some());
        }
        let (mut sampled, mut named) = (Tallies::default(), Tallies::default());
        let all = 2 * events.len();
        for (limits, is_trial) in [(self.now, false), (self.then, true)] {
            let mut run = ReplayRun::new(limits, self);
            for (number, event) in events.iter().enumerate() {
                if number % EVENTS_PER_LOOK == 0 && is_over() {
                    let done = number + if is_trial { events.len() } else { 0 };
                    return Err(ReplayError::TooLong { done, all });
                }
                let Some(key) = recording.key(event.key) else { continue };
                let verdict = run.decide(event, &key.bytes)?;
                let Some(named_by) = subjects.named_by[event.key as usize] else { continue };
                if event.at_ms < self.span_ms.0 {
                    continue;
                }
                let denied = u64::from(verdict == SampledVerdict::Denied);
                sampled.of(key.hash, event.key).add(is_trial, denied);
                named.of(named_by, event.key).add(is_trial, denied);
                if !is_trial {
                    counts.compare(verdict == event.verdict);
                }
            }
            run.check_memory()?;
        }
        Ok((sampled.rows, named.rows))
    }

    /// Looks all recorded keys up in both limits.
    fn subjects(&self, recording: &Recording) -> Subjects {
        let (mut now_scratch, mut then_scratch) = (Vec::new(), Vec::new());
        let mut subjects = Subjects::default();
        for number in 0..recording.key_places() {
            let Some(key) = recording.key(number as u32) else {
                subjects.named_by.push(None);
                continue;
            };
            let now = self.now.limits().find(&key.bytes, &mut now_scratch).ok().flatten();
            let then = self.then.limits().find(&key.bytes, &mut then_scratch).ok().flatten();
            let is_bound = |found: &&LimitMatch<'_>| found.limit().name() == self.name;
            let (bound_now, bound_then) =
                (now.as_ref().filter(is_bound), then.as_ref().filter(is_bound));
            let named_by = bound_then.or(bound_now).map(|found| self.shards.hash(found.key()));
            subjects.named_by.push(named_by);
            if named_by.is_some() {
                subjects.have_parents |= now.iter().chain(&then).any(LimitMatch::has_parents);
                subjects.are_coarser |=
                    bound_then.is_some_and(|then| !then.counts_within(now.as_ref()));
            }
        }
        subjects
    }

    /// Returns the form in which a key is shown: the counted key of the new limit, or else of the
    /// present one.
    fn shown(
        &self,
        recording: &Recording,
        tally: &KeyTally,
        show: &dyn Fn(u64, &[u8], &str) -> String,
    ) -> String {
        let mut scratch = Vec::new();
        let Some(key) = recording.key(tally.key) else { return String::new() };
        for limits in [self.then, self.now] {
            if let Ok(Some(found)) = limits.limits().find(&key.bytes, &mut scratch)
                && found.limit().name() == self.name
            {
                return show(tally.hash, found.key(), self.name);
            }
        }
        show(tally.hash, &key.bytes, self.name)
    }
}

/// The recorded keys that the limit binds, now or then.
#[derive(Default)]
struct Subjects {
    /// For each key the hash of the counted key by which its changes are named; `None`: the limit
    /// does not bind it.
    named_by: Vec<Option<u64>>,
    /// Whether any limit of these keys charges parents.
    have_parents: bool,
    /// Whether the new limit may count keys as one that the present limits count apart.
    are_coarser: bool,
}

/// The counts of each hash.
#[derive(Default)]
struct Tallies {
    rows: Vec<KeyTally>,
    places: HashMap<u64, usize>,
}

impl Tallies {
    fn of(&mut self, hash: u64, key: u32) -> &mut KeyTally {
        let place = *self.places.entry(hash).or_insert(self.rows.len());
        if place == self.rows.len() {
            self.rows.push(KeyTally { hash, key, ..KeyTally::default() });
        }
        &mut self.rows[place]
    }
}

/// One replay under some limits.
struct ReplayRun<'a> {
    limits: &'a ActiveLimits,
    shards: Shards,
    origin_unix_ns: u64,
    charges: ChargeSet,
    charge_scratch: ChargeScratch,
    counted_key: Vec<u8>,
}

impl<'a> ReplayRun<'a> {
    fn new(limits: &'a ActiveLimits, trial: &Trial<'_>) -> Self {
        let memory_bytes = STATE_BYTES + trial.shards.count() * SHARD_BYTES;
        Self {
            limits,
            shards: trial.shards.empty_like(memory_bytes),
            origin_unix_ns: trial.origin_unix_ns,
            charges: ChargeSet::default(),
            charge_scratch: ChargeScratch::default(),
            counted_key: Vec::new(),
        }
    }

    /// Decides an event on the client's key `key`. A key that no limit binds is allowed.
    fn decide(&mut self, event: &RecordedEvent, key: &[u8]) -> Result<SampledVerdict, ReplayError> {
        let take = TakeParams {
            cost: event.cost,
            // A plain client cannot wait.
            wait: match event.verb {
                SampledVerb::Incr | SampledVerb::MetaArithmetic => Some(0),
                SampledVerb::Take | SampledVerb::TakeMany => None,
            },
            ..TakeParams::default()
        };
        let unix_ns = event.at_ms.saturating_mul(1_000_000);
        let mono = Nanos(unix_ns.saturating_sub(self.origin_unix_ns));
        let now = Now { mono, unix_ms: event.at_ms };
        let mut counted_key = std::mem::take(&mut self.counted_key);
        let verdict = match self.limits.limits().find(key, &mut counted_key) {
            Ok(Some(found)) if found.companion().is_none() => self.take(now, &found, &take),
            _ => Ok(SampledVerdict::Allowed),
        };
        self.counted_key = counted_key;
        verdict
    }

    fn take(
        &mut self,
        now: Now,
        found: &LimitMatch<'_>,
        take: &TakeParams,
    ) -> Result<SampledVerdict, ReplayError> {
        let taken = if found.charges_more() {
            self.take_with_parents(now, found, take)
        } else {
            let hash = self.shards.hash(found.key());
            let policy_ref = self.limits.policy_ref(found.limit().index(), found.policy());
            self.shards.with_room(now, hash, |engine| {
                match engine.take(now, hash, found.key(), Some(policy_ref), take) {
                    TakeResult::Full => None,
                    taken => Some(taken),
                }
            })
        };
        match taken.ok_or(ReplayError::NoRoom)? {
            TakeResult::Decided(facts) if facts.refuses() => Ok(SampledVerdict::Denied),
            TakeResult::Decided(facts) if facts.shadow => Ok(SampledVerdict::ShadowDenied),
            TakeResult::Full => Err(ReplayError::NoRoom),
            _ => Ok(SampledVerdict::Allowed),
        }
    }

    fn take_with_parents(
        &mut self,
        now: Now,
        found: &LimitMatch<'_>,
        take: &TakeParams,
    ) -> Option<TakeResult> {
        self.charges.clear();
        let own = (0, ChargeCost::SAME);
        let listed = self.charges.add(self.limits.limits(), &self.shards, found, own);
        if listed.is_err() {
            // The client got an error, and nothing was charged.
            return Some(TakeResult::NotFound);
        }
        let charge_ctx = ChargeContext {
            now,
            shards: CommandShards::new(&self.shards, None),
            active_limits: self.limits,
            worker: NO_WORKER,
            counters: &Counters::default(),
        };
        let (charges, scratch) = (&self.charges, &mut self.charge_scratch);
        let result =
            charges.locked(charge_ctx, |engines| charges.take(charge_ctx, scratch, engines, take));
        result.map(|result| result.all)
    }

    /// Checks that no state was evicted to make room for others.
    fn check_memory(&self) -> Result<(), ReplayError> {
        let losses = self.shards.totals().losses;
        if losses.evicted > 0 { Err(ReplayError::NoRoom) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
