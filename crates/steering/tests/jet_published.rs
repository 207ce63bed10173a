//! JET as a plane publishes it: random histories of pools and flows over its build face and its
//! published tables, for each placement. A flow that is not silent for a warm-up period stays
//! where it began, whatever is added, drained, weighted or removed; a restart does no harm. Rows stop
//! asking the connection table when nothing that they would find there is left.
//!
//! `WEIR_SEED=n` repeats a run.

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::sync::Arc;
use weir_hash::Key;
use weir_steering::jet::{JetBuilder, PLACEMENT, ROWS, WARM_UP};
use weir_steering::{
    BackendId, Build, Decide, Decision, Image, Member, MethodId, Question, Role, ServiceConfig,
    ServiceId, ServiceState, Settings, Signals, SoftMemory, StateKey, Why,
};

const WARM: u32 = 60;

fn key(n: u32) -> StateKey {
    let mut address = [0; 16];
    address[10..12].fill(0xff);
    address[12..].copy_from_slice(&n.to_be_bytes());
    StateKey { address, src_port: 4000, dst_port: 443 }
}

struct Flow {
    backend: u16,
    last: u32,
}

struct World {
    config: ServiceConfig,
    builder: JetBuilder,
    members: Vec<Member>,
    memory: SoftMemory,
    flows: HashMap<u32, Flow>,
    rng: ChaCha8Rng,
    now: u32,
    generation: u64,
    next: u32,
    /// Flows that ended, which others may take the ports of.
    ended: Vec<u32>,
    next_backend: u16,
    /// What the tables did: new flows tracked, flows found in the table, broken flows.
    tracked: u64,
    found: u64,
    broken: u64,
    /// Rows that have stopped asking.
    cleared: u64,
}

impl World {
    fn new(placement: &str, warm_up: u32, backends: u16, rng: ChaCha8Rng) -> Self {
        let mut settings = Settings::of(MethodId::Jet);
        settings.set(ROWS, 4096).unwrap();
        settings.set(WARM_UP, warm_up.into()).unwrap();
        settings.set_word(PLACEMENT, placement).unwrap();
        let config = ServiceConfig {
            settings,
            client_affinity: false,
            udp: false,
            seed: 7,
            nonce: 8,
            capacity: 0,
            max_states: 0,
            idle_seconds: 0,
        };
        let mut world = Self {
            builder: JetBuilder::new(&config, None),
            config,
            members: Vec::new(),
            memory: SoftMemory::new(0, 1, 1),
            flows: HashMap::new(),
            rng,
            now: 1_000_000,
            generation: 0,
            next: 0,
            ended: Vec::new(),
            next_backend: 0,
            tracked: 0,
            found: 0,
            broken: 0,
            cleared: 0,
        };
        (0..backends).for_each(|_| world.add(Role::Serving));
        world.publish();
        world
    }

    /// Nine that serve, and a tenth that is foreseen: what begins now in rows that it would have is tracked.
    fn with_one_foreseen(seed: u64) -> Self {
        let mut world = Self::new("table", WARM, 9, ChaCha8Rng::seed_from_u64(seed));
        world.add(Role::Draining);
        world.publish();
        world
    }

    /// The tenth has been foreseen for long enough to serve at once.
    fn it_serves(&mut self) {
        self.now += WARM;
        self.members[9].role = Role::Serving;
    }

    fn add(&mut self, role: Role) {
        let backend = self.next_backend;
        self.next_backend += 1;
        let name = format!("b{backend}");
        self.memory.incarnations.insert(BackendId::of(backend), 1);
        self.members.push(Member { backend: BackendId::of(backend), name, weight: 2, role });
    }

    fn publish(&mut self) {
        self.generation += 1;
        // Every other table is refused at first, and drafted again.
        self.builder.draft(self.generation, &self.members, self.now).unwrap();
        self.builder.discard_draft().unwrap();
        self.builder.build(self.generation, &self.members, self.now).unwrap();
    }

    /// The connections in the connection table whose backends are still the ones they began at.
    fn connections(&self) -> Vec<(StateKey, BackendId)> {
        let present = &self.memory.incarnations;
        let counted = self.memory.connections.iter().filter(|(_, entry)| {
            present.get(&entry.backend).is_some_and(|incarnation| entry.is_of(*incarnation))
        });
        counted.map(|(state, entry)| (state.key, entry.backend)).collect()
    }

    /// As a control plane does now and then: tells what it has found in the connection table.
    fn tell(&mut self, found: Vec<(StateKey, BackendId)>) {
        assert!(self.builder.asks_for_former() || self.asking() == self.tracking());
        let before = self.asking();
        self.builder.tell_connections(&mut found.into_iter());
        if self.builder.due(self.now) {
            self.publish();
            self.cleared += ((before - self.asking()).max(0.0) * 4096.0) as u64;
        }
    }

    fn look(&mut self) {
        let found = self.connections();
        self.tell(found);
        self.check_rows();
    }

    /// Of a row that does not ask, every connection in the table is at its owner.
    fn check_rows(&self) {
        let Image::Jet(table) = &**self.table() else { unreachable!() };
        for (key, backend) in self.connections() {
            let owner =
                table.body().owners()[table.body().row(key.hash(&table.header().key)) as usize];
            assert!(owner & 0x8000 != 0 || owner == backend.get(), "{owner:x} and not {backend}");
        }
    }

    /// Others take the places of half of those in the connection table that have ended.
    fn evict(&mut self) {
        for n in &self.ended {
            if self.rng.random_range(0..2) == 0 {
                let state = ServiceState { service: ServiceId(0), key: key(*n) };
                self.memory.connections.remove(&state);
            }
        }
    }

    /// The part of the rows that ask, and of those whose flows are tracked.
    fn asking(&self) -> f64 {
        let Image::Jet(table) = &**self.table() else { unreachable!() };
        table.body().asking()
    }

    fn tracking(&self) -> f64 {
        let Image::Jet(table) = &**self.table() else { unreachable!() };
        table.body().tracking()
    }

    fn table(&self) -> &Arc<Image> {
        self.builder.published().unwrap()
    }

    fn decide(&mut self, n: u32, signals: Signals) -> Decision {
        let table = self.table().clone();
        let key = key(n);
        let hash = key.hash(Decide::<StateKey>::hash_key(&table));
        let question = Question { signals, ..Question::later(key, hash) };
        let decision = table.decide(&question, &mut self.memory);
        self.tracked += u64::from(decision.why == Why::NewlyTracked);
        self.found += u64::from(decision.why == Why::Tracked);
        decision
    }

    /// New flows, half of them with the ports of one that ended.
    fn start(&mut self, flows: u32) {
        for _ in 0..flows {
            let again = self.rng.random_range(0..=self.ended.len()) / 2;
            let again = (again < self.ended.len()).then(|| self.ended.swap_remove(again));
            let n = again.unwrap_or(self.next);
            self.next += u32::from(again.is_none());
            let decision = self.decide(n, Signals::FIRST);
            let backend = decision.backend.expect("somebody serves").get();
            let member = self.members.iter().find(|member| member.backend == backend).unwrap();
            // Whose ports are in the connection table may be taken for one that drains there.
            let follows = decision.why == Why::Tracked && member.role == Role::Draining;
            assert!(member.effective_weight() > 0 || follows, "a new flow at {member:?}");
            self.flows.insert(n, Flow { backend, last: self.now });
        }
    }

    /// A third of the flows end. Those of a backend that is down do so unseen.
    fn end(&mut self) {
        let mut flows: Vec<u32> = self.flows.keys().copied().collect();
        flows.sort_unstable();
        flows.retain(|_| self.rng.random_range(0..3) == 0);
        self.flows.retain(|n, _| flows.binary_search(n).is_err());
        self.ended.extend(flows);
    }

    /// A health check decides between two packets of new flows: packets know it before a table does.
    fn flaps(&mut self) {
        let down: Vec<BackendId> = self.memory.down.iter().copied().collect();
        self.start(20);
        self.memory.down.clear();
        self.packets(WARM);
        self.memory.down.extend(down);
        self.packets(WARM);
    }

    /// A packet of every flow that was silent for less than `silence`.
    fn packets(&mut self, silence: u32) {
        let mut flows = std::mem::take(&mut self.flows);
        flows.retain(|_, flow| self.members.iter().any(|member| member.backend == flow.backend));
        for (&n, flow) in &mut flows {
            if self.now - flow.last < silence {
                let went = self.decide(n, Signals::LATER).backend.map(Into::into);
                if went != Ok(flow.backend) {
                    self.broken += 1;
                    flow.backend = went.expect("somebody serves");
                }
                flow.last = self.now;
            }
        }
        self.flows = flows;
    }

    fn wait(&mut self, seconds: u32) {
        self.now += seconds;
        if self.builder.due(self.now) {
            self.publish();
            assert!(!self.builder.due(self.now), "once");
        }
    }

    fn restart(&mut self) {
        let published = Image::clone(self.table());
        self.builder = JetBuilder::new(&self.config, Some(Arc::new(published)));
    }

    fn change(&mut self) {
        let serving = self.members.iter().filter(|m| m.effective_weight() > 0).count();
        let at = self.rng.random_range(0..self.members.len());
        let (many, weight) = (self.members.len() > 4, self.rng.random_range(1..6));
        let member = &mut self.members[at];
        match self.rng.random_range(0..7) {
            0 => self.add(Role::Serving),
            6 => self.add(Role::Draining),
            1 if serving > 2 && many => {
                let gone = self.members.remove(at).backend;
                self.memory.incarnations.remove(&gone);
                self.memory.down.remove(&gone);
            }
            2 if serving > 2 => {
                member.role = Role::Down;
                self.memory.down.insert(member.backend);
            }
            3 if serving > 2 => member.role = Role::Draining,
            4 => member.weight = weight,
            _ => {
                member.role = Role::Serving;
                self.memory.down.remove(&member.backend);
            }
        }
        self.publish();
    }
}

#[test]
fn a_flow_that_is_not_silent_stays_where_it_began() {
    let seed = seed::seed();
    for (number, placement) in ["table", "ring", "anchor"].into_iter().enumerate() {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(number as u64);
        let mut world = World::new(placement, WARM, 8, rng);
        for step in 0..400 {
            world.start(20);
            world.packets(WARM);
            world.change();
            world.packets(WARM);
            world.flaps();
            world.end();
            world.evict();
            world.look();
            world.packets(WARM);
            if step % 10 == 9 {
                world.restart();
                world.publish();
            }
            let seconds = world.rng.random_range(0..WARM / 2);
            world.wait(seconds);
            if step % 50 == 49 {
                world.flows.clear();
                world.memory.connections.clear();
            }
        }
        let World { tracked, found, cleared, .. } = world;
        println!("{placement}: {tracked} tracked, {found} found, {cleared} rows cleared");
        assert_eq!(world.broken, 0, "{placement}");
        assert!(tracked > 500 && found > 5_000 && cleared > 1_000);
    }
}

/// Under a long churn every row comes to ask; who looks what is left of the connections asks no more than
/// the horizon demands.
#[test]
fn rows_stop_asking_for_connections_that_are_gone() {
    let seed = seed::seed();
    for placement in ["table", "ring", "anchor"] {
        for looks in [false, true] {
            let mut world = World::new(placement, WARM, 8, ChaCha8Rng::seed_from_u64(seed));
            for step in 0..150 {
                world.start(20);
                world.packets(WARM);
                world.change();
                world.packets(WARM);
                world.end();
                world.evict();
                if looks {
                    world.look();
                }
                if step % 40 == 39 {
                    world.restart();
                }
                world.wait(WARM / 4);
            }
            assert_eq!(world.broken, 0, "{placement}");
            // All connections have ended, and others have taken their places in the table.
            world.flows.clear();
            world.memory.connections.clear();
            world.wait(WARM);
            world.wait(WARM);
            let (before, tracking) = (world.asking(), world.tracking());
            println!("{placement}: {before:.3} of the rows ask, {tracking:.3} track");
            if looks {
                world.look();
                assert_eq!(world.asking(), world.tracking(), "{placement}");
                assert!(!world.builder.asks_for_former());
            } else {
                assert!(before > 0.9, "{placement}: {before}");
                assert!(world.builder.asks_for_former());
            }
        }
    }
}

/// What a look is good for, and what it must not do: a row with a connection elsewhere goes on asking,
/// and it is no look where nothing was read.
#[test]
fn a_row_asks_as_long_as_a_connection_of_it_is_elsewhere() {
    for blind in [false, true] {
        let mut world = World::with_one_foreseen(3);
        world.start(3_000);
        world.it_serves();
        world.publish();
        let before = world.asking();
        let found = if blind { Vec::new() } else { world.connections() };
        world.tell(found);
        // Of some four hundred rows a good half have one of the three hundred that are tracked.
        assert_eq!(world.asking() > 0.0, !blind);
        assert!(world.asking() < before);
        world.packets(u32::MAX);
        assert_eq!(world.broken > 100, blind, "{}", world.broken);
        assert_eq!(world.broken == 0, !blind, "{}", world.broken);
    }
}

/// A look comes after every packet that saw a table before the published one: such a packet may still put
/// its flow into the connection table.
#[test]
fn a_look_waits_for_packets_that_follow_the_table_before() {
    for waits in [true, false] {
        let mut world = World::with_one_foreseen(4);
        let former = world.table().clone();
        world.it_serves();
        world.publish();
        let early = (!waits).then(|| world.connections());
        let mut late = HashMap::new();
        for n in 0..3_000 {
            let hash = key(n).hash(Decide::<StateKey>::hash_key(&former));
            let question = Question { signals: Signals::FIRST, ..Question::later(key(n), hash) };
            let backend = former.decide(&question, &mut world.memory).backend;
            late.insert(n, Flow { backend: backend.expect("nine serve").get(), last: world.now });
        }
        let found = early.unwrap_or_else(|| world.connections());
        world.tell(found);
        world.flows = late;
        world.packets(u32::MAX);
        assert_eq!(world.broken > 100, !waits, "{}", world.broken);
        assert_eq!(world.broken == 0, waits, "{}", world.broken);
    }
}

/// What was found is of the table that was published then: another one may have tracked the row since.
#[test]
fn what_a_look_has_found_ends_with_its_table() {
    let mut world = World::with_one_foreseen(5);
    world.it_serves();
    world.publish();
    let found = world.connections();
    world.builder.tell_connections(&mut found.into_iter());
    assert!(world.builder.due(world.now));
    // The rows are tracked again before they are cleared, by the table that would have cleared them.
    world.members[9].role = Role::Down;
    world.publish();
    world.start(3_000);
    world.members[9].role = Role::Serving;
    world.publish();
    assert!(!world.builder.due(world.now));
    world.packets(u32::MAX);
    assert_eq!(world.broken, 0);
}

/// An address that was taken away has entries that no look sees. When it comes back, all rows ask, until a look
/// has seen them.
#[test]
fn rows_ask_again_for_what_no_look_has_seen() {
    for asks in [false, true] {
        let mut world = World::with_one_foreseen(8);
        world.start(3_000);
        world.it_serves();
        world.publish();
        world.tell(Vec::new());
        assert_eq!(world.asking(), 0.0, "of no connection anything is known");
        if asks {
            world.builder.ask_again();
            assert!(world.builder.due(world.now));
            world.publish();
            assert!(!world.builder.due(world.now), "once");
            assert_eq!(world.asking(), 1.0);
            world.look();
            assert!((0.01..0.2).contains(&world.asking()), "{}", world.asking());
        }
        world.packets(u32::MAX);
        assert_eq!(world.broken == 0, asks, "{}", world.broken);
    }
}

/// A draft that was made before is no answer to it, and what is left out as not elsewhere changes nothing.
#[test]
fn all_rows_ask_in_the_next_draft_and_no_earlier_one() {
    let mut world = World::with_one_foreseen(9);
    world.start(3_000);
    world.it_serves();
    world.generation += 1;
    world.builder.draft(world.generation, &world.members, world.now).unwrap();
    world.builder.ask_again();
    world.builder.publish_draft();
    assert!(world.asking() < 0.2 && world.builder.due(world.now));
    world.publish();
    assert_eq!(world.asking(), 1.0);
    let mut elsewhere = world.builder.elsewhere();
    let all = world.connections();
    let found: Vec<_> = all.iter().copied().filter(|(key, at)| elsewhere(key, *at)).collect();
    assert!(!found.is_empty() && found.len() < all.len());
    world.tell(found);
    world.check_rows();
    assert!((0.01..0.2).contains(&world.asking()), "{}", world.asking());
}

/// Without a warm-up a row that does not ask may get another owner at once. It asks from then on: a
/// connection that its former owner has may be in the table from an earlier time.
#[test]
fn a_row_that_changes_hands_asks() {
    let mut world = World::new("table", 0, 9, ChaCha8Rng::seed_from_u64(6));
    world.add(Role::Draining);
    world.publish();
    world.start(3_000);
    // Nobody is expected any more, and all that was tracked is where its row is.
    let gone = world.members.remove(9).backend;
    world.memory.incarnations.remove(&gone);
    world.publish();
    world.look();
    assert_eq!(world.asking(), 0.0);
    assert!(world.memory.connections.len() > 200);
    world.add(Role::Serving);
    world.publish();
    assert!(world.asking() > 0.05);
    world.check_rows();
}

/// Who stands on the horizon joins at once; who does not waits for a warm-up period.
#[test]
fn a_backend_of_the_horizon_joins_at_once_and_another_waits() {
    let mut world = World::new("table", WARM, 9, ChaCha8Rng::seed_from_u64(1));
    let share = |world: &World, backend: u16| {
        let Image::Jet(table) = &**world.table() else { unreachable!() };
        let starts = table.body().starts().iter();
        starts.filter(|&&slot| slot & 0x7fff == backend).count() as f64 / 4096.0
    };
    assert_eq!(world.tracking(), 0.0, "nobody is expected");
    world.add(Role::Draining);
    world.publish();
    // |H| / (|W| + |H|), as the paper has it.
    assert!((world.tracking() - 0.1).abs() < 0.03, "{}", world.tracking());
    assert_eq!(share(&world, 9), 0.0);
    world.start(3_000);
    world.wait(WARM);
    world.members[9].role = Role::Serving;
    world.publish();
    assert!((share(&world, 9) - 0.1).abs() < 0.03, "{}", share(&world, 9));
    assert_eq!(world.tracking(), 0.0);
    world.packets(u32::MAX);
    assert_eq!(world.broken, 0);
    world.add(Role::Serving);
    world.publish();
    assert_eq!(share(&world, 10), 0.0);
    world.wait(WARM - 1);
    world.packets(u32::MAX);
    assert_eq!(share(&world, 10), 0.0);
    world.wait(1);
    assert!(share(&world, 10) > 0.05);
    world.packets(u32::MAX);
    assert_eq!(world.broken, 0);
}

/// Without a warm-up an addition that nobody foresaw breaks the share that the backend takes
/// (the paper's figure 2), and so do flows that are silent for longer.
#[test]
fn what_the_paper_predicts_breaks() {
    for (warm_up, silent) in [(0, false), (WARM, true)] {
        let mut world = World::new("table", warm_up, 20, ChaCha8Rng::seed_from_u64(2));
        world.start(20_000);
        world.add(Role::Serving);
        world.publish();
        if silent {
            world.wait(WARM);
        }
        world.packets(u32::MAX);
        let broken = world.broken as f64 / 20_000.0;
        assert!((broken - 1.0 / 21.0).abs() < 0.012, "{broken}");
    }
}
