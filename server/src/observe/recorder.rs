//! The flight recorder: the last decisions on a sample of keys, for trying other limits on them.
//!
//! Here: the ring of events, the names of their keys, the size of the sample. Not here: the choice
//! of events on the path of a request (`sample`), their replay (`commands::replay`).
//!
//! The ring is a list of shared chunks, so that a replay reads it without a copy and without the
//! lock. Memory grows as it fills, up to the bound. While a full ring spans less than an hour, or
//! the decisions are too many a second, the sample of keys is halved; after an hour that needs less
//! than a quarter of the ring it is doubled again. The bound on names of keys counts as the ring
//! does: names of events that are more than an hour old are forgotten before the sample is halved.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{Equivalent, HashMap};
use parking_lot::{Mutex, MutexGuard};

use super::sample::{
    RECORD_BITS, RecordSink, RecordedSample, SampledVerb, SampledVerdict, record_mask,
};

/// Most keys whose names are kept.
pub(crate) const RECORDED_KEYS_MAX: usize = 16_384;
/// Bits of the first mask: one key in 64 is recorded.
pub(crate) const RECORD_BITS_MIN: u32 = 6;
/// A full ring should span this many milliseconds.
pub(crate) const RECORDED_SPAN_MS: u64 = 60 * 60 * 1000;
/// Most events of a chunk: 64 KiB.
const CHUNK_EVENTS_MAX: usize = (64 << 10) / size_of::<RecordedEvent>();
/// Least chunks of a ring: the oldest chunk is dropped as a whole.
const CHUNKS_MIN: usize = 16;

/// A decision on a recorded key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordedEvent {
    /// The time, in milliseconds since the Unix epoch.
    pub(crate) at_ms: u64,
    /// The cost in units.
    pub(crate) cost: u64,
    /// The number of its key, see [`Recording::key`].
    pub(crate) key: u32,
    /// The verdict.
    pub(crate) verdict: SampledVerdict,
    /// The verb.
    pub(crate) verb: SampledVerb,
}

const _: () = assert!(size_of::<RecordedEvent>() == 24, "a place of the ring");

/// A recorded key.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct RecordedKey {
    /// The hash by which the key is in the sample: that of the key under which a limit counted.
    pub(crate) hash: u64,
    /// The key as the client wrote it.
    pub(crate) bytes: Box<[u8]>,
}

/// A [`RecordedKey`] that is looked up.
#[derive(Hash)]
struct RecordedKeyRef<'a> {
    hash: u64,
    bytes: &'a [u8],
}

impl Equivalent<Arc<RecordedKey>> for RecordedKeyRef<'_> {
    fn equivalent(&self, key: &Arc<RecordedKey>) -> bool {
        self.hash == key.hash && *self.bytes == *key.bytes
    }
}

/// A key with the number of its events in the ring.
#[derive(Debug)]
struct KeySlot {
    key: Arc<RecordedKey>,
    events: u32,
}

type EventChunk = Arc<Vec<RecordedEvent>>;

/// Returns whether the hash of a key is in the sample of one key in `2^bits`.
fn is_sampled(hash: u64, bits: u32) -> bool {
    hash & record_mask(bits) == 0
}

/// The ring of events and the names of their keys.
#[derive(Debug)]
pub(crate) struct FlightRecorder {
    chunks: VecDeque<EventChunk>,
    chunk_events: usize,
    chunks_max: usize,
    slots: Vec<Option<KeySlot>>,
    free: Vec<u32>,
    numbers: HashMap<Arc<RecordedKey>, u32>,
    bits: u32,
    /// Times at which the sample was doubled, with the bits before, newest last and with the least
    /// bits. A time before the first event of the ring is forgotten.
    doublings: Vec<(u64, u32)>,
    hour: RecordedHour,
}

/// The use of the ring in the present hour.
#[derive(Debug, Clone, Copy, Default)]
struct RecordedHour {
    /// 0 before the first event.
    start_ms: u64,
    events: usize,
    was_halved: bool,
}

/// A recording: the events and keys of a recorder at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Recording {
    chunks: Vec<EventChunk>,
    keys: Vec<Option<Arc<RecordedKey>>>,
    bits: u32,
    doublings: Vec<(u64, u32)>,
}

impl FlightRecorder {
    /// Creates an empty recorder of at most `ring_bytes` bytes of events, and at least 64 events.
    pub(crate) fn new(ring_bytes: usize) -> Self {
        let events = (ring_bytes / size_of::<RecordedEvent>()).max(64);
        let chunk_events = (events / CHUNKS_MIN).min(CHUNK_EVENTS_MAX);
        Self {
            chunks: VecDeque::new(),
            chunk_events,
            chunks_max: events / chunk_events,
            slots: Vec::new(),
            free: Vec::new(),
            numbers: HashMap::new(),
            bits: RECORD_BITS_MIN,
            doublings: Vec::new(),
            hour: RecordedHour::default(),
        }
    }

    /// Keeps a decision. A key that was cut cannot be matched again, so its decision is dropped.
    pub(crate) fn record(&mut self, sample: &RecordedSample) {
        self.tick(sample.at_ms);
        if sample.key.is_cut() || !is_sampled(sample.hash, self.bits) {
            return;
        }
        self.make_room(sample);
        if !is_sampled(sample.hash, self.bits) {
            return;
        }
        let Some(key) = self.number(sample) else { return };
        let RecordedSample { at_ms, cost, verdict, verb, .. } = *sample;
        if let Some(slot) = &mut self.slots[key as usize] {
            slot.events += 1;
        }
        self.hour.events += 1;
        self.push(RecordedEvent { at_ms, cost, key, verdict, verb });
    }

    /// Returns the number of the sample's key; `None` if there is no room for its name.
    fn number(&mut self, sample: &RecordedSample) -> Option<u32> {
        let lookup = RecordedKeyRef { hash: sample.hash, bytes: sample.key.as_bytes() };
        if let Some(number) = self.numbers.get(&lookup) {
            return Some(*number);
        }
        if self.numbers.len() >= RECORDED_KEYS_MAX {
            return None;
        }
        let key = Arc::new(RecordedKey { hash: lookup.hash, bytes: lookup.bytes.into() });
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[number as usize] = Some(KeySlot { key: Arc::clone(&key), events: 0 });
        self.numbers.insert(key, number);
        Some(number)
    }

    /// Makes room for an event and for the name of its key.
    fn make_room(&mut self, sample: &RecordedSample) {
        let lookup = RecordedKeyRef { hash: sample.hash, bytes: sample.key.as_bytes() };
        let is_new = !self.numbers.contains_key(&lookup);
        while is_new && self.numbers.len() >= RECORDED_KEYS_MAX {
            if self.is_oldest_past(sample.at_ms) {
                self.drop_oldest();
            } else if self.bits < RECORD_BITS {
                self.halve();
            } else {
                break;
            }
        }
        while self.is_full() {
            let oldest_ms = self.oldest_ms().unwrap_or(sample.at_ms);
            let span_ms = sample.at_ms.saturating_sub(oldest_ms);
            if span_ms < RECORDED_SPAN_MS && self.bits < RECORD_BITS {
                self.halve();
            } else {
                self.drop_oldest();
            }
        }
    }

    fn is_full(&self) -> bool {
        self.chunks.len() >= self.chunks_max
            && self.chunks.back().is_some_and(|last| last.len() >= self.chunk_events)
    }

    /// Whether all events of the oldest chunk are beyond the span that a full ring should have.
    fn is_oldest_past(&self, now_ms: u64) -> bool {
        let newest = self.chunks.front().and_then(|chunk| chunk.last());
        newest.is_some_and(|event| now_ms.saturating_sub(event.at_ms) >= RECORDED_SPAN_MS)
    }

    /// The number of keys with an event since a time.
    fn keys_since(&self, start_ms: u64) -> usize {
        let mut seen = vec![false; self.slots.len()];
        let mut count = 0;
        let recent = |event: &&RecordedEvent| event.at_ms >= start_ms;
        for event in self.chunks.iter().flat_map(|chunk| chunk.iter()).filter(recent) {
            count += usize::from(!std::mem::replace(&mut seen[event.key as usize], true));
        }
        count
    }

    fn oldest_ms(&self) -> Option<u64> {
        Some(self.chunks.front()?.first()?.at_ms)
    }

    fn push(&mut self, event: RecordedEvent) {
        let last = match self.chunks.back_mut() {
            Some(last) if last.len() < self.chunk_events => last,
            _ => {
                self.chunks.push_back(Arc::default());
                let Some(last) = self.chunks.back_mut() else { return };
                last
            }
        };
        // A copy, if a replay reads the chunk.
        let events = Arc::make_mut(last);
        if events.capacity() < self.chunk_events {
            events.reserve_exact(self.chunk_events - events.len());
        }
        events.push(event);
    }

    /// Halves the sample, and drops the events of the keys that leave it.
    fn halve(&mut self) {
        self.bits += 1;
        self.hour.was_halved = true;
        self.doublings.retain(|(_, bits)| *bits > self.bits);
        let before = std::mem::take(&mut self.chunks);
        for chunk in before {
            for event in chunk.iter() {
                let slot = self.slots[event.key as usize].as_ref();
                if slot.is_some_and(|slot| is_sampled(slot.key.hash, self.bits)) {
                    self.push(*event);
                }
            }
        }
        for number in 0..self.slots.len() {
            let slot = self.slots[number].as_ref();
            if slot.is_some_and(|slot| !is_sampled(slot.key.hash, self.bits)) {
                self.forget(number as u32);
            }
        }
    }

    fn drop_oldest(&mut self) {
        let Some(chunk) = self.chunks.pop_front() else { return };
        for event in chunk.iter() {
            let Some(slot) = &mut self.slots[event.key as usize] else { continue };
            slot.events -= 1;
            if slot.events == 0 {
                self.forget(event.key);
            }
        }
        let oldest_ms = self.oldest_ms().unwrap_or(u64::MAX);
        self.doublings.retain(|(at_ms, _)| *at_ms > oldest_ms);
    }

    /// Forgets the name of a key without events.
    fn forget(&mut self, number: u32) {
        if let Some(slot) = self.slots[number as usize].take() {
            self.numbers.remove(&slot.key);
            self.free.push(number);
        }
    }

    /// Doubles the sample at the end of an hour that needed less than a quarter of the memory.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        if self.hour.start_ms == 0 || now_ms < self.hour.start_ms {
            self.hour.start_ms = now_ms;
        }
        if now_ms.saturating_sub(self.hour.start_ms) < RECORDED_SPAN_MS {
            return;
        }
        let is_quiet = self.hour.events < self.chunks_max * self.chunk_events / 4
            && !self.hour.was_halved
            && self.bits > RECORD_BITS_MIN
            // Names of earlier hours are no need of this one.
            && self.keys_since(self.hour.start_ms) < RECORDED_KEYS_MAX / 4;
        if is_quiet {
            self.doublings.push((now_ms, self.bits));
            self.bits -= 1;
        }
        self.hour = RecordedHour { start_ms: now_ms, ..RecordedHour::default() };
    }

    /// Returns the bits of the sample: one key in `2^bits` is recorded.
    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }

    /// Returns the recording so far, which shares its events.
    pub(crate) fn recording(&self) -> Recording {
        let keys = self.slots.iter().map(|slot| Some(Arc::clone(&slot.as_ref()?.key)));
        Recording {
            chunks: self.chunks.iter().cloned().collect(),
            keys: keys.collect(),
            bits: self.bits,
            doublings: self.doublings.clone(),
        }
    }
}

impl Recording {
    /// Returns the events, nearly oldest first: two workers may be a moment apart.
    pub(crate) fn events(&self) -> impl Iterator<Item = &RecordedEvent> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Returns a key by its number.
    pub(crate) fn key(&self, number: u32) -> Option<&RecordedKey> {
        self.keys.get(number as usize)?.as_deref()
    }

    /// Returns the number of places for keys: every number is below it.
    pub(crate) fn key_places(&self) -> usize {
        self.keys.len()
    }

    /// Returns the bits of the smallest sample since a time: the keys of that sample are recorded
    /// without a gap.
    pub(crate) fn bits_since(&self, start_ms: u64) -> u32 {
        let later = self.doublings.iter().filter(|(at_ms, _)| *at_ms > start_ms);
        later.map(|(_, bits)| *bits).max().unwrap_or(self.bits)
    }

    /// Returns whether a key is in the sample of one key in `2^bits`.
    pub(crate) fn has(&self, number: u32, bits: u32) -> bool {
        self.key(number).is_some_and(|key| is_sampled(key.hash, bits))
    }
}

/// A recorder that threads share.
#[derive(Debug)]
pub(crate) struct RecorderHandle {
    recorder: Mutex<FlightRecorder>,
    replaying: Mutex<()>,
}

impl RecorderHandle {
    /// Creates a recorder with a ring of `ring_bytes` bytes; `None` for 0: nothing is recorded.
    pub(crate) fn new(ring_bytes: usize) -> Option<Arc<Self>> {
        let recorder = || Mutex::new(FlightRecorder::new(ring_bytes));
        (ring_bytes > 0).then(|| Arc::new(Self { recorder: recorder(), replaying: Mutex::new(()) }))
    }

    /// Returns the recording so far.
    pub(crate) fn recording(&self) -> Recording {
        self.recorder.lock().recording()
    }

    /// Returns the right to replay; `None` while another thread has it.
    pub(crate) fn start_replay(&self) -> Option<MutexGuard<'_, ()>> {
        self.replaying.try_lock()
    }
}

/// The recorder as the thread `observer` fills it.
pub(crate) struct RecorderSink<F> {
    handle: Arc<RecorderHandle>,
    /// Returns the time in milliseconds since the Unix epoch.
    clock: F,
}

impl<F: Fn() -> u64 + Send> RecorderSink<F> {
    /// Creates the sink of a recorder.
    pub(crate) fn new(handle: Arc<RecorderHandle>, clock: F) -> Self {
        Self { handle, clock }
    }
}

impl<F: Fn() -> u64 + Send> RecordSink for RecorderSink<F> {
    fn record(&mut self, sample: &RecordedSample) {
        self.handle.recorder.lock().record(sample);
    }

    fn halvings(&self) -> u32 {
        let mut recorder = self.handle.recorder.lock();
        recorder.tick((self.clock)());
        recorder.bits()
    }

    fn halve(&mut self) {
        let mut recorder = self.handle.recorder.lock();
        if recorder.bits < RECORD_BITS {
            recorder.halve();
        }
    }
}

#[cfg(test)]
mod tests;
