//! The verbs that look at or change a balancer.

use crate::cli::{BackendVerb, Expected, Instance};
use crate::out;
use anyhow::Context;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use weir_control::api::{
    Answer, DrainRequest, FlowRequest, LoadRequest, NewBackend, Refusal, ReloadRequest,
    WeightRequest,
};
use weir_control::config::{Config, MOST_TEXT, text_of};
use weir_control::doctor::{self, DoctorInput};
use weir_control::engine::{
    self, DiscoverStatus, EngineError, Explanation, Kind, NatSourceStatus, NewFlowStatus,
    PlaneStatus, QuicConfigStatus, QuicStatus, ReturnedStatus, ServiceStatus, Status,
};

/// Makes a request of the instance behind a socket.
pub fn request<T: DeserializeOwned>(
    instance: Instance,
    method: &str,
    path: &str,
    body: Option<&impl Serialize>,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(instance.client().request(method, path, body))?)
}

pub const NO_BODY: Option<&()> = None;

/// What problems call the standard input.
pub const STDIN: &str = "<stdin>";

/// Whether a file stands for the standard input.
pub fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The configuration at the standard input.
pub fn stdin_text() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MOST_TEXT as u64 + 1).read_to_end(&mut bytes);
    read.context("cannot read the standard input")?;
    anyhow::ensure!(bytes.len() <= MOST_TEXT, "{STDIN}: it is larger than {} MiB", MOST_TEXT >> 20);
    Ok(text_of(bytes, STDIN)?)
}

pub fn check(path: &Path, upgrade: bool) -> anyhow::Result<()> {
    let (name, config) = match is_stdin(path) {
        true => (STDIN.to_owned(), Config::parse(&stdin_text()?, STDIN)?),
        false => (path.display().to_string(), Config::load(path)?),
    };
    let unreachable = doctor::behind_routers(&config);
    anyhow::ensure!(unreachable.is_empty(), "{}", unreachable.join("\n"));
    let missing = doctor::missing_interfaces(&config);
    let elsewhere = match missing.len() {
        0 => String::new(),
        _ => format!("; this host has no {}, so weir run would not start here", missing.join(", ")),
    };
    let services = config.services.len();
    out::line(format_args!("{name}: good; {services} services{elsewhere}"));
    if let Some(warning) = config.store.as_ref().and_then(|store| store.warning()) {
        out::line(format_args!("warning: {warning}"));
    }
    if upgrade {
        let words = match engine::goes_on_from(&config)? {
            true => "this version goes on from what is there",
            false => "nothing is there to go on from",
        };
        out::line(format_args!("{}: {words}", config.balancer.name));
    }
    // Elsewhere there is other memory.
    if let Some(short) = doctor::short_of_memory(&config).filter(|_| missing.is_empty()) {
        out::line(format_args!("warning: {short}"));
    }
    Ok(())
}

pub fn unload(config: Option<&Path>, name: Option<String>) -> anyhow::Result<()> {
    let given = name.is_some();
    let name = match (name, config) {
        (Some(name), _) => name,
        (None, Some(path)) => Config::load(path)?.balancer.name,
        (None, None) => match &engine::loaded()?[..] {
            [] => {
                out::line("no data plane is loaded");
                return Ok(());
            }
            [name] => name.clone(),
            several => {
                let names = several.join(", ");
                let which = format!("there are several data planes: {names}; give --name");
                return Err(EngineError::Conflict(which).into());
            }
        },
    };
    if engine::unload(&name)? {
        out::line(format_args!("{name}: data plane removed"));
        return Ok(());
    }
    // Of what a file describes nothing is to be there, whether it was or not; a name may be mistyped.
    if !given {
        out::line(format_args!("{name}: no data plane is loaded"));
        return Ok(());
    }
    let there = match &engine::loaded()?[..] {
        [] => "none is".to_owned(),
        several => format!("there are {}", several.join(", ")),
    };
    let words = format!("no data plane of an instance {name} is loaded; {there}");
    Err(EngineError::NotFound(words).into())
}

/// Whether nothing failed.
pub fn doctor(path: &Path, probe: bool, json: bool) -> anyhow::Result<bool> {
    let config = Config::load(path)?;
    let findings = doctor::examine(&DoctorInput { probe, ..DoctorInput::new(config) });
    if json {
        out::json(&findings)?;
    } else {
        out::text(doctor::render(&findings));
    }
    Ok(doctor::passed(&findings))
}

pub fn status(instance: Instance, json: bool) -> anyhow::Result<()> {
    let status: Status = request(instance, "GET", "/v1/status", NO_BODY)?;
    if json {
        return out::json(&status);
    }
    print_status(&status);
    Ok(())
}

fn print_status(status: &Status) {
    let interfaces: Vec<String> =
        status.interfaces.iter().map(|(name, mode)| format!("{name} ({mode})")).collect();
    let uptime = humantime::format_duration(std::time::Duration::from_secs(status.uptime_seconds));
    out::line(format_args!(
        "weir {} \"{}\", process {}, up {uptime}{}, on {}",
        status.version,
        status.name,
        status.pid,
        if status.resumed { " (resumed)" } else { "" },
        interfaces.join(", ")
    ));
    status.warnings.iter().for_each(|warning| out::line(format_args!("warning: {warning}")));
    status.services.iter().for_each(print_service);
    print_outcomes(status);
    if let Some(ReturnedStatus { packets, bytes }) = status.returned {
        out::line(format_args!("\nanswers that were translated: {packets}, {bytes} bytes"));
    }
    status.nat_sources.iter().for_each(print_nat_source);
    print_lost(status);
    status.plane.iter().for_each(print_plane);
    print_ids(status);
    if let Some(seen) = status.consistency {
        let is = if seen.active { "is" } else { "is to be" };
        out::line(format_args!(
            "\none connection in {} {is} followed: {} so far, of whose {} packets {} went to another backend \
             than the one before, and {} more as theirs was removed",
            seen.one_in, seen.followed, seen.packets, seen.moved, seen.orphaned
        ));
    }
    print_agents(status);
    out::line(format_args!(
        "\ntables {} of {} bytes; {} flows pending; {} reports taken, {} flows unrecorded",
        status.table_bytes_used,
        status.table_bytes,
        status.pending_flows,
        status.reports,
        status.unrecorded_flows
    ));
}

fn print_nat_source(source: &NatSourceStatus) {
    let NatSourceStatus { address, ports: (first, last), open, opening, resting } = source;
    out::line(format_args!(
        "from {address} ports {first} to {last}: {open} connections open, {opening} not answered, {resting} \
         ended, whose ports rest"
    ));
}

fn print_agents(status: &Status) {
    if status.agents.is_empty() && status.agents_turned_away == 0 {
        return;
    }
    let (away, refused) = (status.agents_turned_away, status.agents_refused);
    out::line(format_args!(
        "\nagents: {} ({away} calls refused, {refused} connections of others refused)",
        status.agents.len()
    ));
    let mut table = table(&["agent", "from", "speaks for", "state", "lag", "connections", "cpu"]);
    for agent in &status.agents {
        let addresses: Vec<String> = agent.addresses.iter().map(ToString::to_string).collect();
        let state = match (agent.from, agent.told) {
            (Some(_), true) => "tells".to_owned(),
            (Some(_), false) => "lists".to_owned(),
            (None, _) => format!("lost for {} s", agent.seconds),
        };
        table.add_row([
            agent.name.clone(),
            agent.from.map_or_else(String::new, |from| from.to_string()),
            addresses.join(", "),
            state,
            agent.lag_ms.map_or_else(String::new, |lag| format!("{lag:.1} ms")),
            agent.connections.to_string(),
            format!("{:.0} %", agent.cpu * 100.0),
        ]);
    }
    out::line(table);
}

fn print_service(service: &ServiceStatus) {
    let port = service.port_text();
    let by = service.load.as_ref().map_or_else(String::new, |load| format!(" by {load}"));
    let scheduler = service.scheduler.as_ref().filter(|scheduler| *scheduler != "uniform");
    let scheduler = scheduler.map_or_else(String::new, |name| format!(", scheduler {name}{by}"));
    let to_port = service.tunnel_port.map_or_else(String::new, |port| format!(" to port {port}"));
    let forward = match service.forward.as_str() {
        "" | "l2" => String::new(),
        forward @ ("nat" | "fullnat") => format!(", by {forward}"),
        tunnel => format!(", through {tunnel}{to_port}"),
    };
    let loads = service.load.is_some() || service.backends.iter().any(|b| b.told_load.is_some());
    out::line(format_args!(
        "\n{}: {} {} port {port}, {} by {}{scheduler}{forward}, generation {}, digest {}, {} states",
        service.name,
        service.protocol,
        service.address_text(),
        service.method,
        service.affinity,
        service.generation,
        service.digest,
        service.states
    ));
    if service.states_from == "agents" {
        let told = service.backends.iter().filter(|backend| backend.told_of).count();
        out::line(format_args!(
            "connections as agents tell, of {told} of {} backends; {} have begun and are not told of yet",
            service.backends.len(),
            service.young
        ));
    }
    if let Some(slots) = &service.slots {
        out::line(format_args!(
            "connections by index: {} of {} slots; {} found none; {} cookies named a free slot, {} \
             another flow's",
            slots.used, slots.slots, slots.full, slots.stale_cookies, slots.foreign_cookies
        ));
    }
    if let Some(tracking) = &service.tracking {
        out::line(format_args!(
            "{:.1} % of new flows are tracked; {:.1} % of all flows need no look into the connection \
             table; {} flows are in it, {} were evicted",
            tracking.tracked_share * 100.0,
            tracking.avoided_share * 100.0,
            tracking.tracked,
            tracking.evicted
        ));
    }
    if let Some(sources) = &service.sources {
        let others = if sources.allow > 0 { "denied" } else { "allowed" };
        let pending = if sources.digest.is_some() { "" } else { "; not in force yet" };
        out::line(format_args!(
            "sources: {} prefixes allow, {} deny; all others are {others}{pending}",
            sources.allow, sources.deny
        ));
        sources.by_commands.iter().for_each(|one| out::line(crate::source::words(one)));
    }
    service.new_flows.iter().for_each(print_new_flows);
    service.quic.iter().for_each(print_quic);
    service.discover.iter().for_each(print_discover);
    let mut header = vec![
        "backend",
        "address",
        "state",
        "weight",
        "states",
        "new flows",
        "packets",
        "bytes",
        "check",
    ];
    if loads {
        header.insert(4, "load");
    }
    let tunnels = service.backends.iter().any(|backend| backend.tunnel.is_some());
    if tunnels {
        header.push("tunnel from");
    }
    let mut table = table(&header);
    for backend in &service.backends {
        let mut row = vec![
            backend.name.clone(),
            match backend.port {
                Some(port) => SocketAddr::from((backend.address, port)).to_string(),
                None => backend.address.to_string(),
            },
            backend.state.clone(),
            weir_watch::weight(backend),
            backend.states.map_or("-".into(), |n| n.to_string()),
            backend.flows.to_string(),
            backend.packets.to_string(),
            backend.bytes.to_string(),
            backend.check.last.clone().unwrap_or_else(|| backend.check.detail.clone()),
        ];
        if loads {
            let load = backend.load.or(backend.told_load);
            row.insert(4, load.map_or("-".into(), |load| format!("{load:.3}")));
        }
        if tunnels {
            let from = backend.tunnel.as_ref().map(|tunnel| match tunnel.source {
                Some(source) if tunnel.spread > 0 => format!("{source}/{}", 32 - tunnel.spread),
                Some(source) => source.to_string(),
                None => "nowhere".into(),
            });
            row.push(from.unwrap_or_else(|| "-".into()));
        }
        table.add_row(row);
    }
    for column in 3..8 + usize::from(loads) {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    out::line(table);
}

fn print_quic(quic: &QuicStatus) {
    let one = |config: &QuicConfigStatus| {
        let how = if config.encrypted { "encrypted" } else { "plain" };
        let new = if config.config_id == quic.issue { ", new ids" } else { "" };
        format!(
            "{} ({how}, {} + {} bytes{new})",
            config.config_id, config.server_id_length, config.nonce_length
        )
    };
    let configs: Vec<String> = quic.configs.iter().map(one).collect();
    let file = quic.file.display();
    out::line(format_args!(
        "led by QUIC ids of configuration {}; servers: {file}",
        configs.join(", ")
    ));
}

fn print_discover(entry: &DiscoverStatus) {
    let leaving = match entry.leaving {
        0 => String::new(),
        leaving => format!(", {leaving} leaving"),
    };
    let answer = match (&entry.failure, entry.answered_seconds) {
        (Some(why), _) => why.clone(),
        (None, Some(seconds)) => {
            format!("{} records, {seconds} s ago", entry.answered)
        }
        (None, None) => "not answered yet".into(),
    };
    out::line(format_args!(
        "looked up by {} ({}): {} backends{leaving}; {answer}",
        entry.name, entry.records, entry.backends
    ));
}

fn print_new_flows(flows: &NewFlowStatus) {
    let rate = |per_second: Option<u32>, burst: Option<u32>, of: &str| {
        let (rate, burst) = per_second.zip(burst)?;
        Some(format!("{rate} a second{of}, {burst} at once"))
    };
    let prefix = format!(" of each IPv4 /{} and IPv6 /{}", flows.ipv4_prefix, flows.ipv6_prefix);
    let rates = [
        rate(flows.per_second, flows.burst, ""),
        rate(flows.source_per_second, flows.source_burst, &prefix),
        flows.source_connections.map(|most| format!("{most} connections{prefix}")),
    ];
    let rates: Vec<String> = rates.into_iter().flatten().collect();
    let pending = if flows.in_force { "" } else { "; not in force yet" };
    let held = match flows.source_connections {
        Some(_) => format!(", {} by its connections", flows.capped_connections),
        None => String::new(),
    };
    out::line(format_args!(
        "new flows: {}; {} dropped by the service's cap, {} by their source's{held}{pending}",
        rates.join("; "),
        flows.capped,
        flows.capped_of_source
    ));
}

fn print_ids(status: &Status) {
    if status.ids.is_empty() {
        return;
    }
    out::line("");
    let mut table = table(&["QUIC ids", "packets", "meaning"]);
    for id in &status.ids {
        table.add_row(vec![id.outcome.clone(), id.packets.to_string(), id.description.clone()]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    out::line(table);
}

fn print_plane(plane: &PlaneStatus) {
    let PlaneStatus { kind, process, restarts, failure, utilisation, utilisation_plus, counts } =
        plane;
    let state = match (process, failure) {
        (Some(process), _) => format!("process {process}"),
        (None, Some(why)) => format!("none ({why})"),
        (None, None) => "none yet".to_owned(),
    };
    let count = |name: &str| counts.get(name).copied().unwrap_or_default();
    out::line(format_args!(
        "\nplane {kind}: {state}, {restarts} restarts; busy {:.1} %, weighted by how full bursts are {:.1} % \
         (util+); {} sockets, {} frames received, {} sent, {} given back to the kernel",
        utilisation * 100.0,
        utilisation_plus * 100.0,
        count("sockets"),
        count("received"),
        count("sent"),
        count("returned"),
    ));
    let lost = ["rx_ring_full", "no_chunk", "device_full", "return_failed", "bad_descriptors"];
    let lost: Vec<String> = lost
        .iter()
        .filter(|name| count(name) > 0)
        .map(|name| format!("{} {name}", count(name)))
        .collect();
    if !lost.is_empty() {
        out::line(format_args!("frames that it lost: {}", lost.join(", ")));
    }
}

fn print_lost(status: &Status) {
    let lost = match &status.lost {
        Some(lost) => {
            let each = lost.iter().map(|one| format!("{} by {}", one.frames, one.interface));
            each.collect::<Vec<_>>().join(", ")
        }
        None => "unknown".into(),
    };
    out::line(format_args!("\nframes lost on their way out since the start: {lost}"));
}

fn print_outcomes(status: &Status) {
    if status.outcomes.is_empty() {
        return;
    }
    out::line("");
    let mut table = table(&["not forwarded", "to the kernel", "dropped", "meaning"]);
    for outcome in &status.outcomes {
        table.add_row(vec![
            outcome.reason.clone(),
            outcome.passed.to_string(),
            outcome.dropped.to_string(),
            outcome.description.clone(),
        ]);
    }
    out::line(table);
}

/// A table without lines, for people and for `awk`.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header.to_vec());
    table
}

pub fn explain(instance: Instance, flow: &FlowRequest, json: bool) -> anyhow::Result<()> {
    print_explanation(request(instance, "POST", "/v1/explain", Some(flow))?, json)
}

pub fn print_explanation(said: Explanation, json: bool) -> anyhow::Result<()> {
    if json {
        return out::json(&said);
    }
    let mut lines = vec![("flow", Some(said.flow))];
    lines.push(("service", said.service.zip(said.method).map(|(s, m)| format!("{s} ({m})"))));
    let table = said.generation.zip(said.digest);
    lines.push(("table", table.map(|(g, d)| format!("generation {g}, digest {d}"))));
    lines.push(("source", said.source));
    lines.push(("QUIC id", said.id));
    lines.push(("hash", said.hash));
    let reserved = if said.reserved { " (reserved)" } else { "" };
    lines.push(("code", said.code.map(|code| format!("{code}{reserved}"))));
    // Where the method was not asked, nothing is known of the flow.
    let asked = |is: bool| said.generation.map(|_| if is { "yes" } else { "no" }.to_owned());
    lines.push(("known", asked(said.known)));
    lines.push(("pending", asked(said.pending)));
    let address = said.address.map_or_else(String::new, |address| format!(" ({address})"));
    lines.push(("backend", said.backend.map(|backend| format!("{backend}{address}"))));
    lines.push(("through", said.tunnel));
    lines.push(("translated", said.translation));
    lines.push(("source", said.from));
    lines.push(("if it is new", said.backend_if_new));
    lines.push(("a SYN now", said.new_flows));
    lines.push(("why", Some(said.why)));
    lines.push(("asked", (!said.asked.is_empty()).then(|| said.asked.join("; "))));
    for (name, value) in lines {
        if let Some(value) = value {
            out::line(format_args!("{name:<13}{value}"));
        }
    }
    for other in &said.fleet {
        let at = other.backend.as_deref().unwrap_or("no backend");
        let at = if other.answered { format!("{at}: ") } else { String::new() };
        out::line(format_args!("{:<13}{at}{}", format!("on {}", other.balancer), other.why));
    }
    if said.disagreement {
        out::line("warning: the balancers of the fleet would not send it to the same backend");
    }
    Ok(())
}

/// Whoever asks for JSON gets some also where it is refused, or not done in time.
pub fn backend(instance: Instance, verb: BackendVerb, json: bool) -> anyhow::Result<()> {
    let done = change(instance, verb, json);
    if json && let Err(error) = &done {
        let kind = crate::kind(error).unwrap_or(Kind::Failed);
        out::json(&Refusal { error: out::causes(error), kind })?;
    }
    done
}

fn change(instance: Instance, verb: BackendVerb, json: bool) -> anyhow::Result<()> {
    let at = |service: &str, rest: &str| format!("/v1/services/{service}/backends{rest}");
    let answer: Answer = match verb {
        BackendVerb::Add { service, name, address, port, weight, expected } => {
            let body = NewBackend { name, address, port, weight };
            request(instance, "POST", &expected.of(&at(&service, "")), Some(&body))
        }
        BackendVerb::Remove { service, name, expected } => {
            let path = expected.of(&at(&service, &format!("/{name}")));
            request(instance, "DELETE", &path, NO_BODY)
        }
        BackendVerb::Drain { service, name, undo, wait, deadline, quiet, expected } => {
            let body = DrainRequest { drain: !undo };
            let again = instance.clone();
            let path = expected.of(&at(&service, &format!("/{name}/drain")));
            let answer: Answer = request(instance, "PUT", &path, Some(&body))?;
            if !wait {
                return say(&answer, json);
            }
            if !json {
                say(&answer, json)?;
            }
            let wanted = drain::Wanted { service, name, deadline, quiet };
            let done = drain::wait(&again, &wanted)?;
            Ok(Answer { done, change: answer.change })
        }
        BackendVerb::Undrain { service, name, expected } => {
            let body = DrainRequest { drain: false };
            let path = expected.of(&at(&service, &format!("/{name}/drain")));
            request(instance, "PUT", &path, Some(&body))
        }
        BackendVerb::Weight { service, name, weight, expected } => {
            let body = WeightRequest { weight };
            let path = expected.of(&at(&service, &format!("/{name}/weight")));
            request(instance, "PUT", &path, Some(&body))
        }
        BackendVerb::Load { service, name, load } => {
            let body = LoadRequest { load };
            request(instance, "PUT", &at(&service, &format!("/{name}/load")), Some(&body))
        }
    }?;
    say(&answer, json)
}

mod drain;

pub fn reload(
    instance: Instance,
    break_connections: bool,
    expected: Expected,
    json: bool,
) -> anyhow::Result<()> {
    let body = ReloadRequest { break_connections };
    let answer: Answer = request(instance, "POST", &expected.of("/v1/reload"), Some(&body))?;
    say(&answer, json)
}

pub fn say(answer: &Answer, json: bool) -> anyhow::Result<()> {
    if json {
        return out::json(answer).context("print");
    }
    out::line(format_args!("{}", answer.done));
    Ok(())
}
