//! `weir lab`: a demonstration that is a test.

use crate::cli::LabOptions;
use crate::out;
use anyhow::Context;
use std::time::Duration;
use weir_lab::demo::{self, DemoSpec};
use weir_lab::view::Show;

/// Whether what was promised held.
pub fn run(options: LabOptions) -> anyhow::Result<bool> {
    weir_lab::catch_interrupts();
    let seed = options.seed.unwrap_or_else(rand::random);
    let weir = std::env::current_exe().context("cannot find this program's own file")?;
    if !options.json {
        out::line(format_args!("lab: method {}, WEIR_SEED={seed}", options.method));
    }
    let mut spec = DemoSpec::new(weir, seed);
    spec.lab.backends = options.backends;
    spec.balancer.pool = (options.backends * 3 / 4).max(2);
    spec.balancer.method = options.method;
    spec.traffic.connections = options.connections;
    if let Some(patience) = options.patience {
        (spec.traffic.timeout, spec.traffic.detection) = (patience, patience);
    }
    spec.duration = options.duration;
    spec.goals.changes = options.changes;
    spec.limit = options.limit;
    spec.show = match options {
        LabOptions { json: true, .. } => Show::LinesOnError,
        LabOptions { plain: true, .. } => Show::Lines,
        _ => Show::Picture,
    };
    if let Some(seconds) = options.change_every {
        let mean = Duration::from_secs_f64(seconds.clamp(0.05, 3600.0));
        spec.churn.gap = mean / 2..mean * 3 / 2;
    }
    let report = demo::run(spec)?;
    if options.json {
        out::json(&report)?;
    } else {
        out::line(format_args!("{}\n{}", report.table(), report.line()));
    }
    Ok(report.held())
}
