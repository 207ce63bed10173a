//! Which flows of a service packets mark, and which they are told to live.

use super::SWEEP_EVERY;
use super::service::{MANY_PINS, ServiceRuntime};
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_hash::{HashKey, Key};
use weir_plane::ArmedFlows;
use weir_steering::{
    BackendId, Flags, Image, Phase, Role, SLOT_RESERVED, SYN_SECONDS, ServiceState, rest_for,
};

impl ServiceRuntime {
    /// Hash key of the published table.
    pub fn hash_key(&self) -> Option<HashKey> {
        self.builder.published().map(|image| image.header().key)
    }

    /// Whether packets are marked by a hash under which no flow is armed.
    pub fn is_rekeyed(&self) -> bool {
        self.marked_under.is_some() && self.hash_key() != self.marked_under
    }

    /// The keys under which packets have marked flows in this period of activity.
    pub fn keys_of_marks(&self) -> Vec<HashKey> {
        let mut keys: Vec<HashKey> = self.marked_under.into_iter().collect();
        for key in self.marked_since.iter().copied().chain(self.hash_key()) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// Another period of activity begins: the hashes of the flows that may be watched in it to `open`
    /// and, of those of which only the first packet is known, to `opening`. Those of backends that take
    /// no new flow are armed in any case, before all others: so it is known that they live.
    pub fn arm(&mut self, now: u32, [kept, open, opening]: &mut [Vec<u64>; 3]) {
        let idle = u32::try_from(self.configured.idle_timeout.as_secs()).unwrap_or(u32::MAX);
        let rest = rest_for(idle, SWEEP_EVERY.as_secs() as u32);
        // Without marks nobody need look which flows to mark.
        self.builder.rest(if self.marks_under().is_some() { rest } else { 0 });
        let key = self.hash_key();
        self.read_under = self.keys_of_marks();
        self.marked_since.clear();
        self.marked_under = key;
        // Also those that the published table has for such, should the next one not have come about.
        self.armed_all_of = self.not_serving();
        if self.builder.states() > 0 {
            self.armed_all_of.extend(self.reserved());
        }
        self.begun_since = 0;
        let Some(key) = self.marks_under() else { return };
        let reserved = &self.armed_all_of;
        self.builder.each_due(now, &mut |state, known| match known.phase {
            _ if reserved.contains(&known.backend) => {}
            Phase::Open => open.push(state.hash(&key)),
            Phase::Opening => opening.push(state.hash(&key)),
            // A SYN may well begin another connection with the same ports.
            Phase::Closing => {}
        });
        if !reserved.is_empty() {
            self.builder.each_state(&mut |state, known| {
                if known.phase != Phase::Closing && reserved.contains(&known.backend) {
                    kept.push(state.hash(&key));
                }
            });
        }
    }

    /// The connections of backends that take no new ones whose SYN may be repeated, and that packets do not know:
    /// there was no room for all, or they have begun with the ports of one that ended.
    pub fn young_unarmed(&self, now: u32, armed: &ArmedFlows) -> Vec<(ServiceState, BackendId)> {
        // Of ten thousand services few have any.
        if self.builder.states() == 0 {
            return Vec::new();
        }
        let Some(key) = self.marks_under().filter(|_| !self.is_by_client()) else {
            return Vec::new();
        };
        let mut kept = self.reserved();
        // A SYN to one that is down is better placed elsewhere.
        for member in self.members().iter().filter(|member| member.role == Role::Down) {
            kept.remove(&member.backend);
        }
        let mut found = Vec::new();
        if !kept.is_empty() {
            self.builder.each_state(&mut |state, known| {
                let young = now.saturating_sub(known.born) < SYN_SECONDS;
                let lives = known.phase != Phase::Closing && kept.contains(&known.backend);
                if young && lives && !(armed.has)(state.hash(&key)) {
                    let state = ServiceState { service: self.number, key: *state };
                    found.push((state, known.backend));
                }
            });
        }
        found
    }

    /// The hashes of the flows whose packets are to be noticed, under the key that packets follow.
    pub fn due(&self, now: u32, due: &mut Vec<u64>) {
        if let Some(key) = self.marks_under() {
            self.builder.each_due(now, &mut |state, _| due.push(state.hash(&key)));
        }
    }

    /// The hash key under which packets mark their flows, if they do.
    pub fn marks_under(&self) -> Option<HashKey> {
        let marks = |image: &Arc<Image>| image.header().flags().has(Flags::MARK);
        self.hash_key().filter(|_| self.builder.published().is_some_and(marks))
    }

    /// The backends that take no new flow by the published table, and keep some.
    pub fn reserved(&self) -> BTreeSet<BackendId> {
        let slots = self.builder.published().map_or(&[][..], |image| image.slots());
        let reserved = slots.iter().filter(|slot| **slot & SLOT_RESERVED != 0);
        reserved.filter_map(|slot| BackendId::of_slot(*slot)).collect()
    }

    /// The backends that take no new flow.
    fn not_serving(&self) -> BTreeSet<BackendId> {
        let members = self.members().into_iter().filter(|member| member.effective_weight() == 0);
        members.map(|member| member.backend).collect()
    }

    /// Whether a backend takes no new flow any more whose flows were not armed since.
    pub fn is_unarmed(&self) -> bool {
        self.marks_under().is_some() && !self.not_serving().is_subset(&self.armed_all_of)
    }

    /// Whether its next table keeps many flows at backends that take no new ones, which are not armed.
    pub fn is_better_armed(&self) -> bool {
        let keeps = self.marks_under().is_some() && !self.is_by_client();
        let members = if keeps { self.members() } else { Vec::new() };
        let held = |id| self.states_of(id).unwrap_or(0);
        let drained = members.iter().filter(|member| member.role != Role::Down);
        let unarmed = drained.filter(|member| member.effective_weight() == 0).map(|member| {
            let held = held(member.backend);
            if self.armed_all_of.contains(&member.backend) {
                held.min(self.begun_since)
            } else {
                held
            }
        });
        unarmed.sum::<usize>() > MANY_PINS
    }
}
