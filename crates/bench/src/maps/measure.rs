//! Rates of readers, and whether their answers are right.

use super::keys::{Draw, Set, key};
use super::reader::Reader;
use crate::blocks::{self, Slow};
use std::hint::black_box;
use std::thread;
use std::time::Instant;

/// Keys that are drawn before the clock runs: 32 KiB, so that they come from a near cache.
pub const BLOCK: usize = 4096;

/// How keys are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// In bursts of so many.
    Batched(usize),
    /// One after the other.
    Single,
}

impl Mode {
    fn run(self, reader: &mut dyn Reader, keys: &[u64]) {
        match self {
            Self::Batched(burst) => reader.batched(burst, keys),
            Self::Single => reader.single(keys),
        }
    }
}

/// Counts wrong answers to a block of keys.
pub type Inspect<'a> = &'a (dyn Fn(&[u64], &dyn Reader) -> usize + Sync);

/// Millions of lookups per second of all readers together, a thread each, and wrong answers by
/// `inspect`. Only lookups are timed; an eighth of them goes before, uncounted.
pub fn rate(
    readers: &mut [Box<dyn Reader>],
    draws: &mut [Draw],
    mode: Mode,
    lookups: usize,
    slow: Slow,
    inspect: Inspect,
) -> (f64, usize) {
    let each = lookups.div_ceil(readers.len()).div_ceil(BLOCK);
    let work = |reader: &mut dyn Reader, draw: &mut Draw, blocks: usize| {
        let (mut keys, mut times, mut wrong) = ([0; BLOCK], Vec::with_capacity(blocks), 0);
        for _ in 0..blocks {
            draw.fill(&mut keys);
            let start = Instant::now();
            mode.run(reader, &keys);
            times.push(start.elapsed());
            black_box(reader.answer(BLOCK - 1));
            wrong += inspect(&keys, reader);
        }
        (times, wrong)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = readers
            .iter_mut()
            .zip(draws)
            .map(|(reader, draw)| {
                scope.spawn(move || {
                    let (_, before) = work(reader.as_mut(), draw, each.div_ceil(8));
                    let (times, wrong) = work(reader.as_mut(), draw, each);
                    (blocks::rate(times, BLOCK, slow), before + wrong)
                })
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, (f64, usize)>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).fold((0.0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    })
}

/// Asks for every key in bursts and one at a time; returns how many keys got a wrong answer either
/// time. `expected`: what the map answers where the set says a value.
pub fn wrong_answers(
    reader: &mut dyn Reader,
    set: &Set,
    burst: usize,
    expected: fn(u64) -> u64,
) -> usize {
    let (mut wrong, mut keys) = (0, Vec::with_capacity(BLOCK));
    let mut batched = [None; BLOCK];
    for start in (0..set.count).step_by(BLOCK) {
        keys.clear();
        keys.extend((start..set.count.min(start + BLOCK)).map(|n| key(n as u64)));
        reader.batched(burst, &keys);
        batched.iter_mut().zip(0..keys.len()).for_each(|(slot, at)| *slot = reader.answer(at));
        reader.single(&keys);
        let right = |at: usize| {
            let value = Some(expected(set.value(keys[at])));
            batched[at] == value && reader.answer(at) == value
        };
        wrong += (0..keys.len()).filter(|&at| !right(at)).count();
    }
    wrong
}

/// Share of alien keys that get an answer.
pub fn alien_share(reader: &mut dyn Reader, set: &Set) -> f64 {
    let asked = 25 * BLOCK;
    let mut answered = 0;
    for start in (0..asked).step_by(BLOCK) {
        let keys: Vec<u64> = (start..start + BLOCK).map(|n| key((set.count + n) as u64)).collect();
        reader.batched(BLOCK, &keys);
        answered += (0..BLOCK).filter(|&at| reader.answer(at).is_some()).count();
    }
    answered as f64 / asked as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::reader::readers;

    const SET: Set = Set { count: 10_000, bits: 12, seed: 1 };

    #[test]
    fn every_wrong_answer_is_counted() {
        // Wrong for one key in bursts, for another one at a time, for a third either way.
        let [burst, alone, both] = [17, 4_100, 9_999].map(key);
        let value = |key: u64, lies: [u64; 2]| SET.value(key) ^ u64::from(lies.contains(&key));
        let make = readers(
            (),
            0,
            move |(), &key| value(key, [alone, both]),
            move |(), keys, out| {
                out.iter_mut().zip(keys).for_each(|(out, &key)| *out = value(key, [burst, both]));
            },
            Some,
        );
        assert_eq!(wrong_answers(make().as_mut(), &SET, 32, |value| value), 3);
    }

    #[test]
    fn alien_keys_are_no_valid_ones() {
        let valid: std::collections::HashSet<u64> = (0..SET.count as u64).map(key).collect();
        for (alien, skew) in [(true, None), (true, Some(1.1)), (false, None), (false, Some(0.8))] {
            let mut keys = [0; 5_000];
            Draw::new(&SET, alien, skew, 1).expect("a skew above 0").fill(&mut keys);
            assert!(keys.iter().all(|key| valid.contains(key) != alien), "{alien} {skew:?}");
        }
    }
}
