//! Namespaces for nodes and hosts, joined as the topology says.

use super::keys::Family;
use super::traffic::SOURCE_PORT;
use anyhow::{Context, bail};
use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};
use weir_fib::{Host, Mac, Network};
use weir_lab::NetNs;

/// What names of namespaces begin with; a process number and a dash follow.
const PREFIX: &str = "weirfib";

/// The laboratory. Dropping it removes its namespaces, and with them its links.
pub struct Lab {
    prefix: String,
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

/// Queues of an interface: an AF_XDP socket serves one.
const QUEUES: &str = "numrxqueues 1 numtxqueues 1";

/// The interface of a node towards a neighbour.
fn link(neighbour: usize) -> String {
    format!("l{neighbour}")
}

/// The interface of a node towards a host.
fn port(host: usize) -> String {
    format!("h{host}")
}

impl Lab {
    /// Wires the nodes of a network, and each host to its node.
    pub fn create(network: &Network, hosts: &[Host], family: Family) -> anyhow::Result<Self> {
        sweep();
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let lab = Self { prefix, nodes: network.nodes(), hosts: hosts.len(), family };
        let names: String = lab.names().iter().map(|name| format!("netns add {name}\n")).collect();
        ip(&[], &names)?;
        for (number, name) in lab.names().into_iter().enumerate() {
            // Nobody asks for neighbours; nodes announce nothing either.
            if number < lab.nodes || family == Family::V4 {
                let quiet = || fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
                NetNs::named(&name).enter(quiet)?.context("switching off IPv6")?;
            }
            let range = format!("{SOURCE_PORT} {SOURCE_PORT}");
            let one_port = || fs::write("/proc/sys/net/ipv4/ip_local_port_range", range);
            NetNs::named(name).enter(one_port)?.context("choosing the source port of streams")?;
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

    fn names(&self) -> Vec<String> {
        let nodes = (0..self.nodes).map(|node| self.node_name(node));
        nodes.chain((0..self.hosts).map(|host| format!("{}h{host}", self.prefix))).collect()
    }

    fn node_name(&self, node: usize) -> String {
        format!("{}n{node}", self.prefix)
    }

    pub fn node(&self, node: usize) -> NetNs {
        NetNs::named(self.node_name(node))
    }

    pub fn host(&self, host: usize) -> NetNs {
        NetNs::named(format!("{}h{host}", self.prefix))
    }

    fn link_nodes(&self, network: &Network) -> anyhow::Result<()> {
        let mut lines = String::new();
        for node in 0..self.nodes {
            for &(other, _) in network.topology().links(node) {
                let other = usize::from(other);
                if node < other {
                    lines += &format!(
                        "link add {} netns {} {QUEUES} type veth peer name {} netns {} {QUEUES}\n",
                        link(other),
                        self.node_name(node),
                        link(node),
                        self.node_name(other)
                    );
                }
            }
        }
        ip(&[], &lines)?;
        for node in 0..self.nodes {
            let links = network.topology().links(node).iter();
            let up: String =
                links.map(|&(other, _)| format!("link set {} up\n", link(other.into()))).collect();
            ip(&["-n", &self.node_name(node)], &up)?;
        }
        Ok(())
    }

    fn link_host(&self, host: usize, node: usize) -> anyhow::Result<()> {
        let own = self.host(host);
        let octets = mac(host).octets().map(|octet| format!("{octet:02x}")).join(":");
        ip(
            &[],
            &format!(
                "link add eth0 address {octets} netns {} {QUEUES} type veth \
                 peer name {} netns {} {QUEUES}\n",
                own.name(),
                port(host),
                self.node_name(node)
            ),
        )?;
        // With offload a frame would have no checksum, and be longer than a frame may be.
        let mut ethtool = own.command("ethtool")?;
        ethtool.args(["-K", "eth0", "tx", "off"]).stdout(Stdio::null());
        anyhow::ensure!(ethtool.status()?.success(), "ethtool -K eth0 tx off");
        let address = |host| address(self.family, host);
        let prefix = match self.family {
            Family::V4 => "/16 dev eth0",
            Family::V6 => "/64 dev eth0 nodad",
        };
        let mut lines = format!("addr add {}{prefix}\nlink set eth0 up\n", address(host));
        for other in (0..self.hosts).filter(|&other| other != host) {
            let octets = mac(other).octets().map(|octet| format!("{octet:02x}")).join(":");
            lines += &format!(
                "neigh replace {} lladdr {octets} nud permanent dev eth0\n",
                address(other)
            );
        }
        ip(&["-n", own.name()], &lines)
    }

    /// Switches a node's interface towards a host on.
    pub fn up(&self, host: usize, node: usize) -> anyhow::Result<()> {
        ip(&["-n", &self.node_name(node)], &format!("link set {} up\n", port(host)))
    }

    /// Switches a node's interface towards a host off, as when the plug is pulled.
    pub fn down(&self, host: usize, node: usize) -> anyhow::Result<()> {
        ip(&["-n", &self.node_name(node)], &format!("link set {} down\n", port(host)))
    }

    /// Carries the interface, which is off, from one node to another; its number there.
    pub fn carry(&self, host: usize, from: usize, to: usize) -> anyhow::Result<u32> {
        let (port, there) = (port(host), self.node_name(to));
        ip(&["-n", &self.node_name(from)], &format!("link set {port} netns {there}\n"))?;
        self.interface(to, &port)
    }

    /// The interfaces of a node by port, of those that are there.
    pub fn wires(
        &self,
        network: &Network,
        node: usize,
        hosts: &[Host],
    ) -> anyhow::Result<Vec<(u16, u32)>> {
        let mut wires = Vec::new();
        for (at, &(other, _)) in network.topology().links(node).iter().enumerate() {
            wires.push((at as u16, self.interface(node, &link(other.into()))?));
        }
        let here = hosts.iter().enumerate().filter(|(_, host)| usize::from(host.node) == node);
        for (number, &host) in here {
            wires.push((network.port(node, host), self.interface(node, &port(number))?));
        }
        Ok(wires)
    }

    fn interface(&self, node: usize, name: &str) -> anyhow::Result<u32> {
        let inside = std::ffi::CString::new(name)?;
        // SAFETY: the name is a string that ends with 0 and outlives the call.
        let index = self.node(node).enter(|| unsafe { libc::if_nametoindex(inside.as_ptr()) })?;
        anyhow::ensure!(index != 0, "no interface {name} in {}", self.node_name(node));
        Ok(index)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let names = self.names();
        delete(names.iter().map(String::as_str));
    }
}

/// Removes namespaces; those that are not there are no matter.
fn delete<'a>(names: impl Iterator<Item = &'a str>) {
    for name in names.filter(|name| NetNs::named(*name).path().exists()) {
        if let Err(error) = ip(&[], &format!("netns del {name}\n")) {
            eprintln!("weir: {error:#}");
        }
    }
}

/// Removes what a process that was killed left behind.
fn sweep() {
    let Ok(entries) = fs::read_dir("/run/netns") else { return };
    let names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let dead = |name: &&str| {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
        let owner = owner.and_then(|(pid, _)| pid.parse::<u32>().ok());
        owner.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
    };
    delete(names.iter().map(String::as_str).filter(dead));
}

/// Runs `ip -batch` with lines.
fn ip(options: &[&str], lines: &str) -> anyhow::Result<()> {
    let mut child = Command::new("ip")
        .args(options)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("running ip")?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(lines.as_bytes()).context("writing to ip")?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("ip {}: {}", options.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
