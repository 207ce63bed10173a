//! Update messages and snapshots of compact maps, damaged and sealed again with the right digest:
//! each is applied, or refused with a reason and without a change; no panic, and no more memory than
//! its bytes stand for.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use weir_lookup::{Ludo, LudoView, OthelloSet, SetUpdate, SetView};
use xxhash_rust::xxh3::xxh3_64;

const KEYS: u64 = 300;

/// A view, a message that follows, both as bytes.
struct Example {
    view: Vec<u8>,
    message: Vec<u8>,
}

static LUDO: LazyLock<Vec<Example>> = LazyLock::new(|| {
    let mut ludo: Ludo<u64> = Ludo::new(12, 400, 1).expect("a width");
    (0..KEYS).for_each(|key| _ = ludo.insert(key, key & 0xfff).expect("room"));
    let steps: [fn(&mut Ludo<u64>); 3] = [
        |ludo| _ = ludo.insert(KEYS, 7).expect("room"),
        |ludo| _ = ludo.change(&3, 9).expect("a key"),
        |ludo| _ = ludo.remove(&5),
    ];
    let example = |step: fn(&mut Ludo<u64>)| {
        let view = ludo.view().to_bytes();
        step(&mut ludo);
        Example { view, message: ludo.update().to_bytes() }
    };
    steps.map(example).into()
});

static SET: LazyLock<Vec<Example>> = LazyLock::new(|| {
    let mut set: OthelloSet<u64, u32> = OthelloSet::new(8, 4, 400, 1);
    (0..KEYS).for_each(|key| _ = set.insert(key, key as u32 & 0xff).expect("room"));
    let steps: [fn(&mut OthelloSet<u64, u32>); 3] = [
        |set| _ = set.insert(KEYS, 7).expect("room"),
        |set| _ = set.insert(3, 9).expect("a key"),
        |set| _ = set.remove(&5),
    ];
    let example = |step: fn(&mut OthelloSet<u64, u32>)| {
        let view = set.export(0, 0, |value| *value).to_bytes();
        step(&mut set);
        Example { view, message: set.message(0, 1, |value| *value).to_bytes() }
    };
    steps.map(example).into()
});

/// Damages `bytes` as the input says (pairs of place and xor, then a new length), and seals them.
fn damaged(bytes: &[u8], input: &[u8]) -> Vec<u8> {
    let mut bytes = bytes[..bytes.len() - 8].to_vec();
    for change in input.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]]));
        match place {
            0xffff => bytes.truncate(bytes.len().saturating_sub(usize::from(change[2]))),
            0xfffe => bytes.extend_from_slice(&input[..usize::from(change[2]).min(input.len())]),
            _ => {
                let length = bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(place % length) {
                    *byte ^= change[2];
                }
            }
        }
    }
    let digest = xxh3_64(&bytes);
    bytes.extend(digest.to_le_bytes());
    bytes
}

fuzz_target!(|input: &[u8]| {
    let Some((&[which, what], rest)) = input.split_first_chunk() else {
        return;
    };
    let examples = if which & 1 == 0 { &*LUDO } else { &*SET };
    let example = &examples[usize::from(which >> 1) % examples.len()];
    let whole = what & 1 != 0;
    let bytes = damaged(if whole { &example.view } else { &example.message }, rest);
    if which & 1 == 0 {
        let mut view = LudoView::from_bytes(&example.view).expect("a good view");
        if whole {
            if let Ok(view) = LudoView::from_bytes(&bytes) {
                (0..KEYS).for_each(|key| _ = view.lookup(&key));
                assert_eq!(view.to_bytes(), bytes);
            }
        } else if view.apply_bytes(&bytes).is_err() {
            assert_eq!(view.to_bytes(), example.view, "a refused message changes nothing");
        }
        (0..KEYS).for_each(|key| _ = view.lookup(&key));
    } else {
        let mut view = SetView::from_bytes(&example.view).expect("a good view");
        if whole {
            if let Ok(view) = SetView::from_bytes(&bytes) {
                (0..KEYS).for_each(|key| _ = view.lookup(&key));
                assert_eq!(view.to_bytes(), bytes);
            }
        } else if let Ok(update) = SetUpdate::from_bytes(&bytes) {
            if view.apply(&update).is_err() {
                assert_eq!(view.to_bytes(), example.view, "a refused message changes nothing");
            }
        }
        (0..KEYS).for_each(|key| _ = view.lookup(&key));
    }
});
