//! The work of the thread `observer`: it drains the samples and keeps what is asked for.
//!
//! Here: one wake-up. Not here: the thread (`server`), the sketches (`top_keys`, `series`, `tail`,
//! `rates`).

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use tollgate_http::TailEvent;

use super::names::shown_sample;
use super::rates::{LatencyWindow, Rates};
use super::sample::{RecordSink, RecordedSample};
use super::tail::{EVENTS_KEPT, stride};
use super::top_keys::TopKeys;
use super::{Observatory, ObservedView};
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::probe::{FINE_BUCKETS, ProbeSample, RING_PLACES, SampleKind, record_mask};

/// Time between two wake-ups while there are samples or followers of the tail.
pub(crate) const WATCH_PERIOD: Duration = Duration::from_millis(100);
/// Time between two publications, in milliseconds; also between two looks at the limits' figures.
const PUBLISH_MS: u64 = 1000;
/// Recorded decisions a second and worker above which the sample of keys is halved: a quarter of
/// what the rings hold, so that no decision on a key of the sample is dropped.
const RECORDED_A_SECOND: u64 = RING_PLACES as u64 * 1000 / WATCH_PERIOD.as_millis() as u64 / 4;

/// The state of the server at a wake-up.
pub(crate) struct LookContext<'a> {
    pub(crate) observatory: &'a Observatory,
    /// One set a worker.
    pub(crate) counters: &'a [&'a Counters],
    pub(crate) active: &'a Arc<ActiveLimits>,
    /// Milliseconds on the monotonic clock.
    pub(crate) mono_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub(crate) unix_ms: u64,
}

/// The state of the observer.
pub(crate) struct Watcher {
    /// In the order of the hot kinds.
    top: [TopKeys; 3],
    rates: Rates,
    latency: LatencyWindow,
    /// The names of the limits in force by the engine's number.
    names: HashMap<u32, Arc<str>>,
    active: Arc<ActiveLimits>,
    /// Denials since the last wake-up, for the tail.
    denials: Vec<ProbeSample>,
    recorded: Vec<RecordedSample>,
    sink: Option<Box<dyn RecordSink>>,
    last_ms: u64,
    published_ms: u64,
    requests: u64,
    drops: DropWindow,
}

/// Dropped samples in the generations of the top keys.
#[derive(Debug, Clone, Copy, Default)]
struct DropWindow {
    /// The counts at the start of the generation before, and of the present one.
    bases: [[u64; 3]; 2],
    started_ms: u64,
}

impl Watcher {
    /// Creates the state at the start, with a receiver of recorded decisions.
    pub(crate) fn new(look: &LookContext<'_>, sink: Option<Box<dyn RecordSink>>) -> Self {
        let top = || TopKeys::new(look.mono_ms);
        Self {
            top: [top(), top(), top()],
            rates: Rates::default(),
            latency: LatencyWindow::new(look.mono_ms),
            names: names_of(look.active),
            active: Arc::clone(look.active),
            denials: Vec::new(),
            recorded: Vec::new(),
            sink,
            last_ms: look.mono_ms,
            published_ms: look.mono_ms,
            requests: 0,
            drops: DropWindow { started_ms: look.mono_ms, ..DropWindow::default() },
        }
    }

    /// Runs one wake-up. Returns the time until the next one: without samples and followers, until
    /// the next publication.
    pub(crate) fn look(&mut self, look: &LookContext<'_>) -> Duration {
        self.follow_limits(look);
        for kind in &mut self.top {
            kind.turn(look.mono_ms);
        }
        let (has_drained, recorded_most) = self.drain(look);
        self.send_denials(look);
        self.record(look, recorded_most);
        self.last_ms = look.mono_ms;
        let span_ms = look.mono_ms.saturating_sub(self.published_ms);
        if span_ms >= PUBLISH_MS {
            self.published_ms = look.mono_ms;
            self.publish(look, span_ms);
        }
        if has_drained || look.observatory.is_followed() {
            return WATCH_PERIOD;
        }
        let since_ms = look.mono_ms.saturating_sub(self.published_ms);
        Duration::from_millis(PUBLISH_MS.saturating_sub(since_ms).max(1))
    }

    /// Follows the limits in force and tells the tail of changes.
    fn follow_limits(&mut self, look: &LookContext<'_>) {
        if Arc::ptr_eq(&self.active, look.active) {
            return;
        }
        let before = std::mem::replace(&mut self.active, Arc::clone(look.active));
        self.names = names_of(look.active);
        let (old, new) = (before.limits(), look.active.limits());
        let has_changed = |limit: &&tollgate_limits::Limit| {
            let older = old.by_name(limit.name().as_bytes());
            older.is_none_or(|older| !older.reads_like(limit))
        };
        let removed = old.iter().filter(|limit| new.by_name(limit.name().as_bytes()).is_none());
        let changed = new.iter().filter(has_changed).chain(removed);
        let events: Vec<TailEvent> = changed
            .take(EVENTS_KEPT)
            .map(|limit| TailEvent {
                kind: "limit-changed",
                at_ms: look.unix_ms,
                key: limit.name().to_owned(),
                limit: Some(limit.name().to_owned()),
                cost: 0,
                retry_ms: None,
                weight: 1,
            })
            .collect();
        look.observatory.tail.lock().send(&events);
    }

    /// Takes the samples out of the rings. Returns whether there was one, and the most recorded
    /// decisions of one worker.
    fn drain(&mut self, look: &LookContext<'_>) -> (bool, usize) {
        let Self { top, denials, recorded, .. } = self;
        let (mut has_drained, mut recorded_most) = (false, 0);
        for counters in look.counters {
            let before = recorded.len();
            counters.probe.drain(|sample| {
                has_drained = true;
                let kind = sample.kind();
                if kind == SampleKind::Recorded {
                    let (verb, verdict) = sample.verb_and_verdict();
                    recorded.push(RecordedSample {
                        at_ms: sample.unix_ms(look.unix_ms),
                        hash: sample.hash(),
                        key: sample.key(),
                        cost: sample.cost_units(),
                        verdict,
                        verb,
                    });
                    return;
                }
                let limit = sample.limit_number();
                top[kind as usize].add(sample.hash(), sample.key(), limit, sample.stands_for());
                if kind != SampleKind::Taken {
                    denials.push(*sample);
                }
            });
            recorded_most = recorded_most.max(recorded.len() - before);
        }
        (has_drained, recorded_most)
    }

    /// Sends denials to the tail: all, or of each limit every few with the weight of those between.
    fn send_denials(&mut self, look: &LookContext<'_>) {
        if self.denials.is_empty() {
            return;
        }
        let kind_of = |sample: &ProbeSample| (sample.limit_number(), sample.kind() as u8);
        self.denials.sort_by_key(|sample| (kind_of(sample), sample.unix_ms(look.unix_ms)));
        let span_ms = look.mono_ms.saturating_sub(self.last_ms);
        let stride = stride(self.denials.len(), span_ms);
        let mut events: Vec<TailEvent> = self
            .denials
            .chunk_by(|one, next| kind_of(one) == kind_of(next))
            .flat_map(|alike| alike.chunks(stride))
            .map(|alike| {
                let sample = &alike[0];
                let is_denied = sample.kind() == SampleKind::Denied;
                let limit = self.names.get(&sample.limit_number()).map(AsRef::as_ref);
                let display = look.observatory.display;
                TailEvent {
                    kind: if is_denied { "denied" } else { "shadow" },
                    at_ms: sample.unix_ms(look.unix_ms),
                    key: shown_sample(display, sample.hash(), &sample.key(), limit),
                    limit: limit.map(str::to_owned),
                    cost: sample.cost_units(),
                    retry_ms: sample.retry_ms(),
                    weight: alike.iter().map(ProbeSample::stands_for).sum(),
                }
            })
            .collect();
        events.sort_by_key(|event| event.at_ms);
        self.denials.clear();
        look.observatory.tail.lock().send(&events);
    }

    /// Hands the recorded decisions to their receiver, and the mask to the workers. `recorded_most`
    /// are from one worker.
    fn record(&mut self, look: &LookContext<'_>, recorded_most: usize) {
        self.recorded.sort_by_key(|sample| sample.at_ms);
        // A few at once are no crowd, however short the time since the last wake-up.
        let span_ms =
            look.mono_ms.saturating_sub(self.last_ms).max(WATCH_PERIOD.as_millis() as u64);
        let is_crowded = recorded_most as u64 > RECORDED_A_SECOND * span_ms / 1000;
        if let Some(sink) = &mut self.sink {
            self.recorded.iter().for_each(|sample| sink.record(sample));
            if is_crowded {
                sink.halve();
            }
        }
        self.recorded.clear();
        let mask = self.sink.as_ref().map(|sink| record_mask(sink.halvings()));
        for counters in look.counters {
            counters.probe.set_record_mask(mask);
        }
    }

    fn publish(&mut self, look: &LookContext<'_>, span_ms: u64) {
        let sums = look.active.limits().iter().filter_map(|limit| {
            let metrics = look.active.metrics(limit.index())?;
            Some((metrics.number(), metrics.sums()))
        });
        let deltas = look.observatory.series.lock().look(look.unix_ms, sums);
        let total = look.observatory.requests(look.counters.iter().copied());
        let requests = total - self.requests;
        self.requests = total;
        self.rates.add([requests, deltas.allowed, deltas.denied], span_ms);
        let mut fine = [0; FINE_BUCKETS];
        let mut max_us = 0;
        for counters in look.counters {
            counters.probe.latency.add_fine_to(&mut fine);
            max_us = max_us.max(counters.probe.latency.take_max_us());
        }
        let named = |top: &TopKeys| {
            let keys = top.sorted().into_iter();
            keys.map(|key| (key, self.names.get(&key.limit).cloned())).collect()
        };
        let view = ObservedView {
            hot: self.top.each_ref().map(named),
            span_ms: self.top[0].span_ms(look.mono_ms),
            dropped: self.drops.look(look),
            rates: self.rates.view(),
            latency: self.latency.look(look.mono_ms, &fine, max_us),
        };
        look.observatory.view.store(Arc::new(view));
    }
}

impl DropWindow {
    /// Returns the samples that were dropped in the window of the top keys.
    fn look(&mut self, look: &LookContext<'_>) -> [u64; 3] {
        let kinds = [SampleKind::Taken, SampleKind::Denied, SampleKind::Shadow];
        let counts = kinds.map(|kind| {
            look.counters.iter().map(|counters| counters.probe.counts(kind).dropped).sum::<u64>()
        });
        if look.mono_ms.saturating_sub(self.started_ms) >= super::top_keys::GENERATION_MS {
            self.bases = [self.bases[1], counts];
            self.started_ms = look.mono_ms;
        }
        std::array::from_fn(|kind| counts[kind].saturating_sub(self.bases[0][kind]))
    }
}

fn names_of(active: &ActiveLimits) -> HashMap<u32, Arc<str>> {
    let name = |limit: &tollgate_limits::Limit| {
        Some((active.metrics(limit.index())?.number(), Arc::from(limit.name())))
    };
    active.limits().iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;
    use std::time::Duration;

    use tollgate_http::HotKind;
    use tollgate_limits::Limits;

    use super::*;
    use crate::config::KeyDisplay;
    use crate::limits::LimitsHandle;
    use crate::probe::{SampledVerb, SampledVerdict};

    const UNIX_MS: u64 = 1_700_000_000_000;

    const LIMIT: &str = "[[limit]]\nname = \"api\"\nmatch = \"api:{x}\"\npolicy = \"block\"\n";

    /// A server with one worker, and its observer.
    struct World {
        observatory: Observatory,
        counters: Counters,
        limits: LimitsHandle,
        watcher: Option<Watcher>,
        mono_ms: u64,
    }

    impl World {
        fn new(display: KeyDisplay, sink: Option<Box<dyn RecordSink>>) -> Self {
            let limits = Limits::parse("limits.toml", LIMIT.as_bytes()).expect("a good file");
            let mut world = Self {
                observatory: Observatory::new(display),
                counters: Counters::default(),
                limits: LimitsHandle::new(limits, 1),
                watcher: None,
                mono_ms: 1000,
            };
            world.counters.probe.open(3);
            let mut watcher = None;
            world.with_look(|look| watcher = Some(Watcher::new(look, sink)));
            world.watcher = watcher;
            world
        }

        fn with_look(&self, work: impl FnOnce(&LookContext<'_>)) {
            work(&LookContext {
                observatory: &self.observatory,
                counters: &[&self.counters],
                active: &self.limits.load(),
                mono_ms: self.mono_ms,
                unix_ms: UNIX_MS + self.mono_ms,
            });
        }

        /// Runs a wake-up this much later. Returns the time until the next one, in milliseconds.
        fn look(&mut self, pause_ms: u64) -> u128 {
            self.mono_ms += pause_ms;
            let mut watcher = self.watcher.take().expect("it is there");
            let mut pause = Duration::ZERO;
            self.with_look(|look| pause = watcher.look(look));
            self.watcher = Some(watcher);
            pause.as_millis()
        }

        fn deny(&self, kind: SampleKind, key: &str, cost: u64) {
            let hash = key.bytes().fold(7, |hash: u64, byte| hash * 31 + u64::from(byte));
            let unix_ms = UNIX_MS + self.mono_ms;
            let key = (hash, key.as_bytes());
            self.counters.probe.put_denied(kind, unix_ms, key, 1, (cost, Some(1_500_000)));
        }
    }

    #[test]
    fn rest_lasts_until_publication_or_samples() {
        let mut world = World::new(KeyDisplay::Full, None);
        assert_eq!(world.look(0), 1000);
        assert_eq!(world.look(400), 600);
        assert_eq!(world.look(600), 1000, "it has published");
        world.deny(SampleKind::Denied, "api:a", 1);
        assert!(world.counters.probe.has_samples());
        assert_eq!(world.look(300), 100, "more samples may follow");
        assert!(!world.counters.probe.has_samples());
        assert_eq!(world.look(100), 600);
        let tail = world.observatory.follow_tail();
        assert!(world.observatory.is_followed());
        assert_eq!(world.look(100), 100);
        drop(tail);
        assert_eq!(world.look(100), 400);
    }

    #[test]
    fn denials_become_hot_keys_and_events() {
        let mut world = World::new(KeyDisplay::Full, None);
        let mut tail = world.observatory.follow_tail();
        assert_eq!(tail.events.try_recv().expect("the first message"), (0, Vec::new()));
        for _ in 0..30 {
            world.deny(SampleKind::Denied, "api:a", 2);
        }
        world.deny(SampleKind::Shadow, "api:b", 1);
        world.look(100);
        let (lost, events) = tail.events.try_recv().expect("denials");
        assert_eq!((lost, events.len()), (0, 31));
        let first = &events[0];
        assert_eq!((first.kind, first.key.as_str(), first.cost), ("denied", "api:a", 2));
        assert_eq!(
            (first.limit.as_deref(), first.retry_ms, first.weight),
            (Some("api"), Some(2), 1)
        );
        assert_eq!(first.at_ms, UNIX_MS + 1000);
        assert_eq!(events.iter().filter(|event| event.kind == "shadow").count(), 1);
        let hot = |kind, limit, count| world.observatory.hot_keys(kind, limit, count).keys;
        assert!(hot(HotKind::Denied, None, 9).is_empty(), "published once a second");

        world.look(2900);
        let hot = |kind, limit, count| world.observatory.hot_keys(kind, limit, count);
        let denied = hot(HotKind::Denied, None, 9);
        assert_eq!((denied.span_ms, denied.dropped, denied.keys.len()), (3000, 0, 1));
        let key = &denied.keys[0];
        assert_eq!((key.key.as_str(), key.limit.as_deref()), ("api:a", Some("api")));
        assert!((key.rate - 10.0).abs() < 1e-9 && (key.rate_at_least - 10.0).abs() < 1e-9);
        assert_eq!(hot(HotKind::Shadow, Some("api"), 9).keys[0].key, "api:b");
        assert!(hot(HotKind::Shadow, Some("other"), 9).keys.is_empty());
        assert!(hot(HotKind::Denied, None, 0).keys.is_empty());
    }

    #[test]
    fn many_denials_are_thinned_with_their_weight() {
        let mut world = World::new(KeyDisplay::Full, None);
        let mut tail = world.observatory.follow_tail();
        let _ = tail.events.try_recv();
        for _ in 0..1500 {
            world.deny(SampleKind::Denied, "api:a", 1);
        }
        world.look(100);
        let (_, events) = tail.events.try_recv().expect("denials");
        assert_eq!((events.len(), events[0].weight), (100, 15));
        assert_eq!(events.iter().map(|event| event.weight).sum::<u64>(), 1500);
    }

    #[test]
    fn a_flood_hides_no_denial_of_another_kind() {
        let mut world = World::new(KeyDisplay::Full, None);
        let mut tail = world.observatory.follow_tail();
        let _ = tail.events.try_recv();
        for number in 0..1500 {
            world.deny(SampleKind::Denied, "api:a", 1);
            if number % 500 == 7 {
                world.deny(SampleKind::Shadow, "api:b", 1);
            }
        }
        world.look(100);
        let (_, events) = tail.events.try_recv().expect("denials");
        let weights =
            |kind| events.iter().filter(move |one| one.kind == kind).map(|one| one.weight);
        assert_eq!(weights("shadow").sum::<u64>(), 3);
        assert!(weights("shadow").count() > 0, "{events:?}");
        assert_eq!(weights("denied").sum::<u64>(), 1500);
        assert!(events.is_sorted_by_key(|event| event.at_ms));
    }

    #[test]
    fn hashed_display_shows_no_key() {
        let mut world = World::new(KeyDisplay::Hashed, None);
        let mut tail = world.observatory.follow_tail();
        let _ = tail.events.try_recv();
        world.deny(SampleKind::Denied, "api:secret", 1);
        world.counters.probe.put_taken(UNIX_MS, (9, b"secret"), 0, 64);
        world.look(1000);
        let (_, events) = tail.events.try_recv().expect("denials");
        assert!(events[0].key.starts_with("api#") && events[0].key.len() == 16, "{events:?}");
        let taken = world.observatory.hot_keys(HotKind::Taken, None, 9);
        assert_eq!(taken.keys[0].key, "-#000000000009");
    }

    #[test]
    fn changed_limits_are_told() {
        let mut world = World::new(KeyDisplay::Full, None);
        let mut tail = world.observatory.follow_tail();
        let _ = tail.events.try_recv();
        let parse =
            |text: &str| Limits::parse("limits.toml", text.as_bytes()).expect("good limits");
        let mut told = |world: &mut World, text: &str| -> Vec<String> {
            world.limits.replace(parse(text));
            world.look(100);
            let events = tail.events.try_recv().map(|message| message.1).unwrap_or_default();
            assert!(events.iter().all(|event| event.kind == "limit-changed"));
            events.into_iter().map(|event| event.key).collect()
        };
        assert!(told(&mut world, LIMIT).is_empty(), "the same text");
        assert_eq!(told(&mut world, &LIMIT.replace("block", "fixed:5/s")), ["api"]);
        let overridden =
            format!("{LIMIT}overrides = [{{ key = 'api:1', policy = 'unlimited' }}]\n");
        assert_eq!(told(&mut world, &overridden), ["api"]);
        assert!(told(&mut world, &overridden).is_empty(), "the same overrides");
        assert_eq!(told(&mut world, &overridden.replace("api:1", "api:2")), ["api"]);
        assert_eq!(told(&mut world, LIMIT), ["api"]);
        assert_eq!(told(&mut world, &LIMIT.replace("block", "fixed:5/s")), ["api"]);
        let other = LIMIT.replace("api", "other");
        assert_eq!(told(&mut world, &other), ["other", "api"]);
    }

    #[test]
    fn report_has_series_and_top_keys() {
        let mut world = World::new(KeyDisplay::Full, None);
        let active = world.limits.load();
        let metrics = active.metrics(0).expect("one limit");
        let passed = engine::Judged {
            judgement: engine::Judgement::Allowed,
            cost: 3,
            units: 3,
            is_near: true,
            retry: None,
        };
        metrics.note(0, &passed);
        let denied = engine::Judged { judgement: engine::Judgement::Denied, ..passed };
        metrics.note(0, &denied);
        world.deny(SampleKind::Denied, "api:a", 3);
        world.look(1000);
        let at = (UNIX_MS + world.mono_ms, 60);
        let report = world.observatory.report(&active, "api", at, u64::from);
        let report = report.expect("the limit is there");
        assert_eq!((report.minutes, report.series.len(), report.active_keys), (60, 60, 1));
        assert_eq!((report.allowed, report.denied, report.shadow_denied), (1, 1, 0));
        assert_eq!((report.units, report.near), (3, 1));
        assert_eq!(report.top_denied[0].key, "api:a");
        assert!(report.top_shadow.is_empty() && report.top_taken.is_empty());
        let at = (at.0, u64::MAX);
        let report = world.observatory.report(&active, "api", at, |_| 0).expect("as before");
        assert_eq!((report.minutes, report.series.len()), (super::super::REPORT_MINUTES_MAX, 48));
        assert!(world.observatory.report(&active, "none", at, |_| 0).is_none());
    }

    #[test]
    fn rates_and_latency_are_published() {
        let mut world = World::new(KeyDisplay::Full, None);
        for _ in 0..11 {
            for _ in 0..1000 {
                if world.counters.probe.pass(1) {
                    while world.counters.probe.next_due(1, UNIX_MS).is_some() {}
                }
            }
            world.counters.probe.latency.add(0, 16, 90);
            world.look(1000);
        }
        let rates = world.observatory.rates();
        assert_eq!(rates.requests.len(), 1);
        assert!((rates.requests[0] - 1000.0).abs() < 50.0, "{}", rates.requests[0]);
        let latency = world.observatory.latency();
        assert_eq!((latency.count, latency.p50_us, latency.max_us), (11 * 16, 90, 90));
    }

    /// Keeps what it gets, and the number of halvings, at first 6.
    struct Kept {
        samples: Arc<Mutex<Vec<RecordedSample>>>,
        halvings: u32,
    }

    impl RecordSink for Kept {
        fn record(&mut self, sample: &RecordedSample) {
            self.samples.lock().expect("no panic before").push(*sample);
        }

        fn halvings(&self) -> u32 {
            self.halvings
        }

        fn halve(&mut self) {
            self.halvings += 1;
        }
    }

    #[test]
    fn recorded_decisions_reach_their_receiver_in_order() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let mut world = World::new(
            KeyDisplay::Full,
            Some(Box::new(Kept { samples: Arc::clone(&kept), halvings: 6 })),
        );
        assert!(!world.counters.probe.records(64 << 24), "before the first wake-up");
        world.look(100);
        assert!(world.counters.probe.records(64 << 24) && !world.counters.probe.records(1 << 24));
        let decision = (SampledVerb::TakeMany, SampledVerdict::Denied);
        for at_ms in [UNIX_MS + 5, UNIX_MS + 3] {
            world.counters.probe.put_recorded(at_ms, (64, b"user:7"), 9, decision);
        }
        world.look(100);
        let kept = kept.lock().expect("no panic before");
        assert_eq!(kept.len(), 2);
        assert_eq!((kept[0].at_ms, kept[1].at_ms), (UNIX_MS + 3, UNIX_MS + 5));
        assert_eq!((kept[0].verb, kept[0].verdict), decision);
        assert_eq!((kept[0].hash, kept[0].cost, kept[0].key.as_bytes()), (64, 9, &b"user:7"[..]));
    }

    #[test]
    fn flood_of_recorded_decisions_halves_the_sample_before_the_ring_is_full() {
        let mut world = World::new(
            KeyDisplay::Full,
            Some(Box::new(Kept { samples: Arc::default(), halvings: 6 })),
        );
        let decision = (SampledVerb::Incr, SampledVerdict::Allowed);
        let mut record = |count: usize, pause_ms: u64| {
            for _ in 0..count {
                world.counters.probe.put_recorded(UNIX_MS, (64 << 24, b"user:7"), 1, decision);
            }
            world.look(pause_ms);
            (6..=8).map(|bits| world.counters.probe.records(1 << (24 + bits))).collect::<Vec<_>>()
        };
        // What is sent: whether keys of the sample of one in 64, 128 and 256 alone are recorded.
        let before = record(0, 100);
        assert_eq!(record(RING_PLACES / 4, 1), before);
        assert_eq!(record(RING_PLACES / 2, 1000), before, "in ten times the time");
        let after = record(RING_PLACES / 4 + 10, 100);
        assert_eq!((before, after), (vec![true, true, true], vec![false, true, true]));
    }

    #[test]
    fn six_million_requests_a_second_drop_no_sample() {
        let mut world = World::new(KeyDisplay::Full, None);
        let (batch, batches) = (64, 600_000 / 64);
        for look in 0..20_u64 {
            for at in 0..batches {
                let now_ms = UNIX_MS + 100 * look + 100 * at / batches;
                if world.counters.probe.pass(batch) {
                    while let Some(due) = world.counters.probe.next_due(batch, now_ms) {
                        // A quarter of the requests are on one key.
                        let hash = (due.position as u64 % 4).min(1) * (1000 + due.position as u64);
                        world.counters.probe.put_taken(now_ms, (hash, b"key"), 0, due.weight);
                    }
                }
            }
            world.look(100);
        }
        let hot = world.observatory.hot_keys(HotKind::Taken, None, 1);
        assert_eq!(hot.dropped, 0);
        assert!((hot.keys[0].rate - 1_500_000.0).abs() < 75_000.0, "{:?}", hot.keys);
    }

    #[test]
    fn full_rings_drop_and_count_while_nobody_waits() {
        let mut world = World::new(KeyDisplay::Full, None);
        // The observer does not run; a worker that waited for it would never end.
        let fill = || {
            for hash in 0..3 * RING_PLACES as u64 {
                world.counters.probe.put_taken(UNIX_MS, (hash, b"key"), 0, 64);
            }
        };
        thread::scope(|scope| {
            let worker = scope.spawn(fill);
            let mut left = 1000;
            while !worker.is_finished() && left > 0 {
                thread::sleep(Duration::from_millis(10));
                left -= 1;
            }
            assert!(worker.is_finished(), "ten seconds for a few microseconds");
        });
        world.look(1000);
        let hot = world.observatory.hot_keys(HotKind::Taken, None, 1);
        assert_eq!(hot.dropped, 2 * RING_PLACES as u64);
        world.look(super::super::top_keys::GENERATION_MS);
        world.look(super::super::top_keys::GENERATION_MS);
        let hot = world.observatory.hot_keys(HotKind::Taken, None, 1);
        assert_eq!(hot.dropped, 0, "of the last minutes");
    }
}
