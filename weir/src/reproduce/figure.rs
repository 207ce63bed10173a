//! What a figure is: the paper's numbers, and the function that yields ours.

use clap::ValueEnum;
use serde::Serialize;

/// How large a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
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
    /// One of three values.
    pub fn pick<T>(self, smoke: T, normal: T, full: T) -> T {
        match self {
            Self::Smoke => smoke,
            Self::Normal => normal,
            Self::Full => full,
        }
    }

    /// As the command line calls it.
    pub fn name(self) -> &'static str {
        self.pick("smoke", "normal", "full")
    }
}

/// What a measurement is given.
pub struct Setup<'a> {
    /// How large.
    pub size: Size,
    /// Everything that is drawn is drawn from this.
    pub seed: u64,
    /// Called with a word on what is being done.
    pub progress: &'a dyn Fn(&str),
}

/// How values are laid out along an axis.
#[derive(Clone, Copy, Debug)]
pub enum Scale {
    /// Evenly, from 0.
    Linear,
    /// Evenly, from near the smallest value.
    Near,
    /// Evenly in the logarithm; 0 has a place of its own below the rest.
    Log,
    /// Names at 0, 1, 2, ...
    Names(&'static [&'static str]),
}

/// An axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: &'static str,
    /// How.
    pub scale: Scale,
}

/// A chart of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Chart {
    /// Above it; empty if the figure has one chart only.
    pub title: &'static str,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
}

/// What the paper says with a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Says {
    /// This value.
    Value,
    /// This or more, all along from the first point to the last.
    AtLeast,
    /// This or less, all along.
    AtMost,
}

/// Numbers of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Quote {
    /// Which of the figure's charts.
    pub chart: usize,
    /// As the legend calls it.
    pub name: &'static str,
    /// Our series to hold it against.
    pub like: &'static str,
    /// What is said.
    pub says: Says,
    /// (x, y), in the units of the chart.
    pub points: &'static [(f64, f64)],
    /// Where: section, figure, table.
    pub source: &'static str,
}

/// A quotation.
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

/// A measured value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Along the x axis.
    pub x: f64,
    /// The value: a median or a mean, as the figure says.
    pub y: f64,
    /// Lower and upper end of its spread.
    pub spread: Option<(f64, f64)>,
}

/// Values of ours.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Which of the figure's charts.
    pub chart: usize,
    /// The method.
    pub name: String,
    /// Values, by x.
    pub points: Vec<Point>,
}

impl Series {
    /// Without values yet.
    pub fn new(chart: usize, name: impl Into<String>) -> Self {
        Self { chart, name: name.into(), points: Vec::new() }
    }

    /// From (x, y).
    pub fn of(
        chart: usize,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let points = points.into_iter().map(|(x, y)| Point { x, y, spread: None }).collect();
        Self { points, ..Self::new(chart, name) }
    }

    /// The value measured at an x (or within 3 % of it: 128K is 131,072 to one and 128,000 to
    /// another). Nothing is interpolated.
    pub fn at(&self, x: f64) -> Option<f64> {
        let near = |p: &&Point| (p.x - x).abs() <= 1e-6 + 0.03 * x.abs();
        self.points.iter().find(near).map(|point| point.y)
    }

    /// The largest value, and the smallest.
    pub fn range(&self) -> Option<(f64, f64)> {
        let low = self.points.iter().map(|p| p.y).reduce(f64::min)?;
        Some((low, self.points.iter().map(|p| p.y).fold(low, f64::max)))
    }
}

/// What a run of a figure yields.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// All charts' series.
    pub series: Vec<Series>,
    /// Sentences made from the values, beyond the ratios to the paper's, which are made for every
    /// figure alike.
    pub facts: Vec<String>,
}

impl Measured {
    /// A series by chart and name.
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
    /// As the command line calls it.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Paper and number.
    pub paper: &'static str,
    /// What is measured here, and how.
    pub measures: &'static str,
    /// Its charts.
    pub charts: &'static [Chart],
    /// The paper's numbers.
    pub quotes: &'static [Quote],
    /// How the paper's numbers were come by, where that needs saying.
    pub note: &'static str,
    /// Why ours differ from the paper's, and what can be compared at all.
    pub why: &'static str,
    /// How long smoke, normal and full take on two cores.
    pub times: [&'static str; 3],
    /// Measures.
    pub run: fn(&Setup<'_>) -> anyhow::Result<Measured>,
}
