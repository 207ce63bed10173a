//! Agents of backends: who they are, what they are asked for, and what is made of what they say.
//!
//! A session comes with a certificate, whose addresses are those of the backends that it may speak for. What
//! it says of any other is refused, and counted. A backend is *told of* from the end of its agent's first dump
//! until its agent has been lost for a while (docs/agent.md).

mod learn;
mod peers;
mod serving;
mod status;

pub(super) use peers::place;
pub use status::AgentStatus;

use super::service::{PoolMember, ServiceRuntime};
use super::told::Told;
use super::{Command, Engine, EngineError, tolerate};
use crate::config::{Agents as Configured, Ports, Protocol, Service};
use crate::health::told::{self, Word};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};
use weir_plane::Plane;
use weir_rpc::message::{Connection, Endpoint, Kind};
use weir_rpc::{Endpoints, MOST_COLLECTED, PROTOCOL, Welcome};
use weir_steering::{BackendId, Load, ServiceId, StateKey};
use weir_wire::map_address;

/// What an agent said last counts for so long after it was lost; then its backends are observed.
const LOST_FOR: Duration = Duration::from_secs(3);
/// After a restart, changes wait for so long for what agents list anew: for longer than it takes one to call
/// again, which is some five seconds.
const LIST_WITHIN: Duration = Duration::from_secs(10);
/// In step with other balancers, changes wait for so long for an agent that was lost, as nobody else can say what
/// has begun at its backend by another balancer.
/// A test is as slow as its machine.
const MISSED_FOR: Duration = if cfg!(test) { Duration::from_secs(120) } else { LIST_WITHIN };
/// So many changes may wait for it.
pub(super) const WAITING: usize = 1024;

/// What an agent is told after it was welcomed.
#[derive(Clone, PartialEq, Debug)]
pub enum Order {
    /// Tell of these from now on.
    Endpoints(Endpoints),
    /// List all connections.
    Dump,
    /// Say what has happened, and then what is half-open, in an answer of this number.
    Collect(u64),
    /// These are the balancers of the fleet.
    Balancers(weir_rpc::Balancers),
    /// So packets come.
    Serving(weir_rpc::Serving),
    /// So servers make QUIC ids.
    QuicLb(weir_rpc::QuicLb),
}

/// An agent that calls, with what TLS says of it.
#[derive(Debug)]
pub struct Newcomer {
    /// Number of the session, never used twice.
    pub session: u64,
    /// Name in its certificate.
    pub name: String,
    /// When its certificate ends, in seconds since 1970.
    pub ends: i64,
    /// From where it calls.
    pub from: SocketAddr,
    /// Version of its program.
    pub version: String,
    /// Drawn when it was started.
    pub instance: [u8; 16],
    /// Addresses that it speaks for, all of them in its certificate.
    pub addresses: Vec<IpAddr>,
    /// Where orders go. What has no room ends the session.
    pub orders: mpsc::Sender<Order>,
    /// Where it is said that the session is to end, and why. Dropped without a word as the engine ends.
    pub end: oneshot::Sender<Over>,
}

/// Why the engine ends a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// Another agent speaks for the same backend.
    Another,
    /// There is no room for an order, as it takes none.
    Deaf,
    /// It is over already.
    Gone,
}

/// What an agent says.
#[derive(Clone, PartialEq, Debug)]
pub enum Said {
    /// What has happened, from one number to another.
    Events {
        /// Number of the first event.
        first: u64,
        /// The number after the last one.
        next: u64,
        /// Those that concern an endpoint.
        events: Vec<(Kind, Connection)>,
    },
    /// All connections follow.
    DumpBegin {
        /// Events from this number on follow after that.
        next: u64,
        /// Number of the list of endpoints that it goes by.
        list: u64,
    },
    /// Some of them.
    Dumped(Vec<Connection>),
    /// Those were all.
    DumpEnd,
    /// All that had happened when it was asked has been said.
    Reached {
        /// How long that took.
        lag: Duration,
        /// Its open connections, as it counts them.
        connections: u64,
        /// Events that it has lost.
        lost: u64,
    },
    /// A part of what is half-open, after all that had happened when it was asked.
    Collected {
        /// Number of the question.
        number: u64,
        /// Those of this part.
        connections: Vec<Connection>,
        /// Whether those were all.
        last: bool,
    },
    /// How loaded it is.
    Load {
        /// Of all processors, 0 to 1.
        cpu: f64,
        /// Processes that run or want to.
        run_queue: u32,
        /// What schedulers are to go by.
        load: Option<f64>,
        /// It does not know any more what they are to go by.
        unknown: bool,
    },
    /// Whether its backends are well.
    Health(Word),
}

/// A backend of a service, and the ports that are another service's, where it has any.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    endpoint: Endpoint,
    service: ServiceId,
    backend: BackendId,
    /// What the port is XORed with in its states.
    salt: u16,
    /// Port of the service; none: any but these.
    port: Option<u16>,
    not: BTreeSet<u16>,
}

#[derive(Debug)]
struct Dump {
    next: u64,
    list: u64,
    found: HashMap<u32, HashSet<StateKey>>,
}

/// An agent in a session.
#[derive(Debug)]
struct Speaker {
    newcomer: Newcomer,
    since: Instant,
    /// Number of its list of endpoints, and the list.
    list: u64,
    places: BTreeMap<u32, Place>,
    /// What it was told last of how packets come, and of QUIC ids.
    said: serving::Said,
    /// Those of the list before, of which it may still speak.
    former: BTreeSet<u32>,
    /// The next event that is to come; none before the first dump.
    next: Option<u64>,
    dump: Option<Dump>,
    /// It was asked for a dump that has not begun.
    asked: bool,
    /// It has named connections that are known to be elsewhere, maybe of an earlier time: it is asked again
    /// when another agent has told all.
    disputes: bool,
    /// What it has told all of.
    held: BTreeSet<(ServiceId, BackendId)>,
    /// Number of the last question of what is half-open that it has answered wholly, or need not answer.
    collected: u64,
    /// Connections in the parts of the answer that has begun.
    collecting: usize,
    lag: Option<Duration>,
    cpu: f64,
    run_queue: u32,
    connections: u64,
    lost: u64,
    dumps: u64,
    events: u64,
    refused: u64,
}

/// An agent that was lost.
#[derive(Debug)]
struct Lost {
    instance: [u8; 16],
    name: String,
    addresses: Vec<IpAddr>,
    next: Option<u64>,
    places: BTreeMap<u32, Place>,
    held: BTreeSet<(ServiceId, BackendId)>,
    at: Instant,
}

/// All agents.
#[derive(Debug, Default)]
pub(super) struct Agents {
    speakers: BTreeMap<u64, Speaker>,
    /// By the address of a backend: the last ones that were lost.
    lost: Vec<Lost>,
    /// Addresses of backends of services that change in step whose agents were lost and have not told all since, or
    /// have not called since the backends came up, and since when.
    missed: BTreeMap<IpAddr, Instant>,
    /// Number of the last list of endpoints.
    lists: u64,
    /// Number of the last question of what is half-open.
    collects: u64,
    /// Calls that were refused.
    turned_away: u64,
    /// Connections that agents named and that are not theirs, of agents that are gone.
    refused: u64,
    /// Until when nothing is taken from interfaces, unless all agents have told before.
    learning: Option<Instant>,
    /// When it is tried again to take packets from interfaces, where that has failed.
    attach_at: Option<Instant>,
    /// Until when changes wait, after a restart, unless all agents have told before.
    settling: Option<Instant>,
    /// Where it is said how agents are listened for.
    listener: Option<watch::Sender<Option<Configured>>>,
    /// What whoever listens says of that.
    trouble: Option<watch::Receiver<Option<String>>>,
    /// When its own certificate ends.
    own_ends: Option<i64>,
    /// By which others call this balancer, by its certificate.
    own_host: Option<String>,
    /// Whether its certificate is good for calling others, once it was read.
    calls: Option<bool>,
    /// The balancers of the fleet, for agents.
    peers: peers::Peers,
}

/// What an endpoint is called: its backend, which services do not share.
fn id_of(service: ServiceId, backend: BackendId) -> u32 {
    service.0 << 16 | u32::from(backend.get())
}

impl Place {
    /// The state of a connection there; `None` if it is another service's.
    fn key(&self, one: &Connection) -> Option<StateKey> {
        let dst_port = match (self.port, one.port) {
            (Some(port), None) => port,
            (None, Some(port)) if !self.not.contains(&port) => port,
            _ => return None,
        };
        let dst_port = dst_port ^ self.salt;
        Some(StateKey { address: map_address(one.client), src_port: one.client_port, dst_port })
    }
}

impl Speaker {
    fn speaks_for(&self, address: IpAddr) -> bool {
        self.newcomer.addresses.contains(&address)
    }

    /// What a connection is that it names; `None`, and counted, if it may not.
    fn own(&mut self, one: &Connection) -> Option<(ServiceId, BackendId, StateKey)> {
        let Some(place) = self.places.get(&one.endpoint) else {
            // It may not have heard yet that it is asked for others.
            self.refused += u64::from(!self.former.contains(&one.endpoint));
            return None;
        };
        match place.key(one) {
            Some(key) => Some((place.service, place.backend, key)),
            None => {
                self.refused += 1;
                None
            }
        }
    }
}

fn list(number: u64, places: &BTreeMap<u32, Place>) -> Endpoints {
    Endpoints { number, endpoint: places.values().map(|place| place.endpoint.into()).collect() }
}

impl Agents {
    /// The backends that are told of.
    fn held(&self) -> BTreeSet<(ServiceId, BackendId)> {
        let speaking = self.speakers.values().flat_map(|one| &one.held);
        speaking.chain(self.lost.iter().flat_map(|one| &one.held)).copied().collect()
    }

    /// Its session is over.
    fn lose(&mut self, session: u64, why: Over) -> Option<SocketAddr> {
        let one = self.speakers.remove(&session)?;
        self.refused += one.refused;
        let Newcomer { instance, name, addresses, from, end, .. } = one.newcomer;
        // Nobody listens any more if it is gone.
        let _ = end.send(why);
        // A dump that was under way says nothing, and no more does one of fewer backends than it was asked for last.
        let all = one.places.values().all(|at| one.held.contains(&(at.service, at.backend)));
        let next = one.next.filter(|_| one.dump.is_none() && all);
        for address in &addresses {
            self.missed.entry(*address).or_insert_with(Instant::now);
        }
        let (places, held, at) = (one.places, one.held, Instant::now());
        self.lost.push(Lost { instance, name, addresses, next, places, held, at });
        Some(from)
    }

    /// An agent speaks again for the backends at these addresses, and nothing that it had to say is missing.
    fn found(&mut self, addresses: &[IpAddr]) {
        self.missed.retain(|address, _| !addresses.contains(address));
    }
}

impl<P: Plane> Engine<P> {
    /// Tells who listens for agents where to, now and whenever the file says something else. `trouble`: what
    /// is in its way.
    pub(crate) fn hear_agents_by(
        &mut self,
        listener: watch::Sender<Option<Configured>>,
        trouble: watch::Receiver<Option<String>>,
    ) {
        self.agents.listener = Some(listener);
        self.agents.trouble = Some(trouble);
        self.tell_listener();
    }

    /// Files are read again, too: a certificate that was renewed counts from now on.
    pub(super) fn tell_listener(&mut self) {
        self.look_at_own_certificate();
        if let Some(listener) = &self.agents.listener {
            listener.send_replace(self.config.agents.clone());
        }
    }

    /// Whoever listens may have read by now what could not be read before.
    fn follow_listener(&mut self) {
        let Some(trouble) = &mut self.agents.trouble else { return };
        let good = trouble.has_changed().unwrap_or(false) && trouble.borrow_and_update().is_none();
        if good {
            self.look_at_own_certificate();
        }
    }

    fn look_at_own_certificate(&mut self) {
        let wanted = self.config.agents.as_ref();
        let own = wanted.and_then(|wanted| wanted.files().identity().ok());
        self.agents.own_ends = own.as_ref().map(|own| own.ends);
        self.agents.calls = own.as_ref().map(|own| own.usage.client);
        let listen = wanted.map(|wanted| wanted.listen.ip());
        self.agents.own_host = own.zip(listen).and_then(|(own, listen)| peers::host(&own, listen));
    }

    /// Whether this balancer can get tables from others, as far as its certificate is known.
    pub(super) fn calls_others(&self) -> bool {
        self.agents.calls != Some(false)
    }

    /// By which others call this balancer, by its certificate.
    pub(super) fn own_host(&self) -> Option<&str> {
        self.agents.own_host.as_deref()
    }

    /// Whether no packets are taken yet.
    pub(super) fn is_learning(&self) -> bool {
        self.agents.learning.is_some()
    }

    /// Backends whose agents are asked and have not told yet. Of one that is down, as the fleet and this balancer have
    /// it, nothing is expected.
    fn silent(&self) -> usize {
        let held = self.agents.held();
        let asked = self.services.values().filter(|service| service.asks_agents());
        let up = |service: &ServiceRuntime| {
            let in_step = service.agreed.is_some();
            let expected = |one: &&PoolMember| !in_step || one.up || service.counts_as_up(one);
            let up = service.pool.iter().filter(expected);
            up.map(|member| (service.number, member.id)).collect::<Vec<_>>()
        };
        asked.flat_map(up).filter(|one| !held.contains(one)).count()
    }

    /// Over packets that follow tables already: what agents had said last before the process ended, and the
    /// SYNs that were kept aside, ended with it. So a table that is made before agents have listed may move a
    /// connection that had just begun.
    pub(super) fn begin_to_settle(&mut self) {
        // In step with other balancers from the first word on.
        let numbers: Vec<ServiceId> = self.names.keys().copied().collect();
        self.those_not_in_step(&numbers);
        let asks = self.services.values().any(ServiceRuntime::asks_agents);
        if self.resumed && asks && self.config.agents.is_some() {
            self.agents.settling = Some(Instant::now() + LIST_WITHIN);
        }
    }

    /// Whether a service's table is not to be made anew yet.
    pub(super) fn is_settling(&self, service: &ServiceRuntime) -> bool {
        // Without a table there is no packet that follows it.
        self.settles() && service.asks_agents() && service.generation > 0
    }

    /// Whether changes wait for agents.
    pub(super) fn settles(&self) -> bool {
        self.agents.settling.is_some()
    }

    /// Goes on with changes, once all agents have told, or they have waited for as long as they may.
    pub(super) fn go_on_settled(&mut self) {
        if let Some(until) = self.agents.settling {
            let missing = self.silent();
            if missing > 0 && Instant::now() < until {
                return;
            }
            if missing > 0 {
                warn!(
                    missing,
                    "agents of backends have not listed what they hold; changes wait no longer"
                );
            }
            self.agents.settling = None;
            self.catch_up();
        }
        for command in std::mem::take(&mut self.waiting) {
            self.handle(command);
        }
    }

    /// Does what it is told, or later if it is a change that has to wait for agents. Those keep their order.
    pub(super) fn handle_settled(&mut self, command: Command) {
        if !(self.settles() && self.moves_connections(&command)) {
            self.handle(command);
        } else if self.waiting.len() < WAITING {
            self.waiting.push(command);
        } else {
            command.refuse(EngineError::Conflict(format!(
                "{WAITING} changes wait for agents to list what they hold, which they do within {} s of a \
                 restart; ask again",
                LIST_WITHIN.as_secs()
            )));
        }
    }

    /// Whether a command may make tables anew that are not to be made before agents have listed.
    fn moves_connections(&self, command: &Command) -> bool {
        let asks = |name: &str| self.services.get(name).is_some_and(ServiceRuntime::asks_agents);
        match command {
            Command::Add(name, ..)
            | Command::Set(name, ..)
            | Command::Remove(name, ..)
            | Command::Drain(name, ..)
            | Command::Weight(name, ..) => asks(name),
            Command::LookedUp(sought, _) => asks(&sought.service),
            Command::Apply(..) | Command::Rollback(..) | Command::Reload(..) => true,
            Command::By(_, command) => self.moves_connections(command),
            Command::Asked(asked) => self.moves_connections(&asked.command),
            _ => false,
        }
    }

    /// Where the connections end that an agent of these addresses is asked for.
    fn places_of(&self, addresses: &[IpAddr]) -> BTreeMap<u32, Place> {
        let mut places = BTreeMap::new();
        for service in self.services.values().filter(|service| service.asks_agents()) {
            let configured = &service.configured;
            let nat = configured.forward.is_nat();
            let others = || {
                let same = self.services.values().map(|other| &other.configured).filter(|other| {
                    other.protocol == Protocol::Tcp
                        && other.hosts().any(|address| address == configured.vip)
                });
                let ports = |other: &Service| match (other.port, other.ports) {
                    (Some(port), _) => port..=port,
                    (None, Some(Ports { first, last })) => first..=last,
                    #[expect(clippy::reversed_empty_ranges, reason = "it has none of its own")]
                    (None, None) => 1..=0,
                };
                same.flat_map(ports).collect::<BTreeSet<u16>>()
            };
            let salt = service.salts.places(configured).first().map_or(0, |at| at.salt);
            for member in &service.pool {
                if !addresses.contains(&member.wanted.address) {
                    continue;
                }
                let id = id_of(service.number, member.id);
                let (address, port) = match nat {
                    true => (member.wanted.address, member.wanted.port.or(configured.port)),
                    false => (configured.vip, configured.port),
                };
                let not = if configured.port.is_none() { others() } else { BTreeSet::new() };
                let place = Place {
                    endpoint: Endpoint { id, address: address.to_canonical(), port },
                    service: service.number,
                    backend: member.id,
                    salt,
                    port: configured.port,
                    not,
                };
                places.insert(id, place);
            }
        }
        places
    }

    /// An agent calls.
    pub(super) fn agent_calls(&mut self, newcomer: Newcomer) -> Result<Welcome, String> {
        if self.config.agents.is_none() {
            return Err("this balancer listens for no agents any more".into());
        }
        // Whoever speaks for the same backends is an agent before it, or the same one whose connection was
        // lost: its session ends, and what it said counts until the new one has told all.
        let shares =
            |one: &Speaker| newcomer.addresses.iter().any(|address| one.speaks_for(*address));
        let before: Vec<u64> =
            self.agents.speakers.iter().filter(|(_, one)| shares(one)).map(|(n, _)| *n).collect();
        for session in before {
            self.agents.lose(session, Over::Another);
        }
        let places = self.places_of(&newcomer.addresses);
        self.agents.lists += 1;
        let number = self.agents.lists;
        let same = self.agents.lost.iter().rposition(|one| {
            one.instance == newcomer.instance && one.next.is_some() && one.places == places
        });
        let resumed = same.map(|at| self.agents.lost.remove(at));
        if resumed.is_some() {
            self.agents.found(&newcomer.addresses);
        }
        let next = resumed.as_ref().and_then(|one| one.next);
        let held = resumed.map(|one| one.held).unwrap_or_default();
        let (name, from, version) = (&newcomer.name, newcomer.from, &newcomer.version);
        info!(agent = name, %from, version, resumes = next.is_some(), "an agent calls");
        let said = self.said_to(&newcomer.name, &newcomer.addresses);
        let welcome = Welcome {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            resume: next.is_some(),
            have: next.unwrap_or(0),
            endpoints: Some(list(number, &places)),
            balancers: self.balancers(),
            serving: Some(said.serving.clone()),
            quic_lb: Some(said.quic.clone()),
        };
        let speaker = Speaker {
            since: Instant::now(),
            list: number,
            places,
            said,
            former: BTreeSet::new(),
            next,
            dump: None,
            asked: false,
            disputes: false,
            held,
            // It begins with all that is open, and is asked what the others were asked last.
            collected: self.agents.collects.saturating_sub(1),
            collecting: 0,
            lag: None,
            cpu: 0.0,
            run_queue: 0,
            connections: 0,
            lost: 0,
            dumps: 0,
            events: 0,
            refused: 0,
            newcomer,
        };
        let (session, begins) = (speaker.newcomer.session, speaker.next.is_some());
        self.agents.speakers.insert(session, speaker);
        if begins {
            self.ask_late(session);
        }
        Ok(welcome)
    }

    /// A session is over.
    pub(super) fn agent_gone(&mut self, session: u64) {
        if let Some(from) = self.agents.lose(session, Over::Gone) {
            info!(%from, "an agent is gone");
            self.follow_told();
        }
    }

    /// So many more were turned away before they could say anything.
    pub(super) fn agents_turned_away(&mut self, count: u64) {
        self.agents.turned_away += count;
    }

    /// An agent says something; an error ends its session.
    pub(super) fn agent_says(&mut self, session: u64, said: Said) -> Result<(), String> {
        let Some(one) = self.agents.speakers.get_mut(&session) else {
            return Err("this session is over".into());
        };
        match said {
            Said::Reached { lag, connections, lost } => {
                (one.lag, one.connections, one.lost) = (Some(lag), connections, lost);
                Ok(())
            }
            Said::Load { cpu, run_queue, load, unknown } => {
                (one.cpu, one.run_queue) = (cpu, run_queue);
                let addresses = one.newcomer.addresses.clone();
                if load.is_some() || unknown {
                    self.agent_loads(&addresses, load);
                }
                Ok(())
            }
            Said::Health(word) => {
                told::tell(&one.newcomer.addresses, &word);
                Ok(())
            }
            Said::DumpBegin { next, list } => {
                one.dumps += 1;
                one.asked = false;
                one.dump = Some(Dump { next, list, found: HashMap::new() });
                Ok(())
            }
            Said::Dumped(connections) => self.agent_dumps(session, &connections),
            Said::DumpEnd => self.agent_dumped(session),
            Said::Collected { number, connections, last } => {
                self.agent_collects(session, number, &connections, last)
            }
            Said::Events { first, next, events } => {
                if one.dump.is_some() || one.next != Some(first) || next < first {
                    let wanted = one.next;
                    return Err(format!("events from {first} on, and {wanted:?} are next"));
                }
                one.next = Some(next);
                one.events += events.len() as u64;
                for (kind, connection) in events {
                    self.agent_tells(session, kind, &connection);
                }
                Ok(())
            }
        }
    }

    fn numbered(&mut self, number: ServiceId) -> Option<&mut ServiceRuntime> {
        self.services.get_mut(self.names.get(&number)?)
    }

    /// One event.
    fn agent_tells(&mut self, session: u64, kind: Kind, connection: &Connection) {
        let now = self.now();
        let Some(one) = self.agents.speakers.get_mut(&session) else { return };
        let Some((number, backend, key)) = one.own(connection) else { return };
        let Some(service) = self.numbered(number) else { return };
        let mut told = Told::Taken;
        let taken = service.remembered(|service| match kind {
            Kind::Opened => {
                told = service.opened(key, backend, false, now)?;
                Ok(())
            }
            kind => service.ended(&key, backend, kind, now),
        });
        self.agent_told(session, told);
        tolerate("take up what an agent says", taken);
    }

    fn agent_told(&mut self, session: u64, told: Told) {
        if told == Told::Others
            && let Some(one) = self.agents.speakers.get_mut(&session)
        {
            one.refused += 1;
            one.disputes = true;
        }
    }

    fn agent_dumps(&mut self, session: u64, connections: &[Connection]) -> Result<(), String> {
        let now = self.now();
        for connection in connections {
            let Some(one) = self.agents.speakers.get_mut(&session) else { break };
            if one.dump.is_none() {
                return Err("a part of a dump that has not begun".into());
            }
            let Some((number, backend, key)) = one.own(connection) else { continue };
            if let Some(dump) = &mut one.dump
                && !dump.found.entry(connection.endpoint).or_default().insert(key)
            {
                continue;
            }
            let Some(service) = self.numbered(number) else { continue };
            // One beyond what there is room for is of no use, and it must not be kept either.
            let mut told = Told::Taken;
            let taken = service.remembered(|service| {
                told = service.opened(key, backend, true, now)?;
                Ok(())
            });
            let waits = told == Told::Others && service.claims.has(&key, backend);
            if told != Told::Taken
                && !waits
                && let Some(one) = self.agents.speakers.get_mut(&session)
                && let Some(dump) = &mut one.dump
                && let Some(found) = dump.found.get_mut(&connection.endpoint)
            {
                found.remove(&key);
            }
            self.agent_told(session, told);
            tolerate("take up what an agent lists", taken);
        }
        Ok(())
    }

    fn agent_dumped(&mut self, session: u64) -> Result<(), String> {
        let now = self.now();
        let Some(one) = self.agents.speakers.get_mut(&session) else { return Ok(()) };
        let Some(mut dump) = one.dump.take() else {
            return Err("the end of a dump that has not begun".into());
        };
        one.next = Some(dump.next);
        self.ask_late(session);
        let Some(one) = self.agents.speakers.get_mut(&session) else { return Ok(()) };
        if dump.list != one.list {
            // Another one, of the list that it has been given meanwhile, is on its way.
            return Ok(());
        }
        one.former.clear();
        let places: Vec<(u32, ServiceId, BackendId)> =
            one.places.values().map(|one| (one.endpoint.id, one.service, one.backend)).collect();
        one.held = places.iter().map(|(_, service, backend)| (*service, *backend)).collect();
        let addresses = one.newcomer.addresses.clone();
        for (id, number, backend) in places {
            let found = dump.found.remove(&id).unwrap_or_default();
            let Some(service) = self.numbered(number) else { continue };
            let done = service.remembered(|service| service.dumped(backend, &found, now));
            tolerate("take up what an agent has listed", done);
        }
        let disputing = self.agents.speakers.iter_mut().filter(|(other, _)| **other != session);
        for (_, other) in disputing.filter(|(_, other)| other.disputes && !other.asked) {
            other.asked = other.newcomer.orders.try_send(Order::Dump).is_ok();
            other.disputes = false;
        }
        // What agents before it said counts no more.
        self.agents.lost.retain(|lost| !lost.addresses.iter().any(|one| addresses.contains(one)));
        self.agents.found(&addresses);
        self.follow_told();
        self.go_on_learning();
        Ok(())
    }

    /// A part of what is half-open at its backends.
    fn agent_collects(
        &mut self,
        session: u64,
        number: u64,
        connections: &[Connection],
        last: bool,
    ) -> Result<(), String> {
        let now = self.now();
        let asked = self.agents.collects;
        let Some(one) = self.agents.speakers.get_mut(&session) else { return Ok(()) };
        if number > asked {
            return Err(format!("an answer to question {number}, and {asked} is the last one"));
        }
        if one.dump.is_some() || one.next.is_none() {
            return Err("what is half-open, before it has listed what is open".into());
        }
        if number <= one.collected {
            // Nobody waits for it: it was asked before what it was asked for had gone.
            return Ok(());
        }
        one.collecting += connections.len();
        if one.collecting > MOST_COLLECTED {
            return Err(format!("more than {MOST_COLLECTED} half-open connections in an answer"));
        }
        if last {
            (one.collected, one.collecting) = (number, 0);
        }
        for connection in connections {
            let Some(one) = self.agents.speakers.get_mut(&session) else { break };
            let Some((number, backend, key)) = one.own(connection) else { continue };
            let Some(service) = self.numbered(number) else { continue };
            service.half_open_at(key, backend, now);
        }
        Ok(())
    }

    /// Asks all agents what is half-open at their backends; the number of the question.
    pub(super) fn collect_from_agents(&mut self) -> u64 {
        self.agents.collects += 1;
        let number = self.agents.collects;
        let mut deaf = Vec::new();
        for (session, one) in &mut self.agents.speakers {
            if one.places.is_empty() {
                // If it is asked for some later, it begins with a dump.
                (one.collected, one.collecting) = (number, 0);
            } else if one.newcomer.orders.try_send(Order::Collect(number)).is_err() {
                deaf.push(*session);
            }
        }
        for session in deaf {
            self.agents.lose(session, Over::Deaf);
        }
        number
    }

    /// Asks one that has come, or come back, or has been given other backends, after all others were asked.
    fn ask_late(&mut self, session: u64) {
        let number = self.agents.collects;
        let Some(one) = self.agents.speakers.get_mut(&session) else { return };
        if one.collected < number && one.newcomer.orders.try_send(Order::Collect(number)).is_err() {
            self.agents.lose(session, Over::Deaf);
        }
    }

    /// Whether all agents that are there have answered a question.
    #[cfg(test)]
    pub(super) fn has_collected(&self, number: u64) -> bool {
        self.uncollected(number).next().is_none()
    }

    /// As [`has_collected`](Self::has_collected), of the agents of these backends alone, those included that were lost
    /// not long ago.
    pub(super) fn has_collected_of(&self, number: u64, needed: &HashSet<IpAddr>) -> bool {
        !self.not_collected(number).any(|address| needed.contains(address))
    }

    /// The addresses of which that was not told.
    pub(super) fn not_collected(&self, number: u64) -> impl Iterator<Item = &IpAddr> {
        let there = self.uncollected(number).flat_map(|one| &one.newcomer.addresses);
        there.chain(self.agents.lost.iter().flat_map(|one| &one.addresses))
    }

    /// Whether the agent of a backend was lost not long ago, and has not told all since.
    pub(super) fn misses(&self, address: IpAddr) -> bool {
        self.agents.missed.get(&address).is_some_and(|since| since.elapsed() < MISSED_FOR)
    }

    /// The names of those that have not.
    pub(super) fn missing_collect(&self, number: u64) -> Vec<String> {
        self.uncollected(number).map(|one| one.newcomer.name.clone()).collect()
    }

    fn uncollected(&self, number: u64) -> impl Iterator<Item = &Speaker> {
        let speakers = self.agents.speakers.values();
        speakers.filter(move |one| !one.places.is_empty() && one.collected < number)
    }

    /// A load counts for all services that go by what is told; none: it is not known any more.
    fn agent_loads(&mut self, addresses: &[IpAddr], load: Option<f64>) {
        let mut concerned = Vec::new();
        for (name, service) in &mut self.services {
            let own = service.pool.iter().filter(|one| addresses.contains(&one.wanted.address));
            let own: Vec<BackendId> = own.map(|one| one.id).collect();
            own.iter().for_each(|id| service.loads.tell(*id, load));
            let (scheduler, reads) = service.scheduler();
            if !own.is_empty() && scheduler.reads_loads() && reads == Load::Told {
                concerned.push(name.clone());
            }
        }
        concerned.iter().for_each(|name| self.tell_loads(name));
    }

    /// Backends that are told of no more are observed.
    fn follow_told(&mut self) {
        let now = self.now();
        let held = self.agents.held();
        let mut heard: HashMap<ServiceId, BTreeSet<BackendId>> = HashMap::new();
        for (service, backend) in self.agents.speakers.values().flat_map(|one| &one.held) {
            heard.entry(*service).or_default().insert(*backend);
        }
        for service in self.services.values_mut() {
            let asks = service.asks_agents();
            let number = service.number;
            service.heard = heard.remove(&number).unwrap_or_default();
            let gone: Vec<BackendId> = service
                .told_of
                .iter()
                .copied()
                .filter(|backend| !asks || !held.contains(&(number, *backend)))
                .collect();
            for backend in gone {
                let (name, number) = (&service.configured.name, backend.get());
                warn!(service = name, backend = number, "not told of any more: it is observed");
                let done = service.remembered(|service| service.untold(backend, now));
                tolerate("observe connections that were told of", done);
            }
        }
    }

    /// Asks agents for other backends, if those are others by now, and forgets who was lost too long ago.
    pub(super) fn look_at_agents(&mut self) {
        self.follow_listener();
        self.agents.lost.retain(|lost| lost.at.elapsed() < LOST_FOR);
        let wanted: Vec<(u64, BTreeMap<u32, Place>)> = self
            .agents
            .speakers
            .iter()
            .map(|(session, one)| (*session, self.places_of(&one.newcomer.addresses)))
            .filter(|(session, places)| self.agents.speakers[session].places != *places)
            .collect();
        for (session, places) in wanted {
            self.agents.lists += 1;
            let number = self.agents.lists;
            let Some(one) = self.agents.speakers.get_mut(&session) else { continue };
            let kept = places.values().map(|place| (place.service, place.backend)).collect();
            one.held = one.held.intersection(&kept).copied().collect();
            one.former.extend(one.places.keys());
            (one.list, one.places) = (number, places);
            let order = Order::Endpoints(list(number, &one.places));
            if one.newcomer.orders.try_send(order).is_err() {
                // It does not listen.
                self.agents.lose(session, Over::Deaf);
            }
        }
        self.tell_balancers();
        self.tell_serving();
        self.follow_told();
        self.await_agents();
        self.ask_again();
        self.go_on_learning();
    }

    /// Looks whose agents are to call, since their backends are up in services that change in step. Who was waited
    /// for long enough is remembered for as long as the backend is up.
    pub(super) fn await_agents(&mut self) {
        let heard: HashSet<(ServiceId, BackendId)> =
            self.agents.speakers.values().flat_map(|one| &one.held).copied().collect();
        let in_step = self.services.values().filter(|service| self.is_in_step(service));
        let mute = in_step.filter(|service| service.asks_agents()).flat_map(|service| {
            let mute = |one: &&PoolMember| one.up && !heard.contains(&(service.number, one.id));
            service.pool.iter().filter(mute).map(|one| one.wanted.address)
        });
        let mute: HashSet<IpAddr> = mute.collect();
        let missed = &mut self.agents.missed;
        missed.retain(|address, _| mute.contains(address));
        for address in mute {
            missed.entry(address).or_insert_with(Instant::now);
        }
    }

    /// Asks agents for a dump whose backends are not told of though they have told all: a service was made
    /// anew meanwhile.
    fn ask_again(&mut self) {
        let (services, names) = (&self.services, &self.names);
        let untold = |(number, backend): &(ServiceId, BackendId)| {
            let service = names.get(number).and_then(|name| services.get(name));
            service.is_some_and(|service| service.asks_agents() && !service.is_told_of(*backend))
        };
        for one in self.agents.speakers.values_mut() {
            if !one.asked && one.dump.is_none() && one.held.iter().any(untold) {
                one.asked = one.newcomer.orders.try_send(Order::Dump).is_ok();
            }
        }
    }

    /// All that were lost have been so for long.
    #[cfg(test)]
    pub(super) fn give_up_lost(&mut self) {
        self.agents.lost.iter_mut().for_each(|lost| lost.at -= LOST_FOR);
        self.look_at_agents();
    }

    /// And for longer than changes wait for them.
    #[cfg(test)]
    pub(super) fn give_up_missed(&mut self) {
        self.await_agents();
        for since in self.agents.missed.values_mut() {
            *since = since.checked_sub(MISSED_FOR).expect("the machine was started long ago");
        }
        self.give_up_lost();
    }

    /// Changes have waited for agents for as long as they may.
    #[cfg(test)]
    pub(super) fn end_settling(&mut self) {
        self.agents.settling = Some(Instant::now());
    }
}
