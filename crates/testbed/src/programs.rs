//! BPF programs, and what they take of processors.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::libbpf_sys;
use libbpf_rs::query::ProgInfoIter;

/// While this lives, the kernel measures BPF programs: what `kernel.bpf_stats_enabled` does, but it
/// ends with the descriptor, also if this process is killed, and leaves a setting of somebody else
/// alone.
#[derive(Debug)]
pub struct Measuring(#[expect(dead_code, reason = "it is open")] OwnedFd);

impl Measuring {
    /// Begins.
    ///
    /// # Errors
    /// Where the kernel is older than 5.8, or the process may not.
    pub fn begin() -> io::Result<Self> {
        // SAFETY: the call takes a number and returns a descriptor or an error.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: the call returned a new descriptor that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

/// How long programs have run while they were measured, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// All their runs together.
    pub time: Duration,
    /// How many there were.
    pub runs: u64,
}

impl Ran {
    /// The programs that a process has open, wherever they are attached.
    ///
    /// # Errors
    /// If there is no such process, or it is another user's.
    pub fn of(process: u32) -> io::Result<Self> {
        let mut numbers = BTreeSet::new();
        for open in fs::read_dir(format!("/proc/{process}/fdinfo"))? {
            // One that has been closed meanwhile is no program's.
            let about = fs::read_to_string(open?.path()).unwrap_or_default();
            numbers.extend(number(&about));
        }
        let programs = ProgInfoIter::default().filter(|program| numbers.contains(&program.id));
        Ok(programs.fold(Self::default(), |sum, program| Self {
            time: sum.time + Duration::from_nanos(program.run_time_ns),
            runs: sum.runs + program.run_cnt,
        }))
    }

    /// What has come since then.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let time = self.time.saturating_sub(before.time);
        Self { time, runs: self.runs.saturating_sub(before.runs) }
    }
}

/// The number of the program of a descriptor, or of its link, by what the kernel says of that.
fn number(about: &str) -> Option<u32> {
    about.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_what_is_open() {
        let program = "pos:\t0\nflags:\t02000002\nprog_type:\t26\nprog_jited:\t1\nprog_id:\t417\n";
        assert_eq!(number(program), Some(417));
        assert_eq!(number("pos:\t0\nmap_type:\t27\nmap_id:\t9\n"), None);
        let ran = |ns, runs| Ran { time: Duration::from_nanos(ns), runs };
        assert_eq!(ran(700, 9).since(ran(200, 4)), ran(500, 5));
    }

    #[test]
    fn a_process_without_programs_has_run_none() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let ran = Ran::of(child.id());
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert_eq!(ran.expect("it was there"), Ran::default());
        assert!(Ran::of(u32::MAX).is_err());
    }
}
