//! `weir reproduce`: draws the papers' figures again with our numbers (docs/reproduce.md).

use crate::out;
use crate::target::Target;
use anyhow::Context;
use std::cell::Cell;
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Instant;
use weir_cli::ReproduceOptions;
use weir_control::engine::EngineError;
use weir_figures::{Figure, Head, Machine, Run, Setup, Size, choose, figures, html};

/// Lists the figures, or runs those that are named and writes the report.
pub fn run(options: &ReproduceOptions) -> anyhow::Result<()> {
    if options.figures.is_empty() {
        return list(options.json);
    }
    let chosen = choose(&options.figures)?;
    // All that is written at the end is looked at before hours are spent.
    let report = Target::find(&options.out)?;
    if options.json && report.is_output() {
        let words = "--json prints to the output, so --out needs a file";
        return Err(EngineError::Invalid(words.into()).into());
    }
    let tables = match &options.csv {
        Some(directory) => tables(directory, &chosen)?,
        None => Vec::new(),
    };
    let (size, seed) = (options.size, options.seed);
    let machine = Machine::here();
    let (mut runs, mut left_out) = (Vec::new(), Vec::new());
    for (number, figure) in chosen.iter().enumerate() {
        let place = format!("{}/{}", number + 1, chosen.len());
        match measure(figure, size, seed, &place) {
            Ok(run) => runs.push(run),
            // A run of all may take an hour: one figure that needs a right which this process has not,
            // or a quieter machine, does not take the others with it.
            Err(error) if !options.figures.iter().any(|name| name == figure.id) => {
                out::note(format_args!("[{place}] {} is left out: {error:#}", figure.id));
                left_out.push(figure.id);
            }
            Err(error) => return Err(error),
        }
    }
    anyhow::ensure!(!runs.is_empty(), "no figure could be made");
    let head = Head { machine: &machine, size, seed };
    report.write(&html(&head, &runs))?;
    for (id, table) in &tables {
        if let Some(run) = runs.iter().find(|run| run.figure.id == *id) {
            table.write(&run.csv())?;
        }
    }
    if options.json {
        out::json(&weir_figures::json(&head, &runs))?;
    } else if !report.is_output() {
        runs.iter().for_each(say);
        out::line(format_args!("report: {}", options.out.display()));
    }
    anyhow::ensure!(left_out.is_empty(), "the report is without {}", left_out.join(", "));
    Ok(())
}

/// Where the rows of each figure go.
fn tables(
    directory: &Path,
    chosen: &[&'static Figure],
) -> anyhow::Result<Vec<(&'static str, Target)>> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let table = |figure: &&'static Figure| -> anyhow::Result<_> {
        Ok((figure.id, Target::find(&directory.join(format!("{}.csv", figure.id)))?))
    };
    chosen.iter().map(table).collect()
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
            let _ = write!(std::io::stderr(), "\r{line:<0$}", width.get());
            width.set(line.len());
        }
    };
    progress("");
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let setup = Setup { size, seed, program: &program, progress: &progress };
    let run = weir_figures::measure(figure, &setup)?;
    if terminal {
        let _ = write!(std::io::stderr(), "\r{:<1$}\r", "", width.get());
    }
    out::note(format_args!("[{place}] {} in {:.1} s", figure.id, run.seconds));
    Ok(run)
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
        return out::json(&entries);
    }
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["figure", "title", "paper", "smoke", "normal", "full"]);
    for f in &all {
        table.add_row([f.id, f.title, f.paper, f.times[0], f.times[1], f.times[2]]);
    }
    out::line(table);
    out::line("weir reproduce FIGURE... | all [--size smoke|normal|full] [--out FILE]");
    Ok(())
}

/// What a person reads first: the sentences.
fn say(run: &Run) {
    out::line(format_args!("\n{}: {} ({})", run.figure.id, run.figure.title, run.figure.paper));
    for sentence in run.sentences() {
        out::line(format_args!("  {sentence}"));
    }
}
