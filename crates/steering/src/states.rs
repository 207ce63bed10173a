//! The states of one service as a control plane observes them: which flow lives where, how far it
//! has come, and when it is forgotten.

use crate::dense::DenseMap;
use crate::method::Phase;
use std::collections::HashMap;
use weir_hash::{HashKey, Key};

/// How long a flow of which only the SYN was seen is kept. A client that got a SYN-ACK answers
/// at once; a server repeats it for 63 s at most.
const HANDSHAKE_SECONDS: u32 = 65;

/// How long a silent flow is kept after FIN or RST: TIME_WAIT is 60 s, and a half-closed
/// connection that goes on sends packets.
const LINGER_SECONDS: u32 = 60;

/// When a silent state is forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Patience {
    /// Seconds for an open flow.
    pub idle_seconds: u32,
    /// Whether a flow counts as open from its first packet on: UDP, clients, and where activity
    /// is not marked.
    pub keep_opening: bool,
}

impl Patience {
    /// A look at a state. Whether it is kept.
    pub fn look(self, phase: &mut Phase, seen: &mut u32, active: bool, now: u32) -> bool {
        if active {
            *seen = now;
            if *phase == Phase::Opening {
                *phase = Phase::Open;
            }
            return true;
        }
        let limit = match phase {
            Phase::Open => self.idle_seconds,
            Phase::Opening if self.keep_opening => self.idle_seconds,
            Phase::Opening => HANDSHAKE_SECONDS.min(self.idle_seconds),
            Phase::Closing => LINGER_SECONDS.min(self.idle_seconds),
        };
        now.saturating_sub(*seen) <= limit
    }
}

/// A state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Observed {
    pub backend: u16,
    pub phase: Phase,
    seen: u32,
}

impl Observed {
    /// See [`Patience::look`].
    pub fn look(&mut self, patience: Patience, active: bool, now: u32) -> bool {
        patience.look(&mut self.phase, &mut self.seen, active, now)
    }
}

/// All states of a service.
#[derive(Clone, Debug)]
pub(crate) struct ObservedStates<K> {
    map: DenseMap<K, Observed>,
    per_backend: HashMap<u16, usize>,
    most: usize,
    refused: u64,
}

impl<K: Key> ObservedStates<K> {
    /// None yet; `most` at most. They are found by their hashes under `key`.
    pub fn new(key: HashKey, capacity: usize, most: usize) -> Self {
        let map = DenseMap::new(key, capacity);
        Self { map, per_backend: HashMap::new(), most, refused: 0 }
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn refused(&self) -> u64 {
        self.refused
    }

    pub fn of_backend(&self, backend: u16) -> usize {
        self.per_backend.get(&backend).copied().unwrap_or(0)
    }

    pub fn get(&self, key: &K) -> Option<&Observed> {
        self.map.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &Observed)> {
        self.map.keys().iter().zip(self.map.values())
    }

    pub fn bytes(&self) -> usize {
        self.map.bytes()
    }

    /// A flow has started at a backend; or, if it is known there, its first packet was repeated.
    /// Whether it is remembered.
    pub fn start(&mut self, key: K, backend: u16, now: u32) -> bool {
        if let Some(state) = self.map.get_mut(&key) {
            let former = *state;
            if former.backend == backend && former.phase != Phase::Closing {
                state.seen = now;
                return true;
            }
            *state = Observed { backend, phase: Phase::Opening, seen: now };
            if former.backend != backend {
                self.count(former.backend, false);
                self.count(backend, true);
            }
            return true;
        }
        if self.map.len() >= self.most {
            self.refused += 1;
            return false;
        }
        self.insert(key, Observed { backend, phase: Phase::Opening, seen: now });
        true
    }

    /// Takes a state over from an earlier run: it counts as open.
    pub fn restore(&mut self, key: K, backend: u16, now: u32) {
        if self.start(key, backend, now) {
            self.set_phase(&key, Phase::Open, now);
        }
    }

    pub fn set_phase(&mut self, key: &K, phase: Phase, now: u32) {
        if let Some(state) = self.map.get_mut(key) {
            (state.phase, state.seen) = (phase, now);
        }
    }

    /// Puts a state in that is not there.
    pub fn insert(&mut self, key: K, state: Observed) {
        self.map.insert(key, state);
        self.count(state.backend, true);
    }

    pub fn remove(&mut self, key: &K) -> Option<Observed> {
        let state = self.map.remove(key)?;
        self.count(state.backend, false);
        Some(state)
    }

    /// Takes out, and returns, the states that are not to be kept.
    pub fn take(&mut self, mut keep: impl FnMut(&K, &mut Observed) -> bool) -> Vec<(K, Observed)> {
        let mut gone = Vec::new();
        self.map.retain(|key, state| {
            let keep = keep(key, state);
            if !keep {
                gone.push((*key, *state));
            }
            keep
        });
        gone.iter().for_each(|(_, state)| self.count(state.backend, false));
        gone
    }

    fn count(&mut self, backend: u16, more: bool) {
        let count = self.per_backend.entry(backend).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
    }
}
