//! Validation of where packets under full NAT come from.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use toml::Spanned;

use super::super::error::Problems;
use super::super::forward::{MOST_NAT_SOURCES, NatSources};
use super::super::{Forward, Ports, written};
use super::scope::Scope;
use super::service::{claim, is_host, no_backend, title};

/// Fewer ports of an address are soon in use.
const LEAST_PORTS: u32 = 16;

/// The balancer's addresses and their ports.
pub(super) fn sources(
    addresses: Option<Spanned<Vec<Spanned<String>>>>,
    ports: Option<&Spanned<String>>,
    log: Option<Spanned<bool>>,
    scope: &mut Scope<'_, '_>,
) -> NatSources {
    let mut all: Vec<IpAddr> = Vec::new();
    for one in addresses.map(Spanned::into_inner).unwrap_or_default() {
        let text = one.get_ref();
        let mut refuse = |wrong: String, right: &str| {
            scope.problem(one.span(), "nat_sources", wrong, right);
        };
        let example = "give addresses of this host, such as [\"10.0.0.2\", \"2001:db8::2\"]";
        let Some(address) = text.parse().ok().filter(|address| is_host(*address)) else {
            refuse(format!("{text:?} is not the address of one host"), example);
            continue;
        };
        if let Some(why) = no_source(address) {
            refuse(format!("{text} {why}"), example);
            continue;
        }
        let same = all.iter().filter(|other| other.is_ipv4() == address.is_ipv4()).count();
        if all.contains(&address) {
            refuse(format!("{text} is listed twice"), "remove one");
        } else if same >= MOST_NAT_SOURCES {
            let wrong = format!("there are more than {MOST_NAT_SOURCES} of its family");
            refuse(wrong, "remove some");
        } else {
            all.push(address);
        }
    }
    let usual = NatSources::default();
    let ports = ports.map_or(usual.ports, |given| {
        let parsed = given.get_ref().split_once('-').and_then(|(first, last)| {
            Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?))
        });
        let good = parsed.filter(|(first, last)| {
            *first > 0 && first <= last && u32::from(last - first) + 1 >= LEAST_PORTS
        });
        good.unwrap_or_else(|| {
            let wrong =
                format!("{:?} is not a range of {LEAST_PORTS} ports or more", given.get_ref());
            scope.problem(given.span(), "nat_ports", wrong, "give one such as \"1024-32767\"");
            usual.ports
        })
    });
    NatSources { addresses: all, ports, log: log.is_some_and(Spanned::into_inner) }
}

/// Why backends cannot answer to an address of this host's; none if they can.
fn no_source(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if link_local {
        return Some("is a link-local address, to which no router leads");
    }
    no_backend(address)
}

/// The sources of the backends that do not get all, by their names.
pub(super) fn of_backends(
    backends: &[Spanned<written::Backend>],
    forward: Option<Forward>,
    nat: &NatSources,
    scope: &mut Scope<'_, '_>,
) -> BTreeMap<String, Vec<IpAddr>> {
    let mut all = BTreeMap::new();
    for backend in backends {
        let (span, backend) = (backend.span(), backend.get_ref());
        let (Some(name), Some(given)) = (&backend.name, &backend.nat_sources) else { continue };
        let mut scope = scope.inner(&format!("backend {:?}", name.get_ref()), span);
        let address = backend.address.as_ref().and_then(|text| text.get_ref().parse().ok());
        let ipv4 = address.map(|address: IpAddr| address.is_ipv4());
        let own = own_sources(given, (forward, ipv4), nat, &mut scope);
        if !own.is_empty() {
            all.insert(name.get_ref().clone(), own);
        }
    }
    all
}

/// Those of backends that packets are forwarded to so, and whose addresses are of IPv4 or not, as far as that is known.
pub(super) fn own_sources(
    given: &Spanned<Vec<Spanned<String>>>,
    (forward, ipv4): (Option<Forward>, Option<bool>),
    nat: &NatSources,
    scope: &mut Scope<'_, '_>,
) -> Vec<IpAddr> {
    if forward.is_some_and(|forward| !forward.is_full_nat()) {
        let wrong = "packets get a source of this host's with forward = \"fullnat\" only";
        scope.problem(given.span(), "nat_sources", wrong, "remove it, or set forward so");
        return Vec::new();
    }
    let (mut own, mut good): (Vec<IpAddr>, bool) = (Vec::new(), true);
    for one in given.get_ref() {
        let text = one.get_ref();
        let address: Option<IpAddr> = text.parse().ok();
        let known = address.filter(|address| nat.addresses.contains(address));
        let refused = match known {
            None => Some((
                format!("{text:?} is not one of balancer.nat_sources"),
                "list it there, or give one of those",
            )),
            Some(known) if own.contains(&known) => {
                Some((format!("{text} is listed twice"), "remove one"))
            }
            Some(known) if ipv4.is_some_and(|ipv4| ipv4 != known.is_ipv4()) => Some((
                format!("{text} is not of the family of the backend's address"),
                "give those of its family",
            )),
            Some(known) => {
                own.push(known);
                None
            }
        };
        if let Some((wrong, right)) = refused {
            good = false;
            scope.problem(one.span(), "nat_sources", wrong, right);
        }
    }
    if good && own.is_empty() {
        let right = "remove it, or name some of balancer.nat_sources";
        scope.problem(given.span(), "nat_sources", "the list is empty", right);
    } else if good && nat.some(&own).is_none() {
        // The data plane knows them by the first and how many there are.
        let wrong = "these do not stand one after the other in balancer.nat_sources";
        let right = "put those of one backend side by side there";
        scope.problem(given.span(), "nat_sources", wrong, right);
    }
    own
}

/// Services under full NAT need an address of their family; and no service may listen where answers come to.
pub(super) fn has_sources(
    services: &[Spanned<written::Service>],
    nat: &NatSources,
    problems: &mut Problems<'_>,
) {
    for (at, service) in services.iter().enumerate() {
        let raw = service.get_ref();
        let Some((claimed, span)) = claim(raw) else { continue };
        let full = raw.forward.as_ref().filter(|word| word.get_ref() == "fullnat");
        let families: BTreeSet<bool> =
            claimed.vips.iter().map(|vip| vip.address.is_ipv4()).collect();
        let without = families.into_iter().rev().find(|ipv4| nat.of_family(*ipv4).is_none());
        if let (Some(given), Some(ipv4)) = (full, without) {
            let (family, example) =
                if ipv4 { ("IPv4", "10.0.0.2") } else { ("IPv6", "2001:db8::2") };
            problems.add(
                given.span(),
                format!("{}: forward", title(raw, at)),
                format!(
                    "\"fullnat\" needs an address of this host that packets come from, of {family}"
                ),
                format!("set balancer.nat_sources = [\"{example}\"]"),
            );
        }
        let (first, last) = nat.ports;
        let answers = Ports { first, last };
        let within = match (claimed.port, claimed.ports) {
            (Some(port), _) => answers.contains(port),
            (None, Some(ports)) => answers.meets(&ports),
            (None, None) => true,
        };
        let own =
            nat.addresses.iter().find(|own| claimed.vips.iter().any(|vip| vip.contains(**own)));
        if let Some(own) = own.filter(|_| within) {
            let whose = match claimed.vips.iter().find(|vip| vip.contains(*own)) {
                Some(vip) if !vip.is_host() => format!("{own}, which is in {vip},"),
                _ => own.to_string(),
            };
            problems.add(
                span,
                title(raw, at),
                format!(
                    "{whose} is one of balancer.nat_sources, and answers of backends come to its ports {first} \
                     to {last}"
                ),
                "give it another address, or a port outside of balancer.nat_ports",
            );
        }
    }
}
