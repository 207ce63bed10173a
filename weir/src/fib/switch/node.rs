//! A forwarding node: a thread in its namespace with one packet socket and a data plane.

use super::packet::{BURST, PacketSocket};
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;
use weir_fib::{Mac, Plane};

/// How long a node waits for frames before it looks for orders.
const PATIENCE: Duration = Duration::from_millis(2);

/// What the control plane says to a node.
pub enum Order {
    /// A message for the data plane, if it concerns the node, and where the key is now to go:
    /// what the node's lookups are held against.
    Update { message: Option<Vec<u8>>, key: Mac, port: u16, watched: bool },
    /// A port leads to this interface, or to none.
    Wire { port: u16, interface: Option<i32> },
    /// Look all of these up, and say how many are wrong.
    Check { keys: Vec<(Mac, u16)>, answer: Sender<u64> },
}

/// What a node did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Frames that came.
    pub frames: u64,
    pub forwarded: u64,
    /// Lookups of valid keys.
    pub lookups: u64,
    /// Valid keys that the FIB did not know.
    pub lost: u64,
    /// Valid keys that the FIB gave another port.
    pub misdirected: u64,
    /// Frames to other than known addresses, dropped.
    pub aliens: u64,
    /// Frames to a port without a host at the time: it is moving.
    pub unattached: u64,
    /// Frames that the kernel did not take.
    pub refused: u64,
    /// Messages that the data plane refused.
    pub bad_messages: u64,
    /// Bytes of the data plane at the end.
    pub fib_bytes: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.forwarded += other.forwarded;
        self.lookups += other.lookups;
        self.lost += other.lost;
        self.misdirected += other.misdirected;
        self.aliens += other.aliens;
        self.unattached += other.unattached;
        self.refused += other.refused;
        self.bad_messages += other.bad_messages;
        self.fib_bytes += other.fib_bytes;
    }
}

struct Node<P> {
    plane: P,
    socket: PacketSocket,
    /// Interfaces by port.
    wires: Vec<Option<i32>>,
    /// Ports of the hosts with traffic, as of the last message.
    truth: HashMap<u64, u16>,
    tally: Tally,
}

/// Forwards until the orders end. `ports` is the number of ports, `truth` where each watched key
/// goes at the start.
pub fn run<P: Plane<Mac>>(
    plane: P,
    ports: usize,
    truth: HashMap<u64, u16>,
    orders: &Receiver<Order>,
) -> io::Result<Tally> {
    let socket = PacketSocket::open(PATIENCE)?;
    let mut node = Node { plane, socket, wires: vec![None; ports], truth, tally: Tally::default() };
    loop {
        loop {
            match orders.try_recv() {
                Ok(order) => node.obey(order),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    node.tally.fib_bytes = node.plane.bytes() as u64;
                    return Ok(node.tally);
                }
            }
        }
        match node.socket.receive() {
            Ok(count) => node.forward(count),
            Err(error) if passes(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether an error of a packet socket is a matter of time: nothing came, or an interface went
/// down, which is said once and then forgotten.
fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENOBUFS))
}

impl<P: Plane<Mac>> Node<P> {
    fn obey(&mut self, order: Order) {
        match order {
            Order::Update { message, key, port, watched } => {
                if let Some(message) = message
                    && let Err(error) = self.plane.apply(&message)
                {
                    tracing::error!("a message was refused: {error}");
                    self.tally.bad_messages += 1;
                }
                if watched {
                    self.truth.insert(key.0, port);
                }
            }
            Order::Wire { port, interface } => self.wires[usize::from(port)] = interface,
            Order::Check { keys, answer } => {
                let names: Vec<Mac> = keys.iter().map(|&(key, _)| key).collect();
                let mut found = vec![None; names.len()];
                self.plane.ports(&names, &mut found);
                let right = keys.iter().zip(&found).filter(|((_, port), out)| **out == Some(*port));
                // Who asked may have been interrupted.
                let _ = answer.send((keys.len() - right.count()) as u64);
            }
        }
    }

    fn forward(&mut self, count: usize) {
        self.tally.frames += count as u64;
        let mut keys = [Mac(0); BURST];
        let mut places = [0usize; BURST];
        let mut known = 0;
        for at in 0..count {
            let Some(&octets) = self.socket.frame(at).first_chunk::<6>() else { continue };
            // Broadcast and multicast have no host.
            if octets[0] & 1 == 0 {
                (keys[known], places[known]) = (Mac::from_octets(octets), at);
                known += 1;
            }
        }
        self.tally.aliens += (count - known) as u64;
        let mut ports = [None; BURST];
        self.plane.ports(&keys[..known], &mut ports[..known]);
        let mut out = [(0, 0); BURST];
        let mut sending = 0;
        for ((key, port), &place) in keys[..known].iter().zip(ports).zip(&places) {
            self.judge(*key, port);
            let Some(port) = port else { continue };
            match self.wires.get(usize::from(port)) {
                Some(&Some(interface)) => {
                    out[sending] = (place, interface);
                    sending += 1;
                }
                _ => self.tally.unattached += 1,
            }
        }
        let taken = self.socket.send(&out[..sending]);
        self.tally.forwarded += taken as u64;
        self.tally.refused += (sending - taken) as u64;
    }

    fn judge(&mut self, key: Mac, found: Option<u16>) {
        let Some(&wanted) = self.truth.get(&key.0) else {
            self.tally.aliens += 1;
            return;
        };
        self.tally.lookups += 1;
        match found {
            None => self.tally.lost += 1,
            Some(found) if found != wanted => self.tally.misdirected += 1,
            Some(_) => {}
        }
    }
}
