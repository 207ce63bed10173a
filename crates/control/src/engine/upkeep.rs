//! What the engine does between changes: reports, idle flows, next hops, leftovers.

use super::forward::{Reached, translation, way_of};
use super::network::{Hosts, Look, Of};
use super::service::{ServiceRuntime, idle_seconds};
use super::{Engine, EngineError, Events, Front, PlaneResult};
use crate::config::{AllDown, Forward, Protocol};
use crate::neigh::{self, NeighError};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{debug, warn};
use weir_hash::Key;
use weir_plane::forward::NextHop;
use weir_plane::{Backend, Hop, Plane, SeenFlows};
use weir_steering::update::Draining;
use weir_steering::{BackendId, Event, ServiceId, ServiceState, Side, StateKey};

/// Reports that are taken up before the engine looks for commands again: some milliseconds' worth.
const REPORTS_AT_A_TIME: usize = 8192;

/// Addresses whose next hops are looked up in a turn: some milliseconds' worth.
const HOSTS_AT_A_TIME: usize = 32;

impl<P: Plane> Engine<P> {
    /// Takes up reports that `read` brings.
    fn take_reports<R>(
        &mut self,
        read: impl FnOnce(&mut P, &mut dyn FnMut(&Event)) -> Result<R, P::Error>,
    ) -> Result<R, EngineError> {
        let now = self.now();
        let mut failure = None;
        let (services, names) = (&mut self.services, &self.names);
        let mut taken = 0u64;
        let (mut flooded, mut ended) = (BTreeSet::new(), BTreeSet::new());
        let mut sink = |event: &Event| {
            taken += 1;
            let service = names.get(&event.state.service).and_then(|name| services.get_mut(name));
            let Some(service) = service else { return };
            if let Err(error) = service.remembered(|service| service.take_event(event, now)) {
                failure.get_or_insert(error);
            }
            if service.half_open.is_over() {
                flooded.insert(service.number);
            }
            if service.has_released() {
                ended.insert(service.number);
            }
        };
        let read = read(&mut self.plane, &mut sink).plane()?;
        self.events_taken += taken;
        self.release_held_of(&ended)?;
        self.forget_half_open(&flooded)?;
        failure.map_or(Ok(read), Err)
    }

    /// Forgets half-open connections of services that have too many: those pushed out that have sent
    /// nothing since their SYN.
    fn forget_half_open(&mut self, flooded: &BTreeSet<ServiceId>) -> Result<(), EngineError> {
        // While marks are to be read it stands there whether they have sent something. The sweep
        // that reads them forgets, too.
        if self.unread.is_some() {
            return Ok(());
        }
        let now = self.now();
        for number in flooded {
            let service = self.names.get(number).and_then(|name| self.services.get_mut(name));
            let Some(service) = service else { continue };
            let (states, hashes, mut open) = service.pushed_out();
            let mut alive = vec![false; states.len()];
            for under in &hashes {
                let marked = self.plane.are_marked(under).plane()?;
                alive.iter_mut().zip(marked).for_each(|(alive, marked)| *alive |= marked);
            }
            let mut dead = Vec::new();
            for (state, alive) in states.into_iter().zip(alive) {
                if alive { open.push(state) } else { dead.push(state) }
            }
            service.remembered(|service| service.write_open(&open, now))?;
            service.remembered(|service| service.forget_half_open(&dead, now))?;
        }
        Ok(())
    }

    /// Looks at some of the half-open connections of a service that was swept.
    pub(super) fn look_at_half_open(&mut self) -> Result<(), EngineError> {
        let Some(number) = self.unlooked.last() else { return Ok(()) };
        let now = self.now();
        let service = self.names.get(number).and_then(|name| self.services.get_mut(name));
        let more = match service {
            Some(service) => {
                service.remembered(|service| service.look_at_half_open(now))?;
                service.half_open.is_unlooked()
            }
            None => false,
        };
        if !more {
            self.unlooked.pop();
        }
        Ok(())
    }

    /// Takes up some of the reports that come, and waits that long for the first, or until `wake`
    /// can be read.
    pub(super) fn wait_for_reports(
        &mut self,
        limit: Duration,
        wake: BorrowedFd<'_>,
    ) -> Result<(), EngineError> {
        self.take_reports(|plane, take| plane.wait(limit, Some(wake), REPORTS_AT_A_TIME, take))
    }

    /// Takes up some of the reports that the ring had no room for.
    pub(super) fn take_unreported(&mut self) -> Result<(), EngineError> {
        self.more_aside = false;
        self.more_aside =
            self.take_reports(|plane, take| plane.put_aside(REPORTS_AT_A_TIME, take))?;
        Ok(())
    }

    /// Takes up all reports that are there, also those that the ring had no room for.
    pub(super) fn drain_reports(&mut self) -> Result<(), EngineError> {
        self.take_reports(|plane, take| plane.drain(take))
    }

    /// Takes up the reports that wait. Before interfaces are attached: a plane that an earlier process has filled may
    /// be filled anew then, and what is written down outlives whoever ends in the midst of that.
    pub(super) fn take_what_waits(&mut self) -> Result<(), EngineError> {
        let most = self.config.limits.event_ring_bytes as usize / size_of::<Event>();
        self.take_reports(|plane, take| plane.wait(Duration::ZERO, None, most, take))
    }

    /// Takes up all reports that there are now. What comes meanwhile, faster than it is taken up in a flood,
    /// waits for its turn.
    pub(super) fn drain_until_here(&mut self) -> Result<(), EngineError> {
        let mut draining = Draining::default();
        while self.take_reports(|plane, take| plane.drain_part(&mut draining, take))? {
            self.attend(true);
        }
        Ok(())
    }

    /// Takes up some of the reports that are there, also of those that the ring had no room for if there are so
    /// many. Returns whether there may be more.
    pub(super) fn take_some_reports(&mut self) -> Result<bool, EngineError> {
        let before = self.events_taken;
        let most = REPORTS_AT_A_TIME;
        self.take_reports(|plane, take| plane.wait(Duration::ZERO, None, most, take))?;
        if ((self.events_taken - before) as usize) < most {
            return Ok(false);
        }
        self.take_unreported()?;
        Ok(true)
    }

    /// Forgets flows that have been idle for too long.
    pub(super) fn sweep(&mut self) -> Result<(), EngineError> {
        let begun = Instant::now();
        let swept = self.sweep_now();
        let swept = swept.and(self.count_held());
        debug!(microseconds = begun.elapsed().as_micros() as u64, "looked for idle flows");
        swept
    }

    fn sweep_now(&mut self) -> Result<(), EngineError> {
        let now = self.now();
        let begun_before = self.unread.is_some();
        let side = match self.unread {
            Some(side) => side,
            None => self.flip_marks(now)?,
        };
        // If what follows fails, it is tried again before other marks are begun.
        self.unread = Some(side);
        self.plane.grace().plane()?;
        // A flow's first packets may have been marked while its report was still on the way.
        self.drain_until_here()?;
        // The filter is large, and only of use to services that keep states of UDP flows.
        let udp = |service: &ServiceRuntime| service.configured.protocol == Protocol::Udp;
        // Who was seen in the generation before was so until it ended, which was asked when it had.
        let seen = match self.services.values().any(udp) {
            true => self.plane.seen_flows(self.seen_turned).plane()?,
            false => SeenFlows::default(),
        };
        let marks = self.plane.take_marks(side).plane()?;
        self.pin_unarmed(now);
        self.attend(true);
        self.swept = now;
        let unarmed = |service: &ServiceRuntime| service.is_rekeyed() || service.is_unarmed();
        // These marks were begun before an update, which may have given a service another key.
        self.rekeyed |= begun_before && self.services.values().any(unarmed);
        self.unlooked.clear();
        let with_states =
            self.services.values().filter(|service| service.builder.method().needs().states);
        let numbers: Vec<ServiceId> = with_states.map(|service| service.number).collect();
        for number in numbers {
            self.attend(true);
            let name = self.names.get(&number);
            let Some(service) = name.and_then(|name| self.services.get_mut(name)) else { continue };
            let udp = service.configured.protocol == Protocol::Udp;
            service.warn_of_refused(now);
            service.write_again(now);
            let keys = std::mem::take(&mut service.read_under);
            let active = |state: &StateKey| {
                let mut hashes = keys.iter().map(|key| state.hash(key));
                hashes.any(|hash| if udp { seen.has(hash, number) } else { marks.has(hash) })
            };
            let mut idle =
                self.lend(number, |states| states.sweep(now, &active)).unwrap_or_default();
            let name = self.names.get(&number);
            let Some(service) = name.and_then(|name| self.services.get_mut(name)) else { continue };
            service.young.sweep(now, idle_seconds(&service.configured), active);
            // Another one may have begun in the place of one that was idle.
            idle.retain(|key| service.builder.known(key).is_none());
            if service.half_open.look_again() {
                self.unlooked.push(service.number);
            }
            // The disc of one service is nobody else's trouble.
            let written = service.log_removed(&idle, now);
            service.written(written);
        }
        // Until here it stood there, or in states that were not looked at yet, who is open.
        self.unread = None;
        self.seen_turned = false;
        self.attend(true);
        self.watch(now)?;
        self.attend(true);
        self.catch_up();
        let flooded = self.services.values().filter(|service| service.half_open.is_over());
        self.forget_half_open(&flooded.map(|service| service.number).collect())?;
        self.give_up_dead_backends()?;
        // Pending and pinned entries of these states stay until an update removes them: a flow
        // with the same key may be starting right now.
        Ok(())
    }

    /// Flows of datagrams that send nothing from here on are forgotten by packets with the generation after this one.
    pub(super) fn turn_seen(&mut self) {
        self.plane.next_seen_generation();
        self.seen_turned = true;
    }

    /// Pins the connections whose SYN may be repeated and must not move them, where packets do not know that. If
    /// there are too many, an update does it that has room for them.
    fn pin_unarmed(&mut self, now: u32) {
        if self.services.values().all(|service| service.reserved().is_empty()) {
            return;
        }
        let armed = match self.plane.armed() {
            Ok(armed) => armed,
            Err(error) => {
                warn!(%error, "cannot read which connections packets know");
                return;
            }
        };
        let most = self.plane.pin_limit() / 2;
        for service in self.services.values_mut() {
            let pins = service.young_unarmed(now, &armed);
            let pinned = match pins.len() <= most {
                true => self.driver.pin_beside(service.number, &pins, &mut self.plane),
                false => {
                    service.dirty = true;
                    continue;
                }
            };
            if let Err(error) = pinned {
                warn!(service = service.configured.name, %error, "cannot pin connections");
                service.dirty = true;
            }
        }
    }

    /// Begins another period of activity: arms all flows under the hash keys that packets follow.
    pub(super) fn flip_marks(&mut self, now: u32) -> Result<Side, EngineError> {
        // A SYN with the ports of a connection that has ended has followed that, if it was armed still: the one
        // that begins with it is armed only if that is known.
        self.drain_until_here()?;
        let mut known: [Vec<u64>; 3] = Default::default();
        self.services.values_mut().for_each(|service| service.arm(now, &mut known));
        let flows = known.iter().map(Vec::len).sum();
        self.periods += 1;
        // If there is not room for all, whose SYN must not move it comes first, and then what is open.
        let side = self.plane.flip_marks(&mut known.into_iter().flatten(), flows).plane()?;
        self.pin_unarmed(now);
        Ok(side)
    }

    /// Has packets notice the flows whose silence counts. Those armed before and seen alive are not among
    /// them any more.
    fn watch(&mut self, now: u32) -> Result<(), EngineError> {
        let mut due = Vec::new();
        self.services.values().for_each(|service| service.due(now, &mut due));
        self.plane.watch(&mut due.into_iter()).plane()?;
        let since = self.now();
        self.services.values_mut().for_each(|service| service.builder.watch(now, since));
        Ok(())
    }

    /// Forgets the states of backends that have been down for as long as a flow may be silent: a
    /// UDP flow that goes on sending would else stay with a dead backend for ever.
    fn give_up_dead_backends(&mut self) -> Result<(), EngineError> {
        let mut dead = Vec::new();
        for (name, service) in &self.services {
            // The checks are not believed.
            if service.all_down() == Some(AllDown::Keep) {
                continue;
            }
            let patience = service.configured.idle_timeout;
            for member in &service.pool {
                let held = service.states_of(member.id).unwrap_or(0);
                if held > 0 && member.down_since.is_some_and(|since| since.elapsed() > patience) {
                    dead.push((name.clone(), member.id));
                }
            }
        }
        for (name, id) in dead {
            self.forget_states(&name, id)?;
            self.service_mut(&name)?.dirty = true;
        }
        Ok(())
    }

    /// Removes what the data plane remembers of backends that are gone.
    pub(super) fn forget_backends(&mut self, ids: &HashSet<BackendId>) -> Result<(), EngineError> {
        if ids.is_empty() {
            return Ok(());
        }
        let of = |list: Vec<(ServiceState, BackendId)>| -> Vec<ServiceState> {
            list.into_iter().filter(|(_, backend)| ids.contains(backend)).map(|(s, _)| s).collect()
        };
        let (pending, pinned) = (self.plane.pending().plane()?, self.plane.pinned().plane()?);
        self.plane.forget_pending(&of(pending)).plane()?;
        self.driver.unpinned(ids);
        self.plane.unpin(&of(pinned)).plane()?;
        ids.iter().try_for_each(|id| self.plane.set_backend(*id, None)).plane()?;
        // At a start, what is there stands until all services are known.
        if self.translated.is_some() { self.tell_translations() } else { Ok(()) }
    }

    /// Folds pending flows into the tables of services that have many of them: flows that fell on
    /// a draining backend's Dcode.
    pub(super) fn fold_pending(&mut self) -> Result<(), EngineError> {
        let limit = self.plane.limits().pending_flows as usize / 4;
        let mut counts = HashMap::<ServiceId, usize>::new();
        for (state, _) in self.plane.pending().plane()? {
            *counts.entry(state.service).or_default() += 1;
        }
        let crowded: Vec<ServiceId> = counts
            .into_iter()
            .filter(|(number, count)| {
                let service = self.names.get(number).and_then(|name| self.services.get(name));
                *count > limit && service.is_some_and(|service| !self.is_settling(service))
            })
            .map(|(number, _)| number)
            .collect();
        self.publish(&crowded).into_iter().next().map_or(Ok(()), Err)
    }

    /// Looks the next hop of every backend up in the neighbour table, for packets that the FIB has
    /// no answer for, and keeps those entries fresh. `missing`: only of those that have none yet.
    pub(super) fn refresh_next_hops(&mut self, missing: bool) -> Result<(), EngineError> {
        self.refresh(if missing { Of::Missing } else { Of::All })
    }

    /// As [`refresh_next_hops`](Self::refresh_next_hops), of some backends.
    pub(super) fn refresh(&mut self, of: Of<'_>) -> Result<(), EngineError> {
        neigh::together(|| self.refresh_part(of, &mut Look::new(), usize::MAX))
    }

    /// Begins to look next hops up, some in each turn of the engine: there may be thousands of hosts.
    pub(super) fn begin_look(&mut self, missing: bool) {
        // One of all that is under way comes to those that are missing, too.
        if self.network.look.as_ref().is_none_or(|(former, _)| *former && !missing) {
            self.network.look = Some((missing, Look::new()));
        }
    }

    /// After a change of the configuration: the next hops of the first hosts and of these backends are looked up at
    /// once, and the others' in the turns that follow.
    pub(super) fn look_after(&mut self, changed: &HashSet<BackendId>) -> Result<(), EngineError> {
        self.begin_look(false);
        let looked = self.go_on_looking();
        if self.network.look.is_none() || changed.is_empty() {
            return looked;
        }
        looked.and(self.refresh(Of::Numbers(changed)))
    }

    /// Goes on with what [`begin_look`](Self::begin_look) began.
    pub(super) fn go_on_looking(&mut self) -> Result<(), EngineError> {
        let Some((missing, mut look)) = self.network.look.take() else { return Ok(()) };
        let of = if missing { Of::Missing } else { Of::All };
        let done = neigh::together(|| self.refresh_part(of, &mut look, HOSTS_AT_A_TIME));
        if !look.over {
            self.network.look = Some((missing, look));
        }
        done
    }

    /// Who is to be looked up, by address: many backends may be on one host.
    fn to_be_looked_up(&self, of: Of<'_>) -> Hosts {
        let mut all: BTreeMap<IpAddr, Vec<(ServiceId, BackendId)>> = BTreeMap::new();
        for service in self.services.values() {
            for member in &service.pool {
                let (id, address) = (member.id, member.wanted.address);
                if of.concerns(id, self.first_of(address), || self.plane.backend(id)) {
                    all.entry(address).or_default().push((service.number, id));
                }
            }
        }
        all.into_iter().collect()
    }

    /// Looks the next hops of up to `most` addresses up that come after those looked up before.
    fn refresh_part(
        &mut self,
        of: Of<'_>,
        look: &mut Look,
        most: usize,
    ) -> Result<(), EngineError> {
        let mut accepted = Ok(());
        let mut left = match look.left.take() {
            Some(left) => left,
            None => {
                if matches!(of, Of::All | Of::Again) {
                    self.tell_devices()?;
                }
                accepted = self.take_own_frames();
                self.to_be_looked_up(of)
            }
        };
        let part: Vec<_> = left.drain(..most.min(left.len())).collect();
        look.over = left.is_empty();
        look.left = Some(left);
        let nat = &self.config.balancer.nat;
        let mut vips = None;
        for (address, members) in part {
            let mut found: HashMap<Forward, Result<Reached, NeighError>> = HashMap::new();
            for (number, id) in members {
                let service = self.names.get(&number).and_then(|name| self.services.get(name));
                let member = service.and_then(|service| {
                    let mut pool = service.pool.iter();
                    pool.find(|member| member.id == id && member.wanted.address == address)
                });
                let Some((service, member)) = service.zip(member) else { continue };
                let now = self.plane.backend(id);
                if !of.concerns(id, self.first_of(address), || now) {
                    continue;
                }
                let (forward, segments, ports) = way_of(&service.configured, &member.wanted, nat);
                let found = found.entry(forward).or_insert_with(|| {
                    let vips = vips.get_or_insert_with(|| self.vips());
                    self.reach(address, forward, vips)
                });
                let reached = match found {
                    Ok(reached) => {
                        self.unreachable.remove(&address);
                        *reached
                    }
                    Err(error) => {
                        let why = error.to_string();
                        if self.unreachable.get(&address) != Some(&why) {
                            warn!(%address, %error, "no next hop");
                            self.unreachable.insert(address, why);
                        }
                        let tunnel = now.and_then(|now| now.tunnel);
                        let translated =
                            now.and_then(|now| now.translation).map(|now| (now.port, now.ports));
                        let wanted = translation(forward, &member.wanted, 0, ports)
                            .map(|to| (to.port, to.ports));
                        if tunnel.map(|tunnel| tunnel.encapsulation) == forward.encapsulation()
                            && translated == wanted
                        {
                            continue;
                        }
                        // It is not to go on as it was before the file was changed.
                        Reached {
                            next: None,
                            gateway: None,
                            tunnel: self.tunnel(address, forward, None),
                            mtu: 0,
                        }
                    }
                };
                let Reached { next, gateway, tunnel, mtu } = reached;
                let translation = translation(forward, &member.wanted, mtu, ports);
                match gateway {
                    Some(gateway) => self.gateways.insert(address, gateway),
                    None => self.gateways.remove(&address),
                };
                if now.is_none() && next.is_none() {
                    look.all_known = false;
                    continue;
                }
                let mut hop = now.and_then(|now| now.hop);
                match next {
                    Some(found) => {
                        self.silent.remove(&member.id);
                        let next = NextHop { mac: found.mac, source_mac: found.source_mac };
                        hop = Some(Hop { next, ifindex: found.ifindex });
                    }
                    // Asked for at the last look, and it has not answered since: what it was may be
                    // somebody else's by now.
                    None => {
                        look.all_known = false;
                        if matches!(of, Of::All) && hop.is_some() && !self.silent.insert(member.id)
                        {
                            hop = None;
                        }
                    }
                }
                // What a check has said, and what waits to be taken up, keeps packets off already.
                let target = service.target(member.id);
                let late = self.late.iter().any(|one| !one.up && one.id == target);
                let (incarnation, up) = (member.incarnation, service.counts_as_up(member) && !late);
                let resets = service.resets(member);
                let entry = Backend {
                    address,
                    incarnation,
                    up,
                    resets,
                    hop,
                    tunnel,
                    translation,
                    segments,
                };
                if now != Some(entry) {
                    self.plane.set_backend(member.id, Some(&entry)).plane()?;
                }
                let changed = next.is_some() && now.and_then(|now| now.hop) != hop
                    || resets && now.is_some_and(|now| !now.resets);
                let way =
                    |backend: &Backend| (backend.tunnel, backend.translation, backend.segments);
                if changed || now.as_ref().map(way) != Some(way(&entry)) {
                    self.plane.forget_hop(member.id).plane()?;
                }
            }
        }
        if look.over && !matches!(of, Of::Neighbours(_) | Of::Numbers(_)) {
            self.hop_tries = if look.all_known { 0 } else { self.hop_tries.saturating_sub(1) };
        }
        // One interface that is missing keeps nobody from looking after the backends.
        accepted
    }

    /// Tells who serves metrics where to, now and whenever the file says something else.
    pub(crate) fn serve_metrics_by(&mut self, server: watch::Sender<Option<SocketAddr>>) {
        self.metrics = Some(server);
        self.tell_metrics();
    }

    /// Tells who serves the API and the page what the file says of it, now and at every reload, as
    /// certificates may be others; and where events go.
    pub(crate) fn serve_front_by(&mut self, server: watch::Sender<Front>, events: Arc<Events>) {
        self.front = Some(server);
        self.events = events;
        self.tell_front();
    }

    pub(super) fn tell_front(&self) {
        let (api, web) = (self.config.api.clone(), self.config.balancer.web.clone());
        if let Some(server) = &self.front {
            server.send_replace(Front { api, web });
        }
    }

    pub(super) fn tell_metrics(&self) {
        let wanted = self.config.balancer.metrics;
        if let Some(server) = &self.metrics {
            server.send_if_modified(|told| std::mem::replace(told, wanted) != wanted);
        }
    }
}
