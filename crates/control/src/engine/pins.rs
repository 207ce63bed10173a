//! Where pins live, and whether they outlive this process; and what becomes of pins and links that somebody takes away
//! meanwhile. A network namespace entered by `ip netns exec` brings a
//! mount namespace along in which there is no BPF file system; one that is mounted there is nobody else's, and goes
//! with the last process inside.

use super::{Engine, EngineError, PlaneResult, attachment, pin_directory};
use crate::config::PlaneKind;
use crate::last_good::note;
use crate::neigh;
use crate::store::{NameLock, StoreError};
use nix::sys::stat::{major, minor};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::{error, info, warn};
use weir_dataplane::KernelPlane;
use weir_host::files::is_gone;
use weir_plane::{Plane, TakenAway};

/// The BPF file system.
const PLACE: &str = "/sys/fs/bpf";

/// This process has mounted it.
static MOUNTED: AtomicBool = AtomicBool::new(false);

/// Whether what is pinned is there when this process has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lasting {
    /// Nothing speaks against it.
    Stays,
    /// Somebody may have it mounted, or nobody.
    Unsure,
    /// Nobody else has it mounted.
    Ends,
}

/// Mounts the BPF file system, if there is none.
pub(super) fn mount() -> Result<(), EngineError> {
    const BPF_FS_MAGIC: libc::c_long = 0xcafe_4a11;
    let mounted =
        nix::sys::statfs::statfs(PLACE).is_ok_and(|fs| fs.filesystem_type().0 == BPF_FS_MAGIC);
    if mounted {
        return Ok(());
    }
    nix::mount::mount(Some("bpf"), PLACE, Some("bpf"), nix::mount::MsFlags::empty(), None::<&str>)
        .map_err(|error| {
            EngineError::Conflict(format!(
                "the BPF file system is not mounted at {PLACE} and cannot be ({error}); as root: \
                 mount -t bpf bpf {PLACE}"
            ))
        })?;
    MOUNTED.store(true, Ordering::Relaxed);
    Ok(())
}

/// What there is to say at a start. What is not sure is said in the log alone.
pub(super) fn said(kind: PlaneKind) -> Option<String> {
    let mend = "instead of by ip netns exec, enter the namespace by nsenter --net=/run/netns/NAME, which keeps the \
                mounts of the host";
    match lasting() {
        Lasting::Stays => None,
        // The process beside is inside, too, and goes on.
        Lasting::Ends if !kind.is_beside() => Some(format!(
            "the BPF file system at {PLACE} is in a mount namespace that is this process's alone: forwarding ends \
             with the control plane; {mend}"
        )),
        Lasting::Ends | Lasting::Unsure => {
            warn!(
                "the BPF file system at {PLACE} is not that of the host: forwarding may end with the control plane, \
                 as soon as nobody is left in its mount namespace; {mend}"
            );
            None
        }
    }
}

/// What there is to say when this process ends in an orderly way.
pub(crate) fn last_words(kind: PlaneKind, name: &str) -> &'static str {
    if kind != PlaneKind::P4 && !KernelPlane::forwards(&pin_directory(name)) {
        return "stopping; nothing goes on: no program is on an interface";
    }
    // Nothing of a switch is pinned.
    let lasting = if kind == PlaneKind::P4 { Lasting::Stays } else { lasting() };
    match lasting {
        Lasting::Stays => "stopping; the data plane goes on",
        // That is the process beside, at least.
        Lasting::Unsure if kind.is_beside() => {
            "stopping; the data plane and its process in user space go on in this mount namespace, as long as somebody is \
             left there; `weir unload` inside it ends both"
        }
        Lasting::Unsure => {
            "stopping; the data plane goes on as long as somebody is left in this mount namespace"
        }
        Lasting::Ends => {
            "stopping; the data plane ends with this process, whose BPF file system nobody else has"
        }
    }
}

fn lasting() -> Lasting {
    let mounted = MOUNTED.load(Ordering::Relaxed);
    let Ok(about) = fs::metadata(PLACE) else { return Lasting::Stays };
    let device = format!("{}:{}", major(about.dev()), minor(about.dev()));
    // Who is the first process itself sees nothing of the host around it.
    let own = std::process::id();
    let first = if own == 1 { None } else { mounts_of("1") };
    let namespace = fs::read_link("/proc/self/ns/mnt").ok();
    let namespace = namespace.map(|link| link.display().to_string());
    judge(mounted, &device, namespace.as_deref(), first.as_deref(), || others(own, &device))
}

/// `first`: the mounts of the first process, if they can be read. `others`: whether another process has the device
/// mounted.
fn judge(
    mounted: bool,
    device: &str,
    namespace: Option<&str>,
    first: Option<&str>,
    others: impl FnOnce() -> bool,
) -> Lasting {
    let Some(first) = first else {
        return if mounted { Lasting::Unsure } else { Lasting::Stays };
    };
    if has(first, device) {
        return Lasting::Stays;
    }
    // A namespace that is mounted as a file needs no process.
    let kept = namespace.is_none_or(|namespace| first.contains(namespace));
    // What somebody else has mounted may be mounted elsewhere, too.
    if !mounted || kept || others() { Lasting::Unsure } else { Lasting::Ends }
}

/// The mounts that a process sees.
fn mounts_of(process: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{process}/mountinfo")).ok()
}

/// Whether a device is among mounts (proc_pid_mountinfo(5)).
fn has(mounts: &str, device: &str) -> bool {
    mounts.lines().any(|line| line.split(' ').nth(2) == Some(device))
}

/// Whether a process besides this one has a device mounted. Where that cannot be seen, one may have.
fn others(own: u32, device: &str) -> bool {
    let Ok(all) = fs::read_dir("/proc") else { return true };
    let names = all.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut others = names.filter(|name| name.parse::<u32>().is_ok_and(|other| other != own));
    others.any(|name| mounts_of(&name).is_some_and(|mounts| has(&mounts, device)))
}

impl<P: Plane> Engine<P> {
    /// Looks whether all that this run has attached and pinned is in its place: somebody may have detached the program,
    /// or removed pins, and without them packets are balanced by nobody, or only until this process ends. What is
    /// gone is made anew.
    pub(super) fn hold_on(&mut self) {
        // Nothing is attached yet.
        if self.is_learning() {
            return;
        }
        let names = self.config.balancer.interfaces.clone();
        let pins = pin_directory(&self.config.balancer.name);
        self.move_back(&pins);
        let mut taken = self.plane.taken_away(&names);
        let unlocked = self.name.as_ref().is_some_and(|name| !name.is_of(&pins));
        if unlocked && taken.pins.is_none() {
            taken.pins = Some(format!("{} is another directory", pins.display()));
        }
        if taken.is_nothing() {
            if self.network.taken.take().is_some() {
                info!("what was taken away from outside is in its place again");
            }
            return;
        }
        let done = self.take_again(&names, &pins, unlocked);
        let still = self.plane.taken_away(&names);
        let is_off = |name: &String| still.interfaces.iter().any(|(off, _)| off == name);
        for (interface, found) in taken.interfaces.iter().filter(|(name, _)| !is_off(name)) {
            warn!(interface, found, "the program was taken off from outside; it is attached again");
        }
        self.attached.retain(|one| !is_off(&one.interface));
        let Err(failure) = done else {
            if let Some(found) = &taken.pins {
                pinned_again(found, None);
            }
            if let Some(found) = &taken.guard {
                warn!(found, "the guard was taken away from outside; it is put in place again");
            }
            self.network.taken = None;
            return;
        };
        let said = words(if still.is_nothing() { &taken } else { &still }, &failure);
        if self.network.taken.as_ref() != Some(&said) {
            error!("{said}");
        }
        self.network.taken = Some(said);
    }

    /// Before the process ends: what has no pin any more, and goes on now, would end with it. What was detached stays so.
    pub(super) fn pin_what_would_end(&mut self) {
        let pins = pin_directory(&self.config.balancer.name);
        let ours = self.name.as_ref().is_some_and(|name| name.is_of(&pins) || is_gone(&pins));
        if !ours || self.is_learning() {
            return;
        }
        self.move_back(&pins);
        let taken = self.plane.taken_away(&self.config.balancer.interfaces);
        let Some(found) = taken.pins else { return };
        pinned_again(&found, self.plane.put_back().plane().err());
    }

    /// Pins that were moved with their directory are moved back. Where they are made anew instead, all is pinned twice,
    /// and whoever clears the moved ones away takes this instance's program off.
    fn move_back(&self, pins: &Path) {
        let name = self.name.as_ref().filter(|_| is_gone(pins));
        let Some(from) = name.and_then(NameLock::place) else { return };
        let place = from.display();
        match fs::rename(&from, pins) {
            Ok(()) => warn!(from = %place, "pins were moved from outside; they are moved back"),
            Err(error) => {
                warn!(from = %place, %error, "pins were moved from outside and cannot be moved back; they are made again");
            }
        }
    }

    fn take_again(
        &mut self,
        names: &[String],
        pins: &Path,
        unlocked: bool,
    ) -> Result<(), EngineError> {
        // Of what is not the kernel's nothing is pinned.
        if self.name.is_some() {
            mount()?;
            fs::create_dir_all(pins).map_err(|source| StoreError::Io {
                doing: "create",
                path: pins.to_owned(),
                source,
            })?;
            if unlocked {
                // Another one may have taken the name meanwhile.
                self.name = Some(NameLock::acquire(pins)?);
            }
            if let Err(error) = note(pins, &self.config.balancer.run_dir) {
                warn!(%error, "a start over a file that is gone will not find this instance");
            }
        }
        let pinned = self.plane.put_back().plane();
        // Whatever cannot be pinned: packets are to be balanced.
        self.attached = self.plane.reattach(names, attachment(&self.config)).plane()?;
        self.tell_members(names, &neigh::interfaces().unwrap_or_default())?;
        pinned
    }
}

/// Says what became of pins that are gone: they are made again, if nothing failed.
fn pinned_again(found: &str, failure: Option<EngineError>) {
    match failure {
        None => warn!(found, "pins were removed from outside; they are made again"),
        Some(error) => {
            warn!(found, %error, "pins were removed from outside, and cannot be made again");
        }
    }
}

/// What was taken away and could not be made anew, in words.
fn words(taken: &TakenAway, failure: &EngineError) -> String {
    let off = taken.interfaces.iter().map(|(name, found)| {
        format!(
            "{name}: the program was taken off from outside ({found}): its packets are not balanced"
        )
    });
    let pins = taken.pins.iter().map(|found| {
        format!("pins were removed from outside ({found}): forwarding ends with the control plane")
    });
    let guard = taken.guard.iter().map(|found| {
        format!(
            "the guard was taken away from outside ({found}): packets of services that come by other interfaces reach \
             this host itself"
        )
    });
    let all: Vec<String> = off.chain(pins).chain(guard).collect();
    format!("{}; it cannot be put back, and is tried again: {failure}", all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_end_only_where_nobody_else_has_them() {
        let host =
            "22 1 0:20 / /sys rw - sysfs sysfs rw\n31 22 0:27 / /sys/fs/bpf rw - bpf bpf rw\n";
        let kept = format!("{host}40 1 0:4 mnt:[4026532001] /run/kept rw - nsfs nsfs rw\n");
        let own = Some("mnt:[4026532001]");
        let judge = |mounted, device, first, others| judge(mounted, device, own, first, || others);
        // The host's own, whoever has mounted it.
        assert_eq!(judge(true, "0:27", Some(host), false), Lasting::Stays);
        assert_eq!(judge(false, "0:27", Some(host), false), Lasting::Stays);
        // Of a namespace of its own.
        assert_eq!(judge(true, "0:99", Some(host), false), Lasting::Ends);
        assert_eq!(judge(true, "0:2", Some(host), false), Lasting::Ends);
        assert_eq!(judge(true, "0:99", Some(host), true), Lasting::Unsure);
        assert_eq!(judge(false, "0:99", Some(host), false), Lasting::Unsure);
        assert_eq!(judge(true, "0:99", Some(kept.as_str()), false), Lasting::Unsure);
        // The first process cannot be seen.
        assert_eq!(judge(true, "0:99", None, false), Lasting::Unsure);
        assert_eq!(judge(false, "0:99", None, false), Lasting::Stays);
    }
}
