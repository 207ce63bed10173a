//! A table that one balancer has built and others follow: whatever numbers they have given to backends, all lead
//! every flow to the same one, those of which nobody knows included, and those home that live.

use rand::seq::IndexedMutRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use weir_hash::Key;
use weir_steering::{
    BackendId, Build, Codec, Concury, ConcuryConfig, Decide, Image, Member, Memory, Parcel,
    Question, Role, Signals, Why, digest_of,
};

type Flow = u64;

const NAMES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];

/// All that a balancer has beside its table.
#[derive(Default)]
struct Pins(HashMap<Flow, BackendId>);

impl Memory<Flow> for Pins {
    fn pinned(&mut self, question: &Question<Flow>) -> Option<BackendId> {
        self.0.get(&question.key).copied()
    }
}

/// A balancer: the numbers that it has given to backends, its states, what is pinned at it.
struct Balancer {
    numbers: HashMap<&'static str, BackendId>,
    concury: Concury<Flow>,
    memory: Pins,
    image: Option<std::sync::Arc<Image>>,
}

impl Balancer {
    fn new(seed: u64, rng: &mut ChaCha8Rng) -> Self {
        let mut numbers: Vec<u16> = (0..200).collect();
        for at in (1..numbers.len()).rev() {
            numbers.swap(at, rng.random_range(0..=at));
        }
        let numbers = NAMES.iter().zip(numbers).map(|(name, n)| (*name, BackendId::of(n)));
        let config = ConcuryConfig::unbounded(Codec::Othello, 8, seed);
        Self {
            numbers: numbers.collect(),
            concury: Concury::new(config),
            memory: Pins::default(),
            image: None,
        }
    }

    fn members(&self, pool: &[(&'static str, u32, Role)]) -> Vec<Member> {
        let member = |(name, weight, role): &(&'static str, u32, Role)| Member {
            backend: self.numbers[name],
            name: (*name).into(),
            weight: *weight,
            role: *role,
        };
        pool.iter().map(member).collect()
    }

    fn name_of(&self, backend: BackendId) -> Option<&'static str> {
        self.numbers.iter().find(|(_, id)| **id == backend).map(|(name, _)| *name)
    }

    fn follow(&mut self, generation: u64, pool: &[(&'static str, u32, Role)], parcel: &Parcel) {
        let members = self.members(pool);
        let built = Build::draft_of(&mut self.concury, generation, &members, parcel);
        let built = built.expect("its Dcodes are as wide");
        assert_eq!(built.astray, 0, "the builder knew of all");
        Build::publish_draft(&mut self.concury);
        self.memory = Pins::default();
        for (flow, backend) in built.pinned {
            self.memory.0.insert(flow, backend);
        }
        self.image = Some(built.table);
    }

    fn lead(&mut self, flow: Flow, starts: bool) -> (Option<&'static str>, Why) {
        let image = self.image.clone().expect("it follows a table");
        let hash = flow.hash(&image.header().key);
        let mut question = Question::later(flow, hash);
        question.signals = Signals { starts, ..Signals::default() };
        let decision = image.decide(&question, &mut self.memory);
        let backend = BackendId::new(decision.slot());
        (backend.and_then(|id| self.name_of(id)), decision.why)
    }
}

fn seed() -> u64 {
    let seed = std::env::var("WEIR_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    seed
}

#[test]
fn all_who_follow_a_table_lead_every_flow_alike() {
    let seed = seed();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut balancers: Vec<Balancer> = (0..3).map(|n| Balancer::new(seed ^ n, &mut rng)).collect();
    let mut live: HashMap<Flow, &'static str> = HashMap::new();
    let mut placed_again = 0;
    for generation in 1..=40 {
        let pool: Vec<(&'static str, u32, Role)> = NAMES
            .iter()
            .filter_map(|name| match rng.random_range(0..10) {
                0 => None,
                1 | 2 => Some((*name, 3, Role::Draining)),
                3 => Some((*name, 3, Role::Down)),
                _ => Some((*name, rng.random_range(1..5), Role::Serving)),
            })
            .collect();
        if !pool.iter().any(|(.., role)| *role == Role::Serving) {
            continue;
        }
        // Another one builds each time, and all have been told of what lives.
        let builder = rng.random_range(0..3);
        let one = &mut balancers[builder];
        let members = one.members(&pool);
        let built = Build::draft(&mut one.concury, generation, &members, 0).expect("it fits");
        let parcel =
            Parcel::of(&built.table, |id| one.name_of(id).map(str::to_owned)).expect("named");
        Build::discard_draft(&mut one.concury).expect("it goes back");
        let bytes = parcel.to_bytes();
        let read = Parcel::from_bytes(&bytes).expect("it was written so");
        assert_eq!((&read, digest_of(&bytes)), (&parcel, parcel.digest()));
        live.retain(|_, at| pool.iter().any(|(name, ..)| name == at));
        for balancer in &mut balancers {
            balancer.follow(generation, &pool, &read);
            // Each can hand it on: to the bit what it has got, unless a name has no backend with it.
            let image = balancer.image.clone().expect("followed");
            let again = Parcel::of(&image, |id| balancer.name_of(id).map(str::to_owned));
            let all_there = parcel.names().all(|name| pool.iter().any(|(n, ..)| *n == name));
            assert!(!all_there || again.expect("named").to_bytes() == bytes);
        }
        let takes =
            |name: &str| pool.iter().any(|(n, _, role)| *n == name && *role == Role::Serving);
        for (flow, at) in &live {
            for balancer in &mut balancers {
                let (to, why) = balancer.lead(*flow, false);
                assert_eq!(to, Some(*at), "a flow of {at} goes to {to:?} ({why:?})");
            }
        }
        for _ in 0..600 {
            let flow: Flow = rng.random();
            let at = balancers.choose_mut(&mut rng).expect("three").lead(flow, true).0;
            let at = at.expect("somebody serves");
            assert!(takes(at), "a new flow goes to {at}, which takes none");
            for balancer in &mut balancers {
                let (to, why) = balancer.lead(flow, false);
                assert_eq!(to, Some(at), "of one table ({why:?})");
                placed_again += usize::from(why == Why::PlacedAgain);
            }
            // All are told by the backends.
            for balancer in &mut balancers {
                let id = balancer.numbers[at];
                balancer.concury.start(flow, id, 0).expect("there is room");
            }
            live.insert(flow, at);
        }
        let over: Vec<Flow> =
            live.keys().copied().filter(|_| rng.random_range(0..3) == 0).collect();
        for flow in over {
            live.remove(&flow);
            for one in &mut balancers {
                let _ = one.concury.forget(&flow);
            }
        }
    }
    assert!(placed_again > 0, "no new flow fell on a reserved Dcode");
}

/// Whatever bytes come are a parcel or none, and cost no more than they are.
#[test]
fn bytes_that_are_no_parcel_are_refused() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let mut one = Balancer::new(7, &mut rng);
    let members = one.members(&[("a", 1, Role::Serving), ("b", 2, Role::Serving)]);
    let built = Build::draft(&mut one.concury, 1, &members, 0).expect("it fits");
    let parcel = Parcel::of(&built.table, |id| one.name_of(id).map(str::to_owned)).expect("named");
    let bytes = parcel.to_bytes();
    for end in 0..bytes.len().min(600) {
        assert!(Parcel::from_bytes(&bytes[..end]).is_err(), "the first {end} bytes are taken");
    }
    for _ in 0..2000 {
        let mut other = bytes.clone();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..bytes.len().min(700));
            other[at] = rng.random();
        }
        if let Ok(read) = Parcel::from_bytes(&other) {
            assert_eq!(read.to_bytes(), other);
        }
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(Parcel::from_bytes(&longer).is_err());
}
