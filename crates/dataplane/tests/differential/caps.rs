//! New flows that services do not take: caps come, change and go, their buckets fill again, and connections are
//! counted anew.

use super::World;
use rand::Rng;
use std::time::Duration;
use weir_hash::HashKey;
use weir_plane::{FlowCaps, HELD_COUNTERS, HeldCounts, Plane, Rate, SourceLimit, SourceRate};
use weir_steering::{ServiceId, ServiceState, StateKey};

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
        self.count_connections();
    }

    /// In both planes some connections are found to have ended, and then all are counted: of each limited service
    /// those of a few sources live.
    fn count_connections(&mut self) {
        let services = self.tables.services.len() as u32;
        let mut ended = Vec::new();
        for _ in 0..self.rng.random_range(0..100) {
            let service = ServiceId(self.rng.random_range(0..services.div_ceil(ONE_IN)) * ONE_IN);
            let port = self.tables.services[service.index()].vip.port.unwrap_or(0);
            let key = StateKey { dst_port: port, ..self.some_client() };
            ended.push(ServiceState { service, key });
        }
        Plane::release_held(&mut self.plane.kernel, &ended).expect("they can be written");
        Plane::release_held(&mut self.plane.oracle, &ended).expect("they can be written");
        self.compare_held();
        let mut counted = HeldCounts::default();
        for service in (0..services).map(ServiceId) {
            let Some(caps) = Plane::flow_caps(&self.plane.oracle, service) else { continue };
            for _ in 0..self.rng.random_range(0..60) {
                counted.add(&caps, &self.some_client().address);
            }
        }
        // For longer than any run takes, by either plane's clock.
        let lasts = Duration::MAX;
        let before = Plane::held(&self.plane.kernel).expect("they can be read");
        Plane::correct_held(&mut self.plane.kernel, &before, &counted, lasts).expect("they may");
        let before = Plane::held(&self.plane.oracle).expect("they can be read");
        Plane::correct_held(&mut self.plane.oracle, &before, &counted, lasts).expect("they may");
        self.compare_held();
    }

    /// A client of IPv4, with the port that it has.
    fn some_client(&mut self) -> StateKey {
        let number: u16 = self.rng.random_range(0..300);
        let host = [10, 8, (number >> 4) as u8, (number & 15) as u8];
        let address = weir_wire::map_address(std::net::IpAddr::from(host));
        StateKey { address, src_port: 1000 + number % 7, dst_port: 0 }
    }

    fn compare_held(&self) {
        let kernel = Plane::held(&self.plane.kernel).expect("they can be read");
        let oracle = Plane::held(&self.plane.oracle).expect("they can be read");
        let differs = |place: &u32| kernel.at(*place) != oracle.at(*place);
        let found = (0..HELD_COUNTERS).find(differs);
        let said = found.map(|place| (place, kernel.at(place), oracle.at(place)));
        assert_eq!(said, None, "a counter of connections");
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
        let held = SourceLimit {
            most: self.rng.random_range(1..=7),
            ipv4_bits: source.ipv4_bits,
            ipv6_bits: source.ipv6_bits,
        };
        let [with_all, with_source, with_held] =
            [0.6, 0.7, 0.5].map(|share| self.rng.random_bool(share));
        FlowCaps {
            all: with_all.then_some(all),
            source: with_source.then_some(source),
            held: with_held.then_some(held),
            key: HashKey::from_seed(self.rng.random_range(0..3)),
        }
    }

    /// Both planes have the same caps, and have refused as many flows by each.
    pub fn compare_caps(&mut self) {
        self.compare_held();
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
                self.capped[2] += counts.connections;
            }
        }
    }
}
