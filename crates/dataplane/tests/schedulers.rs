//! Who gets first packets, through the program in the kernel: what each scheduler promises of 10,000
//! connections (docs/schedulers.md). Packets are counted, not timed.
//!
//! `WEIR_SEED=n` repeats a run.

use std::net::{IpAddr, SocketAddr};

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_dataplane::{BackendEntry, KernelPlane, Limits, Verdict, run_frame};
use weir_plane::VipKey;
use weir_steering::{
    BackendId, Build, LOAD, Member, MethodId, Role, SCHEDULER, ServiceConfig, ServiceId, Settings,
    TABLE_SIZE,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

const CONNECTIONS: u32 = 10_000;

/// The service's addresses.
const VIPS: [&str; 2] = ["10.1.0.1", "fd00::1"];

const LIMITS: Limits = Limits {
    answered_flows: 65_536,
    translations: 64,
    slot_partitions: 1,
    services: 4,
    table_bytes: 1 << 20,
    backends: 64,
    pending_flows: 64,
    unreported_flows: 64,
    tracked_flows: 65_536,
    udp_flows: 64,
    event_ring_bytes: 4096,
    marked_flows: 128,
    stranger_bits: 1024,
    mappings: 1,
    list_prefixes: 1,
};

/// A service with one method and scheduler, and its clients.
struct World {
    plane: KernelPlane,
    builder: Box<dyn Build>,
    members: Vec<Member>,
    generation: u64,
    rng: ChaCha8Rng,
    next: u32,
    /// Whether clients have addresses of IPv6.
    six: bool,
}

fn rng() -> ChaCha8Rng {
    let given = std::env::var("WEIR_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

impl World {
    /// Backends with these weights. Loads are counted, if the scheduler reads any.
    fn new(method: &str, scheduler: &str, load: &str, weights: &[u32]) -> Self {
        let (mut plane, _) = KernelPlane::open(None, &LIMITS).expect("load (needs root)");
        let mut rng = rng();
        let mut settings = Settings::of(MethodId::named(method).unwrap());
        for (name, word) in [(SCHEDULER, scheduler), (LOAD, load)] {
            // Methods that let the hash choose have no scheduler, which is what this one is.
            let set = settings.set_word(name, word);
            assert!(set.is_ok() || scheduler == "uniform", "{method}: {set:?}");
        }
        if method == "tracked" {
            // Shares of the hash's own choice are as even as its table is long.
            settings.set(TABLE_SIZE, 65_537).unwrap();
        }
        if method == "cheetah-stateful" {
            settings.set(weir_steering::cheetah::PARTITIONS, 1).unwrap();
        }
        let config = ServiceConfig {
            settings,
            client_affinity: false,
            udp: false,
            seed: rng.random(),
            nonce: 0,
            capacity: 16,
            max_states: 16,
            idle_seconds: 1_000,
        };
        let info = MethodId::named(method).unwrap().info();
        let builder = info.builder.unwrap()(&config, None);
        for vip in VIPS {
            let address = map_address(vip.parse().unwrap());
            let vip = VipKey { address, protocol: Protocol::Tcp, port: Some(80) };
            plane.set_service(vip, ServiceId(1)).unwrap();
        }
        let members = (0..).zip(weights).map(|(backend, weight)| {
            let entry = BackendEntry::new("10.1.1.1".parse().unwrap(), 1);
            let entry = entry.with_next_hop([2, 0, 0, 1, 0, backend as u8], [2; 6], 0, true);
            plane.set_backend(BackendId::of(backend), &entry).unwrap();
            plane.set_load(BackendId::of(backend), *weight, Some(0));
            Member {
                backend: BackendId::of(backend),
                name: format!("b{backend}"),
                weight: *weight,
                role: Role::Serving,
            }
        });
        let members = members.collect();
        let mut world = Self { plane, builder, members, generation: 0, rng, next: 0, six: false };
        world.publish();
        world
    }

    fn publish(&mut self) {
        self.generation += 1;
        let built = self.builder.build(self.generation, &self.members, 0).unwrap();
        self.plane.publish(ServiceId(1), &built.table).unwrap();
    }

    /// Another client.
    fn client(&mut self) -> FlowKey {
        self.next += 1;
        let [_, a, b, c] = self.next.to_be_bytes();
        let port = self.rng.random_range(1_024..=u16::MAX);
        let [vip4, vip6] = VIPS.map(|vip| vip.parse().unwrap());
        let (from, vip): (String, IpAddr) = if self.six {
            (format!("2001:db8:{a:x}:{b:x}::{c:x}"), vip6)
        } else {
            (format!("10.{}.{b}.{c}", 100 + a), vip4)
        };
        let from = SocketAddr::new(from.parse().unwrap(), port);
        FlowKey::new(from, SocketAddr::new(vip, 80), Protocol::Tcp)
    }

    /// Where a segment goes.
    fn send(&self, flow: FlowKey, flags: u8) -> Option<u16> {
        // With timestamps, so that cookies could be read of it; a first packet echoes nothing.
        let frame = Frame::new(flow).tcp_flags(TcpFlags(flags)).timestamps(7, 0).build();
        let run = run_frame(self.plane.program(), &frame).unwrap();
        (run.verdict == Verdict::Transmit).then(|| u16::from(run.frame[5]))
    }

    fn open(&mut self) -> (FlowKey, u16) {
        let flow = self.client();
        let backend = self.send(flow, TcpFlags::SYN.0).expect("somebody takes it");
        (flow, backend)
    }

    /// Connections of each backend, of so many that begin.
    fn shares(&mut self, connections: u32) -> Vec<u32> {
        let mut shares = vec![0; self.members.len()];
        for _ in 0..connections {
            let (_, backend) = self.open();
            shares[usize::from(backend)] += 1;
        }
        shares
    }
}

/// Pearson's statistic of these counts against shares of these weights, over its 99.9999 % quantile by
/// Wilson and Hilferty: below 1 in all but one of a million runs.
fn chi_squared(counts: &[u32], weights: &[u32]) -> f64 {
    let (all, total) = (counts.iter().sum::<u32>(), weights.iter().sum::<u32>());
    let term = |(count, weight): (&u32, &u32)| {
        let expected = f64::from(all) * f64::from(*weight) / f64::from(total);
        (f64::from(*count) - expected).powi(2) / expected
    };
    let statistic: f64 = counts.iter().zip(weights).map(term).sum();
    let freedom = (counts.len() - 1) as f64;
    let part = 2.0 / (9.0 * freedom);
    statistic / (freedom * (1.0 - part + 4.753 * part.sqrt()).powi(3))
}

#[test]
fn new_connections_follow_weights() {
    let weights: Vec<u32> = (0..20).map(|n| 1 + n % 4).collect();
    for method in ["concury", "tracked", "jet", "residue", "cheetah", "cheetah-stateful"] {
        let mut world = World::new(method, "uniform", "connections", &weights);
        for six in [false, true] {
            world.six = six;
            let shares = world.shares(CONNECTIONS);
            let far = chi_squared(&shares, &weights);
            println!("{method}, IPv6 {six}: {far:.2} of the bound");
            assert!(far < 1.0, "{method}, IPv6 {six}: {far} times the bound: {shares:?}");
        }
    }
}

#[test]
fn turns_are_exact_over_a_cycle() {
    let weights: Vec<u32> = (0..20).map(|n| 1 + n % 7).collect();
    let cycle: u32 = weights.iter().sum();
    for method in ["tracked", "cheetah", "cheetah-stateful"] {
        for scheduler in ["wrr", "awrr"] {
            let mut world = World::new(method, scheduler, "told", &weights);
            // Some turns before, so that no cycle begins where the table does.
            world.shares(cycle / 3);
            let cycles = CONNECTIONS / cycle;
            let wanted: Vec<u32> = weights.iter().map(|weight| weight * cycles).collect();
            assert_eq!(world.shares(cycles * cycle), wanted, "{method} {scheduler}");
        }
        let mut world = World::new(method, "rr", "connections", &weights);
        world.shares(7);
        let each = CONNECTIONS / 20;
        assert_eq!(world.shares(CONNECTIONS), vec![each; 20], "{method} rr, weights aside");
    }
}

#[test]
fn choices_by_load_are_within_a_tenth_of_the_average() {
    for method in ["tracked", "cheetah"] {
        for scheduler in ["p2c", "least"] {
            let mut world = World::new(method, scheduler, "connections", &[1; 20]);
            let shares = world.shares(CONNECTIONS);
            let (average, most) = (CONNECTIONS / 20, shares.iter().copied().max().unwrap());
            assert!(most * 10 <= average * 11, "{method} {scheduler}: {shares:?}");
            if scheduler == "least" {
                assert_eq!(
                    shares,
                    vec![average; 20],
                    "{method}: nobody gets two more than another"
                );
            }
            for (backend, share) in (0..).zip(shares) {
                assert_eq!(
                    world.plane.load(BackendId::of(backend)).value,
                    i64::from(share),
                    "{method}"
                );
            }
        }
        // Twice the weight, twice the connections: loads are compared per weight.
        let weights: Vec<u32> = (0..20).map(|n| 1 + n % 2).collect();
        let shares = World::new(method, "least", "connections", &weights).shares(3_000);
        let wanted: Vec<u32> = weights.iter().map(|weight| weight * 100).collect();
        let off = shares.iter().zip(&wanted).map(|(is, wanted)| is.abs_diff(*wanted)).max();
        assert!(off <= Some(1), "{method}: {shares:?}");
    }
}

/// A backend whose connections have ended gets new ones, until it has as many as the others.
#[test]
fn ended_connections_make_room() {
    for method in ["tracked", "cheetah"] {
        let mut world = World::new(method, "least", "connections", &[1; 5]);
        let mut open: Vec<(FlowKey, u16)> = (0..500).map(|_| world.open()).collect();
        open.shuffle(&mut world.rng);
        let mut ended = 0;
        let (resets, fins) = (TcpFlags::RST.0, TcpFlags::FIN.0 | TcpFlags::ACK.0);
        for (flow, backend) in &open {
            if *backend == 3 && ended < 60 {
                ended += 1;
                if method == "cheetah" {
                    // The answer's FIN passes here, too, and tells it without a cookie.
                    let FlowKey { src, dst, src_port, dst_port, protocol } = *flow;
                    let back = FlowKey {
                        src: dst,
                        dst: src,
                        src_port: dst_port,
                        dst_port: src_port,
                        protocol,
                    };
                    world.send(back, fins);
                    world.send(back, fins);
                } else {
                    world.send(*flow, if ended % 2 == 0 { resets } else { fins });
                    world.send(*flow, fins);
                }
            }
        }
        assert_eq!(world.plane.load(BackendId::of(3)).value, 40, "{method}: each end counts once");
        assert_eq!(
            world.plane.open_connections(ServiceId(1)).unwrap()[&BackendId::of(3)],
            40,
            "{method}"
        );
        assert_eq!(world.shares(60), [0, 0, 0, 60, 0], "{method}");
    }
}

/// What is told decides, where it is told.
#[test]
fn the_least_loaded_gets_all_that_come() {
    for method in ["tracked", "cheetah"] {
        let mut world = World::new(method, "least", "told", &[1; 8]);
        for backend in 0..8 {
            world.plane.set_load(
                BackendId::of(backend),
                1,
                Some(if backend == 5 { 10 } else { 20 }),
            );
        }
        let shares = world.shares(100);
        assert_eq!(shares[5], 100, "{method}: {shares:?}");
        assert_eq!(world.plane.load(BackendId::of(5)).value, 10, "{method}: packets count nothing");
        // With two choices it gets those for which it was drawn: one in four.
        let mut world = World::new(method, "p2c", "told", &[1; 8]);
        world.plane.set_load(BackendId::of(5), 1, Some(-1_000));
        (0..8).filter(|b| *b != 5).for_each(|b| world.plane.set_load(BackendId::of(b), 1, Some(1)));
        let shares = world.shares(8_000);
        let far = chi_squared(&[shares[5], 8_000 - shares[5]], &[1, 3]);
        assert!(far < 1.0, "{method}: {shares:?}");
    }
}

/// A backend that has gone down since the table was made gets nothing new, and connections stay where
/// they are, whatever scheduler the next table has.
#[test]
fn connections_stay_and_new_ones_avoid_the_dead() {
    for scheduler in ["rr", "wrr", "p2c", "least"] {
        let mut world = World::new("tracked", scheduler, "connections", &[1, 2, 3, 4, 5, 6]);
        let open: Vec<(FlowKey, u16)> = (0..1_000).map(|_| world.open()).collect();
        let entry = world.plane.backend(BackendId::of(2)).with_health(false);
        world.plane.set_backend(BackendId::of(2), &entry).unwrap();
        assert_eq!(world.shares(500)[2], 0, "{scheduler}");
        for (flow, backend) in &open {
            assert_eq!(world.send(*flow, TcpFlags::ACK.0), Some(*backend), "{scheduler}");
        }
        // However few there are, and however little it has to do.
        let mut pair = World::new("tracked", scheduler, "connections", &[1, 1]);
        let other = pair.plane.backend(BackendId::of(1)).with_health(false);
        pair.plane.set_backend(BackendId::of(1), &other).unwrap();
        assert_eq!(pair.shares(500), [500, 0], "{scheduler}: of two");
        world.members.remove(0);
        world.publish();
        let gone = open.iter().filter(|(_, backend)| *backend != 0);
        for (flow, backend) in gone {
            assert_eq!(world.send(*flow, TcpFlags::ACK.0), Some(*backend), "{scheduler}");
        }
        world.members.clear();
        world.publish();
        let flow = world.client();
        assert_eq!(world.send(flow, TcpFlags::SYN.0), None, "{scheduler}: there is nobody");
    }
}
