//! What `weir status` tells, as metrics for Prometheus: the text format of OpenMetrics 1.0, over HTTP at the
//! address that `[balancer] metrics` names (docs/metrics.md). Counters go on through restarts of the control
//! plane where the data plane counts them.

mod writer;

use crate::api::{Common, listen_at};
use crate::engine::{
    AgentStatus, BackendStatus, Command, PlaneStatus, Sender, ServiceStatus, Status,
};
use crate::otlp;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use writer::{Rows, Writer};

/// The media type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Who asks more often gets the same text again, so that no reader keeps the engine from its work.
const KEPT: Duration = Duration::from_secs(1);
/// Readers at once; for one more, the one that has taken longest is closed: an answer takes milliseconds.
const READERS: usize = 32;
/// Whoever has not sent a request and taken the answer by then is closed.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is served.
const METRICS: &str = "metrics";

/// The text of a status.
pub fn text(status: &Status) -> String {
    text_in(String::new(), status)
}

/// The same, in memory that may have room for it.
fn text_in(room: String, status: &Status) -> String {
    let mut out = Writer::new(room);
    instance(&mut out, status);
    agents(&mut out, status);
    fleet(&mut out, status);
    services(&mut out, &status.services);
    discover(&mut out, &status.services);
    backends(&mut out, &status.services);
    out.end()
}

/// Empty memory for the next text: that of the last one, unless somebody still reads it.
fn room_of(last: Option<Bytes>) -> String {
    let Some(mut last) = last else { return String::new() };
    let length = last.len();
    if !last.is_unique() {
        return String::with_capacity(length + length / 16);
    }
    last.clear();
    let mut room = String::from_utf8(last.into()).unwrap_or_default();
    // There may have been many more services once.
    room.shrink_to(2 * length);
    room
}

fn instance(out: &mut Writer, status: &Status) {
    let about = [("instance_name", &*status.name), ("version", &*status.version)];
    out.gauges("build_info", "The instance and its version; always 1", [(about, 1.0)]);
    out.gauge("uptime_seconds", "Age of the control plane", status.uptime_seconds as f64);
    out.gauges(
        "interface_attached",
        "Interfaces that packets are taken from; always 1",
        status
            .interfaces
            .iter()
            .map(|(interface, mode)| ([("interface", &**interface), ("mode", &**mode)], 1.0)),
    );
    out.gauge(
        "warnings",
        "Sentences under the warnings of weir status",
        status.warnings.len() as f64,
    );
    if let Some(log) = otlp::counts() {
        let fates = [("sent", log.sent()), ("dropped", log.dropped())];
        out.counters(
            "log_lines",
            "Lines of the log for a collector: sent, or dropped since it did not take them",
            fates.map(|(fate, lines)| ([("fate", fate)], lines)),
        );
    }
    if let Some(ends) = status.api_certificate_ends {
        out.gauge(
            "api_certificate_ends_timestamp_seconds",
            "When the certificate ends that the API shows by TLS, in seconds since 1970",
            ends as f64,
        );
    }
    let verdicts = status.outcomes.iter().flat_map(|one| {
        let labels = |verdict| [("reason", &*one.reason), ("verdict", verdict)];
        [(labels("passed"), one.passed), (labels("dropped"), one.dropped)]
    });
    out.counters(
        "unforwarded_packets",
        "Packets that were not forwarded, by reason: passed to the kernel, or dropped (or answered by \
         weir itself)",
        verdicts,
    );
    out.counters(
        "lost_frames",
        "Frames that were sent and lost before they left an interface",
        status.lost.iter().flatten().map(|one| ([("interface", &*one.interface)], one.frames)),
    );
    let counted = status.by_interface.iter().flatten().flat_map(|one| {
        let labels = |verdict| [("interface", &*one.interface), ("verdict", verdict)];
        [
            (labels("forwarded"), one.forwarded),
            (labels("passed"), one.passed),
            (labels("dropped"), one.dropped),
        ]
    });
    out.counters(
        "interface_packets",
        "Packets that came by an interface, by what became of them: forwarded, passed to the kernel, or \
         dropped (or answered by weir itself)",
        counted,
    );
    if let Some(plane) = &status.plane {
        user_plane(out, plane);
    }
    // Zeros of what is not counted yet would look as if all connections had ended.
    let counted = status.nat_sources.iter().filter(|_| status.has_counted_nat());
    let nat = counted.flat_map(|one| {
        let states = [("open", one.open), ("opening", one.opening), ("resting", one.resting)];
        states.map(|(state, count)| (one.address.to_string(), state, count))
    });
    let nat: Vec<_> = nat.collect();
    if !nat.is_empty() {
        out.gauges(
            "nat_connections",
            "Connections under full NAT, by their address towards backends and by state",
            nat.iter().map(|(address, state, count)| {
                ([("source", &**address), ("state", *state)], *count as f64)
            }),
        );
    }
    if let Some(returned) = status.returned {
        out.counter("returned_packets", "Answers that were translated", returned.packets);
        out.counter("returned_bytes", "Bytes of the answers that were translated", returned.bytes);
    }
    if let Some(seen) = status.consistency {
        out.gauge(
            "followed_one_in",
            "One TCP connection in so many is followed; 0: none",
            if seen.active { seen.one_in.into() } else { 0.0 },
        );
        out.counter("followed_flows", "Connections that were followed", seen.followed);
        out.counter("followed_packets", "Packets of connections that were followed", seen.packets);
        out.counter(
            "moved_packets",
            "Packets of followed connections that went to another backend than the one before",
            seen.moved,
        );
        out.counter(
            "orphaned_packets",
            "The same, where the backend before was removed",
            seen.orphaned,
        );
    }
    out.counter(
        "unrecorded_flows",
        "Flows that neither the ring nor the map of unreported flows could take",
        status.unrecorded_flows,
    );
    out.counter(
        "bare_packets",
        "Packets of known flows that did not echo the cookie that their backend was told",
        status.bare_packets.into(),
    );
    out.counter("reports", "Reports of flows that were taken from the data plane", status.reports);
    out.gauge("pending_flows", "Flows in the map of pending flows", status.pending_flows as f64);
    let all = || status.room.iter();
    out.gauges(
        "limit_room",
        "How many there is room for, by the name in [limits]",
        all().map(|one| ([("limit", &*one.limit)], one.room as f64)),
    );
    out.gauges(
        "limit_used",
        "How many of them there are",
        all().filter_map(|one| Some(([("limit", &*one.limit)], one.used? as f64))),
    );
    out.gauge(
        "table_memory_used_bytes",
        "Memory of the tables that is in use",
        status.table_bytes_used as f64,
    );
    out.gauge("table_memory_bytes", "Memory of the tables", status.table_bytes as f64);
    let by_how = |moved, packed| [([("how", "moved")], moved), ([("how", "packed")], packed)];
    out.counters(
        "tables_moved",
        "Tables that were moved within their memory so that another one found room, or packed into other memory",
        by_how(status.tables_moved, status.tables_packed),
    );
    out.counters(
        "table_moved_bytes",
        "Their bytes",
        by_how(status.table_bytes_moved, status.table_bytes_packed),
    );
}

/// The plane in user space, where one is wanted.
fn user_plane(out: &mut Writer, plane: &PlaneStatus) {
    let running = if plane.process.is_some() { 1.0 } else { 0.0 };
    out.gauge("plane_running", "Whether a plane in user space takes packets", running);
    out.counter(
        "plane_restarts",
        "Times that the plane in user space was started again, as it had ended",
        plane.restarts,
    );
    out.gauge(
        "plane_utilisation",
        "Share of the last second that the plane in user space was at bursts, 0 to 1",
        plane.utilisation,
    );
    out.gauge(
        "plane_utilisation_plus",
        "The same weighted by how full bursts were (HNLB's util+), 0 to 1",
        plane.utilisation_plus,
    );
    let count = |name: &str| plane.counts.get(name).copied().unwrap_or_default();
    out.counters(
        "plane_frames",
        "Frames of the plane in user space: received by its sockets, sent to backends, returned to the \
         program in the kernel, or lost, by reason",
        ["received", "sent", "returned", "return_failed", "rx_ring_full", "no_chunk", "device_full"]
            .into_iter()
            .map(|name| ([("what", name)], count(name))),
    );
    // An emulated one's figures say whose they are.
    let Some(card) = plane.offload.as_deref() else { return };
    out.gauges(
        "plane_rules",
        "Rules in force at the plane's card",
        [([("card", card)], count("rules") as f64)],
    );
    out.counters(
        "plane_rule_requests",
        "Rules that the card was asked for, those that it refused, packets of connections that found no place or \
         queue, and rules that went as the software said something else",
        [
            ("asked", "rules_asked"),
            ("refused", "rules_refused"),
            ("unplaced", "rules_unplaced"),
            ("doubted", "rules_doubted"),
        ]
        .into_iter()
        .map(|(what, name)| ([("card", card), ("what", what)], count(name))),
    );
    out.counters(
        "plane_rule_frames",
        "Frames of the plane by the way that they took: led by a rule, steered by the software, or steered \
         although they came by a backend's queue",
        ["led", "steered", "steered_apart"]
            .into_iter()
            .map(|name| ([("card", card), ("way", name)], count(name))),
    );
}

fn fleet(out: &mut Writer, status: &Status) {
    let Some(fleet) = &status.fleet else { return };
    let reached = f64::from(u8::from(fleet.reachable));
    out.gauge("fleet_store_reachable", "Whether the fleet's store answers", reached);
    out.counter(
        "fleet_resyncs",
        "Times that everything was read from the fleet's store anew, since it had been lost",
        fleet.resyncs,
    );
    out.gauge(
        "fleet_change",
        "The last change that the fleet's store is known to have",
        fleet.change as f64,
    );
    let own = fleet.balancers.iter().find(|balancer| balancer.name == fleet.name);
    let own = own.and_then(|own| Some((own.sign.as_ref()?.change, own.lag)));
    if let Some((change, lag)) = own {
        out.gauge(
            "fleet_followed_change",
            "The change of the fleet that this balancer follows",
            change as f64,
        );
        out.gauge(
            "fleet_lag",
            "Changes that this balancer is behind the fleet's store",
            lag as f64,
        );
    }
    let mut roles = BTreeMap::<&str, u64>::new();
    fleet.balancers.iter().for_each(|one| *roles.entry(&one.role).or_default() += 1);
    let roles = ["serves", "drained", "behind", "away", "unknown"]
        .map(|role| ([("role", role)], roles.get(role).copied().unwrap_or(0) as f64));
    out.gauges("fleet_balancers", "Balancers of the fleet, as far as this one knows", roles);
    let leads = f64::from(u8::from(fleet.leads));
    out.gauge("fleet_leads", "Whether this balancer leads the fleet", leads);
    if let Some(leader) = &fleet.leader {
        let term = leader.term as f64;
        out.gauge("fleet_term", "Which leader of the fleet the present one is", term);
    }
    let disagreements = fleet.disagreements.len() as f64;
    out.gauge(
        "fleet_disagreements",
        "Ways in which balancers differ that should be alike",
        disagreements,
    );
}

/// One agent may be there twice, in a session and as it was lost before: the session counts.
fn agents(out: &mut Writer, status: &Status) {
    if status.agents.is_empty() && status.agents_turned_away == 0 {
        return;
    }
    let mut by_name: BTreeMap<&str, &AgentStatus> = BTreeMap::new();
    for agent in &status.agents {
        let there = by_name.entry(&agent.name).or_insert(agent);
        if there.from.is_none() {
            *there = agent;
        }
    }
    let all = Rows::new(by_name.iter().map(|(name, agent)| (*agent, [("agent", *name)])));
    out.gauges_of(
        "agent_connected",
        "Whether an agent is in a session; 0: it was lost",
        &all,
        |agent| flag(agent.from.is_some()),
    );
    out.gauges_of(
        "agent_told",
        "Whether what an agent says counts: it has told all that it holds",
        &all,
        |agent| flag(agent.told),
    );
    out.gauges_of("agent_lag_seconds", "How far what an agent says is behind", &all, |agent| {
        Some(agent.lag_ms? / 1000.0)
    });
    out.gauges_of(
        "agent_connections",
        "Open connections, as the agent counts them",
        &all,
        |agent| Some(agent.connections as f64),
    );
    out.counters_of(
        "agent_events",
        "Events that an agent has sent in its session",
        &all,
        |agent| Some(agent.events),
    );
    out.counters_of("agent_dumps", "Dumps that an agent has sent in its session", &all, |agent| {
        Some(agent.dumps)
    });
    out.counters_of(
        "agent_lost_events",
        "Events that an agent has lost since its start; a dump followed each time",
        &all,
        |agent| Some(agent.lost),
    );
    out.gauges_of(
        "agent_certificate_ends_timestamp_seconds",
        "When an agent's certificate ends, in seconds since 1970",
        &all,
        |agent| Some(agent.certificate_ends? as f64),
    );
    out.counter(
        "agents_turned_away",
        "Calls of agents that were refused",
        status.agents_turned_away,
    );
    out.counter(
        "agents_refused_connections",
        "Connections that agents named and that were not theirs",
        status.agents_refused,
    );
}

fn services(out: &mut Writer, services: &[ServiceStatus]) {
    let ports: Vec<String> = services.iter().map(ServiceStatus::port_text).collect();
    let vips: Vec<String> = services.iter().map(ServiceStatus::address_text).collect();
    let about = services.iter().zip(&ports).zip(&vips).map(|((one, port), vip)| {
        let labels = [
            ("service", &*one.name),
            ("vip", &**vip),
            ("protocol", &*one.protocol),
            ("port", &**port),
            ("method", &*one.method),
            ("forward", &*one.forward),
        ];
        (labels, 1.0)
    });
    out.gauges("service_info", "The services, and how they are set; always 1", about);
    let all = Rows::new(services.iter().map(|one| (one, [("service", &*one.name)])));
    out.counters_of("service_tables", "Tables that were published", &all, |one| {
        Some(one.generation)
    });
    out.gauges_of("service_states", "Connections that are known", &all, |one| {
        Some(one.states as f64)
    });
    out.gauges_of("service_published_states", "Connections in the published table", &all, |one| {
        Some(one.published_states as f64)
    });
    out.gauges_of("service_half_open", "Connections of which only the SYN was seen", &all, |one| {
        Some(one.half_open as f64)
    });
    out.counters_of(
        "service_forgotten_half_open",
        "Half-open connections that were forgotten because of limits.half_open_flows",
        &all,
        |one| Some(one.forgotten_half_open),
    );
    out.counters_of(
        "service_untold",
        "Connections of which packets were seen, and that no agent has told of in 65 s",
        &all,
        |one| Some(one.untold),
    );
    out.counters_of(
        "service_refused_states",
        "Flows that were not remembered because of limits.states_per_service",
        &all,
        |one| Some(one.refused_states),
    );
    out.counters_of(
        "service_capped_new_flows",
        "New flows that were dropped as the service takes no more at the moment",
        &all,
        |one| one.new_flows.map(|flows| flows.capped),
    );
    out.counters_of(
        "service_capped_of_source",
        "New flows that were dropped as the service takes no more of their source's prefix at the \
         moment",
        &all,
        |one| one.new_flows.map(|flows| flows.capped_of_source),
    );
    out.counters_of(
        "service_capped_connections",
        "New flows that were dropped as their source's prefix holds as many connections as it may",
        &all,
        |one| one.new_flows.map(|flows| flows.capped_connections),
    );
    out.counters_of(
        "service_refused_of_prefix",
        "Flows that were not remembered because of limits.states_per_prefix",
        &all,
        |one| Some(one.refused_of_prefix),
    );
    out.gauges_of("service_table_bytes", "Size of the published table", &all, |one| {
        Some(one.table_bytes as f64)
    });
    out.gauges_of(
        "service_control_bytes",
        "Memory of the control plane for the service",
        &all,
        |one| Some(one.control_bytes as f64),
    );
    out.gauges_of(
        "service_update_seconds",
        "How long the last update took, waiting included",
        &all,
        |one| one.last_update_ms.map(|ms| ms as f64 / 1000.0),
    );
    out.gauges_of("service_slots_used", "Slots in use", &all, |one| {
        one.slots.map(|slots| slots.used as f64)
    });
    out.gauges_of("service_slots", "Slots for connections", &all, |one| {
        one.slots.map(|slots| slots.slots as f64)
    });
    out.counters_of("service_slots_full", "Connections that found no free slot", &all, |one| {
        one.slots.map(|slots| slots.full)
    });
    out.counters_of("service_stale_cookies", "Cookies that named a free slot", &all, |one| {
        one.slots.map(|slots| slots.stale_cookies)
    });
    out.counters_of(
        "service_foreign_cookies",
        "Cookies that named the slot of another flow",
        &all,
        |one| one.slots.map(|slots| slots.foreign_cookies),
    );
    out.gauges_of("service_tracked_flows", "Flows of jet in the connection table", &all, |one| {
        one.tracking.map(|tracking| tracking.tracked as f64)
    });
    out.counters_of(
        "service_evicted_flows",
        "Flows of jet that lost their place in the connection table",
        &all,
        |one| one.tracking.map(|tracking| tracking.evicted),
    );
}

/// What is looked up in the domain name system.
fn discover(out: &mut Writer, services: &[ServiceStatus]) {
    let all = Rows::new(services.iter().flat_map(|one| {
        one.discover
            .iter()
            .map(move |entry| (entry, [("service", &*one.name), ("discover", &*entry.name)]))
    }));
    out.gauges_of(
        "discover_backends",
        "Backends that were looked up and whose record is there",
        &all,
        |one| Some(one.backends as f64),
    );
    out.gauges_of(
        "discover_leaving",
        "Backends whose record is gone, and that keep connections",
        &all,
        |one| Some(one.leaving as f64),
    );
    out.gauges_of(
        "discover_answer_age_seconds",
        "Time since the last answer with records",
        &all,
        |one| Some(one.answered_seconds? as f64),
    );
    out.gauges_of(
        "discover_left_out",
        "Whether some record of the last answer is not in the pool",
        &all,
        |one| flag(one.left_out.is_some()),
    );
    out.counters_of("discover_failures", "Look-ups that gave nothing", &all, |one| {
        Some(one.failures)
    });
}

fn backends(out: &mut Writer, services: &[ServiceStatus]) {
    let each = || services.iter().flat_map(|one| one.backends.iter().map(move |b| (one, b)));
    let addresses: Vec<String> = each().map(|(_, one)| one.address.to_string()).collect();
    let about = each().zip(&addresses).map(|((service, one), address)| {
        let [service, backend] = labels(service, one);
        ([service, backend, ("address", &**address)], 1.0)
    });
    out.gauges("backend_info", "The backends and their addresses; always 1", about);
    let all = Rows::new(each().map(|(service, one)| (one, labels(service, one))));
    out.gauges_of(
        "backend_up",
        "Whether new connections may go there: not down, and not draining",
        &all,
        |one| flag(one.state == "up"),
    );
    out.gauges_of("backend_draining", "Whether it is draining", &all, |one| {
        flag(matches!(&*one.state, "draining" | "maintenance"))
    });
    out.gauges_of(
        "backend_maintenance",
        "Whether it is in maintenance by the calendar",
        &all,
        |one| flag(one.maintenance.as_ref().is_some_and(|windows| windows.until.is_some())),
    );
    out.gauges_of("backend_check_up", "Whether its health check says that it is up", &all, |one| {
        flag(one.check.up)
    });
    out.gauges_of(
        "backend_check_unknown",
        "Whether its last check could not be made, for a reason of this host's own",
        &all,
        |one| flag(one.check.unknown),
    );
    out.gauges_of(
        "backend_check_held",
        "Whether its last failure did not count, since most checks failed at once",
        &all,
        |one| flag(one.check.held),
    );
    let asked = |one: &BackendStatus, count: u64| one.check.kind.is_some().then_some(count);
    let made = |one: &BackendStatus| asked(one, one.check.checks);
    out.counters_of("backend_checks", "Health checks that were made, or tried", &all, made);
    let failed = |one: &BackendStatus| asked(one, one.check.failed);
    out.counters_of("backend_check_failures", "Health checks that failed", &all, failed);
    out.gauges_of(
        "backend_check_seconds",
        "How long its last health check took that succeeded",
        &all,
        |one| one.check.seconds,
    );
    out.gauges_of(
        "backend_certificate_end_seconds",
        "When the certificate ends that its health check was shown, in seconds since 1970",
        &all,
        |one| one.check.certificate_ends.map(|ends| ends as f64),
    );
    out.gauges_of("backend_weight", "Share of the new connections, 0 to 65,535", &all, |one| {
        Some(f64::from(one.weight))
    });
    out.gauges_of(
        "backend_effective_weight",
        "Its weight as it counts now: less in a slow start, or what its health check's answers say",
        &all,
        |one| Some(one.effective_weight),
    );
    out.gauges_of("backend_states", "Connections that are known there", &all, |one| {
        one.states.map(|states| states as f64)
    });
    out.gauges_of("backend_load", "Its load as the scheduler sees it", &all, |one| one.load);
    out.counters_of("backend_packets", "Packets forwarded to it", &all, |one| Some(one.packets));
    out.counters_of("backend_bytes", "Bytes forwarded to it", &all, |one| Some(one.bytes));
    out.counters_of("backend_flows", "Flows that started there", &all, |one| Some(one.flows));
}

fn labels<'a>(service: &'a ServiceStatus, backend: &'a BackendStatus) -> [(&'a str, &'a str); 2] {
    [("service", &*service.name), ("backend", &*backend.name)]
}

fn flag(is: bool) -> Option<f64> {
    Some(f64::from(u8::from(is)))
}

/// The text, and when it was made.
#[derive(Default)]
struct Kept(Mutex<Option<(Instant, Bytes)>>);

#[derive(Clone)]
struct Source {
    engine: Sender,
    common: Arc<Common>,
    kept: Arc<Kept>,
}

impl Source {
    /// The text; none if the engine has ended. It is made to its end whether the reader waits for it or not: else
    /// readers who do not would have it begun again and again.
    async fn text(&self) -> Option<Bytes> {
        let source = self.clone();
        tokio::spawn(async move { source.make().await }).await.ok()?
    }

    async fn make(&self) -> Option<Bytes> {
        // Whoever else asks meanwhile waits for this one's.
        let mut kept = self.kept.0.lock().await;
        if let Some((made, text)) = &*kept
            && made.elapsed() < KEPT
        {
            return Some(text.clone());
        }
        let (reply, answer) = oneshot::channel();
        self.engine.send(Command::Numbers(reply)).await.ok()?;
        let status = answer.await.ok()?.ok()?;
        let status = Arc::clone(&self.common).complete(status).await;
        let last = kept.take().map(|(_, text)| text);
        // Of ten megabytes where there are many backends: health checks need not wait for it.
        let made = spawn_blocking(move || Bytes::from(text_in(room_of(last), &status)));
        let text = made.await.ok()?;
        *kept = Some((Instant::now(), text.clone()));
        Some(text)
    }
}

async fn metrics(State(source): State<Source>) -> Response {
    match source.text().await {
        Some(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "weir is stopping\n").into_response(),
    }
}

/// Serves metrics at the address that `wanted` holds, and follows it. An address that cannot be listened at
/// is a warning of the status, and is tried again.
pub(crate) async fn serve(
    engine: Sender,
    common: Arc<Common>,
    mut wanted: watch::Receiver<Option<SocketAddr>>,
) {
    let source = Source { engine, common: Arc::clone(&common), kept: Arc::default() };
    let router = Router::new().route("/metrics", get(metrics)).with_state(source);
    loop {
        let address = *wanted.borrow_and_update();
        tokio::select! {
            () = listen(address, &router, &common) => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

/// Serves until it is dropped.
async fn listen(address: Option<SocketAddr>, router: &Router, common: &Common) {
    common.say_of(METRICS, None);
    let Some(address) = address else { return std::future::pending().await };
    let listener = listen_at(address, METRICS, common).await;
    // The oldest first. They end with this.
    let (mut readers, mut order) = (JoinSet::new(), VecDeque::new());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                while readers.try_join_next().is_some() {}
                order.retain(|reader: &AbortHandle| !reader.is_finished());
                if order.len() >= READERS
                    && let Some(oldest) = order.pop_front()
                {
                    oldest.abort();
                }
                let router = router.clone();
                order.push_back(readers.spawn(async move {
                    let _ = tokio::time::timeout(PATIENCE, answer(stream, router)).await;
                }));
            }
            // Of this connection, or of a lack of descriptors, which passes.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn answer(stream: TcpStream, router: Router) {
    // Whose request makes no sense gets what HTTP has for it; nobody here wants to know.
    let _ = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_once_nobody_reads_it() {
        assert_eq!(room_of(None).capacity(), 0);
        let words = "x".repeat(100);
        let mut text = String::with_capacity(128);
        text.push_str(&words);
        let at = text.as_ptr();
        let last = Bytes::from(text);
        let reader = last.clone();
        let room = room_of(Some(last));
        assert!(room.is_empty() && room.capacity() >= 100 && room.as_ptr() != at);
        assert_eq!(reader, words);
        let room = room_of(Some(reader));
        assert!(room.is_empty() && room.as_ptr() == at);
    }
}
