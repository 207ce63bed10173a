//! The highest term that a balancer has heard of, in a file: a store that loses its data, while all balancers are killed,
//! would bring terms back otherwise.

use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use tracing::warn;
use weir_host::files;

/// What stands in the file.
#[derive(Serialize, Deserialize)]
struct Kept {
    term: u64,
}

/// Terms of leaders, as a balancer has heard of them.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    highest: u64,
    /// Where the highest one is kept; none: nowhere.
    file: Option<PathBuf>,
    /// What stands there.
    kept: u64,
    /// The last one could not be written.
    failed: bool,
}

impl Terms {
    /// The highest that was heard of.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// They are kept in this file from now on, and what stands there was heard of.
    pub fn keep_in(&mut self, file: PathBuf) {
        match read(&file) {
            Ok(term) => {
                self.kept = term;
                self.highest = self.highest.max(term);
            }
            Err(error) => {
                let file = file.display();
                warn!(%error, "{file} does not say which terms there were; goes on with term {}", self.highest);
            }
        }
        self.file = Some(file);
    }

    /// A leader has this term. It is written down before it counts; where that fails it counts all the same, for as
    /// long as this process runs.
    pub fn hear(&mut self, term: u64) {
        if term > self.highest {
            self.has_kept(term);
            self.highest = term;
        }
    }

    /// Whether a term is written down, so that whoever comes after this process takes none that is not above it.
    pub fn has_kept(&mut self, term: u64) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| term > self.kept) else { return true };
        match write(file, term) {
            Ok(()) => (self.kept, self.failed) = (term, false),
            Err(error) => {
                if !std::mem::replace(&mut self.failed, true) {
                    let file = file.display();
                    warn!(%error, "{file} cannot say that there was term {term}; this balancer does not run for leader");
                }
            }
        }
        !self.failed
    }

    /// Writes it down again where somebody has removed the file, or it could not be written before. Whether the latter
    /// is so.
    pub fn look(&mut self) -> bool {
        if self.file.as_ref().is_some_and(|file| self.kept > 0 && files::is_gone(file)) {
            self.kept = 0;
        }
        let failed = self.failed;
        self.has_kept(self.highest) && failed
    }
}

/// 0 if there is none.
fn read(file: &Path) -> io::Result<u64> {
    match files::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        bytes => Ok(serde_json::from_slice::<Kept>(&bytes?)?.term),
    }
}

fn write(file: &Path, term: u64) -> io::Result<()> {
    files::write_through(file, &serde_json::to_vec(&Kept { term })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn kept_in(file: &Path) -> Terms {
        let mut terms = Terms::default();
        terms.keep_in(file.to_owned());
        terms
    }

    #[test]
    fn what_was_heard_of_is_known_to_whoever_comes_after() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("term.json");
        let mut terms = kept_in(&file);
        assert_eq!(terms.highest(), 0);
        terms.hear(15);
        terms.hear(14);
        assert_eq!((terms.highest(), kept_in(&file).highest()), (15, 15));
        // It runs for a term that another one may win.
        assert!(terms.has_kept(16));
        assert_eq!((terms.highest(), kept_in(&file).highest()), (15, 16));
        fs::remove_file(&file).expect("it was there");
        assert!(!terms.look(), "nothing has failed");
        assert_eq!(kept_in(&file).highest(), 15);
        fs::write(&file, "{").expect("written");
        assert_eq!(kept_in(&file).highest(), 0);
        // Nobody says otherwise.
        let mut alone = Terms::default();
        alone.hear(3);
        assert!(alone.has_kept(4) && alone.highest() == 3);
    }

    #[test]
    fn who_cannot_write_it_down_is_told_when_it_can() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("inner");
        let mut terms = kept_in(&inner.join("term.json"));
        terms.hear(7);
        assert_eq!(terms.highest(), 7);
        assert!(!terms.has_kept(8) && !terms.look());
        fs::create_dir(&inner).expect("a folder");
        assert!(terms.look() && terms.has_kept(8) && !terms.look());
        assert_eq!(kept_in(&inner.join("term.json")).highest(), 8);
    }
}
