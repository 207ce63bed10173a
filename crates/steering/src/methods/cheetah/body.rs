//! Cheetah's published tables: the servers of the service by the numbers that cookies hide.
//!
//! ```text
//! elements ..    the backend of each number, 16 bits; NO_BACKEND where the service has none
//! elements ..    the numbers of those that take new connections, 16 bits each, in the order of their
//!                backends, as often as their weights
//! one element    the two keys that numbers are hidden under, where a cookie says under which
//! ```
//! Numbers, so that the cookie of a first packet takes no search.

use super::config::{MOST_PARTITIONS, MOST_TIER_BITS, StatefulMethod, StatelessMethod};
use super::layout::FIELD_BITS;
use super::{
    COOKIE_KEYS, ConnTable, ConnTableConfig, ConnTableError, CookieKeys, Forged, Layout,
    ServiceServers, Stateful, Stateless, Table as Cookies,
};
use crate::decide::{Decide, Decision, Question};
use crate::memory::Memory;
use crate::method::Method;
use crate::registry::MethodId;
use crate::schedule::{MOST_LISTED, stride};
use crate::shared::RawHeader;
use crate::table::{
    self, ELEMENT_BYTES, Flags, HEADER_BYTES, ImageError, SLOTS_PER_ELEMENT, Table, digest_slots,
    read_slots, slot_elements, write_slots,
};
use weir_hash::{HashKey, Key};

/// Seconds from the SYN in which a packet with the cookie must come: as the states of other methods.
pub const OPENING_SECONDS: u32 = 65;
/// Seconds for which a connection is kept after a FIN or RST.
pub const LINGER_SECONDS: u32 = 60;

/// Elements of a table with all numbers that cookies can hide, and the longest list of those that take new
/// connections: shares are rounded, each by half an entry at most; and the keys that may change.
pub(super) const MOST_ELEMENTS: usize =
    (1usize << 16).div_ceil(SLOTS_PER_ELEMENT) + (2 * MOST_LISTED).div_ceil(SLOTS_PER_ELEMENT) + 1;

/// In the header's `segment_bits`: the table has keys that cookies tell apart. Its numbers are counted in `chunks_b`
/// then and `slots` is 0, so that who knows nothing of keys finds no number, and asks apart.
pub const KEYED: u8 = 1 << 6;
/// In the same: the second key issues.
pub const SECOND: u8 = 1 << 7;
/// The other bits.
const OTHERS_BITS: u8 = 15;
/// Bytes that the keys take, of an element.
const KEY_BYTES: usize = COOKIE_KEYS * size_of::<HashKey>();
const _: () = assert!(KEY_BYTES <= ELEMENT_BYTES);

/// The size of a table of connections; nothing for a form without one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slots {
    /// Partitions of 32,768 slots; of as many parts as there may be balancers of the second tier.
    pub partitions: u32,
    /// Seconds of silence that end a connection.
    pub idle_seconds: u32,
}

/// A form of Cheetah that stands in a header.
pub trait Form: Copy + PartialEq + Eq + std::fmt::Debug {
    /// The method.
    const METHOD: MethodId;
    /// See [`table::Body::LAYOUT`].
    const LAYOUT: u16;
    /// Whether connections have slots.
    const PARTITIONED: bool;

    /// How the 16 bits are shared out.
    fn layout(&self) -> Layout;
    /// What becomes of packets whose cookies are no good.
    fn forged(&self) -> Forged;
    /// The table of connections, if there is one.
    fn slots(&self) -> Slots;
    /// Whether the balancer writes the cookies.
    fn answers(&self) -> bool;
    /// Whether backends write them, and first packets tell them.
    fn tells(&self) -> bool {
        false
    }
    /// What the table's flags say of its scheduler.
    fn scheduling(&self) -> Flags {
        Flags::default()
    }
    /// The keys that cookies tell apart, if there are such.
    fn keys(&self) -> Option<CookieKeys> {
        None
    }
    /// The same with these keys, if it is of a form that can have them.
    #[must_use]
    fn keyed(self, _: Option<CookieKeys>) -> Self {
        self
    }
    /// Bits of the cookie that are the other tier's: 0 if there is none.
    fn others_bits(&self) -> u32;
    /// How the 16 bits are shared out where so many of them are the other tier's; none if they cannot
    /// be.
    fn shared(others: u32) -> Option<Layout>;
    /// The form with these, and what its table's flags say: who writes the cookies, and who gets a
    /// first packet, if that is for the form to say.
    fn new(key: HashKey, forged: Forged, slots: Slots, flags: Flags, layout: Layout) -> Self;
}

impl Form for Stateless {
    const METHOD: MethodId = StatelessMethod::ID;
    const LAYOUT: u16 = 3;
    const PARTITIONED: bool = false;

    fn layout(&self) -> Layout {
        *Self::layout(self)
    }

    fn forged(&self) -> Forged {
        Self::forged(self)
    }

    fn slots(&self) -> Slots {
        Slots::default()
    }

    fn answers(&self) -> bool {
        Self::answers(self)
    }

    fn tells(&self) -> bool {
        Self::tells(self)
    }

    fn scheduling(&self) -> Flags {
        Self::scheduling(self)
    }

    fn keys(&self) -> Option<CookieKeys> {
        Self::keys(self)
    }

    fn keyed(self, keys: Option<CookieKeys>) -> Self {
        self.with_keys(keys)
    }

    fn others_bits(&self) -> u32 {
        Self::layout(self).back_bits()
    }

    fn shared(others: u32) -> Option<Layout> {
        let front = (FIELD_BITS - 1).checked_sub(others)?;
        let fits = others == 0 || (1..=MOST_TIER_BITS).contains(&front);
        Layout::new(1, front).ok().filter(|_| fits)
    }

    fn new(key: HashKey, forged: Forged, _: Slots, flags: Flags, layout: Layout) -> Self {
        let form = Self::new(key, layout, forged);
        form.with_answers(flags.has(Flags::ANSWERS))
            .with_told(flags.has(Flags::TELLS))
            .scheduled(flags)
    }
}

/// Stateful Cheetah with the size of its table of connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partitioned {
    /// The keys and the layout of cookies.
    pub method: Stateful,
    slots: Slots,
}

impl Partitioned {
    /// An empty table of connections of this size.
    ///
    /// # Errors
    /// [`ConnTableError`], if the header tells of a size that none has.
    pub fn connections(&self) -> Result<ConnTable, ConnTableError> {
        let Slots { partitions, idle_seconds } = self.slots;
        let bits = self.method.layout().back_bits();
        let config = ConnTableConfig {
            // Fewer bits tell fewer slots apart, so that there are more parts.
            partitions: partitions << self.method.layout().front_bits(),
            slots: 1 << bits,
            bits,
            opening_seconds: OPENING_SECONDS.min(idle_seconds),
            idle_seconds,
            linger_seconds: LINGER_SECONDS.min(idle_seconds),
        };
        // The cookie's own key, so that a packet is hashed once. Nothing else is hidden under it.
        ConnTable::new(*self.method.key(), config)
    }
}

impl Form for Partitioned {
    const METHOD: MethodId = StatefulMethod::ID;
    const LAYOUT: u16 = 4;
    const PARTITIONED: bool = true;

    fn layout(&self) -> Layout {
        *self.method.layout()
    }

    fn forged(&self) -> Forged {
        self.method.forged()
    }

    fn slots(&self) -> Slots {
        self.slots
    }

    fn answers(&self) -> bool {
        self.method.answers()
    }

    fn tells(&self) -> bool {
        self.method.tells()
    }

    fn scheduling(&self) -> Flags {
        self.method.scheduling()
    }

    fn others_bits(&self) -> u32 {
        self.method.layout().front_bits()
    }

    fn shared(others: u32) -> Option<Layout> {
        Layout::new(1, others).ok().filter(|_| others <= MOST_TIER_BITS)
    }

    fn new(key: HashKey, forged: Forged, slots: Slots, flags: Flags, layout: Layout) -> Self {
        let method = Stateful::new(layout, key, None, forged)
            .with_answers(flags.has(Flags::ANSWERS))
            .with_told(flags.has(Flags::TELLS))
            .scheduled(flags);
        Self { method, slots }
    }
}

impl<K: Key> Decide<K> for Cookies<Partitioned> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        self.method.method.key()
    }

    #[inline]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        self.method.method.decide(&self.servers, question, memory)
    }

    fn bytes(&self) -> usize {
        self.servers.bytes()
    }
}

/// A table of Cheetah, whose cookies are hidden under the header's key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body<S>(pub Cookies<S>);

/// Numbers of servers of a table with this header, and whether it has keys.
fn numbers_in(raw: &RawHeader, partitioned: bool) -> (u32, bool) {
    match !partitioned && raw.segment_bits & KEYED != 0 {
        true => (raw.chunks_b, true),
        false => (raw.slots, false),
    }
}

impl<S> Body<S> {
    fn elements_by_part(&self) -> (usize, usize) {
        let (numbers, serving) = (self.0.servers.backends(), self.0.servers.serving());
        (slot_elements(numbers.len()).max(1), slot_elements(serving.len()))
    }
}

impl<S: Form> table::Body for Body<S> {
    const METHOD: MethodId = S::METHOD;
    const LAYOUT: u16 = S::LAYOUT;

    fn elements(&self) -> usize {
        let (numbers, serving) = self.elements_by_part();
        numbers + serving + usize::from(self.0.method.keys().is_some())
    }

    fn fill(&self, raw: &mut RawHeader) {
        let (numbers, serving) = self.elements_by_part();
        raw.first_a = raw.first_slot + numbers as u32;
        raw.chunks_a = serving as u32;
        raw.slots = self.0.servers.backends().len() as u32;
        raw.per_chunk = self.0.servers.serving().len() as u32;
        raw.bits = self.0.method.layout().version_bits() as u8;
        raw.codec = self.0.method.forged() as u8;
        raw.segment_bits = self.0.method.others_bits() as u8;
        if let Some(keys) = self.0.method.keys() {
            (raw.slots, raw.chunks_b) = (0, raw.slots);
            raw.segment_bits |= if keys.issue() == 0 { KEYED } else { KEYED | SECOND };
        }
        let Slots { partitions, idle_seconds } = self.0.method.slots();
        // What packets read is on one line of the header: the partitions, of which the plane puts the
        // first into `chunks_b`; or, for turns, how far apart two of them are in the list, which stands
        // in `chunks_a` then.
        raw.fallback = match partitions {
            0 => stride(self.0.servers.serving().len()),
            _ => partitions as u16,
        };
        if partitions > 0 {
            raw.chunks_a = stride(self.0.servers.serving().len()).into();
        }
        raw.segments = idle_seconds;
    }

    fn unplaced(raw: &RawHeader) -> RawHeader {
        if S::PARTITIONED { RawHeader { chunks_b: 0, ..*raw } } else { *raw }
    }

    fn write(&self, elements: &mut [u8]) {
        let (numbers, serving) = self.elements_by_part();
        let (numbers, rest) = elements.split_at_mut(numbers * ELEMENT_BYTES);
        let (serving, keys) = rest.split_at_mut(serving * ELEMENT_BYTES);
        write_slots(self.0.servers.backends(), numbers);
        write_slots(&self.0.servers.serving_numbers(), serving);
        if let Some(given) = self.0.method.keys() {
            keys[..KEY_BYTES].copy_from_slice(&given.to_bytes());
        }
    }

    fn each_part(&self, digest: &mut dyn FnMut(&[u8])) {
        digest_slots(self.0.servers.backends(), digest);
        digest_slots(&self.0.servers.serving_numbers(), digest);
        if let Some(keys) = self.0.method.keys() {
            digest(&keys.to_bytes());
        }
    }

    fn elements_of(raw: &RawHeader) -> Result<usize, ImageError> {
        let serving = slot_elements(raw.per_chunk as usize);
        let (count, keyed) = numbers_in(raw, S::PARTITIONED);
        let right = count <= 1 << 16
            && (S::PARTITIONED || raw.chunks_a as usize == serving)
            && raw.codec <= Forged::Refuse as u8
            && S::shared((raw.segment_bits & OTHERS_BITS).into()).is_some()
            && (keyed || raw.segment_bits <= OTHERS_BITS)
            && (!S::PARTITIONED || (1..=MOST_PARTITIONS).contains(&raw.fallback.into()));
        let numbers = slot_elements(count as usize).max(1);
        if right { Ok(numbers + serving + usize::from(keyed)) } else { Err(ImageError::Shape) }
    }

    fn read(raw: &RawHeader, elements: Vec<u8>) -> Result<Self, ImageError> {
        let (count, keyed) = numbers_in(raw, S::PARTITIONED);
        let numbers = slot_elements(count as usize).max(1);
        let (numbers, rest) = elements.split_at(numbers * ELEMENT_BYTES);
        let (serving, keys) = rest.split_at(slot_elements(raw.per_chunk as usize) * ELEMENT_BYTES);
        let issue = usize::from(raw.segment_bits & SECOND != 0);
        let keys = keyed.then(|| CookieKeys::from_bytes(keys, issue).ok_or(ImageError::Shape));
        let keys = keys.transpose()?;
        let numbers = read_slots(count as usize, numbers);
        let backend = |number: u16| numbers.get(usize::from(number)).copied();
        let serving = read_slots(raw.per_chunk as usize, serving).into_iter().map(backend);
        let serving: Option<Vec<u16>> = serving.collect();
        let serving = serving.ok_or(ImageError::Shape)?;
        let forged = if raw.codec == 0 { Forged::Schedule } else { Forged::Refuse };
        let partitions = if S::PARTITIONED { raw.fallback.into() } else { 0 };
        let slots = Slots { partitions, idle_seconds: raw.segments };
        let others = (raw.segment_bits & OTHERS_BITS).into();
        let layout = S::shared(others).ok_or(ImageError::Shape)?;
        let method = S::new(raw.key, forged, slots, Flags(raw.flags), layout).keyed(keys);
        Ok(Self(Cookies::new(method, ServiceServers::of_parts(numbers, serving))))
    }

    fn bytes(&self) -> usize {
        self.0.servers.bytes()
    }
}

impl<K: Key, S: Form> Decide<K> for Table<Body<S>>
where
    Cookies<S>: Decide<K>,
{
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.header().key
    }

    #[inline]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        self.body().0.decide(question, memory)
    }

    fn bytes(&self) -> usize {
        HEADER_BYTES + table::Body::bytes(self.body())
    }
}
