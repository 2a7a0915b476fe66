//! A worker's probe: the samples that it takes of its requests, and the ring that holds them.
//!
//! Here: the choice of samples on the path of a request, the ring, the counts of samples. Not here:
//! what becomes of them (`observe`), the request itself (`session`, `commands`).
//!
//! A probe costs a request a subtraction a batch and a mask a counted key. Everything else is cold.

mod latency;
mod sample;
mod thinning;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;

pub(crate) use self::latency::{
    FINE_BUCKETS, LATENCY_BOUNDS_US, LISTENERS, LatencyCounts, LatencySums, fine_bound_us,
};
pub(crate) use self::sample::{KeySample, ProbeSample, SampleKind, SampledVerb, SampledVerdict};
use self::thinning::Thinning;

/// Samples that a worker's ring holds.
pub(crate) const RING_PLACES: usize = 4096;
/// One request of about this many is taken as a sample.
pub(crate) const TAKEN_GAP: u64 = 64;

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
    /// Requests before the next sample; negative if samples are due.
    gap: AtomicI64,
    /// The sum of all gaps so far.
    gaps: AtomicU64,
    /// The state of the generator of gaps.
    random: AtomicU64,
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
            // Without an observer no sample is ever due.
            gap: AtomicI64::new(i64::MAX),
            gaps: AtomicU64::new(i64::MAX as u64),
            random: AtomicU64::new(1),
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

/// Converts a number of requests of a batch.
fn signed(requests: usize) -> i64 {
    (requests as u64).cast_signed()
}

impl Probe {
    /// Makes the ring, before the worker starts. `seed` chooses the gaps.
    pub(crate) fn open(&self, seed: u64) {
        if self.ring.set(ArrayQueue::new(RING_PLACES)).is_ok() {
            self.random.store(seed | 1, Ordering::Relaxed);
            let first = self.next_gap();
            self.gap.store(first.cast_signed(), Ordering::Relaxed);
            self.gaps.store(first, Ordering::Relaxed);
        }
    }

    /// Notes a batch of requests. Returns true if samples of it are due: see [`Probe::next_due`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is four instructions of every batch")]
    pub(crate) fn pass(&self, requests: usize) -> bool {
        let left = self.gap.load(Ordering::Relaxed).wrapping_sub(signed(requests));
        self.gap.store(left, Ordering::Relaxed);
        left < 0
    }

    /// Returns the position of the next request to sample in the batch of `requests` that was noted
    /// last; `None` if no further one is due.
    #[cold]
    pub(crate) fn next_due(&self, requests: usize) -> Option<usize> {
        let left = self.gap.load(Ordering::Relaxed);
        if left >= 0 {
            return None;
        }
        let gap = 1 + self.next_gap();
        self.gap.store(left + gap.cast_signed(), Ordering::Relaxed);
        add(&self.gaps, gap);
        usize::try_from(left + signed(requests)).ok().filter(|position| *position < requests)
    }

    /// Returns a random number of requests to skip, on average one less than [`TAKEN_GAP`].
    fn next_gap(&self) -> u64 {
        let mut state = self.random.load(Ordering::Relaxed);
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.random.store(state, Ordering::Relaxed);
        let gaps = 2 * TAKEN_GAP - 1;
        ((u128::from(state) * u128::from(gaps)) >> 64) as u64
    }

    /// Returns the number of requests since the ring was made.
    pub(crate) fn requests(&self) -> u64 {
        let left = self.gap.load(Ordering::Relaxed);
        self.gaps.load(Ordering::Relaxed).saturating_add_signed(left.saturating_neg())
    }

    /// Returns a random number below `end`, for a choice within a request.
    pub(crate) fn choose(&self, end: usize) -> usize {
        self.next_gap();
        let state = self.random.load(Ordering::Relaxed);
        ((u128::from(state) * end as u128) >> 64) as usize
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
    fn about_one_request_in_64_is_taken() {
        for batch in [1, 3, 16] {
            let probe = Probe::default();
            probe.open(7);
            let batches = 640_000 / batch;
            let mut positions = vec![0_u32; batch];
            for _ in 0..batches {
                if probe.pass(batch) {
                    let mut last = None;
                    while let Some(position) = probe.next_due(batch) {
                        assert!(last < Some(position), "in order, each once");
                        last = Some(position);
                        positions[position] += 1;
                    }
                }
            }
            let mean = 10_000 / batch as u32;
            for count in positions {
                assert!(count.abs_diff(mean) < mean / 5, "{count} of about {mean}");
            }
            let requests = (batches * batch) as u64;
            assert!(probe.requests().abs_diff(requests) < 2 * TAKEN_GAP);
        }
    }

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
            probe.put_taken(UNIX_MS, (hash, b"a"), 0, TAKEN_GAP);
        }
        let counts = probe.counts(SampleKind::Taken);
        assert_eq!((counts.taken_in, counts.dropped), (RING_PLACES as u64, 10));
        let mut hashes = Vec::new();
        probe.drain(|sample| hashes.push(sample.hash()));
        assert!(hashes.iter().copied().eq(0..RING_PLACES as u64), "the oldest stay, in order");
        probe.put_taken(UNIX_MS, (9, b"a"), 0, TAKEN_GAP);
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
