//! A pool and its clients, seen from outside: they know where each flow began.

use crate::common::{config, rng, seconds};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use weir_placement::Candidate;
use weir_steering::jet::{AnyJet, JetError, PlacementKind};
use weir_steering::{NO_BACKEND, StateKey, Steer};

/// The warm-up period, in ticks; every flow sends a packet within one less.
const WARM_UP: u64 = 20;

struct Live {
    key: StateKey,
    backend: u16,
    last: u64,
}

/// Where a backend is, and since when it was announced, if it was.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    Working,
    Horizon { announced: Option<u64> },
}

#[derive(Default, Debug)]
pub struct Tally {
    pub packets: u64,
    /// Packets that did not go where their flow began, though that backend works.
    pub violations: u64,
    /// First packets that went to a backend that does not work.
    pub misplaced: u64,
    pub inevitable: u64,
    pub admitted: u64,
    pub too_early: u64,
    pub retired: u64,
    pub announced: u64,
}

pub struct World {
    pub jet: AnyJet<StateKey>,
    rng: ChaCha8Rng,
    now: u64,
    next_flow: u64,
    next_backend: u16,
    pool: BTreeMap<u16, Place>,
    flows: Vec<Live>,
    pub tally: Tally,
}

impl World {
    pub fn new(placement: PlacementKind, connections: Option<usize>, seed: u64) -> Self {
        let names: Vec<String> = (0..30).map(|i| format!("first-{i}")).collect();
        let working: Vec<Candidate<'_>> = (0..)
            .zip(&names)
            .map(|(backend, name)| Candidate { name, backend, weight: 1 + u32::from(backend % 3) })
            .collect();
        Self {
            jet: AnyJet::new(&config(placement, connections, seed), &working, &[]).unwrap(),
            rng: rng(seed),
            now: 0,
            next_flow: 0,
            next_backend: 30,
            pool: (0..30).map(|backend| (backend, Place::Working)).collect(),
            flows: Vec::new(),
            tally: Tally::default(),
        }
    }

    pub fn run(&mut self, changes: u64) {
        for _ in 0..changes {
            self.now += 1;
            self.packets();
            self.change();
        }
    }

    /// New flows, packets of old ones, ends. All flows that were silent for long send.
    fn packets(&mut self) {
        let ended: Vec<Live> = self.flows.extract_if(.., |_| self.rng.random_bool(0.02)).collect();
        ended.iter().for_each(|flow| self.jet.end(&flow.key));
        while self.flows.len() < 400 {
            let key = self.new_flow();
            self.flows.push(Live { key, backend: NO_BACKEND, last: self.now });
        }
        let rng = &mut self.rng;
        let sending: Vec<usize> = (0..self.flows.len())
            .filter(|&i| {
                let flow = &self.flows[i];
                let due = flow.backend == NO_BACKEND || self.now - flow.last >= WARM_UP - 1;
                due || rng.random_bool(0.06)
            })
            // Flows also send twice in a burst.
            .flat_map(|i| std::iter::repeat_n(i, 1 + i % 2))
            .collect();
        let keys: Vec<StateKey> = sending.iter().map(|&i| self.flows[i].key).collect();
        let mut answers = vec![0; keys.len()];
        if self.rng.random_bool(0.5) {
            self.jet.steer_batch(&keys, &mut answers);
        } else {
            answers.iter_mut().zip(&keys).for_each(|(out, key)| *out = self.jet.steer(key));
        }
        for (i, answer) in sending.into_iter().zip(answers) {
            self.receive(i, answer);
        }
    }

    fn new_flow(&mut self) -> StateKey {
        self.next_flow += 1;
        let mut address = [0; 16];
        address[10] = 0xff;
        address[11] = 0xff;
        address[12..].copy_from_slice(&(self.next_flow as u32).to_be_bytes());
        StateKey { address, src_port: self.rng.random(), dst_port: 80 }
    }

    fn receive(&mut self, i: usize, answer: u16) {
        let flow = &mut self.flows[i];
        self.tally.packets += 1;
        flow.last = self.now;
        if flow.backend == NO_BACKEND {
            flow.backend = answer;
            self.tally.misplaced += u64::from(self.pool.get(&answer) != Some(&Place::Working));
        } else if flow.backend != answer {
            self.tally.violations += 1;
            // A client that meets the wrong backend gets a reset, and that is that.
            flow.backend = answer;
        }
    }

    fn pick(&mut self, working: bool) -> Option<u16> {
        let fits = |place: &Place| (*place == Place::Working) == working;
        let of_kind: Vec<u16> =
            self.pool.iter().filter(|(_, place)| fits(place)).map(|(b, _)| *b).collect();
        (!of_kind.is_empty()).then(|| of_kind[self.rng.random_range(0..of_kind.len())])
    }

    fn count(&self, working: bool) -> usize {
        self.pool.values().filter(|place| (**place == Place::Working) == working).count()
    }

    fn change(&mut self) {
        match self.rng.random_range(0..20) {
            0..4 if self.count(true) > 20 && self.count(false) < 8 => self.leave(true),
            4 if self.count(true) > 25 => self.leave(false),
            5..8 if self.count(false) < 8 && self.count(true) < 40 => self.announce(),
            8 => self.withdraw(),
            9..18 => self.admit(),
            18 => drop(self.jet.sweep()),
            _ => {}
        }
    }

    /// A backend fails: its flows are inevitably broken.
    fn leave(&mut self, may_return: bool) {
        let Some(backend) = self.pick(true) else { return };
        let swept = if may_return {
            self.pool.insert(backend, Place::Horizon { announced: None });
            self.jet.retire(backend)
        } else {
            self.pool.remove(&backend);
            self.jet.remove(backend)
        };
        swept.unwrap();
        self.tally.retired += 1;
        let before = self.flows.len();
        self.flows.retain(|flow| flow.backend != backend);
        self.tally.inevitable += (before - self.flows.len()) as u64;
    }

    fn announce(&mut self) {
        let backend = self.next_backend;
        let name = format!("later-{backend}");
        let candidate = Candidate { name: &name, backend, weight: 1 + self.rng.random_range(0..3) };
        self.jet.add_horizon(candidate, seconds(self.now)).unwrap();
        self.next_backend += 1;
        self.pool.insert(backend, Place::Horizon { announced: Some(self.now) });
        self.tally.announced += 1;
    }

    fn withdraw(&mut self) {
        let Some(backend) = self.pick(false) else { return };
        self.jet.remove_horizon(backend).unwrap();
        self.pool.remove(&backend);
    }

    /// Somebody asks for a backend to join, too early or not.
    fn admit(&mut self) {
        let Some(backend) = self.pick(false) else { return };
        let Some(&Place::Horizon { announced }) = self.pool.get(&backend) else { return };
        let ready = announced.map_or(0, |at| at + WARM_UP);
        let result = self.jet.admit(backend, seconds(self.now));
        if self.now < ready {
            let left = seconds(ready - self.now);
            assert_eq!(result, Err(JetError::TooEarly { backend, left }));
            self.tally.too_early += 1;
            return;
        }
        result.unwrap();
        self.pool.insert(backend, Place::Working);
        self.tally.admitted += 1;
    }
}
