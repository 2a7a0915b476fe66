//! Observations of the server: hot keys, series of limits, rates, times of requests, the tail.
//!
//! Here: the state that the thread `observer` publishes, and the questions to it; the flight
//! recorder. Not here: the samples (`probe`), the replay of a recording (`commands::replay`), the
//! thread (`server`), the answers over HTTP (`admin`) and to `stats` (`commands`).

mod names;
mod rates;
pub(crate) mod recorder;
pub(crate) mod sample;
mod series;
mod tail;
mod top_keys;
mod watcher;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate_http::{
    HotKey, HotKeys, HotKind, LatencyView, LimitActivity, LimitReport, ServerRates, TailEvent,
    TailStream,
};

pub(crate) use self::names::shown_key;
use self::names::shown_sample;
use self::series::{MINUTES, SeriesTable, last_minute};
use self::tail::TailBus;
use self::top_keys::KeyCount;
pub(crate) use self::watcher::{LookContext, WATCH_PERIOD, Watcher};
use crate::config::KeyDisplay;
use crate::counters::Counters;
use crate::limits::ActiveLimits;

/// Most hot keys of an answer.
pub(crate) const HOT_KEYS_MAX: usize = 1000;
/// Hot keys of each kind in a report.
const REPORT_KEYS: usize = 10;
/// Longest report, in minutes: two days.
pub(crate) const REPORT_MINUTES_MAX: u64 = 2880;

/// The state that the observer published last.
#[derive(Debug, Default)]
struct ObservedView {
    /// Hot keys in the order of [`HotKind`], hottest first, with the names of their limits.
    hot: [Vec<(KeyCount, Option<Arc<str>>)>; 3],
    /// The time that their counts cover, in milliseconds.
    span_ms: u64,
    /// Samples of each kind that were dropped in this time.
    dropped: [u64; 3],
    rates: ServerRates,
    latency: LatencyView,
}

/// The observations of a server.
#[derive(Debug)]
pub(crate) struct Observatory {
    display: KeyDisplay,
    view: ArcSwap<ObservedView>,
    series: Mutex<SeriesTable>,
    tail: Mutex<TailBus>,
    /// The greatest number of requests that was seen.
    requests: AtomicU64,
}

fn index_of(kind: HotKind) -> usize {
    match kind {
        HotKind::Taken => 0,
        HotKind::Denied => 1,
        HotKind::Shadow => 2,
    }
}

impl Observatory {
    /// Creates observations that show keys as `display` says.
    pub(crate) fn new(display: KeyDisplay) -> Self {
        Self {
            display,
            view: ArcSwap::default(),
            series: Mutex::default(),
            tail: Mutex::default(),
            requests: AtomicU64::new(0),
        }
    }

    /// Returns the number of requests of these workers since the start. It never falls: a worker
    /// that is about to take a sample may seem to have had fewer.
    pub(crate) fn requests<'c>(&self, counters: impl Iterator<Item = &'c Counters>) -> u64 {
        let total = counters.map(|counters| counters.probe.requests()).sum();
        self.requests.fetch_max(total, Ordering::Relaxed).max(total)
    }

    /// Returns the `count` hottest keys of this node, at most [`HOT_KEYS_MAX`]; of one limit, if
    /// named. Takes no lock, so that a peer may ask.
    pub(crate) fn hot_keys(&self, kind: HotKind, limit: Option<&str>, count: usize) -> HotKeys {
        let view = self.view.load();
        let index = index_of(kind);
        let seconds = rate_seconds(view.span_ms);
        #[expect(clippy::cast_precision_loss, reason = "counts of two minutes")]
        let rate = |count: u64| count as f64 / seconds;
        let keys = view.hot[index]
            .iter()
            .filter(|(_, name)| limit.is_none_or(|limit| name.as_deref() == Some(limit)))
            .take(count.min(HOT_KEYS_MAX))
            .map(|(key, name)| HotKey {
                key: shown_sample(self.display, key.hash, &key.key, name.as_deref()),
                limit: name.as_deref().map(str::to_owned),
                rate: rate(key.count),
                rate_at_least: rate(key.count - key.error),
            });
        HotKeys {
            keys: keys.collect(),
            span_ms: view.span_ms,
            dropped: view.dropped[index],
            missing: Vec::new(),
        }
    }

    /// Returns the figures of a limit in force over `minutes`, at most [`REPORT_MINUTES_MAX`].
    /// `active_keys` are those of the limit with the engine's number.
    pub(crate) fn report(
        &self,
        active: &ActiveLimits,
        name: &str,
        (unix_ms, minutes): (u64, u64),
        active_keys: impl FnOnce(u32) -> u64,
    ) -> Option<LimitReport> {
        let limit = active.limits().by_name(name.as_bytes())?;
        let metrics = active.metrics(limit.index())?;
        let minutes = minutes.clamp(1, REPORT_MINUTES_MAX);
        let series = self.series.lock().points(metrics.number(), unix_ms, minutes);
        let sum = |of: fn(&tollgate_http::SeriesPoint) -> u64| series.iter().map(of).sum();
        let top = |kind| self.hot_keys(kind, Some(name), REPORT_KEYS).keys;
        Some(LimitReport {
            limit: name.to_owned(),
            minutes: if minutes <= MINUTES as u64 { minutes } else { 60 * series.len() as u64 },
            allowed: sum(|point| point.allowed),
            denied: sum(|point| point.denied),
            shadow_denied: sum(|point| point.shadow_denied),
            near: metrics.sums().near,
            units: sum(|point| point.units),
            active_keys: active_keys(metrics.number()),
            top_denied: top(HotKind::Denied),
            top_shadow: top(HotKind::Shadow),
            top_taken: top(HotKind::Taken),
            series,
        })
    }

    /// Returns the recent decisions of a limit in force.
    pub(crate) fn activity(
        &self,
        active: &ActiveLimits,
        name: &str,
        unix_ms: u64,
    ) -> Option<LimitActivity> {
        let limit = active.limits().by_name(name.as_bytes())?;
        let metrics = active.metrics(limit.index())?;
        let minutes = self.series.lock().points(metrics.number(), unix_ms, MINUTES as u64);
        Some(LimitActivity {
            last_minute: last_minute(&minutes, unix_ms),
            near: metrics.sums().near,
            minutes,
        })
    }

    /// Returns the rates of the last ten minutes.
    pub(crate) fn rates(&self) -> ServerRates {
        self.view.load().rates.clone()
    }

    /// Returns the times of requests over the last one to two minutes.
    pub(crate) fn latency(&self) -> LatencyView {
        self.view.load().latency
    }

    /// Adds a follower of the tail.
    pub(crate) fn follow_tail(&self) -> TailStream {
        self.tail.lock().follow()
    }

    /// Returns whether someone follows the tail.
    pub(crate) fn is_followed(&self) -> bool {
        self.tail.lock().is_followed()
    }

    /// Adds an event to the tail, such as a change.
    pub(crate) fn tell(&self, event: TailEvent) {
        self.tail.lock().send(&[event]);
    }

    /// Returns the form in which keys are shown.
    pub(crate) fn display(&self) -> KeyDisplay {
        self.display
    }
}

/// Returns the seconds by which counts of `span_ms` are divided: at least one, so that the first
/// samples are no great rates.
fn rate_seconds(span_ms: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "two minutes")]
    let seconds = span_ms.max(1000) as f64 / 1000.0;
    seconds
}
