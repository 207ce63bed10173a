//! A control plane that is started again goes on from the published table: nothing that it sends
//! anywhere changes as long as the pool is the same. And what it publishes survives its bytes.

use std::sync::Arc;
use weir_hash::Key;
use weir_steering::{
    BackendId, Codec, Concury, ConcuryConfig, ELEMENT_BYTES, Image, ImageError, Member, RawHeader,
    Role, StateKey,
};
use weir_wire::{FlowKey, Protocol};

fn config(codec: Codec, seed: u64) -> ConcuryConfig {
    ConcuryConfig { udp: true, ..ConcuryConfig::unbounded(codec, 10, seed) }
}

fn key(n: u32) -> StateKey {
    let source = (std::net::Ipv4Addr::from(0x0a00_0000 + n), 4000);
    let flow = FlowKey::new(source.into(), ([192, 0, 2, 1], 53).into(), Protocol::Udp);
    StateKey::of_flow(&flow)
}

fn members() -> Vec<Member> {
    (0..7)
        .map(|backend| Member {
            backend: BackendId::of(backend),
            name: format!("b{backend}"),
            weight: u32::from(backend) + 1,
            role: Role::Serving,
        })
        .collect()
}

/// A table of 20,000 states, from a control plane.
fn first(codec: Codec) -> (Concury, Arc<Image>) {
    let mut concury = Concury::new(config(codec, 1));
    for n in 0..20_000 {
        concury.start(key(n), BackendId::of((n % 7) as u16), 0).unwrap();
    }
    let (image, _) = concury.build(1, &members(), 10).unwrap();
    (concury, image)
}

/// A control plane that goes on from a table, and the table that it builds.
fn resumed(codec: Codec, states: &Concury, before: &Arc<Image>) -> Arc<Image> {
    let mut second = Concury::resume(config(codec, 2), before.clone());
    for (state, held) in states.states() {
        second.restore(*state, held.backend, 20).unwrap();
    }
    let (after, report) = second.build(2, &members(), 20).unwrap();
    assert_eq!(report.recoded, 0);
    assert_eq!(after.header().key, before.header().key);
    assert_eq!(after.slots(), before.slots());
    after
}

#[test]
fn a_resumed_table_is_the_same_table() {
    let (concury, before) = first(Codec::Othello);
    let after = resumed(Codec::Othello, &concury, &before);
    assert_eq!(after.header().digest, before.header().digest);
}

/// A fuse is built anew, so unknown flows move; the Dcodes of states and the flow hash do not.
#[test]
fn a_resumed_fuse_has_the_same_dcodes() {
    let (concury, before) = first(Codec::Fuse);
    let after = resumed(Codec::Fuse, &concury, &before);
    for (state, _) in concury.states() {
        let hash = state.hash(&before.header().key);
        assert_eq!(after.code(hash), before.code(hash));
    }
}

#[test]
fn other_settings_begin_anew() {
    let (_, othello) = first(Codec::Othello);
    let (_, fuse) = first(Codec::Fuse);
    for (config, image) in [
        (ConcuryConfig { bits: 11, ..config(Codec::Othello, 3) }, &othello),
        (ConcuryConfig { bits: 11, ..config(Codec::Fuse, 3) }, &fuse),
        (ConcuryConfig { client_affinity: true, ..config(Codec::Fuse, 3) }, &fuse),
        (config(Codec::Fuse, 3), &othello),
        (config(Codec::Othello, 3), &fuse),
    ] {
        assert!(Concury::<StateKey>::resume(config, image.clone()).published().is_none());
    }
}

/// Header and body as they are published, the body from element 5 of a pool on.
fn published(image: &Image) -> (Vec<u8>, Vec<u8>) {
    let mut body = vec![0xaa; image.elements() * ELEMENT_BYTES];
    image.write_body(&mut body);
    (image.header_bytes(5).to_vec(), body)
}

fn read(header: &[u8], body: &[u8]) -> Result<Image, ImageError> {
    Image::read_from(header, |first, elements| {
        (first == 5 && elements * ELEMENT_BYTES == body.len()).then(|| body.to_vec())
    })
}

#[test]
fn a_table_survives_its_bytes() {
    for codec in [Codec::Othello, Codec::Fuse] {
        let (concury, image) = first(codec);
        let (header, body) = published(&image);
        assert_eq!(Image::range_of(&header), Some((5, image.elements() as u32)));
        assert_eq!(image.bytes(), header.len() + body.len());
        let copy = read(&header, &body).unwrap();
        assert_eq!(copy, *image);
        assert_eq!(copy.codec(), Some(codec));
        resumed(codec, &concury, &Arc::new(copy));
    }
}

/// A changed bit of a header or of what counts in a body is an error, never a panic or another
/// table.
#[test]
fn a_damaged_table_is_refused() {
    for codec in [Codec::Othello, Codec::Fuse] {
        let (_, image) = first(codec);
        let (header, body) = published(&image);
        // Generation and flags may change without the digest; where the body begins is its place.
        // Two fields say in other words what others say, and those of a fuse are a fuse's.
        let free = ["first_slot", "flags", "generation", "first_a", "per_chunk"];
        let fuse = ["segment_bits", "segments", "fuse_key"];
        let unused = |name| codec != Codec::Fuse && fuse.contains(&name);
        let checked = RawHeader::FIELDS
            .iter()
            .filter(|field| !free.contains(&field.name) && !unused(field.name))
            .flat_map(|field| field.offset..field.offset + field.bytes);
        for (byte, bit) in checked.flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
            let mut damaged = header.clone();
            damaged[byte] ^= 1 << bit;
            assert!(read(&damaged, &body).is_err(), "{codec:?}: bit {bit} of byte {byte}");
        }
        let slots = image.slots().len() * 2;
        let cells = image.codes().unwrap().bytes().len();
        let first_cell = slots.next_multiple_of(ELEMENT_BYTES);
        for bit in (0..slots * 8)
            .step_by(97)
            .chain((0..cells * 8).step_by(997).map(|bit| first_cell * 8 + bit))
        {
            let mut damaged = body.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let found = read(&header, &damaged);
            assert!(matches!(found, Err(ImageError::Digest { .. })), "{codec:?}: bit {bit}");
        }
        assert!(matches!(read(&header[..100], &body), Err(ImageError::Length { .. })));
        assert!(matches!(read(&header, &body[..body.len() - 1]), Err(ImageError::Length { .. })));
    }
}
