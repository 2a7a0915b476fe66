//! The contents that the server must hold, according to the requests sent.
//!
//! Here: the generator's own count of every counter and version of every value, and the proof that
//! replies agree with them. Not here: the replies' grammar (`reply`), when to compare (`cell`).
//!
//! The proof: `n` increments of a key from zero must be answered with the numbers 1 to `n`, each
//! once, whatever the order in which connections are served. Their sum modulo 2^32 is kept beside
//! the count, so one pass over the keys reveals a lost, doubled or misdirected increment without a
//! request to the server.

use engine::prefetch;

use crate::keys::Space;

/// One key's increments. Eight bytes, because the server shares the cache.
#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    /// Increments sent: by all threads before this cell, by this thread within it.
    value: u32,
    /// The sum of the numbers answered to this thread, wrapping.
    sum: u32,
}

/// One thread's record of its requests to one server.
#[derive(Debug)]
pub struct Ledger {
    /// A table for each space.
    counters: [Vec<Counter>; Space::COUNT],
    versions: Vec<u32>,
    /// The version that `set` writes now. It is the same for the whole cell, so the outcome is
    /// known even if sets overtake each other.
    version: u32,
    /// True if no other thread increments: then a reply cannot exceed the number of sent
    /// increments.
    alone: bool,
}

impl Ledger {
    /// Prefetches the row of a key that will soon be recorded or compared. Without it, the cache
    /// misses would follow each other, and the generator would be slower than the server.
    pub fn fetch(&self, space: Space, index: u32) {
        match space {
            Space::Value => self.versions.get(index as usize).map(prefetch),
            _ => self.counters[space as usize].get(index as usize).map(prefetch),
        };
    }

    /// Records an increment that is about to be sent.
    pub fn incr_sent(&mut self, space: Space, index: u32) {
        let counter = &mut self.counters[space as usize][index as usize];
        counter.value = counter.value.saturating_add(1);
    }

    /// Records the reply to an increment. Returns false if it cannot be right.
    pub fn incr_answered(&mut self, space: Space, index: u32, number: u64) -> bool {
        let counter = &mut self.counters[space as usize][index as usize];
        counter.sum = counter.sum.wrapping_add(number as u32);
        number > 0 && (!self.alone || number <= u64::from(counter.value))
    }

    /// The counter's value when no increment is outstanding.
    #[must_use]
    pub fn counter(&self, space: Space, index: u32) -> u32 {
        self.counters[space as usize][index as usize].value
    }

    /// Records a `set` that is about to be sent, and returns the version it writes.
    pub fn set_sent(&mut self, index: u32) -> u32 {
        self.versions[index as usize] = self.version;
        self.version
    }

    /// The version of the key's value when no `set` is outstanding.
    #[must_use]
    pub fn version(&self, index: u32) -> u32 {
        self.versions[index as usize]
    }
}

/// The ledgers of all threads for one server.
#[derive(Debug)]
pub struct Books {
    /// One for each thread.
    pub ledgers: Vec<Ledger>,
    keys: u32,
    /// Increments of each key sent before this cell, a table for each space.
    settled: [Vec<u32>; Space::COUNT],
}

impl Books {
    /// Books of `keys` counters at zero in each of `spaces`, and `keys` values in version zero.
    #[must_use]
    pub fn new(keys: u32, threads: usize, spaces: &[Space]) -> Self {
        let rows = |space: usize| {
            let is_used = spaces.iter().any(|used| *used as usize == space);
            if is_used { keys as usize } else { 0 }
        };
        let ledger = || Ledger {
            counters: std::array::from_fn(|space| vec![Counter::default(); rows(space)]),
            versions: vec![0; keys as usize],
            version: 0,
            alone: threads == 1,
        };
        Self {
            ledgers: (0..threads).map(|_| ledger()).collect(),
            keys,
            settled: std::array::from_fn(|space| vec![0; rows(space)]),
        }
    }

    /// The number of keys in each space.
    #[must_use]
    pub fn keys(&self) -> u32 {
        self.keys
    }

    /// Gives the next cell's `set`s a new version.
    pub fn next_version(&mut self) {
        for ledger in &mut self.ledgers {
            ledger.version += 1;
        }
    }

    /// Merges the threads' ledgers of a space while no request is outstanding.
    ///
    /// Returns the number of keys whose replies were not the numbers from 1 to their count. A key
    /// is reported once; its count is then taken as right.
    pub fn settle(&mut self, space: Space) -> u64 {
        if space == Space::Value {
            for index in 0..self.keys as usize {
                let version = self.ledgers.iter().map(|l| l.versions[index]).max().unwrap_or(0);
                for ledger in &mut self.ledgers {
                    ledger.versions[index] = version;
                }
            }
            return 0;
        }
        let table = space as usize;
        let mut wrong = 0;
        for (index, settled) in self.settled[table].iter_mut().enumerate() {
            let counters = || self.ledgers.iter().map(|ledger| ledger.counters[table][index]);
            let sent = counters().map(|counter| counter.value - *settled).sum::<u32>();
            *settled += sent;
            let sum = counters().fold(0u32, |sum, counter| sum.wrapping_add(counter.sum));
            let count = u64::from(*settled);
            let excess = sum.wrapping_sub((count * (count + 1) / 2) as u32);
            wrong += u64::from(excess != 0);
            for ledger in &mut self.ledgers {
                ledger.counters[table][index].value = *settled;
            }
            let first = &mut self.ledgers[0].counters[table][index];
            first.sum = first.sum.wrapping_sub(excess);
        }
        wrong
    }

    /// All increments sent up to the last [`settle`](Self::settle).
    #[must_use]
    pub fn total(&self) -> u64 {
        self.settled.iter().flatten().map(|&n| u64::from(n)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Books;
    use crate::keys::Space;

    /// Sends three increments of key 1, feeds these replies, and settles.
    fn check(threads: usize, answers: [u64; 3], right: [bool; 3], wrong_keys: u64) {
        let mut books = Books::new(3, threads, &[Space::Bucket]);
        for n in 0..3 {
            books.ledgers[n % threads].incr_sent(Space::Bucket, 1);
        }
        for (n, answer) in answers.into_iter().enumerate() {
            let seen = books.ledgers[n % threads].incr_answered(Space::Bucket, 1, answer);
            assert_eq!(seen, right[n], "{answers:?}");
        }
        assert_eq!(books.settle(Space::Bucket), wrong_keys, "{answers:?}");
        assert_eq!(books.settle(Space::Bucket), 0, "reported once");
        assert_eq!(books.total(), 3);
        let counter = |index| books.ledgers.iter().map(move |l| l.counter(Space::Bucket, index));
        assert!(counter(1).all(|count| count == 3) && counter(0).all(|count| count == 0));
    }

    #[test]
    fn each_number_once_in_any_order_is_right() {
        check(1, [1, 2, 3], [true; 3], 0);
        check(1, [3, 1, 2], [true; 3], 0);
        check(2, [2, 3, 1], [true; 3], 0);
    }

    #[test]
    fn a_lost_or_doubled_increment_shows() {
        check(1, [1, 2, 2], [true; 3], 1);
        check(1, [2, 3, 3], [true; 3], 1);
        check(1, [2, 3, 4], [true, true, false], 1);
        check(1, [0, 1, 2], [false, true, true], 1);
        check(2, [2, 3, 4], [true; 3], 1);
    }

    #[test]
    fn versions_become_known_to_all_threads() {
        let mut books = Books::new(2, 2, &[]);
        books.next_version();
        assert_eq!(books.ledgers[1].set_sent(0), 1);
        books.settle(Space::Value);
        assert_eq!((books.ledgers[0].version(0), books.ledgers[0].version(1)), (1, 0));
    }
}
