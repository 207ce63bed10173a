//! Updates of one maintainer by kind.

use super::clock::timed;
use super::keys::Set;
use crate::Result;
use crate::Spread;
use crate::error::ensure;
use serde::Serialize;
use weir_lookup::{Ludo, LudoChange, Othello, Value};

/// Keys that are changed, deleted and inserted again in a round, at most.
const SAMPLE: usize = 250_000;

/// Millions of updates per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Updates {
    /// Keys that were in the table before they were deleted, so at nearly full load.
    pub insert: Spread,
    /// New values; none if the structure has no values.
    pub change: Option<Spread>,
    /// Millions of deletions per second.
    pub delete: Spread,
}

impl Updates {
    /// As many of each kind.
    pub fn mixed(&self) -> f64 {
        let kinds = [Some(self.insert), self.change, Some(self.delete)];
        let medians: Vec<f64> = kinds.into_iter().flatten().map(|spread| spread.median).collect();
        medians.len() as f64 / medians.iter().map(|rate| 1.0 / rate).sum::<f64>()
    }
}

#[derive(Default)]
struct Rounds([Vec<f64>; 3]);

impl Rounds {
    fn note(&mut self, kind: usize, count: usize, work: impl FnOnce() -> bool) -> Result<()> {
        let (good, seconds) = timed(work);
        ensure!(good, "an update failed");
        self.0[kind].push(count as f64 / seconds / 1e6);
        Ok(())
    }

    fn updates(self) -> Updates {
        let [insert, change, delete] = self.0;
        let changes = !change.is_empty();
        Updates {
            insert: Spread::of(insert),
            change: changes.then(|| Spread::of(change)),
            delete: Spread::of(delete),
        }
    }
}

/// How a table is updated; each tells whether it went well.
pub struct Ways<T> {
    /// A new key.
    pub insert: fn(&mut T, u64, u64) -> bool,
    /// A key that is there.
    pub change: Option<fn(&mut T, u64, u64) -> bool>,
    /// A key that is there.
    pub delete: fn(&mut T, u64) -> bool,
}

/// Measures a full table and leaves it with the same keys and values.
///
/// # Errors
///
/// An update that fails.
pub fn one_at_a_time<T>(table: &mut T, set: &Set, rounds: u32, ways: Ways<T>) -> Result<Updates> {
    let items: Vec<(u64, u64)> = set.numbered(set.sample(SAMPLE).into_iter()).collect();
    let mut measured = Rounds::default();
    for _ in 0..rounds {
        if let Some(change) = ways.change {
            measured.note(1, items.len(), || {
                items.iter().fold(true, |good, item| good & change(table, item.0, item.1 ^ 1))
            })?;
        }
        measured.note(2, items.len(), || {
            items.iter().fold(true, |good, item| good & (ways.delete)(table, item.0))
        })?;
        measured.note(0, items.len(), || {
            items.iter().fold(true, |good, item| good & (ways.insert)(table, item.0, item.1))
        })?;
    }
    Ok(measured.updates())
}

/// Makes an item a change of one kind.
type Kind = fn(&(u64, u64)) -> LudoChange<u64>;

/// The same for Ludo's updates in batches.
///
/// # Errors
///
/// An update that fails.
pub fn batched(table: &mut Ludo<u64>, set: &Set, rounds: u32) -> Result<Updates> {
    let items: Vec<(u64, u64)> = set.numbered(set.sample(SAMPLE).into_iter()).collect();
    let mut measured = Rounds::default();
    for _ in 0..rounds {
        let kinds: [Kind; 3] = [
            |item| LudoChange::Insert(item.0, item.1),
            |item| LudoChange::Change(item.0, item.1 ^ 1),
            |item| LudoChange::Remove(item.0),
        ];
        for kind in [1, 2, 0] {
            let changes: Vec<_> = items.iter().map(kinds[kind]).collect();
            measured.note(kind, items.len(), || table.change_batch(&changes, |_| ()).is_ok())?;
        }
    }
    Ok(measured.updates())
}

/// The same for Othello, one at a time and in batches. Its keys go by numbers: the last key takes a
/// deleted key's number.
///
/// # Errors
///
/// An update that fails.
pub fn othello<V: Value>(
    table: &mut Othello<u64, V>,
    set: &Set,
    rounds: u32,
) -> Result<[Updates; 2]> {
    let numbers = set.sample(SAMPLE);
    let mut measured = [Rounds::default(), Rounds::default()];
    for _ in 0..rounds {
        for (batched, measured) in measured.iter_mut().enumerate() {
            othello_round(table, set, &numbers, batched == 1, measured)?;
        }
    }
    Ok(measured.map(Rounds::updates))
}

/// Changes values and back, deletes keys, inserts them again.
fn othello_round<V: Value>(
    table: &mut Othello<u64, V>,
    set: &Set,
    numbers: &[u64],
    batched: bool,
    measured: &mut Rounds,
) -> Result<()> {
    for flip in [1, 0] {
        let values: Vec<(usize, V)> = (numbers.iter())
            .map(|&n| (n as usize, V::of_word(set.value(table.keys()[n as usize]) ^ flip)))
            .collect();
        measured.note(1, values.len(), || {
            if batched {
                table.change_batch(&values);
            } else {
                values.iter().for_each(|&(number, value)| table.change(number, value));
            }
            true
        })?;
    }
    let mut gone = Vec::with_capacity(numbers.len());
    measured.note(2, numbers.len(), || {
        let take = |&n: &u64| table.remove(n as usize % table.len());
        gone.extend(numbers.iter().map(take));
        true
    })?;
    let items: Vec<(u64, V)> = gone.iter().map(|&key| (key, V::of_word(set.value(key)))).collect();
    measured.note(0, items.len(), || {
        if batched {
            table.insert_batch(&items).is_ok()
        } else {
            items.iter().all(|&(key, value)| table.insert(key, value).is_ok())
        }
    })
}
