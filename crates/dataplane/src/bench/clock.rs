//! The time that packets took of their processor, whatever else runs on it.

use crate::error::{Context, Error};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// What the calling thread has used of its processor, and the kernel's thread there to which interrupts
/// leave packets that are too many for them.
pub(super) struct Clock {
    interrupts: Option<PathBuf>,
}

impl Clock {
    /// Of the thread that calls, on the processor that it is on and stays on.
    pub fn new() -> Self {
        // SAFETY: it has no arguments and changes nothing.
        let name = format!("ksoftirqd/{}", unsafe { libc::sched_getcpu() });
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let is_it = |path: &PathBuf| {
            fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let found = processes.map(|process| process.path()).find(is_it);
        Self { interrupts: found.map(|path| path.join("schedstat")) }
    }

    /// Used so far.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel does not tell.
    pub fn used(&self) -> Result<Duration, Error> {
        let mut own = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it is written to what outlives the call.
        let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut own) };
        if done < 0 {
            return Err(io::Error::last_os_error()).context(|| "read the thread's clock".into());
        }
        // A kernel without these figures counts the thread's alone.
        let text = self.interrupts.as_ref().and_then(|path| fs::read_to_string(path).ok());
        let other = text.and_then(|text| text.split(' ').next()?.parse().ok());
        Ok(Duration::new(own.tv_sec as u64, own.tv_nsec as u32)
            + Duration::from_nanos(other.unwrap_or(0)))
    }
}
