//! Construction time (Fig 4.21), and whether it is linear in the number of keys.

use super::{LUDO, SETSEP, add, named, quote, set};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Says, Scale, Series, Setup};
use crate::measure::median;
use crate::number::{ratio, short};
use weir_bench::maps::structures::find;

const KEYS: Axis = Axis { label: "keys", scale: Scale::Log };

const fn chart(title: &'static str, label: &'static str, scale: Scale) -> Chart {
    Chart { title, x: KEYS, y: Axis { label, scale } }
}

const SOURCE: &str = "dissertation, section 4.6.2, construction time";

pub static FIG_4_21: Figure = Figure {
    id: "ludo-fig4.21",
    title: "Construction time by number of keys",
    paper: "dissertation, Fig 4.21",
    measures: "Seconds of the thread’s own time from a list of items to the full table and the \
        view that lookups read, l = 20, 64-bit keys. Structures take turns; medians and quartiles \
        of the rounds.",
    charts: &[
        chart("Construction", "seconds", Scale::Log),
        chart("For each key", "ns per key", Scale::Log),
        chart("SetSep over Ludo", "ratio", Scale::Linear),
    ],
    quotes: &[
        quote(0, "Ludo within 30 minutes", LUDO, Says::AtMost, &[(1e9, 1800.0)], SOURCE),
        quote(0, "SetSep, > 5.5 hours", SETSEP, Says::AtLeast, &[(1e9, 19_800.0)], SOURCE),
        quote(
            2,
            "SetSep, > 10 times others",
            SETSEP,
            Says::AtLeast,
            &[(1e4, 10.0), (1e9, 10.0)],
            SOURCE,
        ),
    ],
    note: "the text gives the times at a billion keys, and that SetSep is more than 10 times \
        slower than all others; the chapter’s summary has 10 minutes for Ludo, not 30.",
    why: "Construction is linear in the number of keys by its steps, and every step touches a few \
        random places. So time for each key grows where tables leave a cache, and stays once they \
        are all in memory. SetSep here tests a seed with one product for each key of a group, \
        whose keys are hashed once, and leaves it at the first contradiction, so it costs a few \
        times what the others do at l = 20, not more than ten times; it has one search for each \
        bit of a value.",
    times: ["1 s", "30 s", "15 min"],
    run,
};

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let sizes: &[usize] = setup.size.pick(
        &[20_000, 80_000],
        &[250_000, 1_000_000, 4_000_000],
        &[250_000, 1_000_000, 4_000_000, 16_000_000, 64_000_000],
    );
    let rounds = setup.size.pick(3, 3, 3);
    let names = ["ludo", "othello", "setsep", "partial-cuckoo", "cuckoo", "fuse"];
    let structures = find(&names.map(str::to_owned))?;
    let mut series = Vec::new();
    for &count in sizes {
        let set = set(setup, count, 20);
        let mut seconds = vec![Vec::new(); structures.len()];
        for round in 0..rounds {
            (setup.progress)(&format!("{} keys, round {}", short(count as f64), round + 1));
            for (structure, seconds) in structures.iter().zip(&mut seconds) {
                seconds.push((structure.build)(&set, 0)?.build_s);
            }
        }
        for (structure, seconds) in structures.iter().zip(seconds) {
            let (name, x) = (named(structure.name), count as f64);
            let each = seconds.iter().map(|s| s / x * 1e9).collect();
            add(&mut series, 0, name, median(x, seconds));
            add(&mut series, 1, name, median(x, each));
        }
    }
    let measured = Measured { series, facts: Vec::new() };
    let over = over(&measured);
    let mut facts: Vec<String> =
        names.iter().filter_map(|name| linear(&measured, named(name))).collect();
    facts.extend(billion(&measured));
    let mut series = measured.series;
    series.extend(over);
    Ok(Measured { series, facts })
}

fn over(measured: &Measured) -> Option<Series> {
    let (setsep, ludo) = (measured.find(0, SETSEP)?, measured.find(0, LUDO)?);
    let pairs = setsep.points.iter().zip(&ludo.points);
    Some(Series::of(2, SETSEP, pairs.map(|(a, b)| (a.x, a.y / b.y))))
}

/// The exponent of n in the time, by least squares of the logarithms: 1 is linear.
fn exponent(points: &[Point]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|p| (p.x.ln(), p.y.ln())).collect();
    let count = logs.len() as f64;
    let (x, y) = logs.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0 / count, sum.1 + p.1 / count));
    let rise: f64 = logs.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    rise / logs.iter().map(|p| (p.0 - x).powi(2)).sum::<f64>()
}

fn linear(measured: &Measured, name: &str) -> Option<String> {
    let points = &measured.find(0, name)?.points;
    let (first, last) = (points.first()?, points.last()?);
    Some(format!(
        "{name}: from {} to {} keys time grows as n to the {:.2} (1 is linear); a key takes {} \
         times as long at the end ({} ns).",
        short(first.x),
        short(last.x),
        exponent(points),
        ratio(last.y / last.x / (first.y / first.x)),
        short(last.y / last.x * 1e9)
    ))
}

/// What a billion keys would take at the largest table's time for each.
fn billion(measured: &Measured) -> Option<String> {
    let minutes = |name| {
        let last = measured.find(0, name)?.points.last()?;
        Some(last.y / last.x * 1e9 / 60.0)
    };
    Some(format!(
        "At that rate a billion keys would take {} minutes with Ludo (paper: within 30, or 10) and \
         {} with SetSep (paper: more than 330).",
        short(minutes(LUDO)?),
        short(minutes(SETSEP)?)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_is_that_of_the_power() {
        let points = |power: f64| -> Vec<Point> {
            let at = [1e4f64, 1e5, 3e6].into_iter();
            at.map(|x| Point { x, y: 7e-9 * x.powf(power), spread: None }).collect()
        };
        for power in [1.0, 1.2, 2.0] {
            assert!((exponent(&points(power)) - power).abs() < 1e-9);
        }
    }
}
