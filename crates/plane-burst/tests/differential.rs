//! The burst plane against the pipeline that takes one frame at a time: the same random frames, in bursts,
//! through random histories of tables, flags, backends and paths. Frames, fates, counters and all that is
//! remembered must be the same, bit for bit.
//!
//! `WEIR_SEED=n` repeats a run, `WEIR_PACKETS=n` sets its length.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use weir_hash::HashKey;
use weir_plane::forward::tunnel::{FOU_PORT, GUE_PORT};
use weir_plane::forward::{Encapsulation, NextHop, Segments, Translation, Tunnel};
use weir_plane::{Backend, Hop, Soft, Translated, Translations, Verdict, VipKey};
use weir_plane_burst::{BURST, Burst, Fate, Frame as Place, HEADROOM};
use weir_steering::update::Plane as _;
use weir_steering::{
    BackendId, Build, Event, EventKind, Flags, Member, MethodId, Role, SCHEDULER, ServiceConfig,
    ServiceId, Settings, SoftMemory, TrackedFlows, cheetah,
};
use weir_wire::craft::{self, Frame};
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags, map_address};

const ROOM: usize = 4096;
const OWN: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8]];
const BACKENDS: u16 = 24;

fn from_environment(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    println!("{name}={value}");
    value
}

struct Service {
    id: ServiceId,
    vip: VipKey,
    builder: Option<Box<dyn Build>>,
    members: Vec<Member>,
    generation: u64,
}

struct World {
    oracle: Soft,
    burst: Burst,
    services: Vec<Service>,
    rng: ChaCha8Rng,
    area: Vec<u8>,
    /// What became of frames.
    fates: BTreeMap<String, u64>,
    packets: u64,
}

fn builder(
    method: MethodId,
    client_affinity: bool,
    protocol: Protocol,
    seed: u64,
) -> Box<dyn Build> {
    let mut settings = Settings::of(method);
    for setting in method.info().settings {
        let value = match setting.name {
            cheetah::PARTITIONS => 2,
            cheetah::TIER_BITS => 0,
            _ if setting.words.is_empty() && (setting.range.0..=setting.range.1).contains(&251) => {
                251
            }
            SCHEDULER => seed % setting.words.len() as u64,
            _ => continue,
        };
        settings.set(setting.name, value).expect("it is in range");
    }
    let config = ServiceConfig {
        settings,
        client_affinity,
        udp: protocol == Protocol::Udp,
        seed,
        nonce: 0,
        capacity: 16,
        max_states: 100_000,
        idle_seconds: 300,
    };
    method.info().builder.expect("it is published")(&config, None)
}

fn id(number: u16) -> BackendId {
    BackendId::of(number)
}

impl World {
    fn new(seed: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let soft = || {
            let mut soft = Soft::new(SoftMemory::new(300, 1 << 10, 32));
            soft.own_macs = OWN.to_vec();
            soft.messages.set(1000);
            soft.echoes.set(1000);
            soft.resets.set(1000);
            soft.nanoseconds = 1_000_000_000_000;
            soft
        };
        let mut world = Self {
            oracle: soft(),
            burst: Burst::new(soft()),
            services: Vec::new(),
            rng,
            area: vec![0; BURST * ROOM],
            fates: BTreeMap::new(),
            packets: 0,
        };
        (0..BACKENDS).for_each(|number| world.set_backend(number));
        let mut number = 0;
        for method in MethodId::published() {
            for ipv6 in [false, true] {
                for (protocol, port, client) in [
                    (Protocol::Tcp, Some(80), false),
                    (Protocol::Tcp, None, true),
                    (Protocol::Udp, Some(53), false),
                ] {
                    let address: IpAddr = match ipv6 {
                        true => Ipv6Addr::from(0xfd09 << 112 | u128::from(method.number())).into(),
                        false => Ipv4Addr::new(10, 9, 0, method.number()).into(),
                    };
                    let vip = VipKey { address: map_address(address), protocol, port };
                    let seed = world.rng.random();
                    world.add_service(number, vip, Some(builder(method, client, protocol, seed)));
                    number += 1;
                }
            }
        }
        let address = map_address(Ipv4Addr::new(10, 9, 0, 250).into());
        world.add_service(number, VipKey { address, protocol: Protocol::Tcp, port: None }, None);
        // A service of the long way beside one for any port.
        let address = map_address(Ipv4Addr::new(10, 9, 0, MethodId::Concury.number()).into());
        let vip = VipKey { address, protocol: Protocol::Tcp, port: Some(81) };
        world.add_service(number + 1, vip, None);
        world
    }

    fn add_service(&mut self, number: u32, vip: VipKey, builder: Option<Box<dyn Build>>) {
        let id = ServiceId(number);
        self.oracle.vips.insert(vip, id);
        self.burst.soft().vips.insert(vip, id);
        let members = Vec::new();
        self.services.push(Service { id, vip, builder, members, generation: 0 });
        self.publish(number as usize);
    }

    /// The same in both planes.
    fn both<R>(&mut self, mut change: impl FnMut(&mut Soft) -> R) -> R {
        change(self.burst.soft());
        change(&mut self.oracle)
    }

    fn set_backend(&mut self, number: u16) {
        let rng = &mut self.rng;
        let ipv6 = rng.random_ratio(1, 3);
        let [high, low] = number.to_be_bytes();
        let address: IpAddr = match ipv6 {
            true => Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, number).into(),
            false => Ipv4Addr::new(10, 9, 10 + high, low).into(),
        };
        let source: IpAddr = match ipv6 {
            true => Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1).into(),
            false => Ipv4Addr::new(192, 0, 2, 0).into(),
        };
        let kinds = [
            Encapsulation::Ipip,
            Encapsulation::Gre,
            Encapsulation::Fou(FOU_PORT),
            Encapsulation::Gue(GUE_PORT),
        ];
        let tunnel = Tunnel {
            encapsulation: *kinds.choose(rng).expect("there are four"),
            source: rng.random_ratio(15, 16).then_some(source),
            spread: if rng.random() { 8 } else { 0 },
            mtu: *[0, 1500, 1500, 1500, 110].choose(rng).expect("there are five"),
        };
        let tunnel = rng.random_ratio(2, 3).then_some(tunnel);
        let port = rng.random_ratio(1, 2).then_some(8080);
        let nat = tunnel.is_none() && rng.random_ratio(1, 4);
        let segments = match rng.random_range(0..3) {
            0 => None,
            1 => Some(Segments::Auto),
            _ => Some(Segments::Most(1000)),
        };
        let next = NextHop { mac: [2, 0xbe, 0, 0, high, low], source_mac: OWN[0] };
        let backend = Backend {
            address,
            incarnation: rng.random(),
            up: rng.random_ratio(7, 8),
            resets: rng.random_ratio(1, 16),
            hop: Some(Hop { next, ifindex: rng.random_range(0..3) }),
            tunnel,
            translation: nat.then_some(Translation { port, mtu: 0, ports: None }),
            segments,
        };
        let load = (rng.random_range(1..4), rng.random_range(0..9));
        self.both(|soft| {
            weir_plane::Plane::set_backend(soft, id(number), Some(&backend))
                .expect("it is granted");
            weir_plane::Plane::set_load(soft, id(number), load.0, Some(load.1));
        });
        self.set_translations();
    }

    fn set_translations(&mut self) {
        let mut wanted = Translations::new();
        for backend in self.oracle.backends.values() {
            if let Some(to) = backend.translation.filter(|_| backend.address.is_ipv4()) {
                let address = map_address(backend.address);
                let vip = VipKey {
                    address: map_address(Ipv4Addr::new(10, 9, 0, 1).into()),
                    protocol: Protocol::Tcp,
                    port: Some(80),
                };
                let answers = Translated { service: vip, limits: None };
                wanted.insert(VipKey { address, port: to.port, ..vip }, answers);
            }
        }
        self.both(|soft| {
            weir_plane::Plane::set_translations(soft, &wanted).expect("it is granted");
        });
    }

    /// Another pool, of members in any role, and its table.
    fn publish(&mut self, at: usize) {
        let rng = &mut self.rng;
        let service = &mut self.services[at];
        let Some(builder) = &mut service.builder else { return };
        let ipv4 = service.vip.address[..10] == [0; 10];
        let fits = |number: u16| {
            let backend = self.oracle.backends.get(&id(number));
            backend
                .is_some_and(|known| known.translation.is_none() || known.address.is_ipv4() == ipv4)
        };
        let numbers: Vec<u16> = (0..BACKENDS).filter(|number| fits(*number)).collect();
        service.members = (numbers.choose_multiple(rng, 6))
            .map(|&number| Member {
                backend: id(number),
                name: format!("b{number}"),
                weight: 1,
                role: if rng.random_ratio(1, 4) { Role::Draining } else { Role::Serving },
            })
            .collect();
        if let Some(first) = service.members.first_mut() {
            first.role = Role::Serving;
        }
        service.generation += 1;
        let built = builder.draft(service.generation, &service.members, 0);
        let Ok(built) = built else { return };
        builder.publish_draft();
        let (id, flags) = (service.id, built.table.header().flags());
        let mut pins: Vec<_> = built.pinned;
        pins.truncate(100);
        self.both(|soft| {
            let pins: Vec<_> = pins
                .iter()
                .map(|(key, backend)| {
                    (weir_steering::ServiceState { service: id, key: *key }, *backend)
                })
                .collect();
            soft.pin(&pins).expect("it is granted");
            soft.show(id, &built.table, flags).expect("it is granted");
            soft.retire(id);
        });
    }

    fn change(&mut self) {
        let at = self.rng.random_range(0..self.services.len());
        match self.rng.random_range(0..12) {
            0..=2 => self.publish(at),
            3..=4 => {
                let number = self.rng.random_range(0..BACKENDS);
                self.set_backend(number);
            }
            5..=6 => {
                let (record, pending) = (self.rng.random(), self.rng.random());
                let service = self.services[at].id;
                self.both(|soft| soft.set_flags(service, record, pending).expect("it is granted"));
            }
            7 => {
                let seconds = self.rng.random_range(0..40);
                self.both(|soft| {
                    soft.memory.now += seconds;
                    soft.nanoseconds += u64::from(seconds) * 1_000_000_000;
                });
            }
            8 => {
                // What is not looked at any more, and what is watched.
                let hashes: Vec<u64> = (0..20).map(|_| self.rng.random()).collect();
                self.both(|soft| {
                    let side = soft.memory.arm(&mut hashes.iter().copied(), hashes.len());
                    soft.memory.mark_side = side;
                    soft.memory.watch(&mut hashes.iter().copied());
                });
            }
            9 => self.both(|soft| soft.memory.watch_all()),
            10 => {
                let number = self.rng.random_range(0..BACKENDS);
                self.both(|soft| {
                    weir_plane::Plane::set_backend(soft, id(number), None).expect("it is granted");
                });
                self.set_backend(number);
            }
            _ => {
                self.both(weir_plane::Plane::next_seen_generation);
            }
        }
    }

    fn flow(&mut self) -> FlowKey {
        let rng = &mut self.rng;
        let mut service = self.services.choose(rng).expect("there are some");
        if service.vip.protocol == Protocol::Udp && rng.random() {
            service = self.services.choose(rng).expect("there are some");
        }
        let vip = service.vip;
        let number = rng.random_range(0..60u16);
        let to = weir_wire::unmap_address(&vip.address);
        let source: IpAddr = match to.is_ipv6() {
            true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number % 7).into(),
            false => Ipv4Addr::new(10, 1, 0, (number % 7) as u8).into(),
        };
        let port = vip.port.unwrap_or(81 + number % 3);
        let from = SocketAddr::new(source, 1024 + number);
        let translated = self.oracle.translations.keys().next_back().copied();
        if let Some(from) = translated.filter(|_| rng.random_ratio(1, 40)) {
            // An answer of a backend behind NAT.
            let from =
                SocketAddr::new(weir_wire::unmap_address(&from.address), from.port.unwrap_or(80));
            let client = match from.is_ipv6() {
                true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into(),
                false => Ipv4Addr::new(10, 1, 0, 1).into(),
            };
            return FlowKey::new(from, SocketAddr::new(client, 1024 + number), Protocol::Tcp);
        }
        let to = match rng.random_range(0..40) {
            0 => SocketAddr::new(Ipv4Addr::new(10, 77, 0, 1).into(), port),
            1 => SocketAddr::new(to, port ^ 0x100),
            _ => SocketAddr::new(to, port),
        };
        let from = if from.is_ipv4() == to.is_ipv4() {
            from
        } else {
            SocketAddr::new(Ipv4Addr::new(10, 1, 0, 1).into(), from.port())
        };
        FlowKey::new(from, to, vip.protocol)
    }

    /// Frames that come in one after the other.
    fn frames(&mut self) -> Vec<Vec<u8>> {
        let flow = self.flow();
        let rng = &mut self.rng;
        let flags = match rng.random_range(0..40) {
            0..=2 => TcpFlags::SYN,
            3 => TcpFlags::FIN | TcpFlags::ACK,
            4 => TcpFlags::RST,
            5 => TcpFlags(rng.random()),
            6 => TcpFlags::PSH,
            7 => TcpFlags::PSH | TcpFlags::ACK,
            _ => TcpFlags::ACK,
        };
        let mac = match rng.random_range(0..30) {
            0 => [2, 9, 9, 9, 9, 9],
            1..=4 => OWN[1],
            _ => OWN[0],
        };
        let mut frame = Frame::new(flow).macs(mac, [2, 0, 0, 0, 0, 1]).tcp_flags(flags);
        frame = frame.payload(rng.random_range(0..60));
        if rng.random_ratio(1, 5) {
            frame = frame.timestamps(rng.random(), rng.random());
        }
        if rng.random_ratio(1, 25) {
            frame = frame.vlan(rng.random_range(1..4095));
        }
        let mut frame = frame.build();
        if rng.random_ratio(1, 30) {
            let (src, dst) = (flow.dst, flow.src);
            let kind = if flow.is_ipv4() { [3, 4] } else { [2, 0] };
            let back = Frame::new(FlowKey {
                src,
                dst,
                src_port: flow.dst_port,
                dst_port: flow.src_port,
                protocol: flow.protocol,
            });
            let quoted = back.build()[14..].to_vec();
            let mut error = craft::icmp((flow.src, flow.dst), kind, 1400, &quoted);
            error[..6].copy_from_slice(&mac);
            frame = error;
        } else if rng.random_ratio(1, 30) {
            let to_tunnel: IpAddr = Ipv4Addr::new(192, 0, 2, 0).into();
            let to: IpAddr = Ipv4Addr::new(10, 9, 10, rng.random_range(0..BACKENDS as u8)).into();
            let from = SocketAddr::new(to_tunnel, 0);
            let quoted =
                Frame::new(FlowKey::new(from, SocketAddr::new(to, 0), Protocol::Udp)).build();
            let router = map_address(Ipv4Addr::new(10, 5, 0, 1).into());
            let mut error = craft::icmp(
                (router, map_address(to_tunnel)),
                [3, 4],
                rng.random_range(80..140),
                &quoted[14..],
            );
            error[..6].copy_from_slice(&mac);
            frame = error;
        } else if rng.random_ratio(1, 30) {
            let kind = if flow.is_ipv4() { [8, 0] } else { [128, 0] };
            frame = craft::icmp((flow.src, flow.dst), kind, rng.random(), &[1, 2, 3, 4]);
            frame[..6].copy_from_slice(&mac);
        }
        if rng.random_ratio(1, 20) {
            // TTL, or hop limit.
            let at = if frame[12] == 0x08 { 22 } else { 21 };
            frame[at] = rng.random_range(0..3);
        }
        if rng.random_ratio(1, 12) {
            let at = rng.random_range(0..frame.len());
            frame[at] ^= 1 << rng.random_range(0..8);
        }
        if rng.random_ratio(1, 30) {
            frame.truncate(rng.random_range(0..=frame.len()));
        }
        if rng.random_ratio(1, 8) {
            frame.resize(frame.len() + rng.random_range(0..12), 0xee);
        }
        if rng.random_ratio(1, 40) && frame.len() > 70 {
            return craft::fragments(&frame, rng.random(), 40);
        }
        vec![frame]
    }

    /// A burst through both planes.
    fn burst(&mut self) {
        let wanted = self.rng.random_range(1..=BURST);
        let mut frames = Vec::new();
        while frames.len() < wanted {
            frames.extend(self.frames());
        }
        frames.truncate(BURST);
        let places: Vec<Place> = frames
            .iter()
            .enumerate()
            .map(|(at, frame)| {
                let at = at * ROOM + HEADROOM;
                self.area[at..at + frame.len()].copy_from_slice(frame);
                Place { at: at as u32, len: frame.len() as u32, ..Place::default() }
            })
            .collect();
        let mut after = places.clone();
        self.burst.process(&mut self.area, &mut after);
        for ((frame, place), before) in frames.iter().zip(&after).zip(&places) {
            let mut written = frame.clone();
            let verdict = self.oracle.take(&mut written, None);
            let (fate, device) = match verdict {
                Verdict::Forward { backend, .. } => {
                    let hop = self.oracle.backends[&backend].hop.expect("each has one");
                    written[..6].copy_from_slice(&hop.next.mac);
                    written[6..12].copy_from_slice(&hop.next.source_mac);
                    (Fate::Send, hop.ifindex)
                }
                Verdict::Tell { .. } | Verdict::Echo | Verdict::Reset => (Fate::Send, 0),
                Verdict::Return { .. } => (Fate::Route, 0),
                Verdict::Answer(_) | Verdict::Pass(_) => (Fate::Pass, 0),
                Verdict::Drop(_) => (Fate::Drop, 0),
            };
            let found = &self.area[place.at as usize..][..place.len as usize];
            let what = format!("{verdict:?}: {frame:02x?}");
            assert_eq!((place.fate, place.device), (fate, device), "{what}");
            assert_eq!(place.buffer, before.buffer);
            if fate != Fate::Drop {
                assert_eq!(found, written, "{what}");
            }
            let name = match verdict {
                Verdict::Pass(reason) | Verdict::Drop(reason) => reason.name().to_owned(),
                other => format!("{other:?}").split([' ', '(']).next().unwrap_or("").to_owned(),
            };
            *self.fates.entry(name).or_default() += 1;
        }
        self.packets += frames.len() as u64;
    }

    fn compare(&mut self) {
        let packets = self.packets;
        assert_eq!(*self.burst.counters(), self.oracle.counters, "after {packets} packets");
        let (burst, oracle) = (self.burst.soft(), &mut self.oracle);
        let (mine, wanted) = (&mut burst.memory, &mut oracle.memory);
        assert_eq!(mine.pending, wanted.pending, "pending flows");
        assert_eq!(mine.pinned, wanted.pinned, "pins");
        assert_eq!(mine.marks, wanted.marks, "marks");
        assert_eq!(mine.strangers, wanted.strangers, "strangers");
        assert_eq!(mine.watched, wanted.watched, "who is watched");
        assert_eq!(mine.seen, wanted.seen, "datagrams");
        assert_eq!(mine.connections, wanted.connections, "connections");
        assert_eq!(mine.bare, wanted.bare, "cookies that were missing");
        assert_eq!(mine.echoes, wanted.echoes, "echoes");
        assert_eq!(mine.turns, wanted.turns, "turns");
        assert_eq!(mine.loads, wanted.loads, "loads");
        assert_eq!(mine.fragments, wanted.fragments, "fragments");
        assert_eq!(burst.paths, oracle.paths, "paths");
        assert_eq!(
            (burst.messages, burst.echoes, burst.resets),
            (oracle.messages, oracle.echoes, oracle.resets),
            "messages"
        );
        let events = std::mem::take(&mut mine.events);
        // The packets of one service go together, so only those of one flow are in order.
        let by_flow = |events: &[Event]| {
            let mut events = events.to_vec();
            events.sort_by_key(|event| event.state);
            events
        };
        assert_eq!(by_flow(&events), by_flow(&std::mem::take(&mut wanted.events)), "reports");
        // What is reported becomes states.
        for event in events {
            let service = &mut self.services[event.state.service.0 as usize];
            if let (Some(builder), EventKind::Start) = (&mut service.builder, event.kind) {
                let _ = builder.start(event.state.key, event.backend, 0);
            }
        }
        if self.rng.random_ratio(1, 4) {
            self.both(|soft| {
                soft.memory.pending.clear();
                soft.memory.pinned.clear();
            });
        }
    }
}

#[test]
fn bursts_are_decided_as_single_packets() {
    let seed = from_environment("WEIR_SEED", 14);
    let packets = from_environment("WEIR_PACKETS", 400_000);
    let mut world = World::new(seed);
    while world.packets < packets {
        for _ in 0..world.rng.random_range(0..4) {
            world.change();
        }
        for _ in 0..world.rng.random_range(1..6) {
            world.burst();
        }
        world.compare();
    }
    let long = world.burst.long() as f64 / world.packets as f64;
    println!("{} packets, {long:.2} of them by the long way: {:?}", world.packets, world.fates);
    assert!((0.1..0.9).contains(&long), "both ways are taken: {long:.2}");
    for what in ["Forward", "Tell", "Echo", "Return"] {
        assert!(
            world.fates.get(what).is_some_and(|count| *count > 10),
            "{what}: {:?}",
            world.fates
        );
    }
    for reason in [Reason::NoService, Reason::OtherHost, Reason::TooBig, Reason::PathMtu] {
        assert!(world.fates.contains_key(reason.name()), "{reason}: {:?}", world.fates);
    }
    let tables = world.oracle.tables.values();
    assert!(tables.filter(|table| table.header().flags().has(Flags::CLIENT)).count() > 3);
}

/// A connection table with less room than there are flows: bursts leave the same entries in it as single packets,
/// since the same ones had to go.
#[test]
fn a_bounded_connection_table_forgets_the_same_flows() {
    let mut world = World::new(9);
    world.both(|soft| {
        soft.memory.connections = TrackedFlows::bounded(HashKey::from_seed(4), 64);
    });
    let address = map_address(Ipv4Addr::new(10, 9, 0, MethodId::Tracked.number()).into());
    let vip = VipKey { address, protocol: Protocol::Tcp, port: Some(80) };
    assert!(world.services.iter().any(|service| service.vip == vip));
    let to = SocketAddr::new(weir_wire::unmap_address(&address), 80);
    for _ in 0..200 {
        let mut places = Vec::new();
        for at in 0..BURST {
            // Some come often, and stay.
            let most = if world.rng.random() { 40 } else { 400 };
            let from = SocketAddr::new(
                Ipv4Addr::new(10, 1, 0, 1).into(),
                2_000 + world.rng.random_range(0..most),
            );
            let starts = world.rng.random_ratio(1, 10);
            let flags = if starts { TcpFlags::SYN } else { TcpFlags::ACK };
            let flow = FlowKey::new(from, to, Protocol::Tcp);
            let mut frame = Frame::new(flow).macs(OWN[0], [2; 6]).tcp_flags(flags).build();
            let begin = at * ROOM + HEADROOM;
            world.area[begin..begin + frame.len()].copy_from_slice(&frame);
            let (at, len) = (begin as u32, frame.len() as u32);
            places.push(Place { at, len, ..Place::default() });
            world.oracle.take(&mut frame, None);
        }
        world.burst.process(&mut world.area, &mut places);
        assert_eq!(*world.burst.counters(), world.oracle.counters);
        let (mine, wanted) = (&world.burst.soft().memory, &world.oracle.memory);
        assert_eq!(mine.connections, wanted.connections);
        assert_eq!(mine.connections.evictions(), wanted.connections.evictions());
    }
    let connections = &world.oracle.memory.connections;
    assert_eq!((connections.len(), connections.capacity()), (64, Some(64)));
    assert!(connections.evictions() > 1_000, "{}", connections.evictions());
}

/// A packet of one of few flows: its service's number, its client's port, and whether it is a first one.
type Packet = (usize, u16, TcpFlags);

/// Sends packets through a plane in bursts; what becomes of each, by its place in the order of all.
fn send_all(
    burst_plane: &mut Burst,
    vips: &[VipKey],
    packets: &[(usize, Packet)],
) -> Vec<(usize, Fate, u32, Vec<u8>)> {
    let mut area = vec![0; BURST * ROOM];
    let mut done = Vec::new();
    for burst in packets.chunks(BURST) {
        let places = burst.iter().enumerate().map(|(at, (_, (service, port, flags)))| {
            let to = SocketAddr::new(weir_wire::unmap_address(&vips[*service].address), 80);
            let from = SocketAddr::new(Ipv4Addr::new(10, 1, 0, 1).into(), *port);
            let flow = FlowKey::new(from, to, Protocol::Tcp);
            let frame = Frame::new(flow).macs(OWN[0], [2; 6]).tcp_flags(*flags).build();
            let begin = at * ROOM + HEADROOM;
            area[begin..begin + frame.len()].copy_from_slice(&frame);
            Place { at: begin as u32, len: frame.len() as u32, ..Place::default() }
        });
        let mut places: Vec<Place> = places.collect();
        burst_plane.process(&mut area, &mut places);
        for ((number, _), Place { at, len, fate, device, .. }) in burst.iter().zip(places) {
            let bytes = area[at as usize..][..len as usize].to_vec();
            done.push((*number, fate, device, bytes));
        }
    }
    done
}

/// Several cores share the tables of services; all that packets write is a plane's own. Two threads, to each of which
/// come the flows that a card would give it, do together what one does with all of them: the same with each frame,
/// the same counts, reports, connections, pending flows and marks.
#[test]
fn two_threads_do_together_what_one_does() {
    let seed = from_environment("WEIR_SEED", 31);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Of one seed, so alike.
    let [mut whole, mut first, mut second] = [0; 3].map(|_| World::new(seed));
    let services: Vec<usize> = (0..whole.services.len())
        .filter(|&at| {
            let Service { id, vip, .. } = &whole.services[at];
            let table = whole.oracle.tables.get(id);
            // Whose turn it is, and loads, are each thread's own.
            let placed = table.is_some_and(|table| {
                let taken =
                    [MethodId::Concury, MethodId::Residue, MethodId::Jet, MethodId::Tracked];
                table.header().flags().0 & Flags::SCHEDULER == 0 && taken.contains(&table.method())
            });
            placed
                && vip.protocol == Protocol::Tcp
                && vip.port == Some(80)
                && vip.address[..10] == [0; 10]
        })
        .collect();
    assert!(services.len() >= 3, "{services:?}");
    // The tables themselves are shared, and while some are being replaced flows are noted as pending.
    for &at in &services {
        let id = whole.services[at].id;
        let table = whole.oracle.tables[&id].clone();
        table.set_flags(Flags(table.header().flags().0 | Flags::RECORD | Flags::PENDING));
        for world in [&mut whole, &mut first, &mut second] {
            world.burst.soft().tables.insert(id, table.clone());
        }
    }
    for world in [&mut whole, &mut first, &mut second] {
        // How many answers to senders are left is each thread's own, too.
        world.burst.soft().resets.set(1_000_000);
    }
    let vips: Vec<VipKey> = whole.services.iter().map(|service| service.vip).collect();
    let mut packets: Vec<(usize, Packet)> = Vec::new();
    for number in 0..20_000 {
        let service = *services.choose(&mut rng).expect("there are some");
        let flags = *[TcpFlags::SYN, TcpFlags::ACK, TcpFlags::ACK, TcpFlags::FIN | TcpFlags::ACK]
            .choose(&mut rng)
            .expect("there are four");
        packets.push((number, (service, rng.random_range(2_000..2_060), flags)));
    }
    let (of_first, of_second): (Vec<_>, Vec<_>) =
        packets.iter().copied().partition(|(_, (_, port, _))| port % 2 == 0);
    let wanted = send_all(&mut whole.burst, &vips, &packets);
    let (one, two) = (&mut first.burst, &mut second.burst);
    let mut found = std::thread::scope(|scope| {
        let other = scope.spawn(|| send_all(two, &vips, &of_second));
        let mut found = send_all(one, &vips, &of_first);
        found.extend(other.join().expect("it ends"));
        found
    });
    found.sort_unstable_by_key(|(number, ..)| *number);
    assert!(found == wanted, "a frame leaves otherwise than with one thread");

    let [one, two] = [&mut first, &mut second].map(|world| world.burst.counters().clone());
    let all = whole.burst.counters().clone();
    for (backend, lane) in &all.lanes {
        let [one, two] =
            [&one, &two].map(|half| half.lanes.get(backend).copied().unwrap_or_default());
        assert_eq!(one.packets + two.packets, lane.packets, "packets of {backend:?}");
        assert_eq!(one.bytes + two.bytes, lane.bytes, "bytes of {backend:?}");
        assert_eq!(one.flows + two.flows, lane.flows, "flows of {backend:?}");
    }
    let sum = |counts: &BTreeMap<Reason, u64>| counts.values().sum::<u64>();
    assert_eq!(sum(&one.dropped) + sum(&two.dropped), sum(&all.dropped));
    let one = &mut first.burst.soft().memory;
    let two = &mut second.burst.soft().memory;
    let all = &mut whole.burst.soft().memory;
    assert!(!all.events.is_empty() && !all.pending.is_empty());
    let mut events: Vec<_> = one.events.drain(..).chain(two.events.drain(..)).collect();
    events.sort_unstable();
    all.events.sort_unstable();
    assert_eq!(events, all.events, "reports");
    // A flow has one thread, and so one entry.
    assert_eq!(one.connections.len() + two.connections.len(), all.connections.len());
    for half in [&*one, &*two] {
        for (state, entry) in &half.connections {
            assert_eq!(all.connections.get(state), Some(entry), "{state:?}");
        }
        for (state, backend) in &half.pending {
            assert_eq!(all.pending.get(state), Some(backend), "{state:?}");
        }
    }
    assert_eq!(one.pending.len() + two.pending.len(), all.pending.len());
    let either = |one: &[u64], two: &[u64]| -> Vec<u64> {
        one.iter().zip(two).map(|(one, two)| one | two).collect()
    };
    assert_eq!(either(&one.marks, &two.marks), all.marks);
    assert_eq!(either(&one.strangers, &two.strangers), all.strangers);
}

/// A packet to a backend whose next hop nobody knows is dropped and counted as that, by either way.
#[test]
fn without_a_next_hop_a_packet_goes_nowhere() {
    let mut world = World::new(3);
    let vip = world.services[0].vip;
    let flow = FlowKey::new(
        "10.1.0.1:4000".parse().expect("an address"),
        SocketAddr::new(weir_wire::unmap_address(&vip.address), 80),
        Protocol::Tcp,
    );
    world.burst.soft().backends.values_mut().for_each(|backend| {
        (backend.hop, backend.tunnel, backend.translation) = (None, None, None);
    });
    for flags in [TcpFlags::SYN, TcpFlags::ACK] {
        let frame = Frame::new(flow).macs(OWN[0], [2; 6]).tcp_flags(flags).build();
        world.area[HEADROOM..HEADROOM + frame.len()].copy_from_slice(&frame);
        let mut places =
            [Place { at: HEADROOM as u32, len: frame.len() as u32, ..Place::default() }];
        world.burst.process(&mut world.area, &mut places);
        assert_eq!(places[0].fate, Fate::Drop);
    }
    let counters = world.burst.counters();
    assert_eq!(counters.dropped.get(&Reason::NoNextHop), Some(&2));
    assert!(counters.lanes.values().all(|lane| lane.packets == 0), "{:?}", counters.lanes);
}
