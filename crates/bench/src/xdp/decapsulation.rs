//! What it costs a backend to take packets out of tunnels (docs/agent.md).

use super::{Bench, Round, Way, name_of};
use crate::{Result, Spread};
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use weir_agent::ready::{Segments, Wanted, decapsulation};
use weir_dataplane::bench::{Method, Subject, TUNNEL_END};
use weir_plane::forward::Encapsulation;
use weir_plane::forward::tunnel::{FOU_PORT, GUE_PORT};

/// One kind of tunnels over IPv4, at one number of flows.
#[derive(Clone, Debug, Serialize)]
pub struct DecapsulationRow {
    /// What packets were taken out of.
    pub tunnel: &'static str,
    /// Flows that packets are drawn from.
    pub flows: u32,
    /// Whether a thread on another core walked through a buffer larger than the last-level cache.
    pub neighbour: bool,
    /// The reflector's time with the same frames, generator and veth included.
    pub floor_ns: f64,
    /// Median of the differences to it in the same round.
    pub above_floor_ns: f64,
    /// Median of the rounds' ratios of that to the reflector's own time.
    pub share_of_floor: f64,
    /// Quartiles of that ratio over the rounds.
    pub share_spread: Spread,
    /// Least share of the packets that came back; under 1, something was dropped.
    pub returned: f64,
}

impl fmt::Display for DecapsulationRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tunnel, flows, floor_ns, above_floor_ns, share_of_floor, .. } = self;
        let beside = if self.neighbour { " beside a neighbour" } else { "" };
        let Spread { low, high, .. } = self.share_spread;
        write!(
            f,
            "{flows:>8} flows{beside}  out of {tunnel:<6}{above_floor_ns:>6.1} ns above the reflector \
             (floor {floor_ns:.0}), {share_of_floor:.3} of its time ({low:.3}..{high:.3})"
        )
    }
}

/// The agent's program, for tunnels of every kind, sending back what it takes out.
pub(super) fn program() -> Result<OwnedFd> {
    let kinds = [
        Encapsulation::Ipip,
        Encapsulation::Gre,
        Encapsulation::Fou(FOU_PORT),
        Encapsulation::Gue(GUE_PORT),
    ];
    let wanted = Wanted {
        interfaces: Vec::new(),
        services: vec![Method::Concury.vip().into()],
        tunnels: kinds.into(),
        sources: Vec::new(),
        segments: Segments::AsTheyAre,
    };
    Ok(decapsulation(&wanted, &[IpAddr::V4(TUNNEL_END)], true)?)
}

impl Bench<'_> {
    pub(super) fn decapsulation_rows(
        &self,
        neighbour: bool,
        samples: &[Round],
    ) -> Vec<DecapsulationRow> {
        let all = self.ways.iter().enumerate().filter_map(|(which, way)| match way {
            Way::Bench(Subject::Decapsulated(tunnel)) => Some((which, *tunnel)),
            _ => None,
        });
        let row = |(which, tunnel): (usize, Encapsulation)| {
            let floor = self.at(Way::Bench(Subject::InTunnel(tunnel))).unwrap_or(which);
            let each = |of: &dyn Fn(&Round) -> f64| Spread::of(samples.iter().map(of));
            let above = |row: &Round| row[which].nanoseconds - row[floor].nanoseconds;
            let share_spread = each(&|row| above(row) / row[floor].nanoseconds);
            DecapsulationRow {
                tunnel: name_of(tunnel),
                flows: self.flows,
                neighbour,
                floor_ns: each(&|row| row[floor].nanoseconds).median,
                above_floor_ns: each(&above).median,
                share_of_floor: share_spread.median,
                share_spread,
                returned: each(&|row| row[which].returned).median,
            }
        };
        all.map(row).collect()
    }
}
