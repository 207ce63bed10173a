//! JET as a plane publishes it: random histories of pools and flows over its build face and its
//! published tables, for each placement. A flow that is not silent for a warm-up period stays
//! where it began, whatever is added, drained, weighted or removed; a restart does no harm.
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
    Settings, Signals, SoftMemory, StateKey, Why,
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
        };
        (0..backends).for_each(|_| world.add(Role::Serving));
        world.publish();
        world
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
        println!("{placement}: {} tracked, {} found", world.tracked, world.found);
        assert_eq!(world.broken, 0, "{placement}");
        assert!(world.tracked > 500 && world.found > 5_000);
    }
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
    let tracking = |world: &World| {
        let Image::Jet(table) = &**world.table() else { unreachable!() };
        table.body().tracking()
    };
    assert_eq!(tracking(&world), 0.0, "nobody is expected");
    world.add(Role::Draining);
    world.publish();
    // |H| / (|W| + |H|), as the paper has it.
    assert!((tracking(&world) - 0.1).abs() < 0.03, "{}", tracking(&world));
    assert_eq!(share(&world, 9), 0.0);
    world.start(3_000);
    world.wait(WARM);
    world.members[9].role = Role::Serving;
    world.publish();
    assert!((share(&world, 9) - 0.1).abs() < 0.03, "{}", share(&world, 9));
    assert_eq!(tracking(&world), 0.0);
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
