//! The pins of one service's table, in the order of their states: two such lists are compared by going
//! through both, where a hash of hundreds of thousands of keys would take longer than all else.

use crate::ids::BackendId;
use crate::state::ServiceState;
use std::cmp::Ordering;
use std::collections::HashSet;

/// A state and the backend that its pin names.
type Pin = (ServiceState, BackendId);

/// Pins in the order of their states, each state once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins(Vec<Pin>);

impl Pins {
    /// Of a state that is there more than once the last one counts, as in a map.
    pub fn of(pins: &[Pin]) -> Self {
        let mut sorted = pins.to_vec();
        sorted.sort_by_key(|(state, _)| *state);
        sorted.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 = later.1;
            }
            same
        });
        Self(sorted)
    }

    /// Each with its backend.
    pub fn iter(&self) -> impl Iterator<Item = (ServiceState, BackendId)> {
        self.0.iter().copied()
    }

    /// What is pinned at a state.
    pub fn at(&self, state: &ServiceState) -> Option<BackendId> {
        let found = self.0.binary_search_by_key(state, |(state, _)| *state).ok()?;
        Some(self.0[found].1)
    }

    /// The pins of these backends go.
    pub fn forget(&mut self, backends: &HashSet<BackendId>) {
        self.0.retain(|(_, at)| !backends.contains(at));
    }

    /// What is to be written so that these stand where `before` stands, and the states of `before`
    /// that are not needed then.
    pub fn beside(&self, before: Option<&Self>) -> (Vec<Pin>, Vec<ServiceState>) {
        let Some(before) = before else { return (self.0.clone(), Vec::new()) };
        let (mut missing, mut stale) = (Vec::new(), Vec::new());
        let (mut new, mut old) = (self.0.iter().peekable(), before.0.iter().peekable());
        loop {
            match (new.peek(), old.peek()) {
                (None, None) => return (missing, stale),
                (Some(_), None) => missing.extend(new.next()),
                (None, Some(_)) => stale.extend(old.next().map(|(state, _)| *state)),
                (Some(one), Some(other)) => match one.0.cmp(&other.0) {
                    Ordering::Less => missing.extend(new.next()),
                    Ordering::Greater => stale.extend(old.next().map(|(state, _)| *state)),
                    Ordering::Equal => {
                        if one.1 != other.1 {
                            missing.push(**one);
                        }
                        new.next();
                        old.next();
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ServiceId;
    use crate::state::StateKey;
    use std::collections::HashMap;

    fn pin(number: u32, backend: u16) -> Pin {
        let mut bytes = [0; 20];
        // Neighbours in order are none in number.
        bytes[..4].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_ne_bytes());
        let state = ServiceState { service: ServiceId(3), key: StateKey::from_bytes(&bytes) };
        (state, BackendId::of(backend))
    }

    #[test]
    fn differences_are_those_of_maps() {
        let cases: [(Vec<Pin>, Vec<Pin>); 4] = [
            (vec![], (0..50).map(|n| pin(n, 1)).collect()),
            ((0..50).map(|n| pin(n, 1)).collect(), vec![]),
            (
                (0..90).map(|n| pin(n, (n % 3) as u16)).collect(),
                (30..120).map(|n| pin(n, (n % 4) as u16)).collect(),
            ),
            ((0..9).map(|n| pin(n, 1)).collect(), vec![pin(4, 1), pin(4, 7), pin(2, 1)]),
        ];
        for (before, after) in cases {
            let (old, new): (HashMap<_, _>, HashMap<_, _>) =
                (before.iter().copied().collect(), after.iter().copied().collect());
            let (missing, stale) = Pins::of(&after).beside(Some(&Pins::of(&before)));
            let wanted = new.iter().filter(|(state, at)| old.get(state) != Some(*at));
            let wanted: HashMap<_, _> = wanted.map(|(state, at)| (*state, *at)).collect();
            assert_eq!(missing.iter().copied().collect::<HashMap<_, _>>(), wanted);
            assert_eq!(missing.len(), wanted.len());
            let gone: HashSet<_> = old.keys().filter(|state| !new.contains_key(state)).collect();
            assert_eq!(stale.iter().collect::<HashSet<_>>(), gone);
            assert_eq!(stale.len(), gone.len());
            for (state, at) in &new {
                assert_eq!(Pins::of(&after).at(state), Some(*at));
            }
            assert_eq!(Pins::of(&after).at(&pin(1_000, 1).0), None);
        }
    }
}
