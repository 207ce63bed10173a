//! The configuration that a start goes on with when its file would be refused while packets are forwarded: the
//! last one that was in force.
//!
//! Somebody edits the file, and does not ask `weir check`; an hour later the process dies, or the host's
//! updates start it again. Forwarding goes on, but with nobody who looks after it backends that die keep
//! getting connections. So a start over a running data plane takes the file's last good text, which the
//! history has, and says so until the file is mended and reloaded. A first start refuses.

use crate::config::{Config, ConfigError, PlaneKind};
use crate::engine::{EngineError, pin_directory};
use crate::history::History;
use crate::store::RunLock;
use std::fs;
use std::path::{Path, PathBuf};
use weir_dataplane::KernelPlane;

/// Where instances have their run directories that do not say another.
const RUN_DIR: &str = "/run/weir";

/// What is in force in the place of a file.
#[derive(Clone, Debug)]
pub struct Instead {
    /// Number of the change whose text it is.
    pub number: u64,
    /// Why the file would be refused.
    pub why: String,
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
        Some((config, number)) => Ok((config, Some(Instead { number, why: why.to_string() }))),
        None => Err(why),
    }
}

/// The last text of the file that was in force, if packets are forwarded by it and nobody looks after them.
pub fn find(path: &Path, plane: Option<PlaneKind>) -> Option<(Config, u64)> {
    let run_dir = fs::read_to_string(path).ok().and_then(|text| run_dir_in(&text));
    let run_dir = run_dir.unwrap_or_else(|| PathBuf::from(RUN_DIR));
    if !RunLock::is_used(&run_dir) {
        return None;
    }
    // An instance that runs has its history in its own hands.
    let _lock = RunLock::acquire(&run_dir).ok()?;
    let history = History::open(&run_dir);
    if history.file() != Some(&*of_file(path)) {
        return None;
    }
    let number = history.current()?.number;
    let text = history.text(number).ok()?;
    let config = Config::parse_with(&text, &path.display().to_string(), plane).ok()?;
    let pins = pin_directory(&config.balancer.name);
    let forwards = KernelPlane::left_in(&pins).is_ok_and(|left| left.is_some());
    (forwards && config.balancer.run_dir == run_dir).then_some((config, number))
}

/// Whether a start failed by what its file asks for.
pub fn is_about_file(error: &EngineError) -> bool {
    use EngineError::{Config, Conflict, Interfaces, Invalid, Limit};
    matches!(error, Config(_) | Conflict(_) | Interfaces { .. } | Invalid(_) | Limit { .. })
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
    fn without_an_earlier_run_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.toml");
        let run_dir = folder.path().join("run");
        fs::write(&file, format!("[balancer]\nrun_dir = \"{}\"\n", run_dir.display())).unwrap();
        assert!(load(&file, None).is_err());
        assert!(!run_dir.exists(), "nothing is made");
    }
}
