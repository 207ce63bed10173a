//! Changes that are remembered, and gone back to: `weir apply`, `weir rollback`, `weir history`.

use super::commands::Done;
use super::plan::PlanReport;
use super::{Engine, EngineError, Happening};
use crate::config::{Balancer, Config, ConfigError, Source, in_one};
use crate::history::{Entry, History, Who, digest, note, take_along};
use crate::last_good::of_file;
use crate::owners::as_member;
use crate::store::{RunLock, StoreError};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::unistd::Gid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use tracing::warn;
use weir_host::files;
use weir_plane::Plane;

/// A configuration that is to be in force, and to be the instance's file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// What problems call it.
    pub file: String,
    /// The text of the configuration, whole, as TOML.
    pub text: String,
    /// Also where that breaks connections.
    #[serde(default)]
    pub break_connections: bool,
    /// Refused if the last change of the file has another number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<u64>,
}

/// What has been changed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HistoryReport {
    /// The instance's file.
    pub file: String,
    /// Number of the change that made the file what it is; none if none is remembered.
    pub current: Option<u64>,
    /// All changes that are remembered, the oldest first.
    pub entries: Vec<Entry>,
    /// In what the instance differs from its file now, if it does, or why that cannot be told.
    pub drift: Option<String>,
}

/// A file that waits beside the instance's own to take its place, or has taken it while the former one waits;
/// what waits is gone when this ends.
pub(super) struct Beside {
    path: PathBuf,
    target: PathBuf,
    /// There is no former file.
    new: bool,
}

/// What is called so beside the file waits to take its place.
const WAITING: &str = ".weir-new";

impl Beside {
    /// Writes it, with owner and mode of the file that is there.
    pub fn write(config_path: &Path, text: &str) -> std::io::Result<Self> {
        // What a link leads to is replaced, and not the link. A file that is gone is made again.
        let target = match fs::canonicalize(config_path) {
            Err(error) if error.kind() == ErrorKind::NotFound => gone(config_path)?,
            target => target?,
        };
        // A folder would change places with the file, and be left under its name.
        if fs::metadata(&target).is_ok_and(|there| !there.is_file()) {
            let why = "it is no file, and in the way of one";
            return Err(std::io::Error::new(ErrorKind::InvalidInput, why));
        }
        let (path, new) = (waiting(&target), !target.exists());
        let beside = Self { path, target, new };
        let _ = fs::remove_file(&beside.path);
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside.path)?;
        beside.fill(&mut file, text)?;
        Ok(beside)
    }

    fn fill(&self, file: &mut File, text: &str) -> std::io::Result<()> {
        match fs::metadata(&self.target) {
            Ok(there) => belongs_as(file, &there)?,
            // There may be keys in it: what is made again is its owner's only.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()
    }

    /// Both change places: what a restart finds is one of them, whole. Done again, it is as before.
    pub fn exchange(&self) -> std::io::Result<()> {
        match (self.new, self.path.exists()) {
            (true, true) => fs::rename(&self.path, &self.target),
            (true, false) => fs::rename(&self.target, &self.path),
            (false, _) => {
                let flags = RenameFlags::RENAME_EXCHANGE;
                Ok(renameat2(AT_FDCWD, &self.path, AT_FDCWD, &self.target, flags)?)
            }
        }
    }
}

/// Gives a file owner, group and mode of another one.
fn belongs_as(file: &File, other: &fs::Metadata) -> std::io::Result<()> {
    let ours = file.metadata()?;
    if other.gid() != ours.gid() {
        as_member(Gid::from_raw(other.gid()), || fchown(file, None, Some(other.gid())))?;
    }
    if other.uid() != ours.uid() {
        fchown(file, Some(other.uid()), None)?;
    }
    file.set_permissions(fs::Permissions::from_mode(other.mode() & 0o7777))
}

/// What stands in a file is kept beside it under this name, or with a number after it.
const EDITED: &str = ".edited";
/// So many of these there may be: who has more looks at none of them.
const MOST_EDITED: usize = 100;

/// Keeps what stands in a file beside it, under the first name that is free; what is kept there already is not kept
/// twice. Returns the name. Nothing that is there is written to, and no link is followed.
///
/// # Errors
/// Why it cannot be kept.
fn keep_beside(path: &Path) -> Result<PathBuf, String> {
    let wrong = |error: std::io::Error| error.to_string();
    let text = fs::read(path).map_err(wrong)?;
    let name = |number: usize| {
        let mut name = path.as_os_str().to_owned();
        name.push(EDITED);
        if number > 0 {
            name.push(format!(".{number}"));
        }
        PathBuf::from(name)
    };
    let names: Vec<PathBuf> = (0..MOST_EDITED).map(name).collect();
    if let Some(kept) =
        names.iter().find(|name| files::read_anybodys(name).is_ok_and(|kept| kept == text))
    {
        return Ok(kept.clone());
    }
    let free = names.iter().find(|name| fs::symlink_metadata(name).is_err());
    let Some(free) = free else {
        return Err(format!(
            "there are {MOST_EDITED} files of earlier edits, {} to {}; remove those that nobody needs, or reload \
             the file",
            names[0].display(),
            names[MOST_EDITED - 1].display()
        ));
    };
    let about = fs::metadata(path).map_err(wrong)?;
    // There may be keys in it: it is its owner's alone until it is as the file is.
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(free);
    let mut file = made.map_err(|error| format!("{}: {error}", free.display()))?;
    let written = belongs_as(&file, &about)
        .and_then(|()| file.write_all(&text))
        .and_then(|()| file.sync_all());
    if let Err(error) = written {
        // What is not whole would be taken for what stood there.
        let _ = fs::remove_file(free);
        return Err(format!("{}: {error}", free.display()));
    }
    Ok(free.clone())
}

/// The name of what waits to take a file's place.
fn waiting(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(WAITING);
    PathBuf::from(name)
}

/// Where a file that is gone has been; a link that leads nowhere is refused.
fn gone(config_path: &Path) -> std::io::Result<PathBuf> {
    if fs::symlink_metadata(config_path).is_ok() {
        return Err(std::io::Error::new(ErrorKind::NotFound, "it is a link that leads nowhere"));
    }
    let name = config_path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let folder = config_path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok(fs::canonicalize(folder.unwrap_or(Path::new(".")))?.join(name))
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What has been changed, the lock of where that is if it is not in the run directory, and what is in the way.
type Opened = (History, Option<RunLock>, Option<String>);

/// Opens what was remembered. Forwarding is not kept waiting by a directory that cannot be used.
///
/// # Errors
/// Another instance has the directory: two would overwrite each other's. Or somebody else may write to it.
pub(super) fn open(balancer: &Balancer) -> Result<Opened, EngineError> {
    let (run_dir, state_dir) = (&balancer.run_dir, balancer.state_dir());
    let lock = match state_dir == *run_dir {
        true => Ok(None),
        false => RunLock::await_free(&state_dir).map(Some),
    };
    let done = match lock {
        Err(error @ (StoreError::Locked { .. } | StoreError::Unsafe { .. })) => {
            return Err(error.into());
        }
        Err(error) => Err(error),
        // What is noted is there whole.
        Ok(Some(lock)) => take_along(run_dir, &state_dir)
            .and_then(|()| note(run_dir, &state_dir))
            .map(|()| Some(lock)),
        Ok(None) => note(run_dir, &state_dir).map(|()| None),
    };
    // Numbers of changes go on where they were, and the next start tries again to take them along.
    let (mut history, lock, trouble) = match done {
        Ok(lock) => (History::open(&state_dir), lock, None),
        Err(error) => {
            let trouble = format!("the history of changes may not outlive the machine: {error}");
            (History::open(run_dir), None, Some(trouble))
        }
    };
    history.hold_number();
    Ok((history, lock, trouble))
}

impl<P: Plane> Engine<P> {
    /// Remembers what the start has found in its file, if that is another than before, and writes down anew what an
    /// earlier process could not.
    pub(super) fn remember_start(&mut self) {
        self.write_down_whole();
        if self.instead.is_some() {
            return;
        }
        if let Err(error) = self.history.is_of(of_file(&self.config_path)) {
            warn!(%error, "a start over a file with an error will not find this one");
        }
        // A test's engine has no file.
        let Some(text) = self.fleet_text().or_else(|| Config::text(&self.config_path).ok()) else {
            return;
        };
        // Left by a process that died while it changed the file.
        if let Ok(target) = fs::canonicalize(&self.config_path) {
            let _ = fs::remove_file(waiting(&target));
        }
        if self.history.current().is_some_and(|entry| entry.digest == digest(&text)) {
            return;
        }
        let done = format!("started with {}", self.config_path.display());
        // Who started it reads the log, and the status.
        let _ = self.remember("start", done, None, Some(&text));
    }

    /// The number of the change, or what its answer is to say if it cannot be written down.
    fn remember(
        &mut self,
        what: &str,
        done: String,
        plan: Option<&PlanReport>,
        text: Option<&str>,
    ) -> Result<u64, String> {
        let services = plan.map_or(&[][..], |plan| &plan.services);
        let sum = |of: fn(&super::ServicePlan) -> Option<usize>| {
            services
                .iter()
                .map(of)
                .try_fold(0, |all, one| Some(all + one?))
                .filter(|_| plan.is_some())
        };
        let services: Vec<String> =
            services.iter().map(|one| format!("{} {}", one.name, one.change)).collect();
        let counts = (sum(|one| one.connections), sum(|one| one.broken));
        self.remember_entry((what, done), services, counts, text)
    }

    fn remember_entry(
        &mut self,
        (what, done): (&str, String),
        services: Vec<String>,
        (connections, broken): (Option<usize>, Option<usize>),
        text: Option<&str>,
    ) -> Result<u64, String> {
        let entry = Entry {
            number: 0,
            at: 0,
            who: self.who.clone(),
            what: what.to_owned(),
            fleet: self.number_in_fleet(what),
            done,
            services,
            connections,
            broken,
            kept: false,
            digest: String::new(),
        };
        let added = self.history.add(entry, text);
        if let Some(entry) = self.history.entries().last() {
            self.events.push(Happening::Change { change: Box::new(entry.clone()) });
        }
        added.map_err(|error| {
            warn!(%error, "the change is in force, and not in the history");
            match self.history.unsaved() {
                Some(_) => format!(
                    "; it is done, and the history lacks it until it can be written: {error}; tried again"
                ),
                None => format!("; it is done, and the history has it without its file: {error}"),
            }
        })
    }

    /// Remembers what was done without a command.
    pub(super) fn remember_own(&mut self, done: String) {
        // Nobody waits for an answer.
        let _ = self.remember("command", done, None, None);
    }

    /// Remembers a command that has broken none of the connections that are known of its service, if that is known.
    /// Returns its answer.
    pub(super) fn remember_kept(&mut self, said: String, known: Option<usize>) -> String {
        self.remember_removal(said, known, known.map(|_| 0))
    }

    /// Remembers that a backend was removed: of the connections of its service, so many were its own. Returns the
    /// command's answer.
    pub(super) fn remember_removal(
        &mut self,
        said: String,
        connections: Option<usize>,
        broken: Option<usize>,
    ) -> String {
        let done = ("command", said.clone());
        match self.remember_entry(done, Vec::new(), (connections, broken), None) {
            Ok(_) => said,
            Err(lacks) => said + &lacks,
        }
    }

    /// What a text says in the instance's file, which it is in or is to be in: paths go from that one's folder, wherever
    /// the text comes from and whatever problems call it.
    pub(super) fn read_as_own(&self, text: &str, name: &str) -> Result<Config, ConfigError> {
        let folder = self.config_path.parent().unwrap_or(Path::new(""));
        Config::parse_in(folder, text, name, self.told_plane)
    }

    /// Follows a text, and remembers it; `from` is where problems of it are told.
    pub(super) fn follow_text(
        &mut self,
        text: &str,
        from: Source,
        breaking: bool,
        what: &str,
    ) -> Result<(String, Option<u64>), EngineError> {
        let config = self
            .read_as_own(text, &from.name())
            .map_err(|error| self.where_it_stands(&from, error))?;
        let plan = self.plan_to(&config, &from);
        self.looked_at.replace(Some(from));
        let done = self.reload_as(config, breaking);
        self.looked_at.replace(None);
        if matches!(done, Ok(_) | Err(EngineError::Unfinished(_))) {
            (self.instead, self.unfollowed) = (None, None);
        }
        // What is in force but for a rest that is tried again is in force.
        let said = match &done {
            Ok(said) => said.clone(),
            Err(EngineError::Unfinished(said)) => said.clone(),
            Err(_) => return done.map(|said| (said, None)),
        };
        let same = self.history.current().is_some_and(|entry| entry.digest == digest(text));
        if same && plan.as_ref().is_ok_and(|plan| self.is_of_limits_that_stay(plan)) {
            // Whoever reloads every hour pushes nothing out of the history.
            return done.map(|said| (said, None));
        }
        let words = self.words_of_fleet().unwrap_or(said);
        match (self.remember(what, words, plan.ok().as_ref(), Some(text)), done) {
            (Ok(number), done) => done.map(|said| (said, Some(number))),
            (Err(lacks), Ok(said)) => Ok((said + &lacks, None)),
            (Err(lacks), Err(EngineError::Unfinished(said))) => {
                Err(EngineError::Unfinished(said + &lacks))
            }
            (Err(_), Err(error)) => Err(error),
        }
    }

    /// The same error by the text that it is told by, if that knows better where its lines stand.
    fn where_it_stands(&self, from: &Source, error: ConfigError) -> ConfigError {
        let Source::Text { name, text } = from else { return error };
        self.read_as_own(text, name).err().unwrap_or(error)
    }

    /// Whether the last change of the file is the one that somebody expects.
    pub(super) fn is_expected(&self, expect: Option<u64>) -> Result<(), EngineError> {
        let current = self.history.current().map_or(0, |entry| entry.number);
        match expect.filter(|expect| *expect != current) {
            None => Ok(()),
            Some(expect) => Err(EngineError::Conflict(format!(
                "the last change of the file has the number {current}, not {expect}: somebody else has \
                 changed it; look at weir history and weir plan"
            ))),
        }
    }

    fn would_refuse(&self, from: &Source, breaking: bool) -> Result<(), EngineError> {
        let Source::Text { name, text } = from else { return Ok(()) };
        self.refuses(&self.read_as_own(text, name)?, breaking)
    }

    pub(super) fn apply(&mut self, apply: &Apply, what: &str) -> Done {
        let Apply { file, text, break_connections, expect } = apply;
        self.is_expected(*expect)?;
        // What was kept is one text, whatever files it came from, which may be others now.
        let one = in_one(text.clone());
        let from = match what {
            "rollback" => Source::text(file, &one),
            _ => Source::text(file, text),
        };
        // Nor is it anything else in the instance's file: what is added there stands in that file, and is told so.
        let text = one.as_str();
        // What is refused anyway is refused before anything is written.
        self.looked_at.replace(Some(from.clone()));
        let refused = self.would_refuse(&from, *break_connections);
        self.looked_at.replace(None);
        refused?;
        let beside = Beside::write(&self.config_path, text).map_err(|error| {
            EngineError::Conflict(format!(
                "{} cannot be replaced, so that a restart would find another file: {error}; nothing has \
                 changed",
                self.config_path.display()
            ))
        })?;
        let edited = self.keep_edited(text)?;
        // First the file: a process that dies in between starts with what was to be in force, whole.
        beside.exchange().map_err(|error| {
            EngineError::Conflict(format!(
                "{} cannot be replaced, so that a restart would find another file: {error}; nothing has changed",
                self.config_path.display()
            ))
        })?;
        let followed = self.follow_text(text, from, *break_connections, what);
        if let Err(error) = &followed
            && !matches!(error, EngineError::Unfinished(_))
        {
            if let Err(other) = beside.exchange() {
                return Err(EngineError::Unfinished(format!(
                    "{error}; nothing has changed but {}, which cannot be given back: {other}",
                    self.config_path.display()
                )));
            }
            return followed.map(|(said, _)| said);
        }
        followed.map(|(said, number)| {
            let number =
                number.map_or_else(String::new, |number| format!("; it is change {number}"));
            format!("{said}{number}{edited}")
        })
    }

    /// What somebody has written into the instance's file, and nobody has put in force, is not lost with it: it
    /// is kept beside. Returns the words for that.
    pub(super) fn keep_edited(&self, text: &str) -> Result<String, EngineError> {
        let Some(current) = self.history.current() else { return Ok(String::new()) };
        // What cannot be read as a file of weir is somebody's text all the same.
        match (fs::metadata(&self.config_path), Config::text(&self.config_path)) {
            (Err(error), _) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(String::new());
            }
            (_, Ok(there)) if [&current.digest, &digest(text)].contains(&&digest(&there)) => {
                return Ok(String::new());
            }
            _ => {}
        }
        let beside = self.kept_beside("was edited and is not in force")?;
        Ok(format!(
            "; the file had been edited without a reload: what stood there is in {}",
            beside.display()
        ))
    }

    /// The same of what an instance was to serve before it was of a fleet.
    pub(super) fn keep_replaced(&self) -> Result<String, EngineError> {
        if !self.config_path.exists() {
            return Ok(String::new());
        }
        let beside = self.kept_beside("has other services than the fleet")?;
        Ok(format!("; what stood there before is in {}", beside.display()))
    }

    /// Keeps what stands in the instance's file beside it; `how` it is, for the words if that cannot be.
    fn kept_beside(&self, how: &str) -> Result<PathBuf, EngineError> {
        keep_beside(&self.config_path).map_err(|why| {
            EngineError::Conflict(format!(
                "{} {how}, and cannot be kept beside: {why}; nothing has changed",
                self.config_path.display()
            ))
        })
    }

    /// Goes back to the file of a change; without a number, to the one before.
    pub(super) fn rollback(&mut self, number: Option<u64>, break_connections: bool) -> Done {
        let (apply, number) = self.text_of_change(number, break_connections)?;
        match self.apply(&apply, "rollback") {
            Ok(said) => Ok(format!("back to change {number}: {said}")),
            // Whoever has given no number does not know which it is.
            Err(EngineError::Conflict(why)) => {
                Err(EngineError::Conflict(format!("going back to change {number}: {why}")))
            }
            Err(error) => Err(error),
        }
    }

    /// What going back to a change is to put in force.
    pub(super) fn text_to_go_back_to(
        &self,
        number: Option<u64>,
        break_connections: bool,
    ) -> Result<Apply, EngineError> {
        self.text_of_change(number, break_connections).map(|(apply, _)| apply)
    }

    fn text_of_change(
        &self,
        number: Option<u64>,
        break_connections: bool,
    ) -> Result<(Apply, u64), EngineError> {
        let number = match number {
            Some(number) => number,
            None => self.history.before().map(|entry| entry.number).ok_or_else(|| {
                let words = "there is no other file to go back to; weir history lists all";
                EngineError::Conflict(words.into())
            })?,
        };
        let text = self.history.text(number).map_err(EngineError::NotFound)?;
        // Not the instance's file: that has another text, and other lines.
        let file = self.history.text_path(number).display().to_string();
        Ok((Apply { file, text, break_connections, expect: None }, number))
    }

    pub(super) fn history_report(&self) -> HistoryReport {
        let current = self.history.current();
        HistoryReport {
            file: self.config_path.display().to_string(),
            current: current.map(|entry| entry.number),
            entries: self.history.entries().to_vec(),
            drift: self.drift(),
        }
    }

    /// In what the instance differs from its file.
    fn drift(&self) -> Option<String> {
        let text = match Config::text(&self.config_path) {
            Ok(text) => text,
            Err(error @ ConfigError::Read { .. }) => return Some(error.to_string()),
            Err(error) => {
                let file = self.config_path.display();
                return Some(format!("{file} would be refused: {error}"));
            }
        };
        let edited = self.history.current().is_some_and(|entry| entry.digest != digest(&text));
        let file = self.config_path.display();
        match self.plan_of(None) {
            Err(error) => Some(format!("{file} would be refused: {error}")),
            Ok(plan) if plan.changes => {
                let services: Vec<String> = plan
                    .services
                    .iter()
                    .map(|one| format!("service {} {}", one.name, one.change))
                    .chain(plan.settings.iter().map(|one| one.field.clone()))
                    .collect();
                let why = match edited {
                    true => "the file was edited",
                    false if self.is_of_limits_that_stay(&plan) => "limits stay as they were",
                    false => "commands have changed it",
                };
                Some(format!(
                    "the instance differs from {file} ({why}): {}; weir plan shows in what",
                    services.join(", ")
                ))
            }
            Ok(_) => None,
        }
    }

    /// The text of a change's file.
    pub(super) fn text_of(&self, number: u64) -> Done {
        self.history.text(number).map_err(EngineError::NotFound)
    }

    /// Who asks for what follows.
    pub(super) fn asked_by(&mut self, who: Who) {
        self.who = who;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_was_edited_is_kept_beside_and_no_earlier_one_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weir.toml");
        let beside = |more: &str| folder.path().join(format!("weir.toml.edited{more}"));
        let keep = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            keep_beside(&path)
        };
        assert_eq!(keep("one"), Ok(beside("")));
        assert_eq!(keep("two"), Ok(beside(".1")));
        // What is there already is there once.
        assert_eq!(keep("one"), Ok(beside("")));
        assert_eq!(keep("two"), Ok(beside(".1")));
        assert_eq!(fs::read_to_string(beside("")).unwrap(), "one");
        assert_eq!(fs::read_to_string(beside(".1")).unwrap(), "two");
        assert_eq!(fs::metadata(beside(".1")).unwrap().mode() & 0o7777, 0o640);
        // A link is no copy, wherever it leads to.
        let target = folder.path().join("target");
        symlink(&target, beside(".2")).unwrap();
        assert_eq!(keep("three"), Ok(beside(".3")));
        assert!(!target.exists());
        // A name that is free again is taken again.
        fs::remove_file(beside("")).unwrap();
        assert_eq!(keep("two"), Ok(beside(".1")));
        assert_eq!(keep("four"), Ok(beside("")));
        for number in 4..MOST_EDITED {
            assert_eq!(keep(&format!("more {number}")), Ok(beside(&format!(".{number}"))));
        }
        let said = keep("too many").unwrap_err();
        assert!(said.contains("weir.toml.edited to ") && said.contains("remove"), "{said}");
        assert_eq!(keep("four"), Ok(beside("")));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), MOST_EDITED + 1);
    }
}
