//! How many packets each of very many flows has sent, roughly, in little memory.

use weir_hash::{HashKey, scale};

/// Rows; an estimate is too high by more than `e / width` of all packets once in `e^4` times, about 2 %.
const ROWS: usize = 4;

/// A count-min sketch (Cormode and Muthukrishnan, 2005) with conservative update: what it says of a flow is
/// never too low.
#[derive(Clone, Debug)]
pub struct Sketch {
    keys: [HashKey; ROWS],
    width: u32,
    counters: Vec<u32>,
}

impl Sketch {
    /// With so many counters in each of four rows, one at least.
    pub fn new(width: u32, seed: u64) -> Self {
        let width = width.max(1);
        let keys = [0, 1, 2, 3].map(|row| HashKey::from_seed(seed ^ row << 56));
        Self { keys, width, counters: vec![0; width as usize * ROWS] }
    }

    fn places(&self, flow: u64) -> [usize; ROWS] {
        let mut places = [0; ROWS];
        for (row, (place, key)) in places.iter_mut().zip(&self.keys).enumerate() {
            let at = scale((key.hash_word(flow) >> 32) as u32, self.width);
            *place = row * self.width as usize + at as usize;
        }
        places
    }

    /// Adds packets of a flow; returns what it says of it then.
    pub fn add(&mut self, flow: u64, packets: u32) -> u32 {
        let places = self.places(flow);
        let least = places.iter().map(|&at| self.counters[at]).min().unwrap_or(0);
        let wanted = least.saturating_add(packets);
        for at in places {
            self.counters[at] = self.counters[at].max(wanted);
        }
        wanted
    }

    /// What it says of a flow: never less than the packets that were added.
    pub fn get(&self, flow: u64) -> u32 {
        self.places(flow).iter().map(|&at| self.counters[at]).min().unwrap_or(0)
    }

    /// Halves all counts: what was long ago counts less.
    pub fn halve(&mut self) {
        self.counters.iter_mut().for_each(|count| *count /= 2);
    }

    /// Bytes of the counters.
    pub fn bytes(&self) -> usize {
        self.counters.len() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::collections::HashMap;

    #[test]
    fn it_never_says_too_little_and_seldom_too_much() {
        let mut rng = ChaCha8Rng::seed_from_u64(14);
        let mut sketch = Sketch::new(2048, 7);
        let mut exact = HashMap::<u64, u32>::new();
        for _ in 0..200_000 {
            // A few heavy flows, many light ones.
            let flow = (1.0 / rng.random::<f64>()).min(1e9) as u64;
            *exact.entry(flow).or_default() += 1;
            sketch.add(flow, 1);
        }
        let bound = (std::f64::consts::E / 2048.0 * 200_000.0) as u32;
        let mut over = 0;
        for (flow, packets) in &exact {
            let said = sketch.get(*flow);
            assert!(said >= *packets, "{flow}: {said} of {packets}");
            over += usize::from(said > packets + bound);
        }
        assert!(over * 50 <= exact.len(), "{over} of {} are far too high", exact.len());
        let before = sketch.get(1);
        sketch.halve();
        assert_eq!(sketch.get(1), before / 2);
    }
}
