//! A method under measurement: loops that know its type, and a way to hand it new tables.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weir_steering::Steer;

/// What the measuring loop does with a method. One call is a block of many packets, so that the
/// loop over packets is compiled for the method.
pub trait Subject: Send {
    /// Decides packets one at a time.
    fn single(&mut self, keys: &[u64], out: &mut [u16]);
    /// Decides packets in bursts.
    fn batched(&mut self, burst: usize, keys: &[u64], out: &mut [u16]);
    /// These flows have ended.
    fn end(&mut self, keys: &[u64]);
    /// Bytes that packets may read.
    fn bytes(&self) -> usize;
}

/// A change of what a reader holds, made ready by the control plane.
type Change<S> = Box<dyn FnOnce(&mut S) + Send>;

/// Where the control plane leaves changes for one reader.
pub struct Mailbox<S> {
    full: AtomicBool,
    changes: Mutex<Vec<Change<S>>>,
}

impl<S> Mailbox<S> {
    /// Leaves a change. The reader makes it before its next burst.
    pub fn leave(&self, change: impl FnOnce(&mut S) + Send + 'static) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.push(Box::new(change));
        self.full.store(true, Ordering::Release);
    }

    #[cold]
    fn take(&self) -> Vec<Change<S>> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.full.store(false, Ordering::Relaxed);
        std::mem::take(&mut *changes)
    }
}

/// One reader's method, and the mailbox that it looks at once per burst: a load of one byte that
/// hardly ever changes.
pub struct Shared<S> {
    method: S,
    mailbox: Arc<Mailbox<S>>,
}

impl<S> Shared<S> {
    /// A reader of a method, with an empty mailbox.
    pub fn alone(method: S) -> Self {
        let mailbox = Mailbox { full: AtomicBool::new(false), changes: Mutex::default() };
        Self { method, mailbox: Arc::new(mailbox) }
    }

    /// The mailbox in which the control plane leaves changes for this reader.
    pub fn mailbox(&self) -> Arc<Mailbox<S>> {
        self.mailbox.clone()
    }

    #[inline(always)]
    fn refresh(&mut self) {
        if self.mailbox.full.load(Ordering::Acquire) {
            for change in self.mailbox.take() {
                change(&mut self.method);
            }
        }
    }
}

/// Bursts of the loop that decides one at a time: how often it looks at its mailbox.
const LOOK_EVERY: usize = 32;

impl<S: Steer<u64> + Send> Subject for Shared<S> {
    fn single(&mut self, keys: &[u64], out: &mut [u16]) {
        for (keys, out) in keys.chunks(LOOK_EVERY).zip(out.chunks_mut(LOOK_EVERY)) {
            self.refresh();
            for (key, out) in keys.iter().zip(out) {
                *out = self.method.steer(key);
            }
        }
    }

    fn batched(&mut self, burst: usize, keys: &[u64], out: &mut [u16]) {
        for (keys, out) in keys.chunks(burst).zip(out.chunks_mut(burst)) {
            self.refresh();
            self.method.steer_batch(keys, out);
        }
    }

    fn end(&mut self, keys: &[u64]) {
        keys.iter().for_each(|key| self.method.end(key));
    }

    fn bytes(&self) -> usize {
        self.method.bytes()
    }
}

/// The readers of one method, one per thread.
pub fn share<S: Steer<u64> + Send + 'static>(readers: Vec<Shared<S>>) -> Vec<Box<dyn Subject>> {
    readers.into_iter().map(|reader| Box::new(reader) as Box<dyn Subject>).collect()
}
