//! The process of a plane in user space: started, and started again when it has ended. It goes on without
//! this one, as the program in the kernel does; whoever comes next finds it by the lock that it holds.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// In the run directory: held by the process while it runs, and what it said when it could not.
const LOCK: &str = "plane.lock";
const FAILURE: &str = "plane.failure";

/// How often somebody looks whether it is there.
const LOOK: Duration = Duration::from_millis(50);
/// The first pause before it is started again, and the longest: one that ends at once is tried less often.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// One that has run so long has begun well.
const WELL_BEGUN: Duration = Duration::from_secs(5);

/// Held by the plane's process while it runs.
#[derive(Debug)]
pub struct PlaneLock {
    _file: Flock<File>,
    run_dir: PathBuf,
}

impl PlaneLock {
    /// Takes it; `None` if another process has it.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn acquire(run_dir: &Path) -> io::Result<Option<Self>> {
        let path = run_dir.join(LOCK);
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Some(Self { _file: file, run_dir: run_dir.to_owned() })),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// Leaves word why the process ends.
    pub fn say(&self, why: &str) {
        let _ = fs::write(self.run_dir.join(FAILURE), why);
    }
}

#[derive(Default)]
struct State {
    starts: u64,
    /// Whether one ran already, which an earlier control plane has started.
    found: bool,
    failure: Option<String>,
}

/// Looks after the process, on a thread of its own. When dropped, the process is left to itself.
pub struct Supervisor {
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// For a data plane that is pinned in a directory.
    pub fn start(pins: &Path, run_dir: &Path) -> Self {
        let (state, stop) = (Arc::<Mutex<State>>::default(), Arc::<AtomicBool>::default());
        let watch = Watch {
            pins: pins.to_owned(),
            run_dir: run_dir.to_owned(),
            state: Arc::clone(&state),
            stop: Arc::clone(&stop),
        };
        let spawned = thread::Builder::new().name("plane".into()).spawn(move || watch.go_on());
        if let Err(error) = &spawned {
            lock(&state).failure = Some(format!("cannot start a thread: {error}"));
        }
        Self { state, stop, thread: spawned.ok() }
    }

    /// Times that it was started again, as it had ended.
    pub fn restarts(&self) -> u64 {
        let state = lock(&self.state);
        state.starts.saturating_sub(u64::from(!state.found))
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

struct Watch {
    pins: PathBuf,
    run_dir: PathBuf,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn go_on(&self) {
        let mut child: Option<(Child, Instant)> = None;
        let (mut pause, mut next) = (FIRST_PAUSE, Instant::now());
        while !self.stop.load(Ordering::Relaxed) {
            if let Some((process, since)) = &mut child {
                if let Ok(Some(status)) = process.try_wait() {
                    let well = since.elapsed() > WELL_BEGUN;
                    pause = if well { FIRST_PAUSE } else { LONGEST_PAUSE.min(pause * 2) };
                    next = Instant::now() + pause;
                    child = None;
                    self.ended(status);
                }
            } else if Instant::now() >= next {
                child = self.start_if_none_runs().map(|process| (process, Instant::now()));
                next = Instant::now() + LOOK;
            }
            thread::sleep(LOOK);
        }
    }

    /// Says why it has ended, but where it had to: memory of other sizes has taken the place of its own.
    fn ended(&self, status: ExitStatus) {
        let told = fs::read_to_string(self.run_dir.join(FAILURE)).ok();
        if status.success() && told.is_none() {
            info!("the plane in user space has ended, and begins anew");
            lock(&self.state).failure = None;
            return;
        }
        let why = told.unwrap_or_else(|| status.to_string());
        warn!(%why, "the plane in user space has ended; the kernel decides all packets");
        lock(&self.state).failure = Some(why);
    }

    fn start_if_none_runs(&self) -> Option<Child> {
        match PlaneLock::acquire(&self.run_dir) {
            Ok(None) => {
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
        let _ = fs::remove_file(self.run_dir.join(FAILURE));
        // This very program, also where its file has been replaced since.
        let started = Command::new("/proc/self/exe")
            .arg0("weir")
            .arg("plane")
            .arg("--pins")
            .arg(&self.pins)
            .arg("--run-dir")
            .arg(&self.run_dir)
            .stdin(Stdio::null())
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
