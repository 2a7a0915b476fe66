//! Random numbers from a seed: `SplitMix64`, so that a seed gives the same run on every machine.

/// A generator.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number. Source: Steele, Lea and Flood, "Fast splittable pseudorandom number
    /// generators", 2014.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// A number from minus `most` to `most`.
    pub fn either_way(&mut self, most: u64) -> i64 {
        self.below(2 * most + 1).cast_signed() - most.cast_signed()
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true with probability `count` / `of`.
    pub fn chance(&mut self, count: u64, of: u64) -> bool {
        self.below(of) < count
    }

    /// One of the elements; `None` if there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        let place = self.below(from.len() as u64);
        from.get(usize::try_from(place).unwrap_or(0)).copied()
    }
}
