//! Random frames through the BPF program and the Rust pipeline: of a grammar, and blind. Both must do the same
//! with each, and count it once.
//!
//! `WEIR_FRAMES=n` sets how many, `WEIR_SEED=n` repeats a run.

#[path = "corpus/format.rs"]
#[allow(dead_code, reason = "cases are another test's")]
mod format;
#[path = "fuzz/grammar.rs"]
mod grammar;
#[path = "corpus/world.rs"]
#[allow(dead_code, reason = "cases are another test's")]
mod world;

use format::Setup;
use grammar::{Grammar, Targets};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use weir_plane::Outcome;
use weir_testbed::in_own_namespace;
use world::{Kernels, World};

/// Frames for which a plane stands: fewer flows than its tables have room for, so that none is evicted, of
/// which the planes choose others. Loading one takes as long as some 100,000 frames.
const ROUND: u64 = 400_000;
/// Flows that are tracked.
const ROOM: u32 = 1 << 19;

const BACKENDS: &str = r#"
backends = [
    { name = "plain", address = "192.0.2.10", mac = "02:00:00:01:00:01", source_mac = "02:00:00:00:00:09" },
    { name = "ipip", address = "203.0.113.7", mac = "02:00:00:01:00:02", source_mac = "02:00:00:00:00:09", tunnel = { kind = "ipip", source = "198.51.100.0", spread = 8 } },
    { name = "gre", address = "2001:db8:2::7", mac = "02:00:00:01:00:03", source_mac = "02:00:00:00:00:09", tunnel = { kind = "gre", source = "2001:db8:1::1", mtu = 150 } },
    { name = "fou", address = "2001:db8:2::7", mac = "02:00:00:01:00:04", source_mac = "02:00:00:00:00:09", tunnel = { kind = "fou", source = "2001:db8:1::1", port = 5555 } },
    { name = "gue", address = "203.0.113.7", mac = "02:00:00:01:00:05", source_mac = "02:00:00:00:00:09", tunnel = { kind = "gue", source = "198.51.100.0", port = 6080 } },
]
"#;

const METHODS: [&str; 6] = ["concury", "tracked", "jet", "residue", "cheetah", "cheetah-stateful"];

/// A service of each method, family and protocol.
fn setup() -> Setup {
    let mut text = BACKENDS.to_owned() + "services = [\n";
    let pool = r#"backends = ["plain", "ipip", "gre", "fou", "gue"]"#;
    for (at, method) in METHODS.iter().enumerate() {
        for (protocol, port) in [("tcp", 80), ("udp", 443)] {
            for address in [format!("10.9.0.{at}"), format!("fd09::{at}")] {
                // The first ones are led by ids.
                let ids = if protocol == "udp" && at == 0 {
                    r#", ids = [{ config = 0, server_id = 3, nonce = 4, servers = { "01aabb" = "plain", "02aabb" = "gue" } }]"#
                } else {
                    ""
                };
                text += &format!(
                    "{{ address = \"{address}\", protocol = \"{protocol}\", port = {port}, \
                     method = \"{method}\", {pool}{ids} }},\n"
                );
            }
        }
    }
    toml::from_str(&(text + "]\n")).expect("it is a set-up")
}

fn from_environment(name: &str, default: impl FnOnce() -> u64) -> u64 {
    let value = std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or_else(default);
    println!("{name}={value}");
    value
}

/// Any bytes; mostly behind an EtherType of IP, and the version that belongs there.
fn blind(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let length = rng.random_range(14..200);
    let mut frame: Vec<u8> = (0..length).map(|_| rng.random()).collect();
    let v4: bool = rng.random();
    if rng.random_ratio(7, 8) {
        frame[12..14].copy_from_slice(if v4 { &[8, 0] } else { &[0x86, 0xdd] });
        if let Some(first) = frame.get_mut(14) {
            *first = *first & 15 | if v4 { 0x40 } else { 0x60 };
        }
    }
    frame
}

#[test]
fn random_frames_are_treated_alike_and_counted_once() {
    let frames = from_environment("WEIR_FRAMES", || 200_000);
    let seed = from_environment("WEIR_SEED", rand::random);
    in_own_namespace(|| {
        let setup = setup();
        let address = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let mut addresses: Vec<_> = setup.services.iter().map(|one| address(one.address)).collect();
        addresses.push(vec![10, 9, 9, 9]);
        let targets = Targets { addresses, tcp: 80, udp: 443 };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        let (mut done, mut spent) = (0, Duration::ZERO);
        while done < frames {
            let mut kernels = Kernels::with_room(ROOM);
            let kernel = kernels.of(&setup).expect("it loads");
            let mut world = World::new(kernel, &setup);
            let begin = Instant::now();
            for frame in 1..=ROUND.min(frames - done) {
                let bytes = match frame % 4 {
                    0 => blind(&mut rng),
                    _ => Grammar { rng: &mut rng, targets: &targets }.frame(),
                };
                let outcome = world.compare(&bytes);
                let outcome =
                    outcome.unwrap_or_else(|e| panic!("frame {}: {e}: {bytes:02x?}", done + frame));
                let name = match outcome {
                    Outcome::Forwarded(_) => "forwarded".to_owned(),
                    Outcome::Returned => "returned".to_owned(),
                    Outcome::Passed(reason) => format!("passed {reason}"),
                    Outcome::Dropped(reason) => format!("dropped {reason}"),
                };
                *seen.entry(name).or_default() += 1;
                if frame % 512 == 0 {
                    world.drain();
                    let counted = world.compare_counters().unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(counted, frame, "each frame is counted once");
                }
            }
            done += ROUND.min(frames - done);
            spent += begin.elapsed();
        }
        let rate = done as f64 / spent.as_secs_f64();
        println!("{done} frames, {rate:.0} a second, no difference; WEIR_SEED={seed}");
        seen.iter().for_each(|(name, count)| println!("{count:>9} {name}"));
        assert!(frames < 100_000 || seen.len() > 25, "{} outcomes", seen.len());
    })
    .expect("needs root");
}
