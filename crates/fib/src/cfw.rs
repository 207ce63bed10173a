//! The Cuckoo forwarder: a Cuckoo Filtable of two levels (dissertation 3.4.2).

mod skeleton;
mod view;

pub use view::CfwView;

use crate::plane::{self, Feeds, checked, kind};
use crate::{Control, FibError, FibKey, Host, Network, network::bits_for};
use skeleton::{SLOTS, Skeleton, Step};
use std::sync::Arc;
use view::Slots;
use weir_hash::{HashKey, scale};
use weir_lookup::Cuckoo;
use weir_lookup::message::BitWriter;

/// Sizes of level 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    buckets: u32,
    digest_bits: u32,
    port_bits: u32,
}

impl Shape {
    /// Bits of a slot: digest and port.
    #[inline(always)]
    fn slot_bits(&self) -> u32 {
        self.digest_bits + self.port_bits
    }

    #[inline(always)]
    fn slot_mask(&self) -> u64 {
        u64::MAX >> (64 - self.slot_bits())
    }

    /// Bits of a bucket's number.
    fn bucket_bits(&self) -> u32 {
        bits_for(self.buckets as usize)
    }

    #[inline(always)]
    fn content(&self, digest: u32, port: u16) -> u64 {
        u64::from(digest) | u64::from(port) << self.digest_bits
    }

    /// The two buckets of a hash.
    #[inline(always)]
    fn pair(&self, hash: u64) -> [u32; 2] {
        [scale(hash as u32, self.buckets), scale((hash >> 32) as u32, self.buckets)]
    }

    /// A digest from bits of the hash that do not choose buckets: 1 to 2^digest_bits - 1.
    #[inline(always)]
    fn digest(&self, hash: u64) -> u32 {
        let spread = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        1 + scale((spread >> 32) as u32, ((1u64 << self.digest_bits) - 1) as u32)
    }
}

/// Control plane: each key with its host, in a slot of level 1 or in level 2.
///
/// The *collision-avoidance set* of a bucket holds every key that could stand there. A key that
/// comes and finds its digest in the set of one of its buckets goes to level 2, and so does the key
/// that it found. So no valid key ever meets another's digest in level 1, and what level 1 does not
/// answer is looked up in level 2 by the whole key.
#[derive(Clone, Debug)]
pub struct Cfw<K> {
    network: Arc<Network>,
    table: Skeleton<K>,
    feeds: Feeds,
    moved: Option<(Host, Host)>,
}

impl<K: FibKey> Cfw<K> {
    /// A control plane without keys, with room for `capacity` at first. Digests have `digest_bits`
    /// (2..=32) bits. `seed` makes every run with it the same.
    ///
    /// # Panics
    ///
    /// If the width is another.
    pub fn new(network: Arc<Network>, digest_bits: u32, capacity: usize, seed: u64) -> Self {
        assert!((2..=32).contains(&digest_bits), "a digest has 2..=32 bits");
        let key = HashKey::from_seed(seed);
        let table = Skeleton::new(digest_bits, network.port_bits(), capacity, key);
        let feeds = Feeds::new(network.nodes(), seed);
        Self { network, table, feeds, moved: None }
    }

    /// Number of keys in level 2, which holds them whole.
    pub fn level2_len(&self) -> usize {
        self.table.len() - self.table.level1()
    }

    /// The chance that an alien key gets a port: equation 3.8, but that there are `2^f - 1` digests
    /// (0 is a free slot) and no bucket has one of them twice.
    pub fn false_positive_rate(&self) -> f64 {
        let digests = (1u64 << self.table.shape.digest_bits) as f64 - 1.0;
        let in_bucket = self.table.level1() as f64 / f64::from(self.table.shape.buckets);
        1.0 - (1.0 - in_bucket / digests).powi(2)
    }

    /// Share of the slots of level 1 that is in use, 0 to 1.
    pub fn load(&self) -> f64 {
        self.table.level1() as f64 / (self.table.shape.buckets as usize * SLOTS) as f64
    }

    fn encode(&self, node: usize) -> Vec<u8> {
        let mut out = BitWriter::default();
        out.put(0, 1);
        out.put(self.table.steps.len() as u64, 8);
        for step in &self.table.steps {
            self.encode_step(node, step, &mut out);
        }
        out.finish()
    }

    /// Kind (2 bits), level (1), and what the kind needs.
    fn encode_step(&self, node: usize, step: &Step<K>, out: &mut BitWriter) {
        let shape = self.table.shape;
        let head = |out: &mut BitWriter, kind: u64, level2: bool| {
            out.put(kind, 2);
            out.put(level2.into(), 1);
        };
        let place = |out: &mut BitWriter, bucket: u32, slot: u8| {
            out.put(bucket.into(), shape.bucket_bits());
            out.put(slot.into(), 2);
        };
        let port = |out: &mut BitWriter, host: Host| {
            out.put(self.network.port(node, host).into(), shape.port_bits);
        };
        match step {
            Step::Put { path, digest, host } => {
                head(out, kind::ADD, false);
                out.put((*digest).into(), shape.digest_bits);
                port(out, *host);
                out.put(path.len() as u64 - 1, 4);
                path.iter().for_each(|&(bucket, slot)| place(out, bucket, slot));
            }
            Step::Set { bucket, slot, host } => {
                head(out, kind::CHANGE, false);
                place(out, *bucket, *slot);
                port(out, *host);
            }
            Step::Clear { bucket, slot } => {
                head(out, kind::DELETE, false);
                place(out, *bucket, *slot);
            }
            Step::PutKey { key, host } => {
                head(out, kind::ADD, true);
                key.put(out);
                port(out, *host);
            }
            Step::ClearKey { key } => {
                head(out, kind::DELETE, true);
                key.put(out);
            }
        }
    }
}

impl<K: FibKey> Control<K> for Cfw<K> {
    type Plane = CfwView<K>;
    const NAME: &'static str = "CFW";

    fn network(&self) -> &Network {
        &self.network
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn host(&self, key: &K) -> Option<Host> {
        self.table.host(key)
    }

    fn insert(&mut self, key: K, host: Host) -> Result<Option<Host>, FibError> {
        let host = checked(&self.network, host)?;
        let former = self.table.insert(key, host);
        self.moved = former.map(|former| (former, host));
        Ok(former)
    }

    fn remove(&mut self, key: &K) -> Option<Host> {
        let former = self.table.remove(key)?;
        self.moved = None;
        Some(former)
    }

    fn build(&mut self, node: usize) -> CfwView<K> {
        let shape = self.table.shape;
        let mut slots = Slots::new(shape);
        let mut level2 =
            Cuckoo::new(shape.port_bits, self.level2_len().max(16), self.feeds.plane(node));
        for (entry, place, digest) in self.table.placed() {
            let port = self.network.port(node, entry.host);
            match place {
                Some((bucket, slot)) => slots.fill(bucket, slot, digest, port),
                None => drop(level2.insert(entry.key, port.into())),
            }
        }
        let (plane, number) = (self.feeds.plane(node), self.feeds.number(node));
        let ports = self.network.ports(node);
        CfwView { plane, number, key: self.table.key, ports, slots, level2 }
    }

    fn message(&mut self, node: usize) -> Option<Vec<u8>> {
        if let Some((former, host)) = self.moved
            && self.network.port(node, former) == self.network.port(node, host)
        {
            return None;
        }
        let body = if self.table.rebuilt {
            let mut out = BitWriter::default();
            out.put(1, 1);
            self.build(node).put_whole(&mut out);
            out.finish()
        } else {
            self.encode(node)
        };
        Some(self.feeds.seal(plane::CFW, node, &body))
    }

    fn control_bytes(&self) -> usize {
        self.table.bytes()
    }
}
