//! Rates of the server over ten minutes, and times of requests over the last one to two.
//!
//! Not here: the counts (`probe`, `series`).

use std::collections::VecDeque;

use tollgate_http::{LatencyView, ServerRates};

use super::top_keys::GENERATION_MS;
use crate::probe::{FINE_BUCKETS, fine_bound_us};

/// Seconds of a point.
pub(crate) const POINT_SECONDS: usize = 10;
/// Points that are kept: ten minutes.
pub(crate) const POINTS: usize = 60;

/// Requests, allowed and denied decisions of a second, or of several.
pub(crate) type SecondFigures = [u64; 3];

/// The rates of ten minutes.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    points: VecDeque<[f64; 3]>,
    /// The sum of the seconds of the next point, and their span.
    sum: SecondFigures,
    span_ms: u64,
}

impl Rates {
    /// Adds the figures of about a second, which took `span_ms`.
    pub(crate) fn add(&mut self, figures: SecondFigures, span_ms: u64) {
        for (sum, figure) in self.sum.iter_mut().zip(figures) {
            *sum += figure;
        }
        self.span_ms += span_ms;
        // The wake-ups are a little late or early.
        if self.span_ms + 500 < 1000 * POINT_SECONDS as u64 {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "counts of some seconds")]
        let point = self.sum.map(|sum| sum as f64 * 1000.0 / self.span_ms as f64);
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        (self.sum, self.span_ms) = ([0; 3], 0);
    }

    /// Returns the points, oldest first.
    pub(crate) fn view(&self) -> ServerRates {
        let of = |index: usize| self.points.iter().map(|point| point[index]).collect();
        ServerRates { requests: of(0), allowed: of(1), denied: of(2) }
    }
}

/// Times of requests, in two generations.
#[derive(Debug)]
pub(crate) struct LatencyWindow {
    /// The counts at the start of the generation before, and of the present one.
    bases: [[u64; FINE_BUCKETS]; 2],
    maxima_us: [u64; 2],
    started_ms: u64,
}

impl LatencyWindow {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self { bases: [[0; FINE_BUCKETS]; 2], maxima_us: [0; 2], started_ms: now_ms }
    }

    /// Takes the counts since the start, and the longest time since the last call. Returns the
    /// quantiles of the window.
    pub(crate) fn look(
        &mut self,
        now_ms: u64,
        counts: &[u64; FINE_BUCKETS],
        max_us: u64,
    ) -> LatencyView {
        if now_ms.saturating_sub(self.started_ms) >= GENERATION_MS {
            self.bases = [self.bases[1], *counts];
            self.maxima_us = [self.maxima_us[1], 0];
            self.started_ms = now_ms;
        }
        self.maxima_us[1] = self.maxima_us[1].max(max_us);
        let mut window = *counts;
        for (count, base) in window.iter_mut().zip(&self.bases[0]) {
            *count = count.saturating_sub(*base);
        }
        let count: u64 = window.iter().sum();
        let longest_us = self.maxima_us[0].max(self.maxima_us[1]);
        let quantile_us = |per_mille: u64| quantile_us(&window, count, per_mille).min(longest_us);
        LatencyView {
            count,
            p50_us: quantile_us(500),
            p99_us: quantile_us(990),
            p999_us: quantile_us(999),
            max_us: longest_us,
        }
    }
}

/// Returns the time that `per_mille` of 1,000 requests did not exceed: the upper bound of a bucket.
fn quantile_us(buckets: &[u64; FINE_BUCKETS], count: u64, per_mille: u64) -> u64 {
    let rank = (u128::from(count) * u128::from(per_mille)).div_ceil(1000);
    let mut below = 0;
    for (bucket, requests) in buckets.iter().enumerate() {
        below += u128::from(*requests);
        if below >= rank && below > 0 {
            return fine_bound_us(bucket);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::LatencyCounts;

    #[test]
    fn rates_have_a_point_each_ten_seconds() {
        let mut rates = Rates::default();
        for second in 0..10 * (POINTS as u64 + 3) {
            rates.add([1000 + second / 10, 500, 10], 1000);
        }
        let view = rates.view();
        assert_eq!((view.requests.len(), view.denied.len()), (POINTS, POINTS));
        assert!((view.requests[0] - 1003.0).abs() < 1e-9, "{}", view.requests[0]);
        assert!((view.allowed[0] - 500.0).abs() < 1e-9);
        assert!((view.denied[59] - 10.0).abs() < 1e-9);
    }

    #[test]
    fn quantiles_are_an_eighth_too_high_at_most() {
        let counts = LatencyCounts::default();
        for time_us in 1..=10_000 {
            counts.add(0, 1, time_us);
        }
        let mut window = LatencyWindow::new(0);
        let mut fine = [0; FINE_BUCKETS];
        counts.add_fine_to(&mut fine);
        let view = window.look(1000, &fine, counts.take_max_us());
        assert_eq!((view.count, view.max_us), (10_000, 10_000));
        for (told, exact) in [(view.p50_us, 5000), (view.p99_us, 9900), (view.p999_us, 9990)] {
            assert!(told >= exact && told <= exact + exact / 8, "{told} for {exact}");
        }
    }

    #[test]
    fn window_forgets_after_two_generations() {
        let mut window = LatencyWindow::new(0);
        let mut counts = [0; FINE_BUCKETS];
        assert_eq!(window.look(0, &counts, 0), LatencyView::default());
        counts[5] = 10;
        assert_eq!(window.look(100, &counts, 7).count, 10);
        let view = window.look(GENERATION_MS, &counts, 0);
        assert_eq!((view.count, view.max_us), (10, 7));
        let view = window.look(2 * GENERATION_MS, &counts, 0);
        assert_eq!((view.count, view.max_us), (0, 0));
    }
}
