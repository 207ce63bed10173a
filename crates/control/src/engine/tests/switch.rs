//! The engine over a P4 switch that is only memory, and that ends and comes back on demand (docs/p4.md).

use super::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::net::IpAddr;
use weir_plane_p4::layout::Register;
use weir_plane_p4::{Error, Model, P4, Target, Write};

/// The registers of a switch, whose process may be away.
#[derive(Default)]
struct Process {
    model: Model,
    away: bool,
    /// So many writes and readings later it is away, in the midst of what it is asked then.
    leaves_after: Option<u32>,
    /// Times that it was emptied.
    emptied: u32,
    /// Packets that were sent between any two writes while it was filled.
    probed: u32,
}

/// What has no key by which packets are decided.
fn is_closed(model: &Model) -> bool {
    model.get(Register::Epoch, 0) == 0
}

impl Process {
    fn reach(&mut self) -> Result<&mut Model, Error> {
        if let Some(left) = self.leaves_after {
            self.leaves_after = left.checked_sub(1);
            self.away |= left == 0;
        }
        match self.away {
            false => Ok(&mut self.model),
            true => Err(Error::Connection {
                address: "127.0.0.1:9090".into(),
                source: std::io::ErrorKind::ConnectionRefused.into(),
            }),
        }
    }

    /// While it is filled nothing is forwarded.
    fn probe(&mut self) {
        if is_closed(&self.model) {
            let frame = Frame::new(flow(0, 0)).macs([0; 6], [2, 0, 0, 0, 0, 1]);
            let outcome = self.model.process(&frame.tcp_flags(TcpFlags::ACK).build());
            assert!(!matches!(outcome, Outcome::Forwarded(_)), "by a part of what is filled");
            self.probed += 1;
        }
    }
}

impl Target for Process {
    fn write(&mut self, writes: &[Write]) -> Result<(), Error> {
        for write in writes {
            self.reach()?.write(std::slice::from_ref(write))?;
            self.probe();
        }
        Ok(())
    }

    fn read(&mut self, elements: &[(Register, u32)]) -> Result<Vec<u64>, Error> {
        self.reach()?.read(elements)
    }

    fn read_all(&mut self, register: Register) -> Result<Vec<u64>, Error> {
        self.reach()?.read_all(register)
    }

    fn find(&mut self) -> Result<(), Error> {
        self.reach().map(drop)
    }

    fn start_over(&mut self) -> Result<bool, Error> {
        let zeros = self.reach()?.start_over()?;
        self.emptied += 1;
        Ok(zeros)
    }

    fn add_port(&mut self, name: &str, ifindex: u32) -> Result<u32, Error> {
        self.reach()?.add_port(name, ifindex)
    }
}

/// All backends are behind the loopback, which every machine has.
fn next_hop(_: IpAddr) -> Result<Option<Neighbour>, NeighError> {
    Ok(Some(Neighbour { mac: [2, 0, 0, 0, 0, 9], ifindex: 1, source_mac: [0; 6] }))
}

struct Switched {
    engine: Engine<P4<Process>>,
    live: HashMap<FlowKey, BackendId>,
    config: Config,
    _directory: TempDir,
}

fn open(process: Process, config: &Config) -> Engine<P4<Process>> {
    let plane = P4::over(process).expect("it is there");
    let found = Found { resumed: plane.was_filled(), ..Found::default() };
    let (checker, _) = Checker::new();
    let lock = RunLock::acquire(&config.balancer.run_dir).expect("ours");
    let path = config.balancer.run_dir.join("weir.toml");
    let engine = Engine::over(plane, found, config.clone(), path, checker, next_hop, lock);
    engine.unwrap_or_else(|error| panic!("{error}"))
}

impl Switched {
    fn new(method: &str) -> Self {
        Self::with(&format!("method = {method:?}"))
    }

    /// With these fields of each service.
    fn with(fields: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut config = config_with(&directory, 2, fields);
        config.balancer.interfaces = vec!["lo".to_owned()];
        config.balancer.plane = PlaneKind::P4;
        let engine = open(Process::default(), &config);
        let live = HashMap::new();
        let mut world = Self { engine, live, config, _directory: directory };
        world.upkeep();
        world
    }

    fn switch(&mut self) -> &mut Process {
        self.engine.plane.target()
    }

    /// What is due, until next hops are known.
    fn upkeep(&mut self) {
        let (end, mut timers) = (Instant::now() + Duration::from_secs(60), Timers::new());
        loop {
            self.engine.drain_reports().expect("nothing fails");
            self.engine.upkeep(&mut timers);
            let known = self.engine.services.values().flat_map(|service| &service.pool);
            let known = known.map(|member| self.engine.plane.backend(member.id));
            let done = known.into_iter().all(|found| found.is_some_and(|one| one.hop.is_some()));
            if done {
                return;
            }
            assert!(Instant::now() < end, "next hops are not known");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A second later: a switch that is away is looked for again.
    fn later(&mut self) {
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end && self.engine.plane.trouble().is_some() {
            std::thread::sleep(Duration::from_millis(20));
            self.engine.drain_reports().expect("nothing fails");
        }
        self.engine.drain_reports().expect("nothing fails");
    }

    fn send(&mut self, flow: FlowKey, flags: TcpFlags) -> Outcome {
        let frame = Frame::new(flow).macs([0; 6], [2, 0, 0, 0, 0, 1]).tcp_flags(flags).build();
        self.switch().model.process(&frame)
    }

    fn start(&mut self, clients: std::ops::Range<u32>) {
        for client in clients {
            let flow = flow((client % 2) as u8, client);
            match self.send(flow, TcpFlags::SYN) {
                Outcome::Forwarded(backend) => self.live.insert(flow, backend),
                other => panic!("{flow}: {other:?}"),
            };
        }
    }

    fn check(&mut self) {
        for (flow, backend) in self.live.clone() {
            assert_eq!(self.send(flow, TcpFlags::ACK), Outcome::Forwarded(backend), "{flow}");
        }
    }

    fn drain(&mut self, backend: &str, drain: bool) {
        for done in self.try_drain(backend, drain) {
            done.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// The same, whatever comes of it: a switch may go away in the midst of it.
    fn try_drain(&mut self, backend: &str, drain: bool) -> [Result<String, EngineError>; 2] {
        ["a", "b"].map(|service| {
            let (reply, mut answer) = oneshot::channel();
            self.engine.handle(Command::Drain(service.into(), backend.into(), drain, reply));
            answer.try_recv().expect("each command is answered")
        })
    }

    /// The control plane is not told to stop, and another one takes the switch over.
    fn killed(self) -> Self {
        let Self { engine, live, config, _directory } = self;
        let engine = open(end(engine), &config);
        Self { engine, live, config, _directory }
    }

    fn warnings(&self) -> Vec<String> {
        self.engine.status().expect("it is told").warnings
    }
}

/// Not told to stop: what it has not read stays in the switch.
fn end(engine: Engine<P4<Process>>) -> Process {
    engine.plane.into_target()
}

const METHODS: [&str; 2] = ["concury", "residue"];

#[test]
fn a_service_runs_and_its_pool_changes() {
    for method in METHODS {
        let mut world = Switched::new(method);
        assert_eq!(world.switch().emptied, 1, "it is filled once, with everything");
        world.start(0..400);
        world.upkeep();
        world.drain("b2", true);
        world.start(400..800);
        world.check();
        world.drain("b2", false);
        world.drain("b1", true);
        world.start(800..1200);
        world.check();
        let status = world.engine.status().expect("it is told");
        assert_eq!(status.interfaces, [("lo".to_owned(), "port".to_owned())]);
        assert_eq!(status.warnings, Vec::<String>::new());
        let flows: u64 =
            status.services.iter().flat_map(|one| &one.backends).map(|b| b.flows).sum();
        assert_eq!(flows, 1200);
        let drained = |name: &str| world.engine.services[name].member("b1").expect("there").id;
        let drained = ["a", "b"].map(drained);
        let late = (800..1200).map(|client| flow((client % 2) as u8, client));
        assert!(late.into_iter().all(|flow| !drained.contains(&world.live[&flow])));
    }
}

/// What it held is gone; the next look notices, and fills it before a packet is decided.
#[test]
fn a_switch_that_was_started_anew_is_filled() {
    for method in METHODS {
        let mut world = Switched::new(method);
        world.start(0..300);
        world.upkeep();
        world.drain("b2", true);
        world.switch().model = Model::default();
        let lost = flow(0, 0);
        assert!(!matches!(world.send(lost, TcpFlags::ACK), Outcome::Forwarded(_)));
        let probed = world.switch().probed;
        world.later();
        assert_eq!(world.switch().emptied, 2);
        assert!(world.switch().probed > probed);
        world.check();
        world.start(300..600);
        world.drain("b2", false);
        world.check();
    }
}

/// While it is away the pool changes all the same, and is what it should be when the switch is there again.
#[test]
fn a_switch_that_is_away_is_waited_for() {
    for method in METHODS {
        let mut world = Switched::new(method);
        world.start(0..300);
        world.upkeep();
        world.switch().away = true;
        world.switch().model = Model::default();
        world.engine.drain_reports().expect("nothing fails");
        let told = world.warnings();
        assert!(told[0].starts_with("the switch forwards nothing"), "{told:?}");
        world.drain("b3", true);
        world.upkeep();
        world.switch().away = false;
        world.later();
        assert_eq!(world.warnings(), Vec::<String>::new());
        world.check();
        world.start(300..600);
        world.check();
        let drained =
            ["a", "b"].map(|name| world.engine.services[name].member("b3").expect("there").id);
        let late = (300..600).map(|client| flow((client % 2) as u8, client));
        assert!(late.into_iter().all(|flow| !drained.contains(&world.live[&flow])));
    }
}

/// One that hung has everything still when it answers again, and need not be emptied; unless something was asked
/// meanwhile.
#[test]
fn a_switch_that_was_silent_goes_on() {
    let mut world = Switched::new("concury");
    world.start(0..300);
    world.upkeep();
    for (drain, emptied) in [(false, 1), (true, 2)] {
        world.switch().away = true;
        world.engine.drain_reports().expect("nothing fails");
        assert!(world.engine.plane.trouble().is_some());
        // What is done all the time is no change.
        world.engine.turn_clock();
        world.engine.plane.next_seen_generation();
        if drain {
            world.drain("b3", true);
        }
        world.switch().away = false;
        world.later();
        assert_eq!(world.warnings(), Vec::<String>::new());
        assert_eq!(world.switch().emptied, emptied);
        world.check();
    }
    world.start(300..600);
    world.upkeep();
    world.check();
}

/// What packets have left on a switch that only hung is there when it is filled: flows that began meanwhile, of which
/// nobody has heard.
#[test]
fn what_began_while_a_switch_hung_goes_on() {
    for method in METHODS {
        let mut world = Switched::new(method);
        world.start(0..300);
        world.upkeep();
        world.drain("b2", true);
        world.switch().away = true;
        world.engine.drain_reports().expect("nothing fails");
        world.start(300..600);
        world.drain("b3", true);
        world.switch().away = false;
        world.later();
        assert_eq!(world.switch().emptied, 2);
        world.check();
        world.drain("b2", false);
        world.drain("b1", true);
        world.check();
    }
}

/// A control plane that ends has not taken what it had only read: the next one finds it.
#[test]
fn reports_that_were_only_read_are_the_next_control_planes() {
    for method in METHODS {
        let mut world = Switched::new(method);
        world.start(0..300);
        let mut none = |_: &Event| panic!("nothing is asked for");
        let plane = &mut world.engine.plane;
        Plane::wait(plane, Duration::ZERO, None, 0, &mut none).expect("it is there");
        let mut world = world.killed();
        world.upkeep();
        world.check();
        world.drain("b1", true);
        world.drain("b2", true);
        world.check();
    }
}

/// A switch that goes away in the midst of anything, comes back as it was or empty, and pools that change all the
/// same, also meanwhile; control planes that are killed. No flow that was heard of moves.
#[test]
fn whatever_a_switch_does_flows_stay() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for method in METHODS {
        let mut world = Switched::new(method);
        let (mut clients, mut away) = (0, 0);
        for step in 0..40 {
            let more = rng.random_range(1..60);
            world.start(clients..clients + more);
            clients += more;
            world.engine.drain_reports().expect("nothing fails");
            let emptied = rng.random_bool(0.5);
            if rng.random_bool(0.6) {
                // What has most writes is rarest.
                let most = 1 << rng.random_range(1..17);
                world.switch().leaves_after = Some(rng.random_range(0..most));
            }
            let backend = ["b1", "b2"][rng.random_range(0..2)];
            let drain = rng.random_bool(0.5);
            println!(
                "{step}: {method}, {backend} drains: {drain}, {:?}",
                world.switch().leaves_after
            );
            let _ = world.try_drain(backend, drain);
            if rng.random_bool(0.2) && !world.switch().away {
                world.switch().leaves_after = None;
                println!("{step}: the next control plane");
                world = world.killed();
            }
            world.switch().leaves_after = None;
            if std::mem::take(&mut world.switch().away) {
                away += 1;
                if emptied {
                    println!("{step}: it comes back empty");
                    world.switch().model = Model::default();
                }
            }
            world.later();
            // What could not be published is tried again.
            world.engine.wait_no_longer();
            world.upkeep();
            assert_eq!(world.warnings(), Vec::<String>::new(), "step {step}");
            world.check();
        }
        println!("{method}: {} flows, away {away} times", world.live.len());
        assert!(away > 3, "it was hardly away");
    }
}

/// The control plane dies and is started anew: the switch forwards meanwhile, also new flows, of which nobody
/// has heard; and goes on with all of them.
#[test]
fn the_next_control_plane_takes_over() {
    for method in METHODS {
        let mut world = Switched::new(method);
        world.start(0..300);
        world.upkeep();
        world.drain("b2", true);
        world.start(300..400);
        let Switched { engine, live, config, _directory } = world;
        let mut process = end(engine);
        let mut between = HashMap::new();
        for client in 400..600 {
            let flow = flow((client % 2) as u8, client);
            let frame =
                Frame::new(flow).macs([0; 6], [2, 0, 0, 0, 0, 1]).tcp_flags(TcpFlags::SYN).build();
            match process.model.process(&frame) {
                Outcome::Forwarded(backend) => between.insert(flow, backend),
                other => panic!("{flow}: {other:?}"),
            };
        }
        let emptied = process.emptied;
        let engine = open(process, &config);
        let mut world = Switched { engine, live, config, _directory };
        world.live.extend(between);
        assert!(world.engine.status().expect("it is told").resumed);
        world.upkeep();
        assert_eq!(world.switch().emptied, emptied + 1);
        world.check();
        world.start(600..700);
        world.drain("b1", true);
        world.check();
        let services = world.engine.status().expect("it is told").services;
        let flows: u64 = services.iter().flat_map(|one| &one.backends).map(|b| b.flows).sum();
        assert_eq!(flows, 700, "counters go on");
        assert_eq!(services.iter().map(|one| one.states).sum::<usize>(), 700);
    }
}

/// A frame of a connection with timestamps, and what its backend is told of it.
fn stamped(process: &mut Process, client: u32, flags: TcpFlags, echo: u32) -> (Outcome, u32) {
    let frame = Frame::new(flow(0, client)).macs([0; 6], [2, 0, 0, 0, 0, 1]).tcp_flags(flags);
    let outcome = process.model.process(&frame.timestamps(7, echo).build());
    (outcome, process.model.told.unwrap_or(echo))
}

/// No table can be read back from a switch, so what number a server has in cookies is written down: also when the
/// pool has another order by then.
#[test]
fn cookies_lead_home_under_the_next_control_plane() {
    // A switch has eight partitions for all of its services.
    for (method, more) in [("cheetah", ""), ("cheetah-stateful", "partitions = 2\n")] {
        let fields = format!("method = {method:?}\n{more}answers = \"backend\"");
        let mut world = Switched::with(&fields);
        let (reply, mut answer) = oneshot::channel();
        world.engine.handle(Command::Remove("a".into(), "b1".into(), reply));
        answer.try_recv().expect("it is answered").expect("it is there");
        world.upkeep();
        let (reply, mut answer) = oneshot::channel();
        world.engine.handle(Command::Add("a".into(), Box::new(backend(0, 1)), reply));
        answer.try_recv().expect("it is answered").expect("it is new");
        world.upkeep();
        let begun: Vec<(Outcome, u32)> =
            (0..60).map(|client| stamped(world.switch(), client, TcpFlags::SYN, 0)).collect();
        let homes: Vec<&Outcome> = begun.iter().map(|(home, _)| home).collect();
        assert!(homes.iter().any(|home| *home != homes[0]), "{method}: on more than one backend");
        let mut world = world.killed();
        world.upkeep();
        for (client, (home, cookie)) in (0..).zip(&begun) {
            let (found, _) = stamped(world.switch(), client, TcpFlags::ACK, *cookie);
            assert_eq!(found, *home, "{method}: client {client}");
        }
    }
}
