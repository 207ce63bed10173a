//! Playing scenarios.

use super::lines::line_of;
use super::{Scenario, ScenarioError};
use crate::engine::simulate_with;
use crate::report::{Report, Row, RunSeries};
use crate::requests;
use std::path::Path;

/// How far [`run_with`] is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The run that is under way, counted from 0.
    pub run: usize,
    /// All runs: worlds times methods.
    pub runs: usize,
    /// The method under way, as reports call it.
    pub method: &'a str,
    /// The share of its simulated time that is over, 0 to 1.
    pub share: f64,
}

/// Plays all methods of a scenario in all its worlds.
///
/// # Errors
///
/// As [`run_with`].
pub fn run(scenario: &Scenario) -> Result<Report, ScenarioError> {
    run_with(scenario, &mut |_| {})
}

/// The same, telling when a run begins and from time to time how far it is.
///
/// # Errors
///
/// A distribution that has become unreadable since the scenario was loaded, or weights that are
/// too much for a method.
pub fn run_with(
    scenario: &Scenario,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Report, ScenarioError> {
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    let worlds = scenario.worlds()?;
    let placed = scenario.methods.iter().enumerate();
    let specs: Vec<_> = placed
        .flat_map(|(place, spec)| spec.each().into_iter().map(move |spec| (place, spec)))
        .collect();
    let loads = scenario.queue.as_ref().map(|queue| queue.load.values());
    let loads = loads.map_or(vec![None], |loads| loads.iter().copied().map(Some).collect());
    let runs = worlds.len() * specs.len() * loads.len();
    for world in &worlds {
        for &load in &loads {
            for (place, spec) in &specs {
                let label = spec.label();
                let mut method = spec.build(world).map_err(|cause| ScenarioError::Method {
                    path: scenario.file.display().to_string(),
                    line: line_of(&scenario.text, scenario.in_size, &format!("method.{place}")),
                    method: label.clone(),
                    cause,
                })?;
                let run = rows.len();
                let mut tell = |share| progress(Progress { run, runs, method: &label, share });
                tell(0.0);
                let outcome = match (&scenario.queue, load) {
                    (Some(queue), Some(load)) => {
                        requests::simulate(world, queue, load, &mut *method, &mut tell)
                    }
                    _ => simulate_with(world, &mut *method, &mut tell),
                };
                rows.push(Row::new(label.clone(), world, load, &outcome));
                series.push(RunSeries { run, samples: outcome.samples });
            }
        }
    }
    Ok(Report { scenario: scenario.name.clone(), rows, series })
}

/// Runs a scenario file: a table for a person, or the whole report in JSON.
///
/// # Errors
///
/// [`ScenarioError`].
pub fn run_file(path: &Path, json: bool) -> Result<String, ScenarioError> {
    let report = run(&Scenario::load(path)?)?;
    Ok(if json { report.to_json() } else { report.to_table() })
}
