//! The BPF program against its oracle in Rust: the same random frames through random pool
//! histories must be decided alike, leave the same memory behind and the same counters.
//!
//! `WEIR_SEED=n` repeats a run, `WEIR_PACKETS=n` sets its length.

#[path = "differential/services.rs"]
mod services;
#[path = "differential/twin.rs"]
mod twin;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use weir_dataplane::xsk::Redirect;
use weir_dataplane::{
    BackendEntry, BackendFlags, KernelPlane, Limits, LivePlane, Verdict, run_frame,
};
use weir_hash::{HashKey, Key};
use weir_plane::{Outcome, Soft, VipKey};
use weir_steering::update::{Plane, Services};
use weir_steering::{
    Codec, Concury, ConcuryConfig, Driver, Flags, LANE_ACTIVE, Member, MethodId, Role,
    ServiceConfig, ServiceState, Settings, SoftMemory, StateKey,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags, map_address};

use services::{Builder, Service, Tables};
use twin::Twin;

fn from_environment(name: &str, default: impl FnOnce() -> u64) -> u64 {
    let value = std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or_else(default);
    println!("{name}={value}");
    value
}

struct World {
    plane: Twin,
    tables: Tables,
    rng: ChaCha8Rng,
    next_backend: u16,
    /// Comparisons in which armed flows were marked, and others.
    armed: u64,
    strangers: u64,
}

const BACKENDS: u16 = 512;
const PENDING: u32 = 400;

fn mac(backend: u16) -> [u8; 6] {
    let [high, low] = backend.to_be_bytes();
    [2, 0, 0, 1, high, low]
}

/// The build face of a method without states, by the registry.
fn stateless(method: &str, client_affinity: bool, protocol: Protocol, seed: u64) -> Builder {
    let method = MethodId::named(method).expect("the registry has it");
    let mut settings = Settings::of(method);
    for setting in method.info().settings {
        settings.set(setting.name, 251).unwrap();
    }
    let config = ServiceConfig {
        settings,
        client_affinity,
        udp: protocol == Protocol::Udp,
        seed,
        nonce: 0,
        capacity: 0,
        max_states: 0,
        idle_seconds: 0,
    };
    Builder::Stateless(method.info().builder.expect("it is published")(&config, None))
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let limits = Limits {
            services: 16,
            table_bytes: 1 << 20,
            backends: BACKENDS.into(),
            pending_flows: PENDING,
            unreported_flows: 65_536,
            tracked_flows: 262_144,
            udp_flows: 128,
            event_ring_bytes: 1 << 20,
            marked_flows: 2 << 10,
            stranger_bits: 1 << 16,
        };
        let (mut kernel, _) = KernelPlane::open(None, &limits).expect("load (needs root)");
        let mut oracle = Soft::new(SoftMemory::new(PENDING as usize, 1 << 10, 32));
        let mut plans = vec![
            ("10.9.0.1", Protocol::Tcp, Some(80), false, 'c'),
            ("fd09::1", Protocol::Tcp, Some(443), false, 'c'),
            ("10.9.0.1", Protocol::Udp, Some(53), false, 'c'),
            ("10.9.0.2", Protocol::Tcp, None, true, 'c'),
            ("fd09::2", Protocol::Udp, None, true, 'c'),
            ("10.9.0.3", Protocol::Tcp, Some(80), false, 't'),
            ("fd09::3", Protocol::Udp, Some(53), true, 't'),
            ("10.9.0.4", Protocol::Tcp, Some(80), false, 'n'),
        ];
        // With the feature `example` the program has one more method.
        if MethodId::named("example").is_some() {
            plans.push(("10.9.0.5", Protocol::Tcp, Some(80), false, 'e'));
            plans.push(("fd09::5", Protocol::Udp, Some(53), true, 'e'));
        }
        let mut services = Vec::new();
        for (number, (address, protocol, port, client, method)) in plans.into_iter().enumerate() {
            let vip = VipKey { address: map_address(address.parse().unwrap()), protocol, port };
            let number = number as u32;
            kernel.set_service(&vip, number).unwrap();
            oracle.vips.insert(vip, number);
            let builder = match method {
                'c' => Builder::Concury(Box::new(Concury::new(ConcuryConfig {
                    codec: Codec::Othello,
                    bits: 8,
                    client_affinity: client,
                    udp: protocol == Protocol::Udp,
                    mark: protocol == Protocol::Tcp,
                    capacity: 16,
                    max_states: 100_000,
                    idle_seconds: 1_000_000,
                    seed: rng.random(),
                }))),
                't' => stateless("tracked", client, protocol, rng.random()),
                'e' => stateless("example", client, protocol, rng.random()),
                _ => Builder::None,
            };
            services.push(Service {
                number,
                vip,
                client,
                members: Vec::new(),
                leaving: Vec::new(),
                builder,
                driver: Driver::new(),
                generation: 0,
            });
        }
        let kernel = LivePlane::new(kernel).unwrap();
        let plane = Twin::new(kernel, oracle, rng.random());
        let tables = Tables { services, now: 1_000 };
        let mut world = Self { plane, tables, rng, next_backend: 0, armed: 0, strangers: 0 };
        for service in 0..world.tables.services.len() {
            for _ in 0..4 {
                world.add_backend(service);
            }
            world.begin_update(service);
            while world.updates(service) {
                world.step_update(service);
            }
        }
        world
    }

    fn add_backend(&mut self, service: usize) {
        let backend = self.next_backend % BACKENDS;
        let taken = |service: &Service| {
            service
                .members
                .iter()
                .map(|m| m.backend)
                .chain(service.leaving.iter().copied())
                .any(|number| number == backend)
        };
        self.next_backend += 1;
        if self.tables.services.iter().any(taken) {
            return;
        }
        let incarnation = self.rng.random();
        let entry = BackendEntry::new("10.9.1.1".parse().unwrap(), incarnation).with_next_hop(
            mac(backend),
            [2, 0, 0, 0, 0, 9],
            0,
            true,
        );
        self.plane.kernel.set_backend(backend, &entry).unwrap();
        self.plane.oracle.memory.incarnations.insert(backend, incarnation);
        self.plane.oracle.memory.down.remove(&backend);
        self.tables.services[service].members.push(Member {
            backend,
            name: format!("b{backend}"),
            weight: self.rng.random_range(0..5),
            role: Role::Serving,
        });
    }

    fn change_pool(&mut self, service: usize) {
        let count = self.tables.services[service].members.len();
        let which = self.rng.random_range(0..count.max(1));
        match self.rng.random_range(0..5) {
            0 if count < 12 => self.add_backend(service),
            1 if count > 1 => self.remove_backend(service, which),
            2 if count > 0 => {
                let role = &mut self.tables.services[service].members[which].role;
                *role = match *role {
                    Role::Serving => Role::Draining,
                    Role::Draining => Role::Down,
                    Role::Down => Role::Serving,
                };
            }
            3 | 4 if count > 0 => {
                let member = &mut self.tables.services[service].members[which];
                member.weight = self.rng.random_range(0..7);
                let (id, down) = (member.backend, self.rng.random_bool(0.3));
                self.set_health(id, !down);
            }
            _ => {}
        }
    }

    fn set_health(&mut self, backend: u16, up: bool) {
        let mut entry = self.plane.kernel.backend(backend);
        entry.flags &= !BackendFlags::DOWN;
        self.plane.kernel.set_backend(backend, &entry.with_health(up)).unwrap();
        if up {
            self.plane.oracle.memory.down.remove(&backend);
        } else {
            self.plane.oracle.memory.down.insert(backend);
        }
    }

    /// What the control plane does when a backend is gone: its states go at once, and what the data
    /// plane knows of it when no table leads there any more. Tracked asks whether a backend is
    /// there, so now and then its backends are gone before that.
    fn remove_backend(&mut self, at: usize, which: usize) {
        let service = &mut self.tables.services[at];
        let gone = service.members.remove(which).backend;
        let early = match &mut service.builder {
            Builder::Concury(concury) => {
                concury.forget_backend(gone);
                false
            }
            Builder::Stateless(builder) => builder.method() == MethodId::Tracked,
            Builder::None => true,
        };
        if early && self.rng.random_bool(0.5) {
            self.forget_backend(gone);
        } else {
            service.leaving.push(gone);
        }
    }

    /// Nothing in the data plane speaks of a backend any more.
    fn forget_backend(&mut self, gone: u16) {
        let stale = |list: Vec<(ServiceState, u16)>| -> Vec<ServiceState> {
            list.into_iter().filter(|(_, backend)| *backend == gone).map(|(s, _)| s).collect()
        };
        let kernel = &self.plane.kernel.kernel;
        kernel.forget_pending(&stale(kernel.pending().unwrap())).unwrap();
        kernel.unpin(&stale(kernel.pinned().unwrap())).unwrap();
        self.plane.kernel.set_backend(gone, &BackendEntry::default()).unwrap();
        self.plane.oracle.memory.pending.retain(|_, backend| *backend != gone);
        self.plane.oracle.memory.pinned.retain(|_, backend| *backend != gone);
        self.plane.oracle.memory.incarnations.remove(&gone);
    }

    fn begin_update(&mut self, at: usize) {
        let service = &mut self.tables.services[at];
        if !matches!(service.builder, Builder::None) {
            service.driver.begin([service.number]);
        }
    }

    fn updates(&self, at: usize) -> bool {
        !self.tables.services[at].driver.is_idle()
    }

    /// One action of a service's update. One that was not finished begins again.
    fn step_update(&mut self, at: usize) {
        let mut driver = std::mem::take(&mut self.tables.services[at].driver);
        driver.step(&mut self.plane, &mut self.tables);
        for outcome in driver.outcomes() {
            assert!(self.plane.refused() > 0 || outcome.failure.is_none());
            if let Some(table) = self.plane.oracle.tables.get(&outcome.service) {
                assert!(!table.header().flags().has(Flags::RECORD) || outcome.loose);
            }
            if outcome.is_unfinished() {
                driver.begin([outcome.service]);
            }
            if outcome.published {
                for gone in std::mem::take(&mut self.tables.services[at].leaving) {
                    self.forget_backend(gone);
                }
            }
        }
        self.tables.services[at].driver = driver;
    }

    /// Takes the reports; they must be the oracle's, in order.
    fn drain(&mut self) {
        let refuse = std::mem::take(&mut self.plane.refuse_one_in);
        let tables = &mut self.tables;
        self.plane.drain(&mut |event| tables.report(event).unwrap()).unwrap();
        self.plane.refuse_one_in = refuse;
    }

    fn flow(&mut self) -> FlowKey {
        let service = self.tables.services.choose(&mut self.rng).unwrap();
        let number: u32 = self.rng.random_range(0..300);
        let v4 = service.vip.address.starts_with(&[0; 10]);
        let src = if v4 {
            format!("10.8.{}.{}:{}", number >> 4, number & 15, 1000 + number % 7)
        } else {
            format!("[fd08::{:x}:{:x}]:{}", number >> 4, number & 15, 1000 + number % 7)
        };
        let port = service.vip.port.unwrap_or_else(|| self.rng.random_range(1..5));
        let port = if self.rng.random_bool(0.02) { 9 } else { port };
        let address = weir_wire::unmap_address(&service.vip.address);
        FlowKey::new(src.parse().unwrap(), (address, port).into(), service.vip.protocol)
    }

    fn frame(&mut self) -> Vec<u8> {
        let flow = self.flow();
        let flags = [
            TcpFlags::SYN,
            TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::FIN | TcpFlags::ACK,
            TcpFlags::RST,
            TcpFlags::SYN | TcpFlags::ACK,
        ];
        let mut frame = Frame::new(flow)
            .tcp_flags(*flags.choose(&mut self.rng).unwrap())
            .payload(self.rng.random_range(0..64));
        for _ in 0..self.rng.random_range(0..50u32).saturating_sub(46) {
            frame = frame.vlan(self.rng.random_range(1..4000));
        }
        let mut bytes = frame.build();
        if self.rng.random_bool(0.02) && bytes[12..14] == [0x86, 0xdd] {
            self.extend(&mut bytes);
        }
        if self.rng.random_bool(0.1) {
            self.damage(&mut bytes);
        }
        bytes
    }

    /// Puts IPv6 extension headers in front of the transport header.
    fn extend(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.rng.random_range(1..=8) {
            let units: u8 = self.rng.random_range(0..3);
            let kind = *[0, 43, 44, 51, 60].choose(&mut self.rng).unwrap();
            let mut header = match kind {
                51 => vec![0; (usize::from(units) * 2 + 2) * 4],
                44 => vec![0; 8],
                _ => vec![0; (usize::from(units) + 1) * 8],
            };
            header[0] = std::mem::replace(&mut bytes[20], kind);
            header[1] = if kind == 51 { units * 2 } else { units };
            if kind == 44 {
                // An atomic fragment, which is a whole packet, or now and then a real one.
                header[1] = 0;
                header[3] = u8::from(self.rng.random_bool(0.1));
            }
            bytes.splice(54..54, header);
        }
        let payload = (bytes.len() - 54) as u16;
        bytes[18..20].copy_from_slice(&payload.to_be_bytes());
    }

    /// Truncates the frame or changes some bytes of its headers.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        if self.rng.random_bool(0.3) {
            let length = self.rng.random_range(14..=bytes.len());
            bytes.truncate(length);
        }
        for _ in 0..self.rng.random_range(0..4) {
            let at = self.rng.random_range(12..bytes.len().clamp(13, 80));
            if at < bytes.len() {
                // Small values are next-header numbers and lengths; the rest is anything.
                if at == 24 && bytes.len() >= 34 && self.rng.random_bool(0.2) {
                    // An IPv4-mapped source.
                    bytes[22..34].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
                    return;
                }
                bytes[at] = if self.rng.random_bool(0.5) {
                    *[0, 1, 6, 17, 43, 44, 51, 58, 60, 0x45, 0x46, 0x60]
                        .choose(&mut self.rng)
                        .unwrap()
                } else {
                    self.rng.random()
                };
            }
        }
    }

    fn compare_packet(&mut self) -> Outcome {
        let frame = self.frame();
        let wanted = self.plane.oracle.process(&frame);
        let run = run_frame(self.plane.kernel.program(), &frame).unwrap();
        match wanted {
            Outcome::Forwarded(backend) => {
                assert_eq!(run.verdict, Verdict::Transmit, "{frame:02x?}");
                assert_eq!(run.frame[..6], mac(backend), "backend {backend} for {frame:02x?}");
                assert_eq!(run.frame[6..12], [2, 0, 0, 0, 0, 9]);
                assert_eq!(run.frame[12..], frame[12..], "only MAC addresses change");
            }
            Outcome::Passed(reason) => {
                assert_eq!(run.verdict, Verdict::Pass, "{reason} for {frame:02x?}");
                assert_eq!(run.frame, frame, "untouched");
            }
            Outcome::Dropped(reason) => {
                assert_eq!(run.verdict, Verdict::Drop, "{reason} for {frame:02x?}");
            }
        }
        wanted
    }

    /// Half of the known flows are armed then.
    fn compare_marks(&mut self) {
        let mut known = Vec::new();
        for service in &self.tables.services {
            let Builder::Concury(concury) = &service.builder else { continue };
            let Some(image) = concury.published() else { continue };
            let hashes = concury.states().map(|(state, _)| state.hash(&image.header().key));
            known.extend(hashes.step_by(2));
        }
        let flows = self.rng.random_range(0..2_000);
        let side = self.plane.kernel.flip_marks(&mut known.iter().copied(), flows);
        let alike = weir_plane::Plane::flip_marks(
            &mut self.plane.oracle,
            &mut known.iter().copied(),
            flows,
        );
        assert_eq!(side, alike);
        let marks = self.plane.kernel.take_marks(side);
        assert_eq!(
            marks,
            weir_plane::Plane::take_marks(&mut self.plane.oracle, side),
            "activity marks"
        );
        let active = marks.words().iter().any(|word| word & LANE_ACTIVE != 0);
        self.armed += u64::from(active);
        self.strangers += u64::from(marks.strangers().iter().any(|word| *word != 0));
    }

    fn compare_memory(&mut self) {
        let counters = self.plane.kernel.counters(0..BACKENDS).unwrap();
        assert_eq!(counters, self.plane.oracle.counters);
        let refuse = std::mem::take(&mut self.plane.refuse_one_in);
        self.plane.pending().unwrap();
        self.plane.pinned().unwrap();
        self.plane.refuse_one_in = refuse;
        self.compare_marks();
        if self.rng.random_bool(0.5) {
            self.plane.kernel.next_seen_generation();
            let now = &mut self.plane.oracle.memory.seen_generation;
            *now = if *now >= 3 { 1 } else { *now + 1 };
        }
        for (state, wanted) in self.plane.oracle.memory.connections.iter().take(20) {
            let VipKey { address: dst, protocol, .. } =
                self.tables.services[state.service as usize].vip;
            let StateKey { address: src, src_port, dst_port } = state.key;
            let flow = FlowKey { src, dst, src_port, dst_port, protocol };
            assert_eq!(self.plane.kernel.connection(&flow).unwrap(), Some(*wanted), "{flow}");
        }
    }
}

#[test]
fn kernel_and_oracle_agree() {
    let packets = from_environment("WEIR_PACKETS", || 1_000_000);
    let seed = from_environment("WEIR_SEED", rand::random);
    let mut world = World::new(seed);
    // And they agree after whatever an update that fails leaves behind.
    world.plane.refuse_one_in = 40;
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let mut changes = 0;
    for packet in 0..packets {
        let outcome = world.compare_packet();
        let name = match outcome {
            Outcome::Forwarded(_) => "forwarded".to_owned(),
            Outcome::Passed(reason) => format!("passed:{reason}"),
            Outcome::Dropped(reason) => format!("dropped:{reason}"),
        };
        *seen.entry(name).or_default() += 1;
        if packet % 256 == 0 {
            world.drain();
            let service = world.rng.random_range(0..world.tables.services.len());
            if world.updates(service) {
                world.step_update(service);
            } else if world.rng.random_bool(0.4) {
                world.change_pool(service);
                world.begin_update(service);
                changes += 1;
            }
        }
        if packet % 16_384 == 0 {
            world.tables.now += 100;
            world.compare_memory();
        }
    }
    world.drain();
    world.compare_memory();
    println!("{packets} packets, {changes} pool changes, {} refusals", world.plane.refused());
    seen.iter().for_each(|(name, count)| println!("{count:>9} {name}"));
    // The run must have been through everything that can happen.
    if packets >= 1_000_000 {
        assert!(world.plane.refused() > 10, "nothing has failed");
        assert!(world.armed > 10 && world.strangers > 10, "nothing was marked");
        let mut wanted = vec!["forwarded".to_owned()];
        wanted.extend(
            Reason::ALL
                .iter()
                // Other hosts' frames, next hops and unknown methods have tests of their own; no
                // method of the kernel's knows cookies or rows in transition; and the kernel hands
                // no program less than an Ethernet header.
                .filter(|r| {
                    let elsewhere = [Reason::OtherHost, Reason::NoNextHop, Reason::UnknownMethod];
                    let never = [Reason::InTransition, Reason::NoCookie, Reason::TruncatedEthernet];
                    // The guard's, and those of next hops.
                    let never = [
                        &never[..],
                        &[Reason::PastProgram, Reason::BehindGateway, Reason::NoWayOut],
                    ]
                    .concat();
                    !elsewhere.contains(r) && !never.contains(r)
                })
                .map(|r| r.name().to_owned()),
        );
        for name in wanted {
            assert!(seen.keys().any(|key| key.ends_with(&name)), "{name} never happened");
        }
    }
    let client = world.tables.services.iter().filter(|s| s.client).count();
    assert_eq!(client, 3 + usize::from(MethodId::named("example").is_some()));
}

/// Every one of 100,000 damaged frames is forwarded or counted under exactly one reason, and the
/// program neither faults nor leaves its verdicts.
#[test]
fn damaged_frames_are_counted_by_reason() {
    const FRAMES: u64 = 100_000;
    let mut world = World::new(from_environment("WEIR_SEED", rand::random));
    let mut verdicts = BTreeMap::new();
    for _ in 0..FRAMES {
        let mut frame = world.frame();
        world.damage(&mut frame);
        let run = run_frame(world.plane.kernel.program(), &frame).unwrap();
        *verdicts.entry(format!("{:?}", run.verdict)).or_insert(0u64) += 1;
    }
    println!("{verdicts:?}");
    let counters = world.plane.kernel.counters(0..BACKENDS).unwrap();
    let lanes: u64 = counters.lanes.values().map(|lane| lane.packets).sum();
    let passed: u64 = counters.passed.values().sum();
    let dropped: u64 = counters.dropped.values().sum();
    assert_eq!(verdicts.get("Aborted"), None);
    assert_eq!(verdicts.get("Transmit"), Some(&lanes));
    assert_eq!(verdicts.get("Pass"), Some(&passed));
    assert_eq!(verdicts.get("Drop"), Some(&dropped));
    assert_eq!(lanes + passed + dropped, FRAMES);
}

/// The two hashes agree on a fresh key, apart from any table.
#[test]
fn state_keys_hash_alike_for_both_families() {
    let key = HashKey::from_seed(9);
    let v4 =
        FlowKey::new("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap(), Protocol::Tcp);
    let state = weir_steering::StateKey::of_flow(&v4);
    assert_eq!(state.hash(&key), key.hash_word(0x0100_000a_0200_0100));
}

/// The program of the AF_XDP forwarder: where no socket stands every frame is the kernel's, as it
/// came, and those to groups are counted. (With sockets: `xsk.rs`.)
#[test]
fn frames_without_a_socket_pass() {
    let mut rng = ChaCha8Rng::seed_from_u64(from_environment("WEIR_SEED", rand::random));
    let redirect = Redirect::load(4).expect("load (needs root)");
    let mut groups = 0;
    for _ in 0..2000 {
        let frame: Vec<u8> = (0..rng.random_range(14..200)).map(|_| rng.random()).collect();
        groups += u64::from(frame[0] & 1);
        let run = run_frame(redirect.program(), &frame).unwrap();
        assert_eq!(run.verdict, Verdict::Pass);
        assert_eq!(run.frame, frame);
    }
    assert_eq!(redirect.group_frames().unwrap(), groups);
}
