//! The event-driven engine.

use crate::flow::{NewFlow, Traffic};
use crate::method::{Change, Effects, Method, NOBODY, Placed};
use crate::methods::mix;
use crate::pool::{Departure, Pool};
use crate::queue::{Event, Queue};
use crate::report::Outcome;
use crate::world::{Action, Engine, Orphans, World};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

/// Plays a world with a method. Equal arguments give equal outcomes.
pub fn simulate(world: &World, method: &mut dyn Method) -> Outcome {
    simulate_with(world, method, &mut |_| {})
}

/// The same, telling from time to time which share of the world's duration is over, 0 to 1.
pub fn simulate_with(
    world: &World,
    method: &mut dyn Method,
    progress: &mut dyn FnMut(f64),
) -> Outcome {
    let mut run = Run::new(world, method);
    run.open();
    while let Some((time, event)) = run.queue.pop() {
        if time > world.duration {
            break;
        }
        run.traffic.set_now(time);
        if event == Event::Arrival {
            run.steps += 1;
            if run.steps.is_multiple_of(1 << 14) {
                progress(time / world.duration);
            }
        }
        run.handle(event);
    }
    run.close()
}

/// The first words of the generators' seeds, so that each part of the world has its own.
const FLOWS: u64 = 0x666c_6f77;
const POOL: u64 = 0x706f_6f6c;
const PACKETS: u64 = 0x7061_636b;
const SPREAD: u64 = 0x6563_6d70;
const SCRIPT: u64 = 0x7363_7269;

struct Run<'a> {
    world: &'a World,
    method: &'a mut dyn Method,
    queue: Queue,
    traffic: Traffic,
    pool: Pool,
    rng: ChaCha8Rng,
    /// Of the reshuffles.
    spread: ChaCha8Rng,
    /// Of weights that are drawn.
    weights: ChaCha8Rng,
    /// Measurements on their way to the balancers, oldest first.
    reports: VecDeque<Vec<(u16, u64)>>,
    steps: u64,
    effects: Effects,
    changes: Vec<Change>,
    scratch: Vec<u32>,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(world: &'a World, method: &'a mut dyn Method) -> Self {
        let seed = |part: u64| world.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ part;
        let weights = world.server_weights();
        let mut traffic = Traffic::new(method.rows(), &weights, seed(PACKETS), world.engine);
        traffic.spread(world.balancers, seed(SPREAD));
        Self {
            traffic,
            pool: Pool::new(world, seed(POOL)),
            rng: ChaCha8Rng::seed_from_u64(seed(FLOWS)),
            spread: ChaCha8Rng::seed_from_u64(seed(SPREAD)),
            weights: ChaCha8Rng::seed_from_u64(seed(SCRIPT)),
            reports: VecDeque::new(),
            steps: 0,
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
        self.next_reshuffle(0.0);
        for (number, scripted) in self.world.script.iter().enumerate() {
            self.queue.push(scripted.at, Event::Script(number));
        }
        if let Some(feedback) = &self.world.feedback {
            self.queue.push(feedback.interval, Event::Measure);
        }
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

    /// A Poisson process; where its rate changes, by thinning one of the highest rate.
    fn next_arrival(&mut self, now: f64) {
        let world = self.world;
        let highest = world.flows / world.durations.mean() * world.peak;
        let mut at = now;
        loop {
            at += -(1.0 - self.rng.random::<f64>()).ln() / highest;
            let steady = world.peak == 1.0;
            if steady || at > world.duration || self.rng.random::<f64>() * highest < world.rate(at)
            {
                break;
            }
        }
        self.queue.push(at, Event::Arrival);
    }

    fn next_reshuffle(&mut self, now: f64) {
        if self.world.reshuffles_per_minute > 0.0 {
            let u: f64 = self.spread.random();
            let gap = -(1.0 - u).ln() * 60.0 / self.world.reshuffles_per_minute;
            self.queue.push(now + gap, Event::Reshuffle);
        }
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
                if now >= self.world.warmup {
                    self.outcome.window.0 += 1;
                    self.outcome.window.1 += u64::from(self.traffic.flow(slot).broken);
                }
                self.finish(slot);
            }
            Event::Packet { .. } | Event::End { .. } => {} // the server took the flow with it
            Event::Departure => {
                self.depart();
                self.next_departure(now);
            }
            Event::Return(server) => {
                if self.pool.come_back(now, server, &mut self.changes) {
                    self.outcome.returns += 1;
                    self.apply_changes();
                }
            }
            Event::Script(number) => self.script(number),
            Event::Reshuffle => {
                self.reshuffle();
                self.next_reshuffle(now);
            }
            Event::Measure => self.measure(),
            Event::Report => {
                if let Some(loads) = self.reports.pop_front() {
                    self.method.reports(&loads);
                }
            }
            Event::Sample => {
                self.outcome.sample(self.pool.working(), &self.traffic, &*self.method);
                self.queue.push(now + self.world.sample_every, Event::Sample);
            }
        }
    }

    fn depart(&mut self) {
        let (now, down_times) = (self.traffic.now(), &self.world.down_times);
        if let Some((back, server)) = self.pool.depart(now, down_times, &mut self.changes) {
            self.outcome.departures += 1;
            self.queue.push(back, Event::Return(server));
            if self.world.departure == Departure::Fail {
                self.fail(server);
            }
            self.apply_changes();
        }
    }

    /// A scripted event. What it asks for and is so already is left as it is.
    fn script(&mut self, number: usize) {
        let (world, now) = (self.world, self.traffic.now());
        let scripted = &world.script[number];
        match &scripted.action {
            Action::Add(servers) => {
                for &server in servers {
                    let joins = self.pool.add(server, &mut self.changes);
                    self.outcome.returns += u64::from(joins);
                }
            }
            Action::Remove(servers) => {
                for &server in servers {
                    let how = Departure::Fail;
                    let leaves = self.pool.take(now, server, how, &mut self.changes);
                    self.outcome.departures += u64::from(leaves);
                    self.fail(server);
                }
            }
            Action::Drain(servers) => {
                for &server in servers {
                    let how = Departure::Drain;
                    let leaves = self.pool.take(now, server, how, &mut self.changes);
                    self.outcome.departures += u64::from(leaves);
                }
            }
            Action::Weights(weights) => {
                let weights = weights.iter().copied().cycle().take(world.all_servers());
                weights.enumerate().for_each(|(server, w)| self.reweight(server as u16, w));
            }
            Action::RandomWeights(from, to) => {
                for server in 0..world.all_servers() as u16 {
                    let weight = self.weights.random_range(*from..=*to);
                    self.reweight(server, weight);
                }
            }
            Action::Reweight(server, weight) => self.reweight(*server, *weight),
        }
        if let Some(next) = scripted.next_after(now).filter(|&next| next > now) {
            self.queue.push(next, Event::Script(number));
        }
        self.apply_changes();
    }

    fn reweight(&mut self, server: u16, weight: u32) {
        if self.traffic.weight(server) != weight {
            self.traffic.set_weight(server, weight);
            self.changes.push(Change::Reweight(server, weight));
        }
    }

    /// All flows are spread anew. Each is settled with the balancer that it had, and asked about
    /// with the one that it has.
    fn reshuffle(&mut self) {
        self.outcome.reshuffles += 1;
        self.traffic.spread(self.world.balancers, mix(self.spread.random()));
        let mut slots = Vec::new();
        for row in 0..self.method.rows() as u32 {
            self.traffic.slots_in_row(row, &mut slots);
        }
        slots.sort_unstable();
        for slot in slots {
            let flow = self.traffic.refer(slot);
            let to = self.traffic.balancer_of(flow.id);
            if to == flow.balancer {
                continue;
            }
            self.settle(slot);
            self.method.moves(flow, to, &mut self.traffic);
            self.traffic.flow_mut(slot).balancer = to;
            self.look(slot);
        }
    }

    fn measure(&mut self) {
        let Some(feedback) = &self.world.feedback else {
            return;
        };
        let load = |&server: &u16| (server, u64::from(self.traffic.load(server)));
        self.reports.push_back(self.pool.working().iter().map(load).collect());
        let now = self.traffic.now();
        self.queue.push(now + feedback.delay, Event::Report);
        self.queue.push(now + feedback.interval, Event::Measure);
    }

    fn arrive(&mut self) {
        let world = self.world;
        let start = self.traffic.now();
        // All draws of a flow come from one place, whatever becomes of it.
        let id = self.rng.random::<u64>();
        let duration = world.durations.sample(&mut self.rng);
        let size = world.sizes.sample(&mut self.rng);
        let packets =
            ((size * world.packets_per_kb) as u64).saturating_add(1).min(world.max_packets);
        let counted = start >= world.warmup;
        let row = self.method.row_of(id);
        let end = start + duration;
        let new = NewFlow { id, start, end, packets, row, counted };
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

    /// A first packet: of a new flow, or of one whose server is gone.
    fn place(&mut self, slot: u32) -> bool {
        let flow = self.traffic.refer(slot);
        let placed = self.method.first(flow, &mut self.traffic, &mut self.effects);
        if let Some(Placed { server, echo }) = placed {
            self.traffic.give(slot, server);
            let flow = self.traffic.flow_mut(slot);
            (flow.goes, flow.echo) = (server, echo);
            self.look(slot);
        }
        self.follow_up();
        placed.is_some()
    }

    /// The pending packet of a flow is sent.
    fn packet(&mut self, slot: u32) {
        self.traffic.send_pending(slot);
        let owner = self.traffic.flow(slot).owner;
        if owner == NOBODY {
            self.place(slot);
            return;
        }
        let flow = self.traffic.refer(slot);
        let route = self.method.packet(flow, &mut self.traffic, &mut self.effects);
        if route.end(owner) != owner {
            self.wrong(slot, 1);
        }
        self.traffic.flow_mut(slot).takes(route);
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
        let owner = self.traffic.flow(slot).owner;
        if owner == NOBODY {
            return;
        }
        let probe = self.method.probe(self.traffic.refer(slot));
        if probe.route.end(owner) != owner {
            self.traffic.advance(slot, self.traffic.now());
        }
        self.traffic.flow_mut(slot).takes(probe.route);
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
            self.method.lost(self.traffic.refer(slot), &mut self.traffic);
            self.traffic.orphan(slot);
            self.await_packet(slot);
        }
    }

    fn finish(&mut self, slot: u32) {
        if self.traffic.flow(slot).owner != NOBODY {
            self.method.end(self.traffic.refer(slot), &mut self.traffic);
        }
        self.traffic.remove(slot);
    }

    fn apply_changes(&mut self) {
        self.method.change(&self.changes, &mut self.traffic, &mut self.effects);
        self.changes.clear();
        self.follow_up();
    }
}
