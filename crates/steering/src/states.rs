//! The states of one service as a control plane observes them: which flow lives where, how far it
//! has come, and when it is forgotten.

use crate::dense::DenseMap;
use crate::ids::BackendId;
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
    /// Seconds for which a flow that was seen alive need not be watched; see
    /// [`Build::rest`](crate::Build::rest).
    pub rest_seconds: u32,
}

/// The longest rest of a flow that was seen alive.
const LONGEST_REST: u32 = 300;

/// For how long a flow that was seen alive need not be watched: its silence counts from then on, and the
/// dead are to be forgotten within one and a half times their timeout, though they are looked at only
/// every `period` seconds: when they were seen last, when their watch begins, and when it ends.
pub fn rest_for(idle_seconds: u32, period: u32) -> u32 {
    (idle_seconds / 2).saturating_sub(period * 4).min(LONGEST_REST)
}

impl Patience {
    /// Whether the packets of a state are to be noticed from now on. Rests end at different times, by
    /// the state's hash, so that not all flows are watched at once.
    pub fn is_due<K: Key>(self, key: &K, phase: Phase, seen: u32, watched: bool, now: u32) -> bool {
        if self.rest_seconds == 0 || watched || phase != Phase::Open {
            return true;
        }
        let (silent, most_sooner) = (now.saturating_sub(seen), self.rest_seconds / 2);
        // Of most states that is certain without their hashes.
        if silent >= self.rest_seconds || silent < self.rest_seconds - most_sooner {
            return silent >= self.rest_seconds;
        }
        let sooner = key.hash(&HashKey::from_seed(0)) as u32 % (most_sooner + 1);
        silent >= self.rest_seconds - sooner
    }

    /// A look at a state. Whether it is kept. An open one whose packets were not noticed is not taken
    /// for silent.
    pub fn look(
        self,
        phase: &mut Phase,
        seen: &mut u32,
        watched: &mut bool,
        active: impl FnOnce() -> bool,
        now: u32,
    ) -> bool {
        // Marks of others may look like its own: what they say of a flow that rests is not asked.
        if self.rest_seconds > 0 && *phase == Phase::Open && !*watched {
            return true;
        }
        if active() {
            *seen = now;
            *watched = false;
            if *phase == Phase::Opening {
                *phase = Phase::Open;
            }
            return true;
        }
        let limit = match phase {
            Phase::Open => self.idle_seconds.saturating_add(self.rest_seconds),
            Phase::Opening if self.keep_opening => self.idle_seconds,
            Phase::Opening => HANDSHAKE_SECONDS.min(self.idle_seconds),
            Phase::Closing => LINGER_SECONDS.min(self.idle_seconds),
        };
        now.saturating_sub(*seen) <= limit
    }

    /// The watch of a state has begun, at `since` at the latest: for all that is known it sent something
    /// until then.
    pub fn begin_watch(self, phase: Phase, seen: &mut u32, watched: &mut bool, since: u32) {
        if phase == Phase::Open && self.rest_seconds > 0 && !*watched {
            *seen = (*seen).max(since.saturating_sub(self.rest_seconds));
            *watched = true;
        }
    }

    /// Rests take another time from here on: the state is as it was when its watch began.
    pub fn end_watch(self, seen: &mut u32, watched: &mut bool) {
        if std::mem::take(watched) {
            *seen = seen.saturating_add(self.rest_seconds);
        }
    }
}

/// A state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Observed {
    pub backend: BackendId,
    pub phase: Phase,
    pub seen: u32,
    pub watched: bool,
}

impl Observed {
    /// Of a connection that has come so far, not watched yet.
    pub fn new(backend: BackendId, phase: Phase, seen: u32) -> Self {
        Self { backend, phase, seen, watched: false }
    }

    /// Looks at the flow once, at `now` in seconds, and says whether it is kept; see [`Patience::look`].
    pub fn look(&mut self, patience: Patience, active: impl FnOnce() -> bool, now: u32) -> bool {
        patience.look(&mut self.phase, &mut self.seen, &mut self.watched, active, now)
    }
}

/// All states of a service.
#[derive(Clone, Debug)]
pub(crate) struct ObservedStates<K> {
    map: DenseMap<K, Observed>,
    per_backend: HashMap<BackendId, usize>,
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

    /// Remembers so many at most from now on; those that are there stay.
    pub fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    pub fn refused(&self) -> u64 {
        self.refused
    }

    pub fn of_backend(&self, backend: BackendId) -> usize {
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
    pub fn start(&mut self, key: K, backend: BackendId, now: u32) -> bool {
        if let Some(state) = self.map.get_mut(&key) {
            let former = *state;
            if former.backend == backend && former.phase != Phase::Closing {
                state.seen = now;
                return true;
            }
            *state = Observed::new(backend, Phase::Opening, now);
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
        self.insert(key, Observed::new(backend, Phase::Opening, now));
        true
    }

    /// Takes a state over from an earlier run: it counts as open.
    pub fn restore(&mut self, key: K, backend: BackendId, now: u32) {
        if self.start(key, backend, now) {
            self.set_phase(&key, Phase::Open, now);
        }
    }

    pub fn set_phase(&mut self, key: &K, phase: Phase, now: u32) {
        if let Some(state) = self.map.get_mut(key) {
            (state.phase, state.seen) = (phase, now);
        }
    }

    /// All states, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut Observed)> {
        let (keys, values) = self.map.entries_mut();
        keys.iter().zip(values)
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

    fn count(&mut self, backend: BackendId, more: bool) {
        let count = self.per_backend.entry(backend).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_where_the_watch_began() {
        let rest_seconds = rest_for(600, 10);
        assert_eq!((rest_seconds, rest_for(80, 10), rest_for(u32::MAX, 10)), (260, 0, 300));
        let patience = Patience { idle_seconds: 600, keep_opening: false, rest_seconds };
        let key = 7u64;
        let (mut phase, mut seen, mut watched) = (Phase::Open, 1000, false);
        // While it rests nothing that is said of it is believed, and it is kept however long.
        assert!(!patience.is_due(&key, phase, seen, watched, 1129));
        assert!(patience.look(&mut phase, &mut seen, &mut watched, || true, 5000));
        assert!(patience.is_due(&key, phase, seen, watched, 5000));
        assert_eq!(seen, 1000);
        patience.begin_watch(phase, &mut seen, &mut watched, 5003);
        // Again, as at every look: it began then.
        patience.begin_watch(phase, &mut seen, &mut watched, 5013);
        assert!(patience.is_due(&key, phase, seen, watched, 5013));
        assert!(patience.look(&mut phase, &mut seen, &mut watched, || false, 5603));
        assert!(!patience.look(&mut phase, &mut seen, &mut watched, || false, 5604));
        // With other rests the silence that was counted is not longer than it was.
        patience.end_watch(&mut seen, &mut watched);
        let always = Patience { rest_seconds: 0, ..patience };
        assert!(seen >= 5003 && !watched);
        assert!(always.look(&mut phase, &mut seen, &mut watched, || false, 5603));
        // Whoever speaks rests again.
        assert!(patience.look(&mut phase, &mut seen, &mut true, || true, 5603));
        assert_eq!(seen, 5603);
    }
}
