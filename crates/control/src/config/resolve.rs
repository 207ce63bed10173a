//! Resolution: fills in the defaults. Nothing can go wrong here any more.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use super::tables::{Bounds, Tables, largest};
use super::validate;
use super::{Affinity, Balancer, Check, Config, Limits, Protocol, Service, What, XdpMode};
use weir_steering::MethodId;

pub(super) const PROTOCOL: Protocol = Protocol::Tcp;
pub(super) const METHOD: MethodId = MethodId::Concury;
pub(super) const WEIGHT: u16 = 1;
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_secs(5);
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// A store that is there answers within milliseconds.
pub(super) const STORE_WAIT: Duration = Duration::from_secs(3);
/// Agents that wait for a balancer call it every few seconds.
pub(super) const LEARN: Duration = Duration::from_secs(10);
const CHECK_RISE: u32 = 2;
const CHECK_FALL: u32 = 3;
/// Per cent.
const WEIGHT_STEP: u32 = 10;
const WEIGHT_EVERY: Duration = Duration::from_secs(10);
/// Answers are often valid for less, and looked up again then.
pub(super) const DISCOVER_EVERY: Duration = Duration::from_secs(30);
pub(super) const DISCOVER_MOST: u16 = 64;
/// Longer than most transfers last.
pub(super) const DISCOVER_LEAVE_AFTER: Duration = Duration::from_secs(3600);
/// RFC 5382, section 5: a middlebox keeps an idle TCP connection for at least 2 hours 4
/// minutes, so that keep-alives, two hours apart, hold it.
const IDLE_TCP: Duration = Duration::from_secs(135 * 60);
/// RFC 4787, section 4.3: at least 2 minutes.
const IDLE_UDP: Duration = Duration::from_secs(120);

pub(super) fn resolve(file: validate::File) -> Config {
    let balancer = file.balancer;
    Config {
        balancer: Balancer {
            name: balancer.name.unwrap_or_else(|| "weir".to_owned()),
            interfaces: balancer.interfaces,
            mode: balancer.mode.unwrap_or(XdpMode::Auto),
            plane: balancer.plane.unwrap_or_default(),
            next_program: balancer.next_program,
            look_every: balancer.look_every.unwrap_or(LOOK_EVERY),
            echo: balancer.echo.unwrap_or_else(echo),
            icmp_per_second: balancer.icmp_per_second.unwrap_or_else(icmp_per_second),
            resets_per_second: balancer.resets_per_second.unwrap_or_else(resets_per_second),
            metrics: balancer.metrics,
            web: balancer.web,
            hold_checks_at: balancer.hold_checks_at.unwrap_or(0),
            follow_flows: balancer.follow_flows.unwrap_or(0),
            count_interfaces: balancer.count_interfaces.unwrap_or(false),
            tunnel_source: balancer.tunnel_source,
            tunnel_source6: balancer.tunnel_source6,
            nat: balancer.nat,
            state_dir: balancer.state_dir,
            run_dir: balancer.run_dir.unwrap_or_else(|| PathBuf::from("/run/weir")),
        },
        af_xdp: file.af_xdp,
        dpdk: file.dpdk,
        offload: file.offload,
        offload_aside: file.offload_aside,
        p4: file.p4,
        limits: limits(&file.limits, &file.services),
        api: file.api,
        agents: file.agents,
        announce: file.announce,
        store: file.store,
        services: file.services.into_iter().map(service).collect(),
    }
}

/// A quarter of a million connections under full NAT: 32 MiB.
pub(super) fn nat_connections() -> u32 {
    262_144
}

/// With any backend it can be served.
pub(super) fn need() -> u32 {
    1
}

/// Who can reach a service can ping it.
pub(super) fn echo() -> bool {
    true
}

/// As many as Linux sends in a second, on each processor.
pub(super) fn icmp_per_second() -> u32 {
    1000
}

/// All clients of a dead backend with 100,000 connections are told within the time of a few retransmissions.
pub(super) fn resets_per_second() -> u32 {
    10_000
}

/// As many half-open flows as there is room for beside all tables, if the file does not say it.
fn half_open_that_fit(services: &[validate::Service], room: u32, bounds: Bounds) -> u32 {
    let tables = Tables::of(services);
    let fits = |half_open_flows: u32| {
        let need = tables.need(&Bounds { half_open_flows, ..bounds });
        need.is_none_or(|need| need.bytes <= room.into())
    };
    largest(Limits::default_half_open(bounds.states_per_service).max(1), fits).unwrap_or(1)
}

fn limits(given: &validate::Limits, services: &[validate::Service]) -> Limits {
    let default = Limits::default();
    let bounds = given.bounds(services);
    let states = bounds.states_per_service;
    let table_bytes = given.table_bytes.unwrap_or(default.table_bytes);
    let half_open =
        given.half_open_flows.unwrap_or_else(|| half_open_that_fit(services, table_bytes, bounds));
    Limits {
        services: given.services.unwrap_or(default.services),
        backends: given.backends.unwrap_or(default.backends),
        pending_flows: given.pending_flows.unwrap_or(default.pending_flows),
        unreported_flows: given.unreported_flows.unwrap_or(default.unreported_flows),
        tracked_flows: given.tracked_flows.unwrap_or(default.tracked_flows),
        answered_flows: given.answered_flows.unwrap_or(default.answered_flows),
        slot_partitions: given.slot_partitions.unwrap_or(default.slot_partitions),
        udp_flows: given.udp_flows.unwrap_or(default.udp_flows),
        event_ring_bytes: given.event_ring_bytes.unwrap_or(default.event_ring_bytes),
        table_bytes,
        states_per_service: states,
        half_open_flows: half_open,
        list_prefixes: given.list_prefixes.unwrap_or(default.list_prefixes),
        nat_connections: given.nat_connections.unwrap_or(default.nat_connections),
        states_per_prefix: given
            .states_per_prefix
            .unwrap_or_else(|| Limits::default_of_prefix(states)),
    }
}

/// `idle_timeout` of a service that does not say it.
pub(crate) fn usual_idle_timeout(protocol: Protocol) -> Duration {
    match protocol {
        // An association without data sends heartbeats (RFC 9260 section 8.3), so this is long enough.
        Protocol::Tcp | Protocol::Sctp => IDLE_TCP,
        Protocol::Udp => IDLE_UDP,
    }
}

fn service(given: validate::Service) -> Service {
    let idle = usual_idle_timeout(given.protocol);
    Service {
        name: given.name,
        vip: given.vips.first().map_or(Ipv4Addr::UNSPECIFIED.into(), |vip| vip.address),
        vips: if given.vips.len() == 1 && given.vips[0].is_host() {
            Vec::new()
        } else {
            given.vips
        },
        protocol: given.protocol,
        port: given.port,
        ports: given.ports,
        method: given.method,
        affinity: given.affinity.unwrap_or(Affinity::Flow),
        fragments_by_source: given.fragments_by_source,
        states: given.states.unwrap_or_default(),
        cookie_key: given.cookie_key,
        cookie_keys: given.cookie_keys,
        idle_timeout: given.idle_timeout.unwrap_or(idle),
        forward: given.forward,
        mss: given.mss,
        lists: given.lists,
        new_flows: given.new_flows,
        need: given.need.unwrap_or_else(need),
        quic: given.quic,
        check: given.check.and_then(check),
        backend_checks: given
            .backend_checks
            .into_iter()
            .map(|(name, own)| (name, own.and_then(check)))
            .collect(),
        maintenance: given.maintenance,
        backends: given.backends,
        discover: given.discover,
    }
}

/// `None` only for a check without a port, which validation has refused.
fn check(given: validate::Check) -> Option<Check> {
    let interval = given.interval.unwrap_or(CHECK_INTERVAL);
    let port = match given.what {
        What::Script(_) | What::Agent => given.port.unwrap_or(0),
        _ => given.port?,
    };
    Some(Check {
        what: given.what,
        interval,
        jitter: given.jitter.unwrap_or(0),
        flap_window: given.flap_window.unwrap_or_default(),
        via: given.via.unwrap_or_default(),
        weight_step: given.weight_step.unwrap_or(WEIGHT_STEP),
        weight_every: given.weight_every.unwrap_or(WEIGHT_EVERY),
        slow_start: given.slow_start.unwrap_or_default(),
        slow_start_curve: given.slow_start_curve.unwrap_or(1),
        timeout: given.timeout.unwrap_or_else(|| CHECK_TIMEOUT.min(interval / 2)),
        rise: given.rise.unwrap_or(CHECK_RISE),
        fall: given.fall.unwrap_or(CHECK_FALL),
        port,
        backends_port: given.backends_port,
        all_down: given.all_down.unwrap_or_default(),
        dead_connections: given.dead_connections.unwrap_or_default(),
    })
}
