//! Control groups (cgroup v2): what a set of processes has used of the CPUs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::error::{Doing, Result};

/// How often, and after which time each, a group whose last process is just ending is tried again.
const TRIES: u32 = 100;
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// A control group of its own. It stays until it is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Where a group of this name is, whether it is there or not: `a/b` is a group in a group.
    ///
    /// # Errors
    /// If no hierarchy of version 2 is mounted.
    pub fn path_of(name: &str) -> Result<PathBuf> {
        Ok(root()?.join(name))
    }

    /// Makes the group of this name, and those around it.
    ///
    /// # Errors
    /// If no hierarchy of version 2 is mounted, or the process may not (it needs root).
    pub fn create(name: &str) -> Result<Self> {
        let path = Self::path_of(name)?;
        fs::create_dir_all(&path).doing(|| format!("making the cgroup {}", path.display()))?;
        Ok(Self { path })
    }

    /// Directory of the group, below that of cgroup v2.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves a process into the group, with all of its threads; its children are born there.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn add(&self, process: u32) -> Result<()> {
        let path = self.path.join("cgroup.procs");
        fs::write(&path, process.to_string())
            .doing(|| format!("moving process {process} into {}", self.path.display()))
    }

    /// CPU time that its processes have used, those that have ended too.
    ///
    /// # Errors
    /// If the group is gone.
    pub fn cpu_time(&self) -> Result<Duration> {
        let path = self.path.join("cpu.stat");
        let read = || -> io::Result<Duration> {
            let text = fs::read_to_string(&path)?;
            usage(&text).ok_or_else(|| io::Error::other("no line `usage_usec NUMBER`"))
        };
        read().doing(|| format!("reading {}", path.display()))
    }
}

/// Whether a directory is a control group.
pub fn is_cgroup(path: &Path) -> bool {
    path.join("cgroup.procs").exists()
}

/// Removes a group and those in it, with the processes that are left there.
///
/// # Errors
/// If processes stay in it (before Linux 5.14 nothing is killed), or the process may not.
pub fn remove(path: &Path) -> io::Result<()> {
    // Where there is no such file, whoever is left has to end by itself.
    let _ = fs::write(path.join("cgroup.kill"), "1");
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path())?;
        }
    }
    for _ in 0..TRIES {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(TRY_AGAIN),
            result => return result,
        }
    }
    fs::remove_dir(path)
}

/// Where the hierarchy of version 2 is mounted.
fn root() -> Result<PathBuf> {
    let find = || {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        mounted(&mounts).ok_or_else(|| {
            let how = "no hierarchy of version 2 is mounted; `mount -t cgroup2 none DIRECTORY` \
                       mounts it";
            io::Error::new(io::ErrorKind::NotFound, how)
        })
    };
    find().doing(|| "looking for control groups".into())
}

/// The first mount of the type cgroup2 in a table of mounts (`proc_mounts(5)`).
fn mounted(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let at = words.nth(1)?;
        // A space in a path is written as \040.
        (words.next()? == "cgroup2").then(|| PathBuf::from(at.replace("\\040", " ")))
    })
}

/// The line `usage_usec` of a cpu.stat.
fn usage(text: &str) -> Option<Duration> {
    let number = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    number.trim().parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_second_version_is_found_among_mounts() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n";
        assert_eq!(mounted(mounts), None);
        let both = format!("{mounts}cgroup2 /sys/fs/a\\040b cgroup2 rw 0 0\n");
        assert_eq!(mounted(&both), Some("/sys/fs/a b".into()));
    }

    #[test]
    fn usage_is_in_microseconds() {
        assert_eq!(usage("usage_usec 1500\nuser_usec 1000\n"), Some(Duration::from_micros(1500)));
        assert_eq!(usage("user_usec 1000\n"), None);
        assert_eq!(usage("usage_usec many\n"), None);
    }

    #[test]
    fn a_group_counts_what_its_processes_use_and_can_be_removed() {
        let name = format!("weir-test-{}", std::process::id());
        let group = Cgroup::create(&format!("{name}/inner")).unwrap();
        assert_eq!(group.cpu_time().unwrap(), Duration::ZERO);
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let added = group.add(child.id());
        while added.is_ok() && group.cpu_time().unwrap() < Duration::from_millis(20) {
            thread::sleep(TRY_AGAIN);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let outer = Cgroup::path_of(&name).unwrap();
        assert!(is_cgroup(&outer) && !is_cgroup(Path::new("/proc")));
        remove(&outer).unwrap();
        assert!(!outer.exists());
        added.unwrap();
        assert!(group.cpu_time().unwrap_err().to_string().contains("cpu.stat"));
        assert!(group.add(std::process::id()).is_err());
    }
}
