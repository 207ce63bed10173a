//! Bursts in user space: the same answers as `decide`, one at a time and in bursts of any length;
//! what a state costs; and flow hashes that collide.
//!
//! `WEIR_SEED=n` repeats a run.

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use weir_hash::{HashKey, Key};
use weir_steering::{
    BackendId, BuildError, Codec, Concury, ConcuryConfig, Flags, Forwarder, HEADER_BYTES,
    ImageError, Member, NO_BACKEND, Role, SLOT_RESERVED, ServiceId, ServiceState, SoftMemory,
    StateKey, Steer, TrackedBuilder, decide,
};
use weir_wire::{FlowKey, Protocol, TcpFlags};

const CODECS: [Codec; 2] = [Codec::Othello, Codec::Fuse];

fn rng() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed::seed())
}

fn pool(backends: u16) -> Vec<Member> {
    (0..backends)
        .map(|backend| Member {
            backend: BackendId::of(backend),
            name: format!("b{backend}"),
            weight: 1 + u32::from(backend) % 4,
            role: Role::Serving,
        })
        .collect()
}

/// Different IPv4 and IPv6 flows.
fn flow(n: u32) -> FlowKey {
    let address: std::net::IpAddr = if n.is_multiple_of(2) {
        std::net::Ipv4Addr::from(0x0a00_0000 + n).into()
    } else {
        std::net::Ipv6Addr::from((0x2001_0db8 << 96) + u128::from(n)).into()
    };
    FlowKey::new((address, 4000).into(), ([192, 0, 2, 1], 443).into(), Protocol::Tcp)
}

/// What a forwarder says one by one, checked against bursts of odd lengths.
fn answers<K: Key>(forwarder: &mut Forwarder<K>, flows: &[K], rng: &mut ChaCha8Rng) -> Vec<u16> {
    let single: Vec<u16> = flows.iter().map(|flow| forwarder.steer(flow)).collect();
    let mut bursts = vec![0xdead; flows.len()];
    let mut at = 0;
    while at < flows.len() {
        let end = (at + rng.random_range(0..200)).min(flows.len());
        forwarder.steer_batch(&flows[at..end], &mut bursts[at..end]);
        at = end;
    }
    assert!(single == bursts, "bursts and single packets differ");
    single
}

#[test]
fn answers_are_those_of_decide() {
    let mut rng = rng();
    for codec in CODECS {
        let mut members = pool(12);
        let mut concury = Concury::new(ConcuryConfig::unbounded(codec, 8, rng.random()));
        for n in 0..5_000 {
            concury
                .start(StateKey::of_flow(&flow(n)), BackendId::of(rng.random_range(0..12)), 0)
                .unwrap();
        }
        let (image, _) = concury.build(1, &members, 0).unwrap();
        let mut forwarder = Forwarder::new(image).unwrap();
        let mut memory = SoftMemory::new(100_000, 1, 1);
        let (mut reserved, mut by_pending) = (0, 0);
        for round in 0..12u32 {
            let which = rng.random_range(0..members.len());
            members[which].role = if round % 3 == 2 { Role::Serving } else { Role::Draining };
            if round == 10 {
                members.iter_mut().for_each(|member| member.role = Role::Draining);
            }
            let (image, _) = concury.build(u64::from(round) + 2, &members, 0).unwrap();
            let image = weir_steering::Image::clone(&image);
            let flags = Flags::default().with(Flags::PENDING, round % 2 == 1);
            image.set_flags(flags);
            forwarder.publish(Arc::new(image.clone())).unwrap();
            for _ in 0..300 {
                let state = StateKey::of_flow(&flow(rng.random_range(0..10_000)));
                let backend = rng.random_range(0..12);
                forwarder.note_pending(state, BackendId::of(backend));
                memory.pending.insert(
                    ServiceState { service: ServiceId(0), key: state },
                    BackendId::of(backend),
                );
            }
            let flows: Vec<FlowKey> = (0..10_000).map(flow).collect();
            let states: Vec<StateKey> = flows.iter().map(StateKey::of_flow).collect();
            let found = answers(&mut forwarder, &states, &mut rng);
            for ((flow, state), found) in flows.iter().zip(&states).zip(found) {
                let decision = decide(&image, ServiceId(0), flow, TcpFlags::ACK, &mut memory);
                assert_eq!(decision.slot(), found, "{codec:?}, {flow}");
                let entry = image.entry(state.hash(&image.header().key));
                reserved += u32::from(entry & SLOT_RESERVED != 0);
                by_pending += u32::from(found != entry & !SLOT_RESERVED);
            }
            let kept = rng.random_range(0..12);
            forwarder.retain_pending(|_, backend| backend != kept);
            memory.pending.retain(|_, backend| *backend != kept);
            let ended = StateKey::of_flow(&flow(rng.random_range(0..10_000)));
            forwarder.end(&ended);
            memory.pending.remove(&ServiceState { service: ServiceId(0), key: ended });
        }
        println!("{codec:?}: {reserved} on reserved Dcodes, {by_pending} by pending");
        assert!(reserved > 1_000 && by_pending > 1_000);
    }
}

/// First packets go where `decide` sends them, and are noted as pending where it notes them: also
/// when nearly all Dcodes are reserved, and when no backend takes new flows.
#[test]
fn first_packets_go_where_decide_sends_them() {
    let mut rng = rng();
    let (mut again, mut nowhere) = (0, 0);
    for codec in CODECS {
        for draining in [0, 3, 11, 12] {
            let mut members = pool(12);
            members[..draining].iter_mut().for_each(|member| member.role = Role::Draining);
            let mut concury = Concury::new(ConcuryConfig::unbounded(codec, 4, rng.random()));
            for n in 0..500 {
                concury
                    .start(StateKey::of_flow(&flow(n)), BackendId::of(rng.random_range(0..12)), 0)
                    .unwrap();
            }
            let (image, _) = concury.build(1, &members, 0).unwrap();
            for flags in [0, Flags::RECORD, Flags::PENDING, Flags::RECORD | Flags::PENDING] {
                let image = weir_steering::Image::clone(&image);
                image.set_flags(Flags(flags));
                let mut forwarder = Forwarder::new(Arc::new(image.clone())).unwrap();
                let mut memory = SoftMemory::new(100_000, 1, 1);
                for n in (500..1_500).chain(500..1_500) {
                    let state = StateKey::of_flow(&flow(n));
                    let decision =
                        decide(&image, ServiceId(0), &flow(n), TcpFlags::SYN, &mut memory);
                    let wanted = decision.slot();
                    assert_eq!(forwarder.start(&state), wanted, "{codec:?}, {draining}, {n}");
                    nowhere += u32::from(wanted == NO_BACKEND);
                }
                let mut pending = 0;
                forwarder.retain_pending(|&key, backend| {
                    pending += 1;
                    let known = memory.pending.get(&ServiceState { service: ServiceId(0), key });
                    assert_eq!(known, Some(&backend), "{codec:?}, {draining}, {flags}");
                    true
                });
                assert_eq!(pending, memory.pending.len());
                again += usize::from(flags & Flags::RECORD == 0) * pending;
            }
        }
    }
    println!("{again} placed again, {nowhere} first packets without a backend");
    assert!(again > 1_000 && nowhere > 1_000);
}

/// Keys of 64 bits, with new states and changes of the pool: each state where it began.
#[test]
fn states_of_word_keys_stay_through_updates() {
    let mut rng = rng();
    for codec in CODECS {
        let config = ConcuryConfig::unbounded(codec, 12, rng.random());
        let mut keys: Vec<u64> = (0..30_000u64).map(|n| n << 20).collect();
        let mut homes: Vec<u16> = keys.iter().map(|_| rng.random_range(0..64)).collect();
        let states = keys.iter().copied().zip(homes.iter().copied().map(BackendId::of));
        let (mut concury, mut forwarder) = Forwarder::build(config, &pool(64), states).unwrap();
        for round in 1..6u64 {
            let fresh: Vec<u64> = (0..5_000).map(|n| (n << 20) | round).collect();
            let placed = answers(&mut forwarder, &fresh, &mut rng);
            for (&key, &backend) in fresh.iter().zip(&placed) {
                concury.start(key, BackendId::of(backend), 0).unwrap();
            }
            keys.extend(fresh);
            homes.extend(placed);
            let members = pool(64 + round as u16);
            let (image, _) = concury.build(round + 1, &members, 0).unwrap();
            forwarder.publish(image).unwrap();
            assert!(answers(&mut forwarder, &keys, &mut rng) == homes, "{codec:?}, {round}");
        }
        assert_eq!(concury.len(), keys.len());
    }
}

/// Bits per state of real tables of a million states, the DIP array apart.
#[test]
fn a_million_states_cost_what_the_codec_says() {
    const STATES: u32 = 1_000_000;
    for (codec, most) in [(Codec::Othello, 28.1), (Codec::Fuse, 13.7)] {
        let config = ConcuryConfig::unbounded(codec, 12, 1);
        let states = (0..u64::from(STATES))
            .map(|n| n as u32)
            .map(|n| (u64::from(n), BackendId::of((n % 64) as u16)));
        let states = states.collect::<Vec<_>>();
        let (concury, forwarder) = Forwarder::build(config, &pool(64), states.into_iter()).unwrap();
        let image = forwarder.image();
        let bits = |bytes: usize| bytes as f64 * 8.0 / f64::from(STATES);
        let dip_array = image.slots().len() * 2;
        assert_eq!(dip_array, 8192);
        let table = bits(image.bytes() - HEADER_BYTES - dip_array);
        let reads = bits(forwarder.bytes());
        let control = concury.control_bytes() as f64 / f64::from(STATES);
        println!(
            "{codec:?}: {table:.2} bits per state published, {reads:.2} with everything that \
             packets may read, {control:.0} bytes per state in the control plane"
        );
        assert!(table <= most && reads <= most + bits(dip_array + 1024));
    }
}

#[test]
fn a_table_without_dcodes_is_refused() {
    let image = TrackedBuilder::new(HashKey::from_seed(1), 251, false).build(1, &pool(4)).unwrap();
    let found = Forwarder::<u64>::new(Arc::new(image));
    assert!(matches!(found, Err(ImageError::NoDcodes(_))));
}

/// A key whose pairs (2 n, 2 n + 1) share their hash under every other hash key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Twin(u64);

impl Key for Twin {
    fn hash(&self, key: &HashKey) -> u64 {
        let word = if key.words()[1].is_multiple_of(2) { self.0 & !1 } else { self.0 };
        key.hash_word(word)
    }
}

/// Different flows whose hashes collide: the build takes another hash key, and no flow is lost.
#[test]
fn colliding_flow_hashes_get_another_hash_key() {
    let mut rng = rng();
    for codec in CODECS {
        let mut rekeyed = 0;
        for _ in 0..20 {
            let mut concury = Concury::new(ConcuryConfig::unbounded(codec, 12, rng.random()));
            for n in 0..500 {
                concury.start(Twin(n * 2), BackendId::of((n % 8) as u16), 0).unwrap();
            }
            let (before, _) = concury.build(1, &pool(8), 0).unwrap();
            for n in 0..500 {
                concury.start(Twin(n * 2 + 1), BackendId::of(7 - (n % 8) as u16), 0).unwrap();
            }
            let (after, _) = concury.build(2, &pool(8), 0).unwrap();
            rekeyed += u32::from(before.header().key != after.header().key);
            let mut forwarder = Forwarder::new(after).unwrap();
            for n in 0..500 {
                assert_eq!(forwarder.steer(&Twin(n * 2)), (n % 8) as u16);
                assert_eq!(forwarder.steer(&Twin(n * 2 + 1)), 7 - (n % 8) as u16);
            }
        }
        println!("{codec:?}: {rekeyed} of 20 took another hash key");
        assert!(codec == Codec::Othello || (1..20).contains(&rekeyed), "{rekeyed}");
    }
}

/// A hash that maps two keys on each other under every hash key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Broken(u64);

impl Key for Broken {
    fn hash(&self, key: &HashKey) -> u64 {
        key.hash_word(self.0 / 2)
    }
}

#[test]
fn a_broken_hash_is_an_error() {
    let mut concury = Concury::new(ConcuryConfig::unbounded(Codec::Fuse, 12, 1));
    for n in 0..10 {
        concury.start(Broken(n), BackendId::of(0), 0).unwrap();
    }
    assert!(matches!(concury.build(1, &pool(8), 0), Err(BuildError::Lookup(_))));
    assert!(concury.published().is_none());
}
