//! Backends on which nothing but `weir agent --balancer` has set anything: the balancer says what they are to be, they
//! follow it as its configuration changes, and whatever was done for it is undone, however the agent ends.

mod common;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use common::agent::Agent;
use common::{WEB4, WEB6, WEIR};
use weir_lab::topology::{Topology, backend4, backend6, front4};
use weir_lab::{Backend, Balancer, BalancerSpec, Lab, LabSpec, NetNs};
use weir_rpc::pki::{self, Request, Role};

const PORT: u16 = 4479;
/// Of the service that comes later.
const MORE: &str = "10.77.0.101";

/// Everything that an agent could change in a namespace, as text.
fn snapshot(netns: &NetNs) -> String {
    let mut text = String::new();
    for line in ["ip -d address show", "ip route show table all", "tc qdisc show"] {
        let mut words = line.split(' ');
        let mut command = netns.command(words.next().unwrap()).unwrap();
        let output = command.args(words).output().unwrap();
        assert!(output.status.success(), "{line}: {}", common::stderr(&output));
        text += &common::stdout(&output);
    }
    for name in ["all/arp_ignore", "all/arp_announce", "eth0/rp_filter", "all/rp_filter"] {
        let path = format!("/proc/sys/net/ipv4/conf/{name}");
        let value = netns.enter(|| fs::read_to_string(&path)).unwrap().unwrap();
        text += &format!("{name} {value}");
    }
    text
}

/// An agent that calls the balancer of the laboratory.
fn start(lab: &Lab, backend: &Backend, log: &str, more: &[&str]) -> Agent {
    let state = lab.directory().join(format!("{}-state", backend.name()));
    let at = |file: String| lab.directory().join("pki").join(file);
    let mut weir = backend.netns().command(WEIR).unwrap();
    weir.args(["agent", "--balancer", &format!("{}:{PORT}", front4(0)), "--state-dir"]);
    weir.arg(state).args(more);
    weir.arg("--certificate").arg(at(format!("{}.pem", backend.name())));
    weir.arg("--key").arg(at(format!("{}.key", backend.name())));
    weir.arg("--ca").arg(at("ca.pem".into()));
    Agent::spawn(weir, &lab.directory().join(format!("{}-{log}.log", backend.name())))
}

fn certificates(lab: &Lab) {
    let directory = &lab.directory().join("pki");
    pki::init(directory, "lab", 30).unwrap();
    let issue = |name: String, role, addresses| {
        let request = Request { name, role, addresses, hosts: Vec::new(), days: 20 };
        pki::issue(directory, directory, &request).unwrap();
    };
    issue("lb".into(), Role::Balancer, vec![IpAddr::V4(front4(0))]);
    for (number, backend) in lab.backends().iter().enumerate() {
        let addresses = vec![backend4(number).into(), backend6(number).into()];
        issue(backend.name().to_owned(), Role::Agent, addresses);
    }
}

fn bare(topology: Topology) -> Arc<Lab> {
    let lab = common::lab_of(LabSpec { topology, backends: 2, bare: true, ..LabSpec::default() });
    certificates(&lab);
    lab
}

fn spec(lab: &Lab, service_lines: &str) -> BalancerSpec {
    let file = |name: &str| lab.directory().join("pki").join(name).display().to_string();
    BalancerSpec {
        service_lines: service_lines.into(),
        balancer_lines: format!(
            "[agents]\nlisten = \"{}:{PORT}\"\ncertificate = {:?}\nkey = {:?}\nca = {:?}\n",
            front4(0),
            file("lb.pem"),
            file("lb.key"),
            file("ca.pem"),
        ),
        ..BalancerSpec::new(WEIR, 2)
    }
}

fn start_all(lab: &Lab, log: &str) -> Vec<Agent> {
    lab.backends().iter().map(|backend| start(lab, backend, log, &[])).collect()
}

fn reload(balancer: &Balancer, text: &str) {
    fs::write(balancer.config(), text).unwrap();
    common::command(balancer, "reload");
}

fn get(lab: &Lab, to: SocketAddr) -> bool {
    let mut curl = lab.clients()[0].command("curl").unwrap();
    let output = curl.args(["-sgS", "--max-time", "5", &format!("http://{to}/")]).output();
    output.expect("running curl").status.success()
}

#[test]
fn one_command_makes_a_backend_ready_and_follows_the_balancer() {
    let _alone = common::alone();
    let lab = bare(Topology::Routed);
    let before: Vec<String> = lab.backends().iter().map(|one| snapshot(one.netns())).collect();
    // They wait for a balancer, and nothing is done meanwhile.
    let mut agents = start_all(&lab, "first");
    for ((agent, backend), before) in agents.iter_mut().zip(lab.backends()).zip(&before) {
        agent.says("nothing is asked for yet");
        assert_eq!(&snapshot(backend.netns()), before);
    }
    let balancer = common::start_spec(&lab, spec(&lab, "forward = \"gue\""));
    for agent in &mut agents {
        agent.says("ready at eth0");
        agent.says("eth0: takes packets out of gue (port 6080)");
    }
    common::reach_all(&lab, WEB4, 2);
    common::reach_all(&lab, WEB6, 2);
    let mut held = common::hold_both(&lab, 40);

    // Another way to forward, under connections.
    let gue = fs::read_to_string(balancer.config()).unwrap();
    let gre = gue.replace("forward = \"gue\"", "forward = \"gre\"");
    assert_ne!(gue, gre);
    reload(&balancer, &gre);
    common::assert_unbroken(&mut held, "by gre", &balancer);
    for agent in &mut agents {
        agent.says("eth0: takes packets out of gre, gue (port 6080)");
        // The other way is taken for a while, and no longer.
        common::eventually("gue is over", || {
            agent.said().lines().any(|line| line.ends_with("takes packets out of gre"))
        });
    }
    common::assert_unbroken(&mut held, "by gre alone", &balancer);

    // A service comes.
    let more = gre.replace(
        "[[service]]\nname = \"web4\"",
        &format!(
            "[[service]]\nname = \"more\"\nvip = \"{MORE}\"\nport = 80\nforward = \"gre\"\n\
         [[service.backend]]\nname = \"b0\"\naddress = \"{}\"\n\n[[service]]\nname = \"web4\"",
            backend4(0)
        ),
    );
    assert_ne!(more, gre, "{gre}");
    reload(&balancer, &more);
    agents[0].says(&format!("{MORE} is on lo"));
    assert!(!agents[1].said().contains(MORE), "{}", agents[1].said());

    // The agents die, and the balancer's process is away when the next ones come: all is as it was said last.
    agents.clear();
    balancer.kill();
    let mut agents = start_all(&lab, "second");
    for agent in &mut agents {
        agent.says("takes over what an agent before this one has left");
        agent.says("ready at eth0");
        assert!(!agent.said().contains("gone from lo"), "{}", agent.said());
    }
    common::assert_unbroken(&mut held, "with other agents and no balancer", &balancer);
    balancer.launch().unwrap();
    // What was added live by the one before is undone by this one.
    reload(&balancer, &gre);
    agents[0].says(&format!("{MORE} is gone from lo"));
    common::assert_unbroken(&mut held, "at the end", &balancer);
    drop(held);

    // One ends, and undoes all, also with what came live; the other is killed, and `--undo` does it.
    let said = agents.remove(0).stop();
    assert!(said.contains("this host is as it was"), "{said}");
    assert_eq!(snapshot(lab.backend(0).netns()), before[0]);
    agents.clear();
    assert_ne!(snapshot(lab.backend(1).netns()), before[1]);
    let state = lab.directory().join(format!("{}-state", lab.backend(1).name()));
    let mut undo = lab.backend(1).netns().command(WEIR).unwrap();
    let undone = undo.args(["agent", "--undo", "--state-dir"]).arg(&state).output().unwrap();
    assert!(undone.status.success(), "{}", common::stderr(&undone));
    assert_eq!(snapshot(lab.backend(1).netns()), before[1]);
    let left = fs::read_dir(&state).unwrap().flatten();
    let left: Vec<String> = left.map(|one| one.file_name().into_string().unwrap()).collect();
    assert_eq!(left, Vec::<String>::new());
    assert!(!get(&lab, WEB4), "it was the agents who made them backends");
}

/// A host on which IPv6 is off serves what has IPv4, and the rest once it is on.
#[test]
fn a_host_without_ipv6_serves_the_other_family() {
    let _alone = common::alone();
    let lab = bare(Topology::Routed);
    let set = |value: &str| {
        let mut sysctl = lab.backend(1).netns().command("sysctl").unwrap();
        let output = sysctl.args(["-qw", &format!("net.ipv6.conf.lo.disable_ipv6={value}")]);
        let output = output.output().unwrap();
        assert!(output.status.success(), "{}", common::stderr(&output));
    };
    set("1");
    let mut agents = start_all(&lab, "one-family");
    let balancer = common::start_spec(&lab, spec(&lab, "forward = \"gue\""));
    agents.iter_mut().for_each(|agent| agent.says("ready at eth0"));
    agents[1].says(&format!("IPv6 is off at lo, so {} is passed over", WEB6.ip()));
    assert!(!agents[1].said().contains(&format!("{} is on lo", WEB6.ip())));
    common::reach_all(&lab, WEB4, 2);
    // What comes later comes all the same.
    let text = fs::read_to_string(balancer.config()).unwrap();
    reload(&balancer, &text.replace("forward = \"gue\"", "forward = \"gre\""));
    agents[1].says("takes packets out of gre");
    common::reach_all(&lab, WEB4, 2);
    set("0");
    agents[1].says(&format!("{} is on lo", WEB6.ip()));
    common::reach_all(&lab, WEB6, 2);
    agents.drain(..).for_each(|agent| drop(agent.stop()));
}

/// Cookies are written where the balancer says so, and for as long; and options go before what it says.
#[test]
fn cookies_are_written_where_the_balancer_says_so() {
    let _alone = common::alone();
    let lab = bare(Topology::L2);
    let before: Vec<String> = lab.backends().iter().map(|one| snapshot(one.netns())).collect();
    let mut agents = start_all(&lab, "cookies");
    let cookies = BalancerSpec {
        method: "cheetah".into(),
        ..spec(&lab, "answers = \"backend\"\nforward = \"l2\"")
    };
    let balancer = common::start_spec(&lab, cookies);
    for agent in &mut agents {
        agent.says("eth0: writes cookies into timestamps");
        agent.says("ready at eth0");
    }
    common::reach_all(&lab, WEB4, 2);
    let mut held = common::hold_both(&lab, 40);
    common::command(&balancer, "backend weight web4 b0 7");
    common::assert_unbroken(&mut held, "with cookies", &balancer);
    assert_eq!(balancer.status().unwrap()["bare_packets"].as_u64(), Some(0));
    drop(held);
    // A backend that is taken away is none any more.
    for service in common::SERVICES {
        common::command(&balancer, &format!("backend remove {service} b1"));
    }
    agents[1].says("writes no more cookies");
    agents[1].says("nothing is asked for any more");
    common::eventually("it is as it was", || snapshot(lab.backend(1).netns()) == before[1]);
    agents.remove(1).stop();
    assert_eq!(snapshot(lab.backend(1).netns()), before[1]);
    agents.remove(0).stop();
    assert_eq!(snapshot(lab.backend(0).netns()), before[0]);
    // It is told, and does only what it is asked for by its options.
    let only = ["--only-tell"];
    let mut teller = start(&lab, lab.backend(0), "only", &only);
    teller.says("connected (weir");
    assert_eq!(snapshot(lab.backend(0).netns()), before[0]);
    teller.stop();
    let mut by_hand = start(&lab, lab.backend(0), "given", &["--forward", "ipip"]);
    by_hand.says("eth0: takes packets out of ipip");
    by_hand.says("ready at eth0");
    by_hand.stop();
    assert_eq!(snapshot(lab.backend(0).netns()), before[0]);
}
