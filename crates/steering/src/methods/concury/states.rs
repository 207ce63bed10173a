//! The control structure of each codec: the states of a service, and the Dcodes made of them.

use super::codec::{Codec, Codes, FlowHash};
use super::config::ConcuryConfig;
use crate::dense::DenseMap;
use crate::registry::Image;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use weir_hash::{HashKey, Key};
use weir_lookup::{Error, Fuse, OthelloMap, View};

/// Flow hash keys under which two states may collide before the hash counts as broken. One such
/// key is met once in 2^64 builds per pair of IPv6 states, and never with IPv4.
const MAX_KEYS: u32 = 16;

/// An exact map from keys to `V`, which can be exported as Dcodes.
#[derive(Clone, Debug)]
pub(super) enum States<K, V> {
    /// The graph of the Dcodes is the index of the states.
    Othello(OthelloMap<K, V>),
    /// The same without states, as most services of a balancer with thousands of them are: the shape
    /// of the graph stands in the published table, and its cells too. With the seed for when states
    /// come, and how many there may be.
    Resting(Arc<Image>, u64, usize),
    /// An index, and a random source for the seeds of fuses.
    Fuse(DenseMap<K, V>, ChaCha8Rng),
}

impl<K: Key, V> States<K, V> {
    pub fn new(config: &ConcuryConfig) -> Self {
        match config.codec {
            Codec::Othello => {
                let mut map = OthelloMap::new(config.bits, config.capacity, config.seed);
                map.never_beyond(config.max_states);
                Self::Othello(map)
            }
            Codec::Fuse => {
                let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
                let key = HashKey::from_rng(&mut rng);
                Self::Fuse(DenseMap::new(key, config.capacity), rng)
            }
        }
    }

    /// An empty map that goes on from a table: its flow hash key and, with Othello, its shape.
    pub fn after(config: &ConcuryConfig, image: &Image) -> Option<Self> {
        match (config.codec, image.codes()?) {
            (Codec::Othello, Codes::Othello(view)) => {
                Some(Self::in_shape_of(view, config.seed, config.max_states))
            }
            (Codec::Fuse, Codes::Fuse(_)) => {
                let rng = ChaCha8Rng::seed_from_u64(config.seed);
                let map = DenseMap::new(image.header().key, config.capacity);
                Some(Self::Fuse(map, rng))
            }
            _ => None,
        }
    }

    fn in_shape_of(view: &View, seed: u64, most: usize) -> Self {
        let mut map = OthelloMap::in_shape_of(view, seed);
        map.never_beyond(most);
        Self::Othello(map)
    }

    /// There are so many states at most from now on.
    pub fn never_beyond(&mut self, states: usize) {
        match self {
            Self::Othello(map) => map.never_beyond(states),
            Self::Resting(_, _, most) => *most = states,
            Self::Fuse(..) => {}
        }
    }

    /// Gives back the memory of a graph that has no states, and may have so many. Unknown flows stay where they
    /// are: the next table is made over this one.
    pub fn rest(&mut self, published: &Arc<Image>, seed: u64, most: usize) {
        if let Self::Othello(map) = self
            && map.is_empty()
            && published.view().is_some()
        {
            *self = Self::Resting(published.clone(), seed, most);
        } else if let Self::Resting(image, ..) = self
            && published.view().is_some()
        {
            image.clone_from(published);
        }
    }

    /// The opposite.
    fn wake(&mut self) {
        if let Self::Resting(image, seed, most) = self
            && let Some(view) = image.view()
        {
            *self = Self::in_shape_of(view, *seed, *most);
        }
    }

    pub fn len(&self) -> usize {
        self.keys().len()
    }

    pub fn keys(&self) -> &[K] {
        match self {
            Self::Othello(map) => map.keys(),
            Self::Resting(..) => &[],
            Self::Fuse(map, _) => map.keys(),
        }
    }

    pub fn values(&self) -> &[V] {
        match self {
            Self::Othello(map) => map.values(),
            Self::Resting(..) => &[],
            Self::Fuse(map, _) => map.values(),
        }
    }

    pub fn entries_mut(&mut self) -> (&[K], &mut [V]) {
        match self {
            Self::Othello(map) => map.entries_mut(),
            Self::Resting(..) => (&[], &mut []),
            Self::Fuse(map, _) => map.entries_mut(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.keys().iter().zip(self.values())
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        match self {
            Self::Othello(map) => map.get(key),
            Self::Resting(..) => None,
            Self::Fuse(map, _) => map.get(key),
        }
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match self {
            Self::Othello(map) => map.get_mut(key),
            Self::Resting(..) => None,
            Self::Fuse(map, _) => map.get_mut(key),
        }
    }

    pub fn insert(&mut self, key: K, value: V) -> Result<(), Error> {
        self.wake();
        match self {
            Self::Othello(map) => map.insert(key, value).map(drop),
            Self::Resting(..) => unreachable!("it has a view"),
            Self::Fuse(map, _) => {
                map.insert(key, value);
                Ok(())
            }
        }
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        match self {
            Self::Othello(map) => map.remove(key),
            Self::Resting(..) => None,
            Self::Fuse(map, _) => map.remove(key),
        }
    }

    pub fn retain(&mut self, keep: impl FnMut(&K, &mut V) -> bool) -> usize {
        match self {
            Self::Othello(map) => map.retain(keep),
            Self::Resting(..) => 0,
            Self::Fuse(map, _) => map.retain(keep),
        }
    }

    pub fn reserve(&mut self, states: usize) -> Result<(), Error> {
        self.wake();
        match self {
            Self::Othello(map) => map.reserve(states),
            Self::Resting(..) => unreachable!("it has a view"),
            Self::Fuse(map, _) => {
                map.reserve(states);
                Ok(())
            }
        }
    }

    pub fn control_bytes(&self) -> usize {
        match self {
            Self::Othello(map) => map.control_bytes(),
            Self::Resting(..) => 0,
            Self::Fuse(map, _) => map.bytes(),
        }
    }

    /// The Dcodes `code(state)` of all states, and the key of the flow hash that leads to them.
    ///
    /// Othello changes its former cells only where it must, and looks only at states of which `may` says
    /// that their Dcode may be another than in `former`. The fuse is built whole; its flow hash
    /// key stays, unless two states share a flow hash, which no seed of the fuse could resolve.
    pub fn export(
        &mut self,
        former: Option<&Image>,
        bits: u32,
        may: impl Fn(&V) -> bool,
        code: impl Fn(&V) -> u32,
    ) -> Result<(HashKey, Codes), Error> {
        if let Self::Resting(image, ..) = self
            && former.is_some_and(|former| std::ptr::eq(former, &raw const **image))
            && let Some(view) = image.view()
        {
            return Ok((*view.hash_key(), Codes::Othello(view.clone())));
        }
        self.wake();
        match self {
            Self::Resting(..) => unreachable!("it has a view"),
            Self::Othello(map) => {
                let view = map.export_changes(former.and_then(Image::view), may, code);
                Ok((*view.hash_key(), Codes::Othello(view)))
            }
            Self::Fuse(map, rng) => {
                for _ in 0..MAX_KEYS {
                    let key = *map.hash_key();
                    let hashes: Vec<_> =
                        map.keys().iter().map(|k| FlowHash(k.hash(&key))).collect();
                    let values = map.values();
                    match Fuse::build(bits, &hashes, |at| code(&values[at]), rng.next_u64()) {
                        Err(Error::DuplicateKey { .. }) => map.rekey(HashKey::from_rng(rng)),
                        built => return built.map(|fuse| (key, Codes::Fuse(fuse))),
                    }
                }
                Err(Error::NoAcyclicGraph { keys: map.len(), tries: MAX_KEYS })
            }
        }
    }
}
