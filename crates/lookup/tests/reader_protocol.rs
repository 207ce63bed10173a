//! Every interleaving, and every stale value that the memory model allows, of one writer and two
//! readers of the versioned reads under [`LudoShared`](weir_lookup::LudoShared) and
//! [`OthelloShared`](weir_lookup::OthelloShared).
//!
//! The protocol is the library's own file, compiled here over the atomics of the model checker
//! `loom`. What stands around it, the cells and buckets, is reduced to a word each. In the model
//! a reader tries once; real readers try until they succeed. Each step of the protocol is also
//! left out in turn, which the model must notice.

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
}

#[path = "../src/shared/version.rs"]
mod version;

use atomic::{AtomicU32, Ordering::Relaxed};
use loom::sync::Arc;
use version::{Version, is_marked, order_marks, order_reads, try_read, write};

/// A step of the protocol that is left out or misplaced.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    NoMark,
    NoOrderOfMarks,
    PublishedEarly,
    NoLookAtMarks,
    NoOrderOfReads,
    NoSecondLook,
}

/// A bucket of two words, which are equal whenever nothing is being written.
struct Bucket {
    version: Version,
    words: [AtomicU32; 2],
}

impl Bucket {
    fn new() -> Self {
        Self { version: Version::new(), words: [0, 0].map(AtomicU32::new) }
    }

    fn fill(&self, value: u32) {
        self.words.iter().for_each(|word| word.store(value, Relaxed));
    }

    fn words(&self) -> [u32; 2] {
        [0, 1].map(|at| self.words[at].load(Relaxed))
    }

    /// `write` step by step, with a fault.
    fn write_with(&self, fault: Fault, value: u32) {
        if fault == Fault::None {
            return write(|| [&self.version].into_iter(), || self.fill(value));
        }
        if fault != Fault::NoMark {
            self.version.mark();
        }
        if fault != Fault::NoOrderOfMarks {
            order_marks();
        }
        if fault == Fault::PublishedEarly {
            self.version.publish();
        }
        self.fill(value);
        self.version.publish();
    }

    /// `try_read` step by step, with a fault.
    fn read_with(&self, fault: Fault) -> Option<[u32; 2]> {
        if fault == Fault::None {
            return try_read([&self.version], || self.words());
        }
        let before = self.version.load();
        if is_marked(before) && fault != Fault::NoLookAtMarks {
            return None;
        }
        let words = self.words();
        if fault != Fault::NoOrderOfReads {
            order_reads();
        }
        (fault == Fault::NoSecondLook || self.version.is(before)).then_some(words)
    }
}

/// Runs a writer beside some readers, in all ways with at most two forced changes between threads.
fn model<const READERS: usize, T: Send + Sync + 'static>(
    new: impl Fn() -> T + Send + Sync + 'static,
    writer: impl Fn(&T) + Copy + Send + Sync + 'static,
    reader: impl Fn(&T) + Copy + Send + Sync + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let shared = Arc::new(new());
        let readers = [(); READERS].map(|()| {
            let shared = shared.clone();
            loom::thread::spawn(move || reader(&shared))
        });
        writer(&shared);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// Two writes beside two readers, who must not see a mix.
fn bucket_model(fault: Fault) {
    model::<2, _>(
        Bucket::new,
        move |bucket| (1..=2).for_each(|value| bucket.write_with(fault, value)),
        move |bucket| {
            if let Some([first, second]) = bucket.read_with(fault) {
                assert_eq!(first, second, "a mix of two versions");
            }
        },
    );
}

#[test]
fn no_reader_sees_a_mix_of_versions() {
    bucket_model(Fault::None);
}

#[test]
fn a_write_that_was_joined_is_seen() {
    loom::model(|| {
        let bucket = Arc::new(Bucket::new());
        let writer = {
            let bucket = bucket.clone();
            loom::thread::spawn(move || bucket.write_with(Fault::None, 1))
        };
        writer.join().unwrap();
        assert_eq!(bucket.read_with(Fault::None), Some([1, 1]));
    });
}

macro_rules! faults {
    ($($name:ident: $fault:ident),* $(,)?) => {$(
        #[test]
        #[should_panic = "a mix of two versions"]
        fn $name() {
            bucket_model(Fault::$fault);
        }
    )*};
}

faults! {
    without_marks_a_mix_is_seen: NoMark,
    without_order_after_marks_a_mix_is_seen: NoOrderOfMarks,
    with_early_publishing_a_mix_is_seen: PublishedEarly,
    without_a_look_at_marks_a_mix_is_seen: NoLookAtMarks,
    without_order_before_the_second_look_a_mix_is_seen: NoOrderOfReads,
    without_a_second_look_a_mix_is_seen: NoSecondLook,
}

/// What a Ludo reader walks: a locator that says in which bucket a key stands, and two buckets.
struct Table {
    locator: Version,
    place: AtomicU32,
    buckets: [Version; 2],
    values: [AtomicU32; 2],
}

/// The key's value in the model below; any other is another key's.
const VALUE: u32 = 7;

impl Table {
    fn new() -> Self {
        Self {
            locator: Version::new(),
            place: AtomicU32::new(0),
            buckets: [(); 2].map(|()| Version::new()),
            values: [VALUE, 1].map(AtomicU32::new),
        }
    }

    /// Moves the key to the other bucket; another key takes its place.
    fn move_key(&self) {
        write(
            || self.buckets.iter(),
            || {
                write(|| [&self.locator].into_iter(), || self.place.store(1, Relaxed));
                self.values[1].store(VALUE, Relaxed);
                self.values[0].store(2, Relaxed);
            },
        );
    }

    /// As `LudoReader::get`.
    fn get(&self, versions: [&Version; 2]) -> Option<u32> {
        try_read(versions, || {
            let place = try_read([&self.locator], || self.place.load(Relaxed))?;
            Some(self.values[place as usize].load(Relaxed))
        })
        .flatten()
    }

    /// As one key of `LudoReader::get_batch`: locator and versions first, buckets later.
    fn lookup_late(&self) -> Option<u32> {
        let (before, place) = try_read([&self.locator], || {
            (self.buckets.each_ref().map(Version::load), self.place.load(Relaxed))
        })?;
        let value = self.values[place as usize].load(Relaxed);
        order_reads();
        let same = self.buckets.iter().zip(before).all(|(version, before)| version.is(before));
        (same && !before.into_iter().any(is_marked)).then_some(value)
    }
}

fn found(value: Option<u32>) {
    assert!(value.is_none_or(|value| value == VALUE), "another key's value");
}

#[test]
fn a_key_that_moves_is_found() {
    model::<1, _>(Table::new, Table::move_key, |table| {
        let [first, second] = &table.buckets;
        found(table.get([first, second]));
    });
}

#[test]
fn a_key_that_moves_is_found_by_a_batch() {
    model::<1, _>(Table::new, Table::move_key, |table| found(table.lookup_late()));
}

/// The locator's version is not enough.
#[test]
#[should_panic = "another key's value"]
fn without_the_versions_of_buckets_a_moving_key_is_missed() {
    model::<1, _>(Table::new, Table::move_key, |table| {
        let place = try_read([&table.locator], || table.place.load(Relaxed));
        found(place.map(|place| table.values[place as usize].load(Relaxed)));
    });
}

/// The two cells of a key in an Othello, with a version each.
struct Cells {
    versions: [Version; 2],
    cells: [AtomicU32; 2],
}

impl Cells {
    fn new() -> Self {
        let versions = [(); 2].map(|()| Version::new());
        Self { versions, cells: [5, 5 ^ VALUE].map(AtomicU32::new) }
    }

    /// Changes the value of another key, on whose side both cells are; then this key's.
    fn flips(&self) {
        let flip = |cells: &[usize], delta| {
            write(
                || cells.iter().map(|&cell| &self.versions[cell]),
                || {
                    for cell in cells.iter().map(|&cell| &self.cells[cell]) {
                        cell.store(cell.load(Relaxed) ^ delta, Relaxed);
                    }
                },
            );
        };
        flip(&[0, 1], 16);
        flip(&[1], 32);
    }

    fn check(&self, versions: [&Version; 2]) {
        let read = || self.cells[0].load(Relaxed) ^ self.cells[1].load(Relaxed);
        let value = try_read(versions, read);
        let right = value.is_none_or(|value| value == VALUE || value == VALUE ^ 32);
        assert!(right, "half a flip");
    }
}

#[test]
fn no_reader_sees_half_a_flip() {
    model::<2, _>(Cells::new, Cells::flips, |cells| {
        cells.check(cells.versions.each_ref());
    });
}
