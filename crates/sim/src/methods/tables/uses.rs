//! When entries were used last.

use super::Tracked;
use crate::flow::Traffic;
use std::collections::HashMap;

/// Of the flows in a table, those whose packets do not, or did not always, come there. All others
/// are asked of [`Traffic`].
#[derive(Default, Debug)]
pub(super) struct Uses {
    known: HashMap<u64, Use>,
}

#[derive(Clone, Copy, Debug)]
struct Use {
    /// The entry was used at this time or, from `since` on, later.
    last: f64,
    /// Since when the flow's packets come here; infinite if they do not now.
    since: f64,
    ended: bool,
}

impl Uses {
    /// When the entry of a flow was used last.
    pub fn last(&self, flow: Tracked, traffic: &mut Traffic) -> f64 {
        match self.known.get(&flow.id) {
            None => traffic.last_packet(flow.slot),
            Some(known) if known.since == f64::INFINITY => known.last,
            Some(known) => match traffic.last_packet(flow.slot) {
                last if last >= known.since => last.max(known.last),
                _ => known.last,
            },
        }
    }

    /// Whether the flow of an entry lives.
    pub fn lives(&self, flow: Tracked) -> bool {
        !self.known.get(&flow.id).is_some_and(|known| known.ended)
    }

    /// The flow's packets do not come here any more; it may have ended.
    pub fn stops(&mut self, flow: Tracked, ended: bool, traffic: &mut Traffic) {
        let last = self.last(flow, traffic);
        self.known.insert(flow.id, Use { last, since: f64::INFINITY, ended });
    }

    /// The flow's packets come here again.
    pub fn comes(&mut self, flow: Tracked, now: f64) {
        if let Some(known) = self.known.get_mut(&flow.id) {
            known.since = now;
        }
    }

    /// The entry is gone.
    pub fn forget(&mut self, id: u64) {
        self.known.remove(&id);
    }
}
