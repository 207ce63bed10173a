//! What goes on beside traffic and churn.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::flood::{Flood, FloodKind};
use super::handshake::Handshakes;
use super::{FLAPPING, Scenario};
use crate::balancer::PoolControl;
use crate::demo::DemoSpec;
use crate::error::{Doing, Result};
use crate::lab::Lab;
use crate::topology::{VIP4, WEB_PORT};
use crate::traffic::{Stats, TrafficHandle};
use weir_testbed::interrupt::{interrupted, sleep};

/// A flap takes so long: down, up, and until the next.
const FLAP: Duration = Duration::from_secs(1);
/// How long of it the backend is down.
const DOWN: std::ops::Range<Duration> = Duration::from_millis(100)..Duration::from_millis(800);

/// A thread that does something to the lab until it is told to stop. Dropping it stops it.
pub(crate) struct Stress {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
    control: Arc<dyn PoolControl>,
    handshakes: Option<Arc<Handshakes>>,
}

impl Stress {
    /// Starts what the spec's scenario does, beside running traffic.
    ///
    /// # Errors
    /// If the lab cannot be used for it, or no thread can be had.
    pub(crate) fn begin(
        lab: &Arc<Lab>,
        control: Arc<dyn PoolControl>,
        spec: &DemoSpec,
        traffic: &TrafficHandle,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut stress = Self { stop, thread: None, control, handshakes: None };
        let stats = Arc::clone(traffic.stats());
        match spec.scenario {
            Scenario::Churn | Scenario::Idle | Scenario::Reuse => {}
            Scenario::SynFlood => stress.flood(lab, FloodKind::Syn, spec, stats)?,
            Scenario::AckFlood => stress.flood(lab, FloodKind::Ack, spec, stats)?,
            Scenario::Flap => stress.flap(Arc::clone(lab), spec, stats)?,
            Scenario::DeadControl => stress.die(spec.dead, stats)?,
            Scenario::Handshake => {
                let control = Arc::clone(&stress.control);
                let held = Arc::new(Handshakes::new(lab, control, traffic, spec));
                stress.control = Arc::clone(&held) as _;
                stress.handshakes = Some(held);
            }
        }
        Ok(stress)
    }

    /// By whom the pool is to be changed.
    pub(crate) fn control(&self) -> Arc<dyn PoolControl> {
        Arc::clone(&self.control)
    }

    /// Whether the pool must not change yet.
    pub(crate) fn holds_changes(&self, scenario: Scenario) -> bool {
        scenario == Scenario::DeadControl && !self.is_done()
    }

    fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it, and waits until it has ended.
    ///
    /// # Errors
    /// What it failed with.
    pub(crate) fn end(mut self) -> Result<()> {
        let result = self.join();
        if let Some(handshakes) = self.handshakes.take() {
            handshakes.end()?;
        }
        result
    }

    fn join(&mut self) -> Result<()> {
        self.stop.store(true, Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }

    fn spawn(
        &mut self,
        work: impl FnOnce(&AtomicBool) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let stop = Arc::clone(&self.stop);
        let thread = thread::Builder::new().name("scenario".into());
        let thread = thread.spawn(move || work(&stop)).doing(|| "starting a thread".into())?;
        self.thread = Some(thread);
        Ok(())
    }

    fn flood(
        &mut self,
        lab: &Lab,
        kind: FloodKind,
        spec: &DemoSpec,
        stats: Arc<Stats>,
    ) -> Result<()> {
        let target = SocketAddr::from((VIP4, WEB_PORT));
        let mut flood = Flood::new(lab, kind, target, spec.traffic.seed, Duration::ZERO)?;
        self.spawn(move |stop| flood.run(stop, |sent| stats.met(sent)))
    }

    fn flap(&mut self, lab: Arc<Lab>, spec: &DemoSpec, stats: Arc<Stats>) -> Result<()> {
        let mut random = ChaCha8Rng::seed_from_u64(spec.traffic.seed);
        self.spawn(move |stop| {
            let backend = lab.backend(FLAPPING);
            while !stop.load(Relaxed) && !interrupted() {
                let down = random.random_range(DOWN);
                backend.kill();
                stats.met(1);
                sleep(down);
                backend.start()?;
                sleep(FLAP - down);
            }
            Ok(())
        })
    }

    /// Kills the control plane and starts it again after so long.
    fn die(&mut self, dead: Duration, stats: Arc<Stats>) -> Result<()> {
        let control = Arc::clone(&self.control);
        self.spawn(move |_| {
            let before = stats.snapshot().started;
            let back = control.crash(dead);
            stats.met(stats.snapshot().started - before);
            // An interrupt lets it come back early, or not at all, which is no fault of its.
            if interrupted() { Ok(()) } else { back }
        })
    }
}

impl Drop for Stress {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic was printed already, and this may be an unwinding.
            let _ = thread.join();
        }
    }
}
