//! The timestamps of connections as both ends take them: what backends are given as echoes, and what TCP drops.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use weir_lab::{Backend, Lab, NetNs};

use super::{WEB4, stdout};

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
pub fn refused(lab: &Lab) -> Vec<u64> {
    let backends = lab.backends().iter().map(Backend::netns);
    let all = lab.clients().iter().chain(backends);
    all.flat_map(|netns| {
        let extended = |name| counter(netns, "netstat", "TcpExt:", name);
        let checksums = counter(netns, "snmp", "Tcp:", "InCsumErrors");
        ["PAWSActive", "PAWSEstab", "TSEcrRejected"].map(extended).into_iter().chain([checksums])
    })
    .collect()
}

/// The echo of a connection's latest request, and two times: the answer that it is of was sent after the first, the
/// next answer after the second.
struct Echo {
    echo: u32,
    sent_after: Instant,
    next_after: Instant,
}

/// What backends' TCP is given as echoes of its timestamps, once they are restored, by the balancer or by the agent
/// beside each: raw sockets see each packet behind all programs. A request echoes the answer to the one before it. So
/// from one request to the next of a connection the echo goes on by no more than the time between these answers, and
/// never back; one that was restored one wrap off does one or the other.
pub struct Echoes {
    sockets: Vec<File>,
    pub began: Instant,
    wrap: Duration,
    known: HashMap<[u8; 6], Echo>,
    /// How many were compared with the one before; and of these, within so little time that a wrap is too much.
    pub compared: u64,
    pub sharply: u64,
    /// How often the lower half began anew between two echoes of a connection.
    pub wraps: u64,
}

impl Echoes {
    pub fn of(lab: &Lab, wrap: Duration) -> Self {
        let open = |backend: &Backend| {
            let raw = || {
                let (family, flags) = (AddressFamily::Inet, SockFlag::SOCK_NONBLOCK);
                socket(family, SockType::Raw, flags, SockProtocol::Tcp)
            };
            File::from(backend.netns().enter(raw).unwrap().unwrap())
        };
        let sockets = lab.backends().iter().map(open).collect();
        let known = HashMap::new();
        Self { sockets, began: Instant::now(), wrap, known, compared: 0, sharply: 0, wraps: 0 }
    }

    /// Reads what has come since this was done last: requests that were sent after `asked`, one of a connection at
    /// most, and have been answered.
    pub fn hear(&mut self, asked: Instant) {
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
                let upper = |echo: u32| u128::from(echo) / self.wrap.as_millis();
                self.wraps += u64::from(upper(echo) != upper(before.echo));
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

/// What the backend's kernel takes for the round-trip times of its connections, in milliseconds.
pub fn round_trips(backend: &Backend) -> Vec<f64> {
    let mut ss = backend.netns().command("ss").unwrap();
    let output = ss.args(["-Htin", "state", "established", "sport = :80"]).output().unwrap();
    let text = stdout(&output);
    let words = text.split_whitespace().filter_map(|word| word.strip_prefix("rtt:"));
    let times: Vec<f64> =
        words.map(|word| word.split('/').next().unwrap().parse().unwrap()).collect();
    assert!(!times.is_empty(), "{text}");
    times
}
