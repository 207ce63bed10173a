//! One service at run time: its pool, its builder, and the log of its states.

use super::EngineError;
use super::document::{SavedBackend, SavedService};
use super::update::Trouble;
use crate::config::{Affinity, AllDown, Backend, Protocol, Service, is_host, is_name};
use crate::store::{Op, StateLog, StateRecord};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;
use weir_hash::{HashKey, Key};
use weir_plane::VipKey;
use weir_steering::{
    BackendId, Build, Event, EventKind, Flags, Image, Known, Member, Phase, Role, ServiceConfig,
    ServiceState, StateKey,
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

pub(super) struct ServiceRuntime {
    pub number: u32,
    pub seed: u64,
    pub generation: u64,
    pub configured: Service,
    pub pool: Vec<PoolMember>,
    /// The build face of its method.
    pub builder: Box<dyn Build>,
    pub log: Option<StateLog>,
    /// The pool has changed since the last table was published.
    pub dirty: bool,
    /// Connections that were not remembered, when that was last said.
    refused_before: u64,
    /// Connections of draining backends that there was no room to pin.
    pub unpinned: usize,
    /// Hash key under which its flows are armed in the activity marks.
    pub marked_under: Option<HashKey>,
    /// Keys under which the marks were made that are to be read next.
    pub read_under: Vec<HashKey>,
    /// States whose backend is gone. A UDP flow among them must look new again, so that its next
    /// packets are reported.
    pub astray: Vec<StateKey>,
    /// States whose backend has no place in the table that is built and not published.
    orphans: Vec<StateKey>,
    /// Backends that have left the pool, and not yet the published table.
    pub leaving: Vec<u16>,
    /// Why the last update was not finished, and when it is tried again.
    pub trouble: Option<Trouble>,
    /// Why states could not be written down: a control plane that dies now forgets some.
    pub unwritten: Option<String>,
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
        let (log, records) = if configured.method.id().needs().states {
            let path = run_dir.join(format!("states-{}.log", configured.name));
            let (log, records) = StateLog::open(path)?;
            (Some(log), records)
        } else {
            (None, Vec::new())
        };
        let config = ServiceConfig {
            settings: configured.method.settings().clone(),
            client_affinity: configured.affinity == Affinity::Client,
            udp: configured.protocol == Protocol::Udp,
            seed,
            nonce: seed ^ u64::from(now),
            capacity: records.len().max(1024),
            max_states: states,
            idle_seconds: configured.idle_timeout.as_secs().min(u64::from(u32::MAX)) as u32,
        };
        let builder = configured.method.builder(&config, published.map(Arc::new));
        let marked_under = builder.published().map(|image| image.header().key);
        let runtime = Self {
            number,
            seed,
            generation: 0,
            configured,
            pool: Vec::new(),
            builder,
            log,
            dirty: true,
            refused_before: 0,
            unpinned: 0,
            marked_under,
            read_under: Vec::new(),
            astray: Vec::new(),
            orphans: Vec::new(),
            leaving: Vec::new(),
            trouble: None,
            unwritten: None,
            last_update: None,
        };
        Ok((runtime, records))
    }

    /// Says so if there were connections since the last call that are not remembered.
    pub fn warn_of_refused(&mut self) {
        let refused = self.builder.refused();
        if refused > self.refused_before {
            let (service, more) = (&self.configured.name, refused - self.refused_before);
            warn!(service, more, "connections beyond limits.states_per_service: not remembered");
            self.refused_before = refused;
        }
    }

    fn is_by_client(&self) -> bool {
        self.configured.affinity == Affinity::Client
    }

    /// Hash key of the published table.
    pub fn hash_key(&self) -> Option<HashKey> {
        self.builder.published().map(|image| image.header().key)
    }

    /// Whether packets are marked by a hash under which no flow is armed.
    pub fn is_rekeyed(&self) -> bool {
        self.marked_under.is_some() && self.hash_key() != self.marked_under
    }

    /// Another period of activity begins: the hashes of all flows to `open` and, of those of which
    /// only the first packet is known, to `opening`.
    pub fn arm(&mut self, open: &mut Vec<u64>, opening: &mut Vec<u64>) {
        let key = self.hash_key();
        self.read_under = self.marked_under.into_iter().chain(key).collect();
        self.read_under.dedup();
        self.marked_under = key;
        let marks = |image: &Arc<Image>| image.header().flags().has(Flags::MARK);
        let Some(key) = key.filter(|_| self.builder.published().is_some_and(marks)) else { return };
        self.builder.each_state(&mut |state, known| match known.phase {
            Phase::Open => open.push(state.hash(&key)),
            Phase::Opening => opening.push(state.hash(&key)),
            // A SYN may well begin another connection with the same ports.
            Phase::Closing => {}
        });
    }

    /// What the data plane listens on.
    pub fn vip(&self) -> VipKey {
        vip_of(&self.configured)
    }

    /// Something has changed since the last update failed: it need not wait any longer.
    pub fn try_at_once(&mut self) {
        if let Some(trouble) = &mut self.trouble {
            trouble.again = Instant::now();
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

    /// The name of a backend.
    pub fn name_of(&self, backend: BackendId) -> Option<String> {
        self.by_id(backend.get()).map(|member| member.wanted.name.clone())
    }

    /// States of a backend; `None` if the method has none.
    pub fn states_of(&self, backend: u16) -> Option<usize> {
        BackendId::new(backend).and_then(|backend| self.builder.states_of(backend))
    }

    /// What the control plane knows of a flow.
    pub fn known(&self, key: &StateKey) -> Option<Known> {
        self.builder.known(key)
    }

    /// The pool as steering sees it.
    pub fn members(&self) -> Vec<Member> {
        let keep = self.all_down() == Some(AllDown::Keep);
        self.pool
            .iter()
            .map(|member| Member {
                backend: member.id,
                name: member.wanted.name.clone(),
                weight: member.wanted.weight.into(),
                role: match (member.up || keep, member.wanted.drain) {
                    (false, _) => Role::Down,
                    (true, true) => Role::Draining,
                    (true, false) => Role::Serving,
                },
            })
            .collect()
    }

    /// What new connections meet if the checks have down every backend that could take them; `None`
    /// if one is up, or none could.
    pub fn all_down(&self) -> Option<AllDown> {
        let check = self.configured.check.as_ref()?;
        let mut takers = self.pool.iter().filter(|m| m.wanted.weight > 0 && !m.wanted.drain);
        let first = takers.next()?;
        (!first.up && takers.all(|member| !member.up)).then_some(check.all_down)
    }

    /// Whether a backend may get new connections as far as its check is concerned.
    pub fn takes_as_up(&self, member: &PoolMember) -> bool {
        member.up || self.all_down() == Some(AllDown::Keep)
    }

    /// Takes up a report of the data plane. What is stored here before the report counts as
    /// consumed survives a crash; seen twice, it does no harm.
    pub fn take_event(&mut self, event: &Event, now: u32) -> Result<(), EngineError> {
        match event.kind {
            EventKind::Start => self.start(event.state.key, event.backend, now),
            EventKind::End => {
                self.builder.end(&event.state.key, now);
                Ok(())
            }
        }
    }

    /// Keeps apart what cannot be written down from what cannot be remembered. The former is said
    /// once and shown by `weir status`; tables hold those flows all the same.
    ///
    /// # Errors
    /// What is no [`EngineError::Store`].
    pub fn remembered(
        &mut self,
        take: impl FnOnce(&mut Self) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        match take(self) {
            Err(error @ EngineError::Store(_)) => {
                self.written(Err(error));
                Ok(())
            }
            taken => taken,
        }
    }

    fn written(&mut self, written: Result<(), EngineError>) {
        if let Err(error) = written {
            if self.unwritten.is_none() {
                warn!(service = self.configured.name, %error, "cannot write down states");
            }
            self.unwritten = Some(error.to_string());
        }
    }

    /// A flow has started at a backend.
    pub fn start(&mut self, key: StateKey, backend: u16, now: u32) -> Result<(), EngineError> {
        if self.by_id(backend).is_none() {
            // The backend was removed while the report was on its way: inevitably broken.
            self.astray.push(key);
            return Ok(());
        }
        let Some(id) = BackendId::new(backend) else { return Ok(()) };
        let known = self.builder.known(&key).is_some_and(|state| state.backend == id);
        let kept = self.builder.start(key, id, now)?;
        // A flow that cannot be written down is lost only if the control plane dies.
        if kept
            && !known
            && let Some(log) = &mut self.log
        {
            log.append(&record(Op::Add, &key, backend, now))?;
        }
        Ok(())
    }

    /// Removes states from the log: they are idle, or their backend is gone.
    pub fn log_removed(&mut self, keys: &[StateKey], now: u32) -> Result<(), EngineError> {
        let Some(log) = &mut self.log else { return Ok(()) };
        for key in keys {
            log.append(&record(Op::Remove, key, 0, now))?;
        }
        if log.should_compact(self.builder.states()) {
            let mut all = Vec::with_capacity(self.builder.states());
            self.builder.each_state(&mut |key, known| {
                all.push(record(Op::Add, key, known.backend.get(), now));
            });
            log.compact(all)?;
            // All that is known has been written anew.
            self.unwritten = None;
        }
        Ok(())
    }

    /// Drafts the next table; with the states to be pinned beside it. It is published when
    /// [`published`](Self::published) says so.
    ///
    /// Of the connections whose first packet may be repeated no more than `most` are pinned, the
    /// youngest: those that are armed keep their place without.
    pub fn build(&mut self, now: u32, most: usize) -> Result<(Arc<Image>, Pins), EngineError> {
        let members = self.members();
        let generation = self.generation + 1;
        let number = self.number;
        let mut built = self.builder.draft(generation, &members, now)?;
        let before = built.pinned.len();
        if built.table.header().flags().has(Flags::MARK) && !self.is_by_client() {
            built.pinned.truncate(most);
        }
        self.unpinned = before - built.pinned.len();
        if self.unpinned > 0 {
            let (service, left) = (&self.configured.name, self.unpinned);
            warn!(service, left, most, "connections of draining backends are not pinned: too many");
        }
        self.orphans = built.orphans;
        let pin =
            |(key, id): (StateKey, BackendId)| (ServiceState { service: number, key }, id.get());
        Ok((built.table, built.pinned.into_iter().map(pin).collect()))
    }

    /// The table built last is published. Returns states that have no backend any more.
    pub fn published(&mut self, now: u32) -> Vec<StateKey> {
        self.generation += 1;
        self.builder.publish_draft();
        let mut orphans = std::mem::take(&mut self.orphans);
        let logged = self.log_removed(&orphans, now);
        self.written(logged);
        orphans.append(&mut self.astray);
        orphans
    }

    /// The table built last cannot be published: the one before stays.
    pub fn discard(&mut self) -> Result<(), EngineError> {
        self.orphans.clear();
        Ok(self.builder.discard_draft()?)
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

    /// Checks that a backend could be added: what a file may not say, a command may not either.
    pub fn may_add(&self, name: &str, address: IpAddr) -> Result<(), EngineError> {
        let service = &self.configured.name;
        let vip = self.configured.vip;
        let refuse = |wrong: String| Err(EngineError::Conflict(wrong));
        let invalid = |wrong: String| Err(EngineError::Invalid(wrong));
        if !is_name(name) {
            return invalid(format!(
                "{name:?} is not a name; use 1 to 64 letters, digits and - _ ."
            ));
        }
        if !is_host(address) {
            return invalid(format!("{address} is not the address of one host"));
        }
        if address.is_ipv4() != vip.is_ipv4() {
            let family = if vip.is_ipv4() { "IPv4" } else { "IPv6" };
            return invalid(format!(
                "service {service}: its address {vip} is {family}, so its backends' must be too; \
                 {address} is not"
            ));
        }
        if address == vip {
            return invalid(format!(
                "{address} is the vip of service {service} itself; give the backend's own address"
            ));
        }
        if self.member(name).is_some() {
            return refuse(format!("service {service} already has a backend {name}"));
        }
        if let Some(other) = self.pool.iter().find(|m| m.wanted.address == address) {
            let other = &other.wanted.name;
            return refuse(format!("service {service}: backend {other} has address {address}"));
        }
        if let Err(misfit) = self.configured.method.fits(self.pool.len() + 1) {
            return refuse(format!("service {service}: {misfit}"));
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
