//! A method as a data plane in user space runs it: one service, packets one by one or in bursts.

use crate::decide::{Decide, Decision, Question, Signals};
use crate::memory::Memory;
use crate::methods::concury::Pending;
use crate::registry::Image;
use std::marker::PhantomData;
use std::sync::Arc;
use weir_hash::Key;

/// A table, and the memory that its decisions use: the contract of all methods
/// ([`Decide`], [`Memory`]), for callers that want backends.
///
/// A flow is a key that tells it from all others of the service: a `u64` that holds an IPv4
/// client's address and both ports, or a [`StateKey`](crate::StateKey). Without further types it is
/// a forwarder over a published table, with the pending flows.
#[derive(Clone, Debug)]
pub struct Forwarder<K, T = Arc<Image>, M = Pending<K>> {
    pub(crate) table: T,
    pub(crate) memory: M,
    key: PhantomData<fn(K)>,
}

impl<K: Key, T: Decide<K>, M: Memory<K>> Forwarder<K, T, M> {
    /// Decides with `table` and `memory`.
    pub fn with(table: T, memory: M) -> Self {
        Self { table, memory, key: PhantomData }
    }

    /// The table that decides.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// The table, to replace it or to change it as its method permits.
    pub fn table_mut(&mut self) -> &mut T {
        &mut self.table
    }

    /// What the decisions have left behind, and what they ask.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The memory, to change it.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Table and memory at once, to change both.
    pub fn parts_mut(&mut self) -> (&mut T, &mut M) {
        (&mut self.table, &mut self.memory)
    }

    #[inline(always)]
    fn question(&self, flow: &K, signals: Signals, now: u32) -> Question<K> {
        Question { signals, now, ..Question::later(*flow, flow.hash(self.table.hash_key())) }
    }

    /// Decides a packet of a flow, with all that it says; `now` in seconds.
    #[inline]
    pub fn decide(&mut self, flow: &K, signals: Signals, now: u32) -> Decision {
        self.table.decide(&self.question(flow, signals, now), &mut self.memory)
    }
}

/// A method as one value: its table and its memory together.
pub trait Parts<K: Key> {
    /// The table, which decides and which no packet changes.
    type Table: Decide<K>;
    /// What is remembered of flows, beside the table.
    type Memory: Memory<K>;

    /// Calls `run` with the table and the memory.
    fn with_parts<R>(&mut self, run: impl FnOnce(&Self::Table, &mut Self::Memory) -> R) -> R;

    /// Bytes that packets may read, from the allocations.
    fn bytes(&self) -> usize;
}

/// Decides where the packets of one service go, one at a time or in bursts. Methods that remember
/// may write at any packet, hence `&mut`. Answers are backends, or
/// [`NO_BACKEND`](crate::NO_BACKEND).
///
/// The one adapter over the contract for callers that want nothing but backends: whatever has
/// [`Parts`] steers.
pub trait Steer<K: Key> {
    /// Where a packet of this flow goes that neither starts nor ends it.
    fn steer(&mut self, flow: &K) -> u16;

    /// Where a burst of packets goes: the same answers as [`steer`](Self::steer) one after the
    /// other, with the memory reads of many packets under way at once.
    ///
    /// # Panics
    ///
    /// If the two slices differ in length.
    fn steer_batch(&mut self, flows: &[K], out: &mut [u16]);

    /// The flow has ended: what is remembered of it, if anything, may go.
    fn end(&mut self, flow: &K);

    /// Bytes that packets may read, from the allocations.
    fn bytes(&self) -> usize;
}

/// The adapter: what has [`Parts`] steers. (A macro and no blanket implementation, because an enum
/// of such methods steers without having parts.)
macro_rules! steers {
    ([$($generics:tt)*] $type:ty, $key:ty) => {
        impl<$($generics)*> $crate::forwarder::Steer<$key> for $type {
            #[inline]
            fn steer(&mut self, flow: &$key) -> u16 {
                $crate::forwarder::steer_one(self, flow)
            }

            #[inline]
            fn steer_batch(&mut self, flows: &[$key], out: &mut [u16]) {
                $crate::forwarder::steer_burst(self, flows, out);
            }

            fn end(&mut self, flow: &$key) {
                $crate::forwarder::end_one(self, flow);
            }

            fn bytes(&self) -> usize {
                $crate::forwarder::Parts::<$key>::bytes(self)
            }
        }
    };
}
pub(crate) use steers;

#[inline(always)]
pub(crate) fn steer_one<K: Key>(method: &mut impl Parts<K>, flow: &K) -> u16 {
    method.with_parts(|table, memory| {
        let question = Question::later(*flow, flow.hash(table.hash_key()));
        table.decide(&question, memory).slot()
    })
}

#[inline(always)]
pub(crate) fn steer_burst<K: Key>(method: &mut impl Parts<K>, flows: &[K], out: &mut [u16]) {
    method.with_parts(|table, memory| table.decide_burst(flows, out, memory));
}

pub(crate) fn end_one<K: Key>(method: &mut impl Parts<K>, flow: &K) {
    method.with_parts(|table, memory| {
        let question = Question::later(*flow, flow.hash(table.hash_key()));
        if table.may_remember(&question) {
            memory.end(&question);
        }
    });
}

steers!([K: Key, T: Decide<K>, M: Memory<K>] Forwarder<K, T, M>, K);

impl<K: Key, T: Decide<K>, M: Memory<K>> Parts<K> for Forwarder<K, T, M> {
    type Table = T;
    type Memory = M;

    #[inline(always)]
    fn with_parts<R>(&mut self, run: impl FnOnce(&T, &mut M) -> R) -> R {
        run(&self.table, &mut self.memory)
    }

    fn bytes(&self) -> usize {
        self.table.bytes() + self.memory.bytes()
    }
}

/// A method that is its table and remembers nothing else steers as it is.
macro_rules! table_alone {
    ([$($generics:tt)*] $type:ty, $key:ty) => {
        impl<$($generics)*> $crate::forwarder::Parts<$key> for $type {
            type Table = Self;
            type Memory = ();

            #[inline(always)]
            fn with_parts<R>(&mut self, run: impl FnOnce(&Self, &mut ()) -> R) -> R {
                run(self, &mut ())
            }

            fn bytes(&self) -> usize {
                $crate::decide::Decide::<$key>::bytes(self)
            }
        }

        $crate::forwarder::steers!([$($generics)*] $type, $key);
    };
}
pub(crate) use table_alone;
