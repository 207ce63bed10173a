//! keepalived.conf: its virtual servers.

mod checks;
mod words;

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use super::ImportError;
use super::draft::{Backend, Check, Draft, Fields, MOST_SERVICES, Service, quoted, seconds};
use crate::config::{Protocol, is_interface_name, usual_idle_timeout};
use words::Item;

/// How IPVS reaches its servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// In frames to their MAC address, which ipvsadm calls route.
    #[default]
    Direct,
    Tunnel,
    Nat,
}

/// Seconds from one check to the next, where they are not said.
const INTERVAL: f64 = 60.0;
/// Addresses of one range that are taken over.
const MOST_OF_A_RANGE: u32 = 256;

/// Reads it.
pub(super) fn read(text: &str) -> Result<Draft, ImportError> {
    let items = words::read(text)?;
    let mut draft = Draft::default();
    let mut groups = Groups::default();
    for item in items.iter().filter(|item| item.is("virtual_server_group")) {
        // The first of a name.
        if !groups.contains_key(item.word(1)) {
            groups.insert(item.word(1), ends_of(item, &mut draft));
        }
    }
    for item in &items {
        match item.word(0) {
            "virtual_server" => virtual_server(item, &groups, &mut draft),
            "virtual_server_group" | "" => {}
            "vrrp_instance" => vrrp(item, &mut draft),
            "vrrp_script" | "vrrp_sync_group" | "vrrp_track_process" | "track_file" => {
                draft.note(item.line, format!("{}: weir has no VRRP", item.word(0)));
            }
            "global_defs" => draft.note(item.line, "global_defs: weir has nothing like them"),
            "include" => {
                draft.note(item.line, format!("include {}: import that file, too", item.word(1)));
            }
            other => draft.note(item.line, format!("{other}: weir has nothing like it")),
        }
    }
    Ok(draft)
}

/// Takes the interface of an instance, and nothing else.
fn vrrp(item: &Item, draft: &mut Draft) {
    let text = "vrrp_instance: weir has no VRRP; let several balancers announce the addresses to a router, or \
                let keepalived go on with VRRP alone";
    draft.note(item.line, text);
    for interface in item.items.iter().filter(|one| one.is("interface")) {
        further(interface, Some(1), draft);
        let name = interface.word(1).to_owned();
        if !is_interface_name(&name) {
            draft.note(interface.line, format!("{name:?} is not an interface name"));
        } else if !draft.interfaces.contains(&name) {
            draft.interfaces.push(name);
        }
    }
}

/// Notes what stands on a line behind the values that are read of it; none: all are.
fn further(item: &Item, values: Option<usize>, draft: &mut Draft) {
    if let Some(more) = values.and_then(|values| item.beyond(values)) {
        let name = item.word(0);
        draft.note(
            item.line,
            format!("{name}: what follows on its line is not read ({more}); a setting has a line of its own"),
        );
    }
}

/// How many values of a setting of a virtual server are read; none: as many as there are.
fn values_of(item: &Item) -> Option<usize> {
    match item.word(0) {
        "delay_loop"
        | "lb_algo"
        | "lvs_sched"
        | "protocol"
        | "persistence_timeout"
        | "virtualhost"
        | "retry"
        | "connect_timeout"
        | "weight" => Some(1),
        "real_server" | "sorry_server" => Some(2),
        "lb_kind" | "lvs_method" => {
            // Options of tunnels come in pairs, but for the one of checksums that weir does not make either.
            let options = item.words.get(2..).unwrap_or_default();
            let mut read = 0;
            while let Some(option) = options.get(read) {
                read += match option.as_str() {
                    "type" | "port" => 2,
                    "nocsum" => 1,
                    _ => break,
                };
            }
            Some(1 + read)
        }
        "inhibit_on_failure" => Some(0),
        _ => None,
    }
}

/// What of a virtual server all its services have.
struct Settings {
    protocol: Protocol,
    kind: Kind,
    lines: Vec<String>,
    interval: Option<f64>,
    host: Option<String>,
    retries: Option<u32>,
    timeout: Option<f64>,
}

/// Addresses and ports by the name of their group.
type Groups<'a> = HashMap<&'a str, Vec<End>>;

fn virtual_server(item: &Item, groups: &Groups<'_>, draft: &mut Draft) {
    further(item, Some(2), draft);
    let ends = match item.word(1) {
        "fwmark" => {
            draft.note(
                item.line,
                "a virtual server by firewall mark: weir has services by address only",
            );
            return;
        }
        "group" => {
            let name = item.word(2);
            let Some(ends) = groups.get(name) else {
                draft.note(item.line, format!("there is no virtual_server_group {name:?}"));
                return;
            };
            Cow::Borrowed(&ends[..])
        }
        _ => Cow::Owned(ends_of_words(item.values(), item.line, draft)),
    };
    let Some(settings) = settings(item, draft) else { return };
    let backends = backends(item, &settings, draft);
    for &(vip, port) in &*ends {
        let mut shared = Fields::new();
        shared.insert("interval", seconds(settings.interval.unwrap_or(INTERVAL)));
        // keepalived takes the first success.
        shared.insert("rise", "1".into());
        let backends = backends.iter().map(|backend| Backend {
            // The port stays where only NAT would change it.
            port: backend
                .port
                .filter(|own| settings.kind == Kind::Nat && Some(*own) != port && port.is_some()),
            check: match &backend.check {
                Check::Of(fields) => asked_at(fields, backend.port, port, settings.protocol),
                other => other.clone(),
            },
            ..backend.clone()
        });
        let added = draft.add(Service {
            line: item.line,
            said: item.words.join(" "),
            name: format!("{}-{}-{}", settings.protocol.name(), vip, port.unwrap_or(0)),
            vip,
            port,
            protocol: settings.protocol,
            settings: settings.lines.clone(),
            shared,
            backends: backends.collect(),
        });
        if !added {
            return;
        }
    }
}

/// A check with the port that keepalived asks: the server's. None where there is no port to ask.
fn asked_at(fields: &Fields, own: Option<u16>, service: Option<u16>, protocol: Protocol) -> Check {
    let mut fields = fields.clone();
    let other = protocol != Protocol::Tcp;
    if !fields.contains_key("port") && !fields.contains_key("command") {
        match own.or(service) {
            Some(port) if Some(port) != service || other || fields.contains_key("query") => {
                fields.insert("port", port.to_string());
            }
            Some(_) => {}
            None => return Check::Off,
        }
    }
    Check::Of(fields)
}

/// The settings; none if the services cannot be weir's.
fn settings(item: &Item, draft: &mut Draft) -> Option<Settings> {
    let mut all = Settings {
        protocol: Protocol::Tcp,
        kind: Kind::Nat,
        lines: Vec::new(),
        interval: None,
        host: None,
        retries: None,
        timeout: None,
    };
    // Each with its line, or that of the virtual server where nothing is said.
    let (mut scheduler, mut kind_line) = (("wlc", item.line), item.line);
    let (mut persistent, mut tunnel) = (None, "ipip");
    let mut tunnel_port = None;
    for one in &item.items {
        // Those of real servers are looked at with them.
        if !one.is("real_server") {
            further(one, values_of(one), draft);
        }
        let number = || one.word(1).parse::<f64>().ok().filter(|number| number.is_finite());
        match one.word(0) {
            "real_server" => {}
            "delay_loop" => {
                all.interval = number().filter(|seconds| *seconds > 0.0);
                if all.interval.is_none() {
                    let text = format!(
                        "delay_loop {:?}: is no time to wait; {INTERVAL} s it is, as without it",
                        one.word(1)
                    );
                    draft.note(one.line, text);
                }
            }
            "lb_algo" | "lvs_sched" => scheduler = (one.word(1), one.line),
            "lb_kind" | "lvs_method" => {
                kind_line = one.line;
                all.kind = match one.word(1).to_ascii_uppercase().as_str() {
                    "DR" => Kind::Direct,
                    "TUN" => Kind::Tunnel,
                    "NAT" => Kind::Nat,
                    other => {
                        draft.note(
                            one.line,
                            format!("{other:?} is none of NAT, DR and TUN; left out"),
                        );
                        return None;
                    }
                };
                tunnel = one.after("type").unwrap_or("ipip");
                tunnel_port = one.after("port").and_then(|port| port.parse::<u16>().ok());
            }
            "protocol" => match one.word(1).to_ascii_uppercase().as_str() {
                "TCP" => {}
                "UDP" => all.protocol = Protocol::Udp,
                "SCTP" => all.protocol = Protocol::Sctp,
                other => {
                    draft.note(one.line, format!("{other}: weir forwards TCP, UDP and SCTP only"));
                    return None;
                }
            },
            "persistence_timeout" => persistent = Some((number().unwrap_or(360.0), one.line)),
            "virtualhost" => all.host = Some(one.word(1).to_owned()),
            "retry" => all.retries = one.word(1).parse().ok(),
            "connect_timeout" => all.timeout = number(),
            // A backend of its own.
            "sorry_server" => {}
            other => draft.note(one.line, format!("{other}: weir has nothing like it")),
        }
    }
    if all.protocol == Protocol::Sctp && all.kind == Kind::Nat {
        draft.note(
            kind_line,
            "NAT: weir does not translate SCTP, only DR and TUN go with it; left out",
        );
        return None;
    }
    let by_client = persistent.is_some();
    let (scheduler, line) = scheduler;
    let scheduled = schedule(scheduler, by_client, &mut |text| draft.note(line, text));
    all.lines.extend(scheduled);
    if let Some((seconds, line)) = persistent {
        let (lines, text) = persistence(seconds as u64, all.protocol, "persistence_timeout");
        all.lines.extend(lines);
        draft.note(line, text);
    }
    let forward = match all.kind {
        Kind::Direct => "l2",
        Kind::Nat => "nat",
        Kind::Tunnel => match tunnel {
            known @ ("gue" | "gre") => known,
            _ => "ipip",
        },
    };
    all.lines.push(format!("forward = \"{forward}\""));
    if let (Some(port), "gue") = (tunnel_port, forward) {
        all.lines.push(format!("tunnel_port = {port}"));
    }
    Some(all)
}

/// The settings that keep clients where they are, and in what they differ. `idle_timeout` is of connections, too: so it is
/// never less than the usual one, whatever is said of clients.
pub(super) fn persistence(seconds: u64, protocol: Protocol, said: &str) -> (Vec<String>, String) {
    let usual = usual_idle_timeout(protocol).as_secs();
    let mut lines = vec!["affinity = \"client\"".to_owned()];
    let own = seconds.min(2_592_000).max(usual);
    if own > usual {
        lines.push(format!("idle_timeout = {}", quoted(&format!("{own}s"))));
    }
    let text = format!(
        "{said} {seconds}: a client is forgotten when it was silent for idle_timeout ({own} s), not {seconds} s after its \
         last connection; so are connections, and that is why it is not shortened"
    );
    (lines, text)
}

/// The method that stands for a scheduler of IPVS, as settings.
pub(super) fn schedule(
    scheduler: &str,
    by_client: bool,
    note: &mut dyn FnMut(String),
) -> Vec<String> {
    let scheduled = |scheduler: &str| {
        vec!["method = \"tracked\"".to_owned(), format!("scheduler = \"{scheduler}\"")]
    };
    let hashed = |note: &mut dyn FnMut(String), why: &str| {
        note(format!("scheduler {scheduler}: {why}"));
        vec!["method = \"concury\"".to_owned()]
    };
    if by_client {
        return match scheduler {
            "sh" | "mh" => Vec::new(),
            _ => hashed(
                note,
                "what stays together by client is placed by hash, in proportion to the weights",
            ),
        };
    }
    match scheduler {
        "rr" => scheduled("rr"),
        "wrr" => scheduled("wrr"),
        "lc" | "wlc" => scheduled("least"),
        "sed" | "nq" => {
            note(format!(
                "scheduler {scheduler}: weir's \"least\" counts one connection more as sed does"
            ));
            scheduled("least")
        }
        "mh" => vec!["method = \"concury\"".to_owned()],
        "sh" => hashed(note, "weir hashes addresses and ports, unless affinity = \"client\""),
        "dh" | "lblc" | "lblcr" | "fo" | "ovf" => {
            hashed(note, "weir has nothing like it, and places by hash")
        }
        _ => hashed(note, "is not known, and weir places by hash"),
    }
}

type End = (IpAddr, Option<u16>);

/// Addresses and ports of a group.
fn ends_of(group: &Item, draft: &mut Draft) -> Vec<End> {
    let mut ends = Vec::new();
    for item in &group.items {
        if item.is("fwmark") {
            draft.note(item.line, "a firewall mark: weir has services by address only");
            continue;
        }
        further(item, Some(1), draft);
        ends.extend(ends_of_words(&item.words, item.line, draft));
        if ends.len() > MOST_SERVICES {
            draft
                .note(item.line, "more addresses than there can be services; the rest is left out");
            break;
        }
    }
    ends
}

/// An address or a range, and a port; 0 or none: any.
fn ends_of_words(words: &[String], line: usize, draft: &mut Draft) -> Vec<End> {
    let address = words.first().map(String::as_str).unwrap_or_default();
    let port = match words.get(1).map(|word| word.parse::<u16>()) {
        None => None,
        Some(Ok(port)) => Some(port).filter(|port| *port > 0),
        Some(Err(_)) => {
            draft.note(line, format!("{:?} is no port; left out", words[1]));
            return Vec::new();
        }
    };
    if let Ok(address) = address.parse::<IpAddr>() {
        return vec![(address, port)];
    }
    let range = address.split_once('-').and_then(|(first, last)| {
        let (first, last) = (first.parse::<Ipv4Addr>().ok()?, last.parse::<u8>().ok()?);
        let begin = u32::from(first);
        let end = (begin & !0xff) | u32::from(last);
        (begin <= end && end - begin < MOST_OF_A_RANGE).then_some(begin..=end)
    });
    match range {
        Some(range) => range.map(|one| (Ipv4Addr::from(one).into(), port)).collect(),
        None => {
            draft.note(line, format!("{address:?} is no address; left out"));
            Vec::new()
        }
    }
}

fn backends(item: &Item, settings: &Settings, draft: &mut Draft) -> Vec<Backend> {
    let mut backends = Vec::new();
    for server in item.items.iter().filter(|one| one.is("real_server")) {
        let Ok(address) = server.word(1).parse::<IpAddr>() else {
            draft.note(server.line, format!("{:?} is no address; left out", server.word(1)));
            continue;
        };
        let port = server.word(2).parse::<u16>().ok().filter(|port| *port > 0);
        further(server, Some(2), draft);
        let mut backend = Backend {
            line: server.line,
            address,
            port,
            weight: None,
            drain: false,
            backup: false,
            check: Check::Off,
        };
        for one in &server.items {
            further(one, values_of(one), draft);
            match one.word(0) {
                "weight" => match one.word(1).parse::<u32>() {
                    Ok(weight) => backend.weight = Some(weight.min(65_535)),
                    Err(_) => draft.note(one.line, format!("{:?} is no weight", one.word(1))),
                },
                name if checks::is_check(name) => match backend.check {
                    Check::Off => backend.check = checks::check(one, settings, draft),
                    _ => draft.note(
                        one.line,
                        format!("{name}: a backend has one check; the first stays"),
                    ),
                },
                "inhibit_on_failure" => {
                    let text = "inhibit_on_failure: a backend that is down keeps its connections in any case";
                    draft.note(one.line, text);
                }
                other => draft.note(one.line, format!("{other}: weir has nothing like it")),
            }
        }
        backends.push(backend);
    }
    backends.extend(item.all("sorry_server").filter_map(|one| sorry(one, draft)));
    backends
}

/// The server that is asked when all others are down.
fn sorry(item: &Item, draft: &mut Draft) -> Option<Backend> {
    let Ok(address) = item.word(1).parse::<IpAddr>() else {
        draft.note(item.line, format!("{:?} is no address; left out", item.word(1)));
        return None;
    };
    let port = item.word(2).parse::<u16>().ok().filter(|port| *port > 0);
    let (line, check) = (item.line, Check::Off);
    Some(Backend { line, address, port, weight: None, drain: false, backup: true, check })
}
