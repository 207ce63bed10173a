//! The engine: one thread that owns the data plane, the services and their states.
//!
//! Everything that changes tables goes through it, one thing after the other, so there is nothing
//! to lock. Health checks and the API run elsewhere and send it [`Command`]s.

mod agents;
mod announce;
mod answers;
mod beyond;
mod by_id;
mod caps;
mod claims;
mod commands;
mod cookies;
mod discover;
mod document;
mod draft;
mod error;
mod events;
mod explain;
mod fleet;
mod follow;
mod forward;
mod full_nat;
mod half_open;
mod held;
mod history;
mod holder;
pub(crate) mod kept;
mod lately;
mod lent;
mod limits;
mod lines;
mod loads;
mod mailbox;
mod maintenance;
mod marks;
mod memory;
mod network;
mod numbers;
mod pins;
mod places;
mod plan;
mod prefixes;
mod reload;
mod room;
mod rows;
mod sample;
mod service;
mod shared;
mod shares;
mod slots;
mod snapshot;
mod sources;
mod status;
mod step;
mod switch;
#[cfg(test)]
mod tests;
mod told;
mod trace;
mod turn;
mod unrecorded;
mod update;
mod upkeep;
mod young;

pub use agents::{AgentStatus, Newcomer, Order, Over, Said};
pub use announce::announced_file;
pub use by_id::{IdStatus, QuicConfigStatus, QuicStatus};
pub use caps::NewFlowStatus;
pub use commands::{Asked, Command, Last};
pub use discover::{Answer, DiscoverStatus, Record, Sought};
pub use error::{EngineError, Kind};
pub use events::{Event, Events, Happening};
pub use explain::{Elsewhere, Explanation};
pub use fleet::{BalancerStatus, Begun, FleetNews, FleetStatus, Start, Ways, begin};
pub use follow::ConsistencyStatus;
pub use history::{Apply, HistoryReport};
pub(crate) use kept::take_away;
pub(crate) use limits::wanted as wanted_limits;
pub use mailbox::{Commands, Sender, channel};
pub use maintenance::MaintenanceStatus;
pub(crate) use pins::last_words;
pub use plan::{BackendPlan, FieldChange, PlanReport, ServicePlan};
pub use sample::{Counted, Sample};
pub(crate) use snapshot::decode_table;
pub use snapshot::{Inside, TableSnapshot};
pub use sources::{ListSource, ListedSource};
pub use status::{
    BackendStatus, CheckStatus, InterfaceStatus, LostStatus, NatSourceStatus, OutcomeStatus,
    PlaneStatus, ReturnedStatus, ServiceStatus, SourceStatus, Status, TunnelStatus,
};
pub use step::StepStatus;
pub use trace::{TraceLine, TraceRequest, TraceTotals, TracedPacket};

use crate::config::{Api, Config, PlaneKind, Source, Table, Web, XdpMode, place_of};
use crate::doctor::Hindrance;
use crate::history::{History, Who};
use crate::last_good::{Instead, note};
use crate::neigh::{self, NeighError, Neighbour};
use crate::process::{Process, Supervisor};
use crate::store::{Journal, NameLock, RunLock, StoreError};
use crate::tables::Shelf;
use document::Document;
use error::PlaneResult;
use network::slow;
use reload::How;
use service::ServiceRuntime;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixListener;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{error, info, warn};
use weir_dataplane::{BY_INTERFACE, KernelPlane, LivePlane};
use weir_plane::{Attachment, Plane};
use weir_steering::{BackendId, Driver, ServiceId, Side};

/// Where instances pin their data planes.
pub const PIN_ROOT: &str = "/sys/fs/bpf/weir";

/// What the configuration says of who is served, and where.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Front {
    /// The API.
    pub api: Api,
    /// The page for browsers.
    pub web: Option<Web>,
}

/// How often the engine looks what is due. A command or a report wakes it.
const TICK: Duration = Duration::from_millis(10);
/// For what waits for no update, in one turn: a status of thousands of services takes a tenth of a second.
const ATTENTION: Duration = Duration::from_millis(50);
/// Commands that are answered before the engine looks for reports again.
const COMMANDS_AT_A_TIME: usize = 64;
const UNREPORTED_EVERY: Duration = Duration::from_secs(1);
/// After a change: a neighbour that has just been asked for answers within milliseconds, and
/// without it a backend that the FIB has no answer for cannot be reached.
const NEXT_HOPS_SOON: Duration = Duration::from_millis(100);
/// For so long; one that has not answered by then is not there.
const NEXT_HOPS_TRIES: u32 = 20;
/// Loads for schedulers that are not counted by packets.
const LOADS_EVERY: Duration = Duration::from_secs(1);
/// Connections that ended otherwise than by a report: all services are asked, of which there may be ten thousand.
const RELEASED_EVERY: Duration = Duration::from_millis(50);
/// Slow starts, which have ten steps: a step comes so much later at most.
const RISE_EVERY: Duration = Duration::from_millis(50);
/// How often the calendar is looked at.
const CALENDAR_EVERY: Duration = Duration::from_secs(1);
const SWEEP_EVERY: Duration = Duration::from_secs(10);
const SEEN_GENERATION_EVERY: Duration = Duration::from_secs(30);
/// Beside each command: tables are published later, too.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(500);
const SLOTS_EVERY: Duration = Duration::from_secs(1);
/// What others of the fleet are told, and what of theirs could not be followed.
const FLEET_EVERY: Duration = Duration::from_millis(500);
/// Whether agents are to be told of other backends, or have been lost for too long.
const AGENTS_EVERY: Duration = Duration::from_millis(200);

/// The engine. Lives on one thread.
///
/// It owns any [`Plane`]: the kernel's, or in tests one that is only memory.
pub struct Engine<P: Plane = LivePlane> {
    config: Config,
    config_path: PathBuf,
    /// What is looked at or followed just now, if that is not the file.
    looked_at: RefCell<Option<Source>>,
    plane: P,
    driver: Driver<P::Error, EngineError>,
    services: BTreeMap<String, ServiceRuntime>,
    /// Names of the services by number.
    names: HashMap<ServiceId, String>,
    /// What is written down.
    document: Document,
    journal: Journal,
    /// Backends' addresses that packets cannot be sent to, and why.
    unreachable: BTreeMap<IpAddr, String>,
    /// Backends, by number, whose neighbour did not answer when it was last asked for.
    silent: HashSet<BackendId>,
    /// Changes of the network that are to be followed.
    network: network::Following,
    /// How often next hops are looked up soon, because one is not known yet.
    hop_tries: u32,
    health: crate::health::Checker,
    resolve: Resolve,
    path: Path,
    links: Links,
    /// Whose answers the plane has been told to translate.
    translated: Option<weir_plane::Translations>,
    /// The routers that lead to backends behind tunnels.
    gateways: HashMap<IpAddr, IpAddr>,
    /// Packets that found no port under full NAT, when that was looked at last, and when there were more.
    no_port: Cell<Option<(u64, Option<Instant>)>>,
    /// What is counted of connections under full NAT.
    sweep: full_nat::Sweep,
    started: Instant,
    clock: Box<dyn Fn() -> u32 + Send>,
    resumed: bool,
    warnings: Vec<String>,
    lines: lines::Lines,
    /// Commands that are followed between the steps of other work.
    urgent: Option<tokio::sync::mpsc::Receiver<Command>>,
    /// The next of them, which waits for a table that says what a health check has said before it.
    after_checks: Option<Command>,
    /// The service whose states are lent ([`lend`](Self::lend)).
    lent: Option<String>,
    /// A service of the pass changes its method: what began since the draft waits until packets follow the new one.
    turns: bool,
    /// Questions about states that were lent when they came.
    put_off: VecDeque<Command>,
    /// What health checks have said during an update.
    late: Vec<crate::health::Transition>,
    /// Packets of a service have stopped asking for pending flows since they were last waited for.
    cleared: bool,
    /// Changes that wait for agents, after a restart.
    waiting: Vec<Command>,
    attached: Vec<weir_plane::Attached>,
    events_taken: u64,
    /// There may be flows whose report the ring had no room for.
    more_aside: bool,
    /// Activity marks that are still to be read.
    unread: Option<Side>,
    /// Services that are gone, and not all of them is cleared away.
    gone: Vec<reload::Gone>,
    /// Backends that came to nothing, and that the data plane could not take back yet.
    untaken: BTreeSet<BackendId>,
    /// A table has another hash key than its flows are armed under.
    rekeyed: bool,
    /// Counts periods of activity.
    periods: u64,
    /// When packets of connections were looked for last, in seconds.
    swept: u32,
    /// Datagrams' flows have begun another generation since they were looked for last.
    seen_turned: bool,
    /// The connections of prefixes are being counted.
    counting: bool,
    /// Numbers of services whose half-open connections are to be looked at.
    unlooked: Vec<ServiceId>,
    /// Why the guard is not what it should be.
    unguarded: Option<String>,
    /// Why limits are not what the file wants.
    oversize: Option<String>,
    /// Fewer connections than these are no reason to make marks for all: there was no memory.
    unmarked: u32,
    /// Flows that nobody was told of.
    unrecorded: unrecorded::Unrecorded,
    lately: lately::Lately,
    /// What is in force instead of the file, which the start would have refused.
    instead: Option<Instead>,
    /// Why the file was refused when a signal had it read last.
    unfollowed: Option<String>,
    /// Why `runtime.json` could not be written, and when that is tried again.
    unsaved: Option<(String, Instant)>,
    /// Files of the run directory that somebody has removed, and that cannot be written anew.
    unkept: Option<String>,
    /// When the data plane's clock was turned last.
    clocked: u32,
    /// Seconds by which a test is ahead of its time.
    #[cfg(test)]
    ahead: u32,
    /// What a test has work on lent states begin with.
    #[cfg(test)]
    slow: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Somebody looks at packets.
    trace: Option<trace::Trace>,
    /// How many times somebody has.
    traces: u64,
    /// Connections are followed.
    following: follow::Following,
    /// Who looks backends up.
    seeker: Option<watch::Sender<Arc<[Sought]>>>,
    /// Who serves metrics.
    metrics: Option<watch::Sender<Option<SocketAddr>>>,
    /// Who serves the API and the page.
    front: Option<watch::Sender<Front>>,
    /// What has happened lately.
    events: Arc<Events>,
    /// Agents of backends.
    agents: agents::Agents,
    /// Who tells routers.
    announcer: Option<announce::Announcer>,
    history: History,
    /// The other balancers, if there may be any.
    fleet: Option<fleet::Fleet>,
    /// Tables that all balancers have alike, for the others.
    shelf: Arc<Shelf>,
    /// Tables are made by the pools of a step.
    commits: Option<step::Commit>,
    /// Where the last change is told once what is asked for just now is done.
    asking: Option<tokio::sync::oneshot::Sender<Last>>,
    /// Who asks for what is done just now.
    who: Who,
    /// Of the run directory, and of the state directory if that is another.
    locks: (RunLock, Option<RunLock>),
    /// Held while it runs.
    name: Option<NameLock>,
    /// Who looks after the plane in user space, if one is wanted.
    user: Option<Supervisor>,
    /// What the start said decides packets, whatever the file says.
    told_plane: Option<PlaneKind>,
    /// Held while it fills a switch.
    claim: Option<UnixListener>,
    /// Says what of the host is in the plane's way, and what to do; it is asked for each status, as it changes.
    in_the_way: Option<fn(&Config) -> Vec<Hindrance>>,
}

/// Directory of an instance's pins.
pub fn pin_directory(name: &str) -> PathBuf {
    PathBuf::from(PIN_ROOT).join(name)
}

/// Looks up where a backend's frames go, as [`neigh::resolve_now`] does.
pub type Resolve = fn(IpAddr) -> Result<Option<Neighbour>, NeighError>;

/// Looks up the way of a tunnel, as [`neigh::path`](crate::neigh::path) does.
type Path = fn(IpAddr, &BTreeSet<IpAddr>) -> Result<crate::neigh::Path, NeighError>;

/// Says what interfaces there are, as [`neigh::interfaces`] does.
type Links = fn() -> Result<Vec<neigh::Interface>, NeighError>;

impl Engine {
    /// Opens or resumes the data plane in the kernel, and [goes on over it](Self::over).
    /// `plane`: what decides packets, if that is not what the configuration says.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn open(
        config: Config,
        config_path: PathBuf,
        health: crate::health::Checker,
        plane: Option<PlaneKind>,
        starting: Starting,
    ) -> Result<Self, EngineError> {
        let directory = pin_directory(&config.balancer.name);
        // Who cannot start leaves no run directory behind.
        if !RunLock::is_used(&config.balancer.run_dir) {
            may_start(&config, &config_path, &directory)?;
        }
        let begun = kept::Begun::at(&config.balancer);
        let lock = RunLock::await_free(&config.balancer.run_dir)?;
        // What another version has written is refused before anything is touched.
        crate::store::check_logs(&config.balancer.run_dir)?;
        Document::read(&config.balancer.run_dir)?;
        kept::may_have_socket(&config.balancer)?;
        // So is what is missing, and an instance of the name that runs.
        may_start(&config, &config_path, &directory)?;
        pins::mount()?;
        let made = !directory.exists();
        if made && config.balancer.plane == PlaneKind::Dpdk {
            // Without it nothing would be forwarded. Where an earlier run has left something, it is tried again
            // and again instead.
            Process::of(&config).probe(&config.balancer.run_dir).map_err(|why| {
                let place = place_of(&config_path, Table::Dpdk, "devices");
                EngineError::Plane(format!("{place}[dpdk]: {why}").into())
            })?;
        }
        std::fs::create_dir_all(&directory).map_err(|source| StoreError::Io {
            doing: "create",
            path: directory.clone(),
            source,
        })?;
        let name = NameLock::await_free(&directory)?;
        let opened = Self::open_pinned(&directory, config, config_path, health, lock, starting);
        match opened {
            Ok(mut engine) => {
                engine.name = Some(name);
                engine.told_plane = plane;
                if let Err(error) = note(&directory, &engine.config.balancer.run_dir) {
                    warn!(%error, "a start over a file that is gone will not find this instance");
                }
                memory::give_back();
                begun.stays();
                Ok(engine)
            }
            Err(error) => {
                // Nothing of it was in force.
                if made && let Err(left) = KernelPlane::unload(&directory) {
                    warn!(error = %left, "cannot remove what the start has left");
                }
                Err(error)
            }
        }
    }

    fn open_pinned(
        directory: &FilePath,
        config: Config,
        config_path: PathBuf,
        health: crate::health::Checker,
        lock: RunLock,
        starting: Starting,
    ) -> Result<Self, EngineError> {
        let kind = config.balancer.plane;
        let wanted = limits::wanted(&config);
        let opened = match config.balancer.count_interfaces {
            true => KernelPlane::open_object(BY_INTERFACE, Some(directory), &wanted),
            false => KernelPlane::open(Some(directory), &wanted),
        };
        let file = || Source::File(config_path.clone());
        let (mut kernel, report) =
            opened.map_err(|error| limits::of_limits::<LivePlane>(&file(), error))?;
        if let Some(converted) = &report.converted {
            let (maps, held, frames) = (&converted.maps, converted.held, converted.frames);
            info!(?maps, ?held, frames, "memory that another version has made was taken over");
        }
        match kind {
            PlaneKind::Kernel => kernel.stand_alone().plane()?,
            // Without sockets all frames that come by a tap are the program's; what both planes share is there.
            PlaneKind::AfXdp | PlaneKind::Dpdk => kernel.stand_in_front().plane()?,
            PlaneKind::P4 => {
                return Err(EngineError::Invalid("a switch is not in the kernel".into()));
            }
        }
        let plane = LivePlane::new(kernel).plane()?;
        let run_dir = config.balancer.run_dir.clone();
        let process = kind.is_beside().then(|| Process::of(&config));
        let warnings = report.unguarded.map(|error| {
            format!(
                "no guard: packets of services that come by an interface without the program (one \
                 that is made anew, for a moment) are answered by this host with a reset; it needs \
                 Linux 6.4 with CONFIG_NETFILTER_BPF_LINK ({error})"
            )
        });
        let uncounted = report.uncounted.map(|error| {
            format!(
                "frames that are lost on their way out are not counted; it needs CAP_PERFMON, and Linux 5.5 with BTF ({error})"
            )
        });
        let warnings = warnings.into_iter().chain(uncounted).chain(pins::said(kind)).collect();
        let Starting { breaking, fleet, instead } = starting;
        let found = Found { resumed: report.resumed, warnings, breaking, fleet, instead };
        let mut engine =
            Self::over(plane, found, config, config_path, health, crate::neigh::resolve_now, lock)?;
        if let Some(process) = process {
            engine.user = Some(Supervisor::start(directory, &run_dir, process));
        }
        Ok(engine)
    }
}

/// Whether a start would meet interfaces that are missing, or another's, or an instance of the name that runs.
fn may_start(config: &Config, file: &FilePath, directory: &FilePath) -> Result<(), EngineError> {
    network::may_attach(config, &Source::File(file.to_owned()), directory)?;
    if directory.exists() {
        NameLock::await_free(directory).map(drop)?
    }
    Ok(())
}

/// Removes the data plane that an instance has left in the kernel. Returns whether there was one. What is to be done
/// before that, while nobody can start the instance, is `first`.
///
/// # Errors
/// [`EngineError::Busy`] if the instance is running; nothing has changed then.
pub fn unload(name: &str, first: impl FnOnce()) -> Result<bool, EngineError> {
    if !crate::config::is_instance_name(name) {
        return Err(EngineError::Invalid(format!(
            "{name:?} is not the name of an instance; use 1 to 32 of a-z, 0-9 and -"
        )));
    }
    let directory = pin_directory(name);
    if !directory.exists() {
        return Ok(false);
    }
    let _name = NameLock::await_free(&directory).map_err(|error| match error {
        StoreError::Running { .. } => EngineError::Busy(
            format!(
                "an instance of this name is running, {name}, and its data plane is not removed under it: stop it \
                 first (systemctl stop weir, or SIGTERM to its process), and unload then"
            )
            .into(),
        ),
        error => error.into(),
    })?;
    first();
    KernelPlane::unload(&directory).plane()?;
    Ok(true)
}

/// Whether a start of this version would go on from what an instance of the configuration's name has, in the
/// kernel and in its run directory, whether it runs or not. `false`: there is nothing. Changes nothing, and
/// takes no lock.
///
/// # Errors
/// What a start would say of what it cannot read.
pub fn goes_on_from(config: &Config) -> Result<bool, EngineError> {
    let run_dir = &config.balancer.run_dir;
    if RunLock::is_used(run_dir) {
        RunLock::check(run_dir)?;
        crate::store::check_logs(run_dir)?;
        Document::read(run_dir)?;
    }
    let left = KernelPlane::left_in(&pin_directory(&config.balancer.name)).plane()?;
    Ok(left.is_some())
}

/// The names of the instances that have a data plane in the kernel.
///
/// # Errors
/// [`EngineError::Store`] if they cannot be read.
pub fn loaded() -> Result<Vec<String>, EngineError> {
    let unreadable = |source| StoreError::Io { doing: "read", path: PIN_ROOT.into(), source };
    let entries = match std::fs::read_dir(PIN_ROOT) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|n| crate::config::is_instance_name(n)).collect();
    names.sort_unstable();
    Ok(names)
}

/// How a data plane was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// An earlier run has left it, with tables, flows and counters.
    pub resumed: bool,
    /// What there is to know of it.
    pub warnings: Vec<String>,
    /// The configuration is to be followed also where that breaks connections.
    pub breaking: bool,
    /// What is known of the fleet that it is of.
    pub fleet: Option<Begun>,
    /// The configuration is not the file's.
    pub instead: Option<Instead>,
}

/// How a control plane starts.
#[derive(Default)]
pub struct Starting {
    /// As [`Found::breaking`].
    pub breaking: bool,
    /// As [`Found::fleet`].
    pub fleet: Option<Begun>,
    /// As [`Found::instead`].
    pub instead: Option<Instead>,
}

/// Whether packets go through the program in drivers where that can be: at taps it stands in the network stack.
fn expects_native(config: &Config) -> bool {
    config.balancer.plane != PlaneKind::Dpdk
}

impl<P: Plane> Engine<P> {
    /// Its control socket, and where what outlives it is written down.
    pub fn places(&self) -> (PathBuf, PathBuf) {
        let balancer = &self.config.balancer;
        (balancer.socket_path(), balancer.state_dir())
    }

    /// Restores the states, publishes tables, and only then attaches: no packet meets less than was known before.
    ///
    /// # Errors
    /// [`EngineError`]. A service that cannot be published keeps a data plane from being taken
    /// over only if none of it was there before.
    pub fn over(
        plane: P,
        found: Found,
        config: Config,
        config_path: PathBuf,
        health: crate::health::Checker,
        resolve: Resolve,
        lock: RunLock,
    ) -> Result<Self, EngineError> {
        let run_dir = &config.balancer.run_dir;
        let (document, journal) =
            (Document::read(run_dir)?, Journal::new(run_dir.join(document::FILE)));
        let missing = document::missing_changes(run_dir);
        let (history, state_lock, trouble) = history::open(&config.balancer)?;
        let fleet = found.fleet.map(|begun| fleet::Fleet::new(begun, &config_path));
        let mut engine = Self {
            plane,
            driver: Driver::new(),
            services: BTreeMap::new(),
            names: HashMap::new(),
            document,
            journal,
            unreachable: BTreeMap::new(),
            silent: HashSet::new(),
            network: network::Following::default(),
            hop_tries: 0,
            health,
            resolve,
            path: crate::neigh::path,
            links: neigh::interfaces,
            translated: None,
            gateways: HashMap::new(),
            no_port: Cell::new(None),
            sweep: full_nat::Sweep::default(),
            started: Instant::now(),
            clock: Box::new(seconds_since_boot),
            resumed: found.resumed,
            warnings: found.warnings.into_iter().chain(trouble).chain(missing).collect(),
            urgent: None,
            after_checks: None,
            put_off: VecDeque::new(),
            lent: None,
            turns: false,
            late: Vec::new(),
            cleared: false,
            waiting: Vec::new(),
            attached: Vec::new(),
            events_taken: 0,
            more_aside: false,
            unread: None,
            gone: Vec::new(),
            untaken: BTreeSet::new(),
            rekeyed: false,
            periods: 0,
            swept: 0,
            seen_turned: true,
            counting: false,
            unlooked: Vec::new(),
            unguarded: None,
            oversize: None,
            unmarked: 0,
            unrecorded: unrecorded::Unrecorded::new(run_dir),
            lately: lately::Lately::default(),
            instead: found.instead,
            unfollowed: None,
            unsaved: None,
            unkept: None,
            config: config.clone(),
            config_path,
            lines: lines::Lines::new(),
            looked_at: RefCell::default(),
            clocked: 0,
            #[cfg(test)]
            ahead: 0,
            #[cfg(test)]
            slow: None,
            trace: None,
            traces: 0,
            following: follow::Following::default(),
            seeker: None,
            metrics: None,
            front: None,
            events: Arc::default(),
            agents: agents::Agents::default(),
            announcer: None,
            history,
            fleet,
            shelf: Arc::default(),
            commits: None,
            asking: None,
            who: Who::nobody("start"),
            locks: (lock, state_lock),
            name: None,
            user: None,
            told_plane: None,
            claim: None,
            in_the_way: None,
        };
        engine.warnings.iter().for_each(|warning| warn!("{warning}"));
        if let Err(error) = engine.grow(&config) {
            // Where packets are forwarded already, that goes on as it is; `fit` says what is missing.
            if !engine.resumed {
                return Err(error);
            }
            warn!(%error, "cannot make room");
        }
        engine.restore(&config, found.breaking)?;
        engine.leave_out_lists(&config);
        engine.begin_to_settle();
        engine.begin_apart();
        let followed = engine.follow(&config, How::start(found.breaking))?;
        followed.notes.iter().for_each(|note| warn!("{note}"));
        engine.fit(&config);
        // Where packets are forwarded already, a service that stays behind must not keep the
        // others from being looked after.
        if let (false, Some(failure)) = (engine.resumed, followed.failures.into_iter().next()) {
            return Err(failure);
        }
        if !engine.begin_to_learn(&config) {
            engine.attach(&config)?;
        }
        engine.remember_start();
        Ok(engine)
    }

    /// What a refusal is about: what is looked at just now, or the file.
    fn source(&self) -> Source {
        let looked_at = self.looked_at.borrow().clone();
        looked_at.unwrap_or_else(|| Source::File(self.config_path.clone()))
    }

    fn attach(&mut self, config: &Config) -> Result<(), EngineError> {
        tolerate("take what packets have reported", self.take_what_waits());
        self.hand_on(config)?;
        let (interfaces, how) = (&config.balancer.interfaces, attachment(config));
        let pins = pin_directory(&config.balancer.name);
        let attached = match self.network.attaching(interfaces, &pins) {
            true => self.plane.reattach(interfaces, how),
            false => self.plane.attach(interfaces, how),
        };
        self.attached = attached.of_interfaces(&self.source())?;
        self.tell_members(interfaces, &neigh::interfaces().unwrap_or_default())?;
        for attached in &self.attached {
            let name = &attached.interface;
            info!(interface = name, generic = attached.generic, "attached");
            if attached.generic && expects_native(config) {
                let warning = slow(name);
                warn!("{warning}");
            }
        }
        // Until here packets may have gone on with another program, which counted for itself.
        self.count_anew();
        Ok(())
    }

    /// Runs until told to stop. The data plane goes on without it.
    ///
    /// # Errors
    /// [`EngineError`] only for what makes going on pointless; refused requests are answered.
    pub fn run(mut self, mut commands: Commands) -> Result<(), EngineError> {
        let mut timers = Timers::new();
        self.urgent = commands.urgent();
        while self.turn(&mut commands, &mut timers) {}
        self.end_trace();
        self.pin_what_would_end();
        self.announce_stop();
        self.save()?;
        Ok(self.journal.rewrite(&self.document)?)
    }

    /// Some reports, then some commands, then what is due: however many come of one kind, the
    /// others have their turn. Returns whether there is another one.
    fn turn(&mut self, commands: &mut Commands, timers: &mut Timers) -> bool {
        let limit = if self.after_checks.is_some() { Duration::ZERO } else { TICK };
        let limit = self.most_sleep(limit);
        tolerate("read reports", self.wait_for_reports(limit, commands.bell()));
        // While changes wait for agents, packets are kept from a backend that fails, as inside an update.
        let mut commanded = self.attend(self.settles());
        self.go_on_settled();
        let more = commands.take(COMMANDS_AT_A_TIME, |command| {
            let last = matches!(command, Command::Stop);
            self.handle_settled(command);
            commanded = true;
            !last
        });
        if more {
            self.upkeep(timers);
            if commanded || timers.announce.due(ANNOUNCE_EVERY) {
                self.tell_announcer();
            }
        }
        more
    }

    /// Answers what waits for no update, and follows what health checks say. `inside`: of other work, which goes
    /// on with the pool that it has begun with. Packets are kept from a backend that has failed all the same,
    /// and the rest follows [later](Self::catch_up). Returns whether there was anything.
    pub(super) fn attend(&mut self, inside: bool) -> bool {
        let (mut any, mut checked) = (false, false);
        let begun = Instant::now();
        // However many ask: what else is to be done has its turn, too.
        while let Some(command) =
            (begun.elapsed() < ATTENTION).then(|| self.next_urgent()).flatten()
        {
            any = true;
            match command {
                Command::Health(changes) if inside => {
                    changes.iter().for_each(|one| self.keep_off(one));
                    self.late.extend(changes);
                }
                Command::Health(_) => {
                    checked = true;
                    self.handle(command);
                }
                // Who is told that a backend is down finds that packets are told, too.
                command if checked => {
                    self.after_checks = Some(command);
                    break;
                }
                // It is about states that somebody else has just now.
                Command::Explain(..) | Command::Plan(..) | Command::History(_)
                    if self.has_lent() =>
                {
                    self.put_off.push_back(command);
                }
                command => self.handle(command),
            }
        }
        any
    }

    fn next_urgent(&mut self) -> Option<Command> {
        let put_off = match self.has_lent() {
            true => None,
            false => self.put_off.pop_front(),
        };
        let first = put_off.or_else(|| self.after_checks.take());
        first.or_else(|| self.urgent.as_mut()?.try_recv().ok())
    }

    /// Follows what health checks have said during other work.
    pub(super) fn catch_up(&mut self) {
        let late = std::mem::take(&mut self.late);
        if !late.is_empty() {
            self.follow_health(&late);
        }
    }

    /// What is due. A failure is logged and tried again later: the tables that are published go on
    /// working, and nothing is gained by giving up.
    fn upkeep(&mut self, timers: &mut Timers) {
        // What has come while something else was done than an update, or a look for idle flows.
        if !self.settles() {
            self.catch_up();
        }
        self.go_on_in_step();
        for failure in self.publish_due() {
            error!(%failure, "cannot publish");
        }
        self.pack();
        if self.unsaved.as_ref().is_some_and(|(_, again)| *again <= Instant::now()) {
            self.save_later();
        }
        self.history.save_again();
        if timers.unreported.due(UNREPORTED_EVERY) {
            self.more_aside = true;
            self.look_at_unrecorded();
            self.look_lately();
            self.lines.say_rest();
            tolerate("fold pending flows", self.fold_pending());
            tolerate("clear away services that are gone", self.clear_gone());
            tolerate("take a backend back", self.take_back_again());
            if self.services.values().any(|service| service.unlisted.is_some()) {
                for failure in self.list_services() {
                    error!(%failure, "packets do not find a service");
                }
            }
        }
        if self.more_aside {
            tolerate("take unreported flows", self.take_unreported());
        }
        self.follow_network();
        if self.hop_tries > 0 && timers.missing_hops.due(NEXT_HOPS_SOON) {
            self.begin_look(true);
        }
        if timers.next_hops.due(self.config.balancer.look_every) {
            // Events tell what changes; this is for what they may have missed.
            tolerate("attach to interfaces again", self.follow_interfaces());
            self.hold_on();
            self.look_at_kept();
            self.begin_look(false);
        }
        tolerate("look up next hops", self.go_on_looking());
        if timers.sweep.due(SWEEP_EVERY) || std::mem::take(&mut self.rekeyed) {
            tolerate("forget idle flows", self.sweep());
            tolerate("count open connections", self.recount());
            self.grow_marks();
        }
        if timers.calendar.due(CALENDAR_EVERY) {
            self.look_at_calendar();
            self.look_at_sources();
            if !self.settles() {
                self.let_leave();
            }
        }
        if timers.loads.due(LOADS_EVERY) {
            tolerate("read loads", self.look_at_loads());
        }
        if timers.rise.due(RISE_EVERY) {
            self.rise();
        }
        if timers.released.due(RELEASED_EVERY) {
            tolerate("tell packets what has ended", self.release_held());
        }
        tolerate("look at half-open connections", self.look_at_half_open());
        self.look_at_rows(&mut timers.rows);
        if timers.agents.due(AGENTS_EVERY) {
            self.look_at_agents();
        }
        if timers.fleet.due(FLEET_EVERY) {
            self.look_at_fleet();
        }
        // Of one service in a turn, however many have one.
        self.services.values_mut().any(ServiceRuntime::go_on_compacting);
        self.turn_clock();
        self.go_on_tracing();
        self.follow_connections();
        if timers.slots.due(SLOTS_EVERY) {
            self.go_on_guarding();
            self.sweep_mappings();
            tolerate("give slots back", self.sweep_slots());
        }
        if timers.seen.due(SEEN_GENERATION_EVERY) {
            self.turn_seen();
        }
    }

    /// The guard is put in place again where that has failed, and it is said while it is not.
    fn go_on_guarding(&mut self) {
        let why = self.plane.go_on_guarding();
        match (&why, &self.unguarded) {
            (Some(why), None) => warn!(why, "the guard goes by the former services; tried again"),
            (None, Some(_)) => info!("the guard goes by the services again"),
            _ => {}
        }
        self.unguarded = why;
    }

    /// Seconds by the engine's clock, which goes on while the machine sleeps, is never set, and
    /// outlives a restart of the process.
    fn now(&self) -> u32 {
        let now = (self.clock)();
        #[cfg(test)]
        let now = now + self.ahead;
        now
    }
}

/// Seconds since the machine was started.
fn seconds_since_boot() -> u32 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, to a live one.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    time.tv_sec as u32
}

fn attachment(config: &Config) -> Attachment {
    match config.balancer.mode {
        XdpMode::Auto => Attachment::Auto,
        XdpMode::Native => Attachment::Native,
        XdpMode::Generic => Attachment::Generic,
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
    loads: Timer,
    rise: Timer,
    released: Timer,
    calendar: Timer,
    seen: Timer,
    slots: Timer,
    agents: Timer,
    announce: Timer,
    fleet: Timer,
    rows: rows::Looks,
}

impl Timers {
    fn new() -> Self {
        let now = || Timer(Instant::now());
        Self {
            unreported: now(),
            next_hops: now(),
            missing_hops: now(),
            sweep: now(),
            loads: now(),
            // At the first look, and then again and again.
            rise: Timer(Instant::now().checked_sub(RISE_EVERY).unwrap_or_else(Instant::now)),
            released: now(),
            calendar: now(),
            seen: now(),
            slots: now(),
            agents: now(),
            announce: now(),
            fleet: now(),
            rows: rows::Looks::new(),
        }
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
