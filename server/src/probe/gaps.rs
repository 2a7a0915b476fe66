//! The choice of requests that are samples: one of about 64, and fewer above a million a second.
//!
//! Here: the gap to the next sample, and its mean. Not here: what becomes of a sample (`probe`).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Up to [`SAMPLES_A_SECOND`], one request of about this many is a sample.
const TAKEN_GAP: u64 = 64;
/// Most samples a second and worker: those of a million requests at [`TAKEN_GAP`]. A wake-up of the
/// observer finds at most 1,600, and the ring has room for as many denials besides.
const SAMPLES_A_SECOND: u64 = 1_000_000 / TAKEN_GAP;
/// The rate is looked at this often.
const WINDOW_MS: u64 = 100;
const WINDOW_SAMPLES: u64 = SAMPLES_A_SECOND * WINDOW_MS / 1000;
/// Greatest mean gap: enough for 512 million requests a second.
const GAP_MAX: u64 = 1 << 15;

/// The gaps of one worker, which alone changes them.
#[derive(Debug)]
pub(super) struct Gaps {
    /// Requests before the next sample; negative if samples are due.
    left: AtomicI64,
    /// The sum of all gaps so far.
    sum: AtomicU64,
    /// The mean of which the present gap was drawn: the requests for which its sample stands.
    mean: AtomicU64,
    /// The window of the last sample.
    window: AtomicU64,
    /// Requests before that window.
    requests_before: AtomicU64,
    /// Samples of that window at the present mean.
    samples: AtomicU64,
    /// The state of the generator.
    random: AtomicU64,
}

/// A request of a batch that is a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DueSample {
    /// Its position in the batch.
    pub(crate) position: usize,
    /// The number of requests that it stands for.
    pub(crate) weight: u64,
}

impl Default for Gaps {
    fn default() -> Self {
        Self {
            // Without an observer no sample is ever due.
            left: AtomicI64::new(i64::MAX),
            sum: AtomicU64::new(i64::MAX as u64),
            mean: AtomicU64::new(TAKEN_GAP),
            window: AtomicU64::new(0),
            requests_before: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            random: AtomicU64::new(1),
        }
    }
}

/// Converts a number of requests of a batch.
fn signed(requests: usize) -> i64 {
    (requests as u64).cast_signed()
}

impl Gaps {
    /// Begins to choose samples. `seed` chooses the gaps.
    pub(super) fn begin(&self, seed: u64) {
        self.random.store(seed | 1, Ordering::Relaxed);
        let first = self.draw_gap(TAKEN_GAP);
        self.left.store(first.cast_signed(), Ordering::Relaxed);
        self.sum.store(first, Ordering::Relaxed);
    }

    /// Notes a batch of requests. Returns true if samples of it are due.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is four instructions of every batch")]
    pub(super) fn pass(&self, requests: usize) -> bool {
        let left = self.left.load(Ordering::Relaxed).wrapping_sub(signed(requests));
        self.left.store(left, Ordering::Relaxed);
        left < 0
    }

    /// Returns the next sample of the batch of `requests` that was noted last; `None` if no further
    /// one is due.
    pub(super) fn next_due(&self, requests: usize, unix_ms: u64) -> Option<DueSample> {
        let left = self.left.load(Ordering::Relaxed);
        if left >= 0 {
            return None;
        }
        let weight = self.mean.load(Ordering::Relaxed);
        self.follow_rate(unix_ms);
        let gap = 1 + self.draw_gap(self.mean.load(Ordering::Relaxed));
        self.left.store(left + gap.cast_signed(), Ordering::Relaxed);
        super::add(&self.sum, gap);
        let position = usize::try_from(left + signed(requests)).ok()?;
        (position < requests).then_some(DueSample { position, weight })
    }

    /// Sets the mean gap: in a new window by the requests of the one before, and within a window
    /// doubled when it has its samples.
    fn follow_rate(&self, unix_ms: u64) {
        let window = unix_ms / WINDOW_MS;
        let last = self.window.swap(window, Ordering::Relaxed);
        if window != last {
            let requests = self.requests();
            let before = self.requests_before.swap(requests, Ordering::Relaxed);
            // After a pause there is no rate.
            let rate = if window == last + 1 { requests.saturating_sub(before) } else { 0 };
            self.set_mean(rate.div_ceil(WINDOW_SAMPLES));
            self.samples.store(0, Ordering::Relaxed);
        } else if self.samples.load(Ordering::Relaxed) == WINDOW_SAMPLES {
            self.set_mean(2 * self.mean.load(Ordering::Relaxed));
            self.samples.store(WINDOW_SAMPLES / 2, Ordering::Relaxed);
        }
        super::add(&self.samples, 1);
    }

    fn set_mean(&self, mean: u64) {
        self.mean.store(mean.clamp(TAKEN_GAP, GAP_MAX), Ordering::Relaxed);
    }

    /// Returns a random number of requests to skip, on average one less than `mean`.
    fn draw_gap(&self, mean: u64) -> u64 {
        self.draw_below(2 * mean - 1)
    }

    /// Returns a random number below `end`.
    pub(super) fn draw_below(&self, end: u64) -> u64 {
        let mut state = self.random.load(Ordering::Relaxed);
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.random.store(state, Ordering::Relaxed);
        ((u128::from(state) * u128::from(end)) >> 64) as u64
    }

    /// Returns the number of requests since the beginning.
    pub(super) fn requests(&self) -> u64 {
        let left = self.left.load(Ordering::Relaxed);
        self.sum.load(Ordering::Relaxed).saturating_add_signed(left.saturating_neg())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIX_MS: u64 = 1_700_000_000_000;

    /// The samples and their weight in a second of evenly spread batches of 16.
    fn second(gaps: &Gaps, second: u64, requests: u64) -> (u64, u64) {
        let (mut samples, mut weight) = (0, 0);
        for batch in 0..requests / 16 {
            let now_ms = UNIX_MS + 1000 * second + batch * 16_000 / requests;
            if gaps.pass(16) {
                while let Some(due) = gaps.next_due(16, now_ms) {
                    samples += 1;
                    weight += due.weight;
                }
            }
        }
        (samples, weight)
    }

    #[test]
    fn about_one_request_in_64_is_taken() {
        for batch in [1, 3, 16] {
            let gaps = Gaps::default();
            gaps.begin(7);
            let batches = 640_000 / batch;
            let mut positions = vec![0_u32; batch];
            for at in 0..batches {
                if gaps.pass(batch) {
                    let now_ms = UNIX_MS + (at * batch / 900) as u64;
                    let mut last = None;
                    while let Some(due) = gaps.next_due(batch, now_ms) {
                        assert!(last < Some(due.position), "in order, each once");
                        assert_eq!(due.weight, TAKEN_GAP);
                        last = Some(due.position);
                        positions[due.position] += 1;
                    }
                }
            }
            let mean = 10_000 / batch as u32;
            for count in positions {
                assert!(count.abs_diff(mean) < mean / 5, "{count} of about {mean}");
            }
            let requests = (batches * batch) as u64;
            assert!(gaps.requests().abs_diff(requests) < 2 * TAKEN_GAP);
        }
    }

    #[test]
    fn sudden_requests_have_fewer_samples_within_a_window() {
        let gaps = Gaps::default();
        gaps.begin(7);
        let (mut samples, mut weight) = (0, 0);
        for _ in 0..2_000_000 / 16 {
            if gaps.pass(16) {
                while let Some(due) = gaps.next_due(16, UNIX_MS) {
                    samples += 1;
                    weight += due.weight;
                }
            }
        }
        assert!(samples < 4 * WINDOW_SAMPLES, "{samples}");
        assert!(weight.abs_diff(2_000_000) < 100_000, "{weight}");
    }

    #[test]
    fn many_requests_have_fewer_samples_of_more_weight() {
        for requests in [100_000, 900_000, 1_500_000, 6_000_000, 20_000_000] {
            let gaps = Gaps::default();
            gaps.begin(7);
            second(&gaps, 0, requests);
            let (samples, weight) = second(&gaps, 1, requests);
            let expected = (requests / TAKEN_GAP).min(SAMPLES_A_SECOND);
            assert!(samples.abs_diff(expected) <= expected / 20, "{samples}, not {expected}");
            assert!(weight.abs_diff(requests) <= requests / 20, "{weight} of {requests}");
            let (_, weight) = second(&gaps, 3, 64_000);
            assert!(weight.abs_diff(64_000) <= 8000 + 2 * requests / 15_000, "{weight} of 64000");
            let (samples, _) = second(&gaps, 4, 64_000);
            assert!(samples.abs_diff(1000) <= 100, "{samples}: one of 64 again after a pause");
        }
    }
}
