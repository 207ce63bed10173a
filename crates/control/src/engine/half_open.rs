//! Connections of which only the SYN was seen: a budget of their own.
//!
//! A flood of SYNs from made-up addresses makes states as fast as packets come. They take nothing from
//! connections that are open: there are no more of them than [`HalfOpen`] has room for, and when one
//! more comes, an oldest one goes: that of the source prefixes that have most, so that a prefix that
//! floods pushes out its own. Who has sent more than a SYN by then is no longer half-open and stays.

use super::EngineError;
use super::prefixes::number_of;
use super::service::{ENDED, HALF_OPEN, ServiceRuntime, record};
use crate::config::Protocol;
use crate::store::{Op, StateRecord};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;
use weir_hash::{HashKey, Key};
use weir_steering::{BackendId, Known, Phase, StateKey};

/// No source prefix holds more than this part of the budget.
const MOST_OF_ONE: usize = 16;
/// Prefixes share this many queues at most, and fewer if there were not so many half-open connections in
/// each: who is the oldest of a few tells little of who is the oldest of all.
const QUEUES: usize = 4096;
const OF_A_QUEUE: usize = 64;
/// Half-open connections that are looked at in a turn of the engine: less than a millisecond's worth.
const LOOKED_AT: usize = 4096;

/// A half-open connection, and when its SYN came.
pub(super) type Waiting = (StateKey, u32);

/// The half-open connections of a service, the oldest of each source prefix first. What has become of
/// them meanwhile does not stand here: who takes one out has to look.
#[derive(Default)]
pub(super) struct HalfOpen {
    budget: usize,
    len: usize,
    /// By the numbers of their source prefixes, which several prefixes share.
    queues: HashMap<u16, VecDeque<Waiting>>,
    /// The queue that has most, or had until others went.
    longest: u16,
    /// Pushed out, and not looked at yet.
    fell: Vec<Waiting>,
    /// How many of those were of each queue.
    fell_of: HashMap<u16, usize>,
    /// Queues that are still to be looked through.
    unlooked: Vec<u16>,
    /// How many were forgotten.
    pub forgotten: u64,
}

/// Sources of one prefix have one hash.
fn prefix_of(key: &StateKey) -> u64 {
    number_of(key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

impl HalfOpen {
    pub fn set_budget(&mut self, budget: usize) {
        self.budget = budget;
        if self.len <= budget {
            return;
        }
        let each = budget / self.queues.len();
        for (prefix, queue) in &mut self.queues {
            let over = queue.len().saturating_sub(each);
            *self.fell_of.entry(*prefix).or_default() += over;
            self.fell.extend(queue.drain(..over));
            self.len -= over;
        }
        self.queues.retain(|_, queue| !queue.is_empty());
    }

    /// How many there may be.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Half-open connections, and a few that were until a moment ago.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Those that are known for no other reason than that nobody has looked at them yet.
    pub fn waiting(&self) -> usize {
        self.len + self.fell.len()
    }

    /// Of those, the ones of the prefix that a key is of, and of prefixes that share its queue.
    pub fn waiting_of(&self, key: &StateKey) -> usize {
        let prefix = self.queue_of(key);
        self.held(prefix) + self.fell_of.get(&prefix).copied().unwrap_or_default()
    }

    /// Whether some were pushed out since [`fallen`](Self::fallen) was called.
    pub fn is_over(&self) -> bool {
        !self.fell.is_empty()
    }

    /// Takes those that were pushed out.
    pub fn fallen(&mut self) -> Vec<Waiting> {
        self.fell_of.clear();
        std::mem::take(&mut self.fell)
    }

    /// A SYN has come.
    pub fn push(&mut self, key: StateKey, now: u32) {
        let prefix = self.queue_of(&key);
        let held = self.held(self.longest);
        let queue = self.queues.entry(prefix).or_default();
        queue.push_back((key, now));
        self.len += 1;
        if queue.len() >= held {
            self.longest = prefix;
        }
        let share = (self.budget / MOST_OF_ONE).max(2 * self.budget / self.numbers());
        if self.held(prefix) > share {
            self.push_out(prefix);
        } else if self.len > self.budget {
            self.push_out(self.longest);
        }
    }

    fn queue_of(&self, key: &StateKey) -> u16 {
        (prefix_of(key) % self.numbers() as u64) as u16
    }

    /// How many queues there are.
    fn numbers(&self) -> usize {
        (self.budget / OF_A_QUEUE).clamp(1, QUEUES)
    }

    fn held(&self, prefix: u16) -> usize {
        self.queues.get(&prefix).map_or(0, VecDeque::len)
    }

    fn fullest(&self) -> u16 {
        let fullest = self.queues.iter().max_by_key(|(prefix, queue)| (queue.len(), **prefix));
        fullest.map_or(0, |(prefix, _)| *prefix)
    }

    fn push_out(&mut self, prefix: u16) {
        // What the longest held may all have been looked at and left since.
        let prefix = if self.held(prefix) > 0 { prefix } else { self.fullest() };
        let Some(queue) = self.queues.get_mut(&prefix) else { return };
        self.fell.extend(queue.pop_front());
        *self.fell_of.entry(prefix).or_default() += 1;
        self.len -= 1;
        if queue.is_empty() {
            self.queues.remove(&prefix);
        }
    }

    /// All are to be looked at, some in each turn. Returns whether there are any.
    pub fn look_again(&mut self) -> bool {
        self.unlooked = self.queues.keys().copied().collect();
        self.is_unlooked()
    }

    /// Whether some are still to be looked at.
    pub fn is_unlooked(&self) -> bool {
        !self.unlooked.is_empty()
    }

    /// Looks at some of those that are to be looked at: `waits` tells whether one is still half-open.
    pub fn look(&mut self, mut waits: impl FnMut(&Waiting) -> bool) {
        let mut looked = 0;
        while looked < LOOKED_AT
            && let Some(prefix) = self.unlooked.pop()
        {
            let Some(queue) = self.queues.get_mut(&prefix) else { continue };
            let before = queue.len();
            looked += before;
            queue.retain(&mut waits);
            self.len -= before - queue.len();
            if queue.is_empty() {
                self.queues.remove(&prefix);
            } else if queue.len() < queue.capacity() / 4 {
                queue.shrink_to_fit();
            }
        }
        if self.queues.is_empty() {
            self.queues.shrink_to_fit();
        }
    }
}

impl ServiceRuntime {
    /// Whether packets after the SYN, or what stands for one in SCTP, show that a connection is open.
    pub fn tells_half_open(&self) -> bool {
        self.configured.protocol != Protocol::Udp
            && !self.is_by_client()
            && self.marks_under().is_some()
    }

    /// Whether what is known of a flow is its SYN, the one that came at that time.
    fn waits(&self, (key, born): &Waiting) -> bool {
        let known = self.builder.known(key);
        known.is_some_and(|known| known.phase == Phase::Opening && known.born == *born)
    }

    /// The half-open connections that were pushed out, and their hashes under each key that packets may
    /// have been marked by; and those that have turned out to be open since.
    pub fn pushed_out(&mut self) -> (Vec<StateKey>, Vec<Vec<u64>>, Vec<StateKey>) {
        let fell = self.half_open.fallen();
        let (waiting, rest): (Vec<Waiting>, Vec<Waiting>) =
            fell.into_iter().partition(|waiting| self.waits(waiting));
        let states: Vec<StateKey> = waiting.into_iter().map(|(key, _)| key).collect();
        let keys = self.keys_of_marks();
        let under = |key: &HashKey| states.iter().map(|state| state.hash(key)).collect();
        let hashes = keys.iter().map(under).collect();
        let open = |key: &StateKey| {
            self.builder.known(key).is_some_and(|known| known.phase == Phase::Open)
        };
        let open = rest.into_iter().map(|(key, _)| key).filter(open).collect();
        (states, hashes, open)
    }

    /// Writes down as open what was pushed out, and has sent something since its SYN: nobody looks at it again, and a
    /// restart would take it for half-open.
    pub fn write_open(&mut self, keys: &[StateKey], now: u32) -> Result<(), EngineError> {
        let Some(log) = &mut self.log else { return Ok(()) };
        for key in keys {
            let Some(known) = self.builder.known(key) else { continue };
            log.append(&record(Op::Add, key, Some(known.backend), now))?;
        }
        Ok(())
    }

    /// Forgets half-open connections that were pushed out.
    pub fn forget_half_open(&mut self, keys: &[StateKey], now: u32) -> Result<(), EngineError> {
        if keys.is_empty() {
            return Ok(());
        }
        keys.iter().for_each(|key| self.builder.forget(key));
        self.half_open.forgotten += keys.len() as u64;
        self.flooded = Some(Instant::now());
        self.log_removed(keys, now)
    }

    /// Looks at some of the half-open connections: those that have turned out to be open are written
    /// down as such.
    pub fn look_at_half_open(&mut self, now: u32) -> Result<(), EngineError> {
        let (builder, mut open) = (&self.builder, Vec::new());
        self.half_open.look(|(key, born)| {
            let Some(known) = builder.known(key) else { return false };
            if known.phase == Phase::Open {
                open.push((*key, known.backend));
            }
            known.phase == Phase::Opening && known.born == *born
        });
        let Some(log) = &mut self.log else { return Ok(()) };
        for (key, backend) in open {
            log.append(&record(Op::Add, &key, Some(backend), now))?;
        }
        Ok(())
    }

    /// Takes up a state that an earlier run has written down.
    pub fn restore(
        &mut self,
        written: &StateRecord,
        backend: BackendId,
        now: u32,
    ) -> Result<(), EngineError> {
        let key = StateKey::from_bytes(&written.key);
        if written.flags & ENDED != 0 {
            self.builder.restore(key, backend, now)?;
            self.builder.end(&key, now);
            return Ok(());
        }
        if written.flags & HALF_OPEN == 0 || !self.tells_half_open() {
            return Ok(self.builder.restore(key, backend, now)?);
        }
        // If it was opened since, packets have marked it, and the first sweep finds that.
        let phase = Phase::Opening;
        self.builder.adopt(key, Known { backend, phase, born: now, seen: now })?;
        self.half_open.push(key, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn key(address: u32, port: u16) -> StateKey {
        let mut bytes = [0; 16];
        bytes[10..12].fill(0xff);
        bytes[12..].copy_from_slice(&address.to_be_bytes());
        StateKey { address: bytes, src_port: port, dst_port: 80 }
    }

    #[test]
    fn the_oldest_goes_and_nobody_is_lost_or_counted_twice() {
        const BUDGET: usize = 20_000;
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut half_open = HalfOpen::default();
        half_open.set_budget(BUDGET);
        let mut fell = Vec::new();
        for now in 0..100_000 {
            half_open.push(key(rng.random(), 1), now);
            fell.append(&mut half_open.fallen());
            assert_eq!(half_open.len() + fell.len(), now as usize + 1);
            assert!(half_open.len() <= BUDGET);
        }
        // Who fell had waited for about as long as it takes to fill the budget: prefixes are alike
        // but for chance.
        let mut last = fell.iter().rev().take(20_000).map(|(_, born)| *born).collect::<Vec<_>>();
        last.sort_unstable();
        let (early, late) = (last[last.len() / 100], last[last.len() - 1]);
        assert!(early >= 50_000 && late < 95_000, "{early} to {late}");
        half_open.set_budget(1_000);
        assert!((500..=1_000).contains(&half_open.len()), "{}", half_open.len());
        assert!(half_open.look_again());
        for _ in 0..20 {
            half_open.look(|_| false);
        }
        assert_eq!(half_open.len(), 0);
    }

    #[test]
    fn a_prefix_that_floods_pushes_out_its_own() {
        const BUDGET: usize = 16_000;
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        let mut half_open = HalfOpen::default();
        half_open.set_budget(BUDGET);
        for other in 0..1_000 {
            half_open.push(key(0x0a00_0000 | other << 8, 7), 1);
        }
        for _ in 0..200_000 {
            half_open.push(key(0xc612_0000 | rng.random_range(0..256), rng.random()), 2);
        }
        let len = half_open.len();
        assert!((980..=1_000).contains(&(len - BUDGET / MOST_OF_ONE)), "{len}");
        let fell = half_open.fallen();
        let others = fell.iter().filter(|(key, _)| key.src_port == 7 && key.address[12] == 10);
        // Those of its queue.
        let (others, queues) = (others.count(), half_open.numbers());
        assert!(others <= 20, "{others} of 1,000 in {queues} queues");
    }
}
