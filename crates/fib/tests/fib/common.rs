//! Seeds, networks and histories.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use weir_fib::{Control, FibKey, Host, Network, Plane, Topology};

pub fn seed() -> u64 {
    let seed = std::env::var("WEIR_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    seed
}

pub fn network(nodes: usize, seed: u64) -> Arc<Network> {
    Arc::new(Network::new(Topology::isp(nodes, seed), 4))
}

pub fn any_host(network: &Network, rng: &mut ChaCha8Rng) -> Host {
    let node = rng.random_range(0..network.nodes()) as u16;
    Host { node, slot: rng.random_range(0..network.slots()) }
}

/// A control plane, what it should know, and the data planes of some nodes.
pub struct World<K, C: Control<K>>
where
    K: FibKey,
{
    pub control: C,
    pub model: HashMap<K, Host>,
    pub known: Vec<K>,
    pub planes: Vec<(usize, C::Plane)>,
    pub rng: ChaCha8Rng,
    pub next: u64,
    pub sent: usize,
    pub sent_bytes: usize,
    pub unsent: usize,
}

impl<K: FibKey + Hash, C: Control<K>> World<K, C> {
    pub fn new(mut control: C, seed: u64) -> Self {
        let nodes = control.network().nodes();
        let planes = (0..nodes).step_by((nodes / 5).max(1));
        let planes = planes.map(|node| (node, control.build(node))).collect();
        Self {
            control,
            model: HashMap::new(),
            known: Vec::new(),
            planes,
            rng: ChaCha8Rng::seed_from_u64(seed),
            next: 0,
            sent: 0,
            sent_bytes: 0,
            unsent: 0,
        }
    }

    /// Adds a key (with the probability `growth`), takes one out or moves one; feeds the planes.
    pub fn step(&mut self, growth: f64) {
        if self.known.is_empty() || self.rng.random_bool(growth) {
            let key = K::numbered(0, self.next);
            self.next += 1;
            self.known.push(key);
            self.put(key);
        } else {
            let at = self.rng.random_range(0..self.known.len());
            if self.rng.random_bool(0.5) {
                let key = self.known.swap_remove(at);
                assert_eq!(self.control.remove(&key), self.model.remove(&key));
                assert_eq!(self.control.remove(&key), None);
            } else {
                self.put(self.known[at]);
            }
        }
        self.feed();
    }

    fn put(&mut self, key: K) {
        let host = any_host(self.control.network(), &mut self.rng);
        assert_eq!(self.control.insert(key, host).unwrap(), self.model.insert(key, host));
    }

    pub fn feed(&mut self) {
        for (node, plane) in &mut self.planes {
            match self.control.message(*node) {
                Some(message) => {
                    plane.apply(&message).unwrap();
                    self.sent += 1;
                    self.sent_bytes += message.len();
                }
                None => self.unsent += 1,
            }
        }
    }

    /// Lookups of valid keys at one plane, and how many gave the port of the shortest path.
    pub fn right(&self, node: usize, plane: &C::Plane) -> (usize, usize) {
        let mut out = vec![None; self.known.len()];
        plane.ports(&self.known, &mut out);
        let mut right = 0;
        for (key, found) in self.known.iter().zip(out) {
            assert_eq!(found, plane.port(key), "single and batched lookups agree");
            right += usize::from(found == Some(self.control.network().port(node, self.model[key])));
        }
        (self.known.len(), right)
    }

    /// All nodes, built now, and those fed from the beginning, agree with Dijkstra for all keys.
    pub fn check_all(&mut self) {
        assert_eq!(self.control.len(), self.model.len());
        for key in &self.known {
            assert_eq!(self.control.host(key), self.model.get(key).copied());
        }
        for (node, plane) in &self.planes {
            let (asked, right) = self.right(*node, plane);
            assert_eq!(asked, right, "node {node}, fed");
        }
        let nodes: Vec<usize> = (0..self.control.network().nodes()).collect();
        let all = self.control.build_many(&nodes);
        for (node, built) in all.into_iter().enumerate() {
            let (asked, right) = self.right(node, &built);
            assert_eq!(asked, right, "node {node}, built");
        }
    }
}
