//! `weir import`: another balancer's configuration as weir's.

use crate::out;
use anyhow::Context;
use std::io::Read;
use std::path::Path;
use weir_cli::{ImportOptions, USUAL_FILE};
use weir_control::engine::EngineError;
use weir_control::import::{Form, ImportError, import};
use weir_control::init::write_new;

/// The largest text that is read.
const MOST: u64 = 64 << 20;

pub fn run(options: ImportOptions) -> anyhow::Result<()> {
    let ImportOptions { file, from, interfaces, output } = options;
    let shown =
        if file.as_os_str() == "-" { "standard input".into() } else { file.display().to_string() };
    let text = text(&file).with_context(|| format!("cannot read {shown}"))?;
    let guessed = from
        .and_then(|from| Form::ALL.iter().find(|(name, _)| *name == from))
        .map(|(_, form)| *form);
    let form = guessed.or_else(|| Form::guess(&text)).ok_or_else(|| {
        EngineError::Invalid(format!(
            "{shown} looks like no file that weir can read; say which with --from"
        ))
    })?;
    let imported = import(form, &text, &interfaces).map_err(|error| {
        if let ImportError::Nothing { notes } = &error {
            notes.iter().for_each(|note| out::complain(format!("{shown}:{note}")));
        }
        match error {
            ImportError::Text { .. } => anyhow::anyhow!("{shown}:{error}"),
            error => anyhow::anyhow!("{shown}: {error}"),
        }
    })?;
    // What is told beside the file must not come into it.
    imported.notes.iter().for_each(|note| out::complain(format!("{shown}:{note}")));
    let (services, backends) = (imported.services, imported.backends);
    match output {
        None => out::text(&imported.text),
        Some(path) => {
            write_new(&path, Path::new(USUAL_FILE), &imported.text)?;
            let path = path.display();
            let count = |count: usize, what: &str| match count {
                1 => format!("1 {what}"),
                _ => format!("{count} {what}s"),
            };
            let (services, backends) = (count(services, "service"), count(backends, "backend"));
            let done = format!("{path} written: {services} with {backends}");
            let then = format!("then: weir check --config {path}; weir doctor --config {path}");
            out::changed(format!("{done}\n{then}"), &done);
        }
    }
    Ok(())
}

fn text(file: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let length = if file.as_os_str() == "-" {
        std::io::stdin().lock().take(MOST + 1).read_to_end(&mut bytes)?
    } else {
        std::fs::File::open(file)?.take(MOST + 1).read_to_end(&mut bytes)?
    };
    anyhow::ensure!(length as u64 <= MOST, "it is larger than {} MiB", MOST >> 20);
    String::from_utf8(bytes).context("it is not UTF-8 text")
}
