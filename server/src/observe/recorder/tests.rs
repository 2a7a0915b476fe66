//! Tests of the flight recorder: its bounds, the size of its sample, its snapshots.

use engine::KeyHasher;

use super::*;
use crate::observe::sample::KeySample;

const START_MS: u64 = 1_700_000_000_000;

fn sample(at_ms: u64, hash: u64, key: &str) -> RecordedSample {
    RecordedSample {
        at_ms,
        hash,
        key: KeySample::new(key.as_bytes()),
        cost: at_ms % 7,
        verdict: SampledVerdict::Allowed,
        verb: SampledVerb::Incr,
    }
}

/// Returns keys of a sample, with their hashes.
fn keys(count: usize, bits: u32) -> Vec<(u64, String)> {
    let hasher = KeyHasher::new([1, 2, 3, 4]);
    (0..)
        .map(|number| format!("user:{number}"))
        .map(|key| (hasher.hash(key.as_bytes()), key))
        .filter(|(hash, _)| is_sampled(*hash, bits))
        .take(count)
        .collect()
}

/// Returns the times and the keys of the events.
fn content(recording: &Recording) -> Vec<(u64, String)> {
    let name = |event: &RecordedEvent| {
        let key = recording.key(event.key).expect("an event has its key");
        (event.at_ms, String::from_utf8_lossy(&key.bytes).into_owned())
    };
    recording.events().map(name).collect()
}

fn ring_bytes(recorder: &FlightRecorder) -> usize {
    let places: usize = recorder.chunks.iter().map(|chunk| chunk.capacity()).sum();
    places * size_of::<RecordedEvent>()
}

#[test]
fn events_keep_their_order_and_their_keys() {
    let mut recorder = FlightRecorder::new(1 << 20);
    let keys = keys(10, RECORD_BITS_MIN);
    let mut wanted = Vec::new();
    for turn in 0..1000 {
        let (hash, key) = &keys[turn * 7 % 10];
        let at_ms = START_MS + turn as u64;
        recorder.record(&sample(at_ms, *hash, key));
        wanted.push((at_ms, key.clone()));
    }
    let recording = recorder.recording();
    assert_eq!(content(&recording), wanted);
    assert_eq!(recorder.bits(), RECORD_BITS_MIN);
    assert!(recording.events().all(|event| event.cost == event.at_ms % 7));
    assert_eq!(recording.key_places(), 10);
}

#[test]
fn memory_grows_as_it_fills_and_stays_bounded() {
    let bytes = 256 << 10;
    let mut recorder = FlightRecorder::new(bytes);
    assert_eq!(ring_bytes(&recorder), 0);
    let keys = keys(3 * RECORDED_KEYS_MAX, RECORD_BITS_MIN);
    // Thousands of keys a second, then a few keys for hours: both bounds are met.
    for (number, (hash, key)) in keys.iter().enumerate() {
        recorder.record(&sample(START_MS + number as u64 / 10, *hash, key));
        assert!(recorder.numbers.len() <= RECORDED_KEYS_MAX);
        assert!(recorder.slots.len() <= RECORDED_KEYS_MAX);
    }
    assert!(recorder.bits() > RECORD_BITS_MIN);
    for number in 0..100_000_u64 {
        let (hash, key) = &keys[number as usize % keys.len()];
        recorder.record(&sample(START_MS + 10_000 + number * 1000, *hash, key));
    }
    assert!(ring_bytes(&recorder) <= bytes, "{}", ring_bytes(&recorder));
    let used = recorder.slots.iter().flatten().count();
    assert_eq!(used, recorder.numbers.len());
    assert_eq!(used + recorder.free.len(), recorder.slots.len());
}

#[test]
fn halved_sample_keeps_exactly_its_keys() {
    let mut recorder = FlightRecorder::new(64 << 10);
    let keys = keys(300, RECORD_BITS_MIN);
    let mut all = Vec::new();
    let mut bits = recorder.bits();
    for turn in 0..20_000_u64 {
        let (hash, key) = &keys[(turn * turn % 300) as usize];
        let at_ms = START_MS + turn * 10;
        recorder.record(&sample(at_ms, *hash, key));
        all.push((*hash, at_ms, key.clone()));
        if recorder.bits() > bits {
            bits = recorder.bits();
            let kept = all.iter().filter(|(hash, ..)| is_sampled(*hash, bits));
            let kept: Vec<_> = kept.map(|(_, at_ms, key)| (*at_ms, key.clone())).collect();
            assert_eq!(content(&recorder.recording()), kept, "{bits} bits");
            let names = recorder.numbers.keys().filter(|key| !is_sampled(key.hash, bits));
            assert_eq!(names.count(), 0);
        }
    }
    assert!(bits >= RECORD_BITS_MIN + 2, "{bits}");
}

#[test]
fn full_ring_of_an_hour_drops_the_oldest() {
    let mut recorder = FlightRecorder::new(64 << 10);
    let places = recorder.chunks_max * recorder.chunk_events;
    let keys = keys(5000, RECORD_BITS_MIN);
    for (number, (hash, key)) in keys.iter().enumerate() {
        recorder.record(&sample(START_MS + number as u64 * 10_000, *hash, key));
    }
    assert_eq!(recorder.bits(), RECORD_BITS_MIN);
    let content = content(&recorder.recording());
    assert!((places - recorder.chunk_events..=places).contains(&content.len()));
    let newest = keys[keys.len() - content.len()..].iter().map(|(_, key)| key);
    assert!(newest.eq(content.iter().map(|(_, key)| key)));
    assert_eq!(recorder.numbers.len(), content.len(), "names without events are forgotten");
}

#[test]
fn keys_that_come_and_go_leave_the_sample_as_it_is() {
    const AN_HOUR: u64 = RECORDED_KEYS_MAX as u64 / 8;
    let mut recorder = FlightRecorder::new(4 << 20);
    let keys = keys(3 * RECORDED_KEYS_MAX, RECORD_BITS_MIN);
    let (flood, others) = keys.split_at(RECORDED_KEYS_MAX + 1);
    for (hash, key) in flood {
        recorder.record(&sample(START_MS, *hash, key));
    }
    assert_eq!(recorder.bits(), RECORD_BITS_MIN + 1, "too many names in an hour");
    // Each key comes once.
    for (number, (hash, key)) in (1_u64..).zip(others) {
        recorder.record(&sample(START_MS + number * RECORDED_SPAN_MS / AN_HOUR, *hash, key));
    }
    assert_eq!(recorder.bits(), RECORD_BITS_MIN, "names of earlier hours are no need");
    let content = content(&recorder.recording());
    let last = others.iter().rev().map(|(_, key)| key).take(AN_HOUR as usize);
    assert!(last.eq(content.iter().rev().map(|(_, key)| key).take(AN_HOUR as usize)));
}

#[test]
fn quiet_hour_doubles_the_sample() {
    let handle = RecorderHandle::new(64 << 10).expect("there is memory");
    let keys = keys(300, RECORD_BITS_MIN);
    {
        let mut recorder = handle.recorder.lock();
        for turn in 0..20_000 {
            let (hash, key) = &keys[turn % 300];
            recorder.record(&sample(START_MS, *hash, key));
        }
    }
    let bits = handle.recorder.lock().bits();
    assert!(bits > RECORD_BITS_MIN);
    let hour = std::sync::atomic::AtomicU64::new(0);
    let now_ms = || START_MS + RECORDED_SPAN_MS * hour.load(std::sync::atomic::Ordering::Relaxed);
    let sink = RecorderSink { handle: Arc::clone(&handle), clock: now_ms };
    // The hour with the flood ends, then quiet ones.
    for (hours, wanted) in [(0, bits), (1, bits), (2, bits - 1)] {
        hour.store(hours, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(sink.halvings(), wanted, "after {hours} hours");
    }
    let recording = handle.recording();
    let doubled_ms = START_MS + 2 * RECORDED_SPAN_MS;
    assert_eq!(recording.bits_since(doubled_ms), bits - 1);
    assert_eq!(recording.bits_since(doubled_ms - 1), bits, "the new keys have no past");
    for hours in 3..30 {
        hour.store(hours, std::sync::atomic::Ordering::Relaxed);
        assert!(sink.halvings() >= RECORD_BITS_MIN);
    }
    assert_eq!(sink.halvings(), RECORD_BITS_MIN);
    let doublings = &handle.recorder.lock().doublings;
    assert!(doublings.len() <= (RECORD_BITS - RECORD_BITS_MIN) as usize);
}

#[test]
fn recording_stays_as_it_was_taken() {
    let mut recorder = FlightRecorder::new(64 << 10);
    let keys = keys(50, RECORD_BITS_MIN);
    for turn in 0..100_u64 {
        let (hash, key) = &keys[turn as usize % 50];
        recorder.record(&sample(START_MS + turn, *hash, key));
    }
    let recording = recorder.recording();
    let before = content(&recording);
    for turn in 0..50_000_u64 {
        let (hash, key) = &keys[turn as usize % 50];
        recorder.record(&sample(START_MS + 100 + turn, *hash, key));
    }
    assert!(recorder.bits() > RECORD_BITS_MIN);
    assert_eq!(content(&recording), before);
    assert!(ring_bytes(&recorder) <= 64 << 10);
}

#[test]
fn cut_keys_and_keys_outside_the_sample_are_dropped() {
    let mut recorder = FlightRecorder::new(1 << 20);
    recorder.record(&sample(START_MS, 0, &"k".repeat(97)));
    recorder.record(&sample(START_MS, 1 << 24, "a"));
    assert_eq!(content(&recorder.recording()), []);
    recorder.record(&sample(START_MS, 0, &"k".repeat(96)));
    recorder.record(&sample(START_MS, 1 << 30, "a"));
    assert_eq!(content(&recorder.recording()).len(), 2);
    assert!(RecorderHandle::new(0).is_none());
}

#[test]
fn one_key_that_floods_does_not_end_the_recorder() {
    let mut recorder = FlightRecorder::new(64 << 10);
    for turn in 0..50_000 {
        recorder.record(&sample(START_MS + turn, 0, "hot"));
    }
    assert_eq!(recorder.bits(), RECORD_BITS);
    let content = content(&recorder.recording());
    assert_eq!(content.last().map(|(at_ms, _)| *at_ms), Some(START_MS + 49_999));
    assert!(ring_bytes(&recorder) <= 64 << 10);
}

#[test]
fn one_replay_runs_at_a_time() {
    let handle = RecorderHandle::new(64 << 10).expect("there is memory");
    let first = handle.start_replay();
    assert!(first.is_some() && handle.start_replay().is_none());
    drop(first);
    assert!(handle.start_replay().is_some());
}
