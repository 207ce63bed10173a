//! The address plan and the wiring of the named topologies.
//!
//! There is one so far, `l2`: a bridge, and everybody on it. `docs/lab.md` has the picture.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::error::{Error, Result};
use weir_testbed::NetNs;
use weir_testbed::link;
use weir_testbed::xdp;

/// The virtual IPv4 address.
pub const VIP4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
/// The virtual IPv6 address.
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x100);
/// Port of the web service, TCP.
pub const WEB_PORT: u16 = 80;
/// Port of the echo service, UDP.
pub const ECHO_PORT: u16 = 5353;
/// The balancer's interface, and that of every other node.
pub const INTERFACE: &str = "eth0";

/// Most backends of a lab.
pub const MAX_BACKENDS: usize = 200;
/// Most client namespaces of a lab.
pub const MAX_CLIENTS: usize = 100;
/// Most source addresses per client namespace and family.
pub const MAX_CLIENT_ADDRESSES: usize = 200;

const BALANCER4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const BALANCER6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

/// A named arrangement of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// One bridge; the balancer rewrites MAC addresses and backends answer clients directly.
    #[default]
    L2,
}

impl Topology {
    /// The name a person types.
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
        }
    }
}

impl FromStr for Topology {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "l2" => Ok(Self::L2),
            other => Err(Error::BadSpec(format!("no topology is called `{other}`; there is: l2"))),
        }
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

/// What a node does; the number is its position among its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Switch,
    Balancer,
    Client(usize),
    Backend(usize),
}

impl Role {
    /// Name of the node, unique in its lab.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Switch => "sw".into(),
            Self::Balancer => "lb".into(),
            Self::Client(i) => format!("c{i}"),
            Self::Backend(i) => format!("b{i}"),
        }
    }

    /// A fixed hardware address, so that a person reading a capture knows who it is.
    pub(crate) fn mac(self) -> [u8; 6] {
        let (kind, index) = match self {
            Self::Switch => (0, 0),
            Self::Balancer => (0xff, 0),
            Self::Client(i) => (1, i),
            Self::Backend(i) => (2, i),
        };
        [2, 0x77, 0, 0, kind, byte(index + 1)]
    }

    fn addresses(self, client_addresses: usize) -> Vec<String> {
        match self {
            Self::Switch => Vec::new(),
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

    /// Settings under /proc/sys/net that must be there before the node has an interface.
    fn sysctls(self) -> Vec<(&'static str, &'static str)> {
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
            Self::Balancer => all.extend([
                ("ipv4/ip_forward", "1"),
                ("ipv6/conf/all/forwarding", "1"),
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
            ]),
            Self::Client(_) => all.extend([
                ("ipv4/ip_local_port_range", "1024 65535"),
                ("ipv4/tcp_no_metrics_save", "1"),
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

    /// The `ip -batch` lines that run inside the node once its veth is there.
    fn setup(self, client_addresses: usize) -> String {
        let mut lines = link::up("lo");
        if let Self::Backend(_) = self {
            lines += &link::address(&format!("{VIP4}/32"), "lo");
            lines += &link::address(&format!("{VIP6}/128"), "lo");
        }
        for address in self.addresses(client_addresses) {
            lines += &link::address(&address, INTERFACE);
        }
        lines + &link::up(INTERFACE)
    }
}

/// Settings that a kernel may be built without.
fn is_optional(sysctl: &str) -> bool {
    sysctl.starts_with("bridge/")
}

/// A node of the topology: a role and its namespace.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) role: Role,
    pub(crate) netns: NetNs,
}

/// Wires the nodes of the `l2` topology, whose namespaces exist. The first node is the switch.
pub(crate) fn wire_l2(switch: &Node, others: &[Node], client_addresses: usize) -> Result<()> {
    for node in std::iter::once(switch).chain(others) {
        node.netns.enter(|| set_sysctls(node.role))??;
    }
    let mut lines = String::from(
        "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set br0 up\n",
    );
    for node in others {
        lines += &cable(node);
    }
    switch.netns.ip(&lines)?;
    for node in others {
        set_up(&switch.netns, node, client_addresses)?;
    }
    Ok(())
}

/// The lines that join a node to the bridge, in the switch's namespace.
fn cable(Node { role, netns }: &Node) -> String {
    let port = role.name();
    let ends = [link::End::new(&port), link::End::new(INTERFACE).mac(role.mac()).inside(netns)];
    link::veth(&ends) + &format!("link set {port} master br0 up\n")
}

fn set_up(switch: &NetNs, Node { role, netns }: &Node, client_addresses: usize) -> Result<()> {
    netns.no_checksum_offload(INTERFACE)?;
    netns.ip(&role.setup(client_addresses))?;
    if *role == Role::Balancer {
        xdp::attach_pass(switch, &role.name())?;
    }
    Ok(())
}

/// Takes a node's interface away and gives it a new one, as a driver that is loaded anew does.
pub(crate) fn replace(switch: &NetNs, node: &Node, client_addresses: usize) -> Result<()> {
    let port = node.role.name();
    switch.ip(&format!("link del {port}\n{}", cable(node)))?;
    set_up(switch, node, client_addresses)
}

/// Runs on a thread inside the namespace: /proc/sys/net is that of the reading thread.
fn set_sysctls(role: Role) -> Result<()> {
    for (name, value) in role.sysctls() {
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
        let mut roles = vec![Role::Balancer];
        roles.extend((0..MAX_CLIENTS).map(Role::Client));
        roles.extend((0..MAX_BACKENDS).map(Role::Backend));
        let (mut seen, mut macs) = (HashSet::new(), HashSet::new());
        for role in roles {
            assert!(macs.insert(role.mac()), "{role:?}");
            for address in role.addresses(MAX_CLIENT_ADDRESSES) {
                assert!(seen.insert(address.clone()), "{role:?} {address}");
            }
        }
    }

    #[test]
    fn the_plan_is_what_the_documentation_says() {
        assert_eq!(backend4(0).to_string(), "10.77.2.1");
        assert_eq!(backend6(11).to_string(), "fd77::2:c");
        assert_eq!(client4(1, 0).to_string(), "10.77.1.2");
        assert_eq!(client6(1, 3).to_string(), "fd77::66:3");
        assert_eq!("l2".parse::<Topology>().unwrap(), Topology::L2);
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
