//! `weir init`: looks at this host and writes a configuration that fits it.
//!
//! Looking changes nothing. What the host lacks, addresses and forwarding, is told as commands, which
//! [`Plan::prepare`] runs if it is asked to.

#![forbid(unsafe_code)]

mod file;

pub use file::{there_already, write_new, write_own};

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::config::{Config, ConfigError, Protocol};
use crate::doctor::{accepts_local, filters_strictly};
use crate::neigh::{self, Interface, Kind, NeighError, Resolution};
use weir_steering::{DCODE_BITS, MethodId, Settings, dcode_bits_for};

/// How long neighbours have to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the balancer is to do.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Name of the service.
    pub name: String,
    /// The service's address and port.
    pub vip: SocketAddr,
    /// The service's protocol, TCP or UDP.
    pub protocol: Protocol,
    /// The backends, with ports where packets are translated.
    pub backends: Vec<(IpAddr, Option<u16>)>,
    /// The way of forwarding; none: as the backends' places need it.
    pub forward: Option<String>,
    /// Interfaces; empty: those that lead to the service's address and to the backends.
    pub interfaces: Vec<String>,
}

/// Why no configuration can be written.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// What is wanted contradicts itself.
    #[error("{0}")]
    Wanted(String),
    /// The host cannot do it as it is.
    #[error("{0}")]
    Host(String),
    /// The kernel does not answer.
    #[error(transparent)]
    Neigh(#[from] NeighError),
    /// What was written would be refused.
    #[error("the configuration would be refused: {0}")]
    Refused(#[from] ConfigError),
    /// A command of the preparation failed.
    #[error("{command}: {why}")]
    Command {
        /// The command.
        command: String,
        /// What it said.
        why: String,
    },
}

/// A configuration for this host, and what else has to be done.
#[derive(Debug)]
pub struct Plan {
    /// The file's text.
    pub text: String,
    /// Commands that this host needs, if any.
    pub here: Vec<String>,
    /// Commands that each backend needs, if any, and what they are for.
    pub there: Vec<String>,
    /// What was seen that may stand in the way, a sentence each.
    pub notes: Vec<String>,
}

/// The way to a backend.
struct Way {
    address: IpAddr,
    port: Option<u16>,
    interface: Interface,
    gateway: Option<IpAddr>,
    /// The address of this host that its packets have on this way.
    source: Option<IpAddr>,
    answers: Option<Resolution>,
}

impl Plan {
    /// Looks at this host, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn new(wanted: &Wanted) -> Result<Self, InitError> {
        agree(wanted)?;
        if let Some(why) = no_host(wanted.vip.ip(), &neigh::networks()?) {
            return Err(InitError::Host(format!("--vip {} {why}", wanted.vip.ip())));
        }
        let all = neigh::interfaces()?;
        let mut notes = Vec::new();
        let mut ways = Vec::new();
        for &(address, port) in &wanted.backends {
            let mut way = way(address, port, &all)?;
            not_from_vip(wanted, &mut way)?;
            ways.push(way);
        }
        ask_neighbours(&mut ways);
        let (front, held) = front(wanted.vip.ip(), &all, &mut notes)?;
        let forward = forward(wanted, &ways)?;
        let mut interfaces = wanted.interfaces.clone();
        if interfaces.is_empty() {
            interfaces.push(front.name.clone());
            // Answers come back by these, under NAT; and many drivers send frames of XDP programs only by
            // interfaces that have one.
            interfaces.extend(ways.iter().map(|way| way.interface.name.clone()));
            let mut seen = std::collections::HashSet::new();
            interfaces.retain(|name| seen.insert(name.clone()));
        }
        let mut generic = false;
        for name in &interfaces {
            let found = all.iter().find(|one| one.name == *name);
            let interface = found.ok_or_else(|| NeighError::NoInterface { name: name.clone() })?;
            if !interface.running {
                notes.push(format!("{name} is down, or has no carrier: ip link set {name} up"));
            }
            generic |= neigh::way_out(interface, &all).is_err()
                || matches!(interface.kind, Some(Kind::Bridge));
        }
        for way in ways.iter().filter(|way| way.gateway.is_none()) {
            if matches!(way.answers, Some(Resolution::Failed | Resolution::Unknown)) {
                notes.push(format!(
                    "{} does not answer on {}: is it there?",
                    way.address, way.interface.name
                ));
            }
        }
        let lenient = lenient(wanted.vip.ip(), forward, &ways);
        let text = text(wanted, forward, (&interfaces[..], &lenient), generic, &front, &ways);
        // What is written runs.
        Config::parse(&text, "weir.toml")?;
        Ok(Self {
            text,
            here: here(wanted.vip.ip(), &front, held, &interfaces, &lenient),
            there: there(wanted.vip.ip(), forward, &ways),
            notes,
        })
    }

    /// Runs the commands that this host needs. They hold until it is restarted.
    ///
    /// # Errors
    /// [`InitError::Command`], of the first that fails.
    pub fn prepare(&self) -> Result<(), InitError> {
        for command in &self.here {
            let failed = |why: String| InitError::Command { command: command.clone(), why };
            let mut words = command.split(' ');
            let output = Command::new(words.next().unwrap_or_default())
                .args(words)
                .output()
                .map_err(|error| failed(error.to_string()))?;
            if !output.status.success() {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(failed(why));
            }
        }
        Ok(())
    }
}

/// Whether backends get packets with their own address.
fn is_nat(forward: &str) -> bool {
    matches!(forward, "nat" | "fullnat")
}

/// What is wanted must make sense, wherever it is.
fn agree(wanted: &Wanted) -> Result<(), InitError> {
    let say = |words: String| Err(InitError::Wanted(words));
    let vip = wanted.vip.ip();
    if wanted.vip.port() == 0 {
        return say(format!("--vip {}: 0 is not a port; give 1..65535", wanted.vip));
    }
    if let Some(why) = no_vip(vip) {
        return say(format!("--vip {vip} {why}; give an address that clients can reach"));
    }
    if wanted.backends.is_empty() {
        return say("no backends: give --backend ADDRESS for each".into());
    }
    let forward = wanted.forward.as_deref();
    for (at, (address, port)) in wanted.backends.iter().enumerate() {
        if *address == vip {
            return say(format!("--backend {address} is the service's own address"));
        }
        if wanted.backends[..at].contains(&(*address, *port)) {
            return say(format!("--backend {address} is given twice"));
        }
        if let Some(port) = port.filter(|port| *port != wanted.vip.port())
            && !forward.is_some_and(is_nat)
        {
            return say(format!(
                "--backend {}: packets reach backends at the service's port, {}; for port {port} give \
                 --forward nat, or --nat if nobody may configure the backends",
                SocketAddr::new(*address, port),
                wanted.vip.port()
            ));
        }
        let tunnel = forward.is_some_and(|forward| forward != "l2" && !is_nat(forward));
        if address.is_ipv4() != vip.is_ipv4() && !tunnel {
            return say(format!(
                "--backend {address} and --vip {vip} are of two families; a tunnel gets there: \
                 --forward gue, for example"
            ));
        }
    }
    Ok(())
}

/// Why an address can be no service's, wherever it is; none if it can.
fn no_vip(vip: IpAddr) -> Option<&'static str> {
    match vip {
        _ if vip.is_loopback() => Some("is a loopback address, by which every host reaches itself"),
        _ if vip.is_multicast() => Some("is a multicast address"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("is the broadcast address"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("is of 0.0.0.0/8, which no host has"),
        IpAddr::V6(v6) if v6.is_unspecified() => Some("is no address"),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Some("is an IPv4 address in the form of IPv6")
        }
        _ => None,
    }
}

/// Why an address can be no host's in these networks, each an address with the length of its prefix; none if it can.
fn no_host(vip: IpAddr, networks: &[(u32, IpAddr, u8)]) -> Option<String> {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    };
    let (wanted, width) = bits(vip);
    networks.iter().filter(|(_, own, _)| own.is_ipv4() == vip.is_ipv4()).find_map(
        |(_, own, length)| {
            // All addresses of a link between two are hosts'.
            let free = u32::checked_sub(width, (*length).into()).filter(|free| *free > 1)?;
            let hosts = u128::MAX >> (128 - free);
            if (bits(*own).0 ^ wanted) & !hosts != 0 {
                return None;
            }
            let what = match wanted & hosts {
                0 => "the address of the network itself",
                all if all == hosts && vip.is_ipv4() => "the broadcast address",
                _ => return None,
            };
            Some(format!("is {what} of this host's {own}/{length}; give one of a host"))
        },
    )
}

/// Packets of this host's own must come from another address than the service's: who has that one answers itself.
fn not_from_vip(wanted: &Wanted, way: &mut Way) -> Result<(), InitError> {
    let vip = wanted.vip.ip();
    if way.source != Some(vip) {
        return Ok(());
    }
    way.source = neigh::source_for(way.address, &BTreeSet::from([vip]));
    // Datagrams have no checks yet, and only those that are translated come from this host.
    let is_needed =
        wanted.protocol == Protocol::Tcp || wanted.forward.as_deref().is_some_and(is_nat);
    if way.source.is_some() || !is_needed {
        return Ok(());
    }
    Err(InitError::Host(format!(
        "--vip {vip} is the only address that this host has towards --backend {}, and health checks need another \
         one to come from, or their answers go to the service: ip addr add ADDRESS/LENGTH dev {}, or give --vip an \
         address that is the service's alone",
        way.address, way.interface.name
    )))
}

fn way(address: IpAddr, port: Option<u16>, all: &[Interface]) -> Result<Way, InitError> {
    let route = match neigh::route(address) {
        Ok(route) => route,
        Err(NeighError::Local { .. }) => {
            return Err(InitError::Host(format!(
                "--backend {address} is an address of this host; backends are other hosts"
            )));
        }
        Err(error) => return Err(error.into()),
    };
    let interface = all.iter().find(|one| one.index == route.ifindex).cloned();
    let interface = match interface {
        Some(interface) => interface,
        None => neigh::interface_by_index(route.ifindex)?,
    };
    let neigh::Route { gateway, source, .. } = route;
    Ok(Way { address, port, interface, gateway, source, answers: None })
}

/// Asks all neighbours at once, and waits for their answers.
fn ask_neighbours(ways: &mut [Way]) {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut waiting = false;
        for way in ways.iter_mut().filter(|way| way.gateway.is_none()) {
            if matches!(way.answers, Some(Resolution::Confirmed(_))) {
                continue;
            }
            way.answers = neigh::neighbour(way.address, way.interface.index).ok();
            if !matches!(way.answers, Some(Resolution::Confirmed(_))) {
                neigh::provoke(way.address, way.interface.index);
                waiting = true;
            }
        }
        if !waiting || Instant::now() > end {
            return;
        }
        sleep(Duration::from_millis(50));
    }
}

/// The interface by which clients come, and whether this host has the service's address already.
fn front(
    vip: IpAddr,
    all: &[Interface],
    notes: &mut Vec<String>,
) -> Result<(Interface, bool), InitError> {
    let by_index = |index: u32| all.iter().find(|one| one.index == index).cloned();
    let addresses = neigh::addresses()?;
    let held = addresses.iter().find(|(_, address)| *address == vip);
    let ethernet = held.and_then(|(index, _)| by_index(*index)).filter(|one| one.mac.is_some());
    if let Some(interface) = ethernet.filter(|one| one.name != "lo") {
        return Ok((interface, true));
    }
    let routed = match held {
        None => neigh::route(vip).ok(),
        Some(_) => None,
    };
    if let Some(interface) =
        routed.filter(|route| route.gateway.is_none()).and_then(|route| by_index(route.ifindex))
    {
        return Ok((interface, false));
    }
    // Not of a network of this host's: a router sends it here.
    let far: IpAddr = match vip {
        IpAddr::V4(_) => [192, 0, 2, 1].into(),
        IpAddr::V6(_) => [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
    };
    let default = neigh::route(far).ok().and_then(|route| by_index(route.ifindex));
    let Some(interface) = default.filter(|one| one.name != "lo") else {
        return Err(InitError::Host(format!(
            "no interface of this host leads to {vip}, and there is no default route: name the interface \
             by which clients come, with --interface, and give it an address of their network"
        )));
    };
    notes.push(format!(
        "{vip} is in no network of this host's: a router must send its packets to this host, by {}",
        interface.name
    ));
    Ok((interface, held.is_some()))
}

/// As it is wanted, or as the backends' places need it.
fn forward<'a>(wanted: &'a Wanted, ways: &[Way]) -> Result<&'a str, InitError> {
    let behind: Vec<&Way> = ways.iter().filter(|way| way.gateway.is_some()).collect();
    match wanted.forward.as_deref() {
        Some("l2") if !behind.is_empty() => {
            let way = behind[0];
            Err(InitError::Host(format!(
                "{} is behind the router {}, where frames do not get: give --forward gue (a tunnel), or \
                 --forward nat if answers come back by this host, or --nat (full NAT) if nobody may \
                 configure the backend",
                way.address,
                way.gateway.map_or_else(String::new, |gateway| gateway.to_string()),
            )))
        }
        Some(forward) => Ok(forward),
        None if behind.is_empty() => Ok("l2"),
        None => Ok("gue"),
    }
}

/// The interfaces by which translated answers come. They have an address of this host as their source, and where a
/// client's neighbour is not known yet the kernel forwards them only if it is told not to take them for forged, and does
/// not ask that the way to their source be by the same interface.
fn lenient(vip: IpAddr, forward: &str, ways: &[Way]) -> BTreeSet<String> {
    match is_nat(forward) && vip.is_ipv4() {
        true => ways.iter().map(|way| way.interface.name.clone()).collect(),
        false => BTreeSet::new(),
    }
}

/// What this host needs.
fn here(
    vip: IpAddr,
    front: &Interface,
    held: bool,
    interfaces: &[String],
    lenient: &BTreeSet<String>,
) -> Vec<String> {
    let mut commands = Vec::new();
    let family = if vip.is_ipv4() { "ipv4" } else { "ipv6" };
    if !held {
        let (length, flags) = if vip.is_ipv4() { (32, "") } else { (128, " nodad") };
        commands.push(format!("ip addr add {vip}/{length} dev {}{flags}", front.name));
    }
    for name in interfaces {
        let path = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
        let on = std::fs::read_to_string(path).is_ok_and(|value| value.trim() == "1");
        if !on {
            // A dot in a name would be taken for a part of the path.
            let name = name.replace('.', "/");
            commands.push(format!("sysctl -qw net.{family}.conf.{name}.forwarding=1"));
        }
    }
    for name in lenient.iter().filter(|name| !accepts_local(name)) {
        commands
            .push(format!("sysctl -qw net.ipv4.conf.{}.accept_local=1", name.replace('.', "/")));
    }
    for name in lenient.iter().filter(|name| filters_strictly(name)) {
        commands.push(format!("sysctl -qw net.ipv4.conf.{}.rp_filter=2", name.replace('.', "/")));
    }
    commands
}

/// What each backend needs.
fn there(vip: IpAddr, forward: &str, ways: &[Way]) -> Vec<String> {
    if forward == "fullnat" {
        return Vec::new();
    }
    if forward == "nat" {
        let source = ways.first().and_then(|way| way.source);
        let own = source.map_or_else(|| "THIS-HOST".into(), |own| own.to_string());
        return vec![format!(
            "ip route replace default via {own}    # answers must come back this way"
        )];
    }
    let length = if vip.is_ipv4() { 32 } else { 128 };
    let mut commands = vec![format!("ip addr add {vip}/{length} dev lo")];
    if vip.is_ipv4() {
        commands.push(
            "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2".into(),
        );
    }
    if forward != "l2" {
        commands
            .push(format!("# and whatever takes packets out of {forward} (docs/forwarding.md)"));
    }
    commands
}

fn text(
    wanted: &Wanted,
    forward: &str,
    (interfaces, lenient): (&[String], &BTreeSet<String>),
    generic: bool,
    front: &Interface,
    ways: &[Way],
) -> String {
    let Wanted { name, vip, protocol, .. } = wanted;
    let (ip, port) = (vip.ip(), vip.port());
    let quoted: Vec<String> = interfaces.iter().map(|name| format!("{name:?}")).collect();
    let mut text = format!(
        "# Written by weir init {}. docs/configuration.md has all settings.\n\
         #\n\
         #   weir doctor --config FILE    looks for what would stop packets\n\
         #   weir run --config FILE       balances\n\
         #   weir reload                  takes up what was changed here\n\n\
         [balancer]\n\
         # Clients come by {}.\n\
         interfaces = [{}]\n",
        env!("CARGO_PKG_VERSION"),
        front.name,
        quoted.join(", "),
    );
    if generic {
        text += "# One of them is made of software that takes no frames from XDP programs: in the network stack \
                 it works,\n# several times slower.\nmode = \"generic\"\n";
    }
    let sources = match forward {
        "fullnat" => sources(ways),
        _ => BTreeSet::new(),
    };
    if forward == "fullnat" {
        let own: Vec<String> = sources.iter().map(|own| format!("\"{own}\"")).collect();
        let _ = writeln!(
            text,
            "# Backends see connections from here, and answer to it; by which ports, nat_ports says.\n\
             nat_sources = [{}]",
            own.join(", ")
        );
    }
    text += "# Metrics for Prometheus.\n#   metrics = \"127.0.0.1:9469\"\n";
    let _ = write!(
        text,
        "\n[[service]]\nname = \"{name}\"\nvip = \"{ip}\"\nprotocol = \"{}\"\nport = {port}\n",
        protocol.name()
    );
    let why = match forward {
        "l2" => {
            "All backends are on links of this host's: they get frames as they are, and answer clients \
                 directly."
        }
        "nat" => {
            "Backends get packets with their own address; their answers come back by this host."
        }
        "fullnat" => {
            "Backends get packets with their own address, from an address of this host's: nobody need \
             configure them."
        }
        _ => "Backends behind routers get packets in other packets, and answer clients directly.",
    };
    let _ = writeln!(text, "# {why}\nforward = \"{forward}\"");
    for name in lenient {
        let _ = writeln!(
            text,
            "# While {ip} is an address of this host, answers to clients whose neighbour is not known yet get by the \
             kernel\n# only with net.ipv4.conf.{}.accept_local = 1, and with an rp_filter there that is not 1 \
             (docs/forwarding.md).",
            name.replace('.', "/")
        );
    }
    let usual = Settings::of(MethodId::Concury).get(DCODE_BITS);
    if let Some(bits) = dcode_bits_for(ways.len()).filter(|needed| *needed > usual) {
        let _ = writeln!(
            text,
            "# So many backends need longer codes, and a larger table (docs/concury.md).\ndcode_bits = {bits}"
        );
    }
    text += match protocol {
        Protocol::Tcp => {
            "\n# A TCP connection every two seconds. type = \"http\" asks for a page \
             (docs/health-checks.md).\n[service.check]\ninterval = \"2s\"\ntimeout = \"1s\"\nrise = 2\n\
             fall = 3\n"
        }
        Protocol::Udp | Protocol::Sctp => {
            "\n# Nothing is known of what a UDP service answers: type = \"udp\" or \"dns\" asks it \
             (docs/health-checks.md).\n[service.check]\nenabled = false\n"
        }
    };
    for (number, way) in ways.iter().enumerate() {
        let Way { address, interface, gateway, source, .. } = way;
        let seen = match (gateway, way.answers) {
            (Some(gateway), _) => format!("By {}, behind the router {gateway}.", interface.name),
            (None, Some(Resolution::Confirmed(mac) | Resolution::Stale(mac))) => {
                let mac: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("By {}, at {}.", interface.name, mac.join(":"))
            }
            (None, _) => format!("By {}; it did not answer when this was written.", interface.name),
        };
        let _ = write!(
            text,
            "\n[[service.backend]]\nname = \"b{}\"\n# {seen}\naddress = \"{address}\"\n",
            number + 1
        );
        if let Some(port) = way.port.filter(|_| is_nat(forward)) {
            let _ = writeln!(text, "port = {port}");
        }
        if let Some(source) = source.filter(|own| several(&sources, *own)) {
            let _ = writeln!(
                text,
                "# Its connections come from here alone: it may have no route to the others.\n\
                 nat_sources = [\"{source}\"]"
            );
        }
    }
    text
}

/// The addresses that packets under full NAT come from.
fn sources(ways: &[Way]) -> BTreeSet<IpAddr> {
    ways.iter().filter_map(|way| way.source).collect()
}

/// Whether there are others of its family.
fn several(sources: &BTreeSet<IpAddr>, own: IpAddr) -> bool {
    sources.iter().filter(|one| one.is_ipv4() == own.is_ipv4()).count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_host_has_are_no_services() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        for text in ["127.0.0.1", "::1", "224.0.0.1", "ff02::1", "255.255.255.255", "0.0.0.0", "::"]
        {
            assert!(no_vip(ip(text)).is_some(), "{text}");
        }
        let own =
            [("192.0.2.5", 24), ("198.51.100.0", 31), ("203.0.113.7", 32), ("2001:db8::5", 64)];
        let own = own.map(|(address, length)| (1, ip(address), length));
        for (text, words) in [
            ("192.0.2.0", "the address of the network itself of this host's 192.0.2.5/24"),
            ("192.0.2.255", "the broadcast address of this host's 192.0.2.5/24"),
            ("2001:db8::", "the address of the network itself"),
        ] {
            let said = no_host(ip(text), &own).unwrap_or_default();
            assert!(said.contains(words), "{text}: {said}");
        }
        for text in [
            "192.0.2.7",
            "192.0.3.0",
            "198.51.100.0",
            "198.51.100.1",
            "203.0.113.7",
            "2001:db8::7",
            "2001:db8::ffff:ffff:ffff:ffff",
        ] {
            assert_eq!((no_vip(ip(text)), no_host(ip(text), &own)), (None, None), "{text}");
        }
    }
}
