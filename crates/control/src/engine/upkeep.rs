//! What the engine does between changes: reports, idle flows, next hops, leftovers.

use super::network::{Of, own_and_above};
use super::{Engine, EngineError, PlaneResult};
use crate::config::{AllDown, Protocol};
use std::time::Duration;
use tracing::warn;
use weir_hash::Key;
use weir_plane::forward::NextHop;
use weir_plane::{Backend, Hop, Plane};
use weir_steering::{Event, ServiceState, Side};

/// Reports that are taken up before the engine looks for commands again: some milliseconds' worth.
const REPORTS_AT_A_TIME: usize = 8192;

impl<P: Plane> Engine<P> {
    /// Takes up reports that `read` brings.
    fn take_reports<R>(
        &mut self,
        read: impl FnOnce(&mut P, &mut dyn FnMut(&Event)) -> Result<R, P::Error>,
    ) -> Result<R, EngineError> {
        let now = self.now();
        let mut failure = None;
        let (services, names) = (&mut self.services, &self.names);
        let mut taken = 0u64;
        let mut sink = |event: &Event| {
            taken += 1;
            let service = names.get(&event.state.service).and_then(|name| services.get_mut(name));
            let Some(service) = service else { return };
            if let Err(error) = service.remembered(|service| service.take_event(event, now)) {
                failure.get_or_insert(error);
            }
        };
        let read = read(&mut self.plane, &mut sink).plane()?;
        self.events_taken += taken;
        failure.map_or(Ok(read), Err)
    }

    /// Takes up some of the reports that come, and waits that long for the first.
    pub(super) fn wait_for_reports(&mut self, limit: Duration) -> Result<(), EngineError> {
        self.take_reports(|plane, take| plane.wait(limit, REPORTS_AT_A_TIME, take))
    }

    /// Takes up some of the reports that the ring had no room for.
    pub(super) fn take_unreported(&mut self) -> Result<(), EngineError> {
        self.more_aside = false;
        self.more_aside =
            self.take_reports(|plane, take| plane.put_aside(REPORTS_AT_A_TIME, take))?;
        Ok(())
    }

    /// Takes up all reports that are there, also those that the ring had no room for.
    pub(super) fn drain_reports(&mut self) -> Result<(), EngineError> {
        self.take_reports(|plane, take| plane.drain(take))
    }

    /// Forgets flows that have been idle for too long.
    pub(super) fn sweep(&mut self) -> Result<(), EngineError> {
        let now = self.now();
        let side = match self.unread {
            Some(side) => side,
            None => self.flip_marks(),
        };
        // If what follows fails, it is tried again before other marks are begun.
        self.unread = Some(side);
        self.plane.grace().plane()?;
        // A flow's first packets may have been marked while its report was still on the way.
        self.drain_reports()?;
        let marks = self.plane.take_marks(side);
        self.unread = None;
        let seen = self.plane.seen_flows();
        for service in self.services.values_mut() {
            let (number, udp) = (service.number, service.configured.protocol == Protocol::Udp);
            if !service.builder.method().needs().states {
                continue;
            }
            service.warn_of_refused();
            let keys = std::mem::take(&mut service.read_under);
            let idle = service.builder.sweep(now, &|state| {
                let mut hashes = keys.iter().map(|key| state.hash(key));
                hashes.any(|hash| if udp { seen.has(hash, number) } else { marks.has(hash) })
            });
            service.log_removed(&idle, now)?;
        }
        self.give_up_dead_backends()?;
        // Pending and pinned entries of these states stay until an update removes them: a flow
        // with the same key may be starting right now.
        Ok(())
    }

    /// Begins another period of activity: arms all flows under the hash keys that packets follow.
    fn flip_marks(&mut self) -> Side {
        let (mut known, mut opening) = (Vec::new(), Vec::new());
        self.services.values_mut().for_each(|service| service.arm(&mut known, &mut opening));
        // What is open comes first, if there is not room for all.
        known.append(&mut opening);
        let flows = known.len();
        self.plane.flip_marks(&mut known.into_iter(), flows)
    }

    /// Forgets the states of backends that have been down for as long as a flow may be silent: a
    /// UDP flow that goes on sending would else stay with a dead backend for ever.
    fn give_up_dead_backends(&mut self) -> Result<(), EngineError> {
        let mut dead = Vec::new();
        for (name, service) in &self.services {
            // The checks are not believed.
            if service.all_down() == Some(AllDown::Keep) {
                continue;
            }
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
        self.refresh(if missing { Of::Missing } else { Of::All })
    }

    /// As [`refresh_next_hops`](Self::refresh_next_hops), of some backends.
    pub(super) fn refresh(&mut self, of: Of<'_>) -> Result<(), EngineError> {
        let mut all_known = true;
        if matches!(of, Of::All | Of::Again) {
            self.tell_devices()?;
        }
        let ours = own_and_above(&self.config.balancer.interfaces);
        let accepted = self.plane.accept_own_macs(&ours).plane();
        for service in self.services.values() {
            for member in &service.pool {
                let address = member.wanted.address;
                let now = self.plane.backend(member.id);
                if !of.concerns(address, now.as_ref()) {
                    continue;
                }
                match (self.resolve)(address) {
                    Ok(Some(found)) => {
                        self.silent.remove(&member.id);
                        let next = NextHop { mac: found.mac, source_mac: found.source_mac };
                        let hop = Some(Hop { next, ifindex: found.ifindex });
                        let (incarnation, up) = (member.incarnation, member.up);
                        let entry = Backend { address, incarnation, up, hop };
                        if now != Some(entry) {
                            self.plane.set_backend(member.id, Some(&entry)).plane()?;
                        }
                        if now.and_then(|now| now.hop) != hop {
                            self.plane.forget_hop(member.id).plane()?;
                        }
                    }
                    Ok(None) => {
                        all_known = false;
                        // Asked for at the last look, and it has not answered since: what it was
                        // may be somebody else's by now.
                        if let (true, Some(entry)) = (matches!(of, Of::All), now)
                            && entry.hop.is_some()
                            && !self.silent.insert(member.id)
                        {
                            let entry = Backend { hop: None, ..entry };
                            self.plane.set_backend(member.id, Some(&entry)).plane()?;
                        }
                    }
                    Err(error) => {
                        if self.unreachable.insert(address) {
                            warn!(%address, %error, "no next hop");
                        }
                    }
                }
            }
        }
        if !matches!(of, Of::Neighbours(_)) {
            self.hop_tries = if all_known { 0 } else { self.hop_tries.saturating_sub(1) };
        }
        // One interface that is missing keeps nobody from looking after the backends.
        accepted
    }
}
