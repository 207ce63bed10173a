//! What the leader does: it begins steps, and takes everybody through their stages.

use super::super::fleet::FleetNews;
use super::super::service::ServiceRuntime;
use super::super::{Command, Engine};
use super::anew::is_left;
use super::{
    COMMIT_PATIENCE, LEASE_PATIENCE, LONG_PATIENCE, LOOK_EVERY, PATIENCE, PREPARE_PATIENCE, WORD,
    shares_of,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};
use weir_fleet::{Ask, At, FleetError, Lead, Leading, Patience, Pools, Share, Stage, Step};
use weir_plane::Plane;

impl<P: Plane> Engine<P> {
    /// Takes everybody one stage further, gives a step up, or begins one.
    pub(super) fn lead_step(&mut self) {
        let Some(fleet) = &mut self.fleet else { return };
        let stepping = &mut fleet.stepping;
        let due = std::mem::take(&mut stepping.news) || stepping.looked.elapsed() >= LOOK_EVERY;
        if !due || stepping.writing {
            return;
        }
        stepping.looked = Instant::now();
        let (leads, term) = fleet.leads();
        if !leads {
            fleet.stepping.why = None;
            return;
        }
        let step = fleet.stepping.step.clone();
        let again = fleet.tells_again();
        match step.as_ref().filter(|step| step.stage != Stage::Done) {
            // Not before this one has done its part of the last.
            None if step.as_ref().is_some_and(|step| fleet.stepping.over != Some(step.id())) => {}
            // Whoever starts goes by the one that the store has.
            None if again => {
                if let Some(last) = step.as_deref() {
                    info!(step = last.number, "the store has lost this step, and gets it again");
                    self.write_step(Step { term, ..last.clone() });
                }
            }
            None => self.begin_step(step.as_deref(), term),
            Some(step) => {
                let mut missing = fleet.with_report(|report| step.missing(report));
                // It builds of what it knows: not before it knows all.
                let asked = fleet.stepping.acked == Some((step.id(), Stage::Collect));
                let shares = step.next.keys().any(|name| self.has_shared(name));
                let unready = step.stage == Stage::Collect && shares && !(asked && self.can_step());
                let own = &self.config.balancer.name;
                if unready && !missing.contains(own) {
                    missing.push(own.clone());
                }
                let lost = self.can_step() && self.has_lost_table();
                let Some(fleet) = &mut self.fleet else { return };
                let led = |(which, by, at): (At, u64, Instant)| {
                    (which, by) == (step.at(), term) && at.elapsed() < WORD
                };
                let (since, stepping) = (fleet.stepping.since.elapsed(), &fleet.stepping);
                let (wrote, long) = (stepping.led.is_some_and(led), stepping.has_paused_long());
                let patience_of = |patience| match patience {
                    Patience::None => Duration::ZERO,
                    Patience::Stage(Stage::Prepare) => PREPARE_PATIENCE,
                    Patience::Stage(Stage::Collect) if long => LONG_PATIENCE,
                    Patience::Stage(_) => PATIENCE,
                    Patience::Commit => COMMIT_PATIENCE,
                    Patience::Lease => LEASE_PATIENCE,
                };
                let is_over = |patience| since >= patience_of(patience);
                let next = fleet.with_report(|report| {
                    step.led(&Leading { missing: &missing, report, wrote, lost }, is_over)
                });
                match next {
                    Lead::Waits => return,
                    Lead::GivesUpOld => {
                        // What others have said so long ago they may have taken back by now, cut off as they are.
                        info!(
                            step = step.number,
                            "given up: it was begun too long ago; tried again"
                        );
                        return self.give_up(step, term);
                    }
                    Lead::Commits => return self.lead_to_commit(step, term),
                    Lead::CommitsAnew => {
                        warn!(
                            step = step.number,
                            "the table of who has led before is lost, and built anew"
                        );
                        fleet.fetching.found();
                        return self.lead_to_commit(step, term);
                    }
                    Lead::GoesOn => return self.write_step(Step { term, ..step.onward() }),
                    Lead::GoesOnWithout => {
                        let who = missing.join(", ");
                        warn!(step = step.number, who, "goes on without who does not follow");
                        return self.write_step(Step { term, ..step.onward() });
                    }
                    Lead::GivesUp => {}
                }
                // Nothing has changed by it.
                let (stage, who) = (step.stage, missing.join(", "));
                warn!(
                    step = step.number,
                    ?stage,
                    who,
                    "given up: not everybody came so far; tried again"
                );
                let words = self.given_up_words(step, &who, patience_of(Patience::Stage(stage)));
                let Some(fleet) = &mut self.fleet else { return };
                fleet.stepping.why = Some(words);
                fleet.stepping.silent = missing;
                fleet.stepping.pause();
                self.give_up(step, term);
            }
        }
    }

    /// Nothing has changed by a step that does not come to *commit*, but that who has died gets no new flow, those
    /// included who have died meanwhile.
    fn give_up(&mut self, step: &Step, term: u64) {
        let mut last = Step { term, ..step.clone() };
        last.next.extend(self.wanted_pools(&step.pools, &step.tables, &BTreeSet::new()));
        self.write_step(last.given_up());
    }

    /// All tables are here that are to be followed, or others are to be.
    pub(super) fn table_is_found(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            fleet.fetching.found();
        }
    }

    /// Everybody knows what there is: all may follow the next pools, by tables that are built now where all have the
    /// same.
    fn lead_to_commit(&mut self, step: &Step, term: u64) {
        let next = match self.build_for_all(step) {
            Ok(next_tables) => {
                if let Some(stepping) = self.stepping() {
                    stepping.lead_again = None;
                }
                Step { term, stage: Stage::Commit, next_tables, ..step.clone() }
            }
            Err(error) => {
                warn!(step = step.number, %error, "given up: no table can be built");
                let Some(stepping) = self.stepping() else { return };
                stepping.why = Some(format!("a change of pools in step is not made: {error}"));
                stepping.pause();
                if step.stage == Stage::Commit {
                    return;
                }
                Step { term, ..step.given_up() }
            }
        };
        self.write_step(next);
    }

    /// Begins a step, if pools are other than they were in the last one.
    fn begin_step(&mut self, last: Option<&Step>, term: u64) {
        if !self.can_step() {
            return;
        }
        // Pools of an earlier step than others have followed are not to be gone back to: all get the next ones.
        let Ok(ahead) = self.step_ahead() else { return };
        let anew = self.made_anew_now();
        let last_number = last.map_or(0, |last| last.number).max(ahead.map_or(0, |(_, at)| at));
        let last = last.filter(|_| ahead.is_none());
        let Some(fleet) = &mut self.fleet else { return };
        // The keeper takes a later one.
        if ahead.is_some_and(|(begun, _)| begun > term) {
            return;
        }
        let highest = fleet.stepping.over.map_or(0, |(_, number)| number);
        let waits = fleet.stepping.pauses();
        let change = fleet.change();
        // Not before all have heard of the same configuration.
        let (behind, silent) = fleet.with_report(|report| {
            let all = report.balancers.iter();
            let behind = all.filter(|(_, sign)| !sign.steps || sign.change != change);
            let said = |name: &String| report.acks.get(name).map_or((0, 0), |ack| ack.step);
            let number = last.map_or((0, 0), Step::id);
            let silent = fleet
                .stepping
                .silent
                .iter()
                .any(|name| report.balancers.contains_key(name) && said(name) < number);
            (behind.map(|(name, _)| name.clone()).collect::<Vec<_>>(), silent)
        });
        let empty = Pools::new();
        let before = last.map_or(&empty, |last| &last.pools);
        let tables = last.map_or_else(BTreeMap::new, |last| last.tables.clone());
        let next = self.wanted_pools(before, &tables, &anew);
        let whole = self.misses_nobody(&next);
        let Some(fleet) = &mut self.fleet else { return };
        if next.is_empty() {
            fleet.stepping.why = None;
            return;
        }
        if !behind.is_empty() {
            fleet.stepping.why = Some(format!(
                "a change of pools in step waits for {}, which cannot take part yet",
                behind.join(", ")
            ));
        }
        let services = &self.services;
        let stays = |(name, _): &(&String, &Vec<Share>)| services.contains_key(*name);
        let pools = before.iter().filter(stays).map(|(name, pool)| (name.clone(), pool.clone()));
        let number = last_number.max(highest) + 1;
        let (stage, pools) = (Stage::Prepare, pools.collect());
        let tables = tables.into_iter().filter(|(name, _)| self.has_shared(name)).collect();
        let next_tables = BTreeMap::new();
        let stays = |name: &String| self.services.contains_key(name);
        let mut rows = last.map_or_else(BTreeMap::new, |last| last.rows.clone());
        rows.retain(|name, _| stays(name));
        let (begun, next_rows) = (term, BTreeMap::new());
        let step = Step {
            number,
            begun,
            term,
            stage,
            change,
            pools,
            next,
            tables,
            next_tables,
            rows,
            next_rows,
        };
        if !waits && behind.is_empty() && whole {
            self.makes_anew(&anew);
        }
        // Who is dead is not waited with.
        match step.has_dead() {
            false if waits || !behind.is_empty() || !whole => {}
            true if silent || !behind.is_empty() || !whole => self.write_step(step.given_up()),
            _ => self.write_step(step),
        }
    }

    /// The pools as they are to be, of those services where that is another than before; and of those in `anew`, whose
    /// tables are to be made anew.
    fn wanted_pools(
        &mut self,
        before: &Pools,
        tables: &BTreeMap<String, String>,
        anew: &BTreeSet<String>,
    ) -> Pools {
        let mut next = Pools::new();
        let asked = self.fleet.as_ref().map(|fleet| {
            fleet.with_report(|report| {
                // Another table does not come to who was left behind either.
                let signs = report.balancers.iter();
                let signs = signs.filter(|(name, sign)| !is_left(report, name, sign));
                signs.flat_map(|(_, sign)| sign.wait_for_table.clone()).collect::<BTreeSet<_>>()
            })
        });
        let asked = asked.unwrap_or_default();
        for (name, service) in &mut self.services {
            if !service.changes_in_step() {
                continue;
            }
            let now = Instant::now();
            let trouble = service.trouble.as_ref().is_some_and(|trouble| trouble.again <= now);
            let table = tables.get(name);
            let lost = anew.contains(name)
                || service.is_shared()
                    && (table.is_none_or(|digest| service.lacks(digest))
                        || service.waits_for_table()
                        || asked.contains(name));
            if !service.dirty && !trouble && !lost && before.contains_key(name) {
                continue;
            }
            let shares = shares_of(service);
            let another =
                service.turn.is_some() || service.builder.published().is_none() || trouble || lost;
            if before.get(name) == Some(&shares) && !another {
                service.dirty = false;
                continue;
            }
            next.insert(name.clone(), shares);
        }
        next
    }

    /// Whether there is a service of this name whose table all have alike.
    fn has_shared(&self, name: &str) -> bool {
        self.services.get(name).is_some_and(ServiceRuntime::is_shared)
    }

    /// Says what rows the tables have that all make, where that is not said yet.
    fn number_rows(&mut self, step: &mut Step) {
        let (pools, said) = match step.stage {
            Stage::Commit => (&step.next, &mut step.next_rows),
            Stage::Done => (&step.pools, &mut step.rows),
            _ => return,
        };
        for (name, pool) in
            pools.iter().filter(|(name, _)| !said.contains_key(*name)).collect::<Vec<_>>()
        {
            let Some(service) = self.services.get_mut(name) else { continue };
            match service.digest_of_rows(pool) {
                Ok(Some(digest)) => drop(said.insert(name.clone(), digest)),
                Ok(None) => {}
                Err(error) => warn!(service = name, %error, "rows are not compared"),
            }
        }
    }

    fn write_step(&mut self, mut step: Step) {
        self.number_rows(&mut step);
        if step.stage == Stage::Done {
            // The table of one that has turned to another kind since is none to go back to.
            let lends = |name: &String| self.services.get(name).is_some_and(ServiceRuntime::lends);
            step.tables.retain(|name, _| lends(name));
        }
        let Some(fleet) = &mut self.fleet else { return };
        let Some((asks, commands)) = fleet.ways() else { return };
        let Some(document_at) = fleet.revision() else { return };
        let expected = fleet.stepping.step_at;
        fleet.stepping.writing = true;
        if matches!(step.stage, Stage::Freeze | Stage::Collect) {
            fleet.stepping.led = Some((step.at(), step.term, Instant::now()));
        }
        debug!(step = step.number, stage = ?step.stage, "leads on");
        tokio::spawn(async move {
            let (then, answer) = tokio::sync::oneshot::channel();
            let gone = || FleetError::Unreachable("this balancer ends".into());
            let result = match asks
                .send(Ask::Step { step: Box::new(step), expected, document_at, then })
                .await
            {
                Ok(()) => answer.await.unwrap_or_else(|_| Err(gone())),
                Err(_) => Err(gone()),
            };
            let _ = commands.send(Command::Fleet(FleetNews::Stepped(result))).await;
        });
    }
}
