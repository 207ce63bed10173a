//! The configuration that a start goes on with when its file would be refused while packets are forwarded: the
//! last one that was in force.
//!
//! Somebody edits the file, and does not ask `weir check`; an hour later the process dies, or the host's
//! updates start it again. Forwarding goes on, but with nobody who looks after it backends that die keep
//! getting connections. So a start over a running data plane takes the file's last good text, which the
//! history has, and says so until the file is mended and reloaded. A first start refuses.

use crate::config::{Config, ConfigError, KeptLists, PlaneKind};
use crate::engine::kept::lists::kept_lists;
use crate::engine::{EngineError, loaded, pin_directory};
use crate::history::{History, dir_of};
use crate::store::RunLock;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};
use weir_dataplane::KernelPlane;

/// Where instances have their run directories that do not say another.
const RUN_DIR: &str = "/run/weir";

/// The link that says where the run directory is, and what stands before it.
const NOTE: &str = "run_dir";
const WORDS: &str = "run_dir:";

/// What is in force in the place of a file.
#[derive(Clone, Debug)]
pub struct Instead {
    /// Number of the change whose text it is.
    pub number: u64,
    /// Why the file would be refused.
    pub why: String,
    /// The text itself.
    pub text: String,
    /// What its lists of sources said when they came into force.
    pub lists: KeptLists,
}

/// What was in force last.
pub struct Found {
    /// The configuration.
    pub config: Config,
    /// Number of the change whose text it is.
    pub number: u64,
    /// The text itself.
    pub text: String,
    /// What its lists of sources said when they came into force.
    pub lists: KeptLists,
}

impl Found {
    /// It is in force in the place of a file that would be refused.
    pub fn instead(&self, why: String) -> Instead {
        let (text, lists) = (self.text.clone(), self.lists.clone());
        Instead { number: self.number, why, text, lists }
    }
}

/// The configuration of a start, and what it stands for if it is not the file's.
///
/// # Errors
/// What is wrong with the file, if nothing was in force before.
pub fn load(
    path: &Path,
    plane: Option<PlaneKind>,
) -> Result<(Config, Option<Instead>), ConfigError> {
    let why = match Config::load_with(path, plane) {
        Ok(config) => return Ok((config, None)),
        Err(why) => why,
    };
    match find(path, plane) {
        Some(found) => {
            let instead = found.instead(why.to_string());
            Ok((found.config, Some(instead)))
        }
        None => Err(why),
    }
}

/// The last text of the file that was in force, if packets are forwarded by it and nobody looks after them.
pub fn find(path: &Path, plane: Option<PlaneKind>) -> Option<Found> {
    let named = Config::text(path).ok().and_then(|text| run_dir_in(&text));
    let mut run_dirs = vec![named.unwrap_or_else(|| PathBuf::from(RUN_DIR))];
    // What the file does not tell any more, the memory of its instance does.
    for noted in loaded().unwrap_or_default().iter().filter_map(|name| noted(&pin_directory(name)))
    {
        if !run_dirs.contains(&noted) {
            run_dirs.push(noted);
        }
    }
    // The first is its own, and who had that may have been killed a moment ago; others run.
    let mut all = run_dirs.iter().enumerate();
    all.find_map(|(number, run_dir)| find_in(run_dir, number == 0, path, plane))
}

fn find_in(run_dir: &Path, waits: bool, path: &Path, plane: Option<PlaneKind>) -> Option<Found> {
    if !RunLock::is_used(run_dir) {
        return None;
    }
    // An instance that runs has its history in its own hands.
    let lock = match waits {
        true => RunLock::await_free(run_dir),
        false => RunLock::acquire(run_dir),
    };
    let _lock = lock.ok()?;
    let history = History::open(&dir_of(run_dir));
    if history.file() != Some(&*of_file(path)) {
        return None;
    }
    let number = history.current()?.number;
    let text = history.text(number).ok()?;
    // The text names the files of lists that it was in force with, and these may be spoilt as well.
    let lists = kept_lists(run_dir);
    let name = path.display().to_string();
    let config = Config::parse_kept(&text, &name, plane, Some(&lists)).ok()?;
    let found = Found { config, number, text, lists };
    (goes_on(&found.config) && found.config.balancer.run_dir == run_dir).then_some(found)
}

/// Whether an earlier run has left a data plane in the kernel, by which packets are forwarded.
pub fn goes_on(config: &Config) -> bool {
    let pins = pin_directory(&config.balancer.name);
    KernelPlane::left_in(&pins).is_ok_and(|left| left.is_some())
}

/// Notes beside an instance's pins where its run directory is, for a start whose file does not tell. A file
/// system of pins has no files, but links, and what they say need not be there: with these words before it,
/// nobody takes it for a way into that directory.
///
/// # Errors
/// What the system says.
pub fn note(pins: &Path, run_dir: &Path) -> io::Result<()> {
    if noted(pins).as_deref() == Some(run_dir) {
        return Ok(());
    }
    let link = pins.join(NOTE);
    match fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut words = OsString::from(WORDS);
    words.push(run_dir);
    symlink(words, link)
}

/// Another name than an instance's, under which pins are whose instance has its run directory.
pub fn other_name(name: &str, run_dir: &Path) -> Option<String> {
    let others = loaded().unwrap_or_default();
    let here = |other: &String| noted(&pin_directory(other)).as_deref() == Some(run_dir);
    others.into_iter().filter(|other| other != name).find(here)
}

/// What was in force last in a run directory whose instance does not run, if that is known and can be read. For whoever
/// holds its lock.
pub fn in_force(run_dir: &Path) -> Option<Config> {
    let history = History::open(&dir_of(run_dir));
    let text = history.text(history.current()?.number).ok()?;
    let name = history.file().map(|file| file.display().to_string()).unwrap_or_default();
    Config::parse_kept(&text, &name, None, Some(&kept_lists(run_dir))).ok()
}

/// Where the run directory of an instance is, as is noted beside its pins.
pub fn noted(pins: &Path) -> Option<PathBuf> {
    let words = fs::read_link(pins.join(NOTE)).ok()?.into_os_string().into_string().ok()?;
    words.strip_prefix(WORDS).map(PathBuf::from)
}

/// Whether a start failed by what its file asks for, or since there is no room to write down what that changes.
pub fn is_about_file(error: &EngineError) -> bool {
    use EngineError::{Config, Conflict, Interfaces, Invalid, Limit};
    matches!(error, Config(_) | Conflict(_) | Interfaces { .. } | Invalid(_) | Limit { .. })
        || error.is_full()
}

/// The name by which a history knows a file: whole, and with what links to its folder lead to. The file itself
/// may be gone.
pub fn of_file(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::canonicalize(folder.unwrap_or(Path::new(".")));
    match (folder, path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

/// The run directory that a file names, whatever else is wrong with it.
fn run_dir_in(text: &str) -> Option<PathBuf> {
    let value = |line: &str| {
        let (key, value) = line.split_once('=')?;
        if key.trim() != "run_dir" {
            return None;
        }
        let value = value.trim().strip_prefix('"')?;
        value.split_once('"').map(|(value, _)| PathBuf::from(value))
    };
    text.lines().find_map(value).filter(|run_dir| run_dir.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_directory_is_found_in_what_cannot_be_read() {
        let found = |text| run_dir_in(text).map(|path| path.display().to_string());
        let broken = "[balancer\nname = \"x\"\n  run_dir = \"/run/x\" # its own\nport = ";
        assert_eq!(found(broken).as_deref(), Some("/run/x"));
        for none in [
            "",
            "# run_dir = \"/run/x\"",
            "run_dir = \"x\"",
            "run_dir = \"/run",
            "run_dirs = \"/x\"",
        ] {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn a_file_that_is_gone_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        fs::create_dir(folder.path().join("etc")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("etc"), &link).unwrap();
        let whole = fs::canonicalize(folder.path()).unwrap().join("etc/weir.toml");
        assert_eq!(of_file(&link.join("weir.toml")), whole);
        assert_eq!(of_file(&whole), whole);
    }

    #[test]
    fn what_is_noted_is_no_way_into_a_directory() {
        let pins = tempfile::tempdir().unwrap();
        let run_dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        assert_eq!(noted(pins.path()), None);
        for run_dir in run_dirs.iter().flat_map(|one| [one.path(); 2]) {
            note(pins.path(), run_dir).unwrap();
            assert_eq!(noted(pins.path()).as_deref(), Some(run_dir));
            assert!(!pins.path().join(NOTE).exists());
        }
    }

    #[test]
    fn without_an_earlier_run_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.toml");
        let run_dir = folder.path().join("run");
        fs::write(&file, format!("[balancer]\nrun_dir = \"{}\"\n", run_dir.display())).unwrap();
        assert!(load(&file, None).is_err());
        assert!(!run_dir.exists(), "nothing is made");
    }
}
