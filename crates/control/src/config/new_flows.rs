//! How many new flows a service takes.

use serde::{Deserialize, Serialize};
use weir_hash::HashKey;
use weir_plane::{FlowCaps, Rate, SourceLimit, SourceRate};

/// The most flows in a second, and at once.
pub(super) const MOST_FLOWS: u32 = 1_000_000;
/// Bits of the prefixes that sources are told apart by, if the file does not say it: hosts of IPv4, and of
/// IPv6 what a customer is given (RFC 6177).
pub(super) const IPV4_PREFIX: u8 = 32;
pub(super) const IPV6_PREFIX: u8 = 56;

/// So many in a second, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRate {
    /// In a second.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

impl FlowRate {
    fn rate(&self) -> Rate {
        Rate::per_second(self.per_second, self.burst)
    }
}

/// How many new flows a service takes. One of both rates, or a limit, is there at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewFlows {
    /// From all sources together; none: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<FlowRate>,
    /// From each prefix of sources; none: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<FlowRate>,
    /// Connections that each prefix of sources may hold; none: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_connections: Option<u32>,
    /// Bits of a prefix of IPv4.
    pub ipv4_prefix: u8,
    /// Bits of a prefix of IPv6.
    pub ipv6_prefix: u8,
}

impl NewFlows {
    /// What packets meet; `key`: nobody else's.
    pub fn caps(&self, key: HashKey) -> FlowCaps {
        let source = self.source.map(|source| SourceRate {
            rate: source.rate(),
            ipv4_bits: self.ipv4_prefix,
            ipv6_bits: self.ipv6_prefix,
        });
        let held = self.source_connections.map(|most| SourceLimit {
            most,
            ipv4_bits: self.ipv4_prefix,
            ipv6_bits: self.ipv6_prefix,
        });
        FlowCaps { all: self.all.map(|all| all.rate()), source, held, key }
    }
}
