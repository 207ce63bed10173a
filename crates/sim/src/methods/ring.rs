//! Consistent hashing without tracking.

use super::mix;
use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges, Method, NOBODY, Probe};

/// Points of every server on a circle; a flow goes to the next point.
///
/// A ring of the simulator's own, and not `weir_placement::Ring`: a change must name the arcs that
/// changed hands, so that only the flows on them are looked at again.
#[derive(Debug)]
pub struct Ring {
    /// Ascending.
    points: Vec<(u64, u16)>,
    copies: u32,
    weights: Vec<u32>,
}

/// Rows are the first bits of a hash.
const ROW_BITS: u32 = 16;

impl Ring {
    /// An empty ring on which a server has `copies` points per unit of weight (30 in Cheetah's
    /// evaluation).
    pub fn new(copies: u32, weights: &[u32]) -> Self {
        Self { points: Vec::new(), copies, weights: weights.to_vec() }
    }

    fn pick(&self, hash: u64) -> Option<u16> {
        let next = self.points.partition_point(|point| point.0 < hash);
        self.points.get(next).or(self.points.first()).map(|point| point.1)
    }

    fn points_of(&self, server: u16) -> impl Iterator<Item = (u64, u16)> + use<> {
        let weight = self.weights.get(usize::from(server)).copied().unwrap_or(1);
        let copies = u64::from(self.copies) * u64::from(weight);
        (0..copies).map(move |copy| (mix(mix(u64::from(server)) ^ copy << 20), server))
    }

    /// The points beyond the smaller weight come or go.
    fn reweight(&mut self, server: u16, weight: u32, effects: &mut Effects) {
        let serves = self.points.iter().any(|point| point.1 == server);
        let old: Vec<_> = self.points_of(server).collect();
        if let Some(known) = self.weights.get_mut(usize::from(server)) {
            *known = weight;
        }
        let new: Vec<_> = self.points_of(server).collect();
        if !serves {
            return;
        }
        if let Some(more) = new.get(old.len()..) {
            self.points.extend(more);
            self.points.sort_unstable();
            more.iter().for_each(|point| self.touch(point.0, effects));
        }
        if let Some(fewer) = old.get(new.len()..) {
            self.points.retain(|point| point.1 != server || !fewer.contains(point));
            fewer.iter().for_each(|point| self.touch(point.0, effects));
        }
    }

    /// Names the rows of the arc that ends in `point`.
    fn touch(&self, point: u64, effects: &mut Effects) {
        let place = self.points.partition_point(|other| other.0 < point);
        let row = |hash: u64| (hash >> (64 - ROW_BITS)) as u32;
        let last = row(u64::MAX);
        match place.checked_sub(1) {
            Some(before) => effects.rows.extend(row(self.points[before].0)..=row(point)),
            None => {
                let wraps = self.points.last().map_or(0, |point| row(point.0));
                effects.rows.extend(0..=row(point));
                effects.rows.extend(wraps..=last);
            }
        }
    }
}

impl Method for Ring {
    fn rows(&self) -> usize {
        1 << ROW_BITS
    }

    fn row_of(&self, hash: u64) -> u32 {
        (hash >> (64 - ROW_BITS)) as u32
    }

    fn first(&mut self, flow: FlowRef, _: &mut Traffic, _: &mut Effects) -> Option<u16> {
        self.pick(flow.hash)
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        Probe::quiet(self.pick(flow.hash).unwrap_or(NOBODY))
    }

    fn change(&mut self, changes: &[Change], _: &mut Traffic, effects: &mut Effects) {
        for &change in changes {
            match change {
                Change::Add(server) => {
                    let new: Vec<_> = self.points_of(server).collect();
                    self.points.extend(&new);
                    self.points.sort_unstable();
                    new.iter().for_each(|point| self.touch(point.0, effects));
                }
                Change::Remove(server) | Change::Drain(server) => {
                    let old: Vec<_> = self.points_of(server).collect();
                    self.points.retain(|point| point.1 != server);
                    old.iter().for_each(|point| self.touch(point.0, effects));
                }
                Change::Reweight(server, weight) => self.reweight(server, weight, effects),
                Change::Expect(_) | Change::Unexpect(_) => {}
            }
        }
    }

    fn gauges(&self, _: &Traffic) -> Gauges {
        Gauges::default()
    }
}
