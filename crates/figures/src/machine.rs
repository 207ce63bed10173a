//! What the measurements were made on.

use serde::Serialize;
use std::path::Path;
use std::process::Command;

/// Facts of the machine and of the program, as far as they can be found out.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Number of logical cores.
    pub cores: usize,
    /// Last-level cache, as the kernel writes it.
    pub cache: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Load average over the last minute before the run: more than a little disturbs times.
    pub load: String,
    /// Date and time of the run, UTC.
    pub date: String,
    /// Version of weir.
    pub version: &'static str,
    /// The commit of the working directory, if it is a checkout of weir.
    pub commit: Option<String>,
}

impl Machine {
    /// The facts of this machine, now.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let cpu = info
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|p| p.1))
            .unwrap_or("unknown");
        let cache = read("/sys/devices/system/cpu/cpu0/cache/index3/size");
        let first = |text: String| text.split_whitespace().next().unwrap_or("unknown").to_owned();
        Self {
            cpu: cpu.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cache: first(cache),
            kernel: first(read("/proc/sys/kernel/osrelease")),
            load: first(read("/proc/loadavg")),
            date: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            version: env!("CARGO_PKG_VERSION"),
            commit: commit(),
        }
    }

    /// (what, value), for a table.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        vec![
            ("processor", self.cpu.clone()),
            ("logical cores", self.cores.to_string()),
            ("last-level cache", self.cache.clone()),
            ("kernel", self.kernel.clone()),
            ("load before the run", self.load.clone()),
            ("date", self.date.clone()),
            ("weir", self.version.to_owned()),
            ("commit", self.commit.clone().unwrap_or_else(|| "unknown".into())),
        ]
    }
}

/// Only in a checkout of weir: another repository's commit would say nothing.
fn commit() -> Option<String> {
    if !Path::new("crates/steering").is_dir() {
        return None;
    }
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
