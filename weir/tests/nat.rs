//! Backends that know nothing of the service: packets get their addresses and ports, and answers, which pass
//! the balancer, the service's.

mod common;

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use common::{WEB4, WEB6, WEIR};
use serde_json::Value;
use weir_lab::topology::{
    BACKENDS_INTERFACE, INTERFACE, NAT_ECHO_PORT, Topology, VIP4, client4, client6,
};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec};

const NAT: &str = "forward = \"nat\"";

fn spec(method: &str) -> BalancerSpec {
    BalancerSpec { method: method.into(), service_lines: NAT.into(), ..BalancerSpec::new(WEIR, 4) }
}

fn behind(backends: usize) -> LabSpec {
    LabSpec { backends, topology: Topology::Nat, big_bytes: 2 << 20, ..LabSpec::default() }
}

fn returned(status: &Value) -> u64 {
    status["returned"]["packets"].as_u64().expect("a service is translated")
}

/// Real servers and clients of both families, changes of the pool, a control plane that is killed: nothing
/// breaks.
fn unbroken(method: &str) {
    let _alone = common::alone();
    let status = common::unbroken(behind(6), spec(method), method);
    for name in ["web4", "web6", "echo4"] {
        let service = common::service(&status, name);
        assert_eq!(service["forward"], "nat");
        assert!(common::sum(service, "packets") > 100, "{service}");
        let port = if name == "echo4" { NAT_ECHO_PORT } else { 8080 };
        assert_eq!(service["backends"][0]["port"], port);
    }
    // All of both directions goes by the program: next to nothing is the kernel's.
    let outcomes = status["outcomes"].as_array().unwrap();
    let passed = |reason| {
        let found = outcomes.iter().find(|one| one["reason"] == reason);
        found.map_or(0, |one| one["passed"].as_u64().unwrap())
    };
    assert!(returned(&status) > 1_000, "{}", status["returned"]);
    assert!(passed("answer") < returned(&status) / 10, "{outcomes:?}");
}

#[test]
fn concury_reaches_backends_that_know_nothing() {
    unbroken("concury");
}

#[test]
fn tracked_reaches_backends_that_know_nothing() {
    unbroken("tracked");
}

#[test]
fn jet_reaches_backends_that_know_nothing() {
    unbroken("jet");
}

#[test]
fn clients_send_segments_as_small_as_the_service_says() {
    common::clients_are_limited(behind(2), BalancerSpec { pool: 2, ..spec("concury") });
}

fn change(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

fn said(balancer: &Balancer, lab: &Lab, arguments: &[&str]) -> String {
    let config = balancer.config().to_str().unwrap();
    let output = common::weir_in(lab, &[arguments, &["--config", config]].concat());
    format!("{}{}", common::stdout(&output), common::stderr(&output))
}

/// What is said of it agrees everywhere; connections live through a kill of the control plane; and what would
/// break them is refused.
#[test]
fn it_is_explained_and_changes_that_break_are_refused() {
    let _alone = common::alone();
    let lab = common::lab_of(behind(4));
    let balancer = common::start_spec(&lab, spec("concury"));
    let mut held = common::hold_both(&lab, 80);
    let explained =
        balancer.command(&["explain", "tcp", "10.77.1.1:4000", "10.77.0.100:80"]).unwrap();
    assert!(explained.contains("10.77.0.100 becomes 10.77.2."), "{explained}");
    assert!(explained.contains(" port 8080, and 10.77.0.100 again in answers"), "{explained}");
    for flow in [("10.77.1.1:4000", "10.77.0.100:80"), ("[fd77::1:1]:4000", "[fd77::100]:80")] {
        common::assert_explained_alike(&balancer, flow, &["backend", "translated"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.json").display().to_string();
    balancer.command(&["snapshot", "--output", &file]).unwrap();
    // And of the way back; also by a snapshot.
    for (from, to, becomes, service) in [
        ("10.77.2.1:8080", "10.77.1.1:4000", "10.77.0.100:80", "web4"),
        ("[fd77::2:1]:8080", "[fd77::1:1]:4000", "[fd77::100]:80", "web6"),
    ] {
        let flow = ["explain", "tcp", from, to];
        let explained = balancer.command(&flow).unwrap();
        for words in
            [format!("{from} becomes {becomes}"), format!("an answer of nat of service {service}:")]
        {
            assert!(explained.contains(&words), "{words}: {explained}");
        }
        let offline = balancer.command(&[&flow[..], &["--snapshot", &file]].concat()).unwrap();
        // It has no addresses of the host.
        let more = "; only one for this host itself is left to the kernel";
        assert_eq!(offline.trim_end(), format!("{}{more}", explained.trim_end()));
        let own = if to.starts_with('[') { "[fd77::2]:4000" } else { "10.77.0.2:4000" };
        let explained = balancer.command(&["explain", "tcp", from, own]).unwrap();
        assert!(explained.contains("this host itself, which has this address"), "{explained}");
    }
    let other = balancer.command(&["explain", "tcp", "10.77.2.1:8081", "10.77.1.1:4000"]).unwrap();
    assert!(other.contains("left to the kernel") && !other.contains("answer"), "{other}");
    let flow = ["explain", "tcp", "10.77.2.1:8081", "10.77.1.1:4000", "--snapshot", &file];
    let other = balancer.command(&flow).unwrap();
    assert!(other.contains("left to the kernel") && !other.contains("answer"), "{other}");
    let shown = balancer.command(&["status"]).unwrap();
    for words in
        [", by nat, ", "10.77.2.1:8080", "[fd77::2:1]:8080", "answers that were translated: "]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(said(&balancer, &lab, &["check"]).contains("good; 3 services"));
    let doctor = said(&balancer, &lab, &["doctor"]);
    for words in ["answers are forwarded", "its health check on port 8080 succeeds"] {
        assert!(doctor.contains(words), "{words}: {doctor}");
    }
    assert!(!doctor.contains("FAIL"), "{doctor}");

    // Connections were opened to other addresses than the backends would see.
    let status = balancer.status().unwrap();
    let text = fs::read_to_string(balancer.config()).unwrap();
    let without: Vec<&str> =
        text.lines().filter(|line| !["port = 8080", "port = 9953", NAT].contains(line)).collect();
    fs::write(
        balancer.config(),
        without.join("\n").replace("[service.check]", "[service.check]\nport = 8080"),
    )
    .unwrap();
    let refused = balancer.command(&["reload"]).unwrap_err().to_string();
    assert!(refused.contains("forward: from nat to l2"), "{refused}");
    assert!(refused.contains("--break-connections does it all the same"), "{refused}");
    assert_eq!(common::tables(&balancer.status().unwrap()), common::tables(&status));
    fs::write(balancer.config(), &text).unwrap();
    common::assert_unbroken(&mut held, "after a refusal", &balancer);

    // Whose an answer is must be clear, to commands too.
    let refused = balancer
        .command(&["backend", "add", "web4", "b9", "10.77.2.1", "--port", "8080"])
        .unwrap_err()
        .to_string();
    assert!(refused.contains("backend b0 has address 10.77.2.1"), "{refused}");
    balancer.command(&["backend", "add", "web4", "b9", "10.77.2.1", "--port", "8081"]).unwrap();
    balancer.command(&["backend", "remove", "web4", "b9"]).unwrap();

    balancer.kill();
    common::assert_unbroken(&mut held, "without a control plane", &balancer);
    thread::sleep(Duration::from_millis(900));
    common::assert_unbroken(&mut held, "after next hops have been asked for again", &balancer);
    balancer.launch().unwrap();
    common::assert_unbroken(&mut held, "with a control plane again", &balancer);
    assert_eq!(balancer.status().unwrap()["resumed"], true);
    common::reach_all(&lab, WEB4, 4);
    common::reach_all(&lab, WEB6, 4);

    // A service more, by a reload, whose answers would be another's.
    let more = format!(
        "\n[[service]]\nname = \"other\"\nvip = \"10.77.0.101\"\nport = 81\n{NAT}\n\
         [[service.backend]]\nname = \"b0\"\naddress = \"10.77.2.1\"\nport = 8080\n"
    );
    fs::write(balancer.config(), format!("{text}{more}")).unwrap();
    let refused = balancer.command(&["reload"]).unwrap_err().to_string();
    for words in [
        "service \"other\": backend \"b0\": port",
        "service \"web4\": backend \"b0\" has 10.77.2.1 and tcp port 8080, too",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    change(balancer.config(), "port = 81\n", "port = 81\nmethod = \"cheetah\"\n");
    let checked = said(&balancer, &lab, &["check"]);
    assert!(checked.contains("\"nat\" does not go with method = \"cheetah\""), "{checked}");
    fs::write(balancer.config(), &text).unwrap();
    balancer.command(&["reload"]).unwrap();
    common::assert_unbroken(&mut held, "after all", &balancer);

    // Answers come by the backends' side.
    let line = text.lines().find(|line| line.starts_with("interfaces = ")).unwrap();
    let one = format!("interfaces = [\"{INTERFACE}\"]");
    fs::write(balancer.config(), text.replace(line, &one)).unwrap();
    let words = format!("come by {BACKENDS_INTERFACE}, which is no longer among them");
    let planned = common::weir(&["plan", "--socket", balancer.socket().to_str().unwrap()]);
    assert_eq!(planned.status.code(), Some(4), "{}", common::stderr(&planned));
    assert!(common::stdout(&planned).contains(&words), "{}", common::stdout(&planned));
    let refused = balancer.command(&["reload"]).unwrap_err().to_string();
    assert!(refused.contains(&words), "{refused}");
    assert!(refused.contains("--break-connections does it all the same"), "{refused}");
    common::assert_unbroken(&mut held, "after another refusal", &balancer);
    let past = format!("come by {BACKENDS_INTERFACE}, which weir takes no frames from");
    let warns = || {
        let warnings = balancer.status().unwrap()["warnings"].to_string();
        warnings.contains(&past)
    };
    assert!(!warns());
    // Nor does a start follow it: the configuration that was in force goes on.
    balancer.kill();
    balancer.launch().unwrap();
    let warnings = balancer.status().unwrap()["warnings"].to_string();
    assert!(warnings.contains("would be refused") && warnings.contains(&words), "{warnings}");
    common::assert_unbroken(&mut held, "after a start", &balancer);
    assert!(!warns());
    balancer.command(&["reload", "--break-connections"]).unwrap();
    common::eventually("it is warned of", warns);
    fs::write(balancer.config(), &text).unwrap();
    balancer.command(&["reload"]).unwrap();
    assert!(!warns());
}

/// Downloads the big file from this address; says how many bytes came.
fn download(lab: &Lab, from: IpAddr, url: &str) -> String {
    let mut curl = lab.clients()[0].command("curl").unwrap();
    curl.args(["-sgS", "-o", "/dev/null", "-w", "%{size_download}", "--max-time", "120"]);
    curl.args(["--interface", &from.to_string(), url]);
    let output = curl.output().expect("running curl");
    format!("{}{}", common::stdout(&output), common::stderr(&output))
}

/// How often a backend's kernel was told of a smaller MTU.
fn told(lab: &Lab, backend: usize, counter: &str) -> u64 {
    let mut nstat = lab.backend(backend).netns().command("nstat").unwrap();
    let output = nstat.args(["-asz", counter]).output().expect("running nstat");
    let text = common::stdout(&output);
    let line = text.lines().find(|line| line.starts_with(counter));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// Path MTU discovery of the backends, with a smaller link behind the balancer: the kernel there tells them,
/// as it would without weir.
#[test]
fn backends_find_the_mtu_of_a_way_that_the_balancer_knows() {
    const BIG: usize = 1 << 20;
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { big_bytes: BIG as u64, ..behind(4) });
    let balancer = common::start_spec(&lab, spec("concury"));
    let clients: [IpAddr; 2] = [client4(0, 0).into(), client6(0, 0).into()];
    for to in clients {
        let line = format!("ip route add {to} dev {INTERFACE} mtu lock 1300");
        common::sh(lab.balancer(), &line);
    }
    let counters = [(WEB4, "IcmpInDestUnreachs"), (WEB6, "Icmp6InPktTooBigs")];
    for ((service, counter), from) in counters.into_iter().zip(clients) {
        let url = format!("http://{service}/big");
        let mut downloads = 0;
        while (0..4).any(|backend| told(&lab, backend, counter) == 0) {
            assert_eq!(download(&lab, from, &url), BIG.to_string(), "{url}");
            downloads += 1;
            assert!(downloads < 200, "some backend was never told: {counter}");
        }
        println!("{downloads} downloads from {service}");
    }
    let outcomes = balancer.status().unwrap()["outcomes"].as_array().unwrap().clone();
    assert!(outcomes.iter().any(|one| one["reason"] == "too_big" && one["dropped"] == 0));
}

/// The same where the small link is behind another router: its error is for the service's address, quotes
/// what the backend never sent, and must reach the backend as if it had.
#[test]
fn errors_of_routers_outside_reach_the_backend() {
    const BIG: usize = 1 << 20;
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { big_bytes: BIG as u64, ..behind(4) });
    let _balancer = common::start_spec(&lab, spec("concury"));
    // The second client is the router; behind it is a network of the first one's own.
    let (client, router) = (&lab.clients()[0], &lab.clients()[1]);
    for address in ["10.88.0.1/32", "fd88::1/128 nodad"] {
        common::sh(client, &format!("ip addr add {address} dev lo"));
    }
    for name in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        common::sysctl(router, name, "1");
    }
    let (near4, near6) = (client4(1, 0), client6(1, 0));
    let (far4, far6) = (client4(0, 0), client6(0, 0));
    for (netns, line) in [
        (lab.balancer(), format!("ip route add 10.88.0.1 via {near4}")),
        (lab.balancer(), format!("ip route add fd88::1 via {near6}")),
        (router, format!("ip route add 10.88.0.1 via {far4} mtu lock 1300")),
        (router, format!("ip route add fd88::1 via {far6} mtu lock 1300")),
    ] {
        common::sh(netns, &line);
    }
    let clients: [IpAddr; 2] = ["10.88.0.1".parse().unwrap(), "fd88::1".parse().unwrap()];
    let counters = [(WEB4, "IcmpInDestUnreachs"), (WEB6, "Icmp6InPktTooBigs")];
    for ((service, counter), from) in counters.into_iter().zip(clients) {
        let url = format!("http://{service}/big");
        let mut downloads = 0;
        while (0..4).any(|backend| told(&lab, backend, counter) == 0) {
            assert_eq!(download(&lab, from, &url), BIG.to_string(), "{url}");
            downloads += 1;
            assert!(downloads < 200, "some backend was never told: {counter}");
        }
        println!("{downloads} downloads from {service}");
    }
}

/// A datagram to a backend where nobody listens: its "port unreachable" quotes what the client never sent,
/// and reaches the client's socket all the same.
#[test]
fn errors_of_backends_reach_the_client() {
    let _alone = common::alone();
    let lab = common::lab_of(behind(2));
    let more_services = format!(
        "[[service]]\nname = \"silent\"\nvip = \"{VIP4}\"\nprotocol = \"udp\"\nport = 7000\n{NAT}\n\
         [service.check]\nenabled = false\n\
         [[service.backend]]\nname = \"b0\"\naddress = \"10.77.2.1\"\nport = 7001\n\
         [[service]]\nname = \"silent6\"\nvip = \"fd77::100\"\nprotocol = \"udp\"\nport = 7000\n{NAT}\n\
         [service.check]\nenabled = false\n\
         [[service.backend]]\nname = \"b0\"\naddress = \"fd77::2:1\"\nport = 7001\n"
    );
    let _balancer =
        common::start_spec(&lab, BalancerSpec { more_services, pool: 2, ..spec("concury") });
    for (from, to) in [("0.0.0.0:0", "10.77.0.100:7000"), ("[::]:0", "[fd77::100]:7000")] {
        let refused = lab.clients()[0].enter(|| {
            let socket = UdpSocket::bind(from).unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let started = Instant::now();
            while started.elapsed() < common::PATIENCE {
                let sent = socket.send(b"x");
                let got = socket.recv(&mut [0; 16]);
                let errors = [sent.err(), got.err()];
                let refused =
                    |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
                if errors.iter().flatten().any(refused) {
                    return true;
                }
            }
            false
        });
        assert!(refused.unwrap(), "{to}: no error came");
    }
}
