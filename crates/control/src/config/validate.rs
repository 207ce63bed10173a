//! Validation: from text and wide numbers to values in range that agree with each other.

mod af_xdp;
mod agents;
mod announce;
mod apart;
mod api;
mod check;
mod cookies;
mod discover;
mod dpdk;
mod forward;
mod full_nat;
mod listen;
mod lists;
mod maintenance;
mod new_flows;
pub(super) mod offload;
mod p4;
mod quic;
mod scope;
mod service;
mod store;

use std::collections::{HashMap, HashSet};
use std::net::{Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use weir_fleet::StoreConfig;
use weir_plane::KINDS;
use weir_steering::MethodId;
use weir_steering::cheetah::{MOST_PARTITIONS, PARTITIONS};

use super::api::{Api, Web};
use super::error::Problems;
use super::forward::NatSources;
use super::lists::MOST_LIST_PREFIXES;
use super::tables::{Bounds, Tables, largest};
use super::{
    AfXdp, Agents, Announce, Dpdk, Offload, P4, PlaneKind, SOCKET, SOCKET_NAME, TunnelSource, Vip,
    XdpMode, written,
};
pub(super) use check::Check;
use scope::Scope;
pub(super) use service::{Service, is_name, no_backend};

/// The file with every given value in range; what was not given is `None`.
#[derive(Debug)]
pub(super) struct File {
    pub balancer: Balancer,
    pub af_xdp: AfXdp,
    pub dpdk: Dpdk,
    pub offload: Option<Offload>,
    pub offload_aside: Option<String>,
    pub p4: P4,
    pub limits: Limits,
    pub api: Api,
    pub agents: Option<Agents>,
    pub announce: Option<Announce>,
    pub store: Option<StoreConfig>,
    pub services: Vec<Service>,
}

#[derive(Debug, Default)]
pub(super) struct Balancer {
    pub name: Option<String>,
    pub interfaces: Vec<String>,
    pub mode: Option<XdpMode>,
    pub plane: Option<PlaneKind>,
    pub run_dir: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
    pub next_program: Option<PathBuf>,
    pub look_every: Option<Duration>,
    pub icmp_per_second: Option<u32>,
    pub resets_per_second: Option<u32>,
    pub metrics: Option<SocketAddr>,
    pub web: Option<Web>,
    pub hold_checks_at: Option<u32>,
    pub follow_flows: Option<u32>,
    pub count_interfaces: Option<bool>,
    pub echo: Option<bool>,
    pub tunnel_source: Option<TunnelSource>,
    pub tunnel_source6: Option<Ipv6Addr>,
    pub nat: NatSources,
}

#[derive(Debug, Default)]
pub(super) struct Limits {
    pub services: Option<u32>,
    pub backends: Option<u32>,
    pub pending_flows: Option<u32>,
    pub unreported_flows: Option<u32>,
    pub tracked_flows: Option<u32>,
    pub answered_flows: Option<u32>,
    pub slot_partitions: Option<u32>,
    pub udp_flows: Option<u32>,
    pub event_ring_bytes: Option<u32>,
    pub table_bytes: Option<u32>,
    pub states_per_service: Option<u32>,
    pub half_open_flows: Option<u32>,
    pub states_per_prefix: Option<u32>,
    pub list_prefixes: Option<u32>,
    pub nat_connections: Option<u32>,
}

/// Validates a file for a data plane that runs these methods. The result is usable only if `problems` stayed empty.
pub(super) fn validate(
    file: written::File,
    methods: &[MethodId],
    plane: Option<PlaneKind>,
    problems: &mut Problems<'_>,
) -> Option<File> {
    listen::apart(&file, problems);
    let followed = file
        .balancer
        .as_ref()
        .and_then(|raw| raw.get_ref().follow_flows.clone().filter(|given| *given.get_ref() > 0));
    let next = file.balancer.as_ref().and_then(|raw| raw.get_ref().next_program.clone());
    let counted = file
        .balancer
        .as_ref()
        .and_then(|raw| raw.get_ref().count_interfaces.clone().filter(|given| *given.get_ref()));
    let said = file.balancer.as_ref().map(|raw| {
        let place = |field: &Option<Spanned<String>>| field.as_ref().map(Spanned::span);
        let plane = place(&raw.get_ref().plane).unwrap_or(raw.span());
        (plane, place(&raw.get_ref().mode))
    });
    let tunnel_source = file.balancer.as_ref().and_then(|raw| raw.get_ref().tunnel_source.clone());
    let begin = file.balancer.as_ref().map_or([None, None], |raw| {
        let raw = raw.get_ref();
        [place_of(raw.tunnel_source.as_ref()), place_of(raw.tunnel_source6.as_ref())]
    });
    let mut balancer = balancer(file.balancer, problems);
    let of_file = balancer.plane.unwrap_or_default();
    balancer.plane = plane.or(balancer.plane);
    let af_xdp = af_xdp::table(file.af_xdp, problems);
    let dpdk = dpdk::table(file.dpdk, problems);
    let place = file.offload.as_ref().map(Spanned::span);
    let mut offload = offload::table(file.offload, problems);
    let mut offload_aside = None;
    if let Some(place) = &place {
        let kind = balancer.plane.unwrap_or_default();
        let threads = if kind == PlaneKind::Dpdk { dpdk.0.threads } else { af_xdp.threads };
        let beside = offload::Beside { kind, threads, interfaces: balancer.interfaces.len() };
        let against = offload::against(offload.as_ref(), &beside);
        // What the file has for its own plane is no reason against another one, which may be the way back from it.
        if plane.is_some() && (kind != of_file || !kind.is_beside()) {
            offload_aside = offload::aside(&against, kind);
            if offload_aside.is_some() {
                offload = None;
            }
        } else {
            offload::refuse(against, place, problems);
        }
    }
    let p4 = p4::table(file.p4, problems);
    match balancer.plane {
        Some(kind @ (PlaneKind::AfXdp | PlaneKind::Dpdk)) => {
            let asked = [
                (place_of(followed.as_ref()), "follow_flows", "follows no connections"),
                (place_of(next.as_ref()), "next_program", "hands no packets on to another program"),
                (place_of(counted.as_ref()), "count_interfaces", "does not count by interface"),
            ];
            in_user_space(kind, &file.service, asked, problems);
        }
        Some(PlaneKind::P4) => {
            let asked = p4::Asked {
                mode: said.as_ref().and_then(|(_, mode)| mode.clone()),
                followed: place_of(followed.as_ref()),
                next_program: place_of(next.as_ref()),
                counted: place_of(counted.as_ref()),
                tunnel_source,
                store: file.store.as_ref().map(Spanned::span),
                limits: file.limits.as_ref(),
                services: &file.service,
            };
            p4::can_do(asked, problems);
        }
        _ => {}
    }
    if balancer.plane == Some(PlaneKind::Dpdk) {
        let (plane, mode) = said.unwrap_or((0..0, None));
        dpdk::is_whole(dpdk.1.as_ref(), balancer.interfaces.len(), plane, problems);
        dpdk::at_taps(&mut balancer.mode, mode, problems);
    }
    let given_limit = file.limits.as_ref().and_then(|limits| {
        let limits = limits.get_ref();
        let fields = [
            ("limits: table_bytes", &limits.table_bytes),
            ("limits: states_per_service", &limits.states_per_service),
            ("limits: half_open_flows", &limits.half_open_flows),
        ];
        fields.into_iter().find_map(|(name, field)| Some((name, field.as_ref()?.span())))
    });
    let limits = limits(file.limits, problems);
    let api = api::api(file.api, problems);
    let heard = file.agents.is_some();
    let agents = agents::table(file.agents, problems);
    let announce = announce::validate(file.announce, problems);
    let (store, fleet) = store::table(file.store, problems);
    let given = file.service.len();
    unique_names(&file.service, problems);
    unique_addresses(&file.service, problems);
    forward::answers_apart(&file.service, problems);
    forward::begins_elsewhere(&file.service, begin, &balancer, problems);
    full_nat::has_sources(&file.service, &balancer.nat, problems);
    apart::backends(&file.service, &balancer.nat, problems);
    fits(&file.service, &limits, problems);
    let places: Vec<Range<usize>> = file.service.iter().map(Spanned::span).collect();
    let services: Vec<Service> = file
        .service
        .into_iter()
        .enumerate()
        .filter_map(|(at, raw)| service::validate(raw, at, methods, &balancer.nat, problems))
        .collect();
    if services.len() == given {
        if balancer.plane == Some(PlaneKind::P4) {
            p4::fits(&services, &places, problems);
        }
        partitions_fit(&services, &places, &limits, problems);
        lists::fit(&services, &places, &limits, problems);
        if place.is_some() && offload_aside.is_none() {
            offload::outlive_looks(&services, &places, problems);
        }
        fragments_are_alone(&services, &places, problems);
        agents::are_heard(&services, &places, heard, problems);
        if fleet {
            store::serve_a_fleet(&services, &places, problems);
            discover::are_alone(&services, &places, problems);
        }
        tables_fit(&services, &limits, (given_limit, &places), problems);
    }
    let whole = services.len() == given;
    whole.then_some(File {
        balancer,
        af_xdp,
        dpdk: dpdk.0,
        offload,
        offload_aside,
        p4,
        limits,
        api,
        agents,
        announce,
        store,
        services,
    })
}

/// Fewer would find nothing in a day.
const MOST_FOLLOWED: u32 = 65_536;
/// One for each microsecond.
const MOST_ICMP_PER_SECOND: u32 = 1_000_000;

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
    let web = api::web(&raw, &mut scope);
    if let Some(include) = &raw.include {
        // In files it is a comment by now.
        let wrong = "this text comes by itself, without the files beside it";
        scope.problem(include.span(), "include", wrong, "send all of it as one text");
    }
    Balancer {
        name: name.map(|name| name.get_ref().clone()),
        interfaces: interfaces(raw.interfaces, &mut scope),
        mode: scope.choice(
            raw.mode.as_ref(),
            "mode",
            &[("auto", XdpMode::Auto), ("native", XdpMode::Native), ("generic", XdpMode::Generic)],
        ),
        plane: scope.choice(raw.plane.as_ref(), "plane", &PlaneKind::ALL),
        run_dir: raw.run_dir.and_then(|dir| {
            let path = Path::new(dir.get_ref());
            if path.is_absolute() && path.join(SOCKET).as_os_str().len() > SOCKET_NAME {
                let long = path.as_os_str().len();
                let right = format!(
                    "at most {}, so that its socket has a name",
                    SOCKET_NAME - SOCKET.len() - 1
                );
                scope.problem(dir.span(), "run_dir", format!("{long} bytes"), right);
                return None;
            }
            if path.is_absolute() {
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
        state_dir: raw.state_dir.and_then(|dir| {
            let path = Path::new(dir.get_ref());
            if path.is_absolute() {
                return Some(path.to_owned());
            }
            scope.problem(
                dir.span(),
                "state_dir",
                format!("{:?} is not an absolute path", dir.get_ref()),
                "give one such as /var/lib/weir",
            );
            None
        }),
        next_program: raw.next_program.and_then(|pin| {
            let path = Path::new(pin.get_ref());
            if path.is_absolute() {
                return Some(path.to_owned());
            }
            scope.problem(
                pin.span(),
                "next_program",
                format!("{:?} is not an absolute path", pin.get_ref()),
                "give where an XDP program is pinned, such as /sys/fs/bpf/next",
            );
            None
        }),
        look_every: scope.duration(
            raw.look_every.as_ref(),
            "look_every",
            Duration::from_secs(1)..=Duration::from_secs(3600),
        ),
        icmp_per_second: scope.integer(
            raw.icmp_per_second.as_ref(),
            "icmp_per_second",
            0..=MOST_ICMP_PER_SECOND,
        ),
        resets_per_second: scope.integer(
            raw.resets_per_second.as_ref(),
            "resets_per_second",
            0..=MOST_ICMP_PER_SECOND,
        ),
        echo: raw.echo.map(Spanned::into_inner),
        metrics: api::address(
            raw.metrics.as_ref(),
            "metrics",
            "\"127.0.0.1:9469\" or \"[::1]:9469\"",
            &mut scope,
        ),
        web,
        follow_flows: follow_flows(raw.follow_flows.as_ref(), &mut scope),
        count_interfaces: raw.count_interfaces.map(Spanned::into_inner),
        hold_checks_at: scope.integer(raw.hold_checks_at.as_ref(), "hold_checks_at", 0..=100),
        tunnel_source: forward::source(raw.tunnel_source.as_ref(), &mut scope),
        tunnel_source6: forward::source6(raw.tunnel_source6.as_ref(), &mut scope),
        nat: full_nat::sources(raw.nat_sources, raw.nat_ports.as_ref(), raw.nat_log, &mut scope),
    }
}

fn place_of<T>(field: Option<&Spanned<T>>) -> Option<Range<usize>> {
    field.map(Spanned::span)
}

/// What there is not where a plane in user space decides packets.
fn in_user_space(
    kind: PlaneKind,
    services: &[Spanned<written::Service>],
    asked: [(Option<Range<usize>>, &str, &str); 3],
    problems: &mut Problems<'_>,
) {
    let kind = kind.name();
    let instead = "remove it, or set balancer.plane = \"kernel\"";
    for (place, field, lacks) in asked {
        if let Some(place) = place {
            let wrong = format!("a plane in user space ({kind}) {lacks}");
            problems.add(place, format!("balancer: {field}"), wrong, instead);
        }
    }
    for (at, service) in services.iter().enumerate() {
        let raw = service.get_ref();
        if let Some(given) = raw.forward.as_ref().filter(|word| word.get_ref() == "fullnat") {
            problems.add(
                given.span(),
                format!("{}: forward", service::title(raw, at)),
                format!(
                    "a plane in user space ({kind}) has no table of connections under full NAT"
                ),
                "take \"nat\" or a tunnel, or set balancer.plane = \"kernel\"",
            );
        }
    }
}

/// Whether the kernel would take it as a name of an interface.
pub(crate) fn is_interface_name(name: &str) -> bool {
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace();
    !name.is_empty() && name.len() < 16 && !name.contains(bad) && !name.starts_with('.')
}

/// One connection in so many is followed.
fn follow_flows(field: Option<&Spanned<i64>>, scope: &mut Scope<'_, '_>) -> Option<u32> {
    let one_in = scope.integer(field, "follow_flows", 0..=MOST_FOLLOWED)?;
    if one_in == 0 || one_in.is_power_of_two() {
        return Some(one_in);
    }
    scope.problem(
        field?.span(),
        "follow_flows",
        format!("{one_in} is not a power of two"),
        format!("for example {}", one_in.next_power_of_two()),
    );
    None
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
        if !is_interface_name(&name) {
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
    let of_prefix = raw.states_per_prefix.clone();
    let limits = Limits {
        services: count(raw.services, "services", 1, 65_536),
        backends: count(raw.backends, "backends", 1, 32_767),
        pending_flows: count(raw.pending_flows, "pending_flows", 1, FLOWS),
        unreported_flows: count(raw.unreported_flows, "unreported_flows", 1, FLOWS),
        tracked_flows: count(raw.tracked_flows, "tracked_flows", 1, FLOWS),
        answered_flows: count(raw.answered_flows, "answered_flows", 1, FLOWS),
        slot_partitions: count(raw.slot_partitions, "slot_partitions", 1, MOST_PARTITIONS),
        udp_flows: count(raw.udp_flows, "udp_flows", 1, FLOWS),
        // The kernel wants whole pages; beyond 1 GiB it refuses.
        event_ring_bytes: count(ring, "event_ring_bytes", 4096, 1 << 30),
        table_bytes: count(raw.table_bytes, "table_bytes", 1 << 20, MOST_TABLE_BYTES),
        states_per_service: count(raw.states_per_service, "states_per_service", 1, 1 << 28),
        half_open_flows: count(raw.half_open_flows, "half_open_flows", 1, 1 << 28),
        states_per_prefix: count(raw.states_per_prefix, "states_per_prefix", 0, 1 << 28),
        list_prefixes: count(raw.list_prefixes, "list_prefixes", 1, MOST_LIST_PREFIXES),
        // 256 MiB of memory, twice as many mappings.
        nat_connections: count(raw.nat_connections, "nat_connections", 2, 1 << 21),
    };
    let states = super::Limits::default().states_per_service;
    let states = limits.states_per_service.unwrap_or(states);
    if let (Some(most), Some(given)) = (limits.states_per_prefix, of_prefix)
        && most > states
    {
        scope.problem(
            given.span(),
            "states_per_prefix",
            format!("{most} is more than states_per_service, {states}, and would never count"),
            "give less, or 0 for no limit",
        );
    }
    limits
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
            let first = problems.said(*first, name.span().start);
            let wrong = format!("a service of this name is on {first} already");
            let field = format!("service {:?}: name", name.get_ref());
            problems.add(name.span(), field, wrong, "rename one of them");
        } else {
            seen.insert(name.get_ref(), name.span().start);
        }
    }
}

/// Two services may not claim the same address, protocol and port. A prefix, a range of ports and
/// `any_port` claim what is left over, so that they collide only with another such: the same prefix, a range
/// at the same address or prefix with a port in common, another `any_port`.
fn unique_addresses(services: &[Spanned<written::Service>], problems: &mut Problems<'_>) {
    let mut seen: HashMap<Vip, Vec<(std::rc::Rc<service::Claim>, String)>> = HashMap::new();
    let mut kinds = HashSet::new();
    for (at, service) in services.iter().enumerate() {
        let raw = service.get_ref();
        let Some((claim, span)) = service::claim(raw) else {
            continue;
        };
        let title = service::title(raw, at);
        let there = claim.vips.iter().filter_map(|vip| seen.get(vip)).flatten();
        let clash = there.filter_map(|(other, of)| Some((other.clash(&claim)?, other, of))).next();
        if let Some((vip, other, first)) = clash {
            let (own, protocol) = (claim.port_text(), claim.protocol.name());
            let has = match other.port_text() {
                theirs if theirs == own => String::new(),
                theirs => format!(", which has {theirs}"),
            };
            problems.add(
                span,
                title,
                format!("{vip} {protocol} {own} belongs to {first} already{has}"),
                "give it another address, protocol or port",
            );
            continue;
        }
        let places = claim.places();
        let wide = places.iter().filter(|at| at.key().is_none());
        kinds.extend(wide.flat_map(|at| [at.exactness(), (at.address_bits, 0)]));
        if kinds.len() > KINDS {
            let wrong = format!("more than {KINDS} kinds of prefixes and blocks of ports in all");
            let right = "let prefixes have fewer lengths, or ranges of ports begin and end at multiples \
                         of a larger power of two";
            problems.add(span.clone(), title.clone(), wrong, right);
            kinds.clear();
        }
        let claim = std::rc::Rc::new(claim);
        for vip in &claim.vips {
            seen.entry(*vip).or_default().push((claim.clone(), title.clone()));
        }
    }
}

/// Where later fragments are led by their source, no other service may listen at the address on the protocol: they do
/// not say which one they are for.
fn fragments_are_alone(services: &[Service], places: &[Range<usize>], problems: &mut Problems<'_>) {
    for (at, service) in services.iter().enumerate().filter(|(_, one)| one.fragments_by_source) {
        let meets = |other: &Service| {
            let both = |vip: &Vip| other.vips.iter().any(|other| other.meets(vip));
            other.protocol == service.protocol && service.vips.iter().any(both)
        };
        let mut others = services.iter().enumerate().filter(|(other, _)| *other != at);
        let Some((_, other)) = others.find(|(_, other)| meets(other)) else { continue };
        problems.add(
            places[at].clone(),
            format!("service {:?}: fragments", service.name),
            format!(
                "service {:?} is at the same address and of the same protocol, and a later fragment does not say \
                 which of both it is for",
                other.name
            ),
            "give one of the two another address, or remove it",
        );
    }
}

/// Services with connections by index share the partitions that there are.
fn partitions_fit(
    services: &[Service],
    places: &[Range<usize>],
    limits: &Limits,
    problems: &mut Problems<'_>,
) {
    let most = limits.slot_partitions.unwrap_or(super::Limits::default().slot_partitions);
    let mut total = 0;
    let mut beyond = None;
    for (service, place) in services.iter().zip(places) {
        total += service.method.settings().get(PARTITIONS);
        if total > most {
            beyond.get_or_insert(place);
        }
    }
    let Some(place) = beyond else { return };
    problems.add(
        place.clone(),
        PARTITIONS,
        format!("{total} partitions in all, and limits.slot_partitions is {most}"),
        format!("set limits.slot_partitions to {total} or more (at most {MOST_PARTITIONS})"),
    );
}

/// Bytes of tables at most: larger offsets are more than the kernel's verifier follows.
const MOST_TABLE_BYTES: u32 = 1 << 29;

/// States of a service, and half-open flows beside them, that there is to be room for if the file does not say how many.
const LEAST_STATES: u32 = 100_000;
const LEAST_HALF_OPEN: u32 = 1 << 18;

/// A limit that the file gives, and its place there.
type GivenLimit = (&'static str, Range<usize>);

impl Limits {
    /// Those that say how many states a service may have. Where the file does not say how many, states and half-open
    /// flows are as many as the tables of these services have room for, and so many at least.
    pub(super) fn bounds(&self, services: &[Service]) -> Bounds {
        let default = super::Limits::default();
        let tables = Tables::of(services);
        let room = self.table_bytes.unwrap_or(default.table_bytes);
        let fits = |states: u32| {
            let need = tables.need(&self.bounds_with(states));
            need.is_none_or(|need| need.bytes <= room.into())
        };
        let most = || largest(default.states_per_service, fits).unwrap_or(0).max(LEAST_STATES);
        self.bounds_with(self.states_per_service.unwrap_or_else(most))
    }

    fn bounds_with(&self, states_per_service: u32) -> Bounds {
        let default = super::Limits::default();
        let half_open = super::Limits::default_half_open(states_per_service).min(LEAST_HALF_OPEN);
        Bounds {
            states_per_service,
            half_open_flows: self.half_open_flows.unwrap_or(half_open),
            event_ring_bytes: self.event_ring_bytes.unwrap_or(default.event_ring_bytes),
            unreported_flows: self.unreported_flows.unwrap_or(default.unreported_flows),
        }
    }
}

/// A service with all the states that it may have must be able to have a table, and another one
/// beside it, or its pool could not be changed any more. `given`: the limit that says so, and its place;
/// without one, it is a matter of the service.
fn tables_fit(
    services: &[Service],
    limits: &Limits,
    (given, places): (Option<GivenLimit>, &[Range<usize>]),
    problems: &mut Problems<'_>,
) {
    let room = limits.table_bytes.unwrap_or(super::Limits::default().table_bytes);
    let (tables, bounds) = (Tables::of(services), limits.bounds(services));
    let Some(need) = tables.need(&bounds).filter(|need| need.bytes > room.into()) else { return };
    let fits = |states_per_service: u32| {
        let need = tables.need(&limits.bounds_with(states_per_service));
        need.is_none_or(|need| need.bytes <= room.into())
    };
    let larger = (need.bytes <= MOST_TABLE_BYTES.into())
        .then(|| format!("set limits.table_bytes to {} or more", need.bytes));
    let fewer = largest(bounds.states_per_service, fits)
        .map(|most| format!("set limits.states_per_service to {most} or less"));
    // Where that limit is what is too large, fewer states alone make no room.
    let half_open = limits.half_open_flows.filter(|_| fewer.is_none()).and_then(|given| {
        let fits = |half_open_flows: u32| {
            let need = tables.need(&Bounds { half_open_flows, ..bounds });
            need.is_none_or(|need| need.bytes <= room.into())
        };
        largest(given, fits).map(|most| format!("set limits.half_open_flows to {most} or less"))
    });
    let all: Vec<String> = larger.into_iter().chain(fewer).chain(half_open).collect();
    let right = match &all[..] {
        [] => "make the tables of its method smaller, or split the file".to_owned(),
        all => all.join(", or "),
    };
    let (field, place) = given.unwrap_or_else(|| ("service", places[need.service].clone()));
    let others = match services.len() - 1 {
        0 => String::new(),
        1 => " and with that of the other service".to_owned(),
        others => format!(" and with those of the {others} other services"),
    };
    problems.add(
        place,
        field,
        format!(
            "service {:?} may come to {} states, whose table takes up to {} bytes: with the next one beside \
             it{others} that is {} bytes, and limits.table_bytes is {room}",
            services[need.service].name, need.states, need.table, need.bytes
        ),
        right,
    );
}

/// A service counts as many times as it has addresses and blocks of ports.
fn places_fit(services: &[Spanned<written::Service>], most: usize, problems: &mut Problems<'_>) {
    let (mut total, mut beyond) = (0, None);
    for service in services {
        let Some((claim, _)) = service::claim(service.get_ref()) else { continue };
        total += claim.places().len();
        if total > most {
            beyond.get_or_insert(service.span());
        }
    }
    if let Some(span) = beyond {
        problems.add(
            span,
            "service",
            format!(
                "{total} addresses and blocks of ports of all services, and limits.services is {most}"
            ),
            format!("set limits.services to {total} or more"),
        );
    }
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
    } else {
        places_fit(services, most, problems);
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
