//! The log of connection states.
//!
//! ```text
//! header, 32 bytes   "WEIRLOG\0" | version u32 | record size u32 | states not written u32 | zeros
//! record, 32 bytes   key 20 | seconds u32 | backend u16 | flags u8 | 0 | checksum 24 bits | op u8
//! ```
//!
//! Numbers are little-endian. A record is written with its op byte last, so that a process
//! that is killed half-way leaves an op of 0, which ends the log, and the next append
//! overwrites the rest. Where the file cannot grow, how many states came meanwhile is written
//! into the header, which has its block. The checksum covers the position too: a record that was copied or
//! moved by whatever means is not taken for one of ours.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use memmap2::{MmapMut, MmapOptions};
use weir_host::files;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{StoreError, create, is_itself_at, left_out, rename};
use weir_host::files::beside;

const MAGIC: &[u8; 8] = b"WEIRLOG\0";
const VERSION: u32 = 1;
const RECORD: usize = 32;
/// Bytes of a record before its checksum.
const BODY: usize = 28;
/// Where the header says how many states there was no room for.
const MISSING: std::ops::Range<usize> = 16..20;
/// Where it says what was found to be lost, until it is written anew: 1 all, 2 the end.
const LOST: usize = 20;
/// Offset of the op byte, the last of a record.
const OP: usize = RECORD - 1;
/// Size of a new file: there may be thousands of services with few flows each.
const FIRST_BYTES: u64 = 16 << 10;
/// A file doubles until it grows by this much at a time.
const MOST_GROWTH: u64 = 64 << 20;
/// Records beyond twice the live ones that are tolerated before a compaction pays.
const SLACK: usize = 65_536;

/// What a record says about its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// The state is live, with the values of this record.
    Add = 1,
    /// The state is gone; the other values have no meaning.
    Remove = 2,
}

/// One change of one connection state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRecord {
    /// Whether the state came, or went.
    pub op: Op,
    /// Whose state it is: bytes chosen by the caller, unique for each state.
    pub key: [u8; 20],
    /// Number of the backend that holds the connection.
    pub backend: u16,
    /// Time of the change in seconds, on a clock of the caller's choice; the log does not read it.
    pub seconds: u32,
    /// Eight bits of the caller's choice; the log does not read them.
    pub flags: u8,
}

impl StateRecord {
    fn encode(&self, index: usize) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[..20].copy_from_slice(&self.key);
        bytes[20..24].copy_from_slice(&self.seconds.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.backend.to_le_bytes());
        bytes[26] = self.flags;
        bytes[OP] = self.op as u8;
        let checksum = checksum(&bytes, index);
        bytes[BODY..OP].copy_from_slice(&checksum);
        bytes
    }

    fn decode(bytes: &[u8; RECORD], index: usize) -> Option<Self> {
        let op = match bytes[OP] {
            1 => Op::Add,
            2 => Op::Remove,
            _ => return None,
        };
        if bytes[BODY..OP] != checksum(bytes, index) {
            return None;
        }
        let mut key = [0; 20];
        key.copy_from_slice(&bytes[..20]);
        Some(Self {
            op,
            key,
            seconds: u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]),
            backend: u16::from_le_bytes([bytes[24], bytes[25]]),
            flags: bytes[26],
        })
    }
}

fn checksum(bytes: &[u8; RECORD], index: usize) -> [u8; 3] {
    let seed = (index as u64) << 8 | u64::from(bytes[OP]);
    let hash = xxh3_64_with_seed(&bytes[..BODY], seed).to_le_bytes();
    [hash[0], hash[1], hash[2]]
}

/// An append-only log of connection states in a memory-mapped file.
///
/// One process at a time may have a log open (see [`RunLock`](super::RunLock)), and nobody may
/// shorten the file meanwhile: the kernel would end the process with SIGBUS.
#[derive(Debug)]
pub struct StateLog {
    path: PathBuf,
    file: File,
    /// Its number in its file system, if that can be told.
    inode: Option<u64>,
    map: MmapMut,
    len: usize,
    live: usize,
    ignored: usize,
    /// What of an earlier time is not in it.
    lost: Option<Lost>,
    /// What is to take its place.
    next: Option<Box<Next>>,
}

/// A log that is written beside the one in use, a part at a time.
#[derive(Debug)]
struct Next {
    log: StateLog,
    /// States that were live when it was begun, and are not in it yet.
    live: std::vec::IntoIter<StateRecord>,
    /// Records of the log in use before this one are in it, or of no use any more, once those states are.
    from: usize,
    /// Records that the log in use had at the last part.
    seen: usize,
    /// States that were not in the log in use when it was begun: these are in it.
    missing: u32,
}

/// What a log, as it was found, has lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// There was no file.
    All,
    /// The file was cut off.
    End,
    /// So many records were damaged.
    Records(usize),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => write!(f, "is gone"),
            Self::End => write!(f, "was cut off"),
            Self::Records(1) => write!(f, "has a damaged record"),
            Self::Records(count) => write!(f, "has {count} damaged records"),
        }
    }
}

impl StateLog {
    /// Opens a log, or begins one, and replays it: the states that are live, in the order in
    /// which they were last added. Of several records of one key the last wins.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the file is not a log of this version.
    pub fn open(path: impl AsRef<Path>) -> Result<(Self, Vec<StateRecord>), StoreError> {
        let path = path.as_ref();
        // Left over from a compaction that did not finish.
        files::gone(&beside(path)).map_err(StoreError::io("remove", &beside(path)))?;
        let file = match files::open_to_write(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut log = left_out(&beside(path), Self::begin(&beside(path)))?;
                log.take_place(path)?;
                log.lost = Some(Lost::All);
                return Ok((log, Vec::new()));
            }
            file => file.map_err(StoreError::io("open", path))?,
        };
        let size = file.metadata().map_err(StoreError::io("inspect", path))?.len();
        if size < RECORD as u64 {
            return Err(StoreError::Corrupt {
                path: path.to_path_buf(),
                reason: format!("it has {size} bytes, and a state log has a header of {RECORD}"),
            });
        }
        let map = map(&file, path)?;
        check_header(&map, path)?;
        let mut log = Self::of(path, file, map);
        let live = log.replay();
        log.live = live.len();
        log.lost = match log.ignored {
            // No file of ours is shorter, or ends within a record.
            _ if size < FIRST_BYTES || !size.is_multiple_of(RECORD as u64) => Some(Lost::End),
            0 => match log.map[LOST] {
                1 => Some(Lost::All),
                2 => Some(Lost::End),
                _ => None,
            },
            records => Some(Lost::Records(records)),
        };
        // A file cut short may end within a record, which reserve() fills up with zeros.
        log.reserve(size.max(FIRST_BYTES).next_multiple_of(RECORD as u64))?;
        Ok((log, live))
    }

    /// A new and empty log, under the name `path`.
    fn begin(path: &Path) -> Result<Self, StoreError> {
        let file = create(path)?;
        allocate(&file, FIRST_BYTES, path)?;
        let mut map = map(&file, path)?;
        map[..8].copy_from_slice(MAGIC);
        map[8..12].copy_from_slice(&VERSION.to_le_bytes());
        map[12..16].copy_from_slice(&(RECORD as u32).to_le_bytes());
        Ok(Self::of(path, file, map))
    }

    /// A log of a file that has a header; nothing of it is read yet.
    fn of(path: &Path, file: File, map: MmapMut) -> Self {
        Self {
            path: path.to_path_buf(),
            inode: file.metadata().ok().map(|about| about.ino()),
            file,
            map,
            len: 0,
            live: 0,
            ignored: 0,
            lost: None,
            next: None,
        }
    }

    fn take_place(&mut self, path: &Path) -> Result<(), StoreError> {
        rename(&self.path, path)?;
        self.path = path.to_path_buf();
        Ok(())
    }

    /// Finds the end of the log and the live states.
    fn replay(&mut self) -> Vec<StateRecord> {
        let (slots, _) = self.map[RECORD..].as_chunks::<RECORD>();
        self.len = slots.iter().take_while(|slot| slot[OP] != 0).count();
        let mut seen = HashSet::new();
        let mut live = Vec::new();
        for (index, slot) in slots[..self.len].iter().enumerate().rev() {
            match StateRecord::decode(slot, index) {
                None => self.ignored += 1,
                Some(record) => {
                    if seen.insert(record.key) && record.op == Op::Add {
                        live.push(record);
                    }
                }
            }
        }
        live.reverse();
        live
    }

    /// Appends a record. It survives a SIGKILL from the moment that this returns.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the file must grow and cannot (the file system is full); the log
    /// is as it was, but that it says of a state that came that it is [missing](Self::missing).
    #[inline]
    pub fn append(&mut self, record: &StateRecord) -> Result<(), StoreError> {
        let at = RECORD + self.len * RECORD;
        if at + RECORD > self.map.len()
            && let Err(error) = self.grow()
        {
            if record.op == Op::Add {
                self.set_missing(self.missing().saturating_add(1));
            }
            return Err(error);
        }
        let bytes = record.encode(self.len);
        let slot = &mut self.map[at..at + RECORD];
        slot[..OP].copy_from_slice(&bytes[..OP]);
        // SAFETY: the pointer comes from a live exclusive borrow of one mapped byte, an AtomicU8
        // has the size and alignment of a byte, and no other access happens while it lives.
        let op = unsafe { AtomicU8::from_ptr(&raw mut slot[OP]) };
        // Release: the compiler and the processor keep the bytes above before this one, so
        // whoever maps the file after this process died sees all of the record or an op of 0.
        op.store(bytes[OP], Ordering::Release);
        self.len += 1;
        match record.op {
            Op::Add => self.live += 1,
            Op::Remove => self.live = self.live.saturating_sub(1),
        }
        Ok(())
    }

    /// States that there was no room for since it was last written as a whole, by an earlier process, too. One that
    /// came twice meanwhile counts twice.
    pub fn missing(&self) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.map[MISSING]);
        u32::from_le_bytes(bytes)
    }

    /// No disc has room for what does not fit into the file, from now on.
    #[cfg(test)]
    pub fn fill_disc(&mut self) {
        // One that may not be written to does not grow.
        self.file = File::open(&self.path).expect("it is there");
    }

    fn set_missing(&mut self, states: u32) {
        self.map[MISSING].copy_from_slice(&states.to_le_bytes());
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is still there: somebody may have removed it.
    pub fn is_in_place(&self) -> bool {
        is_itself_at(&self.file, &self.path)
    }

    /// Whether the file is among those of its directory, each with its number. One that is not may be there all the
    /// same, where the file system lists other numbers than files have.
    pub fn is_listed(&self, files: &HashMap<OsString, u64>) -> bool {
        let listed = self.path.file_name().and_then(|name| files.get(name));
        self.inode.is_some() && listed == self.inode.as_ref()
    }

    /// Records in the file, dead ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the log has no records.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Live states, if every add was of a new key and every remove of a live one.
    pub fn live_hint(&self) -> usize {
        self.live
    }

    /// Records that were damaged when the log was opened, and were left out.
    pub fn ignored(&self) -> usize {
        self.ignored
    }

    /// What the file had lost when it was opened; of a new one, all.
    pub fn lost(&self) -> Option<Lost> {
        self.lost
    }

    /// Whoever opens it next is told what it has lost, too, until it is written anew.
    pub fn note_lost(&mut self) {
        match self.lost {
            Some(Lost::All) => self.map[LOST] = 1,
            Some(Lost::End) => self.map[LOST] = 2,
            Some(Lost::Records(_)) | None => {}
        }
    }

    /// Whether the file holds so much more than `live` states that rewriting it pays, and that has not begun.
    pub fn should_compact(&self, live: usize) -> bool {
        self.next.is_none() && self.len > live.saturating_mul(2).saturating_add(SLACK)
    }

    /// Rewrites the log with the live states only. At every instant the file is the old log or
    /// the new one, whole. [`Op::Remove`] records are left out.
    ///
    /// # Errors
    /// [`StoreError::Io`]; the old log is still in use then.
    pub fn compact(
        &mut self,
        live: impl IntoIterator<Item = StateRecord>,
    ) -> Result<(), StoreError> {
        self.give_up_next();
        let next = beside(&self.path);
        let written = || {
            let mut fresh = Self::begin(&next)?;
            for record in live.into_iter().filter(|record| record.op == Op::Add) {
                fresh.append(&record)?;
            }
            fresh.take_place(&self.path)?;
            Ok(fresh)
        };
        *self = left_out(&next, written())?;
        Ok(())
    }

    /// Begins to rewrite the log with the live states only, as [`compact`](Self::compact) does, a part at a time:
    /// [`go_on_compacting`](Self::go_on_compacting). What is appended meanwhile is in both.
    ///
    /// # Errors
    /// [`StoreError::Io`]; the log is as it was.
    pub fn begin_to_compact(&mut self, live: Vec<StateRecord>) -> Result<(), StoreError> {
        self.give_up_next();
        let path = beside(&self.path);
        let log = left_out(&path, Self::begin(&path))?;
        let (live, from, missing) = (live.into_iter(), self.len, self.missing());
        self.next = Some(Box::new(Next { log, live, from, seen: from, missing }));
        Ok(())
    }

    /// Whether it is being rewritten.
    pub fn is_compacting(&self) -> bool {
        self.next.is_some()
    }

    /// Writes no more than so many records of what is to take its place, and as many as were appended since, and puts
    /// that there once it is whole.
    ///
    /// # Errors
    /// [`StoreError::Io`]; the log in use stays, and is not being rewritten any more.
    pub fn go_on_compacting(&mut self, most: usize) -> Result<(), StoreError> {
        let Some(mut next) = self.next.take() else { return Ok(()) };
        let path = beside(&self.path);
        if !left_out(&path, self.write_next(&mut next, most))? {
            self.next = Some(next);
            return Ok(());
        }
        let Next { log: mut fresh, missing, .. } = *next;
        // What there was no room for meanwhile is in neither.
        fresh.set_missing(self.missing().saturating_sub(missing));
        left_out(&path, fresh.take_place(&self.path))?;
        *self = fresh;
        Ok(())
    }

    /// Returns whether all is in it.
    fn write_next(&self, next: &mut Next, most: usize) -> Result<bool, StoreError> {
        let Next { log, live, from, seen, .. } = next;
        let appended = self.len - std::mem::replace(seen, self.len);
        let mut left = most;
        for record in live.by_ref().take(left).filter(|record| record.op == Op::Add) {
            log.append(&record)?;
            left -= 1;
        }
        // Those before it first, as the last record of a key wins.
        if live.len() > 0 {
            return Ok(false);
        }
        // Whatever is appended between two parts: it ends.
        let end = self.len.min(*from + left + appended);
        let (slots, _) = self.map[RECORD..].as_chunks::<RECORD>();
        for (index, slot) in slots.iter().enumerate().take(end).skip(*from) {
            if let Some(record) = StateRecord::decode(slot, index) {
                log.append(&record)?;
            }
        }
        *from = end;
        Ok(end == self.len)
    }

    /// It goes on as it is.
    fn give_up_next(&mut self) {
        if let Some(next) = self.next.take() {
            let _ = fs::remove_file(&next.log.path);
        }
    }

    #[cold]
    fn grow(&mut self) -> Result<(), StoreError> {
        let size = self.map.len() as u64;
        self.reserve(size + size.clamp(FIRST_BYTES, MOST_GROWTH))
    }

    /// Makes the file `size` bytes long, if it is shorter.
    fn reserve(&mut self, size: u64) -> Result<(), StoreError> {
        if size > self.map.len() as u64 {
            allocate(&self.file, size, &self.path)?;
            self.map = map(&self.file, &self.path)?;
        }
        Ok(())
    }
}

/// Extends a file with zeros. Its blocks are reserved, unlike with `ftruncate`: on a full file
/// system this fails, where a write to a mapped hole would end the process with SIGBUS.
fn allocate(file: &File, size: u64, path: &Path) -> Result<(), StoreError> {
    let size = size.try_into().unwrap_or(i64::MAX);
    nix::fcntl::posix_fallocate(file, 0, size)
        .map_err(|errno| StoreError::io("extend", path)(errno.into()))
}

fn map(file: &File, path: &Path) -> Result<MmapMut, StoreError> {
    // SAFETY: the contract of StateLog makes this process the only one that has the file open,
    // and this process never shortens it, so no mapped byte changes or goes away behind our back.
    unsafe { MmapOptions::new().map_mut(file) }.map_err(StoreError::io("map", path))
}

/// Whether this version can read the state logs in a run directory. Changes nothing. A file that is no
/// log is nobody's here, and one that goes meanwhile was a log of an instance that runs.
///
/// # Errors
/// [`StoreError::Corrupt`] for a log of another version.
pub fn check_logs(run_dir: &Path) -> Result<(), StoreError> {
    let entries = fs::read_dir(run_dir).map_err(StoreError::io("read", run_dir))?;
    for entry in entries {
        let path = entry.map_err(StoreError::io("read", run_dir))?.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let mut header = Vec::with_capacity(RECORD);
        // A link is not one of ours, whatever it leads to, nor is what is no file.
        if !path.symlink_metadata().is_ok_and(|about| about.is_file()) {
            continue;
        }
        let file = match files::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file,
        };
        file.and_then(|file| file.take(RECORD as u64).read_to_end(&mut header))
            .map_err(StoreError::io("read", &path))?;
        if header.len() == RECORD && header[..8] == *MAGIC {
            check_header(&header, &path)?;
        }
    }
    Ok(())
}

fn check_header(map: &[u8], path: &Path) -> Result<(), StoreError> {
    let word = |at: usize| u32::from_le_bytes([map[at], map[at + 1], map[at + 2], map[at + 3]]);
    let reason = if map[..8] != *MAGIC {
        "it does not begin like a state log".to_owned()
    } else if word(8) != VERSION {
        format!("it is of version {}, and this weir reads {VERSION}", word(8))
    } else if word(12) != RECORD as u32 {
        format!("its records have {} bytes, not {RECORD}", word(12))
    } else {
        return Ok(());
    };
    Err(StoreError::Corrupt { path: path.to_path_buf(), reason })
}
