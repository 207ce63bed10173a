//! Random frames through the BPF program and the Rust pipeline: of a grammar, and blind. Both must do the same
//! with each, and count it once.
//!
//! `WEIR_FRAMES=n` sets how many, `WEIR_SEED=n` repeats a run, and `WEIR_ROUND=n` begins with this round of it, which
//! needs none of those before. Counters are compared now and then; from the frame `WEIR_EACH=n` on they are after each
//! one, which names the one that is counted otherwise.

#[path = "corpus/format.rs"]
#[allow(dead_code, reason = "cases are another test's")]
mod format;
#[path = "fuzz/grammar.rs"]
mod grammar;
#[path = "fuzz/services.rs"]
mod services;
#[path = "corpus/world.rs"]
#[allow(dead_code, reason = "cases are another test's")]
mod world;

use grammar::{Ends, Grammar, Targets};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use weir_plane::Outcome;
use weir_plane_burst::BURST;
use weir_testbed::in_own_namespace;
use weir_wire::Protocol;
use world::{Kernels, World};

/// Frames for which a plane stands: fewer flows than its tables have room for, so that none is evicted, of
/// which the planes choose others. Loading one takes as long as some 100,000 frames.
const ROUND: u64 = 400_000;
/// Flows that are tracked.
const ROOM: u32 = 1 << 19;

/// Ticks by which connections under full NAT become older, so that some of each kind have had their time.
const TICKS: [u32; 4] = [12_000, 22_000, 32_000, 42_000];

/// The frames of a round are drawn by the seed and its number: what it finds can be had again without the others.
fn rng_of(seed: u64, round: u64, done: u64) -> ChaCha8Rng {
    println!("WEIR_SEED={seed} WEIR_ROUND={round}, after {done} frames without a difference");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(round);
    rng
}

fn from_environment(name: &str, default: impl FnOnce() -> u64) -> u64 {
    let value = std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or_else(default);
    println!("{name}={value}");
    value
}

/// Any bytes; mostly behind an EtherType of IP, and the version that belongs there, and now and then for an
/// address of a service, or from one of a backend.
fn blind(rng: &mut ChaCha8Rng, targets: &Targets) -> Vec<u8> {
    let length = rng.random_range(14..200);
    let mut frame: Vec<u8> = (0..length).map(|_| rng.random()).collect();
    let v4: bool = rng.random();
    if rng.random_ratio(7, 8) {
        frame[12..14].copy_from_slice(if v4 { &[8, 0] } else { &[0x86, 0xdd] });
        if let Some(first) = frame.get_mut(14) {
            *first = *first & 15 | if v4 { 0x40 } else { 0x60 };
        }
        let mut put = |at: usize, address: &[u8]| {
            let alike = (address.len() == 4) == v4;
            if let Some(place) = frame.get_mut(at..at + address.len()).filter(|_| alike) {
                place.copy_from_slice(address);
            }
        };
        let (src, dst) = if v4 { (26, 30) } else { (22, 38) };
        if rng.random_ratio(1, 4) {
            put(dst, targets.addresses.choose(rng).expect("there are some"));
        } else if rng.random_ratio(1, 8) {
            put(src, &targets.senders.choose(rng).expect("there are some").0);
        }
    }
    frame
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// An answer to a connection under full NAT, if there is one.
fn mapped(world: &World<'_>, from: usize) -> Option<Ends> {
    let (mapping, backend, listens) = world.mapped(from)?;
    let protocol = match mapping.flow.protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    };
    Some(Ends {
        src: octets(backend),
        dst: octets(world.origin(mapping.origin)?),
        ports: Some([listens, mapping.port]),
        protocol: Some(protocol),
        away: true,
    })
}

/// A frame of the grammar, or in one case of four a blind one.
fn next_frame(number: u64, rng: &mut ChaCha8Rng, targets: &Targets, world: &World<'_>) -> Vec<u8> {
    match number % 4 {
        0 => blind(rng, targets),
        _ => {
            let mapped = mapped(world, rng.random_range(0..1 << 16));
            Grammar { rng, targets, mapped }.frame()
        }
    }
}

/// The burst plane over rings of DPDK (over memory, if the tests are built without DPDK): bursts of these frames
/// leave with the bytes, the fates and the counts that the pipeline gives each by itself.
#[test]
fn random_bursts_over_rings_are_what_the_pipeline_makes_of_each_frame() {
    let frames = from_environment("WEIR_FRAMES", || 100_000);
    let seed = from_environment("WEIR_SEED", rand::random);
    let first = from_environment("WEIR_ROUND", || 0);
    in_own_namespace(|| {
        let (mut done, mut forwarded, mut bursts) = (0, 0, 0u64);
        for round in first.. {
            if done >= frames {
                break;
            }
            let mut rng = rng_of(seed, round, done);
            let mut kernels = Kernels::with_room(ROOM);
            let (setup, targets) = services::setup(true, true);
            let mut world = World::new(kernels.of(&setup).expect("it loads"), &setup);
            let end = done + ROUND.min(frames - done);
            while done < end {
                let burst: Vec<Vec<u8>> = (0..rng.random_range(1..=BURST as u64))
                    .map(|at| next_frame(done + at, &mut rng, &targets, &world))
                    .collect();
                let outcomes = world.compare_burst(&burst);
                let outcomes = outcomes.unwrap_or_else(|e| panic!("after {done} frames: {e}"));
                let is_forwarded = |one: &&Outcome| matches!(one, Outcome::Forwarded(_));
                forwarded += outcomes.iter().filter(is_forwarded).count() as u64;
                done += burst.len() as u64;
                bursts += 1;
                if bursts % 32 == 0 {
                    let same = world.compare_memory();
                    same.unwrap_or_else(|e| panic!("after {done} frames: {e}"));
                }
                if bursts % 256 == 0 {
                    let ticks = *TICKS.choose(&mut rng).expect("there are some");
                    world.pass_time_in_memory(ticks, services::INTERVAL);
                }
            }
        }
        println!("{done} frames in {bursts} bursts, {forwarded} forwarded, no difference");
        assert!(forwarded * 100 > done, "only {forwarded} of {done} went to backends");
    })
    .expect("needs root");
}

#[test]
fn random_frames_are_treated_alike_and_counted_once() {
    let frames = from_environment("WEIR_FRAMES", || 200_000);
    let seed = from_environment("WEIR_SEED", rand::random);
    let each = from_environment("WEIR_EACH", || u64::MAX);
    let first = from_environment("WEIR_ROUND", || 0);
    in_own_namespace(|| {
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        let (mut done, mut spent) = (0, Duration::ZERO);
        for round in first.. {
            if done >= frames {
                break;
            }
            let mut rng = rng_of(seed, round, done);
            let mut kernels = Kernels::with_room(ROOM);
            Kernels::add_clients();
            // In every second one nothing is translated, and nothing has a prefix: the program asks less then. In the
            // first two of four the balancer answers itself.
            let (setup, targets) = services::setup(round % 2 == 0, round % 4 < 2);
            let kernel = kernels.of(&setup).expect("it loads");
            let mut world = World::new(kernel, &setup);
            let begin = Instant::now();
            for frame in 1..=ROUND.min(frames - done) {
                let number = round * ROUND + frame;
                let bytes = next_frame(frame, &mut rng, &targets, &world);
                let outcome = world.compare(&bytes);
                let outcome =
                    outcome.unwrap_or_else(|e| panic!("frame {number}: {e}: {bytes:02x?}"));
                let name = match outcome {
                    Outcome::Forwarded(_) => "forwarded".to_owned(),
                    Outcome::Returned => "returned".to_owned(),
                    Outcome::Passed(reason) => format!("passed {reason}"),
                    Outcome::Dropped(reason) => format!("dropped {reason}"),
                };
                *seen.entry(name).or_default() += 1;
                if number >= each {
                    let counted = world.compare_counters();
                    counted.unwrap_or_else(|e| panic!("frame {number}: {e}: {bytes:02x?}"));
                }
                if frame % 512 == 0 {
                    world.drain();
                    let counted = world.compare_counters().unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(counted, frame, "each frame is counted once");
                }
                if frame % 8192 == 0 {
                    world.pass_time(*TICKS.choose(&mut rng).expect("there are some"));
                    world.fill_buckets(services::INTERVAL);
                }
            }
            done += ROUND.min(frames - done);
            spent += begin.elapsed();
        }
        let rate = done as f64 / spent.as_secs_f64();
        println!("{done} frames, {rate:.0} a second, no difference; WEIR_SEED={seed}");
        seen.iter().for_each(|(name, count)| println!("{count:>9} {name}"));
        // A round by itself may be one without translation, or without messages.
        let few = frames < 100_000 || first > 0;
        assert!(few || seen.len() > 25, "{} outcomes", seen.len());
        // What only some services do.
        for name in [
            "returned",
            "dropped denied_source",
            "dropped new_flow_cap",
            "dropped source_flow_cap",
            "dropped no_mapping",
            "dropped later_fragment",
            "dropped bad_sctp_chunk",
            // And what the balancer answers itself.
            "dropped echo_answered",
            "dropped reset_sent",
            "dropped dead_backend",
            "dropped ttl_told",
            "dropped too_big_told",
        ] {
            let times = seen.get(name).copied().unwrap_or(0);
            assert!(few || times > 0, "{name} never happened");
        }
    })
    .expect("needs root");
}
