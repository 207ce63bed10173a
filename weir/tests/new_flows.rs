//! How many new flows a service takes: one source floods, those of other prefixes and the connections that
//! there are go on; caps outlive the process, are changed by a reload, and lifted by one. And how many connections a
//! prefix may hold.

mod common;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{WEB4, WEB6};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use weir_lab::{Balancer, Lab, LabSpec, topology};

const POOL: usize = 3;
/// What happens at all happens within this time, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the system says of a connection that is not open yet (EINPROGRESS).
const IN_PROGRESS: i32 = 115;
/// SYNs of a flood.
const FLOOD: usize = 100;

/// Writes lines into every service of TCP, in place of the table of new flows that was there.
fn write(balancer: &Balancer, lines: &str) {
    let text = fs::read_to_string(balancer.config()).unwrap();
    let mut services = text.split("[[service]]");
    let mut new = services.next().unwrap().to_owned();
    for service in services {
        let (own, checks) = service.split_once("[service.check]").unwrap();
        let own = own.split("[service.new_flows]").next().unwrap();
        let lines = if own.contains("\"udp\"") || lines.is_empty() {
            String::new()
        } else {
            format!("[service.new_flows]\n{lines}\n\n")
        };
        new += &format!("[[service]]{own}{lines}[service.check]{checks}");
    }
    fs::write(balancer.config(), new).unwrap();
}

/// When it returns, no packet follows the file before.
fn reload(balancer: &Balancer, lines: &str) {
    write(balancer, lines);
    let done = common::command(balancer, "reload");
    assert!(done.contains("configuration reloaded: 3 services"), "{done}");
    let status = balancer.status().unwrap();
    assert_eq!(status["warnings"].as_array().map(Vec::len), Some(0), "{}", status["warnings"]);
}

/// A client's address: of so many prefixes.
fn source(to: SocketAddr, number: usize) -> IpAddr {
    match to {
        SocketAddr::V4(_) => topology::client4(0, number).into(),
        SocketAddr::V6(_) => topology::client6(0, number).into(),
    }
}

/// A SYN has been sent, and is sent again by the client's own stack until an answer comes.
fn begin(lab: &Lab, number: usize, to: SocketAddr) -> Socket {
    let from = SocketAddr::new(source(to, number), 0);
    let open = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.bind(&from.into())?;
        socket.set_nonblocking(true)?;
        let begun = socket.connect(&to.into());
        assert!(begun.is_err_and(|error| error.raw_os_error() == Some(IN_PROGRESS)));
        Ok(socket)
    };
    lab.clients()[0].enter(open).unwrap().unwrap()
}

fn is_open(socket: &Socket) -> bool {
    socket.peer_addr().is_ok()
}

fn opened(flood: &[Socket]) -> usize {
    flood.iter().filter(|socket| is_open(socket)).count()
}

fn connect(lab: &Lab, number: usize, to: SocketAddr) -> TcpStream {
    let socket = begin(lab, number, to);
    common::eventually("a connection that may begin begins", || is_open(&socket));
    socket.set_nonblocking(false).unwrap();
    socket.into()
}

fn answers(stream: &mut TcpStream) {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 512];
    let bytes = stream.read(&mut answer).expect("an answer");
    assert!(answer[..bytes].starts_with(b"HTTP/1.1 200"), "{:?}", &answer[..bytes]);
    // The rest of it.
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    while stream.read(&mut answer).is_ok_and(|bytes| bytes > 0) {}
}

/// Packets dropped for a reason.
fn dropped(balancer: &Balancer, reason: &str) -> u64 {
    let status = balancer.status().unwrap();
    let outcomes = status["outcomes"].as_array().unwrap();
    let found = outcomes.iter().find(|one| one["reason"] == reason);
    found.map_or(0, |one| one["dropped"].as_u64().unwrap())
}

fn new_flows(balancer: &Balancer, service: &str) -> Value {
    let status = balancer.status().unwrap();
    common::service(&status, service)["new_flows"].clone()
}

#[test]
fn a_flood_of_one_prefix_leaves_the_others_alone() {
    let _alone = common::alone();
    let lab: Arc<Lab> =
        common::lab_of(LabSpec { backends: POOL, addresses_per_client: 3, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", POOL);
    // Of the source that will flood, and of another.
    let mut held: Vec<TcpStream> =
        [WEB4, WEB6].iter().flat_map(|to| [connect(&lab, 0, *to), connect(&lab, 1, *to)]).collect();
    held.iter_mut().for_each(answers);
    assert!(new_flows(&balancer, "web4").is_null());

    let caps = "source_per_second = 1\nsource_burst = 5\nipv4_prefix = 24\nipv6_prefix = 112";
    write(&balancer, caps);
    let plan = common::command(&balancer, "plan");
    assert!(plan.contains("new_flows"), "{plan}");
    let since = Instant::now();
    reload(&balancer, caps);
    let shown = common::command(&balancer, "status");
    let line = "new flows: 1 a second of each IPv4 /24 and IPv6 /112, 5 at once";
    assert!(shown.contains(line), "{shown}");

    let mut floods = Vec::new();
    for to in [WEB4, WEB6] {
        floods.push((0..FLOOD).map(|_| begin(&lab, 1, to)).collect::<Vec<_>>());
    }
    held.iter_mut().for_each(answers);
    // Few enough for their own prefix.
    for to in [WEB4, WEB6] {
        (0..3).for_each(|_| answers(&mut connect(&lab, 0, to)));
    }
    for flood in &floods {
        common::eventually("as many begin as may at once", || opened(flood) >= 5);
    }
    common::eventually("what is beyond is counted", || {
        let taken = 2 * (5 + since.elapsed().as_secs());
        dropped(&balancer, "source_flow_cap") + taken >= 2 * FLOOD as u64
    });
    let said = common::command(&balancer, "explain tcp 192.0.2.7:4000 10.77.0.100:80");
    assert!(said.contains("a SYN now    taken: at once 5 more of its /24"), "{said}");
    for (flood, service) in floods.iter().zip(["web4", "web6"]) {
        let opened = opened(flood);
        let most = 5 + since.elapsed().as_secs() as usize + 1;
        assert!(opened <= most, "{service}: {opened} connections for {most}");
        let told = new_flows(&balancer, service);
        assert!(told["in_force"] == true && told["capped"] == 0, "{told}");
        assert!(told["capped_of_source"].as_u64().unwrap() > 0, "{told}");
    }
    assert_eq!(dropped(&balancer, "new_flow_cap"), 0);
    held.iter_mut().for_each(answers);
    drop(floods);

    // Of the whole service, while nobody controls it.
    let caps = "per_second = 1\nburst = 4";
    reload(&balancer, caps);
    let since = Instant::now();
    balancer.kill();
    let flood: Vec<_> = (0..FLOOD).map(|n| begin(&lab, n % 3, WEB4)).collect();
    common::eventually("as many begin as may at once", || opened(&flood) >= 4);
    held.iter_mut().for_each(answers);
    let (opened_now, most) = (opened(&flood), 4 + since.elapsed().as_secs() as usize + 1);
    assert!(opened_now <= most, "{opened_now} connections for {most}");
    balancer.launch().unwrap();
    let taken = 4 + since.elapsed().as_secs();
    assert!(dropped(&balancer, "new_flow_cap") + taken >= FLOOD as u64);
    let said = common::command(&balancer, "explain tcp 192.0.2.7:4000 10.77.0.100:80");
    let words = ["more of all sources", "dropped as new_flow_cap, as all sources have begun"];
    assert!(words.iter().any(|words| said.contains(words)), "{said}");
    let told = new_flows(&balancer, "web4");
    assert!(told["in_force"] == true && told["capped"].as_u64().unwrap() > 0, "{told}");
    assert!(told["source_per_second"].is_null() && told["burst"] == 4, "{told}");

    // And lifted: whoever still tries is taken.
    reload(&balancer, "");
    common::eventually("all begin", || opened(&flood) == FLOOD);
    let all: Vec<_> = (0..FLOOD).map(|n| begin(&lab, n % 3, WEB6)).collect();
    common::eventually("all begin", || opened(&all) == FLOOD);
    assert!(new_flows(&balancer, "web4").is_null());
    held.iter_mut().for_each(answers);
}

#[test]
fn a_prefix_holds_no_more_connections_than_it_may() {
    const MOST: usize = 5;
    let _alone = common::alone();
    let lab: Arc<Lab> =
        common::lab_of(LabSpec { backends: POOL, addresses_per_client: 3, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", POOL);
    // Numbers 1 and 2 are hosts of one prefix, 0 is of another.
    let hosts = |n: usize| 1 + n % 2;
    let mut all: Vec<Vec<TcpStream>> = [WEB4, WEB6]
        .iter()
        .map(|to| (0..2).map(|n| connect(&lab, hosts(n), *to)).collect())
        .collect();
    let limit = format!("source_connections = {MOST}\nipv4_prefix = 24\nipv6_prefix = 112");
    reload(&balancer, &limit);
    let shown = common::command(&balancer, "status");
    let line = format!("new flows: {MOST} connections of each IPv4 /24 and IPv6 /112; 0 dropped");
    assert!(shown.contains(&line), "{shown}");

    let mut waiting = Vec::new();
    for (to, held) in [WEB4, WEB6].into_iter().zip(&mut all) {
        // Those count that were there before.
        held.extend((2..MOST).map(|n| connect(&lab, hosts(n), to)));
        held.iter_mut().for_each(answers);
        let before = dropped(&balancer, "source_connection_cap");
        let more: Vec<_> = (0..3).map(|n| begin(&lab, hosts(n), to)).collect();
        common::eventually("what is beyond is dropped", || {
            dropped(&balancer, "source_connection_cap") >= before + more.len() as u64
        });
        assert_eq!(opened(&more), 0);
        (0..3).for_each(|_| answers(&mut connect(&lab, 0, to)));
        held.iter_mut().for_each(answers);
        waiting.push(more);
    }
    let said = common::command(&balancer, "explain tcp 10.77.101.1:4000 10.77.0.100:80");
    let words = "dropped as source_connection_cap, as its /24 holds as many connections as it may";
    assert!(said.contains(words), "{said}");
    for service in ["web4", "web6"] {
        let told = new_flows(&balancer, service);
        assert!(told["in_force"] == true && told["source_connections"] == MOST, "{told}");
        assert!(told["capped"] == 0 && told["capped_of_source"] == 0, "{told}");
        assert!(told["capped_connections"].as_u64().unwrap() >= 3, "{told}");
    }

    // In the place of each that ends comes another.
    for (held, waiting) in all.iter_mut().zip(&waiting) {
        held.truncate(MOST - 2);
        common::eventually("two begin where two have ended", || opened(waiting) >= 2);
        assert_eq!(opened(waiting), 2);
        held.iter_mut().for_each(answers);
    }

    // What an earlier process has seen to begin counts, too.
    balancer.kill();
    balancer.launch().unwrap();
    let before = dropped(&balancer, "source_connection_cap");
    let late: Vec<_> = [WEB4, WEB6].iter().map(|to| begin(&lab, 1, *to)).collect();
    common::eventually("what is beyond is dropped", || {
        dropped(&balancer, "source_connection_cap") >= before + late.len() as u64
    });
    assert_eq!(opened(&late), 0);
    all.iter_mut().flatten().for_each(answers);

    // And lifted: whoever still tries is taken.
    reload(&balancer, "");
    common::eventually("all begin", || opened(&late) == late.len());
    all.iter_mut().flatten().for_each(answers);
}

/// Connections that have ended under a method which reports none take nobody's place under another one.
#[test]
fn what_has_ended_under_tracked_takes_no_place_under_concury() {
    const MOST: usize = 5;
    let _alone = common::alone();
    let lab: Arc<Lab> =
        common::lab_of(LabSpec { backends: POOL, addresses_per_client: 3, ..LabSpec::default() });
    let balancer = common::start(&lab, "tracked", POOL);
    let known = || -> u64 {
        let status = balancer.status().unwrap();
        let backends = common::service(&status, "web4")["backends"].as_array().unwrap().clone();
        backends.iter().map(|one| one["states"].as_u64().unwrap_or(0)).sum()
    };
    for _ in 0..=MOST {
        let mut ended = connect(&lab, 1, WEB4);
        answers(&mut ended);
        // The server ends it when it has seen this end, which has passed the balancer by then.
        ended.shutdown(Shutdown::Write).unwrap();
        ended.set_read_timeout(Some(PATIENCE)).unwrap();
        ended.read_to_end(&mut Vec::new()).expect("an end");
    }
    let mut stays = vec![connect(&lab, 1, WEB4)];
    let text = fs::read_to_string(balancer.config()).unwrap();
    let other = text.replace("method = \"tracked\"", "method = \"concury\"");
    assert_ne!(text, other);
    fs::write(balancer.config(), other).unwrap();
    reload(&balancer, &format!("source_connections = {MOST}\nipv4_prefix = 24"));
    assert!(known() >= MOST as u64 + 2, "they linger");
    stays.extend((1..MOST).map(|_| connect(&lab, 1, WEB4)));
    stays.iter_mut().for_each(answers);
    assert_eq!(dropped(&balancer, "source_connection_cap"), 0);
    common::eventually("those that have ended are forgotten", || known() == MOST as u64);
    stays.iter_mut().for_each(answers);
}

#[test]
fn caps_that_cannot_be_kept_are_refused_where_they_stand() {
    let _alone = common::alone();
    let lab = common::lab(POOL);
    let balancer = common::start(&lab, "concury", POOL);
    let good = fs::read_to_string(balancer.config()).unwrap();
    let udp = good
        .replace("protocol = \"udp\"\n", "protocol = \"udp\"\nnew_flows = { per_second = 5 }\n");
    assert_ne!(udp, good);
    fs::write(balancer.config(), udp).unwrap();
    let refused = common::try_command(&balancer, "reload").unwrap_err();
    assert!(refused.contains("new_flows"), "{refused}");
    assert!(refused.contains("no datagram says that it begins a flow"), "{refused}");
    fs::write(balancer.config(), &good).unwrap();
    for (lines, wrong) in [
        ("burst = 5", "there is no per_second"),
        ("per_second = 0", "0 is out of range"),
        ("source_connections = 0", "0 is out of range"),
        ("source_per_second = 5\nipv4_prefix = 33", "33 is out of range"),
    ] {
        write(&balancer, lines);
        let refused = common::try_command(&balancer, "reload").unwrap_err();
        assert!(refused.contains("new_flows") && refused.contains(wrong), "{lines}: {refused}");
    }
    fs::write(balancer.config(), &good).unwrap();
    common::command(&balancer, "reload");
}
