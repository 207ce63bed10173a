//! What is generated from the command line's own description: completions and manual pages.

use crate::cli::Cli;
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::Path;

/// Prints the completions for a shell.
pub fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "weir", &mut text);
    crate::out::text(String::from_utf8(text)?);
    Ok(())
}

/// Writes a page for each command: weir.1, weir-status.1, weir-backend-drain.1.
pub fn write(directory: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot write manual pages to {}", directory.display());
    std::fs::create_dir_all(directory).with_context(failed)?;
    // Names no help text: it would be another page for each command.
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, directory).with_context(failed)
}
