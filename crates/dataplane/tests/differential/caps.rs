//! New flows that services do not take: caps come, change and go, and their buckets fill again.

use super::World;
use rand::Rng;
use weir_hash::HashKey;
use weir_plane::{FlowCaps, Plane, Rate, SourceRate};
use weir_steering::ServiceId;

/// Of so many services one has caps, so that the others meet what they meet without; and one that has a list
/// has caps, too.
const ONE_IN: u32 = 3;

/// From one flow to the next: more time than passes in any run, in either plane, so that no bucket gains one
/// of a clock by which the planes may differ. Whole ones are given to both.
const INTERVAL: u64 = 1 << 60;

impl World {
    /// Other caps for one of the services that have some, or none; and all buckets gain one or two.
    pub fn change_caps(&mut self) {
        for _ in 0..self.rng.random_range(0..=2) {
            self.plane.kernel.kernel.age_caps(INTERVAL).unwrap();
            self.plane.oracle.buckets.get_mut().age(INTERVAL);
        }
        let services = self.tables.services.len() as u32;
        let service = ServiceId(self.rng.random_range(0..services.div_ceil(ONE_IN)) * ONE_IN);
        let caps = self.rng.random_bool(0.8).then(|| self.caps());
        Plane::set_flow_caps(&mut self.plane.kernel, service, caps.as_ref())
            .expect("there is room");
        Plane::set_flow_caps(&mut self.plane.oracle, service, caps.as_ref()).expect("it may");
    }

    fn caps(&mut self) -> FlowCaps {
        let mut rate = || Rate::every(INTERVAL, self.rng.random_range(1..=7));
        let (all, source) = (rate(), rate());
        // Few prefixes, or one for nearly every client.
        let source = SourceRate {
            rate: source,
            ipv4_bits: self.rng.random_range(20..=32),
            ipv6_bits: self.rng.random_range(100..=128),
        };
        let [with_all, with_source] = [0.6, 0.8].map(|share| self.rng.random_bool(share));
        FlowCaps {
            all: with_all.then_some(all),
            source: with_source.then_some(source),
            key: HashKey::from_seed(self.rng.random_range(0..3)),
        }
    }

    /// Both planes have the same caps, and have refused as many flows by each.
    pub fn compare_caps(&mut self) {
        for service in (0..self.tables.services.len() as u32).map(ServiceId) {
            let caps = Plane::flow_caps(&self.plane.oracle, service);
            assert_eq!(Plane::flow_caps(&self.plane.kernel, service), caps, "{service:?}");
            if caps.is_some() {
                let counts = Plane::capped_flows(&self.plane.oracle, service);
                let found = Plane::capped_flows(&self.plane.kernel, service);
                assert_eq!(found, counts, "{service:?}, {caps:?}");
                let source = format!("10.8.{}.{}", self.asked >> 4 & 15, self.asked & 15);
                self.asked += 1;
                let source = weir_wire::map_address(source.parse().unwrap());
                let room = Plane::flow_room(&self.plane.oracle, service, &source).unwrap();
                let found = Plane::flow_room(&self.plane.kernel, service, &source).unwrap();
                assert_eq!(found, room, "{service:?}, {caps:?}");
                self.capped[0] += counts.all;
                self.capped[1] += counts.source;
            }
        }
    }
}
