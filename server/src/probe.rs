//! A worker's probe: the samples that it takes of its requests, and the ring that holds them.
//!
//! Here: the choice of samples on the path of a request, the ring, the counts of samples. Not here:
//! what becomes of them (`observe`), the request itself (`session`, `commands`).
//!
//! A probe costs a request a subtraction a batch and a mask a counted key. Everything else is cold.

mod gaps;
mod latency;
mod sample;
mod thinning;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;

pub(crate) use self::gaps::DueSample;
use self::gaps::Gaps;
pub(crate) use self::latency::{
    FINE_BUCKETS, LATENCY_BOUNDS_US, LISTENERS, LatencyCounts, LatencySums, fine_bound_us,
};
pub(crate) use self::sample::{KeySample, ProbeSample, SampleKind, SampledVerb, SampledVerdict};
use self::thinning::Thinning;

/// Samples that a worker's ring holds.
pub(crate) const RING_PLACES: usize = 4096;

/// The first of the bits of a key's hash that choose the recorded keys.
pub(crate) const RECORD_SHIFT: u32 = 24;
/// The number of these bits.
pub(crate) const RECORD_BITS: u32 = 16;
/// The mask under which no hash is zero, but for one in 2^64.
const RECORD_NOTHING: u64 = u64::MAX;

/// Returns the mask under which the hash of a recorded key is zero: one key in `2^halvings`.
pub(crate) fn record_mask(halvings: u32) -> u64 {
    ((1 << halvings.min(RECORD_BITS)) - 1) << RECORD_SHIFT
}

/// Samples of one kind since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SampleCounts {
    /// Samples that the ring took.
    pub(crate) taken_in: u64,
    /// Samples that were dropped, because the ring was full.
    pub(crate) dropped: u64,
}

/// The probe of one worker, which alone uses it; any thread drains the ring and reads the counts.
#[derive(Debug)]
pub(crate) struct Probe {
    gaps: Gaps,
    record_mask: AtomicU64,
    thinning: Thinning,
    /// Absent until there is an observer, which alone empties it.
    ring: OnceLock<ArrayQueue<ProbeSample>>,
    /// In the order of [`SampleKind::ALL`].
    counts: [[AtomicU64; 2]; SampleKind::ALL.len()],
    pub(crate) latency: LatencyCounts,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            gaps: Gaps::default(),
            record_mask: AtomicU64::new(RECORD_NOTHING),
            thinning: Thinning::default(),
            ring: OnceLock::new(),
            counts: Default::default(),
            latency: LatencyCounts::default(),
        }
    }
}

/// Adds to a number that one thread writes.
fn add(number: &AtomicU64, count: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

impl Probe {
    /// Makes the ring, before the worker starts. `seed` chooses the gaps.
    pub(crate) fn open(&self, seed: u64) {
        if self.ring.set(ArrayQueue::new(RING_PLACES)).is_ok() {
            self.gaps.begin(seed);
        }
    }

    /// Notes a batch of requests. Returns true if samples of it are due: see [`Probe::next_due`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is four instructions of every batch")]
    pub(crate) fn pass(&self, requests: usize) -> bool {
        self.gaps.pass(requests)
    }

    /// Returns the next sample of the batch of `requests` that was noted last; `None` if no further
    /// one is due.
    #[cold]
    pub(crate) fn next_due(&self, requests: usize, unix_ms: u64) -> Option<DueSample> {
        self.gaps.next_due(requests, unix_ms)
    }

    /// Returns the number of requests since the ring was made.
    pub(crate) fn requests(&self) -> u64 {
        self.gaps.requests()
    }

    /// Returns a random number below `end`, for a choice within a request.
    pub(crate) fn choose(&self, end: usize) -> usize {
        self.gaps.draw_below(end as u64) as usize
    }

    /// Puts a request into the ring. `weight` is the number of requests that it stands for.
    #[cold]
    pub(crate) fn put_taken(
        &self,
        unix_ms: u64,
        (hash, key): (u64, &[u8]),
        limit: u32,
        weight: u64,
    ) {
        let sample = ProbeSample::new(SampleKind::Taken, unix_ms, (hash, key));
        self.put(sample.limit(limit).weight(weight));
    }

    /// Puts a denied attempt into the ring, unless it is thinned out. `retry_ns`: the time after
    /// which it would pass.
    // Inlined, so that a denial that is no sample costs no call.
    #[inline]
    pub(crate) fn put_denied(
        &self,
        kind: SampleKind,
        unix_ms: u64,
        (hash, key): (u64, &[u8]),
        limit: u32,
        (cost, retry_ns): (u64, Option<u64>),
    ) {
        if let Some(weight) = self.thinning.weight(unix_ms) {
            self.put_denial(kind, unix_ms, (hash, key), (limit, weight), (cost, retry_ns));
        }
    }

    #[cold]
    fn put_denial(
        &self,
        kind: SampleKind,
        unix_ms: u64,
        key: (u64, &[u8]),
        (limit, weight): (u32, u64),
        (cost, retry_ns): (u64, Option<u64>),
    ) {
        let sample = ProbeSample::new(kind, unix_ms, key).limit(limit).weight(weight);
        self.put(sample.cost(cost).retry_ns(retry_ns));
    }

    /// Returns whether the decisions on keys of this hash are recorded.
    #[inline]
    pub(crate) fn records(&self, hash: u64) -> bool {
        hash & self.record_mask.load(Ordering::Relaxed) == 0
    }

    /// Puts a decision on a recorded key into the ring.
    #[cold]
    pub(crate) fn put_recorded(
        &self,
        unix_ms: u64,
        (hash, key): (u64, &[u8]),
        cost: u64,
        (verb, verdict): (SampledVerb, SampledVerdict),
    ) {
        let sample = ProbeSample::new(SampleKind::Recorded, unix_ms, (hash, key));
        self.put(sample.cost(cost).decision(verb, verdict));
    }

    /// Sets the mask of recorded keys; `None` records nothing.
    pub(crate) fn set_record_mask(&self, mask: Option<u64>) {
        self.record_mask.store(mask.unwrap_or(RECORD_NOTHING), Ordering::Relaxed);
    }

    fn put(&self, sample: ProbeSample) {
        let Some(ring) = self.ring.get() else { return };
        let [taken_in, dropped] = &self.counts[sample.kind() as usize];
        add(if ring.push(sample).is_ok() { taken_in } else { dropped }, 1);
    }

    /// Returns whether the ring has samples.
    pub(crate) fn has_samples(&self) -> bool {
        self.ring.get().is_some_and(|ring| !ring.is_empty())
    }

    /// Passes the samples in the ring to `take`, at most as many as it holds.
    pub(crate) fn drain(&self, mut take: impl FnMut(&ProbeSample)) {
        let Some(ring) = self.ring.get() else { return };
        for _ in 0..RING_PLACES {
            let Some(sample) = ring.pop() else { break };
            take(&sample);
        }
    }

    /// Returns the counts of samples of a kind.
    pub(crate) fn counts(&self, kind: SampleKind) -> SampleCounts {
        let [taken_in, dropped] = &self.counts[kind as usize];
        SampleCounts {
            taken_in: taken_in.load(Ordering::Relaxed),
            dropped: dropped.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIX_MS: u64 = 1_700_000_000_000;

    #[test]
    fn closed_probe_takes_nothing() {
        let probe = Probe::default();
        assert!(!(0..1000).any(|_| probe.pass(16)));
        assert!(!probe.records(5 << RECORD_SHIFT));
        probe.put_taken(UNIX_MS, (1, b"a"), 0, 64);
        probe.drain(|_| panic!("there is no ring"));
    }

    #[test]
    fn full_ring_drops_and_counts() {
        let probe = Probe::default();
        probe.open(7);
        for hash in 0..RING_PLACES as u64 + 10 {
            probe.put_taken(UNIX_MS, (hash, b"a"), 0, 64);
        }
        let counts = probe.counts(SampleKind::Taken);
        assert_eq!((counts.taken_in, counts.dropped), (RING_PLACES as u64, 10));
        let mut hashes = Vec::new();
        probe.drain(|sample| hashes.push(sample.hash()));
        assert!(hashes.iter().copied().eq(0..RING_PLACES as u64), "the oldest stay, in order");
        probe.put_taken(UNIX_MS, (9, b"a"), 0, 64);
        assert_eq!(probe.counts(SampleKind::Taken).dropped, 10);
    }

    #[test]
    fn halved_mask_records_a_part_of_the_keys() {
        let probe = Probe::default();
        let hash = |low: u64| low << RECORD_SHIFT | 0x1234;
        probe.set_record_mask(Some(record_mask(6)));
        assert!(probe.records(hash(64)) && probe.records(hash(0)) && !probe.records(hash(63)));
        probe.set_record_mask(Some(record_mask(7)));
        assert!(!probe.records(hash(64)) && probe.records(hash(128)));
        probe.set_record_mask(Some(record_mask(RECORD_BITS + 9)));
        assert!(probe.records(hash(1 << RECORD_BITS)) && !probe.records(hash(1 << 15)));
        probe.set_record_mask(None);
        assert!(!probe.records(hash(0)));
    }
}
