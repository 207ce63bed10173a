//! What `ipvsadm -S -n` prints, and `ipvsadm -R` reads.

use std::net::{IpAddr, SocketAddr};

use super::draft::{Backend, Check, Draft, Service};
use super::keepalived::{Kind, persistence, schedule};
use super::{ImportError, Note};
use crate::config::Protocol;

/// What a line is about.
#[derive(Default)]
struct Line {
    adds_service: bool,
    adds_server: bool,
    service: Option<(String, Protocol)>,
    /// Why the service is none of weir's.
    foreign: Option<&'static str>,
    scheduler: Option<String>,
    persistent: Option<u64>,
    server: Option<String>,
    kind: Kind,
    tunnel: Option<String>,
    tunnel_port: Option<u16>,
    weight: Option<u32>,
    beside: Vec<String>,
}

/// Reads it. Lines are words, with options and their values.
pub(super) fn read(text: &str) -> Result<Draft, ImportError> {
    let mut draft = Draft::default();
    let mut said = 0;
    for (at, text) in text.lines().enumerate() {
        let number = at + 1;
        let text = text.trim();
        let text = text.strip_prefix("ipvsadm ").unwrap_or(text);
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let wrong = |wrong: String| ImportError::Text { line: number, wrong };
        let line = Line::parse(text).map_err(wrong)?;
        for what in &line.beside {
            draft.note(number, format!("{what}: weir has nothing like it"));
        }
        if let Some(why) = line.foreign {
            draft.note(number, why);
            continue;
        }
        let Some((service, protocol)) = &line.service else {
            return Err(wrong("no service; give what `ipvsadm -S -n` prints".into()));
        };
        let Some((vip, port)) = end(service) else {
            draft.note(number, format!("{service:?} is no address and port; write it with -n"));
            continue;
        };
        if line.adds_service {
            said = number;
            add_service(&mut draft, (number, text), &line, (vip, port, *protocol));
        } else if line.adds_server {
            add_server(&mut draft, number, &line, (vip, port, *protocol));
        } else {
            return Err(wrong("neither -A nor -a; give what `ipvsadm -S -n` prints".into()));
        }
    }
    if said > 0 {
        let text = "ipvsadm knows nothing of health checks: weir asks services of TCP for a connection \
                    every two seconds, and those of UDP and SCTP for nothing";
        draft.notes.push(Note { line: said, text: text.into() });
    }
    Ok(draft)
}

type End = (IpAddr, Option<u16>, Protocol);

fn add_service(draft: &mut Draft, (number, text): (usize, &str), line: &Line, end: End) {
    let (vip, port, protocol) = end;
    let mut settings = Vec::new();
    let scheduler = line.scheduler.as_deref().unwrap_or("wlc");
    let by_client = line.persistent.is_some();
    settings.extend(schedule(scheduler, by_client, &mut |text| draft.note(number, text)));
    if let Some(seconds) = line.persistent {
        let (lines, text) = persistence(seconds, protocol, "-p");
        settings.extend(lines);
        draft.note(number, text);
    }
    draft.add(Service {
        line: number,
        said: text.to_owned(),
        name: format!("{}-{}-{}", protocol.name(), vip, port.unwrap_or(0)),
        vip,
        port,
        protocol,
        settings,
        shared: Default::default(),
        backends: Vec::new(),
    });
}

fn add_server(draft: &mut Draft, number: usize, line: &Line, (vip, port, protocol): End) {
    let Some((address, own)) = line.server.as_deref().and_then(end) else {
        let server = line.server.clone().unwrap_or_default();
        draft.note(number, format!("{server:?} is no address and port; write it with -n"));
        return;
    };
    let Some(at) = draft.find(vip, port, protocol) else {
        draft.note(
            number,
            "a server of a service that was not taken over, or is added further down",
        );
        return;
    };
    if protocol == Protocol::Sctp && line.kind == Kind::Nat {
        draft.note(number, "-m: weir does not translate SCTP, only -g and -i go with it; left out");
        return;
    }
    let service = &mut draft.services[at];
    let forward = line.forward();
    let is = |line: &String| line.starts_with("forward = ");
    match service.settings.iter().find(|line| is(line)) {
        // The first one says it.
        None if service.backends.is_empty() => service.settings.extend(forward.clone()),
        before if before == forward.first() => {}
        _ => {
            let text = "other servers of the service are reached in another way; left out";
            draft.notes.push(Note { line: number, text: text.into() });
            return;
        }
    }
    let nat = line.kind == Kind::Nat;
    if !nat && own.is_some() && own != port {
        let text = "the port is the service's: only NAT has another";
        draft.notes.push(Note { line: number, text: text.into() });
    }
    if !draft.has_room(number, 0, 1) {
        return;
    }
    draft.services[at].backends.push(Backend {
        line: number,
        address,
        port: own.filter(|own| nat && Some(*own) != port && *own > 0),
        weight: line.weight.map(|weight| weight.min(65_535)),
        drain: false,
        backup: false,
        check: if protocol != Protocol::Tcp || port.is_none() { Check::Off } else { Check::Usual },
    });
}

/// An address and a port; port 0, or none, is any.
fn end(text: &str) -> Option<(IpAddr, Option<u16>)> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Some((address, None));
    }
    let end: SocketAddr = text.parse().ok()?;
    Some((end.ip(), Some(end.port()).filter(|port| *port > 0)))
}

impl Line {
    fn parse(text: &str) -> Result<Self, String> {
        let mut line = Self::default();
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} has no value"));
            match word {
                "-A" | "--add-service" => line.adds_service = true,
                "-a" | "--add-server" => line.adds_server = true,
                "-t" | "--tcp-service" => line.service = Some((value()?.to_owned(), Protocol::Tcp)),
                "-u" | "--udp-service" => line.service = Some((value()?.to_owned(), Protocol::Udp)),
                "-f" | "--fwmark-service" => {
                    value()?;
                    line.foreign =
                        Some("services by firewall mark: weir has services by address only");
                }
                "--sctp-service" => line.service = Some((value()?.to_owned(), Protocol::Sctp)),
                "-s" | "--scheduler" => line.scheduler = Some(value()?.to_owned()),
                "-p" | "--persistent" => {
                    line.persistent = Some(value()?.parse().map_err(|_| "-p needs seconds")?);
                }
                "-r" | "--real-server" => line.server = Some(value()?.to_owned()),
                "-g" | "--gatewaying" => line.kind = Kind::Direct,
                "-i" | "--ipip" => line.kind = Kind::Tunnel,
                "-m" | "--masquerading" => line.kind = Kind::Nat,
                "-w" | "--weight" => {
                    line.weight = Some(value()?.parse().map_err(|_| "-w needs a whole number")?);
                }
                "--tun-type" => line.tunnel = Some(value()?.to_owned()),
                "--tun-port" => {
                    line.tunnel_port =
                        Some(value()?.parse().map_err(|_| "--tun-port needs a port")?);
                }
                "-M" | "--netmask" | "-b" | "--sched-flags" | "--pe" | "-x" | "--u-threshold"
                | "-y" | "--l-threshold" => {
                    let what = format!("{word} {}", value()?);
                    // What it says when there is none.
                    if !["-x 0", "-y 0", "--u-threshold 0", "--l-threshold 0"].contains(&&*what) {
                        line.beside.push(what);
                    }
                }
                "-o" | "--ops" => line.beside.push(word.to_owned()),
                "--tun-nocsum" => {}
                "--tun-csum" | "--tun-remcsum" => line.beside.push(word.to_owned()),
                other => return Err(format!("{other:?} is no option of what `ipvsadm -S` prints")),
            }
        }
        Ok(line)
    }

    /// The way to the server, as settings; the first says which.
    fn forward(&self) -> Vec<String> {
        match self.kind {
            Kind::Direct => vec!["forward = \"l2\"".into()],
            Kind::Nat => vec!["forward = \"nat\"".into()],
            Kind::Tunnel => match self.tunnel.as_deref() {
                Some("gue") => {
                    let port = self.tunnel_port.map(|port| format!("tunnel_port = {port}"));
                    ["forward = \"gue\"".to_owned()].into_iter().chain(port).collect()
                }
                Some("gre") => vec!["forward = \"gre\"".into()],
                _ => vec!["forward = \"ipip\"".into()],
            },
        }
    }
}
