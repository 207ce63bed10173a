//! JET against full connection tracking, on the traces of the paper's evaluation (sections 5.2 and
//! 5.3): `cargo run --release -p weir-steering --example jet -- [packets] [runs]`.
//!
//! Every run replays a whole trace from an empty, growing connection table, first packets and
//! growth included, 500 working backends and 50 on the horizon, nothing removed. Each run names
//! the backends anew, so that the luck of one table does not count. Methods take turns within a
//! run; rates are packets per second of
//! processor time, medians over runs; ratios are medians of the ratios within runs.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::{Duration, Instant};
use weir_hash::HashKey;
use weir_placement::{Anchor, Candidate, Horizon, HrwTable, Maglev, NONE, Placement};
use weir_steering::jet::{FullTracking, Guide, Jet, JetTable};
use weir_steering::{ConnectionTable, SLOTS, Steer, Unbounded};

const WORKING: u16 = 500;
const HORIZON: u16 = 50;
const ROWS: u32 = 65_536;
/// Room for a quarter more backends than there are.
const BUCKETS: u32 = 688;
const MAGLEV_SLOTS: u32 = 65_537;
const RANKS: u64 = 1 << 24;
/// Packets handed over at once.
const BURST: usize = 256;

/// Rejection-inversion (Hormann and Derflinger 1996): rank k of 1..=n with probability
/// proportional to k^-skew.
struct Zipf {
    n: f64,
    skew: f64,
    ends: (f64, f64),
}

impl Zipf {
    fn new(n: u64, skew: f64) -> Self {
        let mut zipf = Self { n: n as f64, skew, ends: (0.0, 0.0) };
        zipf.ends = (zipf.area(1.5) - 1.0, zipf.area(zipf.n + 0.5));
        zipf
    }

    /// The integral of x^-skew from 1.
    fn area(&self, x: f64) -> f64 {
        let rest = 1.0 - self.skew;
        if rest.abs() < 1e-9 { x.ln() } else { (rest * x.ln()).exp_m1() / rest }
    }

    fn inverse(&self, area: f64) -> f64 {
        let rest = 1.0 - self.skew;
        if rest.abs() < 1e-9 { area.exp() } else { ((area * rest).ln_1p() / rest).exp() }
    }

    fn sample(&self, rng: &mut impl Rng) -> u64 {
        loop {
            let area = self.ends.0 + rng.random::<f64>() * (self.ends.1 - self.ends.0);
            let rank = self.inverse(area).round().clamp(1.0, self.n);
            // Under the bar of its rank, which ends at the integral half a rank further right.
            if area >= self.area(rank + 0.5) - rank.powf(-self.skew) {
                return rank as u64;
            }
        }
    }
}

/// A flow's key: client address and ports, in no order.
fn flow(rank: u64) -> u64 {
    HashKey::from_seed(3).hash_word(rank)
}

fn zipf_trace(packets: usize, skew: f64) -> Vec<u64> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let zipf = Zipf::new(RANKS, skew);
    (0..packets).map(|_| flow(zipf.sample(&mut rng))).collect()
}

/// Flows and packets of the paper's NY18 trace: each flow once, the other packets Zipf with skew 1,
/// all shuffled.
fn large_trace(packets: usize, flows: u64) -> Vec<u64> {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let zipf = Zipf::new(flows, 1.0);
    let more = packets - flows as usize;
    let mut trace: Vec<u64> = (1..=flows).map(flow).collect();
    trace.extend((0..more).map(|_| flow(zipf.sample(&mut rng))));
    trace.shuffle(&mut rng);
    trace
}

fn names(run: usize) -> Vec<String> {
    (0..WORKING + HORIZON).map(|i| format!("run{run}-b{i}")).collect()
}

fn candidates(names: &[String]) -> Vec<Candidate<'_>> {
    let numbered = (0..).zip(names);
    numbered.map(|(backend, name)| Candidate { name, backend, weight: 1 }).collect()
}

fn filled<P: Horizon>(mut placement: P, names: &[String]) -> P {
    for candidate in candidates(names) {
        if candidate.backend < WORKING {
            placement.add(candidate).unwrap();
        } else {
            placement.add_horizon(candidate).unwrap();
        }
    }
    placement
}

/// A method, and how many flows it remembers.
trait Method: Steer<u64> {
    fn tracked(&self) -> usize;
}

impl<G: Guide> Method for Jet<G, Unbounded<u64>> {
    fn tracked(&self) -> usize {
        self.connections().len()
    }
}

impl<P: Placement> Method for FullTracking<P, Unbounded<u64>> {
    fn tracked(&self) -> usize {
        self.connections().len()
    }
}

/// The placement alone, which would break flows: what no method over it can beat.
struct Alone<P>(P, HashKey);

impl<P: Placement> Steer<u64> for Alone<P> {
    fn steer(&mut self, flow: &u64) -> u16 {
        self.0.lookup(self.1.hash_word(*flow)).unwrap_or(NONE)
    }

    fn steer_batch(&mut self, flows: &[u64], out: &mut [u16]) {
        let mut hashes = [0; BURST];
        let hashes = &mut hashes[..flows.len()];
        hashes.iter_mut().zip(flows).for_each(|(hash, flow)| *hash = self.1.hash_word(*flow));
        self.0.lookup_batch(hashes, out);
    }

    fn end(&mut self, _: &u64) {}

    fn bytes(&self) -> usize {
        0
    }
}

impl<P: Placement> Method for Alone<P> {
    fn tracked(&self) -> usize {
        0
    }
}

/// One method over the runs.
struct Series {
    name: &'static str,
    mpps: Vec<f64>,
    tracked: Vec<f64>,
    bytes: usize,
}

/// Seconds that this thread has had a processor: other work on the machine may slow it down, but
/// does not count. Wall-clock time where the kernel does not say.
fn processor_seconds(start: Instant) -> f64 {
    // The kernel brings its account up to date when the thread gives way.
    std::thread::yield_now();
    let account = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let first = account.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    first.map_or_else(|| start.elapsed().as_secs_f64(), |nanoseconds| nanoseconds / 1e9)
}

/// Replays the trace from an empty table; returns a digest of all answers.
fn replay(mut method: impl Method, trace: &[u64], series: &mut Series) -> u64 {
    let mut out = [0u16; BURST];
    let mut digest = 0u64;
    let start = Instant::now();
    let before = processor_seconds(start);
    for burst in trace.chunks(BURST) {
        let out = &mut out[..burst.len()];
        method.steer_batch(burst, out);
        digest = digest.rotate_left(1) ^ out.iter().map(|&b| u64::from(b)).sum::<u64>();
    }
    let seconds = processor_seconds(start) - before;
    series.mpps.push(trace.len() as f64 / seconds / 1e6);
    series.tracked.push(method.tracked() as f64);
    series.bytes = method.bytes();
    digest
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// In the order of [`run_once`]. *Sized*: with room for all flows from the start, so that no
/// growth is measured. Maglev is there as in the paper: JET cannot have it.
const METHODS: [&str; 8] = [
    "table alone",
    "table JET",
    "table full",
    "table full, sized",
    "anchor alone",
    "anchor JET",
    "anchor full",
    "maglev full",
];

fn run_once(trace: &[u64], run: usize, series: &mut [Series]) {
    let key = HashKey::from_seed(run as u64);
    let empty = || Unbounded::<u64>::new(key);
    let names = names(run);
    let table = filled(HrwTable::new(ROWS).unwrap(), &names);
    let anchor = filled(Anchor::new(BUCKETS).unwrap(), &names);
    let maglev = Maglev::build(MAGLEV_SLOTS, &candidates(&names)[..usize::from(WORKING)]).unwrap();
    let [alone, jet, full, sized, anchor_alone, anchor_jet, anchor_full, maglev_full] = series
    else {
        unreachable!("one series per method")
    };

    let digests = [
        replay(Alone(table.clone(), key), trace, alone),
        replay(JetTable::by_row(table.clone(), empty(), Duration::ZERO).unwrap(), trace, jet),
        replay(FullTracking::new(table.clone(), empty()), trace, full),
    ];
    // Proposition 4.1: JET decides like full tracking; and nothing changes during a replay.
    assert!(digests.iter().all(|digest| *digest == digests[0]), "all decide alike");
    let room = Unbounded::with_capacity(key, full.tracked[run] as usize);
    assert_eq!(replay(FullTracking::new(table, room), trace, sized), digests[0]);
    let digests = [
        replay(Alone(anchor.clone(), key), trace, anchor_alone),
        replay(Jet::new(anchor.clone(), empty(), Duration::ZERO), trace, anchor_jet),
        replay(FullTracking::new(anchor, empty()), trace, anchor_full),
    ];
    assert!(digests.iter().all(|digest| *digest == digests[0]), "all decide alike");
    replay(FullTracking::new(maglev, empty()), trace, maglev_full);
}

fn report(name: &str, trace: &[u64], runs: usize) {
    let mut series =
        METHODS.map(|name| Series { name, mpps: Vec::new(), tracked: Vec::new(), bytes: 0 });
    (0..runs).for_each(|run| run_once(trace, run, &mut series));
    let flows = mean(&series[2].tracked);
    println!("\n{name}: {} packets, {flows} flows, {runs} runs", trace.len());
    println!("| method | Mpps | least | most | tracked (mean) | x 11 / flows | KB |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for series in &series {
        let least = series.mpps.iter().copied().fold(f64::MAX, f64::min);
        let most = series.mpps.iter().copied().fold(0.0, f64::max);
        let (tracked, kb) = (mean(&series.tracked), series.bytes / 1024);
        println!(
            "| {} | {:.1} | {least:.1} | {most:.1} | {tracked:.0} | {:.4} | {kb} |",
            series.name,
            median(&series.mpps),
            tracked / flows * 11.0
        );
    }
    let ratio = |a: usize, b: usize| {
        let pairs = series[a].mpps.iter().zip(&series[b].mpps);
        median(&pairs.map(|(a, b)| a / b).collect::<Vec<_>>())
    };
    println!(
        "JET / full: table {:.2} (sized {:.2}), anchor {:.2}; JET / alone: table {:.2}, anchor {:.2}",
        ratio(1, 2),
        ratio(1, 3),
        ratio(5, 6),
        ratio(1, 0),
        ratio(5, 4)
    );
}

/// What the pauses cost: a sweep of the connection table, and its growth.
fn report_pauses() {
    let key = HashKey::from_seed(1);
    let flows: Vec<u64> = (0..11_000_000).map(flow).collect();
    let mut out = vec![0; flows.len()];
    let names = names(0);
    let table = filled(HrwTable::new(ROWS).unwrap(), &names);
    let anchor = filled(Anchor::new(BUCKETS).unwrap(), &names);
    let mut table = JetTable::by_row(table, Unbounded::new(key), Duration::ZERO).unwrap();
    let mut anchor = Jet::new(anchor, Unbounded::new(key), Duration::ZERO);
    table.steer_batch(&flows, &mut out);
    anchor.steer_batch(&flows, &mut out);
    let each = |run: &mut dyn FnMut() -> usize| {
        let start = Instant::now();
        let before = processor_seconds(start);
        let count = run();
        (processor_seconds(start) - before) * 1e9 / count as f64
    };
    let (table, anchor) = (&mut table, &mut anchor);
    let mut sweep = || {
        table.sweep();
        table.tracked()
    };
    let by_row = each(&mut sweep);
    let mut sweep = || {
        anchor.sweep();
        anchor.tracked()
    };
    let by_backend = each(&mut sweep);
    println!("\na sweep, per tracked flow: table {by_row:.1} ns, anchor {by_backend:.1} ns");

    // Three quarters of the slots, then one flow more.
    let mut full = Unbounded::<u64>::with_capacity(key, 1_000_000);
    let bytes = full.bytes();
    let mut more = flows.iter();
    while full.len() * 4 < bytes / 64 * SLOTS * 3 - 4 {
        more.by_ref().take(1).for_each(|flow| full.insert(key.hash_word(*flow), *flow, 1));
    }
    let mut grow = || {
        while full.bytes() == bytes {
            more.by_ref().take(1).for_each(|flow| full.insert(key.hash_word(*flow), *flow, 1));
        }
        full.len()
    };
    println!("growth at a million flows, per flow: {:.1} ns", each(&mut grow));
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let mut argument = |default| match arguments.next() {
        None => default,
        Some(Ok(number)) if number > 0 => number,
        Some(_) => {
            eprintln!("usage: jet [packets] [runs]");
            std::process::exit(2);
        }
    };
    let (packets, runs) = (argument(10_000_000), argument(5));
    for skew in [0.6, 1.0, 1.4] {
        report(&format!("Zipf {skew} over 2^24 ranks"), &zipf_trace(packets, skew), runs);
    }
    // 34.1M packets of 1,602,007 flows for the default of 10M.
    let scaled = |number: f64| (number * packets as f64 / 1e7) as usize;
    let flows = scaled(1_602_007.0).max(1) as u64;
    report("As many flows as NY18", &large_trace(scaled(34_100_000.0), flows), runs);
    report_pauses();
}
