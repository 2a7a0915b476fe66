//! The thinning of denials: all up to a rate, of a flood every fourth, every eighth and so on.
//!
//! Not here: other samples, which are chosen by chance or by key (`probe`).

use std::sync::atomic::{AtomicU64, Ordering};

/// Denials a second and worker up to which every one is a sample.
pub(crate) const DENIALS_A_SECOND: u64 = 20_000;
/// Most samples a second of a flood: its keys are known by fewer, and each costs the worker and the
/// observer more than the denial that it is of.
const FLOOD_SAMPLES_A_SECOND: u64 = DENIALS_A_SECOND / 4;
/// The rate is looked at this often.
const WINDOW_MS: u64 = 100;
/// Samples of a window of which every denial is one.
const WINDOW_SAMPLES: u64 = DENIALS_A_SECOND * WINDOW_MS / 1000;
/// Most samples of a window in a flood.
const FLOOD_WINDOW_SAMPLES: u64 = FLOOD_SAMPLES_A_SECOND * WINDOW_MS / 1000;
/// Greatest weight of a sample: enough for 655 million denials a second.
const WEIGHT_MAX: u64 = 1 << 15;

/// The state of the thinning, of one writer.
#[derive(Debug, Default)]
pub(super) struct Thinning {
    /// The window of the last denial.
    window: AtomicU64,
    /// Denials of the window.
    denials: AtomicU64,
    /// Samples of the window at the present weight.
    samples: AtomicU64,
    /// The present weight, a power of two; 0 stands for 1.
    weight: AtomicU64,
    /// Denials to pass over before the next sample.
    skip: AtomicU64,
}

impl Thinning {
    /// Counts a denial. Returns the number of denials that it stands for as a sample; `None` if it
    /// is none.
    #[inline]
    pub(super) fn weight(&self, unix_ms: u64) -> Option<u64> {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let write = |number: &AtomicU64, value| number.store(value, Ordering::Relaxed);
        let window = unix_ms / WINDOW_MS;
        let last = read(&self.window);
        if window != last {
            // The last window tells the rate; after a pause there is none.
            let denials = if window == last + 1 { read(&self.denials) } else { 0 };
            let is_flood = denials > WINDOW_SAMPLES;
            let weight = if is_flood { denials.div_ceil(FLOOD_WINDOW_SAMPLES) } else { 1 };
            write(&self.weight, weight.next_power_of_two().min(WEIGHT_MAX));
            write(&self.window, window);
            write(&self.denials, 0);
            write(&self.samples, 0);
            write(&self.skip, 0);
        }
        write(&self.denials, read(&self.denials) + 1);
        let skip = read(&self.skip);
        if skip > 0 {
            write(&self.skip, skip - 1);
            return None;
        }
        let mut weight = read(&self.weight).max(1);
        if read(&self.samples) == WINDOW_SAMPLES {
            weight = (2 * weight).min(WEIGHT_MAX);
            write(&self.weight, weight);
            write(&self.samples, WINDOW_SAMPLES / 2);
        }
        write(&self.samples, read(&self.samples) + 1);
        write(&self.skip, weight - 1);
        Some(weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The samples and their weights of a second with evenly spread denials.
    fn second(thinning: &Thinning, second: u64, denials: u64) -> (u64, u64) {
        let at_ms = |denial| 1000 * (1_700_000_000 + second) + denial * 1000 / denials;
        let weights = (0..denials).filter_map(|denial| thinning.weight(at_ms(denial)));
        weights.fold((0, 0), |(samples, weight), more| (samples + 1, weight + more))
    }

    #[test]
    fn few_denials_are_all_samples() {
        let thinning = Thinning::default();
        for at in 0..3 {
            assert_eq!(second(&thinning, at, DENIALS_A_SECOND), (20_000, 20_000));
        }
    }

    #[test]
    fn flood_is_thinned_and_its_weight_is_right() {
        for denials in [30_000, 100_000, 1_000_000] {
            let thinning = Thinning::default();
            second(&thinning, 0, denials);
            let (samples, weight) = second(&thinning, 1, denials);
            assert!(samples <= FLOOD_SAMPLES_A_SECOND, "{samples} samples of {denials}");
            assert!(samples >= FLOOD_SAMPLES_A_SECOND / 2, "{samples} samples of {denials}");
            assert!(weight.abs_diff(denials) <= denials / 50, "{weight} of {denials}");
            assert_eq!(second(&thinning, 3, 100), (100, 100), "all again after a pause");
        }
    }

    #[test]
    fn sudden_flood_is_thinned_within_a_window() {
        let thinning = Thinning::default();
        let weights = (0..100_000).filter_map(|_| thinning.weight(1_700_000_000_000));
        let (samples, weight) =
            weights.fold((0, 0), |(samples, weight), more| (samples + 1, weight + more));
        assert!(samples < 8000, "{samples}");
        assert!(weight.abs_diff(100_000) < 2000, "{weight}");
    }
}
