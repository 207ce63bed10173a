//! Devices of DPDK as ports of a plane, with one memory.

use crate::ffi::{self, Held, Pool};
use crate::flows::Flows;
use crate::tap::Tap;
use crate::{Buffers, Counts, Error, Link, Memory, Pair};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_int};
use std::ptr::{null_mut, slice_from_raw_parts_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use weir_offload::Refusal;
use weir_plane_burst::{BURST, Fate, Frame, HEADROOM, Ports};

/// Plugging devices in and out is not for several threads at once.
static PLUG: Mutex<()> = Mutex::new(());
static STARTED: Mutex<Option<(Memory, Result<(), Error>)>> = Mutex::new(None);
/// Frames that a queue of a rule's receives at a time: there may be many, and what is led is taken soon.
const LED_RING: u16 = 256;
/// Drivers may hand over none to who asks for a few.
const FEWEST: usize = BURST / 2;
/// Of pools, whose names differ.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// DPDK in this process.
#[derive(Clone, Copy, Debug)]
pub struct Eal(());

impl Eal {
    /// Starts it, if it has not started yet. It looks at no card of the machine by itself, and shares nothing
    /// with other processes.
    ///
    /// # Errors
    /// [`Error::HugePages`], [`Error::Start`]; [`Error::Started`] if it runs with other memory.
    pub fn start(memory: Memory) -> Result<Self, Error> {
        Self::start_for(memory, &[])
    }

    /// As [`start`](Self::start); of the cards of the machine, it looks at those of these devices that are at
    /// addresses of PCI.
    ///
    /// # Errors
    /// As there.
    pub fn start_for(memory: Memory, devices: &[&str]) -> Result<Self, Error> {
        let mut started = STARTED.lock().unwrap_or_else(|broken| broken.into_inner());
        if let Some((with, done)) = &*started {
            let same = *with == memory;
            return done.clone().and(if same { Ok(Self(())) } else { Err(Error::Started) });
        }
        if memory.huge {
            // Refused before anything is begun: it may be tried again.
            enough_huge_pages(u64::from(memory.megabytes), &read_meminfo())?;
        }
        // It binds the thread that starts it to a processor, which is none of ours.
        let cards: Vec<String> =
            devices.iter().filter(|device| is_card(device)).map(|&device| device.into()).collect();
        let done = thread::spawn(move || start(memory, &cards)).join();
        let done = done.unwrap_or_else(|_| Err(Error::Start("its thread has ended".into())));
        *started = Some((memory, done.clone()));
        done.map(|()| Self(()))
    }
}

fn read_meminfo() -> String {
    std::fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// By what the kernel says of its memory.
fn enough_huge_pages(wanted: u64, meminfo: &str) -> Result<(), Error> {
    let number = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let size = number("Hugepagesize:").unwrap_or(2048).max(1);
    let count = |name: &str| number(name).unwrap_or(0);
    // Some of what nobody has yet is promised to others.
    let free = count("HugePages_Free:").saturating_sub(count("HugePages_Rsvd:")) * size / 1024;
    if free >= wanted {
        return Ok(());
    }
    let all = count("HugePages_Total:");
    Err(Error::HugePages { wanted, free, pages: all + ((wanted - free) * 1024).div_ceil(size) })
}

/// Whether a device is a card, by an address of PCI: 0000:01:00.0, or 01:00.0.
fn is_card(device: &str) -> bool {
    let address = device.split(',').next().unwrap_or_default();
    let parts: Vec<&str> = address.split([':', '.']).collect();
    let hex = |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_hexdigit());
    (3..=4).contains(&parts.len()) && address.contains('.') && parts.iter().all(hex)
}

fn start(memory: Memory, cards: &[String]) -> Result<(), Error> {
    let mut words = ["weir", "--no-telemetry"].map(str::to_owned).to_vec();
    if cards.is_empty() {
        words.extend(["--no-pci", "--iova-mode=va"].map(str::to_owned));
    }
    // How a card reaches memory is for its driver to say.
    words.extend(cards.iter().flat_map(|card| ["-a".to_owned(), card.clone()]));
    words.extend(["--log-level=*:error".into(), "-m".into(), memory.megabytes.to_string()]);
    // No processor is its own: threads of ours come to it.
    words.extend(["--lcores".into(), format!("0@(0-{})", last_cpu())]);
    // What shares nothing with other processes is called otherwise without huge pages.
    let alone: &[&str] = if memory.huge { &["--in-memory"] } else { &["--no-huge", "--no-shconf"] };
    words.extend(alone.iter().map(|word| (*word).to_owned()));
    let mut words: Vec<_> = words.iter().map(|word| string(word).into_raw()).collect();
    // SAFETY: the words are strings that end in a zero, writable, and are leaked: DPDK keeps them.
    let error = unsafe { ffi::weir_dpdk_start(words.len() as c_int, words.as_mut_ptr()) };
    if error == 0 { Ok(()) } else { Err(Error::Start(said(error))) }
}

fn last_cpu() -> usize {
    thread::available_parallelism().map_or(1, usize::from) - 1
}

fn string(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

fn said(error: c_int) -> String {
    // SAFETY: it returns a string, of this thread or of the program.
    let words = unsafe { CStr::from_ptr(ffi::weir_dpdk_words(error)) };
    words.to_string_lossy().into_owned()
}

/// A thread that has come to DPDK, until it ends.
struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: the thread has been registered. Ports that it closes later do without its caches.
        unsafe { ffi::weir_dpdk_leave() }
    }
}

thread_local! {
    static ENTERED: RefCell<Option<Entered>> = const { RefCell::new(None) };
}

fn enter() -> Result<(), Error> {
    ENTERED.with_borrow_mut(|entered| {
        if entered.is_none() {
            // SAFETY: DPDK has started.
            match unsafe { ffi::weir_dpdk_enter() } {
                0 => *entered = Some(Entered),
                error => return Err(Error::Thread(said(error))),
            }
        }
        Ok(())
    })
}

/// Buffers, until nobody has them any more.
#[derive(Debug)]
struct Room(Pool);

// SAFETY: DPDK's pools may be used by any thread, and by several. The region of the buffers is reached by the
// `Dpdk` alone that these buffers were made for, and by devices while it calls them.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: whoever has frames of the pool, or receives into it, has a share of this.
        unsafe { ffi::weir_dpdk_pool_free(&mut self.0) }
    }
}

/// A device that was plugged in, until nobody has a queue of it any more.
#[derive(Debug)]
pub(crate) struct Device {
    pub number: u16,
    /// The kernel's number of the interface that it is, or 0.
    interface: u32,
    /// Device arguments.
    pub arguments: String,
    /// Whether flows go to its first queue unless it is told otherwise: it is a card. Others spread them by themselves.
    pub leads_to_the_first: bool,
    /// Whether it is at an interface that it would have made, and that was there before.
    pub at_what_was_there: bool,
    name: CString,
    /// Receive queues in all.
    queues: u16,
    /// What its queues receive into: freed after it is closed.
    rooms: Vec<Arc<Room>>,
}

impl Device {
    /// Receive queues that it was opened with.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// How many of them each thread has: one, but where rules lead to them.
    fn of_thread(&self) -> u16 {
        if self.rooms.len() == 1 { self.queues } else { 1 }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _plug = PLUG.lock();
        // SAFETY: the port was opened, and nobody else has it.
        unsafe { ffi::weir_dpdk_close(self.number, self.name.as_ptr()) }
    }
}

/// A queue of a device.
#[derive(Debug)]
struct Port {
    device: Arc<Device>,
    /// The interface that frames leave by it for: its own, or the tap that stands for it.
    called: u32,
    /// Whether it leads to the kernel.
    tap: bool,
    /// Where what is the kernel's goes; of a tap, what the kernel has sent.
    peer: Option<usize>,
    /// What leaves by it at the end of the burst.
    out: Vec<Held>,
}

/// What one of several threads gets: a queue of each device, and buffers of its own. It is sent to that thread,
/// which [enters](Self::enter). Nothing is shared that packets write to, so that no thread waits for another one.
#[derive(Debug)]
pub struct Share {
    ports: Vec<(Arc<Device>, Settled)>,
    queue: u16,
    ring: u32,
    room: Arc<Room>,
}

/// What a port is besides.
#[derive(Clone, Copy, Debug)]
struct Settled {
    called: u32,
    tap: bool,
    peer: Option<usize>,
}

impl Share {
    /// The ports of the calling thread, with which they stay.
    ///
    /// # Errors
    /// [`Error::Thread`] if it cannot be one of DPDK's.
    pub fn enter(self) -> Result<Dpdk, Error> {
        enter()?;
        let ports = self.ports.into_iter().map(|(device, Settled { called, tap, peer })| {
            let out = Vec::with_capacity(BURST);
            Port { device, called, tap, peer, out }
        });
        let ports: Vec<Port> = ports.collect();
        let queues = ports.iter().map(|port| port.device.of_thread());
        let most = queues.clone().max().unwrap_or(1);
        let of_port = |(port, count): (usize, u16)| (0..count).map(move |queue| (port, queue));
        let all: Vec<(usize, u16)> = match most {
            0 | 1 => Vec::new(),
            _ => queues.enumerate().flat_map(of_port).collect(),
        };
        Ok(Dpdk {
            ports,
            led: Led { all, turn: 0, left: vec![0; most.into()] },
            queue: self.queue,
            ring: self.ring,
            held: Vec::new(),
            came_by: Vec::new(),
            unheld: Vec::new(),
            keeps: false,
            turn: 0,
            counts: Counts::default(),
            room: self.room,
        })
    }

    /// Leaves the ports as they are, for a process that ends, as [`Dpdk::leave`] does.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

/// Queues that rules lead to.
#[derive(Debug)]
struct Led {
    /// All queues, by port and number, if a port has several.
    all: Vec<(usize, u16)>,
    /// The one that is asked first.
    turn: usize,
    /// By number: how many ports' queues may hold more than was taken last.
    left: Vec<usize>,
}

/// Devices of DPDK as ports of a plane. They stay with the thread that has opened them.
pub struct Dpdk {
    ports: Vec<Port>,
    led: Led,
    /// The number of the queue of each device that is this one's.
    queue: u16,
    /// Entries of a queue, at most.
    ring: u32,
    /// Those that are with the plane, by the frames' buffers, and the ports and queues that they came by.
    held: Vec<Held>,
    came_by: Vec<(usize, u16)>,
    /// Numbers that none of them has.
    unheld: Vec<u32>,
    /// Whether frames may stay with the plane when others are finished.
    keeps: bool,
    /// The port that is asked first.
    turn: usize,
    counts: Counts,
    room: Arc<Room>,
}

impl Drop for Dpdk {
    fn drop(&mut self) {
        // Before the devices, and with the last one the memory.
        free(&mut self.held);
    }
}

/// Buffers of these frames are free.
fn free(frames: &mut [Held]) {
    for held in frames.iter_mut().filter(|held| !held.mbuf.is_null()) {
        // SAFETY: the mbuf is ours, and forgotten below.
        unsafe { ffi::weir_dpdk_free(held, 1) }
        *held = Held::NONE;
    }
}

impl Dpdk {
    /// Plugs in devices, of DPDK's device arguments. Frames that are the host's leave by the device `kernel`,
    /// a tap, and what comes in by that leaves by the first of the others.
    ///
    /// # Errors
    /// What keeps a device from being one.
    pub fn open(
        eal: Eal,
        devices: &[&str],
        kernel: Option<&str>,
        buffers: Buffers,
    ) -> Result<Self, Error> {
        only(Self::open_for(eal, devices, kernel, 1, buffers)?)
    }

    /// As [`open`](Self::open), for so many threads: each gets a queue of every device and so many buffers. Which
    /// flows come by which queue is the device's to say.
    ///
    /// # Errors
    /// As there; [`Error::Queues`].
    pub fn open_for(
        _: Eal,
        devices: &[&str],
        kernel: Option<&str>,
        threads: u16,
        buffers: Buffers,
    ) -> Result<Vec<Share>, Error> {
        let mut wanted: Vec<_> = devices.iter().map(|device| Wanted::new(device)).collect();
        if let Some(kernel) = kernel {
            let at = wanted.len();
            wanted.iter_mut().for_each(|device| device.peer = Some(at));
            wanted.push(Wanted { tap: true, peer: Some(0), ..Wanted::new(kernel) });
        }
        plug_all(&wanted, threads, buffers)
    }

    /// Plugs in devices, each with a tap that stands for it in the kernel: an interface that is there, with
    /// several queues. Frames that are the host's leave by the tap of the device that they came by, and what
    /// the kernel sends by a tap leaves by its device; frames that are to leave by a tap do, too.
    ///
    /// # Errors
    /// What keeps a device, or a tap, from being one. What was plugged in before stays as it is, as after
    /// [`leave`](Self::leave).
    pub fn open_pairs(eal: Eal, pairs: &[Pair<'_>], buffers: Buffers) -> Result<Self, Error> {
        only(Self::open_pairs_for(eal, pairs, 1, buffers)?)
    }

    /// As [`open_pairs`](Self::open_pairs), for so many threads: each gets a queue of every device and of every
    /// tap, and so many buffers.
    ///
    /// # Errors
    /// As there; [`Error::Queues`].
    pub fn open_pairs_for(
        _: Eal,
        pairs: &[Pair<'_>],
        threads: u16,
        buffers: Buffers,
    ) -> Result<Vec<Share>, Error> {
        Self::open_all(pairs, threads, 1, buffers)
    }

    /// As [`open_pairs`](Self::open_pairs), for one thread with up to so many queues of each device, to which
    /// [rules](Self::flows) lead; of a device whose driver knows no rules, one. Frames of several queues come in one
    /// burst, and [`Ports::queue_of`] tells them apart.
    ///
    /// # Errors
    /// As there.
    pub fn open_pairs_led(
        _: Eal,
        pairs: &[Pair<'_>],
        queues: u16,
        buffers: Buffers,
    ) -> Result<Vec<Share>, Error> {
        Self::open_all(pairs, 1, queues, buffers)
    }

    fn open_all(
        pairs: &[Pair<'_>],
        threads: u16,
        led: u16,
        buffers: Buffers,
    ) -> Result<Vec<Share>, Error> {
        // Of the name in DPDK, of which a process has each once.
        static TAPS: AtomicU32 = AtomicU32::new(0);
        let mut taps = Vec::new();
        for pair in pairs {
            let tap = Tap::find(pair.tap)?;
            tap.suits(pair)?;
            let number = TAPS.fetch_add(1, Ordering::Relaxed);
            let mac = tap.mac.map(|octet| format!("{octet:02x}")).join(":");
            // Without an address it would draw one.
            taps.push((format!("net_tap{number},iface={},mac={mac}", pair.tap), tap));
        }
        let many = pairs.len();
        let devices = pairs.iter().zip(&taps).enumerate().map(|(at, (pair, (_, tap)))| {
            let (called, peer) = (Some(tap.index), Some(many + at));
            Wanted { called, peer, led, ..Wanted::new(pair.device) }
        });
        // After the devices: what is wrong is mostly wrong with these.
        let taps = taps.iter().enumerate().map(|(at, (device, _))| {
            let (called, peer) = (Some(0), Some(at));
            Wanted { called, tap: true, peer, ..Wanted::new(device) }
        });
        let new = plug_all(&devices.chain(taps).collect::<Vec<_>>(), threads, buffers)?;
        let opened = new.first().map_or(&[][..], |share| &share.ports);
        for ((device, _), (tap, _)) in opened.iter().zip(&opened[many.min(opened.len())..]) {
            // Switches and firmware know a card by its own address. Where the kernel has an interface there, it
            // is to ignore what is for the tap.
            if device.interface == 0 {
                // SAFETY: both ports are open.
                unsafe { ffi::weir_dpdk_copy_mac(device.number, tap.number) };
            }
        }
        Ok(new)
    }

    /// Lets frames stay with the plane when it finishes others: from now on each has to be finished.
    #[must_use]
    pub fn keeping(mut self) -> Self {
        self.keeps = true;
        self
    }

    /// Takes back what was received and not finished, unless that may stay.
    fn take_back(&mut self) {
        if !self.keeps {
            free(&mut self.held);
            self.held.clear();
            self.came_by.clear();
            self.unheld.clear();
        }
    }

    /// What became of frames.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How a port is.
    pub fn link(&self, port: usize) -> Link {
        let Some(Port { device: port, .. }) = self.ports.get(port) else { return Link::Gone };
        // SAFETY: no memory of ours is touched.
        let link = unsafe { ffi::weir_dpdk_link(port.number) };
        match link {
            // Not every driver asks the kernel whether its interface is still there.
            _ if port.interface != 0 && !is_interface(port.interface) => Link::Gone,
            2 => Link::Up,
            1 => Link::Down,
            _ => Link::Gone,
        }
    }

    /// The kernel's number of a port's interface; 0 if it has none.
    pub fn interface(&self, port: usize) -> u32 {
        self.ports.get(port).map_or(0, |port| port.device.interface)
    }

    /// An error if a device of these ports is not there any more.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn still_there(&self) -> Result<(), Error> {
        for (at, port) in self.ports.iter().enumerate() {
            if self.link(at) == Link::Gone {
                return Err(Error::Gone { device: port.device.arguments.clone() });
            }
        }
        Ok(())
    }

    /// The rules by which the device of a port leads packets of single flows to its queues (`rte_flow`), at so many
    /// places. Its driver is asked for one first, and whoever is refused goes on without rules.
    ///
    /// # Errors
    /// Why the driver takes none, in its words.
    pub fn flows(&self, port: usize, places: u32) -> Result<Flows, Refusal> {
        match self.ports.get(port) {
            Some(port) => Flows::of(Arc::clone(&port.device), places, self.ring),
            None => Err(Refusal::Device(format!("there is no port {port}"))),
        }
    }

    /// Sends a frame of these bytes by a port, past the plane. A ring port hands it over as received.
    ///
    /// # Errors
    /// If there is no buffer, it does not fit into one, or the port does not take it.
    pub fn put(&mut self, port: usize, bytes: &[u8]) -> Result<(), Error> {
        let refused = |why: String| Error::Frame { bytes: bytes.len(), why };
        let length = u16::try_from(bytes.len()).map_err(|_| refused("too long".into()))?;
        let Some(port) = self.ports.get(port) else { return Err(refused("no such port".into())) };
        let mut frame = Held::NONE;
        // SAFETY: so many bytes are there, the frame is written to, the pool stands.
        let error =
            unsafe { ffi::weir_dpdk_make(&self.room.0, bytes.as_ptr(), length, &mut frame) };
        if error != 0 {
            return Err(refused(said(error)));
        }
        // SAFETY: the frame is of this pool, and is given away.
        match unsafe {
            ffi::weir_dpdk_send(port.device.number, self.queue, &self.room.0, &frame, 1)
        } {
            1 => Ok(()),
            _ => Err(refused("the port's queue is full".into())),
        }
    }

    /// The frames that have come in by a port, past the plane.
    pub fn take(&mut self, port: usize) -> Vec<Vec<u8>> {
        let Some(number) = self.ports.get(port).map(|port| port.device.number) else {
            return Vec::new();
        };
        let mut frames = [Held::NONE; BURST];
        let count = self.receive_by(number, self.queue, &mut frames);
        let memory = self.memory();
        let bytes = |held: &Held| memory[held.at as usize..][..held.len as usize].to_vec();
        let taken = frames[..count].iter().map(bytes).collect();
        free(&mut frames[..count]);
        taken
    }

    /// Frames that were lost on their way in: ports had no room for them, and there was no buffer. Devices count
    /// those of all queues together, and the thread of the first one has them.
    pub fn missed(&self) -> (u64, u64) {
        let mut all = (0, 0);
        if self.queue > 0 {
            return all;
        }
        for port in &self.ports {
            let (mut full, mut no_buffer) = (0, 0);
            // SAFETY: numbers that are written to.
            unsafe { ffi::weir_dpdk_missed(port.device.number, &mut full, &mut no_buffer) }
            all = (all.0 + full, all.1 + no_buffer);
        }
        all
    }

    /// Leaves the ports as they are, for a process that ends: a tap that is closed in order is set down, and
    /// the host's routes over it are gone.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Buffers that are with nobody.
    pub fn free_buffers(&self) -> u32 {
        // SAFETY: the pool stands.
        unsafe { ffi::weir_dpdk_pool_left(&self.room.0) }
    }

    fn receive_by(&mut self, number: u16, queue: u16, frames: &mut [Held]) -> usize {
        let (foreign, pool) = (&mut self.counts.foreign, &self.room.0);
        let (to, room) = (frames.as_mut_ptr(), frames.len().min(BURST) as u16);
        // SAFETY: there is room for so many; the port is open, and only this thread has the queue.
        unsafe { ffi::weir_dpdk_receive(number, queue, pool, to, room, foreign).into() }
    }

    /// Keeps frames that have come in by a port and a queue, for the plane to have.
    fn hold(&mut self, held: &mut [Held], came_by: (usize, u16), frames: &mut [Frame]) {
        for (held, to) in held.iter_mut().zip(frames) {
            let buffer = self.unheld.pop().unwrap_or_else(|| {
                self.held.push(Held::NONE);
                self.came_by.push((0, 0));
                self.held.len() as u32 - 1
            });
            let (at, len) = (held.at, held.len);
            *to = Frame { at, len, buffer, fate: Fate::Drop, device: 0 };
            self.held[buffer as usize] = std::mem::replace(held, Held::NONE);
            self.came_by[buffer as usize] = came_by;
        }
    }

    /// Takes what is in several queues, which are asked in turn.
    fn receive_led(&mut self, frames: &mut [Frame; BURST]) -> usize {
        self.led.left.fill(0);
        for (_, queue) in &self.led.all {
            self.led.left[usize::from(*queue)] += 1;
        }
        let mut taken = 0;
        for _ in 0..self.led.all.len() {
            let room = BURST - taken;
            if room < FEWEST {
                break;
            }
            let (port, queue) = self.led.all[self.led.turn];
            self.led.turn = (self.led.turn + 1) % self.led.all.len();
            if self.ports[port].tap {
                self.pass_on(port);
                self.led.left[usize::from(queue)] -= 1;
                continue;
            }
            let mut held = [Held::NONE; BURST];
            let count = self.receive_by(self.ports[port].device.number, queue, &mut held[..room]);
            self.hold(&mut held[..count], (port, queue), &mut frames[taken..]);
            taken += count;
            if count < room {
                self.led.left[usize::from(queue)] -= 1;
            }
        }
        taken
    }

    /// What the kernel sends by a tap leaves by the port that it stands for.
    fn pass_on(&mut self, tap: usize) {
        let mut frames = [Held::NONE; BURST];
        let number = self.ports[tap].device.number;
        let count = self.receive_by(number, self.queue, &mut frames);
        if count > 0 {
            let to = self.ports[self.ports[tap].peer.unwrap_or(0)].device.number;
            // SAFETY: the frames are of this pool, and are given away.
            let sent = unsafe {
                ffi::weir_dpdk_send(to, self.queue, &self.room.0, frames.as_ptr(), count as u16)
            };
            self.counts.from_kernel += u64::from(sent);
            self.counts.full += count as u64 - u64::from(sent);
        }
    }

    /// The port that a frame leaves by.
    fn way_out(&self, came_by: usize, device: u32) -> Option<usize> {
        if device == 0 || self.ports[came_by].called == device {
            return Some(came_by);
        }
        self.ports.iter().position(|port| port.called == device)
    }

    /// Sends what waits at the ports.
    fn flush(&mut self) {
        for port in &mut self.ports {
            if port.out.is_empty() {
                continue;
            }
            let count = port.out.len();
            // SAFETY: the frames are of this pool, at most a burst, and are given away.
            let sent = unsafe {
                ffi::weir_dpdk_send(
                    port.device.number,
                    self.queue,
                    &self.room.0,
                    port.out.as_ptr(),
                    count as u16,
                )
            };
            port.out.clear();
            let sent = u64::from(sent);
            self.counts.full += count as u64 - sent;
            *(if port.tap { &mut self.counts.to_kernel } else { &mut self.counts.sent }) += sent;
        }
    }
}

fn is_interface(number: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: there is room for a name.
    !unsafe { libc::if_indextoname(number, name.as_mut_ptr()) }.is_null()
}

/// A port that is to be.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    device: &'a str,
    called: Option<u32>,
    tap: bool,
    peer: Option<usize>,
    /// Queues that rules may lead to, the first one included.
    led: u16,
}

impl<'a> Wanted<'a> {
    fn new(device: &'a str) -> Self {
        Self { device, called: None, tap: false, peer: None, led: 1 }
    }
}

/// Of a single thread.
fn only(shares: Vec<Share>) -> Result<Dpdk, Error> {
    match shares.into_iter().next() {
        Some(share) => share.enter(),
        None => Err(Error::Thread("none was asked for".into())),
    }
}

fn make_room(buffers: Buffers) -> Result<Room, Error> {
    let name = string(&format!("weir-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    let Buffers { count, room, .. } = buffers;
    let refused = |why: String| Error::Buffers { count, room, why };
    if usize::from(room) < HEADROOM + 64 {
        return Err(refused(format!("at least {} bytes are needed", HEADROOM + 64)));
    }
    // Where a frame is, is a number of 32 bits.
    if u64::from(count) * u64::from(room) > u64::from(u32::MAX) {
        return Err(refused("more than 4 GB".into()));
    }
    let mut pool = Pool { mempool: null_mut(), base: null_mut(), bytes: 0 };
    // SAFETY: the pool is written to.
    match unsafe { ffi::weir_dpdk_pool(&mut pool, name.as_ptr(), count, room) } {
        0 => Ok(Room(pool)),
        error => Err(refused(said(error))),
    }
}

fn plug_all(wanted: &[Wanted<'_>], threads: u16, buffers: Buffers) -> Result<Vec<Share>, Error> {
    enter()?;
    let led: u32 = wanted.iter().map(|one| u32::from(one.led.saturating_sub(1))).sum();
    let count = buffers.count.saturating_add(led * u32::from(LED_RING));
    let buffers = Buffers { count, ..buffers };
    let rooms = (0..threads.max(1)).map(|_| make_room(buffers).map(Arc::new));
    let rooms: Vec<Arc<Room>> = rooms.collect::<Result<_, _>>()?;
    let mut ports = Vec::new();
    let mut plugged = Ok(());
    for one in wanted {
        let plug = PLUG.lock().unwrap_or_else(|broken| broken.into_inner());
        let device = plug_in(one, &rooms, buffers.ring);
        // What is open is closed if the next is refused, for which it is taken.
        drop(plug);
        match device {
            Ok(device) => {
                let called = one.called.unwrap_or(device.interface);
                let Wanted { tap, peer, .. } = *one;
                ports.push((Arc::new(device), Settled { called, tap, peer }));
            }
            Err(error) => {
                plugged = Err(error);
                break;
            }
        }
    }
    if plugged.is_err() && wanted.iter().any(|one| one.called == Some(0)) {
        // As `leave` says it: the caller's process is to end.
        std::mem::forget(ports);
        std::mem::forget(rooms);
        return plugged.map(|()| Vec::new());
    }
    plugged?;
    let ring = buffers.ring.into();
    let share = |(queue, room)| Share { ports: ports.clone(), queue, ring, room };
    let shares = (0..).zip(rooms).map(share);
    Ok(shares.collect())
}

/// A device with a queue for each of these, or with those that rules lead to.
fn plug_in(wanted: &Wanted<'_>, rooms: &[Arc<Room>], ring: u16) -> Result<Device, Error> {
    let device = wanted.device;
    let mut parts = device.split(',');
    let name = parts.next().unwrap_or_default();
    if name.is_empty() || device.contains(['\0', ' ']) {
        return Err(Error::Device(device.into()));
    }
    let arguments = string(device);
    // SAFETY: a string that ends in a zero.
    if unsafe { ffi::weir_dpdk_known(arguments.as_ptr()) } == 0 {
        return Err(Error::Driver { device: device.into() });
    }
    let mut at_what_was_there = false;
    if let Some(interface) = parts.find_map(|part| part.strip_prefix("iface=")) {
        // SAFETY: a string that ends in a zero.
        let is_there = unsafe { libc::if_nametoindex(string(interface).as_ptr()) } != 0;
        // A tap makes the interface that it names.
        let makes = name.starts_with("net_tap");
        if !makes && !is_there {
            return Err(Error::Interface { device: device.into(), interface: interface.into() });
        }
        at_what_was_there = makes && is_there;
    }
    let (mut number, mut interface, mut most, mut step) = (0, 0, 0, 0);
    let name = string(name);
    let card = is_card(device);
    let pools: Vec<*const Pool> = rooms.iter().map(|room| &raw const room.0).collect();
    let (queues, mut led) = (pools.len() as u16, wanted.led);
    // SAFETY: strings that end in a zero, numbers that are written to, and pools that stand until the port is
    // closed.
    let error = unsafe {
        ffi::weir_dpdk_open(
            if card { std::ptr::null() } else { arguments.as_ptr() },
            name.as_ptr(),
            pools.as_ptr(),
            queues,
            ring,
            &mut led,
            LED_RING,
            &mut number,
            &mut interface,
            &mut most,
            &mut step,
        )
    };
    if error == 0 {
        return Ok(Device {
            number,
            interface,
            arguments: device.into(),
            leads_to_the_first: card,
            at_what_was_there,
            name,
            queues: led,
            rooms: rooms.to_vec(),
        });
    }
    if card && step == 0 {
        return Err(Error::Card { device: device.into() });
    }
    if step == 0 && matches!(-error, libc::EEXIST | libc::EBUSY) {
        return Err(Error::Busy { device: device.into() });
    }
    if step > 0 {
        // SAFETY: the device was plugged in above.
        unsafe { ffi::weir_dpdk_close(number, name.as_ptr()) }
    }
    if most < queues {
        return Err(Error::Queues { device: device.into(), wanted: queues, there: most });
    }
    let step = if step == 0 { "the device" } else { "its queues" };
    Err(Error::Refused { device: device.into(), step, why: said(error) })
}

impl Ports for Dpdk {
    type Error = Error;

    fn receive(&mut self, frames: &mut [Frame; BURST]) -> Result<usize, Error> {
        self.take_back();
        if !self.led.all.is_empty() {
            let count = self.receive_led(frames);
            self.counts.received += count as u64;
            return Ok(count);
        }
        let mut held = [Held::NONE; BURST];
        let (mut count, mut came_by) = (0, 0);
        for _ in 0..self.ports.len() {
            let port = self.turn;
            self.turn = if port + 1 == self.ports.len() { 0 } else { port + 1 };
            if self.ports[port].tap {
                self.pass_on(port);
                continue;
            }
            count = self.receive_by(self.ports[port].device.number, self.queue, &mut held);
            if count > 0 {
                came_by = port;
                break;
            }
        }
        self.hold(&mut held[..count], (came_by, 0), frames);
        self.counts.received += count as u64;
        Ok(count)
    }

    fn queue_of(&self, frame: &Frame) -> u16 {
        self.came_by.get(frame.buffer as usize).map_or(0, |(_, queue)| *queue)
    }

    fn may_have_left(&self, queue: u16, _: usize) -> bool {
        self.led.left.get(usize::from(queue)).is_some_and(|ports| *ports > 0)
    }

    fn memory(&mut self) -> &mut [u8] {
        // SAFETY: the region has so many bytes, is initialised, and holds no descriptions; drivers write to it
        // only while they are called for this queue, which borrows all of this. Nobody else reaches it: others
        // that have the room keep it from being freed.
        unsafe { &mut *slice_from_raw_parts_mut(self.room.0.base, self.room.0.bytes) }
    }

    fn finish(&mut self, frames: &[Frame]) -> Result<(), Error> {
        for shape in frames {
            let Some(held) = self.held.get_mut(shape.buffer as usize) else { continue };
            let mut frame = std::mem::replace(held, Held::NONE);
            if frame.mbuf.is_null() {
                continue;
            }
            self.unheld.push(shape.buffer);
            let (came_by, _) = self.came_by[shape.buffer as usize];
            (frame.at, frame.len) = (shape.at, shape.len);
            let (to, count) = match shape.fate {
                Fate::Send => (self.way_out(came_by, shape.device), &mut self.counts.no_port),
                Fate::Pass | Fate::Route => (self.ports[came_by].peer, &mut self.counts.no_kernel),
                Fate::Drop => (None, &mut self.counts.dropped),
            };
            match to {
                Some(port) => self.ports[port].out.push(frame),
                None => {
                    *count += 1;
                    free(&mut [frame]);
                }
            }
        }
        self.take_back();
        self.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_told_by_their_addresses() {
        for card in ["0000:01:00.0", "01:00.1", "0000:af:00.0,arg=1"] {
            assert!(is_card(card), "{card}");
        }
        for other in ["net_af_packet0,iface=eth0.5:1", "net_ring0", "", "1.2", "dead.beef"] {
            assert!(!is_card(other), "{other}");
        }
    }

    #[test]
    fn too_few_huge_pages_are_told_before_dpdk_starts() {
        let text =
            "HugePages_Total:      10\nHugePages_Free:        4\nHugepagesize:       2048 kB\n";
        assert_eq!(enough_huge_pages(8, text), Ok(()));
        let short = Error::HugePages { wanted: 64, free: 8, pages: 38 };
        assert!(short.to_string().contains("vm.nr_hugepages=38"));
        assert_eq!(enough_huge_pages(64, text), Err(short));
        // Three of the four are somebody's who has not touched them yet.
        let promised = format!("{text}HugePages_Rsvd:        3\n");
        assert_eq!(enough_huge_pages(2, &promised), Ok(()));
        assert_eq!(
            enough_huge_pages(8, &promised),
            Err(Error::HugePages { wanted: 8, free: 2, pages: 13 })
        );
        assert_eq!(
            enough_huge_pages(2, ""),
            Err(Error::HugePages { wanted: 2, free: 0, pages: 1 })
        );
    }
}
