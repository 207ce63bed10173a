//! One service at run time: its pool, its builder, and the log of its states.

use super::EngineError;
use super::document::{SavedBackend, SavedService};
use crate::config::{self, Affinity, Backend, Method, Protocol, Service};
use crate::store::{Op, StateLog, StateRecord};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_lookup::HashKey;
use weir_steering::{
    Codec, Concury, ConcuryConfig, Event, EventKind, Image, Member, Role, ServiceState, StateKey,
    TrackedBuilder, VipKey,
};
use weir_wire::map_address;

/// A member of a pool at run time.
#[derive(Clone, Debug)]
pub(super) struct PoolMember {
    pub id: u16,
    pub incarnation: u32,
    pub wanted: Backend,
    pub up: bool,
    /// Since when the health check has it down.
    pub down_since: Option<Instant>,
    /// What the last health check said.
    pub detail: String,
}

/// States to be pinned, with their backends.
pub(super) type Pins = Vec<(ServiceState, u16)>;

/// The build face of a service's method.
pub(super) enum Builder {
    Concury(Box<Concury>),
    Tracked(TrackedBuilder),
}

pub(super) struct ServiceRuntime {
    pub number: u32,
    pub seed: u64,
    pub generation: u64,
    pub configured: Service,
    pub pool: Vec<PoolMember>,
    pub builder: Builder,
    pub log: Option<StateLog>,
    /// The pool has changed since the last table was published.
    pub dirty: bool,
    /// Hash key of the table when the activity bitmaps were last switched.
    pub marked_under: Option<HashKey>,
    /// States whose backend is gone. A UDP flow among them must look new again, so that its next
    /// packets are reported.
    pub astray: Vec<StateKey>,
    pub last_update: Option<Duration>,
}

impl ServiceRuntime {
    pub fn new(
        number: u32,
        seed: u64,
        configured: Service,
        states: usize,
        run_dir: &Path,
        published: Option<Image>,
        now: u32,
    ) -> Result<(Self, Vec<StateRecord>), EngineError> {
        let client = configured.affinity == Affinity::Client;
        let udp = configured.protocol == Protocol::Udp;
        let (builder, log, records) = match configured.method {
            Method::Concury { dcode_bits } => {
                let (log, records) =
                    StateLog::open(run_dir.join(format!("states-{}.log", configured.name)))?;
                let config = ConcuryConfig {
                    codec: Codec::Othello,
                    bits: dcode_bits.into(),
                    client_affinity: client,
                    udp,
                    mark: !udp,
                    capacity: records.len().max(1024),
                    max_states: states,
                    idle_seconds: configured.idle_timeout.as_secs().min(u64::from(u32::MAX)) as u32,
                    seed: seed ^ u64::from(now),
                };
                let concury = match published {
                    Some(image) => Concury::resume(config, Arc::new(image)),
                    None => Concury::new(config),
                };
                (Builder::Concury(Box::new(concury)), Some(log), records)
            }
            Method::Tracked { table_size } => {
                let key = HashKey::from_seed(seed);
                let builder = TrackedBuilder::new(key, table_size, client);
                (Builder::Tracked(builder), None, Vec::new())
            }
        };
        let runtime = Self {
            number,
            seed,
            generation: 0,
            configured,
            pool: Vec::new(),
            builder,
            log,
            dirty: true,
            marked_under: None,
            astray: Vec::new(),
            last_update: None,
        };
        Ok((runtime, records))
    }

    /// What the data plane listens on.
    pub fn vip(&self) -> VipKey {
        vip_of(&self.configured)
    }

    pub fn concury(&self) -> Option<&Concury> {
        match &self.builder {
            Builder::Concury(concury) => Some(concury),
            Builder::Tracked(_) => None,
        }
    }

    pub fn concury_mut(&mut self) -> Option<&mut Concury> {
        match &mut self.builder {
            Builder::Concury(concury) => Some(concury),
            Builder::Tracked(_) => None,
        }
    }

    pub fn member(&self, name: &str) -> Option<&PoolMember> {
        self.pool.iter().find(|member| member.wanted.name == name)
    }

    pub fn member_mut(&mut self, name: &str) -> Option<&mut PoolMember> {
        self.pool.iter_mut().find(|member| member.wanted.name == name)
    }

    pub fn by_id(&self, id: u16) -> Option<&PoolMember> {
        self.pool.iter().find(|member| member.id == id)
    }

    /// The pool as steering sees it.
    pub fn members(&self) -> Vec<Member> {
        self.pool
            .iter()
            .map(|member| Member {
                backend: member.id,
                name: member.wanted.name.clone(),
                weight: member.wanted.weight.into(),
                role: match (member.up, member.wanted.drain) {
                    (false, _) => Role::Down,
                    (true, true) => Role::Draining,
                    (true, false) => Role::Serving,
                },
            })
            .collect()
    }

    /// Takes up a report of the data plane. What is stored here before the report counts as
    /// consumed survives a crash; seen twice, it does no harm.
    pub fn take_event(&mut self, event: &Event, now: u32) -> Result<(), EngineError> {
        match event.kind {
            EventKind::Start => self.start(event.state.key, event.backend, now),
            EventKind::End => {
                if let Some(concury) = self.concury_mut() {
                    concury.end(&event.state.key, now);
                }
                Ok(())
            }
        }
    }

    /// A flow has started at a backend.
    pub fn start(&mut self, key: StateKey, backend: u16, now: u32) -> Result<(), EngineError> {
        if self.by_id(backend).is_none() {
            // The backend was removed while the report was on its way: inevitably broken.
            self.astray.push(key);
            return Ok(());
        }
        let Builder::Concury(concury) = &mut self.builder else { return Ok(()) };
        let known = concury.get(&key).is_some_and(|state| state.backend == backend);
        if !known && let Some(log) = &mut self.log {
            log.append(&record(Op::Add, &key, backend, now))?;
        }
        concury.start(key, backend, now)?;
        Ok(())
    }

    /// Removes states from the log: they are idle, or their backend is gone.
    pub fn log_removed(&mut self, keys: &[StateKey], now: u32) -> Result<(), EngineError> {
        let Some(log) = &mut self.log else { return Ok(()) };
        for key in keys {
            log.append(&record(Op::Remove, key, 0, now))?;
        }
        if let Builder::Concury(concury) = &self.builder
            && log.should_compact(concury.len())
        {
            log.compact(
                concury.states().map(|(key, state)| record(Op::Add, key, state.backend, now)),
            )?;
        }
        Ok(())
    }

    /// Builds the next table; with the states to be pinned beside it.
    pub fn build(&mut self, now: u32) -> Result<(Arc<Image>, Pins), EngineError> {
        let members = self.members();
        let generation = self.generation + 1;
        let number = self.number;
        let built = match &mut self.builder {
            Builder::Concury(concury) => {
                let (image, report) = concury.build(generation, &members, now)?;
                self.astray.extend(report.orphans);
                let pinned = report
                    .pinned
                    .into_iter()
                    .map(|(key, backend)| (ServiceState { service: number, key }, backend))
                    .collect();
                (image, pinned)
            }
            Builder::Tracked(builder) => {
                (Arc::new(builder.build(generation, &members)?), Vec::new())
            }
        };
        self.generation = generation;
        Ok(built)
    }

    pub fn saved(&self) -> SavedService {
        SavedService {
            number: self.number,
            seed: self.seed,
            generation: self.generation,
            configured: self.configured.clone(),
            backends: self
                .pool
                .iter()
                .map(|member| SavedBackend {
                    id: member.id,
                    name: member.wanted.name.clone(),
                    address: member.wanted.address,
                    weight: member.wanted.weight,
                    drain: member.wanted.drain,
                    up: member.up,
                })
                .collect(),
        }
    }

    /// Checks that a backend could be added.
    pub fn may_add(&self, name: &str, address: IpAddr) -> Result<(), EngineError> {
        let service = &self.configured.name;
        let refuse = |wrong: String| Err(EngineError::Refused(wrong));
        if self.member(name).is_some() {
            return refuse(format!("service {service} already has a backend {name}"));
        }
        if let Some(other) = self.pool.iter().find(|m| m.wanted.address == address) {
            let other = &other.wanted.name;
            return refuse(format!("service {service}: backend {other} has address {address}"));
        }
        if address.is_ipv4() != self.configured.vip.is_ipv4() {
            let family = if self.configured.vip.is_ipv4() { "IPv4" } else { "IPv6" };
            return refuse(format!(
                "service {service}: its address {} is {family}, so its backends' must be too; \
                 {address} is not",
                self.configured.vip
            ));
        }
        if let Method::Concury { dcode_bits } = self.configured.method
            && self.pool.len() >= (1 << dcode_bits) / config::CODES_PER_BACKEND
        {
            return refuse(format!(
                "service {service}: {} backends are all that dcode_bits = {dcode_bits} allows",
                self.pool.len()
            ));
        }
        Ok(())
    }
}

/// What a configured service listens on.
pub(super) fn vip_of(service: &Service) -> VipKey {
    VipKey {
        address: map_address(service.vip),
        protocol: match service.protocol {
            Protocol::Tcp => weir_wire::Protocol::Tcp,
            Protocol::Udp => weir_wire::Protocol::Udp,
        },
        port: service.port,
    }
}

fn record(op: Op, key: &StateKey, backend: u16, seconds: u32) -> StateRecord {
    StateRecord { op, key: key.to_bytes(), backend, seconds, flags: 0 }
}
