//! A balancer that cannot follow what the others do: no table comes to it, or it makes other rows than they. The others go
//! on without it, and wait for it in no later step; it goes on as it is, with the configurations that come, and makes up
//! for what it has missed as soon as it can.

use crate::certificates;
use crate::engine::Engine;
use crate::engine::fleet::{Fleet, digest_of};
use weir_fleet::{Ack, Ask, Stage, Step};
use weir_plane::Plane;
use weir_rpc::tls::{Identity, now};

impl Fleet {
    /// The others go on without this balancer where it lacks a table, and why.
    pub(super) fn note_left_behind(&mut self) {
        if !self.fetching.is_lacking() {
            return;
        }
        let why = self.fetching.why().map(str::to_owned);
        let left_behind = &mut self.stepping.left_behind;
        // What was said before stands while it is asked for again.
        if why.is_some() || left_behind.is_none() {
            let unknown = || "the table of the last change of pools has not come".to_owned();
            *left_behind = Some(why.unwrap_or_else(unknown));
        }
    }
}

impl<P: Plane> Engine<P> {
    /// Why the others have gone on without this balancer, if they have.
    pub(in crate::engine) fn why_left_behind(&self) -> Option<String> {
        let stepping = &self.fleet.as_ref()?.stepping;
        let step = stepping.step.as_ref()?;
        let rows = || step.rows.keys().find_map(|name| self.makes_other_rows(step, name));
        stepping.left_behind.clone().or_else(rows)
    }

    /// The same, of tables that all have alike.
    pub(super) fn is_left_behind(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| fleet.stepping.left_behind.is_some())
    }

    /// Whether it has been left behind, and the table has not come since.
    pub(super) fn still_lacks_table(&self) -> bool {
        self.is_left_behind()
            && self.fleet.as_ref().is_some_and(|fleet| fleet.fetching.is_lacking())
    }

    /// The step is over, and this balancer goes on by the table of before. Configurations that came in the step wait for
    /// nothing any more: the next step waits until this balancer follows them.
    pub(super) fn goes_on_behind(&mut self, step: &Step) {
        let Some(fleet) = &mut self.fleet else { return };
        fleet.note_left_behind();
        let (id, stepping) = (step.id(), &fleet.stepping);
        if stepping.late != Some(id) {
            let said = stepping.acked.filter(|(said, _)| *said == id);
            let stage = said.map_or(Stage::Prepare, |(_, stage)| stage);
            let ack = Ack { id: fleet.id().to_owned(), step: id, stage, late: true, lags: true };
            if fleet.asks().is_some_and(|asks| asks.try_send(Ask::Ack(ack)).is_ok()) {
                fleet.stepping.late = Some(id);
            }
        }
        self.take_up_held();
    }

    /// Says that it follows the last step, where it had said that it does not come so far.
    pub(in crate::engine) fn say_caught_up(&mut self) {
        let behind = self.why_left_behind().is_some();
        let Some(fleet) = self.fleet.as_mut().filter(|_| !behind) else { return };
        let stepping = &fleet.stepping;
        let Some(over) = stepping.over else { return };
        if stepping.late.is_none() && stepping.lagged.is_none() {
            return;
        }
        let (id, stage) = (fleet.id().to_owned(), Stage::Done);
        let ack = Ack { id, step: over, stage, late: false, lags: false };
        if fleet.asks().is_some_and(|asks| asks.try_send(Ask::Ack(ack)).is_ok()) {
            (fleet.stepping.late, fleet.stepping.lagged) = (None, None);
        }
    }

    /// Whether the others are not to wait for this balancer in a step: at the services that change it leads flows otherwise
    /// than they do in any case.
    pub(super) fn lags(&self, step: &Step) -> bool {
        // Whoever leads builds the tables itself.
        if step.stage >= Stage::Commit || self.fleet.as_ref().is_none_or(|one| one.leads().0) {
            return false;
        }
        let left = self.is_left_behind();
        let shared = |name: &String| self.services.get(name).filter(|service| service.is_shared());
        let lacks = |name: &String| {
            let service = shared(name).filter(|_| left);
            let table = step.tables.get(name);
            service.zip(table).is_some_and(|(service, digest)| service.lacks(digest))
        };
        let names = || step.next.keys();
        names().any(lacks)
            || names().any(|name| self.makes_other_rows(step, name).is_some())
            || names().any(|name| shared(name).is_some()) && self.cannot_call()
    }

    /// Whether packets of some service follow another table than the one that all have alike as the step is now.
    pub(super) fn lacks_any(&self, step: &Step) -> bool {
        let shared = self.services.iter().filter(|(_, service)| service.is_shared());
        let mut tables = shared.map(|(name, one)| (one, step.table_at(step.stage, name)));
        tables.any(|(service, table)| table.is_some_and(|digest| service.lacks(digest)))
    }

    /// Why a service goes on by other rows than those in force, as its own could not be put in their place.
    fn makes_other_rows(&self, step: &Step, name: &str) -> Option<String> {
        let service = self.services.get(name).filter(|service| self.is_in_step(service))?;
        let trouble = service.trouble.as_ref().filter(|_| service.dead_here.is_empty())?;
        let (wanted, image) = (step.rows.get(name)?, service.builder.published()?);
        let known = self.fleet.as_ref()?.digests.get(&service.number);
        let known = known.filter(|known| known.0 == service.generation);
        let found = known.map_or_else(|| digest_of(service, image), |known| known.1.clone());
        let differs = found != *wanted;
        differs.then(|| format!("service {name}: {}", trouble.what))
    }

    /// Whether no other balancer takes this one for what it is, as far as its own certificate says. The files count that are
    /// there now: they are read for each call.
    fn cannot_call(&self) -> bool {
        let ended = self.own_certificate_ends().is_some_and(certificates::has_ended);
        // Who listens reads the same files.
        let Some(agents) =
            self.config.agents.as_ref().filter(|_| ended || self.agents_trouble().is_some())
        else {
            return false;
        };
        let files = agents.files();
        let holds = |own: Identity| own.begins <= now() && now() < own.ends;
        files.client().is_err() || !files.identity().is_ok_and(holds)
    }
}
