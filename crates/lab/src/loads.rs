//! How busy the backends are, told to the balancer: the CPU time of each backend's control group.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::balancer::PoolControl;
use crate::error::{Doing, Error, Result};
use crate::lab::Lab;
use weir_testbed::interrupt::sleep;

/// Time from one round of loads to the next.
const ROUND: Duration = Duration::from_millis(250);

/// Tells the balancer, four times a second, how many CPUs each backend has used lately: the mean of
/// the last quarter of a second and of what was told before. Dropping it ends it.
#[derive(Debug)]
pub struct Loads {
    stop: Arc<AtomicBool>,
    told: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Loads {
    /// Starts it, for a lab whose backends have control groups
    /// ([`LabSpec::cgroups`](crate::LabSpec::cgroups)).
    ///
    /// # Errors
    /// If they have none, or no thread can be had.
    pub fn start(lab: &Arc<Lab>, control: Arc<dyn PoolControl>) -> Result<Self> {
        Self::start_every(lab, control, ROUND)
    }

    /// The same with another time between rounds, also of backends that work
    /// ([`LabSpec::work`](crate::LabSpec::work)): the share of the time that they are busy.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_every(
        lab: &Arc<Lab>,
        control: Arc<dyn PoolControl>,
        round: Duration,
    ) -> Result<Self> {
        if !lab.spec().cgroups && !lab.spec().work {
            return Err(Error::BadSpec("loads are of control groups: ask the lab for them".into()));
        }
        let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let worker = (Arc::clone(&stop), Arc::clone(&told), Arc::clone(lab));
        let thread = thread::Builder::new()
            .name("loads".into())
            .spawn(move || tell(&worker.0, &worker.1, &worker.2, &*control, round))
            .doing(|| "starting a thread".into())?;
        Ok(Self { stop, told, thread: Some(thread) })
    }

    /// How many loads the balancer has taken so far.
    pub fn told(&self) -> u64 {
        self.told.load(Relaxed)
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic was printed already.
            let _ = thread.join();
        }
    }
}

fn tell(
    stop: &AtomicBool,
    told: &AtomicU64,
    lab: &Lab,
    control: &dyn PoolControl,
    round: Duration,
) {
    let mut known = vec![Usage::default(); lab.backends().len()];
    while !stop.load(Relaxed) && sleep(round) {
        for (backend, usage) in lab.backends().iter().zip(&mut known) {
            let of_group = || backend.cgroup()?.cpu_time().ok();
            let Some(used) = backend.worked().or_else(of_group) else { continue };
            let Some(load) = usage.add(Instant::now(), used) else { continue };
            match control.tell_load(backend.index(), load) {
                Ok(true) => {
                    told.fetch_add(1, Relaxed);
                }
                Ok(false) => {}
                // The control plane may be dead, or the backend on its way out.
                Err(error) => tracing::debug!("load of {}: {error}", backend.name()),
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    last: Option<(Instant, Duration)>,
    mean: f64,
}

impl Usage {
    /// CPUs used lately, if there was a look before.
    fn add(&mut self, now: Instant, used: Duration) -> Option<f64> {
        let (then, before) = self.last.replace((now, used))?;
        let time = now.saturating_duration_since(then).as_secs_f64().max(1e-6);
        let share = used.saturating_sub(before).as_secs_f64() / time;
        self.mean = (self.mean + share) / 2.0;
        Some(self.mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_in_cpus_and_follows() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut usage = Usage::default();
        assert_eq!(usage.add(start, second * 5), None);
        assert_eq!(usage.add(start + second, second * 6), Some(0.5));
        assert_eq!(usage.add(start + second * 2, second * 8), Some(1.25));
        assert_eq!(usage.add(start + second * 3, second * 8), Some(0.625));
    }
}
