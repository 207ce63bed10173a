//! `weir status`: everything there is to tell, for people and for programs.

use super::agents::AgentStatus;
use super::by_id::{IdStatus, QuicStatus};
use super::caps::NewFlowStatus;
use super::discover::{self, DiscoverStatus};
use super::maintenance::MaintenanceStatus;
use super::room::RoomStatus;
use super::service::{PoolMember, ServiceRuntime};
use super::sources::ListedSource;
use super::{
    ConsistencyStatus, Engine, EngineError, FleetStatus, PlaneResult, expects_native, slow,
};
use crate::config::{Backend, PlaneKind, Ports, Vip, What};
use crate::{health, neigh};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use weir_dataplane::user::METHODS as USER_METHODS;
use weir_plane::Returned;
use weir_plane::forward::Tunnel;
use weir_plane::{InterfaceCounters, LaneCounters, Listen, Plane, TrackedFlows, UserStatus};
use weir_steering::{BackendId, Image, MethodId};
use weir_wire::Reason;

/// The interfaces that have no row of their own; no interface can have that name.
const OTHERS: &str = "(others)";

/// The state of an instance, as `weir status` shows it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Name of the instance.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Process number of `weir run`.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// Number of the last change of the instance, by a command or by its file: what `expect` is compared
    /// with; 0: there was none.
    #[serde(default)]
    pub change: u64,
    /// Whether it resumed a data plane that was there.
    pub resumed: bool,
    /// Interfaces that packets are taken from, each with "native" or "generic".
    pub interfaces: Vec<(String, String)>,
    /// Frames that were sent since the process started and lost before they left, for each of those
    /// interfaces, and for others where there are any; none if the kernel does not tell.
    #[serde(default)]
    pub lost: Option<Vec<LostStatus>>,
    /// What became of the frames that came by each of those interfaces, and by others where there are any; none if
    /// that is not counted (`count_interfaces`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_interface: Option<Vec<InterfaceStatus>>,
    /// The plane in user space; none if the program in the kernel decides all packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plane: Option<PlaneStatus>,
    /// When the certificate ends that the API shows by TLS, in seconds since 1970; none if it is not served so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_certificate_ends: Option<i64>,
    /// What an operator should know, a sentence each.
    pub warnings: Vec<String>,
    /// The services, in the order of their names.
    pub services: Vec<ServiceStatus>,
    /// The fleet that it is of; none if it has its file alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetStatus>,
    /// Agents of backends.
    #[serde(default)]
    pub agents: Vec<AgentStatus>,
    /// Calls of agents that were refused.
    #[serde(default)]
    pub agents_turned_away: u64,
    /// Connections that agents named and that were not theirs.
    #[serde(default)]
    pub agents_refused: u64,
    /// Packets that were not forwarded, by reason.
    pub outcomes: Vec<OutcomeStatus>,
    /// Answers that were translated; none if no service is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returned: Option<ReturnedStatus>,
    /// The addresses that packets under full NAT come from, and how their ports are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nat_sources: Vec<NatSourceStatus>,
    /// Packets of services that are led by QUIC ids, by what became of the id.
    #[serde(default)]
    pub ids: Vec<IdStatus>,
    /// What following connections has found (`follow_flows`); none if it was never asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<ConsistencyStatus>,
    /// Flows that neither the ring nor the *unreported* map could take.
    pub unrecorded_flows: u64,
    /// Packets of known flows that did not echo the cookie that their backend was told.
    #[serde(default)]
    pub bare_packets: u32,
    /// Reports of flows taken from the data plane since the start.
    pub reports: u64,
    /// Flows in the pending table, over all services.
    pub pending_flows: usize,
    /// How much room there is, and how much of it is taken, by the names of `[limits]`.
    #[serde(default)]
    pub room: Vec<RoomStatus>,
    /// Bytes of the tables' memory that are in use.
    pub table_bytes_used: usize,
    /// Bytes of the tables' memory in all.
    pub table_bytes: usize,
    /// Tables that were moved within that memory since the start, so that another one found room in a row.
    #[serde(default)]
    pub tables_moved: u64,
    /// Their bytes, in sum.
    #[serde(default)]
    pub table_bytes_moved: u64,
    /// Tables that were written into other memory since the start, for that or for other limits.
    #[serde(default)]
    pub tables_packed: u64,
    /// Their bytes, in sum.
    #[serde(default)]
    pub table_bytes_packed: u64,
}

/// A plane in user space: what it is, and what it has done.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PlaneStatus {
    /// "af-xdp" or "dpdk".
    pub kind: String,
    /// The number of its process; none if it takes no packets: the program in the kernel decides all that come,
    /// which by ports of DPDK is none.
    pub process: Option<u32>,
    /// Times that it was started anew since this control plane began, as it had ended.
    pub restarts: u64,
    /// Why it does not run, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Of the last second, the share of time that it was at bursts, 0 to 1.
    pub utilisation: f64,
    /// The same weighted by how full bursts were: how much of what it could do it did, 0 to 1.
    pub utilisation_plus: f64,
    /// What it has counted, by name (docs/planes.md).
    pub counts: BTreeMap<String, u64>,
    /// Whose rules lead packets of known connections ("emulated", "emulated-veth", "ntuple", "rte_flow"); none if none are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<String>,
    /// Why there are no rules, if they are wanted: the plane goes on without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_rules: Option<String>,
}

impl PlaneStatus {
    /// What an operator should know of it.
    fn warnings(&self) -> Option<String> {
        if let Some(why) = &self.no_rules {
            return Some(format!("the plane in user space goes on without rules of a card: {why}"));
        }
        let why = self.failure.as_ref().filter(|_| self.process.is_none())?;
        let goes_on = match self.kind == PlaneKind::Dpdk.name() {
            true => "no packet comes or goes by DPDK's ports",
            false => "the program in the kernel decides all packets",
        };
        Some(format!("no plane in user space: {goes_on}, and it is tried again ({why})"))
    }
}

/// Frames that were to leave by an interface, and did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostStatus {
    /// Name of the interface, or its number if it is gone.
    pub interface: String,
    /// Number of frames that were lost since `weir run` started.
    pub frames: u64,
}

/// What became of the frames that came by an interface: all that came are in one of the three numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceStatus {
    /// Name of the interface; of a bond those of its members. "(others)" are those that are gone, and those that are
    /// not told apart.
    pub interface: String,
    /// Frames sent to backends, and answers of backends sent to clients.
    pub forwarded: u64,
    /// Frames left to the kernel, or to the next program.
    pub passed: u64,
    /// Frames dropped, or answered by weir itself.
    pub dropped: u64,
}

/// A service and its published table.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServiceStatus {
    /// Name of the service.
    pub name: String,
    /// Number of the service in the data plane.
    pub number: u32,
    /// Address that clients connect to.
    pub vip: IpAddr,
    /// All addresses and prefixes that clients connect to, if it is not that one alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vips: Vec<Vip>,
    /// What tells connections to each of them apart in the service's table, if there is anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub salts: Vec<u16>,
    /// Transport protocol, "tcp", "udp" or "sctp".
    pub protocol: String,
    /// Port; none if the service takes any, or several.
    pub port: Option<u16>,
    /// Ports, if they are a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Ports>,
    /// Steering method, as the configuration names it.
    pub method: String,
    /// Who gets first packets, as the configuration names it; none if the method has no choice.
    #[serde(default)]
    pub scheduler: Option<String>,
    /// What its scheduler goes by, if it reads loads: "connections", "packets", "bytes" or "told".
    #[serde(default)]
    pub load: Option<String>,
    /// What stays on one backend: "flow" or "client".
    pub affinity: String,
    /// How packets reach its backends: "l2", "ipip", "gue", "fou", "gre" or "nat".
    #[serde(default)]
    pub forward: String,
    /// UDP port of its tunnels; none if they are not over UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel_port: Option<u16>,
    /// Number of tables published so far.
    pub generation: u64,
    /// Digest of the published table, hexadecimal.
    pub digest: String,
    /// Connections (or clients) known to the control plane.
    pub states: usize,
    /// States in the published table.
    pub published_states: u64,
    /// Who says what connections there are: "observed" or "agents".
    #[serde(default)]
    pub states_from: String,
    /// Connections that have begun and that no agent has told of yet (`states = "agents"`).
    #[serde(default)]
    pub young: usize,
    /// Those of them that were forgotten, as there were more than a sixteenth of limits.half_open_flows.
    #[serde(default)]
    pub forgotten_young: u64,
    /// Connections of which packets were seen, and no agent has told in 65 s.
    #[serde(default)]
    pub untold: u64,
    /// Connections of which only the SYN was seen; some may have turned out to be open since.
    #[serde(default)]
    pub half_open: usize,
    /// Half-open connections that were forgotten because of limits.half_open_flows.
    #[serde(default)]
    pub forgotten_half_open: u64,
    /// Flows that were not remembered because of limits.states_per_service.
    pub refused_states: u64,
    /// Flows that were not remembered because of limits.states_per_prefix.
    #[serde(default)]
    pub refused_of_prefix: u64,
    /// Bytes of the published table.
    pub table_bytes: usize,
    /// Bytes of the control plane's own structure for it.
    pub control_bytes: usize,
    /// How long the last update took, in milliseconds, waiting included.
    pub last_update_ms: Option<u64>,
    /// Its table of connections by index; none if the method has none.
    #[serde(default)]
    pub slots: Option<SlotStatus>,
    /// How much its rows track; none if the method is not `jet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracking: Option<TrackingStatus>,
    /// The sources that its packets are taken from, if not all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<SourceStatus>,
    /// How many new flows it takes, if not any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_flows: Option<NewFlowStatus>,
    /// How its packets are led by QUIC ids, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quic: Option<QuicStatus>,
    /// What is looked up for it in the domain name system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discover: Vec<DiscoverStatus>,
    /// The backends, in the order of the pool.
    pub backends: Vec<BackendStatus>,
}

/// From which sources a service takes packets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SourceStatus {
    /// Prefixes of the file that allow; if there are any, a source that no prefix has is denied.
    pub allow: usize,
    /// Prefixes of the file that deny.
    pub deny: usize,
    /// What commands have put over them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_commands: Vec<ListedSource>,
    /// Digest of the list that packets follow, hexadecimal; none: they follow none yet.
    pub digest: Option<String>,
}

/// How full a table of connections by index is, and what it has refused.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SlotStatus {
    /// Slots in use.
    pub used: u64,
    /// Slots that there are, in use or free.
    pub slots: u64,
    /// Connections that found no free slot, and are tracked instead.
    pub full: u64,
    /// Cookies that named a free slot: stale ones, or forged ones.
    pub stale_cookies: u64,
    /// Cookies that named the slot of another flow: forged ones, or stale ones.
    pub foreign_cookies: u64,
}

/// What JET's published rows track.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TrackingStatus {
    /// The part of the new flows that get into the connection table, 0 to 1.
    pub tracked_share: f64,
    /// The part of the flows whose packets do without a look into the connection table, 0 to 1.
    pub avoided_share: f64,
    /// Flows that are in the connection table.
    #[serde(default)]
    pub tracked: u64,
    /// Flows that were put there and are there no more, as others took their places
    /// (`limits.tracked_flows`).
    #[serde(default)]
    pub evicted: u64,
}

impl TrackingStatus {
    fn of(image: &Image, flows: TrackedFlows) -> Option<Self> {
        let Image::Jet(table) = image else { return None };
        let rows = table.body();
        let TrackedFlows { there, evicted } = flows;
        let (tracked_share, avoided_share) = (rows.tracking(), 1.0 - rows.asking());
        Some(Self { tracked_share, avoided_share, tracked: there, evicted })
    }
}

/// A backend and what went to it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BackendStatus {
    /// Name of the backend, unique in its service.
    pub name: String,
    /// Number of the backend in the data plane.
    pub number: u16,
    /// Address of the backend.
    pub address: IpAddr,
    /// The port that its packets get, where they are translated; none: the one that they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Share of the new connections, 0 to 65,535.
    pub weight: u16,
    /// "up", "down", "draining", "maintenance" or "backup".
    pub state: String,
    /// When it is in maintenance; none if it never is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceStatus>,
    /// The entry by which it was looked up; none: it is the file's, or a command's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_by: Option<String>,
    /// Whether its record is gone: it leaves when its connections have ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// Whether it is drained: by a command or by the file, whatever its check says.
    #[serde(default)]
    pub drain: bool,
    /// What its health check says.
    pub check: CheckStatus,
    /// States that it holds; none if the method keeps no states.
    pub states: Option<usize>,
    /// The tunnel that its packets go through; none if they reach it as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<TunnelStatus>,
    /// Which of the balancer's sources its packets get under full NAT; none: all of its family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nat_sources: Vec<IpAddr>,
    /// Packets forwarded to it.
    pub packets: u64,
    /// Bytes forwarded to it.
    pub bytes: u64,
    /// Flows that started there.
    pub flows: u64,
    /// Its load as the scheduler sees it: open connections, packets or bytes in a second, or what was
    /// told. None if no scheduler reads it, or it is not known.
    #[serde(default)]
    pub load: Option<f64>,
    /// The load that was told last, whether a scheduler reads it or not.
    #[serde(default)]
    pub told_load: Option<f64>,
    /// Its weight as it counts now, in units of `weight`: less while it starts slowly, and what it says of
    /// itself in its checks' answers.
    #[serde(default)]
    pub effective_weight: f64,
    /// What it says: a weight, or per cent of the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoken_weight: Option<String>,
    /// It has come up not long ago, and its share still grows.
    #[serde(default)]
    pub slow_start: bool,
    /// Whether its agent says what connections it has.
    #[serde(default)]
    pub told_of: bool,
    /// Whether a packet of a flow that is known there did not echo the cookie that it was told
    /// (`answers = "backend"`).
    #[serde(default)]
    pub bare: bool,
}

/// The tunnel to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TunnelStatus {
    /// Where it begins: the source address of the outer packets; none if this host has none there.
    pub source: Option<IpAddr>,
    /// Last bits of that address that vary with the flow.
    pub spread: u8,
    /// The largest packet of a client that goes through it, in bytes, where the kernel's routes do not
    /// say less; 0: not known.
    pub largest: u32,
}

impl TunnelStatus {
    /// `said`: the MTU of the way as a router on it has said, if one has.
    pub(super) fn of(tunnel: &Tunnel, backend: IpAddr, said: Option<u32>) -> Self {
        let overhead = tunnel.encapsulation.overhead(backend) as u32;
        let &Tunnel { source, spread, mtu, .. } = tunnel;
        let mtu = said.map_or(mtu, |said| if mtu == 0 { said } else { mtu.min(said) });
        Self { source, spread, largest: mtu.saturating_sub(overhead) }
    }
}

/// Answers of translated backends that went back to clients as the services'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReturnedStatus {
    /// Number of packets that went back.
    pub packets: u64,
    /// Their bytes, from the IP header on.
    pub bytes: u64,
}

/// How the ports of an address are used that packets under full NAT come from: connections as they were
/// counted last. A port may be used towards many backends at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NatSourceStatus {
    /// An address of the balancer's that packets come from.
    pub address: IpAddr,
    /// The first port that is for connections, and the last one.
    pub ports: (u16, u16),
    /// Connections that are open.
    pub open: u64,
    /// Those that the backend has not answered.
    pub opening: u64,
    /// Those that have ended, whose ports rest.
    pub resting: u64,
}

/// What the health check of a backend says.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CheckStatus {
    /// Whether the backend counts as up.
    pub up: bool,
    /// What the last check that changed something said.
    pub detail: String,
    /// What the last check said; none before the first.
    pub last: Option<String>,
    /// The last check could not be made, for a reason of this host's own: the backend stays as it
    /// was.
    #[serde(default)]
    pub unknown: bool,
    /// What is asked: "tcp", "http", "https", "dns", "udp", "script" or "agent"; none: nothing.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Checks that were made, or tried, since the process started or the backend was added.
    #[serde(default)]
    pub checks: u64,
    /// Those of them that failed.
    #[serde(default)]
    pub failed: u64,
    /// Why the last one failed that did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// How many seconds ago that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error_seconds: Option<u64>,
    /// How many seconds the last success took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// When its certificate ends, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_ends: Option<i64>,
    /// Its last failure did not count, since most checks failed at once.
    #[serde(default)]
    pub held: bool,
    /// Successes in a row that bring it up now.
    #[serde(default)]
    pub rise: u32,
}

impl CheckStatus {
    /// `words`: with what the check says in words.
    fn of(
        service: &ServiceRuntime,
        member: &PoolMember,
        check: Option<&health::Status>,
        words: bool,
    ) -> Self {
        let configured = service.configured.check_of(&member.wanted);
        let said = check.filter(|_| words);
        let error = said.and_then(|check| check.last_error.as_ref());
        let last = said.and_then(|check| check.last_result.as_deref());
        Self {
            up: member.up,
            detail: if words { member.detail.to_string() } else { String::new() },
            last: last.map(str::to_owned),
            unknown: check.is_some_and(|check| check.unknown),
            kind: configured.map(|check| check.what.name().to_owned()),
            checks: check.map_or(0, |check| check.checks),
            failed: check.map_or(0, |check| check.failed),
            last_error: error.map(|(words, _)| words.to_string()),
            last_error_seconds: error.map(|(_, at)| at.elapsed().as_secs()),
            seconds: check.and_then(|check| check.took).map(|took| took.as_secs_f64()),
            certificate_ends: check.and_then(|check| check.certificate_ends),
            held: check.is_some_and(|check| check.held),
            rise: check.map_or(0, |check| check.rise),
        }
    }
}

/// What there is to say of certificates that end soon.
fn ending(service: &ServiceRuntime, status: &ServiceStatus) -> Vec<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let mut warnings = Vec::new();
    for (member, shown) in service.pool.iter().zip(&status.backends) {
        let Some(ends) = shown.check.certificate_ends else { continue };
        let Some(What::Https { tls, .. }) =
            service.configured.check_of(&member.wanted).map(|check| &check.what)
        else {
            continue;
        };
        let left = ends.saturating_sub(now);
        let show = |seconds: i64| {
            let hours = seconds.unsigned_abs() / 3600;
            if hours >= 48 { format!("{} days", hours / 24) } else { format!("{hours} hours") }
        };
        let what = format!("service {}: backend {}: its certificate", status.name, shown.name);
        if left < 0 {
            warnings.push(format!("{what} has ended {} ago", show(left)));
        } else if left.unsigned_abs() < tls.expiry_warning.as_secs() {
            warnings.push(format!("{what} ends in {}", show(left)));
        }
    }
    warnings
}

/// Packets that were not forwarded for one reason.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct OutcomeStatus {
    /// The reason in snake case, for example `no_service`.
    pub reason: String,
    /// The reason as a sentence.
    pub description: String,
    /// Packets that were left to the kernel.
    pub passed: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

impl ServiceStatus {
    /// The addresses in words.
    pub fn address_text(&self) -> String {
        let all: Vec<String> = self.vips.iter().map(ToString::to_string).collect();
        if all.is_empty() { self.vip.to_string() } else { all.join(", ") }
    }

    /// Where packets find it, each with what its states are told apart by.
    pub fn places(&self) -> Vec<Listen> {
        let Ok(protocol) = self.protocol.parse() else { return Vec::new() };
        let alone = [Vip::host(self.vip)];
        let vips = if self.vips.is_empty() { &alone[..] } else { &self.vips };
        let salts = self.salts.iter().copied().chain(std::iter::repeat(0));
        let ports = (self.port, self.ports);
        let of = |(vip, salt): (&Vip, u16)| {
            let places = crate::config::places(&[*vip], protocol, ports).into_iter();
            places.map(move |at| Listen { salt, ..at })
        };
        vips.iter().zip(salts).flat_map(of).collect()
    }

    /// The port or ports in words.
    pub fn port_text(&self) -> String {
        match (self.port, self.ports) {
            (Some(port), _) => port.to_string(),
            (None, Some(ports)) => ports.to_string(),
            (None, None) => "any".into(),
        }
    }
}

impl<P: Plane> Engine<P> {
    /// Everything there is to tell.
    pub(super) fn status(&self) -> Result<Status, EngineError> {
        self.tell(true)
    }

    /// The same but for what no metric shows, of which ten thousand backends have much: metrics are read
    /// often.
    pub(super) fn status_in_numbers(&self) -> Result<Status, EngineError> {
        self.tell(false)
    }

    /// `whole`: with what no metric shows.
    fn tell(&self, whole: bool) -> Result<Status, EngineError> {
        let (used, all) = self.plane.pool_bytes();
        let [moved, packed] = self.plane.tables_moved();
        let pending = self.plane.pending().plane()?.len();
        let outcomes: Vec<OutcomeStatus> = self
            .plane
            .outcomes()
            .plane()?
            .into_iter()
            .map(|(reason, (passed, dropped))| OutcomeStatus {
                reason: reason.name().into(),
                description: reason.description().into(),
                passed,
                dropped,
            })
            .collect();
        let translated = self.services.values().any(|one| one.configured.forward.is_nat());
        let returned = translated.then(|| self.plane.returned().plane()).transpose()?;
        let returned =
            returned.map(|Returned { packets, bytes }| ReturnedStatus { packets, bytes });
        let (checks, lanes) = (self.health.snapshot(), self.plane.lanes().plane()?);
        let known = (&*checks, &*lanes);
        let services = self.services.values().map(|s| self.service_status(s, known, whole));
        let services = services.collect::<Result<Vec<_>, _>>()?;
        let (lost, by_interface) = (self.lost()?, self.by_interface()?);
        let ending = self.services.values().zip(&services).flat_map(|(s, shown)| ending(s, shown));
        let ending: Vec<String> = ending.collect();
        let held = self.health.held().map(|(failing, all)| {
            format!(
                "{failing} of {all} health checks fail at once: none of them takes a backend down \
                 (hold_checks_at); look at this host's own network first"
            )
        });
        let plane = self.plane_status();
        let still = self.user.iter().filter_map(|user| user.warning());
        let failed = plane.iter().flat_map(PlaneStatus::warnings).chain(still);
        let idle = plane.as_ref().filter(|_| !services.is_empty()).and_then(|_| {
            let methods = || services.iter().filter_map(|one| MethodId::named(&one.method));
            let none = !methods().any(|method| USER_METHODS.contains(&method));
            let names = USER_METHODS.map(MethodId::name).join(", ");
            none.then(|| {
                format!(
                    "the plane in user space has nothing to do: it decides packets of services with the methods \
                     {names}, and there is none; the program in the kernel decides all"
                )
            })
        });
        let found_none: u64 = outcomes
            .iter()
            .filter(|outcome| outcome.reason == Reason::NoPort.name())
            .map(|outcome| outcome.dropped)
            .sum();
        let nat = self.nat_warning(found_none);
        let (agents_turned_away, agents_refused) = self.agents_refused();
        let mode = |generic| match (self.config.balancer.plane, generic) {
            (PlaneKind::P4, _) => "port",
            (_, true) => "generic",
            (_, false) => "native",
        };
        let slowed = self.attached.iter().filter(|a| a.generic && expects_native(&self.config));
        Ok(Status {
            name: self.config.balancer.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            change: self.history.last(),
            resumed: self.resumed,
            // Who serves the API knows it.
            api_certificate_ends: None,
            interfaces: self
                .attached
                .iter()
                .map(|a| (a.interface.clone(), mode(a.generic).into()))
                .collect(),
            warnings: self
                .warnings
                .iter()
                .cloned()
                .chain(self.host_warnings())
                .chain(slowed.map(|a| slow(&a.interface)))
                .chain(self.network.taken.clone())
                .chain(self.network.gone(&self.config.balancer.interfaces))
                .chain(self.unfollowed.iter().map(|why| {
                    format!("the file was refused at the last SIGHUP, and the one before is in force: {why}")
                }))
                .chain(self.troubles())
                .chain(self.pool_warnings())
                .chain(self.answers_past())
                .chain(discover::warnings(&services))
                .chain(self.bare_warning())
                .chain(self.unanswered_warnings())
                .chain(self.uncounted_warnings())
                .chain(self.lost_warnings())
                .chain(self.announce_warning())
                .chain(held)
                .chain(self.following.trouble())
                .chain(nat)
                .chain(self.pending_full_warning())
                .chain(ending)
                .chain(failed)
                .chain(self.plane.trouble())
                .chain(idle)
                .chain(self.agent_warnings())
                .chain(self.fleet_warnings())
                .collect(),
            fleet: self.fleet_status().ok(),
            plane,
            lost,
            by_interface,
            services,
            agents: self.agent_status(),
            agents_turned_away,
            agents_refused,
            outcomes,
            returned,
            nat_sources: self.nat_status(),
            ids: self.id_status()?,
            consistency: self.following.status(self.config.balancer.follow_flows),
            unrecorded_flows: self.plane.unrecorded(),
            bare_packets: self.plane.bare(),
            reports: self.events_taken,
            pending_flows: pending,
            room: self.room(pending),
            table_bytes_used: used,
            table_bytes: all,
            tables_moved: moved.tables,
            table_bytes_moved: moved.bytes,
            tables_packed: packed.tables,
            table_bytes_packed: packed.bytes,
        })
    }

    /// What of the host is in the plane's way now, and what to do.
    pub(super) fn host_warnings(&self) -> impl Iterator<Item = String> {
        let found = self.in_the_way.map_or_else(Vec::new, |look| look(&self.config));
        let found = found.into_iter().map(|(what, mend)| format!("{what}: {mend}"));
        found.chain(self.config.offload_aside.clone())
    }

    /// What the plane in user space tells, if one is wanted.
    pub(super) fn plane_status(&self) -> Option<PlaneStatus> {
        let user = self.user.as_ref()?;
        let (restarts, failure) = (user.restarts(), user.failure());
        let Some(UserStatus { process, counts }) = self.plane.user_space() else {
            // Memory of other sizes has taken its place, and there was no other program for that.
            let why = "the program that leads packets there could not be loaded anew; restart weir";
            let failure = Some(why.to_owned());
            let kind = self.config.balancer.plane.name().into();
            return Some(PlaneStatus { kind, restarts, failure, ..PlaneStatus::default() });
        };
        let share = |millionths: u64| millionths as f64 / 1e6;
        let running = |share| if process.is_some() { share } else { 0.0 };
        Some(PlaneStatus {
            kind: self.config.balancer.plane.name().into(),
            process,
            restarts,
            failure: failure.filter(|_| process.is_none()),
            utilisation: running(share(counts.utilisation)),
            utilisation_plus: running(share(counts.utilisation_plus)),
            counts: counts
                .named()
                .into_iter()
                .filter(|(name, _)| !name.starts_with("utilisation"))
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            offload: self.config.offload.as_ref().map(|offload| offload.card.name().into()),
            no_rules: user.why_no_rules().filter(|_| process.is_some()),
        })
    }

    /// Services without anybody for new connections, and backends that packets cannot be sent to.
    fn pool_warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, service) in &self.services {
            let seeks = !service.configured.discover.is_empty();
            if service.pool.is_empty() && seeks {
                found.push(format!(
                    "service {name}: no backend was found yet: connections are dropped as no_backend"
                ));
            } else if !service.pool.iter().any(|member| service.takes_new(member)) {
                found.push(format!(
                    "service {name}: no backend takes new connections (all drain, are in maintenance, have \
                     the weight 0, or were removed): they are dropped as no_backend"
                ));
            }
            found.extend(service.crowd_warning());
            for member in &service.pool {
                let Backend { name: backend, address, .. } = &member.wanted;
                if let Some(why) = self.unreachable.get(address) {
                    found.push(format!(
                        "service {name}: backend {backend} gets no packets, whatever its check says: {why}"
                    ));
                }
            }
        }
        found
    }

    /// What was lost on its way out, by interface.
    fn lost(&self) -> Result<Option<Vec<LostStatus>>, EngineError> {
        let Some(counted) = self.plane.lost().plane()? else { return Ok(None) };
        let own = self.attached.iter().map(|attached| (attached.interface.clone(), 0));
        let mut lost: BTreeMap<String, u64> = own.collect();
        for (number, frames) in counted {
            let interface = match neigh::interface_by_index(number) {
                Ok(interface) => interface.name,
                Err(_) => format!("number {number}"),
            };
            *lost.entry(interface).or_default() += frames;
        }
        let each = lost.into_iter().map(|(interface, frames)| LostStatus { interface, frames });
        Ok(Some(each.collect()))
    }

    /// What became of frames, by the interface that they came by.
    fn by_interface(&self) -> Result<Option<Vec<InterfaceStatus>>, EngineError> {
        let Some(counted) = self.plane.interfaces().plane()? else { return Ok(None) };
        let none = InterfaceCounters::default();
        let own = self.attached.iter().map(|attached| (attached.interface.clone(), none));
        let mut all: BTreeMap<String, InterfaceCounters> = own.collect();
        for (number, counts) in counted {
            let name = match neigh::interface_by_index(number) {
                Ok(interface) if number != 0 => interface.name,
                // Names of interfaces that come and go are no series of their own.
                _ => OTHERS.into(),
            };
            let sum = all.entry(name).or_default();
            sum.forwarded += counts.forwarded;
            sum.passed += counts.passed;
            sum.dropped += counts.dropped;
        }
        let each = all.into_iter().map(|(interface, counts)| {
            let InterfaceCounters { forwarded, passed, dropped } = counts;
            InterfaceStatus { interface, forwarded, passed, dropped }
        });
        Ok(Some(each.collect()))
    }

    fn tunnel_to(&self, backend: BackendId) -> Option<TunnelStatus> {
        let there = self.plane.backend(backend)?;
        let tunnel = there.tunnel.as_ref()?;
        let said = self.plane.path_mtu(there.address).unwrap_or(None);
        Some(TunnelStatus::of(tunnel, there.address, said))
    }

    /// `checks`: of all targets, in the order of their ids. `lanes`: of all backends, by number. `whole`: with
    /// what no metric shows.
    fn service_status(
        &self,
        service: &ServiceRuntime,
        (checks, lanes): (&[health::Status], &[LaneCounters]),
        whole: bool,
    ) -> Result<ServiceStatus, EngineError> {
        let configured = &service.configured;
        let table = self.plane.described(service.number).plane()?;
        let (scheduler, load) = service.scheduler();
        let tracking = match service.builder.published() {
            Some(image) if image.method() == MethodId::Jet => {
                TrackingStatus::of(image, self.plane.tracked_flows(service.number).plane()?)
            }
            _ => None,
        };
        let targets = service.targets();
        let from = checks.partition_point(|check| check.id < *targets.start());
        let checks = checks.get(from..).unwrap_or_default();
        let end = checks.partition_point(|check| check.id <= *targets.end());
        let checks = checks.get(..end).unwrap_or_default();
        let mut backends = Vec::with_capacity(service.pool.len());
        for member in &service.pool {
            let lane = lanes.get(member.id.index()).copied().unwrap_or_default();
            let id = service.target(member.id);
            let check = checks.binary_search_by_key(&id, |check| check.id);
            let check = check.ok().and_then(|at| checks.get(at));
            backends.push(BackendStatus {
                name: member.wanted.name.clone(),
                number: member.id.get(),
                address: member.wanted.address,
                port: member.wanted.port,
                nat_sources: member.wanted.nat_sources.clone(),
                weight: member.wanted.weight,
                state: service.state_of(member).into(),
                maintenance: service.maintenance_of(member),
                found_by: member.found.as_ref().map(|found| found.by.clone()),
                leaving: member.is_gone(),
                drain: member.wanted.drain,
                check: CheckStatus::of(service, member, check, whole),
                states: service.states_of(member.id),
                tunnel: whole.then(|| self.tunnel_to(member.id)).flatten(),
                packets: lane.packets,
                bytes: lane.bytes,
                flows: lane.flows,
                load: scheduler
                    .reads_loads()
                    .then(|| service.load_of(member.id, self.plane.load(member.id).value))
                    .flatten(),
                told_load: service.loads.told(member.id),
                effective_weight: service.effective_weight(member),
                spoken_weight: member.spoken.map(|spoken| spoken.to_string()),
                slow_start: member.rising.is_some(),
                told_of: service.is_told_of(member.id),
                bare: self.plane.echoes(member.id).bare,
            });
        }
        Ok(ServiceStatus {
            name: configured.name.clone(),
            number: service.number.0,
            vip: configured.vip,
            vips: configured.vips.clone(),
            salts: if whole { service.salts_shown() } else { Vec::new() },
            protocol: configured.protocol.name().into(),
            port: configured.port,
            ports: configured.ports,
            method: configured.method.name().into(),
            scheduler: service.has_scheduler().then(|| scheduler.name().into()),
            load: scheduler.reads_loads().then(|| load.name().into()),
            affinity: match configured.affinity {
                crate::config::Affinity::Flow => "flow".into(),
                crate::config::Affinity::Client => "client".into(),
            },
            forward: configured.forward.name().into(),
            tunnel_port: configured.forward.port(),
            generation: service.generation,
            digest: table
                .filter(|_| whole)
                .map_or_else(String::new, |table| format!("{:016x}", table.digest)),
            states: service.builder.states(),
            published_states: table.map_or(0, |table| table.states),
            states_from: configured.states.name().into(),
            young: service.young.len(),
            forgotten_young: service.young.pushed_out,
            untold: service.young.untold,
            half_open: service.half_open.len(),
            forgotten_half_open: service.half_open.forgotten,
            refused_states: service.refused(),
            refused_of_prefix: service.beyond_prefix,
            table_bytes: self.plane.table_bytes(service.number),
            control_bytes: service.builder.control_bytes(),
            last_update_ms: service.last_update.map(|d| d.as_millis() as u64),
            slots: self.slot_status(service.number),
            tracking,
            sources: whole.then(|| self.source_status(service)).flatten(),
            new_flows: self.new_flow_status(service),
            quic: whole.then(|| service.quic_status(&self.config.balancer.run_dir)).flatten(),
            discover: service.discover_statuses(),
            backends,
        })
    }
}
