//! The metrics of the probes: times of requests, and samples.
//!
//! Not here: the probes themselves (`probe`), all other metrics (`metrics`).

use tollgate_http::{MetricFamily, MetricKind, SampleValue};

use super::metrics::label;
use crate::probe::{LATENCY_BOUNDS_US, LatencySums, SampleCounts, SampleKind};
use crate::runtime::connections::Surface;
use crate::runtime::service::Service;

/// The values of the label `kind`, and the kinds that each counts.
const KINDS: [(&str, &[SampleKind]); 3] = [
    ("taken", &[SampleKind::Taken]),
    ("denied", &[SampleKind::Denied, SampleKind::Shadow]),
    ("recorded", &[SampleKind::Recorded]),
];

/// Returns the metrics of all workers' probes.
pub(super) fn all(service: &Service) -> Vec<MetricFamily> {
    let mut samples = MetricFamily::counters(
        "tollgate_samples",
        "Samples of requests, denials and recorded decisions that the observer got",
    );
    let mut dropped = MetricFamily::counters(
        "tollgate_samples_dropped",
        "Samples that were dropped, because a worker's ring was full",
    );
    for (word, kinds) in KINDS {
        let mut sum = SampleCounts::default();
        for counters in service.all_counters() {
            for kind in kinds {
                let counts = counters.probe.counts(*kind);
                sum.taken_in += counts.taken_in;
                sum.dropped += counts.dropped;
            }
        }
        samples = samples.with(label("kind", word), sum.taken_in);
        dropped = dropped.with(label("kind", word), sum.dropped);
    }
    let requests = MetricFamily::counter(
        "tollgate_requests",
        "Requests of clients, of all verbs",
        service.observatory().requests(service.all_counters()),
    );
    vec![requests, samples, dropped, durations(service)]
}

/// The times of the requests that were timed, by listener.
fn durations(service: &Service) -> MetricFamily {
    let mut family = MetricFamily {
        name: "tollgate_request_duration_seconds",
        help: "Time from reading a request to writing its reply, of the requests that were timed",
        kind: MetricKind::Histogram,
        samples: Vec::new(),
        source: None,
    };
    for surface in Surface::ALL {
        let mut sums = LatencySums::default();
        for counters in service.all_counters() {
            counters.probe.latency.add_to(surface as usize, &mut sums);
        }
        family = family.with(label("listener", surface.word()), histogram(&sums));
    }
    family
}

fn histogram(sums: &LatencySums) -> SampleValue {
    #[expect(clippy::cast_precision_loss, reason = "times of a process in microseconds")]
    let seconds = |micros: u64| micros as f64 / 1e6;
    let bounds = LATENCY_BOUNDS_US.iter().map(|bound_us| seconds(*bound_us));
    SampleValue::Histogram {
        sum: seconds(sums.sum_us),
        count: sums.buckets.iter().sum(),
        buckets: bounds.chain([f64::INFINITY]).zip(sums.buckets).collect(),
    }
}
