//! Pings and TCP streams between the hosts.

use super::keys::Family;
use super::lab::{Lab, address};
use crate::error::{Context, ensure};
use crate::{Error, Result};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use weir_testbed::NetNs;
use weir_testbed::interrupt::interrupted;

/// Ports of every stream: it is part of what some switches forward by.
pub const PORT: u16 = 5001;
pub const SOURCE_PORT: u16 = 40_000;

/// Bytes that a stream sends at a time, and how often: 26 Mbit/s.
const BLOCK: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(5);

/// How long a stream may stand still. (After a few losses in a row TCP waits for seconds.)
const PATIENCE: Duration = Duration::from_secs(30);

/// Time between two echo requests.
const INTERVAL: Duration = Duration::from_millis(50);

/// Echo requests from one host to another, answered by its kernel.
pub struct Ping(JoinHandle<weir_testbed::Result<Result<(u64, u64)>>>);

impl Ping {
    pub fn start(lab: &Lab, from: usize, to: usize, stop: &Arc<AtomicBool>) -> Result<Self> {
        let (stop, target) = (Arc::clone(stop), address(lab.family(), to));
        Ok(Self(lab.host(from).spawn(move || ping(target, from as u16, &stop))?))
    }

    /// Requests sent and answers received.
    pub fn finish(self) -> Result<(u64, u64)> {
        self.0.join().map_err(|_| Error::Failed("a ping's thread panicked".into()))??
    }
}

/// ICMP (RFC 792) and ICMPv6 (RFC 4443) differ here in types, and in who writes the checksum.
const ECHO_REQUEST: [u8; 2] = [8, 128];
const ECHO_REPLY: [u8; 2] = [0, 129];

/// A raw socket for ICMP or ICMPv6. Reading and writing is as with UDP.
fn icmp_socket(family: Family) -> std::io::Result<UdpSocket> {
    let (domain, protocol) = match family {
        Family::V4 => (libc::AF_INET, libc::IPPROTO_ICMP),
        Family::V6 => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
    };
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// An echo request, with ICMP's checksum. That of ICMPv6 is the kernel's work.
fn echo_request(family: Family, id: u16, number: u16) -> [u8; 64] {
    let mut request = [0u8; 64];
    request[0] = ECHO_REQUEST[family as usize];
    request[4..6].copy_from_slice(&id.to_be_bytes());
    request[6..8].copy_from_slice(&number.to_be_bytes());
    let words = request.as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    request[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    request
}

/// The number of an echo reply to this id, if that is what was received: an IPv4 packet with its
/// header, or an ICMPv6 message without.
fn echo_reply(family: Family, packet: &[u8], id: u16) -> Option<u16> {
    let header = match family {
        Family::V4 => usize::from(packet.first()? & 15) * 4,
        Family::V6 => 0,
    };
    let &[kind, 0, _, _, id_high, id_low, high, low] = packet.get(header..)?.first_chunk::<8>()?
    else {
        return None;
    };
    let ours = kind == ECHO_REPLY[family as usize] && u16::from_be_bytes([id_high, id_low]) == id;
    ours.then(|| u16::from_be_bytes([high, low]))
}

fn ping(target: IpAddr, id: u16, stop: &AtomicBool) -> Result<(u64, u64)> {
    let family = if target.is_ipv4() { Family::V4 } else { Family::V6 };
    let socket = icmp_socket(family).context("a socket for ICMP")?;
    socket.connect((target, 0))?;
    socket.set_read_timeout(Some(Duration::from_millis(5)))?;
    let (mut sent, mut answers, mut packet) = (0u64, HashSet::new(), [0u8; 256]);
    let mut due = Instant::now();
    let mut ends = None;
    loop {
        let stopped = stop.load(Ordering::Relaxed) || interrupted();
        if !stopped && Instant::now() >= due {
            // A host that is just moving has no carrier; that is a request without an answer.
            let _ = socket.send(&echo_request(family, id, sent as u16));
            (sent, due) = (sent + 1, due + INTERVAL);
        }
        // The last answers get a little time.
        if stopped && Instant::now() >= *ends.get_or_insert(Instant::now() + INTERVAL * 4) {
            return Ok((sent, answers.len() as u64));
        }
        while let Ok(bytes) = socket.recv(&mut packet) {
            answers.extend(echo_reply(family, &packet[..bytes], id));
        }
    }
}

/// A TCP stream whose every byte is checked.
pub struct Stream {
    sender: JoinHandle<weir_testbed::Result<Result<u64>>>,
    receiver: JoinHandle<weir_testbed::Result<Result<u64>>>,
}

impl Stream {
    pub fn start(lab: &Lab, from: usize, to: usize, stop: &Arc<AtomicBool>) -> Result<Self> {
        let listener = listen(&lab.host(to), lab.family())?;
        let receiver = lab.host(to).spawn(move || receive(&listener))?;
        let (stop, target) = (Arc::clone(stop), address(lab.family(), to));
        let sender = lab.host(from).spawn(move || send(target, &stop))?;
        Ok(Self { sender, receiver })
    }

    /// Bytes that came through, all of them as they were sent.
    ///
    /// # Errors
    /// Why the stream broke.
    pub fn finish(self) -> Result<u64> {
        let join = |handle: JoinHandle<weir_testbed::Result<Result<u64>>>| {
            handle.join().map_err(|_| Error::Failed("a stream's thread panicked".into()))??
        };
        let (sent, received) = (join(self.sender), join(self.receiver));
        let (sent, received) = (sent.context("sender")?, received.context("receiver")?);
        ensure!(sent == received, "{sent} bytes sent, {received} received");
        Ok(received)
    }
}

/// The listener is there before the sender starts.
fn listen(host: &NetNs, family: Family) -> Result<TcpListener> {
    let any: (IpAddr, u16) = match family {
        Family::V4 => (Ipv4Addr::UNSPECIFIED.into(), PORT),
        Family::V6 => (Ipv6Addr::UNSPECIFIED.into(), PORT),
    };
    Ok(host.enter(|| TcpListener::bind(any))?.context("listening")?)
}

/// Byte number `at` of every stream.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn send(target: IpAddr, stop: &AtomicBool) -> Result<u64> {
    let mut stream = TcpStream::connect((target, PORT)).context("connecting")?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut sent, mut block) = (0u64, vec![0u8; BLOCK]);
    while !stop.load(Ordering::Relaxed) && !interrupted() {
        (sent..).zip(&mut block).for_each(|(at, out)| *out = byte(at));
        stream.write_all(&block).context("sending")?;
        sent += BLOCK as u64;
        thread::sleep(PAUSE);
    }
    stream.shutdown(Shutdown::Write)?;
    let mut confirmed = [0; 8];
    stream.read_exact(&mut confirmed).context("waiting for the confirmation")?;
    ensure!(u64::from_be_bytes(confirmed) == sent, "bytes are missing");
    Ok(sent)
}

fn receive(listener: &TcpListener) -> Result<u64> {
    let (mut stream, _) = listener.accept().context("accepting")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut received, mut block) = (0u64, vec![0u8; BLOCK]);
    loop {
        let count = stream.read(&mut block).context("receiving")?;
        if count == 0 {
            stream.write_all(&received.to_be_bytes()).context("confirming")?;
            return Ok(received);
        }
        let wrong = (received..).zip(&block[..count]).find(|&(at, found)| byte(at) != *found);
        if let Some((at, _)) = wrong {
            return Err(Error::Failed(format!("byte {at} is wrong")));
        }
        received += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echoes_are_written_and_read() {
        let request = echo_request(Family::V4, 7, 300);
        let sum: u32 = request
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&word| u32::from(u16::from_be_bytes(word)))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let mut packet = vec![0x45; 20];
        packet.extend(request);
        assert_eq!(echo_reply(Family::V4, &packet, 7), None, "a request is no reply");
        packet[20] = 0;
        assert_eq!(echo_reply(Family::V4, &packet, 7), Some(300));
        assert_eq!(echo_reply(Family::V4, &packet, 8), None);
        assert_eq!(echo_reply(Family::V4, &packet[..24], 7), None);
        assert_eq!(echo_reply(Family::V4, &[], 7), None);
        let mut message = echo_request(Family::V6, 7, 300);
        assert_eq!(echo_reply(Family::V6, &message, 7), None, "a request is no reply");
        message[0] = 129;
        assert_eq!(echo_reply(Family::V6, &message, 7), Some(300));
        assert_eq!(echo_reply(Family::V6, &message[..7], 7), None);
    }
}
