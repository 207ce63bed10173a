//! The parts of a maintainer that are built anew when it grows, and how a key finds its place.

use super::Shape;
use super::forest::Forest;
use super::source::{Found, Plan, Source};
use super::tables::Tables;
use super::update::{LudoKind, LudoUpdate};
use super::view::LudoView;
use crate::{HashKey, Key};

/// Keys that the fallback table takes before the table is built anew. It holds 0.67 on average:
/// the edges that would close a cycle in the locator.
const FALLBACK_KEYS: usize = 24;

/// Items of a batch whose memory is on its way.
pub(crate) const AHEAD: usize = 16;

/// What is built anew when the table grows.
#[derive(Clone, Debug)]
pub(crate) struct Core<K> {
    pub(crate) view: LudoView,
    pub(crate) forest: Forest,
    pub(crate) source: Source<K>,
    pub(crate) fallback: Vec<(u64, K)>,
}

/// Where a key stands.
pub(crate) enum Place {
    Slot(u32, u8),
    Fallback(usize),
    Twin,
    Nowhere,
}

impl<K: Key> Core<K> {
    pub(crate) fn new(table: u64, key: HashKey, shape: Shape) -> Self {
        Self {
            view: LudoView::empty(table, key, shape),
            forest: Forest::new(2 * shape.cells as usize),
            source: Source::new(shape),
            fallback: Vec::new(),
        }
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &K) -> u64 {
        key.hash(&self.view.tables.key)
    }

    /// Asks for what the change of a key begins with.
    #[inline(always)]
    pub(crate) fn fetch(&self, hash: u64) {
        self.view.tables.fetch_cells(hash);
        self.source.fetch_meta(hash);
        self.forest.fetch(self.view.tables.shape.cells_of(hash));
    }

    /// Asks for what it goes on with, once that is there.
    #[inline(always)]
    pub(crate) fn fetch_next(&self, hash: u64) {
        let shape = self.view.tables.shape;
        let likely = self.view.tables.bucket_of(hash);
        for bucket in shape.buckets_of(hash) {
            if bucket == likely || self.source.is_full(likely) {
                self.source.fetch_bucket(bucket);
                self.view.tables.fetch_bucket(bucket);
            }
        }
        self.forest.fetch_neighbours(shape.cells_of(hash));
    }

    /// Asks for the bucket to which the first key will move that can, if both buckets are full,
    /// and for that key's cells.
    #[inline(always)]
    pub(crate) fn fetch_path(&self, hash: u64) {
        let shape = self.view.tables.shape;
        let mut roots = shape.buckets_of(hash);
        if roots[0] != self.view.tables.bucket_of(hash) {
            roots.swap(0, 1);
        }
        if let Some((moved, to)) = self.source.first_move(roots) {
            self.source.fetch_bucket(to);
            self.view.tables.fetch_bucket(to);
            self.forest.fetch(shape.cells_of(moved));
        }
    }

    /// Asks for all at once, without waiting.
    #[inline(always)]
    pub(crate) fn fetch_all(&self, hash: u64) {
        self.fetch(hash);
        for bucket in self.view.tables.shape.buckets_of(hash) {
            self.source.fetch_bucket(bucket);
            self.view.tables.fetch_bucket(bucket);
        }
    }

    /// Where a key stands. The locator is right for every key of the table, so one bucket tells.
    #[inline]
    pub(crate) fn find(&self, key: &K, hash: u64) -> Place {
        if self.view.extras.may_hold(hash)
            && let Some(at) = self.fallback.iter().position(|&(other, _)| other == hash)
        {
            let same = self.fallback[at].1 == *key;
            return if same { Place::Fallback(at) } else { Place::Twin };
        }
        match self.source.find(key, hash, self.view.tables.bucket_of(hash)) {
            Found::Key(bucket, slot) => Place::Slot(bucket, slot),
            Found::Twin => Place::Twin,
            Found::Nothing => Place::Nowhere,
        }
    }

    /// Adds a key that is not there. Fails, with nothing changed, if the fallback table is full.
    pub(crate) fn insert(
        &mut self,
        key: K,
        hash: u64,
        value: u64,
        update: &mut LudoUpdate,
        number: u64,
    ) -> Result<(), ()> {
        update.begin(LudoKind::Insert, number, value);
        if let Some(plan) = self.plan(hash, key, &mut update.cells) {
            self.source.commit(&plan, (hash, key), &mut update.nodes);
        } else if self.fallback.len() < FALLBACK_KEYS {
            self.fallback.push((hash, key));
            update.fallback = Some(hash);
        } else {
            return Err(());
        }
        self.view.apply_rest(update);
        Ok(())
    }

    /// Finds a place for a new key, and makes the locator agree with it.
    fn plan(&mut self, hash: u64, key: K, flipped: &mut Vec<u32>) -> Option<Plan> {
        let preferred = self.view.tables.bucket_of(hash);
        let mut pinned = [0; 4];
        for count in 0..=pinned.len() {
            let plan = self.source.plan((hash, key), preferred, &pinned[..count])?;
            match self.redirect(hash, &plan, flipped) {
                Ok(()) => return Some(plan),
                Err(moved) => *pinned.get_mut(count)? = moved?,
            }
        }
        None
    }

    /// Makes the locator agree with a plan. If a cycle forbids that, nothing is changed, and the
    /// error names the key that cannot be moved; `None` is the new one.
    fn redirect(
        &mut self,
        hash: u64,
        plan: &Plan,
        flipped: &mut Vec<u32>,
    ) -> Result<(), Option<u64>> {
        let Self { view, forest, source, .. } = self;
        let Tables { shape, cells, .. } = &view.tables;
        let mut invert =
            |hash| forest.invert(shape.cells_of(hash), cells, flipped).map_err(|_| Some(hash));
        let mut done = source.moved(plan).try_for_each(&mut invert);
        if done.is_ok() {
            let bit = source.bit(hash, plan);
            let edge = shape.cells_of(hash);
            done = forest.insert(edge, bit, cells, flipped).map_err(|_| None);
        }
        if done.is_err() {
            flipped.drain(..).for_each(|cell| cells.flip(cell.into()));
        }
        done
    }

    /// The same items, and one more, in new tables; `None` if hashes collide or if they do not fit.
    pub(crate) fn copy_into(
        &self,
        hash_key: HashKey,
        shape: Shape,
        item: Option<(K, u64)>,
        update: &mut LudoUpdate,
    ) -> Option<Self> {
        let mut core = Self::new(self.view.table, hash_key, shape);
        let same = hash_key == self.view.tables.key;
        let slots = self.source.entries().map(|(bucket, slot, hash, key)| {
            let hash = if same { hash } else { key.hash(&hash_key) };
            (hash, key, self.view.tables.value(bucket, slot))
        });
        let fallback = self.fallback.iter().map(|&(hash, key)| {
            (key.hash(&hash_key), key, self.view.extras.fallback(hash).unwrap_or(0))
        });
        let item = item.iter().map(|&(key, value)| (key.hash(&hash_key), key, value));
        let mut ahead = std::collections::VecDeque::with_capacity(AHEAD + 1);
        for next in slots.chain(fallback).chain(item).map(Some).chain([None; AHEAD]) {
            if let Some(next) = next {
                core.fetch_all(next.0);
                ahead.push_back(next);
                if ahead.len() <= AHEAD {
                    continue;
                }
            }
            let Some((hash, key, value)) = ahead.pop_front() else { break };
            if !matches!(core.find(&key, hash), Place::Nowhere) {
                return None;
            }
            core.insert(key, hash, value, update, 0).ok()?;
        }
        Some(core)
    }
}
