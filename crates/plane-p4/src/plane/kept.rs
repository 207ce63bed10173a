//! Connections that packets have put into registers, and that the next control plane puts back there: those by
//! index, and flows that are tracked.

use super::{Core, PARTITION};
use crate::error::Error;
use crate::layout::{MARK_WORDS, PENDING_PLACES, Register, SERVICES};
use crate::state::{self, Noted};
use crate::target::{Target, Write};
use std::collections::{HashMap, HashSet};
use weir_steering::{BackendId, LANE_TAGS, ServiceId, ServiceState};

/// Of a service, its partitions stand behind its three counts: the first one, and how many.
pub(super) const PARTITIONS_AT: u32 = 3;
/// What there is of each partition, and how many elements.
pub(super) const OF_PARTITION: [(Register, u32); 6] = [
    (Register::SlotWords, PARTITION),
    (Register::SlotHigh, PARTITION),
    (Register::SlotLow, PARTITION),
    (Register::FreeSlots, PARTITION),
    (Register::SlotsUsed, 1),
    (Register::Hands, 1),
];

/// An element that is not zero.
type Element = (Register, u32, u64);

/// What an earlier process has left in a switch, and is not in it any more.
#[derive(Default)]
pub(super) struct Kept {
    /// Of each service how many partitions it had, and what is not zero there: where, from its first one on.
    slots: HashMap<ServiceId, (u32, Vec<Element>)>,
    tracked: Vec<(ServiceState, BackendId, Noted)>,
    /// Whose turn it is, counts, and strangers.
    single: Vec<Element>,
}

impl<T: Target> Core<T> {
    /// Takes the connections out of a switch that is emptied next.
    pub(super) fn keep_connections(&mut self) -> Result<(), Error> {
        let mut kept = Kept::default();
        for register in [Register::Turns, Register::SlotCounts] {
            let all = self.read_all(register)?;
            let some = (0..).zip(all).filter(|(_, value)| *value != 0);
            kept.single.extend(some.map(|(at, value)| (register, at, value)));
        }
        let had = kept.single.iter().filter(|(register, at, _)| {
            *register == Register::SlotCounts && at % 4 == PARTITIONS_AT
        });
        let had: Vec<(ServiceId, u32, u32)> = had
            .map(|(_, at, word)| (ServiceId(at / 4), (word >> 16) as u32, *word as u32 & 0xffff))
            .collect();
        for (register, each) in OF_PARTITION.into_iter().filter(|_| !had.is_empty()) {
            let all = self.read_all(register)?;
            for (service, first, count) in &had {
                let of = all.iter().skip((first * each) as usize).take((count * each) as usize);
                let some = (0..).zip(of).filter(|(_, value)| **value != 0);
                let (_, slots) = kept.slots.entry(*service).or_insert((*count, Vec::new()));
                slots.extend(some.map(|(at, value)| (register, at, *value)));
            }
        }
        kept.tracked = self.read_tracked()?;
        self.kept = kept;
        Ok(())
    }

    fn read_tracked(&mut self) -> Result<Vec<(ServiceState, BackendId, Noted)>, Error> {
        let last = self.read_all(Register::Pending3)?;
        let used = (0..).zip(last).skip(PENDING_PLACES as usize);
        let used: Vec<u32> =
            used.filter(|(_, word)| word & 0xffff != 0).map(|(at, _)| at).collect();
        let places: Vec<(Register, u32)> = used
            .iter()
            .flat_map(|at| {
                let noted = (Register::Tracked, at - PENDING_PLACES);
                super::watch::PENDING.map(|register| (register, *at)).into_iter().chain([noted])
            })
            .collect();
        let words = self.read(&places)?;
        let flow = |words: &[u64; 5]| {
            let [first, second, third, fourth, noted] = *words;
            // A number of a server stands where a backend's is.
            let (state, number) = state::pending([first, second, third, fourth])?;
            Some((state, number, Noted::of_word(noted)))
        };
        Ok(words.as_chunks::<5>().0.iter().filter_map(flow).collect())
    }

    /// Puts what was kept back, as far as its services are there as they were.
    pub(super) fn put_back(&mut self) -> Result<(), Error> {
        let kept = &self.kept;
        let mut writes = Vec::new();
        let is_here = |service: ServiceId| self.versions.contains_key(&service);
        for (register, index, value) in &kept.single {
            let partitions = *register == Register::SlotCounts && index % 4 == PARTITIONS_AT;
            let here = match *register {
                Register::Turns => is_here(ServiceId(*index)),
                Register::SlotCounts => is_here(ServiceId(index / 4)),
                _ => true,
            };
            if here && !partitions {
                writes.push(Write::Set { register: *register, index: *index, value: *value });
            }
        }
        for (service, (count, slots)) in &kept.slots {
            let now = self.versions.get(service).map_or((0, 0), |of| of.partitions);
            if now.1 != *count {
                continue;
            }
            for (register, at, value) in slots {
                let each = OF_PARTITION.iter().find(|(of, _)| of == register);
                let index = now.0 * each.map_or(0, |(_, each)| *each) + at;
                writes.push(Write::Set { register: *register, index, value: *value });
            }
        }
        let mut used = HashSet::new();
        for (state, number, noted) in &kept.tracked {
            let sets = state::tracked_sets_of(&self.key, &state.key);
            let place = state::place_in(sets, |at| used.contains(&at));
            let Some(index) = place.filter(|_| is_here(state.service)) else { continue };
            used.insert(index);
            let words = state::pending_words(state, *number);
            for (register, value) in super::watch::PENDING.into_iter().zip(words) {
                writes.push(Write::Set { register, index, value });
            }
            let (register, index) = (Register::Tracked, index - PENDING_PLACES);
            writes.push(Write::Set { register, index, value: noted.word() });
        }
        self.target.write(&writes)
    }

    /// Which flows have sent something, for who begins to count that: those that had lanes count as having, and
    /// strangers stay.
    pub(super) fn keep_marks(&mut self) -> Result<(), Error> {
        let new = self.armed.iter().all(|word| *word == 0);
        let side = self.read(&[(Register::MarkSide, 0)])?[0];
        let (first, words) = ((side >> 24) as usize, (side as usize & 0xff_ffff) + 1);
        let marks = self.read_all(Register::Marks)?;
        let marks = marks.get(first..).and_then(|all| all.get(..words)).filter(|_| new);
        if let Some(marks) = marks {
            self.half = first / MARK_WORDS as usize;
            self.armed = marks.iter().map(|word| word & LANE_TAGS).collect();
        }
        let strangers = self.read_all(Register::Strangers)?;
        let some = (0..).zip(strangers).filter(|(_, value)| *value != 0);
        self.kept.single.extend(some.map(|(at, value)| (Register::Strangers, at, value)));
        Ok(())
    }

    /// Where the connections of a service are, for who comes next.
    pub(super) fn partitions_write(&self, service: ServiceId) -> Option<Write> {
        debug_assert!(service.0 < SERVICES);
        let (first, count) = self.versions.get(&service)?.partitions;
        let (register, index) = (Register::SlotCounts, service.0 * 4 + PARTITIONS_AT);
        let value = u64::from(first) << 16 | u64::from(count);
        (count > 0).then_some(Write::Set { register, index, value })
    }

    /// What a service had there is gone: zeros are slots that are all free, and on their stacks.
    pub(super) fn empty_partitions(&self, service: ServiceId) -> Vec<Write> {
        let (first, count) = self.versions.get(&service).map_or((0, 0), |of| of.partitions);
        let empty = |(register, each): (Register, u32)| {
            let (from, to) = (first * each, (first + count) * each);
            Write::Fill { register, from, to, value: 0 }
        };
        let counts = service.0 * 4;
        let register = Register::SlotCounts;
        // The word that says where they are goes last: while it is there, they may hold something.
        let slots = OF_PARTITION.into_iter().filter(|_| count > 0).map(empty);
        slots.chain([Write::Fill { register, from: counts, to: counts + 4, value: 0 }]).collect()
    }
}
