//! Zipf-distributed ranks without a table: rank `k` of `n` comes with a share of k^-s.
//!
//! Here: the sampler. Not here: which key a rank stands for (`keys` scatters them).
//! A table of a million ranks would push the server's own lines out of the cache both share.
//! Source: Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete
//! distributions", 1996.

use kit::rng::Rng;

/// A sampler of ranks `0..n`, rank 0 the most frequent.
#[derive(Debug, Clone)]
pub struct Zipf {
    ranks: f64,
    exponent: f64,
    /// The area under the hat left of the first rank, and up to the last.
    area_first: f64,
    area_last: f64,
    /// A draw nearer to its rank than this is always accepted.
    sure: f64,
}

impl Zipf {
    /// A sampler of `ranks` ranks.
    ///
    /// # Panics
    ///
    /// If there are no ranks, or the exponent is not positive, or is one (the integral of the hat
    /// has another form there).
    #[must_use]
    pub fn new(ranks: u32, exponent: f64) -> Self {
        assert!(ranks > 0, "a distribution needs something to choose from");
        assert!(exponent > 0.0 && (exponent - 1.0).abs() > 1e-6, "exponent {exponent}");
        let mut zipf =
            Self { ranks: f64::from(ranks), exponent, area_first: 0.0, area_last: 0.0, sure: 0.0 };
        zipf.area_first = zipf.area(1.5) - 1.0;
        zipf.area_last = zipf.area(zipf.ranks + 0.5);
        zipf.sure = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.height(2.0));
        zipf
    }

    /// The next rank.
    pub fn sample(&self, rng: &mut Rng) -> u32 {
        loop {
            let area = self.area_last + rng.unit() * (self.area_first - self.area_last);
            let x = self.area_inverse(area);
            let rank = (x + 0.5).floor().clamp(1.0, self.ranks);
            if rank - x <= self.sure || area >= self.area(rank + 0.5) - self.height(rank) {
                return rank as u32 - 1;
            }
        }
    }

    fn height(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    /// The integral of `height` from 1 to `x`.
    fn area(&self, x: f64) -> f64 {
        let power = 1.0 - self.exponent;
        (power * x.ln()).exp_m1() / power
    }

    fn area_inverse(&self, area: f64) -> f64 {
        let power = 1.0 - self.exponent;
        ((area * power).ln_1p() / power).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::Zipf;
    use kit::rng::Rng;

    /// Draws and compares with the exact shares, rank by rank where ranks are frequent.
    fn check(ranks: u32, exponent: f64) {
        const DRAWS: u32 = 1_000_000;
        let zipf = Zipf::new(ranks, exponent);
        let mut rng = Rng::new(u64::from(ranks));
        let mut seen = vec![0u32; ranks as usize];
        for _ in 0..DRAWS {
            seen[zipf.sample(&mut rng) as usize] += 1;
        }
        let weights: Vec<f64> = (1..=ranks).map(|k| f64::from(k).powf(-exponent)).collect();
        let total: f64 = weights.iter().sum();
        let mut chi_squared = 0.0;
        let mut cells = 0;
        let (mut tail_expected, mut tail_seen) = (0.0, 0.0);
        for (weight, &count) in weights.iter().zip(&seen) {
            let expected = weight / total * f64::from(DRAWS);
            if expected < 50.0 {
                tail_expected += expected;
                tail_seen += f64::from(count);
            } else {
                chi_squared += (f64::from(count) - expected).powi(2) / expected;
                cells += 1;
            }
        }
        if tail_expected > 0.0 {
            chi_squared += (tail_seen - tail_expected).powi(2) / tail_expected;
            cells += 1;
        }
        // Chi squared has mean n and variance 2n; five deviations never happen to a right sampler.
        let n = f64::from(cells);
        assert!(chi_squared < n + 5.0 * (2.0 * n).sqrt(), "{ranks} {exponent}: {chi_squared} {n}");
    }

    #[test]
    fn ranks_come_as_often_as_the_formula_says() {
        for ranks in [1, 2, 3, 10, 1000, 1_000_000] {
            for exponent in [0.5, 0.99, 1.2] {
                check(ranks, exponent);
            }
        }
    }
}
