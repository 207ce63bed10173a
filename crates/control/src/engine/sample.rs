//! What rates are drawn from: a few numbers of each service, read often. Far less than a status.

use super::{Engine, EngineError, PlaneResult};
use weir_plane::Plane;

/// Counters of a service and of all together at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Packets that were forwarded.
    pub packets: u64,
    /// Bytes of these packets, from the IP header on.
    pub bytes: u64,
    /// Flows that started.
    pub flows: u64,
    /// Connections that are known.
    pub states: u64,
}

/// What was counted until a moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// By service, in the order of their names.
    pub services: Vec<(String, Counted)>,
    /// Packets that were dropped.
    pub dropped: u64,
}

impl<P: Plane> Engine<P> {
    pub(super) fn sample(&self) -> Result<Sample, EngineError> {
        let lanes = self.plane.lanes().plane()?;
        let outcomes = self.plane.outcomes().plane()?;
        let services = self.services.iter().map(|(name, service)| {
            let states = service.builder.states() as u64;
            let mut counted = Counted { states, ..Counted::default() };
            for member in &service.pool {
                let lane = lanes.get(member.id.index()).copied().unwrap_or_default();
                counted.packets += lane.packets;
                counted.bytes += lane.bytes;
                counted.flows += lane.flows;
            }
            (name.clone(), counted)
        });
        Ok(Sample {
            services: services.collect(),
            dropped: outcomes.values().map(|(_, dropped)| dropped).sum(),
        })
    }
}
