//! Another method, or other settings of it, for a service whose connections go on.
//!
//! What packets follow and what the file wants are two things until a table of the new method is
//! published. The update that does it is one like any other, record, collect, commit: connections
//! that begin meanwhile are noted as pending, and the new table, or the connection table, has all
//! that were known when it is seen.

use super::EngineError;
use super::beyond::refusals_beside;
use super::cookies::place_words;
use super::prefixes::Counted;
use super::service::{FEWEST_STATES, Pins, ServiceRuntime, log_path, write_anew};
use crate::config::{Affinity, CookieKeys, Key, Method, Service};
use crate::store::StateLog;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use tracing::info;
use weir_fleet::Step;
use weir_steering::{BackendId, InFleet, Known, LOAD, Phase, SCHEDULER, ServiceState, StateKey};

/// What a service's published tables are made by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InForce {
    /// The method and its settings.
    pub method: Method,
    /// What stays together on one backend.
    pub affinity: Affinity,
    /// What its cookies are hidden under, if the file says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie_key: Option<Key>,
    /// What else they are hidden under, if that may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie_keys: Option<CookieKeys>,
    /// What else of the file its keys are drawn from, if it gives any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

impl InForce {
    /// Whether the other differs in who gets first packets, and in nothing else: every connection is
    /// found as before.
    fn only_schedules(&self, other: &Self) -> bool {
        let rest = |one: &Self| {
            let settings = one.method.settings().iter();
            let rest = settings.filter(|(setting, _)| ![SCHEDULER, LOAD].contains(&setting.name));
            let cookies = (one.cookie_key.clone(), one.cookie_keys.clone(), one.place.clone());
            (
                one.affinity,
                cookies,
                one.method.id(),
                rest.map(|(_, value)| value).collect::<Vec<_>>(),
            )
        };
        rest(self) == rest(other)
    }

    /// Whether the other differs in the keys of cookies that say their keys, and in who gets first packets, and in
    /// nothing else.
    fn only_turns_keys(&self, other: &Self) -> bool {
        self.cookie_keys.is_some()
            && other.cookie_keys.is_some()
            && self.only_schedules(&Self { cookie_keys: self.cookie_keys.clone(), ..other.clone() })
    }

    /// Whether the key that issues is still read when the service is as it is wanted.
    fn issuing_key_stays(&self, wanted: &Service) -> bool {
        let (now, next) = (self.cookie_keys.as_ref(), wanted.cookie_keys.as_ref());
        now.is_none_or(|now| now.issuing() == next.and_then(|next| next.key(now.issue)))
    }

    /// Whether the other has another key in the place of one that is read yet. By that one the cookies would be read
    /// that were made by the former.
    fn replaces_key(&self, other: &Self) -> bool {
        let (now, next) = (self.cookie_keys.as_ref(), other.cookie_keys.as_ref());
        now.zip(next).is_some_and(|(now, next)| now.replaced_by(next).is_some())
    }

    /// Why the same keys in the file would be others in tables.
    fn draws_elsewhere(&self, other: &Self) -> Option<String> {
        let (now, next) = self.place.as_ref().zip(other.place.as_ref())?;
        (now != next).then(|| {
            format!(
                "vip: the keys of its cookies are drawn from its first address and its port, too, which are {now} and \
                 would be {next}; keep the first address first, and the port"
            )
        })
    }

    /// Whether the other has other keys of cookies, or another one of them issues.
    pub(super) fn turns_keys(&self, other: &Self) -> bool {
        self.only_turns_keys(other) && self.cookie_keys != other.cookie_keys
    }

    /// Whether the numbers that cookies hide stay.
    fn keeps_numbers(&self, other: &Self) -> bool {
        self.only_schedules(other) || self.only_turns_keys(other)
    }

    /// As a configuration wants it.
    pub fn of(service: &Service) -> Self {
        let (cookie_key, cookie_keys) = (service.cookie_key.clone(), service.cookie_keys.clone());
        let given = cookie_key.is_some() || cookie_keys.is_some();
        let place = given.then(|| place_words(service));
        let method = service.method.clone();
        Self { method, affinity: service.affinity, cookie_key, cookie_keys, place }
    }
}

/// Where the steps of a rotation are said.
pub(super) const ROTATION: &str = "docs/cheetah.md, Rotation";

/// What a change of a service's method does to its connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// There is none.
    Same,
    /// They go on.
    Carried,
    /// Some of them break, and why.
    Breaks(String),
}

/// What the connection table has told of a connection.
#[derive(Clone, Copy)]
struct Tracked {
    backend: BackendId,
    /// FIN or RST has been seen: it is kept as long as it goes on, and for a minute.
    ended: bool,
}

/// A change of method that is under way.
pub(super) struct Turn {
    /// Whether connections go on.
    carried: bool,
    /// Connections that the data plane's connection table has told.
    told: HashMap<StateKey, Tracked>,
    /// The build face of the new method, with a table that is not published yet.
    next: Option<Counted>,
    /// Where the new method's states are written down.
    log: Option<StateLog>,
    /// The table that is made now is one of the method before, as the others do not change theirs yet.
    held: bool,
}

impl Turn {
    /// How far it is.
    pub fn stands(&self, service: &ServiceRuntime) -> String {
        let (from, to) = (service.in_force.method.id(), service.configured.method.id());
        match from == to {
            true => format!("packets follow a table of other settings of {to} than the file's"),
            false => format!("packets follow {from}, and not {to} yet, as the file has it"),
        }
    }
}

impl ServiceRuntime {
    /// What would become of connections if the service were as it is wanted. `tracked`: connections
    /// that the data plane's connection table has room for.
    ///
    /// In a fleet the one that was asked has judged a change of keys; the others follow it, also those that have
    /// missed the one before.
    pub fn change_to(&self, wanted: &Service, tracked: usize, of_fleet: bool) -> Change {
        let now = &self.in_force;
        if *now == InForce::of(wanted) {
            return Change::Same;
        }
        if now.only_schedules(&InForce::of(wanted)) {
            return Change::Carried;
        }
        if let Some(why) = now.draws_elsewhere(&InForce::of(wanted)) {
            return Change::Breaks(why);
        }
        if now.turns_keys(&InForce::of(wanted)) {
            if of_fleet {
                return Change::Carried;
            }
            if now.issuing_key_stays(wanted) && now.replaces_key(&InForce::of(wanted)) {
                return Change::Breaks(format!(
                    "cookie_keys: another key would read the cookies of one that is read yet; remove that one first, \
                     when its connections have ended, and add the other one then ({ROTATION})"
                ));
            }
            return match now.issuing_key_stays(wanted) {
                true => Change::Carried,
                false => Change::Breaks(format!(
                    "cookie_keys: the one that issues goes, under which are the cookies of connections; keep it, \
                     let another one issue, and remove it when they have ended ({ROTATION})"
                )),
            };
        }
        let (from, to) = (now.method.id(), wanted.method.id());
        if now.affinity != wanted.affinity {
            let by = |affinity| match affinity {
                Affinity::Flow => "by flow",
                Affinity::Client => "by client",
            };
            let (was, will) = (by(now.affinity), by(wanted.affinity));
            return Change::Breaks(format!(
                "affinity: connections are remembered {was}, which does not tell where they live {will}"
            ));
        }
        if !from.needs().states && !from.info().tracks_all {
            let what = if from == to { "settings of " } else { "" };
            return Change::Breaks(format!(
                "method: {what}{from} cannot change under connections, as it does not know where \
                 each of them lives"
            ));
        }
        if !to.needs().states && !to.info().tracks_all {
            return Change::Breaks(format!(
                "method: {to} cannot be told where connections live that it did not place"
            ));
        }
        let states = self.builder.states();
        if from.needs().states && to.info().tracks_all && states > tracked {
            let mut ended = 0;
            self.builder.each_state(&mut |_, known| {
                ended += usize::from(known.phase == Phase::Closing);
            });
            let among = match ended {
                0 => String::new(),
                1 => ", 1 among them that has ended lately".into(),
                many => format!(", {many} among them that have ended lately"),
            };
            return Change::Breaks(format!(
                "method: {states} connections would be taken over{among}, and limits.tracked_flows = {tracked} has \
                 not room for all of them; raise it"
            ));
        }
        Change::Carried
    }

    /// From now on tables are to be made by what the service is configured with. Returns whether
    /// the change can be prepared; until it is published, nothing else differs.
    ///
    /// # Errors
    /// [`EngineError::Store`] if there is no place to write states down.
    pub fn prepare_turn(
        &self,
        wanted: &Service,
        carried: bool,
        run_dir: &Path,
    ) -> Result<Option<Turn>, EngineError> {
        if self.in_force == InForce::of(wanted) {
            return Ok(None);
        }
        let log = if wanted.method.id().needs().states && self.log.is_none() {
            let path = log_path(run_dir, &self.log_name);
            // What an earlier time with such a method has left says nothing of now.
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_file(refusals_beside(&path));
            Some(StateLog::open(path)?.0)
        } else {
            None
        };
        Ok(Some(Turn { carried, told: HashMap::new(), next: None, log, held: false }))
    }

    /// Whether the connections in the data plane's connection table have to be collected.
    pub fn takes_connections(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.carried)
            && self.in_force.method.id().info().tracks_all
            && self.configured.method.id().needs().states
    }

    /// Whether the next table is the first whose packets follow the connection table.
    pub fn begins_connections(&self) -> bool {
        let needs = |method: &Method| method.id().needs().connections;
        self.turn.is_some() && !needs(&self.in_force.method) && needs(&self.configured.method)
    }

    /// Takes up what the connection table says, if that is asked for: what packets follow now has
    /// no states of its own.
    pub fn told(&mut self, key: StateKey, backend: BackendId) -> bool {
        let takes = self.takes_connections();
        match &mut self.turn {
            Some(turn) if takes => {
                let known = turn.told.get(&key).filter(|known| known.backend == backend);
                let ended = known.is_some_and(|known| known.ended);
                turn.told.insert(key, Tracked { backend, ended });
                true
            }
            _ => false,
        }
    }

    /// Whether a connection that was [told](Self::told) has ended, as the connection table says.
    pub fn told_end(&mut self, key: &StateKey, ended: bool) {
        if let Some(told) = self.turn.as_mut().and_then(|turn| turn.told.get_mut(key)) {
            told.ended = ended;
        }
    }

    /// The build face that makes the next table, and the connections that the data plane's
    /// connection table must have before packets follow that.
    pub fn next_builder(&mut self, now: u32) -> Result<(&mut Counted, Pins), EngineError> {
        let config = self.service_config(self.builder.states().max(FEWEST_STATES), now);
        let goes_on = self.in_force.keeps_numbers(&InForce::of(&self.configured));
        let Some(turn) = self.turn.as_mut().filter(|turn| !turn.held) else {
            return Ok((&mut self.builder, Vec::new()));
        };
        let method = &self.configured.method;
        // With the numbers that cookies hide, for one.
        let published = self.builder.published().filter(|_| goes_on).cloned();
        let mut next = Counted::new(method.builder(&config, published), config.nonce);
        let mut tracked = Vec::new();
        if turn.carried {
            let members: HashSet<BackendId> = self.pool.iter().map(|member| member.id).collect();
            let tracks = method.id().info().tracks_all;
            let mut refused = None;
            let mut take = |key: &StateKey, known: Known| {
                let id = known.backend;
                if !members.contains(&id) {
                } else if tracks {
                    tracked.push((ServiceState { service: self.number, key: *key }, id));
                } else if let Err(error) = next.adopt(*key, known) {
                    refused.get_or_insert(error);
                }
            };
            self.builder.each_state(&mut take);
            for (key, Tracked { backend, ended }) in &turn.told {
                let phase = if *ended { Phase::Closing } else { Phase::Open };
                take(key, Known { backend: *backend, phase, born: now, seen: now });
            }
            refused.map_or(Ok(()), Err)?;
        }
        // Written down before packets follow it: a process that dies afterwards knows them.
        if let Some(log) = &mut turn.log {
            write_anew(log, &*next, now)?;
        }
        Ok((turn.next.insert(next), tracked))
    }

    /// A table of the new method is what packets follow. Returns whether there was a change of
    /// method under way.
    pub fn turned(&mut self, now: u32) -> Result<bool, EngineError> {
        let Some(turn) = &mut self.turn else { return Ok(false) };
        let Some(next) = turn.next.take() else { return Ok(false) };
        let (log, carried) = (turn.log.take(), turn.carried);
        self.turn = None;
        let (from, to) = (self.in_force.method.id(), self.configured.method.id());
        self.left_connections = from.needs().connections && !to.needs().connections;
        self.unreported = from.info().tracks_all && to.needs().states;
        self.in_force = InForce::of(&self.configured);
        self.builder = next;
        self.builder.publish_draft();
        self.count_prefixes();
        self.tell_builder(now);
        self.unwritten = None;
        self.refusals.all.end(self.refused());
        info!(service = self.configured.name, %from, %to, states = self.builder.states(), "turned");
        if !to.needs().states {
            if let Some(log) = self.log.take() {
                let _ = std::fs::remove_file(log.path());
                self.remove_refusals(log.path());
            }
            return Ok(true);
        }
        if let Some(log) = log {
            self.log = Some(log);
        } else if !carried {
            // Else what stands there is what has been carried over.
            self.rewrite_log(now)?;
        }
        Ok(true)
    }

    /// Whether the data plane's connection table has entries of the method before, which nobody keeps up
    /// any more. Says so once.
    pub fn left_connections(&mut self) -> bool {
        std::mem::take(&mut self.left_connections)
    }

    /// Whether a pending flow may be known to nobody but the pending table. One that began under a method
    /// that tracks all, after *collect*, was noted there and not reported, as that method reports none. Even
    /// if the new table happens to lead to its backend, it has to be collected before it is settled, or the
    /// next change of the pool moves it.
    pub fn is_unreported(&self, key: &StateKey, backend: BackendId) -> bool {
        self.unreported && self.known(key).is_none_or(|known| known.backend != backend)
    }

    /// From now on tables are made by what packets follow, or no longer.
    pub fn hold_turn(&mut self, held: bool) {
        if let Some(turn) = &mut self.turn {
            turn.held = held;
        }
    }

    /// Whether the table that is made now is one of the method before.
    fn holds_turn(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.held)
    }

    /// Whether all balancers of a fleet follow one table of the method that packets follow now.
    pub fn follows_shared(&self) -> bool {
        self.in_force.method.id().info().in_fleet == InFleet::Shared
    }

    /// The same of the method that the next table is made by.
    pub fn makes_shared(&self) -> bool {
        if self.holds_turn() { self.follows_shared() } else { self.is_shared() }
    }

    /// Whether packets are to follow another method, or other settings of it, and the fleet has not come to that by this
    /// step, as far as the step tells: it names tables, or rows, of the kind that it has made last. Where both are of
    /// one kind nothing tells, and the next step makes it.
    pub fn waits_to_turn(&self, step: &Step) -> bool {
        // Every turn comes here, for all services.
        if self.turn.is_none() {
            return false;
        }
        let (name, to) = (&self.configured.name, self.configured.method.id().info().in_fleet);
        let made = match to {
            InFleet::Alone => false,
            InFleet::InStep => step.rows.contains_key(name),
            InFleet::Shared => step.tables.contains_key(name),
        };
        !made || self.in_force.method.id().info().in_fleet == to
    }

    /// Whether the fleet has come to it, by this step, and this balancer has not, and has not failed in it just now. Of a
    /// method that knows no steps that stands nowhere: what the step says may be of a time before it.
    pub fn has_missed_turn(&self, step: &Step) -> bool {
        let alone = self.in_force.method.id().info().in_fleet == InFleet::Alone;
        self.turn.is_some() && !alone && self.trouble.is_none() && !self.waits_to_turn(step)
    }

    /// Whether what packets follow until it turns changes in step, too, and can be made anew here meanwhile.
    pub fn can_be_held(&self) -> bool {
        match self.in_force.method.id().info().in_fleet {
            InFleet::Alone => false,
            InFleet::InStep => true,
            InFleet::Shared => self.base.is_some(),
        }
    }

    /// The table of the new method cannot be published: it is made anew the next time.
    pub fn not_turned(&mut self) -> bool {
        let Some(turn) = &mut self.turn else { return false };
        turn.told.clear();
        turn.next.take().is_some()
    }
}
