//! A plane in user space beside the program (`weir_plane_burst::beside`) against the one `decide` of each method:
//! the same random packets, through random histories of pools and updates, of every method that it has. What it
//! sends goes where the oracle sends it, and has no other byte in it; what it does not know it gives back as it
//! came. So it is with an *emulated* card whose rules lead packets past the tables, whatever goes wrong with these.
//!
//! `WEIR_SEED=n` repeats a run.

#[allow(dead_code, reason = "the other differential test uses the rest")]
#[path = "differential/services.rs"]
mod services;
#[path = "differential/setup.rs"]
mod setup;
#[allow(dead_code, reason = "the other differential test uses the rest")]
#[path = "differential/twin.rs"]
mod twin;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use services::{Builder, Tables};
use setup::{OURS, mac, oracle};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;
use twin::Twin;
use weir_dataplane::user::{METHODS, UserMemory};
use weir_dataplane::{BackendEntry, KernelPlane, Limits, LivePlane, run_frame};
use weir_offload::emulated::{Nic, Profile};
use weir_offload::{Choice, Queue};
use weir_plane::{Backend, Verdict, VipKey};
use weir_plane_burst::beside::{Beside, Offloaded};
use weir_plane_burst::ports::{BURST, Fate, Frame, HEADROOM};
use weir_steering::update::Plane as _;
use weir_steering::{BackendId, Flags, Member, MethodId, Role, ServiceId, Settings};
use weir_testbed::in_own_namespace;
use weir_testbed::process::stay_on_cpu;
use weir_wire::craft;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

const PENDING: u32 = 4_096;
/// Bytes of a frame and what stands in front of it.
const ROOM: usize = 512;
/// Packets of each method that are to be decided beside the program, and those while packets ask for pending flows.
const SENT: u64 = 3_000;
const SENT_ASKING: u64 = 500;
const SENT_OF_JET: u64 = 500;
/// Far more bursts than that takes.
const BURSTS: u32 = 100_000;

/// Frames of packets that are in a card's queues.
const SLOTS: usize = 4_096;
/// A packet: the number of its service, its flow, its flags, and its frame.
type Packet = (usize, FlowKey, TcpFlags, Vec<u8>);

/// An emulated card, with the packets that are in its queues.
struct WithCard {
    plane: Offloaded<Nic<usize>>,
    queues: u16,
    now: Duration,
    waiting: Vec<Option<Packet>>,
    free: Vec<usize>,
}

/// The pins, which go with the test.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = KernelPlane::unload(&self.0);
    }
}

struct World {
    plane: Twin,
    tables: Tables,
    methods: Vec<MethodId>,
    beside: Beside,
    memory: UserMemory,
    rng: ChaCha8Rng,
    next_backend: u16,
    area: Vec<u8>,
    /// Packets sent beside the program, by method, and whether packets asked for pending flows; and given back.
    sent: BTreeMap<(MethodId, bool), u64>,
    returned: u64,
    _pins: Pins,
}

fn builder(method: MethodId, client_affinity: bool, seed: u64) -> Builder {
    let mut settings = Settings::of(method);
    for setting in method.info().settings {
        if setting.words.is_empty() && (setting.range.0..=setting.range.1).contains(&251) {
            settings.set(setting.name, 251).expect("it is in range");
        }
    }
    setup::builder(settings, client_affinity, false, seed)
}

impl World {
    fn new(seed: u64) -> Self {
        // The kernel's tables keep free entries for each CPU.
        stay_on_cpu(0).expect("there is one");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let limits = Limits { table_bytes: 4 << 20, pending_flows: PENDING, ..setup::LIMITS };
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-test-beside-{}-{number}", std::process::id());
        let pins = Pins(Path::new("/sys/fs/bpf").join(name));
        let (mut kernel, _) = KernelPlane::open(Some(&pins.0), &limits).expect("load (needs root)");
        kernel.stand_in_front().expect("the program in front loads");
        let memory = UserMemory::open(&pins.0).expect("it is pinned");
        let mut oracle = oracle(&limits);
        let (mut services, mut methods) = (Vec::new(), Vec::new());
        for method in METHODS {
            for (address, port, client) in [
                (format!("10.9.0.{}", method.number()), Some(80), false),
                (format!("fd09::{}", method.number()), Some(443), true),
                (format!("10.9.1.{}", method.number()), None, false),
            ] {
                let address = map_address(address.parse().expect("an address"));
                let vip = VipKey { address, protocol: Protocol::Tcp, port };
                let number = ServiceId(services.len() as u32);
                let builder = builder(method, client, rng.random());
                methods.push(method);
                services.push(setup::service(
                    &mut kernel,
                    &mut oracle,
                    number,
                    vip,
                    client,
                    builder,
                ));
            }
        }
        let kernel = LivePlane::new(kernel).expect("it is the only consumer");
        let mut world = Self {
            plane: Twin::new(kernel, oracle, rng.random()),
            tables: Tables { services, now: 1_000 },
            methods,
            beside: Beside::default(),
            memory,
            rng,
            next_backend: 0,
            area: vec![0; SLOTS * ROOM],
            sent: BTreeMap::new(),
            returned: 0,
            _pins: pins,
        };
        for at in 0..world.tables.services.len() {
            (0..4).for_each(|_| world.add_backend(at));
            world.begin_update(at);
            while world.updates(at) {
                world.step_update(at);
            }
        }
        world
    }

    fn add_backend(&mut self, at: usize) {
        if u32::from(self.next_backend) == setup::LIMITS.backends {
            return;
        }
        let backend = BackendId::of(self.next_backend);
        self.next_backend += 1;
        let (address, incarnation) = ([10, 9, 2, 1].into(), self.rng.random());
        let entry = BackendEntry::new(address, incarnation);
        let entry = entry.with_next_hop(mac(backend), OURS, 0, true);
        self.plane.kernel.set_backend(backend, &entry).expect("it has a number");
        let known = Backend {
            address,
            incarnation,
            up: true,
            resets: false,
            hop: None,
            tunnel: None,
            translation: None,
            segments: None,
        };
        self.plane.oracle.backends.insert(backend, known);
        self.plane.oracle.memory.incarnations.insert(backend, incarnation);
        let name = format!("b{backend}");
        let weight = self.rng.random_range(1..5);
        let members = &mut self.tables.services[at].members;
        members.push(Member { backend, name, weight, role: Role::Serving });
    }

    fn change_pool(&mut self, at: usize) {
        let members = &mut self.tables.services[at].members;
        let which = self.rng.random_range(0..members.len());
        match self.rng.random_range(0..4) {
            0 if members.len() < 12 => self.add_backend(at),
            1 => members[which].weight = self.rng.random_range(0..7),
            _ => {
                let role = &mut members[which].role;
                *role = setup::next_role(*role);
            }
        }
    }

    fn begin_update(&mut self, at: usize) {
        let service = &mut self.tables.services[at];
        service.driver.begin([service.number]);
    }

    fn updates(&self, at: usize) -> bool {
        setup::updates(&self.tables, at)
    }

    /// One action of a service's update.
    fn step_update(&mut self, at: usize) {
        for outcome in setup::step(&mut self.plane, &mut self.tables, at) {
            assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
        }
    }

    /// A packet to a service, mostly in the middle of a connection, of which there are few.
    fn packet(&mut self) -> (usize, FlowKey, TcpFlags) {
        let rng = &mut self.rng;
        let at = rng.random_range(0..self.tables.services.len());
        let vip = self.tables.services[at].vip;
        let client = rng.random_range(0..400u16);
        let source = match weir_wire::unmap_address(&vip.address).is_ipv4() {
            true => std::net::Ipv4Addr::from(0x0a10_0000 + u32::from(client / 4)).into(),
            false => std::net::Ipv6Addr::from((0xfd10 << 112) + u128::from(client / 4)).into(),
        };
        let source: std::net::IpAddr = source;
        let to = weir_wire::unmap_address(&vip.address);
        let port = vip.port.unwrap_or(8_000 + client % 3);
        let flow = FlowKey::new((source, 4_000 + client).into(), (to, port).into(), Protocol::Tcp);
        let flags = match rng.random_range(0..20) {
            0 | 1 => TcpFlags::SYN,
            2 => *[TcpFlags::FIN, TcpFlags::RST, TcpFlags(18)].choose(rng).expect("three"),
            3 => TcpFlags(TcpFlags::PSH.0 | TcpFlags::ACK.0),
            _ => TcpFlags::ACK,
        };
        (at, flow, flags)
    }

    fn crafted(&mut self) -> Packet {
        let (service, flow, flags) = self.packet();
        let payload = self.rng.random_range(0..200);
        let frame = craft::Frame::new(flow).tcp_flags(flags).payload(payload).build();
        (service, flow, flags, frame)
    }

    /// A burst of packets, decided beside the program, and then by the oracle and the program.
    fn compare_burst(&mut self) {
        let count = self.rng.random_range(1..=BURST);
        let mut packets = Vec::new();
        for place in 0..count {
            let (service, flow, flags, frame) = self.crafted();
            let at = place * ROOM + HEADROOM;
            self.area[at..at + frame.len()].copy_from_slice(&frame);
            packets.push((service, flow, flags, frame));
        }
        let mut places: Vec<Frame> = packets
            .iter()
            .enumerate()
            .map(|(place, (.., frame))| Frame {
                at: (place * ROOM + HEADROOM) as u32,
                len: frame.len() as u32,
                ..Frame::default()
            })
            .collect();
        self.beside.process(&self.memory, &|_| true, &mut self.area, &mut places);
        self.compare(&packets, &places);
    }

    /// Packets into a card's queues, and some out of them: what is left meets other rules and other tables.
    fn compare_by_card(&mut self, card: &mut WithCard) {
        card.now += Duration::from_micros(self.rng.random_range(0..3_000));
        let now = card.now.as_millis() as u64;
        card.plane.offload().card().advance(card.now);
        for _ in 0..self.rng.random_range(1..=BURST) {
            let packet = self.crafted();
            let Some(slot) = card.free.pop() else { break };
            let at = slot * ROOM + HEADROOM;
            self.area[at..at + packet.3.len()].copy_from_slice(&packet.3);
            match card.plane.offload().card().receive(Some(&packet.1), slot) {
                Ok(_) => card.waiting[slot] = Some(packet),
                Err(slot) => card.free.push(slot),
            }
        }
        for queue in (0..card.queues).map(Queue) {
            let mut slots = Vec::new();
            let most = self.rng.random_range(0..=BURST);
            let nic = card.plane.offload().card();
            let emptied = nic.poll(queue, most, &mut |slot| slots.push(slot));
            let packets: Vec<Packet> =
                slots.iter().map(|slot| card.waiting[*slot].take().expect("it waits")).collect();
            let place = |(slot, packet): (&usize, &Packet)| Frame {
                at: (slot * ROOM + HEADROOM) as u32,
                len: packet.3.len() as u32,
                ..Frame::default()
            };
            let mut places: Vec<Frame> = slots.iter().zip(&packets).map(place).collect();
            let (shared, area) = (&self.memory, &mut self.area);
            card.plane.process(shared, &|_| true, queue, area, &mut places, emptied, now);
            self.compare(&packets, &places);
            card.free.append(&mut slots);
        }
        card.plane.tick(&self.memory, now);
    }

    /// The number of a backend is another one's from now on.
    fn renumber(&mut self) {
        let known: Vec<BackendId> = self.plane.oracle.backends.keys().copied().collect();
        let backend = known[self.rng.random_range(0..known.len())];
        let incarnation = self.rng.random();
        let entry = BackendEntry::new([10, 9, 2, 1].into(), incarnation);
        let entry = entry.with_next_hop(mac(backend), OURS, 0, true);
        self.plane.kernel.set_backend(backend, &entry).expect("it has a number");
        let oracle = &mut self.plane.oracle;
        oracle.backends.get_mut(&backend).expect("just found").incarnation = incarnation;
        oracle.memory.incarnations.insert(backend, incarnation);
    }

    /// Compares what became of packets with what the oracle and the program make of them, which remember what
    /// begins: first those that change nothing.
    fn compare(&mut self, packets: &[Packet], places: &[Frame]) {
        let mut order: Vec<usize> = (0..packets.len()).collect();
        let is_middle = |flags: TcpFlags| flags.0 & 0b1_0111 == TcpFlags::ACK.0;
        order.sort_by_key(|at| !is_middle(packets[*at].2));
        for at in order {
            let (service, flow, flags, frame) = &packets[at];
            let asks = self.asks(*service);
            let wanted = self.plane.oracle.judge(frame);
            run_frame(self.plane.kernel.program(), frame).expect("it runs");
            let Frame { at, len, fate, .. } = places[at];
            let found = &self.area[at as usize..][..len as usize];
            let what = || format!("{} {flow} {flags:?}, pending {asks}", self.methods[*service]);
            match fate {
                Fate::Pass => {
                    assert_eq!(found, frame, "{}: given back as another one", what());
                    self.returned += 1;
                }
                Fate::Send => {
                    let Verdict::Forward { backend, .. } = wanted else {
                        panic!("{}: sent, not {wanted:?}", what());
                    };
                    assert_eq!(found[..6], mac(backend), "{}: not to {backend}", what());
                    assert_eq!(found[6..12], OURS, "{}", what());
                    assert_eq!(found[12..], frame[12..], "{}: other bytes", what());
                    assert!(is_middle(*flags), "{}: it is the program's", what());
                    *self.sent.entry((self.methods[*service], asks)).or_default() += 1;
                }
                Fate::Drop | Fate::Route => panic!("{}: {fate:?}", what()),
            }
        }
    }

    /// Whether packets of a service ask for pending flows.
    fn asks(&self, at: usize) -> bool {
        let table = &self.plane.oracle.tables[&self.tables.services[at].number];
        table.header().flags().has(Flags::PENDING)
    }

    fn has_seen_enough(&self) -> bool {
        METHODS.iter().all(|&method| {
            let sent = |asks| self.sent.get(&(method, asks)).copied().unwrap_or(0);
            // JET's packets are the program's while pending flows are asked for, and where a row has a mark; rows
            // keep theirs while connections may be remembered there, which in these histories is for good.
            match method {
                MethodId::Jet => sent(false) >= SENT_OF_JET,
                _ => sent(false) >= SENT && sent(true) >= SENT_ASKING,
            }
        })
    }
}

#[test]
fn what_is_decided_beside_the_program_is_what_decide_says() {
    let seed = setup::from_environment("WEIR_SEED", rand::random);
    in_own_namespace(|| {
        let mut world = World::new(seed);
        let mut bursts = 0;
        while !world.has_seen_enough() {
            assert!(bursts < BURSTS, "{:?} sent, {} given back", world.sent, world.returned);
            bursts += 1;
            let at = world.rng.random_range(0..world.tables.services.len());
            if world.updates(at) {
                world.step_update(at);
            } else if world.rng.random_bool(0.1) {
                world.change_pool(at);
                world.begin_update(at);
            }
            world.compare_burst();
        }
        println!("{bursts} bursts, {:?} sent, {} given back", world.sent, world.returned);
        assert!(world.returned > 0);
    })
    .expect("needs root");
}

/// Over a card: what its rules lead goes where the oracle sends it, and nowhere else, whatever becomes of pools,
/// tables, numbers of backends, rules and frames meanwhile.
fn over_a_card(profile: Profile, choice: Choice) {
    let seed = setup::from_environment("WEIR_SEED", rand::random);
    in_own_namespace(|| {
        let mut world = World::new(seed);
        let setup = weir_offload::Setup { choice, audit: 500, patience: 100, ..Default::default() };
        let mut card = WithCard {
            plane: Offloaded::new(Nic::new(profile, seed), setup, seed),
            queues: profile.queues,
            now: Duration::ZERO,
            waiting: vec![None; SLOTS],
            free: (0..SLOTS).collect(),
        };
        card.plane.begin_anew(&world.memory, 0);
        let mut bursts = 0;
        let (mut changes, mut renumbered) = (0, 0);
        while !world.has_seen_enough() || card.plane.shares().led < 20_000 || changes < 100 {
            let shares = card.plane.shares();
            assert!(
                bursts < BURSTS,
                "{:?} sent, {shares:?}, {:?}",
                world.sent,
                card.plane.counts()
            );
            bursts += 1;
            let at = world.rng.random_range(0..world.tables.services.len());
            if world.updates(at) {
                // What is led while an update goes on is worth looking at.
                if world.rng.random_bool(0.3) {
                    world.step_update(at);
                }
            } else if world.rng.random_bool(0.02) {
                world.change_pool(at);
                world.begin_update(at);
                changes += 1;
            }
            if world.rng.random_bool(0.01) {
                world.renumber();
                renumbered += 1;
            }
            world.compare_by_card(&mut card);
        }
        let (shares, counts) = (card.plane.shares(), card.plane.counts());
        let statistics = card.plane.offload().card().statistics();
        println!(
            "emulated, {choice:?}: {bursts} bursts, {changes} changes, {renumbered} renumbered"
        );
        println!("{shares:?}\n{counts:?}\n{statistics:?}");
        assert!(
            shares.steered_apart > 100 && counts.ended > 100 && counts.doubted > 10,
            "{counts:?}"
        );
    })
    .expect("needs root");
}

#[test]
fn what_rules_lead_goes_where_decide_says() {
    over_a_card(Profile::sound(1_000, 60), Choice::All);
}

#[test]
fn what_a_hostile_card_leads_goes_where_decide_says() {
    over_a_card(Profile::hostile(200, 24), Choice::Heavy { width: 1024, least: 4 });
}

/// Segments in the middle of so many connections of a client to a service, in turn, as a burst in memory.
fn burst_to(vip: VipKey, connections: usize) -> (Vec<u8>, Vec<Frame>) {
    let to = weir_wire::unmap_address(&vip.address);
    let client: std::net::IpAddr = match to.is_ipv4() {
        true => std::net::Ipv4Addr::new(10, 16, 0, 1).into(),
        false => std::net::Ipv6Addr::new(0xfd10, 0, 0, 0, 0, 0, 0, 1).into(),
    };
    let to = std::net::SocketAddr::new(to, vip.port.expect("it takes one port"));
    let mut area = vec![0; BURST * ROOM];
    let frames = (0..BURST).map(|place| {
        let from = (client, 4_000 + (place % connections) as u16).into();
        let flow = FlowKey::new(from, to, Protocol::Tcp);
        let frame = craft::Frame::new(flow).tcp_flags(TcpFlags::ACK).build();
        let at = place * ROOM + HEADROOM;
        area[at..at + frame.len()].copy_from_slice(&frame);
        Frame { at: at as u32, len: frame.len() as u32, ..Frame::default() }
    });
    let frames = frames.collect();
    (area, frames)
}

/// With client affinity, too, a rule is for a connection that sends much, and not for all of a client that does.
#[test]
fn a_rule_is_for_a_connection_and_not_for_its_client() {
    in_own_namespace(|| {
        let world = World::new(9);
        let residue = world.methods.iter().position(|method| *method == MethodId::Residue);
        // Of the services of a method the second one.
        let vip = world.tables.services[residue.expect("it is one of them") + 1].vip;
        assert_eq!(vip.port, Some(443));
        let choice = Choice::Heavy { width: 1 << 14, least: 8 };
        let setup = weir_offload::Setup { choice, ..Default::default() };
        let card = Nic::<usize>::new(Profile::sound(100, 60), 9);
        let mut plane = Offloaded::new(card, setup, 9);
        plane.begin_anew(&world.memory, 0);
        let mut asked_after = |connections| {
            let (mut area, mut places) = burst_to(vip, connections);
            let (shared, queue) = (&world.memory, Queue::SOFTWARE);
            plane.process(shared, &|_| true, queue, &mut area, &mut places, true, 100);
            assert!(places.iter().all(|place| place.fate == Fate::Send), "{places:?}");
            plane.counts().asked
        };
        assert_eq!(asked_after(BURST), 0, "each has sent one packet");
        assert_eq!(asked_after(1), 1, "one has sent many");
    })
    .expect("needs root");
}

/// Two threads of one plane over one memory: no packet is lost in what they count of backends, and a grace period
/// waits for the burst that either is at.
#[test]
fn threads_are_waited_for_and_their_counts_add_up() {
    const ROUNDS: u64 = 4_000;
    in_own_namespace(|| {
        let mut world = World::new(7);
        let pins = world._pins.0.clone();
        let vip = world.tables.services[0].vip;
        assert_eq!(vip.port, Some(80));
        let counted = |world: &World| -> u64 {
            let lanes = world.plane.kernel.kernel.lanes().expect("they can be read");
            lanes.iter().map(|lane| lane.packets).sum()
        };
        let before = counted(&world);
        let sent: u64 = thread::scope(|scope| {
            let threads = [0, 1].map(|number| {
                let pins = &pins;
                scope.spawn(move || {
                    // One after the other on one processor, they would hardly meet.
                    let _ = stay_on_cpu(number);
                    let memory = UserMemory::open(pins).expect("it is pinned");
                    let memory = memory.of_thread(number, 2);
                    let mut beside = Beside::default();
                    let (mut area, frames) = burst_to(vip, BURST);
                    let mut sent = 0;
                    for _ in 0..ROUNDS {
                        let mut places = frames.clone();
                        beside.process(&memory, &|_| true, &mut area, &mut places);
                        let gone = places.iter().filter(|place| place.fate == Fate::Send);
                        sent += gone.count() as u64;
                    }
                    sent
                })
            });
            threads.map(|thread| thread.join().expect("it ends")).into_iter().sum()
        });
        assert_eq!(sent, 2 * ROUNDS * BURST as u64, "all are in the middle of connections");
        assert_eq!(counted(&world) - before, sent, "packets that were counted");

        let first = UserMemory::open(&pins).expect("it is pinned").of_thread(0, 2);
        first.begin(2);
        // Also when nothing more is led to it, as it finishes what it has.
        for (number, takes) in [(0, true), (1, true), (0, false), (1, false)] {
            if !takes {
                first.take_no_more();
            }
            let (left, at_one) = (AtomicBool::new(false), Barrier::new(2));
            thread::scope(|scope| {
                scope.spawn(|| {
                    let memory = UserMemory::open(&pins).expect("it is pinned");
                    let memory = memory.of_thread(number, 2);
                    memory.enter();
                    at_one.wait();
                    thread::sleep(Duration::from_millis(100));
                    left.store(true, Ordering::SeqCst);
                    memory.leave();
                });
                at_one.wait();
                // It says so if a burst takes seconds, as on a machine that is very busy.
                while world.plane.kernel.grace().is_err() {}
                assert!(left.load(Ordering::SeqCst), "thread {number} was at a burst");
            });
        }
        first.end();
    })
    .expect("needs root");
}
