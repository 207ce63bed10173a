//! Cheetah where backends answer clients directly: `weir agent` writes the cookies into their timestamps.
//! Real connections, whose balancer is not in the way of the answers and has no room to remember them.

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Held, PATIENCE, WEB4, WEB6, WEIR};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use weir_lab::topology::INTERFACE;
use weir_lab::{AgentSpec, Backend, Balancer, BalancerSpec, Lab, LabSpec, NetNs};

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

/// A counter of /proc/net/netstat or snmp of a namespace: names on one line, values on the next.
fn counter(netns: &NetNs, file: &str, group: &str, name: &str) -> u64 {
    let path = format!("/proc/thread-self/net/{file}");
    let text = netns.enter(|| std::fs::read_to_string(&path).unwrap()).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.split(' ').position(|one| one == name).unwrap_or_else(|| panic!("{name}"));
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// Packets that PAWS has dropped, and segments with wrong checksums, in all clients and backends.
fn refused(lab: &Lab) -> Vec<u64> {
    let backends = lab.backends().iter().map(Backend::netns);
    let all = lab.clients().iter().chain(backends);
    all.flat_map(|netns| {
        let extended = |name| counter(netns, "netstat", "TcpExt:", name);
        let checksums = counter(netns, "snmp", "Tcp:", "InCsumErrors");
        ["PAWSActive", "PAWSEstab", "TSEcrRejected"].map(extended).into_iter().chain([checksums])
    })
    .collect()
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
    let text = balancer.command(&["status"]).unwrap();
    assert!(text.contains("weir agent"), "{text}");
    // One that gets its agent late: connections that began before go on as they were.
    lab.backend(1).start_agent(&[]).unwrap();
    held.extend(hold(&lab, 30));
    for _ in 0..3 {
        common::assert_unbroken(&mut held, "after the agent has come", &balancer);
    }
}

/// The echo of a connection's latest request, and two times: the answer that it is of was sent after the first, the
/// next answer after the second.
struct Echo {
    echo: u32,
    sent_after: Instant,
    next_after: Instant,
}

/// What backends' TCP is given as echoes of its timestamps, once the agents have restored them: raw sockets see each
/// packet behind the agent's program. A request echoes the answer to the one before it. So from one request to the
/// next of a connection the echo goes on by no more than the time between these answers, and never back; one that was
/// restored one wrap off does one or the other.
struct Echoes {
    sockets: Vec<File>,
    began: Instant,
    wrap: Duration,
    known: HashMap<[u8; 6], Echo>,
    /// How many were compared with the one before; and of these, within so little time that a wrap is too much.
    compared: u64,
    sharply: u64,
}

impl Echoes {
    fn of(lab: &Lab, wrap: Duration) -> Self {
        let open = |backend: &Backend| {
            let raw = || {
                let (family, flags) = (AddressFamily::Inet, SockFlag::SOCK_NONBLOCK);
                socket(family, SockType::Raw, flags, SockProtocol::Tcp)
            };
            File::from(backend.netns().enter(raw).unwrap().unwrap())
        };
        let sockets = lab.backends().iter().map(open).collect();
        let known = HashMap::new();
        Self { sockets, began: Instant::now(), wrap, known, compared: 0, sharply: 0 }
    }

    /// Reads what has come since this was done last: requests that were sent after `asked`, one of a connection at
    /// most, and have been answered.
    fn hear(&mut self, asked: Instant) {
        let now = Instant::now();
        let mut packet = [0; 2048];
        for mut socket in &self.sockets {
            loop {
                let length = match socket.read(&mut packet) {
                    Ok(length) => length,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                };
                let Some((flow, echo)) = request(&packet[..length]) else { continue };
                let next = Echo { echo, sent_after: self.began, next_after: asked };
                let Some(before) = self.known.insert(flow, next) else { continue };
                let most = now - before.sent_after + Duration::from_millis(100);
                let on = echo.wrapping_sub(before.echo) as i32;
                assert!(
                    on >= 0 && on as u128 <= most.as_millis(),
                    "{flow:?}: {on} ms from {} to {echo}, within {most:?}",
                    before.echo
                );
                self.compared += 1;
                self.sharply += u64::from(most < self.wrap);
                // A request that was sent again says nothing of another answer.
                if on > 0 {
                    let known = self.known.get_mut(&flow).expect("it was put there");
                    known.sent_after = before.next_after;
                } else {
                    self.known.insert(flow, before);
                }
            }
        }
    }
}

/// The client's address and port and the timestamp that is echoed, if an IPv4 packet is a request.
fn request(packet: &[u8]) -> Option<([u8; 6], u32)> {
    let tcp = packet.get(usize::from(packet.first()? & 15) * 4..)?;
    let header = usize::from(tcp.get(12)? >> 4) * 4;
    if tcp[2..4] != WEB4.port().to_be_bytes() || tcp.len() <= header {
        return None;
    }
    let mut options = tcp.get(20..header)?;
    while let Some((&kind, rest)) = options.split_first() {
        match kind {
            0 => return None,
            1 => options = rest,
            8 => {
                let echo = u32::from_be_bytes(options.get(6..10)?.try_into().ok()?);
                let (address, port) = (&packet[12..16], &tcp[..2]);
                return Some(([address, port].concat().try_into().ok()?, echo));
            }
            _ => options = options.get(usize::from(*rest.first()?).max(2)..)?,
        }
    }
    None
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
    for backend in lab.backends() {
        let times = round_trips(backend);
        let worst = times.iter().copied().fold(0.0, f64::max);
        // Where it goes by an echo at all, for what was sent again, one that was not restored says days.
        assert!(worst < common::PATIENCE.as_secs_f64() * 1e3, "{worst} ms: {times:?}");
        assert!(backend.stop_agent());
        let last = said(backend);
        assert!(last.contains(" 0 packets with another cookie"), "{last}");
        assert!(last.contains(" 0 connections brought back"), "{last}");
    }
}

/// What the backend's kernel takes for the round-trip times of its connections, in milliseconds.
fn round_trips(backend: &Backend) -> Vec<f64> {
    let mut ss = backend.netns().command("ss").unwrap();
    let output = ss.args(["-Htin", "state", "established", "sport = :80"]).output().unwrap();
    let text = common::stdout(&output);
    let words = text.split_whitespace().filter_map(|word| word.strip_prefix("rtt:"));
    let times: Vec<f64> =
        words.map(|word| word.split('/').next().unwrap().parse().unwrap()).collect();
    assert!(!times.is_empty(), "{text}");
    times
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
