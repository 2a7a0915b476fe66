//! The keys with the greatest weight in a stream of samples, with bounds on their error.
//!
//! Here: weighted Space-Saving, and two generations of it, so that rates cover one to two minutes.
//! Not here: the samples (`probe`), the form in which keys are shown (`names`).
//!
//! With `n` counters and a stream of weight `w`, a count is too high by at most its error, which is
//! at most `w / n`, and each key of a greater weight than `w / n` has a counter.

use hashbrown::HashMap;

use super::sample::KeySample;

/// Keys that are counted at once.
pub(crate) const COUNTERS: usize = 1024;
/// Time after which a generation begins.
pub(crate) const GENERATION_MS: u64 = 60_000;

/// A key with its count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyCount {
    pub(crate) hash: u64,
    pub(crate) key: KeySample,
    /// The number of the limit of the last sample; 0 for none.
    pub(crate) limit: u32,
    /// The weight counted, an upper bound of the true one.
    pub(crate) count: u64,
    /// The true weight is at least `count - error`.
    pub(crate) error: u64,
}

/// Weighted Space-Saving: counters, and a heap of them with the least count at the top. A counter
/// keeps its slot, so moves in the heap touch neither keys nor hashes.
#[derive(Debug)]
struct SpaceSaving {
    slots: Vec<KeyCount>,
    /// The slot of each key's counter.
    slot_of: HashMap<u64, u32>,
    heap: Vec<HeapEntry>,
    /// The place in `heap` of each slot.
    places: Vec<u32>,
    counters: usize,
}

/// A counter in the heap.
#[derive(Debug, Clone, Copy)]
struct HeapEntry {
    count: u64,
    slot: u32,
}

impl SpaceSaving {
    fn new(counters: usize) -> Self {
        Self {
            slots: Vec::new(),
            slot_of: HashMap::new(),
            heap: Vec::new(),
            places: Vec::new(),
            counters: counters.max(1),
        }
    }

    fn add(&mut self, hash: u64, key: KeySample, limit: u32, weight: u64) {
        if let Some(slot) = self.slot_of.get(&hash) {
            let slot = *slot as usize;
            let counter = &mut self.slots[slot];
            counter.count = counter.count.saturating_add(weight);
            counter.limit = limit;
            let place = self.places[slot] as usize;
            self.heap[place].count = counter.count;
            self.sink(place);
        } else if self.slots.len() < self.counters {
            let slot = self.slots.len() as u32;
            self.slots.push(KeyCount { hash, key, limit, count: weight, error: 0 });
            self.slot_of.insert(hash, slot);
            self.places.push(slot);
            self.heap.push(HeapEntry { count: weight, slot });
            self.rise(slot as usize);
        } else {
            let HeapEntry { count: least, slot } = self.heap[0];
            let counter = &mut self.slots[slot as usize];
            self.slot_of.remove(&counter.hash);
            let count = least.saturating_add(weight);
            *counter = KeyCount { hash, key, limit, count, error: least };
            self.slot_of.insert(hash, slot);
            self.heap[0].count = count;
            self.sink(0);
        }
    }

    /// Returns the greatest weight that a key without a counter may have.
    fn missed(&self) -> u64 {
        match self.heap.first() {
            Some(least) if self.heap.len() == self.counters => least.count,
            _ => 0,
        }
    }

    fn get(&self, hash: u64) -> Option<&KeyCount> {
        self.slots.get(*self.slot_of.get(&hash)? as usize)
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.slot_of.clear();
        self.heap.clear();
        self.places.clear();
    }

    fn put(&mut self, place: usize, entry: HeapEntry) {
        self.heap[place] = entry;
        self.places[entry.slot as usize] = place as u32;
    }

    fn rise(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 && entry.count < self.heap[(place - 1) / 2].count {
            self.put(place, self.heap[(place - 1) / 2]);
            place = (place - 1) / 2;
        }
        self.put(place, entry);
    }

    fn sink(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let count = |place: usize| self.heap.get(place).map_or(u64::MAX, |entry| entry.count);
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let least = if count(right) < count(left) { right } else { left };
            if count(least) >= entry.count {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, entry);
    }
}

/// The top keys of the last one to two minutes.
#[derive(Debug)]
pub(crate) struct TopKeys {
    /// The present generation and the one before.
    generations: [SpaceSaving; 2],
    /// Their starts, on the caller's clock.
    starts_ms: [u64; 2],
}

impl TopKeys {
    /// Creates top keys with the clock at `now_ms`.
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            generations: [SpaceSaving::new(COUNTERS), SpaceSaving::new(COUNTERS)],
            starts_ms: [now_ms; 2],
        }
    }

    /// Counts a key.
    pub(crate) fn add(&mut self, hash: u64, key: KeySample, limit: u32, weight: u64) {
        self.generations[0].add(hash, key, limit, weight);
    }

    /// Begins a generation if the present one is old enough.
    pub(crate) fn turn(&mut self, now_ms: u64) {
        let age_ms = now_ms.saturating_sub(self.starts_ms[0]);
        if age_ms < GENERATION_MS {
            return;
        }
        self.generations.swap(0, 1);
        self.generations[0].clear();
        if age_ms >= 2 * GENERATION_MS {
            // The observer did not run for long: the counts before the pause say nothing.
            self.generations[1].clear();
            self.starts_ms = [now_ms; 2];
        } else {
            self.starts_ms = [now_ms, self.starts_ms[0]];
        }
    }

    /// Returns the time that the counts cover, in milliseconds.
    pub(crate) fn span_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.starts_ms[1])
    }

    /// Returns all keys with a counter, the greatest counts first.
    pub(crate) fn sorted(&self) -> Vec<KeyCount> {
        let [present, before] = &self.generations;
        let mut keys = Vec::with_capacity(present.slots.len() + before.slots.len());
        for key in &present.slots {
            let (count, error) = match before.get(key.hash) {
                Some(older) => (older.count, older.error),
                None => (before.missed(), before.missed()),
            };
            keys.push(sum(key, count, error));
        }
        for key in before.slots.iter().filter(|key| present.get(key.hash).is_none()) {
            keys.push(sum(key, present.missed(), present.missed()));
        }
        keys.sort_unstable_by_key(|key| std::cmp::Reverse((key.count, key.count - key.error)));
        keys
    }
}

fn sum(key: &KeyCount, count: u64, error: u64) -> KeyCount {
    KeyCount {
        count: key.count.saturating_add(count),
        error: key.error.saturating_add(error),
        ..*key
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(hash: u64) -> KeySample {
        KeySample::new(format!("key:{hash}").as_bytes())
    }

    /// A generator of numbers, for streams that are the same in every run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((u128::from(self.0) * u128::from(end)) >> 64) as u64
        }
    }

    /// Holds the bounds of `top` against the exact weights of its stream.
    fn check(top: &[KeyCount], exact: &HashMap<u64, u64>, counters: u64) {
        let total: u64 = exact.values().sum();
        for key in top {
            let weight = exact.get(&key.hash).copied().unwrap_or(0);
            assert!(key.count >= weight, "{key:?} {weight}");
            assert!(key.count - key.error <= weight, "{key:?} {weight}");
            assert!(key.error <= total / counters, "{key:?} of {total}");
        }
        for (hash, weight) in exact.iter().filter(|(_, weight)| **weight > total / counters) {
            assert!(top.iter().any(|key| key.hash == *hash), "{hash} with {weight} of {total}");
        }
        assert!(top.is_sorted_by_key(|key| std::cmp::Reverse(key.count)));
    }

    proptest! {
        #[test]
        fn small_stream_keeps_its_bounds(
            stream in proptest::collection::vec((0_u64..20, 0_u64..50), 0..300)
        ) {
            let mut sketch = SpaceSaving::new(8);
            let mut exact = HashMap::new();
            for (hash, weight) in stream {
                sketch.add(hash, key(hash), 0, weight);
                *exact.entry(hash).or_insert(0) += weight;
                prop_assert_eq!(sketch.slot_of.len(), sketch.heap.len());
                for (place, entry) in sketch.heap.iter().enumerate() {
                    let counter = &sketch.slots[entry.slot as usize];
                    prop_assert_eq!(counter.count, entry.count);
                    prop_assert_eq!(sketch.places[entry.slot as usize] as usize, place);
                    prop_assert_eq!(sketch.slot_of[&counter.hash], entry.slot);
                    prop_assert!(place == 0 || sketch.heap[(place - 1) / 2].count <= entry.count);
                }
            }
            let mut top = sketch.slots.clone();
            top.sort_by_key(|key| std::cmp::Reverse(key.count));
            check(&top, &exact, 8);
        }
    }

    #[test]
    fn zipf_stream_keeps_its_bounds_over_two_generations() {
        let mut numbers = Numbers(9);
        let mut top = TopKeys::new(0);
        let mut exact = HashMap::new();
        for event in 0..400_000_u64 {
            // Each octave of keys is as likely as the others, so key `n` has about the share 1 / n.
            let octave = numbers.below(17);
            let hash = numbers.below(1 << octave) + 1;
            let weight = 1 + numbers.below(64);
            top.add(hash, key(hash), 3, weight);
            *exact.entry(hash).or_insert(0) += weight;
            if event == 200_000 {
                top.turn(GENERATION_MS);
            }
        }
        check(&top.sorted(), &exact, COUNTERS as u64);
        assert_eq!(top.span_ms(GENERATION_MS + 5), GENERATION_MS + 5);
        let first = top.sorted()[0];
        assert_eq!((first.hash, first.limit), (1, 3), "the only key of the first octave");
        assert_eq!(first.key, key(1));
    }

    #[test]
    fn offender_among_random_keys_is_listed() {
        let events: u64 = if cfg!(debug_assertions) { 500_000 } else { 10_000_000 };
        let mut numbers = Numbers(5);
        let mut top = TopKeys::new(0);
        let mut offences = 0;
        for _ in 0..events {
            let is_offender = numbers.below(500) == 0;
            offences += u64::from(is_offender);
            let hash = if is_offender { u64::MAX } else { numbers.below(1 << 60) };
            top.add(hash, key(hash), 0, 1);
        }
        let listed = top.sorted();
        let offender = listed.iter().find(|key| key.hash == u64::MAX).expect("0.2 % of all");
        assert!(offender.count >= offences && offender.count - offender.error <= offences);
        let random = listed.iter().filter(|key| key.hash != u64::MAX);
        let surest = random.map(|key| key.count - key.error).max();
        assert!(offender.count - offender.error > surest.expect("other keys"), "it is told apart");
    }

    #[test]
    fn old_counts_are_forgotten() {
        let mut top = TopKeys::new(1000);
        top.add(1, key(1), 0, 5);
        top.turn(1000 + GENERATION_MS - 1);
        top.add(1, key(1), 0, 5);
        assert_eq!(top.sorted()[0].count, 10);
        top.turn(1000 + GENERATION_MS);
        top.add(2, key(2), 0, 3);
        let counts: Vec<(u64, u64)> =
            top.sorted().iter().map(|key| (key.hash, key.count)).collect();
        assert_eq!(counts, [(1, 10), (2, 3)]);
        top.turn(1000 + 2 * GENERATION_MS);
        assert_eq!(top.sorted().len(), 1);
        assert_eq!(top.span_ms(1000 + 2 * GENERATION_MS), GENERATION_MS);
        top.turn(1000 + 9 * GENERATION_MS);
        assert_eq!((top.sorted().len(), top.span_ms(1000 + 9 * GENERATION_MS)), (0, 0));
    }
}
