//! The exceptions as packets read them: the hash of each flow with its backend, six to a cache
//! line.
//!
//! ```text
//! | hash x 6, 8 B each | backend x 6, 2 B each | whether entries went past, 4 B |
//! ```
//! An entry stands in the line that its hash leads to, or in one of the next if that is full. A
//! search ends at a line that nothing went past, so it reads one line in nearly every case.

use crate::table::NO_BACKEND;
use weir_hash::scale;
use weir_lookup::{Error, prefetch};

/// Bytes of a line.
pub(super) const LINE_BYTES: usize = 64;
/// Entries of a line.
pub const LINE_ENTRIES: usize = 6;
/// Lines that a search reads at most.
pub const LINE_PROBES: usize = 8;
/// Entries for each line on average: more would send too many past their lines.
pub(super) const LOAD: usize = 3;

/// Lines for so many entries at first, in multiples of `unit`.
fn first_lines(entries: usize, unit: usize) -> usize {
    entries.div_ceil(LOAD).next_multiple_of(unit)
}

/// Lines to be tried after so many: of millions of entries one stands too far from its line at first, and
/// with a few more lines still.
fn more_lines(lines: usize, unit: usize) -> usize {
    (lines + lines / 8).max(lines + 1).next_multiple_of(unit)
}

/// Lines for so many entries at most, in multiples of `unit`: after four times more. There are less than two
/// entries for each of them then, on average. That eight lines in a row are filled all the same is to be
/// expected once in 10^9 lines.
pub(super) fn most_lines(entries: usize, unit: usize) -> usize {
    match first_lines(entries, unit) {
        0 => 0,
        first => (0..4).fold(first, |lines, _| more_lines(lines, unit)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    hashes: [u64; LINE_ENTRIES],
    backends: [u16; LINE_ENTRIES],
    past: u32,
}

const EMPTY: Line =
    Line { hashes: [0; LINE_ENTRIES], backends: [NO_BACKEND; LINE_ENTRIES], past: 0 };

impl Line {
    #[inline(always)]
    fn find(&self, hash: u64) -> Option<u16> {
        let at = (0..LINE_ENTRIES)
            .find(|&at| self.hashes[at] == hash && self.backends[at] != NO_BACKEND)?;
        Some(self.backends[at])
    }

    fn to_bytes(self) -> [u8; LINE_BYTES] {
        let mut bytes = [0; LINE_BYTES];
        let (hashes, rest) = bytes.split_at_mut(8 * LINE_ENTRIES);
        let (backends, past) = rest.split_at_mut(2 * LINE_ENTRIES);
        for (bytes, hash) in hashes.chunks_exact_mut(8).zip(self.hashes) {
            bytes.copy_from_slice(&hash.to_le_bytes());
        }
        for (bytes, backend) in backends.chunks_exact_mut(2).zip(self.backends) {
            bytes.copy_from_slice(&backend.to_le_bytes());
        }
        past.copy_from_slice(&self.past.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; LINE_BYTES]) -> Self {
        let (hashes, rest) = bytes.as_chunks::<8>().0.split_at(LINE_ENTRIES);
        let rest = rest.as_flattened();
        let (backends, past) = rest.as_chunks::<2>().0.split_at(LINE_ENTRIES);
        let past = past.as_flattened();
        Self {
            hashes: std::array::from_fn(|at| u64::from_le_bytes(hashes[at])),
            backends: std::array::from_fn(|at| u16::from_le_bytes(backends[at])),
            past: u32::from_le_bytes([past[0], past[1], past[2], past[3]]),
        }
    }
}

/// Hash to backend, for the hashes that were put in; exact as far as hashes tell flows apart. For
/// IPv4 they do; of two IPv6 flows once in 2^64.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Lines {
    lines: Vec<Line>,
}

impl Lines {
    /// `unit`: lines come in multiples of so many.
    ///
    /// # Errors
    /// Two entries of one hash.
    pub fn build(entries: &[(u64, u16)], unit: usize) -> Result<Self, Error> {
        let mut lines = first_lines(entries.len(), unit);
        loop {
            if let Some(built) = Self::place(entries, lines)? {
                return Ok(built);
            }
            lines = more_lines(lines, unit);
        }
    }

    /// `None` if an entry would stand too far from its line.
    fn place(entries: &[(u64, u16)], count: usize) -> Result<Option<Self>, Error> {
        let mut built = Self { lines: vec![EMPTY; count] };
        for (second, &(hash, backend)) in entries.iter().enumerate() {
            if built.get(hash).is_some() {
                let first = entries.iter().position(|(other, _)| *other == hash).unwrap_or(0);
                return Err(Error::DuplicateKey { first, second });
            }
            let mut at = built.home(hash);
            let mut placed = false;
            for _ in 0..LINE_PROBES {
                let line = &mut built.lines[at];
                if let Some(free) = line.backends.iter().position(|b| *b == NO_BACKEND) {
                    (line.hashes[free], line.backends[free]) = (hash, backend);
                    placed = true;
                    break;
                }
                line.past = 1;
                at = built.after(at);
            }
            if !placed {
                return Ok(None);
            }
        }
        Ok(Some(built))
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        scale((hash >> 32) as u32, self.lines.len() as u32) as usize
    }

    #[inline(always)]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.lines.len() { 0 } else { at + 1 }
    }

    /// The backend of a hash.
    #[inline]
    pub fn get(&self, hash: u64) -> Option<u16> {
        let mut at = self.home(hash);
        for _ in 0..LINE_PROBES {
            let line = self.lines.get(at)?;
            if let Some(backend) = line.find(hash) {
                return Some(backend);
            }
            if line.past == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Asks for the line that [`get`](Self::get) reads first.
    #[inline(always)]
    pub fn fetch(&self, hash: u64) {
        prefetch(&self.lines, self.home(hash));
    }

    /// What was put in.
    pub fn entries(&self) -> impl Iterator<Item = (u64, u16)> {
        let pairs = self.lines.iter().flat_map(|line| line.hashes.into_iter().zip(line.backends));
        pairs.filter(|(_, backend)| *backend != NO_BACKEND)
    }

    pub fn bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }

    /// Shows the lines as they stand in memory.
    pub fn each(&self, mut visit: impl FnMut(&[u8])) {
        self.lines.iter().for_each(|line| visit(&line.to_bytes()));
    }

    /// The inverse; the bytes may be anything.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self { lines: bytes.as_chunks().0.iter().map(Line::from_bytes).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_hash::HashKey;

    /// What was put in is found, and nothing else; bytes are the lines again; lines overflow.
    #[test]
    fn lines_are_an_exact_map_and_survive_their_bytes() {
        let key = HashKey::from_seed(4);
        let mut overflowed = 0;
        for count in [0, 1, 5, 6, 7, 100, 3_000, 50_000] {
            let entry = |n: u64| (key.hash_word(n), (n % 1_000) as u16);
            let entries: Vec<_> = (0..count).map(entry).collect();
            let lines = Lines::build(&entries, 64).unwrap();
            for (hash, backend) in &entries {
                assert_eq!(lines.get(*hash), Some(*backend));
            }
            let (mut all, mut wanted) = (lines.entries().collect::<Vec<_>>(), entries.clone());
            all.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(all, wanted);
            for n in count..count + 1_000 {
                assert_eq!(lines.get(entry(n).0), None);
            }
            overflowed += lines.lines.iter().filter(|line| line.past > 0).count();
            let mut bytes = Vec::new();
            lines.each(|line| bytes.extend_from_slice(line));
            assert_eq!((bytes.len(), Lines::from_bytes(&bytes)), (lines.bytes(), lines));
        }
        assert!(overflowed > 100);
        let twice = [(7, 1), (8, 1), (7, 2)];
        let duplicate = Err(Error::DuplicateKey { first: 0, second: 2 });
        assert_eq!(Lines::build(&twice, 64), duplicate);
    }
}
