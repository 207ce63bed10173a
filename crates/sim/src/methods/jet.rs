//! Connection tables over consistent hashing: all flows, or those that JET finds unsafe.

use super::placed::{Over, Rows};
use super::{ConnectionTable, Release};
use crate::flow::Traffic;
use crate::method::{Change, ENTRY_BYTES, Effects, FlowRef, Gauges, Method, NOBODY, Probe};
use crate::world::World;
use weir_placement::{PoolError, Verdict};

/// What both have: a table of rows, and a table of connections in each balancer.
#[derive(Debug)]
struct Tracking {
    rows: Rows,
    tables: Vec<ConnectionTable>,
}

impl Tracking {
    /// `all`: safe flows are tracked as well.
    fn probe(&self, flow: FlowRef, all: bool) -> Probe {
        if let Some(server) = self.tables[usize::from(flow.balancer)].get(flow.slot) {
            return Probe::quiet(server);
        }
        let Verdict { backend, may_differ } = self.rows.verdict(flow.hash);
        Probe { server: backend, effect: backend != NOBODY && (all || may_differ) }
    }

    fn packet(
        &mut self,
        flow: FlowRef,
        probe: Probe,
        traffic: &mut Traffic,
        effects: &mut Effects,
    ) -> u16 {
        if probe.effect {
            let table = &mut self.tables[usize::from(flow.balancer)];
            effects.flows.extend(table.insert(flow.slot, probe.server, traffic));
        }
        probe.server
    }

    fn change(&mut self, changes: &[Change], effects: &mut Effects) {
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

    fn gauges(&self, marked_rows: f64) -> Gauges {
        let tracked = self.tables.iter().map(ConnectionTable::len).sum();
        let evictions = self.tables.iter().map(ConnectionTable::evictions).sum();
        let state_bytes = tracked as f64 * ENTRY_BYTES;
        Gauges { tracked, marked_rows, state_bytes, evictions }
    }
}

impl Tracking {
    fn new(
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

    fn for_world(
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

/// Full tracking: every flow is in the table, as long as there is room.
#[derive(Debug)]
pub struct Tracked(Tracking);

/// JET (Algorithm 1): only unsafe flows are in the table, those for which CH(W) and CH(W + H)
/// differ.
#[derive(Debug)]
pub struct Jet(Tracking);

macro_rules! tracking_method {
    ($name:ident, $all:expr) => {
        impl $name {
            /// An empty table for `capacity` flows, over a placement; `rows` counts where
            /// that is a table. `weights`: of all servers there will ever be.
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
                Tracking::new(over, rows, weights, capacity, release).map(Self)
            }

            /// The same for all servers and balancers of a world: each balancer has a table of
            /// its own, with room for `capacity` flows.
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
                Tracking::for_world(over, rows, world, capacity, release).map(Self)
            }
        }

        impl Method for $name {
            fn rows(&self) -> usize {
                self.0.rows.rows()
            }

            fn row_of(&self, hash: u64) -> u32 {
                self.0.rows.row_of(hash)
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
                self.0.probe(flow, $all)
            }

            fn packet(
                &mut self,
                flow: FlowRef,
                traffic: &mut Traffic,
                effects: &mut Effects,
            ) -> u16 {
                let probe = self.probe(flow);
                self.0.packet(flow, probe, traffic, effects)
            }

            fn end(&mut self, flow: FlowRef, traffic: &mut Traffic) {
                self.0.end(flow, traffic);
            }

            fn moves(&mut self, flow: FlowRef, to: u16, traffic: &mut Traffic) {
                self.0.moves(flow, to, traffic);
            }

            fn change(&mut self, changes: &[Change], _: &mut Traffic, effects: &mut Effects) {
                self.0.change(changes, effects);
            }

            fn gauges(&self, _: &Traffic) -> Gauges {
                self.0.gauges(if $all { 1.0 } else { self.0.rows.unsafe_share() })
            }
        }
    };
}

tracking_method!(Tracked, true);
tracking_method!(Jet, false);
