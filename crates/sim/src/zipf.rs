//! Zipf-distributed ranks.

use rand::Rng;

/// Why there is no such distribution.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum ZipfError {
    /// No rank to draw.
    #[error("a Zipf distribution has at least one rank")]
    NoRanks,
    /// Not a positive number.
    #[error("the skew of a Zipf distribution is a positive number, not {0}")]
    Skew(f64),
}

/// Draws rank k of `1..=n` with probability proportional to k^-skew, in constant time and memory:
/// Hormann and Derflinger, "Rejection-inversion to generate variates from monotone discrete
/// distributions", 1996.
///
/// h(x) = x^-skew is integrated by H; a uniform point under H is inverted and rounded to the next
/// rank, and refused if it lies above the rank's own bar. Fewer than 1 in 4 are refused.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Zipf {
    n: f64,
    skew: f64,
    /// H at the left end (with the whole bar of rank 1) and at the right end.
    left: f64,
    right: f64,
    /// Points closer than this to their rank from the right are under its bar.
    squeeze: f64,
}

impl Zipf {
    /// Ranks `1..=n`.
    ///
    /// # Errors
    ///
    /// [`ZipfError`].
    pub fn new(n: u64, skew: f64) -> Result<Self, ZipfError> {
        if n == 0 {
            return Err(ZipfError::NoRanks);
        }
        if !(skew > 0.0 && skew.is_finite()) {
            return Err(ZipfError::Skew(skew));
        }
        let mut zipf = Self { n: n as f64, skew, left: 0.0, right: 0.0, squeeze: 0.0 };
        zipf.left = zipf.integral(1.5) - 1.0;
        zipf.right = zipf.integral(zipf.n + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-skew));
        Ok(zipf)
    }

    /// H(x), the integral of h, with H(1) = 0; the limit, ln x, where the skew is 1.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        log * exp_m1_over((1.0 - self.skew) * log)
    }

    fn inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.skew)).max(-1.0);
        (y * ln_1p_over(t)).exp()
    }

    /// Draws a rank.
    pub fn sample(&self, rng: &mut impl Rng) -> u64 {
        loop {
            let u = self.right + rng.random::<f64>() * (self.left - self.right);
            let x = self.inverse(u);
            let rank = x.round().clamp(1.0, self.n);
            let under_the_bar = || u >= self.integral(rank + 0.5) - rank.powf(-self.skew);
            if rank - x <= self.squeeze || under_the_bar() {
                return rank as u64;
            }
        }
    }
}

/// (e^x - 1) / x, also at 0.
fn exp_m1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

/// ln(1 + x) / x, also at 0.
fn ln_1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    /// Chi-squared over 50 ranks: mean 49, standard deviation 9.9; 100 is beyond five of them.
    #[test]
    fn the_shares_are_those_of_the_law() {
        for skew in [0.6, 0.8, 1.0, 1.2, 1.4] {
            let mut rng = ChaCha8Rng::seed_from_u64(7);
            let zipf = Zipf::new(50, skew).unwrap();
            let draws = 200_000;
            let mut seen = [0u32; 51];
            (0..draws).for_each(|_| seen[zipf.sample(&mut rng) as usize] += 1);
            assert_eq!(seen[0], 0);
            let total: f64 = (1..=50).map(|k| f64::from(k).powf(-skew)).sum();
            let chi: f64 = (1..=50u32)
                .map(|k| {
                    let expected = f64::from(draws) * f64::from(k).powf(-skew) / total;
                    (f64::from(seen[k as usize]) - expected).powi(2) / expected
                })
                .sum();
            assert!(chi < 100.0, "skew {skew}, seed 7: {chi}");
        }
    }

    #[test]
    fn one_rank_and_no_rank() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        assert_eq!(Zipf::new(1, 1.0).unwrap().sample(&mut rng), 1);
        assert_eq!(Zipf::new(0, 1.0), Err(ZipfError::NoRanks));
        assert!(Zipf::new(9, f64::NAN).is_err());
    }
}
