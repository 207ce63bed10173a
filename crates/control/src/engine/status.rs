//! `weir status`: everything there is to tell, for people and for programs.

use super::service::ServiceRuntime;
use super::{Engine, EngineError, PlaneResult};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use weir_plane::Plane;

/// The state of an instance, as `weir status` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Name of the instance.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Process number of `weir run`.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// Whether it resumed a data plane that was there.
    pub resumed: bool,
    /// Interfaces that packets are taken from, each with "native" or "generic".
    pub interfaces: Vec<(String, String)>,
    /// What an operator should know, a sentence each.
    pub warnings: Vec<String>,
    /// The services, in the order of their names.
    pub services: Vec<ServiceStatus>,
    /// Packets that were not forwarded, by reason.
    pub outcomes: Vec<OutcomeStatus>,
    /// Flows that neither the ring nor the *unreported* map could take.
    pub unrecorded_flows: u64,
    /// Reports of flows taken from the data plane since the start.
    pub reports: u64,
    /// Flows in the pending table, over all services.
    pub pending_flows: usize,
    /// Bytes of the tables' memory that are in use.
    pub table_bytes_used: usize,
    /// Bytes of the tables' memory in all.
    pub table_bytes: usize,
}

/// A service and its published table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Name of the service.
    pub name: String,
    /// Number of the service in the data plane.
    pub number: u32,
    /// Address that clients connect to.
    pub vip: IpAddr,
    /// Transport protocol, "tcp" or "udp".
    pub protocol: String,
    /// Port; none if the service takes any.
    pub port: Option<u16>,
    /// Steering method, as the configuration names it.
    pub method: String,
    /// What stays on one backend: "flow" or "client".
    pub affinity: String,
    /// Number of tables published so far.
    pub generation: u64,
    /// Digest of the published table, hexadecimal.
    pub digest: String,
    /// Connections (or clients) known to the control plane.
    pub states: usize,
    /// States in the published table.
    pub published_states: u64,
    /// Flows that were not remembered because of limits.states_per_service.
    pub refused_states: u64,
    /// Bytes of the published table.
    pub table_bytes: usize,
    /// Bytes of the control plane's own structure for it.
    pub control_bytes: usize,
    /// How long the last update took, in milliseconds, waiting included.
    pub last_update_ms: Option<u64>,
    /// The backends, in the order of the pool.
    pub backends: Vec<BackendStatus>,
}

/// A backend and what went to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendStatus {
    /// Name of the backend, unique in its service.
    pub name: String,
    /// Number of the backend in the data plane.
    pub number: u16,
    /// Address of the backend.
    pub address: IpAddr,
    /// Share of the new connections, 0 to 65,535.
    pub weight: u16,
    /// "up", "down" or "draining".
    pub state: String,
    /// What its health check says.
    pub check: CheckStatus,
    /// States that it holds; none if the method keeps no states.
    pub states: Option<usize>,
    /// Packets forwarded to it.
    pub packets: u64,
    /// Bytes forwarded to it.
    pub bytes: u64,
    /// Flows that started there.
    pub flows: u64,
}

/// What the health check of a backend says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckStatus {
    /// Whether the backend counts as up.
    pub up: bool,
    /// What the last check that changed something said.
    pub detail: String,
    /// What the last check said; none before the first.
    pub last: Option<String>,
    /// The last check could not be made, for a reason of this host's own: the backend stays as it
    /// was.
    #[serde(default)]
    pub unknown: bool,
}

/// Packets that were not forwarded for one reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OutcomeStatus {
    /// The reason in snake case, for example `no_service`.
    pub reason: String,
    /// The reason as a sentence.
    pub description: String,
    /// Packets that were left to the kernel.
    pub passed: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

impl<P: Plane> Engine<P> {
    pub(super) fn status(&self) -> Result<Status, EngineError> {
        let (used, all) = self.plane.pool_bytes();
        let outcomes = self
            .plane
            .outcomes()
            .plane()?
            .into_iter()
            .map(|(reason, (passed, dropped))| OutcomeStatus {
                reason: reason.name().into(),
                description: reason.description().into(),
                passed,
                dropped,
            })
            .collect();
        let services =
            self.services.values().map(|s| self.service_status(s)).collect::<Result<_, _>>()?;
        let mode = |generic| if generic { "generic" } else { "native" };
        Ok(Status {
            name: self.config.balancer.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            resumed: self.resumed,
            interfaces: self
                .attached
                .iter()
                .map(|a| (a.interface.clone(), mode(a.generic).into()))
                .collect(),
            warnings: self.warnings.iter().cloned().chain(self.troubles()).collect(),
            services,
            outcomes,
            unrecorded_flows: self.plane.unrecorded(),
            reports: self.events_taken,
            pending_flows: self.plane.pending().plane()?.len(),
            table_bytes_used: used,
            table_bytes: all,
        })
    }

    fn service_status(&self, service: &ServiceRuntime) -> Result<ServiceStatus, EngineError> {
        let configured = &service.configured;
        let image = self.plane.published(service.number).plane()?;
        let header = image.as_ref().map(|image| image.header());
        let checks = self.health.snapshot();
        let mut backends = Vec::new();
        for member in &service.pool {
            let lane = self.plane.lane(member.id).plane()?;
            let id = u64::from(service.number) << 16 | u64::from(member.id);
            let check = checks.iter().find(|check| check.id == id);
            let state = match (member.up, member.wanted.drain) {
                (false, _) => "down",
                (true, true) => "draining",
                (true, false) => "up",
            };
            backends.push(BackendStatus {
                name: member.wanted.name.clone(),
                number: member.id,
                address: member.wanted.address,
                weight: member.wanted.weight,
                state: state.into(),
                check: CheckStatus {
                    up: member.up,
                    detail: member.detail.clone(),
                    last: check.and_then(|check| check.last_result.clone()),
                    unknown: check.is_some_and(|check| check.unknown),
                },
                states: service.states_of(member.id),
                packets: lane.packets,
                bytes: lane.bytes,
                flows: lane.flows,
            });
        }
        Ok(ServiceStatus {
            name: configured.name.clone(),
            number: service.number,
            vip: configured.vip,
            protocol: configured.protocol.name().into(),
            port: configured.port,
            method: configured.method.name().into(),
            affinity: match configured.affinity {
                crate::config::Affinity::Flow => "flow".into(),
                crate::config::Affinity::Client => "client".into(),
            },
            generation: service.generation,
            digest: header.map_or_else(String::new, |h| format!("{:016x}", h.digest)),
            states: service.builder.states(),
            published_states: header.map_or(0, |h| h.states),
            refused_states: service.builder.refused(),
            table_bytes: self.plane.table_bytes(service.number),
            control_bytes: service.builder.control_bytes(),
            last_update_ms: service.last_update.map(|d| d.as_millis() as u64),
            backends,
        })
    }
}
