//! A state in four words of 48 bits, as registers hold it.

use crate::layout::{PENDING_SETS, PENDING_WAYS, TRACKED_SETS};
use weir_hash::{HashKey, Key};
use weir_steering::{BackendId, Event, EventKind, ServiceId, ServiceState, StateKey};

/// Bit of a report's last word: the flow ends.
const ENDS: u64 = 0x8000;
const WORD: u128 = (1 << 48) - 1;

/// The words of a state, without the backend.
pub fn words(state: &ServiceState) -> [u64; 4] {
    let StateKey { address, src_port, dst_port } = state.key;
    let address = u128::from_be_bytes(address);
    let third = (address & 0xffff_ffff) << 16 | u128::from(src_port);
    let fourth = u128::from(dst_port) << 32 | u128::from(state.service.0) << 16;
    [address >> 80, address >> 32 & WORD, third, fourth].map(|word| word as u64)
}

fn state_of(words: [u64; 4]) -> ServiceState {
    let [first, second, third, fourth] = words.map(u128::from);
    let address = first << 80 | second << 32 | third >> 16;
    let key = StateKey {
        address: address.to_be_bytes(),
        src_port: third as u16,
        dst_port: (fourth >> 32) as u16,
    };
    ServiceState { service: ServiceId((fourth >> 16 & 0xffff) as u32), key }
}

/// A pending flow; none of a place that is free.
pub fn pending(words: [u64; 4]) -> Option<(ServiceState, BackendId)> {
    let backend = (words[3] as u16).checked_sub(1).and_then(BackendId::new)?;
    Some((state_of(words), backend))
}

/// The words of a pending flow.
pub fn pending_words(state: &ServiceState, backend: BackendId) -> [u64; 4] {
    let mut words = words(state);
    words[3] |= u64::from(backend.get()) + 1;
    words
}

/// A report.
pub fn report(words: [u64; 4]) -> Option<Event> {
    let kind = if words[3] & ENDS == 0 { EventKind::Start } else { EventKind::End };
    let backend = BackendId::new((words[3] & (ENDS - 1)) as u16)?;
    Some(Event { state: state_of(words), backend, kind })
}

/// The words of a report.
pub fn report_words(event: &Event) -> [u64; 4] {
    let mut words = words(&event.state);
    words[3] |= u64::from(event.backend.get());
    words[3] |= if event.kind == EventKind::End { ENDS } else { 0 };
    words
}

/// The first places of a state's two sets in the pending table.
pub fn sets_of(key: &HashKey, state: &StateKey) -> [u32; 2] {
    let hash = state.hash(key);
    [hash, hash >> 32].map(|hash| (hash as u32 & (PENDING_SETS - 1)) * PENDING_WAYS)
}

/// The same among tracked flows.
pub fn tracked_sets_of(key: &HashKey, state: &StateKey) -> [u32; 2] {
    let hash = state.hash(key);
    let set = |hash: u64| PENDING_SETS + (hash as u32 & (TRACKED_SETS - 1));
    [hash, hash >> 32].map(|hash| set(hash) * PENDING_WAYS)
}

/// What is noted of a tracked flow beside the number of its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Noted {
    /// The place of its slot plus one; 0 for none.
    pub place: u16,
    /// The incarnation of its backend.
    pub incarnation: u16,
    /// When it was used last, in seconds: 31 bits.
    pub last: u32,
}

impl Noted {
    /// From the register's word.
    pub fn of_word(word: u64) -> Self {
        let (place, incarnation) = ((word >> 47) as u16, (word >> 31) as u16);
        Self { place, incarnation, last: word as u32 & SECONDS }
    }

    /// As the register has it.
    pub fn word(self) -> u64 {
        let Self { place, incarnation, last } = self;
        u64::from(place) << 47 | u64::from(incarnation) << 31 | u64::from(last & SECONDS)
    }
}

/// The bits of seconds in words that have other things, too.
pub const SECONDS: u32 = u32::MAX >> 1;

/// The place that a flow takes: the first free one of the set that has fewer flows. `used`: whether a place is.
pub fn place_in(sets: [u32; 2], used: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut fewest, mut place) = (PENDING_WAYS, None);
    for first in sets {
        let places = first..first + PENDING_WAYS;
        let flows = places.clone().filter(|at| used(*at)).count() as u32;
        if flows < fewest {
            (fewest, place) = (flows, places.clone().find(|at| !used(*at)));
        }
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the places are full, and no flow has gone without one.
    #[test]
    fn the_pending_table_fills_evenly() {
        let key = HashKey::from_seed(11);
        let mut used = vec![false; (PENDING_SETS * PENDING_WAYS) as usize];
        for n in 0..used.len() as u32 / 2 {
            let mut address = [0; 16];
            address[12..].copy_from_slice(&n.to_be_bytes());
            let state = StateKey { address, src_port: 7, dst_port: 80 };
            let place = place_in(sets_of(&key, &state), |at| used[at as usize]);
            used[place.expect("there is room") as usize] = true;
        }
    }

    #[test]
    fn states_come_back_from_their_words() {
        for n in 0..1_000u128 {
            let address = (n * 0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978).to_be_bytes();
            let key = StateKey { address, src_port: (n * 77) as u16, dst_port: (n * 331) as u16 };
            let state = ServiceState { service: ServiceId((n % 256) as u32), key };
            let backend = BackendId::of((n * 31 % 0x7fff) as u16);
            assert_eq!(pending(pending_words(&state, backend)), Some((state, backend)));
            for kind in [EventKind::Start, EventKind::End] {
                let event = Event { state, backend, kind };
                assert_eq!(report(report_words(&event)), Some(event));
            }
            assert!(pending_words(&state, backend).iter().all(|word| *word < 1 << 48));
            assert_eq!(pending(words(&state)), None, "a place without a backend is free");
        }
    }
}
