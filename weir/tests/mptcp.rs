//! Multipath TCP (RFC 8684), with the kernel's own: a connection's further subflows are where the
//! connection is if its backend announces an address of its own, and a subflow that goes astray
//! costs nothing else.

mod common;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use weir_lab::topology::{INTERFACE, VIP4, client4};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec, NetNs};

const PORT: u16 = 8090;
const BACKENDS: usize = 4;
const CONNECTIONS: usize = 24;
/// IPPROTO_MPTCP.
const MPTCP: i32 = 262;
/// How long one answer may take: a subflow that is cut off is noticed by its retransmissions.
const PATIENCE: Duration = Duration::from_secs(60);

fn socket() -> io::Result<Socket> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::from(MPTCP)))
}

/// Answers every byte with one: the number of the backend.
fn serve(netns: &NetNs, number: u8) {
    let listener = netns
        .enter(|| {
            let socket = socket()?;
            socket.bind(&SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT).into())?;
            socket.listen(256)?;
            io::Result::Ok(std::net::TcpListener::from(socket))
        })
        .unwrap()
        .expect("listening with MPTCP");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&[number]).is_ok() {}
            });
        }
    });
}

struct Connection {
    stream: TcpStream,
    backend: u8,
}

impl Connection {
    /// For a thread that is in the client's namespace.
    fn open() -> io::Result<Self> {
        let socket = socket()?;
        socket.bind(&SocketAddr::new(client4(0, 0).into(), 0).into())?;
        socket.connect(&SocketAddr::new(VIP4.into(), PORT).into())?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        let backend = ask(&mut stream)?;
        Ok(Self { stream, backend })
    }
}

fn ask(stream: &mut TcpStream) -> io::Result<u8> {
    let mut byte = [0];
    stream.write_all(b"?")?;
    stream.read_exact(&mut byte)?;
    Ok(byte[0])
}

fn assert_unbroken(all: &mut [Connection], when: &str) {
    for one in all {
        let answer = ask(&mut one.stream);
        assert!(matches!(&answer, Ok(backend) if *backend == one.backend), "{when}: {answer:?}");
    }
}

/// How many established subflows the client has with each of these addresses.
fn subflows(client: &NetNs, to: impl Fn(usize) -> Ipv4Addr) -> BTreeMap<u8, usize> {
    let mut ss = client.command("ss").unwrap();
    let output = ss.args(["-Htn", "state", "established"]).output().expect("running ss");
    let text = common::stdout(&output);
    let count = |address: Ipv4Addr| {
        let peer = format!("{address}:{PORT}");
        text.lines().filter(|line| line.split_whitespace().last() == Some(&peer)).count()
    };
    (0..BACKENDS).map(|n| (n as u8, count(to(n)))).filter(|(_, count)| *count > 0).collect()
}

fn address(backend: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 2, backend as u8 + 1)
}

/// `join`: whether servers let clients add subflows to the address that they connected to.
fn start(method: &str, join: &str) -> (std::sync::Arc<Lab>, Balancer) {
    let lab = common::lab_of(LabSpec {
        backends: BACKENDS,
        addresses_per_client: 4,
        ..LabSpec::default()
    });
    for (number, backend) in lab.backends().iter().enumerate() {
        let netns = backend.netns();
        common::sysctl(netns, "mptcp/allow_join_initial_addr_port", join);
        common::sh(netns, "ip mptcp limits set subflows 4 add_addr_accepted 4");
        serve(netns, number as u8);
    }
    common::sh(&lab.clients()[0], "ip mptcp limits set subflows 4 add_addr_accepted 4");
    let backends: String = (0..BACKENDS)
        .map(|n| format!("[[service.backend]]\nname = \"b{n}\"\naddress = \"{}\"\n", address(n)))
        .collect();
    let service = format!(
        "\n[[service]]\nname = \"paths\"\nvip = \"{VIP4}\"\nport = {PORT}\nprotocol = \"tcp\"\n\
         method = \"{method}\"\n{backends}"
    );
    let spec = BalancerSpec {
        method: method.into(),
        more_services: service,
        ..BalancerSpec::new(common::WEIR, BACKENDS)
    };
    let balancer = common::start_spec(&lab, spec);
    (lab, balancer)
}

fn open_all(lab: &Lab) -> Vec<Connection> {
    let opened = lab.clients()[0].enter(|| (0..CONNECTIONS).map(|_| Connection::open()).collect());
    let opened: io::Result<Vec<_>> = opened.unwrap();
    opened.expect("connections")
}

fn churn(balancer: &Balancer, all: &mut [Connection]) {
    for words in [
        &["backend", "drain", "paths", "b0"][..],
        &["backend", "weight", "paths", "b1", "5"],
        &["backend", "drain", "paths", "b0", "--undo"],
        &["backend", "weight", "paths", "b2", "0"],
        &["backend", "weight", "paths", "b2", "2"],
    ] {
        balancer.command(words).unwrap();
        assert_unbroken(all, &words.join(" "));
    }
}

/// RFC 8684, sections 3.1 (flag C) and 3.4.1: the server asks for no subflow to the service's address,
/// and announces its own.
#[test]
fn subflows_go_to_the_backend_that_announced_itself() {
    let _alone = common::alone();
    let (lab, balancer) = start("concury", "0");
    for (number, backend) in lab.backends().iter().enumerate() {
        let own = address(number);
        common::sh(backend.netns(), &format!("ip mptcp endpoint add {own} dev {INTERFACE} signal"));
    }
    let mut all = open_all(&lab);
    let mut homes = BTreeMap::new();
    for one in &all {
        *homes.entry(one.backend).or_insert(0) += 1;
    }
    assert!(homes.len() > 1, "{homes:?}");
    // A subflow counts once the server has accepted the connection's token and its proof, so each of
    // these is with the backend that has the connection.
    common::eventually("every connection has two subflows", || {
        subflows(&lab.clients()[0], address) == homes
    });
    churn(&balancer, &mut all);
    assert_eq!(subflows(&lab.clients()[0], address), homes);
    // The first subflows are by way of the balancer, the others are not: they go on alone.
    common::sh(lab.balancer(), &format!("ip link set {INTERFACE} down"));
    assert_unbroken(&mut all, "without a balancer");
}

/// What a client adds to the service's address meets any backend, which refuses a token that it does
/// not know. The connection goes on with the subflows that it has.
#[test]
fn subflows_that_go_astray_break_nothing() {
    let _alone = common::alone();
    for method in ["concury", "tracked"] {
        let (lab, balancer) = start(method, "1");
        for number in 1..4 {
            let own = client4(0, number);
            let line = format!("ip mptcp endpoint add {own} dev {INTERFACE} subflow");
            common::sh(&lab.clients()[0], &line);
        }
        let mut all = open_all(&lab);
        // Three are tried for each connection; by chance alone some reach the right one.
        common::eventually("some subflows are added", || {
            subflows(&lab.clients()[0], |n| if n == 0 { VIP4 } else { address(n) })
                .get(&0)
                .is_some_and(|count| *count > CONNECTIONS)
        });
        churn(&balancer, &mut all);
    }
}
