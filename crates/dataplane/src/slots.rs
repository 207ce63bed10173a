//! Connections by index, as the program keeps them (`bpf/slots.h`, which says why this is right beside
//! packets on other CPUs): who has which partitions, and what the control plane does in them.

use crate::abi::types;
use crate::error::Error;
use crate::mapped::{Mapped, Part, Parted};
use crate::numbers::{
    HEAD_ONE_USED, HEAD_TAG_SHIFT, HEAD_TOP, HEAD_USED, SLOT_LAST_SHIFT, SLOT_SERVER_SHIFT,
    SLOT_STATE_SHIFT, SLOT_WHO,
};
use crate::room::Room;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use weir_hash::scale;
use weir_steering::ServiceId;
use weir_steering::cheetah::{
    LINGER_SECONDS, MOST_TIER_BITS, OPENING_SECONDS, PAD_SHIFT, PARTITION_SHIFT, PARTITION_SLOTS,
    SlotCounts, SlotEntry, SlotState,
};

/// Bytes of a slot, of a partition's slots, of a stack, and of a partition's stacks: it is cut into parts
/// where a cookie has fewer bits for the index (`bpf/slots.h`).
const SLOT_BYTES: usize = size_of::<types::slot>();
pub(crate) const PARTITION_BYTES: usize = PARTITION_SLOTS as usize * SLOT_BYTES;
const STACK_BYTES: usize = size_of::<types::stack>();
pub(crate) const STACKS_BYTES: usize = STACK_BYTES << MOST_TIER_BITS;

/// A service's partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Partitions {
    pub first: u32,
    pub length: u32,
    /// Bits of the cookie that are the tier's in front: each partition is two to these parts.
    pub tier_bits: u32,
}

/// A part of a partition, and what it holds. A whole one, where there is one tier.
#[derive(Clone, Copy)]
struct Place {
    /// Where its slots begin, and its stack, in bytes.
    slots: usize,
    stack: usize,
}

impl Partitions {
    /// Slots of each part.
    fn part_slots(&self) -> u32 {
        PARTITION_SLOTS >> self.tier_bits
    }

    /// How many parts there are.
    fn parts(&self) -> u32 {
        self.length << self.tier_bits
    }

    /// One of them.
    fn part(&self, part: u32) -> Place {
        let smallest = (self.first << MOST_TIER_BITS) + (part << MOST_TIER_BITS >> self.tier_bits);
        let slots = self.first as usize * PARTITION_BYTES + part as usize * self.part_bytes();
        Place { slots, stack: smallest as usize * STACK_BYTES }
    }

    /// Bytes of the slots of each.
    fn part_bytes(&self) -> usize {
        PARTITION_BYTES >> self.tier_bits
    }

    /// That of a flow of this hash.
    fn part_of(&self, hash: u64) -> u32 {
        scale((hash >> PARTITION_SHIFT) as u32, self.parts())
    }

    /// The bits that hide an index in one of them.
    fn pad(&self, hash: u64) -> u16 {
        (hash >> PAD_SHIFT) as u16 & (self.part_slots() - 1) as u16
    }
}

/// The partitions of all services.
pub(crate) struct Slots {
    slots: Parted,
    stacks: Mapped,
    partitions: u32,
    room: Room,
    current: BTreeMap<ServiceId, Partitions>,
    /// Those that packets may still look into by the table before.
    former: BTreeMap<ServiceId, Partitions>,
    /// Where the sweep of each service goes on.
    hands: BTreeMap<ServiceId, u32>,
}

impl Slots {
    /// All of them are free.
    pub fn new(slots: Parted, stacks: Mapped, partitions: u32) -> Self {
        Self {
            slots,
            stacks,
            partitions,
            room: Room::new(partitions),
            current: BTreeMap::new(),
            former: BTreeMap::new(),
            hands: BTreeMap::new(),
        }
    }

    /// A published table says that the service has these.
    pub fn adopt(&mut self, service: ServiceId, has: Partitions) {
        if self.room.take_at(has.first, has.length) {
            self.current.insert(service, has);
        }
    }

    /// The services that have partitions, with these.
    pub fn all(&self) -> impl Iterator<Item = (ServiceId, Partitions)> {
        self.current.iter().map(|(service, has)| (*service, *has))
    }

    /// The first of so many partitions for a service: its own, or empty ones if it has none, or
    /// another number of them, or others.
    pub fn place(&mut self, service: ServiceId, length: u32, tier_bits: u32) -> Result<u32, Error> {
        let same = |has: &&Partitions| (has.length, has.tier_bits) == (length, tier_bits);
        if let Some(has) = self.current.get(&service).filter(same) {
            return Ok(has.first);
        }
        let Some(first) = self.room.take(length) else {
            return Err(Error::SlotsFull {
                needed: length,
                free: self.room.free(),
                partitions: self.partitions,
            });
        };
        if let Err(error) = self.clear(first, length) {
            self.room.give_back(first, length);
            return Err(error);
        }
        let has = Partitions { first, length, tier_bits };
        if let Some(before) = self.current.insert(service, has) {
            self.former.insert(service, before);
        }
        self.hands.remove(&service);
        Ok(first)
    }

    /// Packets never saw the table that a place was asked for; `published` if they see one before it.
    pub fn undo(&mut self, service: ServiceId, published: Option<Partitions>) {
        if self.current.get(&service).copied() == published {
            return;
        }
        self.free(service);
        self.former.remove(&service);
        self.current.extend(published.map(|has| (service, has)));
    }

    /// No packet follows the table before the current one; `has`: what that has.
    pub fn settle(&mut self, service: ServiceId, has: Option<Partitions>) {
        if let Some(Partitions { first, length, .. }) = self.former.remove(&service) {
            self.room.give_back(first, length);
        }
        if has.is_none() {
            self.free(service);
        }
    }

    fn free(&mut self, service: ServiceId) {
        if let Some(Partitions { first, length, .. }) = self.current.remove(&service) {
            self.room.give_back(first, length);
        }
    }

    /// A part of the memory of zeros is a partition of free slots.
    fn clear(&mut self, first: u32, length: u32) -> Result<(), Error> {
        let (at, bytes) = (first as usize * PARTITION_BYTES, length as usize * PARTITION_BYTES);
        self.slots.part(at, bytes)?.bytes_mut().fill(0);
        let at = first as usize * STACKS_BYTES;
        self.stacks.bytes_mut()[at..][..length as usize * STACKS_BYTES].fill(0);
        Ok(())
    }

    /// How full a service's are.
    pub fn counts(&self, service: ServiceId) -> Option<SlotCounts> {
        let has = self.current.get(&service)?;
        let mut all = SlotCounts::default();
        for part in 0..has.parts() {
            let word =
                |field: usize| self.stacks.word64(has.part(part).stack + field).load(Relaxed);
            let head = word(offset_of!(types::stack, head)) as u32;
            all.used += u64::from((head & HEAD_USED) / HEAD_ONE_USED);
            all.slots += u64::from(has.part_slots());
            all.full += word(offset_of!(types::stack, full));
            all.stale += word(offset_of!(types::stack, stale));
            all.foreign += word(offset_of!(types::stack, foreign));
        }
        Some(all)
    }

    /// Where the connection lives whose place a part of a cookie hides, for a flow of this hash.
    pub fn get(&self, service: ServiceId, hash: u64, part: u16) -> Result<Option<u16>, Error> {
        let Some(has) = self.current.get(&service) else { return Ok(None) };
        let index = (part & (has.part_slots() - 1) as u16) ^ has.pad(hash);
        let at = has.part(has.part_of(hash)).slots + usize::from(index) * SLOT_BYTES;
        let slot = self.slots.part(at, SLOT_BYTES)?;
        let entry = entry_of(&slot, 0);
        Ok((entry.state != SlotState::Free && entry.hash == hash).then_some(entry.backend))
    }

    /// What the slots of a service hold, partition by partition.
    pub fn entries(&self, service: ServiceId) -> Result<Vec<SlotEntry>, Error> {
        let Some(has) = self.current.get(&service) else { return Ok(Vec::new()) };
        let bytes = has.length as usize * PARTITION_BYTES;
        let part = self.slots.part(has.first as usize * PARTITION_BYTES, bytes)?;
        Ok((0..bytes).step_by(SLOT_BYTES).map(|at| entry_of(&part, at)).collect())
    }

    /// Takes slots for connections that no packet has begun: a hash, a backend and its server's number for
    /// each. Returns the parts of cookies that hide their places.
    pub fn fill(
        &mut self,
        service: ServiceId,
        connections: &mut dyn Iterator<Item = (u64, u16, u16)>,
    ) -> Result<Vec<u16>, Error> {
        let Some(&has) = self.current.get(&service) else { return Ok(Vec::new()) };
        let bytes = has.length as usize * PARTITION_BYTES;
        let part = self.slots.part(has.first as usize * PARTITION_BYTES, bytes)?;
        let mut parts = Vec::new();
        for (hash, backend, number) in connections {
            let place = has.part(has.part_of(hash));
            let head = self.stacks.word64(place.stack + offset_of!(types::stack, head));
            let (index, at) = loop {
                let before = head.load(Acquire);
                let top = before as u32 & HEAD_TOP;
                if top >= has.part_slots() {
                    let (needed, free) = (has.length + 1, self.room.free());
                    return Err(Error::SlotsFull { needed, free, partitions: self.partitions });
                }
                let at = place.slots - has.part(0).slots + top as usize * SLOT_BYTES;
                let next = part.word64(at + offset_of!(types::slot, word)).load(Acquire) as u32;
                let used = (before as u32).wrapping_add(HEAD_ONE_USED);
                let after = next_head(before, used, next.wrapping_add(top + 1));
                if head.compare_exchange(before, after, AcqRel, Relaxed).is_ok() {
                    break (top as u16, at);
                }
            };
            part.word64(at + offset_of!(types::slot, hash)).store(hash, Relaxed);
            let open = (SlotState::Open as u64) << SLOT_STATE_SHIFT;
            let word = open | u64::from(number) << SLOT_SERVER_SHIFT | u64::from(backend);
            part.word64(at + offset_of!(types::slot, word)).store(word, Release);
            parts.push(has.pad(hash) ^ index);
        }
        Ok(parts)
    }

    /// Looks over the next slots of a service, and gives back those whose time is up and those whose
    /// backend `keep` does not want. Returns how many.
    pub fn sweep(
        &mut self,
        service: ServiceId,
        steps: u32,
        clock: u32,
        idle: u32,
        keep: &dyn Fn(u16) -> bool,
    ) -> Result<u32, Error> {
        let Some(&has) = self.current.get(&service) else { return Ok(0) };
        let all = has.length * PARTITION_SLOTS;
        let hand = self.hands.entry(service).or_insert(0);
        let mut released = 0;
        let mut left = steps.min(all);
        while left > 0 {
            let (place, first) = (has.part(*hand / has.part_slots()), *hand % has.part_slots());
            let here = left.min(has.part_slots() - first);
            // The whole part, as the stack goes through all of it.
            let part = self.slots.part(place.slots, has.part_bytes())?;
            let head = self.stacks.word64(place.stack + offset_of!(types::stack, head));
            for index in first..first + here {
                let at = index as usize * SLOT_BYTES + offset_of!(types::slot, word);
                let word = part.word64(at).load(Acquire);
                let over = match state_of(word) {
                    SlotState::Free => continue,
                    SlotState::Opening => OPENING_SECONDS.min(idle),
                    SlotState::Open => idle,
                    SlotState::Closing => LINGER_SECONDS.min(idle),
                };
                let age = clock.wrapping_sub(last_of(word));
                let old = age > over && age <= i32::MAX as u32;
                let word = (old || !keep(backend_of(word))).then_some(word);
                released += u32::from(word.is_some_and(|word| give_back(&part, head, index, word)));
            }
            left -= here;
            *hand = (*hand + here) % all;
        }
        Ok(released)
    }
}

/// Gives back a slot whose word was this one, as `release_slot` does in `bpf/slots.h`; but it may try
/// for as long as it takes.
fn give_back(part: &Part, head: &std::sync::atomic::AtomicU64, index: u32, word: u64) -> bool {
    let slot = part.word64(index as usize * SLOT_BYTES + offset_of!(types::slot, word));
    if slot.compare_exchange(word, 0, AcqRel, Relaxed).is_err() {
        return false;
    }
    let mut before = head.load(Acquire);
    loop {
        slot.store(u64::from((before as u32).wrapping_sub(index + 1) & HEAD_TOP), Release);
        let after = next_head(before, (before as u32).wrapping_sub(HEAD_ONE_USED), index);
        match head.compare_exchange(before, after, AcqRel, Acquire) {
            Ok(_) => return true,
            Err(now) => before = now,
        }
    }
}

/// The head after this one: of what is given, the bits that say how many slots are in use, and which is on
/// top. As in `bpf/slots.h`.
fn next_head(head: u64, used: u32, top: u32) -> u64 {
    ((head >> HEAD_TAG_SHIFT) + 1) << HEAD_TAG_SHIFT | u64::from(used & HEAD_USED | top & HEAD_TOP)
}

fn last_of(word: u64) -> u32 {
    (word >> SLOT_LAST_SHIFT) as u32
}

fn state_of(word: u64) -> SlotState {
    match word as u32 >> SLOT_STATE_SHIFT {
        0 => SlotState::Free,
        1 => SlotState::Opening,
        2 => SlotState::Open,
        _ => SlotState::Closing,
    }
}

fn backend_of(word: u64) -> u16 {
    (word as u32 & SLOT_WHO) as u16
}

fn entry_of(part: &Part, at: usize) -> SlotEntry {
    let word = part.word64(at + offset_of!(types::slot, word)).load(Acquire);
    let hash = part.word64(at + offset_of!(types::slot, hash)).load(Relaxed);
    SlotEntry { hash, last: last_of(word), backend: backend_of(word), state: state_of(word) }
}
