//! Histograms of latencies.
//!
//! Not here: which latencies are recorded (`exchange`, `disturbance`).

use hdrhistogram::Histogram;

/// The smallest recorded latency in nanoseconds; latencies are recorded to three digits.
const LATENCY_NS_MIN: u64 = 128;
/// The largest recorded latency; longer ones are recorded as this.
const LATENCY_NS_MAX: u64 = 120_000_000_000;

/// An empty histogram of latencies in nanoseconds.
///
/// # Panics
///
/// Never: the bounds are constant and in order.
#[must_use]
pub fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, 3)
        .expect("constant bounds, in order")
}

/// The latencies below which 50 %, 99 % and 99.9 % lie.
#[must_use]
pub fn percentiles(latencies: &Histogram<u64>) -> [u64; 3] {
    [0.5, 0.99, 0.999].map(|q| latencies.value_at_quantile(q))
}
