//! Backends that nobody may configure, whose route is elsewhere: packets get a source of the balancer's, too, and
//! answers come to it.

mod common;

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use common::{Held, WEB4, WEIR, dropped};
use serde_json::Value;
use weir_lab::topology::{
    BALANCER4, ECHO_PORT, INTERFACE, NAT_ECHO_PORT, Topology, VIP4, backend4, client4,
};
use weir_lab::{Balancer, BalancerSpec, FrameSender, Lab, LabSpec};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol};

const FULL_NAT: &str = "forward = \"fullnat\"";
const BALANCER_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 0xff, 1];
const CLIENT_MAC: [u8; 6] = [0x02, 0x77, 0, 0, 1, 1];
/// A line of each backend.
const WEIGHT: &str = "weight = 1";

fn spec(method: &str) -> BalancerSpec {
    BalancerSpec {
        method: method.into(),
        service_lines: FULL_NAT.into(),
        ..BalancerSpec::new(WEIR, 4)
    }
}

fn elsewhere(backends: usize) -> LabSpec {
    LabSpec { backends, topology: Topology::FullNat, big_bytes: 2 << 20, ..LabSpec::default() }
}

/// Real servers and clients of both families, changes of the pool, a control plane that is killed: nothing
/// breaks.
fn unbroken(method: &str) {
    let _alone = common::alone();
    let status = common::unbroken(elsewhere(6), spec(method), method);
    for name in ["web4", "web6", "echo4"] {
        let service = common::service(&status, name);
        assert_eq!(service["forward"], "fullnat");
        assert!(common::sum(service, "packets") > 100, "{service}");
    }
    assert!(status["returned"]["packets"].as_u64().unwrap() > 1_000, "{}", status["returned"]);
    assert_eq!(dropped(&status, "no_port"), 0, "{}", status["outcomes"]);
}

#[test]
fn concury_reaches_backends_whose_route_is_elsewhere() {
    unbroken("concury");
}

#[test]
fn tracked_reaches_backends_whose_route_is_elsewhere() {
    unbroken("tracked");
}

#[test]
fn jet_reaches_backends_whose_route_is_elsewhere() {
    unbroken("jet");
}

#[test]
fn clients_send_segments_as_small_as_the_service_says() {
    common::clients_are_limited(elsewhere(2), BalancerSpec { pool: 2, ..spec("concury") });
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
    let lab = common::lab_of(elsewhere(4));
    let lines = "nat_log = true".to_owned();
    let balancer =
        common::start_spec(&lab, BalancerSpec { balancer_lines: lines, ..spec("concury") });
    let mut held = common::hold_both(&lab, 80);

    let explained =
        balancer.command(&["explain", "tcp", "10.77.1.1:4000", "10.77.0.100:80"]).unwrap();
    assert!(explained.contains("10.77.0.100 becomes 10.77.2."), "{explained}");
    assert!(
        explained.contains("10.77.1.1:4000 has none, and would become 10.77.0.2:"),
        "{explained}"
    );
    let from = lab.clients()[0].enter(|| {
        let open = std::net::TcpStream::connect(WEB4).unwrap();
        (open.local_addr().unwrap().to_string(), open)
    });
    let (from, _open) = from.unwrap();
    let explained = balancer.command(&["explain", "tcp", &from, "10.77.0.100:80"]).unwrap();
    let words = format!("{from} becomes 10.77.0.2:");
    assert!(explained.contains(&words) && explained.contains("it is open"), "{explained}");
    let source = explained.split_once(" becomes 10.77.0.2:").unwrap().1;
    let source = format!("10.77.0.2:{}", source.split_once(';').unwrap().0);
    let back = balancer.command(&["explain", "tcp", "10.77.2.1:8080", &source]).unwrap();
    let whose = format!("whose port the connection of {from} to 10.77.0.100:80 has");
    let becomes = format!("10.77.2.1:8080 becomes 10.77.0.100:80, and {source} becomes {from}");
    let serves = explained.split_once("(10.77.2.").unwrap().1.starts_with("1)");
    if serves {
        for words in ["web4 (concury)", &whose, &becomes] {
            assert!(back.contains(words), "{words}: {back}");
        }
    } else {
        assert!(back.contains("no connection has this port towards 10.77.2.1:8080"), "{back}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.json").display().to_string();
    balancer.command(&["snapshot", "--output", &file]).unwrap();
    let flow = ["explain", "tcp", "10.77.2.1:8080", &source, "--snapshot", &file];
    let offline = balancer.command(&flow).unwrap();
    assert!(offline.contains("source of full NAT: translated back for the client"), "{offline}");

    let open = |status: &Value| -> u64 {
        let sources = status["nat_sources"].as_array().expect("there are two");
        sources.iter().map(|one| one["open"].as_u64().unwrap()).sum()
    };
    common::eventually("the connections are counted", || open(&balancer.status().unwrap()) >= 81);
    let shown = balancer.command(&["status"]).unwrap();
    for words in [", by fullnat, ", "from 10.77.0.2 ports 1024 to 32767: ", "10.77.2.1:8080"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    common::eventually("connections are in the log", || {
        common::log(&balancer).matches("connection under full NAT began").count() >= 81
    });
    // Both sides end one; the others go on.
    let mut over = held.pop().expect("there are many");
    assert_eq!(over.ended_by_server().expect("it is open"), over.backend);
    let client = format!("client={} ", over.source);
    drop(over);
    let ended = |log: &str| -> Vec<String> {
        let lines = log.lines().filter(|line| line.contains("connection under full NAT ended"));
        lines.map(str::to_owned).collect()
    };
    common::eventually("its end is in the log", || {
        ended(&common::log(&balancer)).iter().any(|line| line.contains(&client))
    });
    let source = &held[0].source;
    let log = common::log(&balancer);
    assert!(!ended(&log).iter().any(|line| line.contains(&format!("client={source} "))), "{log}");
    assert!(said(&balancer, &lab, &["check"]).contains("good; 3 services"));
    let doctor = said(&balancer, &lab, &["doctor"]);
    assert!(!doctor.contains("FAIL"), "{doctor}");
    assert!(doctor.contains("known to this balancer alone"), "{doctor}");

    // Connections have sources that backends know.
    let text = fs::read_to_string(balancer.config()).unwrap();
    for (from, to, why) in [
        (
            "nat_log = true",
            "nat_ports = \"2000-3000\"",
            "with other balancer.nat_sources or nat_ports",
        ),
        (FULL_NAT, "forward = \"nat\"", "forward: from fullnat to nat"),
    ] {
        fs::write(balancer.config(), text.replace(from, to)).unwrap();
        let refused = balancer.command(&["reload"]).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
        assert!(refused.contains("--break-connections does it all the same"), "{refused}");
        // With other sources some may keep what they have.
        assert_eq!(refused.contains("; up to "), why.starts_with("with other"), "{refused}");
    }
    fs::write(balancer.config(), &text).unwrap();
    common::assert_unbroken(&mut held, "after refusals", &balancer);

    for round in 0..3 {
        balancer.kill();
        common::assert_unbroken(&mut held, "without a control plane", &balancer);
        common::reach_all(&lab, WEB4, 4);
        balancer.launch().unwrap();
        // A walk through the table takes seconds, and nobody says that it is empty before.
        let shown = balancer.command(&["status"]).unwrap();
        assert!(shown.contains("ports 1024 to 32767: not counted yet"), "{shown}");
        common::assert_unbroken(&mut held, "with a control plane again", &balancer);
        assert_eq!(balancer.status().unwrap()["resumed"], true, "{round}");
    }
    // Each began once, however often the process did.
    let client = format!("client={} ", held[0].source);
    let told = |what: &str| {
        let what = format!("connection under full NAT {what}");
        let log = common::log(&balancer);
        log.lines().filter(|line| line.contains(&what) && line.contains(&client)).count()
    };
    common::eventually("it is told as known", || told("was open when the log began") > 0);
    common::eventually("connections are counted", || open(&balancer.status().unwrap()) >= 79);
    assert!(told("began") <= 1 && told("ended") == 0, "{client}");
    fs::write(balancer.config(), text.replace("nat_log = true", "nat_log = false")).unwrap();
    balancer.command(&["reload"]).unwrap();
    common::assert_unbroken(&mut held, "after all", &balancer);
}

/// Of a service with several addresses it is said what the one becomes that a flow is for; and by a snapshot, which has
/// no connections, which sources there are.
#[test]
fn each_address_of_a_service_is_explained() {
    let _alone = common::alone();
    let lab = common::lab_of(elsewhere(1));
    let more_services = format!(
        "\n[[service]]\nname = \"wide\"\nvip = [\"10.77.0.101\", \"10.78.0.0/24\"]\nport = 80\n\
         method = \"concury\"\n{FULL_NAT}\n[[service.backend]]\nname = \"b0\"\naddress = \"10.77.2.1\"\nport = 8080\n"
    );
    let balancer =
        common::start_spec(&lab, BalancerSpec { pool: 1, more_services, ..spec("concury") });
    common::eventually("it serves", || {
        let status = balancer.status().unwrap();
        common::backend(common::service(&status, "wide"), "b0")["check"]["up"] == true
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.json").display().to_string();
    balancer.command(&["snapshot", "--tables", "--output", &file]).unwrap();
    for vip in ["10.77.0.101", "10.78.0.7"] {
        let to = format!("{vip}:80");
        let becomes = format!("{vip} becomes 10.77.2.1 port 8080, and {vip} again in answers");
        let flow = ["explain", "tcp", "10.77.1.1:4000", &to];
        let explained = balancer.command(&flow).unwrap();
        assert!(explained.contains(&becomes), "{explained}");
        assert!(explained.contains("4000 has none, and would become 10.77.0.2:"), "{explained}");
        let explained = balancer.command(&[&flow[..], &["--snapshot", &file]].concat()).unwrap();
        assert!(explained.contains(&becomes), "{explained}");
        let source = "10.77.1.1:4000 becomes one of 10.77.0.2 ports 1024 to 32767: which one";
        assert!(explained.contains(source), "{explained}");
    }
}

/// Of one client's port there is a connection to each address and port of a service, and each has its own source.
#[test]
fn connections_to_all_addresses_and_ports_of_a_service_are_told_apart() {
    let _alone = common::alone();
    let lab = common::lab_of(elsewhere(4));
    let client = &lab.clients()[0];
    for prefix in ["10.77.0.101", "10.78.0.0/24"] {
        common::sh(client, &format!("ip route add {prefix} via {BALANCER4}"));
    }
    let backend = |n| {
        let address = backend4(n);
        format!("[[service.backend]]\nname = \"b{n}\"\naddress = \"{address}\"\nport = 8080\n")
    };
    let more_services = format!(
        "\n[[service]]\nname = \"wide\"\nvip = [\"10.77.0.101\", \"10.78.0.0/24\"]\nport = \"8000-8063\"\n\
         method = \"concury\"\n{FULL_NAT}\n[service.check]\nport = 8080\n{}",
        (0..4).map(backend).collect::<String>()
    );
    let balancer = common::start_spec(&lab, BalancerSpec { more_services, ..spec("concury") });
    let open = || {
        let mut held = Vec::new();
        for vip in ["10.77.0.101", "10.78.0.1", "10.78.0.254"] {
            for (port, source) in [8000, 8001, 8063]
                .into_iter()
                .flat_map(|port| (20_000..20_006).map(move |source| (port, source)))
            {
                let to = SocketAddr::new(vip.parse::<IpAddr>().unwrap(), port);
                let from = SocketAddr::new(client4(0, 0).into(), source);
                let one = Held::open(from, to);
                held.push(one.unwrap_or_else(|error| panic!("{from} to {to}: {error}")));
            }
        }
        held
    };
    let mut held = client.enter(open).unwrap();
    common::assert_unbroken(&mut held, "at first", &balancer);
    common::eventually("each has a source of its own", || {
        let status = balancer.status().unwrap();
        let sources = status["nat_sources"].as_array().expect("there are two");
        sources.iter().map(|one| one["open"].as_u64().unwrap()).sum::<u64>() >= held.len() as u64
    });
    common::command(&balancer, "backend drain wide b0");
    common::assert_unbroken(&mut held, "while a backend drains", &balancer);
    balancer.kill();
    common::assert_unbroken(&mut held, "without a control plane", &balancer);
    balancer.launch().unwrap();
    common::assert_unbroken(&mut held, "with a control plane again", &balancer);
}

/// Gives a balancer another source, to which backends have no route, and lets its backends name the one that it had.
/// Returns its file.
fn with_a_source_nobody_reaches(balancer: &Balancer) -> String {
    let lines = fs::read_to_string(balancer.config()).unwrap();
    // Nobody's network: what is sent there goes nowhere.
    let lines = lines.replace("\"10.77.0.2\"", "\"10.77.0.2\", \"10.99.0.1\"");
    let mut text = String::new();
    for line in lines.lines() {
        text = format!("{text}{line}\n");
        if line.starts_with("address = \"10.77.2.") {
            text += "nat_sources = [\"10.77.0.2\"]\n";
        }
    }
    fs::write(balancer.config(), &text).unwrap();
    balancer.command(&["reload", "--break-connections"]).unwrap();
    text
}

/// A source that backends have no route to is not taken by connections to those that name the other one; and what
/// a backend names changes under its connections by force only.
#[test]
fn connections_come_from_the_sources_that_a_backend_names() {
    let _alone = common::alone();
    let lab = common::lab_of(elsewhere(4));
    let balancer = common::start_spec(&lab, spec("concury"));
    let text = with_a_source_nobody_reaches(&balancer);
    let mut held = common::hold_both(&lab, 80);
    common::assert_unbroken(&mut held, "all have a source that is reached", &balancer);
    let open = |address: &str| {
        let status = balancer.status().unwrap();
        let sources = status["nat_sources"].as_array().expect("there are three");
        let source = sources.iter().find(|one| one["address"] == address).expect("it is shown");
        let count = |field: &str| source[field].as_u64().expect("a number");
        count("open") + count("opening")
    };
    common::eventually("the connections are counted", || open("10.77.0.2") >= 40);
    assert_eq!(open("10.99.0.1"), 0);

    let other = text.replacen("nat_sources = [\"10.77.0.2\"]\n", "", 1);
    fs::write(balancer.config(), other).unwrap();
    let plan = common::weir(&["plan", "--socket", balancer.socket().to_str().unwrap()]);
    let why = "nat_sources: with others, backend b0 would find packets of its connections with another source";
    assert_eq!(plan.status.code(), Some(4), "{}", common::stderr(&plan));
    assert!(common::stdout(&plan).contains(why), "{}", common::stdout(&plan));
    let many = "known connections, of which up to ";
    assert!(common::stdout(&plan).contains(many), "{}", common::stdout(&plan));
    let refused = balancer.command(&["reload"]).unwrap_err().to_string();
    assert!(refused.contains(why), "{refused}");
    fs::write(balancer.config(), &text).unwrap();
    balancer.command(&["reload"]).unwrap();
    common::assert_unbroken(&mut held, "after a refusal", &balancer);
    balancer.kill();
    balancer.launch().unwrap();
    assert_eq!(balancer.status().unwrap()["resumed"], true);
    common::assert_unbroken(&mut held, "with a control plane again", &balancer);
}

/// One that a command adds names its sources, too, and keeps them over a restart.
#[test]
fn a_backend_that_is_added_comes_from_the_sources_that_it_names() {
    let _alone = common::alone();
    let lab = common::lab_of(elsewhere(4));
    let balancer = common::start_spec(&lab, BalancerSpec { pool: 3, ..spec("concury") });
    with_a_source_nobody_reaches(&balancer);
    let add = |sources: &[&str]| {
        let mut words = vec!["backend", "add", "web4", "b3", "10.77.2.4", "--port", "8080"];
        for source in sources {
            words.extend(["--nat-source", *source]);
        }
        balancer.command(&words).map_err(|error| error.to_string())
    };
    for (sources, why) in [
        (&["10.77.0.77"][..], "10.77.0.77 is not one of balancer.nat_sources"),
        (&["fd77::2"], "fd77::2 is not of the family of the backend's address"),
        (&["10.77.0.2", "10.77.0.2"], "do not stand one after the other"),
    ] {
        let refused = add(sources).expect_err(why);
        assert!(refused.contains(why), "{refused}");
    }
    add(&["10.77.0.2"]).unwrap();
    common::eventually("it serves", || {
        let status = balancer.status().unwrap();
        common::backend(common::service(&status, "web4"), "b3")["check"]["up"] == true
    });
    let mut held = common::hold(&lab, WEB4, 80);
    assert!(common::spread(&held).contains_key("b3"), "{:?}", common::spread(&held));
    balancer.kill();
    balancer.launch().unwrap();
    let status = balancer.status().unwrap();
    assert_eq!(status["resumed"], true);
    let own = &common::backend(common::service(&status, "web4"), "b3")["nat_sources"];
    assert_eq!(*own, serde_json::json!(["10.77.0.2"]));
    let said = common::weir(&["status", "--socket", balancer.socket().to_str().unwrap()]);
    let said = common::stdout(&said);
    let line = said.lines().find(|line| line.contains("b3") && line.contains("10.77.2.4"));
    assert!(said.contains("comes from"), "{said}");
    assert!(line.is_some_and(|line| line.contains(" 10.77.0.2")), "{said}");
    common::assert_unbroken(&mut held, "with a control plane again", &balancer);
    held.extend(common::hold(&lab, WEB4, 80));
    common::assert_unbroken(&mut held, "all have a source that is reached", &balancer);
    let status = balancer.status().unwrap();
    let sources = status["nat_sources"].as_array().expect("there are three");
    let nobodys = sources.iter().find(|one| one["address"] == "10.99.0.1").expect("it is shown");
    assert!(nobodys["open"] == 0 && nobodys["opening"] == 0, "{nobodys}");
}

/// What does not go together is said, with its line.
#[test]
fn what_cannot_be_is_refused() {
    let _alone = common::alone();
    let lab = common::lab_of(elsewhere(1));
    let balancer = common::start_spec(&lab, BalancerSpec { pool: 1, ..spec("concury") });
    let text = fs::read_to_string(balancer.config()).unwrap();
    let sources = text.lines().find(|line| line.starts_with("nat_sources")).unwrap().to_owned();
    for (from, to, words) in [
        (
            &*sources,
            "",
            "\"fullnat\" needs an address of this host that packets come from, of IPv4",
        ),
        (&*sources, "nat_sources = [\"10.77.0.2\"]", "of IPv6; set balancer.nat_sources"),
        (&*sources, "nat_sources = [\"10.77.0.2\", \"10.77.0.2\"]", "is listed twice"),
        (&*sources, "nat_sources = [\"224.0.0.1\"]", "is not the address of one host"),
        (&*sources, "nat_sources = [\"127.0.0.1\"]", "127.0.0.1 is a loopback address"),
        (&*sources, "nat_sources = [\"fe80::1\"]", "fe80::1 is a link-local address"),
        (
            &*sources,
            "nat_sources = [\"10.77.2.1\", \"fd77::2\"]",
            "address: 10.77.2.1 is one of balancer.nat_sources",
        ),
        (
            &*sources,
            &format!("{sources}\nnat_ports = \"9-3\""),
            "is not a range of 16 ports or more",
        ),
        ("port = 80\n", "port = 80\nmethod = \"cheetah\"\n", "\"fullnat\" does not go with method"),
        (WEIGHT, "weight = 1\nnat_sources = []", "backend \"b0\": nat_sources: the list is empty"),
        (WEIGHT, "weight = 1\nnat_sources = [\"10.77.0.3\"]", "is not one of balancer.nat_sources"),
        (
            WEIGHT,
            "weight = 1\nnat_sources = [\"10.77.0.2\", \"10.77.0.2\"]",
            "backend \"b0\": nat_sources: 10.77.0.2 is listed twice",
        ),
        (WEIGHT, "weight = 1\nnat_sources = [\"fd77::2\"]", "is not of the family of the backend"),
    ] {
        let wrong = text.replace("method = \"concury\"\n", "").replacen(from, to, 1);
        fs::write(balancer.config(), wrong).unwrap();
        let checked = said(&balancer, &lab, &["check"]);
        assert!(checked.contains(words), "{words}: {checked}");
    }
    let three = "nat_sources = [\"10.77.0.2\", \"10.77.0.3\", \"10.77.0.4\", \"fd77::2\"]";
    for (own, words) in [
        (
            "\"10.77.0.2\", \"10.77.0.4\"",
            "do not stand one after the other in balancer.nat_sources",
        ),
        ("\"10.77.0.4\", \"10.77.0.3\"", "good; 3 services"),
    ] {
        let some = format!("{WEIGHT}\nnat_sources = [{own}]");
        let some = text.replace(&sources, three).replacen(WEIGHT, &some, 1);
        fs::write(balancer.config(), &some).unwrap();
        let checked = said(&balancer, &lab, &["check"]);
        assert!(checked.contains(words), "{words}: {checked}");
        let plain = some.replacen(FULL_NAT, "forward = \"nat\"", 1);
        fs::write(balancer.config(), plain).unwrap();
        let checked = said(&balancer, &lab, &["check"]);
        assert!(checked.contains("with forward = \"fullnat\" only"), "{checked}");
    }
    fs::write(balancer.config(), text).unwrap();
}

/// What a backend would answer to itself without end, and what no single host has sent, gets no source: it is dropped,
/// and `weir explain` says so. From another port a backend's host is a client.
#[test]
fn what_no_client_sends_is_dropped() {
    let _alone = common::alone();
    let lab = common::lab_of(elsewhere(1));
    let balancer = common::start_spec(&lab, BalancerSpec { pool: 1, ..spec("concury") });
    let echo = SocketAddr::new(VIP4.into(), ECHO_PORT);
    let itself = SocketAddr::new(backend4(0).into(), NAT_ECHO_PORT);
    let sender = FrameSender::open(&lab.clients()[0], INTERFACE).unwrap();
    let frame = |from: SocketAddr| {
        let flow = FlowKey::new(from, echo, Protocol::Udp);
        Frame::new(flow).macs(BALANCER_MAC, CLIENT_MAC).payload(16).build()
    };
    let nobodies = ["224.0.0.1", "0.0.0.0", "255.255.255.255", "127.0.0.1", "240.0.0.1"];
    let nobodies = nobodies.map(|address| SocketAddr::new(address.parse().unwrap(), 4000));
    for from in [itself, echo].into_iter().chain(nobodies) {
        let count = || dropped(&balancer.status().unwrap(), "no_client");
        let before = count();
        common::eventually(&format!("what {from} has sent is dropped"), || {
            // On a busy machine an interface may lose some.
            sender.send(&[frame(from)]).unwrap();
            count() > before
        });
    }
    let explained = common::command(&balancer, &format!("explain udp {itself} {echo}"));
    let words = format!("{itself} gets none: no client has it");
    assert!(explained.contains(&words) && explained.contains("as no_client"), "{explained}");
    let other = SocketAddr::new(backend4(0).into(), 4000);
    let explained = common::command(&balancer, &format!("explain udp {other} {echo}"));
    let words = format!("{other} has none, and would become 10.77.0.2:");
    assert!(explained.contains(&words) && !explained.contains("no_client"), "{explained}");
}

/// One backend, and sixteen ports towards it: the seventeenth client finds none, which is said; and when the
/// others have been silent for their time, one comes free. Without a control plane, too.
#[test]
fn ports_run_out_and_come_back() {
    let _alone = common::alone();
    let lab = common::lab_of(elsewhere(1));
    let balancer = common::start_spec(
        &lab,
        BalancerSpec {
            pool: 1,
            balancer_lines: "nat_ports = \"2000-2015\"".into(),
            service_lines: format!("{FULL_NAT}\nidle_timeout = \"10s\""),
            ..BalancerSpec::new(WEIR, 1)
        },
    );
    let ask = |socket: &UdpSocket| {
        socket.send(b"x").unwrap();
        socket.recv(&mut [0; 512]).is_ok()
    };
    let make = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((VIP4, weir_lab::topology::ECHO_PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket
    };
    let client = &lab.clients()[0];
    // Not every one of the sixteen is one that a flow could have: each has sixteen tries.
    let (mut good, mut tries) = (Vec::new(), 0);
    while good.len() < 12 {
        let socket = client.enter(make).unwrap();
        if ask(&socket) {
            good.push(socket);
        }
        tries += 1;
        assert!(tries < 2_000, "{} of 16 ports are in use", good.len());
    }
    let started = Instant::now();
    while dropped(&balancer.status().unwrap(), "no_port") == 0 {
        // The others are kept alive.
        assert!(good.iter().all(ask), "a connection lost its port");
        let socket = client.enter(make).unwrap();
        if ask(&socket) {
            good.push(socket);
        }
        assert!(good.len() <= 16, "there are sixteen ports");
        assert!(started.elapsed() < common::PATIENCE, "nobody was refused");
    }
    let warned = balancer.command(&["status"]).unwrap();
    assert!(warned.contains("found no port (no_port): raise limits.nat_connections"), "{warned}");
    // Without anybody who sweeps, mappings grow old all the same.
    balancer.kill();
    thread::sleep(Duration::from_secs(13));
    let mut again = 0;
    let started = Instant::now();
    while again < 8 && started.elapsed() < common::PATIENCE {
        let socket = client.enter(make).unwrap();
        again += u32::from(ask(&socket));
    }
    assert!(again >= 8, "{again}: ports do not come back");
    balancer.launch().unwrap();
}
