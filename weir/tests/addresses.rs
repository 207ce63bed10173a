//! Services with several addresses, by prefix, and with ranges of ports, end to end: what packets find, that
//! connections of one client from the same port to several addresses are several connections, and that those
//! to addresses which stay are kept by a reload, a restart and a SIGKILL.

mod common;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use common::Held;
use weir_lab::topology::{BALANCER4, BALANCER6, VIP4, backend4, client4, client6};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec};

const POOL: usize = 4;
/// The first, one in the middle, and the last of the range.
const PORTS: [u16; 3] = [8000, 8001, 8063];
/// Beside the range, where servers listen as well.
const OTHER: u16 = 8064;
/// Source ports, the same to each address.
const SOURCES: std::ops::Range<u16> = 20_000..20_006;

const LEAVES: &str = "10.77.0.101";
const STAYS: [&str; 6] =
    ["10.77.0.102", "10.78.0.0", "10.78.0.7", "10.78.0.255", "fd78::5", "fd78::ffff"];
const ARRIVES: &str = "10.77.0.103";
const VIPS: &str = r#"["10.77.0.101", "10.77.0.102", "10.78.0.0/24", "fd78::/112"]"#;
const LATER: &str =
    r#"["10.77.0.103", "fd78::/112", "10.78.0.0/25", "10.78.0.128/25", "10.77.0.102"]"#;

fn wide(method: &str) -> String {
    let backends: String = (0..POOL)
        .map(|n| format!("[[service.backend]]\nname = \"b{n}\"\naddress = \"{}\"\n", backend4(n)))
        .collect();
    format!(
        "\n[[service]]\nname = \"wide\"\nvip = {VIPS}\nport = \"8000-8063\"\nmethod = \"{method}\"\n\
         [service.check]\nport = 80\n{backends}"
    )
}

/// A laboratory whose clients send to the balancer what is for these addresses, and whose backends have them.
fn start(method: &str) -> (Arc<Lab>, Balancer) {
    let lab = common::lab_of(LabSpec {
        backends: POOL,
        more_ports: PORTS.into_iter().chain([OTHER]).collect(),
        ..LabSpec::default()
    });
    for host in [LEAVES, "10.77.0.102", ARRIVES, "10.78.0.0/24"] {
        for client in lab.clients() {
            common::sh(client, &format!("ip route add {host} via {BALANCER4}"));
        }
        for backend in lab.backends() {
            common::sh(backend.netns(), &format!("ip route add local {host} dev lo"));
        }
    }
    for client in lab.clients() {
        common::sh(client, &format!("ip -6 route add fd78::/112 via {BALANCER6}"));
    }
    for backend in lab.backends() {
        common::sh(backend.netns(), "ip -6 route add local fd78::/112 dev lo");
    }
    let balancer = common::start_spec(
        &lab,
        BalancerSpec {
            method: method.into(),
            more_services: wide(method),
            ..BalancerSpec::new(common::WEIR, POOL)
        },
    );
    (lab, balancer)
}

/// One connection from each source port to each port of an address.
fn hold_at(lab: &Lab, address: &str) -> Vec<Held> {
    let to: IpAddr = address.parse().unwrap();
    let from: IpAddr = if to.is_ipv4() { client4(0, 0).into() } else { client6(0, 0).into() };
    let open = || {
        PORTS
            .iter()
            .flat_map(|port| SOURCES.map(move |source| (*port, source)))
            .map(|(port, source)| {
                let (from, to) = (SocketAddr::new(from, source), SocketAddr::new(to, port));
                Held::open(from, to).unwrap_or_else(|error| panic!("{from} to {to}: {error}"))
            })
            .collect()
    };
    lab.clients()[0].enter(open).unwrap()
}

/// Of each address, with the address.
fn by_address(held: &[Held], address: &str) -> usize {
    let address: IpAddr = address.parse().unwrap();
    held.iter().filter(|one| one.target.ip() == address).count()
}

fn explained(balancer: &Balancer, held: &Held) -> serde_json::Value {
    let (from, to) = (held.source.to_string(), held.target.to_string());
    let said = balancer.command(&["explain", "tcp", &from, &to, "--json"]);
    serde_json::from_str(&said.unwrap()).unwrap()
}

fn replace(balancer: &Balancer, before: &str, after: &str) {
    let text = fs::read_to_string(balancer.config()).unwrap();
    assert!(text.contains(before), "{before:?}: {text}");
    fs::write(balancer.config(), text.replace(before, after)).unwrap();
}

fn addresses_come_and_go(method: &str) {
    let (lab, balancer) = start(method);
    let mut leaving = hold_at(&lab, LEAVES);
    let mut held: Vec<Held> = STAYS.iter().flat_map(|address| hold_at(&lab, address)).collect();
    for address in STAYS {
        assert_eq!(by_address(&held, address), PORTS.len() * SOURCES.len());
    }
    let status = balancer.status().unwrap();
    let service = common::service(&status, "wide");
    assert_eq!(service["vips"].as_array().map(Vec::len), Some(4), "{service}");
    assert_eq!((&service["ports"]["first"], &service["port"]), (&8000.into(), &().into()));
    let shown = common::command(&balancer, "status");
    assert!(
        shown.contains(
            "wide: tcp 10.77.0.101, 10.77.0.102, 10.78.0.0/24, fd78::/112 port 8000-8063"
        )
    );
    // The port beside the range is nobody's: the balancer's own stack resets it.
    let to = SocketAddr::new(STAYS[0].parse().unwrap(), OTHER);
    let refused = lab.clients()[0].enter(|| std::net::TcpStream::connect(to)).unwrap();
    assert!(refused.is_err(), "port {OTHER} is not of the range");

    // What ends at one address, ends nothing from the same port at another.
    let ended = leaving.split_off(leaving.len() / 2);
    drop(ended);
    common::command(&balancer, "backend drain wide b0");
    common::command(&balancer, "backend drain wide b1");
    common::assert_unbroken(&mut held, "after two drains", &balancer);
    common::assert_unbroken(&mut leaving, "after two drains", &balancer);
    for one in held.iter().step_by(17) {
        let said = explained(&balancer, one);
        assert_eq!(
            (&said["service"], &said["backend"]),
            (&"wide".into(), &one.backend.as_str().into()),
            "{said}"
        );
    }
    common::command(&balancer, "backend drain wide b0 --undo");

    // One address goes, another comes; the range begins and ends elsewhere.
    replace(&balancer, VIPS, LATER);
    replace(&balancer, "port = \"8000-8063\"", "port = \"7990-8065\"");
    let plan = common::command(&balancer, "plan");
    assert!(
        plan.contains("vip: [") && plan.contains(&format!("connections to {LEAVES}")),
        "{plan}"
    );
    common::command(&balancer, "reload");
    common::assert_unbroken(&mut held, "after the reload", &balancer);
    held.extend(hold_at(&lab, ARRIVES));
    assert_eq!(by_address(&held, ARRIVES), PORTS.len() * SOURCES.len());
    let gone = leaving.iter_mut().all(Held::is_cut_off);
    assert!(gone, "connections to {LEAVES} have gone on");
    let other = SocketAddr::new(STAYS[2].parse().unwrap(), OTHER);
    let from = SocketAddr::new(client4(0, 0).into(), 0);
    held.push(lab.clients()[0].enter(|| Held::open(from, other)).unwrap().unwrap());

    common::kill_and_launch(&lab, &balancer, &mut held, "after SIGKILL");
    common::command(&balancer, "backend drain wide b2");
    common::command(&balancer, "backend drain wide b1 --undo");
    common::assert_unbroken(&mut held, "after a restart and a drain", &balancer);
    assert!(common::spread(&held).len() > 1);
}

/// A service that says more exactly what it takes is not added over another one's connections unless that is asked
/// for; plan, reload, history and a start say how many there are.
fn a_more_exact_service_is_refused_under_connections(method: &str) {
    let port = PORTS[0];
    let backends = |all: std::ops::Range<usize>| -> String {
        all.map(|n| {
            format!("[[service.backend]]\nname = \"b{n}\"\naddress = \"{}\"\n", backend4(n))
        })
        .collect()
    };
    let any = format!(
        "\n[[service]]\nname = \"any\"\nvip = \"{VIP4}\"\nany_port = true\nmethod = \"{method}\"\n\
         [service.check]\nport = 80\n{}",
        backends(0..2)
    );
    let own = format!(
        "\n[[service]]\nname = \"own\"\nvip = \"{VIP4}\"\nport = {port}\nmethod = \"{method}\"\n\
         [service.check]\nport = 80\n{}",
        backends(2..3)
    );
    let lab = common::lab_of(LabSpec {
        backends: POOL,
        more_ports: PORTS.to_vec(),
        ..LabSpec::default()
    });
    let spec = BalancerSpec {
        method: method.into(),
        more_services: any,
        ..BalancerSpec::new(common::WEIR, POOL)
    };
    let balancer = common::start_spec(&lab, spec);
    let mut held = common::hold(&lab, SocketAddr::new(VIP4.into(), port), 8);
    let all = held.len();
    let known = || common::service(&balancer.status().unwrap(), "any")["states"].as_u64();
    if method == "concury" {
        common::eventually("they are known", || known() == Some(all as u64));
    }
    let text = fs::read_to_string(balancer.config()).unwrap();
    fs::write(balancer.config(), format!("{text}{own}")).unwrap();
    let words = format!("connections to {VIP4} port {port} come to service own");
    let socket = balancer.socket().to_str().unwrap().to_owned();
    let plan = common::weir(&["plan", "--socket", &socket]);
    let said = common::stdout(&plan);
    assert_eq!(plan.status.code(), Some(4), "{said}{}", common::stderr(&plan));
    let would = format!("{all} known connections, of which {all} would break");
    assert!(said.contains(&words) && said.contains(&would), "{said}");
    let breaks = format!("{all} known connections break");
    let refused = common::try_command(&balancer, "reload").expect_err("it would break connections");
    for part in [&*words, &*breaks, "service any: vip: ", "--break-connections"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    common::assert_unbroken(&mut held, "after a reload that was refused", &balancer);
    // A start goes on with what was in force, and says why.
    balancer.kill();
    balancer.launch().unwrap();
    let warnings = balancer.status().unwrap()["warnings"].to_string();
    assert!(warnings.contains("would be refused") && warnings.contains(&words), "{warnings}");
    common::assert_unbroken(&mut held, "after a start whose file was refused", &balancer);
    let done = common::command(&balancer, "reload --break-connections");
    assert!(done.contains(&words) && done.contains(&breaks), "{done}");
    let history = common::command(&balancer, "history --json");
    let history: serde_json::Value = serde_json::from_str(&history).unwrap();
    let last = history["entries"].as_array().and_then(|all| all.last()).unwrap();
    assert_eq!((&last["connections"], &last["broken"]), (&all.into(), &all.into()), "{last}");
}

#[test]
fn a_more_exact_service_is_refused_under_connections_of_concury() {
    let _alone = common::alone();
    a_more_exact_service_is_refused_under_connections("concury");
}

#[test]
fn a_more_exact_service_is_refused_under_connections_of_tracked() {
    let _alone = common::alone();
    a_more_exact_service_is_refused_under_connections("tracked");
}

#[test]
fn connections_to_addresses_that_stay_are_kept_by_concury() {
    let _alone = common::alone();
    addresses_come_and_go("concury");
}

#[test]
fn connections_to_addresses_that_stay_are_kept_by_tracked() {
    let _alone = common::alone();
    addresses_come_and_go("tracked");
}

#[test]
fn connections_to_addresses_that_stay_are_kept_by_residue() {
    let _alone = common::alone();
    addresses_come_and_go("residue");
}
