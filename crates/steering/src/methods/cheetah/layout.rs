//! The upper half of a timestamp, bit by bit, and how a number is hidden in it.

use weir_hash::{HashKey, Key};

/// Bits of a timestamp that the cookie and the version take.
pub const FIELD_BITS: u32 = 16;

/// The lower half of the TSecr of a SYN that tells its backend the cookie.
pub const TOLD_MARK: u16 = 0x7765;
/// And the top bit of its upper half.
pub const TOLD: u32 = 1 << 31;

/// The TSecr by which a SYN tells its backend the cookie. The field means nothing without ACK
/// (RFC 7323 section 3.2), and senders leave it 0; the mark says that it is no other sender's.
pub const fn told(cookie: u16) -> u32 {
    TOLD | (cookie as u32) << FIELD_BITS | TOLD_MARK as u32
}

/// What is wrong with a layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// There are one or two version bits.
    #[error("{0} version bits: the repair of timestamps needs 1 or 2")]
    Versions(u32),
    /// The front part does not fit.
    #[error("{front} bits for the front part do not fit beside {versions} version bits in 16")]
    TooManyBits {
        /// Bits of the front part that were asked for.
        front: u32,
        /// Bits of the version that were asked for.
        versions: u32,
    },
}

/// How the 16 bits are shared out:
/// ```text
/// 31        version bits, 1 or 2: which upper half the timestamp really has
/// ..16      front part: hidden number of a server, or of a stateful balancer
///           back part: hidden index into that balancer's table
/// 15..0     lower half of the timestamp, untouched
/// ```
/// All bits are used. Where a number needs fewer, the rest rejects forged cookies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    versions: u32,
    front: u32,
}

/// A timestamp taken apart. All values are right-aligned and unsigned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Parts {
    /// Version: 0 or 1, or 0 to 3.
    pub version: u8,
    /// Front part of the cookie: a hidden number of a server or balancer.
    pub front: u16,
    /// Back part of the cookie: a hidden index.
    pub back: u16,
    /// Lower half of the timestamp, as the backend sent it.
    pub low: u16,
}

impl Layout {
    /// A layout of `versions` version bits and `front` bits of front part; the rest is back part.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn new(versions: u32, front: u32) -> Result<Self, LayoutError> {
        if !(1..=2).contains(&versions) {
            return Err(LayoutError::Versions(versions));
        }
        if front > FIELD_BITS - versions {
            return Err(LayoutError::TooManyBits { front, versions });
        }
        Ok(Self { versions, front })
    }

    /// The paper's stateless balancer: one version bit, 15 bits of server.
    pub const fn stateless() -> Self {
        Self { versions: 1, front: FIELD_BITS - 1 }
    }

    /// The paper's stateful balancer on its own: one version bit, 15 bits of index.
    pub const fn stateful() -> Self {
        Self { versions: 1, front: 0 }
    }

    /// Number of bits of the version, 1 or 2.
    pub const fn version_bits(&self) -> u32 {
        self.versions
    }

    /// Number of bits of the front part, 0 to 15.
    pub const fn front_bits(&self) -> u32 {
        self.front
    }

    /// Number of bits of the back part, 0 to 15.
    pub const fn back_bits(&self) -> u32 {
        FIELD_BITS - self.versions - self.front
    }

    /// Takes a timestamp apart.
    #[inline]
    pub const fn split(&self, timestamp: u32) -> Parts {
        // Unsigned throughout: an arithmetic shift of the top bit would give version -1.
        let back_shift = FIELD_BITS;
        let front_shift = back_shift + self.back_bits();
        Parts {
            version: (timestamp >> (32 - self.versions)) as u8,
            front: (timestamp >> front_shift & mask(self.front)) as u16,
            back: (timestamp >> back_shift & mask(self.back_bits())) as u16,
            low: timestamp as u16,
        }
    }

    /// Puts a timestamp together. Bits that do not fit are cut off.
    #[inline]
    pub const fn join(&self, parts: Parts) -> u32 {
        self.versioned(parts.version, self.cookie(parts.front, parts.back), parts.low)
    }

    /// The cookie of two parts: all of the 16 bits but the version.
    #[inline]
    pub const fn cookie(&self, front: u16, back: u16) -> u16 {
        let front = front as u32 & mask(self.front);
        let back = back as u32 & mask(self.back_bits());
        (front << self.back_bits() | back) as u16
    }

    /// A timestamp of version, cookie and lower half.
    #[inline]
    pub(super) const fn versioned(&self, version: u8, cookie: u16, low: u16) -> u32 {
        let cookie_bits = FIELD_BITS - self.versions;
        let version = version as u32 & mask(self.versions);
        let cookie = cookie as u32 & mask(cookie_bits);
        (version << cookie_bits | cookie) << FIELD_BITS | low as u32
    }
}

/// The `bits` low bits set; at most 16.
const fn mask(bits: u32) -> u32 {
    (1 << bits) - 1
}

/// Hides a number in a part of the cookie: number xor hash of the flow under a secret key.
///
/// Who does not know the key cannot aim: any change of the cookie changes the number, to what is
/// not known. It is no proof of origin. The hash is fast and not cryptographic, and who holds one
/// cookie of a flow can reach each other number by a xor, only without knowing which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Codec {
    key: HashKey,
    bits: u32,
}

impl Codec {
    /// A codec of a part of `bits` bits, 16 at most.
    ///
    /// Use another key for each service and each part, and none that tables are hashed under.
    pub fn new(key: HashKey, bits: u32) -> Self {
        Self { key, bits: bits.min(FIELD_BITS) }
    }

    /// How many numbers there are: two to the bits.
    pub fn numbers(&self) -> u32 {
        1 << self.bits
    }

    /// The key under which numbers are hidden.
    #[inline(always)]
    pub fn key(&self) -> &HashKey {
        &self.key
    }

    /// The part of the cookie that hides `number`, whose bits beyond the part are lost.
    #[inline]
    pub fn hide<K: Key>(&self, flow: &K, number: u16) -> u16 {
        self.hide_for(flow.hash(&self.key), number)
    }

    /// The same for a flow with this hash under the codec's key.
    #[inline]
    pub fn hide_for(&self, hash: u64, number: u16) -> u16 {
        ((hash >> (u64::BITS - FIELD_BITS)) as u16 ^ number) & mask(self.bits) as u16
    }

    /// The number hidden in `part`. Any part reveals one: the caller must know its numbers.
    #[inline]
    pub fn reveal<K: Key>(&self, flow: &K, part: u16) -> u16 {
        self.hide(flow, part)
    }

    /// The same for a flow with this hash under the codec's key.
    #[inline]
    pub fn reveal_for(&self, hash: u64, part: u16) -> u16 {
        self.hide_for(hash, part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StateKey;
    use weir_wire::FlowKey;

    #[test]
    fn parts_round_trip_in_every_layout() {
        for versions in 1..=2 {
            for front in 0..=16 - versions {
                let layout = Layout::new(versions, front).unwrap();
                assert_eq!(versions + front + layout.back_bits(), 16);
                for timestamp in [0, u32::MAX, 0x8000_0000, 0x7fff_ffff, 0x1234_5678, 0xfedc_ba98] {
                    let parts = layout.split(timestamp);
                    assert_eq!(layout.join(parts), timestamp, "{layout:?}");
                    assert!(u32::from(parts.version) < 1 << versions);
                    assert!(u32::from(parts.front) < 1 << front);
                    assert!(u32::from(parts.back) < 1 << layout.back_bits());
                }
            }
        }
        assert_eq!(Layout::new(0, 4), Err(LayoutError::Versions(0)));
        assert_eq!(Layout::new(3, 4), Err(LayoutError::Versions(3)));
        let error = LayoutError::TooManyBits { front: 15, versions: 2 };
        assert_eq!(Layout::new(2, 15), Err(error));
    }

    #[test]
    fn the_version_is_the_top_bit_and_is_unsigned() {
        assert_eq!(Layout::stateless().split(0x8000_0000).version, 1);
        assert_eq!(Layout::stateless().split(0x7fff_ffff).version, 0);
        assert_eq!(Layout::new(2, 7).unwrap().split(0xc000_0000).version, 3);
    }

    #[test]
    fn hidden_numbers_come_back() {
        let (a, b) = ("10.0.0.1:5555".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let flow = StateKey::of_flow(&FlowKey::new(a, b, weir_wire::Protocol::Tcp));
        for bits in 0..=16 {
            let codec = Codec::new(HashKey::from_seed(7), bits);
            for number in (0..codec.numbers()).step_by(97) {
                let part = codec.hide(&flow, number as u16);
                assert!(u32::from(part) < codec.numbers());
                assert_eq!(u32::from(codec.reveal(&flow, part)), number);
            }
        }
    }
}
