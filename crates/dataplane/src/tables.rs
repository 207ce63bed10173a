//! The tables in the kernel's memory: headers, and ranges of the pool.

use crate::error::Error;
use crate::mapped::Mapped;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use weir_plane::VipKey;
use weir_steering::{Codec, ELEMENT_BYTES, Flags, HEADER_BYTES, Image, ImageError, RawHeader};

/// A range of the pool's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    first: u32,
    length: u32,
}

/// Headers and pool. Table number = service * 2 + side; each side has a range of the pool.
pub(crate) struct Tables {
    headers: Mapped,
    pool: Mapped,
    elements: u32,
    /// The part of the memory that a table takes, by the table's number.
    ranges: BTreeMap<u32, Range>,
    /// The published table's number, by service.
    current: BTreeMap<u32, u32>,
}

impl Tables {
    /// The tables that `published` services use; everything else in the pool is free, whatever an
    /// earlier run was about to do with it.
    pub fn new(headers: Mapped, pool: Mapped, elements: u32, published: &[(VipKey, u32)]) -> Self {
        let mut tables =
            Self { headers, pool, elements, ranges: BTreeMap::new(), current: BTreeMap::new() };
        for &(_, number) in published {
            let header = tables.header_bytes(number);
            if let Some((first, length)) = header.and_then(|bytes| Image::range_of(&bytes)) {
                tables.ranges.insert(number, Range { first, length });
                tables.current.insert(number / 2, number);
            }
        }
        tables
    }

    /// Number of a service's table.
    pub fn current(&self, service: u32) -> Option<u32> {
        self.current.get(&service).copied()
    }

    /// Writes a table on the side that is not in use; returns its number. Once the caller has let
    /// packets see it, it says so by [`published`](Self::published); if it cannot, by
    /// [`discard`](Self::discard).
    pub fn write(&mut self, service: u32, image: &Image, flags: Flags) -> Result<u32, Error> {
        if let Some(codec @ Codec::Fuse) = image.codec() {
            return Err(Error::Codec { service, codec });
        }
        let number = match self.current(service) {
            Some(current) => current ^ 1,
            None => service * 2,
        };
        self.ranges.remove(&number);
        let length = image.elements() as u32;
        let first = self.find_room(length).ok_or_else(|| {
            let (used, pool) = self.bytes();
            Error::PoolFull { needed: image.bytes(), used, pool }
        })?;
        let at = first as usize * ELEMENT_BYTES;
        image.write_body(&mut self.pool.bytes_mut()[at..][..length as usize * ELEMENT_BYTES]);
        let header = image.header_bytes(first);
        let at = number as usize * HEADER_BYTES;
        self.headers.bytes_mut()[at..at + HEADER_BYTES].copy_from_slice(&header);
        self.flags_word(number).store(flags.0, Ordering::Release);
        self.ranges.insert(number, Range { first, length });
        Ok(number)
    }

    /// From here on this table is its service's current one.
    pub fn published(&mut self, number: u32) {
        self.current.insert(number / 2, number);
    }

    /// Packets never see this table.
    pub fn discard(&mut self, number: u32) {
        self.ranges.remove(&number);
    }

    /// Frees the side that is not in use.
    pub fn release(&mut self, service: u32) {
        if let Some(current) = self.current(service) {
            self.ranges.remove(&(current ^ 1));
        }
    }

    /// Frees both sides.
    pub fn remove(&mut self, service: u32) {
        self.release(service);
        if let Some(current) = self.current.remove(&service) {
            self.ranges.remove(&current);
        }
    }

    /// Reads a service's table back.
    pub fn read(&self, service: u32) -> Option<Result<Image, ImageError>> {
        let header = self.header_bytes(self.current(service)?)?;
        Some(Image::read_from(&header, |first, length| {
            (first as usize + length <= self.elements as usize)
                .then(|| self.pool.copy(first as usize * ELEMENT_BYTES, length * ELEMENT_BYTES))
        }))
    }

    /// Sets or clears flags of a service's table.
    pub fn set_flags(&self, service: u32, flag: u32, on: bool) {
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
        let used: u32 = self.ranges.values().map(|range| range.length).sum();
        (used as usize * ELEMENT_BYTES, self.elements as usize * ELEMENT_BYTES)
    }

    /// Bytes of a service's table.
    pub fn bytes_of(&self, service: u32) -> usize {
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

    /// The smallest gap that is large enough, so that large gaps stay for large tables.
    fn find_room(&self, length: u32) -> Option<u32> {
        let mut taken: Vec<Range> = self.ranges.values().copied().collect();
        taken.sort_unstable_by_key(|range| range.first);
        taken.push(Range { first: self.elements, length: 0 });
        let mut at = 0;
        let mut gaps = Vec::new();
        for range in taken {
            gaps.push((range.first.saturating_sub(at), at));
            at = range.first + range.length;
        }
        gaps.into_iter().filter(|gap| gap.0 >= length).min().map(|gap| gap.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use weir_steering::{Concury, ConcuryConfig, Member, Role, StateKey};

    /// Zeroed memory as a map would give it.
    fn memory(name: &str, bytes: usize) -> Mapped {
        let path = std::env::temp_dir().join(format!("weir-tables-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.expect("a file in the temporary directory");
        file.set_len(bytes as u64).expect("its length");
        std::fs::remove_file(&path).expect("it is there");
        Mapped::new(&file, bytes).expect("its memory")
    }

    fn image(codec: Codec) -> Image {
        let name = "b1".to_owned();
        let members = [Member { backend: 1, name, weight: 1, role: Role::Serving }];
        let mut concury = Concury::<StateKey>::new(ConcuryConfig::unbounded(codec, 12, 1));
        let (image, _) = concury.build(1, &members, 0).expect("one backend fits");
        Image::clone(&image)
    }

    #[test]
    fn a_table_that_the_program_cannot_look_up_is_refused() {
        let headers = memory("headers", 2 * HEADER_BYTES);
        let mut tables = Tables::new(headers, memory("pool", 8 * ELEMENT_BYTES), 8, &[]);
        let othello = image(Codec::Othello);
        let number = tables.write(0, &othello, Flags::default()).expect("there is room");
        tables.published(number);
        let used = tables.bytes();
        let refused = tables.write(0, &image(Codec::Fuse), Flags::default());
        let fuse = Error::Codec { service: 0, codec: Codec::Fuse };
        assert_eq!(refused.map_err(|e| e.to_string()), Err(fuse.to_string()));
        // The published table is untouched.
        assert_eq!(tables.current(0), Some(number));
        assert_eq!(tables.bytes(), used);
        assert_eq!(tables.read(0), Some(Ok(othello)));
    }

    #[test]
    fn a_table_that_packets_do_not_see_is_not_the_current_one() {
        let headers = memory("unseen", 2 * HEADER_BYTES);
        let mut tables = Tables::new(headers, memory("unseen-pool", 8 * ELEMENT_BYTES), 8, &[]);
        let othello = image(Codec::Othello);
        for seen in [false, true, false] {
            let before = (tables.current(0), tables.bytes());
            let number = tables.write(0, &othello, Flags::default()).expect("there is room");
            assert_eq!(tables.current(0), before.0);
            if seen {
                tables.published(number);
                assert_eq!(tables.current(0), Some(number));
            } else {
                tables.discard(number);
                assert_eq!((tables.current(0), tables.bytes()), before);
            }
        }
    }
}
