//! The twin of `p4/methods/cheetah.p4` and `cheetah_stateful.p4`.

use super::{Asked, Model, PENDING, Published};
use crate::layout::{PENDING_PLACES, PENDING_WAYS, Register};
use crate::state::{self, Noted, SECONDS};
use weir_hash::{HashKey, scale};
use weir_steering::cheetah::{
    LINGER_SECONDS, OPENING_SECONDS, PAD_SHIFT, PARTITION_SHIFT, PARTITION_SLOTS, SWEEP,
    SWEEP_FULL, SlotState, told,
};
use weir_steering::{BackendId, Flags, NO_BACKEND, SECOND_TRIES, SLOT_BACKEND, SLOT_RESERVED};
use weir_wire::Reason;

/// Bits of a cookie, and of what is hidden in it.
const COOKIE: u16 = 0x7fff;
/// What `slot_counts` has of a service.
const FULL: u32 = 0;
const STALE: u32 = 1;
const FOREIGN: u32 = 2;

/// The flow's partition, and the time.
#[derive(Clone, Copy)]
struct Place {
    partition: u32,
    now: u32,
}

/// What a slot says beside the hash.
#[derive(Clone, Copy)]
struct Word {
    last: u32,
    state: u8,
    number: u16,
    backend: u16,
}

impl Word {
    fn of(word: u64) -> Self {
        let (last, state) = ((word >> 32) as u32, (word >> 30 & 3) as u8);
        let (number, backend) = ((word >> 15) as u16 & COOKIE, word as u16 & COOKIE);
        Self { last, state, number, backend }
    }

    fn word(self) -> u64 {
        let Self { last, state, number, backend } = self;
        u64::from(last) << 32
            | u64::from(state) << 30
            | u64::from(number) << 15
            | u64::from(backend)
    }
}

/// The rest of a value of 48 bits by n, as a switch finds it that does not divide.
fn rest(value: u64, n: u64, inverse: u64) -> u64 {
    let times = (u128::from(value) * u128::from(inverse)) >> 64;
    let left = value - times as u64 * n;
    if left >= n { left - n } else { left }
}

/// A flow among those that are tracked, or a place for it.
struct Tracked {
    /// The number of its server, and what is noted of it.
    known: Option<(u16, Noted)>,
    place: u32,
}

impl Model {
    /// Where a packet goes, and whether a flow begins there.
    pub(super) fn cheetah(
        &mut self,
        table: &Published,
        asked: &Asked,
        by_slot: bool,
    ) -> Result<(BackendId, bool), Reason> {
        let mut tells = asked.starts && asked.echo.is_some();
        let cookie = asked.echo.filter(|_| asked.acks);
        let pad = (asked.hash >> PAD_SHIFT) as u16 & COOKIE;
        let now = self.get(Register::Clock, 0) as u32 & SECONDS;
        let hash = (asked.hash >> PARTITION_SHIFT) as u32;
        let at = Place { partition: table.b.0 + scale(hash, table.b.1), now };
        if let Some(echo) = cookie {
            let hidden = (echo >> 16) as u16 & COOKIE ^ pad;
            let found = match by_slot {
                true => self.follow_slot(table, asked, at, hidden),
                false => BackendId::of_slot(self.server(table, hidden)),
            };
            if let Some(backend) = found {
                return Ok((backend, false));
            }
        }
        let tracked = self.find_tracked(asked, now);
        let known = tracked.known.filter(|known| self.counts(table, asked, by_slot, known));
        let mut place = known.map_or(0, |(_, noted)| noted.place);
        let mut note = known.is_none() && cookie.is_none() && !asked.resets;
        let new = asked.starts || note;
        let number = match known {
            Some((number, _)) => number,
            None if cookie.is_some() && table.refuses => return Err(Reason::NoCookie),
            None => self.draw(table, asked).ok_or(Reason::NoBackend)?,
        };
        let backend = BackendId::of_slot(self.server(table, number)).ok_or(Reason::NoBackend)?;
        let mut hidden = number;
        if tells && by_slot {
            let index = place.wrapping_sub(1);
            let own = self.find_slot(asked, at, index).filter(|_| place != 0);
            let stays = own.is_some_and(|word| {
                word.state != SlotState::Closing as u8 && word.backend == backend.get()
            });
            if !stays {
                let opened = self.open_slot(table, asked, at, (number, backend));
                place = opened.map_or(0, |index| index + 1);
                note = true;
            }
            tells = place != 0;
            hidden = place.wrapping_sub(1);
        }
        if known.is_some() || note {
            let incarnation = (self.get(Register::States, backend.get().into()) >> 16) as u16;
            let mut words = state::words(&asked.state);
            words[3] |= u64::from(number) + 1;
            for (register, word) in PENDING.into_iter().zip(words) {
                self.set(register, tracked.place, word);
            }
            let noted = Noted { place, incarnation, last: now }.word();
            self.set(Register::Tracked, tracked.place - PENDING_PLACES, noted);
        }
        if tells {
            self.told = Some(told((hidden ^ pad) & COOKIE));
        }
        Ok((backend, new))
    }

    /// The backend of a number with its bit, or [`NO_BACKEND`].
    fn server(&self, table: &Published, number: u16) -> u16 {
        let number = u32::from(number);
        if number < table.a.1 {
            self.get(Register::CellsA, table.a.0 + number) as u16
        } else {
            NO_BACKEND
        }
    }

    /// Whether a packet follows what is known of its flow.
    fn counts(
        &self,
        table: &Published,
        asked: &Asked,
        by_slot: bool,
        (number, noted): &(u16, Noted),
    ) -> bool {
        let entry = self.server(table, *number);
        let Some(backend) = BackendId::of_slot(entry) else { return false };
        let state = self.get(Register::States, backend.get().into());
        let takes = state & 2 == 0 && (by_slot || entry & SLOT_RESERVED == 0);
        state & 1 != 0 && (state >> 16) as u16 == noted.incarnation && (takes || !asked.starts)
    }

    fn find_tracked(&self, asked: &Asked, now: u32) -> Tracked {
        let key = self.plane_key().unwrap_or(HashKey::from_seed(0));
        let sets = state::tracked_sets_of(&key, &asked.state.key);
        let (mut oldest, mut age) = (0, 0);
        let wanted = state::words(&asked.state);
        for place in sets.into_iter().flat_map(|first| first..first + PENDING_WAYS) {
            let words = PENDING.map(|register| self.get(register, place));
            let Some(number) = (words[3] as u16).checked_sub(1) else { continue };
            let noted = Noted::of_word(self.get(Register::Tracked, place - PENDING_PLACES));
            if words[..3] == wanted[..3] && words[3] >> 16 == wanted[3] >> 16 {
                return Tracked { known: Some((number, noted)), place };
            }
            let silent = now.wrapping_sub(noted.last) & SECONDS;
            if silent >= age {
                (oldest, age) = (place, silent);
            }
        }
        let used = |at| self.get(Register::Pending3, at) & 0xffff != 0;
        Tracked { known: None, place: state::place_in(sets, used).unwrap_or(oldest) }
    }

    /// The number of a server for a new connection.
    fn draw(&mut self, table: &Published, asked: &Asked) -> Option<u16> {
        let (first, entries) = table.slots;
        let listed = |model: &Self, at| model.get(Register::Slots, first + at) as u16;
        if entries == 0 {
            return None;
        }
        if !table.flags.has(Flags::TURNS) {
            return Some(listed(self, scale(asked.hash as u32, entries)));
        }
        let mut number = 0;
        for _ in 0..SECOND_TRIES {
            let service = asked.state.service.0;
            let (turn, entries) = (self.get(Register::Turns, service), u64::from(entries));
            self.add(Register::Turns, service, 1);
            let place = rest(turn, entries, table.inverse);
            let at = rest(place * u64::from(table.fallback), entries, table.inverse);
            number = listed(self, at as u32);
            if !self.is_down(BackendId::of_slot(self.server(table, number))) {
                break;
            }
        }
        Some(number)
    }

    fn slot_at(at: Place, index: u16) -> u32 {
        at.partition * PARTITION_SLOTS + u32::from(index)
    }

    fn find_slot(&self, asked: &Asked, at: Place, index: u16) -> Option<Word> {
        let slot = Self::slot_at(at, index & COOKIE);
        let word = Word::of(self.get(Register::SlotWords, slot));
        let own = word.state != 0
            && self.get(Register::SlotHigh, slot) == asked.hash >> 32
            && self.get(Register::SlotLow, slot) == asked.hash & 0xffff_ffff;
        own.then_some(word)
    }

    fn count_slots(&mut self, asked: &Asked, kind: u32) {
        self.add(Register::SlotCounts, asked.state.service.0 * 4 + kind, 1);
    }

    fn release(&mut self, at: Place, index: u16) {
        self.add(Register::SlotsUsed, at.partition, u64::MAX);
        let used = self.get(Register::SlotsUsed, at.partition) as u16;
        self.set(Register::FreeSlots, Self::slot_at(at, used), u64::from(index ^ used));
        self.set(Register::SlotWords, Self::slot_at(at, index), 0);
    }

    fn sweep_slot(&mut self, table: &Published, at: Place) {
        let hand = self.get(Register::Hands, at.partition) as u16;
        self.set(Register::Hands, at.partition, u64::from((hand + 1) & COOKIE));
        let word = Word::of(self.get(Register::SlotWords, Self::slot_at(at, hand)));
        let limit = match word.state {
            state if state == SlotState::Opening as u8 => OPENING_SECONDS.min(table.idle),
            state if state == SlotState::Open as u8 => table.idle,
            _ => LINGER_SECONDS.min(table.idle),
        };
        let age = at.now.wrapping_sub(word.last) & SECONDS;
        if word.state != 0 && age > limit && age <= SECONDS >> 1 {
            self.release(at, hand);
        }
    }

    fn open_slot(
        &mut self,
        table: &Published,
        asked: &Asked,
        at: Place,
        (number, backend): (u16, BackendId),
    ) -> Option<u16> {
        let full = |model: &Self| {
            model.get(Register::SlotsUsed, at.partition) == u64::from(PARTITION_SLOTS)
        };
        (0..SWEEP).for_each(|_| self.sweep_slot(table, at));
        if full(self) {
            (0..SWEEP_FULL).for_each(|_| self.sweep_slot(table, at));
        }
        if full(self) {
            self.count_slots(asked, FULL);
            return None;
        }
        let used = self.get(Register::SlotsUsed, at.partition) as u16;
        let index = self.get(Register::FreeSlots, Self::slot_at(at, used)) as u16 ^ used;
        self.add(Register::SlotsUsed, at.partition, 1);
        let slot = Self::slot_at(at, index);
        self.set(Register::SlotHigh, slot, asked.hash >> 32);
        self.set(Register::SlotLow, slot, asked.hash);
        let (state, backend) = (SlotState::Opening as u8, backend.get());
        let word = Word { last: at.now, state, number, backend };
        self.set(Register::SlotWords, slot, word.word());
        Some(index)
    }

    /// A packet with a cookie.
    fn follow_slot(
        &mut self,
        table: &Published,
        asked: &Asked,
        at: Place,
        index: u16,
    ) -> Option<BackendId> {
        let slot = Self::slot_at(at, index);
        let Some(word) = self.find_slot(asked, at, index) else {
            let free = Word::of(self.get(Register::SlotWords, slot)).state == 0;
            self.count_slots(asked, if free { STALE } else { FOREIGN });
            return None;
        };
        if self.server(table, word.number) & SLOT_BACKEND != word.backend {
            self.release(at, index);
            return None;
        }
        let state = match word.state {
            _ if asked.ends => SlotState::Closing as u8,
            state if state == SlotState::Opening as u8 => SlotState::Open as u8,
            state => state,
        };
        self.set(Register::SlotWords, slot, Word { last: at.now, state, ..word }.word());
        BackendId::new(word.backend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_are_those_of_a_division() {
        for n in (1..300).chain([4_095, 4_096, 16_383, 16_384, 32_767, 65_535]) {
            let inverse = u64::MAX / n;
            let edges =
                [0, 1, n - 1, n, n + 1, (1 << 48) - 1, (1 << 48) / n * n, (1 << 48) / n * n - 1];
            for value in edges.into_iter().chain((0..200).map(|i| i * 0x1234_5678_9abc / 200)) {
                let value = value & 0xffff_ffff_ffff;
                assert_eq!(rest(value, n, inverse), value % n, "{value} by {n}");
            }
        }
    }
}
