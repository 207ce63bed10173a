//! Update messages and snapshots of compact maps, damaged and sealed again with the right digest:
//! each is applied, or refused with a reason and without a change; no panic, and no more memory than
//! its bytes stand for.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use weir_hash::Octets;
use weir_lookup::{
    BloomFeed, BloomView, Filtable, FiltableView, Ludo, LudoView, OthelloSet, SetView,
};
use xxhash_rust::xxh3::xxh3_64;

const KEYS: u64 = 300;

/// A view that is fed by messages.
trait View: Sized {
    fn read(bytes: &[u8]) -> Option<Self>;
    fn write(&self) -> Vec<u8>;
    /// Whether a message was applied.
    fn apply(&mut self, message: &[u8]) -> bool;
    fn ask(&self, key: u64);
}

macro_rules! views {
    ($($view:ty: $ask:expr),* $(,)?) => {$(
        impl View for $view {
            fn read(bytes: &[u8]) -> Option<Self> {
                Self::from_bytes(bytes).ok()
            }

            fn write(&self) -> Vec<u8> {
                self.to_bytes()
            }

            fn apply(&mut self, message: &[u8]) -> bool {
                self.apply_bytes(message).is_ok()
            }

            fn ask(&self, key: u64) {
                let ask: fn(&Self, u64) = $ask;
                ask(self, key);
            }
        }
    )*};
}

type Name = Octets<5>;

fn name(key: u64) -> Name {
    let [a, b, c, ..] = key.to_be_bytes();
    Octets([a, b, c, key as u8, (key >> 8) as u8])
}

views!(
    LudoView: |view, key| _ = view.get(&key),
    SetView: |view, key| _ = view.get(&key),
    FiltableView<u64>: |view, key| _ = view.get(&key),
    FiltableView<Name>: |view, key| _ = view.get(&name(key)),
    BloomView: |view, key| _ = view.contains(&key),
);

/// A view, a message that follows, both as bytes.
struct Example {
    view: Vec<u8>,
    message: Vec<u8>,
}

/// An example of each step that a maintainer takes.
fn examples<T, const N: usize>(
    mut table: T,
    steps: [fn(&mut T); N],
    view: fn(&T) -> Vec<u8>,
    message: fn(&T) -> Vec<u8>,
) -> Vec<Example> {
    let example = |step: fn(&mut T)| {
        let view = view(&table);
        step(&mut table);
        Example { view, message: message(&table) }
    };
    steps.map(example).into()
}

static LUDO: LazyLock<Vec<Example>> = LazyLock::new(|| {
    let mut ludo: Ludo<u64> = Ludo::new(12, 400, 1).expect("a width");
    (0..KEYS).for_each(|key| _ = ludo.insert(key, key & 0xfff).expect("room"));
    examples(
        ludo,
        [
            |ludo| _ = ludo.insert(KEYS, 7).expect("room"),
            |ludo| _ = ludo.change(&3, 9).expect("a key"),
            |ludo| _ = ludo.remove(&5),
            |ludo| ludo.resize(500).expect("room"),
        ],
        |ludo| ludo.view().to_bytes(),
        |ludo| ludo.update().to_bytes(),
    )
});

static SET: LazyLock<Vec<Example>> = LazyLock::new(|| {
    let mut set: OthelloSet<u64, u32> = OthelloSet::new(8, 4, 400, 1);
    (0..KEYS).for_each(|key| _ = set.insert(key, key as u32 & 0xff).expect("room"));
    examples(
        set,
        [
            |set| _ = set.insert(KEYS, 7).expect("room"),
            |set| _ = set.insert(3, 9).expect("a key"),
            |set| _ = set.remove(&5),
        ],
        |set| set.export(0, 0, |value| *value).to_bytes(),
        |set| set.message(0, 1, |value| *value).to_bytes(),
    )
});

/// Short digests: a third of the keys is in level 2.
static FILTABLE: LazyLock<Vec<Example>> = LazyLock::new(|| {
    let mut table: Filtable<u64> = Filtable::new(5, 12, 310, 1);
    (0..KEYS).for_each(|key| _ = table.insert(key, key).expect("room"));
    examples(
        table,
        [
            |table| _ = table.insert(KEYS, 7).expect("room"),
            |table| _ = table.insert(3, 9).expect("a key"),
            |table| _ = table.insert(4, 9).expect("a key"),
            |table| _ = table.insert(6, 9).expect("a key"),
            |table| _ = table.remove(&5),
            |table| _ = table.remove(&7),
            |table| _ = table.remove(&8),
            |table| _ = table.insert(KEYS + 1, 7).expect("room"),
            |table| table.resize(500).expect("room"),
        ],
        |table| table.view().to_bytes(),
        |table| table.update().to_bytes(),
    )
});

static NAMES: LazyLock<Vec<Example>> = LazyLock::new(|| {
    let mut table: Filtable<Name> = Filtable::new(2, 33, 400, 1);
    (0..40).for_each(|key| _ = table.insert(name(key), key << 20).expect("room"));
    examples(
        table,
        [
            |table| _ = table.insert(name(KEYS), 7).expect("room"),
            |table| _ = table.insert(name(KEYS + 1), 8).expect("room"),
            |table| _ = table.insert(name(3), 1 << 32).expect("a key"),
            |table| _ = table.remove(&name(5)),
        ],
        |table| table.view().to_bytes(),
        |table| table.update().to_bytes(),
    )
});

static BLOOM: LazyLock<Vec<Example>> = LazyLock::new(|| {
    let mut feed = BloomFeed::new(400, 10.0, 1);
    (0..KEYS).for_each(|key| feed.insert(&key));
    examples(
        feed,
        [|feed| feed.insert(&KEYS), |feed| feed.remove(&5u64), |feed| feed.rebuild(500, 0..KEYS)],
        |feed| feed.view().to_bytes(),
        |feed| feed.update().to_bytes(),
    )
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
    // The length is made right too, or most of what is cut would go no further.
    let length = (bytes.len() as u64 + 8).to_le_bytes();
    if let Some(field) = bytes.get_mut(2..8) {
        field.copy_from_slice(&length[..6]);
    }
    let digest = xxh3_64(&bytes);
    bytes.extend(digest.to_le_bytes());
    bytes
}

/// Plays one damaged message or snapshot of an example.
fn play<V: View>(examples: &[Example], which: u8, whole: bool, damage: &[u8]) {
    let example = &examples[usize::from(which) % examples.len()];
    let bytes = damaged(if whole { &example.view } else { &example.message }, damage);
    let mut view = V::read(&example.view).expect("a good view");
    if whole {
        if let Some(read) = V::read(&bytes) {
            assert!(read.write() == bytes, "a snapshot comes back");
            view = read;
        }
    } else if view.apply(&bytes) {
        let after = view.write();
        let read = V::read(&after).expect("what was changed is whole");
        assert!(read.write() == after, "what was changed comes back");
    } else {
        assert!(view.write() == example.view, "a refused message changes nothing");
    }
    (0..KEYS + 50).for_each(|key| view.ask(key));
}

fuzz_target!(|input: &[u8]| {
    let Some((&[which, what], rest)) = input.split_first_chunk() else {
        return;
    };
    let whole = what & 1 != 0;
    match which % 5 {
        0 => play::<LudoView>(&LUDO, which / 5, whole, rest),
        1 => play::<SetView>(&SET, which / 5, whole, rest),
        2 => play::<FiltableView<u64>>(&FILTABLE, which / 5, whole, rest),
        3 => play::<FiltableView<Name>>(&NAMES, which / 5, whole, rest),
        _ => play::<BloomView>(&BLOOM, which / 5, whole, rest),
    }
});
