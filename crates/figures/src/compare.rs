//! How ours stand to the paper's, in words made of the values.

use super::figure::{Chart, Figure, Measured, Quote, Says, Scale, Series};
use super::number::{ratio, short};

/// One sentence for each of the paper's series.
pub fn sentences(figure: &Figure, measured: &Measured) -> Vec<String> {
    let compare = |quote: &Quote| {
        let ours = measured.find(quote.chart, quote.like);
        let title = figure.charts[quote.chart].title;
        let chart = if title.is_empty() { String::new() } else { format!("{title}: ") };
        let said = match (ours, quote.says) {
            (None, _) => format!("{} was not measured at this size.", quote.like),
            (Some(ours), Says::Value) => values(figure, quote, ours),
            (Some(ours), _) => bound(figure, quote, ours),
        };
        chart + &said
    };
    figure.quotes.iter().map(compare).collect()
}

/// x, the paper's y, our y.
type Values = (f64, f64, f64);

/// Our value over the paper's at each of its points that we have.
fn values(figure: &Figure, quote: &Quote, ours: &Series) -> String {
    let chart = &figure.charts[quote.chart];
    let pairs: Vec<Values> =
        quote.points.iter().filter_map(|&(x, y)| Some((x, y, ours.at(x)?))).collect();
    let (name, like) = (quote.name, quote.like);
    if pairs.is_empty() {
        let at: Vec<String> = quote.points.iter().map(|point| place(chart, point.0)).collect();
        let at = at.join(", ");
        return format!("{like}: this size has no value beside the paper's at {at}.");
    }
    let (zeros, others): (Vec<Values>, Vec<Values>) =
        pairs.into_iter().partition(|pair| pair.1 == 0.0);
    let mut parts = Vec::new();
    if let Some(most) = zeros.iter().map(|pair| pair.2).reduce(f64::max) {
        parts.push(match most {
            0.0 => "0 in both".into(),
            most => format!("0 in the paper, up to {} here", short(most)),
        });
    }
    let mut ratios: Vec<f64> = others.iter().map(|(_, paper, ours)| ours / paper).collect();
    ratios.sort_by(f64::total_cmp);
    match (others.as_slice(), ratios.as_slice()) {
        ([(x, paper, ours)], [one]) => {
            let at = place(chart, *x);
            let (ours, paper, one) = (short(*ours), short(*paper), ratio(*one));
            parts.push(format!("{ours} here, {paper} in the paper at {at}: {one} times"));
        }
        (_, [low, .., high]) => parts.push(format!(
            "{} to {} times the paper's value, median {}, at {} points",
            ratio(*low),
            ratio(*high),
            ratio(ratios[ratios.len() / 2]),
            ratios.len()
        )),
        _ => {}
    }
    let whom = if name == like { name.to_owned() } else { format!("{like} against “{name}”") };
    format!("{whom}: {}.", parts.join("; "))
}

/// A place along the axis to the right.
fn place(chart: &Chart, x: f64) -> String {
    match chart.x.scale {
        Scale::Names(names) => names.get(x as usize).copied().unwrap_or("").to_owned(),
        _ => format!("x = {}", short(x)),
    }
}

/// Whether a bound holds for our values in its range.
fn bound(figure: &Figure, quote: &Quote, ours: &Series) -> String {
    let chart = &figure.charts[quote.chart];
    let limit = quote.points[0].1;
    let from = quote.points.iter().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let to = quote.points.iter().map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
    let inside: Vec<f64> =
        ours.points.iter().filter(|p| (from..=to).contains(&p.x)).map(|p| p.y).collect();
    let (Some(low), Some(high)) =
        (inside.iter().copied().reduce(f64::min), inside.iter().copied().reduce(f64::max))
    else {
        return format!("{}: this size has no value where the paper's bound holds.", quote.like);
    };
    let range = match from == to {
        true => format!("at {}", place(chart, from)),
        false => format!("from {} to {}", place(chart, from), place(chart, to)),
    };
    let (words, holds) = match quote.says {
        Says::AtLeast => ("at least", low >= limit),
        _ => ("at most", high <= limit),
    };
    let verdict = if holds { "within it" } else { "outside it" };
    format!(
        "{}: the paper's bound {range} is {words} {}; ours there are {} to {}, {verdict}.",
        quote.like,
        short(limit),
        short(low),
        short(high)
    )
}
