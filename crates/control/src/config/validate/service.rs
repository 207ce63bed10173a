//! Validation of one service with its check and its backends.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use weir_plane::Listen;
use weir_steering::cheetah::TIER_BITS;
use weir_steering::{
    LOAD, MethodId, Misfit, SCHEDULER, Setting, Settings, is_prime, next_prime, why_none,
};

use super::super::error::Problems;
use super::super::written::{self, Value};
use super::super::{
    Affinity, Backend, CookieKeys, Discover, Forward, Key, Lists, MAX_WEIGHT, Method, Mss,
    NatSources, NewFlows, Ports, Protocol, Quic, States, Vip, VipError, Window, resolve,
};
use super::check::{self, Check, CheckPort};
use super::scope::Scope;
use super::{agents, cookies, discover, forward, full_nat, lists, maintenance, new_flows, quic};

const PROTOCOLS: &[(&str, Protocol)] =
    &[("tcp", Protocol::Tcp), ("udp", Protocol::Udp), ("sctp", Protocol::Sctp)];
/// As many as there can be.
const MOST_NEED: u32 = 32_767;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A service with every given value in range.
#[derive(Debug)]
pub(in super::super) struct Service {
    pub name: String,
    /// At least one.
    pub vips: Vec<Vip>,
    pub protocol: Protocol,
    pub port: Option<u16>,
    pub ports: Option<Ports>,
    pub method: Method,
    pub affinity: Option<Affinity>,
    pub fragments_by_source: bool,
    pub states: Option<States>,
    pub cookie_key: Option<Key>,
    pub cookie_keys: Option<CookieKeys>,
    pub idle_timeout: Option<Duration>,
    pub forward: Forward,
    pub mss: Option<Mss>,
    pub lists: Option<Lists>,
    pub new_flows: Option<NewFlows>,
    pub quic: Option<Quic>,
    /// `None` if turned off.
    pub check: Option<Check>,
    pub backend_checks: BTreeMap<String, Option<Check>>,
    pub maintenance: BTreeMap<String, Vec<Window>>,
    pub need: Option<u32>,
    pub backends: Vec<Backend>,
    pub discover: Vec<Discover>,
}

/// What problems call a service.
pub(super) fn title(raw: &written::Service, at: usize) -> String {
    match &raw.name {
        Some(name) => format!("service {:?}", name.get_ref()),
        None => format!("service number {}", at + 1),
    }
}

/// What a service claims: addresses, protocol and port (`None`: a range, or any).
pub(super) struct Claim {
    pub vips: Vec<Vip>,
    pub protocol: Protocol,
    pub port: Option<u16>,
    pub ports: Option<Ports>,
}

impl Claim {
    /// All that it would listen on.
    pub(super) fn places(&self) -> Vec<Listen> {
        super::super::places(&self.vips, self.protocol.on_the_wire(), (self.port, self.ports))
    }

    /// The ports in words.
    pub(super) fn port_text(&self) -> String {
        match (self.port, self.ports) {
            (Some(port), _) => format!("port {port}"),
            (None, Some(ports)) => format!("ports {ports}"),
            (None, None) => "any port".to_owned(),
        }
    }

    /// An address or a prefix of both, if it could not be told which of them a packet to it is for: both
    /// have the same port, any port, or ranges with a port in common. If one has more exact addresses or
    /// ports than the other, packets for those are its.
    pub(super) fn clash(&self, other: &Self) -> Option<Vip> {
        let ports = match (self.ports, other.ports) {
            (Some(own), Some(others)) => own.meets(&others),
            (own, others) => own == others && self.port == other.port,
        };
        let both = self.vips.iter().find(|vip| other.vips.contains(vip));
        both.filter(|_| self.protocol == other.protocol && ports).copied()
    }
}

/// What a service claims, if it can be told; and where.
pub(super) fn claim(raw: &written::Service) -> Option<(Claim, Range<usize>)> {
    let vip = raw.vip.as_ref()?;
    let vips = vip.get_ref().each(vip.span()).into_iter();
    let vips: Vec<Vip> = vips.filter_map(|(text, _)| text.parse().ok()).collect();
    let protocol = match &raw.protocol {
        None => resolve::PROTOCOL,
        Some(word) => PROTOCOLS.iter().find(|(name, _)| name == word.get_ref())?.1,
    };
    let any = raw.any_port.as_ref().filter(|any| *any.get_ref());
    let ((port, ports), span) = match (&raw.port, any) {
        (None, Some(any)) => ((None, None), any.span()),
        (Some(port), None) => match port.get_ref() {
            Value::Number(number) => ((Some(u16::try_from(*number).ok()?), None), port.span()),
            Value::Word(range) => ((None, Some(range.parse().ok()?)), port.span()),
        },
        _ => return None,
    };
    Some((Claim { vips, protocol, port, ports }, span))
}

/// Validates a service; `None` if it lacks what nothing can stand in for.
pub(super) fn validate(
    raw: Spanned<written::Service>,
    at: usize,
    methods: &[MethodId],
    nat_sources: &NatSources,
    problems: &mut Problems<'_>,
) -> Option<Service> {
    let span = raw.span();
    let raw = raw.into_inner();
    let title = title(&raw, at);
    let mut scope = Scope::new(problems, title, span);

    let name = service_name(raw.name.as_ref(), &mut scope);
    let vips = vips(raw.vip.as_ref(), &mut scope);
    let protocol = scope.choice(raw.protocol.as_ref(), "protocol", PROTOCOLS);
    let protocol_known = raw.protocol.is_none() || protocol.is_some();
    let protocol = protocol.unwrap_or(resolve::PROTOCOL);
    let port = port(&raw, &mut scope);
    let affinity = scope.choice(
        raw.affinity.as_ref(),
        "affinity",
        &[("flow", Affinity::Flow), ("client", Affinity::Client)],
    );
    let method = method(&raw, methods, &mut scope);
    if let (Some(given), Some(Affinity::Client), Some(method)) = (&raw.affinity, affinity, &method)
        && method.id().needs().timestamps
    {
        let wrong = format!("a cookie of {} leads one connection, not its client", method.name());
        let right = "remove it, or set method = \"concury\"";
        scope.problem(given.span(), "affinity", wrong, right);
    }
    let known = (method.as_ref().map(Method::id), protocol, affinity);
    if let (Some(given), Protocol::Sctp, Some(method)) = (&raw.method, protocol, &method)
        && method.id().needs().timestamps
    {
        let wrong =
            format!("{} hides its cookies in timestamps of TCP, and SCTP has none", method.name());
        let right = "give another method, such as \"concury\", or set protocol = \"tcp\"";
        scope.problem(given.span(), "method", wrong, right);
    }
    let states = agents::states(raw.states.as_ref(), known, &mut scope);
    let cookie_key = cookie_key(raw.cookie_key.as_ref(), method.as_ref(), &mut scope);
    let cookie_keys = cookies::keys(&raw, method.as_ref(), protocol, &mut scope);
    let idle_timeout = scope.duration(
        raw.idle_timeout.as_ref(),
        "idle_timeout",
        Duration::from_secs(1)..=30 * DAY,
    );
    let default_port = match port {
        Port::Bad => CheckPort::Unknown,
        _ if !protocol_known => CheckPort::Unknown,
        Port::One(port) => CheckPort::Default(port, protocol),
        Port::Range(_) | Port::Any => CheckPort::None,
    };
    let forward = forward::of_service(&raw, &mut scope);
    let nat = forward.is_some_and(Forward::is_nat);
    let any_port = matches!(port, Port::Any);
    places(&raw, &vips, port, (forward, method.as_ref().map(Method::id), states), &mut scope);
    forward::keeps_sums(&raw, forward, protocol, &mut scope);
    forward::translates(&raw, forward, method.as_ref().map(Method::id), any_port, &mut scope);
    let fragments_by_source = fragments(&raw, affinity, &vips, port, &mut scope);
    let lists = lists::of_service(&raw, &mut scope);
    let new_flows = raw.new_flows.and_then(|raw| new_flows::validate(raw, known, &mut scope));
    let (check, backend_checks) =
        check::checks(raw.check, &raw.backend, default_port, nat, &mut scope);
    let maintenance = maintenance::windows(&raw.backend, &mut scope);
    let mut own_sources = full_nat::of_backends(&raw.backend, forward, nat_sources, &mut scope);
    let need = scope.integer(raw.need.as_ref(), "need", 0..=MOST_NEED);
    let mss = forward::mss(raw.mss.as_ref(), protocol == Protocol::Tcp, &mut scope);
    // Where that is not known, nor is which family backends may be of.
    let any_family = forward.is_none_or(Forward::is_tunnel);
    let looks_up = !raw.discover.is_empty();
    if let (Some(first), Some(_)) = (raw.discover.first(), &raw.quic) {
        let wrong = "the server id of a backend must be known before it is there";
        scope.problem(
            first.span(),
            "discover",
            wrong,
            "list the backends, or remove [service.quic]",
        );
    }
    // Backends are looked up by the family of the first address.
    let ipv4 = vips.first().map(|vip| vip.address.is_ipv4());
    let discover = discover::entries(raw.discover, (forward, ipv4), nat_sources, &mut scope);
    let mut backends = backends(raw.backend, (&vips, any_family, nat), looks_up, &mut scope);
    for backend in &mut backends {
        backend.nat_sources = own_sources.remove(&backend.name).unwrap_or_default();
    }
    let quic = raw.quic.and_then(|raw| quic::validate(raw, protocol, &backends, &mut scope));
    Some(Service {
        name: name?,
        vips: Some(vips).filter(|vips| !vips.is_empty())?,
        protocol,
        port: match port {
            Port::One(port) => Some(port),
            Port::Range(_) | Port::Any | Port::Bad => None,
        },
        ports: match port {
            Port::Range(ports) => Some(ports),
            _ => None,
        },
        method: method?,
        affinity,
        fragments_by_source,
        states,
        cookie_key,
        cookie_keys,
        idle_timeout,
        forward: forward.unwrap_or_default(),
        mss,
        lists,
        new_flows,
        quic,
        check,
        backend_checks,
        maintenance,
        need,
        backends,
        discover,
    })
}

/// What cookies are hidden under, where several balancers have to find the same in them.
fn cookie_key(
    raw: Option<&Spanned<String>>,
    method: Option<&Method>,
    scope: &mut Scope<'_, '_>,
) -> Option<Key> {
    let method = method?;
    let Some(text) = raw else {
        let in_front = method.id() == MethodId::Cheetah && method.settings().get(TIER_BITS) > 0;
        if in_front {
            let right = "give the same 32 of 0-9 and a-f on all balancers in front, such as \
                         `openssl rand -hex 16` prints";
            scope.missing("cookie_key", right);
        }
        return None;
    };
    if !method.id().needs().timestamps {
        let wrong = format!("{} has no cookies", method.name());
        scope.problem(text.span(), "cookie_key", wrong, "remove it, or set method = \"cheetah\"");
        return None;
    }
    let key = Key::from_hex(text.get_ref());
    if key.is_none() {
        // What is there may be most of a secret.
        let right = "give 32 of 0-9 and a-f, such as `openssl rand -hex 16` prints";
        scope.problem(text.span(), "cookie_key", "is not 16 bytes in hexadecimal", right);
    }
    key
}

fn service_name(raw: Option<&Spanned<String>>, scope: &mut Scope<'_, '_>) -> Option<String> {
    let Some(name) = raw else {
        scope.missing("name", "give one such as name = \"web\"");
        return None;
    };
    printable(name, scope).then(|| name.get_ref().clone())
}

/// Names of services and backends stand in commands, paths of the API and tables.
fn printable(name: &Spanned<String>, scope: &mut Scope<'_, '_>) -> bool {
    let good = is_name(name.get_ref());
    if !good {
        scope.problem(
            name.span(),
            "name",
            format!("{:?} is not a name", name.get_ref()),
            "use 1 to 64 letters, digits and - _ .",
        );
    }
    good
}

/// Whether a service or a backend may be called so.
pub(in super::super) fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    // The API would take these for directions.
    (1..=64).contains(&name.len()) && name.chars().all(plain) && !matches!(name, "." | "..")
}

/// Whether an address is one of a host.
pub(in super::super) fn is_host(address: IpAddr) -> bool {
    let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || mapped || broadcast)
}

/// Why an address can be no backend's; none if it can.
pub(in super::super) fn no_backend(address: IpAddr) -> Option<&'static str> {
    if !is_host(address) {
        return Some("is not the address of one host");
    }
    match address {
        _ if address.is_loopback() => {
            Some("is a loopback address, by which every host reaches only itself")
        }
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("is of 0.0.0.0/8, which no host has"),
        _ => None,
    }
}

/// Why an address or a prefix can be no service's; none if it can.
fn no_vip(vip: &Vip) -> Option<&'static str> {
    if !is_host(vip.address) || vip.contains(Ipv4Addr::BROADCAST.into()) {
        return Some("is not the address of one host, or a prefix of such");
    }
    no_backend(vip.address)
}

fn address(
    raw: Option<&Spanned<String>>,
    field: &str,
    example: &str,
    scope: &mut Scope<'_, '_>,
) -> Option<IpAddr> {
    let Some(raw) = raw else {
        scope.missing(field, format!("give an address such as {example}"));
        return None;
    };
    let text = raw.get_ref();
    let Ok(address) = text.parse::<IpAddr>() else {
        scope.problem(
            raw.span(),
            field,
            format!("{text:?} is not an IP address"),
            format!("give one such as {example}, without port or prefix length"),
        );
        return None;
    };
    if let Some(why) = no_backend(address) {
        scope.problem(
            raw.span(),
            field,
            format!("{text} {why}"),
            format!("give one such as {example}"),
        );
        return None;
    }
    Some(address)
}

/// The addresses and prefixes that clients connect to; none if a problem was reported.
fn vips(raw: Option<&Spanned<written::Texts>>, scope: &mut Scope<'_, '_>) -> Vec<Vip> {
    let example = "10.0.0.1 or 2001:db8::1, a prefix such as 10.0.0.0/24, or a list of such";
    let Some(raw) = raw else {
        scope.missing("vip", format!("give an address such as {example}"));
        return Vec::new();
    };
    let texts = raw.get_ref().each(raw.span());
    if texts.is_empty() {
        scope.problem(
            raw.span(),
            "vip",
            "the list is empty",
            format!("give an address such as {example}"),
        );
    }
    let (mut all, mut good): (Vec<Vip>, bool) = (Vec::new(), true);
    for (text, span) in texts {
        let vip = match text.parse::<Vip>() {
            Ok(vip) => match no_vip(&vip) {
                None => Ok(vip),
                Some(why) => Err((format!("{text} {why}"), None)),
            },
            Err(VipError::NoAddress) => Err((format!("{text:?} is not an IP address"), None)),
            Err(error @ VipError::Behind(meant)) => Err((format!("{text} {error}"), Some(meant))),
            Err(error) => Err((format!("{text} {error}"), None)),
        };
        let right = |meant: Option<Vip>| match meant {
            Some(meant) => format!("write {meant}"),
            None => format!("give one such as {example}"),
        };
        let vip = vip.map_err(|(wrong, meant)| (wrong, right(meant)));
        let there = |vip: &Vip| all.iter().find(|other| other.contains(vip.address)).copied();
        let vip = vip.and_then(|vip| match there(&vip) {
            Some(other) if other == vip => {
                Err((format!("{vip} is listed twice"), "remove one".to_owned()))
            }
            Some(other) => Err((format!("{vip} is in {other} already"), "remove it".to_owned())),
            None => Ok(vip),
        });
        match vip {
            Ok(vip) => all.push(vip),
            Err((wrong, right)) => {
                good = false;
                scope.problem(span, "vip", wrong, right);
            }
        }
    }
    if good { all } else { Vec::new() }
}

/// Whether later fragments are led by their source, which has to say all that a packet is decided by.
fn fragments(
    raw: &written::Service,
    affinity: Option<Affinity>,
    vips: &[Vip],
    port: Port,
    scope: &mut Scope<'_, '_>,
) -> bool {
    let words = [("first", false), ("source", true)];
    let by_source = scope.choice(raw.fragments.as_ref(), "fragments", &words) == Some(true);
    let Some(given) = raw.fragments.as_ref().filter(|_| by_source) else { return false };
    let (wrong, right) = if affinity != Some(Affinity::Client) {
        (
            "flows are led by their ports, which later fragments have not",
            "set affinity = \"client\", or remove it",
        )
    } else if matches!(port, Port::Range(_)) {
        (
            "a later fragment does not say which port of a range it is for",
            "give one port, or any_port = true",
        )
    } else if vips.iter().any(|vip| !vip.is_host()) {
        (
            "a later fragment to an address of a prefix may be another service's",
            "give single addresses",
        )
    } else if raw.quic.is_some() {
        ("a later fragment has no QUIC id", "remove it: datagrams of QUIC are not fragmented")
    } else {
        return true;
    };
    scope.problem(given.span(), "fragments", wrong, right);
    false
}

/// What goes with one address, and one port or any, only.
fn places(
    raw: &written::Service,
    vips: &[Vip],
    port: Port,
    (forward, method, states): (Option<Forward>, Option<MethodId>, Option<States>),
    scope: &mut Scope<'_, '_>,
) {
    let of_family = |ipv4| vips.iter().filter(|vip| vip.address.is_ipv4() == ipv4).count();
    let prefix = vips.iter().find(|vip| !vip.is_host());
    let of_one_family = if let Some(prefix) = prefix {
        Some(("vip", format!("the prefix {prefix}")))
    } else if of_family(true) > 1 || of_family(false) > 1 {
        Some(("vip", "several addresses of one family".to_owned()))
    } else if let Port::Range(ports) = port {
        Some(("port", format!("the range of ports {ports}")))
    } else {
        None
    };
    let families = (of_family(true) > 0 && of_family(false) > 0)
        .then(|| ("vip", "addresses of both families".to_owned()));
    let any = of_one_family.clone().or_else(|| families.clone());
    let found = if forward.is_some_and(Forward::is_full_nat) && families.is_some() {
        let why = "with forward = \"fullnat\": a packet of one family cannot be made one of the \
                   other for a backend that has no other address";
        families.map(|what| (what, why.to_owned()))
    } else if forward == Some(Forward::Nat) && any.is_some() {
        let why = "with forward = \"nat\": whose an answer is, is told by the backend's \
                   address and port alone, which would lead back to one address and port (with \
                   forward = \"fullnat\" each connection has its own)";
        any.map(|what| (what, why.to_owned()))
    } else if let Some(method) = method.filter(|method| method.needs().timestamps) {
        let why = format!(
            "with method = \"{method}\": whose an answer is, is told by one address and port"
        );
        of_one_family.map(|what| (what, why))
    } else if states == Some(States::Agents) {
        let why = "with states = \"agents\": agents are asked for the connections of one \
                   address and port";
        any.map(|what| (what, why.to_owned()))
    } else {
        None
    };
    let Some(((field, what), why)) = found else { return };
    let span = match field {
        "port" => raw.port.as_ref().map(Spanned::span),
        _ => raw.vip.as_ref().map(Spanned::span),
    };
    let right = "give one address, and one port or any_port = true, or make a service for each";
    let goes = if what.contains("addresses") { "do not go" } else { "does not go" };
    scope.problem(span.unwrap_or_default(), field, format!("{what} {goes} {why}"), right);
}

#[derive(Clone, Copy)]
enum Port {
    One(u16),
    Range(Ports),
    Any,
    /// A problem was reported.
    Bad,
}

fn port(raw: &written::Service, scope: &mut Scope<'_, '_>) -> Port {
    let any = raw.any_port.as_ref().is_some_and(|any| *any.get_ref());
    let either =
        "give either port = 1..65535, or a range such as \"8000-8999\", or any_port = true";
    let Some(port) = &raw.port else {
        if any {
            return Port::Any;
        }
        scope.missing("port", either);
        return Port::Bad;
    };
    let value = match port.get_ref() {
        Value::Number(number) => *number,
        Value::Word(range) => {
            match range.parse() {
                Ok(_) if any => {
                    let wrong =
                        format!("port = {range:?} and any_port = true contradict each other");
                    scope.problem(port.span(), "port", wrong, either);
                }
                Ok(ports) => return Port::Range(ports),
                Err(()) => {
                    let wrong = format!("{range:?} is no range of ports");
                    let right = "give a number without quotes, or the first and the last port, such as \
                                 \"8000-8999\"";
                    scope.problem(port.span(), "port", wrong, right);
                }
            }
            return Port::Bad;
        }
    };
    match u16::try_from(value) {
        Ok(1..) if any => {
            let wrong = format!("port = {value} and any_port = true contradict each other");
            scope.problem(port.span(), "port", wrong, either);
        }
        Ok(value @ 1..) => return Port::One(value),
        _ => {
            let right = if any {
                "remove it: any_port = true is all that is needed"
            } else {
                "give 1..65535, or remove it and set any_port = true"
            };
            scope.problem(port.span(), "port", format!("{value} is not a port"), right);
        }
    }
    Port::Bad
}

/// The method with its settings. One with a problem has its default, so that all problems are
/// found; `None` only if tables of no method at all can be published.
fn method(
    raw: &written::Service,
    methods: &[MethodId],
    scope: &mut Scope<'_, '_>,
) -> Option<Method> {
    let chosen = chosen_method(raw.method.as_ref(), methods, scope);
    let known = chosen.is_some() || raw.method.is_none();
    let method = chosen.unwrap_or(resolve::METHOD);
    let mut settings = Settings::of(method);
    let mut good = known;
    for (name, given) in &raw.settings {
        if let Some((owner, setting)) = owner_of(name, method) {
            let value = setting_of(setting, given, scope);
            if owner == method {
                good &= value.is_some_and(|value| settings.set(name, value.into()).is_ok());
            } else if known {
                match why_none(method).filter(|_| [SCHEDULER, LOAD].contains(name)) {
                    Some(why) => unscheduled(given.span(), name, method, why, scope),
                    None => foreign(given.span(), name, owner.name(), scope),
                }
            }
        }
    }
    let method = Method::new(settings)?;
    if good && let Err(misfit) = method.fits(raw.backend.len()) {
        let Misfit { setting, wrong, right } = misfit;
        match raw.settings.iter().find(|(name, _)| *name == setting) {
            Some((_, given)) => scope.problem(given.span(), setting, wrong, right),
            None => scope.here(setting, wrong, right),
        }
    }
    Some(method)
}

/// The method that is named. Every one that there is is known; the data plane must run it.
fn chosen_method(
    raw: Option<&Spanned<String>>,
    methods: &[MethodId],
    scope: &mut Scope<'_, '_>,
) -> Option<MethodId> {
    let raw = raw?;
    let words: Vec<&str> = methods.iter().map(|method| method.name()).collect();
    let right = format!("give one of {}", words.join(", "));
    let named = MethodId::named(raw.get_ref());
    let wrong = match named {
        Some(method) if methods.contains(&method) => return named,
        Some(_) => format!("the data plane has no program for {:?}", raw.get_ref()),
        None => format!("{:?} is not known", raw.get_ref()),
    };
    scope.problem(raw.span(), "method", wrong, right);
    // So that its settings are looked at as well.
    named.filter(|method| method.info().builder.is_some())
}

/// The method that has this setting: the chosen one, if it has.
fn owner_of(name: &str, chosen: MethodId) -> Option<(MethodId, &'static Setting)> {
    let mut methods = std::iter::once(chosen).chain(MethodId::published());
    methods.find_map(|method| {
        let found = method.info().settings.iter().find(|setting| setting.name == name);
        found.map(|setting| (method, setting))
    })
}

/// A value in range, or the number of a word.
fn setting_of(setting: &Setting, given: &Spanned<Value>, scope: &mut Scope<'_, '_>) -> Option<u32> {
    let (least, most) = setting.range;
    let number = match given.get_ref() {
        Value::Word(word) if !setting.words.is_empty() => {
            let choices: Vec<_> = setting.words.iter().copied().zip(0..).collect();
            let word = Spanned::new(given.span(), word.clone());
            return scope.choice(Some(&word), setting.name, &choices);
        }
        Value::Number(number) if setting.words.is_empty() => *number,
        _ => {
            let right = match setting.words {
                [] => format!("give {least}..{most}"),
                words => format!("give one of {}", words.join(", ")),
            };
            scope.problem(given.span(), setting.name, "is of the wrong kind", right);
            return None;
        }
    };
    let number = Spanned::new(given.span(), number);
    let value: u32 = scope.integer(Some(&number), setting.name, least..=most)?;
    if setting.prime && !is_prime(value.into()) {
        let right = format!("the next prime is {}", next_prime(value.into()));
        scope.problem(given.span(), setting.name, format!("{value} is not a prime"), right);
        return None;
    }
    Some(value)
}

/// A setting that the method does not have would be ignored, which nobody wants.
fn foreign(span: Range<usize>, field: &str, owner: &str, scope: &mut Scope<'_, '_>) {
    let wrong = format!("is a setting of method = {owner:?}");
    let right = format!("remove it, or set method = {owner:?}");
    scope.problem(span, field, wrong, right);
}

/// A scheduler for a method that cannot have one.
fn unscheduled(
    span: Range<usize>,
    field: &str,
    method: MethodId,
    why: &str,
    scope: &mut Scope<'_, '_>,
) {
    let wrong = format!("{method} gives first packets their backends by hash alone: {why}");
    let can = MethodId::published().filter(|method| why_none(*method).is_none());
    let can: Vec<&str> = can.map(MethodId::name).collect();
    scope.problem(
        span,
        field,
        wrong,
        format!("remove it, or set method to one of {}", can.join(", ")),
    );
}

/// What is known of the service of a backend: its addresses, whether backends may be of any family, and
/// whether packets are translated.
type Of<'a> = (&'a [Vip], bool, bool);

/// The addresses of a service's backends; under NAT, one may stand at many ports.
type Addresses = HashMap<(IpAddr, Option<u16>), String>;

fn backends(
    raw: Vec<Spanned<written::Backend>>,
    of: Of<'_>,
    looks_up: bool,
    scope: &mut Scope<'_, '_>,
) -> Vec<Backend> {
    if raw.is_empty() && !looks_up {
        let right = "add a [[service.backend]] with name and address, or a [[service.discover]]";
        scope.here("backend", "no backends", right);
        return Vec::new();
    }
    let none_takes_new = raw.iter().all(|backend| {
        let backend = backend.get_ref();
        let zero = backend.weight.as_ref().is_some_and(|w| *w.get_ref() == 0);
        let is = |field: &Option<Spanned<bool>>| field.as_ref().is_some_and(|is| *is.get_ref());
        zero || is(&backend.drain) || is(&backend.backup)
    });
    if none_takes_new && !looks_up {
        scope.here(
            "backend",
            "service would have no backend for new connections",
            "give at least one backend a weight above 0, no drain and no backup",
        );
    }
    let mut names = HashMap::new();
    let mut addresses = HashMap::new();
    raw.into_iter()
        .enumerate()
        .filter_map(|(at, raw)| backend(raw, at, of, &mut names, &mut addresses, scope))
        .collect()
}

fn backend(
    raw: Spanned<written::Backend>,
    at: usize,
    of @ (vips, ..): Of<'_>,
    names: &mut HashMap<String, usize>,
    addresses: &mut Addresses,
    scope: &mut Scope<'_, '_>,
) -> Option<Backend> {
    let span = raw.span();
    let raw = raw.into_inner();
    let title = match &raw.name {
        Some(name) => format!("backend {:?}", name.get_ref()),
        None => format!("backend number {}", at + 1),
    };
    let mut scope = scope.inner(&title, span);
    let name = backend_name(raw.name.as_ref(), names, &mut scope);
    let example = match vips.first().map(|vip| vip.address) {
        Some(IpAddr::V6(_)) => "2001:db8::11",
        _ => "10.0.0.11",
    };
    let address = address(raw.address.as_ref(), "address", example, &mut scope);
    let port = scope.integer(raw.port.as_ref(), "port", 1..=u16::MAX);
    if let (Some(address), Some(given)) = (address, &raw.address) {
        place((address, port), given.span(), of, &title, addresses, &mut scope);
    }
    let weight = scope.integer(raw.weight.as_ref(), "weight", 0..=MAX_WEIGHT);
    Some(Backend {
        name: name?,
        address: address?,
        port,
        weight: weight.unwrap_or(resolve::WEIGHT),
        drain: raw.drain.is_some_and(Spanned::into_inner),
        backup: raw.backup.is_some_and(Spanned::into_inner),
        // Whoever knows the balancer's says which.
        nat_sources: Vec::new(),
    })
}

fn backend_name(
    raw: Option<&Spanned<String>>,
    names: &mut HashMap<String, usize>,
    scope: &mut Scope<'_, '_>,
) -> Option<String> {
    let Some(name) = raw else {
        scope.missing("name", "give one such as name = \"b1\"");
        return None;
    };
    if !printable(name, scope) {
        return None;
    }
    if let Some(line) = names.get(name.get_ref()) {
        let wrong = format!("a backend of this name is on line {line} already");
        scope.problem(name.span(), "name", wrong, "rename one of them");
        return None;
    }
    names.insert(name.get_ref().clone(), scope.line(name.span()));
    Some(name.get_ref().clone())
}

/// A backend's address against the service's and against the other backends'.
fn place(
    (address, port): (IpAddr, Option<u16>),
    span: Range<usize>,
    (vips, any_family, nat): Of<'_>,
    title: &str,
    addresses: &mut Addresses,
    scope: &mut Scope<'_, '_>,
) {
    if let Some(own) = vips.iter().find(|vip| vip.contains(address)) {
        let wrong = match own.is_host() {
            true => format!("{address} is the vip of the service itself"),
            false => format!("{address} is one of the service's own vip {own}"),
        };
        scope.problem(span.clone(), "address", wrong, "give the backend's own address");
    }
    if let Some(vip) = vips.first() {
        let same = |vip: &Vip| vip.address.is_ipv4() == address.is_ipv4();
        if !vips.iter().any(same) && !any_family {
            let family = if vip.address.is_ipv4() { "IPv4" } else { "IPv6" };
            let wrong = format!("{address} is not of the family of the vip {vip}");
            let right = format!(
                "give an {family} address, or make a service for each family, or set forward to a \
                 tunnel, such as \"ipip\""
            );
            scope.problem(span.clone(), "address", wrong, right);
        }
    }
    let place = (address, port.filter(|_| nat));
    if let Some(other) = addresses.get(&place) {
        let wrong = format!("{address} is the address of {other} already");
        scope.problem(span, "address", wrong, "remove one of them, or use weight");
    } else {
        addresses.insert(place, title.to_owned());
    }
}
