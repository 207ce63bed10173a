//! A service with each method over a plane that is only memory: flows start, the pool changes, the
//! control plane restarts, and packets of every flow go where it lives.

use super::*;
use std::collections::HashSet;

/// Services whose flows keep their backends, by their fields; and the seconds for which no flow
/// may be silent before a change is in force.
const KEEPING: &[(&str, u32)] = &[
    ("method = \"concury\"", 0),
    ("method = \"tracked\"", 0),
    ("method = \"jet\"", 120),
    ("method = \"jet\"\nplacement = \"ring\"\nwarm_up = 30", 30),
    ("method = \"jet\"\nplacement = \"anchor\"\nrows = 4096", 120),
];

impl World {
    fn id(&self, backend: &str) -> u16 {
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
    fn check_later(&mut self) {
        for (flow, backend) in &self.live {
            let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
            let went = self.engine.plane.process(&frame);
            assert_eq!(went, Outcome::Forwarded(*backend), "{flow}");
        }
    }

    /// Another control plane over the same data plane.
    fn restart(self) -> Self {
        let Self { mut engine, live, directory } = self;
        engine.save().expect("it can be kept");
        let (config, plane) = (engine.config.clone(), std::mem::take(&mut engine.plane));
        let ahead = engine.ahead;
        drop(engine);
        let found = Found { resumed: true, warnings: Vec::new() };
        let mut engine = over(plane, found, &config).unwrap_or_else(|error| panic!("{error}"));
        engine.ahead = ahead;
        Self { engine, live, directory }
    }

    /// New flows, which all go to backends of these.
    fn start_at(&mut self, clients: std::ops::Range<u32>, backends: &[&str]) -> HashSet<u16> {
        let allowed: HashSet<u16> = backends.iter().map(|name| self.id(name)).collect();
        let went: HashSet<u16> = self.start(0, clients).into_iter().collect();
        assert!(went.is_subset(&allowed), "{went:?} where only {allowed:?} serve");
        self.check();
        went
    }

    fn lose(&mut self, backend: u16) {
        self.live.retain(|_, lives| *lives != backend);
    }
}

#[test]
fn no_flow_breaks_that_need_not() {
    for &(fields, silent) in KEEPING {
        println!("{fields}");
        let mut world = World::with(1, fields);
        world.start_at(0..300, &["b1", "b2", "b3"]);
        world.change(|reply| Command::Add("a".into(), backend(0, 4), reply));
        world.wait(silent);
        let went = world.start_at(300..600, &["b1", "b2", "b3", "b4"]);
        assert!(went.contains(&world.id("b4")), "it gets new flows");
        world.weight("b2", 20);
        world.wait(silent);
        world.start_at(600..800, &["b1", "b2", "b3", "b4"]);
        world.drain("a", "b1").expect("it can be drained");
        world.check();
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
        world.change(|reply| Command::Add("a".into(), backend(0, 5), reply));
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
    let flows: Vec<FlowKey> = world.live.keys().copied().collect();
    world.ask(|reply| Command::Drain("a".into(), "b3".into(), false, reply)).expect("it serves");
    let went = world.start(0, 1_000..1_100);
    assert!(went.contains(&world.id("b3")));
    world.check();
    assert!(flows.iter().all(|flow| world.live.contains_key(flow)));

    world.ask(|reply| Command::Add("a".into(), backend(0, 4), reply)).expect("it can be added");
    let at = world.id("b4");
    assert!(!world.start(0, 1_100..1_200).contains(&at), "it waits");
    world.engine.ahead += 119;
    world.upkeep();
    assert!(!world.start(0, 1_200..1_300).contains(&at), "still");
    world.check();
    world.engine.ahead += 1;
    world.upkeep();
    assert!(world.start(0, 1_300..1_400).contains(&at));
    world.check();

    let mut world = World::with(1, "method = \"jet\"\nwarm_up = 0");
    world.start_at(0..2_000, &["b1", "b2", "b3"]);
    world.live.clear();
    world.start(0, 2_000..4_000);
    world.ask(|reply| Command::Add("a".into(), backend(0, 4), reply)).expect("it can be added");
    let at = world.id("b4");
    let moved = world.live.iter().filter(|(flow, _)| {
        let frame = Frame::new(**flow).tcp_flags(TcpFlags::ACK).build();
        world.engine.plane.process(&frame) == Outcome::Forwarded(at)
    });
    let moved = moved.count();
    assert!((400..600).contains(&moved), "{moved} of 2,000, where the paper has a quarter");
}
