//! What is asked of laboratories.

use crate::laboratory::{method_name, scenario_name, within};
use crate::values::{plane_kind, up_to_a_month};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use std::time::Duration;
use weir_control::config::{PlaneKind, RuleChoice};

/// A laboratory, or several in turn.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct LabCommand {
    /// What to do.
    #[command(subcommand)]
    pub verb: Option<LabVerb>,
    /// What the laboratory is like.
    #[command(flatten)]
    pub options: LabOptions,
}

/// More than one laboratory.
#[derive(Subcommand)]
pub enum LabVerb {
    /// Run the same connections and changes with one method after the other, and print one table.
    /// Ends with 1 if anything went wrong with any of them that should not (docs/lab.md).
    Compare(CompareOptions),
}

/// What one laboratory is like.
#[derive(Args)]
pub struct LabOptions {
    /// Steering method of the services.
    #[arg(long, value_parser = method_name(), default_value = "concury")]
    pub method: String,
    /// What is done besides changes of the pool (docs/lab.md).
    #[arg(long, value_name = "NAME", value_parser = scenario_name(), default_value = "churn")]
    pub scenario: String,
    /// So many balancers of one fleet, 2 to 8, with etcd and a router in front (docs/fleet.md).
    #[arg(long, value_name = "N", conflicts_with = "topology")]
    pub fleet: Option<usize>,
    /// How the router of a fleet knows its balancers: its routes are set, or it learns them by BGP from a BIRD (bgp) or a
    /// GoBGP (gobgp) beside each balancer.
    #[arg(long, value_name = "WAY", value_parser = ["static", "bgp", "gobgp"], default_value = "static")]
    pub router: String,
    /// Go on until everything has happened to the fleet that may, each of its balancers' deaths and partitions included
    /// (docs/lab.md).
    #[arg(long, requires = "fleet")]
    pub every_event: bool,
    /// A flood beside the connections of a fleet, as fast as a thread can send: SYNs, ACKs of no connection, or both.
    #[arg(long, value_name = "KIND", value_parser = ["syn", "ack", "both"], requires = "fleet")]
    pub flood: Option<String>,
    /// The agents of a fleet say nothing of connections whose client's port N divides. What breaks of those is counted
    /// apart.
    #[arg(long, value_name = "N", requires = "fleet", value_parser = clap::value_parser!(u16).range(1..))]
    pub omit_one_in: Option<u16>,
    /// The agents of a fleet say that connections whose client's port N divides have ended as soon as they are open.
    /// What breaks of those is counted apart.
    #[arg(long, value_name = "N", requires = "fleet", value_parser = clap::value_parser!(u16).range(1..))]
    pub end_one_in: Option<u16>,
    /// How the nodes are wired: l2, inline, routed, nat, fullnat, tiers, fleet, vlan or bond-MODE (docs/lab.md). Without
    /// it, as the method and the way of forwarding need it.
    #[arg(long)]
    pub topology: Option<weir_lab::topology::Topology>,
    /// How packets reach the backends. With a tunnel they are behind a router, with nat behind the balancer.
    #[arg(long, value_parser = ["l2", "ipip", "gue", "fou", "gre", "nat", "fullnat"], default_value = "l2")]
    pub forward: String,
    /// The link between the router and the backends takes packets of so many bytes only, both ways; with --forward ipip,
    /// gue, fou, gre or fullnat, or --topology dual.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(i64::from(weir_lab::LEAST_MTU)..i64::from(weir_lab::USUAL_MTU)))]
    pub link_mtu: Option<u32>,
    /// What is larger is lost at that link without a word, as behind a filter of ICMP. Long connections stand still then,
    /// and are counted apart.
    #[arg(long, requires = "link_mtu")]
    pub link_silent: bool,
    /// The largest segments that SYNs to a service may ask for, and SYN+ACKs that pass the balancer
    /// (docs/forwarding.md, Smaller segments).
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(536..=1460))]
    pub mss: Option<u32>,
    /// What decides packets: kernel, af-xdp, dpdk (docs/planes.md) or p4 (docs/p4.md).
    #[arg(long, value_name = "PLANE", value_parser = plane_kind, default_value = "kernel")]
    pub plane: PlaneKind,
    /// Rules of an emulated card lead known connections past the look-up, beside the planes af-xdp and dpdk
    /// (docs/hnlb.md): of a sound card, or of one that does everything wrong that a card may.
    #[arg(long, value_name = "PROFILE", value_parser = ["sound", "hostile"])]
    pub offload: Option<String>,
    /// Whose rules: of a card of memory, or of one that a program plays in the kernel, at the switch's end of the
    /// balancer's interface, which has 16 queues then.
    #[arg(long, value_name = "CARD", requires = "offload", value_parser = ["emulated", "emulated-veth"], default_value = "emulated")]
    pub card: String,
    /// Rules that the card has room for: 2048 if it is not given; a few are soon all in use.
    #[arg(long, value_name = "N", requires = "offload", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub rules: Option<u32>,
    /// Which connections get a rule: all until there is no room, or those that have sent most lately.
    #[arg(long, requires = "offload", value_parser = PossibleValuesParser::new(RuleChoice::ALL.map(|(name, _)| name)), default_value = "all")]
    pub choice: String,
    /// What takes packets out of tunnels on the backends: weir's agent, or the tunnel devices of a kernel that
    /// has them.
    #[arg(long, value_parser = ["agent", "kernel"], default_value = "agent")]
    pub receivers: String,
    /// Who writes the cookies of the method cheetah: the balancer, in the way of the answers, or an agent
    /// on each backend, which answers clients directly.
    #[arg(long, value_parser = ["inline", "backend"])]
    pub answers: Option<String>,
    /// Who gets first packets, of a method that leaves that open (docs/schedulers.md).
    #[arg(long, value_parser = PossibleValuesParser::new(weir_steering::Scheduler::WORDS))]
    pub scheduler: Option<String>,
    /// What the scheduler goes by; told: the lab tells the CPU load of each backend.
    #[arg(long, requires = "scheduler", value_parser = PossibleValuesParser::new(weir_steering::Load::WORDS))]
    pub load: Option<String>,
    /// What the run is like.
    #[command(flatten)]
    pub churn: ChurnOptions,
    /// Plain lines instead of a live picture.
    #[arg(long)]
    pub plain: bool,
    /// Print the report as JSON at the end (and plain lines on the error output before).
    #[arg(long)]
    pub json: bool,
}

/// What is compared.
#[derive(Args)]
pub struct CompareOptions {
    /// The methods, in the order in which they run; all of them if this is not given.
    #[arg(long, value_name = "METHOD,...", value_delimiter = ',', value_parser = method_name())]
    pub methods: Vec<String>,
    /// What is done besides changes of the pool (docs/lab.md): each of these with each method.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = scenario_name(), default_value = "churn")]
    pub scenario: Vec<String>,
    /// What the run is like.
    #[command(flatten)]
    pub churn: ChurnOptions,
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// What a laboratory's run is like, whatever the method.
#[derive(Args)]
pub struct ChurnOptions {
    /// How long the pool is churned, at least: 30s if it is not given. In the scenarios idle and
    /// dead-control, how long connections are silent and the control plane is dead: 5m.
    #[arg(long, value_parser = up_to_a_month)]
    pub duration: Option<Duration>,
    /// Go on until the pool has changed so many times, however slow the machine is.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub changes: u64,
    /// Go on until so many connections have ended.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub total: u64,
    /// Give up after so long if it has not; the run then counts as failed.
    #[arg(long, value_parser = up_to_a_month, default_value = "10m")]
    pub limit: Duration,
    /// Wait so long for answers, and for the balancer to notice a death, instead of 10 s and 1.5 s:
    /// for machines that are busy with other things.
    #[arg(long, value_name = "TIME", value_parser = up_to_a_month)]
    pub patience: Option<Duration>,
    /// Connections that are open at a time: 4000 if it is not given, 2000 beside a flood.
    #[arg(long, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub connections: Option<usize>,
    /// Backends in the lab, 2 to 200; three quarters of them are in the pool at the start, and two at least.
    #[arg(long, default_value_t = 12, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..=weir_lab::topology::MAX_BACKENDS as u64))]
    pub backends: usize,
    /// Seconds between two changes of the pool, on average, 0.05 to 3600 (0.75 if it is not given).
    /// Changes that would blur each other wait longer.
    #[arg(long, value_parser = within(0.05, 3600.0), allow_hyphen_values = true)]
    pub change_every: Option<f64>,
    /// Seed of everything that is drawn; without it one below 2^53, which every reader of JSON holds.
    #[arg(long, env = "WEIR_SEED")]
    pub seed: Option<u64>,
}
