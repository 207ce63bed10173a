//! Where the store is, and by what it and its clients know each other.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
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

    /// What there is to say of endpoints that are spoken to in the clear over a network: whoever is in between reads
    /// the seeds of hash keys, and whoever can write to the store configures the fleet. Nothing leaves the host on the
    /// way to a loopback address.
    pub fn warning(&self) -> Option<String> {
        let plain: Vec<&str> =
            self.endpoints.iter().map(String::as_str).filter(|one| is_open(one)).collect();
        (!plain.is_empty()).then(|| {
            format!(
                "[store] speaks to {} without TLS: who reads along has the seeds of the fleet's hash keys, and who \
                 can write there configures all its balancers; write https:// in endpoints, and give ca, certificate \
                 and key (docs/fleet.md, The store)",
                plain.join(", ")
            )
        })
    }
}

/// Whether an endpoint is spoken to in the clear, and not on this host.
fn is_open(endpoint: &str) -> bool {
    let Some(rest) = endpoint.strip_prefix("http://") else { return false };
    let host = rest.rsplit_once(':').map_or(rest, |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    let loops = host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    !loops && !host.eq_ignore_ascii_case("localhost")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_in_the_clear_are_warned_of_but_on_this_host() {
        let said = |endpoints: &[&str]| {
            let config = StoreConfig {
                endpoints: endpoints.iter().map(ToString::to_string).collect(),
                prefix: "/weir".into(),
                tls: TlsFiles::default(),
                user: None,
                password_file: None,
                wait: Duration::from_secs(3),
                withdraw_after: None,
            };
            config.warning()
        };
        let good = [
            "https://10.0.0.9:2379",
            "http://127.0.0.1:2379",
            "http://127.8.0.1:2379",
            "http://[::1]:2379",
            "http://localhost:2379",
        ];
        good.iter().for_each(|one| assert_eq!(said(&[one]), None, "{one}"));
        for one in ["http://10.0.0.9:2379", "http://[fd00::9]:2379", "http://localhost.example:1"] {
            assert!(said(&[one]).is_some_and(|words| words.contains(one)), "{one}");
        }
        let both = said(&["http://127.0.0.1:2379", "http://10.0.0.9:2379"]).expect("one is open");
        assert!(both.contains("10.0.0.9") && !both.contains("127.0.0.1"), "{both}");
    }
}
