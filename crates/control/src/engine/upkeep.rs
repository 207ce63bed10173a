//! What the engine does between changes: reports, idle flows, next hops, leftovers.

use super::{Engine, EngineError, PlaneResult};
use crate::config::Protocol;
use std::time::Duration;
use tracing::warn;
use weir_plane::forward::NextHop;
use weir_plane::{Backend, Hop, Plane};
use weir_steering::ServiceState;

impl<P: Plane> Engine<P> {
    /// Takes up the reports that come, and waits that long for the first. With `all`, instead, all
    /// that are there: also those that the ring had no room for.
    fn take_reports(&mut self, limit: Duration, all: bool) -> Result<(), EngineError> {
        let now = self.now();
        let mut failure = None;
        let (services, names) = (&mut self.services, &self.names);
        let mut taken = 0u64;
        let mut sink = |event: &weir_steering::Event| {
            taken += 1;
            let service = names.get(&event.state.service).and_then(|name| services.get_mut(name));
            let Some(service) = service else { return };
            if let Err(error) = service.remembered(|service| service.take_event(event, now)) {
                failure.get_or_insert(error);
            }
        };
        if all {
            self.plane.drain(&mut sink).plane()?;
        } else {
            self.plane.wait(limit, &mut sink).plane()?;
        }
        self.events_taken += taken;
        failure.map_or(Ok(()), Err)
    }

    /// Takes up the reports that come, and waits that long for the first.
    pub(super) fn wait_for_reports(&mut self, limit: Duration) -> Result<(), EngineError> {
        self.take_reports(limit, false)
    }

    /// Takes up all reports that are there, also those that the ring had no room for.
    pub(super) fn drain_reports(&mut self) -> Result<(), EngineError> {
        self.take_reports(Duration::ZERO, true)
    }

    /// Forgets flows that have been idle for too long.
    pub(super) fn sweep(&mut self) -> Result<(), EngineError> {
        let now = self.now();
        self.plane.flip_marks();
        self.plane.grace().plane()?;
        // A flow's first packets may have been marked while its report was still on the way.
        self.drain_reports()?;
        let marks = self.plane.take_marks();
        let seen = self.plane.seen_flows();
        for service in self.services.values_mut() {
            let (number, udp) = (service.number, service.configured.protocol == Protocol::Udp);
            let before = service.marked_under;
            let builder = &mut service.builder;
            if !builder.method().needs().states {
                continue;
            }
            let key = builder.published().map(|image| image.header().key);
            // Marks made under another hash key cannot be read; then all flows count as active.
            let readable = udp || before == key;
            let idle = builder.sweep(now, &|hash| {
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
                let held = service.states_of(member.id).unwrap_or(0);
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
        let (pending, pinned) = (self.plane.pending().plane()?, self.plane.pinned().plane()?);
        self.plane.forget_pending(&of(pending)).plane()?;
        self.plane.unpin(&of(pinned)).plane()?;
        self.plane.set_backend(id, None).plane()
    }

    /// Folds pending flows into the tables of services that have many of them: flows that fell on
    /// a draining backend's Dcode.
    pub(super) fn fold_pending(&mut self) -> Result<(), EngineError> {
        let limit = self.config.limits.pending_flows as usize / 4;
        let mut counts = std::collections::HashMap::<u32, usize>::new();
        for (state, _) in self.plane.pending().plane()? {
            *counts.entry(state.service).or_default() += 1;
        }
        let crowded: Vec<u32> = counts
            .into_iter()
            .filter(|(number, count)| *count > limit && self.names.contains_key(number))
            .map(|(number, _)| number)
            .collect();
        self.publish(&crowded).into_iter().next().map_or(Ok(()), Err)
    }

    /// Looks the next hop of every backend up in the neighbour table, for packets that the FIB has
    /// no answer for, and keeps those entries fresh. `missing`: only of those that have none yet.
    pub(super) fn refresh_next_hops(&mut self, missing: bool) -> Result<(), EngineError> {
        let mut all_known = true;
        self.plane.accept_own_macs(&self.config.balancer.interfaces).plane()?;
        for service in self.services.values() {
            for member in &service.pool {
                let address = member.wanted.address;
                let now = self.plane.backend(member.id);
                if missing && now.is_some_and(|backend| backend.hop.is_some()) {
                    continue;
                }
                match (self.resolve)(address) {
                    Ok(Some(found)) => {
                        let next = NextHop { mac: found.mac, source_mac: found.source_mac };
                        let hop = Some(Hop { next, ifindex: found.ifindex });
                        let (incarnation, up) = (member.incarnation, member.up);
                        let entry = Backend { address, incarnation, up, hop };
                        if now != Some(entry) {
                            self.plane.set_backend(member.id, Some(&entry)).plane()?;
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
