//! Changes of the pool, one after the other, drawn from a seed.
//!
//! A [`Script`] decides what happens next and knows nothing but its own past, so it can be tested
//! without a lab; [`Churn`] does it, on a thread of its own.

mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::balancer::PoolControl;
use crate::error::Result;
use crate::lab::Lab;
use weir_testbed::interrupt::interrupted;

pub use script::{Change, ChurnSpec, Place, Script};

/// A change that was made.
#[derive(Clone, Debug, Serialize)]
pub struct ChangeRecord {
    /// When it began, in seconds since the lab was made.
    pub at: f64,
    /// The kind of change, one of [`Change::KINDS`].
    pub kind: &'static str,
    /// The change in words, for example `b3 weight 2`.
    pub what: String,
    /// Whether it counts as a pool change; see [`Change::changes_pool`].
    pub counted: bool,
    /// Why it failed; `None` if it was made.
    pub error: Option<String>,
}

/// What the churning of a pool came to.
#[derive(Clone, Debug, Serialize)]
pub struct ChurnReport {
    /// Seed of the script: the same seed draws the same choices.
    pub seed: u64,
    /// Number of pool changes that were made.
    pub changes: u64,
    /// Times that the balancer's control plane was killed and started again.
    pub crashes: u64,
    /// Number of changes that could not be made.
    pub failed: u64,
    /// Changes that were refused at first and asked for again, by the reasons that were given: something was away
    /// that they need.
    pub refused: BTreeMap<&'static str, u64>,
    /// All changes, in the order in which they were made.
    pub log: Vec<ChangeRecord>,
    /// Where each backend was at the end, by its position.
    pub places: Vec<Place>,
}

#[derive(Debug)]
struct Diary {
    log: Vec<ChangeRecord>,
    places: Vec<Place>,
    weights: Vec<u32>,
    refused: BTreeMap<&'static str, u64>,
}

/// The churning of a lab's pool. Dropping it ends it.
#[derive(Debug)]
pub struct Churn {
    seed: u64,
    stop: Arc<AtomicBool>,
    diary: Arc<Mutex<Diary>>,
    thread: Option<JoinHandle<()>>,
}

impl Churn {
    /// Starts to churn a pool that consists of the lab's first `pool` backends. `open` says how
    /// many connections a backend holds; [`Stats::open_on`](crate::traffic::Stats::open_on) does.
    pub fn start(
        lab: Arc<Lab>,
        control: Arc<dyn PoolControl>,
        pool: usize,
        open: impl Fn(usize) -> u64 + Send + 'static,
        spec: ChurnSpec,
    ) -> Self {
        let seed = spec.seed;
        let script = Script::new(spec, lab.backends().len(), pool);
        let stop = Arc::new(AtomicBool::new(false));
        let diary = Arc::new(Mutex::new(Diary {
            log: Vec::new(),
            places: script.places(),
            weights: script.weights(),
            refused: BTreeMap::new(),
        }));
        let watch = {
            let (lab, control, stop) = (lab.clone(), control.clone(), stop.clone());
            thread::spawn(move || watch(&lab, &*control, &stop))
        };
        let worker = Worker { lab, control, stop: Arc::clone(&stop), diary: Arc::clone(&diary) };
        let thread = thread::spawn(move || {
            worker.run(script, open);
            // A panic was printed already.
            let _ = watch.join();
        });
        Self { seed, stop, diary, thread: Some(thread) }
    }

    /// The last changes, newest last, `most` at most.
    pub fn last(&self, most: usize) -> Vec<ChangeRecord> {
        let diary = lock(&self.diary);
        diary.log[diary.log.len().saturating_sub(most)..].to_vec()
    }

    /// Number of pool changes so far.
    pub fn changes(&self) -> u64 {
        count(&lock(&self.diary).log, |record| record.counted && record.error.is_none())
    }

    /// The kinds of change that were made so far, of [`Change::KINDS`].
    pub fn kinds(&self) -> BTreeSet<&'static str> {
        let diary = lock(&self.diary);
        diary.log.iter().filter(|r| r.error.is_none()).map(|record| record.kind).collect()
    }

    /// Where each backend is now, by its position; a change counts from its beginning.
    pub fn places(&self) -> Vec<Place> {
        lock(&self.diary).places.clone()
    }

    /// Where each backend is now and with which weight, by its position.
    pub fn standings(&self) -> Vec<(Place, u32)> {
        let diary = lock(&self.diary);
        diary.places.iter().copied().zip(diary.weights.iter().copied()).collect()
    }

    /// Lets no further change begin, and does not wait for the one under way.
    pub fn halt(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Whether the change that was under way at [`Churn::halt`] is made.
    pub fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the churning, once the change under way is made.
    pub fn finish(mut self) -> ChurnReport {
        self.end();
        let diary = lock(&self.diary);
        let log = &diary.log;
        ChurnReport {
            seed: self.seed,
            changes: count(log, |r| r.counted && r.error.is_none()),
            crashes: count(log, |r| !r.counted && r.error.is_none()),
            failed: count(log, |r| r.error.is_some()),
            refused: diary.refused.clone(),
            log: log.clone(),
            places: diary.places.clone(),
        }
    }

    fn end(&mut self) {
        self.halt();
        if let Some(thread) = self.thread.take() {
            // A panic was printed already.
            let _ = thread.join();
        }
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock(diary: &Mutex<Diary>) -> MutexGuard<'_, Diary> {
    diary.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(log: &[ChangeRecord], of: impl Fn(&&ChangeRecord) -> bool) -> u64 {
    log.iter().filter(of).count() as u64
}

/// How often the balancer is asked whether it has noticed a death.
const GLANCE: Duration = Duration::from_millis(100);

/// Notes when the balancer has noticed that backends are dead, until it is told to stop.
fn watch(lab: &Lab, control: &dyn PoolControl, stop: &AtomicBool) {
    let events = lab.events();
    events.watch();
    while !stop.load(Relaxed) && !interrupted() {
        for backend in events.unnoticed() {
            // A control plane that is away has noticed nothing.
            if control.has_noticed(backend).unwrap_or(false) {
                events.notice(backend);
            }
        }
        thread::sleep(GLANCE);
    }
}

struct Worker {
    lab: Arc<Lab>,
    control: Arc<dyn PoolControl>,
    stop: Arc<AtomicBool>,
    diary: Arc<Mutex<Diary>>,
}

impl Worker {
    fn run(&self, mut script: Script, open: impl Fn(usize) -> u64) {
        let started = Instant::now();
        while self.pause(script.gap()) {
            let asked = Instant::now();
            let Some(change) = script.next(started.elapsed(), &open) else {
                continue;
            };
            {
                let mut diary = lock(&self.diary);
                (diary.places, diary.weights) = (script.places(), script.weights());
            }
            let at = self.lab.events().elapsed().as_secs_f64();
            let error = self.make(change, asked).err().map(|error| error.to_string());
            script.made(started.elapsed(), change);
            if let Some(error) = &error {
                tracing::warn!("{change}: {error}");
            }
            let mut diary = lock(&self.diary);
            diary.refused = self.control.refused();
            diary.log.push(ChangeRecord {
                at,
                kind: change.kind(),
                what: change.to_string(),
                counted: change.changes_pool(),
                error,
            });
        }
    }

    /// Returns whether to go on.
    fn pause(&self, gap: Duration) -> bool {
        let end = Instant::now() + gap;
        loop {
            if self.stop.load(Relaxed) || interrupted() {
                return false;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    /// Makes a change for which was `asked` who sits where.
    fn make(&self, change: Change, asked: Instant) -> Result<()> {
        match change {
            Change::Add { backend, weight } => {
                // It may have left the pool dead.
                self.lab.backend(backend).start()?;
                self.control.add(backend, weight)
            }
            Change::Remove { backend } => {
                self.lab.events().remove(backend, asked, || self.control.remove(backend))
            }
            Change::Drain { backend } => self.control.drain(backend),
            Change::Undrain { backend } => self.control.undrain(backend),
            Change::Reweight { backend, weight } => self.control.set_weight(backend, weight),
            Change::Kill { backend } => {
                self.control.while_watched(&mut || self.lab.backend(backend).kill());
                Ok(())
            }
            Change::BringBack { backend } => self.lab.backend(backend).start(),
            Change::Reload { backend, weight } => self.control.reload_with_weight(backend, weight),
            Change::Crash { away } => self.control.crash(away),
        }
    }
}

/// Does some work while `churn` goes on, which looks whether the work is over. What goes wrong with that is an
/// error, after the work.
pub(crate) fn beside<T: Send>(
    churn: impl FnOnce(&AtomicBool) -> Result<()> + Send,
    work: impl FnOnce() -> T + Send,
) -> Result<T> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let churn = scope.spawn(|| churn(&over));
        let done = work();
        over.store(true, Relaxed);
        let churned = churn.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        churned.map(|()| done)
    })
}
