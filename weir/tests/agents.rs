//! Backends that say what they hold: agents in their namespaces, a balancer that goes by what they say
//! (`states = "agents"`), and real clients. Agents and balancer are killed, cut off and started again while the
//! pool changes; no connection breaks, a flood of SYNs makes no state, and nobody without a certificate says
//! anything.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use common::{Held, PATIENCE, WEB4, WEIR};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use weir_lab::topology::{VIP4, backend4, backend6, client4, front4};
use weir_lab::{Balancer, BalancerSpec, Flood, FloodKind, Lab, LabSpec, NetNs};
use weir_rpc::pki::{self, Request, Role};

const PORT: u16 = 4479;
const METRICS: u16 = 9469;
const BACKENDS: usize = 5;
/// Those of the pool at first.
const POOL: usize = 4;

/// A process `weir agent`. Dropping it kills it with SIGKILL, as a crash does.
struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    fn start(netns: &NetNs, log: &Path, certificate: &Path, ca: &Path, more: &[&str]) -> Self {
        let file = File::options().create(true).append(true).open(log).unwrap();
        let mut weir = netns.command(WEIR).unwrap();
        weir.args(["agent", "--only-tell", "--balancer", &format!("{}:{PORT}", front4(0))]);
        weir.arg("--certificate").arg(certificate.with_extension("pem"));
        weir.arg("--key").arg(certificate.with_extension("key"));
        weir.arg("--ca").arg(ca).args(more);
        weir.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Self { child: weir.spawn().unwrap(), log: log.to_owned() }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn says(&self, words: &str) {
        let mut said = String::new();
        common::eventually(words, || {
            said = self.said();
            said.contains(words)
        });
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A lab whose backends have agents.
struct World {
    // Before the lab: its namespaces are theirs.
    agents: Vec<Option<Agent>>,
    balancer: Balancer,
    lab: Arc<Lab>,
}

fn directory(lab: &Lab) -> PathBuf {
    lab.directory().join("pki")
}

fn certificates(lab: &Lab) {
    let directory = &directory(lab);
    pki::init(directory, "lab", 30).unwrap();
    let issue = |name: String, role, addresses| {
        let request = Request { name, role, addresses, hosts: Vec::new(), days: 20 };
        pki::issue(directory, directory, &request).unwrap();
    };
    issue("lb".into(), Role::Balancer, vec![IpAddr::V4(front4(0))]);
    for number in 0..BACKENDS {
        let addresses = vec![backend4(number).into(), backend6(number).into()];
        issue(format!("b{number}"), Role::Agent, addresses);
    }
}

fn spec(lab: &Lab, method: &str, limits: &str) -> BalancerSpec {
    let file = |name: &str| directory(lab).join(name).display().to_string();
    BalancerSpec {
        method: method.into(),
        tcp_lines: "states = \"agents\"".into(),
        balancer_lines: format!(
            "metrics = \"{0}:{METRICS}\"\n[agents]\nlisten = \"{0}:{PORT}\"\ncertificate = {1:?}\nkey = {2:?}\n\
             ca = {3:?}\nlearn = \"60s\"\n[limits]\n{limits}\n",
            front4(0),
            file("lb.pem"),
            file("lb.key"),
            file("ca.pem"),
        ),
        check_interval: Duration::from_secs(3),
        ..BalancerSpec::new(WEIR, POOL)
    }
}

impl World {
    fn new(limits: &str) -> Self {
        Self::with("concury", limits)
    }

    fn with(method: &str, limits: &str) -> Self {
        Self::of(|lab| spec(lab, method, limits))
    }

    fn of(spec: impl FnOnce(&Lab) -> BalancerSpec) -> Self {
        let lab = common::lab_of(LabSpec { backends: BACKENDS, ..LabSpec::default() });
        certificates(&lab);
        // Before there is a balancer: it is waited for.
        let agents = (0..BACKENDS).map(|number| Some(agent(&lab, number))).collect();
        let balancer = common::start_spec(&lab, spec(&lab));
        let world = Self { agents, balancer, lab };
        world.told();
        world
    }

    fn restart_agent(&mut self, number: usize) {
        self.agents[number] = Some(agent(&self.lab, number));
    }

    fn status(&self) -> Value {
        self.balancer.status().unwrap()
    }

    /// Waits until all backends are told of.
    fn told(&self) {
        common::eventually("all backends are told of", || {
            let status = self.status();
            ["web4", "web6"].iter().all(|name| {
                let backends = common::service(&status, name)["backends"].as_array().unwrap();
                backends.iter().all(|backend| backend["told_of"] == true)
            })
        });
    }

    fn states(&self) -> u64 {
        let status = self.status();
        let of = |name: &str| common::service(&status, name)["states"].as_u64().unwrap();
        of("web4") + of("web6")
    }

    /// Waits until those that are held are all that is known.
    fn knows_exactly(&self, held: u64) {
        let mut known = 0;
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            known = self.states();
            if known == held {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("{known} states, and {held} connections: {:#}", self.status()["agents"]);
    }

    /// What is served for Prometheus.
    fn served(&self) -> String {
        let served = || {
            let address = SocketAddr::from((front4(0), METRICS));
            let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text).map(|_| text)
        };
        self.lab.balancer().enter(served).unwrap().unwrap()
    }

    /// Connections of an agent to the balancer are lost, or come through again.
    fn cut(&self, number: usize, cut: bool) {
        let what = if cut { "add" } else { "del" };
        let to = front4(0);
        let rule = format!("ip rule {what} to {to} ipproto tcp dport {PORT} priority 1 blackhole");
        common::sh(self.lab.backend(number).netns(), &rule);
    }
}

fn agent(lab: &Lab, number: usize) -> Agent {
    let directory = directory(lab);
    let log = lab.directory().join(format!("agent{number}.log"));
    let certificate = directory.join(format!("b{number}"));
    let netns = lab.backend(number).netns();
    Agent::start(netns, &log, &certificate, &directory.join("ca.pem"), &["--load", "cpu"])
}

#[test]
fn nothing_breaks_whoever_is_killed_or_cut_off() {
    events("concury", 24);
}

#[test]
fn nothing_breaks_with_residue_either() {
    events("residue", 16);
}

fn events(method: &str, rounds: usize) {
    let _alone = common::alone();
    let mut random = StdRng::seed_from_u64(common::seed());
    let mut world = World::with(method, "");
    let lab = Arc::clone(&world.lab);
    let traffic = common::mixed_traffic(&lab, 60);
    let mut held: Vec<Held> = common::hold_both(&lab, 60);
    let mut draining = [false; POOL];
    let mut cut = None;
    for round in 0..rounds {
        let number = random.random_range(0..POOL);
        let what = match round % 8 {
            0 | 4 => {
                world.agents[number] = None;
                format!("agent {number} killed")
            }
            1 | 5 => {
                let missing: Vec<usize> =
                    (0..BACKENDS).filter(|one| world.agents[*one].is_none()).collect();
                missing.iter().for_each(|one| world.restart_agent(*one));
                format!("agents {missing:?} started")
            }
            2 => {
                world.cut(number, true);
                cut = Some(number);
                format!("agent {number} cut off")
            }
            3 => {
                // Sometimes for longer than it is waited for.
                thread::sleep(Duration::from_millis(random.random_range(0..9_000)));
                let number = cut.take().expect("one is cut off");
                world.cut(number, false);
                format!("agent {number} reaches the balancer again")
            }
            6 => {
                world.balancer.kill();
                held.extend(common::hold_both(&lab, 6));
                world.balancer.launch().unwrap();
                "balancer killed".to_owned()
            }
            _ => "nothing".to_owned(),
        };
        println!("{what}");
        draining[number] ^= true;
        if draining.iter().all(|one| *one) {
            draining[number] = false;
        }
        let undo = if draining[number] { "" } else { " --undo" };
        let weight = random.random_range(1..5);
        for service in ["web4", "web6"] {
            common::command(&world.balancer, &format!("backend drain {service} b{number}{undo}"));
            common::command(
                &world.balancer,
                &format!("backend weight {service} b{number} {weight}"),
            );
        }
        held.extend(common::hold_both(&lab, 6));
        common::assert_unbroken(&mut held, &what, &world.balancer);
    }
    common::assert_none_broke(traffic);
    world.told();
    world.knows_exactly(held.len() as u64);
    let status = world.status();
    assert_eq!(status["agents_refused"], 0, "{:#}", status["agents"]);
    // They end, and nothing is left at once: no timeout has passed.
    drop(held);
    world.knows_exactly(0);
    let agents = status["agents"].as_array().unwrap();
    assert_eq!(agents.len(), BACKENDS);
    for agent in agents {
        assert_eq!((&agent["told"], &agent["lost"]), (&true.into(), &0.into()), "{agent:#}");
        assert!(agent["lag_ms"].as_f64().is_some(), "{agent:#}");
    }
    let web4 = common::service(&status, "web4");
    assert!(common::backend(web4, "b0")["told_load"].as_f64().is_some());
}

/// A balancer that knows nothing of the time before asks, and takes packets when it knows.
#[test]
fn a_new_balancer_learns_what_there_is() {
    let _alone = common::alone();
    let world = World::new("");
    let lab = &world.lab;
    let mut held = common::hold_both(lab, 200);
    // So that a new table would lead elsewhere than to where they live.
    common::command(&world.balancer, "backend drain web4 b0");
    held.extend(common::hold_both(lab, 100));
    let name = world.balancer.pins();
    let name = name.file_name().unwrap().to_str().unwrap().to_owned();
    for round in 0..3 {
        world.balancer.kill();
        assert!(common::weir_in(lab, &["unload", "--name", &name]).status.success());
        let run_dir = world.balancer.socket();
        fs::remove_dir_all(run_dir.parent().unwrap()).unwrap();
        world.balancer.launch().unwrap();
        lab.await_service(PATIENCE).unwrap();
        common::assert_unbroken(&mut held, &format!("new, {round}"), &world.balancer);
        held.extend(common::hold_both(lab, 20));
    }
    world.knows_exactly(held.len() as u64);
    assert_eq!(world.status()["resumed"], false);
    // What is seen of agents from outside.
    // The agent of a backend that is in no pool has not been waited for.
    let mut served = String::new();
    common::eventually("all agents are shown", || {
        served = world.served();
        (0..BACKENDS).all(|number| {
            let line = |name: &str| format!("weir_agent_{name}{{agent=\"b{number}\"}} 1.0\n");
            served.contains(&line("connected"))
                && (number >= POOL || served.contains(&line("told")))
        })
    });
    for name in ["lag_seconds", "connections", "events_total", "certificate_ends_timestamp_seconds"]
    {
        assert!(
            served.contains(&format!("weir_agent_{name}{{agent=\"b0\"}} ")),
            "{name}: {served}"
        );
    }
}

/// Nobody is told to send packets to a balancer that takes none yet.
#[test]
fn who_takes_no_packets_yet_is_not_announced() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: BACKENDS, ..LabSpec::default() });
    certificates(&lab);
    let mut spec = spec(&lab, "residue", "");
    spec.balancer_lines += "[announce]\nspeaker = \"none\"\nlearn_delay = \"0s\"\n";
    let balancer = Balancer::start_alone(&lab, spec).unwrap();
    let checked = || common::try_command(&balancer, &format!("announce check {VIP4}"));
    common::eventually("it says why", || {
        common::command(&balancer, "announce").contains("no packets are taken yet")
    });
    assert!(checked().is_err());
    let _agents: Vec<Agent> = (0..BACKENDS).map(|number| agent(&lab, number)).collect();
    common::eventually("it takes packets, and is announced", || checked().is_ok());
    let warnings = balancer.status().unwrap()["warnings"].to_string();
    assert!(!warnings.contains("no packets are taken yet"), "{warnings}");
}

/// A certificate that is gone keeps no start from looking after packets that are forwarded: it is said, and agents are
/// listened for when it is back. A first start refuses.
#[test]
fn without_its_certificate_a_balancer_goes_on() {
    let _alone = common::alone();
    let world = World::new("");
    let mut held = common::hold_both(&world.lab, 60);
    let certificate = directory(&world.lab).join("lb.pem");
    let aside = certificate.with_extension("aside");
    world.balancer.kill();
    fs::rename(&certificate, &aside).unwrap();
    world.balancer.launch().unwrap();
    common::eventually("it is said", || {
        let warnings = world.status()["warnings"].to_string();
        warnings.contains("agents: ") && warnings.contains("lb.pem")
    });
    common::assert_unbroken(&mut held, "without a certificate", &world.balancer);
    fs::rename(&aside, &certificate).unwrap();
    world.told();
    common::eventually("it is said no more", || {
        !world.status()["warnings"].to_string().contains("lb.pem")
    });
    let name = world.balancer.pins();
    let name = name.file_name().unwrap().to_str().unwrap();
    world.balancer.kill();
    assert!(common::weir_in(&world.lab, &["unload", "--name", name]).status.success());
    fs::rename(&certificate, &aside).unwrap();
    assert!(world.balancer.launch().is_err());
}

/// What agents cannot be shown, or do not take, is told by whoever looks, and not only by the start that has nobody any
/// more who listens.
#[test]
fn certificates_of_no_use_are_told_by_all_who_look() {
    let _alone = common::alone();
    let world = World::new("");
    let config = world.balancer.config().to_str().unwrap();
    let looks = |verb: &[&str]| {
        let output = common::weir_in(&world.lab, &[verb, &["--config", config]].concat());
        (output.status.code(), common::stdout(&output))
    };
    let (_, said) = looks(&["doctor", "--no-probe"]);
    assert!(said.contains("lb.pem can be shown to agents"), "{said}");
    let (_, said) = looks(&["check"]);
    assert!(!said.contains("agents: "), "{said}");
    let directory = directory(&world.lab);
    for (name, days) in [("other", 20), ("late", 0)] {
        let addresses = vec![IpAddr::V4(front4(0))];
        let (name, hosts) = (name.into(), Vec::new());
        let request = Request { name, role: Role::Balancer, addresses, hosts, days };
        pki::issue(&directory, &directory, &request).unwrap();
    }
    let put = |from: &str, to: &str| fs::copy(directory.join(from), directory.join(to)).unwrap();
    let tells = |words: &str, found: &str| {
        let said = world.balancer.command(&["reload"]).unwrap();
        assert!(said.contains("agents: ") && said.contains(words), "{said}");
        common::eventually("the status warns", || {
            world.status()["warnings"].to_string().contains("certificate")
                || world.status()["warnings"].to_string().contains("agents: ")
        });
        let (status, said) = looks(&["doctor", "--no-probe"]);
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains(found) && said.contains(words), "{said}");
        let (status, said) = looks(&["check"]);
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains("warning: agents: ") && said.contains(words), "{said}");
    };
    put("other.key", "lb.key");
    tells("lb.key: ", "certificate agents cannot be shown it: ");
    put("late.key", "lb.key");
    put("late.pem", "lb.pem");
    tells("lb.pem) has ended", "certificate no agent calls: ");
    put("other.key", "lb.key");
    put("other.pem", "lb.pem");
    let said = world.balancer.command(&["reload"]).unwrap();
    assert!(!said.contains("agents: "), "{said}");
}

/// Where agents are listened for is what the file says now, and not what it said before.
#[test]
fn a_reload_listens_elsewhere_at_once() {
    let _alone = common::alone();
    let world = World::new("");
    let file = world.balancer.config().to_owned();
    let text = fs::read_to_string(&file).unwrap();
    let listens = |port: u16| {
        let address = SocketAddr::from((front4(0), port));
        let tried = world.lab.balancer().enter(|| TcpStream::connect_timeout(&address, PATIENCE));
        tried.unwrap().is_ok()
    };
    assert!(listens(PORT) && !listens(PORT + 1));
    let port = |port: u16| format!("listen = \"{}:{port}\"", front4(0));
    fs::write(&file, text.replace(&port(PORT), &port(PORT + 1))).unwrap();
    common::command(&world.balancer, "reload");
    common::eventually("it listens elsewhere", || listens(PORT + 1) && !listens(PORT));
    fs::write(&file, &text).unwrap();
    common::command(&world.balancer, "reload");
    common::eventually("it listens where it did", || listens(PORT) && !listens(PORT + 1));
    world.told();
}

#[test]
fn a_flood_of_syns_makes_no_state_and_breaks_nothing() {
    let _alone = common::alone();
    let seed = common::seed();
    let world = World::new("half_open_flows = 400000");
    let lab = &world.lab;
    let mut held = common::hold(lab, WEB4, 300);
    world.knows_exactly(300);
    let (sent, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let pause = Duration::from_millis(2);
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut flood = Flood::new(lab, FloodKind::Syn, WEB4, seed, pause).unwrap();
            let count = |more| {
                sent.fetch_add(more, Relaxed);
            };
            flood.run(&stop, count).unwrap();
        });
        let stop = Stop(&stop);
        let (mut round, mut most) = (0, 0);
        let started = Instant::now();
        while round < 6 || sent.load(Relaxed) < 200_000 {
            let (number, verb) =
                (round / 2 % POOL, if round % 2 == 0 { "drain" } else { "undrain" });
            common::command(&world.balancer, &format!("backend {verb} web4 b{number}"));
            held.extend(common::hold(lab, WEB4, 10));
            common::assert_unbroken(&mut held, "in a flood", &world.balancer);
            let status = world.status();
            let web4 = common::service(&status, "web4");
            assert_eq!(web4["half_open"], 0, "{web4:#}");
            most = most.max(web4["states"].as_u64().unwrap());
            round += 1;
            assert!(started.elapsed() < 3 * PATIENCE, "{} SYNs", sent.load(Relaxed));
        }
        drop(stop);
        flood.join().unwrap();
        println!("{} SYNs, {round} changes, at most {most} states", sent.load(Relaxed));
        assert!(most <= held.len() as u64, "{most} states, {} connections", held.len());
    });
    world.knows_exactly(held.len() as u64);
    common::assert_unbroken(&mut held, "after a flood", &world.balancer);
}

/// Where agents tell, a place of a prefix is free when they say that a connection has ended: at once, and not only
/// when connections are counted, every ten seconds. Of one that its server has ended no packet says so, and of one that
/// its client has ended the packet does not count.
#[test]
fn an_end_that_an_agent_tells_makes_room_at_once() {
    const MOST: usize = 4;
    const ENDS: usize = 10;
    // Less than a count for each.
    const LIMIT: Duration = Duration::from_secs(8 * ENDS as u64);
    let _alone = common::alone();
    let world = World::of(|lab| {
        let mut spec = spec(lab, "concury", "");
        spec.tcp_lines +=
            &format!("\nnew_flows = {{ source_connections = {MOST}, ipv4_prefix = 24 }}");
        spec
    });
    let client = &world.lab.clients()[0];
    let from = SocketAddr::from((client4(0, 0), 0));
    let hold = || client.enter(|| Held::open(from, WEB4)).unwrap().expect("a connection");
    let says = |words: &str| {
        let line = format!("explain tcp {}:9 {WEB4}", from.ip());
        common::eventually(words, || common::command(&world.balancer, &line).contains(words));
    };
    let full = "dropped as source_connection_cap";
    let mut held: Vec<Held> = (0..MOST).map(|_| hold()).collect();
    says(full);
    let begun = client.enter(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.bind(&from.into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        assert!(socket.connect(&WEB4.into()).is_err(), "it cannot be open yet");
        socket
    });
    common::eventually("one more is dropped", || {
        common::dropped(&world.status(), "source_connection_cap") > 0
    });
    assert!(begun.unwrap().peer_addr().is_err(), "one more is open");

    let started = Instant::now();
    // Their ends here are open still.
    let mut ended = Vec::new();
    for round in 0..ENDS {
        let mut one = held.remove(0);
        if round % 2 == 0 {
            one.ended_by_server().unwrap();
            ended.push(one);
        } else {
            drop(one);
        }
        says("taken; its /24 may hold 1 connections more");
        held.push(hold());
        says(full);
    }
    let took = started.elapsed();
    assert!(took < LIMIT, "{ENDS} ends made room in {took:?}");
    common::assert_unbroken(&mut held, "in the place of those that have ended", &world.balancer);
    // They have left nothing behind: as many may begin as before.
    drop(ended);
    drop(held);
    says(&format!("taken; its /24 may hold {MOST} connections more"));
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn nobody_without_a_certificate_is_heard() {
    let _alone = common::alone();
    let mut world = World::new("");
    // Only one agent runs in a network namespace; this one's backend is not in the pool.
    let last = BACKENDS - 1;
    world.agents[last] = None;
    let lab = &world.lab;
    let away = || world.status()["agents_turned_away"].as_u64().unwrap();
    let netns = lab.backend(0).netns();
    let (own, ca) = (directory(lab), directory(lab).join("ca.pem"));
    let before = away();

    // Of another authority of the same name.
    let other = lab.directory().join("other");
    pki::init(&other, "lab", 30).unwrap();
    let request = |name: &str, days| Request {
        name: name.into(),
        role: Role::Agent,
        addresses: vec![backend4(last).into()],
        hosts: Vec::new(),
        days,
    };
    pki::issue(&other, &other, &request("stranger", 20)).unwrap();
    let log = lab.directory().join("stranger.log");
    let host = lab.backend(last).netns();
    let stranger = Agent::start(host, &log, &other.join("stranger"), &ca, &[]);
    // Both sides say what it is.
    stranger.says(&format!("stranger.pem is not signed by an authority in {}", ca.display()));
    common::eventually("a stranger is turned away", || away() > before);
    stranger.says("the other side has refused the certificate that it was shown");
    let why = format!("its certificate is not signed by an authority in {}", ca.display());
    common::eventually("the balancer says so", || common::log(&world.balancer).contains(&why));
    drop(stranger);

    // A name that nobody has (RFC 6761).
    let nobody = ["--balancer", "nobody.invalid"];
    let lost = Agent::start(host, &lab.directory().join("lost.log"), &own.join("b4"), &ca, &nobody);
    lost.says("balancer nobody.invalid:4479: the name nobody.invalid ");
    drop(lost);

    // Ended.
    pki::issue(&own, &own, &request("late", 0)).unwrap();
    thread::sleep(Duration::from_millis(1100));
    let before = away();
    let late = Agent::start(host, &lab.directory().join("late.log"), &own.join("late"), &ca, &[]);
    late.says("has ended: nobody takes it");
    // And why no session comes about.
    late.says(&format!("; {} has ended", own.join("late.pem").display()));
    common::eventually("who is late is turned away", || away() > before);
    drop(late);

    // A balancer's certificate is none of an agent, and says so before anything is sent.
    let wrong = Agent::start(host, &lab.directory().join("lb.log"), &own.join("lb"), &ca, &[]);
    wrong.says("it is not for agents");
    drop(wrong);

    // An agent takes no balancer of another authority.
    let log = lab.directory().join("careful.log");
    let careful = Agent::start(host, &log, &other.join("stranger"), &other.join("ca.pem"), &[]);
    careful.says("tried again");
    drop(careful);

    // Without TLS, or with none that comes to an end.
    let before = away();
    let talk = || {
        let mut stream = TcpStream::connect((front4(0), PORT)).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    };
    netns.enter(talk).unwrap();
    common::eventually("who speaks no TLS is turned away", || away() > before);

    // Many of them fill no log, and all are counted.
    const MANY: u64 = 400;
    let said = "an agent, or another balancer, was refused";
    let refusals = || common::log(&world.balancer).matches(said).count() as u64;
    let (before, lines, begun) = (away(), refusals(), Instant::now());
    netns.enter(|| (0..MANY).for_each(|_| talk())).unwrap();
    common::eventually("all are counted", || away() >= before + MANY);
    let seconds = begun.elapsed().as_secs() + 2;
    assert!(refusals() - lines <= seconds, "{} lines in {seconds} s", refusals() - lines);

    // Those who may still do, and have not been disturbed.
    world.told();
    let mut held = common::hold_both(lab, 40);
    world.knows_exactly(40);
    common::assert_unbroken(&mut held, "in the end", &world.balancer);
    assert_eq!(world.status()["agents_refused"], 0);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("weir.toml");
    let text = |agents: &str, service: &str| {
        format!(
            "[balancer]\ninterfaces = [\"lo\"]\n{agents}\n[[service]]\nname = \"web\"\nvip = \
             \"10.0.0.1\"\nport = 80\n{service}\n[[service.backend]]\nname = \"b0\"\naddress = \
             \"10.0.0.2\"\n"
        )
    };
    let check = |agents: &str, service: &str| {
        fs::write(&file, text(agents, service)).unwrap();
        let output = common::weir(&["check", "--config", file.to_str().unwrap()]);
        (output.status.success(), format!("{}{}", common::stdout(&output), common::stderr(&output)))
    };
    let good = "[agents]\nlisten = \"10.0.0.9:4479\"\ncertificate = \"/a.pem\"\nkey = \"/a.key\"\nca = \"/ca.pem\"";
    let states = "states = \"agents\"";
    let (fine, said) = check(good, states);
    assert!(fine, "{said}");
    let (fine, said) = check(good, "states = \"agents\"\nmethod = \"residue\"");
    assert!(fine, "{said}");
    for (agents, service, words) in [
        ("", states, "agents are listened for nowhere"),
        (good, "states = \"agents\"\nmethod = \"tracked\"", "tracked goes by what passes"),
        (good, "states = \"agents\"\nmethod = \"jet\"", "that know every connection; jet"),
        (good, "states = \"agents\"\nprotocol = \"udp\"", "no connections of UDP"),
        (good, "states = \"agents\"\naffinity = \"client\"", "clients are remembered"),
        (good, "states = \"guessed\"", "states"),
        ("[agents]\nlisten = \"here\"", "", "not an address with a port"),
        ("[agents]\nlisten = \"10.0.0.9:4479\"", "", "certificate: is missing"),
        (&good.replace("/a.pem", "a.pem"), "", "not an absolute path"),
        (&format!("{good}\nlearn = \"1h\""), "", "learn"),
        (&format!("{good}\nport = 1"), "", "unknown field"),
    ] {
        let (fine, said) = check(agents, service);
        assert!(!fine && said.contains(words), "{agents} {service}: {said}");
    }
    // The agent's side.
    let agent = |line: &str| {
        let output = common::weir(&line.split(' ').collect::<Vec<_>>());
        (output.status.code(), common::stderr(&output))
    };
    // A balancer alone is enough to be told, if the certificates are where they are looked for; else it is said what
    // is missing, and how to get it.
    let pki = home.path().join("pki");
    let alone = format!("agent --balancer lb --pki {}", pki.display());
    let refused = |words: &[&str]| {
        let (status, said) = agent(&alone);
        let all = words.iter().all(|word| said.contains(word));
        assert!(status == Some(1) && all, "{words:?}: {said}");
    };
    refused(&["has no certificates", "weir pki issue NAME --role agent", "--certificate"]);
    pki::init(&pki, "here", 30).unwrap();
    let issue = |name: &str, role, address: &str| {
        let addresses = vec![address.parse().unwrap()];
        let request = Request { name: name.into(), role, addresses, hosts: Vec::new(), days: 20 };
        pki::issue(&pki, &pki, &request).unwrap();
    };
    issue("lb", Role::Balancer, "127.0.0.1");
    issue("b9", Role::Agent, "192.0.2.9");
    refused(&["no certificate in", "is an agent's and names an address of this host"]);
    issue("b0", Role::Agent, "127.0.0.1");
    let moved = |name: &str| fs::rename(pki.join(name), home.path().join(name)).unwrap();
    moved("b0.key");
    refused(&["b0.key: the key of", "--key"]);
    fs::rename(home.path().join("b0.key"), pki.join("b0.key")).unwrap();
    moved("ca.pem");
    refused(&["ca.pem: the authority's certificate is not there", "--ca"]);
    let (status, said) = agent("agent --balancer lb:0 --certificate a --key a --ca a --only-tell");
    assert!(status == Some(2) && said.contains("HOST:PORT"), "{said}");
    let (status, said) = agent(
        "agent --balancer lb --certificate /none.pem --key /none.key --ca /none.pem --only-tell",
    );
    assert!(status == Some(1) && said.contains("/none.pem"), "{said}");
}
