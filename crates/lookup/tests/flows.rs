//! 5-tuples as keys: well hashed, and found in each kind of map. The seed is printed; `WEIR_SEED=n`
//! repeats a run.

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use weir_hash::{HashKey, Key};
use weir_lookup::{Cuckoo, Filtable, Fuse, Ludo, Othello, SetSep};
use weir_wire::{FlowKey, Protocol};

/// Flows as they come: few networks, ports in a row, both families and protocols.
fn flows(count: usize, rng: &mut ChaCha8Rng) -> Vec<FlowKey> {
    let mut flows = HashSet::new();
    while flows.len() < count {
        let address = |rng: &mut ChaCha8Rng, wide: bool| -> IpAddr {
            let low = rng.random_range(0..1u32 << 12);
            match wide {
                false => [10, 1, (low >> 8) as u8, low as u8].into(),
                true => Ipv6Addr::from(0x2001_0db8 << 96 | u128::from(low)).into(),
            }
        };
        let wide = rng.random();
        let src = SocketAddr::new(address(rng, wide), rng.random_range(32_768..33_000));
        let dst = SocketAddr::new(address(rng, wide), if rng.random() { 443 } else { 53 });
        let protocol = if rng.random() { Protocol::Tcp } else { Protocol::Udp };
        flows.insert(FlowKey::new(src, dst, protocol));
    }
    flows.into_iter().collect()
}

/// Each part of a flow counts, also what looks alike when added up or swapped.
#[test]
fn flows_that_differ_have_different_hashes() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let key = HashKey::from_seed(rng.random());
    let flows = flows(100_000, &mut rng);
    let hashes: HashSet<u64> = flows.iter().map(|flow| flow.hash(&key)).collect();
    assert_eq!(hashes.len(), flows.len(), "equal hashes");
    for flow in &flows[..2_000] {
        let mut others = [*flow; 5];
        others[0].dst[rng.random_range(0..16)] ^= 128;
        others[1] = FlowKey { src: flow.dst, dst: flow.src, ..*flow };
        others[2] = FlowKey { src_port: flow.dst_port, dst_port: flow.src_port, ..*flow };
        others[3].protocol = match flow.protocol {
            Protocol::Tcp => Protocol::Udp,
            Protocol::Udp => Protocol::Sctp,
            Protocol::Sctp => Protocol::Tcp,
        };
        others[4].src[rng.random_range(0..16)] ^= 1;
        for other in others.iter().filter(|other| *other != flow) {
            assert_ne!(other.hash(&key), flow.hash(&key), "{other} and {flow}");
        }
    }
}

/// Flipping an input bit flips each output bit with probability 1/2: some 2,000 samples of a fair
/// coin stay within 0.07 (6.3 standard deviations).
#[test]
fn every_bit_of_a_flow_changes_half_of_the_hash() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let flows = flows(4_096, &mut rng);
    let key = HashKey::from_seed(rng.random());
    for wide in [false, true] {
        let flows: Vec<_> = flows.iter().filter(|flow| flow.is_ipv4() != wide).collect();
        for bit in 0..32 * 8 + 32 {
            // An IPv4 address stays one.
            if !wide && bit < 256 && bit % 128 < 96 {
                continue;
            }
            let mut flips = [0u32; 64];
            for flow in &flows {
                let mut other = **flow;
                match bit {
                    0..128 => other.src[bit / 8] ^= 1 << (bit % 8),
                    128..256 => other.dst[bit / 8 - 16] ^= 1 << (bit % 8),
                    256..272 => other.src_port ^= 1 << (bit - 256),
                    _ => other.dst_port ^= 1 << (bit - 272),
                }
                let diff = flow.hash(&key) ^ other.hash(&key);
                flips.iter_mut().zip(0..).for_each(|(flip, at)| *flip += (diff >> at) as u32 & 1);
            }
            for (out, flip) in flips.into_iter().enumerate() {
                let share = f64::from(flip) / flows.len() as f64;
                assert!((share - 0.5).abs() < 0.07, "bit {bit} flips bit {out} with {share:.3}");
            }
        }
    }
}

#[test]
fn every_map_takes_flows() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let flows = flows(20_000, &mut rng);
    let (valid, alien) = flows.split_at(10_000);
    let model: HashMap<FlowKey, u64> =
        valid.iter().map(|&flow| (flow, rng.random_range(0..1 << 12))).collect();
    let items: Vec<(FlowKey, u64)> = valid.iter().map(|&flow| (flow, model[&flow])).collect();
    let mut othello = Othello::new(12, 10, rng.random());
    let mut ludo = Ludo::new(12, 10, rng.random()).unwrap();
    let mut cuckoo = Cuckoo::new(12, 10, rng.random());
    let mut filtable = Filtable::new(10, 12, 10, rng.random());
    for &(flow, value) in &items {
        othello.insert(flow, value as u32).unwrap();
        assert_eq!(ludo.insert(flow, value), Ok(None));
        assert_eq!(cuckoo.insert(flow, value), None);
        assert_eq!(filtable.insert(flow, value), Ok(None));
    }
    let fuse = Fuse::build(12, valid, |at| items[at].1 as u32, rng.random()).unwrap();
    let setsep = SetSep::build(12, &items, rng.random());
    let view = othello.view();
    for (flow, &value) in &model {
        assert_eq!(u64::from(view.get(flow)), value, "{flow}");
        assert_eq!(u64::from(fuse.get(flow)), value, "{flow}");
        assert_eq!(ludo.view().get(flow), value, "{flow}");
        assert_eq!(setsep.get(flow), value, "{flow}");
        assert_eq!(cuckoo.get(flow), Some(value), "{flow}");
        assert_eq!(filtable.view().get(flow), Some(value), "{flow}");
    }
    for flow in alien {
        assert_eq!((ludo.get(flow), cuckoo.get(flow), filtable.get(flow)), (None, None, None));
    }
    for flow in &valid[..5_000] {
        assert_eq!(ludo.remove(flow), Some(model[flow]));
        assert_eq!(cuckoo.remove(flow), Some(model[flow]));
        assert_eq!(filtable.remove(flow), Some(model[flow]));
    }
    for flow in &valid[5_000..] {
        let value = Some(model[flow]);
        assert_eq!((ludo.get(flow), cuckoo.get(flow), filtable.get(flow)), (value, value, value));
    }
}
