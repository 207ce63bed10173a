//! A service with each method over a plane that is only memory: flows start, the pool changes, the
//! control plane restarts, and packets of every flow go where it lives.

use super::*;
use crate::config::Vip;
use std::collections::HashSet;
use weir_plane::Verdict;

/// Services whose flows keep their backends, by their fields; and the seconds for which no flow
/// may be silent before a change is in force.
const KEEPING: &[(&str, u32)] = &[
    ("method = \"concury\"", 0),
    ("method = \"tracked\"", 0),
    ("method = \"residue\"", 0),
    ("method = \"residue\"\nrows = 512\naffinity = \"client\"", 0),
    ("method = \"jet\"", 120),
    ("method = \"jet\"\nrows = 1000\naffinity = \"client\"", 120),
    ("method = \"jet\"\nplacement = \"ring\"\nwarm_up = 30", 30),
    ("method = \"jet\"\nplacement = \"anchor\"\nrows = 4096", 120),
];

impl World {
    fn id(&self, backend: &str) -> BackendId {
        self.engine.services["a"].member(backend).expect("there").id
    }

    /// Time passes, in which every flow sends something.
    fn wait(&mut self, seconds: u32) {
        for _ in 0..4 {
            self.engine.ahead += seconds.div_ceil(3);
            self.check();
            self.upkeep();
            self.check();
        }
    }

    fn change(&mut self, command: impl FnOnce(oneshot::Sender<commands::Done>) -> Command) {
        self.ask(command).unwrap_or_else(|error| panic!("{error}"));
        self.check();
    }

    fn weight(&mut self, backend: &str, weight: u16) {
        self.change(|reply| Command::Weight("a".into(), backend.into(), weight, reply));
    }

    /// Later packets only: a first one that goes to a backend which is down is placed anew.
    pub fn check_later(&mut self) {
        for (flow, backend) in &self.live {
            let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
            let went = self.engine.plane.process(&frame);
            assert_eq!(went, Outcome::Forwarded(*backend), "{flow}");
        }
    }

    /// Another control plane over the same data plane.
    pub(super) fn restart(self) -> Self {
        let Self { mut engine, live, directory } = self;
        engine.save().expect("it can be kept");
        let (config, plane) = (engine.config.clone(), std::mem::take(&mut engine.plane));
        let ahead = engine.ahead;
        drop(engine);
        let found = Found { resumed: true, ..Found::default() };
        let mut engine = over(plane, found, &config).unwrap_or_else(|error| panic!("{error}"));
        engine.ahead = ahead;
        Self { engine, live, directory }
    }

    /// New flows, which all go to backends of these.
    fn start_at(&mut self, clients: std::ops::Range<u32>, backends: &[&str]) -> HashSet<BackendId> {
        let allowed: HashSet<BackendId> = backends.iter().map(|name| self.id(name)).collect();
        let went: HashSet<BackendId> = self.start(0, clients).into_iter().collect();
        assert!(went.is_subset(&allowed), "{went:?} where only {allowed:?} serve");
        self.check();
        went
    }

    fn lose(&mut self, backend: BackendId) {
        self.live.retain(|_, lives| *lives != backend);
    }
}

/// A control plane that dies between the end of a connection and the moment in which it would have forgotten it
/// leaves nothing behind that stays for as long as a silent connection may.
#[test]
fn what_has_ended_is_forgotten_by_the_next_process() {
    for fields in ["method = \"concury\"", "method = \"residue\""] {
        println!("{fields}");
        let mut world = World::with(1, fields);
        world.start(0, 0..100);
        world.check();
        world.upkeep();
        let ends = |world: &mut World, clients: std::ops::Range<u32>, flags| {
            for client in clients {
                let frame = Frame::new(flow(0, client)).tcp_flags(flags).build();
                assert!(matches!(world.engine.plane.process(&frame), Outcome::Forwarded(_)));
            }
            world.engine.drain_reports().unwrap();
        };
        ends(&mut world, 0..60, TcpFlags::FIN | TcpFlags::ACK);
        // These have begun again, from the same ports.
        ends(&mut world, 0..20, TcpFlags::SYN);
        ends(&mut world, 0..20, TcpFlags::ACK);
        for client in 20..60 {
            world.live.remove(&flow(0, client));
        }
        let states = |world: &World| world.engine.services["a"].builder.states();
        assert_eq!(states(&world), 100);
        world = world.restart();
        assert_eq!(states(&world), 100);
        world.check();
        for _ in 0..4 {
            world.engine.ahead += 40;
            world.check();
            world.engine.sweep().unwrap();
        }
        assert_eq!(states(&world), 60);
        // Silent ones stay.
        world.engine.ahead += 300;
        world.engine.sweep().unwrap();
        assert_eq!(states(&world), 60);
        world.drain("a", "b1").expect("it can be drained");
        world.check();
    }
}

#[test]
fn no_flow_breaks_that_need_not() {
    for &(fields, silent) in KEEPING {
        println!("{fields}");
        let mut world = World::with(1, fields);
        world.start_at(0..300, &["b1", "b2", "b3"]);
        world.change(|reply| Command::Add("a".into(), Box::new(backend(0, 4)), reply));
        world.wait(silent);
        let went = world.start_at(300..600, &["b1", "b2", "b3", "b4"]);
        assert!(went.contains(&world.id("b4")), "it gets new flows");
        world.weight("b2", 20);
        world.wait(silent);
        world.start_at(600..800, &["b1", "b2", "b3", "b4"]);
        world.drain("a", "b1").expect("it can be drained");
        world.check();
        if fields.contains("client") {
            world.wait(silent);
        }
        world.start_at(800..1_000, &["b2", "b3", "b4"]);
        world = world.restart();
        world.check();
        world.wait(silent);
        world.start_at(1_000..1_200, &["b2", "b3", "b4"]);
        // The dead one's flows go on there, if it should not be dead; new ones go elsewhere.
        let down = world.health("a", "b3", false);
        world.upkeep();
        world.check_later();
        let went = world.start(0, 1_200..1_400);
        assert!(!went.contains(&down));
        world.check_later();
        world.health("a", "b3", true);
        world.upkeep();
        world.check();
        let gone = world.id("b1");
        world.lose(gone);
        world.change(|reply| Command::Remove("a".into(), "b1".into(), reply));
        world.weight("b4", 0);
        world.wait(silent);
        let went = world.start_at(1_400..1_600, &["b2", "b3"]);
        assert_eq!(went.len(), 2);
        world.change(|reply| Command::Add("a".into(), Box::new(backend(0, 5)), reply));
        let gone = world.id("b4");
        world.lose(gone);
        world.change(|reply| Command::Remove("a".into(), "b4".into(), reply));
        world.wait(silent);
        assert_eq!(world.warnings(), Vec::<String>::new());
        assert!(world.live.len() > 500);
    }
}

/// A backend that stands by joins at once; one that nobody expected waits until all flows have
/// sent something, or breaks some if it may not wait.
#[test]
fn jet_respects_its_horizon() {
    let mut world = World::with(1, "method = \"jet\"");
    world.drain("a", "b3").expect("it stands by");
    world.start_at(0..1_000, &["b1", "b2"]);
    let tracked = world.engine.plane.memory.connections.len();
    assert!((200..=470).contains(&tracked), "{tracked}: a third of 1,000 is b3's to be");
    let status = world.engine.status().expect("readable");
    let shares = status.services[0].tracking.expect("jet has rows");
    assert!((shares.tracked_share - 1.0 / 3.0).abs() < 0.02, "{shares:?}");
    assert!((shares.avoided_share - 2.0 / 3.0).abs() < 0.02, "{shares:?}");
    let flows: Vec<FlowKey> = world.live.keys().copied().collect();
    world.ask(|reply| Command::Drain("a".into(), "b3".into(), false, reply)).expect("it serves");
    let went = world.start(0, 1_000..1_100);
    assert!(went.contains(&world.id("b3")));
    world.check();
    assert!(flows.iter().all(|flow| world.live.contains_key(flow)));

    world
        .ask(|reply| Command::Add("a".into(), Box::new(backend(0, 4)), reply))
        .expect("it can be added");
    let at = world.id("b4");
    assert!(!world.start(0, 1_100..1_200).contains(&at), "it waits");
    world.engine.ahead += 100;
    world.upkeep();
    assert!(!world.start(0, 1_200..1_300).contains(&at), "still");
    world.check();
    world.engine.ahead += 20;
    world.upkeep();
    assert!(world.start(0, 1_300..1_400).contains(&at));
    world.check();

    let mut world = World::with(1, "method = \"jet\"\nwarm_up = 0");
    world.start_at(0..2_000, &["b1", "b2", "b3"]);
    world.live.clear();
    world.start(0, 2_000..4_000);
    world
        .ask(|reply| Command::Add("a".into(), Box::new(backend(0, 4)), reply))
        .expect("it can be added");
    let at = world.id("b4");
    let moved = world.live.iter().filter(|(flow, _)| {
        let frame = Frame::new(**flow).tcp_flags(TcpFlags::ACK).build();
        world.engine.plane.process(&frame) == Outcome::Forwarded(at)
    });
    let moved = moved.count();
    assert!((400..600).contains(&moved), "{moved} of 2,000, where the paper has a quarter");
}

impl World {
    /// Connections of the connection table that have ended give their places to others.
    fn evict_ended(&mut self) {
        let live: HashSet<StateKey> = self.live.keys().map(StateKey::of_flow).collect();
        self.engine.plane.memory.connections.retain(|state, _| live.contains(&state.key));
    }

    /// A look at the connection table is due, and so is what follows from it.
    fn look_at_rows(&mut self) {
        self.engine.look_at_rows(&mut rows::Looks::due());
        self.upkeep();
        self.check();
    }

    /// The part of the flows of service a whose packets ask the connection table, and of new ones that
    /// get there.
    fn asked_and_tracked(&self) -> (f64, f64) {
        let status = self.engine.status().expect("readable");
        let shares = status.services[0].tracking.expect("jet has rows");
        (1.0 - shares.avoided_share, shares.tracked_share)
    }
}

/// Under a long churn every row comes to ask the connection table. The engine looks what is left there, and
/// packets ask for no more than the horizon demands.
#[test]
fn jet_does_not_ask_for_connections_that_are_gone() {
    for looks in [false, true] {
        let mut world = World::with(1, "method = \"jet\"\nrows = 1000\nwarm_up = 30");
        for round in 0..30 {
            let (first, name) = (round * 80, format!("b{}", 1 + round % 3));
            world.start(0, first..first + 40);
            world.drain("a", &name).expect("two are left");
            world.start(0, first + 40..first + 80);
            world.check();
            let serves = |reply| Command::Drain("a".into(), name, false, reply);
            world.ask(serves).expect("it was drained");
            world.check();
            // Half of them end.
            let mut ends = false;
            world.live.retain(|_, _| {
                ends = !ends;
                !ends
            });
            world.evict_ended();
            if looks {
                world.look_at_rows();
            }
            if round % 10 == 9 {
                world = world.restart();
                world.check();
            }
        }
        world.live.clear();
        world.evict_ended();
        world.drain("a", "b3").expect("it stands by");
        world.start(0, 10_000..10_300);
        if looks {
            world.look_at_rows();
            let (asked, tracked) = world.asked_and_tracked();
            assert!((asked - tracked).abs() < 1e-9, "{asked} ask, {tracked} track");
            assert!((asked - 1.0 / 3.0).abs() < 0.06, "{asked}: the share of b3");
        } else {
            let (asked, _) = world.asked_and_tracked();
            assert!(asked > 0.99, "{asked}");
        }
        world.check();
        assert_eq!(world.warnings(), Vec::<String>::new());
    }
}

/// A look that fails, or finds connections that live elsewhere, changes nothing.
#[test]
fn a_look_at_rows_that_is_refused_changes_nothing() {
    let mut world = World::with(1, "method = \"jet\"\nrows = 1000");
    world.drain("a", "b3").expect("it stands by");
    world.start(0, 0..600);
    world.ask(|reply| Command::Drain("a".into(), "b3".into(), false, reply)).expect("it serves");
    let (before, _) = world.asked_and_tracked();
    for operation in [Operation::Grace, Operation::LookUp] {
        world.engine.plane.refuse(operation);
        world.engine.look_at_rows(&mut rows::Looks::due());
        world.engine.plane.refuse_nothing();
        world.upkeep();
        assert_eq!(world.asked_and_tracked().0, before, "{operation:?}");
        world.check();
    }
    world.look_at_rows();
    let (asked, tracked) = world.asked_and_tracked();
    assert!(asked < before && asked > 0.05 && tracked == 0.0, "{asked} of {before}");
}

/// The table is read beside the engine: the same is found, and nothing if another table was published meanwhile.
#[test]
fn a_look_at_rows_beside_the_engine_ends_with_its_table() {
    let mut overtaken = 0;
    // Reading may be over before the engine has begun with what it does meanwhile.
    for attempt in 0..1_000 {
        let mut world = World::with(1, "method = \"jet\"\nrows = 1000");
        world.drain("a", "b3").expect("it stands by");
        world.start(0, 0..600);
        world.ask(|reply| Command::Drain("a".into(), "b3".into(), false, reply)).expect("serves");
        let (before, _) = world.asked_and_tracked();
        world.engine.plane.takes_time = true;
        world.engine.services.get_mut("a").expect("there").dirty = attempt > 0;
        let generation = world.engine.services["a"].generation;
        world.engine.look_at_rows(&mut rows::Looks::due());
        let is_other = world.engine.services["a"].generation > generation;
        world.upkeep();
        let (asked, _) = world.asked_and_tracked();
        assert!(if is_other { asked == before } else { asked < before }, "{asked} of {before}");
        world.check();
        overtaken += u32::from(is_other);
        if overtaken > 2 {
            return;
        }
    }
    panic!("no table was published while the connections were read");
}

/// An address that a service gets, or gets back, may have connections that no look saw: its rows ask before
/// packets find it there.
#[test]
fn rows_of_a_service_that_gets_an_address_ask_again() {
    let mut world = World::with(1, "method = \"jet\"\nrows = 1000");
    let before = world.engine.config.clone();
    let mut more = before.clone();
    let vips = ["10.0.0.1", "10.9.0.1"].map(|vip| vip.parse::<Vip>().expect("a VIP"));
    more.services[0].vips = vips.to_vec();
    more.services[0].vip = vips[0].address;
    world.start(0, 0..300);
    world.upkeep();
    assert_eq!(world.asked_and_tracked().0, 0.0);
    for _ in 0..2 {
        world.follow(&more).expect("nothing is refused");
        assert_eq!(world.asked_and_tracked().0, 1.0);
        world.check();
        world.look_at_rows();
        assert_eq!(world.asked_and_tracked().0, 0.0, "all have been seen");
        world.follow(&before).expect("nothing is refused");
        assert_eq!(world.asked_and_tracked().0, 0.0, "it gets nothing");
        world.check();
    }
    // One that packets cannot be let find yet is not taken for seen.
    world.engine.plane.refuse_after(Operation::SetService, 0, 1);
    world.follow(&more).expect("nothing else is refused");
    world.engine.look_at_rows(&mut rows::Looks::due());
    assert_eq!(world.asked_and_tracked().0, 1.0);
    assert!(!world.engine.services["a"].builder.due(world.engine.now()));
}

/// Pools that change at random, with control planes that restart.
#[test]
fn random_changes_break_no_flow() {
    let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("WEIR_SEED={seed}");
    for (number, &(fields, silent)) in KEEPING.iter().enumerate() {
        println!("{fields}");
        let mut random = seed.wrapping_add(number as u64 * 1_000_003);
        let mut draw = move |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % below
        };
        let (mut world, mut clients, mut next) = (World::with(1, fields), 0, 4);
        for _ in 0..40 {
            world.start(0, clients..clients + 20);
            clients += 20;
            let pool = &world.engine.services["a"].pool;
            let member = pool[draw(pool.len())].clone();
            let name = member.wanted.name.clone();
            let takes = |m: &&super::service::PoolMember| m.up && m.wanted.takes_new();
            let spare = pool.iter().filter(takes).count() > 2;
            match draw(6) {
                0 if next < 250 => {
                    let new = backend(0, next);
                    next += 1;
                    world
                        .ask(|reply| Command::Add("a".into(), Box::new(new), reply))
                        .expect("it is new");
                }
                1 if spare && pool.len() > 3 => {
                    world.lose(member.id);
                    world.ask(|reply| Command::Remove("a".into(), name, reply)).expect("there");
                }
                2 if spare => drop(world.drain("a", &name).expect("there")),
                3 => {
                    drop(world.ask(|r| Command::Drain("a".into(), name, false, r)).expect("there"))
                }
                4 => {
                    let weight = 1 + draw(5) as u16;
                    let weight = |r| Command::Weight("a".into(), name, weight, r);
                    world.ask(weight).expect("there");
                }
                _ => world = world.restart(),
            }
            world.check();
            world.engine.look_at_rows(&mut rows::Looks::due());
            world.wait(silent * draw(2) as u32);
        }
        assert_eq!(world.warnings(), Vec::<String>::new());
        // Each backend that was removed has taken its flows along.
        assert!(world.live.len() > 20, "{}", world.live.len());
    }
}

/// A connection whose backend puts a cookie into its timestamps, which the client sends back.
pub(super) struct Cookied {
    flow: FlowKey,
    backend: BackendId,
    /// What the backend last sent, or `None` if the client has no timestamps.
    pub(super) stamp: Option<u32>,
}

impl World {
    /// A client's packet, with its timestamps.
    fn send(
        &mut self,
        flow: FlowKey,
        flags: TcpFlags,
        echo: Option<u32>,
    ) -> (BackendId, Option<u16>) {
        let frame = Frame::new(flow).tcp_flags(flags);
        let frame = echo.map_or(frame.clone(), |echo| frame.timestamps(7_000, echo)).build();
        match self.engine.plane.judge(&frame) {
            Verdict::Forward { backend, cookie, .. } => (backend, cookie),
            other => panic!("{flow}: {other:?}"),
        }
    }

    pub(super) fn open(&mut self, clients: std::ops::Range<u32>) -> Vec<Cookied> {
        let open = |client| {
            let flow = flow(0, client);
            let echo = (client % 5 != 0).then_some(0);
            let (backend, cookie) = self.send(flow, TcpFlags::SYN, echo);
            assert_eq!(cookie.is_some(), echo.is_some(), "{flow}");
            Cookied { flow, backend, stamp: cookie.map(|cookie| u32::from(cookie) << 16 | 5) }
        };
        clients.map(open).collect()
    }

    /// Every connection finds its backend.
    pub(super) fn cookies_lead_home(&mut self, connections: &[Cookied]) {
        for Cookied { flow, backend, stamp } in connections {
            let (went, _) = self.send(*flow, TcpFlags::ACK, *stamp);
            assert_eq!(went, *backend, "{flow}");
        }
    }
}

/// Cookies lead home whatever the pool does, without a packet in between; clients without
/// timestamps are tracked. What has a cookie is in no connection table.
#[test]
fn cheetahs_cookies_lead_home() {
    for fields in ["method = \"cheetah\"", "method = \"cheetah-stateful\"\npartitions = 2"] {
        let mut world = World::with(1, fields);
        let mut live = world.open(0..500);
        assert_eq!(world.engine.plane.memory.connections.len(), 100);
        // Between a SYN and its first ACK.
        world
            .ask(|reply| Command::Add("a".into(), Box::new(backend(0, 4)), reply))
            .expect("it is new");
        world.drain("a", "b1").expect("there");
        world.cookies_lead_home(&live);
        let (drained, new) = (world.id("b1"), world.id("b4"));
        let more = world.open(500..1_000);
        assert!(more.iter().all(|c| c.backend != drained) && more.iter().any(|c| c.backend == new));
        live.extend(more);
        let weight = |reply| Command::Weight("a".into(), "b2".into(), 30, reply);
        world.ask(weight).expect("there");
        world = world.restart();
        world.cookies_lead_home(&live);
        let heavy = world.id("b2");
        let more = world.open(1_000..1_400);
        let share = more.iter().filter(|c| c.backend == heavy).count();
        assert!((350..400).contains(&share), "{share} of 400, where 30 of 32 are b2's");
        live.extend(more);
        world.ask(|reply| Command::Remove("a".into(), "b1".into(), reply)).expect("there");
        live.retain(|connection| connection.backend != drained);
        world.cookies_lead_home(&live);
        // Its number waits for it, and its successor in the pool gets another.
        world
            .ask(|reply| Command::Add("a".into(), Box::new(backend(0, 5)), reply))
            .expect("it is new");
        world.cookies_lead_home(&live);
        let down = world.health("a", "b3", false);
        world.upkeep();
        world.cookies_lead_home(&live);
        assert!(world.open(1_400..1_500).iter().all(|c| c.backend != down));
        assert_eq!(world.warnings(), Vec::<String>::new());
    }
}

/// Slots whose time is up come back; but a time in which nobody turned the clock ends no connection, as no
/// packet of it was noted.
#[test]
fn connections_by_index_grow_old_by_the_engines_clock() {
    let fields = "method = \"cheetah-stateful\"\npartitions = 1\nidle_timeout = \"100s\"";
    let mut world = World::with(1, fields);
    let live = world.open(0..500);
    world.cookies_lead_home(&live);
    let service = world.engine.services["a"].number;
    let used = |world: &mut World, seconds: u32| {
        world.engine.ahead += seconds;
        world.engine.turn_clock();
        for _ in 0..16 {
            world.engine.sweep_slots().expect("the plane has them");
        }
        world.engine.plane.slot_counts(service).expect("it has slots").used
    };
    assert_eq!(used(&mut world, 1), 400, "those with timestamps");
    assert_eq!(used(&mut world, 10_000), 400, "nobody turned the clock");
    world.cookies_lead_home(&live);
    for _ in 0..18 {
        assert_eq!(used(&mut world, 5), 400);
    }
    for _ in 0..4 {
        used(&mut world, 5);
    }
    assert_eq!(used(&mut world, 0), 0, "silent for more than 100 s");
    let status = world.engine.status().expect("the plane tells");
    let slots = status.services[0].slots.expect("it has slots");
    assert_eq!((slots.used, slots.slots, slots.stale_cookies), (0, 32_768, 0));
    // Their cookies lead nowhere now.
    for Cookied { flow, stamp, .. } in &live {
        world.send(*flow, TcpFlags::ACK, *stamp);
    }
    let counts = world.engine.plane.slot_counts(service).expect("it has slots");
    assert_eq!((counts.stale, counts.foreign), (400, 0));
}

/// What a forger sends is dropped if the service says so, and reaches some backend otherwise.
#[test]
fn cheetahs_forged_cookies_are_refused_on_demand() {
    for (forged, dropped) in [("schedule", 0), ("refuse", 1_000)] {
        let mut world = World::with(1, &format!("method = \"cheetah\"\nforged = {forged:?}"));
        let mut refused = 0;
        for client in 0..1_000u32 {
            let echo = client.wrapping_mul(0x9e37_79b9) | 0x8000_0000;
            let frame = Frame::new(flow(0, client)).timestamps(1, echo).build();
            let went = world.engine.plane.process(&frame);
            refused += u32::from(matches!(went, Outcome::Dropped(_)));
        }
        assert!(refused.abs_diff(dropped) < 10, "{refused}");
    }
}

/// The baselines run as services, too, and break what they are known to break.
#[test]
fn baselines_break_what_they_are_known_to_break() {
    // Of 3 backends and a fourth: the remainder keeps 1 of 4, consistent hashing 3 of 4.
    for (fields, kept) in [
        ("method = \"ecmp\"", 0.25),
        ("method = \"consistent\"", 0.75),
        ("method = \"consistent\"\nplacement = \"anchor\"", 0.75),
    ] {
        let mut world = World::with(1, fields);
        world.start(0, 0..4_000);
        world.check();
        world
            .ask(|reply| Command::Add("a".into(), Box::new(backend(0, 4)), reply))
            .expect("it is new");
        let live = std::mem::take(&mut world.live);
        let stayed = live.iter().filter(|(flow, backend)| {
            let frame = Frame::new(**flow).tcp_flags(TcpFlags::ACK).build();
            world.engine.plane.process(&frame) == Outcome::Forwarded(**backend)
        });
        let share = stayed.count() as f64 / live.len() as f64;
        assert!((share - kept).abs() < 0.04, "{fields}: {share}");
        world.drain("a", "b4").expect("there");
        world.start(0, 0..4_000);
        assert_eq!(world.live, live, "the same pool, the same rows");
    }
}
