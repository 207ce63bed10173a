//! A bounded connection table with eviction of the least recently used of all.

use super::{Release, Tracked};
use crate::flow::Traffic;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use weir_steering::TrackedFlow;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    /// The flow's slot, or [`NONE`] if the flow has ended.
    slot: u32,
    entry: TrackedFlow,
    used: bool,
    /// The entry was last used at this time or, while the flow is here, later.
    stamp: f64,
    /// Since when the flow's packets come to this table; infinite if they do not now.
    since: f64,
    /// Tells it from others in the same place.
    serial: u32,
}

#[derive(PartialEq, Clone, Copy, Debug)]
struct Turn {
    stamp: f64,
    entry: u32,
    serial: u32,
}

impl Eq for Turn {}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let rest = self.entry.cmp(&other.entry).then(self.serial.cmp(&other.serial));
        self.stamp.total_cmp(&other.stamp).then(rest)
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The idealised table of the papers.
///
/// Using an entry is not written down. When room is needed, the entry that was longest not known
/// to be used is asked when it was used last; if later than thought, it goes back into the queue
/// with that time; if not, all others have been used since, and it is evicted. The result is exact.
#[derive(Debug)]
pub struct Exact {
    capacity: usize,
    release: Release,
    entries: Vec<Entry>,
    free: Vec<u32>,
    queue: BinaryHeap<Reverse<Turn>>,
    /// Entry of each flow slot.
    by_slot: Vec<u32>,
    used: usize,
    evictions: u64,
    /// When it was prepared.
    now: f64,
}

impl Exact {
    /// An empty table.
    pub fn new(capacity: usize, release: Release) -> Self {
        Self {
            capacity,
            release,
            entries: Vec::new(),
            free: Vec::new(),
            queue: BinaryHeap::new(),
            by_slot: Vec::new(),
            used: 0,
            evictions: 0,
            now: 0.0,
        }
    }

    pub fn len(&self) -> usize {
        self.used
    }

    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    pub fn peek(&self, flow: Tracked) -> Option<TrackedFlow> {
        self.entry_of(flow).map(|entry| self.entries[entry as usize].entry)
    }

    pub fn prepare(&mut self, flow: Tracked, traffic: &mut Traffic, gone: &mut Vec<u32>) {
        self.now = traffic.now();
        if self.used >= self.capacity && self.capacity > 0 && self.entry_of(flow).is_none() {
            gone.extend(self.evict(traffic));
        }
    }

    /// A table without capacity notes nothing.
    pub fn insert(&mut self, flow: Tracked, noted: TrackedFlow) {
        if let Some(entry) = self.entry_of(flow) {
            self.entries[entry as usize].entry = noted;
            return;
        }
        if self.used >= self.capacity {
            self.evictions += 1;
            return;
        }
        let now = self.now;
        let entry = self.free.pop().unwrap_or(self.entries.len() as u32);
        let serial = self.entries.get(entry as usize).map_or(0, |old| old.serial.wrapping_add(1));
        let Tracked { id, slot } = flow;
        let (stamp, since) = (now, now);
        let new = Entry { id, slot, entry: noted, used: true, stamp, since, serial };
        match self.entries.get_mut(entry as usize) {
            Some(old) => *old = new,
            None => self.entries.push(new),
        }
        self.queue.push(Reverse(Turn { stamp: new.stamp, entry, serial }));
        self.by_slot.resize(self.by_slot.len().max(slot as usize + 1), NONE);
        self.by_slot[slot as usize] = entry;
        self.used += 1;
        self.sweep();
    }

    fn remove(&mut self, flow: Tracked) {
        if let Some(entry) = self.take(flow) {
            self.drop_entry(entry);
        }
    }

    pub fn end(&mut self, flow: Tracked, traffic: &mut Traffic) {
        match self.release {
            Release::AtEnd => self.remove(flow),
            Release::Never => self.end_elsewhere(flow, traffic),
        }
    }

    pub fn end_elsewhere(&mut self, flow: Tracked, traffic: &mut Traffic) {
        if let Some(entry) = self.take(flow) {
            self.outlive(entry, flow.slot, traffic);
        }
    }

    /// Its turn in the queue stays, earlier than this, and will be put right there.
    fn outlive(&mut self, entry: u32, slot: u32, traffic: &mut Traffic) {
        let stamp = self.last_use(entry, slot, traffic);
        let entry = &mut self.entries[entry as usize];
        entry.slot = NONE;
        entry.stamp = stamp;
    }

    pub fn leaves(&mut self, flow: Tracked, traffic: &mut Traffic) {
        if let Some(entry) = self.entry_of(flow) {
            let stamp = self.last_use(entry, flow.slot, traffic);
            let entry = &mut self.entries[entry as usize];
            (entry.stamp, entry.since) = (stamp, f64::INFINITY);
        }
    }

    pub fn comes(&mut self, flow: Tracked, now: f64) {
        if let Some(entry) = self.entry_of(flow) {
            self.entries[entry as usize].since = now;
        }
    }

    fn entry_of(&self, flow: Tracked) -> Option<u32> {
        let entry = *self.by_slot.get(flow.slot as usize)?;
        let is_its = |entry: u32| self.entries[entry as usize].id == flow.id;
        (entry != NONE && is_its(entry)).then_some(entry)
    }

    /// When the entry of a live flow was used last: by the flow's last packet, if that came here.
    fn last_use(&self, entry: u32, slot: u32, traffic: &mut Traffic) -> f64 {
        let entry = self.entries[entry as usize];
        match traffic.last_packet(slot) {
            last if last >= entry.since => last.max(entry.stamp),
            _ => entry.stamp,
        }
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u64, u16) -> bool, gone: &mut Vec<u32>) {
        for entry in 0..self.entries.len() as u32 {
            let Entry { id, slot, entry: noted, used, .. } = self.entries[entry as usize];
            if used && !keep(id, noted.backend.get()) {
                if slot != NONE {
                    self.by_slot[slot as usize] = NONE;
                    gone.push(slot);
                }
                self.drop_entry(entry);
            }
        }
    }

    fn take(&mut self, flow: Tracked) -> Option<u32> {
        let entry = self.entry_of(flow)?;
        self.by_slot[flow.slot as usize] = NONE;
        Some(entry)
    }

    fn drop_entry(&mut self, entry: u32) {
        self.entries[entry as usize].used = false;
        self.free.push(entry);
        self.used -= 1;
    }

    fn evict(&mut self, traffic: &mut Traffic) -> Option<u32> {
        while let Some(Reverse(turn)) = self.queue.pop() {
            let entry = self.entries[turn.entry as usize];
            if !entry.used || entry.serial != turn.serial {
                continue;
            }
            let stamp = match entry.slot {
                NONE => entry.stamp,
                slot => self.last_use(turn.entry, slot, traffic),
            };
            if stamp > turn.stamp {
                self.entries[turn.entry as usize].stamp = stamp;
                self.queue.push(Reverse(Turn { stamp, ..turn }));
                continue;
            }
            self.evictions += 1;
            if entry.slot != NONE {
                self.by_slot[entry.slot as usize] = NONE;
            }
            self.drop_entry(turn.entry);
            return (entry.slot != NONE).then_some(entry.slot);
        }
        None
    }

    /// Turns of entries that are gone must not pile up where nothing is ever evicted.
    fn sweep(&mut self) {
        if self.queue.len() > 2 * self.used + 1024 {
            let entries = &self.entries;
            self.queue.retain(|Reverse(turn)| {
                let entry = entries[turn.entry as usize];
                entry.used && entry.serial == turn.serial
            });
        }
    }
}
