//! The process of a plane in user space: started, and started again when it has ended. It goes on without
//! this one, as the program in the kernel does; whoever comes next finds it by the lock that it holds.

use crate::config::{Config, Offload, PlaneKind, is_instance_name};
use crate::engine::PIN_ROOT;
use crate::otlp;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_dataplane::user::told_in;
use weir_host::files;
use weir_plane::UserStatus;

/// In the run directory: held by the process while it runs, and what it said when it could not.
const LOCK: &str = "plane.lock";
const FAILURE: &str = "plane.failure";
/// Why it has no rules of a card, if it was to have some.
const NO_RULES: &str = "plane.no-rules";

/// How often somebody looks whether it is there.
const LOOK: Duration = Duration::from_millis(50);
/// The first pause before it is started again, and the longest: one that ends at once is tried less often.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often one that is another than the one that is wanted is asked to end.
const ASK_TO_END: Duration = Duration::from_secs(1);
/// How often somebody looks whether it goes on, which it tells once a second, and how often it has told nothing when it
/// stands still. Looks are counted, not time: a machine that was stopped itself has been looked at once.
const LOOK_STILL: Duration = Duration::from_secs(1);
const STILL: u32 = 10;
/// So often it may have told nothing before somebody is told: what it tells and the looks are a second apart, so that
/// one look may fall short of it.
const QUIET: u32 = 2;
/// How long it is told that one stood still and was ended.
const TELL_ENDED: Duration = Duration::from_secs(600);
/// One that has run so long has begun well.
const WELL_BEGUN: Duration = Duration::from_secs(5);

/// Which process of a plane in user space a configuration wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    kind: PlaneKind,
    arguments: Vec<String>,
}

impl Process {
    /// That of a configuration.
    pub fn of(config: &Config) -> Self {
        let mut arguments = Vec::new();
        let kind = config.balancer.plane;
        if kind == PlaneKind::Dpdk {
            let dpdk = &config.dpdk;
            for (interface, device) in config.balancer.interfaces.iter().zip(&dpdk.devices) {
                arguments.push(format!("--port={interface}={device}"));
            }
            arguments.push(format!("--memory-mb={}", dpdk.memory_mb));
            arguments.push(format!("--longest-nap={}us", dpdk.longest_nap.as_micros()));
            if dpdk.huge_pages {
                arguments.push("--huge-pages".into());
            }
        }
        let threads = match kind {
            PlaneKind::AfXdp => config.af_xdp.threads,
            PlaneKind::Dpdk => config.dpdk.threads,
            _ => 1,
        };
        if let Some(Offload { card, rules, queues, choice, hysteresis, hostile }) =
            config.offload.as_ref().filter(|_| kind.is_beside())
        {
            arguments.push(format!("--offload={}", card.name()));
            arguments.push(format!("--rules={rules}"));
            arguments.push(format!("--queues={queues}"));
            arguments.push(format!("--choice={}", choice.name()));
            arguments.push(format!("--hysteresis={hysteresis}"));
            if *hostile {
                arguments.push("--hostile".into());
            }
        }
        // Not said of one, so that a process of an earlier version is one that is wanted.
        if threads > 1 {
            arguments.push(format!("--threads={threads}"));
        }
        Self { kind, arguments }
    }

    /// This very program, also where its file has been replaced since.
    fn command(&self, run_dir: &Path) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("weir").arg("plane").arg("--run-dir").arg(run_dir);
        command.args(&self.arguments).stdin(Stdio::null());
        // Lines go to the collector from one process, which counts them and waits for the last ones.
        command.env_remove(otlp::ENDPOINT);
        command
    }

    /// Has it open what it needs and end again, unless one runs.
    ///
    /// # Errors
    /// What it would not begin for.
    pub fn probe(&self, run_dir: &Path) -> Result<(), String> {
        let failed = |error: io::Error| format!("cannot try the plane in user space: {error}");
        if PlaneLock::acquire(run_dir).map_err(failed)?.is_none() {
            return Ok(());
        }
        let tried = self.command(run_dir).arg("--probe").stderr(Stdio::inherit()).output();
        let tried = tried.map_err(failed)?;
        if tried.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&tried.stdout).trim().to_owned();
        Err(if said.is_empty() { format!("it ended with {}", tried.status) } else { said })
    }
}

/// Held by the plane's process while it runs. The file says which process it is, and how it was started.
#[derive(Debug)]
pub struct PlaneLock {
    file: Flock<File>,
    run_dir: PathBuf,
}

impl PlaneLock {
    /// Takes it for a process with these arguments; `None` if another process has it.
    ///
    /// # Errors
    /// If the file cannot be made, or written.
    pub fn acquire_for(run_dir: &Path, arguments: &[String]) -> io::Result<Option<Self>> {
        let mut taken = Self::acquire(run_dir)?;
        if let Some(lock) = &mut taken {
            write!(lock.file, "{}\n{}", std::process::id(), arguments.join("\n"))?;
        }
        Ok(taken)
    }

    /// Takes it; `None` if another process has it. Nobody is named in it any more.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn acquire(run_dir: &Path) -> io::Result<Option<Self>> {
        let path = run_dir.join(LOCK);
        match Flock::lock(files::open_or_make(&path)?, FlockArg::LockExclusiveNonblock) {
            Ok(file) => {
                file.set_len(0)?;
                Ok(Some(Self { file, run_dir: run_dir.to_owned() }))
            }
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// The process that has it, if that was started with other arguments than these.
    fn of_another(run_dir: &Path, arguments: &[String]) -> Option<i32> {
        let text = files::read_text(&run_dir.join(LOCK)).ok()?;
        let (process, found) = text.split_once('\n')?;
        let process = process.parse().ok().filter(|process| *process > 1)?;
        (found != arguments.join("\n")).then_some(process)
    }

    /// Leaves word why the process goes on without rules of a card.
    pub fn say_no_rules(&self, why: &str) {
        let _ = files::write(&self.run_dir.join(NO_RULES), why.as_bytes());
    }

    /// Leaves word why the process ends.
    pub fn say(&self, why: &str) {
        let _ = files::write(&self.run_dir.join(FAILURE), why.as_bytes());
    }
}

#[derive(Default)]
struct State {
    starts: u64,
    /// Whether one ran already, which an earlier control plane has started.
    found: bool,
    failure: Option<String>,
    /// The process that tells nothing at the moment, and for how many looks.
    quiet: Option<(u32, u32)>,
    /// The one that stood still and was ended last, and when.
    stood_still: Option<(u32, Instant)>,
}

/// Looks after the process, on a thread of its own. When dropped, the process is left to itself.
pub struct Supervisor {
    run_dir: PathBuf,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// For a data plane that is pinned in a directory.
    pub fn start(pins: &Path, run_dir: &Path, process: Process) -> Self {
        let (state, stop) = (Arc::<Mutex<State>>::default(), Arc::<AtomicBool>::default());
        let watch = Watch {
            process,
            pins: pins.to_owned(),
            run_dir: run_dir.to_owned(),
            state: Arc::clone(&state),
            stop: Arc::clone(&stop),
        };
        let spawned = thread::Builder::new().name("plane".into()).spawn(move || watch.go_on());
        if let Err(error) = &spawned {
            lock(&state).failure = Some(format!("cannot start a thread: {error}"));
        }
        Self { run_dir: run_dir.to_owned(), state, stop, thread: spawned.ok() }
    }

    /// Times that it was started again, as it had ended.
    pub fn restarts(&self) -> u64 {
        let state = lock(&self.state);
        state.starts.saturating_sub(u64::from(!state.found))
    }

    /// Why the process that runs has no rules of a card, if it was to have some.
    pub fn why_no_rules(&self) -> Option<String> {
        files::read_text(&self.run_dir.join(NO_RULES)).ok()
    }

    /// What there is to tell of a process that stands still, or did lately and was ended.
    pub fn warning(&self) -> Option<String> {
        let state = lock(&self.state);
        if let Some((process, looks)) = state.quiet {
            let seconds = LOOK_STILL.as_secs() * u64::from(looks);
            return Some(format!(
                "the plane in user space (process {process}) has told nothing for {seconds} s: what it is handed is lost \
                 while it stands still; after {STILL} such looks it is ended, and another one begins"
            ));
        }
        let (process, _) = state.stood_still.filter(|(_, ended)| ended.elapsed() < TELL_ENDED)?;
        Some(format!(
            "the plane in user space (process {process}) stood still and was ended in the last {} minutes: look what \
             stopped it (a signal, a frozen group, a debugger)",
            TELL_ENDED.as_secs() / 60
        ))
    }

    /// Why it does not run, or last did not.
    pub fn failure(&self) -> Option<String> {
        lock(&self.state).failure.clone()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which process told last that packets are handed to it, how long it had run, and how often that was the same since.
#[derive(Default)]
struct Still {
    told: Option<(u32, u64)>,
    looks: u32,
}

impl Still {
    /// Takes what is told now. Returns whether a process has told nothing new for too long.
    fn is_over(&mut self, told: Option<(u32, u64)>) -> bool {
        let same = told.is_some() && told == self.told;
        self.looks = if same { self.looks + 1 } else { 0 };
        self.told = told;
        self.looks >= STILL
    }

    /// The process that has told nothing new, and for how many looks, if those are too many for chance.
    fn quiet(&self) -> Option<(u32, u32)> {
        let (process, _) = self.told?;
        (self.looks >= QUIET).then_some((process, self.looks))
    }
}

struct Watch {
    process: Process,
    pins: PathBuf,
    run_dir: PathBuf,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn go_on(&self) {
        let mut child: Option<(Child, Instant)> = None;
        let (mut pause, mut next) = (FIRST_PAUSE, Instant::now());
        let mut asked = None;
        let (mut still, mut looked) = (Still::default(), Instant::now());
        while !self.stop.load(Ordering::Relaxed) {
            if looked.elapsed() > LOOK_STILL {
                looked = Instant::now();
                self.end_if_still(&mut still);
            }
            if let Some((process, since)) = &mut child {
                if let Ok(Some(status)) = process.try_wait() {
                    let well = since.elapsed() > WELL_BEGUN;
                    pause = if well { FIRST_PAUSE } else { LONGEST_PAUSE.min(pause * 2) };
                    next = Instant::now() + pause;
                    let number = process.id();
                    child = None;
                    self.ended(number, status);
                }
            } else if Instant::now() >= next {
                child =
                    self.start_if_none_runs(&mut asked).map(|process| (process, Instant::now()));
                next = Instant::now() + LOOK;
            }
            thread::sleep(LOOK);
        }
    }

    /// Ends one that is handed packets and does nothing with them: somebody has stopped it, or it waits for what does
    /// not come. Its sockets are closed then, and another one begins.
    fn end_if_still(&self, still: &mut Still) {
        let told = told_in(&self.pins);
        let told =
            told.and_then(|UserStatus { process, counts }| Some((process?, counts.nanoseconds)));
        let over = still.is_over(told);
        lock(&self.state).quiet = still.quiet().filter(|_| !over);
        if let Some((process, _)) = told.filter(|_| over) {
            warn!(process, looks = STILL, "the plane in user space stands still: it is ended");
            lock(&self.state).stood_still = Some((process, Instant::now()));
            let _ = kill(Pid::from_raw(process as i32), Signal::SIGKILL);
        }
    }

    /// Says why it has ended, but where it had to: memory of other sizes has taken the place of its own.
    fn ended(&self, process: u32, status: ExitStatus) {
        let told = files::read_text(&self.run_dir.join(FAILURE)).ok();
        if status.success() && told.is_none() {
            info!("the plane in user space has ended, and begins anew");
            lock(&self.state).failure = None;
            return;
        }
        let stood_still = lock(&self.state).stood_still.is_some_and(|(ended, _)| ended == process);
        let why = told.unwrap_or_else(|| match stood_still {
            true => format!("it stood still for {STILL} looks, a second apart, and was ended"),
            false => status.to_string(),
        });
        if self.process.kind == PlaneKind::Dpdk {
            warn!(%why, "the plane in user space has ended; until it is back no packet comes or goes");
        } else {
            warn!(%why, "the plane in user space has ended; the kernel decides all packets");
        }
        lock(&self.state).failure = Some(why);
    }

    /// `asked`: when another one was last asked to end.
    fn start_if_none_runs(&self, asked: &mut Option<Instant>) -> Option<Child> {
        match PlaneLock::acquire(&self.run_dir) {
            Ok(None) => {
                let other = PlaneLock::of_another(&self.run_dir, &self.process.arguments);
                if let Some(process) = other {
                    // It holds the lock, so it is there. Its ways in are of another configuration.
                    if asked.is_none_or(|asked| asked.elapsed() > ASK_TO_END) {
                        *asked = Some(Instant::now());
                        info!(process, "ending the plane in user space of another configuration");
                        let _ = kill(Pid::from_raw(process), Signal::SIGTERM);
                    }
                    return None;
                }
                let mut state = lock(&self.state);
                state.found |= state.starts == 0;
                return None;
            }
            Ok(Some(lock)) => drop(lock),
            Err(error) => {
                lock(&self.state).failure = Some(format!("cannot lock {LOCK}: {error}"));
                return None;
            }
        }
        for said in [FAILURE, NO_RULES] {
            let _ = files::gone(&self.run_dir.join(said));
        }
        let started = self
            .process
            .command(&self.run_dir)
            .arg("--pins")
            .arg(&self.pins)
            .stdout(Stdio::null())
            // What ends this process at a terminal does not end that one.
            .process_group(0)
            .spawn();
        let mut state = lock(&self.state);
        state.starts += 1;
        match started {
            Ok(process) => {
                info!(process = process.id(), "plane in user space started");
                Some(process)
            }
            Err(error) => {
                state.failure = Some(format!("cannot start it: {error}"));
                None
            }
        }
    }
}

/// A process of a plane in user space whose data plane is pinned in another mount namespace than this process's, where
/// nothing is seen of it: a start within `ip netns exec` has a file system of pins of its own, which is there as long
/// as that process is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PinnedElsewhere {
    /// Name of its instance.
    pub name: String,
    /// Its number.
    pub process: u32,
    /// Whether it is in this process's network namespace, and so may have an interface of it.
    pub is_in_this_network: bool,
}

impl fmt::Display for PinnedElsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, process, .. } = self;
        write!(
            f,
            "the data plane of an instance {name} is pinned in another mount namespace, that of its plane in user space, \
             process {process}; `nsenter -t {process} -m -n weir unload --name {name}` removes it, once no weir run is \
             left there"
        )
    }
}

/// Those that can be seen.
pub fn pinned_elsewhere() -> Vec<PinnedElsewhere> {
    let namespace =
        |process: &str, kind: &str| std::fs::read_link(format!("/proc/{process}/ns/{kind}")).ok();
    let (Some(mounts), Some(network)) = (namespace("self", "mnt"), namespace("self", "net")) else {
        return Vec::new();
    };
    let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
    let names = all.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let of = |number: String| {
        let process = number.parse().ok()?;
        let words = std::fs::read(format!("/proc/{number}/cmdline")).ok()?;
        let name = instance_of(&words)?;
        let is_elsewhere = namespace(&number, "mnt")? != mounts;
        let is_in_this_network = namespace(&number, "net")? == network;
        is_elsewhere.then_some(PinnedElsewhere { name, process, is_in_this_network })
    };
    names.filter_map(of).collect()
}

/// The instance whose plane in user space a process is, by the words that it was started with (proc_pid_cmdline(5)).
fn instance_of(words: &[u8]) -> Option<String> {
    let words: Vec<&str> = std::str::from_utf8(words).ok()?.split('\0').collect();
    let ["weir", "plane", rest @ ..] = &words[..] else { return None };
    let pins = rest.iter().position(|word| *word == "--pins")?;
    let name = Path::new(rest.get(pins + 1)?).strip_prefix(PIN_ROOT).ok()?.to_str()?;
    is_instance_name(name).then(|| name.to_owned())
}

/// The arguments of such a process by which a control plane knows whether it is the one that it wants: what it has
/// given besides the directories.
pub fn started_with(mut all: impl Iterator<Item = String>) -> Vec<String> {
    let places = ["--pins", "--run-dir"];
    let mut found = Vec::new();
    while let Some(argument) = all.next() {
        if places.contains(&&*argument) {
            all.next();
        } else {
            found.push(argument);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_to_the_collector_from_one_process() {
        let process = Process { kind: PlaneKind::Dpdk, arguments: Vec::new() };
        let command = process.command(Path::new("/run/a"));
        assert!(command.get_envs().any(|variable| variable == (otlp::ENDPOINT.as_ref(), None)));
    }

    #[test]
    fn who_tells_nothing_new_for_long_stands_still() {
        let mut still = Still::default();
        assert!((0..100).all(|_| !still.is_over(None)), "there is none");
        assert!((0..100).all(|time| !still.is_over(Some((7, time)))), "it goes on");
        assert!(!still.is_over(Some((7, 99))));
        assert_eq!(still.quiet(), None, "it may be chance");
        assert!(!still.is_over(Some((7, 99))));
        assert_eq!(still.quiet(), Some((7, 2)));
        assert!(!still.is_over(Some((7, 100))));
        assert_eq!(still.quiet(), None, "it goes on again");
        let looks = (0..100).take_while(|_| !still.is_over(Some((7, 100)))).count();
        assert_eq!(looks + 1, STILL as usize);
        assert_eq!(still.quiet(), Some((7, STILL)));
        assert!(!still.is_over(Some((8, 100))), "another one");
        assert_eq!(still.quiet(), None);
    }

    #[test]
    fn whose_plane_a_process_is_stands_in_its_words() {
        let of = |words: &[&str]| instance_of(words.join("\0").as_bytes());
        let process = Process { kind: PlaneKind::AfXdp, arguments: vec!["--threads=2".into()] };
        let mut command = process.command(Path::new("/run/a"));
        command.arg("--pins").arg(crate::engine::pin_directory("edge"));
        let given: Vec<&str> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        let whole = [&["weir"][..], &given[..], &[""][..]].concat();
        assert_eq!(of(&whole).as_deref(), Some("edge"));
        for words in [
            &["weir", "run", "--pins", "/sys/fs/bpf/weir/edge"][..],
            &["weir", "plane", "--probe"],
            &["weir", "plane", "--pins"],
            &["weir", "plane", "--pins", "/sys/fs/bpf/weir"],
            &["weir", "plane", "--pins", "/sys/fs/bpf/weir/a/b"],
            &["weir", "plane", "--pins", "/tmp/edge"],
            &["other", "plane", "--pins", "/sys/fs/bpf/weir/edge"],
            &[""],
        ] {
            assert_eq!(of(words), None, "{words:?}");
        }
    }

    #[test]
    fn directories_do_not_tell_processes_apart() {
        let all = ["--run-dir", "/run/a", "--port=lan0=x", "--pins", "/sys/a", "--huge-pages"];
        let found = started_with(all.map(str::to_owned).into_iter());
        assert_eq!(found, ["--port=lan0=x", "--huge-pages"]);
    }

    #[test]
    fn a_process_is_told_by_what_it_was_started_with() {
        let folder = tempfile::tempdir().unwrap();
        let arguments = ["--port=lan0=net_ring0".to_owned(), "--memory-mb=64".to_owned()];
        let other = |wanted: &[String]| PlaneLock::of_another(folder.path(), wanted);
        // One that has not said yet who it is.
        let taken = PlaneLock::acquire(folder.path()).unwrap();
        assert!(taken.is_some() && PlaneLock::acquire(folder.path()).unwrap().is_none());
        assert_eq!(other(&arguments), None);
        drop(taken);
        let taken = PlaneLock::acquire_for(folder.path(), &arguments).unwrap();
        assert!(taken.is_some());
        assert_eq!(other(&arguments), None);
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(other(&arguments[..1]), Some(own));
        assert_eq!(other(&[]), Some(own));
        drop(taken);
        // Whoever has died is not named to the next who looks while another one begins.
        drop(PlaneLock::acquire(folder.path()).unwrap());
        assert_eq!(other(&[]), None);
        let taken = PlaneLock::acquire_for(folder.path(), &[]).unwrap();
        assert!(taken.is_some());
        assert_eq!(other(&[]), None);
        assert_eq!(other(&arguments), Some(own));
    }
}
