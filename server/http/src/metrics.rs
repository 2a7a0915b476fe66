//! Metrics in the text formats of `OpenMetrics` 1.0 and Prometheus 0.0.4.
//!
//! Here: the form of a metric, and its text. Not here: the metrics and their values (the
//! `AdminHost`).

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// Media type of `OpenMetrics`.
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Media type of Prometheus's own format.
pub(crate) const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A count that only grows. Its text adds `_total` to the name.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// Counts of observations by upper bound.
    Histogram,
}

/// The labels of a sample: names and values.
pub type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// The value of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleValue {
    /// An integer.
    Integer(u64),
    /// A number with a fraction or a sign.
    Float(f64),
    /// A histogram.
    Histogram {
        /// The sum of all observations.
        sum: f64,
        /// The number of all observations.
        count: u64,
        /// Upper bounds in rising order, the last infinite, with the observations of each bucket
        /// alone.
        buckets: Vec<(f64, u64)>,
    },
}

/// One value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The labels; empty for a metric with one value.
    pub labels: Labels,
    /// The value.
    pub value: SampleValue,
}

/// A metric with all its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricFamily {
    /// The name, without `_total`.
    pub name: &'static str,
    /// One sentence without a full stop.
    pub help: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The samples, in the order of the text.
    pub samples: Vec<Sample>,
}

impl MetricFamily {
    /// Returns a counter without labels.
    #[must_use]
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self::counters(name, help).with(Vec::new(), value)
    }

    /// Returns a counter without samples.
    #[must_use]
    pub fn counters(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricKind::Counter, samples: Vec::new() }
    }

    /// Returns a gauge without labels.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str, value: impl Into<SampleValue>) -> Self {
        Self::gauges(name, help).with(Vec::new(), value)
    }

    /// Returns a gauge without samples.
    #[must_use]
    pub fn gauges(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricKind::Gauge, samples: Vec::new() }
    }

    /// Adds a sample.
    #[must_use]
    pub fn with(mut self, labels: Labels, value: impl Into<SampleValue>) -> Self {
        self.samples.push(Sample { labels, value: value.into() });
        self
    }
}

impl From<u64> for SampleValue {
    fn from(value: u64) -> Self {
        Self::Integer(value)
    }
}

impl From<usize> for SampleValue {
    fn from(value: usize) -> Self {
        Self::Integer(value as u64)
    }
}

impl From<bool> for SampleValue {
    fn from(value: bool) -> Self {
        Self::Integer(u64::from(value))
    }
}

impl From<f64> for SampleValue {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

/// All families of a scrape.
#[derive(Debug)]
struct Scrape(Vec<MetricFamily>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in self.0.iter().filter(|family| !family.samples.is_empty()) {
            let kind = match family.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for Sample { labels, value } in &family.samples {
                if labels.is_empty() {
                    encode_sample(&mut metric, family.kind, value)?;
                } else {
                    let labels: Vec<(&str, &str)> =
                        labels.iter().map(|(name, value)| (*name, value.as_ref())).collect();
                    let mut labelled = metric.encode_family(&labels)?;
                    encode_sample(&mut labelled, family.kind, value)?;
                }
            }
        }
        Ok(())
    }
}

fn encode_sample(
    metric: &mut MetricEncoder<'_>,
    kind: MetricKind,
    value: &SampleValue,
) -> Result<(), fmt::Error> {
    let no_exemplar =
        None::<&prometheus_client::metrics::exemplar::Exemplar<[(&str, &str); 0], u64>>;
    match (kind, value) {
        (MetricKind::Counter, SampleValue::Integer(count)) => {
            metric.encode_counter::<[(&str, &str); 0], _, u64>(count, no_exemplar)
        }
        (MetricKind::Counter, SampleValue::Float(amount)) => {
            metric.encode_counter::<[(&str, &str); 0], _, u64>(amount, no_exemplar)
        }
        (_, SampleValue::Integer(value)) => metric.encode_gauge(value),
        (_, SampleValue::Float(value)) => metric.encode_gauge(value),
        (_, SampleValue::Histogram { sum, count, buckets }) => {
            metric.encode_histogram::<[(&str, &str); 0]>(*sum, *count, buckets, None)
        }
    }
}

/// Returns `families` as `OpenMetrics`.
pub(crate) fn open_metrics(families: Vec<MetricFamily>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(families)));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// Returns `families` in Prometheus's own format: a counter's description has the name with
/// `_total`, and there is no end mark.
/// Source: "Exposition formats", prometheus.io.
pub(crate) fn prometheus_text(families: Vec<MetricFamily>) -> String {
    let counters: Vec<&'static str> = families
        .iter()
        .filter(|family| family.kind == MetricKind::Counter)
        .map(|family| family.name)
        .collect();
    let mut text = String::new();
    for line in open_metrics(families).lines() {
        let description = line.strip_prefix("# ").and_then(|rest| rest.split_once(' '));
        match description {
            None if line == "# EOF" => {}
            Some((keyword @ ("HELP" | "TYPE"), rest)) => {
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let suffix = if counters.contains(&name) { "_total" } else { "" };
                let _ = writeln!(text, "# {keyword} {name}{suffix} {rest}");
            }
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

/// Returns whether a client that accepts `accept` wants `OpenMetrics`.
pub(crate) fn wants_open_metrics(accept: Option<&str>) -> bool {
    accept.is_some_and(|accept| {
        accept.split(',').any(|kind| {
            let mut parts = kind.split(';').map(str::trim);
            parts.next() == Some("application/openmetrics-text")
                && parts.all(|part| part != "q=0" && part != "q=0.0")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<MetricFamily> {
        vec![
            MetricFamily::counters("a_requests", "Requests")
                .with(vec![("command", "get".into()), ("limit", "a\"b\\c\nd".into())], 3_u64),
            MetricFamily::gauge("a_ratio", "A ratio", -0.5),
            MetricFamily::counters("a_absent", "Nothing"),
            MetricFamily {
                name: "a_seconds",
                help: "Durations",
                kind: MetricKind::Histogram,
                samples: vec![Sample {
                    labels: vec![("listener", "tcp".into())],
                    value: SampleValue::Histogram {
                        sum: 1.5,
                        count: 3,
                        buckets: vec![(0.1, 1), (1.0, 2), (f64::INFINITY, 0)],
                    },
                }],
            },
        ]
    }

    #[test]
    fn open_metrics_has_all_samples_and_an_end() {
        let text = open_metrics(families());
        let expected = "# HELP a_requests Requests\n\
            # TYPE a_requests counter\n\
            a_requests_total{command=\"get\",limit=\"a\\\"b\\\\c\\nd\"} 3\n\
            # HELP a_ratio A ratio\n\
            # TYPE a_ratio gauge\n\
            a_ratio -0.5\n\
            # HELP a_seconds Durations\n\
            # TYPE a_seconds histogram\n\
            a_seconds_sum{listener=\"tcp\"} 1.5\n\
            a_seconds_count{listener=\"tcp\"} 3\n\
            a_seconds_bucket{le=\"0.1\",listener=\"tcp\"} 1\n\
            a_seconds_bucket{le=\"1.0\",listener=\"tcp\"} 3\n\
            a_seconds_bucket{le=\"+Inf\",listener=\"tcp\"} 3\n\
            # EOF\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn prometheus_text_describes_counters_with_their_suffix() {
        let text = prometheus_text(families());
        assert!(text.contains("# HELP a_requests_total Requests\n"), "{text}");
        assert!(text.contains("# TYPE a_requests_total counter\n"), "{text}");
        assert!(text.contains("# TYPE a_ratio gauge\n"), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
    }

    #[test]
    fn the_accept_header_selects_the_format() {
        for (accept, expected) in [
            (None, false),
            (Some("*/*"), false),
            (Some("text/plain;version=0.0.4;q=0.5,*/*;q=0.1"), false),
            (Some("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"), true),
            (Some("text/plain, application/openmetrics-text; q=0"), false),
        ] {
            assert_eq!(wants_open_metrics(accept), expected, "{accept:?}");
        }
    }
}
