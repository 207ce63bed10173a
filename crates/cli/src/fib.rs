//! What `weir fib` is asked for.

use crate::laboratory::{count, one_of, rate, within};
use crate::values::up_to_a_month;
use clap::{Args, Subcommand};
use std::time::Duration;
use weir_forwarders::{ContentFib, SocketKind, SwitchFib, SwitchKeys};

/// The forwarders that run.
#[derive(Subcommand)]
pub enum FibVerb {
    /// Forwarding nodes in network namespaces; hosts move between them while pings and TCP streams
    /// go on. Ends with 1 if a lookup of a valid key was lost or wrong, or a stream broke.
    Switch(SwitchArgs),
    /// An index of contents that answers over UDP while contents come, move and go. Ends with 1 if
    /// an answer for a valid name was wrong, or a datagram was lost.
    Content(ContentArgs),
}

/// What switches are asked for.
#[derive(Args)]
pub struct SwitchArgs {
    /// Forwarder of each node.
    #[arg(long, value_parser = one_of(&SwitchFib::CHOICES), default_value = "ofw")]
    pub fib: SwitchFib,
    /// What frames are forwarded by.
    #[arg(long, value_parser = one_of(&SwitchKeys::CHOICES), default_value = "mac")]
    pub key: SwitchKeys,
    /// What nodes receive and send by: AF_XDP, packet sockets, or the first of them that works.
    #[arg(long, value_parser = one_of(&SocketKind::CHOICES), default_value = "auto")]
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
    #[arg(long, value_parser = up_to_a_month, default_value = "20s")]
    pub duration: Duration,
    /// Hosts that move to another node, each second.
    #[arg(long, default_value_t = 1.0, value_parser = within(0.0, 1e6), allow_hyphen_values = true)]
    pub moves_per_second: f64,
    /// Seed of everything that is drawn; without it one below 2^53, which every reader of JSON holds.
    #[arg(long, env = "WEIR_SEED")]
    pub seed: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What an index of contents is asked for.
#[derive(Args)]
pub struct ContentArgs {
    /// What the index is made of.
    #[arg(long, value_parser = one_of(&ContentFib::CHOICES), default_value = "ludo")]
    pub fib: ContentFib,
    /// Contents.
    #[arg(long, value_parser = count, default_value = "1M")]
    pub contents: usize,
    /// Nodes that hold contents.
    #[arg(long, default_value_t = 318, value_parser = clap::value_parser!(u16).range(2..=60_000))]
    pub locations: u16,
    /// Seconds of queries.
    #[arg(long, default_value_t = 10.0, value_parser = within(0.001, 1e6), allow_hyphen_values = true)]
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
    /// Seed of everything that is drawn; without it one below 2^53, which every reader of JSON holds.
    #[arg(long, env = "WEIR_SEED")]
    pub seed: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl SwitchArgs {
    /// As the forwarders are asked.
    pub fn options(&self) -> weir_forwarders::SwitchOptions {
        weir_forwarders::SwitchOptions {
            fib: self.fib,
            key: self.key,
            sockets: self.sockets,
            rounds: self.rounds,
            nodes: self.nodes,
            hosts: self.hosts,
            keys: self.keys,
            duration: self.duration,
            moves_per_second: self.moves_per_second,
            seed: self.seed,
        }
    }
}

impl ContentArgs {
    /// As the forwarders are asked.
    pub fn options(&self) -> weir_forwarders::ContentOptions {
        weir_forwarders::ContentOptions {
            fib: self.fib,
            contents: self.contents,
            locations: self.locations,
            seconds: self.seconds,
            updates_per_second: self.updates_per_second,
            clients: self.clients,
            servers: self.servers,
            batch: self.batch,
            seed: self.seed,
        }
    }
}
