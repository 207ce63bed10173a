//! A data plane that many threads read while one applies messages.

use super::view::{check, next};
use super::{Layout, MessageError, SetKind, SetUpdate, SetView};
use crate::Key;
use crate::message::check_next;
use crate::shared::cells::SharedCells;
use crate::shared::hub::{Publisher, Subscriber};

/// A table as readers see it.
#[derive(Debug)]
struct Published {
    layout: Layout,
    cells: SharedCells,
}

/// The writer's handle of a shared [`SetView`]: it applies messages while [`SetReader`]s look up.
///
/// Readers take no lock. The versions of all cells that a message changes are marked until the last
/// of them is written, so a reader sees all of a message or nothing of it: a valid key always has a
/// value that it had during the lookup. A rebuild is published as a new table; readers that are in
/// the old one finish there.
///
/// ```
/// use weir_lookup::{OthelloSet, SetShared};
///
/// let mut set: OthelloSet<u64, u32> = OthelloSet::new(8, 4, 1000, 1);
/// let mut shared = SetShared::new(&set.export(0, 0, |value| *value));
/// let mut reader = shared.reader();
/// set.insert(7, 5)?;
/// shared.apply(&set.message(0, 1, |value| *value))?;
/// let found = std::thread::spawn(move || reader.get(&7u64)).join().unwrap();
/// assert_eq!(found, Some(5));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Debug)]
pub struct SetShared {
    table: u64,
    number: u64,
    published: Publisher<Published>,
}

/// A reader of a [`SetShared`]; each thread has its own.
///
/// ```
/// use weir_lookup::{OthelloSet, SetShared};
///
/// let mut set: OthelloSet<u64, u32> = OthelloSet::new(8, 4, 1000, 1);
/// set.insert(7, 5)?;
/// set.insert(8, 6)?;
/// let shared = SetShared::new(&set.export(0, 0, |value| *value));
/// let mut reader = shared.reader();
/// let mut values = [None; 2];
/// reader.get_batch(&[7u64, 8], &mut values);
/// assert_eq!(values, [Some(5), Some(6)]);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SetReader(Subscriber<Published>);

impl Published {
    fn new(view: &SetView) -> Self {
        let (layout, key, geometry) = view.shape();
        let cells = SharedCells::new(key, geometry, layout.cell_bits(), view.cells());
        Self { layout, cells }
    }

    #[inline(always)]
    fn cell(&self, node: u32) -> u32 {
        self.cells.cell(node) as u32
    }

    /// The writer's side.
    fn apply(&self, update: &SetUpdate) {
        let [a, b] = update.ends.map(|end| self.cell(end) >> 1);
        let delta = match update.kind {
            SetKind::Delete => 0,
            _ => (a ^ b ^ update.payload) << 1,
        };
        let side = update.cells.iter().map(|&cell| (cell, u64::from(delta)));
        let ends = update.ends.into_iter().zip(update.turned);
        let turned = ends.filter(|(_, turned)| *turned).map(|(end, _)| (end, 1));
        self.cells.flip(side.chain(turned));
    }
}

impl SetShared {
    /// Shares a view with readers on other threads; messages go through this handle.
    pub fn new(view: &SetView) -> Self {
        let (table, number) = (view.table(), view.number());
        Self { table, number, published: Publisher::new(Published::new(view)) }
    }

    /// A reader for another thread.
    pub fn reader(&self) -> SetReader {
        SetReader(self.published.subscribe())
    }

    /// Number of the last message that it has seen.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The data plane of its set that it is; see [`SetView::table`].
    pub fn table(&self) -> u64 {
        self.table
    }

    /// Bytes of what readers read.
    pub fn bytes(&self) -> usize {
        self.published.current().cells.bytes()
    }

    /// Applies the next message. Lookups that begin after it has returned see it.
    ///
    /// # Errors
    /// As [`SetView::apply`]; nothing is changed then.
    pub fn apply(&mut self, update: &SetUpdate) -> Result<(), MessageError> {
        check_next((update.table, update.number), (self.table, self.number))?;
        let published = self.published.current();
        if let Some(whole) = &update.whole {
            let next = next(whole, update, published.layout)?;
            self.published.publish(Published::new(&next));
        } else {
            let cell = |node| published.cell(node);
            check(update, published.layout, published.cells.geometry(), cell)?;
            published.apply(update);
        }
        self.number = update.number;
        Ok(())
    }

    /// Reads a message from bytes and applies it.
    ///
    /// # Errors
    /// As [`SetUpdate::from_bytes`] and [`apply`](Self::apply).
    pub fn apply_bytes(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        self.apply(&SetUpdate::from_bytes(bytes)?)
    }

    /// The view as it is now.
    pub fn to_view(&self) -> SetView {
        let Published { layout, cells } = self.published.current();
        let geometry = cells.geometry();
        let mut view = SetView::empty(self.table, self.number, *layout, *cells.key(), geometry);
        let held: Vec<u32> =
            (0..geometry.cells() as u32).map(|node| cells.cell(node) as u32).collect();
        view.fill(&held);
        view
    }
}

impl SetReader {
    /// The value of a key; `None` for an alien key, but with the probability of
    /// [`OthelloSet::false_positive_rate`](super::OthelloSet::false_positive_rate).
    #[inline]
    pub fn get<K: Key>(&mut self, key: &K) -> Option<u32> {
        let Published { layout, cells } = self.0.current();
        cells.get(key, |hash, pair| layout.answer(hash, pair.map(|cell| cell as u32)))
    }

    /// The values of many keys, with the cache misses of a batch under way at a time. All come from
    /// one generation of the table; each is what its key had at some time during the call.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&mut self, keys: &[K], out: &mut [Option<u32>]) {
        let Published { layout, cells } = self.0.current();
        let answer = |hash, pair: [u64; 2]| layout.answer(hash, pair.map(|cell| cell as u32));
        cells.get_batch(keys, out, answer);
    }
}
