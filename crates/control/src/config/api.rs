//! Who may ask a running balancer for what, and where it listens (`docs/api.md`).

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What somebody may do. Each role may also do what the ones before it may.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look: status, rates, events, history, where a flow goes.
    Read,
    /// Also change pools: add, remove, drain and weigh backends, tell loads, look at packets.
    Operate,
    /// Also change the configuration, read its files (which may have keys in them), and plan by any file
    /// of the host's.
    Admin,
}

impl Role {
    /// As the configuration names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

/// Who somebody is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Identity {
    /// A name in a client's certificate: its common name, or a DNS name, mail address or URI among its
    /// alternative names. `*`: any certificate of the authority.
    Certificate(String),
    /// A user of this host, at the socket.
    User(String),
    /// Whoever is in a group of this host, at the socket.
    Group(String),
}

/// Somebody, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Whom it names: the holder of a certificate, a user, or a group of this host.
    pub who: Identity,
    /// What they may do: look, also operate pools, or all.
    pub role: Role,
}

/// The API beside the socket that root alone may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Api {
    /// Where it is served by TLS; none: nowhere.
    pub tls: Option<ApiTls>,
    /// Group of the socket, whose members may connect; none: its owner alone.
    pub socket_group: Option<String>,
    /// The audit log; none: `audit.log` of the state directory.
    pub audit: Option<PathBuf>,
    /// Who may do what, beside root at the socket, who may do all.
    pub clients: Vec<Client>,
}

/// How the API is served by TLS. Clients must have a certificate, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiTls {
    /// Address and port.
    pub listen: SocketAddr,
    /// File of the certificates that the balancer shows, PEM, its own first.
    pub certificate: PathBuf,
    /// File of the key to the first one, PEM.
    pub key: PathBuf,
    /// File of the authorities that clients' certificates go back to, PEM.
    pub client_ca: PathBuf,
}

/// The page for a browser, in plain HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Web {
    /// Address and port.
    pub listen: SocketAddr,
    /// What everybody may do who reaches it; [`Role::Operate`] on a loopback address only.
    pub role: Role,
    /// Names by which browsers may call it, beside addresses and `localhost`.
    pub hosts: Vec<String>,
}
