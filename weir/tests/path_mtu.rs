//! Packets that are too large for a tunnel: senders are told, and what routers behind the balancer say is
//! followed. Nobody is told beforehand to send smaller ones.

mod common;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use common::{WEB4, WEB6};
use serde_json::Value;
use weir_lab::topology::{BACKENDS_INTERFACE, Topology, backend4, backend6, client4, client6};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec};

const BACKENDS: usize = 2;
const BIG: usize = 900_000;
/// Of the link between the router and the backends, which the balancer does not know.
const MTU: u32 = 1400;
/// A machine that is busy with other things is slow.
const PATIENCE: Duration = Duration::from_secs(120);

fn routed(forward: &str, balancer_lines: &str) -> (std::sync::Arc<Lab>, Balancer) {
    let lab = common::lab_of(LabSpec {
        backends: BACKENDS,
        topology: Topology::Routed,
        big_bytes: BIG as u64,
        ..LabSpec::default()
    });
    for backend in 0..BACKENDS {
        // Their segments are as large as their own link takes, and so are those of their clients.
        let netns = lab.backend(backend).netns();
        common::sh(netns, "ip route change default via 10.77.2.254");
        common::sh(netns, "ip -6 route change default via fd77::2:fffe");
    }
    let spec = BalancerSpec {
        service_lines: format!("forward = \"{forward}\""),
        balancer_lines: balancer_lines.into(),
        ..BalancerSpec::new(common::WEIR, BACKENDS)
    };
    let balancer = common::start_spec(&lab, spec);
    (lab, balancer)
}

/// Sends the big file to a service; says how many bytes were sent. Without path MTU discovery the first
/// full segment is sent for ever.
fn upload(lab: &Lab, from: IpAddr, to: SocketAddr, limit: Duration) -> String {
    let file = std::env::temp_dir().join(format!("weir-upload-{}", std::process::id()));
    std::fs::write(&file, vec![7; BIG]).unwrap();
    // What it was told about the service's address holds for all backends.
    common::sh(&lab.clients()[0], "ip route flush cache");
    common::sh(&lab.clients()[0], "ip -6 route flush cache");
    let mut curl = lab.clients()[0].command("curl").unwrap();
    curl.args(["-sgS", "-o", "/dev/null", "-w", "%{size_upload} %{http_code}"]);
    curl.args(["--max-time", &limit.as_secs().to_string(), "-H", "Expect:"]);
    curl.args(["--data-binary", &format!("@{}", file.display())]);
    curl.args(["--interface", &from.to_string(), &format!("http://{to}/")]);
    let output = curl.output().expect("running curl");
    std::fs::remove_file(&file).unwrap();
    common::stdout(&output)
}

fn download(lab: &Lab, from: IpAddr, to: SocketAddr) -> String {
    let mut curl = lab.clients()[0].command("curl").unwrap();
    curl.args(["-sgS", "-o", "/dev/null", "-w", "%{size_download}", "--max-time", "120"]);
    curl.args(["--interface", &from.to_string(), &format!("http://{to}/big")]);
    common::stdout(&curl.output().expect("running curl"))
}

fn outcome(status: &Value, reason: &str, kind: &str) -> u64 {
    let outcomes = status["outcomes"].as_array().unwrap();
    let found = outcomes.iter().find(|one| one["reason"] == reason);
    found.map_or(0, |one| one[kind].as_u64().unwrap())
}

fn addresses() -> [(IpAddr, SocketAddr); 2] {
    [(client4(0, 0).into(), WEB4), (client6(0, 0).into(), WEB6)]
}

/// The router has a link of 1,400 bytes to the backends.
fn narrow(lab: &Lab) {
    let router = lab.router().expect("the topology has one");
    let all: [fn(usize) -> IpAddr; 2] = [|at| backend4(at).into(), |at| backend6(at).into()];
    for to in all.iter().flat_map(|address| (0..BACKENDS).map(address)) {
        common::sh(router, &format!("ip route add {to} dev {BACKENDS_INTERFACE} mtu lock {MTU}"));
    }
}

fn finds_the_mtu(forward: &str) {
    let _alone = common::alone();
    let (lab, balancer) = routed(forward, "");
    let sent = format!("{BIG} 200");
    for (from, to) in addresses() {
        assert_eq!(upload(&lab, from, to, PATIENCE), sent, "{forward} to {to}");
        assert_eq!(download(&lab, from, to), BIG.to_string(), "{forward} from {to}");
    }
    let before = balancer.status().unwrap();
    assert!(outcome(&before, "too_big_told", "dropped") >= 2, "{}", before["outcomes"]);
    assert_eq!(outcome(&before, "too_big", "dropped"), 0, "all of them could be told");
    assert_eq!(outcome(&before, "path_mtu", "passed"), 0);

    narrow(&lab);
    let mut uploads = 0;
    let heard = |balancer: &Balancer| {
        let status = balancer.status().unwrap();
        let services = ["web4", "web6"].map(|name| common::service(&status, name).clone());
        let all = services.iter().flat_map(|service| service["backends"].as_array().unwrap());
        all.filter(|one| one["tunnel"]["largest"].as_u64().unwrap() < u64::from(MTU)).count()
    };
    // Every way has to be heard of once.
    while heard(&balancer) < 2 * BACKENDS {
        for (from, to) in addresses() {
            assert_eq!(upload(&lab, from, to, PATIENCE), sent, "{forward} to {to}, narrow");
            assert_eq!(download(&lab, from, to), BIG.to_string(), "{forward} from {to}, narrow");
        }
        uploads += 1;
        assert!(uploads < 200, "some way was never heard of");
    }
    let after = balancer.status().unwrap();
    assert!(outcome(&after, "path_mtu", "passed") >= 4, "{}", after["outcomes"]);
    println!("{forward}: {uploads} uploads to each service, {}", after["outcomes"]);
}

#[test]
fn ipip_finds_the_mtu_of_a_path() {
    finds_the_mtu("ipip");
}

#[test]
fn gue_finds_the_mtu_of_a_path() {
    finds_the_mtu("gue");
}

/// What the messages are for: without them the upload stands still.
#[test]
fn nobody_is_told_who_is_not_to_be() {
    let _alone = common::alone();
    let (lab, balancer) = routed("ipip", "icmp_per_second = 0\n");
    let (from, to) = addresses()[0];
    let stalled = upload(&lab, from, to, Duration::from_secs(6));
    let status = balancer.status().unwrap();
    assert!(!stalled.ends_with(" 200") || !stalled.starts_with(&BIG.to_string()), "{stalled}");
    assert!(outcome(&status, "untold", "dropped") > 0, "{}", status["outcomes"]);
    assert_eq!(outcome(&status, "too_big_told", "dropped"), 0);
}

/// What `weir lab` says of a network with a link of 1,400 bytes before the backends; it is to be good.
fn lab_with_a_link(options: &[&str]) -> Value {
    let _alone = common::alone();
    let (seed, mtu) = (common::seed().to_string(), MTU.to_string());
    let plain = ["lab", "--json", "--seed", &seed, "--link-mtu", &mtu, "--backends", "4"];
    let amount = ["--connections", "300", "--duration", "5s", "--patience", "20s"];
    let said = common::weir(&[&plain[..], &amount, &["--limit", "15m"], options].concat());
    let report = common::stdout(&said);
    let report: Value =
        serde_json::from_str(&report).unwrap_or_else(|error| panic!("{error}: {report}"));
    let fault = common::stderr(&said).lines().last().unwrap_or_default().to_owned();
    assert!(said.status.success(), "{report:#}\n{fault}");
    assert_eq!(report["traffic"]["broken"], 0, "{report:#}");
    report
}

/// Of a kind of connections so many.
fn of_kind(report: &Value, kind: &str, what: &str) -> u64 {
    let kinds = report["traffic"]["kinds"].as_array().unwrap();
    let found = kinds.iter().find(|one| one["kind"] == kind).unwrap();
    found[what].as_u64().unwrap()
}

/// Uploads meet the link in tunnels, downloads as they are: the router tells the balancer of the ones, which tells
/// clients, and of the others the balancer tells backends.
#[test]
fn long_connections_go_over_a_narrow_link_that_senders_are_told_of() {
    let report = lab_with_a_link(&["--forward", "ipip"]);
    for kind in ["download", "upload"] {
        assert!(of_kind(&report, kind, "completed") >= 3, "{report:#}");
    }
    for whom in ["balancer", "clients"] {
        assert!(report["told"][whom].as_u64() > Some(0), "{}", report["told"]);
    }
}

/// Whoever filters ICMP has what the messages are for: short connections go on, long ones stand still.
#[test]
fn long_connections_stand_still_where_nobody_is_told() {
    // So many that there are downloads among them.
    let report = lab_with_a_link(&["--forward", "gue", "--link-silent", "--total", "1500"]);
    assert_eq!(of_kind(&report, "download", "completed"), 0, "{report:#}");
    assert!(of_kind(&report, "download", "broken_unpromised") > 0, "{report:#}");
    assert!(of_kind(&report, "short", "completed") > 0, "{report:#}");
}

/// Unless SYNs and SYN+ACKs ask for segments that fit.
#[test]
fn smaller_segments_go_where_nobody_is_told() {
    let report = lab_with_a_link(&["--forward", "fullnat", "--link-silent", "--mss", "1340"]);
    for kind in ["download", "upload"] {
        assert!(of_kind(&report, kind, "completed") >= 3, "{report:#}");
    }
}
