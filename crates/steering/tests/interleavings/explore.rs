//! The model as the search sees it.

use crate::model::{Rules, State, initial};
use crate::search::{Model, Sink};
use std::hash::{Hash, Hasher};

impl Model for Rules {
    type State = State;

    fn initial(&self) -> Vec<State> {
        initial(self)
    }

    fn hash(&self, state: &State, hasher: &mut impl Hasher) {
        state.canonical().hash(hasher);
    }

    fn representative(&self, state: State) -> State {
        state.canonical()
    }

    fn successors(&self, state: &State, sink: &mut Sink<State>) {
        state.successors(self, sink);
    }

    fn broken(&self, state: &State) -> bool {
        state.broken || state.records_for_ever()
    }
}
