//! The Bloom forwarder (dissertation 3.4.1), which the others are compared with.

use crate::directory::Directory;
use crate::plane::{self, Feeds, kind, open_next};
use crate::{Control, FibError, FibKey, Host, MessageError, Network, Plane};
use std::sync::Arc;
use weir_lookup::message::{BitReader, BitWriter};
use weir_lookup::{Bloom, CountingBloom};

/// Filters are made for this much more than they hold, and for this many keys at least.
const HEADROOM: (f64, usize) = (1.25, 64);

fn room(keys: usize) -> usize {
    ((keys as f64 * HEADROOM.0) as usize).max(HEADROOM.1)
}

/// Control plane: a cuckoo table from keys to hosts, and how full the filters of each node are.
///
/// Counting filters are not here but in the data planes: each has its own, and here they would
/// take more memory than everything else.
#[derive(Clone, Debug)]
pub struct Bfw<K> {
    keys: Directory<K>,
    feeds: Feeds,
    bits_per_key: f64,
    seed: u64,
    /// Keys and room of each filter, by node and port, once a node was asked for.
    filled: Vec<Vec<(usize, usize)>>,
}

impl<K: FibKey> Bfw<K> {
    /// A control plane without keys, with room for `capacity` at first. Filters have `bits_per_key`
    /// bits for each key that they have room for. `seed` makes every run with it the same.
    pub fn new(network: Arc<Network>, bits_per_key: f64, capacity: usize, seed: u64) -> Self {
        let feeds = Feeds::new(network.nodes(), seed);
        let filled =
            (0..network.nodes()).map(|node| vec![(0, room(0)); network.ports(node)]).collect();
        let keys = Directory::new(network, capacity, seed);
        Self { keys, feeds, bits_per_key, seed, filled }
    }

    /// Counts keys by port, and gives every filter room for them.
    fn refill(&mut self, node: usize) {
        let mut counts = vec![0; self.network().ports(node)];
        self.keys.ports(node).for_each(|(_, port)| counts[usize::from(port)] += 1);
        self.filled[node] = counts.into_iter().map(|count| (count, room(count))).collect();
    }

    /// Counts a change; tells whether a filter is over-full.
    fn count(&mut self, node: usize, from: Option<u16>, to: Option<u16>) -> bool {
        if let Some(port) = from {
            self.filled[node][usize::from(port)].0 -= 1;
        }
        to.is_some_and(|port| {
            let (keys, room) = &mut self.filled[node][usize::from(port)];
            *keys += 1;
            keys > room
        })
    }

    /// Nodes hash differently: a key that is unlucky at one is not so at all.
    fn seed_of(&self, node: usize) -> u64 {
        self.seed.wrapping_add(node as u64)
    }

    fn filters(&self, node: usize) -> Vec<Filter> {
        let seed = self.seed_of(node);
        let rooms = self.filled[node].iter().map(|&(_, room)| room);
        let mut filters: Vec<Filter> =
            rooms.map(|room| Filter::new(room, self.bits_per_key, seed)).collect();
        for (key, port) in self.keys.ports(node) {
            filters[usize::from(port)].insert(&key);
        }
        filters
    }

    /// The data plane as a message: the room of each filter, and every key with its port.
    fn whole(&self, node: usize) -> Vec<u8> {
        let mut out = BitWriter::default();
        out.put(kind::WHOLE, 2);
        self.filled[node].iter().for_each(|&(_, room)| out.put(room as u64, 32));
        out.put(self.keys.len() as u64, 32);
        for (key, port) in self.keys.ports(node) {
            key.put(&mut out);
            out.put(port.into(), 16);
        }
        out.finish()
    }

    /// The chance that a valid key is taken by an earlier filter at a node (the rate that equation
    /// 3.7 expects for ports with equally many keys).
    pub fn collision_rate(&self, node: usize) -> f64 {
        let filters = self.filters(node);
        let keys = self.keys.len().max(1) as f64;
        let mut earlier = 1.0;
        let mut rate = 0.0;
        for filter in &filters {
            rate += filter.counting.len() as f64 / keys * (1.0 - earlier);
            earlier *= 1.0 - filter.bloom_rate();
        }
        rate
    }

    /// The chance that an alien key gets a port at a node.
    pub fn false_positive_rate(&self, node: usize) -> f64 {
        let none: f64 = self.filters(node).iter().map(|filter| 1.0 - filter.bloom_rate()).product();
        1.0 - none
    }
}

impl<K: FibKey> Control<K> for Bfw<K> {
    type Plane = BfwView<K>;
    const NAME: &'static str = "BFW";

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

    fn build(&mut self, node: usize) -> BfwView<K> {
        self.refill(node);
        let (bits_per_key, seed) = (self.bits_per_key, self.seed_of(node));
        BfwView {
            plane: self.feeds.plane(node),
            number: self.feeds.number(node),
            bits_per_key,
            seed,
            filters: self.filters(node),
            keys: std::marker::PhantomData,
        }
    }

    fn message(&mut self, node: usize) -> Option<Vec<u8>> {
        let change = self.keys.change(node)?;
        let body = if self.count(node, change.from, change.to) {
            self.refill(node);
            self.whole(node)
        } else {
            let mut out = change.head();
            let ports = [change.from, change.to].into_iter().flatten();
            ports.for_each(|port| out.put(port.into(), 16));
            out.finish()
        };
        Some(self.feeds.seal(plane::BFW, node, &body))
    }

    fn control_bytes(&self) -> usize {
        let counters: usize = self.filled.iter().map(|node| node.len() * 16).sum();
        self.keys.bytes() + counters
    }
}

/// The filter of one port, with the counters that let keys go again.
#[derive(Clone, PartialEq, Debug)]
struct Filter {
    room: usize,
    bloom: Bloom,
    counting: CountingBloom,
}

impl Filter {
    fn new(room: usize, bits_per_key: f64, seed: u64) -> Self {
        let bloom = Bloom::new(room, bits_per_key, seed);
        Self { room, bloom, counting: CountingBloom::new(room, bits_per_key, seed) }
    }

    fn insert<K: FibKey>(&mut self, key: &K) {
        let bloom = &mut self.bloom;
        self.counting.insert(key, |bit| bloom.set(bit, true));
    }

    fn remove<K: FibKey>(&mut self, key: &K) {
        let bloom = &mut self.bloom;
        self.counting.remove(key, |bit| bloom.set(bit, false));
    }

    /// `(1 - e^(-k n / m))^k`, with n from the counters: bits are set one by one in the filter.
    fn bloom_rate(&self) -> f64 {
        self.counting.to_bloom().false_positive_rate()
    }
}

/// Data plane: a Bloom filter for each port, asked in turn; counting filters keep them up to date.
///
/// A key that is in two ports' filters by chance leaves through the first of them, valid or not.
#[derive(Clone, PartialEq, Debug)]
pub struct BfwView<K> {
    plane: u64,
    number: u64,
    bits_per_key: f64,
    seed: u64,
    filters: Vec<Filter>,
    keys: std::marker::PhantomData<K>,
}

impl<K: FibKey> BfwView<K> {
    /// Whether a port's filter has a key.
    pub fn holds(&self, port: u16, key: &K) -> bool {
        self.filters.get(usize::from(port)).is_some_and(|filter| filter.bloom.contains(key))
    }

    /// Bytes of the counting filters, which lookups do not touch.
    pub fn counting_bytes(&self) -> usize {
        self.filters.iter().map(|filter| filter.counting.bytes()).sum()
    }

    /// Whether every filter has the same bits as the other's.
    pub fn same_filters(&self, other: &Self) -> bool {
        let bits = |view: &Self| -> Vec<CountingBloom> {
            view.filters.iter().map(|filter| filter.counting.clone()).collect()
        };
        bits(self) == bits(other)
    }

    fn rebuilt(&self, input: &mut BitReader<'_>) -> Result<Vec<Filter>, MessageError> {
        let mut filters = Vec::with_capacity(self.filters.len());
        let mut rooms = Vec::with_capacity(self.filters.len());
        for _ in &self.filters {
            rooms.push(input.get(32)? as usize);
        }
        let count = input.get(32)? as usize;
        // The number is not trusted with memory: room for more than a few times the keys that are
        // there is not asked for by any control plane.
        let most = room(count);
        if count > input.left() / (8 * K::BYTES) || rooms.iter().any(|&room| room > most) {
            return Err(MessageError::OutOfRange { what: "the room of a filter" });
        }
        for room in rooms {
            filters.push(Filter::new(room, self.bits_per_key, self.seed));
        }
        for _ in 0..count {
            let key = K::get(input)?;
            let port = input.get(16)? as usize;
            let filter = filters.get_mut(port);
            filter.ok_or(MessageError::OutOfRange { what: "a port" })?.insert(&key);
        }
        Ok(filters)
    }
}

impl<K: FibKey> Plane<K> for BfwView<K> {
    fn port(&self, key: &K) -> Option<u16> {
        self.filters.iter().position(|filter| filter.bloom.contains(key)).map(|port| port as u16)
    }

    fn ports(&self, keys: &[K], out: &mut [Option<u16>]) {
        const BURST: usize = 64;
        assert_eq!(keys.len(), out.len(), "one result per key");
        let mut has = [false; BURST];
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            out.fill(None);
            let mut missing = keys.len();
            for (port, filter) in self.filters.iter().enumerate() {
                if missing == 0 {
                    break;
                }
                filter.bloom.contains_batch(keys, &mut has[..keys.len()]);
                for (out, _) in out.iter_mut().zip(has).filter(|(out, has)| *has && out.is_none()) {
                    *out = Some(port as u16);
                    missing -= 1;
                }
            }
        }
    }

    fn apply(&mut self, message: &[u8]) -> Result<(), MessageError> {
        let mut input = BitReader::new(open_next(message, plane::BFW, self.plane, self.number)?);
        let kind = input.get(2)?;
        if kind == kind::WHOLE {
            let filters = self.rebuilt(&mut input)?;
            input.end()?;
            self.filters = filters;
            self.number += 1;
            return Ok(());
        }
        let key = K::get(&mut input)?;
        let mut port = || -> Result<usize, MessageError> {
            let port = input.get(16)? as usize;
            if port < self.filters.len() {
                return Ok(port);
            }
            Err(MessageError::OutOfRange { what: "a port" })
        };
        let from = if kind == kind::ADD { None } else { Some(port()?) };
        let to = if kind == kind::DELETE { None } else { Some(port()?) };
        input.end()?;
        if from.is_some_and(|from| !self.filters[from].counting.contains(&key)) {
            return Err(MessageError::OutOfRange { what: "a key" });
        }
        if let Some(from) = from {
            self.filters[from].remove(&key);
        }
        if let Some(to) = to {
            self.filters[to].insert(&key);
        }
        self.number += 1;
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.filters.iter().map(|filter| filter.bloom.bytes()).sum()
    }
}
