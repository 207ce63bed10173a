//! Policies, eviction and hysteresis, over an emulated card.

use std::time::Duration;
use weir_offload::emulated::{Delay, Nic, Profile};
use weir_offload::{Choice, Offload, Queue, Rules, Setup, Target, Wish};
use weir_steering::BackendId;
use weir_wire::{FlowKey, Protocol};

const MS: Duration = Duration::from_millis(1);

fn flow(number: u16) -> FlowKey {
    let from = ([10, 0, 0, 1], 1024 + number).into();
    FlowKey::new(from, ([10, 9, 0, 1], 80).into(), Protocol::Tcp)
}

fn target(backend: u16) -> Target {
    Target { backend: BackendId::of(backend), incarnation: 1 }
}

/// A card, its rules, and flows of which number `n` lives at backend `n % backends`.
struct World {
    offload: Offload<Nic<u16>>,
    now: u64,
    backends: u16,
}

impl World {
    fn new(profile: Profile, setup: Setup, backends: u16) -> Self {
        Self { offload: Offload::new(Nic::new(profile, 7), setup, 7), now: 0, backends }
    }

    fn home(&self, number: u16) -> Target {
        target(number % self.backends)
    }

    /// Packets of a flow come in. Returns how many a trusted queue has led.
    fn packets(&mut self, number: u16, packets: u32) -> u32 {
        let mut led = 0;
        for _ in 0..packets {
            let queue = self.offload.card().lead(&flow(number));
            let home = self.home(number);
            match self.offload.trusted(queue) {
                Some(to) => {
                    assert_eq!(to, home);
                    led += 1;
                    if self.offload.sample(1).is_some() {
                        self.offload.used(&flow(number), self.now);
                    }
                }
                None => {
                    if let Wish::Yes(packets) = self.offload.wish(number.into()) {
                        self.offload.offer(&flow(number), home, packets, self.now);
                    }
                }
            }
        }
        led
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1;
            self.offload.card().advance(self.now as u32 * MS);
            let backends = self.backends;
            self.offload
                .tick(self.now, &mut |flow| Some(target((flow.src_port - 1024) % backends)));
            let queues = self.offload.card().limits().queues;
            (0..queues).for_each(|queue| self.offload.polled(Queue(queue), 0, true));
        }
    }

    fn has(&self, number: u16) -> bool {
        self.offload.ledger().of_flow(&flow(number)).is_some()
    }
}

fn card(rules: usize, queues: u16) -> Profile {
    Profile { delay: Delay::Fixed(MS), ..Profile::sound(rules, queues) }
}

const SETUP: Setup = Setup {
    choice: Choice::All,
    hysteresis: 2,
    stay: 100,
    window: 100,
    idle: 1_000,
    audit: 50,
    patience: 20,
    sample: 1,
};

#[test]
fn all_get_a_rule_until_the_table_is_full() {
    let mut world = World::new(card(10, 5), SETUP, 4);
    for number in 0..15 {
        assert_eq!(world.packets(number, 1), 0);
    }
    world.pass(2);
    let ruled = (0..15).filter(|number| world.has(*number)).count();
    assert_eq!((ruled, world.offload.counts().full), (10, 5));
    assert_eq!((0..15).map(|number| world.packets(number, 10)).sum::<u32>(), 100);
    // By packets, as the software does not know who has come before.
    assert_eq!(world.offload.counts().full, 55);
    // A connection ends: its place is another's.
    world.offload.ended(&flow(3), world.now);
    world.pass(2);
    assert!(!world.has(3));
    world.packets(14, 1);
    world.pass(2);
    assert!(world.has(14) && world.packets(14, 5) == 5);
    assert_eq!(world.offload.counts().ended, 1);
}

/// Two policies that find the heavy connections: these have the rules in the end, and those that are alike do not
/// take each other's places.
#[test]
fn heavy_connections_take_the_places_of_light_ones() {
    for choice in [
        Choice::Heavy { width: 1024, least: 4 },
        Choice::Sampled { one_in: 2, least: 2, flows: 100 },
    ] {
        let mut world = World::new(card(4, 5), Setup { choice, ..SETUP }, 4);
        for number in 0..4 {
            world.packets(number, 20);
        }
        world.pass(5);
        assert_eq!(world.offload.ledger().rules(), 4, "{choice:?}");
        // Others send as much: nobody goes for them.
        for _ in 0..30 {
            (0..8).for_each(|number| {
                world.packets(number, 10);
            });
            world.pass(10);
        }
        assert_eq!(world.offload.counts().outweighed, 0, "{choice:?}");
        assert!((0..4).all(|number| world.has(number)), "{choice:?}");
        // And then ten times as much.
        for _ in 0..60 {
            (0..4).for_each(|number| {
                world.packets(number, 10);
            });
            (4..8).for_each(|number| {
                world.packets(number, 100);
            });
            world.pass(10);
        }
        assert!((4..8).all(|number| world.has(number)), "{choice:?}");
        assert_eq!(world.offload.counts().outweighed, 4, "{choice:?}");
        assert!(world.packets(5, 10) == 10 && world.packets(1, 10) == 0, "{choice:?}");
    }
}

/// One connection that is worth a place has one other go for it, however many of its packets find the table full
/// before the card has answered.
#[test]
fn a_heavy_connection_takes_one_place() {
    for choice in [
        Choice::Heavy { width: 1024, least: 4 },
        Choice::Sampled { one_in: 2, least: 2, flows: 100 },
    ] {
        let mut world = World::new(card(8, 5), Setup { choice, ..SETUP }, 4);
        for number in 0..8 {
            world.packets(number, 20);
        }
        world.pass(5);
        for _ in 0..30 {
            (0..8).for_each(|number| {
                world.packets(number, 10);
            });
            world.pass(10);
        }
        assert_eq!(world.offload.ledger().rules(), 8, "{choice:?}");
        world.packets(8, 1_000);
        assert_eq!(world.offload.counts().outweighed, 1, "{choice:?}");
        world.pass(2);
        world.packets(8, 20);
        world.pass(2);
        assert_eq!(world.packets(8, 5), 5, "{choice:?}");
        let others = (0..8).filter(|number| world.has(*number)).count();
        assert_eq!(others, 7, "{choice:?}: the others keep theirs");
    }
}

/// A rule of which nothing is seen goes, by samples of the queue and by the card's own counts.
#[test]
fn a_rule_that_is_not_used_goes() {
    for counts in [false, true] {
        let mut setup = SETUP;
        setup.sample = if counts { 0 } else { 1 };
        let mut world = World::new(Profile { counts, ..card(4, 5) }, setup, 4);
        (0..2).for_each(|number| {
            world.packets(number, 1);
        });
        for _ in 0..30 {
            world.pass(50);
            world.packets(0, 3);
        }
        assert!(world.has(0) && !world.has(1), "counts: {counts}");
        assert_eq!(world.offload.counts().idle, 1);
    }
}

/// More backends than queues: some get none, and are served by the software; a backend that is gone gives its
/// queue to another, as soon as the card holds no rule to it.
#[test]
fn a_queue_is_another_backends_when_nothing_leads_to_it() {
    let mut world = World::new(card(10, 3), SETUP, 3);
    (0..3).for_each(|number| {
        world.packets(number, 1);
    });
    world.pass(2);
    assert_eq!((world.has(0), world.has(1), world.has(2)), (true, true, false));
    assert_eq!(world.offload.counts().no_queue, 1);
    let queue = world.offload.ledger().queue_of(target(0)).expect("it has one");
    world.offload.retire(target(0), world.now);
    assert_eq!(
        (world.offload.trusted(queue), world.offload.ledger().bound(queue)),
        (None, Some(target(0)))
    );
    assert_eq!(world.packets(2, 1), 0);
    assert!(!world.has(2));
    world.pass(2);
    world.packets(2, 1);
    world.pass(2);
    assert_eq!(world.offload.trusted(queue), Some(target(2)));
    assert_eq!(world.packets(2, 4), 4);
}

/// With client affinity one connection that begins may move all of its client at the service: their rules are in
/// doubt, and nobody else's.
#[test]
fn a_clients_rules_are_looked_at_together() {
    let mut world = World::new(card(10, 5), SETUP, 4);
    let to = |port: u16| ([10, 9, 0, 1], port).into();
    let of = |last: u8, from: u16, port: u16| {
        FlowKey::new(([10, 0, 0, last], from).into(), to(port), Protocol::Tcp)
    };
    let (its, others) =
        ([of(1, 0, 80), of(1, u16::MAX, 80)], [of(1, 5, 79), of(1, 5, 81), of(2, 5, 80)]);
    for (backend, flow) in its.iter().chain(&others).enumerate() {
        // Each at a backend of its own, as far as there are queues: what is in doubt makes no other one wait.
        world.offload.offer(flow, target(backend.min(3) as u16), 1, 0);
    }
    let doubts = |world: &World, flows: &[FlowKey]| -> Vec<bool> {
        let ledger = world.offload.ledger();
        flows.iter().map(|flow| ledger.of_flow(flow).expect("it has a rule").1.doubt).collect()
    };
    world.offload.look_at_client(&of(1, 700, 80), 0, &mut |_| None);
    assert_eq!(doubts(&world, &its), [true; 2]);
    assert_eq!(doubts(&world, &others), [false; 3]);
    assert_eq!(world.offload.counts().doubted, 2);
    // What the software says as they do is left alone.
    world.offload.look_at_client(&of(2, 9, 80), 0, &mut |_| Some(target(3)));
    assert_eq!(doubts(&world, &others), [false; 3]);
}

/// What the card loses is asked for again, and a rule that is not what the software says is noticed.
#[test]
fn lost_commands_are_given_again() {
    let profile = Profile { lost: 0.5, unanswered: 0.2, ..card(50, 5) };
    let mut world = World::new(profile, SETUP, 4);
    for _ in 0..200 {
        (0..50).for_each(|number| {
            world.packets(number, 1);
        });
        world.pass(10);
    }
    let led = (0..50).filter(|number| world.packets(*number, 1) == 1).count();
    assert!(led > 20, "{led} of 50 are led");
    assert!(world.offload.counts().again > 10);
    // The software says something else of all: no queue leads any until the card has said that its rules went.
    world.backends = 3;
    let all: Vec<u16> = (0..50).collect();
    world.offload.look_at_all(world.now, &mut |flow| Some(target((flow.src_port - 1024) % 3)));
    for _ in 0..300 {
        all.iter().for_each(|number| {
            world.packets(*number, 1);
        });
        world.pass(10);
    }
    assert!(world.offload.counts().doubted > 10);
    let led = (0..50).filter(|number| world.packets(*number, 1) == 1).count();
    assert!(led > 20, "{led} of 50 are led to where they live now");
}
