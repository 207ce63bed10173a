//! `ConnTable` and `ConnStack`: connections by index (paper, section 3.2).

use crate::decide::Question;
use crate::ids::BackendId;
use weir_hash::{HashKey, Key, scale};

/// Slots of a partition where the cookie has 15 bits for the index, as in published tables.
pub const PARTITION_SLOTS: u32 = 1 << 15;

/// The bits of a flow's hash from this one on choose its partition: neither those that [hide](PAD_SHIFT) an
/// index, nor those that pick a server.
pub const PARTITION_SHIFT: u32 = 16;
/// The bits of a flow's hash from this one on hide an index or a server's number in its cookie.
pub const PAD_SHIFT: u32 = 48;

/// Slots that each new connection looks over for ended ones, in its partition.
pub const SWEEP: u32 = 2;
/// The same, if there is no free slot.
pub const SWEEP_FULL: u32 = 16;

/// The shape of a table and how long its entries last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnTableConfig {
    /// Partitions; a flow's hash says which.
    pub partitions: u32,
    /// Slots of each partition: at most two to the bits of the index.
    pub slots: u32,
    /// Bits that the cookie has for the index
    /// ([`Layout::back_bits`](super::Layout::back_bits)).
    pub bits: u32,
    /// Seconds from the SYN in which a packet with the cookie must come.
    pub opening_seconds: u32,
    /// Seconds of silence that end a connection.
    pub idle_seconds: u32,
    /// The same after a FIN or RST was seen. Not at once: data may still flow the other way, and a
    /// reset may be forged.
    pub linger_seconds: u32,
}

/// A table cannot have this shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a connection table of {partitions} partitions with {slots} slots and {bits} bits of index: \
     each needs 1 to 2^bits slots, bits are at most 16, and all slots together less than 2^32"
)]
pub struct ConnTableError {
    /// The partitions that were asked for.
    pub partitions: u32,
    /// The slots of each that were asked for.
    pub slots: u32,
    /// The bits of the index that were asked for.
    pub bits: u32,
}

/// The partition of the flow has no free slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the flow's partition of the connection table is full")]
pub struct TableFull;

/// How far a connection has come, by the number that a slot holds of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SlotState {
    /// Nobody's.
    Free = 0,
    /// Only a SYN was seen.
    Opening = 1,
    /// A packet with the cookie was seen.
    Open = 2,
    /// A FIN or RST was seen.
    Closing = 3,
}

use SlotState as State;

/// What a slot says of its connection, for comparisons.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotEntry {
    /// The flow's hash.
    pub hash: u64,
    /// Seconds of its latest packet.
    pub last: u32,
    /// Where it lives.
    pub backend: u16,
    /// How far it has come.
    pub state: SlotState,
}

/// How full a table of connections is, and what it has refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotCounts {
    /// Slots in use, those included whose time is up but that no sweep has found.
    pub used: u64,
    /// Slots that there are, in use or free.
    pub slots: u64,
    /// Connections that found their partition full.
    pub full: u64,
    /// Cookies that named a free slot: stale ones, or forged ones.
    pub stale: u64,
    /// Cookies that named the slot of another flow: forged ones, or stale ones.
    pub foreign: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// All 64 bits of the flow's hash. For IPv4 no two flows of a service share it.
    hash: u64,
    last: u32,
    backend: u16,
    state: State,
}

/// Connections in slots, free slots on stacks, one stack per partition.
///
/// Opening, finding and closing take constant time. A slot is taken from its stack and returned to
/// it exactly once: by [`close`](Self::close), or by the sweep that finds its time is up. Each
/// [`open`](Self::open) sweeps a little, [`sweep`](Self::sweep) as much as it is told.
#[derive(Clone, Debug)]
pub struct ConnTable {
    key: HashKey,
    config: ConnTableConfig,
    slots: Vec<Slot>,
    /// Free indices: partition `p` has `free[p]` of them from `stacks[p * slots]` on.
    stacks: Vec<u16>,
    free: Vec<u32>,
    /// Where the sweep of each partition goes on.
    hands: Vec<u32>,
    /// Where the sweep of everything goes on.
    hand: u32,
    full: u64,
    stale: u64,
    foreign: u64,
}

impl ConnTable {
    /// An empty table. Its key must be no other table's or cookie's.
    ///
    /// # Errors
    /// [`ConnTableError`].
    pub fn new(key: HashKey, config: ConnTableConfig) -> Result<Self, ConnTableError> {
        let ConnTableConfig { partitions, slots, bits, .. } = config;
        let total = partitions.checked_mul(slots).filter(|&total| total > 0);
        let (Some(total), true) = (total, bits <= 16 && slots <= 1 << bits.min(16)) else {
            return Err(ConnTableError { partitions, slots, bits });
        };
        let free = Slot { hash: 0, last: 0, backend: 0, state: State::Free };
        Ok(Self {
            key,
            config,
            slots: vec![free; total as usize],
            // The lowest index is on top.
            stacks: (0..total).map(|at| (slots - 1 - at % slots) as u16).collect(),
            free: vec![slots; partitions as usize],
            hands: vec![0; partitions as usize],
            hand: 0,
            full: 0,
            stale: 0,
            foreign: 0,
        })
    }

    /// Number of connections, those included whose time is up but that no sweep has found.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.iter().map(|&free| free as usize).sum::<usize>()
    }

    /// Whether all slots are free.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key that flows are hashed under.
    pub fn key(&self) -> &HashKey {
        &self.key
    }

    /// Bytes of slots and stacks.
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.stacks.capacity() * size_of::<u16>()
    }

    /// Number of slots, over all partitions.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Takes a slot for a connection that starts. Returns its part of the cookie.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn open<K: Key>(&mut self, flow: &K, backend: u16, now: u32) -> Result<u16, TableFull> {
        let hash = flow.hash(&self.key);
        let partition = self.partition(hash);
        self.sweep_partition(partition, SWEEP, now);
        if self.free[partition as usize] == 0 {
            self.sweep_partition(partition, SWEEP_FULL, now);
        }
        let Some(index) = self.pop(partition) else {
            self.full += 1;
            return Err(TableFull);
        };
        let at = self.at(partition, index);
        self.slots[at] = Slot { hash, last: now, backend, state: State::Opening };
        Ok(self.pad(hash) ^ index)
    }

    /// The backend of a connection, without noting that it was asked.
    #[inline]
    pub fn get<K: Key>(&self, flow: &K, cookie: u16) -> Option<u16> {
        self.find(flow, cookie).map(|at| self.slots[at].backend)
    }

    /// Whether a connection has ended as far as anybody has said, and only lingers.
    pub fn closes<K: Key>(&self, flow: &K, cookie: u16) -> bool {
        self.find(flow, cookie).is_some_and(|at| self.slots[at].state == State::Closing)
    }

    /// The backend of a connection that has sent a packet; `ends`: with FIN or RST.
    #[inline]
    pub fn packet<K: Key>(&mut self, flow: &K, cookie: u16, ends: bool, now: u32) -> Option<u16> {
        let at = self.find(flow, cookie)?;
        let slot = &mut self.slots[at];
        slot.last = now;
        slot.state = match slot.state {
            _ if ends => State::Closing,
            State::Opening => State::Open,
            state => state,
        };
        Some(slot.backend)
    }

    /// As [`packet`](Self::packet), by what the question says. A repeated SYN leaves no trace.
    pub fn asked<K: Key>(&mut self, question: &Question<K>, part: u16) -> Option<BackendId> {
        let Question { key, signals, now, .. } = question;
        BackendId::new(match signals.starts {
            true => self.get(key, part)?,
            false => self.packet(key, part, signals.ends, *now)?,
        })
    }

    /// Counts a cookie that led to no connection of its flow.
    pub fn note_lost<K: Key>(&mut self, flow: &K, cookie: u16) {
        let hash = flow.hash(&self.key);
        let index = cookie ^ self.pad(hash);
        let slot = self.slots.get(self.at(self.partition(hash), index));
        let free = u32::from(index) >= self.config.slots
            || slot.is_none_or(|slot| slot.state == State::Free);
        *(if free { &mut self.stale } else { &mut self.foreign }) += 1;
    }

    /// How full it is, and what it has refused.
    pub fn counts(&self) -> SlotCounts {
        SlotCounts {
            used: self.len() as u64,
            slots: self.capacity() as u64,
            full: self.full,
            stale: self.stale,
            foreign: self.foreign,
        }
    }

    /// What the slots hold, partition by partition.
    pub fn entries(&self) -> impl Iterator<Item = SlotEntry> {
        self.slots.iter().map(|&Slot { hash, last, backend, state }| SlotEntry {
            hash,
            last,
            backend,
            state,
        })
    }

    /// Ends a connection and returns its slot to the stack. Returns its backend.
    pub fn close<K: Key>(&mut self, flow: &K, cookie: u16) -> Option<u16> {
        let at = self.find(flow, cookie)?;
        let backend = self.slots[at].backend;
        self.release(at as u32);
        Some(backend)
    }

    /// Looks over the next `steps` slots and releases those whose time is up, and those whose
    /// backend `keep` does not want. Returns how many. A whole round takes
    /// [`capacity`](Self::capacity) steps.
    pub fn sweep(&mut self, steps: u32, now: u32, mut keep: impl FnMut(u16) -> bool) -> u32 {
        let mut released = 0;
        for _ in 0..steps {
            let at = self.hand;
            self.hand = (at + 1) % self.slots.len() as u32;
            let slot = self.slots[at as usize];
            if slot.state != State::Free && (self.is_over(&slot, now) || !keep(slot.backend)) {
                self.release(at);
                released += 1;
            }
        }
        released
    }

    fn sweep_partition(&mut self, partition: u32, steps: u32, now: u32) {
        for _ in 0..steps.min(self.config.slots) {
            let hand = &mut self.hands[partition as usize];
            let at = partition * self.config.slots + *hand;
            *hand = (*hand + 1) % self.config.slots;
            if self.is_over(&self.slots[at as usize], now) {
                self.release(at);
            }
        }
    }

    fn is_over(&self, slot: &Slot, now: u32) -> bool {
        let limit = match slot.state {
            State::Free => return false,
            State::Opening => self.config.opening_seconds,
            State::Open => self.config.idle_seconds,
            State::Closing => self.config.linger_seconds,
        };
        // A clock that was set back makes nobody old.
        let age = now.wrapping_sub(slot.last);
        age > limit && age <= i32::MAX as u32
    }

    /// Where the slot of this flow is, if the cookie names it.
    #[inline]
    fn find<K: Key>(&self, flow: &K, cookie: u16) -> Option<usize> {
        let hash = flow.hash(&self.key);
        let index = cookie ^ self.pad(hash);
        if u32::from(index) >= self.config.slots {
            return None;
        }
        let at = self.at(self.partition(hash), index);
        let slot = &self.slots[at];
        (slot.state != State::Free && slot.hash == hash).then_some(at)
    }

    fn pop(&mut self, partition: u32) -> Option<u16> {
        let free = &mut self.free[partition as usize];
        *free = free.checked_sub(1)?;
        Some(self.stacks[(partition * self.config.slots + *free) as usize])
    }

    /// The only way back onto the stack. The slot must be in use.
    fn release(&mut self, at: u32) {
        debug_assert_ne!(self.slots[at as usize].state, State::Free);
        self.slots[at as usize].state = State::Free;
        let partition = at / self.config.slots;
        let first = partition * self.config.slots;
        let free = &mut self.free[partition as usize];
        self.stacks[(first + *free) as usize] = (at - first) as u16;
        *free += 1;
    }

    fn at(&self, partition: u32, index: u16) -> usize {
        (partition * self.config.slots + u32::from(index)) as usize
    }

    fn partition(&self, hash: u64) -> u32 {
        scale((hash >> PARTITION_SHIFT) as u32, self.config.partitions)
    }

    /// Hides the index: a plain one would show how full the table is.
    fn pad(&self, hash: u64) -> u16 {
        ((hash >> PAD_SHIFT) & ((1 << self.config.bits) - 1)) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StateKey;
    use weir_wire::FlowKey;

    fn config(partitions: u32, slots: u32, bits: u32) -> ConnTableConfig {
        ConnTableConfig {
            partitions,
            slots,
            bits,
            opening_seconds: 10,
            idle_seconds: 300,
            linger_seconds: 30,
        }
    }

    fn flow(n: u16) -> StateKey {
        let service = "10.0.0.2:80".parse().unwrap();
        let client = ([10, 0, 0, 1], n).into();
        StateKey::of_flow(&FlowKey::new(client, service, weir_wire::Protocol::Tcp))
    }

    fn table(partitions: u32, slots: u32) -> ConnTable {
        ConnTable::new(HashKey::from_seed(3), config(partitions, slots, 15)).unwrap()
    }

    #[test]
    fn shapes_are_checked() {
        for (partitions, slots, bits) in [(1, 1, 0), (1, 65_536, 16), (3, 100, 7)] {
            let shape = config(partitions, slots, bits);
            assert!(ConnTable::new(HashKey::from_seed(0), shape).is_ok());
        }
        for (partitions, slots, bits) in
            [(0, 1, 4), (1, 0, 4), (1, 17, 4), (1, 1, 17), (1 << 16, 1 << 16, 16), (1, 1, u32::MAX)]
        {
            let error = ConnTableError { partitions, slots, bits };
            let shape = config(partitions, slots, bits);
            assert_eq!(ConnTable::new(HashKey::from_seed(0), shape).unwrap_err(), error);
        }
    }

    #[test]
    fn a_full_partition_refuses_and_a_closed_slot_is_used_again() {
        let mut table = table(1, 4);
        let cookies: Vec<u16> = (0..4).map(|n| table.open(&flow(n), n, 0).unwrap()).collect();
        assert_eq!(table.open(&flow(4), 4, 0), Err(TableFull));
        assert_eq!(table.close(&flow(2), cookies[2]), Some(2));
        assert_eq!(table.close(&flow(2), cookies[2]), None, "once only");
        let cookie = table.open(&flow(4), 4, 0).unwrap();
        assert_eq!(table.get(&flow(4), cookie), Some(4));
        assert_eq!(table.get(&flow(2), cookies[2]), None, "the slot is another's now");
        assert_eq!(table.len(), 4);
    }

    #[test]
    fn a_flood_of_first_packets_passes() {
        let mut table = table(4, 64);
        let mut full = 0;
        for n in 0..10_000u16 {
            full += u32::from(table.open(&flow(n), 0, 0).is_err());
        }
        assert!(full > 9_700 && table.len() == 256);
        // Ten seconds later each new one finds room, without anybody sweeping.
        for n in 0..200u16 {
            assert!(table.open(&flow(n), 1, 11).is_ok(), "{n}");
        }
    }

    #[test]
    fn each_state_has_its_time() {
        let mut table = table(1, 8);
        let [opening, open, closing] = [0, 1, 2].map(|n| table.open(&flow(n), n, 0).unwrap());
        assert_eq!(table.packet(&flow(1), open, false, 1), Some(1));
        assert_eq!(table.packet(&flow(2), closing, false, 1), Some(2));
        assert_eq!(table.packet(&flow(2), closing, true, 2), Some(2));
        assert_eq!(table.packet(&flow(2), closing, false, 3), Some(2), "data the other way");
        let all = table.capacity() as u32;
        assert_eq!(table.sweep(all, 10, |_| true), 0);
        assert_eq!(table.sweep(all, 11, |_| true), 1);
        assert_eq!(table.get(&flow(0), opening), None);
        assert_eq!((table.sweep(all, 33, |_| true), table.sweep(all, 34, |_| true)), (0, 1));
        assert_eq!((table.sweep(all, 301, |_| true), table.sweep(all, 302, |_| true)), (0, 1));
        assert!(table.is_empty());
    }

    #[test]
    fn backends_that_are_gone_give_their_slots_back() {
        let mut table = table(2, 32);
        for n in 0..20 {
            table.open(&flow(n), n % 2, 0).unwrap();
        }
        assert_eq!(table.sweep(64, 0, |backend| backend == 0), 10);
        assert_eq!(table.len(), 10);
    }

    #[test]
    fn a_clock_set_back_ends_nothing() {
        let mut table = table(1, 8);
        table.open(&flow(0), 0, 1_000).unwrap();
        assert_eq!(table.sweep(8, 10, |_| true), 0);
    }
}
