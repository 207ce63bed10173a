//! The event queue: a binary heap, ties in the order of entry.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Something that will happen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Event {
    Arrival,
    Packet {
        slot: u32,
        serial: u32,
    },
    End {
        slot: u32,
        serial: u32,
    },
    Departure,
    Return(u16),
    Sample,
    /// The scripted event with this number.
    Script(usize),
    /// The flows are spread anew over the balancers.
    Reshuffle,
    /// Servers measure their loads.
    Measure,
    /// The oldest measurement on its way arrives.
    Report,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    time: f64,
    order: u64,
    event: Event,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.time.total_cmp(&other.time).then(self.order.cmp(&other.order))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// Events by time.
#[derive(Default, Debug)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    order: u64,
}

impl Queue {
    pub fn push(&mut self, time: f64, event: Event) {
        self.order += 1;
        self.heap.push(Reverse(Entry { time, order: self.order, event }));
    }

    pub fn pop(&mut self) -> Option<(f64, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.time, entry.event))
    }
}
