//! What a balancer hears of steps from the store.

use crate::engine::Engine;
use std::sync::Arc;
use std::time::Instant;
use tracing::{debug, warn};
use weir_fleet::{Ack, Ask, Did, FleetError, Stage, Step};
use weir_plane::Plane;

impl<P: Plane> Engine<P> {
    /// The store has this step.
    pub(in crate::engine) fn store_has_step(&mut self, step: Option<Box<Step>>, at: i64) {
        let Some(fleet) = &mut self.fleet else { return };
        let stepping = &mut fleet.stepping;
        (stepping.step_at, stepping.news, stepping.heard) = (at, true, true);
        let own = stepping.step.clone();
        let (step, outlived) = stepping.hears(own.as_deref(), step.map(|step| *step));
        let step = step.map(Arc::new);
        stepping.outlived = outlived;
        if own != step {
            if stepping.turns_to(own.as_deref(), step.as_deref()) {
                stepping.asked = None;
            }
            (stepping.step, stepping.since) = (step, Instant::now());
            if let Some((id, stage)) = stepping.step.as_ref().map(|step| (step.id(), step.stage)) {
                self.note(id, Did::Hears(stage));
            }
        }
        self.say_what_outlived();
    }

    /// Whoever leads is to begin above a step that the store has lost. A process that was started since has said nothing
    /// of it yet.
    fn say_what_outlived(&mut self) {
        let Some(fleet) = &self.fleet else { return };
        let stepping = &fleet.stepping;
        let last = stepping.step.as_ref().filter(|_| stepping.outlived).map(|step| step.id());
        let Some(step) = last.filter(|id| stepping.acked.is_none_or(|(said, _)| said < *id)) else {
            return;
        };
        let (id, stage) = (fleet.id().to_owned(), Stage::Done);
        let ack = Ack { id, step, stage, late: false, lags: false };
        if let Some(asks) = fleet.asks() {
            let _ = asks.try_send(Ask::Ack(ack));
        }
    }

    /// The step that this balancer wrote as the leader is in the store, or not.
    pub(in crate::engine) fn step_written(&mut self, result: Result<(), FleetError>) {
        let Some(fleet) = &mut self.fleet else { return };
        let stepping = &mut fleet.stepping;
        stepping.writing = false;
        if let Err(error) = result {
            match error {
                FleetError::Large { .. } => {
                    warn!(%error, "a change of pools is not made");
                    stepping.why = Some(format!("a change of pools in step is not made: {error}"));
                }
                _ => debug!(%error, "a step was not written"),
            }
            stepping.pause();
        }
    }
}
