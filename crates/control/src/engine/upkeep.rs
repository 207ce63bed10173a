//! What the engine does between changes: reports, idle flows, next hops, leftovers.

use super::{Engine, EngineError};
use crate::config::Protocol;
use crate::neigh;
use std::time::Duration;
use tracing::{debug, warn};
use weir_dataplane::{BackendEntry, BackendFlags, grace};
use weir_steering::ServiceState;

impl Engine {
    /// Takes up the reports that are there; with `wait`, waits that long for the first.
    pub(super) fn drain_reports(&mut self, wait: Option<Duration>) -> Result<(), EngineError> {
        let now = self.now();
        let mut failure = None;
        let (services, names) = (&mut self.services, &self.names);
        let mut taken = 0usize;
        let sink = |event: weir_steering::Event| {
            taken += 1;
            let service = names.get(&event.state.service).and_then(|name| services.get_mut(name));
            let Some(service) = service else { return };
            if let Err(error) = service.take_event(&event, now) {
                failure.get_or_insert(error);
            }
        };
        match wait {
            Some(limit) => self.reports.wait(limit, sink)?,
            None => self.reports.drain(sink)?,
        }
        self.events_taken += taken as u64;
        failure.map_or(Ok(()), Err)
    }

    /// Takes up the flows that the ring had no room for.
    pub(super) fn take_unreported(&mut self) -> Result<(), EngineError> {
        let flows = self.reports.take_unreported()?;
        if flows.is_empty() {
            return Ok(());
        }
        debug!(flows = flows.len(), "flows that the ring had no room for");
        let now = self.now();
        for flow in &flows {
            let Some(name) = self.names.get(&flow.state.service) else { continue };
            if let Some(service) = self.services.get_mut(name) {
                service.take_event(flow, now)?;
            }
        }
        Ok(self.reports.forget_unreported(&flows)?)
    }

    /// Forgets flows that have been idle for too long.
    pub(super) fn sweep(&mut self) -> Result<(), EngineError> {
        let now = self.now();
        self.plane.flip_marks();
        grace()?;
        // A flow's first packets may have been marked while its report was still on the way.
        self.drain_reports(None)?;
        let marks = self.plane.take_marks();
        let seen = self.plane.seen_flows();
        for service in self.services.values_mut() {
            let (number, udp) = (service.number, service.configured.protocol == Protocol::Udp);
            let before = service.marked_under;
            let Some(concury) = service.concury_mut() else { continue };
            let key = concury.published().map(|image| image.header().key);
            // Marks made under another hash key cannot be read; then all flows count as active.
            let readable = udp || before == key;
            let idle = concury.sweep(now, |hash| {
                if udp { seen.has(hash, number) } else { !readable || marks.has(hash) }
            });
            service.marked_under = key;
            service.log_removed(&idle, now)?;
        }
        self.give_up_dead_backends()?;
        // Pending and pinned entries of these states stay until an update removes them: a flow
        // with the same key may be starting right now.
        Ok(())
    }

    /// Forgets the states of backends that have been down for as long as a flow may be silent: a
    /// UDP flow that goes on sending would else stay with a dead backend for ever.
    fn give_up_dead_backends(&mut self) -> Result<(), EngineError> {
        let mut dead = Vec::new();
        for (name, service) in &self.services {
            let patience = service.configured.idle_timeout;
            for member in &service.pool {
                let held = service.concury().map_or(0, |concury| concury.states_of(member.id));
                if held > 0 && member.down_since.is_some_and(|since| since.elapsed() > patience) {
                    dead.push((name.clone(), member.id));
                }
            }
        }
        for (name, id) in dead {
            self.forget_states(&name, id)?;
            self.service_mut(&name)?.dirty = true;
        }
        Ok(())
    }

    /// Removes what the data plane remembers of a backend that is gone.
    pub(super) fn forget_backend(&mut self, id: u16) -> Result<(), EngineError> {
        let of = |list: Vec<(ServiceState, u16)>| -> Vec<ServiceState> {
            list.into_iter().filter(|(_, backend)| *backend == id).map(|(s, _)| s).collect()
        };
        self.plane.forget_pending(&of(self.plane.pending()?))?;
        self.plane.unpin(&of(self.plane.pinned()?))?;
        self.plane.set_backend(id, &BackendEntry::default())?;
        Ok(())
    }

    /// Folds pending flows into the tables of services that have many of them: flows that fell on
    /// a draining backend's Dcode.
    pub(super) fn fold_pending(&mut self) -> Result<(), EngineError> {
        let limit = self.config.limits.pending_flows as usize / 4;
        let mut counts = std::collections::HashMap::<u32, usize>::new();
        for (state, _) in self.plane.pending()? {
            *counts.entry(state.service).or_default() += 1;
        }
        let crowded: Vec<String> = counts
            .into_iter()
            .filter(|(_, count)| *count > limit)
            .filter_map(|(number, _)| self.names.get(&number).cloned())
            .collect();
        for name in crowded {
            self.update(&name)?;
        }
        Ok(())
    }

    /// Looks the next hop of every backend up in the neighbour table, for packets that the FIB has
    /// no answer for, and keeps those entries fresh. `missing`: only of those that have none yet.
    pub(super) fn refresh_next_hops(&mut self, missing: bool) -> Result<(), EngineError> {
        let mut all_known = true;
        self.plane.accept_own_macs(&self.config.balancer.interfaces)?;
        for service in self.services.values() {
            for member in &service.pool {
                let address = member.wanted.address;
                if missing && self.plane.backend(member.id).flags & BackendFlags::HAS_MAC != 0 {
                    continue;
                }
                let entry = BackendEntry::new(address, member.incarnation).with_health(member.up);
                match neigh::resolve_now(address) {
                    Ok(Some(hop)) => {
                        let entry =
                            entry.with_next_hop(hop.mac, hop.source_mac, hop.ifindex, false);
                        if self.plane.backend(member.id) != entry {
                            self.plane.set_backend(member.id, &entry)?;
                        }
                    }
                    Ok(None) => all_known = false,
                    Err(error) => {
                        if self.unreachable.insert(address) {
                            warn!(%address, %error, "no next hop");
                        }
                    }
                }
            }
        }
        self.hop_tries = if all_known { 0 } else { self.hop_tries.saturating_sub(1) };
        Ok(())
    }
}
