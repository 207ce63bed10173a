//! A gateway: whole keys, so that no alien key passes (dissertation 3.5.4).

use crate::directory::Directory;
use crate::plane::{self, Feeds, in_bursts, kind, open_next};
use crate::{Control, FibError, FibKey, Host, MessageError, Network, Plane};
use std::sync::Arc;
use weir_lookup::Cuckoo;
use weir_lookup::message::BitReader;

/// Control plane: a table from keys to hosts.
#[derive(Clone, Debug)]
pub struct Gateway<K> {
    keys: Directory<K>,
    feeds: Feeds,
}

impl<K: FibKey> Gateway<K> {
    /// A control plane without keys, with room for `capacity` at first. `seed` makes every run with
    /// it the same.
    pub fn new(network: Arc<Network>, capacity: usize, seed: u64) -> Self {
        let feeds = Feeds::new(network.nodes(), seed);
        Self { keys: Directory::new(network, capacity, seed), feeds }
    }
}

impl<K: FibKey> Control<K> for Gateway<K> {
    type Plane = GatewayView<K>;
    const NAME: &'static str = "gateway";

    fn network(&self) -> &Network {
        self.keys.network()
    }

    fn len(&self) -> usize {
        self.keys.len()
    }

    fn host(&self, key: &K) -> Option<Host> {
        self.keys.host(key)
    }

    fn insert(&mut self, key: K, host: Host) -> Result<Option<Host>, FibError> {
        self.keys.insert(key, host)
    }

    fn remove(&mut self, key: &K) -> Option<Host> {
        self.keys.remove(key)
    }

    fn build(&mut self, node: usize) -> GatewayView<K> {
        let mut table = Cuckoo::new(16, self.len().max(1), self.feeds.plane(node));
        for (key, port) in self.keys.ports(node) {
            table.insert(key, port.into());
        }
        let (plane, number) = (self.feeds.plane(node), self.feeds.number(node));
        GatewayView { plane, number, ports: self.network().ports(node), table }
    }

    fn message(&mut self, node: usize) -> Option<Vec<u8>> {
        let change = self.keys.change(node)?;
        let mut out = change.head();
        if let Some(port) = change.to {
            out.put(port.into(), 16);
        }
        Some(self.feeds.seal(plane::GATEWAY, node, &out.finish()))
    }

    fn control_bytes(&self) -> usize {
        self.keys.bytes()
    }
}

/// Data plane: a (2,4)-cuckoo table from whole keys to ports.
#[derive(Clone, Debug)]
pub struct GatewayView<K> {
    plane: u64,
    number: u64,
    ports: usize,
    table: Cuckoo<K>,
}

impl<K: FibKey> Plane<K> for GatewayView<K> {
    #[inline]
    fn port(&self, key: &K) -> Option<u16> {
        self.table.get(key).map(|port| port as u16)
    }

    fn ports(&self, keys: &[K], out: &mut [Option<u16>]) {
        let lookup = |keys: &[K], found: &mut [_]| self.table.get_batch(keys, found);
        in_bursts(keys, out, lookup, |found: Option<u64>| found.map(|port| port as u16));
    }

    fn apply(&mut self, message: &[u8]) -> Result<(), MessageError> {
        let mut input =
            BitReader::new(open_next(message, plane::GATEWAY, self.plane, self.number)?);
        let kind = input.get(2)?;
        let key = K::get(&mut input)?;
        let port = if kind == kind::DELETE { None } else { Some(input.get(16)?) };
        input.end()?;
        if kind == kind::WHOLE || port.is_some_and(|port| port as usize >= self.ports) {
            return Err(MessageError::OutOfRange { what: "a port" });
        }
        if self.table.get(&key).is_some() != (kind != kind::ADD) {
            return Err(MessageError::OutOfRange { what: "a key" });
        }
        match port {
            Some(port) => drop(self.table.insert(key, port)),
            None => drop(self.table.remove(&key)),
        }
        self.number += 1;
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.table.bytes()
    }
}
