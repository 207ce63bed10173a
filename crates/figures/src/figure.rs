//! What a figure is: the paper's numbers, and the function that yields ours.

use crate::Result;
use serde::Serialize;
use std::path::Path;

/// How large a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Seconds: shows that everything works; too small to be compared.
    Smoke,
    /// A minute or a few for a figure.
    Normal,
    /// As large as in the paper.
    Full,
}

impl Size {
    /// Each size with its name and a sentence that says what it is.
    pub const CHOICES: [(Self, &'static str, &'static str); 3] = [
        (Self::Smoke, "smoke", "Seconds: shows that everything works; too small to be compared"),
        (Self::Normal, "normal", "A minute or a few for a figure"),
        (Self::Full, "full", "As large as in the paper"),
    ];

    /// The one of three values that belongs to the size.
    pub fn pick<T>(self, smoke: T, normal: T, full: T) -> T {
        match self {
            Self::Smoke => smoke,
            Self::Normal => normal,
            Self::Full => full,
        }
    }

    /// The size as the command line calls it: `smoke`, `normal`, `full`.
    pub fn name(self) -> &'static str {
        let [smoke, normal, full] = Self::CHOICES;
        self.pick(smoke.1, normal.1, full.1)
    }
}

/// What a measurement is given.
pub struct Setup<'a> {
    /// How large the run is.
    pub size: Size,
    /// Everything that is drawn is drawn from this.
    pub seed: u64,
    /// The program `weir`, for figures by real packets.
    pub program: &'a Path,
    /// Called with a word on what is being done.
    pub progress: &'a dyn Fn(&str),
}

/// How values are laid out along an axis.
#[derive(Clone, Copy, Debug)]
pub enum Scale {
    /// Values are laid out evenly, from 0.
    Linear,
    /// Values are laid out evenly, from near the smallest.
    Near,
    /// Logarithms are laid out evenly; 0 has a place of its own below the rest.
    Log,
    /// Not numbers but names, at 0, 1, 2, ...
    Names(&'static [&'static str]),
}

/// An axis of a chart.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: &'static str,
    /// How values are laid out along it.
    pub scale: Scale,
}

/// A chart of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Chart {
    /// Title above the chart; empty if the figure has one chart only.
    pub title: &'static str,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
}

/// What the paper says with a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Says {
    /// The number itself.
    Value,
    /// A lower bound, all along from the first point to the last.
    AtLeast,
    /// An upper bound, all along from the first point to the last.
    AtMost,
}

/// Numbers that a paper states, to be drawn beside ours.
#[derive(Clone, Copy, Debug)]
pub struct Quote {
    /// Which of the figure's charts.
    pub chart: usize,
    /// Name in the legend.
    pub name: &'static str,
    /// Name of our series that they are held against.
    pub like: &'static str,
    /// Whether the numbers are values or bounds.
    pub says: Says,
    /// (x, y), in the units of the chart.
    pub points: &'static [(f64, f64)],
    /// Where in the paper they stand: section, figure or table.
    pub source: &'static str,
}

/// A [`Quote`] with these fields, in their order.
pub const fn quote(
    chart: usize,
    name: &'static str,
    like: &'static str,
    says: Says,
    points: &'static [(f64, f64)],
    source: &'static str,
) -> Quote {
    Quote { chart, name, like, says, points, source }
}

/// Adds a value to the series of a chart and name.
pub fn add(all: &mut Vec<Series>, chart: usize, name: &str, point: Point) {
    match all.iter_mut().find(|s| s.chart == chart && s.name == name) {
        Some(series) => series.points.push(point),
        None => all.push(Series { points: vec![point], ..Series::new(chart, name) }),
    }
}

/// A measured value, with its spread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Place along the x axis, in its unit.
    pub x: f64,
    /// The value: a median or a mean, as the figure says.
    pub y: f64,
    /// Lower and upper end of its spread.
    pub spread: Option<(f64, f64)>,
}

/// Measured values of one method in one chart.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Which of the figure's charts.
    pub chart: usize,
    /// Name in the legend: the method that was measured.
    pub name: String,
    /// The values, in the order of x.
    pub points: Vec<Point>,
}

impl Series {
    /// A series of a chart, without values yet.
    pub fn new(chart: usize, name: impl Into<String>) -> Self {
        Self { chart, name: name.into(), points: Vec::new() }
    }

    /// A series of a chart with values without spread, given as (x, y).
    pub fn of(
        chart: usize,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let points = points.into_iter().map(|(x, y)| Point { x, y, spread: None }).collect();
        Self { points, ..Self::new(chart, name) }
    }

    /// The value measured at an x, or next to it within 3 % (128K is 131,072 to one and 128,000 to
    /// another). Nothing is interpolated.
    pub fn at(&self, x: f64) -> Option<f64> {
        let away = |p: &Point| (p.x - x).abs();
        let near = |p: &&Point| away(p) <= 1e-6 + 0.03 * x.abs();
        let nearest = |a: &&Point, b: &&Point| away(a).total_cmp(&away(b));
        self.points.iter().filter(near).min_by(nearest).map(|point| point.y)
    }

    /// The smallest value and the largest; `None` if there is none.
    pub fn range(&self) -> Option<(f64, f64)> {
        let low = self.points.iter().map(|p| p.y).reduce(f64::min)?;
        Some((low, self.points.iter().map(|p| p.y).fold(low, f64::max)))
    }
}

/// What a run of a figure yields.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The series of all charts.
    pub series: Vec<Series>,
    /// Sentences made from the values, beyond the ratios to the paper's, which are made for every
    /// figure alike.
    pub facts: Vec<String>,
}

impl Measured {
    /// The series of this name in a chart.
    pub fn find(&self, chart: usize, name: &str) -> Option<&Series> {
        self.series.iter().find(|s| s.chart == chart && s.name == name)
    }

    /// The median of a series over another, at the x that both have: (median, lowest, highest).
    pub fn ratio(&self, chart: usize, over: &str, under: &str) -> Option<(f64, f64, f64)> {
        let (over, under) = (self.find(chart, over)?, self.find(chart, under)?);
        let mut ratios: Vec<f64> = over
            .points
            .iter()
            .filter_map(|p| {
                let below = under.points.iter().find(|q| q.x == p.x)?.y;
                (below != 0.0).then_some(p.y / below)
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        Some((*ratios.get(ratios.len() / 2)?, *ratios.first()?, *ratios.last()?))
    }
}

/// A figure or table of a paper.
pub struct Figure {
    /// Name on the command line, for example `concury-fig5`.
    pub id: &'static str,
    /// What it shows, in a few words.
    pub title: &'static str,
    /// The paper and its number there.
    pub paper: &'static str,
    /// What is measured here, and how, in sentences.
    pub measures: &'static str,
    /// Its charts, numbered from 0.
    pub charts: &'static [Chart],
    /// Numbers that the paper states.
    pub quotes: &'static [Quote],
    /// How the paper's numbers were come by, where that needs saying.
    pub note: &'static str,
    /// Why ours differ from the paper's, and what can be compared at all.
    pub why: &'static str,
    /// How long smoke, normal and full take on two cores.
    pub times: [&'static str; 3],
    /// Measures or simulates ours.
    pub run: fn(&Setup<'_>) -> Result<Measured>,
}
