//! The other end of the balancer's cable: all clients and all hosts, in one thread and one socket.

use super::Size;
use super::plan::{BALANCER, CHECK_PORT, PORT, host_address, host_mac, host_of, service_of, vip};
use crate::Result;
use crate::error::Context;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use weir_testbed::packet::PacketSocket;
use weir_testbed::{Namespaces, NetNs, link, xdp};
use weir_wire::checksum::Checksum;
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

const BALANCER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const INTERFACE: &str = "eth0";
/// No host.
const NONE: u32 = u32::MAX;
/// How often the threads look whether they are to end.
const GLANCE: Duration = Duration::from_millis(20);

/// What came out of the balancer.
#[derive(Clone, Copy, Debug)]
pub enum Seen {
    /// The first packet of a new flow of a service, on its way to a host.
    Flow { at: Instant, service: u32, host: u32 },
    /// A health check of the host that is dead.
    Check { at: Instant },
}

/// Two namespaces with a cable: the balancer's, and the one of everybody else.
pub struct World {
    /// Where the balancer runs.
    pub balancer: NetNs,
    rest: NetNs,
    clients: PacketSocket,
    next_client: u32,
    dead: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    seen: mpsc::Receiver<Seen>,
    _namespaces: Namespaces,
}

impl World {
    /// The world of a size, without a balancer.
    pub fn new(size: &Size) -> Result<Self> {
        let mut namespaces = Namespaces::new("ctl");
        let (balancer, rest) = (namespaces.add("lb")?, namespaces.add("rest")?);
        let ends = [
            link::End::new(INTERFACE).inside(&balancer).mac(BALANCER_MAC),
            link::End::new(INTERFACE).inside(&rest).mac(CLIENT_MAC),
        ];
        link::ip(&link::veth(&ends))?;
        for end in [&balancer, &rest] {
            end.sysctl("ipv6/conf/eth0/disable_ipv6", "1")?;
            end.no_checksum_offload(INTERFACE)?;
        }
        let mut lines = link::address(BALANCER, INTERFACE) + &link::up(INTERFACE);
        for host in 0..size.hosts() {
            lines += &link::neighbour(host_address(host).into(), host_mac(host), INTERFACE);
        }
        balancer.ip(&lines)?;
        balancer.sysctl("ipv4/ip_forward", "1")?;
        rest.ip(&link::up(INTERFACE))?;
        xdp::attach_pass(&rest, INTERFACE)?;
        let (clients, hosts) = rest.enter(|| {
            Ok::<_, crate::Error>((
                PacketSocket::sender(INTERFACE)?,
                PacketSocket::open(INTERFACE)?,
            ))
        })??;
        let (sender, seen) = mpsc::channel();
        let (dead, stop) = (Arc::new(AtomicU32::new(NONE)), Arc::new(AtomicBool::new(false)));
        let hosts = Hosts { socket: hosts, dead: dead.clone(), stop: stop.clone(), seen: sender };
        let threads = vec![thread::spawn(move || hosts.serve())];
        let next_client = 1;
        Ok(Self {
            balancer,
            rest,
            clients,
            next_client,
            dead,
            stop,
            threads,
            seen,
            _namespaces: namespaces,
        })
    }

    /// A host dies: what it still gets is answered with RST. `None`: all live.
    pub fn kill(&self, host: Option<u32>) {
        self.dead.store(host.unwrap_or(NONE), Ordering::SeqCst);
    }

    /// Sends the first packet of a flow of a service that there has not been before.
    pub fn begin(&mut self, service: u32) -> Result<()> {
        // 10.64.0.0/10, each address with its ports: 2^38 flows.
        let (address, port) = (0x0a40_0000 + self.next_client / 50_000, self.next_client % 50_000);
        self.next_client += 1;
        let source = SocketAddrV4::new(Ipv4Addr::from(address), 1024 + port as u16);
        let frame = first_packet(source, service).build();
        Ok(self.clients.send(&frame).context("sending a packet")?)
    }

    /// What has come out of the balancer and was not asked for yet; waits for the first that long.
    pub fn next(&self, wait: Duration) -> Option<Seen> {
        self.seen.recv_timeout(wait).ok()
    }

    /// Forgets what has come out until now.
    pub fn forget(&self) {
        while self.seen.try_recv().is_ok() {}
    }

    /// Begins so many flows of the first service, and goes on sending their packets until the world
    /// ends: as many as one core can send with the balancer's program, which runs on the same core.
    /// Returns when all have begun. Without a core for it, it sends a burst now and then.
    pub fn load(&mut self, flows: u32, core: Option<usize>) -> Result<()> {
        let socket = self.rest.enter(|| PacketSocket::sender(INTERFACE))??;
        let load = Load { socket, flows, core, stop: self.stop.clone() };
        let (begun, all_begun) = mpsc::channel();
        self.threads.push(thread::spawn(move || load.run(&begun)));
        let ended = || std::io::Error::other("the sender has ended");
        Ok(all_begun
            .recv()
            .map_err(|_| ended())
            .and_then(|begun| begun)
            .context("beginning flows")?)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

fn first_packet(source: SocketAddrV4, service: u32) -> Frame {
    packet(source, service).tcp_flags(TcpFlags::SYN)
}

fn packet(source: SocketAddrV4, service: u32) -> Frame {
    let to = SocketAddrV4::new(vip(service), PORT);
    let flow = FlowKey::new(source.into(), to.into(), Protocol::Tcp);
    Frame::new(flow).macs(BALANCER_MAC, CLIENT_MAC)
}

/// Packets of many flows.
struct Load {
    socket: PacketSocket,
    flows: u32,
    core: Option<usize>,
    stop: Arc<AtomicBool>,
}

impl Load {
    const BURST: u32 = 64;
    /// Between bursts of first packets: 100,000 flows begin in a second.
    const PAUSE: Duration = Duration::from_micros(640);
    /// Between bursts without a core of its own.
    const REST: Duration = Duration::from_millis(5);

    fn run(&self, begun: &mpsc::Sender<std::io::Result<()>>) {
        let first = self.begin();
        let well = first.is_ok();
        // Whoever waits for it has given up otherwise.
        let _ = begun.send(first);
        if !well {
            return;
        }
        if let Some(core) = self.core {
            // On another core, it is a load all the same.
            let _ = weir_testbed::process::stay_on_cpu(core);
        }
        let mut at = 0;
        while !self.stop.load(Ordering::Relaxed) {
            // An odd step of about the golden section visits all flows in no order that helps.
            let flows = (0..Self::BURST).map(|n| at + u64::from(n) * 2_654_435_769);
            let frames: Vec<_> =
                flows.map(|n| packet(self.source((n % u64::from(self.flows)) as u32), 0)).collect();
            at += u64::from(Self::BURST) * 2_654_435_769;
            // A packet that finds no room is one less.
            let _ = self.socket.send_all(&frames.iter().map(Frame::build).collect::<Vec<_>>());
            if self.core.is_none() {
                thread::sleep(Self::REST);
            }
        }
    }

    fn begin(&self) -> std::io::Result<()> {
        let all: Vec<u32> = (0..self.flows).collect();
        for burst in all.chunks(Self::BURST as usize) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let frames = burst.iter().map(|&flow| first_packet(self.source(flow), 0).build());
            self.socket.send_all(&frames.collect::<Vec<_>>())?;
            thread::sleep(Self::PAUSE);
        }
        Ok(())
    }

    /// The client of a flow, in 11.0.0.0/8, whose packets are not received again.
    fn source(&self, flow: u32) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::from(0x0b00_0000 + flow), 4096)
    }
}

/// All hosts: they answer health checks, and tell which flow came to which of them.
struct Hosts {
    socket: PacketSocket,
    dead: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    seen: mpsc::Sender<Seen>,
}

/// Offsets of an IPv4 frame without options.
mod at {
    pub const TYPE: usize = 12;
    pub const SOURCE: std::ops::Range<usize> = 26..30;
    pub const TARGET: std::ops::Range<usize> = 30..34;
    pub const PORTS: usize = 34;
    pub const SEQUENCE: usize = 38;
    pub const FLAGS: usize = 47;
    pub const END: usize = 54;
}

const SYN: u8 = 2;
const SYN_ACK: u8 = 0x12;
const RST_ACK: u8 = 0x14;

impl Hosts {
    fn serve(&self) {
        let mut buffer = [0; 256];
        while !self.stop.load(Ordering::Relaxed) {
            match self.socket.receive(&mut buffer, GLANCE) {
                Ok(Some(frame)) => self.take(frame),
                Ok(None) => {}
                // The interface has gone.
                Err(_) => return,
            }
        }
    }

    fn take(&self, frame: &[u8]) {
        if frame.len() < at::END || frame[at::TYPE..at::TYPE + 3] != [8, 0, 0x45] {
            return;
        }
        let Some(host) = host_of(&frame[..6]) else { return };
        // Anything but a first packet is the rest of a health check.
        if frame[at::FLAGS] != SYN {
            return;
        }
        let at = Instant::now();
        let mut target = [0; 4];
        target.copy_from_slice(&frame[at::TARGET]);
        let seen = match service_of(target) {
            Some(service) => Some(Seen::Flow { at, service, host }),
            None => self.answer(frame, host).then_some(Seen::Check { at }),
        };
        if let Some(seen) = seen {
            // The bench may have ended.
            let _ = self.seen.send(seen);
        }
    }

    /// Answers a health check; returns whether the host is dead.
    fn answer(&self, frame: &[u8], host: u32) -> bool {
        let port = u16::from_be_bytes([frame[at::PORTS + 2], frame[at::PORTS + 3]]);
        let dead = self.dead.load(Ordering::SeqCst) == host;
        let flags = if dead || port != CHECK_PORT { RST_ACK } else { SYN_ACK };
        // A check that goes unanswered fails too.
        let _ = self.socket.send(&reply(frame, flags));
        dead
    }
}

/// The answer to a first packet.
fn reply(frame: &[u8], flags: u8) -> Vec<u8> {
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let address = |range: std::ops::Range<usize>| {
        let b = &frame[range];
        Ipv4Addr::new(b[0], b[1], b[2], b[3])
    };
    let from = SocketAddrV4::new(address(at::TARGET), word(at::PORTS + 2));
    let to = SocketAddrV4::new(address(at::SOURCE), word(at::PORTS));
    let mut macs = [[0; 6]; 2];
    macs[0].copy_from_slice(&frame[6..12]);
    macs[1].copy_from_slice(&frame[..6]);
    let flow = FlowKey::new(from.into(), to.into(), Protocol::Tcp);
    let mut reply = Frame::new(flow).macs(macs[0], macs[1]).tcp_flags(TcpFlags(flags)).build();
    let mut sequence = [0; 4];
    sequence.copy_from_slice(&frame[at::SEQUENCE..at::SEQUENCE + 4]);
    let acknowledged = u32::from_be_bytes(sequence).wrapping_add(1);
    reply[at::SEQUENCE + 4..at::SEQUENCE + 8].copy_from_slice(&acknowledged.to_be_bytes());
    let length = (reply.len() - at::PORTS) as u32;
    reply[50..52].fill(0);
    let sum = Checksum::default().add_pseudo_header(&flow, length).add_bytes(&reply[at::PORTS..]);
    reply[50..52].copy_from_slice(&sum.finish().to_be_bytes());
    reply
}
