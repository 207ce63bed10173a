//! The tables in the kernel's memory: headers, and ranges of the pool.

use crate::error::Error;
use crate::mapped::{Mapped, Parted};
use crate::room::{Held, Room};
use crate::slots::{Partitions, Slots};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use weir_plane::{Listen, TablesMoved};
use weir_steering::{
    Codec, ELEMENT_BYTES, Flags, HEADER_BYTES, Image, MethodId, RawHeader, ServiceId, cheetah,
};

/// A range of the pool's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    first: u32,
    length: u32,
}

/// A published table that is to stand elsewhere in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    /// Whose it is.
    pub service: ServiceId,
    /// The first of its elements there, which are free.
    to: u32,
}

/// Headers and pool. Table number = service * 2 + side; each side has a range of the pool.
pub(crate) struct Tables {
    headers: Mapped,
    pool: Parted,
    elements: u32,
    /// What is free of the memory.
    room: Room,
    /// The part of the memory that a table takes, by the table's number.
    ranges: BTreeMap<u32, Range>,
    /// The published table's number, by service.
    current: BTreeMap<ServiceId, u32>,
    /// A service whose next table found no room in a row, though there is enough in sum, and nobody could make it.
    scattered: Option<ServiceId>,
    /// Tables that were written a second time: within this memory, and from other memory into this.
    pub moved: [TablesMoved; 2],
    /// Connections by index, of services whose tables have such.
    pub slots: Slots,
}

impl Tables {
    /// The tables that `published` services use; everything else in the pool is free, whatever an
    /// earlier run was about to do with it.
    pub fn new(
        headers: Mapped,
        pool: Parted,
        elements: u32,
        slots: Slots,
        published: &[(Listen, u32)],
    ) -> Self {
        let (ranges, current) = (BTreeMap::new(), BTreeMap::new());
        let room = Room::new(elements);
        let (scattered, moved) = (None, [TablesMoved::default(); 2]);
        let mut tables =
            Self { headers, pool, elements, room, ranges, current, scattered, moved, slots };
        for &(_, number) in published {
            let header = tables.header_bytes(number);
            if let Some((first, length)) = header.and_then(|bytes| Image::range_of(&bytes)) {
                // Not twice, if it is found by two keys.
                if tables.room.take_at(first, length) {
                    tables.ranges.insert(number, Range { first, length });
                }
                // Of two, as one that died while it published has left them, the newer one.
                let generation = |number| tables.header(number).map(|header| header.generation);
                let other = tables.current.get(&service_of(number)).copied();
                if other.is_none_or(|other| generation(other) < generation(number)) {
                    tables.current.insert(service_of(number), number);
                }
                if let Some(has) = tables.partitions_of(service_of(number)) {
                    tables.slots.adopt(service_of(number), has);
                }
            }
        }
        tables
    }

    /// Number of a service's table.
    pub fn current(&self, service: ServiceId) -> Option<u32> {
        self.current.get(&service).copied()
    }

    /// Writes a table on the side that is not in use; returns its number. Once the caller has let
    /// packets see it, it says so by [`published`](Self::published); if it cannot, by
    /// [`discard`](Self::discard).
    pub fn write(&mut self, service: ServiceId, image: &Image, flags: Flags) -> Result<u32, Error> {
        if let Some(codec @ Codec::Fuse) = image.codec() {
            return Err(Error::Codec { service, codec });
        }
        let number = match self.current(service) {
            Some(current) => current ^ 1,
            None => service.0 * 2,
        };
        self.free(number);
        let place = match image {
            Image::CheetahStateful(table) => {
                let form = &table.body().0.method;
                let partitions = cheetah::Form::slots(form).partitions;
                Some(self.slots.place(service, partitions, cheetah::Form::others_bits(form))?)
            }
            _ => None,
        };
        let length = image.elements() as u32;
        let Some(first) = self.room.take(length) else {
            self.slots.undo(service, self.partitions_of(service));
            let (used, pool) = self.bytes();
            return Err(Error::PoolFull { needed: image.bytes(), used, pool });
        };
        let at = first as usize * ELEMENT_BYTES;
        match self.pool.part(at, length as usize * ELEMENT_BYTES) {
            Ok(mut part) => image.write_body(part.bytes_mut()),
            Err(error) => {
                self.room.give_back(first, length);
                self.slots.undo(service, self.partitions_of(service));
                return Err(error);
            }
        }
        let mut header = image.header_bytes(first);
        if let Some(place) = place {
            header[offset_of!(RawHeader, chunks_b)..][..4].copy_from_slice(&place.to_le_bytes());
        }
        let at = number as usize * HEADER_BYTES;
        self.headers.bytes_mut()[at..at + HEADER_BYTES].copy_from_slice(&header);
        self.flags_word(number).store(flags.0, Ordering::Release);
        self.ranges.insert(number, Range { first, length });
        self.waits_no_more(service);
        Ok(number)
    }

    /// After [`write`](Self::write) has found no room in a row for a service's table of so many elements: the tables
    /// to [move](Self::copy) so that there is some. None of them is one that packets may still follow
    /// beside another one of its service. `None` if there is not enough in sum, or no such way, which is
    /// [remembered](Self::is_scattered).
    pub fn moves_for(&mut self, service: ServiceId, length: u32) -> Option<Vec<Move>> {
        if length > self.room.free() {
            return None;
        }
        let movable = |number: &u32| {
            self.current(service_of(*number)) == Some(*number)
                && !self.ranges.contains_key(&(number ^ 1))
        };
        let placed = self.ranges.iter().filter(|(_, range)| range.length > 0);
        let placed: BTreeMap<u32, (u32, u32)> =
            placed.map(|(number, range)| (range.first, (range.length, *number))).collect();
        let held = placed.iter().map(|(&first, (length, number))| Held {
            first,
            length: *length,
            movable: movable(number),
        });
        let shifts = self.room.gather(length, &held.collect::<Vec<_>>());
        let Some(shifts) = shifts else {
            self.scattered = Some(service);
            return None;
        };
        let moves = shifts.iter().filter_map(|shift| {
            let (_, number) = placed.get(&shift.from)?;
            Some(Move { service: service_of(*number), to: shift.to })
        });
        Some(moves.collect())
    }

    fn waits_no_more(&mut self, service: ServiceId) {
        if self.scattered == Some(service) {
            self.scattered = None;
        }
    }

    /// Whether a table waits for room that only memory made anew has in a row.
    pub fn is_scattered(&self) -> bool {
        self.scattered.is_some()
    }

    /// This service's table found no room in a row, and others could not be moved.
    pub fn scatter(&mut self, service: ServiceId) {
        self.scattered = Some(service);
    }

    /// That has been seen to.
    pub fn forget_scattered(&mut self) {
        self.scattered = None;
    }

    /// Elements of the published tables of all services in sum, and of the largest one.
    pub fn elements_in_use(&self) -> (u32, u32) {
        let lengths = self.current.values().filter_map(|number| self.ranges.get(number));
        lengths.fold((0, 0), |(sum, most), range| (sum + range.length, most.max(range.length)))
    }

    /// Writes a copy of a published table, with the flags that it has, to another place, under its service's other
    /// number, which is returned. Packets follow it once the caller lets them see it, and a grace period later
    /// none reads the former one: then [`leave`](Self::leave). If they never see it:
    /// [`forget_copy`](Self::forget_copy).
    ///
    /// # Errors
    /// [`Error::Table`] if it is damaged, [`Error::System`] if it cannot be read or written: nothing has changed.
    pub fn copy(&mut self, one: Move) -> Result<Option<u32>, Error> {
        let Move { service, to } = one;
        let Some((former, image)) = self.current(service).zip(self.read(service)?) else {
            return Ok(None);
        };
        let Some(&Range { first, length }) = self.ranges.get(&former) else { return Ok(None) };
        let place = |first: u32| (first as usize * ELEMENT_BYTES, length as usize * ELEMENT_BYTES);
        let ((at, bytes), (target, _)) = (place(first), place(to));
        let body = self.pool.part(at, bytes)?.copy();
        let mut part = self.pool.part(target, bytes)?;
        if !self.room.take_at(to, length) {
            return Ok(None);
        }
        part.bytes_mut().copy_from_slice(&body);
        let number = former ^ 1;
        let mut header = image.header_bytes(to);
        if let Some(has) = self.partitions_of(service) {
            header[offset_of!(RawHeader, chunks_b)..][..4]
                .copy_from_slice(&has.first.to_le_bytes());
        }
        let flags = self.flags_word(former).load(Ordering::Acquire);
        let at = number as usize * HEADER_BYTES;
        self.headers.bytes_mut()[at..at + HEADER_BYTES].copy_from_slice(&header);
        self.flags_word(number).store(flags, Ordering::Release);
        self.ranges.insert(number, Range { first: to, length });
        Ok(Some(number))
    }

    /// No packet reads a service's table where it stood before it was moved.
    pub fn leave(&mut self, service: ServiceId) {
        if let Some(current) = self.current(service) {
            self.free(current ^ 1);
        }
    }

    /// A copy that packets never see.
    pub fn forget_copy(&mut self, number: u32) {
        self.free(number);
    }

    /// From here on this table is its service's current one.
    pub fn published(&mut self, number: u32) {
        self.current.insert(service_of(number), number);
    }

    /// Packets never see this table.
    pub fn discard(&mut self, number: u32) {
        self.free(number);
        self.slots.undo(service_of(number), self.partitions_of(service_of(number)));
    }

    /// Frees the side that is not in use.
    pub fn release(&mut self, service: ServiceId) {
        if let Some(current) = self.current(service) {
            self.free(current ^ 1);
        }
        self.slots.settle(service, self.partitions_of(service));
    }

    /// Frees both sides.
    pub fn remove(&mut self, service: ServiceId) {
        self.release(service);
        if let Some(current) = self.current.remove(&service) {
            self.free(current);
        }
        self.waits_no_more(service);
        self.slots.settle(service, None);
    }

    /// The partitions of connections by index that a service's table leads to.
    fn partitions_of(&self, service: ServiceId) -> Option<Partitions> {
        let header = self.header(self.current(service)?)?;
        (header.method == MethodId::CheetahStateful.number()).then(|| Partitions {
            first: header.chunks_b,
            length: header.fallback.into(),
            tier_bits: header.segment_bits.into(),
        })
    }

    fn free(&mut self, number: u32) {
        if let Some(Range { first, length }) = self.ranges.remove(&number) {
            self.room.give_back(first, length);
        }
    }

    /// Reads a service's table back.
    ///
    /// # Errors
    /// [`Error::Table`] if it is damaged, [`Error::System`] if it cannot be read at all.
    pub fn read(&self, service: ServiceId) -> Result<Option<Image>, Error> {
        let number = self.current(service);
        let Some(header) = number.and_then(|number| self.header_bytes(number)) else {
            return Ok(None);
        };
        let mut unreadable = None;
        let image = Image::read_from(&header, |first, length| {
            if first as usize + length > self.elements as usize {
                return None;
            }
            let part = self.pool.part(first as usize * ELEMENT_BYTES, length * ELEMENT_BYTES);
            part.map(|part| part.copy()).map_err(|error| unreadable = Some(error)).ok()
        });
        match (unreadable, image) {
            (Some(error), _) => Err(error),
            (None, image) => image.map(Some).map_err(|source| Error::Table { service, source }),
        }
    }

    /// Whether packets of any service look into the map of answers.
    pub fn use_answers(&self) -> bool {
        self.any(|flags, _| flags.has(Flags::ANSWERS))
    }

    /// Whether packets of any service look into the connection table, or may do so soon: while a table is being made,
    /// that may be put there which the next one needs.
    pub fn use_connections(&self) -> bool {
        self.any(|flags, method| {
            let known = method.is_none_or(|method| method.needs().connections);
            known || flags.has(Flags::RECORD) || flags.has(Flags::PENDING)
        })
    }

    /// Whether this is so of any published table, by its flags and its method.
    fn any(&self, is: impl Fn(Flags, Option<MethodId>) -> bool) -> bool {
        self.current.values().any(|number| {
            let flags = Flags(self.flags_word(*number).load(Ordering::Acquire));
            let header = self.header(*number);
            is(flags, header.and_then(|header| MethodId::numbered(header.method)))
        })
    }

    /// Sets or clears flags of a service's table.
    pub fn set_flags(&self, service: ServiceId, flag: u32, on: bool) {
        if let Some(number) = self.current(service) {
            let word = self.flags_word(number);
            if on {
                word.fetch_or(flag, Ordering::SeqCst);
            } else {
                word.fetch_and(!flag, Ordering::SeqCst);
            }
        }
    }

    /// Bytes of the pool in use, and in all.
    pub fn bytes(&self) -> (usize, usize) {
        let used = self.elements - self.room.free();
        (used as usize * ELEMENT_BYTES, self.elements as usize * ELEMENT_BYTES)
    }

    /// Bytes of a service's table.
    pub fn bytes_of(&self, service: ServiceId) -> usize {
        self.current(service)
            .and_then(|number| self.ranges.get(&number))
            .map_or(0, |range| HEADER_BYTES + range.length as usize * ELEMENT_BYTES)
    }

    /// The header of a table, field by field.
    pub fn header(&self, number: u32) -> Option<RawHeader> {
        Some(RawHeader::from_bytes(self.header_bytes(number)?.first_chunk()?))
    }

    fn header_bytes(&self, number: u32) -> Option<Vec<u8>> {
        let at = number as usize * HEADER_BYTES;
        (at + HEADER_BYTES <= self.headers.len()).then(|| self.headers.copy(at, HEADER_BYTES))
    }

    fn flags_word(&self, number: u32) -> &std::sync::atomic::AtomicU32 {
        self.headers.word32(number as usize * HEADER_BYTES + offset_of!(RawHeader, flags))
    }
}

/// The service that a table is of, by the table's number: each has two, of which one is in use.
pub(crate) fn service_of(number: u32) -> ServiceId {
    ServiceId(number / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::{PARTITION_BYTES, STACKS_BYTES};
    use std::fs::File;
    use weir_steering::{BackendId, Concury, ConcuryConfig, Member, Role, StateKey};

    /// Zeroed memory as a map would give it.
    fn memory(name: &str, bytes: usize) -> Mapped {
        Mapped::new(&file(name, bytes), bytes).expect("its memory")
    }

    fn pool(name: &str, elements: usize) -> Parted {
        let bytes = elements * ELEMENT_BYTES;
        Parted::new(&file(name, bytes), bytes).expect("a descriptor")
    }

    fn slots(name: &str) -> Slots {
        let bytes = PARTITION_BYTES * 4;
        let slots = Parted::new(&file(&format!("slots-{name}"), bytes), bytes);
        let stacks = memory(&format!("stacks-{name}"), STACKS_BYTES * 4);
        Slots::new(slots.expect("a descriptor"), stacks, 4)
    }

    fn file(name: &str, bytes: usize) -> File {
        let path = std::env::temp_dir().join(format!("weir-tables-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.expect("a file in the temporary directory");
        file.set_len(bytes as u64).expect("its length");
        std::fs::remove_file(&path).expect("it is there");
        file
    }

    fn image(codec: Codec) -> Image {
        let name = "b1".to_owned();
        let members = [Member { backend: BackendId::of(1), name, weight: 1, role: Role::Serving }];
        let mut concury = Concury::<StateKey>::new(ConcuryConfig::unbounded(codec, 12, 1));
        let (image, _) = concury.build(1, &members, 0).expect("one backend fits");
        Image::clone(&image)
    }

    #[test]
    fn a_table_that_the_program_cannot_look_up_is_refused() {
        let headers = memory("headers", 2 * HEADER_BYTES);
        let mut tables = Tables::new(headers, pool("pool", 8), 8, slots("pool"), &[]);
        let othello = image(Codec::Othello);
        let number = tables.write(ServiceId(0), &othello, Flags::default()).expect("there is room");
        tables.published(number);
        let used = tables.bytes();
        let refused = tables.write(ServiceId(0), &image(Codec::Fuse), Flags::default());
        let fuse = Error::Codec { service: ServiceId(0), codec: Codec::Fuse };
        assert_eq!(refused.map_err(|e| e.to_string()), Err(fuse.to_string()));
        // The published table is untouched.
        assert_eq!(tables.current(ServiceId(0)), Some(number));
        assert_eq!(tables.bytes(), used);
        assert_eq!(tables.read(ServiceId(0)).expect("it is whole"), Some(othello));
    }

    /// Three tables with a hole between each two, and one that fits into neither: one of them is copied, with the
    /// flags that it has, and both copies are whole until its former place is left.
    #[test]
    fn a_table_is_whole_at_both_places_until_the_former_one_is_left() {
        let othello = image(Codec::Othello);
        let length = othello.elements() as u32;
        let elements = length * 7;
        let headers = memory("moved", 2 * 4 * HEADER_BYTES);
        let pool = pool("moved-pool", elements as usize);
        let mut tables = Tables::new(headers, pool, elements, slots("moved"), &[]);
        let publish = |tables: &mut Tables, service: u32| {
            let number = tables.write(ServiceId(service), &othello, Flags::default());
            let number = number.expect("there is room");
            tables.published(number);
            number
        };
        for service in [0, 1, 2] {
            // The second one beside it, and the first one is gone.
            publish(&mut tables, service);
            publish(&mut tables, service);
            tables.release(ServiceId(service));
        }
        let largest =
            (1..=elements).rev().find(|length| tables.room.clone().take(*length).is_some());
        let wanted = largest.expect("something is free") + 1;
        assert!(wanted <= tables.room.free(), "{:?} is in one piece", tables.room);
        tables.set_flags(ServiceId(0), Flags::RECORD, true);
        tables.set_flags(ServiceId(1), Flags::RECORD, true);
        tables.set_flags(ServiceId(2), Flags::RECORD, true);
        let moves = tables.moves_for(ServiceId(3), wanted).expect("there is a way");
        assert!(!moves.is_empty() && !tables.is_scattered());
        for one in &moves {
            let before = tables.current(one.service).expect("it is published");
            let whole = tables.read(one.service).expect("it is whole").expect("it is there");
            let copy = tables.copy(*one).expect("it can be read").expect("it is there");
            assert_eq!((copy, tables.current(one.service)), (before ^ 1, Some(before)));
            let former = tables.read(one.service).expect("still whole").expect("still there");
            tables.published(copy);
            let moved = tables.read(one.service).expect("as whole").expect("as there");
            assert_eq!(former.header().digest, whole.header().digest);
            assert_eq!(moved.header().digest, whole.header().digest);
            assert!(moved.header().flags().has(Flags::RECORD));
            // Packets may be at both: neither can be moved now, nor is any of it free.
            assert_eq!(tables.room.clone().take(wanted), None);
            assert_eq!(tables.ranges.len(), 3 + 1);
            tables.leave(one.service);
            assert_eq!(tables.ranges.len(), 3);
        }
        assert!(tables.room.take(wanted).is_some(), "{:?}", tables.room);
    }

    /// A service of which packets may follow two tables keeps both where they are; and who finds no room by that is
    /// remembered until its table is written, or it is gone.
    #[test]
    fn a_table_that_packets_may_still_leave_is_not_moved() {
        let othello = image(Codec::Othello);
        let length = othello.elements() as u32;
        let elements = length * 5;
        let headers = memory("stays", 2 * 4 * HEADER_BYTES);
        let pool = pool("stays-pool", elements as usize);
        let mut tables = Tables::new(headers, pool, elements, slots("stays"), &[]);
        let publish = |tables: &mut Tables, service: u32| {
            let number = tables.write(ServiceId(service), &othello, Flags::default());
            tables.published(number.expect("there is room"));
        };
        publish(&mut tables, 0);
        // Not at an end, and its former one at the other.
        publish(&mut tables, 1);
        publish(&mut tables, 1);
        tables.remove(ServiceId(0));
        let free = tables.room.free();
        assert_eq!((free, tables.room.clone().take(free)), (length * 3, None));
        assert_eq!(tables.moves_for(ServiceId(2), free), None);
        assert!(tables.is_scattered());
        tables.release(ServiceId(1));
        tables.remove(ServiceId(2));
        assert!(!tables.is_scattered());
        assert!(tables.moves_for(ServiceId(2), length * 4).is_some());
        assert_eq!(tables.moves_for(ServiceId(2), elements), None);
        assert!(!tables.is_scattered(), "nothing helps where the sum is too little");
    }

    #[test]
    fn a_table_that_packets_do_not_see_is_not_the_current_one() {
        let headers = memory("unseen", 2 * HEADER_BYTES);
        let slots = slots("unseen");
        let mut tables = Tables::new(headers, pool("unseen-pool", 8), 8, slots, &[]);
        let othello = image(Codec::Othello);
        for seen in [false, true, false] {
            let before = (tables.current(ServiceId(0)), tables.bytes());
            let number =
                tables.write(ServiceId(0), &othello, Flags::default()).expect("there is room");
            assert_eq!(tables.current(ServiceId(0)), before.0);
            if seen {
                tables.published(number);
                assert_eq!(tables.current(ServiceId(0)), Some(number));
            } else {
                tables.discard(number);
                assert_eq!((tables.current(ServiceId(0)), tables.bytes()), before);
            }
        }
    }
}
