//! Ludo as a forwarder, for networks without alien keys (dissertation chapter 4, case study).

use crate::network::bits_for;
use crate::plane::{checked, in_bursts};
use crate::{Control, FibError, FibKey, Host, MessageError, Network, Plane};
use std::sync::Arc;
use weir_lookup::{Ludo, LudoView};

/// Control plane: a [`Ludo`] table from keys to hosts.
///
/// All nodes hold the same table and get the same messages. What differs is the short list of ports
/// by node. Values are `log2(nodes * host ports)` bits, not those of a port, and in return a new
/// route changes no table at all.
#[derive(Clone, Debug)]
pub struct LudoFib<K> {
    network: Arc<Network>,
    table: Ludo<K>,
    message: Vec<u8>,
    encoded: u64,
}

impl<K: FibKey> LudoFib<K> {
    /// A control plane without keys, with room for `capacity` at first. `seed` makes every run with
    /// it the same.
    ///
    /// # Errors
    ///
    /// [`FibError::Lookup`] for a capacity of more than 920 million.
    pub fn new(network: Arc<Network>, capacity: usize, seed: u64) -> Result<Self, FibError> {
        let bits = bits_for(network.nodes() * usize::from(network.slots()));
        let table = Ludo::new(bits, capacity, seed)?;
        Ok(Self { network, table, message: Vec::new(), encoded: 0 })
    }

    fn value(&self, host: Host) -> u64 {
        u64::from(host.node) * u64::from(self.network.slots()) + u64::from(host.slot)
    }

    fn host_of(&self, value: u64) -> Host {
        let slots = u64::from(self.network.slots());
        Host { node: (value / slots) as u16, slot: (value % slots) as u16 }
    }
}

impl<K: FibKey> Control<K> for LudoFib<K> {
    type Plane = LudoFibView;
    const NAME: &'static str = "Ludo";

    fn network(&self) -> &Network {
        &self.network
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn host(&self, key: &K) -> Option<Host> {
        self.table.get(key).map(|value| self.host_of(value))
    }

    fn insert(&mut self, key: K, host: Host) -> Result<Option<Host>, FibError> {
        let host = checked(&self.network, host)?;
        let former = self.table.insert(key, self.value(host))?;
        Ok(former.map(|value| self.host_of(value)))
    }

    fn remove(&mut self, key: &K) -> Option<Host> {
        let former = self.table.remove(key)?;
        Some(self.host_of(former))
    }

    fn build(&mut self, node: usize) -> LudoFibView {
        let network = &self.network;
        let hosts = (0..network.nodes())
            .flat_map(|to| (0..network.slots()).map(move |slot| Host { node: to as u16, slot }));
        let ports = hosts.map(|host| network.port(node, host)).collect();
        LudoFibView { ports, table: self.table.view().clone() }
    }

    fn message(&mut self, _node: usize) -> Option<Vec<u8>> {
        let update = self.table.update();
        if self.encoded != update.number() {
            self.encoded = update.number();
            self.message = update.to_bytes();
        }
        (!self.message.is_empty()).then(|| self.message.clone())
    }

    fn control_bytes(&self) -> usize {
        self.table.control_bytes()
    }
}

/// Data plane: a bucket of Ludo tells the host, a list of ports by host the port.
#[derive(Clone, Debug)]
pub struct LudoFibView {
    ports: Vec<u16>,
    table: LudoView,
}

impl LudoFibView {
    /// An alien key's arbitrary value may be no host's; there is no port then.
    #[inline(always)]
    fn port_of(&self, value: u64) -> Option<u16> {
        self.ports.get(value as usize).copied()
    }
}

impl<K: FibKey> Plane<K> for LudoFibView {
    #[inline]
    fn port(&self, key: &K) -> Option<u16> {
        self.port_of(self.table.get(key))
    }

    fn ports(&self, keys: &[K], out: &mut [Option<u16>]) {
        let lookup = |keys: &[K], found: &mut [_]| self.table.get_batch(keys, found);
        in_bursts(keys, out, lookup, |value| self.port_of(value));
    }

    fn apply(&mut self, message: &[u8]) -> Result<(), MessageError> {
        self.table.apply_bytes(message)
    }

    fn bytes(&self) -> usize {
        self.table.bytes() + size_of_val(&self.ports[..])
    }
}
