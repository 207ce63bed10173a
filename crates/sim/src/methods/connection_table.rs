//! A bounded connection table with eviction of the least recently used.

use crate::flow::Traffic;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// When the entry of a flow that has ended leaves the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// At once (a FIN was seen).
    #[default]
    AtEnd,
    /// Only by eviction.
    Never,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The flow's slot, or [`NONE`] if the flow has ended.
    slot: u32,
    server: u16,
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

/// Flow -> server, for at most so many flows.
///
/// Using an entry is not written down. When room is needed, the entry that was longest not known
/// to be used is asked when it was used last; if later than thought, it goes back into the queue
/// with that time; if not, all others have been used since, and it is evicted. The result is exact.
#[derive(Debug)]
pub struct ConnectionTable {
    capacity: usize,
    release: Release,
    entries: Vec<Entry>,
    free: Vec<u32>,
    queue: BinaryHeap<Reverse<Turn>>,
    /// Entry of each flow slot.
    by_slot: Vec<u32>,
    used: usize,
    evictions: u64,
}

impl ConnectionTable {
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
        }
    }

    /// Entries in use.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Entries thrown out to make room.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The server noted for the flow in this slot.
    pub fn get(&self, slot: u32) -> Option<u16> {
        self.entry_of(slot).map(|entry| self.entries[entry as usize].server)
    }

    /// Notes a flow that is not in the table, now. Returns the flow that had to go, if it lives;
    /// a table without capacity notes nothing.
    pub fn insert(&mut self, slot: u32, server: u16, traffic: &mut Traffic) -> Option<u32> {
        if self.capacity == 0 {
            return None;
        }
        let now = traffic.now();
        let evicted = (self.used == self.capacity).then(|| self.evict(traffic)).flatten();
        let entry = self.free.pop().unwrap_or(self.entries.len() as u32);
        let serial = self.entries.get(entry as usize).map_or(0, |old| old.serial.wrapping_add(1));
        let new = Entry { slot, server, used: true, stamp: now, since: now, serial };
        match self.entries.get_mut(entry as usize) {
            Some(old) => *old = new,
            None => self.entries.push(new),
        }
        self.queue.push(Reverse(Turn { stamp: new.stamp, entry, serial }));
        self.by_slot.resize(self.by_slot.len().max(slot as usize + 1), NONE);
        self.by_slot[slot as usize] = entry;
        self.used += 1;
        self.sweep();
        evicted
    }

    /// The flow has ended.
    pub fn end(&mut self, slot: u32, traffic: &mut Traffic) {
        let Some(entry) = self.take(slot) else {
            return;
        };
        match self.release {
            Release::AtEnd => self.drop_entry(entry),
            Release::Never => self.outlive(entry, slot, traffic),
        }
    }

    /// The flow has ended while its packets went to another table: nobody tells this one.
    pub fn end_elsewhere(&mut self, slot: u32, traffic: &mut Traffic) {
        if let Some(entry) = self.take(slot) {
            self.outlive(entry, slot, traffic);
        }
    }

    /// Its turn in the queue stays, earlier than this, and will be put right there.
    fn outlive(&mut self, entry: u32, slot: u32, traffic: &mut Traffic) {
        let stamp = self.last_use(entry, slot, traffic);
        let entry = &mut self.entries[entry as usize];
        entry.slot = NONE;
        entry.stamp = stamp;
    }

    /// The flow's packets go to another table from now on.
    pub fn leaves(&mut self, slot: u32, traffic: &mut Traffic) {
        if let Some(entry) = self.entry_of(slot) {
            let stamp = self.last_use(entry, slot, traffic);
            let entry = &mut self.entries[entry as usize];
            (entry.stamp, entry.since) = (stamp, f64::INFINITY);
        }
    }

    /// The flow's packets come here from now on.
    pub fn comes(&mut self, slot: u32, now: f64) {
        if let Some(entry) = self.entry_of(slot) {
            self.entries[entry as usize].since = now;
        }
    }

    fn entry_of(&self, slot: u32) -> Option<u32> {
        self.by_slot.get(slot as usize).copied().filter(|&entry| entry != NONE)
    }

    /// When the entry of a live flow was used last: by the flow's last packet, if that came here.
    fn last_use(&self, entry: u32, slot: u32, traffic: &mut Traffic) -> f64 {
        let entry = self.entries[entry as usize];
        match traffic.last_packet(slot) {
            last if last >= entry.since => last.max(entry.stamp),
            _ => entry.stamp,
        }
    }

    /// Drops all entries that name this server. Returns their live flows.
    pub fn forget_server(&mut self, server: u16) -> Vec<u32> {
        let mut flows = Vec::new();
        for entry in 0..self.entries.len() as u32 {
            let Entry { slot, server: noted, used, .. } = self.entries[entry as usize];
            if used && noted == server {
                if slot != NONE {
                    self.by_slot[slot as usize] = NONE;
                    flows.push(slot);
                }
                self.drop_entry(entry);
            }
        }
        flows
    }

    fn take(&mut self, slot: u32) -> Option<u32> {
        let place = self.by_slot.get_mut(slot as usize)?;
        let entry = std::mem::replace(place, NONE);
        (entry != NONE).then_some(entry)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::NewFlow;

    /// Flows of one packet each, so that their last packet is their first.
    fn traffic() -> Traffic {
        Traffic::new(1, &[1, 1], 1, false)
    }

    fn flow(traffic: &mut Traffic, start: f64) -> u32 {
        traffic.set_now(start);
        let end = start + 100.0;
        traffic.insert(NewFlow { hash: 0, start, end, packets: 1, row: 0, counted: true })
    }

    #[test]
    fn the_oldest_goes_first_and_an_ended_one_leaves_room() {
        let mut traffic = traffic();
        let mut table = ConnectionTable::new(2, Release::AtEnd);
        let slots = [0.0, 1.0, 2.0, 3.0].map(|start| flow(&mut traffic, start));
        assert_eq!(table.insert(slots[0], 0, &mut traffic), None);
        assert_eq!(table.insert(slots[1], 1, &mut traffic), None);
        assert_eq!(table.insert(slots[2], 1, &mut traffic), Some(slots[0]));
        assert_eq!([table.get(slots[0]), table.get(slots[1])], [None, Some(1)]);
        table.end(slots[1], &mut traffic);
        assert_eq!(table.insert(slots[3], 0, &mut traffic), None);
        assert_eq!((table.len(), table.evictions()), (2, 1));
        assert_eq!(table.forget_server(1), [slots[2]]);
        assert_eq!(table.len(), 1);
    }

    /// 0 is used at 0 and leaves at 4; 1 is used at 1, 2 at 2. What 0 sends elsewhere does not
    /// keep its entry young, and what it sends after it has come back does.
    #[test]
    fn packets_that_go_elsewhere_are_not_uses() {
        for back in [false, true] {
            let mut traffic = traffic();
            let mut table = ConnectionTable::new(3, Release::AtEnd);
            let slots = [0.0, 1.0, 2.0, 3.0].map(|start| flow(&mut traffic, start));
            for (&slot, time) in slots[..3].iter().zip([0.0, 1.0, 2.0]) {
                traffic.set_now(time);
                table.insert(slot, 0, &mut traffic);
            }
            traffic.set_now(4.0);
            table.leaves(slots[0], &mut traffic);
            traffic.flow_mut(slots[0]).last = 5.0;
            if back {
                table.comes(slots[0], 6.0);
                traffic.flow_mut(slots[0]).last = 7.0;
            }
            traffic.set_now(8.0);
            let evicted = table.insert(slots[3], 0, &mut traffic);
            assert_eq!(evicted, Some(slots[usize::from(back)]), "came back: {back}");
        }
    }

    #[test]
    fn an_entry_of_an_ended_flow_is_evicted_in_its_turn() {
        let mut traffic = traffic();
        let mut table = ConnectionTable::new(1, Release::Never);
        let first = flow(&mut traffic, 0.0);
        table.insert(first, 0, &mut traffic);
        table.end(first, &mut traffic);
        assert_eq!(table.len(), 1);
        let second = flow(&mut traffic, 1.0);
        assert_eq!(table.insert(second, 0, &mut traffic), None, "no live flow had to go");
        assert_eq!((table.len(), table.evictions()), (1, 1));
    }
}
