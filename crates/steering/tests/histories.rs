//! Long random histories over the real code. Every packet of a live flow must reach its backend;
//! and a balancer that does not remember must break as many flows as theory says.
//!
//! A history is made of its seed: `WEIR_SEED=n cargo test` repeats one.

mod seed;
#[path = "histories/world.rs"]
mod world;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use weir_plane::{Outcome, Soft, VipKey};
use weir_steering::{
    BackendId, Codec, Concury, ConcuryConfig, Image, Member, Role, ServiceId, SoftMemory, StateKey,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};
use world::{Kind, Tally, World, state_hash};

/// TCP and UDP, IPv4 and IPv6, by flow and by client.
fn kinds(codec: Option<Codec>) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for wide in [false, true] {
            for client in [false, true] {
                kinds.push(Kind { protocol, wide, client, codec });
            }
        }
    }
    kinds
}

fn nothing_breaks(codec: Option<Codec>, changes: u64) -> Tally {
    let mut world = World::new(&kinds(codec), seed());
    world.run(changes);
    let tally = &world.tally;
    println!("{tally:#?}");
    assert!(tally.packets > 20 * changes);
    assert_eq!(tally.violations, 0, "{:#?}", tally.examples);
    assert_eq!(tally.misplaced, 0, "new flows at backends that take none");
    world.tally
}

#[test]
fn concury_breaks_nothing() {
    nothing_breaks(Some(Codec::Othello), 4_000);
}

/// And the flow hash stays, so that no flow looks new and no mark is lost, over all rebuilds.
#[test]
fn concury_with_a_fuse_breaks_nothing() {
    let tally = nothing_breaks(Some(Codec::Fuse), 2_500);
    assert_eq!(tally.rekeyed, 0, "the flow hash changed");
}

#[test]
fn tracked_breaks_nothing() {
    nothing_breaks(None, 4_000);
}

/// The same history with a control plane that throws away what it is told.
#[test]
fn a_deaf_control_plane_breaks_connections() {
    for (codec, least) in [(Codec::Othello, 0.02), (Codec::Fuse, 0.2)] {
        let mut world = World::new(&kinds(Some(codec)), seed());
        world.tables.deaf = true;
        world.run(200);
        println!("{codec:?}: {:?}", world.tally);
        let share = world.tally.violations as f64 / world.tally.packets as f64;
        assert!(share > least, "{codec:?}: only {share} of the packets went astray");
    }
}

fn pool(weights: &[u32]) -> Vec<Member> {
    weights
        .iter()
        .enumerate()
        .map(|(backend, &weight)| Member {
            backend: BackendId::of(backend as u16),
            name: format!("b{backend}"),
            weight,
            role: Role::Serving,
        })
        .collect()
}

const CODECS: [Codec; 2] = [Codec::Othello, Codec::Fuse];

fn config(codec: Codec, seed: u64) -> ConcuryConfig {
    ConcuryConfig::unbounded(codec, 12, seed)
}

/// Flow number `n` to 192.0.2.1:80.
fn flow(n: u32) -> FlowKey {
    let client = std::net::SocketAddr::from(((0x0a00_0000 | n >> 14).to_be_bytes(), n as u16 | 1));
    let client = std::net::SocketAddr::new(client.ip(), (n & 0x3fff) as u16 + 1024);
    FlowKey::new(client, ([192, 0, 2, 1], 80).into(), Protocol::Tcp)
}

fn plane(concury: &mut Concury, members: &[Member]) -> Soft {
    let (image, report) = concury.build(1, members, 0).unwrap();
    let mut plane = Soft::new(SoftMemory::new(1_000_000, 1, 1));
    let vip = VipKey { address: flow(0).dst, protocol: Protocol::Tcp, port: Some(80) };
    plane.vips.insert(vip, ServiceId(0));
    plane.tables.insert(ServiceId(0), image);
    for (key, backend) in report.pinned {
        let state = weir_steering::ServiceState { service: ServiceId(0), key };
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
    let cases = [(0, 0), (10_000, 0), (10_000, 3), (50_000, 8)];
    for (codec, (states, draining)) in CODECS.into_iter().flat_map(|c| cases.map(|case| (c, case)))
    {
        let mut concury = Concury::new(config(codec, rng.random()));
        let mut members = pool(&[1, 1, 2, 3, 5, 8, 8, 8, 2, 2, 4, 4, 4, 4, 4, 4]);
        for n in 0..states {
            let backend = rng.random_range(0..members.len() as u16);
            concury.start(StateKey::of_flow(&flow(n)), BackendId::of(backend), 0).unwrap();
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
            "{codec:?}, {states} states, {draining} draining: chi-squared {chi_squared:.1} with {freedom} degrees, {sigma:+.2} sigma"
        );
        assert!(sigma < 5.0, "new flows do not follow the weights");
    }
}

/// Share of `flows` flows that change their backend, of those whose backend stays.
fn broken(flows: u32, before: impl Fn(&FlowKey) -> u16, after: impl Fn(&FlowKey) -> u16) -> f64 {
    let moved = (0..flows).filter(|&n| before(&flow(n)) != after(&flow(n))).count();
    moved as f64 / f64::from(flows)
}

/// Whether a share of 100,000 flows is what theory says, within six standard deviations and what
/// rounding to 4,096 slots and the cells of one table add.
fn matches(name: &str, flows: u32, measured: f64, theory: f64) -> bool {
    let band = 6.0 * (theory * (1.0 - theory) / f64::from(flows)).sqrt() + 0.004;
    println!("{name}: {measured:.4} of the flows break, theory {theory:.4} +- {band:.4}");
    (measured - theory).abs() < band
}

fn image(concury: &mut Concury, members: &[Member]) -> std::sync::Arc<Image> {
    concury.build(1, members, 0).unwrap().0
}

/// The slot of a flow that is no state.
fn at(image: &Image, flow: &FlowKey) -> u16 {
    image.entry(state_hash(image, flow))
}

/// A pool of ten equal backends, and one with the fourth one's weight tripled.
fn ten_and_uneven() -> (Vec<Member>, Vec<Member>) {
    let mut weights = [1; 10];
    weights[3] = 3;
    (pool(&[1; 10]), pool(&weights))
}

/// What states are for. The DIP array alone, and a hash modulo the number of backends, break what
/// theory says; with states nothing breaks (above).
#[test]
fn without_states_flows_break_as_theory_says() {
    let seed = seed();
    let flows = 100_000;
    let mut concury = Concury::new(config(Codec::Othello, seed));
    let ten = image(&mut concury, &pool(&[1; 10]));
    let eleven = image(&mut concury, &pool(&[1; 11]));
    let share = broken(flows, |f| at(&ten, f), |f| at(&eleven, f));
    let mut right = matches("DIP array, an eleventh backend", flows, share, 1.0 / 11.0);

    let mut concury = Concury::new(config(Codec::Othello, seed));
    let (even, uneven) = ten_and_uneven();
    let (even, uneven) = (image(&mut concury, &even), image(&mut concury, &uneven));
    let share = broken(flows, |f| at(&even, f), |f| at(&uneven, f));
    right &= matches("DIP array, one weight tripled", flows, share, 3.0 / 12.0 - 0.1);

    let modulo = |f: &FlowKey, n: u64| (state_hash(&ten, f) % n) as u16;
    let share = broken(flows, |f| modulo(f, 10), |f| modulo(f, 11));
    right &= matches("hash modulo, an eleventh backend", flows, share, 10.0 / 11.0);
    assert!(right);
}

/// With a fuse a flow that is no state gets a new Dcode in every build, whether the pool changes
/// or not. If backends have the shares p before and q after, a flow stays with probability
/// p1 q1 + p2 q2 + ...: 10 x 1/10 x 1/11 when an eleventh backend joins, 1/10 when one of ten gets
/// another weight (for the q add up to 1), 1/10 when nothing changes.
#[test]
fn every_build_of_a_fuse_places_unknown_flows_anew() {
    let seed = seed();
    let flows = 100_000;
    let (even, uneven) = ten_and_uneven();
    let mut right = true;
    for states in [0, 30_000] {
        for (name, after, theory) in [
            ("an eleventh backend", &pool(&[1; 11]), 10.0 / 11.0),
            ("one weight tripled", &uneven, 0.9),
            ("nothing changed", &even, 0.9),
        ] {
            let mut concury = Concury::new(config(Codec::Fuse, seed));
            for n in 0..states {
                concury
                    .start(
                        StateKey::of_flow(&flow((1 << 29) + n)),
                        BackendId::of((n % 10) as u16),
                        0,
                    )
                    .unwrap();
            }
            let before = image(&mut concury, &even);
            let after = image(&mut concury, after);
            assert_eq!(before.header().key, after.header().key);
            let share = broken(flows, |f| at(&before, f), |f| at(&after, f));
            right &= matches(&format!("{states} states, {name}"), flows, share, theory);
            for (state, held) in concury.states() {
                let hash = weir_hash::Key::hash(state, &after.header().key);
                assert_eq!(after.entry(hash), held.backend.get(), "a state moved");
            }
        }
    }
    assert!(right);
}
