//! Lookups per second by states: figures 13 to 16.

use super::keys::{self, BITS, Sharing};
use super::memory::sizes;
use super::{DIGEST, FUSE, MULTI, ORIGINAL};
use crate::Result;
use crate::error::ensure;
use crate::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Series, Setup};
use crate::measure::{median, timed};
use crate::number::short;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::hint::black_box;
use weir_lookup::{DigestCuckoo, Fuse, MultiDigest, Othello, View};

const NAMES: [&str; 4] = [ORIGINAL, FUSE, DIGEST, MULTI];

/// Packets whose flows are drawn before the clock runs.
const BLOCK: usize = 4096;

const CHART: &[Chart] = &[Chart {
    title: "",
    x: Axis { label: "concurrent states", scale: Scale::Log },
    y: Axis { label: "M lookups per second, one thread", scale: Scale::Linear },
}];

const MEASURES: &str = "128 services; each packet finds its service’s tables, is looked up by \
    itself (no bursts, no prefetching) and gets its backend. Packets come from uniformly random \
    states, which is as little locality as there can be. Methods take turns; medians and \
    quartiles.";

const WHY: &str = "Absolute rates depend on caches and clock. The ratios are smaller than the \
    paper’s because our baselines are faster than its own: a bucket is one cache line, its digests \
    are compared by a few vector instructions without a branch. Research code of Othello’s \
    authors, on a machine of our kind, also stands at only 1.36 times such a table at 1M states \
    (42.2 to 31.1 M/s). One at a time the \
    multi-level table with digests of 16 bits is the fastest of all here, up to a million states \
    at least: one line and one comparison decide most packets, where Othello reads two random \
    places and then a DIP array, and fuse three places near each other. What it cannot have is \
    answers that are always right: some of its states reach another’s backend. DIP-E and \
    DIP-V differ by little, in the paper and here.";

const NOTE: &str = "the text gives the values at 1M states (66.3, 14.6 and 16.1 Mpps), more than \
    65 Mpps below 1M states, and a factor of more than 2 over both others at all sizes.";

const HEADLINE: &str = "Concury, summary of results at 1M states";

const fn at_1m(name: &'static str, like: &'static str, points: &'static [(f64, f64)]) -> Quote {
    Quote { chart: 0, name, like, says: Says::Value, points, source: HEADLINE }
}

const QUOTES: &[Quote] = &[
    Quote {
        chart: 0,
        name: "Concury, below 1M states",
        like: ORIGINAL,
        says: Says::AtLeast,
        points: &[(1e3, 65.0), (1e6, 65.0)],
        source: "Concury, section 6.2",
    },
    at_1m("Concury", ORIGINAL, &[(1e6, 66.3)]),
    at_1m("hash table with digest", DIGEST, &[(1e6, 14.6)]),
    at_1m("multi-level digest", MULTI, &[(1e6, 16.1)]),
];

macro_rules! figure {
    ($name:ident, $number:literal, $dissertation:literal, $network:literal, $setting:literal,
     $sharing:expr, $mean:expr, $large:expr, $times:expr) => {
        pub static $name: Figure = Figure {
            id: concat!("concury-fig", $number),
            title: concat!("Lookup rate by states, ", $network, " network, ", $setting),
            paper: concat!("Concury, Fig. ", $number, " (dissertation, Fig. ", $dissertation, ")"),
            measures: MEASURES,
            charts: CHART,
            quotes: QUOTES,
            note: NOTE,
            why: WHY,
            times: $times,
            run: |setup| run(setup, $sharing, $mean, $large),
        };
    };
}

const SMALL_TIMES: [&str; 3] = ["1 s", "40 s", "2 min"];
const LARGE_TIMES: [&str; 3] = ["1 s", "2 min", "8 min"];
figure!(FIG_13, "13", "5.12", "small", "DIP-E", Sharing::Even, 32, false, SMALL_TIMES);
figure!(FIG_14, "14", "5.13", "small", "DIP-V", Sharing::Varied, 32, false, SMALL_TIMES);
figure!(FIG_15, "15", "5.14", "large", "DIP-E", Sharing::Even, 128, true, LARGE_TIMES);
figure!(FIG_16, "16", "5.15", "large", "DIP-V", Sharing::Varied, 128, true, LARGE_TIMES);

/// The key of state `n` of a service: a word as an IPv4 client's address and ports make.
fn key(service: usize, n: u32) -> u64 {
    let word = (service as u64) << 32 | u64::from(n);
    let x = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// A service's tables, of all methods; a packet of a method touches its own only.
struct Tables {
    othello: Vec<(View, Vec<u16>)>,
    fuse: Vec<(Fuse, Vec<u16>)>,
    digest: Vec<DigestCuckoo<4>>,
    multi: Vec<MultiDigest>,
    /// Answers that were not what was put in, by method.
    wrong: [usize; 4],
}

impl Tables {
    fn new(services: &[usize], backends: &[u16], seed: u64) -> Result<Self> {
        let (othello, fuse, digest, multi) = Default::default();
        let mut tables = Self { othello, fuse, digest, multi, wrong: [0; 4] };
        for (service, (&count, &pool)) in services.iter().zip(backends).enumerate() {
            tables.add(service, count as u32, pool, seed.wrapping_add(service as u64))?;
        }
        Ok(tables)
    }

    fn add(&mut self, service: usize, count: u32, pool: u16, seed: u64) -> Result<()> {
        let slots: Vec<u16> = (0..1 << BITS).map(|code| (code as u16) % pool).collect();
        let keys: Vec<u64> = (0..count).map(|n| key(service, n)).collect();
        let code = |n: usize| n as u32 & ((1 << BITS) - 1);
        let mut othello = Othello::new(BITS, keys.len(), seed);
        let mut digest = DigestCuckoo::new(keys.len(), seed);
        let mut multi = MultiDigest::new(keys.len(), seed);
        for (n, key) in keys.iter().enumerate() {
            othello.insert(*key, code(n))?;
            digest.insert(key, slots[code(n) as usize])?;
            multi.insert(key, slots[code(n) as usize])?;
        }
        let (view, fuse) = (othello.view(), Fuse::build(BITS, &keys, code, seed)?);
        for (n, key) in keys.iter().enumerate() {
            let right = slots[code(n) as usize];
            let found = [view.get(key), fuse.get(key)].map(|code| slots[code as usize]);
            let others = [digest.get(key), multi.get(key)];
            for (wrong, found) in
                self.wrong.iter_mut().zip(found.map(Some).into_iter().chain(others))
            {
                *wrong += usize::from(found != Some(right));
            }
        }
        self.othello.push((view, slots.clone()));
        self.fuse.push((fuse, slots));
        self.digest.push(digest);
        self.multi.push(multi);
        Ok(())
    }

    /// Millions of lookups per second of one of [`NAMES`].
    fn rate(&self, which: usize, packets: usize, of: &Packets, rng: &mut ChaCha8Rng) -> f64 {
        match which {
            0 => of.rate(packets, rng, |service, key| {
                let (view, slots) = &self.othello[service];
                slots[view.get(&key) as usize]
            }),
            1 => of.rate(packets, rng, |service, key| {
                let (fuse, slots) = &self.fuse[service];
                slots[fuse.get(&key) as usize]
            }),
            2 => of.rate(packets, rng, |s, key| self.digest[s].get(&key).unwrap_or(u16::MAX)),
            _ => of.rate(packets, rng, |s, key| self.multi[s].get(&key).unwrap_or(u16::MAX)),
        }
    }
}

/// Where packets come from.
struct Packets {
    /// For each service the number of its first state, and at the end of all.
    firsts: Vec<u64>,
}

impl Packets {
    fn new(services: &[usize]) -> Self {
        let ends = services.iter().scan(0, |sum, &n| {
            *sum += n as u64;
            Some(*sum)
        });
        Self { firsts: std::iter::once(0).chain(ends).collect() }
    }

    /// Only the lookups are timed, block by block.
    #[inline(always)]
    fn rate(
        &self,
        packets: usize,
        rng: &mut ChaCha8Rng,
        lookup: impl Fn(usize, u64) -> u16,
    ) -> f64 {
        let total = self.firsts.last().copied().unwrap_or(1);
        let mut block = vec![(0usize, 0u64); BLOCK];
        let mut spent = 0.0;
        for _ in 0..packets.div_ceil(BLOCK) {
            for packet in &mut block {
                let state = rng.random_range(0..total);
                let service = self.firsts.partition_point(|&first| first <= state) - 1;
                *packet = (service, key(service, (state - self.firsts[service]) as u32));
            }
            let (sum, ms) = timed(|| {
                block.iter().map(|&(service, key)| u32::from(lookup(service, key))).sum::<u32>()
            });
            black_box(sum);
            spent += ms;
        }
        packets.div_ceil(BLOCK) as f64 * BLOCK as f64 / spent / 1e3
    }
}

fn run(setup: &Setup<'_>, sharing: Sharing, mean: u16, large: bool) -> Result<Measured> {
    let backends = keys::backends(sharing, mean);
    let packets = setup.size.pick(1 << 17, 1 << 20, 1 << 23);
    let rounds = setup.size.pick(3, 7, 11);
    let mut series: Vec<Series> = NAMES.iter().map(|&name| Series::new(0, name)).collect();
    let mut mistaken = (0, 0);
    for total in sizes(setup.size, large) {
        (setup.progress)(&format!("{} states", short(total as f64)));
        let services = keys::states(&backends, total);
        let tables = Tables::new(&services, &backends, setup.seed)?;
        // Digests of 16 bits are mistaken for each other in 1 of 5,000 lookups.
        let [exact @ .., multi] = tables.wrong;
        ensure!(exact == [0; 3] && multi * 500 <= total, "{:?} astray", tables.wrong);
        mistaken = (multi, total);
        let source = Packets::new(&services);
        let mut rng = ChaCha8Rng::seed_from_u64(setup.seed);
        let mut rates = vec![Vec::new(); NAMES.len()];
        for round in 0..rounds {
            // The order turns, so that no method always follows the same other.
            for turn in 0..NAMES.len() {
                let which = (turn + round) % NAMES.len();
                rates[which].push(tables.rate(which, packets, &source, &mut rng));
            }
        }
        for (series, rates) in series.iter_mut().zip(rates) {
            series.points.push(median(total as f64, rates));
        }
    }
    let measured = Measured { series, facts: Vec::new() };
    let mut facts = Vec::new();
    for (over, paper) in [(DIGEST, 66.3 / 14.6), (MULTI, 66.3 / 16.1)] {
        for ours in [ORIGINAL, FUSE] {
            let Some((middle, low, high)) = measured.ratio(0, ours, over) else { continue };
            facts.push(format!(
                "{ours} over {over}: {} to {} by size, median {} (paper: {} at 1M states).",
                short(low),
                short(high),
                short(middle),
                short(paper)
            ));
        }
    }
    facts.push(format!(
        "Of {} known states {MULTI} sent {} to another’s backend; the others none.",
        short(mistaken.1 as f64),
        mistaken.0
    ));
    Ok(Measured { facts, ..measured })
}
