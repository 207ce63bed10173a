//! OthelloSet: exact for its keys, told apart from aliens as often as equation 3.9 says, and a view
//! fed by messages is one exported whole.

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use std::collections::HashMap;
use weir_hash::{Key, Octets};
use weir_lookup::message::MessageError;
use weir_lookup::{OthelloSet, SetKind, SetUpdate, SetView};

/// What a data plane makes of a value that is the same for all.
fn port(plane: u32, host: u32) -> u32 {
    (host.wrapping_mul(0x9e37_79b1) >> 16).wrapping_add(plane) & 0xff
}

struct World {
    set: OthelloSet<u64, u32>,
    model: HashMap<u64, u32>,
    views: Vec<SetView>,
    sent: HashMap<SetKind, usize>,
    rng: ChaCha8Rng,
    /// Share of the steps that add a key.
    growth: f64,
}

impl World {
    fn new(fingerprint_bits: u32, capacity: usize, seed: u64) -> Self {
        let set = OthelloSet::new(8, fingerprint_bits, capacity, seed);
        let views = (0..3).map(|plane| set.export(plane, 0, |&host| port(plane, host))).collect();
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self { set, model: HashMap::new(), views, sent: HashMap::new(), rng, growth: 0.5 }
    }

    fn step(&mut self) {
        let host = self.rng.random_range(0..1000);
        let known: Option<u64> = if self.rng.random_bool(self.growth) {
            None
        } else {
            let at = self.rng.random_range(0..50);
            self.set.iter().nth(at).map(|(&key, _)| key)
        };
        match known {
            None => {
                let key = self.rng.random_range(0..1 << 40);
                assert_eq!(self.set.insert(key, host).unwrap(), self.model.insert(key, host));
            }
            Some(key) if self.rng.random_bool(0.6) => {
                assert_eq!(self.set.remove(&key), self.model.remove(&key));
            }
            Some(key) => {
                assert_eq!(self.set.insert(key, host).unwrap(), self.model.insert(key, host));
            }
        }
        *self.sent.entry(self.set.kind()).or_default() += 1;
        for plane in 0..self.views.len() {
            self.send(plane);
        }
    }

    fn send(&mut self, plane: usize) {
        let (view, id) = (&mut self.views[plane], plane as u32);
        let update = self.set.message(id, view.number() + 1, |&host| port(id, host));
        let bytes = update.to_bytes();
        assert_eq!(SetUpdate::from_bytes(&bytes).as_ref(), Ok(&update));
        view.apply_bytes(&bytes).unwrap();
    }

    fn check(&self) {
        for (plane, view) in self.views.iter().enumerate() {
            let plane = plane as u32;
            for (key, &host) in &self.model {
                assert_eq!(view.get(key), Some(port(plane, host)));
                assert_eq!(self.set.get(key), Some(&host));
            }
            let whole = self.set.export(plane, view.number(), |&host| port(plane, host));
            assert!(view.agrees_with(&whole, self.model.keys().copied()));
            assert_eq!(SetView::from_bytes(&view.to_bytes()).as_ref(), Ok(view));
        }
    }
}

#[test]
fn views_fed_by_messages_equal_views_exported_whole() {
    let seed = seed();
    let mut sent = HashMap::<SetKind, usize>::new();
    for round in 0..8u64 {
        let mut world = World::new(round as u32 * 3, 16 << round, seed.wrapping_add(round));
        world.growth = 0.4 + 0.05 * round as f64;
        for step in 0..10_000 {
            world.step();
            if step % 2000 == 1999 {
                world.check();
            }
        }
        println!("{} keys, {:?}", world.set.len(), world.sent);
        for (kind, count) in world.sent {
            *sent.entry(kind).or_default() += count;
        }
    }
    assert!(sent[&SetKind::Rebuild] > 1, "{sent:?}");
    assert!(sent[&SetKind::Add].min(sent[&SetKind::Delete]).min(sent[&SetKind::Change]) > 5000);
}

#[test]
fn batches_answer_as_single_lookups_do() {
    let seed = seed();
    for fingerprint_bits in [0, 7, 17, 22] {
        let mut set = OthelloSet::new(9, fingerprint_bits, 5000, seed);
        for key in 0..5000u64 {
            set.insert(key, key as u32 * 7).unwrap();
        }
        let view = set.export(0, 0, |&value| value);
        let keys: Vec<u64> = (0..10_007).collect();
        let mut out = vec![None; keys.len()];
        view.get_batch(&keys, &mut out);
        for (key, found) in keys.iter().zip(&out) {
            assert_eq!(*found, view.get(key));
            if *key < 5000 {
                assert_eq!(*found, Some((*key as u32 * 7) & 0x1ff));
            }
        }
    }
}

#[test]
fn messages_that_are_lost_swapped_repeated_or_foreign_change_nothing() {
    let seed = seed();
    let mut world = World::new(8, 1000, seed);
    (0..500).for_each(|_| world.step());
    let before = world.views[0].clone();
    let mut messages = Vec::new();
    for key in 0..40u64 {
        world.set.insert(1 << 50 | key, 5).unwrap();
        let number = before.number() + 1 + key;
        messages.push(world.set.message(0, number, |&host| port(0, host)).to_bytes());
    }
    let mut view = before.clone();
    for (at, refused) in [(1, 2), (5, 6)] {
        let expected = before.number() + 1;
        let found = before.number() + refused;
        let error = view.apply_bytes(&messages[at]);
        assert_eq!(error, Err(MessageError::OutOfSequence { found, expected }));
        assert_eq!(view, before);
    }
    view.apply_bytes(&messages[0]).unwrap();
    let once = view.clone();
    assert!(matches!(view.apply_bytes(&messages[0]), Err(MessageError::OutOfSequence { .. })));
    assert_eq!(view, once);
    let other = world.set.message(1, view.number() + 1, |&host| port(1, host)).to_bytes();
    assert!(matches!(view.apply_bytes(&other), Err(MessageError::OtherTable { .. })));
    assert_eq!(view, once);
    messages[1..].iter().for_each(|bytes| view.apply_bytes(bytes).unwrap());
}

#[test]
fn corrupt_messages_and_snapshots_are_refused_and_change_nothing() {
    let seed = seed();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut world = World::new(6, 300, seed);
    (0..400).for_each(|_| world.step());
    let kinds = [SetKind::Add, SetKind::Change, SetKind::Delete];
    for (at, kind) in kinds.into_iter().enumerate() {
        let key = 1u64 << 50;
        match kind {
            SetKind::Delete => drop(world.set.remove(&key)),
            _ => drop(world.set.insert(key, at as u32).unwrap()),
        }
        assert_eq!(world.set.kind(), kind);
        let view = &mut world.views[0];
        let update = world.set.message(0, view.number() + 1, |&host| port(0, host));
        let (bytes, before) = (update.to_bytes(), view.clone());
        for _ in 0..2000 {
            let mut damaged = bytes.clone();
            match rng.random_range(0..3) {
                0 => damaged.truncate(rng.random_range(0..bytes.len())),
                1 => damaged.extend(vec![0; rng.random_range(1..9)]),
                _ => {
                    let at = rng.random_range(0..bytes.len());
                    damaged[at] ^= 1 << rng.random_range(0..8);
                }
            }
            assert!(view.apply_bytes(&damaged).is_err());
            assert_eq!(*view, before);
        }
        view.apply_bytes(&bytes).unwrap();
    }
    let whole = world.views[0].to_bytes();
    for _ in 0..500 {
        let mut damaged = whole.clone();
        let at = rng.random_range(0..whole.len());
        damaged[at] ^= 1 << rng.random_range(0..8);
        assert!(SetView::from_bytes(&damaged).is_err());
        assert!(SetView::from_bytes(&whole[..at]).is_err());
    }
}

/// A forger who knows the digest: every field is checked before anything is changed.
#[test]
fn sealed_nonsense_is_refused_or_harmless() {
    use weir_lookup::message::{Message, seal};
    let seed = seed();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut world = World::new(6, 300, seed);
    (0..400).for_each(|_| world.step());
    world.set.insert(1 << 50, 1).unwrap();
    let view = &world.views[0];
    let bytes = world.set.message(0, view.number() + 1, |&host| port(0, host)).to_bytes();
    let Message { kind, table, number, body } = Message::read(&bytes).unwrap();
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut forged = body.to_vec();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..forged.len());
            forged[at] = rng.random();
        }
        let mut victim = view.clone();
        if victim.apply_bytes(&seal(kind, table, number, &forged)).is_err() {
            assert_eq!(victim, *view);
            refused += 1;
        }
    }
    println!("{refused} of 20,000 forgeries refused");
    assert!(refused > 5_000);
}

#[test]
fn aliens_pass_as_often_as_equation_3_9_says() {
    let seed = seed();
    const KEYS: u64 = 200_000;
    for fingerprint_bits in [0, 3, 7] {
        let mut set = OthelloSet::new(6, fingerprint_bits, KEYS as usize, seed);
        // Messages must leave the same rates as an export does.
        let mut view = set.export(0, 0, |&value: &u32| value);
        for key in 0..KEYS {
            set.insert(key, key as u32).unwrap();
            let update = set.message(0, view.number() + 1, |&value| value);
            view.apply(&update).unwrap();
        }
        let aliens = 8_000_000u64;
        let mut keys = vec![0u64; 1 << 16];
        let mut out = vec![None; keys.len()];
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut passed = [0usize; 2];
        let whole = set.export(0, 0, |&value| value);
        for (passed, view) in passed.iter_mut().zip([&view, &whole]) {
            for _ in 0..aliens >> 16 {
                keys.iter_mut().for_each(|key| *key = rng.random_range(KEYS..1 << 60));
                view.get_batch(&keys, &mut out);
                *passed += out.iter().flatten().count();
            }
        }
        let asked = (aliens >> 16 << 16) as f64;
        let expected = set.false_positive_rate();
        let ideal = (1.0 - (-1.0f64 / 1.165).exp()).powi(2) / f64::from(1 << fingerprint_bits);
        for passed in passed {
            let rate = passed as f64 / asked;
            println!("f = {fingerprint_bits}: {rate:.6}, shape {expected:.6}, ideal {ideal:.6}");
            assert!((rate / expected - 1.0).abs() < 0.05);
            assert!((rate / ideal - 1.0).abs() < 0.05);
        }
    }
}

#[test]
fn byte_strings_are_keys_and_equal_hashes_are_an_error() {
    let mut set = OthelloSet::<Octets<45>, u32>::new(10, 8, 100, 3);
    let name = |n: u32| {
        let mut name = [b'.'; 45];
        name[..4].copy_from_slice(&n.to_be_bytes());
        Octets(name)
    };
    (0..3000).for_each(|n| assert_eq!(set.insert(name(n), n), Ok(None)));
    let view = set.export(9, 4, |&n| n % 1000);
    assert!((0..3000).all(|n| view.get(&name(n)) == Some(n % 1000)));

    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Poor(u8);
    impl Key for Poor {
        fn hash(&self, _: &weir_hash::HashKey) -> u64 {
            7
        }
    }
    let mut poor = OthelloSet::new(4, 4, 100, 1);
    poor.insert(Poor(1), 1u32).unwrap();
    assert!(poor.insert(Poor(2), 2).is_err());
    assert_eq!((poor.len(), poor.get(&Poor(1)), poor.get(&Poor(2))), (1, Some(&1), None));
}
