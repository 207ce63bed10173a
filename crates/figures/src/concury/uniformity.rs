//! How evenly unknown keys spread over Dcodes (section 5.3): figures 5 to 7.

use super::keys::{flow, pool};
use super::{FUSE, ORIGINAL};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Series, Setup};
use crate::number::short;
use md5::Md5;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use weir_hash::Key;
use weir_steering::{BackendId, Codec, Concury, ConcuryConfig, Dcode, Image, StateKey};

const MD5: &str = "MD5";
const SHA: &str = "SHA-256";
const SOURCES: [&str; 4] = [ORIGINAL, FUSE, MD5, SHA];

/// Upper 10 % points of the normal and of the Kolmogorov distribution.
const NORMAL_90: f64 = 1.2816;
const KOLMOGOROV_90: f64 = 1.2238;

pub static FIG_5: Figure = Figure {
    id: "concury-fig5",
    title: "Unknown keys over 1,024 Dcodes",
    paper: "Concury, Fig. 5 (dissertation, Fig. 5.3)",
    measures: "2^20 keys that are not in the tables of 50,000 states (l = 10), counted by Dcode: \
        counts at the quantiles of the 1,024 Dcodes. MD5 and SHA-256 of the same keys beside it.",
    charts: &[Chart {
        title: "",
        x: Axis { label: "quantile of the Dcodes, percent", scale: Scale::Linear },
        y: Axis { label: "keys with the Dcode", scale: Scale::Near },
    }],
    quotes: &[Quote {
        chart: 0,
        name: "Concury: min, 10 %, mean, 90 %, max",
        like: ORIGINAL,
        says: Says::Value,
        points: &[(0.0, 925.0), (10.0, 980.0), (50.0, 1024.0), (90.0, 1066.0), (100.0, 1120.0)],
        source: "dissertation, section 5.4.3",
    }],
    note: "the paper’s mean is drawn at 50 %.",
    why: "The paper enumerates all pairs of cells (2^20 of them) once; ours draws as many keys, \
        which adds the scatter of the keys themselves: a perfectly uniform source gives counts \
        with a standard deviation of 32, so 983 and 1,065 at 10 and 90 %. All four lie on it.",
    times: ["1 s", "1 s", "1 s"],
    run: spread,
};

const CHART: Chart = Chart {
    title: "",
    x: Axis { label: "Dcodes", scale: Scale::Log },
    y: Axis { label: "tests failed at the 10 % level, percent", scale: Scale::Linear },
};

const MEASURES: &str = "Sets of keys that are not in the tables (50,000 states), five keys or \
    more for each Dcode; each set’s Dcodes are tested for uniformity at the 10 % level. The same \
    keys through MD5 and SHA-256.";

const WHY: &str = "A uniform source fails one test in ten at this level. Keys of one table are \
    not independent of each other, so a table that is a little uneven fails several of its sets; \
    MD5 and SHA-256 have no tables and scatter by chance alone. Fewer tests scatter more: with \
    100 tests, 3 percent points are one standard deviation.";

const NOTE: &str = "the figures’ values are not in the text; it says that each source fails around \
    or less than 10 % of the tests.";

const fn bound(like: &'static str) -> Quote {
    Quote {
        chart: 0,
        name: "around or less than 10 %",
        like,
        says: Says::Value,
        points: &[(256.0, 10.0), (1024.0, 10.0), (4096.0, 10.0), (16384.0, 10.0)],
        source: "dissertation, section 5.4.3",
    }
}

pub static FIG_6: Figure = Figure {
    id: "concury-fig6",
    title: "Chi-squared test of Dcodes",
    paper: "Concury, Fig. 6 (dissertation, Fig. 5.4)",
    measures: MEASURES,
    charts: &[CHART],
    quotes: &[bound(ORIGINAL)],
    note: NOTE,
    why: WHY,
    times: ["2 s", "20 s", "2 min"],
    run: |setup| failures(setup, chi_squared_fails),
};

pub static FIG_7: Figure = Figure {
    id: "concury-fig7",
    title: "Kolmogorov-Smirnov test of Dcodes",
    paper: "Concury, Fig. 7 (dissertation, Fig. 5.5)",
    measures: MEASURES,
    charts: &[CHART],
    quotes: &[bound(ORIGINAL)],
    note: NOTE,
    why: WHY,
    times: ["2 s", "20 s", "2 min"],
    run: |setup| failures(setup, kolmogorov_smirnov_fails),
};

/// Tables of one width with the same states: what packets of a service read, with both codecs.
struct Tables {
    bits: u32,
    images: [Arc<Image>; 2],
}

impl Tables {
    fn new(bits: u32, states: u32, rng: &mut ChaCha8Rng) -> Result<Self> {
        let mut image = |codec| -> Result<Arc<Image>> {
            let mut concury = Concury::new(ConcuryConfig {
                capacity: states as usize,
                ..ConcuryConfig::unbounded(codec, bits, rng.random())
            });
            for n in 0..states {
                concury.start(flow(n), BackendId::of(rng.random_range(0..16)), 0)?;
            }
            Ok(concury.build(1, &pool(16), 0)?.0)
        };
        Ok(Self { bits, images: [image(Codec::Othello)?, image(Codec::Fuse)?] })
    }

    /// Dcode of a key by each of the sources.
    fn codes(&self, key: &StateKey) -> [u32; 4] {
        let top = |d: &[u8]| u32::from_be_bytes([d[0], d[1], d[2], d[3]]) >> (32 - self.bits);
        let bytes = key.to_bytes();
        let [othello, fuse] =
            self.images.each_ref().map(|image| image.code(key.hash(&image.header().key)));
        let [othello, fuse] = [othello, fuse].map(|code| code.map_or(0, Dcode::cell));
        [othello, fuse, top(&Md5::digest(bytes)), top(&Sha256::digest(bytes))]
    }

    /// How many keys of a range of clients have each Dcode.
    fn counts(&self, keys: std::ops::Range<u32>) -> [Vec<u32>; 4] {
        let mut counts = [const { Vec::new() }; 4].map(|_: Vec<u32>| vec![0; 1 << self.bits]);
        for n in keys {
            for (counts, code) in counts.iter_mut().zip(self.codes(&flow(n))) {
                counts[code as usize] += 1;
            }
        }
        counts
    }
}

fn spread(setup: &Setup<'_>) -> Result<Measured> {
    let mut rng = ChaCha8Rng::seed_from_u64(setup.seed);
    let tables = Tables::new(10, 50_000, &mut rng)?;
    let first = 10_000_000;
    let mut series = Vec::new();
    let mut facts = Vec::new();
    for (name, mut counts) in SOURCES.iter().zip(tables.counts(first..first + (1 << 20))) {
        counts.sort_unstable();
        let at = |percent: usize| f64::from(counts[(counts.len() - 1) * percent / 100]);
        series.push(Series::of(0, *name, (0..=100).map(|q| (q as f64, at(q)))));
        facts.push(format!(
            "{name}: min, 10 %, mean, 90 %, max are {}, {}, 1024, {}, {}.",
            at(0),
            at(10),
            at(90),
            at(100)
        ));
    }
    Ok(Measured { series, facts })
}

fn failures(setup: &Setup<'_>, fails: fn(&[u32], u32) -> bool) -> Result<Measured> {
    let widths: &[u32] =
        setup.size.pick(&[8, 10, 12], &[8, 9, 10, 11, 12, 13, 14], &[8, 9, 10, 11, 12, 13, 14]);
    let (tables, sets) = setup.size.pick((2, 10), (5, 20), (25, 20));
    let mut series = SOURCES.map(|name| Series::new(0, name));
    for &bits in widths {
        (setup.progress)(&format!("{bits} bits"));
        let mut rng = ChaCha8Rng::seed_from_u64(setup.seed ^ u64::from(bits) << 32);
        let keys = (5u32 << bits).max(20_000);
        let mut failed = [0u32; 4];
        for number in 0..tables {
            let table = Tables::new(bits, 50_000, &mut rng)?;
            for set in 0..sets {
                // Other keys for each width, so that chance is not counted seven times.
                let first = bits * 100_000_000 + (number * sets + set) * keys;
                for (failed, counts) in failed.iter_mut().zip(table.counts(first..first + keys)) {
                    *failed += u32::from(fails(&counts, keys));
                }
            }
        }
        for (series, failed) in series.iter_mut().zip(failed) {
            let share = 100.0 * f64::from(failed) / f64::from(tables * sets);
            series.points.push(crate::figure::Point {
                x: f64::from(1 << bits),
                y: share,
                spread: None,
            });
        }
    }
    let mean = |series: &Series| {
        series.points.iter().map(|p| p.y).sum::<f64>() / series.points.len() as f64
    };
    let shares: Vec<String> =
        series.iter().map(|s| format!("{} {}", s.name, short(mean(s)))).collect();
    let facts = vec![format!(
        "Over all widths, percent of {} tests: {}.",
        tables * sets * widths.len() as u32,
        shares.join(", ")
    )];
    Ok(Measured { series: series.into(), facts })
}

/// Whether codes fail the chi-squared test at the 10 % level.
fn chi_squared_fails(counts: &[u32], keys: u32) -> bool {
    let expected = f64::from(keys) / counts.len() as f64;
    let chi_squared: f64 =
        counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    // Wilson and Hilferty 1931.
    let freedom = (counts.len() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    ((chi_squared / freedom).cbrt() - (1.0 - spread)) / spread.sqrt() > NORMAL_90
}

/// Whether codes fail the Kolmogorov-Smirnov test at the 10 % level.
fn kolmogorov_smirnov_fails(counts: &[u32], keys: u32) -> bool {
    let mut below = 0u32;
    let mut greatest: f64 = 0.0;
    for (code, &count) in counts.iter().enumerate() {
        below += count;
        let share = f64::from(below) / f64::from(keys);
        let uniform = (code + 1) as f64 / counts.len() as f64;
        greatest = greatest.max((share - uniform).abs());
    }
    greatest > KOLMOGOROV_90 / f64::from(keys).sqrt()
}
