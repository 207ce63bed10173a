//! What this balancer shares with the others of its fleet: it proposes changes to the store, and follows what
//! the store has (docs/fleet.md).
//!
//! A command that changes services is looked at here as always, but not followed: it becomes a document that
//! replaces the one in the store, if that is still the one that it was made of. All balancers follow the store,
//! this one at the moment that it has its answer. Without the store everything goes on as it is.

mod apart;
mod begin;
mod file;
mod named;
mod namesake;
mod status;
mod stored;
mod unfit;

pub use begin::{Start, Ways, begin};
pub use status::{BalancerStatus, FleetStatus};
pub(super) use status::{digest_of, digest_of_rows};
pub(super) use unfit::words as unfit_words;

use self::apart::Apart;
use self::file::{called, parse_joined, told_apart};
use self::stored::Behind;
use super::commands::{Command, Done, Last};
use super::cookies::settings_of;
use super::history::{Apply, Beside};
use super::places::Salts;
use super::reload::How;
use super::service::ServiceRuntime;
use super::shared::Fetching;
use super::step::Stepping;
use super::{Engine, EngineError, Sender};
use crate::config::{Backend, Config, Service, Source};
use crate::history::Who;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};
use weir_fleet::text::{self, Edit};
use weir_fleet::{
    Ask, Asks, Cache, Document, FleetError, Keeper, Keys, News, Numbered, Report, Sign, Step,
    cache_path,
};
use weir_plane::Plane;
use weir_steering::cheetah::{AllServers, numbers};
use weir_steering::{MethodId, ServiceId};

/// Where it stands, in the run directory, which term was the highest that was heard of.
const TERM: &str = "term.json";
/// Changes that wait for the one that is on its way to the store.
const MOST_WAITING: usize = 256;

/// What a start knows of its fleet.
#[derive(Clone, Debug)]
pub struct Begun {
    /// What the balancer keeps of it.
    pub cache: Cache,
    /// The step of the pools that the store has; none if it has none, or does not answer.
    pub step: Option<Step>,
    /// What of the configuration is its own.
    pub own: String,
    /// Whether it has been in the fleet before.
    pub joined: bool,
    /// The services that it has followed last, which it has left in its file.
    pub left: Option<String>,
    /// Whether the store was heard, and this start goes by what it has.
    pub followed: bool,
    /// What there is to tell.
    pub notes: Vec<String>,
}

/// What comes from the store.
pub enum FleetNews {
    /// It has this configuration, or none, at this revision.
    Config(Option<Box<Document>>, i64),
    /// It has this step of the pools, or none, at this revision.
    Step(Option<Box<Step>>, i64),
    /// Who lives, who leads, or how far somebody is in a step, is another than before.
    Others,
    /// Another balancer has given the table of this service, with this digest, or nobody has, and why.
    Table(String, String, Result<Vec<u8>, String>),
    /// What has become of a step that this balancer has written as the leader.
    Stepped(Result<(), FleetError>),
    /// What has become of a change that this balancer has proposed.
    Proposed(Box<Proposed>, Result<i64, FleetError>),
}

/// A change on its way to the store.
pub struct Proposed {
    document: Document,
    /// The change that this balancer followed when it was made. The store may have had a later one by then.
    made_of: u64,
    /// This balancer's own part, if that is another, too.
    own: Option<String>,
    /// The services whose backends it changes.
    pools: BTreeSet<String>,
    /// What was done, in words; none: what following it says.
    said: Option<String>,
    reply: Option<oneshot::Sender<Done>>,
    last: Option<oneshot::Sender<Last>>,
}

/// What is to be proposed.
struct Wanted {
    shared: String,
    own: Option<String>,
    said: Option<String>,
    what: &'static str,
    breaking: bool,
    /// It is a whole text, in the place of whatever the store has, followed or not.
    whole: bool,
}

/// This balancer in its fleet.
pub(super) struct Fleet {
    cache: Cache,
    cache_path: PathBuf,
    own: String,
    /// Whether services that other keys are wanted for are refused: those of a balancer that was not of the
    /// fleet before.
    strange: bool,
    /// The services that the process before this one has left in the file.
    left: Option<String>,
    /// What tables are made by, beside the configuration.
    keys: BTreeMap<String, Keys>,
    /// The revision of what is followed; 0: the store has nothing; none: it was not heard yet.
    revision: Option<i64>,
    /// What the store has and is not followed, and why.
    behind: Option<Behind>,
    apart: Apart,
    /// A change is on its way.
    proposing: bool,
    waiting: VecDeque<(Who, Option<oneshot::Sender<Last>>, Command)>,
    ends: Option<Contact>,
    /// Digests of tables, by the generation that they are of.
    pub(super) digests: HashMap<ServiceId, (u64, String)>,
    /// Changes of pools that all make in step.
    pub(super) stepping: Stepping,
    /// Tables that all have alike, on their way here.
    pub(super) fetching: Fetching,
    /// Configurations that have come during a step, which is of the one before.
    held: VecDeque<FleetNews>,
    /// The change that is followed just now, and what it has done, if that was said.
    following: Option<(u64, Option<String>)>,
}

/// The way to the keeper.
struct Contact {
    asks: Asks,
    sign: watch::Sender<Sign>,
    report: watch::Receiver<Report>,
    commands: Sender,
}

/// Whether a command changes what the fleet shares.
fn is_shared(command: &Command) -> bool {
    use Command::{Add, Apply, Drain, Reload, Remove, Rollback, Set, Weight};
    matches!(
        command,
        Add(..)
            | Set(..)
            | Remove(..)
            | Drain(..)
            | Weight(..)
            | Apply(..)
            | Rollback(..)
            | Reload(..)
    )
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn parse(
    text: &str,
    path: &Path,
    plane: Option<crate::config::PlaneKind>,
    lists: Option<&crate::config::KeptLists>,
) -> Result<Config, EngineError> {
    Ok(Config::parse_kept(text, &path.display().to_string(), plane, lists)?)
}

impl Fleet {
    pub(super) fn new(begun: Begun, config_path: &Path) -> Self {
        begun.notes.iter().for_each(|note| warn!("{note}"));
        let keys = begun.cache.document.as_ref().map(|document| document.services.clone());
        let stepping = Stepping::new(begun.cache.step.clone(), begun.step);
        Self {
            cache: begun.cache,
            cache_path: cache_path(config_path),
            own: begun.own,
            strange: !begun.joined,
            left: begun.left,
            keys: keys.unwrap_or_default(),
            revision: None,
            behind: None,
            apart: Apart::new(begun.followed),
            proposing: false,
            waiting: VecDeque::new(),
            ends: None,
            digests: HashMap::new(),
            stepping,
            fetching: Fetching::default(),
            held: VecDeque::new(),
            following: None,
        }
    }

    /// A test plays the keeper.
    #[cfg(test)]
    pub(super) fn keep_by(
        &mut self,
        asks: Asks,
        sign: watch::Sender<Sign>,
        report: watch::Receiver<Report>,
        commands: Sender,
    ) {
        self.ends = Some(Contact { asks, sign, report, commands });
        self.strange = false;
    }

    pub(super) fn id(&self) -> &str {
        &self.cache.id
    }

    pub(super) fn asks(&self) -> Option<&Asks> {
        self.ends.as_ref().map(|ends| &ends.asks)
    }

    /// Where asks go, and where the engine hears what has become of them.
    pub(super) fn ways(&self) -> Option<(Asks, Sender)> {
        self.ends.as_ref().map(|ends| (ends.asks.clone(), ends.commands.clone()))
    }

    /// The revision of the configuration that is followed, if the store has one.
    pub(super) fn revision(&self) -> Option<i64> {
        self.revision.filter(|revision| *revision > 0)
    }

    /// Whether this balancer follows the configuration that the store has.
    pub(super) fn is_followed(&self) -> bool {
        self.revision().is_some() && self.behind.is_none()
    }

    /// Whether configurations wait for the end of a step.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// What is known of the others. Without a copy: there may be much of it.
    pub(super) fn with_report<T>(&self, look: impl FnOnce(&Report) -> T) -> T {
        match &self.ends {
            Some(ends) => look(&ends.report.borrow()),
            None => look(&Report::default()),
        }
    }

    /// Whether this balancer leads, and its term.
    pub(super) fn leads(&self) -> (bool, u64) {
        self.with_report(|report| {
            (report.leads(), report.leader.as_ref().map_or(0, |leader| leader.term))
        })
    }

    /// A restart goes on from this step, whose pools are in force.
    pub(super) fn keep_step(&mut self, step: &Step) -> Result<(), EngineError> {
        if self.cache.step.as_ref() != Some(step) {
            self.cache.step = Some(step.clone());
            self.cache.save(&self.cache_path)?;
        }
        Ok(())
    }

    pub(super) fn change(&self) -> u64 {
        self.cache.document.as_ref().map_or(0, |document| document.change)
    }

    fn shared(&self) -> &str {
        self.cache.document.as_ref().map_or("", |document| &document.text)
    }

    fn report(&self) -> Report {
        self.ends.as_ref().map(|ends| ends.report.borrow().clone()).unwrap_or_default()
    }
}

impl<P: Plane> Engine<P> {
    /// Whether others decide what it serves, too.
    pub(super) fn is_of_fleet(&self) -> bool {
        self.fleet.is_some()
    }

    /// The configuration in force, as one text, where that is not what stands in the file.
    pub(super) fn fleet_text(&self) -> Option<String> {
        let fleet = self.fleet.as_ref()?;
        fleet.cache.document.as_ref().map(|document| text::join(&fleet.own, &document.text))
    }

    /// Whether a running service has the seed that the fleet has for it.
    pub(super) fn has_seed_of(&self, now: &ServiceRuntime, wanted: &Service) -> bool {
        let keys = self.fleet.as_ref().and_then(|fleet| fleet.keys.get(&wanted.name));
        keys.is_none_or(|keys| keys.seed == now.seed)
    }

    /// Whether connections may be lost that were made under other seeds than the fleet's.
    pub(super) fn keeps_seeds(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| fleet.strange)
    }

    /// The seed of a service that is new here.
    pub(super) fn seed_for(&self, wanted: &Service) -> u64 {
        let keys = self.fleet.as_ref().and_then(|fleet| fleet.keys.get(&wanted.name));
        keys.map_or_else(rand::random, |keys| keys.seed)
    }

    /// What tells the addresses of a service apart, as the fleet has it.
    pub(super) fn salts_for(&self, wanted: &Service) -> Option<Salts> {
        let keys = self.fleet.as_ref()?.keys.get(&wanted.name)?;
        serde_json::from_value(keys.salts.clone()).ok()
    }

    /// Gives the services the numbers of servers that the fleet has.
    pub(super) fn number_servers(&mut self) {
        let Some(fleet) = &self.fleet else { return };
        for (name, service) in &mut self.services {
            let Some(keys) = fleet.keys.get(name) else { continue };
            let list: Vec<_> =
                keys.servers.iter().map(|one| (one.name.clone(), one.left)).collect();
            if service.method_wanted().needs().timestamps && service.servers.as_ref() != Some(&list)
            {
                service.servers = Some(list);
                service.dirty = true;
            }
        }
    }

    /// Begins to keep in touch with the store. The task that is returned does it, and what it tells goes to
    /// the engine as commands.
    pub(crate) fn join_fleet(
        &mut self,
        commands: Sender,
    ) -> Option<(Keeper, mpsc::Receiver<News>)> {
        let store = self.config.store.clone()?;
        if let Some(warning) = store.warning() {
            warn!("{warning}");
        }
        let name = self.config.balancer.name.clone();
        let terms = self.config.balancer.run_dir.join(TERM);
        let fleet = self.fleet.as_mut()?;
        let (keeper, ends) = Keeper::new(store, name, fleet.cache.id.clone());
        let keeper = keeper.above(fleet.stepping.term()).remembering(terms);
        let weir_fleet::Ends { asks, sign, report, news } = ends;
        fleet.ends = Some(Contact { asks, sign, report, commands });
        // From now on it is of the fleet, whatever it was before.
        let joins = std::mem::take(&mut fleet.strange);
        let left = fleet.left.take();
        if let Err(error) = fleet.cache.save(&fleet.cache_path) {
            warn!(%error, "a restart without the store will not know what the fleet does");
        }
        // Whoever has spoilt the file mends it; what goes on instead is said until then.
        if self.instead.is_none() {
            self.write_fleets_file(joins, left.as_deref());
        }
        self.tell_fleet();
        Some((keeper, news))
    }

    /// The way to the keeper, for who asks all balancers.
    pub(super) fn fleet_asks(&self) -> Option<Asks> {
        self.fleet.as_ref()?.ends.as_ref().map(|ends| ends.asks.clone())
    }

    /// Takes a command that changes what the fleet shares; gives back any other.
    pub(super) fn propose_command(&mut self, command: Command) -> Option<Command> {
        let Some(fleet) = self.fleet.as_mut().filter(|_| is_shared(&command)) else {
            return Some(command);
        };
        if fleet.proposing {
            if fleet.waiting.len() < MOST_WAITING {
                let last = self.asking.take();
                fleet.waiting.push_back((self.who.clone(), last, command));
            } else {
                let words = "too many changes wait for the store; nothing has changed, ask again";
                command.refuse(FleetError::Unreachable(words.into()).into());
            }
            return None;
        }
        let (wanted, reply) = self.wanted_by(command);
        match wanted {
            Err(error) => drop(reply.send(Err(error))),
            Ok(Ok(said)) => drop(reply.send(Ok(said))),
            Ok(Err(wanted)) => self.propose(wanted, Some(reply)),
        }
        None
    }

    /// What a command makes of the shared configuration; or what there is to say if that is so already.
    fn wanted_by(
        &mut self,
        command: Command,
    ) -> (Result<Result<String, Wanted>, EngineError>, oneshot::Sender<Done>) {
        match command {
            Command::Add(service, backend, reply) => {
                (self.wants_backend(&service, &backend), reply)
            }
            Command::Set(service, backend, reply) => (self.wants_set(&service, &backend), reply),
            Command::Remove(service, backend, reply) => {
                let said = format!("backend {backend} removed from {service}");
                (self.wants_edits(&service, &backend, &[Edit::Remove], said), reply)
            }
            Command::Drain(service, backend, drain, reply) => {
                let word = if drain { "drains" } else { "serves again" };
                let said = format!("backend {backend} of {service} {word}");
                (self.wants_edits(&service, &backend, &[Edit::Drain(drain)], said), reply)
            }
            Command::Weight(service, backend, weight, reply) => {
                let said = format!("backend {backend} of {service} has weight {weight}");
                (self.wants_edits(&service, &backend, &[Edit::Weight(weight)], said), reply)
            }
            Command::Apply(apply, reply) => (self.wants_text(&apply, "apply"), reply),
            Command::Rollback(number, breaking, reply) => {
                let apply = self.text_to_go_back_to(number, breaking);
                (apply.and_then(|apply| self.wants_text(&apply, "rollback")), reply)
            }
            Command::Reload(breaking, reply) => {
                let file = self.config_path.display().to_string();
                let wanted =
                    Config::text(&self.config_path).map_err(EngineError::from).and_then(|text| {
                        let apply = Apply { file, text, break_connections: breaking, expect: None };
                        self.wants_text(&apply, "reload")
                    });
                (wanted, reply)
            }
            // Nobody hands such a one in.
            _ => (
                Err(EngineError::Invalid("not a change of the fleet".into())),
                oneshot::channel().0,
            ),
        }
    }

    fn wants_edits(
        &mut self,
        service: &str,
        backend: &str,
        edits: &[Edit],
        said: String,
    ) -> Result<Result<String, Wanted>, EngineError> {
        self.follows_store()?;
        self.find(service, backend)?;
        self.edited(service, backend, edits, said)
    }

    fn edited(
        &mut self,
        service: &str,
        backend: &str,
        edits: &[Edit],
        said: String,
    ) -> Result<Result<String, Wanted>, EngineError> {
        let before = self.fleet.as_ref().map_or("", Fleet::shared);
        let mut shared = before.to_owned();
        for edit in edits {
            shared = text::edit(&shared, service, backend, edit)?;
        }
        if shared == before {
            self.tell_last(true);
            return Ok(Ok(format!("{said} already")));
        }
        let said = Some(said);
        let (what, breaking, whole) = ("command", false, false);
        Ok(Err(Wanted { shared, own: None, said, what, breaking, whole }))
    }

    fn wants_backend(
        &mut self,
        service: &str,
        backend: &Backend,
    ) -> Result<Result<String, Wanted>, EngineError> {
        self.follows_store()?;
        self.service(service)?.may_add(backend, 0)?;
        self.lies_apart(backend.address)?;
        self.answers_apart(service, backend)?;
        if !backend.nat_sources.is_empty() {
            let why = "nat_sources: each balancer of a fleet has its own, and all have this backend; give none";
            return Err(EngineError::Invalid(why.into()));
        }
        let said = format!("backend {} added to {service}", backend.name);
        let Backend { address, port, weight, drain, .. } = *backend;
        self.edited(service, &backend.name, &[Edit::Add { address, port, weight, drain }], said)
    }

    fn wants_set(
        &mut self,
        service: &str,
        wanted: &Backend,
    ) -> Result<Result<String, Wanted>, EngineError> {
        self.follows_store()?;
        let Some(there) = self.service(service)?.member(&wanted.name) else {
            return self.wants_backend(service, wanted);
        };
        wanted.stays_at(&there.wanted, service)?;
        let drains = if wanted.drain { " and drains" } else { "" };
        let name = &wanted.name;
        let said = format!("backend {name} of {service} has weight {}{drains}", wanted.weight);
        let edits = [Edit::Weight(wanted.weight), Edit::Drain(wanted.drain)];
        self.edited(service, name, &edits, said)
    }

    fn wants_text(
        &mut self,
        apply: &Apply,
        what: &'static str,
    ) -> Result<Result<String, Wanted>, EngineError> {
        self.is_expected(apply.expect)?;
        self.read_as_own(&apply.text, &apply.file)?;
        let parts = text::split(&apply.text)?;
        let breaking = apply.break_connections;
        let there = self
            .fleet
            .as_ref()
            .is_some_and(|fleet| fleet.cache.document.is_some() && fleet.shared() == parts.shared);
        // Who hands in a whole text means it, whatever the store has; a file that is read again may be an old one.
        // Where its own part alone is another, that comes first: with it this balancer may follow what the store has.
        let differ = self.is_behind() || self.others_are_apart();
        let whole = what != "reload" && differ && !self.mends_own(&parts);
        if there && !whole {
            // What is this balancer's own needs no store.
            let done = self.follow_own(parts.own, breaking, what);
            return done.map(|said| Ok(said + &self.behind_words()));
        }
        if !whole {
            self.follows_store()?;
        }
        let (shared, own) = (parts.shared, Some(parts.own));
        Ok(Err(Wanted { shared, own, said: None, what, breaking, whole }))
    }

    /// Follows another configuration of this balancer alone.
    fn follow_own(&mut self, own: String, breaking: bool, what: &str) -> Done {
        let Some(fleet) = &self.fleet else { return Ok(String::new()) };
        let text = text::join(&own, fleet.shared());
        let from = Source::File(self.config_path.clone());
        let done = self.follow_and_write(&text, from, breaking, what);
        if let (Ok(_) | Err(EngineError::Unfinished(_)), Some(fleet)) = (&done, &mut self.fleet) {
            fleet.own = own;
        }
        done
    }

    /// Follows a whole text, and makes it the instance's file; `from` is where problems of it are told.
    fn follow_and_write(&mut self, text: &str, from: Source, breaking: bool, what: &str) -> Done {
        let path = self.config_path.clone();
        let differs = Config::text(&path).map_or(true, |there| there != text);
        let beside = if differs { Some(Beside::write(&path, text)) } else { None };
        let beside = beside.transpose().map_err(|error| {
            let path = path.display();
            EngineError::Conflict(format!(
                "{path} cannot be replaced: {error}; nothing has changed"
            ))
        })?;
        let edited = if differs { self.keep_edited(text)? } else { String::new() };
        // First the file, as with a file that is applied alone.
        let exchange = || beside.as_ref().map_or(Ok(()), Beside::exchange);
        exchange().map_err(|error| {
            let path = path.display();
            EngineError::Conflict(format!(
                "{path} cannot be replaced: {error}; nothing has changed"
            ))
        })?;
        let followed = self.follow_text(text, from, breaking, what);
        if let Err(error) = &followed
            && !matches!(error, EngineError::Unfinished(_))
        {
            if let Err(other) = exchange() {
                let path = path.display();
                return Err(EngineError::Unfinished(format!(
                    "{error}; nothing has changed but {path}, which cannot be given back: {other}"
                )));
            }
            return followed.map(|(said, _)| said);
        }
        followed.map(|(said, _)| said + &edited)
    }

    /// Sends a change to the store, if this balancer would follow it.
    fn propose(&mut self, wanted: Wanted, reply: Option<oneshot::Sender<Done>>) {
        let last = self.asking.take();
        let proposal = self.proposal(&wanted);
        let (document, expected, pools) = match proposal {
            Ok(proposal) => proposal,
            Err(error) => {
                if let Some(reply) = reply {
                    let _ = reply.send(Err(error));
                } else {
                    warn!(%error, "the fleet gets no configuration from this balancer");
                }
                if let Some(last) = last {
                    let _ = last.send(Last { number: self.history.last(), same: false });
                }
                return;
            }
        };
        let Wanted { own, said, .. } = wanted;
        let Some(fleet) = &mut self.fleet else { return };
        let made_of = fleet.change();
        let Some(ends) = &fleet.ends else { return };
        fleet.proposing = true;
        let (then, answer) = oneshot::channel();
        let (asks, commands) = (ends.asks.clone(), ends.commands.clone());
        let ask = Ask::Put { document: Box::new(document.clone()), expected, then };
        let proposed = Box::new(Proposed { document, made_of, own, pools, said, reply, last });
        tokio::spawn(async move {
            let gone = || FleetError::Unreachable("this balancer ends".into());
            let result = match asks.send(ask).await {
                Ok(()) => answer.await.unwrap_or_else(|_| Err(gone())),
                Err(_) => Err(gone()),
            };
            let _ = commands.send(Command::Fleet(FleetNews::Proposed(proposed, result))).await;
        });
    }

    /// The document that makes the shared configuration this one, the revision that it goes on from, and the services
    /// whose backends it changes.
    fn proposal(
        &mut self,
        wanted: &Wanted,
    ) -> Result<(Document, i64, BTreeSet<String>), EngineError> {
        let Some(fleet) = &self.fleet else {
            return Err(EngineError::Invalid("this balancer is of no fleet".into()));
        };
        let report = fleet.report();
        let Some(expected) = fleet.replaces(wanted.whole).filter(|_| report.reachable) else {
            let unheard = || FleetError::Unreachable("it was not heard yet".into()).to_string();
            let why = report.error.unwrap_or_else(unheard);
            return Err(FleetError::without(&why, "; nothing has changed").into());
        };
        let own = wanted.own.as_ref().unwrap_or(&fleet.own);
        let file = self.config_path.clone();
        let called = "the fleet's document as it would be";
        let config = parse_joined(own, &wanted.shared, called, &file, self.told_plane, None)?;
        self.keeps_identity(&config, &Source::File(file))?;
        let keys = self.keys_for(&config)?;
        let change = fleet.next_change(wanted.whole);
        let breaking = fleet.cache.document.as_ref().map_or(1, |document| document.breaking);
        let mut document = Document::new(change, wanted.shared.clone(), keys);
        document.breaking = if wanted.breaking { change } else { breaking };
        document.at = now();
        document.by.clone_from(&self.config.balancer.name);
        document.who.clone_from(&self.who.name);
        document.what = wanted.said.clone().unwrap_or_else(|| wanted.what.to_owned());
        // What this balancer would refuse itself the others never see.
        let former = self.with_keys(document.services.clone());
        let ready = if wanted.breaking { Ok(()) } else { self.keys_may_turn(&config) };
        let looked = ready
            .and_then(|()| self.reaches(&config))
            .and_then(|()| self.plan(&config, How::asked(wanted.breaking)).map(drop));
        self.with_keys(former);
        let pools = self.pools_changed_by(&config);
        looked.map(|()| (document, expected, pools))
    }

    fn with_keys(&mut self, keys: BTreeMap<String, Keys>) -> BTreeMap<String, Keys> {
        self.fleet
            .as_mut()
            .map(|fleet| std::mem::replace(&mut fleet.keys, keys))
            .unwrap_or_default()
    }

    /// What a configuration leaves open: as it is for services that there are, drawn for new ones.
    pub(super) fn keys_for(&self, config: &Config) -> Result<BTreeMap<String, Keys>, EngineError> {
        let mut all = BTreeMap::new();
        for (wanted, now) in config.services.iter().zip(self.pairs(&config.services)) {
            // Others may follow what this balancer cannot.
            let theirs = self.keys_not_followed(&wanted.name).filter(|_| now.is_none());
            let of_theirs = || {
                let salts = theirs.map(|keys| serde_json::from_value::<Salts>(keys.salts.clone()));
                salts.and_then(Result::ok).unwrap_or_default()
            };
            let mut salts = now.map_or_else(of_theirs, |now| now.salts.clone());
            salts.follow(&wanted.addresses());
            let drawn = || theirs.map_or_else(rand::random, |keys| keys.seed);
            let keys = Keys {
                seed: now.map_or_else(drawn, |now| now.seed),
                salts: serde_json::to_value(&salts).unwrap_or_default(),
                servers: numbered(wanted, now, theirs)?,
            };
            all.insert(wanted.name.clone(), keys);
        }
        Ok(all)
    }

    pub(super) fn fleet_news(&mut self, news: FleetNews) {
        // All are to end the step with what they have begun it with; and what came first is followed first.
        let waits = |fleet: &Fleet| fleet.stepping.is_in_step() || fleet.holds();
        let in_step = self.fleet.as_ref().is_some_and(waits);
        match news {
            FleetNews::Step(step, at) => return self.store_has_step(step, at),
            FleetNews::Others => return self.fleet_moves(),
            FleetNews::Table(service, digest, got) => return self.table_came(service, digest, got),
            FleetNews::Stepped(result) => return self.step_written(result),
            later @ (FleetNews::Config(..) | FleetNews::Proposed(_, Ok(_))) if in_step => {
                if let Some(fleet) = &mut self.fleet {
                    fleet.held.push_back(later);
                }
            }
            FleetNews::Config(None, _) => self.store_is_empty(),
            FleetNews::Config(Some(document), revision) => self.store_has(*document, revision),
            FleetNews::Proposed(proposed, result) => {
                self.proposed(*proposed, result);
                self.propose_next();
            }
        }
        self.tell_fleet();
    }

    fn fleet_moves(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            fleet.stepping.news = true;
        }
    }

    /// Follows what has come during a step.
    pub(super) fn take_up_held(&mut self) {
        let Some(fleet) = &mut self.fleet else { return };
        for news in std::mem::take(&mut fleet.held) {
            self.fleet_news(news);
        }
    }

    fn proposed(&mut self, proposed: Proposed, result: Result<i64, FleetError>) {
        let Proposed { document, made_of, own, pools, said, reply, last } = proposed;
        if let Some(fleet) = &mut self.fleet {
            fleet.proposing = false;
        }
        let change = document.change;
        let done = match result {
            Ok(revision) => {
                let followed = self.follow_document(document.clone(), revision, own);
                let followed = match followed {
                    Err(error) if !matches!(error, EngineError::Unfinished(_)) => {
                        self.not_followed(Some(document), revision, error.to_string());
                        Err(EngineError::Unfinished(format!(
                            "change {change} is the fleet's, but this balancer cannot follow it, and tries \
                             again: {error}"
                        )))
                    }
                    followed => followed,
                };
                let beside = self.away() + &self.in_step_words(&pools);
                followed.map(|followed| {
                    format!("{}; change {change} of the fleet{beside}", said.unwrap_or(followed))
                })
            }
            Err(FleetError::Conflict { has, by, .. }) => {
                Err(FleetError::Conflict { expected: made_of, has, by }.into())
            }
            Err(error) => Err(error.into()),
        };
        match (reply, done) {
            (Some(reply), done) => drop(reply.send(done)),
            (None, Err(error)) => {
                info!(%error, "the fleet has a configuration from another balancer")
            }
            (None, Ok(_)) => {}
        }
        if let Some(last) = last {
            let _ = last.send(Last { number: self.history.last(), same: false });
        }
    }

    /// What there is to say of balancers that do not hear of a change.
    fn away(&self) -> String {
        let report = self.fleet.as_ref().map(Fleet::report).unwrap_or_default();
        let own = &self.config.balancer.name;
        let away = report
            .members
            .iter()
            .filter(|name| *name != own && !report.balancers.contains_key(*name));
        let away: Vec<&str> = away.map(String::as_str).collect();
        match &away[..] {
            [] => String::new(),
            away => format!(
                "; away, and not told: {} (weir fleet forget, if it does not come back)",
                away.join(", ")
            ),
        }
    }

    /// The changes that have waited for one, until the next one is on its way.
    fn propose_next(&mut self) {
        while let Some(fleet) = self.fleet.as_mut().filter(|fleet| !fleet.proposing) {
            let Some((who, last, command)) = fleet.waiting.pop_front() else { return };
            self.asking = last;
            self.asked_by(who);
            self.handle(command);
            self.asked_by(Who::nobody("weir"));
            self.tell_last(false);
        }
    }

    /// Follows what the store has. Nothing has changed after an error, unless that is
    /// [`EngineError::Unfinished`].
    fn follow_document(&mut self, document: Document, revision: i64, own: Option<String>) -> Done {
        let Some(fleet) = &self.fleet else { return Ok(String::new()) };
        if own.is_none() && fleet.cache.document.as_ref() == Some(&document) {
            return Ok("followed already".into());
        }
        let own = own.unwrap_or_else(|| fleet.own.clone());
        let breaking = document.breaking > fleet.change();
        let text = text::join(&own, &document.text);
        let told = told_apart(&own, &called(document.change), &document.text);
        let from = Source::text(self.config_path.display().to_string(), &told);
        let former = self.with_keys(document.services.clone());
        // The same on all balancers, whether one was asked itself or was told.
        self.asked_by(Who::nobody(&format!("{}@{}", document.who, document.by)));
        self.begin_following(&document);
        let done = self.follow_and_write(&text, from, breaking, "fleet");
        self.end_following();
        self.asked_by(Who::nobody("weir"));
        if let Err(error) = &done
            && !matches!(error, EngineError::Unfinished(_))
        {
            self.with_keys(former);
            return done;
        }
        let Some(fleet) = &mut self.fleet else { return done };
        info!(
            change = document.change,
            by = document.by,
            what = document.what,
            "follows the fleet"
        );
        (fleet.own, fleet.revision, fleet.behind) = (own, Some(revision), None);
        fleet.cache.document = Some(document);
        if let Err(error) = fleet.cache.save(&fleet.cache_path) {
            warn!(%error, "a restart without the store goes back");
            return Err(EngineError::Unfinished(format!(
                "in force, but a restart goes back: {error}"
            )));
        }
        done
    }
}

/// The servers of a service by number, as they are to be.
fn numbered(
    wanted: &Service,
    now: Option<&ServiceRuntime>,
    theirs: Option<&Keys>,
) -> Result<Vec<Numbered>, EngineError> {
    if wanted.method.id() != MethodId::Cheetah {
        return Ok(Vec::new());
    }
    let settings = settings_of(wanted);
    let before = now.filter(|now| now.in_force.method.id() == MethodId::Cheetah);
    let list = before
        .map(|now| now.servers.clone().unwrap_or_else(|| now.builder.numbered(&now.members())));
    let list = list.or_else(|| {
        let servers = theirs?.servers.iter();
        Some(servers.map(|one| (one.name.clone(), one.left)).collect())
    });
    let mut all = AllServers::of_list(numbers(&settings), &list.unwrap_or_default());
    all.keep_only(|name| wanted.backends.iter().any(|backend| backend.name == name));
    for backend in &wanted.backends {
        all.join(&backend.name).map_err(weir_steering::BuildError::from)?;
    }
    Ok(all.list().into_iter().map(|(name, left)| Numbered { name, left }).collect())
}
