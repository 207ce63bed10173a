//! `weir run`: puts engine, health checks, API and signals together.

use crate::agents;
use crate::api;
use crate::config::{Agents as AgentsAt, Config, ConfigError, PlaneKind};
use crate::discovery;
use crate::engine::{
    Command, Commands, Engine, EngineError, Events, FleetNews, Front, Sender, Sought, Start,
    Starting, Ways, begin, channel, last_words, take_away,
};
use crate::health::{Checker, Transition, raise_limits};
use crate::history::Who;
use crate::last_good::{self, Instead};
use crate::metrics;
use crate::neigh;
use crate::notify;
use crate::tables::Shelf;
use crate::unload::{Routes, withdraw};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{error, info, warn};
use weir_fleet::News;
use weir_plane::Plane;

/// Commands that may wait for the engine.
const QUEUE: usize = 1024;
/// Checks whose transitions the engine is told of at once.
const CHANGES: usize = 1024;
/// How long a speaker has to withdraw routes at the end.
const LAST_WORD: Duration = Duration::from_secs(6);

/// How long a store has to take a good-bye.
const LAST_WORD_TO_FLEET: Duration = Duration::from_secs(2);

/// Runs an instance until SIGTERM or SIGINT. Forwarding goes on afterwards: the data plane is
/// pinned, where that outlives the process. SIGHUP reads the configuration file again. With `breaking` the file is followed at the
/// start even where that breaks connections of an earlier run. `plane`: what decides packets, if that is
/// not what the file says.
///
/// # Errors
/// What keeps the engine from starting or from going on.
pub async fn run(
    config_path: &Path,
    breaking: bool,
    plane: Option<PlaneKind>,
) -> anyhow::Result<()> {
    spare_memory();
    let (config, instead) = last_good::load(config_path, plane).map_err(to_be_made)?;
    let start = begin(config, instead, config_path, plane).await?;
    if !breaking && let Some(why) = start.takes_away(config_path, plane) {
        return Err(EngineError::Conflict(why).into());
    }
    let config = &start.config;
    if let Some(aside) = &config.offload_aside {
        warn!("{aside}");
    }
    let (kind, name) = (config.balancer.plane, config.balancer.name.clone());
    raise_limits();
    let (sender, commands) = channel(QUEUE)?;
    let (where_metrics, metrics) = watch::channel(None);
    let (where_else, front) = watch::channel(Front::default());
    let events = Arc::new(Events::default());
    let told = Arc::clone(&events);
    let own = sender.clone();
    let (where_sought, sought) = watch::channel(Arc::default());
    let (where_agents, agents_at) = watch::channel(None);
    let (agents_trouble, trouble) = watch::channel(None);
    // A start is refused before anything of it is in force. Where packets are forwarded already somebody has to look
    // after that; the listener tries again.
    if let Some(agents) = &config.agents
        && let Err(why) = agents.files().server()
        && !last_good::goes_on(config)
    {
        return Err(why.into());
    }
    let (opened, ready) = std_mpsc::channel();
    let path = config_path.to_owned();
    let runtime = tokio::runtime::Handle::current();
    let (ended, mut end) = oneshot::channel();
    // The engine waits for grace periods and reads rings: a thread of its own, not a task.
    let engine = thread::Builder::new().name("engine".into()).spawn(move || {
        let _context = runtime.enter();
        let around = Around {
            own,
            where_metrics,
            where_else,
            told,
            where_sought,
            where_agents,
            trouble,
            opened,
            commands,
        };
        let result = match kind {
            PlaneKind::P4 => open_or_go_on(start, path, plane, breaking, Engine::on_switch)
                .and_then(|o| around.go(o)),
            _ => {
                open_or_go_on(start, path, plane, breaking, Engine::open).and_then(|o| around.go(o))
            }
        };
        let _ = ended.send(result);
    })?;
    let ready = tokio::task::spawn_blocking(move || ready.recv()).await?;
    let Ok((announcing, fleet, mut transitions, (places, shelf), first)) = ready else {
        let result = end.await?;
        let _ = engine.join();
        return Err(result.err().map_or_else(|| anyhow::anyhow!("the engine ended"), Into::into));
    };
    let forward = sender.clone();
    tokio::spawn(async move {
        let mut changes = Vec::new();
        // All that is there goes together: hosts often die together, too.
        while transitions.recv_many(&mut changes, CHANGES).await > 0 {
            let all = changes.drain(..).flatten().collect();
            if forward.send(Command::Health(all)).await.is_err() {
                break;
            }
        }
    });
    follow(sender.clone());
    let common = Arc::new(api::Common::new(&places.1, front));
    tokio::spawn(metrics::serve(sender.clone(), Arc::clone(&common), metrics));
    tokio::spawn(discovery::run(sender.clone(), sought));
    tokio::spawn(agents::serve((sender.clone(), shelf), agents_at, agents_trouble));
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Not the file's, where another configuration goes on in its place.
    let socket = places.0.clone();
    let listener = match api::listen(&socket) {
        Ok(listener) => listener,
        Err(why) => {
            let _ = sender.send(Command::Stop).await;
            let _ = (&mut end).await;
            let _ = engine.join();
            if first {
                // Routes may be announced by now, and nothing forwards from here on.
                let _ = tokio::time::timeout(LAST_WORD, announcing).await;
                if let Routes::Left(why) = withdraw(&name, None, true).await {
                    warn!("{why}");
                }
                take_away(&name);
            }
            return Err(why.into());
        }
    };
    let server = api::serve(listener, places, sender.clone(), (common, events));
    tokio::pin!(server);
    info!(socket = %socket.display(), "ready");
    notify::tell("READY=1");
    tokio::spawn(notify::watchdog(sender.clone()));
    let result = loop {
        tokio::select! {
            served = &mut server => break served.map_err(Into::into),
            result = &mut end => return flatten(result),
            // It may take long, and whoever asks something meanwhile is answered.
            _ = hangup.recv() => drop(tokio::spawn(reload(sender.clone()))),
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
        }
    };
    info!("{}", last_words(kind, &name));
    notify::tell("STOPPING=1");
    let _ = sender.send(Command::Stop).await;
    let ended = flatten((&mut end).await);
    let _ = engine.join();
    // Routes may be to be withdrawn; a speaker that does not answer is not waited for for ever.
    let _ = tokio::time::timeout(LAST_WORD, announcing).await;
    // The others of a fleet need not wait until they miss it.
    if let Some(fleet) = fleet {
        let _ = tokio::time::timeout(LAST_WORD_TO_FLEET, fleet).await;
    }
    // The server takes the socket away as it ends, if it is still its own.
    result.and(ended)
}

/// Who announces, who talks to the fleet, what checks say, where socket and state directory are, and the tables for
/// others; and whether all that is pinned is this start's.
type Opened =
    (JoinHandle<()>, Option<JoinHandle<()>>, Transitions, ((PathBuf, PathBuf), Arc<Shelf>), bool);

/// What an engine tells, and by whom it is told.
struct Around {
    own: Sender,
    where_metrics: watch::Sender<Option<SocketAddr>>,
    where_else: watch::Sender<Front>,
    told: Arc<Events>,
    where_sought: watch::Sender<Arc<[Sought]>>,
    where_agents: watch::Sender<Option<AgentsAt>>,
    trouble: watch::Receiver<Option<String>>,
    opened: std_mpsc::Sender<Opened>,
    commands: Commands,
}

impl Around {
    /// Runs an engine, of whatever plane, until it is told to stop.
    fn go<P: Plane>(
        self,
        (mut engine, transitions): (Engine<P>, Transitions),
    ) -> Result<(), EngineError> {
        engine.serve_metrics_by(self.where_metrics);
        engine.serve_front_by(self.where_else, self.told);
        engine.look_up_by(self.where_sought);
        let fleet = engine.join_fleet(self.own.clone()).map(|(keeper, news)| {
            tokio::spawn(hear_fleet(self.own.clone(), news));
            tokio::spawn(keeper.run())
        });
        engine.commands_go_to(self.own);
        engine.hear_agents_by(self.where_agents, self.trouble);
        let (keeper, wanted, reports) = match engine.announce() {
            Ok(announced) => announced,
            Err(why) => {
                engine.undo_start();
                return Err(why);
            }
        };
        let announcing = tokio::spawn(keeper.run(wanted, reports));
        let (places, first) = ((engine.places(), engine.shelf()), engine.is_first());
        let _ = self.opened.send((announcing, fleet, transitions, places, first));
        drop(self.opened);
        engine.run(self.commands)
    }
}

/// How an engine is opened, over one kind of plane.
type Open<P> =
    fn(Config, PathBuf, Checker, Option<PlaneKind>, Starting) -> Result<Engine<P>, EngineError>;

/// Opens the engine. What a file with nothing wrong in it asks for may be refused all the same, as it would
/// break connections, or names what is not there: over a running data plane what was in force goes on then. So does
/// what a fleet had before, where what it has now cannot be followed.
fn open_or_go_on<P: Plane>(
    start: Start,
    path: PathBuf,
    plane: Option<PlaneKind>,
    breaking: bool,
    how: Open<P>,
) -> Result<(Engine<P>, Transitions), EngineError> {
    let ways = Ways::of(&start, &path, plane);
    let Start { config, fleet, instead, .. } = start;
    let before = instead.clone();
    let starting = Starting { breaking, fleet, instead };
    let why = match open(config, path.clone(), plane, starting, how) {
        // Who asks for broken connections is not given others.
        Err(why) if !breaking && last_good::is_about_file(&why) => why,
        opened => {
            say_both(&path, &opened, before);
            return opened;
        }
    };
    let others = [Ways::with_services_before, Ways::with_file_before];
    for (config, fleet, instead) in others.iter().filter_map(|way| way(&ways, &why)) {
        let starting = Starting { breaking, fleet, instead };
        if let Ok(opened) = open(config, path.clone(), plane, starting, how) {
            return Ok(opened);
        }
    }
    let refused = Err(why);
    say_both(&path, &refused, before);
    refused
}

/// Neither the file nor what was in force before it goes on: what is wrong with the file is to be mended, too.
fn say_both<T>(path: &Path, opened: &Result<T, EngineError>, before: Option<Instead>) {
    if let (Err(_), Some(Instead { why, .. })) = (opened, before) {
        error!("{} would be refused: {why}", path.display());
    }
}

fn open<P: Plane>(
    config: Config,
    path: PathBuf,
    plane: Option<PlaneKind>,
    starting: Starting,
    how: Open<P>,
) -> Result<(Engine<P>, Transitions), EngineError> {
    let (file, instead) = (path.display().to_string(), starting.instead.clone());
    let (checker, transitions) = Checker::new();
    let engine = how(config, path, checker, plane, starting)?;
    // Not before: who ends here leaves nothing that goes on.
    if let Some(Instead { number, why, .. }) = instead {
        error!(
            "{file} would be refused, and the configuration of change {number}, which was in force, goes on: {why}"
        );
    }
    Ok((engine, transitions))
}

/// What checks say of backends.
type Transitions = mpsc::Receiver<Vec<Transition>>;

/// Tells the engine what the fleet's store says, and answers what other balancers ask.
async fn hear_fleet(engine: Sender, mut news: mpsc::Receiver<News>) {
    while let Some(one) = news.recv().await {
        match one {
            News::Config(document, revision) => {
                let news = FleetNews::Config(document, revision);
                if engine.send(Command::Fleet(news)).await.is_err() {
                    return;
                }
            }
            News::Step(step, at) => {
                if engine.send(Command::Fleet(FleetNews::Step(step, at))).await.is_err() {
                    return;
                }
            }
            News::Others => {
                if engine.send(Command::Fleet(FleetNews::Others)).await.is_err() {
                    return;
                }
            }
            News::Question(question, answer) => {
                let engine = engine.clone();
                tokio::spawn(async move {
                    if let Some(said) = api::answer_question(&engine, question).await {
                        let _ = answer.send(said);
                    }
                });
            }
        }
    }
}

/// Tells the engine what changes in the network. Without, it looks every few seconds.
fn follow(engine: Sender) {
    let tell = move |change| engine.blocking_send(Command::Network(change)).is_ok();
    if let Err(error) = neigh::watch(tell) {
        warn!(%error, "changes of the network are followed more slowly: no events");
    }
}

fn flatten(
    result: Result<Result<(), EngineError>, oneshot::error::RecvError>,
) -> anyhow::Result<()> {
    Ok(result.map_err(|_| anyhow::anyhow!("the engine ended unexpectedly"))??)
}

/// A first start may be before there is a file.
fn to_be_made(error: ConfigError) -> anyhow::Error {
    let gone =
        matches!(&error, ConfigError::Read { source, .. } if source.kind() == ErrorKind::NotFound);
    let error = anyhow::Error::from(error);
    if gone { error.context("there is no file to run by; `weir init` writes one") } else { error }
}

async fn reload(engine: Sender) {
    let (reply, answer) = oneshot::channel();
    if engine
        .send(Command::By(Who::nobody("SIGHUP"), Box::new(Command::Reload(false, reply))))
        .await
        .is_err()
    {
        return;
    }
    match answer.await {
        Ok(Ok(_)) => {}
        // It is in force, but for a rest that is tried again.
        Ok(Err(EngineError::Unfinished(said))) => warn!("{said}"),
        Ok(Err(error)) => {
            error!("configuration not reloaded, the old one stays: {error}");
            let _ = engine.send(Command::Unfollowed(error.to_string())).await;
        }
        Err(_) => error!("configuration not reloaded: the engine ended"),
    }
}

/// Has the allocator give back what is freed: a control plane reads files and answers with documents of
/// megabytes now and then, and what these leave between what stays would be held for ever. Large pieces have
/// pages of their own, and threads share two heaps.
fn spare_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: numbers, which the allocator takes or leaves.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_PIECE);
    }
}

/// Bytes of what has pages of its own.
#[cfg(target_env = "gnu")]
const LARGE_PIECE: libc::c_int = 32 << 10;
