//! Every number of a figure, ours and the paper's, as rows: what CSV and JSON hold.

use super::figure::{Figure, Measured, Says, Scale};
use serde::Serialize;

/// One number of a figure, with everything that tells it from the others.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Id of the figure.
    pub figure: &'static str,
    /// Title of its chart, if it has several.
    pub chart: &'static str,
    /// Whose number it is: `weir` or `paper`.
    pub origin: &'static str,
    /// Name of the series: the method.
    pub series: String,
    /// Label of the x axis, with its unit.
    pub x_label: &'static str,
    /// Place along the x axis; an index where `x_name` is not empty.
    pub x: f64,
    /// Name of the place, on an axis of names.
    pub x_name: &'static str,
    /// Label of the y axis, with its unit.
    pub y_label: &'static str,
    /// The number itself, in the unit of the y axis.
    pub y: f64,
    /// Lower end of its spread, if it has one.
    pub low: Option<f64>,
    /// Upper end of its spread, if it has one.
    pub high: Option<f64>,
    /// Whether it is a value, or which kind of bound the paper gives.
    pub says: Says,
    /// Where in the paper it stands; empty for ours.
    pub source: &'static str,
}

const COLUMNS: &str = "figure,chart,origin,series,x_label,x,x_name,y_label,y,low,high,says,source";

/// All rows of a figure.
pub fn rows(figure: &Figure, measured: &Measured) -> Vec<Row> {
    let row = |number: usize, x: f64, y: f64| {
        let chart = &figure.charts[number];
        let x_name = match chart.x.scale {
            Scale::Names(names) => names.get(x as usize).copied().unwrap_or(""),
            _ => "",
        };
        Row {
            figure: figure.id,
            chart: chart.title,
            origin: "weir",
            series: String::new(),
            x_label: chart.x.label,
            x,
            x_name,
            y_label: chart.y.label,
            y,
            low: None,
            high: None,
            says: Says::Value,
            source: "",
        }
    };
    let mut rows = Vec::new();
    for series in &measured.series {
        rows.extend(series.points.iter().map(|p| Row {
            series: series.name.clone(),
            low: p.spread.map(|s| s.0),
            high: p.spread.map(|s| s.1),
            ..row(series.chart, p.x, p.y)
        }));
    }
    for quote in figure.quotes {
        rows.extend(quote.points.iter().map(|&(x, y)| Row {
            origin: "paper",
            series: quote.name.to_owned(),
            says: quote.says,
            source: quote.source,
            ..row(quote.chart, x, y)
        }));
    }
    rows
}

/// As comma-separated values with a header (RFC 4180, lines ended by a line feed).
pub fn csv(rows: &[Row]) -> String {
    let mut text = format!("{COLUMNS}\n");
    for row in rows {
        let number = |v: Option<f64>| v.map_or(String::new(), |v| v.to_string());
        let says = match row.says {
            Says::Value => "value",
            Says::AtLeast => "at-least",
            Says::AtMost => "at-most",
        };
        let fields = [
            row.figure.to_owned(),
            field(row.chart),
            row.origin.to_owned(),
            field(&row.series),
            field(row.x_label),
            row.x.to_string(),
            field(row.x_name),
            field(row.y_label),
            row.y.to_string(),
            number(row.low),
            number(row.high),
            says.to_owned(),
            field(row.source),
        ];
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}

fn field(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
