//! What a restarted control plane must know, kept in the run directory.
//!
//! - [`Document`]: a JSON file, replaced as a whole (names, numbers, what is published).
//! - [`Journal`]: such a file with a log of what has changed since, for what changes often.
//! - [`StateLog`]: an append-only log of connection states in a memory-mapped file; appending
//!   is a copy in memory, without a system call.
//! - [`RunLock`], [`NameLock`]: one control plane for each run directory, and for each name.
//!
//! All kinds of file are whole after a SIGKILL at any instant. They are not meant to outlive
//! the machine: after a crash of the kernel, the tables that they describe are gone too, so
//! nothing here waits for a disk.

mod journal;
mod log;

#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::info;
use weir_host::files;

pub use journal::Journal;
pub use log::{Op, StateLog, StateRecord, check_logs};

/// How often a lock that somebody has is looked at once more, and after what time: 2 s of it.
const LOOKS: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(20);
/// What the log says of a lock that is waited for.
const HELD: &str = "waiting for 2 s, as its process may be ending";

/// Why something cannot be kept or read back.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was being done, for example `write`.
        doing: &'static str,
        /// File that was being used.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file is not what weir wrote.
    #[error(
        "{} cannot be used: {reason}; move it away to start without what it held",
        path.display()
    )]
    Corrupt {
        /// File that was read.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What a control plane goes on from is not what weir wrote. A start without it is refused in its turn where
    /// packets are forwarded, so that the whole way is said at once.
    #[error(
        "{} cannot be used: {reason}; to start without what it held, move it away, and, where packets are forwarded \
         already, either weir unload before the start, or weir run --break-connections once: most connections break \
         then",
        path.display()
    )]
    Forgotten {
        /// File that was read.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody else may have put anything into a directory.
    #[error("{} cannot be used: {source}", path.display())]
    Unsafe {
        /// The run directory, or the state directory.
        path: PathBuf,
        /// Why, and what to do.
        source: io::Error,
    },
    /// Another process runs the instance.
    #[error(
        "an instance of this name is running: another weir holds {}; stop that one, or set another \
         balancer.name",
        directory.display()
    )]
    Running {
        /// The directory of its pins.
        directory: PathBuf,
    },
    /// Another process uses the run directory.
    #[error(
        "{} is in use by another weir; stop that one, or set another balancer.run_dir (or state_dir, \
         if that is it)",
        path.display()
    )]
    Locked {
        /// The run directory that is in use.
        path: PathBuf,
    },
}

impl StoreError {
    /// Whether there was no room on the disc, or it takes nothing: that may pass.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let full = [QuotaExceeded, ReadOnlyFilesystem, StorageFull];
        matches!(self, Self::Io { source, .. } if full.contains(&source.kind()))
    }

    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { doing, path, source }
    }
}

/// A JSON file that is replaced as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Document;

impl Document {
    /// Reads a document; `None` if there is no file.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the file is not JSON of the type `T`.
    pub fn load<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<Option<T>, StoreError> {
        let path = path.as_ref();
        let text = match files::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(StoreError::io("read", path))?,
        };
        match serde_json::from_slice(&text) {
            Ok(document) => Ok(Some(document)),
            Err(error) => {
                Err(StoreError::Corrupt { path: path.to_path_buf(), reason: not_ours(&error) })
            }
        }
    }

    /// Writes a document: at every instant the file is the old one or the new one, whole. Two
    /// processes must not save the same document at once (see [`RunLock`]). Returns what was written.
    ///
    /// # Errors
    /// [`StoreError::Io`] if it cannot be written; the old document is still there then.
    pub fn save<T: Serialize>(path: impl AsRef<Path>, document: &T) -> Result<Vec<u8>, StoreError> {
        let path = path.as_ref();
        let mut text = serde_json::to_vec_pretty(document)
            .map_err(io::Error::from)
            .map_err(StoreError::io("encode", path))?;
        text.push(b'\n');
        write_whole(path, &text)?;
        Ok(text)
    }
}

/// Holds a run directory for this process; let go when dropped, or when the process ends in
/// whatever way.
#[derive(Debug)]
pub struct RunLock {
    file: Flock<File>,
}

impl RunLock {
    /// Whether somebody uses the directory, or has used it.
    pub fn is_used(run_dir: &Path) -> bool {
        run_dir.join("lock").exists()
    }

    /// Whether it is still the lock that stands in the directory: somebody may have removed both.
    pub fn is_of(&self, run_dir: &Path) -> bool {
        is_itself_at(&self.file, &run_dir.join("lock"))
    }

    /// Looks whether a directory is no link, and nobody else's to write to.
    ///
    /// # Errors
    /// [`StoreError::Unsafe`] if it is.
    pub fn check(run_dir: &Path) -> Result<(), StoreError> {
        files::check_directory(run_dir)
            .map_err(|source| StoreError::Unsafe { path: run_dir.to_path_buf(), source })
    }

    /// Creates the directory if need be, and takes it.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another process has it, and those of [`check`](Self::check).
    pub fn acquire(run_dir: impl AsRef<Path>) -> Result<Self, StoreError> {
        let run_dir = run_dir.as_ref();
        // Nobody else writes there, whatever the umask is.
        let mut made = DirBuilder::new();
        made.recursive(true).mode(0o755);
        made.create(run_dir).map_err(StoreError::io("create", run_dir))?;
        Self::check(run_dir)?;
        let path = run_dir.join("lock");
        let file = files::open_or_make(&path).map_err(StoreError::io("create", &path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Self { file }),
            Err((_, Errno::EWOULDBLOCK)) => Err(StoreError::Locked { path: run_dir.to_path_buf() }),
            Err((_, errno)) => Err(StoreError::io("lock", &path)(errno.into())),
        }
    }

    /// The same for a start: a process that was killed is given a moment to let go of it.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire).
    pub fn await_free(run_dir: &Path) -> Result<Self, StoreError> {
        await_free(|| Self::acquire(run_dir), BETWEEN)
    }
}

/// Holds the directory of an instance's pins for this process; let go when dropped, or when the
/// process ends in whatever way. The kernel keeps it, whatever run directory is used and in
/// whatever network namespace.
#[derive(Debug)]
pub struct NameLock {
    directory: Flock<File>,
}

impl NameLock {
    /// Whether it is still that of the directory that stands there: somebody may have removed it.
    pub fn is_of(&self, directory: &Path) -> bool {
        is_at(&self.directory, directory)
    }

    /// Where the directory is by now, if it is anywhere: somebody may have moved it.
    pub fn place(&self) -> Option<PathBuf> {
        let held = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        fs::read_link(held).ok().filter(|place| self.is_of(place))
    }

    /// Takes a directory of pins, which must be there.
    ///
    /// # Errors
    /// [`StoreError::Running`] if another process has it.
    pub fn acquire(directory: &Path) -> Result<Self, StoreError> {
        loop {
            let file = File::open(directory).map_err(StoreError::io("open", directory))?;
            let ours = file.metadata().map_err(StoreError::io("inspect", directory))?;
            let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => lock,
                Err((_, Errno::EWOULDBLOCK)) => {
                    return Err(StoreError::Running { directory: directory.to_path_buf() });
                }
                Err((_, errno)) => return Err(StoreError::io("lock", directory)(errno.into())),
            };
            // It may have been removed, and perhaps made anew, before it was locked.
            match fs::metadata(directory) {
                Ok(now) if (now.dev(), now.ino()) == (ours.dev(), ours.ino()) => {
                    return Ok(Self { directory: lock });
                }
                Ok(_) => {}
                Err(error) => return Err(StoreError::io("inspect", directory)(error)),
            }
        }
    }

    /// The same for a start: a process that was killed is given a moment to let go of it.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire).
    pub fn await_free(directory: &Path) -> Result<Self, StoreError> {
        await_free(|| Self::acquire(directory), BETWEEN)
    }
}

/// Tries to take a lock until nobody has it any more, and not for ever. Where the kernel has much to take apart of a
/// process that was killed, it lets go of its locks some moments after that; whoever starts the next one at once is
/// not to be told that another one runs.
fn await_free<L>(
    take: impl Fn() -> Result<L, StoreError>,
    between: Duration,
) -> Result<L, StoreError> {
    let is_held = |error: &StoreError| {
        matches!(error, StoreError::Locked { .. } | StoreError::Running { .. })
    };
    for look in 0..LOOKS {
        match take() {
            Err(error) if is_held(&error) => {
                if look == 0 {
                    info!("{HELD}: {error}");
                }
                thread::sleep(between);
            }
            taken => return taken,
        }
    }
    take()
}

/// Whether an open file is the one that a path leads to. Where that cannot be told, it is.
fn is_at(file: &File, path: &Path) -> bool {
    let Ok(ours) = file.metadata() else { return true };
    match fs::metadata(path) {
        Ok(there) => (there.dev(), there.ino()) == (ours.dev(), ours.ino()),
        Err(error) => !files::says_gone(&error),
    }
}

/// The same of a file that is to be there itself: a link that leads to it is not followed by who reads it next.
fn is_itself_at(file: &File, path: &Path) -> bool {
    !fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink()) && is_at(file, path)
}

/// Why JSON is not what this version writes. What is sound in itself may be another version's: a field that is
/// not known here says something, or it would not be there.
fn not_ours(error: &serde_json::Error) -> String {
    match error.is_data() {
        true => format!("another version of weir may have written it: {error}"),
        false => format!("it is not the JSON that was expected: {error}"),
    }
}

/// Writes a file that only its owner reads; who reads it finds all of the former one or of this.
///
/// # Errors
/// [`StoreError::Io`]; the former one is still there then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    files::write(path, bytes).map_err(StoreError::io("write", path))
}

/// After an error the file that was to take another one's place goes: it may be what fills the disc.
fn left_out<V>(temporary: &Path, written: Result<V, StoreError>) -> Result<V, StoreError> {
    if written.is_err() {
        let _ = fs::remove_file(temporary);
    }
    written
}

/// An empty file that only its owner reads.
fn create(path: &Path) -> Result<File, StoreError> {
    files::make(path).map_err(StoreError::io("create", path))
}

fn rename(from: &Path, to: &Path) -> Result<(), StoreError> {
    fs::rename(from, to).map_err(StoreError::io("replace", to))
}
