//! Bytes of whole Filtable views.

use super::slots::Slots;
use super::view::FiltableView;
use crate::FixedKey;
use crate::cuckoo::Cuckoo;
use crate::memory::packed::Packed;
use crate::message::{BitReader, BitWriter, Kind, Message, MessageError, out_of_range, seal};

/// Bytes before the slots: two widths, zeros, buckets, hash key, keys of level 2.
const HEADER: usize = 48;

impl<K: FixedKey> FiltableView<K> {
    /// Bytes of a key of level 2 with its value.
    fn entry_bytes(value_bits: u32) -> usize {
        K::BYTES + value_bits.div_ceil(8) as usize
    }

    /// The whole view in the common format ([`crate::message`]). Body: widths of a digest and of a
    /// value (a byte each), two zeros, number of buckets (4 bytes), hash key (32), number of keys of
    /// level 2 (8); the slots, digest and value without gaps; the keys of level 2 with their values,
    /// each in whole bytes, in ascending order of these bytes. Equal views have equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (digest_bits, value_bits) = self.widths();
        let mut body = vec![digest_bits as u8, value_bits as u8, 0, 0];
        body.extend(self.slots.buckets.to_le_bytes());
        body.extend(self.key.to_bytes());
        body.extend((self.level2.len() as u64).to_le_bytes());
        let bits = Slots::bits_for(self.slots.buckets, digest_bits, value_bits);
        body.extend(self.slots.packed.to_bytes(bits));
        let entry = |(key, value): (K, u64)| {
            let mut out = BitWriter::default();
            out.put_bytes(key.to_bytes().as_ref());
            out.put(value, value_bits);
            out.finish()
        };
        let mut entries: Vec<Vec<u8>> = self.level2.iter().map(entry).collect();
        entries.sort_unstable();
        entries.iter().for_each(|entry| body.extend(entry));
        seal(Kind::FILTABLE_VIEW, self.table, self.number, &body)
    }

    /// Reads a view that fills `bytes`.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        let short = || MessageError::Length { bytes: bytes.len() };
        let Message { table, number, body, .. } =
            Message::read(bytes)?.expect(Kind::FILTABLE_VIEW)?;
        let (header, rest) = body.split_at_checked(HEADER).ok_or_else(short)?;
        let mut header = BitReader::new(header);
        let (digest_bits, value_bits) = (header.get(8)? as u32, header.get(8)? as u32);
        let widths = (1..=32).contains(&digest_bits) && (1..=64).contains(&value_bits);
        if header.get(16)? != 0 || !widths {
            return out_of_range("the width of a slot");
        }
        let buckets = header.get(32)? as u32;
        let key = header.hash_key()?;
        let count = header.get(64)?;
        let bits = Slots::bits_for(buckets, digest_bits, value_bits);
        let slot_bytes = usize::try_from(bits.div_ceil(8)).map_err(|_| short())?;
        let (level1, level2) = rest.split_at_checked(slot_bytes).ok_or_else(short)?;
        if buckets == 0
            || count as u128 * Self::entry_bytes(value_bits) as u128 != level2.len() as u128
        {
            return Err(short());
        }
        let slots = read_slots((buckets, digest_bits, value_bits), level1)?;
        let level2 = Self::read_level2(table, value_bits, level2)?;
        Ok(Self { table, number, key, slots, level2 })
    }

    /// The keys of level 2, which must be different and in order.
    fn read_level2(table: u64, value_bits: u32, bytes: &[u8]) -> Result<Cuckoo<K>, MessageError> {
        let entries = bytes.chunks_exact(Self::entry_bytes(value_bits));
        let mut level2 = Cuckoo::new(value_bits, entries.len().max(16), table);
        let mut before: &[u8] = &[];
        for entry in entries {
            let mut input = BitReader::new(entry);
            let (key, value) = (input.key()?, input.get(value_bits)?);
            input.end()?;
            if before >= entry || level2.insert(key, value).is_some() {
                return out_of_range("a key of level 2");
            }
            before = entry;
        }
        Ok(level2)
    }
}

/// Slots from exactly as many bytes as they need. An empty one has value 0.
fn read_slots(
    (buckets, digest_bits, value_bits): (u32, u32, u32),
    bytes: &[u8],
) -> Result<Slots, MessageError> {
    let bits = Slots::bits_for(buckets, digest_bits, value_bits);
    let empty = MessageError::OutOfRange { what: "an empty slot" };
    let packed = Packed::from_bytes(bytes, bits).ok_or(empty.clone())?;
    let slots = Slots { buckets, digest_bits, value_bits, packed };
    let is_odd = |(bucket, slot)| slots.digest(bucket, slot) == 0 && slots.value(bucket, slot) != 0;
    if slots.all().any(is_odd) { Err(empty) } else { Ok(slots) }
}
