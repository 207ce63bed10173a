//! The event-driven engine.

use crate::distribution::StepCdf;
use crate::flow::{NewFlow, Traffic};
use crate::method::{Change, Effects, Method, NOBODY};
use crate::pool::{Departure, Pool};
use crate::queue::{Event, Queue};
use crate::report::Outcome;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What becomes of a flow whose server fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Orphans {
    /// It ends: the next packet meets a reset.
    #[default]
    End,
    /// It goes on with the server that its next packet reaches, as the research code has it.
    Adopt,
}

/// How packets are played.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Only packets that may change something are events; the others are counted by one draw.
    #[default]
    Lazy,
    /// Every packet is an event: the oracle of the other one, for small scenarios.
    EveryPacket,
}

/// Everything that a simulation depends on, but for the method.
#[derive(Clone, Debug)]
pub struct World {
    /// Seed of all that is drawn. Arrivals and the history of the pool depend on nothing else:
    /// all methods see the same.
    pub seed: u64,
    /// Length, seconds.
    pub duration: f64,
    /// Flows that start before this, seconds, are played but not counted; nor are samples taken.
    pub warmup: f64,
    /// Time between samples, seconds.
    pub sample_every: f64,
    /// How packets are played.
    pub engine: Engine,
    /// Mean number of concurrent flows.
    pub flows: f64,
    /// Flow durations, seconds.
    pub durations: StepCdf,
    /// Flow sizes, KB.
    pub sizes: StepCdf,
    /// A flow has int(this x KB) + 1 packets.
    pub packets_per_kb: f64,
    /// And no more than this.
    pub max_packets: u64,
    /// Servers that serve at first.
    pub servers: u16,
    /// Their weights, repeated as often as it takes.
    pub weights: Vec<u32>,
    /// Departures per minute, a Poisson process. Each is followed by a return.
    pub updates_per_minute: f64,
    /// From departure to return, seconds.
    pub down_times: StepCdf,
    /// Whether a server that leaves fails or drains.
    pub departure: Departure,
    /// What becomes of flows whose server fails.
    pub orphans: Orphans,
    /// Size of the horizon.
    pub horizon: u16,
}

impl World {
    /// The published workload: 468 servers, one departure per minute, 1,000 s, and this many
    /// concurrent flows.
    pub fn published(flows: f64, seed: u64) -> Self {
        Self {
            seed,
            duration: 1000.0,
            warmup: 0.0,
            sample_every: 1.0,
            engine: Engine::Lazy,
            flows,
            durations: StepCdf::hadoop_durations(),
            sizes: StepCdf::hadoop_sizes(),
            packets_per_kb: 10.0,
            max_packets: u64::MAX,
            servers: 468,
            weights: vec![1],
            updates_per_minute: 1.0,
            down_times: StepCdf::upgrade_down_times(),
            departure: Departure::Fail,
            orphans: Orphans::End,
            horizon: 0,
        }
    }

    /// The weight of each server, spares included.
    pub fn server_weights(&self) -> Vec<u32> {
        let all = usize::from(self.servers) + usize::from(self.horizon);
        self.weights.iter().copied().cycle().take(all).collect()
    }
}

/// Plays a world with a method. Equal arguments give equal outcomes.
pub fn simulate(world: &World, method: &mut dyn Method) -> Outcome {
    let mut run = Run::new(world, method);
    run.open();
    while let Some((time, event)) = run.queue.pop() {
        if time > world.duration {
            break;
        }
        run.traffic.set_now(time);
        run.handle(event);
    }
    run.close()
}

/// The first words of the generators' seeds, so that each part of the world has its own.
const FLOWS: u64 = 0x666c_6f77;
const POOL: u64 = 0x706f_6f6c;
const PACKETS: u64 = 0x7061_636b;

struct Run<'a> {
    world: &'a World,
    method: &'a mut dyn Method,
    queue: Queue,
    traffic: Traffic,
    pool: Pool,
    rng: ChaCha8Rng,
    effects: Effects,
    changes: Vec<Change>,
    scratch: Vec<u32>,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(world: &'a World, method: &'a mut dyn Method) -> Self {
        let seed = |part: u64| world.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ part;
        let every_packet = world.engine == Engine::EveryPacket;
        let weights = world.server_weights();
        Self {
            traffic: Traffic::new(method.rows(), &weights, seed(PACKETS), every_packet),
            pool: Pool::new(world.servers, world.horizon, world.departure, seed(POOL)),
            rng: ChaCha8Rng::seed_from_u64(seed(FLOWS)),
            world,
            method,
            queue: Queue::default(),
            effects: Effects::default(),
            changes: Vec::new(),
            scratch: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn open(&mut self) {
        self.pool.open(&mut self.changes);
        self.apply_changes();
        self.next_arrival(0.0);
        self.next_departure(0.0);
        self.queue.push(self.world.warmup + self.world.sample_every, Event::Sample);
    }

    /// Counts what the flows that are still alive have sent until now.
    fn close(mut self) -> Outcome {
        self.traffic.set_now(self.world.duration);
        for row in 0..self.method.rows() as u32 {
            self.traffic.slots_in_row(row, &mut self.scratch);
        }
        for slot in std::mem::take(&mut self.scratch) {
            self.settle(slot);
        }
        self.outcome.evictions = self.method.gauges(&self.traffic).evictions;
        self.outcome
    }

    fn next_arrival(&mut self, now: f64) {
        let rate = self.world.flows / self.world.durations.mean();
        let gap = -(1.0 - self.rng.random::<f64>()).ln() / rate;
        self.queue.push(now + gap, Event::Arrival);
    }

    fn next_departure(&mut self, now: f64) {
        if self.world.updates_per_minute > 0.0 {
            let gap = self.pool.gap(self.world.updates_per_minute / 60.0);
            self.queue.push(now + gap, Event::Departure);
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.traffic.now();
        match event {
            Event::Arrival => {
                self.arrive();
                self.next_arrival(now);
            }
            Event::Packet { slot, serial } if self.traffic.is(slot, serial) => self.packet(slot),
            Event::End { slot, serial } if self.traffic.is(slot, serial) => {
                self.settle(slot);
                self.finish(slot);
            }
            Event::Packet { .. } | Event::End { .. } => {} // the server took the flow with it
            Event::Departure => {
                let down_times = &self.world.down_times;
                if let Some((back, server)) = self.pool.depart(now, down_times, &mut self.changes) {
                    self.outcome.departures += 1;
                    self.queue.push(back, Event::Return(server));
                    if self.world.departure == Departure::Fail {
                        self.fail(server);
                    }
                    self.apply_changes();
                }
                self.next_departure(now);
            }
            Event::Return(server) => {
                self.outcome.returns += 1;
                self.pool.come_back(server, &mut self.changes);
                self.apply_changes();
            }
            Event::Sample => {
                self.outcome.sample(self.pool.working(), &self.traffic, &*self.method);
                self.queue.push(now + self.world.sample_every, Event::Sample);
            }
        }
    }

    fn arrive(&mut self) {
        let world = self.world;
        let start = self.traffic.now();
        // All draws of a flow come from one place, whatever becomes of it.
        let hash = self.rng.random::<u64>();
        let duration = world.durations.sample(&mut self.rng);
        let size = world.sizes.sample(&mut self.rng);
        let packets =
            ((size * world.packets_per_kb) as u64).saturating_add(1).min(world.max_packets);
        let counted = start >= world.warmup;
        let row = self.method.row_of(hash);
        let end = start + duration;
        let new = NewFlow { hash, start, end, packets, row, counted };
        let slot = self.traffic.insert(new);
        if counted {
            self.outcome.flows += 1;
        }
        if !self.place(slot) {
            self.outcome.refused += u64::from(counted);
            self.traffic.remove(slot);
            return;
        }
        let serial = self.traffic.flow(slot).serial;
        self.queue.push(end, Event::End { slot, serial });
    }

    /// A packet of a flow that nobody holds.
    fn place(&mut self, slot: u32) -> bool {
        let flow = self.traffic.refer(slot);
        let server = self.method.first(flow, &mut self.traffic, &mut self.effects);
        if let Some(server) = server {
            self.traffic.give(slot, server);
            self.traffic.flow_mut(slot).goes = server;
            self.look(slot);
        }
        self.follow_up();
        server.is_some()
    }

    /// The pending packet of a flow is sent.
    fn packet(&mut self, slot: u32) {
        self.traffic.send_pending(slot);
        let flow = self.traffic.refer(slot);
        if flow.owner == NOBODY {
            self.place(slot);
            return;
        }
        let server = self.method.packet(flow, &mut self.traffic, &mut self.effects);
        if server != flow.owner {
            self.wrong(slot, 1);
        }
        self.traffic.flow_mut(slot).goes = server;
        self.look(slot);
        self.follow_up();
    }

    /// Counts the packets that went astray since the flow was looked at.
    fn settle(&mut self, slot: u32) {
        let flow = self.traffic.flow(slot);
        if flow.owner == NOBODY || flow.goes == flow.owner {
            return;
        }
        self.traffic.advance(slot, self.traffic.now());
        let astray = std::mem::take(&mut self.traffic.flow_mut(slot).astray);
        if astray > 0 {
            self.wrong(slot, astray);
        }
    }

    fn wrong(&mut self, slot: u32, packets: u64) {
        let flow = self.traffic.flow_mut(slot);
        if flow.counted {
            self.outcome.misdirected += packets;
            self.outcome.broken += u64::from(!flow.broken);
        }
        flow.broken = true;
    }

    /// Asks the method about a flow again. What it has sent until now is settled.
    fn look(&mut self, slot: u32) {
        self.settle(slot);
        let flow = self.traffic.refer(slot);
        if flow.owner == NOBODY {
            return;
        }
        let probe = self.method.probe(flow);
        if probe.server != flow.owner {
            self.traffic.advance(slot, self.traffic.now());
        }
        self.traffic.flow_mut(slot).goes = probe.server;
        if probe.effect || self.world.engine == Engine::EveryPacket {
            self.await_packet(slot);
        }
    }

    fn await_packet(&mut self, slot: u32) {
        if let Some(time) = self.traffic.draw_next(slot) {
            let serial = self.traffic.flow(slot).serial;
            self.queue.push(time, Event::Packet { slot, serial });
        }
    }

    /// Looks at all flows that the method's last answer concerns.
    fn follow_up(&mut self) {
        if self.effects.rows.is_empty() && self.effects.flows.is_empty() {
            return;
        }
        let mut slots = std::mem::take(&mut self.scratch);
        slots.append(&mut self.effects.flows);
        self.effects.rows.sort_unstable();
        self.effects.rows.dedup();
        for row in std::mem::take(&mut self.effects.rows) {
            self.traffic.slots_in_row(row, &mut slots);
        }
        for slot in slots.drain(..) {
            if self.traffic.flow(slot).owner != NOBODY {
                self.look(slot);
            }
        }
        self.scratch = slots;
    }

    /// A server fails, and its connections with it.
    fn fail(&mut self, server: u16) {
        let held: Vec<u32> = self.traffic.held_by(server).map(|flow| flow.slot).collect();
        for slot in held {
            self.settle(slot);
            let goes_on = self.traffic.sends_again(slot);
            let flow = self.traffic.flow(slot);
            if goes_on && flow.counted && !flow.broken {
                self.outcome.inevitable += 1;
            }
            if self.world.orphans == Orphans::End {
                self.finish(slot);
                continue;
            }
            self.method.end(self.traffic.refer(slot), &mut self.traffic);
            self.traffic.orphan(slot);
            self.await_packet(slot);
        }
    }

    fn finish(&mut self, slot: u32) {
        let flow = self.traffic.refer(slot);
        if flow.owner != NOBODY {
            self.method.end(flow, &mut self.traffic);
        }
        self.traffic.remove(slot);
    }

    fn apply_changes(&mut self) {
        self.method.change(&self.changes, &mut self.traffic, &mut self.effects);
        self.changes.clear();
        self.follow_up();
    }
}
