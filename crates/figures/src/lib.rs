//! The papers' figures, drawn again with our numbers (docs/reproduce.md).
//!
//! A [`Figure`] holds what a paper says, with where it says so, and a function that measures or
//! simulates ours. [`measure`] runs one, [`html`] makes the report of several, and [`Run`] gives
//! rows and sentences. Nothing here prints.
#![forbid(unsafe_code)]

mod burst;
mod cheetah;
mod compare;
mod concury;
mod error;
mod fib;
mod figure;
mod hnlb;
mod jet;
mod machine;
mod maps;
mod measure;
mod number;
mod packets;
mod plot;
mod report;
mod residue;
mod rows;
mod simulated;

#[cfg(test)]
mod tests;

pub use error::{Error, Result};
pub use figure::{Axis, Chart, Figure, Measured, Point, Quote, Says, Scale, Series, Setup, Size};
pub use machine::Machine;
pub use report::{Head, html};
pub use rows::Row;

use std::time::Instant;

/// A figure that has been run.
pub struct Run {
    /// What was run.
    pub figure: &'static Figure,
    /// Our values and facts.
    pub measured: Measured,
    /// How long the run took, in seconds.
    pub seconds: f64,
}

/// All figures, in the order of the papers.
pub fn figures() -> Vec<&'static Figure> {
    [
        concury::FIGURES,
        jet::FIGURES,
        cheetah::FIGURES,
        residue::FIGURES,
        hnlb::FIGURES,
        packets::FIGURES,
        burst::FIGURES,
        fib::FIGURES,
        maps::FIGURES,
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect()
}

/// The figures of the given names (`all` for all), each once, in the order of the papers.
///
/// # Errors
///
/// A name that no figure has; says which ones are near.
pub fn choose(names: &[String]) -> Result<Vec<&'static Figure>> {
    let all = figures();
    for name in names.iter().filter(|name| *name != "all") {
        if !all.iter().any(|figure| figure.id == name) {
            let near = near(name, &all);
            let hint = match near.is_empty() {
                true => String::new(),
                false => format!("; did you mean {}?", near.join(", ")),
            };
            return Err(Error::Unknown(format!(
                "there is no figure {name:?}{hint} (weir reproduce lists them all)"
            )));
        }
    }
    let wanted = |figure: &&Figure| names.iter().any(|name| name == "all" || name == figure.id);
    Ok(all.into_iter().filter(wanted).collect())
}

/// Ids that begin alike, or that a few changed letters make of the name.
fn near(name: &str, all: &[&'static Figure]) -> Vec<&'static str> {
    let mut near: Vec<(usize, &str)> = all
        .iter()
        .map(|figure| (distance(name, figure.id), figure.id))
        .filter(|(d, id)| *d <= 2 || (name.len() >= 3 && id.contains(name)))
        .collect();
    near.sort();
    near.into_iter().map(|(_, id)| id).take(6).collect()
}

/// Letters to change, add or leave out (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let best = (corner + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

/// Runs one figure.
///
/// # Errors
///
/// What is measured fails, or gives a wrong answer.
pub fn measure(figure: &'static Figure, setup: &Setup<'_>) -> Result<Run> {
    let started = Instant::now();
    let failed = |source| Error::Run { figure: figure.id, source: Box::new(source) };
    let measured = (figure.run)(setup).map_err(failed)?;
    Ok(Run { figure, measured, seconds: started.elapsed().as_secs_f64() })
}

impl Run {
    /// How ours stand to the paper's, and what else was found, as sentences.
    pub fn sentences(&self) -> Vec<String> {
        let mut said = compare::sentences(self.figure, &self.measured);
        said.extend(self.measured.facts.iter().cloned());
        said
    }

    /// Every number, ours and the paper's, one to a row.
    pub fn rows(&self) -> Vec<Row> {
        rows::rows(self.figure, &self.measured)
    }

    /// The rows as comma-separated values.
    pub fn csv(&self) -> String {
        rows::csv(&self.rows())
    }
}

/// The machine, and the rows and sentences of all runs, as one JSON object.
pub fn json(head: &Head<'_>, runs: &[Run]) -> serde_json::Value {
    let figures: Vec<_> = runs
        .iter()
        .map(|run| {
            let compared = compare::sentences(run.figure, &run.measured);
            serde_json::json!({
                "id": run.figure.id,
                "title": run.figure.title,
                "paper": run.figure.paper,
                "seconds": run.seconds,
                "rows": run.rows(),
                "compared": compared,
                "facts": run.measured.facts,
                "why": run.figure.why,
            })
        })
        .collect();
    serde_json::json!({
        "machine": head.machine, "size": head.size, "seed": head.seed, "figures": figures,
    })
}
