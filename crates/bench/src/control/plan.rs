//! Who has which address: services, hosts, and the configuration that says so.

use super::Size;
use crate::put;
use std::net::Ipv4Addr;
use std::path::Path;

/// The port that all services listen on.
pub const PORT: u16 = 80;
/// The port that health checks connect to.
pub const CHECK_PORT: u16 = 9000;
/// How often backends are checked.
const CHECK_EVERY: &str = "1s";
/// Where it serves its metrics.
pub const METRICS: &str = "10.0.0.1:9469";
/// The balancer's address.
pub const BALANCER: &str = "10.0.0.1/15";

/// The address of a service.
pub fn vip(service: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0ac8_0000 + service)
}

/// The service of an address.
pub fn service_of(address: [u8; 4]) -> Option<u32> {
    u32::from_be_bytes(address).checked_sub(0x0ac8_0000).filter(|service| *service < 1 << 16)
}

/// The address of a host.
pub fn host_address(host: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a01_0000 + host)
}

/// The MAC address of a host.
pub fn host_mac(host: u32) -> [u8; 6] {
    let [_, _, high, low] = host.to_be_bytes();
    [2, 0xbe, 0, 0, high, low]
}

/// The host of a MAC address.
pub fn host_of(mac: &[u8]) -> Option<u32> {
    match mac {
        [2, 0xbe, 0, 0, high, low] => Some(u32::from_be_bytes([0, 0, *high, *low])),
        _ => None,
    }
}

impl Size {
    /// The host of a backend of a service.
    pub fn host(&self, service: u32, backend: u32) -> u32 {
        (service * self.pool() + backend) % self.hosts()
    }

    /// The backend of a service that has half of the weight: the one on the first host, so that its
    /// death is seen at once, or else the first.
    pub fn heavy(&self, service: u32) -> u32 {
        (0..self.pool()).find(|&backend| self.host(service, backend) == 0).unwrap_or(0)
    }

    /// Its weight, where all others have 1.
    pub fn heavy_weight(&self) -> u32 {
        self.pool() - 1
    }

    /// The services that have a backend on a host.
    pub fn services_on(&self, host: u32) -> Vec<u32> {
        let has = |service: &u32| (0..self.pool()).any(|b| self.host(*service, b) == host);
        (0..self.services).filter(has).collect()
    }

    /// The configuration file.
    pub fn config(&self, name: &str, run_dir: &Path) -> String {
        let mut text = String::new();
        let states = self.states + self.states / 4 + 65_536;
        // A new table beside the old one, and room for the gaps between tables.
        let table_bytes = u64::from(self.services) * 40_000 + u64::from(states) * 24;
        put!(text, "[balancer]\nname = \"{name}\"\ninterfaces = [\"eth0\"]");
        put!(text, "run_dir = \"{}\"\nmetrics = \"{METRICS}\"", run_dir.display());
        put!(text, "[limits]\nservices = {}", self.services + 8);
        put!(text, "backends = {}", (self.backends + 64).min(32_767));
        put!(text, "table_bytes = {}", table_bytes.max(160 << 20));
        for service in 0..self.services {
            put!(text, "[[service]]\nname = \"s{service}\"\nvip = \"{}\"", vip(service));
            put!(text, "protocol = \"tcp\"\nport = {PORT}");
            let timeout = "timeout = \"500ms\"";
            if self.checks {
                put!(text, "[service.check]\nport = {CHECK_PORT}\ninterval = \"{CHECK_EVERY}\"");
                put!(text, "{timeout}\nrise = 1\nfall = 1");
            } else {
                put!(text, "[service.check]\nenabled = false");
            }
            for backend in 0..self.pool() {
                let address = host_address(self.host(service, backend));
                let heavy = backend == self.heavy(service);
                let weight = if heavy { self.heavy_weight() } else { 1 };
                put!(text, "[[service.backend]]\nname = \"b{backend}\"\naddress = \"{address}\"");
                put!(text, "weight = {weight}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_pool_is_on_different_hosts_and_a_host_has_many_services() {
        let size = Size { services: 1_000, backends: 10_000, states: 0, checks: true };
        assert_eq!((size.pool(), size.hosts()), (10, 39));
        for service in 0..size.services {
            let hosts: HashSet<u32> = (0..10).map(|backend| size.host(service, backend)).collect();
            assert_eq!(hosts.len(), 10);
        }
        assert!(size.services_on(0).len() >= 256);
    }

    #[test]
    fn addresses_lead_back() {
        for number in [0, 1, 255, 256, 9_999] {
            assert_eq!(service_of(vip(number).octets()), Some(number));
            assert_eq!(host_of(&host_mac(number)), Some(number));
        }
        assert_eq!(service_of([10, 0, 0, 1]), None);
        assert_eq!(host_of(&[2, 0, 0, 0, 0, 1]), None);
    }
}
