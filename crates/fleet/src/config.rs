//! Where the store is, and by what it and its clients know each other.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A store of several balancers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreConfig {
    /// Members of the etcd cluster, `http://` or `https://` with host and port; at least one.
    pub endpoints: Vec<String>,
    /// What all keys of the fleet begin with, such as `/weir`.
    pub prefix: String,
    /// What TLS goes by; none: the system's authorities, and no certificate of our own.
    pub tls: TlsFiles,
    /// The user of etcd.
    pub user: Option<String>,
    /// The file that the user's password is in.
    pub password_file: Option<PathBuf>,
    /// How long a start waits for the store before it goes on with what the balancer has itself.
    pub wait: Duration,
    /// A balancer that has not followed the store for so long withdraws its routes; none: it never does.
    pub withdraw_after: Option<Duration>,
}

impl StoreConfig {
    /// Whether connections are encrypted.
    pub fn is_tls(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.starts_with("https://"))
    }
}

/// As a person would name it.
impl fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd at {}, under {}", self.endpoints.join(", "), self.prefix)
    }
}

/// Files for TLS, all in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    /// The authority of etcd's certificates.
    pub ca: Option<PathBuf>,
    /// The balancer's own certificate.
    pub certificate: Option<PathBuf>,
    /// The key of that.
    pub key: Option<PathBuf>,
}
