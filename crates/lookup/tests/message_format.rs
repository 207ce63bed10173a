//! The message format holds for every structure alike: what is lost, swapped, repeated, foreign,
//! damaged, cut, of another structure or of another version is refused with its reason, and changes
//! nothing. What each body may hold is tested with its structure. The seed is printed;
//! `WEIR_SEED=n` repeats a run.

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use std::collections::HashSet;
use std::fmt::Debug;
use weir_lookup::message::{ENVELOPE, Kind, Message, MessageError, seal, seal_into, split_first};
use weir_lookup::{
    BloomFeed, BloomView, Filtable, FiltableView, Ludo, LudoView, OthelloSet, SetView,
};

/// A maintainer whose changes reach views as messages.
trait Maintainer: Sized {
    type View: Clone + PartialEq;
    const UPDATE: Kind;
    const VIEW: Kind;

    fn new(seed: u64) -> Self;
    /// Adds a key that is not there, changes one or takes one out, as far as the structure has it.
    fn change(&mut self, rng: &mut ChaCha8Rng);
    /// The message of the last change.
    fn message(&self) -> Vec<u8>;
    /// The whole view as bytes.
    fn snapshot(&self) -> Vec<u8>;
    fn read(bytes: &[u8]) -> Result<Self::View, MessageError>;
    fn write(view: &Self::View) -> Vec<u8>;
    fn apply(view: &mut Self::View, bytes: &[u8]) -> Result<(), MessageError>;
}

macro_rules! views {
    ($view:ty, $update:ident, $whole:ident) => {
        type View = $view;
        const UPDATE: Kind = Kind::$update;
        const VIEW: Kind = Kind::$whole;

        fn read(bytes: &[u8]) -> Result<$view, MessageError> {
            <$view>::from_bytes(bytes)
        }

        fn write(view: &$view) -> Vec<u8> {
            view.to_bytes()
        }

        fn apply(view: &mut $view, bytes: &[u8]) -> Result<(), MessageError> {
            view.apply_bytes(bytes)
        }
    };
}

/// Keys that come and go; so many that a table made for `ROOM` is rebuilt a few times.
const KEYS: u64 = 600;
const ROOM: usize = 100;

impl Maintainer for Ludo<u64> {
    views!(LudoView, LUDO_UPDATE, LUDO_VIEW);

    fn new(seed: u64) -> Self {
        Ludo::new(12, ROOM, seed).unwrap()
    }

    fn change(&mut self, rng: &mut ChaCha8Rng) {
        let key = rng.random_range(0..KEYS);
        if rng.random_bool(0.3) && self.remove(&key).is_some() {
            return;
        }
        self.insert(key, rng.random::<u64>() & 0xfff).unwrap();
    }

    fn message(&self) -> Vec<u8> {
        self.update().to_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.view().to_bytes()
    }
}

impl Maintainer for Filtable<u64> {
    views!(FiltableView<u64>, FILTABLE_UPDATE, FILTABLE_VIEW);

    fn new(seed: u64) -> Self {
        Filtable::new(5, 12, ROOM, seed)
    }

    fn change(&mut self, rng: &mut ChaCha8Rng) {
        let key = rng.random_range(0..KEYS);
        if rng.random_bool(0.3) && self.remove(&key).is_some() {
            return;
        }
        self.insert(key, rng.random()).unwrap();
    }

    fn message(&self) -> Vec<u8> {
        self.update().to_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.view().to_bytes()
    }
}

/// A set with one data plane, which needs the number of its next message.
struct Plane {
    set: OthelloSet<u64, u32>,
    number: u64,
}

impl Maintainer for Plane {
    views!(SetView, SET_UPDATE, SET_VIEW);

    fn new(seed: u64) -> Self {
        Self { set: OthelloSet::new(8, 4, ROOM, seed), number: 0 }
    }

    fn change(&mut self, rng: &mut ChaCha8Rng) {
        let key = rng.random_range(0..KEYS);
        self.number += 1;
        if rng.random_bool(0.3) && self.set.remove(&key).is_some() {
            return;
        }
        self.set.insert(key, rng.random()).unwrap();
    }

    fn message(&self) -> Vec<u8> {
        self.set.message(7, self.number, |&value| value).to_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.set.export(7, self.number, |&value| value).to_bytes()
    }
}

/// A filter, which does not know what is in it.
struct Fed {
    feed: BloomFeed,
    present: HashSet<u64>,
}

impl Maintainer for Fed {
    views!(BloomView, BLOOM_UPDATE, BLOOM_VIEW);

    fn new(seed: u64) -> Self {
        Self { feed: BloomFeed::new(ROOM, 10.0, seed), present: HashSet::new() }
    }

    fn change(&mut self, rng: &mut ChaCha8Rng) {
        let key = rng.random_range(0..KEYS);
        if self.feed.len() == self.feed.capacity() {
            let room = self.feed.capacity() * 2;
            self.feed.rebuild(room, self.present.iter().copied());
        } else if self.present.insert(key) {
            self.feed.insert(&key);
        } else {
            self.present.remove(&key);
            self.feed.remove(&key);
        }
    }

    fn message(&self) -> Vec<u8> {
        self.feed.update().to_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.feed.view().to_bytes()
    }
}

/// A maintainer that has seen some changes, its view, and the generator of the next ones.
fn world<M: Maintainer>(seed: u64, changes: usize) -> (M, M::View, ChaCha8Rng) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut table = M::new(seed);
    (0..changes).for_each(|_| table.change(&mut rng));
    let view = M::read(&table.snapshot()).unwrap();
    (table, view, rng)
}

/// The messages of the next changes.
fn messages<M: Maintainer>(table: &mut M, rng: &mut ChaCha8Rng, count: usize) -> Vec<Vec<u8>> {
    let change = |_| {
        table.change(rng);
        table.message()
    };
    (0..count).map(change).collect()
}

fn in_order_or_not_at_all<M: Maintainer>() {
    let seed = seed();
    let (mut table, start, mut rng) = world::<M>(seed, 200);
    let sent = messages(&mut table, &mut rng, 400);
    let first = Message::read(&sent[0]).unwrap().number;
    let (mut other, _, mut noise) = world::<M>(!seed, 200);
    let foreign = messages(&mut other, &mut noise, 1);
    let mut view = start.clone();
    for (at, bytes) in sent.iter().enumerate() {
        let expected = first + at as u64;
        let before = view.clone();
        // Lost or swapped: a later one comes first. Repeated: an earlier one comes again.
        for other in [at.saturating_sub(1), at + 1, at + 7, 0] {
            if let Some(wrong) = sent.get(other).filter(|_| other != at) {
                let found = first + other as u64;
                let refused = Err(MessageError::OutOfSequence { found, expected });
                assert_eq!(M::apply(&mut view, wrong), refused);
            }
        }
        let refused = M::apply(&mut view, &foreign[0]);
        assert!(matches!(refused, Err(MessageError::OtherTable { .. })), "{refused:?}");
        assert!(view == before);
        M::apply(&mut view, bytes).unwrap();
    }
    let mut late = start;
    sent.iter().for_each(|bytes| M::apply(&mut late, bytes).unwrap());
    assert!(late == view);
    assert!(M::read(&M::write(&view)).unwrap() == view);
}

/// Cuts, additions and flipped bits: told by length or digest, in messages and in snapshots.
fn damage_is_noticed<M: Maintainer>() {
    let (mut table, mut view, mut rng) = world::<M>(seed(), 200);
    let noticed = |result: Result<(), MessageError>| {
        let told = matches!(result, Err(MessageError::Length { .. } | MessageError::Digest { .. }));
        assert!(told, "{result:?}");
    };
    for bytes in messages(&mut table, &mut rng, 300) {
        let before = view.clone();
        for damaged in damages(&bytes, &mut rng, 40) {
            noticed(M::apply(&mut view, &damaged));
        }
        assert!(view == before);
        M::apply(&mut view, &bytes).unwrap();
    }
    let whole = M::write(&view);
    for damaged in damages(&whole, &mut rng, 2_000) {
        noticed(M::read(&damaged).map(drop));
    }
}

fn damages(bytes: &[u8], rng: &mut ChaCha8Rng, count: usize) -> Vec<Vec<u8>> {
    let damage = |_| {
        let mut damaged = bytes.to_vec();
        match rng.random_range(0..4) {
            0 => damaged.truncate(rng.random_range(0..bytes.len())),
            1 => damaged.extend(vec![0; rng.random_range(1..40)]),
            2 => {
                damaged[rng.random_range(0..bytes.len().min(ENVELOPE))] ^= rng.random_range(1..=255)
            }
            _ => damaged[rng.random_range(0..bytes.len())] ^= 1 << rng.random_range(0..8),
        }
        damaged
    };
    (0..count).map(damage).collect()
}

/// Bodies changed and sealed again, as a forger could: refused without a change, or applied to a
/// view that is whole in itself.
fn forgeries_do_no_harm<M: Maintainer>() {
    let (mut table, mut view, mut rng) = world::<M>(seed(), 200);
    let (mut refused, mut tried) = (0, 0);
    for bytes in messages(&mut table, &mut rng, 300) {
        let Message { kind, table, number, body } = Message::read(&bytes).unwrap();
        for _ in 0..30 {
            let mut forged = body.to_vec();
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..forged.len().min(40));
                forged[at] = rng.random();
            }
            if rng.random_bool(0.1) {
                forged.truncate(rng.random_range(0..forged.len()));
            }
            let mut victim = view.clone();
            tried += 1;
            match M::apply(&mut victim, &seal(kind, table, number, &forged)) {
                Ok(()) => assert!(M::read(&M::write(&victim)).unwrap() == victim),
                Err(_) => {
                    refused += 1;
                    assert!(victim == view);
                }
            }
        }
        M::apply(&mut view, &bytes).unwrap();
    }
    println!("{refused} of {tried} forgeries refused");
    assert!(refused > 0 && refused < tried);
}

macro_rules! held_by {
    ($($name:ident: $maintainer:ty),* $(,)?) => {$(
        mod $name {
            use super::*;

            #[test]
            fn messages_come_in_order_or_not_at_all() {
                in_order_or_not_at_all::<$maintainer>();
            }

            #[test]
            fn damaged_messages_and_snapshots_are_refused() {
                damage_is_noticed::<$maintainer>();
            }

            #[test]
            fn forged_messages_do_no_harm() {
                forgeries_do_no_harm::<$maintainer>();
            }
        }
    )*};
}

held_by!(ludo: Ludo<u64>, othello_set: Plane, filtable: Filtable<u64>, bloom: Fed);

type Reader = Box<dyn Fn(&[u8]) -> Result<(), MessageError>>;

/// What readers make of bytes: as a message, and as a snapshot.
struct Readers {
    update: Kind,
    view: Kind,
    samples: [Vec<u8>; 2],
    read: [Reader; 2],
}

fn readers<M: Maintainer + 'static>(seed: u64) -> Readers {
    let (mut table, view, mut rng) = world::<M>(seed, 50);
    let message = messages(&mut table, &mut rng, 1).remove(0);
    let snapshot = M::write(&view);
    let apply = move |bytes: &[u8]| M::apply(&mut view.clone(), bytes);
    let read = |bytes: &[u8]| M::read(bytes).map(drop);
    Readers {
        update: M::UPDATE,
        view: M::VIEW,
        samples: [message, snapshot],
        read: [Box::new(apply), Box::new(read)],
    }
}

/// Each reader takes its own kind in its own version, and names what it was given instead.
#[test]
fn other_structures_and_versions_are_refused_by_name() {
    let seed = seed();
    let all = [
        readers::<Ludo<u64>>(seed),
        readers::<Plane>(seed),
        readers::<Filtable<u64>>(seed),
        readers::<Fed>(seed),
    ];
    let kinds: HashSet<u8> = all.iter().flat_map(|one| [one.update.code, one.view.code]).collect();
    assert_eq!(kinds.len(), 8, "no two have one number");
    for reader in &all {
        for (read, expected) in reader.read.iter().zip([reader.update, reader.view]) {
            for other in &all {
                for (bytes, found) in other.samples.iter().zip([other.update, other.view]) {
                    let refused =
                        (found != expected).then_some(MessageError::OtherKind { found, expected });
                    assert_eq!(read(bytes).err(), refused);
                    let Message { table, number, body, .. } = Message::read(bytes).unwrap();
                    let newer = Kind { version: found.version + 1, ..found };
                    let refused = Err(MessageError::OtherKind { found: newer, expected });
                    assert_eq!(read(&seal(newer, table, number, body)), refused);
                }
            }
        }
    }
}

/// Messages that follow each other in one buffer are taken apart by their lengths.
#[test]
fn a_stream_of_messages_is_taken_apart() {
    fn check<M: Maintainer + Debug>() {
        let (mut table, mut view, mut rng) = world::<M>(seed(), 50);
        let sent = messages(&mut table, &mut rng, 100);
        let mut stream = sent.concat();
        seal_into(&mut stream, Kind::new(255, 1), (0, 0), |out| out.extend(b"the end"));
        let mut rest = &stream[..];
        for bytes in &sent {
            let message;
            (message, rest) = split_first(rest).unwrap();
            assert_eq!(message, bytes);
            M::apply(&mut view, message).unwrap();
        }
        assert_eq!(Message::read(rest).unwrap().body, b"the end");
        assert!(view == M::read(&table.snapshot()).unwrap());
    }
    check::<Ludo<u64>>();
    check::<Filtable<u64>>();
}
