//! Ranges of a register that tables stand in.

use std::collections::BTreeMap;

/// Which elements are in use: the first free range that is large enough is taken.
#[derive(Clone, Debug)]
pub struct Ranges {
    size: u32,
    /// First element to length.
    used: BTreeMap<u32, u32>,
}

impl Ranges {
    /// All of so many are free.
    pub fn new(size: u32) -> Self {
        Self { size, used: BTreeMap::new() }
    }

    /// Takes so many elements; `None` if no range is that long.
    pub fn take(&mut self, length: u32) -> Option<u32> {
        if length == 0 {
            return Some(0);
        }
        let mut at = 0;
        for (&first, &used) in &self.used {
            if first - at >= length {
                break;
            }
            at = first + used;
        }
        (self.size - at >= length).then(|| {
            self.used.insert(at, length);
            at
        })
    }

    /// Gives a range back.
    pub fn give(&mut self, first: u32, length: u32) {
        if length > 0 {
            self.used.remove(&first);
        }
    }

    /// Elements in use.
    pub fn in_use(&self) -> u32 {
        self.used.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap_and_come_back() {
        let mut ranges = Ranges::new(100);
        let [a, b, c] = [30, 40, 30].map(|n| ranges.take(n).expect("there is room"));
        assert_eq!((a, b, c, ranges.take(1)), (0, 30, 70, None));
        ranges.give(b, 40);
        assert_eq!((ranges.take(41), ranges.take(15), ranges.take(25)), (None, Some(30), Some(45)));
        assert_eq!((ranges.in_use(), ranges.take(0)), (100, Some(0)));
    }
}
