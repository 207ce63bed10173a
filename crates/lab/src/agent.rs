//! `weir agent` of a backend: as any operator would run it, a process in the backend's namespace.

use std::fs::{self, OpenOptions};
use std::net::{IpAddr, SocketAddr};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Doing, Error, Result};
use crate::topology::{INTERFACE, VIP4, VIP6, WEB_PORT};
use weir_testbed::NetNs;
use weir_testbed::interrupt::sleep;
use weir_testbed::process;

/// Where agents pin their maps, in a directory for each network namespace.
const PINS: &str = "/sys/fs/bpf/weir-agent";
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);

/// How the backends' agents are run.
#[derive(Clone, Debug)]
pub struct AgentSpec {
    /// Path of the program `weir`.
    pub weir: PathBuf,
    /// Further arguments of `weir agent --timestamps-only --interface eth0 --service ...`.
    pub arguments: Vec<String>,
}

impl AgentSpec {
    /// With the usual arguments.
    pub fn new(weir: impl Into<PathBuf>) -> Self {
        Self { weir: weir.into(), arguments: Vec::new() }
    }
}

/// A running agent. Dropping it kills it, and what it attached stays.
#[derive(Debug)]
pub(crate) struct Agent(Child);

impl Agent {
    /// Starts it and waits until it says that its programs are attached.
    pub(crate) fn start(spec: &AgentSpec, netns: &NetNs, log: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .doing(|| format!("opening {}", log.display()))?;
        let said = fs::metadata(log).map_or(0, |log| log.len()) as usize;
        let mut weir = netns.command(&spec.weir)?;
        let services = [IpAddr::V4(VIP4), IpAddr::V6(VIP6)];
        let services = services.map(|vip| SocketAddr::new(vip, WEB_PORT).to_string());
        weir.args(["agent", "--timestamps-only", "--interface", INTERFACE])
            .args(services.iter().flat_map(|service| ["--service", service]))
            .args(&spec.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        let mut agent = Self(process::spawn(weir)?);
        let started = Instant::now();
        loop {
            let text = fs::read_to_string(log).unwrap_or_default();
            let text = text.get(said..).unwrap_or_default();
            if text.contains("writes cookies") {
                return Ok(agent);
            }
            if agent.ended() || started.elapsed() > LIMIT {
                return Err(Error::NotReady {
                    what: format!("the agent in {}", netns.name()),
                    seconds: started.elapsed().as_secs_f64(),
                    detail: format!(": {}", text.trim()),
                });
            }
            if !sleep(POLL) {
                return Err(Error::Interrupted);
            }
        }
    }

    fn ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// SIGTERM; whether it ended by itself.
    pub(crate) fn stop(mut self) -> bool {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let started = Instant::now();
        while started.elapsed() < LIMIT {
            if self.ended() {
                return true;
            }
            std::thread::sleep(POLL);
        }
        false
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        process::kill(&mut self.0);
    }
}

/// Where an agent in this namespace pins its maps.
pub(crate) fn pins(netns: &NetNs) -> Result<PathBuf> {
    let number = netns
        .enter(|| fs::metadata("/proc/thread-self/ns/net").map(|network| network.st_ino()))?
        .doing(|| "looking at a network namespace".into())?;
    Ok(Path::new(PINS).join(format!("net-{number}")))
}
