//! `weir explain` names the backend that really answers, `weir status` counts what happened, and
//! every packet that is not forwarded has a reason.

mod common;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use common::{Held, METHODS, WEB4, WEB6, eventually};
use serde_json::Value;
use weir_lab::topology::{ECHO_PORT, INTERFACE, VIP4, VIP6, client4, client6};
use weir_lab::{Balancer, FrameSender, Lab, LabSpec};
use weir_wire::checksum::Checksum;
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

const BALANCER_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 0xff, 1];
const CLIENT_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 1, 1];
/// Nobody's: the bridge floods frames for it, so the balancer sees them.
const STRANGER_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 0x99, 1];

fn explain(balancer: &Balancer, protocol: &str, from: SocketAddr, to: SocketAddr) -> Value {
    let text = balancer
        .command(&["explain", protocol, &from.to_string(), &to.to_string(), "--json"])
        .unwrap();
    serde_json::from_str(&text).unwrap()
}

fn assert_explained(balancer: &Balancer, held: &mut [Held], when: &str) {
    for one in held {
        let said = explain(balancer, "tcp", one.source, one.target);
        assert_eq!(said["backend"], one.backend.as_str(), "{when}: {said:#}");
        assert_eq!(one.ask().unwrap(), one.backend, "{when}");
        let service = if one.target == WEB4 { "web4" } else { "web6" };
        assert_eq!(said["service"], service);
        assert!(said["why"].as_str().is_some_and(|why| why.len() > 20), "{said}");
        let hop = said["next_hop"].as_str().unwrap_or_default();
        assert!(hop.contains(" by ") && said["dropped"].is_null(), "{said}");
        assert!(["up", "draining"].contains(&said["state"].as_str().unwrap_or_default()), "{said}");
    }
}

#[test]
fn explain_names_the_backend_that_answers() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 4, ..LabSpec::default() });
    for method in ["concury", "tracked", "jet", "residue"] {
        let balancer = common::start(&lab, method, 3);
        let mut held = common::hold(&lab, WEB4, 25);
        held.extend(common::hold(&lab, WEB6, 15));
        assert_explained(&balancer, &mut held, "at first");
        for change in [
            &["backend", "add", "web4", "b3", "10.77.2.4"][..],
            &["backend", "drain", "web4", "b0"],
            &["backend", "drain", "web6", "b1"],
            &["backend", "weight", "web6", "b2", "7"],
        ] {
            balancer.command(change).unwrap();
            assert_explained(&balancer, &mut held, &format!("{method}: {change:?}"));
        }
        // Connections that started on reserved Dcodes are among these.
        let mut later = common::hold(&lab, WEB4, 40);
        assert!(later.iter().all(|one| one.backend != "b0"));
        assert_explained(&balancer, &mut later, "while a backend drains");

        let said = explain(&balancer, "tcp", held[0].source, SocketAddr::new(VIP4.into(), 81));
        assert_eq!((&said["service"], &said["backend"]), (&Value::Null, &Value::Null));
        assert!(said["why"].as_str().unwrap().contains("no service"), "{said}");

        let (from, to) = (held[0].source.to_string(), held[0].target.to_string());
        let text = balancer.command(&["explain", "tcp", &from, &to]).unwrap();
        let line = |name: &str| {
            let found = text.lines().find(|line| line.starts_with(name));
            found.unwrap_or_else(|| panic!("no {name}: {text}")).to_string()
        };
        assert!(line("flow").contains(&from) && line("flow").contains(&to), "{text}");
        assert!(line("service").contains(method), "{text}");
        let address = format!("{} (", held[0].backend);
        assert!(line("backend").contains(&address), "{text}");
        assert!(line("why").len() > 20 && line("table").contains("generation"), "{text}");
        assert!(text.lines().all(|line| line.len() < 250), "{text}");

        let mixed = balancer.command(&["explain", "tcp", "10.77.1.1:1", "[fd77::100]:80"]);
        assert!(mixed.unwrap_err().to_string().contains("one family"));
        drop(balancer);
        forget(&lab);
    }
}

#[test]
fn numbers_of_status_add_up() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 3, ..LabSpec::default() });
    for method in METHODS {
        let balancer = common::start(&lab, method, 3);
        let before = balancer.status().unwrap();
        let repeated = common::repeated_syns(&lab);
        common::shorts(&lab, WEB4, 300, 0, 1);
        let held = common::hold(&lab, WEB4, 100);
        let held6 = common::hold(&lab, WEB6, 60);
        let repeated = common::repeated_syns(&lab) - repeated;
        let after = balancer.status().unwrap();
        for (name, made) in [("web4", 400), ("web6", 60)] {
            let of =
                |status: &Value, counter: &str| common::sum(common::service(status, name), counter);
            let flows = of(&after, "flows") - of(&before, "flows");
            assert!((made..=made + repeated).contains(&flows), "{method} {name}: {flows} flows");
            // SYN, ACK and a request at least; more than 40 bytes each.
            let packets = of(&after, "packets") - of(&before, "packets");
            assert!(packets >= 3 * made, "{method} {name}: {packets} packets");
            let bytes = of(&after, "bytes") - of(&before, "bytes");
            assert!(bytes >= 40 * packets, "{method} {name}: {bytes} bytes");
        }
        // Those that are still open, by backend.
        if method == "concury" {
            for (name, open) in [("web4", &held), ("web6", &held6)] {
                eventually("states", || {
                    let status = balancer.status().unwrap();
                    let service = common::service(&status, name);
                    let counts = common::spread(open);
                    let known = |(backend, count): (&String, &u64)| {
                        common::backend(service, backend)["states"].as_u64() >= Some(*count)
                    };
                    counts.iter().all(known)
                });
            }
        }
        let text = balancer.command(&["status"]).unwrap();
        for name in ["web4", "web6", "echo4", "b0", "b1", "b2", method, "10.77.0.100", "fd77::100"]
        {
            assert!(text.contains(name), "{name}: {text}");
        }
        let status = balancer.status().unwrap();
        let b1 = common::backend(common::service(&status, "web4"), "b1").clone();
        let row = text
            .lines()
            .skip_while(|line| !line.starts_with("web4"))
            .find(|line| line.trim_start().starts_with("b1"))
            .unwrap_or_else(|| panic!("no row: {text}"));
        let words: Vec<&str> = row.split_whitespace().collect();
        for word in [b1["flows"].to_string(), b1["packets"].to_string(), "up".to_string()] {
            assert!(words.contains(&word.as_str()), "{word} is not in {row}");
        }
        drop(balancer);
        forget(&lab);
    }
}

/// Passed and dropped of every reason.
fn outcomes(status: &Value) -> BTreeMap<String, (u64, u64)> {
    let list = status["outcomes"].as_array().unwrap();
    list.iter()
        .map(|one| {
            let count = |name: &str| one[name].as_u64().unwrap();
            assert!(one["description"].as_str().unwrap().len() > 10);
            (one["reason"].as_str().unwrap().to_string(), (count("passed"), count("dropped")))
        })
        .collect()
}

fn flow(v6: bool, protocol: Protocol) -> FlowKey {
    let (from, to): (IpAddr, IpAddr) = match v6 {
        false => (client4(0, 0).into(), VIP4.into()),
        true => (client6(0, 0).into(), VIP6.into()),
    };
    let port = if protocol == Protocol::Udp { ECHO_PORT } else { 80 };
    FlowKey::new((from, 4242).into(), (to, port).into(), protocol)
}

fn frame(v6: bool, protocol: Protocol) -> Frame {
    Frame::new(flow(v6, protocol))
        .macs(BALANCER_MAC, CLIENT_MAC)
        .tcp_flags(TcpFlags::SYN)
        .payload(16)
}

/// Changes an IPv4 frame and makes its header's checksum right again.
fn changed4(protocol: Protocol, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = frame(false, protocol).build();
    change(&mut bytes);
    bytes[24..26].fill(0);
    let sum = Checksum::default().add_bytes(&bytes[14..34]).finish();
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn changed6(protocol: Protocol, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = frame(true, protocol).build();
    change(&mut bytes);
    bytes
}

/// A fragment header between the IPv6 header and what is said to follow; `place` as on the wire.
fn fragment6(next: u8, place: u16) -> Vec<u8> {
    changed6(Protocol::Tcp, |f| {
        f[20] = 44;
        let length = u16::from_be_bytes([f[18], f[19]]) + 8;
        f[18..20].copy_from_slice(&length.to_be_bytes());
        let [high, low] = place.to_be_bytes();
        f.splice(54..54, [next, 0, high, low, 0, 0, 0, 7]);
    })
}

/// Frames to a service's address that nobody could forward, with the reason of each.
fn malformed() -> Vec<(&'static str, Vec<u8>)> {
    use Protocol::{Tcp, Udp};
    let mut all = vec![
        (
            "truncated_tcp",
            changed4(Tcp, |f| {
                f[16..18].copy_from_slice(&30u16.to_be_bytes());
                f.truncate(14 + 30);
            }),
        ),
        ("bad_tcp_offset", changed4(Tcp, |f| f[14 + 20 + 12] = 4 << 4)),
        ("bad_tcp_offset", changed4(Tcp, |f| f[14 + 20 + 12] = 15 << 4)),
        // Of another protocol than TCP and UDP: those are forwarded.
        ("first_fragment", changed4(Tcp, |f| f[20..24].copy_from_slice(&[0x20, 0, 64, 47]))),
        ("later_fragment", changed4(Udp, |f| f[20..22].copy_from_slice(&[0x20, 9]))),
        ("later_fragment", changed4(Tcp, |f| f[20..22].copy_from_slice(&[0, 9]))),
        (
            "truncated_udp",
            changed4(Udp, |f| {
                f[16..18].copy_from_slice(&24u16.to_be_bytes());
                f.truncate(14 + 24);
            }),
        ),
        ("bad_udp_length", changed4(Udp, |f| f[14 + 20 + 5] = 7)),
        ("bad_udp_length", changed4(Udp, |f| f[14 + 20 + 4] = 9)),
        ("bad_ipv4_length", changed4(Tcp, |f| f[16] = 9)),
        (
            "truncated_tcp",
            changed6(Tcp, |f| {
                f[18..20].copy_from_slice(&12u16.to_be_bytes());
                f.truncate(14 + 40 + 12);
            }),
        ),
        ("bad_tcp_offset", changed6(Tcp, |f| f[14 + 40 + 12] = 0)),
        ("first_fragment", fragment6(47, 1)),
        ("later_fragment", fragment6(6, 8)),
        ("bad_ipv6_length", changed6(Tcp, |f| f[18] = 9)),
    ];
    all.push((
        "truncated_ipv6_extension",
        changed6(Tcp, |f| {
            f[20] = 60;
            f[54] = 6;
            f[55] = 200;
        }),
    ));
    all
}

#[test]
fn what_is_not_forwarded_has_a_reason() {
    const TIMES: usize = 10;
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    let sender = FrameSender::open(&lab.clients()[0], INTERFACE).unwrap();
    let mut held = common::hold(&lab, WEB4, 10);

    let packets = |status: &Value| -> u64 {
        ["web4", "web6", "echo4"]
            .iter()
            .map(|name| common::sum(common::service(status, name), "packets"))
            .sum()
    };
    let before = balancer.status().unwrap();
    let mut expected = BTreeMap::<&str, u64>::new();
    for (reason, bytes) in malformed() {
        sender.send(&vec![bytes; TIMES]).unwrap();
        *expected.entry(reason).or_default() += TIMES as u64;
    }
    let mut now = balancer.status().unwrap();
    for (reason, count) in &expected {
        let dropped = |status: &Value| outcomes(status).get(*reason).copied().unwrap_or_default().1;
        let (old, new) = (dropped(&before), dropped(&now));
        assert_eq!(new - old, *count, "{reason}: {:?}", outcomes(&now));
    }
    assert_eq!(packets(&now), packets(&before), "malformed packets were forwarded");

    // A frame for somebody else is not taken, whatever its destination address, and the kernel, which
    // might take the Ethernet address for its own, does not get it.
    let strange = frame(false, Protocol::Tcp).macs(STRANGER_MAC, CLIENT_MAC).build();
    sender.send(&vec![strange; TIMES]).unwrap();
    let passed =
        |status: &Value, reason: &str| outcomes(status).get(reason).copied().unwrap_or_default().0;
    let strange = |status: &Value| outcomes(status).get("other_host").copied().unwrap_or_default();
    let mut after = balancer.status().unwrap();
    common::eventually("they are counted", || {
        after = balancer.status().unwrap();
        strange(&after).1 - strange(&now).1 == TIMES as u64
    });
    assert_eq!(strange(&after).0, 0, "left to the kernel");
    assert_eq!(packets(&after), packets(&before), "a stranger's frame was forwarded");
    now = after;

    // A port without a service is the kernel's, which refuses; and what is no IP is none of weir's.
    let to = SocketAddr::new(VIP4.into(), 81);
    let refused = lab.clients()[0].enter(|| std::net::TcpStream::connect(to)).unwrap();
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let mut alien = frame(false, Protocol::Tcp).build();
    alien[12..14].copy_from_slice(&[0x88, 0xb5]);
    sender.send(&vec![alien; TIMES]).unwrap();
    let after = balancer.status().unwrap();
    assert!(passed(&after, "no_service") > passed(&now, "no_service"));
    assert!(passed(&after, "not_ip") >= passed(&now, "not_ip") + TIMES as u64);
    common::assert_unbroken(&mut held, "after malformed packets", &balancer);

    let text = balancer.command(&["status"]).unwrap();
    for reason in expected.keys() {
        assert!(text.contains(reason), "{reason}: {text}");
    }
}

/// Removes what a balancer that was killed left behind.
fn forget(lab: &Lab) {
    let output = common::weir(&["unload", "--name", &format!("wl{}", lab.id())]);
    assert!(output.status.success(), "{}", common::stderr(&output));
    std::fs::remove_dir_all(lab.directory().join("weir")).unwrap();
}
