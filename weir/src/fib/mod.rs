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
    /// What frames are forwarded by.
    #[arg(long, value_enum, default_value = "mac")]
    pub key: SwitchKeys,
    /// What nodes receive and send by: AF_XDP, packet sockets, or the first of them that works.
    #[arg(long, value_enum, default_value = "auto")]
    pub sockets: SocketKind,
    /// Compare AF_XDP with packet sockets, in turn, in a chain of nodes between two hosts.
    #[arg(long, conflicts_with_all = ["sockets", "hosts", "moves_per_second"])]
    pub compare_sockets: bool,
    /// Rounds of the comparison.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Forwarding nodes.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub nodes: u16,
    /// Hosts with traffic.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub hosts: u16,
    /// Further addresses in every FIB, of hosts that are silent.
    #[arg(long, value_parser = count, default_value = "100K")]
    pub keys: usize,
    /// How long hosts move, or a comparison takes.
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

/// A destination, or a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SwitchKeys {
    /// Destination MAC address.
    Mac,
    /// Destination IPv4 address.
    Ipv4,
    /// Destination IPv6 address.
    Ipv6,
    /// IPv4 source, destination, ports and protocol.
    #[value(name = "5tuple")]
    #[serde(rename = "5tuple")]
    FiveTuple,
}

impl SwitchKeys {
    fn name(self) -> &'static str {
        match self {
            Self::Mac => "MAC address",
            Self::Ipv4 => "IPv4 address",
            Self::Ipv6 => "IPv6 address",
            Self::FiveTuple => "5-tuple",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SocketKind {
    /// AF_XDP, or packet sockets where the kernel or a device refuses it; says why.
    Auto,
    /// AF_XDP or nothing.
    Xdp,
    /// Packet sockets (AF_PACKET).
    Packet,
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
        FibVerb::Switch(options) if options.compare_sockets => {
            finish(switch::compare(&options), options.json)
        }
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
