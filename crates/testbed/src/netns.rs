//! Network namespaces: run a closure, a thread or a program inside one.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::{Doing, Result};
use crate::{link, process};

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

    /// Creates the namespaces of these names, in one process. They stay until they are deleted.
    ///
    /// # Errors
    /// [`Error::Command`](crate::Error::Command) with what `ip` said.
    pub fn create(names: &[&str]) -> Result<()> {
        let lines: String = names.iter().map(|n| format!("netns add {n}\n")).collect();
        link::ip(&lines)
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
    ///
    /// # Errors
    /// If there is no such namespace, or the process may not enter it.
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
    ///
    /// # Errors
    /// If there is no such namespace, or no thread.
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
    /// [`process::spawn`], which spawns from a thread that never ends.
    ///
    /// # Errors
    /// If there is no such namespace.
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

    /// Runs lines of `ip` inside the namespace, in one process.
    ///
    /// # Errors
    /// [`Error::Command`](crate::Error::Command) with what `ip` said.
    pub fn ip(&self, lines: &str) -> Result<()> {
        link::batch(self.command("ip")?, lines)
    }

    /// Joins this namespace to another with a veth pair; both ends are called `eth0` and are up.
    ///
    /// # Errors
    /// If one of them has an `eth0` already, or is not there.
    pub fn join(&self, other: &Self) -> Result<()> {
        link::ip(&link::veth(&[self, other].map(|end| link::End::new("eth0").inside(end))))?;
        for end in [self, other] {
            // Duplicate address detection would keep addresses unusable for a second or two.
            end.sysctl("ipv6/conf/eth0/accept_dad", "0")?;
            end.ip(&link::up("eth0"))?;
        }
        Ok(())
    }

    /// Sets a value under /proc/sys/net inside the namespace; see [`sysctl`].
    ///
    /// # Errors
    /// If there is no such setting, or the kernel refuses the value.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        self.enter(|| sysctl(name, value))?
    }

    /// Switches an interface's checksum offload off, and what depends on it. With offload, a segment
    /// carries a partial checksum that XDP programs and AF_XDP readers see as a wrong one, and may
    /// be longer than a frame can be.
    ///
    /// # Errors
    /// [`Error::Command`](crate::Error::Command) with what `ethtool` said.
    pub fn no_checksum_offload(&self, interface: &str) -> Result<()> {
        let mut ethtool = self.command("ethtool")?;
        ethtool.args(["-K", interface, "tx", "off"]);
        process::run(ethtool, "").map(drop)
    }

    /// Lets one processor, the first, take whatever comes by any interface of the namespace: packets that two
    /// processors send one after the other come in this order, also if one of the two is kept from its
    /// work between taking a packet and passing it on.
    ///
    /// # Errors
    /// [`Error::Command`](crate::Error::Command), on a kernel that cannot choose the processor
    /// (`CONFIG_RPS`), for one.
    pub fn keep_order(&self) -> Result<()> {
        // This mounts a /sys that shows the namespace's interfaces.
        let mut ip = Command::new("ip");
        ip.args(["netns", "exec", &self.name, "sh", "-c"]);
        ip.arg("for one in /sys/class/net/*/queues/rx-*/rps_cpus; do echo 1 >$one || exit 1; done");
        process::run(ip, "").map(drop)
    }

    /// Makes an interface put VLAN tags into the frames that it sends, in place of beside them, where XDP
    /// programs at the other end of a veth do not see them.
    ///
    /// # Errors
    /// [`Error::Command`](crate::Error::Command) with what `ethtool` said.
    pub fn no_tag_offload(&self, interface: &str) -> Result<()> {
        let mut ethtool = self.command("ethtool")?;
        ethtool.args([
            "-K",
            interface,
            "tx-vlan-hw-insert",
            "off",
            "tx-vlan-stag-hw-insert",
            "off",
        ]);
        process::run(ethtool, "").map(drop)
    }

    /// Takes the name away; the namespace itself goes when nothing is inside any more. It is no
    /// error if it is gone already.
    ///
    /// # Errors
    /// If the file stays.
    pub fn delete(&self) -> Result<()> {
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
    pub fn processes(&self) -> Vec<i32> {
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

/// Sets a value under /proc/sys/net in the namespace of the calling thread; `name` as in
/// `ipv4/ip_forward`.
///
/// # Errors
/// If there is no such setting, or the kernel refuses the value.
pub fn sysctl(name: &str, value: &str) -> Result<()> {
    std::fs::write(format!("/proc/sys/net/{name}"), value)
        .doing(|| format!("setting net/{name} to {value}"))
}

/// Moves the calling thread into a new network namespace, which has no name and goes with its last
/// thread and process.
///
/// # Errors
/// If the process may not (it needs root).
pub fn enter_own_namespace() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).doing(|| "making a network namespace".into())
}

/// Runs a closure on a thread in a new network namespace and returns its result.
///
/// # Errors
/// If the process may not make one (it needs root).
pub fn in_own_namespace<T: Send>(inside: impl FnOnce() -> T + Send) -> Result<T> {
    let joined =
        thread::scope(|scope| scope.spawn(|| enter_own_namespace().map(|()| inside())).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
