//! Health checks by the way of the service's packets: what a backend's own address does not show is seen.

mod common;

use std::fs;

use common::{WEB4, WEB6, WEIR, eventually, sh};
use serde_json::Value;
use weir_lab::topology::{Topology, VIP4, VIP6};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec};

/// By HTTP for the web services, by a datagram for the echo service.
fn through(balancer: &Balancer) {
    let times =
        "interval = \"700ms\"\ntimeout = \"650ms\"\nrise = 2\nfall = 3\nvia = \"service\"\n";
    let mut text = fs::read_to_string(balancer.config()).unwrap();
    for (service, check) in [
        ("web4", "type = \"http\"\nbody = \"b\"\n"),
        ("web6", "type = \"tcp\"\n"),
        ("echo4", "type = \"udp\"\nsend = \"weir?\"\nexpect = \"weir?\"\n"),
    ] {
        let at = text.find(&format!("name = \"{service}\"")).expect("the service");
        let from = at + text[at..].find("[service.check]\n").expect("its check");
        let until = from + text[from..].find("\n[[service.backend]]").expect("its backends");
        text.replace_range(from..until, &format!("[service.check]\n{times}{check}"));
    }
    fs::write(balancer.config(), text).unwrap();
    common::command(balancer, "reload");
}

fn state(status: &Value, service: &str, number: usize) -> (String, Value) {
    let service = common::service(status, service);
    let backend = common::backend(service, &format!("b{number}"));
    (backend["state"].as_str().unwrap().to_owned(), backend["check"].clone())
}

/// Waits until a backend of these services is in a state, by a check that was made since.
fn wait(balancer: &Balancer, services: &[&str], number: usize, wanted: &str) {
    let mut last = Value::Null;
    let began = balancer.status().unwrap();
    let before = |service: &str| state(&began, service, number).1["checks"].as_u64().unwrap();
    eventually(&format!("b{number} of {services:?} {wanted}"), || {
        last = balancer.status().unwrap();
        services.iter().all(|service| {
            let (state, check) = state(&last, service, number);
            state == wanted && check["checks"].as_u64().unwrap() > before(service) + 3
        })
    });
}

const ALL: [&str; 3] = ["web4", "web6", "echo4"];

fn all_up(balancer: &Balancer, backends: usize) {
    for number in 0..backends {
        wait(balancer, &ALL, number, "up");
    }
    let status = balancer.status().unwrap();
    for service in ALL {
        let (_, check) = state(&status, service, 0);
        let last = check["last"].as_str().unwrap();
        let wanted = match service {
            "web4" => "HTTP 200",
            "web6" => "connected",
            _ => "answered",
        };
        assert!(last.starts_with(wanted), "{service}: {check}");
    }
}

/// The addresses of the services leave a backend's loopback and come back.
fn without_addresses(lab: &Lab, balancer: &Balancer, number: usize) {
    let backend = lab.backend(number).netns();
    let (four, six) = (format!("{VIP4}/32"), format!("{VIP6}/128"));
    sh(backend, &format!("ip addr del {four} dev lo"));
    wait(balancer, &["web4", "echo4"], number, "down");
    // The other family is not touched, and the server itself is well.
    wait(balancer, &["web6"], number, "up");
    let (_, check) = state(&balancer.status().unwrap(), "web4", number);
    let error = check["last_error"].as_str().unwrap();
    assert!(error.contains("asked by the way of the service's packets"), "{check}");
    sh(backend, &format!("ip addr del {six} dev lo"));
    wait(balancer, &["web6"], number, "down");
    sh(backend, &format!("ip addr add {four} dev lo"));
    sh(backend, &format!("ip addr add {six} dev lo nodad"));
    wait(balancer, &ALL, number, "up");
}

#[test]
fn a_backend_without_the_address_is_down() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start(&lab, "concury", 3);
    let mut held = common::hold(&lab, WEB4, 30);
    through(&balancer);
    all_up(&balancer, 3);
    without_addresses(&lab, &balancer, 1);
    // The same check, made once.
    let config = balancer.config().display().to_string();
    let said = common::stdout(&common::weir_in(&lab, &["doctor", "--config", &config]));
    assert!(
        said.contains("health check by http on port 80 through the service succeeds"),
        "{said}"
    );
    // A server that does not listen refuses, and is known to.
    lab.backend(2).kill();
    wait(&balancer, &["web4", "web6"], 2, "down");
    let (_, check) = state(&balancer.status().unwrap(), "web6", 2);
    assert_eq!(check["last_error"], "connection refused", "{check}");
    held.retain(|one| one.backend != "b2");
    common::assert_unbroken(&mut held, "beside checks by the way of the service", &balancer);
    // Nothing of the checks is left: no half-open connection at a backend, and no port.
    let left =
        lab.backend(0).netns().command("ss").unwrap().args(["-Htan", "state", "syn-recv"]).output();
    assert_eq!(common::stdout(&left.unwrap()), "");
}

/// Through tunnels, also with the families mixed: a backend that does not take packets out is down.
fn tunnel(forward: &str, other_family: bool) {
    let _alone = common::alone();
    let spec = LabSpec { backends: 2, topology: Topology::Routed, ..LabSpec::default() };
    let lab = common::lab_of(spec);
    let service_lines = format!("forward = \"{forward}\"");
    let spec = BalancerSpec { service_lines, other_family, ..BalancerSpec::new(WEIR, 2) };
    let balancer = common::start_spec(&lab, spec);
    through(&balancer);
    all_up(&balancer, 2);
    without_addresses(&lab, &balancer, 1);
    // Without the program that takes packets out of tunnels.
    let backend = lab.backend(0).netns();
    let links =
        backend.command("ip").unwrap().args(["-o", "link", "show", "type", "veth"]).output();
    let links = common::stdout(&links.unwrap());
    let name = links.split([' ', '@']).nth(1).expect("its interface").to_owned();
    sh(backend, &format!("ip link set {name} xdp off"));
    wait(&balancer, &ALL, 0, "down");
    common::reach_all(&lab, WEB4, 1);
    common::reach_all(&lab, WEB6, 1);
}

#[test]
fn a_backend_that_takes_nothing_out_of_ipip_is_down() {
    tunnel("ipip", false);
}

#[test]
fn a_backend_that_takes_nothing_out_of_gue_over_the_other_family_is_down() {
    tunnel("gue", true);
}

/// With NAT the backends' own ports are asked, in translated packets.
#[test]
fn translated_backends_are_asked_in_translated_packets() {
    let _alone = common::alone();
    let spec = LabSpec { backends: 2, topology: Topology::Nat, ..LabSpec::default() };
    let lab = common::lab_of(spec);
    let service_lines = "forward = \"nat\"".to_owned();
    let balancer =
        common::start_spec(&lab, BalancerSpec { service_lines, ..BalancerSpec::new(WEIR, 2) });
    through(&balancer);
    all_up(&balancer, 2);
    lab.backend(1).kill();
    wait(&balancer, &["web4", "web6"], 1, "down");
    wait(&balancer, &["web4", "web6"], 0, "up");
}
