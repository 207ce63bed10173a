//! Readers of a shared Ludo view beside a writer.

use super::keys::Set;
use anyhow::{Result, ensure};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weir_lookup::{Ludo, LudoShared};

/// Most keys that the writer takes in turn.
const TOUCHED: usize = 1 << 16;

/// Whether a key may be updated during a race. The others must have their values throughout.
pub fn touched(key: u64) -> bool {
    key & 15 == 0
}

/// The maintainer and its shared view.
pub struct Writer {
    table: Ludo<u64>,
    shared: LudoShared,
    /// Key and value.
    items: Vec<(u64, u64)>,
}

impl Writer {
    /// Of a table that holds the set.
    pub fn new(table: Ludo<u64>, shared: LudoShared, set: &Set) -> Self {
        let items = set.numbered(0..set.count as u64);
        let items = items.filter(|item| touched(item.0)).take(TOUCHED).collect();
        Self { table, shared, items }
    }

    /// One key's value changes, it goes, it comes back: one of these steps.
    fn step(&mut self, number: u64) -> Result<()> {
        let (key, value) = self.items[(number / 3) as usize % self.items.len()];
        let done = match number % 3 {
            0 => self.table.change(&key, value ^ 1)?.is_some(),
            1 => self.table.remove(&key).is_some(),
            _ => self.table.insert(key, value)?.is_none(),
        };
        ensure!(done, "a table without a key that it had");
        self.shared.apply(self.table.update())?;
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
