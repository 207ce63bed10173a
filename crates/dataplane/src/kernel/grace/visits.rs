//! A thread that visits every processor.
//!
//! An XDP program, and one for traffic control, runs with bottom halves disabled, from its first
//! instruction until what it redirected is flushed: in NAPI's poll, in its thread, in the threads of
//! CPUMAP, and where a packet is handed in by a system call. That raises the processor's preemption count,
//! so the scheduler runs nobody else there before the program is over. So when a thread of ours has run on
//! a processor after a change, every program that had begun there before the change is over, and the
//! switch to the thread is a memory barrier on both sides. When it has been on every processor, that is
//! so everywhere: the simplest of all grace periods (McKenney and Walpole, "What is RCU, Fundamentally?",
//! LWN 2007: `for_each_online_cpu(cpu) run_on(cpu)`).
//!
//! A processor that is not online runs no program, and one that comes online meanwhile begins with what
//! has changed. Where any of this does not hold, nobody is visited, and the kernel's own wait serves:
//! - the kernel is of the kind PREEMPT_RT, where bottom halves can be preempted;
//! - the list of processors is not the kernel's own, as in some containers;
//! - some processors are isolated or without ticks, which their owner wants left alone;
//! - a processor is not ours (a cpuset), or the call is refused;
//! - a visit takes long, as where a thread of real-time priority holds a processor.

use std::ffi::CStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Names the processors that are online.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// How long a visit to all may take. The kernel's own wait seldom takes longer.
const PATIENCE: Duration = Duration::from_millis(10);

/// Who visits every processor when asked to.
pub(super) struct Visitor {
    /// None where processors cannot be visited, or where it would prove nothing.
    rounds: Option<Arc<Rounds>>,
}

/// Rounds, counted.
#[derive(Default)]
struct Rounds {
    count: Mutex<Count>,
    changed: Condvar,
}

#[derive(Default)]
struct Count {
    /// The last one that somebody has asked for.
    wanted: u64,
    /// The last one that is over: it began after it was asked for.
    over: u64,
    /// The last one that did not come to all processors.
    failed: u64,
}

impl Rounds {
    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        loop {
            let waiting = self
                .changed
                .wait_while(self.count(), |count| count.wanted == count.over.max(count.failed))
                .unwrap_or_else(PoisonError::into_inner);
            let round = waiting.wanted;
            drop(waiting);
            let done = visit_all();
            let mut count = self.count();
            if done {
                count.over = round;
            } else {
                count.failed = round;
            }
            drop(count);
            self.changed.notify_all();
        }
    }
}

impl Visitor {
    pub(super) fn new() -> Self {
        if !a_visit_proves() {
            return Self { rounds: None };
        }
        let rounds = Arc::new(Rounds::default());
        let served = rounds.clone();
        let thread = thread::Builder::new().name("grace".into()).stack_size(128 << 10);
        Self { rounds: thread.spawn(move || served.serve()).ok().map(|_| rounds) }
    }

    /// Whether every processor was visited after this call began. Not if that cannot be, or takes
    /// [`PATIENCE`].
    pub(super) fn visit(&self) -> bool {
        let Some(rounds) = &self.rounds else { return false };
        let mut count = rounds.count();
        count.wanted += 1;
        let wanted = count.wanted;
        rounds.changed.notify_all();
        let (count, _) = rounds
            .changed
            .wait_timeout_while(count, PATIENCE, |count| count.over.max(count.failed) < wanted)
            .unwrap_or_else(PoisonError::into_inner);
        count.over >= wanted
    }
}

/// Whether bottom halves cannot be preempted, and no processor is to be left alone.
fn a_visit_proves() -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let none = |text: String| matches!(text.trim(), "" | "(null)");
    version().is_some_and(|version| !is_realtime(&version))
        && is_of_the_kernel(ONLINE)
        && none(read("/sys/devices/system/cpu/isolated"))
        && none(read("/sys/devices/system/cpu/nohz_full"))
}

/// What `uname -v` says.
fn version() -> Option<String> {
    // SAFETY: an all-zero structure is valid, and the call fills it with texts that end with a zero.
    unsafe {
        let mut names: libc::utsname = std::mem::zeroed();
        (libc::uname(&raw mut names) == 0)
            .then(|| CStr::from_ptr(names.version.as_ptr()).to_string_lossy().into_owned())
    }
}

/// `#1 SMP PREEMPT_RT Debian ...`, and `PREEMPT RT` in patched kernels of old. There is no other word of it that
/// all kernels have.
fn is_realtime(version: &str) -> bool {
    version.replace(' ', "_").contains("PREEMPT_RT")
}

/// Whether a file of sysfs is the kernel's own: in containers others are mounted over some, which name the
/// container's processors alone.
fn is_of_the_kernel(path: &str) -> bool {
    let Ok(file) = fs::File::open(path) else { return false };
    // SAFETY: an all-zero structure is valid, the call fills it, and the file is open.
    unsafe {
        let mut system: libc::statfs = std::mem::zeroed();
        libc::fstatfs(file.as_raw_fd(), &raw mut system) == 0 && system.f_type == libc::SYSFS_MAGIC
    }
}

/// Runs on every processor that is online; whether it could.
fn visit_all() -> bool {
    // One may go offline between the list and the visit: the list is read once more then.
    (0..3).any(|_| {
        let Some(online) = online() else { return false };
        online.into_iter().all(run_on)
    })
}

/// The processors that are online.
fn online() -> Option<Vec<usize>> {
    of_list(fs::read_to_string(ONLINE).ok()?.trim())
}

/// What a list like `0-3,6` names; at least one.
fn of_list(text: &str) -> Option<Vec<usize>> {
    let mut named = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        named.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    (!named.is_empty()).then_some(named)
}

/// Goes to a processor; whether it is there.
fn run_on(cpu: usize) -> bool {
    let mut set = vec![0u64; cpu / 64 + 1];
    set[cpu / 64] = 1 << (cpu % 64);
    // SAFETY: the call reads the bytes of the set and no more, and concerns this thread alone. When it
    // returns, the thread has been moved.
    let moved =
        unsafe { libc::sched_setaffinity(0, size_of_val(set.as_slice()), set.as_ptr().cast()) }
            == 0;
    // SAFETY: the call only answers.
    moved && unsafe { libc::sched_getcpu() } == cpu as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(of_list("0"), Some(vec![0]));
        assert_eq!(of_list("0-2,7,9-10"), Some(vec![0, 1, 2, 7, 9, 10]));
        assert_eq!(of_list(""), None);
        assert_eq!(of_list("1-x"), None);
    }

    #[test]
    fn kernels_of_real_time_are_known() {
        assert!(is_realtime("#1 SMP PREEMPT_RT Debian 6.12.48-1 (2025-09-20)"));
        assert!(is_realtime("#1 SMP PREEMPT RT Tue Jan 1 00:00:00 UTC 2019"));
        assert!(!is_realtime("#1 SMP PREEMPT_DYNAMIC Debian 6.1.158-1 (2025-11-09)"));
        assert!(is_of_the_kernel(ONLINE) && !is_of_the_kernel("/proc/self/status"));
    }

    #[test]
    fn a_processor_that_is_not_there_cannot_be_visited() {
        thread::spawn(|| {
            assert!(run_on(online().unwrap()[0]));
            assert!(!run_on(100_000));
        })
        .join()
        .unwrap();
    }
}
