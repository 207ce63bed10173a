//! The command line as data: verbs and options, what is checked of them before anything is done, and what is made
//! of their descriptions, manual pages and completions. It does nothing and prints nothing.
#![forbid(unsafe_code)]

#[cfg(not(feature = "laboratory"))]
mod absent;
mod agent;
#[cfg(feature = "laboratory")]
mod bench;
#[cfg(feature = "laboratory")]
mod fib;
#[cfg(feature = "laboratory")]
mod lab;
#[cfg(feature = "laboratory")]
mod laboratory;
pub mod manual;
mod pki;
mod values;

use clap::{Args, Parser, Subcommand};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use weir_control::api::Client;
use weir_control::config::PlaneKind;

#[cfg(not(feature = "laboratory"))]
pub use absent::{AbsentVerb, Words};
pub use agent::{AgentOptions, AskedOptions, BackendOptions, TellOptions, Way};
#[cfg(feature = "laboratory")]
pub use bench::{
    BenchVerb, ControlOptions, FleetOptions, KeysName, LookupOptions, MapsOptions, MarksName,
    NeighbourName, PlaneOptions,
};
#[cfg(feature = "laboratory")]
pub use fib::{ContentArgs, FibVerb, SwitchArgs};
#[cfg(feature = "laboratory")]
pub use lab::{ChurnOptions, CompareOptions, LabCommand, LabOptions, LabVerb};
#[cfg(feature = "laboratory")]
pub use laboratory::{ReproduceOptions, SimOptions};
pub use pki::{PkiRole, PkiVerb, Place};

use values::{
    address_and_port, address_or_route, change, flow_end, list_time, load, look_every, look_for,
    name, patience, plane_kind, socket, up_to_a_month, weight,
};

/// What a command ends with.
const STATUS: &str = "\
Exit status: 0 if what was asked for is done and what is promised held; 1 if not, and the error \
output or the report says why; 2 if the arguments make no sense; 3 if there is no such service or \
backend; 4 if what is asked for contradicts what is in force; 5 if no instance answers, or another \
one is running, or the store of its fleet does not answer: the same may work later; 141 if the reader \
of the output has gone (weir status | head -3), which ends any command but `run`.";

/// A layer-4 load balancer for Linux that does not break connections.
#[derive(Parser)]
#[command(name = "weir", version, propagate_version = true, max_term_width = 100, after_help = STATUS)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// More about several balancers.
#[derive(Subcommand)]
pub enum FleetVerb {
    /// All balancers: what they do, which change they follow, what they announce, digests of their tables.
    Status,
    /// Forget a balancer that is away and does not come back.
    Forget {
        /// Its name.
        name: String,
    },
}

/// More about what is announced.
#[derive(Subcommand)]
pub enum AnnounceVerb {
    /// Whether an address is to be announced: ends with 0 if it is, 1 if not. For keepalived's scripts.
    Check {
        /// The address, or a route as `weir announce` shows it, such as 192.0.2.1/32.
        #[arg(value_parser = address_or_route)]
        address: (IpAddr, Option<u8>),
    },
    /// Beside `weir run`: withdraw what it has announced when it has not answered for some time. Forwarding
    /// goes on without it; who wants that announced does not run this.
    Guard {
        /// The configuration file.
        #[arg(long, default_value = USUAL_FILE)]
        config: PathBuf,
        /// For how long it must not have answered.
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = up_to_a_month)]
        after: Duration,
    },
}

/// The configuration file if no other one is named.
pub const USUAL_FILE: &str = "/etc/weir/weir.toml";

/// Where an instance is talked to if nothing else is said.
pub const USUAL_SOCKET: &str = "/run/weir/weir.sock";

/// A process `weir run` that a verb talks to.
#[derive(Args, Clone)]
pub struct Instance {
    /// Socket of the instance to talk to.
    #[arg(long, global = true, env = "WEIR_SOCKET", default_value = USUAL_SOCKET, value_parser = socket())]
    pub socket: PathBuf,
    /// For how long the instance may say nothing, 1s or more: one that does not live any more is given up then.
    #[arg(long, global = true, env = "WEIR_PATIENCE", value_name = "TIME", value_parser = patience,
          default_value = "60s")]
    pub patience: Duration,
}

impl Instance {
    /// Who talks to it.
    pub fn client(&self) -> Client {
        Client::new(self.socket.clone()).with_patience(self.patience)
    }
}

/// What somebody who changes something knows of the instance.
#[derive(Args, Clone, Copy)]
pub struct Expected {
    /// Refuse it if the last change of the instance, by whatever command, has another number (weir history).
    #[arg(long, value_name = "NUMBER")]
    pub expect: Option<u64>,
}

impl Expected {
    /// The path of a request with that.
    pub fn of(self, path: &str) -> String {
        self.expect.map_or_else(|| path.to_owned(), |number| format!("{path}?expect={number}"))
    }
}

/// How a file is put in force.
#[derive(Args)]
pub struct ChangeOptions {
    /// Whom to talk to.
    #[command(flatten)]
    pub instance: Instance,
    /// Follow the file also where that breaks connections, and say how many.
    #[arg(long)]
    pub break_connections: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// How to look at packets.
#[derive(Args)]
pub struct TraceOptions {
    /// Which packets.
    #[command(flatten)]
    pub wanted: TraceWanted,
    /// End after so many packets.
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after so long: 10s, 5m.
    #[arg(long = "for", value_name = "TIME", value_parser = look_for)]
    pub duration: Option<Duration>,
    /// Tell which rules of the program each packet goes through.
    #[arg(long)]
    pub rules: bool,
    /// Write packets, as they came and as they left, to a file of pcapng, for tcpdump and others. Refused if
    /// the file is there.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["json", "rules"])]
    pub write: Option<PathBuf>,
    /// Write that file anew if it is there.
    #[arg(long, requires = "write")]
    pub force: bool,
    /// Print each packet as a line of JSON.
    #[arg(long, conflicts_with = "rules")]
    pub json: bool,
}

/// Which packets to look at: those of which all that is given is true.
#[derive(Args)]
pub struct TraceWanted {
    /// Those for this service.
    #[arg(long)]
    pub service: Option<String>,
    /// Those that go to this backend of it.
    #[arg(long, requires = "service")]
    pub backend: Option<String>,
    /// Those whose flow has an end at this address, or in this network: 192.0.2.7, 2001:db8::/32.
    #[arg(long, value_name = "NETWORK")]
    pub host: Option<String>,
    /// Those whose flow has an end with this port.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// tcp, udp or sctp.
    #[arg(long)]
    pub protocol: Option<String>,
    /// Those that are sent, passed to this host, or dropped.
    #[arg(long, value_parser = ["sent", "passed", "dropped"])]
    pub fate: Option<String>,
    /// Those that are not forwarded for this reason, as `weir status` names it: no_backend.
    #[arg(long)]
    pub reason: Option<String>,
    /// Of all those, one in so many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub every: Option<u32>,
}

impl From<TraceWanted> for weir_control::engine::TraceRequest {
    fn from(wanted: TraceWanted) -> Self {
        let TraceWanted { service, backend, host, port, protocol, fate, reason, every } = wanted;
        Self { service, backend, host, port, protocol, fate, reason, every }
    }
}

/// What the process of a plane in user space is given.
#[derive(Args)]
pub struct UserPlaneOptions {
    /// The directory of the data plane's pins.
    #[arg(long, required_unless_present = "probe")]
    pub pins: Option<PathBuf>,
    /// The run directory of the instance.
    #[arg(long)]
    pub run_dir: PathBuf,
    /// A device of DPDK and the tap that stands for it, as TAP=DEVICE. Without any, AF_XDP.
    #[arg(long, value_name = "TAP=DEVICE")]
    pub port: Vec<String>,
    /// DPDK's memory in megabytes.
    #[arg(long, default_value_t = 256)]
    pub memory_mb: u32,
    /// DPDK's memory is in huge pages.
    #[arg(long)]
    pub huge_pages: bool,
    /// Longest sleep when nothing comes.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "200us")]
    pub longest_nap: Duration,
    /// Threads, each with a queue of every device of DPDK, or its share of queues of interfaces.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=5))]
    pub threads: u16,
    /// Open the ports of DPDK, say what is wrong, and end.
    #[arg(long)]
    pub probe: bool,
    /// Whose rules lead known connections: "emulated", "emulated-veth", "ntuple" or "rte_flow". Without it, nobody's.
    #[arg(long, value_name = "CARD", value_parser = ["emulated", "emulated-veth", "ntuple", "rte_flow"])]
    pub offload: Option<String>,
    /// Rules at a time.
    #[arg(long, default_value_t = 2048)]
    pub rules: u32,
    /// Receive queues: one for what no rule matches, and one for each backend that rules lead to.
    #[arg(long, default_value_t = 16)]
    pub queues: u16,
    /// Which connections get a rule.
    #[arg(long, default_value = "heavy", value_parser = ["all", "heavy", "sampled"])]
    pub choice: String,
    /// A connection takes another's place if it has sent so many times as much lately.
    #[arg(long, default_value_t = 2)]
    pub hysteresis: u32,
    /// The emulated card does everything wrong that a card may.
    #[arg(long)]
    pub hostile: bool,
}

/// What weir can be told to do.
#[derive(Subcommand)]
pub enum Verb {
    /// Run the balancer. When it ends, forwarding goes on; started again, it resumes.
    Run {
        /// The configuration file; `weir init` writes one.
        #[arg(long, value_name = "FILE", default_value = USUAL_FILE)]
        config: PathBuf,
        /// Follow the file also where that breaks connections of an earlier run.
        #[arg(long)]
        break_connections: bool,
        /// What decides packets, if that is not what the file says: "kernel", "af-xdp", "dpdk" or "p4".
        #[arg(long, value_name = "PLANE", value_parser = plane_kind)]
        plane: Option<PlaneKind>,
    },
    /// Decide packets in user space, over a data plane that is pinned; `weir run` starts this.
    #[command(hide = true)]
    Plane(UserPlaneOptions),
    /// Look at this host and write a configuration for it, with comments. Refused if the file is there.
    Init(InitOptions),
    /// Write a configuration from another balancer's: keepalived.conf, what `ipvsadm -S -n` prints, or the
    /// state file of cilium's load balancer. What has no counterpart is told, by line.
    Import(ImportOptions),
    /// Remove the data plane that a stopped instance left in the kernel. Forwarding ends, and before it what
    /// the instance has announced is withdrawn; ends with 1, and says what to do, if the speaker cannot be
    /// told. Refused while the instance runs; ends with 3 if nothing is loaded under the --name that is given.
    Unload {
        /// The configuration file, for the instance's name, and its speaker where it is not known by what
        /// was in force.
        #[arg(long, conflicts_with = "name")]
        config: Option<PathBuf>,
        /// The instance's name; without it, the one that there is.
        #[arg(long)]
        name: Option<String>,
    },
    /// Check a configuration file, and change nothing. Ends with 1 if `weir run` would refuse it, whatever the
    /// host; an interface that this host has not is told.
    Check {
        /// The configuration file; - for the standard input.
        #[arg(default_value = USUAL_FILE, conflicts_with = "config")]
        file: PathBuf,
        /// The same.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Also look whether this version can go on from what the instance has in the kernel and in its run
        /// directory, while another one runs: before it takes that one's place.
        #[arg(long)]
        upgrade: bool,
    },
    /// Look for what would stop packets, and say how to mend it. Ends with 1 if anything would. With
    /// --backend it looks at this host as one that packets are sent to.
    Doctor {
        /// Look at this host as a backend, as `weir agent` with the same options makes it.
        #[arg(long)]
        backend: bool,
        /// What the host is to be as a backend.
        #[command(flatten)]
        options: Box<BackendOptions>,
        /// What its agent was started with.
        #[command(flatten)]
        asked: Box<AskedOptions>,
        /// Do not send a SYN to each backend of a TCP service, to see whether it accepts packets for
        /// the service.
        #[arg(long)]
        no_probe: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show services, backends and counters.
    Status {
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show services, backends, their rates and the last changes on a terminal, with keys to drain.
    Top {
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
        /// Time between two looks, 100ms to 1h.
        #[arg(long, value_name = "TIME", value_parser = look_every, default_value = "1s")]
        interval: Duration,
    },
    /// Tell where a flow's packets go, and why.
    Explain {
        /// tcp, udp or sctp.
        protocol: String,
        /// The client's address and port.
        #[arg(value_parser = flow_end)]
        source: SocketAddr,
        /// The service's address and port.
        #[arg(value_parser = flow_end)]
        destination: SocketAddr,
        /// The destination connection id of a QUIC packet, hexadecimal: where that one goes. With udp only.
        #[arg(long, value_name = "HEX")]
        connection_id: Option<String>,
        /// Ask the tables of this snapshot (weir snapshot --tables), and no balancer.
        #[arg(long, value_name = "FILE")]
        snapshot: Option<PathBuf>,
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write everything that a report of a fault needs into one file: configuration without secrets, status,
    /// counters, history, host, and what doctor finds.
    Snapshot {
        /// The file, which must not be there; - for the standard output. Without it, one in this directory
        /// with the instance's name and the time.
        #[arg(long, short)]
        output: Option<PathBuf>,
        /// Also the tables, for weir explain --snapshot. The keys of their hashes are in them: whoever has
        /// them can aim at a backend until the service is made anew.
        #[arg(long)]
        tables: bool,
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
    },
    /// Look at packets as they come, with what becomes of each and why, until Ctrl-C. Meanwhile packets go
    /// through a slower program that takes notes.
    Trace {
        /// How to look at them.
        #[command(flatten)]
        options: Box<TraceOptions>,
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
    },
    /// Change a service's backends. Changes outlive a restart, and end when the file's description
    /// of the service changes or the file is reloaded.
    Backend {
        /// What to do.
        #[command(subcommand)]
        verb: BackendVerb,
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
        /// Print JSON.
        #[arg(long, global = true)]
        json: bool,
    },
    /// Change the sources that a service takes packets from, over its file's lists (docs/lists.md). It holds at
    /// once, for open connections, too, outlives restarts and reloads, and ends by itself with --for.
    Source {
        /// What to do.
        #[command(subcommand)]
        verb: SourceVerb,
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
        /// Print JSON.
        #[arg(long, global = true)]
        json: bool,
    },
    /// Tell what a file would change, and how many connections it would touch and break; change
    /// nothing. Ends with 4 if a reload would refuse it.
    Plan {
        /// The file, - for the standard input; without it, the one that the instance runs by: what differs
        /// from what is in force, changes by commands included.
        file: Option<PathBuf>,
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Put a file in force and in the place of the instance's own, whole or not at all.
    Apply {
        /// The file; - for the standard input.
        file: PathBuf,
        /// Refuse it if the last change of the file has another number (weir history).
        #[arg(long, value_name = "NUMBER")]
        expect: Option<u64>,
        /// How.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Go back to the file before, or to that of an earlier change.
    Rollback {
        /// Number of the change whose file is to be in force again (weir history): in a fleet, too, the one that the
        /// instance has for it, and not the fleet's.
        #[arg(value_parser = change)]
        number: Option<u64>,
        /// What the instance must be like.
        #[command(flatten)]
        expected: Expected,
        /// How.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Show what was changed, when, by whom, and what that did to connections; and whether the instance
    /// differs from its file.
    History {
        /// Print the file of this change instead.
        #[arg(value_parser = change)]
        number: Option<u64>,
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what this balancer announces to routers, and why not the rest (docs/announcing.md).
    Announce {
        /// What to do.
        #[command(subcommand)]
        verb: Option<AnnounceVerb>,
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
        /// Print JSON.
        #[arg(long, global = true)]
        json: bool,
    },
    /// Show the balancers of this one's fleet, what they follow and in what they differ (docs/fleet.md).
    Fleet {
        /// What to do.
        #[command(subcommand)]
        verb: FleetVerb,
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
        /// Print JSON.
        #[arg(long, global = true)]
        json: bool,
    },
    /// Withdraw this balancer's addresses from routers, before maintenance. It outlives restarts.
    Drain {
        /// What: self.
        #[arg(value_parser = ["self"])]
        what: String,
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Announce this balancer's addresses again.
    Undrain {
        /// What: self.
        #[arg(value_parser = ["self"])]
        what: String,
        /// Whom to talk to.
        #[command(flatten)]
        instance: Instance,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Read the configuration file again (as SIGHUP does). A file that `weir check` refuses changes
    /// nothing.
    Reload {
        /// What the instance must be like.
        #[command(flatten)]
        expected: Expected,
        /// How.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Print the JSON Schema of the configuration file, for editors; or the description of the API.
    Schema {
        /// Print the OpenAPI document of the control API instead (docs/api.md).
        #[arg(long)]
        api: bool,
        /// Print the .proto of the control API by gRPC instead.
        #[arg(long, conflicts_with = "api")]
        proto: bool,
    },
    /// Print what a shell needs to complete weir's commands and options.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands, weir(1) and the others, into a directory.
    Man {
        /// The directory; it is made if there is none.
        directory: PathBuf,
    },
    /// Make certificates for balancers and agents, where there is no authority that does (docs/agent.md).
    Pki {
        /// What to do.
        #[command(subcommand)]
        verb: PkiVerb,
    },
    /// On a backend: make it ready for packets from balancers, tell those what it holds, and undo all at the
    /// end (docs/agent.md).
    Agent(Box<AgentOptions>),
    #[cfg(feature = "laboratory")]
    /// Run real clients and servers around a balancer in network namespaces, and count what breaks.
    /// Ends with 1 if anything did that should not (docs/lab.md).
    Lab(Box<LabCommand>),
    #[cfg(feature = "laboratory")]
    /// Simulate pools, flows and steering methods (docs/sim.md).
    Sim(SimOptions),
    #[cfg(feature = "laboratory")]
    /// Forwarders by name that run: MAC addresses, names of contents (docs/fib.md).
    Fib {
        /// Which of them.
        #[command(subcommand)]
        what: FibVerb,
    },
    #[cfg(feature = "laboratory")]
    /// Draw the papers' figures again with our numbers, as one HTML report (docs/reproduce.md).
    /// Without names, list them.
    Reproduce(ReproduceOptions),
    #[cfg(feature = "laboratory")]
    /// Measure, and print medians with their spread.
    Bench {
        /// What is measured.
        #[command(subcommand)]
        what: BenchVerb,
    },
    /// What only a program with the laboratory has.
    #[cfg(not(feature = "laboratory"))]
    #[command(flatten)]
    Absent(AbsentVerb),
}

/// What a configuration is made of.
#[derive(Args)]
pub struct InitOptions {
    /// The address that clients connect to, with a port if it is not 80.
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = address_and_port)]
    pub vip: (IpAddr, Option<u16>),
    /// A backend, as often as there are some; with --forward nat or --nat also with the port that it listens on.
    #[arg(long = "backend", value_name = "ADDRESS[:PORT]", required = true, value_parser = address_and_port)]
    pub backends: Vec<(IpAddr, Option<u16>)>,
    /// Name of the service.
    #[arg(long, value_parser = name, default_value = "web")]
    pub name: String,
    /// A service of UDP.
    #[arg(long)]
    pub udp: bool,
    /// How packets reach the backends: as frames (l2), with the backend's address (nat), from this host's
    /// besides (fullnat), or in tunnels.
    /// Without it: l2 if all backends are on links of this host's, else gue.
    #[arg(long, value_parser = ["l2", "ipip", "gue", "fou", "gre", "nat", "fullnat"])]
    pub forward: Option<String>,
    /// For backends that nobody may configure: full NAT, --forward fullnat. Their answers come to an address of
    /// this host's.
    #[arg(long, conflicts_with = "forward")]
    pub nat: bool,
    /// Interface whose packets are balanced, as often as there are some. Without it, those that lead to
    /// the clients and to the backends.
    #[arg(long = "interface", value_name = "INTERFACE")]
    pub interfaces: Vec<String>,
    /// Where the configuration goes, in a directory that is there; - for the standard output.
    #[arg(long, value_name = "FILE", default_value = USUAL_FILE)]
    pub output: PathBuf,
    /// Also give this host what it lacks, until it is restarted: the service's address, forwarding, and with nat or
    /// fullnat accept_local of the interfaces by which answers come, and rp_filter = 2 where it is strict there.
    #[arg(long)]
    pub prepare: bool,
}

/// What another balancer's configuration is read with.
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

/// What is done to backends.
#[derive(Subcommand)]
pub enum BackendVerb {
    /// Add a backend.
    Add {
        /// The service.
        #[arg(value_parser = name)]
        service: String,
        /// Name of the new backend.
        #[arg(value_parser = name)]
        name: String,
        /// Its address.
        address: IpAddr,
        /// The port that it listens on, of a service with forward = "nat" or "fullnat"; without it, the service's.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
        /// Its weight.
        #[arg(long, default_value_t = 1, value_parser = weight, allow_hyphen_values = true)]
        weight: u16,
        /// Of balancer.nat_sources, one that its connections come from, of a service with forward = "fullnat", as
        /// often as there are some; without it, all of its family.
        #[arg(long = "nat-source", value_name = "ADDRESS")]
        nat_sources: Vec<IpAddr>,
        /// What the instance must be like.
        #[command(flatten)]
        expected: Expected,
    },
    /// Remove a backend. Connections that it still holds are lost; drain it first to keep them.
    Remove {
        /// The service.
        #[arg(value_parser = name)]
        service: String,
        /// The backend.
        #[arg(value_parser = name)]
        name: String,
        /// What the instance must be like.
        #[command(flatten)]
        expected: Expected,
    },
    /// Drain a backend: it keeps its connections and gets no new one.
    Drain {
        /// The service.
        #[arg(value_parser = name)]
        service: String,
        /// The backend.
        #[arg(value_parser = name)]
        name: String,
        /// Let it serve again.
        #[arg(long, conflicts_with_all = ["wait", "deadline", "quiet"])]
        undo: bool,
        /// Return when its last connection has ended.
        #[arg(long)]
        wait: bool,
        /// Wait for so long at most, such as 5m; then say how many connections are left, and end with 1.
        #[arg(long, value_name = "TIME", value_parser = up_to_a_month, requires = "wait")]
        deadline: Option<Duration>,
        /// With a method that does not tell connections by backend: it has none if no packet has come for so
        /// long.
        #[arg(long, value_name = "TIME", value_parser = up_to_a_month, requires = "wait",
              default_value = "60s")]
        quiet: Duration,
        /// What the instance must be like.
        #[command(flatten)]
        expected: Expected,
    },
    /// Let a backend that drains serve again.
    Undrain {
        /// The service.
        #[arg(value_parser = name)]
        service: String,
        /// The backend.
        #[arg(value_parser = name)]
        name: String,
        /// What the instance must be like.
        #[command(flatten)]
        expected: Expected,
    },
    /// Change a backend's weight.
    Weight {
        /// The service.
        #[arg(value_parser = name)]
        service: String,
        /// The backend.
        #[arg(value_parser = name)]
        name: String,
        /// Its share of new connections, relative to the others.
        #[arg(value_parser = weight, allow_hyphen_values = true)]
        weight: u16,
        /// What the instance must be like.
        #[command(flatten)]
        expected: Expected,
    },
    /// Say how loaded a backend is, for schedulers with load = "told".
    Load {
        /// The service.
        #[arg(value_parser = name)]
        service: String,
        /// The backend.
        #[arg(value_parser = name)]
        name: String,
        /// Its load, in any unit that is the same for all backends of the service.
        #[arg(value_parser = load, allow_hyphen_values = true)]
        load: f64,
    },
}

/// What a prefix is put on a list with.
#[derive(Args)]
pub struct Listing {
    /// The service.
    #[arg(value_parser = name)]
    pub service: String,
    /// The prefix, such as 198.51.100.0/24 or 2001:db8::/32; an address is one host.
    pub prefix: String,
    /// For so long, such as 1h, up to 365d; without it, until it is removed.
    #[arg(long = "for", value_name = "TIME", value_parser = list_time)]
    pub duration: Option<Duration>,
    /// Why, for those who look later.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// What the instance must be like.
    #[command(flatten)]
    pub expected: Expected,
}

/// What is done to lists of sources.
#[derive(Subcommand)]
pub enum SourceVerb {
    /// Drop all packets from a prefix, those of open connections, too.
    Deny(Listing),
    /// Take packets from a prefix that a shorter one denies. It keeps nobody else out.
    Allow(Listing),
    /// Remove a prefix that deny or allow has put there; what the file lists stays.
    Remove {
        /// The service.
        #[arg(value_parser = name)]
        service: String,
        /// The prefix.
        prefix: String,
        /// What the instance must be like.
        #[command(flatten)]
        expected: Expected,
    },
    /// List what deny and allow have put there, by whom, why, and for how long still.
    List {
        /// Of this service alone.
        #[arg(value_parser = name)]
        service: Option<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, CommandFactory};

    /// Verbs that talk to an instance.
    const TALK: [&str; 16] = [
        "snapshot", "status", "top", "explain", "backend", "reload", "plan", "apply", "rollback",
        "history", "trace", "announce", "drain", "undrain", "fleet", "source",
    ];

    /// Every verb with its words, those below other verbs included.
    fn verbs() -> Vec<(String, Command)> {
        fn walk(path: &str, command: &Command, found: &mut Vec<(String, Command)>) {
            for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
                let path = format!("{path} {}", verb.get_name());
                walk(&path, verb, found);
                found.push((path.trim().to_owned(), verb.clone()));
            }
        }
        let mut command = Cli::command();
        // Hands options down to the verbs below.
        command.build();
        let mut found = Vec::new();
        walk("", &command, &mut found);
        found
    }

    /// Manual pages, completions and the version are the program's, not this crate's.
    #[test]
    fn the_program_is_called_weir() {
        assert_eq!(Cli::command().get_name(), "weir");
        let refused = Cli::try_parse_from(["weir", "--version"]).err().map(|said| said.to_string());
        assert!(
            refused
                .is_some_and(|said| said.starts_with(concat!("weir ", env!("CARGO_PKG_VERSION"))))
        );
    }

    #[test]
    fn every_verb_and_every_argument_is_explained() {
        Cli::command().debug_assert();
        let verbs = verbs();
        assert!(verbs.len() >= 23, "{}", verbs.len());
        for (path, verb) in verbs {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.len() > 10, "weir {path}: {about:?}");
            for argument in verb.get_arguments() {
                let name = argument.get_id();
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.len() > 3, "weir {path}: {name}: {help:?}");
            }
        }
    }

    #[test]
    fn a_socket_is_offered_by_verbs_that_talk_to_an_instance_only() {
        for (path, verb) in verbs() {
            let offers = verb.get_arguments().any(|argument| argument.get_id() == "socket");
            let talks = TALK.iter().any(|verb| path.split(' ').next() == Some(verb));
            assert_eq!(offers, talks, "weir {path}");
        }
    }

    #[test]
    fn an_instance_has_the_patience_of_the_client() {
        let of = |words: &[&str]| match Cli::try_parse_from(words).map(|cli| cli.verb) {
            Ok(Verb::Status { instance, .. }) => Some(instance.patience),
            _ => None,
        };
        assert_eq!(of(&["weir", "status"]), Some(weir_control::api::PATIENCE));
        let given = of(&["weir", "status", "--patience", "5m"]);
        assert_eq!(given, Some(Duration::from_secs(300)));
        for bad in ["0s", "999ms", "5"] {
            assert_eq!(of(&["weir", "status", "--patience", bad]), None, "{bad}");
        }
    }
}
