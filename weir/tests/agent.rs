//! Cheetah where backends answer clients directly: `weir agent` writes the cookies into their timestamps.
//! Real connections, whose balancer is not in the way of the answers and has no room to remember them.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::echoes::{Echoes, refused, round_trips};
use common::{Held, PATIENCE, WEB4, WEB6, WEIR};
use weir_lab::topology::INTERFACE;
use weir_lab::{AgentSpec, Backend, Balancer, BalancerSpec, Lab, LabSpec};

/// Too few entries for the connections of a test: those that live on do so by their cookies.
const FORGETFUL: &str = "[limits]\ntracked_flows = 16";

fn lab(agent: &[&str]) -> Arc<Lab> {
    let arguments = agent.iter().map(|&one| one.to_owned()).collect();
    let agent = Some(AgentSpec { arguments, ..AgentSpec::new(WEIR) });
    // Acknowledgements of a download that overtake each other are older than what has come, and dropped as
    // such: here that would be a fault, of a timestamp.
    let in_order = true;
    common::lab_of(LabSpec {
        backends: 4,
        agent,
        big_rate: 1 << 30,
        in_order,
        ..LabSpec::default()
    })
}

fn start(lab: &Arc<Lab>, pool: usize, balancer_lines: &str) -> Balancer {
    start_with(lab, "cheetah", pool, balancer_lines)
}

fn start_with(lab: &Arc<Lab>, method: &str, pool: usize, balancer_lines: &str) -> Balancer {
    let spec = BalancerSpec {
        method: method.into(),
        service_lines: "answers = \"backend\"".into(),
        balancer_lines: balancer_lines.into(),
        ..BalancerSpec::new(WEIR, pool)
    };
    common::start_spec(lab, spec)
}

/// Connections to both web services.
fn hold(lab: &Lab, count: usize) -> Vec<Held> {
    common::hold_both(lab, count)
}

fn said(backend: &Backend) -> String {
    std::fs::read_to_string(backend.agent_log()).unwrap()
}

/// Bytes of the long download, of which all come.
fn download(lab: &Lab, to: SocketAddr) -> u64 {
    lab.clients()[0]
        .enter(|| {
            let mut stream = TcpStream::connect(to).unwrap();
            stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
            stream
                .write_all(b"GET /big HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")
                .unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            let head = all.windows(4).position(|end| end == b"\r\n\r\n").expect("a header");
            (all.len() - head - 4) as u64
        })
        .unwrap()
}

fn offload(backend: &Backend, on: bool) {
    let state = if on { "on" } else { "off" };
    common::sh(
        backend.netns(),
        &format!("ethtool -K {INTERFACE} tx {state} tso {state} gso {state}"),
    );
}

/// Through changes of the pool, the death of the control plane, and those of the agents; with checksums
/// and segments made by the stack, and by the device.
#[test]
fn cookies_lead_home_past_the_balancer() {
    lead_home_past_the_balancer("cheetah");
}

/// The same with connections by index.
#[test]
fn slots_lead_home_past_the_balancer() {
    lead_home_past_the_balancer("cheetah-stateful");
}

fn lead_home_past_the_balancer(method: &str) {
    let _alone = common::alone();
    let lab = lab(&[]);
    for backend in &lab.backends()[..2] {
        offload(backend, true);
    }
    let balancer = start_with(&lab, method, 3, FORGETFUL);
    let before = refused(&lab);
    common::reach_all(&lab, WEB4, 3);
    let mut held = hold(&lab, 60);
    common::assert_unbroken(&mut held, "at first", &balancer);
    for change in [
        &["backend", "add", "web4", "b3", "10.77.2.4"][..],
        &["backend", "drain", "web4", "b0"],
        &["backend", "drain", "web6", "b1"],
        &["backend", "weight", "web6", "b2", "7"],
    ] {
        balancer.command(change).unwrap();
        common::assert_unbroken(&mut held, &format!("{change:?}"), &balancer);
    }
    for backend in lab.backends() {
        backend.kill_agent();
    }
    common::assert_unbroken(&mut held, "while the agents are dead", &balancer);
    held.extend(hold(&lab, 12));
    for backend in lab.backends() {
        backend.start_agent(&["--keep"]).unwrap();
        assert!(said(backend).contains("took over"), "{}", said(backend));
    }
    common::assert_unbroken(&mut held, "after the agents were killed and started", &balancer);
    for backend in lab.backends() {
        assert!(backend.stop_agent(), "{}", said(backend));
        assert!(said(backend).contains("the programs go on"), "{}", said(backend));
    }
    common::assert_unbroken(&mut held, "after the agents have ended with --keep", &balancer);
    for backend in lab.backends() {
        backend.start_agent(&[]).unwrap();
    }
    balancer.kill();
    let troubles = common::troubles(&mut held);
    assert!(troubles.is_empty(), "without a control plane: {troubles:#?}");
    balancer.launch().unwrap();
    held.extend(hold(&lab, 12));
    common::assert_unbroken(&mut held, "after a crash of the control plane", &balancer);
    for to in [WEB4, WEB6] {
        for _ in 0..8 {
            assert_eq!(download(&lab, to), lab.spec().big_bytes);
        }
    }
    common::assert_unbroken(&mut held, "at the end", &balancer);
    assert_eq!(refused(&lab), before, "PAWS or a checksum dropped packets");
    assert_eq!(bare(&balancer), 0, "every backend wrote its cookies");
}

fn bare(balancer: &Balancer) -> u64 {
    balancer.status().unwrap()["bare_packets"].as_u64().expect("a number")
}

/// One backend has no agent, another one no timestamps: their connections are found in the connection
/// table, and the operator hears of the first.
#[test]
fn who_writes_no_cookies_is_tracked() {
    let _alone = common::alone();
    let lab = lab(&[]);
    assert!(lab.backend(1).stop_agent(), "{}", said(lab.backend(1)));
    common::sysctl(lab.backend(2).netns(), "ipv4/tcp_timestamps", "0");
    let balancer = start(&lab, 3, "");
    common::reach_all(&lab, WEB4, 3);
    let mut held = hold(&lab, 90);
    for backend in ["b0", "b1", "b2"] {
        assert!(held.iter().any(|one| one.backend == backend), "{backend}");
    }
    for change in [
        &["backend", "add", "web4", "b3", "10.77.2.4"][..],
        &["backend", "drain", "web4", "b1"],
        &["backend", "drain", "web6", "b2"],
        &["backend", "weight", "web4", "b0", "9"],
    ] {
        balancer.command(change).unwrap();
        common::assert_unbroken(&mut held, &format!("{change:?}"), &balancer);
    }
    assert!(bare(&balancer) > 0, "a backend writes no cookies");
    common::eventually("it is said", || {
        balancer.command(&["status"]).unwrap().contains("no `weir agent` writes it there")
    });
    // One that gets its agent late: connections that began before go on as they were.
    lab.backend(1).start_agent(&[]).unwrap();
    held.extend(hold(&lab, 30));
    for _ in 0..3 {
        common::assert_unbroken(&mut held, "after the agent has come", &balancer);
    }
}

/// Connections that are busy, and others that are idle, over several wraps of the lower half: of two seconds
/// each, or with WEIR_CLOCK_BITS=16 the real ones, of 65.5 s (`make soak`).
#[test]
fn the_clock_wraps_under_connections() {
    let _alone = common::alone();
    let bits: u32 = std::env::var("WEIR_CLOCK_BITS").map_or(11, |bits| bits.parse().unwrap());
    let text = bits.to_string();
    let lab = lab(&["--clock-bits", &text]);
    let balancer = start(&lab, 4, FORGETFUL);
    let wrap = Duration::from_millis(1 << bits);
    common::reach_all(&lab, WEB4, 4);
    let before = refused(&lab);
    let mut echoes = Echoes::of(&lab, wrap);
    let (mut busy, mut idle, mut silent) = (hold(&lab, 30), hold(&lab, 30), hold(&lab, 30));
    echoes.hear(echoes.began);
    let mut ask = |held: &mut [Held], when: &str| {
        let asked = Instant::now();
        common::assert_unbroken(held, when, &balancer);
        echoes.hear(asked);
        echoes.sharply
    };
    let started = Instant::now();
    let mut next_idle = wrap * 5 / 4;
    let (mut rounds, mut sharply) = (0, 0);
    while started.elapsed() < wrap * 7 / 2 || rounds < 20 || sharply < 200 {
        sharply = ask(&mut busy, "busy");
        rounds += 1;
        if started.elapsed() > next_idle {
            ask(&mut idle, "idle for more than a wrap");
            next_idle = started.elapsed() + wrap * 5 / 4;
        }
        assert!(started.elapsed() < wrap * 4 + PATIENCE * 2, "{sharply} echoes were compared");
        thread::sleep((wrap / 64).min(Duration::from_millis(500)));
    }
    ask(&mut silent, "silent for three wraps");
    ask(&mut idle, "idle");
    println!("{rounds} rounds in {:?}", started.elapsed());
    println!("{} echoes compared, {} of them sharply", echoes.compared, echoes.sharply);
    assert_eq!(refused(&lab), before, "PAWS or a checksum dropped packets");
    assert_eq!(bare(&balancer), 0, "every backend wrote its cookies");
    let mut warned = 0;
    for backend in lab.backends() {
        let times = round_trips(backend);
        let worst = times.iter().copied().fold(0.0, f64::max);
        // Where it goes by an echo at all, for what was sent again, one that was not restored says days.
        assert!(worst < common::PATIENCE.as_secs_f64() * 1e3, "{worst} ms: {times:?}");
        assert!(backend.stop_agent());
        let last = said(backend);
        assert!(last.contains(" 0 packets with another cookie"), "{last}");
        assert!(last.contains(" 0 connections brought back"), "{last}");
        warned += usize::from(last.contains("lose them, and may stand still"));
    }
    assert!(warned > 0, "whoever ends an agent under connections hears what becomes of them");
}

/// A refusal has a reason, and the end leaves nothing.
#[test]
fn one_agent_for_a_network() {
    let _alone = common::alone();
    let lab = lab(&[]);
    let backend = lab.backend(0);
    let run = |arguments: &[&str]| {
        let mut weir = backend.netns().command(WEIR).unwrap();
        let output = weir.arg("agent").args(arguments).output().unwrap();
        (output.status.code(), common::stderr(&output))
    };
    let service = ["--timestamps-only", "--service", "10.77.0.100:80", "--interface"];
    let run_at = |interfaces: &[&str]| run(&[&service, interfaces].concat());
    let (code, text) = run_at(&[INTERFACE]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("another weir agent (process ") && text.contains("on eth0"), "{text}");
    let (code, text) = run_at(&["eth7"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no interface is called \"eth7\""), "{text}");
    let (code, text) = run_at(&["lo", "--interface", "lo"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("interface lo is named twice"), "{text}");
    let (code, text) = run(&["--service", "10.77.0.100:80", "--interface", INTERFACE]);
    assert_eq!(code, Some(2), "{text}");
    let (code, text) = run(&["--timestamps-only", "--interface", INTERFACE]);
    assert!(code == Some(2) && text.contains("--service"), "{text}");
    let (code, text) = run_at(&[INTERFACE, "--service", "web"]);
    assert!(code == Some(2) && text.contains("is not ADDRESS or ADDRESS:PORT"), "{text}");
    let (code, text) = run_at(&[INTERFACE, "--flows", "0"]);
    assert_eq!(code, Some(2), "{text}");

    let filters = || {
        let show = |way| {
            let mut tc = backend.netns().command("tc").unwrap();
            common::stdout(&tc.args(["filter", "show", "dev", INTERFACE, way]).output().unwrap())
        };
        ["ingress", "egress"].map(|way| show(way).contains("weir_"))
    };
    let text = said(backend);
    let pins = text.split("maps in ").nth(1).and_then(|rest| rest.lines().next()).unwrap();
    let pins = std::path::Path::new(pins);
    assert!(filters() == [true, true] && pins.join("flows").exists(), "{text}");
    // Somebody takes the programs away, and they come back.
    common::sh(backend.netns(), &format!("tc qdisc del dev {INTERFACE} clsact"));
    common::eventually("the programs are put back", || filters() == [true, true]);
    assert!(backend.stop_agent());
    assert_eq!(filters(), [false, false]);
    assert!(!pins.exists(), "{}", pins.display());
    assert!(said(backend).contains("the programs are gone from eth0"), "{}", said(backend));

    let output = Command::new(WEIR).arg("agent").args(service).arg("lo").uid(65_534).output();
    // The file may not be that user's to run.
    if let Ok(output) = output {
        let text = common::stderr(&output);
        assert!(text.contains("not permitted; the agent needs root"), "{text}");
    }
}
