//! The model as the search sees it.

use crate::search::{Model, Sink};
use crate::world::{Budget, Fault, World};
use std::hash::{Hash, Hasher};

/// What may happen, and what is left out.
pub struct Rules {
    pub budget: Budget,
    pub fault: Fault,
    /// States in which a connection whose agent had been given up was misled.
    pub excused: usize,
}

impl Model for Rules {
    type State = World;

    fn initial(&self) -> Vec<World> {
        vec![World::new(self.budget, self.fault)]
    }

    fn hash(&self, world: &World, hasher: &mut impl Hasher) {
        world.hash(hasher);
    }

    fn successors(&self, world: &World, sink: &mut Sink<World>) {
        world.successors(self.fault, sink);
    }

    fn broken(&self, world: &World) -> bool {
        world.broken
    }

    fn visited(&mut self, world: &World) {
        if world.excused {
            // Put down to the agent that was given up, or to nobody.
            assert!(world.stale_agents() > 0);
            self.excused += 1;
        }
    }
}
