//! Backends on which nothing but `weir agent --balancer` has set anything: the balancer says what they are to be, they
//! follow it as its configuration changes, and whatever was done for it is undone, however the agent ends.

mod common;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
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

/// Where the agent of a backend notes what it has changed.
fn state(lab: &Lab, backend: &Backend) -> PathBuf {
    lab.directory().join(format!("{}-state", backend.name()))
}

/// The file of what balancers have asked a backend for.
fn asked(lab: &Lab, backend: &Backend) -> PathBuf {
    let files = fs::read_dir(state(lab, backend)).unwrap().flatten();
    let mut names = files.map(|file| file.path());
    let is_asked = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("asked-") && name.ends_with(".json")
    };
    names.find(is_asked).expect("what was asked for is kept")
}

/// `weir` on a backend, in a mount namespace of its own without a BPF file system, as a container has none.
fn apart(backend: &Backend) -> Command {
    let script = format!("while umount -l /sys/fs/bpf 2>/dev/null; do :; done; exec {WEIR} \"$@\"");
    let mut unshare = backend.netns().command("unshare").unwrap();
    unshare.args(["--mount", "sh", "-c", &script, "weir"]);
    unshare
}

/// An agent that calls the balancer of the laboratory.
fn start(lab: &Lab, backend: &Backend, log: &str, more: &[&str]) -> Agent {
    start_by(backend.netns().command(WEIR).unwrap(), lab, backend, log, more)
}

/// The same by a command of one's own, which takes the arguments of `weir`.
fn start_by(mut weir: Command, lab: &Lab, backend: &Backend, log: &str, more: &[&str]) -> Agent {
    let state = state(lab, backend);
    let at = |file: String| lab.directory().join("pki").join(file);
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

/// The same with one more service, at the first backend alone.
fn with_more(text: &str, forward: &str) -> String {
    let web = "[[service]]\nname = \"web4\"";
    assert!(text.contains(web), "{text}");
    let service = format!(
        "[[service]]\nname = \"more\"\nvip = \"{MORE}\"\nport = 80\nforward = \"{forward}\"\n\
         [[service.backend]]\nname = \"b0\"\naddress = \"{}\"\n\n{web}",
        backend4(0)
    );
    text.replace(web, &service)
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
    // What it says to others of itself follows what it does.
    let second = start(&lab, lab.backend(0), "beside", &[]);
    common::eventually("another one is refused", || {
        let said = second.said();
        said.contains("another weir agent (process") && said.contains("on eth0. One has")
    });
    drop(second);
    let mut doctor = lab.backend(0).netns().command(WEIR).unwrap();
    doctor.args(["doctor", "--backend", "--state-dir"]).arg(state(&lab, lab.backend(0)));
    let found = common::stdout(&doctor.output().unwrap());
    assert!(found.contains("looks after eth0"), "{found}");
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
    let more = with_more(&gre, "gre");
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

/// What was asked for cannot be read, and the balancer is away: all that the agent before has made ready stays, until
/// the balancer speaks, or the agent is told to end.
#[test]
fn nothing_is_undone_while_nobody_knows_what_was_asked_for() {
    let _alone = common::alone();
    let lab = bare(Topology::Routed);
    let shots = || lab.backends().iter().map(|one| snapshot(one.netns())).collect::<Vec<_>>();
    let before = shots();
    let mut agents = start_all(&lab, "whole");
    let balancer = common::start_spec(&lab, spec(&lab, "forward = \"gue\""));
    agents.iter_mut().for_each(|agent| agent.says("ready at eth0"));
    common::reach_all(&lab, WEB4, 2);
    let mut held = common::hold_both(&lab, 20);
    agents.clear();
    balancer.kill();
    let ready = shots();
    // One file is cut, the other one is gone.
    let file = asked(&lab, lab.backend(0));
    let text = fs::read(&file).unwrap();
    fs::write(&file, &text[..60]).unwrap();
    fs::remove_file(asked(&lab, lab.backend(1))).unwrap();
    let mut agents = start_all(&lab, "damaged");
    agents[0].says("what balancers have asked for cannot be read");
    agents[1].says("there is none of this boot that says what was asked for");
    for agent in &mut agents {
        agent.says("stays until a balancer says what it asks for");
        agent.says("makes ready what balancers say");
        assert!(!agent.said().contains("gone from lo"), "{}", agent.said());
    }
    assert_eq!(shots(), ready);
    common::assert_unbroken(&mut held, "without a balancer", &balancer);

    // What it says then is what is there, and is kept for the next agent.
    balancer.launch().unwrap();
    agents.iter_mut().for_each(|agent| agent.says("ready at eth0"));
    common::eventually("it is kept", || fs::read(&file).is_ok_and(|now| now == text));
    for agent in &agents {
        assert!(!agent.said().contains("gone from lo"), "{}", agent.said());
    }
    common::assert_unbroken(&mut held, "with the balancer again", &balancer);
    drop(held);

    // A balancer that ends is no other agent.
    let tries = |agent: &Agent| agent.said().matches("; tried again").count();
    let tried: Vec<usize> = agents.iter().map(tries).collect();
    assert!(balancer.stop(common::PATIENCE).is_some(), "it ends");
    common::eventually("they call again", || {
        agents.iter().zip(&tried).all(|(agent, tried)| tries(agent) > *tried)
    });
    for agent in &agents {
        assert!(!agent.said().contains("another agent"), "{}", agent.said());
    }

    // Who is told to end undoes all of it, also what nobody has asked this agent for.
    agents.clear();
    fs::write(&file, "").unwrap();
    let mut agent = start(&lab, lab.backend(0), "ended", &[]);
    agent.says("stays until a balancer says what it asks for");
    agent.says("makes ready what balancers say");
    let said = agent.stop();
    assert!(said.contains("this host is as it was"), "{said}");
    assert_eq!(snapshot(lab.backend(0).netns()), before[0]);
    assert!(!file.exists(), "nothing is asked for");
}

/// Without a BPF file system no cookies are written: services with them wait for one, and all others do not.
#[test]
fn services_without_cookies_need_no_bpf_file_system() {
    let _alone = common::alone();
    let lab = bare(Topology::L2);
    let backend = lab.backend(0);
    let before = snapshot(backend.netns());
    let cookies = BalancerSpec {
        method: "cheetah".into(),
        ..spec(&lab, "answers = \"backend\"\nforward = \"l2\"")
    };
    // A balancer of a laboratory has started when a client reaches a backend.
    let agents = start_all(&lab, "first");
    let balancer = common::start_spec(&lab, cookies);
    agents.into_iter().for_each(|agent| drop(agent.stop()));
    let text = fs::read_to_string(balancer.config()).unwrap();
    let more = with_more(&text, "l2");
    reload(&balancer, &more);

    let mut agent = start_by(apart(backend), &lab, backend, "apart", &[]);
    agent.says(&format!("{MORE} is on lo"));
    agent.says("cookies in timestamps (what is of no use without waits");
    agent.says("no BPF file system is mounted at /sys/fs/bpf");
    let waits = format!("{} is on lo", WEB4.ip());
    assert!(!agent.said().contains(&waits), "{}", agent.said());
    let said = agent.stop();
    assert!(said.contains("this host is as it was"), "{said}");
    assert_eq!(snapshot(backend.netns()), before);

    // One that was killed leaves what can be undone there.
    let mut agent = start_by(apart(backend), &lab, backend, "killed", &[]);
    agent.says(&format!("{MORE} is on lo"));
    drop(agent);
    let mut undo = apart(backend);
    undo.args(["agent", "--undo", "--state-dir"]).arg(state(&lab, backend));
    let undone = undo.output().unwrap();
    assert!(undone.status.success(), "{}", common::stderr(&undone));
    assert_eq!(snapshot(backend.netns()), before);

    // With one all of it is made ready.
    let mut agent = start(&lab, backend, "whole", &[]);
    agent.says("eth0: writes cookies into timestamps");
    agent.says(&waits);
    agent.says("ready at eth0");
    agent.stop();
    assert_eq!(snapshot(backend.netns()), before);
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
    // The doctor goes by what the agent was told, with the options that it was started with.
    let doctor = |number: usize, shown: usize, more: &[&str]| {
        let (backend, at) =
            (lab.backend(number), |file: String| lab.directory().join("pki").join(file));
        let certificate = at(format!("{}.pem", lab.backend(shown).name()));
        let mut weir = backend.netns().command(WEIR).unwrap();
        weir.args(["doctor", "--backend", "--balancer", &format!("{}:{PORT}", front4(0))])
            .args(more);
        weir.arg("--certificate").arg(certificate);
        let output = weir.arg("--ca").arg(at("ca.pem".into())).output().unwrap();
        (output.status.code(), common::stdout(&output))
    };
    let kept = state(&lab, lab.backend(1)).display().to_string();
    let (status, said) = doctor(1, 1, &["--state-dir", &kept]);
    assert_eq!(status, Some(0), "{said}");
    for words in [
        "balancers ask this host for 2 addresses",
        "is an agent's, and holds",
        "eth0: cookies are written",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // The certificate of another host is good, and no use here: the agent would not show it.
    let (status, said) = doctor(1, 0, &["--state-dir", &kept]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("none is an address of this host: the agent calls no"), "{said}");
    let nowhere = lab.directory().join("nowhere").display().to_string();
    let (status, said) = doctor(1, 1, &["--state-dir", &nowhere]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("there is none of this boot that says what was asked for"), "{said}");
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
