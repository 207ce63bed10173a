//! Messages of a Filtable (dissertation 3.4.2, Fig. 3.1 (b)).

use super::slots::{Place, Slots};
use super::view::FiltableView;
use crate::cuckoo::path::{MAX_PATH, SLOTS};
use crate::memory::packed::ones;
use crate::message::{BitReader, BitWriter, Kind, Message, MessageError, out_of_range, seal};
use crate::{FixedKey, Key};

/// Whole keys that one message carries at most: a new one, and the two that it collides with.
const MAX_KEYS: usize = 3;

/// What an update is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FiltableKind {
    /// A key and its value came.
    Insert = 0,
    /// A key's value changed.
    Change = 1,
    /// A key went, and its slot is free.
    Remove = 2,
    /// The table was built anew; the message holds the whole view.
    Rebuild = 3,
}

/// One change of a [`Filtable`](super::Filtable), for its views.
///
/// In level 1, a new key's digest and value go into the first slot of a cuckoo path, and what is in
/// a slot of the path goes to the next; slots are given values, or cleared. In level 2, whole keys
/// come, change or go. Messages of a table are numbered without gaps; bytes carry a digest.
///
/// ```
/// use weir_lookup::{Filtable, FiltableUpdate, Octets};
///
/// let mut table: Filtable<Octets<4>> = Filtable::new(10, 12, 1000, 1);
/// let mut view = table.view().clone();
/// table.insert(Octets(*b"name"), 300)?;
/// view.apply(&FiltableUpdate::from_bytes(&table.update().to_bytes())?)?;
/// assert_eq!(view.get(&Octets(*b"name")), Some(300));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FiltableUpdate<K> {
    pub(super) table: u64,
    pub(super) number: u64,
    pub(super) kind: FiltableKind,
    pub(super) digest_bits: u32,
    pub(super) value_bits: u32,
    /// The new digest; none if the slot keeps its own.
    pub(super) digest: u32,
    /// The new value of level 1.
    pub(super) value: u64,
    pub(super) path: Vec<Place>,
    /// Slots that become free.
    pub(super) cleared: Vec<Place>,
    /// Keys of level 2 with their values; without one, they go.
    pub(super) keys: Vec<(K, Option<u64>)>,
    pub(super) whole: Option<Box<FiltableView<K>>>,
}

impl<K> FiltableUpdate<K> {
    pub(super) fn new(table: u64, digest_bits: u32, value_bits: u32) -> Self {
        Self {
            table,
            number: 0,
            kind: FiltableKind::Insert,
            digest_bits,
            value_bits,
            digest: 0,
            value: 0,
            path: Vec::new(),
            cleared: Vec::new(),
            keys: Vec::new(),
            whole: None,
        }
    }

    /// Starts the next message in the memory of the last one.
    pub(super) fn begin(&mut self, kind: FiltableKind, number: u64) {
        (self.kind, self.number) = (kind, number);
        (self.digest, self.value) = (0, 0);
        self.path.clear();
        self.cleared.clear();
        self.keys.clear();
        self.whole = None;
    }

    /// What the update is about.
    pub fn kind(&self) -> FiltableKind {
        self.kind
    }

    /// The number of the message; the first change of a table has number 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The table that it belongs to.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// How many slots of level 1 are written.
    pub fn slots(&self) -> usize {
        self.path.len() + self.cleared.len()
    }

    /// How many keys of level 2 come, change or go.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }
}

impl<K: FixedKey> FiltableUpdate<K> {
    /// The message's bytes in the common format ([`crate::message`]), with a bit-packed body.
    ///
    /// Body, from the lowest bit on: kind (2 bits), width w of a bucket's number (6; 0 in a rebuild,
    /// whose next byte begins a snapshot), widths d of a digest and l of a value less one (5, 6),
    /// how many slots are on the path (4), become free (2), and how many keys follow (2). If there
    /// is a path: digest (d, for a key that comes), value (l), and the slots (w + 2 each). Then the
    /// slots that become free, and the keys, each with a bit that says whether a value (l) follows.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = BitWriter::default();
        out.put(self.kind as u64, 2);
        match &self.whole {
            Some(whole) => {
                out.put(0, 6);
                out.put_bytes(&whole.to_bytes());
            }
            None => self.put_body(&mut out),
        }
        seal(Kind::FILTABLE_UPDATE, self.table, self.number, &out.finish())
    }

    fn put_body(&self, out: &mut BitWriter) {
        let places = || self.path.iter().chain(&self.cleared);
        let largest = places().map(|place| place.0).max().unwrap_or(0);
        let width = (32 - largest.leading_zeros()).max(1);
        out.put(width.into(), 6);
        out.put(u64::from(self.digest_bits) - 1, 5);
        out.put(u64::from(self.value_bits) - 1, 6);
        for (count, bits) in [(self.path.len(), 4), (self.cleared.len(), 2), (self.keys.len(), 2)] {
            out.put(count as u64, bits);
        }
        if !self.path.is_empty() {
            if self.kind == FiltableKind::Insert {
                out.put(self.digest.into(), self.digest_bits);
            }
            out.put(self.value, self.value_bits);
        }
        for &(bucket, slot) in places() {
            out.put(bucket.into(), width);
            out.put(slot.into(), 2);
        }
        for (key, value) in &self.keys {
            out.put_bytes(key.to_bytes().as_ref());
            out.put(value.is_some().into(), 1);
            value.iter().for_each(|&value| out.put(value, self.value_bits));
        }
    }

    /// Reads a message that fills `bytes`.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with the bytes. Whether a message fits a view is checked
    /// when it is applied.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        let message = Message::read(bytes)?.expect(Kind::FILTABLE_UPDATE)?;
        let mut input = BitReader::new(message.body);
        let kind = match input.get(2)? {
            0 => FiltableKind::Insert,
            1 => FiltableKind::Change,
            2 => FiltableKind::Remove,
            _ => FiltableKind::Rebuild,
        };
        let width = input.get(6)? as u32;
        let mut update = Self::new(message.table, 1, 1);
        (update.number, update.kind) = (message.number, kind);
        if kind == FiltableKind::Rebuild {
            if width != 0 {
                return out_of_range("the head of a rebuild");
            }
            let whole = FiltableView::from_bytes(input.rest())?;
            (update.digest_bits, update.value_bits) = whole.widths();
            update.whole = Some(Box::new(whole));
            return Ok(update);
        }
        if !(1..=32).contains(&width) {
            return out_of_range("the width of a bucket's number");
        }
        update.get_body(&mut input, width)?;
        input.end()?;
        Ok(update)
    }

    fn get_body(&mut self, input: &mut BitReader<'_>, width: u32) -> Result<(), MessageError> {
        self.digest_bits = input.get(5)? as u32 + 1;
        self.value_bits = input.get(6)? as u32 + 1;
        let [path, cleared, keys] = [input.get(4)?, input.get(2)?, input.get(2)?];
        if path > 0 {
            if self.kind == FiltableKind::Insert {
                self.digest = input.get(self.digest_bits)? as u32;
            }
            self.value = input.get(self.value_bits)?;
        }
        for at in 0..path + cleared {
            let place = (input.get(width)? as u32, input.get(2)? as u8);
            if at < path { &mut self.path } else { &mut self.cleared }.push(place);
        }
        for _ in 0..keys {
            let key = input.key()?;
            let has_value = input.get(1)? != 0;
            let value = has_value.then(|| input.get(self.value_bits)).transpose()?;
            self.keys.push((key, value));
        }
        Ok(())
    }
}

impl<K: Key> FiltableUpdate<K> {
    /// Whether the update can follow what is in a view. Nothing is changed before that is known.
    pub(super) fn check(&self, view: &FiltableView<K>) -> Result<(), MessageError> {
        let slots = &view.slots;
        if let Some(whole) = &self.whole {
            let same = (whole.table, whole.number) == (self.table, self.number);
            return if same && whole.widths() == view.widths() {
                Ok(())
            } else {
                out_of_range("the view of a rebuild")
            };
        }
        if (self.digest_bits, self.value_bits) != view.widths() {
            return out_of_range("the width of a slot");
        }
        let places = || self.path.iter().chain(&self.cleared);
        if places().any(|&(bucket, slot)| bucket >= slots.buckets || usize::from(slot) >= SLOTS) {
            return out_of_range("a slot");
        }
        let parts = (self.path.len(), self.cleared.len(), self.keys.len());
        let with_values = self.keys.iter().all(|(_, value)| value.is_some());
        let fits = match (self.kind, parts) {
            (FiltableKind::Insert, (path, 0, 0)) => (1..=MAX_PATH).contains(&path),
            (FiltableKind::Insert, (0, cleared, keys)) => {
                keys == cleared + 1 && keys <= MAX_KEYS && with_values
            }
            (FiltableKind::Change, (1, 0, 0)) => true,
            (FiltableKind::Change, (0, 0, 1)) => with_values,
            (FiltableKind::Remove, (0, 1, 0)) => true,
            (FiltableKind::Remove, (0, 0, 1)) => !with_values,
            _ => false,
        };
        if !fits {
            return out_of_range("what an update consists of");
        }
        self.check_path(slots)?;
        let is_used = |&(bucket, slot): &Place| slots.digest(bucket, slot.into()) != 0;
        if !self.cleared.iter().all(is_used)
            || (1..self.cleared.len()).any(|at| self.cleared[..at].contains(&self.cleared[at]))
        {
            return out_of_range("a slot that becomes free");
        }
        self.check_keys(view)
    }

    /// All slots of a path are in use but the last, and it does not cross itself.
    fn check_path(&self, slots: &Slots) -> Result<(), MessageError> {
        let crosses = (1..self.path.len())
            .any(|at| self.path[..at].iter().any(|place| place.0 == self.path[at].0));
        let comes = self.kind == FiltableKind::Insert;
        let used = |&(bucket, slot): &Place| slots.digest(bucket, slot.into()) != 0;
        let goes = match self.path.split_last() {
            None => return Ok(()),
            Some((last, before)) => before.iter().all(used) && used(last) != comes,
        };
        if crosses || !goes || (self.digest != 0) != comes {
            return out_of_range("a cuckoo path");
        }
        Ok(())
    }

    /// Keys that come are not in level 2 yet, others are.
    fn check_keys(&self, view: &FiltableView<K>) -> Result<(), MessageError> {
        let comes = self.kind == FiltableKind::Insert;
        for (at, (key, _)) in self.keys.iter().enumerate() {
            let twice = self.keys[..at].iter().any(|(other, _)| other == key);
            if twice || view.level2.get(key).is_some() == comes {
                return out_of_range("a key of level 2");
            }
        }
        Ok(())
    }

    /// Does to a view what [`check`](Self::check) has found possible.
    pub(super) fn perform(&self, view: &mut FiltableView<K>) {
        view.number = self.number;
        if let Some(whole) = &self.whole {
            view.clone_from(whole);
            return;
        }
        match (self.kind, self.path.first()) {
            (FiltableKind::Change, Some(&(bucket, slot))) => {
                let digest = view.slots.digest(bucket, slot.into());
                view.slots.write(bucket, slot.into(), digest, self.value & ones(self.value_bits));
            }
            _ => view.slots.shift(&self.path, self.digest, self.value),
        }
        for &(bucket, slot) in &self.cleared {
            view.slots.write(bucket, slot.into(), 0, 0);
        }
        for &(key, value) in &self.keys {
            match value {
                Some(value) => drop(view.level2.insert(key, value)),
                None => drop(view.level2.remove(&key)),
            }
        }
    }
}
