//! The engine over a plane that is only memory, and refuses on demand. Whatever fails, a service
//! goes on by a whole table, the others are not concerned, the answer names what failed, and
//! `weir status` shows it until it has been made up for.

mod activity;
mod agents;
mod answers;
mod caps;
mod fleet;
mod forward;
mod step;
mod switch;

use super::prefixes::Counted;
use super::*;
use crate::config::Backend;
use crate::health::{Checker, Transition};
use std::net::Ipv4Addr;
use tempfile::TempDir;
use tokio::sync::oneshot;
use weir_plane::{Between, Limits, Operation, Outcome, Soft, VipKey};
use weir_steering::{
    BackendId, Event, EventKind, Flags, MethodId, ServiceId, ServiceState, SoftMemory, StateKey,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

mod between;
mod discover;
mod explain;
mod half_open;
mod kept;
mod lately;
mod lent;
mod lines;
mod loads;
mod maintenance;
mod meaning;
mod methods;
mod metrics;
mod overtaken;
mod packing;
mod pins;
mod places;
mod prefixes;
mod refusals;
mod reload;
mod shares;
mod sources;
mod taken;

use shares::usual_check;

/// Of a random history, from `WEIR_SEED` if it is set.
fn seed() -> u64 {
    let given = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    seed
}

impl<P: Plane> Engine<P> {
    /// What has failed is tried again at once.
    fn wait_no_longer(&mut self) {
        for trouble in self.services.values_mut().filter_map(|one| one.trouble.as_mut()) {
            trouble.again = Instant::now();
        }
    }
}

struct World {
    engine: Engine<Soft>,
    live: HashMap<FlowKey, BackendId>,
    directory: TempDir,
}

fn backend(service: u8, n: u8) -> Backend {
    let address = Ipv4Addr::new(10, 9, service, n).into();
    Backend {
        name: format!("b{n}"),
        address,
        port: None,
        weight: 1,
        drain: false,
        backup: false,
        nat_sources: Vec::new(),
    }
}

/// Services a, b, ... with three backends each, b1 to b3.
fn config(directory: &TempDir, services: u8) -> Config {
    config_with(directory, services, "")
}

/// The same with more fields of each service.
fn config_with(directory: &TempDir, services: u8, fields: &str) -> Config {
    let mut text = format!(
        "[balancer]\ninterfaces = [\"eth0\"]\nrun_dir = {:?}\n\n",
        directory.path().display().to_string()
    );
    for service in 0..services {
        let name = char::from(b'a' + service);
        text += &format!(
            "[[service]]\nname = \"{name}\"\nvip = \"10.0.0.{}\"\nport = 80\n{fields}\n\n",
            service + 1
        );
        for n in 1..=3 {
            text += &format!(
                "[[service.backend]]\nname = \"b{n}\"\naddress = \"10.9.{service}.{n}\"\n\n"
            );
        }
    }
    let methods: Vec<_> = MethodId::published().collect();
    let config = Config::parse_for(&text, "weir.toml", &methods);
    let mut config = config.unwrap_or_else(|error| panic!("{error}"));
    config.services.iter_mut().for_each(|service| service.check = None);
    config
}

fn over(plane: Soft, found: Found, config: &Config) -> Result<Engine<Soft>, EngineError> {
    let (checker, _) = Checker::new();
    let lock = RunLock::acquire(&config.balancer.run_dir).expect("ours");
    let path = config.balancer.run_dir.join("weir.toml");
    Engine::over(plane, found, config.clone(), path, checker, |_| Ok(None), lock)
}

fn flow(service: u8, client: u32) -> FlowKey {
    let client = ((0x0a10_0000 + client).to_be_bytes(), 4000);
    FlowKey::new(client.into(), ([10, 0, 0, service + 1], 80).into(), Protocol::Tcp)
}

impl World {
    fn new(services: u8) -> Self {
        Self::with(services, "")
    }

    fn with(services: u8, fields: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let plane = Soft::new(SoftMemory::new(10_000, 64, 64));
        let engine = over(plane, Found::default(), &config_with(&directory, services, fields));
        let engine = engine.unwrap_or_else(|error| panic!("{error}"));
        Self { engine, live: HashMap::new(), directory }
    }

    fn over(memory: SoftMemory, services: u8, change: impl FnOnce(&mut Config)) -> Self {
        Self::over_with(memory, (services, ""), change)
    }

    fn over_with(
        memory: SoftMemory,
        (services, fields): (u8, &str),
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut config = config_with(&directory, services, fields);
        change(&mut config);
        let engine = over(Soft::new(memory), Found::default(), &config);
        let engine = engine.unwrap_or_else(|error| panic!("{error}"));
        Self { engine, live: HashMap::new(), directory }
    }

    fn ask(
        &mut self,
        command: impl FnOnce(oneshot::Sender<commands::Done>) -> Command,
    ) -> commands::Done {
        let (reply, mut answer) = oneshot::channel();
        self.engine.handle(command(reply));
        answer.try_recv().expect("each command is answered")
    }

    fn drain(&mut self, service: &str, backend: &str) -> commands::Done {
        self.ask(|reply| Command::Drain(service.into(), backend.into(), true, reply))
    }

    /// The health check of a backend changes its mind.
    fn health(&mut self, service: &str, backend: &str, up: bool) -> BackendId {
        let service = &self.engine.services[service];
        let id = service.member(backend).expect("there").id;
        let target = service.target(id);
        let at = Instant::now();
        let change = Transition { id: target, up, spoken: None, detail: "no answer".into(), at };
        self.engine.handle(Command::Health(vec![change]));
        id
    }

    /// The file is another one from now on.
    fn follow(&mut self, wanted: &Config) -> Result<crate::engine::reload::Followed, EngineError> {
        let followed = self.engine.follow(wanted, How::default())?;
        self.engine.config = wanted.clone();
        Ok(followed)
    }

    /// As [`upkeep`](Self::upkeep), a while later.
    fn upkeep_later(&mut self) {
        self.engine.wait_no_longer();
        let mut timers = Timers::new();
        timers.unreported.0 -= UNREPORTED_EVERY;
        self.engine.upkeep(&mut timers);
    }

    /// What is due, with nothing left to wait for.
    fn upkeep(&mut self) {
        self.engine.wait_no_longer();
        self.engine.upkeep(&mut Timers::new());
    }

    fn start(&mut self, service: u8, clients: std::ops::Range<u32>) -> Vec<BackendId> {
        let started = clients.map(|client| {
            let flow = flow(service, client);
            let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
            match self.engine.plane.process(&frame) {
                Outcome::Forwarded(backend) => {
                    self.live.insert(flow, backend);
                    backend
                }
                other => panic!("{flow}: {other:?}"),
            }
        });
        started.collect()
    }

    /// All packets of all live flows go where they live, and nobody records.
    fn check(&mut self) {
        for (flow, backend) in &self.live {
            for flags in [TcpFlags::ACK, TcpFlags::SYN] {
                let frame = Frame::new(*flow).tcp_flags(flags).build();
                let went = self.engine.plane.process(&frame);
                assert_eq!(went, Outcome::Forwarded(*backend), "{flow}");
            }
        }
        for (number, table) in &self.engine.plane.tables {
            assert!(!table.header().flags().has(Flags::RECORD), "service {number} records");
        }
        self.check_counters();
    }

    /// States are counted by prefix, every one once, whatever has become of the others.
    fn check_counters(&self) {
        for (name, service) in &self.engine.services {
            let (counted, right) = service.builder.counted().expect("there is a limit");
            assert_eq!(counted, right, "service {name}");
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.engine.status().expect("readable").warnings
    }

    /// A table cannot be published, until [`Soft::refuse_nothing`]; `words` say why.
    fn refused_and_made_up_for(&mut self, operation: Operation, words: &str) {
        self.engine.plane.refuse(operation);
        let refused = self.drain("a", "b1").expect_err("it cannot be published").to_string();
        assert!(refused.contains("service a") && refused.contains(words), "{refused}");
        assert!(!self.engine.services["a"].member("b1").expect("there").wanted.drain);
        self.engine.plane.refuse_nothing();
        self.upkeep();
        assert_eq!(self.warnings(), Vec::<String>::new());
        self.check();
        self.drain("a", "b1").expect("nothing is refused any more");
        self.check();
    }
}

#[test]
fn a_table_that_is_refused_is_answered_with_the_reason() {
    for (operation, words) in [
        (Operation::Show, "publish a table: refused on demand: Show"),
        (Operation::Pin, "publish a table: refused on demand: Pin"),
        (Operation::ReadPending, "collect the flows that have started: refused"),
        (Operation::Drain, "collect the flows that have started: refused"),
        (Operation::Grace, "wait for packets under way: refused"),
        (Operation::SetFlags, "begin to note new flows: refused"),
    ] {
        let mut world = World::new(3);
        (0..3).for_each(|service| drop(world.start(service, 0..40)));
        world.refused_and_made_up_for(operation, words);
    }
}

#[test]
fn what_is_left_out_after_publishing_is_shown_and_made_up_for() {
    for operation in [Operation::ReadPins, Operation::Unpin, Operation::ForgetPending] {
        let mut world = World::new(2);
        world.start(0, 0..60);
        world.drain("a", "b2").expect("nothing is refused");
        world.start(0, 60..120);
        world.engine.plane.refuse(operation);
        world.ask(|reply| Command::Drain("a".into(), "b2".into(), false, reply)).ok();
        let said = world.warnings();
        world.engine.plane.refuse_nothing();
        world.upkeep();
        assert_eq!(world.warnings(), Vec::<String>::new(), "{operation:?} after {said:?}");
        // Pins that the driver has written itself are not read.
        if operation == Operation::Unpin {
            assert!(said.iter().any(|warning| warning.contains("service a")), "{said:?}");
        }
        world.check();
    }
}

/// Pins without room for one service: those after it in the alphabet fail over all the same.
#[test]
fn a_full_pin_map_stops_nobody_else() {
    let mut world = World::new(3);
    (0..3).for_each(|service| drop(world.start(service, 0..300)));
    world.engine.plane.bounds.pins = 20;
    // No service takes more than half of them, and says so.
    for service in ["a", "b"] {
        world.drain(service, "b1").expect("there is room");
        let (warned, said) = (format!("service {service}: "), world.warnings());
        let one = said.iter().find(|said| said.starts_with(&warned)).expect("it is said");
        assert!(one.contains("limits.unreported_flows"), "{one}");
    }
    assert_eq!(world.engine.plane.memory.pinned.len(), 20);
    let refused = world.drain("c", "b1").expect_err("too many pins").to_string();
    assert!(refused.contains("no room: Pin"), "{refused}");
    assert!(refused.contains("weir.toml:"), "the place of limits.unreported_flows: {refused}");
    assert_eq!(world.engine.plane.memory.pinned.len(), 20);
    world.live.retain(|live, _| live.dst == flow(2, 0).dst);
    world.check();
    let down = [world.health("a", "b2", false), world.health("b", "b3", false)];
    world.upkeep();
    world.live.clear();
    for service in 0..2 {
        let went = world.start(service, 1_000..1_100);
        assert!(went.iter().all(|backend| !down.contains(backend)));
    }
    world.check();
}

/// Whoever is told that a backend is down finds that packets are told, too.
#[test]
fn a_status_after_a_failed_check_is_answered_after_the_table() {
    let mut world = World::new(1);
    let (sender, mut commands) = channel(8).expect("descriptors");
    world.engine.urgent = commands.urgent();
    let service = &world.engine.services["a"];
    let (id, generation) = (service.member("b1").expect("there").id, service.generation);
    let target = service.target(id);
    let down = Transition {
        id: target,
        up: false,
        spoken: None,
        detail: "no answer".into(),
        at: Instant::now(),
    };
    let (reply, mut answer) = oneshot::channel();
    sender.try_send(Command::Health(vec![down])).expect("there is room");
    sender.try_send(Command::Status(reply)).expect("there is room");
    world.engine.attend(false);
    assert!(answer.try_recv().is_err(), "packets follow the table before");
    world.upkeep();
    assert!(world.engine.services["a"].generation > generation);
    world.engine.attend(false);
    let status = answer.try_recv().expect("it is answered now").expect("readable");
    assert_eq!(status.services[0].backends[0].state, "down");
    assert!(!world.start(0, 0..100).contains(&id));
}

#[test]
fn a_backend_that_is_down_gets_no_flow_even_if_no_table_can_be_published() {
    for method in ["concury", "tracked", "residue"] {
        a_dead_backend_and_a_full_pool_of_tables(&format!("method = \"{method}\""));
    }
}

fn a_dead_backend_and_a_full_pool_of_tables(fields: &str) {
    let mut world = World::with(2, fields);
    world.start(0, 0..50);
    let down = world.health("a", "b1", false);
    world.engine.plane.bounds.table_bytes = world.engine.plane.table_bytes();
    world.upkeep();
    let said = world.warnings();
    assert!(said[0].contains("service a") && said[0].contains("no room"), "{said:?}");
    let first = world.engine.services["a"].trouble.clone().expect("it waits");
    // Not at once again, and later each time.
    let asked = world.engine.plane.asked(Operation::Show);
    world.engine.upkeep(&mut Timers::new());
    assert_eq!(world.engine.plane.asked(Operation::Show), asked);
    world.upkeep();
    let second = world.engine.services["a"].trouble.clone().expect("it waits");
    assert!(second.again > first.again);
    assert!(world.live.values().any(|backend| *backend == down));
    world.check_later();
    assert!(!world.start(0, 100..200).contains(&down));
    world.check_later();
    world.upkeep();
    assert!(!world.start(0, 200..300).contains(&down));
    world.check_later();
    world.engine.plane.bounds.table_bytes = usize::MAX;
    world.upkeep();
    assert_eq!(world.warnings(), Vec::<String>::new());
    assert!(!world.start(0, 300..400).contains(&down));
    world.check_later();
    world.health("a", "b1", true);
    world.upkeep();
    world.check();
    assert!(world.start(0, 400..500).contains(&down));
    assert!(!world.engine.plane.tables[&ServiceId(0)].header().flags().has(Flags::PENDING));
}

/// A log with much in it that is over is written anew in parts, each in a turn of its own, in which everything else
/// has its part; and what has begun meanwhile is in it.
#[test]
fn a_long_log_is_rewritten_turn_by_turn() {
    let mut world = World::new(2);
    world.start(0, 0..50);
    world.engine.drain_reports().expect("nothing is refused");
    let service = world.engine.services.get_mut("a").expect("there");
    let key = |client| StateKey::of_flow(&flow(0, client));
    // Of a log that is no good without its process; what was removed has never been there.
    let gone: Vec<StateKey> = (1000..101_000).map(key).collect();
    service.log_removed(&gone, 1).expect("there is room");
    let compacting = |world: &World| {
        world.engine.services["a"].log.as_ref().is_some_and(|log| log.is_compacting())
    };
    assert!(compacting(&world));
    world.start(0, 50..90);
    world.engine.drain_reports().expect("nothing is refused");
    let mut turns = 0;
    while compacting(&world) {
        world.engine.upkeep(&mut Timers::new());
        turns += 1;
        assert!(turns < 100, "it ends");
    }
    let held = world.engine.services["a"].log.as_ref().map(|log| (log.len(), log.live_hint()));
    assert_eq!(held, Some((90, 90)));
    world.check();
}

/// The disc is full: a command is refused with nothing changed; a health check is heeded.
#[test]
fn a_full_disc_refuses_commands_and_not_failover() {
    let mut world = World::new(1);
    world.start(0, 0..30);
    let before = world.engine.plane.tables[&ServiceId(0)].header().generation;
    world.engine.journal.fill_disc();
    let refused = world.drain("a", "b1").expect_err("it cannot be kept").to_string();
    assert!(
        refused.contains("runtime.log") && refused.contains("nothing has changed"),
        "{refused}"
    );
    assert_eq!(world.engine.plane.tables[&ServiceId(0)].header().generation, before);
    let down = world.health("a", "b2", false);
    world.upkeep();
    assert!(!world.start(0, 100..200).contains(&down));
    assert!(world.warnings().iter().any(|warning| warning.contains("runtime.log")));
    world.engine.journal.empty_disc();
    world.engine.save_later();
    assert_eq!(world.warnings(), Vec::<String>::new());
}

#[test]
fn a_full_backend_table_refuses_a_backend() {
    let mut world = World::new(1);
    world.engine.plane.limits.backends = 3;
    let add = |reply| Command::Add("a".into(), Box::new(backend(0, 9)), reply);
    let refused = world.ask(add).expect_err("no number is left").to_string();
    assert!(refused.contains("limits.backends"), "{refused}");
    world.engine.plane.limits.backends = 10;
    for operation in [Operation::SetBackend, Operation::ResetLane] {
        world.engine.plane.refuse(operation);
        let refused = world.ask(|reply| Command::Add("a".into(), Box::new(backend(0, 9)), reply));
        assert!(refused.expect_err("refused").to_string().contains("on demand"));
        assert_eq!(world.engine.services["a"].pool.len(), 3);
        world.engine.plane.refuse_nothing();
    }
    world
        .ask(|reply| Command::Add("a".into(), Box::new(backend(0, 9)), reply))
        .expect("there is room");
}

/// A backend that could not be removed keeps its connections; one that was removed and could not
/// be forgotten keeps its number until it is.
#[test]
fn a_removal_is_whole_or_not_at_all() {
    let mut world = World::new(1);
    world.start(0, 0..60);
    let remove = |reply| Command::Remove("a".into(), "b1".into(), reply);
    world.engine.plane.refuse(Operation::Show);
    world.ask(remove).expect_err("it cannot be published");
    world.engine.plane.refuse_nothing();
    world.check();
    world.drain("a", "b2").expect("nothing is refused");
    world.check();
    let id = world.engine.services["a"].member("b1").expect("there").id;
    world.engine.plane.refuse_after(Operation::SetBackend, 0, 1);
    world.ask(|reply| Command::Remove("a".into(), "b1".into(), reply)).expect("published");
    assert_eq!(world.engine.services["a"].leaving, [id]);
    assert!(world.warnings()[0].contains("cannot forget backend"));
    world.upkeep();
    assert_eq!(world.warnings(), Vec::<String>::new());
    assert_eq!(world.engine.plane.backends.get(&id), None);
}

/// A backend that came to nothing, and that the data plane did not take back at once: its number is nobody's, status
/// says so, and it is taken back later. Else nothing that is there would say whose it is, limits.backends could not
/// be lowered any more, and packets might be led there.
#[test]
fn an_undo_that_fails_is_tried_again() {
    let mut world = World::new(1);
    world.start(0, 0..60);
    let add = |reply| Command::Add("a".into(), Box::new(backend(0, 9)), reply);
    let known = |world: &World| world.engine.plane.backends.keys().copied().collect::<Vec<_>>();
    let before = known(&world);
    world.engine.plane.refuse(Operation::Show);
    world.engine.plane.refuse_after(Operation::SetBackend, 1, u32::MAX);
    world.ask(add).expect_err("it cannot be published");
    let left: Vec<_> = known(&world).into_iter().filter(|id| !before.contains(id)).collect();
    assert_eq!(left.len(), 1, "it was not taken back");
    world.upkeep_later();
    assert!(known(&world).contains(&left[0]), "that is still refused");
    let said = format!("backend number {} stays taken", left[0]);
    assert!(world.warnings().iter().any(|one| one.contains(&said)), "{:?}", world.warnings());
    // Another one gets another number meanwhile.
    world.engine.plane.refuse_after(Operation::Show, 0, 0);
    world.engine.plane.refuse_after(Operation::SetBackend, 1, u32::MAX);
    world.ask(add).expect("it can be published");
    assert_ne!(world.engine.services["a"].member("b9").expect("it was added").id, left[0]);
    world.engine.plane.refuse_nothing();
    world.upkeep_later();
    assert!(!known(&world).contains(&left[0]), "it was tried again");
    assert_eq!(world.warnings(), Vec::<String>::new());
    world.check();
}

/// A check fails while a command is under way that comes to nothing: the pool is as before, and the backend is down.
#[test]
fn what_a_check_says_outlives_a_command_that_fails() {
    let mut world = World::new(1);
    world.start(0, 0..60);
    let target = {
        let service = &world.engine.services["a"];
        service.target(service.member("b1").expect("there").id)
    };
    let at = Instant::now();
    let change = Transition { id: target, up: false, spoken: None, detail: "no answer".into(), at };
    world.engine.late.push(change);
    world.engine.plane.refuse(Operation::Show);
    let weight = |reply| Command::Weight("a".into(), "b2".into(), 5, reply);
    world.ask(weight).expect_err("it cannot be published");
    world.engine.plane.refuse_nothing();
    let member =
        |world: &World, name: &str| world.engine.services["a"].member(name).expect("there").clone();
    assert!(!member(&world, "b1").up && member(&world, "b2").wanted.weight != 5);
    world.upkeep_later();
    let down = member(&world, "b1").id;
    assert!(world.start(0, 60..200).iter().all(|backend| *backend != down));
}

/// A reload in which one service cannot be published: the others are as the file says, the answer
/// names it, and it is tried again.
#[test]
fn a_reload_names_what_is_not_in_force() {
    let mut world = World::new(3);
    (0..3).for_each(|service| drop(world.start(service, 0..30)));
    let mut wanted = config(&world.directory, 3);
    wanted.services.iter_mut().for_each(|service| drop(service.backends.remove(0)));
    let gone: Vec<BackendId> =
        world.engine.services.values().map(|s| s.member("b1").expect("there").id).collect();
    world.engine.plane.refuse_after(Operation::Show, 1, 1);
    let followed = world.follow(&wanted).expect("the rest is in force");
    let failures = followed.failures;
    assert_eq!(failures.len(), 1);
    assert!(failures[0].to_string().contains("service b"), "{}", failures[0]);
    // Its backend is still in its table, so still known; the others' are not.
    let known = |world: &World, at: usize| world.engine.plane.backends.contains_key(&gone[at]);
    assert_eq!([0, 1, 2].map(|at| known(&world, at)), [false, true, false]);
    world.upkeep();
    assert!(!known(&world, 1));
    world.live.retain(|_, backend| !gone.contains(backend));
    world.check();
}

#[test]
fn interfaces_that_cannot_be_attached_are_an_error() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut plane = Soft::new(SoftMemory::new(100, 64, 64));
    plane.refuse(Operation::Attach);
    let refused = over(plane, Found::default(), &config(&directory, 1));
    assert!(refused.err().expect("refused").to_string().contains("Attach"));
    let mut world = World::new(1);
    world.engine.plane.refuse(Operation::Attach);
    let config = world.engine.config.clone();
    assert!(world.engine.attach(&config).is_err());
    world.start(0, 0..10);
    world.check();
}

/// A first start says that a service cannot be published; a restart over a plane that forwards
/// looks after the others, and goes on with that one's table.
#[test]
fn a_restart_goes_on_where_a_first_start_says_no() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut plane = Soft::new(SoftMemory::new(100, 64, 64));
    plane.refuse(Operation::Show);
    let refused = over(plane, Found::default(), &config(&directory, 2)).err().expect("refused");
    assert!(matches!(refused, EngineError::Unpublished { ref service, .. } if service == "a"));
    let mut world = World::new(2);
    (0..2).for_each(|service| drop(world.start(service, 0..30)));
    let World { mut engine, live, directory } = world;
    engine.save().expect("it can be kept");
    let (config, mut plane) = (engine.config.clone(), std::mem::take(&mut engine.plane));
    drop(engine);
    plane.refuse_after(Operation::Show, 0, 1);
    let found = Found { resumed: true, ..Found::default() };
    let engine = over(plane, found, &config).unwrap_or_else(|error| panic!("{error}"));
    let mut world = World { engine, live, directory };
    assert!(world.warnings()[0].contains("service a"));
    world.check();
    world.upkeep();
    assert_eq!(world.warnings(), Vec::<String>::new());
    world.check();
}

#[test]
fn what_cannot_be_read_is_an_answer_and_no_end() {
    let mut world = World::new(1);
    for operation in [Operation::ReadCounters, Operation::ReadTable, Operation::ReadPending] {
        world.engine.plane.refuse(operation);
        assert!(world.engine.status().is_err(), "{operation:?}");
        world.engine.plane.refuse_nothing();
    }
    weir_steering::update::Plane::set_flags(&mut world.engine.plane, ServiceId(0), false, true)
        .expect("nothing is refused");
    for operation in [Operation::ReadTable, Operation::LookUp] {
        world.engine.plane.refuse(operation);
        assert!(world.engine.explain(&flow(0, 1), None).is_err(), "{operation:?}");
        world.engine.plane.refuse_nothing();
    }
    for operation in [Operation::Grace, Operation::Drain, Operation::OwnMacs] {
        world.engine.plane.refuse(operation);
        let failed = [
            world.engine.sweep().is_err(),
            world.engine.drain_reports().is_err(),
            world.engine.refresh_next_hops(false).is_err(),
        ];
        assert!(failed.contains(&true), "{operation:?}");
        world.engine.plane.refuse_nothing();
    }
    world.engine.plane.refuse(Operation::SetService);
    let wanted = config(&world.directory, 2);
    let failures = world.follow(&wanted).expect("the rest is in force").failures;
    assert!(failures[0].to_string().contains("service b: refused"), "{failures:?}");
    assert!(world.warnings()[0].contains("packets do not find it"), "{:?}", world.warnings());
    world.engine.plane.refuse_nothing();
    world.upkeep_later();
    assert_eq!(world.warnings(), Vec::<String>::new());
    world.start(1, 0..10);
    world.live.clear();
    world.engine.plane.refuse_after(Operation::RemoveService, 0, 1);
    let fewer = config(&world.directory, 1);
    let failures = world.follow(&fewer).expect("the rest is in force").failures;
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(world.engine.plane.tables.contains_key(&ServiceId(1)));
    world.upkeep_later();
    assert!(!world.engine.plane.tables.contains_key(&ServiceId(1)));
    world.start(0, 0..10);
    world.check();
    let there = VipKey { address: flow(0, 0).dst, protocol: Protocol::Tcp, port: Some(80) };
    assert!(world.engine.plane.vips.contains_key(&there));
}

/// However many reports there are, a command is answered after some of them.
#[test]
fn a_flood_of_reports_keeps_no_command_waiting() {
    const REPORTS: u32 = 100_000;
    let mut world = World::new(1);
    world.start(0, 0..1);
    let backend = world.live[&flow(0, 0)];
    let events = (0..REPORTS).map(|n| Event {
        state: ServiceState { service: ServiceId(0), key: StateKey::of_flow(&flow(0, n)) },
        backend,
        kind: EventKind::Start,
    });
    world.engine.plane.memory.events = events.collect();
    let (sender, mut commands) = channel(4).expect("descriptors");
    let (reply, mut answer) = oneshot::channel();
    assert!(sender.try_send(Command::Status(reply)).is_ok());
    let mut timers = Timers::new();
    assert!(world.engine.turn(&mut commands, &mut timers));
    assert!(answer.try_recv().expect("it is answered").is_ok());
    let left = world.engine.plane.memory.events.len();
    assert!(left > REPORTS as usize / 2, "{left} are left");
    for _ in 0..REPORTS / 1_000 {
        assert!(world.engine.turn(&mut commands, &mut timers));
    }
    assert!(world.engine.plane.memory.events.is_empty());
    assert_eq!(world.engine.services["a"].builder.states(), REPORTS as usize);
    drop(sender);
    assert!(!world.engine.turn(&mut commands, &mut timers), "nobody commands any more");
}

/// An update, however long, keeps nobody from seeing the instance, and no new connection at a backend that fails
/// meanwhile; and the check's word is not lost when the update ends.
#[test]
fn a_failure_waits_for_no_update() {
    let mut world = World::new(1);
    world.start(0, 0..300);
    let (sender, mut commands) = channel(4).expect("descriptors");
    world.engine.urgent = commands.urgent();
    let member = world.engine.services["a"].member("b1").expect("there");
    let (id, at) = (member.id, Instant::now());
    let target = world.engine.services["a"].target(id);
    let failed = Transition { id: target, up: false, spoken: None, detail: "no answer".into(), at };
    assert!(sender.try_send(Command::Health(vec![failed])).is_ok());
    let (reply, mut answer) = oneshot::channel();
    assert!(sender.try_send(Command::Status(reply)).is_ok());
    // This one's table is made without a word of the failure.
    world.drain("a", "b2").unwrap();
    let seen = answer.try_recv().expect("it is answered").expect("readable");
    let b2 = &seen.services[0].backends[1];
    assert_eq!((b2.name.as_str(), b2.state.as_str()), ("b2", "draining"));
    // Until a table of its own says it, packets ask for that, and for the flows that were kept from it.
    assert!(!world.engine.plane.backend(id).expect("there").up);
    assert!(!world.engine.services["a"].member("b1").expect("there").up);
    assert!(world.engine.services["a"].dirty, "its table follows");
    let asks = |world: &World| {
        let number = world.engine.services["a"].number;
        world.engine.plane.tables[&number].header().flags().has(Flags::PENDING)
    };
    assert!(asks(&world));
    assert!(!world.start(0, 500..600).contains(&id), "it takes nobody");
    world.live.retain(|_, at| *at != id);
    world.check();
    world.upkeep();
    assert!(!world.engine.services["a"].dirty && !asks(&world));
    assert!(!world.start(0, 1_000..1_100).contains(&id), "it takes nobody");
    world.check();
}

#[test]
fn a_flow_that_is_not_remembered_is_not_written_down() {
    const LIMIT: usize = 10;
    let memory = SoftMemory::new(10_000, 64, 64);
    let mut world = World::over(memory, 1, |config| {
        config.limits.states_per_service = LIMIT as u32;
        // What is not marked is open from its first packet on.
        config.services[0].affinity = crate::config::Affinity::Client;
    });
    world.start(0, 0..30);
    world.engine.drain_reports().expect("nothing is refused");
    let service = &world.engine.services["a"];
    assert_eq!(service.builder.states(), LIMIT);
    assert_eq!(service.log.as_ref().map(|log| log.len()), Some(LIMIT));
    world.engine.sweep().expect("nothing is refused");
    let said = world.warnings();
    assert!(said[0].contains("20 connections") && said[0].contains("states_per_service"));
    // Room alone brings nobody back: the warning goes with the connections.
    let mut wanted = world.engine.config.clone();
    wanted.limits.states_per_service = 1_000;
    world.engine.fit(&wanted);
    world.engine.sweep().expect("nothing is refused");
    assert_eq!(world.warnings(), said);
    for _ in 0..3 {
        world.engine.ahead += wanted.services[0].idle_timeout.as_secs() as u32 + 1;
        world.engine.sweep().expect("nothing is refused");
    }
    assert_eq!(world.warnings(), Vec::<String>::new());
    assert_eq!(world.engine.status().expect("readable").services[0].refused_states, 20);
}

/// Flows whose reports found no room are warned of, until none of them can be left.
#[test]
fn flows_that_nobody_is_told_of_are_warned_of() {
    let mut world = World::new(1);
    world.upkeep_later();
    assert_eq!(world.warnings(), Vec::<String>::new());
    world.engine.plane.unrecorded = 30;
    world.upkeep_later();
    let said = world.warnings();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("30 flows have begun whose reports found no room"), "{said:?}");
    assert!(said[0].contains("limits.event_ring_bytes and limits.unreported_flows"), "{said:?}");
    assert_eq!(world.engine.status().expect("readable").unrecorded_flows, 30);
    world.engine.ahead += 60;
    world.engine.plane.unrecorded = 40;
    world.upkeep_later();
    assert!(world.warnings()[0].starts_with("40 flows"), "{:?}", world.warnings());
    let idle = world.engine.config.services[0].idle_timeout.as_secs() as u32;
    world.engine.ahead += idle - 60;
    world.upkeep_later();
    assert!(world.warnings()[0].starts_with("40 flows"), "the last may be there still");
    world.engine.ahead += 61;
    world.upkeep_later();
    assert_eq!(world.warnings(), Vec::<String>::new());
}

/// New flows that find no room while a table is made are warned of, until nobody was refused for a while.
#[test]
fn first_packets_that_find_no_room_are_warned_of() {
    let mut world = World::new(1);
    world.upkeep_later();
    assert_eq!(world.warnings(), Vec::<String>::new());
    world.engine.plane.counters.dropped.insert(weir_wire::Reason::PendingFull, 30);
    world.upkeep_later();
    let said = world.warnings();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("30 first packets were dropped (pending_full)"), "{said:?}");
    assert!(said[0].contains("limits.pending_flows"), "{said:?}");
    world.engine.ahead += 60;
    world.upkeep_later();
    assert_eq!(world.warnings(), Vec::<String>::new());
}

/// Frames to any address are taken where there are more than are compared; that is said while it is so.
#[test]
fn more_addresses_than_are_compared_are_warned_of() {
    let mut world = World::new(1);
    world.engine.refresh_next_hops(false).expect("nothing is refused");
    assert_eq!(world.warnings(), Vec::<String>::new());
    world.engine.plane.too_many_macs = Some(weir_plane::TooManyMacs { found: 9, most: 8 });
    world.engine.refresh_next_hops(false).expect("nothing is refused");
    let said = world.warnings();
    assert!(said.len() == 1 && said[0].starts_with("balancer.interfaces"), "{said:?}");
    assert!(said[0].contains("9 Ethernet addresses") && said[0].contains("with 8 at most"));
    world.engine.plane.too_many_macs = None;
    world.engine.refresh_next_hops(false).expect("nothing is refused");
    assert_eq!(world.warnings(), Vec::<String>::new());
}

fn neighbour() -> Neighbour {
    Neighbour { mac: [2; 6], ifindex: 7, source_mac: [4; 6] }
}

/// One that has answered, and answers no more, may be somebody else by now.
#[test]
fn a_neighbour_that_fails_loses_its_address() {
    let mut world = World::new(1);
    let id = world.engine.services["a"].pool[0].id;
    let known = |world: &World| world.engine.plane.backends[&id].hop.is_some();
    let looks: [(Resolve, bool); 6] = [
        (|_| Ok(Some(neighbour())), true),
        // The kernel may be asking just now.
        (|_| Ok(None), true),
        (|_| Ok(Some(neighbour())), true),
        (|_| Ok(None), true),
        (|_| Ok(None), false),
        (|_| Ok(Some(neighbour())), true),
    ];
    for (at, (resolve, wanted)) in looks.into_iter().enumerate() {
        world.engine.resolve = resolve;
        world.engine.refresh_next_hops(false).expect("nothing is refused");
        assert_eq!(known(&world), wanted, "look {at}");
    }
}

#[test]
fn an_interface_that_is_missing_keeps_no_next_hop_from_being_looked_up() {
    let mut world = World::new(1);
    world.engine.resolve = |_| Ok(Some(neighbour()));
    world.engine.plane.refuse(Operation::OwnMacs);
    assert!(world.engine.refresh_next_hops(false).is_err(), "it is said");
    assert!(world.engine.plane.backends.values().all(|backend| backend.hop.is_some()));
}

/// Limits that change with the file: room is made before it is applied, and given back after. What
/// cannot be had is refused whole; what cannot be given back is said.
#[test]
fn limits_follow_the_file_or_stay() {
    let mut world = World::new(2);
    world.start(0, 0..50);
    let base: Limits = world.engine.plane.limits();
    let wants = |backends: u32| {
        let mut config = config(&world.directory, 2);
        config.limits.backends = backends;
        config
    };
    let (large, small, mut tiny) = (wants(5000), wants(300), wants(2));
    (tiny.limits.udp_flows, tiny.limits.tracked_flows) = (1 << 10, 1 << 20);

    world.engine.plane.refuse(Operation::Resize);
    let refused = world.engine.grow(&large).expect_err("on demand").to_string();
    assert!(refused.contains("Resize"), "{refused}");
    assert_eq!(world.engine.plane.limits(), base);
    world.engine.plane.refuse_nothing();

    world.engine.grow(&large).expect("there is room");
    assert_eq!(world.engine.plane.limits().backends, 5000);
    world.engine.grow(&small).expect("it is large enough");
    assert_eq!(world.engine.plane.limits().backends, 5000);
    world.engine.fit(&small);
    assert_eq!(world.engine.plane.limits().backends, 300);
    assert_eq!(world.warnings(), Vec::<String>::new());

    world.engine.fit(&tiny);
    let now = world.engine.plane.limits();
    // What does not fit keeps nothing else from its change.
    assert_eq!((now.backends, now.udp_flows, now.tracked_flows), (300, 1 << 10, 1 << 20));
    let warnings = world.warnings().join(" ");
    assert!(warnings.contains("it stays as it was, and the next reload or start"), "{warnings}");
    assert!(!warnings.contains("limits stay as they were"), "{warnings}");
    assert!(warnings.contains("weir.toml:"), "the place of limits.backends: {warnings}");
    assert!(warnings.contains(" has it for as long as it is there"), "what frees it: {warnings}");
    world.engine.fit(&small);
    assert_eq!(world.warnings(), Vec::<String>::new());
    world.check();
}

/// Where the marks of activity keep the size that they have, the reload says so that asks for more of them, and so
/// does the status for as long as it is so.
#[test]
fn marks_that_keep_their_size_are_told_of() {
    let mut world = World::new(1);
    world.engine.plane.marks_stay = true;
    let made_for = world.engine.config.limits.states_per_service;
    assert_eq!(world.engine.plane.limits().marked_flows, made_for);
    let mut wanted = world.engine.config.clone();
    wanted.limits.states_per_service = made_for / 2;
    let said = world.engine.reload_as(wanted.clone(), false).expect("there is room");
    assert!(!said.contains("marks"), "fewer find room: {said}");
    wanted.limits.states_per_service = made_for * 2;
    let said = world.engine.reload_as(wanted.clone(), false).expect("there is room");
    for words in ["limits.states_per_service", "made for 4194304", "until the next `weir unload`"] {
        assert!(said.contains(words), "{words}: {said}");
        assert!(world.warnings().join(" ").contains(words), "{words}: {:?}", world.warnings());
    }
    wanted.limits.states_per_service = made_for;
    let said = world.engine.reload_as(wanted, false).expect("there is room");
    assert!(!said.contains("marks"), "{said}");
    assert_eq!(world.warnings(), Vec::<String>::new());
}

/// Marks are made for the connections of one service, and grow with those of all; without memory for them that is
/// tried again when there are twice as many, and nothing else waits for it.
#[test]
fn marks_grow_with_the_connections_of_all_services() {
    let mut world = World::new(3);
    world.engine.plane.limits.marked_flows = 250;
    let swept = |world: &mut World| {
        world.engine.drain_reports().expect("nothing is refused");
        world.engine.rekeyed = true;
        world.engine.upkeep(&mut Timers::new());
        world.engine.plane.limits().marked_flows
    };
    for service in 0..2 {
        world.start(service, 0..100);
    }
    assert_eq!(swept(&mut world), 250, "there is room");
    world.engine.plane.refuse(Operation::Resize);
    world.start(2, 0..100);
    assert_eq!(swept(&mut world), 250);
    let asked = world.engine.plane.asked(Operation::Resize);
    assert_eq!(swept(&mut world), 250, "not again for as many");
    assert_eq!(world.engine.plane.asked(Operation::Resize), asked);
    world.engine.plane.refuse_nothing();
    world.start(2, 100..400);
    assert_eq!(swept(&mut world), 600);
    world.check();
    // A reload takes none of it back that is in use.
    let mut config = world.engine.config.clone();
    config.limits.states_per_service = 100;
    world.engine.fit(&config);
    assert_eq!(world.engine.plane.limits().marked_flows, 600);
}

/// Every check of a service fails. By the policy its backends keep what they get, or nobody does.
#[test]
fn when_all_are_down_new_connections_are_kept_or_refused() {
    use crate::config::{AllDown, Check};
    use weir_wire::Reason;
    for all_down in [AllDown::Keep, AllDown::Refuse] {
        let mut world = World::new(2);
        world.start(0, 0..60);
        let service = world.engine.services.get_mut("a").expect("there");
        let second = Duration::from_secs(1);
        let check = Check { all_down, ..usual_check(second) };
        service.configured.check = Some(check);
        let down = ["b1", "b2"].map(|name| world.health("a", name, false));
        world.upkeep();
        assert!(world.start(0, 100..150).iter().all(|went| !down.contains(went)));
        world.health("a", "b3", false);
        world.upkeep();
        let said = world.warnings().join(" ");
        let words = "service a: every backend that may take new connections is down by its check";
        assert!(said.contains(words), "{said}");
        match all_down {
            AllDown::Keep => {
                let all: HashSet<BackendId> = world.start(0, 200..400).into_iter().collect();
                assert_eq!(all.len(), 3, "all of them take new connections");
            }
            AllDown::Refuse => {
                for client in 200..300 {
                    let frame = Frame::new(flow(0, client)).tcp_flags(TcpFlags::SYN).build();
                    let went = world.engine.plane.process(&frame);
                    assert_eq!(went, Outcome::Dropped(Reason::NoBackend));
                }
            }
        }
        // Connections stay where they are, and one that is up gets what is new.
        let up = world.health("a", "b2", true);
        world.upkeep();
        assert_eq!(world.warnings(), Vec::<String>::new());
        assert!(world.start(0, 500..550).iter().all(|went| *went == up));
    }
}
