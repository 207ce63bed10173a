//! The two faces of a forwarder.

use crate::{FibKey, Host, MessageError, Network};
use weir_hash::HashKey;
use weir_lookup::message::{Kind, Message, seal};

/// Why a control plane refused a change; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FibError {
    /// The network has no such node, or the node no such host port.
    #[error("node {} has no host port {}", .0.node, .0.slot)]
    NoSuchHost(Host),
    /// The map under the forwarder refused the key: its hash is broken, or there are more keys than
    /// the map can number.
    #[error(transparent)]
    Lookup(#[from] weir_lookup::Error),
}

/// A control plane: every key with its host, for all nodes of a network.
pub trait Control<K: FibKey>: Sized {
    /// The data plane that each node holds.
    type Plane: Plane<K>;

    /// Name of the forwarder, as reports print it: `OFW`.
    const NAME: &'static str;

    /// The network whose nodes it serves.
    fn network(&self) -> &Network;

    /// Number of keys that it holds.
    fn len(&self) -> usize;

    /// Whether it holds no key.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The host of a key; `None` if the key is not in the network. Exact.
    fn host(&self, key: &K) -> Option<Host>;

    /// Adds a key, or moves it to another host; returns the former one.
    ///
    /// # Errors
    /// [`FibError`]; nothing is changed then.
    fn insert(&mut self, key: K, host: Host) -> Result<Option<Host>, FibError>;

    /// Takes a key out; returns its host, `None` if it was not there.
    fn remove(&mut self, key: &K) -> Option<Host>;

    /// A node's data plane as a whole. The skeleton is there already; it gets the node's ports.
    fn build(&mut self, node: usize) -> Self::Plane;

    /// The data planes of many nodes; what they have in common is found once.
    fn build_many(&mut self, nodes: &[usize]) -> Vec<Self::Plane> {
        nodes.iter().map(|&node| self.build(node)).collect()
    }

    /// The message of the last change for a node; none if it does not concern the node. Call it
    /// once for every node that holds a data plane, after every change.
    fn message(&mut self, node: usize) -> Option<Vec<u8>>;

    /// Bytes of all allocations of the control plane.
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

    /// Bytes of the tables that lookups may read.
    fn bytes(&self) -> usize;
}

/// What the control planes have in common: the address of each node's data plane and the number of
/// its last message.
#[derive(Clone, Debug)]
pub(crate) struct Feeds {
    id: u64,
    numbers: Vec<u64>,
}

impl Feeds {
    pub(crate) fn new(nodes: usize, seed: u64) -> Self {
        Self { id: HashKey::from_seed(seed).mix(0x6669_6221), numbers: vec![0; nodes] }
    }

    /// The address that messages to a node's data plane carry, 64 bits. A plane refuses those with
    /// another.
    pub(crate) fn plane(&self, node: usize) -> u64 {
        self.id.wrapping_add((node as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The number of the last message to a node.
    pub(crate) fn number(&self, node: usize) -> u64 {
        self.numbers[node]
    }

    /// Counts a message to a node; returns its number.
    pub(crate) fn next(&mut self, node: usize) -> u64 {
        self.numbers[node] += 1;
        self.numbers[node]
    }

    /// Puts the body of the next message to a node into its envelope.
    pub(crate) fn seal(&mut self, kind: Kind, node: usize, body: &[u8]) -> Vec<u8> {
        let number = self.next(node);
        seal(kind, self.plane(node), number, body)
    }
}

/// What the messages of the forwarders here are, beside those of the maps under them.
pub(crate) const BFW: Kind = Kind::new(64, 1);
pub(crate) const CFW: Kind = Kind::new(65, 1);
pub(crate) const GATEWAY: Kind = Kind::new(66, 1);

/// The body of the message after number `number` of a plane.
pub(crate) fn open_next(
    message: &[u8],
    kind: Kind,
    plane: u64,
    number: u64,
) -> Result<&[u8], MessageError> {
    Ok(Message::read(message)?.expect(kind)?.follows(plane, number)?.body)
}

/// Kinds of changes, as the first two bits of a body say.
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
