//! What a restart goes on from stands in the run directory (and in the state directory, if that is another). Somebody
//! may clear it away while weir runs, or put something else there: nothing that is written to files without names is
//! found again, and a start would know no connection.

pub(crate) mod lists;

use super::{Engine, EngineError, tolerate, unload};
use crate::api::may_listen;
use crate::config::{Balancer, Config};
use crate::history;
use crate::store::{RunLock, StoreError};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use tracing::{error, info, warn};
use weir_host::files::{self, is_gone};
use weir_plane::Plane;

impl<P: Plane> Engine<P> {
    /// Looks whether all that was written down is there, and writes it anew if it is not.
    pub(super) fn look_at_kept(&mut self) {
        let gone = self.gone_files();
        if gone.is_empty() {
            return self.look_at_lists();
        }
        let what = words(&gone, &self.config.balancer.run_dir);
        let written = self.write_anew();
        let failure = match written {
            Err(failure) => failure.to_string(),
            Ok(()) if self.gone_files().is_empty() => {
                warn!(
                    "{what}: somebody has done that; what a restart goes on from is written anew"
                );
                self.unkept = None;
                return self.look_at_lists();
            }
            Ok(()) => {
                let unwritten = self.services.values().find_map(|one| one.unwritten.clone());
                unwritten.unwrap_or_else(|| "not all of it could be written".into())
            }
        };
        let said = format!(
            "{what}: somebody has done that, and what a restart goes on from cannot be written anew: {failure}; \
             tried again"
        );
        if self.unkept.as_ref() != Some(&said) {
            error!("{said}");
        }
        self.unkept = Some(said);
    }

    /// Nothing else is gone: looks whether what files of lists said is kept, too.
    fn look_at_lists(&mut self) {
        let unkept = self.keep_lists_again();
        match &unkept {
            Some(said) if self.unkept != unkept => error!("{said}"),
            None if self.unkept.is_some() => {
                info!("what a restart goes on from is written down again");
            }
            _ => {}
        }
        self.unkept = unkept;
    }

    /// What was written down and is gone.
    fn gone_files(&self) -> Vec<PathBuf> {
        let balancer = &self.config.balancer;
        let (run_dir, state_dir) = (&balancer.run_dir, balancer.state_dir());
        let mut gone = Vec::new();
        if !self.locks.0.is_of(run_dir) {
            gone.push(run_dir.join("lock"));
        }
        if self.locks.1.as_ref().is_some_and(|lock| !lock.is_of(&state_dir)) {
            gone.push(state_dir.join("lock"));
        }
        if self.journal.is_gone() {
            gone.push(run_dir.join(super::document::FILE));
        }
        let logs = self.services.values().filter_map(|service| service.log.as_ref());
        // One reading tells of thousands that they are there.
        let there = listed(run_dir);
        let logs = logs.filter(|log| !log.is_listed(&there) && !log.is_in_place());
        gone.extend(logs.map(|log| log.path().to_owned()));
        if self.history.is_gone() {
            gone.push(state_dir.join("history.json"));
        }
        gone.extend(self.drained_file().filter(|file| is_gone(file)));
        gone
    }

    /// Writes down anew what is gone.
    fn write_anew(&mut self) -> Result<(), EngineError> {
        let (run_dir, state_dir) =
            (self.config.balancer.run_dir.clone(), self.config.balancer.state_dir());
        // Another weir may have taken the directory meanwhile, and what is there is its own then.
        let all = !self.locks.0.is_of(&run_dir);
        if all {
            self.locks.0 = RunLock::acquire(&run_dir)?;
        }
        if self.locks.1.as_ref().is_some_and(|lock| !lock.is_of(&state_dir)) {
            self.locks.1 = Some(RunLock::acquire(&state_dir)?);
        }
        if self.journal.is_gone() {
            self.journal.begin_anew();
            self.save_later();
        }
        let now = self.now();
        for service in self.services.values_mut() {
            if service.log.as_ref().is_some_and(|log| !log.is_in_place()) {
                let written = service.rewrite_log(now);
                service.written(written);
            }
        }
        if let Some(file) = self.drained_file().filter(|file| is_gone(file)) {
            let written = files::write(&file, b"");
            written.map_err(|source| StoreError::Io { doing: "write", path: file, source })?;
        }
        if self.history.is_gone() {
            let text = self.fleet_text().or_else(|| Config::text(&self.config_path).ok());
            let written = self.history.write_anew(text.as_deref());
            tolerate("write the history anew", written.map_err(EngineError::from));
        }
        if all {
            let noted = history::note(&run_dir, &state_dir);
            tolerate("note where the history is", noted.map_err(EngineError::from));
            self.unrecorded.write_anew(now);
            self.note_apart_anew();
            // With them the files for the servers.
            self.tell_all_ids().into_iter().for_each(|failure| warn!(%failure, "QUIC ids"));
        }
        Ok(())
    }
}

/// Looks whether the control socket can be made, before anything else is. The run directory is this process's own.
pub(super) fn may_have_socket(balancer: &Balancer) -> Result<(), EngineError> {
    let path = balancer.socket_path();
    let may = may_listen(&path);
    Ok(may.map_err(|source| StoreError::Io { doing: "make the control socket", path, source })?)
}

impl<P: Plane> Engine<P> {
    /// Whether nothing forwarded packets before this start, and what does now is pinned.
    pub(crate) fn is_first(&self) -> bool {
        !self.resumed && self.name.is_some()
    }

    /// A start comes to nothing after all.
    pub(crate) fn undo_start(self) {
        let (first, name) = (self.is_first(), self.config.balancer.name.clone());
        // The lock of its name goes with it.
        drop(self);
        if first {
            take_away(&name);
        }
    }
}

/// Takes what a first start has made out of the kernel again, as that has come to nothing.
pub(crate) fn take_away(name: &str) {
    // What was announced is withdrawn before.
    if let Err(left) = unload(name, || ()) {
        warn!(error = %left, "cannot remove what the start has left");
    }
}

/// What a start makes of directories before it knows whether it can be.
const BEGUN: [&str; 3] = ["lock", "state_dir", "history.number"];

/// Directories that nobody has used before a start, each with the names that were in it; none where it was not there.
/// If the start comes to nothing, they are as they were: they hold nothing of any instance, and are taken for none's.
pub(super) struct Begun(Vec<(PathBuf, Option<HashSet<OsString>>)>);

impl Begun {
    /// Those of a start that is about to begin.
    pub fn at(balancer: &Balancer) -> Self {
        let mut all = vec![balancer.run_dir.clone(), balancer.state_dir()];
        all.dedup();
        all.retain(|directory| !RunLock::is_used(directory));
        let had = |one: PathBuf| {
            let names = one.exists().then(|| listed(&one).into_keys().collect::<HashSet<_>>());
            (one, names)
        };
        Self(all.into_iter().map(had).collect())
    }

    /// They are an instance's now.
    pub fn stays(mut self) {
        self.0.clear();
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        for (directory, had) in self.0.iter().rev() {
            let was_there = |name: &OsStr| had.as_ref().is_some_and(|had| had.contains(name));
            let ours = |name: &OsString| BEGUN.iter().any(|one| *name == **one);
            let known = |name: &OsString| ours(name) || was_there(name);
            // Another one may have begun there meanwhile, or more than that was written.
            if !RunLock::is_used(directory) || !listed(directory).keys().all(known) {
                continue;
            }
            let Ok(_lock) = RunLock::acquire(directory) else { continue };
            for name in BEGUN.iter().filter(|name| !was_there(OsStr::new(name))) {
                let _ = fs::remove_file(directory.join(name));
            }
            if had.is_none() {
                let _ = fs::remove_dir(directory);
            }
        }
    }
}

/// The files of a directory, with their numbers; none where it cannot be read.
fn listed(directory: &Path) -> HashMap<OsString, u64> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| (entry.file_name(), entry.ino())).collect()
}

/// Which files are gone, in words.
fn words(gone: &[PathBuf], run_dir: &Path) -> String {
    if is_gone(run_dir) {
        return format!("the run directory {} is gone", run_dir.display());
    }
    let names: Vec<String> = gone.iter().map(|path| path.display().to_string()).collect();
    let are = if gone.len() == 1 { "is" } else { "are" };
    // A file that is emptied, or that a link has taken the place of, is there.
    let other = if gone.iter().all(|path| is_gone(path)) { "" } else { ", or not as written" };
    format!("{} {are} gone{other}", files::in_words(&names))
}
