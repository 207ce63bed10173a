//! States by the prefixes that their clients come from: no prefix takes all of a service's.
//!
//! What opens connections, answers SYN-ACKs and never closes makes states that no budget of half-open ones
//! bounds. It has the addresses that it has, so its prefix has a share of `limits.states_per_service`, and
//! what is beyond that goes where the table sends it. Each prefix that holds states has a counter, exact,
//! so there are never more counters than states.

#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use weir_hash::{HashKey, Key};
use weir_steering::{Armed, BackendId, Build, BuildError, Built, Known, Member, Parcel, StateKey};

/// What the prefix of a key is found by: sources of one IPv4 /24, or of one IPv6 /56, have one number.
pub(super) fn number_of(key: &StateKey) -> u64 {
    let address = &key.address;
    if is_v4(key) {
        u64::from(u32::from_be_bytes([0, address[12], address[13], address[14]]))
    } else {
        u64::from_be_bytes([
            1, address[0], address[1], address[2], address[3], address[4], address[5], address[6],
        ])
    }
}

fn is_v4(key: &StateKey) -> bool {
    key.address[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}

/// The prefix of a key, as an operator writes it.
pub(super) fn name_of(key: &StateKey) -> String {
    let mut address = key.address;
    if is_v4(key) {
        return format!("{}/24", Ipv4Addr::new(address[12], address[13], address[14], 0));
    }
    address[7..].fill(0);
    format!("{}/56", Ipv6Addr::from(address))
}

/// A build face whose states are counted by prefix. Whatever changes its states goes through here.
pub(super) struct Counted {
    build: Box<dyn Build>,
    /// States of each prefix; none if nobody asks for them.
    counts: Option<HashMap<u32, u32>>,
    /// Numbers of IPv6 prefixes are hashes under it, of 31 bits: nobody can choose who shares a counter.
    key: HashKey,
    /// Taken out by a draft that is neither published nor discarded.
    orphans: Vec<StateKey>,
}

impl Deref for Counted {
    type Target = dyn Build;

    fn deref(&self) -> &Self::Target {
        &*self.build
    }
}

impl Counted {
    /// `seed`: nobody else's. Counting begins when [`count_prefixes`](Self::count_prefixes) says so.
    pub fn new(build: Box<dyn Build>, seed: u64) -> Self {
        Self { build, counts: None, key: HashKey::from_seed(seed), orphans: Vec::new() }
    }

    /// Counts states by prefix from now on, those that are there, too; or no longer.
    pub fn count_prefixes(&mut self, wanted: bool) {
        if self.counts.is_some() == wanted {
            return;
        }
        self.counts = wanted.then(HashMap::new);
        let (build, key, counts) = (&self.build, &self.key, &mut self.counts);
        let Some(counts) = counts else { return };
        build.each_state(&mut |state, _| *counts.entry(index(key, state)).or_default() += 1);
    }

    /// States of the prefix that a key is of; 0 if they are not counted.
    pub fn of_prefix(&self, state: &StateKey) -> usize {
        let counts = self.counts.as_ref();
        let held = counts.and_then(|counts| counts.get(&index(&self.key, state)));
        held.map_or(0, |held| *held as usize)
    }

    /// States of the prefix that has most.
    pub fn most_of_prefix(&self) -> usize {
        let most = |counts: &HashMap<u32, u32>| counts.values().copied().max().unwrap_or(0);
        let most = match &self.counts {
            Some(counts) => most(counts),
            None => {
                let mut counts = HashMap::<u32, u32>::new();
                self.build.each_state(&mut |state, _| {
                    *counts.entry(index(&self.key, state)).or_default() += 1;
                });
                most(&counts)
            }
        };
        most as usize
    }

    fn more(&mut self, state: &StateKey) {
        if let Some(counts) = &mut self.counts {
            *counts.entry(index(&self.key, state)).or_default() += 1;
        }
    }

    fn fewer<'a>(&mut self, states: impl IntoIterator<Item = &'a StateKey>) {
        let Some(counts) = &mut self.counts else { return };
        for state in states {
            let index = index(&self.key, state);
            let Some(held) = counts.get_mut(&index) else { continue };
            *held -= 1;
            if *held == 0 {
                counts.remove(&index);
            }
        }
        if counts.len() < counts.capacity() / 8 {
            counts.shrink_to(counts.len() * 2);
        }
    }

    /// Does what may put this state in.
    fn putting<R>(&mut self, state: &StateKey, act: impl FnOnce(&mut dyn Build) -> R) -> R {
        let before = self.build.states();
        let done = act(&mut *self.build);
        if self.build.states() > before {
            self.more(state);
        }
        done
    }

    pub fn start(&mut self, key: StateKey, at: BackendId, now: u32) -> Result<bool, BuildError> {
        self.putting(&key, |build| build.start(key, at, now))
    }

    pub fn restore(&mut self, key: StateKey, at: BackendId, now: u32) -> Result<(), BuildError> {
        self.putting(&key, |build| build.restore(key, at, now))
    }

    pub fn adopt(&mut self, key: StateKey, known: Known) -> Result<(), BuildError> {
        self.putting(&key, |build| build.adopt(key, known))
    }

    pub fn end(&mut self, key: &StateKey, now: u32) {
        self.build.end(key, now);
    }

    pub fn tell_connections(&mut self, there: &mut dyn Iterator<Item = (StateKey, BackendId)>) {
        self.build.tell_connections(there);
    }

    pub fn rows_of(&mut self, members: &[Member]) -> Result<Option<Vec<u16>>, BuildError> {
        self.build.rows_of(members)
    }

    pub fn ask_again(&mut self) {
        self.build.ask_again();
    }

    pub fn forget(&mut self, key: &StateKey) {
        let before = self.build.states();
        self.build.forget(key);
        if self.build.states() < before {
            self.fewer([key]);
        }
    }

    pub fn forget_backend(&mut self, backend: BackendId) -> Vec<StateKey> {
        let gone = self.build.forget_backend(backend);
        self.fewer(&gone);
        gone
    }

    pub fn sweep(&mut self, now: u32, active: &dyn Fn(&StateKey) -> bool) -> Vec<StateKey> {
        let idle = self.build.sweep(now, active);
        self.fewer(&idle);
        idle
    }

    pub fn draft_beside(
        &mut self,
        generation: u64,
        members: &[Member],
        now: u32,
        armed: Armed<'_>,
    ) -> Result<Built, BuildError> {
        self.discard_draft()?;
        let built = self.build.draft_beside(generation, members, now, armed)?;
        self.fewer(&built.orphans);
        self.orphans.clone_from(&built.orphans);
        Ok(built)
    }

    pub fn draft_of(
        &mut self,
        generation: u64,
        members: &[Member],
        parcel: &Parcel,
    ) -> Result<Built, BuildError> {
        self.discard_draft()?;
        let built = self.build.draft_of(generation, members, parcel)?;
        self.fewer(&built.orphans);
        self.orphans.clone_from(&built.orphans);
        Ok(built)
    }

    pub fn publish_draft(&mut self) {
        self.build.publish_draft();
        self.orphans.clear();
    }

    pub fn discard_draft(&mut self) -> Result<(), BuildError> {
        // Those whose keys were used anew meanwhile are counted, and stay as they are.
        let mut back = std::mem::take(&mut self.orphans);
        back.retain(|key| self.build.known(key).is_none());
        let discarded = self.build.discard_draft();
        back.retain(|key| self.build.known(key).is_some());
        back.iter().for_each(|key| self.more(key));
        discarded
    }

    pub fn number_servers(&mut self, servers: &[(String, Option<u64>)]) {
        self.build.number_servers(servers);
    }

    pub fn resume_numbers(&mut self, servers: &[(String, Option<u64>)]) {
        self.build.resume_numbers(servers);
    }

    pub fn rest(&mut self, seconds: u32) {
        self.build.rest(seconds);
    }

    pub fn told_of(&mut self, backends: &BTreeSet<BackendId>, now: u32) {
        self.build.told_of(backends, now);
    }

    pub fn watch(&mut self, now: u32, since: u32) {
        self.build.watch(now, since);
    }

    pub fn set_max_states(&mut self, most: usize) {
        self.build.set_max_states(most);
    }

    pub fn set_idle_seconds(&mut self, seconds: u32) {
        self.build.set_idle_seconds(seconds);
    }

    /// Bytes of the control structure, the counters included.
    pub fn control_bytes(&self) -> usize {
        let counters = self.counts.as_ref().map_or(0, HashMap::capacity);
        // A counter with its number, and a byte that tells which places are taken.
        self.build.control_bytes() + counters * 9
    }

    /// What it has counted, and what it should have.
    #[cfg(test)]
    pub fn counted(&self) -> Option<(BTreeMap<u32, u32>, BTreeMap<u32, u32>)> {
        let mut right = BTreeMap::<u32, u32>::new();
        self.build.each_state(&mut |state, _| {
            *right.entry(index(&self.key, state)).or_default() += 1;
        });
        let counts = self.counts.as_ref()?;
        Some((counts.iter().map(|(index, held)| (*index, *held)).collect(), right))
    }
}

/// The counter of a state's prefix.
fn index(key: &HashKey, state: &StateKey) -> u32 {
    let number = number_of(state);
    if is_v4(state) { number as u32 } else { 1 << 31 | number.hash(key) as u32 }
}
