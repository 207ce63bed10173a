//! Connection tables over consistent hashing: all flows, or those that JET finds unsafe.

use super::placed::{Over, Rows};
use super::{ConnectionTable, Release};
use crate::flow::Traffic;
use crate::method::{Change, ENTRY_BYTES, Effects, FlowRef, Gauges, Method, NOBODY, Probe};
use crate::world::World;
use weir_placement::{PoolError, Verdict};

/// A placement, and a table of connections in each balancer: of all flows, or of those only that
/// the placement says may move.
#[derive(Debug)]
pub struct Tracking<const ALL: bool> {
    rows: Rows,
    tables: Vec<ConnectionTable>,
}

/// Full tracking: every flow is in the table, as long as there is room.
pub type Tracked = Tracking<true>;

/// JET (Algorithm 1): only unsafe flows are in the table, those for which CH(W) and CH(W + H)
/// differ.
pub type Jet = Tracking<false>;

impl<const ALL: bool> Tracking<ALL> {
    /// An empty table for `capacity` flows, over a placement; `rows` counts where that is a table.
    /// `weights`: of all servers there will ever be.
    ///
    /// # Errors
    ///
    /// No row, too many, or too much weight.
    pub fn new(
        over: Over,
        rows: usize,
        weights: &[u32],
        capacity: usize,
        release: Release,
    ) -> Result<Self, PoolError> {
        let table = ConnectionTable::new(capacity, release);
        let rows = Rows::new(over, rows, weights, weights)?;
        Ok(Self { rows, tables: vec![table] })
    }

    /// The same for all servers and balancers of a world: each balancer has a table of its own,
    /// with room for `capacity` flows.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn for_world(
        over: Over,
        rows: usize,
        world: &World,
        capacity: usize,
        release: Release,
    ) -> Result<Self, PoolError> {
        let rows = Rows::new(over, rows, &world.server_weights(), &world.largest_weights())?;
        let new = |_| ConnectionTable::new(capacity, release);
        Ok(Self { rows, tables: (0..world.balancers.max(1)).map(new).collect() })
    }
}

impl<const ALL: bool> Method for Tracking<ALL> {
    fn rows(&self) -> usize {
        self.rows.rows()
    }

    fn row_of(&self, hash: u64) -> u32 {
        self.rows.row_of(hash)
    }

    fn first(
        &mut self,
        flow: FlowRef,
        traffic: &mut Traffic,
        effects: &mut Effects,
    ) -> Option<u16> {
        let server = self.packet(flow, traffic, effects);
        (server != NOBODY).then_some(server)
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        if let Some(server) = self.tables[usize::from(flow.balancer)].get(flow.slot) {
            return Probe::quiet(server);
        }
        let Verdict { backend, may_differ } = self.rows.verdict(flow.hash);
        Probe { server: backend, effect: backend != NOBODY && (ALL || may_differ) }
    }

    fn packet(&mut self, flow: FlowRef, traffic: &mut Traffic, effects: &mut Effects) -> u16 {
        let probe = self.probe(flow);
        if probe.effect {
            let table = &mut self.tables[usize::from(flow.balancer)];
            effects.flows.extend(table.insert(flow.slot, probe.server, traffic));
        }
        probe.server
    }

    fn change(&mut self, changes: &[Change], _: &mut Traffic, effects: &mut Effects) {
        effects.rows.extend(self.rows.apply(changes));
        for &change in changes {
            if let Change::Remove(server) = change {
                for table in &mut self.tables {
                    effects.flows.extend(table.forget_server(server));
                }
            }
        }
    }

    /// The balancer that sees the end forgets the flow; one that has seen it earlier does not.
    fn end(&mut self, flow: FlowRef, traffic: &mut Traffic) {
        for (balancer, table) in self.tables.iter_mut().enumerate() {
            match balancer == usize::from(flow.balancer) {
                true => table.end(flow.slot, traffic),
                false => table.end_elsewhere(flow.slot, traffic),
            }
        }
    }

    fn moves(&mut self, flow: FlowRef, to: u16, traffic: &mut Traffic) {
        self.tables[usize::from(flow.balancer)].leaves(flow.slot, traffic);
        self.tables[usize::from(to)].comes(flow.slot, traffic.now());
    }

    fn gauges(&self, _: &Traffic) -> Gauges {
        let tracked = self.tables.iter().map(ConnectionTable::len).sum();
        let evictions = self.tables.iter().map(ConnectionTable::evictions).sum();
        let state_bytes = tracked as f64 * ENTRY_BYTES;
        let marked_rows = if ALL { 1.0 } else { self.rows.unsafe_share() };
        Gauges { tracked, marked_rows, state_bytes, evictions }
    }
}
