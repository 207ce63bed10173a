//! Full tracking: every flow in a connection table, over any placement.

use super::memory::{Remembered, Shared};
use super::placed::{Over, Rows};
use super::steered::{Face, Steered};
use super::tables::Connections;
use crate::flow::Traffic;
use crate::method::{Change, ENTRY_BYTES, Effects, Gauges};
use crate::world::World;
use weir_hash::HashKey;
use weir_placement::PoolError;
use weir_steering::methods::tracked::Tracking;
use weir_steering::{Decide, Decision, Memory, Question};

const SEED: u64 = 0x7472_6163;

/// A placement, and a connection table in each balancer, which has every flow as long as there is
/// room.
pub type Tracked = Steered<TrackedFace>;

impl Tracked {
    /// For the servers and balancers of a world, over a placement; `rows` counts where that is a
    /// table, and the points of a server where it is a ring. Each balancer has a connection table.
    ///
    /// # Errors
    ///
    /// No row, too many, or too much weight.
    pub fn new(
        over: Over,
        rows: usize,
        world: &World,
        connections: Connections,
    ) -> Result<Self, PoolError> {
        let key = HashKey::from_seed(SEED);
        let rows = Rows::new(over, rows, &world.server_weights(), &world.largest_weights())?;
        let memory = |_| Remembered::new(Some(Shared::new(key, connections)));
        let memories = (0..world.balancers.max(1)).map(memory).collect();
        Ok(Steered { face: TrackedFace { table: Tracking::new(key, rows) }, memories })
    }
}

/// The build face of [`Tracked`].
#[derive(Debug)]
pub struct TrackedFace {
    table: Tracking<Rows>,
}

impl Face for TrackedFace {
    fn hash_key(&self, _: u16) -> &HashKey {
        Decide::<u64>::hash_key(&self.table)
    }

    fn decide<M: Memory<u64>>(&self, _: u16, question: &Question<u64>, memory: &mut M) -> Decision {
        self.table.decide(question, memory)
    }

    fn rows(&self) -> usize {
        self.table.placement.rows()
    }

    fn row_of(&self, hash: u64) -> u32 {
        self.table.placement.row_of(hash)
    }

    fn change(
        &mut self,
        changes: &[Change],
        memories: &mut [Remembered],
        _: &mut Traffic,
        effects: &mut Effects,
    ) {
        effects.rows.extend(self.table.placement.apply(changes));
        for &change in changes {
            if let Change::Remove(server) = change {
                memories.iter_mut().for_each(|memory| memory.forget(server, &mut effects.flows));
            }
        }
    }

    fn gauges(&self, memories: &[Remembered]) -> Gauges {
        let tracked = memories.iter().map(Remembered::entries).sum();
        Gauges {
            tracked,
            marked_rows: 1.0,
            state_bytes: tracked as f64 * ENTRY_BYTES,
            evictions: memories.iter().map(Remembered::evictions).sum(),
            ..Gauges::default()
        }
    }
}
