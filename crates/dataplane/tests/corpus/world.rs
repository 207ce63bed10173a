//! A set-up in both planes, and what a packet does there.

mod bursts;
mod compare;
mod frames;
mod kernels;
mod ports;
mod sources;

use compare::{Difference, bytes_differ, difference, l3_of};
pub use kernels::Kernels;
use kernels::{Kernel, LIMITS};

use crate::format::{Backend, Case, Change, File, Service, Setup, Step};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use weir_dataplane::{BackendEntry, BackendFlags, run_frame};
use weir_hash::HashKey;
use weir_plane::forward::mapping::MAPPING_TICK_SHIFT;
use weir_plane::forward::{Encapsulation, NextHop, Segments, Translation, Tunnel};
use weir_plane::{
    self, Counters, FlowCaps, HeldCounts, Hop, IdOutcome, IdRoutes, Listen, Prefix, Rate, Soft,
    SourceLimit, SourceRate, SourceTable, Sources, Translated, Translations, VipKey, Way, blocks,
};
use weir_plane_burst::{Burst, Fate, Frame, HEADROOM};
use weir_steering::update::Plane as _;
use weir_steering::{
    BackendId, Build, Member, MethodId, Parcel, Role, ServiceConfig, ServiceId, ServiceState,
    Settings, SoftMemory, StateKey, cheetah,
};
use weir_wire::quic::{Id, QuicLb, QuicLbConfigs};
use weir_wire::{Protocol, Reason, map_address};

/// What is known of ways is older than this at the beginning of a case.
const PATH_TIME: Duration = Duration::from_secs(1000);

/// For so long it is believed what was counted of connections.
const BELIEVED: Duration = Duration::from_secs(300);

/// The interface that packets come in by.
const CAME_IN_BY: u32 = 1;

/// Seconds after which nothing follows a first fragment, whatever the clocks of the planes say.
const LONG_AGO: u32 = 100;

/// Packets until no more may be sent, at most.
const SPENT_AFTER: usize = 10_000;

fn vip_of(service: &Service) -> VipKey {
    let protocol = match service.protocol.as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        other => panic!("protocol {other:?}: give tcp, udp or sctp"),
    };
    VipKey { address: map_address(service.address), protocol, port: service.port }
}

/// All that a service listens on: each further address has a salt, the next number.
fn places_of(service: &Service) -> Vec<Listen> {
    let protocol = vip_of(service).protocol;
    let blocks = match (service.port, service.last_port) {
        (None, _) => vec![(0, 0)],
        (Some(port), None) => vec![(port, 16)],
        (Some(first), Some(last)) => blocks(first, last),
    };
    let mut all = Vec::new();
    for (salt, address) in (0..).zip(std::iter::once(&service.address).chain(&service.also)) {
        let bits = service.bits.unwrap_or(if address.is_ipv4() { 32 } else { 128 });
        all.extend(
            blocks
                .iter()
                .map(|block| Listen::new((*address, bits), protocol, *block))
                .map(|at| Listen { salt, fragments: service.fragments, ..at }),
        );
    }
    all
}

/// A set-up that stands.
pub struct World<'a> {
    kernel: &'a mut Kernel,
    setup: &'a Setup,
    pub oracle: Soft,
    /// What takes bursts, and has a plane in memory of its own.
    burst: Burst,
    /// Backends by name.
    numbers: BTreeMap<&'a str, BackendId>,
    services: Vec<(ServiceId, Option<Box<dyn Build>>)>,
    generation: u64,
}

fn settings(method: MethodId, service: &Service) -> Settings {
    let mut settings = Settings::of(method);
    for setting in method.info().settings {
        // Small tables are enough.
        let usual = match setting.name {
            cheetah::PARTITIONS => Some(1),
            _ if setting.words.is_empty() && (setting.range.0..=setting.range.1).contains(&251) => {
                Some(251)
            }
            _ => None,
        };
        if let Some(value) = usual {
            settings.set(setting.name, value).expect("it is in range");
        }
    }
    for (name, value) in &service.settings {
        let done = match value {
            toml::Value::String(word) => settings.set_word(name, word),
            other => settings.set(name, other.as_integer().expect("a word or a number") as u64),
        };
        done.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    settings
}

fn routes(service: &Service, numbers: &BTreeMap<&str, BackendId>) -> IdRoutes {
    let mut configs = QuicLbConfigs::default();
    for ids in &service.ids {
        let key = ids.key.as_ref().map(|key| key.0.clone().try_into().expect("16 bytes"));
        let config = QuicLb::new(ids.config, ids.server_id, ids.nonce, key).expect("it can be");
        configs.set(if ids.any_length { config.without_length() } else { config });
    }
    let mut routes = IdRoutes::new(configs);
    for ids in &service.ids {
        for (server, backend) in &ids.servers {
            let server = crate::format::Hex::try_from(server.clone()).expect("hexadecimal digits");
            let server = Id::new(&server.0).expect("it is short");
            routes.lead(ids.config, server, numbers[backend.as_str()]);
        }
    }
    routes
}

/// The sources that it takes; none: all.
fn sources(service: &Service) -> Option<SourceTable> {
    let rules = |list: &[String], allows| {
        let prefix = |text: &String| (text.parse().expect("a prefix"), allows);
        list.iter().map(prefix).collect::<Vec<(Prefix, bool)>>()
    };
    let all = [rules(&service.allow, true), rules(&service.deny, false)].concat();
    (!all.is_empty()).then(|| Sources::new(all).expect("no prefix does both").table())
}

/// How many new flows it takes; none: any number.
fn caps(service: &Service, seed: u64) -> Option<FlowCaps> {
    let flows = service.new_flows.as_ref()?;
    let rate = |every: Option<u64>, burst| Some(Rate::every(every? * 1_000_000_000, burst));
    let source = rate(flows.source_every, flows.source_burst).map(|rate| SourceRate {
        rate,
        ipv4_bits: flows.ipv4_prefix,
        ipv6_bits: flows.ipv6_prefix,
    });
    let held = flows.connections.map(|most| SourceLimit {
        most,
        ipv4_bits: flows.ipv4_prefix,
        ipv6_bits: flows.ipv6_prefix,
    });
    let key = HashKey::from_seed(seed);
    Some(FlowCaps { all: rate(flows.every, flows.burst), source, held, key })
}

impl<'a> World<'a> {
    pub fn new(kernel: &'a mut Kernel, setup: &'a Setup) -> Self {
        kernel.turn += 1;
        let soft = || Soft::new(SoftMemory::new(LIMITS.pending_flows as usize, 1 << 10, 256));
        let (oracle, burst) = (soft(), Burst::new(soft()));
        let names = setup.backends.iter().map(|backend| backend.name.as_str());
        let numbers = names.zip((0..).map(BackendId::of)).collect();
        let mut world =
            Self { kernel, setup, oracle, burst, numbers, services: Vec::new(), generation: 0 };
        for soft in [&mut world.oracle, world.burst.soft()] {
            soft.own_macs = setup.own_macs.iter().map(|mac| mac.0).collect();
        }
        let devices: Vec<_> = setup.devices.iter().map(device).collect();
        world.kernel.live.set_devices(&devices).expect("there is room");
        setup.backends.iter().for_each(|backend| world.set_backend(backend));
        let standing = world.kernel.standing(setup);
        // What services begin with is of that time.
        world.set_messages();
        for at in 0..setup.services.len() {
            world.add_service(at, standing.as_ref().map(|numbers| numbers[at]));
        }
        world.set_mappings();
        world.set_translations();
        let numbers = world.services.iter().map(|(number, _)| *number).collect();
        world.kernel.standing = Some((setup, numbers));
        world
    }

    fn set_backend(&mut self, backend: &Backend) {
        let incarnation = self.kernel.turn;
        let number = self.numbers[backend.name.as_str()];
        let tunnel = backend.tunnel.as_ref().map(tunnel);
        let mut entry = BackendEntry::new(backend.address, incarnation)
            .with_health(!backend.down)
            .with_resets(backend.resets);
        if let Some(tunnel) = &tunnel {
            entry = entry.with_tunnel(tunnel);
        }
        let many = self.setup.many_ports;
        let full = backend.full_nat.as_ref().map(|_| sources::ports(backend.address, many));
        let nat = backend.nat.as_ref().or(backend.full_nat.as_ref());
        let translation = nat.map(|nat| Translation { port: nat.port, mtu: nat.mtu, ports: full });
        if let Some(translation) = &translation {
            entry = entry.with_translation(translation);
        }
        let segments = backend.segments.map(|most| match most {
            0 => Segments::Auto,
            most => Segments::Most(most),
        });
        entry = entry.with_segments(segments);
        let hop = backend.mac.zip(backend.source_mac).map(|(mac, source)| {
            let next = NextHop { mac: mac.0, source_mac: source.0 };
            Hop { next, ifindex: backend.interface }
        });
        assert_eq!(hop.is_none(), backend.unknown_hop, "{}: a next hop, or none", backend.name);
        if let Some(Hop { next, ifindex }) = hop {
            entry = entry.with_next_hop(next.mac, next.source_mac, ifindex, true);
        }
        self.kernel.live.set_backend(number, &entry).expect("there is room");
        self.kernel.live.reset_lane(number).expect("there is room");
        self.kernel.live.set_load(number, 1, None);
        let known = weir_plane::Backend {
            address: backend.address,
            incarnation,
            up: !backend.down,
            resets: backend.resets,
            hop,
            tunnel,
            translation,
            segments,
        };
        for soft in [&mut self.oracle, self.burst.soft()] {
            soft.backends.insert(number, known);
            soft.memory.incarnations.insert(number, incarnation);
            weir_plane::Plane::set_load(soft, number, 1, None);
            if backend.down {
                soft.memory.down.insert(number);
            }
        }
    }

    /// Nothing is known of ways; messages may be sent as the set-up says.
    fn set_messages(&mut self) {
        let Setup { errors, echoes, resets, .. } = *self.setup;
        self.kernel.live.kernel.age_paths(PATH_TIME).expect("they can be written");
        let answers = |backend: &Backend| backend.nat.is_some() || backend.full_nat.is_some();
        if self.setup.backends.iter().any(answers) {
            self.kernel.live.kernel.forget_ways().expect("they can be written");
        }
        self.kernel.live.kernel.set_message_rates(errors, echoes);
        self.kernel.live.kernel.set_reset_rate(resets);
        for soft in [&mut self.oracle, self.burst.soft()] {
            soft.messages.set(errors);
            soft.echoes.set(echoes);
            soft.resets.set(resets);
            // Not the first moment of all, at which nothing may be sent yet.
            soft.nanoseconds = PATH_TIME.as_nanos() as u64;
        }
    }

    /// The balancer's sources, if a backend has full NAT; nobody has any yet.
    fn set_mappings(&mut self) {
        let full = self.setup.backends.iter().any(|backend| backend.full_nat.is_some());
        let rules = sources::rules(full, self.setup.many_ports);
        self.kernel.live.kernel.forget_mappings();
        self.kernel.live.kernel.set_mapping_rules(&rules).expect("there is room");
        for soft in [&mut self.oracle, self.burst.soft()] {
            soft.limits.mappings = LIMITS.mappings;
            weir_plane::Plane::set_mapping_rules(soft, &rules).expect("nothing is refused");
        }
    }

    /// Answers of the backends that have NAT are those of their services.
    fn set_translations(&mut self) {
        let mut wanted = Translations::new();
        for service in &self.setup.services {
            let vip = vip_of(service);
            for backend in &self.setup.backends {
                let Some(nat) = backend.nat.as_ref() else { continue };
                if service.backends.contains(&backend.name)
                    && backend.address.is_ipv4() == service.address.is_ipv4()
                {
                    let port = nat.port.or(vip.port);
                    let from = VipKey { address: map_address(backend.address), port, ..vip };
                    let number = self.numbers[backend.name.as_str()];
                    let limits = backend.segments.map(|_| number);
                    wanted.insert(from, Translated { service: vip, limits });
                }
            }
        }
        self.kernel.live.kernel.set_translations(&wanted).expect("there is room");
        for soft in [&mut self.oracle, self.burst.soft()] {
            weir_plane::Plane::set_translations(soft, &wanted).expect("nothing is refused");
        }
    }

    /// A table with another key takes the place of the one that stands.
    fn add_service(&mut self, at: usize, standing: Option<ServiceId>) {
        let service = &self.setup.services[at];
        let fresh = (self.kernel.turn * 8 + at as u32) % LIMITS.services;
        let number = standing.unwrap_or(ServiceId(fresh));
        let vip = vip_of(service);
        for at in places_of(service) {
            if standing.is_none() {
                self.kernel.live.set_service(at, number).expect("there is room");
            }
            for soft in [&mut self.oracle, self.burst.soft()] {
                weir_plane::Plane::set_service(soft, at, number).expect("nothing is refused");
            }
        }
        let mut builder = None;
        if service.method != "none" {
            let method = MethodId::named(&service.method);
            let method = method.unwrap_or_else(|| panic!("no method {:?}", service.method));
            let seed = service.seed.unwrap_or(u64::from(self.kernel.turn) << 8 | at as u64);
            if let Some(words) = &service.key {
                let key: Vec<u8> =
                    words.iter().flat_map(|word| word.0.iter().rev().copied()).collect();
                assert_eq!(HashKey::from_seed(seed).to_bytes()[..], key, "the key of this seed");
            }
            let config = ServiceConfig {
                settings: settings(method, service),
                client_affinity: service.affinity.as_deref() == Some("client"),
                udp: vip.protocol == Protocol::Udp,
                seed,
                nonce: seed,
                capacity: 16,
                max_states: 1000,
                idle_seconds: 300,
            };
            builder = Some(method.info().builder.expect("it has tables")(&config, None));
        }
        self.services.push((number, builder));
        self.publish(at, &service.backends.iter().map(String::as_str).collect::<Vec<_>>());
        let sources = sources(service);
        self.kernel.live.kernel.set_sources(number, sources.as_ref()).expect("there is room");
        if let Some(sources) = sources {
            self.burst.soft().sources.insert(number, sources.clone());
            self.oracle.sources.insert(number, sources);
        }
        self.set_caps(at, number);
        if !service.ids.is_empty() {
            let routes = routes(service, &self.numbers);
            self.kernel.live.set_id_routes(number, Some(&routes)).expect("there is room");
            for soft in [&mut self.oracle, self.burst.soft()] {
                soft.id_routes.insert(number, routes.clone());
            }
        }
    }

    /// All buckets are full.
    fn set_caps(&mut self, at: usize, number: ServiceId) {
        let seed = u64::from(self.kernel.turn) << 8 | at as u64;
        let caps = caps(&self.setup.services[at], seed);
        let kernel = &mut self.kernel.live.kernel;
        kernel.set_flow_caps(number, None).expect("it may");
        let Some(caps) = caps else { return };
        kernel.set_flow_caps(number, Some(&caps)).expect("there is room");
        kernel.age_caps(u64::MAX).expect("they can be written");
        for soft in [&mut self.oracle, self.burst.soft()] {
            soft.caps.insert(number, caps);
        }
        if caps.held.is_some() {
            self.count(&HeldCounts::default());
        }
    }

    /// The control plane has counted so many connections of prefixes.
    fn count(&mut self, counted: &HeldCounts) {
        let live = &mut self.kernel.live;
        let before = weir_plane::Plane::held(live).expect("they can be read");
        weir_plane::Plane::correct_held(live, &before, counted, BELIEVED)
            .expect("they can be written");
        for soft in [&mut self.oracle, self.burst.soft()] {
            let before = weir_plane::Plane::held(soft).expect("they can be read");
            weir_plane::Plane::correct_held(soft, &before, counted, BELIEVED)
                .expect("they can be written");
        }
    }

    /// Connections of each of these addresses are known to live, and no others, of all services with a limit.
    fn count_of(&mut self, sources: &[IpAddr]) {
        let mut counted = HeldCounts::default();
        for (number, _) in &self.services {
            let Some(caps) = self.oracle.caps.get(number) else { continue };
            sources.iter().for_each(|source| counted.add(caps, &map_address(*source)));
        }
        self.count(&counted);
    }

    /// A connection of this address and port to port 80 has ended.
    fn release(&mut self, source: IpAddr, port: u16) {
        let key = StateKey { address: map_address(source), src_port: port, dst_port: 80 };
        let numbers = self.services.iter().map(|(service, _)| *service);
        let limited = |service: &ServiceId| {
            self.oracle.caps.get(service).is_some_and(|caps| caps.held.is_some())
        };
        let ended: Vec<_> =
            numbers.filter(limited).map(|service| ServiceState { service, key }).collect();
        weir_plane::Plane::release_held(&mut self.kernel.live, &ended)
            .expect("they can be written");
        for soft in [&mut self.oracle, self.burst.soft()] {
            weir_plane::Plane::release_held(soft, &ended).expect("they can be written");
        }
    }

    /// As a balancer of a fleet does: the table is one that another has built.
    fn publish_shared(&mut self, pool: &[String], drains: &[String]) {
        self.generation += 1;
        let events: Vec<_> = self.oracle.memory.events.clone();
        let (number, Some(builder)) = &mut self.services[0] else { return };
        for event in events {
            builder.start(event.state.key, event.backend, 0).expect("there is room");
        }
        let member = |(name, role): (&String, Role)| Member {
            backend: self.numbers[name.as_str()],
            name: name.clone(),
            weight: 1,
            role,
        };
        let serving = pool.iter().map(|name| (name, Role::Serving));
        let members: Vec<Member> =
            serving.chain(drains.iter().map(|name| (name, Role::Draining))).map(member).collect();
        let built = builder.draft(self.generation, &members, 0).expect("it can be built").table;
        builder.discard_draft().expect("nothing has changed");
        let name_of = |id| members.iter().find(|one| one.backend == id).map(|one| one.name.clone());
        let parcel = Parcel::of(&built, name_of).expect("all have names");
        let built = builder.draft_of(self.generation, &members, &parcel).expect("it fits");
        builder.publish_draft();
        let pins: Vec<_> = built
            .pinned
            .iter()
            .map(|(key, id)| (ServiceState { service: *number, key: *key }, *id))
            .collect();
        self.kernel.live.pin(&pins).expect("there is room");
        let flags = built.table.header().flags();
        self.kernel.live.show(*number, &built.table, flags).expect("there is room");
        self.kernel.live.kernel.retire(*number);
        for soft in [&mut self.oracle, self.burst.soft()] {
            soft.memory.pinned.extend(pins.iter().copied());
            soft.show(*number, &built.table, flags).expect("there is room");
        }
    }

    fn publish(&mut self, at: usize, pool: &[&str]) {
        self.generation += 1;
        let (number, Some(builder)) = &mut self.services[at] else { return };
        let member = |name: &&str| Member {
            backend: self.numbers[*name],
            name: (*name).to_owned(),
            weight: 1,
            role: Role::Serving,
        };
        let members: Vec<Member> = pool.iter().map(member).collect();
        let table: Arc<_> =
            builder.draft(self.generation, &members, 0).expect("it can be built").table;
        builder.publish_draft();
        let flags = table.header().flags();
        self.kernel.live.show(*number, &table, flags).expect("there is room");
        // No packet is under way.
        self.kernel.live.kernel.retire(*number);
        for soft in [&mut self.oracle, self.burst.soft()] {
            soft.show(*number, &table, flags).expect("there is room");
        }
    }

    pub fn change(&mut self, change: &Change) {
        let number = |name: &String| self.numbers[name.as_str()];
        for (name, up, resets) in
            [(&change.down, false, false), (&change.resets, false, true), (&change.up, true, false)]
        {
            let Some(id) = name.as_ref().map(number) else { continue };
            let mut entry = self.kernel.live.kernel.backend(id);
            entry.flags &= !(BackendFlags::DOWN | BackendFlags::RESETS);
            let entry = entry.with_health(up).with_resets(resets);
            self.kernel.live.set_backend(id, &entry).expect("it is there");
            if resets {
                self.kernel.live.kernel.forget_hop(id).expect("it is there");
            }
            for soft in [&mut self.oracle, self.burst.soft()] {
                if let Some(known) = soft.backends.get(&id) {
                    let known = weir_plane::Backend { up, resets, ..*known };
                    weir_plane::Plane::set_backend(soft, id, Some(&known)).expect("it is there");
                }
                if up {
                    soft.memory.down.remove(&id);
                } else {
                    soft.memory.down.insert(id);
                }
            }
        }
        if let Some(id) = change.gone.as_ref().map(number) {
            self.kernel.live.set_backend(id, &BackendEntry::default()).expect("it is there");
            self.kernel.live.kernel.forget_hop(id).expect("it is there");
            for soft in [&mut self.oracle, self.burst.soft()] {
                soft.memory.incarnations.remove(&id);
                soft.backends.remove(&id);
            }
        }
        let service = self.services[0].0;
        if change.record.is_some() || change.pending.is_some() {
            let (record, pending) = (
                change.record == Some(true),
                change.pending.unwrap_or(change.record == Some(true)),
            );
            self.kernel.live.set_flags(service, record, pending).expect("it has a table");
            for soft in [&mut self.oracle, self.burst.soft()] {
                soft.set_flags(service, record, pending).expect("nothing is refused");
            }
        }
        if let Some(frozen) = change.frozen {
            self.kernel.live.freeze(service, frozen).expect("it has a table");
            for soft in [&mut self.oracle, self.burst.soft()] {
                soft.freeze(service, frozen).expect("nothing is refused");
            }
        }
        if let Some(pool) = &change.pool {
            let pool: Vec<&str> = pool.iter().map(String::as_str).collect();
            self.publish(0, &pool);
        }
        if let Some(pool) = &change.shared {
            self.publish_shared(pool, &change.drains);
        }
        if let Some(sources) = &change.counted {
            self.count_of(sources);
        }
        if let Some(source) = change.ended {
            self.release(source, change.port.expect("a connection has a port"));
        }
        if let Some(seconds) = change.seconds {
            let now = self.kernel.live.kernel.clock() + seconds;
            self.kernel.live.kernel.set_clock(now);
            let nanoseconds = u64::from(seconds) * 1_000_000_000;
            for soft in [&mut self.oracle, self.burst.soft()] {
                soft.memory.now = now;
                soft.memory.fragment_clock += seconds;
                soft.nanoseconds += u64::from(sources::ticks(nanoseconds)) << MAPPING_TICK_SHIFT;
            }
            let passed = Duration::from_secs(seconds.into());
            self.kernel.live.kernel.age_paths(passed).expect("they can be written");
            self.kernel.live.kernel.age_mappings(sources::ticks(nanoseconds));
            self.kernel.live.kernel.age_fragments(seconds).expect("they can be written");
            if self.setup.services.iter().any(|service| service.new_flows.is_some()) {
                let passed = u64::from(sources::ticks(nanoseconds)) << MAPPING_TICK_SHIFT;
                self.kernel.live.kernel.age_caps(passed).expect("they can be written");
                self.kernel.live.kernel.age_held(passed);
            }
            // And ways are asked for anew.
            for id in self.numbers.values() {
                self.kernel.live.kernel.forget_hop(*id).expect("it is there");
            }
        }
    }

    /// What is wrong with what a packet did.
    pub fn send(&mut self, step: &Step, soft: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        let bytes = step.packet_bytes.as_ref().expect("a packet or a change");
        let mut frame = bytes.0.clone();
        frame.resize(frame.len() + step.zeros, 0);
        if step.spent {
            self.spend(&frame);
        }
        let before = self.counters();
        let ids_before = self.kernel.live.kernel.id_outcomes().expect("they can be read");
        let run = run_frame(self.kernel.live.kernel.program(), &frame).expect("it runs");
        let verdict = match run.verdict {
            weir_dataplane::Verdict::Transmit => "transmit",
            weir_dataplane::Verdict::Redirect => "redirect",
            weir_dataplane::Verdict::Pass => "pass",
            weir_dataplane::Verdict::Drop => "drop",
            weir_dataplane::Verdict::Aborted => "aborted",
        };
        let wanted = step.verdict.as_deref().expect("a packet has a verdict");
        let out = step.out_bytes.as_ref().map(|bytes| {
            let mut out = bytes.0.clone();
            out.resize(out.len() + step.zeros, 0);
            out
        });
        if verdict != wanted {
            wrong.push(format!(
                "bpf: {verdict}, not {wanted}; {}",
                difference(&before, &self.counters())
            ));
        } else if verdict != "drop" {
            let out = out.as_ref().unwrap_or(&frame);
            if let Some(differs) = bytes_differ(&run.frame, out) {
                wrong.push(format!("bpf: {differs}"));
            }
        }
        let expected = self.expected(step);
        let counted = difference(&before, &self.counters());
        if counted != expected {
            wrong.push(format!("bpf counts {counted}, not {expected}"));
        }
        let ids = self.kernel.live.kernel.id_outcomes().expect("they can be read");
        for outcome in IdOutcome::ALL {
            let more = ids[&outcome] - ids_before[&outcome];
            let wanted = u64::from(step.id.as_deref() == Some(outcome.name()));
            if more != wanted {
                wrong.push(format!("bpf: id {}: {more}, not {wanted}", outcome.name()));
            }
        }
        wrong.extend(self.send_beside(&frame, out.as_deref(), wanted, &expected));
        if soft {
            wrong.extend(self.send_to_burst(step, &frame, out.as_deref(), &expected));
            wrong.extend(self.send_to_oracle(step, frame, out.as_deref(), &expected));
        }
        wrong
    }

    /// The same packet again and again, until it gets no message.
    fn spend(&mut self, frame: &[u8]) {
        let program = self.kernel.live.kernel.program();
        for _ in 0..SPENT_AFTER {
            let run = run_frame(program, frame).expect("it runs");
            if run.verdict != weir_dataplane::Verdict::Transmit {
                break;
            }
        }
        for soft in [&mut self.oracle, self.burst.soft()] {
            for _ in 0..SPENT_AFTER {
                let verdict = take(soft, self.setup, &mut frame.to_vec());
                if matches!(verdict, weir_plane::Verdict::Drop(_)) {
                    break;
                }
            }
        }
    }

    /// What is wrong with what the plane in user space beside the program did, if there is one: it sends what the
    /// program sends, or leaves it to that.
    fn send_beside(
        &mut self,
        frame: &[u8],
        out: Option<&[u8]>,
        wanted: &str,
        expected: &Difference,
    ) -> Vec<String> {
        let before = self.counters();
        let Some(beside) = &mut self.kernel.beside else { return Vec::new() };
        let mut memory = vec![0; HEADROOM + frame.len()];
        memory[HEADROOM..].copy_from_slice(frame);
        let mut places =
            [Frame { at: HEADROOM as u32, len: frame.len() as u32, ..Frame::default() }];
        // Ways are asked for anew.
        beside.plane.refresh();
        beside.plane.process(&beside.memory, &|_| true, &mut memory, &mut places);
        let [Frame { at, len, fate, device, .. }] = places;
        match fate {
            Fate::Pass if memory[HEADROOM..] == *frame => return Vec::new(),
            Fate::Pass => return vec!["beside: gives back another frame".to_owned()],
            Fate::Send => beside.sent += 1,
            Fate::Drop | Fate::Route => return vec![format!("beside: {fate:?}")],
        }
        let verdict = if matches!(device, 0 | CAME_IN_BY) { "transmit" } else { "redirect" };
        if verdict != wanted {
            return vec![format!("beside: {verdict}, not {wanted}")];
        }
        let counted = difference(&before, &self.counters());
        if counted != *expected {
            return vec![format!("beside counts {counted}, not {expected}")];
        }
        let found = &memory[at as usize..][..len as usize];
        let differs = bytes_differ(found, out.unwrap_or(frame));
        differs.map(|differs| format!("beside: {differs}")).into_iter().collect()
    }

    /// What is wrong with what the burst plane did. It asks nobody for next hops: where a set-up has
    /// interfaces with ways of their own, what is behind the link's header is compared.
    fn send_to_burst(
        &mut self,
        step: &Step,
        frame: &[u8],
        out: Option<&[u8]>,
        expected: &Difference,
    ) -> Vec<String> {
        let before = self.burst.counters().clone();
        let ports::Done { fate, device, found } = ports::through(&mut self.burst, frame);
        let counted = difference(&before, self.burst.counters());
        if counted != *expected {
            return vec![format!("burst counts {counted}, not {expected}")];
        }
        // The tag of a VLAN is the ports' to put on.
        let tagged = self.setup.devices.iter().find(|known| known.interface == device);
        let verdict = match (fate, tagged.map_or(device, |known| known.lower)) {
            (Fate::Send, 0 | CAME_IN_BY) => "transmit",
            (Fate::Send, _) => "redirect",
            (Fate::Pass, _) => "pass",
            (Fate::Drop, _) => "drop",
            // The host's routes say by which interface.
            (Fate::Route, _) => step.verdict.as_deref().unwrap_or_default(),
        };
        let wanted = step.verdict.as_deref().unwrap_or_default();
        if verdict != wanted {
            return vec![format!("burst: {verdict}, not {wanted}")];
        }
        if fate == Fate::Drop {
            return Vec::new();
        }
        let out = out.unwrap_or(frame);
        let whole = fate != Fate::Route && self.setup.devices.is_empty();
        let from = |frame: &[u8]| if whole { 0 } else { l3_of(frame) };
        let differs = bytes_differ(&found[from(&found)..], &out[from(out)..]);
        differs.map(|differs| format!("burst: {differs}")).into_iter().collect()
    }

    fn send_to_oracle(
        &mut self,
        step: &Step,
        mut frame: Vec<u8>,
        out: Option<&[u8]>,
        expected: &Difference,
    ) -> Vec<String> {
        let before = self.oracle.counters.clone();
        let verdict = take(&mut self.oracle, self.setup, &mut frame);
        let mut wrong = Vec::new();
        let counted = difference(&before, &self.oracle.counters);
        if counted != *expected {
            wrong.push(format!("rust counts {counted}, not {expected}"));
            return wrong;
        }
        // Its frames have neither the next hop's addresses nor the tags of its way.
        let from_tag = match verdict {
            weir_plane::Verdict::Forward { backend, .. } => {
                self.oracle.backends.get(&backend).is_some_and(|backend| backend.tunnel.is_some())
            }
            weir_plane::Verdict::Drop(_) => return wrong,
            weir_plane::Verdict::Tell { .. }
            | weir_plane::Verdict::Echo
            | weir_plane::Verdict::Reset => true,
            _ => false,
        };
        let Some(out) = out.or(step.packet_bytes.as_ref().map(|bytes| &bytes.0[..])) else {
            return wrong;
        };
        let from = |frame: &[u8]| if from_tag { 12 } else { l3_of(frame) };
        if let Some(differs) = bytes_differ(&frame[from(&frame)..], &out[from(out)..]) {
            wrong.push(format!("rust, behind the link's header: {differs}"));
        }
        wrong
    }

    fn counters(&self) -> Counters {
        let backends = (0..self.numbers.len() as u16 + 1).map(BackendId::of);
        self.kernel.live.kernel.counters(backends).expect("they can be read")
    }

    fn expected(&self, step: &Step) -> Difference {
        let reason = || {
            let name = step.reason.as_deref().expect("what is not forwarded has a reason");
            let known = Reason::ALL.iter().find(|reason| reason.name() == name);
            known.unwrap_or_else(|| panic!("no reason {name:?}")).name()
        };
        let mut expected = BTreeMap::new();
        match step.verdict.as_deref() {
            Some("pass") => drop(expected.insert(format!("passed {}", reason()), 1)),
            Some("drop") => drop(expected.insert(format!("dropped {}", reason()), 1)),
            // A message in the packet's place.
            _ if step.reason.is_some() => drop(expected.insert(format!("dropped {}", reason()), 1)),
            _ if step.returned => {
                expected.insert("returned".to_owned(), 1);
                let bytes = step.bytes.expect("what is returned counts its bytes");
                expected.insert("bytes returned".to_owned(), bytes);
            }
            _ => {
                let name = step.backend.as_deref().expect("what is forwarded has a backend");
                let number = self.numbers[name];
                let bytes = step.bytes.expect("what is forwarded counts its bytes");
                expected.insert(format!("packets to {number}"), 1);
                expected.insert(format!("bytes to {number}"), bytes);
                if step.new {
                    expected.insert(format!("flows to {number}"), 1);
                }
            }
        }
        Difference(expected)
    }

    /// Leaves nothing behind that the next set-up would meet.
    pub fn end(self) {
        for (number, _) in &self.services {
            self.kernel.live.forget_connections(*number).expect("they can be read");
        }
        let pending: Vec<_> = self.kernel.live.kernel.pending().expect("they can be read");
        let states: Vec<_> = pending.into_iter().map(|(state, _)| state).collect();
        self.kernel.live.forget_pending(&states).expect("they are there");
        for number in self.numbers.values() {
            self.kernel.live.set_backend(*number, &BackendEntry::default()).expect("it is there");
        }
        self.kernel.live.drain(&mut |_| ()).expect("they can be read");
    }
}

fn device(device: &crate::format::Device) -> weir_plane::Device {
    let tag = device.tag.as_ref().map(|tag| tag.0[..].try_into().expect("four bytes"));
    let way = match tag {
        Some(tag) => Way::Tagged { lower: device.lower, tag },
        None => Way::None,
    };
    assert_eq!(tag.is_none(), device.refused, "a tag, or refused");
    weir_plane::Device { ifindex: device.interface, way }
}

fn tunnel(tunnel: &crate::format::Tunnel) -> Tunnel {
    let encapsulation = match tunnel.kind.as_str() {
        "ipip" => Encapsulation::Ipip,
        "gre" => Encapsulation::Gre,
        "fou" => Encapsulation::Fou(tunnel.port),
        "gue" => Encapsulation::Gue(tunnel.port),
        other => panic!("tunnel {other:?}"),
    };
    Tunnel { encapsulation, source: tunnel.source, spread: tunnel.spread, mtu: tunnel.mtu }
}

/// What the Rust pipeline makes of a frame: it takes a tag for frames through tunnels only, and which backend
/// it is stands in the verdict.
pub fn take(oracle: &mut Soft, setup: &Setup, frame: &mut Vec<u8>) -> weir_plane::Verdict {
    let tag_of = |interface: u32| {
        let device = setup.devices.iter().find(|device| device.interface == interface)?;
        device.tag.as_ref()?.0[..].try_into().ok()
    };
    let as_it_came = frame.clone();
    let verdict = oracle.take(frame, None);
    if let weir_plane::Verdict::Forward { backend, .. } = verdict
        && let Some(known) = oracle.backends.get(&backend)
        && let Some(tunnel) = known.tunnel
        && let Some(tag) = known.hop.and_then(|hop| tag_of(hop.ifindex))
    {
        *frame = as_it_came;
        weir_plane::pipeline::restamp(frame, &verdict);
        tunnel.encapsulate(frame, known.address, Some(tag)).expect("it was asked before");
    }
    verdict
}

/// What is wrong with a case: nothing, or a line for each.
pub fn run(kernels: &mut Kernels, file: &File, case: &Case) -> Result<Vec<String>, String> {
    let setup = &file.setup[&case.setup];
    // The pipeline in memory asks nobody for next hops, and knows no interfaces.
    let soft = !case.needs.iter().any(|need| need == "next_hops");
    let mut world = World::new(kernels.of(setup)?, setup);
    let mut wrong = Vec::new();
    for (number, step) in case.step.iter().enumerate() {
        if let Some(change) = &step.change {
            world.change(change);
            continue;
        }
        let found = world.send(step, soft);
        let place = format!("corpus/{}: {}: step {}", file.name, case.name, number + 1);
        wrong.extend(found.into_iter().map(|what| format!("{place}: {what} ({})", case.shows)));
    }
    world.end();
    Ok(wrong)
}
