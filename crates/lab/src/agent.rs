//! `weir agent` of a backend: as any operator would run it, a process in the backend's namespace.

use std::fs::{self, OpenOptions};
use std::net::{IpAddr, SocketAddr};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use crate::error::{Doing, Error, Result};
use crate::topology::{INTERFACE, VIP4, VIP6, WEB_PORT, backend4, backend6, front4};
use weir_rpc::pki::{self, Request, Role};
use weir_testbed::NetNs;
use weir_testbed::interrupt::sleep;
use weir_testbed::process;

/// Where agents pin their maps, in a directory for each network namespace.
const PINS: &str = "/sys/fs/bpf/weir-agent";
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);
/// Days that the lab's certificates are valid.
const CERTIFIED_DAYS: u32 = 30;

/// How the backends' agents are run.
#[derive(Clone, Debug)]
pub struct AgentSpec {
    /// Path of the program `weir`.
    pub weir: PathBuf,
    /// How packets come to backends on which nothing else has set anything, as `--forward` of `weir agent`
    /// has it; none: these are ready, and the agent writes cookies only.
    pub forward: Option<String>,
    /// They tell the balancers of a fleet what their backends hold, and are told how servers make QUIC's ids; most of
    /// them do nothing else.
    pub tells: bool,
    /// Those that tell write cookies into timestamps besides.
    pub stamps: bool,
    /// They are given so many of them only, and find the others by what those say; none: all.
    pub given: Option<usize>,
    /// What they say wrongly, those that tell.
    pub lies: Lies,
    /// Further arguments of `weir agent`, behind those that the lab gives it.
    pub arguments: Vec<String>,
}

/// What agents are made to say wrongly, so that it can be seen what becomes of such connections, and of no others. It
/// goes by the client's port alone, so that the lab knows which they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lies {
    /// Nothing is said of connections whose client's port this number divides.
    pub omit_one_in: Option<u16>,
    /// Connections whose client's port this number divides are said to have ended as soon as they are open.
    pub end_one_in: Option<u16>,
}

impl Lies {
    /// Whether agents are not to be believed at all times.
    pub fn any(self) -> bool {
        self != Self::default()
    }

    /// Whether a connection of TCP from this port is one that its agent fails to report as it is.
    pub fn meet(self, port: u16) -> bool {
        let all = [self.omit_one_in, self.end_one_in];
        all.into_iter().flatten().any(|number| number != 0 && port.is_multiple_of(number))
    }

    /// As `weir agent` has them.
    fn arguments(self) -> Vec<String> {
        let all = [("--omit-one-in", self.omit_one_in), ("--end-one-in", self.end_one_in)];
        let given =
            all.into_iter().filter_map(|(word, number)| Some([word.into(), number?.to_string()]));
        given.flatten().collect()
    }
}

impl AgentSpec {
    /// They write cookies into timestamps.
    pub fn new(weir: impl Into<PathBuf>) -> Self {
        let weir = weir.into();
        Self {
            weir,
            forward: None,
            tells: false,
            stamps: false,
            given: None,
            lies: Lies::default(),
            arguments: Vec::new(),
        }
    }

    /// They make bare backends ready.
    pub fn ready(weir: impl Into<PathBuf>, forward: impl Into<String>) -> Self {
        Self { forward: Some(forward.into()), ..Self::new(weir) }
    }

    /// They tell balancers, by certificates that the lab makes.
    pub fn telling(weir: impl Into<PathBuf>) -> Self {
        Self { tells: true, ..Self::new(weir) }
    }

    /// They write cookies into timestamps, and speak to balancers.
    pub fn stamping(weir: impl Into<PathBuf>) -> Self {
        Self { stamps: true, ..Self::telling(weir) }
    }

    /// What they do, and what they say when that is done.
    fn work(&self, state: &Path) -> (Vec<String>, &'static str) {
        let state_dir = state.display().to_string();
        if self.tells && !self.stamps {
            let words = vec!["--only-tell".into(), "--state-dir".into(), state_dir];
            return (words, "tells balancers");
        }
        let vips = [IpAddr::V4(VIP4), IpAddr::V6(VIP6)];
        let words = |words: &[&str]| words.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
        let services = vips.map(|vip| SocketAddr::new(vip, WEB_PORT).to_string());
        let services = services.iter().flat_map(|service| words(&["--service", service]));
        let vips = vips.map(|vip| vip.to_string());
        let vips = vips.iter().flat_map(|vip| words(&["--vip", vip]));
        if self.stamps {
            let own = words(&["--state-dir", &state_dir]);
            return (own.into_iter().chain(vips).chain(services).collect(), "ready at");
        }
        let Some(forward) = &self.forward else {
            let only = words(&["--timestamps-only"]);
            return (only.into_iter().chain(services).collect(), "writes cookies");
        };
        let others = words(&["--forward", forward, "--state-dir", &state_dir]);
        (others.into_iter().chain(vips).collect(), "ready at")
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
        let (work, ready) = spec.work(log.parent().unwrap_or(Path::new("/")));
        weir.arg("agent")
            .args(if spec.tells && !spec.stamps { &[][..] } else { &["--interface", INTERFACE] })
            .args(work)
            .args(spec.lies.arguments())
            .args(&spec.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        let mut agent = Self(process::spawn(weir)?);
        let started = Instant::now();
        loop {
            let text = fs::read_to_string(log).unwrap_or_default();
            let text = text.get(said..).unwrap_or_default();
            if text.contains(ready) {
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

/// Where balancers listen for agents.
pub(crate) const TOLD_AT: u16 = 4479;

/// Makes certificates for so many balancers of a fleet and so many agents, in a directory of the lab's.
pub(crate) fn certificates(lab: &Path, balancers: usize, backends: usize) -> Result<()> {
    let directory = lab.join("pki");
    let failed = |error: weir_rpc::pki::PkiError| Error::NotReady {
        what: "certificates".into(),
        seconds: 0.0,
        detail: format!(": {error}"),
    };
    pki::init(&directory, "lab", CERTIFIED_DAYS).map_err(failed)?;
    let issue = |name: String, role, addresses| {
        let request = Request { name, role, addresses, hosts: Vec::new(), days: CERTIFIED_DAYS };
        pki::issue(&directory, &directory, &request).map(drop).map_err(failed)
    };
    for index in 0..balancers {
        issue(format!("lb{index}"), Role::Balancer, vec![front4(index).into()])?;
    }
    for index in 0..backends {
        let addresses = vec![backend4(index).into(), backend6(index).into()];
        issue(format!("b{index}"), Role::Agent, addresses)?;
    }
    Ok(())
}

/// The arguments of a backend's agent that tells so many balancers.
pub(crate) fn telling(directory: &Path, index: usize, balancers: usize) -> Vec<String> {
    let file = |name: String| directory.join(name).display().to_string();
    let mut words = Vec::new();
    for balancer in 0..balancers {
        words.extend(["--balancer".into(), format!("{}:{TOLD_AT}", front4(balancer))]);
    }
    words.extend(["--certificate".into(), file(format!("b{index}.pem"))]);
    words.extend(["--key".into(), file(format!("b{index}.key"))]);
    words.extend(["--ca".into(), file("ca.pem".into())]);
    words
}

/// The table `[agents]` of a balancer that is told.
pub(crate) fn told(directory: &Path, index: usize) -> String {
    let file = |name: String| directory.join(name).display().to_string();
    format!(
        "\n[agents]\nlisten = \"{}:{TOLD_AT}\"\ncertificate = {:?}\nkey = {:?}\nca = {:?}\nlearn = \"60s\"\n",
        front4(index),
        file(format!("lb{index}.pem")),
        file(format!("lb{index}.key")),
        file("ca.pem".into()),
    )
}

/// Where an agent in this namespace pins its maps.
pub(crate) fn pins(netns: &NetNs) -> Result<PathBuf> {
    let number = netns
        .enter(|| fs::metadata("/proc/thread-self/ns/net").map(|network| network.st_ino()))?
        .doing(|| "looking at a network namespace".into())?;
    Ok(Path::new(PINS).join(format!("net-{number}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_agents_lie_about_are_known_by_their_ports() {
        let lies = Lies { omit_one_in: Some(5), end_one_in: Some(7) };
        let met: Vec<u16> = (1..=21).filter(|port| lies.meet(*port)).collect();
        assert_eq!(met, [5, 7, 10, 14, 15, 20, 21]);
        assert_eq!(lies.arguments(), ["--omit-one-in", "5", "--end-one-in", "7"]);
        assert!(lies.any() && !Lies::default().any());
        assert!((0..=21).all(|port| !Lies::default().meet(port)));
    }
}
