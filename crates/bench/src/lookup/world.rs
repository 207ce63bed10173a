//! What all methods have in common: the flows, the backends, and how both change.

use super::stream::key;
use crate::Result;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_placement::Candidate;
use weir_steering::{BackendId, Member, Role};

/// One block of the table of results.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Number of live flows.
    pub states: usize,
    /// Number of readers, each with its part of the flows.
    pub threads: usize,
    /// Number of backends in the pool.
    pub backends: u16,
    /// Makes every run with it the same, times apart.
    pub seed: u64,
}

impl World {
    /// The flows of one reader, by number.
    pub fn part(&self, thread: usize) -> Range<usize> {
        let at =
            |thread: usize| (self.states as u64 * thread as u64 / self.threads as u64) as usize;
        at(thread)..at(thread + 1)
    }

    /// The keys of one reader's flows.
    pub fn keys(&self, thread: usize) -> impl ExactSizeIterator<Item = u64> + use<> {
        self.part(thread).map(|number| key(number as u64))
    }

    /// The keys of all flows, in the order of their numbers.
    pub fn all_keys(&self) -> impl ExactSizeIterator<Item = u64> + use<> {
        (0..self.states).map(|number| key(number as u64))
    }

    /// Backends on JET's horizon: 10 % of the pool.
    pub fn horizon(&self) -> u16 {
        self.backends.div_ceil(10)
    }

    /// The pool in which the flows began: without the last twentieth of the backends, so that a
    /// method that remembers has something to remember.
    pub fn first_pool(&self) -> Pool {
        let late = self.backends.div_ceil(20).min(self.backends - 1);
        Pool { weights: (0..self.backends).map(|b| u32::from(b < self.backends - late)).collect() }
    }

    /// The pool since then: all backends, with equal weights.
    pub fn pool(&self) -> Pool {
        Pool { weights: vec![1; usize::from(self.backends)] }
    }
}

/// Backends `0..weights.len()`, with their weights.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Weight of each backend, by its number.
    pub weights: Vec<u32>,
}

/// The name of a backend.
pub fn name(backend: usize) -> String {
    format!("backend {backend}")
}

impl Pool {
    /// Calls with the candidates of a placement.
    pub fn with_candidates<R>(&self, then: impl FnOnce(&[Candidate<'_>]) -> R) -> R {
        let names: Vec<String> = (0..self.weights.len()).map(name).collect();
        let each = names.iter().zip(&self.weights).enumerate();
        let candidates: Vec<Candidate<'_>> = each
            .map(|(b, (name, &weight))| Candidate { name, backend: b as u16, weight })
            .collect();
        then(&candidates)
    }

    /// As members of a service.
    pub fn members(&self) -> Vec<Member> {
        let each = self.weights.iter().enumerate();
        each.map(|(b, &weight)| Member {
            backend: BackendId::of(b as u16),
            name: name(b),
            weight,
            role: Role::Serving,
        })
        .collect()
    }

    /// The next change: the backend whose weight was doubled gets its own again, and the one after
    /// it the double. Returns both with their new weights.
    pub fn turn(&mut self) -> [(u16, u32); 2] {
        let doubled = self.weights.iter().position(|&weight| weight == 2);
        let last = doubled.unwrap_or(self.weights.len() - 1);
        let next = (last + 1) % self.weights.len();
        (self.weights[last], self.weights[next]) = (1, 2);
        [(last as u16, 1), (next as u16, 2)]
    }
}

/// The control plane of a method, while its readers are measured.
pub trait Control: Send {
    /// A flow has ended and another one has begun. What the packets did by themselves is not to
    /// be done again.
    ///
    /// # Errors
    ///
    /// Whatever a control structure says.
    fn turnover(&mut self, old: u64, new: u64) -> Result<()> {
        let _ = (old, new);
        Ok(())
    }

    /// The pool changes.
    ///
    /// # Errors
    ///
    /// Whatever a build says.
    fn change(&mut self) -> Result<()>;
}

/// The flows of one reader: slots whose flow is replaced by a new one, in turn.
pub struct Window {
    first: u64,
    len: u64,
    /// Distance between the numbers of the flows that one slot holds one after the other.
    stride: u64,
    /// How many were replaced.
    turned: AtomicU64,
}

impl Window {
    /// Slots for this part of the flows.
    pub fn new(part: Range<usize>, states: usize) -> Self {
        let (first, len) = (part.start as u64, part.len() as u64);
        Self { first, len, stride: states as u64, turned: AtomicU64::new(0) }
    }

    /// How many flows were replaced.
    pub fn turned(&self) -> u64 {
        self.turned.load(Ordering::Acquire)
    }

    /// The keys of the flows that these slots hold now.
    pub fn keys(&self, slots: &[u32], keys: &mut [u64]) {
        let turned = self.turned();
        let (laps, cursor) = (turned / self.len, turned % self.len);
        for (key_out, &slot) in keys.iter_mut().zip(slots) {
            let lap = laps + u64::from(u64::from(slot) < cursor);
            *key_out = key(self.first + u64::from(slot) + self.stride * lap);
        }
    }

    /// The `turn`-th replacement: the keys of the old flow and of the new one.
    pub fn replacement(&self, turn: u64) -> (u64, u64) {
        let old = self.first + turn % self.len + self.stride * (turn / self.len);
        (key(old), key(old + self.stride))
    }

    /// So many more were replaced.
    pub fn advance(&self, by: u64) {
        self.turned.fetch_add(by, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_window_always_holds_as_many_different_flows() {
        let world = World { states: 10, threads: 3, backends: 4, seed: 1 };
        let windows: Vec<Window> = (0..3).map(|t| Window::new(world.part(t), 10)).collect();
        let live = |windows: &[Window]| {
            let mut live = HashSet::new();
            for (thread, window) in windows.iter().enumerate() {
                let slots: Vec<u32> = (0..world.part(thread).len() as u32).collect();
                let mut keys = vec![0; slots.len()];
                window.keys(&slots, &mut keys);
                live.extend(keys);
            }
            live
        };
        let mut expected: HashSet<u64> = world.all_keys().collect();
        assert_eq!(live(&windows), expected);
        for turn in 0..25 {
            let (old, new) = windows[1].replacement(turn);
            assert!(expected.remove(&old) && expected.insert(new));
            windows[1].advance(1);
            assert_eq!(live(&windows), expected);
            assert_eq!(expected.len(), 10);
        }
    }

    #[test]
    fn changes_double_one_weight_after_the_other() {
        let mut pool = World { states: 1, threads: 1, backends: 3, seed: 1 }.pool();
        assert_eq!(pool.turn(), [(2, 1), (0, 2)]);
        assert_eq!(pool.turn(), [(0, 1), (1, 2)]);
        assert_eq!(pool.weights, [1, 2, 1]);
    }
}
