//! QUIC connection ids: where they are in a packet, and the server that QUIC-LB writes into them.
//!
//! [`parse_header`] reads what RFC 8999 promises of every version of QUIC. [`QuicLb`] is
//! draft-ietf-quic-load-balancers-21: the server's id stands in each connection id that the server
//! issues, in the open or under AES, and the client sends it back in every packet.
//!
//! ```text
//! long   |1.......|version, 4|length| destination id |length| source id | ...
//! short  |0.......| destination id, as long as the server made it | ...
//!
//! connection id, decrypted
//!        |rrr lllll| server id, 1 to 15 | nonce, 4 to 18 | the server's own |
//!         │   └ length of what follows, or random
//!         └ configuration 0 to 6; 7: no configuration, not routable
//! ```

use ::aes::Aes128;
use ::aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use std::fmt;

/// The longest connection id of QUIC versions 1 and 2 (RFC 9000 section 17.2, RFC 9369).
pub const MAX_ID_LENGTH: usize = 20;

/// Versions whose ids have at most [`MAX_ID_LENGTH`] bytes.
const VERSION_1: u32 = 1;
const VERSION_2: u32 = 0x6b33_43cf;

const LONG_HEADER: u8 = 0x80;

/// Why a datagram is no QUIC packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum HeaderError {
    /// The datagram has no byte at all.
    #[error("the datagram is empty")]
    Empty,
    /// The datagram ends inside a long header.
    #[error("the datagram ends inside the QUIC long header")]
    Truncated,
    /// An id has more than 20 bytes, which versions 1 and 2 do not allow.
    #[error("the connection id has {length} bytes; QUIC versions 1 and 2 allow 20")]
    IdTooLong {
        /// The length that the header gives, in bytes.
        length: u8,
    },
}

/// The header of a QUIC packet, as far as it is the same in all versions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Header<'a> {
    /// A long header: handshake, 0-RTT, Retry, version negotiation.
    Long {
        /// Version of QUIC; 0 stands for version negotiation.
        version: u32,
        /// Destination connection id: up to 20 bytes in versions 1 and 2, up to 255 in others. The
        /// client has chosen it until the server's first answer.
        destination: &'a [u8],
        /// Source connection id, with the same limits.
        source: &'a [u8],
    },
    /// A short header: everything after the handshake.
    Short {
        /// What follows the first byte, up to 20 bytes. It begins with the destination id; only
        /// who made the id knows how long it is.
        destination: &'a [u8],
    },
}

/// Reads the header of the (first) QUIC packet of a UDP payload.
///
/// The fixed bit is not looked at: RFC 9287 lets it be anything.
///
/// # Errors
/// [`HeaderError`].
pub fn parse_header(datagram: &[u8]) -> Result<Header<'_>, HeaderError> {
    let (&first, rest) = datagram.split_first().ok_or(HeaderError::Empty)?;
    if first & LONG_HEADER == 0 {
        return Ok(Header::Short { destination: &rest[..rest.len().min(MAX_ID_LENGTH)] });
    }
    let (version, rest) = rest.split_first_chunk().ok_or(HeaderError::Truncated)?;
    let version = u32::from_be_bytes(*version);
    let (destination, rest) = take_id(version, rest)?;
    let (source, _) = take_id(version, rest)?;
    Ok(Header::Long { version, destination, source })
}

/// Bytes that a QUIC packet has from its destination id's first byte on, if that id can be routed by.
/// A packet of versions 1 and 2 with an id of 6 bytes or more has at least that: the number of the
/// packet and its payload have 4 bytes or more, and the tag behind them 16 (RFC 9001 sections 5.3
/// and 5.4.2). So ids are read without a look at how much there is of each.
pub const LEAST_FROM_ID: usize = 26;

/// The destination id that a datagram of a client is routed by, if it may be one: of a long header
/// the whole id, if it has at most 20 bytes; of a short one the 20 bytes that its id begins.
///
/// It reads only what RFC 8999 promises of every version. Of several packets in a datagram the first
/// one counts: all have the same destination id (RFC 9000 section 12.2). `None` for a datagram that
/// ends before [`LEAST_FROM_ID`] bytes.
pub fn routing_id(datagram: &[u8]) -> Option<Id> {
    let is_long = datagram.first()? & LONG_HEADER != 0;
    let from = datagram.get(if is_long { LONG_ID_AT } else { SHORT_ID_AT }..)?;
    if from.len() < LEAST_FROM_ID {
        return None;
    }
    let length = if is_long { usize::from(datagram[LONG_ID_AT - 1]) } else { MAX_ID_LENGTH };
    Id::new(from.get(..length)?)
}

/// Where the destination id of a long header begins: behind flags, version and its length.
const LONG_ID_AT: usize = 6;
/// Where that of a short header begins.
const SHORT_ID_AT: usize = 1;

/// An id with its length before it, and what follows.
fn take_id(version: u32, data: &[u8]) -> Result<(&[u8], &[u8]), HeaderError> {
    let (&length, rest) = data.split_first().ok_or(HeaderError::Truncated)?;
    let bounded = matches!(version, VERSION_1 | VERSION_2);
    if bounded && usize::from(length) > MAX_ID_LENGTH {
        return Err(HeaderError::IdTooLong { length });
    }
    rest.split_at_checked(usize::from(length)).ok_or(HeaderError::Truncated)
}

/// Up to 20 bytes: a connection id, or a server id. Its `Debug` text is hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    bytes: [u8; MAX_ID_LENGTH],
    length: u8,
}

impl Id {
    /// The id of these bytes, if they are at most 20.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut id = Self { bytes: [0; MAX_ID_LENGTH], length: bytes.len() as u8 };
        id.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(id)
    }

    /// The id that this text has in hexadecimal: two digits a byte, at most 20 bytes.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits: Option<Vec<u8>> =
            text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let (pairs, []) = digits.as_deref()?.as_chunks::<2>() else { return None };
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        Self::new(&bytes)
    }

    /// The bytes of the id, 0 to 20 of them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What is wrong with a QUIC-LB configuration, or with what it was asked to encode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum QuicLbError {
    /// The configuration number is not 0 to 6.
    #[error("QUIC-LB configuration {0}: only 0 to 6 can be used")]
    BadRotation(u8),
    /// The server id has not 1 to 15 bytes, or the nonce not at least 4, or both together more than
    /// 19 (draft, section 5.3).
    #[error(
        "QUIC-LB server id of {server_id} and nonce of {nonce} bytes: the id has at least 1, the \
         nonce at least 4, both together at most 19"
    )]
    BadLengths {
        /// Bytes of the server id.
        server_id: usize,
        /// Bytes of the nonce.
        nonce: usize,
    },
}

/// Why a connection id leads nowhere. The draft sends such packets to a fallback algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Unroutable {
    /// The id has no first byte, which names its configuration.
    #[error("the connection id is empty")]
    Empty,
    /// The id says configuration 7: its server has none, and the id names no server.
    #[error("the connection id says that its server has no configuration")]
    Unconfigured,
    /// The id names a configuration (0 to 6) that is not set here.
    #[error("the connection id belongs to configuration {0}, which is not known here")]
    UnknownConfig(u8),
    /// The id has fewer bytes than its configuration needs, or its first byte says so.
    #[error("the connection id has {length} bytes, its configuration needs {needed}")]
    TooShort {
        /// Bytes that the id has.
        length: usize,
        /// Bytes that ids of the configuration have.
        needed: usize,
    },
}

/// One configuration of QUIC-LB: a number, the lengths of server id and nonce, and a key if the
/// server id is hidden.
#[derive(Clone)]
pub struct QuicLb {
    rotation: u8,
    server_id: usize,
    nonce: usize,
    cipher: Option<Aes128>,
    key: Option<[u8; 16]>,
    says_length: bool,
}

impl PartialEq for QuicLb {
    fn eq(&self, other: &Self) -> bool {
        let parts = |a: &Self| (a.rotation, a.server_id, a.nonce, a.key, a.says_length);
        parts(self) == parts(other)
    }
}

impl Eq for QuicLb {}

/// Without the key.
impl fmt::Debug for QuicLb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicLb")
            .field("rotation", &self.rotation)
            .field("server_id", &self.server_id)
            .field("nonce", &self.nonce)
            .field("encrypted", &self.key.is_some())
            .field("says_length", &self.says_length)
            .finish()
    }
}

impl QuicLb {
    /// Configuration number `rotation` (0 to 6) with ids of `server_id` and nonces of `nonce`
    /// bytes. Without a key anybody can read the server id.
    ///
    /// # Errors
    /// [`QuicLbError`].
    pub fn new(
        rotation: u8,
        server_id: usize,
        nonce: usize,
        key: Option<[u8; 16]>,
    ) -> Result<Self, QuicLbError> {
        if rotation >= UNCONFIGURED {
            return Err(QuicLbError::BadRotation(rotation));
        }
        if server_id < 1 || nonce < 4 || server_id.saturating_add(nonce) > MAX_BLOCK {
            return Err(QuicLbError::BadLengths { server_id, nonce });
        }
        let cipher = key.map(|key| Aes128::new(&key.into()));
        Ok(Self { rotation, server_id, nonce, cipher, key, says_length: true })
    }

    /// Fills the five low bits of the first byte with what the caller gives instead of the length,
    /// and does not believe them when it decodes.
    #[must_use]
    pub fn without_length(self) -> Self {
        Self { says_length: false, ..self }
    }

    /// The configuration's number, 0 to 6, as the first three bits of its ids have it.
    pub fn rotation(&self) -> u8 {
        self.rotation
    }

    /// Bytes of the connection ids that [`encode`](Self::encode) makes: 6 to 20.
    pub fn id_length(&self) -> usize {
        1 + self.block_length()
    }

    /// Bytes of the server id, 1 to 15.
    pub fn server_id_length(&self) -> usize {
        self.server_id
    }

    /// Bytes of the nonce, 4 to 18.
    pub fn nonce_length(&self) -> usize {
        self.nonce
    }

    /// Its key, for planes that decode by a program of their own. Nothing prints it.
    pub fn key(&self) -> Option<&[u8; 16]> {
        self.key.as_ref()
    }

    /// Whether the first byte tells the id's length.
    pub fn says_length(&self) -> bool {
        self.says_length
    }

    fn block_length(&self) -> usize {
        self.server_id + self.nonce
    }

    /// A connection id that leads to `server_id`. No two may have the same nonce: count, or draw at
    /// random; without a key only random ones keep an observer from linking ids.
    ///
    /// The low five bits of `random` go into the first byte, unless that tells the length.
    ///
    /// # Errors
    /// [`QuicLbError::BadLengths`] if id or nonce have not the configured lengths.
    pub fn encode(&self, server_id: &[u8], nonce: &[u8], random: u8) -> Result<Id, QuicLbError> {
        if (server_id.len(), nonce.len()) != (self.server_id, self.nonce) {
            let (server_id, nonce) = (server_id.len(), nonce.len());
            return Err(QuicLbError::BadLengths { server_id, nonce });
        }
        let mut id = Id { bytes: [0; MAX_ID_LENGTH], length: self.id_length() as u8 };
        let low = if self.says_length { self.block_length() as u8 } else { random & LOW_BITS };
        id.bytes[0] = self.rotation << ROTATION_SHIFT | low;
        id.bytes[1..=self.server_id].copy_from_slice(server_id);
        id.bytes[1 + self.server_id..self.id_length()].copy_from_slice(nonce);
        if let Some(cipher) = &self.cipher {
            encrypt(cipher, &mut id.bytes[1..self.id_length()]);
        }
        Ok(id)
    }

    /// The server id in a connection id, which may be followed by anything.
    ///
    /// Every id of the right length decodes to *some* server id: the caller must know its servers.
    ///
    /// # Errors
    /// [`Unroutable`], also for an id of another configuration.
    pub fn decode(&self, id: &[u8]) -> Result<Id, Unroutable> {
        let rotation = rotation_of(id)?;
        if rotation != self.rotation {
            return Err(Unroutable::UnknownConfig(rotation));
        }
        let needed = self.id_length();
        let too_short = |length| Unroutable::TooShort { length, needed };
        let block = id.get(1..needed).ok_or(too_short(id.len()))?;
        let says = 1 + usize::from(id[0] & LOW_BITS);
        if self.says_length && says < needed {
            return Err(too_short(says));
        }
        let mut server_id = Id { bytes: [0; MAX_ID_LENGTH], length: self.server_id as u8 };
        server_id.bytes[..block.len()].copy_from_slice(block);
        if let Some(cipher) = &self.cipher {
            decrypt(cipher, &mut server_id.bytes[..block.len()], self.server_id);
        }
        server_id.bytes[self.server_id..].fill(0); // equal ids are equal values
        Ok(server_id)
    }
}

/// The configurations in use, by number: while keys or lengths change there are two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuicLbConfigs([Option<QuicLb>; UNCONFIGURED as usize]);

impl QuicLbConfigs {
    /// Adds a configuration. One with the same number is replaced.
    pub fn set(&mut self, config: QuicLb) {
        let slot = usize::from(config.rotation);
        self.0[slot] = Some(config);
    }

    /// Takes the configuration with this number away; ids that name it are [`Unroutable`] from now
    /// on. Does nothing if there is none.
    pub fn clear(&mut self, rotation: u8) {
        if let Some(slot) = self.0.get_mut(usize::from(rotation)) {
            *slot = None;
        }
    }

    /// The configurations, by number.
    pub fn iter(&self) -> impl Iterator<Item = &QuicLb> {
        self.0.iter().flatten()
    }

    /// The configuration with this number.
    pub fn get(&self, rotation: u8) -> Option<&QuicLb> {
        self.0.get(usize::from(rotation))?.as_ref()
    }

    /// The server id in a connection id, under the configuration that the id names.
    ///
    /// # Errors
    /// [`Unroutable`].
    pub fn decode(&self, id: &[u8]) -> Result<Id, Unroutable> {
        let rotation = rotation_of(id)?;
        match self.0.get(usize::from(rotation)) {
            Some(Some(config)) => config.decode(id),
            Some(None) => Err(Unroutable::UnknownConfig(rotation)),
            None => Err(Unroutable::Unconfigured),
        }
    }
}

/// The configuration number of ids that no configuration can read.
const UNCONFIGURED: u8 = 7;
/// The configuration's number is the bits of an id's first byte from this one on.
pub const ROTATION_SHIFT: u8 = 5;
/// The bits below it: random, or how many bytes follow.
pub const LOW_BITS: u8 = 0x1f;
/// Server id and nonce, at most.
const MAX_BLOCK: usize = MAX_ID_LENGTH - 1;
/// Half of that, rounded up.
const MAX_HALF: usize = MAX_BLOCK.div_ceil(2);

fn rotation_of(id: &[u8]) -> Result<u8, Unroutable> {
    match id.first() {
        None => Err(Unroutable::Empty),
        Some(first) => Ok(first >> ROTATION_SHIFT),
    }
}

/// The two halves of a block of 5 to 19 bytes. In one of odd length the byte in the middle belongs
/// to both: its high bits to the left half, its low bits to the right one.
struct Halves {
    left: [u8; MAX_HALF],
    right: [u8; MAX_HALF],
    block: usize,
}

impl Halves {
    fn split(block: &[u8]) -> Self {
        let mut halves = Self { left: [0; MAX_HALF], right: [0; MAX_HALF], block: block.len() };
        let half = halves.half();
        halves.left[..half].copy_from_slice(&block[..half]);
        halves.right[..half].copy_from_slice(&block[block.len() - half..]);
        halves.clear_shared();
        halves
    }

    fn join(&self, block: &mut [u8]) {
        let half = self.half();
        block[..half].copy_from_slice(&self.left[..half]);
        let right = &mut block[self.block - half..];
        // The shared byte is there already; its other four bits are zero in each half.
        let shared = if self.is_odd() { right[0] } else { 0 };
        right.copy_from_slice(&self.right[..half]);
        right[0] |= shared;
    }

    fn half(&self) -> usize {
        self.block.div_ceil(2)
    }

    fn is_odd(&self) -> bool {
        !self.block.is_multiple_of(2)
    }

    fn clear_shared(&mut self) {
        if self.is_odd() {
            self.left[self.half() - 1] &= 0xf0;
            self.right[0] &= 0x0f;
        }
    }

    /// One pass: odd ones change the right half, even ones the left half.
    fn pass(&mut self, cipher: &Aes128, number: u8) {
        let half = self.half();
        let (from, to) = if !number.is_multiple_of(2) {
            (&self.left, &mut self.right)
        } else {
            (&self.right, &mut self.left)
        };
        let mut input = [0; 16];
        input[..half].copy_from_slice(&from[..half]);
        input[14] = self.block as u8;
        input[15] = number;
        let mut output = input.into();
        cipher.encrypt_block(&mut output);
        for (byte, mask) in to[..half].iter_mut().zip(output) {
            *byte ^= mask;
        }
        self.clear_shared();
    }
}

/// Section 5.4: one AES block if it is one, a Feistel network of four passes otherwise.
fn encrypt(cipher: &Aes128, block: &mut [u8]) {
    if let Ok(single) = <&mut [u8; 16]>::try_from(&mut *block) {
        cipher.encrypt_block(single.into());
        return;
    }
    let mut halves = Halves::split(block);
    for number in 1..=4 {
        halves.pass(cipher, number);
    }
    halves.join(block);
}

/// Section 5.5. The last pass is needed only for the bytes of the right half: if the server id,
/// `needed` bytes, is in the left half alone, they stay encrypted.
fn decrypt(cipher: &Aes128, block: &mut [u8], needed: usize) {
    if let Ok(single) = <&mut [u8; 16]>::try_from(&mut *block) {
        cipher.decrypt_block(single.into());
        return;
    }
    let mut halves = Halves::split(block);
    for number in [4, 3, 2] {
        halves.pass(cipher, number);
    }
    if needed > block.len() / 2 {
        halves.pass(cipher, 1);
    }
    halves.join(block);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len() / 2)
            .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
            .collect()
    }

    fn key(text: &str) -> Option<[u8; 16]> {
        Some(hex(text).try_into().unwrap())
    }

    /// Appendix B of draft -21, and the worked example of its section 5.4.
    #[test]
    fn the_drafts_vectors() {
        let b = key("8f95f09245765f80256934e50c66207f");
        let example = key("fdf726a9893ec05c0632d3956680baf0");
        for (rotation, server_id, nonce, key, id) in [
            (0, "c4605e", "4504cc4f", None, "07c4605e4504cc4f"),
            (0, "ed793a", "ee080dbf", b, "0720b1d07b359d3c"),
            (1, "ed793a51d49b8f5fab65", "ee080dbf48", b, "2fcc381bc74cb4fbad2823a3d1f8fed2"),
            (2, "ed793a51d49b8f5f", "ee080dbf48c0d1e5", b, "504dd2d05a7b0de9b2b9907afb5ecf8cc3"),
            (
                0,
                "ed793a51d49b8f5fab",
                "ee080dbf48c0d1e55d",
                b,
                "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc",
            ),
            (0, "31441a", "9c69c275", example, "0767947d29be054a"),
        ] {
            let (server_id, nonce) = (hex(server_id), hex(nonce));
            let config = QuicLb::new(rotation, server_id.len(), nonce.len(), key).unwrap();
            let made = config.encode(&server_id, &nonce, 0).unwrap();
            assert_eq!(format!("{made:?}"), id);
            assert_eq!(config.decode(&hex(id)).unwrap().as_bytes(), server_id);
        }
    }

    #[test]
    fn long_and_short_headers() {
        let long = hex("c3 00000001 04 aabbccdd 02 eeff 0011".replace(' ', "").as_str());
        let (destination, source) = (&long[6..10], &long[11..13]);
        assert_eq!(parse_header(&long), Ok(Header::Long { version: 1, destination, source }));
        for cut in 1..13 {
            assert_eq!(parse_header(&long[..cut]), Err(HeaderError::Truncated), "{cut}");
        }
        assert_eq!(parse_header(&[]), Err(HeaderError::Empty));
        assert_eq!(parse_header(&[0x40, 7, 8]), Ok(Header::Short { destination: &[7, 8] }));
        assert_eq!(parse_header(&[0; 64]), Ok(Header::Short { destination: &[0; 20] }));
        // The fixed bit is greased: still a short header.
        assert_eq!(parse_header(&[0]), Ok(Header::Short { destination: &[] }));
    }

    #[test]
    fn what_is_routed_by() {
        let routed = |datagram: &[u8]| routing_id(datagram).map(|id| id.as_bytes().to_vec());
        let short: Vec<u8> = (0x40..0x40 + 27).collect();
        assert_eq!(routed(&short), Some(short[1..21].to_vec()));
        assert_eq!(routed(&short[..26]), None);
        let mut long = vec![0xc0, 0, 0, 0, 0, 8];
        long.extend(0..26);
        assert_eq!(routed(&long), Some((0..8).collect()), "version negotiation");
        assert_eq!(routed(&long[..31]), None);
        for (length, is_one) in [(0, true), (20, true), (21, false), (255, false)] {
            long[5] = length;
            assert_eq!(routed(&long).map(|id| id.len() as u8), is_one.then_some(length));
        }
        assert_eq!(routed(&[]), None);
    }

    #[test]
    fn ids_from_text() {
        assert_eq!(Id::from_hex("00fF12").unwrap().as_bytes(), [0, 0xff, 0x12]);
        for wrong in ["0", "0g", "+1", " 1", &"00".repeat(21)] {
            assert_eq!(Id::from_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ids_are_bounded_in_the_versions_that_say_so() {
        for (version, bounded) in [(1u32, true), (0x6b33_43cf, true), (0, false), (77, false)] {
            let mut long = vec![0x80];
            long.extend(version.to_be_bytes());
            long.push(21);
            long.extend([0; 21]);
            long.push(0);
            let refused = parse_header(&long) == Err(HeaderError::IdTooLong { length: 21 });
            assert_eq!(refused, bounded, "{version:#x}");
        }
    }

    #[test]
    fn configurations_are_checked() {
        for (rotation, server_id, nonce) in [(0, 1, 4), (6, 15, 4), (3, 1, 18)] {
            assert!(QuicLb::new(rotation, server_id, nonce, None).is_ok());
        }
        assert_eq!(QuicLb::new(7, 1, 4, None).unwrap_err(), QuicLbError::BadRotation(7));
        for (server_id, nonce) in [(0, 4), (1, 3), (16, 4), (2, 18), (usize::MAX, 4)] {
            let error = QuicLbError::BadLengths { server_id, nonce };
            assert_eq!(QuicLb::new(0, server_id, nonce, None).unwrap_err(), error);
        }
        let config = QuicLb::new(0, 2, 4, None).unwrap();
        assert!(config.encode(&[1], &[0; 4], 0).is_err());
        assert!(config.encode(&[1, 2], &[0; 5], 0).is_err());
    }

    #[test]
    fn the_id_names_its_configuration() {
        let mut configs = QuicLbConfigs::default();
        let old = QuicLb::new(0, 2, 6, None).unwrap();
        let new = QuicLb::new(1, 3, 7, Some([7; 16])).unwrap();
        configs.set(old.clone());
        configs.set(new.clone());
        let old_id = old.encode(&[0, 9], &[1; 6], 0).unwrap();
        let new_id = new.encode(&[0, 0, 9], &[2; 7], 0).unwrap();
        assert_eq!(configs.decode(old_id.as_bytes()), Ok(Id::new(&[0, 9]).unwrap()));
        assert_eq!(configs.decode(new_id.as_bytes()), Ok(Id::new(&[0, 0, 9]).unwrap()));
        // In a short header the rest of the packet follows.
        let packet = [new_id.as_bytes(), &[0xaa; 9]].concat();
        assert_eq!(configs.decode(&packet), Ok(Id::new(&[0, 0, 9]).unwrap()));
        configs.clear(0);
        assert_eq!(configs.decode(old_id.as_bytes()), Err(Unroutable::UnknownConfig(0)));
        assert_eq!(new.decode(old_id.as_bytes()), Err(Unroutable::UnknownConfig(0)));
        assert_eq!(configs.decode(&[]), Err(Unroutable::Empty));
        assert_eq!(configs.decode(&[0xff; 20]), Err(Unroutable::Unconfigured));
        let short = Unroutable::TooShort { length: 10, needed: 11 };
        assert_eq!(configs.decode(&new_id.as_bytes()[..10]), Err(short));
    }

    #[test]
    fn the_low_bits_are_length_or_random() {
        let config = QuicLb::new(5, 2, 6, None).unwrap();
        let mut id = config.encode(&[1, 2], &[3; 6], 0xff).unwrap();
        assert_eq!(id.as_bytes()[0], 5 << 5 | 8);
        id.bytes[0] = 5 << 5 | 7; // says 8 bytes in all; the configuration needs 9
        let short = Unroutable::TooShort { length: 8, needed: 9 };
        assert_eq!(config.decode(id.as_bytes()), Err(short));
        let config = config.without_length();
        assert_eq!(config.decode(id.as_bytes()), Ok(Id::new(&[1, 2]).unwrap()));
        let id = config.encode(&[1, 2], &[3; 6], 0xff).unwrap();
        assert_eq!(id.as_bytes()[0], 5 << 5 | 0x1f);
    }

    #[test]
    fn the_key_is_not_printed() {
        let text = format!("{:?}", QuicLb::new(0, 2, 6, Some([0xab; 16])).unwrap());
        assert!(!text.contains("171") && !text.contains("ab"), "{text}");
    }
}
