//! Packet by packet: what the simulator's methods answer is what `weir_steering` answers.
//!
//! A history of pool changes, first packets, later packets and ends is played by the engine with an
//! event per packet and written down. Then the types of `weir_steering` are driven through the same
//! history as their own users drive them, without anything of the simulator's, and all answers must
//! be equal.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use weir_hash::{HashKey, Key};
use weir_placement::{
    Candidate, HrwTable, Incremental, Ring as Points, RoundRobin, Scheduler as _,
};
use weir_sim::method::{Change, Effects, FlowRef, Gauges, NOBODY, Placed, Probe, Route};
use weir_sim::methods::{
    Cheetah, Connections, Cookies, Eviction, Jet, Metric, Modulo, Over, Published, Release,
    Residue, Ring, Scheduler, Tracked,
};
use weir_sim::{Departure, Engine, Method, StepCdf, Traffic, World, simulate};
use weir_steering::baseline::{Consistent, Ecmp};
use weir_steering::cheetah::{
    AllServers, ConnTable, ConnTableConfig, Forged, Layout, Repair, ServiceServers, Stateful,
    Stateless, Table,
};
use weir_steering::jet::{AnyJet, FullTracking, JetConfig, PlacementKind};
use weir_steering::residue::{Build as _, Collected, ResidueConfig};
use weir_steering::{
    Answer, BackendId, Decide, EventKind, Image, Lru, Member, Memory, MethodId, Question, Role,
    ServiceConfig, Settings, Signals, SoftMemory, StateKey, Steer,
};

/// What happened, in order.
#[derive(Clone, Debug)]
enum Step {
    Change(Vec<Change>, f64),
    First(FlowRef, Option<Placed>, f64),
    Packet(FlowRef, u16, f64),
    End(FlowRef, f64),
}

/// Writes down what a method is asked and what it answers.
struct Recorder {
    method: Box<dyn Method>,
    steps: Vec<Step>,
}

impl Method for Recorder {
    fn rows(&self) -> usize {
        self.method.rows()
    }

    fn row_of(&self, id: u64) -> u32 {
        self.method.row_of(id)
    }

    fn first(&mut self, flow: FlowRef, t: &mut Traffic, e: &mut Effects) -> Option<Placed> {
        let placed = self.method.first(flow, t, e);
        self.steps.push(Step::First(flow, placed, t.now()));
        placed
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        self.method.probe(flow)
    }

    fn packet(&mut self, flow: FlowRef, t: &mut Traffic, e: &mut Effects) -> Route {
        let route = self.method.packet(flow, t, e);
        self.steps.push(Step::Packet(flow, route.server, t.now()));
        route
    }

    fn end(&mut self, flow: FlowRef, t: &mut Traffic) {
        self.method.end(flow, t);
        self.steps.push(Step::End(flow, t.now()));
    }

    fn change(&mut self, changes: &[Change], t: &mut Traffic, e: &mut Effects) {
        self.method.change(changes, t, e);
        self.steps.push(Step::Change(changes.to_vec(), t.now()));
    }

    fn gauges(&self, t: &Traffic) -> Gauges {
        self.method.gauges(t)
    }
}

/// 12 servers, a departure every 3 seconds, flows of 1 to 30 packets; by turns servers fail and
/// drain.
fn world(seed: u64) -> World {
    let durations = StepCdf::parse("\"0.3\": 0.5\n\"0.8\": 10\n\"1\": 30").unwrap();
    let sizes = StepCdf::parse("\"0.3\": 0\n\"0.7\": 0.3\n\"0.9\": 1\n\"1\": 3").unwrap();
    let departure = if seed.is_multiple_of(2) { Departure::Fail } else { Departure::Drain };
    World {
        duration: 120.0,
        servers: 12,
        horizon: 2,
        updates_per_minute: 20.0,
        durations,
        sizes,
        down_times: StepCdf::parse("\"0.5\": 5\n\"1\": 20").unwrap(),
        engine: Engine::EveryPacket,
        departure,
        ..World::published(150.0, seed)
    }
}

/// A method of `weir_steering`, driven as its users drive it. Answers are backends.
trait Direct {
    fn change(&mut self, change: Change, all: &[Change], now: f64);
    /// After all changes of an instant.
    fn publish(&mut self) {}
    /// What follows happens at this time.
    fn clock(&mut self, _now: f64) {}
    fn first(&mut self, flow: FlowRef, now: f64) -> u16;
    fn packet(&mut self, flow: FlowRef) -> u16;
    fn end(&mut self, flow: FlowRef);
    /// The timestamp of the server's answer, if the method makes it.
    fn answer(&mut self, _flow: FlowRef, _now: f64) -> Option<u32> {
        None
    }
}

fn name(server: u16) -> String {
    format!("server {server}")
}

fn compare(
    what: &str,
    make: impl Fn(&World) -> Box<dyn Method>,
    direct: impl Fn(&World) -> Box<dyn Direct>,
) {
    let (mut packets, mut firsts, mut elsewhere) = (0, 0, 0);
    for seed in 1..=6 {
        let world = world(seed);
        let mut recorder = Recorder { method: make(&world), steps: Vec::new() };
        let outcome = simulate(&world, &mut recorder);
        elsewhere += outcome.misdirected;
        let mut direct = direct(&world);
        for step in recorder.steps {
            match step {
                Step::Change(changes, now) => {
                    direct.clock(now);
                    changes.iter().for_each(|&change| direct.change(change, &changes, now));
                    direct.publish();
                }
                Step::First(flow, placed, now) => {
                    let server = placed.map_or(NOBODY, |placed| placed.server);
                    direct.clock(now);
                    let ours = direct.first(flow, now);
                    assert_eq!(ours.min(0x7fff), server.min(0x7fff), "{what}, first of {flow:?}");
                    assert_eq!(direct.answer(flow, now), placed.and_then(|placed| placed.echo));
                    firsts += 1;
                }
                Step::Packet(flow, server, now) => {
                    direct.clock(now);
                    let ours = direct.packet(flow);
                    assert_eq!(ours.min(0x7fff), server.min(0x7fff), "{what}, packet of {flow:?}");
                    packets += 1;
                }
                Step::End(flow, now) => {
                    direct.clock(now);
                    direct.end(flow);
                }
            }
        }
    }
    println!("{what}: {firsts} first packets and {packets} later ones, {elsewhere} elsewhere");
    assert!(firsts > 2_000 && packets > 5_000, "{what}: {firsts} {packets}");
}

/// The pool as a control plane keeps it.
#[derive(Default)]
struct Pool(Vec<Member>);

impl Pool {
    fn follow(&mut self, change: Change) {
        let backend = change.server();
        match change {
            Change::Add(_) => {
                let name = name(backend);
                let new = Member {
                    backend: BackendId::of(backend),
                    name,
                    weight: 1,
                    role: Role::Serving,
                };
                // One that was drained keeps its place in the list.
                match self.0.iter_mut().find(|member| member.backend == backend) {
                    Some(member) => *member = new,
                    None => self.0.push(new),
                }
            }
            Change::Drain(_) => {
                self.0
                    .iter_mut()
                    .filter(|member| member.backend == backend)
                    .for_each(|member| member.role = Role::Draining);
            }
            Change::Remove(_) => self.0.retain(|member| member.backend != backend),
            _ => {}
        }
    }
}

/// A method of the registry: the build face of the engine, and the memory that mirrors the kernel's.
struct Registry {
    build: Box<dyn weir_steering::Build>,
    table: Arc<Image>,
    memory: SoftMemory,
    pool: Pool,
    generation: u64,
}

impl Registry {
    fn new(method: MethodId, settings: &[(&str, u64)]) -> Self {
        let mut all = Settings::of(method);
        settings.iter().for_each(|&(name, value)| all.set(name, value).unwrap());
        let seed = 0x7265_6769;
        let config = ServiceConfig {
            settings: all,
            client_affinity: false,
            udp: false,
            seed,
            nonce: seed,
            capacity: 0,
            max_states: usize::MAX,
            idle_seconds: u32::MAX,
        };
        let mut build = method.info().builder.unwrap()(&config, None);
        let table = build.build(1, &[], 0).unwrap().table;
        let memory = SoftMemory::new(1 << 16, 1 << 10, 1);
        Self { build, table, memory, pool: Pool::default(), generation: 1 }
    }

    fn decide(&mut self, flow: FlowRef, signals: Signals) -> u16 {
        let key = StateKey::of_flow(&flow.key());
        let hash = key.hash(&self.table.header().key);
        let question = Question { signals, ..Question::later(key, hash) };
        let decision = self.table.decide(&question, &mut self.memory);
        for event in std::mem::take(&mut self.memory.events) {
            if event.kind == EventKind::Start {
                let backend = event.backend;
                self.build.start(event.state.key, backend, 0).unwrap();
            }
        }
        decision.slot()
    }
}

impl Direct for Registry {
    fn change(&mut self, change: Change, _: &[Change], _: f64) {
        self.pool.follow(change);
        match change {
            Change::Add(server) => {
                let count = self.generation as u32;
                self.memory.incarnations.entry(BackendId::of(server)).or_insert(count);
            }
            Change::Remove(server) => {
                self.memory.incarnations.remove(&BackendId::of(server));
            }
            _ => {}
        }
    }

    fn publish(&mut self) {
        self.generation += 1;
        let built = self.build.build(self.generation, &self.pool.0, 0).unwrap();
        self.table = built.table;
        let build = &self.build;
        self.memory.pending.retain(|state, backend| !build.agrees(&state.key, *backend));
    }

    fn first(&mut self, flow: FlowRef, _: f64) -> u16 {
        self.decide(flow, Signals::FIRST)
    }

    fn packet(&mut self, flow: FlowRef) -> u16 {
        self.decide(flow, Signals::LATER)
    }

    fn end(&mut self, flow: FlowRef) {
        let key = StateKey::of_flow(&flow.key());
        self.build.forget(&key);
        self.memory.pending.retain(|state, _| state.key != key);
    }
}

#[test]
fn concury_and_tracked_over_maglev() {
    compare(
        "concury",
        |world| Box::new(Published::concury(8, world).unwrap()),
        |_| Box::new(Registry::new(MethodId::Concury, &[("dcode_bits", 8)])),
    );
    compare(
        "tracked",
        |world| Box::new(Published::tracked(509, world, 1 << 20).unwrap()),
        |_| Box::new(Registry::new(MethodId::Tracked, &[("table_size", 509)])),
    );
}

/// Every other method whose tables are published and read no more than a flow's hash, by the
/// registry alone.
#[test]
fn published_methods_of_the_registry() {
    let all: [(_, &[(&str, u64)]); 4] = [
        (MethodId::Residue, &[("rows", 500)]),
        (MethodId::Jet, &[("rows", 500), ("warm_up", 0)]),
        (MethodId::Consistent, &[("rows", 500), ("placement", 1)]),
        (MethodId::Ecmp, &[]),
    ];
    for (method, settings) in all {
        let simulated = |world: &World| -> Box<dyn Method> {
            let mut all = Settings::of(method);
            settings.iter().for_each(|&(name, value)| all.set(name, value).unwrap());
            let (eviction, release) = (Eviction::Kernel, Release::Never);
            Box::new(Published::new(all, world, 1 << 20, eviction, release).unwrap())
        };
        compare(method.name(), simulated, |_| Box::new(Registry::new(method, settings)));
    }
}

/// JET, with the horizon as its operator gives it.
struct JetAlone {
    jet: AnyJet<u64>,
    waiting: Vec<u16>,
}

impl Direct for JetAlone {
    fn change(&mut self, change: Change, all: &[Change], now: f64) {
        let (server, now) = (change.server(), Duration::from_secs_f64(now));
        let name = name(server);
        let new = Candidate { name: &name, backend: server, weight: 1 };
        let waits = self.waiting.contains(&server);
        match change {
            Change::Add(_) if waits => {
                self.jet.admit(server, now).unwrap();
                self.waiting.retain(|&other| other != server);
            }
            Change::Add(_) => self.jet.add_unforeseen(new, now).unwrap(),
            Change::Remove(_) | Change::Drain(_) if all.contains(&Change::Expect(server)) => {
                self.jet.retire(server).unwrap();
                self.waiting.push(server);
            }
            Change::Remove(_) | Change::Drain(_) => {
                self.jet.remove(server).unwrap();
            }
            Change::Expect(_) if !waits => {
                self.jet.add_horizon(new, now).unwrap();
                self.waiting.push(server);
            }
            Change::Unexpect(_) => {
                self.jet.remove_horizon(server).unwrap();
                self.waiting.retain(|&other| other != server);
            }
            _ => {}
        }
    }

    fn first(&mut self, flow: FlowRef, _: f64) -> u16 {
        self.jet.steer(&flow.id)
    }

    fn packet(&mut self, flow: FlowRef) -> u16 {
        self.jet.steer(&flow.id)
    }

    fn end(&mut self, flow: FlowRef) {
        self.jet.end(&flow.id);
    }
}

/// Over every placement, with room for all and with little: the evictions are the table's own.
#[test]
fn jet() {
    let placements = [
        (Over::Table, 512, PlacementKind::Table { rows: 512 }),
        (Over::Anchor, 0, PlacementKind::Anchor { capacity: 28 }),
        (Over::Hrw, 0, PlacementKind::Hrw),
        (Over::Ring, 20, PlacementKind::Ring { copies: 20 }),
    ];
    for (over, rows, placement) in placements {
        for room in [0, 8, 20, 10_000] {
            let table = Connections::new(room, Eviction::Buckets, Release::AtEnd);
            let config = JetConfig {
                placement,
                connections: Some(room),
                warm_up: Duration::ZERO,
                key: HashKey::from_seed(0x6a65_7421),
            };
            compare(
                &format!("jet, {over:?}, room for {room}"),
                |world| Box::new(Jet::new(over, rows, world, table).unwrap()),
                |_| {
                    let jet = AnyJet::new(&config, &[], &[]).unwrap();
                    Box::new(JetAlone { jet, waiting: Vec::new() })
                },
            );
        }
    }
}

/// Full tracking over table-based HRW.
struct FullAlone(FullTracking<HrwTable, Lru<u64>>);

impl Direct for FullAlone {
    fn change(&mut self, change: Change, _: &[Change], _: f64) {
        let server = change.server();
        let name = name(server);
        match change {
            Change::Add(_) => {
                let new = Candidate { name: &name, backend: server, weight: 1 };
                self.0.placement_mut().add(new).unwrap();
            }
            Change::Remove(_) => {
                self.0.placement_mut().remove(server).unwrap();
                self.0.forget_backend(server);
            }
            Change::Drain(_) => self.0.placement_mut().remove(server).unwrap(),
            _ => {}
        }
    }

    fn first(&mut self, flow: FlowRef, _: f64) -> u16 {
        self.0.steer(&flow.id)
    }

    fn packet(&mut self, flow: FlowRef) -> u16 {
        self.0.steer(&flow.id)
    }

    fn end(&mut self, flow: FlowRef) {
        self.0.end(&flow.id);
    }
}

#[test]
fn full_tracking() {
    for room in [0, 30, 90, 10_000] {
        let table = Connections::new(room, Eviction::Buckets, Release::AtEnd);
        compare(
            &format!("full tracking, room for {room}"),
            |world| Box::new(Tracked::new(Over::Table, 512, world, table).unwrap()),
            |_| {
                let connections = Lru::new(HashKey::from_seed(0x7472_6163), room);
                let placement = HrwTable::new(512).unwrap();
                Box::new(FullAlone(FullTracking::new(placement, connections)))
            },
        );
    }
}

/// residue, its servers' lists kept by the test.
struct ResidueAlone {
    control: weir_steering::residue::Residue<u64>,
    pool: Pool,
    held: HashMap<u64, u16>,
}

impl Direct for ResidueAlone {
    fn change(&mut self, change: Change, _: &[Change], _: f64) {
        self.pool.follow(change);
    }

    fn publish(&mut self) {
        self.control.set_pool(&self.pool.0).unwrap();
        let Some(rows) = self.control.begin() else {
            return;
        };
        let listed = self.held.iter().filter(|(flow, _)| rows.contains(self.control.row(flow)));
        let listed = listed.map(|(&flow, &server)| (flow, server)).collect();
        self.control.next(&Collected { listed, ..Collected::default() });
        self.control.commit();
    }

    fn first(&mut self, flow: FlowRef, _: f64) -> u16 {
        let server = self.control.published().table.lookup(&flow.id);
        self.held.insert(flow.id, server);
        server
    }

    fn packet(&mut self, flow: FlowRef) -> u16 {
        self.control.published().table.lookup(&flow.id)
    }

    fn end(&mut self, flow: FlowRef) {
        self.held.remove(&flow.id);
        self.control.ended(flow.id);
    }
}

#[test]
fn residue() {
    compare(
        "residue",
        |world| Box::new(Residue::new(1024, &world.server_weights()).unwrap()),
        |_| {
            let config = ResidueConfig { rows: 1024, seed: 0x7265_7369 };
            let control = weir_steering::residue::Residue::new(config, &[]).unwrap();
            Box::new(ResidueAlone { control, pool: Pool::default(), held: HashMap::new() })
        },
    );
}

/// Stateless Cheetah in turn, with the timestamps that a client echoes.
struct CheetahAlone {
    table: Table<Stateless>,
    all: AllServers,
    pool: Pool,
    turn: InTurn,
    cookie: Option<u16>,
}

/// A scheduler is all that it remembers.
struct InTurn(RoundRobin);

impl Memory<u64> for InTurn {
    fn schedule(&mut self, _: &Question<u64>, _: &[u16]) -> Option<BackendId> {
        self.0.pick(0).and_then(BackendId::new)
    }
}

impl CheetahAlone {
    fn decide(&mut self, flow: FlowRef, signals: Signals) -> u16 {
        let hash = flow.id.hash(Decide::<u64>::hash_key(&self.table));
        let question = Question { signals, ..Question::later(flow.id, hash) };
        let decision = self.table.decide(&question, &mut self.turn);
        self.cookie = decision.cookie;
        decision.slot()
    }
}

impl Direct for CheetahAlone {
    fn change(&mut self, change: Change, _: &[Change], _: f64) {
        self.pool.follow(change);
        let server = change.server();
        match change {
            Change::Add(_) => {
                self.all.join(&name(server)).unwrap();
                self.turn.0.set(server, 1);
            }
            Change::Remove(_) => {
                self.all.leave(&name(server));
                self.turn.0.remove(server);
            }
            Change::Drain(_) => self.turn.0.set(server, 0),
            _ => {}
        }
    }

    fn publish(&mut self) {
        self.table.servers = ServiceServers::new(&self.all, &self.pool.0).unwrap().into();
    }

    fn first(&mut self, flow: FlowRef, _: f64) -> u16 {
        self.decide(flow, Signals::FIRST.with_echo(Some(0)))
    }

    fn packet(&mut self, flow: FlowRef) -> u16 {
        self.decide(flow, Signals::LATER.with_echo(flow.echo))
    }

    fn end(&mut self, _: FlowRef) {}

    fn answer(&mut self, flow: FlowRef, now: f64) -> Option<u32> {
        let clock = server_clock(flow, now);
        Some(Repair::new(Layout::stateless(), clock).outgoing(clock, self.cookie?))
    }
}

/// The server's clock is any: what counts is that its lower half is left alone, and that the upper one
/// carries the cookie.
fn server_clock(flow: FlowRef, now: f64) -> u32 {
    let mut z = (flow.id ^ 0x636c_6f63).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) as u32).wrapping_add((now * 1000.0) as u32)
}

#[test]
fn cheetah() {
    compare(
        "cheetah",
        |world| {
            let (kind, metric) = (Scheduler::RoundRobin, Metric::Connections);
            Box::new(Cheetah::for_world(kind, metric, Cookies::Stateless, 0, world))
        },
        |_| {
            let key = HashKey::from_seed(0x636f_6f6b);
            let stateless = Stateless::new(key, Layout::stateless(), Forged::Schedule);
            Box::new(CheetahAlone {
                table: Table::new(stateless, ServiceServers::default()),
                all: AllServers::new(1 << 15),
                pool: Pool::default(),
                turn: InTurn(RoundRobin::new()),
                cookie: None,
            })
        },
    );
}

/// Stateful Cheetah in turn: what its balancer remembers is a table of connections by index, and those that
/// found it full.
struct StatefulAlone {
    table: Table<Stateful>,
    all: AllServers,
    pool: Pool,
    memory: BySlot,
    cookie: Option<u16>,
    now: f64,
}

struct BySlot {
    turn: RoundRobin,
    slots: ConnTable,
    full: HashMap<u64, BackendId>,
}

impl Memory<u64> for BySlot {
    fn schedule(&mut self, _: &Question<u64>, _: &[u16]) -> Option<BackendId> {
        self.turn.pick(0).and_then(BackendId::new)
    }

    fn known(&mut self, question: &Question<u64>) -> Option<BackendId> {
        self.full.get(&question.key).copied()
    }

    fn remember(&mut self, question: &Question<u64>, backend: BackendId) {
        if question.signals.starts {
            self.full.insert(question.key, backend);
        }
    }

    fn open_slot(&mut self, question: &Question<u64>, backend: BackendId) -> Option<u16> {
        self.slots.open(&question.key, backend.get(), question.now).ok()
    }

    fn slot(&mut self, question: &Question<u64>, part: u16) -> Option<BackendId> {
        let ends = question.signals.ends;
        self.slots.packet(&question.key, part, ends, question.now).and_then(BackendId::new)
    }

    fn close_slot(&mut self, question: &Question<u64>, part: u16) -> Option<BackendId> {
        self.slots.close(&question.key, part).and_then(BackendId::new)
    }
}

impl StatefulAlone {
    /// With room for so many connections.
    fn new(room: u32) -> Self {
        let layout = Layout::stateful();
        let config = ConnTableConfig {
            partitions: 1,
            slots: room,
            bits: layout.back_bits(),
            opening_seconds: 10,
            idle_seconds: u32::MAX,
            linger_seconds: 30,
        };
        let slots = ConnTable::new(HashKey::from_seed(0x636f_6f6c), config).unwrap();
        let stateful = Stateful::new(layout, *slots.key(), None, Forged::Schedule);
        Self {
            table: Table::new(stateful, ServiceServers::default()),
            all: AllServers::new(1 << 15),
            pool: Pool::default(),
            memory: BySlot { turn: RoundRobin::new(), slots, full: HashMap::new() },
            cookie: None,
            now: 0.0,
        }
    }

    fn decide(&mut self, flow: FlowRef, signals: Signals) -> u16 {
        let hash = flow.id.hash(Decide::<u64>::hash_key(&self.table));
        let now = self.now as u32;
        let question = Question { signals, now, ..Question::later(flow.id, hash) };
        let decision = self.table.decide(&question, &mut self.memory);
        self.cookie = decision.cookie;
        decision.slot()
    }
}

impl Direct for StatefulAlone {
    fn clock(&mut self, now: f64) {
        self.now = now;
    }

    fn change(&mut self, change: Change, _: &[Change], _: f64) {
        self.pool.follow(change);
        let server = change.server();
        match change {
            Change::Add(_) => {
                self.all.join(&name(server)).unwrap();
                self.memory.turn.set(server, 1);
            }
            Change::Remove(_) => {
                self.all.leave(&name(server));
                self.memory.turn.remove(server);
            }
            Change::Drain(_) => self.memory.turn.set(server, 0),
            _ => {}
        }
    }

    fn publish(&mut self) {
        let servers = ServiceServers::new(&self.all, &self.pool.0).unwrap();
        let BySlot { slots, full, .. } = &mut self.memory;
        full.retain(|_, server| servers.uses(server.get()));
        slots.sweep(slots.capacity() as u32, self.now as u32, |server| servers.uses(server));
        self.table.servers = servers.into();
    }

    fn first(&mut self, flow: FlowRef, _: f64) -> u16 {
        self.decide(flow, Signals::FIRST.with_echo(Some(0)))
    }

    fn packet(&mut self, flow: FlowRef) -> u16 {
        self.decide(flow, Signals::LATER.with_echo(flow.echo))
    }

    fn end(&mut self, flow: FlowRef) {
        self.decide(flow, Signals { ends: true, ..Signals::LATER.with_echo(flow.echo) });
        self.memory.full.remove(&flow.id);
    }

    /// The client's ACK follows.
    fn answer(&mut self, flow: FlowRef, now: f64) -> Option<u32> {
        let clock = server_clock(flow, now);
        let echo = self
            .cookie
            .map_or(clock, |cookie| Repair::new(Layout::stateful(), clock).outgoing(clock, cookie));
        self.packet(FlowRef { echo: Some(echo), ..flow });
        Some(echo)
    }
}

/// With room for all, and with so little that connections find no slot.
#[test]
fn stateful_cheetah() {
    for room in [10_000, 40] {
        compare(
            &format!("stateful cheetah, room for {room}"),
            |world| {
                let (kind, metric) = (Scheduler::RoundRobin, Metric::Connections);
                Box::new(Cheetah::for_world(kind, metric, Cookies::Stateful, room as usize, world))
            },
            |_| Box::new(StatefulAlone::new(room)),
        );
    }
}

/// Plain hashing: a table that follows the pool.
struct Flat<T> {
    table: T,
    pool: Pool,
    follow: fn(&mut T, &Pool, Change),
}

impl<T: Steer<u64>> Direct for Flat<T> {
    fn change(&mut self, change: Change, _: &[Change], _: f64) {
        self.pool.follow(change);
        (self.follow)(&mut self.table, &self.pool, change);
    }

    fn first(&mut self, flow: FlowRef, _: f64) -> u16 {
        self.table.steer(&flow.id)
    }

    fn packet(&mut self, flow: FlowRef) -> u16 {
        self.table.steer(&flow.id)
    }

    fn end(&mut self, _: FlowRef) {}
}

#[test]
fn plain_hashing() {
    compare(
        "modulo",
        |world| Box::new(Modulo::new(&world.server_weights())),
        |_| {
            let follow = |table: &mut Ecmp, pool: &Pool, _: Change| {
                let serving = pool.0.iter().filter(|member| member.role == Role::Serving);
                let candidate = |member: &'_ Member| (member.backend.get(), member.weight);
                let mut all: Vec<(u16, u32)> = serving.map(candidate).collect();
                all.sort_unstable();
                let all: Vec<Candidate<'_>> = all
                    .into_iter()
                    .map(|(backend, weight)| Candidate { name: "", backend, weight })
                    .collect();
                table.set_pool(&all);
            };
            Box::new(Flat { table: Ecmp::new(0x666c_6174), pool: Pool::default(), follow })
        },
    );
    compare(
        "ring",
        |world| Box::new(Ring::new(30, &world.server_weights()).unwrap()),
        |_| {
            let follow = |table: &mut Consistent<Points>, _: &Pool, change: Change| {
                let (server, name) = (change.server(), name(change.server()));
                let new = Candidate { name: &name, backend: server, weight: 1 };
                match change {
                    Change::Add(_) => table.placement_mut().add(new).unwrap(),
                    Change::Remove(_) | Change::Drain(_) => {
                        table.placement_mut().remove(server).unwrap();
                    }
                    _ => {}
                }
            };
            let table = Consistent::new(Points::new(30).unwrap(), 0x666c_6174);
            Box::new(Flat { table, pool: Pool::default(), follow })
        },
    );
}
