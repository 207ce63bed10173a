//! After any history of keys that come, go and move, every node forwards every valid key as
//! Dijkstra says, and a data plane fed with messages is one that is built whole.

use crate::common::{World, network, seed};
use std::fmt::Debug;
use std::hash::Hash;
use weir_fib::{
    Bfw, Cfw, ContentName, Control, FibKey, Flow, Gateway, Host, Ipv4, Ipv6, LudoFib, Mac, Ofw,
    Plane, Url,
};

fn history<K: FibKey + Hash + Debug, C: Control<K>>(control: C, seed: u64) -> World<K, C> {
    let mut world = World::new(control, seed);
    for phase in 0..4 {
        // Growth past the first capacity, then shrinking, then as many as leave.
        let growth = [0.9, 0.2, 0.8, 0.34][phase];
        for _ in 0..3000 {
            world.step(growth);
        }
        world.check_all();
    }
    println!(
        "{} {}: {} keys, {} messages of {:.1} bytes, {} not needed",
        C::NAME,
        K::NAME,
        world.known.len(),
        world.sent,
        world.sent_bytes as f64 / world.sent as f64,
        world.unsent
    );
    world
}

fn ofw<K: FibKey + Hash + Debug>(seed: u64) {
    let network = network(30, seed);
    let mut world = history(Ofw::<K>::new(network, 8, 2000, seed), seed);
    for (node, plane) in world.planes.clone() {
        let built = world.control.build(node);
        assert!(plane.agrees_with(&built, world.known.iter().copied()));
    }
}

fn cfw<K: FibKey + Hash + Debug>(seed: u64) {
    let network = network(30, seed);
    // Digests of six bits: level 2 gets much to do.
    let mut world = history(Cfw::<K>::new(network, 6, 1000, seed), seed);
    assert!(world.control.level2_len() > 50);
    for (node, plane) in world.planes.clone() {
        assert!(plane.same_as(&world.control.build(node)), "node {node}");
    }
}

#[test]
fn ofw_for_every_kind_of_key() {
    let seed = seed();
    ofw::<Mac>(seed);
    ofw::<Ipv4>(seed);
    ofw::<Ipv6>(seed);
    ofw::<Flow>(seed);
    ofw::<ContentName>(seed);
    ofw::<Url>(seed);
}

#[test]
fn cfw_for_every_kind_of_key() {
    let seed = seed();
    cfw::<Mac>(seed);
    cfw::<Ipv4>(seed);
    cfw::<Ipv6>(seed);
    cfw::<Flow>(seed);
    cfw::<ContentName>(seed);
    cfw::<Url>(seed);
}

#[test]
fn ludo_and_gateways() {
    let seed = seed();
    let net = network(30, seed);
    history::<Mac, _>(LudoFib::new(net.clone(), 1000, seed).unwrap(), seed);
    history::<ContentName, _>(LudoFib::new(net.clone(), 1000, seed).unwrap(), seed);
    history::<Mac, _>(Gateway::new(net.clone(), 1000, seed), seed);
    history::<Url, _>(Gateway::new(net, 1000, seed), seed);
}

/// BFW never loses a key, and takes the wrong port as seldom as its filters let expect.
#[test]
fn bfw_holds_every_key_at_the_right_port() {
    let seed = seed();
    let mut world = World::<Mac, _>::new(Bfw::new(network(30, seed), 16.0, 1000, seed), seed);
    for growth in [0.9, 0.2, 0.95, 0.34] {
        (0..3000).for_each(|_| world.step(growth));
        for (node, plane) in &world.planes {
            for key in &world.known {
                let port = world.control.network().port(*node, world.model[key]);
                assert!(plane.holds(port, key));
                assert!(plane.port(key).is_some_and(|found| found <= port));
            }
        }
    }
    let (mut asked, mut wrong, mut expected) = (0, 0, 0.0);
    for node in 0..30 {
        let built = world.control.build(node);
        let (all, right) = world.right(node, &built);
        asked += all;
        wrong += all - right;
        expected += all as f64 * world.control.collision_rate(node);
    }
    println!("{wrong} of {asked} lookups wrong, {expected:.1} expected");
    let spread = 6.0 * expected.sqrt() + 6.0;
    assert!((wrong as f64 - expected).abs() < spread);
}

/// Lost, swapped, repeated, damaged and other nodes' messages are refused and change nothing.
fn refuses<K: FibKey + Hash + Debug, C: Control<K>>(control: C, seed: u64) {
    use rand::Rng;
    let mut world = World::new(control, seed);
    (0..800).for_each(|_| world.step(0.8));
    let node = world.planes[1].0;
    let mut plane = world.planes[1].1.clone();
    let mut messages = Vec::new();
    while messages.len() < 12 {
        let key = K::numbered(1, messages.len() as u64 % 6);
        let host = crate::common::any_host(world.control.network(), &mut world.rng);
        if messages.len() < 9 {
            world.control.insert(key, host).unwrap();
        } else {
            world.control.remove(&key);
        }
        messages.extend(world.control.message(node));
        // The others get theirs; nobody listens.
        (0..world.control.network().nodes()).filter(|&other| other != node).for_each(|other| {
            world.control.message(other);
        });
    }
    let keys: Vec<K> = (0..400).map(|n| K::numbered(2, n)).chain(world.known.clone()).collect();
    let answers = |plane: &C::Plane| {
        let mut out = vec![None; keys.len()];
        plane.ports(&keys, &mut out);
        out
    };
    let mut foreign = world.planes[0].1.clone();
    for (at, message) in messages.iter().enumerate() {
        let before = answers(&plane);
        if let Some(later) = messages.get(at + 1) {
            assert!(plane.apply(later).is_err(), "a message is missing");
        }
        for _ in 0..200 {
            let mut damaged = message.clone();
            let bit = world.rng.random_range(0..damaged.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(plane.apply(&damaged).is_err(), "{} bit {bit}", C::NAME);
            assert!(plane.apply(&message[..bit / 8]).is_err(), "{} cut", C::NAME);
        }
        assert_eq!(answers(&plane), before);
        plane.apply(message).unwrap();
        let after = answers(&plane);
        assert!(plane.apply(message).is_err(), "a message that came twice");
        assert_eq!(answers(&plane), after);
    }
    if C::NAME != "Ludo" {
        assert!(foreign.apply(&messages[0]).is_err(), "another node's message");
    }
}

#[test]
fn bad_messages_are_refused_and_change_nothing() {
    let seed = seed();
    let net = network(20, seed);
    refuses::<Mac, _>(Ofw::new(net.clone(), 8, 2000, seed), seed);
    refuses::<Mac, _>(Cfw::new(net.clone(), 6, 2000, seed), seed);
    refuses::<Mac, _>(Bfw::new(net.clone(), 16.0, 2000, seed), seed);
    refuses::<Mac, _>(Gateway::new(net.clone(), 2000, seed), seed);
    refuses::<Mac, _>(LudoFib::new(net.clone(), 2000, seed).unwrap(), seed);
    refuses::<Url, _>(Cfw::new(net, 6, 2000, seed), seed);
}

/// A forger who can seal messages gets nothing worse than wrong answers: no panic, no mischief
/// with memory.
#[test]
fn sealed_nonsense_does_no_harm() {
    use rand::Rng;
    use weir_lookup::message::{Message, seal};
    fn forge<C: Control<Mac>>(control: C, seed: u64) {
        let mut world = World::<Mac, _>::new(control, seed);
        (0..300).for_each(|_| world.step(0.8));
        let (node, plane) = (world.planes[0].0, world.planes[0].1.clone());
        for round in 0..3 {
            let host = Host { node: 3 * round, slot: 0 };
            world.control.insert(Mac::numbered(1, 1), host).unwrap();
            let Some(message) = world.control.message(node) else { continue };
            let Message { kind, table, number, body } = Message::read(&message).unwrap();
            let number = number - u64::from(round);
            for _ in 0..20_000 {
                let mut forged = body.to_vec();
                for _ in 0..world.rng.random_range(1..4) {
                    let at = world.rng.random_range(0..forged.len());
                    forged[at] = world.rng.random();
                }
                let mut victim = plane.clone();
                let _ = victim.apply(&seal(kind, table, number, &forged));
                victim.port(&Mac::numbered(0, 1));
            }
        }
    }
    let seed = seed();
    let net = network(20, seed);
    forge(Ofw::new(net.clone(), 8, 500, seed), seed);
    forge(Cfw::new(net.clone(), 6, 500, seed), seed);
    forge(Gateway::new(net.clone(), 500, seed), seed);
}
