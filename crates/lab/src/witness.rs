//! Where flows began, as the backends' own interfaces saw it.
//!
//! A client that was refused, or got no answer, does not know which backend it was sent to. The
//! backends know: a packet socket in the namespace of each sees every SYN and every datagram that
//! arrives there, before the kernel decides whether somebody listens. So the failure of a
//! connection without an answer can be put down to the death of one backend, or to none.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Doing, Result};
use crate::lab::Lab;
use crate::topology::{ECHO_PORT, NAT_ECHO_PORT, NAT_WEB_PORT, Topology, VIP4, VIP6, WEB_PORT};

/// Room for packets that were not read yet, in bytes of the kernel's memory.
const ROOM: usize = 8 << 20;
/// Bytes of a frame that are read; ports and flags are within.
const SNAP: usize = 128;
/// Longest sleep of the reader, in ms, so that it notices when it is to end.
const NAP: u16 = 100;
/// EtherTypes, and flags of TCP.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;
const RST: u8 = 0x04;

/// One flow, as a client names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// UDP, else TCP.
    pub(crate) udp: bool,
    /// The client.
    pub(crate) source: SocketAddr,
    /// The service.
    pub(crate) target: SocketAddr,
}

/// Packets that may begin a flow, seen at one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    /// Where.
    pub(crate) backend: usize,
    /// When the last one was read here, which is at or after its arrival.
    pub(crate) at: Instant,
    /// The kernel's time of the last one. It puts the backends' sockets in order.
    arrived: Duration,
}

/// What was seen. It knows nothing of sockets, so it can be tested without a network.
#[derive(Debug, Default)]
struct Log {
    /// At most one sight for each backend.
    flows: HashMap<Key, Vec<Sight>>,
    /// Resets that backends have sent to clients; likewise.
    resets: HashMap<Key, Vec<Sight>>,
    /// When the connection began that has these ends now, if it is one whose port may be taken again.
    users: HashMap<Key, Instant>,
}

fn note(flows: &mut HashMap<Key, Vec<Sight>>, key: Key, sight: Sight) {
    let sights = flows.entry(key).or_default();
    match sights.iter_mut().find(|known| known.backend == sight.backend) {
        Some(known) => *known = sight,
        None => sights.push(sight),
    }
}

impl Log {
    fn note(&mut self, key: Key, sight: Sight) {
        note(&mut self.flows, key, sight);
    }

    /// Backends that saw the flow begin, and those that have reset it.
    fn ends(&self, key: &Key, since: Instant) -> Ends {
        let of = |flows: &HashMap<Key, Vec<Sight>>| {
            let sights = flows.get(key).into_iter().flatten().filter(|sight| sight.at >= since);
            sights.map(|sight| sight.backend).collect()
        };
        Ends { began: of(&self.flows), reset: of(&self.resets) }
    }

    fn latest(&self, key: &Key, since: Instant) -> Option<Sight> {
        let sights = self.flows.get(key)?.iter().filter(|sight| sight.at >= since);
        sights.max_by_key(|sight| sight.arrived).copied()
    }

    /// Forgets what was seen of a connection that began then. Its port is free from its reset on, and its client
    /// may notice that later, when another one has it: what is seen of that stays.
    fn forget(&mut self, key: &Key, began: Instant) {
        let next = self.users.get(key).copied().filter(|user| *user != began);
        if next.is_none() {
            self.users.remove(key);
        }
        for flows in [&mut self.flows, &mut self.resets] {
            if let Some(sights) = flows.get_mut(key) {
                sights.retain(|sight| next.is_some_and(|next| sight.at >= next));
                if sights.is_empty() {
                    flows.remove(key);
                }
            }
        }
    }

    fn forget_before(&mut self, then: Instant) {
        self.users.retain(|_, began| *began >= then);
        for flows in [&mut self.flows, &mut self.resets] {
            flows.retain(|_, sights| {
                sights.retain(|sight| sight.at >= then);
                !sights.is_empty()
            });
        }
    }
}

/// Where a flow has been, by number of backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Those whose interfaces saw a first packet of it.
    pub(crate) began: Vec<usize>,
    /// Those that sent its client a reset.
    pub(crate) reset: Vec<usize>,
}

#[derive(Debug)]
struct Shared {
    /// A socket for each backend.
    sockets: Vec<OwnedFd>,
    /// Another one for each, for the resets that it sends.
    resets: Vec<OwnedFd>,
    log: Mutex<Log>,
    stop: AtomicBool,
    keep: Duration,
}

/// The witnesses of a lab's backends. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Witness {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    /// Backends that see no client, whose packets come from the balancer.
    hidden: usize,
}

impl Witness {
    /// Opens a socket in the namespace of every backend; from here on every SYN and every datagram
    /// that arrives there is noted, and kept for `keep`.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW, or a namespace is gone.
    pub(crate) fn open(lab: &Lab, keep: Duration) -> Result<Self> {
        let open = |backend: &crate::Backend| {
            let socket = backend.netns().enter(|| listen(&mut filter()))?;
            Ok(socket.doing(|| format!("listening for SYNs at {}", backend.name()))?)
        };
        let open_resets = |backend: &crate::Backend| {
            let socket = backend.netns().enter(|| listen(&mut filter_of_resets()))?;
            Ok(socket.doing(|| format!("listening for resets of {}", backend.name()))?)
        };
        let shared = Arc::new(Shared {
            sockets: lab.backends().iter().map(open).collect::<Result<_>>()?,
            resets: lab.backends().iter().map(open_resets).collect::<Result<_>>()?,
            log: Mutex::default(),
            stop: AtomicBool::new(false),
            keep,
        });
        let reading = Arc::clone(&shared);
        let reader = std::thread::Builder::new()
            .name("witness".into())
            .spawn(move || reading.read_on())
            .doing(|| "starting the reader of SYNs".into())?;
        let full_nat = lab.spec().topology == Topology::FullNat;
        let hidden = if full_nat { lab.backends().len() } else { 0 };
        Ok(Self { shared, reader: Some(reader), hidden })
    }

    /// Backends at any of which a flow that got no answer may have begun, as none sees who has sent it.
    pub(crate) fn hidden(&self) -> std::ops::Range<usize> {
        0..self.hidden
    }

    /// The backend that saw the flow's latest first packet, at or after `since`: `None` if none
    /// did. Everything that arrived before this call counts.
    pub(crate) fn latest(&self, key: &Key, since: Instant) -> Option<Sight> {
        let mut log = self.shared.lock();
        self.shared.drain(&mut log);
        log.latest(key, since)
    }

    /// Where the flow has been since then.
    pub(crate) fn ends(&self, key: &Key, since: Instant) -> Ends {
        let mut log = self.shared.lock();
        self.shared.drain(&mut log);
        log.ends(key, since)
    }

    /// Notes whose these ends are from now on: a connection's that began then.
    pub(crate) fn begins(&self, key: Key, began: Instant) {
        self.shared.lock().users.insert(key, began);
    }

    /// Forgets what arrived of a connection that began then: its port may be another's at once, or is already.
    pub(crate) fn forget(&self, key: &Key, began: Instant) {
        let mut log = self.shared.lock();
        self.shared.drain(&mut log);
        log.forget(key, began);
    }

    /// Packets that no socket had room for, since the last call. With any, a verdict may be wrong.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.sockets.iter().map(lost).sum()
    }
}

/// A watch over what the balancer's own kernel sends in the services' names: no packet of a service may ever come
/// to it, so no reset may come from it. Packets that its program sends back are not the kernel's, and its health
/// checks end with resets, but of its own addresses.
#[derive(Debug)]
pub struct Resets {
    socket: OwnedFd,
}

impl Resets {
    /// Watches all interfaces of the balancer's namespace from here on, also those that come later.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW, or the namespace is gone.
    pub fn watch(lab: &Lab) -> Result<Self> {
        let socket = lab.balancer().enter(|| listen(&mut filter_of_resets()))?;
        Ok(Self { socket: socket.doing(|| "listening for resets of the balancer".into())? })
    }

    /// The resets since the last call, by service and client, and how many more there was no room for. Those of
    /// checks fill that room, too: it has to be asked every few minutes.
    pub fn take(&self) -> (Vec<(SocketAddr, SocketAddr)>, u64) {
        let mut frame = [0; SNAP];
        let mut found = Vec::new();
        while let Some((length, _)) = receive(&self.socket, &mut frame) {
            if let Some(Key { source, target, .. }) = parse_reset(&frame[..length])
                && [IpAddr::from(VIP4), IpAddr::from(VIP6)].contains(&target.ip())
            {
                found.push((target, source));
            }
        }
        (found, lost(&self.socket))
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(reader) = self.reader.take() {
            // A panic was printed already.
            let _ = reader.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the sockets from filling up.
    fn read_on(&self) {
        let mut swept = Instant::now();
        while !self.stop.load(Relaxed) {
            let mut waiting: Vec<PollFd<'_>> =
                self.sockets.iter().map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN)).collect();
            // An error, such as an interrupted wait, is one that the next turn meets again.
            let _ = poll(&mut waiting, PollTimeout::from(NAP));
            let mut log = self.lock();
            self.drain(&mut log);
            let now = Instant::now();
            if now - swept > self.keep / 4 {
                swept = now;
                if let Some(then) = now.checked_sub(self.keep) {
                    log.forget_before(then);
                }
            }
        }
    }

    /// Reads all that has arrived.
    fn drain(&self, log: &mut Log) {
        for (backend, socket) in self.sockets.iter().enumerate() {
            let mut frame = [0; SNAP];
            while let Some((length, arrived)) = receive(socket, &mut frame) {
                if let Some(key) = parse(&frame[..length]).map(as_sent) {
                    log.note(key, Sight { backend, at: Instant::now(), arrived });
                }
            }
        }
        for (backend, socket) in self.resets.iter().enumerate() {
            let mut frame = [0; SNAP];
            while let Some((length, arrived)) = receive(socket, &mut frame) {
                if let Some(key) = parse_reset(&frame[..length]).map(as_sent) {
                    note(&mut log.resets, key, Sight { backend, at: Instant::now(), arrived });
                }
            }
        }
    }
}

/// Reads one frame and the kernel's time of its arrival; `None` if there is none.
fn receive(socket: &OwnedFd, frame: &mut [u8; SNAP]) -> Option<(usize, Duration)> {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
    let mut pieces = [io::IoSliceMut::new(frame)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut pieces, Some(&mut control), flags).ok()?;
    let arrived = message.cmsgs().ok().and_then(|mut all| {
        all.find_map(|one| match one {
            ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
            _ => None,
        })
    });
    Some((message.bytes.min(SNAP), arrived.unwrap_or_default()))
}

/// As the client has sent it, of one that reaches a backend with other addresses.
fn as_sent(key: Key) -> Key {
    let target: SocketAddr = match (key.udp, key.target) {
        (false, target) if target.port() == NAT_WEB_PORT => match target {
            SocketAddr::V4(_) => (VIP4, WEB_PORT).into(),
            SocketAddr::V6(_) => (VIP6, WEB_PORT).into(),
        },
        (true, target) if target.port() == NAT_ECHO_PORT => (VIP4, ECHO_PORT).into(),
        (_, target) => target,
    };
    Key { target, ..key }
}

/// The flow that a frame may begin: a SYN without ACK, or a datagram.
fn parse(frame: &[u8]) -> Option<Key> {
    let (key, flags) = parse_flow(frame)?;
    (key.udp || flags & SYN_ACK == SYN).then_some(key)
}

/// The flow, as its client names it, that a backend's segment resets.
fn parse_reset(frame: &[u8]) -> Option<Key> {
    let (Key { udp, source, target }, flags) = parse_flow(frame)?;
    (!udp && flags & RST != 0).then_some(Key { udp, source: target, target: source })
}

/// A frame's ends, and the flags of TCP.
fn parse_flow(frame: &[u8]) -> Option<(Key, u8)> {
    let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let (protocol, from, to, at): (u8, IpAddr, IpAddr, usize) = match word(12)? {
        IPV4 => {
            let address = |at: usize| -> Option<IpAddr> {
                let bytes: [u8; 4] = frame.get(at..at + 4)?.try_into().ok()?;
                Some(Ipv4Addr::from(bytes).into())
            };
            let head = usize::from(frame.get(14)? & 15) * 4;
            (*frame.get(23)?, address(26)?, address(30)?, 14 + head)
        }
        IPV6 => {
            let address = |at: usize| -> Option<IpAddr> {
                let bytes: [u8; 16] = frame.get(at..at + 16)?.try_into().ok()?;
                Some(Ipv6Addr::from(bytes).into())
            };
            (*frame.get(20)?, address(22)?, address(38)?, 54)
        }
        _ => return None,
    };
    let (udp, flags) = match i32::from(protocol) {
        libc::IPPROTO_UDP => (true, 0),
        libc::IPPROTO_TCP => (false, *frame.get(at + 13)?),
        _ => return None,
    };
    let (source, target) = (SocketAddr::new(from, word(at)?), SocketAddr::new(to, word(at + 2)?));
    Some((Key { udp, source, target }, flags))
}

/// What [`parse`] takes, for the kernel: frames to this host that are UDP, or TCP with SYN and
/// without ACK; but for floods from 198.18.0.0/15, which would push out what is asked for. IPv6
/// extension headers do not occur here.
fn filter() -> [libc::sock_filter; 20] {
    use crate::classic::{
        AND, BYTE, BYTE_AFTER_HEAD, EQUAL, HALF, HEAD, HEAD_OF_IPV4, JUMP, RETURN, WORD,
    };
    /// `linux/if_packet.h`.
    const PACKET_HOST: u32 = 0;
    let packet_type = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    let (tcp, udp) = (libc::IPPROTO_TCP as u32, libc::IPPROTO_UDP as u32);
    let one = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // Leaves out so many instructions if equal, and so many if not.
    let equal = |k: u32, jt: u8, jf: u8| libc::sock_filter { code: EQUAL as u16, jt, jf, k };
    [
        one(BYTE, packet_type),
        equal(PACKET_HOST, 0, 17),
        one(HALF, 12),
        equal(IPV4.into(), 0, 6),
        one(WORD, 26),
        one(AND, 0xfffe_0000),
        equal(0xc612_0000, 12, 0),
        one(HEAD_OF_IPV4, 14),
        one(BYTE, 14 + 9),
        one(JUMP, 3),
        equal(IPV6.into(), 0, 8),
        one(HEAD, 40),
        one(BYTE, 14 + 6),
        equal(udp, 4, 0),
        equal(tcp, 0, 4),
        one(BYTE_AFTER_HEAD, 14 + 13),
        one(AND, SYN_ACK.into()),
        equal(SYN.into(), 0, 1),
        one(RETURN, SNAP as u32),
        one(RETURN, 0),
    ]
}

/// What [`parse_reset`] takes, for the kernel: segments with RST that this host sends.
fn filter_of_resets() -> [libc::sock_filter; 17] {
    use crate::classic::{
        AND, BYTE, BYTE_AFTER_HEAD, EQUAL, HALF, HEAD, HEAD_OF_IPV4, JUMP, RETURN,
    };
    /// `linux/if_packet.h`.
    const PACKET_OUTGOING: u32 = 4;
    let packet_type = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    let tcp = libc::IPPROTO_TCP as u32;
    let one = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // Leaves out so many instructions if it is something else.
    let equal = |k: u32, jf: u8| libc::sock_filter { code: EQUAL as u16, jt: 0, jf, k };
    [
        one(BYTE, packet_type),
        equal(PACKET_OUTGOING, 14),
        one(HALF, 12),
        equal(IPV4.into(), 4),
        one(BYTE, 14 + 9),
        equal(tcp, 10),
        one(HEAD_OF_IPV4, 14),
        one(JUMP, 4),
        equal(IPV6.into(), 7),
        one(BYTE, 14 + 6),
        equal(tcp, 5),
        one(HEAD, 40),
        one(BYTE_AFTER_HEAD, 14 + 13),
        one(AND, RST.into()),
        equal(RST.into(), 1),
        one(RETURN, SNAP as u32),
        one(RETURN, 0),
    ]
}

/// A packet socket of the calling thread's namespace that gets what the filter lets through.
fn listen(program: &mut [libc::sock_filter]) -> io::Result<OwnedFd> {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket, sockopt,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the option's value is a `sock_fprog` whose length is right, and it and its
    // instructions outlive the call, which copies them.
    let attached = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of_val(&filter) as libc::socklen_t,
        )
    };
    if attached != 0 {
        return Err(io::Error::last_os_error());
    }
    setsockopt(&socket, sockopt::RcvBufForce, &ROOM)?;
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
    Ok(socket)
}

/// Packets that a socket had no room for. Reading the number clears it.
fn lost(socket: &OwnedFd) -> u64 {
    /// `PACKET_STATISTICS` and `struct tpacket_stats` of `linux/if_packet.h`.
    const PACKET_STATISTICS: libc::c_int = 6;
    #[repr(C)]
    struct Counters {
        packets: u32,
        drops: u32,
    }
    let mut counters = Counters { packets: 0, drops: 0 };
    let mut length = size_of_val(&counters) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is what the structure has, and any
    // two numbers are a valid one.
    let read = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_STATISTICS,
            (&raw mut counters).cast(),
            &raw mut length,
        )
    };
    if read == 0 { counters.drops.into() } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpStream, UdpSocket};
    use std::thread::sleep;

    use super::*;
    use crate::topology::{ECHO_PORT, VIP4, VIP6, WEB_PORT};
    use crate::{Lab, LabSpec};

    const KEEP: Duration = Duration::from_secs(60);

    fn key(port: u16) -> Key {
        let source = SocketAddr::from((Ipv4Addr::new(10, 77, 1, 1), port));
        Key { udp: false, source, target: (VIP4, WEB_PORT).into() }
    }

    fn sight(backend: usize, at: Instant, arrived: u64) -> Sight {
        Sight { backend, at, arrived: Duration::from_millis(arrived) }
    }

    #[test]
    fn the_latest_arrival_counts_whichever_socket_was_read_last() {
        let (mut log, now) = (Log::default(), Instant::now());
        // The second backend's packet came first and was read last.
        log.note(key(1), sight(1, now, 20));
        log.note(key(1), sight(2, now, 10));
        assert_eq!(log.latest(&key(1), now).map(|sight| sight.backend), Some(1));
        // A repeated SYN at the other backend.
        log.note(key(1), sight(2, now, 30));
        assert_eq!(log.latest(&key(1), now).map(|sight| sight.backend), Some(2));
        assert_eq!(log.latest(&key(2), now), None);
    }

    #[test]
    fn what_was_seen_of_a_former_user_of_the_port_does_not_count() {
        let (mut log, before) = (Log::default(), Instant::now());
        log.note(key(1), sight(3, before, 1));
        sleep(Duration::from_millis(2));
        let now = Instant::now();
        assert_eq!(log.latest(&key(1), now), None);
        log.note(key(1), sight(4, now, 2));
        assert_eq!(log.latest(&key(1), now).map(|sight| sight.backend), Some(4));
        log.forget_before(now);
        assert_eq!(log.flows[&key(1)].len(), 1);
        log.forget_before(now + KEEP);
        assert!(log.flows.is_empty());
    }

    #[test]
    fn whoever_ends_late_takes_nothing_from_the_next_user_of_its_port() {
        let (mut log, first) = (Log::default(), Instant::now());
        log.users.insert(key(1), first);
        log.note(key(1), sight(3, first, 1));
        sleep(Duration::from_millis(2));
        let next = Instant::now();
        log.users.insert(key(1), next);
        log.note(key(1), sight(4, next, 2));
        note(&mut log.resets, key(1), sight(4, next, 3));
        log.forget(&key(1), first);
        assert_eq!(log.ends(&key(1), first), Ends { began: vec![4], reset: vec![4] });
        log.forget(&key(1), next);
        assert!(log.flows.is_empty() && log.resets.is_empty() && log.users.is_empty());
    }

    #[test]
    fn damaged_frames_are_no_flows() {
        let syn = {
            let mut frame = vec![0; 54];
            frame[12..15].copy_from_slice(&[8, 0, 0x45]);
            frame[23] = libc::IPPROTO_TCP as u8;
            frame[34..38].copy_from_slice(&[0, 9, 0, 80]);
            frame[47] = SYN;
            frame
        };
        assert!(parse(&syn).is_some_and(|key| !key.udp && key.source.port() == 9));
        for length in 0..48 {
            assert_eq!(parse(&syn[..length]), None, "{length} bytes");
        }
        let mut answer = syn.clone();
        answer[47] = SYN_ACK;
        assert_eq!(parse(&answer), None);
        let mut reset = syn.clone();
        assert_eq!(parse_reset(&reset), None, "a SYN");
        for flags in [RST, RST | 0x10] {
            reset[47] = flags;
            let key = parse_reset(&reset).expect("a reset");
            assert_eq!((key.source.port(), key.target.port()), (80, 9), "by its client's name");
            assert_eq!(parse(&reset), None);
        }
        let mut other = syn;
        other[23] = libc::IPPROTO_ICMP as u8;
        assert_eq!(parse(&other), None);
    }

    /// Flows of either family and protocol to one backend, with servers and without.
    #[test]
    fn backends_see_where_flows_begin_also_when_nobody_listens() {
        let lab = Lab::create(LabSpec { backends: 3, clients: 1, ..LabSpec::default() }).unwrap();
        let witness = Witness::open(&lab, KEEP).unwrap();
        for (backend, dead) in [(0, false), (2, false), (2, true)] {
            lab.bypass(0, Some(backend)).unwrap();
            if dead {
                lab.backend(backend).kill();
            }
            for vip in [IpAddr::from(VIP4), IpAddr::from(VIP6)] {
                let since = Instant::now();
                let any = if vip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let asked = lab.clients()[0].enter(|| {
                    let socket = UdpSocket::bind(any).unwrap();
                    socket.connect((vip, ECHO_PORT)).unwrap();
                    socket.send(b"x").unwrap();
                    let stream = TcpStream::connect((vip, WEB_PORT)).map(|stream| {
                        // Not a first packet: it must not be seen as one.
                        (&stream).write_all(b"GET").unwrap();
                        stream.local_addr().unwrap()
                    });
                    (socket.local_addr().unwrap(), stream)
                });
                let (udp, tcp) = asked.unwrap();
                let target = SocketAddr::new(vip, ECHO_PORT);
                let key = Key { udp: true, source: udp, target };
                assert_eq!(witness.latest(&key, since).map(|s| s.backend), Some(backend), "{vip}");
                witness.forget(&key, since);
                assert_eq!(witness.latest(&key, since), None);
                assert_eq!(tcp.is_err(), dead);
                let log = witness.shared.lock();
                let of_web = |(key, sights): (&Key, &Vec<Sight>)| {
                    let ours = !key.udp
                        && key.target == SocketAddr::new(vip, WEB_PORT)
                        && sights.iter().any(|sight| sight.at >= since);
                    ours.then(|| (key.source, sights.len(), sights[0].backend))
                };
                let found: Vec<_> = log.flows.iter().filter_map(of_web).collect();
                let [(source, 1, at)] = found[..] else { panic!("{found:?}") };
                assert_eq!(at, backend);
                drop(log);
                // Where nobody listens, the backend's kernel resets what has come.
                let target = SocketAddr::new(vip, WEB_PORT);
                let ends = witness.ends(&Key { udp: false, source, target }, since);
                let reset = if dead { vec![backend] } else { Vec::new() };
                assert_eq!(ends, Ends { began: vec![backend], reset }, "{vip}");
                assert!(tcp.is_err() || tcp.is_ok_and(|local| local == source));
            }
        }
        assert_eq!(witness.lost(), 0);
    }

    /// Without a balancer its kernel refuses what comes for the services, and each refusal is seen, once; what it
    /// resets in its own name is not.
    #[test]
    fn resets_of_the_balancer_are_seen() {
        let lab = Lab::create(LabSpec { backends: 1, clients: 1, ..LabSpec::default() }).unwrap();
        let resets = Resets::watch(&lab).unwrap();
        assert_eq!(resets.take(), (Vec::new(), 0));
        let own = IpAddr::from(crate::topology::BALANCER4);
        for to in [IpAddr::from(VIP4), IpAddr::from(VIP6), own] {
            let refused = lab.clients()[0].enter(|| TcpStream::connect((to, WEB_PORT)));
            assert!(refused.unwrap().is_err(), "{to}");
            let (found, lost) = resets.take();
            assert_eq!((found.len(), lost), (usize::from(to != own), 0), "{to}: {found:?}");
            assert!(found.iter().all(|(service, _)| *service == (to, WEB_PORT).into()));
        }
    }

    /// A socket that nobody reads overflows, and says so.
    #[test]
    fn packets_that_are_lost_are_counted() {
        let lab = Lab::create(LabSpec { backends: 1, clients: 1, ..LabSpec::default() }).unwrap();
        lab.bypass(0, Some(0)).unwrap();
        let socket = lab.backend(0).netns().enter(|| listen(&mut filter())).unwrap().unwrap();
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &1).unwrap();
        let send = || {
            let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
            for _ in 0..100 {
                sender.send_to(b"x", (VIP4, ECHO_PORT)).unwrap();
            }
        };
        // Packets may wait at the veth for a while; then they are all counted, or were read.
        let mut counted = 0;
        for _ in 0..1000 {
            lab.clients()[0].enter(send).unwrap();
            counted += lost(&socket);
            if counted > 0 {
                return;
            }
        }
        panic!("100,000 packets found room in a socket that has none");
    }
}
