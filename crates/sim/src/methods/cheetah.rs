//! Cheetah: the packet names its server.

use super::memory::Remembered;
use super::mix;
use super::pool::Members;
use super::steered::{Face, Steered};
use crate::flow::Traffic;
use crate::method::{Change, ENTRY_BYTES, Effects, FlowRef, Gauges};
use crate::world::World;
use std::collections::HashMap;
use std::sync::Arc;
use weir_hash::HashKey;
use weir_placement as placement;
use weir_steering::cheetah::{
    AllServers, ConnTable, ConnTableConfig, Forged, Layout, Repair, ServiceServers, Stateful,
    Stateless, Table,
};
use weir_steering::{Answer, BackendId, Decide, Decision, Memory, Question, Why};

/// Who gets a new flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// The next one in turn, weights aside.
    #[default]
    RoundRobin,
    /// The next one in turn, as often as its weight says, evenly spread.
    WeightedRoundRobin,
    /// Weighted round robin with weights that follow the reported loads (Cheetah, section 4.1).
    Automatic,
    /// The less loaded of two that are drawn at random, per unit of weight.
    PowerOfTwo,
    /// The least loaded of all, per unit of weight.
    LeastLoaded,
    /// Whoever the hash says: HRW hashing.
    Hash,
}

/// The load that [`Scheduler::PowerOfTwo`] and [`Scheduler::LeastLoaded`] compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Connections, as the balancer counts them that sees them open and close.
    #[default]
    Connections,
    /// What the servers reported last.
    Reported,
}

/// The simulator's own: it follows the changes of the pool as a [`placement::Hashed`] does not.
#[derive(Default)]
struct ByHash(placement::Hrw);

impl placement::Scheduler for ByHash {
    fn pick(&mut self, random: u64) -> Option<u16> {
        placement::Placement::lookup(&self.0, random)
    }

    fn set(&mut self, backend: u16, weight: u32) {
        use placement::Incremental;
        if self.0.reweight(backend, weight).is_err() {
            let name = format!("server {backend}");
            let added = self.0.add(placement::Candidate { name: &name, backend, weight });
            debug_assert!(added.is_ok(), "{added:?}");
        }
    }

    fn remove(&mut self, backend: u16) {
        // One that has not been there is gone, too.
        let _ = placement::Incremental::remove(&mut self.0, backend);
    }
}

fn scheduler(kind: Scheduler, metric: Metric) -> Box<dyn placement::Scheduler> {
    let metric = match metric {
        Metric::Connections => placement::Metric::Connections,
        Metric::Reported => placement::Metric::Reported,
    };
    match kind {
        Scheduler::RoundRobin => Box::new(placement::RoundRobin::new()),
        Scheduler::WeightedRoundRobin => Box::new(placement::WeightedRoundRobin::new()),
        Scheduler::Automatic => Box::new(placement::Awrr::new()),
        Scheduler::PowerOfTwo => Box::new(placement::PowerOfTwo::new(metric)),
        Scheduler::LeastLoaded => Box::new(placement::LeastLoaded::new(metric)),
        Scheduler::Hash => Box::new(ByHash::default()),
    }
}

/// Where Cheetah keeps what the cookies lead to.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cookies {
    /// Nowhere: a cookie hides the number of the server (section 3.1).
    #[default]
    Stateless,
    /// In a table of each balancer: a cookie hides a place in it (section 3.2).
    Stateful,
}

/// What decides packets at one balancer.
#[derive(Debug)]
enum Decider {
    Stateless(Table<Stateless>),
    Stateful(Table<Stateful>),
}

/// Seeds of the keys under which cookies are hidden, and of the clocks that servers have.
const COOKIE_SEED: u64 = 0x636f_6f6b;
const CLOCK_SEED: u64 = 0x636c_6f63;

/// How the stateful balancer's connections end, seconds: after a FIN, or a SYN that nothing
/// follows. A flow that is silent does not lose its slot: when it was used last is not written
/// down.
const OPENING_SECONDS: u32 = 10;
const LINGER_SECONDS: u32 = 30;
const IDLE_SECONDS: u32 = u32::MAX;

/// Cheetah (`weir_steering::cheetah`). A first packet goes where the scheduler says, and the
/// server's answer carries a cookie, which the client echoes in all later packets: that is all that
/// leads them to the server, whatever has become of the pool. Each balancer schedules by itself,
/// with what it has seen.
pub type Cheetah = Steered<CheetahFace>;

/// The build face of [`Cheetah`], and its answer face.
#[derive(Debug)]
pub struct CheetahFace {
    kind: Scheduler,
    deciders: Vec<Decider>,
    layout: Layout,
    all: AllServers,
    members: Members,
}

/// What a balancer remembers beside the cookies.
pub struct CookieMemory {
    scheduler: Box<dyn placement::Scheduler>,
    by_hash: bool,
    /// The connections that could get no cookie.
    known: HashMap<u64, BackendId>,
    slots: Option<ConnTable>,
    /// Of the scheduler's random numbers, which are drawn when it is asked.
    seed: u64,
    draws: u64,
}

impl std::fmt::Debug for CookieMemory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("CookieMemory").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

impl CookieMemory {
    pub fn opened(&mut self, server: u16) {
        self.scheduler.on_open(server);
    }

    pub fn closed(&mut self, decision: Decision) {
        if let (Ok(server), Why::Cookie | Why::Known(_)) = (decision.backend, decision.why) {
            self.scheduler.on_close(server.get());
        }
    }

    pub fn forget(&mut self, id: u64) {
        self.known.remove(&id);
    }

    pub fn known(&self, id: u64) -> Option<BackendId> {
        self.known.get(&id).copied()
    }

    /// Of a packet in the middle of its flow nothing is remembered: its server resets it.
    pub fn remember(&mut self, question: &Question<u64>, backend: BackendId) {
        if question.signals.starts {
            self.known.insert(question.key, backend);
        }
    }

    pub fn schedule(&mut self, question: &Question<u64>) -> Option<BackendId> {
        self.draws += 1;
        let random = if self.by_hash { question.key } else { mix(self.seed ^ mix(self.draws)) };
        self.scheduler.pick(random).and_then(BackendId::new)
    }

    pub fn open_slot(&mut self, question: &Question<u64>, backend: BackendId) -> Option<u16> {
        self.slots.as_mut()?.open(&question.key, backend.get(), question.now).ok()
    }

    pub fn slot(&mut self, question: &Question<u64>, part: u16) -> Option<BackendId> {
        let ends = question.signals.ends;
        let found = self.slots.as_mut()?.packet(&question.key, part, ends, question.now);
        found.and_then(BackendId::new)
    }

    pub fn find_slot(&self, id: u64, part: u16) -> Option<BackendId> {
        self.slots.as_ref()?.get(&id, part).and_then(BackendId::new)
    }

    pub fn close_slot(&mut self, id: u64, part: u16) -> Option<BackendId> {
        self.slots.as_mut()?.close(&id, part).and_then(BackendId::new)
    }

    fn entries(&self) -> usize {
        self.slots.as_ref().map_or(0, ConnTable::len)
    }

    /// What leads to servers that the service does not use any more goes.
    fn retain(&mut self, servers: &ServiceServers, now: f64) {
        self.known.retain(|_, server| servers.uses(server.get()));
        if let Some(slots) = &mut self.slots {
            slots.sweep(slots.capacity() as u32, now as u32, |server| servers.uses(server));
        }
    }
}

impl Cheetah {
    /// Without servers; stateless, one balancer, all weights 1, connections counted.
    pub fn new(kind: Scheduler) -> Self {
        let world = World::of_servers(&[]);
        Self::for_world(kind, Metric::Connections, Cookies::Stateless, 0, &world)
    }

    /// For the servers and balancers of a world. `room`: connections of the stateful balancer's
    /// table, each; of no meaning for the stateless one.
    pub fn for_world(
        kind: Scheduler,
        metric: Metric,
        cookies: Cookies,
        room: usize,
        world: &World,
    ) -> Self {
        let layout = match cookies {
            Cookies::Stateless => Layout::stateless(),
            Cookies::Stateful => Layout::stateful(),
        };
        let key = HashKey::from_seed(COOKIE_SEED);
        let servers = Arc::<ServiceServers>::default();
        let stateless = Stateless::new(key, layout, Forged::Schedule);
        let (mut deciders, mut memories) = (Vec::new(), Vec::new());
        for balancer in 0..world.balancers.max(1) {
            let slots = (cookies == Cookies::Stateful).then(|| table(layout, room, balancer));
            deciders.push(match &slots {
                None => Decider::Stateless(Table::new(stateless, servers.clone())),
                Some(slots) => {
                    let stateful = Stateful::new(layout, *slots.key(), None, Forged::Schedule);
                    Decider::Stateful(Table::new(stateful, servers.clone()))
                }
            });
            memories.push(Remembered::of_cookies(CookieMemory {
                scheduler: scheduler(kind, metric),
                by_hash: kind == Scheduler::Hash,
                known: HashMap::new(),
                slots,
                seed: mix(world.seed ^ u64::from(balancer) << 48),
                draws: 0,
            }));
        }
        let members = Members::new(&world.server_weights());
        let all = AllServers::new(1 << 15);
        Steered { face: CheetahFace { kind, deciders, layout, all, members }, memories }
    }
}

/// A table for so many connections: as many partitions as it takes.
fn table(layout: Layout, room: usize, balancer: u16) -> ConnTable {
    let bits = layout.back_bits();
    let partitions = room.div_ceil(1 << bits).clamp(1, 1 << 12) as u32;
    let slots = room.div_ceil(partitions as usize).clamp(1, 1 << bits) as u32;
    let config = ConnTableConfig {
        partitions,
        slots,
        bits,
        opening_seconds: OPENING_SECONDS,
        idle_seconds: IDLE_SECONDS,
        linger_seconds: LINGER_SECONDS,
    };
    let key = HashKey::from_seed(COOKIE_SEED + 1 + u64::from(balancer));
    match ConnTable::new(key, config) {
        Ok(table) => table,
        Err(error) => unreachable!("clamped to what a table may have: {error}"),
    }
}

impl Face for CheetahFace {
    const FINS: bool = true;

    fn hash_key(&self, balancer: u16) -> &HashKey {
        match &self.deciders[usize::from(balancer)] {
            Decider::Stateless(table) => Decide::<u64>::hash_key(table),
            Decider::Stateful(table) => Decide::<u64>::hash_key(table),
        }
    }

    fn decide<M: Memory<u64>>(
        &self,
        balancer: u16,
        question: &Question<u64>,
        memory: &mut M,
    ) -> Decision {
        match &self.deciders[usize::from(balancer)] {
            Decider::Stateless(table) => table.decide(question, memory),
            Decider::Stateful(table) => table.decide(question, memory),
        }
    }

    /// The server's clock, in milliseconds from some moment of its own for each connection, with the
    /// cookie in it.
    fn answer(&self, flow: FlowRef, now: f64, cookie: Option<u16>) -> Option<u32> {
        let clock = (mix(flow.id ^ CLOCK_SEED) as u32).wrapping_add((now * 1000.0) as u32);
        Some(match cookie {
            Some(cookie) => Repair::new(self.layout, clock).outgoing(clock, cookie),
            None => clock,
        })
    }

    fn reports(&mut self, loads: &[(u16, u64)], memories: &mut [Remembered]) {
        for &(server, load) in loads {
            // Automatic weights are for utilisations: the load per unit of weight.
            let load = match self.kind {
                Scheduler::Automatic => load * 1000 / u64::from(self.members.weight(server).max(1)),
                _ => load,
            };
            let cookies = memories.iter_mut().filter_map(|memory| memory.cookies.as_mut());
            cookies.for_each(|memory| memory.scheduler.on_load(server, load));
        }
    }

    /// No flow is asked about again: a cookie that names a server does so until that server is
    /// gone, and a packet whose cookie names none is played anyway.
    fn change(
        &mut self,
        changes: &[Change],
        memories: &mut [Remembered],
        traffic: &mut Traffic,
        _: &mut Effects,
    ) {
        for &change in changes {
            let server = change.server();
            self.members.follow(change);
            match change {
                Change::Add(_) => {
                    let joined = self.all.join(&Members::name(server));
                    debug_assert!(joined.is_ok(), "{joined:?}");
                }
                Change::Remove(_) => {
                    self.all.leave(&Members::name(server));
                }
                Change::Drain(_) | Change::Reweight(..) => {}
                Change::Expect(_) | Change::Unexpect(_) => continue,
            }
            let weight = self.members.get(server).map(weir_steering::Member::effective_weight);
            for memory in memories.iter_mut().filter_map(|memory| memory.cookies.as_mut()) {
                match (change, weight) {
                    (Change::Remove(_), _) => memory.scheduler.remove(server),
                    // One that drains keeps its count of connections, for when it is back.
                    (_, Some(weight)) => memory.scheduler.set(server, weight),
                    (_, None) => {}
                }
            }
        }
        let servers: Arc<_> = match ServiceServers::new(&self.all, self.members.all()) {
            Ok(servers) => servers.into(),
            Err(error) => {
                debug_assert!(false, "all members have joined: {error}");
                return;
            }
        };
        for decider in &mut self.deciders {
            match decider {
                Decider::Stateless(table) => table.servers = servers.clone(),
                Decider::Stateful(table) => table.servers = servers.clone(),
            }
        }
        for memory in memories.iter_mut().filter_map(|memory| memory.cookies.as_mut()) {
            memory.retain(&servers, traffic.now());
        }
    }

    /// Entries are the slots of the stateful balancer.
    fn gauges(&self, memories: &[Remembered]) -> Gauges {
        let cookies = memories.iter().filter_map(|memory| memory.cookies.as_ref());
        let tracked = cookies.map(CookieMemory::entries).sum::<usize>();
        Gauges { tracked, state_bytes: tracked as f64 * ENTRY_BYTES, ..Gauges::default() }
    }
}
