//! Datagrams that come in pieces reach one backend whole, through changes of the pool; so do answers in pieces.

mod common;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use weir_lab::topology::{ECHO_PORT, Topology, VIP4, VIP6, client4, client6};
use weir_lab::{Backend, Balancer, BalancerSpec, Lab, LabSpec};

const BACKENDS: usize = 4;
/// Nine fragments, by way of a link that takes 1,500 bytes.
const BYTES: usize = 12_000;

/// A client's socket, and whom its datagrams reached.
struct Asking {
    socket: UdpSocket,
    answered: BTreeSet<String>,
}

impl Asking {
    fn open(lab: &Lab, from: IpAddr, to: SocketAddr) -> Self {
        let open = || {
            let socket = UdpSocket::bind((from, 0)).unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            socket
        };
        Self { socket: lab.clients()[0].enter(open).unwrap(), answered: BTreeSet::new() }
    }

    /// Sends a datagram until an answer comes: nobody repeats what UDP loses.
    fn ask(&mut self, filler: u8) {
        let sent = vec![filler; BYTES];
        let mut answer = vec![0; 1 << 16];
        for _ in 0..10 {
            self.socket.send(&sent).unwrap();
            let Ok(length) = self.socket.recv(&mut answer) else { continue };
            let (name, rest) = answer[..length].split_at(length - BYTES);
            assert!(rest == sent, "what came is not what was sent");
            self.answered.insert(String::from_utf8_lossy(name).into_owned());
            return;
        }
        panic!("no answer to ten datagrams");
    }
}

/// Fragments that were dropped or left to the kernel.
fn lost(balancer: &Balancer) -> Vec<(String, u64)> {
    let status = balancer.status().unwrap();
    let outcomes = status["outcomes"].as_array().unwrap().clone();
    let fragments = outcomes.iter().filter(|one| one["reason"].as_str().unwrap().contains("frag"));
    let count = |one: &serde_json::Value| {
        one["dropped"].as_u64().unwrap() + one["passed"].as_u64().unwrap()
    };
    fragments.map(|one| (one["reason"].to_string(), count(one))).collect()
}

fn datagrams_in_fragments(method: &str, topology: Topology) {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: BACKENDS, topology, ..LabSpec::default() });
    let port = if topology.is_nat() {
        format!("port = {}\n", topology.echo_port())
    } else {
        String::new()
    };
    let backend = |(n, backend): (usize, &Backend)| {
        let address = backend.address6();
        format!("[[service.backend]]\nname = \"b{n}\"\naddress = \"{address}\"\n{port}")
    };
    let backends: String = lab.backends().iter().enumerate().map(backend).collect();
    let forward = match topology {
        Topology::Nat => "forward = \"nat\"",
        Topology::FullNat => "forward = \"fullnat\"",
        _ => "",
    };
    let echo6 = format!(
        "\n[[service]]\nname = \"echo6\"\nvip = \"{VIP6}\"\nport = {ECHO_PORT}\nprotocol = \"udp\"\n\
         method = \"{method}\"\n{forward}\n[service.check]\nport = {}\n{backends}",
        topology.web_port()
    );
    let balancer = common::start_spec(
        &lab,
        BalancerSpec {
            method: method.into(),
            service_lines: forward.into(),
            more_services: echo6,
            ..BalancerSpec::new(common::WEIR, BACKENDS)
        },
    );
    let ends = [
        (IpAddr::from(client4(0, 0)), SocketAddr::new(VIP4.into(), ECHO_PORT)),
        (client6(0, 0).into(), SocketAddr::new(VIP6.into(), ECHO_PORT)),
    ];
    let mut asking: Vec<Asking> =
        (0..40).flat_map(|_| ends).map(|(from, to)| Asking::open(&lab, from, to)).collect();
    asking.iter_mut().for_each(|one| one.ask(1));
    // Addresses, not flows, name a fragment's packet, so flows of one host are at many backends at once.
    let whom: BTreeSet<_> = asking.iter().flat_map(|one| one.answered.clone()).collect();
    assert!(whom.len() > 1, "{method}: all datagrams went to {whom:?}");
    for (step, filler) in ["drain echo4 b0", "drain echo6 b1", "weight echo4 b2 3"].iter().zip(2..)
    {
        let words: Vec<&str> = [&["backend"][..], &step.split(' ').collect::<Vec<_>>()].concat();
        balancer.command(&words).unwrap();
        asking.iter_mut().for_each(|one| one.ask(filler));
    }
    for one in &asking {
        assert_eq!(one.answered.len(), 1, "{method}: a flow was at {:?}", one.answered);
    }
    println!("{method}, {topology:?}: fragments not forwarded: {:?}", lost(&balancer));
}

#[test]
fn concury_keeps_fragments_together() {
    datagrams_in_fragments("concury", Topology::L2);
}

/// What comes back is in fragments, too, and only the first one has the port that is another one for the client.
#[test]
fn answers_in_fragments_are_translated() {
    datagrams_in_fragments("concury", Topology::Nat);
}

#[test]
fn answers_in_fragments_come_back_to_where_they_were_sent_from() {
    datagrams_in_fragments("tracked", Topology::FullNat);
}

#[test]
fn tracked_keeps_fragments_together() {
    datagrams_in_fragments("tracked", Topology::L2);
}

/// Sends 100 later fragments of UDP to the services' address, whose first ones never come.
fn send_later_ones(lab: &Lab) {
    let script = format!(
        "import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
for number in range(100):
    ip = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 52, number, 9, 64, 17, 0,
        socket.inet_aton('{}'), socket.inet_aton('{VIP4}'))
    s.sendto(ip + bytes(32), ('{VIP4}', 0))",
        client4(0, 0)
    );
    let mut python = lab.clients()[0].command("python3").unwrap();
    assert!(python.args(["-c", &script]).status().unwrap().success());
}

/// A later fragment whose first one never came is nobody's: dropped and counted.
#[test]
fn fragments_without_their_first_one_are_counted() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    send_later_ones(&lab);
    common::eventually("100 fragments are counted", || {
        lost(&balancer)
            .iter()
            .any(|(reason, count)| reason.contains("later_fragment") && *count >= 100)
    });
}

/// What each backend of the service of UDP has got.
fn packets(balancer: &Balancer) -> Vec<u64> {
    let status = balancer.status().unwrap();
    let services = status["services"].as_array().unwrap();
    let echo = services.iter().find(|one| one["name"] == "echo4").unwrap();
    let backends = echo["backends"].as_array().unwrap().iter();
    backends.map(|backend| backend["packets"].as_u64().unwrap()).collect()
}

/// Where a service of one port leads them by their source, all go where everything of that client goes, as if each
/// had come to another balancer than its first one; and datagrams in pieces and whole ones of a client are at one
/// backend, also when the control plane was killed.
#[test]
fn later_fragments_are_led_by_their_source() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: BACKENDS, ..LabSpec::default() });
    let spec = BalancerSpec::new(common::WEIR, BACKENDS);
    let balancer = common::start_spec(&lab, spec);
    // Of the service of UDP alone: it has its address with others of TCP.
    let text = std::fs::read_to_string(balancer.config()).unwrap();
    let set = |line: &str| {
        let own = format!("name = \"echo4\"\n{line}");
        std::fs::write(balancer.config(), text.replacen("name = \"echo4\"\n", &own, 1)).unwrap();
    };
    set("fragments = \"source\"\n");
    let refused = common::try_command(&balancer, "reload").unwrap_err();
    assert!(refused.contains("affinity"), "{refused}");
    set("affinity = \"client\"\nfragments = \"source\"\n");
    common::try_command(&balancer, "reload --break-connections").unwrap();
    let to = SocketAddr::new(VIP4.into(), ECHO_PORT);
    let mut asking = Asking::open(&lab, client4(0, 0).into(), to);
    let since = |before: &[u64]| -> Vec<u64> {
        packets(&balancer).iter().zip(before).map(|(now, before)| now - before).collect()
    };
    let only = |more: Vec<u64>| {
        let got: Vec<usize> = (0..more.len()).filter(|at| more[*at] > 0).collect();
        assert_eq!(got.len(), 1, "{more:?}");
        (got[0], more[got[0]])
    };
    let before = packets(&balancer);
    asking.ask(1);
    let (whom, _) = only(since(&before));
    for killed in [false, true] {
        if killed {
            balancer.kill();
            balancer.launch().unwrap();
        }
        let before = packets(&balancer);
        send_later_ones(&lab);
        let more = || since(&before);
        common::eventually("100 fragments have been led", || more().iter().sum::<u64>() >= 100);
        assert_eq!(only(more()), (whom, 100), "killed: {killed}");
        asking.ask(2);
        assert_eq!(asking.answered.len(), 1, "the client was at {:?}", asking.answered);
    }
    set("affinity = \"client\"\n");
    common::try_command(&balancer, "reload").unwrap();
    let before = packets(&balancer);
    send_later_ones(&lab);
    common::eventually("they follow their first ones again", || {
        lost(&balancer)
            .iter()
            .any(|(reason, count)| reason.contains("later_fragment") && *count >= 100)
    });
    assert_eq!(packets(&balancer), before);
}
