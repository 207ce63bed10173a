//! Connections that agents have named while they were known to be another backend's: in step with other balancers,
//! whose end may be on its way, as agents are heard in no order.
//!
//! Each backend may name as many as its share of the room, whatever the others name, and none of two that name the
//! same connection pushes the other out. So an agent that names whatever it likes takes no room, and no connection,
//! of others.

use std::collections::{HashMap, HashSet};
use weir_steering::{BackendId, StateKey};

/// Of all backends of a service together, as far as each has its least.
const MOST: usize = 65_536;
/// Of each, however many there are. A claim lasts from the message of one agent to that of another.
const LEAST: usize = 256;

/// All of a service.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Whoever has named it first stands first.
    by_key: HashMap<StateKey, Vec<BackendId>>,
    /// Those of each backend, which are never none.
    counts: HashMap<BackendId, usize>,
}

/// What each of so many backends may claim.
fn share(backends: usize) -> usize {
    (MOST / backends.max(1)).max(LEAST)
}

impl Claims {
    /// A backend's agent has named a connection of another one, which there are `backends` of in all. Returns whether
    /// there is room for it.
    pub fn insert(&mut self, key: StateKey, backend: BackendId, backends: usize) -> bool {
        if self.has(&key, backend) {
            return true;
        }
        let count = self.counts.entry(backend).or_default();
        if *count >= share(backends) {
            return false;
        }
        *count += 1;
        self.by_key.entry(key).or_default().push(backend);
        true
    }

    pub fn has(&self, key: &StateKey, backend: BackendId) -> bool {
        self.of(key).contains(&backend)
    }

    /// Who has named it, the first one first.
    pub fn of(&self, key: &StateKey) -> &[BackendId] {
        self.by_key.get(key).map_or(&[], Vec::as_slice)
    }

    pub fn remove(&mut self, key: &StateKey, backend: BackendId) {
        let Some(claimants) = self.by_key.get_mut(key) else { return };
        let before = claimants.len();
        claimants.retain(|one| *one != backend);
        let gone = before > claimants.len();
        if claimants.is_empty() {
            self.by_key.remove(key);
        }
        if gone && let Some(count) = self.counts.get_mut(&backend) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&backend);
            }
        }
    }

    /// All that have been named.
    pub fn keys(&self) -> impl Iterator<Item = &StateKey> {
        self.by_key.keys()
    }

    /// Of a backend, these alone stay.
    pub fn keep_of(&mut self, backend: BackendId, stays: &HashSet<StateKey>) {
        let named = self.by_key.iter().filter(|(_, all)| all.contains(&backend));
        let gone: Vec<StateKey> =
            named.map(|(key, _)| *key).filter(|key| !stays.contains(key)).collect();
        gone.iter().for_each(|key| self.remove(key, backend));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::{FlowKey, Protocol};

    fn key(n: u32) -> StateKey {
        let (src, dst) = ((n.to_be_bytes(), 4_000), ([10, 0, 0, 1], 80));
        StateKey::of_flow(&FlowKey::new(src.into(), dst.into(), Protocol::Tcp))
    }

    fn id(n: u16) -> BackendId {
        BackendId::new(n).expect("a number")
    }

    #[test]
    fn each_backend_has_a_share_and_pushes_nobody_out() {
        let mut claims = Claims::default();
        let (liar, honest) = (id(1), id(2));
        let taken = (0..100_000).filter(|n| claims.insert(key(*n), liar, 4)).count();
        assert_eq!(taken, MOST / 4);
        // Of one that is named already, and of another one.
        for n in [0, 99_999] {
            assert!(claims.insert(key(n), honest, 4) && claims.insert(key(n), honest, 4));
        }
        assert_eq!(
            (claims.of(&key(0)), claims.of(&key(99_999))),
            (&[liar, honest][..], &[honest][..])
        );
        claims.remove(&key(0), liar);
        assert_eq!(claims.of(&key(0)), [honest]);
        assert!(claims.insert(key(99_999), liar, 4), "there is room for one again");
        // Twice is once, and of others nothing goes.
        claims.remove(&key(0), liar);
        assert!(!claims.insert(key(0), liar, 4));
        claims.keep_of(liar, &HashSet::from([key(7)]));
        assert_eq!(claims.counts, HashMap::from([(liar, 1), (honest, 2)]));
        claims.keep_of(honest, &HashSet::new());
        claims.keep_of(liar, &HashSet::new());
        assert!(claims.counts.is_empty() && claims.by_key.is_empty());
        // However many backends there are, each has something.
        assert!((0..LEAST as u32).all(|n| claims.insert(key(n), liar, 100_000)));
        assert!(!claims.insert(key(LEAST as u32), liar, 100_000));
    }
}
