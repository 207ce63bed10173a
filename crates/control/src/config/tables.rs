//! What the published tables of all services may take, against the memory that they share.

use super::{Affinity, Limits, Method, Protocol, validate};
use weir_steering::{ELEMENT_BYTES, HEADER_BYTES, MethodId};

/// Limits that say how many states a service may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub states_per_service: u32,
    pub half_open_flows: u32,
    pub event_ring_bytes: u32,
    pub unreported_flows: u32,
}

/// No report takes less of the ring.
const REPORT_BYTES: u32 = 32;
/// Reports that are taken up at once at most.
const MOST_REPORTS: u64 = 1 << 19;

impl Bounds {
    /// States that a service may have in all: only where a handshake can be told are there half-open ones
    /// besides. Those have a budget of their own, and what is pushed out of it is forgotten only when the
    /// reports of a turn have been taken up.
    pub fn most_states(&self, protocol: Protocol, affinity: Affinity) -> u64 {
        let states = u64::from(self.states_per_service);
        if protocol == Protocol::Udp || affinity != Affinity::Flow {
            return states;
        }
        let ring = u64::from(self.event_ring_bytes / REPORT_BYTES);
        let reports = (ring + u64::from(self.unreported_flows)).min(MOST_REPORTS);
        states + u64::from(self.half_open_flows) + reports
    }
}

impl From<&Limits> for Bounds {
    fn from(limits: &Limits) -> Self {
        Self {
            states_per_service: limits.states_per_service,
            half_open_flows: limits.half_open_flows,
            event_ring_bytes: limits.event_ring_bytes,
            unreported_flows: limits.unreported_flows,
        }
    }
}

/// Bytes of a published table with so many states at most. A table of residue holds only connections that
/// live elsewhere than their rows say: a quarter of all here.
fn most_bytes(method: &Method, states: u64) -> u64 {
    let held = if method.id() == MethodId::Residue { states.div_ceil(4) } else { states };
    let held = usize::try_from(held).unwrap_or(usize::MAX);
    method.settings().most_table_bytes(held).map_or(0, |bytes| bytes as u64)
}

/// Bytes of a first table.
fn first_bytes(method: &Method) -> u64 {
    match method.id() {
        // Few of the numbers that cookies can hide.
        MethodId::Cheetah | MethodId::CheetahStateful => (HEADER_BYTES + 2 * ELEMENT_BYTES) as u64,
        _ => most_bytes(method, 0),
    }
}

/// Services whose tables are alike.
#[derive(Debug)]
struct Kind<'a> {
    method: &'a Method,
    protocol: Protocol,
    affinity: Affinity,
    /// How many there are.
    services: u64,
    /// The place of the first one in the file.
    first: usize,
}

/// The tables of all services of a file.
#[derive(Debug)]
pub(super) struct Tables<'a>(Vec<Kind<'a>>);

/// What they need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Need {
    /// Bytes in all.
    pub bytes: u64,
    /// The place in the file of a service with the largest table.
    pub service: usize,
    /// States that it may have.
    pub states: u64,
    /// Bytes of its table.
    pub table: u64,
}

impl<'a> Tables<'a> {
    pub fn of(services: &'a [validate::Service]) -> Self {
        let mut kinds: Vec<Kind<'a>> = Vec::new();
        for (first, service) in services.iter().enumerate() {
            let validate::Service { method, protocol, affinity, .. } = service;
            let (protocol, affinity) = (*protocol, affinity.unwrap_or(Affinity::Flow));
            let is = |kind: &&mut Kind<'_>| {
                (kind.method, kind.protocol, kind.affinity) == (method, protocol, affinity)
            };
            match kinds.iter_mut().find(is) {
                Some(kind) => kind.services += 1,
                None => kinds.push(Kind { method, protocol, affinity, services: 1, first }),
            }
        }
        Self(kinds)
    }

    /// What they need, so that the pool of any service can be changed when one of them has all the states that
    /// it may have: its table and the next one beside it, and the first table of each other service. `None`
    /// if there is no service.
    pub fn need(&self, bounds: &Bounds) -> Option<Need> {
        let all: u64 = self.0.iter().map(|kind| kind.services * first_bytes(kind.method)).sum();
        let needs = self.0.iter().map(|kind| {
            let states = bounds.most_states(kind.protocol, kind.affinity);
            let table = most_bytes(kind.method, states);
            let others = all - first_bytes(kind.method);
            Need { bytes: 2 * table + others, service: kind.first, states, table }
        });
        needs.max_by_key(|need| need.bytes)
    }
}

/// The largest number up to `most` that is fit, where all below a fit one are, too; `None` if not even 1 is.
pub(super) fn largest(most: u32, is_fit: impl Fn(u32) -> bool) -> Option<u32> {
    if is_fit(most) {
        return Some(most);
    }
    let (mut fit, mut beyond) = (0, most);
    while beyond - fit > 1 {
        let middle = fit + (beyond - fit) / 2;
        if is_fit(middle) { fit = middle } else { beyond = middle }
    }
    (fit > 0).then_some(fit)
}
