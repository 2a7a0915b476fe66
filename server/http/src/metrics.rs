//! Metrics in the text formats of `OpenMetrics` 1.0 and Prometheus 0.0.4.
//!
//! Here: the form of a metric, and its text. Not here: the metrics and their values (the
//! `AdminHost`).

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// Media type of `OpenMetrics`.
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Media type of Prometheus's own format.
pub(crate) const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Length from which a chunk of the text is sent, in bytes.
const CHUNK_BYTES: usize = 32 << 10;
/// Samples of a source that are made at once.
const SAMPLES_OF_PART: usize = 128;

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
    /// Further samples, which are made when they are written.
    pub source: Option<SampleSource>,
}

/// Samples by number, from 0 to the first that is `None`.
#[derive(Clone)]
pub struct SampleSource(Arc<dyn Fn(usize) -> Option<Sample> + Send + Sync>);

impl fmt::Debug for SampleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SampleSource")
    }
}

impl PartialEq for SampleSource {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
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
        Self { name, help, kind: MetricKind::Counter, samples: Vec::new(), source: None }
    }

    /// Returns a gauge without labels.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str, value: impl Into<SampleValue>) -> Self {
        Self::gauges(name, help).with(Vec::new(), value)
    }

    /// Returns a gauge without samples.
    #[must_use]
    pub fn gauges(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: MetricKind::Gauge, samples: Vec::new(), source: None }
    }

    /// Adds the samples of a source, by number, from 0 to the first that is `None`. They are made
    /// when they are written.
    #[must_use]
    pub fn with_each(
        self,
        sample: impl Fn(usize) -> Option<Sample> + Send + Sync + 'static,
    ) -> Self {
        Self { source: Some(SampleSource(Arc::new(sample))), ..self }
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

/// A part of a scrape.
#[derive(Debug)]
struct Scrape(MetricFamily);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let family = &self.0;
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

/// The text of a scrape in chunks. Samples of a source are made as the text is, so a scrape of very
/// many needs the memory of one chunk.
#[derive(Debug)]
pub(crate) struct ScrapeText {
    families: std::vec::IntoIter<MetricFamily>,
    /// The family that is written, with the number of the next sample of its source; and whether
    /// its description is written.
    present: Option<(MetricFamily, usize, bool)>,
    is_open_metrics: bool,
    has_ended: bool,
}

impl ScrapeText {
    /// Returns the text of `families` as `OpenMetrics`, or in Prometheus's own format: there a
    /// counter's description has the name with `_total`, and there is no end mark.
    /// Source: "Exposition formats", prometheus.io.
    pub(crate) fn new(families: Vec<MetricFamily>, is_open_metrics: bool) -> Self {
        let families = families.into_iter();
        Self { families, present: None, is_open_metrics, has_ended: false }
    }

    /// Whether all of the text was returned.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Writes a few samples to `text`. False: there are no more.
    fn write_some(&mut self, text: &mut String) -> bool {
        let present = self.present.take();
        let next = || self.families.next().map(|family| (family, 0, false));
        let Some((mut family, mut number, is_described)) = present.or_else(next) else {
            return false;
        };
        let mut samples = std::mem::take(&mut family.samples);
        if let Some(source) = &family.source {
            let more = (number..).map_while(|number| (source.0)(number)).take(SAMPLES_OF_PART);
            let before = samples.len();
            samples.extend(more);
            number += samples.len() - before;
        }
        if samples.is_empty() {
            return true;
        }
        let is_counter = family.kind == MetricKind::Counter;
        let suffix = if is_counter && !self.is_open_metrics { "_total" } else { "" };
        let (name, help, kind) = (family.name, family.help, family.kind);
        let part = MetricFamily { name, help, kind, samples, source: None };
        for line in encoded(part).lines() {
            let description = line.strip_prefix("# ").and_then(|rest| rest.split_once(' '));
            match description {
                None if line == "# EOF" => {}
                Some(("HELP" | "TYPE", _)) if is_described => {}
                Some((keyword @ ("HELP" | "TYPE"), rest)) => {
                    let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                    // Writing to a String cannot fail.
                    let _ = writeln!(text, "# {keyword} {name}{suffix} {rest}");
                }
                _ => {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
        self.present = family.source.is_some().then_some((family, number, true));
        true
    }
}

impl Iterator for ScrapeText {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut text = String::with_capacity(CHUNK_BYTES * 2);
        while text.len() < CHUNK_BYTES && !self.has_ended {
            if !self.write_some(&mut text) {
                self.has_ended = true;
                text.push_str(if self.is_open_metrics { "# EOF\n" } else { "" });
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

/// Returns a family as `OpenMetrics`.
fn encoded(family: MetricFamily) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(family)));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
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
                source: None,
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

    fn open_metrics(families: Vec<MetricFamily>) -> String {
        ScrapeText::new(families, true).collect()
    }

    fn prometheus_text(families: Vec<MetricFamily>) -> String {
        ScrapeText::new(families, false).collect()
    }

    #[test]
    fn samples_of_a_source_come_in_short_chunks() {
        const SAMPLES: usize = 10_000;
        let family = || {
            MetricFamily::counters("a", "Many").with_each(|number| {
                let labels = vec![("limit", format!("l{number}").into())];
                (number < SAMPLES).then_some(Sample { labels, value: number.into() })
            })
        };
        let mut expected = "# HELP a_total Many\n# TYPE a_total counter\n".to_owned();
        for number in 0..SAMPLES {
            let _ = writeln!(expected, "a_total{{limit=\"l{number}\"}} {number}");
        }
        expected.push_str("# HELP b B\n# TYPE b gauge\nb 1\n");
        let families = || vec![family(), MetricFamily::gauge("b", "B", 1_u64)];
        let chunks: Vec<String> = ScrapeText::new(families(), false).collect();
        assert_eq!(chunks.concat(), expected);
        assert!(chunks.iter().all(|chunk| chunk.len() < 2 * CHUNK_BYTES), "they are bounded");
        assert!(open_metrics(families()).ends_with("b 1\n# EOF\n"));
        let none = MetricFamily::counters("a", "None").with_each(|_| None);
        assert_eq!(prometheus_text(vec![none]), "");
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
