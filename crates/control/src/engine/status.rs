//! `weir status`: everything there is to tell, for people and for programs.

use super::service::ServiceRuntime;
use super::{Engine, EngineError};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The state of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Name of the instance.
    pub name: String,
    /// Version of weir.
    pub version: String,
    /// Process number of `weir run`.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// Whether it resumed a data plane that was there.
    pub resumed: bool,
    /// Interfaces, with "native" or "generic".
    pub interfaces: Vec<(String, String)>,
    /// Things to know.
    pub warnings: Vec<String>,
    /// The services.
    pub services: Vec<ServiceStatus>,
    /// Packets that were not forwarded.
    pub outcomes: Vec<OutcomeStatus>,
    /// Flows that neither the ring nor the *unreported* map could take.
    pub unrecorded_flows: u64,
    /// Reports taken from the data plane.
    pub reports: u64,
    /// Flows in the pending table.
    pub pending_flows: usize,
    /// Bytes of the pool in use by tables.
    pub table_bytes_used: usize,
    /// Bytes of the pool.
    pub table_bytes: usize,
}

/// A service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Name.
    pub name: String,
    /// Its number in the data plane.
    pub number: u32,
    /// Address.
    pub vip: IpAddr,
    /// "tcp" or "udp".
    pub protocol: String,
    /// Port; none: any.
    pub port: Option<u16>,
    /// Method.
    pub method: String,
    /// "flow" or "client".
    pub affinity: String,
    /// Tables published so far.
    pub generation: u64,
    /// Digest of the published table, hexadecimal.
    pub digest: String,
    /// States known to the control plane.
    pub states: usize,
    /// States in the published table.
    pub published_states: u64,
    /// Flows that were not remembered because of limits.states_per_service.
    pub refused_states: u64,
    /// Bytes of the published table.
    pub table_bytes: usize,
    /// Bytes of the control structure.
    pub control_bytes: usize,
    /// Milliseconds of the last update, waiting included.
    pub last_update_ms: Option<u64>,
    /// Its backends.
    pub backends: Vec<BackendStatus>,
}

/// A backend.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendStatus {
    /// Name.
    pub name: String,
    /// Its number in the data plane.
    pub number: u16,
    /// Address.
    pub address: IpAddr,
    /// Weight.
    pub weight: u16,
    /// "up", "down" or "draining".
    pub state: String,
    /// Its health check.
    pub check: CheckStatus,
    /// States it holds, as far as the method knows.
    pub states: Option<usize>,
    /// Packets forwarded to it.
    pub packets: u64,
    /// Bytes forwarded to it.
    pub bytes: u64,
    /// Flows that started there.
    pub flows: u64,
}

/// A health check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckStatus {
    /// Whether the backend counts as up.
    pub up: bool,
    /// What the last check that changed something said.
    pub detail: String,
    /// What the last check said.
    pub last: Option<String>,
}

/// Packets that were not forwarded for one reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OutcomeStatus {
    /// Short name of the reason.
    pub reason: String,
    /// What it means.
    pub description: String,
    /// Left to the kernel.
    pub passed: u64,
    /// Dropped.
    pub dropped: u64,
}

impl Engine {
    pub(super) fn status(&self) -> Result<Status, EngineError> {
        let (used, all) = self.plane.pool_bytes();
        let outcomes = self
            .plane
            .outcomes()?
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
                .map(|a| (a.interface.name.clone(), mode(a.generic).into()))
                .collect(),
            warnings: self.warnings.clone(),
            services,
            outcomes,
            unrecorded_flows: self.plane.unrecorded(),
            reports: self.events_taken,
            pending_flows: self.plane.pending()?.len(),
            table_bytes_used: used,
            table_bytes: all,
        })
    }

    fn service_status(&self, service: &ServiceRuntime) -> Result<ServiceStatus, EngineError> {
        let configured = &service.configured;
        let image = self.plane.published(service.number)?;
        let header = image.as_ref().map(|image| image.header());
        let checks = self.health.snapshot();
        let mut backends = Vec::new();
        for member in &service.pool {
            let lane = self.plane.lane(member.id)?;
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
                },
                states: service.concury().map(|c| c.states_of(member.id)),
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
            states: service.concury().map_or(0, |c| c.len()),
            published_states: header.map_or(0, |h| h.states),
            refused_states: service.concury().map_or(0, |c| c.refused()),
            table_bytes: self.plane.table_bytes(service.number),
            control_bytes: service.concury().map_or(0, |c| c.control_bytes()),
            last_update_ms: service.last_update.map(|d| d.as_millis() as u64),
            backends,
        })
    }
}
