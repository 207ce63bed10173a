//! The form chosen at run time.

use super::{ConnectionTable, Lru, SLOTS, Unbounded};
use weir_hash::{HashKey, Key};

/// Either form of connection table.
#[derive(Clone, Debug)]
pub enum AnyTable<K, const S: usize = SLOTS> {
    /// A table that grows and evicts nothing.
    Unbounded(Unbounded<K, S>),
    /// A table of fixed size that evicts.
    Lru(Lru<K, S>),
}

impl<K: Key + Default, const S: usize> AnyTable<K, S> {
    /// A table with this capacity; `None` for one that grows.
    pub fn new(key: HashKey, capacity: Option<usize>) -> Self {
        match capacity {
            None => Self::Unbounded(Unbounded::new(key)),
            Some(capacity) => Self::Lru(Lru::new(key, capacity)),
        }
    }
}

macro_rules! either {
    ($self:expr, $table:ident => $call:expr) => {
        match $self {
            AnyTable::Unbounded($table) => $call,
            AnyTable::Lru($table) => $call,
        }
    };
}

impl<K: Key + Default, const S: usize> ConnectionTable for AnyTable<K, S> {
    type Flow = K;

    fn hash_key(&self) -> &HashKey {
        either!(self, table => table.hash_key())
    }

    #[inline(always)]
    fn prefetch(&self, hash: u64) {
        either!(self, table => table.prefetch(hash))
    }

    #[inline(always)]
    fn get(&mut self, hash: u64, flow: &K) -> Option<u16> {
        either!(self, table => table.get(hash, flow))
    }

    #[inline(always)]
    fn peek(&self, hash: u64, flow: &K) -> Option<u16> {
        either!(self, table => table.peek(hash, flow))
    }

    fn insert(&mut self, hash: u64, flow: K, backend: u16) {
        either!(self, table => table.insert(hash, flow, backend))
    }

    fn remove(&mut self, hash: u64, flow: &K) -> Option<u16> {
        either!(self, table => table.remove(hash, flow))
    }

    fn retain(&mut self, keep: impl FnMut(&K, u16) -> bool) -> usize {
        either!(self, table => table.retain(keep))
    }

    fn for_each(&self, visit: impl FnMut(&K, u16)) {
        either!(self, table => table.for_each(visit))
    }

    fn len(&self) -> usize {
        either!(self, table => table.len())
    }

    fn capacity(&self) -> Option<usize> {
        either!(self, table => table.capacity())
    }

    fn evictions(&self) -> u64 {
        either!(self, table => table.evictions())
    }

    fn bytes(&self) -> usize {
        either!(self, table => table.bytes())
    }
}
