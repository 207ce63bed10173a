//! Connections that count in no load, where loads are open connections: Cheetah's without timestamps, which no packet
//! tells the end of. Whoever has many of them looks idle to a scheduler, and gets more.

use super::super::service::ServiceRuntime;
use super::super::{Engine, EngineError, PlaneResult};
use std::collections::{BTreeMap, BTreeSet};
use tracing::warn;
use weir_plane::Plane;
use weir_steering::{BackendId, Load, ServiceId};

/// So many that have begun at a backend from one look to the next are many, if they are more than count there.
const MANY: u64 = 20;
/// Seconds after there were many until they are over: clients come and go for minutes.
const ARE_OVER: u32 = 300;

/// Those of each backend of services that count open connections.
#[derive(Debug, Default)]
pub(super) struct Uncounted(BTreeMap<(ServiceId, BackendId), Remembered>);

/// Those of one backend.
#[derive(Debug, Default)]
struct Remembered {
    /// So many were in the connection table at the last look, ended or not.
    there: u64,
    /// Those that have begun while they were many, and when there were many last.
    open: Option<(u64, u32)>,
}

impl Remembered {
    /// Takes notice of how many are there, of a backend at which so many others count as open.
    fn look(&mut self, there: u64, counted: u64, now: u32) {
        let more = there.saturating_sub(self.there);
        self.there = there;
        if more >= MANY && more > counted {
            self.open = Some((self.open.map_or(0, |(open, _)| open) + more, now));
        } else if self.open.is_some_and(|(_, last)| now.saturating_sub(last) >= ARE_OVER) {
            self.open = None;
        }
    }
}

/// Whether a scheduler goes by open connections that cookies may leave out.
fn leaves_out(service: &ServiceRuntime) -> bool {
    let (scheduler, load) = service.scheduler();
    scheduler.reads_loads()
        && load == Load::Connections
        && service.configured.is_stamped_here()
        && service.turn.is_none()
}

impl<P: Plane> Engine<P> {
    pub(in crate::engine) fn look_at_uncounted(&mut self) -> Result<(), EngineError> {
        let now = self.now();
        let services: Vec<(ServiceId, Vec<BackendId>)> = self
            .services
            .values()
            .filter(|service| leaves_out(service))
            .map(|service| (service.number, service.pool.iter().map(|one| one.id).collect()))
            .collect();
        let all = services.iter().flat_map(|(number, pool)| pool.iter().map(|id| (*number, *id)));
        let all: BTreeSet<(ServiceId, BackendId)> = all.collect();
        self.lately.uncounted.0.retain(|at, _| all.contains(at));
        for (number, pool) in &services {
            let there = self.remembered(*number)?;
            let before = self.uncounted_warning(*number).is_some();
            for id in pool {
                let there = there.get(id).copied().unwrap_or_default();
                let counted = self.plane.load(*id).value.max(0) as u64;
                let fresh = || Remembered { there, open: None };
                let known = self.lately.uncounted.0.entry((*number, *id)).or_insert_with(fresh);
                known.look(there, counted, now);
            }
            if let (false, Some(said)) = (before, self.uncounted_warning(*number)) {
                warn!("{said}");
            }
        }
        Ok(())
    }

    /// How many connections of a service the connection table has at each backend.
    fn remembered(&self, number: ServiceId) -> Result<BTreeMap<BackendId, u64>, EngineError> {
        let mut there: BTreeMap<BackendId, u64> = BTreeMap::new();
        let mut take = |backend: BackendId| *there.entry(backend).or_default() += 1;
        match self.plane.read_connections(number).plane()? {
            Some(read) => read(&mut |_, backend| take(backend)).plane()?,
            None => {
                let all = self.plane.connections(number).plane()?;
                all.iter().for_each(|(_, flow)| take(flow.backend));
            }
        }
        Ok(there)
    }

    /// What an operator should know of connections that count nowhere.
    pub(in crate::engine) fn uncounted_warnings(&self) -> Vec<String> {
        let numbers = self.services.values().map(|service| service.number);
        numbers.filter_map(|number| self.uncounted_warning(number)).collect()
    }

    fn uncounted_warning(&self, number: ServiceId) -> Option<String> {
        let service = self.services.get(self.names.get(&number)?)?;
        let mut all = 0;
        let mut backends = Vec::new();
        for member in &service.pool {
            let known = self.lately.uncounted.0.get(&(number, member.id));
            if let Some((more, _)) = known.and_then(|known| known.open) {
                all += more;
                backends.push(format!("{}: {more}", member.wanted.name));
            }
        }
        (!backends.is_empty()).then(|| {
            format!(
                "service {}: {all} connections have begun without TCP timestamps ({}), and count in no load: a backend \
                 that has none looks idle to scheduler = {:?}, and gets nearly all new connections. Set \
                 net.ipv4.tcp_timestamps = 1 there; if it is so, and the clients have none, give load = \"told\" \
                 (docs/schedulers.md)",
                service.configured.name,
                backends.join(", "),
                service.scheduler().0.name()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_many_if_they_are_more_than_count() {
        let mut one = Remembered::default();
        let mut look = |there, counted, now| {
            one.look(there, counted, now);
            one.open
        };
        assert_eq!(look(MANY - 1, 0, 10), None, "a few");
        assert_eq!(look(2 * MANY, MANY + 1, 20), None, "more of them count");
        assert_eq!(look(5 * MANY, MANY, 30), Some((3 * MANY, 30)));
        assert_eq!(look(MANY, MANY, 40), Some((3 * MANY, 30)), "the table has forgotten some");
        assert_eq!(look(2 * MANY, 0, 50), Some((4 * MANY, 50)));
        assert_eq!(look(2 * MANY, 0, 50 + ARE_OVER - 1), Some((4 * MANY, 50)));
        assert_eq!(look(2 * MANY, 0, 50 + ARE_OVER), None);
    }
}
