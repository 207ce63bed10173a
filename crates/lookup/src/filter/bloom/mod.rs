//! Bloom filters: plain for lookups, counting for the maintainer that also removes.

mod shared;
mod update;
mod view;

pub use shared::{BloomReader, BloomShared};
pub use update::{BloomFeed, BloomKind, BloomUpdate};
pub use view::BloomView;

use crate::memory::packed::Packed;
use crate::{BATCH, HashKey, Key};
use std::f64::consts::LN_2;

/// Bits of a counter. 15 stays 15: a counter that has overflowed is never counted down.
const COUNTER_BITS: u32 = 4;
const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;

/// More bits of one key than this let through less than 1 alien in 10^76.
const MAX_HASHES: u32 = 255;

/// Where the bits of a key are.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Places {
    key: HashKey,
    bits: u64,
    hashes: u32,
}

impl Places {
    fn new(keys: usize, bits_per_key: f64, seed: u64) -> Self {
        let bits = (keys as f64 * bits_per_key).ceil().max(64.0) as u64;
        let hashes = (bits_per_key * LN_2).round().clamp(1.0, f64::from(MAX_HASHES)) as u32;
        Self { key: HashKey::from_seed(seed), bits, hashes }
    }

    /// The bits of a hash: steps of a second hash, as two make as many as are needed (Kirsch,
    /// Mitzenmacher 2006). Steps that grow do not come round: with equal ones, 1 key in 10^7 has but
    /// a few different bits, which is all that a strict filter lets through.
    #[inline(always)]
    fn of(&self, hash: u64) -> impl Iterator<Item = u64> + use<> {
        let bits = self.bits;
        let (mut at, mut step) = (hash, self.key.mix(hash) | 1);
        (0..self.hashes).map(move |_| {
            let bit = ((u128::from(at) * u128::from(bits)) >> 64) as u64;
            at = at.wrapping_add(step);
            step = step.wrapping_add(0x9e37_79b9_7f4a_7c15);
            bit
        })
    }

    /// Asks for up to [`BATCH`] keys. Two bits of each are prefetched: half of the keys that are not
    /// in the set need no more than one, three quarters no more than two.
    #[inline(always)]
    fn ask<K: Key>(&self, filter: &Packed, keys: &[K], out: &mut [bool]) {
        let mut hashes = [0u64; BATCH];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = key.hash(&self.key);
            self.of(*hash).take(2).for_each(|bit| filter.fetch(bit, 1));
        }
        for (out, &hash) in out.iter_mut().zip(&hashes) {
            *out = self.of(hash).all(|bit| filter.bit(bit) != 0);
        }
    }

    /// `(1 - e^(-k n / m))^k` for n keys of k bits among m.
    fn false_positive_rate(&self, keys: usize) -> f64 {
        let (hashes, bits) = (f64::from(self.hashes), self.bits as f64);
        (1.0 - (-hashes * keys as f64 / bits).exp()).powf(hashes)
    }
}

/// A set that may say yes to a key that is not in it.
///
/// ```
/// use weir_lookup::Bloom;
///
/// let mut filter = Bloom::new(10_000, 10.0, 1); // 10 bits for each of 10,000 keys
/// for key in 0..10_000u64 {
///     filter.insert(&key);
/// }
/// assert!((0..10_000u64).all(|key| filter.contains(&key))); // always
/// assert!(filter.false_positive_rate() < 0.0085); // others pass at this rate
/// let passed = (1u64 << 40..(1 << 40) + 10_000).filter(|alien| filter.contains(alien)).count();
/// assert!(passed < 200);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Bloom {
    places: Places,
    len: usize,
    bits: Packed,
}

impl Bloom {
    /// A filter for `keys` keys with `bits_per_key` bits each, and the number of hashes that suits
    /// them best. `seed` makes every run with it the same.
    pub fn new(keys: usize, bits_per_key: f64, seed: u64) -> Self {
        let places = Places::new(keys, bits_per_key, seed);
        Self { places, len: 0, bits: Packed::new(places.bits) }
    }

    /// How many keys were added.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no key was added.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bits that each key sets.
    pub fn hashes(&self) -> u32 {
        self.places.hashes
    }

    /// Sets the bits of a key, which passes from now on.
    pub fn insert<K: Key>(&mut self, key: &K) {
        self.len += 1;
        for bit in self.places.of(key.hash(&self.places.key)) {
            self.bits.write(bit, 1, 1);
        }
    }

    /// Sets or clears one bit, as [`CountingBloom`] reports it.
    ///
    /// # Panics
    /// If there is no such bit.
    pub fn set(&mut self, bit: u64, value: bool) {
        assert!(bit < self.places.bits, "bit {bit} of {}", self.places.bits);
        self.bits.write(bit, 1, value.into());
    }

    /// Whether a key may be in the set; never `false` for one that is.
    #[inline]
    pub fn contains<K: Key>(&self, key: &K) -> bool {
        self.has(key.hash(&self.places.key))
    }

    #[inline(always)]
    fn has(&self, hash: u64) -> bool {
        self.places.of(hash).all(|bit| self.bits.bit(bit) != 0)
    }

    /// Asks for many keys at once.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn contains_batch<K: Key>(&self, keys: &[K], out: &mut [bool]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        for (keys, out) in keys.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            self.places.ask(&self.bits, keys, out);
        }
    }

    /// The chance that an unknown key is said to be in the set: `(1 - e^(-k n / m))^k`.
    pub fn false_positive_rate(&self) -> f64 {
        self.places.false_positive_rate(self.len)
    }

    /// Bytes of all allocations.
    pub fn bytes(&self) -> usize {
        self.bits.bytes()
    }
}

/// The maintainer of a [`Bloom`] filter: a counter of four bits for each of its bits, so that keys
/// can be removed. [`BloomFeed`] makes messages of what it reports.
///
/// ```
/// use weir_lookup::{Bloom, CountingBloom};
///
/// let mut counting = CountingBloom::new(1000, 10.0, 1);
/// let mut filter = Bloom::new(1000, 10.0, 1);
/// counting.insert(&7u64, |bit| filter.set(bit, true));
/// assert!(filter.contains(&7u64));
/// counting.remove(&7u64, |bit| filter.set(bit, false));
/// assert!(!filter.contains(&7u64));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct CountingBloom {
    places: Places,
    len: usize,
    counters: Packed,
}

impl CountingBloom {
    /// As [`Bloom::new`]; the two have the same shape.
    pub fn new(keys: usize, bits_per_key: f64, seed: u64) -> Self {
        let places = Places::new(keys, bits_per_key, seed);
        let counters = Packed::new(places.bits * u64::from(COUNTER_BITS));
        Self { places, len: 0, counters }
    }

    /// Number of keys that were inserted and not removed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn counter(&self, bit: u64) -> u64 {
        self.counters.read(bit * u64::from(COUNTER_BITS), COUNTER_BITS)
    }

    fn set_counter(&self, bit: u64, value: u64) {
        self.counters.write(bit * u64::from(COUNTER_BITS), COUNTER_BITS, value);
    }

    /// Adds a key that is not in the set; reports each bit of the filter that is set by that.
    pub fn insert<K: Key>(&mut self, key: &K, mut changed: impl FnMut(u64)) {
        self.len += 1;
        for bit in self.places.of(key.hash(&self.places.key)) {
            let counter = self.counter(bit);
            if counter == 0 {
                changed(bit);
            }
            self.set_counter(bit, (counter + 1).min(COUNTER_MAX));
        }
    }

    /// Removes a key that is in the set; reports each bit of the filter that is cleared by that.
    pub fn remove<K: Key>(&mut self, key: &K, mut changed: impl FnMut(u64)) {
        self.len -= 1;
        for bit in self.places.of(key.hash(&self.places.key)) {
            match self.counter(bit) {
                0 | COUNTER_MAX => {}
                counter => {
                    self.set_counter(bit, counter - 1);
                    if counter == 1 {
                        changed(bit);
                    }
                }
            }
        }
    }

    /// Whether a key may be in the set; never `false` for one that is.
    pub fn contains<K: Key>(&self, key: &K) -> bool {
        self.places.of(key.hash(&self.places.key)).all(|bit| self.counter(bit) != 0)
    }

    /// The same bits as a plain filter.
    pub fn to_bloom(&self) -> Bloom {
        let bits = Packed::new(self.places.bits);
        for bit in (0..self.places.bits).filter(|&bit| self.counter(bit) != 0) {
            bits.flip(bit);
        }
        Bloom { places: self.places, len: self.len, bits }
    }

    /// Bytes of all allocations.
    pub fn bytes(&self) -> usize {
        self.counters.bytes()
    }
}
