//! ICMP errors about a service's packets reach the backend that sent them: path MTU discovery works,
//! whichever backend a connection has.

mod common;

use std::net::IpAddr;

use serde_json::Value;
use weir_lab::topology::{INTERFACE, Topology, client4, client6};
use weir_lab::{AgentSpec, BalancerSpec, Lab, LabSpec};

const BACKENDS: usize = 4;
const BIG: usize = 1 << 20;
/// Of the way from the router to the client, which no host knows of.
const MTU: u32 = 1300;

/// Downloads the big file from this address; says how many bytes came.
fn download(lab: &Lab, from: IpAddr, url: &str) -> String {
    let mut curl = lab.clients()[0].command("curl").unwrap();
    // A connection without path MTU discovery stalls at its first full segment, for ever.
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

/// Packets reach backends by tunnels, and answers go by the router.
fn finds_the_mtu(method: &str) {
    let lab = LabSpec { topology: Topology::Routed, ..LabSpec::default() };
    finds_in(lab, method, "forward = \"ipip\"");
}

/// Packets reach backends as frames, and these write cookies into what goes by the router: what it quotes has them.
fn finds_the_mtu_by_cookies(method: &str) {
    let agent = Some(AgentSpec::new(common::WEIR));
    let lab = LabSpec { topology: Topology::Dual, agent, ..LabSpec::default() };
    let status = finds_in(lab, method, "answers = \"backend\"");
    assert_eq!(status["bare_packets"].as_u64(), Some(0), "every backend writes its cookies");
}

/// Returns the status after it.
fn finds_in(lab: LabSpec, method: &str, service_lines: &str) -> Value {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: BACKENDS, big_bytes: BIG as u64, ..lab });
    let spec = BalancerSpec {
        method: method.into(),
        service_lines: service_lines.into(),
        ..BalancerSpec::new(common::WEIR, BACKENDS)
    };
    let balancer = common::start_spec(&lab, spec);
    let router = lab.router().expect("the topology has one");
    let clients: [IpAddr; 2] = [client4(0, 0).into(), client6(0, 0).into()];
    for to in clients {
        common::sh(router, &format!("ip route add {to} dev {INTERFACE} mtu lock {MTU}"));
    }
    // Those that the kernel counts for path MTU discovery alone are IPv6's.
    let counters = [(common::WEB4, "IcmpInDestUnreachs"), (common::WEB6, "Icmp6InPktTooBigs")];
    for ((service, counter), from) in counters.into_iter().zip(clients) {
        let url = format!("http://{service}/big");
        let mut downloads = 0;
        // Every backend has to hear of it once.
        while (0..BACKENDS).any(|backend| told(&lab, backend, counter) == 0) {
            assert_eq!(download(&lab, from, &url), BIG.to_string(), "{method}, {url}");
            downloads += 1;
            assert!(downloads < 200, "some backend was never told: {counter}");
        }
        println!("{method}: {downloads} downloads from {service}");
    }
    let status = balancer.status().unwrap();
    let outcomes = status["outcomes"].as_array().unwrap();
    let unknown = outcomes.iter().find(|one| one["reason"] == "unknown_quote");
    assert!(unknown.is_none(), "{unknown:?}");
    status
}

#[test]
fn concury_finds_the_mtu_of_a_path() {
    finds_the_mtu("concury");
}

#[test]
fn tracked_finds_the_mtu_of_a_path() {
    finds_the_mtu("tracked");
}

#[test]
fn jet_finds_the_mtu_of_a_path() {
    finds_the_mtu("jet");
}

#[test]
fn residue_finds_the_mtu_of_a_path() {
    finds_the_mtu("residue");
}

#[test]
fn cheetah_finds_the_mtu_of_a_path() {
    finds_the_mtu_by_cookies("cheetah");
}

#[test]
fn stateful_cheetah_finds_the_mtu_of_a_path() {
    finds_the_mtu_by_cookies("cheetah-stateful");
}
