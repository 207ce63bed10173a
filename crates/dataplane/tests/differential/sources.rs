//! Sources that services take packets from: lists come, change and go.

use super::World;
use rand::Rng;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_plane::{Plane, Prefix, Sources};
use weir_steering::ServiceId;

/// Of so many services one has a list, so that the others meet what they meet without.
const ONE_IN: u32 = 6;

impl World {
    /// Another list for one of the services that have one, or none.
    pub fn change_sources(&mut self) {
        let services = self.tables.services.len() as u32;
        let service = ServiceId(self.rng.random_range(0..services.div_ceil(ONE_IN)) * ONE_IN);
        let sources = self.rng.random_bool(0.8).then(|| self.sources().table());
        Plane::set_sources(&mut self.plane.kernel, service, sources.as_ref())
            .expect("there is room");
        Plane::set_sources(&mut self.plane.oracle, service, sources.as_ref()).expect("it may");
        let digests = [
            self.plane.kernel.source_digest(service),
            Plane::source_digest(&self.plane.oracle, service),
        ];
        assert_eq!(digests[0], digests[1]);
    }

    /// Prefixes of clients, of networks beside theirs, and of anybody.
    fn sources(&mut self) -> Sources {
        let mut rules = HashMap::new();
        for _ in 0..self.rng.random_range(1..60) {
            let number: u32 = self.rng.random_range(0..300);
            let near = self.rng.random_bool(0.7);
            let address: IpAddr = match (self.rng.random_bool(0.5), near) {
                (true, true) => {
                    Ipv4Addr::new(10, 8, (number >> 4) as u8, (number & 15) as u8).into()
                }
                (true, false) => Ipv4Addr::from_bits(self.rng.random()).into(),
                (false, true) => {
                    let (a, b) = ((number >> 4) as u16, (number & 15) as u16);
                    Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, a, b).into()
                }
                (false, false) => Ipv6Addr::from_bits(self.rng.random()).into(),
            };
            let most = if address.is_ipv4() { 32 } else { 128 };
            // Mostly long ones: most clients are taken.
            let length = most - self.rng.random_range(0..if near { 6 } else { most - 6 });
            let prefix = Prefix::new(address, length).expect("it has as many bits");
            rules.insert(prefix, false);
        }
        // Everybody but a few is allowed by name, of one family or of both.
        if self.rng.random_bool(0.3) {
            for text in ["0.0.0.0/0", "::/0", "fd08::/16", "10.8.0.0/16"] {
                if self.rng.random_bool(0.7) {
                    rules.insert(text.parse().expect("a prefix"), true);
                }
            }
        }
        Sources::new(rules).expect("each is there once")
    }
}
