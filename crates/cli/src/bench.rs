//! What is asked of benches.

use crate::laboratory::{count, flows, rate, some, some_time, within};
use crate::values::up_to_a_month;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use weir_steering::MethodId;

/// What `weir bench plane` measures, and how long.
#[derive(Args)]
pub struct PlaneOptions {
    /// Steering methods: concury, residue, jet, tracked.
    #[arg(long, value_delimiter = ',', default_value = "concury,residue,jet,tracked", value_parser = bench_method)]
    pub methods: Vec<MethodId>,
    /// How frames get to backends.
    #[arg(long, value_delimiter = ',', default_value = "l2,ipip", value_parser = ["l2", "ipip"])]
    pub forward: Vec<String>,
    /// Numbers of flows, each of which has a frame; 1K is 1,000 and 1M is 1,000,000.
    #[arg(long, value_delimiter = ',', value_parser = flows, default_value = "1K,1M")]
    pub flows: Vec<u32>,
    /// More flows for residue, whose table does not grow with them.
    #[arg(long, value_delimiter = ',', value_parser = flows)]
    pub residue_flows: Vec<u32>,
    /// Numbers of cores, each with a plane and a port of its own; the table is shared.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub cores: Vec<usize>,
    /// Bytes of a frame, 64 to 1514.
    #[arg(long, default_value_t = 64)]
    pub bytes: usize,
    /// Packets of each core in a measurement.
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub packets: u64,
    /// Rounds; each measures everything once, in turn.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Also 16M flows for residue, and two cores where there are two.
    #[arg(long)]
    pub full: bool,
    /// Makes the order of frames the same.
    #[arg(long, env = "WEIR_SEED", default_value_t = 1)]
    pub seed: u64,
    /// What frames come by: memory; or AF_XDP sockets of a running balancer at veth devices, beside a bare
    /// forwarder at others (concury and residue, l2, one core, the first number of flows); or null ports of
    /// DPDK, beside DPDK's own testpmd where that is installed, if the program is built with the feature dpdk.
    #[arg(long, value_parser = ["memory", "af-xdp", "dpdk"], default_value = "memory")]
    pub ports: String,
    /// Instead of all that: a packet that one of so many rules of an emulated card (HNLB) has led to its
    /// backend's queue, beside one that is steered; l2, one core.
    #[arg(long, value_name = "RULES", value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub rules: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Flows whose frames, and whose table, are beyond every cache.
const MANY_FLOWS: u32 = 16_000_000;

impl PlaneOptions {
    /// As the bench is asked, on a machine with so many cores.
    pub fn request(&self, cores: usize) -> weir_bench::plane::Request {
        use weir_bench::plane::Forward;
        let forward = |name: &String| Forward::ALL.into_iter().find(|way| way.name() == name);
        let mut residue_flows = self.residue_flows.clone();
        if self.full {
            residue_flows.push(MANY_FLOWS);
        }
        weir_bench::plane::Request {
            methods: self.methods.clone(),
            forward: self.forward.iter().filter_map(forward).collect(),
            flows: self.flows.clone(),
            residue_flows,
            cores: match (self.full, cores > 1) {
                (false, _) => self.cores.clone(),
                (true, true) => vec![1, 2],
                (true, false) => vec![1],
            },
            frame_bytes: self.bytes,
            packets: self.packets,
            rounds: self.rounds,
            seed: self.seed,
        }
    }
}

/// A method that the burst plane is measured with.
fn bench_method(text: &str) -> Result<MethodId, String> {
    let method = MethodId::named(text).filter(|method| weir_bench::plane::METHODS.contains(method));
    let known = weir_bench::plane::METHODS.map(MethodId::name).join(", ");
    method.ok_or_else(|| format!("{text}: give some of {known}"))
}

/// What there is to measure.
#[derive(Subcommand)]
pub enum BenchVerb {
    /// Nanoseconds per packet of the XDP program, above a reflector, over a veth pair.
    Xdp {
        /// Numbers of flows to draw from; 1K is 1,000 and 1M is 1,000,000.
        #[arg(long, value_delimiter = ',', value_parser = flows, default_value = "1000,65536,1000000")]
        flows: Vec<u32>,
        /// Packets in each measurement.
        #[arg(long, default_value_t = 4_000_000, value_parser = clap::value_parser!(u32).range(1..))]
        packets: u32,
        /// Rounds; each measures everything once, in turn.
        #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Measure beside a thread on another core that walks a buffer larger than the last-level
        /// cache.
        #[arg(long, value_enum, default_value = "off", default_missing_value = "on", num_args = 0..=1)]
        neighbour: NeighbourName,
        /// Activity marks, of methods whose flows the balancer observes: without them it writes nothing
        /// for a known flow, as where somebody else lists the flows.
        #[arg(long, value_enum, default_value = "on")]
        marks: MarksName,
        /// Tunnels that are measured besides, with concury over IPv4; nat, in both directions; fullnat; and lists
        /// of sources.
        #[arg(long, value_delimiter = ',', value_parser = ["ipip", "gue", "fou", "gre", "nat", "fullnat", "lists"])]
        forward: Vec<String>,
        /// Tunnels over IPv4 that the program of `weir agent` takes packets out of, as a backend does.
        #[arg(long, value_delimiter = ',', value_parser = ["ipip", "gue", "fou", "gre"])]
        decapsulate: Vec<String>,
        /// Measure `weir run` besides, with tables that it made itself, of first packets and of a change
        /// of the pool.
        #[arg(long)]
        product: bool,
        /// Instead of times, BPF instructions on every path through the program, counted by an
        /// interpreter: the same in every run.
        #[arg(long)]
        instructions: bool,
        /// Another build of the program, an object file, whose instructions are counted too.
        #[arg(long, value_name = "FILE", requires = "instructions")]
        beside: Vec<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Milliseconds that concury takes from a pool change to published tables.
    Update {
        /// Numbers of states of the service.
        #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..), default_value = "8192,131072,1000000")]
        states: Vec<u32>,
        /// Rounds; in each, every number of states sees one change of every kind.
        #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Packets per second through the whole pipeline of a burst plane, over ports of memory, beside MAC
    /// addresses swapped (docs/planes.md).
    Plane(PlaneOptions),
    /// Packets per second that each steering method decides, beside the bound of the memory
    /// (docs/bench.md).
    Lookup(LookupOptions),
    /// Memory, lookups, updates and construction of the compact maps, beside the bound of the
    /// memory (docs/maps.md).
    Maps(MapsOptions),
    /// What a connection of TCP carries through a running balancer, beside nftables or the kernel's tunnel
    /// devices, in turn (docs/bench.md). Needs iperf3 and nft.
    Throughput {
        /// How packets get to the backend. Of tunnels the kernel must have devices.
        #[arg(long, value_delimiter = ',', default_value = "nat,fullnat", value_parser = ["nat", "fullnat", "ipip", "gre", "fou", "gue"])]
        forward: Vec<String>,
        /// Rounds; each measures both once, in turn.
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Seconds of each measurement, after one that does not count.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
        seconds: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Time and memory of the control plane of a running balancer: start, pool changes until
    /// packets follow, deaths of a host, status, metrics (docs/bench.md).
    Control(ControlOptions),
    /// Health checks that a running balancer makes in a second, how late they are, and what share of a core they
    /// take, seen by the backends (docs/bench.md).
    Checks {
        /// Numbers of backends, each with an address of its own.
        #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=32_000), default_value = "1000")]
        backends: Vec<u32>,
        /// From one check of a backend to the next.
        #[arg(long, value_name = "TIME", value_parser = up_to_a_month, default_value = "100ms")]
        interval: Duration,
        /// Seconds of each measurement.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
        seconds: u32,
        /// Longest wait until each backend is checked.
        #[arg(long, value_name = "TIME", value_parser = up_to_a_month, default_value = "5m")]
        patience: Duration,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// A fleet's change of a pool in simulated time, what agents cost, a replay of theirs at a rate, and a balancer
    /// that begins while connections live (docs/bench.md).
    Fleet(FleetOptions),
}

/// What is measured of fleets.
#[derive(Args, Clone)]
pub struct FleetOptions {
    /// Methods of the service whose pool changes in a simulated fleet: residue, concury.
    #[arg(long, value_delimiter = ',', default_value = "residue,concury", value_parser = bench_method)]
    pub methods: Vec<MethodId>,
    /// Balancers of the fleets that are simulated.
    #[arg(long, value_delimiter = ',', default_value = "3,100")]
    pub balancers: Vec<u32>,
    /// Agents of such a fleet.
    #[arg(long, value_parser = flows, default_value = "10K")]
    pub agents: u32,
    /// Backends of the pool that changes.
    #[arg(long, default_value_t = 64)]
    pub backends: u16,
    /// Connections that every balancer knows there.
    #[arg(long, value_parser = flows, default_value = "100K")]
    pub states: u32,
    /// How long a message is on its way there.
    #[arg(long, value_name = "TIME", value_parser = up_to_a_month, default_value = "1ms")]
    pub link: Duration,
    /// Connections that open in a second in the replay.
    #[arg(long, value_parser = flows, default_value = "100K")]
    pub rate: u32,
    /// Seconds of the replay.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Connections that live when a balancer begins.
    #[arg(long, value_parser = flows, default_value = "1M")]
    pub connections: u32,
    /// Agents that speak to one balancer at once.
    #[arg(long, value_parser = flows, default_value = "1K")]
    pub sessions: u32,
    /// Rounds of the simulation, and of what a report costs.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Longest wait for anything that has to come.
    #[arg(long, value_name = "TIME", value_parser = up_to_a_month, default_value = "2m")]
    pub patience: Duration,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl FleetOptions {
    /// As the bench is asked. `weir`: the program.
    pub fn request(&self, weir: PathBuf) -> weir_bench::fleet::Request {
        weir_bench::fleet::Request {
            weir,
            methods: self.methods.clone(),
            balancers: self.balancers.clone(),
            agents: self.agents,
            backends: self.backends,
            states: self.states,
            link: self.link,
            rate: self.rate,
            seconds: self.seconds,
            connections: self.connections,
            sessions: self.sessions,
            rounds: self.rounds,
            patience: self.patience,
        }
    }
}

/// What is measured of a control plane.
#[derive(Args, Clone)]
pub struct ControlOptions {
    /// Services.
    #[arg(long, value_parser = count, default_value = "32")]
    pub services: usize,
    /// Backends of all services together.
    #[arg(long, value_parser = count, default_value = "160")]
    pub backends: usize,
    /// A row more: one service with 64 backends and so many live flows, with a core that is busy
    /// with their packets.
    #[arg(long, value_parser = count, default_value = "0")]
    pub states: usize,
    /// 1,000 services with 10,000 backends, 10,000 services with 20,000, and one service with a
    /// million flows.
    #[arg(long, conflicts_with_all = ["services", "backends", "states"])]
    pub full: bool,
    /// Without health checks, and so without failover.
    #[arg(long)]
    pub no_checks: bool,
    /// Pool changes of each row.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Deaths of a host of each row.
    #[arg(long, default_value_t = 2)]
    pub failovers: u32,
    /// Readings of all metrics of each row, more than a second apart.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub scrapes: u32,
    /// Longest wait for anything that has to come.
    #[arg(long, value_name = "TIME", value_parser = up_to_a_month, default_value = "5m")]
    pub patience: Duration,
    /// Seed of everything that is drawn.
    #[arg(long, env = "WEIR_SEED", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl ControlOptions {
    /// As the bench is asked. `weir`: the program.
    pub fn request(&self, weir: PathBuf) -> weir_bench::control::Request {
        weir_bench::control::Request {
            weir,
            sizes: self.sizes(),
            rounds: self.rounds,
            failovers: self.failovers,
            scrapes: self.scrapes,
            patience: self.patience,
            seed: self.seed,
        }
    }

    /// The rows that are asked for.
    fn sizes(&self) -> Vec<weir_bench::control::Size> {
        let checks = !self.no_checks;
        let size = |services: usize, backends: usize, states: usize| weir_bench::control::Size {
            services: u32::try_from(services).unwrap_or(u32::MAX),
            backends: u32::try_from(backends).unwrap_or(u32::MAX),
            states: u32::try_from(states).unwrap_or(u32::MAX),
            checks,
        };
        if self.full {
            return vec![size(1_000, 10_000, 0), size(10_000, 20_000, 0), size(1, 64, 1_000_000)];
        }
        let mut sizes = vec![size(self.services, self.backends, 0)];
        if self.states > 0 {
            sizes.push(size(1, 64, self.states));
        }
        sizes
    }
}

/// What is measured of compact maps.
#[derive(Args, Clone)]
pub struct MapsOptions {
    /// Structures, such as othello, ludo, fuse; all if none is given.
    #[arg(long, value_delimiter = ',')]
    pub structures: Vec<String>,
    /// Numbers of keys; 1K is 1,000 and 1M is 1,000,000.
    #[arg(long, value_delimiter = ',', value_parser = count, default_value = "1M")]
    pub keys: Vec<usize>,
    /// Bits of a value.
    #[arg(long, value_delimiter = ',', default_value = "12")]
    pub bits: Vec<u32>,
    /// Measure 1M, 4M and 16M keys with values of 8, 12, 16, 24, 32 and 40 bits.
    #[arg(long, conflicts_with_all = ["keys", "bits"])]
    pub full: bool,
    /// Numbers of threads that look up.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub threads: Vec<usize>,
    /// Look up keys that are not in the maps.
    #[arg(long)]
    pub alien: bool,
    /// Look up key k with probability proportional to k^-SKEW, instead of all alike.
    #[arg(long, value_name = "SKEW", value_parser = within(0.001, 100.0), allow_hyphen_values = true)]
    pub zipf: Option<f64>,
    /// Updates per second beside the readers of a shared view; 0 for none.
    #[arg(long, value_name = "UPDATES_PER_S", value_parser = rate, default_value = "100K")]
    pub updates: f64,
    /// Keys in a burst, at most 4096. One at a time is measured too.
    #[arg(long, default_value_t = 1024)]
    pub batch: usize,
    /// Lookups of each measurement.
    #[arg(long, value_parser = some, default_value = "2M")]
    pub lookups: usize,
    /// Rounds; each measures everything once, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Seed of everything that is drawn.
    #[arg(long, env = "WEIR_SEED", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values.
    #[arg(long)]
    pub csv: bool,
}

impl MapsOptions {
    /// As the bench is asked.
    pub fn request(&self) -> weir_bench::maps::Request {
        let (keys, bits) = match self.full {
            true => (vec![1_000_000, 4_000_000, 16_000_000], vec![8, 12, 16, 24, 32, 40]),
            false => (self.keys.clone(), self.bits.clone()),
        };
        weir_bench::maps::Request {
            structures: self.structures.clone(),
            keys,
            bits,
            threads: self.threads.clone(),
            alien: self.alien,
            zipf: self.zipf,
            updates: self.updates,
            batch: self.batch,
            lookups: self.lookups,
            rounds: self.rounds,
            seed: self.seed,
        }
    }
}

/// What is measured of steering methods.
#[derive(Args)]
pub struct LookupOptions {
    /// Methods, such as concury, concury-fuse, digest; all if none is given.
    #[arg(long, value_delimiter = ',')]
    pub methods: Vec<String>,
    /// Numbers of live flows; 1K is 1,000 and 1M is 1,000,000.
    #[arg(long, value_delimiter = ',', value_parser = count, default_value = "1K,64K,1M,8M")]
    pub states: Vec<usize>,
    /// How packets are drawn from the flows.
    #[arg(long, value_enum, default_value = "lfsr")]
    pub keys: KeysName,
    /// A file of 13-byte tuples to draw packets from; its flows are the states.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["keys", "states"])]
    pub trace: Option<PathBuf>,
    /// With --keys zipf: the exponent of the distribution, 1.0 if it is not given.
    #[arg(long, value_parser = within(0.001, 100.0), allow_hyphen_values = true)]
    pub skew: Option<f64>,
    /// Numbers of threads that decide packets.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub threads: Vec<usize>,
    /// Packets in a burst, at most 4096. One at a time is measured too.
    #[arg(long, default_value_t = 32)]
    pub batch: usize,
    /// Backends in the pool.
    #[arg(long, default_value_t = 100)]
    pub backends: u16,
    /// New flows per second meanwhile; as many end.
    #[arg(long, value_name = "NEW_STATES_PER_S", value_parser = rate, default_value = "0")]
    pub updates: f64,
    /// Time between two changes of the pool meanwhile; 10s if there are updates, else never.
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    pub pool_change_every: Option<Duration>,
    /// Measure beside a thread on another core that walks a buffer larger than the last-level
    /// cache.
    #[arg(long, value_enum, default_value = "off", default_missing_value = "on", num_args = 0..=1)]
    pub neighbour: NeighbourName,
    /// Seconds of each measurement.
    #[arg(long, conflicts_with = "lookups", value_parser = within(0.001, 86_400.0), allow_hyphen_values = true)]
    pub seconds: Option<f64>,
    /// Lookups of each measurement (4M if neither is given and nothing changes meanwhile).
    #[arg(long, value_parser = some)]
    pub lookups: Option<usize>,
    /// Rounds; each measures everything once, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Seed of everything that is drawn.
    #[arg(long, env = "WEIR_SEED", default_value_t = 1)]
    pub seed: u64,
    /// Measure Othello's control structure instead: insertions, exports and lookups per second at
    /// these numbers of states. Of the other options it takes --rounds, --seed and --json.
    #[arg(long, conflicts_with_all = [
        "methods", "keys", "trace", "skew", "threads", "batch", "backends", "updates", "pool_change_every",
        "neighbour", "seconds", "lookups", "csv",
    ])]
    pub control: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values.
    #[arg(long)]
    pub csv: bool,
}

/// Whether flows are marked as active.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum MarksName {
    /// Where that is the default.
    On,
    /// Nowhere.
    Off,
    /// Both, in rows of their own.
    Both,
}

impl From<MarksName> for weir_bench::xdp::Marks {
    fn from(name: MarksName) -> Self {
        match name {
            MarksName::On => Self::On,
            MarksName::Off => Self::Off,
            MarksName::Both => Self::Both,
        }
    }
}

/// What else the machine does while something is measured.
#[derive(Clone, Copy, ValueEnum)]
pub enum NeighbourName {
    /// Nothing.
    Off,
    /// The neighbour is there.
    On,
    /// First without it and then with it, in every round.
    Both,
}

impl From<NeighbourName> for weir_bench::Company {
    fn from(name: NeighbourName) -> Self {
        match name {
            NeighbourName::Off => Self::Quiet,
            NeighbourName::On => Self::Neighbour,
            NeighbourName::Both => Self::Both,
        }
    }
}

/// How packets are drawn.
#[derive(Clone, Copy, ValueEnum)]
pub enum KeysName {
    /// Every flow in turn, in an order without locality.
    Lfsr,
    /// Flow k with probability proportional to k^-skew.
    Zipf,
    /// Flows of heavy-tailed length, about a thousand at a time.
    Trace,
}
