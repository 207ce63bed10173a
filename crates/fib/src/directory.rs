//! Whole keys with their hosts: what a control plane keeps that has no skeleton of its own.

use crate::plane::{checked, kind};
use crate::{FibError, FibKey, Host, Network};
use std::sync::Arc;
use weir_lookup::Cuckoo;
use weir_lookup::message::BitWriter;

/// A (2,4)-cuckoo table from keys to hosts, and the change that came last.
#[derive(Clone, Debug)]
pub(crate) struct Directory<K> {
    network: Arc<Network>,
    keys: Cuckoo<K>,
    /// The key that changed last, with its former and its present host.
    last: Option<(K, Option<Host>, Option<Host>)>,
}

impl<K: FibKey> Directory<K> {
    /// Without keys.
    pub(crate) fn new(network: Arc<Network>, capacity: usize, seed: u64) -> Self {
        Self { network, keys: Cuckoo::new(32, capacity, seed), last: None }
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn host(&self, key: &K) -> Option<Host> {
        self.keys.get(key).map(Host::from_code)
    }

    pub(crate) fn insert(&mut self, key: K, host: Host) -> Result<Option<Host>, FibError> {
        let host = checked(&self.network, host)?;
        let former = self.keys.insert(key, host.code()).map(Host::from_code);
        self.last = Some((key, former, Some(host)));
        Ok(former)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<Host> {
        let former = self.keys.remove(key).map(Host::from_code)?;
        self.last = Some((*key, Some(former), None));
        Some(former)
    }

    /// Every key with its port at a node.
    pub(crate) fn ports(&self, node: usize) -> impl Iterator<Item = (K, u16)> {
        let port = move |code| self.network.port(node, Host::from_code(code));
        self.keys.iter().map(move |(key, code)| (key, port(code)))
    }

    /// What the last change is to a node; none if the key's port there stays the same.
    pub(crate) fn change(&self, node: usize) -> Option<PortChange<K>> {
        let (key, former, host) = self.last?;
        let port = |host| self.network.port(node, host);
        let (from, to) = (former.map(port), host.map(port));
        (from != to).then_some(PortChange { key, from, to })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.keys.bytes()
    }
}

/// A key that comes, goes, or leaves through another port of a node.
pub(crate) struct PortChange<K> {
    key: K,
    pub(crate) from: Option<u16>,
    pub(crate) to: Option<u16>,
}

impl<K: FibKey> PortChange<K> {
    /// Kind and key, with which a message of the change begins.
    pub(crate) fn head(&self) -> BitWriter {
        let kind = match (self.from, self.to) {
            (None, _) => kind::ADD,
            (_, None) => kind::DELETE,
            _ => kind::CHANGE,
        };
        let mut out = BitWriter::default();
        out.put(kind, 2);
        self.key.put(&mut out);
        out
    }
}
