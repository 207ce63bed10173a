//! Connections under full NAT: by which rules the data plane makes them, how many there are, and the log of
//! them.

use super::service::{PoolMember, ServiceRuntime};
use super::status::NatSourceStatus;
use super::{Engine, EngineError, PlaneResult};
use crate::config::{Backend, Config, Protocol, Service};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tracing::info;
use weir_hash::HashKey;
use weir_plane::Plane;
use weir_plane::forward::mapping::{MAPPING_TICK_SHIFT, Target, candidates, place_of_answer};
use weir_plane::forward::{Mapping, MappingRules, MappingTicks, Origin};
use weir_steering::BackendId;
use weir_wire::{FlowKey, map_address, unmap_address};

/// For so long it is said that connections found no port.
const NO_PORT_IS_OVER: Duration = Duration::from_secs(60);
/// A SYN that nobody answers is sent again within this time (RFC 6298), and then it is the same one.
const OPENING: Duration = Duration::from_secs(30);
/// Longer than any of today's systems keeps TIME_WAIT: Linux 60 seconds, others up to two minutes.
const CLOSED: Duration = Duration::from_secs(120);
/// Places of the table that are looked at in one turn of the sweep.
const SWEPT: usize = 1 << 16;

/// In ticks, rounded up.
fn ticks(time: Duration) -> u32 {
    let most = i32::MAX as u64;
    ((time.as_nanos() as u64 >> MAPPING_TICK_SHIFT) + 1).min(most) as u32
}

/// Whole seconds from one tick to another one; none to one that is earlier.
fn seconds(from: u32, to: u32) -> u64 {
    let ticks = (to.wrapping_sub(from) as i32).max(0).unsigned_abs();
    Duration::from_nanos(u64::from(ticks) << MAPPING_TICK_SHIFT).as_secs()
}

/// What the log says first of a connection. Of one that began before the log, an earlier process may have told
/// all that it saw, so that it is not told as a new one: that would name a client twice who came once.
fn first_word(held: &Mapping, log_begins: u32) -> &'static str {
    let before = |tick: u32| (tick.wrapping_sub(log_begins) as i32) < 0;
    match held.state.has_ended() {
        _ if !before(held.since) => "began",
        false => "was open when the log began",
        true if before(held.last) => "had ended when the log began",
        true => "ended",
    }
}

/// How many connections an address has, and what is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// Number of connections that are open.
    pub open: u64,
    /// Those that nobody has answered.
    pub opening: u64,
    /// Those that have ended, whose ports rest.
    pub resting: u64,
}

/// The sweep over the table of mappings.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The place that is looked at next.
    next: usize,
    /// What was counted since the first place.
    counting: BTreeMap<u16, Use>,
    /// Of the last whole sweep; none until there was one.
    counted: Option<BTreeMap<u16, Use>>,
    /// The tick since which this process writes the log; none while it does not.
    log_begins: Option<u32>,
    /// What the log has of each place, and whether it says that it has ended.
    logged: BTreeMap<usize, (Mapping, bool)>,
}

impl<P: Plane> Engine<P> {
    /// Services whose packets get a source of this host's.
    fn under_full_nat(&self) -> impl Iterator<Item = &Service> {
        let all = self.services.values().map(|service| &service.configured);
        all.filter(|service| service.forward.is_full_nat())
    }

    /// Tells the plane by which rules mappings are made. Their key stays as long as there are any.
    pub(super) fn tell_mapping_rules(&mut self) -> Result<(), EngineError> {
        if self.config.balancer.nat.log {
            // Connections that begin before the first sweep are new all the same.
            let now = self.plane.mapping_tick();
            self.sweep.log_begins.get_or_insert(now);
        }
        let idle = |protocol: Protocol| {
            let of = self.under_full_nat().filter(|service| service.protocol == protocol);
            of.map(|service| ticks(service.idle_timeout)).max()
        };
        let (tcp, udp) = (idle(Protocol::Tcp), idle(Protocol::Udp));
        let now = self.plane.mapping_rules();
        let used = tcp.or(udp).is_some();
        if !used && now.is_none() {
            return Ok(());
        }
        let usual = MappingTicks::default();
        let times = MappingTicks {
            opening: ticks(OPENING),
            closed: ticks(CLOSED),
            tcp: tcp.unwrap_or(usual.tcp),
            udp: udp.unwrap_or(usual.udp),
        };
        let key = now.map_or_else(|| HashKey::from_words(rand::random()), |now| now.key);
        let origins = if used { self.config.balancer.nat.origins() } else { Vec::new() };
        let rules = MappingRules { key, ticks: times, origins };
        self.plane
            .set_mapping_rules(&rules)
            .plane()
            .map_err(|error| EngineError::Unfinished(format!("addresses of full NAT: {error}")))
    }

    /// Why connections of a service break if its packets come from other ports. `now`: by which rules the data
    /// plane makes them, if by any; to read those takes a look at each source that there may be.
    pub(super) fn resourced(
        &self,
        service: &ServiceRuntime,
        wanted: &Service,
        config: &Config,
        now: Option<&MappingRules>,
    ) -> Option<String> {
        let now = now.filter(|_| wanted.forward.is_full_nat())?;
        let family = |origin: &Origin| wanted.has_family(origin.address.is_ipv4());
        let of = |origins: Vec<Option<Origin>>| -> Vec<_> {
            origins.into_iter().flatten().filter(family).collect()
        };
        if of(now.origins.clone()) != of(config.balancer.nat.origins()) {
            return Some(
                "forward: with other balancer.nat_sources or nat_ports, backends would find packets of their \
                 connections with another source"
                    .into(),
            );
        }
        // Those that stay, by whatever name.
        let stays = |member: &PoolMember| {
            let at = (member.wanted.address, member.wanted.port);
            let listed = wanted.backends.iter().find(|one| (one.address, one.port) == at).cloned();
            let backend = listed.or_else(|| ServiceRuntime::as_found(wanted, member))?;
            let has = self.plane.backend(member.id)?.translation?.ports?;
            let gets = wanted.nat_ports_to(&backend, &config.balancer.nat)?;
            (has != gets).then_some(backend.name)
        };
        service.pool.iter().find_map(stays).map(|backend| {
            format!(
                "nat_sources: with others, backend {backend} would find packets of its connections with another \
                 source"
            )
        })
    }

    /// Checks that a backend that is to join a service may have the sources that it names.
    pub(super) fn may_come_from(
        &self,
        service: &str,
        backend: &Backend,
    ) -> Result<(), EngineError> {
        let (own, nat) = (&backend.nat_sources, &self.config.balancer.nat);
        let forward = self.service(service)?.configured.forward;
        let wrong = if own.is_empty() {
            return Ok(());
        } else if !forward.is_full_nat() {
            format!(
                "service {service} has forward = \"{}\", and packets get a source of this host's with \"fullnat\" \
                 only; give none",
                forward.name()
            )
        } else if let Some(other) = own.iter().find(|one| !nat.addresses.contains(one)) {
            format!("{other} is not one of balancer.nat_sources; give one of those")
        } else if let Some(other) =
            own.iter().find(|one| one.is_ipv4() != backend.address.is_ipv4())
        {
            format!(
                "{other} is not of the family of the backend's address; give those of its family"
            )
        } else if nat.some(own).is_none() {
            "these do not stand one after the other in balancer.nat_sources, each once; give others"
                .into()
        } else {
            return Ok(());
        };
        Err(EngineError::Invalid(format!("nat_sources: {wrong}")))
    }

    /// The source that a flow has, or would get first, on its way to a backend, and whether it has it.
    pub(super) fn source_of(
        &self,
        flow: &FlowKey,
        id: BackendId,
    ) -> Option<((IpAddr, u16), Option<Mapping>)> {
        let rules = self.plane.mapping_rules()?;
        let backend = self.plane.backend(id)?;
        let translation = backend.translation?;
        let to = Target {
            backend: id,
            incarnation: backend.incarnation,
            address: backend.address,
            port: translation.port,
            ports: translation.ports?,
        };
        let now = self.plane.mapping_tick();
        let address = |origin: u16| rules.origins.get(usize::from(origin))?.map(|one| one.address);
        let mut vacant = None;
        for one in candidates(&rules.key, flow, &to, self.plane.mapping_places()) {
            let held = self.plane.mapping(one.place);
            let source = (address(one.origin)?, one.port);
            if let Some(held) = held
                && held.flow == *flow
                && (held.backend, held.incarnation) == (id, backend.incarnation)
                && (held.origin, held.port) == (one.origin, one.port)
            {
                return Some((source, Some(held)));
            }
            if held.is_none_or(|held| held.is_vacant(&rules.ticks, now, self.has(&held))) {
                vacant.get_or_insert((source, None));
            }
        }
        vacant
    }

    /// The connection whose answer a packet is that comes to a source of full NAT, by its way back; none if no
    /// connection has this port towards whom it comes from.
    pub(super) fn answered_mapping(&self, answer: &FlowKey) -> Option<Mapping> {
        let rules = self.plane.mapping_rules()?;
        let places = self.plane.mapping_places();
        let own = |origin: &Option<Origin>| {
            origin.is_some_and(|origin| map_address(origin.address) == answer.dst)
        };
        let number = rules.origins.iter().position(own).filter(|_| places > 0)? as u16;
        let held = self.plane.mapping(place_of_answer(&rules.key, answer, number, places))?;
        let backend = self.plane.backend(held.backend)?;
        let port = backend.translation?.port.unwrap_or(held.flow.dst_port);
        let is_its = (held.origin, held.port, held.flow.protocol)
            == (number, answer.dst_port, answer.protocol)
            && held.incarnation == backend.incarnation
            && (map_address(backend.address), port) == (answer.src, answer.src_port);
        is_its.then_some(held)
    }

    /// Whether the backend of a mapping is there, in the use of its number that the connection began in.
    fn has(&self, held: &Mapping) -> bool {
        let backend = self.plane.backend(held.backend);
        backend.is_some_and(|backend| backend.incarnation == held.incarnation)
    }

    /// The same, for a person.
    pub(super) fn source_text(&self, flow: &FlowKey, id: BackendId) -> String {
        let client = SocketAddr::from((unmap_address(&flow.src), flow.src_port));
        match self.source_of(flow, id) {
            None => format!("{client} gets none: all ports that it could have are in use"),
            Some((source, None)) => {
                format!("{client} has none, and would become {}", SocketAddr::from(source))
            }
            Some((source, Some(held))) => {
                let state = match held.state {
                    state if state.has_ended() => "it has ended, and the port rests",
                    state if state.answered => "it is open",
                    _ => "the backend has not answered",
                };
                let silent = seconds(held.last, self.plane.mapping_tick());
                format!(
                    "{client} becomes {}; {state}, last packet {silent} s ago",
                    SocketAddr::from(source)
                )
            }
        }
    }

    /// How the ports are used, of each address; none if no service is under full NAT.
    pub(super) fn nat_status(&self) -> Vec<NatSourceStatus> {
        let Some(rules) = self.plane.mapping_rules() else { return Vec::new() };
        let known = rules.origins.iter().enumerate();
        let known = known.filter_map(|(number, origin)| Some((number as u16, (*origin)?)));
        known
            .map(|(number, origin)| {
                let counted = self.sweep.counted.as_ref();
                let used = counted.and_then(|all| all.get(&number)).copied().unwrap_or_default();
                NatSourceStatus {
                    address: origin.address,
                    ports: (origin.first_port, origin.last_port),
                    open: used.open,
                    opening: used.opening,
                    resting: used.resting,
                }
            })
            .collect()
    }

    /// How many connections the table has, ended ones included; none until they were counted.
    pub(super) fn mapped(&self) -> Option<u64> {
        let counted = self.sweep.counted.as_ref()?;
        Some(counted.values().map(|one| one.open + one.opening + one.resting).sum())
    }

    /// What an operator should know of full NAT.
    pub(super) fn nat_warning(&self, dropped: u64) -> Option<String> {
        let most = self.plane.mapping_rules().map(|_| self.plane.limits().mappings)?;
        let mend = "raise limits.nat_connections, or give more balancer.nat_sources or nat_ports";
        if let Some(used) = self.mapped().filter(|used| used * 10 > u64::from(most) * 9) {
            return Some(format!("{used} of {most} connections under full NAT: {mend}"));
        }
        // Counted since the data plane was loaded, by whichever process: what is over for long is no warning.
        let (before, at) = self.no_port.get().unwrap_or((dropped, None));
        let at = if dropped > before { Some(Instant::now()) } else { at };
        self.no_port.set(Some((dropped, at)));
        at.is_some_and(|at| at.elapsed() < NO_PORT_IS_OVER)
            .then(|| format!("{dropped} packets under full NAT found no port (no_port): {mend}"))
    }

    /// Looks at the next places of the table: counts, and writes to the log what has begun and ended, if that
    /// is asked for. A port rests longer than a sweep takes, so nothing is missed while the process runs.
    pub(super) fn sweep_mappings(&mut self) {
        let Some(rules) = self.plane.mapping_rules() else { return };
        let (places, now) = (self.plane.mapping_places(), self.plane.mapping_tick());
        let log = self.config.balancer.nat.log;
        let mut sweep = std::mem::take(&mut self.sweep);
        if log {
            sweep.log_begins.get_or_insert(now);
        } else {
            sweep.logged.clear();
            sweep.log_begins = None;
        }
        let until = (sweep.next + SWEPT).min(places);
        for place in sweep.next..until {
            let held = self.plane.mapping(place);
            let lives = held.filter(|held| !held.is_vacant(&rules.ticks, now, self.has(held)));
            if let Some(held) = lives {
                let used = sweep.counting.entry(held.origin).or_default();
                match held.state {
                    state if state.has_ended() => used.resting += 1,
                    state if state.answered => used.open += 1,
                    _ => used.opening += 1,
                }
            }
            if log {
                self.log_mapping(&mut sweep, &rules, place, lives);
            }
        }
        sweep.next = until;
        if until >= places {
            sweep.next = 0;
            sweep.counted = Some(std::mem::take(&mut sweep.counting));
        }
        self.sweep = sweep;
    }

    fn log_mapping(
        &self,
        sweep: &mut Sweep,
        rules: &MappingRules,
        place: usize,
        lives: Option<Mapping>,
    ) {
        let same = |a: &Mapping, b: &Mapping| (a.flow, a.since) == (b.flow, b.since);
        if let Some(&(former, ended)) = sweep.logged.get(&place)
            && !lives.is_some_and(|now| same(&now, &former))
        {
            if !ended {
                self.log_one("ended", rules, &former);
            }
            sweep.logged.remove(&place);
        }
        let Some(now) = lives else { return };
        let log_begins = sweep.log_begins.unwrap_or(now.since);
        let (_, ended) = sweep.logged.entry(place).or_insert_with(|| {
            let word = first_word(&now, log_begins);
            self.log_one(word, rules, &now);
            (now, word.contains("ended"))
        });
        if now.state.has_ended() && !*ended {
            *ended = true;
            self.log_one("ended", rules, &now);
        }
    }

    fn log_one(&self, what: &str, rules: &MappingRules, held: &Mapping) {
        let Some(Some(origin)) = rules.origins.get(usize::from(held.origin)) else { return };
        let backend = self.plane.backend(held.backend);
        // The number may be another one's by now.
        let backend = backend.filter(|backend| backend.incarnation == held.incarnation);
        let backend = backend.map(|backend| backend.address);
        let FlowKey { src, dst, src_port, dst_port, protocol } = held.flow;
        info!(
            client = %SocketAddr::from((unmap_address(&src), src_port)),
            service = %SocketAddr::from((unmap_address(&dst), dst_port)),
            source = %SocketAddr::from((origin.address, held.port)),
            backend = backend.map(|address| address.to_string()),
            protocol = ?protocol,
            age_seconds = seconds(held.since, self.plane.mapping_tick()),
            "connection under full NAT {what}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_plane::forward::MappingState;

    #[test]
    fn what_was_there_before_the_log_is_not_told_as_new() {
        let client = "10.0.0.1:4000".parse().expect("an address");
        let service = "10.0.0.100:80".parse().expect("an address");
        let held = |since: u32, last: u32, reset: bool| Mapping {
            flow: FlowKey::new(client, service, Protocol::Tcp.on_the_wire()),
            backend: BackendId::new(1).expect("a number"),
            incarnation: 1,
            origin: 0,
            port: 2000,
            since,
            last,
            state: MappingState { answered: true, reset, ..MappingState::default() },
        };
        // Also where the ticks begin anew.
        for begins in [100_u32, 5, 0] {
            let at = |tick: i32| begins.wrapping_add_signed(tick);
            let said = |since, last, over| first_word(&held(at(since), at(last), over), begins);
            assert_eq!(said(0, 3, false), "began");
            assert_eq!(said(1, 1, true), "began", "its end is told after it");
            assert_eq!(said(-9, 3, false), "was open when the log began");
            assert_eq!(said(-9, -1, false), "was open when the log began");
            assert_eq!(said(-9, -1, true), "had ended when the log began");
            assert_eq!(said(-9, 0, true), "ended");
            assert_eq!((seconds(at(-10), begins), seconds(at(1), begins)), (10, 0));
        }
    }
}
