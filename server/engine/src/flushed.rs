//! Keys that `flush_all` removed and no command has named since: the source of `get_flushed`.
//!
//! Here: the hashes. memcached leaves flushed items in place and counts each when a command finds
//! it. Here they are removed at once, so each shard remembers some of their hashes. Not here: the
//! flush itself (`engine`).

/// Most hashes that a shard remembers. Those beyond are not counted.
const HASHES_MAX: usize = 256;

/// Hashes of the keys of flushed items.
#[derive(Debug, Default)]
pub(crate) struct Flushed {
    /// Sorted, without duplicates.
    hashes: Vec<u64>,
    met: u64,
}

impl Flushed {
    /// Remembers keys by their hashes, in addition to those of earlier flushes.
    pub(crate) fn remember(&mut self, hashes: impl Iterator<Item = u64>) {
        self.hashes.extend(hashes.take(HASHES_MAX));
        self.hashes.sort_unstable();
        self.hashes.dedup();
        self.hashes.truncate(HASHES_MAX);
    }

    /// Records that a command found no item under this hash, and counts it if a flush removed it.
    /// Returns false if no flushed key is left.
    pub(crate) fn miss(&mut self, hash: u64) -> bool {
        if let Ok(at) = self.hashes.binary_search(&hash) {
            self.hashes.remove(at);
            self.met += 1;
        }
        if self.hashes.is_empty() {
            self.hashes = Vec::new();
        }
        !self.hashes.is_empty()
    }

    /// Whether any key is remembered.
    pub(crate) fn has_some(&self) -> bool {
        !self.hashes.is_empty()
    }

    /// The number of commands that named a flushed key.
    pub(crate) fn met(&self) -> u64 {
        self.met
    }

    /// Resets the count. The keys stay.
    pub(crate) fn reset(&mut self) {
        self.met = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flushed_key_counts_once() {
        let mut flushed = Flushed::default();
        assert!(!flushed.has_some());
        flushed.remember([3, 1, 2, 1].into_iter());
        assert!(flushed.miss(9) && flushed.miss(1) && flushed.miss(1) && flushed.miss(3));
        assert_eq!(flushed.met(), 2);
        flushed.reset();
        assert!(!flushed.miss(2));
        assert_eq!((flushed.met(), flushed.has_some()), (1, false));
    }

    #[test]
    fn a_large_flush_is_remembered_in_part() {
        let mut flushed = Flushed::default();
        flushed.remember(0..1_000_000);
        flushed.remember(500..1_000_000);
        for hash in 0..1_000 {
            flushed.miss(hash);
        }
        assert_eq!(flushed.met(), HASHES_MAX as u64);
    }
}
