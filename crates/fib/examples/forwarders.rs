//! The forwarders side by side: memory, lookups, messages, construction (docs/fib.md).
//!
//! `cargo run --release -p weir-fib --example forwarders [KEYS]`

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::Instant;
use weir_fib::{
    Bfw, Cfw, ContentName, Control, FibKey, Gateway, Host, LudoFib, Mac, Network, Ofw, Plane,
    Topology,
};

/// Nodes of the network, as in the dissertation.
const NODES: usize = 318;

/// Changes that are measured, of each kind.
const CHANGES: u64 = 100_000;

/// Data planes that are built together.
const TOGETHER: usize = 20;

/// Longer messages hold a whole data plane; they are not counted among the lengths.
const WHOLE: usize = 16 << 10;

/// The node whose data plane is measured: the first one has the most links.
const NODE: usize = 0;

fn any_host(network: &Network, rng: &mut ChaCha8Rng) -> Host {
    Host { node: rng.random_range(0..network.nodes()) as u16, slot: 0 }
}

/// Millions of lookups per second, median of five.
fn rate<K: FibKey>(plane: &impl Plane<K>, keys: &[K]) -> f64 {
    let mut out = vec![None; 256];
    let mut rates: Vec<f64> = (0..5)
        .map(|_| {
            let started = Instant::now();
            for keys in keys.chunks_exact(out.len()) {
                plane.ports(keys, &mut out);
                std::hint::black_box(&out);
            }
            keys.len() as f64 / started.elapsed().as_secs_f64() / 1e6
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[2]
}

/// Bytes of a message without its envelope, and thousands of changes per second: made at the
/// control plane, written, read and applied at one node.
fn changes<K: FibKey, C: Control<K>>(
    control: &mut C,
    plane: &mut C::Plane,
    mut change: impl FnMut(&mut C, u64),
) -> (f64, f64) {
    let (mut bytes, mut messages) = (0, 0);
    let started = Instant::now();
    for n in 0..CHANGES {
        change(control, n);
        if let Some(message) = control.message(NODE) {
            if message.len() < WHOLE {
                (bytes, messages) = (bytes + message.len() - weir_fib::ENVELOPE, messages + 1);
            }
            plane.apply(&message).expect("the next message");
        }
    }
    let rate = CHANGES as f64 / started.elapsed().as_secs_f64() / 1e3;
    (bytes as f64 / f64::from(messages.max(1)), rate)
}

fn measure<K: FibKey, C: Control<K>>(what: &str, mut control: C, keys: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let started = Instant::now();
    for n in 0..keys {
        let host = any_host(control.network(), &mut rng);
        control.insert(K::numbered(0, n), host).expect("room");
    }
    let control_s = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let mut plane = control.build(NODE);
    let plane_s = started.elapsed().as_secs_f64();
    let many: Vec<usize> = (0..TOGETHER).collect();
    let started = Instant::now();
    drop(control.build_many(&many));
    let each_s = started.elapsed().as_secs_f64() / TOGETHER as f64;
    let bits = plane.bytes() as f64 * 8.0 / keys as f64;
    let mut asked: Vec<K> = (0..keys).map(|n| K::numbered(0, n)).collect();
    asked.shuffle(&mut rng);
    asked.truncate(2_000_000);
    let valid = rate(&plane, &asked);
    let aliens: Vec<K> = (0..asked.len() as u64).map(|n| K::numbered(1, n)).collect();
    let alien = rate(&plane, &aliens);
    let mut out = vec![None; aliens.len()];
    plane.ports(&aliens, &mut out);
    let passed = out.iter().flatten().count() as f64 / out.len() as f64;
    let (add, add_rate) = changes(&mut control, &mut plane, |control, n| {
        let host = any_host(control.network(), &mut rng);
        control.insert(K::numbered(0, keys + n), host).expect("room");
    });
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let (moved, move_rate) = changes(&mut control, &mut plane, |control, n| {
        let host = any_host(control.network(), &mut rng);
        control.insert(K::numbered(0, n * 7 % keys), host).expect("room");
    });
    let (gone, gone_rate) = changes(&mut control, &mut plane, |control, n| {
        control.remove(&K::numbered(0, n));
    });
    println!(
        "{what:<16} {bits:>7.2} {valid:>7.1} {alien:>7.1} {passed:>9.5} {control_s:>7.2} \
         {plane_s:>7.3} {each_s:>7.3} {:>7.1} {add:>6.1} {moved:>6.1} {gone:>6.1} {add_rate:>6.0} {move_rate:>6.0} \
         {gone_rate:>6.0}",
        control.control_bytes() as f64 / keys as f64,
    );
}

fn all<K: FibKey>(network: &Arc<Network>, keys: u64) {
    println!(
        "\n{} {} keys, {} nodes, ports of {} bits\n{:<16} {:>7} {:>7} {:>7} {:>9} {:>7} {:>7} {:>7} {:>7} \
         {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}",
        keys,
        K::NAME,
        network.nodes(),
        network.port_bits(),
        "",
        "bits/k",
        "valid",
        "alien",
        "passed",
        "ctl s",
        "plane s",
        "each s",
        "ctl B/k",
        "add B",
        "move B",
        "del B",
        "add K",
        "move K",
        "del K"
    );
    let room = (keys + CHANGES) as usize;
    let net = || Arc::clone(network);
    measure::<K, _>("OFW, f = 0", Ofw::new(net(), 0, room, 1), keys);
    measure::<K, _>("OFW, f = 8", Ofw::new(net(), 8, room, 1), keys);
    measure::<K, _>("CFW, f = 8", Cfw::new(net(), 8, room, 1), keys);
    measure::<K, _>("CFW, f = 13", Cfw::new(net(), 13, room, 1), keys);
    measure::<K, _>("Ludo", LudoFib::new(net(), room, 1).expect("a table"), keys);
    measure::<K, _>("BFW, 16 bits", Bfw::new(net(), 16.0, room, 1), keys);
    measure::<K, _>("gateway", Gateway::new(net(), room, 1), keys);
}

fn main() {
    let keys = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let network = Arc::new(Network::new(Topology::isp(NODES, 1), 1));
    all::<Mac>(&network, keys);
    let overlay = Arc::new(Network::new(Topology::full_mesh(NODES), 1));
    all::<ContentName>(&overlay, keys);
}
