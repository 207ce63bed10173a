//! Slot seeds: how long they are, how many have to be tried, what they cost (Figs 4.5, 4.7, 4.8).

use super::{add, quote, set};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Quote, Says, Scale, Series, Setup};
use crate::number::short;
use weir_bench::maps::distributions::{Seeds, seeds};
use weir_bench::maps::keys::key;
use weir_hash::{HashKey, Key};
use weir_lookup::{LUDO_LOAD, ludo_seed};

/// Seeds of one word of Ludo's.
const WORD: usize = 31;
/// Seeds of eight bits, which no bucket of the dissertation exceeds.
const SEEDS: usize = 8 * WORD;
/// Bits of an entry of the overflow table: a bucket's number and a seed.
const ENTRY: f64 = 37.0;

const CHANCE: &str = "by chance";
const PATHS: &str = "a filled table, paths chosen by seeds";

const MEASURES: &str = "Smallest seeds of 1M random full buckets (50K in smoke size), as \
    independent seeds give them, and a table of 1M keys (20K) that insertions filled to 95 %.";

const SEED_SOURCE: &str = "dissertation, section 4.4.6, overflow seeds";

/// Buckets that are tried.
fn buckets(setup: &Setup<'_>) -> usize {
    setup.size.pick(50_000, 1_000_000, 1_000_000)
}

/// How many of the buckets have each smallest seed; those without one below [`SEEDS`] are in none.
fn smallest(setup: &Setup<'_>) -> Vec<usize> {
    let keys: Vec<HashKey> = (0..SEEDS / WORD)
        .map(|word| HashKey::from_seed(setup.seed ^ (word as u64) << 32))
        .collect();
    let mut counts = vec![0; SEEDS];
    for bucket in 0..buckets(setup) as u64 {
        // The words of a bucket's seeds are independent, so others' hashes stand for them.
        let found = keys.iter().zip(0..).find_map(|(hash, word)| {
            let hashes = [0, 1, 2, 3].map(|slot| key(4 * bucket + slot).hash(hash));
            ludo_seed(&hashes).map(|seed| word * WORD + usize::from(seed))
        });
        if let Some(seed) = found {
            counts[seed] += 1;
        }
    }
    counts
}

/// Share of the buckets whose smallest seed is below `most`.
fn below(counts: &[usize], most: usize, buckets: usize) -> f64 {
    counts[..most.min(counts.len())].iter().sum::<usize>() as f64 / buckets as f64
}

/// Share of full buckets that overflow a seed of so many bits, whose largest value says so.
fn overflow(counts: &[usize], bits: u32, buckets: usize) -> f64 {
    1.0 - below(counts, (1 << bits) - 1, buckets)
}

fn table(setup: &Setup<'_>) -> Result<Seeds> {
    Ok(seeds(&set(setup, setup.size.pick(20_000, 1_000_000, 1_000_000), 20))?)
}

pub static FIG_4_5: Figure = Figure {
    id: "ludo-fig4.5",
    title: "Memory of seeds and overflow table by length of a seed",
    paper: "dissertation, Fig 4.5",
    measures: MEASURES,
    charts: &[Chart {
        title: "",
        x: Axis { label: "bits of a seed", scale: Scale::Linear },
        y: Axis { label: "bits per key", scale: Scale::Linear },
    }],
    quotes: &[
        quote(
            0,
            "seeds of 5 bits and overflow",
            CHANCE,
            Says::Value,
            &[(5.0, 1.43)],
            "dissertation, section 4.4.5: 1.31 and 0.12 bits",
        ),
        quote(
            0,
            "the same",
            PATHS,
            Says::Value,
            &[(5.0, 1.43)],
            "dissertation, section 4.4.5: 1.31 and 0.12 bits",
        ),
    ],
    note: "the text gives the two parts at 5 bits, 1.31 and 0.12, and that 5 bits are the minimum.",
    why: "A seed that is not found among 2^e - 1 stands in the overflow table, as 37 bits, as the \
        dissertation counts them. It has 1.2 % of the buckets there at 5 bits; independent seeds \
        give (29/32)^31 = 4.7 % of the full ones, whichever hash function makes them, and then 6 \
        bits take less than 5. weir’s insertions take a path on which every bucket finds a seed, \
        so nearly nothing overflows, and 5 bits are better than 6 again.",
    times: ["1 s", "1 s", "1 s"],
    run: memory,
};

fn memory(setup: &Setup<'_>) -> Result<Measured> {
    (setup.progress)("trying seeds");
    let counts = smallest(setup);
    let table = table(setup)?.table;
    let full = table.fill[4];
    let bits = |bits: u32, share: f64| (f64::from(bits) + ENTRY * share) / (4.0 * LUDO_LOAD);
    // Buckets that are not full find a seed so much more easily that they count for nothing here.
    let chance = |e: u32| bits(e, full * overflow(&counts, e, buckets(setup)));
    let mut chance = Series::of(0, CHANCE, (2..=8).map(|e| (f64::from(e), chance(e))));
    let paths = Series::of(0, PATHS, [(5.0, bits(5, table.overflow))]);
    let least = chance.points.iter().min_by(|a, b| a.y.total_cmp(&b.y)).copied();
    chance.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    let facts = least.zip(chance.at(5.0)).map(|(least, five)| {
        format!(
            "By chance {} bits are the least, {:.2} per key, and 5 bits take {five:.2}; with paths \
             chosen by seeds 5 bits take {:.2} (paper: 1.43).",
            least.x, least.y, paths.points[0].y
        )
    });
    Ok(Measured { series: vec![chance, paths], facts: facts.into_iter().collect() })
}

pub static FIG_4_7: Figure = Figure {
    id: "ludo-fig4.7",
    title: "Distribution of seed lengths",
    paper: "dissertation, Fig 4.7",
    measures: MEASURES,
    charts: &[Chart {
        title: "",
        x: Axis { label: "bits of a seed", scale: Scale::Linear },
        y: Axis { label: "percent of the buckets whose seed fits", scale: Scale::Linear },
    }],
    quotes: &[
        quote(0, "more than 98 %", CHANCE, Says::AtLeast, &[(5.0, 98.0)], SEED_SOURCE),
        quote(0, "more than 98 %", PATHS, Says::AtLeast, &[(5.0, 98.0)], SEED_SOURCE),
        quote(0, "none above 8 bits", CHANCE, Says::Value, &[(8.0, 100.0)], SEED_SOURCE),
    ],
    note: "the text says that more than 98 % of the seeds fit into 5 bits, that 1.2 % of the \
        buckets overflow in the experiments, and that none was seen above 8 bits. The variants \
        Single, Separate and Grouped are not built here.",
    why: "One seed in 32/3 gives four keys four slots, so 31 seeds fail for (29/32)^31 = 4.7 % of \
        the full buckets, not for 1.2 %; no choice of hash function changes that as long as the \
        seeds are independent. The promise holds again where the insertion looks for paths on \
        which all buckets find one of the 31.",
    times: ["1 s", "1 s", "1 s"],
    run: lengths,
};

fn lengths(setup: &Setup<'_>) -> Result<Measured> {
    (setup.progress)("trying seeds");
    let counts = smallest(setup);
    let found = table(setup)?;
    let fits = |e: u32| 100.0 * (1.0 - overflow(&counts, e, buckets(setup)));
    let mut series = vec![Series::of(0, CHANCE, (1..=8).map(|e| (f64::from(e), fits(e))))];
    for fill in &found.fills[..3] {
        let at = |e: u32| 100.0 * fill.cumulative[(1usize << e) - 2];
        let name = format!("{} by chance", keys_of(fill.keys));
        series.push(Series::of(0, name, (1..=5).map(|e| (f64::from(e), at(e)))));
    }
    let table = &found.table;
    series.push(Series::of(0, PATHS, [(5.0, 100.0 * (1.0 - table.overflow))]));
    let facts = vec![
        format!(
            "Seeds of 5 bits do not fit for {:.2} % of full buckets by chance, (29/32)^31 is {:.2} \
             %; the paper says 1.2 %.",
            100.0 - fits(5),
            100.0 * (29.0f64 / 32.0).powi(31)
        ),
        format!(
            "In the filled table {:.2} % of the buckets are full, {:.4} % overflow, and {} of {} \
             keys are in the fallback table (paper: none).",
            100.0 * table.fill[4],
            100.0 * table.overflow,
            table.fallback,
            short(table.keys as f64)
        ),
    ];
    Ok(Measured { series, facts })
}

fn keys_of(keys: usize) -> &'static str {
    ["one key", "two keys", "three keys"].get(keys.wrapping_sub(1)).copied().unwrap_or("four keys")
}

const fn tries(like: &'static str, points: &'static [(f64, f64)]) -> Quote {
    quote(1, "4^4 / 4! = 10.7", like, Says::Value, points, "dissertation, section 4.4.6")
}

const MEAN: &str = "mean";

pub static FIG_4_8: Figure = Figure {
    id: "ludo-fig4.8",
    title: "Seeds that have to be tried",
    paper: "dissertation, Fig 4.8",
    measures: MEASURES,
    charts: &[
        Chart {
            title: "Distribution",
            x: Axis { label: "seeds tried", scale: Scale::Log },
            y: Axis { label: "percent of the full buckets served", scale: Scale::Linear },
        },
        Chart {
            title: "Mean by keys of the bucket",
            x: Axis { label: "keys of a bucket", scale: Scale::Linear },
            y: Axis { label: "seeds tried", scale: Scale::Linear },
        },
    ],
    quotes: &[tries(MEAN, &[(4.0, 10.7)])],
    note: "the text gives the expected number of tries of a full bucket. The variants Single, \
        Separate and Grouped are not built here.",
    why: "The number of tries is geometric: a hash puts k keys into k slots of four with \
        probability 1, 3/4, 3/8 and 3/32. weir tests its 31 seeds at once with a few words \
        (docs/ludo.md), so a number of tries is a number, not a time.",
    times: ["1 s", "1 s", "1 s"],
    run: attempts,
};

fn attempts(setup: &Setup<'_>) -> Result<Measured> {
    (setup.progress)("trying seeds");
    let counts = smallest(setup);
    let served = |tries: usize| 100.0 * below(&counts, tries, buckets(setup));
    let at = [1, 2, 3, 4, 6, 8, 12, 16, 24, 31, 48, 64, 96, 128, 192, 248];
    let mut series = vec![Series::of(0, CHANCE, at.map(|tries| (tries as f64, served(tries))))];
    for fill in &table(setup)?.fills[..3] {
        let point = Point { x: fill.keys as f64, y: fill.mean_tries, spread: None };
        add(&mut series, 1, MEAN, point);
    }
    let sum: usize = counts.iter().zip(1..).map(|(count, tries)| count * tries).sum();
    let mean = sum as f64 / counts.iter().sum::<usize>().max(1) as f64;
    add(&mut series, 1, MEAN, Point { x: 4.0, y: mean, spread: None });
    let facts = vec![format!(
        "A full bucket takes {mean:.2} tries on average (32/3 is 10.67), half of them up to {}, 99 \
         % up to {}.",
        quantile(&counts, buckets(setup), 0.5),
        quantile(&counts, buckets(setup), 0.99)
    )];
    Ok(Measured { series, facts })
}

/// Tries that serve a share of the buckets.
fn quantile(counts: &[usize], buckets: usize, share: f64) -> usize {
    (1..=counts.len()).find(|&tries| below(counts, tries, buckets) >= share).unwrap_or(SEEDS)
}
