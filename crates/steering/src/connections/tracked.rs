//! The connection table of a plane in user space: flows of all services, with all that is known of each.

use crate::ids::ServiceId;
use crate::memory::TrackedFlow;
use crate::state::{ServiceState, StateKey};
use std::fmt;
use weir_hash::{HashKey, Key, scale};
use weir_lookup::prefetch;

/// Entries of a set: two cache lines, which a processor fetches together.
const WAYS: usize = 4;
/// Entries of the first of them.
const OF_A_LINE: usize = WAYS / 2;
/// Flows to two services from one port of one client have other sets. Odd, and about half of its bits are ones.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// The smallest table that grows, in sets.
const LEAST: usize = 8;

type Entry = (ServiceState, TrackedFlow);

/// Entries that stand together.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct Set([Option<Entry>; WAYS]);

const _: () = assert!(size_of::<Set>() == 128, "a set is two cache lines");

impl Set {
    const EMPTY: Self = Self([None; WAYS]);

    #[inline(always)]
    fn way_of(&self, state: &ServiceState) -> Option<usize> {
        self.0.iter().position(|entry| entry.as_ref().is_some_and(|(known, _)| known == state))
    }

    #[inline(always)]
    fn free_way(&self) -> Option<usize> {
        self.0.iter().position(Option::is_none)
    }
}

/// A connection table in cache lines, found under a hash key of its own, so that it stays what it is when tables
/// of services are made anew with other keys.
///
/// It grows: an entry stands in its own set or, if that is full, in the next one that is not; at three quarters
/// full the table doubles, all at once. Or it has room for so many entries ([`bounded`](Self::bounded)): where a
/// set is full, a new flow takes the place of one that was not used lately. Lately is since the last search for
/// a place there that found all in use: a clock, as of the kernel's table (`BPF_MAP_TYPE_LRU_HASH`), by set and
/// not over the whole table. So a set can be full while others have room: with as many live flows as places
/// about 20 % of them are out, with half as many 4 % (Poisson arrivals at sets of four).
#[derive(Clone)]
pub struct TrackedFlows {
    key: HashKey,
    sets: Vec<Set>,
    len: usize,
    /// Of each set, if the table is bounded: which entries were used lately, by bits, and where the next search
    /// for a place begins, above them.
    used: Option<Vec<u8>>,
    evictions: u64,
}

impl Default for TrackedFlows {
    /// A table that grows, whose key everybody knows.
    fn default() -> Self {
        Self::new(HashKey::from_seed(0))
    }
}

impl TrackedFlows {
    /// A table that grows. Whoever knows its key can send flows that share a set.
    pub fn new(key: HashKey) -> Self {
        Self::with_room(key, 0)
    }

    /// A table that grows, with room for so many flows before it does.
    pub fn with_room(key: HashKey, flows: usize) -> Self {
        let sets = (flows * 4 / 3 / WAYS + 1).max(LEAST);
        Self { key, sets: vec![Set::EMPTY; sets], len: 0, used: None, evictions: 0 }
    }

    /// A table for at most so many flows, rounded up to four, at least four.
    pub fn bounded(key: HashKey, flows: usize) -> Self {
        let sets = flows.div_ceil(WAYS).max(1);
        let used = Some(vec![0; sets]);
        Self { key, sets: vec![Set::EMPTY; sets], len: 0, used, evictions: 0 }
    }

    /// The number of flows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no flow.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The largest number of flows; `None` if the table grows.
    pub fn capacity(&self) -> Option<usize> {
        self.used.as_ref().map(|_| self.sets.len() * WAYS)
    }

    /// Flows that were given up for lack of room so far.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Bytes that packets may read.
    pub fn bytes(&self) -> usize {
        self.sets.len() * size_of::<Set>() + self.used.as_ref().map_or(0, Vec::len)
    }

    /// Asks for the lines that a flow stands in, if it is there.
    #[inline(always)]
    pub fn prefetch(&self, service: ServiceId, key: &StateKey) {
        if let Some(set) = self.sets.get(self.home(service, key)) {
            prefetch(&set.0, 0);
            prefetch(&set.0, OF_A_LINE);
        }
    }

    /// What is known of a flow, without a trace.
    pub fn get(&self, state: &ServiceState) -> Option<&TrackedFlow> {
        let (set, way) = self.place_of(state)?;
        self.sets[set].0[way].as_ref().map(|(_, flow)| flow)
    }

    /// What is known of a flow, which counts as used now.
    #[inline(always)]
    pub fn look_up(&mut self, state: &ServiceState) -> Option<TrackedFlow> {
        let (set, way) = self.place_of(state)?;
        if let Some(used) = &mut self.used {
            // A byte that does not change need not be written back.
            let bit = 1 << way;
            if used[set] & bit == 0 {
                used[set] |= bit;
            }
        }
        self.sets[set].0[way].map(|(_, flow)| flow)
    }

    /// Notes a flow, or other things about one that is there; returns what was known of it.
    pub fn insert(&mut self, state: ServiceState, flow: TrackedFlow) -> Option<TrackedFlow> {
        if let Some((set, way)) = self.place_of(&state) {
            return self.sets[set].0[way].replace((state, flow)).map(|(_, former)| former);
        }
        if let Some(used) = &mut self.used {
            let home = home(&self.key, self.sets.len(), state.service, &state.key);
            let set = &mut self.sets[home];
            let way = match set.free_way() {
                Some(way) => {
                    self.len += 1;
                    way
                }
                None => {
                    self.evictions += 1;
                    next_out(&mut used[home])
                }
            };
            // It has to be asked for before it counts as used, as in the kernel.
            used[home] &= !(1 << way);
            set.0[way] = Some((state, flow));
            return None;
        }
        if (self.len + 1) * 4 > self.sets.len() * WAYS * 3 {
            self.grow();
        }
        self.place((state, flow));
        self.len += 1;
        None
    }

    /// Forgets a flow; returns what was known of it.
    pub fn remove(&mut self, state: &ServiceState) -> Option<TrackedFlow> {
        let (set, way) = self.place_of(state)?;
        let was_full = self.sets[set].free_way().is_none();
        let gone = self.sets[set].0[way].take();
        self.len -= 1;
        if self.used.is_none() && was_full {
            self.fill_gap(set, way);
        }
        gone.map(|(_, flow)| flow)
    }

    /// Forgets all flows that are not to be kept.
    pub fn retain(&mut self, mut keep: impl FnMut(&ServiceState, &TrackedFlow) -> bool) {
        // An entry that fills a gap would be passed over, or seen twice.
        let gone: Vec<ServiceState> = self
            .iter()
            .filter(|(state, flow)| !keep(state, flow))
            .map(|(state, _)| *state)
            .collect();
        for state in &gone {
            self.remove(state);
        }
    }

    /// Forgets all flows.
    pub fn clear(&mut self) {
        self.sets.fill(Set::EMPTY);
        if let Some(used) = &mut self.used {
            used.fill(0);
        }
        self.len = 0;
    }

    /// All flows, in no order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { sets: self.sets.iter(), now: [].iter() }
    }

    /// All flows, in no order; what is known of them can be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&ServiceState, &mut TrackedFlow)> {
        let entries = self.sets.iter_mut().flat_map(|set| &mut set.0).flatten();
        entries.map(|(state, flow)| (&*state, flow))
    }

    #[inline(always)]
    fn home(&self, service: ServiceId, key: &StateKey) -> usize {
        home(&self.key, self.sets.len(), service, key)
    }

    fn after(&self, set: usize) -> usize {
        if set + 1 == self.sets.len() { 0 } else { set + 1 }
    }

    /// Set and way of a flow. An entry went past a set only if that was full, and is full still.
    #[inline(always)]
    fn place_of(&self, state: &ServiceState) -> Option<(usize, usize)> {
        let at = self.home(state.service, &state.key);
        let set = &self.sets[at];
        match set.way_of(state) {
            Some(way) => Some((at, way)),
            None if self.used.is_some() || set.free_way().is_some() => None,
            None => self.place_further(state, at),
        }
    }

    #[cold]
    #[inline(never)]
    fn place_further(&self, state: &ServiceState, home: usize) -> Option<(usize, usize)> {
        let mut at = self.after(home);
        while at != home {
            let set = &self.sets[at];
            if let Some(way) = set.way_of(state) {
                return Some((at, way));
            }
            if set.free_way().is_some() {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Puts a flow that is not there into the first free place. There is one.
    fn place(&mut self, entry: Entry) {
        let mut at = self.home(entry.0.service, &entry.0.key);
        loop {
            if let Some(way) = self.sets[at].free_way() {
                self.sets[at].0[way] = Some(entry);
                return;
            }
            at = self.after(at);
        }
    }

    /// A place in a set that was full is free: an entry that went past this set takes it, and leaves a place
    /// itself.
    fn fill_gap(&mut self, mut set: usize, mut way: usize) {
        let sets = self.sets.len();
        let distance = |from: usize, to: usize| (to + sets - from) % sets;
        let mut at = self.after(set);
        while at != set {
            let was_full = self.sets[at].free_way().is_none();
            let passed = self.sets[at].0.iter().position(|entry| {
                entry.as_ref().is_some_and(|(state, _)| {
                    distance(self.home(state.service, &state.key), at) >= distance(set, at)
                })
            });
            if let Some(from) = passed {
                self.sets[set].0[way] = self.sets[at].0[from].take();
                (set, way) = (at, from);
            }
            if !was_full {
                return;
            }
            at = self.after(at);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let twice = vec![Set::EMPTY; self.sets.len() * 2];
        let old = std::mem::replace(&mut self.sets, twice);
        for entry in old.iter().flat_map(|set| set.0).flatten() {
            self.place(entry);
        }
    }
}

/// The set that a flow stands in, if there is room.
#[inline(always)]
fn home(key: &HashKey, sets: usize, service: ServiceId, flow: &StateKey) -> usize {
    let hash = flow.hash(key) ^ u64::from(service.0).wrapping_mul(SPREAD);
    scale((hash >> 32) as u32, sets as u32) as usize
}

/// The way of a full set whose entry has to go, by the clock in this byte.
fn next_out(used: &mut u8) -> usize {
    let mut hand = usize::from(*used) / (1 << WAYS) % WAYS;
    let mut bits = *used & ((1 << WAYS) - 1);
    while bits & 1 << hand != 0 {
        bits &= !(1 << hand);
        hand = (hand + 1) % WAYS;
    }
    *used = bits | (((hand + 1) % WAYS) << WAYS) as u8;
    hand
}

/// The same flows, of which the same is known.
impl PartialEq for TrackedFlows {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().all(|(state, flow)| other.get(state) == Some(flow))
    }
}

impl fmt::Debug for TrackedFlows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

/// All flows of a table.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    sets: std::slice::Iter<'a, Set>,
    now: std::slice::Iter<'a, Option<Entry>>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a ServiceState, &'a TrackedFlow);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.now.next() {
                Some(Some((state, flow))) => return Some((state, flow)),
                Some(None) => {}
                None => self.now = self.sets.next()?.0.iter(),
            }
        }
    }
}

impl<'a> IntoIterator for &'a TrackedFlows {
    type Item = (&'a ServiceState, &'a TrackedFlow);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::BackendId;
    use std::collections::HashMap;

    fn state(number: u64) -> ServiceState {
        let mut key = StateKey::default();
        key.address[8..].copy_from_slice(&(number / 3).to_be_bytes());
        (key.src_port, key.dst_port) = (number as u16, 80);
        ServiceState { service: ServiceId((number % 3) as u32), key }
    }

    fn flow(number: u64) -> TrackedFlow {
        TrackedFlow::new(BackendId::of((number % 100) as u16), 1)
    }

    fn next(random: &mut u64) -> u64 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *random >> 33
    }

    /// Whatever grows, moves and goes, it is a map.
    #[test]
    fn a_table_that_grows_is_a_map() {
        let mut table = TrackedFlows::default();
        let mut map = HashMap::new();
        let mut random = 11;
        for round in 0..60_000u64 {
            // Grows, and shrinks until gaps have to be filled across many sets.
            let shrinks = round / 10_000 % 2 == 1;
            let (of, gone) = if shrinks { (700, 3) } else { (3_000, 2) };
            let state = state(next(&mut random) % of);
            if next(&mut random) % 5 < gone {
                assert_eq!(table.remove(&state), map.remove(&state), "round {round}");
            } else {
                let flow = flow(next(&mut random));
                assert_eq!(table.insert(state, flow), map.insert(state, flow), "round {round}");
            }
            assert_eq!(table.len(), map.len());
            let other = self::state(next(&mut random) % 3_000);
            assert_eq!(table.get(&other), map.get(&other), "round {round}");
            assert_eq!(table.look_up(&other), map.get(&other).copied());
            if round % 1_000 == 0 {
                assert_eq!(table.iter().count(), map.len());
                assert!(map.iter().all(|(state, flow)| table.get(state) == Some(flow)));
                let kept = table.clone();
                table.retain(|state, _| state.service.0 != 1);
                map.retain(|state, _| state.service.0 != 1);
                assert_eq!(table.len(), map.len(), "round {round}");
                assert_eq!(table == kept, table.len() == kept.len());
            }
        }
        assert_eq!((table.capacity(), table.evictions()), (None, 0));
        table.clear();
        assert!(table.is_empty() && table.iter().next().is_none());
    }

    /// A table that is nearly full, without growing: entries go past many sets, and around the end.
    #[test]
    fn gaps_are_filled_across_full_sets() {
        let mut table = TrackedFlows::default();
        let places = (LEAST * WAYS * 3 / 4) as u64;
        let mut random = 5;
        let mut there: Vec<u64> = Vec::new();
        for round in 0..20_000u64 {
            if there.len() as u64 == places {
                let gone = there.swap_remove(next(&mut random) as usize % there.len());
                assert!(table.remove(&state(gone)).is_some(), "round {round}: {gone}");
            }
            if !there.contains(&round) {
                table.insert(state(round), flow(round));
                there.push(round);
            }
            for known in &there {
                assert_eq!(table.get(&state(*known)), Some(&flow(*known)), "round {round}");
            }
        }
        assert_eq!(table.sets.len(), LEAST, "it had no need to grow");
    }

    /// A flow that is asked for stays, however many others come; of those, the first go.
    #[test]
    fn a_bounded_table_forgets_what_is_not_used() {
        let mut table = TrackedFlows::bounded(HashKey::from_seed(3), 1_000);
        assert_eq!(table.capacity(), Some(1_000));
        // Fewer than a set has places, so that not all of one are asked for.
        let kept: Vec<ServiceState> = (0..40).map(state).collect();
        for (number, state) in (0..).zip(&kept) {
            table.insert(*state, flow(number));
        }
        let crowded = |table: &TrackedFlows| {
            let mut of = HashMap::new();
            for state in &kept {
                *of.entry(table.home(state.service, &state.key)).or_insert(0) += 1;
            }
            of.into_values().any(|many: usize| many >= WAYS)
        };
        assert!(!crowded(&table), "another seed is needed");
        for number in 100..50_000 {
            for state in &kept {
                assert!(table.look_up(state).is_some(), "{state:?} is gone at {number}");
            }
            table.insert(state(number), flow(number));
            assert!(table.len() <= 1_000);
        }
        assert_eq!(table.len(), 1_000);
        assert_eq!(table.evictions(), 40 + 49_900 - 1_000);
        assert!(table.get(&state(100)).is_none() && table.get(&state(49_999)).is_some());
        // A place that is free is taken before anybody has to go.
        table.remove(&kept[0]);
        let before = table.evictions();
        table.insert(kept[0], flow(0));
        assert_eq!((table.len(), table.evictions()), (1_000, before));
    }
}
