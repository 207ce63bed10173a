//! Cheetah's published tables: the servers of the service by the numbers that cookies hide.
//!
//! ```text
//! elements ..    the backend of each number, 16 bits; NO_BACKEND where the service has none
//! elements ..    the backends that take new connections, 16 bits each, as often as their weights
//! ```

use super::config::{StatefulMethod, StatelessMethod};
use super::{
    ConnTable, ConnTableConfig, ConnTableError, Forged, Layout, ServiceServers, Stateful,
    Stateless, Table as Cookies,
};
use crate::decide::{Decide, Decision, Question};
use crate::memory::Memory;
use crate::method::Method;
use crate::registry::MethodId;
use crate::shared::RawHeader;
use crate::table::{
    self, ELEMENT_BYTES, HEADER_BYTES, ImageError, NO_BACKEND, Table, digest_slots, read_slots,
    slot_elements, write_slots,
};
use weir_hash::{HashKey, Key};

/// Seconds from the SYN in which a packet with the cookie must come, and those for which a
/// connection is kept after a FIN or RST: as the states of other methods.
const OPENING_SECONDS: u32 = 65;
const LINGER_SECONDS: u32 = 60;

/// The size of a table of connections; nothing for a form without one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slots {
    /// Partitions of 32,768 slots.
    pub partitions: u32,
    /// Seconds of silence that end a connection.
    pub idle_seconds: u32,
}

/// A form of Cheetah that stands in a header.
pub trait Form: Copy + PartialEq + Eq + std::fmt::Debug {
    /// The method.
    const METHOD: MethodId;

    /// How the 16 bits are shared out.
    fn layout(&self) -> Layout;
    /// What becomes of packets whose cookies are no good.
    fn forged(&self) -> Forged;
    /// The table of connections, if there is one.
    fn slots(&self) -> Slots;
    /// The form with these.
    fn new(key: HashKey, forged: Forged, slots: Slots) -> Self;
}

impl Form for Stateless {
    const METHOD: MethodId = StatelessMethod::ID;

    fn layout(&self) -> Layout {
        *Self::layout(self)
    }

    fn forged(&self) -> Forged {
        Self::forged(self)
    }

    fn slots(&self) -> Slots {
        Slots::default()
    }

    fn new(key: HashKey, forged: Forged, _: Slots) -> Self {
        Self::new(key, Layout::stateless(), forged)
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
            partitions,
            slots: 1 << bits,
            bits,
            opening_seconds: OPENING_SECONDS.min(idle_seconds),
            idle_seconds,
            linger_seconds: LINGER_SECONDS.min(idle_seconds),
        };
        // Of its own, and the same for all tables of the service.
        ConnTable::new(HashKey::from_seed(self.method.key().hash_word(1)), config)
    }
}

impl Form for Partitioned {
    const METHOD: MethodId = StatefulMethod::ID;

    fn layout(&self) -> Layout {
        *self.method.layout()
    }

    fn forged(&self) -> Forged {
        self.method.forged()
    }

    fn slots(&self) -> Slots {
        self.slots
    }

    fn new(key: HashKey, forged: Forged, slots: Slots) -> Self {
        let method = Stateful::new(Layout::stateful(), key, None, forged);
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

impl<S> Body<S> {
    fn elements_by_part(&self) -> (usize, usize) {
        let (numbers, serving) = (self.0.servers.backends(), self.0.servers.serving());
        (slot_elements(numbers.len()).max(1), slot_elements(serving.len()))
    }
}

impl<S: Form> table::Body for Body<S> {
    const METHOD: MethodId = S::METHOD;

    fn elements(&self) -> usize {
        let (numbers, serving) = self.elements_by_part();
        numbers + serving
    }

    fn fill(&self, raw: &mut RawHeader) {
        let (numbers, serving) = self.elements_by_part();
        raw.first_a = raw.first_slot + numbers as u32;
        raw.chunks_a = serving as u32;
        raw.slots = self.0.servers.backends().len() as u32;
        raw.per_chunk = self.0.servers.serving().len() as u32;
        raw.fallback = NO_BACKEND;
        raw.bits = self.0.method.layout().version_bits() as u8;
        raw.codec = self.0.method.forged() as u8;
        let Slots { partitions, idle_seconds } = self.0.method.slots();
        (raw.segments, raw.chunks_b) = (partitions, idle_seconds);
    }

    fn write(&self, elements: &mut [u8]) {
        let (numbers, serving) = elements.split_at_mut(self.elements_by_part().0 * ELEMENT_BYTES);
        write_slots(self.0.servers.backends(), numbers);
        write_slots(self.0.servers.serving(), serving);
    }

    fn each_part(&self, digest: &mut dyn FnMut(&[u8])) {
        digest_slots(self.0.servers.backends(), digest);
        digest_slots(self.0.servers.serving(), digest);
    }

    fn elements_of(raw: &RawHeader) -> Result<usize, ImageError> {
        let serving = slot_elements(raw.per_chunk as usize);
        let right = raw.slots <= 1 << 16
            && raw.chunks_a as usize == serving
            && raw.codec <= Forged::Refuse as u8
            && raw.segments <= 1 << 16;
        let numbers = slot_elements(raw.slots as usize).max(1);
        if right { Ok(numbers + serving) } else { Err(ImageError::Shape) }
    }

    fn read(raw: &RawHeader, elements: Vec<u8>) -> Result<Self, ImageError> {
        let numbers = slot_elements(raw.slots as usize).max(1);
        let (numbers, serving) = elements.split_at(numbers * ELEMENT_BYTES);
        let numbers = read_slots(raw.slots as usize, numbers);
        let serving = read_slots(raw.per_chunk as usize, serving);
        let forged = if raw.codec == 0 { Forged::Schedule } else { Forged::Refuse };
        let slots = Slots { partitions: raw.segments, idle_seconds: raw.chunks_b };
        let method = S::new(raw.key, forged, slots);
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
