//! Services whose packets are led by QUIC ids: what the plane knows of their servers, and the file
//! that the servers make their ids by.

use super::service::ServiceRuntime;
use super::{Engine, EngineError, PlaneResult, tolerate};
use crate::store::{StoreError, write_whole};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::PathBuf;
use weir_host::files;
use weir_plane::{IdOutcome, IdRoutes, NotLed, Plane};
use weir_steering::BackendId;
use weir_wire::quic::Id;

/// How a service's packets are led by their ids, as `weir status` shows it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct QuicStatus {
    /// Number of the configuration that servers make new ids by.
    pub issue: u8,
    /// The configurations that ids are read by, of which each id names one.
    pub configs: Vec<QuicConfigStatus>,
    /// The file that says to the servers how they make ids.
    pub file: PathBuf,
}

/// A configuration of QUIC-LB (draft-ietf-quic-load-balancers-21), and the servers' ids in it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct QuicConfigStatus {
    /// Number of the configuration, 0 to 6, as the first three bits of its ids have it.
    pub config_id: u8,
    /// Bytes of a server id.
    pub server_id_length: u8,
    /// Bytes of a nonce.
    pub nonce_length: u8,
    /// Whether the server id is hidden by a key.
    pub encrypted: bool,
    /// Server ids, hexadecimal, by backend.
    pub servers: Vec<(String, String)>,
}

/// Packets of services with QUIC ids, by what became of the id.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct IdStatus {
    /// In snake case, for example `decoded`.
    pub outcome: String,
    /// As a sentence.
    pub description: String,
    /// Number of packets whose id had this outcome.
    pub packets: u64,
}

impl ServiceRuntime {
    /// What leads its packets by their ids.
    pub(super) fn id_routes(&self) -> Option<IdRoutes> {
        let quic = self.configured.quic.as_ref()?;
        let members = self.pool.iter().map(|member| (member.wanted.name.as_str(), member.id));
        Some(quic.routes(members))
    }

    /// Where the id of a packet leads, if packets of the service are led by ids.
    pub(super) fn led_by(&self, id: &Id) -> Option<Result<(BackendId, u8, Id), NotLed>> {
        Some(self.id_routes()?.route(id))
    }

    pub(super) fn quic_status(&self, run_dir: &std::path::Path) -> Option<QuicStatus> {
        let quic = self.configured.quic.as_ref()?;
        let configs = quic.configs.iter().map(|config| QuicConfigStatus {
            config_id: config.config_id,
            server_id_length: config.server_id_length,
            nonce_length: config.nonce_length,
            encrypted: config.key.is_some(),
            servers: self
                .pool
                .iter()
                .map(|member| {
                    let name = member.wanted.name.clone();
                    let id = quic.server_id(&name, config.server_id_length.into());
                    (name, format!("{id:?}"))
                })
                .collect(),
        });
        let file = self.servers_file(run_dir);
        Some(QuicStatus { issue: quic.issue, configs: configs.collect(), file })
    }

    fn servers_file(&self, run_dir: &std::path::Path) -> PathBuf {
        run_dir.join(format!("quic-{}.toml", self.configured.name))
    }
}

impl<P: Plane> Engine<P> {
    /// Tells the plane where the ids of a service lead, and the servers how to make them.
    pub(super) fn tell_ids(&mut self, name: &str) -> Result<(), EngineError> {
        let Some(service) = self.services.get(name) else { return Ok(()) };
        let routes = service.id_routes();
        if routes.is_none() && !service.told_ids {
            return Ok(());
        }
        if let Some(quic) = &service.configured.quic {
            let members = service.pool.iter();
            let servers =
                members.map(|member| (member.wanted.name.as_str(), member.wanted.address));
            let text = quic.for_servers(&service.configured.name, servers);
            let path = service.servers_file(&self.config.balancer.run_dir);
            let written = write_whole(&path, text.as_bytes()).map_err(EngineError::from);
            tolerate("write the file of QUIC servers", written);
        }
        let told = self.plane.set_id_routes(service.number, routes.as_ref()).plane();
        let failed = told.is_err();
        if let Some(service) = self.services.get_mut(name) {
            service.told_ids = routes.is_some() || failed;
        }
        told.map_err(|error| {
            EngineError::Unfinished(format!("service {name}: its QUIC ids: {error}"))
        })
    }

    /// Removes the files of services that are gone, have another name, or are led by ids no more: there are keys in
    /// them. The run directory is this instance's alone.
    fn forget_ids(&self) {
        let run_dir = &self.config.balancer.run_dir;
        let led = self.services.values().filter(|service| service.configured.quic.is_some());
        let wanted: HashSet<PathBuf> = led.map(|service| service.servers_file(run_dir)).collect();
        let there = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
        for path in there.map(|entry| entry.path()) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            // One that a process has left that was killed while it wrote it, too.
            let name = name.strip_suffix(".tmp").unwrap_or(name);
            let is_one = name.starts_with("quic-") && name.ends_with(".toml");
            if is_one && !wanted.contains(&path) {
                let removed = files::gone(&path);
                let failed =
                    |source| StoreError::Io { doing: "remove", path: path.clone(), source };
                tolerate(
                    "remove a file of QUIC servers",
                    removed.map_err(failed).map_err(EngineError::from),
                );
            }
        }
    }

    /// The same of all services. Returns what could not be done.
    pub(super) fn tell_all_ids(&mut self) -> Vec<EngineError> {
        self.forget_ids();
        let names: Vec<String> = self.services.keys().cloned().collect();
        names.iter().filter_map(|name| self.tell_ids(name).err()).collect()
    }

    /// What became of packets' ids; nothing if no service is led by them.
    pub(super) fn id_status(&self) -> Result<Vec<IdStatus>, EngineError> {
        if self.services.values().all(|service| service.configured.quic.is_none()) {
            return Ok(Vec::new());
        }
        let outcomes = self.plane.id_outcomes().plane()?;
        let packets = |outcome: &IdOutcome| outcomes.get(outcome).copied().unwrap_or(0);
        let all = IdOutcome::ALL.iter().map(|outcome| IdStatus {
            outcome: outcome.name().into(),
            description: outcome.description().into(),
            packets: packets(outcome),
        });
        Ok(all.filter(|one| one.packets > 0).collect())
    }
}
