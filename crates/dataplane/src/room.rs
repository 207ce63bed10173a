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

/// Places that are looked at when tables are to make room for another one: the cheapest of all.
const PLACES: usize = 64;

/// A range that is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// Where it begins, and how long it is.
    pub first: u32,
    pub length: u32,
    /// Whether what stands there may stand elsewhere.
    pub movable: bool,
}

/// What stands at one place is to stand at another one, which is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shift {
    pub from: u32,
    pub to: u32,
    pub length: u32,
}

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

    /// What has to stand elsewhere so that so many elements in a row are free once it does. All new places are free
    /// now, so each can be written while its old one is read. `None`: there is no such way, or not
    /// enough is free in sum. `held`: all that is taken, in order.
    pub fn gather(&self, length: u32, held: &[Held]) -> Option<Vec<Shift>> {
        if length > self.free {
            return None;
        }
        let gaps = self.by_place.iter().map(|(&first, &long)| (first, first + long));
        let windows = gaps.flat_map(|(first, end)| {
            let after = first.checked_add(length).filter(|end| *end <= self.elements);
            [after.map(|_| first), end.checked_sub(length)]
        });
        let priced = windows.flatten().filter_map(|from| {
            let inside = within(held, from, from + length);
            let price = inside.iter().map(|one| u64::from(one.length)).sum::<u64>();
            inside.iter().all(|one| one.movable).then_some((price, from))
        });
        let windows: BTreeSet<(u64, u32)> = priced.collect();
        windows.into_iter().take(PLACES).find_map(|(_, from)| {
            let mut left = self.clone();
            left.take_all(from, from + length);
            let mut inside = within(held, from, from + length).to_vec();
            // Large ones first, as they find room in fewer places.
            inside.sort_by_key(|one| (std::cmp::Reverse(one.length), one.first));
            let shift = |one: &Held| {
                let Held { first, length, .. } = *one;
                Some(Shift { from: first, to: left.take(length)?, length })
            };
            inside.iter().map(shift).collect()
        })
    }

    /// Takes what is free of a range.
    fn take_all(&mut self, first: u32, end: u32) {
        let around = self.by_place.range(..first).next_back();
        let from = around.map_or(first, |(&at, _)| at);
        let gaps: Vec<(u32, u32)> =
            self.by_place.range(from..end).map(|(&at, &long)| (at, at + long)).collect();
        for (at, stop) in gaps {
            let (at, stop) = (at.max(first), stop.min(end));
            if at < stop {
                self.take_at(at, stop - at);
            }
        }
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

/// The part of what is held, in order and without overlaps, that reaches into a range.
fn within(held: &[Held], first: u32, end: u32) -> &[Held] {
    let from = held.partition_point(|one| one.first + one.length <= first);
    let to = held.partition_point(|one| one.first < end);
    &held[from..to.max(from)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of services by number, as they stand in a pool.
    struct Pool {
        room: Room,
        tables: BTreeMap<u32, (u32, u32)>,
        /// How often tables were moved within the memory, and how often they had to be packed into other memory.
        moved: u32,
        packed: u32,
    }

    impl Pool {
        fn new(elements: u32) -> Self {
            Self { room: Room::new(elements), tables: BTreeMap::new(), moved: 0, packed: 0 }
        }

        /// Another table for a service: made beside the one before, which goes then. Returns whether there was room.
        fn publish(&mut self, service: u32, length: u32) -> bool {
            let enough = length <= self.room.free();
            let found = self.room.take(length).or_else(|| self.make_room(length));
            assert_eq!(found.is_some(), enough, "{length} of {:?}", self.room);
            let Some(first) = found else { return false };
            if let Some((first, length)) = self.tables.insert(service, (first, length)) {
                self.room.give_back(first, length);
            }
            self.check();
            true
        }

        fn make_room(&mut self, length: u32) -> Option<u32> {
            if length > self.room.free() {
                assert_eq!(self.room.gather(length, &self.held()), None);
                return None;
            }
            match self.room.gather(length, &self.held()) {
                Some(shifts) => {
                    self.moved += 1;
                    // Both places are taken until packets have left the former one.
                    for one in &shifts {
                        assert!(self.room.take_at(one.to, one.length), "{one:?}: {:?}", self.room);
                        let table =
                            self.tables.values_mut().find(|at| **at == (one.from, one.length));
                        table.expect("it stands there").0 = one.to;
                    }
                    shifts.iter().for_each(|one| self.room.give_back(one.from, one.length));
                }
                None => {
                    self.packed += 1;
                    self.pack(self.room.elements);
                }
            }
            self.check();
            self.room.take(length)
        }

        /// Into other memory, as when sizes change.
        fn pack(&mut self, elements: u32) {
            self.room = Room::new(elements);
            let mut tables: Vec<&mut (u32, u32)> = self.tables.values_mut().collect();
            tables.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
            for (first, length) in tables {
                *first = self.room.take(*length).expect("all of them fit");
            }
            assert!(self.room.by_place.len() <= 1, "{:?}", self.room);
        }

        fn held(&self) -> Vec<Held> {
            let held = self.tables.values().map(|&(first, length)| (first, length));
            let held: BTreeMap<u32, u32> = held.filter(|(_, length)| *length > 0).collect();
            let held = held.into_iter();
            held.map(|(first, length)| Held { first, length, movable: true }).collect()
        }

        fn check(&self) {
            let held = self.held();
            let apart = |two: &[Held]| two[0].first + two[0].length <= two[1].first;
            assert!(held.windows(2).all(apart), "{held:?}");
            let used: u32 = held.iter().map(|one| one.length).sum();
            assert_eq!(self.room.free(), self.room.elements - used);
        }
    }

    fn draws(seed: u64) -> impl FnMut(u32) -> u32 {
        let mut state = seed;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 33) % u64::from(below)) as u32
        }
    }

    /// Whatever services grow and shrink in whatever order: a table that there is room for in sum is written.
    #[test]
    fn whatever_fits_in_sum_finds_room() {
        let (mut refused, mut moved, mut packed) = (0, 0, 0);
        for seed in 0..12 {
            let mut draw = draws(seed);
            let (services, elements) = (2 + draw(20), 200 + draw(2000));
            let mut pool = Pool::new(elements);
            for _ in 0..1500 {
                let service = draw(services);
                if draw(10) == 0 {
                    if let Some((first, length)) = pool.tables.remove(&service) {
                        pool.room.give_back(first, length);
                    }
                } else {
                    // As many small ones as large ones.
                    let length = (1 << draw(9)).min(elements / 2) + draw(8);
                    refused += u32::from(!pool.publish(service, length));
                }
            }
            moved += pool.moved;
            packed += pool.packed;
        }
        assert!(refused > 0 && packed > 0 && moved > packed, "{refused}, {moved}, {packed}");
    }

    /// What `weir check` asks for is enough: twice the largest table, and the first ones of all others,
    /// whichever of them are made anew in whatever order. Two that grow in turn need the sum of both,
    /// and the larger one once more.
    #[test]
    fn tables_within_the_bound_of_the_file_find_room() {
        const FIRST: u32 = 4;
        for (seed, (most, others)) in
            [(64, 3), (256, 10), (256, 100), (512, 30)].into_iter().enumerate()
        {
            let mut draw = draws(seed as u64);
            let mut pool = Pool::new(2 * most + others * FIRST);
            for _ in 0..1500 {
                let (service, length) = match draw(2) {
                    0 => (others, FIRST * (1 + draw(most / FIRST))),
                    _ => (draw(others), FIRST),
                };
                assert!(pool.publish(service, length), "{service}, {length}: {:?}", pool.room);
            }
            let mut pool = Pool::new(3 * most);
            for _ in 0..1500 {
                assert!(pool.publish(draw(2), 1 + draw(most)), "{:?}", pool.room);
            }
        }
    }

    /// One service's table, the others' around it, and no room in a row: they make some. What may not be moved stays.
    #[test]
    fn tables_make_room_for_another_one() {
        let mut room = Room::new(40);
        let mut held: Vec<Held> = Vec::new();
        for n in 0..5 {
            let (first, length) = (n * 8 + 3, 4);
            assert!(room.take_at(first, length));
            held.push(Held { first, length, movable: true });
        }
        assert_eq!((room.free(), room.clone().take(12)), (20, None));
        let shifts = room.gather(9, &held).expect("there is a way");
        assert_eq!(shifts.len(), 1, "{shifts:?}");
        let mut after = room.clone();
        for one in &shifts {
            assert!(after.take_at(one.to, one.length));
        }
        // All is there twice until the former place is given back.
        assert_eq!(after.clone().take(9), None);
        shifts.iter().for_each(|one| after.give_back(one.from, one.length));
        assert!(after.take(9).is_some());
        assert_eq!(room.gather(21, &held), None);
        held.iter_mut().for_each(|one| one.movable = false);
        assert_eq!(room.gather(9, &held), None);
    }

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
