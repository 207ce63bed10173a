//! What a decision costs: figure 5.

use crate::Result;
use crate::concury::{flow, pool};
use crate::error::ensure;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Quote, Says, Scale, Series, Setup};
use crate::measure::{median, timed};
use crate::number::{ratio, short};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::hint::black_box;
use weir_hash::{HashKey, Key};
use weir_lookup::DigestCuckoo;
use weir_placement::Candidate;
use weir_steering::baseline::{Chain, Ecmp};
use weir_steering::cheetah::{
    AllServers, ConnTable, ConnTableConfig, Forged, Layout, Parts, ServiceServers, Stateless,
};
use weir_steering::{Member, Question, Signals, StateKey, Steer};

const HASH: &str = "hash, software";
const STATELESS: &str = "Cheetah, stateless";
const STATEFUL: &str = "Cheetah, stateful";
const BEAMER: &str = "Beamer";
const CUCKOO: &str = "cuckoo table";
const NAMES: &[&str] = &[HASH, STATELESS, STATEFUL, BEAMER, CUCKOO];

const NS: &str = "ns per packet";
const RELATIVE: &str = "time over software hash";

const BLOCK: usize = 4096;
const SERVERS: u16 = 64;
const PARTITIONS: u32 = 16;
const SLOTS: u32 = 8192;

const METHOD: Axis = Axis { label: "", scale: Scale::Names(NAMES) };

pub static FIG_5: Figure = Figure {
    id: "cheetah-fig5",
    title: "Cost of deciding a packet",
    paper: "Cheetah, Fig. 5",
    measures: "Known packets of 64K connections to 64 servers, one at a time, in user space: from \
        a parsed packet (5-tuple, flags, echoed timestamp) to its server. Parsing, rewriting and \
        I/O are outside. The cuckoo table is our (2,4) table of 64-bit digests.",
    charts: &[
        Chart { title: "Here", x: METHOD, y: Axis { label: NS, scale: Scale::Linear } },
        Chart {
            title: "Relative to the software hash",
            x: METHOD,
            y: Axis { label: "times", scale: Scale::Linear },
        },
    ],
    quotes: &[Quote {
        chart: 1,
        name: "cycles/packet over those of the software hash",
        like: RELATIVE,
        says: Says::Value,
        points: &[(0.0, 1.0), (1.0, 0.816), (2.0, 1.566), (3.0, 2.079), (4.0, 4.066)],
        source: "Cheetah, Fig. 5 at 640K req/s: 76, 62, 119, 158, 309 cycles",
    }],
    note: "cycles per packet read from the figure at 640K requests a second: NIC hash 56, Cheetah \
        stateless 62, software hash 76, Cheetah stateful 119, Beamer 158, cuckoo table 309. The \
        NIC’s hash has no counterpart here.",
    why: "Other hardware, and less work: the paper’s cycles contain what its elements do beyond \
        the decision, which hides differences between decisions that take 2 to 6 ns here. Its \
        stateless Cheetah takes its hash from the NIC, so it is below a software hash there; ours \
        computes it, and the cookie’s bits and two tables come on top. Its Beamer writes the \
        previous server into an encapsulated packet, ours only reads the bucket. Its cuckoo table \
        is DPDK’s with whole keys and is written for new connections in the same run; ours \
        compares digests and is only read. The order stateless, stateful, cuckoo table is the \
        paper’s.",
    times: ["1 s", "5 s", "20 s"],
    run,
};

/// A packet, with what each method needs of it made beforehand.
#[derive(Clone, Copy)]
struct Packet {
    key: StateKey,
    echo: u32,
    stateful: u16,
}

impl Packet {
    #[inline(always)]
    fn question(&self, stateless: &Stateless) -> Question {
        let signals = Signals::LATER.with_echo(Some(self.echo));
        Question { signals, ..Question::later(self.key, self.key.hash(stateless.codec().key())) }
    }
}

/// All methods, with all connections known to them.
struct Methods {
    hash: Ecmp,
    servers: ServiceServers,
    stateless: Stateless,
    stateful: ConnTable,
    beamer: Chain,
    cuckoo: DigestCuckoo<4>,
}

impl Methods {
    fn new(members: &[Member], connections: u32, seed: u64) -> Result<Self> {
        let mut hash = Ecmp::new(seed);
        let candidates: Vec<_> = members
            .iter()
            .map(|m| Candidate { name: &m.name, backend: m.backend.get(), weight: 1 })
            .collect();
        hash.set_pool(&candidates);
        let layout = Layout::stateless();
        let stateless = Stateless::new(HashKey::from_seed(seed), layout, Forged::default());
        let mut all = AllServers::new(stateless.codec().numbers());
        for member in members {
            all.join(&member.name)?;
        }
        let config = ConnTableConfig {
            partitions: PARTITIONS,
            slots: SLOTS,
            bits: 15,
            opening_seconds: u32::MAX,
            idle_seconds: u32::MAX,
            linger_seconds: u32::MAX,
        };
        let mut beamer = Chain::new(46_800, seed);
        beamer.assign(
            &(0..46_800u32).map(|b| (b % u32::from(SERVERS)) as u16).collect::<Vec<_>>(),
            0,
        );
        Ok(Self {
            hash,
            servers: ServiceServers::new(&all, members)?,
            stateless,
            stateful: ConnTable::new(HashKey::from_seed(seed + 1), config)?,
            beamer,
            cuckoo: DigestCuckoo::new(connections as usize, seed),
        })
    }

    /// Makes connection number `n` known everywhere. Returns one of its packets.
    fn open(&mut self, n: u32, layout: Layout) -> Result<Packet> {
        let (key, backend) = (flow(n), (n % u32::from(SERVERS)) as u16);
        self.cuckoo.insert(&key, backend)?;
        let stateful = self.stateful.open(&key, backend, 0)?;
        let cookie = self.stateless.cookie(&self.servers, &key, backend).unwrap_or(0);
        let parts = Parts { version: 0, front: cookie, back: 0, low: n as u16 };
        let packet = Packet { key, echo: layout.join(parts), stateful };
        let found = [
            self.stateless.read(&self.servers, &packet.question(&self.stateless)).ok(),
            self.stateful.get(&key, stateful),
            self.cuckoo.get(&key),
        ];
        ensure!(found == [Some(backend); 3], "{found:?}: not backend {backend}");
        Ok(packet)
    }
}

/// Nanoseconds per packet: only the decisions are timed, block by block.
#[inline(always)]
fn cost(
    packets: &[Packet],
    amount: usize,
    rng: &mut ChaCha8Rng,
    mut decide: impl FnMut(&Packet) -> u16,
) -> f64 {
    let blocks = amount.div_ceil(BLOCK);
    let mut spent = 0.0;
    for _ in 0..blocks {
        let draw = |_| packets[rng.random_range(0..packets.len())];
        let block: Vec<Packet> = (0..BLOCK).map(draw).collect();
        let (sum, ms) = timed(|| block.iter().map(|p| u32::from(decide(p))).sum::<u32>());
        black_box(sum);
        spent += ms;
    }
    spent * 1e6 / (blocks * BLOCK) as f64
}

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let connections = setup.size.pick(8_000, 64_000, 64_000);
    let amount = setup.size.pick(1 << 16, 1 << 21, 1 << 23);
    let rounds = setup.size.pick(3, 9, 15);
    let members = pool(SERVERS);
    let mut methods = Methods::new(&members, connections, setup.seed)?;
    let packets: Vec<Packet> =
        (0..connections).map(|n| methods.open(n, Layout::stateless())).collect::<Result<_>>()?;
    let mut rng = ChaCha8Rng::seed_from_u64(setup.seed);
    let mut costs = [const { Vec::new() }; 5];
    for round in 0..rounds {
        (setup.progress)(&format!("round {} of {rounds}", round + 1));
        // The order turns, so that no method always follows the same other.
        for turn in 0..NAMES.len() {
            let which = (turn + round) % NAMES.len();
            let m = &mut methods;
            let ns = match which {
                0 => cost(&packets, amount, &mut rng, |p| m.hash.steer(&p.key)),
                1 => cost(&packets, amount, &mut rng, |p| {
                    let question = p.question(&m.stateless);
                    m.stateless.read(&m.servers, &question).unwrap_or(u16::MAX)
                }),
                2 => cost(&packets, amount, &mut rng, |p| {
                    m.stateful.packet(&p.key, p.stateful, false, 1).unwrap_or(u16::MAX)
                }),
                3 => cost(&packets, amount, &mut rng, |p| {
                    let bucket = m.beamer.bucket(&p.key);
                    bucket.current ^ bucket.previous
                }),
                _ => cost(&packets, amount, &mut rng, |p| m.cuckoo.get(&p.key).unwrap_or(u16::MAX)),
            };
            costs[which].push(ns);
        }
    }
    let hash = costs[0].clone();
    let (mut times, mut shares) = (Series::new(0, NS), Series::new(1, RELATIVE));
    for (which, costs) in costs.into_iter().enumerate() {
        let relative: Vec<f64> = costs.iter().zip(&hash).map(|(ns, hash)| ns / hash).collect();
        times.points.push(median(which as f64, costs));
        shares.points.push(median(which as f64, relative));
    }
    let fact = |(name, (t, s)): (&&str, (&Point, &Point))| {
        format!("{name}: {} ns, {} times the software hash.", short(t.y), ratio(s.y))
    };
    let facts = NAMES.iter().zip(times.points.iter().zip(&shares.points)).map(fact).collect();
    Ok(Measured { facts, series: vec![times, shares] })
}
