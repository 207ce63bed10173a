//! Networks with keys in them, forwarders of one node side by side, and how fast they are.

use super::{BFW, CFW, GATEWAY, LUDO, OFW, Point};
use crate::Result;
use crate::error::ensure;
use crate::figure::Setup;
use crate::measure::median;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_fib::{Bfw, Cfw, Control, FibKey, Gateway, Host, LudoFib, Network, Ofw, Plane, Topology};
use weir_sim::Zipf;

/// The node whose data plane is measured: the first one has the most links.
pub const NODE: usize = 0;

/// Keys that are drawn before the clock runs.
const BLOCK: usize = 1024;

/// Keys that are looked up together.
const BURST: usize = 256;

/// A network like an ISP's, as large as the dissertation's (318 nodes).
pub fn isp(setup: &Setup<'_>) -> Arc<Network> {
    let nodes = setup.size.pick(100, 318, 318);
    Arc::new(Network::new(Topology::isp(nodes, setup.seed), 1))
}

/// An overlay, each of whose nodes has so many ports.
pub fn mesh(ports: usize) -> Arc<Network> {
    Arc::new(Network::new(Topology::full_mesh(ports), 1))
}

/// The overlay of the dissertation: 318 nodes.
pub fn overlay(setup: &Setup<'_>) -> Arc<Network> {
    mesh(setup.size.pick(100, 318, 318))
}

/// The host of a key, which follows from its number, so that it can be told without a list.
pub fn host(network: &Network, n: u64) -> Host {
    let mixed = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40;
    Host { node: (mixed % network.nodes() as u64) as u16, slot: 0 }
}

/// Gives a control plane the keys `0..count`.
pub fn fill<K: FibKey, C: Control<K>>(control: &mut C, count: usize) -> Result<()> {
    for n in 0..count as u64 {
        let host = host(control.network(), n);
        control.insert(K::numbered(0, n), host)?;
    }
    Ok(())
}

/// A filled control plane.
pub fn filled<K: FibKey, C: Control<K>>(mut control: C, count: usize) -> Result<C> {
    fill(&mut control, count)?;
    Ok(control)
}

/// A data plane of any forwarder.
pub trait Table<K>: Sync {
    /// Looks keys up one at a time; the sum of the ports.
    fn single(&self, keys: &[K]) -> usize;
    /// Looks keys up in bursts.
    fn bursts(&self, keys: &[K], out: &mut [Option<u16>]);
    /// Bytes of the lookup structure.
    fn size(&self) -> usize;
}

impl<K: FibKey, P: Plane<K> + Sync> Table<K> for P {
    fn single(&self, keys: &[K]) -> usize {
        keys.iter().map(|key| usize::from(self.port(key).unwrap_or(0))).sum()
    }

    fn bursts(&self, keys: &[K], out: &mut [Option<u16>]) {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            self.ports(keys, out);
        }
    }

    fn size(&self) -> usize {
        self.bytes()
    }
}

/// Widths of the forwarders that are put side by side.
#[derive(Clone, Copy, Debug)]
pub struct Widths {
    /// Bits of OFW's fingerprint beside the emptiness bit.
    pub ofw: u32,
    /// Bits of CFW's digest.
    pub cfw: u32,
    /// Bits of BFW's filters for each key.
    pub bfw: f64,
}

/// The forwarders of one node, with the same keys.
pub struct World<K> {
    network: Arc<Network>,
    count: usize,
    /// Name and data plane.
    pub planes: Vec<(&'static str, Box<dyn Table<K>>)>,
    /// Share of the valid keys that BFW sends to another port.
    pub misdirected: f64,
}

impl<K: FibKey> World<K> {
    /// All forwarders with so many keys; each is asked for all of them. BFW alone may err.
    pub fn new(network: &Arc<Network>, count: usize, widths: Widths, seed: u64) -> Result<Self> {
        let net = || Arc::clone(network);
        let Widths { ofw, cfw, bfw } = widths;
        let ofw = filled(Ofw::<K>::new(net(), ofw, count, seed), count)?.build(NODE);
        let cfw = filled(Cfw::<K>::new(net(), cfw, count, seed), count)?.build(NODE);
        let ludo = filled::<K, _>(LudoFib::new(net(), count, seed)?, count)?.build(NODE);
        let bfw = filled(Bfw::<K>::new(net(), bfw, count, seed), count)?.build(NODE);
        let gateway = filled(Gateway::<K>::new(net(), count, seed), count)?.build(NODE);
        let planes: Vec<(&'static str, Box<dyn Table<K>>)> = vec![
            (OFW, Box::new(ofw)),
            (CFW, Box::new(cfw)),
            (LUDO, Box::new(ludo)),
            (BFW, Box::new(bfw)),
            (GATEWAY, Box::new(gateway)),
        ];
        let mut world = Self { network: net(), count, planes, misdirected: 0.0 };
        for (name, plane) in &world.planes {
            let wrong = wrong(plane.as_ref(), &world.network, count);
            match *name {
                BFW => world.misdirected = wrong,
                _ => ensure!(wrong == 0.0, "{name} sends {wrong} of its keys astray"),
            }
        }
        Ok(world)
    }

    /// Rates of all planes in M lookups per second, in turn: one at a time and in bursts.
    pub fn rates(&self, setup: &Setup<'_>, x: f64, draw: Draw) -> Result<Vec<Rates>> {
        let rounds = setup.size.pick(3, 5, 9);
        // Drawing a block of names takes longer than looking it up, so their number is bounded too.
        let (time, most) = setup.size.pick((3, 12), (40, 160), (200, 800));
        let effort = Effort { time: Duration::from_millis(time), most };
        let mut keys = Keys::new(draw, self.count, setup.seed)?;
        let mut samples = vec![[const { Vec::new() }; 2]; self.planes.len()];
        for round in 0..rounds {
            // The order turns, so that no forwarder always follows the same other.
            for turn in 0..self.planes.len() {
                let which = (turn + round) % self.planes.len();
                let plane = self.planes[which].1.as_ref();
                for (bursts, samples) in samples[which].iter_mut().enumerate() {
                    samples.push(rate(plane, &mut keys, bursts == 1, effort));
                }
            }
        }
        let names = self.planes.iter().map(|(name, _)| *name);
        let all = names.zip(samples).map(|(name, [single, bursts])| Rates {
            name,
            single: median(x, single),
            bursts: median(x, bursts),
        });
        Ok(all.collect())
    }
}

/// Rates of one forwarder.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Name of the forwarder.
    pub name: &'static str,
    /// One at a time.
    pub single: Point,
    /// In bursts of 256.
    pub bursts: Point,
}

/// Share of the keys `0..count` that do not get the port of their host.
pub fn wrong<K: FibKey>(plane: &dyn Table<K>, network: &Network, count: usize) -> f64 {
    let mut wrong = 0;
    let mut out = vec![None; 4096];
    for start in (0..count as u64).step_by(out.len()) {
        let numbers = start..(count as u64).min(start + out.len() as u64);
        let keys: Vec<K> = numbers.clone().map(|n| K::numbered(0, n)).collect();
        let out = &mut out[..keys.len()];
        plane.bursts(&keys, out);
        let right = |(n, found): &(u64, &Option<u16>)| {
            **found == Some(network.port(NODE, host(network, *n)))
        };
        wrong += out.len() - numbers.zip(&*out).filter(right).count();
    }
    wrong as f64 / count as f64
}

/// Share of so many alien keys that get a port.
pub fn passed<K: FibKey>(plane: &dyn Table<K>, aliens: usize) -> f64 {
    let mut out = vec![None; 4096];
    let mut count = 0;
    for start in (0..aliens as u64).step_by(out.len()) {
        let keys: Vec<K> = (start..start + out.len() as u64).map(|n| K::numbered(1, n)).collect();
        plane.bursts(&keys, &mut out);
        count += out.iter().flatten().count();
    }
    count as f64 / (aliens.div_ceil(out.len()) * out.len()) as f64
}

/// Which keys are looked up.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Draw {
    /// Valid ones, all alike.
    Uniform,
    /// Valid ones, Zipf with skew 1.
    Zipf,
    /// Alien ones.
    Alien,
}

/// Keys, drawn one after the other.
pub struct Keys {
    draw: Draw,
    count: u64,
    zipf: Zipf,
    rng: ChaCha8Rng,
}

impl Keys {
    /// Of a network with so many.
    pub fn new(draw: Draw, count: usize, seed: u64) -> Result<Self> {
        let count = count as u64;
        let (zipf, rng) = (Zipf::new(count, 1.0)?, ChaCha8Rng::seed_from_u64(seed));
        Ok(Self { draw, count, zipf, rng })
    }

    /// Draws so many in the place of what is there.
    pub fn fill<K: FibKey>(&mut self, keys: &mut Vec<K>, block: usize) {
        keys.clear();
        for _ in 0..block {
            keys.push(match self.draw {
                Draw::Uniform => K::any(0, self.count, &mut self.rng),
                Draw::Zipf => K::numbered(0, self.zipf.sample(&mut self.rng) - 1),
                Draw::Alien => K::any(1, self.count, &mut self.rng),
            });
        }
    }
}

/// When a measurement ends: whichever comes first, but three blocks it takes.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Time spent on lookups.
    time: Duration,
    /// Blocks of keys.
    most: usize,
}

/// Millions of lookups per second: of the block that took the median time, so that blocks in which
/// the thread was interrupted do not count.
fn rate<K: FibKey>(plane: &dyn Table<K>, keys: &mut Keys, bursts: bool, effort: Effort) -> f64 {
    let (mut block, mut out) = (Vec::with_capacity(BLOCK), vec![None; BLOCK]);
    let mut times: Vec<Duration> = Vec::new();
    let mut spent = Duration::ZERO;
    while times.len() < 3 || (spent < effort.time && times.len() < effort.most) {
        keys.fill(&mut block, BLOCK);
        let started = Instant::now();
        if bursts {
            plane.bursts(&block, &mut out);
        } else {
            black_box(plane.single(&block));
        }
        let took = started.elapsed();
        black_box(&out);
        spent += took;
        times.push(took);
    }
    let middle = times.len() / 2;
    let (_, median, _) = times.select_nth_unstable(middle);
    BLOCK as f64 / median.as_secs_f64().max(1e-9) / 1e6
}
