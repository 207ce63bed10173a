//! HNLB beside another method: an *emulated* card leads the packets of connections that have a rule to their
//! backend, and the method steers the others.

use super::MethodError;
use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges, Method, NOBODY, Placed, Probe, Route};
use crate::world::World;
use std::collections::HashMap;
use std::time::Duration;
use weir_offload::emulated::{Delay, Nic, Profile};
use weir_offload::{Choice, Location, Offload, Queue, Setup, Target, Wish};
use weir_steering::BackendId;
use weir_wire::FlowKey;

/// The card's part of a [`Hnlb`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Card {
    /// Rules that it holds.
    pub rules: usize,
    /// Its receive queues, the software's included.
    pub queues: u16,
    /// From a command until it has been carried out, on average; exponentially distributed.
    pub delay: Duration,
    /// Insertions and deletions that it takes in a second.
    pub rate: Option<u32>,
    /// Which connections get a rule.
    pub choice: Choice,
}

/// A method beside an emulated card, at one balancer.
///
/// Every packet is played, since each counts for the policy, or is led by a rule.
pub struct Hnlb {
    beside: Box<dyn Method>,
    offload: Offload<Nic<()>>,
    /// Flows that a rule was asked for, as the method knows them.
    flows: HashMap<FlowKey, FlowRef>,
    /// Uses of each server's number so far.
    incarnations: Vec<u32>,
    /// Packets before this are not counted, in seconds.
    warm_up: f64,
    packets: u64,
    led: u64,
}

fn target(incarnations: &[u32], server: u16) -> Option<Target> {
    let incarnation = *incarnations.get(usize::from(server))?;
    Some(Target { backend: BackendId::new(server)?, incarnation })
}

impl Hnlb {
    /// Beside a method, at the only balancer of a world.
    ///
    /// # Errors
    ///
    /// [`MethodError::OneBalancer`], if there are several: each has a card of its own.
    pub fn new(beside: Box<dyn Method>, card: Card, world: &World) -> Result<Self, MethodError> {
        if world.balancers > 1 {
            return Err(MethodError::OneBalancer);
        }
        let profile = Profile {
            delay: Delay::Exponential { least: card.delay / 2, mean: card.delay / 2 },
            rate: card.rate,
            wavering: Duration::ZERO,
            ..Profile::sound(card.rules, card.queues)
        };
        // The simulated software forgets nobody, so rules need not be held against it often.
        let setup = Setup { choice: card.choice, sample: 16, ..Setup::default() };
        let servers = world.server_weights().len();
        Ok(Self {
            beside,
            offload: Offload::new(Nic::new(profile, world.seed), setup, world.seed),
            flows: HashMap::new(),
            incarnations: vec![1; servers],
            warm_up: world.warmup,
            packets: 0,
            led: 0,
        })
    }

    /// Time has passed. Returns it in milliseconds.
    fn pass(&mut self, traffic: &Traffic) -> u64 {
        let now = Duration::from_secs_f64(traffic.now());
        self.offload.card().advance(now);
        let milliseconds = now.as_millis() as u64;
        let Self { beside, offload, flows, incarnations, .. } = self;
        offload.tick(milliseconds, &mut |flow| {
            target(incarnations, beside.probe(*flows.get(flow)?).route.server)
        });
        // All that was in the queues has been played.
        if offload.ledger().is_draining() {
            (0..offload.ledger().queues()).for_each(|at| offload.polled(Queue(at), 0, true));
        }
        milliseconds
    }

    fn gone(&mut self, flow: FlowRef, traffic: &Traffic, seen: bool) {
        let now = self.pass(traffic);
        let key = flow.key();
        if seen {
            self.offload.ended(&key, now);
        }
        self.flows.remove(&key);
    }
}

impl Method for Hnlb {
    fn rows(&self) -> usize {
        self.beside.rows()
    }

    fn row_of(&self, id: u64) -> u32 {
        self.beside.row_of(id)
    }

    fn first(
        &mut self,
        flow: FlowRef,
        traffic: &mut Traffic,
        effects: &mut Effects,
    ) -> Option<Placed> {
        let now = self.pass(traffic);
        let placed = self.beside.first(flow, traffic, effects);
        let at = placed.and_then(|placed| target(&self.incarnations, placed.server));
        self.offload.started(&flow.key(), at, now);
        placed
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        Probe { effect: true, ..self.beside.probe(flow) }
    }

    fn packet(&mut self, flow: FlowRef, traffic: &mut Traffic, effects: &mut Effects) -> Route {
        let now = self.pass(traffic);
        let counts = traffic.now() >= self.warm_up;
        self.packets += u64::from(counts);
        let key = flow.key();
        let queue = self.offload.card().lead(&key);
        if let Some(to) = self.offload.trusted(queue) {
            self.led += u64::from(counts);
            if self.offload.sample(1).is_some() {
                self.offload.used(&key, now);
            }
            return Route::to(to.backend.get());
        }
        let route = match self.beside.probe(flow) {
            Probe { route, effect: false } => route,
            _ => self.beside.packet(flow, traffic, effects),
        };
        if let Wish::Yes(packets) = self.offload.wish(flow.id)
            && route.second == NOBODY
            && let Some(at) = target(&self.incarnations, route.server)
        {
            self.offload.offer(&key, at, packets, now);
            self.flows.insert(key, flow);
        }
        route
    }

    fn end(&mut self, flow: FlowRef, traffic: &mut Traffic) {
        self.gone(flow, traffic, true);
        self.beside.end(flow, traffic);
    }

    fn lost(&mut self, flow: FlowRef, traffic: &mut Traffic) {
        self.gone(flow, traffic, false);
        self.beside.lost(flow, traffic);
    }

    fn moves(&mut self, flow: FlowRef, to: u16, traffic: &mut Traffic) {
        self.beside.moves(flow, to, traffic);
    }

    fn reports(&mut self, loads: &[(u16, u64)]) {
        self.beside.reports(loads);
    }

    fn change(&mut self, changes: &[Change], traffic: &mut Traffic, effects: &mut Effects) {
        let now = self.pass(traffic);
        self.beside.change(changes, traffic, effects);
        for change in changes {
            if let &Change::Remove(server) = change {
                if let Some(target) = target(&self.incarnations, server) {
                    self.offload.retire(target, now);
                }
                if let Some(uses) = self.incarnations.get_mut(usize::from(server)) {
                    *uses += 1;
                }
            }
        }
    }

    fn gauges(&self, traffic: &Traffic) -> Gauges {
        let rules = self.offload.ledger();
        let in_force = (0..rules.places()).filter(|&at| rules.at(Location(at as u32)).is_some());
        Gauges {
            led: self.led,
            packets: self.packets,
            rules: in_force.count(),
            ..self.beside.gauges(traffic)
        }
    }
}
