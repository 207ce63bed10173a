//! A configuration comes into force as a transaction: *looked at* against what is in force,
//! *prepared* beside it, *written down*, and only then *switched* to. Until the last step a refusal
//! leaves everything as it was; in the last step nothing is refused any more, and what cannot be done
//! at once is shown and tried again.
//!
//! A service is known by its addresses, protocol and ports (`places.rs`): one that keeps some of them is
//! changed under its connections, whatever else becomes of it, its name included.

pub(super) mod meaning;
pub(super) mod overtaken;
mod restore;
pub(super) mod words;

use super::beyond::refusals_beside;
use super::commands::Done;
use super::document;
use super::forward::{Way, translation, way_of};
use super::limits::of_limits;
use super::numbers::Numbers;
use super::places::{Salt, Salts, pair};
use super::service::{PoolMember, ServiceRuntime, log_path};
use super::sources::Listed;
use super::turn::{Change, Turn};
use super::{Engine, EngineError, NEXT_HOPS_TRIES, PlaneResult, tolerate};
use crate::certificates;
use crate::config::{Backend, Balancer, Config, Forward, PlaneKind, Service, Source, Table};
use crate::health::Transition;
use meaning::{Who, former, knows_where, other_meaning, who};
use overtaken::Loss;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use tracing::info;
use weir_plane::{Listen, Plane};
use weir_steering::{BackendId, ServiceId};

/// How a configuration is to be followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct How {
    /// At a start, where changes that commands made hold for services that the file describes as it
    /// did then.
    pub start: bool,
    /// Also where connections break that could not be carried over.
    pub breaking: bool,
    /// In a fleet: this balancer is the one that was asked. The others follow what it has judged, also those that
    /// have missed a change before.
    pub asked: bool,
}

impl How {
    /// At a start.
    pub fn start(breaking: bool) -> Self {
        Self { start: true, breaking, asked: false }
    }

    /// As somebody asks for it here, or might.
    pub fn asked(breaking: bool) -> Self {
        Self { start: false, breaking, asked: true }
    }

    /// As it is followed while weir runs, whoever was asked.
    fn reload(breaking: bool) -> Self {
        Self { start: false, breaking, asked: false }
    }
}

/// What has become of a configuration that is in force.
#[derive(Debug, Default)]
pub(super) struct Followed {
    /// What could not be done yet, by service; it is tried again.
    pub failures: Vec<EngineError>,
    /// What there is to tell.
    pub notes: Vec<String>,
}

/// A service as it is to be.
pub(super) struct Planned {
    /// What it is called now; none if it is new.
    pub now: Option<String>,
    pub wanted: Service,
    pub change: Change,
    /// Of the connections that break by that some may go on.
    pub partly: bool,
    /// What tells its addresses apart, and what others had of it, whose connections are to be forgotten.
    salts: (Salts, Vec<Salt>),
    pub pool: Vec<PoolMember>,
    /// Members that are not there yet.
    new: Vec<BackendId>,
    pub leaving: Vec<BackendId>,
    /// Its table is to be another.
    dirty: bool,
    /// What others take of it.
    pub loss: Option<Loss>,
}

/// What becomes of the connections of a service.
struct Looked {
    change: Change,
    /// As [`Planned::partly`].
    partly: bool,
    /// Those that come under another service, if any may break by that.
    loss: Option<Loss>,
}

impl Planned {
    /// Where packets are to find it.
    pub fn places(&self) -> Vec<Listen> {
        self.salts.0.places(&self.wanted)
    }
}

/// All services as they are to be.
pub(super) struct Plan {
    pub services: Vec<Planned>,
    pub remove: Vec<String>,
    /// Numbers of new services, in their order.
    numbers: Vec<ServiceId>,
}

/// What is made beside what is in force, and goes if it does not come to that.
#[derive(Default)]
struct Prepared {
    members: Vec<BackendId>,
    logs: Vec<PathBuf>,
    attached: bool,
    handed_on: bool,
    turns: HashMap<String, Turn>,
    created: Vec<ServiceRuntime>,
}

/// A service that is gone, and not all of it is cleared away yet.
pub(super) struct Gone {
    number: ServiceId,
    backends: HashSet<BackendId>,
}

impl<P: Plane> Engine<P> {
    pub(super) fn reload(&mut self, breaking: bool) -> Done {
        let file = self.config_path.clone();
        let text = Config::text(&file)?;
        self.follow_text(&text, Source::File(file), breaking, "reload").map(|(said, _)| said)
    }

    pub(super) fn reload_as(&mut self, config: Config, breaking: bool) -> Done {
        // Who has removed pins, and reloads, finds them again.
        self.hold_on();
        // What is refused anyway is refused before memory is made for it.
        self.refuses(&config, breaking)?;
        self.grow(&config)?;
        let held = self.speaker_held(&config);
        let followed = self.follow(&config, How::reload(breaking));
        let followed = match followed {
            Ok(followed) => followed,
            Err(error) => {
                let before = self.config.clone();
                self.fit(&before);
                return Err(error);
            }
        };
        let services = config.services.len();
        self.config = config.clone();
        // The file has this text by now.
        self.looked_at.replace(None);
        let crowded = self.room_of_connections(&config).notes;
        self.fit(&config);
        // Listeners read them anew now, and try again as long as they cannot.
        let papers = certificates::of_no_use(&config);
        let notes = followed.notes.iter().chain(&self.oversize).chain(&crowded);
        let notes = notes.chain(&papers).chain(&held);
        let notes: String = notes.map(|note| format!("; {note}")).collect();
        info!(services, notes, "configuration reloaded");
        if followed.failures.is_empty() {
            let words = if services == 1 { "service" } else { "services" };
            return Ok(format!("configuration reloaded: {services} {words}{notes}"));
        }
        let failures: Vec<String> = followed.failures.iter().map(ToString::to_string).collect();
        Err(EngineError::Unfinished(format!(
            "configuration reloaded, but not all of it is in force yet, and is tried again: {}{notes}",
            failures.join("; ")
        )))
    }

    /// Refuses what contradicts what is in force. Nothing is touched.
    pub(super) fn refuses(&self, config: &Config, breaking: bool) -> Result<(), EngineError> {
        self.keeps_identity(config, &self.source())?;
        self.leaves_found(config)?;
        self.changes(config, How::reload(breaking))?;
        self.lists_fit(config)?;
        self.reaches(config)
    }

    /// Why a file without services is refused.
    fn leaves_nothing(&self, services: usize) -> String {
        let what = match services {
            1 => "the service".to_owned(),
            many => format!("all {many} services"),
        };
        format!(
            "{} has no [[service]]: {what} in force would go, with every connection; was it cut off?",
            self.source().name()
        )
    }

    /// Refuses a configuration of what cannot change while weir runs.
    pub(super) fn keeps_identity(&self, config: &Config, from: &Source) -> Result<(), EngineError> {
        let (old, new) = (&self.config.balancer, &config.balancer);
        if self.config.store != config.store {
            return Err(EngineError::Conflict(format!(
                "{}: [store] cannot change while weir runs; restart it, or put back what was there",
                from.name()
            )));
        }
        // Its process has been started with them.
        if old.plane == PlaneKind::Dpdk
            && (&self.config.dpdk, &old.interfaces) != (&config.dpdk, &new.interfaces)
        {
            let place = from.place(Table::Dpdk, "devices");
            return Err(EngineError::Conflict(format!(
                "{place}[dpdk] and interfaces cannot change while weir runs with plane = \"dpdk\"; restart it, \
                 or put back what was there"
            )));
        }
        if old.plane == PlaneKind::AfXdp && self.config.af_xdp != config.af_xdp {
            let place = from.place(Table::AfXdp, "threads");
            return Err(EngineError::Conflict(format!(
                "{place}[af_xdp] cannot change while weir runs with plane = \"af-xdp\"; restart it, or put back \
                 what was there"
            )));
        }
        if old.plane.is_beside() && self.config.offload != config.offload {
            let place = from.place(Table::Offload, "card");
            return Err(EngineError::Conflict(format!(
                "{place}[offload] cannot change while weir runs; restart it, or put back what was there"
            )));
        }
        if old.plane == PlaneKind::P4 && self.config.p4 != config.p4 {
            let place = from.place(Table::P4, "thrift");
            return Err(EngineError::Conflict(format!(
                "{place}[p4] cannot change while weir runs with plane = \"p4\"; restart it, or put back what was there"
            )));
        }
        let same = |balancer: &Balancer| {
            let Balancer { name, run_dir, state_dir, mode, plane, count_interfaces, .. } =
                balancer.clone();
            (name, run_dir, state_dir, mode, plane, count_interfaces)
        };
        if same(old) != same(new) {
            let differs = [
                ("name", old.name != new.name),
                ("run_dir", old.run_dir != new.run_dir),
                ("state_dir", old.state_dir != new.state_dir),
                ("mode", old.mode != new.mode),
                ("plane", old.plane != new.plane),
                ("count_interfaces", old.count_interfaces != new.count_interfaces),
            ];
            let differs = differs.iter().filter(|(_, differs)| *differs).map(|(field, _)| *field);
            let fields: Vec<&str> = differs.collect();
            let place = from.place(Table::Balancer, fields[0]);
            return Err(EngineError::Conflict(format!(
                "{place}[balancer] {} cannot change while weir runs; restart it, or put back what was there",
                fields.join(", ")
            )));
        }
        Ok(())
    }

    /// Makes the services those of a configuration.
    ///
    /// # Errors
    /// If the configuration contradicts what is in force, or something cannot be prepared or written
    /// down: nothing has changed then.
    pub(super) fn follow(&mut self, config: &Config, how: How) -> Result<Followed, EngineError> {
        self.hear_what_waits(how);
        let (plan, mut notes) = self.plan(config, how)?;
        let mut prepared = Prepared::default();
        let ready = self.prepare(&plan, config, how, &mut prepared).and_then(|()| {
            self.keep_lists_of(config);
            match self.write_plan_down(&plan, &prepared) {
                // A start that changes nothing which the next one could not find out by itself goes on:
                // what could not be written is tried again, and said. One that changes more is refused
                // like a reload, as the next start must know by which numbers and pools packets go. Over
                // a data plane they are forwarded anyway, and the configuration that was in force can go
                // on; a first start has nothing to lose, and no start could take over what it would leave.
                Err(error @ EngineError::Store(_))
                    if how.start && error.is_full() && self.finds_again(&plan, &prepared) =>
                {
                    self.note_saved(Err(error));
                    Ok(())
                }
                written => written,
            }
        });
        if let Err(error) = ready {
            self.undo(prepared, how);
            // A start that is refused knows some services only, and what was kept is of all.
            if !how.start || !self.resumed {
                self.forget_lists();
            }
            return Err(if how.start && self.resumed { error } else { error.of_undone() });
        }
        notes.extend(self.unremembered_of(&plan));
        let failures = self.switch(plan, prepared, config, how);
        self.forget_lists();
        notes.extend(crate::doctor::against_inline(config));
        Ok(Followed { failures, notes })
    }

    /// What becomes of the connections of each service of a configuration, and what there is to tell
    /// of it.
    fn changes(
        &self,
        config: &Config,
        how: How,
    ) -> Result<(Vec<Looked>, Vec<String>), EngineError> {
        let breaking = how.breaking;
        let tracked = config.limits.tracked_flows as usize;
        let (mut changes, mut notes) = (Vec::new(), Vec::new());
        let mut refused = if breaking { Vec::new() } else { self.against_all(config, how.start) };
        notes.extend(self.answers_given_up(config, how.start).filter(|_| breaking));
        notes.extend(self.interfaces_given_up(config, how.start));
        // They are the same for all.
        let full_nat = config.services.iter().any(|wanted| wanted.forward.is_full_nat());
        let rules = if full_nat { self.plane.mapping_rules() } else { None };
        let pairs = self.pairs(&config.services);
        let losses = self.losses(&config.services, &pairs);
        for ((wanted, now), loss) in config.services.iter().zip(pairs).zip(losses) {
            let change =
                now.map_or(Change::Same, |now| now.change_to(wanted, tracked, self.is_of_fleet()));
            let all = now.and_then(|now| readdressed(&now.configured, wanted));
            let sources = now.and_then(|now| self.resourced(now, wanted, config, rules.as_ref()));
            let sources = sources.filter(|_| all.is_none());
            // Which source a connection would have, only the data plane knows.
            let partly = sources.is_some() && !matches!(change, Change::Breaks(_));
            let others = all.or(sources).or_else(|| match change {
                Change::Breaks(_) => None,
                _ => other_meaning(now.filter(|now| self.judges(now, wanted, how))?, wanted),
            });
            let change = others.map_or(change, Change::Breaks);
            // What packets do not follow breaks nothing.
            let unused = now.is_some_and(|now| self.plane.table_bytes(now.number) == 0);
            let change = if unused && change != Change::Same { Change::Carried } else { change };
            if let (Change::Breaks(why), Some(now)) = (&change, now) {
                // Every reason begins with the field.
                let field = why.split(':').next().unwrap_or_default();
                // What is done breaks those that are there; what is refused would break others, too.
                let known = self.count_heard(now, how);
                let which = match breaking {
                    true => words::in_words(known, "breaks", "break"),
                    false => words::breaking_in_words(known),
                };
                // Those whose addresses stay are led by the method.
                let some = (partly || field == "quic") && known.is_some_and(|many| many > 0);
                let which = if some { format!("up to {which}") } else { which };
                let what = format!("service {}: {why}; {which}", wanted.name);
                if breaking {
                    notes.push(what);
                } else {
                    let table = Table::Service(&wanted.name);
                    refused.push(self.source().place(table, field) + &what);
                }
            }
            if let Some(Loss { why, how_many, by, .. }) = &loss {
                let what = format!("service {}: {why}; {how_many}", wanted.name);
                if breaking {
                    notes.push(what);
                } else {
                    refused.push(self.source().place(Table::Service(by), "vip") + &what);
                }
            }
            changes.push(Looked { change, partly, loss });
        }
        if !refused.is_empty() {
            return Err(unless_breaking(&refused.join("; ")));
        }
        Ok((changes, notes))
    }

    /// What is to be done, if it can be. Nothing is touched.
    pub(super) fn plan(
        &self,
        config: &Config,
        how: How,
    ) -> Result<(Plan, Vec<String>), EngineError> {
        let (changes, mut notes) = self.changes(config, how)?;
        let mut there: HashSet<&str> = self.services.keys().map(String::as_str).collect();
        let mut numbers = self.numbers();
        let mut services = Vec::new();
        let pairs = self.pairs(&config.services);
        for ((wanted, looked), now) in config.services.iter().zip(changes).zip(pairs) {
            let Looked { change, partly, loss } = looked;
            if let Some(now) = now {
                there.remove(now.configured.name.as_str());
                notes.extend(self.moved(now, wanted));
                // At a start with the same file, what commands have changed holds.
                let holds = how.start && now.configured == *wanted;
                notes.extend(if holds { None } else { self.undone(now, wanted) });
            }
            let most = config.limits.backends;
            let planned = self.plan_service(now, wanted, change, (&mut numbers, most), how)?;
            let planned = Planned { loss, partly, ..planned };
            notes.extend(now.and_then(|now| self.left_behind(now, &planned.leaving)));
            services.push(planned);
        }
        let mut remove: Vec<String> = there.into_iter().map(ToOwned::to_owned).collect();
        remove.sort_unstable();
        let mut unused = 0;
        for gone in remove.iter().filter_map(|name| self.services.get(name)) {
            if self.count_known(gone) == Some(0) {
                unused += 1;
                continue;
            }
            notes.push(format!("service {} removed: {}", gone.configured.name, self.ending(gone)));
        }
        if unused > 0 {
            let services =
                if unused == 1 { "1 service".into() } else { format!("{unused} services") };
            notes.push(format!("{services} without known connections removed"));
        }
        let new = services.iter().filter(|planned| planned.now.is_none()).count();
        let numbers = self.service_numbers(new, &remove, config.limits.services)?;
        Ok((Plan { services, remove, numbers }, notes))
    }

    /// For each wanted service the running one that it is. One whose hashes the fleet has under another seed
    /// is another.
    pub(super) fn pairs(&self, wanted: &[Service]) -> Vec<Option<&ServiceRuntime>> {
        let pairs = self.pairs_by_place(wanted).into_iter().zip(wanted);
        pairs.map(|(now, wanted)| now.filter(|now| self.has_seed_of(now, wanted))).collect()
    }

    fn pairs_by_place(&self, wanted: &[Service]) -> Vec<Option<&ServiceRuntime>> {
        let there: Vec<&ServiceRuntime> = self.services.values().collect();
        let configured: Vec<&Service> = there.iter().map(|one| &one.configured).collect();
        pair(&configured, wanted).into_iter().map(|at| at.map(|at| there[at])).collect()
    }

    fn plan_service(
        &self,
        now: Option<&ServiceRuntime>,
        wanted: &Service,
        change: Change,
        (numbers, most): (&mut Numbers, u32),
        how: How,
    ) -> Result<Planned, EngineError> {
        let mut salts = now.map_or_else(Salts::default, |now| now.salts.clone());
        let mut given = salts.follow(&wanted.addresses());
        if let Some(of_fleet) = self.salts_for(wanted).filter(|of_fleet| *of_fleet != salts) {
            // Changes were missed on the way: connections are told apart by others from now on.
            given.extend(salts.not_in(&of_fleet));
            salts = of_fleet;
        }
        let mut planned = Planned {
            salts: (salts, given),
            now: now.map(|now| now.configured.name.clone()),
            wanted: wanted.clone(),
            dirty: change != Change::Same,
            change,
            partly: false,
            pool: Vec::new(),
            new: Vec::new(),
            leaving: Vec::new(),
            loss: None,
        };
        let old: &[PoolMember] = now.map_or(&[], |now| &now.pool);
        if how.start && now.is_some_and(|now| now.configured == *wanted) {
            planned.pool = old.to_vec();
            return Ok(planned);
        }
        let mut left: HashMap<Who<'_>, &PoolMember> =
            old.iter().map(|member| (who(&member.wanted), member)).collect();
        // One that is called otherwise is the same one, where connections are known by more than its name.
        let before = match now.is_some_and(knows_where) {
            true => former(old, &wanted.backends),
            false => vec![None; wanted.backends.len()],
        };
        for (backend, before) in wanted.backends.iter().zip(before) {
            let member = match left.remove(&who(before.map_or(backend, |before| &before.wanted))) {
                Some(member) => {
                    PoolMember { wanted: backend.clone(), found: None, ..member.clone() }
                }
                None => {
                    // One that joins others waits for its check; a service that is new has no others.
                    let up = wanted.check_of(backend).is_none() || now.is_none();
                    let member = self.allot(backend.clone(), up, (numbers, most))?;
                    planned.new.push(member.id);
                    member
                }
            };
            planned.pool.push(member);
        }
        // What was looked up stays until the next answer.
        for member in old {
            if let Some(found) = ServiceRuntime::as_found(wanted, member)
                && left.remove(&who(&member.wanted)).is_some()
            {
                planned.pool.push(PoolMember { wanted: found, ..member.clone() });
            }
        }
        planned.leaving = left.values().map(|member| member.id).collect();
        planned.leaving.sort_unstable();
        let as_before = now.is_some_and(|now| {
            let before = now.pool.iter().map(|member| &member.wanted);
            let after = planned.pool.iter().map(|member| &member.wanted);
            before.eq(after) && now.configured.idle_timeout == wanted.idle_timeout
        });
        planned.dirty |= !as_before;
        Ok(planned)
    }

    /// Makes what the plan needs that is not there.
    fn prepare(
        &mut self,
        plan: &Plan,
        config: &Config,
        how: How,
        prepared: &mut Prepared,
    ) -> Result<(), EngineError> {
        let run_dir = config.balancer.run_dir.clone();
        let mut logs = self.log_names();
        let mut numbers = plan.numbers.iter();
        for planned in &plan.services {
            for member in planned.pool.iter().filter(|member| planned.new.contains(&member.id)) {
                prepared.members.push(member.id);
                let way = way_of(&planned.wanted, &member.wanted, &config.balancer.nat);
                self.install(member, way, true)?;
            }
            let wanted = &planned.wanted;
            if let Some(now) = planned.now.as_ref().and_then(|now| self.services.get(now)) {
                let carried = !matches!(planned.change, Change::Breaks(_));
                if let Some(turn) = now.prepare_turn(wanted, carried, &run_dir)? {
                    prepared.turns.insert(wanted.name.clone(), turn);
                }
                continue;
            }
            let Some(&number) = numbers.next() else { continue };
            let name = free_name(&wanted.name, &mut logs);
            // Nobody's: left by a run that had another file.
            let path = log_path(&run_dir, &name);
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_file(refusals_beside(&path));
            prepared.logs.push(path);
            let id = (number, self.seed_for(wanted));
            let now = self.now();
            let (mut runtime, _) = ServiceRuntime::new(
                (id, how.start),
                wanted.clone(),
                name,
                &config.limits,
                &run_dir,
                None,
                now,
            )?;
            runtime.pool.clone_from(&planned.pool);
            runtime.salts.clone_from(&planned.salts.0);
            prepared.created.push(runtime);
        }
        let others = self.config.balancer.interfaces != config.balancer.interfaces;
        let hands_on = [&self.config, config].iter().any(|one| one.balancer.next_program.is_some());
        if !how.start && others && !self.is_learning() {
            prepared.attached = true;
            self.attach(config)?;
        } else if !how.start && hands_on {
            // Also if it stands under the same name: another one may by now.
            prepared.handed_on = true;
            self.hand_on(config)?;
        }
        Ok(())
    }

    /// Writes down what a restart is to find: the plan, from here on.
    fn write_plan_down(&mut self, plan: &Plan, prepared: &Prepared) -> Result<(), EngineError> {
        let changes = self.changes_to(plan, prepared);
        self.write_down(changes)
    }

    /// Whether a restart that finds nothing of a plan comes to it all the same.
    fn finds_again(&self, plan: &Plan, prepared: &Prepared) -> bool {
        self.document.leads_where(&self.changes_to(plan, prepared))
    }

    /// What of a plan is not written down.
    fn changes_to(&self, plan: &Plan, prepared: &Prepared) -> Vec<document::Change> {
        let wanted: HashSet<&String> = plan.services.iter().map(|one| &one.wanted.name).collect();
        let gone = self.document.services.keys().filter(|name| !wanted.contains(name));
        let mut changes: Vec<document::Change> =
            gone.map(|name| document::Change::Removed { name: name.clone() }).collect();
        let mut created = prepared.created.iter();
        for planned in &plan.services {
            let runtime = match planned.now.as_ref().and_then(|now| self.services.get(now)) {
                Some(now) => now,
                None => match created.next() {
                    Some(new) => new,
                    None => continue,
                },
            };
            let saved = runtime.saved_as(&planned.wanted, &planned.salts.0, &planned.pool);
            changes.extend(self.document.change_to(&planned.wanted.name, saved));
        }
        changes
    }

    /// Clears away what was prepared.
    fn undo(&mut self, prepared: Prepared, how: How) {
        self.take_back(prepared.members);
        drop(prepared.created);
        for log in prepared.logs {
            let _ = std::fs::remove_file(log);
        }
        if prepared.attached {
            let config = self.config.clone();
            tolerate("go back to the interfaces before", self.attach(&config));
        } else if prepared.handed_on {
            let config = self.config.clone();
            tolerate("go back to the next program before", self.hand_on(&config));
        }
        // A start that is refused has taken up those services only that its file has. What was written down is of
        // all, and the next start is to find it.
        if !how.start {
            self.save_later();
        }
    }

    /// The plan is in force from here on. Returns what is left to be done.
    fn switch(
        &mut self,
        plan: Plan,
        mut prepared: Prepared,
        config: &Config,
        how: How,
    ) -> Vec<EngineError> {
        self.ask_for_more_places(&plan, !how.start);
        // What commands have put on the lists of a service that is made anew, as one of another seed is.
        let mut listed: HashMap<String, Listed> = HashMap::new();
        for name in &plan.remove {
            if let Some(gone) = self.services.get_mut(name) {
                listed.insert(name.clone(), std::mem::take(&mut gone.listed));
            }
            self.retire(name);
        }
        let mut failures: Vec<EngineError> = self.clear_gone().err().into_iter().collect();
        // What has begun under salts that are given up is known before, and forgotten with the rest.
        if plan.services.iter().any(|planned| !planned.salts.1.is_empty()) {
            failures.extend(self.drain_reports().err());
        }
        let mut runtimes = Vec::new();
        // The ways to all backends may be others, or those to the backends of some services.
        let ways = |config: &Config| {
            let Balancer { interfaces, nat, tunnel_source, tunnel_source6, .. } =
                config.balancer.clone();
            (interfaces, nat, tunnel_source, tunnel_source6)
        };
        let elsewhere = how.start || ways(&self.config) != ways(config);
        let mut changed: HashSet<BackendId> = HashSet::new();
        let mut created = prepared.created.into_iter();
        let moment = self.now();
        for planned in plan.services {
            let Some(now) = planned.now else {
                let mut created = created.next();
                changed.extend(planned.pool.iter().map(|member| member.id));
                let found = created.as_mut().zip(listed.remove(&planned.wanted.name));
                if let Some((runtime, before)) = found.filter(|(_, before)| !before.is_empty()) {
                    runtime.listed = before;
                    runtime.lay_over();
                    self.save_later();
                }
                runtimes.extend(created);
                continue;
            };
            let Some(mut runtime) = self.services.remove(&now) else { continue };
            if planned.dirty || runtime.configured != planned.wanted {
                changed.extend(planned.pool.iter().map(|member| member.id));
            }
            runtime.turn = prepared.turns.remove(&planned.wanted.name);
            runtime.forget_addresses(&planned.salts.1, moment);
            // What new connections meet where the checks have all down may be another word of the file, too.
            let before = (runtime.away.clone(), runtime.all_down());
            runtime.configured = planned.wanted;
            runtime.lay_over();
            runtime.salts = planned.salts.0;
            runtime.pool = planned.pool;
            runtime.leaving.extend(planned.leaving);
            runtime.dirty |= planned.dirty || (runtime.away_now(), runtime.all_down()) != before;
            runtime.set_idle_time();
            runtime.prune_discoveries();
            runtimes.push(runtime);
        }
        for runtime in runtimes {
            self.names.insert(runtime.number, runtime.configured.name.clone());
            self.services.insert(runtime.configured.name.clone(), runtime);
        }
        self.number_servers();
        if how.start {
            failures.extend(self.remove_strangers().err());
        }
        self.believe_the_unchecked();
        self.services.values_mut().for_each(ServiceRuntime::try_at_once);
        failures.extend(self.tell_all_ids());
        self.config.balancer.nat.clone_from(&config.balancer.nat);
        failures.extend(self.tell_mapping_rules().err());
        failures.extend(self.tell_translations().err());
        failures.extend(self.publish_due());
        failures.extend(self.list_services());
        // Health checks and routes are asked by the configuration in force.
        self.config.balancer.interfaces.clone_from(&config.balancer.interfaces);
        self.config.balancer.next_program.clone_from(&config.balancer.next_program);
        self.config.balancer.tunnel_source = config.balancer.tunnel_source;
        self.config.balancer.tunnel_source6 = config.balancer.tunnel_source6;
        self.config.balancer.metrics = config.balancer.metrics;
        self.config.balancer.hold_checks_at = config.balancer.hold_checks_at;
        self.config.balancer.web.clone_from(&config.balancer.web);
        self.config.api.clone_from(&config.api);
        self.config.balancer.follow_flows = config.balancer.follow_flows;
        self.config.announce.clone_from(&config.announce);
        self.config.agents.clone_from(&config.agents);
        self.tell_metrics();
        self.tell_seeker();
        self.tell_front();
        self.tell_listener();
        let rate = config.balancer.icmp_per_second;
        self.plane.set_message_rates(rate, if config.balancer.echo { rate } else { 0 });
        self.plane.set_reset_rate(config.balancer.resets_per_second);
        self.config.balancer.resets_per_second = config.balancer.resets_per_second;
        let names: Vec<String> = self.services.keys().cloned().collect();
        names.iter().for_each(|name| self.mark_resets(name));
        self.set_targets();
        self.hop_tries = NEXT_HOPS_TRIES;
        let looked = match elsewhere {
            true => self.refresh_next_hops(false),
            false => self.look_after(&changed),
        };
        tolerate("look up next hops", looked);
        self.save_later();
        failures
    }

    /// Whoever was down by a check that there is no more counts as up.
    fn believe_the_unchecked(&mut self) {
        let mut risen = Vec::new();
        for service in self.services.values() {
            for member in service.pool.iter().filter(|member| !member.up) {
                if service.configured.check_of(&member.wanted).is_none() {
                    let (id, at) = (service.target(member.id), std::time::Instant::now());
                    risen.push(Transition {
                        id,
                        up: true,
                        spoken: None,
                        detail: "not checked".into(),
                        at,
                    });
                }
            }
        }
        for one in &risen {
            self.health_changed(one);
        }
    }

    /// Says from which sources the services take packets, and how many new flows, and lets packets find those
    /// that they do not find yet: none before that is in force. Returns what could not be done.
    pub(super) fn list_services(&mut self) -> Vec<EngineError> {
        let mut failures = Vec::new();
        let mut listed: HashMap<ServiceId, Vec<Listen>> = HashMap::new();
        for (at, number) in self.plane.services() {
            listed.entry(number).or_default().push(at);
        }
        let from = self.source();
        let refused = |error| of_limits::<P>(&from, error);
        for (name, service) in &mut self.services {
            let now = listed.get(&service.number).map_or(&[][..], Vec::as_slice);
            let there = !now.is_empty();
            let told = match service.sources() {
                Some(sources) => self.plane.set_sources(service.number, sources).map_err(refused),
                None => Ok(()),
            };
            let caps = service.caps();
            let mut capped = || self.plane.set_flow_caps(service.number, caps.as_ref());
            let told = told.and_then(|()| capped().map_err(refused));
            let stands = match told {
                Err(_) if there => "packets are taken as before",
                _ => "packets do not find it",
            };
            let wanted = service.salts.places(&service.configured);
            let found = told.and_then(|()| {
                let mut new = wanted.iter().filter(|at| !now.contains(at));
                new.try_for_each(|at| self.plane.set_service(at, service.number).map_err(refused))
            });
            service.unlisted = match found {
                Ok(()) => None,
                Err(error) => {
                    failures.push(EngineError::Unfinished(format!("service {name}: {error}")));
                    Some(format!("{stands}: {error}"))
                }
            };
        }
        failures.extend(self.leave_places().err());
        failures
    }

    /// Services are not found any more where they do not listen any more. After all are found where they do,
    /// so that what goes from one to another is never nobody's.
    fn leave_places(&mut self) -> Result<(), EngineError> {
        let wanted = |service: &ServiceRuntime| (service.number, service.configured.places());
        let wanted: HashMap<ServiceId, Vec<Listen>> = self.services.values().map(wanted).collect();
        // Whoever wants a place and could not take it yet takes it from whom it is with.
        let claimed: HashSet<Listen> = wanted.values().flatten().copied().collect();
        for (at, number) in self.plane.services() {
            if wanted.contains_key(&number) && !claimed.contains(&at.place()) {
                self.plane.leave_place(&at, number).plane()?;
            }
        }
        Ok(())
    }

    /// Services in the data plane that nothing here knows: left by a run with another file.
    fn remove_strangers(&mut self) -> Result<(), EngineError> {
        let known: HashSet<ServiceId> = self.services.values().map(|one| one.number).collect();
        let there: BTreeSet<ServiceId> =
            self.plane.services().into_iter().map(|(_, number)| number).collect();
        for number in there.difference(&known.into_iter().collect()) {
            self.plane.remove_service(*number).plane()?;
        }
        Ok(())
    }

    /// A service is gone; what the data plane has of it goes with [`clear_gone`](Self::clear_gone).
    fn retire(&mut self, name: &str) {
        let Some(service) = self.services.remove(name) else { return };
        self.names.remove(&service.number);
        self.driver.forget(service.number);
        let members = service.pool.iter().map(|member| member.id);
        let backends = members.chain(service.leaving.iter().copied()).collect();
        self.gone.push(Gone { number: service.number, backends });
        if let Some(log) = &service.log {
            let _ = std::fs::remove_file(log.path());
            let _ = std::fs::remove_file(refusals_beside(log.path()));
        }
    }

    /// Clears away what the data plane has of services that are gone.
    pub(super) fn clear_gone(&mut self) -> Result<(), EngineError> {
        while let Some(gone) = self.gone.last() {
            self.plane.remove_service(gone.number).plane()?;
            let backends = gone.backends.clone();
            self.forget_backends(&backends)?;
            self.gone.pop();
        }
        Ok(())
    }

    /// A member of a pool, with a number that nobody has, of so many as there are or, if that is more, as there
    /// are to be. Nothing is told to the data plane.
    pub(super) fn allot(
        &self,
        wanted: Backend,
        up: bool,
        (numbers, most): (&mut Numbers, u32),
    ) -> Result<PoolMember, EngineError> {
        let limit = self.plane.limits().backends.max(most).min(32_767);
        let id = numbers.give(limit).or_else(|| numbers.give_reserved(limit));
        let id = id.and_then(|id| BackendId::new(u16::try_from(id).ok()?)).ok_or_else(|| {
            EngineError::Conflict(format!(
                "all {limit} numbers of limits.backends are in use, of backends that are leaving, too"
            ))
        })?;
        Ok(self.member(id, wanted, up, true))
    }

    /// `anew`: the number stood for another backend before, if for any.
    fn member(&self, id: BackendId, wanted: Backend, up: bool, anew: bool) -> PoolMember {
        let detail = if up { "assumed" } else { "not checked yet" };
        let down_since = (!up).then(std::time::Instant::now);
        let before = self.document.incarnations.get(&id.get()).copied().unwrap_or_default();
        let incarnation = before + u32::from(anew);
        let (proven, detail) = (up, detail.into());
        let (spoken, rising, found) = (None, None, None);
        PoolMember {
            id,
            incarnation,
            wanted,
            up,
            proven,
            down_since,
            spoken,
            rising,
            detail,
            found,
        }
    }

    /// Tells the data plane of a backend. `anew`: its number stood for another one before.
    pub(super) fn install(
        &mut self,
        member: &PoolMember,
        (forward, segments, ports): Way,
        anew: bool,
    ) -> Result<(), EngineError> {
        let PoolMember { id, incarnation, wanted, up, .. } = member;
        let (address, incarnation, up) = (wanted.address, *incarnation, *up);
        self.document.incarnations.insert(id.get(), incarnation);
        if anew {
            self.plane.reset_lane(*id).plane()?;
        } else if self.plane.backend(*id).is_some_and(|b| b.address == address) {
            return Ok(());
        }
        // The FIB knows next hops, and not where a tunnel begins.
        let asked = forward.passes_routers();
        let path = asked.then(|| (self.path)(address, &self.vips()).ok()).flatten();
        let tunnel = self.tunnel(address, forward, path.as_ref());
        let translation = translation(forward, wanted, path.map_or(0, |path| path.mtu), ports);
        let entry = weir_plane::Backend {
            address,
            incarnation,
            up,
            resets: false,
            hop: None,
            tunnel,
            translation,
            segments,
        };
        self.plane.set_backend(*id, Some(&entry)).plane()
    }

    /// Numbers of backends that are in use.
    pub(super) fn numbers(&self) -> Numbers {
        let members = self.services.values().flat_map(|service| &service.pool);
        let leaving = self.services.values().flat_map(|service| &service.leaving).copied();
        let gone = self.gone.iter().flat_map(|gone| gone.backends.iter().copied());
        let untaken = self.untaken.iter().copied();
        let used = members.map(|member| member.id).chain(leaving).chain(gone).chain(untaken);
        let saved = self.document.services.values().flat_map(|service| &service.backends);
        let saved = saved.map(|backend| u32::from(backend.id));
        Numbers::counted(used.map(|backend| backend.get().into()), saved)
    }

    /// Numbers for new services: those that nobody has, and then those of services that go; of `most`, if the
    /// data plane is to have room for more than now.
    fn service_numbers(
        &self,
        wanted: usize,
        remove: &[String],
        most: u32,
    ) -> Result<Vec<ServiceId>, EngineError> {
        let saved = self.document.services.values().map(|service| ServiceId(service.number));
        let saved: HashSet<ServiceId> = saved.collect();
        let gone = self.gone.iter().map(|gone| gone.number);
        let used: HashSet<ServiceId> = self.names.keys().copied().chain(gone).collect();
        let limit = self.plane.limits().services.max(most);
        let unused = || (0..limit).map(ServiceId).filter(|number| !used.contains(number));
        let free = unused().filter(|number| !saved.contains(number));
        let left = unused().filter(|number| saved.contains(number));
        let freed = remove.iter().filter_map(|name| Some(self.services.get(name)?.number));
        let numbers: Vec<ServiceId> = free.chain(left).chain(freed).take(wanted).collect();
        if numbers.len() < wanted {
            return Err(EngineError::Conflict(format!(
                "all {limit} numbers of limits.services are in use"
            )));
        }
        Ok(numbers)
    }

    fn log_names(&self) -> HashSet<String> {
        let running = self.services.values().map(|service| service.log_name.clone());
        let saved = self.document.services.iter();
        let saved = saved.map(|(name, saved)| saved.log.clone().unwrap_or_else(|| name.clone()));
        running.chain(saved.filter(|_| self.services.is_empty())).collect()
    }
}

/// A refusal of what would break connections.
fn unless_breaking(why: &str) -> EngineError {
    let stop = if why.ends_with('?') { "" } else { "." };
    EngineError::Conflict(format!(
        "{why}{stop} Nothing has changed; --break-connections does it all the same"
    ))
}

/// Why connections break if a service's packets get other addresses, or get none any more.
fn readdressed(now: &Service, wanted: &Service) -> Option<String> {
    let kind = |forward: Forward| (forward.is_nat(), forward.is_full_nat());
    let other = kind(now.forward) != kind(wanted.forward);
    other.then(|| {
        let (from, to) = (now.forward.name(), wanted.forward.name());
        format!(
            "forward: from {from} to {to}, backends would find packets of their connections with another \
             address"
        )
    })
}

/// The name, or one made of it that nobody has yet.
fn free_name(name: &str, taken: &mut HashSet<String>) -> String {
    let others = (2..).map(|n| format!("{name}.{n}"));
    let free = std::iter::once(name.to_owned()).chain(others).find(|name| !taken.contains(name));
    let free = free.unwrap_or_default();
    taken.insert(free.clone());
    free
}
