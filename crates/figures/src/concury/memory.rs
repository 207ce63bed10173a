//! Bytes of the tables that packets read, by states: figures 9 to 12.

use super::keys::{self, BITS, Sharing};
use super::{DIGEST, FUSE, MULTI, ORIGINAL};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Series, Setup, Size};
use crate::number::short;
use weir_lookup::{DigestCuckoo, Fuse, MultiDigest, Othello};
use weir_steering::StateKey;

const CELLS: &str = "Concury (Othello) without DIP array";

const CHART: &[Chart] = &[Chart {
    title: "",
    x: Axis { label: "concurrent states", scale: Scale::Log },
    y: Axis { label: "memory of 128 services, MB", scale: Scale::Log },
}];

const MEASURES: &str = "Bytes of the allocations that a packet may read, in 128 services with \
    all states in them, tables sized for their states: cells and DIP arrays (4,096 entries of 2 \
    bytes) for Concury, slots for the others. MB are millions of bytes.";

const NOTE: &str = "the figures’ values are in the text only where quoted; the value at 1M is the \
    summary’s (3.84 MB against 18.6 and 4.4).";

const WHY: &str = "At 1M states and more the cells decide: 28 bits per state with Othello, 13.6 \
    with fuse, as the theory says, against the digests’ slots. Our totals contain a DIP array of \
    8 KB for each service, 1.05 MB in all, which alone is as much as the paper’s total at 256K \
    states; the paper’s totals leave room for at most a third of that, so “without DIP array” is \
    the series to hold against them. Arrays come in chunks \
    of 4,096 bytes, two arrays to a service, so 128 services take 1.05 MB at least, which is why \
    ours is flat below some 100K states and just misses the paper’s bound there; at 1M states \
    rounding up still costs a fifth (33.5 bits for a state instead of 28), at 8M nothing. The hash table \
    with digest takes 135 bits for a state, less than the paper’s 149. Our multi-level table takes \
    40 where the paper’s 4.4 MB at 1M leave 35: that many slots are enough to be filled once, but \
    overflow when connections come and go.";

/// Small networks are measured up to 1M states, large ones up to 16M.
const fn quotes(large: bool) -> &'static [Quote] {
    const fn quote(
        like: &'static str,
        name: &'static str,
        says: Says,
        points: &'static [(f64, f64)],
        source: &'static str,
    ) -> Quote {
        Quote { chart: 0, name, like, says, points, source }
    }
    const HEADLINE: &str = "Concury, summary of results at 1M states";
    const BOUND: Quote = quote(
        CELLS,
        "Concury, below 256K states",
        Says::AtMost,
        &[(1e3, 1.0), (255e3, 1.0)],
        "Concury, section 6.2: < 1 MB for < 256K states",
    );
    const AT_1M: Quote = quote(CELLS, "Concury", Says::Value, &[(1e6, 3.84)], HEADLINE);
    const MAGLEV: Quote = quote(DIGEST, "Maglev", Says::Value, &[(1e6, 18.6)], HEADLINE);
    const SILKROAD: Quote = quote(MULTI, "SilkRoad", Says::Value, &[(1e6, 4.4)], HEADLINE);
    const SMALL: &[Quote] = &[BOUND, AT_1M, MAGLEV, SILKROAD];
    const LARGE: &[Quote] = &[
        BOUND,
        AT_1M,
        quote(
            CELLS,
            "Concury at 8M",
            Says::AtMost,
            &[(8e6, 38.0)],
            "Concury, section 6.2: both < 38 MB at 8M",
        ),
        MAGLEV,
        SILKROAD,
        quote(
            MULTI,
            "SilkRoad at 8M",
            Says::AtMost,
            &[(8e6, 38.0)],
            "Concury, section 6.2: both < 38 MB at 8M",
        ),
    ];
    if large { LARGE } else { SMALL }
}

macro_rules! figure {
    ($name:ident, $number:literal, $dissertation:literal, $network:literal, $setting:literal,
     $sharing:expr, $mean:expr, $large:expr, $times:expr) => {
        pub static $name: Figure = Figure {
            id: concat!("concury-fig", $number),
            title: concat!("Memory by states, ", $network, " network, ", $setting),
            paper: concat!("Concury, Fig. ", $number, " (dissertation, Fig. ", $dissertation, ")"),
            measures: MEASURES,
            charts: CHART,
            quotes: quotes($large),
            note: NOTE,
            why: WHY,
            times: $times,
            run: |setup| run(setup, $sharing, $mean, $large),
        };
    };
}

const SMALL_TIMES: [&str; 3] = ["1 s", "3 s", "10 s"];
const LARGE_TIMES: [&str; 3] = ["1 s", "15 s", "2 min"];
figure!(FIG_9, "9", "5.8", "small", "DIP-E", Sharing::Even, 32, false, SMALL_TIMES);
figure!(FIG_10, "10", "5.9", "small", "DIP-V", Sharing::Varied, 32, false, SMALL_TIMES);
figure!(FIG_11, "11", "5.10", "large", "DIP-E", Sharing::Even, 128, true, LARGE_TIMES);
figure!(FIG_12, "12", "5.11", "large", "DIP-V", Sharing::Varied, 128, true, LARGE_TIMES);

/// Numbers of states, up to `most`: 1K, 4K, ... and 1M and 8M, which the paper gives numbers for.
pub fn sizes(size: Size, large: bool) -> Vec<usize> {
    let most = size.pick(64_000, if large { 8_000_000 } else { 1_000_000 }, 16_000_000);
    let all = [1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000, 8_000_000, 16_000_000];
    let top = if large { most } else { most.min(1_000_000) };
    all.into_iter().filter(|&n| n <= top).collect()
}

fn run(setup: &Setup<'_>, sharing: Sharing, mean: u16, large: bool) -> Result<Measured> {
    let backends = keys::backends(sharing, mean);
    let names = [ORIGINAL, CELLS, FUSE, DIGEST, MULTI];
    let mut series: Vec<Series> = names.iter().map(|&name| Series::new(0, name)).collect();
    for total in sizes(setup.size, large) {
        (setup.progress)(&format!("{} states", short(total as f64)));
        let bytes = bytes(&keys::states(&backends, total), setup.seed)?;
        for (series, bytes) in series.iter_mut().zip(bytes) {
            series.points.push(crate::figure::Point {
                x: total as f64,
                y: bytes as f64 / 1e6,
                spread: None,
            });
        }
    }
    let measured = Measured { series, facts: Vec::new() };
    let mut facts = Vec::new();
    if let Some(last) = measured.series[0].points.last() {
        let share = |of: &str, name: &str| {
            let of = measured.find(0, of)?.points.last()?.y;
            Some(100.0 * of / measured.find(0, name)?.points.last()?.y)
        };
        for (name, words) in [(DIGEST, "20 to 30 % above 64K states"), (MULTI, "very close to it")]
        {
            if let (Some(cells), Some(fuse)) = (share(CELLS, name), share(FUSE, name)) {
                facts.push(format!(
                    "At {} states Concury’s memory is {cells:.0} % of the {name}’s (paper: \
                     {words}); with fuse and DIP arrays {fuse:.0} %.",
                    short(last.x)
                ));
            }
        }
    }
    Ok(Measured { facts, ..measured })
}

/// Bytes by series of 128 services with these numbers of states.
fn bytes(services: &[usize], seed: u64) -> Result<[usize; 5]> {
    let slots = 2usize << BITS;
    let mut bytes = [0; 5];
    for (service, &count) in services.iter().enumerate() {
        let seed = seed.wrapping_add(service as u64);
        let states: Vec<StateKey> = (0..count as u32).map(keys::flow).collect();
        let mut othello = Othello::new(BITS, count, seed);
        let mut digest = DigestCuckoo::<4>::new(count, seed);
        let mut multi = MultiDigest::new(count, seed);
        for (n, state) in states.iter().enumerate() {
            othello.insert(*state, n as u32 & ((1 << BITS) - 1))?;
            digest.insert(state, n as u16 & 0xff)?;
            multi.insert(state, n as u16 & 0xff)?;
        }
        let cells = othello.view().bytes();
        let fuse = Fuse::build(BITS, &states, |n| n as u32 & 0xfff, seed)?.bytes();
        let ours = [cells + slots, cells, fuse + slots, digest.bytes(), multi.bytes()];
        bytes.iter_mut().zip(ours).for_each(|(sum, of)| *sum += of);
    }
    Ok(bytes)
}
