//! Charts as SVG: lines with markers over a number axis, bars over names. Colours are classes, so
//! that the page's style serves light and dark screens alike.

mod scale;

use super::figure::{Chart, Figure, Measured, Point, Quote, Says, Scale, Series};
use super::number::short;
use scale::Map;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 56.0;

/// Colours that the style knows.
pub const COLOURS: usize = 8;

/// The colour of a series: its place among the figure's names, so that a name has one colour in
/// all charts of a figure.
pub fn colour(measured: &Measured, name: &str) -> usize {
    let mut names: Vec<&str> = Vec::new();
    for series in &measured.series {
        if !names.contains(&series.name.as_str()) {
            names.push(&series.name);
        }
    }
    names.iter().position(|&other| other == name).unwrap_or(names.len()) % COLOURS
}

/// Text as XML wants it.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// One chart of a figure.
pub fn svg(figure: &Figure, measured: &Measured, number: usize) -> String {
    let chart = &figure.charts[number];
    let ours: Vec<&Series> = measured.series.iter().filter(|s| s.chart == number).collect();
    let paper: Vec<&Quote> = figure.quotes.iter().filter(|q| q.chart == number).collect();
    let values = |axis: usize| -> Vec<f64> {
        let of = |p: &Point| if axis == 0 { vec![p.x] } else { extent(p) };
        let quoted = |p: &(f64, f64)| if axis == 0 { p.0 } else { p.1 };
        let ours = ours.iter().flat_map(|s| s.points.iter().flat_map(of));
        ours.chain(paper.iter().flat_map(|q| q.points.iter().map(quoted))).collect()
    };
    let x = Map::new(chart.x.scale, &values(0), LEFT, WIDTH - RIGHT);
    let y = Map::new(chart.y.scale, &values(1), HEIGHT - BOTTOM, TOP);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(&format!("{} {}", figure.title, chart.title))
    );
    axes(&mut out, chart, &x, &y);
    if let Scale::Names(names) = chart.x.scale {
        bars(&mut out, measured, (&ours, &paper), (&x, &y), names);
    } else {
        for quote in &paper {
            quoted(&mut out, colour(measured, quote.like), quote, &x, &y);
        }
        for series in &ours {
            line(&mut out, colour(measured, &series.name), series, &x, &y);
        }
    }
    out.push_str("</svg>\n");
    out
}

fn extent(point: &Point) -> Vec<f64> {
    let (low, high) = point.spread.unwrap_or((point.y, point.y));
    vec![point.y, low, high]
}

// Writing to a string cannot fail.
macro_rules! put {
    ($out:expr, $($rest:tt)*) => { let _ = writeln!($out, $($rest)*); };
}

fn axes(out: &mut String, chart: &Chart, x: &Map, y: &Map) {
    let (right, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (at, label) in y.ticks() {
        put!(out, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>");
        let base = at + 4.0;
        put!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            escape(&label)
        );
    }
    for (at, label) in x.ticks() {
        put!(out, "<path class=\"axis\" d=\"M{at:.1} {floor}v5\"/>");
        put!(
            out,
            "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            floor + 19.0,
            escape(&label)
        );
    }
    put!(out, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{floor}H{right}\"/>");
    put!(
        out,
        "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 10.0,
        escape(chart.x.label)
    );
    put!(
        out,
        "<text class=\"label\" transform=\"translate(16 {:.1}) rotate(-90)\" \
         text-anchor=\"middle\">{}</text>",
        (TOP + floor) / 2.0,
        escape(chart.y.label)
    );
}

fn path(points: &[(f64, f64)]) -> String {
    let mut d = String::new();
    for (i, (x, y)) in points.iter().enumerate() {
        let _ = write!(d, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
    }
    d
}

fn line(out: &mut String, colour: usize, series: &Series, x: &Map, y: &Map) {
    let places: Vec<_> = series.points.iter().map(|p| (x.place(p.x), y.place(p.y))).collect();
    put!(out, "<g class=\"c{colour}\"><path class=\"line\" d=\"{}\"/>", path(&places));
    for (point, &(px, py)) in series.points.iter().zip(&places) {
        if let Some((low, high)) = point.spread {
            let (low, high) = (y.place(low), y.place(high));
            put!(
                out,
                "<path class=\"spread\" d=\"M{px:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h6M{:.1} \
                 {high:.1}h6\"/>",
                px - 3.0,
                px - 3.0
            );
        }
        // Many points are a curve, not measurements to be told apart.
        if places.len() <= 60 {
            put!(out, "<path class=\"mark\" d=\"{}\">", mark(colour, px, py));
            title(out, &series.name, point.x, point.y);
            out.push_str("</path>\n");
        }
    }
    out.push_str("</g>\n");
}

fn title(out: &mut String, name: &str, x: f64, y: f64) {
    put!(out, "<title>{}: {} at {}</title>", escape(name), short(y), short(x));
}

/// A marker's outline: its shape goes with the colour, for those who cannot tell colours.
fn mark(colour: usize, x: f64, y: f64) -> String {
    match colour % 4 {
        0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", x - 4.0),
        1 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        2 => format!("M{x:.1} {:.1}l4.8 4.8l-4.8 4.8l-4.8 -4.8z", y - 4.8),
        _ => format!("M{x:.1} {:.1}l4.8 8h-9.6z", y - 5.0),
    }
}

/// The paper's numbers: hollow markers on a dashed line; bounds as arrowheads on a dotted one.
fn quoted(out: &mut String, colour: usize, quote: &Quote, x: &Map, y: &Map) {
    let places: Vec<_> =
        quote.points.iter().map(|&(a, b)| (x.place(a), y.place(b), a, b)).collect();
    let line: Vec<_> = places.iter().map(|p| (p.0, p.1)).collect();
    let class = if quote.says == Says::Value { "paper" } else { "paper bound" };
    put!(out, "<g class=\"c{colour} {class}\"><path class=\"line\" d=\"{}\"/>", path(&line));
    for (px, py, a, b) in places {
        let shape = match quote.says {
            Says::Value => mark(colour, px, py),
            Says::AtLeast => format!("M{:.1} {py:.1}l5 -8l5 8z", px - 5.0),
            Says::AtMost => format!("M{:.1} {py:.1}l5 8l5 -8z", px - 5.0),
        };
        put!(out, "<path class=\"hollow\" d=\"{shape}\">");
        title(out, &format!("paper, {}", quote.name), a, b);
        out.push_str("</path>\n");
    }
    out.push_str("</g>\n");
}

/// Groups of bars, one group for a name; the paper's are outlines to the right of ours.
fn bars(
    out: &mut String,
    measured: &Measured,
    (ours, paper): (&[&Series], &[&Quote]),
    (x, y): (&Map, &Map),
    names: &[&str],
) {
    // A bar for each of ours and one for its paper's, where there is one.
    let mut places: Vec<(&str, bool)> = Vec::new();
    for series in ours {
        places.push((&series.name, false));
        if paper.iter().any(|q| q.like == series.name) {
            places.push((&series.name, true));
        }
    }
    let group = (WIDTH - LEFT - RIGHT) / names.len().max(1) as f64;
    let wide = (group * 0.84 / places.len().max(1) as f64).min(46.0);
    let from = |x: f64, place: usize| x + wide * (place as f64 - places.len() as f64 / 2.0);
    let floor = HEIGHT - BOTTOM;
    for (place, &(name, of_paper)) in places.iter().enumerate() {
        let class = if of_paper { "bar outline" } else { "bar" };
        put!(out, "<g class=\"c{} {class}\">", colour(measured, name));
        let points: Vec<Point> = match of_paper {
            false => ours
                .iter()
                .filter(|s| s.name == name)
                .flat_map(|s| s.points.iter().copied())
                .collect(),
            true => paper
                .iter()
                .filter(|q| q.like == name)
                .flat_map(|q| q.points.iter().map(|&(x, y)| Point { x, y, spread: None }))
                .collect(),
        };
        for point in points {
            let (left, top) = (from(x.place(point.x), place), y.place(point.y));
            let (width, height) = (wide - 2.0, (floor - top).max(0.5));
            put!(
                out,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">"
            );
            let who = if of_paper { "paper, " } else { "" };
            let at = names.get(point.x as usize).copied().unwrap_or("");
            put!(
                out,
                "<title>{}{}: {} ({})</title></rect>",
                who,
                escape(name),
                short(point.y),
                escape(at)
            );
            if let Some((low, high)) = point.spread {
                let middle = left + width / 2.0;
                put!(
                    out,
                    "<path class=\"spread\" d=\"M{middle:.1} {:.1}V{:.1}\"/>",
                    y.place(low),
                    y.place(high)
                );
            }
            if wide >= 22.0 {
                put!(
                    out,
                    "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\" \
                     text-anchor=\"middle\">{}</text>",
                    left + width / 2.0,
                    top - 4.0,
                    short(point.y)
                );
            }
        }
        out.push_str("</g>\n");
    }
}
