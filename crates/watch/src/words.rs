//! Packets and backends in words.

use crate::text::Text;
use anyhow::Context;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use weir_control::engine::{BackendStatus, TracedPacket};
use weir_wire::Reason;

/// A backend's weight, with what it counts now where that is something else.
pub fn weight(backend: &BackendStatus) -> String {
    let BackendStatus { weight, effective_weight, .. } = backend;
    if (effective_weight - f64::from(*weight)).abs() < 0.005 {
        weight.to_string()
    } else {
        format!("{weight} ({effective_weight:.2})")
    }
}

/// What has become of a backend: one that is down may be drained, or in maintenance, beside that. It is one word for
/// whoever takes columns apart.
pub fn state_of(backend: &BackendStatus) -> String {
    let state = &backend.state;
    let away = backend.maintenance.as_ref().is_some_and(|windows| windows.until.is_some());
    let beside = match &**state {
        "down" if away => ",maintenance",
        "down" if backend.drain || backend.leaving => ",draining",
        _ => "",
    };
    format!("{state}{beside}")
}

/// A packet, and what became of it, in a line.
pub fn sentence(packet: &TracedPacket) -> String {
    let TracedPacket { length, fate, out, .. } = packet;
    let flow = match (&packet.protocol, packet.source, packet.destination) {
        (Some(protocol), Some(source), Some(destination)) => {
            let flags = match &packet.flags[..] {
                [] => String::new(),
                flags => format!(" {}", flags.join("+")),
            };
            format!("{source} > {destination} {protocol}{flags}, {length} bytes")
        }
        _ => format!("{}, {length} bytes", kind(&packet.frame)),
    };
    let service = packet.service.as_ref().map_or_else(String::new, |name| format!("{name}: "));
    let reason = packet.reason.as_ref().map_or_else(String::new, |name| {
        let reason = Reason::ALL.iter().find(|reason| reason.name() == name);
        let why = reason.map_or("", |reason| reason.description());
        format!(", {name} ({})", why.trim_end_matches('.'))
    });
    let by = out.as_ref().map_or_else(String::new, |out| format!(" by {out}"));
    let after = packet.length_after.filter(|after| after != length);
    let after = after.map_or_else(String::new, |after| format!(" as {after} bytes"));
    let fate = match (&fate[..], &packet.backend) {
        ("sent", Some(backend)) => format!("to {backend}{by}{after}"),
        ("sent", None) => format!("sent{by}{after}"),
        ("passed", _) => "passed to this host".into(),
        (fate, _) => fate.to_owned(),
    };
    format!("{flow} -> {service}{fate}{reason}")
}

/// What each rule of the program says.
const RULES: &str = include_str!("../../../corpus/rules.toml");

/// The sentences of rules, by their names.
#[derive(Default, Debug)]
pub struct Sentences(BTreeMap<String, String>);

impl Sentences {
    /// Those of this build's program.
    ///
    /// # Errors
    /// None but of a build that was made wrongly.
    pub fn of_rules() -> anyhow::Result<Self> {
        #[derive(serde::Deserialize)]
        struct Rules {
            rules: BTreeMap<String, String>,
        }
        let rules: Rules = toml::from_str(RULES).context("the rules of this build")?;
        Ok(Self(rules.rules))
    }
}

/// When a packet came and what became of it, with a line for each rule that it went through if there are
/// sentences.
pub fn packet(packet: &TracedPacket, sentences: &Sentences) -> String {
    let mut text = Text::default();
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(packet.time);
    let time = humantime::format_rfc3339_micros(time).to_string();
    let time = time.split_once('T').map_or(&time[..], |(_, time)| time);
    text.line(format_args!("{time} {} {}", packet.interface, sentence(packet)));
    if sentences.0.is_empty() {
        return text.all();
    }
    if packet.more_rules {
        text.line("    ...");
    }
    for rule in &packet.rules {
        let sentence = sentences.0.get(rule).map_or("", |sentence| sentence);
        text.line(format_args!("    {rule:<26} {sentence}"));
    }
    text.all()
}

/// What a frame without a flow is, by its EtherType.
fn kind(frame: &str) -> String {
    match frame.get(24..28) {
        Some("0800") => match frame.get(46..48) {
            Some("01") => "ICMP".into(),
            _ => "IPv4".into(),
        },
        Some("86dd") => match frame.get(40..42) {
            Some("3a") => "ICMPv6".into(),
            _ => "IPv6".into(),
        },
        Some("0806") => "ARP".into(),
        Some(other) => format!("EtherType 0x{other}"),
        None => "a frame without an EtherType".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A backend that is down says whether somebody has drained it, too.
    #[test]
    fn what_is_down_may_be_drained_as_well() {
        let shown = |state: &str, drain: bool, until: Option<&str>| {
            let backend = json!({ "name": "b1", "number": 1, "address": "10.0.0.11", "weight": 1, "state": state,
                "drain": drain, "check": { "up": state != "down", "detail": "" }, "states": 21, "packets": 0,
                "bytes": 0, "flows": 0, "maintenance": { "until": until, "next": null, "windows": [] } });
            state_of(&serde_json::from_value(backend).unwrap())
        };
        assert_eq!(shown("down", false, None), "down");
        assert_eq!(shown("down", true, None), "down,draining");
        let until = Some("2026-12-02T02:00:00Z");
        assert_eq!(shown("down", true, until), "down,maintenance");
        assert_eq!(shown("draining", true, None), "draining");
        assert_eq!(shown("maintenance", true, until), "maintenance");
    }
}
