//! What has been changed, when, by whom, and what that did to connections; with the files, so that each of
//! them can be gone back to.
//!
//! A list in `history.json` of the state directory (the run directory, if there is no other), and for each change of the file its text in
//! `history/<number>.toml`. Both are bounded, the oldest go first. The list is replaced as a whole after a
//! text was written, so that it names none that is not there. The last number stands in `history.number`, too, which
//! is written in place: that needs no room, so that where a disc is full no number is given twice.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};
use weir_host::files::{self, is_gone};

use crate::store::{Document, StoreError, write_whole};

/// Changes of the file that are kept, with their texts.
const FILES: usize = 50;
/// Bytes of all texts together, but for the last two.
const BYTES: usize = 16 << 20;
/// Commands that are kept.
const COMMANDS: usize = 200;
/// After a failure to write the list down.
const SAVE_AGAIN: Duration = Duration::from_secs(2);

/// Who has asked for a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Who {
    /// Name of the user, or what it was if it was nobody: a start, a signal.
    pub name: String,
    /// The user's number, as the kernel tells it of the other end of the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The process that asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
}

impl Who {
    /// Nobody at a socket.
    pub fn nobody(name: &str) -> Self {
        Self { name: name.to_owned(), uid: None, pid: None }
    }
}

/// A change of the configuration, as the history keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// Its number; later ones have higher numbers.
    pub number: u64,
    /// When it was, in seconds since 1970.
    pub at: u64,
    /// Who asked for it.
    pub who: Who,
    /// "start", "reload", "apply", "rollback", "command", or "fleet": a change of all balancers, whichever was asked.
    pub what: String,
    /// The number that the fleet has for it, which is the same on all balancers; none: it is this one's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<u64>,
    /// What was done, in words.
    pub done: String,
    /// Services that were changed, each with a word: `web changed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// Connections that are known of those services; none if nobody knows.
    #[serde(default)]
    pub connections: Option<usize>,
    /// How many of them the change broke; none if nobody knows.
    #[serde(default)]
    pub broken: Option<usize>,
    /// Whether its file is kept, so that it can be gone back to.
    pub kept: bool,
    /// Digest of the file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct List {
    last: u64,
    entries: Vec<Entry>,
    /// The instance's file.
    #[serde(default)]
    file: Option<PathBuf>,
}

/// All that is remembered, and where.
#[derive(Debug)]
pub struct History {
    dir: PathBuf,
    list: List,
    /// The list is written down.
    saved: bool,
    /// Why that is not so of what was added last, and when it is tried again.
    unsaved: Option<(String, Instant)>,
    /// Where the last number stands.
    number: Option<File>,
}

/// The file of a run directory that says where its history is, if it is elsewhere.
const ELSEWHERE: &str = "state_dir";

/// Where the history of an instance with this run directory is.
pub fn dir_of(run_dir: &Path) -> PathBuf {
    let said = files::read_text(&run_dir.join(ELSEWHERE)).unwrap_or_default();
    let said = Path::new(said.trim_end_matches('\n'));
    if said.is_absolute() { said.to_owned() } else { run_dir.to_owned() }
}

/// Notes in the run directory where the history is, for a start whose file does not tell.
///
/// # Errors
/// [`StoreError`] if it cannot be written.
pub fn note(run_dir: &Path, dir: &Path) -> Result<(), StoreError> {
    let path = run_dir.join(ELSEWHERE);
    if dir_of(run_dir) == dir {
        return Ok(());
    }
    if run_dir != dir {
        return write_whole(&path, format!("{}\n", dir.display()).as_bytes());
    }
    fs::remove_file(&path).map_err(|source| StoreError::Io { doing: "remove", path, source })
}

/// Takes a history along from where it was, if there is none yet: numbers of changes go on.
///
/// # Errors
/// [`StoreError`] if it cannot be read or written; what was stays where it was in any case.
pub fn take_along(from: &Path, to: &Path) -> Result<(), StoreError> {
    let (before, after) = (History::named(from), History::named(to));
    if after.path().exists() || !before.path().exists() {
        return Ok(());
    }
    let list: Option<List> = Document::load(before.path())?;
    private(&after.folder())?;
    for (number, path) in before.texts() {
        let failed = |source| StoreError::Io { doing: "read", path: path.clone(), source };
        write_whole(&after.text_path(number), &files::read(&path).map_err(failed)?)?;
    }
    let mut list = list.unwrap_or_default();
    list.last = list.last.max(before.noted());
    // Last: it names none that is not there.
    Document::save(after.path(), &list).map(drop)
}

/// The digest of a file's text.
pub fn digest(text: &str) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}

impl History {
    /// One of which nothing was read.
    fn named(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            list: List::default(),
            saved: false,
            unsaved: None,
            number: None,
        }
    }

    /// What is remembered in a directory. What cannot be read is moved away: it is of no use for
    /// forwarding, and must not be in its way.
    pub fn open(dir: &Path) -> Self {
        let mut history = Self::named(dir);
        match Document::load::<List>(history.path()) {
            Ok(list) => {
                history.saved = list.is_some();
                history.list = list.unwrap_or_default();
            }
            Err(error) => {
                warn!(%error, "the history of changes begins anew; texts of changes stay in {}", history.folder().display());
                let _ = fs::rename(history.path(), history.path().with_extension("json.bad"));
                // Nobody takes a number for that of another change, and the texts are left to people.
                let numbers = history.texts().map(|(number, _)| number);
                history.list.last = numbers.max().unwrap_or(0);
                return history;
            }
        }
        history.remove_strays();
        history
    }

    fn path(&self) -> PathBuf {
        self.dir.join("history.json")
    }

    fn folder(&self) -> PathBuf {
        self.dir.join("history")
    }

    fn number_path(&self) -> PathBuf {
        self.dir.join("history.number")
    }

    /// The last number that was given to a change, whether or not the list has that.
    fn noted(&self) -> u64 {
        let text = files::read_text(&self.number_path()).unwrap_or_default();
        text.trim_end().parse().unwrap_or(0)
    }

    /// Goes on behind the last number that was given, and makes room for the next one. For whoever adds changes.
    pub fn hold_number(&mut self) {
        let noted = self.noted();
        if noted > self.list.last {
            self.list.last = noted;
            // Where that cannot be, it is tried again.
            let _ = self.save();
        }
        self.note_number();
    }

    fn note_number(&mut self) {
        let path = self.number_path();
        if self.number.is_none() {
            self.number = files::open_to_write(&path).or_else(|_| files::make(&path)).ok();
        }
        // Always of this length, so that it needs no more room than it has.
        let line = format!("{:020}\n", self.list.last);
        let written = self.number.as_ref().map(|file| file.write_all_at(line.as_bytes(), 0));
        if let Some(Err(error)) = written {
            warn!(path = %path.display(), %error, "cannot write down the number of a change");
        }
    }

    /// Texts of changes that there are, whether or not anything is known of these, by number.
    fn texts(&self) -> impl Iterator<Item = (u64, PathBuf)> + use<> {
        // Where it is a link, what it leads to is somebody else's.
        let folder = self.folder();
        let ours = fs::symlink_metadata(&folder).is_ok_and(|about| about.is_dir());
        let found = ours.then(|| fs::read_dir(folder).ok()).flatten().into_iter().flatten();
        found.filter_map(Result::ok).map(|one| one.path()).filter_map(|path| {
            let number = number_of(path.file_name()?.to_str()?)?;
            Some((number, path))
        })
    }

    /// Where the text of a change is kept.
    pub fn text_path(&self, number: u64) -> PathBuf {
        text_in(&self.folder(), number)
    }

    /// All changes, the oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.list.entries
    }

    /// The file whose changes are remembered, if it was said.
    pub fn file(&self) -> Option<&Path> {
        self.list.file.as_deref()
    }

    /// Says it.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be written down; it is written with the next change then.
    pub fn is_of(&mut self, file: PathBuf) -> Result<(), StoreError> {
        if self.list.file.as_ref() == Some(&file) {
            return Ok(());
        }
        self.list.file = Some(file);
        self.save()
    }

    fn save(&mut self) -> Result<(), StoreError> {
        let saved = Document::save(self.path(), &self.list).map(drop);
        self.saved |= saved.is_ok();
        let failed = saved.as_ref().err();
        self.unsaved = failed.map(|error| (error.to_string(), Instant::now() + SAVE_AGAIN));
        saved
    }

    /// Why the last changes are not written down, if they are not.
    pub fn unsaved(&self) -> Option<&str> {
        self.unsaved.as_ref().map(|(why, _)| &**why)
    }

    /// Tries again, now and then, to write down what could not be.
    pub fn save_again(&mut self) {
        let due = self.unsaved.as_ref().is_some_and(|(_, again)| *again <= Instant::now());
        if due && self.save().is_ok() {
            info!("the history of changes is written down again");
        }
    }

    /// Whether somebody has removed what was written down.
    pub fn is_gone(&self) -> bool {
        self.saved && is_gone(&self.path())
    }

    /// Writes the list anew, and the texts that `text` is: the others that are gone are not kept any more.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be written down; it is written with the next change then.
    pub fn write_anew(&mut self, text: Option<&str>) -> Result<(), StoreError> {
        self.saved = false;
        self.number = None;
        self.note_number();
        let (folder, now) = (self.folder(), text.map(digest));
        let mut written = Ok(());
        for entry in self.list.entries.iter_mut().filter(|entry| entry.kept) {
            let path = text_in(&folder, entry.number);
            if !is_gone(&path) {
                continue;
            }
            entry.kept = false;
            if let Some(text) = text.filter(|_| now.as_ref() == Some(&entry.digest)) {
                let again = private(&folder).and_then(|()| write_whole(&path, text.as_bytes()));
                entry.kept = again.is_ok();
                written = written.and(again);
            }
        }
        let saved = self.save();
        written.and(saved)
    }

    /// Number of the last change, of whatever kind; 0: there was none.
    pub fn last(&self) -> u64 {
        self.list.last
    }

    /// Whether a file was so at some time.
    pub fn knows(&self, text: &str) -> bool {
        let digest = digest(text);
        self.list.entries.iter().any(|entry| entry.digest == digest)
    }

    /// The change that made the file what it is.
    pub fn current(&self) -> Option<&Entry> {
        // In a fleet commands have once had files.
        let made = |entry: &&Entry| entry.what != "command" || !entry.digest.is_empty();
        self.list.entries.iter().rev().find(made)
    }

    /// The change before, of those that can be gone back to and had another file.
    pub fn before(&self) -> Option<&Entry> {
        let now = self.current()?;
        let mut files = self.list.entries.iter().rev().filter(|entry| entry.kept);
        files.find(|entry| entry.number < now.number && entry.digest != now.digest)
    }

    /// The text of a change's file.
    ///
    /// # Errors
    /// A sentence that says why there is none, and which there are.
    pub fn text(&self, number: u64) -> Result<String, String> {
        let entry = self.list.entries.iter().find(|entry| entry.number == number);
        let kept = || {
            let all = self.list.entries.iter().filter(|entry| entry.kept);
            let all: Vec<String> = all.map(|entry| entry.number.to_string()).collect();
            match &all[..] {
                [] => "none is kept".to_owned(),
                _ => format!("there are {}", all.join(", ")),
            }
        };
        match entry {
            None => Err(format!("no change {number} is remembered; {}", kept())),
            Some(entry) if !entry.kept => {
                Err(format!("change {number} was a command, and has no file; {}", kept()))
            }
            Some(_) => files::read_text(&self.text_path(number))
                .map_err(|error| format!("the file of change {number} cannot be read: {error}")),
        }
    }

    /// Remembers a change, with its file if it had one. Number and time are entered here.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be written down; it is remembered until the process ends.
    pub fn add(&mut self, entry: Entry, text: Option<&str>) -> Result<u64, StoreError> {
        let number = self.list.last.saturating_add(1);
        self.list.last = number;
        self.note_number();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut written = Ok(());
        if let Some(text) = text {
            let path = self.text_path(number);
            let folder = path.parent().map_or(Ok(()), private);
            written = folder.and_then(|()| write_whole(&path, text.as_bytes()));
        }
        self.list.entries.push(Entry {
            number,
            at: now,
            kept: text.is_some() && written.is_ok(),
            digest: text.map(digest).unwrap_or_default(),
            ..entry
        });
        self.forget();
        let saved = self.save();
        self.remove_strays();
        written.and(saved).map(|()| number)
    }

    /// Keeps to the bounds.
    fn forget(&mut self) {
        let size = |entry: &Entry| {
            let about = fs::metadata(self.text_path(entry.number));
            about.map_or(0, |about| usize::try_from(about.len()).unwrap_or(usize::MAX))
        };
        let (mut files, mut commands, mut bytes) = (0, 0, 0_usize);
        let mut keep: Vec<bool> = Vec::with_capacity(self.list.entries.len());
        for entry in self.list.entries.iter().rev() {
            keep.push(if entry.what == "command" {
                commands += 1;
                commands <= COMMANDS
            } else {
                files += 1;
                bytes = bytes.saturating_add(size(entry));
                files <= 2 || files <= FILES && bytes <= BYTES
            });
        }
        let mut keep = keep.into_iter().rev();
        self.list.entries.retain(|_| keep.next().unwrap_or(false));
    }

    /// Texts that the list does not name.
    fn remove_strays(&self) {
        for (number, path) in self.texts() {
            if !self.list.entries.iter().any(|entry| entry.number == number && entry.kept) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn text_in(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number}.toml"))
}

/// The number of a text that is called `N.toml`, or of what is left of writing one.
fn number_of(file: &str) -> Option<u64> {
    let (number, rest) = file.split_once('.')?;
    ["toml", "toml.tmp"].contains(&rest).then(|| number.parse().ok()).flatten()
}

/// A folder that only its owner reads: files may have keys in them. A link to one is refused, as it may lead
/// anywhere.
pub(crate) fn private(folder: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match fs::symlink_metadata(folder) {
                Ok(about) if about.is_dir() => Ok(()),
                Ok(_) => Err(io::Error::new(io::ErrorKind::NotADirectory, "it is no directory")),
                Err(error) => Err(error),
            }
        }
        made => made,
    };
    made.map_err(|source| StoreError::Io { doing: "create", path: folder.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn entry(what: &str) -> Entry {
        Entry {
            number: 0,
            at: 0,
            who: Who::nobody("test"),
            what: what.into(),
            fleet: None,
            done: "done".into(),
            services: Vec::new(),
            connections: None,
            broken: Some(0),
            kept: false,
            digest: String::new(),
        }
    }

    #[test]
    fn what_was_before_is_found_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::open(folder.path());
        assert!(history.current().is_none() && history.before().is_none());
        for (what, text) in [
            ("start", Some("one")),
            ("command", None),
            ("apply", Some("two")),
            ("reload", Some("two")),
            ("command", None),
        ] {
            history.add(entry(what), text).unwrap();
        }
        for history in [&history, &History::open(folder.path())] {
            let numbers: Vec<u64> = history.entries().iter().map(|one| one.number).collect();
            assert_eq!(numbers, [1, 2, 3, 4, 5]);
            assert_eq!(history.current().map(|one| one.number), Some(4));
            assert_eq!(history.before().map(|one| one.number), Some(1), "the same is not before");
            assert_eq!(history.text(1).as_deref(), Ok("one"));
            let said = history.text(2).unwrap_err();
            assert!(said.contains("was a command") && said.contains("there are 1, 3, 4"), "{said}");
            assert!(history.text(9).unwrap_err().contains("no change 9 is remembered"));
        }
        let mode = |path: &str| {
            fs::metadata(folder.path().join(path)).unwrap().permissions().mode() & 0o777
        };
        assert_eq!(
            (mode("history"), mode("history/1.toml"), mode("history.json")),
            (0o700, 0o600, 0o600)
        );
    }

    #[test]
    fn it_is_bounded_and_commands_push_out_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = History::open(folder.path());
        for n in 0..FILES + 10 {
            history.add(entry("apply"), Some(&format!("file {n}"))).unwrap();
        }
        for _ in 0..COMMANDS + 10 {
            history.add(entry("command"), None).unwrap();
        }
        let history = History::open(folder.path());
        assert_eq!(history.entries().len(), FILES + COMMANDS);
        assert_eq!(history.current().map(|one| one.number), Some(FILES as u64 + 10));
        let texts = fs::read_dir(folder.path().join("history")).unwrap().count();
        assert_eq!(texts, FILES);
        assert_eq!(history.text(11).as_deref(), Ok("file 10"));
        assert!(history.text(10).is_err());
        // A large file leaves room for the one before it.
        let mut history = history;
        let large = "x".repeat(BYTES + 1);
        history.add(entry("apply"), Some(&large)).unwrap();
        let files = history.entries().iter().filter(|one| one.kept).count();
        assert_eq!(files, 2);
        assert_eq!(history.before().map(|one| one.number), Some(FILES as u64 + 10));
    }

    #[test]
    fn a_link_is_not_followed_and_what_is_not_ours_stays() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let theirs = other.path().join("7.toml");
        fs::write(&theirs, "somebody's").unwrap();
        std::os::unix::fs::symlink(other.path(), folder.path().join("history")).unwrap();
        let mut history = History::open(folder.path());
        assert!(history.add(entry("apply"), Some("text")).is_err());
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "somebody's");
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
        // In a folder of its own it removes what it has made, and nothing else.
        fs::remove_file(folder.path().join("history")).unwrap();
        fs::create_dir(folder.path().join("history")).unwrap();
        let notes = folder.path().join("history/notes.txt");
        fs::write(&notes, "mine").unwrap();
        history.add(entry("apply"), Some("text")).unwrap();
        assert!(notes.exists());
    }

    #[test]
    fn what_cannot_be_read_begins_anew_and_texts_stay() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("history.json"), "{\"last\": 7").unwrap();
        fs::create_dir(folder.path().join("history")).unwrap();
        fs::write(folder.path().join("history/3.toml"), "old").unwrap();
        let mut history = History::open(folder.path());
        assert!(history.entries().is_empty());
        assert!(folder.path().join("history.json.bad").exists());
        assert_eq!(fs::read_to_string(folder.path().join("history/3.toml")).unwrap(), "old");
        // Whoever expects change 3 does not take another one for it.
        assert_eq!(history.last(), 3);
        history.add(entry("apply"), Some("new")).unwrap();
        assert_eq!(history.last(), 4);
        // What nobody remembers goes once the list is sound.
        let mut history = History::open(folder.path());
        assert!(!folder.path().join("history/3.toml").exists());
        assert!(folder.path().join("history/4.toml").exists());
        fs::remove_file(folder.path().join("history/4.toml")).unwrap();
        // Where nothing can be written, it is said, and remembered for as long as the process runs.
        fs::remove_dir(folder.path().join("history")).unwrap();
        fs::write(folder.path().join("history"), "no folder").unwrap();
        assert!(history.add(entry("apply"), Some("text")).is_err());
        assert!(!history.current().unwrap().kept);
    }

    #[test]
    fn a_number_is_given_once_whatever_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let mut history = History::open(folder.path());
            history.hold_number();
            history
        };
        let mut history = open();
        history.add(entry("apply"), Some("one")).unwrap();
        // The list cannot be made anew: what it is written to first is in the way.
        let tmp = folder.path().join("history.json.tmp");
        fs::create_dir(&tmp).unwrap();
        assert!(history.add(entry("command"), None).is_err());
        assert_eq!((history.last(), history.entries().len()), (2, 2));
        assert!(history.unsaved().is_some_and(|why| why.contains("history.json")));
        // Whoever dies now has lost the change, and its number is nobody else's.
        let mut history = open();
        assert_eq!((history.last(), history.entries().len()), (2, 1));
        assert!(history.add(entry("command"), None).is_err());
        assert_eq!(history.last(), 3);
        fs::remove_dir(&tmp).unwrap();
        history.unsaved = history.unsaved.map(|(why, _)| (why, Instant::now()));
        history.save_again();
        assert!(history.unsaved().is_none());
        let history = open();
        let numbers: Vec<u64> = history.entries().iter().map(|one| one.number).collect();
        assert_eq!((history.last(), numbers), (3, vec![1, 3]));
        // It goes along with the rest.
        let other = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("history.number"), "7\n").unwrap();
        take_along(folder.path(), other.path()).unwrap();
        assert_eq!(History::open(other.path()).last(), 7);
    }

    #[test]
    fn it_is_taken_along_once_and_found_again() {
        let (run, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (run, state) = (run.path(), state.path().join("weir"));
        fs::create_dir(&state).unwrap();
        assert_eq!(dir_of(run), run);
        let mut history = History::open(run);
        history.add(entry("start"), Some("one")).unwrap();
        history.add(entry("command"), None).unwrap();
        take_along(run, &state).unwrap();
        note(run, &state).unwrap();
        assert_eq!(dir_of(run), state);
        let mut history = History::open(&dir_of(run));
        assert_eq!((history.last(), history.text(1).as_deref()), (2, Ok("one")));
        history.add(entry("apply"), Some("two")).unwrap();
        // What is there is not written over, and the former place can be gone back to.
        take_along(run, &state).unwrap();
        assert_eq!(History::open(&state).last(), 3);
        note(run, run).unwrap();
        note(run, run).unwrap();
        assert_eq!((dir_of(run).as_path(), History::open(run).last()), (run, 2));
    }
}
