//! Concury as a data plane in user space: bursts of packets over a published table.

use super::build::Concury;
use super::config::ConcuryConfig;
use crate::BuildError;
use crate::decide::{Decide, Question, Signals};
use crate::dense::DenseMap;
use crate::forwarder::Forwarder;
use crate::ids::BackendId;
use crate::memory::Memory;
use crate::pool::Member;
use crate::registry::Image;
use crate::table::{Flags, ImageError};
use std::sync::Arc;
use weir_hash::{HashKey, Key};

/// The pending flows of one service, as many as come; nothing else is remembered.
#[derive(Clone, Debug)]
pub struct Pending<K> {
    flows: DenseMap<K, BackendId>,
}

impl<K: Key> Pending<K> {
    /// None yet. They are found by their hashes under `key`.
    pub fn new(key: HashKey) -> Self {
        Self { flows: DenseMap::new(key, 0) }
    }

    /// Notes a flow at a backend.
    pub fn note(&mut self, flow: K, backend: BackendId) {
        self.flows.insert(flow, backend);
    }

    /// Forgets the flows for which `keep` says no.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, BackendId) -> bool) {
        self.flows.retain(|flow, backend| keep(flow, *backend));
    }
}

impl<K: Key> Memory<K> for Pending<K> {
    #[inline]
    fn pending(&mut self, question: &Question<K>) -> Option<BackendId> {
        self.flows.get(&question.key).copied()
    }

    fn note_pending(&mut self, question: &Question<K>, backend: BackendId) -> bool {
        self.note(question.key, backend);
        true
    }

    fn end(&mut self, question: &Question<K>) {
        self.flows.remove(&question.key);
    }

    fn bytes(&self) -> usize {
        self.flows.bytes()
    }
}

/// Over one of Concury's tables, with the flags that it has. Bursts may have any length; nothing
/// is allocated for them.
impl<K: Key> Forwarder<K> {
    /// Over a table.
    ///
    /// # Errors
    /// [`ImageError::NoDcodes`] if the table is none of Concury's.
    pub fn new(image: Arc<Image>) -> Result<Self, ImageError> {
        check(&image)?;
        let pending = Pending::new(image.header().key);
        Ok(Self::with(image, pending))
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
        states: impl ExactSizeIterator<Item = (K, BackendId)>,
    ) -> Result<(Concury<K>, Self), BuildError> {
        let mut concury = Concury::new(ConcuryConfig { capacity: states.len(), ..config });
        for (flow, backend) in states {
            concury.start(flow, backend, 0)?;
        }
        let (image, _) = concury.build(1, members, 0)?;
        let pending = Pending::new(image.header().key);
        Ok((concury, Self::with(image, pending)))
    }

    /// Takes another table. Pending flows stay.
    ///
    /// # Errors
    /// As [`new`](Self::new); the former table stays then.
    pub fn publish(&mut self, image: Arc<Image>) -> Result<(), ImageError> {
        check(&image)?;
        self.table = image;
        Ok(())
    }

    /// The table that packets follow.
    pub fn image(&self) -> &Arc<Image> {
        &self.table
    }

    /// Sets the flags of the table, for everybody who holds it.
    pub fn set_flags(&mut self, flags: Flags) {
        self.table.set_flags(flags);
    }

    /// Notes a flow as pending at a backend. It is found while [`Flags::PENDING`] is set or if it
    /// falls on a reserved Dcode.
    pub fn note_pending(&mut self, flow: K, backend: BackendId) {
        self.memory.note(flow, backend);
    }

    /// Forgets the pending flows for which `keep` says no.
    pub fn retain_pending(&mut self, keep: impl FnMut(&K, BackendId) -> bool) {
        self.memory.retain(keep);
    }

    /// Where the packet goes that starts a flow: not to a backend that only keeps what it has. Of
    /// a flow that falls on such a one's Dcode, and of any while [`Flags::RECORD`] is set, it is
    /// noted as pending. No pins are known here, so the packet must not be a repeated one.
    pub fn start(&mut self, flow: &K) -> u16 {
        self.decide(flow, Signals::FIRST, 0).slot()
    }

    /// Where a packet goes that starts no flow.
    #[inline]
    pub fn find(&self, flow: &K) -> u16 {
        let question = Question::later(*flow, flow.hash(&self.table.header().key));
        self.table.decide(&question, &mut Read(&self.memory)).slot()
    }
}

/// The pending flows, to be read only.
struct Read<'a, K>(&'a Pending<K>);

impl<K: Key> Memory<K> for Read<'_, K> {
    #[inline]
    fn pending(&mut self, question: &Question<K>) -> Option<BackendId> {
        self.0.flows.get(&question.key).copied()
    }
}

fn check(image: &Image) -> Result<(), ImageError> {
    match image.concury() {
        Some(_) => Ok(()),
        None => Err(ImageError::NoDcodes(image.method())),
    }
}
