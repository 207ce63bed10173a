//! A document, and what has changed in it since it was written.
//!
//! ```text
//! runtime.json    the document, replaced as a whole
//! runtime.log     header, 24 bytes   "WEIRJNL\0" | version u32 | zeros | checksum of the document
//!                 record             length u32 | checksum u64 | JSON, so many bytes: changes that were made
//!                                    together, as a list (version 1: one change)
//! ```
//!
//! Numbers are little-endian. The log belongs to the one document that it names by its checksum:
//! beside any other (a version of weir without logs has written it, or a process was killed between
//! the two files) it says nothing. What is there of a record that was not written to its end is no
//! record, and the next one takes its place. The checksum covers the position too.

use super::{Document, StoreError, create, is_itself_at, not_ours, rename};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use weir_host::files::{self, beside, says_gone};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: &[u8; 8] = b"WEIRJNL\0";
const VERSION: u32 = 2;
const HEADER: usize = 24;
/// Bytes of a record before its JSON.
const PREFIX: usize = 12;
/// A log up to this length is not worth writing the document anew.
const SHORT: u64 = 64 << 10;
/// Nor is one that is not so many times as long as the document.
const TIMES: u64 = 8;

/// A document that is changed often, a little each time.
///
/// One process at a time may have it open (see [`RunLock`](super::RunLock)).
#[derive(Debug)]
pub struct Journal {
    document: PathBuf,
    /// The log, if one was begun for the document as it is.
    log: Option<Log>,
    /// Length and checksum of the document, if this journal has written it.
    written: Option<(u64, u64)>,
    /// What the system said of it then.
    mark: Option<Mark>,
}

/// By what a file is known again: device and number in it, length, and when it was written to.
type Mark = (u64, u64, u64, (i64, i64));

#[derive(Debug)]
struct Log {
    file: File,
    /// Where the next record goes.
    end: u64,
    /// There may be something beyond.
    torn: bool,
}

/// What is wrong with a log, besides a record that a process did not write to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// It ends within its header, after so many bytes: none is begun so.
    CutOff(usize),
    /// From this byte on so many are left out: a record was changed after it was written.
    LeftOut(usize, usize),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CutOff(length) => write!(f, "was cut off, with {length} bytes left"),
            Self::LeftOut(from, bytes) => {
                write!(f, "is damaged: the {bytes} bytes from byte {from} on are left out")
            }
        }
    }
}

impl Journal {
    /// What is wrong with the log of a document, and may have had changes. Where one of both cannot be read, or is of
    /// another version, [`read`](Self::read) says so. What a process leaves that dies while it writes a record is
    /// nothing wrong: the beginning of one, at the end.
    pub fn damage(document: &Path) -> Option<Damage> {
        let (text, log) = (files::read(document).ok()?, files::read(&log_of(document)).ok()?);
        let Some(header) = log.first_chunk::<HEADER>() else {
            return Some(Damage::CutOff(log.len()));
        };
        let own = |version| *header == header_for(version, xxh3_64(&text));
        if !(1..=VERSION).any(own) {
            return None;
        }
        let end = HEADER + records(&log).map(|body| PREFIX + body.len()).sum::<usize>();
        let rest = &log[end..];
        // A record is written from its beginning on, so one that is there in its full length was whole.
        let was_whole = rest.first_chunk::<PREFIX>().is_some_and(|prefix| {
            let [a, b, c, d, ..] = *prefix;
            u32::from_le_bytes([a, b, c, d]) as usize <= rest.len() - PREFIX
        });
        let goes_on = || (end + 1..log.len()).any(|at| body_at(&log, at).is_some());
        (was_whole || goes_on()).then_some(Damage::LeftOut(end, rest.len()))
    }

    /// Reads a document and the changes that came after it; `None` if there is no document. Changes
    /// nothing.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if one of the files is not what weir wrote, or is of another version.
    pub fn read<T: DeserializeOwned, R: DeserializeOwned>(
        document: &Path,
    ) -> Result<Option<(T, Vec<R>)>, StoreError> {
        let Some(found) = Document::load(document)? else { return Ok(None) };
        let path = log_of(document);
        let bytes = match files::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some((found, Vec::new())));
            }
            bytes => bytes.map_err(StoreError::io("read", &path))?,
        };
        let text = files::read(document).map_err(StoreError::io("read", document))?;
        let corrupt = |reason: String| StoreError::Corrupt { path: path.clone(), reason };
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            return Ok(Some((found, Vec::new())));
        };
        if header[..8] != *MAGIC {
            return Err(corrupt("it does not begin like a log of changes".to_owned()));
        }
        let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        if !(1..=VERSION).contains(&version) {
            return Err(corrupt(format!(
                "it is of version {version}, and this weir reads up to {VERSION}"
            )));
        }
        let mut changes = Vec::new();
        if *header == header_for(version, xxh3_64(&text)) {
            for body in records(&bytes) {
                let made: Result<Vec<R>, _> = match version {
                    1 => serde_json::from_slice(body).map(|change| vec![change]),
                    _ => serde_json::from_slice(body),
                };
                // Its checksum is right, so it is as somebody wrote it.
                changes.extend(made.map_err(|error| corrupt(not_ours(&error)))?);
            }
        }
        Ok(Some((found, changes)))
    }

    /// The journal of a document. Nothing is appended before it was [rewritten](Self::rewrite).
    pub fn new(document: PathBuf) -> Self {
        Self { document, log: None, written: None, mark: None }
    }

    /// Whether the document is to be written anew before anything is appended.
    pub fn is_to_be_rewritten(&self) -> bool {
        self.written.is_none()
    }

    /// Whether somebody has removed what it has written, or has put something else there, or has emptied it.
    pub fn is_gone(&self) -> bool {
        let log = log_of(&self.document);
        self.written.is_some() && !self.has_document()
            || self.log.as_ref().map_or_else(|| is_link(&log), |here| !here.is_whole(&log))
    }

    /// Whether the document is as it was written. Where that cannot be told, it is.
    fn has_document(&self) -> bool {
        match mark_of(&self.document) {
            Ok(mark) => self.mark.is_none_or(|was| was == mark),
            Err(error) => !says_gone(&error),
        }
    }

    /// Has the document be written anew before anything is appended.
    pub fn begin_anew(&mut self) {
        (self.log, self.written) = (None, None);
    }

    /// Whether there are so many changes that writing the document anew pays.
    pub fn is_long(&self) -> bool {
        let length = self.log.as_ref().map_or(0, |log| log.end);
        length > SHORT.max(self.written.map_or(0, |(length, _)| length * TIMES))
    }

    /// Writes the document anew, with all changes in it. At every instant both files together say
    /// what was, or what is.
    ///
    /// # Errors
    /// [`StoreError::Io`]; both files say what they did then.
    pub fn rewrite<T: Serialize>(&mut self, document: &T) -> Result<(), StoreError> {
        let text = Document::save(&self.document, document)?;
        // The log is not this document's; a link in its place would be in the way of whoever reads it next, and of one
        // that was cut off nobody could tell whose it was.
        self.log = None;
        let log = log_of(&self.document);
        if is_link(&log) || is_cut_off(&log) {
            fs::remove_file(&log).map_err(StoreError::io("remove", &log))?;
        }
        self.written = Some((text.len() as u64, xxh3_64(&text)));
        self.mark = mark_of(&self.document).ok();
        Ok(())
    }

    /// Writes changes down, all or none. They survive a SIGKILL from the moment that this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`] if there is no room for them.
    pub fn append<R: Serialize>(&mut self, changes: &[R]) -> Result<(), StoreError> {
        let path = log_of(&self.document);
        if self.log.is_none() {
            self.log = Some(Log::begin(&path, self.written.map_or(0, |(_, checksum)| checksum))?);
        }
        let Some(log) = &mut self.log else { return Ok(()) };
        // One record, which is there whole or not at all.
        let body = serde_json::to_vec(changes)
            .map_err(io::Error::from)
            .map_err(StoreError::io("encode", &path))?;
        let bytes = record(log.end, &body);
        log.append(&bytes).map_err(StoreError::io("write", &path))
    }

    /// There is room again.
    #[cfg(test)]
    pub fn empty_disc(&mut self) {
        self.written = None;
    }

    /// No disc has room for what is appended from now on.
    #[cfg(test)]
    pub fn fill_disc(&mut self) {
        let file = File::options().write(true).open("/dev/full").expect("Linux has it");
        self.log = Some(Log { file, end: HEADER as u64, torn: false });
    }
}

impl Log {
    fn begin(path: &Path, document: u64) -> Result<Self, StoreError> {
        let temporary = beside(path);
        let file = create(&temporary)?;
        file.write_all_at(&header_for(VERSION, document), 0)
            .map_err(StoreError::io("write", &temporary))?;
        rename(&temporary, path)?;
        Ok(Self { file, end: HEADER as u64, torn: false })
    }

    /// Whether it stands at a path with all that was written.
    fn is_whole(&self, path: &Path) -> bool {
        let length = self.file.metadata().map_or(self.end, |about| about.len());
        length >= self.end && is_itself_at(&self.file, path)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.end)?;
        }
        self.torn = true;
        if let Err(error) = self.file.write_all_at(bytes, self.end) {
            // Also on a full disc. If not now, then before the next record.
            self.torn = self.file.set_len(self.end).is_err();
            return Err(error);
        }
        self.torn = false;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

/// Of what is called so itself, and not of what it leads to.
fn mark_of(path: &Path) -> io::Result<Mark> {
    let about = fs::symlink_metadata(path)?;
    Ok((about.dev(), about.ino(), about.len(), (about.mtime(), about.mtime_nsec())))
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink())
}

/// Whether a file has no whole header.
fn is_cut_off(log: &Path) -> bool {
    fs::symlink_metadata(log).is_ok_and(|about| about.is_file() && about.len() < HEADER as u64)
}

fn log_of(document: &Path) -> PathBuf {
    document.with_extension("log")
}

fn header_for(version: u32, document: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&version.to_le_bytes());
    header[16..].copy_from_slice(&document.to_le_bytes());
    header
}

/// A record that is to stand at `at`.
fn record(at: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREFIX + body.len());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(xxh3_64_with_seed(body, at).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// The records of a log, up to the first that is not whole.
fn records(log: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = HEADER;
    std::iter::from_fn(move || {
        let body = body_at(log, at)?;
        at += PREFIX + body.len();
        Some(body)
    })
}

/// What the record says that stands at `at`, if it is whole.
fn body_at(log: &[u8], at: usize) -> Option<&[u8]> {
    let prefix = log.get(at..)?.first_chunk::<PREFIX>()?;
    let [a, b, c, d, checksum @ ..] = *prefix;
    let begin = at + PREFIX;
    let body = log.get(begin..begin + u32::from_le_bytes([a, b, c, d]) as usize)?;
    (xxh3_64_with_seed(body, at as u64) == u64::from_le_bytes(checksum)).then_some(body)
}
