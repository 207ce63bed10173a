//! The sources that services take packets from, in the kernel's memory: two lists for each service, of
//! which its entry in the service table names one, and ranges of the words that all share.

use crate::abi::types;
use crate::error::Error;
use crate::mapped::{Mapped, Parted};
use crate::numbers;
use crate::room::Room;
use crate::tables::service_of;
use crate::vips::{Leads, NO_TABLE};
use std::collections::BTreeMap;
use std::mem::offset_of;
use weir_plane::{Listen, SOURCE_OTHERS_ALLOWED, SOURCE_STEPS, SOURCE_STRIDE, SourceTable};
use weir_steering::ServiceId;

const WORD: usize = size_of::<u64>();
/// Bits of 64 that IPv4 does not have.
const BEYOND_IPV4: u32 = 32;

// The tables are weir_plane's; the program walks them by the numbers of this crate.
const _: () = assert!(
    numbers::SOURCE_STRIDE == SOURCE_STRIDE
        && numbers::SOURCE_STEPS == SOURCE_STEPS
        && numbers::SOURCE_OTHERS_ALLOWED == SOURCE_OTHERS_ALLOWED
);

/// Lists, and the words of their tables. List number = service * 2 + side.
pub(crate) struct Lists {
    lists: Mapped,
    words: Parted,
    count: u32,
    room: Room,
    /// The words of a list, first one and length, by its number.
    ranges: BTreeMap<u32, (u32, u32)>,
    /// The number of the list that packets of a service follow.
    current: BTreeMap<ServiceId, u32>,
}

impl Lists {
    /// The lists that services use; everything else is free, whatever an earlier run was about to do
    /// with it.
    pub fn new(lists: Mapped, words: Parted, count: u32, found: &[(Listen, Leads)]) -> Self {
        let (ranges, current) = (BTreeMap::new(), BTreeMap::new());
        let mut all = Self { lists, words, count, room: Room::new(count), ranges, current };
        for (_, leads) in found.iter().filter(|(_, leads)| leads.table != NO_TABLE) {
            let Some(side) = leads.list else { continue };
            let service = service_of(leads.table);
            let number = service.0 * 2 + side;
            let Some(list) = all.list(number).filter(|list| list.words > 0) else { continue };
            if all.room.take_at(list.first4, list.words) {
                all.ranges.insert(number, (list.first4, list.words));
                all.current.insert(service, number);
            }
        }
        all
    }

    /// The side of the list that a service's packets follow; `None`: they follow none.
    pub fn side(&self, service: ServiceId) -> Option<u32> {
        self.current.get(&service).map(|number| number & 1)
    }

    /// The digest of that list.
    pub fn digest(&self, service: ServiceId) -> Option<u64> {
        Some(self.list(*self.current.get(&service)?)?.digest)
    }

    /// Words in use, and in all.
    pub fn used(&self) -> (u32, u32) {
        (self.count - self.room.free(), self.count)
    }

    /// Writes a list on the side that is not in use, and makes it the service's, for the caller to let
    /// packets see it. The former one stays until it is [released](Self::release). Returns what it was.
    pub fn write(&mut self, service: ServiceId, table: &SourceTable) -> Result<Option<u32>, Error> {
        let former = self.current.get(&service).copied();
        let number = former.map_or(service.0 * 2, |former| former ^ 1);
        self.place(number, table)?;
        self.current.insert(service, number);
        Ok(former)
    }

    /// A service's packets follow no list any more. Returns the one that they followed, which stays until
    /// it is [released](Self::release).
    pub fn leave(&mut self, service: ServiceId) -> Option<u32> {
        self.current.remove(&service)
    }

    /// Goes back to the list before, since packets could not be let see the new one.
    pub fn undo(&mut self, service: ServiceId, former: Option<u32>) {
        if let Some(number) = self.current.remove(&service) {
            self.release(number);
        }
        if let Some(former) = former {
            self.current.insert(service, former);
        }
    }

    /// Frees the words of a list that no packet reads.
    pub fn release(&mut self, number: u32) {
        if let Some((first, length)) = self.ranges.remove(&number) {
            self.room.give_back(first, length);
        }
    }

    /// Knows what another one of the same memory does.
    pub fn take_over(&mut self, other: &Self) {
        self.room.clone_from(&other.room);
        self.ranges.clone_from(&other.ranges);
        self.current.clone_from(&other.current);
    }

    /// The lists in use of other memory, each with its number.
    pub fn copy(&mut self, other: &Self) -> Result<(), Error> {
        for (service, number) in &other.current {
            let Some(table) = other.read(*number)? else { continue };
            self.place(*number, &table)?;
            self.current.insert(*service, *number);
        }
        Ok(())
    }

    fn place(&mut self, number: u32, table: &SourceTable) -> Result<(), Error> {
        self.release(number);
        let node_words = table.nodes.len() * 2;
        let words = (node_words + table.children.len().div_ceil(2)) as u32;
        let Some(first) = self.room.take(words) else {
            let (used, count) = self.used();
            let bytes = |words: u32| words as usize * WORD;
            let (needed, used, room) = (bytes(words), bytes(used), bytes(count));
            return Err(Error::ListsFull { needed, used, room });
        };
        let filled =
            self.words.part(first as usize * WORD, words as usize * WORD).map(|mut part| {
                let (nodes, children) = part.bytes_mut().split_at_mut(node_words * WORD);
                let words = table.nodes.iter().flatten();
                for (to, word) in nodes.chunks_exact_mut(WORD).zip(words) {
                    to.copy_from_slice(&word.to_ne_bytes());
                }
                for (to, child) in children.chunks_exact_mut(size_of::<u32>()).zip(&table.children)
                {
                    to.copy_from_slice(&child.to_ne_bytes());
                }
            });
        if let Err(error) = filled {
            self.room.give_back(first, words);
            return Err(error);
        }
        let list = types::source_list {
            first4: first,
            shift4: table.shift4 - BEYOND_IPV4 - SOURCE_STRIDE,
            first6: first + table.root6 * 2,
            shift6: table.shift6 - SOURCE_STRIDE,
            children: first + node_words as u32,
            words,
            digest: table.digest(),
        };
        let last = offset_of!(types::source_list, words);
        self.lists.store_record(number as usize, &list, last);
        self.ranges.insert(number, (first, words));
        Ok(())
    }

    fn read(&self, number: u32) -> Result<Option<SourceTable>, Error> {
        let (Some(list), Some(&(first, length))) = (self.list(number), self.ranges.get(&number))
        else {
            return Ok(None);
        };
        let part = self.words.part(first as usize * WORD, length as usize * WORD)?;
        let words: Vec<u64> =
            part.copy().as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let node_words = list.children.saturating_sub(list.first4).min(length) as usize;
        let (nodes, children) = words.split_at(node_words);
        let nodes = nodes.as_chunks().0.to_vec();
        let halves = children.iter().flat_map(|pair| [*pair as u32, (*pair >> 32) as u32]);
        let children = halves.take(nodes.len()).collect();
        let root6 = list.first6.saturating_sub(list.first4) / 2;
        let (shift4, shift6) =
            (list.shift4 + BEYOND_IPV4 + SOURCE_STRIDE, list.shift6 + SOURCE_STRIDE);
        Ok(Some(SourceTable { nodes, children, root6, shift4, shift6 }))
    }

    fn list(&self, number: u32) -> Option<types::source_list> {
        let end = (number as usize + 1) * size_of::<types::source_list>();
        (end <= self.lists.len()).then(|| self.lists.load_record(number as usize))
    }
}
