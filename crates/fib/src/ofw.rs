//! The Othello forwarder (dissertation 3.4.3).

use crate::plane::{Feeds, checked, in_bursts};
use crate::{Control, FibError, FibKey, Host, MessageError, Network, Plane};
use std::sync::Arc;
use weir_lookup::{OthelloSet, SetKind, SetView};

/// Control plane: an [`OthelloSet`] from keys to hosts.
#[derive(Clone, Debug)]
pub struct Ofw<K> {
    network: Arc<Network>,
    set: OthelloSet<K, Host>,
    feeds: Feeds,
    /// Former and present host of the key that changed last.
    moved: Option<(Host, Host)>,
}

impl<K: FibKey> Ofw<K> {
    /// A control plane without keys, with room for `capacity` at first. Fingerprints have
    /// `fingerprint_bits` bits beside the emptiness bit; 0 suits nodes behind gateways. `seed`
    /// makes every run with it the same.
    ///
    /// # Panics
    ///
    /// If ports and fingerprints have more than 31 bits together.
    pub fn new(network: Arc<Network>, fingerprint_bits: u32, capacity: usize, seed: u64) -> Self {
        let set = OthelloSet::new(network.port_bits(), fingerprint_bits, capacity, seed);
        let feeds = Feeds::new(network.nodes(), seed);
        Self { network, set, feeds, moved: None }
    }

    /// The chance that an alien key gets a port (equation 3.9).
    pub fn false_positive_rate(&self) -> f64 {
        self.set.false_positive_rate()
    }
}

impl<K: FibKey> Control<K> for Ofw<K> {
    type Plane = OfwView;
    const NAME: &'static str = "OFW";

    fn network(&self) -> &Network {
        &self.network
    }

    fn len(&self) -> usize {
        self.set.len()
    }

    fn host(&self, key: &K) -> Option<Host> {
        self.set.get(key).copied()
    }

    fn insert(&mut self, key: K, host: Host) -> Result<Option<Host>, FibError> {
        let host = checked(&self.network, host)?;
        let former = self.set.insert(key, host)?;
        self.moved = former.map(|former| (former, host));
        Ok(former)
    }

    fn remove(&mut self, key: &K) -> Option<Host> {
        let former = self.set.remove(key)?;
        self.moved = None;
        Some(former)
    }

    fn build(&mut self, node: usize) -> OfwView {
        let ports = |host: &Host| self.network.port(node, *host).into();
        OfwView(self.set.export(node as u32, self.feeds.number(node), ports))
    }

    fn build_many(&mut self, nodes: &[usize]) -> Vec<OfwView> {
        let exporter = self.set.exporter();
        let build = |&node: &usize| {
            let ports = |host: &Host| self.network.port(node, *host).into();
            OfwView(exporter.export(node as u32, self.feeds.number(node), ports))
        };
        nodes.iter().map(build).collect()
    }

    fn message(&mut self, node: usize) -> Option<Vec<u8>> {
        let port = |host: &Host| u32::from(self.network.port(node, *host));
        if let (SetKind::Change, Some((former, host))) = (self.set.kind(), self.moved)
            && port(&former) == port(&host)
        {
            return None;
        }
        let number = self.feeds.next(node);
        Some(self.set.message(node as u32, number, port).to_bytes())
    }

    fn control_bytes(&self) -> usize {
        self.set.control_bytes()
    }
}

/// Data plane: two arrays of cells; a lookup reads one cell of each.
#[derive(Clone, PartialEq, Debug)]
pub struct OfwView(SetView);

impl OfwView {
    /// Whether this view and another one of the same node give the same ports for `keys`, which
    /// must be all keys that there are. (Cells may differ where no key can see it.)
    pub fn agrees_with<K: FibKey>(&self, other: &Self, keys: impl IntoIterator<Item = K>) -> bool {
        self.0.agrees_with(&other.0, keys)
    }
}

impl<K: FibKey> Plane<K> for OfwView {
    #[inline]
    fn port(&self, key: &K) -> Option<u16> {
        self.0.get(key).map(|port| port as u16)
    }

    fn ports(&self, keys: &[K], out: &mut [Option<u16>]) {
        let lookup = |keys: &[K], found: &mut [_]| self.0.get_batch(keys, found);
        in_bursts(keys, out, lookup, |found: Option<u32>| found.map(|port| port as u16));
    }

    fn apply(&mut self, message: &[u8]) -> Result<(), MessageError> {
        self.0.apply_bytes(message)
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}
