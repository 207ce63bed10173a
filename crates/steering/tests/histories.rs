//! Long random histories over the real code. Every packet of a live flow must reach its backend;
//! and a balancer that does not remember must break as many flows as theory says.
//!
//! A history is made of its seed: `WEIR_SEED=n cargo test` repeats one.

#[path = "histories/world.rs"]
mod world;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use weir_steering::{
    Concury, ConcuryConfig, Member, Outcome, Plane, Role, SoftMemory, StateKey, VipKey,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};
use world::{Kind, World, state_hash};

/// The seed of this run: `WEIR_SEED`, or another one each time.
fn seed() -> u64 {
    let seed = std::env::var("WEIR_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    seed
}

/// TCP and UDP, IPv4 and IPv6, by flow and by client.
fn kinds(tracked: bool) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for wide in [false, true] {
            for client in [false, true] {
                kinds.push(Kind { protocol, wide, client, tracked });
            }
        }
    }
    kinds
}

fn nothing_breaks(tracked: bool, changes: u64) {
    let mut world = World::new(&kinds(tracked), seed());
    world.run(changes);
    let tally = &world.tally;
    println!("{tally:#?}");
    assert!(tally.packets > 20 * changes);
    assert_eq!(tally.violations, 0, "{:#?}", tally.examples);
    assert_eq!(tally.misplaced, 0, "new flows at backends that take none");
}

#[test]
fn concury_breaks_nothing() {
    nothing_breaks(false, 4_000);
}

#[test]
fn tracked_breaks_nothing() {
    nothing_breaks(true, 4_000);
}

/// The same history with a control plane that throws away what it is told.
#[test]
fn a_deaf_control_plane_breaks_connections() {
    let mut world = World::new(&kinds(false), seed());
    world.deaf = true;
    world.run(200);
    println!("{:?}", world.tally);
    let share = world.tally.violations as f64 / world.tally.packets as f64;
    assert!(share > 0.02, "only {share} of the packets went astray");
}

fn pool(weights: &[u32]) -> Vec<Member> {
    weights
        .iter()
        .enumerate()
        .map(|(backend, &weight)| Member {
            backend: backend as u16,
            name: format!("b{backend}"),
            weight,
            role: Role::Serving,
        })
        .collect()
}

fn config(seed: u64) -> ConcuryConfig {
    ConcuryConfig {
        bits: 12,
        client_affinity: false,
        udp: false,
        mark: false,
        capacity: 1000,
        max_states: 1_000_000,
        idle_seconds: 300,
        seed,
    }
}

/// Flow number `n` to 192.0.2.1:80.
fn flow(n: u32) -> FlowKey {
    let client = std::net::SocketAddr::from(((0x0a00_0000 | n >> 14).to_be_bytes(), n as u16 | 1));
    let client = std::net::SocketAddr::new(client.ip(), (n & 0x3fff) as u16 + 1024);
    FlowKey::new(client, ([192, 0, 2, 1], 80).into(), Protocol::Tcp)
}

fn plane(concury: &mut Concury, members: &[Member]) -> Plane {
    let (image, report) = concury.build(1, members, 0).unwrap();
    let mut plane = Plane { memory: SoftMemory::new(1_000_000, 1, 1), ..Plane::default() };
    let vip = VipKey { address: flow(0).dst, protocol: Protocol::Tcp, port: Some(80) };
    plane.vips.insert(vip, 0);
    plane.tables.insert(0, image);
    for (key, backend) in report.pinned {
        let state = weir_steering::ServiceState { service: 0, key };
        plane.memory.pinned.insert(state, backend);
    }
    plane
}

/// Chi-squared as a normal deviate (Wilson and Hilferty 1931).
fn deviate(chi_squared: f64, freedom: f64) -> f64 {
    let spread = 2.0 / (9.0 * freedom);
    ((chi_squared / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// New flows over backends, as likely as the weights say; none at those that drain, however many
/// states and reserved Dcodes there are.
#[test]
fn new_flows_follow_the_weights() {
    let seed = seed();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let flows = 60_000u32;
    for (states, draining) in [(0, 0), (10_000, 0), (10_000, 3), (50_000, 8)] {
        let mut concury = Concury::new(config(rng.random()));
        let mut members = pool(&[1, 1, 2, 3, 5, 8, 8, 8, 2, 2, 4, 4, 4, 4, 4, 4]);
        for n in 0..states {
            let backend = rng.random_range(0..members.len() as u16);
            concury.start(StateKey::of_flow(&flow(n)), backend, 0).unwrap();
        }
        for member in members.iter_mut().rev().take(draining) {
            member.role = Role::Draining;
        }
        let mut plane = plane(&mut concury, &members);
        for n in 0..flows {
            let frame = Frame::new(flow((1 << 30) + n)).tcp_flags(TcpFlags::SYN).build();
            assert!(matches!(plane.process(&frame), Outcome::Forwarded(_)));
        }
        let total: u32 = members.iter().map(Member::effective_weight).sum();
        let mut chi_squared = 0.0;
        for member in &members {
            let lane = plane.counters.lanes.get(&member.backend);
            let observed = lane.map_or(0, |lane| lane.flows);
            if member.effective_weight() == 0 {
                assert_eq!(observed, 0, "{} drains", member.name);
                continue;
            }
            let expected =
                f64::from(flows) * f64::from(member.effective_weight()) / f64::from(total);
            chi_squared += (observed as f64 - expected).powi(2) / expected;
        }
        let freedom = (members.len() - draining - 1) as f64;
        let sigma = deviate(chi_squared, freedom);
        println!(
            "{states} states, {draining} draining: chi-squared {chi_squared:.1} with {freedom} degrees, {sigma:+.2} sigma"
        );
        assert!(sigma < 5.0, "new flows do not follow the weights");
    }
}

/// Share of `flows` flows that change their backend, of those whose backend stays.
fn broken(flows: u32, before: impl Fn(&FlowKey) -> u16, after: impl Fn(&FlowKey) -> u16) -> f64 {
    let moved = (0..flows).filter(|&n| before(&flow(n)) != after(&flow(n))).count();
    moved as f64 / f64::from(flows)
}

/// What states are for. The DIP array alone, and a hash modulo the number of backends, break what
/// theory says; with states nothing breaks (above).
#[test]
fn without_states_flows_break_as_theory_says() {
    let seed = seed();
    let flows = 100_000;
    let mut results = BTreeMap::new();
    let mut compare = |name: &'static str, measured: f64, theory: f64| {
        // Six standard deviations of a share of 100,000 flows, and what rounding to 4,096 slots
        // and the cells of one table add.
        let band = 6.0 * (theory * (1.0 - theory) / f64::from(flows)).sqrt() + 0.004;
        println!("{name}: {measured:.4} of the flows break, theory {theory:.4} +- {band:.4}");
        results.insert(name, (measured - theory).abs() < band);
    };
    let image = |concury: &mut Concury, members: &[Member]| concury.build(1, members, 0).unwrap().0;
    let at = |image: &weir_steering::Image, flow: &FlowKey| {
        let code = image.view().unwrap().lookup(&StateKey::of_flow(flow));
        image.slots()[code as usize]
    };

    let mut concury = Concury::new(config(seed));
    let ten = image(&mut concury, &pool(&[1; 10]));
    let eleven = image(&mut concury, &pool(&[1; 11]));
    let share = broken(flows, |f| at(&ten, f), |f| at(&eleven, f));
    compare("DIP array, an eleventh backend", share, 1.0 / 11.0);

    let mut weights = [1; 10];
    weights[3] = 3;
    let mut concury = Concury::new(config(seed));
    let even = image(&mut concury, &pool(&[1; 10]));
    let uneven = image(&mut concury, &pool(&weights));
    let share = broken(flows, |f| at(&even, f), |f| at(&uneven, f));
    compare("DIP array, one weight tripled", share, 3.0 / 12.0 - 0.1);

    let modulo = |f: &FlowKey, n: u64| (state_hash(&ten, f) % n) as u16;
    let share = broken(flows, |f| modulo(f, 10), |f| modulo(f, 11));
    compare("hash modulo, an eleventh backend", share, 10.0 / 11.0);
    assert!(results.values().all(|&right| right), "{results:?}");
}
