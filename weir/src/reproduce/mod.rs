//! `weir reproduce`: the papers' figures, drawn again with our numbers (docs/reproduce.md).

mod cheetah;
mod compare;
mod concury;
mod fib;
mod figure;
mod jet;
mod machine;
mod maps;
mod measure;
mod number;
mod plot;
mod report;
mod residue;
mod rows;
mod simulated;

#[cfg(test)]
mod tests;

pub use figure::Size;

use crate::cli::ReproduceOptions;
use figure::{Figure, Measured, Setup};
use machine::Machine;
use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;

/// A figure that has been run.
struct Run {
    figure: &'static Figure,
    measured: Measured,
    seconds: f64,
}

/// All figures, in the order of the papers.
fn figures() -> Vec<&'static Figure> {
    [
        concury::FIGURES,
        jet::FIGURES,
        cheetah::FIGURES,
        residue::FIGURES,
        fib::FIGURES,
        maps::FIGURES,
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect()
}

/// Lists the figures, or runs those that are named and writes the report.
pub fn run(options: &ReproduceOptions) -> anyhow::Result<()> {
    if options.figures.is_empty() {
        return list(options.json);
    }
    let chosen = choose(&options.figures)?;
    let seed = options.seed;
    let machine = Machine::here();
    let mut runs = Vec::new();
    for (number, figure) in chosen.iter().enumerate() {
        let place = format!("{}/{}", number + 1, chosen.len());
        runs.push(measure(figure, options.size, seed, &place)?);
    }
    let head = report::Head { machine: &machine, size: options.size, seed };
    write(&options.out, &report::html(&head, &runs))?;
    if let Some(directory) = &options.csv {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        for run in &runs {
            let rows = rows::rows(run.figure, &run.measured);
            write(&directory.join(format!("{}.csv", run.figure.id)), &rows::csv(&rows))?;
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&json(&head, &runs))?);
    } else {
        runs.iter().for_each(say);
        println!("report: {}", options.out.display());
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The figures of the given names, each once, in the order of the papers.
fn choose(names: &[String]) -> anyhow::Result<Vec<&'static Figure>> {
    let all = figures();
    for name in names.iter().filter(|name| *name != "all") {
        if !all.iter().any(|figure| figure.id == name) {
            let near = near(name, &all);
            let hint = match near.is_empty() {
                true => String::new(),
                false => format!("; did you mean {}?", near.join(", ")),
            };
            anyhow::bail!("there is no figure {name:?}{hint} (weir reproduce lists them all)");
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

/// Runs one figure, with a line that says what is being done on a terminal.
fn measure(figure: &'static Figure, size: Size, seed: u64, place: &str) -> anyhow::Result<Run> {
    let terminal = std::io::stderr().is_terminal();
    let started = Instant::now();
    let width = Cell::new(0);
    let progress = |what: &str| {
        if terminal {
            let seconds = started.elapsed().as_secs();
            let line = format!("[{place}] {}  {what}  {seconds} s", figure.id);
            eprint!("\r{line:<0$}", width.get());
            width.set(line.len());
            let _ = std::io::stderr().flush();
        }
    };
    progress("");
    let measured = (figure.run)(&Setup { size, seed, progress: &progress })
        .with_context(|| format!("{} failed", figure.id))?;
    let seconds = started.elapsed().as_secs_f64();
    if terminal {
        eprint!("\r{:<0$}\r", width.get());
    }
    eprintln!("[{place}] {} in {seconds:.1} s", figure.id);
    Ok(Run { figure, measured, seconds })
}

fn list(json: bool) -> anyhow::Result<()> {
    let all = figures();
    if json {
        let entries: Vec<_> = all
            .iter()
            .map(|f| {
                serde_json::json!({
                    "id": f.id, "title": f.title, "paper": f.paper,
                    "smoke": f.times[0], "normal": f.times[1], "full": f.times[2],
                })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&entries)?);
        return Ok(());
    }
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["figure", "title", "paper", "smoke", "normal", "full"]);
    for f in &all {
        table.add_row([f.id, f.title, f.paper, f.times[0], f.times[1], f.times[2]]);
    }
    println!("{table}\nweir reproduce FIGURE... | all [--size smoke|normal|full] [--out FILE]");
    Ok(())
}

/// What a person reads first: the sentences.
fn say(run: &Run) {
    println!("\n{}: {} ({})", run.figure.id, run.figure.title, run.figure.paper);
    for sentence in compare::sentences(run.figure, &run.measured).iter().chain(&run.measured.facts)
    {
        println!("  {sentence}");
    }
}

fn json(head: &report::Head<'_>, runs: &[Run]) -> serde_json::Value {
    let figures: Vec<_> = runs
        .iter()
        .map(|run| {
            let compared = compare::sentences(run.figure, &run.measured);
            serde_json::json!({
                "id": run.figure.id,
                "title": run.figure.title,
                "paper": run.figure.paper,
                "seconds": run.seconds,
                "rows": rows::rows(run.figure, &run.measured),
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
