//! The memory of a data plane in the kernel, as a plane in user space reads it: mapped, so that a table
//! that is published is seen by one load, as by the programs. `kernel/front.rs` says how both processes
//! get on.
//!
//! A plane decides segments in the middle of connections here. What they read is
//! all in arrays: services, tables, backends. What they mark is, too. The pending table is a hash map, which
//! is asked by a system call where a packet needs it: while a table is changed, and for flows that live
//! elsewhere than their row says.

use crate::abi::{BackendEntry, Plain, types};
use crate::error::{Context, Error};
use crate::kernel::{FrontMaps, Page, is_open, open_map, start_of};
use crate::mapped::Mapped;
use crate::numbers::{OWN_MACS, PATH_NANOSECONDS, VIP_FIRST, VIP_HIGH, VIP_IN_USE, VIP_SECOND};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};
use weir_plane::{Backend, UserCounts, UserStatus};
use weir_steering::{
    BackendId, ELEMENT_BYTES, HEADER_BYTES, LANE_ACTIVE, LANE_ONES, LANE_TAGS, MOST_WATCHED_WORDS,
    MethodId, RawHeader, ServiceState, Side, TAG_BITS, watch_bits,
};

pub use crate::kernel::PLANE_THREADS;

/// Run a program on frames that then take the way that it says (Linux 5.18, linux/bpf.h).
const LIVE_FRAMES: u32 = 1 << 1;

/// How long memory may be changing when a plane begins.
const CHANGE_PATIENCE: Duration = Duration::from_secs(10);

/// What a plane tells of itself on its page.
pub(crate) fn status_of(page: &Page) -> UserStatus {
    let load = |at| page.counter(at).load(Ordering::Relaxed);
    let counts = UserCounts::of_words((0..UserCounts::default().words().len()).map(load));
    let ready = page.ready().load(Ordering::SeqCst) == page.memory().load(Ordering::SeqCst);
    let process = page.process().load(Ordering::SeqCst) as u32;
    let takes = ready && page.is_alive() && counts.sockets > 0;
    UserStatus { process: takes.then_some(process), counts }
}

/// What the plane in user space over a data plane that is pinned in a directory tells of itself; `None` if none is
/// wanted there.
pub fn told_in(directory: &Path) -> Option<UserStatus> {
    Page::open(directory).ok()?.map(|page| status_of(&page))
}

/// A data plane's memory, mapped.
pub struct UserMemory {
    directory: PathBuf,
    vips: Mapped,
    headers: Mapped,
    pool: Mapped,
    backends: Mapped,
    control: Mapped,
    marks: Mapped,
    strangers: Mapped,
    watched: Mapped,
    pending: MapHandle,
    paths: MapHandle,
    devices: MapHandle,
    front: FrontMaps,
    /// The number of the front's page.
    page: u32,
    /// Which memory this is.
    memory: u32,
    /// Which of the plane's threads reads it here, and of how many.
    thread: (usize, usize),
    balancer: OwnedFd,
}

/// Waits until the memory is none that is changing; returns its number.
fn settled(page: &Page) -> Result<u32, Error> {
    let end = Instant::now() + CHANGE_PATIENCE;
    loop {
        let memory = page.memory().load(Ordering::SeqCst);
        if is_open(memory) {
            return Ok(memory);
        }
        if Instant::now() > end {
            let source = io::Error::other(
                "it is being changed by a control plane that does not come to an end, or has died at it; \
                 start `weir run` again",
            );
            return Err(source).context(|| "open the memory of the data plane".into());
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a plane may go on with its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It may.
    Good,
    /// Other maps take its place, or no plane is wanted any more.
    Over,
}

fn mapped(directory: &Path, name: &str) -> Result<Mapped, Error> {
    let map = open_map(directory, name)?;
    Mapped::new(&map, map.value_size() as usize * map.max_entries() as usize)
}

impl UserMemory {
    /// Maps the memory of the data plane that is pinned in a directory.
    ///
    /// # Errors
    /// [`Error::System`] if none is pinned there that wants a plane in user space.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let front = FrontMaps::open(directory)?;
        // First: if it is raised from here on, what is opened may be of either.
        let memory = settled(&front.page)?;
        Self::over(directory, front, memory)
    }

    /// As [`open`](Self::open), for whoever cannot wait: `None` while the memory is being changed.
    ///
    /// # Errors
    /// As there.
    pub fn open_settled(directory: &Path) -> Result<Option<Self>, Error> {
        let front = FrontMaps::open(directory)?;
        let memory = front.page.memory().load(Ordering::SeqCst);
        is_open(memory).then(|| Self::over(directory, front, memory)).transpose()
    }

    fn over(directory: &Path, front: FrontMaps, memory: u32) -> Result<Self, Error> {
        let array = |name: &str| mapped(directory, name);
        Ok(Self {
            vips: array("vips")?,
            headers: array("tables")?,
            pool: array("pool")?,
            backends: array("backends")?,
            control: array("control")?,
            marks: array("marks")?,
            strangers: array("strangers")?,
            watched: array("watched")?,
            pending: open_map(directory, "pending")?,
            paths: open_map(directory, "paths")?,
            devices: open_map(directory, "devices")?,
            page: FrontMaps::page_number(directory).unwrap_or(0),
            balancer: FrontMaps::balancer(directory)?,
            directory: directory.to_owned(),
            front,
            memory,
            thread: (0, 1),
        })
    }

    /// This memory as one of several threads of a plane reads it, each of which has opened it: their bursts are
    /// waited for one by one, and what they count is added up.
    ///
    /// # Panics
    /// With more threads than [`PLANE_THREADS`], or a number that is none of them.
    #[must_use]
    pub fn of_thread(mut self, thread: usize, of: usize) -> Self {
        assert!(thread < of && of <= PLANE_THREADS, "thread {thread} of {of}");
        self.thread = (thread, of);
        self.be_at_no_burst(thread);
        self
    }

    /// A process that was killed at a burst has left an odd number.
    fn be_at_no_burst(&self, thread: usize) {
        let turn = self.front.page.turn_of(thread);
        turn.store(turn.load(Ordering::SeqCst).next_multiple_of(2), Ordering::SeqCst);
    }

    /// Which memory this is: another one has another number.
    pub fn number(&self) -> u32 {
        self.memory
    }

    /// Says that this process takes packets from now on. Of several threads one does.
    pub fn begin(&self, sockets: u64) {
        let page = &self.front.page;
        // The other threads there are may be at one.
        let (own, threads) = self.thread;
        (threads..PLANE_THREADS).chain([own]).for_each(|thread| self.be_at_no_burst(thread));
        let process = std::process::id();
        page.process().store(0, Ordering::SeqCst);
        page.edges().store(0, Ordering::SeqCst);
        page.started().store(start_of(process).unwrap_or(0), Ordering::SeqCst);
        page.process().store(process.into(), Ordering::SeqCst);
        self.count(|counts| {
            counts.starts += 1;
            counts.sockets = sockets;
        });
        page.ready().store(self.memory, Ordering::SeqCst);
    }

    /// Says whether packets that begin or end connections are to come here before the program decides them, once
    /// this has [begun](Self::begin). Whoever gets them gives them back to it.
    pub fn take_edges(&self, take: bool) {
        self.front.page.edges().store(take.into(), Ordering::SeqCst);
    }

    /// Raised when packets that begin or end connections may have gone past this plane, although it
    /// [takes](Self::take_edges) them.
    #[inline]
    pub fn past(&self) -> u64 {
        self.front.page.past().load(Ordering::Acquire)
    }

    /// Says that nothing more is to be led to it. What it has it still finishes: grace periods wait for that, and
    /// [`end`](Self::end) ends it.
    pub fn take_no_more(&self) {
        let page = &self.front.page;
        if page.process().load(Ordering::SeqCst) == u64::from(std::process::id()) {
            page.ready().store(0, Ordering::SeqCst);
        }
    }

    /// Says that it takes no more packets, and has finished those that it had.
    pub fn end(&self) {
        let page = &self.front.page;
        let own = u64::from(std::process::id());
        if page.process().load(Ordering::SeqCst) == own {
            page.ready().store(0, Ordering::SeqCst);
            page.process().store(0, Ordering::SeqCst);
        }
    }

    /// Whether it may go on. Asks the file system, so not for each burst.
    pub fn standing(&self) -> Standing {
        let same = FrontMaps::page_number(&self.directory) == Some(self.page);
        if same && !self.is_leaving() { Standing::Good } else { Standing::Over }
    }

    /// Whether other memory takes the place of this one.
    pub fn is_leaving(&self) -> bool {
        self.front.page.memory().load(Ordering::Relaxed) != self.memory
    }

    /// A burst begins: what is read of services and tables until [`leave`](Self::leave) stays.
    pub fn enter(&self) {
        self.front.page.turn_of(self.thread.0).fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The burst is over.
    pub fn leave(&self) {
        self.front.page.turn_of(self.thread.0).fetch_add(1, Ordering::Release);
    }

    /// Changes what is counted. Of several threads one at a time does.
    pub fn count(&self, change: impl FnOnce(&mut UserCounts)) {
        let page = &self.front.page;
        let mut counts = status_of(page).counts;
        change(&mut counts);
        for (at, word) in counts.words().into_iter().enumerate() {
            page.counter(at).store(word, Ordering::Relaxed);
        }
    }

    /// Adds to what was forwarded to a backend: once for all packets of a burst.
    pub fn add_to_lane(&self, backend: BackendId, packets: u64, bytes: u64) {
        let at = backend.index() * 16;
        if at + 16 > self.front.lanes.len() {
            return;
        }
        for (offset, by) in [(0, packets), (8, bytes)] {
            // One process writes; the control plane clears it when a number gets another bearer.
            let word = self.front.lanes.word64(at + offset);
            if self.thread.1 > 1 {
                word.fetch_add(by, Ordering::Relaxed);
            } else {
                word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
            }
        }
    }

    /// The Ethernet addresses that are ours, as words; 0 ends the list, and an empty one accepts all.
    pub fn own_macs(&self) -> [u64; OWN_MACS] {
        let first = offset_of!(types::control, own_macs);
        std::array::from_fn(|at| self.control.word64(first + at * 8).load(Ordering::Relaxed))
    }

    /// Whether a service takes any port, and none a prefix or a block of ports, which may be more exact and are
    /// the program's.
    pub fn has_any_port(&self) -> bool {
        use crate::numbers::{UNUSUAL_ANY_PORT, UNUSUAL_WIDE};
        let unusual = self.control.word32(offset_of!(types::control, unusual));
        unusual.load(Ordering::Relaxed) & (UNUSUAL_ANY_PORT | UNUSUAL_WIDE) == UNUSUAL_ANY_PORT
    }

    /// What stands where a service has the number of its table, by its address as two words of memory, and
    /// by port (as on the wire) and protocol << 16. The twin of `find_vip` in `bpf/service.h`.
    #[inline]
    pub fn service(&self, [high, low]: [u64; 2], port_protocol: u32) -> Option<u32> {
        let slots = self.vips.len() / size_of::<types::vip>();
        let shift = 64 - slots.trailing_zeros();
        let word = low ^ high.wrapping_mul(VIP_HIGH) ^ u64::from(port_protocol);
        [VIP_FIRST, VIP_SECOND].into_iter().find_map(|factor| {
            let at = (word.wrapping_mul(factor) >> shift) as usize * size_of::<types::vip>();
            let word64 = |of: usize| self.vips.word64(at + of).load(Ordering::Acquire);
            let word32 = |of: usize| self.vips.word32(at + of).load(Ordering::Acquire);
            let there = word64(offset_of!(types::vip, low)) == low
                && word32(offset_of!(types::vip, port_protocol)) == port_protocol | VIP_IN_USE
                && word64(offset_of!(types::vip, high)) == high;
            there.then(|| word32(offset_of!(types::vip, table)))
        })
    }

    /// The header of a table, by what [`service`](Self::service) has found; `None` if that is more than a
    /// number: the packets are not for this plane.
    pub fn header(&self, number: u32) -> Option<RawHeader> {
        let at = number as usize * HEADER_BYTES;
        if at + HEADER_BYTES > self.headers.len() {
            return None;
        }
        let mut bytes = [0; HEADER_BYTES];
        for (word, bytes) in bytes.chunks_exact_mut(8).enumerate() {
            let word = self.headers.word64(at + word * 8).load(Ordering::Acquire);
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Some(RawHeader::from_bytes(&bytes))
    }

    /// The memory of tables from an element on. It does not change while a table there is published.
    fn body(&self, element: u32, at: usize, bytes: usize) -> &[u8] {
        let from = (element as usize * ELEMENT_BYTES).saturating_add(at);
        self.pool.get(from, bytes).unwrap_or(&[0; 64][..bytes.min(64)])
    }

    /// Asks for a place of the tables' memory ahead of time.
    #[inline]
    pub fn prefetch(&self, element: u32, at: usize) {
        self.pool.prefetch((element as usize * ELEMENT_BYTES).saturating_add(at));
    }

    /// Two, four or eight bytes of the tables' memory, from an element on; zeros beyond its end.
    #[inline]
    pub fn word16(&self, element: u32, at: usize) -> u16 {
        self.body(element, at, 2).first_chunk().copied().map_or(0, u16::from_le_bytes)
    }

    /// As [`word16`](Self::word16).
    #[inline]
    pub fn word32(&self, element: u32, at: usize) -> u32 {
        self.body(element, at, 4).first_chunk().copied().map_or(0, u32::from_le_bytes)
    }

    /// As [`word16`](Self::word16).
    #[inline]
    pub fn word64(&self, element: u32, at: usize) -> u64 {
        self.body(element, at, 8).first_chunk().copied().map_or(0, u64::from_le_bytes)
    }

    /// Where a state is noted as pending.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn pending(&self, state: &ServiceState) -> Result<Option<u16>, Error> {
        let key = types::service_state::from(state);
        let found = self.pending.lookup(key.bytes(), MapFlags::ANY);
        let found = found.context(|| "read the pending table".into())?;
        Ok(found
            .as_deref()
            .and_then(<[u8]>::first_chunk)
            .map(|word| u32::from_ne_bytes(*word) as u16))
    }

    /// A backend as packets find it.
    pub fn backend(&self, backend: BackendId) -> Option<Backend> {
        let at = backend.index();
        let room = (at + 1) * size_of::<types::backend>() <= self.backends.len();
        let entry = || BackendEntry::from(self.backends.load_record::<types::backend>(at));
        room.then(entry)?.backend()
    }

    /// A backend's entry, to be compared with what it was before.
    #[inline]
    pub fn backend_words(&self, backend: BackendId) -> Option<[u64; BACKEND_WORDS]> {
        let at = backend.index() * size_of::<types::backend>();
        if at + size_of::<types::backend>() > self.backends.len() {
            return None;
        }
        Some(std::array::from_fn(|word| {
            self.backends.word64(at + word * 8).load(Ordering::Acquire)
        }))
    }

    /// Whether frames leave by an interface as they are.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn is_plain_device(&self, interface: u32) -> Result<bool, Error> {
        let found = self.devices.lookup(&interface.to_ne_bytes(), MapFlags::ANY);
        Ok(found.context(|| "read the map devices".into())?.is_none())
    }

    /// What routers have said of the MTU of the way to an address, while it holds.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn path_mtu(&self, address: &[u8; 16]) -> Result<Option<u32>, Error> {
        let found = self.paths.lookup(address, MapFlags::ANY);
        let found = found.context(|| "read the map paths".into())?;
        let path = found.map(|bytes| types::path::from_slice(&bytes));
        let now = monotonic();
        Ok(path
            .filter(|path| now.saturating_sub(path.since) < PATH_NANOSECONDS)
            .map(|path| path.mtu))
    }

    /// Marks a flow as active, by its hash under its table's key. The twin of `mark` in `bpf/report.h`.
    #[inline]
    pub fn mark(&self, hash: u64) {
        let watched = self.side(offset_of!(types::control, watched_side));
        let (at, bits) = watch_bits(hash, watched.mask);
        let at = watched.first as usize + at;
        let word = if at <= MOST_WATCHED_WORDS * 2 { at } else { 0 };
        if self.watched.word64(word * 8).load(Ordering::Relaxed) & bits != bits {
            return;
        }
        self.mark_watched(hash);
    }

    fn mark_watched(&self, hash: u64) {
        let side = self.side(offset_of!(types::control, mark_side));
        let tags = LANE_ONES * (hash >> (64 - TAG_BITS)).max(1);
        let words = self.marks.len() / 8;
        for place in [hash, hash >> 22] {
            let at = side.first as usize + (place as u32 & side.mask) as usize;
            let word = self.marks.word64(if at < words { at } else { 0 } * 8);
            let now = word.load(Ordering::Relaxed);
            let lane = !(((now ^ tags) & LANE_TAGS) + LANE_TAGS) & LANE_ACTIVE;
            if lane != 0 {
                if now & lane != lane {
                    word.fetch_or(lane, Ordering::Relaxed);
                }
                return;
            }
        }
        let half = self.strangers.len() / 8 / 2;
        let first = if side.first == 0 { 0 } else { half };
        let at = first + ((hash >> 8) as usize & (half - 1));
        let bits = 1u64 << (hash >> 58) | 1 << (hash >> 52 & 63);
        let word = self.strangers.word64(at * 8);
        if word.load(Ordering::Relaxed) & bits != bits {
            word.fetch_or(bits, Ordering::Relaxed);
        }
    }

    fn side(&self, at: usize) -> Side {
        Side::from_word(self.control.word64(at).load(Ordering::Relaxed))
    }

    /// Gives a frame to the program in the kernel, as if it had just come by a queue of an interface: what
    /// the program says becomes of it. It takes some microseconds.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel refuses: the frame is lost then.
    pub fn give_back(&self, frame: &[u8], interface: u32, queue: u32) -> Result<(), Error> {
        run_live(std::os::fd::AsFd::as_fd(&self.balancer), frame, interface, queue)
    }

    /// Follows the program that decides what is given back, which a new control plane replaces.
    ///
    /// # Errors
    /// If it is not there.
    pub fn follow_balancer(&mut self) -> Result<(), Error> {
        self.balancer = FrontMaps::balancer(&self.directory)?;
        Ok(())
    }

    /// Where sockets are put so that frames come to them.
    pub(crate) fn sockets(&self) -> Result<(MapHandle, MapHandle), Error> {
        let copy = |map| MapHandle::try_from(map).context(|| "duplicate a map".into());
        Ok((copy(&self.front.queues)?, copy(&self.front.sockets)?))
    }
}

/// The methods whose packets in the middle of connections a plane in user space decides; all other packets are
/// the program's (bpf/front.bpf.c).
pub const METHODS: [MethodId; 3] = [MethodId::Concury, MethodId::Residue, MethodId::Jet];

/// Words of a backend's entry.
pub const BACKEND_WORDS: usize = size_of::<types::backend>() / 8;

/// Nanoseconds of the clock that programs read.
fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs a program on a frame, which then goes where it says.
fn run_live(
    program: BorrowedFd<'_>,
    frame: &[u8],
    interface: u32,
    queue: u32,
) -> Result<(), Error> {
    let context = libbpf_rs::libbpf_sys::xdp_md {
        data_end: frame.len() as u32,
        ingress_ifindex: interface,
        rx_queue_index: queue,
        ..Default::default()
    };
    let mut options = libbpf_rs::libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        ctx_in: std::ptr::from_ref(&context).cast(),
        ctx_size_in: size_of_val(&context) as u32,
        flags: LIVE_FRAMES,
        repeat: 1,
        batch_size: 1,
        ..Default::default()
    };
    // SAFETY: the pointers and lengths describe live buffers, which the kernel only reads.
    let done = unsafe {
        libbpf_rs::libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options)
    };
    if done < 0 {
        return Err(io::Error::from_raw_os_error(-done))
            .context(|| format!("give a frame of interface {interface} back to the kernel"));
    }
    Ok(())
}
