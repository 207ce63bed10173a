//! `ConnTable` against a model, over random histories.

use super::{flow, seeded};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use weir_hash::HashKey;
use weir_steering::StateKey;
use weir_steering::cheetah::{ConnTable, ConnTableConfig};

/// What the model knows of a connection.
#[derive(Clone, Copy, Debug)]
struct Entry {
    backend: u16,
    last: u32,
    limit: u32,
    closing: bool,
}

struct World {
    table: ConnTable,
    config: ConnTableConfig,
    model: BTreeMap<(StateKey, u16), Entry>,
    flows: Vec<StateKey>,
    now: u32,
    rng: ChaCha8Rng,
    opened: u64,
    refused: u64,
}

impl World {
    fn new(mut rng: ChaCha8Rng) -> Self {
        let slots = rng.random_range(1..=64);
        let config = ConnTableConfig {
            partitions: rng.random_range(1..=8),
            slots,
            bits: rng.random_range(u32::BITS - (slots - 1).leading_zeros()..=15),
            opening_seconds: rng.random_range(1..10),
            idle_seconds: rng.random_range(20..100),
            linger_seconds: rng.random_range(1..20),
        };
        let table = ConnTable::new(HashKey::from_seed(rng.random()), config).unwrap();
        let flows = (0..600).map(|_| StateKey::of_flow(&flow(&mut rng))).collect();
        // The seconds wrap as well.
        let now = rng.random_range(u32::MAX - 1_000..=u32::MAX);
        let model = BTreeMap::new();
        Self { table, config, model, flows, now, rng, opened: 0, refused: 0 }
    }

    fn is_over(&self, entry: &Entry) -> bool {
        self.now.wrapping_sub(entry.last) > entry.limit
    }

    fn some_connection(&mut self) -> Option<((StateKey, u16), Entry)> {
        let nth = self.rng.random_range(0..self.model.len().max(1));
        self.model.iter().nth(nth).map(|(key, entry)| (*key, *entry))
    }

    fn step(&mut self) {
        match self.rng.random_range(0..12) {
            0..=3 => self.open(),
            4..=6 => self.packet(),
            7 => self.close(),
            8 => self.forge(),
            9 => self.now = self.now.wrapping_add(self.rng.random_range(0..6)),
            10 => {
                let steps = self.rng.random_range(0..20);
                self.table.sweep(steps, self.now, |_| true);
            }
            _ => self.sweep_all(),
        }
        assert!(self.table.len() <= self.table.capacity());
    }

    fn open(&mut self) {
        let flow = *self.flows.choose(&mut self.rng).unwrap();
        let backend = self.rng.random_range(0..5);
        match self.table.open(&flow, backend, self.now) {
            Ok(cookie) => {
                assert!(u32::from(cookie) < 1 << self.config.bits);
                let limit = self.config.opening_seconds;
                let entry = Entry { backend, last: self.now, limit, closing: false };
                if let Some(before) = self.model.insert((flow, cookie), entry) {
                    assert!(self.is_over(&before), "a slot was given away twice");
                }
                self.opened += 1;
            }
            Err(_) => self.refused += 1,
        }
    }

    fn packet(&mut self) {
        let Some(((flow, cookie), mut entry)) = self.some_connection() else { return };
        let ends = self.rng.random_ratio(1, 4);
        let found = self.table.packet(&flow, cookie, ends, self.now);
        if found.is_none() {
            assert!(self.is_over(&entry), "a live connection is lost: {entry:?}");
            self.model.remove(&(flow, cookie));
            return;
        }
        assert_eq!(found, Some(entry.backend));
        entry.last = self.now;
        entry.closing |= ends;
        let ConnTableConfig { idle_seconds, linger_seconds, .. } = self.config;
        entry.limit = if entry.closing { linger_seconds } else { idle_seconds };
        self.model.insert((flow, cookie), entry);
    }

    fn close(&mut self) {
        let Some(((flow, cookie), entry)) = self.some_connection() else { return };
        let closed = self.table.close(&flow, cookie);
        assert!(closed == Some(entry.backend) || closed.is_none() && self.is_over(&entry));
        assert_eq!(self.table.close(&flow, cookie), None);
        self.model.remove(&(flow, cookie));
    }

    /// A cookie that was not given out for the flow finds nothing.
    fn forge(&mut self) {
        for _ in 0..20 {
            let flow = *self.flows.choose(&mut self.rng).unwrap();
            let cookie = self.rng.random();
            if !self.model.contains_key(&(flow, cookie)) {
                assert_eq!(self.table.get(&flow, cookie), None);
            }
        }
    }

    fn sweep_all(&mut self) {
        let capacity = self.table.capacity() as u32;
        let gone = self.rng.random_bool(0.1).then(|| self.rng.random_range(0..5u16));
        self.table.sweep(capacity, self.now, |backend| Some(backend) != gone);
        let now = self.now;
        self.model.retain(|_, entry| {
            now.wrapping_sub(entry.last) <= entry.limit && Some(entry.backend) != gone
        });
        assert_eq!(self.table.len(), self.model.len(), "slots leak, or are released early");
        for ((flow, cookie), entry) in &self.model {
            assert_eq!(self.table.get(flow, *cookie), Some(entry.backend));
        }
    }

    /// In the end every slot comes back, once: the table can be filled to the last one.
    fn everything_comes_back(&mut self) {
        let capacity = self.table.capacity();
        self.now = self.now.wrapping_add(self.config.idle_seconds + 1);
        self.table.sweep(capacity as u32, self.now, |_| true);
        assert!(self.table.is_empty());
        let mut opened = 0;
        for _ in 0..100 * capacity {
            let flow = StateKey::of_flow(&flow(&mut self.rng));
            opened += usize::from(self.table.open(&flow, 0, self.now).is_ok());
        }
        assert_eq!((opened, self.table.len()), (capacity, capacity));
    }
}

#[test]
fn histories_agree_with_a_model() {
    let mut rng = seeded();
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..300 {
        let mut world = World::new(ChaCha8Rng::seed_from_u64(rng.random()));
        for _ in 0..3_000 {
            world.step();
        }
        world.everything_comes_back();
        opened += world.opened;
        refused += world.refused;
    }
    println!("{opened} connections opened, {refused} found no room");
    assert!(opened > 50_000 && refused > 1_000);
}
