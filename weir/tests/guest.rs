//! What this machine's kernel may have no devices for: VLANs, bonds, its own ends of tunnels, SCTP.
//! `make kernel-test` runs them in a guest with Debian's kernel; built with the feature `guest`, they run
//! where there are such devices.

#[path = "guest/clock.rs"]
mod clock;
mod common;
#[path = "guest/sctp.rs"]
mod sctp;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::hops::{Way, is_as_promised};
use common::{WEB4, WEB6, WEIR, dropped};
use weir_lab::topology::{BOND, Bond, Receivers, Topology};
use weir_lab::traffic::Mix;
use weir_lab::{
    AgentSpec, Balancer, BalancerSpec, Lab, LabSpec, PoolControl, Traffic, TrafficSpec,
};

/// Connections of each kind of traffic that come and go, and those that are held.
const TRAFFIC: usize = 24;
const HELD: usize = 24;
const BACKENDS: usize = 4;
/// The methods beside concury, which is what tests are about that name none.
const OTHERS: [&str; 5] = ["tracked", "jet", "residue", "cheetah", "cheetah-stateful"];

/// What `weir` says with the balancer's configuration; it is to succeed.
fn says(lab: &Lab, balancer: &Balancer, verb: &str) -> String {
    let config = balancer.config().to_str().unwrap();
    let output = common::weir_in(lab, &[verb, "--config", config]);
    let said = format!("{}{}", common::stdout(&output), common::stderr(&output));
    assert!(output.status.success(), "weir {verb}: {said}");
    said
}

/// Connections come, go and stay while a backend joins, one drains and the control plane is killed; nothing
/// breaks. `meddle` does what else may happen on the way.
fn unbroken(lab: &LabSpec, balancer: BalancerSpec, meddle: impl Fn(&Lab)) -> (Arc<Lab>, Balancer) {
    let lines = balancer.service_lines.replace('\n', ", ");
    let what = format!("{} {} {lines}", lab.topology.name(), balancer.method);
    // With jet a backend that has joined gets nothing for longer than connections are silent.
    let waits = balancer.method == "jet";
    let seed = common::seed();
    let lab = common::lab_of(lab.clone());
    let balancer = common::start_spec(&lab, BalancerSpec { pool: BACKENDS - 1, ..balancer });
    let spec = TrafficSpec {
        seed,
        connections: TRAFFIC,
        mix: Mix { keepalive: 0.4, upload: 0.05, short: 0.35, udp: 0.2, ..Mix::NONE },
        upload_bytes: 128 << 10,
        timeout: common::PATIENCE,
        detection: common::PATIENCE,
        udp_timeout: Duration::from_secs(10),
        ..TrafficSpec::default()
    };
    let traffic = Traffic::start(&lab, spec).unwrap();
    let mut held = common::hold_both(&lab, HELD);
    balancer.add(BACKENDS - 1, 1).unwrap();
    common::assert_unbroken(&mut held, "after a backend has joined", &balancer);
    balancer.drain(0).unwrap();
    meddle(&lab);
    common::assert_unbroken(&mut held, "after a backend drains", &balancer);
    common::kill_and_launch(&lab, &balancer, &mut held, "with a control plane again");
    balancer.undrain(0).unwrap();
    for to in [WEB4, WEB6].into_iter().filter(|_| !waits) {
        common::reach_all(&lab, to, BACKENDS);
    }
    // Next hops are asked for again.
    thread::sleep(Duration::from_millis(900));
    common::assert_unbroken(&mut held, "at the end", &balancer);
    let status = balancer.status().unwrap();
    assert_eq!(status["resumed"], true);
    for reason in ["no_way_out", "no_next_hop", "behind_gateway", "too_big", "no_tunnel_source"] {
        assert_eq!(dropped(&status, reason), 0, "{reason}");
    }
    let report = traffic.finish().unwrap();
    let totals = &report.totals;
    println!(
        "guest: {what}: {} connections held, {} came and went, {} answers, {} broken (seed {seed})",
        held.len(),
        totals.ended(),
        totals.answers,
        totals.broken
    );
    assert_eq!(totals.broken, 0, "{:#?}", report.broken_connections);
    assert!(totals.completed > 0, "{report:?}");
    (lab, balancer)
}

fn of(topology: Topology) -> LabSpec {
    LabSpec { topology, backends: BACKENDS, ..LabSpec::default() }
}

/// Tags are pushed, changed to those of another VLAN or another protocol, and taken off.
#[test]
fn backends_are_in_vlans_of_one_interface() {
    let _alone = common::alone();
    let (lab, balancer) = unbroken(&of(Topology::Vlan), BalancerSpec::new(WEIR, BACKENDS), |_| ());
    let doctor = says(&lab, &balancer, "doctor");
    for words in ["on eth0.2, tagged 2", "on eth0.3, tagged 3", "on eth0.4, tagged 4"] {
        assert!(doctor.contains(words), "{words}: {doctor}");
    }
}

/// The same with another method. Where answers do not pass the balancer, the backends write cookies.
fn unbroken_with(method: &str, topology: Topology) {
    let _alone = common::alone();
    let by_agents = method.starts_with("cheetah") && topology != Topology::Vlan;
    let agent = by_agents.then(|| AgentSpec::new(WEIR));
    let service_lines = if by_agents { "answers = \"backend\"" } else { "" };
    let balancer = BalancerSpec {
        method: method.into(),
        service_lines: service_lines.into(),
        ..BalancerSpec::new(WEIR, BACKENDS)
    };
    unbroken(&LabSpec { agent, ..of(topology) }, balancer, |_| ());
}

#[test]
fn every_method_leads_to_backends_in_vlans() {
    for method in OTHERS {
        unbroken_with(method, Topology::Vlan);
    }
}

/// Each by one mode: a bond takes a frame, whoever has decided it.
#[test]
fn every_method_leads_to_backends_by_a_bond() {
    for (method, bond) in OTHERS.into_iter().zip(Bond::ALL.into_iter().cycle()) {
        unbroken_with(method, Topology::Bond(bond));
    }
}

fn by_a_bond(bond: Bond) {
    let _alone = common::alone();
    let cut = |lab: &Lab| {
        // TCP repeats what is lost until the bond has seen it.
        for member in ["eth0", "eth1"] {
            common::sh(lab.balancer(), &format!("ip link set {member} down"));
            thread::sleep(Duration::from_secs(2));
            common::sh(lab.balancer(), &format!("ip link set {member} up"));
            thread::sleep(Duration::from_secs(4));
        }
    };
    let spec = BalancerSpec::new(WEIR, BACKENDS);
    let (lab, balancer) = unbroken(&of(Topology::Bond(bond)), spec, cut);
    let status = balancer.status().unwrap();
    assert_eq!(status["interfaces"], serde_json::json!([[BOND, "native"]]));
    says(&lab, &balancer, "doctor");
    // What is lost where a member of the bond has no way on is counted, though the kernel names the member.
    let lost = || {
        let status = balancer.status().unwrap();
        let lost = status["lost"].as_array().expect("this kernel tells").clone();
        lost.iter().map(|one| one["frames"].as_u64().unwrap()).sum::<u64>()
    };
    let before = lost();
    let lb = lab.balancer();
    common::sh(lb, "ip link add v0 type veth peer name v1");
    common::sh(lb, "ip link set v0 up");
    common::sh(lb, "ip link set v1 up");
    for backend in lab.backends() {
        let address = backend.address4();
        let mac = backend.mac().map(|byte| format!("{byte:02x}")).join(":");
        common::sh(lb, &format!("ip neigh replace {address} lladdr {mac} dev v0 nud permanent"));
        common::sh(lb, &format!("ip route replace {address}/32 dev v0"));
    }
    let socket = lab.clients()[0].enter(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    common::eventually("lost frames are counted", || {
        let echo = SocketAddr::new(WEB4.ip(), 5353);
        assert_eq!(socket.send_to(b"one", echo).unwrap(), 3);
        lost() > before
    });
}

#[test]
fn a_bond_by_lacp_leads_to_backends() {
    by_a_bond(Bond::Lacp);
}

#[test]
fn a_bond_with_a_backup_leads_to_backends() {
    by_a_bond(Bond::ActiveBackup);
}

#[test]
fn a_bond_by_hash_leads_to_backends() {
    by_a_bond(Bond::Xor);
}

#[test]
fn a_bond_by_turns_leads_to_backends() {
    by_a_bond(Bond::RoundRobin);
}

/// Clients behind a router, in a VLAN and in none: pings, traceroute, ICMP errors of both directions.
#[test]
fn hops_are_told_in_vlans() {
    let way = Way::new(Topology::Vlan, "", 0);
    let lab = LabSpec { clients: 4, ..way.lab };
    is_as_promised(Way { lab, outside: &[(0, 2), (1, 3)], ..way });
}

#[test]
fn hops_are_told_by_bonds() {
    for bond in Bond::ALL {
        is_as_promised(Way::new(Topology::Bond(bond), "", 0));
    }
}

/// Backends 0 and 1 are reached through an interface that frames of an XDP program do not get by: `weir doctor` says so
/// and why, and what would be lost there is counted.
fn leads_nowhere(lab: &Lab, balancer: &Balancer, name: &str, why: &str) {
    let lb = lab.balancer();
    for address in ["10.77.2.1", "10.77.2.2"] {
        let mac = "lladdr 02:77:00:00:02:01";
        common::sh(lb, &format!("ip neigh replace {address} {mac} dev {name} nud permanent"));
        common::sh(lb, &format!("ip route replace {address}/32 dev {name}"));
    }
    let config = balancer.config().to_str().unwrap();
    let output = common::weir_in(lab, &["doctor", "--config", config]);
    let said = format!("{}{}", common::stdout(&output), common::stderr(&output));
    let words = format!("10.77.2.1 is reached through {name} (a {why})");
    assert!(!output.status.success() && said.contains(&words), "{words}: {said}");
    let before = dropped(&balancer.status().unwrap(), "no_way_out");
    let socket = lab.clients()[0].enter(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    common::eventually("what would be lost is counted", || {
        assert_eq!(socket.send_to(b"one", (WEB4.ip(), 5353)).unwrap(), 3);
        dropped(&balancer.status().unwrap(), "no_way_out") > before
    });
    println!("guest: a {why}: refused by weir doctor, counted as no_way_out");
}

/// Frames that would need two tags leave by none.
#[test]
fn vlans_in_vlans_are_refused() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    let lb = lab.balancer();
    for protocol in ["802.1Q", "802.1ad"] {
        common::sh(lb, &format!("ip link add link eth0 name v7 type vlan proto {protocol} id 7"));
        common::sh(lb, "ip link add link v7 name v8 type vlan id 8");
        for name in ["v7", "v8"] {
            common::sh(lb, &format!("ip link set {name} up"));
        }
        leads_nowhere(&lab, &balancer, "v8", "VLAN in a VLAN");
        let config = balancer.config().to_str().unwrap();
        let output = common::weir_in(&lab, &["doctor", "--config", config]);
        let said = common::stdout(&output);
        assert!(said.contains("eth0: v8 is a VLAN in a VLAN"), "{said}");
        common::sh(lb, "ip link del v7");
    }
}

/// A bond of a mode without XDP.
#[test]
fn bonds_that_cannot_are_refused() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 2, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    let lb = lab.balancer();
    common::sh(lb, "ip link add v0 type veth peer name v1");
    for (mode, why) in [
        ("balance-alb", "of mode balance-alb"),
        ("balance-tlb", "of mode balance-tlb"),
        ("broadcast", "of mode broadcast"),
        ("balance-xor xmit_hash_policy vlan+srcmac", "with xmit_hash_policy vlan+srcmac"),
    ] {
        common::sh(lb, &format!("ip link add bond7 type bond mode {mode} miimon 50"));
        common::sh(lb, "ip link set v0 down");
        common::sh(lb, "ip link set v0 master bond7");
        for name in ["v0", "v1", "bond7"] {
            common::sh(lb, &format!("ip link set {name} up"));
        }
        leads_nowhere(&lab, &balancer, "bond7", &format!("bond {why}"));
        common::sh(lb, "ip link del bond7");
    }
    // Nor does one take a native program.
    common::sh(lb, "ip link add bond7 type bond mode balance-alb miimon 50");
    common::sh(lb, "ip link set bond7 up");
    let file = std::fs::read_to_string(balancer.config()).unwrap();
    let native =
        file.replace("interfaces = [\"eth0\"]", "interfaces = [\"bond7\"]\nmode = \"native\"");
    let wrong = lab.directory().join("native.toml");
    std::fs::write(&wrong, native).unwrap();
    let output = common::weir_in(&lab, &["doctor", "--config", wrong.to_str().unwrap()]);
    let said = format!("{}{}", common::stdout(&output), common::stderr(&output));
    let words = "bond7: a bond of mode balance-alb takes no native XDP program";
    assert!(!output.status.success() && said.contains(words), "{said}");
}

fn by_tunnels(forward: &str, other_family: bool) {
    let _alone = common::alone();
    let receivers = Receivers::of_the_kernel(forward).unwrap();
    let lab = LabSpec { receivers, ..of(Topology::Routed) };
    let service_lines = format!("forward = \"{forward}\"");
    let spec = BalancerSpec { service_lines, other_family, ..BalancerSpec::new(WEIR, BACKENDS) };
    let (lab, balancer) = unbroken(&lab, spec, |_| ());
    let doctor = says(&lab, &balancer, "doctor");
    for to in
        ["accepts connections to 10.77.0.100 port 80", "accepts connections to fd77::100 port 80"]
    {
        assert!(doctor.contains(to), "{to}: {doctor}");
    }
}

#[test]
fn the_kernels_own_ipip_receives() {
    by_tunnels("ipip", false);
}

/// IPv4 in IPv6 and the other way round.
#[test]
fn the_kernels_own_ipip_receives_the_other_family() {
    by_tunnels("ipip", true);
}

#[test]
fn the_kernels_own_gre_receives() {
    by_tunnels("gre", false);
}

#[test]
fn the_kernels_own_fou_receives() {
    by_tunnels("fou", false);
}

#[test]
fn the_kernels_own_gue_receives() {
    by_tunnels("gue", false);
}

/// What a connection carries in each tunnel, beside the kernel's own devices, both ends the kernel's receivers. What is
/// asked of a test is that connections come about: `scripts/kernel-test throughput` measures.
#[test]
fn tunnels_carry_what_the_kernels_do() {
    let _alone = common::alone();
    let forward = "ipip,gre,fou,gue";
    let output = std::process::Command::new(WEIR)
        .args(["bench", "throughput", "--forward", forward, "--rounds", "1", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", common::stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["forward"].as_str().unwrap()).collect();
    assert_eq!(names.join(","), forward);
    for row in rows {
        let figure = |name: &str| row[name].as_f64().unwrap();
        let (ours, theirs) = (figure("weir_gbps"), figure("kernel_gbps"));
        assert!(ours > 0.0 && theirs > 0.0, "{row}");
        println!(
            "guest: {}: {ours:.4} Gbit/s through weir, {theirs:.4} through the kernel's device; \
             {:.2} of it ({:.2}..{:.2})",
            row["forward"].as_str().unwrap(),
            figure("ratio_to_kernel"),
            row["ratio_spread"]["low"].as_f64().unwrap(),
            row["ratio_spread"]["high"].as_f64().unwrap(),
        );
    }
}
