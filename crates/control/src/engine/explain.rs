//! `weir explain`: where the packets of a flow go, and why, read from the data plane itself.
//!
//! Nothing is decided here: the service's method decides, over the published table and a memory
//! that reads the data plane's, changes nothing and writes down what it was asked.

mod hop;

use super::service::ServiceRuntime;
use super::{Engine, EngineError, FleetStatus, PlaneResult, TunnelStatus};
use crate::neigh;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use weir_plane::forward::Origin;
use weir_plane::forward::mapping::has_client;
use weir_plane::{Listen, Plane, SourceTable, VipKey};
use weir_steering::{
    BackendId, BackendLoad, Decide, Decision, Echoes, Flags, Image, Known, MethodId, Note,
    Question, Recall, Rehearsal, ServiceId, Signals, TrackedFlow, Why, ask,
};
use weir_wire::quic::Id;
use weir_wire::{FlowKey, Protocol, Reason, map_address, unmap_address};

/// A flow's way through the tables, as `weir explain` shows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The flow: protocol, source and destination.
    pub flow: String,
    /// The service, if one takes it, or whose answer it is under NAT.
    pub service: Option<String>,
    /// Method of the service.
    pub method: Option<String>,
    /// Generation of the published table.
    pub generation: Option<u64>,
    /// Digest of the published table, hexadecimal.
    pub digest: Option<String>,
    /// The flow's hash under the table's key, hexadecimal.
    pub hash: Option<String>,
    /// The row of the table that the hash leads to: Concury's Dcode, or a slot of a Maglev table.
    pub code: Option<u32>,
    /// Whether that row is reserved for a draining backend.
    pub reserved: bool,
    /// Whether the control plane knows a state of this flow (or client), or the connection table
    /// has it.
    pub known: bool,
    /// Whether the flow is in the pending table.
    pub pending: bool,
    /// The backend that the flow's packets go to.
    pub backend: Option<String>,
    /// Address of that backend.
    pub address: Option<String>,
    /// State of that backend: "up", "down", "draining", "maintenance" or "backup".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Where frames for that backend go: MAC address and interface; or why that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<String>,
    /// Why its packets go nowhere now, by the name of the reason; none if they do go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
    /// How packets get there, if not as they are: the tunnel, from where to where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<String>,
    /// What packets get in the place of the service's address and port, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translation: Option<String>,
    /// What its source becomes under full NAT; none under other ways to forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The backend of the flow's first packet, if that would go elsewhere.
    pub backend_if_new: Option<String>,
    /// What the decision asked of the data plane's memory, with the answers, and what it would
    /// have told it.
    #[serde(default)]
    pub asked: Vec<String>,
    /// What the packet's QUIC id says, if one was given and the service is led by ids.
    #[serde(default)]
    pub id: Option<String>,
    /// What the service's lists say of the flow's source, if it has lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What the service's rates say of a new connection of the source, if it has rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_flows: Option<String>,
    /// Why the flow goes there, as a sentence.
    pub why: String,
    /// What the other balancers of the fleet would do with its packets, each of them, whether it has answered or not;
    /// empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fleet: Vec<Elsewhere>,
    /// Whether another balancer would lead it elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disagreement: bool,
}

/// What another balancer of the fleet would do with a flow's packets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Elsewhere {
    /// Name of the balancer.
    pub balancer: String,
    /// Where they would go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Why, as a sentence; or why that is not known.
    pub why: String,
    /// Whether it has answered.
    pub answered: bool,
}

impl Explanation {
    /// Takes up what others of the fleet have said, each an explanation of its own, or nothing.
    pub fn beside(&mut self, own: &str, others: impl IntoIterator<Item = (String, Option<Self>)>) {
        for (balancer, said) in others.into_iter().filter(|(name, _)| name != own) {
            self.fleet.push(match said {
                Some(said) => {
                    Elsewhere { balancer, backend: said.backend, why: said.why, answered: true }
                }
                None => Elsewhere {
                    balancer,
                    backend: None,
                    why: "it did not answer in time".into(),
                    answered: false,
                },
            });
        }
        let differs = |other: &Elsewhere| other.answered && other.backend != self.backend;
        self.disagreement = self.fleet.iter().any(differs);
    }

    /// Names the balancers of the fleet that were not asked, and why: `failed`, where nobody was.
    pub fn unasked(&mut self, fleet: &FleetStatus, failed: Option<&str>) {
        for one in &fleet.balancers {
            let said = self.fleet.iter().any(|other| other.balancer == one.name);
            if said || one.name == fleet.name {
                continue;
            }
            let why = match (failed, one.role.as_str()) {
                (Some(failed), _) => format!("it was not asked: {failed}"),
                (None, "away") => "it is away: it does not say anything to the store".into(),
                (None, _) => "it was not asked: it has come meanwhile".into(),
            };
            let balancer = one.name.clone();
            self.fleet.push(Elsewhere { balancer, backend: None, why, answered: false });
        }
        self.fleet.sort_by(|one, other| one.balancer.cmp(&other.balancer));
    }

    /// Its packets get this backend's address, and a port if it has one of its own, in the place of those that they are
    /// for.
    pub(crate) fn is_translated(&mut self, flow: &FlowKey, address: IpAddr, port: Option<u16>) {
        let vip = unmap_address(&flow.dst);
        let port = port.map_or_else(String::new, |port| format!(" port {port}"));
        self.translation =
            Some(format!("{vip} becomes {address}{port}, and {vip} again in answers"));
    }

    /// Its packets reach the backend at this address through a tunnel.
    pub(crate) fn is_tunnelled(
        &mut self,
        forward: impl Display,
        tunnel: TunnelStatus,
        address: IpAddr,
    ) {
        let from = tunnel.source.map_or("nowhere: no address here".into(), |from| from.to_string());
        let spread = match tunnel.spread {
            0 => String::new(),
            bits => format!("/{}", 32 - bits),
        };
        let largest = match tunnel.largest {
            0 => String::new(),
            bytes => format!(", for packets of up to {bytes} bytes"),
        };
        self.tunnel = Some(format!("{forward} from {from}{spread} to {address}{largest}"));
    }

    /// It comes to an address and port that packets under full NAT come from; nobody knows which connections there
    /// are.
    pub(crate) fn is_for_full_nat(&mut self) {
        self.why = format!(
            "it comes to a source of full NAT: translated back for the client whose connection has this port, \
             and dropped as {} if none has",
            Reason::NoMapping
        );
    }

    /// It is what a backend answers with whose service, by this name and with this method, is translated: its source
    /// becomes the service's. `to_host`: whether it is for the balancer's host itself, if anybody knows.
    pub(crate) fn is_answer(
        &mut self,
        (service, method): (&str, &str),
        source: SocketAddr,
        becomes: SocketAddr,
        to_host: Option<bool>,
    ) {
        self.service = Some(service.into());
        self.method = Some(method.into());
        let translated = to_host != Some(true);
        self.translation = translated.then(|| format!("{source} becomes {becomes}"));
        let then = match to_host {
            Some(false) => "translated back, and sent on to the client",
            Some(true) => {
                "as it is for this host itself, which has this address, it is left to the kernel, \
                 as those of health checks are"
            }
            None => {
                "translated back, and sent on to the client; only one for this host itself is left \
                 to the kernel"
            }
        };
        self.why = format!("it is an answer of nat of service {service}: {then}");
    }
}

impl<P: Plane> Engine<P> {
    pub(super) fn explain(
        &self,
        flow: &FlowKey,
        connection_id: Option<&Id>,
    ) -> Result<Explanation, EngineError> {
        let mut said = Explanation { flow: flow.to_string(), ..Explanation::default() };
        let Some(service) = self.service_of(flow) else {
            self.explain_answer(flow, &mut said);
            return Ok(said);
        };
        said.service = Some(service.configured.name.clone());
        said.method = Some(service.configured.method.name().into());
        let Some(image) = self.plane.published(service.number).plane()? else {
            said.why = "the service has no published table; its packets are dropped".into();
            said.is_dropped(Reason::NoTable);
            return Ok(said);
        };
        if self.judge(service, flow, &mut said) {
            return Ok(said);
        }
        said.new_flows = self.room_for(service, flow)?;
        match connection_id.and_then(|id| service.led_by(id)) {
            Some(Ok((backend, config, server))) => {
                said.id = Some(format!("server {server:?} in configuration {config}"));
                self.name_backend(service, backend, flow, &mut said);
                said.why = "the packet's QUIC id names the server, whatever the flow; the method \
                            is not asked"
                    .into();
                return Ok(said);
            }
            Some(Err(why)) => said.id = Some(format!("{why}; the method decides")),
            None => {}
        }
        let real = Real { engine: self, service, flow, failure: RefCell::new(None) };
        let id = service.number;
        let mut later = Rehearsal::new(&real);
        let signals = Signals { salt: service.salt_of(flow), ..Signals::LATER };
        let question = ask(&image, id, flow, signals, 0, &mut later);
        let echo = self.cookie(&image, flow, &question)?;
        let row = Question { signals: signals.with_echo(echo), ..question };
        // A datagram of a flow that was not seen lately may begin one.
        let question = Question { signals: question.signals.with_echo(echo), ..question };
        let decided = image.decide(&question, &mut later);
        let first = Signals { echo: question.signals.echo, ..Signals::FIRST };
        let first = Question { signals: first, ..question };
        let first = image.decide(&first, &mut Rehearsal::new(&real));
        let alone = image.decide(&row, &mut Rehearsal::new(&Forgetful(&real)));
        let notes: Vec<Note> = later.notes().to_vec();
        real.failure.into_inner().map_or(Ok(()), Err)?;

        let state = service.known(&question.key);
        said.generation = Some(image.header().generation);
        said.digest = Some(format!("{:016x}", image.header().digest));
        said.hash = Some(format!("{:016x}", question.hash));
        said.code = alone.row;
        said.reserved = alone.why == Why::Reserved;
        said.known = state.is_some() || decided.why == Why::Tracked;
        said.pending = decided.why == Why::Pending;
        match decided.backend {
            Ok(backend) => self.name_backend(service, backend, flow, &mut said),
            Err(reason) => said.is_dropped(reason),
        }
        said.has_asked(&notes, |id| service.name_of(id));
        if first.backend != decided.backend {
            said.backend_if_new = first.backend.ok().and_then(|id| service.name_of(id));
        }
        said.why = because(service, image.method(), state, &decided, &alone);
        Ok(said)
    }

    /// What becomes of packets to where no service is: those of backends may be translated, in the order in which
    /// the data plane asks.
    fn explain_answer(&self, flow: &FlowKey, said: &mut Explanation) {
        let own = SocketAddr::from((unmap_address(&flow.src), flow.src_port));
        let is_source = |one: &Origin| {
            map_address(one.address) == flow.dst
                && (one.first_port..=one.last_port).contains(&flow.dst_port)
        };
        let rules = self.plane.mapping_rules().filter(|_| flow.protocol != Protocol::Sctp);
        if rules.is_some_and(|rules| rules.origins.iter().flatten().any(is_source)) {
            self.explain_mapped(flow, own, said);
            return;
        }
        let from = VipKey { address: flow.src, protocol: flow.protocol, port: Some(flow.src_port) };
        let any = VipKey { port: None, ..from };
        let all = self.translated.as_ref();
        let to = all.and_then(|all| all.get(&from).or_else(|| all.get(&any))).map(|to| to.service);
        let whose = to.and_then(|to| self.services.values().find(|one| one.vip() == to));
        let (Some(to), Some(service)) = (to, whose) else {
            said.why = "no service is configured at this destination; its packets are left to \
                        the kernel"
                .into();
            return;
        };
        let becomes = (unmap_address(&to.address), to.port.unwrap_or(flow.src_port));
        let whose = (service.configured.name.as_str(), service.configured.method.name());
        let host = neigh::addresses().map(|all| {
            let client = unmap_address(&flow.dst);
            all.iter().any(|(_, address)| *address == client)
        });
        said.is_answer(whose, own, becomes.into(), host.ok());
    }

    /// What becomes of a packet that comes to a source of full NAT: the table of connections says it.
    fn explain_mapped(&self, flow: &FlowKey, from: SocketAddr, said: &mut Explanation) {
        let to = SocketAddr::from((unmap_address(&flow.dst), flow.dst_port));
        let Some(held) = self.answered_mapping(flow) else {
            said.why = format!(
                "it comes to a source of full NAT, and no connection has this port towards {from}: dropped as {}",
                Reason::NoMapping
            );
            said.is_dropped(Reason::NoMapping);
            return;
        };
        let client = SocketAddr::from((unmap_address(&held.flow.src), held.flow.src_port));
        let vip = SocketAddr::from((unmap_address(&held.flow.dst), held.flow.dst_port));
        let service = self.service_of(&held.flow);
        said.service = service.map(|service| service.configured.name.clone());
        said.method = service.map(|service| service.configured.method.name().into());
        said.translation = Some(format!("{from} becomes {vip}, and {to} becomes {client}"));
        said.why = format!(
            "it comes to a source of full NAT, whose port the connection of {client} to {vip} has: translated back, \
             and sent on to that client"
        );
    }

    /// Says what the service's lists say of the source; returns whether they deny it.
    fn judge(&self, service: &ServiceRuntime, flow: &FlowKey, said: &mut Explanation) -> bool {
        let Some(lists) = service.lists() else { return false };
        let in_force = self.plane.source_digest(service.number);
        if lists.table().map(SourceTable::digest) != in_force {
            said.source = Some("the lists are not in force yet".into());
            return false;
        }
        let Some((prefix, allowed)) = lists.decide(&flow.src) else { return false };
        let verb = if allowed { "allowed" } else { "denied" };
        said.source = Some(match prefix {
            Some(prefix) => {
                format!("{verb} by {prefix}{}", service.listed.words_of(prefix, self.now()))
            }
            None if allowed => "allowed: no prefix denies it".into(),
            None => "denied: no prefix allows it".into(),
        });
        if !allowed {
            said.why = format!(
                "the service's lists deny the source; its packets are dropped as {}",
                Reason::DeniedSource
            );
            said.is_dropped(Reason::DeniedSource);
        }
        !allowed
    }

    /// What the flow's packets echo, as far as the data plane remembers it.
    fn cookie(
        &self,
        image: &Image,
        flow: &FlowKey,
        question: &Question,
    ) -> Result<Option<u32>, EngineError> {
        let codec = match image {
            Image::Cheetah(table) if table.header().flags().has(Flags::TELLS) => {
                let cookies = &table.body().0;
                let known = self.plane.connection(flow).plane()?;
                // Under the key that issues: one under another key leads to the same backend while that is read.
                let cookie = known.and_then(|known| {
                    let backend = known.backend.get();
                    cookies.method.cookie_for(&cookies.servers, question.hash, backend)
                });
                return Ok(cookie.map(|cookie| u32::from(cookie) << 16));
            }
            Image::Cheetah(table) => *table.body().0.method.codec(),
            Image::CheetahStateful(table) if table.header().flags().has(Flags::TELLS) => {
                let codec = table.body().0.method.method.codec();
                let known = self.plane.connection(flow).plane()?;
                let index = known.and_then(|known| known.former).map(|former| former.number());
                return Ok(index.map(|index| u32::from(codec.hide_for(question.hash, index)) << 16));
            }
            Image::CheetahStateful(table) => table.body().0.method.method.codec(),
            _ => return Ok(None),
        };
        let number = self.plane.answered(flow).plane()?;
        Ok(number.map(|number| u32::from(codec.hide_for(question.hash, number)) << 16))
    }

    fn name_backend(
        &self,
        service: &ServiceRuntime,
        id: BackendId,
        flow: &FlowKey,
        said: &mut Explanation,
    ) {
        let Some(member) = service.by_id(id) else { return };
        let address = member.wanted.address;
        said.backend = Some(member.wanted.name.clone());
        said.address = Some(address.to_string());
        said.state = Some(service.state_of(member).into());
        self.explain_hop(service, member, said);
        let known = self.plane.backend(id);
        if let Some(to) = known.and_then(|known| known.translation) {
            said.is_translated(flow, address, to.port);
        }
        if service.configured.forward.is_full_nat() {
            let port = known.and_then(|known| known.translation).and_then(|to| to.port);
            if has_client(flow, address, port) {
                said.from = Some(self.source_text(flow, id));
            } else {
                said.has_no_client(flow);
            }
        }
        let Some(tunnel) = known.and_then(|known| known.tunnel) else { return };
        let status =
            TunnelStatus::of(&tunnel, address, self.plane.path_mtu(address).unwrap_or(None));
        said.is_tunnelled(service.configured.forward, status, address);
    }

    fn service_of(&self, flow: &FlowKey) -> Option<&ServiceRuntime> {
        let serves = |service: &ServiceRuntime| {
            let places = service.configured.places();
            let takes = places.iter().filter(|at| at.takes(flow));
            takes.map(Listen::exactness).max()
        };
        let all = self.services.values().filter_map(|one| Some((serves(one)?, one)));
        all.max_by_key(|(exactness, _)| *exactness).map(|(_, service)| service)
    }
}

/// The data plane's memory and the service's pool, to be read.
struct Real<'a, P: Plane> {
    engine: &'a Engine<P>,
    service: &'a ServiceRuntime,
    /// Whose packet is explained.
    flow: &'a FlowKey,
    /// What went wrong while it was read, first of all.
    failure: RefCell<Option<EngineError>>,
}

impl<P: Plane> Real<'_, P> {
    fn read<T>(&self, found: Result<Option<T>, EngineError>) -> Option<T> {
        found.unwrap_or_else(|error| {
            self.failure.borrow_mut().get_or_insert(error);
            None
        })
    }
}

impl<P: Plane> Recall for Real<'_, P> {
    fn pending(&self, question: &Question) -> Option<BackendId> {
        let found = self.engine.plane.pending_backend(&question.state());
        self.read(found.plane())
    }

    fn pinned(&self, question: &Question) -> Option<BackendId> {
        let state = question.state();
        let pins = self.engine.plane.pinned().plane();
        let found = pins.map(|pins| pins.into_iter().find(|(pinned, _)| *pinned == state));
        self.read(found).map(|(_, backend)| backend)
    }

    fn is_armed(&self, question: &Question) -> bool {
        let armed = self.engine.plane.is_armed(question.hash).plane();
        self.read(armed.map(Some)).unwrap_or(false)
    }

    fn connection(&self, question: &Question) -> Option<TrackedFlow> {
        let FlowKey { dst, dst_port, protocol, .. } = *self.flow;
        // With client affinity an entry has no ports.
        let dst_port = if question.key.src_port == 0 { 0 } else { dst_port };
        let flow = FlowKey {
            src: question.key.address,
            dst,
            src_port: question.key.src_port,
            dst_port,
            protocol,
        };
        self.read(self.engine.plane.connection(&flow).plane())
    }

    fn seen_before(&self, question: &Question) -> Option<bool> {
        let seen = self.engine.plane.is_seen(question.hash, question.service);
        self.read(seen.plane().map(Some))
    }

    fn incarnation(&self, backend: BackendId) -> Option<u32> {
        self.service.by_id(backend).map(|member| member.incarnation)
    }

    fn is_down(&self, backend: BackendId) -> bool {
        self.service.by_id(backend).is_some_and(|member| !member.up)
    }

    fn has_bare(&self) -> bool {
        self.engine.plane.bare() > 0
    }

    fn echoes(&self, backend: BackendId) -> Echoes {
        self.engine.plane.echoes(backend)
    }

    fn slot(&self, question: &Question, part: u16) -> Option<BackendId> {
        self.read(self.engine.plane.slot(question, part).plane())
    }

    fn turn(&self, service: ServiceId) -> u64 {
        self.engine.plane.turn(service)
    }

    fn load(&self, backend: BackendId) -> BackendLoad {
        self.engine.plane.load(backend)
    }

    /// The connection table has it.
    fn known(&self, question: &Question) -> Option<BackendId> {
        let entry = self.connection(question)?;
        let backend = entry.backend;
        let live = self.incarnation(backend).is_some_and(|now| entry.is_of(now))
            && !(question.signals.starts && self.is_down(backend));
        live.then_some(backend)
    }
}

/// The same pool, and a memory that knows no flow: what the table alone would say.
struct Forgetful<'a, P: Plane>(&'a Real<'a, P>);

impl<P: Plane> Recall for Forgetful<'_, P> {
    fn incarnation(&self, backend: BackendId) -> Option<u32> {
        self.0.incarnation(backend)
    }
}

/// How a decision came about. `alone` is the table's own.
fn because(
    service: &ServiceRuntime,
    method: MethodId,
    state: Option<Known>,
    decided: &Decision,
    alone: &Decision,
) -> String {
    let by_table = matches!(decided.why, Why::Row | Why::Reserved);
    let begin = match state {
        Some(state) if by_table => format!(
            "a state is known ({:?}), and the table was built so that it finds its backend",
            state.phase
        ),
        None if by_table && method.needs().states => {
            "no state is known, and where an unknown flow falls is uniform".into()
        }
        _ => decided.why.to_string(),
    };
    let Some(row) = alone.row else { return begin };
    let row = (method.info().row_name)(row);
    let place = match alone.backend {
        Err(_) => "leads nowhere: no backend serves".to_owned(),
        Ok(_) if alone.why == Why::Reserved => {
            "is reserved for a backend that gets no new flows".to_owned()
        }
        Ok(there) if decided.backend == Ok(there) => "leads to it".to_owned(),
        Ok(there) => {
            let name = service.name_of(there);
            format!("alone would lead to {}", name.as_deref().unwrap_or("another backend"))
        }
    };
    format!("{begin}; {row} {place}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::BalancerStatus;

    fn to(backend: Option<&str>) -> Option<Explanation> {
        Some(Explanation { backend: backend.map(Into::into), ..Explanation::default() })
    }

    fn beside(own: Option<&str>, others: &[(&str, Option<Explanation>)]) -> Explanation {
        let mut said = to(own).expect("it is one");
        said.beside("lb1", others.iter().map(|(name, said)| ((*name).to_owned(), said.clone())));
        said
    }

    #[test]
    fn balancers_disagree_if_one_that_answers_leads_elsewhere() {
        let alike = beside(Some("a"), &[("lb2", to(Some("a"))), ("lb3", to(Some("a")))]);
        assert!(!alike.disagreement && alike.fleet.len() == 2);
        for elsewhere in [Some("b"), None] {
            let said = beside(Some("a"), &[("lb2", to(Some("a"))), ("lb3", to(elsewhere))]);
            assert!(said.disagreement, "{elsewhere:?}");
            assert_eq!(said.fleet[1].backend.as_deref(), elsewhere);
        }
        assert!(beside(None, &[("lb2", to(Some("a")))]).disagreement);
        assert!(!beside(None, &[("lb2", to(None))]).disagreement);
    }

    /// Whoever is of the fleet has a line, whether it could be asked or not.
    #[test]
    fn who_could_not_be_asked_is_named() {
        let one = |name: &str, role: &str| BalancerStatus {
            name: name.into(),
            role: role.into(),
            sign: None,
            lag: 0,
        };
        let fleet = FleetStatus {
            name: "lb1".into(),
            store: String::new(),
            reachable: true,
            seconds: 0,
            error: None,
            change: 1,
            made: None,
            resyncs: 0,
            leader: None,
            leads: false,
            balancers: vec![one("lb0", "away"), one("lb1", "serves"), one("lb2", "serves")],
            disagreements: Vec::new(),
            step: None,
        };
        let mut said = beside(Some("a"), &[("lb2", to(Some("a")))]);
        said.unasked(&fleet, None);
        let words: Vec<(&str, bool)> =
            said.fleet.iter().map(|one| (one.balancer.as_str(), one.answered)).collect();
        assert_eq!(words, [("lb0", false), ("lb2", true)]);
        assert!(said.fleet[0].why.contains("away") && !said.disagreement, "{:?}", said.fleet);
        let mut alone = beside(Some("a"), &[]);
        alone.unasked(&fleet, Some("the store cannot be reached: no answer"));
        let why: Vec<&str> = alone.fleet.iter().map(|one| one.why.as_str()).collect();
        assert_eq!(why, ["it was not asked: the store cannot be reached: no answer"; 2]);
    }

    #[test]
    fn who_does_not_answer_disagrees_with_nobody_and_one_does_not_with_itself() {
        let said = beside(Some("a"), &[("lb1", to(Some("b"))), ("lb2", None)]);
        assert!(!said.disagreement);
        let [silent] = &said.fleet[..] else { panic!("{:?}", said.fleet) };
        assert!(silent.balancer == "lb2" && !silent.answered && silent.backend.is_none());
    }
}
