//! `weir plan`: what a file would change.

use crate::control::{STDIN, is_stdin, request, stdin_text};
use crate::out;
use anyhow::Context;
use std::path::PathBuf;
use weir_cli::Instance;
use weir_control::api::PlanRequest;
use weir_control::engine::{EngineError, PlanReport};

pub fn run(instance: Instance, file: Option<PathBuf>, json: bool) -> anyhow::Result<()> {
    // The instance may have another working directory.
    let absolute = |file: PathBuf| {
        std::fs::canonicalize(&file).with_context(|| format!("cannot read {}", file.display()))
    };
    let body = match file {
        Some(file) if is_stdin(&file) => {
            PlanRequest { file: Some(STDIN.into()), text: Some(stdin_text()?) }
        }
        file => PlanRequest { file: file.map(absolute).transpose()?, text: None },
    };
    let report: PlanReport = request(instance, "POST", "/v1/plan", Some(&body))?;
    out::report(&report, json, || weir_watch::plan(&report))?;
    if report.refused {
        let words = "a reload would refuse it; --break-connections does it all the same";
        return Err(EngineError::Conflict(words.into()).into());
    }
    Ok(())
}
