//! The times of requests: counts by bucket, of the rounds that were timed.
//!
//! Here: the buckets and the counts of one worker. Not here: the choice of the rounds (`io`), rates
//! and quantiles (`observe`).

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the published buckets, in microseconds; above them lies one more.
pub(crate) const LATENCY_BOUNDS_US: [u64; 16] = [
    10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000,
];

/// Listeners that are told apart.
pub(crate) const LISTENERS: usize = 3;
/// Fine buckets of an octave.
const FINE_STEPS: u64 = 8;
/// Octaves from 8 µs up to over a minute; shorter times have a bucket each.
const FINE_OCTAVES: u64 = 24;
/// Buckets for quantiles: each is at most an eighth wide.
pub(crate) const FINE_BUCKETS: usize = (FINE_STEPS * FINE_OCTAVES) as usize;

/// Returns the fine bucket of a time.
fn fine_bucket(time_us: u64) -> usize {
    if time_us < FINE_STEPS {
        return time_us as usize;
    }
    let octave = u64::from(time_us.ilog2() - FINE_STEPS.ilog2());
    let step = (time_us >> octave) - FINE_STEPS;
    ((FINE_STEPS * (octave + 1) + step) as usize).min(FINE_BUCKETS - 1)
}

/// Returns the greatest time in a fine bucket, in microseconds.
pub(crate) fn fine_bound_us(bucket: usize) -> u64 {
    let (octave, step) = (bucket as u64 / FINE_STEPS, bucket as u64 % FINE_STEPS);
    match octave {
        0 => step,
        _ => ((FINE_STEPS + step + 1) << (octave - 1)) - 1,
    }
}

/// Counts of one listener.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LatencySums {
    /// The sum of all times, in microseconds.
    pub(crate) sum_us: u64,
    /// Requests by bucket of [`LATENCY_BOUNDS_US`], and those above.
    pub(crate) buckets: [u64; LATENCY_BOUNDS_US.len() + 1],
}

/// The counts of one worker, which alone adds to them.
#[derive(Debug)]
pub(crate) struct LatencyCounts {
    sums_us: [AtomicU64; LISTENERS],
    buckets: [[AtomicU64; LATENCY_BOUNDS_US.len() + 1]; LISTENERS],
    /// The sum of all listeners.
    fine: [AtomicU64; FINE_BUCKETS],
    max_us: AtomicU64,
}

impl Default for LatencyCounts {
    fn default() -> Self {
        Self {
            sums_us: Default::default(),
            buckets: Default::default(),
            fine: std::array::from_fn(|_| AtomicU64::new(0)),
            max_us: AtomicU64::new(0),
        }
    }
}

impl LatencyCounts {
    /// Counts `requests` of a listener, below 3, that took `time_us` each.
    pub(crate) fn add(&self, listener: usize, requests: u64, time_us: u64) {
        let Some(buckets) = self.buckets.get(listener) else { return };
        let bucket = LATENCY_BOUNDS_US.partition_point(|bound_us| *bound_us < time_us);
        super::add(&buckets[bucket], requests);
        super::add(&self.sums_us[listener], requests.saturating_mul(time_us));
        super::add(&self.fine[fine_bucket(time_us)], requests);
        if requests > 0 {
            self.max_us.fetch_max(time_us, Ordering::Relaxed);
        }
    }

    /// Adds the counts of a listener to `sums`.
    pub(crate) fn add_to(&self, listener: usize, sums: &mut LatencySums) {
        let Some(buckets) = self.buckets.get(listener) else { return };
        sums.sum_us += self.sums_us[listener].load(Ordering::Relaxed);
        for (sum, count) in sums.buckets.iter_mut().zip(buckets) {
            *sum += count.load(Ordering::Relaxed);
        }
    }

    /// Adds the fine counts to `fine`.
    pub(crate) fn add_fine_to(&self, fine: &mut [u64; FINE_BUCKETS]) {
        for (sum, count) in fine.iter_mut().zip(&self.fine) {
            *sum += count.load(Ordering::Relaxed);
        }
    }

    /// Returns the longest time since the last call, in microseconds.
    pub(crate) fn take_max_us(&self) -> u64 {
        self.max_us.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_bucket_that_is_an_eighth_wide() {
        let mut from_us = 0;
        for bucket in 0..FINE_BUCKETS {
            let bound_us = fine_bound_us(bucket);
            assert_eq!(fine_bucket(from_us), bucket);
            assert_eq!(fine_bucket(bound_us), bucket);
            assert!(bound_us - from_us <= from_us / FINE_STEPS);
            from_us = bound_us + 1;
        }
        assert!(from_us > 60_000_000);
        assert_eq!(fine_bucket(u64::MAX), FINE_BUCKETS - 1);
    }

    #[test]
    fn times_lie_at_or_below_the_bound_of_their_bucket() {
        let counts = LatencyCounts::default();
        counts.add(0, 3, 10);
        counts.add(0, 2, 11);
        counts.add(0, 1, 1_000_001);
        counts.add(9, 1, 1);
        let mut sums = LatencySums::default();
        counts.add_to(0, &mut sums);
        assert_eq!((sums.buckets[0], sums.buckets[1]), (3, 2));
        assert_eq!(sums.buckets[LATENCY_BOUNDS_US.len()], 1);
        assert_eq!(sums.sum_us, 30 + 22 + 1_000_001);
        assert_eq!((counts.take_max_us(), counts.take_max_us()), (1_000_001, 0));
    }
}
