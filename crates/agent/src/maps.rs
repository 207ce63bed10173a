//! Where the maps outlive the process: pinned, in a directory of the network namespace.

use crate::error::{Context, Error};
use libbpf_rs::{MapCore, MapHandle, MapMut, OpenMapMut};
use nix::errno::Errno;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::fs;
use std::io::ErrorKind;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

const BPFFS: &str = "/sys/fs/bpf";
const ROOT: &str = "/sys/fs/bpf/weir-agent";

/// Whether there is a place for pins.
pub(crate) fn look() -> Result<(), Error> {
    match statfs(BPFFS) {
        Ok(found) if found.filesystem_type() == BPF_FS_MAGIC => Ok(()),
        Ok(_) | Err(Errno::ENOENT) => Err(Error::NoBpffs(BPFFS)),
        // Whoever makes a directory there says it better.
        Err(_) => Ok(()),
    }
}

#[derive(Debug)]
pub(crate) struct Pins {
    directory: PathBuf,
    /// An agent before this one has left it.
    found: bool,
}

impl Pins {
    /// Named after the namespace of this thread, whose number no other one has at the same time.
    pub(crate) fn of_this_network() -> Result<Self, Error> {
        // Elsewhere a directory could not be made for another reason than it seems.
        look()?;
        let network = fs::metadata("/proc/thread-self/ns/net")
            .context(|| "look at the network namespace".into())?;
        let directory = Path::new(ROOT).join(format!("net-{}", network.st_ino()));
        let found = directory.exists();
        fs::create_dir_all(&directory).context(|| format!("create {}", directory.display()))?;
        Ok(Self { directory, found })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Takes the pinned map in place of a new one. Returns whether there is one.
    pub(crate) fn reuse(&self, name: &str, map: &mut OpenMapMut<'_>) -> Result<bool, Error> {
        let path = self.directory.join(name);
        if !path.exists() {
            return Ok(false);
        }
        let pinned =
            MapHandle::from_pinned_path(&path).context(|| format!("open {}", path.display()))?;
        let same = pinned.map_type() == map.map_type()
            && pinned.key_size() == map.key_size()
            && pinned.value_size() == map.value_size();
        if !same {
            return Err(Error::Incompatible { path, directory: self.directory.clone() });
        }
        map.reuse_pinned_map(&path).context(|| format!("open {}", path.display()))?;
        Ok(true)
    }

    /// Pins a map unless it is.
    pub(crate) fn pin(&self, name: &str, map: &mut MapMut<'_>) -> Result<(), Error> {
        let path = self.directory.join(name);
        if path.exists() {
            return Ok(());
        }
        map.pin(&path).context(|| format!("pin {}", path.display()))
    }

    /// Removes all of it after a start that has failed, but what was there before it.
    pub(crate) fn remove_unless_found(&self) {
        if !self.found {
            let _ = self.remove();
        }
    }

    /// Removes all of it.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.context(|| format!("remove {}", self.directory.display())),
        }
    }
}
