//! Pings to services, TTLs that are used up on the way to one, and segments that are made smaller.

mod common;

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use common::hops::{outcome, ping};
use common::{WEB4, WEB6, WEIR};
use socket2::{Domain, Protocol, Socket, Type};
use weir_lab::topology::{BALANCER4, BALANCER6, INTERFACE, Topology, VIP4, client4};
use weir_lab::{BalancerSpec, FrameSender, Lab, LabSpec, NetNs};
use weir_testbed::xdp::Pinned;
use weir_wire::checksum::Checksum;

/// A machine that is busy with other things is slow.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn the_balancer_answers_pings_to_its_services() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    // Its kernel would answer, too: it has the addresses.
    common::sysctl(lab.balancer(), "ipv4/icmp_echo_ignore_all", "1");
    common::sysctl(lab.balancer(), "ipv6/icmp/echo_ignore_all", "1");
    let client = &lab.clients()[0];
    common::sysctl(client, "ipv4/ping_group_range", "0 2147483647");
    for to in [WEB4.ip(), WEB6.ip()] {
        assert!(ping(client, to, 10, PATIENCE).unwrap(), "{to}");
    }
    let status = balancer.status().unwrap();
    assert_eq!(outcome(&status, "echo_answered", "dropped"), 20);
    // From here on they are the kernel's.
    let text = std::fs::read_to_string(balancer.config()).unwrap();
    let text = text.replacen("[balancer]\n", "[balancer]\necho = false\n", 1);
    std::fs::write(balancer.config(), text).unwrap();
    balancer.command(&["reload"]).unwrap();
    for to in [WEB4.ip(), WEB6.ip()] {
        assert!(!ping(client, to, 1, Duration::from_secs(1)).unwrap(), "{to}");
    }
    common::sysctl(lab.balancer(), "ipv4/icmp_echo_ignore_all", "0");
    assert!(ping(client, WEB4.ip(), 1, PATIENCE).unwrap(), "the kernel answers");
    let status = balancer.status().unwrap();
    assert_eq!(outcome(&status, "echo_answered", "dropped"), 20);
}

/// An echo request of the first client's to a service, as a frame.
fn echo_request() -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 60, 0, 1, 0, 0, 64, 1, 0, 0];
    header.extend(client4(0, 0).octets());
    header.extend(VIP4.octets());
    let mut message = vec![8, 0, 0, 0, 0, 7, 0, 1];
    message.extend([0x77; 32]);
    for (bytes, at) in [(&mut header, 10), (&mut message, 2)] {
        let sum = Checksum::default().add_bytes(bytes).finish();
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    // To the balancer's address of Ethernet.
    let ethernet = vec![0x02, 0x77, 0, 0, 0xff, 1, 0x02, 0x77, 0, 0, 1, 1, 8, 0];
    [ethernet, header, message].concat()
}

/// However many ask, each processor answers 50 at once, and then as many in a second as the file says.
#[test]
fn a_flood_of_pings_gets_no_more_answers_than_the_file_says() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start_with(&lab, "icmp_per_second = 1");
    let client = &lab.clients()[0];
    let sender = FrameSender::open(client, INTERFACE).unwrap();
    let requests = vec![echo_request(); 64];
    let began = Instant::now();
    let counted = |reason: &str| outcome(&balancer.status().unwrap(), reason, "dropped");
    common::eventually("what is beyond is dropped", || {
        sender.send(&requests).unwrap();
        counted("echo_limited") >= 1_000
    });
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let processors = processors.lines().filter(|line| line.starts_with("processor")).count() as u64;
    let (answered, replies) = (counted("echo_answered"), told(client, "IcmpInEchoReps"));
    let most = processors * (51 + began.elapsed().as_secs());
    assert!((1..=most).contains(&answered), "{answered}, and {most} may be");
    assert!((1..=most).contains(&replies), "{replies} came back, and {most} may");
    // Another rate holds from the reload on.
    let text = std::fs::read_to_string(balancer.config()).unwrap();
    let text = text.replacen("icmp_per_second = 1\n", "icmp_per_second = 1000\n", 1);
    std::fs::write(balancer.config(), text).unwrap();
    balancer.command(&["reload"]).unwrap();
    common::sysctl(client, "ipv4/ping_group_range", "0 2147483647");
    common::eventually("pings are answered", || {
        ping(client, WEB4.ip(), 20, Duration::from_secs(2)).unwrap()
    });
}

/// Another XDP program sees what is none of weir's, and nothing of what is: through reloads, a trace, a killed
/// control plane and a restart.
#[test]
fn what_is_none_of_its_own_goes_to_the_next_program() {
    let _alone = common::alone();
    let lab = common::lab(2);
    let balancer = common::start(&lab, "concury", 2);
    let client = &lab.clients()[0];
    common::sysctl(client, "ipv4/ping_group_range", "0 2147483647");
    let own = IpAddr::V4(BALANCER4);
    let passes = |what: &str, passes: bool| {
        let patience = if passes { PATIENCE } else { Duration::from_secs(1) };
        assert_eq!(
            ping(client, own, 1, patience).unwrap(),
            passes,
            "{what}: to the balancer itself"
        );
        assert!(ping(client, WEB4.ip(), 1, PATIENCE).unwrap(), "{what}: to a service");
        assert!(ping(client, BALANCER6.into(), 1, PATIENCE).unwrap(), "{what}: by IPv6");
        let got = get(client);
        assert!(got.starts_with("HTTP/1.1 200"), "{what}: {got}");
    };
    passes("without", true);
    let pin = |name: &str| PathBuf::from(format!("/sys/fs/bpf/{name}-{}", std::process::id()));
    let (path, short) = (pin("no-pings"), pin("no-frags"));
    let plain = std::fs::read_to_string(balancer.config()).unwrap();
    let with = |path: &Path| {
        let line = format!("[balancer]\nnext_program = {:?}\n", path.display().to_string());
        std::fs::write(balancer.config(), plain.replacen("[balancer]\n", &line, 1)).unwrap();
    };
    // Nothing is there, or what cannot follow: nothing changes.
    with(&path);
    let refused = balancer.command(&["reload"]).unwrap_err().to_string();
    assert!(refused.contains("balancer.next_program"), "{refused}");
    assert!(refused.contains(&path.display().to_string()), "{refused}");
    let _short = Pinned::without_pings(&short, false).unwrap();
    with(&short);
    let refused = balancer.command(&["reload"]).unwrap_err().to_string();
    assert!(refused.contains("xdp.frags"), "{refused}");
    passes("refused", true);
    let pinned = Pinned::without_pings(&path, true).unwrap();
    with(&path);
    balancer.command(&["reload"]).unwrap();
    passes("with", false);
    // Another program of weir's takes the place of the one before, for as long as somebody looks.
    let trace = ["trace", "--for", "3s", "--reason", "other_protocol"];
    thread::scope(|scope| {
        let traced = scope.spawn(|| balancer.command(&trace));
        passes("beside a trace", false);
        traced.join().unwrap().unwrap();
    });
    passes("after a trace", false);
    balancer.kill();
    passes("without a control plane", false);
    balancer.launch().unwrap();
    passes("after a restart", false);
    // It is held, whatever is pinned there: a start that finds nothing goes on with it, and says so.
    drop(pinned);
    balancer.kill();
    balancer.launch().unwrap();
    let said = balancer.status().unwrap()["warnings"].to_string();
    for words in ["would be refused", "balancer.next_program"] {
        assert!(said.contains(words), "{said}");
    }
    passes("after a start that finds nothing there", false);
    assert!(balancer.command(&["reload"]).is_err());
    passes("after another refusal", false);
    std::fs::write(balancer.config(), &plain).unwrap();
    balancer.command(&["reload"]).unwrap();
    passes("without again", true);
}

/// The answer of a service.
fn get(client: &NetNs) -> String {
    client
        .enter(|| {
            let mut stream = TcpStream::connect_timeout(&WEB4, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok::<_, io::Error>(answer)
        })
        .expect("the namespace is there")
        .expect("an answer")
}

/// How often a kernel was told something by ICMP.
fn told(netns: &NetNs, counter: &str) -> u64 {
    let output = netns.command("nstat").unwrap().args(["-asz", counter]).output().unwrap();
    let text = common::stdout(&output);
    let line = text.lines().find(|line| line.starts_with(counter));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

fn routed(lines: &str) -> (std::sync::Arc<Lab>, weir_lab::Balancer) {
    let lab =
        common::lab_of(LabSpec { topology: Topology::Routed, backends: 2, ..LabSpec::default() });
    let spec = BalancerSpec { service_lines: lines.into(), ..BalancerSpec::new(WEIR, 2) };
    let balancer = common::start_spec(&lab, spec);
    (lab, balancer)
}

/// A tunnel takes one from the TTL, as a router does, and says where it was used up: that is what
/// `traceroute` shows.
#[test]
fn a_used_up_ttl_is_told_by_the_service() {
    let _alone = common::alone();
    let (lab, balancer) = routed("forward = \"ipip\"");
    let client = &lab.clients()[0];
    for (to, counter) in [(WEB4, "IcmpInTimeExcds"), (WEB6, "Icmp6InTimeExcds")] {
        let try_with = |ttl: u32| {
            client
                .enter(|| {
                    let domain = Domain::for_address(to);
                    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
                    match to {
                        SocketAddr::V4(_) => socket.set_ttl_v4(ttl)?,
                        SocketAddr::V6(_) => socket.set_unicast_hops_v6(ttl)?,
                    }
                    let limit = if ttl == 1 { Duration::from_secs(2) } else { PATIENCE };
                    socket.connect_timeout(&to.into(), limit)
                })
                .expect("the namespace is there")
        };
        assert!(try_with(1).is_err(), "{to}: the balancer is the first hop");
        assert!(told(client, counter) > 0, "{to}: nobody said so");
        // The tunnel's TTL is its own, so the backend is the next one.
        try_with(2).unwrap_or_else(|error| panic!("{to}: {error}"));
    }
    assert!(outcome(&balancer.status().unwrap(), "ttl_told", "dropped") >= 2);
}

/// What backends send to a client in one segment, of connections that are open, less timestamps.
fn segments(lab: &Lab) -> Vec<String> {
    let mut found = Vec::new();
    for backend in 0..2 {
        found.extend(common::segments(lab.backend(backend).netns(), "( sport = :80 )"));
    }
    found
}

#[test]
fn segments_are_as_small_as_the_service_says() {
    let _alone = common::alone();
    // 1500 bytes less the tunnel's 20, 40 of headers, and the timestamps.
    for (mss, to, wanted) in [
        ("1000", WEB4, "mss:988"),
        ("1000", WEB6, "mss:988"),
        ("\"auto\"", WEB4, "mss:1428"),
        ("\"auto\"", WEB6, "mss:1388"),
    ] {
        // Also the echo service has these lines, which is UDP.
        let (lab, balancer) = routed("forward = \"ipip\"");
        let text = std::fs::read_to_string(balancer.config()).unwrap();
        let text =
            text.replace("protocol = \"tcp\"\n", &format!("protocol = \"tcp\"\nmss = {mss}\n"));
        assert!(text.contains("mss = "), "{text}");
        std::fs::write(balancer.config(), text).unwrap();
        balancer.command(&["reload"]).unwrap();
        let mut held = common::hold(&lab, to, 12);
        common::assert_unbroken(&mut held, mss, &balancer);
        let found = segments(&lab);
        assert!(found.len() >= 12, "{found:?}");
        assert!(found.iter().all(|one| one == wanted), "{mss}, {to}: {found:?}");
    }
}
