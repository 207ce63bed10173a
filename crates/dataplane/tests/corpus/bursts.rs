//! Whole bursts through the burst plane, beside the pipeline that takes one frame at a time.

use super::compare::bytes_differ;
use super::frames::{fill_allowances, largest_answer};
use super::{LONG_AGO, World, ports, take};
use weir_plane::forward::mapping::MAPPING_TICK_SHIFT;
use weir_plane::{Outcome, Verdict};
use weir_plane_burst::Fate;
use weir_steering::Event;

impl World<'_> {
    /// Frames as one burst through the burst plane, over rings of DPDK where the tests are built with it, and one
    /// after the other through the pipeline: what became of each.
    ///
    /// # Errors
    /// How they differ.
    #[allow(dead_code, reason = "the fuzzer's")]
    pub fn compare_burst(&mut self, frames: &[Vec<u8>]) -> Result<Vec<Outcome>, String> {
        // More than a burst has frames may be sent at once.
        fill_allowances(&mut self.oracle);
        fill_allowances(self.burst.soft());
        let done = ports::through_as_one(&mut self.burst, frames);
        let mut outcomes = Vec::new();
        for (frame, ports::Done { fate, device, found }) in frames.iter().zip(done) {
            let mut written = frame.clone();
            let verdict = take(&mut self.oracle, self.setup, &mut written);
            let wanted = match verdict {
                Verdict::Forward { backend, .. } => {
                    let hop = self.oracle.backends[&backend].hop.expect("each has one");
                    written[..6].copy_from_slice(&hop.next.mac);
                    written[6..12].copy_from_slice(&hop.next.source_mac);
                    (Fate::Send, hop.ifindex)
                }
                Verdict::Tell { .. } | Verdict::Echo | Verdict::Reset => (Fate::Send, 0),
                Verdict::Return { .. } => (Fate::Route, 0),
                Verdict::Answer(_) | Verdict::Pass(_) => (Fate::Pass, 0),
                Verdict::Drop(_) => (Fate::Drop, 0),
            };
            if (fate, device) != wanted {
                return Err(format!(
                    "burst: {fate:?} by {device}, pipeline: {verdict:?}: {frame:02x?}"
                ));
            }
            if fate != Fate::Drop
                && let Some(differs) = bytes_differ(&found, &written)
            {
                return Err(format!("burst: {differs}; {verdict:?}: {frame:02x?}"));
            }
            if largest_answer(&verdict, frame).is_some_and(|most| found.len() > most) {
                let goes = found.len();
                return Err(format!("burst: {goes} bytes for {verdict:?}: {frame:02x?}"));
            }
            outcomes.push(Outcome::from(verdict));
        }
        let (found, wanted) = (self.burst.counters(), &self.oracle.counters);
        if found != wanted {
            return Err(format!("burst counts {found:?}, pipeline {wanted:?}"));
        }
        Ok(outcomes)
    }

    /// What both have left behind must be the same; takes the reports of flows.
    ///
    /// # Errors
    /// Which is not.
    #[allow(dead_code, reason = "the fuzzer's")]
    pub fn compare_memory(&mut self) -> Result<(), String> {
        let (found, wanted) = (&mut self.burst.soft().memory, &mut self.oracle.memory);
        // The packets of one service go together, so only those of one flow are in order.
        let by_flow = |events: &mut Vec<Event>| {
            let mut events = std::mem::take(events);
            events.sort_by_key(|event| event.state);
            events
        };
        let same = [
            ("reports", by_flow(&mut found.events) == by_flow(&mut wanted.events)),
            ("connections", found.connections == wanted.connections),
            ("pending flows", found.pending == wanted.pending),
            ("marks", found.marks == wanted.marks && found.strangers == wanted.strangers),
            ("datagrams", found.seen == wanted.seen),
            ("fragments", found.fragments == wanted.fragments),
        ];
        match same.iter().find(|(_, same)| !same) {
            Some((what, _)) => Err(format!("{what} differ")),
            None => Ok(()),
        }
    }

    /// So much time passes for the planes in memory, in ticks of mappings, and buckets of new flows gain what so
    /// many nanoseconds give.
    #[allow(dead_code, reason = "the fuzzer's")]
    pub fn pass_time_in_memory(&mut self, ticks: u32, buckets: u64) {
        for soft in [&mut self.oracle, self.burst.soft()] {
            soft.nanoseconds += u64::from(ticks) << MAPPING_TICK_SHIFT;
            soft.memory.fragment_clock += LONG_AGO;
            soft.buckets.get_mut().age(buckets);
        }
    }
}
