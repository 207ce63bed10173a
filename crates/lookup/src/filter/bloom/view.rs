//! The lookup face of a fed Bloom filter.

use super::update::{BloomKind, BloomUpdate};
use super::{Bloom, Places};
use crate::Key;
use crate::memory::packed::Packed;
use crate::message::{BitReader, Kind, Message, MessageError, check_next, out_of_range, seal};

/// Bytes of a snapshot before its bits.
const HEADER: usize = 52;

/// A [`Bloom`] filter that follows a [`BloomFeed`](super::BloomFeed) by messages.
///
/// ```
/// use weir_lookup::{BloomFeed, BloomView};
///
/// let mut feed = BloomFeed::new(1000, 10.0, 1);
/// feed.insert(&7u64);
/// let view = BloomView::from_bytes(&feed.view().to_bytes())?;
/// assert!(view.contains(&7u64));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct BloomView {
    pub(super) table: u64,
    pub(super) number: u64,
    pub(super) bloom: Bloom,
}

impl BloomView {
    pub(super) fn new(table: u64, number: u64, bloom: Bloom) -> Self {
        Self { table, number, bloom }
    }

    /// The filter as it is now.
    pub fn bloom(&self) -> &Bloom {
        &self.bloom
    }

    /// Whether a key may be in the set; never `false` for one that is.
    #[inline]
    pub fn contains<K: Key>(&self, key: &K) -> bool {
        self.bloom.contains(key)
    }

    /// As [`Bloom::contains_batch`].
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn contains_batch<K: Key>(&self, keys: &[K], out: &mut [bool]) {
        self.bloom.contains_batch(keys, out);
    }

    /// The number of the last update that it has seen.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The filter that it belongs to.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// Bytes of all allocations.
    pub fn bytes(&self) -> usize {
        self.bloom.bytes()
    }

    /// Applies the next update.
    ///
    /// # Errors
    /// [`MessageError`] if the update belongs to another filter, is not the next one, or does not
    /// fit; the view is unchanged then.
    pub fn apply(&mut self, update: &BloomUpdate) -> Result<(), MessageError> {
        let Bloom { places, len, ref bits } = self.bloom;
        check(update, (self.table, self.number), (&places, len, bits))?;
        if let Some(whole) = &update.whole {
            self.clone_from(whole);
            return Ok(());
        }
        update.bits.iter().for_each(|&bit| self.bloom.bits.flip(bit));
        self.bloom.len = len_after(update, len);
        self.number = update.number;
        Ok(())
    }

    /// Reads an update from bytes and applies it.
    ///
    /// # Errors
    /// As [`BloomUpdate::from_bytes`] and [`apply`](Self::apply).
    pub fn apply_bytes(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        self.apply(&BloomUpdate::from_bytes(bytes)?)
    }

    /// The whole view in the common format ([`crate::message`]). Body: bits of a key (a byte),
    /// three zeros, number of bits (8 bytes), hash key (32), number of keys (8), the bits.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Bloom { places: Places { key, bits: count, hashes }, len, ref bits } = self.bloom;
        let mut body = vec![hashes as u8, 0, 0, 0];
        body.extend(count.to_le_bytes());
        body.extend(key.to_bytes());
        body.extend((len as u64).to_le_bytes());
        body.extend(bits.to_bytes(count));
        seal(Kind::BLOOM_VIEW, self.table, self.number, &body)
    }

    /// Reads a view that fills `bytes`.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        let short = || MessageError::Length { bytes: bytes.len() };
        let Message { table, number, body, .. } = Message::read(bytes)?.expect(Kind::BLOOM_VIEW)?;
        let (header, rest) = body.split_at_checked(HEADER).ok_or_else(short)?;
        let mut header = BitReader::new(header);
        let (hashes, zero, bits) = (header.get(8)? as u32, header.get(24)?, header.get(64)?);
        if hashes == 0 || bits == 0 || zero != 0 {
            return out_of_range("the shape of a filter");
        }
        let key = header.hash_key()?;
        let len = usize::try_from(header.get(64)?).map_err(|_| short())?;
        let filter = Packed::from_bytes(rest, bits).ok_or_else(short)?;
        let bloom = Bloom { places: Places { key, bits, hashes }, len, bits: filter };
        Ok(Self { table, number, bloom })
    }
}

/// Whether an update can follow in a filter with this name, last number and state.
pub(super) fn check(
    update: &BloomUpdate,
    (table, number): (u64, u64),
    (places, len, bits): (&Places, usize, &Packed),
) -> Result<(), MessageError> {
    check_next((update.table, update.number), (table, number))?;
    if let Some(whole) = &update.whole {
        return match (whole.table, whole.number) == (table, update.number) {
            true => Ok(()),
            false => out_of_range("the view of a rebuild"),
        };
    }
    let before = u64::from(update.kind == BloomKind::Remove);
    let differ = (1..update.bits.len()).all(|at| !update.bits[..at].contains(&update.bits[at]));
    let fits = |&bit: &u64| bit < places.bits && bits.bit(bit) == before;
    // No more bits than a key has, which keeps the comparison of each with each short.
    if update.bits.len() > places.hashes as usize || !differ || !update.bits.iter().all(fits) {
        return out_of_range("a bit");
    }
    if before == 1 && len == 0 {
        return out_of_range("the number of keys");
    }
    Ok(())
}

/// The number of keys after an update.
pub(super) fn len_after(update: &BloomUpdate, len: usize) -> usize {
    if update.kind == BloomKind::Remove { len - 1 } else { len.saturating_add(1) }
}
