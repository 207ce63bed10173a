//! Drives an update of one service: the actions of `weir_steering::Update` on the real data plane.

use super::service::ServiceRuntime;
use super::{Engine, EngineError};
use std::time::Instant;
use tracing::{debug, info};
use weir_dataplane::grace;
use weir_lookup::Key;
use weir_steering::{Action, Flags, ServiceState, Update};

impl Engine {
    /// Publishes new tables for every service whose pool has changed.
    pub(super) fn publish_dirty(&mut self) -> Result<(), EngineError> {
        let dirty: Vec<String> = self
            .services
            .iter()
            .filter(|(_, service)| service.dirty)
            .map(|(name, _)| name.clone())
            .collect();
        for name in dirty {
            self.update(&name)?;
        }
        Ok(())
    }

    /// One update, from *record* to *settle*.
    pub(super) fn update(&mut self, name: &str) -> Result<(), EngineError> {
        let started = Instant::now();
        let mut update = Update::begin();
        while let Some(action) = update.next_action() {
            match action {
                Action::SetFlags { record, pending } => {
                    if pending && !record {
                        self.leave_former_table(name)?;
                    }
                    self.set_flags(name, record, pending);
                }
                Action::Grace => grace()?,
                Action::Collect => self.collect(name)?,
                Action::Publish => self.publish(name)?,
                Action::Settle => update.settled(self.settle(name)?),
            }
        }
        let service = self.service_mut(name)?;
        service.dirty = false;
        service.last_update = Some(started.elapsed());
        info!(
            service = name,
            generation = service.generation,
            rounds = update.round() + 1,
            milliseconds = started.elapsed().as_millis() as u64,
            "published"
        );
        self.save()
    }

    fn set_flags(&self, name: &str, record: bool, pending: bool) {
        if let Some(service) = self.services.get(name) {
            self.plane.set_flags(service.number, Flags::RECORD, record);
            self.plane.set_flags(service.number, Flags::PENDING, pending);
        }
    }

    /// Takes everything that the data plane knows of flows into the states.
    fn collect(&mut self, name: &str) -> Result<(), EngineError> {
        self.drain_reports(None)?;
        self.take_unreported()?;
        let now = self.now();
        let pending = self.pending_of(name)?;
        let service = self.service_mut(name)?;
        for (state, backend) in pending {
            // One that is known there tells nothing new, and may have ended since: it must not
            // count as a beginning again, or a draining backend would get what looks like it.
            let known = service.concury().and_then(|concury| concury.get(&state.key));
            if known.is_none_or(|known| known.backend != backend) {
                service.start(state.key, backend, now)?;
            }
        }
        Ok(())
    }

    fn publish(&mut self, name: &str) -> Result<(), EngineError> {
        let now = self.now();
        let service = self.services.get_mut(name).ok_or_else(|| unknown(name))?;
        let (image, pinned) = service.build(now)?;
        // Pinned before the table that reserves their Dcodes is seen.
        self.plane.pin(&pinned)?;
        let flags = Flags(image.header().flags.0 | Flags::RECORD | Flags::PENDING);
        self.plane.show(service.number, &image, flags)?;
        self.fresh_pins = pinned.into_iter().map(|(state, _)| state).collect();
        let astray = std::mem::take(&mut service.astray);
        if service.configured.protocol == crate::config::Protocol::Udp {
            let key = &image.header().key;
            self.plane.forget_seen(service.number, astray.iter().map(|state| state.hash(key)));
        }
        debug!(service = name, states = image.header().states, "table shown");
        Ok(())
    }

    /// After the second grace period: frees the former table and unpins what it alone needed.
    /// While RECORD is still set: a repeated SYN that finds its pin gone is noted, not misplaced.
    fn leave_former_table(&mut self, name: &str) -> Result<(), EngineError> {
        let number = self.service(name)?.number;
        self.plane.retire(number);
        let fresh = std::mem::take(&mut self.fresh_pins);
        let stale: Vec<ServiceState> = self
            .plane
            .pinned()?
            .into_iter()
            .map(|(state, _)| state)
            .filter(|state| state.service == number && !fresh.contains(state))
            .collect();
        Ok(self.plane.unpin(&stale)?)
    }

    /// Takes the flows that the new table agrees with, and those of backends that are gone or down,
    /// out of the pending table. Returns how many are left.
    fn settle(&mut self, name: &str) -> Result<usize, EngineError> {
        let mut pending = self.pending_of(name)?;
        let service = self.service(name)?;
        let down = |state: &ServiceState, backend: u16| {
            service.by_id(backend).is_some_and(|member| !member.up)
                && service.concury().is_some_and(|c| c.leads_to(&state.key, backend))
        };
        let lost: Vec<ServiceState> = pending
            .extract_if(.., |(state, backend)| {
                service.by_id(*backend).is_none() || down(state, *backend)
            })
            .map(|(state, _)| state)
            .collect();
        self.plane.forget_pending(&lost)?;
        let Some(concury) = self.service(name)?.concury() else { return Ok(0) };
        let agreed: Vec<ServiceState> = pending
            .iter()
            .filter(|(state, backend)| concury.agrees(&state.key, *backend))
            .map(|(state, _)| *state)
            .collect();
        let left = pending
            .iter()
            .filter(|(state, backend)| {
                !concury.agrees(&state.key, *backend) && !concury.on_reserved(&state.key)
            })
            .count();
        self.plane.forget_pending(&agreed)?;
        Ok(left)
    }

    /// The pending flows of a service.
    pub(super) fn pending_of(&self, name: &str) -> Result<Vec<(ServiceState, u16)>, EngineError> {
        let number = self.service(name)?.number;
        let mut pending = self.plane.pending()?;
        pending.retain(|(state, _)| state.service == number);
        Ok(pending)
    }

    pub(super) fn service(&self, name: &str) -> Result<&ServiceRuntime, EngineError> {
        self.services.get(name).ok_or_else(|| unknown(name))
    }

    pub(super) fn service_mut(&mut self, name: &str) -> Result<&mut ServiceRuntime, EngineError> {
        self.services.get_mut(name).ok_or_else(|| unknown(name))
    }
}

fn unknown(name: &str) -> EngineError {
    EngineError::Refused(format!("there is no service {name}; `weir status` lists them"))
}
