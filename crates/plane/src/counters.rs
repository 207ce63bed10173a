//! What a plane counts.

use crate::pipeline::Verdict;
use std::collections::BTreeMap;
use weir_steering::BackendId;
use weir_wire::Reason;

/// Counters of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneCounters {
    /// Number of packets forwarded to it.
    pub packets: u64,
    /// Bytes of these packets, from the IP header on.
    pub bytes: u64,
    /// Number of flows that started on it.
    pub flows: u64,
}

/// What became of the frames that came by one interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InterfaceCounters {
    /// Number of frames that were sent to backends, or as their answers to clients.
    pub forwarded: u64,
    /// Frames left to the kernel, or to a program behind this one.
    pub passed: u64,
    /// Frames dropped, or answered by the plane itself.
    pub dropped: u64,
}

/// Answers of backends that were translated and sent on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Returned {
    /// Number of packets.
    pub packets: u64,
    /// Bytes of these packets, from the IP header on.
    pub bytes: u64,
}

/// What became of every packet since the plane began.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// What went to each backend, by its number.
    pub lanes: BTreeMap<BackendId, LaneCounters>,
    /// What came back from backends and was translated.
    pub returned: Returned,
    /// Packets left to the kernel, by reason.
    pub passed: BTreeMap<Reason, u64>,
    /// Packets dropped, by reason.
    pub dropped: BTreeMap<Reason, u64>,
}

impl Counters {
    /// A packet that [`count`](Self::count) has taken for forwarded goes nowhere: its backend's next hop is
    /// not known.
    pub fn nowhere(&mut self, backend: BackendId, new: bool, bytes: u32) {
        if let Some(lane) = self.lanes.get_mut(&backend) {
            lane.packets -= 1;
            lane.bytes -= u64::from(bytes);
            lane.flows -= u64::from(new);
        }
        *self.dropped.entry(Reason::NoNextHop).or_default() += 1;
    }

    /// Counts a packet by what was decided about it.
    pub fn count(&mut self, verdict: &Verdict) {
        match *verdict {
            Verdict::Forward { backend, new, bytes, .. } => {
                let lane = self.lanes.entry(backend).or_default();
                lane.packets += 1;
                lane.bytes += u64::from(bytes);
                lane.flows += u64::from(new);
            }
            Verdict::Return { bytes, .. } => {
                self.returned.packets += 1;
                self.returned.bytes += u64::from(bytes);
            }
            Verdict::Answer(_) => *self.passed.entry(Reason::Answer).or_default() += 1,
            Verdict::Echo => *self.dropped.entry(Reason::EchoAnswered).or_default() += 1,
            Verdict::Reset => *self.dropped.entry(Reason::ResetSent).or_default() += 1,
            Verdict::Pass(reason) => *self.passed.entry(reason).or_default() += 1,
            Verdict::Drop(reason) | Verdict::Tell { reason, .. } => {
                *self.dropped.entry(reason).or_default() += 1
            }
        }
    }
}
