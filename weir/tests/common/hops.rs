//! What clients behind a router hear of the way to a service: answers to pings, hops as traceroute finds them, and
//! ICMP errors of both directions.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use weir_lab::topology::{ECHO_PORT, Topology, VIP4, VIP6, client4, client6};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec, NetNs};

use super::{PATIENCE, WEB4, WEB6};

const BODY: &[u8] = b"what comes back as it was sent";
/// What a backend sends from outside, in one answer.
const BIG: u64 = 1 << 18;
/// Of the way from the router to the client, which no host knows of.
const MTU: u32 = 1300;
/// A port of a service behind which nobody listens, and one of no service.
const SILENT: u16 = 7000;
const NONE: u16 = 7100;
/// Hops that no way in a laboratory has.
const MANY: u32 = 8;

/// How a topology leads from outside to backends.
pub struct Way {
    pub lab: LabSpec,
    pub balancer: BalancerSpec,
    /// Hops between the router and the backend, each of which says that it is the service.
    pub hops: usize,
    /// Clients by their number: one that is behind another one, and that other one.
    pub outside: &'static [(usize, usize)],
}

impl Way {
    /// By a topology, with these lines for each service.
    pub fn new(topology: Topology, service_lines: &str, hops: usize) -> Self {
        let lab = LabSpec {
            topology,
            backends: 4,
            clients: 2,
            addresses_per_client: 1,
            big_bytes: BIG,
            big_rate: 1 << 30,
            ..LabSpec::default()
        };
        let service_lines = service_lines.to_owned();
        let balancer = BalancerSpec { service_lines, ..BalancerSpec::new(super::WEIR, 4) };
        Self { lab, balancer, hops, outside: &[(0, 1)] }
    }
}

/// All of it: pings, traces and errors.
pub fn is_as_promised(way: Way) {
    let _alone = super::alone();
    let name = way.lab.topology.name();
    let lab = super::lab_of(way.lab);
    let lines = &way.balancer.service_lines;
    let port = if lab.spec().topology.is_nat() { "port = 7001" } else { "" };
    let silent = |name: &str, vip: IpAddr, address: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\nvip = \"{vip}\"\nprotocol = \"udp\"\nport = {SILENT}\n{lines}\n\
             [service.check]\nenabled = false\n\
             [[service.backend]]\nname = \"b2\"\naddress = \"{address}\"\n{port}\n"
        )
    };
    let more_services =
        silent("silent4", VIP4.into(), "10.77.2.3") + &silent("silent6", VIP6.into(), "fd77::2:3");
    let balancer = super::start_spec(&lab, BalancerSpec { more_services, ..way.balancer });
    // Its kernel would answer, too, where it has the addresses.
    super::sysctl(lab.balancer(), "ipv4/icmp_echo_ignore_all", "1");
    super::sysctl(lab.balancer(), "ipv6/icmp/echo_ignore_all", "1");
    for (place, &(far, router)) in way.outside.iter().enumerate() {
        let outside = Outside::new(&lab, far, router);
        outside.pings(&balancer, name);
        outside.traces(way.hops, name);
        outside.is_refused(name);
        if place == 0 {
            outside.tells_backends(name);
        }
    }
    let status = balancer.status().unwrap();
    for reason in ["unknown_quote", "no_mapping"] {
        assert_eq!(super::dropped(&status, reason), 0, "{reason}: {}", status["outcomes"]);
    }
}

/// Sends echo requests with what the kernel has for it; says whether each came back whole.
pub fn ping(from: &NetNs, to: IpAddr, times: u32, patience: Duration) -> io::Result<bool> {
    from.enter(|| {
        let (socket, kind) = echo_socket(to)?;
        socket.set_read_timeout(Some(patience))?;
        for number in 0..times {
            let [_, _, high, low] = number.to_be_bytes();
            socket.send(&[&[kind[0], 0, 0, 0, 0, 0, high, low], BODY].concat())?;
            let mut buffer = [0; 200];
            let answer = match (&socket).read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                received => &buffer[..received?],
            };
            if answer[0] != kind[1] || answer[6..8] != [high, low] || answer[8..] != *BODY {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .expect("the namespace is there")
}

/// What the kernel has for echo requests, and the types of request and reply.
fn echo_socket(to: IpAddr) -> io::Result<(Socket, [u8; 2])> {
    let (domain, protocol, kind) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, [8, 0]),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, [128, 129]),
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(protocol))?;
    socket.connect(&SocketAddr::new(to, 0).into())?;
    Ok((socket, kind))
}

/// How many packets have an outcome: of `kind` passed or dropped.
pub fn outcome(status: &Value, reason: &str, kind: &str) -> u64 {
    let outcomes = status["outcomes"].as_array().unwrap();
    let found = outcomes.iter().find(|one| one["reason"] == reason);
    found.map_or(0, |one| one[kind].as_u64().unwrap())
}

/// What is sent with a small TTL.
#[derive(Clone, Copy, Debug)]
enum Probe {
    /// A SYN.
    Tcp(SocketAddr),
    /// A datagram, which a server there answers.
    Udp(SocketAddr),
    /// An echo request.
    Echo(IpAddr),
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hop {
    /// This address says that its TTL was used up.
    Exceeded(IpAddr),
    /// This address says that there is no such port.
    Unreachable(IpAddr),
    /// It was answered.
    Reached,
}

impl Probe {
    fn to(self) -> SocketAddr {
        match self {
            Self::Tcp(to) | Self::Udp(to) => to,
            Self::Echo(to) => SocketAddr::new(to, 0),
        }
    }

    /// Every hop on the way, the last of which is no [`Hop::Exceeded`]. For a thread in the client's namespace.
    fn trace(self) -> io::Result<Vec<Hop>> {
        let mut hops = Vec::new();
        for ttl in 1..=MANY {
            let hop = self.hop(ttl)?;
            hops.push(hop);
            if !matches!(hop, Hop::Exceeded(_)) {
                break;
            }
        }
        Ok(hops)
    }

    fn hop(self, ttl: u32) -> io::Result<Hop> {
        let to = self.to();
        let (domain, protocol) = match to {
            SocketAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            SocketAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let heard = UdpSocket::from(Socket::new(domain, Type::RAW, Some(protocol))?);
        heard.set_read_timeout(Some(Duration::from_millis(50)))?;
        let socket = self.socket(ttl)?;
        let local = socket.local_addr()?.as_socket().map_or(0, |local| local.port());
        let from = if matches!(self, Self::Echo(_)) { 0 } else { local };
        let (began, mut sent) = (Instant::now(), None::<Instant>);
        while began.elapsed() < PATIENCE {
            // Whoever says something may say it once a second only.
            if sent.is_none_or(|sent| sent.elapsed() > Duration::from_millis(700)) {
                self.send(&socket)?;
                sent = Some(Instant::now());
            }
            let mut buffer = [0; 1500];
            if let Ok((length, by)) = heard.recv_from(&mut buffer)
                && let Some((is_exceeded, about)) = quoted(&buffer[..length], to.is_ipv4())
                && about == (SocketAddr::new(to.ip(), to.port()), from)
            {
                let by = by.ip();
                return Ok(if is_exceeded { Hop::Exceeded(by) } else { Hop::Unreachable(by) });
            }
            if self.is_answered(&socket) {
                return Ok(Hop::Reached);
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("{self:?}, TTL {ttl}: nothing came")))
    }

    fn socket(self, ttl: u32) -> io::Result<Socket> {
        let to = self.to();
        let domain = Domain::for_address(to);
        let socket = match self {
            Self::Tcp(_) => Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?,
            Self::Udp(_) => Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?,
            Self::Echo(to) => echo_socket(to)?.0,
        };
        match to {
            SocketAddr::V4(_) => socket.set_ttl_v4(ttl)?,
            SocketAddr::V6(_) => socket.set_unicast_hops_v6(ttl)?,
        }
        socket.set_nonblocking(true)?;
        match self {
            // The kernel sends it again by itself.
            Self::Tcp(_) => match socket.connect(&to.into()) {
                Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => {}
                begun => begun?,
            },
            Self::Udp(_) => socket.connect(&to.into())?,
            Self::Echo(_) => {}
        }
        Ok(socket)
    }

    fn send(self, socket: &Socket) -> io::Result<()> {
        let bytes = match self {
            Self::Tcp(_) => return Ok(()),
            Self::Udp(_) => BODY.to_vec(),
            Self::Echo(IpAddr::V4(_)) => [&[8, 0, 0, 0, 0, 0, 0, 1], BODY].concat(),
            Self::Echo(IpAddr::V6(_)) => [&[128, 0, 0, 0, 0, 0, 0, 1], BODY].concat(),
        };
        // What an error has left at the socket is told once.
        socket.send(&bytes).or_else(|_| socket.send(&bytes)).map(drop)
    }

    fn is_answered(self, mut socket: &Socket) -> bool {
        match self {
            Self::Tcp(_) => socket.peer_addr().is_ok(),
            _ => socket.read(&mut [0; 200]).is_ok(),
        }
    }
}

/// Of an ICMP error: whether a TTL was used up, or else a port has nobody; and whom the quoted packet was for, with the
/// port that it was from. Echo requests have no ports.
fn quoted(message: &[u8], is_ipv4: bool) -> Option<(bool, (SocketAddr, u16))> {
    let header = |packet: &[u8]| Some(usize::from(packet.first()? & 15) * 4);
    // A raw socket of IPv4 gets the header, too.
    let message = if is_ipv4 { message.get(header(message)?..)? } else { message };
    let is_exceeded = match (is_ipv4, message.get(..2)?) {
        (true, [11, 0]) | (false, [3, 0]) => true,
        (true, [3, 3]) | (false, [1, 4]) => false,
        _ => return None,
    };
    let quote = message.get(8..)?;
    let (to, protocol, rest): (IpAddr, _, _) = if is_ipv4 {
        let to: [u8; 4] = quote.get(16..20)?.try_into().ok()?;
        (to.into(), quote[9], quote.get(header(quote)?..)?)
    } else {
        let to: [u8; 16] = quote.get(24..40)?.try_into().ok()?;
        (to.into(), quote[6], quote.get(40..)?)
    };
    let port = |at: usize| Some(u16::from_be_bytes(rest.get(at..at + 2)?.try_into().ok()?));
    let (from, port) = if [6, 17].contains(&protocol) { (port(0)?, port(2)?) } else { (0, 0) };
    Some((is_exceeded, (SocketAddr::new(to, port), from)))
}

/// A client behind a router, which is another client.
struct Outside<'a> {
    lab: &'a Lab,
    far: usize,
    router: usize,
    /// The client's addresses.
    own: [IpAddr; 2],
}

impl<'a> Outside<'a> {
    fn new(lab: &'a Lab, far: usize, router: usize) -> Self {
        let own = [
            IpAddr::from([10, 88, 0, far as u8 + 1]),
            format!("fd88::{}", far + 1).parse().unwrap(),
        ];
        let outside = Self { lab, far, router, own };
        let client = outside.client();
        super::sysctl(client, "ipv4/ping_group_range", "0 2147483647");
        let gateway = &lab.clients()[router];
        for (name, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            // All are on one link, and are not to find the shorter way.
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/eth0/send_redirects", "0"),
        ] {
            super::sysctl(gateway, name, value);
        }
        let near: [IpAddr; 2] = [client4(router, 0).into(), client6(router, 0).into()];
        for ((own, vip), near) in own.into_iter().zip([VIP4.into(), VIP6.into()]).zip(near) {
            let vip: IpAddr = vip;
            // Without it an address of IPv6 is the kernel's own only a moment later.
            let at_once = if own.is_ipv6() { " nodad" } else { "" };
            super::sh(client, &format!("ip addr add {own} dev lo{at_once}"));
            super::sh(client, &format!("ip route replace {vip} via {near} src {own}"));
            outside.route(gateway, own, "");
            let back = format!("ip route add {own} via {near}");
            super::sh(lab.balancer(), &back);
            if let Some(router) = lab.router() {
                super::sh(router, &back);
            }
            // Elsewhere they have a router, which is one of these.
            if matches!(lab.spec().topology, Topology::L2 | Topology::Bond(_)) {
                for backend in lab.backends() {
                    super::sh(backend.netns(), &back);
                }
            }
        }
        outside
    }

    fn client(&self) -> &NetNs {
        &self.lab.clients()[self.far]
    }

    /// The router's way to the client.
    fn route(&self, gateway: &NetNs, own: IpAddr, more: &str) {
        let far: IpAddr = match own {
            IpAddr::V4(_) => client4(self.far, 0).into(),
            IpAddr::V6(_) => client6(self.far, 0).into(),
        };
        super::sh(gateway, &format!("ip route replace {own} via {far}{more}"));
    }

    fn pings(&self, balancer: &Balancer, name: &str) {
        let answered = || outcome(&balancer.status().unwrap(), "echo_answered", "dropped");
        let before = answered();
        for to in [WEB4.ip(), WEB6.ip()] {
            assert!(ping(self.client(), to, 10, PATIENCE).unwrap(), "{name}: {to}");
        }
        assert_eq!(answered() - before, 20, "{name}");
    }

    fn traces(&self, hops: usize, name: &str) {
        let trace = |probe: Probe| self.client().enter(|| probe.trace()).unwrap();
        let router = |to: IpAddr| match to {
            IpAddr::V4(_) => Hop::Exceeded(client4(self.router, 0).into()),
            IpAddr::V6(_) => Hop::Exceeded(client6(self.router, 0).into()),
        };
        let echo = Probe::Udp(SocketAddr::new(VIP4.into(), ECHO_PORT));
        for probe in [Probe::Tcp(WEB4), Probe::Tcp(WEB6), echo] {
            let to = probe.to().ip();
            let mut wanted = vec![router(to)];
            wanted.extend((0..hops).map(|_| Hop::Exceeded(to)));
            wanted.push(Hop::Reached);
            let found = trace(probe).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(found, wanted, "{name}: {probe:?}");
        }
        // The balancer answers whatever the TTL.
        for to in [WEB4.ip(), WEB6.ip()] {
            let found = trace(Probe::Echo(to)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(found, [router(to), Hop::Reached], "{name}: echo requests to {to}");
        }
        let topology = self.lab.spec().topology;
        if matches!(topology, Topology::L2 | Topology::Routed | Topology::Dual | Topology::Bond(_))
        {
            for to in [WEB4.ip(), WEB6.ip()] {
                let found = trace(Probe::Udp(SocketAddr::new(to, NONE)));
                let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(found, [router(to), Hop::Unreachable(to)], "{name}: no service at {to}");
            }
        }
    }

    /// A datagram to a backend where nobody listens: its error quotes what the client has sent, from the service.
    fn is_refused(&self, name: &str) {
        for to in [WEB4.ip(), WEB6.ip()] {
            let probe = Probe::Udp(SocketAddr::new(to, SILENT));
            let found = self.client().enter(|| probe.hop(64)).unwrap();
            let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(found, Hop::Unreachable(to), "{name}");
        }
    }

    /// The router's way to the client takes less than backends send, of which every one hears.
    fn tells_backends(&self, name: &str) {
        let gateway = &self.lab.clients()[self.router];
        let more = format!(" mtu lock {MTU}");
        for (family, (own, to)) in self.own.into_iter().zip([WEB4, WEB6]).enumerate() {
            self.route(gateway, own, &more);
            let told = || self.lab.backends().iter().map(|one| too_big(one.netns())[family]);
            let before: Vec<u64> = told().collect();
            let mut downloads = 0;
            while told().zip(&before).any(|(now, before)| now == *before) {
                let got = self.client().enter(|| download(SocketAddr::new(own, 0), to)).unwrap();
                assert_eq!(got.unwrap_or_else(|error| panic!("{name}, {to}: {error}")), BIG);
                downloads += 1;
                assert!(downloads < 200, "{name}: some backend was never told, {to}");
            }
            println!("{name}: every backend was told after {downloads} downloads from {to}");
            self.route(gateway, own, "");
        }
    }
}

/// How often a kernel was told that something cannot go on: in IPv4 whatever the reason, in IPv6 by its length.
fn too_big(netns: &NetNs) -> [u64; 2] {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let (v4, v6) = netns.enter(|| (read("snmp").unwrap(), read("snmp6").unwrap())).unwrap();
    let mut lines = v4.lines().filter(|line| line.starts_with("Icmp:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.split(' ').position(|one| one == "InDestUnreachs").expect("a counter");
    let v4 = values.split(' ').nth(at).expect("a value");
    let v6 = v6.lines().find(|line| line.starts_with("Icmp6InPktTooBigs")).expect("a counter");
    [v4, v6.split_whitespace().nth(1).expect("a value")].map(|one| one.parse().expect("a number"))
}

/// Bytes of the long answer. A connection without path MTU discovery gets none of them.
fn download(from: SocketAddr, to: SocketAddr) -> io::Result<u64> {
    let mut stream = super::connect(from, to)?;
    stream.write_all(b"GET /big HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    let head =
        all.windows(4).position(|end| end == b"\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    Ok((all.len() - head - 4) as u64)
}
