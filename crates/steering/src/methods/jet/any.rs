//! Placement and connection table chosen at run time.

use super::{ByBackend, Jet, JetError, JetTable, Swept, check_number};
use crate::{AnyTable, ConnectionTable, Steer};
use std::time::Duration;
use weir_hash::{HashKey, Key};
use weir_placement::{Anchor, Candidate, Horizon, Hrw, HrwTable, PoolError, Ring};

/// A placement as a person names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlacementKind {
    /// A score per backend and packet.
    Hrw,
    /// Points on a circle: so many for each unit of weight.
    Ring {
        /// Points for each unit of weight; 100 to 300 are usual.
        copies: u32,
    },
    /// HRW worked out for each row, with the marks in the rows.
    Table {
        /// Rows of the table; at least 100 per backend.
        rows: u32,
    },
    /// AnchorHash (JET, section 3.5).
    Anchor {
        /// Buckets: the largest sum of weights, of working set and horizon together.
        capacity: u32,
    },
    /// Maglev hashing, which JET refuses: [`JetError::MaglevFlips`].
    Maglev,
}

/// How a [`AnyJet`] is made up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JetConfig {
    /// Where new flows go.
    pub placement: PlacementKind,
    /// How many flows can be tracked; `None`: as many as there are.
    pub connections: Option<usize>,
    /// How long an announced backend must wait: longer than any flow is silent.
    pub warm_up: Duration,
    /// The key under which flows are hashed.
    pub key: HashKey,
}

/// [`Jet`] over what was chosen at run time. The methods are those of [`Jet`].
#[derive(Clone, Debug)]
pub enum AnyJet<K> {
    /// JET over [`Hrw`].
    Hrw(Jet<ByBackend<Hrw>, AnyTable<K>>),
    /// JET over [`Ring`].
    Ring(Jet<ByBackend<Ring>, AnyTable<K>>),
    /// JET over [`HrwTable`], with the marks in its rows.
    Table(JetTable<AnyTable<K>>),
    /// JET over [`Anchor`].
    Anchor(Box<Jet<ByBackend<Anchor>, AnyTable<K>>>),
}

fn filled<P: Horizon>(
    mut placement: P,
    working: &[Candidate<'_>],
    horizon: &[Candidate<'_>],
) -> Result<P, PoolError> {
    working.iter().try_for_each(|&candidate| placement.add(candidate))?;
    horizon.iter().try_for_each(|&candidate| placement.add_horizon(candidate))?;
    Ok(placement)
}

macro_rules! each {
    ($self:expr, $jet:ident => $call:expr) => {
        match $self {
            AnyJet::Hrw($jet) => $call,
            AnyJet::Ring($jet) => $call,
            AnyJet::Table($jet) => $call,
            AnyJet::Anchor($jet) => $call,
        }
    };
}

impl<K: Key + Default> AnyJet<K> {
    /// JET with a first pool.
    ///
    /// # Errors
    ///
    /// [`JetError::MaglevFlips`], [`JetError::BackendNumber`], [`JetError::Pool`].
    pub fn new(
        config: &JetConfig,
        working: &[Candidate<'_>],
        horizon: &[Candidate<'_>],
    ) -> Result<Self, JetError> {
        working.iter().chain(horizon).try_for_each(check_number)?;
        let table = AnyTable::new(config.key, config.connections);
        let warm_up = config.warm_up;
        Ok(match config.placement {
            PlacementKind::Hrw => {
                let placement = filled(Hrw::new(), working, horizon)?;
                Self::Hrw(Jet::new(placement, table, warm_up))
            }
            PlacementKind::Ring { copies } => {
                let placement = filled(Ring::new(copies)?, working, horizon)?;
                Self::Ring(Jet::new(placement, table, warm_up))
            }
            PlacementKind::Table { rows } => {
                let placement = filled(HrwTable::new(rows)?, working, horizon)?;
                Self::Table(JetTable::by_row(placement, table, warm_up)?)
            }
            PlacementKind::Anchor { capacity } => {
                let placement = filled(Anchor::new(capacity)?, working, horizon)?;
                Self::Anchor(Box::new(Jet::new(placement, table, warm_up)))
            }
            PlacementKind::Maglev => return Err(JetError::MaglevFlips),
        })
    }

    /// The connection table with the tracked flows.
    pub fn connections(&self) -> &AnyTable<K> {
        each!(self, jet => jet.connections())
    }

    /// See [`Jet::add_horizon`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn add_horizon(&mut self, new: Candidate<'_>, now: Duration) -> Result<(), JetError> {
        each!(self, jet => jet.add_horizon(new, now))
    }

    /// See [`Jet::remove_horizon`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn remove_horizon(&mut self, backend: u16) -> Result<Swept, JetError> {
        each!(self, jet => jet.remove_horizon(backend))
    }

    /// See [`Jet::admit`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn admit(&mut self, backend: u16, now: Duration) -> Result<(), JetError> {
        each!(self, jet => jet.admit(backend, now))
    }

    /// See [`Jet::retire`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn retire(&mut self, backend: u16) -> Result<Swept, JetError> {
        each!(self, jet => jet.retire(backend))
    }

    /// See [`Jet::remove`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn remove(&mut self, backend: u16) -> Result<Swept, JetError> {
        each!(self, jet => jet.remove(backend))
    }

    /// See [`Jet::add_unforeseen`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn add_unforeseen(&mut self, new: Candidate<'_>, now: Duration) -> Result<(), JetError> {
        each!(self, jet => jet.add_unforeseen(new, now))
    }

    /// See [`Jet::reweight_unforeseen`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn reweight_unforeseen(
        &mut self,
        backend: u16,
        weight: u32,
        now: Duration,
    ) -> Result<Swept, JetError> {
        each!(self, jet => jet.reweight_unforeseen(backend, weight, now))
    }

    /// Goes through the connection table after a change; see [`Jet::sweep`].
    pub fn sweep(&mut self) -> Swept {
        each!(self, jet => jet.sweep())
    }

    /// Steers the first packet of a flow to the less loaded of two backends; see [`Jet::steer_first`].
    pub fn steer_first<L: PartialOrd>(&mut self, flow: &K, load: impl FnMut(u16) -> L) -> u16 {
        each!(self, jet => jet.steer_first(flow, load))
    }

    /// Number of flows that are tracked.
    pub fn tracked(&self) -> usize {
        self.connections().len()
    }
}

impl<K: Key + Default> Steer<K> for AnyJet<K> {
    fn steer(&mut self, flow: &K) -> u16 {
        each!(self, jet => jet.steer(flow))
    }

    fn steer_batch(&mut self, flows: &[K], out: &mut [u16]) {
        each!(self, jet => jet.steer_batch(flows, out))
    }

    fn end(&mut self, flow: &K) {
        each!(self, jet => jet.end(flow))
    }

    fn bytes(&self) -> usize {
        each!(self, jet => jet.bytes())
    }
}
