//! Step-function distributions, as the published workloads give them.

use rand::Rng;
use std::path::Path;

/// Why a distribution cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DistributionError {
    /// The file cannot be read.
    #[error("cannot read {path}: {cause}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A row is not of the form `"probability": value`.
    #[error("line {line}: expected \"probability\": value")]
    Row {
        /// Counted from 1.
        line: usize,
    },
    /// A probability outside of 0..=1, or a value that is negative or not finite.
    #[error("line {line}: {what}")]
    Range {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The largest key is less than 1, so some draws would have no value.
    #[error("the last cumulative probability is {0}, not 1")]
    Incomplete(f64),
}

/// A cumulative distribution without interpolation: the value of the first key greater than u,
/// u being uniform in [0, 1).
///
/// In its text a key may stand twice (`hadoop_size_cdf.txt` has four such pairs); the last row
/// wins, as in the JSON reader of the published simulators.
#[derive(Clone, PartialEq, Debug)]
pub struct StepCdf {
    /// Ascending, the last one is 1.
    keys: Vec<f64>,
    values: Vec<f64>,
}

impl StepCdf {
    /// Flow durations in seconds, mean 21.334 (`data/hadoop_cdf.txt`).
    pub fn hadoop_durations() -> Self {
        Self::built_in(include_str!("../../../data/hadoop_cdf.txt"))
    }

    /// Flow sizes in KB, mean 3,017 (`data/hadoop_size_cdf.txt`).
    pub fn hadoop_sizes() -> Self {
        Self::built_in(include_str!("../../../data/hadoop_size_cdf.txt"))
    }

    /// Down-times of servers in seconds, mean 1,786, median 153
    /// (`data/downtime_upgrade_cdf.txt`).
    pub fn upgrade_down_times() -> Self {
        Self::built_in(include_str!("../../../data/downtime_upgrade_cdf.txt"))
    }

    fn built_in(text: &str) -> Self {
        match Self::parse(text) {
            Ok(cdf) => cdf,
            Err(error) => unreachable!("a file of the repository, read by a test: {error}"),
        }
    }

    /// Always the same value.
    pub fn constant(value: f64) -> Self {
        Self { keys: vec![1.0], values: vec![value] }
    }

    /// Reads a distribution from a file.
    ///
    /// # Errors
    ///
    /// [`DistributionError`].
    pub fn load(path: &Path) -> Result<Self, DistributionError> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| DistributionError::Io { path: path.display().to_string(), cause })?;
        Self::parse(&text)
    }

    /// Reads the rows of a JSON object, one per line. Not a JSON reader: those drop or refuse a
    /// repeated key, each in its own way, and say nothing of lines.
    ///
    /// # Errors
    ///
    /// [`DistributionError`], but not `Io`.
    pub fn parse(text: &str) -> Result<Self, DistributionError> {
        let mut rows: Vec<(f64, f64)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim().trim_end_matches(',');
            if line.is_empty() || line == "{" || line == "}" {
                continue;
            }
            let line_number = number + 1;
            let (key, value) = row(line).ok_or(DistributionError::Row { line: line_number })?;
            let range = |what| DistributionError::Range { line: line_number, what };
            if !(0.0..=1.0).contains(&key) {
                return Err(range("a probability is from 0 to 1"));
            }
            if !value.is_finite() || value < 0.0 {
                return Err(range("a value is a number from 0"));
            }
            match rows.iter_mut().find(|known| known.0 == key) {
                Some(known) => known.1 = value,
                None => rows.push((key, value)),
            }
        }
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        match rows.last() {
            Some(&(1.0, _)) => {}
            last => return Err(DistributionError::Incomplete(last.map_or(0.0, |row| row.0))),
        }
        Ok(Self {
            keys: rows.iter().map(|row| row.0).collect(),
            values: rows.iter().map(|row| row.1).collect(),
        })
    }

    /// The value for u in [0, 1).
    pub fn at(&self, u: f64) -> f64 {
        let row = self.keys.partition_point(|&key| key <= u);
        self.values[row.min(self.values.len() - 1)]
    }

    /// Draws a value.
    pub fn sample(&self, rng: &mut impl Rng) -> f64 {
        self.at(rng.random::<f64>())
    }

    /// The mean, in the unit of the values.
    pub fn mean(&self) -> f64 {
        self.steps().map(|(share, value)| share * value).sum()
    }

    /// (probability, value) of each step, the impossible ones included.
    pub fn steps(&self) -> impl Iterator<Item = (f64, f64)> {
        let below = std::iter::once(0.0).chain(self.keys.iter().copied());
        self.keys.iter().zip(below).map(|(key, below)| key - below).zip(self.values.iter().copied())
    }
}

fn row(line: &str) -> Option<(f64, f64)> {
    let (key, value) = line.split_once(':')?;
    let key = key.trim().strip_prefix('"')?.strip_suffix('"')?;
    Some((key.parse().ok()?, value.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_distributions_have_the_published_means() {
        let close = |cdf: StepCdf, mean: f64| {
            assert!((cdf.mean() - mean).abs() < mean * 1e-3, "{}", cdf.mean());
        };
        close(StepCdf::hadoop_durations(), 21.334);
        close(StepCdf::hadoop_sizes(), 3_017.0);
        close(StepCdf::upgrade_down_times(), 1_786.0);
        assert_eq!(StepCdf::upgrade_down_times().at(0.5), 153.1136803);
    }

    #[test]
    fn the_first_key_greater_than_u_and_the_last_of_equal_keys() {
        let cdf = StepCdf::parse("{\n\"0\": 9,\n\"0.5\": 1,\n\"0.5\": 2,\n\"1\": 3\n}").unwrap();
        assert_eq!([0.0, 0.499, 0.5, 0.999].map(|u| cdf.at(u)), [2.0, 2.0, 3.0, 3.0]);
        assert_eq!(cdf.mean(), 2.5);
        // The first row of the sizes has key 0: nothing is smaller, so it is never drawn, and
        // the next key stands twice.
        assert_eq!(StepCdf::hadoop_sizes().at(0.0), 0.1602775321);
    }

    #[test]
    fn errors_name_the_line() {
        let text = |t: &str| StepCdf::parse(t).unwrap_err().to_string();
        assert!(text("{\n\"0.5\" 1\n}").contains("line 2"));
        assert!(text("{\n\"1\": 1,\n\"1.5\": 1\n}").contains("line 3"));
        assert!(text("{\n\"0.9\": 1\n}").contains("0.9"));
        assert!(text("").contains("not 1"));
    }
}
