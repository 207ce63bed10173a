//! TCP and UDP over a [`Passage`]: the connection of one check, past this host's own stack.
//!
//! The host's stack cannot do it: the service's address is often its own, so that it would connect to itself, and
//! of all backends that have the address it could not say which. So each check has a stack of its own (smoltcp)
//! with one socket, whose packets go the way of the service's.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant as Time;
use smoltcp::wire::{HardwareAddress, IpCidr};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::answer::Trouble;
use super::way::Passage;

/// The largest packet that is sent, and asked for: every way takes it, with a tunnel's headers.
const MTU: usize = 1280;
/// Bytes on their way, in each direction.
const WINDOW: usize = 16 << 10;
/// How often somebody who has nothing to wait for looks.
const LONG: Duration = Duration::from_secs(60);
/// The largest datagram that is looked at.
const DATAGRAM: usize = 4096;

/// Packets between the stack and the passage.
#[derive(Default)]
struct Packets {
    coming: VecDeque<Vec<u8>>,
    going: VecDeque<Vec<u8>>,
}

struct Coming(Vec<u8>);
struct Going<'a>(&'a mut VecDeque<Vec<u8>>);

impl smoltcp::phy::RxToken for Coming {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

impl smoltcp::phy::TxToken for Going<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut packet = vec![0; length];
        let written = write(&mut packet);
        self.0.push_back(packet);
        written
    }
}

impl Device for Packets {
    type RxToken<'a> = Coming;
    type TxToken<'a> = Going<'a>;

    fn receive(&mut self, _: Time) -> Option<(Coming, Going<'_>)> {
        let packet = self.coming.pop_front()?;
        Some((Coming(packet), Going(&mut self.going)))
    }

    fn transmit(&mut self, _: Time) -> Option<Going<'_>> {
        Some(Going(&mut self.going))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut all = DeviceCapabilities::default();
        all.medium = Medium::Ip;
        all.max_transmission_unit = MTU;
        // A packet that never was on a wire has no checksum yet, as packet sockets see it; on a wire the link
        // finds what is damaged.
        all.checksum = ChecksumCapabilities::ignored();
        all.checksum.ipv4 = Checksum::Both;
        all.checksum.tcp = Checksum::Tx;
        all.checksum.udp = Checksum::Tx;
        all
    }
}

/// A stack with one socket.
struct Stack {
    passage: Passage,
    packets: Packets,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    began: Instant,
}

impl Stack {
    fn new<S: smoltcp::socket::AnySocket<'static>>(passage: Passage, socket: S) -> Self {
        let mut packets = Packets::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = rand::random();
        let mut interface = Interface::new(config, &mut packets, Time::ZERO);
        let own = passage.port.local.ip();
        let bits = if own.is_ipv4() { 32 } else { 128 };
        // Both have room for one, and on this medium a router is a route without a neighbour.
        interface.update_ip_addrs(|all| {
            let _ = all.push(IpCidr::new(own.into(), bits));
        });
        let routes = interface.routes_mut();
        let _ = match own {
            IpAddr::V4(own) => routes.add_default_ipv4_route(own).map(drop),
            IpAddr::V6(own) => routes.add_default_ipv6_route(own).map(drop),
        };
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self { passage, packets, interface, sockets, handle, began: Instant::now() }
    }

    fn now(&self) -> Time {
        Time::from_micros(i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    /// Takes what has come and sends what is to go.
    fn go_on(&mut self) -> io::Result<()> {
        while let Some(packet) = self.passage.received() {
            self.packets.coming.push_back(packet);
        }
        let now = self.now();
        while self.interface.poll(now, &mut self.packets, &mut self.sockets)
            == PollResult::SocketStateChanged
            && !self.packets.coming.is_empty()
        {}
        while let Some(packet) = self.packets.going.pop_front() {
            self.passage.send(&packet)?;
        }
        Ok(())
    }

    /// Waits for a packet, or until something is due.
    async fn wait(&mut self) {
        let now = self.now();
        let due = self.interface.poll_delay(now, &self.sockets);
        let due = due.map_or(LONG, |due| Duration::from_micros(due.total_micros()));
        tokio::select! {
            packet = self.passage.receive() => self.packets.coming.push_back(packet),
            () = sleep(due) => {}
        }
    }

    fn tcp(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn udp(&mut self) -> &mut udp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }
}

/// Opens a TCP connection. When the stream is dropped, it ends with a reset.
pub(super) async fn connect(passage: Passage) -> Result<DuplexStream, Trouble> {
    let (ours, theirs) = duplex(WINDOW);
    let (tell, told) = oneshot::channel();
    tokio::spawn(carry(passage, theirs, tell));
    let stopped = || Err(Trouble::Host("the connection's task ended".into()));
    told.await.unwrap_or_else(|_| stopped())?;
    Ok(ours)
}

type Established = oneshot::Sender<Result<(), Trouble>>;

/// The life of a connection: until either side ends it, or nobody wants it any more.
async fn carry(passage: Passage, stream: DuplexStream, tell: Established) {
    let buffer = || tcp::SocketBuffer::new(vec![0; WINDOW]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    socket.set_hop_limit(Some(passage.ttl()));
    socket.set_nagle_enabled(false);
    socket.set_ack_delay(None);
    let (service, local) = (passage.service, passage.port.local);
    let mut stack = Stack::new(passage, socket);
    let (interface, sockets) = (&mut stack.interface, &mut stack.sockets);
    let socket = sockets.get_mut::<tcp::Socket<'_>>(stack.handle);
    if let Err(error) = socket.connect(interface.context(), service, local) {
        let _ = tell.send(Err(Trouble::Host(format!("no connection can be made: {error}"))));
        return;
    }
    if establish(&mut stack, tell).await {
        let (read, write) = split(stream);
        exchange(&mut stack, read, write).await;
    }
    stack.tcp().abort();
    // The other end learns of it, if it can.
    let _ = stack.go_on();
}

/// Waits for the other end; whether it has answered, and somebody still wants to know.
async fn establish(stack: &mut Stack, mut tell: Established) -> bool {
    loop {
        if let Err(error) = stack.go_on() {
            let _ = tell.send(Err(error.into()));
            return false;
        }
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        match stack.tcp().state() {
            tcp::State::Closed => {
                // An error of the system's has a number.
                let _ = tell.send(Err(Trouble::Answer(super::connect::reason(&refused()))));
                return false;
            }
            tcp::State::SynSent => {}
            _ => return tell.send(Ok(())).is_ok(),
        }
        let gone = tokio::select! {
            () = stack.wait() => false,
            () = tell.closed() => true,
        };
        if gone {
            return false;
        }
    }
}

/// Carries bytes both ways.
async fn exchange(
    stack: &mut Stack,
    mut read: ReadHalf<DuplexStream>,
    mut write: WriteHalf<DuplexStream>,
) {
    let (mut out, mut within) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; WINDOW];
    let mut ended = false;
    loop {
        // What has come is in the socket then, and what is to go leaves it below.
        if stack.go_on().is_err() {
            return;
        }
        let socket = stack.tcp();
        let mut moved = 0;
        if let (false, Ok(sent)) = (out.is_empty(), socket.send_slice(&out)) {
            out.drain(..sent);
            moved += sent;
        }
        if within.is_empty()
            && let Ok(length) = socket.recv_slice(&mut buffer)
        {
            within.extend_from_slice(&buffer[..length]);
            moved += length;
        }
        let closed = socket.state() == tcp::State::Closed;
        let over = within.is_empty() && !socket.may_recv() && !socket.can_recv();
        if moved > 0 && stack.go_on().is_err() {
            return;
        }
        if closed && within.is_empty() {
            return;
        }
        if over && !ended {
            ended = true;
            if write.shutdown().await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = stack.wait() => {}
            got = read.read(&mut buffer), if out.is_empty() => match got {
                Ok(length) if length > 0 => out.extend_from_slice(&buffer[..length]),
                // Whoever asked has gone.
                _ => return,
            },
            put = write.write(&within), if !within.is_empty() => match put {
                Ok(length) if length > 0 => drop(within.drain(..length)),
                _ => return,
            },
        }
    }
}

/// A UDP socket that hears the service only.
pub(super) struct Datagrams(Stack);

impl Datagrams {
    pub(super) fn new(passage: Passage) -> Result<Self, Trouble> {
        let buffer =
            || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 16], vec![0; 4 * DATAGRAM]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.set_hop_limit(Some(passage.ttl()));
        let local = passage.port.local;
        socket.bind(local).map_err(|error| Trouble::Host(format!("no UDP socket: {error}")))?;
        Ok(Self(Stack::new(passage, socket)))
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        let to = self.0.passage.service;
        let sent = self.0.udp().send_slice(bytes, smoltcp::wire::IpEndpoint::from(to));
        sent.map_err(|error| Trouble::Host(format!("the datagram cannot be sent: {error}")))?;
        Ok(self.0.go_on()?)
    }

    pub(super) async fn receive(&mut self) -> Result<Vec<u8>, Trouble> {
        let from: smoltcp::wire::IpEndpoint = self.0.passage.service.into();
        loop {
            if let Ok((bytes, about)) = self.0.udp().recv()
                && about.endpoint == from
            {
                return Ok(bytes.to_vec());
            }
            self.0.wait().await;
            self.0.go_on()?;
        }
    }
}
