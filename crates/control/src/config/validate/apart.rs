//! Backends stand apart from the balancer: not at addresses whose packets come to it.

use std::collections::HashMap;
use std::net::IpAddr;

use toml::Spanned;

use super::super::error::Problems;
use super::super::{NatSources, Vip, written};
use super::service::{claim, no_backend, title};

/// Refuses backends at a source of full NAT, or at an address of another service: the balancer would send to itself, or
/// a backend would lose its address to it. Of its own service's addresses a backend is told elsewhere.
pub(super) fn backends(
    services: &[Spanned<written::Service>],
    nat: &NatSources,
    problems: &mut Problems<'_>,
) {
    let all = services.iter().map(|service| claim(service.get_ref()));
    let vips: Vec<Vec<Vip>> =
        all.map(|claimed| claimed.map(|(claimed, _)| claimed.vips).unwrap_or_default()).collect();
    let (mut hosts, mut prefixes) = (HashMap::new(), Vec::new());
    for (at, vip) in
        vips.iter().enumerate().flat_map(|(at, all)| all.iter().map(move |vip| (at, vip)))
    {
        if vip.is_host() {
            hosts.entry(vip.address).or_insert((at, vip));
        } else {
            prefixes.push((at, vip));
        }
    }
    let taken = |address: IpAddr| {
        let host = hosts.get(&address).copied();
        host.or_else(|| prefixes.iter().find(|(_, vip)| vip.contains(address)).copied())
    };
    for (at, service) in services.iter().enumerate() {
        let raw = service.get_ref();
        for (number, backend) in raw.backend.iter().enumerate() {
            let backend = backend.get_ref();
            let Some(given) = &backend.address else { continue };
            let Ok(address) = given.get_ref().parse::<IpAddr>() else { continue };
            if no_backend(address).is_some() || vips[at].iter().any(|vip| vip.contains(address)) {
                continue;
            }
            let wrong = if nat.addresses.contains(&address) {
                format!("{address} is one of balancer.nat_sources, which are this host's own")
            } else if let Some((other, vip)) = taken(address) {
                let other = title(services[other].get_ref(), other);
                match vip.is_host() {
                    true => format!("{address} is the vip of {other}"),
                    false => format!("{address} is one of the vip {vip} of {other}"),
                }
            } else {
                continue;
            };
            let name = match &backend.name {
                Some(name) => format!("backend {:?}", name.get_ref()),
                None => format!("backend number {}", number + 1),
            };
            problems.add(
                given.span(),
                format!("{}: {name}: address", title(raw, at)),
                wrong,
                "give the backend's own address",
            );
        }
    }
}
