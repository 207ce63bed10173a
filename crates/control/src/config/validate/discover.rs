//! Validation of where backends are looked up.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;

use super::super::error::Problems;
use super::super::{Discover, Forward, MAX_WEIGHT, NatSources, Records, resolve, written};
use super::Service;
use super::full_nat::own_sources;
use super::scope::Scope;
use super::service::is_name;

/// Characters of a name: the names of its backends have an address and a port behind it.
const LONGEST: usize = 16;
const MOST: u16 = 1024;
const MOST_SERVERS: usize = 8;
const DNS: u16 = 53;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// How a service's packets are forwarded, and whether its backends are looked up by addresses of IPv4, as far as that is
/// known.
type Of = (Option<Forward>, Option<bool>);

/// The entries of a service. `sources`: the balancer's.
pub(super) fn entries(
    raw: Vec<Spanned<written::Discover>>,
    of: Of,
    sources: &NatSources,
    scope: &mut Scope<'_, '_>,
) -> Vec<Discover> {
    let mut names = HashMap::new();
    let each = raw.into_iter().enumerate();
    each.filter_map(|(at, raw)| entry(raw, at, (of, sources), &mut names, scope)).collect()
}

fn entry(
    raw: Spanned<written::Discover>,
    at: usize,
    (of, sources): (Of, &NatSources),
    names: &mut HashMap<String, usize>,
    scope: &mut Scope<'_, '_>,
) -> Option<Discover> {
    let nat = of.0.is_some_and(Forward::is_nat);
    let span = raw.span();
    let raw = raw.into_inner();
    let title = match &raw.name {
        Some(name) => format!("discover {:?}", name.get_ref()),
        None => format!("discover number {}", at + 1),
    };
    let mut scope = scope.inner(&title, span);
    let name = name(raw.name.as_ref(), names, &mut scope);
    let records = records(&raw, &mut scope);
    let port = scope.integer(raw.port.as_ref(), "port", 1..=u16::MAX);
    let weight = scope.integer(raw.weight.as_ref(), "weight", 1..=MAX_WEIGHT);
    if let Some(given) = &raw.port
        && !nat
    {
        let wrong = "packets keep their port where they are not translated";
        scope.problem(given.span(), "port", wrong, "remove it, or set forward = \"nat\"");
    }
    if raw.srv.is_some() {
        let own = "remove it: SRV records have their own";
        if let Some(given) = &raw.port {
            scope.problem(given.span(), "port", "is not for srv", own);
        }
        if let Some(given) = &raw.weight {
            scope.problem(given.span(), "weight", "is not for srv", own);
        }
    }
    let own = raw.nat_sources.as_ref();
    let nat_sources = own.map(|given| own_sources(given, of, sources, &mut scope));
    let servers = servers(raw.servers, &mut scope);
    let every = Duration::from_secs(1)..=Duration::from_secs(3600);
    let every = scope.duration(raw.every.as_ref(), "every", every);
    let most = scope.integer(raw.most.as_ref(), "most", 1..=MOST);
    let leave_after =
        scope.duration(raw.leave_after.as_ref(), "leave_after", Duration::ZERO..=30 * DAY);
    Some(Discover {
        name: name?,
        records: records?,
        port,
        weight: weight.unwrap_or(resolve::WEIGHT),
        nat_sources: nat_sources.unwrap_or_default(),
        servers,
        every: every.unwrap_or(resolve::DISCOVER_EVERY),
        most: most.unwrap_or(resolve::DISCOVER_MOST),
        leave_after: leave_after.unwrap_or(resolve::DISCOVER_LEAVE_AFTER),
    })
}

fn name(
    raw: Option<&Spanned<String>>,
    names: &mut HashMap<String, usize>,
    scope: &mut Scope<'_, '_>,
) -> Option<String> {
    let Some(given) = raw else {
        scope.missing(
            "name",
            "give one such as name = \"web\"; its backends are called web-10.0.0.11",
        );
        return None;
    };
    let text = given.get_ref();
    if !is_name(text) || text.len() > LONGEST {
        let wrong = format!("{text:?} is not a name");
        let right = format!("use 1 to {LONGEST} letters, digits and - _ .");
        scope.problem(given.span(), "name", wrong, right);
        return None;
    }
    if let Some(line) = names.get(text) {
        let wrong = format!("an entry of this name is on line {line} already");
        scope.problem(given.span(), "name", wrong, "rename one of them");
        return None;
    }
    names.insert(text.clone(), scope.line(given.span()));
    Some(text.clone())
}

fn records(raw: &written::Discover, scope: &mut Scope<'_, '_>) -> Option<Records> {
    let example = "dns = \"web.example.org\" or srv = \"_http._tcp.example.org\"";
    match (&raw.dns, &raw.srv) {
        (Some(_), Some(srv)) => {
            scope.problem(srv.span(), "srv", "dns is given, too", format!("give one: {example}"));
            None
        }
        (None, None) => {
            scope.here("", "says not what is asked for", format!("give {example}"));
            None
        }
        (Some(given), None) => domain(given, "dns", scope).map(Records::Dns),
        (None, Some(given)) => domain(given, "srv", scope).map(Records::Srv),
    }
}

/// A name as RFC 1035 limits it, of letters, digits, hyphens, and underscores as SRV records have them.
fn domain(given: &Spanned<String>, field: &str, scope: &mut Scope<'_, '_>) -> Option<String> {
    let text = given.get_ref();
    if text.parse::<IpAddr>().is_ok() {
        let wrong = format!("{text} is an address");
        let right = "add a [[service.backend]] with it; this is for names";
        scope.problem(given.span(), field, wrong, right);
        return None;
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let label = |label: &str| (1..=63).contains(&label.len()) && label.chars().all(plain);
    let whole = text.strip_suffix('.').unwrap_or(text);
    if whole.len() > 253 || !whole.split('.').all(label) {
        let wrong = format!("{text:?} is not a domain name");
        let right = "use labels of 1 to 63 letters, digits, - and _ with dots in between";
        scope.problem(given.span(), field, wrong, right);
        return None;
    }
    Some(text.clone())
}

fn servers(
    raw: Option<Spanned<Vec<Spanned<String>>>>,
    scope: &mut Scope<'_, '_>,
) -> Vec<SocketAddr> {
    let Some(raw) = raw else { return Vec::new() };
    if !(1..=MOST_SERVERS).contains(&raw.get_ref().len()) {
        let wrong = format!("{} are listed", raw.get_ref().len());
        let right = format!("give 1 to {MOST_SERVERS}, or remove it to ask those of this host");
        scope.problem(raw.span(), "servers", wrong, right);
    }
    let mut servers = Vec::new();
    for one in raw.into_inner() {
        let text = one.get_ref();
        let address =
            text.parse().ok().or_else(|| Some((text.parse::<IpAddr>().ok()?, DNS).into()));
        match address.filter(|address: &SocketAddr| address.port() != 0) {
            Some(address) => servers.push(address),
            None => scope.problem(
                one.span(),
                "servers",
                format!("{text:?} is not the address of a name server"),
                "give such as \"10.0.0.53\", \"10.0.0.53:5353\" or \"[2001:db8::53]:53\"",
            ),
        }
    }
    servers
}

/// Reports services with entries in a fleet: each balancer would ask at another time, and lead connections by
/// another pool.
pub(super) fn are_alone(
    services: &[Service],
    places: &[Range<usize>],
    problems: &mut Problems<'_>,
) {
    for (service, place) in services.iter().zip(places) {
        if !service.discover.is_empty() {
            problems.add(
                place.clone(),
                format!("service {:?}: discover", service.name),
                "the balancers of a fleet would each look backends up by themselves, and differ",
                "list the backends, and change them by commands (docs/fleet.md)",
            );
        }
    }
}
