//! The address plan and the wiring of the named topologies.
//!
//! `l2` is a bridge, and everybody on it. In `inline` clients and backends have a bridge each, with the
//! balancer between them; so in `nat`, whose backends know nothing of the service. In `routed` there is a
//! router between them, and the balancer is on the clients'; so in `fullnat`, whose backends know nothing of the
//! service, and nothing of the balancer. In `dual` there is that router, too, but only backends' answers pass it: the
//! balancer has an interface on each bridge. In `tiers` there are several balancers on the one bridge; so in `fleet`,
//! with a router that spreads clients' flows over them. In `vlan` the
//! balancer's interface is a trunk, in `bond-MODE` it is a bond. `docs/lab.md` has the pictures.

mod receive;
mod trunk;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::narrow::Link;
use weir_testbed::NetNs;
use weir_testbed::link;
use weir_testbed::xdp;

pub use receive::Receivers;
pub use trunk::{BOND, Bond};

/// The virtual IPv4 address.
pub const VIP4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
/// The virtual IPv6 address.
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x100);
/// Port of the web service, TCP.
pub const WEB_PORT: u16 = 80;
/// Port of the echo service, UDP.
pub const ECHO_PORT: u16 = 5353;
/// Port of the service of QUIC.
pub const QUIC_PORT: u16 = 4433;
/// Port of the web service at backends of the topologies `nat` and `fullnat`.
pub const NAT_WEB_PORT: u16 = 8080;
/// Port of the echo service there.
pub const NAT_ECHO_PORT: u16 = 9953;
/// The balancer's interface, and that of every other node.
pub const INTERFACE: &str = "eth0";
/// The balancer's interface to the backends, where they have one of their own.
pub const BACKENDS_INTERFACE: &str = "eth1";

/// Balancers in front, in `tiers`.
pub const FRONTS: usize = 2;
/// Most balancers of a `fleet`.
pub const MAX_FLEET: usize = 8;
/// Stateful balancers there, one of which is not used at first.
pub const STATEFUL: usize = 4;

/// Most backends of a lab.
pub const MAX_BACKENDS: usize = 200;
/// Most client namespaces of a lab.
pub const MAX_CLIENTS: usize = 100;
/// Most source addresses per client namespace and family.
pub const MAX_CLIENT_ADDRESSES: usize = 200;

/// The balancer's own address among clients and backends.
pub const BALANCER4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// That of IPv6.
pub const BALANCER6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// The router of `routed`, where the clients are.
pub(crate) const GATEWAY4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// Where the store of a `fleet` is, on its router.
pub const STORE4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 90);
/// The backends' router: the balancer in `inline` and `nat`, the router in `routed`.
const ROUTER4: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 254);
const ROUTER6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 2, 0xfffe);
/// The balancer among the backends of `dual`.
const SECOND4: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 253);
const SECOND6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 2, 0xfffd);

/// A named arrangement of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// One bridge; the balancer rewrites MAC addresses and backends answer clients directly.
    #[default]
    L2,
    /// Two bridges with the balancer between them: it is the backends' router, and packets of both
    /// directions pass it.
    Inline,
    /// The same with backends that have not the service's addresses, and listen on other ports.
    Nat,
    /// Two bridges with a router between them, which is the default route of backends that know nothing of the
    /// service: packets come to them from an address of the balancer's.
    FullNat,
    /// Two bridges with a router between them: backends are in another subnet than the balancer, take
    /// packets out of tunnels, and answer clients through the router.
    Routed,
    /// Two bridges, with the balancer on both and a router beside it: packets come to the balancer by one interface
    /// and leave it by the other, and backends answer clients through the router.
    Dual,
    /// One bridge with two tiers of balancers: stateless ones that the clients' routes lead to, and
    /// stateful ones behind. Backends answer clients directly.
    Tiers,
    /// One bridge with several balancers of one fleet, and a router that spreads the flows of clients over them
    /// by addresses and ports. Backends answer clients directly.
    Fleet,
    /// One interface of the balancer's for everybody, who are in different VLANs, of both protocols, and in
    /// none. The balancer is the backends' router, as in `inline`.
    Vlan,
    /// As `l2`, with a balancer that has a bond of two interfaces.
    Bond(Bond),
}

impl Topology {
    /// Every topology that the lab can build, with each kind of bond.
    pub fn all() -> impl Iterator<Item = Self> {
        let plain = [
            Self::L2,
            Self::Inline,
            Self::Nat,
            Self::FullNat,
            Self::Routed,
            Self::Dual,
            Self::Tiers,
            Self::Fleet,
            Self::Vlan,
        ];
        plain.into_iter().chain(Bond::ALL.map(Self::Bond))
    }

    /// The name a person types.
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::Inline => "inline",
            Self::Nat => "nat",
            Self::FullNat => "fullnat",
            Self::Routed => "routed",
            Self::Dual => "dual",
            Self::Tiers => "tiers",
            Self::Fleet => "fleet",
            Self::Vlan => "vlan",
            Self::Bond(bond) => bond.topology(),
        }
    }

    /// The balancer's interfaces that weir takes frames from.
    pub fn interfaces(self) -> &'static [&'static str] {
        match self {
            Self::L2
            | Self::FullNat
            | Self::Routed
            | Self::Dual
            | Self::Tiers
            | Self::Fleet
            | Self::Vlan => &[INTERFACE],
            Self::Bond(_) => &[BOND],
            Self::Inline | Self::Nat => &[INTERFACE, BACKENDS_INTERFACE],
        }
    }

    /// Whether backends have not the service's address.
    pub fn is_nat(self) -> bool {
        matches!(self, Self::Nat | Self::FullNat)
    }

    /// The port at which backends listen for the web service.
    pub fn web_port(self) -> u16 {
        if self.is_nat() { NAT_WEB_PORT } else { WEB_PORT }
    }

    /// The port at which backends listen for the echo service.
    pub fn echo_port(self) -> u16 {
        if self.is_nat() { NAT_ECHO_PORT } else { ECHO_PORT }
    }
}

impl FromStr for Topology {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::all().find(|topology| topology.name() == name).ok_or_else(|| {
            let all: Vec<&str> = Self::all().map(Self::name).collect();
            let all = all.join(", ");
            Error::BadSpec(format!("no topology is called `{name}`; there are: {all}"))
        })
    }
}

/// IPv4 address of a backend.
pub fn backend4(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 2, byte(index + 1))
}

/// IPv6 address of a backend.
pub fn backend6(index: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 2, index as u16 + 1)
}

/// IPv4 address of a balancer in front, in `tiers`, or of a `fleet`; the first one is the balancer of other topologies.
pub fn front4(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, byte(index + 2))
}

/// IPv6 address of a balancer in front.
pub fn front6(index: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, index as u16 + 2)
}

/// IPv4 address of a stateful balancer, in `tiers`.
pub fn stateful4(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 3, byte(index + 1))
}

/// IPv6 address of a stateful balancer.
pub fn stateful6(index: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 3, index as u16 + 1)
}

/// An IPv4 source address of a client; number 0 is 10.77.1.N, the others are in 10.77.(100+N).
pub fn client4(client: usize, number: usize) -> Ipv4Addr {
    match number {
        0 => Ipv4Addr::new(10, 77, 1, byte(client + 1)),
        _ => Ipv4Addr::new(10, 77, byte(client + 101), byte(number)),
    }
}

/// An IPv6 source address of a client; number 0 is fd77::1:N, the others are fd77::(100+N):number.
pub fn client6(client: usize, number: usize) -> Ipv6Addr {
    let (group, host) = match number {
        0 => (1, client + 1),
        _ => (client + 101, number),
    };
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, group as u16, host as u16)
}

/// The limits above keep every index below 255.
fn byte(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}

/// What the nodes of a lab are wired by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) topology: Topology,
    /// Source addresses of each client and family.
    pub(crate) client_addresses: usize,
    /// Whether backends are hosts like any other: whoever wants packets to reach them makes them ready.
    pub(crate) bare: bool,
    /// What takes packets out of tunnels, on backends that are not bare.
    pub(crate) receivers: Receivers,
    pub(crate) clients: usize,
    pub(crate) backends: usize,
    /// Whether the balancer's interfaces are taps, and the ends of its cables have names of their own.
    pub(crate) taps: bool,
    /// Queues of the balancers' and the clients' cables, if they are said.
    pub(crate) queues: Option<u16>,
    /// Whether the balancer's interfaces are ports of a P4 switch.
    pub(crate) switch: bool,
    /// The link between the router and the backends, if it takes less than others.
    pub(crate) link: Option<Link>,
}

/// One interface of a node, and the port of the bridge that it is joined to.
struct Cable {
    port: String,
    bridge: &'static str,
    interface: &'static str,
    mac: [u8; 6],
}

impl Cable {
    /// The cable's end at a node whose interface is a tap: what a driver in user space has.
    fn end(&self) -> String {
        device_of(self.interface)
    }
}

/// The end of the cable of an interface that is a tap (`LabSpec::taps`).
pub fn device_of(interface: &str) -> String {
    format!("{interface}-cable")
}

/// The bridge that everybody is on, and that of the backends where they have one of their own.
const BRIDGE: &str = "br0";
const BACKENDS_BRIDGE: &str = "br1";

/// What a node does; the number is its position among its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Switch,
    Balancer,
    /// Another one beside it, in `tiers` and `fleet`; counted from 1.
    Front(usize),
    /// Behind those.
    Stateful(usize),
    /// Between the balancer and the backends, where there is one.
    Router,
    Client(usize),
    Backend(usize),
}

impl Role {
    /// Name of the node, unique in its lab.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Switch => "sw".into(),
            Self::Balancer => "lb".into(),
            Self::Front(i) => format!("lb{i}"),
            Self::Stateful(i) => format!("s{i}"),
            Self::Router => "rt".into(),
            Self::Client(i) => format!("c{i}"),
            Self::Backend(i) => format!("b{i}"),
        }
    }

    /// A fixed hardware address, so that a person reading a capture knows who it is.
    pub(crate) fn mac(self) -> [u8; 6] {
        let (kind, index) = match self {
            Self::Switch => (0, 0),
            Self::Balancer => (0xff, 0),
            Self::Front(i) => (0xfd, i),
            Self::Stateful(i) => (3, i),
            Self::Router => (0xfe, 0),
            Self::Client(i) => (1, i),
            Self::Backend(i) => (2, i),
        };
        [2, 0x77, 0, 0, kind, byte(index + 1)]
    }

    fn cables(self, topology: Topology) -> Vec<Cable> {
        if let (Topology::Bond(bond), Self::Balancer) = (topology, self) {
            return bond.cables(self.mac());
        }
        let own = Cable {
            port: self.name(),
            bridge: match (topology, self) {
                (Topology::Vlan, role) => trunk::bridge(role),
                (
                    Topology::L2 | Topology::Tiers | Topology::Fleet | Topology::Bond(_),
                    Self::Backend(_),
                ) => BRIDGE,
                (_, Self::Backend(_)) => BACKENDS_BRIDGE,
                _ => BRIDGE,
            },
            interface: INTERFACE,
            mac: self.mac(),
        };
        let between: &[Self] = match topology {
            Topology::L2
            | Topology::Tiers
            | Topology::Fleet
            | Topology::Vlan
            | Topology::Bond(_) => &[],
            Topology::Inline | Topology::Nat => &[Self::Balancer],
            Topology::Routed | Topology::FullNat => &[Self::Router],
            Topology::Dual => &[Self::Balancer, Self::Router],
        };
        if !between.contains(&self) {
            return vec![own];
        }
        let mut mac = own.mac;
        mac[5] += 1;
        let second = Cable {
            port: format!("{}1", own.port),
            bridge: BACKENDS_BRIDGE,
            interface: BACKENDS_INTERFACE,
            mac,
        };
        vec![own, second]
    }

    /// Its addresses, each with the interface that has it.
    fn addresses(self, plan: Plan) -> Vec<(String, &'static str)> {
        let mut all = self.own_addresses(plan);
        if plan.switch && self == Self::Balancer {
            // Its stack would answer what the switch forwards.
            let vips = [format!("{VIP4}/32"), format!("{VIP6}/128")];
            all.retain(|(address, _)| !vips.contains(address));
        }
        all
    }

    fn own_addresses(self, plan: Plan) -> Vec<(String, &'static str)> {
        let router = [format!("{ROUTER4}/24"), format!("{ROUTER6}/112")];
        let (mine, second) = match (plan.topology, self) {
            // The VIP is nobody's address: clients have a route to it.
            (Topology::Fleet, Self::Router) => {
                let own = [format!("{GATEWAY4}/16"), format!("{GATEWAY6}/64")];
                (own.into_iter().chain([format!("{STORE4}/32")]).collect(), Vec::new())
            }
            (
                Topology::Tiers | Topology::Fleet | Topology::Vlan | Topology::FullNat,
                Self::Balancer,
            ) => (vec![format!("{BALANCER4}/16"), format!("{BALANCER6}/64")], Vec::new()),
            (Topology::Inline | Topology::Nat, Self::Balancer) => {
                (vec![format!("{BALANCER4}/16"), format!("{BALANCER6}/64")], router.into())
            }
            (Topology::Dual, Self::Balancer) => (
                self.addresses_l2(plan.client_addresses),
                vec![format!("{SECOND4}/24"), format!("{SECOND6}/112")],
            ),
            (Topology::Routed | Topology::FullNat | Topology::Dual, Self::Router) => {
                (vec![format!("{GATEWAY4}/16"), format!("{GATEWAY6}/64")], router.into())
            }
            (topology, Self::Backend(i))
                if !matches!(
                    topology,
                    Topology::L2 | Topology::Tiers | Topology::Fleet | Topology::Bond(_)
                ) =>
            {
                (vec![format!("{}/24", backend4(i)), format!("{}/112", backend6(i))], Vec::new())
            }
            _ => (self.addresses_l2(plan.client_addresses), Vec::new()),
        };
        let of = |interface| move |address| (address, interface);
        let own = match (plan.topology, self) {
            (Topology::Bond(_), Self::Balancer) => BOND,
            (Topology::Vlan, role) => trunk::interface(role),
            _ => INTERFACE,
        };
        let first = mine.into_iter().map(of(own));
        first.chain(second.into_iter().map(of(BACKENDS_INTERFACE))).collect()
    }

    fn addresses_l2(self, client_addresses: usize) -> Vec<String> {
        match self {
            Self::Switch | Self::Router => Vec::new(),
            Self::Front(i) => vec![format!("{}/16", front4(i)), format!("{}/64", front6(i))],
            Self::Stateful(i) => {
                vec![format!("{}/16", stateful4(i)), format!("{}/64", stateful6(i))]
            }
            // The VIP is on eth0 and not on lo: Linux answers a neighbour solicitation only for
            // an address of the interface that it came in on.
            Self::Balancer => vec![
                format!("{BALANCER4}/16"),
                format!("{BALANCER6}/64"),
                format!("{VIP4}/32"),
                format!("{VIP6}/128"),
            ],
            Self::Client(i) => (0..client_addresses)
                .flat_map(|n| [format!("{}/16", client4(i, n)), format!("{}/64", client6(i, n))])
                .collect(),
            Self::Backend(i) => vec![format!("{}/16", backend4(i)), format!("{}/64", backend6(i))],
        }
    }

    /// Its routes: a destination and a router for each, with what else there is to say.
    fn routes(self, plan: Plan) -> Vec<(String, IpAddr, &'static str)> {
        match (plan.topology, self) {
            // Nobody else has the VIPs.
            (_, Self::Client(_)) if plan.switch => vec![
                (format!("{VIP4}/32"), BALANCER4.into(), ""),
                (format!("{VIP6}/128"), BALANCER6.into(), ""),
            ],
            (
                Topology::Inline | Topology::Nat | Topology::FullNat | Topology::Vlan,
                Self::Client(_),
            ) => vec![
                (format!("{VIP4}/32"), BALANCER4.into(), ""),
                (format!("{VIP6}/128"), BALANCER6.into(), ""),
            ],
            (Topology::Fleet, Self::Client(_)) => vec![
                (format!("{VIP4}/32"), GATEWAY4.into(), ""),
                (format!("{VIP6}/128"), GATEWAY6.into(), ""),
            ],
            (Topology::Tiers, Self::Client(i)) => vec![
                (format!("{VIP4}/32"), front4(i % FRONTS).into(), ""),
                (format!("{VIP6}/128"), front6(i % FRONTS).into(), ""),
            ],
            (
                Topology::Inline
                | Topology::Nat
                | Topology::FullNat
                | Topology::Dual
                | Topology::Vlan,
                Self::Backend(_),
            ) => {
                vec![("0.0.0.0/0".into(), ROUTER4.into(), ""), ("::/0".into(), ROUTER6.into(), "")]
            }
            (Topology::Routed | Topology::FullNat, Self::Balancer) => vec![
                ("10.77.2.0/24".into(), GATEWAY4.into(), ""),
                ("fd77::2:0/112".into(), GATEWAY6.into(), ""),
            ],
            // Clients leave room for a tunnel's headers in what they send.
            (Topology::Routed, Self::Backend(_)) => vec![
                ("0.0.0.0/0".into(), ROUTER4.into(), " advmss 1380"),
                ("::/0".into(), ROUTER6.into(), " advmss 1380"),
            ],
            _ => Vec::new(),
        }
    }

    /// Settings under /proc/sys/net that must be there before the node has an interface.
    fn sysctls(self, plan: Plan) -> Vec<(&'static str, &'static str)> {
        let mut all = vec![
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/accept_ra", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
        ];
        match self {
            // Bridged packets are not to pass through netfilter.
            Self::Switch => all.extend([
                ("ipv6/conf/default/disable_ipv6", "1"),
                ("bridge/bridge-nf-call-iptables", "0"),
                ("bridge/bridge-nf-call-ip6tables", "0"),
                ("bridge/bridge-nf-call-arptables", "0"),
            ]),
            Self::Balancer if plan.switch => all.extend([
                ("ipv4/ip_forward", "0"),
                ("ipv6/conf/all/forwarding", "0"),
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
            ]),
            Self::Balancer | Self::Front(_) | Self::Stateful(_) | Self::Router => all.extend([
                ("ipv4/ip_forward", "1"),
                ("ipv6/conf/all/forwarding", "1"),
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
                // One with everybody at the same interface tells nobody a shorter way.
                ("ipv4/conf/all/send_redirects", "0"),
                ("ipv4/conf/default/send_redirects", "0"),
                // Flows are spread by addresses and ports, where there are several ways.
                ("ipv4/fib_multipath_hash_policy", "1"),
                ("ipv6/fib_multipath_hash_policy", "1"),
            ]),
            Self::Client(_) => all.extend([
                ("ipv4/conf/all/accept_redirects", "0"),
                ("ipv4/conf/default/accept_redirects", "0"),
                ("ipv6/conf/all/accept_redirects", "0"),
                ("ipv6/conf/default/accept_redirects", "0"),
                ("ipv4/ip_local_port_range", "1024 65535"),
                ("ipv4/tcp_no_metrics_save", "1"),
            ]),
            // As distributions have it: a strict filter of sources, and answers for all addresses.
            Self::Backend(_) if plan.bare => all.extend([
                ("ipv4/conf/all/rp_filter", "1"),
                ("ipv4/conf/default/rp_filter", "1"),
                // The echo server listens at the VIP before the host has it.
                ("ipv4/ip_nonlocal_bind", "1"),
                ("ipv6/ip_nonlocal_bind", "1"),
                ("ipv4/tcp_no_metrics_save", "1"),
                ("ipv4/tcp_max_syn_backlog", "8192"),
                ("core/somaxconn", "8192"),
            ]),
            // A backend has the VIP and must not say so.
            Self::Backend(_) => all.extend([
                ("ipv4/conf/all/arp_ignore", "1"),
                ("ipv4/conf/all/arp_announce", "2"),
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
                ("ipv4/tcp_no_metrics_save", "1"),
                ("ipv4/tcp_max_syn_backlog", "8192"),
                ("core/somaxconn", "8192"),
            ]),
        }
        all
    }

    fn has_taps(self, plan: Plan) -> bool {
        plan.taps && self == Self::Balancer
    }

    /// The `ip -batch` lines that run inside the node once its veths are there.
    fn setup(self, plan: Plan) -> String {
        let mut lines = link::up("lo");
        if self.has_taps(plan) {
            for cable in self.cables(plan.topology) {
                lines += &link::tap(cable.interface, cable.mac);
            }
        }
        if let (Self::Backend(_), true) = (self, !plan.topology.is_nat() && !plan.bare) {
            lines += &link::address(&format!("{VIP4}/32"), "lo");
            lines += &link::address(&format!("{VIP6}/128"), "lo");
        }
        match (plan.topology, self) {
            (Topology::Bond(bond), Self::Balancer) => lines += &bond.at_balancer(self.mac()),
            (Topology::Vlan, role) => lines += &trunk::interfaces(role),
            _ => {}
        }
        for (address, interface) in self.addresses(plan) {
            lines += &link::address(&address, interface);
        }
        for cable in self.cables(plan.topology) {
            lines += &link::up(cable.interface);
        }
        if (plan.topology, self) == (Topology::Vlan, Self::Balancer) {
            lines += &trunk::balancer(plan.clients, plan.backends);
        }
        for (to, router, more) in self.routes(plan) {
            let more = if plan.bare { "" } else { more };
            lines += &format!("route add {to} via {router}{more}\n");
        }
        if let (Self::Router, Some(link)) = (self, plan.link.filter(|link| !link.silent)) {
            lines += &link.routes();
        }
        lines
    }
}

/// Settings that a kernel may be built without.
fn is_optional(sysctl: &str) -> bool {
    sysctl.starts_with("bridge/") || sysctl.ends_with("fib_multipath_hash_policy")
}

/// A node of the topology: a role and its namespace.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) role: Role,
    pub(crate) netns: NetNs,
}

/// Wires the nodes of a topology, whose namespaces exist. The first node is the switch.
pub(crate) fn wire(switch: &Node, others: &[Node], plan: Plan) -> Result<()> {
    for node in std::iter::once(switch).chain(others) {
        node.netns.enter(|| set_sysctls(node.role, plan))??;
    }
    let mut lines = String::new();
    let vlans: &[&str] = if plan.topology == Topology::Vlan { &trunk::BRIDGES } else { &[] };
    for bridge in [BRIDGE, BACKENDS_BRIDGE].iter().chain(vlans) {
        lines += &format!(
            "link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             link set {bridge} up\n"
        );
    }
    if let Topology::Bond(bond) = plan.topology {
        lines += &bond.at_switch();
    }
    for node in others {
        lines += &join(node, plan);
    }
    switch.netns.ip(&lines)?;
    for node in others {
        set_up(&switch.netns, node, plan)?;
    }
    Ok(())
}

/// The lines that join a node to its bridges, in the switch's namespace.
fn join(Node { role, netns }: &Node, plan: Plan) -> String {
    let topology = plan.topology;
    let cables = role.cables(topology).into_iter();
    let taps = role.has_taps(plan);
    // A frame that left a veth device by its second queue is taken, at the next, for one that came by the first; one
    // that left by the first goes by the hash of its flow, which has chosen the first before. So clients have one
    // queue: their flows are spread over those of the balancers.
    let queues =
        plan.queues.filter(|_| matches!(role, Role::Balancer | Role::Front(_) | Role::Stateful(_)));
    // The other end of the router's cable takes less than the router sends, and says nothing.
    let silent = plan.link.filter(|link| link.silent && *role == Role::Router);
    let line = |cable: Cable| {
        let end = match taps {
            // The tap has the address.
            true => link::End::new(cable.end()),
            false => link::End::new(cable.interface).mac(cable.mac),
        };
        let Cable { port, bridge, .. } = cable;
        let ends = [link::End::new(&port), end.inside(netns)].map(|end| match queues {
            Some(queues) => end.queues(queues),
            None => end,
        });
        let narrow = silent.filter(|_| bridge == BACKENDS_BRIDGE);
        let mtu =
            narrow.map_or(String::new(), |link| format!("link set {port} mtu {}\n", link.mtu));
        // A bond takes none that is up.
        link::veth(&ends) + &format!("link set {port} master {bridge}\n") + &mtu + &link::up(&port)
    };
    let lines: String = cables.map(line).collect();
    match (topology, role) {
        (Topology::Vlan, Role::Balancer) => lines + &trunk::at_switch(&role.name()),
        _ => lines,
    }
}

fn set_up(switch: &NetNs, Node { role, netns }: &Node, plan: Plan) -> Result<()> {
    plug_in(switch, &Node { role: *role, netns: netns.clone() }, plan)?;
    netns.ip(&role.setup(plan))?;
    if let (Topology::Routed, Role::Backend(index), false) = (plan.topology, role, plan.bare) {
        plan.receivers.set_up(netns, (backend4(*index), backend6(*index)))?;
    }
    Ok(())
}

/// What the ends of a node's cables need, before they are up.
fn plug_in(switch: &NetNs, Node { role, netns }: &Node, plan: Plan) -> Result<()> {
    let cables = role.cables(plan.topology);
    for cable in &cables {
        if role.has_taps(plan) {
            let end = cable.end();
            netns.no_checksum_offload(&end)?;
            // The host is not to answer there.
            netns.sysctl(&format!("ipv6/conf/{end}/disable_ipv6"), "1")?;
            netns.ip(&format!("link set {end} arp off up\n"))?;
            continue;
        }
        netns.no_checksum_offload(cable.interface)?;
        if (plan.topology, *role) == (Topology::Vlan, Role::Balancer) {
            // Tags are to stand in the frames that the balancer's program gets.
            switch.no_tag_offload(&cable.port)?;
        }
    }
    if matches!(role, Role::Balancer | Role::Front(_) | Role::Stateful(_)) {
        for cable in &cables {
            xdp::attach_pass(switch, &cable.port)?;
        }
    }
    Ok(())
}

/// Takes a node's interfaces away and gives it new ones, as a driver that is loaded anew does.
pub(crate) fn replace(switch: &NetNs, node: &Node, plan: Plan) -> Result<()> {
    let cables = node.role.cables(plan.topology).into_iter();
    let gone: String = cables.map(|cable| format!("link del {}\n", cable.port)).collect();
    switch.ip(&format!("{gone}{}", join(node, plan)))?;
    if node.role.has_taps(plan) {
        // The taps stay.
        return plug_in(switch, node, plan);
    }
    set_up(switch, node, plan)
}

/// Sets the switch's ends of a node's cables up or down.
pub(crate) fn plug(switch: &NetNs, role: Role, topology: Topology, plugged: bool) -> Result<()> {
    let way = if plugged { "up" } else { "down" };
    let cables = role.cables(topology).into_iter();
    let set: String = cables.map(|cable| format!("link set {} {way}\n", cable.port)).collect();
    Ok(switch.ip(&set)?)
}

/// Runs on a thread inside the namespace: /proc/sys/net is that of the reading thread.
fn set_sysctls(role: Role, plan: Plan) -> Result<()> {
    for (name, value) in role.sysctls(plan) {
        match weir_testbed::sysctl(name, value) {
            Err(error) if is_optional(name) => tracing::debug!("{error}"),
            set => set?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;
    use std::net::UdpSocket;
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;
    use crate::{Lab, LabSpec};

    #[test]
    fn no_address_is_given_out_twice() {
        let mut roles = vec![Role::Balancer, Role::Router];
        roles.extend((1..MAX_FLEET).map(Role::Front));
        roles.extend((0..STATEFUL).map(Role::Stateful));
        roles.extend((0..MAX_CLIENTS).map(Role::Client));
        roles.extend((0..MAX_BACKENDS).map(Role::Backend));
        for topology in Topology::all() {
            let (mut seen, mut macs) = (HashSet::new(), HashSet::new());
            let plan = Plan {
                topology,
                client_addresses: MAX_CLIENT_ADDRESSES,
                bare: false,
                receivers: Receivers::Testbed,
                clients: MAX_CLIENTS,
                backends: MAX_BACKENDS,
                taps: false,
                queues: None,
                switch: false,
                link: None,
            };
            for role in &roles {
                for cable in role.cables(topology) {
                    assert!(macs.insert(cable.mac), "{role:?}");
                }
                for (address, _) in role.addresses(plan) {
                    let (address, _) = address.split_once('/').unwrap();
                    assert!(seen.insert(address.to_owned()), "{role:?} {address}");
                }
            }
        }
    }

    #[test]
    fn the_plan_is_what_the_documentation_says() {
        assert_eq!(backend4(0).to_string(), "10.77.2.1");
        assert_eq!(backend6(11).to_string(), "fd77::2:c");
        assert_eq!(client4(1, 0).to_string(), "10.77.1.2");
        assert_eq!(client6(1, 3).to_string(), "fd77::66:3");
        for topology in Topology::all() {
            assert_eq!(topology.name().parse::<Topology>().unwrap(), topology);
        }
        assert!("ring".parse::<Topology>().is_err());
    }

    /// Frames that the bridge port towards the balancer has received.
    fn received(lab: &Lab) -> u64 {
        let counters = lab
            .switch()
            .enter(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap())
            .unwrap();
        let port = counters.lines().find_map(|line| line.trim().strip_prefix("lb:")).unwrap();
        port.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn what_the_balancer_transmits_reaches_the_bridge() {
        let lab = Lab::create(LabSpec { backends: 1, clients: 1, ..LabSpec::default() }).unwrap();
        xdp::attach(lab.balancer(), INTERFACE, xdp::Verdict::Transmit).unwrap();
        let before = received(&lab);
        // The client asks who has an address that nobody has; the balancer sends it back.
        lab.clients()[0]
            .enter(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                let _ = socket.send_to(b"x", "10.77.250.250:9");
            })
            .unwrap();
        for _ in 0..100 {
            if received(&lab) > before {
                return;
            }
            sleep(Duration::from_millis(20));
        }
        panic!("the bridge got nothing back");
    }
}
