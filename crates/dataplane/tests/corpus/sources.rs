//! The sources of full NAT: one address of each family with one port, so that what comes out can be written down
//! whatever the key is. Or with many, where nothing is written down.

use std::net::IpAddr;
use weir_hash::HashKey;
use weir_plane::forward::mapping::MAPPING_TICK_SHIFT;
use weir_plane::forward::{MappingRules, MappingTicks, Origin, Ports};

/// The port that connections get; the next one is for connections, too, and nobody has it.
const PORT: u16 = 2000;
const LAST: u16 = 2001;

/// Where there are many: those of each address; in IPv6 so few that they are soon in use.
const MANY: [(u16, u32); 2] = [(1024, 31_744), (2000, 8)];

/// Where there are many: longer than any run takes, so that the clocks of the planes may differ.
const TICKS: MappingTicks =
    MappingTicks { opening: 10_000, closed: 20_000, tcp: 40_000, udp: 30_000 };

pub fn ports(backend: IpAddr, many: bool) -> Ports {
    let first = u16::from(backend.is_ipv6());
    let (first_port, ports) = if many { MANY[usize::from(first)] } else { (PORT, 1) };
    Ports { first, addresses: 1, first_port, ports }
}

pub fn rules(any: bool, many: bool) -> MappingRules {
    let (first_port, last_port) = if many { (1024, 32_767) } else { (PORT, LAST) };
    let origin = |text: &str| {
        let address = text.parse().expect("an address");
        Some(Origin { address, first_port, last_port })
    };
    let origins = match any {
        true => vec![origin("10.7.0.1"), origin("2001:db8:7::1")],
        false => Vec::new(),
    };
    let ticks = if many { TICKS } else { MappingTicks::default() };
    MappingRules { key: HashKey::from_seed(1), ticks, origins }
}

/// So many nanoseconds, rounded up.
pub fn ticks(nanoseconds: u64) -> u32 {
    (nanoseconds >> MAPPING_TICK_SHIFT) as u32 + 1
}
