//! JET: only the flows in a connection table that a foreseen change could move.

use super::memory::{Remembered, Shared};
use super::placed::{Over, Stands};
use super::pool::Members;
use super::steered::{Face, Steered};
use super::tables::Connections;
use crate::flow::Traffic;
use crate::method::{Change, ENTRY_BYTES, Effects, Gauges};
use crate::world::World;
use std::time::Duration;
use weir_hash::HashKey;
use weir_placement::{Anchor, Candidate, Hrw, HrwTable, Ring};
use weir_steering::jet::{ByBackend, Jet as Method, JetError, JetTable};
use weir_steering::{Decide, Decision, Memory, Question};

const SEED: u64 = 0x6a65_7421;

/// JET (`weir_steering::jet`), one in each balancer. A server that leaves goes to the horizon if it
/// is among those that will return soonest, and otherwise for good. The horizon has no warm-up
/// period: the scenario says who is on it.
pub type Jet = Steered<JetFace>;

impl Jet {
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
    ) -> Result<Self, JetError> {
        let key = HashKey::from_seed(SEED);
        let (mut jets, mut memories) = (Vec::new(), Vec::new());
        for _ in 0..world.balancers.max(1) {
            let connections = Shared::new(key, connections);
            memories.push(Remembered::new(Some(connections.clone())));
            jets.push(Variant::new(over, rows, world, connections)?);
        }
        let members = Members::new(&world.server_weights());
        let stands = vec![Stands::Out; world.all_servers()];
        Ok(Steered { face: JetFace { jets, members, stands }, memories })
    }
}

/// The build face of [`Jet`].
#[derive(Debug)]
pub struct JetFace {
    /// One for each balancer: what a packet must ask for depends on the balancer's own table.
    jets: Vec<Variant>,
    members: Members,
    stands: Vec<Stands>,
}

#[derive(Debug)]
enum Variant {
    Table(JetTable<Shared>),
    Anchor(Box<Method<ByBackend<Anchor>, Shared>>),
    Hrw(Method<ByBackend<Hrw>, Shared>),
    Ring(Method<ByBackend<Ring>, Shared>),
}

macro_rules! each {
    ($self:expr, $jet:ident => $call:expr) => {
        match $self {
            Variant::Table($jet) => $call,
            Variant::Anchor($jet) => $call,
            Variant::Hrw($jet) => $call,
            Variant::Ring($jet) => $call,
        }
    };
}

impl Variant {
    fn new(over: Over, rows: usize, world: &World, table: Shared) -> Result<Self, JetError> {
        let (rows, none) = (u32::try_from(rows).unwrap_or(u32::MAX), Duration::ZERO);
        Ok(match over {
            Over::Table => Self::Table(JetTable::by_row(HrwTable::new(rows)?, table, none)?),
            Over::Anchor => {
                let capacity = 2 * world.largest_weights().iter().sum::<u32>().max(1);
                Self::Anchor(Box::new(Method::new(Anchor::new(capacity)?, table, none)))
            }
            Over::Hrw => Self::Hrw(Method::new(Hrw::new(), table, none)),
            Over::Ring => Self::Ring(Method::new(Ring::new(rows)?, table, none)),
            Over::Maglev => return Err(JetError::MaglevFlips),
        })
    }

    /// Where each row points, and whether its flows are unsafe.
    fn rows(&self) -> Option<Vec<(u16, bool)>> {
        let Self::Table(jet) = self else {
            return None;
        };
        let table = jet.placement();
        let bit = |row: usize| table.may_differ()[row / 64] >> (row % 64) & 1 != 0;
        Some(table.rows().iter().enumerate().map(|(row, &server)| (server, bit(row))).collect())
    }

    /// Follows one change; `all` come at the same instant.
    fn follow(
        &mut self,
        change: Change,
        all: &[Change],
        stood: Stands,
        new: Candidate<'_>,
        now: Duration,
    ) -> Result<Stands, JetError> {
        let server = new.backend;
        each!(self, jet => match (change, stood) {
            (Change::Add(_), Stands::OnHorizon) => {
                jet.admit(server, now)?;
                Ok(Stands::Working)
            }
            (Change::Add(_), _) => {
                jet.add_unforeseen(new, now)?;
                Ok(Stands::Working)
            }
            (Change::Remove(_) | Change::Drain(_), Stands::Working) => {
                if all.contains(&Change::Expect(server)) {
                    jet.retire(server)?;
                    return Ok(Stands::OnHorizon);
                }
                jet.remove(server)?;
                Ok(Stands::Out)
            }
            (Change::Expect(_), Stands::Out) => {
                jet.add_horizon(new, now)?;
                Ok(Stands::OnHorizon)
            }
            (Change::Unexpect(_), Stands::OnHorizon) => {
                jet.remove_horizon(server)?;
                Ok(Stands::Out)
            }
            (Change::Reweight(_, weight), Stands::Working) => {
                jet.reweight_unforeseen(server, weight, now)?;
                Ok(stood)
            }
            (Change::Reweight(..), Stands::OnHorizon) => {
                jet.remove_horizon(server)?;
                jet.add_horizon(new, now)?;
                Ok(stood)
            }
            _ => Ok(stood),
        })
    }
}

impl Face for JetFace {
    fn hash_key(&self, _: u16) -> &HashKey {
        each!(&self.jets[0], jet => Decide::<u64>::hash_key(jet.table()))
    }

    fn decide<M: Memory<u64>>(
        &self,
        balancer: u16,
        question: &Question<u64>,
        memory: &mut M,
    ) -> Decision {
        each!(&self.jets[usize::from(balancer)], jet => jet.table().decide(question, memory))
    }

    fn rows(&self) -> usize {
        match &self.jets[0] {
            Variant::Table(jet) => jet.placement().rows().len(),
            _ => 1,
        }
    }

    fn row_of(&self, hash: u64) -> u32 {
        match &self.jets[0] {
            Variant::Table(jet) => jet.placement().row_of(hash) as u32,
            _ => 0,
        }
    }

    /// Where a row points and whether it is unsafe is the same for all balancers. What a pass
    /// through a connection table drops needs no entry.
    fn change(
        &mut self,
        changes: &[Change],
        _: &mut [Remembered],
        traffic: &mut Traffic,
        effects: &mut Effects,
    ) {
        let before = self.jets[0].rows();
        let now = Duration::from_secs_f64(traffic.now());
        for &change in changes {
            self.members.follow(change);
            let (name, server) = (Members::name(change.server()), change.server());
            let new =
                Candidate { name: &name, backend: server, weight: self.members.weight(server) };
            let stood = self.stands[usize::from(server)];
            for jet in &mut self.jets {
                match jet.follow(change, changes, stood, new, now) {
                    Ok(stands) => self.stands[usize::from(server)] = stands,
                    // The engine's pool and this one would differ.
                    Err(error) => debug_assert!(false, "{change:?}: {error}"),
                }
            }
        }
        match before.zip(self.jets[0].rows()) {
            Some((before, now)) => {
                let differ = before.iter().zip(&now).enumerate().filter(|(_, (a, b))| a != b);
                effects.rows.extend(differ.map(|(row, _)| row as u32));
            }
            None => effects.rows.push(0),
        }
    }

    fn gauges(&self, memories: &[Remembered]) -> Gauges {
        let tracked = memories.iter().map(Remembered::entries).sum();
        let asking = |jet: &Variant| match jet {
            Variant::Table(jet) => jet.guide().asking(),
            _ => 1.0,
        };
        Gauges {
            tracked,
            marked_rows: self.jets.iter().map(asking).sum::<f64>() / self.jets.len() as f64,
            state_bytes: tracked as f64 * ENTRY_BYTES,
            evictions: memories.iter().map(Remembered::evictions).sum(),
            ..Gauges::default()
        }
    }
}
