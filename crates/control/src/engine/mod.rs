//! The engine: one thread that owns the data plane, the services and their states.
//!
//! Everything that changes tables goes through it, one thing after the other, so there is nothing
//! to lock. Health checks and the API run elsewhere and send it [`Command`]s.

mod commands;
mod document;
mod explain;
mod service;
mod status;
mod update;
mod upkeep;

pub use commands::{Command, Sender};
pub use explain::Explanation;
pub use status::{BackendStatus, CheckStatus, OutcomeStatus, ServiceStatus, Status};

use crate::config::{Config, XdpMode};
use crate::store::{Document as Store, RunLock, StoreError};
use document::Document;
use service::ServiceRuntime;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{error, info, warn};
use weir_dataplane::{KernelPlane, Limits, Reports};
use weir_steering::ServiceState;

/// Where instances pin their data planes.
pub const PIN_ROOT: &str = "/sys/fs/bpf/weir";

/// How long a command may have to wait for the engine to look.
const TICK: Duration = Duration::from_millis(10);
const RETRY_AFTER: Duration = Duration::from_secs(2);
const UNREPORTED_EVERY: Duration = Duration::from_secs(1);
const NEXT_HOPS_EVERY: Duration = Duration::from_secs(5);
/// After a change: a neighbour that has just been asked for answers within milliseconds, and
/// without it a backend that the FIB has no answer for cannot be reached.
const NEXT_HOPS_SOON: Duration = Duration::from_millis(100);
/// For so long; one that has not answered by then is not there.
const NEXT_HOPS_TRIES: u32 = 20;
const SWEEP_EVERY: Duration = Duration::from_secs(10);
const SEEN_GENERATION_EVERY: Duration = Duration::from_secs(30);

/// What can go wrong in the engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The data plane.
    #[error(transparent)]
    Plane(#[from] weir_dataplane::Error),
    /// The run directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A table could not be built.
    #[error(transparent)]
    Build(#[from] weir_steering::BuildError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// A request that cannot be granted; nothing has changed.
    #[error("{0}")]
    Refused(String),
}

/// The engine. Lives on one thread.
pub struct Engine {
    config: Config,
    config_path: PathBuf,
    plane: KernelPlane,
    reports: Reports,
    services: BTreeMap<String, ServiceRuntime>,
    /// Names of the services by number.
    names: HashMap<u32, String>,
    document: Document,
    fresh_pins: HashSet<ServiceState>,
    unreachable: HashSet<IpAddr>,
    /// How often next hops are looked up soon, because one is not known yet.
    hop_tries: u32,
    health: crate::health::Checker,
    started: Instant,
    resumed: bool,
    warnings: Vec<String>,
    attached: Vec<weir_dataplane::Attached>,
    events_taken: u64,
    retry_at: Option<Instant>,
    _lock: RunLock,
}

/// Directory of an instance's pins.
pub fn pin_directory(name: &str) -> PathBuf {
    PathBuf::from(PIN_ROOT).join(name)
}

impl Engine {
    /// Opens or resumes the data plane, restores the states, publishes tables, and only then
    /// attaches to the interfaces: a packet never meets a data plane that knows less than the one
    /// before.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn open(
        config: Config,
        config_path: PathBuf,
        health: crate::health::Checker,
    ) -> Result<Self, EngineError> {
        let run_dir = &config.balancer.run_dir;
        let lock = RunLock::acquire(run_dir)?;
        mount_bpffs()?;
        let document: Document = Store::load(run_dir.join("runtime.json"))?.unwrap_or_default();
        let limits = limits(&config);
        let (plane, report) =
            KernelPlane::open(Some(&pin_directory(&config.balancer.name)), &limits)?;
        let reports = plane.reports()?;
        let warnings = report
            .kept_limits
            .iter()
            .map(|kept| format!("limit kept from an earlier run until `weir unload`: {kept}"))
            .collect();
        let mut engine = Self {
            plane,
            reports,
            services: BTreeMap::new(),
            names: HashMap::new(),
            document,
            fresh_pins: HashSet::new(),
            unreachable: HashSet::new(),
            hop_tries: 0,
            health,
            started: Instant::now(),
            resumed: report.resumed,
            warnings,
            attached: Vec::new(),
            events_taken: 0,
            retry_at: None,
            config: config.clone(),
            config_path,
            _lock: lock,
        };
        engine.warnings.iter().for_each(|warning| warn!("{warning}"));
        engine.apply(&config, true)?;
        engine.attach(&config)?;
        Ok(engine)
    }

    fn attach(&mut self, config: &Config) -> Result<(), EngineError> {
        let mode = match config.balancer.mode {
            XdpMode::Auto => weir_dataplane::XdpMode::Auto,
            XdpMode::Native => weir_dataplane::XdpMode::Native,
            XdpMode::Generic => weir_dataplane::XdpMode::Generic,
        };
        self.attached = self.plane.attach(&config.balancer.interfaces, mode)?;
        for attached in &self.attached {
            let name = &attached.interface.name;
            info!(interface = name, generic = attached.generic, "attached");
            if attached.generic {
                let warning = format!(
                    "{name} has no native XDP (or it was not asked for): packets are handled in \
                     the network stack, several times slower"
                );
                warn!("{warning}");
                self.warnings.push(warning);
            }
        }
        Ok(())
    }

    /// Runs until told to stop. The data plane goes on without it.
    ///
    /// # Errors
    /// [`EngineError`] only for what makes going on pointless; refused requests are answered.
    pub fn run(
        mut self,
        mut commands: tokio::sync::mpsc::Receiver<Command>,
    ) -> Result<(), EngineError> {
        let mut timers = Timers::new();
        loop {
            tolerate("read reports", self.drain_reports(Some(TICK)));
            loop {
                match commands.try_recv() {
                    Ok(Command::Stop) => return self.save(),
                    Ok(command) => self.handle(command),
                    Err(tokio::sync::mpsc::error::TryRecvError::Empty) => break,
                    Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => {
                        return self.save();
                    }
                }
            }
            self.upkeep(&mut timers);
        }
    }

    /// What is due. A failure is logged and tried again later: the tables that are published go on
    /// working, and nothing is gained by giving up.
    fn upkeep(&mut self, timers: &mut Timers) {
        if self.retry_at.is_none_or(|at| Instant::now() >= at) {
            let result = self.publish_dirty();
            self.retry_at = result.is_err().then(|| Instant::now() + RETRY_AFTER);
            tolerate("publish", result);
        }
        if timers.unreported.due(UNREPORTED_EVERY) {
            let result = self.take_unreported().and_then(|()| self.fold_pending());
            tolerate("take unreported flows", result);
        }
        if self.hop_tries > 0 && timers.missing_hops.due(NEXT_HOPS_SOON) {
            tolerate("look up missing next hops", self.refresh_next_hops(true));
        }
        if timers.next_hops.due(NEXT_HOPS_EVERY) {
            tolerate("look up next hops", self.refresh_next_hops(false));
        }
        if timers.sweep.due(SWEEP_EVERY) {
            tolerate("forget idle flows", self.sweep());
        }
        if timers.seen.due(SEEN_GENERATION_EVERY) {
            self.plane.next_seen_generation();
        }
    }

    /// Writes down what a restart must know.
    fn save(&mut self) -> Result<(), EngineError> {
        self.document.services =
            self.services.iter().map(|(name, s)| (name.clone(), s.saved())).collect();
        let path = self.config.balancer.run_dir.join("runtime.json");
        Ok(Store::save(path, &self.document)?)
    }

    /// Seconds since the epoch, which outlive a restart.
    fn now(&self) -> u32 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as u32)
    }
}

fn tolerate(what: &str, result: Result<(), EngineError>) {
    if let Err(error) = result {
        error!(%error, "cannot {what}");
    }
}

/// What is due when.
struct Timers {
    unreported: Timer,
    next_hops: Timer,
    missing_hops: Timer,
    sweep: Timer,
    seen: Timer,
}

impl Timers {
    fn new() -> Self {
        let now = || Timer(Instant::now());
        Self { unreported: now(), next_hops: now(), missing_hops: now(), sweep: now(), seen: now() }
    }
}

struct Timer(Instant);

impl Timer {
    fn due(&mut self, every: Duration) -> bool {
        let due = self.0.elapsed() >= every;
        if due {
            self.0 = Instant::now();
        }
        due
    }
}

fn limits(config: &Config) -> Limits {
    let given = &config.limits;
    Limits {
        services: given.services,
        table_bytes: given.table_bytes.into(),
        backends: given.backends,
        pending_flows: given.pending_flows,
        unreported_flows: given.unreported_flows,
        tracked_flows: given.tracked_flows,
        udp_flows: given.udp_flows,
        event_ring_bytes: given.event_ring_bytes,
        ..Limits::default()
    }
}

/// The BPF file system, where pins live.
fn mount_bpffs() -> Result<(), EngineError> {
    const BPF_FS_MAGIC: libc::c_long = 0xcafe_4a11;
    let path = "/sys/fs/bpf";
    let mounted =
        nix::sys::statfs::statfs(path).is_ok_and(|fs| fs.filesystem_type().0 == BPF_FS_MAGIC);
    if mounted {
        return Ok(());
    }
    nix::mount::mount(Some("bpf"), path, Some("bpf"), nix::mount::MsFlags::empty(), None::<&str>)
        .map_err(|error| {
            EngineError::Refused(format!(
                "the BPF file system is not mounted at {path} and cannot be ({error}); as root: \
             mount -t bpf bpf {path}"
            ))
        })
}
