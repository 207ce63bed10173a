//! What happens between the steps of updates: packets come at any time, and so does what health checks say.

use super::*;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::{Arc, Mutex};

/// Connections that are checked each time.
const LOOKS: usize = 8;

/// The clients, and the health checks.
struct Traffic {
    rng: ChaCha8Rng,
    sender: Sender,
    /// What health checks call the backends, and what they have said last.
    targets: Vec<(u64, BackendId, bool)>,
    live: Vec<(FlowKey, BackendId)>,
    next: u32,
    packets: usize,
    failures: usize,
    /// Connections that began while a backend was down that the checks had just found so.
    beside: usize,
}

impl Traffic {
    fn is_up(&self, backend: BackendId) -> bool {
        self.targets.iter().any(|(_, id, up)| *id == backend && *up)
    }

    /// Connections end whose backend is down, as far as packets are told; the checks may have thought better of it.
    fn bury(&mut self, plane: &Soft) {
        let is_up = |id| plane.backend(id).is_some_and(|there| there.up);
        self.live.retain(|(_, backend)| is_up(*backend));
    }

    /// What goes on before a step of the control plane.
    fn goes_on(&mut self, plane: &mut Soft) {
        self.bury(plane);
        for _ in 0..self.rng.random_range(0..4) {
            let flow = flow(0, self.next);
            self.next += 1;
            let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
            let Outcome::Forwarded(backend) = plane.process(&frame) else { continue };
            // One that goes to a backend that is down is lost; who is not told of that yet sends some there.
            if self.is_up(backend) && plane.backend(backend).is_some_and(|there| there.up) {
                self.beside += usize::from(self.targets.iter().any(|(.., up)| !up));
                self.live.push((flow, backend));
            }
        }
        for _ in 0..LOOKS {
            let Some(&one) = self.live.choose(&mut self.rng) else { break };
            let flags = *[TcpFlags::ACK, TcpFlags::SYN].choose(&mut self.rng).expect("two");
            self.check(plane, one, flags);
        }
        if self.rng.random_bool(0.15) {
            self.changes_its_mind();
        }
    }

    /// The health check of a backend. Two are always up.
    fn changes_its_mind(&mut self) {
        let up = self.targets.iter().filter(|(.., up)| *up).count();
        let which = self.rng.random_range(0..self.targets.len());
        let (id, backend, is_up) = self.targets[which];
        if is_up && up <= 2 {
            return;
        }
        let at = Instant::now();
        let change = Transition { id, up: !is_up, spoken: None, detail: "as it is".into(), at };
        if self.sender.try_send(Command::Health(vec![change])).is_err() {
            return;
        }
        self.targets[which].2 = !is_up;
        if is_up {
            self.failures += 1;
            self.live.retain(|(_, at)| *at != backend);
        }
    }

    fn check(&mut self, plane: &mut Soft, (flow, backend): (FlowKey, BackendId), flags: TcpFlags) {
        let went = plane.process(&Frame::new(flow).tcp_flags(flags).build());
        self.packets += 1;
        assert_eq!(went, Outcome::Forwarded(backend), "{flow}, {flags:?}, packet {}", self.packets);
    }
}

/// Pools change, looks at what is idle come, and before each single step that the control plane takes connections
/// begin, go on, repeat their SYN, and backends fail and come back: nobody is moved whose backend is up.
#[test]
fn packets_and_failures_come_between_any_two_steps() {
    let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut world = World::new(1);
    for n in 4..9 {
        world
            .ask(|reply| Command::Add("a".into(), Box::new(backend(0, n)), reply))
            .expect("it is new");
    }
    let (sender, mut commands) = channel(64).expect("descriptors");
    world.engine.urgent = commands.urgent();
    let service = &world.engine.services["a"];
    let targets = service.pool.iter().map(|member| (service.target(member.id), member.id, true));
    let traffic = Arc::new(Mutex::new(Traffic {
        rng: ChaCha8Rng::seed_from_u64(rng.random()),
        sender,
        targets: targets.collect(),
        live: Vec::new(),
        next: 0,
        packets: 0,
        failures: 0,
        beside: 0,
    }));
    let goes_on = Arc::clone(&traffic);
    world.engine.plane.between = Between::steps(move |plane: &mut Soft| {
        goes_on.lock().expect("whole").goes_on(plane);
    });
    let names: Vec<String> = (1..9).map(|n| format!("b{n}")).collect();
    for _ in 0..400 {
        let name = names.choose(&mut rng).expect("some").clone();
        match rng.random_range(0..6) {
            0 => drop(world.drain("a", &name)),
            1 | 2 => drop(world.ask(|reply| Command::Drain("a".into(), name, false, reply))),
            3 => {
                let weight = rng.random_range(1..9);
                drop(world.ask(|reply| Command::Weight("a".into(), name, weight, reply)));
            }
            4 => world.engine.sweep().expect("nothing is refused"),
            _ => world.upkeep(),
        }
        if rng.random_bool(0.5) {
            world.upkeep();
        }
        let mut traffic = traffic.lock().expect("whole");
        traffic.bury(&world.engine.plane);
        let live = traffic.live.clone();
        for one in live {
            let flags = if traffic.rng.random() { TcpFlags::ACK } else { TcpFlags::SYN };
            traffic.check(&mut world.engine.plane, one, flags);
        }
        // Some end.
        let gone = traffic.live.len().saturating_sub(500);
        traffic.live.drain(..gone);
    }
    let Traffic { packets, failures, beside, .. } = &*traffic.lock().expect("whole");
    println!("{packets} packets, {failures} failures, {beside} connections began beside one");
    assert!(*packets > 50_000 && *failures > 100 && *beside > 1_000);
}

/// Rounds after which an update ends, whatever is pending.
const ROUNDS: u64 = 4;

/// Flows that begin at every step, some of which no table of the update agrees with: it ends after its rounds, packets
/// follow its table and ask for what is pending, and it is tried again. When no more flows begin it is completed.
#[test]
fn an_update_that_flows_outrun_is_tried_again() {
    let mut world = World::new(1);
    world.start(0, 0..300);
    let (sender, mut commands) = channel(4).expect("descriptors");
    world.engine.urgent = commands.urgent();
    let begun: Arc<Mutex<Vec<(FlowKey, BackendId)>>> = Arc::default();
    let begins = Arc::clone(&begun);
    world.engine.plane.between = Between::steps(move |plane: &mut Soft| {
        let mut begun = begins.lock().expect("whole");
        for _ in 0..20 {
            let flow = flow(0, 1_000 + begun.len() as u32);
            let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
            let Outcome::Forwarded(backend) = plane.process(&frame) else { panic!("{flow}") };
            begun.push((flow, backend));
        }
    });
    // A backend is found down that all tables of an update lead to which has begun: new flows are kept from it.
    let fail = |world: &World, name: &str| {
        let service = &world.engine.services["a"];
        let backend = service.member(name).expect("there").id;
        let (id, at) = (service.target(backend), Instant::now());
        let down = Transition { id, up: false, spoken: None, detail: "no answer".into(), at };
        assert!(sender.try_send(Command::Health(vec![down])).is_ok());
        backend
    };
    let shown = |world: &World| world.engine.plane.asked(Operation::Show);
    let asks = |world: &World| {
        let number = world.engine.services["a"].number;
        world.engine.plane.tables[&number].header().flags().has(Flags::PENDING)
    };
    let unfinished = |world: &World| {
        let words = "flows that started meanwhile are still pending";
        let said = world.warnings();
        let told = said.iter().any(|one| one.starts_with("service a: ") && one.contains(words));
        assert!(told, "{said:?}");
        assert!(asks(world), "else those would go elsewhere");
        // A backend has failed since it began: it need not wait.
        let trouble = world.engine.services["a"].trouble.as_ref().expect("it is tried again");
        assert!(trouble.again <= Instant::now());
    };
    let check = |world: &mut World, down: &[BackendId]| {
        world.live.extend(begun.lock().expect("whole").iter().copied());
        world.live.retain(|_, backend| !down.contains(backend));
        world.check();
    };

    let mut down = vec![fail(&world, "b1")];
    let before = shown(&world);
    let weight = |reply| Command::Weight("a".into(), "b3".into(), 2, reply);
    world.ask(weight).expect("its table is published");
    assert_eq!(shown(&world) - before, ROUNDS);
    unfinished(&world);
    check(&mut world, &down);

    down.push(fail(&world, "b2"));
    let before = shown(&world);
    world.engine.upkeep(&mut Timers::new());
    assert_eq!(shown(&world) - before, ROUNDS);
    unfinished(&world);
    check(&mut world, &down);

    world.engine.plane.between = Between::default();
    world.engine.upkeep(&mut Timers::new());
    assert_eq!(world.warnings(), Vec::<String>::new());
    assert!(world.engine.services["a"].trouble.is_none() && !asks(&world));
    check(&mut world, &down);
    assert!(world.start(0, 100_000..100_100).iter().all(|backend| !down.contains(backend)));
}
