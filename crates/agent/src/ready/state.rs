//! What was changed, and what it was before: a file that is written before each change, so that whoever comes
//! next can undo it, however this process ended.

use crate::error::{Context, Error};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use weir_host::files;

const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Numbers of programs that are remembered.
const PROGRAMS: usize = 64;
/// Of the file's form: one that is not known is left alone.
const FORM: u32 = 1;

/// Something that was changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Change {
    /// The loopback device was down.
    Loopback {
        /// Nor had it 127.0.0.1, which the kernel gives it when it comes up first.
        bare: bool,
    },
    /// A setting below /proc/sys/net.
    Setting { name: String, was: String, is: String },
    /// An address that the loopback device did not have.
    Address(IpAddr),
    /// An interface had no discipline clsact.
    Clsact { interface: String, index: u32 },
    /// The program that lowers segment sizes.
    Segments { interface: String, index: u32 },
    /// The program that takes packets out of tunnels.
    Decapsulation { interface: String, index: u32 },
    /// The programs that write cookies.
    Timestamps { interfaces: Vec<String> },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    form: u32,
    /// Nothing of it is true after the next one.
    boot: String,
    changes: Vec<Change>,
}

/// The changes, and their file.
#[derive(Debug)]
pub(super) struct State {
    path: PathBuf,
    boot: String,
    changes: Vec<Change>,
}

impl State {
    /// Those that an agent before this one has left in this network namespace; none, if there are none.
    pub(super) fn read(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(format!("net-{}.json", network()?));
        let boot = boot()?;
        let text = match files::read_text(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Self { path, boot, changes: Vec::new() });
            }
            text => text.context(|| format!("read {}", path.display()))?,
        };
        let damaged = |why: String| Error::State { path: path.clone(), why };
        let file: File = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if file.form != FORM {
            return Err(damaged(format!("it has form {}, and this weir knows {FORM}", file.form)));
        }
        let changes = if file.boot == boot { file.changes } else { Vec::new() };
        Ok(Self { path, boot, changes })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Notes what is about to be changed. What is noted already stays as it was noted first.
    pub(super) fn note(&mut self, change: Change) -> Result<(), Error> {
        if self.changes.contains(&change) {
            return Ok(());
        }
        self.changes.push(change);
        self.write()
    }

    /// Forgets what was undone, or is no longer ours.
    pub(super) fn forget(&mut self, change: &Change) -> Result<(), Error> {
        let before = self.changes.len();
        self.changes.retain(|one| one != change);
        if self.changes.len() == before {
            return Ok(());
        }
        self.write()
    }

    /// Numbers of programs that are ours, in a file beside, so that a version before this one reads the other. What
    /// cannot be read are none: whoever may ask the kernel for names needs no numbers.
    pub(super) fn programs(&self) -> Vec<u32> {
        let text = files::read_text(&self.numbers()).unwrap_or_default();
        let mut lines = text.lines();
        if lines.next() != Some(&*self.boot) {
            return Vec::new();
        }
        lines.filter_map(|line| line.parse().ok()).collect()
    }

    /// Notes that these are about to be ours, beside those that are.
    pub(super) fn note_programs(&self, numbers: &[u32]) -> Result<(), Error> {
        let mut all = self.programs();
        all.extend(numbers);
        all.sort_unstable();
        all.dedup();
        // The kernel counts on, and those of long ago are gone.
        let recent = &all[all.len().saturating_sub(PROGRAMS)..];
        let lines: String = recent.iter().map(|number| format!("{number}\n")).collect();
        let path = self.numbers();
        files::write(&path, format!("{}\n{lines}", self.boot).as_bytes())
            .context(|| format!("write {}", path.display()))
    }

    fn numbers(&self) -> PathBuf {
        self.path.with_extension("programs")
    }

    /// Whole or not at all: a new file takes the old one's place.
    fn write(&self) -> Result<(), Error> {
        if self.changes.is_empty() {
            let _ = fs::remove_file(self.numbers());
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                removed => removed.context(|| format!("remove {}", self.path.display())),
            };
        }
        let (boot, changes) = (self.boot.clone(), self.changes.clone());
        let text = serde_json::to_string_pretty(&File { form: FORM, boot, changes })
            .map_err(|error| Error::State { path: self.path.clone(), why: error.to_string() })?;
        let what = || format!("write {}", self.path.display());
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory).context(what)?;
        files::write_through(&self.path, text.as_bytes()).context(what)
    }
}

/// The number of this boot, which no other one has.
pub(crate) fn boot() -> Result<String, Error> {
    Ok(fs::read_to_string(BOOT).context(|| format!("read {BOOT}"))?.trim().to_owned())
}

/// The cookie of this thread's network namespace, which no other one has until the next boot. (The number of
/// its file is soon given to another one.)
pub(crate) fn network() -> Result<u64, Error> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let what = || "ask for the network namespace's cookie".to_owned();
    let fd = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(std::io::Error::from)
        .context(what)?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as it is told that there are.
    let failed = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if failed < 0 { Err(std::io::Error::last_os_error()) } else { Ok(cookie) }.context(what)
}
