//! A forwarding node: a thread in its namespace with ports and a data plane.

use super::keys::SwitchKey;
use super::ports::{BURST, Drops, NotSent, Ports, Reason};
use crate::Result;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;
use weir_fib::Plane;

/// How long a node waits for frames before it looks for orders.
const PATIENCE: Duration = Duration::from_millis(2);

/// Frames that a node holds whose hosts are between two nodes.
const HOLD: usize = 1024;

/// What the control plane says to a node.
pub enum Order<K> {
    /// A message for the data plane, if it concerns the node, and where the key is now to go:
    /// what the node's lookups are held against.
    Update { message: Option<Vec<u8>>, key: K, port: u16, watched: bool },
    /// A port leads to this interface from now on.
    Plug { port: u16, interface: u32, done: Sender<Result<()>> },
    /// A port's interface is about to be switched off.
    Pause { port: u16, done: Sender<Result<()>> },
    /// A port's interface is off, and goes.
    Unplug { port: u16, done: Sender<Result<()>> },
    /// Look all of these up, and say how many are wrong.
    Check { keys: Vec<(K, u16)>, answer: Sender<u64> },
}

/// What a node did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Frames that came in by any port.
    pub frames: u64,
    pub forwarded: u64,
    /// Frames to group addresses, which are the kernel's.
    pub group: u64,
    /// Frames that waited for their host to be somewhere.
    pub held: u64,
    /// Lookups of valid keys.
    pub lookups: u64,
    /// Valid keys that the FIB did not know.
    pub lost: u64,
    /// Valid keys that the FIB gave another port.
    pub misdirected: u64,
    /// Frames with other than known keys.
    pub aliens: u64,
    /// Messages that the data plane refused.
    pub bad_messages: u64,
    pub drops: Drops,
    /// Bytes of the data plane at the end.
    pub fib_bytes: u64,
    /// Bytes of memory for frames.
    pub frame_bytes: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.forwarded += other.forwarded;
        self.group += other.group;
        self.held += other.held;
        self.lookups += other.lookups;
        self.lost += other.lost;
        self.misdirected += other.misdirected;
        self.aliens += other.aliens;
        self.bad_messages += other.bad_messages;
        self.drops.add(&other.drops);
        self.fib_bytes += other.fib_bytes;
        self.frame_bytes += other.frame_bytes;
    }

    /// Frames of which nobody knows where they are; none.
    pub fn unaccounted(&self) -> i64 {
        self.frames as i64 - self.forwarded as i64 - self.drops.received() as i64
    }
}

struct Node<K, P, S: Ports> {
    plane: P,
    ports: S,
    /// Ports of the keys with traffic, as of the last message.
    truth: HashMap<K, u16>,
    held: Vec<S::Frame>,
    tally: Tally,
    // Lists that are filled anew for each burst.
    keys: Vec<K>,
    frames: Vec<S::Frame>,
    found: Vec<Option<u16>>,
}

/// What a node starts with.
pub struct Start<K, P> {
    pub plane: P,
    /// Number of ports.
    pub ports: usize,
    /// Ports and what is plugged into them.
    pub wires: Vec<(u16, u32)>,
    /// Where each watched key goes.
    pub truth: HashMap<K, u16>,
}

/// Forwards until the orders end. Says whether its ports work before.
pub fn run<K: SwitchKey, P: Plane<K>, S: Ports>(
    start: Start<K, P>,
    orders: &Receiver<Order<K>>,
    ready: Sender<Result<()>>,
) -> Result<Tally> {
    let ports = S::open(start.ports).and_then(|mut ports| {
        start.wires.iter().try_for_each(|&(port, interface)| ports.plug(port, interface))?;
        Ok(ports)
    });
    let (ports, opened) = match ports {
        Ok(ports) => (Some(ports), Ok(())),
        Err(error) => (None, Err(error)),
    };
    // Who asked may have been interrupted.
    let _ = ready.send(opened);
    drop(ready);
    let Some(ports) = ports else { return Ok(Tally::default()) };
    let mut node = Node {
        plane: start.plane,
        ports,
        truth: start.truth,
        held: Vec::new(),
        tally: Tally::default(),
        keys: Vec::with_capacity(BURST),
        frames: Vec::with_capacity(BURST),
        found: Vec::with_capacity(BURST),
    };
    let mut burst = Vec::with_capacity(BURST);
    while node.obey_all(orders)? {
        node.ports.receive(PATIENCE, &mut burst)?;
        node.tally.frames += burst.len() as u64;
        node.forward(&mut burst)?;
    }
    Ok(node.end())
}

impl<K: SwitchKey, P: Plane<K>, S: Ports> Node<K, P, S> {
    /// Takes all orders that are there; false if there will be no more.
    fn obey_all(&mut self, orders: &Receiver<Order<K>>) -> Result<bool> {
        let mut changed = false;
        loop {
            match orders.try_recv() {
                Ok(order) => {
                    self.obey(order)?;
                    changed = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
        if changed && !self.held.is_empty() {
            let mut held = std::mem::take(&mut self.held);
            self.forward(&mut held)?;
        }
        Ok(true)
    }

    fn obey(&mut self, order: Order<K>) -> Result<()> {
        match order {
            Order::Update { message, key, port, watched } => {
                if let Some(message) = message
                    && let Err(error) = self.plane.apply(&message)
                {
                    tracing::error!("a message was refused: {error}");
                    self.tally.bad_messages += 1;
                }
                if watched {
                    self.truth.insert(key, port);
                }
            }
            Order::Plug { port, interface, done } => {
                // Who asked may have been interrupted; so below.
                let _ = done.send(self.ports.plug(port, interface));
            }
            Order::Pause { port, done } => {
                let _ = done.send(self.ports.pause(port));
            }
            Order::Unplug { port, done } => {
                let mut left = self.ports.unplug(port);
                // Those were counted when they came and when they were queued.
                self.tally.forwarded -= left.unsent.len() as u64;
                self.forward(&mut left.unsent)?;
                self.tally.frames += left.unread.len() as u64;
                self.forward(&mut left.unread)?;
                let _ = done.send(Ok(()));
            }
            Order::Check { keys, answer } => {
                let names: Vec<K> = keys.iter().map(|&(key, _)| key).collect();
                let mut found = vec![None; names.len()];
                self.plane.ports(&names, &mut found);
                let right = keys.iter().zip(&found).filter(|((_, port), out)| **out == Some(*port));
                let _ = answer.send((keys.len() - right.count()) as u64);
            }
        }
        Ok(())
    }

    /// Looks the keys of frames up and queues the frames at the ports that they lead to, then
    /// sends them all.
    fn forward(&mut self, burst: &mut Vec<S::Frame>) -> Result<()> {
        self.keys.clear();
        for frame in burst.drain(..) {
            match key_of(self.ports.bytes(&frame)) {
                Ok(Some(key)) => {
                    self.keys.push(key);
                    self.frames.push(frame);
                }
                // The kernel has got it too.
                Ok(None) => {
                    (self.tally.group, self.tally.frames) =
                        (self.tally.group + 1, self.tally.frames - 1);
                    self.ports.free(frame);
                }
                Err(reason) => self.drop(frame, reason),
            }
        }
        self.found.clear();
        self.found.resize(self.keys.len(), None);
        self.plane.ports(&self.keys, &mut self.found);
        let mut frames = std::mem::take(&mut self.frames);
        for (at, frame) in frames.drain(..).enumerate() {
            let (key, port) = (self.keys[at], self.found[at]);
            self.judge(key, port);
            let Some(port) = port else {
                self.drop(frame, Reason::NoRoute);
                continue;
            };
            match self.ports.send(frame, port) {
                Ok(()) => self.tally.forwarded += 1,
                Err(NotSent::Unplugged(frame)) => self.hold(frame),
                Err(NotSent::Full(frame)) => self.drop(frame, Reason::TxRingFull),
            }
        }
        self.frames = frames;
        for frame in self.ports.flush()? {
            self.tally.forwarded -= 1;
            self.hold(frame);
        }
        Ok(())
    }

    /// Keeps a frame until something changes: its host is moving.
    fn hold(&mut self, frame: S::Frame) {
        if self.held.len() < HOLD {
            self.tally.held += 1;
            self.held.push(frame);
        } else {
            self.drop(frame, Reason::HoldFull);
        }
    }

    fn drop(&mut self, frame: S::Frame, reason: Reason) {
        self.tally.drops.count(reason, 1);
        self.ports.free(frame);
    }

    fn judge(&mut self, key: K, found: Option<u16>) {
        let Some(&wanted) = self.truth.get(&key) else {
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

    fn end(mut self) -> Tally {
        for frame in std::mem::take(&mut self.held) {
            self.drop(frame, Reason::StillHeld);
        }
        let dropped = self.ports.drops();
        // These were queued, and counted as forwarded.
        self.tally.forwarded -= dropped.get(Reason::DeviceFull) + dropped.get(Reason::Refused);
        self.tally.drops.add(&dropped);
        self.tally.group += self.ports.group_frames();
        self.tally.fib_bytes = self.plane.bytes() as u64;
        self.tally.frame_bytes = self.ports.memory() as u64;
        self.tally
    }
}

/// A frame's key; none if it goes to a group.
fn key_of<K: SwitchKey>(frame: &[u8]) -> Result<Option<K>, Reason> {
    match frame {
        [first, _, _, _, _, _, ..] if frame.len() >= 14 => match first & 1 {
            0 => K::of_frame(frame).map(Some),
            _ => Ok(None),
        },
        _ => Err(Reason::BadFrame),
    }
}
