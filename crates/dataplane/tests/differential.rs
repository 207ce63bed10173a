//! The BPF program against its oracle in Rust: the same random frames through random pool
//! histories must be decided alike, leave the same memory behind and the same counters.
//!
//! `WEIR_SEED=n` repeats a run, `WEIR_PACKETS=n` sets its length.

#[path = "differential/caps.rs"]
mod caps;
#[path = "differential/fragments.rs"]
mod fragments;
#[path = "differential/frames.rs"]
mod frames;
#[path = "differential/full_nat.rs"]
mod full_nat;
#[path = "differential/nat.rs"]
mod nat;
#[path = "differential/options.rs"]
mod options;
#[path = "differential/services.rs"]
mod services;
#[path = "differential/setup.rs"]
mod setup;
#[path = "differential/slots.rs"]
mod slots;
#[path = "differential/sources.rs"]
mod sources;
#[path = "differential/told.rs"]
mod told;
#[path = "differential/tunnels.rs"]
mod tunnels;
#[path = "differential/twin.rs"]
mod twin;
#[path = "differential/wide.rs"]
mod wide;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use weir_dataplane::xsk::Redirect;
use weir_dataplane::{
    BackendEntry, BackendFlags, KernelPlane, Limits, LivePlane, Verdict, run_frame,
};
use weir_hash::{HashKey, Key};
use weir_plane::{Listen, Outcome, Translations, VipKey};
use weir_steering::update::{Plane, Services};
use weir_steering::{
    BackendId, Codec, Concury, ConcuryConfig, Flags, Image, LANE_ACTIVE, LOAD, Member, MethodId,
    Role, SCHEDULER, SLOT_RESERVED, ServiceId, ServiceState, Settings, StateKey, cheetah,
};
use weir_wire::craft::{self, Frame};
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags, map_address};

use services::{Builder, Service, Tables};
use setup::{OURS, from_environment, mac, oracle};
use twin::Twin;

struct World {
    plane: Twin,
    tables: Tables,
    rng: ChaCha8Rng,
    /// Whether half of the backends are behind tunnels.
    tunnels: bool,
    next_backend: u16,
    /// The clock of the backends' timestamps, and those that were written and restored.
    ticks: u32,
    stamped: [u64; 2],
    /// Comparisons in which armed flows were marked, and others.
    armed: u64,
    strangers: u64,
    /// Published tables with rows whose packets asked the connection table, and with exceptions.
    asking: u64,
    exceptions: u64,
    /// Comparisons in which cookies had led to no slot of their flow.
    cookies_lost: u64,
    /// How often tables with a scheduler were compared, by what their flags say of it.
    scheduled: BTreeMap<u32, u64>,
    /// Whose answers are translated.
    translations: Translations,
    /// Packets that went through a tunnel, by what they were put into.
    tunnelled: BTreeMap<&'static str, u64>,
    /// Fragments that are still on their way, and what became of later ones.
    fragments: Vec<Vec<u8>>,
    /// The same of what backends send.
    returning: Vec<Vec<u8>>,
    followed: BTreeMap<&'static str, u64>,
    /// SYNs that ask for smaller segments than they did.
    smaller: u64,
    /// Further places that services listen on, and flows to them by their kind.
    places: Vec<(Listen, u32)>,
    to_places: BTreeMap<&'static str, u64>,
    /// Mappings that were compared, and answers that came to an address of the balancer's.
    mapped: u64,
    unmapped: u64,
    /// New flows that were found not taken at comparisons, by their services' caps, by their prefixes', and
    /// by the connections that these held.
    capped: [u64; 3],
    asked: u32,
}

const BACKENDS: u16 = 512;

/// The build face of a method, by the registry, with a small table. A scheduler may be named.
fn other(method: &str, client_affinity: bool, protocol: Protocol, seed: u64) -> Builder {
    scheduled(method, None, client_affinity, protocol, seed)
}

fn scheduled(
    method: &str,
    scheduler: Option<(&str, &str)>,
    client_affinity: bool,
    protocol: Protocol,
    seed: u64,
) -> Builder {
    let method = MethodId::named(method).expect("the registry has it");
    let mut settings = Settings::of(method);
    for setting in method.info().settings {
        let value = match setting.name {
            cheetah::PARTITIONS => 2 + seed % 2,
            // Where backends write the cookies, one tier or two, which tell all backends apart.
            cheetah::TIER_BITS if seed.is_multiple_of(2) => 0,
            cheetah::TIER_BITS => [0, 4, 5, 6][(seed / 2 % 4) as usize],
            _ if setting.words.is_empty() => 251,
            _ => seed % setting.words.len() as u64,
        };
        settings.set(setting.name, value).unwrap();
    }
    if let Some((scheduler, load)) = scheduler {
        settings.set_word(SCHEDULER, scheduler).unwrap();
        settings.set_word(LOAD, load).unwrap();
    }
    setup::builder(settings, client_affinity, protocol == Protocol::Udp, seed)
}

/// Services with each scheduler, where it reads loads with counted and with told ones.
const SCHEDULED: [(&str, &str, &str); 7] = [
    ("tracked", "wrr", "connections"),
    ("tracked", "p2c", "connections"),
    ("tracked", "least", "connections"),
    ("tracked", "p2c", "told"),
    ("cheetah", "rr", "told"),
    ("cheetah", "p2c", "connections"),
    ("cheetah", "least", "connections"),
];

impl World {
    fn new(seed: u64) -> Self {
        Self::with_tunnels(seed, true)
    }

    /// Half of the backends are behind tunnels, or none is.
    fn with_tunnels(seed: u64, tunnels: bool) -> Self {
        nat::enter_network();
        // The kernel's tables keep free entries for each CPU, and would forget others on the next one.
        weir_testbed::process::stay_on_cpu(0).expect("there is one");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let limits = Limits {
            backends: BACKENDS.into(),
            tracked_flows: 262_144,
            answered_flows: 262_144,
            translations: 512,
            mappings: full_nat::MAPPINGS,
            slot_partitions: 8,
            list_prefixes: 1 << 14,
            ..setup::LIMITS
        };
        let (mut kernel, _) = KernelPlane::open(None, &limits).expect("load (needs root)");
        let mut oracle = oracle(&limits);
        let mut plans = vec![
            ("10.9.0.1", Protocol::Tcp, Some(80), false, 'c'),
            ("fd09::1", Protocol::Tcp, Some(443), false, 'c'),
            ("10.9.0.1", Protocol::Udp, Some(53), false, 'c'),
            ("10.9.0.2", Protocol::Tcp, None, true, 'c'),
            ("fd09::2", Protocol::Udp, None, true, 'c'),
            ("10.9.0.3", Protocol::Tcp, Some(80), false, 't'),
            ("fd09::3", Protocol::Udp, Some(53), true, 't'),
            ("10.9.0.4", Protocol::Tcp, Some(80), false, 'n'),
            ("10.9.0.6", Protocol::Tcp, Some(80), false, 'j'),
            ("fd09::6", Protocol::Tcp, None, false, 'j'),
            ("10.9.0.6", Protocol::Udp, Some(53), true, 'j'),
            ("10.9.0.7", Protocol::Tcp, Some(80), false, 'r'),
            ("fd09::7", Protocol::Tcp, Some(443), true, 'r'),
            ("fd09::7", Protocol::Udp, Some(53), false, 'r'),
            ("10.9.0.8", Protocol::Tcp, Some(80), false, 'h'),
            ("fd09::8", Protocol::Tcp, Some(443), false, 'h'),
            ("10.9.0.9", Protocol::Tcp, None, false, 'h'),
            ("10.9.0.8", Protocol::Udp, Some(53), true, 'h'),
            ("10.9.0.10", Protocol::Tcp, Some(80), false, 's'),
            ("fd09::10", Protocol::Tcp, None, false, 's'),
            ("10.9.0.14", Protocol::Tcp, Some(80), false, '1'),
            ("10.9.0.11", Protocol::Tcp, Some(80), false, '2'),
            ("fd09::11", Protocol::Tcp, Some(80), true, '3'),
            ("10.9.0.11", Protocol::Udp, Some(53), false, '4'),
            ("10.9.0.12", Protocol::Tcp, Some(80), false, '5'),
            ("10.9.0.13", Protocol::Tcp, Some(80), false, '6'),
            ("fd09::13", Protocol::Tcp, Some(80), false, '7'),
            ("10.9.0.15", Protocol::Sctp, Some(132), false, 'c'),
            ("fd09::15", Protocol::Sctp, Some(132), false, 't'),
            ("10.9.0.16", Protocol::Sctp, None, true, 'j'),
            ("fd09::16", Protocol::Sctp, Some(132), false, 'r'),
        ];
        // With the feature `example` the program has one more method.
        if MethodId::named("example").is_some() {
            plans.push(("10.9.0.5", Protocol::Tcp, Some(80), false, 'e'));
            plans.push(("fd09::5", Protocol::Udp, Some(53), true, 'e'));
        }
        let mut services = Vec::new();
        for (number, (address, protocol, port, client, method)) in plans.into_iter().enumerate() {
            let vip = VipKey { address: map_address(address.parse().unwrap()), protocol, port };
            let number = ServiceId(number as u32);
            let builder = match method {
                'c' => Builder::Concury(Box::new(Concury::new(ConcuryConfig {
                    codec: Codec::Othello,
                    bits: 8,
                    client_affinity: client,
                    udp: protocol == Protocol::Udp,
                    mark: protocol != Protocol::Udp,
                    capacity: 16,
                    max_states: 100_000,
                    idle_seconds: 1_000_000,
                    seed: rng.random(),
                }))),
                't' => other("tracked", client, protocol, rng.random()),
                'j' => other("jet", client, protocol, rng.random()),
                'r' => other("residue", client, protocol, rng.random()),
                // Each word of a setting has its service.
                'h' | 's' => {
                    let seed = rng.random::<u64>() & !1 | services.len() as u64 & 1;
                    let name = if method == 'h' { "cheetah" } else { "cheetah-stateful" };
                    other(name, client, protocol, seed)
                }
                number @ '1'..='7' => {
                    let (method, scheduler, load) = SCHEDULED[number as usize - '1' as usize];
                    let scheduler = Some((scheduler, load));
                    scheduled(method, scheduler, client, protocol, rng.random())
                }
                'e' => other("example", client, protocol, rng.random()),
                _ => Builder::None,
            };
            let (kernel, oracle) = (&mut kernel, &mut oracle);
            services.push(setup::service(kernel, oracle, number, vip, client, builder));
        }
        let places = wide::listen(&mut kernel, &mut oracle);
        let kernel = LivePlane::new(kernel).unwrap();
        let plane = Twin::new(kernel, oracle, rng.random());
        let tables = Tables { services, now: 1_000 };
        let mut world = Self {
            plane,
            tables,
            rng,
            tunnels,
            next_backend: 0,
            ticks: 0,
            stamped: [0; 2],
            armed: 0,
            strangers: 0,
            asking: 0,
            exceptions: 0,
            cookies_lost: 0,
            scheduled: BTreeMap::new(),
            translations: Translations::new(),
            tunnelled: BTreeMap::new(),
            fragments: Vec::new(),
            returning: Vec::new(),
            followed: BTreeMap::new(),
            smaller: 0,
            places,
            to_places: BTreeMap::new(),
            mapped: 0,
            unmapped: 0,
            capped: [0; 3],
            asked: 0,
        };
        tunnels::tag_device(&mut world.plane);
        let rules = full_nat::rules(&mut world.rng);
        full_nat::tell(&mut world.plane, &rules);
        for service in 0..world.tables.services.len() {
            for _ in 0..4 {
                world.add_backend(service);
            }
            world.begin_update(service);
            while world.updates(service) {
                world.step_update(service);
            }
        }
        world
    }

    fn add_backend(&mut self, service: usize) {
        let backend = BackendId::of(self.next_backend % BACKENDS);
        let taken = |service: &Service| {
            service
                .members
                .iter()
                .map(|m| m.backend)
                .chain(service.leaving.iter().copied())
                .any(|number| number == backend)
        };
        self.next_backend += 1;
        if self.tables.services.iter().any(taken) {
            return;
        }
        let incarnation = self.rng.random();
        let number = if self.tunnels { backend.get() } else { 0 };
        let mut wanted = tunnels::backend(&mut self.rng, number, incarnation);
        let vip = self.tables.services[service].vip;
        if let Some(translated) = nat::backend(&mut self.rng, number, &vip, wanted) {
            wanted = translated;
        }
        let mut entry = BackendEntry::new(wanted.address, incarnation);
        if let Some(tunnel) = &wanted.tunnel {
            entry = entry.with_tunnel(tunnel);
        }
        if let Some(translation) = &wanted.translation {
            entry = entry.with_translation(translation);
        }
        self.translations.extend(nat::of_backend(backend, &wanted, &vip));
        nat::tell(&mut self.plane, &self.translations);
        let entry = entry.with_segments(wanted.segments);
        let ifindex = wanted.hop.map_or(0, |hop| hop.ifindex);
        let entry = entry.with_next_hop(mac(backend), OURS, ifindex, true);
        self.plane.kernel.set_backend(backend, &entry).unwrap();
        self.plane.kernel.kernel.forget_hop(backend).unwrap();
        self.plane.oracle.backends.insert(backend, wanted);
        self.plane.oracle.memory.incarnations.insert(backend, incarnation);
        self.plane.oracle.memory.down.remove(&backend);
        let weight = self.rng.random_range(0..5);
        self.tables.services[service].members.push(Member {
            backend,
            name: format!("b{backend}"),
            weight,
            role: Role::Serving,
        });
        self.set_load(backend, weight, Some(0));
    }

    /// What the control plane tells schedulers.
    fn set_load(&mut self, backend: BackendId, weight: u32, value: Option<i64>) {
        self.plane.kernel.kernel.set_load(backend, weight, value);
        weir_plane::Plane::set_load(&mut self.plane.oracle, backend, weight, value);
    }

    fn change_pool(&mut self, service: usize) {
        let count = self.tables.services[service].members.len();
        let which = self.rng.random_range(0..count.max(1));
        match self.rng.random_range(0..5) {
            0 if count < 12 => self.add_backend(service),
            1 if count > 1 => self.remove_backend(service, which),
            2 if count > 0 => {
                let role = &mut self.tables.services[service].members[which].role;
                *role = setup::next_role(*role);
            }
            3 | 4 if count > 0 => {
                let member = &mut self.tables.services[service].members[which];
                member.weight = self.rng.random_range(0..7);
                let (id, down, weight) = (member.backend, self.rng.random_bool(0.3), member.weight);
                self.set_health(id, !down);
                if down && self.rng.random_bool(0.5) {
                    self.reset_at(id);
                }
                let told = self.rng.random_range(-3..50);
                let told = self.rng.random_bool(0.2).then_some(told);
                self.set_load(id, weight, told);
            }
            _ => {}
        }
    }

    fn set_health(&mut self, backend: BackendId, up: bool) {
        let mut entry = self.plane.kernel.backend(backend);
        entry.flags &= !(BackendFlags::DOWN | BackendFlags::RESETS);
        self.plane.kernel.set_backend(backend, &entry.with_health(up)).unwrap();
        if let Some(known) = self.plane.oracle.backends.get_mut(&backend) {
            known.resets = false;
        }
        if up {
            self.plane.oracle.memory.down.remove(&backend);
        } else {
            self.plane.oracle.memory.down.insert(backend);
        }
    }

    /// Packets for a backend that is down are answered by resets.
    fn reset_at(&mut self, backend: BackendId) {
        let Some(known) = self.plane.oracle.backends.get_mut(&backend) else { return };
        known.resets = true;
        let entry = self.plane.kernel.backend(backend).with_resets(true);
        self.plane.kernel.set_backend(backend, &entry).unwrap();
        self.plane.kernel.kernel.forget_hop(backend).unwrap();
    }

    /// What the control plane does when a backend is gone: its states go at once, and what the data
    /// plane knows of it when no table leads there any more. Tracked asks whether a backend is
    /// there, so now and then its backends are gone before that.
    fn remove_backend(&mut self, at: usize, which: usize) {
        let service = &mut self.tables.services[at];
        let gone = service.members.remove(which).backend;
        let early = match &mut service.builder {
            Builder::Concury(concury) => {
                concury.forget_backend(gone);
                false
            }
            Builder::Other(builder) => {
                builder.forget_backend(gone);
                builder.method() == MethodId::Tracked
            }
            Builder::None => true,
        };
        if early && self.rng.random_bool(0.5) {
            self.forget_backend(gone);
        } else {
            service.leaving.push(gone);
        }
    }

    /// Nothing in the data plane speaks of a backend any more.
    fn forget_backend(&mut self, gone: BackendId) {
        let stale = |list: Vec<(ServiceState, BackendId)>| -> Vec<ServiceState> {
            list.into_iter().filter(|(_, backend)| *backend == gone).map(|(s, _)| s).collect()
        };
        let kernel = &self.plane.kernel.kernel;
        kernel.forget_pending(&stale(kernel.pending().unwrap())).unwrap();
        kernel.unpin(&stale(kernel.pinned().unwrap())).unwrap();
        self.plane.kernel.set_backend(gone, &BackendEntry::default()).unwrap();
        self.plane.oracle.memory.pending.retain(|_, backend| *backend != gone);
        self.plane.oracle.memory.pinned.retain(|_, backend| *backend != gone);
        self.plane.oracle.memory.incarnations.remove(&gone);
        if let Some(gone) = self.plane.oracle.backends.remove(&gone) {
            let address = map_address(gone.address);
            self.translations.retain(|from, _| from.address != address);
            nat::tell(&mut self.plane, &self.translations);
        }
        self.set_load(gone, 0, Some(0));
        self.plane.kernel.kernel.forget_echoes(gone);
        self.plane.oracle.memory.echoes.remove(&gone);
        self.plane.oracle.memory.down.remove(&gone);
    }

    fn begin_update(&mut self, at: usize) {
        let service = &mut self.tables.services[at];
        if !matches!(service.builder, Builder::None) {
            service.driver.begin([service.number]);
        }
    }

    /// Flows may start at a service, or not.
    fn freeze_or_thaw(&mut self, at: usize) {
        let refuse = std::mem::take(&mut self.plane.refuse_one_in);
        let Service { number, driver, .. } = &mut self.tables.services[at];
        let done = match self.rng.random_bool(0.3) {
            true => driver.freeze(&[*number], &mut self.plane),
            false => driver.thaw(&[*number], &mut self.plane),
        };
        done.unwrap();
        self.plane.refuse_one_in = refuse;
    }

    fn updates(&self, at: usize) -> bool {
        setup::updates(&self.tables, at)
    }

    /// One action of a service's update. One that was not finished begins again.
    fn step_update(&mut self, at: usize) {
        for outcome in setup::step(&mut self.plane, &mut self.tables, at) {
            assert!(self.plane.refused() > 0 || outcome.failure.is_none());
            if let Some(table) = self.plane.oracle.tables.get(&outcome.service) {
                assert!(!table.header().flags().has(Flags::RECORD) || outcome.loose);
            }
            if outcome.is_unfinished() {
                self.tables.services[at].driver.begin([outcome.service]);
            }
            if outcome.published {
                for gone in std::mem::take(&mut self.tables.services[at].leaving) {
                    self.forget_backend(gone);
                }
            }
        }
    }

    /// Takes the reports; they must be the oracle's, in order.
    fn drain(&mut self) {
        let refuse = std::mem::take(&mut self.plane.refuse_one_in);
        let tables = &mut self.tables;
        self.plane.drain(&mut |event| tables.report(event).unwrap()).unwrap();
        self.plane.refuse_one_in = refuse;
    }

    fn compare_packet(&mut self) -> Outcome {
        if self.rng.random_bool(0.002)
            && let Some((frame, backend)) = tunnels::too_big(&self.plane, &mut self.rng)
        {
            let outcome = self.compare_frame(&frame);
            self.plane.kernel.kernel.forget_hop(BackendId::of(backend.get())).unwrap();
            return outcome;
        }
        let mut frame = self.frame();
        while wide::strays(&self.places, &frame) {
            frame = self.frame();
        }
        self.compare_frame(&frame)
    }

    fn compare_frame(&mut self, frame: &[u8]) -> Outcome {
        let mut written = frame.to_vec();
        let verdict = tunnels::take(&mut self.plane.oracle, &mut written);
        match verdict {
            weir_plane::Verdict::Answer(Some(_)) => self.stamped[0] += 1,
            weir_plane::Verdict::Return { client: Some(_), .. } => self.unmapped += 1,
            weir_plane::Verdict::Forward { echo: Some(1..), .. } => self.stamped[1] += 1,
            _ => {}
        }
        let wanted = Outcome::from(verdict);
        self.count_followed(frame, wanted);
        let run = run_frame(self.plane.kernel.program(), frame).unwrap();
        match wanted {
            Outcome::Forwarded(backend) => {
                assert_eq!(
                    run.verdict,
                    Verdict::Transmit,
                    "{verdict:?}, {:?}: {frame:02x?}",
                    self.dropped_here()
                );
                assert_eq!(run.frame[..6], mac(backend), "backend {backend} for {frame:02x?}");
                assert_eq!(run.frame[6..12], OURS);
                assert_eq!(run.frame[12..], written[12..], "what changes behind MAC addresses");
                let mut limited = frame.to_vec();
                self.plane.oracle.limit_segments(&mut limited, backend);
                self.smaller += u64::from(limited != frame);
                if let Some(name) = tunnels::of(&self.plane.oracle, backend) {
                    assert_eq!(run.frame.len(), written.len());
                    *self.tunnelled.entry(name).or_default() += 1;
                }
            }
            Outcome::Returned => {
                assert_eq!(run.verdict, Verdict::Redirect, "{verdict:?} for {frame:02x?}");
                assert_eq!(run.frame[..12], [nat::ROUTER, nat::OWN].concat());
                assert_eq!(run.frame[12..], written[12..], "{verdict:?} for {frame:02x?}");
            }
            Outcome::Passed(reason) => {
                assert_eq!(run.verdict, Verdict::Pass, "{reason} for {frame:02x?}");
                assert_eq!(run.frame, written, "{frame:02x?}");
            }
            Outcome::Dropped(reason) => {
                let sent = |verdict| {
                    use weir_plane::Verdict::{Echo, Reset, Tell};
                    matches!(verdict, Tell { .. } | Echo | Reset)
                };
                let told = sent(verdict);
                let wanted = if told { Verdict::Transmit } else { Verdict::Drop };
                assert_eq!(run.verdict, wanted, "{reason} for {frame:02x?}");
                if told {
                    assert_eq!(run.frame, written, "{reason} for {frame:02x?}");
                }
            }
        }
        wanted
    }

    /// Half of the known flows are armed then.
    fn compare_marks(&mut self) {
        let mut known = Vec::new();
        for service in &self.tables.services {
            let mut hashes = Vec::new();
            match &service.builder {
                Builder::Concury(concury) => {
                    let Some(image) = concury.published() else { continue };
                    let of = |state: &StateKey| state.hash(&image.header().key);
                    hashes.extend(concury.states().map(|(state, _)| of(state)));
                }
                Builder::Other(builder) => {
                    let Some(image) = builder.published() else { continue };
                    let key = image.header().key;
                    builder.each_state(&mut |state, _| hashes.push(state.hash(&key)));
                }
                Builder::None => {}
            }
            known.extend(hashes.into_iter().step_by(2));
        }
        let flows = self.rng.random_range(0..2_000);
        let side = self.plane.kernel.flip_marks(&mut known.iter().copied(), flows).unwrap();
        let alike = weir_plane::Plane::flip_marks(
            &mut self.plane.oracle,
            &mut known.iter().copied(),
            flows,
        );
        assert_eq!(Ok(side), alike);
        // Some rest; until the next table with another hash key.
        if self.rng.random_bool(0.5) {
            let due: Vec<u64> = known.iter().copied().step_by(3).collect();
            self.plane.kernel.watch(&mut due.iter().copied()).unwrap();
            let alike = weir_plane::Plane::watch(&mut self.plane.oracle, &mut due.iter().copied());
            assert_eq!(Ok(()), alike);
        }
        let marks = self.plane.kernel.take_marks(side).unwrap();
        let alike = weir_plane::Plane::take_marks(&mut self.plane.oracle, side);
        assert_eq!(Ok(&marks), alike.as_ref(), "activity marks");
        let active = marks.words().iter().any(|word| word & LANE_ACTIVE != 0);
        self.armed += u64::from(active);
        self.strangers += u64::from(marks.strangers().iter().any(|word| *word != 0));
    }

    /// Turns and loads, which schedulers remember; and which of them there were.
    fn compare_schedulers(&mut self) {
        let oracle = &self.plane.oracle;
        for service in &self.tables.services {
            let (kernel, soft) = (self.plane.kernel.kernel.turn(service.number), oracle);
            assert_eq!(kernel, weir_plane::Plane::turn(soft, service.number), "{}", service.number);
            let flags = oracle.tables.get(&service.number).map(|table| table.header().flags());
            let flags = flags.map_or(0, |flags| flags.0 & (Flags::SCHEDULER | Flags::COUNTS));
            if flags != 0 {
                *self.scheduled.entry(flags).or_default() += 1;
            }
        }
        for backend in 0..BACKENDS {
            let (kernel, soft) = (self.plane.kernel.kernel.load(BackendId::of(backend)), oracle);
            assert_eq!(
                kernel,
                weir_plane::Plane::load(soft, BackendId::of(backend)),
                "backend {backend}"
            );
            let (kernel, soft) = (&self.plane.kernel, oracle);
            let echoes = weir_plane::Plane::echoes(kernel, BackendId::of(backend));
            assert_eq!(
                echoes,
                weir_plane::Plane::echoes(soft, BackendId::of(backend)),
                "backend {backend}"
            );
        }
    }

    /// Why the kernel has dropped what the oracle has not, to be read by a human.
    fn dropped_here(&self) -> Vec<Reason> {
        let kernel =
            self.plane.kernel.counters(std::iter::empty()).expect("they are there").dropped;
        let soft = &self.plane.oracle.counters.dropped;
        kernel.into_iter().filter(|one| soft.get(&one.0) != Some(&one.1)).map(|one| one.0).collect()
    }

    fn compare_memory(&mut self) {
        let counters = self.plane.kernel.counters((0..BACKENDS).map(BackendId::of)).unwrap();
        assert_eq!(counters, self.plane.oracle.counters);
        assert_eq!(self.plane.kernel.kernel.bare(), self.plane.oracle.memory.bare);
        let refuse = std::mem::take(&mut self.plane.refuse_one_in);
        self.plane.pending().unwrap();
        self.plane.pinned().unwrap();
        self.plane.refuse_one_in = refuse;
        self.compare_marks();
        self.compare_schedulers();
        for table in self.plane.oracle.tables.values() {
            match &**table {
                Image::Jet(table) => self.asking += u64::from(table.body().asking() > 0.0),
                Image::Residue(table) => {
                    let marked = table.body().rows().iter().any(|row| row & SLOT_RESERVED != 0);
                    self.exceptions += u64::from(marked);
                }
                _ => {}
            }
        }
        self.compare_caps();
        self.mapped += full_nat::compare(&self.plane);
        self.cookies_lost += slots::compare(&mut self.plane, &mut self.rng);
        if self.rng.random_bool(0.5) {
            self.plane.kernel.next_seen_generation().expect("it is mapped");
            self.plane.oracle.memory.next_seen_generation();
        }
        // Some of them, the same ones in each run of a seed.
        let mut all: Vec<_> = self.plane.oracle.memory.connections.iter().collect();
        all.sort_by_key(|(state, _)| (state.service.0, state.key));
        let from = self.rng.random_range(0..=all.len());
        for (state, wanted) in all.into_iter().cycle().skip(from).take(200) {
            let service = &self.tables.services[state.service.index()];
            let flows = wide::flows_of(state, &service.vip, service.client, &self.places);
            let found = |flow| self.plane.kernel.connection(flow).unwrap() == Some(*wanted);
            assert!(flows.iter().any(found), "{state:?}: none of {flows:?}");
        }
    }
}

/// What becomes of packets here.
fn can_happen() -> Vec<String> {
    let mut wanted = vec!["forwarded".to_owned()];
    wanted.extend(
        Reason::ALL
            .iter()
            // Other hosts' frames, next hops and unknown methods have tests of their own; and the kernel
            // hands no program less than an Ethernet header.
            .filter(|r| {
                let elsewhere = [Reason::OtherHost, Reason::NoNextHop, Reason::UnknownMethod];
                let never = [Reason::TruncatedEthernet];
                // The guard's, and those of next hops.
                let never = [
                    &never[..],
                    &[Reason::PastProgram, Reason::BehindGateway, Reason::NoWayOut],
                    &[Reason::NoProgram],
                    // There is always room in front of a frame here.
                    &[Reason::NoHeadroom],
                    // Here messages are sent without end, or not at all.
                    &[Reason::EchoLimited],
                ]
                .concat();
                !elsewhere.contains(r) && !never.contains(r)
            })
            .map(|r| r.name().to_owned()),
    );
    wanted
}

#[test]
fn kernel_and_oracle_agree() {
    let packets = from_environment("WEIR_PACKETS", || 1_000_000);
    let seed = from_environment("WEIR_SEED", rand::random);
    let mut world = World::new(seed);
    // And they agree after whatever an update that fails leaves behind.
    world.plane.refuse_one_in = 40;
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let mut changes = 0;
    let wanted = can_happen();
    for packet in 0.. {
        // A world in which one of them is rare goes on, until it has been seen.
        let all = || wanted.iter().all(|name| seen.keys().any(|key| key.ends_with(name)));
        let enough = packets < 1_000_000 || packet > 4 * packets || packet % 65_536 == 0 && all();
        if packet >= packets && enough {
            break;
        }
        let outcome = world.compare_packet();
        let name = match outcome {
            Outcome::Forwarded(_) => "forwarded".to_owned(),
            Outcome::Returned => "returned".to_owned(),
            Outcome::Passed(reason) => format!("passed:{reason}"),
            Outcome::Dropped(reason) => format!("dropped:{reason}"),
        };
        *seen.entry(name).or_default() += 1;
        if packet % 100_000 == 99_999 {
            let age = std::time::Duration::from_nanos(weir_plane::PATH_NANOSECONDS);
            world.plane.kernel.kernel.age_paths(age).unwrap();
            world.plane.kernel.kernel.age_caps(weir_plane::PATH_NANOSECONDS).unwrap();
            world.plane.oracle.nanoseconds += weir_plane::PATH_NANOSECONDS;
            (0..BACKENDS)
                .for_each(|one| world.plane.kernel.kernel.forget_hop(BackendId::of(one)).unwrap());
        }
        if packet % 20_000 == 19_999 {
            let ticks = [12_000, 22_000, 32_000, 42_000];
            let ticks = ticks[world.rng.random_range(0..ticks.len())];
            full_nat::pass_time(&mut world.plane, ticks);
        }
        if packet % 4096 == 0 {
            tunnels::set_messages(&mut world.plane, &mut world.rng);
            world.change_sources();
            world.change_caps();
        }
        if packet % 256 == 0 {
            slots::pass_time(&mut world.plane, world.rng.random_range(0..4));
            world.drain();
            let service = world.rng.random_range(0..world.tables.services.len());
            if world.updates(service) {
                world.step_update(service);
            } else if world.rng.random_bool(0.3) {
                world.freeze_or_thaw(service);
            } else if world.rng.random_bool(0.4) {
                world.change_pool(service);
                world.begin_update(service);
                changes += 1;
            }
        }
        if packet % 16_384 == 0 {
            world.tables.now += 100;
            world.compare_memory();
        }
    }
    world.drain();
    world.compare_memory();
    let [stamped, restored] = world.stamped;
    println!("{stamped} timestamps written, {restored} restored");
    println!("to further places: {:?}", world.to_places);
    println!("through tunnels: {:?}", world.tunnelled);
    println!("later fragments: {:?}", world.followed);
    println!("{} SYNs ask for smaller segments", world.smaller);
    println!("{} mappings, {} answers to them", world.mapped, world.unmapped);
    println!("{packets} packets, {changes} pool changes, {} refusals", world.plane.refused());
    seen.iter().for_each(|(name, count)| println!("{count:>9} {name}"));
    // The run must have been through everything that can happen.
    for kind in ["address", "ports", "prefix", "both"] {
        assert!(world.to_places.get(kind).is_some_and(|flows| *flows > 0), "no flow to: {kind}");
    }
    if packets >= 1_000_000 {
        assert!(world.plane.refused() > 10, "nothing has failed");
        assert!(world.asking > 10 && world.exceptions > 10, "no row was marked");
        assert!(world.cookies_lost > 10, "no cookie was stale or forged");
        assert!(world.scheduled.len() >= 4, "{:?}", world.scheduled);
        assert!(world.plane.oracle.memory.bare > 100, "no echo was without its cookie");
        assert_eq!(world.tunnelled.len(), 10, "not every tunnel was used, or not both families");
        assert!(seen["returned"] > 10_000, "no answer was translated");
        assert!(world.mapped > 1_000 && world.unmapped > 5_000, "no connection had a port");
        for what in ["forwarded", "passed", "dropped", "returned"] {
            let times = world.followed.get(what).copied().unwrap_or(0);
            assert!(times > 100, "later fragments: {:?}", world.followed);
        }
        assert!(world.smaller > 500, "no SYN had large segments");
        assert!(world.capped.iter().all(|flows| *flows > 10), "{:?} were capped", world.capped);
        assert!(stamped > 1_000 && restored > 1_000, "no timestamps were written");
        assert!(world.armed > 10 && world.strangers > 10, "nothing was marked");
        for name in wanted {
            assert!(seen.keys().any(|key| key.ends_with(&name)), "{name} never happened");
        }
    }
    let client = world.tables.services.iter().filter(|s| s.client).count();
    assert_eq!(client, 8 + usize::from(MethodId::named("example").is_some()));
}

/// Every one of 100,000 damaged frames is forwarded or counted under exactly one reason, and the
/// program neither faults nor leaves its verdicts.
#[test]
fn damaged_frames_are_counted_by_reason() {
    const FRAMES: u64 = 100_000;
    let mut world = World::new(from_environment("WEIR_SEED", rand::random));
    let mut verdicts = BTreeMap::new();
    for _ in 0..FRAMES {
        let mut frame = world.frame();
        world.damage(&mut frame);
        let run = run_frame(world.plane.kernel.program(), &frame).unwrap();
        *verdicts.entry(format!("{:?}", run.verdict)).or_insert(0u64) += 1;
    }
    println!("{verdicts:?}");
    let counters = world.plane.kernel.counters((0..BACKENDS).map(BackendId::of)).unwrap();
    let lanes: u64 = counters.lanes.values().map(|lane| lane.packets).sum();
    let passed: u64 = counters.passed.values().sum();
    let dropped: u64 = counters.dropped.values().sum();
    assert_eq!(verdicts.get("Aborted"), None);
    let told = [Reason::TooBigTold, Reason::TtlTold, Reason::EchoAnswered];
    let told: u64 = told.iter().filter_map(|reason| counters.dropped.get(reason)).sum();
    assert_eq!(verdicts.get("Transmit"), Some(&(lanes + told)));
    assert_eq!(verdicts.get("Redirect"), Some(&counters.returned.packets));
    assert_eq!(verdicts.get("Pass"), Some(&passed));
    assert_eq!(verdicts.get("Drop"), Some(&(dropped - told)));
    assert_eq!(lanes + counters.returned.packets + passed + dropped, FRAMES);
}

/// A table of connections by index that runs full, of SYNs alone, and empties again: what finds no slot is
/// tracked, in both planes, and after the time of a SYN there is room again.
#[test]
fn a_full_table_of_slots_tracks_and_recovers() {
    let mut world = World::new(from_environment("WEIR_SEED", rand::random));
    let of = |world: &World, address: &str| {
        let address = map_address(address.parse().unwrap());
        let service = world.tables.services.iter().find(|one| one.vip.address == address);
        service.expect("it is one of the plans").number
    };
    let service = of(&world, "10.9.0.10");
    let capacity = world.plane.kernel.slot_counts(service).expect("it has slots").slots;
    let options = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0];
    let send = |world: &mut World, number: u32, flags: TcpFlags| {
        let address = std::net::Ipv4Addr::from(0x0a80_0000 | number >> 8);
        let client = (address, 1_000 + number as u16 % 256).into();
        let flow = FlowKey::new(client, "10.9.0.10:80".parse().unwrap(), Protocol::Tcp);
        let mut frame = Frame::new(flow).tcp_flags(flags).build();
        options::insert(&mut frame, &options);
        world.compare_frame(&frame)
    };
    // Somewhere above the capacity, as partitions do not fill alike.
    for number in 0..capacity as u32 + 2_000 {
        send(&mut world, number, TcpFlags::SYN);
    }
    let counts = world.plane.kernel.slot_counts(service).expect("it has slots");
    assert!(counts.full > 1_000 && counts.used + 1_000 > capacity, "{counts:?}");
    slots::compare(&mut world.plane, &mut world.rng);
    slots::pass_time(&mut world.plane, 66);
    for number in 200_000..203_000 {
        send(&mut world, number, TcpFlags::SYN);
    }
    let after = world.plane.kernel.slot_counts(service).expect("it has slots");
    assert!(after.full < counts.full + 100, "{after:?}: nothing has come back");
    for _ in 0..20 {
        slots::compare(&mut world.plane, &mut world.rng);
    }
    let after = world.plane.kernel.slot_counts(service).expect("it has slots");
    assert!(after.used < 3_100, "{after:?}");
}

/// The two hashes agree on a fresh key, apart from any table.
#[test]
fn state_keys_hash_alike_for_both_families() {
    let key = HashKey::from_seed(9);
    let v4 =
        FlowKey::new("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap(), Protocol::Tcp);
    let state = weir_steering::StateKey::of_flow(&v4);
    assert_eq!(state.hash(&key), key.hash_word(0x0100_000a_0200_0100));
}

/// The program of the AF_XDP forwarder: where no socket stands every frame is the kernel's, as it
/// came, and those to groups are counted. (With sockets: `xsk.rs`.)
#[test]
fn frames_without_a_socket_pass() {
    let mut rng = ChaCha8Rng::seed_from_u64(from_environment("WEIR_SEED", rand::random));
    let redirect = Redirect::load(4).expect("load (needs root)");
    let mut groups = 0;
    for _ in 0..2000 {
        let frame: Vec<u8> = (0..rng.random_range(14..200)).map(|_| rng.random()).collect();
        groups += u64::from(frame[0] & 1);
        let run = run_frame(redirect.program(), &frame).unwrap();
        assert_eq!(run.verdict, Verdict::Pass);
        assert_eq!(run.frame, frame);
    }
    assert_eq!(redirect.group_frames().unwrap(), groups);
}

/// The program that takes notes while somebody looks (`weir trace`) loads, on every kernel that this test
/// is run on, and what is no service's is the kernel's by it, too. (What it does with the packets of
/// services: `corpus.rs`.)
#[test]
fn the_program_that_takes_notes_loads() {
    let limits = Limits { table_bytes: 1 << 20, ..Limits::default() };
    let (plane, _) =
        KernelPlane::open_object(weir_dataplane::TRACED, None, &limits).expect("load (needs root)");
    let mut rng = ChaCha8Rng::seed_from_u64(from_environment("WEIR_SEED", rand::random));
    for _ in 0..2000 {
        let mut frame: Vec<u8> = (0..rng.random_range(14..200)).map(|_| rng.random()).collect();
        frame[12..14].copy_from_slice(&[[8, 0], [0x86, 0xdd]][rng.random_range(0..2)]);
        let run = run_frame(plane.program(), &frame).unwrap();
        assert_eq!(run.verdict, Verdict::Pass);
        assert_eq!(run.frame, frame);
    }
}
