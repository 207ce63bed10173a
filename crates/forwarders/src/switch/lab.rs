//! Namespaces for nodes and hosts, joined as the topology says.

use super::keys::Family;
use super::traffic::SOURCE_PORT;
use crate::Result;
use crate::error::{Context, ensure};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_fib::{Host, Mac, Network};
use weir_testbed::{Namespaces, NetNs, link};

/// The laboratory. Dropping it removes its namespaces, and with them its links.
pub struct Lab {
    namespaces: Namespaces,
    nodes: usize,
    hosts: usize,
    family: Family,
}

/// The hardware address of a host, out of the same list as those of silent hosts.
pub fn mac(host: usize) -> Mac {
    use weir_fib::FibKey;
    Mac::numbered(0, host as u64)
}

/// The address of a host.
pub fn address(family: Family, host: usize) -> IpAddr {
    let number = host as u16 + 1;
    match family {
        Family::V4 => Ipv4Addr::new(10, 99, (number >> 8) as u8, number as u8).into(),
        Family::V6 => Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, number).into(),
    }
}

/// An end of a link: an AF_XDP socket serves one queue.
fn end(name: &str, netns: &NetNs) -> link::End {
    link::End::new(name).inside(netns).queues(1)
}

/// The interface of a node towards a neighbour.
fn towards(neighbour: usize) -> String {
    format!("l{neighbour}")
}

/// The interface of a node towards a host.
fn port(host: usize) -> String {
    format!("h{host}")
}

fn node_role(node: usize) -> String {
    format!("n{node}")
}

fn host_role(host: usize) -> String {
    format!("h{host}")
}

impl Lab {
    /// Wires the nodes of a network, and each host to its node.
    pub fn create(network: &Network, hosts: &[Host], family: Family) -> Result<Self> {
        let namespaces = Namespaces::new("fib");
        let mut lab = Self { namespaces, nodes: network.nodes(), hosts: hosts.len(), family };
        let nodes = (0..lab.nodes).map(node_role);
        let roles: Vec<String> = nodes.chain((0..lab.hosts).map(host_role)).collect();
        lab.namespaces.add_all(&roles)?;
        for (number, role) in roles.iter().enumerate() {
            let netns = lab.namespaces.named(role);
            // Nobody asks for neighbours; nodes announce nothing either.
            if number < lab.nodes || family == Family::V4 {
                netns.sysctl("ipv6/conf/all/disable_ipv6", "1")?;
            }
            let one_port = format!("{SOURCE_PORT} {SOURCE_PORT}");
            netns.sysctl("ipv4/ip_local_port_range", &one_port)?;
        }
        lab.link_nodes(network)?;
        for (number, host) in hosts.iter().enumerate() {
            lab.link_host(number, usize::from(host.node))?;
            lab.up(number, usize::from(host.node))?;
        }
        Ok(lab)
    }

    /// What the hosts talk by.
    pub fn family(&self) -> Family {
        self.family
    }

    pub fn node(&self, node: usize) -> NetNs {
        self.namespaces.named(&node_role(node))
    }

    pub fn host(&self, host: usize) -> NetNs {
        self.namespaces.named(&host_role(host))
    }

    fn link_nodes(&self, network: &Network) -> Result<()> {
        let neighbours = |node: usize| {
            network.topology().links(node).iter().map(|&(other, _)| usize::from(other))
        };
        let mut lines = String::new();
        for node in 0..self.nodes {
            for other in neighbours(node).filter(|&other| node < other) {
                lines += &link::veth(&[
                    end(&towards(other), &self.node(node)),
                    end(&towards(node), &self.node(other)),
                ]);
            }
        }
        link::ip(&lines)?;
        for node in 0..self.nodes {
            let up: String = neighbours(node).map(|other| link::up(&towards(other))).collect();
            self.node(node).ip(&up)?;
        }
        Ok(())
    }

    fn link_host(&self, host: usize, node: usize) -> Result<()> {
        let own = self.host(host);
        link::ip(&link::veth(&[
            end("eth0", &own).mac(mac(host).octets()),
            end(&port(host), &self.node(node)),
        ]))?;
        own.no_checksum_offload("eth0")?;
        let address = |host| address(self.family, host);
        let prefix = match self.family {
            Family::V4 => 16,
            Family::V6 => 64,
        };
        let mut lines = link::address(&format!("{}/{prefix}", address(host)), "eth0");
        lines += &link::up("eth0");
        for other in (0..self.hosts).filter(|&other| other != host) {
            lines += &link::neighbour(address(other), mac(other).octets(), "eth0");
        }
        Ok(own.ip(&lines)?)
    }

    /// Switches a node's interface towards a host on.
    pub fn up(&self, host: usize, node: usize) -> Result<()> {
        Ok(self.node(node).ip(&link::up(&port(host)))?)
    }

    /// Switches a node's interface towards a host off, as when the plug is pulled.
    pub fn down(&self, host: usize, node: usize) -> Result<()> {
        Ok(self.node(node).ip(&link::down(&port(host)))?)
    }

    /// Carries the interface, which is off, from one node to another; its number there.
    pub fn carry(&self, host: usize, from: usize, to: usize) -> Result<u32> {
        let (port, there) = (port(host), self.node(to));
        self.node(from).ip(&format!("link set {port} netns {}\n", there.name()))?;
        self.interface(to, &port)
    }

    /// The interfaces of a node by port, of those that are there.
    pub fn wires(&self, network: &Network, node: usize, hosts: &[Host]) -> Result<Vec<(u16, u32)>> {
        let mut wires = Vec::new();
        for (at, &(other, _)) in network.topology().links(node).iter().enumerate() {
            wires.push((at as u16, self.interface(node, &towards(other.into()))?));
        }
        let here = hosts.iter().enumerate().filter(|(_, host)| usize::from(host.node) == node);
        for (number, &host) in here {
            wires.push((network.port(node, host), self.interface(node, &port(number))?));
        }
        Ok(wires)
    }

    fn interface(&self, node: usize, name: &str) -> Result<u32> {
        let inside = std::ffi::CString::new(name).context("the name of an interface")?;
        // SAFETY: the name is a string that ends with 0 and outlives the call.
        let index = self.node(node).enter(|| unsafe { libc::if_nametoindex(inside.as_ptr()) })?;
        ensure!(index != 0, "no interface {name} in {}", self.node(node).name());
        Ok(index)
    }
}
