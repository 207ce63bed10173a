//! Connections that have begun, and whose backends' agents have not said yet that they are open.
//!
//! Where agents tell, a SYN makes no state. But between the SYN and what the agent says of it there is a
//! handshake, and if the pool changes just then, the next table must lead the connection to where its SYN went.
//! So the last ones of them are kept aside, and are in a table only while it is built. There are no more of
//! them than a budget: a flood of SYNs pushes out the oldest, which hurts a handshake that takes longer than
//! the budget lasts, and only if the pool changes meanwhile.

use std::collections::{HashMap, HashSet, VecDeque};
use weir_steering::{BackendId, StateKey};

/// A server repeats its SYN+ACK for so long.
const HANDSHAKE_SECONDS: u32 = 65;
/// Numbers of connections that are gone and stay in the queue, beyond as many as there are others.
const LOOSE: usize = 1024;

/// A connection that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Begun {
    /// Where its SYN went.
    pub backend: BackendId,
    /// When that came last.
    pub born: u32,
    /// More than the SYN was seen.
    pub alive: bool,
    ticket: u64,
}

/// A connection that was seen alive, and of which its backend's agent has said nothing in time.
#[derive(Clone, Copy, Debug)]
struct Missed {
    backend: BackendId,
    /// When it was known last that it lives.
    seen: u32,
}

/// All of a service.
#[derive(Debug, Default)]
pub(super) struct Young {
    budget: usize,
    begun: HashMap<StateKey, Begun>,
    /// How many of each backend.
    counts: HashMap<BackendId, usize>,
    /// The oldest first. One whose ticket is another by now has gone, or begun again.
    order: VecDeque<(StateKey, u64)>,
    tickets: u64,
    /// Those that there was no room for.
    pub pushed_out: u64,
    /// Those that were seen alive and not told of in all the time that a handshake takes; all that there ever were.
    pub untold: u64,
    /// Those of them that may live, and that the table which packets follow has not moved yet.
    missed: HashMap<StateKey, Missed>,
}

impl Young {
    pub fn set_budget(&mut self, budget: usize) {
        self.budget = budget.max(1);
        self.push_out();
    }

    pub fn len(&self) -> usize {
        self.begun.len()
    }

    /// Connections that the next table may break, as nobody has told of them.
    pub fn missed(&self) -> usize {
        self.missed.len()
    }

    /// The agent of a backend says that a connection has ended.
    pub fn ended(&mut self, key: &StateKey, backend: BackendId) {
        if self.missed.get(key).is_some_and(|one| one.backend == backend) {
            self.missed.remove(key);
        }
    }

    /// The agent of a backend has said all that this holds: what it has not named has ended.
    pub fn listed(&mut self, backend: BackendId, found: &HashSet<StateKey>) {
        self.missed.retain(|key, one| one.backend != backend || found.contains(key));
    }

    /// Packets follow another table. What that has broken is broken, and what it has not is where it was.
    pub fn moved(&mut self) {
        self.missed = HashMap::new();
    }

    /// A SYN went to a backend.
    pub fn push(&mut self, key: StateKey, backend: BackendId, now: u32) {
        self.tickets += 1;
        let ticket = self.tickets;
        self.remove(&key);
        self.begun.insert(key, Begun { backend, born: now, alive: false, ticket });
        *self.counts.entry(backend).or_default() += 1;
        self.order.push_back((key, ticket));
        self.push_out();
        if self.order.len() > 2 * self.begun.len() + LOOSE {
            let begun = &self.begun;
            self.order
                .retain(|(key, ticket)| begun.get(key).is_some_and(|one| one.ticket == *ticket));
        }
    }

    pub fn get(&self, key: &StateKey) -> Option<Begun> {
        self.begun.get(key).copied()
    }

    /// How many there are of a backend.
    pub fn of(&self, backend: BackendId) -> usize {
        self.counts.get(&backend).copied().unwrap_or(0)
    }

    pub fn remove(&mut self, key: &StateKey) {
        self.missed.remove(key);
        let Some(Begun { backend, .. }) = self.begun.remove(key) else { return };
        let Some(count) = self.counts.get_mut(&backend) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&backend);
        }
    }

    pub fn each(&self) -> impl Iterator<Item = (&StateKey, &Begun)> {
        self.begun.iter()
    }

    /// Takes those of a backend.
    pub fn take_of(&mut self, backend: BackendId) -> Vec<(StateKey, Begun)> {
        self.counts.remove(&backend);
        self.missed.retain(|_, one| one.backend != backend);
        self.begun.extract_if(|_, one| one.backend == backend).collect()
    }

    fn push_out(&mut self) {
        while self.begun.len() > self.budget
            && let Some((key, ticket)) = self.order.pop_front()
        {
            if self.begun.get(&key).is_some_and(|one| one.ticket == ticket) {
                self.remove(&key);
                self.pushed_out += 1;
            }
        }
    }

    /// Takes down who has sent more than a SYN, and forgets those whose handshake was over long ago, if it was; of which
    /// nobody has told, and nothing was seen for `idle` seconds, they are over.
    pub fn sweep(&mut self, now: u32, idle: u32, active: impl Fn(&StateKey) -> bool) {
        for (key, one) in &mut self.begun {
            one.alive |= active(key);
        }
        self.missed.retain(|key, one| {
            if active(key) {
                one.seen = now;
            }
            now.saturating_sub(one.seen) < idle
        });
        while let Some((key, ticket)) = self.order.front().copied() {
            let one = self.begun.get(&key).copied().filter(|one| one.ticket == ticket);
            if let Some(one) = one {
                if now.saturating_sub(one.born) <= HANDSHAKE_SECONDS {
                    break;
                }
                self.remove(&key);
                self.untold += u64::from(one.alive);
                // No more of them than of those that begin.
                if one.alive && self.missed.len() < self.budget {
                    self.missed.insert(key, Missed { backend: one.backend, seen: now });
                }
            }
            self.order.pop_front();
        }
        if self.begun.is_empty() {
            self.begun.shrink_to_fit();
            self.order.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u16) -> StateKey {
        StateKey { src_port: number, ..StateKey::default() }
    }

    fn young(budget: usize) -> Young {
        let mut young = Young::default();
        young.set_budget(budget);
        young
    }

    fn backend(number: u16) -> BackendId {
        BackendId::new(number).expect("it is in range")
    }

    #[test]
    fn the_oldest_go_and_those_that_begin_again_are_young() {
        let mut young = young(3);
        (1..=3).for_each(|number| young.push(key(number), backend(1), 10));
        young.push(key(1), backend(2), 11);
        young.push(key(4), backend(1), 12);
        assert_eq!((young.len(), young.pushed_out), (3, 1));
        assert!(young.get(&key(2)).is_none(), "the oldest");
        assert_eq!(young.get(&key(1)).map(|one| (one.backend, one.born)), Some((backend(2), 11)));
        assert_eq!(young.take_of(backend(1)).len(), 2);
        assert_eq!(young.len(), 1);
    }

    #[test]
    fn what_was_told_leaves_nothing_behind() {
        let mut young = young(1 << 20);
        for round in 0..20_000u32 {
            let one = key(round as u16);
            young.push(one, backend(1), round / 1000);
            young.remove(&one);
        }
        assert_eq!((young.len(), young.pushed_out), (0, 0));
        assert!(young.order.len() <= LOOSE + 1, "{}", young.order.len());
    }

    #[test]
    fn a_handshake_ends_some_time() {
        let mut young = young(100);
        young.push(key(1), backend(1), 100);
        young.push(key(2), backend(1), 101);
        young.push(key(3), backend(1), 160);
        young.sweep(165, 300, |one| *one == key(2));
        assert_eq!((young.len(), young.untold), (3, 0));
        young.sweep(166, 300, |_| false);
        assert_eq!((young.len(), young.untold), (2, 0));
        young.sweep(200, 300, |_| false);
        assert_eq!((young.len(), young.untold), (1, 1), "packets were seen of the second one");
    }

    /// What nobody has told of is a danger until it is told of, has ended, was silent for too long, or packets follow
    /// another table. How many there have been is counted on.
    #[test]
    fn what_nobody_has_told_of_is_over_some_time() {
        let mut young = young(100);
        let miss = |young: &mut Young, now: u32| {
            (1..=4).for_each(|number| young.push(key(number), backend(number), now));
            young.sweep(now + 10, 300, |_| true);
            young.sweep(now + 66, 300, |_| false);
            assert_eq!((young.len(), young.missed()), (0, 4));
        };
        miss(&mut young, 100);
        // Its agent tells of it after all.
        young.remove(&key(1));
        // Another one's says nothing of it.
        young.ended(&key(2), backend(1));
        assert_eq!(young.missed(), 3);
        young.ended(&key(2), backend(2));
        young.listed(backend(3), &HashSet::from([key(3)]));
        assert_eq!(young.missed(), 2);
        young.listed(backend(3), &HashSet::new());
        assert_eq!(young.missed(), 1);
        young.sweep(400, 300, |one| *one == key(4));
        young.sweep(699, 300, |_| false);
        assert_eq!(young.missed(), 1);
        young.sweep(700, 300, |_| false);
        assert_eq!((young.missed(), young.untold), (0, 4));
        miss(&mut young, 1_000);
        young.take_of(backend(1));
        assert_eq!(young.missed(), 3);
        young.moved();
        assert_eq!((young.missed(), young.untold), (0, 8));
    }
}
