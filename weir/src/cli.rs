//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// A layer-4 load balancer for Linux that does not break connections.
#[derive(Parser)]
#[command(version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// Socket of the instance to talk to.
    #[arg(long, global = true, env = "WEIR_SOCKET", default_value = "/run/weir/weir.sock")]
    pub socket: PathBuf,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Subcommand)]
pub enum Verb {
    /// Run the balancer. When it ends, forwarding goes on; started again, it resumes.
    Run {
        /// The configuration file.
        #[arg(long)]
        config: PathBuf,
    },
    /// Remove the data plane that a stopped instance left in the kernel. Forwarding ends.
    Unload {
        /// The configuration file, for the instance's name.
        #[arg(long, conflicts_with = "name")]
        config: Option<PathBuf>,
        /// The instance's name.
        #[arg(long, required_unless_present = "config")]
        name: Option<String>,
    },
    /// Check a configuration file.
    Check {
        /// The configuration file.
        #[arg(long)]
        config: PathBuf,
    },
    /// Look for what would stop packets, and say how to mend it.
    Doctor {
        /// The configuration file.
        #[arg(long)]
        config: PathBuf,
        /// Do not send a SYN to each backend to see whether it accepts packets for the service.
        #[arg(long)]
        no_probe: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show services, backends and counters.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Tell where a flow's packets go, and why.
    Explain {
        /// tcp or udp.
        protocol: String,
        /// The client's address and port.
        source: SocketAddr,
        /// The service's address and port.
        destination: SocketAddr,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Change a service's backends. Changes outlive a restart, and end when the file's description
    /// of the service changes or the file is reloaded.
    Backend {
        #[command(subcommand)]
        verb: BackendVerb,
        /// Print JSON.
        #[arg(long, global = true)]
        json: bool,
    },
    /// Read the configuration file again (as SIGHUP does). A bad file changes nothing.
    Reload {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run real clients and servers around a balancer in network namespaces, and count what breaks.
    Lab(LabOptions),
    /// Simulate pools, flows and steering methods (docs/sim.md).
    Sim {
        /// The scenario.
        file: PathBuf,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Measure.
    Bench {
        #[command(subcommand)]
        what: BenchVerb,
    },
}

#[derive(Subcommand)]
pub enum BackendVerb {
    /// Add a backend.
    Add {
        /// The service.
        service: String,
        /// Name of the new backend.
        name: String,
        /// Its address.
        address: IpAddr,
        /// Its weight.
        #[arg(long, default_value_t = 1)]
        weight: u16,
    },
    /// Remove a backend. Connections that it still holds are lost; drain it first to keep them.
    Remove {
        /// The service.
        service: String,
        /// The backend.
        name: String,
    },
    /// Drain a backend: it keeps its connections and gets no new one.
    Drain {
        /// The service.
        service: String,
        /// The backend.
        name: String,
        /// Let it serve again.
        #[arg(long)]
        undo: bool,
    },
    /// Change a backend's weight.
    Weight {
        /// The service.
        service: String,
        /// The backend.
        name: String,
        /// Its share of new connections, relative to the others.
        weight: u16,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub enum MethodName {
    Concury,
    Tracked,
}

impl MethodName {
    pub fn name(self) -> &'static str {
        match self {
            Self::Concury => "concury",
            Self::Tracked => "tracked",
        }
    }
}

#[derive(Args)]
pub struct LabOptions {
    /// Steering method of the services.
    #[arg(long, value_enum, default_value = "concury")]
    pub method: MethodName,
    /// How long the pool is churned.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "30s")]
    pub duration: Duration,
    /// Concurrent connections.
    #[arg(long, default_value_t = 4000)]
    pub connections: usize,
    /// Backends in the lab; three quarters of them are in the pool at the start.
    #[arg(long, default_value_t = 12)]
    pub backends: usize,
    /// Seconds between two changes of the pool, on average.
    #[arg(long)]
    pub change_every: Option<f64>,
    /// Seed of everything that is drawn.
    #[arg(long, env = "WEIR_SEED")]
    pub seed: Option<u64>,
    /// Plain lines instead of a live picture.
    #[arg(long)]
    pub plain: bool,
    /// Print the report as JSON at the end (and plain lines on the error output before).
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum BenchVerb {
    /// Nanoseconds per packet of the XDP program, above a reflector, over a veth pair.
    Xdp {
        /// Numbers of flows to draw from.
        #[arg(long, value_delimiter = ',', default_values_t = [1_000, 65_536, 1_000_000])]
        flows: Vec<u32>,
        /// Packets in each measurement.
        #[arg(long, default_value_t = 4_000_000)]
        packets: u32,
        /// Rounds; each measures everything once, in turn.
        #[arg(long, default_value_t = 11)]
        rounds: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// How long concury takes from a pool change to published tables.
    Update {
        /// Numbers of states of the service.
        #[arg(long, value_delimiter = ',', default_values_t = [8_192, 131_072, 1_000_000])]
        states: Vec<u32>,
        /// Pool changes for each.
        #[arg(long, default_value_t = 31)]
        rounds: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Othello and OthelloMap: bits per key, insertions and exports per second, lookups.
    Lookup {
        /// Numbers of keys.
        #[arg(long, value_delimiter = ',', default_values_t = [65_536, 1_000_000])]
        keys: Vec<u32>,
        /// Rounds.
        #[arg(long, default_value_t = 7)]
        rounds: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}
