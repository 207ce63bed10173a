//! The addresses of the services, and the way to their backends.

#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::config::{Backend, Check, Config, PlaneKind, Protocol, Service, Vip, What, XdpMode};
use crate::neigh::{self, Interface, NeighError, Neighbour, Resolution, WayOut};
use weir_plane::forward::Tunnel;

use super::probe::{self, Answer, Probe};
use super::{DoctorInput, Finding, check};

/// How often to look whether a neighbour is resolved.
const LOOK: Duration = Duration::from_millis(50);
/// The port that is probed where the configuration names none: any answer will do.
const NO_PORT: u16 = 9;

pub(super) fn examine(input: &DoctorInput, findings: &mut Vec<Finding>) {
    let config = &input.config;
    let own = match neigh::addresses() {
        Ok(own) => own,
        Err(error) => {
            let mend = "is rtnetlink there?";
            findings.push(Finding::fail("addresses", error.to_string(), mend));
            return;
        }
    };
    let all: BTreeSet<Vip> = config.services.iter().flat_map(Service::addresses).collect();
    let vips: BTreeSet<IpAddr> = all.iter().map(|vip| vip.address).collect();
    let inline = config.services.iter().filter(|service| service.is_stamped_here());
    let inline: BTreeSet<IpAddr> = inline.flat_map(|service| service.hosts()).collect();
    for vip in &all {
        match vip.is_host() {
            // There the host is to have no service's address, and what is in the way is told with the switch.
            true if config.balancer.plane == PlaneKind::P4 => {}
            // Nor where answers pass, and are told of if it has.
            true if inline.contains(&vip.address) => {
                if !own.iter().any(|(_, address)| *address == vip.address) {
                    let said = format!("{} is taken where a router sends it here", vip.address);
                    findings.push(Finding::ok("vip", said));
                }
            }
            true => findings.push(local(vip.address, &own, config)),
            false => findings.push(prefix(vip, &own)),
        }
    }
    let hops = next_hops(input, &vips, findings);
    if input.probe {
        probes(input, &vips, &hops, findings);
        check::examine(input, findings);
    }
}

/// Nobody answers for a prefix on the link: a router must have a route to it, and none of its addresses may
/// be one by which this host itself is reached.
fn prefix(vip: &Vip, own: &[(u32, IpAddr)]) -> Finding {
    match own.iter().find(|(_, address)| vip.contains(*address)) {
        Some((index, address)) => Finding::warn(
            "vip",
            format!(
                "{vip} has {address} in it, which is on {} here: what comes to this host itself there, on \
                 the service's ports, goes to its backends",
                interface_name(*index)
            ),
            "keep the host's own addresses out of the prefix, or the service to other ports",
        ),
        None => Finding::ok("vip", format!("{vip} is taken wherever a router sends it here")),
    }
}

fn interface_name(index: u32) -> String {
    neigh::interface_by_index(index).map_or_else(|_| "an interface".into(), |found| found.name)
}

/// The address of a service must be somebody's, or no router sends packets for it here.
fn local(vip: IpAddr, own: &[(u32, IpAddr)], config: &Config) -> Finding {
    let holders: Vec<Interface> = own
        .iter()
        .filter(|(_, address)| *address == vip)
        .filter_map(|(index, _)| neigh::interface_by_index(*index).ok())
        .collect();
    let interfaces = &config.balancer.interfaces;
    let first = interfaces.first().map_or("eth0", String::as_str);
    let (bits, nodad) = if vip.is_ipv4() { (32, "") } else { (128, " nodad") };
    let mend = format!(
        "ip addr add {vip}/{bits} dev {first}{nodad}   (not needed if routers route it here)"
    );
    let Some(holder) = holders.first() else {
        return Finding::warn(
            "vip",
            format!("{vip} is on no interface, so nobody answers for it on the link"),
            mend,
        );
    };
    // Neighbour discovery answers only for addresses of the interface that was asked, unlike
    // ARP, which answers for any address of the host.
    if vip.is_ipv6() && !holders.iter().any(|one| interfaces.contains(&one.name)) {
        return Finding::warn(
            "vip",
            format!("{vip} is on {} only; neighbour discovery does not answer for it", holder.name),
            mend,
        );
    }
    Finding::ok("vip", format!("{vip} is on {}", holder.name))
}

/// Finds where each backend is, asking for all before waiting for any.
fn next_hops(
    input: &DoctorInput,
    vips: &BTreeSet<IpAddr>,
    findings: &mut Vec<Finding>,
) -> HashMap<Way, Neighbour> {
    let config = &input.config;
    let ways: BTreeSet<Way> = config
        .services
        .iter()
        .flat_map(|service| service.backends.iter().map(|backend| way(service, backend)))
        .collect();
    let deadline = Instant::now() + input.patience;
    let resolve = |(address, by_tunnel): Way| match by_tunnel {
        true => neigh::path(address, vips).map(|path| path.next),
        false => neigh::resolve_now(address),
    };
    let first: Vec<_> = ways.into_iter().map(|way| (way, resolve(way))).collect();
    let mut hops = HashMap::new();
    for (way, mut found) in first {
        let (address, by_tunnel) = way;
        while matches!(found, Ok(None)) && !failed(address) && Instant::now() < deadline {
            sleep(LOOK);
            found = resolve(way);
        }
        findings.push(next_hop(address, &found, by_tunnel, config));
        if by_tunnel && found.is_ok() {
            findings.extend(tunnel(address, vips, config));
        }
        if let Ok(Some(hop)) = found {
            hops.insert(way, hop);
        }
    }
    hops
}

/// A backend's address, and whether routers may be on the way there.
type Way = (IpAddr, bool);

fn way(service: &Service, backend: &Backend) -> Way {
    (backend.address, service.forward.passes_routers())
}

/// Where a tunnel begins, and what it has room for.
fn tunnel(address: IpAddr, vips: &BTreeSet<IpAddr>, config: &Config) -> Option<Finding> {
    let here = |service: &Service| service.backends.iter().any(|one| one.address == address);
    if !config.services.iter().any(|service| service.forward.is_tunnel() && here(service)) {
        return None;
    }
    let path = neigh::path(address, vips).ok()?;
    let (source, _) = config.balancer.tunnel_sources().towards(address, path.source);
    let Some(source) = source else {
        let field = if address.is_ipv4() { "tunnel_source" } else { "tunnel_source6" };
        return Some(Finding::fail(
            "tunnel",
            format!("{address}: this host has no address of its own to send from"),
            format!("give the interface one, or set {field} in [balancer]"),
        ));
    };
    let services = config.services.iter().filter(|service| {
        service.forward.is_tunnel()
            && service.backends.iter().any(|backend| backend.address == address)
    });
    let overhead = services.filter_map(|service| service.forward.encapsulation());
    let overhead = overhead.map(|kind| kind.overhead(address) as u32).max()?;
    let largest = path.mtu.saturating_sub(overhead);
    let interfaces = config.balancer.interfaces.iter();
    let incoming = interfaces.filter_map(|name| neigh::interface_mtu(name).ok()).max()?;
    if incoming > largest {
        let tcp = largest.saturating_sub(40);
        return Some(Finding::warn(
            "tunnel",
            format!(
                "{address}: packets of {incoming} bytes come in, and the tunnel from {source} has \
                 room for {largest}; larger ones are dropped, and their senders told by ICMP"
            ),
            format!(
                "raise the MTU on the way to {address} by {}; or on the backend: ip route change \
                 default ... advmss {tcp}, so that clients of TCP send smaller ones",
                incoming - largest
            ),
        ));
    }
    Some(Finding::ok(
        "tunnel",
        format!("{address}: from {source}, for packets of up to {largest} bytes"),
    ))
}

/// Whether the kernel has asked in vain already.
fn failed(address: IpAddr) -> bool {
    neigh::route(address).is_ok_and(|route| {
        matches!(neigh::neighbour(address, route.ifindex), Ok(Resolution::Failed))
    })
}

fn next_hop(
    address: IpAddr,
    found: &Result<Option<Neighbour>, NeighError>,
    by_tunnel: bool,
    config: &Config,
) -> Finding {
    let hop = match found {
        Ok(Some(hop)) => hop,
        Ok(None) => {
            let what = if address.is_ipv4() { "ARP" } else { "neighbour discovery" };
            if by_tunnel {
                return Finding::fail(
                    "next-hop",
                    format!("{address}, or the router that leads there, does not answer {what}"),
                    format!("ip route get {address} shows the router; is it up?"),
                );
            }
            return Finding::fail(
                "next-hop",
                format!("{address} does not answer {what}"),
                format!("is the backend up, and on this link? ip neigh show {address}"),
            );
        }
        Err(error @ NeighError::Local { .. }) => {
            let mend = "give the backend's own address; a balancer cannot be its own backend";
            return Finding::fail("next-hop", error.to_string(), mend);
        }
        Err(error @ NeighError::Broadcast { .. }) => {
            return Finding::fail("next-hop", error.to_string(), "give the backend's own address");
        }
        Err(error @ NeighError::Gateway { .. }) => {
            let mend = "set forward to a tunnel, such as \"ipip\", or to \"nat\"; or move the backend to this link, or \
                        give this host an interface on the backend's";
            return Finding::fail("next-hop", error.to_string(), mend);
        }
        Err(error) => {
            let mend = format!("give this host an address on the link of {address}");
            return Finding::fail("next-hop", error.to_string(), mend);
        }
    };
    let mac = hop.mac.map(|byte| format!("{byte:02x}")).join(":");
    let Ok(out) = neigh::interface_by_index(hop.ifindex) else {
        return Finding::ok("next-hop", format!("{address} is at {mac}"));
    };
    let way = neigh::interfaces().map(|all| neigh::way_out(&out, &all));
    if let (Ok(Err(what)), true) = (&way, config.balancer.mode != XdpMode::Generic) {
        return Finding::fail(
            "next-hop",
            format!("{address} is reached through {what}, where frames of XDP programs are lost"),
            "give this host its address on the backends' link on an interface of its own, a VLAN of \
             one, or a bond of mode 802.3ad, balance-xor, balance-rr or active-backup; or set balancer.mode = \"generic\", which is several times slower",
        );
    }
    let interfaces = config.balancer.interfaces.iter();
    let largest = interfaces.filter_map(|name| neigh::interface_mtu(name).ok()).max();
    if let Some(incoming) = largest
        && incoming > out.mtu
        && !by_tunnel
    {
        return Finding::warn(
            "next-hop",
            format!(
                "{address}: packets of {incoming} bytes come in, and {} takes {}",
                out.name, out.mtu
            ),
            format!("ip link set {} mtu {incoming}", out.name),
        );
    }
    let tagged = match way {
        Ok(Ok(WayOut::Tagged { tag, .. })) => {
            format!(", tagged {}", u16::from_be_bytes([tag[2], tag[3]]))
        }
        _ => String::new(),
    };
    Finding::ok("next-hop", format!("{address} is at {mac} on {}{tagged}", out.name))
}

/// Asks every backend, all at once, whether it accepts packets for the service's address.
fn probes(
    input: &DoctorInput,
    vips: &BTreeSet<IpAddr>,
    hops: &HashMap<Way, Neighbour>,
    findings: &mut Vec<Finding>,
) {
    let mut asked: Vec<(&Service, &Backend)> = Vec::new();
    let mut questions = Vec::new();
    for service in &input.config.services {
        // Backends of translated services know nothing of its address; health checks ask them.
        let asked_backends = if service.forward.is_nat() { &[] } else { &service.backends[..] };
        for backend in asked_backends {
            let Some(&hop) = hops.get(&way(service, backend)) else {
                continue;
            };
            // The service's address will not do: answers to it would be the balancer's to forward.
            let vip = service.address_for(backend.address);
            let Some(source) = neigh::own_address(vip, backend.address, hop.ifindex, vips) else {
                findings.push(Finding::warn(
                    "backend",
                    format!(
                        "{}: no address of this host to probe it from",
                        title(service, backend)
                    ),
                    "give the interface an address of its own on the backends' link",
                ));
                continue;
            };
            let tunnel = service.forward.encapsulation().and_then(|encapsulation| {
                let found = neigh::source_for(backend.address, vips);
                let sources = input.config.balancer.tunnel_sources();
                let (source, spread) = sources.towards(backend.address, found);
                source?;
                Some((Tunnel { encapsulation, source, spread, mtu: 0 }, backend.address))
            });
            if service.forward.is_tunnel() && tunnel.is_none() {
                continue;
            }
            asked.push((service, backend));
            questions.push(Probe { hop, source, vip, port: port(service), tunnel });
        }
    }
    match probe::ask(&questions, input.patience) {
        Ok(answers) => {
            for ((service, backend), answer) in asked.into_iter().zip(answers) {
                findings.push(backend_finding(service, backend, answer));
            }
        }
        Err(error) => findings.push(Finding::warn(
            "backend",
            format!("backends cannot be probed: {error}"),
            "run weir doctor as root",
        )),
    }
}

fn port(service: &Service) -> u16 {
    let by_tcp =
        |check: &&Check| matches!(check.what, What::Tcp | What::Http(_) | What::Https { .. });
    let checked = service.check.as_ref().filter(by_tcp).map(|check| check.port);
    match service.protocol {
        Protocol::Tcp => service.port.or(checked),
        Protocol::Udp | Protocol::Sctp => checked,
    }
    .unwrap_or(NO_PORT)
}

pub(super) fn title(service: &Service, backend: &Backend) -> String {
    format!("service {:?}: backend {:?} ({})", service.name, backend.name, backend.address)
}

fn backend_finding(service: &Service, backend: &Backend, answer: Answer) -> Finding {
    let (title, vip) = (title(service, backend), service.address_for(backend.address));
    let port = port(service);
    let served = service.protocol == Protocol::Tcp && service.port.is_some();
    match answer {
        Answer::Listening => {
            Finding::ok("backend", format!("{title} accepts connections to {vip} port {port}"))
        }
        Answer::Refused if served => Finding::warn(
            "backend",
            format!("{title} has {vip}, and nothing listens there on port {port}"),
            format!("start the server on the backend; it must listen on {vip} or on all addresses"),
        ),
        Answer::Refused => Finding::ok("backend", format!("{title} has {vip}")),
        Answer::Silent if service.forward.is_tunnel() => Finding::fail(
            "backend",
            format!(
                "{title} does not accept packets for {vip} in {} (port {} was tried)",
                service.forward, port
            ),
            "the backend needs a receiver of the tunnel with the address on its loopback, and no \
             rp_filter on it: docs/forwarding.md has the commands; or a firewall drops the packets",
        ),
        Answer::Silent => {
            let add = if vip.is_ipv4() {
                format!(
                    "on the backend: ip addr add {vip}/32 dev lo\n\
                     and, so that it does not claim {vip} on the link: \
                     sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
                )
            } else {
                format!("on the backend: ip addr add {vip}/128 dev lo nodad")
            };
            Finding::fail(
                "backend",
                format!("{title} does not accept packets for {vip} (port {port} was tried)"),
                format!("{add}\nor a firewall there drops them"),
            )
        }
    }
}
