//! What the engine is asked to do, and how it changes pools.

use super::history::{Apply, HistoryReport};
use super::service::{PoolMember, ServiceRuntime};
use super::trace::{GiveSamples, Loaded};
use super::{
    Engine, EngineError, Explanation, NEXT_HOPS_TRIES, PlanReport, PlaneResult, Sender, Status,
    TraceLine, TraceRequest, tolerate,
};
use crate::config::Backend;
use crate::health::{Target, Transition};
use crate::history::Who;
use crate::neigh::{self, Change, NeighError};
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info};
use weir_plane::Plane;
use weir_steering::{BackendId, ServiceId, StateKey};
use weir_wire::FlowKey;
use weir_wire::quic::Id;

/// Answer to a request to look at packets: where the lines come out.
pub type TraceReply = Result<mpsc::Receiver<TraceLine>, EngineError>;

/// Answer to a request that changes something: what was done, in words.
pub type Done = Result<String, EngineError>;

/// A request to the engine.
pub enum Command {
    /// Save and return; forwarding goes on.
    Stop,
    /// Health checks have changed their minds.
    Health(Vec<Transition>),
    /// Everything there is to tell.
    Status(oneshot::Sender<Result<Status, EngineError>>),
    /// Adds a backend to a service.
    Add(String, Backend, oneshot::Sender<Done>),
    /// Removes a backend from a service.
    Remove(String, String, oneshot::Sender<Done>),
    /// Starts or ends the draining of a backend.
    Drain(String, String, bool, oneshot::Sender<Done>),
    /// Changes the weight of a backend.
    Weight(String, String, u16, oneshot::Sender<Done>),
    /// How loaded a backend is, for schedulers that are told.
    Load(String, String, f64, oneshot::Sender<Done>),
    /// Where a flow goes, and why.
    /// A packet of it may have a QUIC id.
    Explain(Box<FlowKey>, Option<Id>, oneshot::Sender<Result<Explanation, EngineError>>),
    /// The kernel's interfaces, routes or neighbours have changed.
    Network(Change),
    /// What a file would change; without one, the instance's own.
    Plan(Option<PathBuf>, oneshot::Sender<Result<PlanReport, EngineError>>),
    /// Looks at packets; the sender is for the word that nobody reads what is told.
    Trace(Box<TraceRequest>, Sender, oneshot::Sender<TraceReply>),
    /// The program of the trace with this number is loaded, or cannot be.
    TraceLoaded(u64, Loaded, GiveSamples),
    /// Nobody reads what a trace tells: the one with this number.
    TraceEnded(u64),
    /// What is announced to routers.
    Announced(oneshot::Sender<Result<weir_announce::Report, EngineError>>),
    /// Withdraws this balancer from routers, or takes that back.
    DrainSelf(bool, oneshot::Sender<Done>),
    /// Whether it answers.
    Ping(oneshot::Sender<()>),
    /// Whoever asks for something.
    By(Who, Box<Command>),
    /// Follows a configuration, and makes it the instance's file.
    Apply(Box<Apply>, oneshot::Sender<Done>),
    /// Goes back to the file of a change, or to the one before; if so asked, also where that breaks
    /// connections.
    Rollback(Option<u64>, bool, oneshot::Sender<Done>),
    /// What has been changed.
    History(oneshot::Sender<Result<HistoryReport, EngineError>>),
    /// The text of a change's file.
    Text(u64, oneshot::Sender<Done>),
    /// Reads the configuration file again, and follows it; if so asked, also where that breaks
    /// connections.
    Reload(bool, oneshot::Sender<Done>),
}

impl<P: Plane> Engine<P> {
    pub(super) fn handle(&mut self, command: Command) {
        match command {
            Command::Stop => {}
            Command::Health(changes) => changes.iter().for_each(|one| self.health_changed(one)),
            Command::Network(change) => self.network_changed(&change),
            Command::Status(reply) => drop(reply.send(self.status())),
            Command::Explain(flow, id, reply) => drop(reply.send(self.explain(&flow, id.as_ref()))),
            Command::Plan(file, reply) => drop(reply.send(self.plan_of(file.as_deref()))),
            Command::Trace(request, commands, reply) => {
                self.begin_trace(&request, commands, reply);
            }
            Command::TraceLoaded(number, loaded, give) => self.trace_loaded(number, loaded, give),
            Command::TraceEnded(number) => self.trace_ended(number),
            Command::Reload(breaking, reply) => drop(reply.send(self.reload(breaking))),
            Command::Ping(reply) => drop(reply.send(())),
            Command::Announced(reply) => drop(reply.send(self.announce_report())),
            Command::DrainSelf(drain, reply) => {
                let done = self.drain_self(drain);
                self.remember_command(&done);
                drop(reply.send(done));
            }
            Command::By(who, command) => {
                self.asked_by(who);
                self.handle(*command);
                self.asked_by(Who::nobody("weir"));
            }
            Command::Apply(apply, reply) => drop(reply.send(self.apply(&apply, "apply"))),
            Command::Rollback(number, breaking, reply) => {
                drop(reply.send(self.rollback(number, breaking)));
            }
            Command::History(reply) => drop(reply.send(Ok(self.history_report()))),
            Command::Text(number, reply) => drop(reply.send(self.text_of(number))),
            Command::Add(service, backend, reply) => {
                let done = self.add_backend(&service, backend);
                self.remember_command(&done);
                drop(reply.send(done));
            }
            Command::Remove(service, backend, reply) => {
                let done = self.remove_backend(&service, &backend);
                self.remember_command(&done);
                drop(reply.send(done));
            }
            Command::Drain(service, backend, drain, reply) => {
                let done = self.change_backend(&service, &backend, |b| b.drain = drain);
                let word = if drain { "drains" } else { "serves again" };
                let said = done.map(|()| format!("backend {backend} of {service} {word}"));
                self.remember_command(&said);
                drop(reply.send(said));
            }
            Command::Load(service, backend, load, reply) => {
                drop(reply.send(self.told_load(&service, &backend, load)));
            }
            Command::Weight(service, backend, weight, reply) => {
                let done = self.change_backend(&service, &backend, |b| b.weight = weight);
                let said =
                    done.map(|()| format!("backend {backend} of {service} has weight {weight}"));
                self.remember_command(&said);
                drop(reply.send(said));
            }
        }
    }

    pub(super) fn health_changed(&mut self, transition: &Transition) {
        let (number, id) = (ServiceId((transition.id >> 16) as u32), transition.id as u16);
        let Some(name) = self.names.get(&number).cloned() else { return };
        let Some(service) = self.services.get_mut(&name) else { return };
        let Some(member) = service.pool.iter_mut().find(|member| member.id == id) else { return };
        member.detail.clone_from(&transition.detail);
        if member.up != transition.up {
            member.up = transition.up;
            member.down_since = (!transition.up).then_some(transition.at);
            // Where marking fails, the table says it, and the next look at its next hop again.
            let id = member.id;
            if let Some(backend) = self.plane.backend(id) {
                let backend = weir_plane::Backend { up: transition.up, ..backend };
                if let Err(error) = self.plane.set_backend(id, Some(&backend)) {
                    error!(%error, "cannot mark a backend");
                }
            }
            service.dirty = true;
            // Something has changed since the last update failed: it need not wait any longer.
            if let Some(trouble) = &mut service.trouble {
                trouble.again = Instant::now();
            }
            let backend = &member.wanted.name;
            let (up, detail) = (transition.up, &*transition.detail);
            info!(service = name, backend, up, detail, "health check");
        }
    }

    fn add_backend(&mut self, service: &str, backend: Backend) -> Done {
        self.service(service)?.may_add(&backend)?;
        self.answers_apart(service, &backend)?;
        let configured = &self.service(service)?.configured;
        let (forward, segments) = (configured.forward, configured.segments());
        if !forward.passes_routers()
            && let Err(error @ NeighError::Gateway { .. }) = (self.resolve)(backend.address)
        {
            return Err(EngineError::Conflict(error.to_string()));
        }
        let said = format!("backend {} added to {service}", backend.name);
        let checked = self.service(service)?.configured.check_of(&backend).is_some();
        // With a health check, new connections wait until it has succeeded.
        let mut numbers = self.numbers();
        let member = self.allot(backend, !checked, &mut numbers)?;
        let id = member.id;
        let added = self
            .install(&member, (forward, segments), true)
            .and_then(|()| self.commit(service, |service| service.pool.push(member)));
        if added.is_err() {
            tolerate("take a backend back", self.plane.set_backend(id, None).plane());
        }
        added.map(|()| said)
    }

    fn remove_backend(&mut self, service: &str, backend: &str) -> Done {
        let member = self.find(service, backend)?;
        let held = self.service(service)?.states_of(member.id).unwrap_or(0);
        self.commit(service, |service| {
            service.pool.retain(|m| m.id != member.id);
            service.leaving.push(member.id);
        })?;
        Ok(match held {
            0 => format!("backend {backend} removed from {service}"),
            n => format!("backend {backend} removed from {service}; it held {n} states"),
        })
    }

    fn change_backend(
        &mut self,
        service: &str,
        backend: &str,
        change: impl FnOnce(&mut Backend),
    ) -> Result<(), EngineError> {
        self.find(service, backend)?;
        self.commit(service, |service| {
            if let Some(member) = service.member_mut(backend) {
                change(&mut member.wanted);
            }
        })
    }

    pub(super) fn find(&self, service: &str, backend: &str) -> Result<PoolMember, EngineError> {
        self.service(service)?.member(backend).cloned().ok_or_else(|| {
            EngineError::NotFound(format!("service {service} has no backend {backend}"))
        })
    }

    /// Changes a service's pool, writes it down, publishes it and checks its new members. If it
    /// cannot be written down or published, the pool is as before, and packets never saw another.
    fn commit(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut ServiceRuntime),
    ) -> Result<(), EngineError> {
        let service = self.service_mut(name)?;
        let (pool, leaving) = (service.pool.clone(), service.leaving.clone());
        let dirty = service.dirty;
        change(service);
        service.dirty = true;
        let result = self
            .save_some([name])
            // New flows may come to a backend from the first table on, and with them its ids.
            .and_then(|()| self.tell_ids(name))
            .and_then(|()| self.tell_translations())
            .and_then(|()| self.update(name));
        if result.is_err() {
            let service = self.service_mut(name)?;
            (service.pool, service.leaving) = (pool, leaving);
            service.dirty = dirty;
            if !dirty && service.trouble.as_ref().is_some_and(|trouble| !trouble.loose) {
                service.trouble = None;
            }
            self.save_later();
            tolerate("lead by ids as before", self.tell_ids(name));
            tolerate("translate answers as before", self.tell_translations());
        }
        self.set_targets_of(name);
        self.hop_tries = NEXT_HOPS_TRIES;
        result
    }

    pub(super) fn forget_states(
        &mut self,
        service: &str,
        id: BackendId,
    ) -> Result<(), EngineError> {
        let now = self.now();
        let service = self.service_mut(service)?;
        let gone: Vec<StateKey> = service.builder.forget_backend(id);
        service.log_removed(&gone, now)?;
        service.astray.extend(gone);
        Ok(())
    }

    /// Tells the health checker what to check.
    pub(super) fn set_targets(&self) {
        self.health.hold_at(self.config.balancer.hold_checks_at);
        self.health.set_targets(self.targets(self.services.values()));
    }

    /// As [`set_targets`](Self::set_targets), of one service.
    fn set_targets_of(&self, name: &str) {
        let Some(service) = self.services.get(name) else { return };
        self.health.set_targets_among(service.targets(), self.targets([service]));
    }

    fn targets<'a>(
        &'a self,
        services: impl IntoIterator<Item = &'a ServiceRuntime>,
    ) -> Vec<Target> {
        let vips = self.vips();
        let interfaces: Arc<[String]> = self.config.balancer.interfaces.clone().into();
        // Many backends may be on one host.
        let mut sources: HashMap<IpAddr, Option<IpAddr>> = HashMap::new();
        let mut targets = Vec::new();
        for service in services {
            let configured = &service.configured;
            let shared = configured.check.as_ref().map(|check| Arc::new(check.what.clone()));
            targets.extend(service.pool.iter().filter_map(|member| {
                let check = configured.check_of(&member.wanted)?;
                let what = match &shared {
                    Some(shared) if **shared == check.what => Arc::clone(shared),
                    _ => Arc::new(check.what.clone()),
                };
                let address = member.wanted.address;
                let find = || neigh::source_for(address, &vips);
                Some(Target {
                    id: service.target(member.id),
                    source: *sources.entry(address).or_insert_with(find),
                    address: (address, configured.check_port(check, &member.wanted)).into(),
                    what,
                    interfaces: Arc::clone(&interfaces),
                    interval: check.interval,
                    timeout: check.timeout,
                    jitter: check.jitter,
                    rise: check.rise,
                    fall: check.fall,
                    flap_window: check.flap_window,
                    initially_up: member.up,
                })
            }));
        }
        targets
    }
}
