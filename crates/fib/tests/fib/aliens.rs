//! Keys that are not in the network: how many get a port, and that valid keys are none of them.

use crate::common::{any_host, network, seed};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use weir_fib::{Bfw, Cfw, ContentName, Control, FibKey, Gateway, Mac, Network, Ofw, Plane};

fn filled<K: FibKey, C: Control<K>>(mut control: C, keys: u64, seed: u64) -> C {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for n in 0..keys {
        let host = any_host(control.network(), &mut rng);
        control.insert(K::numbered(0, n), host).unwrap();
    }
    control
}

/// The share of alien keys that get a port.
fn passed<K: FibKey>(plane: &impl Plane<K>, aliens: u64) -> f64 {
    let mut out = vec![None; 4096];
    let mut count = 0;
    for start in (0..aliens).step_by(4096) {
        let keys: Vec<K> = (start..start + 4096).map(|n| K::numbered(1, n)).collect();
        plane.ports(&keys, &mut out);
        count += out.iter().flatten().count();
    }
    count as f64 / (aliens.div_ceil(4096) * 4096) as f64
}

#[test]
fn ofw_passes_as_many_as_equation_3_9_says() {
    let seed = seed();
    let net = network(50, seed);
    for bits in [0, 4, 7] {
        let mut control =
            filled::<Mac, _>(Ofw::new(net.clone(), bits, 200_000, seed), 200_000, seed);
        let rate = passed::<Mac>(&control.build(7), 8_000_000);
        let expected = control.false_positive_rate();
        println!("f = {bits}: {rate:.6}, equation 3.9 {expected:.6}");
        assert!((rate / expected - 1.0).abs() < 0.05);
    }
}

#[test]
fn cfw_passes_as_many_as_equation_3_8_says() {
    let seed = seed();
    let net = network(50, seed);
    for bits in [6, 8, 10] {
        let mut control =
            filled::<Mac, _>(Cfw::new(net.clone(), bits, 200_000, seed), 200_000, seed);
        let rate = passed(&control.build(7), 4_000_000);
        // The equation itself: load of level 1 is r_l E.
        let load = control.load();
        let expected = 1.0 - (1.0 - 0.5f64.powi(bits as i32)).powf(load * 8.0);
        let exact = control.false_positive_rate();
        let level2 = control.level2_len();
        println!("f = {bits}: {rate:.6}, 3.8 {expected:.6}, ours {exact:.6}, level 2 {level2}");
        assert!((rate / exact - 1.0).abs() < 0.05);
        assert!((rate / expected - 1.0).abs() < 0.05);
    }
}

#[test]
fn bfw_passes_as_many_as_its_filters_say() {
    let seed = seed();
    let mut control =
        filled::<Mac, _>(Bfw::new(network(20, seed), 10.0, 100_000, seed), 100_000, seed);
    let plane = control.build(2);
    let (rate, expected) = (passed(&plane, 1_000_000), control.false_positive_rate(2));
    println!("{rate:.5}, equation 3.7 {expected:.5}");
    assert!((rate / expected - 1.0).abs() < 0.1);
}

#[test]
fn gateways_let_no_alien_pass() {
    let seed = seed();
    let mut control =
        filled::<ContentName, _>(Gateway::new(network(20, seed), 20_000, seed), 20_000, seed);
    assert_eq!(passed(&control.build(0), 200_000), 0.0);
}

/// Every one of ten million valid keys gets its own port: none is shadowed by another's digest.
#[test]
fn no_key_of_ten_million_is_shadowed() {
    const KEYS: u64 = 10_000_000;
    let seed = seed();
    let net = network(20, seed);
    let port = |net: &Network, n: u64| {
        let node = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % net.nodes() as u64;
        weir_fib::Host { node: node as u16, slot: (n % u64::from(net.slots())) as u16 }
    };
    let mut control = Cfw::<Mac>::new(net.clone(), 13, KEYS as usize, seed);
    for n in 0..KEYS {
        control.insert(Mac::numbered(0, n), port(&net, n)).unwrap();
    }
    let (node, plane) = (5, control.build(5));
    println!(
        "{} keys in level 2, load {:.3}, plane {:.2} B per key, control {:.1} B per key",
        control.level2_len(),
        control.load(),
        Plane::<Mac>::bytes(&plane) as f64 / KEYS as f64,
        control.control_bytes() as f64 / KEYS as f64,
    );
    drop(control);
    let mut out = vec![None; 10_000];
    for start in (0..KEYS).step_by(out.len()) {
        let keys: Vec<Mac> =
            (start..start + out.len() as u64).map(|n| Mac::numbered(0, n)).collect();
        plane.ports(&keys, &mut out);
        for (n, found) in (start..).zip(&out) {
            assert_eq!(*found, Some(net.port(node, port(&net, n))), "key {n}");
        }
    }
}
