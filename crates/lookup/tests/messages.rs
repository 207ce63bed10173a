//! Filtable messages and snapshots: a view fed by messages is the maintainer's own, and what is
//! lost, reordered, repeated, foreign, damaged or forged changes nothing. The seed is printed;
//! `WEIR_SEED=n` repeats a run.

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use std::collections::HashMap;
use std::fmt::Debug;
use weir_hash::{FixedKey, Octets};
use weir_lookup::message::{Kind, Message, MessageError, seal};
use weir_lookup::{Filtable, FiltableKind, FiltableUpdate, FiltableView};
use weir_wire::{FlowKey, Protocol};

/// A table, a view that gets its messages as bytes, and what they should hold.
struct World<K> {
    table: Filtable<K>,
    view: FiltableView<K>,
    model: HashMap<u64, u64>,
    make: fn(u64) -> K,
    space: u64,
    sent: HashMap<FiltableKind, usize>,
    rng: ChaCha8Rng,
}

impl<K: FixedKey + Debug> World<K> {
    fn new(
        (digest_bits, value_bits): (u32, u32),
        space: u64,
        make: fn(u64) -> K,
        seed: u64,
    ) -> Self {
        let table = Filtable::new(digest_bits, value_bits, 10, seed);
        let view = FiltableView::from_bytes(&table.view().to_bytes()).unwrap();
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self { table, view, model: HashMap::new(), make, space, sent: HashMap::new(), rng }
    }

    /// A change, if there is one to be made, as bytes.
    fn change(&mut self) -> Option<Vec<u8>> {
        let number = self.rng.random_range(0..self.space);
        let key = (self.make)(number);
        if self.rng.random_bool(0.65) {
            let value = self.rng.random::<u64>();
            let former = self.table.insert(key, value).unwrap();
            let value = self.table.get(&key).unwrap();
            assert_eq!(former, self.model.insert(number, value));
        } else {
            let former = self.table.remove(&key);
            assert_eq!(former, self.model.remove(&number));
            former?;
        }
        let update = self.table.update();
        *self.sent.entry(update.kind()).or_default() += 1;
        Some(update.to_bytes())
    }

    fn step(&mut self) {
        if let Some(bytes) = self.change() {
            self.view.apply_bytes(&bytes).unwrap();
        }
    }

    fn check(&self) {
        assert!(self.view == *self.table.view());
        let bytes = self.table.view().to_bytes();
        assert_eq!(self.view.to_bytes(), bytes);
        let read = FiltableView::<K>::from_bytes(&bytes).unwrap();
        assert!(read == self.view);
        for (&number, &value) in &self.model {
            assert_eq!(read.get(&(self.make)(number)), Some(value));
            assert_eq!(self.view.get(&(self.make)(number)), Some(value));
        }
    }
}

fn name(n: u64) -> Octets<45> {
    let mut bytes = [b'.'; 45];
    bytes[30..38].copy_from_slice(&n.to_be_bytes());
    Octets(bytes)
}

fn flow(n: u64) -> FlowKey {
    let [a, b] = [n as u8, (n >> 8) as u8];
    let src = ([10, 0, b, a], 1024 + (n >> 4) as u16);
    FlowKey::new(src.into(), ([192, 0, 2, 1], 443).into(), Protocol::Tcp)
}

fn history<K: FixedKey + Debug>(widths: (u32, u32), space: u64, make: fn(u64) -> K, seed: u64) {
    let mut world = World::new(widths, space, make, seed);
    for step in 0..space * 12 {
        world.step();
        if step % (space * 3) == 0 {
            world.check();
        }
    }
    world.check();
    println!("{widths:?}: {} keys, {:?}", world.table.len(), world.sent);
    assert!(world.sent[&FiltableKind::Rebuild] > 2 && world.sent.len() == 4);
    let level2 = world.view.level2_len();
    assert!(widths.0 > 16 || level2 > 0, "no key in level 2");
}

#[test]
fn a_view_fed_by_messages_equals_one_exported_whole() {
    let seed = seed();
    history((8, 12), 20_000, |n| n, seed);
    history((4, 64), 3_000, |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15), seed ^ 1);
    history((1, 1), 500, |n| n, seed ^ 2);
    history((32, 33), 2_000, |n| n, seed ^ 3);
    history((6, 20), 3_000, name, seed ^ 4);
    history((10, 5), 3_000, flow, seed ^ 5);
}

/// A view that comes late gets a snapshot, and goes on with messages.
#[test]
fn a_snapshot_and_the_messages_after_it_make_the_same_view() {
    let mut world = World::new((7, 12), 4_000, |n| n, seed());
    (0..8_000).for_each(|_| world.step());
    let mut late = FiltableView::from_bytes(&world.view.to_bytes()).unwrap();
    for _ in 0..20_000 {
        if let Some(bytes) = world.change() {
            world.view.apply_bytes(&bytes).unwrap();
            late.apply_bytes(&bytes).unwrap();
        }
    }
    world.check();
    assert!(late == world.view);
    assert_eq!(late.number(), world.view.number());
}

#[test]
fn messages_that_are_lost_swapped_repeated_or_foreign_change_nothing() {
    let seed = seed();
    let mut world = World::new((8, 12), 2_000, |n| n, seed);
    (0..4_000).for_each(|_| world.step());
    let before = world.view.clone();
    let messages: Vec<Vec<u8>> =
        std::iter::from_fn(|| Some(world.change())).flatten().take(300).collect();
    let mut view = before.clone();
    for (at, message) in messages.iter().enumerate().skip(1) {
        let expected = before.number() + 1;
        let found = expected + at as u64;
        let error = view.apply_bytes(message);
        assert_eq!(error, Err(MessageError::OutOfSequence { found, expected }));
        assert!(view == before);
    }
    let mut foreign = World::new((8, 12), 2_000, |n| n, seed ^ 1);
    let other = foreign.change().or_else(|| foreign.change());
    for bytes in &messages {
        if let Some(other) = &other {
            assert!(matches!(view.apply_bytes(other), Err(MessageError::OtherTable { .. })));
        }
        view.apply_bytes(bytes).unwrap();
        let once = view.clone();
        assert!(matches!(view.apply_bytes(bytes), Err(MessageError::OutOfSequence { .. })));
        assert!(view == once);
    }
    assert!(view == *world.table.view());
}

fn damage(bytes: &[u8], rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    match rng.random_range(0..3) {
        0 => damaged.truncate(rng.random_range(0..bytes.len())),
        1 => damaged.extend(vec![0; rng.random_range(1..9)]),
        _ => {
            let at = rng.random_range(0..bytes.len());
            damaged[at] ^= 1 << rng.random_range(0..8);
        }
    }
    damaged
}

#[test]
fn damaged_messages_and_snapshots_are_refused_and_change_nothing() {
    let mut world = World::new((5, 12), 600, name, seed());
    let mut seen = HashMap::<FiltableKind, usize>::new();
    for _ in 0..3_000 {
        let Some(bytes) = world.change() else { continue };
        let times = seen.entry(world.table.update().kind()).or_default();
        *times += 1;
        if *times < 30 {
            let before = world.view.clone();
            for _ in 0..100 {
                let damaged = damage(&bytes, &mut world.rng);
                assert!(world.view.apply_bytes(&damaged).is_err());
            }
            assert!(world.view == before);
        }
        world.view.apply_bytes(&bytes).unwrap();
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
    let whole = world.view.to_bytes();
    for _ in 0..3_000 {
        let damaged = damage(&whole, &mut world.rng);
        assert!(FiltableView::<Octets<45>>::from_bytes(&damaged).is_err());
    }
}

/// A forger who knows the digest: what is applied leaves a view that is whole in itself, and what is
/// refused leaves it as it was.
#[test]
fn sealed_nonsense_is_refused_or_harmless() {
    let mut world = World::new((6, 12), 600, |n| n, seed());
    (0..1_500).for_each(|_| world.step());
    let (mut refused, mut tried) = (HashMap::<&str, usize>::new(), 0);
    for _ in 0..300 {
        let Some(bytes) = world.change() else { continue };
        let Message { kind, table, number, body } = Message::read(&bytes).unwrap();
        for _ in 0..60 {
            let mut forged = body.to_vec();
            for _ in 0..world.rng.random_range(1..4) {
                let at = world.rng.random_range(0..forged.len().min(40));
                forged[at] = world.rng.random();
            }
            let mut victim = world.view.clone();
            tried += 1;
            match victim.apply_bytes(&seal(kind, table, number, &forged)) {
                Ok(()) => {
                    let bytes = victim.to_bytes();
                    assert!(FiltableView::<u64>::from_bytes(&bytes).unwrap() == victim);
                }
                Err(error) => {
                    assert!(victim == world.view);
                    let reason = match error {
                        MessageError::OutOfRange { what } => what,
                        _ => "length",
                    };
                    *refused.entry(reason).or_default() += 1;
                }
            }
        }
        world.view.apply_bytes(&bytes).unwrap();
    }
    println!("of {tried} forgeries refused: {refused:?}");
    assert!(refused.values().sum::<usize>() * 2 > tried && refused.len() > 8);
}

/// A message of another kind of table, or of another version, is no message of this one.
#[test]
fn foreign_formats_are_refused() {
    let mut filtable = Filtable::new(8, 12, 100, 1);
    filtable.insert(1u64, 2).unwrap();
    let bytes = filtable.update().to_bytes();
    let Message { kind, table, number, body } = Message::read(&bytes).unwrap();
    let newer = Kind { version: kind.version + 1, ..kind };
    let refused = FiltableUpdate::<u64>::from_bytes(&seal(newer, table, number, body)).map(drop);
    assert_eq!(refused, Err(MessageError::OtherKind { found: newer, expected: kind }));
    let snapshot = filtable.view().to_bytes();
    assert!(FiltableUpdate::<u64>::from_bytes(&snapshot).is_err());
    assert!(FiltableView::<u64>::from_bytes(&bytes).is_err());
    assert!(FiltableView::<Octets<13>>::from_bytes(&snapshot).is_ok(), "no key in level 2 yet");
    assert!(FiltableView::<u64>::from_bytes(&[]).is_err());
}
