//! Backends that nothing but `weir agent` has made ready: packets reach them in every way that a balancer
//! forwards, and all that was changed on them is undone, however the agent ends.

mod common;

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;

use common::agent::Agent;
use common::{WEB4, WEB6, WEIR, dropped};
use weir_lab::topology::{INTERFACE, Topology, VIP4, VIP6, backend4, client4, client6};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec, NetNs};

/// The most that nginx takes.
const BIG: usize = 1 << 20;

fn bare(topology: Topology, backends: usize) -> Arc<Lab> {
    let big_bytes = BIG as u64;
    let spec = LabSpec { topology, backends, bare: true, ..LabSpec::default() };
    common::lab_of(LabSpec { big_bytes, big_rate: 1 << 30, ..spec })
}

/// Everything that an agent could change in a namespace, as text.
fn snapshot(netns: &NetNs) -> String {
    let mut text = String::new();
    for line in [
        "ip -d address show",
        "ip route show table all",
        "ip -6 route show table all",
        "ip rule show",
        "tc qdisc show",
        "ip neigh show nud permanent",
    ] {
        let mut words = line.split(' ');
        let mut command = netns.command(words.next().unwrap()).unwrap();
        let output = command.args(words).output().unwrap();
        assert!(output.status.success(), "{line}: {}", common::stderr(&output));
        text += &common::stdout(&output);
    }
    let mut settings = netns
        .enter(|| {
            let mut found = Vec::new();
            for directory in ["ipv4", "ipv6", "core"] {
                settings(&Path::new("/proc/sys/net").join(directory), &mut found);
            }
            found
        })
        .unwrap();
    settings.sort();
    text + &settings.join("\n")
}

fn settings(path: &Path, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            settings(&path, found);
        } else if let Ok(value) = fs::read_to_string(&path) {
            found.push(format!("{} {}", path.display(), value.trim()));
        }
    }
}

fn assert_same(netns: &NetNs, before: &str, when: &str) {
    let now = snapshot(netns);
    let gone: Vec<_> = before.lines().filter(|line| !now.lines().any(|one| one == *line)).collect();
    let new: Vec<_> = now.lines().filter(|line| !before.lines().any(|one| one == *line)).collect();
    assert!(gone.is_empty() && new.is_empty(), "{when}: gone {gone:#?}, new {new:#?}");
}

/// Starts an agent, and waits until the backend is ready.
fn start(netns: &NetNs, log: &Path, arguments: &[&str]) -> Agent {
    start_program(Path::new(WEIR), netns, log, arguments)
}

fn start_program(program: &Path, netns: &NetNs, log: &Path, arguments: &[&str]) -> Agent {
    let mut weir = netns.command(program).unwrap();
    weir.arg("agent").args(arguments).arg("--state-dir").arg(log.parent().unwrap());
    let mut agent = Agent::spawn(weir, log);
    agent.says("ready at");
    agent
}

fn run(netns: &NetNs, arguments: &[&str]) -> Output {
    netns.command(WEIR).unwrap().args(arguments).output().expect("running weir")
}

/// What it says if it ends with this status.
fn ends(netns: &NetNs, arguments: &[&str], status: i32) -> String {
    let output = run(netns, arguments);
    let said = format!("{}{}", common::stdout(&output), common::stderr(&output));
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    said
}

fn upload(lab: &Lab, from: IpAddr, to: std::net::SocketAddr) -> String {
    let file = lab.directory().join("upload");
    fs::write(&file, vec![7; BIG]).unwrap();
    let mut curl = lab.clients()[0].command("curl").unwrap();
    curl.args(["-sgS", "-o", "/dev/null", "-w", "%{size_upload} %{http_code}"]);
    curl.args(["--max-time", "120", "-H", "Expect:"]);
    curl.args(["--data-binary", &format!("@{}", file.display())]);
    curl.args(["--interface", &from.to_string(), &format!("http://{to}/")]);
    common::stdout(&curl.output().expect("running curl"))
}

fn download(lab: &Lab, from: IpAddr, to: std::net::SocketAddr) -> String {
    let mut curl = lab.clients()[0].command("curl").unwrap();
    curl.args(["-sgS", "-o", "/dev/null", "-w", "%{size_download}", "--max-time", "120"]);
    curl.args(["--interface", &from.to_string(), &format!("http://{to}/big")]);
    common::stdout(&curl.output().expect("running curl"))
}

fn large_transfers(lab: &Lab, balancer: &Balancer, when: &str) {
    for (from, to) in [(client4(0, 0).into(), WEB4), (client6(0, 0).into(), WEB6)] {
        for _ in 0..3 {
            assert_eq!(upload(lab, from, to), format!("{BIG} 200"), "{when}, to {to}");
            assert_eq!(download(lab, from, to), BIG.to_string(), "{when}, from {to}");
        }
    }
    let status = balancer.status().unwrap();
    for reason in ["too_big", "too_big_told", "ttl_exceeded", "no_tunnel_source"] {
        assert_eq!(dropped(&status, reason), 0, "{when}: {reason}");
    }
}

/// Arguments of the agent for one way to forward.
fn arguments(forward: &str) -> Vec<String> {
    let vips = [VIP4.to_string(), VIP6.to_string()];
    let words =
        ["--interface", INTERFACE, "--vip", &vips[0], "--vip", &vips[1], "--forward", forward];
    let from = ["--from", "10.77.0.2,fd77::2"];
    words
        .iter()
        .chain(if forward == "l2" { &[][..] } else { &from })
        .map(|&one| one.into())
        .collect()
}

fn start_all(lab: &Lab, arguments: &[String]) -> Vec<Agent> {
    run_all(Path::new(WEIR), lab, arguments)
}

fn run_all(program: &Path, lab: &Lab, arguments: &[String]) -> Vec<Agent> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let one = |backend: &weir_lab::Backend| {
        let log = lab.directory().join(format!("{}-ready.log", backend.name()));
        start_program(program, backend.netns(), &log, &arguments)
    };
    lab.backends().iter().map(one).collect()
}

/// Connections, datagrams and large transfers of both families, while agents are killed and come back; after
/// the agents nothing is left.
fn reaches(forward: &str, other_family: bool) {
    let _alone = common::alone();
    let topology = if forward == "l2" { Topology::L2 } else { Topology::Routed };
    let lab = bare(topology, 2);
    let before: Vec<String> = lab.backends().iter().map(|one| snapshot(one.netns())).collect();
    let arguments = arguments(forward);
    let agents = start_all(&lab, &arguments);
    let service_lines = format!("forward = \"{forward}\"");
    let balancer = common::start_spec(
        &lab,
        BalancerSpec { service_lines, other_family, ..BalancerSpec::new(WEIR, 2) },
    );
    common::reach_all(&lab, WEB4, 2);
    common::reach_all(&lab, WEB6, 2);
    large_transfers(&lab, &balancer, forward);
    let mut held = common::hold_both(&lab, 40);
    let traffic = common::mixed_traffic(&lab, 60);
    // Killed, and back: not a packet is missed.
    drop(agents);
    common::assert_unbroken(&mut held, "while the agents are dead", &balancer);
    held.extend(common::hold_both(&lab, 10));
    let agents = start_all(&lab, &arguments);
    for agent in &agents {
        assert!(agent.said().contains("takes over"), "{}", agent.said());
    }
    common::assert_unbroken(&mut held, "with other agents", &balancer);
    common::eventually("enough was answered", || traffic.stats().snapshot().answers > 800);
    common::assert_none_broke(traffic);
    common::assert_unbroken(&mut held, "at the end", &balancer);
    drop(held);
    for ((agent, backend), before) in agents.into_iter().zip(lab.backends()).zip(&before) {
        let said = agent.stop();
        assert!(said.contains("this host is as it was"), "{said}");
        assert_eq!(said.contains("packets taken out of tunnels"), forward != "l2", "{said}");
        assert!(!said.contains("generic"), "veth has XDP: {said}");
        assert_same(backend.netns(), before, forward);
    }
    // It was the agents who made them backends.
    let mut curl = lab.clients()[0].command("curl").unwrap();
    let url = format!("http://{WEB4}/");
    let output = curl.args(["-sgS", "--max-time", "3", &url]).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn frames_reach_a_backend() {
    reaches("l2", false);
}

#[test]
fn ipip_reaches_a_backend() {
    reaches("ipip", false);
}

#[test]
fn gre_reaches_a_backend() {
    reaches("gre", false);
}

#[test]
fn fou_reaches_a_backend() {
    reaches("fou", false);
}

#[test]
fn gue_reaches_a_backend() {
    reaches("gue", false);
}

/// Packets of IPv4 in IPv6, and the other way round.
#[test]
fn families_may_be_mixed() {
    reaches("ipip", true);
    reaches("gue", true);
}

/// The balancer's file says which services a host is a backend of, how packets come, and by which interface; and
/// whose connections carry cookies.
#[test]
fn the_balancers_file_is_enough() {
    let _alone = common::alone();
    let lab = bare(Topology::L2, 2);
    let before: Vec<String> = lab.backends().iter().map(|one| snapshot(one.netns())).collect();
    let spec = BalancerSpec {
        method: "cheetah".into(),
        service_lines: "answers = \"backend\"\nforward = \"gue\"".into(),
        balancer_lines: "[limits]\ntracked_flows = 16".into(),
        ..BalancerSpec::new(WEIR, 2)
    };
    // It waits for its services.
    let web = ["--service", "10.77.0.100:80", "--service", "[fd77::100]:80"];
    let by_hand: Vec<String> =
        arguments("gue").into_iter().chain(web.iter().map(|&one| one.to_owned())).collect();
    let by_hand = start_all(&lab, &by_hand);
    let balancer = common::start_spec(&lab, spec);
    by_hand.into_iter().for_each(|agent| drop(agent.stop()));
    let config = balancer.config().display().to_string();
    let arguments = ["--config".to_owned(), config.clone()];
    let agents = start_all(&lab, &arguments);
    for agent in &agents {
        for words in [
            "10.77.0.100 is on lo",
            "fd77::100 is on lo",
            "eth0: takes packets out of gue (port 6080)",
            "eth0: writes cookies into timestamps",
        ] {
            assert!(agent.said().contains(words), "{words}: {}", agent.said());
        }
    }
    common::reach_all(&lab, WEB4, 2);
    common::reach_all(&lab, WEB6, 2);
    let mut held = common::hold_both(&lab, 60);
    for backend in lab.backends() {
        let said = ends(backend.netns(), &["doctor", "--backend", "--config", &config], 0);
        assert!(said.contains("a server is there for 10.77.0.100"), "{said}");
    }
    // Nobody remembers them but the cookies, and those outlive the agents. The next ones may do what their unit may.
    drop(agents);
    let unit = common::as_unit(&lab, "weir-backend.service");
    let agents = run_all(&unit, &lab, &arguments);
    for agent in &agents {
        assert!(agent.said().contains("goes on with those that were known"), "{}", agent.said());
    }
    balancer.command(&["backend", "weight", "web4", "b0", "7"]).unwrap();
    balancer.command(&["backend", "drain", "web6", "b1"]).unwrap();
    common::assert_unbroken(&mut held, "with other agents", &balancer);
    assert_eq!(balancer.status().unwrap()["bare_packets"].as_u64(), Some(0));
    for ((agent, backend), before) in agents.into_iter().zip(lab.backends()).zip(&before) {
        let said = agent.stop();
        assert!(said.contains("writes no more cookies"), "{said}");
        assert_same(backend.netns(), before, "by the file");
    }
    // A host that is no backend of anything there.
    let said = ends(lab.balancer(), &["agent", "--config", &config], 1);
    assert!(said.contains("no service has a backend with an address of this host"), "{said}");
}

/// What is set already stays as it is; what somebody else changes meanwhile is theirs; whatever ends the agent,
/// all else is as before in the end.
#[test]
fn nothing_is_left_behind() {
    let _alone = common::alone();
    let lab = bare(Topology::L2, 1);
    let netns = lab.backend(0).netns();
    let arguments = arguments("ipip,gre,fou:7000,gue");
    let strings: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let state = ["--state-dir", lab.directory().to_str().unwrap()];
    let once = [&["agent", "--once"], &strings[..], &state].concat();
    let undo = [&["agent", "--undo"], &state[..]].concat();
    let doctor = [&["doctor", "--backend"], &strings[..]].concat();
    common::sysctl(netns, "ipv4/conf/all/arp_announce", "2");
    common::sh(netns, &format!("ip addr add {VIP6}/128 dev lo nodad"));
    let before = snapshot(netns);

    let said = ends(netns, &doctor, 1);
    for words in [
        "10.77.0.100 is not on lo",
        "net.ipv4.conf.all.arp_ignore is 0, and should be 1",
        "net.ipv4.conf.eth0.rp_filter is 1, and should be 2",
        "no program of weir's takes packets out of ipip, gre, fou (port 7000), gue (port 6080)",
        "none runs here",
        "fd77::100 is on lo",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("arp_announce is"), "{said}");
    assert_same(netns, &before, "after the doctor");

    let said = ends(netns, &once, 0);
    for words in [
        "net.ipv4.conf.all.arp_ignore = 1 (was 0)",
        "net.ipv4.conf.eth0.rp_filter = 2 (was 1)",
        "10.77.0.100 is on lo",
        "eth0: takes packets out of ipip, gre, fou (port 7000), gue (port 6080)",
        "segments of at most 1408 bytes over IPv4, 1388 over IPv6",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("arp_announce") && !said.contains("fd77::100 is on"), "{said}");
    ends(netns, &doctor, 0);
    // Once more it has nothing to do but to take over, and forgets nothing of what was before.
    let said = ends(netns, &once, 0);
    let file = said
        .split(&['(', ')'][..])
        .find(|part| part.ends_with(".json"))
        .expect("a file")
        .to_owned();
    assert!(!said.contains("arp_ignore"), "{said}");
    // A file that says nothing is not believed, and stays.
    let good = fs::read(&file).unwrap();
    fs::write(&file, &good[..good.len() / 2]).unwrap();
    for words in [&once, &undo] {
        assert!(ends(netns, words, 1).contains(&file));
    }
    fs::write(&file, good).unwrap();
    ends(netns, &undo, 0);
    assert_same(netns, &before, "after --undo");
    assert!(!Path::new(&file).exists());
    assert!(ends(netns, &undo, 0).contains("nothing to undo"));

    let log = lab.directory().join("agent.log");
    let agent = start(netns, &log, &strings);
    for words in [&once, &undo] {
        let said = ends(netns, words, 1);
        assert!(said.contains("another weir agent (process"), "{said}");
    }
    // Somebody takes away what it did: it puts that back.
    let set = |line: &str| common::sh(netns, line);
    set(&format!("ip addr del {VIP4}/32 dev lo"));
    set("ip link set eth0 xdp off");
    set("tc filter del dev eth0 egress");
    common::sysctl(netns, "ipv4/conf/all/arp_ignore", "0");
    common::eventually("it is put back", || run(netns, &doctor).status.success());
    common::eventually("segment sizes", || {
        !common::stdout(&run(netns, &doctor)).contains("may send larger ones")
    });
    // What somebody sets to another value that will do stays theirs; so do their filters.
    common::sysctl(netns, "ipv4/conf/all/arp_ignore", "8");
    drop(agent);
    // With less to do, the rest of what the killed one did is undone.
    let fewer = ["--interface", INTERFACE, "--vip", "fd77::100", "--forward", "gue"];
    let agent = start(netns, &log, &fewer);
    let said = agent.said();
    assert!(said.contains("takes over") && said.contains("10.77.0.100 is gone from lo"), "{said}");
    assert!(said.contains("arp_ignore has become 8 since, and stays so"), "{said}");
    assert!(said.contains("net.ipv4.conf.eth0.rp_filter = 1, as before"), "{said}");
    agent.stop();
    common::sysctl(netns, "ipv4/conf/all/arp_ignore", "0");
    assert_same(netns, &before, "after another agent");

    // Where lo is down, and with SIGKILL at any moment of the start.
    common::sh(netns, "ip link set lo down");
    common::sh(netns, "ip addr flush dev lo");
    let before = snapshot(netns);
    for milliseconds in [0u64, 1, 2, 4, 8, 16, 32, 64, 128, 256] {
        let mut weir = netns.command(WEIR).unwrap();
        weir.arg("agent").args(&strings).args(state).stdin(Stdio::null()).stderr(Stdio::null());
        let mut weir = weir.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        weir.kill().unwrap();
        weir.wait().unwrap();
        ends(netns, &undo, 0);
        assert_same(netns, &before, &format!("killed after {milliseconds} ms"));
    }
    let agent = start(netns, &log, &strings);
    assert!(agent.said().contains("lo is up"), "{}", agent.said());
    agent.stop();
    assert_same(netns, &before, "with lo down before");
}

/// Whatever does not fit is refused with a sentence, and nothing has changed.
#[test]
fn what_does_not_fit_is_refused() {
    let _alone = common::alone();
    let lab = bare(Topology::L2, 1);
    let netns = lab.backend(0).netns();
    let before = snapshot(netns);
    let vip = ["agent", "--vip", "10.77.0.100"];
    let on = |more: &[&'static str]| [&vip[..], &["--interface", INTERFACE], more].concat();
    for (arguments, status, words) in [
        (vec!["agent"], 2, "--config"),
        (vip.to_vec(), 2, "--interface"),
        ([&vip[..], &["--interface", "eth9"]].concat(), 1, "no interface is called \"eth9\""),
        (on(&["--forward", "nat"]), 2, "need no agent"),
        (on(&["--forward", "gue:0"]), 2, "a port is a number from 1 to 65535"),
        (on(&["--forward", "vxlan"]), 2, "ipip, gre, fou[:PORT] and gue[:PORT]"),
        (on(&["--from", "10.0.0.0/40"]), 2, "192.0.2.1 or 2001:db8::/64"),
        (on(&["--mss", "12"]), 2, "536"),
        (on(&["--undo"]), 2, "cannot be used with"),
        (on(&["--config", "weir.toml"]), 2, "cannot be used with"),
        (vec!["doctor", "--vip", "10.0.0.1"], 2, "--backend"),
        (vec!["doctor"], 1, "/etc/weir/weir.toml"),
        (vec!["agent", "--timestamps-only"], 2, "--service"),
    ] {
        let said = ends(netns, &arguments, status);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    // Another program has the interface: what was set before is undone again.
    weir_testbed::xdp::attach_pass(netns, INTERFACE).unwrap();
    let with_program = snapshot(netns);
    let said = ends(netns, &on(&["--forward", "ipip"]), 1);
    assert!(said.contains("it has an XDP program that is not weir agent's"), "{said}");
    assert_same(netns, &with_program, "with another program");
    let said =
        ends(netns, &[&["doctor", "--backend"], &on(&["--forward", "ipip"])[1..]].concat(), 1);
    assert!(said.contains("has another XDP program"), "{said}");
    common::sh(netns, "ip link set eth0 xdp off");
    // Without IPv6 there is no address of it to be had.
    common::sysctl(netns, "ipv6/conf/eth0/disable_ipv6", "1");
    let said = ends(
        netns,
        &["agent", "--vip", "fd77::100", "--vip", "10.77.0.100", "--interface", INTERFACE],
        1,
    );
    assert!(said.contains("net.ipv6.conf.eth0.disable_ipv6=0"), "{said}");
    common::sysctl(netns, "ipv6/conf/eth0/disable_ipv6", "0");
    let now = snapshot(netns);
    for gone in ["10.77.0.100", "fd77::100", "clsact"] {
        assert!(!now.contains(gone), "{gone}: {now}");
    }
    let setting = "/proc/sys/net/ipv4/conf/all/arp_ignore 0";
    assert!(before.contains(setting) && now.contains(setting));
}

/// A prefix keeps the agent from nothing else in the file: what is to be done for it is said.
#[test]
fn a_prefix_is_said_and_the_rest_is_done() {
    let _alone = common::alone();
    let lab = bare(Topology::L2, 1);
    let netns = lab.backend(0).netns();
    let before = snapshot(netns);
    let file = lab.directory().join("prefixes.toml");
    let (config, state) = (file.to_str().unwrap(), lab.directory().to_str().unwrap());
    let service = |name: &str, vip: &str, forward: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\nvip = {vip}\nport = 80\nforward = \"{forward}\"\n\
             [[service.backend]]\nname = \"b0\"\naddress = \"{}\"\n",
            backend4(0)
        )
    };
    let write = |services: &str| {
        fs::write(&file, format!("[balancer]\ninterfaces = [\"eth0\"]\n{services}")).unwrap();
    };
    let far = service("far", "\"10.79.0.0/24\"", "ipip");
    let wide = service("wide", "[\"10.77.0.101\", \"10.78.0.0/24\"]", "l2");
    write(&(service("web", "\"10.77.0.100\"", "gue") + &wide + &far));
    let once = ["agent", "--once", "--config", config, "--state-dir", state];
    let said = ends(netns, &once, 0);
    for words in [
        "10.77.0.100 is on lo",
        "10.77.0.101 is on lo",
        "eth0: takes packets out of gue (port 6080)",
        "service wide: vip: 10.78.0.0/24 is a prefix",
        "ip route add local 10.79.0.0/24 dev lo, and a tunnel device of the kernel's",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let doctor = ["doctor", "--backend", "--config", config];
    let said = common::stdout(&run(netns, &doctor));
    assert!(said.contains("service wide: 10.78.0.0/24 is not this host's"), "{said}");
    common::sh(netns, "ip route add local 10.78.0.0/24 dev lo");
    let said = common::stdout(&run(netns, &doctor));
    assert!(said.contains("service wide: 10.78.0.0/24 is this host's"), "{said}");
    common::sh(netns, "ip route del local 10.78.0.0/24 dev lo");
    ends(netns, &["agent", "--undo", "--state-dir", state], 0);
    assert_same(netns, &before, "after --undo");
    // Nothing else is there to be done.
    write(&far);
    let said = ends(netns, &once, 1);
    assert!(said.contains("prefixes.toml: service far: vip: 10.79.0.0/24 is a prefix"), "{said}");
    assert!(said.contains("There is nothing else for an agent to do here"), "{said}");
    assert_same(netns, &before, "after a refusal");
}
