//! Packets led by their QUIC ids: the program against its oracle, with random configurations, keys,
//! servers and datagrams. `WEIR_SEED=n` repeats a run, `WEIR_PACKETS=n` sets its length.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_dataplane::{BackendEntry, KernelPlane, Limits, Verdict, run_frame};
use weir_hash::HashKey;
use weir_plane::{IdOutcome, IdOutcomes, IdRoutes, Outcome, Soft, VipKey};
use weir_steering::{BackendId, Image, Member, Role, ServiceId, SoftMemory, TrackedBuilder};
use weir_wire::craft::Frame;
use weir_wire::quic::{Id, QuicLb, QuicLbConfigs};
use weir_wire::{FlowKey, Protocol, map_address, parse};

const BACKENDS: u16 = 40;
const VIPS: [&str; 3] = ["10.9.0.1:443", "[fd09::1]:443", "10.9.0.2:443"];

fn from_environment(name: &str, default: impl FnOnce() -> u64) -> u64 {
    let value = std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or_else(default);
    println!("{name}={value}");
    value
}

fn mac(backend: u16) -> [u8; 6] {
    let [high, low] = backend.to_be_bytes();
    [2, 0, 0, 1, high, low]
}

/// Two planes that must be one, each with a service for each address; and what leads by ids.
struct World {
    kernel: KernelPlane,
    oracle: Soft,
    rng: ChaCha8Rng,
    routes: Vec<IdRoutes>,
    /// Ids of servers that were made, and by which service's servers.
    made: Vec<(usize, Id)>,
    outcomes: IdOutcomes,
}

impl World {
    fn new(seed: u64) -> Self {
        Self::with_flows(seed, Limits::default().udp_flows)
    }

    fn with_flows(seed: u64, udp_flows: u32) -> Self {
        let limits = Limits { table_bytes: 4 << 20, backends: 64, udp_flows, ..Limits::default() };
        let (mut kernel, _) = KernelPlane::open(None, &limits).expect("load (needs root)");
        let mut oracle = Soft::new(SoftMemory::new(1 << 12, 1 << 10, 1 << 10));
        let members: Vec<Member> = (0..BACKENDS)
            .map(|backend| Member {
                backend: BackendId::of(backend),
                name: format!("b{backend}"),
                weight: 1,
                role: Role::Serving,
            })
            .collect();
        for backend in 0..BACKENDS {
            let entry = BackendEntry::new("10.9.1.1".parse().unwrap(), 1).with_next_hop(
                mac(backend),
                [2, 0, 0, 0, 0, 9],
                0,
                true,
            );
            kernel.set_backend(BackendId::of(backend), &entry).unwrap();
            oracle.memory.incarnations.insert(BackendId::of(backend), 1);
        }
        for (number, vip) in (0..).zip(VIPS) {
            let address: std::net::SocketAddr = vip.parse().unwrap();
            let key = VipKey {
                address: map_address(address.ip()),
                protocol: Protocol::Udp,
                port: Some(443),
            };
            kernel.set_service(key, ServiceId(number)).unwrap();
            oracle.vips.insert(key, ServiceId(number));
            let key = HashKey::from_seed(number.into());
            let builder = TrackedBuilder::new(key, 251, false);
            let image: Image = builder.build(1, &members).unwrap();
            kernel.publish(ServiceId(number), &image).unwrap();
            oracle.tables.insert(ServiceId(number), image.into());
        }
        Self {
            kernel,
            oracle,
            rng: ChaCha8Rng::seed_from_u64(seed),
            routes: vec![IdRoutes::default(); VIPS.len()],
            made: Vec::new(),
            outcomes: IdOutcomes::new(),
        }
    }

    /// Other configurations and servers for a service; none for the last one.
    fn reconfigure(&mut self, service: usize) {
        let mut configs = QuicLbConfigs::default();
        for rotation in 0..7 {
            if self.rng.random_bool(0.6) {
                let server = self.rng.random_range(1..=15);
                let nonce = self.rng.random_range(4..=19 - server);
                // One pass for blocks of 16 bytes: more often than chance would have it.
                let nonce = match 16usize.checked_sub(server) {
                    Some(rest) if rest >= 4 && self.rng.random_bool(0.3) => rest,
                    _ => nonce,
                };
                let key = self.rng.random_bool(0.75).then(|| self.rng.random());
                let config = QuicLb::new(rotation, server, nonce, key).unwrap();
                configs.set(if self.rng.random() { config } else { config.without_length() });
            }
        }
        let mut routes = IdRoutes::new(configs.clone());
        let mut ids = Vec::new();
        for config in configs.iter() {
            for backend in 0..BACKENDS {
                let bytes: Vec<u8> =
                    (0..config.server_id_length()).map(|_| self.rng.random()).collect();
                let server = Id::new(&bytes).unwrap();
                routes.lead(config.rotation(), server, BackendId::of(backend));
                let nonce: Vec<u8> =
                    (0..config.nonce_length()).map(|_| self.rng.random()).collect();
                ids.push(config.encode(&bytes, &nonce, self.rng.random()).unwrap());
            }
        }
        let led = (service != VIPS.len() - 1 && configs.iter().next().is_some()).then_some(&routes);
        self.kernel.set_id_routes(ServiceId(service as u32), led).unwrap();
        match led {
            Some(routes) => self.oracle.id_routes.insert(ServiceId(service as u32), routes.clone()),
            None => self.oracle.id_routes.remove(&ServiceId(service as u32)),
        };
        self.routes[service] = led.cloned().unwrap_or_default();
        // Ids of the configurations before go on coming.
        if self.made.len() > 2000 {
            self.made.drain(..1000);
        }
        self.made.extend(ids.into_iter().map(|id| (service, id)));
    }

    /// A datagram with an id of a server, of a client, or of nobody.
    fn datagram(&mut self) -> (usize, Vec<u8>) {
        let rng = &mut self.rng;
        let (service, mut id) = match self.made.choose(rng) {
            Some((service, id)) if rng.random_bool(0.8) => (*service, id.as_bytes().to_vec()),
            _ => {
                let length = rng.random_range(0..25);
                (rng.random_range(0..VIPS.len()), (0..length).map(|_| rng.random()).collect())
            }
        };
        if rng.random_bool(0.1) && !id.is_empty() {
            let at = rng.random_range(0..id.len());
            id[at] ^= 1 << rng.random_range(0..8);
        }
        if rng.random_bool(0.1) {
            id.truncate(rng.random_range(0..=id.len()));
        }
        let mut payload = if rng.random_bool(0.4) {
            let version: u32 = *[0, 1, 0x6b33_43cf, 0x1a2a_3a4a].choose(rng).unwrap();
            let mut long = vec![0x80 | rng.random_range(0..0x80)];
            long.extend(version.to_be_bytes());
            let length = if rng.random_bool(0.05) { rng.random() } else { id.len() as u8 };
            long.push(length);
            long.extend(&id);
            long
        } else {
            let mut short = vec![rng.random_range(0..0x80)];
            short.extend(&id);
            short
        };
        let more = if rng.random_bool(0.2) { rng.random_range(0..30) } else { 40 };
        payload.extend((0..more).map(|_| rng.random::<u8>()));
        (service, payload)
    }

    fn frame(&mut self) -> Vec<u8> {
        let (service, payload) = self.datagram();
        let number: u16 = self.rng.random_range(0..200);
        let vip: std::net::SocketAddr = VIPS[service].parse().unwrap();
        let client = if vip.is_ipv4() { "10.8.0.1" } else { "fd08::1" };
        let flow = FlowKey::new(
            (client.parse::<std::net::IpAddr>().unwrap(), 1000 + number).into(),
            vip,
            Protocol::Udp,
        );
        let frame = Frame::new(flow);
        let frame = if self.rng.random_bool(0.2) { frame.vlan(9) } else { frame };
        let mut frame = frame.payload(payload.len() as u16).build();
        let at = frame.len() - payload.len();
        frame[at..].copy_from_slice(&payload);
        if self.rng.random_bool(0.1) {
            // A datagram that ends before its packet does.
            let l4 = usize::from(parse(&frame).unwrap().l4_offset);
            let length = self.rng.random_range(8..=8 + payload.len() as u16);
            frame[l4 + 4..l4 + 6].copy_from_slice(&length.to_be_bytes());
        }
        frame
    }

    fn compare(&mut self, frame: &[u8]) {
        let run = run_frame(self.kernel.program(), frame).unwrap();
        let wanted = self.oracle.process(frame);
        match wanted {
            Outcome::Forwarded(backend) => {
                assert_eq!(run.verdict, Verdict::Transmit);
                assert_eq!(run.frame[..6], mac(backend.get()), "{frame:02x?}");
            }
            other => panic!("{other:?}"),
        }
        let packet = parse(frame).unwrap();
        let l4 = usize::from(packet.l4_offset);
        let length = usize::from(u16::from_be_bytes([frame[l4 + 4], frame[l4 + 5]]));
        let service = VIPS.iter().position(|vip| {
            let vip: std::net::SocketAddr = vip.parse().unwrap();
            map_address(vip.ip()) == packet.flow.dst
        });
        let service = service.expect("it is for one of them");
        if self.oracle.id_routes.contains_key(&ServiceId(service as u32)) {
            let led = self.routes[service].route_datagram(&frame[l4 + 8..l4 + length]);
            *self.outcomes.entry(IdOutcome::of(&led)).or_default() += 1;
        }
    }
}

#[test]
fn the_program_leads_by_ids_as_its_oracle() {
    let mut world = World::new(from_environment("WEIR_SEED", rand::random));
    let packets = from_environment("WEIR_PACKETS", || 40_000);
    for packet in 0..packets {
        if packet % 2000 == 0 {
            let service = world.rng.random_range(0..VIPS.len());
            world.reconfigure(service);
        }
        let frame = world.frame();
        world.compare(&frame);
    }
    println!("{:?}", world.outcomes);
    let mut counted = world.kernel.id_outcomes().unwrap();
    let remembered = counted.insert(IdOutcome::Remembered, 0).unwrap();
    assert!(remembered > 0);
    *counted.get_mut(&IdOutcome::Decoded).unwrap() += remembered;
    counted.retain(|_, count| *count > 0);
    assert_eq!(counted, world.outcomes);
    for outcome in [
        IdOutcome::Decoded,
        IdOutcome::NoId,
        IdOutcome::Unconfigured,
        IdOutcome::TooShort,
        IdOutcome::NoServer,
    ] {
        assert!(world.outcomes.contains_key(&outcome), "{outcome:?}");
    }
}

/// A backend that is gone takes nothing, whatever processors remember; its id leads there again when
/// it is back. And without routes, ids mean nothing.
#[test]
fn what_is_remembered_does_not_outlive_what_it_stands_for() {
    let mut world = World::new(1);
    let config = QuicLb::new(2, 4, 7, Some([5; 16])).unwrap();
    let mut configs = QuicLbConfigs::default();
    configs.set(config.clone());
    let id = config.encode(&[1, 2, 3, 4], &[9; 7], 0).unwrap();
    let flow =
        FlowKey::new("10.8.0.1:4000".parse().unwrap(), VIPS[0].parse().unwrap(), Protocol::Udp);
    let mut frame = Frame::new(flow).payload(60).build();
    let at = frame.len() - 60;
    frame[at] = 0x40;
    frame[at + 1..at + 1 + id.as_bytes().len()].copy_from_slice(id.as_bytes());
    let to = |world: &World| run_frame(world.kernel.program(), &frame).unwrap().frame[..6].to_vec();
    let by_method = to(&world);
    let elsewhere = (0..BACKENDS).filter(|backend| mac(*backend).to_vec() != by_method);
    for backend in elsewhere.take(3) {
        let mut routes = IdRoutes::new(configs.clone());
        routes.lead(2, Id::new(&[1, 2, 3, 4]).unwrap(), BackendId::of(backend));
        world.kernel.set_id_routes(ServiceId(0), Some(&routes)).unwrap();
        for _ in 0..3 {
            assert_eq!(to(&world), mac(backend));
        }
        let entry = world.kernel.backend(BackendId::of(backend));
        world.kernel.set_backend(BackendId::of(backend), &BackendEntry::default()).unwrap();
        assert_eq!(to(&world), by_method);
        world.kernel.set_backend(BackendId::of(backend), &entry).unwrap();
        assert_eq!(to(&world), mac(backend));
        world.kernel.set_id_routes(ServiceId(0), Some(&IdRoutes::new(configs.clone()))).unwrap();
        assert_eq!(to(&world), by_method);
    }
    world.kernel.set_id_routes(ServiceId(0), None).unwrap();
    assert_eq!(to(&world), by_method);
}

/// A processor remembers the ids of as many connections as `udp_flows` says, four places for each: of 40,000 in 65,536
/// places more than half are still there when they come a second time. Of 8,192 places next to none would be.
#[test]
fn as_many_ids_are_remembered_as_there_are_flows() {
    const IDS: u64 = 40_000;
    // Each processor has a memory of its own.
    weir_testbed::process::stay_on_cpu(0).expect("it is there");
    let cpus = libbpf_rs::num_possible_cpus().expect("they can be counted") as u32;
    let mut world = World::with_flows(1, 16_384 * cpus);
    let config = QuicLb::new(0, 4, 8, None).unwrap();
    let mut configs = QuicLbConfigs::default();
    configs.set(config.clone());
    let mut routes = IdRoutes::new(configs);
    let server = [1, 2, 3, 4];
    routes.lead(0, Id::new(&server).unwrap(), BackendId::of(7));
    world.kernel.set_id_routes(ServiceId(0), Some(&routes)).unwrap();
    let flow =
        FlowKey::new("10.8.0.1:4000".parse().unwrap(), VIPS[0].parse().unwrap(), Protocol::Udp);
    let mut frame = Frame::new(flow).payload(60).build();
    let at = frame.len() - 60;
    frame[at] = 0x40;
    for number in (0..IDS).chain(0..IDS) {
        let id = config.encode(&server, &number.to_le_bytes(), 0).unwrap();
        frame[at + 1..at + 1 + id.as_bytes().len()].copy_from_slice(id.as_bytes());
        let run = run_frame(world.kernel.program(), &frame).unwrap();
        assert_eq!(run.frame[..6], mac(7), "{number}");
    }
    let counted = world.kernel.id_outcomes().unwrap();
    println!("{counted:?}");
    let [remembered, decoded] =
        [IdOutcome::Remembered, IdOutcome::Decoded].map(|outcome| counted[&outcome]);
    assert_eq!(remembered + decoded, 2 * IDS);
    assert!(remembered > IDS / 3, "{remembered} of {IDS} are remembered");
}
