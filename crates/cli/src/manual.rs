//! What is generated from the command line's own description: completions and manual pages.

use crate::Cli;
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::Path;

/// What a shell needs to complete commands and options.
///
/// # Errors
/// Completions that are no text.
pub fn completions(shell: Shell) -> anyhow::Result<String> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "weir", &mut text);
    Ok(String::from_utf8(text)?)
}

/// Writes a page for each command: weir.1, weir-status.1, weir-backend-drain.1.
///
/// # Errors
/// A directory or a file that cannot be written.
pub fn write(directory: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot write manual pages to {}", directory.display());
    std::fs::create_dir_all(directory).with_context(failed)?;
    // Names no help text: it would be another page for each command.
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, directory).with_context(failed)
}
