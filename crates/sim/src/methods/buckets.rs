//! An indirection table, with and without a second chance.

use super::memory::Remembered;
use super::steered::{Face, Steered};
use super::{below, mix, server};
use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges, NOBODY};
use weir_hash::{HashKey, scale};
use weir_steering::baseline::Chain;
use weir_steering::{Decide, Decision, Memory, Question};

/// An indirection table of buckets, [`Chain`], and who tells it the owners. Each server is the home
/// of its share of them; while it is away they are with others, drawn at random, and they come home
/// when it is back. A server that was never there, or gets more weight, takes its share from the
/// homes of the others.
///
/// With the chain it is Beamer's and Faild's: a bucket also names its previous server, and the
/// current one passes on what it does not hold. A flow breaks when its bucket changes twice.
pub type Buckets = Steered<BucketsFace>;

impl Buckets {
    /// The table without a second chance: "hash" in Cheetah's figure 2a.
    pub fn hash(buckets: usize, weights: &[u32]) -> Self {
        Steered::alone(BucketsFace::new(buckets, weights, false))
    }

    /// The table with one previous owner per bucket.
    pub fn chain(buckets: usize, weights: &[u32]) -> Self {
        Steered::alone(BucketsFace::new(buckets, weights, true))
    }

    /// Cheetah, section 2.1: a server whose load rises above (1 + `threshold`) times the average
    /// is taken out of the table, and comes back when its load is below the average. Loads are
    /// live connections per unit of weight.
    pub fn with_threshold(mut self, threshold: f64) -> Self {
        self.face.threshold = Some(threshold);
        self
    }

    /// Servers with numbers from `weights.len()` on have the weight 1 until they get another.
    pub fn with_weights(mut self, all: &[u32]) -> Self {
        self.face.weights = all.to_vec();
        self
    }
}

/// Who gives the buckets of [`Buckets`] their owners.
#[derive(Debug)]
pub struct BucketsFace {
    /// What packets read.
    table: Chain,
    /// The owners that it is given.
    current: Vec<u16>,
    home: Vec<u16>,
    /// (server, weight) of those that have a home share.
    shares: Vec<(u16, u32)>,
    weights: Vec<u32>,
    /// Those that new flows go to, and those that are out until their load falls.
    live: Vec<u16>,
    overloaded: Vec<u16>,
    chain: bool,
    threshold: Option<f64>,
    draws: u64,
}

/// Of the key that flows are hashed under.
const SEED: u64 = 0x6275_636b_6574;

impl BucketsFace {
    /// `weights`: of the servers that serve at first; their numbers are its indices.
    fn new(buckets: usize, weights: &[u32], chain: bool) -> Self {
        let shares: Vec<_> = (0..).zip(weights.iter().copied()).collect();
        let mut home = vec![NOBODY; buckets];
        deal(&mut home, &shares);
        Self {
            table: Chain::new(buckets, SEED),
            current: vec![NOBODY; buckets],
            home,
            shares,
            weights: weights.to_vec(),
            live: Vec::new(),
            overloaded: Vec::new(),
            chain,
            threshold: None,
            draws: 0,
        }
    }

    fn set(&mut self, bucket: usize, server: u16, effects: &mut Effects) {
        if self.current[bucket] != server {
            self.current[bucket] = server;
            effects.rows.push(bucket as u32);
        }
    }

    /// The owners become the table's. One who gets a bucket and loses it before has never had it.
    fn publish(&mut self, traffic: &Traffic) {
        self.table.assign(&self.current, traffic.now() as u32);
    }

    fn any(&mut self) -> u16 {
        self.draws += 1;
        match self.live.len() {
            0 => NOBODY,
            n => self.live[below(mix(self.draws), n)],
        }
    }

    fn weight(&self, server: u16) -> u32 {
        self.weights.get(usize::from(server)).copied().unwrap_or(1)
    }

    /// Gives the server its share of the homes; buckets whose home is now another that serves
    /// go there.
    fn settle_home(&mut self, server: u16, effects: &mut Effects) {
        let weight = self.weight(server);
        match self.shares.iter_mut().find(|share| share.0 == server) {
            Some(share) if share.1 == weight => return,
            Some(share) => share.1 = weight,
            None => self.shares.push((server, weight)),
        }
        let before = self.home.clone();
        deal(&mut self.home, &self.shares);
        for (bucket, before) in before.into_iter().enumerate() {
            let home = self.home[bucket];
            if home != before && self.live.contains(&home) {
                self.set(bucket, home, effects);
            }
        }
    }

    fn join(&mut self, server: u16, effects: &mut Effects) {
        self.live.push(server);
        self.settle_home(server, effects);
        for bucket in 0..self.current.len() {
            if self.home[bucket] == server || self.current[bucket] == NOBODY {
                self.set(bucket, server, effects);
            }
        }
    }

    fn leave(&mut self, server: u16, effects: &mut Effects) {
        self.live.retain(|&other| other != server);
        self.overloaded.retain(|&other| other != server);
        for bucket in 0..self.current.len() {
            if self.current[bucket] == server {
                let other = self.any();
                self.set(bucket, other, effects);
            }
        }
    }

    /// The average load, per unit of weight, of all that serve.
    fn average(&self, traffic: &Traffic) -> f64 {
        let serving = self.live.iter().chain(&self.overloaded);
        let weight: u32 = serving.map(|&server| self.weight(server)).sum();
        traffic.live() as f64 / f64::from(weight.max(1))
    }

    fn load(&self, server: u16, traffic: &Traffic) -> f64 {
        f64::from(traffic.load(server)) / f64::from(self.weight(server).max(1))
    }

    /// Servers come back whose load has fallen, and the one that gets another flow goes if that
    /// is too many. The last one stays.
    fn watch(&mut self, to: u16, threshold: f64, traffic: &Traffic, effects: &mut Effects) {
        let average = self.average(traffic);
        let (rested, still): (Vec<u16>, Vec<u16>) =
            self.overloaded.iter().partition(|&&server| self.load(server, traffic) < average);
        self.overloaded = still;
        for server in rested {
            self.join(server, effects);
            self.publish(traffic);
        }
        let more = 1.0 / f64::from(self.weight(to).max(1));
        let too_many = self.load(to, traffic) + more > average * (1.0 + threshold);
        if too_many && self.live.len() > 1 && self.live.contains(&to) {
            self.leave(to, effects);
            self.publish(traffic);
            self.overloaded.push(to);
        }
    }
}

/// Deals slots to servers, `(server, weight)`, in proportion to their weights. A slot changes its
/// owner only if that is gone or has too many.
fn deal(owners: &mut [u16], servers: &[(u16, u32)]) {
    let total: usize = servers.iter().map(|&(_, weight)| weight as usize).sum();
    if total == 0 {
        owners.fill(NOBODY);
        return;
    }
    let mut room = vec![0usize; usize::from(NOBODY) + 1];
    let mut upto = 0;
    for &(server, weight) in servers {
        let below = owners.len() * upto / total;
        upto += weight as usize;
        room[usize::from(server)] = owners.len() * upto / total - below;
    }
    for owner in owners.iter_mut() {
        match &mut room[usize::from(*owner)] {
            0 => *owner = NOBODY,
            room => *room -= 1,
        }
    }
    let short = servers
        .iter()
        .flat_map(|&(server, _)| std::iter::repeat_n(server, room[usize::from(server)]));
    let empty = owners.iter_mut().filter(|owner| **owner == NOBODY);
    empty.zip(short).for_each(|(owner, server)| *owner = server);
}

impl Face for BucketsFace {
    fn hash_key(&self, _: u16) -> &HashKey {
        Decide::<u64>::hash_key(&self.table)
    }

    fn decide<M: Memory<u64>>(&self, _: u16, question: &Question<u64>, memory: &mut M) -> Decision {
        self.table.decide(question, memory)
    }

    fn rows(&self) -> usize {
        self.current.len()
    }

    fn row_of(&self, hash: u64) -> u32 {
        scale(hash as u32, self.current.len() as u32)
    }

    /// With a threshold, loads are watched at every new flow.
    fn placed(&mut self, server: u16, traffic: &mut Traffic, effects: &mut Effects) {
        if let Some(threshold) = self.threshold {
            self.watch(server, threshold, traffic, effects);
        }
    }

    fn second(&self, flow: FlowRef) -> u16 {
        let second = self.table.second_chance(&flow.id).filter(|_| self.chain);
        second.map_or(NOBODY, server)
    }

    fn change(
        &mut self,
        changes: &[Change],
        _: &mut [Remembered],
        traffic: &mut Traffic,
        effects: &mut Effects,
    ) {
        for &change in changes {
            match change {
                Change::Add(server) => self.join(server, effects),
                Change::Remove(server) | Change::Drain(server) => self.leave(server, effects),
                Change::Reweight(server, weight) => {
                    let number = usize::from(server);
                    self.weights.resize(self.weights.len().max(number + 1), 1);
                    self.weights[number] = weight;
                    if self.shares.iter().any(|share| share.0 == server) {
                        self.settle_home(server, effects);
                    }
                }
                Change::Expect(_) | Change::Unexpect(_) => continue,
            }
            self.publish(traffic);
        }
    }

    fn gauges(&self, _: &[Remembered]) -> Gauges {
        Gauges::default()
    }
}
