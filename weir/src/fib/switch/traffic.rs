//! Pings and TCP streams between the hosts.

use super::lab::{Lab, address};
use anyhow::Context;
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use weir_lab::NetNs;

const PORT: u16 = 5001;

/// Bytes that a stream sends at a time, and how often: 26 Mbit/s.
const BLOCK: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(5);

/// How long a stream may stand still. (After a few losses in a row TCP waits for seconds.)
const PATIENCE: Duration = Duration::from_secs(30);

/// Time between two echo requests.
const INTERVAL: Duration = Duration::from_millis(50);

/// Echo requests from one host to another, answered by its kernel.
pub struct Ping(JoinHandle<weir_lab::Result<anyhow::Result<(u64, u64)>>>);

impl Ping {
    pub fn start(
        lab: &Lab,
        from: usize,
        to: usize,
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<Self> {
        let (stop, target) = (Arc::clone(stop), address(to));
        Ok(Self(lab.host(from).spawn(move || ping(&target, from as u16, &stop))?))
    }

    /// Requests sent and answers received.
    pub fn finish(self) -> anyhow::Result<(u64, u64)> {
        self.0.join().map_err(|_| anyhow::anyhow!("a ping's thread panicked"))??
    }
}

/// A raw socket for ICMP. Reading and writing is as with UDP.
fn icmp_socket() -> std::io::Result<UdpSocket> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_ICMP) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// An echo request with its checksum (RFC 792).
fn echo_request(id: u16, number: u16) -> [u8; 64] {
    let mut request = [0u8; 64];
    request[0] = 8;
    request[4..6].copy_from_slice(&id.to_be_bytes());
    request[6..8].copy_from_slice(&number.to_be_bytes());
    let words = request.as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    request[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    request
}

/// The number of an echo reply in an IPv4 packet, if it is one to this id.
fn echo_reply(packet: &[u8], id: u16) -> Option<u16> {
    let header = usize::from(packet.first()? & 15) * 4;
    let icmp = packet.get(header..)?.first_chunk::<8>()?;
    let [0, 0, _, _, id_high, id_low, high, low] = *icmp else { return None };
    (u16::from_be_bytes([id_high, id_low]) == id).then(|| u16::from_be_bytes([high, low]))
}

fn ping(target: &str, id: u16, stop: &AtomicBool) -> anyhow::Result<(u64, u64)> {
    let socket = icmp_socket().context("a socket for ICMP")?;
    socket.connect((target, 0))?;
    socket.set_read_timeout(Some(Duration::from_millis(5)))?;
    let (mut sent, mut answers, mut packet) = (0u64, HashSet::new(), [0u8; 256]);
    let mut due = Instant::now();
    let mut ends = None;
    loop {
        let stopped = stop.load(Ordering::Relaxed) || weir_lab::interrupted();
        if !stopped && Instant::now() >= due {
            // A host that is just moving has no carrier; that is a request without an answer.
            let _ = socket.send(&echo_request(id, sent as u16));
            (sent, due) = (sent + 1, due + INTERVAL);
        }
        // The last answers get a little time.
        if stopped && Instant::now() >= *ends.get_or_insert(Instant::now() + INTERVAL * 4) {
            return Ok((sent, answers.len() as u64));
        }
        while let Ok(bytes) = socket.recv(&mut packet) {
            answers.extend(echo_reply(&packet[..bytes], id));
        }
    }
}

/// A TCP stream whose every byte is checked.
pub struct Stream {
    sender: JoinHandle<weir_lab::Result<anyhow::Result<u64>>>,
    receiver: JoinHandle<weir_lab::Result<anyhow::Result<u64>>>,
}

impl Stream {
    pub fn start(
        lab: &Lab,
        from: usize,
        to: usize,
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<Self> {
        let listener = listen(&lab.host(to))?;
        let receiver = lab.host(to).spawn(move || receive(&listener))?;
        let (stop, target) = (Arc::clone(stop), address(to));
        let sender = lab.host(from).spawn(move || send(&target, &stop))?;
        Ok(Self { sender, receiver })
    }

    /// Bytes that came through, all of them as they were sent.
    ///
    /// # Errors
    /// Why the stream broke.
    pub fn finish(self) -> anyhow::Result<u64> {
        let join = |handle: JoinHandle<weir_lab::Result<anyhow::Result<u64>>>| {
            handle.join().map_err(|_| anyhow::anyhow!("a stream's thread panicked"))??
        };
        let (sent, received) = (join(self.sender), join(self.receiver));
        let (sent, received) = (sent.context("sender")?, received.context("receiver")?);
        anyhow::ensure!(sent == received, "{sent} bytes sent, {received} received");
        Ok(received)
    }
}

/// The listener is there before the sender starts.
fn listen(host: &NetNs) -> anyhow::Result<TcpListener> {
    host.enter(|| TcpListener::bind(("0.0.0.0", PORT)))?.context("listening")
}

/// Byte number `at` of every stream.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn send(target: &str, stop: &AtomicBool) -> anyhow::Result<u64> {
    let mut stream = TcpStream::connect((target, PORT)).context("connecting")?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut sent, mut block) = (0u64, vec![0u8; BLOCK]);
    while !stop.load(Ordering::Relaxed) && !weir_lab::interrupted() {
        (sent..).zip(&mut block).for_each(|(at, out)| *out = byte(at));
        stream.write_all(&block).context("sending")?;
        sent += BLOCK as u64;
        thread::sleep(PAUSE);
    }
    stream.shutdown(Shutdown::Write)?;
    let mut confirmed = [0; 8];
    stream.read_exact(&mut confirmed).context("waiting for the confirmation")?;
    anyhow::ensure!(u64::from_be_bytes(confirmed) == sent, "bytes are missing");
    Ok(sent)
}

fn receive(listener: &TcpListener) -> anyhow::Result<u64> {
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
            anyhow::bail!("byte {at} is wrong");
        }
        received += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echoes_are_written_and_read() {
        let request = echo_request(7, 300);
        let sum: u32 = request
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&word| u32::from(u16::from_be_bytes(word)))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let mut packet = vec![0x45; 20];
        packet.extend(request);
        assert_eq!(echo_reply(&packet, 7), None, "a request is no reply");
        packet[20] = 0;
        assert_eq!(echo_reply(&packet, 7), Some(300));
        assert_eq!(echo_reply(&packet, 8), None);
        assert_eq!(echo_reply(&packet[..24], 7), None);
        assert_eq!(echo_reply(&[], 7), None);
    }
}
