//! A value that one thread replaces as a whole while others read it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, PoisonError, RwLock};

#[derive(Debug)]
struct Hub<T> {
    current: RwLock<Arc<T>>,
    /// Changes when `current` does, after it.
    generation: AtomicU64,
}

/// The writer's handle.
#[derive(Debug)]
pub(crate) struct Publisher<T> {
    hub: Arc<Hub<T>>,
    current: Arc<T>,
}

/// A reader's handle; each thread has its own. While nothing is published, reading costs one look
/// at a generation that no one writes.
#[derive(Debug)]
pub(crate) struct Subscriber<T> {
    hub: Arc<Hub<T>>,
    current: Arc<T>,
    generation: u64,
}

impl<T> Publisher<T> {
    pub(crate) fn new(first: T) -> Self {
        let current = Arc::new(first);
        let hub = Hub { current: RwLock::new(current.clone()), generation: AtomicU64::new(0) };
        Self { hub: Arc::new(hub), current }
    }

    /// What was published last.
    #[inline(always)]
    pub(crate) fn current(&self) -> &T {
        &self.current
    }

    /// Replaces the value; a reader who is in the old one finishes there.
    pub(crate) fn publish(&mut self, next: T) {
        self.current = Arc::new(next);
        let mut current = self.hub.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = self.current.clone();
        drop(current);
        self.hub.generation.fetch_add(1, Release);
    }

    /// A handle for another thread.
    pub(crate) fn subscribe(&self) -> Subscriber<T> {
        let generation = self.hub.generation.load(Acquire);
        Subscriber { hub: self.hub.clone(), current: self.current.clone(), generation }
    }
}

impl<T> Subscriber<T> {
    /// What was published last, at the latest when this is called.
    #[inline(always)]
    pub(crate) fn current(&mut self) -> &T {
        let generation = self.hub.generation.load(Acquire);
        if generation != self.generation {
            self.take_current(generation);
        }
        &self.current
    }

    #[cold]
    fn take_current(&mut self, generation: u64) {
        self.current = self.hub.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        self.generation = generation;
    }
}

impl<T> Clone for Subscriber<T> {
    fn clone(&self) -> Self {
        let Self { hub, current, generation } = self;
        Self { hub: hub.clone(), current: current.clone(), generation: *generation }
    }
}
