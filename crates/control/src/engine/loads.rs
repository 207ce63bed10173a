//! What schedulers are told: how loaded each backend is, and its weight (docs/schedulers.md).
//!
//! Open connections are counted by packets; all else is written here, once a second, and before a table
//! is published.

use super::commands::Done;
use super::service::ServiceRuntime;
use super::{Engine, EngineError, PlaneResult};
use std::collections::HashMap;
use std::time::Instant;
use weir_plane::{LaneCounters, Plane};
use weir_steering::{BackendId, BackendLoad, Load, SCHEDULER, Scheduler, buckets};

/// A load that is measured is half of what it was and half of what it is.
const SMOOTH: f64 = 0.5;

/// The loads of one service's backends, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Loads {
    /// What was told last.
    told: HashMap<BackendId, f64>,
    /// The counters at the last look, and when that was.
    before: HashMap<BackendId, LaneCounters>,
    at: Option<Instant>,
    /// Packets or bytes in a second.
    measured: HashMap<BackendId, f64>,
    /// Of `awrr`: what weights are multiplied by.
    buckets: HashMap<BackendId, u32>,
    /// What the numbers are that packets compare.
    unit: Option<Load>,
}

impl Loads {
    /// What was told of a backend last.
    pub fn told(&self, id: BackendId) -> Option<f64> {
        self.told.get(&id).copied()
    }

    /// A backend says how loaded it is, or somebody else does; none: nobody knows any more.
    pub fn tell(&mut self, id: BackendId, load: Option<f64>) {
        match load {
            Some(load) => self.told.insert(id, load),
            None => self.told.remove(&id),
        };
    }

    /// What a backend's weight is multiplied by.
    pub fn factor(&self, id: BackendId) -> u32 {
        self.buckets.get(&id).copied().unwrap_or(buckets(&[None])[0])
    }

    /// Takes the counters of this moment.
    fn measure(&mut self, load: Load, ids: &[BackendId], lanes: &[LaneCounters]) {
        let now = Instant::now();
        let seconds = self.at.map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        for id in ids {
            let lane = lanes.get(id.index()).copied().unwrap_or_default();
            let before = self.before.insert(*id, lane);
            let Some(before) = before.filter(|_| seconds > 0.0) else { continue };
            let more = match load {
                Load::Bytes => lane.bytes.saturating_sub(before.bytes),
                _ => lane.packets.saturating_sub(before.packets),
            };
            let rate = more as f64 / seconds;
            let smooth = self.measured.get(id).map_or(rate, |was| was + SMOOTH * (rate - was));
            self.measured.insert(*id, smooth);
        }
        self.at = Some(now);
    }
}

impl ServiceRuntime {
    /// Who gets its first packets, and by which loads.
    pub fn scheduler(&self) -> (Scheduler, Load) {
        let settings = self.configured.method.settings();
        (Scheduler::of(settings), Load::of(settings))
    }

    /// Whether its method has a scheduler to be chosen.
    pub fn has_scheduler(&self) -> bool {
        self.configured.method.settings().word(SCHEDULER).is_some()
    }

    /// The load of a backend in the unit of the service's `load`, as far as it is known; `counted`: its
    /// open connections.
    pub fn load_of(&self, id: BackendId, counted: i64) -> Option<f64> {
        let (scheduler, load) = self.scheduler();
        if !scheduler.reads_loads() {
            return None;
        }
        match load {
            Load::Connections => Some(counted.max(0) as f64),
            Load::Told => self.loads.told(id),
            Load::Packets | Load::Bytes => self.loads.measured.get(&id).copied(),
        }
    }
}

impl<P: Plane> Engine<P> {
    /// `weir backend load`.
    pub(super) fn told_load(&mut self, service: &str, backend: &str, load: f64) -> Done {
        if !load.is_finite() || load < 0.0 {
            return Err(EngineError::Invalid(format!(
                "load: {load} is not a load; give a number of 0 or more, in any unit that is the same \
                 for all backends of the service"
            )));
        }
        let id = self.find(service, backend)?.id;
        let one = self.service_mut(service)?;
        one.loads.told.insert(id, load);
        let (scheduler, reads) = one.scheduler();
        let said = format!("backend {backend} of {service} has load {load}");
        if scheduler.reads_loads() && reads == Load::Told {
            self.tell_loads(service);
            return Ok(said);
        }
        let right = "set scheduler = \"awrr\", \"p2c\" or \"least\", and load = \"told\"";
        Ok(match self.service(service)?.has_scheduler() {
            true => format!(
                "{said}; nothing reads it: the service has scheduler = {:?} and load = {:?} ({right})",
                scheduler.name(),
                reads.name()
            ),
            false => format!("{said}; nothing reads it: the service's method has no scheduler"),
        })
    }

    /// Takes loads up that are measured, and tells them.
    pub(super) fn look_at_loads(&mut self) -> Result<(), EngineError> {
        let reads = |service: &&ServiceRuntime| service.scheduler().0.reads_loads();
        let names: Vec<String> =
            self.services.values().filter(reads).map(|s| s.configured.name.clone()).collect();
        let measures = |name: &String| {
            let load = self.services.get(name).map(|service| service.scheduler().1);
            matches!(load, Some(Load::Packets | Load::Bytes))
        };
        let lanes =
            if names.iter().any(measures) { self.plane.lanes().plane()? } else { Vec::new() };
        for name in &names {
            let Some(service) = self.services.get_mut(name) else { continue };
            let ids: Vec<BackendId> = service.pool.iter().map(|member| member.id).collect();
            let (_, load) = service.scheduler();
            if matches!(load, Load::Packets | Load::Bytes) {
                service.loads.measure(load, &ids, &lanes);
            }
            service.loads.told.retain(|id, _| ids.contains(id));
            service.loads.measured.retain(|id, _| ids.contains(id));
            self.tell_loads(name);
        }
        Ok(())
    }

    /// Tells packets the weights of a service's backends, and their loads, unless packets count them;
    /// with `awrr`, another table is due if the loads have changed what weights are multiplied by.
    pub(super) fn tell_loads(&mut self, name: &str) {
        let Some(service) = self.services.get_mut(name) else { return };
        let (scheduler, load) = service.scheduler();
        if !scheduler.reads_loads() {
            service.loads.unit = None;
            return;
        }
        let anew = service.loads.unit.replace(load) != Some(load);
        let counts = load == Load::Connections;
        let plane = &mut self.plane;
        if anew && counts {
            service.pool.iter().for_each(|member| plane.set_load(member.id, 0, Some(0)));
        }
        let known: Vec<Option<f64>> = service
            .pool
            .iter()
            .map(|member| service.load_of(member.id, plane.load(member.id).value))
            .collect();
        let each: Vec<f64> = known.iter().map(|load| load.unwrap_or(0.0)).collect();
        let values = BackendLoad::in_proportion(&each);
        for ((member, value), weight) in service.pool.iter().zip(&values).zip(service.weights()) {
            plane.set_load(member.id, weight, (!counts).then_some(*value));
        }
        if scheduler != Scheduler::Awrr {
            return;
        }
        // Those that get nothing new count for nobody's average.
        let takes = service.pool.iter().map(|member| service.takes_new(member) && member.up);
        let takes: Vec<bool> = takes.collect();
        let loads = known.iter().zip(&values).zip(takes);
        let loads: Vec<Option<u64>> = loads
            .map(|((known, value), takes)| known.filter(|_| takes).map(|_| *value as u64))
            .collect();
        for (member, wanted) in service.pool.iter().zip(buckets(&loads)) {
            let now = service.loads.factor(member.id);
            // Small changes are noise, and a table each second would follow it.
            if now.abs_diff(wanted) > (now / 10).max(1) {
                service.loads.buckets.insert(member.id, wanted);
                service.dirty = true;
            }
        }
    }

    /// Puts the numbers of open connections right that packets count: what the data plane forgets, it
    /// does not see ending.
    pub(super) fn recount(&mut self) -> Result<(), EngineError> {
        for service in self.services.values() {
            let (scheduler, load) = service.scheduler();
            if !scheduler.reads_loads() || load != Load::Connections || service.turn.is_some() {
                continue;
            }
            let ids = service.pool.iter().map(|member| member.id);
            let before: Vec<(BackendId, i64)> =
                ids.map(|id| (id, self.plane.load(id).value)).collect();
            let open = self.plane.open_connections(service.number).plane()?;
            for (id, before) in before {
                let off = open.get(&id).copied().unwrap_or(0) - before;
                if off != 0 {
                    self.plane.add_load(id, off);
                }
            }
        }
        self.look_at_uncounted()
    }
}
