//! `vlan` and `bond-MODE`: a balancer whose ways to backends are VLANs of its interface, or a bond.
//!
//! Both need devices that not every kernel has; `make kernel-test` runs them in a guest whose kernel has.

use super::{
    BALANCER4, BALANCER6, BRIDGE, Cable, INTERFACE, ROUTER4, ROUTER6, Role, backend4, backend6,
    client4, client6,
};
use weir_testbed::link;

/// The balancer's interface in [`Bond`] topologies.
pub const BOND: &str = "bond0";

/// The kind of a bond: those of its seven modes in which Linux runs XDP programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bond {
    /// LACP, IEEE 802.3ad; the switch has a bond of the same mode.
    Lacp,
    /// One interface at a time, into a switch that knows of no bond.
    ActiveBackup,
    /// By a hash of addresses and ports; the switch has a bond of the same mode.
    Xor,
    /// Frame by frame; the switch has a bond of the same mode.
    RoundRobin,
}

impl Bond {
    /// Every mode of a bond that frames of an XDP program can leave by.
    pub const ALL: [Self; 4] = [Self::Lacp, Self::ActiveBackup, Self::Xor, Self::RoundRobin];

    /// The mode, as `ip` names it.
    pub fn mode(self) -> &'static str {
        match self {
            Self::Lacp => "802.3ad",
            Self::ActiveBackup => "active-backup",
            Self::Xor => "balance-xor",
            Self::RoundRobin => "balance-rr",
        }
    }

    /// The name of the topology.
    pub fn topology(self) -> &'static str {
        match self {
            Self::Lacp => "bond-802.3ad",
            Self::ActiveBackup => "bond-active-backup",
            Self::Xor => "bond-balance-xor",
            Self::RoundRobin => "bond-balance-rr",
        }
    }

    /// The line that makes one end of it.
    fn line(self, name: &str) -> String {
        let more = match self {
            Self::Lacp => " lacp_rate fast xmit_hash_policy layer3+4",
            Self::Xor => " xmit_hash_policy layer3+4",
            Self::ActiveBackup | Self::RoundRobin => "",
        };
        format!("link add {name} type bond mode {} miimon 50{more}\n", self.mode())
    }

    /// What the ports of the balancer are joined to, in the switch's namespace.
    fn master(self) -> &'static str {
        if self == Self::ActiveBackup { BRIDGE } else { SWITCH_END }
    }

    /// The lines that make the switch's end of it, before its ports are there.
    pub(super) fn at_switch(self) -> String {
        match self {
            Self::ActiveBackup => String::new(),
            _ => format!("{}link set {SWITCH_END} master {BRIDGE} up\n", self.line(SWITCH_END)),
        }
    }

    pub(super) fn cables(self, mac: [u8; 6]) -> Vec<Cable> {
        let one = |number: u8| {
            let mut mac = mac;
            mac[5] += number;
            let interface = if number == 0 { INTERFACE } else { "eth1" };
            Cable { port: format!("lb{number}"), bridge: self.master(), interface, mac }
        };
        vec![one(0), one(1)]
    }

    /// The lines that make the balancer's end of it.
    pub(super) fn at_balancer(self, mac: [u8; 6]) -> String {
        let mac = link::mac_text(mac);
        format!(
            "{}link set {BOND} address {mac}\nlink set {INTERFACE} master {BOND}\n\
             link set eth1 master {BOND}\n{}",
            self.line(BOND),
            link::up(BOND)
        )
    }
}

/// The switch's end of a bond that has one.
const SWITCH_END: &str = "lb";

/// The VLAN that every second client is in.
const CLIENTS_VLAN: u16 = 5;

/// How a node of `vlan` is joined to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In no VLAN.
    Untagged,
    /// At a port of this VLAN, 802.1Q; the node knows nothing of it.
    Port(u16),
    /// By a VLAN interface of its own, 802.1ad, over the bridge that knows nothing of it.
    Own(u16),
}

impl Way {
    fn of(role: Role) -> Self {
        match role {
            Role::Client(index) if index % 2 == 1 => Self::Port(CLIENTS_VLAN),
            Role::Backend(index) => match index % 4 {
                0 => Self::Port(2),
                1 => Self::Port(3),
                2 => Self::Own(4),
                _ => Self::Untagged,
            },
            _ => Self::Untagged,
        }
    }

    /// The balancer's interface that leads there.
    fn interface(self) -> &'static str {
        match self {
            Self::Untagged => INTERFACE,
            Self::Port(2) => "eth0.2",
            Self::Port(3) => "eth0.3",
            Self::Port(_) => "eth0.5",
            Self::Own(_) => "eth0.4",
        }
    }
}

/// Every VLAN: its number, the balancer's interface for it, and the protocol of its tag.
const VLANS: [(u16, &str, &str); 4] = [
    (2, "eth0.2", "802.1Q"),
    (3, "eth0.3", "802.1Q"),
    (4, "eth0.4", "802.1ad"),
    (CLIENTS_VLAN, "eth0.5", "802.1Q"),
];

/// The bridge of a node of `vlan`.
pub(super) fn bridge(role: Role) -> &'static str {
    match Way::of(role) {
        Way::Port(2) => "br2",
        Way::Port(3) => "br3",
        Way::Port(_) => "br5",
        Way::Own(_) | Way::Untagged => BRIDGE,
    }
}

/// The further bridges of the switch, one for each VLAN that it knows.
pub(super) const BRIDGES: [&str; 3] = ["br2", "br3", "br5"];

/// The lines that make the trunk of the balancer's port, in the switch's namespace.
pub(super) fn at_switch(port: &str) -> String {
    let known = VLANS.iter().filter(|(_, _, protocol)| *protocol == "802.1Q");
    known
        .map(|(id, ..)| {
            format!(
                "link add link {port} name {port}.{id} type vlan id {id}\n\
                 link set {port}.{id} master br{id} up\n"
            )
        })
        .collect()
}

/// The interface of a node of `vlan` that has its addresses.
pub(super) fn interface(role: Role) -> &'static str {
    match (role, Way::of(role)) {
        (Role::Backend(_), Way::Own(_)) => "eth0.4",
        _ => INTERFACE,
    }
}

/// The lines that make the VLAN interfaces of a node.
pub(super) fn interfaces(role: Role) -> String {
    let wanted = |name: &str| role == Role::Balancer || interface(role) == name;
    let mut lines = link::up(INTERFACE);
    for (id, name, protocol) in VLANS.into_iter().filter(|(_, name, _)| wanted(name)) {
        lines += &format!(
            "link add link {INTERFACE} name {name} type vlan protocol {protocol} id {id}\n"
        );
        lines += &link::up(name);
    }
    lines
}

/// The lines by which the balancer of `vlan` finds everybody: it has the same addresses in each VLAN, and a
/// route for each node there.
pub(super) fn balancer(clients: usize, backends: usize) -> String {
    let mut lines = String::new();
    for (_, name, _) in VLANS.into_iter().chain([(0, INTERFACE, "")]) {
        for address in [format!("{ROUTER4}/32"), format!("{ROUTER6}/128")] {
            lines += &link::address(&address, name);
        }
    }
    let mut route = |role: Role, to: &[String]| {
        let interface = Way::of(role).interface();
        for to in to.iter().filter(|_| interface != INTERFACE) {
            lines += &format!("route add {to} dev {interface}\n");
        }
    };
    for index in 0..backends {
        let to = [format!("{}/32", backend4(index)), format!("{}/128", backend6(index))];
        route(Role::Backend(index), &to);
    }
    for index in 0..clients {
        let [_, _, third, _] = client4(index, 1).octets();
        let [.., seventh, _] = client6(index, 1).segments();
        let to = [
            format!("{}/32", client4(index, 0)),
            format!("{}/128", client6(index, 0)),
            format!("10.77.{third}.0/24"),
            format!("fd77::{seventh:x}:0/112"),
        ];
        route(Role::Client(index), &to);
    }
    // Clients in a VLAN have a route to the service by these.
    for address in [format!("{BALANCER4}/32"), format!("{BALANCER6}/128")] {
        lines += &link::address(&address, "eth0.5");
    }
    lines
}
