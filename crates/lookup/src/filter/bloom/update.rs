//! Bloom filters in step: a maintainer that counts, and messages that keep views equal to it.

use super::view::BloomView;
use super::{Bloom, CountingBloom};
use crate::message::{BitReader, BitWriter, Kind, Message, MessageError, out_of_range, seal};
use crate::{HashKey, Key};

/// What an update is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum BloomKind {
    /// A key came: bits are set.
    Insert = 0,
    /// A key went: bits are cleared.
    Remove = 1,
    /// The filter was built anew; the message holds the whole view.
    Rebuild = 2,
}

/// One change of a [`BloomFeed`], for its views. Messages of a filter are numbered without gaps;
/// bytes carry a digest.
///
/// ```
/// use weir_lookup::{BloomFeed, BloomUpdate};
///
/// let mut feed = BloomFeed::new(1000, 10.0, 1);
/// let mut view = feed.view();
/// feed.insert(&7u64);
/// view.apply(&BloomUpdate::from_bytes(&feed.update().to_bytes())?)?;
/// assert!(view.contains(&7u64));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct BloomUpdate {
    pub(super) table: u64,
    pub(super) number: u64,
    pub(super) kind: BloomKind,
    /// Bits that are inverted.
    pub(super) bits: Vec<u64>,
    pub(super) whole: Option<Box<BloomView>>,
}

impl BloomUpdate {
    fn new(table: u64, number: u64, kind: BloomKind) -> Self {
        Self { table, number, kind, bits: Vec::new(), whole: None }
    }

    /// What the update is about.
    pub fn kind(&self) -> BloomKind {
        self.kind
    }

    /// The number of the message; the first change of a filter has number 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The filter that it belongs to.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// How many bits are inverted.
    pub fn bits(&self) -> usize {
        self.bits.len()
    }

    /// The message's bytes in the common format ([`crate::message`]), with a bit-packed body: kind
    /// (2 bits), width w of a bit's number (7; 0 in a rebuild, with a snapshot from the next whole
    /// byte on), how many bits are inverted (11), and these (w each).
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = BitWriter::default();
        out.put(self.kind as u64, 2);
        if let Some(whole) = &self.whole {
            out.put(0, 14);
            out.put_bytes(&whole.to_bytes());
        } else {
            let largest = self.bits.iter().copied().max().unwrap_or(0);
            let width = (64 - largest.leading_zeros()).max(1);
            out.put(width.into(), 7);
            out.put(self.bits.len() as u64, 11);
            self.bits.iter().for_each(|&bit| out.put(bit, width));
        }
        seal(Kind::BLOOM_UPDATE, self.table, self.number, &out.finish())
    }

    /// Reads a message that fills `bytes`.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with the bytes. Whether a message fits a view is checked
    /// when it is applied.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        let message = Message::read(bytes)?.expect(Kind::BLOOM_UPDATE)?;
        let mut input = BitReader::new(message.body);
        let kind = match input.get(2)? {
            0 => BloomKind::Insert,
            1 => BloomKind::Remove,
            2 => BloomKind::Rebuild,
            _ => return out_of_range("a message's kind"),
        };
        let mut update = Self::new(message.table, message.number, kind);
        let width = input.get(7)? as u32;
        if kind == BloomKind::Rebuild {
            if width != 0 || input.get(7)? != 0 {
                return out_of_range("the head of a rebuild");
            }
            update.whole = Some(Box::new(BloomView::from_bytes(input.rest())?));
            return Ok(update);
        }
        if !(1..=64).contains(&width) {
            return out_of_range("the width of a bit's number");
        }
        for _ in 0..input.get(11)? {
            update.bits.push(input.get(width)?);
        }
        input.end()?;
        Ok(update)
    }
}

/// The maintainer of [`BloomView`]s: counters, and a message for each change.
///
/// It knows no keys. Whoever has them builds it anew ([`rebuild`](Self::rebuild)) when there are
/// more than it was made for, which makes it say yes to more and more aliens.
///
/// ```
/// use weir_lookup::BloomFeed;
///
/// let mut feed = BloomFeed::new(1000, 10.0, 1);
/// let mut view = feed.view();
/// feed.insert(&7u64);
/// view.apply_bytes(&feed.update().to_bytes())?;
/// assert!(view.contains(&7u64));
/// feed.remove(&7u64);
/// view.apply_bytes(&feed.update().to_bytes())?;
/// assert!(!view.contains(&7u64));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BloomFeed {
    counting: CountingBloom,
    bits_per_key: f64,
    capacity: usize,
    update: BloomUpdate,
}

impl BloomFeed {
    /// A feed without keys, made for so many with so many bits each; see [`Bloom::new`].
    pub fn new(keys: usize, bits_per_key: f64, seed: u64) -> Self {
        let counting = CountingBloom::new(keys, bits_per_key, seed);
        let table = HashKey::from_seed(seed).hash_word(!(keys as u64));
        let update = BloomUpdate::new(table, 0, BloomKind::Insert);
        Self { counting, bits_per_key, capacity: keys, update }
    }

    /// Number of keys that were inserted and not removed.
    pub fn len(&self) -> usize {
        self.counting.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.counting.is_empty()
    }

    /// How many keys it was made for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether a key may be in the set; never `false` for one that is.
    pub fn contains<K: Key>(&self, key: &K) -> bool {
        self.counting.contains(key)
    }

    fn begin(&mut self, kind: BloomKind) {
        self.update.number += 1;
        self.update.kind = kind;
        self.update.bits.clear();
        self.update.whole = None;
    }

    /// Adds a key that is not in the set.
    pub fn insert<K: Key>(&mut self, key: &K) {
        self.begin(BloomKind::Insert);
        self.counting.insert(key, |bit| self.update.bits.push(bit));
    }

    /// Removes a key that is in the set.
    pub fn remove<K: Key>(&mut self, key: &K) {
        self.begin(BloomKind::Remove);
        self.counting.remove(key, |bit| self.update.bits.push(bit));
    }

    /// Builds the filter anew for `capacity` keys out of the keys of the set, under another hash
    /// key.
    pub fn rebuild<K: Key>(&mut self, capacity: usize, keys: impl Iterator<Item = K>) {
        self.begin(BloomKind::Rebuild);
        let seed = self.update.table ^ self.update.number;
        let seed = HashKey::from_seed(seed).hash_word(0);
        self.capacity = capacity;
        self.counting = CountingBloom::new(capacity, self.bits_per_key, seed);
        keys.for_each(|key| self.counting.insert(&key, |_| ()));
        self.update.whole = Some(Box::new(self.view()));
    }

    /// The message of the last change.
    pub fn update(&self) -> &BloomUpdate {
        &self.update
    }

    /// The filter as a view, which follows the messages from the next one on.
    pub fn view(&self) -> BloomView {
        BloomView::new(self.update.table, self.update.number, self.counting.to_bloom())
    }

    /// The filter of which views are made.
    pub fn to_bloom(&self) -> Bloom {
        self.counting.to_bloom()
    }

    /// The chance that an unknown key is said to be in the set.
    pub fn false_positive_rate(&self) -> f64 {
        self.counting.places.false_positive_rate(self.len())
    }

    /// Bytes of all allocations, views not counted.
    pub fn bytes(&self) -> usize {
        self.counting.bytes()
    }
}
