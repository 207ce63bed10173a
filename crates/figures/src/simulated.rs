//! The simulator's built-in scenarios.

use super::figure::{Point, Series, Setup};
use crate::Result;
use weir_sim::{Report, Row, Size};

/// Plays a built-in scenario in a run's size, from its seed.
pub fn play(setup: &Setup<'_>, name: &str) -> Result<Report> {
    let size = setup.size.pick(Size::Smoke, Size::Normal, Size::Full);
    let mut scenario = weir_sim::builtin(name, size)?;
    scenario.seed = setup.seed;
    let report = weir_sim::run_with(&scenario, &mut |at| {
        let (run, percent) = (at.run + 1, 100.0 * at.share);
        (setup.progress)(&format!("{name}: {run} of {}, {}, {percent:.0} %", at.runs, at.method));
    })?;
    Ok(report)
}

/// One series: of the rows for which `of` says yes, `y` over `x`; the mean of the seeds, with their
/// range.
pub fn series(
    chart: usize,
    name: &str,
    rows: &[Row],
    of: impl Fn(&Row) -> bool,
    x: impl Fn(&Row) -> f64,
    y: impl Fn(&Row) -> f64,
) -> Series {
    let mut found: Vec<(f64, Vec<f64>)> = Vec::new();
    for row in rows.iter().filter(|row| of(row)) {
        let (x, y) = (x(row), y(row));
        match found.iter_mut().find(|(at, _)| *at == x) {
            Some((_, values)) => values.push(y),
            None => found.push((x, vec![y])),
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let point = |(x, values): (f64, Vec<f64>)| Point {
        x,
        y: values.iter().sum::<f64>() / values.len() as f64,
        spread: (values.len() > 1).then(|| {
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            (low, values.iter().copied().fold(low, f64::max))
        }),
    };
    Series { chart, name: name.to_owned(), points: found.into_iter().map(point).collect() }
}

/// The series of `over` divided by that of `under`, where both have a value.
pub fn quotient(chart: usize, name: &str, over: &Series, under: &Series) -> Series {
    let ratio = |p: &Point| {
        let below = under.points.iter().find(|q| q.x == p.x)?.y;
        (below > 0.0).then(|| (p.x, p.y / below))
    };
    Series::of(chart, name, over.points.iter().filter_map(ratio))
}
