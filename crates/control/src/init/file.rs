//! A file that is written once, and never over another.

use crate::engine::EngineError;
use anyhow::Context;
use std::fs::{DirBuilder, OpenOptions, remove_file};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// What is said of a file that is there: a conflict.
pub fn there_already(path: &Path) -> anyhow::Error {
    let words = format!(
        "{} is there already and stays as it is; remove it, or give --output another file, or - for the \
         standard output",
        path.display()
    );
    EngineError::Conflict(words).into()
}

/// Writes a file that is not there yet: whole, or not at all. The folder of the `usual` one is made if there is none;
/// elsewhere that is a slip of whoever has typed it.
///
/// # Errors
/// What [`there_already`] says of one that is there; that there is no such folder; and whatever the system says.
pub fn write_new(path: &Path, usual: &Path, text: &str) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        if path == usual {
            DirBuilder::new().recursive(true).mode(0o755).create(parent).with_context(failed)?;
        } else if !parent.is_dir() {
            let parent = parent.display();
            let words = format!(
                "cannot write {}: there is no directory {parent}; make it (mkdir -p {parent}), or give --output \
                 another file",
                path.display()
            );
            return Err(EngineError::Invalid(words).into());
        }
    }
    // Keys may come into it later.
    write_once(path, text.as_bytes(), 0o640)
}

/// As [`write_new`], for its owner alone, who decides whom to give it to, in a folder that is there.
///
/// # Errors
/// Those of [`write_new`].
pub fn write_own(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write_once(path, bytes, 0o600)
}

fn write_once(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = match opened {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(there_already(path)),
        opened => opened.with_context(failed)?,
    };
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = remove_file(path);
    }
    written.with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_stays_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("made/weir.toml");
        write_new(&path, &path, "one").unwrap();
        let refused = write_new(&path, &path, "two").unwrap_err();
        assert!(matches!(refused.downcast_ref(), Some(EngineError::Conflict(_))), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
    }

    #[test]
    fn only_the_usual_folder_is_made() {
        let home = tempfile::tempdir().unwrap();
        let (usual, path) = (home.path().join("weir.toml"), home.path().join("no/such/weir.toml"));
        let refused = write_new(&path, &usual, "one").unwrap_err();
        let words = format!("there is no directory {}", home.path().join("no/such").display());
        assert!(refused.to_string().contains(&words), "{refused}");
        assert!(!home.path().join("no").exists());
    }

    #[test]
    fn what_is_its_owners_own_is_nobody_elses() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("snapshot.json");
        write_own(&path, b"one").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o7777, 0o600);
        let refused = write_own(&path, b"two").unwrap_err();
        assert!(matches!(refused.downcast_ref(), Some(EngineError::Conflict(_))), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        assert!(write_own(&home.path().join("no/such"), b"").is_err());
    }
}
