//! Does a backend accept packets for the address of a service?
//!
//! With direct server return, a backend has the service's address on its loopback, where the
//! balancer cannot look. So it asks: a SYN for the service's address goes out in a frame to
//! the backend's Ethernet address, as a forwarded packet would, from an address of our own.
//!
//! | answer from the service's address | means |
//! |---|---|
//! | SYN-ACK | the backend has the address, and a server listens |
//! | RST | the backend has the address, and nothing listens on the port |
//! | none | the backend does not have it (or a firewall drops the packets) |
//!
//! The time to live is 1, so that a backend that is also a router does not pass the SYN on to
//! another that would answer in its place. A SYN-ACK is answered with a RST, so that the server
//! does not wait for the rest of a handshake.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};

use crate::neigh::Neighbour;
use weir_plane::forward::Tunnel;

/// A question to one backend.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Where frames for the backend go.
    pub hop: Neighbour,
    /// An address of this host on the backend's link, of the family of `vip`; not a service's.
    pub source: IpAddr,
    /// Address of the service, to which the SYN is addressed.
    pub vip: IpAddr,
    /// TCP port that the SYN is addressed to.
    pub port: u16,
    /// The tunnel that it goes through, and the backend's address; none if it goes as it is.
    pub tunnel: Option<(Tunnel, IpAddr)>,
}

/// What a backend answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has the address, and a server listens on the port.
    Listening,
    /// It has the address, and nothing listens on the port.
    Refused,
    /// No answer came in time: the backend lacks the address, or a firewall drops the packets.
    Silent,
}

const ETHERNET: usize = 14;
const TCP: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const FIN_SYN_RST_ACK: u8 = 0x17;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// First of the ports that we ask from; each question has its own, which tells the answers
/// apart. Above the kernel's own range (32768..60999 by default).
const FIRST_PORT: u16 = 61_000;
const PORTS: usize = (u16::MAX - FIRST_PORT) as usize;
/// A question is sent so many times, unless it is answered.
const TIMES: u32 = 3;

/// Asks all questions at once and waits for the answers, in the order of the questions.
///
/// # Errors
/// If packet sockets cannot be used: they need CAP_NET_RAW.
pub fn ask(questions: &[Probe], patience: Duration) -> io::Result<Vec<Answer>> {
    let mut answers = Vec::with_capacity(questions.len());
    for some in questions.chunks(PORTS) {
        answers.extend(ask_some(some, patience)?);
    }
    Ok(answers)
}

struct Link {
    ifindex: u32,
    v4: bool,
    socket: OwnedFd,
}

fn ask_some(questions: &[Probe], patience: Duration) -> io::Result<Vec<Answer>> {
    let wanted: BTreeSet<(u32, bool)> =
        questions.iter().map(|one| (one.hop.ifindex, one.vip.is_ipv4())).collect();
    let links: Vec<Link> = wanted
        .into_iter()
        .map(|(ifindex, v4)| {
            let socket = packet_socket(ifindex, v4)?;
            Ok(Link { ifindex, v4, socket })
        })
        .collect::<io::Result<_>>()?;
    let sequence: u32 = rand::random();
    let mut answers = vec![Answer::Silent; questions.len()];
    for _ in 0..TIMES {
        for (at, one) in questions.iter().enumerate() {
            if answers[at] == Answer::Silent {
                let syn = segment(one, FIRST_PORT + at as u16, sequence, SYN);
                transmit(&links, one, &syn)?;
            }
        }
        let until = Instant::now() + patience / TIMES;
        collect(&links, questions, sequence, until, &mut answers)?;
        if answers.iter().all(|one| *one != Answer::Silent) {
            break;
        }
    }
    Ok(answers)
}

fn transmit(links: &[Link], question: &Probe, frame: &[u8]) -> io::Result<()> {
    let key = (question.hop.ifindex, question.vip.is_ipv4());
    if let Some(link) = links.iter().find(|link| (link.ifindex, link.v4) == key) {
        match send(link.socket.as_raw_fd(), frame, MsgFlags::empty()) {
            // A full queue, or an interface that went down: the same as a lost packet.
            Ok(_) | Err(Errno::ENOBUFS | Errno::ENETDOWN | Errno::EAGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Takes answers until a time, or until there is one for every question.
fn collect(
    links: &[Link],
    questions: &[Probe],
    sequence: u32,
    until: Instant,
    answers: &mut [Answer],
) -> io::Result<()> {
    let mut buffer = [0; 2048];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || answers.iter().all(|one| *one != Answer::Silent) {
            return Ok(());
        }
        let mut waiting: Vec<PollFd<'_>> =
            links.iter().map(|link| PollFd::new(link.socket.as_fd(), PollFlags::POLLIN)).collect();
        let millis = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
        match poll(&mut waiting, PollTimeout::from(millis)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for link in links {
            let flags = MsgFlags::MSG_DONTWAIT;
            let length = match recv(link.socket.as_raw_fd(), &mut buffer, flags) {
                Ok(length) => length,
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let Some((at, answer)) = read(&buffer[..length], questions, sequence) else {
                continue;
            };
            answers[at] = answer;
            if answer == Answer::Listening {
                let port = FIRST_PORT + at as u16;
                let reset = segment(&questions[at], port, sequence.wrapping_add(1), RST);
                transmit(links, &questions[at], &reset)?;
            }
        }
    }
}

/// A socket for the IPv4 or IPv6 frames of one interface.
fn packet_socket(ifindex: u32, v4: bool) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: a call without pointers. Protocol 0: nothing is received before it is bound.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, open and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: sockaddr_ll is plain data, for which zeros are a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    let ethertype = if v4 { libc::ETH_P_IP } else { libc::ETH_P_IPV6 };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (ethertype as u16).to_be();
    address.sll_ifindex = i32::try_from(ifindex).map_err(io::Error::other)?;
    // SAFETY: the pointer is to a live sockaddr_ll, and the length is its size.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            mem::size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// A TCP segment without data in an Ethernet frame to the backend.
fn segment(question: &Probe, source_port: u16, sequence: u32, flags: u8) -> Vec<u8> {
    let mut tcp = [0; TCP];
    tcp[0..2].copy_from_slice(&source_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&question.port.to_be_bytes());
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = flags;
    tcp[14..16].copy_from_slice(&1024u16.to_be_bytes());

    let mut frame = Vec::with_capacity(ETHERNET + 40 + TCP);
    frame.extend(question.hop.mac);
    frame.extend(question.hop.source_mac);
    // One more where a tunnel takes one.
    let ttl = 1 + u8::from(question.tunnel.is_some());
    let sum = match (question.source, question.vip) {
        (IpAddr::V4(source), IpAddr::V4(vip)) => {
            let mut ip = [0; 20];
            ip[0] = 0x45;
            ip[3] = (20 + TCP) as u8;
            ip[6] = 0x40; // Don't fragment.
            ip[8] = ttl;
            ip[9] = PROTOCOL_TCP;
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&vip.octets());
            let sum = checksum(words(&ip));
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend([0x08, 0x00]);
            frame.extend(ip);
            words(&ip[12..20])
        }
        (source, vip) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            let mut ip = [0; 40];
            ip[0] = 0x60;
            ip[5] = TCP as u8;
            ip[6] = PROTOCOL_TCP;
            ip[7] = ttl;
            ip[8..24].copy_from_slice(&octets(source));
            ip[24..40].copy_from_slice(&octets(vip));
            frame.extend([0x86, 0xdd]);
            frame.extend(ip);
            words(&ip[8..40])
        }
    };
    // The pseudo-header of both families: addresses, protocol and length.
    let sum = checksum(sum + words(&tcp) + u32::from(PROTOCOL_TCP) + TCP as u32);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    frame.extend(tcp);
    if let Some((tunnel, backend)) = &question.tunnel {
        // It is small, and its TTL is enough.
        let _ = tunnel.encapsulate(&mut frame, *backend, None);
    }
    frame
}

/// The sum of the 16-bit words of an even number of bytes (RFC 1071).
fn words(bytes: &[u8]) -> u32 {
    let (pairs, _) = bytes.as_chunks::<2>();
    pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum()
}

fn checksum(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The answer in a frame, and the number of the question that it is to.
fn read(frame: &[u8], questions: &[Probe], sequence: u32) -> Option<(usize, Answer)> {
    let ip = frame.get(ETHERNET..)?;
    let (source, destination, tcp): (IpAddr, IpAddr, &[u8]) = match frame.get(12..14)? {
        [0x08, 0x00] => {
            let header = ip.first_chunk::<20>()?;
            if header[9] != PROTOCOL_TCP {
                return None;
            }
            let address = |at: usize| [ip[at], ip[at + 1], ip[at + 2], ip[at + 3]];
            let length = usize::from(header[0] & 0x0f) * 4;
            (address(12).into(), address(16).into(), ip.get(length..)?)
        }
        // An answer has no extension headers.
        [0x86, 0xdd] => {
            let header = ip.first_chunk::<40>()?;
            if header[6] != PROTOCOL_TCP {
                return None;
            }
            let address = |at: usize| {
                let mut octets = [0; 16];
                octets.copy_from_slice(&header[at..at + 16]);
                octets
            };
            (address(8).into(), address(24).into(), ip.get(40..)?)
        }
        _ => return None,
    };
    let tcp = tcp.first_chunk::<TCP>()?;
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let at = usize::from(port(2).checked_sub(FIRST_PORT)?);
    let question = questions.get(at)?;
    let acknowledged = u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]);
    if source != question.vip
        || destination != question.source
        || port(0) != question.port
        || acknowledged != sequence.wrapping_add(1)
    {
        return None;
    }
    match tcp[13] & FIN_SYN_RST_ACK {
        flags if flags == SYN | ACK => Some((at, Answer::Listening)),
        flags if flags == RST | ACK => Some((at, Answer::Refused)),
        _ => None,
    }
}
