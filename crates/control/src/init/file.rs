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

/// Writes a file that is not there yet: whole, or not at all.
///
/// # Errors
/// What [`there_already`] says of one that is there; and whatever the system says.
pub fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o755).create(parent).with_context(failed)?;
    }
    // Keys may come into it later.
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o640).open(path);
    let mut file = match opened {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(there_already(path)),
        opened => opened.with_context(failed)?,
    };
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
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
        write_new(&path, "one").unwrap();
        let refused = write_new(&path, "two").unwrap_err();
        assert!(matches!(refused.downcast_ref(), Some(EngineError::Conflict(_))), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
    }
}
