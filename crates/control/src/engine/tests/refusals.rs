//! Whatever a plane can refuse, at any moment of a history of all that an operator, a file, the network and time
//! can ask for: no connection moves, no service is without a whole table, nobody goes on recording, what is left
//! undone is tried again after a while, and what stands at last is what a start would have made of it.

use super::reload::{CARRIED, sorted};
use super::*;
use crate::neigh::Change;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::mpsc::error::TryRecvError;

const SERVICES: [&str; 3] = ["a", "b", "c"];
/// Less than the time for which a SYN is repeated: who began is known all the while.
const SECONDS: u32 = 90;
/// For so long a thread that the machine has no time for is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine that runs, with whoever sends it commands.
struct Running {
    world: World,
    sender: Sender,
    commands: Commands,
}

impl Running {
    fn new() -> Self {
        let mut world = World::with(3, CARRIED[0]);
        world.engine.plane.takes_time = true;
        let (sender, commands) = Self::listen(&mut world);
        Self { world, sender, commands }
    }

    /// As it does in its own thread, it takes some commands before others.
    fn listen(world: &mut World) -> (Sender, Commands) {
        let (sender, mut commands) = channel(16).expect("descriptors");
        world.engine.urgent = commands.urgent();
        (sender, commands)
    }

    /// Turns until something is there.
    fn await_some<T>(&mut self, mut some: impl FnMut(&mut World) -> Option<T>) -> T {
        let (begun, mut timers) = (Instant::now(), Timers::new());
        loop {
            if let Some(found) = some(&mut self.world) {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "nothing has come");
            self.world.engine.turn(&mut self.commands, &mut timers);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Somebody wants to look at packets.
    fn look(&mut self) -> commands::TraceReply {
        let (reply, mut answer) = oneshot::channel();
        let sender = self.sender.clone();
        self.world.engine.handle(Command::Trace(Box::default(), sender, reply));
        self.await_some(|_| answer.try_recv().ok())
    }

    fn restart(self) -> Self {
        let World { mut engine, live, directory } = self.world;
        engine.end_trace();
        engine.save().expect("it can be kept");
        let (wanted, plane) = (engine.config.clone(), std::mem::take(&mut engine.plane));
        let ahead = engine.ahead;
        drop(engine);
        let found = Found { resumed: true, ..Found::default() };
        let mut engine = over(plane, found, &wanted).unwrap_or_else(|error| panic!("{error}"));
        engine.ahead = ahead;
        let mut world = World { engine, live, directory };
        let (sender, commands) = Self::listen(&mut world);
        Self { world, sender, commands }
    }

    /// Something is asked for. What was answered is another test's.
    fn happens(&mut self, rng: &mut ChaCha8Rng, event: u32) {
        let world = &mut self.world;
        let service = (*SERVICES.choose(rng).expect("three")).to_owned();
        let number = service.as_bytes()[0] - b'a';
        let spare = rng.random_range(4..7);
        let some = rng.random();
        match event {
            0 => {
                let weight = rng.random_range(1..9);
                let _ = world.ask(|r| Command::Weight(service, "b1".into(), weight, r));
            }
            1 => drop(world.ask(|r| Command::Drain(service, "b2".into(), some, r))),
            2 => drop(world.ask(|r| Command::Add(service, Box::new(backend(number, spare)), r))),
            3 => drop(world.ask(|r| Command::Remove(service, format!("b{spare}"), r))),
            4 => drop(world.ask(|r| Command::Set(service, Box::new(backend(number, spare)), r))),
            5 => {
                // Nobody comes from there.
                let prefix = format!("198.51.{spare}.0/24");
                let wanted = ListSource {
                    prefix: prefix.clone(),
                    allow: false,
                    seconds: None,
                    reason: None,
                };
                let _ = match some {
                    true => world.ask(|r| Command::List(service, wanted, r)),
                    false => world.ask(|r| Command::Unlist(service, prefix, r)),
                };
            }
            6 | 7 => {
                let mut fields = (*CARRIED.choose(rng).expect("some")).to_owned();
                if some && !fields.contains("tracked") {
                    // Nobody has as many.
                    fields += "\nnew_flows = { source_connections = 1000 }";
                }
                let mut wanted = config_with(&world.directory, 3, &fields);
                wanted.limits.pending_flows = rng.random_range(10_000..20_000);
                let _ = world.engine.reload_as(wanted, false);
            }
            8 => {
                if world.engine.ahead + 3 < SECONDS {
                    world.engine.ahead += 3;
                }
                let _ = world.engine.sweep();
                world.what_is_due();
            }
            9 => {
                let all = Change { interfaces: true, routes: true, ..Change::default() };
                world.engine.handle(Command::Network(all));
                world.what_is_due();
            }
            10 => {
                let _ = world.engine.status();
                let _ = world.engine.sample();
                let _ = world.engine.explain(&flow(number, 1), None);
            }
            // No table finds room in a row, until all stand side by side.
            11 => world.engine.plane.bounds.piece = 100,
            _ => drop(self.look()),
        }
    }

    /// All that is left undone is tried again, now that nothing is in the way.
    fn makes_up(&mut self, step: u32) {
        let engine = &mut self.world.engine;
        engine.plane.refuse_nothing();
        engine.end_trace();
        assert!(!engine.is_tracing(), "{step}: somebody still looks");
        for _ in 0..3 {
            self.world.upkeep_later();
        }
        if self.world.engine.oversize.is_some() {
            // Which the status says: until the next reload.
            let wanted = self.world.engine.config.clone();
            self.world.engine.reload_as(wanted, false).expect("nothing is refused");
            self.world.upkeep_later();
        }
        assert_eq!(self.world.warnings(), Vec::<String>::new(), "{step}");
    }
}

impl World {
    /// What is due, but for what has failed and waits.
    fn what_is_due(&mut self) {
        let mut timers = Timers::new();
        timers.unreported.0 -= UNREPORTED_EVERY;
        self.engine.upkeep(&mut timers);
    }

    /// Every packet of every connection goes where it lives. Where a backend is to serve again, and no table says
    /// so yet, a repeated SYN is nobody's.
    fn lead_home(&mut self, step: u32) {
        self.lose_leavers();
        let mut rising = HashSet::new();
        for service in self.engine.services.values().filter(|service| service.dirty) {
            let reserved = service.reserved();
            let rises = |member: &&crate::engine::service::PoolMember| {
                !member.wanted.drain && reserved.contains(&member.id)
            };
            rising.extend(service.pool.iter().filter(rises).map(|member| member.id));
        }
        for (flow, backend) in &self.live {
            let flags = [TcpFlags::SYN, TcpFlags::ACK];
            for flags in flags.into_iter().skip(usize::from(rising.contains(backend))) {
                let frame = Frame::new(*flow).tcp_flags(flags).build();
                let went = self.engine.plane.process(&frame);
                assert_eq!(went, Outcome::Forwarded(*backend), "step {step}: {flow} {flags:?}");
            }
        }
    }

    /// No service is without a table that is whole, and packets find it.
    fn all_have_tables(&self, step: u32) {
        let plane = &self.engine.plane;
        for name in SERVICES {
            let number = self.engine.services[name].number;
            assert!(plane.tables.contains_key(&number), "{step}: {name} has no table");
            assert!(plane.vips.values().any(|at| *at == number), "{step}: {name} is not found");
        }
    }

    /// What stands: the services with their pools, as the engine has them and as packets do. A number that nobody
    /// has, of a backend that could not be taken back, leads nowhere.
    fn stands(&self) -> Vec<String> {
        let mut all = vec![format!("{:?}", sorted(&self.engine.plane.vips))];
        for (name, service) in &self.engine.services {
            let saved = service.saved();
            all.push(format!("{name} {} {:?}", saved.number, saved.configured));
            all.push(format!("{:?}", service.listed.saved()));
            for member in &service.pool {
                let there = self.engine.plane.backends.get(&member.id);
                let there = there.map(|there| (there.address, there.incarnation, there.up));
                all.push(format!("{:?} {:?} {there:?}", member.id, member.wanted));
            }
        }
        all
    }
}

#[test]
fn whatever_is_refused_at_any_moment_is_made_up_for() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let mut running = Running::new();
    let (mut clients, mut waited) = (0, 0);
    for step in 0..240 {
        for service in 0..3 {
            let some = rng.random_range(0..4);
            running.world.start(service, clients..clients + some);
            clients += some;
        }
        let event = rng.random_range(0..13);
        println!("{step}: event {event}");
        for _ in 0..rng.random_range(1..4) {
            let operation = *Operation::ALL.choose(&mut rng).expect("some");
            let (granted, refused) = (rng.random_range(0..6), rng.random_range(1..8));
            running.world.engine.plane.refuse_after(operation, granted, refused);
            println!("{step}: {operation:?} is refused {refused} times after {granted}");
        }
        let begun = Instant::now();
        running.happens(&mut rng, event);
        running.world.lead_home(step);
        running.world.all_have_tables(step);
        for service in running.world.engine.services.values() {
            if let Some(trouble) = &service.trouble {
                // Not at once, and not never.
                assert!(
                    trouble.again >= begun + Duration::from_secs(1),
                    "{step}: {}",
                    trouble.what
                );
                waited += 1;
            }
        }
        running.makes_up(step);
        running.world.lead_home(step);
        running.world.all_have_tables(step);
        // Of tables that record as well.
        running.world.check();
        if step % 20 == 19 {
            let before = running.world.stands();
            running = running.restart();
            running.world.upkeep_later();
            assert_eq!(running.world.stands(), before, "{step}");
            running.makes_up(step);
            running.world.check();
        }
    }
    // What only an engine that runs comes to, and a plane of memory can refuse all the same.
    for operation in [
        Operation::PrepareResize,
        Operation::Resize,
        Operation::HandOn,
        Operation::SetDevices,
        Operation::SetMembers,
        Operation::SetSources,
        Operation::ReadLost,
        Operation::PrepareTrace,
        Operation::Trace,
        Operation::KeepTracing,
        Operation::EndTrace,
        Operation::ReadHeld,
        Operation::CorrectHeld,
    ] {
        assert!(running.world.engine.plane.asked(operation) > 0, "{operation:?}");
    }
    println!("{} connections; {waited} updates waited", running.world.live.len());
    assert!(running.world.live.len() > 300);
}

/// A look at packets that is refused is answered or told, ends, and leaves the usual program in place.
#[test]
fn a_look_that_is_refused_is_answered_and_leaves_nothing() {
    let mut running = Running::new();
    for operation in [Operation::PrepareTrace, Operation::Trace] {
        running.world.engine.plane.refuse_after(operation, 0, 1);
        let refused = running.look().expect_err("it is refused").to_string();
        assert!(refused.contains("refused on demand"), "{refused}");
        assert!(!running.world.engine.is_tracing(), "{operation:?}");
        assert!(running.look().is_ok(), "{operation:?}: only once");
        running.world.engine.end_trace();
    }
    // Where it cannot go on, whoever looks is told why.
    let mut lines = running.look().expect("nothing is refused");
    running.world.engine.plane.refuse_after(Operation::KeepTracing, 0, 1);
    let why = running.await_some(|_| match lines.try_recv() {
        Ok(TraceLine::Ended(why)) => Some(why),
        Ok(_) | Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => panic!("nothing was told"),
    });
    assert!(why.contains("refused on demand"), "{why}");
    assert!(!running.world.engine.is_tracing());
    // The usual program cannot be put back: that is tried again.
    drop(running.look().expect("nothing is refused"));
    running.world.engine.plane.refuse_after(Operation::EndTrace, 0, 2);
    running.world.engine.end_trace();
    assert!(running.world.engine.is_tracing());
    running.await_some(|world| (!world.engine.is_tracing()).then_some(()));
    assert!(running.world.engine.plane.asked(Operation::EndTrace) > 2);
}
