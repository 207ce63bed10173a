//! `weir sim`: plays a scenario.

use crate::out;
use crate::target::Target;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_cli::SimOptions;
use weir_control::engine::EngineError;
use weir_sim::{BUILTIN, Progress, Report, Scenario, builtin, run_with};

pub fn run(options: &SimOptions) -> anyhow::Result<()> {
    if options.list {
        out::line(BUILTIN.join("\n"));
        return Ok(());
    }
    let Some(path) = &options.scenario else {
        return Err(senseless(format!("which scenario? A file, or one of {}", BUILTIN.join(", "))));
    };
    let target = |path: &Option<PathBuf>| path.as_deref().map(Target::find).transpose();
    let (csv, series) = (target(&options.csv)?, target(&options.series)?);
    let printed = [&csv, &series].into_iter().flatten().any(Target::is_output);
    if options.json && printed {
        let words = "--json prints to the output, so --csv and --series need a file";
        return Err(senseless(words.into()));
    }
    let mut scenario = read(path, options)?;
    if let Some(seed) = options.seed {
        scenario.seed = seed;
    }
    let report = play(&scenario)?;
    if let Some(csv) = csv {
        csv.write(&report.to_csv()?)?;
    }
    if let Some(series) = series {
        series.write(&report.series_to_csv()?)?;
    }
    match () {
        () if options.json => out::line(report.to_json()),
        () if printed => {}
        () => out::text(report.to_table()),
    }
    Ok(())
}

/// A refusal of what was asked for.
fn senseless(words: String) -> anyhow::Error {
    EngineError::Invalid(words).into()
}

/// A file of the name goes before a built-in scenario.
fn read(path: &Path, options: &SimOptions) -> anyhow::Result<Scenario> {
    let name = path.to_str().filter(|name| BUILTIN.contains(name));
    Ok(match name {
        Some(name) if !path.exists() => builtin(name, options.size)?,
        _ if !path.exists() => {
            return Err(senseless(format!(
                "{} is neither a file nor a built-in scenario; those are {}",
                path.display(),
                BUILTIN.join(", ")
            )));
        }
        _ => Scenario::load_sized(path, options.size)?,
    })
}

/// A bar on the error output while it runs, if that is a terminal.
fn play(scenario: &Scenario) -> anyhow::Result<Report> {
    const STEPS: f64 = 1000.0;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    bar.set_style(ProgressStyle::with_template(
        "{bar:32} {percent:>3} %  {elapsed} (about {eta} left)  {msg}",
    )?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let report = run_with(scenario, &mut |progress: Progress<'_>| {
        bar.set_length((progress.runs as f64 * STEPS) as u64);
        bar.set_position(((progress.run as f64 + progress.share) * STEPS) as u64);
        bar.set_message(format!("{} of {}: {}", progress.run + 1, progress.runs, progress.method));
    });
    bar.finish_and_clear();
    Ok(report?)
}
