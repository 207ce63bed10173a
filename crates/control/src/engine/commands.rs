//! What the engine is asked to do, and how it changes pools.

use super::forward::way_of;
use super::history::{Apply, HistoryReport};
use super::lines;
use super::reload::words::unremembered_in_words;
use super::service::{PoolMember, ServiceRuntime, of_target};
use super::shares::Rising;
use super::trace::{GiveSamples, Loaded};
use super::{
    Answer, Engine, EngineError, Explanation, FleetNews, FleetStatus, Happening, Inside,
    ListSource, NEXT_HOPS_TRIES, Newcomer, PlanReport, PlaneResult, Said, Sample, Sender, Sought,
    Status, TraceLine, TraceRequest, tolerate,
};
use crate::config::{Backend, DeadConnections, Source, Spoken, Via};
use crate::health::{Target, Transition, Way};
use crate::history::Who;
use crate::neigh::{self, Change, NeighError};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info};
use weir_fleet::Asks;
use weir_plane::Plane;
use weir_rpc::Welcome;
use weir_steering::{BackendId, StateKey};
use weir_wire::FlowKey;
use weir_wire::quic::Id;

/// Answer to a request to look at packets: where the lines come out.
pub type TraceReply = Result<mpsc::Receiver<TraceLine>, EngineError>;

/// Answer to a request that changes something: what was done, in words.
pub type Done = Result<String, EngineError>;

/// A change, and what whoever asks for it knows.
pub struct Asked {
    /// Who asks.
    pub who: Who,
    /// Refused if the last change of the instance has another number.
    pub expect: Option<u64>,
    /// What is asked for.
    pub command: Command,
    /// The last change, once it is done.
    pub last: oneshot::Sender<Last>,
}

/// The last change of the instance.
#[derive(Clone, Copy, Debug)]
pub struct Last {
    /// Its number.
    pub number: u64,
    /// Whether what was asked for was so already, and has changed nothing.
    pub same: bool,
}

/// A request to the engine.
pub enum Command {
    /// Save and return; forwarding goes on.
    Stop,
    /// Health checks have changed their minds.
    Health(Vec<Transition>),
    /// Everything there is to tell.
    Status(oneshot::Sender<Result<Status, EngineError>>),
    /// As [`Status`](Self::Status), without what no metric shows.
    Numbers(oneshot::Sender<Result<Status, EngineError>>),
    /// Adds a backend to a service.
    Add(String, Box<Backend>, oneshot::Sender<Done>),
    /// Removes a backend from a service.
    Remove(String, String, oneshot::Sender<Done>),
    /// Starts or ends the draining of a backend.
    Drain(String, String, bool, oneshot::Sender<Done>),
    /// Changes the weight of a backend.
    Weight(String, String, u16, oneshot::Sender<Done>),
    /// Puts a prefix on a service's lists of sources.
    List(String, ListSource, oneshot::Sender<Done>),
    /// Takes back what a command has put there.
    Unlist(String, String, oneshot::Sender<Done>),
    /// How loaded a backend is, for schedulers that are told.
    Load(String, String, f64, oneshot::Sender<Done>),
    /// Where a flow goes, and why.
    /// A packet of it may have a QUIC id.
    Explain(Box<FlowKey>, Option<Id>, oneshot::Sender<Result<Explanation, EngineError>>),
    /// What has come of a look-up.
    LookedUp(Box<Sought>, Answer),
    /// The kernel's interfaces, routes or neighbours have changed.
    Network(Change),
    /// What a file, or a text, would change; without one, the instance's own.
    Plan(Option<Source>, oneshot::Sender<Result<PlanReport, EngineError>>),
    /// Looks at packets; the sender is for the word that nobody reads what is told.
    Trace(Box<TraceRequest>, Sender, oneshot::Sender<TraceReply>),
    /// The program of the trace with this number is loaded, or cannot be.
    TraceLoaded(u64, Loaded, GiveSamples),
    /// Nobody reads what a trace tells: the one with this number.
    TraceEnded(u64),
    /// An agent calls: what it is welcomed with, or why it is not.
    AgentCalls(Box<Newcomer>, oneshot::Sender<Result<Welcome, String>>),
    /// An agent says something, by the number of its session; the answer says what is wrong with it.
    AgentSays(u64, Said, oneshot::Sender<Result<(), String>>),
    /// An agent's session ends.
    AgentGone(u64),
    /// So many more callers were not let in as agents.
    AgentsRefused(u64),
    /// What is announced to routers.
    Announced(oneshot::Sender<Result<weir_announce::Report, EngineError>>),
    /// Withdraws this balancer from routers, or takes that back.
    DrainSelf(bool, oneshot::Sender<Done>),
    /// Whether it answers.
    Ping(oneshot::Sender<()>),
    /// Whoever asks for something.
    By(Who, Box<Command>),
    /// As [`By`](Self::By), with what is expected of the instance.
    Asked(Box<Asked>),
    /// Makes a backend what it is to be: adds it, or changes weight and draining of the one that is there.
    Set(String, Box<Backend>, oneshot::Sender<Done>),
    /// What a snapshot needs; if so asked, with the tables themselves.
    Inside(bool, oneshot::Sender<Result<Inside, EngineError>>),
    /// A few numbers of each service.
    Sample(oneshot::Sender<Result<Sample, EngineError>>),
    /// Follows a configuration, and makes it the instance's file.
    Apply(Box<Apply>, oneshot::Sender<Done>),
    /// Goes back to the file of a change, or to the one before; if so asked, also where that breaks
    /// connections.
    Rollback(Option<u64>, bool, oneshot::Sender<Done>),
    /// What has been changed.
    History(oneshot::Sender<Result<HistoryReport, EngineError>>),
    /// The text of a change's file.
    Text(u64, oneshot::Sender<Done>),
    /// Reads the configuration file again, and follows it; if so asked, also where that breaks
    /// connections.
    Reload(bool, oneshot::Sender<Done>),
    /// Why that was refused to a signal, whose sender reads no answer: it stands in the status until a file is
    /// followed.
    Unfollowed(String),
    /// What the fleet's store says.
    Fleet(FleetNews),
    /// What the fleet does, as far as this balancer knows.
    FleetStatus(oneshot::Sender<Result<FleetStatus, EngineError>>),
    /// The way to the other balancers; none if there are none.
    FleetAsks(oneshot::Sender<Option<Asks>>),
}

impl Command {
    /// Answers that it was refused, if it changes something.
    pub(super) fn refuse(self, error: EngineError) {
        match self {
            Self::Add(.., reply)
            | Self::Set(.., reply)
            | Self::Remove(.., reply)
            | Self::Drain(.., reply)
            | Self::Weight(.., reply)
            | Self::Load(.., reply)
            | Self::List(.., reply)
            | Self::Unlist(.., reply)
            | Self::DrainSelf(.., reply)
            | Self::Apply(.., reply)
            | Self::Rollback(.., reply)
            | Self::Reload(.., reply) => drop(reply.send(Err(error))),
            // Whoever asks learns that nobody answers.
            _ => {}
        }
    }
}

/// Tells packets whether a backend is up.
impl Backend {
    /// A backend that is to be changed keeps its address.
    pub(super) fn stays_at(&self, there: &Self, service: &str) -> Result<(), EngineError> {
        // Whoever names none leaves them as they are.
        if !self.nat_sources.is_empty() && self.nat_sources != there.nat_sources {
            return Err(EngineError::Conflict(format!(
                "nat_sources: with others, backend {} of {service} would find packets of its connections with another \
                 source; remove it, or give the new one another name",
                self.name
            )));
        }
        if (there.address, there.port) == (self.address, self.port) {
            return Ok(());
        }
        Err(EngineError::Conflict(format!(
            "backend {} of {service} has the address {} and cannot move; remove it, or give the new one another \
             name",
            self.name, there.address
        )))
    }
}

impl<P: Plane> Engine<P> {
    fn asked(&mut self, asked: Asked) {
        let Asked { who, expect, command, last } = asked;
        let now = self.history.last();
        match expect.filter(|expect| *expect != now) {
            Some(expect) => command.refuse(EngineError::Conflict(format!(
                "the last change has the number {now}, not {expect}: somebody else has changed something; \
                 look at the status and ask again"
            ))),
            None => {
                self.asked_by(who);
                self.asking = Some(last);
                self.handle(command);
                self.asked_by(Who::nobody("weir"));
                // It may be done later, and whoever does it has taken this along then.
                self.tell_last(false);
                return;
            }
        }
        let _ = last.send(Last { number: now, same: false });
    }

    /// Tells whoever asks for something just now which change was the last, unless they know; `same`: theirs is none.
    pub(super) fn tell_last(&mut self, same: bool) {
        if let Some(last) = self.asking.take() {
            let _ = last.send(Last { number: self.history.last(), same });
        }
    }

    pub(super) fn handle(&mut self, command: Command) {
        let Some(command) = self.propose_command(command) else { return };
        match command {
            Command::Stop => {}
            Command::Fleet(news) => self.fleet_news(news),
            Command::FleetStatus(reply) => drop(reply.send(self.fleet_status())),
            Command::FleetAsks(reply) => drop(reply.send(self.fleet_asks())),
            Command::Health(changes) => self.follow_health(&changes),
            Command::Network(change) => self.network_changed(&change),
            Command::LookedUp(sought, answer) => self.looked_up(&sought, answer),
            Command::Status(reply) => drop(reply.send(self.status())),
            Command::Numbers(reply) => drop(reply.send(self.status_in_numbers())),
            Command::Explain(flow, id, reply) => drop(reply.send(self.explain(&flow, id.as_ref()))),
            Command::Plan(from, reply) => {
                drop(reply.send(self.plan_in_fleet(from)));
                super::memory::give_back_soon();
            }
            Command::Trace(request, commands, reply) => {
                self.begin_trace(&request, commands, reply);
            }
            Command::TraceLoaded(number, loaded, give) => self.trace_loaded(number, loaded, give),
            Command::TraceEnded(number) => self.trace_ended(number),
            Command::Reload(breaking, reply) => {
                drop(reply.send(self.reload(breaking)));
                super::memory::give_back_soon();
            }
            Command::Unfollowed(why) => self.unfollowed = Some(why),
            Command::Ping(reply) => drop(reply.send(())),
            Command::AgentCalls(newcomer, reply) => drop(reply.send(self.agent_calls(*newcomer))),
            Command::AgentSays(session, said, reply) => {
                drop(reply.send(self.agent_says(session, said)));
            }
            Command::AgentGone(session) => self.agent_gone(session),
            Command::AgentsRefused(count) => self.agents_turned_away(count),
            Command::Announced(reply) => drop(reply.send(self.announce_report())),
            Command::DrainSelf(drain, reply) => {
                let done = self.drain_self(drain);
                self.answer_change(done, None, reply);
            }
            Command::By(who, command) => {
                self.asked_by(who);
                self.handle(*command);
                self.asked_by(Who::nobody("weir"));
            }
            Command::Asked(asked) => self.asked(*asked),
            Command::Inside(whole, reply) => drop(reply.send(self.inside(whole))),
            Command::Sample(reply) => drop(reply.send(self.sample())),
            Command::Set(service, backend, reply) => {
                let done = self.make_backend(&service, *backend);
                self.answer_change(done, self.known_of(&service), reply);
            }
            Command::Apply(apply, reply) => {
                drop(reply.send(self.apply(&apply, "apply")));
                super::memory::give_back_soon();
            }
            Command::Rollback(number, breaking, reply) => {
                drop(reply.send(self.rollback(number, breaking)));
            }
            Command::History(reply) => drop(reply.send(Ok(self.history_report()))),
            Command::Text(number, reply) => drop(reply.send(self.text_of(number))),
            Command::Add(service, backend, reply) => {
                let done = self.add_backend(&service, *backend).map(|said| (said, true));
                self.answer_change(done, self.known_of(&service), reply);
            }
            Command::Remove(service, backend, reply) => {
                drop(reply.send(self.remove_backend(&service, &backend)));
            }
            Command::Drain(service, backend, drain, reply) => {
                let done = self.change_backend(&service, &backend, |b| b.drain = drain);
                let (word, rest) = match drain {
                    true => ("drains", self.warning_of_nobody(&service).to_owned()),
                    false => ("serves again", self.warning_of_maintenance(&service, &backend)),
                };
                let its = drain.then_some(&*backend);
                let said = (format!("backend {backend} of {service} {word}"), rest);
                self.changed(done, (&service, its), said, reply);
            }
            Command::List(service, wanted, reply) => {
                let done = self.list_source(&service, &wanted);
                self.answer_change(done, None, reply);
            }
            Command::Unlist(service, prefix, reply) => {
                let done = self.unlist_source(&service, &prefix).map(|said| (said, true));
                self.answer_change(done, None, reply);
            }
            Command::Load(service, backend, load, reply) => {
                drop(reply.send(self.told_load(&service, &backend, load)));
            }
            Command::Weight(service, backend, weight, reply) => {
                let done = self.change_backend(&service, &backend, |b| b.weight = weight);
                let spoken = self.find(&service, &backend).ok().and_then(|member| member.spoken);
                let nobody = if weight == 0 { self.warning_of_nobody(&service) } else { "" };
                let said = match spoken {
                    Some(Spoken::Weight(own)) => format!(
                        "backend {backend} of {service} has weight {weight}, once it does not say its own \
                         any more, which counts ({own})"
                    ),
                    Some(share) => format!(
                        "backend {backend} of {service} has weight {weight}, of which it takes {share}, as \
                         it says"
                    ),
                    None => format!("backend {backend} of {service} has weight {weight}"),
                };
                let rest = if spoken.is_none() { nobody } else { "" };
                self.changed(done, (&service, None), (said, rest.to_owned()), reply);
            }
        }
    }

    /// Tells packets whether a backend is up.
    pub(super) fn mark(&mut self, id: BackendId, up: bool) {
        let Some(backend) = self.plane.backend(id) else { return };
        // A packet that has read that flows are noted, and is under way since before that was over, would note one
        // that it keeps from this backend: nobody would look for it any more.
        if !up && std::mem::take(&mut self.cleared) {
            tolerate("wait for packets", self.plane.grace().plane());
        }
        let backend = weir_plane::Backend { up, resets: backend.resets && !up, ..backend };
        if let Err(error) = self.plane.set_backend(id, Some(&backend)) {
            error!(%error, "cannot mark a backend");
        }
    }

    /// Keeps new connections from a backend that has failed, before anything else is made of that.
    pub(super) fn keep_off(&mut self, transition: &Transition) {
        if let (_, Some(id)) = of_target(transition.id)
            && !transition.up
            && !self.is_marked_in_step(transition)
        {
            self.mark(id, false);
        }
    }

    /// Whether packets hear of it only when all balancers of the fleet have it so.
    fn is_marked_in_step(&self, transition: &Transition) -> bool {
        let name = self.names.get(&of_target(transition.id).0);
        let service = name.and_then(|name| self.services.get(name));
        !self.settles() && service.is_some_and(|service| service.agreed.is_some())
    }

    /// Follows what health checks have said. A restart begins with who is up: it is written down with the table that
    /// comes of it, but in step that may be long before, as the leader has it.
    pub(super) fn follow_health(&mut self, changes: &[Transition]) {
        let mut unwritten = false;
        for one in changes {
            unwritten |= self.health_changed(one) && self.is_marked_in_step(one);
        }
        if unwritten {
            self.save_later();
        }
    }

    /// Whether the backend is up now and was not, or the other way round.
    pub(super) fn health_changed(&mut self, transition: &Transition) -> bool {
        let (number, id) = of_target(transition.id);
        let Some(name) = self.names.get(&number).cloned() else { return false };
        let Some(service) = self.services.get_mut(&name) else { return false };
        let member = service.pool.iter_mut().find(|member| Some(member.id) == id);
        let Some(member) = member else { return false };
        member.detail.clone_from(&transition.detail);
        if let Some(spoken) = transition.spoken.filter(|spoken| member.spoken != Some(*spoken)) {
            member.spoken = Some(spoken);
            service.dirty = true;
            let backend = &member.wanted.name;
            info!(service = name, backend, weight = %spoken, "a backend says its weight");
        }
        let changes = member.up != transition.up;
        if changes {
            member.up = transition.up;
            member.proven |= transition.up;
            member.down_since = (!transition.up).then_some(transition.at);
            let check = service.configured.check_of(&member.wanted);
            member.rising = Rising::begin(check.filter(|_| transition.up), transition.at);
            let id = member.id;
            service.dirty = true;
            // Something has changed since the last update failed: it need not wait any longer.
            if let Some(trouble) = &mut service.trouble {
                trouble.again = Instant::now();
            }
            let backend = member.wanted.name.clone();
            let (up, detail) = (transition.up, &*transition.detail);
            let moves = check.is_some_and(|check| check.dead_connections == DeadConnections::Move);
            // With nobody up there is no better place for them.
            let moves = moves && !up && service.all_down().is_none() && service.agreed.is_none();
            self.lines.health(&lines::Change {
                service: &name,
                backend: &backend,
                up,
                detail,
                connections: service.states_of(id),
                fate: match check.map_or(DeadConnections::Keep, |check| check.dead_connections) {
                    DeadConnections::Move if !moves => DeadConnections::Keep,
                    fate => fate,
                },
            });
            // Where marking fails, the table says it, and the next look at its next hop again.
            if !self.is_marked_in_step(transition) {
                self.mark(id, up);
            }
            self.events.push(Happening::Health {
                service: name.clone(),
                backend,
                up,
                detail: detail.to_owned(),
            });
            if moves {
                self.give_connections_away(&name, id);
            }
            self.mark_resets(&name);
        }
        changes
    }

    /// Tells packets of a service for which of its backends they are answered by resets.
    pub(super) fn mark_resets(&mut self, name: &str) {
        let Some(service) = self.services.get(name) else { return };
        for member in &service.pool {
            let resets = service.resets(member);
            let Some(now) = self.plane.backend(member.id).filter(|now| now.resets != resets) else {
                continue;
            };
            let marked =
                self.plane.set_backend(member.id, Some(&weir_plane::Backend { resets, ..now }));
            // What a processor keeps of the way there would have it go on for a while.
            let marked = marked.and_then(|()| match resets {
                true => self.plane.forget_hop(member.id),
                false => Ok(()),
            });
            if let Err(error) = marked {
                error!(%error, "cannot mark a backend");
            }
        }
    }

    /// What a dead backend has goes where new connections do: as if it were removed, and added again under
    /// another number.
    fn give_connections_away(&mut self, service: &str, id: BackendId) {
        let given = self.renumber(service, id);
        if let Err(error) = given {
            // They stay there, as without the setting.
            error!(service, %error, "cannot move the connections of a backend that is down");
        }
    }

    fn renumber(&mut self, name: &str, id: BackendId) -> Result<(), EngineError> {
        // What has started there is known before, so that it stays known if this is refused.
        self.drain_reports()?;
        let service = self.service(name)?;
        let Some(before) = service.pool.iter().find(|member| member.id == id).cloned() else {
            return Ok(());
        };
        let held = service.states_of(id);
        let fresh = self.allot(before.wanted.clone(), false, (&mut self.numbers(), 0))?;
        let fresh = PoolMember { id: fresh.id, incarnation: fresh.incarnation, ..before };
        self.commit_with(name, std::slice::from_ref(&fresh), |service| {
            if let Some(member) = service.pool.iter_mut().find(|member| member.id == id) {
                *member = fresh.clone();
            }
            service.leave(id);
        })?;
        self.lines.moved(name, held);
        Ok(())
    }

    fn add_backend(&mut self, service: &str, backend: Backend) -> Done {
        self.may_join(service, &backend, 0)?;
        let said = format!("backend {} added to {service}", backend.name);
        let checked = self.service(service)?.configured.check_of(&backend).is_some();
        // With a health check, new connections wait until it has succeeded.
        let mut numbers = self.numbers();
        let member = self.allot(backend, !checked, (&mut numbers, 0))?;
        let new = std::slice::from_ref(&member);
        self.commit_with(service, new, |service| service.pool.extend_from_slice(new))?;
        Ok(said)
    }

    /// Checks that a backend could join a service, beside `others` that join with it.
    pub(super) fn may_join(
        &self,
        service: &str,
        backend: &Backend,
        others: usize,
    ) -> Result<(), EngineError> {
        let joined = self.service(service)?;
        joined.may_add(backend, others)?;
        self.lies_apart(backend.address)?;
        self.answers_apart(service, backend)?;
        self.may_come_from(service, backend)?;
        let routed = joined.configured.forward.passes_routers();
        match self.on_a_link(backend.address) {
            Err(error) if !routed || matches!(error, NeighError::Broadcast { .. }) => {
                Err(EngineError::Conflict(error.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn remove_backend(&mut self, service: &str, backend: &str) -> Done {
        let member = self.find(service, backend)?;
        if let Some(found) = &member.found {
            return Err(EngineError::Conflict(format!(
                "backend {backend} of {service} was looked up (discover {}) and would come back with the next \
                 answer; drain it, or take its record away",
                found.by
            )));
        }
        // Both as a plan counts them: without those that have ended, whose states linger.
        let runtime = self.service(service)?;
        let known = self.count_known(runtime);
        let held = self.known_by_backend(runtime);
        let held = held.map(|open| open.get(&member.id).copied().unwrap_or(0));
        self.commit(service, |service| {
            service.pool.retain(|m| m.id != member.id);
            service.leave(member.id);
        })?;
        let nobody = self.warning_of_nobody(service);
        // Whoever wants it back, by the history, needs where it was.
        let place = match member.wanted.port {
            Some(port) => SocketAddr::from((member.wanted.address, port)).to_string(),
            None => member.wanted.address.to_string(),
        };
        let states = match held {
            Some(0) => String::new(),
            Some(1) => "; it held 1 connection".into(),
            Some(n) => format!("; it held {n} connections"),
            None => "; nobody knows how many connections it held".into(),
        };
        let beyond = self.beyond_of(service);
        let said =
            format!("backend {backend} ({place}) removed from {service}{states}{beyond}{nobody}");
        Ok(self.remember_removal(said, known, held))
    }

    /// Whether anything has changed: what is asked for twice is done once, and remembered once.
    fn change_backend(
        &mut self,
        service: &str,
        backend: &str,
        change: impl FnOnce(&mut Backend),
    ) -> Result<bool, EngineError> {
        let before = self.find(service, backend)?.wanted;
        let mut wanted = before.clone();
        change(&mut wanted);
        if wanted == before {
            return Ok(false);
        }
        self.commit(service, |service| {
            if let Some(member) = service.member_mut(backend) {
                member.wanted = wanted;
            }
        })?;
        Ok(true)
    }

    /// What a command says whose service has nobody for new connections now.
    fn warning_of_nobody(&self, service: &str) -> &'static str {
        match self.services.get(service) {
            Some(service) if !service.pool.iter().any(|member| service.takes_new(member)) => {
                "; nobody in this service takes new connections any more: they are dropped"
            }
            _ => "",
        }
    }

    /// Remembers a change of a backend that moves no connection, if it is one, and answers: with how many stay, of the
    /// service or of one backend, if there are any and somebody knows.
    fn changed(
        &mut self,
        done: Result<bool, EngineError>,
        (service, backend): (&str, Option<&str>),
        (said, rest): (String, String),
        reply: oneshot::Sender<Done>,
    ) {
        let done = done.map(|changed| {
            if !changed {
                self.tell_last(true);
                return format!("{said} already{rest}");
            }
            let known = self.known_of(service);
            let stay = match backend {
                Some(backend) => self.stay_there(service, backend),
                None => {
                    stay(known, "connections stay where they are", "connection stays where it is")
                }
            };
            let beyond = self.beyond_of(service);
            self.remember_kept(format!("{said}{stay}{beyond}{rest}"), known)
        });
        drop(reply.send(done));
    }

    /// What a change of a service's pool may do to connections that nobody remembers.
    fn beyond_of(&self, service: &str) -> String {
        let service = self.services.get(service);
        let said = service.and_then(unremembered_in_words);
        said.map_or_else(String::new, |said| format!(", and {said}"))
    }

    /// How many connections are known of a service, where that needs no counting: a command may come a hundred times a
    /// second, for a service of millions.
    fn known_of(&self, service: &str) -> Option<usize> {
        let service = self.services.get(service)?;
        let counted = service.in_force.method.id().needs().states;
        counted.then(|| service.builder.states())
    }

    /// How many a backend keeps that takes no new ones.
    fn stay_there(&self, service: &str, backend: &str) -> String {
        let service = self.services.get(service);
        let held = service.and_then(|one| one.states_of(one.member(backend)?.id));
        stay(held, "connections that it has stay", "connection that it has stays")
    }

    /// Remembers what was done, if that has changed anything, and answers.
    fn answer_change(
        &mut self,
        done: Result<(String, bool), EngineError>,
        kept: Option<usize>,
        reply: oneshot::Sender<Done>,
    ) {
        let done = done.map(|(said, changed)| match changed {
            true => self.remember_kept(said, kept),
            false => {
                self.tell_last(true);
                said
            }
        });
        drop(reply.send(done));
    }

    /// Makes a backend what it is to be. Also says whether that has changed anything.
    fn make_backend(
        &mut self,
        service: &str,
        wanted: Backend,
    ) -> Result<(String, bool), EngineError> {
        let name = wanted.name.clone();
        let Some(there) = self.service(service)?.member(&name) else {
            return self.add_backend(service, wanted).map(|said| (said, true));
        };
        wanted.stays_at(&there.wanted, service)?;
        let changed = self.change_backend(service, &name, |backend| {
            (backend.weight, backend.drain) = (wanted.weight, wanted.drain);
        })?;
        let drains = if wanted.drain { " and drains" } else { "" };
        let said = format!("backend {name} of {service} has weight {}{drains}", wanted.weight);
        Ok((if changed { said } else { format!("{said} already") }, changed))
    }

    pub(super) fn find(&self, service: &str, backend: &str) -> Result<PoolMember, EngineError> {
        self.service(service)?.member(backend).cloned().ok_or_else(|| {
            EngineError::NotFound(format!("service {service} has no backend {backend}"))
        })
    }

    /// Changes a service's pool, writes it down, publishes it and checks its new members. If it
    /// cannot be written down or published, the pool is as before, and packets never saw another.
    pub(super) fn commit(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut ServiceRuntime),
    ) -> Result<(), EngineError> {
        let service = self.service_mut(name)?;
        let (pool, leaving, leaves) =
            (service.pool.clone(), service.leaving.clone(), service.leaves);
        let dirty = service.dirty;
        change(service);
        service.dirty = true;
        let changed = service.pool.clone();
        let result = self
            .save_some([name])
            // New flows may come to a backend from the first table on, and with them its ids.
            .and_then(|()| self.tell_ids(name))
            .and_then(|()| self.tell_translations())
            .and_then(|()| self.update(name));
        if result.is_err() {
            let service = self.service_mut(name)?;
            service.dirty = dirty;
            let now = std::mem::replace(&mut service.pool, pool);
            (service.leaving, service.leaves) = (leaving, leaves);
            service.keep_what_was_said(&changed, &now);
            let dirty = service.dirty;
            if !dirty && service.trouble.as_ref().is_some_and(|trouble| !trouble.loose) {
                service.trouble = None;
            }
            self.save_later();
            tolerate("lead by ids as before", self.tell_ids(name));
            tolerate("translate answers as before", self.tell_translations());
        }
        self.set_targets_of(name);
        self.hop_tries = NEXT_HOPS_TRIES;
        result.map_err(EngineError::of_undone)
    }

    /// As [`commit`](Self::commit), of a change with members that are new: the plane is told of them first, and
    /// they are taken back if it comes to nothing.
    pub(super) fn commit_with(
        &mut self,
        name: &str,
        new: &[PoolMember],
        change: impl FnOnce(&mut ServiceRuntime),
    ) -> Result<(), EngineError> {
        let (configured, nat) = (&self.service(name)?.configured, &self.config.balancer.nat);
        let way = |member: &PoolMember| way_of(configured, &member.wanted, nat);
        let ways: Vec<_> = new.iter().map(way).collect();
        let mut installed = new.iter().zip(ways);
        let installed = installed.try_for_each(|(member, way)| self.install(member, way, true));
        let done = installed.and_then(|()| self.commit(name, change));
        if done.is_err() {
            self.take_back(new.iter().map(|member| member.id));
        }
        done
    }

    /// Takes back what the data plane was told of backends that have come to nothing. What cannot be taken back is
    /// tried again, and its number is nobody's until then.
    pub(super) fn take_back(&mut self, ids: impl IntoIterator<Item = BackendId>) {
        self.untaken.extend(ids);
        tolerate("take a backend back", self.take_back_again());
    }

    /// The same, of those that could not be taken back.
    ///
    /// # Errors
    /// What the data plane says of the first that still cannot.
    pub(super) fn take_back_again(&mut self) -> Result<(), EngineError> {
        let mut first = Ok(());
        for id in std::mem::take(&mut self.untaken) {
            if let Err(error) = self.plane.set_backend(id, None).plane() {
                self.untaken.insert(id);
                first = first.and(Err(error));
            }
        }
        first
    }

    pub(super) fn forget_states(
        &mut self,
        service: &str,
        id: BackendId,
    ) -> Result<(), EngineError> {
        let now = self.now();
        let service = self.service_mut(service)?;
        let gone: Vec<StateKey> = service.builder.forget_backend(id);
        let written = service.log_removed(&gone, now);
        service.written(written);
        service.astray.extend(gone);
        Ok(())
    }

    /// Tells the health checker what to check.
    pub(super) fn set_targets(&self) {
        self.health.hold_at(self.config.balancer.hold_checks_at);
        self.health.set_targets(self.targets(self.services.values()));
    }

    /// As [`set_targets`](Self::set_targets), of one service.
    fn set_targets_of(&self, name: &str) {
        let Some(service) = self.services.get(name) else { return };
        self.health.set_targets_among(service.targets(), self.targets([service]));
    }

    fn targets<'a>(
        &'a self,
        services: impl IntoIterator<Item = &'a ServiceRuntime>,
    ) -> Vec<Target> {
        let vips = Arc::new(self.vips());
        let interfaces: Arc<[String]> = self.config.balancer.interfaces.clone().into();
        // Many backends may be on one host.
        let mut sources: HashMap<IpAddr, Option<IpAddr>> = HashMap::new();
        let mut targets = Vec::new();
        for service in services {
            let configured = &service.configured;
            let balancer = &self.config.balancer;
            let way = |to| Arc::new(Way::of(configured, to, balancer, Arc::clone(&vips)));
            let shared = configured.check.as_ref().map(|check| Arc::new(check.what.clone()));
            targets.extend(service.pool.iter().filter_map(|member| {
                let check = configured.check_of(&member.wanted)?;
                let what = match &shared {
                    Some(shared) if **shared == check.what => Arc::clone(shared),
                    _ => Arc::new(check.what.clone()),
                };
                let address = member.wanted.address;
                let find = || neigh::source_for(address, &vips);
                Some(Target {
                    id: service.target(member.id),
                    source: *sources.entry(address).or_insert_with(find),
                    address: (address, configured.check_port(check, &member.wanted)).into(),
                    way: (check.via == Via::Service).then(|| way(address)),
                    what,
                    interfaces: Arc::clone(&interfaces),
                    interval: check.interval,
                    timeout: check.timeout,
                    jitter: check.jitter,
                    rise: check.rise,
                    fall: check.fall,
                    flap_window: check.flap_window,
                    weight_step: check.weight_step,
                    weight_every: check.weight_every,
                    initially_up: member.up,
                })
            }));
        }
        targets
    }
}

/// What is said of connections that stay: nothing if there are none, or nobody knows of any.
fn stay(count: Option<usize>, many: &str, one: &str) -> String {
    match count {
        None | Some(0) => String::new(),
        Some(1) => format!("; the {one}"),
        Some(count) => format!("; the {count} {many}"),
    }
}
