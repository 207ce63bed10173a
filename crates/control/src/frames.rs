//! Frames of our own making, past this host's stack, and the answers to them.
//!
//! Answers come to an address of this host, whose kernel knows nothing of them: it would answer with a reset, or
//! "port unreachable". So each [`Port`] is held by a socket that drops whatever comes to it: TCP takes what is for a
//! listening socket to its filter first, and says nothing of what that refuses; nor does UDP. The port is nobody
//! else's meanwhile. Packet sockets see the same packets before that, and hand those to our ports to who asked.
//! One pair of them hears for all, behind a filter in the kernel: it costs this process nothing what else comes in.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// First of the ports that are asked from: above those that Linux gives away by itself (32768 to 60999).
const FIRST_PORT: u16 = 61_000;
/// Ports that are tried until one is free.
const TRIES: u32 = 64;
/// The largest packet, with segments that the receiving side has put together.
const PACKET: usize = 1 << 16;
/// Packets that wait for whoever asked; more are as lost as in a queue of the network.
const WAITING: usize = 256;

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Upper {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// What a packet is for: family (IPv4), protocol, port.
type Key = (bool, Upper, u16);
type Ports = Arc<Mutex<HashMap<Key, mpsc::Sender<Vec<u8>>>>>;

/// Where frames go out and answers come in. Opened at the first use.
#[derive(Debug, Default)]
pub struct Frames {
    open: tokio::sync::Mutex<Option<Arc<Sockets>>>,
}

#[derive(Debug)]
struct Sockets {
    out: OwnedFd,
    ports: Ports,
    readers: Vec<JoinHandle<()>>,
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.readers.iter().for_each(JoinHandle::abort);
    }
}

/// A port of this host's that is ours while this lives.
#[derive(Debug)]
pub struct Port {
    /// Address and port.
    pub local: SocketAddr,
    key: Key,
    answers: mpsc::Receiver<Vec<u8>>,
    sockets: Arc<Sockets>,
    _held: OwnedFd,
}

impl Drop for Port {
    fn drop(&mut self) {
        lock(&self.sockets.ports).remove(&self.key);
    }
}

impl Frames {
    /// Takes a port of an address of this host's.
    ///
    /// # Errors
    /// If packet sockets cannot be used (they need CAP_NET_RAW), the address is not this host's, or no port is free.
    pub async fn port(&self, address: IpAddr, upper: Upper) -> io::Result<Port> {
        let sockets = self.sockets().await?;
        let mut last = io::Error::from_raw_os_error(libc::EADDRINUSE);
        for _ in 0..TRIES {
            let port = rand::random_range(FIRST_PORT..=u16::MAX);
            let held = match hold((address, port).into(), upper) {
                Ok(held) => held,
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
                    last = error;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let key = (address.is_ipv4(), upper, port);
            let (give, answers) = mpsc::channel(WAITING);
            // The same port of another address of ours may be in use.
            let mut ports = lock(&sockets.ports);
            if ports.contains_key(&key) {
                continue;
            }
            ports.insert(key, give);
            drop(ports);
            let local = (address, port).into();
            return Ok(Port { local, key, answers, sockets, _held: held });
        }
        Err(last)
    }

    async fn sockets(&self) -> io::Result<Arc<Sockets>> {
        let mut open = self.open.lock().await;
        if let Some(sockets) = &*open {
            return Ok(Arc::clone(sockets));
        }
        let out = packet_socket(libc::SOCK_RAW, 0)?;
        let ports = Ports::default();
        let mut readers = Vec::new();
        for (protocol, v4) in [(libc::ETH_P_IP, true), (libc::ETH_P_IPV6, false)] {
            // Not before it has its filter is it told what to hear.
            let socket = packet_socket(libc::SOCK_DGRAM, 0)?;
            attach(&socket, if v4 { &HEARD4 } else { &HEARD6 })?;
            bind_packets(&socket, protocol as u16)?;
            // SAFETY: an OwnedFd owns its descriptor, and it is the only one that closes it.
            let socket = unsafe { AsyncFd::register(socket)? };
            readers.push(tokio::spawn(hear(socket, v4, Arc::clone(&ports))));
        }
        Ok(Arc::clone(open.insert(Arc::new(Sockets { out, ports, readers }))))
    }
}

impl Port {
    /// Sends a frame by an interface. What the interface has no room for is as lost as on the wire.
    ///
    /// # Errors
    /// If it cannot be sent at all.
    pub fn send(&self, ifindex: u32, frame: &[u8]) -> io::Result<()> {
        let Some(ethertype) = frame.get(12..14) else { return Ok(()) };
        let to = link(ifindex, u16::from_be_bytes([ethertype[0], ethertype[1]]));
        // SAFETY: both pointers are to live memory of the lengths that are given with them.
        let sent = unsafe {
            libc::sendto(
                self.sockets.out.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT,
                (&raw const to).cast(),
                mem::size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        if sent >= 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR)
                ) =>
            {
                Ok(())
            }
            error => Err(error),
        }
    }

    /// The next packet to this port, from its IP header on. Dropped half-way, it has taken none.
    pub async fn receive(&mut self) -> Option<Vec<u8>> {
        self.answers.recv().await
    }

    /// As [`receive`](Self::receive), if there is one already.
    pub fn received(&mut self) -> Option<Vec<u8>> {
        self.answers.try_recv().ok()
    }
}

/// A panic while the lock was held cannot have left the map half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands packets to whom they are for, for ever.
async fn hear(socket: AsyncFd<OwnedFd>, v4: bool, ports: Ports) {
    let mut buffer = vec![0; PACKET];
    loop {
        let Ok(mut ready) = socket.readable().await else { return };
        match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => {
                let packet = &buffer[..length];
                let give = key_of(packet, v4).and_then(|key| lock(&ports).get(&key).cloned());
                if let Some(give) = give {
                    let _ = give.try_send(packet.to_vec());
                }
            }
            Err(Errno::EAGAIN) => ready.clear_ready(),
            // An interface went down; the next packet may come by another.
            Err(_) => {}
        }
    }
}

/// What a packet that the filter has let through is for.
fn key_of(packet: &[u8], v4: bool) -> Option<Key> {
    let (protocol, at) = if v4 {
        (*packet.get(9)?, usize::from(packet.first()? & 15) * 4)
    } else {
        (*packet.get(6)?, 40)
    };
    let upper = match protocol {
        6 => Upper::Tcp,
        17 => Upper::Udp,
        _ => return None,
    };
    let port = packet.get(at + 2..at + 4)?;
    Some((v4, upper, u16::from_be_bytes([port[0], port[1]])))
}

const fn op(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Nothing.
static NOTHING: [libc::sock_filter; 1] = [op(0x06, 0, 0, 0)];
/// TCP and UDP over IPv4, no later fragments, to a port of ours.
static HEARD4: [libc::sock_filter; 10] = [
    op(0x30, 0, 0, 9),      // protocol
    op(0x15, 1, 0, 6),      // TCP
    op(0x15, 0, 6, 17),     // or UDP
    op(0x28, 0, 0, 6),      // flags and offset
    op(0x45, 4, 0, 0x1fff), // no offset
    op(0xb1, 0, 0, 0),      // length of the header
    op(0x48, 0, 0, 2),      // port
    op(0x35, 0, 1, FIRST_PORT as u32),
    op(0x06, 0, 0, u32::MAX),
    op(0x06, 0, 0, 0),
];
/// The same over IPv6; answers have no extension headers.
static HEARD6: [libc::sock_filter; 7] = [
    op(0x30, 0, 0, 6),
    op(0x15, 1, 0, 6),
    op(0x15, 0, 3, 17),
    op(0x28, 0, 0, 42),
    op(0x35, 0, 1, FIRST_PORT as u32),
    op(0x06, 0, 0, u32::MAX),
    op(0x06, 0, 0, 0),
];

fn socket(domain: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a call without pointers.
    let socket = unsafe { libc::socket(domain, kind, protocol) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, open and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Protocol 0: it hears nothing.
fn packet_socket(kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    socket(libc::AF_PACKET, kind, protocol)
}

fn attach(socket: &OwnedFd, filter: &'static [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        // The kernel only reads it.
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the pointer is to a live sock_fprog of that size, which points to `len` instructions; the kernel
    // copies and writes neither.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            mem::size_of::<libc::sock_fprog>() as u32,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The address of an interface, 0: all of them.
fn link(ifindex: u32, ethertype: u16) -> libc::sockaddr_ll {
    // SAFETY: sockaddr_ll is plain data, for which zeros are a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = ifindex.cast_signed();
    address
}

fn bind_packets(socket: &OwnedFd, ethertype: u16) -> io::Result<()> {
    let address = link(0, ethertype);
    // SAFETY: the pointer is to a live sockaddr_ll, and the length is its size.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            mem::size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A socket that has a port, and drops what comes to it without a word.
fn hold(local: SocketAddr, upper: Upper) -> io::Result<OwnedFd> {
    use nix::sys::socket::{Backlog, SockaddrStorage, bind, listen};
    let domain = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = if upper == Upper::Tcp { libc::SOCK_STREAM } else { libc::SOCK_DGRAM };
    let held = socket(domain, kind, 0)?;
    attach(&held, &NOTHING)?;
    bind(held.as_raw_fd(), &SockaddrStorage::from(local))?;
    if upper == Upper::Tcp {
        listen(&held, Backlog::new(1)?)?;
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn a_packet_is_for_the_port_that_it_names() {
        let mut v4 = vec![0; 28];
        (v4[0], v4[9]) = (0x46, 6);
        v4[26..28].copy_from_slice(&61_234u16.to_be_bytes());
        assert_eq!(key_of(&v4, true), Some((true, Upper::Tcp, 61_234)));
        v4[9] = 1;
        assert_eq!(key_of(&v4, true), None);
        let mut v6 = vec![0; 44];
        v6[6] = 17;
        v6[42..44].copy_from_slice(&61_001u16.to_be_bytes());
        assert_eq!(key_of(&v6, false), Some((false, Upper::Udp, 61_001)));
        for length in 0..44 {
            let (_, _) = (key_of(&v6[..length], false), key_of(&v4[..length.min(28)], true));
        }
    }

    /// Whoever knocks at a port that is held hears nothing: neither a reset nor an ICMP error.
    #[tokio::test]
    async fn a_port_that_is_held_is_silent_and_heard() {
        let frames = Frames::default();
        let loopbacks: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        for address in loopbacks {
            let mut port = frames.port(address, Upper::Tcp).await.unwrap();
            let knock = tokio::net::TcpStream::connect(port.local);
            let silence = std::time::Duration::from_millis(300);
            assert!(tokio::time::timeout(silence, knock).await.is_err(), "{address}: an answer");
            let packet = port.receive().await.unwrap();
            assert_eq!(key_of(&packet, address.is_ipv4()), Some(port.key));
            let local = port.local;
            drop(port);
            let refused = tokio::net::TcpStream::connect(local).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "free again");

            let mut port = frames.port(address, Upper::Udp).await.unwrap();
            let asker = tokio::net::UdpSocket::bind((address, 0)).await.unwrap();
            asker.connect(port.local).await.unwrap();
            asker.send(b"hello").await.unwrap();
            let packet = port.receive().await.unwrap();
            assert!(packet.ends_with(b"hello"), "{packet:?}");
            asker.send(b"again").await.expect("no ICMP error");
            assert!(port.receive().await.unwrap().ends_with(b"again"));
        }
    }
}
