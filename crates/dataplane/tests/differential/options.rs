//! TCP options in every order, with cookies that lead somewhere, nowhere, or to another's server.

use rand::Rng;
use rand::seq::IndexedRandom;
use weir_hash::Key;
use weir_steering::{Flags, Image, StateKey};
use weir_wire::{FlowKey, parse};

const MSS: &[u8] = &[2, 4, 5, 180];
const SCALE: &[u8] = &[1, 3, 3, 7];
const SACK: &[u8] = &[4, 2];
const NOPS: &[u8] = &[1, 1];
const BLOCK: &[u8] = &[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2];

/// What may stand before the timestamps and behind them: the usual layouts, and others.
const LAYOUTS: &[(&[&[u8]], &[u8])] = &[
    (&[NOPS], &[]),
    (&[NOPS], &[]),
    (&[NOPS], BLOCK),
    (&[MSS, SACK], SCALE),
    (&[MSS, NOPS], SACK),
    (&[MSS, SCALE, NOPS], SACK),
    (&[MSS, SCALE, SACK], &[]),
    (&[], &[]),
    (&[&[1]], &[]),
    (&[&[3, 3, 7], SACK], &[0]),
    (&[&[254, 4, 0, 0, 1]], MSS),
    (&[&[1; 30]], &[]),
    (&[&[0]], &[]),
    (&[&[5, 255]], &[]),
];

/// What SYNs ask for, small and large, at even and odd places.
pub fn segments(rng: &mut impl Rng) -> Vec<u8> {
    let mut options = vec![1; rng.random_range(0..4)];
    options.extend([2, 4]);
    options.extend(rng.random::<u16>().to_be_bytes());
    options.resize(options.len().next_multiple_of(4), 1);
    options
}

/// Timestamps with these values among other options, 40 bytes at most; now and then damaged ones.
pub fn options(rng: &mut impl Rng, value: u32, echo: u32) -> Vec<u8> {
    let (before, behind) = *LAYOUTS.choose(rng).unwrap();
    let mut options = before.concat();
    options.extend([8, 10]);
    options.extend(value.to_be_bytes());
    options.extend(echo.to_be_bytes());
    options.extend(behind);
    options.resize(options.len().next_multiple_of(4).min(40), 0);
    if rng.random_bool(0.05) {
        let at = rng.random_range(0..options.len());
        options[at] = *[0, 1, 2, 8, 9, 10, 40, 255].choose(rng).unwrap();
    }
    if rng.random_bool(0.03) {
        options.truncate(rng.random_range(0..=options.len() / 4) * 4);
    }
    options
}

/// Puts options into a TCP packet without any; what is none stays as it is.
pub fn insert(frame: &mut Vec<u8>, options: &[u8]) {
    let Ok(packet) = parse(frame) else { return };
    let (l3, l4) = (usize::from(packet.l3_offset), usize::from(packet.l4_offset));
    frame.splice(l4 + 20..l4 + 20, options.iter().copied());
    frame[l4 + 12] = ((20 + options.len()) as u8 / 4) << 4;
    let (at, length) = match frame[l3] >> 4 {
        4 => (l3 + 2, packet.ip_length as usize),
        _ => (l3 + 4, packet.ip_length as usize - 40),
    };
    frame[at..at + 2].copy_from_slice(&((length + options.len()) as u16).to_be_bytes());
}

/// An echo for a flow of the service with this table: a good cookie as often as not. `known`: what
/// answers of the flow carry, if it has a slot.
pub fn echo(rng: &mut impl Rng, table: &Image, flow: &FlowKey, known: Option<u16>) -> u32 {
    let anything = rng.random();
    if let Image::CheetahStateful(table) = table {
        let codec = table.body().0.method.method.codec();
        let index = match (rng.random_range(0..16), known) {
            (0, _) => rng.random_range(0..64),
            (1, _) => return anything,
            (_, Some(index)) => index,
            (_, None) => return anything,
        };
        let hash = StateKey::of_flow(flow).hash(codec.key());
        let layout = table.body().0.method.method.layout();
        let cookie = layout.cookie(rng.random(), codec.hide_for(hash, index));
        return u32::from(cookie) << 16 | anything & 0x8000_ffff;
    }
    let Image::Cheetah(table) = table else { return anything };
    let cookies = &table.body().0;
    let key = match table.header().flags().has(Flags::CLIENT) {
        true => StateKey::of_client(flow),
        false => StateKey::of_flow(flow),
    };
    let backends = cookies.servers.backends();
    let cookie = match rng.random_range(0..8) {
        // Of a number that may be nobody's.
        0 => {
            let number = rng.random_range(0..backends.len() as u16 + 3);
            let codec = cookies.method.codec();
            let part = codec.hide_for(key.hash(codec.key()), number);
            cookies.method.layout().cookie(part, rng.random())
        }
        1..=4 => match backends.choose(rng) {
            Some(&backend) => cookies.method.cookie(&cookies.servers, &key, backend).unwrap_or(0),
            None => 0,
        },
        _ => return anything,
    };
    u32::from(cookie) << 16 | anything & 0x8000_ffff
}
