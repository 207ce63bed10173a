//! Backends behind a router, which packets reach through tunnels of every kind.

mod common;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use common::{WEB4, WEB6, WEIR, dropped};
use weir_lab::topology::Topology;
use weir_lab::{Balancer, BalancerSpec, LabSpec};

fn spec(forward: &str, other_family: bool) -> BalancerSpec {
    let service_lines = format!("forward = \"{forward}\"");
    BalancerSpec { service_lines, other_family, ..BalancerSpec::new(WEIR, 4) }
}

fn routed(backends: usize) -> LabSpec {
    LabSpec { backends, topology: Topology::Routed, big_bytes: 2 << 20, ..LabSpec::default() }
}

/// Real servers and clients, changes of the pool, a control plane that is killed: nothing breaks.
fn unbroken(forward: &str, other_family: bool) {
    let _alone = common::alone();
    let status = common::unbroken(routed(6), spec(forward, other_family), forward);
    for name in ["web4", "web6", "echo4"] {
        let service = common::service(&status, name);
        assert_eq!(service["forward"], forward);
        assert!(common::sum(service, "packets") > 100, "{service}");
        let backend = &service["backends"][0];
        let source = backend["tunnel"]["source"].as_str().unwrap();
        let backend = backend["address"].as_str().unwrap();
        assert_eq!(source.contains(':'), backend.contains(':'), "{source} to {backend}");
        assert_eq!(backend.contains(':'), (name == "web6") != other_family);
    }
    for reason in ["too_big", "ttl_exceeded", "no_tunnel_source", "behind_gateway"] {
        assert_eq!(dropped(&status, reason), 0, "{reason}");
    }
}

#[test]
fn ipip_reaches_backends_behind_a_router() {
    unbroken("ipip", false);
}

#[test]
fn gue_reaches_backends_behind_a_router() {
    unbroken("gue", false);
}

#[test]
fn fou_reaches_backends_behind_a_router() {
    unbroken("fou", false);
}

#[test]
fn gre_reaches_backends_behind_a_router() {
    unbroken("gre", false);
}

/// Services of IPv4 with backends of IPv6, and the other way round.
#[test]
fn families_may_be_mixed() {
    unbroken("ipip", true);
}

fn change(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

fn said(balancer: &Balancer, lab: &weir_lab::Lab, arguments: &[&str]) -> String {
    let config = balancer.config().to_str().unwrap();
    let output = common::weir_in(lab, &[arguments, &["--config", config]].concat());
    format!("{}{}", common::stdout(&output), common::stderr(&output))
}

/// A reload changes the tunnel under open connections; back to frames, where only a router leads, it does
/// not. What is said of it agrees everywhere.
#[test]
fn a_reload_changes_the_tunnel_under_connections() {
    let _alone = common::alone();
    let lab = common::lab_of(routed(4));
    let balancer = common::start_spec(&lab, spec("ipip", false));
    let mut held = common::hold_both(&lab, 80);
    let mut before = "forward = \"ipip\"".to_owned();
    for now in ["forward = \"gue\"", "forward = \"gre\"", "forward = \"fou\"\ntunnel_port = 5555"] {
        change(balancer.config(), &before, now);
        balancer.command(&["reload"]).unwrap();
        common::assert_unbroken(&mut held, now, &balancer);
        common::reach_all(&lab, WEB4, 4);
        common::reach_all(&lab, WEB6, 4);
        before = now.to_owned();
    }
    let explained =
        balancer.command(&["explain", "tcp", "10.77.1.1:4000", "10.77.0.100:80"]).unwrap();
    assert!(explained.contains("fou to port 5555 from 10.77.0.2 to 10.77.2."), "{explained}");
    assert!(explained.contains("up to 1472 bytes"), "{explained}");
    let flow = ("10.77.1.1:4000", "10.77.0.100:80");
    common::assert_explained_alike(&balancer, flow, &["backend", "through"]);

    let status = balancer.status().unwrap();
    change(balancer.config(), &before, "forward = \"l2\"");
    let refused = balancer.command(&["reload"]).unwrap_err().to_string();
    assert!(refused.contains("behind the router 10.77.0.1"), "{refused}");
    assert_eq!(common::tables(&balancer.status().unwrap()), common::tables(&status));
    let checked = said(&balancer, &lab, &["check"]);
    assert!(checked.contains("behind the router 10.77.0.1"), "{checked}");
    change(balancer.config(), "forward = \"l2\"", &before);
    assert!(said(&balancer, &lab, &["check"]).contains("good; 3 services"));
    // It asks through the tunnel whether backends take packets for the service.
    let doctor = said(&balancer, &lab, &["doctor"]);
    for words in [
        "(10.77.2.1) accepts connections to 10.77.0.100 port 80",
        "(fd77::2:1) accepts connections to fd77::100 port 80",
        "the tunnel from 10.77.0.2 has room for 1472",
    ] {
        assert!(doctor.contains(words), "{words}: {doctor}");
    }
    // The control plane is gone for a while.
    balancer.kill();
    common::assert_unbroken(&mut held, "without a control plane", &balancer);
    thread::sleep(Duration::from_millis(900));
    common::assert_unbroken(&mut held, "after next hops have been asked for again", &balancer);
    balancer.launch().unwrap();
    common::assert_unbroken(&mut held, "with a control plane again", &balancer);
    let status = balancer.status().unwrap();
    assert_eq!(status["resumed"], true);
}
