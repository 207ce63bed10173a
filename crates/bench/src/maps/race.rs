//! Readers of a shared map beside a writer.

use super::keys::Set;
use crate::Result;
use crate::error::ensure;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weir_lookup::{Ludo, LudoShared, OthelloShared};

/// Most keys that the writer takes in turn.
const TOUCHED: usize = 1 << 16;

/// Whether a key may be updated during a race. The others must have their values throughout.
pub fn touched(key: u64) -> bool {
    key & 15 == 0
}

/// A maintainer whose readers see each change when it has been made.
pub trait Maintainer: Send {
    /// Changes the value of a key that is there; whether it was.
    fn change(&mut self, key: u64, value: u64) -> Result<bool>;
    /// Takes a key out; whether it was there.
    fn remove(&mut self, key: u64) -> Result<bool>;
    /// Adds a key; whether it was new.
    fn insert(&mut self, key: u64, value: u64) -> Result<bool>;
}

/// A table, and the view of it that readers share.
impl Maintainer for (Ludo<u64>, LudoShared) {
    fn change(&mut self, key: u64, value: u64) -> Result<bool> {
        let there = self.0.change(&key, value)?.is_some();
        self.1.apply(self.0.update())?;
        Ok(there)
    }

    fn remove(&mut self, key: u64) -> Result<bool> {
        let there = self.0.remove(&key).is_some();
        self.1.apply(self.0.update())?;
        Ok(there)
    }

    fn insert(&mut self, key: u64, value: u64) -> Result<bool> {
        let new = self.0.insert(key, value)?.is_none();
        self.1.apply(self.0.update())?;
        Ok(new)
    }
}

impl Maintainer for OthelloShared<u64> {
    fn change(&mut self, key: u64, value: u64) -> Result<bool> {
        Ok(OthelloShared::insert(self, key, value)?.is_some())
    }

    fn remove(&mut self, key: u64) -> Result<bool> {
        Ok(OthelloShared::remove(self, &key).is_some())
    }

    fn insert(&mut self, key: u64, value: u64) -> Result<bool> {
        Ok(OthelloShared::insert(self, key, value)?.is_none())
    }
}

/// A maintainer, and what it changes.
pub struct Writer {
    table: Box<dyn Maintainer>,
    /// Key and value.
    items: Vec<(u64, u64)>,
}

impl Writer {
    /// Of a table that holds the set.
    pub fn new(table: impl Maintainer + 'static, set: &Set) -> Self {
        let items = set.numbered(0..set.count as u64);
        let items = items.filter(|item| touched(item.0)).take(TOUCHED).collect();
        Self { table: Box::new(table), items }
    }

    /// One key's value changes, it goes, it comes back: one of these steps.
    fn step(&mut self, number: u64) -> Result<()> {
        let (key, value) = self.items[(number / 3) as usize % self.items.len()];
        let done = match number % 3 {
            0 => self.table.change(key, value ^ 1)?,
            1 => self.table.remove(key)?,
            _ => self.table.insert(key, value)?,
        };
        ensure!(done, "a table without a key that it had");
        Ok(())
    }

    /// Makes `per_s` updates a second while `readers` runs, then brings the table back to what it
    /// was. Returns what `readers` returned, and thousands of updates per second that were made.
    ///
    /// # Errors
    ///
    /// An update that fails.
    pub fn beside<R>(&mut self, per_s: f64, readers: impl FnOnce() -> R) -> Result<(R, f64)> {
        if self.items.is_empty() {
            return Ok((readers(), 0.0));
        }
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let over = &over;
            let writer = scope.spawn(move || -> Result<f64> {
                let (start, mut made) = (Instant::now(), 0u64);
                while !over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                    // Made up for if the thread woke late.
                    while (made as f64) < start.elapsed().as_secs_f64() * per_s
                        && !over.load(Ordering::Relaxed)
                    {
                        self.step(made)?;
                        made += 1;
                    }
                }
                let rate = made as f64 / start.elapsed().as_secs_f64() / 1e3;
                while !made.is_multiple_of(3) {
                    self.step(made)?;
                    made += 1;
                }
                Ok(rate)
            });
            let result = readers();
            over.store(true, Ordering::Relaxed);
            match writer.join() {
                Ok(rate) => Ok((result, rate?)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}
