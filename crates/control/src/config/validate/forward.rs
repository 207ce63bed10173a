//! Validation of how packets reach backends.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use toml::Spanned;
use weir_plane::forward::tunnel::{FOU_PORT, GUE_PORT};
use weir_steering::MethodId;

use super::super::error::Problems;
use super::super::forward::{Answers, Forward, Mss, TunnelSource};
use super::super::{Protocol, Vip, written};
use super::Balancer;
use super::scope::Scope;
use super::service::{self, claim, no_backend, title};

const WORDS: &[(&str, Forward)] = &[
    ("l2", Forward::L2),
    ("ipip", Forward::Ipip),
    ("gue", Forward::Gue(GUE_PORT)),
    ("fou", Forward::Fou(FOU_PORT)),
    ("gre", Forward::Gre),
    ("nat", Forward::Nat),
    ("fullnat", Forward::FullNat),
];

/// How a service's packets reach its backends; `None` if that was given and is not known.
pub(super) fn of_service(raw: &written::Service, scope: &mut Scope<'_, '_>) -> Option<Forward> {
    let chosen = match &raw.forward {
        None => Some(Forward::default()),
        given => scope.choice(given.as_ref(), "forward", WORDS),
    };
    let port = scope.integer(raw.tunnel_port.as_ref(), "tunnel_port", 1..=u16::MAX);
    let chosen = chosen?;
    let Some(given) = &raw.tunnel_port else { return Some(chosen) };
    Some(match chosen {
        Forward::Fou(usual) => Forward::Fou(port.unwrap_or(usual)),
        Forward::Gue(usual) => Forward::Gue(port.unwrap_or(usual)),
        other => {
            let wrong = format!("forward = {:?} has no port", other.name());
            let right = "remove it, or set forward = \"gue\" or \"fou\"";
            scope.problem(given.span(), "tunnel_port", wrong, right);
            other
        }
    })
}

/// What does not go with NAT, and what goes with nothing else.
pub(super) fn translates(
    raw: &written::Service,
    forward: Option<Forward>,
    method: Option<MethodId>,
    any_port: bool,
    scope: &mut Scope<'_, '_>,
) {
    let Some(forward) = forward else { return };
    if let Some(given) = &raw.forward
        && let Some(method) = method.filter(|method| forward.is_nat() && method.needs().timestamps)
    {
        let wrong = format!(
            "{:?} does not go with method = \"{method}\": its cookies are written into answers with \
             the service's address, which those of translated backends get only behind it",
            forward.name()
        );
        let right = "give another method, such as \"concury\", or another way to forward";
        scope.problem(given.span(), "forward", wrong, right);
    }
    own_ports(raw, forward, any_port, scope);
}

/// The sum of an SCTP packet is a CRC32c over all of it (RFC 9260 section 6.8), which the packet path would have
/// to make anew of every byte; and an association names its ends' addresses inside.
pub(super) fn keeps_sums(
    raw: &written::Service,
    forward: Option<Forward>,
    protocol: Protocol,
    scope: &mut Scope<'_, '_>,
) {
    let nat = forward.filter(|forward| forward.is_nat() && protocol == Protocol::Sctp);
    if let (Some(forward), Some(given)) = (nat, &raw.forward) {
        let wrong = format!(
            "{:?} does not go with protocol = \"sctp\": another port would need a CRC32c over the \
             whole packet",
            forward.name()
        );
        let right = "give \"l2\" or a tunnel, such as \"ipip\", which leave the packet as it is";
        scope.problem(given.span(), "forward", wrong, right);
    }
}

fn own_ports(raw: &written::Service, forward: Forward, any_port: bool, scope: &mut Scope<'_, '_>) {
    for (at, backend) in raw.backend.iter().enumerate() {
        let Some(port) = &backend.get_ref().port else { continue };
        let title = match &backend.get_ref().name {
            Some(name) => format!("backend {:?}", name.get_ref()),
            None => format!("backend number {}", at + 1),
        };
        let mut scope = scope.inner(&title, backend.span());
        if !forward.is_nat() {
            let wrong = format!("forward = {:?} leaves the port as it is", forward.name());
            scope.problem(port.span(), "port", wrong, "remove it, or set forward = \"nat\"");
        } else if any_port {
            let wrong = "a service of any port leaves the port as it is";
            scope.problem(port.span(), "port", wrong, "remove it, or give the service one port");
        }
    }
}

/// An answer must tell whose it is: by the backend's address, port and protocol.
pub(super) fn answers_apart(services: &[Spanned<written::Service>], problems: &mut Problems<'_>) {
    type Known = (Answers, String, (usize, Option<u16>));
    let mut seen: HashMap<(IpAddr, Protocol), Vec<Known>> = HashMap::new();
    for (at, service) in services.iter().enumerate() {
        let raw = service.get_ref();
        let nat = raw.forward.as_ref().is_some_and(|word| word.get_ref() == "nat");
        let Some((service::Claim { vips, protocol, port, .. }, _)) = claim(raw).filter(|_| nat)
        else {
            continue;
        };
        let Some(vip) = vips.first().map(|vip| vip.address) else { continue };
        for (number, backend) in raw.backend.iter().enumerate() {
            let backend = backend.get_ref();
            let address = backend.address.as_ref().map(|given| (given, given.get_ref().parse()));
            let Some((given, Ok(address))) = address else { continue };
            let own = backend.port.as_ref().and_then(|own| u16::try_from(*own.get_ref()).ok());
            let name = match &backend.name {
                Some(name) => format!("backend {:?}", name.get_ref()),
                None => format!("backend number {}", number + 1),
            };
            let name = format!("{}: {name}", title(raw, at));
            let mine = Answers::of((vip, port), protocol, address, own);
            let others = seen.entry((address, protocol)).or_default();
            let Some((_, other, place)) = others.iter().find(|(other, ..)| mine.meets(other))
            else {
                others.push((mine, name, (at, own)));
                continue;
            };
            // Twice in one service: that is said where it stands.
            if *place == (at, own) {
                continue;
            }
            let port = mine.port.map_or_else(|| "any port".into(), |port| format!("port {port}"));
            let (field, span) = match &backend.port {
                Some(own) => ("port", own.span()),
                None => ("address", given.span()),
            };
            problems.add(
                span,
                format!("{name}: {field}"),
                format!(
                    "{other} has {address} and {} {port}, too: whose an answer from there is could not \
                     be told",
                    protocol.name()
                ),
                "let the server listen on a port for each service, and give it as port",
            );
        }
    }
}

/// Tunnels begin at no address of a service: backends have those themselves, and drop what comes from one as forged.
/// `given`: where the file says where tunnels begin, over IPv4 and over IPv6.
pub(super) fn begins_elsewhere(
    services: &[Spanned<written::Service>],
    given: [Option<Range<usize>>; 2],
    balancer: &Balancer,
    problems: &mut Problems<'_>,
) {
    let is_tunnel = |raw: &Spanned<written::Service>| {
        let word = raw.get_ref().forward.as_ref().map(|word| word.get_ref().as_str());
        WORDS.iter().any(|(name, forward)| Some(*name) == word && forward.is_tunnel())
    };
    if !services.iter().any(is_tunnel) {
        return;
    }
    let v4 = balancer
        .tunnel_source
        .map(|source| Vip { address: source.address.into(), bits: 32 - source.spread });
    let v6 = balancer.tunnel_source6.map(|source| Vip::host(source.into()));
    for ((field, source), place) in
        [("tunnel_source", v4), ("tunnel_source6", v6)].into_iter().zip(given)
    {
        let (Some(source), Some(place)) = (source, place) else { continue };
        let has_it = |(at, raw): (usize, &Spanned<written::Service>)| {
            let (claimed, _) = claim(raw.get_ref())?;
            let vip = claimed.vips.into_iter().find(|vip| vip.meets(&source))?;
            Some((title(raw.get_ref(), at), vip))
        };
        if let Some((whose, vip)) = services.iter().enumerate().find_map(has_it) {
            problems.add(
                place,
                format!("balancer: {field}"),
                format!(
                    "{whose} has {vip}: its backends have that themselves, and drop what comes \
                     from there as forged"
                ),
                "give an address that no service has",
            );
        }
    }
}

/// Everybody takes segments of this size over IPv4 (RFC 9293 section 3.7.1).
const LEAST_MSS: u16 = 536;
const MOST_MSS: u16 = u16::MAX - 40;

/// How large segments a service's SYNs may ask for.
pub(super) fn mss(
    raw: Option<&Spanned<written::Value>>,
    tcp: bool,
    scope: &mut Scope<'_, '_>,
) -> Option<Mss> {
    let raw = raw?;
    let mut refuse = |wrong: String, right: String| {
        scope.problem(raw.span(), "mss", wrong, right);
        None
    };
    if !tcp {
        return refuse("only TCP has segments".into(), "remove it".into());
    }
    let right = format!("give {LEAST_MSS}..{MOST_MSS}, or \"auto\" for what the way takes");
    match raw.get_ref() {
        written::Value::Word(word) if word == "auto" => Some(Mss::Auto),
        written::Value::Word(word) => refuse(format!("{word:?} is not known"), right),
        written::Value::Number(number) => match u16::try_from(*number) {
            Ok(most @ LEAST_MSS..=MOST_MSS) => Some(Mss::Most(most)),
            _ => refuse(format!("{number} is out of range"), right),
        },
    }
}

/// An IPv4 address, or a prefix.
pub(super) fn source(
    raw: Option<&Spanned<String>>,
    scope: &mut Scope<'_, '_>,
) -> Option<TunnelSource> {
    let raw = raw?;
    let text = raw.get_ref();
    let (address, length) = text.split_once('/').unwrap_or((text, "32"));
    let example = "give one such as 10.0.0.2, or a prefix such as 172.16.0.0/16";
    let mut refuse = |wrong: String, right: &str| {
        scope.problem(raw.span(), "tunnel_source", wrong, right);
        None
    };
    let (Ok(address), Ok(length @ 1..=32)) = (address.parse::<Ipv4Addr>(), length.parse::<u8>())
    else {
        let wrong = format!("{text:?} is neither an IPv4 address nor a prefix of /1 to /32");
        return refuse(wrong, example);
    };
    let spread = 32 - length;
    let behind = u32::from(address) & ((1 << spread) - 1);
    if behind != 0 {
        let meant = Ipv4Addr::from(u32::from(address) - behind);
        let wrong = format!("{text} has bits behind the prefix, which are the flow's");
        return refuse(wrong, &format!("write {meant}/{length}"));
    }
    let no_host = no_backend(address.into()).filter(|_| spread == 0 || address.is_loopback());
    if let Some(why) = no_host {
        return refuse(format!("{text} {why}"), example);
    }
    Some(TunnelSource { address, spread })
}

/// An IPv6 address.
pub(super) fn source6(
    raw: Option<&Spanned<String>>,
    scope: &mut Scope<'_, '_>,
) -> Option<Ipv6Addr> {
    let raw = raw?;
    let found =
        raw.get_ref().parse().ok().filter(|address| no_backend(IpAddr::V6(*address)).is_none());
    if found.is_none() {
        let wrong = format!("{:?} is not the IPv6 address of one host", raw.get_ref());
        scope.problem(raw.span(), "tunnel_source6", wrong, "give one such as 2001:db8::2");
    }
    found
}
