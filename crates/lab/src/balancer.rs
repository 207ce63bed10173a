//! The balancer under test, used as any operator would use it: a configuration file, a process,
//! and the command line over its socket.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::api;
use crate::error::{Doing, Error, Result};
use crate::fleet::Happening;
use crate::lab::Lab;
use crate::narrow::Told;
use crate::quic;
use crate::rules::Ruled;
use crate::topology::{self, ECHO_PORT, QUIC_PORT, Topology, VIP4, VIP6, WEB_PORT};
use weir_testbed::interrupt::sleep;
use weir_testbed::{NetNs, process};

/// The services that the lab configures; every change of the pool is made to all three, and to that of QUIC where
/// there is one ([`BalancerSpec::quic`]).
pub const SERVICES: [&str; 3] = ["web4", "web6", "echo4"];
/// Where a balancer pins its BPF objects, in a directory of its own name.
const PINS: &str = "/sys/fs/bpf/weir";
const POLL: Duration = Duration::from_millis(50);

/// Which of several balancers of a lab it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Node {
    /// The only one.
    #[default]
    Balancer,
    /// One of those in front, whose backends are the stateful ones.
    Front(usize),
    /// A stateful one, whose backends are the lab's.
    Stateful(usize),
    /// One of a fleet, whose backends are the lab's.
    Member(usize),
}

impl Node {
    /// What its names end in.
    fn suffix(self) -> String {
        match self {
            Self::Balancer => String::new(),
            Self::Front(index) => format!("-f{index}"),
            Self::Stateful(index) => format!("-s{index}"),
            Self::Member(index) => format!("-m{index}"),
        }
    }

    fn netns(self, lab: &Lab) -> &NetNs {
        match self {
            Self::Balancer => lab.balancer(),
            Self::Front(index) | Self::Member(index) => lab.front(index),
            Self::Stateful(index) => &lab.stateful()[index],
        }
    }

    /// Whether its backends are balancers.
    fn leads_to_balancers(self) -> bool {
        matches!(self, Self::Front(_))
    }
}

/// How the balancer is run.
#[derive(Clone, Debug)]
pub struct BalancerSpec {
    /// Path of the program `weir` that is under test.
    pub weir: PathBuf,
    /// Steering method of the services, as the configuration file has it: `concury`, `jet`.
    pub method: String,
    /// That of the services of UDP, where it is another.
    pub udp_method: Option<String>,
    /// Further lines of TOML for each `[[service]]`.
    pub service_lines: String,
    /// Further lines of TOML for each `[[service]]` of TCP.
    pub tcp_lines: String,
    /// Further lines of TOML for `[balancer]`, and tables that may follow it, such as `[limits]`.
    pub balancer_lines: String,
    /// TOML at the end of the file: further services. Changes of the pool leave them alone.
    pub more_services: String,
    /// Whether there is a service of QUIC, too, which is led by connection ids.
    pub quic: bool,
    /// Whether each service's backends have addresses of the other family, which a tunnel takes.
    pub other_family: bool,
    /// Port at which balancers in front ask the stateful ones whether they are there, which serve their
    /// metrics at it. Without one nobody asks.
    pub member_port: Option<u16>,
    /// Which balancer of the lab.
    pub node: Node,
    /// How many backends the pool begins with: the lab's first ones.
    pub pool: usize,
    /// Time from one health check of a backend to the next; the time-out is 4/5 of it, and two
    /// in a row bring a backend up or down.
    pub check_interval: Duration,
    /// Longest wait for the balancer to be ready.
    pub patience: Duration,
}

impl BalancerSpec {
    /// `weir` with the method `concury`, the first `pool` backends, and a check every half second.
    pub fn new(weir: impl Into<PathBuf>, pool: usize) -> Self {
        Self {
            weir: weir.into(),
            method: "concury".into(),
            udp_method: None,
            service_lines: String::new(),
            tcp_lines: String::new(),
            balancer_lines: String::new(),
            more_services: String::new(),
            quic: false,
            other_family: false,
            member_port: None,
            node: Node::Balancer,
            pool,
            check_interval: Duration::from_millis(500),
            patience: Duration::from_secs(120),
        }
    }

    /// The names of the services that every change of the pool is made to.
    pub fn services(&self) -> impl Iterator<Item = &'static str> {
        SERVICES.into_iter().chain(self.quic.then_some(quic::SERVICE))
    }
}

/// The table `[dpdk]` of a balancer whose interfaces are taps ([`LabSpec::taps`](crate::LabSpec::taps)): packet
/// sockets at its cables, and memory without huge pages, of which a machine may have none.
pub fn dpdk(topology: Topology) -> String {
    let device = |(number, interface): (usize, &&str)| {
        format!("\"net_af_packet{number},iface={}\"", topology::device_of(interface))
    };
    let devices: Vec<String> = topology.interfaces().iter().enumerate().map(device).collect();
    format!("\n[dpdk]\ndevices = [{}]\nhuge_pages = false\n", devices.join(", "))
}

/// What can be done to the pool; [`Balancer`] does it to a real one. A backend is named by its
/// position in the lab.
pub trait PoolControl: Send + Sync {
    /// Adds a backend to the pool, with this weight.
    fn add(&self, backend: usize, weight: u32) -> Result<()>;
    /// Removes a backend from the pool; its connections are given up.
    fn remove(&self, backend: usize) -> Result<()>;
    /// Keeps new connections away from a backend; those that it has stay.
    fn drain(&self, backend: usize) -> Result<()>;
    /// Lets a draining backend have new connections again.
    fn undrain(&self, backend: usize) -> Result<()>;
    /// Changes the weight of a backend, by a command.
    fn set_weight(&self, backend: usize, weight: u32) -> Result<()>;
    /// Changes the weight of a backend in the configuration file, and has it read again.
    fn reload_with_weight(&self, backend: usize, weight: u32) -> Result<()>;
    /// Kills the control plane with SIGKILL, and starts it again after `away`.
    fn crash(&self, away: Duration) -> Result<()>;
    /// Does what checks of health are to notice within their time: not while a control plane is away, which
    /// nobody's packets are told of anything by.
    fn while_watched(&self, work: &mut dyn FnMut()) {
        work();
    }
    /// Whether nothing new is sent to a backend that is dead, as the balancer says.
    fn has_noticed(&self, backend: usize) -> Result<bool>;
    /// How many changes were refused at first for a reason that passes, and made later, by the reasons; none but in a
    /// fleet.
    fn refused(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }
    /// What may happen to it besides, and how often it has.
    fn happened(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::new()
    }
    /// The same, in the order of its ends.
    fn diary(&self) -> Vec<Happening> {
        Vec::new()
    }
    /// What became of rules of a card so far; none if there are to be none, or nobody can be asked.
    fn ruled(&self) -> Option<Ruled> {
        None
    }
    /// What was said so far of packets that are too large; none if nobody can be asked.
    fn told(&self) -> Option<Told> {
        None
    }
    /// Says how loaded a backend is. Returns whether it is in the pool.
    fn tell_load(&self, backend: usize, load: f64) -> Result<bool>;
}

#[derive(Clone, Copy, Debug)]
struct Member {
    weight: u32,
    drain: bool,
}

#[derive(Debug)]
struct State {
    process: Option<Child>,
    pool: BTreeMap<usize, Member>,
}

/// A running `weir run` in the balancer's namespace. Dropping it kills it.
#[derive(Debug)]
pub struct Balancer {
    lab: Arc<Lab>,
    spec: BalancerSpec,
    name: String,
    config: PathBuf,
    run_dir: PathBuf,
    log: PathBuf,
    state: Mutex<State>,
}

impl Balancer {
    /// Writes the configuration, starts the balancer and waits until it says that it is ready and
    /// a client reaches the service through it.
    ///
    /// # Errors
    /// [`Error::NotReady`] with the end of its log if it ends or does not become ready.
    pub fn start(lab: &Arc<Lab>, spec: BalancerSpec) -> Result<Self> {
        let balancer = Self::start_alone(lab, spec)?;
        lab.await_service(balancer.spec.patience)?;
        Ok(balancer)
    }

    /// The same without waiting for the service: other balancers may stand before it.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_alone(lab: &Arc<Lab>, spec: BalancerSpec) -> Result<Self> {
        let most = match spec.node.leads_to_balancers() {
            true => lab.stateful().len(),
            false => lab.backends().len(),
        };
        if spec.pool == 0 || spec.pool > most {
            let wrong = format!("a pool of {} backends: the lab has {most}", spec.pool);
            return Err(Error::BadSpec(wrong));
        }
        let suffix = spec.node.suffix();
        let name = format!("wl{}{suffix}", lab.id());
        let run_dir = lab.directory().join(format!("weir{suffix}"));
        // Nobody else may write there, whatever the umask is.
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&run_dir);
        made.doing(|| format!("creating {}", run_dir.display()))?;
        lab.remove_later(&Path::new(PINS).join(&name))?;
        let member = Member { weight: 1, drain: false };
        let pool = (0..spec.pool).map(|backend| (backend, member)).collect();
        let balancer = Self {
            name,
            config: lab.directory().join(format!("weir{suffix}.toml")),
            log: lab.directory().join(format!("weir{suffix}.log")),
            run_dir,
            lab: Arc::clone(lab),
            spec,
            state: Mutex::new(State { process: None, pool }),
        };
        balancer.write_config()?;
        balancer.launch()?;
        Ok(balancer)
    }

    /// Path of the configuration file, which follows the changes of the pool.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Directory of the BPF objects that it pins.
    pub fn pins(&self) -> PathBuf {
        Path::new(PINS).join(&self.name)
    }

    /// The name of the instance.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it is run.
    pub fn spec(&self) -> &BalancerSpec {
        &self.spec
    }

    /// The program that it is.
    pub fn program(&self) -> &Path {
        &self.spec.weir
    }

    /// Its run directory.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join("weir.sock")
    }

    /// Path of the file to which standard output and standard error are appended.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Process number of `weir run`; `None` while none runs.
    pub fn pid(&self) -> Option<u32> {
        self.lock().process.as_ref().map(Child::id)
    }

    /// Runs `weir ARGUMENTS --socket PATH` and returns what it printed.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        let mut weir = Command::new(&self.spec.weir);
        weir.args(arguments).arg("--socket").arg(self.socket());
        Ok(process::run(weir, "")?)
    }

    /// What `weir status --json` prints, parsed.
    pub fn status(&self) -> Result<serde_json::Value> {
        let text = self.command(&["status", "--json"])?;
        serde_json::from_str(&text).map_err(|error| Error::BadFile {
            path: "weir status --json".into(),
            what: error.to_string(),
        })
    }

    /// The same as [`status`](Self::status), asked at its socket, without a process.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn answer(&self) -> Result<serde_json::Value> {
        api::get(&self.socket(), "/v1/status")
    }

    /// What it says of its fleet, asked without a process: it takes a millisecond.
    pub(crate) fn fleet(&self) -> Result<serde_json::Value> {
        api::get(&self.socket(), "/v1/fleet")
    }

    /// Starts the process, if none runs, and waits until it answers at its socket.
    pub fn launch(&self) -> Result<()> {
        {
            let mut state = self.lock();
            if state.process.is_some() {
                return Ok(());
            }
            let log = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&self.log)
                .doing(|| format!("opening {}", self.log.display()))?;
            let second = log.try_clone().doing(|| format!("opening {}", self.log.display()))?;
            let mut weir = self.spec.node.netns(&self.lab).command(&self.spec.weir)?;
            weir.args(["run", "--config"])
                .arg(&self.config)
                .stdin(Stdio::null())
                .stdout(log)
                .stderr(second);
            state.process = Some(process::spawn(weir)?);
        }
        self.await_ready()
    }

    fn await_ready(&self) -> Result<()> {
        let started = Instant::now();
        while self.status().is_err() {
            let ended = self.exit_status();
            if ended.is_some() || started.elapsed() > self.spec.patience {
                let ended = ended.map_or(String::new(), |status| format!(" ({status})"));
                return Err(Error::NotReady {
                    what: "the balancer".into(),
                    seconds: started.elapsed().as_secs_f64(),
                    detail: format!("{ended}; its log ends:\n{}", tail(&self.log, 20)),
                });
            }
            if !sleep(POLL) {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// How the process ended, in words; `None` if it still runs, or there is none.
    pub fn exit_status(&self) -> Option<String> {
        let mut state = self.lock();
        let status = state.process.as_mut()?.try_wait().ok()??;
        Some(status.to_string())
    }

    /// Asks it to end (SIGTERM) and waits; returns its exit status in words, or `None` if it had
    /// to be killed after `patience`.
    pub fn stop(&self, patience: Duration) -> Option<String> {
        self.signal(Signal::SIGTERM);
        let end = Instant::now() + patience;
        while Instant::now() < end {
            if let Some(status) = self.exit_status() {
                self.lock().process = None;
                return Some(status);
            }
            std::thread::sleep(POLL / 5);
        }
        self.kill();
        None
    }

    /// Kills it with SIGKILL; what it attached stays attached.
    pub fn kill(&self) {
        if let Some(mut child) = self.lock().process.take() {
            process::kill(&mut child);
        }
    }

    /// Makes it read its configuration again (SIGHUP).
    pub fn hang_up(&self) {
        self.signal(Signal::SIGHUP);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // It may have ended by itself, which its next use shows.
            let _ = kill(Pid::from_raw(pid as i32), signal);
        }
    }

    /// Runs a command for each service; `arguments` gets its name.
    fn for_all(&self, arguments: impl Fn(&str) -> Vec<String>) -> Result<()> {
        self.spec.services().try_for_each(|service| {
            let arguments = arguments(service);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            self.command(&arguments).map(drop)
        })
    }

    /// Notes a change of the pool, and writes it to the configuration file too: a balancer that
    /// is started again or reloaded finds the pool there as it left it.
    fn note(&self, change: impl FnOnce(&mut BTreeMap<usize, Member>)) -> Result<()> {
        change(&mut self.lock().pool);
        self.write_config()
    }

    fn write_config(&self) -> Result<()> {
        let topology = self.lab.spec().topology;
        let spec = &self.spec;
        let text = config_text(&self.name, topology, &self.run_dir, spec, &self.lock().pool);
        let fresh = self.config.with_extension("toml.new");
        let written = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &self.config));
        Ok(written.doing(|| format!("writing {}", self.config.display()))?)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolControl for Balancer {
    fn add(&self, backend: usize, weight: u32) -> Result<()> {
        self.for_all(|service| {
            let address = address(service, &self.spec, backend).to_string();
            let (name, weight) = (format!("b{backend}"), weight.to_string());
            let mut all = words(&["backend", "add", service, &name, &address, "--weight", &weight]);
            let port = own_port(service, self.lab.spec().topology);
            all.extend(port.into_iter().flat_map(|port| ["--port".into(), port.to_string()]));
            all
        })?;
        let member = Member { weight, drain: false };
        self.note(|pool| {
            pool.insert(backend, member);
        })
    }

    fn remove(&self, backend: usize) -> Result<()> {
        self.for_all(|service| words(&["backend", "remove", service, &format!("b{backend}")]))?;
        self.note(|pool| {
            pool.remove(&backend);
        })
    }

    fn drain(&self, backend: usize) -> Result<()> {
        self.for_all(|service| words(&["backend", "drain", service, &format!("b{backend}")]))?;
        self.note(|pool| {
            pool.entry(backend).and_modify(|member| member.drain = true);
        })
    }

    fn undrain(&self, backend: usize) -> Result<()> {
        let name = format!("b{backend}");
        self.for_all(|service| words(&["backend", "drain", service, &name, "--undo"]))?;
        self.note(|pool| {
            pool.entry(backend).and_modify(|member| member.drain = false);
        })
    }

    fn set_weight(&self, backend: usize, weight: u32) -> Result<()> {
        let (name, text) = (format!("b{backend}"), weight.to_string());
        self.for_all(|service| words(&["backend", "weight", service, &name, &text]))?;
        self.note(|pool| {
            pool.entry(backend).and_modify(|member| member.weight = weight);
        })
    }

    fn reload_with_weight(&self, backend: usize, weight: u32) -> Result<()> {
        self.note(|pool| {
            pool.entry(backend).and_modify(|member| member.weight = weight);
        })?;
        self.hang_up();
        Ok(())
    }

    fn crash(&self, away: Duration) -> Result<()> {
        self.kill();
        sleep(away);
        self.launch()
    }

    fn has_noticed(&self, backend: usize) -> Result<bool> {
        let status = self.status()?;
        let services = status["services"].as_array().into_iter().flatten();
        let mut named = services
            .flat_map(|service| service["backends"].as_array().into_iter().flatten())
            .filter(|one| one["name"].as_str() == Some(&format!("b{backend}")));
        Ok(named.all(|one| one["state"] == "down"))
    }

    fn ruled(&self) -> Option<Ruled> {
        Ruled::of(&self.socket())
    }

    fn told(&self) -> Option<Told> {
        Told::of(&self.socket())
    }

    fn tell_load(&self, backend: usize, load: f64) -> Result<bool> {
        if !self.lock().pool.contains_key(&backend) {
            return Ok(false);
        }
        // By the API: a process for each load would be a load itself.
        let body = format!("{{\"load\": {load}}}");
        self.spec.services().try_for_each(|service| {
            let path = format!("/v1/services/{service}/backends/b{backend}/load");
            api::put(&self.socket(), &path, &body)
        })?;
        Ok(true)
    }
}

/// Whether all of several balancers have noticed.
pub(crate) fn all_noticed<'a>(
    mut balancers: impl Iterator<Item = &'a Balancer>,
    backend: usize,
) -> Result<bool> {
    balancers.try_fold(true, |all, one| Ok(all && one.has_noticed(backend)?))
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// Address of a backend in one of [`SERVICES`].
pub(crate) fn address(service: &str, spec: &BalancerSpec, backend: usize) -> IpAddr {
    let v6 = service.ends_with('6') != spec.other_family;
    match (spec.node.leads_to_balancers(), v6) {
        (false, false) => topology::backend4(backend).into(),
        (false, true) => topology::backend6(backend).into(),
        (true, false) => topology::stateful4(backend).into(),
        (true, true) => topology::stateful6(backend).into(),
    }
}

/// The port of a backend of one of [`SERVICES`], where that is another than the service's.
fn own_port(service: &str, topology: Topology) -> Option<u16> {
    let port = if service.starts_with("echo") { topology.echo_port() } else { topology.web_port() };
    topology.is_nat().then_some(port)
}

fn config_text(
    name: &str,
    topology: Topology,
    run_dir: &Path,
    spec: &BalancerSpec,
    pool: &BTreeMap<usize, Member>,
) -> String {
    let interfaces = topology.interfaces();
    let sources = match topology {
        Topology::FullNat => {
            let (v4, v6) = (topology::BALANCER4, topology::BALANCER6);
            format!("nat_sources = [\"{v4}\", \"{v6}\"]\n")
        }
        _ => String::new(),
    };
    let mut text = format!(
        "[balancer]\nname = \"{name}\"\ninterfaces = {interfaces:?}\nrun_dir = \"{}\"\n{sources}{}",
        run_dir.display(),
        lines(&spec.balancer_lines)
    );
    for service in spec.services() {
        let of_web = || format!("port = {}\n", topology.web_port());
        let (vip, protocol, port, check_port): (IpAddr, _, _, _) = match service {
            "web4" => (VIP4.into(), "tcp", WEB_PORT, String::new()),
            "web6" => (VIP6.into(), "tcp", WEB_PORT, String::new()),
            quic::SERVICE => (VIP4.into(), "udp", QUIC_PORT, of_web()),
            _ => (VIP4.into(), "udp", ECHO_PORT, of_web()),
        };
        let members = spec.node.leads_to_balancers();
        let check_port = match spec.member_port.filter(|_| members) {
            Some(port) => format!("port = {port}\n"),
            None => check_port,
        };
        let check = match members && spec.member_port.is_none() {
            // Nothing listens at a balancer's own address.
            true => "enabled = false\n".to_owned(),
            false => format!(
                "interval = \"{}ms\"\ntimeout = \"{}ms\"\nrise = 2\nfall = 2\n{check_port}",
                spec.check_interval.as_millis(),
                (spec.check_interval * 4 / 5).as_millis(),
            ),
        };
        let _ = write!(
            text,
            "\n[[service]]\nname = \"{service}\"\nvip = \"{vip}\"\nprotocol = \"{protocol}\"\n\
             port = {port}\nmethod = \"{}\"\n{}{}\n[service.check]\n{check}",
            spec.udp_method.as_ref().filter(|_| protocol == "udp").unwrap_or(&spec.method),
            lines(&spec.service_lines),
            lines(if protocol == "tcp" { &spec.tcp_lines } else { "" }),
        );
        if service == quic::SERVICE {
            let _ = write!(text, "\n{}", quic::config(0, [(0, quic::KEY)]));
        }
        for (backend, member) in pool {
            let _ = write!(
                text,
                "\n[[service.backend]]\nname = \"b{backend}\"\naddress = \"{}\"\nweight = {}\n",
                address(service, spec, *backend),
                member.weight
            );
            if let Some(port) = own_port(service, topology) {
                let _ = writeln!(text, "port = {port}");
            }
            if member.drain {
                text.push_str("drain = true\n");
            }
        }
    }
    text.push_str(&lines(&spec.more_services));
    text
}

/// The text with a line end, if it has a line.
fn lines(text: &str) -> String {
    match text.trim_end() {
        "" => String::new(),
        text => format!("{text}\n"),
    }
}

fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_every_service_and_the_pool_as_it_is() {
        let spec = BalancerSpec {
            service_lines: "dcode_bits = 10".into(),
            ..BalancerSpec::new("weir", 2)
        };
        let member = |weight, drain| Member { weight, drain };
        let pool = BTreeMap::from([(0, member(1, false)), (7, member(3, true))]);
        let text = config_text("wlabcd", Topology::L2, Path::new("/run/x"), &spec, &pool);
        assert!(text.starts_with(
            "[balancer]\nname = \"wlabcd\"\ninterfaces = [\"eth0\"]\nrun_dir = \"/run/x\"\n\n"
        ));
        assert_eq!(text.matches("[[service]]").count(), 3);
        assert_eq!(text.matches("dcode_bits = 10\n").count(), 3);
        assert_eq!(text.matches("drain = true").count(), 3);
        assert!(text.contains(
            "[[service]]\nname = \"web6\"\nvip = \"fd77::100\"\nprotocol = \"tcp\"\nport = 80\n\
             method = \"concury\"\ndcode_bits = 10\n\n[service.check]\ninterval = \"500ms\"\n\
             timeout = \"400ms\"\nrise = 2\nfall = 2\n\n[[service.backend]]\nname = \"b0\"\n\
             address = \"fd77::2:1\"\nweight = 1\n\n[[service.backend]]\nname = \"b7\"\n\
             address = \"fd77::2:8\"\nweight = 3\ndrain = true\n"
        ));
        assert!(text.contains("protocol = \"udp\"\nport = 5353\n"));
        assert_eq!(text.matches("fall = 2\nport = 80\n").count(), 1);
        assert!(!text.contains("quic"), "{text}");
        let spec = BalancerSpec { quic: true, udp_method: Some("jet".into()), ..spec };
        let text = config_text("wlabcd", Topology::Fleet, Path::new("/run/x"), &spec, &pool);
        assert_eq!(text.matches("[[service]]").count(), 4);
        assert_eq!(text.matches("drain = true").count(), 4);
        assert!(text.contains(
            "[[service]]\nname = \"quic4\"\nvip = \"10.77.0.100\"\nprotocol = \"udp\"\nport = 4433\n\
             method = \"jet\"\ndcode_bits = 10\n\n[service.check]\n"
        ));
        assert!(text.contains("\nfall = 2\nport = 80\n\n[service.quic]\nissue = 0\n"));
    }
}
