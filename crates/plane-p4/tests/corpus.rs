//! The conformance corpus (corpus/README.md), as far as a switch does what its cases are about: verdict, reason,
//! backend and counters, from the registers in memory.
//!
//! `WEIR_CASE=word`: the cases whose names contain it.

#[path = "../../dataplane/tests/corpus/format.rs"]
#[allow(dead_code, reason = "a switch does not do all that set-ups may ask for")]
mod format;

use format::{Backend as Listed, Case, Change, File, Service, Setup, Step};
use std::collections::BTreeMap;
use weir_plane::forward::{Encapsulation, NextHop, Tunnel};
use weir_plane::{Backend, Hop, Outcome, Plane, VipKey};
use weir_plane_p4::{Model, P4};
use weir_steering::cheetah::PARTITIONS;
use weir_steering::update::Plane as _;
use weir_steering::{BackendId, Build, Member, MethodId, Role, ServiceConfig, ServiceId, Settings};
use weir_wire::{Protocol, Reason, map_address, parse, tcp_options};

/// Whether the switch has all that a set-up asks for.
fn is_possible(setup: &Setup) -> bool {
    let backend = |backend: &Listed| {
        let tunnel = |tunnel: &format::Tunnel| tunnel.kind == "ipip" && tunnel.spread == 0;
        backend.nat.is_none()
            && backend.full_nat.is_none()
            && backend.segments.is_none()
            && backend.interface == 0
            && !backend.resets
            && backend.tunnel.as_ref().is_none_or(tunnel)
    };
    let service = |service: &Service| {
        let word = |name: &str| service.settings.get(name).and_then(|word| word.as_str());
        let cookies = ["cheetah", "cheetah-stateful"].contains(&&service.method[..])
            && word("answers") == Some("backend")
            && word("scheduler").is_none_or(|word| ["uniform", "rr", "wrr"].contains(&word))
            && !service.settings.contains_key("tier_bits");
        (cookies || ["concury", "residue", "none"].contains(&&service.method[..]))
            && service.bits.is_none()
            && service.protocol != "sctp"
            && service.last_port.is_none()
            && service.also.is_empty()
            && service.ids.is_empty()
            && service.allow.is_empty()
            && service.deny.is_empty()
            && service.new_flows.is_none()
    };
    setup.devices.is_empty()
        && setup.backends.iter().all(backend)
        && setup.services.iter().all(service)
}

/// Whether a switch has something to say of a case: not of fragments, ICMP, SCTP,
/// messages to senders, and changes of several balancers.
fn is_common(case: &Case) -> bool {
    let step = |step: &Step| {
        let apart = [
            Reason::FirstFragment,
            Reason::LaterFragment,
            Reason::OtherProtocol,
            Reason::TruncatedSctp,
            Reason::BadSctpChunk,
        ];
        // Who is told by ICMP; and a pending table that has room for more than the cases fill.
        let told = [
            "too_big_told",
            "ttl_told",
            "untold",
            "no_tunnel_source",
            "pending_full",
            "reset_sent",
        ];
        let frame = step.packet_bytes.as_ref().map(|bytes| parse(&bytes.0));
        let apart = frame.is_some_and(|parsed| match parsed {
            Ok(packet) => packet.flow.protocol == Protocol::Sctp,
            Err(rejected) => apart.contains(&rejected.reason),
        });
        let told = step.reason.as_ref().is_some_and(|reason| told.contains(&&reason[..]));
        let frozen = step
            .change
            .as_ref()
            .is_some_and(|change| change.frozen.is_some() || change.shared.is_some());
        !apart && !told && !frozen && !step.returned && !step.spent && step.id.is_none()
    };
    case.needs.is_empty() && case.step.iter().all(step)
}

/// TSecr of a frame.
fn echo(frame: &[u8]) -> Option<u32> {
    let packet = parse(frame).ok()?;
    let found = tcp_options::find(frame.get(packet.l4_offset.into()..)?);
    found.ok().flatten().map(|stamps| stamps.echo)
}

struct World<'a> {
    plane: P4<Model>,
    numbers: BTreeMap<&'a str, BackendId>,
    builder: Option<Box<dyn Build>>,
    generation: u64,
}

fn known(listed: &Listed) -> Backend {
    let hop = listed.mac.zip(listed.source_mac).map(|(mac, source)| Hop {
        next: NextHop { mac: mac.0, source_mac: source.0 },
        ifindex: 0,
    });
    let tunnel = listed.tunnel.as_ref().map(|tunnel| Tunnel {
        encapsulation: Encapsulation::Ipip,
        source: tunnel.source,
        spread: 0,
        mtu: tunnel.mtu,
    });
    Backend {
        address: listed.address,
        incarnation: 1,
        up: !listed.down,
        resets: false,
        hop,
        tunnel,
        translation: None,
        segments: None,
    }
}

impl<'a> World<'a> {
    fn new(setup: &'a Setup) -> Self {
        let mut plane = P4::new(Model::default()).expect("it is in memory");
        plane
            .set_own_macs(setup.own_macs.iter().map(|mac| mac.0).collect())
            .expect("there is room");
        let names = setup.backends.iter().map(|backend| backend.name.as_str());
        let numbers: BTreeMap<&str, BackendId> = names.zip((1..).map(BackendId::of)).collect();
        for backend in &setup.backends {
            let number = numbers[backend.name.as_str()];
            plane.set_backend(number, Some(&known(backend))).expect("there is room");
        }
        let mut world = Self { plane, numbers, builder: None, generation: 0 };
        for (number, service) in setup.services.iter().enumerate().rev() {
            world.add_service(service, ServiceId(number as u32));
        }
        world
    }

    fn add_service(&mut self, service: &Service, number: ServiceId) {
        let protocol = if service.protocol == "tcp" { Protocol::Tcp } else { Protocol::Udp };
        let vip = VipKey { address: map_address(service.address), protocol, port: service.port };
        self.plane.set_service(vip, number).expect("there is room");
        self.builder = None;
        let Some(method) = MethodId::named(&service.method) else { return };
        let mut settings = Settings::of(method);
        if method == MethodId::CheetahStateful {
            settings.set(PARTITIONS, 1).expect("it has such a setting");
        }
        for (name, value) in &service.settings {
            let set = match value {
                toml::Value::String(word) => settings.set_word(name, word),
                other => settings.set(name, other.as_integer().expect("a number") as u64),
            };
            set.expect("it has such a setting");
        }
        let seed = service.seed.unwrap_or(u64::from(number.0) + 7);
        let config = ServiceConfig {
            settings,
            client_affinity: service.affinity.as_deref() == Some("client"),
            udp: protocol == Protocol::Udp,
            seed,
            nonce: seed,
            capacity: 16,
            max_states: 1000,
            idle_seconds: 300,
        };
        self.builder = Some(method.info().builder.expect("it has tables")(&config, None));
        let pool: Vec<&str> = service.backends.iter().map(String::as_str).collect();
        self.publish(number, &pool);
    }

    fn publish(&mut self, number: ServiceId, pool: &[&str]) {
        self.generation += 1;
        let member = |name: &&str| Member {
            backend: self.numbers[*name],
            name: (*name).to_owned(),
            weight: 1,
            role: Role::Serving,
        };
        let members: Vec<Member> = pool.iter().map(member).collect();
        let Some(builder) = &mut self.builder else { return };
        let table = builder.build(self.generation, &members, 0).expect("it can be built").table;
        let flags = table.header().flags();
        self.plane.show(number, &table, flags).expect("there is room");
        self.plane.retire(number);
    }

    fn change(&mut self, change: &Change) {
        for (name, up) in [(&change.down, false), (&change.up, true)] {
            let Some(name) = name else { continue };
            let number = self.numbers[name.as_str()];
            let known = self.plane.backend(number).expect("it is there");
            self.plane.set_backend(number, Some(&Backend { up, ..known })).expect("it is there");
        }
        if let Some(name) = &change.gone {
            self.plane.set_backend(self.numbers[name.as_str()], None).expect("it is there");
        }
        if change.record.is_some() || change.pending.is_some() {
            let record = change.record == Some(true);
            let pending = change.pending.unwrap_or(record);
            self.plane.set_flags(ServiceId(0), record, pending).expect("it has a table");
        }
        if let Some(seconds) = change.seconds {
            self.plane.set_clock(self.plane.clock() + seconds);
        }
        if let Some(pool) = &change.pool {
            self.publish(ServiceId(0), &pool.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    /// What is wrong with what a packet did.
    fn send(&mut self, step: &Step) -> Option<String> {
        let mut frame = step.packet_bytes.as_ref()?.0.clone();
        frame.resize(frame.len() + step.zeros, 0);
        let before = self.plane.lanes().expect("it is in memory");
        let outcome = self.plane.target().process(&frame);
        let after = self.plane.lanes().expect("it is in memory");
        let reason = step.reason.as_deref();
        let right = match (step.verdict.as_deref()?, outcome) {
            ("transmit" | "redirect", Outcome::Forwarded(backend)) => {
                let number = step.backend.as_ref().map(|name| self.numbers[name.as_str()]);
                let lane = |lanes: &[weir_plane::LaneCounters]| {
                    lanes.get(backend.index()).copied().unwrap_or_default()
                };
                let (before, after) = (lane(&before), lane(&after));
                let told = step.out_bytes.as_ref().and_then(|bytes| echo(&bytes.0));
                let told = told.filter(|told| echo(&frame) != Some(*told));
                self.plane.target().told == told
                    && number.is_none_or(|number| number == backend)
                    && after.packets == before.packets + 1
                    && after.flows == before.flows + u64::from(step.new)
                    && step.bytes.is_none_or(|bytes| after.bytes == before.bytes + bytes)
            }
            ("drop", Outcome::Dropped(found)) | ("pass", Outcome::Passed(found)) => {
                reason == Some(found.name()) && before == after
            }
            _ => false,
        };
        let wanted = (&step.verdict, &step.backend, reason, step.new, step.bytes);
        (!right).then(|| format!("{outcome:?} where {wanted:?} is right"))
    }
}

fn run(file: &File, case: &Case) -> Vec<String> {
    let mut world = World::new(&file.setup[&case.setup]);
    let mut wrong = Vec::new();
    for (number, step) in case.step.iter().enumerate() {
        if let Some(change) = &step.change {
            world.change(change);
        }
        if let Some(what) = world.send(step) {
            wrong.push(format!("corpus/{}: {}: step {number}: {what}", file.name, case.name));
        }
    }
    wrong
}

#[test]
fn the_registers_do_what_the_corpus_says() {
    let only = std::env::var("WEIR_CASE").unwrap_or_default();
    let (mut ran, mut left, mut wrong) = (0, 0, Vec::new());
    for file in &format::files() {
        for case in file.case.iter().filter(|case| case.name.contains(&only)) {
            if !is_possible(&file.setup[&case.setup]) || !is_common(case) {
                left += 1;
                continue;
            }
            ran += 1;
            wrong.extend(run(file, case));
        }
    }
    println!("{ran} cases, {left} are about what a switch does not do, {} faults", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!only.is_empty() || ran >= 100, "only {ran} cases");
}
