//! A balancer that is cut off from the store: when it keeps flows from starting, and when it goes on alone.
//!
//! Who has said *freeze* or more in a step has given its word that no flow starts here until the step is over. The
//! others may have gone on by that word, and it cannot hear of it. They wait for its lease before they let flows start
//! by tables that it may not have ([`lead`](super::lead)). So it keeps its word until its lease has run out, as far as
//! it can tell; and until it hears from the store, where it is not announced meanwhile.

use super::{ALONE_PATIENCE, Commit, Stepping};
use crate::engine::Engine;
use crate::engine::fleet::Fleet;
use crate::engine::service::ServiceRuntime;
use std::collections::{BTreeSet, HashSet};
use std::time::Instant;
use tracing::warn;
use weir_fleet::{Ack, Apart, Ask, Did, LEASE, Silence, Stage};
use weir_plane::Plane;
use weir_steering::Flags;

impl Stepping {
    /// Whether it has followed the last step, as the store has it since it answers again.
    pub(in crate::engine) fn is_caught_up(&self) -> bool {
        let last = self.step.as_ref().map(|step| step.id());
        self.heard && (last.is_none() || last == self.over)
    }
}

impl<P: Plane> Engine<P> {
    /// Whether the store does not answer for so long that this balancer goes on without: flows start again, by the
    /// table that packets follow.
    pub(super) fn is_left_alone(&mut self) -> bool {
        let strict = self.is_withdrawn_when_apart();
        let Some(fleet) = &mut self.fleet else { return false };
        let (reachable, over) =
            fleet.with_report(|report| (report.reachable, report.lease_is_over()));
        let stepping = &mut fleet.stepping;
        if reachable {
            stepping.alone = None;
            return false;
        }
        stepping.heard = false;
        let since = *stepping.alone.get_or_insert_with(Instant::now);
        let silence = Silence {
            lasts: since.elapsed() >= ALONE_PATIENCE,
            lease_is_over: over,
            lease_before_is_over: stepping.born.elapsed() >= LEASE,
        };
        let word = match stepping.apart(stepping.at(), strict, silence) {
            Apart::Follows => return false,
            Apart::Waits => return true,
            Apart::Lapses(step) => {
                stepping.lapsed = Some(step);
                self.note(step, Did::Lapses);
                return false;
            }
            Apart::Starts { word } => word,
        };
        let found = stepping.found_word();
        if let (Some(step), true) = (stepping.step.clone(), stepping.frozen.is_some() || found) {
            warn!(step = step.number, "the store does not answer; flows start again");
            if self.has_thawed(&step) && word {
                self.take_back_word();
            }
        }
        true
    }

    /// Flows start here again, and what was said of the step counts no more: whoever leads when the store answers
    /// again is not to go on by it.
    fn take_back_word(&mut self) {
        let Some(fleet) = &mut self.fleet else { return };
        let Some(step) = fleet.stepping.step.as_ref().map(|step| step.id()) else { return };
        let (id, stage) = (fleet.id().to_owned(), Stage::Prepare);
        let ack = Ack { id, step, stage, late: false, lags: false };
        if let Some(asks) = fleet.asks() {
            let _ = asks.try_send(Ask::Ack(ack));
        }
        let stepping = &mut fleet.stepping;
        stepping.takes_back(step);
    }

    /// What a process before this one has left, which is looked at once, before this one keeps any flow from starting.
    pub(super) fn look_whether_found_frozen(&mut self) {
        let unknown = |fleet: &Fleet| fleet.stepping.found_frozen.is_none();
        if !self.fleet.as_ref().is_some_and(unknown) {
            return;
        }
        let frozen = self.resumed
            && self.in_step(None).into_iter().any(|service| {
                let table = self.plane.published(service).ok().flatten();
                table.is_some_and(|table| table.header().flags().has(Flags::FROZEN))
            });
        if let Some(stepping) = self.stepping() {
            stepping.found_frozen = Some(frozen);
        }
    }

    /// Whether the store does not answer, and the others may make a step by the word that this balancer has given, of
    /// which it would not hear: where that is asked for, it is not announced then. It is before its lease runs out, as
    /// routers take their time.
    pub(in crate::engine) fn is_in_doubt(&self) -> bool {
        let doubts = |fleet: &Fleet| {
            let stepping = &fleet.stepping;
            let word = stepping.has_given_word(stepping.at()) || stepping.found_word();
            word && stepping.alone.is_some_and(|since| since.elapsed() >= ALONE_PATIENCE)
        };
        self.is_withdrawn_when_apart() && self.fleet.as_ref().is_some_and(doubts)
    }

    fn is_withdrawn_when_apart(&self) -> bool {
        self.config.store.as_ref().is_some_and(|store| store.withdraw_after.is_some())
    }

    /// Where the store does not answer there is no step, and no other balancer that could say who is dead: new flows
    /// are kept from those that are by this one's own checks. The same if the others have not said so for some time:
    /// they are out of touch with it, or it alone does not reach the backend.
    pub(super) fn keep_off_the_dead(&mut self) {
        let Some(fleet) = &self.fleet else { return };
        let (stepping, alone) = (&fleet.stepping, !fleet.with_report(|report| report.reachable));
        // What a step has begun it ends, and a new process first follows the last one. Who was left behind by that
        // does not hear from it who is dead.
        let behind = !alone
            && stepping.left_behind.is_none()
            && stepping.step.as_ref().is_some_and(|step| step.stage == Stage::Done)
            && stepping.over != stepping.step.as_ref().map(|step| step.id());
        if stepping.waits() || stepping.is_in_step() || stepping.frozen.is_some() || behind {
            return;
        }
        let mut concerned = Vec::new();
        // Every turn comes here, and hardly ever is anybody down.
        let concerns = |service: &&mut ServiceRuntime| {
            let down = || service.pool.iter().any(|member| !member.up);
            let can = service.can_be_held();
            can && service.agreed.is_some() && (!service.dead_here.is_empty() || down())
        };
        for service in self.services.values_mut().filter(concerns) {
            let agreed = service.agreed.iter().flatten().filter(|share| share.down);
            let known: HashSet<&str> = agreed.map(|share| share.name.as_str()).collect();
            let dead = service.pool.iter().filter(|member| {
                let unheard =
                    member.down_since.is_none_or(|since| service.is_unheard(member, since));
                !member.up && (alone || unheard) && !known.contains(member.wanted.name.as_str())
            });
            let mut dead: BTreeSet<String> =
                dead.map(|member| member.wanted.name.clone()).collect();
            if service.follows_shared() {
                // The table does not know of what has begun in a dead one's place: another table comes first.
                dead.extend(service.dead_here.iter().cloned());
            }
            if service.dead_here != dead {
                (service.dead_here, service.alone, service.wanted_rows) = (dead, true, None);
                // Another table comes by a step alone, and so does another method.
                service.next_base = None;
                service.hold_turn(true);
                concerned.push(service.number);
            }
        }
        if concerned.is_empty() {
            return;
        }
        self.commits = Some(Commit::Alone);
        let failures = self.publish(&concerned);
        self.commits = None;
        failures.iter().for_each(|failure| warn!(%failure, "cannot keep flows from who is dead"));
        self.mark_as_agreed(&concerned);
        let concerned = |service: &&mut ServiceRuntime| concerned.contains(&service.number);
        for service in self.services.values_mut().filter(concerned) {
            service.alone = false;
            service.hold_turn(false);
        }
    }
}
