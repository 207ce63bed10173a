//! weir: a layer-4 load balancer for Linux that does not break connections.

mod bench;
mod cli;
mod control;
mod fib;
mod lab;
mod reproduce;
mod sim;

use clap::Parser;
use cli::{Cli, Verb};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if matches!(cli.verb, Verb::Sim(_) | Verb::Reproduce(_) | Verb::Bench { .. }) {
        end_with_the_reader();
    }
    let result = match cli.verb {
        Verb::Run { config } => run(&config),
        Verb::Unload { config, name } => control::unload(config.as_deref(), name),
        Verb::Doctor { config, no_probe, json } => {
            return control::doctor(&config, !no_probe, json);
        }
        Verb::Check { config } => control::check(&config),
        Verb::Fib { what } => return fib::run(what),
        Verb::Lab(options) => return lab::run(options),
        Verb::Sim(options) => sim::run(&options),
        Verb::Reproduce(options) => reproduce::run(&options),
        Verb::Bench { what } => bench::run(what),
        Verb::Status { json } => control::status(cli.socket, json),
        Verb::Explain { protocol, source, destination, json } => {
            control::explain(cli.socket, &protocol, source, destination, json)
        }
        Verb::Backend { verb, json } => control::backend(cli.socket, verb, json),
        Verb::Reload { json } => control::reload(cli.socket, json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A reader of the output who goes away (`| head`) ends the program, quietly, as it ends others.
/// Rust ignores the signal, so that printing panics. Not for what has network connections: a
/// peer that goes away must not end it.
fn end_with_the_reader() {
    // SAFETY: no other thread runs yet, and the default action needs no handler.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

fn run(config: &std::path::Path) -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_env("WEIR_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(weir_control::run::run(config))
}
