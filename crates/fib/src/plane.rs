//! The two faces of a forwarder.

use crate::{FibKey, Host, MessageError, Network};
use weir_lookup::wire::seal;
use weir_lookup::{HashKey, LudoError};

/// Why a control plane refused a change; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FibError {
    /// The network has no such host port.
    #[error("node {} has no host port {}", .0.node, .0.slot)]
    NoSuchHost(Host),
    /// The structure under the forwarder failed, which takes a broken hash.
    #[error(transparent)]
    Lookup(#[from] weir_lookup::Error),
    /// The same, for Ludo.
    #[error(transparent)]
    Ludo(#[from] LudoError),
}

/// A control plane: every key with its host, for all nodes of a network.
pub trait Control<K: FibKey>: Sized {
    /// What each node holds.
    type Plane: Plane<K>;

    /// The forwarder's name.
    const NAME: &'static str;

    /// Bytes of a message that say whom it is for, which one it is, and its digest.
    const ENVELOPE: usize = weir_lookup::wire::ENVELOPE;

    /// The network.
    fn network(&self) -> &Network;

    /// Number of keys.
    fn len(&self) -> usize;

    /// Whether there is no key.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The host of a key; exact.
    fn host(&self, key: &K) -> Option<Host>;

    /// Adds a key, or moves it to another host; returns the former one.
    ///
    /// # Errors
    /// [`FibError`]; nothing is changed then.
    fn insert(&mut self, key: K, host: Host) -> Result<Option<Host>, FibError>;

    /// Takes a key out; returns its host.
    fn remove(&mut self, key: &K) -> Option<Host>;

    /// A node's data plane whole, by giving the skeleton the node's ports.
    fn build(&mut self, node: usize) -> Self::Plane;

    /// The data planes of many nodes; what they have in common is found once.
    fn build_many(&mut self, nodes: &[usize]) -> Vec<Self::Plane> {
        nodes.iter().map(|&node| self.build(node)).collect()
    }

    /// The message of the last change for a node; none if it does not concern the node. Call it
    /// once for every node that holds a data plane, after every change.
    fn message(&mut self, node: usize) -> Option<Vec<u8>>;

    /// Bytes of the control plane's allocations.
    fn control_bytes(&self) -> usize;
}

/// A data plane: lookups, and messages that change it.
pub trait Plane<K>: Clone + Send {
    /// The port for a key; `None` if the key is found to be alien.
    fn port(&self, key: &K) -> Option<u16>;

    /// The ports for many keys.
    ///
    /// # Panics
    /// If the lengths differ.
    fn ports(&self, keys: &[K], out: &mut [Option<u16>]);

    /// Applies the next message.
    ///
    /// # Errors
    /// [`MessageError`] says why the message is not the next one; nothing is changed then.
    fn apply(&mut self, message: &[u8]) -> Result<(), MessageError>;

    /// Bytes of the lookup structure.
    fn bytes(&self) -> usize;
}

/// What the control planes keep in common: one number for each node's messages, and an address.
#[derive(Clone, Debug)]
pub(crate) struct Feeds {
    id: u64,
    numbers: Vec<u64>,
}

impl Feeds {
    pub(crate) fn new(nodes: usize, seed: u64) -> Self {
        Self { id: HashKey::from_seed(seed).mix(0x6669_6221), numbers: vec![0; nodes] }
    }

    /// Whom messages of a node are addressed to.
    pub(crate) fn plane(&self, node: usize) -> u64 {
        self.id.wrapping_add((node as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The number of the last message to a node.
    pub(crate) fn number(&self, node: usize) -> u64 {
        self.numbers[node]
    }

    /// The number of the next one, which is now the last.
    pub(crate) fn next(&mut self, node: usize) -> u64 {
        self.numbers[node] += 1;
        self.numbers[node]
    }

    /// The next message to a node.
    pub(crate) fn seal(&mut self, node: usize, body: &[u8]) -> Vec<u8> {
        let number = self.next(node);
        seal(self.plane(node), number, body)
    }
}

/// Kinds of messages, two bits.
pub(crate) mod kind {
    pub(crate) const ADD: u64 = 0;
    pub(crate) const DELETE: u64 = 1;
    pub(crate) const CHANGE: u64 = 2;
    pub(crate) const WHOLE: u64 = 3;
}

/// [`Plane::ports`] by a batch lookup whose answers have another form.
#[inline(always)]
pub(crate) fn in_bursts<K, T: Copy + Default>(
    keys: &[K],
    out: &mut [Option<u16>],
    lookup: impl Fn(&[K], &mut [T]),
    port: impl Fn(T) -> Option<u16>,
) {
    const BURST: usize = 256;
    let mut found = [T::default(); BURST];
    assert_eq!(keys.len(), out.len(), "one result per key");
    for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
        let found = &mut found[..keys.len()];
        lookup(keys, found);
        out.iter_mut().zip(&*found).for_each(|(out, &found)| *out = port(found));
    }
}

/// Checks that the network has the host port.
pub(crate) fn checked(network: &Network, host: Host) -> Result<Host, FibError> {
    if network.has(host) { Ok(host) } else { Err(FibError::NoSuchHost(host)) }
}
