//! A small seeded generator of random numbers: one multiplication chain, eight bytes of state.
//!
//! Here: uniform integers, uniform floats, exponential gaps. Not here: the keys chosen with them
//! (`spread`), and anything that must be unpredictable. Source: `SplitMix64`, Steele, Lea and
//! Flood, "Fast splittable pseudorandom number generators", 2014.

/// The generator. The same seed gives the same requests in the same order.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

/// A bijection of 64-bit numbers that hides the order of its arguments.
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// A generator whose sequence follows from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    /// The next 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number in `0..bound`; zero when `bound` is zero. The probabilities deviate by less than
    /// `bound` / 2^32 of their value.
    pub const fn below(&mut self, bound: u32) -> u32 {
        (((self.bits() >> 32) * bound as u64) >> 32) as u32
    }

    /// A number in `0.0..1.0`, in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A gap between two arrivals of a Poisson stream with this mean, in the unit of `mean`.
    pub fn gap(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit()).ln() * mean
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn below_stays_below_and_reaches_every_number() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 10];
        for _ in 0..100_000 {
            seen[rng.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (9_500..10_500).contains(&n)), "{seen:?}");
    }

    #[test]
    fn gaps_have_an_exponential_mean_and_spread() {
        let mut rng = Rng::new(2);
        let gaps: Vec<f64> = (0..200_000).map(|_| rng.gap(50.0)).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let longer = gaps.iter().filter(|&&g| g > 100.0).count() as f64 / gaps.len() as f64;
        assert!((49.0..51.0).contains(&mean), "{mean}");
        // e^-2 of all gaps are longer than twice the mean.
        assert!((longer - (-2.0f64).exp()).abs() < 0.005, "{longer}");
    }
}
