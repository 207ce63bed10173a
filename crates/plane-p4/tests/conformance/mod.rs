//! The conformance corpus (corpus/README.md) on a plane of a switch: which cases it can run, and what is wrong with
//! what it did. Whoever runs them says how a frame gets in, and what of it comes out is looked at.

#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../../../dataplane/tests/corpus/format.rs"]
pub mod format;

use format::{Backend as Listed, Case, Change, File, Service, Setup, Step};
use std::collections::{BTreeMap, BTreeSet};
use weir_plane::forward::{Encapsulation, NextHop, Tunnel};
use weir_plane::{Backend, Hop, Plane, VipKey};
use weir_plane_p4::layout::Register;
use weir_plane_p4::{P4, Target, Write};
use weir_steering::cheetah::PARTITIONS;
use weir_steering::update::Plane as _;
use weir_steering::{BackendId, Build, Member, MethodId, Role, ServiceConfig, ServiceId, Settings};
use weir_wire::{Protocol, Reason, map_address, parse};

/// The interface that packets come in by, of all set-ups.
pub const CAME_IN_BY: u32 = 1;

fn backend_asks(backend: &Listed) -> Option<&'static str> {
    if backend.nat.is_some() || backend.full_nat.is_some() {
        return Some("other addresses and ports on the way (NAT)");
    }
    if backend.segments.is_some() {
        return Some("smaller segments");
    }
    if backend.resets {
        return Some("resets");
    }
    let tunnel = backend.tunnel.as_ref()?;
    if tunnel.kind != "ipip" {
        return Some("tunnels other than IPIP");
    }
    (tunnel.spread != 0).then_some("source bits of tunnels")
}

fn service_asks(service: &Service) -> Option<&'static str> {
    let word = |name: &str| service.settings.get(name).and_then(|word| word.as_str());
    let cookies = match &service.method[..] {
        "concury" | "residue" | "none" => false,
        "cheetah" | "cheetah-stateful" => true,
        _ => return Some("the methods tracked and jet"),
    };
    if cookies && word("answers") != Some("backend") {
        return Some("cookies that the balancer writes");
    }
    if !word("scheduler").is_none_or(|word| ["uniform", "rr", "wrr"].contains(&word)) {
        return Some("schedulers that go by load");
    }
    if service.settings.contains_key("tier_bits") {
        return Some("two tiers of balancers");
    }
    if service.protocol == "sctp" {
        return Some("SCTP");
    }
    if service.bits.is_some() || service.last_port.is_some() || !service.also.is_empty() {
        return Some("prefixes, ranges of ports, several addresses");
    }
    if !service.ids.is_empty() {
        return Some("QUIC ids");
    }
    if !service.allow.is_empty() || !service.deny.is_empty() {
        return Some("lists of sources");
    }
    service.new_flows.is_some().then_some("rates of new flows")
}

fn step_asks(step: &Step) -> Option<&'static str> {
    if let Some(change) = &step.change {
        if change.frozen.is_some() || change.shared.is_some() {
            return Some("several balancers of a fleet");
        }
        if change.resets.is_some() {
            return Some("resets");
        }
    }
    if step.returned {
        return Some("answers that pass the balancer");
    }
    if step.id.is_some() {
        return Some("QUIC ids");
    }
    match step.reason.as_deref() {
        Some("too_big_told" | "ttl_told" | "untold" | "no_tunnel_source") => {
            return Some("messages to senders");
        }
        Some("reset_sent") => return Some("resets"),
        // The switch's has room for more flows than the cases have.
        Some("pending_full") => return Some("a small table of pending flows"),
        _ if step.spent => return Some("messages to senders"),
        _ => {}
    }
    let frame = step.packet_bytes.as_ref().map(|bytes| parse(&bytes.0))?;
    let reason = match frame {
        Ok(packet) => return (packet.flow.protocol == Protocol::Sctp).then_some("SCTP"),
        Err(rejected) => rejected.reason,
    };
    match reason {
        // What the parser alone says of it is what a switch says.
        _ if step.reason.as_deref() == Some(reason.name()) => None,
        Reason::FirstFragment | Reason::LaterFragment => Some("fragments"),
        Reason::OtherProtocol => Some("ICMP"),
        Reason::TruncatedSctp | Reason::BadSctpChunk => Some("SCTP"),
        _ => None,
    }
}

/// What a case asks that a switch does not do, if it does.
pub fn asks_too_much(setup: &Setup, case: &Case) -> Option<&'static str> {
    if !setup.devices.is_empty() {
        return Some("interfaces with tags of their own");
    }
    let needs = |need: &String| match &need[..] {
        "next_hops" => "next hops that the plane finds itself",
        _ => "interfaces with tags of their own",
    };
    let backends = setup.backends.iter().find_map(backend_asks);
    backends
        .or_else(|| setup.services.iter().find_map(service_asks))
        .or_else(|| case.needs.first().map(needs))
        .or_else(|| case.step.iter().find_map(step_asks))
}

/// Whether the next case of its set-up needs another world: tables, pending flows and connections are not what they
/// were. All else that packets leave behind nobody asks, or it is [forgotten](World::forget_datagrams).
pub fn leaves_traces(setup: &Setup, case: &Case) -> bool {
    let cookies = |service: &Service| service.method.starts_with("cheetah");
    case.step.iter().any(|step| step.change.is_some()) || setup.services.iter().any(cookies)
}

/// Takes a packet through a plane that is to send this, or nothing; what is wrong with what it did.
pub type Through<'a, T> = dyn FnMut(&mut P4<T>, &[u8], Option<Wanted>) -> Vec<String> + 'a;

/// A frame that has to come out: by which interface of the set-up, and its bytes.
pub struct Wanted {
    pub interface: u32,
    pub frame: Vec<u8>,
}

/// A set-up that stands.
pub struct World<'a, T> {
    pub plane: P4<T>,
    setup: &'a Setup,
    numbers: BTreeMap<&'a str, BackendId>,
    builder: Option<Box<dyn Build>>,
    generation: u64,
    /// What was counted when somebody last looked.
    counted: BTreeMap<String, u64>,
}

/// `ifindexes`: those of the set-up's interfaces.
fn known(listed: &Listed, ifindexes: &BTreeMap<u32, u32>) -> Backend {
    let hop = listed.mac.zip(listed.source_mac).map(|(mac, source)| Hop {
        next: NextHop { mac: mac.0, source_mac: source.0 },
        ifindex: match listed.interface {
            0 => 0,
            other => ifindexes[&other],
        },
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

impl<'a, T: Target> World<'a, T> {
    /// On a plane that nobody has asked for anything, but for ports.
    pub fn new(mut plane: P4<T>, setup: &'a Setup, ifindexes: &BTreeMap<u32, u32>) -> Self {
        plane
            .set_own_macs(setup.own_macs.iter().map(|mac| mac.0).collect())
            .expect("there is room");
        let names = setup.backends.iter().map(|backend| backend.name.as_str());
        let numbers: BTreeMap<&str, BackendId> = names.zip((1..).map(BackendId::of)).collect();
        for backend in &setup.backends {
            let number = numbers[backend.name.as_str()];
            let backend = known(backend, ifindexes);
            plane.set_backend(number, Some(&backend)).expect("there is room");
        }
        let mut world =
            Self { plane, setup, numbers, builder: None, generation: 0, counted: BTreeMap::new() };
        for (number, service) in setup.services.iter().enumerate().rev() {
            world.add_service(service, ServiceId(number as u32));
        }
        world.counted = world.counters();
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

    /// What happens between two packets.
    pub fn change(&mut self, change: &Change) {
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

    /// All that is counted and not zero.
    fn counters(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (number, lane) in self.plane.lanes().expect("they can be read").iter().enumerate() {
            all.insert(format!("packets to {number}"), lane.packets);
            all.insert(format!("bytes to {number}"), lane.bytes);
            all.insert(format!("flows to {number}"), lane.flows);
        }
        for (reason, (passed, dropped)) in self.plane.outcomes().expect("they can be read") {
            all.insert(format!("passed {}", reason.name()), passed);
            all.insert(format!("dropped {}", reason.name()), dropped);
        }
        all.retain(|_, count| *count != 0);
        all
    }

    /// What a step says is counted.
    fn expected(&self, step: &Step) -> BTreeMap<String, u64> {
        let reason = || step.reason.as_deref().expect("what is not forwarded has a reason");
        let number = || self.numbers[step.backend.as_deref().expect("it has a backend")];
        match step.verdict.as_deref().expect("a packet has a verdict") {
            "pass" => BTreeMap::from([(format!("passed {}", reason()), 1)]),
            "drop" => BTreeMap::from([(format!("dropped {}", reason()), 1)]),
            _ => {
                let mut all = BTreeMap::from([
                    (format!("packets to {}", number()), 1),
                    (format!("bytes to {}", number()), step.bytes.expect("its bytes count")),
                ]);
                if step.new {
                    all.insert(format!("flows to {}", number()), 1);
                }
                all
            }
        }
    }

    fn wanted(&self, step: &Step, frame: &[u8]) -> Option<Wanted> {
        let verdict = step.verdict.as_deref();
        if !["transmit", "redirect"].map(Some).contains(&verdict) {
            return None;
        }
        let name = step.backend.as_deref().expect("what is forwarded has a backend");
        let listed = self.setup.backends.iter().find(|listed| listed.name == name);
        let interface = match listed.expect("it is in the set-up").interface {
            0 => CAME_IN_BY,
            other => other,
        };
        let mut out = frame.to_vec();
        if let Some(bytes) = &step.out_bytes {
            out.clone_from(&bytes.0);
            out.resize(out.len() + step.zeros, 0);
        }
        Some(Wanted { interface, frame: out })
    }

    /// What is wrong with what a packet did. `through` takes it through the plane, and says what is wrong with
    /// what came out.
    fn send(&mut self, step: &Step, through: &mut Through<'_, T>) -> Vec<String> {
        let Some(bytes) = &step.packet_bytes else { return Vec::new() };
        let mut frame = bytes.0.clone();
        frame.resize(frame.len() + step.zeros, 0);
        let wanted = self.wanted(step, &frame);
        let mut wrong = through(&mut self.plane, &frame, wanted);
        let mut counted = self.counters();
        let before = std::mem::replace(&mut self.counted, counted.clone());
        for (name, count) in &mut counted {
            *count -= before.get(name).copied().unwrap_or(0);
        }
        counted.retain(|_, count| *count != 0);
        let expected = self.expected(step);
        if counted != expected {
            wrong.push(format!("counts {counted:?}, not {expected:?}"));
        }
        wrong
    }

    /// No datagram was seen, as at the beginning.
    pub fn forget_datagrams(&mut self) {
        let none = [Register::SeenHigh, Register::SeenLow].map(|register| Write::Fill {
            register,
            from: 0,
            to: register.size(),
            value: 0,
        });
        self.plane.target().write(&none).expect("it is there");
    }

    /// What is wrong with what it does in a case.
    pub fn run(&mut self, file: &File, case: &Case, through: &mut Through<'_, T>) -> Vec<String> {
        let mut wrong = Vec::new();
        for (number, step) in case.step.iter().enumerate() {
            if let Some(change) = &step.change {
                self.change(change);
            }
            let found = self.send(step, through);
            let place = format!("corpus/{}: {}: step {number}", file.name, case.name);
            wrong.extend(found.into_iter().map(|what| format!("{place}: {what}")));
        }
        wrong
    }
}

/// How many cases ran, by what they are about, and how many did not, by the reason.
#[derive(Default)]
pub struct Tally {
    pub ran: u64,
    ran_by: BTreeMap<String, u64>,
    left: BTreeMap<&'static str, u64>,
}

/// What a case is about: the method of its set-up's first service, the way to its first backend, and what its packets
/// are.
fn about(setup: &Setup, case: &Case) -> BTreeSet<String> {
    let service = setup.services.first();
    let method = service.map_or("none", |service| &service.method[..]);
    let tunnel = setup.backends.first().and_then(|backend| backend.tunnel.as_ref());
    let way = if tunnel.is_some() { "ipip" } else { "l2" };
    let mut all = BTreeSet::from([format!("method {method}"), format!("forward {way}")]);
    for bytes in case.step.iter().filter_map(|step| step.packet_bytes.as_ref()) {
        all.insert(match parse(&bytes.0) {
            Err(_) => "what is no good packet".to_owned(),
            Ok(packet) => {
                let family = if packet.flow.is_ipv4() { 4 } else { 6 };
                format!("{:?} over IPv{family}", packet.flow.protocol)
            }
        });
    }
    all
}

impl Tally {
    pub fn count(&mut self, setup: &Setup, case: &Case) {
        self.ran += 1;
        for one in about(setup, case) {
            *self.ran_by.entry(one).or_default() += 1;
        }
    }

    pub fn leave(&mut self, why: &'static str) {
        *self.left.entry(why).or_default() += 1;
    }

    /// Prints it, and sees that nothing was left out that used to run.
    pub fn end(&self, wrong: &[String], floors: &[(&str, u64)]) {
        println!("{} cases ran, {} faults", self.ran, wrong.len());
        self.ran_by.iter().for_each(|(about, count)| println!("{count:>6} {about}"));
        println!("{} cases ask what this plane does not do:", self.left.values().sum::<u64>());
        self.left.iter().for_each(|(why, count)| println!("{count:>6} {why}"));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        for (about, least) in floors {
            let count = self.ran_by.get(*about).copied().unwrap_or(0);
            assert!(count >= *least, "only {count} cases of {about}, and there were {least}");
        }
    }
}

/// The cases whose names contain `WEIR_CASE`; without it all, and the floors hold.
pub fn only() -> String {
    std::env::var("WEIR_CASE").unwrap_or_default()
}

/// So many cases of each kind run on every plane of a switch.
pub const FLOORS: &[(&str, u64)] = &[
    ("method concury", 600),
    ("method residue", 20),
    ("method cheetah", 2),
    ("method cheetah-stateful", 2),
    ("method none", 7),
    ("forward l2", 500),
    ("forward ipip", 120),
    ("Tcp over IPv4", 150),
    ("Tcp over IPv6", 130),
    ("Udp over IPv4", 20),
    ("Udp over IPv6", 25),
    ("what is no good packet", 310),
];
