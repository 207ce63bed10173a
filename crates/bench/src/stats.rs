//! Medians and quartiles.

use serde::Serialize;

/// The middle of some measurements and how far they spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The first quartile: a quarter of the samples are below it.
    pub low: f64,
    /// The median of the samples.
    pub median: f64,
    /// The third quartile: a quarter of the samples are above it.
    pub high: f64,
}

impl Spread {
    /// Of at least one measurement.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (sorted.len().saturating_sub(1)) as f64 * share;
            sorted.get(index.round() as usize).copied().unwrap_or(f64::NAN)
        };
        Self { low: at(0.25), median: at(0.5), high: at(0.75) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_of_a_known_sample() {
        let spread = Spread::of([9.0, 1.0, 3.0, 7.0, 5.0]);
        assert_eq!(spread, Spread { low: 3.0, median: 5.0, high: 7.0 });
    }
}
