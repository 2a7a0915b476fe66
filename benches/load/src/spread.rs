//! The choice of keys: uniform, by Zipf's law, always the same, or one after the other.
//!
//! Here: the choice of an index. Not here: the arithmetic of Zipf's law (`zipf`), the key's bytes
//! (`keys`).

use std::sync::Arc;

use crate::zipf::Zipf;
use kit::rng::Rng;

/// The exponent of the skewed cells: that of YCSB's default, a common choice for key popularity.
pub const ZIPF_EXPONENT: f64 = 0.99;

/// The distribution of requests over the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Every key with equal probability.
    Uniform,
    /// A few keys often, most of them seldom.
    Zipf,
    /// One key only.
    Hot,
    /// All keys in turn; to fill and to read back.
    Sequential,
}

/// A stream of indices.
#[derive(Debug, Clone)]
pub enum Picker {
    /// [`Spread::Uniform`] over `0..n`.
    Uniform(u32),
    /// [`Spread::Zipf`].
    Zipf(Zipf),
    /// [`Spread::Hot`]: key zero.
    Hot,
    /// Each of these indices with equal probability.
    Listed(Arc<[u32]>),
    /// [`Spread::Sequential`]: each index in turn, wrapping at the end of the range.
    Sequential {
        /// The next index.
        next: u32,
        /// The range's start, to return to.
        start: u32,
        /// The range's end, not included.
        end: u32,
    },
}

impl Picker {
    /// A picker over `keys` keys. Of `parts` sequential pickers each takes its own `part`.
    #[must_use]
    pub fn new(spread: Spread, keys: u32, part: u32, parts: u32) -> Self {
        match spread {
            Spread::Uniform => Self::Uniform(keys),
            Spread::Zipf => Self::Zipf(Zipf::new(keys, ZIPF_EXPONENT)),
            Spread::Hot => Self::Hot,
            Spread::Sequential => {
                let edge = |n: u32| (u64::from(keys) * u64::from(n) / u64::from(parts)) as u32;
                Self::Sequential { next: edge(part), start: edge(part), end: edge(part + 1) }
            }
        }
    }

    /// The number of keys of a sequential picker; `None` for the others.
    #[must_use]
    pub fn length(&self) -> Option<u32> {
        match self {
            Self::Sequential { start, end, .. } => Some(end - start),
            _ => None,
        }
    }

    /// The next index.
    pub fn pick(&mut self, rng: &mut Rng) -> u32 {
        match self {
            Self::Uniform(keys) => rng.below(*keys),
            Self::Zipf(zipf) => zipf.sample(rng),
            Self::Hot => 0,
            Self::Listed(list) => list[rng.below(list.len() as u32) as usize],
            Self::Sequential { next, start, end } => {
                let index = *next;
                *next = if index + 1 < *end { index + 1 } else { *start };
                index
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Picker, Spread};
    use kit::rng::Rng;

    #[test]
    fn sequential_parts_cover_every_key_once() {
        let mut rng = Rng::new(0);
        for (keys, parts) in [(10, 1), (10, 3), (7, 7), (1_000, 4)] {
            let mut seen = vec![0; keys as usize];
            for part in 0..parts {
                let mut picker = Picker::new(Spread::Sequential, keys, part, parts);
                for _ in 0..picker.length().unwrap_or(0) {
                    seen[picker.pick(&mut rng) as usize] += 1;
                }
            }
            assert!(seen.iter().all(|&n| n == 1), "{keys} {parts} {seen:?}");
        }
    }

    #[test]
    fn a_hot_spread_has_one_key() {
        let mut rng = Rng::new(0);
        let mut picker = Picker::new(Spread::Hot, 1000, 0, 1);
        assert!((0..100).all(|_| picker.pick(&mut rng) == 0));
    }
}
