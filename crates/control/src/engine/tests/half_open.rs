//! Floods of SYNs: half-open connections have a budget of their own, and take nothing from others.

use super::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Connections that a service may have.
const STATES: u32 = 5_000;
/// Half-open ones beside them.
const HALF_OPEN: u32 = 2_000;

fn world() -> (World, Arc<AtomicU32>) {
    world_of(STATES, HALF_OPEN)
}

/// With these limits.
fn world_of(states: u32, half_open: u32) -> (World, Arc<AtomicU32>) {
    let memory = SoftMemory::new(100_000, 1 << 14, 64);
    let mut world = World::over(memory, 1, |config| {
        config.limits.states_per_service = states;
        config.limits.half_open_flows = half_open;
    });
    let clock = Arc::new(AtomicU32::new(1_000));
    let read = clock.clone();
    world.engine.clock = Box::new(move || read.load(Ordering::Relaxed));
    (world, clock)
}

impl World {
    /// New connections: a SYN, and what follows the answer to it.
    fn connect(&mut self, clients: std::ops::Range<u32>) {
        self.start(0, clients.clone());
        for client in clients {
            let frame = Frame::new(flow(0, client)).tcp_flags(TcpFlags::ACK).build();
            assert!(matches!(self.engine.plane.process(&frame), Outcome::Forwarded(_)));
        }
    }

    /// SYNs from addresses that nobody has.
    fn flood(&mut self, rng: &mut ChaCha8Rng, syns: u32) {
        for _ in 0..syns {
            let address = 0x6000_0000u32 | rng.random_range(0..1 << 28);
            let from = (address.to_be_bytes(), rng.random());
            let flow = FlowKey::new(from.into(), ([10, 0, 0, 1], 80).into(), Protocol::Tcp);
            let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
            assert!(matches!(self.engine.plane.process(&frame), Outcome::Forwarded(_)));
        }
    }

    /// A share of these flows, which nobody remembers, has moved as `own` says, and hardly one of them otherwise.
    fn moved(
        &mut self,
        flows: &mut [(FlowKey, BackendId)],
        share: f64,
        own: impl Fn(BackendId, BackendId) -> bool,
    ) {
        let (mut moved, mut otherwise) = (0u32, 0u32);
        for (flow, at) in &mut *flows {
            let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
            let Outcome::Forwarded(to) = self.engine.plane.process(&frame) else {
                panic!("{flow}")
            };
            if to != *at {
                *(if own(*at, to) { &mut moved } else { &mut otherwise }) += 1;
            }
            *at = to;
        }
        let [moved, otherwise] = [moved, otherwise].map(|n| f64::from(n) / flows.len() as f64);
        println!("{moved:.4} moved, {otherwise:.4} otherwise; the share is {share:.4}");
        assert!((moved - share).abs() < 0.04, "{moved} instead of {share}");
        assert!(otherwise < 0.025, "{otherwise}");
    }

    fn known_of(&self, clients: std::ops::Range<u32>) -> usize {
        let service = &self.engine.services["a"];
        clients.filter(|n| service.known(&StateKey::of_flow(&flow(0, *n))).is_some()).count()
    }
}

#[test]
fn a_flood_takes_nothing_from_connections() {
    let (mut world, clock) = world();
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    world.connect(0..3_000);
    let (mut next, mut sent) = (3_000, 0);
    for round in 0..40u32 {
        for _ in 0..4 {
            // Those that begin during the flood are as safe as those before it.
            world.connect(next..next + 10);
            next += 10;
            world.flood(&mut rng, 1_000);
            sent += 1_000;
            world.engine.drain_reports().expect("nothing is refused");
        }
        clock.fetch_add(1, Ordering::Relaxed);
        if round % 10 == 9 {
            world.engine.sweep().expect("nothing is refused");
        }
        let drain = round % 2 == 0;
        world.ask(|reply| Command::Drain("a".into(), "b2".into(), drain, reply)).expect("done");
        world.engine.upkeep(&mut Timers::new());
        for (flow, backend) in &world.live {
            let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
            let went = world.engine.plane.process(&frame);
            assert_eq!(went, Outcome::Forwarded(*backend), "{flow} in round {round}");
        }
        assert_eq!(world.known_of(0..next), next as usize);
        let half_open = &world.engine.services["a"].half_open;
        assert!(half_open.len() <= HALF_OPEN as usize, "{}", half_open.len());
    }
    let service = &world.engine.status().expect("readable").services[0];
    assert_eq!(service.refused_states, 0);
    assert!(service.forgotten_half_open >= sent - 2 * u64::from(HALF_OPEN), "{service:?}");
    let most = (next + HALF_OPEN) as usize + 500;
    assert!(service.states <= most, "{} of {most}", service.states);
    let said = world.warnings();
    assert!(said.iter().any(|said| said.contains("limits.half_open_flows")), "{said:?}");
}

/// Marks that were made before the service's first period of activity, by another key.
#[test]
fn a_new_hash_key_before_the_first_sweep_loses_no_connection() {
    let (mut world, _) = world();
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    world.connect(0..300);
    world.engine.drain_reports().expect("nothing is refused");
    let service = world.engine.services.get_mut("a").expect("there");
    let key = service.hash_key();
    // As after a cycle: a builder of the same states that has published nothing.
    let mut config = service.service_config(1024, 1_000);
    config.nonce ^= 1 << 40;
    let mut builder = service.configured.method.builder(&config, None);
    service.builder.each_state(&mut |state, known| {
        builder.adopt(*state, known).expect("keys differ");
    });
    service.builder = Counted::new(builder, 1);
    service.count_prefixes();
    world.drain("a", "b1").expect("nothing is refused");
    assert_ne!(world.engine.services["a"].hash_key(), key);
    for _ in 0..10 {
        world.flood(&mut rng, 1_000);
        world.engine.drain_reports().expect("nothing is refused");
    }
    assert!(world.engine.services["a"].half_open.forgotten > 5_000);
    assert_eq!(world.known_of(0..300), 300);
}

#[test]
fn open_connections_beyond_their_limit_are_refused_and_take_nothing_from_others() {
    let (mut world, _) = world();
    world.connect(0..STATES);
    world.engine.sweep().expect("nothing is refused");
    (0..3).for_each(|_| world.engine.look_at_half_open().expect("nothing is refused"));
    let flows = world.live.clone();
    world.connect(STATES..STATES + 50);
    world.engine.drain_reports().expect("nothing is refused");
    let service = &world.engine.status().expect("readable").services[0];
    assert_eq!((service.refused_states, service.states), (50, STATES as usize));
    world.live = flows;
    world.drain("a", "b1").expect("nothing is refused");
    world.check();
}

/// Whom nobody remembers, of half-open connections and of open ones, a table leads on to the slot that it had: with that
/// go those of which a change of the pool gives the slot to another backend, and no others but the few whose cells a
/// state shares that gets another slot. So there are few states here. A table that is built for nothing moves none.
#[test]
fn what_is_beyond_the_limits_moves_with_the_pool_and_not_else() {
    const OPEN: u32 = 100;
    const FLOOD: u32 = 4_000;
    const BEYOND: u32 = 4_000;
    let (mut world, _) = world_of(OPEN, 50);
    for first in (0..FLOOD).step_by(500) {
        world.start(0, first..first + 500);
        world.engine.drain_reports().expect("nothing is refused");
    }
    world.connect(FLOOD..FLOOD + OPEN);
    world.engine.drain_reports().expect("nothing is refused");
    world.engine.sweep().expect("nothing is refused");
    (0..3).for_each(|_| world.engine.look_at_half_open().expect("nothing is refused"));
    world.engine.update("a").expect("nothing is refused");
    world.connect(FLOOD + OPEN..FLOOD + OPEN + BEYOND);
    world.engine.drain_reports().expect("nothing is refused");
    let service = &world.engine.status().expect("readable").services[0];
    assert!(service.refused_states >= u64::from(BEYOND), "{service:?}");
    assert!(service.states <= 200, "{service:?}");
    let service = &world.engine.services["a"];
    let is_known = |flow: &FlowKey| service.known(&StateKey::of_flow(flow)).is_some();
    let (known, others): (HashMap<_, _>, HashMap<_, _>) =
        std::mem::take(&mut world.live).into_iter().partition(|(flow, _)| is_known(flow));
    world.live = known;
    let mut others: Vec<_> = others.into_iter().collect();
    assert!(others.len() >= (FLOOD + BEYOND) as usize - 100, "{}", others.len());
    // The update above was made with cells of the connections that have come, of which two may have closed a cycle.
    for (flow, at) in &mut others {
        let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
        let Outcome::Forwarded(to) = world.engine.plane.process(&frame) else { panic!("{flow}") };
        *at = to;
    }
    let before = others.clone();
    world.engine.update("a").expect("nothing is refused");
    world.moved(&mut others, 0.0, |_, _| false);
    assert_eq!(others, before, "nothing has changed");
    let id = |world: &World, name: &str| world.engine.services["a"].member(name).expect("there").id;

    // A third becomes a half.
    let weight = |reply| Command::Weight("a".into(), "b2".into(), 2, reply);
    world.ask(weight).expect("nothing is refused");
    let b2 = id(&world, "b2");
    world.moved(&mut others, 1.0 / 6.0, |_, to| to == b2);
    world.check();
    let add = |reply| Command::Add("a".into(), Box::new(backend(0, 4)), reply);
    world.ask(add).expect("there is room");
    let b4 = id(&world, "b4");
    world.moved(&mut others, 0.2, |_, to| to == b4);
    world.check();
    world.drain("a", "b3").expect("nothing is refused");
    let b3 = id(&world, "b3");
    world.moved(&mut others, 0.2, |from, _| from == b3);
    world.check();
}

/// Else each restart would make a flood's states those of open connections, for hours.
#[test]
fn what_was_half_open_before_a_restart_is_so_after_it() {
    let (mut world, _) = world();
    world.connect(0..100);
    world.engine.drain_reports().expect("nothing is refused");
    world.engine.sweep().expect("nothing is refused");
    (0..3).for_each(|_| world.engine.look_at_half_open().expect("nothing is refused"));
    // Opened, and not looked at yet; never opened; and never opened since the log was made anew.
    world.connect(100..200);
    world.start(0, 200..300);
    world.engine.drain_reports().expect("nothing is refused");
    let mut world = world.restart();
    assert_eq!(world.known_of(0..300), 300);
    let now = Arc::new(AtomicU32::new(world.engine.now()));
    let read = now.clone();
    world.engine.clock = Box::new(move || read.load(Ordering::Relaxed));
    for _ in 0..8 {
        world.engine.sweep().expect("nothing is refused");
        world.engine.look_at_half_open().expect("nothing is refused");
        now.fetch_add(10, Ordering::Relaxed);
    }
    assert_eq!((world.known_of(0..200), world.known_of(200..300)), (200, 0));
    let service = world.engine.services.get_mut("a").expect("there");
    service.rewrite_log(1).expect("there is room");
    let world = world.restart();
    assert_eq!((world.known_of(0..200), world.known_of(200..300)), (200, 0));
}
