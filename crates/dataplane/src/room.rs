//! Which parts of the pool are free.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges of a number of elements. Finding room for a table, and giving it back, takes as
/// long as a search among the free ranges, however many tables there are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// Lengths of the free ranges, by where they begin. No two of them touch.
    by_place: BTreeMap<u32, u32>,
    /// The same ranges, as (length, where it begins).
    by_length: BTreeSet<(u32, u32)>,
    free: u32,
    elements: u32,
}

/// A table that takes more than this part of all is large.
const LARGE: u32 = 8;

impl Room {
    /// All of it is free.
    pub fn new(elements: u32) -> Self {
        let mut room =
            Self { by_place: BTreeMap::new(), by_length: BTreeSet::new(), free: 0, elements };
        room.add(0, elements);
        room
    }

    /// Elements that are free.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Takes the smallest free range that is large enough, so that large ones stay for large tables,
    /// or its beginning; if that range is the last one, and the table large and not alone, its end. So the
    /// two tables of a service that grows are at both ends in turn, and what is between them is whole. Nothing
    /// begins anywhere: at 0.
    pub fn take(&mut self, length: u32) -> Option<u32> {
        if length == 0 {
            return Some(0);
        }
        let (found, first) = self.by_length.range((length, 0)..).next().copied()?;
        self.remove(first, found);
        if first > 0 && first + found == self.elements && length > self.elements / LARGE {
            self.add(first, found - length);
            return Some(first + found - length);
        }
        self.add(first + length, found - length);
        Some(first)
    }

    /// Takes a certain range; returns whether it was free.
    pub fn take_at(&mut self, first: u32, length: u32) -> bool {
        if length == 0 {
            return true;
        }
        let around = self.by_place.range(..=first).next_back().map(|(at, long)| (*at, *long));
        let Some((at, long)) = around else { return false };
        let (end, free_end) = (u64::from(first) + u64::from(length), at + long);
        if end > u64::from(free_end) {
            return false;
        }
        self.remove(at, long);
        self.add(at, first - at);
        self.add(first + length, free_end - first - length);
        true
    }

    /// Gives a range back that was taken.
    pub fn give_back(&mut self, first: u32, length: u32) {
        if length == 0 {
            return;
        }
        let (mut begin, mut end) = (first, first + length);
        if let Some((&at, &long)) = self.by_place.range(..first).next_back()
            && at + long == first
        {
            self.remove(at, long);
            begin = at;
        }
        if let Some(&long) = self.by_place.get(&end) {
            self.remove(end, long);
            end += long;
        }
        self.add(begin, end - begin);
    }

    fn add(&mut self, first: u32, length: u32) {
        if length > 0 {
            self.by_place.insert(first, length);
            self.by_length.insert((length, first));
            self.free += length;
        }
    }

    fn remove(&mut self, first: u32, length: u32) {
        self.by_place.remove(&first);
        self.by_length.remove(&(length, first));
        self.free -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service whose table grows finds room for the next one beside it up to half of all that small ones
    /// leave, whenever it grows and however often it is changed in between.
    #[test]
    fn a_table_that_grows_finds_room_beside_itself() {
        for changes in 1..4 {
            let mut room = Room::new(2 * 1024 + 12);
            let small: Vec<Option<u32>> = (0..3).map(|_| room.take(4)).collect();
            assert_eq!(small, [Some(0), Some(4), Some(8)]);
            let mut held = room.take(16).map(|first| (first, 16)).expect("there is room");
            for length in (16u32..=1024).step_by(8).filter(|l| l.is_power_of_two() || l % 3 == 0) {
                for change in 0..changes {
                    let next = room.take(length);
                    let next = next.unwrap_or_else(|| panic!("{length}, {change}: {room:?}"));
                    room.give_back(held.0, held.1);
                    held = (next, length);
                }
            }
            assert_eq!(room.free(), 1024);
        }
    }

    /// Beside a list of what is taken, searched from end to end.
    #[test]
    fn ranges_never_overlap_and_the_smallest_gap_is_taken() {
        const ELEMENTS: u32 = 300;
        let mut seed = 1u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) % below) as u32
        };
        let mut room = Room::new(ELEMENTS);
        let mut taken: Vec<(u32, u32)> = Vec::new();
        for _ in 0..20_000 {
            if draw(2) == 0 && !taken.is_empty() {
                let (first, length) = taken.swap_remove(draw(taken.len() as u64) as usize);
                room.give_back(first, length);
            } else {
                let length = 1 + draw(40);
                taken.sort_unstable();
                let ends = taken.iter().map(|(first, length)| first + length);
                let begins = taken.iter().map(|(first, _)| *first).chain([ELEMENTS]);
                let gaps = [0].into_iter().chain(ends).zip(begins);
                let best = gaps.map(|(end, begin)| begin - end).filter(|gap| *gap >= length).min();
                let found = room.take(length);
                assert_eq!(found.is_some(), best.is_some());
                if let Some(first) = found {
                    let around =
                        |(at, long): &(u32, u32)| *at < first + length && first < at + long;
                    assert!(!taken.iter().any(around) && first + length <= ELEMENTS);
                    taken.push((first, length));
                }
            }
            let used: u32 = taken.iter().map(|(_, length)| length).sum();
            assert_eq!(room.free(), ELEMENTS - used);
        }
        let mut again = Room::new(ELEMENTS);
        assert!(taken.iter().all(|(first, length)| again.take_at(*first, *length)));
        assert_eq!(again, room);
        assert!(!taken.iter().any(|(first, length)| again.take_at(*first, *length)));
        taken.iter().for_each(|(first, length)| room.give_back(*first, *length));
        assert_eq!(room, Room::new(ELEMENTS));
    }
}
