//! The configuration file: as written, validated, resolved.
//!
//! A file passes through three types, so that each can say what it guarantees:
//!
//! | stage | type | guarantee |
//! |---|---|---|
//! | as written | `written::File` | the text is TOML, with known fields of the right kind |
//! | validated | `validate::File` | every value that was given is in range, and values agree with each other |
//! | resolved | [`Config`] | every default is filled in; plain Rust types; nothing left to decide |
//!
//! Validation collects every problem that it can find, not only the first, and each [`Problem`]
//! names the file, the line, the field, what is wrong and what would be right. The fields and
//! their defaults are described in `docs/configuration.md`.

#![forbid(unsafe_code)]

mod agents;
mod announce;
mod api;
mod check;
mod cookies;
mod discover;
mod error;
mod forward;
mod include;
mod lists;
pub(crate) mod maintenance;
mod new_flows;
mod place;
mod quic;
mod resolve;
mod schema;
mod tables;
mod validate;
mod vips;
mod written;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::de::Error;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_fleet::StoreConfig;
use weir_plane::forward::Segments;
use weir_steering::cheetah;
use weir_steering::{Build, Image, MethodId, Misfit, ServiceConfig, Settings};

pub use agents::{Agents, States};
pub use announce::Announce;
pub use api::{Api, ApiTls, Client, Identity, Role, Web};
pub use check::{
    AllDown, Check, Codes, DeadConnections, Dns, Exchange, Grpc, Http, Record, Script, Spoken, Tls,
    Via, WeightIn, What,
};
pub use cookies::CookieKeys;
pub use discover::{Discover, Records};
pub(crate) use error::plain;
pub use error::{ConfigError, Problem};
pub use forward::{Answers, Forward, Mss, NatSources, TunnelSource, TunnelSources};
pub(crate) use include::followed_by;
pub use include::in_one;
pub use lists::{KeptLists, Lists};
pub use maintenance::{Window, WindowError};
pub use new_flows::{FlowRate, NewFlows};
pub use place::{Source, Table, place_of};
pub use quic::{Key, Quic, QuicConfig};
pub(crate) use resolve::usual_idle_timeout;
pub use schema::schema;
pub(crate) use tables::Bounds;
pub(crate) use validate::is_interface_name;
pub(crate) use vips::places;
pub use vips::{Ports, Vip, VipError};

/// Whether an instance may be called so: 1 to 32 of `a-z 0-9 -`.
pub fn is_instance_name(name: &str) -> bool {
    validate::is_instance_name(name)
}

/// Whether a service or a backend may be called so: 1 to 64 letters, digits and `- _ .`.
pub fn is_name(name: &str) -> bool {
    validate::is_name(name)
}

/// Why an address can be no backend's; none if it can.
pub fn no_backend(address: IpAddr) -> Option<&'static str> {
    validate::no_backend(address)
}

/// The largest weight of a backend.
pub const MAX_WEIGHT: u16 = u16::MAX;

/// A whole configuration with every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// What is set once for the whole balancer.
    pub balancer: Balancer,
    /// AF_XDP sockets, for a plane over them.
    #[serde(default)]
    pub af_xdp: AfXdp,
    /// Ports of DPDK, for a plane over them.
    #[serde(default)]
    pub dpdk: Dpdk,
    /// Rules of a card, beside a plane in user space; none if they are not wanted.
    #[serde(default)]
    pub offload: Option<Offload>,
    /// What to tell of rules that the file wants, and that the plane which the start was told of has no use for; none:
    /// all that it wants are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_aside: Option<String>,
    /// The switch, for a plane on one.
    #[serde(default)]
    pub p4: P4,
    /// Sizes of the data plane.
    pub limits: Limits,
    /// Who may ask for what, beside root at the socket.
    #[serde(default)]
    pub api: Api,
    /// How agents on backends reach this balancer; none: they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<Agents>,
    /// What is announced to routers; none: nothing.
    #[serde(default)]
    pub announce: Option<Announce>,
    /// The store that several balancers share; none: this one has its file alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreConfig>,
    /// The services, in the order of the file.
    pub services: Vec<Service>,
}

/// What is set once for the whole balancer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Balancer {
    /// Name of this instance, `[a-z0-9-]{1,32}`. Its BPF objects are pinned in a directory of this
    /// name, so two instances on one host need two names.
    pub name: String,
    /// Interfaces whose packets are balanced; at least one, no duplicates.
    pub interfaces: Vec<String>,
    /// How the XDP program is attached.
    pub mode: XdpMode,
    /// What decides packets.
    #[serde(default)]
    pub plane: PlaneKind,
    /// Directory of the control socket and of the state that survives a restart.
    pub run_dir: PathBuf,
    /// Directory of the history and of the audit log, which outlive the machine there; see
    /// [`state_dir`](Self::state_dir).
    #[serde(default)]
    pub state_dir: Option<PathBuf>,
    /// Where an XDP program is pinned that sees what is none of weir's; none: the kernel gets that.
    #[serde(default)]
    pub next_program: Option<PathBuf>,
    /// How often interfaces and next hops are looked up beside the kernel's events, of which some may be
    /// missed; 1 s to 1 h.
    pub look_every: Duration,
    /// ICMP messages that each processor sends in a second at most, beyond a few at once; 0: none.
    #[serde(default = "resolve::icmp_per_second")]
    pub icmp_per_second: u32,
    /// Resets, of connections whose backend is down, that each processor sends in a second at most, beyond a
    /// few at once; 0: none.
    #[serde(default = "resolve::resets_per_second")]
    pub resets_per_second: u32,
    /// Whether echo requests to the services' addresses are answered; if not they are the kernel's.
    #[serde(default = "resolve::echo")]
    pub echo: bool,
    /// Where metrics are served; none: nowhere.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// Where a page for browsers is served; none: nowhere.
    #[serde(default)]
    pub web: Option<Web>,
    /// Per cent of all health checks that must fail at once for none of them to count; 0: never.
    #[serde(default)]
    pub hold_checks_at: u32,
    /// One TCP connection in so many is followed, a power of two; 0: none.
    #[serde(default)]
    pub follow_flows: u32,
    /// Whether frames are counted by the interface that they came by.
    #[serde(default)]
    pub count_interfaces: bool,
    /// Where tunnels over IPv4 begin; none: at the address that this host would send from.
    #[serde(default)]
    pub tunnel_source: Option<TunnelSource>,
    /// The same over IPv6.
    #[serde(default)]
    pub tunnel_source6: Option<Ipv6Addr>,
    /// Where packets under full NAT come from.
    #[serde(default)]
    pub nat: NatSources,
}

impl Balancer {
    /// The control socket, `<run_dir>/weir.sock`.
    pub fn socket_path(&self) -> PathBuf {
        self.run_dir.join(SOCKET)
    }

    /// Where the history and the audit log are: as the file says, else as whoever starts weir does (`WEIR_STATE_DIR`,
    /// which its unit sets), else in the run directory.
    pub fn state_dir(&self) -> PathBuf {
        let given = || std::env::var_os("WEIR_STATE_DIR").map(PathBuf::from);
        let given = self.state_dir.clone().or_else(|| given().filter(|dir| dir.is_absolute()));
        given.unwrap_or_else(|| self.run_dir.clone())
    }

    /// Where tunnels begin.
    pub fn tunnel_sources(&self) -> TunnelSources {
        TunnelSources { v4: self.tunnel_source, v6: self.tunnel_source6 }
    }
}

/// How the XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// Native where the driver has it, generic (with a warning) elsewhere.
    Auto,
    /// In the driver; refuse to start where the driver cannot.
    Native,
    /// In the network stack: works with every driver, and is several times slower.
    Generic,
}

/// What decides packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlaneKind {
    /// The program in the kernel, all of them.
    #[default]
    Kernel,
    /// A process with AF_XDP sockets those in the middle of connections, in bursts; the program the others,
    /// and all of them while there is no such process.
    AfXdp,
    /// A process with ports of DPDK those in the middle of connections, in bursts; the program, at taps, the
    /// others. While there is no such process nothing comes in.
    Dpdk,
    /// The program p4/weir.p4 on a switch, all of them; nothing of it is in the kernel.
    P4,
}

/// The switch whose ports the balancer's interfaces are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct P4 {
    /// Where its Thrift server is, on the loopback.
    pub thrift: SocketAddr,
}

impl Default for P4 {
    fn default() -> Self {
        Self { thrift: SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)) }
    }
}

/// The plane over AF_XDP sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AfXdp {
    /// Its threads, to which the queues of interfaces are dealt out.
    pub threads: u16,
}

impl Default for AfXdp {
    fn default() -> Self {
        Self { threads: 1 }
    }
}

/// Ports of DPDK, and what DPDK is started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dpdk {
    /// DPDK's device arguments or addresses of PCI: one for each interface of the balancer, which is the tap that
    /// stands for it.
    pub devices: Vec<String>,
    /// Whether its memory is in huge pages.
    pub huge_pages: bool,
    /// Its memory in megabytes.
    pub memory_mb: u32,
    /// How long the process sleeps at most when nothing comes; 0: it does not.
    pub longest_nap: Duration,
    /// Its threads, each with a queue of every device.
    pub threads: u16,
}

impl Default for Dpdk {
    fn default() -> Self {
        let longest_nap = Duration::from_micros(200);
        Self { devices: Vec::new(), huge_pages: true, memory_mb: 256, longest_nap, threads: 1 }
    }
}

/// Whose rules lead known connections to their backends' queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleCard {
    /// A card of memory, between ports and plane: it shows that nothing breaks, and no gain.
    Emulated,
    /// The card of the balancer's interface, by the kernel's ntuple interface; over AF_XDP.
    Ntuple,
    /// DPDK's devices, by `rte_flow`.
    RteFlow,
    /// A card that a program plays at the far end of the balancer's interface, a veth device; over AF_XDP.
    #[serde(rename = "emulated-veth")]
    EmulatedVeth,
}

impl RuleCard {
    /// All, as the configuration names them.
    pub const ALL: [(&str, Self); 4] = [
        ("emulated", Self::Emulated),
        ("ntuple", Self::Ntuple),
        ("rte_flow", Self::RteFlow),
        ("emulated-veth", Self::EmulatedVeth),
    ];

    /// As the configuration names it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, card)| *card == self).map_or("", |(name, _)| name)
    }

    /// Whether it is emulated, and so behaves as it is told.
    pub fn is_emulated(self) -> bool {
        matches!(self, Self::Emulated | Self::EmulatedVeth)
    }
}

/// Which connections get a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleChoice {
    /// All, until there is no place.
    All,
    /// Those that have sent most lately, by a sketch.
    #[default]
    Heavy,
    /// The same by a sample of packets.
    Sampled,
}

impl RuleChoice {
    /// All, as the configuration names them.
    pub const ALL: [(&str, Self); 3] =
        [("all", Self::All), ("heavy", Self::Heavy), ("sampled", Self::Sampled)];

    /// As the configuration names it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, choice)| *choice == self).map_or("", |(name, _)| name)
    }
}

/// Rules of a card that lead known connections past the look-up (docs/hnlb.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offload {
    /// Whose rules they are.
    pub card: RuleCard,
    /// Rules at a time, at most.
    pub rules: u32,
    /// Receive queues: one for what no rule matches, and one for each backend that rules lead to.
    pub queues: u16,
    /// Which connections get one.
    pub choice: RuleChoice,
    /// A connection takes the place of another if it has sent so many times as much lately.
    pub hysteresis: u32,
    /// Whether the emulated card does everything wrong that a card may.
    pub hostile: bool,
}

/// Connections of services beside rules are over after so long at the least: what rules lead is looked at more often.
pub const LEAST_IDLE_BESIDE_RULES: Duration = Duration::from_secs(60);

/// Whether this program has DPDK; no library can know.
static HAS_DPDK: AtomicBool = AtomicBool::new(false);

/// Says that this program has DPDK's ports: configurations may ask for them.
pub fn offer_dpdk() {
    HAS_DPDK.store(true, Ordering::Relaxed);
}

fn has_dpdk() -> bool {
    HAS_DPDK.load(Ordering::Relaxed)
}

impl PlaneKind {
    /// All, as the configuration names them.
    pub const ALL: [(&str, Self); 4] =
        [("kernel", Self::Kernel), ("af-xdp", Self::AfXdp), ("dpdk", Self::Dpdk), ("p4", Self::P4)];

    /// As the configuration names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::AfXdp => "af-xdp",
            Self::Dpdk => "dpdk",
            Self::P4 => "p4",
        }
    }

    /// Whether a process in user space decides packets beside the program in the kernel.
    pub fn is_beside(self) -> bool {
        matches!(self, Self::AfXdp | Self::Dpdk)
    }
}

/// Sizes of the data plane. A changed size counts from the next reload or start: memory of that size
/// takes the place of what is in use, without missing a packet.
///
/// The ranges are in `docs/configuration.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Services that the data plane has room for, 1 to 65,536.
    pub services: u32,
    /// Backends of all services together, 1 to 32,767.
    pub backends: u32,
    /// Flows that start during an update; the data plane remembers them until it is committed.
    /// First packets of further ones are dropped (`PendingFull`).
    pub pending_flows: u32,
    /// Flows that the data plane remembers until the control plane has their report.
    pub unreported_flows: u32,
    /// Entries in the connection table of services with the methods `tracked` and `jet`.
    pub tracked_flows: u32,
    /// Connections whose timestamps the balancer restores, of services with the methods `cheetah` and
    /// `cheetah-stateful`. The memory is taken only if there is such a service.
    pub answered_flows: u32,
    /// Partitions of 32,768 connections by index, of all services with `cheetah-stateful`. The memory is
    /// taken only if there is such a service.
    pub slot_partitions: u32,
    /// UDP flows that the data plane has seen lately: a flow in this table is not reported again.
    pub udp_flows: u32,
    /// Bytes of the ring over which the kernel reports flows; a power of two.
    pub event_ring_bytes: u32,
    /// Bytes of the memory that holds the published tables. A table is made beside the one that it
    /// replaces, so that of the service with the largest one must fit twice.
    pub table_bytes: u32,
    /// Connection states that the control plane keeps for each service. Further flows are steered
    /// and not remembered.
    pub states_per_service: u32,
    /// Connections of each service of which only the SYN was seen, beside those. When there is one
    /// more the oldest is forgotten, of the source prefix that has most.
    pub half_open_flows: u32,
    /// Connection states that the control plane keeps of one source prefix, an IPv4 /24 or an IPv6 /56, for
    /// each service, half-open ones apart; 0: as many as there are. Further flows are steered and not
    /// remembered.
    pub states_per_prefix: u32,
    /// Prefixes of sources in the lists of all services. The memory is taken only if a service has such
    /// a list.
    #[serde(default = "lists::default_prefixes")]
    pub list_prefixes: u32,
    /// Connections of all services with `forward = "fullnat"`. The memory, twice 64 bytes for each, is taken
    /// only if there is such a service.
    #[serde(default = "resolve::nat_connections")]
    pub nat_connections: u32,
}

impl Limits {
    /// What `states_per_prefix` is if the file does not say it: a quarter of what the service may have.
    pub(crate) fn default_of_prefix(states_per_service: u32) -> u32 {
        (states_per_service / 4).max(1)
    }

    /// What `half_open_flows` is if the file does not say it: three seconds of a million SYNs each.
    pub(crate) fn default_half_open(states_per_service: u32) -> u32 {
        states_per_service.min(3 << 20)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            services: 256,
            backends: 4096,
            pending_flows: 65_536,
            unreported_flows: 262_144,
            tracked_flows: 262_144,
            answered_flows: 262_144,
            slot_partitions: 32,
            udp_flows: 65_536,
            event_ring_bytes: 16 << 20,
            table_bytes: 160 << 20,
            states_per_service: 4 << 20,
            half_open_flows: Self::default_half_open(4 << 20),
            states_per_prefix: Self::default_of_prefix(4 << 20),
            list_prefixes: lists::default_prefixes(),
            nat_connections: resolve::nat_connections(),
        }
    }
}

/// One service: an address that clients see and the backends behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Name, unique in the file; commands and `weir status` use it.
    pub name: String,
    /// The address that clients connect to; of several, or of a prefix, the first.
    pub vip: IpAddr,
    /// All addresses and prefixes that clients connect to, if it is not that one alone; else none. See
    /// [`Service::addresses`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vips: Vec<Vip>,
    /// Transport protocol: TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// Destination port; `None` is a range, or every port that no other service of the same address and
    /// protocol claims.
    pub port: Option<u16>,
    /// Destination ports, if they are a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Ports>,
    /// The steering method with its parameter.
    pub method: Method,
    /// Whether flows or whole clients stay on one backend.
    pub affinity: Affinity,
    /// Whether later fragments are led by their source, whether or not their first one was here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fragments_by_source: bool,
    /// Who says what connections there are.
    #[serde(default)]
    pub states: States,
    /// What cookies are hidden under, if it is not for the balancer to draw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie_key: Option<Key>,
    /// What else they are hidden under, if that may change under connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie_keys: Option<CookieKeys>,
    /// A connection that was silent for so long is forgotten.
    #[serde(with = "human")]
    pub idle_timeout: Duration,
    /// How packets reach the backends.
    #[serde(default)]
    pub forward: Forward,
    /// How large segments SYNs may ask for; none: as large as they like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mss: Option<Mss>,
    /// The sources that packets are taken from; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lists: Option<Lists>,
    /// How many new flows are taken; none: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_flows: Option<NewFlows>,
    /// Backends that must be up for the service's address to be announced; 0: it is in any case.
    #[serde(default = "resolve::need")]
    pub need: u32,
    /// What leads packets by their QUIC ids, before the method is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quic: Option<Quic>,
    /// The health check; `None` if it is turned off, and then every backend counts as up.
    pub check: Option<Check>,
    /// The checks of backends that have one of their own, by their names; `None`: no check.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub backend_checks: BTreeMap<String, Option<Check>>,
    /// When backends are in maintenance, of those that are, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub maintenance: BTreeMap<String, Vec<Window>>,
    /// The backends, in the order of the file; at least one, if none is looked up.
    pub backends: Vec<Backend>,
    /// Where others are looked up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discover: Vec<Discover>,
}

impl Service {
    /// How large segments SYNs to its backends may ask for.
    pub fn segments(&self) -> Option<Segments> {
        self.mss.map(Into::into)
    }

    /// Whether its answers pass the balancer, which writes into them.
    pub fn answers_pass(&self) -> bool {
        let method = &self.method;
        method.id().needs().timestamps && !cheetah::answered_by_backends(method.settings())
    }

    /// Whether the balancer writes cookies into its answers: what is not of TCP has none.
    pub fn is_stamped_here(&self) -> bool {
        self.answers_pass() && self.protocol == Protocol::Tcp
    }

    /// Whether its backends write cookies into the timestamps of their answers, which go past the balancer.
    pub fn is_stamped_by_backends(&self) -> bool {
        let method = &self.method;
        method.id().needs().timestamps && cheetah::answered_by_backends(method.settings())
    }
}

impl Service {
    /// Whether answers come to this host: the kernel forwards them, or the data plane as it does.
    pub fn answers_come(&self) -> bool {
        self.answers_pass() || self.forward.is_nat()
    }

    /// Whose answers those of a backend are, where packets are translated.
    pub fn answers_of(&self, backend: &Backend) -> Option<Answers> {
        let service = (self.vip, self.port);
        let answers = Answers::of(service, self.protocol, backend.address, backend.port);
        (self.forward == Forward::Nat).then_some(answers)
    }

    /// The check of a backend: its own, or the service's.
    pub fn check_of(&self, backend: &Backend) -> Option<&Check> {
        let own = self.backend_checks.get(&backend.name);
        own.map_or(self.check.as_ref(), Option::as_ref)
    }

    /// The port at which a backend is checked.
    pub fn check_port(&self, check: &Check, backend: &Backend) -> u16 {
        backend.port.filter(|_| check.backends_port).unwrap_or(check.port)
    }
}

/// Transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP, IP protocol 6.
    Tcp,
    /// UDP, IP protocol 17.
    Udp,
    /// SCTP, IP protocol 132.
    Sctp,
}

impl Protocol {
    /// The name used in the file, `tcp`, `udp` or `sctp`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// The protocol's number in the IP header (IANA), 6, 17 or 132.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

/// A steering method with its settings: one of those whose tables can be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method(Settings);

impl Method {
    /// With these settings; `None` if tables of the method cannot be published.
    pub fn new(settings: Settings) -> Option<Self> {
        settings.method().info().builder.map(|_| Self(settings))
    }

    /// Which method of the registry it is.
    pub fn id(&self) -> MethodId {
        self.0.method()
    }

    /// The name used in the file.
    pub fn name(&self) -> &'static str {
        self.id().name()
    }

    /// What the method is configured with, defaults filled in.
    pub fn settings(&self) -> &Settings {
        &self.0
    }

    /// Whether so many backends fit.
    ///
    /// # Errors
    /// [`Misfit`], with what to do about it.
    pub fn fits(&self, backends: usize) -> Result<(), Misfit> {
        (self.id().info().fits)(&self.0, backends)
    }

    /// The build face of a service.
    pub fn builder(&self, config: &ServiceConfig, published: Option<Arc<Image>>) -> Box<dyn Build> {
        match self.id().info().builder {
            Some(make) => make(config, published),
            None => unreachable!("looked at when it was made"),
        }
    }
}

/// As JSON has it: the name, and each setting by its own.
impl Serialize for Method {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("name", self.name())?;
        for (setting, value) in self.0.iter() {
            match setting.word(value) {
                Some(word) => map.serialize_entry(setting.name, word)?,
                None => map.serialize_entry(setting.name, &value)?,
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Method {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Written {
            name: String,
            #[serde(flatten)]
            settings: BTreeMap<String, Value>,
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Value {
            Number(u64),
            Word(String),
        }
        let Written { name, settings } = Written::deserialize(from)?;
        let unknown = || D::Error::custom(format!("there is no method {name}"));
        let mut all = Settings::of(MethodId::named(&name).ok_or_else(unknown)?);
        for (name, value) in settings {
            match value {
                Value::Number(value) => all.set(&name, value),
                Value::Word(word) => all.set_word(&name, &word),
            }
            .map_err(D::Error::custom)?;
        }
        Self::new(all).ok_or_else(unknown)
    }
}

/// What stays together on one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Affinity {
    /// Each flow (addresses and ports) on its own.
    Flow,
    /// Every flow of a client address.
    Client,
}

/// One backend of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backend {
    /// Name, unique in the service.
    pub name: String,
    /// Address, unique in the service; of the family of the service's, if there is no tunnel.
    pub address: IpAddr,
    /// The port that its packets get, where they are translated; none: the one that they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Share of the new connections; 0 gets none and keeps those that it has.
    pub weight: u16,
    /// Gets no new connection, and keeps those that it has until they end.
    pub drain: bool,
    /// Gets new connections only while no other is up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backup: bool,
    /// Under full NAT, which of the balancer's sources its packets get; none: all of its family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nat_sources: Vec<IpAddr>,
}

impl Backend {
    /// Whether the configuration lets new connections come here.
    pub fn takes_new(&self) -> bool {
        self.weight > 0 && !self.drain
    }
}

impl Config {
    /// Reads and resolves a file.
    ///
    /// # Errors
    /// [`ConfigError::Read`] if the file cannot be read, [`ConfigError::Invalid`] with every
    /// problem found if it cannot be used.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::load_with(path, None)
    }

    /// As [`load`](Self::load), for a start that has said what decides packets, whatever the file says.
    ///
    /// # Errors
    /// As there.
    pub fn load_with(
        path: impl AsRef<Path>,
        plane: Option<PlaneKind>,
    ) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        Self::parse_with(&Self::text(path)?, &path.display().to_string(), plane)
    }

    /// The text of a file, with those that it includes: one text, which means the same by itself.
    ///
    /// # Errors
    /// [`ConfigError::Read`] if it cannot be read, [`ConfigError::Invalid`] if it is no text, or if a file
    /// that it includes cannot be read or has something else than services in it.
    pub fn text(path: &Path) -> Result<String, ConfigError> {
        include::whole(path, text_in(path)?)
    }

    /// Resolves the text of a file for the kernel plane; `file_name` is what problems call it.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every problem found.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, ConfigError> {
        Self::parse_with(text, file_name, None)
    }

    /// As [`parse`](Self::parse), with what decides packets as [`load_with`](Self::load_with) has it.
    ///
    /// # Errors
    /// As there.
    pub fn parse_with(
        text: &str,
        file_name: &str,
        plane: Option<PlaneKind>,
    ) -> Result<Self, ConfigError> {
        Self::parse_in(beside(file_name), text, file_name, plane)
    }

    /// As [`parse_with`](Self::parse_with), of a text that is to be in a file of this folder, whatever problems call
    /// it: from there go the paths in it.
    ///
    /// # Errors
    /// As there.
    pub fn parse_in(
        folder: &Path,
        text: &str,
        file_name: &str,
        plane: Option<PlaneKind>,
    ) -> Result<Self, ConfigError> {
        let methods: Vec<MethodId> = weir_dataplane::methods().collect();
        Self::parse_whole((folder, None), text, file_name, &methods, plane)
    }

    /// As [`parse_with`](Self::parse_with), of a text that was in force: lists of sources that stand in files of their
    /// own are as they were then, if they were kept.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn parse_kept(
        text: &str,
        file_name: &str,
        plane: Option<PlaneKind>,
        lists: Option<&KeptLists>,
    ) -> Result<Self, ConfigError> {
        let methods: Vec<MethodId> = weir_dataplane::methods().collect();
        Self::parse_whole((beside(file_name), lists), text, file_name, &methods, plane)
    }

    /// As [`parse`](Self::parse), for a data plane that runs these methods.
    ///
    /// # Errors
    /// As there.
    pub fn parse_for(
        text: &str,
        file_name: &str,
        methods: &[MethodId],
    ) -> Result<Self, ConfigError> {
        Self::parse_whole((beside(file_name), None), text, file_name, methods, None)
    }

    fn parse_whole(
        (folder, lists): (&Path, Option<&KeptLists>),
        text: &str,
        file_name: &str,
        methods: &[MethodId],
        plane: Option<PlaneKind>,
    ) -> Result<Self, ConfigError> {
        let mut problems =
            error::Problems::new(text, file_name).in_folder(folder).with_lists(lists);
        let resolved = written::parse(text, &mut problems)
            .and_then(|file| validate::validate(file, methods, plane, &mut problems))
            .map(resolve::resolve);
        match resolved {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(ConfigError::Invalid { problems: problems.finish() }),
        }
    }

    /// The service of this name; `None` if the file has none.
    pub fn service(&self, name: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.name == name)
    }
}

/// The folder of a file that is called so; of a text that is in none, where the process is.
fn beside(file_name: &str) -> &Path {
    Path::new(file_name).parent().unwrap_or(Path::new(""))
}

/// The control socket's name in the run directory.
const SOCKET: &str = "weir.sock";
/// Bytes of a socket's path, at most (`sun_path`, without the zero at its end).
const SOCKET_NAME: usize = 107;

/// Bytes of a configuration file, at most.
pub const MOST_TEXT: usize = 16 << 20;

/// The text of one file. A line of it that looks as if the text of another file stood behind it is a comment, whoever
/// has written it: of what was read here it is known where it stands.
fn text_in(path: &Path) -> Result<String, ConfigError> {
    let bytes =
        bytes_of(path).map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
    Ok(in_one(text_of(bytes, &path.display().to_string())?))
}

/// What was read, as text; `name` is what problems call where it came from.
///
/// # Errors
/// [`ConfigError::Invalid`] if it is not UTF-8.
pub fn text_of(bytes: Vec<u8>, name: &str) -> Result<String, ConfigError> {
    String::from_utf8(bytes).map_err(|error| {
        let problem = Problem::of_no_text(&error, name);
        ConfigError::Invalid { problems: vec![problem] }
    })
}

/// What a file holds. Whoever reads one for an instance does so beside its checks and packets: what has no end,
/// or waits for somebody to write, is refused.
fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    // A pipe that nobody writes to would keep whoever opens it waiting.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    if about.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !about.is_file() {
        return refuse("it is no regular file".into());
    }
    let mut bytes = Vec::new();
    file.take(MOST_TEXT as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MOST_TEXT {
        return refuse(format!("it is larger than {} MiB", MOST_TEXT >> 20));
    }
    Ok(bytes)
}

/// Durations as people write them (`2h 15m`), in JSON too.
mod human {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*value))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_duration(&text).map_err(D::Error::custom)
    }
}
