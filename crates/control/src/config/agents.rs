//! How agents on backends reach the balancer, and what they are asked for.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use weir_rpc::tls::Files;

/// Where agents are listened for, and by which certificates both sides know each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agents {
    /// Address and port.
    pub listen: SocketAddr,
    /// The balancer's certificate, in PEM.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority whose certificates agents must have.
    pub ca: PathBuf,
    /// A balancer that knows nothing takes no packets for so long, unless all agents have told it before what
    /// they hold.
    pub learn: Duration,
}

impl Agents {
    /// The files.
    pub fn files(&self) -> Files {
        let Self { certificate, key, ca, .. } = self.clone();
        Files { certificate, key, ca }
    }
}

/// Who says what connections a service has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum States {
    /// The balancer, by the packets that it sees.
    #[default]
    Observed,
    /// The backends' agents.
    Agents,
}

impl States {
    /// The name used in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Observed => "observed",
            Self::Agents => "agents",
        }
    }
}
