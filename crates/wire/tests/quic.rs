//! QUIC headers and QUIC-LB ids under random input. `WEIR_SEED=n cargo test` repeats a run.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use std::hash::{BuildHasher, RandomState};
use weir_wire::quic::{Header, Id, QuicLb, QuicLbConfigs, Unroutable, parse_header};

fn runner(cases: u32) -> TestRunner {
    let seed = std::env::var("WEIR_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| RandomState::new().hash_one(()));
    println!("WEIR_SEED={seed}");
    let rng_seed = RngSeed::Fixed(seed);
    TestRunner::new(Config { cases, rng_seed, failure_persistence: None, ..Config::default() })
}

/// Every pair of lengths that the draft allows.
fn lengths() -> impl Strategy<Value = (usize, usize)> {
    (1usize..=15).prop_flat_map(|server_id| (Just(server_id), 4..=19 - server_id))
}

#[test]
fn what_is_encoded_is_decoded() {
    let input = (
        0u8..7,
        lengths(),
        any::<Option<[u8; 16]>>(),
        any::<([u8; 19], u8, bool)>(),
        prop::collection::vec(any::<u8>(), 0..30),
    );
    runner(20_000)
        .run(&input, |(rotation, (sid, nonce), key, (bytes, random, says), rest)| {
            let config = QuicLb::new(rotation, sid, nonce, key).unwrap();
            let config = if says { config } else { config.without_length() };
            let (server_id, nonce) = (&bytes[..sid], &bytes[sid..sid + nonce]);
            let id = config.encode(server_id, nonce, random).unwrap();
            let block = id.as_bytes().len() - 1;
            prop_assert_eq!(id.as_bytes()[0] >> 5, rotation);
            let low = if says { block as u8 } else { random & 0x1f };
            prop_assert_eq!(id.as_bytes()[0] & 0x1f, low);
            prop_assert_eq!(key.is_none(), id.as_bytes()[1..] == bytes[..block]);
            // As a short header carries it, and cut anywhere.
            let packet = [&[0x40], id.as_bytes(), &rest].concat();
            let Ok(Header::Short { destination }) = parse_header(&packet) else {
                return Err(TestCaseError::fail("a short header"));
            };
            prop_assert_eq!(config.decode(destination), Ok(Id::new(server_id).unwrap()));
            for cut in 1..=block {
                let too_short = Unroutable::TooShort { length: cut, needed: block + 1 };
                prop_assert_eq!(config.decode(&id.as_bytes()[..cut]), Err(too_short));
            }
            Ok(())
        })
        .unwrap();
}

/// Under a key, one bit of an id changes the server id in about half of its bits.
#[test]
fn a_changed_id_leads_anywhere() {
    let config = QuicLb::new(0, 4, 8, Some(*b"0123456789abcdef")).unwrap();
    let id = config.encode(&[0, 0, 0, 9], &[5; 8], 0).unwrap();
    let mut flipped = 0;
    for bit in 0..96 {
        let mut forged = id.as_bytes().to_vec();
        forged[1 + bit / 8] ^= 1 << (bit % 8);
        let there = config.decode(&forged).unwrap();
        let pairs = there.as_bytes().iter().zip([0, 0, 0, 9]);
        flipped += pairs.map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
    }
    // 96 ids of 32 bits: 1,536 flips with a standard deviation of 28.
    assert!((1_300..1_770).contains(&flipped), "{flipped}");
}

#[test]
fn random_bytes_never_panic() {
    let mut configs = QuicLbConfigs::default();
    configs.set(QuicLb::new(0, 2, 6, None).unwrap());
    configs.set(QuicLb::new(1, 15, 4, Some([1; 16])).unwrap());
    configs.set(QuicLb::new(2, 4, 12, Some([2; 16])).unwrap());
    configs.set(QuicLb::new(3, 1, 4, Some([3; 16])).unwrap().without_length());
    runner(40_000)
        .run(&prop::collection::vec(any::<u8>(), 0..300), |bytes| {
            match parse_header(&bytes) {
                Ok(Header::Long { version, destination, source }) => {
                    prop_assert!(version != 1 || destination.len().max(source.len()) <= 20);
                    let _ = configs.decode(destination);
                }
                Ok(Header::Short { destination }) => {
                    prop_assert!(destination.len() <= 20);
                    let _ = configs.decode(destination);
                }
                Err(_) => {}
            }
            Ok(())
        })
        .unwrap();
}
