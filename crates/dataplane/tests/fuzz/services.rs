//! What frames meet: services of every method, family and protocol, by every way to forward, with all that a service
//! can ask of its packets.

use crate::format::Setup;
use crate::grammar::Targets;
use std::net::IpAddr;
use weir_wire::quic::QuicLb;

/// From one new flow to the next where they are capped: far more nanoseconds than any run takes, so that no bucket
/// gains one by a clock.
pub const INTERVAL: u64 = SECONDS * 1_000_000_000;
const SECONDS: u64 = 1_000_000_000;

const METHODS: [&str; 6] = ["concury", "tracked", "jet", "residue", "cheetah", "cheetah-stateful"];

/// The methods that need no timestamps.
const PLAIN_METHODS: [&str; 4] = ["concury", "tracked", "jet", "residue"];

const BACKENDS: &str = r#"
backends = [
    { name = "plain", address = "192.0.2.10", mac = "02:00:00:01:00:01", source_mac = "02:00:00:00:00:09" },
    { name = "ipip", address = "203.0.113.7", mac = "02:00:00:01:00:02", source_mac = "02:00:00:00:00:09", tunnel = { kind = "ipip", source = "198.51.100.0", spread = 8 } },
    { name = "gre", address = "2001:db8:2::7", mac = "02:00:00:01:00:03", source_mac = "02:00:00:00:00:09", tunnel = { kind = "gre", source = "2001:db8:1::1", mtu = 150 } },
    { name = "fou", address = "2001:db8:2::7", mac = "02:00:00:01:00:04", source_mac = "02:00:00:00:00:09", tunnel = { kind = "fou", source = "2001:db8:1::1", port = 5555 } },
    { name = "gue", address = "203.0.113.7", mac = "02:00:00:01:00:05", source_mac = "02:00:00:00:00:09", tunnel = { kind = "gue", source = "198.51.100.0", port = 6080 } },
    { name = "small", address = "192.0.2.11", mac = "02:00:00:01:00:06", source_mac = "02:00:00:00:00:09", segments = 1000 },
    { name = "fitted", address = "203.0.113.8", mac = "02:00:00:01:00:07", source_mac = "02:00:00:00:00:09", segments = 0, tunnel = { kind = "ipip", source = "198.51.100.0", mtu = 1400 } },
    { name = "nat4", address = "10.6.0.7", mac = "02:00:00:01:00:08", source_mac = "02:00:00:00:00:09", nat = { port = 8080 } },
    { name = "nat6", address = "fd06::7", mac = "02:00:00:01:00:09", source_mac = "02:00:00:00:00:09", segments = 1000, nat = { mtu = 1280 } },
    { name = "full4", address = "10.6.0.8", mac = "02:00:00:01:00:0a", source_mac = "02:00:00:00:00:09", segments = 900, full_nat = { mtu = 150 } },
    { name = "full6", address = "fd06::8", mac = "02:00:00:01:00:0b", source_mac = "02:00:00:00:00:09", full_nat = { port = 8080 } },
    { name = "dead", address = "192.0.2.12", mac = "02:00:00:01:00:0c", source_mac = "02:00:00:00:00:09", down = true, resets = true },
]
"#;

/// Ports of services: of TCP and SCTP, and of UDP.
const PORTS: [u16; 2] = [80, 443];

const TUNNELS: &str = r#"["plain", "ipip", "gre", "fou", "gue"]"#;

/// And one whose connections are reset.
const ALL: &str = r#"["plain", "ipip", "gre", "fou", "gue", "dead"]"#;

/// Messages in a second: one each nanosecond, so without end.
const MESSAGES: u32 = 1_000_000_000;

/// A key of QUIC ids, for servers of three bytes with nonces of four, and of eight with eight: four passes, and one.
const KEY: &str = "8f95f09245765f80256934e50c66207f";

/// The services, as a set-up has them.
#[derive(Default)]
struct Text(String);

impl Text {
    fn add(&mut self, address: &str, protocol: &str, method: &str, backends: &str, more: &str) {
        let port = PORTS[usize::from(protocol == "udp")];
        let port =
            if more.contains("port = ") { String::new() } else { format!("port = {port}, ") };
        self.0 += &format!(
            "{{ address = \"{address}\", protocol = \"{protocol}\", {port}method = \"{method}\", \
             backends = {backends}{more} }},\n"
        );
    }
}

/// A service of each method, family and protocol at addresses and ports of their own.
fn usual(text: &mut Text) {
    for (at, method) in METHODS.iter().enumerate() {
        for protocol in ["tcp", "udp"] {
            for address in [format!("10.9.0.{at}"), format!("fd09::{at}")] {
                // The first ones are led by ids.
                let ids = if protocol == "udp" && at == 0 {
                    r#", ids = [{ config = 0, server_id = 3, nonce = 4, servers = { "01aabb" = "plain", "02aabb" = "gue" } }]"#
                } else {
                    ""
                };
                text.add(&address, protocol, method, ALL, ids);
            }
        }
    }
}

/// Segments, lists, rates, SCTP, ids that are hidden: what is no matter of addresses.
fn particular(text: &mut Text) {
    for (at, method) in PLAIN_METHODS.iter().enumerate() {
        for address in [format!("10.9.3.{at}"), format!("fd09::3:{at}")] {
            text.add(&address, "sctp", method, r#"["plain", "ipip", "gre"]"#, "");
        }
    }
    let segments = r#"["small", "fitted"]"#;
    text.add("10.9.4.0", "tcp", "jet", segments, "");
    text.add("fd09::4:0", "tcp", "cheetah", segments, "");
    let deny = r#", deny = ["10.9.0.0/18", "10.9.81.2/31", "fd09::5504/127"]"#;
    let allow = r#", allow = ["fd09::/16"], deny = ["fd09::4:5502/127"]"#;
    text.add("10.9.4.1", "tcp", "concury", TUNNELS, deny);
    text.add("fd09::4:1", "udp", "residue", TUNNELS, allow);
    let rates = format!(
        ", new_flows = {{ every = {SECONDS}, burst = 7, source_every = {SECONDS}, source_burst = 2, \
         ipv4_prefix = 31, ipv6_prefix = 127 }}"
    );
    text.add("10.9.4.2", "tcp", "concury", TUNNELS, &rates);
    text.add("fd09::4:2", "tcp", "tracked", TUNNELS, &rates);
    text.add("10.9.4.2", "sctp", "jet", r#"["plain"]"#, &rates);
    text.add("fd09::4:2", "udp", "tracked", TUNNELS, &rates);
    text.add("10.9.4.3", "tcp", "tracked", TUNNELS, &format!("{deny}{rates}"));
    let ids = format!(
        r#", ids = [{{ config = 1, server_id = 3, nonce = 4, key = "{KEY}", servers = {{ "01aabb" = "plain", "02aabb" = "ipip" }} }}, {{ config = 2, server_id = 8, nonce = 8, key = "{KEY}", servers = {{ "0102030405060708" = "gre" }} }}]"#
    );
    text.add("10.9.4.4", "udp", "concury", TUNNELS, &ids);
    text.add("fd09::4:4", "udp", "tracked", TUNNELS, &format!("{ids}{allow}"));
}

/// Services whose packets get other addresses, and those of prefixes, ranges of ports and several addresses.
fn wide(text: &mut Text) {
    for protocol in ["tcp", "udp"] {
        text.add("10.9.1.0", protocol, "tracked", r#"["plain", "nat4"]"#, "");
        text.add("fd09::1:0", protocol, "concury", r#"["nat6"]"#, "");
    }
    for (at, method) in METHODS.iter().enumerate() {
        text.add(&format!("10.9.2.{at}"), "tcp", method, r#"["small", "full4"]"#, "");
        text.add(&format!("fd09::2:{at}"), "udp", method, r#"["full6"]"#, "");
    }
    let range = ", bits = 28, port = 75, last_port = 85";
    text.add("10.9.16.0", "tcp", "concury", TUNNELS, range);
    // No larger, and of one port: connections of one client to two addresses of more than 2^16, or to other ports at
    // other addresses, may share a state (docs/services.md), and are one for the plane in memory and two for the kernel's.
    text.add("fd09:0:0:16::", "udp", "tracked", TUNNELS, ", bits = 112");
    text.add("fd09::6:0", "udp", "tracked", TUNNELS, ", port = 440, last_port = 450");
    let also = r#", also = ["10.9.5.1", "fd09::5:1"]"#;
    text.add("10.9.5.0", "tcp", "residue", TUNNELS, also);
    text.add("10.9.5.0", "udp", "cheetah", TUNNELS, also);
}

/// IDs that servers of a key have made; and one of nobody's.
fn ids() -> Vec<Vec<u8>> {
    let bytes = |text: &str| crate::format::Hex::try_from(text.to_owned()).expect("digits").0;
    let key: Option<[u8; 16]> = Some(bytes(KEY).try_into().expect("16 bytes"));
    let mut all = Vec::new();
    for (config, server, nonce) in
        [(1, "01aabb", 4), (1, "02aabb", 4), (1, "03aabb", 4), (2, "0102030405060708", 8)]
    {
        let server = bytes(server);
        let made = QuicLb::new(config, server.len(), nonce, key).expect("it can be");
        for number in 0..4 {
            let id = made.encode(&server, &vec![number; nonce], number).expect("it fits");
            all.push(id.as_bytes().to_vec());
        }
    }
    all
}

/// The services, and what there is to send to. `all`: also those that make the program ask more about packets of
/// no service. `messages`: whether errors, echo replies and resets may be sent.
pub fn setup(all: bool, messages: bool) -> (Setup, Targets) {
    let mut text = Text::default();
    usual(&mut text);
    particular(&mut text);
    if all {
        wide(&mut text);
    }
    let text = format!("{BACKENDS}services = [\n{}]\n", text.0);
    let mut setup: Setup = toml::from_str(&text).expect("it is a set-up");
    setup.many_ports = true;
    if messages {
        (setup.errors, setup.echoes, setup.resets) = (MESSAGES, MESSAGES, MESSAGES);
    }
    if !all {
        // Their answers would be asked for, whoever sends to them.
        setup.backends.retain(|one| one.nat.is_none() && one.full_nat.is_none());
    }
    let octets = crate::octets;
    let own = setup.services.iter().flat_map(|one| one.also.iter().chain([&one.address]));
    let mut addresses: Vec<_> = own.map(|address| octets(*address)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    // Of no service, or only of a prefix.
    for other in [
        "10.9.9.9",
        "10.9.16.3",
        "10.9.16.15",
        "10.9.16.16",
        "fd09:0:0:16::1",
        "fd09:0:0:16::8005",
        "fd09:0:0:16:8000::5",
    ] {
        addresses.push(octets(other.parse().expect("an address")));
    }
    let sender = |address: &str, port| (octets(address.parse::<IpAddr>().expect("one")), port);
    let senders = vec![
        sender("10.6.0.7", 8080),
        sender("fd06::7", PORTS[0]),
        sender("fd06::7", PORTS[1]),
        // Under full NAT nobody but the balancer hears from it.
        sender("10.6.0.8", PORTS[0]),
    ];
    (setup, Targets { addresses, tcp: PORTS[0], udp: PORTS[1], senders, ids: ids() })
}
