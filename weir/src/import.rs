//! `weir import`: another balancer's configuration as weir's.

use crate::out;
use anyhow::Context;
use clap::Args;
use std::io::Read;
use std::path::PathBuf;
use weir_control::engine::EngineError;
use weir_control::import::{Form, ImportError, import};

/// The largest text that is read.
const MOST: u64 = 64 << 20;

#[derive(Args)]
pub struct ImportOptions {
    /// What is read; - for the standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What it is. Without it: what it looks like.
    #[arg(long, value_parser = ["keepalived", "ipvsadm", "cilium"])]
    pub from: Option<String>,
    /// Interface whose packets are balanced, as often as there are some. Without it, those of
    /// keepalived's vrrp_instances, or eth0.
    #[arg(long = "interface", value_name = "INTERFACE")]
    pub interfaces: Vec<String>,
    /// Where the configuration goes, which must not be there yet. Without it: the standard output.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

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
            crate::init::write(&path, &imported.text)?;
            let path = path.display();
            out::line(format!("{path} written: {services} services with {backends} backends"));
            out::line(format!("then: weir check --config {path}; weir doctor --config {path}"));
        }
    }
    Ok(())
}

fn text(file: &std::path::Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let length = if file.as_os_str() == "-" {
        std::io::stdin().lock().take(MOST + 1).read_to_end(&mut bytes)?
    } else {
        std::fs::File::open(file)?.take(MOST + 1).read_to_end(&mut bytes)?
    };
    anyhow::ensure!(length as u64 <= MOST, "it is larger than {} MiB", MOST >> 20);
    String::from_utf8(bytes).context("it is not UTF-8 text")
}
