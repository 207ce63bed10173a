//! A neighbour: what else runs on the machine of whoever is measured.
//!
//! A bench that has the machine to itself finds its tables in caches that nobody else wants. On a
//! machine that does other things they are elsewhere. So a measurement can be made beside a thread
//! on another core that walks through a buffer larger than the last-level cache, line by line, and
//! adds to each line: it takes the shared cache, and its share of the way to memory, over and over.

use crate::Result;
use crate::error::{Context, demand};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::fs;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Lines between two looks at whether to pause: a few microseconds.
const STRIDE: usize = 1 << 10;
/// The last-level cache where the kernel tells of none.
const UNKNOWN_CACHE: usize = 64 << 20;

/// In which company to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Company {
    /// The machine does nothing else.
    #[default]
    Quiet,
    /// Beside a thread on another core that walks through a large buffer.
    Neighbour,
    /// Both in turn, in every round.
    Both,
}

impl Company {
    /// Whether there is a neighbour, for each of the ways to measure.
    pub fn ways(self) -> &'static [bool] {
        match self {
            Self::Quiet => &[false],
            Self::Neighbour => &[true],
            Self::Both => &[false, true],
        }
    }

    /// Bytes that the neighbour walks through, if there is one.
    pub fn bytes(self) -> Option<usize> {
        (self != Self::Quiet).then(buffer_bytes)
    }
}

/// One and a quarter times the last-level cache.
fn buffer_bytes() -> usize {
    let size = last_level_cache();
    size + size / 4
}

/// Bytes of the last-level cache of the first processor, as sysfs has it.
pub fn last_level_cache() -> usize {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").into_iter().flatten();
    let size = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("size")).ok()?;
        bytes(text.trim())
    };
    caches.flatten().filter_map(size).max().unwrap_or(UNKNOWN_CACHE)
}

/// `32K` and `480M` in bytes.
fn bytes(text: &str) -> Option<usize> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => match text.strip_suffix('M') {
            Some(number) => (number, 1 << 20),
            None => (text, 1),
        },
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

/// Who runs where.
#[derive(Clone, Copy, Debug)]
struct Seats {
    /// For threads that are measured.
    measured: CpuSet,
    /// For the neighbour.
    neighbour: CpuSet,
}

impl Seats {
    /// The neighbour gets the last processor that this thread may use; who is measured gets those
    /// that share no core with it.
    fn find(threads: usize) -> Result<Self> {
        let allowed = sched_getaffinity(Pid::from_raw(0)).context("which processors there are")?;
        let all: Vec<usize> =
            (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).collect();
        let last = all.last().copied().unwrap_or(0);
        let others: Vec<usize> =
            all.into_iter().filter(|&cpu| !siblings(last).contains(&cpu)).collect();
        demand!(
            others.len() >= threads.max(1),
            "a neighbour needs a core of its own: {threads} threads are to be measured, and beside \
             it there is room for {}",
            others.len()
        );
        let set = |cpus: &[usize]| -> Result<CpuSet> {
            let mut set = CpuSet::new();
            cpus.iter().try_for_each(|&cpu| set.set(cpu)).context("a set of processors")?;
            Ok(set)
        };
        Ok(Self { measured: set(&others)?, neighbour: set(&[last])? })
    }
}

/// The processors that share a core with one, itself included.
fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut all = vec![cpu];
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse(), last.parse()) {
            all.extend::<std::ops::RangeInclusive<usize>>(first..=last);
        }
    }
    all
}

/// The processors off the neighbour's core.
#[derive(Clone, Copy, Debug)]
pub struct Away(CpuSet);

impl Away {
    /// Keeps the calling thread there, and those that it starts from now on.
    ///
    /// # Errors
    ///
    /// The kernel refuses. It did not when the neighbour was made.
    pub fn keep(&self) -> Result<()> {
        sched_setaffinity(Pid::from_raw(0), &self.0).context("keeping off the neighbour's core")?;
        Ok(())
    }
}

/// A core that can be kept for one thing, and the others; none if there is only one.
pub(crate) fn spare_core() -> Option<(usize, Away)> {
    let Seats { measured, neighbour } = Seats::find(1).ok()?;
    let core = (0..CpuSet::count()).find(|&cpu| neighbour.is_set(cpu).unwrap_or(false))?;
    Some((core, Away(measured)))
}

/// What the thread and its owner share.
#[derive(Debug)]
struct Shared {
    awake: AtomicBool,
    over: AtomicBool,
    /// Times that it has gone through the whole buffer.
    passes: AtomicU64,
}

/// A neighbour that sleeps until it is woken. Dropping it ends it.
#[derive(Debug)]
pub struct Neighbour {
    shared: Arc<Shared>,
    seats: Seats,
    /// Hears when the thread has gone to sleep.
    asleep: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
    bytes: usize,
}

impl Neighbour {
    /// A neighbour for `threads` threads that are to be measured: asleep, on a core that none of
    /// them shares, with a buffer of one and a quarter times the last-level cache.
    ///
    /// # Errors
    ///
    /// There are too few cores.
    pub fn new(threads: usize) -> Result<Self> {
        Self::with_buffer(threads, buffer_bytes())
    }

    fn with_buffer(threads: usize, bytes: usize) -> Result<Self> {
        let seats = Seats::find(threads)?;
        let shared = Arc::new(Shared {
            awake: AtomicBool::new(false),
            over: AtomicBool::new(false),
            passes: AtomicU64::new(0),
        });
        let (told, asleep) = mpsc::channel();
        let walking = Arc::clone(&shared);
        let lines = (bytes / LINE).max(STRIDE);
        let thread = thread::Builder::new()
            .name("neighbour".into())
            .spawn(move || {
                // Where it cannot be bound, the scheduler still finds it the idle core.
                let _ = sched_setaffinity(Pid::from_raw(0), &seats.neighbour);
                walk(&walking, &told, lines);
            })
            .context("starting a neighbour")?;
        let neighbour = Self { shared, seats, asleep, thread: Some(thread), bytes: lines * LINE };
        neighbour.await_sleep();
        // A thread of its own: the caller stays where it may run.
        let away = neighbour.away();
        let tried = thread::spawn(move || away.keep()).join();
        tried.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(neighbour)
    }

    /// Whether a thread on this processor would share the neighbour's core.
    pub fn shares(&self, cpu: usize) -> bool {
        !self.seats.measured.is_set(cpu).unwrap_or(false)
    }

    /// Bytes that it walks through.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where who is measured runs.
    pub fn away(&self) -> Away {
        Away(self.seats.measured)
    }

    /// Runs something with the neighbour awake, which has been through its whole buffer before; or
    /// with the neighbour asleep.
    pub fn beside<R>(&self, awake: bool, work: impl FnOnce() -> R) -> R {
        if !awake {
            return work();
        }
        let before = self.shared.passes.load(Ordering::Acquire);
        self.shared.awake.store(true, Ordering::Release);
        self.unpark();
        while self.shared.passes.load(Ordering::Acquire) == before && !self.is_dead() {
            thread::sleep(std::time::Duration::from_millis(1));
        }
        let result = work();
        self.shared.awake.store(false, Ordering::Release);
        self.await_sleep();
        result
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    fn is_dead(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn await_sleep(&self) {
        // Nobody speaks any more if the thread is gone.
        let _ = self.asleep.recv();
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.unpark();
        if let Some(thread) = self.thread.take() {
            // A panic was printed already.
            let _ = thread.join();
        }
    }
}

/// The thread: asleep, or walking through its lines, until it is over.
fn walk(shared: &Shared, told: &mpsc::Sender<()>, lines: usize) {
    let mut buffer = vec![[0u64; LINE / 8]; lines];
    while told.send(()).is_ok() {
        while !shared.awake.load(Ordering::Acquire) {
            if shared.over.load(Ordering::Acquire) {
                return;
            }
            thread::park();
        }
        let mut at = 0;
        while shared.awake.load(Ordering::Acquire) && !shared.over.load(Ordering::Acquire) {
            let end = (at + STRIDE).min(lines);
            for line in &mut buffer[at..end] {
                line[0] = line[0].wrapping_add(1);
            }
            at = end;
            if at == lines {
                at = 0;
                shared.passes.fetch_add(1, Ordering::AcqRel);
            }
        }
        black_box(&mut buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("48K"), Some(48 << 10));
        assert_eq!(bytes("480M"), Some(480 << 20));
        assert_eq!(bytes("64"), Some(64));
        assert_eq!(bytes("x"), None);
        assert!(last_level_cache() >= 1 << 16);
    }

    #[test]
    fn a_neighbour_walks_while_it_is_awake_and_only_then() {
        let Ok(neighbour) = Neighbour::with_buffer(1, 1 << 20) else {
            assert_eq!(thread::available_parallelism().map_or(1, usize::from), 1);
            return;
        };
        assert_eq!(neighbour.bytes(), 1 << 20);
        let passes = || neighbour.shared.passes.load(Ordering::Acquire);
        neighbour.beside(false, || assert_eq!(passes(), 0));
        for _ in 0..3 {
            let before = passes();
            // The buffer was walked through before the work began, and is walked through again.
            neighbour.beside(true, || {
                let begun = passes();
                assert!(begun > before);
                while passes() < begun + 3 {
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let after = passes();
            thread::sleep(Duration::from_millis(20));
            assert_eq!(passes(), after);
        }
    }

    #[test]
    fn nobody_who_is_measured_shares_the_neighbours_core() {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let Ok(seats) = Seats::find(1) else {
            assert!(cores <= 2, "{cores} processors, and no room for a neighbour");
            return;
        };
        let both = |cpu| {
            seats.measured.is_set(cpu).unwrap_or(false)
                && seats.neighbour.is_set(cpu).unwrap_or(false)
        };
        assert!(!(0..CpuSet::count()).any(both));
        let refused = Seats::find(CpuSet::count() + 1).unwrap_err().to_string();
        assert!(refused.contains("a core of its own"), "{refused}");
    }
}
