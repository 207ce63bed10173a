//! Concury as a data plane in user space: bursts of packets over a published table.

use super::build::Concury;
use super::config::ConcuryConfig;
use super::decide::place_again;
use super::dense::DenseMap;
use crate::image::{
    Flags, HEADER_BYTES, Image, ImageError, NO_BACKEND, SLOT_BACKEND, SLOT_RESERVED,
};
use crate::pool::Member;
use crate::{BuildError, Steer};
use std::sync::Arc;
use weir_lookup::Key;

/// Steers packets over a table and the pending flows.
///
/// Answers are those of [`decide`](crate::decide), for packets that start no flow but at
/// [`start`](Self::start). Bursts may have any length; nothing is allocated for them.
#[derive(Clone, Debug)]
pub struct Forwarder<K> {
    image: Arc<Image>,
    flags: Flags,
    pending: DenseMap<K, u16>,
}

impl<K: Key> Forwarder<K> {
    /// Over a table, with the flags that it has.
    ///
    /// # Errors
    /// [`ImageError::NoDcodes`] if the table is none of Concury's.
    pub fn new(image: Arc<Image>) -> Result<Self, ImageError> {
        check(&image)?;
        let pending = DenseMap::new(image.header().key, 0);
        Ok(Self { flags: image.header().flags, image, pending })
    }

    /// A control plane that holds these flows at these backends, and a forwarder over its first
    /// table. Later tables come from [`Concury::start`], [`Concury::build`] and
    /// [`publish`](Self::publish). Flows at backends that are no members are left out.
    ///
    /// # Errors
    /// As [`Concury::start`] and [`Concury::build`].
    pub fn build(
        config: ConcuryConfig,
        members: &[Member],
        states: impl ExactSizeIterator<Item = (K, u16)>,
    ) -> Result<(Concury<K>, Self), BuildError> {
        let mut concury = Concury::new(ConcuryConfig { capacity: states.len(), ..config });
        for (flow, backend) in states {
            concury.start(flow, backend, 0)?;
        }
        let (image, _) = concury.build(1, members, 0)?;
        let pending = DenseMap::new(image.header().key, 0);
        Ok((concury, Self { flags: image.header().flags, image, pending }))
    }

    /// Takes another table, with the flags that it has. Pending flows stay.
    ///
    /// # Errors
    /// As [`new`](Self::new); the former table stays then.
    pub fn publish(&mut self, image: Arc<Image>) -> Result<(), ImageError> {
        check(&image)?;
        self.flags = image.header().flags;
        self.image = image;
        Ok(())
    }

    /// The table.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Sets the flags, as they are set in a published table.
    pub fn set_flags(&mut self, flags: Flags) {
        self.flags = flags;
    }

    /// Notes a flow as pending at a backend. It is found while [`Flags::PENDING`] is set or if it
    /// falls on a reserved Dcode.
    pub fn note_pending(&mut self, flow: K, backend: u16) {
        self.pending.insert(flow, backend);
    }

    /// Forgets the pending flows for which `keep` says no.
    pub fn retain_pending(&mut self, mut keep: impl FnMut(&K, u16) -> bool) {
        self.pending.retain(|flow, backend| keep(flow, *backend));
    }

    /// Where the packet goes that starts a flow: not to a backend that only keeps what it has. Of
    /// a flow that falls on such a one's Dcode, and of any while [`Flags::RECORD`] is set, it is
    /// noted as pending. No pins are known here, so the packet must not be a repeated one.
    pub fn start(&mut self, flow: &K) -> u16 {
        let hash = flow.hash(&self.image.header().key);
        let entry = self.image.entry(hash);
        let known = self.asked(entry).then(|| self.pending.get(flow)).flatten();
        if let Some(&backend) = known {
            return backend;
        }
        let reserved = entry & SLOT_RESERVED != 0;
        let backend = if reserved { place_again(&self.image, hash) } else { entry };
        if backend != NO_BACKEND && (reserved || self.flags.has(Flags::RECORD)) {
            self.note_pending(*flow, backend);
        }
        backend
    }

    /// Where a packet goes that starts no flow.
    #[inline]
    pub fn find(&self, flow: &K) -> u16 {
        let entry = self.image.entry(flow.hash(&self.image.header().key));
        self.resolve(flow, entry)
    }

    /// Whether a flow whose Dcode leads to this slot may be pending.
    #[inline]
    fn asked(&self, entry: u16) -> bool {
        entry & SLOT_RESERVED != 0 || self.flags.has(Flags::PENDING)
    }

    /// Where a packet goes whose Dcode leads to this slot.
    #[inline]
    fn resolve(&self, flow: &K, entry: u16) -> u16 {
        let pending = if self.asked(entry) { self.pending.get(flow).copied() } else { None };
        pending.unwrap_or(entry & SLOT_BACKEND)
    }
}

impl<K: Key> Steer<K> for Forwarder<K> {
    #[inline]
    fn steer(&mut self, flow: &K) -> u16 {
        self.find(flow)
    }

    #[inline]
    fn steer_batch(&mut self, flows: &[K], out: &mut [u16]) {
        let (key, slots) = (self.image.header().key, self.image.slots());
        let mut all = 0;
        let slot = |code: u32| {
            let entry = slots[code as usize & (slots.len() - 1)];
            all |= entry;
            entry
        };
        if let Some(codes) = self.image.codes() {
            codes.lookup_batch_with(flows, out, |flow| flow.hash(&key), slot);
        }
        // Hardly ever: an update is under way, or a backend of one of these flows drains.
        if self.asked(all) {
            for (flow, out) in flows.iter().zip(out) {
                *out = self.resolve(flow, *out);
            }
        }
    }

    fn end(&mut self, flow: &K) {
        self.pending.remove(flow);
    }

    fn bytes(&self) -> usize {
        let codes = self.image.codes().map_or(0, |codes| codes.bytes().len());
        HEADER_BYTES + size_of_val(self.image.slots()) + codes + self.pending.bytes()
    }
}

fn check(image: &Image) -> Result<(), ImageError> {
    match image.codes() {
        Some(_) => Ok(()),
        None => Err(ImageError::NoDcodes(image.header().method)),
    }
}
