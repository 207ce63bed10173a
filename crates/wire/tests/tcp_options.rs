//! The timestamp option against `etherparse`'s option iterator, an independent implementation.
//!
//! `WEIR_SEED=n cargo test` repeats a run.

use etherparse::{TcpHeader, TcpOptionElement, TcpOptionReadError, TcpOptionsIterator};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use std::hash::{BuildHasher, RandomState};
use weir_wire::checksum::Checksum;
use weir_wire::tcp_options::{Layout, OptionError, Timestamps, TimestampsMut, find};
use weir_wire::{FlowKey, Protocol};

fn runner(cases: u32) -> TestRunner {
    let seed = std::env::var("WEIR_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| RandomState::new().hash_one(()));
    println!("WEIR_SEED={seed}");
    let rng_seed = RngSeed::Fixed(seed);
    TestRunner::new(Config { cases, rng_seed, failure_persistence: None, ..Config::default() })
}

/// Bytes that look like options often enough: whole ones, damaged ones, and noise.
fn options() -> impl Strategy<Value = Vec<u8>> {
    let with_values = |kind: u8, length: u8| {
        prop::collection::vec(any::<u8>(), usize::from(length) - 2)
            .prop_map(move |values| [&[kind, length][..], &values].concat())
    };
    let piece = prop_oneof![
        4 => Just(vec![1]),
        1 => Just(vec![0]),
        3 => with_values(2, 4),
        3 => with_values(3, 3),
        3 => with_values(4, 2),
        3 => with_values(8, 10),
        1 => with_values(5, 10),
        1 => with_values(5, 18),
        1 => with_values(30, 12),
        1 => (any::<u8>(), 2u8..12).prop_flat_map(move |(kind, length)| with_values(kind, length)),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec(piece, 0..10).prop_map(|pieces| {
        let mut options = pieces.concat();
        options.truncate(40);
        options.resize(options.len().next_multiple_of(4), 0);
        options
    })
}

fn segment(options: &[u8]) -> Vec<u8> {
    let mut header = TcpHeader::new(5555, 80, 1, 1024);
    header.set_options_raw(options).expect("at most 40 bytes, whole words");
    header.ack = true;
    header.to_bytes().to_vec()
}

/// What etherparse finds. It stops at kinds that it does not know and at lengths that it does not
/// like; where the option can be stepped over by its length it is set going again behind.
fn etherparse_finds(options: &[u8]) -> Result<Option<(usize, u32, u32)>, ()> {
    let mut rest = options;
    loop {
        let mut iterator = TcpOptionsIterator::from_slice(rest);
        let mut at = options.len() - rest.len();
        let stopped = loop {
            match iterator.next() {
                None => return Ok(None),
                Some(Ok(TcpOptionElement::Timestamp(value, echo))) => {
                    return Ok(Some((at, value, echo)));
                }
                Some(Ok(_)) => at = options.len() - iterator.rest().len(),
                Some(Err(error)) => break error,
            }
        };
        let kind = match stopped {
            TcpOptionReadError::UnexpectedEndOfSlice { option_id, .. }
            | TcpOptionReadError::UnexpectedSize { option_id, .. }
            | TcpOptionReadError::UnknownId(option_id) => option_id,
        };
        assert_eq!(kind, options[at]);
        rest = match options.get(at + 1) {
            Some(&length) if length >= 2 && kind != 8 => {
                options.get(at + usize::from(length)..).ok_or(())?
            }
            _ => return Err(()),
        };
    }
}

#[test]
fn finds_what_etherparse_finds() {
    let mut seen = [0u32; 4];
    let counts = std::cell::RefCell::new(&mut seen);
    runner(40_000)
        .run(&options(), |options| {
            let segment = segment(&options);
            let ours = find(&segment);
            let theirs = etherparse_finds(&options);
            let mut counts = counts.borrow_mut();
            match ours {
                Ok(Some(found)) => {
                    let at = usize::from(found.offset) - 20;
                    prop_assert_eq!(theirs, Ok(Some((at, found.value, found.echo))));
                    counts[if found.layout == Layout::Parsed { 0 } else { 1 }] += 1;
                }
                Ok(None) => {
                    prop_assert_eq!(theirs, Ok(None));
                    counts[2] += 1;
                }
                Err(error) => {
                    prop_assert_eq!(theirs, Err(()), "{}", error);
                    counts[3] += 1;
                }
            }
            Ok(())
        })
        .unwrap();
    println!("parsed, by layout, none, refused: {seen:?}");
    assert!(seen.iter().all(|&count| count > 100), "{seen:?}");
}

#[test]
fn random_bytes_never_panic() {
    let bytes = prop::collection::vec(any::<u8>(), 0..80);
    runner(40_000)
        .run(&bytes, |mut bytes| {
            let before = bytes.clone();
            let found = find(&bytes);
            match TimestampsMut::find(&mut bytes) {
                Ok(None) => prop_assert_eq!(found, Ok(None)),
                Err(error) => prop_assert_eq!(found, Err(error)),
                Ok(Some(mut view)) => {
                    prop_assert_eq!(found, Ok(Some(view.get())));
                    view.set_value(0xffff_ffff);
                    view.set_echo(0);
                    let at = usize::from(view.get().offset);
                    // Nothing but the checksum and the eight bytes may change.
                    for (i, (a, b)) in before.iter().zip(&bytes).enumerate() {
                        let ours = (16..18).contains(&i) || (at + 2..at + 10).contains(&i);
                        prop_assert!(ours || a == b, "byte {}", i);
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}

fn full_checksum(flow: &FlowKey, segment: &[u8]) -> u16 {
    let mut copy = segment.to_vec();
    copy[16..18].fill(0);
    Checksum::default().add_pseudo_header(flow, copy.len() as u32).add_bytes(&copy).finish()
}

#[test]
fn rewriting_keeps_the_checksum_right() {
    let edge =
        || prop_oneof![any::<u32>(), Just(0), Just(u32::MAX), Just(0xffff), Just(0xffff_0000)];
    let input = (
        // Odd and even places.
        0usize..30,
        [edge(), edge(), edge(), edge()],
        prop::collection::vec(any::<u8>(), 0..50),
        any::<[[u8; 4]; 2]>(),
    );
    runner(20_000)
        .run(&input, |(nops, [value, echo, new_value, new_echo], payload, [src, dst])| {
            let flow = FlowKey::new((src, 5555).into(), (dst, 80).into(), Protocol::Tcp);
            let mut options = vec![1; nops];
            options.extend([8, 10]);
            options.extend(value.to_be_bytes());
            options.extend(echo.to_be_bytes());
            options.resize(options.len().next_multiple_of(4), 0);
            let mut segment = segment(&options);
            segment.extend(&payload);
            let checksum = full_checksum(&flow, &segment);
            segment[16..18].copy_from_slice(&checksum.to_be_bytes());

            let mut view = TimestampsMut::find(&mut segment).unwrap().expect("it is there");
            prop_assert_eq!((view.get().value, view.get().echo), (value, echo));
            view.set_value(new_value);
            view.set_echo(new_echo);
            let rewritten: Result<Option<Timestamps>, OptionError> = find(&segment);
            let rewritten = rewritten.unwrap().expect("it is still there");
            prop_assert_eq!((rewritten.value, rewritten.echo), (new_value, new_echo));
            let field = u16::from_be_bytes([segment[16], segment[17]]);
            prop_assert_eq!(field, full_checksum(&flow, &segment));
            Ok(())
        })
        .unwrap();
}
