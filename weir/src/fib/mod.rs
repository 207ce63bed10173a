//! `weir fib`: two forwarders that run and are watched (docs/fib.md).

mod content;
mod switch;

use crate::cli::{count, rate};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Subcommand)]
pub enum FibVerb {
    /// Forwarding nodes in network namespaces; hosts move between them while pings and TCP streams
    /// go on. Ends with 1 if a lookup of a valid key was lost or wrong.
    Switch(SwitchOptions),
    /// An index of contents that answers over UDP while contents come, move and go. Ends with 1 if
    /// an answer for a valid name was wrong.
    Content(ContentOptions),
}

#[derive(Args)]
pub struct SwitchOptions {
    /// Forwarder of each node.
    #[arg(long, value_enum, default_value = "ofw")]
    pub fib: SwitchFib,
    /// Forwarding nodes.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub nodes: u16,
    /// Hosts with traffic.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub hosts: u16,
    /// Further addresses in every FIB, of hosts that are silent.
    #[arg(long, value_parser = count, default_value = "100K")]
    pub keys: usize,
    /// How long hosts move.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "20s")]
    pub duration: Duration,
    /// Hosts that move to another node, each second.
    #[arg(long, default_value_t = 1.0)]
    pub moves_per_second: f64,
    /// Seed of everything that is drawn.
    #[arg(long, env = "WEIR_SEED")]
    pub seed: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ContentOptions {
    /// What the index is made of.
    #[arg(long, value_enum, default_value = "ludo")]
    pub fib: ContentFib,
    /// Contents.
    #[arg(long, value_parser = count, default_value = "1M")]
    pub contents: usize,
    /// Nodes that hold contents.
    #[arg(long, default_value_t = 318, value_parser = clap::value_parser!(u16).range(2..=60_000))]
    pub locations: u16,
    /// Seconds of queries.
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Contents that come, move or go, each second.
    #[arg(long, value_parser = rate, default_value = "100K")]
    pub updates_per_second: f64,
    /// Clients, each a thread with a socket.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub clients: u16,
    /// Threads that answer.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub servers: u16,
    /// Names in a datagram.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub batch: u8,
    /// Seed of everything that is drawn.
    #[arg(long, env = "WEIR_SEED")]
    pub seed: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SwitchFib {
    Ofw,
    Cfw,
    Ludo,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentFib {
    /// Ludo, read by many threads without locks.
    Ludo,
    /// OthelloSet with fingerprints of 8 bits, behind a lock; knows most alien names.
    Ofw,
}

pub fn run(what: FibVerb) -> ExitCode {
    weir_lab::catch_interrupts();
    match what {
        FibVerb::Switch(options) => finish(switch::run(&options), options.json),
        FibVerb::Content(options) => finish(content::run(&options), options.json),
    }
}

/// A report in lines, and whether what it tells is what was promised.
trait Report: Serialize {
    fn held(&self) -> bool;
    fn text(&self) -> String;
}

fn finish(result: anyhow::Result<impl Report>, json: bool) -> ExitCode {
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            eprintln!("weir: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    if json {
        match serde_json::to_string_pretty(&report) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("weir: {error}"),
        }
    } else {
        println!("{}", report.text());
    }
    if report.held() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
