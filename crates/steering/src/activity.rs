//! Which flows sent something lately; the twin of `mark` in `bpf/report.h`.
//!
//! What is *armed* has a lane of its own: a word holds three of them, each a tag of 20 bits and a bit
//! that the flow's packets set. The control plane arms the flows that it knows, at one of two words
//! that a flow's hash names, so packets of all other flows, however many, set none of these bits but
//! one in a million times. Those set two bits in a word of another array, *strangers*, where a flow is
//! looked for that was not armed yet.
//!
//! Both are kept twice, for the period that is and the one before. [`Side`] is how packets find theirs.
//!
//! In front of both stands a small filter of the flows that are *watched*: packets of others mark
//! nothing and read neither. The control plane puts those in whose silence counts; a flow that sent
//! something a while ago is not looked for again before it could be dead. What is reported, first packets
//! and last ones, puts its flow in by itself.

/// Lanes of a word.
const LANES: usize = 3;
/// Flows that move so that another one finds a lane, before that one goes without.
const MOST_MOVES: usize = 256;
/// Bits of a tag.
pub const TAG_BITS: u32 = 20;
/// A one in each lane.
pub const LANE_ONES: u64 = 1 | 1 << (TAG_BITS + 1) | 1 << (2 * (TAG_BITS + 1));
/// The tags of all lanes.
pub const LANE_TAGS: u64 = LANE_ONES * ((1 << TAG_BITS) - 1);
/// The bits that packets set.
pub const LANE_ACTIVE: u64 = LANE_ONES << TAG_BITS;

/// The fewest words.
pub const FEWEST_WORDS: usize = 64;

/// The words that packets mark: those from `first` on, of which there are `mask + 1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Side {
    /// The first word.
    pub first: u32,
    /// Their number less one; a power of two less one.
    pub mask: u32,
}

impl Side {
    /// As packets load it.
    pub fn to_word(self) -> u64 {
        u64::from(self.first) << 32 | u64::from(self.mask)
    }

    /// What packets load.
    pub fn from_word(word: u64) -> Self {
        Self { first: (word >> 32) as u32, mask: word as u32 }
    }

    /// Number of words.
    pub fn words(self) -> usize {
        self.mask as usize + 1
    }
}

/// The tag of a flow in every lane. No tag is 0, which is that of a lane that nobody has.
fn tags_of(hash: u64) -> u64 {
    LANE_ONES * (hash >> (64 - TAG_BITS)).max(1)
}

/// The two words of a flow, from the first of its side.
fn places(hash: u64, mask: u32) -> [usize; 2] {
    [hash, hash >> 22].map(|hash| (hash as u32 & mask) as usize)
}

/// The bits for activity of the lanes with these tags.
fn lane_of(word: u64, tags: u64) -> u64 {
    !(((word ^ tags) & LANE_TAGS) + LANE_TAGS) & LANE_ACTIVE
}

/// The word of a stranger, and its bits there.
fn stranger(hash: u64, words: usize) -> (usize, u64) {
    (((hash >> 8) as u32) as usize & (words - 1), 1 << (hash >> 58) | 1 << (hash >> 52 & 63))
}

/// Marks a flow: in its lane if it is armed, and else among the strangers.
pub fn mark(words: &mut [u64], side: Side, strangers: &mut [u64], hash: u64) {
    let tags = tags_of(hash);
    for place in places(hash, side.mask) {
        let word = &mut words[side.first as usize + place];
        let lane = lane_of(*word, tags);
        if lane != 0 {
            *word |= lane;
            return;
        }
    }
    let (word, bits) = stranger(hash, strangers.len());
    strangers[word] |= bits;
}

/// Words of the largest filter of flows that are watched: half a megabyte.
pub const MOST_WATCHED_WORDS: usize = 1 << 16;

/// The filter's word of a flow, of so many less one, and its bits there.
#[inline(always)]
pub fn watch_bits(hash: u64, mask: u32) -> (usize, u64) {
    (((hash >> 12) as u32 & mask) as usize, 1 << (hash >> 34 & 63) | 1 << (hash >> 40 & 63))
}

/// Words of a filter that are good for so many flows: 8 to 16 bits for each, so that one in 20 of the
/// others, or fewer, is taken for one of them.
pub fn watched_words_for(flows: usize) -> usize {
    (flows / 8).next_power_of_two().clamp(FEWEST_WORDS, MOST_WATCHED_WORDS)
}

/// Whether a flow is armed, by what `word` reads.
pub fn is_armed(word: impl Fn(usize) -> u64, side: Side, hash: u64) -> bool {
    let words = places(hash, side.mask).map(|at| word(side.first as usize + at));
    words.into_iter().any(|word| lane_of(word, tags_of(hash)) != 0)
}

/// Whether a flow is marked, by what `word` and `stranger` read: of so many words of lanes, from the
/// first of a side, and so many of strangers.
pub fn is_marked(
    word: impl Fn(usize) -> u64,
    words: usize,
    stranger_word: impl Fn(usize) -> u64,
    strangers: usize,
    hash: u64,
) -> bool {
    let tags = tags_of(hash);
    let words = places(hash, words as u32 - 1).map(word);
    match words.map(|word| (word, lane_of(word, tags))).into_iter().find(|(_, lane)| *lane != 0) {
        Some((word, lane)) => word & lane != 0,
        None => {
            let (at, bits) = stranger(hash, strangers);
            stranger_word(at) & bits == bits
        }
    }
}

/// Words that are good for so many flows, if there are no more than `most`: at most 1.5 flows for
/// each, half of its lanes.
pub fn words_for(flows: usize, most: usize) -> usize {
    (flows * 2 / 3).next_power_of_two().clamp(FEWEST_WORDS.min(most), most)
}

/// Words with lanes for flows, by their hashes: for all of them up to 2.5 for each word, as a cuckoo
/// table with two choices of three has room for; beyond that, for those that come first.
pub fn arm(words: usize, hashes: impl Iterator<Item = u64>) -> Vec<u64> {
    let hashes: Vec<u64> = hashes.collect();
    let moves = if hashes.len() > words * 5 / 2 { 0 } else { MOST_MOVES };
    let mask = words as u32 - 1;
    let mut armed = vec![0; words];
    // Whose lanes these are: numbers of flows, from 1.
    let mut owners = vec![[0u32; LANES]; words];
    for flow in 0..hashes.len() {
        let (mut flow, mut from) = (flow, usize::MAX);
        for step in 0..=moves {
            let places = places(hashes[flow], mask);
            let free = places.into_iter().find_map(|at| {
                owners[at].iter().position(|owner| *owner == 0).map(|lane| (at, lane))
            });
            // Who has a lane that is taken goes to its other word.
            let other = places[usize::from(places[0] == from)];
            let (at, lane) = free.unwrap_or((other, step % LANES));
            if free.is_none() && step == moves {
                break;
            }
            let owner = std::mem::replace(&mut owners[at][lane], flow as u32 + 1);
            let shift = lane as u32 * (TAG_BITS + 1);
            let tag = tags_of(hashes[flow]) / LANE_ONES;
            armed[at] = armed[at] & !(((1 << TAG_BITS) - 1) << shift) | tag << shift;
            if owner == 0 {
                break;
            }
            (flow, from) = (owner as usize - 1, at);
        }
    }
    armed
}

/// The marks of a period that is over.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    words: Vec<u64>,
    strangers: Vec<u64>,
}

impl Marks {
    /// The words of lanes and those of strangers, a power of two of each.
    pub fn new(words: Vec<u64>, strangers: Vec<u64>) -> Self {
        Self { words, strangers }
    }

    /// The words of lanes.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The words of strangers.
    pub fn strangers(&self) -> &[u64] {
        &self.strangers
    }

    /// Whether a flow with this hash may have sent something.
    pub fn has(&self, hash: u64) -> bool {
        if self.words.is_empty() {
            return false;
        }
        let (words, strangers) = (self.words.len(), self.strangers.len());
        is_marked(|at| self.words[at], words, |at| self.strangers[at], strangers, hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn armed_flows_are_told_from_a_flood() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let known: Vec<u64> = (0..30_000).map(|_| rng.random()).collect();
        let size = words_for(known.len(), 1 << 20);
        assert_eq!(size, 32_768);
        let mut words = arm(size, known.iter().copied());
        let side = Side { first: 0, mask: size as u32 - 1 };
        assert_eq!(Side::from_word(side.to_word()), side);
        let mut strangers = vec![0; 1 << 14];
        for hash in &known[..15_000] {
            mark(&mut words, side, &mut strangers, *hash);
        }
        // Ten strangers for each word.
        let mut full = strangers.clone();
        for _ in 0..size * 10 {
            mark(&mut words, side, &mut full, rng.random());
        }
        let calm = Marks::new(words.clone(), strangers);
        let flooded = Marks::new(words, full);
        assert!(known[..15_000].iter().all(|hash| calm.has(*hash) && flooded.has(*hash)));
        let kept = |marks: &Marks| known[15_000..].iter().filter(|hash| marks.has(**hash)).count();
        assert_eq!(kept(&calm), 0);
        // One in a million for each stranger that asks at its word.
        assert!(kept(&flooded) < 10, "{}", kept(&flooded));
        // All have lanes, also at nearly two flows for each word.
        for words in [size, size / 2] {
            let armed = arm(words, known.iter().copied());
            let side = Side { first: 0, mask: words as u32 - 1 };
            assert!(known.iter().all(|hash| is_armed(|at| armed[at], side, *hash)));
        }
    }

    #[test]
    fn lanes_do_not_touch_each_other() {
        assert_eq!((LANE_TAGS | LANE_ACTIVE).count_ones(), LANES as u32 * (TAG_BITS + 1));
        // Three flows of one word, and a fourth that finds no room in either of its two.
        let hashes = [1u64, 2, 3, 4].map(|tag| tag << 44);
        let mut words = arm(1, hashes.into_iter());
        let side = Side { first: 0, mask: 0 };
        let mut strangers = vec![0; 64];
        for hash in [hashes[1], hashes[3]] {
            mark(&mut words, side, &mut strangers, hash);
        }
        let marks = Marks::new(words, strangers);
        assert_eq!(hashes.map(|hash| marks.has(hash)), [false, true, false, true]);
        assert_eq!(marks.strangers().iter().filter(|word| **word != 0).count(), 1);
    }
}
