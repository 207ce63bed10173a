//! The program in front of the usual one, which hands plain packets to a plane in user space
//! (`bpf/front.bpf.c`), and what control plane and that plane tell each other.
//!
//! The plane reads the memory that the usual program reads, mapped (`user.rs`). It is a process that
//! may die at any moment, and the control plane may, too. So what they share is one page of words:
//!
//! - `turn` is odd while the plane is at a burst, in which it keeps the numbers of tables that it has
//!   read: a grace period waits for its end, as for the programs. Each of its threads has such a word (`turns`).
//! - `memory` is raised to an odd number before maps of other sizes take the place of those in use. From
//!   then on the front program lets the plane have nothing; the plane finishes what it has, says so by
//!   `ready`, and ends. When the new maps are in place it is raised again: only with an even number does
//!   a plane begin.

use super::KernelPlane;
use super::grace;
use super::load::{load_over, missing};
use super::program;
use super::resize::pin_of;
use crate::abi::Plain;
use crate::error::{Context, Error};
use crate::mapped::Mapped;
use crate::user::status_of;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};
use weir_plane::{LaneCounters, UserStatus};
use weir_steering::BackendId;

#[allow(missing_docs, clippy::all, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/front.skel.rs"));
}

use skeleton::types;

// SAFETY: generated from structures of integers and arrays of integers, for which bpf/front.bpf.c
// makes padding an error.
unsafe impl Plain for types::front {}
// SAFETY: as above.
unsafe impl Plain for types::front_lane {}

const FRONT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/front.bpf.o"));
const ENTRY: &str = "weir_front";

/// Pins of what outlives a control plane.
const PAGE: &str = "front";
const LANES: &str = "front_lanes";
const QUEUES: &str = "queues";
const SOCKETS: &str = "sockets";
pub(super) const KEPT: [&str; 4] = [PAGE, LANES, QUEUES, SOCKETS];
/// The map of the program behind; its pin has the map's number after this.
pub(super) const BEHIND: &str = "behind";
pub(super) const BEHIND_PREFIX: &str = "behind-";

/// Maps that the program has for itself, unless they are pinned.
const OWN: [&str; 9] = [
    ".data.front",
    ".data.front_lanes",
    QUEUES,
    SOCKETS,
    BEHIND,
    "parts",
    "pending_twin",
    "connections_twin",
    "answers_twin",
];

/// A burst takes microseconds; a process that is stopped in the middle of one has to be waited for, and
/// after this long that is said.
const BURST_PATIENCE: Duration = Duration::from_secs(2);
/// The most threads of a plane: the page has a word for each.
pub const PLANE_THREADS: usize = 5;
/// How long a plane has to finish what it has received.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

/// The page of words that both processes have mapped.
pub(crate) struct Page(Mapped);

macro_rules! word {
    ($name:ident: $type:ty = $method:ident($doc:literal)) => {
        #[doc = $doc]
        pub fn $name(&self) -> &$type {
            self.0.$method(offset_of!(types::front, $name))
        }
    };
}

impl Page {
    /// Maps the page that is pinned in a directory; `None` if none is.
    pub fn open(directory: &Path) -> Result<Option<Self>, Error> {
        let pin = directory.join(PAGE);
        if !pin.exists() {
            return Ok(None);
        }
        let map =
            MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))?;
        if map.value_size() as usize != size_of::<types::front>() {
            return Ok(None);
        }
        Mapped::new(&map, size_of::<types::front>()).map(Self).map(Some)
    }

    /// The page of whatever version, for its first words, which are the same in all of them.
    fn of_any(directory: &Path) -> Result<Option<Self>, Error> {
        let pin = directory.join(PAGE);
        if !pin.exists() {
            return Ok(None);
        }
        let map =
            MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))?;
        let bytes = map.value_size() as usize;
        if map.map_type() != MapType::Array || bytes < offset_of!(types::front, turns) {
            return Ok(None);
        }
        Mapped::new(&map, bytes).map(Self).map(Some)
    }

    word!(memory: AtomicU32 = word32("The memory in use."));
    word!(ready: AtomicU32 = word32("The memory that the plane reads; 0: none."));
    word!(turn: AtomicU64 = word64("Odd while it is at a burst."));
    word!(process: AtomicU64 = word64("The plane's process; 0: none."));
    word!(started: AtomicU64 = word64("When it began, which tells it from another with its number."));
    word!(edges: AtomicU64 = word64("Whether it is told of what begins or ends a connection."));
    word!(past: AtomicU64 = word64("How often it may not have been told."));

    /// Odd while a thread of the plane is at a burst.
    pub fn turn_of(&self, thread: usize) -> &AtomicU64 {
        match thread {
            0 => self.turn(),
            more => {
                let others = offset_of!(types::front, turns);
                self.0.word64(others + (more.min(PLANE_THREADS - 1) - 1) * size_of::<u64>())
            }
        }
    }

    /// A counter of the plane's.
    pub fn counter(&self, number: usize) -> &AtomicU64 {
        let counters = offset_of!(types::front, counters);
        self.0.word64(counters + number * size_of::<u64>())
    }

    /// Whether the process of the plane is there. One that has ended and was not waited for is not.
    pub fn is_alive(&self) -> bool {
        let process = self.process().load(Ordering::SeqCst) as u32;
        let started = self.started().load(Ordering::SeqCst);
        process != 0 && start_of(process) == Some(started)
    }

    /// Waits for the bursts that threads of the plane are at, if they are at any: they may have read what was
    /// there before the caller's last store.
    fn wait_for_burst(&self) -> Result<(), Error> {
        fence(Ordering::SeqCst);
        let end = Instant::now() + BURST_PATIENCE;
        (0..PLANE_THREADS).try_for_each(|thread| self.wait_for_burst_of(thread, end))
    }

    fn wait_for_burst_of(&self, thread: usize, end: Instant) -> Result<(), Error> {
        let turn = self.turn_of(thread).load(Ordering::SeqCst);
        if turn.is_multiple_of(2) {
            return Ok(());
        }
        while self.turn_of(thread).load(Ordering::SeqCst) == turn && self.is_alive() {
            if Instant::now() > end {
                let process = self.process().load(Ordering::SeqCst);
                let source = io::Error::other(format!(
                    "process {process} has been at one burst for {} s; if it is stopped, let it go \
                     on or kill it",
                    BURST_PATIENCE.as_secs()
                ));
                let what = "wait for the plane in user space".into();
                return Err(Error::System { what, source });
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// Lets the plane have no more packets, and waits until it has finished those that it has.
    fn send_away(&self) -> Result<(), Error> {
        if is_open(self.memory().load(Ordering::SeqCst)) {
            self.memory().fetch_add(1, Ordering::SeqCst);
        }
        grace()?;
        let end = Instant::now() + LEAVE_PATIENCE;
        // One that is about to end says first that it takes no more, and finishes what it has.
        while self.is_alive() {
            if Instant::now() > end {
                let process = self.process().load(Ordering::SeqCst);
                let source = io::Error::other(format!("process {process} does not let go of it"));
                let what = "take memory from the plane in user space".into();
                return Err(Error::System { what, source });
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Whether a plane may begin with this number of a memory.
pub(crate) fn is_open(memory: u32) -> bool {
    memory != 0 && memory.is_multiple_of(2)
}

/// When a process began, in ticks of the kernel; `None` if it is not there, or has ended and only its number
/// is left. (proc(5): the state and the 22nd field of `stat`, after the name, which may hold anything.)
pub(crate) fn start_of(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

/// Lets the plane of an earlier run, whatever it was, have no more packets: what is pinned in a directory is
/// about to change.
pub(super) fn send_away(directory: &Path) -> Result<(), Error> {
    Page::of_any(directory)?.map_or(Ok(()), |page| page.send_away())
}

/// The process of a plane: its number, and when it began.
pub(super) struct Process(u32, u64);

impl Process {
    /// That of a data plane, so that its end can be waited for when that is taken away.
    pub fn of(directory: &Path) -> Option<Self> {
        let page = Page::of_any(directory).ok()??;
        let process = page.process().load(Ordering::SeqCst) as u32;
        (process != 0).then(|| Self(process, page.started().load(Ordering::SeqCst)))
    }

    /// Waits for its end; it looks for its pins, which are gone.
    pub fn wait(&self) {
        let end = Instant::now() + LEAVE_PATIENCE;
        while start_of(self.0) == Some(self.1) && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The program in front.
pub(super) struct Front {
    entry: OwnedFd,
    page: Arc<Page>,
    lanes: Mapped,
}

impl Front {
    pub fn entry(&self) -> BorrowedFd<'_> {
        self.entry.as_fd()
    }
}

impl KernelPlane {
    /// Hands plain packets to a plane in user space from now on, while there is one. The links have to
    /// be given the program ([`attach`](Self::attach)).
    ///
    /// # Errors
    /// What the kernel says; packets are decided by the program alone then, as before.
    pub fn stand_in_front(&mut self) -> Result<(), Error> {
        let Some(directory) = self.directory.clone() else {
            return Err(io::Error::other("a data plane without pins")).context(|| "lead".into());
        };
        remove_unlike(&directory)?;
        let memory = self.pinned_memory()?;
        let loaded = load_over(FRONT, &memory, &OWN, &self.sizes, false)?;
        let map = |name: &str| found(&loaded, name);
        for name in KEPT {
            let pin = directory.join(name);
            if !pin.exists() {
                let data = format!(".data.{name}");
                let mut map = if name == PAGE || name == LANES { map(&data) } else { map(name) }?;
                map.pin(&pin).context(|| format!("pin {}", pin.display()))?;
            }
        }
        let page = Page::open(&directory)?.ok_or_else(|| missing("map", PAGE))?;
        let lanes_map = map(".data.front_lanes")?;
        let lanes = Mapped::new(&lanes_map, lanes_map.value_size() as usize)?;
        let mut behind = map(BEHIND)?;
        let balancer = self.plain_program().as_raw_fd();
        behind
            .update(&0u32.to_ne_bytes(), &balancer.to_ne_bytes(), MapFlags::ANY)
            .context(|| "put the program behind the one in front".into())?;
        let number = behind.info().context(|| "ask for a map".into())?.info.id;
        let pin = directory.join(format!("{BEHIND_PREFIX}{number}"));
        if pin.exists() {
            fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
        }
        behind.pin(&pin).context(|| format!("pin {}", pin.display()))?;
        let entry = loaded.progs().find(|program| program.name() == ENTRY);
        let entry = entry.ok_or_else(|| missing("program", ENTRY))?;
        let entry = entry.as_fd().try_clone_to_owned();
        let entry = entry.context(|| "duplicate a program's descriptor".into())?;
        let page = Arc::new(page);
        let waited = Arc::clone(&page);
        self.vips.wait_by(Box::new(move || {
            grace()?;
            waited.wait_for_burst()
        }));
        // What is pinned is what the program reads: a plane may begin, or go on.
        let memory = page.memory().load(Ordering::SeqCst);
        if !is_open(memory) {
            page.memory().store((memory + 1).next_multiple_of(2), Ordering::SeqCst);
        }
        self.front = Some(Front { entry, page, lanes });
        Ok(())
    }

    /// Hands no more packets to a plane in user space that an earlier run has left; it ends when the links
    /// are given the program.
    ///
    /// # Errors
    /// If it does not let go.
    pub fn stand_alone(&mut self) -> Result<(), Error> {
        self.directory.as_deref().map_or(Ok(()), send_away)
    }

    /// Takes the program in front away, if an earlier run has left one; the links have another one.
    /// A plane in user space that finds its page gone ends.
    ///
    /// # Errors
    /// [`Error::System`] if a pin cannot be removed.
    pub(super) fn forget_other_fronts(&self) -> Result<(), Error> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let kept = self.behind_pin(directory)?;
        let entries =
            fs::read_dir(directory).context(|| format!("read {}", directory.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let stale = name.starts_with(BEHIND_PREFIX) && Some(&entry.path()) != kept.as_ref();
            if stale || self.front.is_none() && KEPT.contains(&&name[..]) {
                let pin = entry.path();
                fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
            }
        }
        Ok(())
    }

    /// Lets the plane in user space have no more packets, and waits for its end: its page is not pinned any more.
    ///
    /// # Errors
    /// If it does not let go.
    pub(super) fn leave_front(&self) -> Result<(), Error> {
        self.front.as_ref().map_or(Ok(()), |front| front.page.send_away())
    }

    /// The pin of the map that the program in front goes on by.
    pub(super) fn behind_pin(&self, directory: &Path) -> Result<Option<PathBuf>, Error> {
        if self.front.is_none() {
            return Ok(None);
        }
        Ok(behind_pins(directory)?.into_iter().map(|(_, pin)| pin).next_back())
    }

    /// What the links are given: the program in front, if there is one and nobody looks at packets.
    pub(super) fn link_entry(&self) -> BorrowedFd<'_> {
        match &self.front {
            Some(front) if self.tracing.is_none() => front.entry(),
            _ => self.program.entry(),
        }
    }

    /// Packets have gone past the program in front, or are about to: a plane that is told of what begins or ends
    /// a connection has missed some.
    pub(super) fn went_past_front(&self) {
        if let Some(front) = &self.front {
            front.page.past().fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Waits until every packet whose processing had begun is decided, wherever that is.
    pub(crate) fn grace(&self) -> Result<(), Error> {
        grace()?;
        self.front.as_ref().map_or(Ok(()), |front| front.page.wait_for_burst())
    }

    /// Lets a plane begin again, as the memory stays after all.
    pub(super) fn let_front_back(&self) {
        if let Some(front) = &self.front {
            let memory = front.page.memory();
            if !is_open(memory.load(Ordering::SeqCst)) {
                memory.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// What a plane in user space tells of itself; `None` if none is wanted.
    pub fn user_space(&self) -> Option<UserStatus> {
        self.front.as_ref().map(|front| status_of(&front.page))
    }

    /// What it has forwarded to a backend.
    pub(super) fn front_lane(&self, backend: BackendId) -> LaneCounters {
        let Some(front) = &self.front else { return LaneCounters::default() };
        let at = backend.index() * size_of::<types::front_lane>();
        if at + size_of::<types::front_lane>() > front.lanes.len() {
            return LaneCounters::default();
        }
        let word = |of: usize| front.lanes.word64(at + of).load(Ordering::Relaxed);
        LaneCounters {
            packets: word(offset_of!(types::front_lane, packets)),
            bytes: word(offset_of!(types::front_lane, bytes)),
            flows: 0,
        }
    }

    /// Clears that. What the plane counts at this very moment may be lost.
    pub(super) fn reset_front_lane(&self, backend: BackendId) {
        if let Some(front) = &self.front {
            let at = backend.index() * size_of::<types::front_lane>();
            for of in [offset_of!(types::front_lane, packets), offset_of!(types::front_lane, bytes)]
            {
                if at + of + size_of::<u64>() <= front.lanes.len() {
                    front.lanes.word64(at + of).store(0, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Maps of another version's front, which a program of this one could not use, go, and before them its plane.
///
/// # Errors
/// If that does not let go, or a pin cannot be removed.
fn remove_unlike(directory: &Path) -> Result<(), Error> {
    let sizes = [
        (PAGE, size_of::<types::front>()),
        (LANES, size_of::<types::front_lane>() << 15),
        (QUEUES, size_of::<u32>()),
        (SOCKETS, size_of::<u32>()),
    ];
    for (name, bytes) in sizes {
        let pin = directory.join(name);
        if !pin.exists() {
            continue;
        }
        let map = MapHandle::from_pinned_path(&pin);
        let alike = map.is_ok_and(|map| map.value_size() as usize == bytes);
        if !alike {
            send_away(directory)?;
            fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
        }
    }
    Ok(())
}

/// A map of an object that is loaded.
pub(super) fn found(object: &Object, name: &str) -> Result<MapHandle, Error> {
    let map = object.maps().find(|map| map.name() == name);
    let map = map.ok_or_else(|| missing("map", name))?;
    MapHandle::try_from(&map).context(|| format!("duplicate map {name}"))
}

/// The pinned maps of programs behind, by their numbers, the newest last.
fn behind_pins(directory: &Path) -> Result<Vec<(u32, PathBuf)>, Error> {
    let entries = fs::read_dir(directory).context(|| format!("read {}", directory.display()))?;
    let number =
        |path: &Path| path.file_name()?.to_str()?.strip_prefix(BEHIND_PREFIX)?.parse().ok();
    let paths = entries.flatten().map(|entry| entry.path());
    let mut pins: Vec<(u32, PathBuf)> =
        paths.filter_map(|path| Some((number(&path)?, path))).collect();
    pins.sort_unstable();
    Ok(pins)
}

/// What the plane in user space opens of the front, by its pins.
pub(crate) struct FrontMaps {
    pub page: Page,
    pub lanes: Mapped,
    pub queues: MapHandle,
    pub sockets: MapHandle,
}

impl FrontMaps {
    /// # Errors
    /// [`Error::System`] if nothing of the kind is pinned there.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let open = |name: &str| {
            let pin = directory.join(name);
            MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))
        };
        let page = Page::open(directory)?.ok_or_else(|| missing("map", PAGE))?;
        let lanes = open(LANES)?;
        let lanes = Mapped::new(&lanes, lanes.value_size() as usize)?;
        Ok(Self { page, lanes, queues: open(QUEUES)?, sockets: open(SOCKETS)? })
    }

    /// The program that decides what the plane does not: the one behind the newest front.
    pub fn balancer(directory: &Path) -> Result<OwnedFd, Error> {
        let pins = behind_pins(directory)?;
        let (_, pin) = pins.last().ok_or_else(|| missing("map", BEHIND))?;
        let map = MapHandle::from_pinned_path(pin).context(|| format!("open {}", pin.display()))?;
        let number = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let number = number.context(|| "look for the program behind".into())?;
        let number =
            number.as_deref().and_then(<[u8]>::first_chunk).copied().map(u32::from_ne_bytes);
        let number = number.ok_or_else(|| missing("program", "behind"))?;
        program::of_number(number).context(|| "open a program".into())
    }

    /// What tells this front from another that takes its place.
    pub fn page_number(directory: &Path) -> Option<u32> {
        let map = MapHandle::from_pinned_path(directory.join(PAGE)).ok()?;
        Some(map.info().ok()?.info.id)
    }
}

/// Maps that are pinned, with the one that has taken its place, if one has.
pub(crate) fn open_map(directory: &Path, name: &str) -> Result<MapHandle, Error> {
    let pin = pin_of(directory, name);
    MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_by_its_start() {
        let own = start_of(std::process::id()).expect("this one is there");
        let mut child = std::process::Command::new("true").spawn().expect("true");
        let end = Instant::now() + Duration::from_secs(60);
        // Ended, and not waited for.
        while let Some(started) = start_of(child.id()) {
            assert!(started >= own, "{started} {own}");
            assert!(Instant::now() < end, "it does not end");
            thread::yield_now();
        }
        child.wait().expect("it has ended");
        assert_eq!(start_of(child.id()), None);
    }

    #[test]
    fn each_thread_has_a_word_of_its_own() {
        let turns = offset_of!(types::front, turns);
        assert_eq!(turns + (PLANE_THREADS - 1) * 8, offset_of!(types::front, counters));
        assert!(offset_of!(types::front, turn) < turns);
    }

    /// Where they are is what versions of other pages go by.
    #[test]
    fn the_first_words_stay_where_they_are() {
        let places = [
            offset_of!(types::front, memory),
            offset_of!(types::front, ready),
            offset_of!(types::front, process),
            offset_of!(types::front, started),
        ];
        assert_eq!(places, [0, 4, 16, 24]);
    }

    #[test]
    fn a_memory_is_open_by_even_numbers() {
        assert_eq!([0, 1, 2, 3, 4].map(is_open), [false, false, true, false, true]);
    }
}
