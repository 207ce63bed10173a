//! What the engine is asked to do, and how it changes pools.

use super::document::SavedBackend;
use super::service::{PoolMember, ServiceRuntime, vip_of};
use super::{Engine, EngineError, Explanation, NEXT_HOPS_TRIES, PlaneResult, Status};
use crate::config::{Backend, Config, Service};
use crate::health::{Target, Transition};
use crate::neigh::{self, Change, NeighError};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info};
use weir_plane::Plane;
use weir_steering::{BackendId, StateKey};
use weir_wire::FlowKey;

/// Answer to a request that changes something: what was done, in words.
pub type Done = Result<String, EngineError>;

/// A request to the engine.
pub enum Command {
    /// Save and return; forwarding goes on.
    Stop,
    /// A health check has changed its mind.
    Health(Transition),
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
    /// Where a flow goes, and why.
    Explain(Box<FlowKey>, oneshot::Sender<Result<Explanation, EngineError>>),
    /// The kernel's interfaces, routes or neighbours have changed.
    Network(Change),
    /// Reads the configuration file again.
    Reload(oneshot::Sender<Done>),
}

/// Where commands are sent.
pub type Sender = mpsc::Sender<Command>;

impl<P: Plane> Engine<P> {
    pub(super) fn handle(&mut self, command: Command) {
        match command {
            Command::Stop => {}
            Command::Health(transition) => self.health_changed(&transition),
            Command::Network(change) => self.network_changed(&change),
            Command::Status(reply) => drop(reply.send(self.status())),
            Command::Explain(flow, reply) => drop(reply.send(self.explain(&flow))),
            Command::Reload(reply) => drop(reply.send(self.reload())),
            Command::Add(service, backend, reply) => {
                drop(reply.send(self.add_backend(&service, backend)));
            }
            Command::Remove(service, backend, reply) => {
                drop(reply.send(self.remove_backend(&service, &backend)));
            }
            Command::Drain(service, backend, drain, reply) => {
                let done = self.change_backend(&service, &backend, |b| b.drain = drain);
                let word = if drain { "drains" } else { "serves again" };
                let said = done.map(|()| format!("backend {backend} of {service} {word}"));
                drop(reply.send(said));
            }
            Command::Weight(service, backend, weight, reply) => {
                let done = self.change_backend(&service, &backend, |b| b.weight = weight);
                let said =
                    done.map(|()| format!("backend {backend} of {service} has weight {weight}"));
                drop(reply.send(said));
            }
        }
    }

    fn health_changed(&mut self, transition: &Transition) {
        let (number, id) = ((transition.id >> 16) as u32, transition.id as u16);
        let Some(name) = self.names.get(&number).cloned() else { return };
        let Some(service) = self.services.get_mut(&name) else { return };
        let Some(member) = service.pool.iter_mut().find(|member| member.id == id) else { return };
        member.detail.clone_from(&transition.detail);
        if member.up != transition.up {
            member.up = transition.up;
            member.down_since = (!transition.up).then_some(transition.at);
            // Where marking fails, the table says it, and the next look at its next hop again.
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
            let (up, detail) = (transition.up, &transition.detail);
            info!(service = name, backend, up, detail, "health check");
        }
    }

    fn add_backend(&mut self, service: &str, backend: Backend) -> Done {
        self.service(service)?.may_add(&backend.name, backend.address)?;
        if let Err(error @ NeighError::Gateway { .. }) = (self.resolve)(backend.address) {
            return Err(EngineError::Conflict(error.to_string()));
        }
        let said = format!("backend {} added to {service}", backend.name);
        let checked = self.service(service)?.configured.check.is_some();
        // With a health check, new connections wait until it has succeeded.
        let member = self.new_member(backend, !checked, None, &[])?;
        self.commit(service, |service| service.pool.push(member)).map(|()| said)
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

    fn find(&self, service: &str, backend: &str) -> Result<PoolMember, EngineError> {
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
        let result = self.save().and_then(|()| self.update(name));
        if result.is_err() {
            let service = self.service_mut(name)?;
            (service.pool, service.leaving) = (pool, leaving);
            service.dirty = dirty;
            if !dirty && service.trouble.as_ref().is_some_and(|trouble| !trouble.loose) {
                service.trouble = None;
            }
            self.save_later();
        }
        self.set_targets();
        self.hop_tries = NEXT_HOPS_TRIES;
        result
    }

    pub(super) fn forget_states(&mut self, service: &str, id: u16) -> Result<(), EngineError> {
        let now = self.now();
        let service = self.service_mut(service)?;
        let Some(backend) = BackendId::new(id) else { return Ok(()) };
        let gone: Vec<StateKey> = service.builder.forget_backend(backend);
        service.log_removed(&gone, now)?;
        service.astray.extend(gone);
        Ok(())
    }

    fn reload(&mut self) -> Done {
        let config = Config::load(&self.config_path)?;
        let (old, new) = (&self.config.balancer, &config.balancer);
        if (&old.name, &old.run_dir, old.mode) != (&new.name, &new.run_dir, new.mode) {
            return Err(EngineError::Conflict(
                "name, run_dir and mode of [balancer] are fixed while weir runs; restart it".into(),
            ));
        }
        self.grow(&config)?;
        let failures = self.apply(&config, false)?;
        if old_interfaces_differ(&self.config, &config) {
            self.attach(&config)?;
        }
        self.fit(&config);
        let services = config.services.len();
        self.config = config;
        info!(services, "configuration reloaded");
        if failures.is_empty() {
            return Ok(format!("configuration reloaded: {services} services"));
        }
        let failures: Vec<String> = failures.iter().map(ToString::to_string).collect();
        Err(EngineError::Unfinished(format!(
            "configuration reloaded, but not all of it is in force yet, and is tried again: {}",
            failures.join("; ")
        )))
    }

    /// Makes the services those of a configuration. At start, changes that commands made earlier
    /// are kept for services that the file describes as it did then.
    ///
    /// Returns what could not be published, by service: that is tried again, and the other
    /// services are as the file wants them.
    pub(super) fn apply(
        &mut self,
        config: &Config,
        start: bool,
    ) -> Result<Vec<EngineError>, EngineError> {
        let wanted: HashSet<&String> = config.services.iter().map(|s| &s.name).collect();
        let leaving: Vec<String> =
            self.services.keys().filter(|name| !wanted.contains(name)).cloned().collect();
        for name in leaving {
            self.remove_service(&name)?;
        }
        for service in &config.services {
            let same = self
                .services
                .get(&service.name)
                .is_some_and(|now| same_identity(&now.configured, service));
            if !same {
                self.remove_service(&service.name)?;
                self.create_service(service, config)?;
            } else {
                self.set_pool(service)?;
            }
        }
        if start {
            self.remove_strangers()?;
        }
        self.services.values_mut().for_each(ServiceRuntime::try_at_once);
        let failures = self.publish_due();
        for service in self.services.values() {
            self.plane.set_service(&service.vip(), service.number).plane()?;
        }
        self.set_targets();
        self.hop_tries = NEXT_HOPS_TRIES;
        self.refresh_next_hops(false)?;
        self.save()?;
        Ok(failures)
    }

    /// Services in the data plane that nothing here knows: left by a run with another file.
    fn remove_strangers(&mut self) -> Result<(), EngineError> {
        for (key, number) in self.plane.services() {
            let known = self.services.values().any(|s| s.number == number && s.vip() == key);
            if !known {
                self.plane.remove_service(number).plane()?;
            }
        }
        Ok(())
    }

    fn create_service(&mut self, service: &Service, config: &Config) -> Result<(), EngineError> {
        let saved = self
            .document
            .services
            .get(&service.name)
            .filter(|saved| same_identity(&saved.configured, service))
            .cloned();
        let number = match &saved {
            Some(saved) if !self.names.contains_key(&saved.number) => saved.number,
            _ => self.free_number(),
        };
        let seed = saved.as_ref().map_or_else(rand::random, |saved| saved.seed);
        // What the data plane has under this number is this service's only if it is known here
        // whose numbers its slots hold.
        let ours = saved.is_some() && self.plane.services().contains(&(vip_of(service), number));
        let published = if ours { self.plane.published(number).plane()? } else { None };
        let generation = published.as_ref().map_or(0, |image| image.header().generation);
        let (mut runtime, records) = ServiceRuntime::new(
            number,
            seed,
            service.clone(),
            config.limits.states_per_service as usize,
            &config.balancer.run_dir,
            published,
            self.now(),
        )?;
        let former = saved.as_ref().map_or(&[][..], |saved| &saved.backends[..]);
        let unchanged = saved.as_ref().is_some_and(|saved| saved.configured == *service);
        let wanted: Vec<Backend> = if unchanged {
            former.iter().map(SavedBackend::wanted).collect()
        } else {
            service.backends.clone()
        };
        for backend in wanted {
            let before = former
                .iter()
                .find(|b| b.name == backend.name && b.address == backend.address)
                .cloned();
            let up = before.as_ref().is_none_or(|b| b.up) || service.check.is_none();
            let former = before.as_ref().map(|b| b.id);
            let member = self.new_member(backend, up, former, &runtime.pool)?;
            runtime.pool.push(member);
        }
        runtime.generation = saved.map_or(0, |saved| saved.generation).max(generation);
        self.restore_states(&mut runtime, records)?;
        self.names.insert(number, service.name.clone());
        self.services.insert(service.name.clone(), runtime);
        Ok(())
    }

    fn restore_states(
        &self,
        runtime: &mut ServiceRuntime,
        records: Vec<crate::store::StateRecord>,
    ) -> Result<(), EngineError> {
        let now = self.now();
        let ids: HashSet<u16> = runtime.pool.iter().map(|member| member.id).collect();
        for record in records.iter().filter(|record| ids.contains(&record.backend)) {
            if let Some(backend) = BackendId::new(record.backend) {
                runtime.builder.restore(StateKey::from_bytes(&record.key), backend, now)?;
            }
        }
        if !records.is_empty() {
            info!(service = runtime.configured.name, states = records.len(), "states restored");
        }
        Ok(())
    }

    fn remove_service(&mut self, name: &str) -> Result<(), EngineError> {
        let Some(service) = self.services.remove(name) else { return Ok(()) };
        self.names.remove(&service.number);
        self.plane.remove_service(service.number).plane()?;
        self.driver.forget(service.number);
        for id in service.pool.iter().map(|member| member.id).chain(service.leaving.iter().copied())
        {
            self.forget_backend(id)?;
        }
        let log = self.config.balancer.run_dir.join(format!("states-{name}.log"));
        drop(service);
        let _ = std::fs::remove_file(log);
        Ok(())
    }

    /// Makes a service's pool that of the file. Backends that leave keep their numbers until a
    /// table without them is published.
    fn set_pool(&mut self, wanted: &Service) -> Result<(), EngineError> {
        let name = &wanted.name;
        let old = std::mem::take(&mut self.service_mut(name)?.pool);
        let before: Vec<Backend> = old.iter().map(|member| member.wanted.clone()).collect();
        let mut left: Vec<PoolMember> = old;
        let mut pool = Vec::new();
        for backend in &wanted.backends {
            let same = |m: &PoolMember| {
                m.wanted.name == backend.name && m.wanted.address == backend.address
            };
            match left.iter().position(same) {
                Some(at) => {
                    let mut member = left.swap_remove(at);
                    member.wanted = backend.clone();
                    pool.push(member);
                }
                None => {
                    let taken = [&pool[..], &left[..]].concat();
                    let up = wanted.check.is_none();
                    pool.push(self.new_member(backend.clone(), up, None, &taken)?);
                }
            }
        }
        let service = self.service_mut(name)?;
        service.pool = pool;
        service.dirty |= before != wanted.backends;
        service.configured = wanted.clone();
        service.leaving.extend(left.iter().map(|member| member.id));
        for member in &left {
            self.forget_states(name, member.id)?;
        }
        Ok(())
    }

    /// Gives a backend a number (its former one if that is free) and an entry in the data plane.
    /// `beside`: members of a pool that is being put together.
    fn new_member(
        &mut self,
        wanted: Backend,
        up: bool,
        former: Option<u16>,
        beside: &[PoolMember],
    ) -> Result<PoolMember, EngineError> {
        let pools = self.services.values().flat_map(|service| &service.pool);
        let leaving = self.services.values().flat_map(|service| &service.leaving).copied();
        let used: HashSet<u16> =
            pools.chain(beside).map(|member| member.id).chain(leaving).collect();
        let reserved: HashSet<u16> =
            self.document.services.values().flat_map(|s| s.backends.iter().map(|b| b.id)).collect();
        let limit = self.plane.limits().backends.min(32_767) as u16;
        let id = match former.filter(|id| !used.contains(id)) {
            Some(id) => id,
            None => (0..limit)
                .find(|id| !used.contains(id) && !reserved.contains(id))
                .or_else(|| (0..limit).find(|id| !used.contains(id)))
                .ok_or_else(|| {
                    EngineError::Conflict(format!(
                        "all {limit} backends of limits.backends are used"
                    ))
                })?,
        };
        let count = self.document.incarnations.entry(id).or_default();
        if former != Some(id) {
            *count += 1;
            self.plane.reset_lane(id).plane()?;
        }
        let incarnation = *count;
        let entry = weir_plane::Backend { address: wanted.address, incarnation, up, hop: None };
        let there = self.plane.backend(id).is_some_and(|b| b.address == entry.address);
        if former != Some(id) || !there {
            self.plane.set_backend(id, Some(&entry)).plane()?;
        }
        let detail = if up { "assumed" } else { "not checked yet" };
        let down_since = (!up).then(Instant::now);
        Ok(PoolMember { id, incarnation, wanted, up, down_since, detail: detail.into() })
    }

    fn free_number(&self) -> u32 {
        let saved: HashSet<u32> =
            self.document.services.values().map(|service| service.number).collect();
        (0..).find(|n| !self.names.contains_key(n) && !saved.contains(n)).unwrap_or_default()
    }

    /// Tells the health checker what to check.
    pub(super) fn set_targets(&self) {
        let mut targets = Vec::new();
        // Backends hold the services' addresses, so an answer to one of them stays there.
        let vips: Vec<IpAddr> = self.services.values().map(|s| s.configured.vip).collect();
        let interfaces: Arc<[String]> = self.config.balancer.interfaces.clone().into();
        for service in self.services.values() {
            let Some(check) = &service.configured.check else { continue };
            targets.extend(service.pool.iter().map(|member| Target {
                id: u64::from(service.number) << 16 | u64::from(member.id),
                source: neigh::source_for(member.wanted.address, &vips),
                address: (member.wanted.address, check.port).into(),
                interfaces: Arc::clone(&interfaces),
                interval: check.interval,
                timeout: check.timeout,
                rise: check.rise,
                fall: check.fall,
                initially_up: member.up,
            }));
        }
        self.health.set_targets(targets);
    }
}

/// Whether two descriptions are of the same service, whatever its pool.
fn same_identity(a: &Service, b: &Service) -> bool {
    vip_of(a) == vip_of(b)
        && a.method == b.method
        && a.affinity == b.affinity
        && a.idle_timeout == b.idle_timeout
}

fn old_interfaces_differ(a: &Config, b: &Config) -> bool {
    a.balancer.interfaces != b.balancer.interfaces
}
