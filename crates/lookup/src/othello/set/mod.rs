//! OthelloSet: one graph, many data planes that know which keys are alien (dissertation 3.4.3).

mod export;
mod shared;
mod update;
mod view;

pub use export::SetExporter;
pub use shared::{SetReader, SetShared};
pub use update::{SetKind, SetUpdate};
pub use view::SetView;

use crate::message::MessageError;
use crate::othello::Othello;
use crate::{Error, Geometry, HashKey, Key};

/// How a cell is divided, from the top: value, fingerprint, and one bit that says whether the cell
/// belongs to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    value_bits: u32,
    fingerprint_bits: u32,
}

impl Layout {
    /// Bits of a cell without the emptiness bit.
    fn payload_bits(self) -> u32 {
        self.value_bits + self.fingerprint_bits
    }

    fn cell_bits(self) -> u32 {
        self.payload_bits() + 1
    }

    /// A fingerprint from a hash whose halves choose the cells: the product makes its high bits
    /// depend on all.
    #[inline(always)]
    fn fingerprint(self, hash: u64) -> u32 {
        let spread = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        ((spread >> 32) >> (32 - self.fingerprint_bits)) as u32
    }

    /// What the two cells of a key have to give, without the emptiness bit.
    #[inline(always)]
    fn payload(self, hash: u64, value: u32) -> u32 {
        let value = value & (u64::MAX >> (64 - self.value_bits)) as u32;
        (value << self.fingerprint_bits) | self.fingerprint(hash)
    }

    /// What the two cells of a key say; bits above the cells' width do not count.
    #[inline(always)]
    fn answer(self, hash: u64, [a, b]: [u32; 2]) -> Option<u32> {
        let payload = ((a ^ b) & crate::memory::bits::mask(self.cell_bits())) >> 1;
        let fingerprint = (1u32 << self.fingerprint_bits) - 1;
        let known = a & b & 1 != 0 && payload & fingerprint == self.fingerprint(hash);
        let value = (payload >> self.fingerprint_bits) & crate::memory::bits::mask(self.value_bits);
        known.then_some(value)
    }
}

/// What the last change did to the graph; the same for every data plane.
#[derive(Clone, Debug)]
struct Change {
    kind: SetKind,
    /// The cells of the key.
    ends: [u32; 2],
    /// Which of them became, or ceased to be, a cell without a key.
    turned: [bool; 2],
    /// The cells to be changed: one side of the key's edge, beginning with its end there.
    cells: Vec<u32>,
    /// Number of the key, unless it has gone.
    position: usize,
}

/// The maintainer of many [`SetView`]s over one set of keys.
///
/// An exact map (keys, values, and an Othello from keys to their positions), whose acyclic graph
/// serves every data plane: one that gives other values to the same keys differs only in the
/// contents of its cells. [`export`](Self::export) fills them in one pass; after that each change
/// is one message, whose cells are found once and whose value is the plane's own.
///
/// ```
/// use weir_lookup::OthelloSet;
///
/// // Ports of 8 bits and fingerprints of 16, for two nodes that give other ports to the same keys.
/// let mut set: OthelloSet<u64, u32> = OthelloSet::new(8, 16, 1000, 1);
/// set.insert(7, 5)?;
/// let port = |node: u32| move |host: &u32| host + node;
/// let mut planes = [set.export(0, 0, port(0)), set.export(1, 0, port(1))];
/// assert_eq!(planes.each_ref().map(|plane| plane.get(&7u64)), [Some(5), Some(6)]);
/// assert_eq!(planes[0].get(&8u64), None); // an alien; 1 in 2^16 at most passes
///
/// set.insert(8, 9)?;
/// for node in [0, 1] {
///     let message = set.message(node, 1, port(node)).to_bytes();
///     planes[node as usize].apply_bytes(&message).unwrap();
/// }
/// assert_eq!(planes.each_ref().map(|plane| plane.get(&8u64)), [Some(9), Some(10)]);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OthelloSet<K, V> {
    index: Othello<K>,
    values: Vec<V>,
    layout: Layout,
    id: u64,
    change: Change,
}

impl<K: Key, V> OthelloSet<K, V> {
    /// A set whose data planes have values of `value_bits` (1..) and fingerprints of
    /// `fingerprint_bits` (0..) bits, 31 in all at most, and at first room for `capacity` keys.
    /// `seed` makes every run with it the same.
    ///
    /// # Panics
    /// If there is no value bit, or more than 31 bits in all.
    pub fn new(value_bits: u32, fingerprint_bits: u32, capacity: usize, seed: u64) -> Self {
        let layout = Layout { value_bits, fingerprint_bits };
        assert!(value_bits > 0 && layout.cell_bits() <= 32, "value and fingerprint: 1..=31 bits");
        let change = Change {
            kind: SetKind::Rebuild,
            ends: [0; 2],
            turned: [false; 2],
            cells: Vec::new(),
            position: 0,
        };
        let index = Othello::with_geometry_bits(32, layout.cell_bits(), capacity, seed);
        let id = HashKey::from_seed(seed).hash_word(capacity as u64);
        Self { index, values: Vec::new(), layout, id, change }
    }

    /// Number of keys in the set.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// How many keys fit before the arrays grow.
    pub fn capacity(&self) -> usize {
        self.index.capacity()
    }

    /// The value of a key; exact.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.index.number_of(key).map(|at| &self.values[at])
    }

    /// All keys with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.index.keys().iter().zip(&self.values)
    }

    /// Adds a key or changes its value; returns the former value.
    ///
    /// # Errors
    /// [`Error::NoAcyclicGraph`] if the key type's hash is broken; nothing is changed then.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Error> {
        self.change.cells.clear();
        self.change.turned = [false; 2];
        if let Some(at) = self.index.number_of(&key) {
            let former = std::mem::replace(&mut self.values[at], value);
            self.change.kind = SetKind::Change;
            self.change.position = at;
            self.change.ends = self.index.edge_ends(at);
            self.index.side_of(at, &mut self.change.cells);
            return Ok(Some(former));
        }
        let position = self.values.len();
        let alone = self.index.isolated(&key);
        let joined = self.index.insert_joining(key, position as u32, &mut self.change.cells)?;
        self.change.kind = if joined { SetKind::Add } else { SetKind::Rebuild };
        self.change.position = position;
        self.change.ends = self.index.edge_ends(position);
        if joined {
            self.change.turned = alone;
        }
        self.values.push(value);
        Ok(None)
    }

    /// Takes a key out; returns its value. Its cells keep what they hold; those that no other key
    /// uses are marked as empty.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.index.number_of(key)?;
        self.change.cells.clear();
        self.change.kind = SetKind::Delete;
        self.change.ends = self.index.edge_ends(at);
        self.index.remove_number(at);
        self.change.turned = self.index.isolated(key);
        Some(self.values.swap_remove(at))
    }

    /// What the last change was; [`SetKind::Rebuild`] means that every plane needs a whole view.
    pub fn kind(&self) -> SetKind {
        self.change.kind
    }

    /// A data plane whole: every key gets `value(its value here)`, O(n), no search for a graph.
    ///
    /// `plane` tells the data planes of this set apart; the next message for this one has number
    /// `number + 1`.
    pub fn export(&self, plane: u32, number: u64, value: impl Fn(&V) -> u32) -> SetView {
        self.exporter().export(plane, number, value)
    }

    /// What exports of several planes have in common, found once.
    pub fn exporter(&self) -> SetExporter<'_, K, V> {
        SetExporter::new(self)
    }

    /// The last change as message number `number` for a data plane that gives `value(..)`. A plane
    /// whose value for a changed key stays the same needs none.
    ///
    /// # Panics
    /// If nothing was changed yet.
    pub fn message(&self, plane: u32, number: u64, value: impl Fn(&V) -> u32) -> SetUpdate {
        let Change { kind, ends, turned, ref cells, position } = self.change;
        let plane_id = self.plane_id(plane);
        let mut update = SetUpdate::new(plane_id, number, kind, self.layout.payload_bits());
        match kind {
            SetKind::Rebuild => {
                update.payload_bits = 0;
                update.whole = Some(self.export(plane, number, value).to_bytes());
            }
            SetKind::Delete => (update.ends, update.turned) = (ends, turned),
            SetKind::Add | SetKind::Change => {
                let hash = self.index.keys()[position].hash(self.index.hash_key());
                update.payload = self.layout.payload(hash, value(&self.values[position]));
                (update.ends, update.turned) = (ends, turned);
                update.cells.clone_from(cells);
            }
        }
        update
    }

    fn plane_id(&self, plane: u32) -> u64 {
        self.id.wrapping_add(u64::from(plane).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The chance that an alien key gets a value: both cells are in use and the fingerprint agrees,
    /// `(1 - e^(-n/m))^2 / 2^f` for n keys and two arrays of m cells (equation 3.9, with f not
    /// counting the emptiness bit).
    pub fn false_positive_rate(&self) -> f64 {
        let geometry = self.index.geometry();
        let used = |cells: u32| 1.0 - (-(self.len() as f64) / f64::from(cells)).exp();
        used(geometry.cells_a()) * used(geometry.cells_b())
            / (1u64 << self.layout.fingerprint_bits) as f64
    }

    /// Shape of the data planes.
    pub fn geometry(&self) -> Geometry {
        self.index.geometry()
    }

    /// How often the graph was rebuilt under a new seed.
    pub fn rebuilds(&self) -> u64 {
        self.index.rebuilds()
    }

    /// Bytes of the maintainer's own allocations.
    pub fn control_bytes(&self) -> usize {
        self.index.control_bytes() + self.values.capacity() * size_of::<V>()
    }
}
