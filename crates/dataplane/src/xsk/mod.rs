//! AF_XDP: frames of many interfaces in one memory, forwarded without being copied in user space.
//!
//! ```text
//!             rx ring                                     tx ring, one kick for a burst
//!  port 0  ─────────────>  Frame (address in the UMEM)  ─────────────>  port 1
//!     ^                      |                                             |
//!     |  fill ring           | free()                     completion ring  |
//!     └──────────────  free chunks of 2,048 bytes  <───────────────────────┘
//! ```
//! Every port has a socket with its four rings on a queue of an interface; all sockets share one
//! memory (`XDP_SHARED_UMEM`), so the descriptor that came by one port goes out by another. The
//! memory is registered with a socket on the loopback device, which never goes away, so ports come
//! and go as they like; there is one memory for each network namespace. Several threads have an
//! [`XskPorts`] each, with a part of it, and sockets at queues of their own: they write to nothing
//! together. Frames are copied by the kernel on their way in and out; drivers of real devices could do
//! without, which this does not ask for.
//!
//! A [`Frame`] is a chunk that is in no ring. It can be read, sent or freed, and not twice.

mod device;
mod redirect;
mod ring;
mod socket;
mod umem;

pub use redirect::Redirect;
pub use umem::CHUNK;

use crate::error::{Context, Error};
use crate::user::UserMemory;
use device::{name_of, one_queue};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use redirect::Link;
use socket::{Memory, Socket};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use umem::{Area, MOST_PORTS, Umem};

/// The loopback device, which has number 1 in every network namespace.
const LOOPBACK: u32 = 1;

/// Entries of the rings of the socket that keeps the memory; nothing goes through them.
const SMALL_RING: u32 = 2;

/// How long a wait that ends with nothing but errors lasts at least.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// Chunks that a fill ring has at least.
const LEAST_FILL: u32 = 16;

/// A frame that was received: a piece of the shared memory. Give it back by
/// [`XskPorts::send`] or [`XskPorts::free`]; a frame that is dropped is a chunk lost until the end.
#[derive(Debug)]
#[must_use = "a frame is a chunk of memory that has to be sent or freed"]
pub struct Frame {
    address: u64,
    length: u32,
    port: u16,
}

impl Frame {
    fn chunk(&self) -> usize {
        (self.address / CHUNK as u64) as usize
    }

    /// Bytes of the frame.
    #[allow(clippy::len_without_is_empty, reason = "the kernel hands out no empty frame")]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// The port that it came by.
    pub fn port(&self) -> usize {
        self.port.into()
    }

    /// Where it begins in [`XskPorts::memory_mut`].
    pub fn at(&self) -> usize {
        self.address as usize
    }
}

/// Sizes of an [`XskPorts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XskConfig {
    /// The most ports at a time; they are numbered from 0.
    pub ports: usize,
    /// Chunks of [`CHUNK`] bytes. Half of them wait in fill rings, divided among the ports.
    pub chunks: u32,
    /// Entries of each ring, a power of two.
    pub ring: u32,
}

/// Frames that were dropped, or not handed over, by reason; over all ports, those that are gone
/// included.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct XskDrops {
    /// The kernel had no chunk of the port's fill ring for a frame that came, or it was longer than
    /// a chunk has room.
    pub no_chunk: u64,
    /// The port's rx ring was full.
    pub rx_ring_full: u64,
    /// The interface took a frame from the tx ring and dropped it, its queue being full.
    pub device_full: u64,
    /// Descriptors that the kernel refused or gave back and that were not ours to use or get; a
    /// mistake of this program or the kernel's.
    pub bad_descriptors: u64,
}

/// What a port leaves when it is unplugged.
#[derive(Debug, Default)]
pub struct Unplugged {
    /// Frames that came by the port and were not yet received.
    pub unread: Vec<Frame>,
    /// Frames that were to leave by the port, in order.
    pub unsent: Vec<Frame>,
}

struct Port {
    // The link goes first: no frame is redirected to a socket that is gone.
    link: Option<Link>,
    socket: Socket,
    interface: u32,
    queue: u32,
    /// Chunks in the fill ring, or with a frame in the rx ring.
    lent: u32,
    /// Frames in the tx ring, or sent and not yet completed.
    sending: u32,
}

/// What leads frames to sockets.
enum Lead {
    /// A program of their own, at each interface.
    Own(Box<Redirect>),
    /// The one that a data plane has in front, which finds them here (bpf/front.bpf.c).
    Front { queues: MapHandle, sockets: MapHandle },
}

/// AF_XDP sockets of interfaces of one network namespace, over one memory, or a part of it.
pub struct XskPorts {
    // Sockets go before the memory that they point into.
    ports: Vec<Option<Port>>,
    keeper: Arc<Socket>,
    umem: Umem,
    lead: Lead,
    /// The place of the first port among those of all threads.
    first: u32,
    config: XskConfig,
    /// Port whose rx ring comes first next time.
    turn: usize,
    drops: XskDrops,
}

impl XskPorts {
    /// Loads the program and makes the memory, in the network namespace of this thread; ports can
    /// be plugged in by threads in the same namespace only.
    ///
    /// # Errors
    /// Whatever the kernel refuses, by name. This needs root.
    ///
    /// # Panics
    /// If `ring` is not a power of two, or there are more than 65,533 ports.
    pub fn open(config: XskConfig) -> Result<Self, Error> {
        let redirect = Redirect::load(config.ports)?;
        let mut all = Self::led_by(vec![Lead::Own(Box::new(redirect))], config)?;
        Ok(all.remove(0))
    }

    /// As [`open`](Self::open), for sockets that a data plane's program in front leads frames to, and for so
    /// many threads: each gets ports and chunks as `config` says, and is to plug in queues that no other one has.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn open_behind(
        memory: &UserMemory,
        config: XskConfig,
        threads: usize,
    ) -> Result<Vec<Self>, Error> {
        let lead = |_| {
            let (queues, sockets) = memory.sockets()?;
            Ok(Lead::Front { queues, sockets })
        };
        Self::led_by((0..threads).map(lead).collect::<Result<_, Error>>()?, config)
    }

    /// One for each, over one memory.
    fn led_by(leads: Vec<Lead>, config: XskConfig) -> Result<Vec<Self>, Error> {
        assert!(config.ring.is_power_of_two() && config.ports < MOST_PORTS);
        let area = Area::new(leads.len() * config.chunks as usize);
        let area = Arc::new(area.context(|| "get memory for frames".into())?);
        let keeper = Arc::new(Socket::open(LOOPBACK, 0, SMALL_RING, Memory::Own(&area))?);
        let parts = Umem::divide(&area, leads.len(), config.chunks);
        let one = |(number, (lead, umem)): (usize, (Lead, Umem))| Self {
            ports: (0..config.ports).map(|_| None).collect(),
            keeper: Arc::clone(&keeper),
            umem,
            lead,
            first: (number * config.ports) as u32,
            config,
            turn: 0,
            drops: XskDrops::default(),
        };
        Ok(leads.into_iter().zip(parts).enumerate().map(one).collect())
    }

    /// The place of a port among those of all threads, by which the kernel finds its socket.
    fn slot(&self, port: usize) -> u32 {
        self.first + port as u32
    }

    /// Opens a socket on an interface and redirects the interface's frames to it, but those to
    /// group addresses, which the kernel gets.
    ///
    /// # Errors
    /// Whatever the kernel refuses, by name; [`Error::Occupied`] if another program is attached.
    ///
    /// # Panics
    /// If there is no such port, or it is in use.
    pub fn plug(&mut self, port: usize, interface: u32) -> Result<(), Error> {
        one_queue(interface)?;
        self.plug_queue(port, interface, 0)
    }

    /// The same for one queue of an interface that may have several.
    ///
    /// # Errors
    /// As [`plug`](Self::plug).
    ///
    /// # Panics
    /// As [`plug`](Self::plug).
    pub fn plug_queue(&mut self, port: usize, interface: u32, queue: u32) -> Result<(), Error> {
        assert!(self.ports[port].is_none(), "port {port} is in use");
        let (ring, memory) = (self.config.ring, Memory::Of(&self.keeper));
        let mut socket = Socket::open(interface, queue, ring, memory)?;
        let mut lent = 0;
        self.umem.refill(port, &mut socket.fill, &mut lent, self.fill());
        let slot = self.slot(port);
        match self.lead.attach(interface, queue, slot, &socket) {
            Ok(link) => {
                let sending = 0;
                self.ports[port] = Some(Port { link, socket, interface, queue, lent, sending });
                Ok(())
            }
            Err(error) => {
                self.lead.forget(interface, queue, slot);
                drop(socket);
                self.umem.free_all_of(port);
                Err(error)
            }
        }
    }

    /// Chunks that each port's fill ring gets.
    fn fill(&self) -> u32 {
        let share = self.config.chunks / 2 / self.config.ports.max(1) as u32;
        share.max(LEAST_FILL).min(self.config.ring)
    }

    /// Closes a port; none of its frames gets lost that had come by it or was on its way to it.
    /// Take the interface down before: a frame that it receives after is the kernel's. Empty if
    /// the port was not in use.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn unplug(&mut self, port: usize) -> Unplugged {
        let mut left = Unplugged::default();
        let Some(Port { link, mut socket, interface, queue, .. }) = self.ports[port].take() else {
            return left;
        };
        drop(link);
        self.lead.forget(interface, queue, self.slot(port));
        // After it no program knows the socket any more, so the kernel writes to none of the port's
        // chunks. (Where it is not to be had, closing the socket waits as well.)
        let _ = crate::grace();
        self.drops.add(&socket);
        while let Some(descriptor) = socket.rx.pop() {
            left.unread.extend(self.umem.take(port, &descriptor));
        }
        for descriptor in socket.tx.reclaim() {
            left.unsent.extend(self.umem.take(port, &descriptor));
        }
        drop(socket);
        self.umem.free_all_of(port);
        left
    }

    /// Takes up to `most` frames that have come, by all ports in turn.
    pub fn receive(&mut self, most: usize, out: &mut Vec<Frame>) {
        let (count, most) = (self.ports.len(), out.len() + most);
        let fill = self.fill();
        for at in 0..count {
            let number = (self.turn + at) % count;
            let Some(port) = &mut self.ports[number] else { continue };
            let mut taken = 0;
            while out.len() < most
                && let Some(descriptor) = port.socket.rx.pop()
            {
                taken += 1;
                match self.umem.take(number, &descriptor) {
                    Some(frame) => out.push(frame),
                    None => self.drops.bad_descriptors += 1,
                }
            }
            if taken > 0 {
                port.socket.rx.release();
                port.lent = port.lent.saturating_sub(taken);
            }
            self.umem.refill(number, &mut port.socket.fill, &mut port.lent, fill);
        }
        self.turn = (self.turn + 1) % count.max(1);
    }

    /// The bytes of a frame.
    ///
    /// # Panics
    /// If the frame is not of this memory.
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        self.umem.bytes(frame)
    }

    /// Puts a frame into a port's tx ring; it leaves with the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The frame, if the port is not in use or its ring is full.
    ///
    /// # Panics
    /// If there is no such port, or the frame is not of this memory.
    pub fn send(&mut self, frame: Frame, port: usize) -> Result<(), Frame> {
        let Some(to) = &mut self.ports[port] else { return Err(frame) };
        if to.socket.tx.room() == 0 {
            return Err(frame);
        }
        to.socket.tx.push(self.umem.give(port, frame));
        to.sending += 1;
        Ok(())
    }

    /// Lets the kernel send what is in tx rings, with one call for each port that has something,
    /// and takes chunks back. What the kernel does not take now stays in its ring for the next
    /// time.
    ///
    /// # Errors
    /// What the kernel says other than that it is busy, or the interface down.
    pub fn flush(&mut self) -> Result<(), Error> {
        for (number, port) in self.ports.iter_mut().enumerate() {
            let Some(port) = port.as_mut().filter(|port| port.sending > 0) else { continue };
            port.socket.tx.publish();
            let mut waiting = port.socket.tx.waiting();
            while waiting > 0 && port.socket.tx.wants_wakeup() {
                let kicked = port.socket.kick().map_err(|error| error.raw_os_error());
                self.umem.collect(number, port, &mut self.drops);
                let left = port.socket.tx.waiting();
                match kicked {
                    Err(Some(libc::EBUSY)) => self.drops.device_full += 1,
                    Ok(()) | Err(Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR)) => {}
                    // Down, or gone; who plugged it in will unplug it.
                    Err(Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV)) => break,
                    Err(error) => {
                        return Err(io::Error::from_raw_os_error(error.unwrap_or(libc::EIO)))
                            .context(|| format!("send by {}", name_of(port.interface)));
                    }
                }
                if left == waiting {
                    break;
                }
                waiting = left;
            }
            self.umem.collect(number, port, &mut self.drops);
        }
        Ok(())
    }

    /// Frames in a port's tx ring that the kernel has not taken.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn unsent(&self, port: usize) -> u32 {
        self.ports[port].as_ref().map_or(0, |port| port.socket.tx.waiting())
    }

    /// Waits until a frame has come, at most so long.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub fn wait(&self, patience: Duration) -> Result<(), Error> {
        self.wait_readable(patience).map(drop)
    }

    /// The same; returns whether one has. An interface that is gone or down does not end the wait.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_readable(&self, patience: Duration) -> Result<bool, Error> {
        let ports = self.ports.iter().flatten();
        let mut polls: Vec<libc::pollfd> = ports
            .map(|port| libc::pollfd {
                fd: port.socket.fd().as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        let time = patience.as_millis().min(i32::MAX as u128) as i32;
        // SAFETY: the list outlives the call, and its length is given.
        let done = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, time) };
        match (done, io::Error::last_os_error()) {
            (0.., _) => {
                let readable = polls.iter().any(|poll| poll.revents & libc::POLLIN != 0);
                if done > 0 && !readable {
                    // Only errors, which stay: whoever waits would not.
                    thread::sleep(patience.min(ERROR_PAUSE));
                }
                Ok(readable)
            }
            (_, error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            (_, error) => Err(error).context(|| "wait for frames".into()),
        }
    }

    /// All memory of these ports' frames; each lies where [`Frame::at`] says. Of other places nothing can be relied
    /// on.
    pub fn memory_mut(&mut self) -> &mut [u8] {
        self.umem.all_mut()
    }

    /// Says that a frame begins there now, and how long it is. False, and nothing changes, if that is not
    /// within its chunk.
    pub fn reshape(&self, frame: &mut Frame, at: usize, length: usize) -> bool {
        self.umem.reshape(frame, at, length)
    }

    /// The interface and the queue of a port that is in use.
    pub fn place_of(&self, port: usize) -> Option<(u32, u32)> {
        self.ports.get(port)?.as_ref().map(|port| (port.interface, port.queue))
    }

    /// Ports are numbered below this.
    pub fn numbers(&self) -> usize {
        self.ports.len()
    }

    /// How many receive queues an interface has.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn queues(interface: u32) -> Result<u32, Error> {
        device::queues(interface)
    }

    /// How many queues an interface of this thread's namespace sends by.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn transmit_queues(interface: u32) -> Result<u32, Error> {
        device::transmit_queues(interface)
    }

    /// Frees a frame's memory.
    ///
    /// # Panics
    /// If the frame is not of this memory.
    pub fn free(&mut self, frame: Frame) {
        self.umem.free(frame);
    }

    /// What was dropped so far.
    pub fn drops(&self) -> XskDrops {
        let mut drops = self.drops;
        self.ports.iter().flatten().for_each(|port| drops.add(&port.socket));
        drops
    }

    /// Frames to group addresses, which went to the kernel.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn group_frames(&self) -> Result<u64, Error> {
        match &self.lead {
            Lead::Own(redirect) => redirect.group_frames(),
            Lead::Front { .. } => Ok(0),
        }
    }

    /// Chunks that are free, and that are held as [`Frame`]s; the others are in rings.
    pub fn chunks(&self) -> (usize, usize) {
        self.umem.counts()
    }

    /// Bytes of the memory for frames.
    pub fn memory_bytes(&self) -> usize {
        self.umem.memory_bytes()
    }
}

impl Lead {
    fn attach(
        &self,
        interface: u32,
        queue: u32,
        slot: u32,
        socket: &Socket,
    ) -> Result<Option<Link>, Error> {
        match self {
            Self::Own(redirect) => redirect.attach(interface, slot, socket.fd()).map(Some),
            Self::Front { queues, sockets } => {
                // The socket first: a queue that is known has one.
                sockets
                    .update(
                        &slot.to_ne_bytes(),
                        &socket.fd().as_raw_fd().to_ne_bytes(),
                        MapFlags::ANY,
                    )
                    .context(|| format!("put the socket of interface {interface} into its map"))?;
                queues
                    .update(&key_of(interface, queue), &slot.to_ne_bytes(), MapFlags::ANY)
                    .context(|| format!("enter queue {queue} of interface {interface}"))?;
                Ok(None)
            }
        }
    }

    fn forget(&self, interface: u32, queue: u32, slot: u32) {
        match self {
            Self::Own(redirect) => redirect.forget(interface, slot),
            Self::Front { queues, sockets } => {
                let _ = queues.delete(&key_of(interface, queue));
                let _ = sockets.delete(&slot.to_ne_bytes());
            }
        }
    }
}

/// A queue as bpf/front.bpf.c looks for it.
fn key_of(interface: u32, queue: u32) -> [u8; 8] {
    (u64::from(interface) << 32 | u64::from(queue)).to_ne_bytes()
}

impl Umem {
    /// Fills a port's fill ring up to its share.
    fn refill(&mut self, port: usize, ring: &mut ring::Ring<u64>, lent: &mut u32, share: u32) {
        let before = *lent;
        while *lent < share
            && ring.room() > 0
            && let Some(address) = self.lend(port)
        {
            ring.push(address);
            *lent += 1;
        }
        if *lent != before {
            ring.publish();
        }
    }

    /// Takes back the chunks of frames that were sent.
    fn collect(&mut self, number: usize, port: &mut Port, drops: &mut XskDrops) {
        let mut taken = 0;
        while let Some(address) = port.socket.completion.pop() {
            taken += 1;
            if !self.done(number, address) {
                drops.bad_descriptors += 1;
            }
        }
        if taken > 0 {
            port.socket.completion.release();
            port.sending = port.sending.saturating_sub(taken);
        }
    }
}

impl XskDrops {
    /// Adds what the kernel counted at a socket.
    fn add(&mut self, socket: &Socket) {
        let Ok(counted) = socket.statistics() else { return };
        self.no_chunk += counted.rx_dropped;
        self.rx_ring_full += counted.rx_ring_full;
        self.bad_descriptors += counted.rx_invalid_descs + counted.tx_invalid_descs;
    }
}
