//! Configuration files, alone and with those that they include: whatever stands there is taken or refused, each
//! problem says in one line where it is, and what is taken means the same when it is written and read again.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use weir_control::config::{Config, ConfigError, PlaneKind, Table, in_one, place_of};

/// What the file is called.
const NAME: &str = "weir.toml";
/// Parts the texts of several files from each other.
const BREAK: &str = "\n#### ";
/// Files of one configuration.
const FILES: usize = 4;

/// A folder for each process, in memory where there is such a file system.
pub static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let root = if shared.is_dir() { shared } else { std::env::temp_dir() };
    let folder = root.join(format!("weir-fuzz-{}", std::process::id()));
    fs::create_dir_all(folder.join("conf.d")).expect("a folder for the files");
    folder
});

/// What is refused is refused with words that an operator can follow. `lines`: those of the longest file.
fn refused(error: &ConfigError, lines: usize) {
    assert!(!error.problems().is_empty(), "a text was read, so there is a problem in it");
    for problem in error.problems() {
        assert!(!problem.wrong.is_empty() && problem.column > 0, "{problem:?}");
        assert!(problem.line > 0, "{problem:?}");
        // Lists of prefixes are files, too, and are none of these.
        let own = problem.file.ends_with(".toml");
        assert!(!own || problem.line <= lines + 1, "{lines} lines: {problem:?}");
        let words = [&problem.field, &problem.wrong, &problem.right];
        assert!(!words.iter().any(|words| words.contains(char::is_control)), "{problem:?}");
    }
}

/// What is taken comes back: as a saved state has it, and as the history keeps its text.
fn taken(config: &Config, text: &str, plane: Option<PlaneKind>) {
    let json = serde_json::to_string(config).expect("it can be written");
    let again: Config = serde_json::from_str(&json).expect("what was written can be read");
    assert!(again == *config, "it comes back as it was: {json}");
    let kept =
        Config::parse_with(&in_one(text.to_owned()), NAME, plane).expect("what is kept is taken");
    assert!(kept == *config, "what is kept means the same");
    for service in &config.services {
        assert!(config.service(&service.name) == Some(service), "names are unique");
        assert!(service.method.fits(service.backends.len()).is_ok(), "the backends fit");
    }
}

fn whole(text: &str, plane: Option<PlaneKind>) {
    match Config::parse_with(text, NAME, plane) {
        Ok(config) => taken(&config, text, plane),
        Err(error) => refused(&error, text.lines().count()),
    }
}

/// A file, and behind each break one that stands in its folder `conf.d`.
fn several(text: &str) {
    let parts: Vec<&str> = text.split(BREAK).take(FILES).collect();
    let path = FOLDER.join(NAME);
    for (at, part) in parts.iter().enumerate() {
        let at = if at == 0 { path.clone() } else { FOLDER.join(format!("conf.d/{at}.toml")) };
        fs::write(at, part).expect("a file");
    }
    match Config::load(&path) {
        Ok(config) => {
            let text = Config::text(&path).expect("it was read before");
            taken(&config, &text, None);
            for service in &config.services {
                assert!(place_of(&path, Table::Service(&service.name), "vip").contains(".toml:"));
            }
        }
        Err(error) => {
            let lines = parts.iter().map(|part| part.lines().count()).max();
            refused(&error, lines.unwrap_or(0));
        }
    }
    for at in 1..parts.len() {
        fs::remove_file(FOLDER.join(format!("conf.d/{at}.toml"))).expect("it is there");
    }
}

/// Reads one; its first byte says how.
pub fn read(input: &[u8]) {
    let Some((which, bytes)) = input.split_first() else { return };
    let Ok(text) = str::from_utf8(bytes) else { return };
    match which % 6 {
        0 | 1 => whole(text, None),
        2 => whole(text, Some(PlaneKind::AfXdp)),
        3 => whole(text, Some(PlaneKind::Dpdk)),
        4 => whole(text, Some(PlaneKind::P4)),
        _ => several(text),
    }
}
