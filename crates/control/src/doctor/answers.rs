//! Services whose answers pass the balancer: its kernel forwards them, or the program by what the kernel
//! says.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Finding, read};
use crate::config::Config;
use crate::neigh::{self, WayOut};

pub(super) fn examine(config: &Config, findings: &mut Vec<Finding>) {
    translated(config, findings);
    sources(config, findings);
    for (ipv4, file, setting) in [
        (true, "/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        (false, "/proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
    ] {
        let mut services = config.services.iter();
        let found = services.find(|service| service.has_family(ipv4) && service.answers_come());
        if let Some(service) = found {
            findings.push(forwarding(&service.name, setting, read(file).as_deref()));
        }
    }
}

/// Answers of translated backends must come in where the program is, and may go on as the service's.
fn translated(config: &Config, findings: &mut Vec<Finding>) {
    let own = neigh::addresses().unwrap_or_default();
    let mut seen = BTreeSet::new();
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
            let tagged = neigh::interfaces().map(|all| neigh::way_out(&out, &all));
            let tagged = matches!(tagged, Ok(Ok(WayOut::Tagged { .. })));
            if !tagged && !config.balancer.interfaces.contains(&out.name) {
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
                        out.name
                    ),
                ));
            }
        }
    }
}

/// Answers of backends under full NAT come to addresses of this host, on ports that are nobody else's.
fn sources(config: &Config, findings: &mut Vec<Finding>) {
    let Some(service) = config.services.iter().find(|service| service.forward.is_full_nat()) else {
        return;
    };
    findings.push(Finding::warn(
        "sources",
        format!(
            "connections of service {:?} are known to this balancer alone: another one that gets their \
             packets has no port for them, and they break",
            service.name
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
}

fn accepts_local(interface: &str) -> bool {
    let on = |name: &str| read(&format!("/proc/sys/net/ipv4/conf/{name}/accept_local"));
    ["all", interface].into_iter().any(|name| on(name).is_some_and(|value| value != "0"))
}

pub(super) fn forwarding(service: &str, setting: &str, value: Option<&str>) -> Finding {
    if value.is_some_and(|value| value != "0") {
        return Finding::ok("answers", format!("{setting} is on: answers are forwarded"));
    }
    Finding::fail(
        "answers",
        format!(
            "{setting} is off: the answers of service {service:?}, which pass here, go nowhere"
        ),
        format!("sysctl -w {setting}=1"),
    )
}
