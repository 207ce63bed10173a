//! What a restarted control plane must know besides the states of connections.

use crate::config::{Backend, Service};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The file `runtime.json` in the run directory: what a restarted engine goes on from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// The services as they were left, by name.
    pub services: BTreeMap<String, SavedService>,
    /// How often each backend number was given out, by number.
    pub incarnations: BTreeMap<u16, u32>,
}

/// A service as it was left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedService {
    /// Number of the service in the data plane.
    pub number: u32,
    /// Seed of its flow hash, where that must outlive a restart.
    pub seed: u64,
    /// Number of tables published so far.
    pub generation: u64,
    /// The service as the configuration file had it. While the file says the same, changes made by
    /// commands hold; when it says something else, it is followed.
    pub configured: Service,
    /// The backends as they were left, commands included.
    pub backends: Vec<SavedBackend>,
}

/// A backend as it was left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedBackend {
    /// Number of the backend in the data plane.
    pub id: u16,
    /// Name of the backend, unique in its service.
    pub name: String,
    /// Address of the backend.
    pub address: IpAddr,
    /// Share of the new connections, 0 to 65,535.
    pub weight: u16,
    /// Whether it is draining.
    pub drain: bool,
    /// Whether its health check had it up.
    pub up: bool,
}

impl SavedBackend {
    /// The backend as a configuration file would have it.
    pub fn wanted(&self) -> Backend {
        Backend {
            name: self.name.clone(),
            address: self.address,
            weight: self.weight,
            drain: self.drain,
        }
    }
}
