//! The sources of full NAT: one address of each family with one port, so that what comes out can be written down
//! whatever the key is.

use std::net::IpAddr;
use weir_hash::HashKey;
use weir_plane::forward::mapping::MAPPING_TICK_SHIFT;
use weir_plane::forward::{MappingRules, MappingTicks, Origin, Ports};

/// The port that connections get; the next one is for connections, too, and nobody has it.
const PORT: u16 = 2000;
const LAST: u16 = 2001;

pub fn ports(backend: IpAddr) -> Ports {
    let first = u16::from(backend.is_ipv6());
    Ports { first, addresses: 1, first_port: PORT, ports: 1 }
}

pub fn rules(any: bool) -> MappingRules {
    let origin = |text: &str| {
        let address = text.parse().expect("an address");
        Some(Origin { address, first_port: PORT, last_port: LAST })
    };
    let origins = match any {
        true => vec![origin("10.7.0.1"), origin("2001:db8:7::1")],
        false => Vec::new(),
    };
    MappingRules { key: HashKey::from_seed(1), ticks: MappingTicks::default(), origins }
}

/// So many nanoseconds, rounded up.
pub fn ticks(nanoseconds: u64) -> u32 {
    (nanoseconds >> MAPPING_TICK_SHIFT) as u32 + 1
}
