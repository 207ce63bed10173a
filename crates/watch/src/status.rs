//! What `weir status` shows.

use crate::text::{Text, table};
use crate::words::state_of;
use crate::{sources, weight};
use comfy_table::CellAlignment;
use std::net::SocketAddr;
use weir_control::engine::{
    DiscoverStatus, NatSourceStatus, NewFlowStatus, PlaneStatus, QuicConfigStatus, QuicStatus,
    ReturnedStatus, ServiceStatus, Status,
};

/// What `weir status` shows.
pub fn status(status: &Status) -> String {
    let mut whole = Text::default();
    let text = &mut whole;
    let interfaces: Vec<String> =
        status.interfaces.iter().map(|(name, mode)| format!("{name} ({mode})")).collect();
    let uptime = humantime::format_duration(std::time::Duration::from_secs(status.uptime_seconds));
    text.line(format_args!(
        "weir {} \"{}\", process {}, up {uptime}{}, on {}",
        status.version,
        status.name,
        status.pid,
        if status.resumed { " (resumed)" } else { "" },
        interfaces.join(", ")
    ));
    status.warnings.iter().for_each(|warning| text.line(format_args!("warning: {warning}")));
    status.services.iter().for_each(|one| service(text, one));
    outcomes(text, status);
    if let Some(ReturnedStatus { packets, bytes }) = status.returned {
        text.line(format_args!("\nanswers that were translated: {packets}, {bytes} bytes"));
    }
    let counted = status.has_counted_nat();
    status.nat_sources.iter().for_each(|one| nat_source(text, one, counted));
    lost(text, status);
    by_interface(text, status);
    status.plane.iter().for_each(|one| plane(text, one));
    ids(text, status);
    if let Some(seen) = status.consistency {
        let is = if seen.active { "is" } else { "is to be" };
        text.line(format_args!(
            "\none connection in {} {is} followed: {} so far, of whose {} packets {} went to another backend \
             than the one before, and {} more as theirs was removed",
            seen.one_in, seen.followed, seen.packets, seen.moved, seen.orphaned
        ));
    }
    agents(text, status);
    text.line(format_args!(
        "\ntables {} of {} bytes; {} flows pending; {} reports taken, {} flows unrecorded",
        status.table_bytes_used,
        status.table_bytes,
        status.pending_flows,
        status.reports,
        status.unrecorded_flows
    ));
    whole.all()
}

fn nat_source(text: &mut Text, source: &NatSourceStatus, counted: bool) {
    let NatSourceStatus { address, ports: (first, last), open, opening, resting } = source;
    if !counted {
        text.line(format_args!("from {address} ports {first} to {last}: not counted yet"));
        return;
    }
    text.line(format_args!(
        "from {address} ports {first} to {last}: {open} connections open, {opening} not answered, {resting} \
         ended, whose ports rest"
    ));
}

fn agents(text: &mut Text, status: &Status) {
    if status.agents.is_empty() && status.agents_turned_away == 0 {
        return;
    }
    let (away, refused) = (status.agents_turned_away, status.agents_refused);
    text.line(format_args!(
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
    text.line(table);
}

fn service(text: &mut Text, service: &ServiceStatus) {
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
    text.line(format_args!(
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
        text.line(format_args!(
            "connections as agents tell, of {told} of {} backends; {} have begun and are not told of yet",
            service.backends.len(),
            service.young
        ));
    }
    if let Some(slots) = &service.slots {
        text.line(format_args!(
            "connections by index: {} of {} slots; {} found none; {} packets named a free slot, {} \
             another flow's: with stale or forged cookies, or of connections without a slot",
            slots.used, slots.slots, slots.full, slots.stale_cookies, slots.foreign_cookies
        ));
    }
    if let Some(tracking) = &service.tracking {
        text.line(format_args!(
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
        text.line(format_args!(
            "sources: {} prefixes allow, {} deny; all others are {others}{pending}",
            sources.allow, sources.deny
        ));
        sources.by_commands.iter().for_each(|one| text.line(sources::words(one)));
    }
    service.new_flows.iter().for_each(|one| new_flows(text, one));
    service.quic.iter().for_each(|one| quic(text, one));
    service.discover.iter().for_each(|one| discover(text, one));
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
    let sources = service.backends.iter().any(|backend| !backend.nat_sources.is_empty());
    if sources {
        header.push("comes from");
    }
    let mut table = table(&header);
    for backend in &service.backends {
        let mut row = vec![
            backend.name.clone(),
            match backend.port {
                Some(port) => SocketAddr::from((backend.address, port)).to_string(),
                None => backend.address.to_string(),
            },
            state_of(backend),
            weight(backend),
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
        if sources {
            let own: Vec<String> = backend.nat_sources.iter().map(ToString::to_string).collect();
            row.push(if own.is_empty() { "all".into() } else { own.join(", ") });
        }
        table.add_row(row);
    }
    for column in 3..8 + usize::from(loads) {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text.line(table);
}

fn quic(text: &mut Text, quic: &QuicStatus) {
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
    text.line(format_args!(
        "led by QUIC ids of configuration {}; servers: {file}",
        configs.join(", ")
    ));
}

fn discover(text: &mut Text, entry: &DiscoverStatus) {
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
    text.line(format_args!(
        "looked up by {} ({}): {} backends{leaving}; {answer}",
        entry.name, entry.records, entry.backends
    ));
}

fn new_flows(text: &mut Text, flows: &NewFlowStatus) {
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
    text.line(format_args!(
        "new flows: {}; {} dropped by the service's cap, {} by their source's{held}{pending}",
        rates.join("; "),
        flows.capped,
        flows.capped_of_source
    ));
}

fn ids(text: &mut Text, status: &Status) {
    if status.ids.is_empty() {
        return;
    }
    text.line("");
    let mut table = table(&["QUIC ids", "packets", "meaning"]);
    for id in &status.ids {
        table.add_row(vec![id.outcome.clone(), id.packets.to_string(), id.description.clone()]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    text.line(table);
}

fn plane(text: &mut Text, plane: &PlaneStatus) {
    let PlaneStatus {
        kind,
        process,
        restarts,
        failure,
        utilisation,
        utilisation_plus,
        counts,
        offload,
        no_rules,
    } = plane;
    let state = match (process, failure) {
        (Some(process), _) => format!("process {process}"),
        (None, Some(why)) => format!("none ({why})"),
        (None, None) => "none yet".to_owned(),
    };
    let count = |name: &str| counts.get(name).copied().unwrap_or_default();
    text.line(format_args!(
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
        text.line(format_args!("frames that it lost: {}", lost.join(", ")));
    }
    match (offload, no_rules) {
        (Some(card), Some(why)) => text.line(format_args!("rules ({card}): none ({why})")),
        (Some(card), None) => text.line(format_args!(
            "rules ({card}): {} in force, {} asked for, {} refused, {} doubted; {} frames led by them, {} steered, \
             {} steered in a backend's queue, {} of connections that found no place",
            count("rules"),
            count("rules_asked"),
            count("rules_refused"),
            count("rules_doubted"),
            count("led"),
            count("steered"),
            count("steered_apart"),
            count("rules_unplaced"),
        )),
        (None, _) => {}
    }
}

fn lost(text: &mut Text, status: &Status) {
    let lost = match &status.lost {
        Some(lost) => {
            let each = lost.iter().map(|one| format!("{} by {}", one.frames, one.interface));
            each.collect::<Vec<_>>().join(", ")
        }
        None => "unknown".into(),
    };
    text.line(format_args!("\nframes lost on their way out since the start: {lost}"));
}

fn by_interface(text: &mut Text, status: &Status) {
    let Some(counted) = &status.by_interface else { return };
    text.line("");
    let mut table = table(&["came by", "packets", "forwarded", "to the kernel", "dropped"]);
    for one in counted {
        let all = one.forwarded + one.passed + one.dropped;
        let counts = [all, one.forwarded, one.passed, one.dropped];
        let counts = counts.iter().map(u64::to_string);
        table.add_row([one.interface.clone()].into_iter().chain(counts));
    }
    text.line(table);
}

fn outcomes(text: &mut Text, status: &Status) {
    if status.outcomes.is_empty() {
        return;
    }
    text.line("");
    let mut table = table(&["not forwarded", "to the kernel", "dropped", "meaning"]);
    for outcome in &status.outcomes {
        table.add_row(vec![
            outcome.reason.clone(),
            outcome.passed.to_string(),
            outcome.dropped.to_string(),
            outcome.description.clone(),
        ]);
    }
    text.line(table);
}
