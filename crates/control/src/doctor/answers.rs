//! Services whose answers pass the balancer: its kernel forwards them, or the program by what the kernel
//! says.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Finding, interface, read};
use crate::config::{Backend, Config};
use crate::neigh;

/// `running`: backends that are not in the configuration, with their services' names.
pub(super) fn examine(config: &Config, running: &[(String, Backend)], findings: &mut Vec<Finding>) {
    findings.extend(inline_here(config));
    translated(config, findings);
    sources(config, running, findings);
    for ipv4 in [true, false] {
        let mut services = config.services.iter();
        let found = services.find(|service| service.has_family(ipv4) && service.answers_come());
        if let Some(service) = found {
            findings.push(forwarding(&service.name, ipv4, &come_in(config, ipv4), read));
        }
    }
}

/// Services into whose answers the balancer writes, and whose addresses are this host's own: whoever shares a link with
/// that address answers clients directly, and the kernel takes what comes from it for forged.
pub(super) fn inline_here(config: &Config) -> Vec<Finding> {
    let inline = || config.services.iter().filter(|service| service.is_stamped_here());
    if inline().next().is_none() {
        return Vec::new();
    }
    let own = neigh::addresses().unwrap_or_default();
    let mut findings = Vec::new();
    for service in inline() {
        for vip in service.hosts() {
            let Some((index, _)) = own.iter().find(|(_, address)| *address == vip) else {
                continue;
            };
            let holder = neigh::interface_by_index(*index);
            let holder = holder.map_or_else(|_| "an interface".into(), |found| found.name);
            let accepted = come_in(config, vip.is_ipv4()).iter().all(|name| accepts_local(name));
            findings.push(own_address(&service.name, vip, &holder, accepted));
        }
    }
    findings
}

/// `accepted`: the kernel takes packets that come from addresses of its own.
pub(super) fn own_address(service: &str, vip: IpAddr, holder: &str, accepted: bool) -> Finding {
    let bits = if vip.is_ipv4() { 32 } else { 128 };
    let mend = format!(
        "where backends answer clients directly: answers = \"backend\" in service {service:?}, and weir agent on the \
         backends (docs/cheetah.md, Direct server return)\n\
         else make this host the backends' router, with a route to {vip} at the clients' router, and: \
         ip addr del {vip}/{bits} dev {holder}"
    );
    // IPv6 asks nothing of the kind of sources.
    if vip.is_ipv6() || accepted {
        return Finding::warn(
            "answers",
            format!(
                "{vip} of service {service:?} is on {holder} here, and the balancer writes into its answers \
                 (answers = \"inline\"): that works only where they all pass here, as this host is the backends' router"
            ),
            mend,
        );
    }
    Finding::fail(
        "answers",
        format!(
            "{vip} of service {service:?} is an address of this host, on {holder}, and the balancer is to write into \
             its answers (answers = \"inline\"): those that pass here are dropped by the kernel, which takes them for \
             forged, and those of backends that answer clients directly have no cookies, so that a change of the pool \
             breaks their connections"
        ),
        mend,
    )
}

/// The interfaces by which answers of a family's backends come in, as far as routes tell; else all of the balancer's.
fn come_in(config: &Config, ipv4: bool) -> BTreeSet<String> {
    let services = config.services.iter().filter(|service| service.answers_come());
    let backends = services.flat_map(|service| &service.backends);
    let known: BTreeSet<String> = backends
        .filter(|backend| backend.address.is_ipv4() == ipv4)
        .filter_map(|backend| neigh::route(backend.address).ok())
        .filter_map(|route| neigh::interface_by_index(route.ifindex).ok())
        .map(|interface| interface.name)
        .collect();
    if known.is_empty() { config.balancer.interfaces.iter().cloned().collect() } else { known }
}

/// Answers of translated backends must come in where the program is, and may go on as the service's.
fn translated(config: &Config, findings: &mut Vec<Finding>) {
    let own = neigh::addresses().unwrap_or_default();
    let links = neigh::interfaces().unwrap_or_default();
    let taken = neigh::with_above(&config.balancer.interfaces, &links);
    let mut seen = BTreeSet::new();
    // What the configuration names is looked at by its name.
    let mut filtered: BTreeSet<String> = config.balancer.interfaces.iter().cloned().collect();
    for service in config.services.iter().filter(|service| service.forward.is_nat()) {
        let addresses = service.addresses();
        let here = |vip: &IpAddr| own.iter().any(|(_, address)| address == vip);
        let local = addresses.iter().map(|vip| vip.address).find(|vip| vip.is_ipv4() && here(vip));
        for backend in &service.backends {
            let Ok(route) = neigh::route(backend.address) else { continue };
            let Ok(out) = neigh::interface_by_index(route.ifindex) else { continue };
            if !seen.insert((out.name.clone(), service.vip)) {
                continue;
            }
            if !taken.contains(&out.name) {
                findings.push(Finding::fail(
                    "answers",
                    format!(
                        "answers of service {:?} come in by {}, which weir takes no frames from: they \
                         reach clients with the backends' addresses",
                        service.name, out.name
                    ),
                    format!("add {:?} to balancer.interfaces", out.name),
                ));
            }
            // A VLAN of one of these, or a bridge with it.
            if backend.address.is_ipv4()
                && taken.contains(&out.name)
                && interface::filters_strictly(&out.name)
                && filtered.insert(out.name.clone())
            {
                findings.push(interface::rp_filter(&out.name));
            }
            if let Some(local) = local.filter(|_| !accepts_local(&out.name)) {
                findings.push(Finding::warn(
                    "answers",
                    format!(
                        "{local} is on this host: answers to clients whose neighbour is not known yet \
                         are the kernel's to forward, which takes them for forged"
                    ),
                    format!(
                        "ip addr del {local}/32, with a route to it at the router; or \
                         sysctl -w net.ipv4.conf.{}.accept_local=1",
                        out.name.replace('.', "/")
                    ),
                ));
            }
        }
    }
}

/// Answers of backends under full NAT come to addresses of this host, on ports that are nobody else's.
fn sources(config: &Config, running: &[(String, Backend)], findings: &mut Vec<Finding>) {
    let services = config.services.iter().filter(|service| service.forward.is_full_nat());
    let names: Vec<String> = services.map(|service| format!("{:?}", service.name)).collect();
    let word = match names.len() {
        0 => return,
        1 => "service",
        _ => "services",
    };
    findings.push(Finding::warn(
        "sources",
        format!(
            "connections of {word} {} are known to this balancer alone: another one that gets their \
             packets has no port for them, and they break",
            names.join(", ")
        ),
        "let routers send each client to one balancer, or take another way to forward where that may change",
    ));
    let own = neigh::addresses().unwrap_or_default();
    let (first, last) = config.balancer.nat.ports;
    for address in &config.balancer.nat.addresses {
        if own.iter().any(|(_, known)| known == address) {
            findings.push(Finding::ok("sources", format!("{address} is on this host")));
        } else {
            findings.push(Finding::warn(
                "sources",
                format!(
                    "{address} of balancer.nat_sources is not on this host: answers of backends come here \
                     only if a route to it leads here"
                ),
                format!("ip addr add {address} dev {}", config.balancer.interfaces[0]),
            ));
        }
    }
    elsewhere(config, running, &own, findings);
    let range = read("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = range.split_whitespace().filter_map(|word| word.parse::<u16>().ok());
    if let (Some(from), Some(to)) = (ends.next(), ends.next())
        && from <= last
        && first <= to
    {
        findings.push(Finding::warn(
            "sources",
            format!(
                "this host takes its own connections' ports from {from} to {to}, and balancer.nat_ports are \
                 {first} to {last}: answers to its health checks may be dropped as no_mapping"
            ),
            format!("sysctl -w net.ipv4.ip_local_port_range=\"{} 65535\"", last.saturating_add(1)),
        ));
    }
    taken_from_host(config, findings);
}

/// A connection's source is any of those of its family: one that is on another of the balancer's interfaces than the way
/// to a backend is perhaps in a network that the backend has no route to.
fn elsewhere(
    config: &Config,
    running: &[(String, Backend)],
    own: &[(u32, IpAddr)],
    findings: &mut Vec<Finding>,
) {
    let links = neigh::interfaces().unwrap_or_default();
    let taken = neigh::with_above(&config.balancer.interfaces, &links);
    let name_of = |index: u32| links.iter().find(|link| link.index == index).map(|link| &link.name);
    let sources = config.balancer.nat.addresses.iter().filter_map(|address| {
        let (index, _) = own.iter().find(|(_, known)| known == address)?;
        Some((address, *index, name_of(*index).filter(|name| taken.contains(*name))?))
    });
    let sources: Vec<_> = sources.collect();
    let services = config.services.iter().filter(|service| service.forward.is_full_nat());
    let all = services.flat_map(|service| {
        let found = running.iter().filter(move |(name, _)| *name == service.name);
        service.backends.iter().chain(found.map(|(_, one)| one)).map(move |one| (service, one))
    });
    for (service, backend) in all {
        let some = Some(&backend.nat_sources).filter(|own| !own.is_empty());
        let Ok(way) = neigh::route(backend.address) else { continue };
        // Who is behind a router has routes.
        if way.gateway.is_some() {
            continue;
        }
        let other = sources.iter().find(|(address, index, _)| {
            address.is_ipv4() == backend.address.is_ipv4()
                && *index != way.ifindex
                && some.is_none_or(|some| some.contains(address))
        });
        let Some((address, _, interface)) = other else { continue };
        findings.push(Finding::warn(
            "sources",
            format!(
                "connections come to backend {:?} of service {:?} from {address}, too, which is on {interface}: unless \
                 it has a route there, those do not come about",
                backend.name, service.name
            ),
            format!(
                "a route to {address} on the backend; or nat_sources of the backend, without it; or one of \
                 balancer.nat_sources to which all backends have a route"
            ),
        ));
        // Of many backends there is nothing else to say.
        return;
    }
}

/// Servers of this host on ports that connections under full NAT have: packets for them are answers of backends, or
/// dropped.
fn taken_from_host(config: &Config, findings: &mut Vec<Finding>) {
    let (first, last) = config.balancer.nat.ports;
    let listening: BTreeSet<Listening> = TABLES
        .into_iter()
        .flat_map(|(file, protocol)| {
            let text = read(&format!("/proc/net/{file}")).unwrap_or_default();
            text.lines().filter_map(|line| listening(line, protocol)).collect::<Vec<_>>()
        })
        .collect();
    for address in &config.balancer.nat.addresses {
        let at = |one: &&Listening| {
            let all = one.address.is_unspecified()
                && (one.address.is_ipv6() || one.address.is_ipv4() == address.is_ipv4());
            (all || one.address == *address) && (first..=last).contains(&one.port)
        };
        let ports: BTreeSet<String> = listening
            .iter()
            .filter(at)
            .map(|one| format!("{} {}", one.protocol, one.port))
            .collect();
        if ports.is_empty() {
            continue;
        }
        let more = ports.len().saturating_sub(SHOWN);
        let mut shown: Vec<String> = ports.into_iter().take(SHOWN).collect();
        if more > 0 {
            shown.push(format!("{more} more"));
        }
        findings.push(Finding::warn(
            "sources",
            format!(
                "servers of this host at {address} are within balancer.nat_ports, {first} to {last}, and nobody \
                 reaches them by that address: {}",
                shown.join(", ")
            ),
            "give balancer.nat_sources addresses that only they have, or balancer.nat_ports another range",
        ));
    }
}

/// Ports that one finding names.
const SHOWN: usize = 5;

/// Files of the kernel with the sockets of this network namespace.
const TABLES: [(&str, &str); 4] =
    [("tcp", "tcp"), ("tcp6", "tcp"), ("udp", "udp"), ("udp6", "udp")];

/// A socket that takes what comes to a port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Listening {
    address: IpAddr,
    port: u16,
    protocol: &'static str,
}

/// A line of such a file, if it is of one: of TCP in the state LISTEN, of UDP without another end.
fn listening(line: &str, protocol: &'static str) -> Option<Listening> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, state) = (fields.next()?, fields.nth(1)?);
    if state != if protocol == "tcp" { "0A" } else { "07" } {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    // Words of the address as they stand in memory, read as numbers.
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            IpAddr::from(<[u8; 16]>::try_from(words).ok()?)
        }
        _ => return None,
    };
    Some(Listening { address, port: u16::from_str_radix(port, 16).ok()?, protocol })
}

/// Whether the kernel takes packets that come by an interface from an address of this host.
pub(crate) fn accepts_local(interface: &str) -> bool {
    let on = |name: &str| read(&format!("/proc/sys/net/ipv4/conf/{name}/accept_local"));
    ["all", interface].into_iter().any(|name| on(name).is_some_and(|value| value != "0"))
}

/// The kernel forwards what comes in by an interface if that one's own setting says so, whatever the setting of all
/// says. In IPv6 both must, but for packets that the program forwards by what the kernel tells, which asks for the
/// interface's alone.
pub(super) fn forwarding(
    service: &str,
    ipv4: bool,
    interfaces: &BTreeSet<String>,
    value: impl Fn(&str) -> Option<String>,
) -> Finding {
    let family = if ipv4 { "ipv4" } else { "ipv6" };
    let is_on = |name: &str| {
        let value = value(&format!("/proc/sys/net/{family}/conf/{name}/forwarding"));
        value.is_some_and(|value| value != "0")
    };
    let off: Vec<String> = interfaces
        .iter()
        .filter(|name| !is_on(name))
        .map(|name| interface::key(family, name, "forwarding"))
        .collect();
    if !off.is_empty() {
        let verb = if off.len() == 1 { "is" } else { "are" };
        let mend: Vec<String> = off.iter().map(|one| format!("sysctl -w {one}=1")).collect();
        return Finding::fail(
            "answers",
            format!(
                "{} {verb} off: the answers of service {service:?}, which pass here, go nowhere",
                off.join(", ")
            ),
            mend.join("\n"),
        );
    }
    if !ipv4 && !is_on("all") {
        return Finding::warn(
            "answers",
            format!(
                "net.ipv6.conf.all.forwarding is off: of the answers of service {service:?}, those to clients whose \
                 neighbour is not known yet are the kernel's to forward, which does not"
            ),
            "sysctl -w net.ipv6.conf.all.forwarding=1 (this host takes no routes from router advertisements then, but \
             where accept_ra is 2)",
        );
    }
    let names: Vec<&str> = interfaces.iter().map(String::as_str).collect();
    Finding::ok(
        "answers",
        format!("{family} forwarding is on at {}: answers are forwarded", names.join(", ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn servers_are_read_from_the_kernels_tables() {
        let tcp = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1";
        let found = listening(tcp, "tcp").expect("it listens");
        assert_eq!((found.address.to_string(), found.port), ("127.0.0.1".into(), 8080));
        let open = tcp.replace(" 0A ", " 01 ");
        assert_eq!(listening(&open, "tcp"), None);
        let udp = "  10: B80D0120000000000000000001000000:0035 00000000000000000000000000000000:0000 07 0 0";
        let found = listening(udp, "udp").expect("it takes datagrams");
        assert_eq!((found.address.to_string(), found.port), ("2001:db8::1".into(), 53));
        let heading =
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid";
        assert_eq!(listening(heading, "tcp"), None);
        assert_eq!(listening("", "udp"), None);
        assert_eq!(listening("  0: 0100:1F90 0:0 0A", "tcp"), None);
    }
}
