//! Which flows exist, and whose packet comes next.

use crate::Result;
use crate::error::{Context, demand};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use weir_sim::Zipf;
use weir_sim::trace::{Tuple, read_tuples};

/// Packets of a made trace; it is played in a circle.
const TRACE_PACKETS: usize = 1 << 22;
/// Flows of a made trace that send at the same time.
const TRACE_ACTIVE: usize = 1024;
/// Pareto's exponent of the packets of a flow: many flows of few packets, and a heavy tail.
const TRACE_TAIL: f64 = 1.1;
const TRACE_LONGEST: f64 = 1e5;

/// The key of flow number `n`: a 64-bit word as an IPv4 client's address and ports make, all
/// different, since each step is a bijection.
#[inline(always)]
pub fn key(n: u64) -> u64 {
    let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// How packets are drawn from the flows.
#[derive(Clone, Debug)]
pub enum Keys {
    /// Each flow once in turn, in the order of a linear feedback shift register (Concury, section
    /// 6.2): no flow comes twice while it could still be in a cache.
    Lfsr,
    /// Flow k with probability proportional to k^-skew.
    Zipf {
        /// Exponent of the distribution, 0 for a uniform one.
        skew: f64,
    },
    /// A trace that is made: flows of heavy-tailed length, 1,024 at a time.
    Trace,
    /// The packets of a file; its flows are the states.
    File(Arc<TraceFile>),
}

/// A trace file: the flows of its packets, numbered as they appear.
#[derive(Debug)]
pub struct TraceFile {
    packets: Vec<u32>,
    flows: usize,
}

impl TraceFile {
    /// Reads a file of 13-byte tuples.
    pub fn read(path: &Path) -> Result<Self> {
        let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
        let tuples = read_tuples(std::io::BufReader::new(file))
            .with_context(|| path.display().to_string())?;
        demand!(!tuples.is_empty(), "{}: no packets", path.display());
        let mut numbers: HashMap<Tuple, u32> = HashMap::new();
        let number = |tuple| {
            let next = numbers.len() as u32;
            *numbers.entry(tuple).or_insert(next)
        };
        let packets: Vec<u32> = tuples.into_iter().map(number).collect();
        Ok(Self { packets, flows: numbers.len() })
    }

    /// How many flows it has.
    pub fn flows(&self) -> usize {
        self.flows
    }
}

impl Keys {
    /// The name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Lfsr => "lfsr",
            Self::Zipf { .. } => "zipf",
            Self::Trace | Self::File(_) => "trace",
        }
    }

    /// The packets of `flows` flows (numbers from 0 on). With several threads, thread `part` of
    /// `parts` sees the flows of its part only, as receive-side scaling does.
    pub fn stream(&self, flows: usize, part: usize, seed: u64) -> Result<Stream> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ ((part as u64) << 32));
        Ok(match self {
            Self::Lfsr => Stream::Lfsr(Lfsr::new(flows, &mut rng)),
            Self::Zipf { skew } => Stream::Zipf(Zipf::new(flows as u64, *skew)?, Box::new(rng)),
            Self::Trace => Stream::Trace { packets: made(flows, &mut rng).into(), at: 0 },
            Self::File(file) => {
                // A part plays the packets of its own flows.
                let first = part * flows;
                let own = |&flow: &u32| (flow as usize).checked_sub(first).filter(|&f| f < flows);
                let packets: Vec<u32> =
                    file.packets.iter().filter_map(own).map(|flow| flow as u32).collect();
                demand!(!packets.is_empty(), "too few flows in the trace");
                Stream::Trace { packets: packets.into(), at: 0 }
            }
        })
    }
}

/// Packets of flows that send in trains: the next packet is one of an active flow; a flow that is
/// through is followed by the next one.
fn made(flows: usize, rng: &mut ChaCha8Rng) -> Vec<u32> {
    let mut next = rng.random_range(0..flows);
    let mut start = |rng: &mut ChaCha8Rng| {
        next = (next + 1) % flows;
        let length = (1.0 - rng.random::<f64>()).powf(-1.0 / TRACE_TAIL).min(TRACE_LONGEST);
        (next as u32, length as u32)
    };
    let mut active: Vec<(u32, u32)> = (0..TRACE_ACTIVE).map(|_| start(rng)).collect();
    let mut packet = || {
        let at = rng.random_range(0..TRACE_ACTIVE);
        let (flow, left) = active[at];
        active[at] = if left > 1 { (flow, left - 1) } else { start(rng) };
        flow
    };
    (0..TRACE_PACKETS).map(|_| packet()).collect()
}

/// An endless stream of packets, by the number of their flow.
pub enum Stream {
    /// Flows in the order of [`Keys::Lfsr`].
    Lfsr(Lfsr),
    /// Flows drawn as [`Keys::Zipf`] says.
    Zipf(Zipf, Box<ChaCha8Rng>),
    /// Packets of a trace, made or from a file, in a circle.
    Trace {
        /// The number of the flow of each packet.
        packets: Box<[u32]>,
        /// Position of the packet that comes next.
        at: usize,
    },
}

impl Stream {
    /// The flows of the next packets.
    pub fn fill(&mut self, flows: &mut [u32]) {
        match self {
            Self::Lfsr(lfsr) => flows.iter_mut().for_each(|flow| *flow = lfsr.next()),
            Self::Zipf(zipf, rng) => {
                flows.iter_mut().for_each(|flow| *flow = (zipf.sample(&mut **rng) - 1) as u32);
            }
            Self::Trace { packets, at } => {
                for flow in flows {
                    *flow = packets[*at];
                    *at = if *at + 1 == packets.len() { 0 } else { *at + 1 };
                }
            }
        }
    }
}

/// Masks that give registers of 2 to 32 bits, shifted to the right, their full period.
const TAPS: [u32; 31] = [
    0x3,
    0x6,
    0xc,
    0x14,
    0x30,
    0x60,
    0xb8,
    0x110,
    0x240,
    0x500,
    0xe08,
    0x1c80,
    0x3802,
    0x6000,
    0xd008,
    0x12000,
    0x20400,
    0x72000,
    0x90000,
    0x14_0000,
    0x30_0000,
    0x42_0000,
    0xe1_0000,
    0x120_0000,
    0x200_0023,
    0x400_0013,
    0x900_0000,
    0x1400_0000,
    0x2000_0029,
    0x4800_0000,
    0x8020_0003,
];

/// A Galois register that visits each number below `flows` once in a period.
pub struct Lfsr {
    state: u32,
    mask: u32,
    flows: u32,
}

impl Lfsr {
    fn new(flows: usize, rng: &mut impl Rng) -> Self {
        let flows = flows as u32;
        // The states are 1..2^bits.
        let bits = (u32::BITS - flows.leading_zeros()).max(2);
        Self { state: rng.random_range(1..=flows), mask: TAPS[bits as usize - 2], flows }
    }

    #[inline(always)]
    fn next(&mut self) -> u32 {
        loop {
            self.state = (self.state >> 1) ^ ((self.state & 1).wrapping_neg() & self.mask);
            if self.state <= self.flows {
                return self.state - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_visits_every_flow_once_in_a_period() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let powers = (2..=24).map(|bits| (1usize << bits) - 1);
        for flows in powers.chain([1, 2, 1000, 1 << 16, 1_000_000]) {
            let mut lfsr = Lfsr::new(flows, &mut rng);
            let mut seen = vec![false; flows];
            for _ in 0..flows {
                assert!(!std::mem::replace(&mut seen[lfsr.next() as usize], true), "{flows}");
            }
        }
    }

    #[test]
    fn every_stream_stays_among_its_flows_and_has_its_shape() {
        let counts = |keys: &Keys| {
            let mut stream = keys.stream(10_000, 0, 7).unwrap();
            let (mut flows, mut counts) = (vec![0; 1 << 18], vec![0u32; 10_000]);
            stream.fill(&mut flows);
            flows.iter().for_each(|&flow| counts[flow as usize] += 1);
            counts
        };
        let lfsr = counts(&Keys::Lfsr);
        assert!(lfsr.iter().all(|&count| count == 26 || count == 27));
        // H(10,000) = 9.79, so the first flow has 1 packet in 9.79.
        let zipf = counts(&Keys::Zipf { skew: 1.0 });
        assert!((26_000..27_600).contains(&zipf[0]), "{}", zipf[0]);
        let mut trace = counts(&Keys::Trace);
        trace.sort_unstable();
        // Heavy-tailed: the first percent of the flows has over five percent of the packets.
        let top: u32 = trace[9_900..].iter().sum();
        assert!(top > (1 << 18) / 20 && trace[5_000] < 40, "{top}, {}", trace[5_000]);
    }

    #[test]
    fn a_file_is_played_by_its_flows() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let tuples = [5, 9, 5, 7].map(Tuple::numbered);
        weir_sim::trace::write_tuples(std::fs::File::create(&path).unwrap(), tuples).unwrap();
        let file = Arc::new(TraceFile::read(&path).unwrap());
        assert_eq!(file.flows(), 3);
        let mut flows = [0; 6];
        Keys::File(file.clone()).stream(3, 0, 1).unwrap().fill(&mut flows);
        assert_eq!(flows, [0, 1, 0, 2, 0, 1]);
        std::fs::write(&path, [0; 20]).unwrap();
        assert!(TraceFile::read(&path).is_err());
    }
}
