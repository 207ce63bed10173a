//! A gateway: whole keys, so that no alien key passes (dissertation 3.5.4).

use crate::plane::{Feeds, checked, kind};
use crate::{Control, FibError, FibKey, Host, MessageError, Network, Plane};
use std::sync::Arc;
use weir_lookup::Cuckoo;
use weir_lookup::wire::{BitReader, BitWriter, open_next, seal};

/// Control plane: a table from keys to hosts.
#[derive(Clone, Debug)]
pub struct Gateway<K> {
    network: Arc<Network>,
    keys: Cuckoo<K>,
    feeds: Feeds,
    /// The key that changed last, with its former and its present host.
    last: Option<(K, Option<Host>, Option<Host>)>,
}

impl<K: FibKey> Gateway<K> {
    /// Without keys.
    pub fn new(network: Arc<Network>, capacity: usize, seed: u64) -> Self {
        let feeds = Feeds::new(network.nodes(), seed);
        Self { network, keys: Cuckoo::new(32, capacity, seed), feeds, last: None }
    }
}

impl<K: FibKey> Control<K> for Gateway<K> {
    type Plane = GatewayView<K>;
    const NAME: &'static str = "gateway";

    fn network(&self) -> &Network {
        &self.network
    }

    fn len(&self) -> usize {
        self.keys.len()
    }

    fn host(&self, key: &K) -> Option<Host> {
        self.keys.get(key).map(Host::from_code)
    }

    fn insert(&mut self, key: K, host: Host) -> Result<Option<Host>, FibError> {
        let host = checked(&self.network, host)?;
        let former = self.keys.insert(key, host.code()).map(Host::from_code);
        self.last = Some((key, former, Some(host)));
        Ok(former)
    }

    fn remove(&mut self, key: &K) -> Option<Host> {
        let former = self.keys.remove(key).map(Host::from_code)?;
        self.last = Some((*key, Some(former), None));
        Some(former)
    }

    fn build(&mut self, node: usize) -> GatewayView<K> {
        let mut table = Cuckoo::new(16, self.len().max(1), self.feeds.plane(node));
        for (key, host) in self.keys.iter() {
            table.insert(key, self.network.port(node, Host::from_code(host)).into());
        }
        let (plane, number) = (self.feeds.plane(node), self.feeds.number(node));
        GatewayView { plane, number, ports: self.network.ports(node), table }
    }

    fn message(&mut self, node: usize) -> Option<Vec<u8>> {
        let (key, former, host) = self.last?;
        let port = |host| self.network.port(node, host);
        let mut out = BitWriter::default();
        match (former.map(port), host.map(port)) {
            (Some(former), Some(port)) if former == port => return None,
            (None, Some(port)) => put(&mut out, kind::ADD, &key, Some(port)),
            (Some(_), Some(port)) => put(&mut out, kind::CHANGE, &key, Some(port)),
            (_, None) => put(&mut out, kind::DELETE, &key, None),
        }
        let number = self.feeds.next(node);
        Some(seal(self.feeds.plane(node), number, &out.finish()))
    }

    fn control_bytes(&self) -> usize {
        self.keys.bytes()
    }
}

fn put<K: FibKey>(out: &mut BitWriter, kind: u64, key: &K, port: Option<u16>) {
    out.put(kind, 2);
    key.put(out);
    if let Some(port) = port {
        out.put(port.into(), 16);
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
        const BURST: usize = 256;
        let mut found = [None; BURST];
        assert_eq!(keys.len(), out.len(), "one result per key");
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            self.table.lookup_batch(keys, &mut found[..keys.len()]);
            for (out, found) in out.iter_mut().zip(found) {
                *out = found.map(|port| port as u16);
            }
        }
    }

    fn apply(&mut self, message: &[u8]) -> Result<(), MessageError> {
        let mut input = BitReader::new(open_next(message, self.plane, self.number)?);
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
