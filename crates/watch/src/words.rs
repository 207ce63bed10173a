//! Packets and backends in words.

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
