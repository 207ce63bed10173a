//! Network namespaces: run a closure, a thread or a program inside one.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns};

use crate::error::{Doing, Result};
use crate::process;

const NETNS_DIR: &str = "/run/netns";

/// A named network namespace under `/run/netns`, as `ip netns` makes them.
///
/// Entering changes the network namespace of a thread and nothing else. (`ip netns exec` also
/// mounts a fresh /sys, which hides pinned BPF objects.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetNs {
    name: String,
}

impl NetNs {
    /// The namespace of this name; whether it exists shows when it is used.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }

    /// Creates the namespaces of these names, in one process.
    pub(crate) fn create(names: &[&str]) -> Result<()> {
        let mut batch = Command::new("ip");
        batch.args(["-batch", "-"]);
        let lines: String = names.iter().map(|n| format!("netns add {n}\n")).collect();
        process::run(batch, &lines).map(drop)
    }

    /// The name, for `ip -n NAME`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for the namespace, for `nsenter --net=PATH`.
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS_DIR).join(&self.name)
    }

    fn open(&self) -> Result<File> {
        File::open(self.path()).doing(|| format!("opening namespace {}", self.name))
    }

    /// Runs a closure on a thread inside the namespace and returns its result.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T> {
        let file = self.open()?;
        let joined = thread::scope(|scope| {
            scope.spawn(|| setns(&file, CloneFlags::CLONE_NEWNET).map(|()| inside())).join()
        });
        match joined {
            Ok(result) => result.doing(|| format!("entering namespace {}", self.name)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Starts a thread that is inside the namespace from its first line.
    pub fn spawn<T: Send + 'static>(
        &self,
        inside: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let file = self.open()?;
        let name = self.name.clone();
        thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                setns(&file, CloneFlags::CLONE_NEWNET)
                    .doing(|| format!("entering namespace {name}"))?;
                Ok(inside())
            })
            .doing(|| format!("starting a thread in {}", self.name))
    }

    /// A command whose process runs inside the namespace, in a process group of its own, and is
    /// killed when the thread that spawned it ends. Start what must live on with
    /// [`spawn`](crate::spawn), which spawns from a thread that never ends.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let file = self.open()?;
        let mut command = Command::new(program);
        // SAFETY: setns is a plain system call, and the closure does not allocate.
        unsafe {
            command
                .pre_exec(move || setns(&file, CloneFlags::CLONE_NEWNET).map_err(io::Error::from));
        }
        process::tie(&mut command);
        Ok(command)
    }

    /// Runs `ip -batch` inside the namespace.
    pub(crate) fn ip_batch(&self, lines: &str) -> Result<()> {
        let mut ip = self.command("ip")?;
        ip.args(["-batch", "-"]);
        process::run(ip, lines).map(drop)
    }

    /// Takes the name away; the namespace itself goes when nothing is inside any more. It is no
    /// error if it is gone already.
    pub(crate) fn delete(&self) -> Result<()> {
        let path = self.path();
        match umount2(&path, MntFlags::MNT_DETACH) {
            // EINVAL: the file is there and is not a mount point, as after a crash half-way.
            Ok(()) | Err(Errno::ENOENT | Errno::EINVAL) => {}
            Err(error) => return Err(error).doing(|| format!("unmounting {}", path.display())),
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).doing(|| format!("removing {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// The processes whose main thread is inside the namespace, without this process.
    pub(crate) fn processes(&self) -> Vec<i32> {
        use std::os::unix::fs::MetadataExt;
        let Ok(own) = std::fs::metadata(self.path()) else {
            return Vec::new();
        };
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        let me = std::process::id() as i32;
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| *pid != me)
            .filter(|pid| {
                std::fs::metadata(format!("/proc/{pid}/ns/net"))
                    .is_ok_and(|ns| ns.ino() == own.ino() && ns.dev() == own.dev())
            })
            .collect()
    }
}
