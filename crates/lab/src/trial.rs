//! A trial: one method and scheduler in front of backends that take time for what they are asked, and what
//! the clients and the backends had of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::balancer::{Balancer, BalancerSpec, PoolControl};
use crate::error::Result;
use crate::lab::{Lab, LabSpec};
use crate::loads::Loads;
use crate::requests::{Planned, Request, Requests};
use crate::topology::Topology;
use weir_testbed::interrupt::sleep;

/// What is tried.
#[derive(Clone, Debug)]
pub struct TrialSpec {
    /// Path of the program `weir` that is under test.
    pub weir: PathBuf,
    /// Backends that there are, and how many of them are in the pool at first.
    pub backends: usize,
    /// How many of them are in the pool at first, 1..=`backends`.
    pub pool: usize,
    /// Steering method of the services.
    pub method: String,
    /// Further lines of each service.
    pub service_lines: String,
    /// Further lines of `[balancer]`, and tables behind it.
    pub balancer_lines: String,
    /// How often the balancer is told how busy each backend is, if it is.
    pub told: Option<Duration>,
    /// Rate of downloads, in bytes per second.
    pub big_rate: u64,
    /// The requests that are made, each with its time from the start.
    pub planned: Vec<Planned>,
    /// Longest wait for a piece of an answer.
    pub patience: Duration,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Trial {
    /// All requests that have ended, by the time of their beginning.
    pub requests: Vec<Request>,
    /// Of each second, the share of it that each backend was busy, while requests were made.
    pub busy: Vec<Vec<f64>>,
}

impl Trial {
    /// Runs it in a laboratory of its own, in which answers pass the balancer. `meanwhile` is called when
    /// the requests have begun, with their start.
    ///
    /// # Errors
    /// If the laboratory cannot be made, or it was interrupted. Requests that fail are no error.
    pub fn run(
        spec: &TrialSpec,
        meanwhile: impl FnOnce(&Balancer, Instant) -> Result<()>,
    ) -> Result<Self> {
        let lab = Arc::new(Lab::create(LabSpec {
            topology: Topology::Inline,
            backends: spec.backends,
            work: true,
            big_bytes: 1 << 40,
            big_rate: spec.big_rate,
            ..LabSpec::default()
        })?);
        let balancer = Arc::new(Balancer::start(
            &lab,
            BalancerSpec {
                method: spec.method.clone(),
                service_lines: spec.service_lines.clone(),
                balancer_lines: spec.balancer_lines.clone(),
                ..BalancerSpec::new(&spec.weir, spec.pool)
            },
        )?);
        let control = Arc::clone(&balancer) as Arc<dyn PoolControl>;
        let loads = spec.told.map(|every| Loads::start_every(&lab, control, every)).transpose()?;
        let requests = Requests::start(&lab, &spec.planned, spec.patience)?;
        let length = spec.planned.last().map_or(Duration::ZERO, |last| last.at);
        let (started, over) = (requests.started(), AtomicBool::new(false));
        let (requests, busy) = thread::scope(|scope| {
            let watch = scope.spawn(|| watch(&lab, started, length, &over));
            let result = meanwhile(&balancer, started).and_then(|()| requests.finish());
            over.store(true, Relaxed);
            (result, watch.join().unwrap_or_default())
        });
        drop(loads);
        Ok(Self { requests: requests?, busy })
    }
}

/// How busy each backend was in each second of this length of time.
fn watch(lab: &Lab, started: Instant, length: Duration, over: &AtomicBool) -> Vec<Vec<f64>> {
    let worked = || -> Vec<Duration> {
        lab.backends().iter().map(|backend| backend.worked().unwrap_or_default()).collect()
    };
    let (mut last, mut before, mut all) = (Instant::now(), worked(), Vec::new());
    while !over.load(Relaxed) && started.elapsed() + Duration::from_secs(1) <= length {
        if !sleep(Duration::from_secs(1)) {
            break;
        }
        let (now, after) = (Instant::now(), worked());
        let time = (now - last).as_secs_f64();
        let share = |(after, before): (&Duration, &Duration)| {
            after.saturating_sub(*before).as_secs_f64() / time
        };
        all.push(after.iter().zip(&before).map(share).collect());
        (last, before) = (now, after);
    }
    all
}
