//! Processes `weir agent` on backends of a laboratory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A process. Dropping it kills it with SIGKILL, as a crash does.
pub struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    /// Runs a command that becomes an agent, and keeps what it says in a file.
    pub fn spawn(mut weir: Command, log: &Path) -> Self {
        let file = File::create(log).unwrap();
        weir.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Self { child: weir.spawn().unwrap(), log: log.to_owned() }
    }

    /// What it has said so far.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has said these words.
    pub fn says(&mut self, words: &str) {
        let log = self.log.clone();
        let child = &mut self.child;
        super::eventually(words, || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "it has ended, {ended:?}: {said}");
            said.contains(words)
        });
    }

    /// SIGTERM, and what it has said until its end.
    pub fn stop(mut self) -> String {
        let pid = self.child.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(killed.success());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.said());
        self.said()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
