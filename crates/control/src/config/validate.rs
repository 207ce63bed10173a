//! Validation: from text and wide numbers to values in range that agree with each other.

mod scope;
mod service;

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use weir_steering::MethodId;

use super::error::Problems;
use super::{XdpMode, written};
use scope::Scope;
pub(super) use service::{Check, Service, is_host, is_name};

/// The file with every given value in range; what was not given is `None`.
#[derive(Debug)]
pub(super) struct File {
    pub balancer: Balancer,
    pub limits: Limits,
    pub services: Vec<Service>,
}

#[derive(Debug, Default)]
pub(super) struct Balancer {
    pub name: Option<String>,
    pub interfaces: Vec<String>,
    pub mode: Option<XdpMode>,
    pub run_dir: Option<PathBuf>,
}

#[derive(Debug, Default)]
pub(super) struct Limits {
    pub services: Option<u32>,
    pub backends: Option<u32>,
    pub pending_flows: Option<u32>,
    pub unreported_flows: Option<u32>,
    pub tracked_flows: Option<u32>,
    pub udp_flows: Option<u32>,
    pub event_ring_bytes: Option<u32>,
    pub table_bytes: Option<u32>,
    pub states_per_service: Option<u32>,
}

/// Validates a file for a data plane that runs these methods. The result is usable only if `problems` stayed empty.
pub(super) fn validate(
    file: written::File,
    methods: &[MethodId],
    problems: &mut Problems<'_>,
) -> Option<File> {
    let balancer = balancer(file.balancer, problems);
    let place = file.limits.as_ref().and_then(|limits| {
        let limits = limits.get_ref();
        let fields = [&limits.table_bytes, &limits.states_per_service];
        fields.into_iter().find_map(|field| field.as_ref().map(Spanned::span))
    });
    let limits = limits(file.limits, problems);
    let given = file.service.len();
    unique_names(&file.service, problems);
    unique_addresses(&file.service, problems);
    fits(&file.service, &limits, problems);
    let services: Vec<Service> = file
        .service
        .into_iter()
        .enumerate()
        .filter_map(|(at, raw)| service::validate(raw, at, methods, problems))
        .collect();
    if let Some(place) = place {
        tables_fit(&services, &limits, place, problems);
    }
    (services.len() == given).then_some(File { balancer, limits, services })
}

fn balancer(raw: Option<Spanned<written::Balancer>>, problems: &mut Problems<'_>) -> Balancer {
    let (span, raw) = match raw {
        Some(raw) => (raw.span(), raw.into_inner()),
        None => (0..0, written::Balancer::default()),
    };
    let mut scope = Scope::new(problems, "balancer", span);
    let name = raw.name.as_ref().filter(|name| {
        let good = is_instance_name(name.get_ref());
        if !good {
            scope.problem(
                name.span(),
                "name",
                format!("{:?} is not a name", name.get_ref()),
                "use 1 to 32 of a-z, 0-9 and -",
            );
        }
        good
    });
    Balancer {
        name: name.map(|name| name.get_ref().clone()),
        interfaces: interfaces(raw.interfaces, &mut scope),
        mode: scope.choice(
            raw.mode.as_ref(),
            "mode",
            &[("auto", XdpMode::Auto), ("native", XdpMode::Native), ("generic", XdpMode::Generic)],
        ),
        run_dir: raw.run_dir.and_then(|dir| {
            if Path::new(dir.get_ref()).is_absolute() {
                return Some(PathBuf::from(dir.into_inner()));
            }
            scope.problem(
                dir.span(),
                "run_dir",
                format!("{:?} is not an absolute path", dir.get_ref()),
                "give one such as /run/weir",
            );
            None
        }),
    }
}

fn interfaces(
    raw: Option<Spanned<Vec<Spanned<String>>>>,
    scope: &mut Scope<'_, '_>,
) -> Vec<String> {
    let example = "name at least one, such as interfaces = [\"eth0\"]";
    let Some(raw) = raw else {
        scope.missing("interfaces", example);
        return Vec::new();
    };
    if raw.get_ref().is_empty() {
        scope.problem(raw.span(), "interfaces", "the list is empty", example);
    }
    let mut names: Vec<String> = Vec::new();
    for one in raw.into_inner() {
        let span = one.span();
        let name = one.into_inner();
        let bad = |c: char| c == '/' || c == ':' || c.is_whitespace();
        if name.is_empty() || name.len() > 15 || name.contains(bad) || name.starts_with('.') {
            scope.problem(
                span,
                "interfaces",
                format!("{name:?} is not an interface name"),
                "a name has 1 to 15 characters; `ip link` lists them",
            );
        } else if names.contains(&name) {
            scope.problem(span, "interfaces", format!("{name:?} is listed twice"), "remove one");
        } else {
            names.push(name);
        }
    }
    names
}

fn limits(raw: Option<Spanned<written::Limits>>, problems: &mut Problems<'_>) -> Limits {
    let Some(raw) = raw else {
        return Limits::default();
    };
    let mut scope = Scope::new(problems, "limits", raw.span());
    let raw = raw.into_inner();
    let ring = raw.event_ring_bytes.filter(|bytes| {
        let power = u64::try_from(*bytes.get_ref()).is_ok_and(u64::is_power_of_two);
        if !power {
            scope.problem(
                bytes.span(),
                "event_ring_bytes",
                format!("{} is not a power of two", bytes.get_ref()),
                format!("for example {}", near_power(*bytes.get_ref())),
            );
        }
        power
    });
    let mut count = |field: Option<Spanned<i64>>, name: &str, least: u32, most: u32| {
        scope.integer(field.as_ref(), name, least..=most)
    };
    const FLOWS: u32 = 1 << 26;
    Limits {
        services: count(raw.services, "services", 1, 65_536),
        backends: count(raw.backends, "backends", 1, 32_767),
        pending_flows: count(raw.pending_flows, "pending_flows", 1, FLOWS),
        unreported_flows: count(raw.unreported_flows, "unreported_flows", 1, FLOWS),
        tracked_flows: count(raw.tracked_flows, "tracked_flows", 1, FLOWS),
        udp_flows: count(raw.udp_flows, "udp_flows", 1, FLOWS),
        // The kernel wants whole pages; beyond 1 GiB it refuses.
        event_ring_bytes: count(ring, "event_ring_bytes", 4096, 1 << 30),
        // Offsets beyond 512 MiB are more than the kernel's verifier follows.
        table_bytes: count(raw.table_bytes, "table_bytes", 1 << 20, 1 << 29),
        states_per_service: count(raw.states_per_service, "states_per_service", 1, 1 << 28),
    }
}

fn near_power(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0).clamp(4096, 1 << 30).next_power_of_two()
}

/// Whether a name can stand in a path of pinned objects and in a command.
pub(super) fn is_instance_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=32).contains(&name.len()) && name.chars().all(plain)
}

fn unique_names(services: &[Spanned<written::Service>], problems: &mut Problems<'_>) {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for service in services {
        let Some(name) = &service.get_ref().name else {
            continue;
        };
        if let Some(first) = seen.get(name.get_ref().as_str()) {
            let wrong = format!("a service of this name is on line {first} already");
            let field = format!("service {:?}: name", name.get_ref());
            problems.add(name.span(), field, wrong, "rename one of them");
        } else {
            seen.insert(name.get_ref(), problems.line(name.span().start));
        }
    }
}

/// Two services may not claim the same address, protocol and port. `any_port` claims what is
/// left over, so that it collides only with another `any_port`.
fn unique_addresses(services: &[Spanned<written::Service>], problems: &mut Problems<'_>) {
    let mut seen = HashMap::new();
    for (at, service) in services.iter().enumerate() {
        let raw = service.get_ref();
        let Some((key, span)) = service::claim(raw) else {
            continue;
        };
        let title = service::title(raw, at);
        let Some(first) = seen.get(&key) else {
            seen.insert(key, title);
            continue;
        };
        let (vip, protocol, port) = key;
        let port = port.map_or_else(|| "any port".to_owned(), |port| format!("port {port}"));
        problems.add(
            span,
            title,
            format!("{vip} {} {port} belongs to {first} already", protocol.name()),
            "give it another address, protocol or port",
        );
    }
}

/// A service with all the states that it may have must be able to have a table, and another one
/// beside it, or its pool could not be changed any more.
fn tables_fit(
    services: &[Service],
    limits: &Limits,
    place: Range<usize>,
    problems: &mut Problems<'_>,
) {
    let default = super::Limits::default();
    let room = u64::from(limits.table_bytes.unwrap_or(default.table_bytes));
    let states = u64::from(limits.states_per_service.unwrap_or(default.states_per_service));
    let bytes = |service: &Service, states: u64| 2 * service.method.table_bytes(states);
    let largest = services.iter().max_by_key(|service| bytes(service, states));
    let Some(service) = largest.filter(|service| bytes(service, states) > room) else { return };
    let empty = bytes(service, 0);
    let each = (bytes(service, states) - empty).div_ceil(states).max(1);
    let right = match room.saturating_sub(empty) / each {
        0 => String::new(),
        most => format!(", or states_per_service to {most} or less"),
    };
    let needed = bytes(service, states);
    problems.add(
        place,
        "limits",
        format!(
            "service {:?} with {states} states takes {needed} bytes for its table and the next \
             one, and table_bytes is {room}",
            service.name
        ),
        format!("set table_bytes to {needed} or more{right}"),
    );
}

/// The data plane must have room for what the file lists.
fn fits(services: &[Spanned<written::Service>], limits: &Limits, problems: &mut Problems<'_>) {
    let default = super::Limits::default();
    let most = limits.services.unwrap_or(default.services) as usize;
    if let Some(one_too_many) = services.get(most) {
        problems.add(
            one_too_many.span(),
            "service",
            format!("{} services, and limits.services is {most}", services.len()),
            format!("set limits.services to {} or more", services.len()),
        );
    }
    let most = limits.backends.unwrap_or(default.backends) as usize;
    let backends = services.iter().flat_map(|service| &service.get_ref().backend);
    let total = backends.clone().count();
    if let Some(one_too_many) = backends.clone().nth(most) {
        problems.add(
            one_too_many.span(),
            "service.backend",
            format!("{total} backends in all, and limits.backends is {most}"),
            format!("set limits.backends to {total} or more (at most 32767)"),
        );
    }
}
