//! Files that a long run leaves at its end: looked at before it begins, and written whole or not at all.

use crate::out;
use anyhow::{Context, bail};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process;

/// Where a text goes.
pub struct Target {
    path: PathBuf,
    to: To,
}

enum To {
    /// The standard output.
    Output,
    /// What is there, as it is: a device or a pipe, or a file in a directory that takes no other one.
    Straight,
    /// A file, which another one replaces that is written beside it.
    Whole(PathBuf),
}

impl Target {
    /// Looks whether a text can be written there; `-` is the standard output.
    ///
    /// # Errors
    ///
    /// A directory, or a file that cannot be written.
    pub fn find(path: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        let to = match fs::metadata(path) {
            _ if path == Path::new("-") => To::Output,
            _ if path.as_os_str().as_encoded_bytes().ends_with(b"/") => {
                bail!("{}: it names a directory; give the name of a file", cannot())
            }
            Ok(found) if found.is_dir() => {
                bail!("{}: it is a directory; give the name of a file", cannot())
            }
            Ok(found) if !found.is_file() => To::Straight,
            Ok(_) => {
                OpenOptions::new().write(true).open(path).with_context(cannot)?;
                let file = fs::canonicalize(path).with_context(cannot)?;
                if try_beside(&file).is_ok() { To::Whole(file) } else { To::Straight }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                try_beside(path).with_context(cannot)?;
                To::Whole(path.to_owned())
            }
            Err(error) => return Err(error).with_context(cannot),
        };
        Ok(Self { path: path.to_owned(), to })
    }

    /// Whether it is the standard output.
    pub fn is_output(&self) -> bool {
        matches!(self.to, To::Output)
    }

    /// Writes the text. What was there before stays as it is if that fails.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn write(&self, text: &str) -> anyhow::Result<()> {
        let written = match &self.to {
            To::Output => {
                out::text(text);
                Ok(())
            }
            To::Straight => fs::write(&self.path, text),
            To::Whole(file) => replace(file, text),
        };
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// The name of the file that is written beside another one.
fn beside(file: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(format!(".{}", process::id()));
    file.with_file_name(name)
}

fn try_beside(file: &Path) -> io::Result<()> {
    let beside = beside(file);
    File::create_new(&beside)?;
    fs::remove_file(&beside)
}

fn replace(file: &Path, text: &str) -> io::Result<()> {
    let beside = beside(file);
    let written = put(&beside, file, text).and_then(|()| fs::rename(&beside, file));
    if written.is_err() {
        // Most of all where the disc is full.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn put(beside: &Path, file: &Path, text: &str) -> io::Result<()> {
    let mut new = File::create_new(beside)?;
    if let Ok(old) = fs::metadata(file) {
        new.set_permissions(old.permissions())?;
    }
    new.write_all(text.as_bytes())?;
    // A disc may say only then that it is full.
    new.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_whole_or_stays_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("report");
        let names = || fs::read_dir(directory.path()).unwrap().count();
        let target = Target::find(&file).unwrap();
        assert_eq!(names(), 0, "nothing is left by the look");
        target.write("new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        // Somebody's file is in the place of the one beside.
        fs::create_dir(beside(&file)).unwrap();
        assert!(replace(&file, "newer").is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        fs::remove_dir(beside(&file)).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        Target::find(&link).unwrap().write("by the link").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "by the link");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(), 2, "and nothing beside them");
    }

    #[test]
    fn what_cannot_be_written_is_found_before() {
        let directory = tempfile::tempdir().unwrap();
        let said = |path: &Path| Target::find(path).err().map(|error| out::causes(&error));
        let at = directory.path();
        assert!(said(at).unwrap().contains("it is a directory"));
        assert!(said(&at.join("new/")).unwrap().contains("it names a directory"));
        assert!(said(&at.join("no/such")).unwrap().starts_with("cannot write "));
        fs::write(at.join("file"), "").unwrap();
        assert!(said(&at.join("file/under")).unwrap().contains("Not a directory"));
        assert!(Target::find(Path::new("-")).unwrap().is_output());
        assert!(matches!(Target::find(Path::new("/dev/null")).unwrap().to, To::Straight));
    }
}
