//! A lab's directory, its owner, and the sweeping of labs whose owner died.
//!
//! `/run/weir-lab/<id>/` holds what a lab wrote, and says which process it belongs to (`owner`),
//! which namespaces it made (`namespaces`) and what else has to go with it (`also`). All of it is
//! written before the thing itself is made, so a lab that died at any point can be cleaned up by
//! the next one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng;

use crate::error::{Doing, Error, Result};
use weir_testbed::{NetNs, cgroup};

const ROOT: &str = "/run/weir-lab";
const ID_LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const ID_LENGTH: usize = 4;

/// The directory of one lab. It is removed by [`Home::demolish`], not on drop.
#[derive(Debug)]
pub(crate) struct Home {
    id: String,
    path: PathBuf,
}

impl Home {
    /// Sweeps up dead labs, then makes the directory of a new one under a fresh id.
    pub(crate) fn claim() -> Result<Self> {
        fs::create_dir_all(ROOT).doing(|| format!("creating {ROOT}"))?;
        let _lock = lock()?;
        sweep_locked();
        loop {
            let mut random = rand::rng();
            let id: String = (0..ID_LENGTH)
                .map(|_| char::from(ID_LETTERS[random.random_range(0..ID_LETTERS.len())]))
                .collect();
            let path = Path::new(ROOT).join(&id);
            match fs::create_dir(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => Err(error).doing(|| format!("creating {}", path.display()))?,
            }
            let home = Self { id, path };
            let owner = Owner::this_process()?;
            home.write("owner", &format!("{} {}\n", owner.pid, owner.started))?;
            return Ok(home);
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, text).doing(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Notes namespaces that are about to be made.
    pub(crate) fn note_namespaces(&self, names: &[&str]) -> Result<()> {
        self.append("namespaces", names)
    }

    /// Notes a file or directory outside the lab's own that has to go with it.
    pub(crate) fn note_also(&self, path: &Path) -> Result<()> {
        self.append("also", &[&path.to_string_lossy()])
    }

    fn append(&self, name: &str, lines: &[&str]) -> Result<()> {
        let path = self.path.join(name);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let appended = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        Ok(appended.doing(|| format!("writing {}", path.display()))?)
    }

    /// Removes everything that belongs to this lab. Calling it again does nothing.
    pub(crate) fn demolish(&self) {
        demolish(&self.id, &self.path);
    }
}

/// Cleans up what labs whose process has died left behind; returns their ids. A new lab does this
/// by itself.
pub fn sweep() -> Result<Vec<String>> {
    if !Path::new(ROOT).exists() {
        return Ok(Vec::new());
    }
    let _lock = lock()?;
    Ok(sweep_locked())
}

fn lock() -> Result<Flock<File>> {
    let path = Path::new(ROOT).join(".lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .doing(|| format!("opening {}", path.display()))?;
    let locked = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error);
    Ok(locked.doing(|| format!("locking {}", path.display()))?)
}

fn sweep_locked() -> Vec<String> {
    let mut swept = Vec::new();
    for entry in fs::read_dir(ROOT).into_iter().flatten().flatten() {
        let Ok(id) = entry.file_name().into_string() else {
            continue;
        };
        if !is_id(&id) {
            continue;
        }
        // A lab's owner is written under the lock, so a directory without one is a dead lab's.
        let alive = fs::read_to_string(entry.path().join("owner"))
            .ok()
            .and_then(|text| Owner::parse(&text))
            .is_some_and(|owner| owner.is_alive());
        if !alive {
            tracing::info!("sweeping up lab {id}, whose owner has died");
            demolish(&id, &entry.path());
            swept.push(id);
        }
    }
    swept
}

fn is_id(text: &str) -> bool {
    text.len() == ID_LENGTH && text.bytes().all(|b| ID_LETTERS.contains(&b))
}

/// Best effort all the way: whatever cannot be removed is reported and the rest is still removed.
fn demolish(id: &str, path: &Path) {
    let prefix = format!("wl{id}-");
    let lines = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
    let namespaces: Vec<NetNs> = lines("namespaces")
        .lines()
        .filter(|name| name.starts_with(&prefix))
        .map(NetNs::named)
        .collect();
    for process in namespaces.iter().flat_map(NetNs::processes) {
        // It may have ended since it was listed.
        let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
    }
    for namespace in &namespaces {
        if let Err(error) = namespace.delete() {
            tracing::warn!("{error}");
        }
    }
    for also in lines("also").lines().map(Path::new) {
        remove(also);
    }
    unmount_below(path);
    // The directory last: it is the memory of everything above.
    remove(path);
}

/// Takes away what is mounted in a lab's directory, which could not be removed with it. A test
/// gives a balancer a small file system of its own that way, and may die before it unmounts.
fn unmount_below(path: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // The fifth field is where it is mounted. A lab's path has no character that is escaped there.
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    // The last mounted goes first: it may stand on another.
    for point in points.filter(|point| point.starts_with(path)).collect::<Vec<_>>().iter().rev() {
        // Detached: a process that still looks into it keeps nobody else from cleaning up.
        if let Err(error) = umount2(*point, MntFlags::MNT_DETACH) {
            tracing::warn!("cannot unmount {}: {error}", point.display());
        }
    }
}

fn remove(path: &Path) {
    let removed = match path.symlink_metadata() {
        Ok(_) if cgroup::is_cgroup(path) => cgroup::remove(path),
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot remove {}: {error}", path.display());
        }
        _ => {}
    }
}

/// A process, told apart from a later one with the same number by its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    pid: u32,
    /// Clock ticks from the start of the machine, field 22 of /proc/PID/stat.
    started: u64,
}

impl Owner {
    fn this_process() -> Result<Self> {
        let pid = std::process::id();
        let started = start_time(pid).ok_or_else(|| Error::BadFile {
            path: format!("/proc/{pid}/stat").into(),
            what: "no start time".into(),
        })?;
        Ok(Self { pid, started })
    }

    fn parse(text: &str) -> Option<Self> {
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }

    fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.started)
    }
}

fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_told_apart_by_start_time() {
        let me = Owner::this_process().unwrap();
        assert!(me.is_alive());
        let text = format!("{} {}\n", me.pid, me.started);
        assert_eq!(Owner::parse(&text), Some(me));
        let earlier = Owner { started: me.started - 1, ..me };
        assert!(!earlier.is_alive());
        assert_eq!(Owner::parse(""), None);
    }

    #[test]
    fn only_ids_are_taken_for_labs() {
        assert!(is_id("ab0z"));
        for other in ["", ".lock", "ab0", "ab0zz", "AB0Z", "a-b0"] {
            assert!(!is_id(other), "{other}");
        }
    }
}
